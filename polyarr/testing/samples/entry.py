"""The Entry of an op, and strategies that several families of ops share."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr.core.spec import KINDS
from polyarr.testing.strategies import SHAPES, Sample, datas, memoized, one_axis, samples

Cases = Callable[[str], SearchStrategy[Sample]]
T = TypeVar("T")


class Entry(NamedTuple):
    """Description of how one op is checked.

    Attributes:
        cases: Dtype name -> strategy for calls of every kind.
        smooth: Dtype name -> strategy for calls where the op has a derivative; None if it has none anywhere.
        reference: (*hosts, **params) -> the expected result or results; None: the op's decomposition on NumPy in
            float64.
        kind: Class of tolerances, a row of tolerance.TABLE.
        dtypes: Dtype names of the first input.
        signed_zeros: Whether the op promises the sign of a zero.
        wide: Whether the reference gets floats as float64 rather than in the dtype itself.
        special: Rule for values with nan, infinities, denormals and extremes; empty: the op promises nothing there.

    Examples:
        >>> from polyarr import ops
        >>> from polyarr.testing import SAMPLES
        >>> SAMPLES[ops.exp].kind
        'function'
        >>> SAMPLES[ops.exp].dtypes
        ('float16', 'bfloat16', 'float32', 'float64', 'complex64', 'complex128')
    """

    cases: Cases
    smooth: Cases | None
    reference: Callable[..., Any] | None
    kind: str = "exact"
    dtypes: tuple[str, ...] = ("float32",)
    signed_zeros: bool = False
    wide: bool = True
    special: str = "mixed"

    @property
    def usual(self) -> str:
        """The dtype that most checks of the op use."""
        return next((d for d in ("float32", "complex64") if d in self.dtypes), self.dtypes[-1])


def dtypes(kind: str) -> tuple[str, ...]:
    """Return the names of the dtypes of a kind (a key of KINDS)."""
    return tuple(d.name for d in KINDS[kind])


def is_narrow(dtype: str) -> bool:
    """Return whether a dtype is a 16-bit float, which cannot distinguish 100 from 100.01."""
    return dtype in ("float16", "bfloat16")


def ordinary(dtype: str) -> tuple[str, ...]:
    """Return the rules of values for ops that sum."""
    return ("normal", "ties") if is_narrow(dtype) else ("offset", "normal", "ties")


def normal(dtype: str) -> tuple[str, ...]:
    return ("normal",)


def for_each(choices: Sequence[T], drawn: Callable[[str, T], SearchStrategy[Sample]]) -> Cases:
    """Return cases that draw one of the choices, and then from drawn(dtype, choice)."""
    return lambda dtype: st.sampled_from(choices).flatmap(memoized(partial(drawn, dtype)))


def of_shape(values: Callable[[str], Sequence[str]], shapes: Sequence[tuple] = SHAPES) -> Cases:
    """Return cases with one array of any of the shapes."""
    return for_each(shapes, lambda dtype, shape: samples(datas(shape, dtype, values(dtype))))


def narrow_first(sample: Callable[[str], Sample], cases: Cases) -> Cases:
    """Return cases that begin, for narrow floats, with a call whose sum is wrong without a wider accumulator."""
    return lambda dtype: st.one_of(st.just(sample(dtype)), cases(dtype)) if is_narrow(dtype) else cases(dtype)


EVERYTHING = ("mixed", "normal", "special", "offset", "ties", "wide")
ANY = ("mixed", "normal", "special")
MATRICES = tuple(s for s in SHAPES if len(s) >= 2)
LONG = tuple(s for s in SHAPES if s)
FILLED = tuple(s for s in LONG if 0 not in s)
SMALL = ((2, 33), (3,), (1,), (33,), (2, 3), (1, 31), (5, 32), (2, 3, 4), (2, 1, 5))


def with_params(
    shapes: Sequence[tuple], params: Callable[[tuple], SearchStrategy], values: Sequence[str] = ANY
) -> Cases:
    """Return cases with one array and parameters that depend on its shape."""
    return for_each(shapes, lambda dtype, shape: samples(datas(shape, dtype, values), params=params(shape)))


def fixed(**params: SearchStrategy) -> Callable[[tuple], SearchStrategy]:
    return lambda shape: st.fixed_dictionaries(params)


def axis_params(*, none: bool = False, **more: SearchStrategy) -> Callable[[tuple], SearchStrategy]:
    def params(shape: tuple) -> SearchStrategy:
        one = one_axis(shape)
        return st.fixed_dictionaries({"axis": st.one_of(one, st.none()) if none else one, **more})

    return params


def lists(shapes: Sequence[Sequence[tuple]], params: SearchStrategy, values: Sequence[str] = ANY) -> Cases:
    """Return cases with a list of arrays."""
    return for_each(
        shapes, lambda dtype, group: samples(st.tuples(*(datas(s, dtype, values) for s in group)), params=params)
    )


def numbers(dtype: str) -> tuple:
    if dtype == "bool":
        return (True, False)
    if "complex" in dtype:
        return (2, 0.5, 1 - 2j, 0, -3.0, 1.5j)
    return (2, 0, 1) if "int" in dtype else (2, 0.5, 0, -3.0, 1.5)
