"""Entries of the elementwise ops: in float32, most other dtypes, and with the values that break kernels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.op import Op
from polyarr.core.spec import DTYPES
from polyarr.testing import references as ref
from polyarr.testing.samples.entry import (
    EVERYTHING,
    Cases,
    Entry,
    dtypes,
    for_each,
    lists,
    numbers,
    of_shape,
)
from polyarr.testing.strategies import PAIRS, SHAPES, SPECIAL_SPACING, VALUES, Data, Sample, datas, memoized, samples

SAMPLES: dict[Op, Entry] = {}


# ---- elementwise -----------------------------------------------------------------------------------------------


def _unary(*domain: str) -> Cases:
    return of_shape(lambda dtype: (*EVERYTHING, *domain))


def _smooth(values: str) -> Cases:
    return of_shape(lambda dtype: (values,), [s for s in SHAPES if np.prod(s) < 500])


def pairs(dtype: str, x: Sequence[str], y: Sequence[str], number: Any = None) -> SearchStrategy[Sample]:
    """Return the strategy for two arrays that broadcast, or an array and a Python number on either side."""

    def drawn(shapes: tuple) -> SearchStrategy:
        left, right = (datas(s, dtype, v) for s, v in zip(shapes, (x, y), strict=True))
        both = samples(left, right)
        if number is None:
            return both
        with_number = st.sampled_from(number(dtype))
        return st.one_of(both, samples(left, with_number), samples(with_number, right))

    return st.sampled_from(PAIRS).flatmap(memoized(drawn))


def _positive_numbers(dtype: str) -> tuple:
    return (2, 1, 3) if "int" in dtype else (2, 0.5, 1.5)


def _elementwise(
    op: Op, kind: str, tolerance: str, smooth: str | None, reference: Any = None, zeros: bool = True
) -> None:
    SAMPLES[op] = Entry(
        _unary(smooth or "normal"),
        _smooth(smooth) if smooth else None,
        reference or getattr(np, op.name),
        tolerance,
        dtypes(kind),
        zeros,
    )


_op: Op
_reference: Callable | None
for _op, _values in {
    ops.negative: "normal", ops.positive: "normal", ops.abs: "away", ops.sign: "away", ops.square: "normal",
    ops.floor: "away", ops.ceil: "away", ops.trunc: "away", ops.round: "away", ops.real: "normal", ops.conj: "normal",
    ops.imag: "normal",
}.items():  # fmt: skip
    _kind = "real" if _op in (ops.floor, ops.ceil, ops.trunc) else "numeric"
    _elementwise(_op, _kind, "exact" if _op is not ops.square else "arithmetic", _values, zeros=_op is not ops.sign)
for _op, _reference in ((ops.real_part, np.real), (ops.imaginary_part, np.imag)):
    _elementwise(_op, "complex", "exact", "normal", _reference)

for _op, _values, _reference in (
    (ops.reciprocal, "positive", None), (ops.exp, "normal", None), (ops.expm1, "normal", None),
    (ops.log, "positive", None), (ops.log1p, "positive", None), (ops.log2, "positive", None),
    (ops.log10, "positive", None), (ops.sqrt, "positive", None), (ops.rsqrt, "positive", lambda x: 1 / np.sqrt(x)),
    (ops.sin, "normal", None), (ops.cos, "normal", None), (ops.tan, "unit", None), (ops.asin, "unit", None),
    (ops.acos, "unit", None), (ops.atan, "normal", None), (ops.sinh, "normal", None), (ops.cosh, "normal", None),
    (ops.tanh, "normal", None), (ops.asinh, "normal", None), (ops.acosh, "above one", None),
    (ops.atanh, "unit", None), (ops.erf, "normal", ref.erf), (ops.sigmoid, "normal", ref.sigmoid),
    (ops.relu, "away", lambda x: np.maximum(x, 0)), (ops.silu, "normal", ref.silu),
):  # fmt: skip
    _kind = "arithmetic" if _op in (ops.reciprocal, ops.sqrt) else "exact" if _op is ops.relu else "function"
    _kind = "power" if _op is ops.erf else _kind
    _dtypes = "floating" if _op in (ops.erf, ops.sigmoid, ops.relu, ops.silu) else "inexact"
    _elementwise(_op, _dtypes, _kind, _values, _reference, zeros=_op not in (ops.relu, ops.cos, ops.log, ops.silu))

for _op in (ops.isnan, ops.isinf, ops.isfinite):
    _elementwise(_op, "numeric", "exact", None)
_elementwise(ops.signbit, "floating", "exact", None)
_elementwise(ops.bitwise_invert, "integer or bool", "exact", None)
_elementwise(ops.logical_not, "any", "exact", None)


def _binary(
    op: Op,
    kind: str,
    tolerance: str,
    smooth: tuple[str, str] | None,
    reference: Any = None,
    zeros: bool = False,
) -> None:
    SAMPLES[op] = Entry(
        lambda dtype: pairs(dtype, EVERYTHING, EVERYTHING, numbers),
        smooth and (lambda dtype: pairs(dtype, smooth[:1], smooth[1:], _positive_numbers)),
        reference or getattr(np, op.name),
        tolerance,
        dtypes(kind),
        zeros,
    )


_binary(ops.add, "any", "arithmetic", ("normal", "normal"))
_binary(ops.subtract, "numeric", "arithmetic", ("normal", "normal"))
_binary(ops.multiply, "any", "arithmetic", ("normal", "normal"), zeros=True)
_binary(ops.complex, "floating", "exact", ("normal", "normal"), ref.complex_of_parts, zeros=True)
_binary(ops.divide, "inexact", "arithmetic", ("normal", "positive"), zeros=True)
_binary(ops.maximum, "real or bool", "exact", ("normal", "positive"))
_binary(ops.minimum, "real or bool", "exact", ("normal", "positive"))
_binary(ops.atan2, "floating", "function", ("normal", "positive"), zeros=True)
_binary(ops.hypot, "floating", "function", ("normal", "positive"))
_binary(ops.logaddexp, "floating", "cancelling", ("normal", "positive"))
_binary(ops.copysign, "floating", "exact", ("away", "away"), zeros=True)
for _op in (ops.equal, ops.not_equal):
    _binary(_op, "any", "exact", None)
for _op in (ops.less, ops.less_equal, ops.greater, ops.greater_equal):
    _binary(_op, "real or bool", "exact", None)
for _op in (ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor):
    _binary(_op, "integer or bool", "exact", None)
for _op in (ops.logical_and, ops.logical_or, ops.logical_xor):
    _binary(_op, "any", "exact", None, ref.of_truths(getattr(np, _op.name)))


def _divisions(dtype: str) -> SearchStrategy[Sample]:
    # A quotient near a whole number may round either way; those of small whole numbers are exact.
    values = ("special", "normal", "ties") if "int" in dtype else ("ties",)
    return pairs(dtype, values, values, numbers)


for _op, _tolerance in ((ops.floor_divide, "cancelling"), (ops.remainder, "arithmetic")):
    _binary(_op, "real", _tolerance, ("normal", "positive"))
    # Libraries differ for infinite quotients and for remainders of huge numbers.
    SAMPLES[_op] = SAMPLES[_op]._replace(cases=_divisions, special="")


def _powers(dtype: str) -> SearchStrategy[Sample]:
    if "int" in dtype:  # the standard leaves negative whole exponents undefined
        return pairs(dtype, ("normal", "special", "ties"), ("below",), _positive_numbers).map(_with_small_exponent)
    bases, exponents = ("ties", "special", "positive", "normal"), ("normal", "special", "ties")
    return pairs(dtype, bases, exponents, numbers)


def _with_small_exponent(sample: Sample) -> Sample:
    x, y = sample.inputs
    return Sample((x, Data(y.shape, y.dtype, "below", y.layout, y.seed, limit=7) if isinstance(y, Data) else y))


_binary(ops.pow, "numeric", "power", ("positive", "normal"), ref.power)
SAMPLES[ops.pow] = SAMPLES[ops.pow]._replace(cases=_powers)


def _neighbours(x: Any, y: Any) -> np.ndarray:
    dtype = next(a.dtype for a in (x, y) if isinstance(a, np.ndarray))
    return np.nextafter(np.asarray(x, dtype), np.asarray(y, dtype))


SAMPLES[ops.nextafter] = Entry(
    lambda dtype: pairs(dtype, EVERYTHING, EVERYTHING, numbers),
    None,
    _neighbours,
    "exact",
    dtypes("floating"),
    wide=False,
)


def _shifts(dtype: str, shapes: tuple) -> SearchStrategy[Sample]:
    bits = np.iinfo(dtype).bits - (dtype[0] == "i")
    count = st.one_of(datas(shapes[1], dtype, ("below",), limit=bits), st.sampled_from((0, 1, 3)))
    return samples(datas(shapes[0], dtype, ("special", "normal")), count)


for _op in (ops.bitwise_left_shift, ops.bitwise_right_shift):
    SAMPLES[_op] = Entry(for_each(PAIRS, _shifts), None, getattr(np, _op.name), dtypes=dtypes("integer"))


def _choices(values: Sequence[str]) -> Cases:
    def drawn(dtype: str, shapes: tuple) -> SearchStrategy:
        other = st.one_of(datas(shapes[0], dtype, values), st.sampled_from(numbers(dtype)))
        return samples(datas(shapes[0], "bool", ("mask",)), datas(shapes[1], dtype, values), other)

    return for_each(PAIRS, drawn)


def _limits(values: Sequence[str], holds: Callable[[Sample], bool] = lambda sample: True) -> Cases:
    def drawn(dtype: str, shapes: tuple) -> SearchStrategy:
        limit = st.one_of(st.sampled_from((None, *numbers(dtype))), datas(shapes[1], dtype, values[:1]))
        return samples(datas(shapes[0], dtype, values), limit, limit)

    cases = for_each(PAIRS, drawn)
    return lambda dtype: cases(dtype).filter(holds)


def _without_ties(sample: Sample) -> bool:
    """Return whether x equals no limit, where clip has no derivative: equal seeds draw equal numbers."""
    x, *limits = sample.inputs
    return all(limit.seed != x.seed for limit in limits if isinstance(limit, Data))


# Libraries agree about these divisions if x is 0 or y is infinite, except for the floor of -1 / inf: -0 or -1.
_BESIDE: dict[Op, tuple[str, ...]] = {ops.floor_divide: ("zero", "endless"), ops.remainder: ("zero", "infinite")}


def alone(op: Op, template: Sample) -> Iterator[Sample]:
    """Yield the call with one special number among normal ones, in case a kernel has a shortcut for the latter."""
    kinds = _BESIDE.get(op, ("special",) * len(template.inputs))
    usual = [
        replace(d, shape=ALONE, layout="plain", values=_usual(op, d)) if isinstance(d, Data) else d
        for d in template.inputs
    ]
    for i, (d, kind) in enumerate(zip(usual, kinds, strict=True)):
        if isinstance(d, Data) and d.values in VALUES:
            inputs = (*usual[:i], replace(d, values=f"{d.values} beside {kind}"), *usual[i + 1 :])
            yield replace(template, inputs=inputs)


ALONE = (30 * SPECIAL_SPACING,)


def _usual(op: Op, data: Data) -> str:
    """Return the rule of ordinary values: for divisions, one whose quotients are exact."""
    if op in _BESIDE:
        return "counts" if op is ops.floor_divide else "eighths"
    return "normal" if data.values in ("mixed", "special") else data.values


TARGETS = ("bfloat16", *(d.name for d in DTYPES))  # always tries bfloat16: kernels implement its rounding


def _conversions(values: Callable[[str, str], Sequence[str]]) -> Cases:
    def cases(dtype: str) -> SearchStrategy[Sample]:
        targets = [target for target in TARGETS if _convertible(dtype, target)]
        return st.tuples(st.sampled_from(SHAPES), st.sampled_from(targets)).flatmap(
            memoized(
                lambda pair: samples(datas(pair[0], dtype, values(dtype, pair[1])), params=st.just({"dtype": pair[1]}))
            )
        )

    return cases


def _convertible(source: str, target: str) -> Sequence[str]:
    if "complex" in source and not ("complex" in target or target == "bool"):
        return ()  # refused
    # The conversion of a float outside an integer's range is undefined.
    floating = "float" in source and "int" in target
    return (
        ("positive", "away")
        if floating and target[0] == "i"
        else ("positive",)
        if floating
        else ("normal", "special", "ties")
    )


def _converted(x: np.ndarray, *, dtype: str) -> np.ndarray:
    return x if "float" in dtype and x.dtype.kind == "f" else x.astype(np.float64 if "float" in dtype else dtype)


SAMPLES[ops.where] = Entry(_choices(EVERYTHING), _choices(("normal",)), np.where, "exact", dtypes("any"), True)
SAMPLES[ops.clip] = Entry(
    _limits(("normal", "ties", "wide")), _limits(("away",), _without_ties), ref.clip, "exact", dtypes("real")
)
SAMPLES[ops.astype] = Entry(
    _conversions(_convertible), _conversions(lambda source, target: ("away",)), _converted, "arithmetic", dtypes("any"),
    special="",  # numbers outside an integer's range are undefined; the cases have the others
)  # fmt: skip
_lists = [((3,), (2, 33)), ((), (0,)), ((1000,), (3, 3)), ((7,), (2,), (7,))]
_floats = st.fixed_dictionaries({"dtype": st.sampled_from(dtypes("floating"))})
SAMPLES[ops.astype_all] = Entry(
    lists(_lists, _floats, ("normal", "ties")),
    lists(_lists, _floats, ("away",)),
    lambda arrays, *, dtype: tuple(_converted(x, dtype=dtype) for x in arrays),
    "arithmetic",
    dtypes("floating"),
    special="nonfinite",
)
