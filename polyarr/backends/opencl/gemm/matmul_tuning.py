"""Matrix products as `polyarr tune` sees them: candidates, checks and timings."""

from math import prod

import numpy as np

from polyarr.backends.opencl.gemm.matmul import FORMS, matmul, shape_class, tiles
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, swapped
from polyarr.backends.opencl.tuning.tuned import Case, Tunable
from polyarr.backends.opencl.tuning.tuning import parameters_of, space
from polyarr.core.spec import Spec, float64
from polyarr.core.tuning import Work

TIMED_ON_CPU = 512, 1024, 1024  # largest lengths: several packed blocks, some milliseconds
SMALL = (72, 136, 604), (77, 131, 600)  # more rows than products without packing have (gemv.MAX_TILED_ROWS)
ERRORS = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 1e-2, "float16": 1e-3}


def _case(work: Work) -> Case:
    """Return x and y as they are stored, and their product."""
    m, n, k = work.shape
    dtype, generator, (x_form, y_form) = np.dtype(work.dtype), np.random.default_rng(0), [*work.form]
    stored = ((k, m) if x_form == "T" else (m, k)), ((n, k) if y_form == "T" else (k, n))
    x, y = (generator.standard_normal(shape, np.float32).astype(dtype) for shape in stored)

    def run(device: Device, buffers: list[Buffer]) -> tuple[Buffer]:
        left, right = (swapped(b) if form == "T" else b for b, form in zip(buffers, work.form, strict=True))
        return (matmul(device, Spec((m, n), dtype), left, right),)

    def expected() -> tuple[np.ndarray]:
        left, right = (a.T if form == "T" else a for a, form in zip((x, y), work.form, strict=True))
        return (left.astype(float64) @ right.astype(float64),)

    return Case([x, y], run, expected, ERRORS[work.dtype])


def _small(device: Device, work: Work) -> tuple[Work, ...]:
    other = {"TN": "NT"}.get(work.form, "TN") if device.geometry.packs else work.form  # x is packed in TN only
    return tuple(work._replace(shape=shape, form=form) for shape, form in zip(SMALL, (work.form, other), strict=True))


def _timed(device: Device, work: Work) -> Work:
    in_part = device.geometry.is_timed_in_part
    return work._replace(shape=tuple(map(min, work.shape, TIMED_ON_CPU))) if in_part else work


TUNABLE = Tunable(
    "matmul", tuple(FORMS.values()), tiles,
    stem=lambda device: f"matmul_{device.geometry.kind}",
    fitting=lambda device, work, found: parameters_of(device, np.dtype(work.dtype), found),
    space=lambda device, work: space(device, np.dtype(work.dtype)),
    small=_small, timed=_timed, shape=lambda device, work: shape_class(device, work.form, *work.shape),
    case=_case, operations=lambda work: 2 * prod(work.shape),
)  # fmt: skip
