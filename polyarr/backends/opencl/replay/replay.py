"""Running a captured program without its launchers: commands are enqueued again whose arguments are bound already.

On the first run with some layout of the inputs the launchers work as ever, while a Recording notes what they do. Later
runs enqueue the same commands. What differs from run to run is set before: the memory of inputs and of outputs, which
is new each time, and numbers, such as where an input begins. What only the program itself needs lies in slots, each of
which serves one place after the other. A run takes them from the device's pool and gives them back when everything is
enqueued, as an op does: so programs hold no memory in between, and share it with one another and with everybody else.
The pool mostly gives the same slots again; then they are bound already.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import compress, pairwise, repeat
from operator import attrgetter
from sys import getrefcount
from typing import Any, NamedTuple

from polyarr.backends.opencl.copy import duplicate
from polyarr.backends.opencl.replay.early import cast_early
from polyarr.backends.opencl.replay.places import Block, Sharing, Slot, Uses, blocks_of, slots_for
from polyarr.backends.opencl.replay.recording import Formula, Offset, Place, Recording, settled
from polyarr.backends.opencl.replay.shortcuts import with_shortcuts
from polyarr.backends.opencl.replay.telling import with_told_peaks
from polyarr.backends.opencl.replay.widening import without_widening
from polyarr.backends.opencl.runtime.commands import Commands, Mark, Repeated
from polyarr.backends.opencl.runtime.cuda import is_lent
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, is_aligned
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number
from polyarr.core.program import Program, Run, Step, given, last_uses, taken

MOST = 8  # layouts of the inputs for which commands are recorded; with others the launchers run
APART = 8 << 20  # bytes of outputs from one mark to the next
TRIALS = 3  # recordings that may fail because somebody read the device's memory meanwhile, as tuning does, once


class Replay:
    """A program on a device, recorded once for each layout of the inputs. core/program.py has the contract."""

    def __init__(self, device: Device, program: Program, run: Run) -> None:
        self._device, self._run = device, run
        program = with_told_peaks(device, without_widening(with_shortcuts(device, program)))
        self._program = program = cast_early(program) if device.commands.is_marked else program
        self._recorded: dict[Any, Repetition] = {}
        self._failures = 0
        self._exact: set[int] = set()  # inputs of which some launcher must know where they begin
        buffers = [b for value in program.constants.values() for b in _buffers(value)]
        self._constants = {b.memory.int_ptr: -1 - i for i, b in enumerate(buffers)}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The outputs' values."""
        device = self._device
        with device.lock:
            if not device.is_watched:
                layout, memories, handles = self._layout(inputs)
                found = self._recorded.get(layout)
                if found is not None:
                    return found.run(inputs, memories, handles)
                memories.clear()  # whose array was given away may be free in the middle of the run
                if self._failures < TRIALS and len(self._recorded) < MOST:
                    return self._record(layout, inputs)
        return self._run(inputs)

    def _layout(self, inputs: list[Any]) -> tuple[Any, list[Any], list[int]]:
        """What commands depend on: inputs' strides, how they begin, what shares memory. And that, and its handles."""
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
        """Of an input that does not begin at the beginning of its memory."""
        return (*buf.strides, ("at", buf.offset) if i in self._exact else ("aligned", is_aligned(buf)))

    def _record(self, layout: Any, inputs: list[Any]) -> list[Any]:
        first = FirstRun(self._device, self._program, inputs, self._exact)
        outputs = first.run()
        if first.exact:  # so the layout is another one
            self._exact |= first.exact
        elif first.recording is None:
            self._failures = TRIALS
        elif first.recording.reads or not self._are_new(first, outputs):
            self._failures += 1
        else:
            self._recorded[layout] = Repetition(self._device, self._program, first, outputs)
        return list(settled(tuple(outputs)))

    def _are_new(self, first: "FirstRun", outputs: list[Any]) -> bool:
        """False if an output lies in memory that is no input's and no constant's, and would be the same every time."""
        held = {b.memory.int_ptr for b in outputs if type(b) is Buffer and first.recording.place(b.memory).memory}
        return held <= self._constants.keys()


# ---- the first run -----------------------------------------------------------------------------------------------


class FirstRun:
    """The launchers work.

    recording  of what they do; None from when on one of them could not work without knowing a number
    fed        the place of each input, None for a number
    sizes      of the inputs' memory, by place
    given      the places of the inputs that are given away, as far as one can see
    begins     for inputs that do not begin at the beginning of their memory: which, and the number that says where
    exact      inputs for which a launcher had to know it
    """

    def __init__(self, device: Device, program: Program, inputs: list[Any], exact: set[int]) -> None:
        self._device, self._program = device, program
        self.recording: Recording | None = Recording(device.faults.mine(), program.size)
        self._values, self.fed = dict(program.constants), [self._fed(value) for value in inputs]
        self.sizes = {p: value.memory.size for p, value in zip(self.fed, inputs, strict=True) if p is not None}
        self.given = {place for place, value in zip(self.fed, inputs, strict=True) if getrefcount(value) == LISTED}
        self.begins, self.exact = list[tuple[int, int]](), set[int]()
        for slot, value in program.constants.items():
            for b in _buffers(value):
                self.recording.place(b.memory)
            self.recording.values[slot] = value
        for i, (slot, value) in enumerate(zip(program.inputs, inputs, strict=True)):
            if self.fed[i] is None:
                self._values[slot] = self.recording.number(slot, value)
            else:
                self._values[slot] = self._begun(i, value) if value.offset and i not in exact else _without_peaks(value)
        inputs.clear()

    def _fed(self, value: Any) -> Place | None:
        return self.recording.given(value.memory) if type(value) is Buffer else None

    def _begun(self, i: int, buf: Buffer) -> Buffer:
        """An input with the number in the place of its offset."""
        offset = self.recording.offset(i, buf)
        self.begins.append((i, offset.slot))
        return buf._replace(offset=offset, peaks=None)

    def run(self) -> list[Any]:
        """The outputs' values, with Numbers in them, perhaps."""
        program, values = self._program, self._values
        for n, step in enumerate(program.counts):
            self._call(n, step, self._count)
        self._device.commands.recording = self.recording
        try:
            first = len(program.counts)
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
            self._values.update(given(step.gives, call(step)))
        except Exception as error:
            self._program.note(error, step)
            raise

    def _count(self, step: Step) -> Any:
        call = partial(step.call, **step.params) if step.params else step.call
        self.recording.formulas.append(Formula(call, step.takes, step.gives, self.recording.step))
        now = call(*settled(taken(self._values, step.takes)))
        return None if step.gives is None else self.recording.number(step.gives, now)

    def _launch(self, step: Step) -> Any:
        """Call a launcher; one that asks in vain where a view begins is told, or given a copy; else record no more."""
        args = taken(self._values, step.takes)
        if self.recording is not None:
            noted = len(self.recording.noted)
            for change in (_same, _told, self._copied):
                try:
                    found = step.call(*_each(args, change), **step.params)
                except CaptureError:
                    self.recording.forget_from(noted)
                else:
                    self.exact |= set() if change is _same else _begun(args)
                    return found
            self.recording = self._device.commands.recording = None
            self._values.update({slot: settled(value) for slot, value in self._values.items()})
        return step.call(*settled(args), **step.params)

    def _copied(self, value: Any) -> Any:
        value = _told(value)
        begins_anywhere = type(value) is Buffer and isinstance(value.offset, Number)
        return duplicate(self._device, value) if begins_anywhere else value


# ---- the runs after it -------------------------------------------------------------------------------------------


class Arrangement(NamedTuple):
    """What follows from which inputs may be written over.

    asked     what that was decided by: their handles, how many refer to their memory, and what others have been lent
    results   where each output of `fresh` lies, counted through inputs and what is allocated
    slots     of these, in that order
    sizes     of the results that are allocated
    commands  that are enqueued
    """

    asked: tuple[list[int], list[int], int]
    results: list[int]
    slots: list[Any]
    sizes: list[int]
    commands: list[Repeated]


class Repetition:
    """Every other run with the same layout.

    shown     which outputs are arrays, the numbers of the memories that they lie in, and their windows on these
    same      what is the same every time in the place of other outputs
    told      which outputs are numbers, or begin at one
    commands  what is enqueued, by number
    lists     of them those that are enqueued, by what is left out
    settings  where numbers are arguments: what sets them, whose, which, and the number
    fed       the slots of inputs
    overs     of inputs that may be written over: which, and by what
    fresh     the slots of outputs, in memory that is new at every run, or an input's
    own       memory that is needed during a run only, and its sizes
    fixed     memory that stays the same, as far as it is in outputs
    last      how the last run's memory was arranged, and `where` it was: what is so again is bound already
    """

    def __init__(self, device: Device, program: Program, first: FirstRun, outputs: list[Any]) -> None:
        self._device, self._program = device, program
        self._recording, fed, self._begins = first.recording, first.fed, first.begins
        recording = self._recording
        self._numbers = [(i, slot) for i, slot in enumerate(program.inputs) if fed[i] is None]
        places = [place for place in fed if place is not None]
        shown = dict.fromkeys(recording.place(b.memory) for b in outputs if type(b) is Buffer)
        fresh, fixed = [p for p in shown if p.nbytes], [p for p in shown if p.memory is not None]
        at = {place: i for i, place in enumerate((*places, *fresh, *fixed))}
        shown_at = [(i, value) for i, value in enumerate(outputs) if type(value) is Buffer]
        self._shown, self._same = [i for i, _ in shown_at], [None if type(v) is Buffer else v for v in outputs]
        self._lain = [at[recording.place(value.memory)] for _, value in shown_at]
        self._windows = [*zip(*[value[1:5] for _, value in shown_at], strict=True)]
        told = [(i, value.offset if type(value) is Buffer else value) for i, value in enumerate(outputs)]
        self._told = [(i, number.slot) for i, number in told if isinstance(number, Number)]
        self._fixed, self._places = [place.memory for place in fixed], fresh
        self._slots = {place: Slot(place.nbytes) for place in (*places, *fresh, recording.fault[0])}
        alone = {p: first.sizes[p] for p, count in Counter(places).items() if count == 1 and p not in shown}
        self._sharing = Sharing(recording.noted, alone, first.given, fresh)
        over = self._sharing.over
        self._fed = [self._slots[place] for place in places]
        self._overs = [(at, over[place]) for at, place in enumerate(places) if place in over]
        self._is_over = [place in over for place in places]
        self._fresh, self._fault = [self._slots[place] for place in fresh], self._slots[recording.fault[0]]
        self._commands: dict[int, Repeated] = {}
        self._lists: dict[frozenset[int], list[Repeated]] = {}
        self._last: Arrangement | None = None
        self._where = list[int]()
        self._settings: list[tuple[Any, ...]] = []
        self._own, self._sizes = list[Block](), list[int]()
        self._marked: list[_Marked] = []
        self._is_bound = False

    def run(self, inputs: list[Any], memories: list[Any], handles: list[int]) -> list[Any]:
        """The outputs' values, from inputs with their memories and these handles. The device's lock is held."""
        device, (fault, time) = self._device, self._recording.fault
        if not self._is_bound:
            self._bind()
        values = self._count(inputs)
        device.faults.follow(inputs)
        inputs.clear()
        if fault.times:
            memory, values[time.slot] = device.faults.call()
            if memory.int_ptr != self._fault.handle:
                self._fault.lies_in(memory)
        found = self._arranged(memories, handles)
        memories += device.allocate(found.sizes) + device.allocate(self._sizes, for_run=True)
        if self._last is not found:  # to make room memory was given back to the driver, and nothing is bound any more
            for slot, at in zip(self._fresh, found.results, strict=True):
                slot.lies_in(memories[at])
            self._last, self._where = found, [slot.handle for slot in found.slots]
        self._lie(found.slots, memories, [*handles, *map(HANDLE, memories[len(handles) :])])
        for set_number, subject, i, slot in self._settings:
            set_number(subject, i, values[slot])
        device.commands.repeat(found.commands)
        results = [memories[at] for at in found.results]
        if device.commands.is_marked:
            self._say_when(results)
        return self._found([*memories[: len(handles)], *results, *self._fixed], values)

    def _arranged(self, memories: list[Any], handles: list[int]) -> "Arrangement":
        """That of the last time, unless inputs that may be written over lie elsewhere, or others have them, too."""
        counts = map(getrefcount, memories)
        asked = [*compress(handles, self._is_over)], [*compress(counts, self._is_over)], self._device.lendings
        if self._last is not None and self._last.asked == asked:
            return self._last
        self._last = None
        places, spared = dict[int, int](), set[int]()
        for (at, over), handle, count in zip(self._overs, *asked[:2], strict=True):
            fresh = self._fresh[over.fresh]
            may_be = fresh.handle == handle or fresh.may_be(memories[at])
            if may_be and count == ALONE and not is_lent(memories[at]):
                places[over.fresh] = at
                spared |= set() if over.spared is None else {over.spared}
                if fresh.handle != handle:
                    fresh.lies_in(memories[at])
        missing = [n for n in range(len(self._fresh)) if n not in places]
        places |= {n: at for at, n in enumerate(missing, len(handles))}
        new = [self._fresh[n] for n in missing]
        key = frozenset(spared)
        if key not in self._lists:  # each stays one list, which is known again
            self._lists[key] = [command for n, command in self._commands.items() if n not in spared]
        results = [places[n] for n in range(len(self._fresh))]
        slots = [*self._fed, *new, *self._own]
        self._last = Arrangement(asked, results, slots, [slot.nbytes for slot in new], self._lists[key])
        self._where = [slot.handle for slot in self._last.slots]
        return self._last

    def _lie(self, slots: list[Any], memories: list[Any], handles: list[int]) -> None:
        """Bind arguments to other memory, where it is not that of the last time."""
        if handles == self._where:
            return
        last, self._last = self._last, None  # in case that something comes in between
        for n in [n for n, (handle, before) in enumerate(zip(handles, self._where, strict=True)) if handle != before]:
            if slots[n].handle != handles[n]:
                slots[n].lies_in(memories[n])
        self._where, self._last = handles, last

    def _say_when(self, results: list[Any]) -> None:
        """Note when results are there: whoever reads them in another queue need not wait for all of this run."""
        for memory in results:
            memory.ready = None  # whatever was said of it when it was somebody else's
        for marked in self._marked:
            for i in marked.fresh:
                results[i].ready = marked.mark

    def _found(self, memories: list[Any], values: list[Any]) -> list[Any]:
        """The outputs' values in these memories and with these numbers."""
        fields = [memories[at] for at in self._lain], *self._windows, repeat(self._device.faults.mine().origin)
        found = self._same.copy()
        for i, buf in zip(self._shown, map(_made, zip(*fields, repeat(None))), strict=True):
            found[i] = buf
        for i, slot in self._told:
            found[i] = found[i]._replace(offset=values[slot]) if type(found[i]) is Buffer else values[slot]
        return found

    def forget(self) -> None:
        """Memory is given back to the driver: keep none alive."""
        self._last = None
        for slot in (*self._slots.values(), *self._own):
            slot.forget()

    def _count(self, inputs: list[Any]) -> list[Any]:
        """The values of all numbers."""
        values = self._recording.values.copy()
        for i, slot in self._numbers:
            values[slot] = inputs[i]
        for i, slot in self._begins:
            values[slot] = inputs[i].offset
        for call, takes, gives, n in self._recording.formulas:
            try:
                found = call(*taken(values, takes))
            except Exception as error:
                self._program.note(error, self._step(n))
                raise
            if gives is not None:
                values[gives] = found
        return values

    def _step(self, n: int) -> Step:
        return (*self._program.counts, *self._program.steps)[n]

    def _bind(self) -> None:
        """Bind what is the same at every run, and note where the rest is. Once."""
        commands, settings, uses = dict[int, Repeated](), list[tuple[Any, ...]](), defaultdict[Place, Uses](list)
        marked = self._placed_marks() if self._device.commands.is_marked else {}
        self._marked = [*marked.values()]
        for n, noted in enumerate(self._recording.noted):
            note = partial(self._program.note, step=self._step(noted.step))
            if n in marked:
                commands[-1 - n] = Repeated(marked[n].set, None, (), None, noted.command, note)
            if n in self._sharing.spared:
                continue
            args = tuple([a.memory if type(a) is Place else a for a in settled(noted.args)])
            enqueue, subject = noted.command.repeated(noted.work, noted.group, args)
            commands[n] = Repeated(enqueue, subject, noted.work, noted.group, noted.command, note)
            for i, arg in enumerate(noted.args):
                if isinstance(arg, Number):
                    settings.append((noted.command.set_number, subject, i, arg.slot))
                elif type(arg) is Place and arg.memory is None:
                    uses[self._sharing.home(arg)].append((subject, i))
        for place, slot in self._slots.items():
            slot.uses = uses.pop(place, [])
        self._own = blocks_of(slots_for(uses), self._device)
        if len(self._own) > 1:  # so the pool would hold the memory of the first run, in other pieces, besides
            self._device.give_back()
        self._sizes = [block.nbytes for block in self._own]
        self._commands, self._settings = commands, settings
        self._device.replays.add(self)
        self._is_bound = True

    def _placed_marks(self) -> dict[int, "_Marked"]:
        """Before which commands there are marks, and which outputs are there then: some bytes more at each."""
        found, waiting, nbytes, end = dict[int, _Marked](), list[int](), 0, len(self._recording.noted)
        done = [(self._sharing.home(place).times.bit_length(), i) for i, place in enumerate(self._places)]
        for (n, i), (following, _) in pairwise([*sorted(done), (end, 0)]):
            waiting, nbytes = [*waiting, i], nbytes + self._fresh[i].nbytes
            if n < following and nbytes >= APART:
                found[n], waiting, nbytes = _Marked(self._device.commands, waiting), [], 0
        return found


class _Marked:
    """A mark that is set again at every run.

    fresh  which outputs, of those in new memory, are there before it
    mark   that of the last run
    """

    def __init__(self, commands: Commands, fresh: list[int]) -> None:
        self._commands, self.fresh = commands, fresh
        self.mark: Mark | None = None

    def set(self) -> None:
        """Set it."""
        self.mark = self._commands.mark()


# ---- values ------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _without_peaks(buf: Buffer) -> Buffer:
    """Another run may bring an array of which nobody has told any."""
    return buf._replace(peaks=None) if buf.peaks is not None else buf


def _told(value: Any) -> Any:
    """With the offset, where it follows from where an input begins."""
    return settled(value) if type(value) is Buffer and type(value.offset) is Offset else value


def _begun(value: Any) -> set[int]:
    """The inputs that tell where these Buffers begin."""
    return {b.offset.of for b in _buffers(value) if type(b.offset) is Offset}


def _buffers(value: Any) -> list[Buffer]:
    """The Buffers in what may be one, or a tree of tuples."""
    if type(value) is Buffer:
        return [value]
    return [b for member in value for b in _buffers(member)] if type(value) is tuple else []


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree with other leaves."""
    return tuple([_each(member, change) for member in value]) if type(value) is tuple else change(value)


def _listed() -> int:
    return max(getrefcount(value) for value, _ in zip([object()], [None], strict=True))


_made = partial(tuple.__new__, Buffer)  # as Buffer(*fields), in a fraction of the time
HANDLE, MEMORY, STRIDES, OFFSET = map(attrgetter, ("int_ptr", "memory", "strides", "offset"))
ALONE = next(map(getrefcount, [object()]))  # what it says of what one list holds that is gone through so
LISTED = _listed()  # what getrefcount says in a loop of what only the list that is gone through holds
