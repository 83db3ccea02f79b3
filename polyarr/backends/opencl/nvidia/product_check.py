"""Checks of product programs: small odd matrices between canaries, compared with NumPy in float64."""

from collections.abc import Callable
from math import erf, pi, sqrt

import numpy as np

from polyarr.backends.opencl.gemm.product import Epilogue, Operand, Plan, Problem, terms_of
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import whole_row
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32, float64

RELATIVE = {bfloat16: 2.0**-8, float16: 2.0**-11, float32: 2.0**-22}  # relative error of a rounded result
SUMMING = 2.0**-18  # error of a sum, relative to the sum of magnitudes
SUMMING_TERMS = {2: 2.0**-16, 3: 2.0**-22}  # likewise of so many terms: a missing product of terms exceeds it
SMALLEST = 2.0**-24  # absolute error that is always allowed
ACTIVATIONS = {
    "none": lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "gelu": lambda v: v / 2 * (1 + np.vectorize(erf)(v * sqrt(0.5))),
    "gelu_tanh": lambda v: v / 2 * (1 + np.tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))),
}


def check(
    device: Device, dtype: np.dtype, along: tuple[int, int], n: int, epilogue: Epilogue,
    plan_of: Callable[[Problem], Plan], special: bool = True, shape: tuple[int, int, int] = (2, 200, 456),
) -> None:  # fmt: skip
    """Multiply matrices x (batch, m, k) of a shape and y with n columns, and compare with NumPy.

    They are contiguous along k as `along` says. With `special`, split products are also checked with an infinity and a
    nan.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    batch, m, k = shape
    generator = np.random.default_rng(0)
    x, y, bias = (generator.standard_normal(s).astype(dtype) for s in ((batch, m, k), (batch, k, n), (n,)))
    _compare(device, along, epilogue, plan_of, (x, y, bias))
    if special and dtype == float32:
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
        for _ in range(2):  # the counters of work-groups must be 0 again after the first launch
            launch(tuple(buf and buf.memory for buf in (*given, workspace, out, saved)), 0, 0)
        after, before = device.download(out), device.download(saved) if saved else None
    agree(x, y, bias, epilogue, after, before)


def agree(
    x: np.ndarray, y: np.ndarray, bias: np.ndarray, epilogue: Epilogue, after: np.ndarray, before: np.ndarray | None
) -> None:
    """Compare the result of a product, and the activation's input, with NumPy in float64.

    Raises:
        BackendError: One of them is wrong.
    """
    dtype = x.dtype
    x, y = x.astype(float64), y.astype(float64)
    expected = x @ y + (bias.astype(float64) if epilogue.bias else 0)
    summing = SUMMING_TERMS.get(terms_of(dtype, epilogue.precision), SUMMING)
    most = summing * (np.abs(x) @ np.abs(y)) + SMALLEST
    for name, found, wanted in (
        ("result", after, ACTIVATIONS[epilogue.activation](expected)), ("saved result", before, expected),
    ):  # fmt: skip
        if found is not None and not _near(found, wanted, most + RELATIVE[dtype] * np.abs(wanted)):
            raise BackendError(f"the {name} is wrong")


def _near(found: np.ndarray, wanted: np.ndarray, most: np.ndarray) -> bool:
    """Return whether no element is further off than `most`; infinities and nans must be equal."""
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return bool((same | (np.isfinite(wanted) & (np.abs(found - wanted) <= most))).all())


def _stored(matrices: np.ndarray, along_k: int) -> tuple[np.ndarray, Operand]:
    """Store matrices (batch, kept, k) in rows of whole 16 bytes, padded with nan that no kernel may read."""
    rows = matrices if along_k else matrices.swapaxes(1, 2)
    batch, high, wide = rows.shape
    step = whole_row(wide + 1, 2)
    stored = np.full((batch, high, step), np.nan, rows.dtype)
    stored[:, :, :wide] = rows
    return stored, Operand(step if along_k else 1, 1 if along_k else step, 0, high * step)
