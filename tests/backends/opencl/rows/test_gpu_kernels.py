"""GPU kernels that work along rows, run on any OpenCL device with small work per item."""

from functools import partial

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.spec import DTYPES, Spec
from polyarr.testing import references
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import bits
from tests.backends.opencl.replay.test_fusion_kernels import a_repeated_input_that_is_read_as_dense
from tests.helpers.opencl_modules import device_as_gpu, opencl_modules

attention_decode, conv, copy, devices, fusion, fusion_rows_gpu = opencl_modules(
    "attention_decode", "conv", "copy", "devices", "fusion", "fusion_rows_gpu"
)
device_module, geometry, replay, reduce, table, gemv, topk = opencl_modules(
    "device", "geometry", "replay", "reduce", "table", "gemv", "topk"
)
pytestmark = pytest.mark.polyarr_backend("opencl")
JOINED = next(case.run for case in cases() if case.name == "backend-joined")


@pytest.fixture(scope="module")
def as_gpu():
    """Return a backend with a GPU's work distribution: rows of more than 32 elements are not held in registers."""
    device = device_as_gpu()
    device.geometry.least_lanes = device.geometry.most_lanes = 4
    device.geometry.row_share = device.geometry.most_held = 8
    device.geometry.sort_tile, device.geometry.sort_long, device.geometry.sort_merges = 64, 1000, 0.5
    return Backend(
        "gpu-kernels", table.make_kernels(device), upload=device.upload, download=partial(copy.download, device),
        dtypes=frozenset(DTYPES), synchronize=device.synchronize, replay=partial(replay.Replay, device),
        fusion=fusion.fusion_of(device),
    )  # fmt: skip


@pytest.fixture
def gpu(backend, as_gpu):
    """The backend of as_gpu, as the current one."""
    with use_backend(as_gpu):
        yield as_gpu


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def both(fn, *hosts, dtype=pa.float32):
    """Return fn's value and gradients here, and on NumPy in float64 for the same rounded inputs."""
    arrays = [pa.astype(pa.asarray(h), dtype) for h in hosts]
    exact = [pa.astype(a, pa.float32).numpy().astype(np.float64) for a in arrays]
    found = []
    for inputs, name in ((arrays, None), (exact, "numpy")):
        with use_backend(name or pa.get_backend()):
            value, pull = pa.vjp(fn, *map(pa.asarray, inputs))
            g = pa.astype(pa.asarray(normal(*value.shape, seed=9)), value.dtype)
            wide = [pa.astype(a, pa.float64 if name else pa.float32) for a in (value, *pull(g))]
            found.append([a.numpy() for a in wide])
    return zip(*found, strict=True)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(3, 24, "float16"), (5, 7, "float32"), (4, 101, "float32")],
    ids=["held", "at odd places", "in chunks"],
)  # fmt: skip
def test_rows(gpu, rows, columns, dtype):
    x, w, b = normal(rows, columns) + 2, normal(columns, seed=1), normal(columns, seed=2)
    targets = np.arange(rows) * 5 % columns
    targets[1] = -100
    calls = {
        "softmax": (ops.softmax, x),
        "layer_norm": (partial(ops.layer_norm, eps=0.1), x, w, b),
        "rms_norm": (partial(ops.rms_norm, eps=0.1), x, w),
        "cross_entropy": (lambda x: ops.cross_entropy(x, pa.asarray(targets), label_smoothing=0.1), x),
        "add": (ops.add, x, w),
    }
    for name, (fn, *hosts) in calls.items():
        for got, expected in both(fn, *hosts, dtype=getattr(pa, dtype)):
            scale = np.abs(expected).max() * (2e-5 if dtype == "float32" else 4e-3)
            np.testing.assert_allclose(got, expected, rtol=0, atol=scale, err_msg=name)


def placed(host, dtype, gap, turned):
    """Return host in the dtype after `gap` nans, with its last two axes transposed in memory if `turned`."""
    wanted = host.swapaxes(-1, -2) if turned else host
    behind = pa.astype(pa.asarray(np.append(np.full(gap, np.nan), wanted)), dtype)
    found = ops.reshape(behind[gap:], shape=wanted.shape)
    return ops.matrix_transpose(found) if turned else found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("form", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "lengths", [(1, 1100, 5), (3, 72, 40), (2, 37, 4), (9, 24, 1), (11, 40, 259), (3, 0, 5)],
    ids=["one row", "few", "odd", "few columns", "in turns", "of nothing"],
)  # fmt: skip
def test_skinny_products(gpu, lengths, form, dtype):
    """Vector loads if all rows are aligned, else smaller or scalar loads; also in batches."""
    m, k, n = lengths
    tolerance = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 1e-6, "float64": 1e-14}[dtype]
    for gap in (0, 1, 4):
        x, y = placed(normal(2, m, k), dtype, gap, form[0] == "T"), placed(normal(2, k, n), dtype, gap, form[1] == "T")
        expected = x.astype("float64").numpy() @ y.astype("float64").numpy()
        found = ops.matrix_product(x, y).astype("float64").numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max(), err_msg=str(gap))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
@pytest.mark.parametrize("lengths", [(1, 72, 40), (3, 770, 24), (4, 6, 1), (2, 1024, 33)], ids=str)
def test_where_operands_begin_changes_no_bit_of_a_product(gpu, lengths, form, dtype):
    """A captured function may copy what is a slice elsewhere."""
    m, k, n = lengths
    operands = (normal(2, m, k), form[0] == "T"), (normal(2, k, n, seed=1), form[1] == "T")
    found = [
        bits(ops.matrix_product(*[placed(host, dtype, gap, turned) for host, turned in operands]))
        for gap in (0, 1, 2, 4)
    ]
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("form", ["NN", "NT"])
def test_columns_that_no_group_takes_are_seen(gpu, monkeypatch, form):
    """Planted fault: work-groups claim twice as many columns as they compute."""
    real = gemv._gpu_shape
    twice = partial(gemv._plan, lambda *args: real(*args)._replace(columns=2 * real(*args).columns))
    monkeypatch.setattr(gemv, "VARIANTS", [variant._replace(plan=twice) for variant in gemv.VARIANTS])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_skinny_products(gpu, (3, 72, 1531), form, "float32")


@pytest.mark.parametrize("turned", [False, True], ids=["NN", "NT"])
def test_what_is_no_number_stays_in_its_row_and_column(gpu, turned):
    x, y = normal(3, 40), normal(40, 37, seed=1)
    x[1, 39], y[38, 5] = np.inf, np.nan
    found = ops.matrix_product(pa.asarray(x), placed(y, "float32", 0, turned)).numpy()
    clean = ops.matrix_product(pa.asarray(np.where(x == np.inf, 0, x)), placed(np.nan_to_num(y), "float32", 0, turned))
    others = np.ix_([0, 2], np.arange(37) != 5)
    np.testing.assert_array_equal(found[others], clean.numpy()[others])
    assert np.isnan(found[:, 5]).all()
    assert np.isinf(np.delete(found[1], 5)).all()


def test_the_gradient_of_bias_and_activation(gpu):
    """Blocks of rows, the last of which is short."""
    for got, expected in both(partial(ops.linear, activation="gelu_tanh"), normal(70, 3), normal(8, 3), normal(8)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_keep_the_digits_of_float64(gpu, activation):
    """Their formulas on GPUs have constants of their own."""
    x, one = np.linspace(-20, 20, 401)[:, None], np.ones((1, 1))
    found = []
    for name in (None, "numpy"):
        with use_backend(name or pa.get_backend()):
            layer = partial(ops.linear, weight=pa.asarray(one), activation=activation)
            value, pull = pa.vjp(layer, pa.asarray(x))
            found.append((value.numpy(), pull(pa.ones_like(value))[0].numpy()))
    for got, expected in zip(*found, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_slopes_of_gelu_at_the_ends_of_the_range(gpu, dtype):
    x = pa.asarray([[-np.inf], [-6e4], [-200.0], [200.0], [6e4], [np.inf], [np.nan]], dtype=getattr(pa, dtype))
    value, pull = pa.vjp(partial(ops.linear, weight=pa.ones_like(x[:1]), activation="gelu_tanh"), x)
    slopes = pull(pa.ones_like(value))[0].astype(pa.float32).numpy()[:, 0]
    np.testing.assert_array_equal(slopes, [0, 0, 0, 1, 1, 1, np.nan])


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
@pytest.mark.parametrize(
    "shape", [(3, 50), (5, 70), (1, 500), (2, 5000)], ids=["one tile", "a full one", "merges", "by digits"]
)
def test_sorts_are_stable_and_have_nan_last(gpu, shape, dtype):
    """Sorted elements keep their bits, including the signs of zeros."""
    host = np.round(normal(*shape) * 5) * 0.5
    if np.dtype(dtype).kind == "f":
        host[:, ::7], host[:, 1::7] = np.nan, -0.0
    else:
        host = np.abs(host)
    host = host.astype(dtype)
    for descending in (False, True):
        key = np.where(np.isnan(host), np.inf, host.astype(float))
        expected = np.argsort(-key if descending else key, axis=1, kind="stable")
        x = pa.asarray(host)
        np.testing.assert_array_equal(ops.argsort(x, descending=descending).numpy(), expected)
        found = ops.sort(x, descending=descending).numpy()
        assert found.tobytes() == np.take_along_axis(host, expected, 1).tobytes()


@pytest.mark.parametrize("kind", [
    "normal", "ties", "all alike", "ascending", "ties at the end", "one work-item's", "one work-item's, all alike",
    "a few of one work-item's",
])  # fmt: skip
def test_topk_is_the_beginning_of_a_stable_sort(gpu, kind, monkeypatch):
    """Also if more elements equal the threshold than fit."""
    monkeypatch.setattr(topk, "GROUP", 16)
    monkeypatch.setattr(topk, "CAPACITY", 16)
    host = {
        "normal": normal(2, 300), "ties": np.round(normal(2, 300)), "all alike": np.ones((2, 300), np.float32),
        "ascending": np.arange(600, dtype=np.float32).reshape(2, 300),
        "ties at the end": np.tile(np.arange(300) > 250, (2, 1)).astype(np.int32),
        "one work-item's": np.tile((np.arange(300) % 16 == 7) * 50 + np.arange(300) % 3, (2, 1)).astype(np.int32),
        "one work-item's, all alike": np.tile((np.arange(300) % 16 == 7) * (2**31 - 1), (2, 1)).astype(np.int32),
        "a few of one work-item's": np.tile(np.isin(np.arange(300), range(7, 192, 16)), (2, 1)).astype(np.int32),
    }[kind]  # fmt: skip
    for n in (300, 64):  # chosen; sorted
        order = np.argsort(-host[:, :n].astype(float), axis=1, kind="stable")
        for k in (1, 9, 16):
            np.testing.assert_array_equal(ops.topk(pa.asarray(host[:, :n]), k=k)[1].numpy(), order[:, :k])


@pytest.mark.parametrize(("rows", "n", "depth"), [(1, 131, 1056), (3, 5, 32), (2, 17001, 64), (9, 7, 96)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("codes", "has_blocks"), [("int8", False), ("int8", True), ("uint8", True), ("uint8", False)])
def test_linear_layers_with_quantized_weights(gpu, rows, n, depth, dtype, codes, has_blocks):
    x, bias = (pa.astype(pa.asarray(normal(*shape)), dtype) for shape in ((rows, depth), (n,)))
    scale = pa.asarray(normal(*((n, depth // 32) if has_blocks else (n,)))).astype("float16")
    limits = np.iinfo(codes)
    drawn = np.random.default_rng(1).integers(limits.min, limits.max + 1, (n, depth // (2 if codes == "uint8" else 1)))
    codes = drawn.astype(codes)
    exact = [pa.astype(a, "float64").numpy() for a in (x, scale, bias)]
    wanted = references.quantized_linear(exact[0], codes, *exact[1:], activation="relu")
    found = ops.quantized_linear(x, pa.asarray(codes), scale, bias, activation="relu")
    error = np.abs(pa.astype(found, "float64").numpy() - wanted).max() / np.abs(wanted).max()
    assert error < {"float32": 1e-6, "bfloat16": 2**-8, "float64": 1e-14}[dtype]


def test_quantized_rows_of_any_length(gpu):
    x, codes = normal(3, 33), np.random.default_rng(1).integers(-128, 128, (5, 33)).astype(np.int8)
    scale = normal(5)
    found = ops.quantized_linear(*map(pa.asarray, (x, codes, scale))).numpy()
    np.testing.assert_allclose(found, x @ codes.T * scale, rtol=1e-5, atol=1e-3)


def test_reductions_of_rows_at_odd_places(gpu):
    host = np.round(normal(3, 203) * 3)
    host[1, 60] = host[1, 90] = np.nan
    for part in (host, host[:, 1:]):
        x = pa.asarray(host)[:, host.shape[1] - part.shape[1] :]
        for name in ("argmax", "argmin", "max", "min", "sum"):
            expected = getattr(np, name)(part, axis=1)
            np.testing.assert_array_equal(getattr(ops, name)(x, axis=1).numpy(), expected, err_msg=name)


def test_padding_of_a_maximum_is_not_the_first_element_of_a_row(gpu):
    """Padding equal to the maximum must not win as a later equal element."""
    zeros = pa.asarray(np.array([[-0.0, 0.0]] * 3, np.float32))
    assert not np.signbit(pa.max(zeros, axis=1).numpy()).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64", "bool", "complex64"])
@pytest.mark.parametrize("gap", [0, 1])
def test_reductions_of_columns(gpu, monkeypatch, dtype, gap):
    """In vectors if all rows are aligned, else by element; in parts, by several groups, in groups of several rows."""
    monkeypatch.setattr(reduce, "MIN_COLUMN_ROWS", 2)
    names = ("sum",) if dtype in ("bool", "complex64") else ("sum", "max", "min")
    for shape in ((300, 64), (40, 70), (3, 50, 24), (2, 700, 3), (5, 1), (1, 9), (40, 3, 64), (70, 2, 20)):
        host = np.random.default_rng(1).integers(-3, 4, (*shape[:-1], 80)).astype("float32")
        host = host * (1 + 2j) if dtype == "complex64" else host
        host = host if dtype == "bfloat16" else host.astype(dtype)
        view = pa.astype(pa.asarray(host), dtype)[..., gap : gap + shape[-1]]
        for name in names:
            expected = getattr(np, name)(host[..., gap : gap + shape[-1]], axis=-2)
            found = getattr(ops, name)(view, axis=-2)
            assert found.dtype == (pa.bfloat16 if dtype == "bfloat16" else expected.dtype)
            np.testing.assert_array_equal(found.astype(expected.dtype).numpy(), expected, err_msg=f"{name} {shape}")


def test_running_sums_in_parts(gpu):
    for shape, axis in (((20001,), 0), ((3, 1100), 1), ((500, 3), 0), ((70, 17), 1), ((3, 8200), 1)):
        host = np.random.default_rng(0).integers(-9, 9, shape, dtype=np.int32)
        np.testing.assert_array_equal(pa.cumulative_sum(pa.asarray(host), axis=axis).numpy(), host.cumsum(axis))


def test_windows_that_lie_in_no_vector(gpu):
    host = normal(4, 12)
    x = pa.asarray(host)
    for part in (np.s_[:, 1:9], np.s_[1:, 4:], np.s_[:, :5], np.s_[::2, ::3]):
        np.testing.assert_array_equal((x[part] + x[part][:1]).numpy(), host[part] + host[part][:1])


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize(("slices", "updates", "columns"), [(5, 1, 1), (50, 33, 3), (300, 3000, 7), (3, 640, 130)])
def test_updates_of_few_and_of_many_to_a_slice(gpu, dtype, slices, updates, columns):
    """The updates of a slice may start and end in any part of the sorted ones."""
    rng = np.random.default_rng(0)
    x, u = (rng.integers(-2, 3, (2, n, columns)).astype(np.float32) for n in (slices, updates))
    for at in (rng.zipf(1.3, updates) % slices, rng.integers(0, slices, updates), np.full(updates, slices - 1)):
        expected = x.astype(np.float64)
        for row, more in zip(expected, u, strict=True):
            np.add.at(row, at, more)
        found = ops.scatter_add(pa.asarray(x, dtype=dtype), pa.asarray(at), pa.asarray(u, dtype=dtype), axis=1)
        np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol=2**-8 if dtype == "bfloat16" else 0)


@pytest.mark.parametrize("kind", ["a cpu's", "one group's", "one small group's", "some groups'", "many groups'"])
@pytest.mark.parametrize("mask", ["none", "bool", "added"])
def test_decode_attention_with_one_query(request, monkeypatch, as_gpu, kind, mask):
    """Some work-groups, or blocks, see no keys; one query sees none at all. A small work-group loops."""
    chosen = request.getfixturevalue("backend" if kind == "a cpu's" else "gpu")
    if kind in ("some groups'", "many groups'"):
        monkeypatch.setattr(attention_decode, "MAX_WHOLE_KEYS", 0)
    if kind == "many groups'":
        for name, number in (("MAX_KEYS", 2), ("MIN_KEYS", 2), ("ITEMS", 32)):
            monkeypatch.setattr(attention_decode, name, number)
    if kind == "one small group's":
        monkeypatch.setattr(attention_decode, "MAX_ITEMS", 128)
    as_gpu.upload.__self__.plans.pop(attention_decode._gpu_cut, None)
    q, k, v = normal(3, 2, 1, 17), normal(3, 1, 150, 17, seed=1), normal(3, 1, 150, 20, seed=2)
    hidden = np.arange(150) < 70
    hidden = np.stack([hidden, ~hidden, hidden | True])[:, None, None]  # (3, 1, 1, 150)
    seen = {"none": None, "bool": ~hidden, "added": np.where(hidden, -np.inf, normal(3, 1, 1, 150, seed=5))}[mask]
    given = None if seen is None else pa.asarray(seen if mask == "bool" else seen.astype(np.float32))
    arrays = [x if x is None else x.buf for x in (*map(pa.asarray, (q, k, v)), given)]
    forward = chosen.kernels[ops.attention].forward
    out, saved = forward(Spec((3, 2, 1, 20), pa.float32), *arrays, 0, 0, causal=True, scale=20.0, dropout_rate=0.0)
    scores = 20 * (q @ k.swapaxes(-1, -2)).astype(np.float64)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf) if mask == "bool" else scores + seen
    with np.errstate(divide="ignore"):
        sums = np.exp(scores).sum(-1, keepdims=True)
        weights = np.divide(np.exp(scores), sums, out=np.zeros_like(scores), where=sums > 0)
        lse = np.where(sums > 0, np.log(sums), np.inf)
    np.testing.assert_allclose(chosen.download(out), weights @ v, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(chosen.download(saved.lse), lse.reshape(6, 1), rtol=1e-5)


# ---- groups of ops that go through rows ------------------------------------------------------------------------------


def the_group(compiled):
    """Return the only step of a function's only program, and whether there is a kernel for each layout that it met."""
    (program,) = compiled.programs()
    (step,) = program.steps
    return step, [plan is not None for plan in step.call._plans.values()]


@pytest.mark.parametrize("shape", [(9, 24), (70, 7), (4, 1003)], ids=["held", "at odd places", "read again"])
@pytest.mark.parametrize("op", [ops.softmax, ops.layer_norm], ids=lambda op: op.name)
def test_bodies_are_one_kernel_with_the_bits_of_eager_calls(gpu, op, shape):
    compiled, weight = pa.compile(op.decomposition), (pa.asarray(normal(shape[-1])),) * ("weight" in op.inputs)
    many = pa.asarray(normal(3 * shape[0], shape[1]))
    layouts = {"dense": many[: shape[0]], "behind another": many[4 : shape[0] + 4], "with gaps": many[::3]}
    for name, x in layouts.items():
        assert bits(compiled(x, *weight)) == bits(op.decomposition(x, *weight)), name
    assert the_group(compiled)[1] == [True, False]


@pytest.mark.parametrize("columns", [300, 1003, 4100])
def test_more_work_items_share_longer_rows(gpu, monkeypatch, columns):
    """The sums equal those of eager calls with the same number of cooperating work-items."""
    geometry = gpu.upload.__self__.geometry
    monkeypatch.setattr(type(geometry), "reduction_group", 16)
    monkeypatch.setattr(type(geometry), "largest_group", 64)
    assert [geometry.team(vectors, most)[0] for vectors, most in ((128, 256), (129, 256), (1025, 256), (1025, 32))] == [
        16, 32, 64, 32
    ]  # fmt: skip
    host = normal(3, columns)
    compiled, x = pa.compile(ops.softmax.decomposition), pa.asarray(host)
    assert bits(compiled(x)) == bits(ops.softmax.decomposition(x))
    weights = np.exp(host - host.max(1, keepdims=True).astype(np.float64))
    np.testing.assert_allclose(compiled(x).numpy(), weights / weights.sum(1, keepdims=True), rtol=2e-6)
    np.testing.assert_array_equal(pa.argmax(x, axis=1).numpy(), host.argmax(1))


def test_a_fusion_over_many_slots(gpu, monkeypatch):
    """More slots than one run has, so that partial sums are added."""
    device = gpu.upload.__self__
    monkeypatch.setattr(device.geometry, "lanes", lambda length: 1)
    compiled, x = pa.compile(ops.log_softmax.decomposition), pa.asarray(normal(5, 1277))
    assert bits(compiled(x)) == bits(ops.log_softmax.decomposition(x))
    assert the_group(compiled)[1] == [True]


def several(x, small, turned, weight, column, k):
    """Return results of three phases, of rows and of elements, in several dtypes, with inputs of every kind."""
    y = x * k + pa.astype(small, pa.float32)
    least, largest = pa.min(y, axis=(1, 2), keepdims=True), pa.max(x, axis=(1, 2), keepdims=True)
    scaled = (y - least) / (largest - least + 1.0)
    total = pa.sum(scaled * weight + turned, axis=(1, 2), keepdims=True)
    wide = pa.astype(scaled * total, pa.float64)
    return y > x, least, pa.astype(scaled, pa.bfloat16), total, wide, turned / total + column, pa.astype(y, pa.float16)


@pytest.mark.parametrize("length", [6, 5, 151], ids=["held", "at odd places", "read again"])
def test_a_group_of_everything(gpu, length):
    shape = (5, 4, length)
    x, turned, column = (pa.asarray(normal(*s, seed=i)) for i, s in enumerate((shape, (4 * length, 5), (5, 1, 1))))
    turned = ops.reshape(ops.permute_dims(turned, axes=(1, 0)), shape=shape)
    small, weight = pa.astype(x * 0.3, pa.float16), ops.broadcast_to(column[2:3], shape=shape)
    compiled = pa.compile(several)
    for k in (0.5, -2.0):
        args = x, small, turned, weight, column, k
        assert bits(compiled(*args)) == bits(several(*args))
    assert the_group(compiled)[1] == [True]


def test_the_kit_agrees(gpu):
    JOINED(gpu, Effort())


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_sums_of_halves_have_the_bits_of_views(gpu, axis):
    """A half computed on its own is dense, and its rows are aligned in another way than those of a view."""

    def halves(x, y):
        both = ops.concat([x * 2.5 + y, y * 3 - x], axis=-1)
        return [pa.sum(both[..., :n], axis=axis), pa.sum(both[..., n:], axis=axis), both[..., n:] * x]

    for n in (6, 7, 33):
        x, y = pa.asarray(normal(3, 700, n)), pa.asarray(normal(3, 700, n, seed=1))
        assert bits(pa.compile(halves)(x, y)) == bits(halves(x, y))


def a_team_of_another_size(patch):
    real = fusion_rows_gpu.team_of
    patch.setattr(fusion_rows_gpu, "team_of", lambda *args: (*real(*args)[:2], 1))


def what_is_held_of_another_slot(patch):
    real = fusion_rows_gpu.Writer._declared
    patch.setattr(fusion_rows_gpu.Writer, "_declared", lambda self, v, held: real(self, v, held.replace("[s]", "[0]")))


FAULTS = (a_repeated_input_that_is_read_as_dense, a_team_of_another_size, what_is_held_of_another_slot)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda p: p.__name__)
def test_the_kit_sees_it(gpu, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(Exception, match="have other bits than the ops"):
        JOINED(gpu, Effort())
