"""Program: a captured function as a flat list of steps over slots. Defines no op and no backend.

A slot is the number of a value: an argument or result of a kernel, which is a buffer, what a Fused kernel saves, a Spec
or a Python number. A scalar is a Python number that differs from run to run: a scalar input, or computed from some by a
scalar step. Constants have slots too, so that every step runs the same way:
values[outputs] = call(*(values[slot] for slot in inputs), **params).

Running programs on a backend
-----------------------------
Backend.replay is replay(program, plain) -> run. It is called once per program, after the capture. Both `plain` and
`run` take the list of the inputs' values, in the order of program.inputs, and return the list of the outputs' values.
Several threads may call them at once. `plain` calls the steps in order; `run` may fall back to it.

- An array input has the Spec in program.specs. Its strides, its offset and the size of its memory may differ between
  runs, and it may share memory with another input.
- The caller owns the outputs: each is memory allocated by this run, or an input or a constant, or a view of one.
- `run` may empty the list of inputs, and must not keep an input alive after its last use: callers that donate an array
  rely on its memory being freed.
- The list is an Inputs. Its `kept` are inputs in a row that did not change since an earlier call, such as the weights
  of a model. `run` may ignore that, or keep in `notes` what it computes from them.
- `run` raises the error of a step unchanged, after program.note(error, step).

Backend.fusion describes which steps the backend can fuse (see Fusion). capture/fuse.py groups them before replay.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from operator import is_
from typing import Any, NamedTuple

from polyarr.core.spec import Spec

Run = Callable[[list[Any]], list[Any]]


class Kept:
    """Inputs in a row that are the same at several calls of compiled functions, while the tree that holds them lives.

    Attributes:
        leaves: The arrays.
        values: Their buffers, in this order; empty after one of the arrays got another, see `release`.
        ids: The ids of the arrays.
        notes: Notes of backends about them, by the object that made them, such as the function that runs a program,
            while that lives.
    """

    def __init__(self, leaves: list[Any], values: list[Any]) -> None:
        self.leaves, self.values, self.ids = leaves, values, frozenset(map(id, leaves))
        self.notes: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()
        KEPT.append(weakref.ref(self, KEPT.remove))


KEPT = list[weakref.ref[Kept]]()  # all that live


def kept_of(leaves: list[Any], values: list[Any]) -> Kept:
    """Return the Kept of arrays with these values: the one that another function has, or a new one."""
    for ref in KEPT.copy():
        kept = ref()
        if kept is not None and [*map(id, kept.leaves)] == [*map(id, leaves)]:
            if len(kept.values) == len(values) and all(map(is_, kept.values, values)):
                return kept
    return Kept(leaves, values)


def release(arrays: Iterable[Any]) -> None:
    """Hold the buffers of arrays no longer: they get others, or are donated, so their memory can be freed or reused."""
    ids = [*map(id, arrays)]
    for ref in KEPT.copy():  # it changes as soon as one dies
        kept = ref()
        if kept is not None and not kept.ids.isdisjoint(ids):
            kept.values, kept.notes = [], weakref.WeakKeyDictionary()


class Inputs(list[Any]):
    """The inputs of a call, in order: arrays and numbers of the caller's, or their values.

    Attributes:
        kept: Those that are known from an earlier call; None if there are none.
        start: Index of the first of them.
    """

    kept: Kept | None = None
    start = 0

    def keep(self, kept: Kept, values: list[Any]) -> None:
        """Append arrays or values that are known from an earlier call, once."""
        self.kept, self.start = kept, len(self)
        self += values

    @property
    def notes(self) -> MutableMapping[Any, Any]:
        """Notes of backends about the inputs that are kept."""
        return {} if self.kept is None else self.kept.notes

    def others(self) -> list[Any]:
        """Return the inputs that are not among those that are kept."""
        return self if self.kept is None else [*self[: self.start], *self[self.start + len(self.kept.leaves) :]]


class Step(NamedTuple):
    """One call of a kernel; a scalar step is one of a function of Python numbers.

    Attributes:
        op: The Op. None for a scalar step; the Program of the fused steps for a group.
        part: Function of the op that is called: "kernel"; "forward" or "backward" of a Fused kernel; "number" for a
            scalar step; "group" for the function that Fusion.make made of several steps, with several results.
        call: The function to call; pure. That of a scalar step without output is called for its errors only.
        inputs: Slot of each positional argument, or a tuple of slots, nested as the argument is. The first argument is
            a kernel's `out`; those of a "backward" are g and saved.
        params: Keyword parameters, all constant; including `wanted` of a "backward".
        outputs: Slot of the result, or a tuple of slots, nested as the result is; None for a result that is not used
            and may be anything. Of a "forward" it is (result, saved).
        line: Line of the user's code, "file:line"; of a gradient, the line of the call that it is the gradient of.
        module: Dotted path of the part of a model that made the call, such as "blocks.0.att"; "" if there is none.
        is_gradient: Whether the step belongs to a backward pass.
    """

    op: Any
    part: str
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    params: dict[str, Any]
    outputs: Any
    line: str
    module: str = ""
    is_gradient: bool = False

    @property
    def name(self) -> str:
        """Name of the step in errors."""
        if self.op is None:
            return getattr(self.call, "__name__", "a scalar step")
        return f"{self.op.name} backward" if self.part == "backward" else self.op.name


class Program(NamedTuple):
    """A captured function without the trees of its arguments and its result.

    Attributes:
        name: Name of the function.
        scalar_steps: The scalar steps. Their inputs are constants and scalars only, and they run first.
        steps: All other steps, in an order in which they can run.
        size: Number of slots; they are numbered from 0.
        constants: Slot -> value known at capture: Specs, buffers, Python numbers, None.
        inputs: Slots of the inputs of each run: buffers and Python numbers.
        outputs: Slots of the results. One may occur twice, or be an input or a constant.
        specs: Slot -> Spec, for arrays. Values saved by a Fused kernel have none.
        scalars: Slot -> int or float, for scalars; all other Python numbers are constants. An int may have any size;
            the key of random numbers has up to 64 bits.
        donated: Slots of the inputs that the caller gives up. A run may write over their memory if nothing else refers
            to it, as a view may.
        zeros: Slots of the constants whose elements are all 0, as far as it is known.
    """

    name: str
    scalar_steps: tuple[Step, ...]
    steps: tuple[Step, ...]
    size: int
    constants: dict[int, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    specs: dict[int, Spec]
    scalars: dict[int, type]
    donated: frozenset[int] = frozenset()
    zeros: frozenset[int] = frozenset()

    def __str__(self) -> str:
        found = ((self.scalar_steps + self.steps, "step"), (self.inputs, "input"), (self.outputs, "output"))
        head = ", ".join(f"{len(members)} {what}{'s' * (len(members) != 1)}" for members, what in found)
        inputs, outputs = ", ".join(map(self._value, self.inputs)), ", ".join(map(self._value, self.outputs))
        lines = [f"{self.name}: {head}", f"  inputs: {inputs}", *map(self._line, self.scalar_steps + self.steps)]
        return "\n".join([*lines, f"  outputs: {outputs}"])

    def _line(self, step: Step) -> str:
        outputs = ", ".join(map(self._value, flat(step.outputs)))
        inputs = ", ".join(self._value(v, brief=True) for v in flat(step.inputs) if not self._is_spec(v))
        params = "".join(f", {name}={value}" for name, value in step.params.items())
        return f"  {outputs or 'nothing'} = {step.name}({inputs}{params})  # {step.line}"

    def _is_spec(self, v: int) -> bool:
        known = self.constants.get(v)
        return type(known[0] if type(known) is tuple and known else known) is Spec

    def _value(self, v: int, brief: bool = False) -> str:
        if v in self.constants:
            return str(self.specs.get(v, self.constants[v]))
        kind = self.scalars[v].__name__ if v in self.scalars else self.specs.get(v)
        return f"%{v}" if brief or kind is None else f"%{v} {kind}"

    def spec(self, v: int) -> Spec | None:
        """Return the Spec of a value that is an array or a Python number; None for other values."""
        if v in self.specs:
            return self.specs[v]
        kind = self.scalars.get(v, type(self.constants.get(v)))
        return Spec((), kind) if kind in (bool, int, float) else None

    def note(self, error: BaseException, step: Step) -> None:
        """Add a note to an error that names the step and the function that raised it."""
        n = (*self.scalar_steps, *self.steps).index(step)
        error.add_note(f"in step {n}, {step.name}, of the compiled {self.name}; captured at {step.line}")


class Kind(NamedTuple):
    """Fusion class of a step: which steps can be in one group.

    Attributes:
        shape: Iteration shape, equal for all steps of a group: the shape of the result or, for a reduction, of the
            input.
        calls: Tag that all steps of a group with a tag must share. A step with "" can be in a group with any tag.
        reduced: Number of trailing axes that a reduction reduces, kept with length 1; 0 if the step does not reduce.
    """

    shape: tuple[int, ...]
    calls: str = ""
    reduced: int = 0


class Fusion(NamedTuple):
    """Fusion of several steps with one iteration shape and one result each into one kernel.

    Attributes:
        kind: (step, Specs of its inputs, Spec of its result) -> Kind. None: the step is not fused.
        make: (group as a Program, its Kind) -> function (Specs of the outputs, *inputs) -> tuple of outputs. The values
            of the group have the iteration shape or broadcast to it; its outputs have that shape or, in a group with
            reductions, one element per row. The results are bitwise those of the single steps. Groups of a program that
            differ in slots only share one function.
        most: Largest number of arrays that a group reads and writes in all.
        concat: Whether a group without reductions may end with ops.concat, along the last axis, of values of its shape
            that it computes; the result is then one of its outputs.
    """

    kind: Callable[[Step, tuple[Spec, ...], Spec], Kind | None]
    make: Callable[[Program, Kind], Callable[..., tuple[Any, ...]]]
    most: int
    concat: bool = False

    def kind_of(self, step: Step, spec_of: Callable[[int], Any]) -> Kind | None:
        """Return the kind of a step, given the Spec of each value; None if it cannot be fused."""
        if step.part != "kernel" or type(step.outputs) is not int:
            return None
        specs = [spec_of(v) if type(v) is int else None for v in step.inputs[1:]]
        return None if None in specs else self.kind(step, tuple(specs), spec_of(step.outputs))  # type: ignore[arg-type]


def flat(slots: Any) -> list[int]:
    """Return the slots in a step's inputs or outputs."""
    if type(slots) is not tuple:
        return [] if slots is None else [slots]
    found: list[int] = []
    for slot in slots:
        if type(slot) is tuple:
            found += flat(slot)
        elif slot is not None:
            found.append(slot)
    return found


def renamed(slots: Any, names: dict[int, int]) -> Any:
    """Return a step's inputs or outputs with other slots."""
    if type(slots) is not tuple:
        return names.get(slots, slots)
    return tuple([renamed(slot, names) if type(slot) is tuple else names.get(slot, slot) for slot in slots])


def lookup(values: Any, slots: Any) -> Any:
    """Return the argument for an entry of a step's inputs, looked up in `values`, a list or dict."""
    return tuple([lookup(values, slot) for slot in slots]) if type(slots) is tuple else values[slots]


def assigned(slots: Any, result: Any) -> Iterator[tuple[int, Any]]:
    """Yield (slot, value) for the result of a step; `slots` are its outputs."""
    if type(slots) is tuple:
        for slot, value in zip(slots, result, strict=True):
            yield from assigned(slot, value)
    elif slots is not None:
        yield slots, result


def last_uses(program: Program) -> list[tuple[int, ...]]:
    """Return, for each of program.steps, the slots whose last use it is: the memory plan.

    Outputs and constants are never freed. An input that no step reads occurs in no entry.
    """
    kept, seen = {*program.outputs, *program.constants}, set[int]()
    plan = []
    for step in reversed(program.steps):
        here = dict.fromkeys([*flat(step.inputs), *flat(step.outputs)])
        plan.append(tuple(v for v in here if v not in seen and v not in kept))
        seen.update(here)
    return plan[::-1]
