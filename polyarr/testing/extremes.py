"""Checks of extreme calls: huge arrays, the whole range of each dtype, documented special cases.

Each derives its calls from the simplest one that the op's entry draws.
"""

from dataclasses import replace

from polyarr.core.backend import Backend
from polyarr.core.op import Op
from polyarr.testing.checks import check, check_forward, compare_with_reference
from polyarr.testing.samples import SAMPLES, huge, in_other_dtypes, promises, sweeps, with_other_values
from polyarr.testing.strategies import Sample


@check
def check_huge(op: Op, backend: Backend, template: Sample) -> None:
    """Check the values and gradients of huge calls."""
    for sample in huge(op, template):
        if sample.is_held(op, backend.dtypes):
            compare_with_reference(op, backend, replace(sample, g="offset"))


@check
def check_crossed(op: Op, backend: Backend, template: Sample) -> None:
    """Check large and huge calls in other dtypes, gradients included, and with offsets, ties, one nan or infinity."""
    for sample in in_other_dtypes(op, SAMPLES[op], template):
        if sample.is_held(op, backend.dtypes):
            compare_with_reference(op, backend, replace(sample, g="offset"))
    for sample in with_other_values(op, SAMPLES[op], template):
        check_forward(op, backend, sample)


@check
def check_sweep(op: Op, backend: Backend, template: Sample) -> None:
    """Check the value over the whole range of each dtype: every 16-bit pattern, every exponent, every kind of nan."""
    for sample in sweeps(op, SAMPLES[op]):
        if sample.is_held(op, backend.dtypes):
            check_forward(op, backend, sample)


@check
def check_promised(op: Op, backend: Backend, template: Sample) -> None:
    """Check value and gradients of documented special cases: ties, zeros, constant rows, empty axes."""
    for sample, gradients in promises(op, SAMPLES[op]):
        if sample.is_held(op, backend.dtypes):
            (compare_with_reference if gradients else check_forward)(op, backend, sample)
