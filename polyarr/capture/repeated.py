"""Composed ops that are called again and again: their decompositions run as captured programs, with fused steps.

An op that a backend has no kernel for takes a launch per step of its decomposition, 81 for the inverse of erf. After
some calls with one signature the decomposition is captured, as by polyarr.compile: the same bits in few launches. A
capture takes as long as about so many calls, so signatures that are met once or twice do not pay for one.
"""

import contextlib
import math
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from polyarr.capture.captured import Captured, captured
from polyarr.core import watch
from polyarr.core.array import Array, flatten
from polyarr.core.backend import Backend
from polyarr.core.errors import CaptureError
from polyarr.core.op import Op, Plan, run_untracked_with
from polyarr.core.precision import get_matmul_precision
from polyarr.core.program import Inputs
from polyarr.ops.decompositions import LINALG

MANY = 8  # calls with one signature that run step by step
MIN_SAVED = 2  # launches that a program must save, because its call takes as long as about two
MAX_HELD = 4096  # bytes of constants that a program may hold; a call step by step frees them, such as a mask
MAX_PROGRAMS = 512  # of all ops; one takes up to 0.1 MB

_after: float = MANY
_kept = deque[dict[Any, Any]]()  # where the programs are, the oldest first


@contextlib.contextmanager
def after(calls: float) -> Iterator[None]:
    """Within a block, in all threads, capture after so many calls; math.inf: run every call step by step."""
    global _after
    before, _after = _after, calls
    try:
        yield
    finally:
        _after = before


def run(op: Op, plan: Plan, backend: Backend, args: tuple, params: dict[str, Any]) -> Any:
    """Return the value of a composed op: by its program once there is one, else step by step.

    Args:
        op: The op.
        plan: The plan of the call, which holds the programs.
        backend: Backend of the arrays.
        args: The inputs, without gradient.
        params: The parameters.
    """
    if _after == math.inf:
        return op.run_decomposition(plan, args, params)
    key = id(backend), get_matmul_precision()
    found = plan.programs.get(key, 0)
    if type(found) is int and found < _after:
        plan.programs[key] = found + 1
    elif found is not None and (inputs := _inputs(args)) is not None:
        if type(found) is int:
            found = plan.programs[key] = _program(op, plan, backend, args, params)
            if found is not None:
                _kept.append(plan.programs)
            if len(_kept) > MAX_PROGRAMS:
                _kept.popleft().clear()
        if found is not None:
            return found.call(inputs, [])
    return op.run_decomposition(plan, args, params)


def _inputs(args: tuple) -> Inputs | None:
    """Return the inputs of a program; None if one is no input, or an array is among them twice."""
    found = Inputs([a for a in flatten(args) if a is not None])
    arrays = [id(a) for a in found if type(a) is Array]
    others = [a for a in found if type(a) in (int, float)]
    return found if len({*arrays}) + len(others) == len(found) else None


def _program(op: Op, plan: Plan, backend: Backend, args: tuple, params: dict[str, Any]) -> Captured | None:
    """Return the captured decomposition; None if that fails, saves too little, holds too much, or has late errors.

    The error of a bad index or matrix names the line of the user's code, which a captured program does not know.
    """

    def decomposition(args: tuple) -> Any:
        return op.run_decomposition(plan, args, params)

    if os.environ.get("POLYARR_COMPILE") == "0":
        return None
    watch.report_capture(op.name, backend, "captured, as it is called again and again")
    try:
        found = captured(decomposition, op.name, backend, [("args", args, True)], 1, (), [], line=op.name)
    except CaptureError:
        return None
    program = found.program
    members = [inner for step in program.steps for inner in (step.op.steps if step.part == "group" else (step,))]
    is_shorter = len(members) - len(program.steps) >= MIN_SAVED
    has_late_errors = any(step.op.indices or step.op.group == LINALG for step in members)
    held = sum(spec.size * spec.dtype.itemsize for v, spec in program.specs.items() if v in program.constants)
    return found if is_shorter and not has_late_errors and held <= MAX_HELD else None


run_untracked_with(run)
