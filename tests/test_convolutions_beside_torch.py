"""Convolutions, pools and resizing beside PyTorch's: every sample of its own tests, values and gradients in float64.

Runs where torch and expecttest are installed: in `make test-transformers`, and in `make test`, too. Some minutes on
OpenCL, for each form is compiled. What polyarr does not have (indices of maxima, unpooling, "bicubic",
"nearest-exact") is not compared.
"""

import math
from collections import Counter

import numpy as np
import pytest

import polyarr as pa

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch.testing needs, and torch does not bring
pytestmark = pytest.mark.filterwarnings("ignore")
FIRST = {"layout": "channels_first"}
SPATIAL = {"1d": 1, "2d": 2, "3d": 3}
COUNTS: Counter = Counter()


def each(value, axes):
    return tuple(value) * (axes if len(value) == 1 else 1) if isinstance(value, (tuple, list)) else (value,) * axes


def conv(axes):
    def run(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        where = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return pa.conv(x, weight, bias, **where, **FIRST)

    return run


def conv_transpose(axes):
    def run(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        where = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return pa.conv_transpose(x, weight, bias, output_padding=output_padding, **where, **FIRST)

    return run


def max_pool(axes):
    def run(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        where = {"stride": stride or None, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
        return pa.max_pool(x, each(kernel_size, axes), **where, **FIRST)

    return run


def avg_pool(axes):
    def run(
        x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):  # fmt: skip
        where = {"stride": stride or None, "padding": padding, "ceil_mode": ceil_mode, "divisor": divisor_override}
        return pa.mean_pool(x, each(kernel_size, axes), count_include_pad=count_include_pad, **where, **FIRST)

    return run


def adaptive_avg_pool(axes):
    return lambda x, output_size: pa.adaptive_mean_pool(x, each(output_size, axes), **FIRST)


def interpolate(axes=None):
    def run(x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
        axes = len(x.shape) - 2
        if mode == "area" or recompute_scale_factor:
            size = size or tuple(math.floor(n * s) for n, s in zip(x.shape[2:], each(scale_factor, axes), strict=True))
            scale_factor = None
        if mode == "area":
            return pa.adaptive_mean_pool(x, each(size, axes), **FIRST)
        by = {"scale": each(scale_factor, axes)} if size is None else {"shape": each(size, axes)}
        return pa.interpolate(x, **by, mode=mode, align_corners=bool(align_corners), **FIRST)

    return run


def upsample(mode, **params):
    def run(x, size=None, scale_factor=None):
        return interpolate()(x, size, scale_factor, mode, **params)

    return lambda axes: run


EACH = (conv, conv_transpose, max_pool, avg_pool, adaptive_avg_pool)
OURS = {
    **{f"nn.functional.{fn.__name__}{n}": fn for fn in EACH for n in SPATIAL},
    "nn.functional.interpolate": interpolate,
    "nn.functional.upsample_nearest": upsample("nearest"),
    "nn.functional.upsample_bilinear": upsample("bilinear", align_corners=True),
}
VARIANTS = ("", "nearest", "linear", "bilinear", "trilinear", "area")


def infos():
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if info.name in OURS and info.variant_test_name in VARIANTS]


def tensors(sample):
    """Where in a sample's arguments the tensors are that may have gradients."""
    given = [sample.input, *sample.args, *sample.kwargs.values()]
    return [a for a in given if isinstance(a, torch.Tensor)]


def ours(function, sample, arrays):
    """What polyarr gives for a sample, with these arrays in the place of its tensors."""
    left = iter(arrays)
    taken = [next(left) if isinstance(a, torch.Tensor) else a for a in (sample.input, *sample.args)]
    named = {n: next(left) if isinstance(a, torch.Tensor) else a for n, a in sample.kwargs.items()}
    return function(*taken, **named)


def check(info, function, sample, rng):
    """The value, its gradient and the gradient of that are PyTorch's."""
    inputs = [a.detach().clone().requires_grad_() for a in tensors(sample)]
    value = ours(lambda *a, **p: info.op(*a, **p), sample, inputs)
    value = value[0] if isinstance(value, tuple) else value
    g = torch.from_numpy(np.asarray(rng.standard_normal(value.shape)))
    theirs = torch.autograd.grad((value * g).sum(), inputs, create_graph=True)
    turns = [torch.from_numpy(np.asarray(rng.standard_normal(a.shape))) for a in inputs]
    turned = sum((t.cos() * v).sum() for t, v in zip(theirs, turns, strict=True)) + sum(a.sum() for a in inputs) * 0
    second = torch.autograd.grad(turned, inputs)

    arrays = [pa.asarray(a.detach().numpy()) for a in inputs]
    every = tuple(range(len(arrays)))
    g_, turns_ = pa.asarray(g.numpy()), [pa.asarray(t.numpy()) for t in turns]
    loss = lambda *a: pa.sum(ours(function, sample, a) * g_)
    first = pa.grad(loss, argnums=every)
    found = first(*arrays)
    dot = lambda *a: sum(pa.sum(pa.cos(t) * v) for t, v in zip(first(*a), turns_, strict=True))
    pairs = [(ours(function, sample, arrays), value), *zip(found, theirs, strict=True)]
    pairs += zip(pa.grad(dot, argnums=every)(*arrays), second, strict=True)
    for mine, other in pairs:
        np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-10, atol=1e-10, err_msg=str(sample))


@pytest.mark.parametrize("info", infos(), ids=lambda i: f"{i.name.split('.')[-1]}-{i.variant_test_name}")
def test_every_sample_of_pytorch(backend, info):
    if pa.float64 not in backend.dtypes:
        pytest.skip("no float64")
    axes = next((n for name, n in SPATIAL.items() if info.name.endswith(name)), None)
    rng, function = np.random.default_rng(1), OURS[info.name](axes)
    samples = list(info.sample_inputs("cpu", torch.float64, requires_grad=True))
    for sample in samples:
        check(info, function, sample, rng)
    COUNTS[backend.name] += len(samples)
    print(f"{info.formatted_name} on {backend.name}: {len(samples)} samples agree; {COUNTS[backend.name]} so far")
