"""What an entry is, and the strategies that several families of ops share."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr.core.spec import KINDS
from polyarr.testing.strategies import SHAPES, Sample, datas, one_axis, remembered, samples

Cases = Callable[[str], SearchStrategy[Sample]]


class Entry(NamedTuple):
    """How one op is checked.

    cases         dtype name -> calls of every sort
    smooth        dtype name -> calls where the op has a derivative; None if it has none anywhere
    reference     (*hosts, **params) -> the result or results; None: the body, in float64 on NumPy
    kind          the row of tolerance.TABLE
    dtypes        what the first input may be
    signed_zeros  whether the sign of a zero is promised
    wide          whether the reference gets floats as float64; else it gets the dtype itself
    special       the values that try nan, infinities, denormals and extremes; empty: the op promises nothing there
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
        return "float32" if "float32" in self.dtypes else self.dtypes[-1]


def dtypes(kind: str) -> tuple[str, ...]:
    """The names of the dtypes of a kind (a key of KINDS)."""
    return tuple(d.name for d in KINDS[kind])


def is_narrow(dtype: str) -> bool:
    """True for floats of 16 bits, which cannot tell 100 from 100.01."""
    return dtype in ("float16", "bfloat16")


def ordinary(dtype: str) -> tuple[str, ...]:
    """Values for ops that add up."""
    return ("normal", "ties") if is_narrow(dtype) else ("offset", "normal", "ties")


def of_shape(values: Callable[[str], Sequence[str]], shapes: Sequence[tuple] = SHAPES, limit: int = 0) -> Cases:
    """One array of any of the shapes."""
    return lambda dtype: st.sampled_from(shapes).flatmap(
        remembered(lambda s: samples(datas(s, dtype, values(dtype), limit=limit)))
    )


def narrow_first(sample: Callable[[str], Sample], cases: Cases) -> Cases:
    """Cases that, for narrow floats, begin with one call: a sum that is lost unless it is kept in a wider dtype."""
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
    """One array, and parameters that depend on its shape."""
    return lambda dtype: st.sampled_from(shapes).flatmap(
        remembered(lambda s: samples(datas(s, dtype, values), params=params(s)))
    )


def fixed(**params: SearchStrategy) -> Callable[[tuple], SearchStrategy]:
    return lambda shape: st.fixed_dictionaries(params)


def axis_params(*, none: bool = False, **more: SearchStrategy) -> Callable[[tuple], SearchStrategy]:
    def params(shape: tuple) -> SearchStrategy:
        one = one_axis(shape)
        return st.fixed_dictionaries({"axis": st.one_of(one, st.none()) if none else one, **more})

    return params


def lists(shapes: Sequence[Sequence[tuple]], params: SearchStrategy, values: Sequence[str] = ANY) -> Cases:
    """A list of arrays."""
    return lambda dtype: st.sampled_from(shapes).flatmap(
        remembered(lambda group: samples(st.tuples(*(datas(s, dtype, values) for s in group)), params=params))
    )


def numbers(dtype: str) -> tuple:
    if dtype == "bool":
        return (True, False)
    return (2, 0, 1) if "int" in dtype else (2, 0.5, 0, -3.0, 1.5)
