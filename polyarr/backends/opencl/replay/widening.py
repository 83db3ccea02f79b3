"""Removes casts of 16-bit floats to float32 whose only readers widen them anyway, with the same bits.

Gradients of a model that was cast are an example: their global norm, and AdamW, widen what they read.
"""

from polyarr import ops
from polyarr.backends.opencl.replay.steps import launcher_of
from polyarr.backends.opencl.table import KERNELS
from polyarr.core.program import Program, Step, flat, renamed
from polyarr.core.spec import NARROW, float32


def remove_widening_casts(program: Program) -> Program:
    """Return the program without these casts, which halves the memory of gradients."""
    names: dict[int, int] = {}
    for step in program.steps:
        if _widens(step, program) and _is_only_read(step.outputs, program):
            names.update(zip(step.outputs, step.inputs[1], strict=True))
    if not names:
        return program
    kept = [step for step in program.steps if step.outputs is None or names.keys().isdisjoint(flat(step.outputs))]
    return program._replace(steps=tuple([step._replace(inputs=renamed(step.inputs, names)) for step in kept]))


def _widens(step: Step, program: Program) -> bool:
    if launcher_of(step) is not KERNELS[ops.astype_all] or step.params["dtype"] != float32:
        return False
    return all(program.specs[v].dtype in NARROW for v in step.inputs[1])


def _is_only_read(values: tuple[int, ...], program: Program) -> bool:
    """Return whether only the global norm of all these values, or AdamW as gradients, reads them."""
    own = set(values)
    if not own.isdisjoint(program.outputs):
        return False
    for step in program.steps:
        launcher, taken = launcher_of(step), flat(step.inputs)
        if launcher is KERNELS[ops.global_norm] and own.issuperset(step.inputs[1]):
            continue  # not with several dtypes, which it adds in another order
        if launcher is KERNELS[ops.adamw]:
            taken = flat((*step.inputs[:2], *step.inputs[3:]))
        if not own.isdisjoint(taken):
            return False
    return True
