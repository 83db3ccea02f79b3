"""Fuses the update of a key-value cache with the attention that reads it, for a decoder's captured step."""

from typing import NamedTuple

from polyarr import ops
from polyarr.backends.opencl.attention import attention, attention_decode
from polyarr.backends.opencl.copying import shape
from polyarr.backends.opencl.copying.copy import duplicate
from polyarr.backends.opencl.elementwise.elementwise import launch
from polyarr.backends.opencl.replay.steps import Steps, launcher_of
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.table import following
from polyarr.core.program import Program, Step
from polyarr.core.spec import Spec, int32


class Update(NamedTuple):
    """Updates of a cache (2, B, H, S, D) at one position.

    Attributes:
        caches: Slots of the updated caches, in the order in which they are computed.
        values: Slots of the values of the updates, in the order of the cache's halves.
        position: Slot of the position, a scalar.
    """

    caches: list[int]
    values: list[int]
    position: int


def fuse_stored_rows(device: Device, program: Program) -> Program:
    """Return the program in which attention stores the row of its position in the cache that it reads.

    The update becomes a copy of the cache, which replays leave out if the cache is donated. Programs of devices without
    such a kernel stay as they are.
    """
    if not attention_decode.can_store(device):
        return program
    steps, places = Steps(program), _Places(device, program)
    for n, step in enumerate(program.steps):
        if launcher_of(step) is attention.forward and not step.params["causal"] and not step.params["dropout_rate"]:
            cache, other = [_cache_of(steps, v, i) for i, v in enumerate(step.inputs[2:4])]
            if cache is None or cache != other or steps.specs[cache].shape[1:3] != _lead(program, step):
                continue
            update = _update_of(steps, cache)
            if update is not None:
                _fuse(device, program, steps, n, update, places)
    return places.added_to(steps.program())


class _Places:
    """Steps that write positions to memory, once for all attentions that store rows there."""

    def __init__(self, device: Device, program: Program) -> None:
        self._device, self._program, self._steps = device, program, dict[int, Step]()

    def of(self, position: int, step: Step) -> tuple[int, ...]:
        """Return the slot of the place of a position, for a step; none if kernels take the number."""
        if not attention_decode.reads_places(self._device):
            return ()
        if position not in self._steps:
            spec = self._program.size + 2 * len(self._steps)
            call = following(self._device, _written)
            made = step._replace(op=ops.fill, part="kernel", call=call, inputs=(spec, position), params={})
            self._steps[position] = made._replace(outputs=spec + 1)
        return (self._steps[position].outputs,)

    def added_to(self, program: Program) -> Program:
        """Return the program with these steps."""
        specs = {step.inputs[0]: Spec((1,), int32) for step in self._steps.values()}
        return program._replace(
            steps=(*self._steps.values(), *program.steps), size=program.size + 2 * len(specs),
            constants=program.constants | specs, specs=program.specs | {v + 1: spec for v, spec in specs.items()},
        )  # fmt: skip


def _written(device: Device, out: Spec, position: int) -> Buffer:
    return launch(device, out, position)


def _fuse(device: Device, program: Program, steps: Steps, n: int, update: Update, places: _Places) -> None:
    updates = [program.steps.index(steps.maker(v)) for v in update.caches]
    first, last, step = (program.steps[m] for m in (updates[0], updates[-1], n))
    copy = last._replace(call=following(device, _copied), inputs=first.inputs[:2], params={})
    steps.join(updates[-1], updates[:-1], copy)
    inputs = *step.inputs, tuple(update.values), update.position, *places.of(update.position, step)
    steps.join(n, [], step._replace(call=following(device, attention.forward_storing), inputs=inputs))


def _lead(program: Program, step: Step) -> tuple[int, ...]:
    """Return the leading axes of an attention's result: more than a cache's where several queries share its rows."""
    return program.specs[step.outputs[0]].shape[:-2]


def _copied(device: Device, out: Spec, cache: Buffer) -> Buffer:
    return duplicate(device, cache)


def _cache_of(steps: Steps, v: int, half: int) -> int | None:
    """Return the array of which a value, used once, is the first or the second half; None if it is none."""
    halved = _made_by(steps, v, shape.reshape)
    cut = halved and _made_by(steps, halved.inputs[1], shape.slice)
    if not cut:
        return None
    cache, starts = cut.inputs[1], [steps.constant(start) for start in cut.inputs[2]]
    specs = steps.specs
    is_half = specs[cache].shape == (2, *specs[v].shape) and len(starts) == 5 and set(cut.params["steps"]) == {1}
    return cache if is_half and starts == [half, 0, 0, 0, 0] else None


def _made_by(steps: Steps, v: int, launcher: object) -> Step | None:
    """Return the step that computes a value that is used once, if it calls a launcher."""
    step = None if steps.only_maker(v) is None else steps.maker(v)
    return step if step is not None and launcher_of(step) is launcher else None


def _update_of(steps: Steps, cache: int) -> Update | None:
    """Return the updates that make a cache of which only the halves are used; None if they are others."""
    found, values, positions, at, rows = list[int](), dict[int, int](), set[int](), cache, steps.specs[cache].shape
    while len(values) < 2:
        step, uses = steps.maker(at), 2 if at == cache else 1
        if step is None or launcher_of(step) is not shape.slice_update or steps.uses(at) != uses:
            return None
        if at != cache and steps.is_output(at):
            return None
        (half, *others, position, last), spec = step.inputs[3], steps.specs.get(step.inputs[2])
        starts = [steps.constant(start) for start in (half, *others, last)]
        if starts[1:] != [0, 0, 0] or starts[0] not in (0, 1) or not steps.is_scalar(position):
            return None
        if spec is None or spec.shape[1:] != (*rows[1:3], 1, rows[4]) or set(step.params["steps"]) != {1}:
            return None
        halves = range(starts[0], starts[0] + spec.shape[0])
        if any(i in values for i in halves):
            return None
        found.insert(0, at)
        values |= {i: step.inputs[2] for i in halves}
        positions.add(position)
        at = step.inputs[1]
    if len(positions) > 1 or sorted(values) != [0, 1]:
        return None
    return Update(found, [values[i] for i in range(len(found))], positions.pop())
