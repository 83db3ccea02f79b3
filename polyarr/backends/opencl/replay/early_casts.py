"""Splits astype_all so that each array is cast as soon as it is ready; an all-reduce of gradients can then start early.
"""

import math

from polyarr import ops
from polyarr.backends.opencl.elementwise.astype_all import MAX_ARRAYS
from polyarr.core.program import Program, Step, flat

MAX_CAST_BYTES = 32 << 20  # bytes that one launch casts


def split_casts(program: Program) -> Program:
    """Return the program with its calls of astype_all split, each placed behind the last step that it needs."""
    given_by = {v: n for n, step in enumerate(program.steps) for v in flat(step.outputs)}
    constants, size, behind = dict(program.constants), program.size, dict[int, list[Step]]()
    for n, step in enumerate(program.steps):
        if step.op is not ops.astype_all or step.part != "kernel":
            behind.setdefault(n, []).append(step)
            continue
        specs, arrays = program.constants[step.inputs[0]], step.inputs[1]
        for members in _parts([spec.size * spec.dtype.itemsize for spec in specs]):
            constants[size] = tuple([specs[i] for i in members])
            inputs, outputs = tuple([arrays[i] for i in members]), tuple([step.outputs[i] for i in members])
            last = max([given_by.get(v, -1) for v in inputs])
            behind.setdefault(last, []).append(step._replace(inputs=(size, inputs), outputs=outputs))
            size += 1
    steps = tuple([step for n in sorted(behind) for step in behind[n]])
    return program._replace(steps=steps, constants=constants, size=size)


def _parts(sizes: list[int]) -> list[list[int]]:
    """Return indices of neighboring arrays of these sizes in bytes, grouped so that each group fits one launch."""
    found, remaining = list[list[int]](), -math.inf
    for i, nbytes in enumerate(sizes):
        if remaining < nbytes or len(found[-1]) == MAX_ARRAYS:
            found.append([])
            remaining = MAX_CAST_BYTES
        found[-1].append(i)
        remaining -= nbytes
    return found
