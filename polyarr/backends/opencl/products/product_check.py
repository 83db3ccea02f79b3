"""Whether a program of a product computes rightly: small odd matrices between canaries, beside NumPy in float64."""

from collections.abc import Callable
from math import erf, pi, sqrt

import numpy as np

from polyarr.backends.opencl.products.parts import bound
from polyarr.backends.opencl.products.product import Epilogue, Operand, Plan, Problem
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import whole_row
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32, float64

RELATIVE = {bfloat16: 2.0**-8, float16: 2.0**-11, float32: 2.0**-22}  # how far a rounded result may be off
SUMMING = 2.0**-18  # and how far a sum, of the sum of magnitudes
SUMMING_THIRDS = 2.0**-22  # likewise of three parts: of normal numbers, where a missing product of parts makes more
SMALLEST = 2.0**-24  # and whatever is this small
ACTIVATIONS = {
    "none": lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "gelu": lambda v: v / 2 * (1 + np.vectorize(erf)(v * sqrt(0.5))),
    "gelu_tanh": lambda v: v / 2 * (1 + np.tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))),
}


def check(
    device: Device, dtype: np.dtype, along: tuple[int, int], n: int, epilogue: Epilogue,
    plan_of: Callable[[Problem], Plan],
) -> None:  # fmt: skip
    """Multiply matrices with so many columns, which are contiguous along k as the words say, and compare.

    Products that are to be float32 arithmetic are tried with an infinity and a nan as well.

    Errors:  BackendError if a result is wrong, or something else was written to
    """
    batch, m, k = 2, 200, 456
    generator = np.random.default_rng(0)
    x, y, bias = (generator.standard_normal(s).astype(dtype) for s in ((batch, m, k), (batch, k, n), (n,)))
    _compare(device, along, epilogue, plan_of, (x, y, bias))
    if dtype == float32 and epilogue.precision == "highest":
        x[0, 3, 5], y[1, 7, 9] = np.inf, np.nan
        _compare(device, along, epilogue, plan_of, (x, y, bias))


def _compare(
    device: Device, along: tuple[int, int], epilogue: Epilogue, plan_of: Callable[[Problem], Plan],
    matrices: tuple[np.ndarray, ...],
) -> None:  # fmt: skip
    x, y, bias = matrices
    (batch, m, k), n, dtype = x.shape, y.shape[-1], x.dtype
    left, x_operand = _stored(x, along[0])
    right, y_operand = _stored(y.swapaxes(1, 2), along[1])
    with device.guarded():
        launch, sums, _ = plan_of(Problem(batch, batch, m, n, k, x_operand, y_operand))
        out = device.empty(Spec((batch, m, n), dtype))
        saved = device.empty(Spec((batch, m, n), dtype)) if epilogue.save else None
        workspace = device.empty(sums) if sums else out
        given = [device.upload(a) for a in (left, right, bias)]
        for _ in range(2):  # words that work-groups wait by must be 0 again after the first time
            launch(tuple(buf and buf.memory for buf in (*given, workspace, out, saved)), 0, 0)
        after, before = device.download(out), device.download(saved) if saved else None
    agree(x, y, bias, epilogue, after, before)


def agree(
    x: np.ndarray, y: np.ndarray, bias: np.ndarray, epilogue: Epilogue, after: np.ndarray, before: np.ndarray | None
) -> None:
    """Compare the result of a product, and what activation was applied to, with NumPy's in float64.

    Errors:  BackendError if one of them is wrong
    """
    dtype = x.dtype
    x, y = x.astype(float64), y.astype(float64)
    expected = x @ y + (bias.astype(float64) if epilogue.bias else 0)
    summing = SUMMING_THIRDS if dtype == float32 else SUMMING
    in_halves = dtype == float32 and epilogue.precision != "highest"
    most = (bound(x, y) if in_halves else summing * (np.abs(x) @ np.abs(y))) + SMALLEST
    for name, found, wanted in (
        ("result", after, ACTIVATIONS[epilogue.activation](expected)), ("saved result", before, expected),
    ):  # fmt: skip
        if found is not None and not _near(found, wanted, most + RELATIVE[dtype] * np.abs(wanted)):
            raise BackendError(f"the {name} is wrong")


def _near(found: np.ndarray, wanted: np.ndarray, most: np.ndarray) -> bool:
    """True if no number is further off than that; an infinity and a nan are what they are."""
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return bool((same | (np.isfinite(wanted) & (np.abs(found - wanted) <= most))).all())


def _stored(matrices: np.ndarray, along_k: int) -> tuple[np.ndarray, Operand]:
    """Matrices (batch, kept, k) in rows of whole 16 bytes with nan behind, which nobody may read."""
    rows = matrices if along_k else matrices.swapaxes(1, 2)
    batch, high, wide = rows.shape
    step = whole_row(wide + 1, 2)
    stored = np.full((batch, high, step), np.nan, rows.dtype)
    stored[:, :, :wide] = rows
    return stored, Operand(step if along_k else 1, 1 if along_k else step, 0, high * step)
