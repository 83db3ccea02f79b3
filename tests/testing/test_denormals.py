"""Backends that flush denormal numbers pass the kit if they declare it, and only then."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.backends import numpy as built_in
from polyarr.core.backend import Backend
from polyarr.core.spec import FLOATS, float16, float32, float64
from polyarr.testing import CheckFailure, Data, Sample, checks
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import close

pytestmark = pytest.mark.imports_only

COMPUTE = (
    ops.add, ops.subtract, ops.multiply, ops.divide, ops.floor_divide, ops.remainder, ops.maximum, ops.negative,
    ops.abs, ops.sign, ops.floor, ops.log, ops.sqrt, ops.square, ops.less, ops.nextafter, ops.sum, ops.hypot,
)  # fmt: skip
FLUSHED = frozenset({float32, float64})
KINDS = ("forward", "special", "numbers", "backward", "float64", "float16", "sweep")
NAMES = {f"{kind}-{op.name}" for op in COMPUTE for kind in KINDS}
CASES = [case for case in cases() if case.name in NAMES]


def flushing(**fields) -> Backend:
    """Return NumPy kernels that flush denormal inputs and results."""

    def flush(a):
        if not isinstance(a, np.ndarray) or a.dtype not in FLUSHED:
            return a
        return np.where(np.abs(a) < np.finfo(a.dtype).smallest_normal, np.copysign(a.dtype.type(0), a), a)

    def kernel(run):
        return lambda out, *bufs, **params: flush(run(out, *map(flush, bufs), **params))

    sound = built_in.start()
    kernels = {**sound.kernels, **{op: kernel(sound.kernels[op]) for op in COMPUTE}}
    return sound._replace(name="flushing", kernels=kernels, **fields)


def failing(backend):
    found = set()
    with pa.use_backend(backend):
        for case in CASES:
            try:
                case.run(backend, Effort())
            except CheckFailure:
                found.add(case.name)
    return found


def test_a_backend_that_flushes_and_does_not_say_so_fails():
    """In every op that meets such numbers, except in float16, whose denormals are normal numbers in float32."""
    found = failing(flushing())
    assert {f"special-{op.name}" for op in (ops.multiply, ops.negative, ops.sign, ops.log)} <= found
    assert {f"sweep-{op.name}" for op in (ops.add, ops.sign, ops.less)} <= found
    assert "float64-multiply" in found or "float64-negative" in found
    assert not {name for name in found if name.startswith(("float16", "backward"))}


def test_a_backend_that_says_so_passes():
    assert failing(flushing(flushes=FLUSHED)) == set()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_only_what_is_too_small_may_be_0(dtype):
    """Normal numbers, and results other than 0, must be exact."""
    sample = Sample((Data((40,), dtype, "special"),))
    tiny = float(pa.finfo(dtype).smallest_normal)
    for wrong in (0.0, -tiny / 2, 2 * tiny):
        backend = flushing(flushes=FLUSHED)
        sound = backend.kernels[ops.abs]

        def kernel(out, x, wrong=wrong, sound=sound):
            found = sound(out, x)
            return np.where(found == (1e-4 if wrong == 0 else tiny), found.dtype.type(wrong), found)

        with pytest.raises(CheckFailure, match="abs on flushing: the result"):
            checks.check_forward(ops.abs, backend._replace(kernels={**backend.kernels, ops.abs: kernel}), sample)


def test_only_in_the_dtypes_that_are_named():
    sample = Sample((Data((40,), "float64", "special"),))
    with pytest.raises(CheckFailure):
        checks.check_forward(ops.negative, flushing(flushes=frozenset({float32})), sample)
    checks.check_forward(ops.negative, flushing(flushes=frozenset({float64})), sample)


@pytest.mark.parametrize("dtype", sorted(FLOATS, key=str))
def test_a_flushed_sample_is_the_same_but_for_what_is_too_small(dtype):
    sample = Sample((Data((60,), dtype.name, "special"), 2.0, Data((3,), "int32")))
    before, after = sample.hosts()[0], sample.flushed(frozenset({dtype})).hosts()[0]
    small = np.abs(before) < float(pa.finfo(dtype).smallest_normal)
    assert (small & (before != 0)).any() and (after[small] == 0).all()
    np.testing.assert_array_equal(after[~small], before[~small])
    np.testing.assert_array_equal(np.signbit(after), np.signbit(before))
    other = float16 if dtype != float16 else float32
    assert sample.flushed(frozenset({other})) == sample and "flushed" not in repr(sample)
    assert "flushed=True" in repr(sample.flushed(frozenset({dtype})))


def test_signaling_nans_of_a_backend_that_flushes_are_compared_without_a_warning():
    """A warning would be taken for one of the backend's."""
    got = np.array([0x7F81, 0x0000], np.uint16).view(pa.bfloat16)
    with np.errstate(invalid="raise"):
        close("real on flushing", "the result", got, np.array([np.nan, 0.0]), "exact", 1.0, flushes=True)
