"""OpenCL convolutions and pools, CPU and GPU kernels, against their decompositions in float64 on NumPy."""

from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.errors import BackendError
from tests.helpers.opencl_modules import device_as_gpu, opencl_modules

batch_norm, conv_im2col, copy, device_module, devices, geometry, product, table = opencl_modules(
    "batch_norm", "conv_im2col", "copy", "device", "devices", "geometry", "product", "table"
)
pytestmark = pytest.mark.polyarr_backend("opencl")
TOLERANCES = {"float32": 1e-5, "float16": 4e-3, "float64": 1e-13}
SMALL = st.sampled_from


class Kinds(dict):
    def __missing__(self, kind):
        pytest.skip(f"compilers for this device need not take the kernels of kind {kind!r}")


@pytest.fixture(scope="module")
def kinds():
    """Backends with different work distributions."""
    found = Kinds()
    own = device_module.Device(devices.select().cl_device, "convolutions")
    own.geometry = type(own.geometry)(2)
    for device in (device_as_gpu(), own):
        kind = device.geometry.kind
        found[kind] = Backend(
            f"as-{kind}", table.make_kernels(device), upload=device.upload, download=partial(copy.download, device),
            synchronize=device.synchronize, guarded=device.guarded,
        )  # fmt: skip
    return found


@st.composite
def layers(draw, groups=(1, 1, 2, 3)):
    """Draw shapes of x and weight, and positions of the windows."""
    axes, groups = draw(st.integers(1, 3)), draw(SMALL(groups))
    each = draw(SMALL([1, 3, 8]))
    n = groups * (1 if each == 1 and draw(st.booleans()) else draw(SMALL([2, 5, 16])))
    where = [
        (draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2)),
         (draw(st.integers(0, 2)), draw(st.integers(0, 2)))) for _ in range(axes)
    ]  # fmt: skip
    lengths, kernel, stride, dilation, padding = map(tuple, zip(*where, strict=True))
    reach = (length + sum(pads) - (k - 1) * d for length, k, _, d, pads in where)
    assume(min(reach) >= 1)
    x, weight = (draw(SMALL([1, 2])), *lengths, groups * each), (n, *kernel, each)
    return x, weight, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def random(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def beside(backend, fn, hosts, dtype):
    """Return fn's results on the backend and, in float64, on NumPy."""
    with use_backend(backend), backend.guarded():
        got = [a.numpy() for a in fn(*(pa.asarray(h) for h in hosts))]
    with use_backend("numpy"):
        expected = [a.numpy() for a in fn(*(pa.asarray(h.astype(np.float64)) for h in hosts))]
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == np.dtype(dtype) and one.shape == other.shape
        atol = TOLERANCES[dtype] * max(1, np.abs(other[np.isfinite(other)]).max(initial=0))
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@given(layers(), SMALL(["float32", "float32", "float16"]))
def test_all_sides_of_the_product(kinds, kind, layer, dtype):
    x, weight, where = layer

    def all_sides(x, weight):
        y = ops.conv_product(x, weight, **where)
        if dtype != "float32":  # 16-bit results are rounded, so later results start from other numbers
            return (y,)
        dx = ops.conv_input_gradient(y, weight, shape=x.shape[1:-1], **where)
        return y, dx, ops.conv_weight_gradient(y, x, shape=weight.shape[1:-1], **where)

    beside(kinds[kind], all_sides, (random(x, dtype, 0), random(weight, dtype, 1)), dtype)


@pytest.mark.parametrize(("kind", "activation"), [("cpu", "gelu_tanh"), ("gpu", "relu")])
def test_bias_and_activation_are_the_products(kinds, kind, activation):
    hosts = [random(s, "float32", 0) for s in ((2, 6, 5, 8), (7, 3, 3, 8), (7,))]

    def value_and_gradients(x, weight, bias):
        y, pull = pa.vjp(partial(ops.conv, padding=1, activation=activation), x, weight, bias)
        return y, *pull(pa.ones_like(y))

    beside(kinds[kind], value_and_gradients, hosts, "float32")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_deep_sum_of_a_weight_is_cut_by_images(kinds, kind, monkeypatch):
    monkeypatch.setattr(conv_im2col, "MAX_SUM_LENGTH", 40)
    hosts = [random(s, "float32", 0) for s in ((6, 5, 5, 4), (6, 5, 5, 8))]
    beside(kinds[kind], lambda x, g: (ops.conv_weight_gradient(g, x, shape=(3, 3), padding=1),), hosts, "float32")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@given(layers(groups=(1,)), SMALL(["float32", "float16"]), st.booleans(), st.booleans())
def test_pools(kinds, kind, layer, dtype, ceil_mode, counts):
    """With ties, and with means that count padding or not."""
    x, weight, where = layer
    where = {name: where[name] for name in ("stride", "padding", "dilation")} | {"kernel": weight[1:-1]}
    assume(all(max(pads) < k for pads, k in zip(where["padding"], where["kernel"], strict=True)))
    host = np.round(random(x, dtype, 2) * 2)

    def pools(x):
        means = {**where, "count_include_pad": counts}
        means.pop("dilation")
        for pool in (partial(ops.max_pool, **where), partial(ops.mean_pool, **means)):
            y, pull = pa.vjp(partial(pool, ceil_mode=ceil_mode), x)
            yield y
            yield from pull(pa.astype(pa.asarray(np.resize(np.arange(4), y.shape)), y.dtype))

    beside(kinds[kind], pools, (host,), dtype)


def test_the_gradient_of_what_no_window_takes_is_zero(kinds):
    """Axes that lie entirely between windows, next to ones that do not."""
    where = {"stride": (1, 2), "padding": ((1, 0), (1, 3))}
    hosts = [random(s, "float32", 0) for s in ((2, 2, 3, 1), (1, 3, 1, 3))]
    for backend in kinds.values():
        beside(backend, lambda g, w: (ops.conv_input_gradient(g, w, shape=(3, 1), **where),), hosts, "float32")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("shape", "offset"), [((5, 3, 7, 6), 0), ((300, 8), 100), ((1500, 33), 10)],
    ids=["images", "far from 0", "many parts of odd rows"],
)  # fmt: skip
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_batch_norm(kinds, kind, shape, offset, activation):
    """Gradients of mean and variance are included."""
    hosts = [random(s, "float32", i) + offset * (i == 0) for i, s in enumerate((shape, shape[-1:], shape[-1:]))]
    seeds = [random(s, "float32", 3 + i) for i, s in enumerate((shape, shape[-1:], shape[-1:]))]

    def value_and_gradients(*arrays):
        found, pull = pa.vjp(partial(ops.batch_norm, activation=activation), *arrays)
        given = tuple(pa.astype(pa.asarray(g), a.dtype) for g, a in zip(seeds, found, strict=True))
        return *found, *pull(given)

    beside(kinds[kind], value_and_gradients, hosts, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation"),
    [
        ((2, 5, 9, 8), (3, 3), 1, 1, 1), ((1, 6, 11, 16), (3, 3), 2, ((1, 0), (0, 2)), 1), ((2, 30, 24), (5,), 1, 2, 2),
        ((1, 9, 8, 40), (7, 7), 1, 3, 1), ((1, 3, 4, 6, 8), (2, 2, 3), (1, 2, 1), 1, 1),
        ((3, 4, 9, 12), (1, 7), 1, 0, 1),
    ],
)  # fmt: skip
def test_depthwise_by_vectors_of_channels(kinds, shape, kernel, stride, padding, dilation, dtype) -> None:
    """Filters that fit into a work-item's registers, and larger ones."""
    where = {"stride": stride, "padding": padding, "dilation": dilation, "groups": shape[-1]}

    def sides(x, w):
        y, pull = pa.vjp(lambda x, w: ops.conv(x, w, **where), x, w)
        return y, *pull(y)

    beside(kinds["gpu"], sides, (random(shape, dtype, 0), random((shape[-1], *kernel, 1), dtype, 1)), dtype)


@pytest.mark.parametrize(
    ("groups", "each", "outputs", "dtype"),
    [
        (3, 1, 1, "float16"), (37, 1, 1, "float32"), (48, 1, 1, "float32"), (12, 2, 2, "float32"),
        (10, 4, 4, "float64"), (4, 4, 4, "float32"), (2, 8, 24, "float32"),
    ],
)  # fmt: skip
def test_groups_of_few_channels(kinds, groups, each, outputs, dtype):
    """Blocks of every width, one that overlaps another, and runs that end in the padding or beyond the image."""
    for length, kernel, stride, padding, dilation in (
        ((6, 11), (3, 3), 1, 1, 1), ((7, 10), (5, 3), (2, 3), ((0, 3), (2, 0)), (1, 4)),
        ((3, 4, 7), (2, 1, 3), (1, 2, 4), 1, 2), ((1, 13), (1, 9), 2, (0, 4), 1),
    ):  # fmt: skip
        where = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}

        def sides(x, w, where=where):
            y, pull = pa.vjp(lambda x, w: ops.conv(x, w, **where), x, w)
            return y, *pull(y)

        x, w = random((2, *length, groups * each), dtype, 0), random((groups * outputs, *kernel, each), dtype, 1)
        beside(kinds["cpu"], sides, (x, w), dtype)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 0, 3, 4), (0, 3, 3, 4)])
def test_depthwise_windows_on_padding_alone_are_zeros(kinds, kind, shape):
    with use_backend(kinds[kind]):
        y, pull = pa.vjp(lambda x, w: ops.conv(x, w, padding=2, groups=4), pa.ones(shape), pa.ones((4, 2, 3, 1)))
        dx, dw = pull(pa.ones_like(y))
        assert y.shape[1:-1] == tuple(n + 4 - k + 1 for n, k in zip(shape[1:-1], (2, 3), strict=True))
        assert not y.numpy().any() and dx.shape == shape and not dw.numpy().any()


def test_more_windows_than_a_walk_counts_are_refused():
    with pytest.raises(BackendError, match=r"^conv: 2,147,483,648 windows or more; .* take fewer at once$"):
        conv_im2col._axes([(2**16, (2**17,)), (2**15, (1,))])


def test_a_walk_divides_every_number():
    """Division by multiplication and shift, (i * magic / 2^32 + i) / 2^shift, is exact for any length."""
    for length in (1, 2, 3, 7, 10, 641, 2**16 + 1, 2**30 - 1, 2**31 - 1):
        lengths, magic, shift = product.Axes((1, 1, 1, length), (0, 0, 0, 1)).fields()[0].reshape(3, 4)[:, -1]
        for i in (0, 1, length - 1, length, 2 * length - 1, 10**9, 2**31 - 1):
            quotient = ((i * int(magic) >> 32) + i) & 0xFFFFFFFF
            assert i > 2**31 - 1 or quotient >> int(shift) == i // int(lengths)
