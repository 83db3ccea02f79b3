"""What a captured function is: a flat list of steps over numbered values. No op and no backend is mentioned here.

A value is anything that a kernel takes or gives: a buffer, what a pair saves, a Spec, a Python number. Constants are
values too, so that every step runs the same way: values[gives] = call(*(values[t] for t in takes), **params).

How a backend runs programs in its own way
------------------------------------------
Backend.replay is replay(program, plain) -> run, called once for each program, when it was captured. Both `plain` and
`run` take the list of the inputs' values, in the order of program.inputs, and give the list of the outputs' values;
several threads may call them at once. `plain` calls the steps in order, and serves wherever `run` cannot do better.

- An input that is an array may come with other strides, another offset or another size of memory behind it than last
  time, and may share memory with another input; its Spec is that of program.specs.
- What an output is belongs to the caller, for as long as he likes: it is new memory at every run, or an input or a
  constant, or a view of one.
- The list of inputs may be emptied, and nothing else may keep what was in it once it is not needed any more: a caller
  who gave an array away counts on its memory.
- An error of a step is raised as it is, with program.note(error, step) called for it before.

Backend.fusion says which steps it can make one command of: see Fusion. capture/fuse.py then groups them, before replay.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from polyarr.core.spec import Spec

Run = Callable[[list[Any]], list[Any]]


class Step(NamedTuple):
    """One call of a kernel, or of a function of Python numbers.

    op      the Op; None for a function of numbers; of a group of steps the Program that they are
    part    which kernel of it: "kernel", or "forward" or "backward" of a pair; "number" for a function of numbers;
            "group" for what Fusion.make made of several, which takes and gives what an op with several results does
    call    what is called; a pure function, of which None as the result's number means that only its errors count
    takes   for each positional argument the number of a value, or a tuple of such, nested as the argument is. The first
            is a kernel's `out` or, of a "backward", its g and saved
    params  the keyword parameters, constants all of them; with `wanted` of a "backward"
    gives   the number of the result, or a tuple of such, nested as the result is; None for what nobody looks at: it may
            be anything. Of a "forward" it is (result, saved)
    place   the user's line, file:line
    """

    op: Any
    part: str
    call: Callable[..., Any]
    takes: tuple[Any, ...]
    params: dict[str, Any]
    gives: Any
    place: str

    @property
    def name(self) -> str:
        """What an error calls it."""
        if self.op is None:
            return getattr(self.call, "__name__", "a function of numbers")
        return f"{self.op.name} backward" if self.part == "backward" else self.op.name


class Program(NamedTuple):
    """A captured function without the trees around it.

    name       of the function
    counts     the steps that are functions of Python numbers; they take constants and numbers only, and come first
    steps      all others, in an order in which they can run
    size       how many values there are; they are numbered from 0
    constants  what is known beforehand, by value: Specs, buffers, Python numbers, None
    inputs     the values that every run brings: buffers and Python numbers
    outputs    the values that a run gives; one may be there twice, or be an input or a constant
    specs      of the values that are arrays; what a pair saves has none
    numbers    int or float, for the values that are Python numbers and differ from run to run: every other value that
               is a number is a constant. An int may have any size; the key of random numbers has up to 64 bits
    """

    name: str
    counts: tuple[Step, ...]
    steps: tuple[Step, ...]
    size: int
    constants: dict[int, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    specs: dict[int, Spec]
    numbers: dict[int, type]

    def __str__(self) -> str:
        found = ((self.counts + self.steps, "step"), (self.inputs, "input"), (self.outputs, "output"))
        head = ", ".join(f"{len(members)} {what}{'s' * (len(members) != 1)}" for members, what in found)
        takes, gives = ", ".join(map(self._value, self.inputs)), ", ".join(map(self._value, self.outputs))
        lines = [f"{self.name}: {head}", f"  takes {takes}", *map(self._line, self.counts + self.steps)]
        return "\n".join([*lines, f"  gives {gives}"])

    def _line(self, step: Step) -> str:
        gives = ", ".join(map(self._value, flat(step.gives)))
        takes = ", ".join(self._value(v, brief=True) for v in flat(step.takes) if not self._is_spec(v))
        params = "".join(f", {name}={value}" for name, value in step.params.items())
        return f"  {gives or 'nothing'} = {step.name}({takes}{params})  # {step.place}"

    def _is_spec(self, v: int) -> bool:
        known = self.constants.get(v)
        return type(known[0] if type(known) is tuple and known else known) is Spec

    def _value(self, v: int, brief: bool = False) -> str:
        if v in self.constants:
            return str(self.specs.get(v, self.constants[v]))
        kind = self.numbers[v].__name__ if v in self.numbers else self.specs.get(v)
        return f"%{v}" if brief or kind is None else f"%{v} {kind}"

    def spec(self, v: int) -> Spec | None:
        """The Spec of a value that is an array or a Python number; None for others."""
        if v in self.specs:
            return self.specs[v]
        kind = self.numbers.get(v, type(self.constants.get(v)))
        return Spec((), kind) if kind in (bool, int, float) else None

    def note(self, error: BaseException, step: Step) -> None:
        """Say on an error which step of which function it comes from."""
        n = (*self.counts, *self.steps).index(step)
        error.add_note(f"in step {n}, {step.name}, of the compiled {self.name}; captured at {step.place}")


class Kind(NamedTuple):
    """Which steps may be in one group.

    shape    of the elements that a step goes through, which all steps of a group share: its result's or, of a step that
             reduces, its input's
    calls    something that the steps of a group have in common; with "" a step may be with any
    reduced  of a step that reduces how many axes, the last ones, which the result keeps with one element each; else 0
    """

    shape: tuple[int, ...]
    calls: str = ""
    reduced: int = 0


class Fusion(NamedTuple):
    """How a backend makes one command of several steps that go through the same elements and give one array each.

    kind  (step, its inputs' Specs, its result's) -> None: it stays alone
    make  (group, its kind) -> what runs it: (Specs of the outputs, *inputs) -> a tuple of the outputs. A group is a
          Program. Its values have the shape that the group goes through, or one that is broadcast to it; its outputs
          have that shape, or are results of what reduces. Bits are those of the steps
    most  how many arrays a group may take and give
    """

    kind: Callable[[Step, tuple[Spec, ...], Spec], Kind | None]
    make: Callable[[Program, Kind], Callable[..., tuple[Any, ...]]]
    most: int


def flat(values: Any) -> Iterator[int]:
    """The numbers in a step's takes or gives."""
    if type(values) is tuple:
        for member in values:
            yield from flat(member)
    elif values is not None:
        yield values


def taken(values: Any, takes: Any) -> Any:
    """What stands in values, a list or dict, for a member of a step's takes."""
    return tuple([taken(values, t) for t in takes]) if type(takes) is tuple else values[takes]


def given(gives: Any, found: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) for what a step gave."""
    if type(gives) is tuple:
        for g, f in zip(gives, found, strict=True):
            yield from given(g, f)
    elif gives is not None:
        yield gives, found


def last_uses(program: Program) -> list[tuple[int, ...]]:
    """For each of program.steps the values that nobody needs after it: the plan of memory.

    Outputs and constants are not among them. An input that no step takes is with none.
    """
    kept, seen = {*program.outputs, *program.constants}, set[int]()
    plan = []
    for step in reversed(program.steps):
        here = dict.fromkeys([*flat(step.takes), *flat(step.gives)])
        plan.append(tuple(v for v in here if v not in seen and v not in kept))
        seen.update(here)
    return plan[::-1]
