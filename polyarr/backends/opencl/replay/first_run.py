"""The first run of a program with some layout of its inputs: the launchers work and are recorded."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from polyarr.backends.opencl.copying.copy import duplicate
from polyarr.backends.opencl.replay.ahead import forget_jobs, plan_ahead
from polyarr.backends.opencl.replay.recording import MemoryRef, Offset, Recording, settled
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number
from polyarr.core.program import Program, Step, assigned, last_uses, lookup


class FirstRun:
    """The run in which the launchers work and are recorded.

    Attributes:
        recording: The recording; None once a launcher could not work without the value of a scalar.
        input_refs: The memory of each input; None for a scalar, and for None.
        donated: Bytes of the donated inputs, by their memory.
        offset_slots: Index and slot of the offset of each input that does not begin where its memory begins.
        fixed_offsets: Inputs whose offset some launcher had to know.
    """

    def __init__(self, device: Device, program: Program, inputs: list[Any], fixed_offsets: set[int]) -> None:
        self._device, self._program = device, program
        recording = Recording(device.faults.mine(), device.driver.memory, program)
        self._recording, self.recording = recording, cast("Recording | None", recording)
        self._values, self.donated = dict(program.constants), dict[MemoryRef, int]()
        self.input_refs = [recording.input_ref(b.memory) if type(b) is Buffer else None for b in inputs]
        self.offset_slots, self.fixed_offsets = list[tuple[int, int]](), set[int]()
        for slot, value in program.constants.items():
            for b in buffers_in(value):
                recording.ref(b.memory)
            recording.values[slot] = value
        for i, (slot, ref, value) in enumerate(zip(program.inputs, self.input_refs, inputs, strict=True)):
            if ref is None:
                self._values[slot] = None if value is None else recording.number(slot, value)
                continue
            if slot in program.donated:
                self.donated[ref] = value.memory.size
            is_traced = value.offset and i not in fixed_offsets
            self._values[slot] = self._trace_offset(recording, i, value) if is_traced else value
        inputs.clear()

    def _trace_offset(self, recording: Recording, i: int, buf: Buffer) -> Buffer:
        """Return an input with a tracer as its offset."""
        offset = recording.offset(i, buf)
        self.offset_slots.append((i, offset.slot))
        return buf._replace(offset=cast("int", offset))

    def run(self) -> list[Any]:
        """Return the outputs' values, possibly with Numbers in them."""
        program, values = self._program, self._values
        for step in program.scalar_steps:
            self._call(step, self._evaluate)
        self._device.commands.recording = self.recording
        try:
            for n, (step, dead) in enumerate(zip(program.steps, last_uses(program), strict=True)):
                self._device.programs.ahead = partial(plan_ahead, self._device, program, n, values)
                self._call(step, self._launch)
                for slot in dead:
                    values.pop(slot, None)
        finally:
            self._device.commands.recording = None
            forget_jobs(self._device)
        return [values[slot] for slot in program.outputs]

    def _call(self, step: Step, call: Callable[[Step], Any]) -> None:
        if self.recording is not None:
            self.recording.step = step
        try:
            self._values.update(assigned(step.outputs, call(step)))
        except Exception as error:
            self._program.note(error, step)
            raise

    def _evaluate(self, step: Step) -> Any:
        self._recording.scalar_steps.append((step, step))
        now = step.call(*settled(lookup(self._values, step.inputs)), **step.params)
        return None if step.outputs is None else self._recording.number(step.outputs, now)

    def _launch(self, step: Step) -> Any:
        """Call a launcher; if it needs an offset, pass the value, or else a copy; failing that, stop recording."""
        args = lookup(self._values, step.inputs)
        if self.recording is not None:
            recorded = len(self.recording.recorded)
            for change in (_same, _with_offset, self._copied):
                try:
                    found = step.call(*_each(args, change), **step.params)
                except CaptureError:
                    self.recording.forget_from(recorded)
                else:
                    if change is not _same:  # the inputs on whose offsets those of these Buffers depend
                        offsets: list[Any] = [b.offset for b in buffers_in(args)]
                        self.fixed_offsets |= {offset.of for offset in offsets if type(offset) is Offset}
                    return found
            self.recording = self._device.commands.recording = None
            self._values.update({slot: settled(value) for slot, value in self._values.items()})
        return step.call(*settled(args), **step.params)

    def _copied(self, value: Any) -> Any:
        value = _with_offset(value)
        has_traced_offset = type(value) is Buffer and isinstance(value.offset, Number)
        return duplicate(self._device, value) if has_traced_offset else value


def buffers_in(value: Any) -> list[Buffer]:
    """Return the Buffers in a tree of tuples."""
    if type(value) is Buffer:
        return [value]
    return [b for member in value for b in buffers_in(member)] if type(value) is tuple else []


def _same(value: Any) -> Any:
    return value



def _with_offset(value: Any) -> Any:
    """Return a value whose offset, if it follows from an input's, is replaced by its current value."""
    return settled(value) if type(value) is Buffer and isinstance(value.offset, Offset) else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with each leaf replaced by change(leaf)."""
    return tuple([_each(member, change) for member in value]) if type(value) is tuple else change(value)
