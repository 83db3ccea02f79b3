"""Casts of many arrays at once, each as soon as it is there: for whoever takes up results while others are made."""

import math

from polyarr import ops
from polyarr.backends.opencl.astype_all import PLACES
from polyarr.core.program import Program, Step, flat

TOGETHER = 32 << 20  # bytes that are cast at once


def cast_early(program: Program) -> Program:
    """The program with its calls of astype_all in parts, each behind the last step that it needs."""
    given_by = {v: n for n, step in enumerate(program.steps) for v in flat(step.gives)}
    constants, size, behind = dict(program.constants), program.size, dict[int, list[Step]]()
    for n, step in enumerate(program.steps):
        if step.op is not ops.astype_all or step.part != "kernel":
            behind.setdefault(n, []).append(step)
            continue
        specs, arrays = program.constants[step.takes[0]], step.takes[1]
        for members in _parts([spec.size * spec.dtype.itemsize for spec in specs]):
            constants[size] = tuple([specs[i] for i in members])
            takes, gives = tuple([arrays[i] for i in members]), tuple([step.gives[i] for i in members])
            last = max([given_by.get(v, -1) for v in takes])
            behind.setdefault(last, []).append(step._replace(takes=(size, takes), gives=gives))
            size += 1
    steps = tuple([step for n in sorted(behind) for step in behind[n]])
    return program._replace(steps=steps, constants=constants, size=size)


def _parts(sizes: list[int]) -> list[list[int]]:
    """Which arrays of so many bytes are cast together: neighbours, few enough for one launch."""
    found, room = list[list[int]](), -math.inf
    for i, nbytes in enumerate(sizes):
        if room < nbytes or len(found[-1]) == PLACES:
            found.append([])
            room = TOGETHER
        found[-1].append(i)
        room -= nbytes
    return found
