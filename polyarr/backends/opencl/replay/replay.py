"""Replay of captured programs without their launchers: commands with bound arguments are enqueued again.

In the first run with some layout of the inputs, the launchers work as usual while a Recording notes what they enqueue.
Later runs enqueue the same commands. Before that they set what differs: the memory of inputs and outputs, which is new
in each run, and scalars such as an input's offset. Intermediate values lie in slots, each of which serves several in
turn. A run takes the slots' memory from the device's pool, and returns it once everything is enqueued, as an op does;
so programs hold no memory between runs, and share it with each other. The pool mostly returns the same memory again,
and then the arguments are bound already.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import compress, pairwise, repeat
from operator import attrgetter
from sys import getrefcount
from typing import Any, NamedTuple

from polyarr.backends.opencl.copying.copy import duplicate
from polyarr.backends.opencl.replay.early_casts import split_casts
from polyarr.backends.opencl.replay.memory_plan import Block, MemorySharing, Slot, Uses, blocks_of, slots_for
from polyarr.backends.opencl.replay.recording import Formula, MemoryRef, Offset, Recording, settled
from polyarr.backends.opencl.replay.residual_norms import fuse_residual_adds
from polyarr.backends.opencl.replay.widening import remove_widening_casts
from polyarr.backends.opencl.runtime.checking import check_inputs, is_checked
from polyarr.backends.opencl.runtime.commands import BoundCommand, Commands, Mark
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, is_aligned
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number
from polyarr.core.program import Program, Run, Step, assigned, last_uses, lookup

MAX_LAYOUTS = 8  # layouts of the inputs that are recorded; with further ones, the launchers run
MARK_BYTES = 8 << 20  # bytes of outputs between two queue marks
MAX_FAILURES = 3  # recordings that may fail because the device's memory was read meanwhile, as tuning does once


class Replay:
    """A program on a device, recorded once per layout of the inputs. core/program.py has the contract."""

    def __init__(self, device: Device, program: Program, run: Run) -> None:
        self._device, self._run = device, run
        program = remove_widening_casts(fuse_residual_adds(device, program))
        self._program = program = split_casts(program) if device.commands.is_marked else program
        self._recorded: dict[Any, RecordedRun] = {}
        self._failures = 0
        self._exact: set[int] = set()  # inputs of which some launcher must know where they begin
        buffers = [b for value in program.constants.values() for b in _buffers(value)]
        self._constants = {b.memory.int_ptr: -1 - i for i, b in enumerate(buffers)}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Return the outputs' values."""
        device = self._device
        with device.lock:
            if not device.is_guarded:
                layout, memories, handles = self._layout(inputs)
                found = self._recorded.get(layout)
                if found is not None:
                    return found.run(inputs, memories, handles)
                memories.clear()  # memory of a donated input may be freed in the middle of the run
                if self._failures < MAX_FAILURES and len(self._recorded) < MAX_LAYOUTS:
                    return self._record(layout, inputs)
        return self._run(inputs)

    def _layout(self, inputs: list[Any]) -> tuple[Any, list[Any], list[int]]:
        """Return what commands depend on (strides, alignment, shared memory), the inputs' memories, and their handles.
        """
        bufs = [b for b in inputs if type(b) is Buffer]
        windows = tuple(map(STRIDES, bufs))
        if any(map(OFFSET, bufs)):
            arrays = [(i, b) for i, b in enumerate(inputs) if type(b) is Buffer]
            windows = tuple([self._window(i, b) if b.offset else b.strides for i, b in arrays])
        memories = [*map(MEMORY, bufs)]
        handles = [*map(HANDLE, memories)]
        if len({*handles, *self._constants}) == len(handles) + len(self._constants):
            return windows, memories, handles
        first = self._constants.copy()
        return (windows, tuple([first.setdefault(handle, i) for i, handle in enumerate(handles)])), memories, handles

    def _window(self, i: int, buf: Buffer) -> tuple[Any, ...]:
        """Return the layout of an input that does not begin where its memory begins."""
        return (*buf.strides, ("at", buf.offset) if i in self._exact else ("aligned", is_aligned(buf)))

    def _record(self, layout: Any, inputs: list[Any]) -> list[Any]:
        first = FirstRun(self._device, self._program, inputs, self._exact)
        outputs = first.run()
        if first.exact:  # so the layout differs
            self._exact |= first.exact
        elif first.recording is None:
            self._failures = MAX_FAILURES
        elif first.recording.reads or not self._are_new(first, outputs):
            self._failures += 1
        else:
            self._recorded[layout] = RecordedRun(self._device, self._program, first, outputs)
        return list(settled(tuple(outputs)))

    def _are_new(self, first: "FirstRun", outputs: list[Any]) -> bool:
        """Return whether every output lies in memory that is new in each run, or in an input's or a constant's."""
        held = {b.memory.int_ptr for b in outputs if type(b) is Buffer and first.recording.place(b.memory).memory}
        return held <= self._constants.keys()


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


# ---- the first run -----------------------------------------------------------------------------------------------


class FirstRun:
    """The run in which the launchers work and are recorded.

    Attributes:
        recording: The recording; None once a launcher could not work without the value of a scalar.
        input_places: The place of each input; None for a scalar.
        sizes: Bytes of the inputs' memory, by place.
        donated: Places of the inputs that are donated, as far as can be seen.
        begins: Index and offset slot of each input that does not begin where its memory begins.
        exact: Inputs whose offset some launcher had to know.
    """

    def __init__(self, device: Device, program: Program, inputs: list[Any], exact: set[int]) -> None:
        self._device, self._program = device, program
        self.recording: Recording | None = Recording(device.faults.mine(), program.size)
        self._values, self.input_places = dict(program.constants), [self._place_of(value) for value in inputs]
        self.sizes = {p: value.memory.size for p, value in zip(self.input_places, inputs, strict=True) if p is not None}
        self.donated = {
            place for place, value in zip(self.input_places, inputs, strict=True) if getrefcount(value) == LISTED
        }
        self.begins, self.exact = list[tuple[int, int]](), set[int]()
        for slot, value in program.constants.items():
            for b in _buffers(value):
                self.recording.place(b.memory)
            self.recording.values[slot] = value
        for i, (slot, value) in enumerate(zip(program.inputs, inputs, strict=True)):
            if self.input_places[i] is None:
                self._values[slot] = self.recording.number(slot, value)
            else:
                self._values[slot] = self._begun(i, value) if value.offset and i not in exact else value
        inputs.clear()

    def _place_of(self, value: Any) -> MemoryRef | None:
        return self.recording.given(value.memory) if type(value) is Buffer else None

    def _begun(self, i: int, buf: Buffer) -> Buffer:
        """Return an input with a tracer as its offset."""
        offset = self.recording.offset(i, buf)
        self.begins.append((i, offset.slot))
        return buf._replace(offset=offset)

    def run(self) -> list[Any]:
        """Return the outputs' values, possibly with Numbers in them."""
        program, values = self._program, self._values
        for n, step in enumerate(program.scalar_steps):
            self._call(n, step, self._count)
        self._device.commands.recording = self.recording
        try:
            first = len(program.scalar_steps)
            for n, (step, dead) in enumerate(zip(program.steps, last_uses(program), strict=True), first):
                self._call(n, step, self._launch)
                for slot in dead:
                    values.pop(slot, None)
        finally:
            self._device.commands.recording = None
        return [values[slot] for slot in program.outputs]

    def _call(self, n: int, step: Step, call: Callable[[Step], Any]) -> None:
        if self.recording is not None:
            self.recording.step = n
        try:
            self._values.update(assigned(step.outputs, call(step)))
        except Exception as error:
            self._program.note(error, step)
            raise

    def _count(self, step: Step) -> Any:
        call = partial(step.call, **step.params) if step.params else step.call
        self.recording.formulas.append(Formula(call, step.inputs, step.outputs, self.recording.step))
        now = call(*settled(lookup(self._values, step.inputs)))
        return None if step.outputs is None else self.recording.number(step.outputs, now)

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
                    self.exact |= set() if change is _same else _begun(args)
                    return found
            self.recording = self._device.commands.recording = None
            self._values.update({slot: settled(value) for slot, value in self._values.items()})
        return step.call(*settled(args), **step.params)

    def _copied(self, value: Any) -> Any:
        value = _with_offset(value)
        begins_anywhere = type(value) is Buffer and isinstance(value.offset, Number)
        return duplicate(self._device, value) if begins_anywhere else value


# ---- the runs after it -------------------------------------------------------------------------------------------


class Arrangement(NamedTuple):
    """The memory plan of a run, which depends on the inputs that may be overwritten.

    Attributes:
        asked: What decided that: handles, reference counts, and the number of lendings to other libraries.
        results: Where each output of `fresh` lies, counted through inputs and allocations.
        slots: The slots of these, in that order.
        sizes: Bytes of the allocated results.
        commands: The commands to enqueue.
    """

    asked: tuple[list[int], list[int], int]
    results: list[int]
    slots: list[Any]
    sizes: list[int]
    commands: list[BoundCommand]


class RecordedRun:
    """A recorded program: all later runs with the same layout.

    Attributes:
        shown: The outputs that are arrays; their memories and views are in `lain` and `windows`.
        same: Constants in the place of other outputs.
        scalars: The outputs that are scalars, or whose offset is one.
        commands: The recorded commands, by number.
        lists: The commands to enqueue, by those that are left out.
        settings: Setter, arguments object, index and slot of each scalar argument.
        input_slots: The slots of inputs.
        overwrites: The inputs that may be overwritten, and by what.
        fresh: The slots of outputs, in new memory or in an input's.
        own, sizes: Memory needed only during a run, and its bytes.
        fixed: Constant memory, as far as outputs lie in it.
        last, where: The last run's arrangement and handles; what has not changed is bound already.
    """

    def __init__(self, device: Device, program: Program, first: FirstRun, outputs: list[Any]) -> None:
        self._device, self._program = device, program
        self._recording, input_places, self._begins = first.recording, first.input_places, first.begins
        recording = self._recording
        self._numbers = [(i, slot) for i, slot in enumerate(program.inputs) if input_places[i] is None]
        places = [place for place in input_places if place is not None]
        shown = dict.fromkeys(recording.place(b.memory) for b in outputs if type(b) is Buffer)
        fresh, fixed = [p for p in shown if p.nbytes], [p for p in shown if p.memory is not None]
        at = {place: i for i, place in enumerate((*places, *fresh, *fixed))}
        shown_at = [(i, value) for i, value in enumerate(outputs) if type(value) is Buffer]
        self._shown, self._same = [i for i, _ in shown_at], [None if type(v) is Buffer else v for v in outputs]
        self._lies_at = [at[recording.place(value.memory)] for _, value in shown_at]
        self._windows = [*zip(*[value[1:5] for _, value in shown_at], strict=True)]
        scalars = [(i, value.offset if type(value) is Buffer else value) for i, value in enumerate(outputs)]
        self._scalars = [(i, number.slot) for i, number in scalars if isinstance(number, Number)]
        self._fixed, self._places = [place.memory for place in fixed], fresh
        self._slots = {place: Slot(place.nbytes) for place in (*places, *fresh, recording.fault[0])}
        alone = {p: first.sizes[p] for p, count in Counter(places).items() if count == 1 and p not in shown}
        self._sharing = MemorySharing(recording.recorded, alone, first.donated, fresh)
        over = self._sharing.over
        self._input_slots = [self._slots[place] for place in places]
        self._overwrites = [(at, over[place]) for at, place in enumerate(places) if place in over]
        self._is_reusable = [place in over for place in places]
        self._fresh, self._fault = [self._slots[place] for place in fresh], self._slots[recording.fault[0]]
        self._commands: dict[int, BoundCommand] = {}
        self._lists: dict[frozenset[int], list[BoundCommand]] = {}
        self._last: Arrangement | None = None
        self._where = list[int]()
        self._settings: list[tuple[Any, ...]] = []
        self._own, self._sizes = list[Block](), list[int]()
        self._marked: list[_Marked] = []
        self._is_bound = False

    def run(self, inputs: list[Any], memories: list[Any], handles: list[int]) -> list[Any]:
        """Return the outputs' values. The caller holds the device's lock."""
        device, (fault, time) = self._device, self._recording.fault
        if not self._is_bound:
            self._bind()
        values = self._count(inputs)
        device.faults.follow(inputs)
        inputs.clear()
        if fault.times:
            memory, values[time.slot] = device.faults.call()
            if memory.int_ptr != self._fault.handle:
                self._fault.bind(memory)
        found = self._arranged(memories, handles)
        memories += device.allocate(found.sizes) + device.allocate(self._sizes, for_run=True)
        if self._last is not found:  # memory was given back to the driver to free space, and nothing is bound any more
            for slot, at in zip(self._fresh, found.results, strict=True):
                slot.bind(memories[at])
            self._last, self._where = found, [slot.handle for slot in found.slots]
        self._rebind(found.slots, memories, [*handles, *map(HANDLE, memories[len(handles) :])])
        for set_number, subject, i, slot in self._settings:
            set_number(subject, i, values[slot])
        device.commands.repeat(found.commands)
        results = [memories[at] for at in found.results]
        if device.commands.is_marked:
            self._note_ready(results)
        return self._found([*memories[: len(handles)], *results, *self._fixed], values)

    def _arranged(self, memories: list[Any], handles: list[int]) -> "Arrangement":
        """Return the last arrangement, unless inputs that may be overwritten moved, or are referred to elsewhere."""
        counts = map(getrefcount, memories)
        asked = [*compress(handles, self._is_reusable)], [*compress(counts, self._is_reusable)], self._device.lendings
        if self._last is not None and self._last.asked == asked:
            return self._last
        self._last = None
        places, skipped = dict[int, int](), set[int]()
        for (at, over), handle, count in zip(self._overwrites, *asked[:2], strict=True):
            fresh = self._fresh[over.fresh]
            is_suitable = fresh.handle == handle or fresh.is_suitable(memories[at])
            if is_suitable and count == ALONE and not self._device.vendor.is_lent(memories[at]):
                places[over.fresh] = at
                skipped |= set() if over.skipped is None else {over.skipped}
                if fresh.handle != handle:
                    fresh.bind(memories[at])
        missing = [n for n in range(len(self._fresh)) if n not in places]
        places |= {n: at for at, n in enumerate(missing, len(handles))}
        new = [self._fresh[n] for n in missing]
        key = frozenset(skipped)
        if key not in self._lists:  # each stays the same list object, by which graphs recognize it
            self._lists[key] = [command for n, command in self._commands.items() if n not in skipped]
        results = [places[n] for n in range(len(self._fresh))]
        slots = [*self._input_slots, *new, *self._own]
        self._last = Arrangement(asked, results, slots, [slot.nbytes for slot in new], self._lists[key])
        self._where = [slot.handle for slot in self._last.slots]
        return self._last

    def _rebind(self, slots: list[Any], memories: list[Any], handles: list[int]) -> None:
        """Bind arguments to memory that differs from the last run's."""
        if handles == self._where:
            return
        last, self._last = self._last, None  # in case of an exception in between
        for n in [n for n, (handle, before) in enumerate(zip(handles, self._where, strict=True)) if handle != before]:
            if slots[n].handle != handles[n]:
                slots[n].bind(memories[n])
        self._where, self._last = handles, last

    def _note_ready(self, results: list[Any]) -> None:
        """Note when results are ready, so that another queue need not wait for the whole run."""
        for memory in results:
            memory.ready = None  # it may still refer to an earlier use of the memory
        for marked in self._marked:
            for i in marked.fresh:
                results[i].ready = marked.mark

    def _found(self, memories: list[Any], values: list[Any]) -> list[Any]:
        """Return the outputs' values in these memories and with these scalars."""
        fields = [memories[at] for at in self._lies_at], *self._windows, repeat(self._device.faults.mine().origin)
        found = self._same.copy()
        for i, buf in zip(self._shown, map(_made, zip(*fields, repeat(None))), strict=True):
            found[i] = buf
        for i, slot in self._scalars:
            found[i] = found[i]._replace(offset=values[slot]) if type(found[i]) is Buffer else values[slot]
        return found

    def forget(self) -> None:
        """Keep no memory alive, because the device gives it back to the driver."""
        self._last = None
        for slot in (*self._slots.values(), *self._own):
            slot.forget()

    def _count(self, inputs: list[Any]) -> list[Any]:
        """Return the values of all scalars."""
        values = self._recording.values.copy()
        for i, slot in self._numbers:
            values[slot] = inputs[i]
        for i, slot in self._begins:
            values[slot] = inputs[i].offset
        for call, inputs, outputs, n in self._recording.formulas:
            try:
                found = call(*lookup(values, inputs))
            except Exception as error:
                self._program.note(error, self._step(n))
                raise
            if outputs is not None:
                values[outputs] = found
        return values

    def _step(self, n: int) -> Step:
        return (*self._program.scalar_steps, *self._program.steps)[n]

    def _bind(self) -> None:
        """Bind constant arguments, and note where the others are. Runs once."""
        commands, settings = dict[int, BoundCommand](), list[tuple[Any, ...]]()
        uses = defaultdict[MemoryRef, Uses](list)
        marked = self._placed_marks() if self._device.commands.is_marked else {}
        self._marked = [*marked.values()]
        for n, recorded in enumerate(self._recording.recorded):
            step = self._step(recorded.step)
            note = partial(self._program.note, step=step)
            if n in marked:
                commands[-1 - n] = BoundCommand(marked[n].set, None, None, None, recorded.command, note)
            if n in self._sharing.skipped:
                continue
            args = tuple([a.memory if type(a) is MemoryRef else a for a in settled(recorded.args)])
            enqueue, subject = recorded.command.repeated(recorded.work, recorded.group, args)
            of = self._program, step
            commands[n] = BoundCommand(enqueue, subject, recorded.work, recorded.group, recorded.command, note, of)
            for i, arg in enumerate(recorded.args):
                if isinstance(arg, Number):
                    settings.append((recorded.command.set_number, subject, i, arg.slot))
                elif type(arg) is MemoryRef and arg.memory is None:
                    uses[self._sharing.home(arg)].append((subject, i))
        for place, slot in self._slots.items():
            slot.uses = uses.pop(place, [])
        self._own = blocks_of(slots_for(uses), self._device)
        if len(self._own) > 1:  # otherwise the pool would also hold the first run's memory, in other sizes
            self._device.give_back()
        self._sizes = [block.nbytes for block in self._own]
        self._commands, self._settings = commands, settings
        self._device.replays.add(self)
        self._is_bound = True

    def _placed_marks(self) -> dict[int, "_Marked"]:
        """Return, by command, the queue marks before it and the outputs that are ready there."""
        found, waiting, nbytes, end = dict[int, _Marked](), list[int](), 0, len(self._recording.recorded)
        done = [(self._sharing.home(place).times.bit_length(), i) for i, place in enumerate(self._places)]
        for (n, i), (following, _) in pairwise([*sorted(done), (end, 0)]):
            waiting, nbytes = [*waiting, i], nbytes + self._fresh[i].nbytes
            if n < following and nbytes >= MARK_BYTES:
                found[n], waiting, nbytes = _Marked(self._device.commands, waiting), [], 0
        return found


class _Marked:
    """A queue mark that is set again in every run.

    Attributes:
        fresh: The outputs in new memory that are ready before it.
        mark: The mark of the last run.
    """

    def __init__(self, commands: Commands, fresh: list[int]) -> None:
        self._commands, self.fresh = commands, fresh
        self.mark: Mark | None = None

    def set(self) -> None:
        """Set the mark."""
        self.mark = self._commands.mark()


# ---- values ------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _with_offset(value: Any) -> Any:
    """Return a value whose offset, if it follows from an input's, is replaced by its current value."""
    return settled(value) if type(value) is Buffer and type(value.offset) is Offset else value


def _begun(value: Any) -> set[int]:
    """Return the inputs on whose offsets those of these Buffers depend."""
    return {b.offset.of for b in _buffers(value) if type(b.offset) is Offset}


def _buffers(value: Any) -> list[Buffer]:
    """Return the Buffers in a tree of tuples."""
    if type(value) is Buffer:
        return [value]
    return [b for member in value for b in _buffers(member)] if type(value) is tuple else []


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with each leaf replaced by change(leaf)."""
    return tuple([_each(member, change) for member in value]) if type(value) is tuple else change(value)


def _listed() -> int:
    return max(getrefcount(value) for value, _ in zip([object()], [None], strict=True))


_made = partial(tuple.__new__, Buffer)  # as Buffer(*fields), but several times as fast
HANDLE, MEMORY, STRIDES, OFFSET = map(attrgetter, ("int_ptr", "memory", "strides", "offset"))
ALONE = next(map(getrefcount, [object()]))  # reference count of an object that only one list holds, in map
LISTED = _listed()  # reference count, in a loop, of an object that only the list holds
