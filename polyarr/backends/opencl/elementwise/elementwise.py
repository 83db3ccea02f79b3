"""Elementwise ops: one kernel file, specialized on expression, dtypes, layouts and number of axes."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.elementwise.elements import STEPS, Operand, array, bases, declared, kernel_of, statement
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device, allocation_of
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    broadcast_strides,
    collapse,
    lengthened,
    row_major,
    steps_of,
)
from polyarr.backends.opencl.runtime.program import types
from polyarr.backends.opencl.runtime.source import SCALARS, STRUCTURE, passed_as
from polyarr.core.number import evaluate
from polyarr.core.spec import COMPLEX, FLOATS, NARROW, SIGNED, Number, Spec, float16, float64, real_of, uint64
from polyarr.core.spec import bool as bool_

# Expressions in C by op; x and y are elements in the arithmetic type. Functions in capitals, and those that OpenCL
# lacks, are in prelude.cl, functions.cl and expressions.cl. Unary functions have the name of their op.
UNARY_FUNCTIONS = """
    floor ceil trunc round exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh asin acos atan
    asinh acosh atanh erf signbit
"""
EXPRESSIONS = {
    **{name: f"{name.upper()}(x)" for name in UNARY_FUNCTIONS.split()},
    "positive": "x",
    "negative": "-x",
    "abs": "ABSOLUTE(x)",
    "sign": "x != x ? x : (x > 0) - (x < 0)",
    "rsqrt": "1 / SQRT(x)",
    "reciprocal": "1 / x",
    "square": "x * x",
    "sigmoid": "1 / (1 + EXP(-x))",
    "silu": "x / (1 + EXP(-x))",
    "relu": "x < 0 ? 0 : x",
    "isnan": "x != x",
    "isfinite": "x - x == 0",
    "isinf": "x == x && x - x != 0",
    "logical_not": "!x",
    "bitwise_invert": "INVERT(x)",
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
    "floor_divide": "floor_divide(x, y)",
    "remainder": "remainder_of(x, y)",
    "pow": "power_of(x, y)",
    "maximum": "x >= y || x != x ? x : y",
    "minimum": "x <= y || x != x ? x : y",
    "atan2": "ATAN2(x, y)",
    "nextafter": "NEXTAFTER(x, y)",
    "copysign": "COPYSIGN(x, y)",
    "hypot": "HYPOT(x, y)",
    "logaddexp": "logaddexp(x, y)",
    "bitwise_and": "x & y",
    "bitwise_or": "x | y",
    "bitwise_xor": "x ^ y",
    "bitwise_left_shift": "LEFT_SHIFT(x, y)",
    "bitwise_right_shift": "RIGHT_SHIFT(x, y)",
    "equal": "x == y",
    "not_equal": "x != y",
    "less": "x < y",
    "less_equal": "x <= y",
    "greater": "x > y",
    "greater_equal": "x >= y",
    "logical_and": "x && y",
    "logical_or": "x || y",
    "logical_xor": "!x != !y",
}
# The same for complex numbers, for the ops that take them. The functions are in complex.cl.
COMPLEX_FUNCTIONS = """
    sign round exp expm1 log log1p sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh isnan
    isfinite isinf
"""
COMPLEX_EXPRESSIONS = {
    **{name: f"c_{name}(x)" for name in COMPLEX_FUNCTIONS.split()},
    "abs": "C_ABS(x)",
    "log2": "C_LOG2(x)",
    "log10": "C_LOG10(x)",
    "rsqrt": "c_div((Complex)(1, 0), c_sqrt(x))",
    "reciprocal": "c_div((Complex)(1, 0), x)",
    "square": "c_mul(x, x)",
    "multiply": "c_mul(x, y)",
    "divide": "c_div(x, y)",
    "pow": "c_pow(x, y)",
    "equal": "C_EQUAL(x, y)",
    "not_equal": "!C_EQUAL(x, y)",
    "logical_not": "!C_TRUE(x)",
    "logical_and": "C_TRUE(x) & C_TRUE(y)",
    "logical_or": "C_TRUE(x) | C_TRUE(y)",
    "logical_xor": "C_TRUE(x) ^ C_TRUE(y)",
}
CONJUGATE, REAL_PART, IMAGINARY_PART = "c_conj(x)", "x.x", "x.y"
# Fast paths in float32 on CPUs: by expression, the condition on the operands and the faster expression.
_TURNS = "magnitude_of(x) < 131072.0f"
_QUOTIENT = "magnitude_of(x) < 268435456.0f * magnitude_of(y) & magnitude_of(y) < INFINITY"
USUAL = {
    "SIN(x)": (_TURNS, "usual_sin(x)"),
    "COS(x)": (_TURNS, "usual_cos(x)"),
    "TAN(x)": (_TURNS, "usual_tan(x)"),
    "remainder_of(x, y)": (_QUOTIENT, "remainder_after(usual_fmod(x, y), y)"),
    "floor_divide(x, y)": (_QUOTIENT, "quotient_after(usual_fmod(x, y), x, y)"),
}
COPY, WHERE = "x", "c ? x : y"
_OF_COMPLEX = {EXPRESSIONS[name]: expression for name, expression in COMPLEX_EXPRESSIONS.items()}

SMALL_AXES = 5  # of the kernel of small views; more axes take a program each
NUMBER = "NUMBER"
LAYOUT = slice(1, 4)  # of a Buffer: shape, dtype and strides
INT64 = np.dtype("int64")
START_ARGUMENTS = (None, *(INT64,) * 6, None, INT64)  # types of the kernel arguments of a Start
OPERANDS = dict.fromkeys((*STEPS.values(), "STRIDED"), (None, INT64))  # argument types of an array, by its kind


class Start(NamedTuple):
    """The start of a strided view along one axis, read from memory by the kernel.

    number is the 0-d integer array; first to last are its valid values; length is that of the axis. steps are the
    strides of the source and of the target along the axis. A start out of range is clamped, and recorded in fault.
    """

    number: Buffer
    first: int
    last: int
    length: int
    steps: tuple[int, int]
    fault: tuple[Any, int]


class Plan(NamedTuple):
    """Launch parameters of one combination of expression, dtypes and layouts."""

    kernel: Any
    work: tuple[int, ...]
    group: tuple[int, ...]
    layout: bytes
    room: tuple[int, tuple[int, ...]]  # arguments of device.fresh for the result
    argument: Callable[[Number], Any]


# ---- launchers ---------------------------------------------------------------------------------------------------


def launcher(name: str) -> Callable[..., Buffer]:
    """Return the launcher(device, out, x) or launcher(device, out, x, y) of the op called `name`."""
    return partial(launch, expression=EXPRESSIONS[name])


def where(device: Device, out: Spec, condition: Buffer, x: Buffer | Number, y: Buffer | Number) -> Buffer:
    """Select x where the condition holds, y elsewhere."""
    return launch(device, out, x, y, condition, expression=WHERE)


def astype(device: Device, out: Spec, x: Buffer, *, dtype: np.dtype) -> Buffer:
    """Cast x to another dtype: floats are truncated towards zero to integers, integers wrap, bool is x != 0."""
    return launch(device, out, x, expression=conversion(x.dtype, dtype))


def conj(device: Device, out: Spec, x: Buffer) -> Buffer:
    """Return the complex conjugate of x; x itself if it is not complex."""
    return launch(device, out, x, expression=CONJUGATE) if x.dtype in COMPLEX else x


def complex_of_parts(device: Device, out: Spec, x: Buffer | Number, y: Buffer | Number) -> Buffer:
    """Return the complex array x + iy."""
    return launch(device, out, x, y, expression=joined_parts(out.dtype))


def real_part(device: Device, out: Spec, x: Buffer) -> Buffer:
    """Return the real part of a complex array, dense as fused kernels have it: sums of a view add in another order."""
    return launch(device, out, x, expression=REAL_PART)


def imaginary_part(device: Device, out: Spec, x: Buffer) -> Buffer:
    """Return the imaginary part of a complex array, dense as in a fused kernel."""
    return launch(device, out, x, expression=IMAGINARY_PART)


def joined_parts(dtype: np.dtype) -> str:
    """Return the C expression of the complex number x + iy."""
    return f"({types(dtype)['ACC']})(x, y)"


def for_dtype(expression: str, dtype: np.dtype) -> str:
    """Return an op's expression for operands of a dtype."""
    return _OF_COMPLEX.get(expression, expression) if dtype in COMPLEX else expression


def conversion(source: np.dtype, target: np.dtype) -> str:
    """Return the C expression that casts x from one dtype to another."""
    if source != target and {source, target} & {*COMPLEX}:
        return _complex_conversion(source, target)
    if source == target or target == bool_:
        return COPY if source == target else "x != 0"
    if source not in FLOATS or target in FLOATS:
        return "round_to_odd(x)" if source == float64 and target == float16 else COPY
    return "TO_UINT64(x)" if target == uint64 else "TO_INTEGER(x)"


def _complex_conversion(source: np.dtype, target: np.dtype) -> str:
    if target == bool_:
        return "x.x != 0 || x.y != 0"
    pair, part = types(target)["ACC"], types(real_of(target))["ACC"]
    return f"({pair})(({part})x.x, ({part})x.y)" if source in COMPLEX else f"({pair})(({part})x, 0)"


def launch(
    device: Device, out: Spec, x: Buffer | Number, y: Buffer | Number | None = None, condition: Buffer | None = None,
    *, expression: str = COPY, target: Buffer | None = None, start: Start | None = None,
) -> Buffer:  # fmt: skip
    """Compute the expression into a new dense buffer, or into the target, a view of out's shape and dtype.

    With a start, x or the target is a view that begins there; it is passed as if it began at 0.
    """
    # Unrolled by hand: every elementwise op runs through here, and host time counts.
    plan = device.plans[_plan](
        expression, out, target and target.strides, start and start.number.dtype,
        x[LAYOUT] if type(x) is Buffer else NUMBER,
        y[LAYOUT] if type(y) is Buffer else y if y is None else NUMBER,
        condition and condition[LAYOUT],
    )  # fmt: skip
    result, arguments = target or device.fresh(out, *plan.room), list[Any]()
    for operand in (x, y, condition):
        if type(operand) is Buffer:
            arguments += operand.memory, operand.offset
        elif operand is not None:
            arguments.append(evaluate(plan.argument, operand))
    moved = () if start is None else (start.number.memory, start.number.offset, *start[1:4], *start.steps, *start.fault)
    plan.kernel(plan.work, plan.group, *arguments, result.memory, result.offset, plan.layout, *moved)
    return result


# ---- plans -------------------------------------------------------------------------------------------------------


def _plan(
    device: Device, expression: str, out: Spec, strides: tuple[int, ...] | None, start: np.dtype | None, *operands: Any
) -> Plan:
    """Plan a launch. Operands are (shape, dtype, strides), NUMBER or None; strides are those of a target."""
    dtype = next((o[1] for o in operands[:2] if type(o) is tuple), out.dtype)
    lengths, steps = collapse(
        out.shape,
        [_strides_along(o, len(out.shape)) for o in operands] + [steps_of(out.shape, strides or row_major(out.shape))],
    )
    is_row = steps[-1] == (1,)
    vector = vector_of(device.geometry.vector(max(dtype.itemsize, out.dtype.itemsize)), lengths, steps)
    kinds = [NUMBER if o == NUMBER else kind_of(s) for o, s in zip(operands, steps, strict=False) if o is not None]
    is_common = len(lengths) <= device.geometry.least_axes and {*kinds, kind_of(steps[-1])} <= {"DENSE", NUMBER}
    general = "STRIDED" if out.size < device.geometry.small_view and not is_common else ""
    lengths, steps = lengthened(lengths, steps, SMALL_AXES if general else device.geometry.least_axes)
    work, group, block = device.geometry.elements(out.size, vector)
    given = [(name, o, s) for name, o, s in zip("xyc", operands, steps, strict=False) if o is not None]
    inputs = [_input(at, o[1], general or kinds[at], start) for at, (_, o, _) in enumerate(given) if o != NUMBER]
    result = _result(out.dtype, general or kind_of(steps[-1]), len(given), strides is not None, start)
    stored, computing, expression = types(dtype), real_of(dtype), for_dtype(expression, dtype)
    named = {
        name: ("int" if name == "c" else stored["ACC"], f"{'n' if kind == NUMBER else 'v'}{at}")
        for at, ((name, *_), kind) in enumerate(zip(given, kinds, strict=True))
    }
    kernel = kernel_of(
        device, inputs, [result], lengths, len(given) + 1, out.size, group, vector,
        PARAMETERS=" ".join([*(_parameter(dtype, at, o) for at, (_, o, _) in enumerate(given)), _written(out.dtype)]),
        BASES=bases(range(len(given) + 1)),
        LINKS=statement("r", expression, named, out.dtype),
        **_usual_links(usual(device, expression, stored["ACC"]), named, out.dtype),
        **({} if start is None else {"START": types(start)["T"]}),
        **{name: macro for name, macro in types(computing).items() if name != "STORE"},
        DTYPE=computing.name, **arithmetic(computing), COMPLEX=int(computing != dtype), OUT_T=types(out.dtype)["T"],
    )  # fmt: skip
    arguments = (t for kind in kinds for t in OPERANDS.get(kind, (passed_as(stored["ACC"]),)))
    kernel.arguments = (*arguments, None, INT64, STRUCTURE, *(() if start is None else START_ARGUMENTS))
    if start is None and is_row:
        dtypes = [bool_ if name == "c" else dtype for name, *_ in given]
        kernel = kernel.twin(_in_place(kinds, dtypes, out.dtype, expression))
    used = [*(s for *_, s in given), steps[-1]]
    layout = np.array([*lengths, *(step for s in used for step in s), out.size, block], np.int64)
    argument = to_argument(dtype, is_compared=out.dtype == bool_)
    return Plan(kernel, work, group, layout.tobytes(), device.plans[allocation_of](out), argument)


def _input(at: int, dtype: np.dtype, kind: str, start: np.dtype | None) -> Operand:
    offset = "o0 + moved * x_step" if at == 0 and start is not None else f"o{at}"
    return array(dtype, f"v{at}", f"p{at}", offset, at, kind)


def _result(dtype: np.dtype, kind: str, at: int, is_view: bool, start: np.dtype | None) -> Operand:
    offset = "t" if start is None else "t + moved * out_step"
    found = array(dtype, "r", "q", offset, at, kind)
    return found if is_view else found._replace(start=(offset, "i"), kind="DENSE")


def _parameter(dtype: np.dtype, at: int, operand: Any) -> str:
    if operand == NUMBER:
        return f"const {types(dtype)['ACC']} n{at},"
    return f"__global const {types(operand[1])['T']} *restrict p{at}, const long o{at},"


def _written(dtype: np.dtype) -> str:
    return f"__global {types(dtype)['T']} *restrict q, const long t,"


def _usual_links(found: dict[str, str], operands: dict[str, tuple[str, str]], out: np.dtype) -> dict[str, str]:
    """Return the statements of a fast path, if there is one."""
    if not found:
        return {}
    check = f"{{ {declared(operands)} usual &= {found['IS_USUAL']}; }}"
    return {"IS_USUAL": check, "USUAL": statement("r", found["USUAL"], operands, out)}


def _in_place(
    kinds: list[str], dtypes: list[np.dtype], out: np.dtype, expression: str
) -> tuple[InPlace, ...]:
    """Return the operands that a result of one axis and stride 1 may overwrite: those of the same layout."""
    ends = [*accumulate(len(OPERANDS.get(kind, (None,))) for kind in kinds)]
    result, alike = ends[-1], [dtype.itemsize == out.itemsize for dtype in dtypes]
    at = [end - 2 for end, kind, fits in zip(ends, kinds, alike, strict=True) if kind == "DENSE" and fits]
    arrays = [(end - 2, kind) for end, kind in zip(ends, kinds, strict=True) if OPERANDS.get(kind)]
    others = others_of(arrays)
    is_copy = expression == COPY and dtypes[0] == out
    return tuple(InPlace(i, result, (i + 1, result + 1), is_copy, others) for i in at)


def others_of(arrays: list[tuple[int, str]]) -> tuple[tuple[int, int | None], ...]:
    """Return InPlace.others for arrays, given the index of their memory argument and the kind of their strides."""
    return tuple((i, i + 1 if kind == "DENSE" else None) for i, kind in arrays)


def arithmetic(dtype: np.dtype) -> dict[str, int]:
    """Return the macros that select the functions of expressions.cl for a dtype."""
    return {"FLOATING": int(dtype in FLOATS), "SIGNED": int(dtype in SIGNED + FLOATS), "BOOLEAN": int(dtype == bool_)}


def usual(device: Device, expression: str, accumulator: str) -> dict[str, str]:
    """Return the macros of the fast path of an expression, if the device and the arithmetic type have one."""
    looks = device.geometry.looks_ahead and device.features.fp64
    if expression not in USUAL or accumulator != "float" or not looks:
        return {}
    return dict(zip(("IS_USUAL", "USUAL"), USUAL[expression], strict=True))


def _strides_along(operand: Any, ndim: int) -> tuple[int, ...]:
    """Return the strides of an operand along the ndim axes of the result; a number is broadcast."""
    return broadcast_strides(operand[0], operand[2], ndim) if type(operand) is tuple else (0,) * ndim


def vector_of(most: int, lengths: tuple[int, ...], steps: tuple[tuple[int, ...], ...]) -> int:
    """Return the elements per vector: `most` if no vector crosses the end of a row or an alignment boundary, else 1."""
    outer = [step for operand in steps if operand[-1] for step in operand[:-1]]
    dense = steps[-1][-1] == 1 and all(operand[-1] in STEPS for operand in steps)
    return most if dense and not any(n % most for n in (*outer, *(lengths[-1:] if lengths[1:] else ()))) else 1


def kind_of(steps: tuple[int, ...]) -> str:
    """Return the kind of an array, by its last stride."""
    return STEPS.get(steps[-1], "STRIDED")


def to_argument(dtype: np.dtype, *, is_compared: bool) -> Callable[[Number], Any]:
    """Return the conversion of a Python number to a kernel argument.

    For float16 and bfloat16 it is float32; comparisons round the number to the dtype first.
    """
    if dtype in COMPLEX:
        return dtype.type
    argument = SCALARS[types(dtype)["ACC"]].type
    return (lambda number: argument(dtype.type(number))) if is_compared and dtype in NARROW else argument
