"""Convolutions, pooling and resizing against PyTorch: values and gradients of every sample of its own tests.

In float64, and in float32 against PyTorch's float64. Runs where torch and expecttest are installed: in `make
test-transformers`.
"""

import math
from collections import Counter

import numpy as np
import pytest

import polyarr as pa
from tests.ops.beside_pytorch import WITHIN, compare, infos, torch

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
VARIANTS = ("nearest", "linear", "bilinear", "trilinear", "bicubic", "area")
NAMES = [n for n in OURS if n != "nn.functional.interpolate"] + [f"nn.functional.interpolate.{v}" for v in VARIANTS]


def first(value):
    """Return the maxima of a pool without their indices."""
    return value[0] if isinstance(value, tuple) else value


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_of_pytorch(backend, name, dtype):
    if dtype not in [d.name for d in backend.dtypes]:
        pytest.skip(f"no {dtype}")
    (info,) = (info for info in infos() if f"{info.name}.{info.variant_test_name}".rstrip(".") == name)
    axes = next((n for end, n in SPATIAL.items() if info.name.endswith(end)), None)
    rng, function = np.random.default_rng(1), OURS[info.name](axes)
    samples = list(info.sample_inputs("cpu", torch.float64, requires_grad=True))
    for sample in samples:
        compare(lambda *a, **p: first(info.op(*a, **p)), function, sample, rng, dtype)
    COUNTS[backend.name] += len(samples)
    print(f"{name} in {dtype} on {backend.name}: {len(samples)} samples agree; {COUNTS[backend.name]} so far")
