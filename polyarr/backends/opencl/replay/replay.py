"""Replay of captured programs without their launchers: commands with bound arguments are enqueued again.

In the first run with some layout of the inputs, the launchers work as usual while a Recording notes what they enqueue.
Later runs enqueue the same commands. Before that they set what differs: the memory of inputs and outputs, which is new
in each run, and scalars such as an input's offset. Intermediate values lie in regions, each of which serves several in
turn. A run takes the regions' memory from the device's pool, and returns it once everything is enqueued, as an op does;
so programs hold no memory between runs, and share it with each other. The pool mostly returns the same memory again,
and then the arguments are bound already.
"""

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from polyarr.backends.opencl.replay.early_casts import split_casts
from polyarr.backends.opencl.replay.first_run import FirstRun, buffers_in
from polyarr.backends.opencl.replay.gated_linears import fuse_gated_linears
from polyarr.backends.opencl.replay.recorded_run import HANDLE, RecordedRun
from polyarr.backends.opencl.replay.recording import Recording, settled
from polyarr.backends.opencl.replay.residual_norms import fuse_residual_adds
from polyarr.backends.opencl.replay.stored_rows import fuse_stored_rows
from polyarr.backends.opencl.replay.widening import remove_widening_casts
from polyarr.backends.opencl.runtime.checking import check_inputs, is_checked
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, is_aligned
from polyarr.core.number import Number
from polyarr.core.program import Inputs, Program, Run

MAX_LAYOUTS = 8  # layouts of the inputs that are recorded; with further ones, the launchers run
MAX_FAILURES = 3  # recordings that may fail because the device's memory was read meanwhile, as tuning does once
MEMORY, STRIDES, OFFSET = map(attrgetter, ("memory", "strides", "offset"))


class Replay:
    """A program on a device, recorded once per layout of the inputs. core/program.py has the contract."""

    def __init__(self, device: Device, program: Program, run: Run) -> None:
        self._device, self._run = device, run
        program = remove_widening_casts(fuse_residual_adds(device, program))
        program = fuse_stored_rows(device, fuse_gated_linears(device, program))
        self._program = program = split_casts(program) if device.commands.is_marked else program
        self._recorded: dict[Any, RecordedRun] = {}
        self._failures = 0
        self._fixed_offsets: set[int] = set()  # inputs whose offset some launcher must know
        buffers = [b for value in program.constants.values() for b in buffers_in(value)]
        self._constants = {b.memory.int_ptr: -1 - i for i, b in enumerate(buffers)}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Return the outputs' values."""
        device = self._device
        with device.lock:
            if not device.is_guarded:
                known = inputs if isinstance(inputs, Inputs) and inputs.kept is not None else None
                if known and (of := known.notes.get(self)) and (again := of.run(known)) is not None:
                    return again
                layout, memories, handles = self._layout(inputs)
                found = self._recorded.get(layout)
                if found is not None:
                    if known:
                        self._note(known, layout, found)
                    device.faults.follow(inputs)
                    return found.run(inputs, memories, handles)
                memories.clear()  # memory of a donated input may be freed in the middle of the run
                if self._failures < MAX_FAILURES and len(self._recorded) < MAX_LAYOUTS:
                    return self._record(layout, inputs)
        return self._run(inputs)

    def _layout(self, inputs: list[Any]) -> tuple[Any, list[Any], list[int]]:
        """Return what commands depend on (strides, alignment, shared memory), the inputs' memories, and their handles.
        """
        bufs = [b for b in inputs if type(b) is Buffer]
        views = tuple(map(STRIDES, bufs))
        if any(map(OFFSET, bufs)):
            arrays = [(i, b) for i, b in enumerate(inputs) if type(b) is Buffer]
            views = tuple([self._view(i, b) if b.offset else b.strides for i, b in arrays])
        memories = [*map(MEMORY, bufs)]
        handles = [*map(HANDLE, memories)]
        if len({*handles, *self._constants}) == len(handles) + len(self._constants):
            return views, memories, handles
        first = self._constants.copy()
        return (views, tuple([first.setdefault(handle, i) for i, handle in enumerate(handles)])), memories, handles

    def _note(self, inputs: Inputs, layout: Any, found: RecordedRun) -> None:
        """Note a recorded run for calls with the same kept inputs, unless some inputs share memory or have offsets."""
        bufs = [b for b in inputs if type(b) is Buffer]
        values = inputs.kept.values if inputs.kept else []  # none if they were released since
        if values and not any(map(OFFSET, bufs)) and layout == tuple(map(STRIDES, bufs)):
            of = inputs.notes.setdefault(self, KeptInputs(self._device, inputs, values, self._constants))
            of.runs[tuple([b.strides for b in inputs.others() if type(b) is Buffer])] = found

    def _view(self, i: int, buf: Buffer) -> tuple[Any, ...]:
        """Return the layout of an input that does not begin where its memory begins."""
        return (*buf.strides, ("at", buf.offset) if i in self._fixed_offsets else ("aligned", is_aligned(buf)))

    def _record(self, layout: Any, inputs: list[Any]) -> list[Any]:
        if not all(map(_can_vary, inputs)):
            self._failures = MAX_FAILURES
            return self._run(inputs)
        first = FirstRun(self._device, self._program, inputs, self._fixed_offsets)
        outputs = first.run()
        if first.fixed_offsets:  # the layout differs
            self._fixed_offsets |= first.fixed_offsets
        elif first.recording is None or not all(map(_can_vary, outputs)):
            self._failures = MAX_FAILURES
        elif first.recording.reads or not self._are_new(first.recording, outputs):
            self._failures += 1
        else:
            self._recorded[layout] = RecordedRun(self._device, self._program, first, first.recording, outputs)
        return list(settled(tuple(outputs)))

    def _are_new(self, recording: Recording, outputs: list[Any]) -> bool:
        """Return whether every output lies in memory that is new in each run, or in an input's or a constant's."""
        fixed = {b.memory.int_ptr for b in outputs if type(b) is Buffer and recording.ref(b.memory).memory}
        return fixed <= self._constants.keys()


def _can_vary(value: Any) -> bool:
    """Return whether a replay can set such an input, or return such an output, whose value is another in each run.

    What a kernel saves for its backward part may be anything, and a fused function (polyarr.fused) keeps it between its
    two programs.
    """
    return value is None or type(value) is Buffer or type(value) in (int, float) or isinstance(value, Number)


class KeptInputs:
    """Notes of a replay about inputs that are kept (core/program.py), all of them buffers.

    Attributes:
        runs: The recorded runs with them, by the strides of the other buffers.
    """

    def __init__(self, device: Device, inputs: Inputs, values: list[Buffer], constants: Iterable[int]) -> None:
        self._device, self.runs = device, dict[Any, RecordedRun]()
        self._memories = [*map(MEMORY, values)]
        self._handles = [*map(HANDLE, self._memories)]
        self._taken = {*self._handles, *constants}
        self._before = sum(type(each) is Buffer for each in inputs[: inputs.start])
        self._followed = [*{buf.origin: buf for buf in values}.values()]  # one of each origin

    def run(self, inputs: Inputs) -> list[Any] | None:
        """Return the outputs' values; None if the others have another layout, or share memory."""
        bufs = [b for b in inputs.others() if type(b) is Buffer]
        found = None if any(map(OFFSET, bufs)) else self.runs.get(tuple(map(STRIDES, bufs)))
        memories = [*map(MEMORY, bufs)]
        handles = [*map(HANDLE, memories)]
        if found is None or len({*handles}) < len(handles) or not self._taken.isdisjoint(handles):
            return None
        memories[self._before : self._before] = self._memories
        handles[self._before : self._before] = self._handles
        self._device.faults.follow((*self._followed, *bufs))
        del bufs  # nothing else may refer to memory that is written over
        return found.run(inputs, memories, handles)


class CheckedReplay(Replay):
    """A Replay that checks its inputs (POLYARR_CHECK_LAUNCHES), as no launcher looks at them."""

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Return the outputs' values.

        Raises:
            BackendError: An input differs from the captured one.
        """
        check_inputs(self._device, self._program, inputs)
        return super().__call__(inputs)


def replay_of(device: Device) -> Callable[[Program, Run], Replay]:
    """Return the function that makes replays on a device."""
    return partial(CheckedReplay if is_checked() else Replay, device)
