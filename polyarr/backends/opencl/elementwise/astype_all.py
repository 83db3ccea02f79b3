"""astype_all: cast many arrays between float32, float16 and bfloat16 in few launches."""

import struct

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise import elementwise
from polyarr.backends.opencl.runtime.device import Device, allocation_of
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import STORED, types, vector_types
from polyarr.core.spec import Spec

MAX_ARRAYS = 24  # arrays per launch: astype_all.cl has as many sets of arguments


def astype_all(device: Device, out: tuple[Spec, ...], arrays: tuple[Buffer, ...], *, dtype: np.dtype) -> tuple:
    """Return the arrays in another dtype; dtypes whose arithmetic is not in float32 are cast one by one."""
    if not arrays or any(STORED[d][1] != "float" for d in (arrays[0].dtype, dtype)):
        return tuple([elementwise.astype(device, spec, x, dtype=dtype) for spec, x in zip(out, arrays, strict=True)])
    sources = [dense(device, x) for x in arrays]
    results = device.fresh_all(out, [device.plans[allocation_of](spec) for spec in out])
    filled = [i for i, spec in enumerate(out) if spec.size]
    for first in range(0, len(filled), MAX_ARRAYS):
        members = filled[first : first + MAX_ARRAYS]
        sizes = tuple([out[i].size for i in members])
        plan = device.plans[_plan](arrays[0].dtype, dtype, sizes)
        args = [memory for i in members for memory in (sources[i].memory, results[i].memory)]
        unread = [args[0], args[1]] * (MAX_ARRAYS - len(members))  # placeholders for unused argument slots
        lengths = struct.pack(f"{MAX_ARRAYS}q", *sizes, *[0] * (len(unread) // 2))
        plan.kernel(plan.work, plan.group, *args, *unread, lengths)
    return tuple(results)


def _plan(device: Device, source: np.dtype, target: np.dtype, sizes: tuple[int, ...]) -> LaunchPlan:
    blocks = device.geometry.blocks(max(source.itemsize, target.itemsize))
    blocks["BLOCK"] *= device.geometry.cast_vectors
    macros = {**vector_types(source, blocks["VECTOR"], "X_"), **vector_types(target, blocks["VECTOR"], "OUT_")}
    stored = {"OUT_T": types(target)["T"]}
    program = device.build("astype_all", **types(source), **stored, **blocks, **macros)
    count = sum(-(-size // blocks["BLOCK"]) for size in sizes)
    return LaunchPlan(program.astype_all, (blocks["GROUP"] * count,), (blocks["GROUP"],), ())
