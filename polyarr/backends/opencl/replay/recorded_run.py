"""The later runs of a recorded program: its commands are enqueued again, with the memory and scalars of each run."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress, count, pairwise, repeat
from operator import attrgetter, ne
from sys import getrefcount
from typing import Any, NamedTuple, cast

from polyarr.backends.opencl.replay.first_run import FirstRun
from polyarr.backends.opencl.replay.memory_plan import Block, MemorySharing, Region, Uses, blocks_of, regions_for
from polyarr.backends.opencl.replay.recording import MemoryRef, Recording, settled
from polyarr.backends.opencl.runtime.commands import BoundCommand, CommandList, Commands, Kernel, Mark
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.number import PACKAGE, Number
from polyarr.core.program import Program, Step, lookup, renamed

MARK_BYTES = 8 << 20  # bytes of outputs between two queue marks
MIN_TIMED = 8  # kernels that note faults, from which on they read the time of the run from the thread's record
MAX_NAMED = 4  # ops that may have noted a fault, in its error
UNSHARED = next(map(getrefcount, [object()]))  # reference count of an object that only one list holds, in map
HANDLE = attrgetter("int_ptr")
_made = partial(tuple.__new__, Buffer)  # as Buffer(*fields), but several times as fast


class Arrangement(NamedTuple):
    """The memory plan of a run, which depends on the inputs that may be overwritten.

    Attributes:
        key: What decided that: handles, whether only the run refers to them, and the number of lendings to other
            libraries.
        results: Where each output of `fresh` lies, counted through inputs and allocations.
        regions: The regions of these, in that order.
        sizes: Bytes of the allocated results.
        commands: The commands to enqueue.
    """

    key: tuple[list[int], list[bool], int]
    results: list[int]
    regions: list[Any]
    sizes: list[int]
    commands: CommandList


class RecordedRun:
    """A recorded program: all later runs with the same layout.

    Attributes:
        scalar_inputs: Index and slot of each scalar input.
        offset_slots: Index and slot of the offset of each input that does not begin where its memory begins.
        arrays: Indices of the outputs that are arrays; `array_memory` and `views` say where each lies, and how.
        constants: By output: its value if it is a constant.
        scalars: Index and slot of the outputs that are scalars, or whose offset is one.
        commands: The recorded commands, by number.
        lists: The commands to enqueue, by those that are left out.
        settings: Setter and slot of each scalar argument.
        input_regions: The regions of inputs.
        overwrites: The inputs that may be overwritten, and by what.
        fresh: The regions of outputs, in new memory or in an input's.
        blocks, sizes: Memory needed only during a run, and its bytes.
        fixed: Constant memory, as far as outputs lie in it.
        last, where: The last run's arrangement and handles; what has not changed is bound already.
    """

    def __init__(
        self, device: Device, program: Program, first: FirstRun, recording: Recording, outputs: list[Any]
    ) -> None:
        self._device, self._program, self._recording = device, program, recording
        self._offset_slots = first.offset_slots
        self._scalar_steps, self._same = unique_scalar_steps(recording.scalar_steps, recording.values)
        self._scalar_inputs = [(i, program.inputs[i]) for i, ref in enumerate(first.input_refs) if ref is None]
        inputs = [ref for ref in first.input_refs if ref is not None]
        arrays = [(i, value) for i, value in enumerate(outputs) if type(value) is Buffer]
        array_refs = [recording.ref(buf.memory) for _, buf in arrays]
        fresh = [ref for ref in dict.fromkeys(array_refs) if ref.nbytes]
        fixed = [ref for ref in dict.fromkeys(array_refs) if ref.memory is not None]
        index = {ref: i for i, ref in enumerate((*inputs, *fresh, *fixed))}
        self._arrays, self._array_memory = [i for i, _ in arrays], [index[ref] for ref in array_refs]
        self._views = [*zip(*[buf[1:5] for _, buf in arrays], strict=True)]
        self._constants: list[Any] = [None if type(value) is Buffer else value for value in outputs]
        scalars = [(i, value.offset if type(value) is Buffer else value) for i, value in enumerate(outputs)]
        self._scalars = [(i, self._slot(number)) for i, number in scalars if isinstance(number, Number)]
        self._fixed, self._fresh_refs = [ref.memory for ref in fixed], fresh
        self._regions = {ref: Region(ref.nbytes) for ref in (*inputs, *fresh, recording.fault[0])}
        given = Counter(inputs)
        donated = {ref: size for ref, size in first.donated.items() if given[ref] == 1 and ref not in array_refs}
        self._sharing = MemorySharing(recording.recorded, donated, fresh)
        over = self._sharing.over
        self._input_regions = [self._regions[ref] for ref in inputs]
        self._overwrites = [(i, over[ref]) for i, ref in enumerate(inputs) if ref in over]
        self._reusable = [i for i, _ in self._overwrites]
        self._fresh, self._fault = [self._regions[ref] for ref in fresh], self._regions[recording.fault[0]]
        self._may_fault = _named([r.step for r in recording.recorded if any(a is recording.fault[0] for a in r.args)])
        self._commands: dict[int, BoundCommand] = {}
        self._lists: dict[frozenset[int], CommandList] = {}
        self._last: Arrangement | None = None
        self._where = list[int]()
        self._settings: list[tuple[Callable[[Any], None], int]] = []
        self._blocks, self._sizes = list[Block](), list[int]()
        self._marked: list[_Marked] = []
        self._is_bound = False

    def run(self, inputs: list[Any], memories: list[Any], handles: list[int]) -> list[Any]:
        """Return the outputs' values. The caller holds the device's lock."""
        device, (fault, time) = self._device, self._recording.fault
        if not self._is_bound:
            self._bind()
        values = self._evaluate(inputs)
        inputs.clear()
        if fault.times:
            memory, values[time.slot] = device.faults.call(*self._may_fault)
            if memory.int_ptr != self._fault.handle:
                self._fault.bind(memory)
        found = self._arranged(memories, handles)
        memories += device.allocate(found.sizes) + device.allocate(self._sizes)
        if self._last is not found:  # memory was given back to the driver to free space, and nothing is bound any more
            for region, at in zip(self._fresh, found.results, strict=True):
                region.bind(memories[at])
            self._last, self._where = found, [region.handle for region in found.regions]
        self._rebind(found.regions, memories, [*handles, *map(HANDLE, memories[len(handles) :])])
        for set_number, slot in self._settings:
            set_number(values[slot])
        device.commands.repeat(found.commands)
        results = [memories[at] for at in found.results]
        if device.commands.is_marked:
            self._note_ready(results)
        return self._outputs([*memories[: len(handles)], *results, *self._fixed], values)

    def _arranged(self, memories: list[Any], handles: list[int]) -> Arrangement:
        """Return the last arrangement, unless inputs that may be overwritten moved, or are referred to elsewhere."""
        reusable = self._reusable
        key = [handles[i] for i in reusable], [*are_unshared(memories, reusable)], self._device.lendings
        if self._last is not None and self._last.key == key:
            return self._last
        self._last = None
        at, skipped = dict[int, int](), set[int]()
        for (i, over), handle, is_unshared in zip(self._overwrites, *key[:2], strict=True):
            fresh = self._fresh[over.fresh]
            is_suitable = fresh.handle == handle or fresh.is_suitable(memories[i])
            if is_suitable and is_unshared and not self._device.driver.is_lent(memories[i]):
                at[over.fresh] = i
                skipped |= set() if over.skipped is None else {over.skipped}
                if fresh.handle != handle:
                    fresh.bind(memories[i])
        missing = [n for n in range(len(self._fresh)) if n not in at]
        at |= {n: i for i, n in enumerate(missing, len(handles))}
        new, left_out = [self._fresh[n] for n in missing], frozenset(skipped)
        if left_out not in self._lists:
            kept = (command for n, command in self._commands.items() if n not in skipped)
            self._lists[left_out] = CommandList(kept)
        results = [at[n] for n in range(len(self._fresh))]
        regions: list[Region | Block] = [*self._input_regions, *new, *self._blocks]
        self._last = Arrangement(key, results, regions, [region.nbytes for region in new], self._lists[left_out])
        self._where = [region.handle for region in regions]
        return self._last

    def _rebind(self, regions: list[Any], memories: list[Any], handles: list[int]) -> None:
        """Bind arguments to memory that differs from the last run's."""
        if handles == self._where:
            return
        last, self._last = self._last, None  # in case of an exception in between
        for n in [*compress(count(), map(ne, handles, self._where))]:
            if regions[n].handle != handles[n]:
                regions[n].bind(memories[n])
        self._where, self._last = handles, last

    def _note_ready(self, results: list[Any]) -> None:
        """Note when results are ready, so that another queue need not wait for the whole run."""
        for memory in results:
            memory.ready = None  # it may still refer to an earlier use of the memory
        for marked in self._marked:
            for i in marked.fresh:
                results[i].ready = marked.mark

    def _outputs(self, memories: list[Any], values: list[Any]) -> list[Any]:
        """Return the outputs' values in these memories and with these scalars."""
        fields = [memories[at] for at in self._array_memory], *self._views, repeat(self._device.faults.mine().origin)
        found = self._constants.copy()
        for i, buf in zip(self._arrays, map(_made, zip(*fields, strict=False)), strict=True):
            found[i] = buf
        for i, slot in self._scalars:
            found[i] = found[i]._replace(offset=values[slot]) if type(found[i]) is Buffer else values[slot]
        return found

    def forget(self) -> None:
        """Keep no memory alive, because the device gives it back to the driver."""
        self._last = None
        regions: list[Region | Block] = [*self._regions.values(), *self._blocks]
        for region in regions:
            region.forget()

    def _evaluate(self, inputs: list[Any]) -> list[Any]:
        """Return the values of all scalars, by slot."""
        values = self._recording.values.copy()
        for i, slot in self._scalar_inputs:
            values[slot] = inputs[i]
        for i, slot in self._offset_slots:
            values[slot] = inputs[i].offset
        for scalar_step, step in self._scalar_steps:
            try:
                found = scalar_step.call(*lookup(values, scalar_step.inputs), **scalar_step.params)
            except Exception as error:
                self._program.note(error, step)
                raise
            if scalar_step.outputs is not None:
                values[scalar_step.outputs] = found
        return values

    def _slot(self, number: Number) -> int:
        """Return the slot of a scalar's value."""
        return self._same.get(number.slot, number.slot)

    def _bind(self) -> None:
        """Bind constant arguments, and note where the others are. Runs once."""
        commands, settings = dict[int, BoundCommand](), list[tuple[Callable[[Any], None], int]]()
        uses = defaultdict[MemoryRef, Uses](list)
        fault, time = self._recording.fault
        is_timed = sum(arg is time for each in self._recording.recorded for arg in each.args) >= MIN_TIMED
        if is_timed:
            kernel, step = self._device.faults.timer(), self._recording.recorded[0].step
            enqueue, subject = kernel.repeated((1,), (1,), (None, 0))
            note, of = partial(self._program.note, step=step), (self._program, step)
            commands[-1 - len(self._recording.recorded)] = BoundCommand(enqueue, subject, (1,), (1,), kernel, note, of)
            settings.append((kernel.setter(subject, 1), self._slot(time)))
            uses[fault].append((subject, 0))
        marked = self._placed_marks() if self._device.commands.is_marked else {}
        self._marked = [*marked.values()]
        for n, recorded in enumerate(self._recording.recorded):
            note = partial(self._program.note, step=recorded.step)
            if n in marked:
                commands[-1 - n] = BoundCommand(marked[n].set, None, None, None, recorded.command, note)
            if n in self._sharing.skipped:
                continue
            args = tuple([a.memory if type(a) is MemoryRef else a for a in settled(recorded.args)])
            enqueue, subject = recorded.command.repeated(recorded.work, recorded.group, args)
            of = self._program, recorded.step
            commands[n] = BoundCommand(enqueue, subject, recorded.work, recorded.group, recorded.command, note, of)
            for i, arg in enumerate(recorded.args):
                if isinstance(arg, Number) and not (is_timed and arg is time):
                    settings.append((cast("Kernel", recorded.command).setter(subject, i), self._slot(arg)))
                elif type(arg) is MemoryRef and arg.memory is None:
                    uses[self._sharing.home(arg)].append((subject, i))
        for ref, region in self._regions.items():
            region.uses = uses.pop(ref, [])
        self._blocks = blocks_of(regions_for(uses), self._device)
        if len(self._blocks) > 1:  # otherwise the pool would also hold the first run's memory, in other sizes
            self._device.give_back()
        self._sizes = [block.nbytes for block in self._blocks]
        self._commands, self._settings = commands, settings
        self._device.replays.add(self)
        self._is_bound = True

    def _placed_marks(self) -> dict[int, "_Marked"]:
        """Return, by command, the queue marks before it and the outputs that are ready there."""
        found, waiting, nbytes, end = dict[int, _Marked](), list[int](), 0, len(self._recording.recorded)
        done = [(self._sharing.home(ref).times.bit_length(), i) for i, ref in enumerate(self._fresh_refs)]
        for (n, i), (following, _) in pairwise([*sorted(done), (end, 0)]):
            waiting, nbytes = [*waiting, i], nbytes + self._fresh[i].nbytes
            if n < following and nbytes >= MARK_BYTES:
                found[n], waiting, nbytes = _Marked(self._device.commands, waiting), [], 0
        return found


def are_unshared(memories: list[Any], which: list[int]) -> Iterator[bool]:
    """Yield, for some memories of a list, whether nothing but the list refers to them.

    This is CPython's reference count, which also decides when memory returns to the pool: a view refers to the memory
    itself. PyOpenCL's memory takes no weak references, and an owner object for each would cost every op.
    """
    return map(UNSHARED.__eq__, map(getrefcount, map(memories.__getitem__, which)))


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


def unique_scalar_steps(
    steps: list[tuple[Step, Step]], constants: list[Any]
) -> tuple[list[tuple[Step, Step]], dict[int, int]]:
    """Return the scalar steps without those that compute what an earlier one does, and by slot that of the same value.

    Layers of a model compute the same offsets and sizes from a position.

    Args:
        steps: Scalar steps, as a Recording has them.
        constants: By slot, the value of a constant, else None.
    """
    kept, same, seen = list[tuple[Step, Step]](), dict[int, int](), dict[Any, int]()
    for scalar_step, step in steps:
        scalar_step = scalar_step._replace(inputs=renamed(scalar_step.inputs, same))
        key = _key_of(scalar_step, constants)
        if key in seen and type(scalar_step.outputs) is int:
            same[scalar_step.outputs] = seen[key]
            continue
        if key is not None and type(scalar_step.outputs) is int:
            seen[key] = scalar_step.outputs
        kept.append((scalar_step, step))
    return kept, same


def _named(steps: list[Step]) -> tuple[str, str]:
    """Return the ops of steps and their lines, for errors; inside a layer of polyarr the layer in place of the line."""
    lines = [f"layer {s.module}" if s.module and s.line.startswith(PACKAGE) else s.line for s in steps]
    both = [*dict.fromkeys(step.op.name for step in steps)], [*dict.fromkeys(lines)]
    op, line = (" or ".join([*names[:MAX_NAMED], *["another"] * (len(names) > MAX_NAMED)]) for names in both)
    return op, line


def _key_of(step: Step, constants: list[Any]) -> Any:
    """Return a key that equal scalar steps share, constants by value; None if one cannot be made."""

    def key(slot: Any) -> Any:
        if type(slot) is tuple:
            return tuple(map(key, slot))
        value = constants[slot]
        if isinstance(value, (float, complex, tuple)):  # 0.0 and -0.0 are equal
            value = repr(value)
        return slot if value is None else (type(constants[slot]), value)

    found = step.call, key(step.inputs), tuple(step.params.items())
    try:
        hash(found)
    except TypeError:
        return None
    return found
