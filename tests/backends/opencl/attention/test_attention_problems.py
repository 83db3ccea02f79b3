"""Random attention problems against float64: the decomposition on any backend, Hopper's kernels on such a device."""


import numpy as np
import pytest

import polyarr as pa
from tests.backends.opencl.attention.attention_problems import Choices, Problem, draw, expected, worst
from tests.helpers.opencl_modules import opencl_modules

ANY = Choices(sizes=(8, 33), longest=100)
NARROW = Choices(dtypes=("bfloat16", "float16"), sizes=(8, 64, 104))
IN_PARTS = Choices(dtypes=("float32",), sizes=(40, 64))
FEW = Choices(sizes=(33, 64), longest=700, rates=(0.0,), queries=(1, 2, 3, 5, 8))


def test_the_decomposition_is_as_near_as_the_bounds() -> None:
    with pa.use_backend("numpy"):
        for seed in range(40):
            problem = draw(seed, ANY)
            assert worst(problem) <= 1, problem.name


@pytest.mark.polyarr_backend("opencl")
def test_few_queries_are_as_near_as_the_bounds(backend) -> None:
    for seed in range(12):
        problem = draw(seed, FEW)
        assert worst(problem) <= 1, problem.name


@pytest.mark.parametrize("slip", ["q has lost a part", "a key is not seen", "a mask is one row off"])
def test_the_bounds_are_too_narrow_for_a_slip(slip) -> None:
    q, k, v, dout = np.random.default_rng(0).standard_normal((4, 2, 20, 16), np.float32)
    mask = np.random.default_rng(1).random((2, 20, 20)) > 0.3
    params = {"causal": True, "dropout_rate": 0.0, "precision": None, "scale": None}
    right = Problem("", (q, k, v, mask, dout), None, params)
    changed = {
        "q has lost a part": (q.astype(np.float16).astype(np.float32), k, v, mask, dout),
        "a key is not seen": (q, k, v, mask & (np.arange(20) != 3), dout),
        "a mask is one row off": (q, k, v, np.roll(mask, 1, axis=1), dout),
    }[slip]
    results, most = expected(right)
    for ours, theirs, limit in zip(expected(right._replace(arrays=changed))[0], results, most, strict=True):
        assert (np.abs(ours - theirs) > limit).any()


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.parametrize(("choices", "first"), [
    *[(NARROW, first) for first in range(0, 80, 20)],
    *[(IN_PARTS._replace(precision=word), first) for word in ("high", "highest") for first in (0, 20)],
])  # fmt: skip
def test_hoppers_kernels_are_as_near_as_the_bounds(backend, monkeypatch, choices, first) -> None:
    pytest.importorskip("pyopencl")
    devices, wgmma = opencl_modules("devices", "attention_wgmma")
    if not wgmma.VARIANT.may_suit(devices.select().features):
        pytest.skip("they are for other devices")
    monkeypatch.setattr(wgmma, "MIN_SPLIT_SIZE", 0)
    for seed in range(first, first + 20):
        problem = draw(seed, choices)
        assert worst(problem) <= 1, problem.name
