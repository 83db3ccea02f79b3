"""The kit's fast examples detect a backend that uses one value of a parameter for all values.

Each op's "forward" case runs as users of the kit run it, and the calls of its kernel are recorded. Then every parameter
is fixed at each of its values in turn: some example must have another result.
"""

import inspect
from typing import Any

import numpy as np
import pytest

from polyarr import ops
from polyarr.core.array import flatten, from_numpy
from polyarr.core.backend import Backend, Fused
from polyarr.core.op import Op
from polyarr.testing import checks
from polyarr.testing.cases import cases
from tests.testing.negative_controls.table import with_kernels
from tests.testing.test_negative_controls import verdict

pytestmark = pytest.mark.imports_only

ALL = [getattr(ops, case.subject) for case in cases() if case.check == "forward"]
OPS = [op for op in ALL if inspect.signature(op).parameters.keys() - set(op.inputs)]
ANY = "any value gives the same result"
ALWAYS = "the op itself knows one value only"
ELSEWHERE = "examples of other dtypes have other values"
EXCEPTIONS = {
    ("argsort", "stable"): ALWAYS, ("sort", "stable"): ALWAYS, ("vecdot", "axis"): ALWAYS, ("squeeze", "axis"): ANY,
    ("linear_cross_entropy", "rows_at_once"): ANY,
    ("interpolate", "scale"): "a kernel is given the shape as well, a caller gives one of them",
    ("sum", "dtype"): ELSEWHERE, ("prod", "dtype"): ELSEWHERE, ("cumulative_sum", "dtype"): ELSEWHERE,
}  # fmt: skip


def asked(op: Op, good: Backend) -> list[tuple[tuple, dict[str, Any]]]:
    """Return the buffers and parameters of the op's examples."""
    found, own = [], good.kernels.get(op)

    def kernel(out: Any, *buffers: Any, **params: Any) -> Any:
        found.append((buffers, params))
        if own is None:
            return NotImplemented
        return (own.forward if isinstance(own, Fused) else own)(out, *buffers, **params)

    pair = Fused(kernel, own.backward if isinstance(own, Fused) else None)
    is_plain = own is not None and not isinstance(own, Fused)
    assert verdict(f"forward-{op.name}", with_kernels(good, {op: kernel if is_plain else pair})) == (None, None)
    return found


def results(op: Op, good: Backend, buffers: tuple, params: dict[str, Any]) -> list[np.ndarray] | None:
    """Return the op's results; None if it refuses the call."""

    def wrapped(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(wrapped, x))
        return from_numpy(x, good) if isinstance(x, np.ndarray) else x

    try:
        found = op(*map(wrapped, buffers), **params)
    except Exception:
        return None
    return [x.numpy() for x in flatten((found,))]


def differ(found: list[np.ndarray] | None, expected: list[np.ndarray]) -> bool:
    if found is None or [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in expected]:
        return True
    with np.errstate(over="ignore"):
        pairs = zip(found, expected, strict=True)
        return not all(np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in pairs)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_value_of_a_parameter_is_distinguished(op):
    good = with_kernels(checks.reference(), {})
    known = [(call, results(op, good, *call)) for call in asked(op, good)]
    calls, expected = zip(*[each for each in known if each[1] is not None], strict=True)
    for name in sorted({name for _, params in calls for name in params}):
        values = {repr(params[name]): params[name] for _, params in calls if name in params}
        if (op.name, name) in EXCEPTIONS:
            continue
        assert len(values) > 1, f"{op.name}: all examples have {name} {next(iter(values))}"
        for told, value in values.items():
            others = [i for i, (_, params) in enumerate(calls) if repr(params.get(name)) != told]
            found = (differ(results(op, good, calls[i][0], calls[i][1] | {name: value}), expected[i]) for i in others)
            assert any(found), f"{op.name}: no example shows that {name} is taken for {told}"
