"""Fusion: group steps with one iteration shape, so that the backend runs each group as one kernel.

A group grows along its producers and may have several results. Then groups that read the same array are merged, unless
a step that cannot be fused lies between them, as that would keep values in memory for longer. Two groups are merged
only if neither depends on the other through a third group. Steps that may report an invalid index stay in order, as if
each depended on the previous.

A long program is fused in stretches: what is known of each group's dependencies grows with the square of the steps.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from polyarr.capture.broadcasts import without_broadcasts
from polyarr.capture.pieces import equal_pieces
from polyarr.core.program import Fusion, Kind, Program, Step, flat, renamed
from polyarr.core.spec import Spec

MAX_STEPS = 64  # per group; with more, values would spill out of registers
MAX_STRETCH = 4096  # steps among which groups are sought; a training step of GPT-2 small has 600


def fused(program: Program, fusion: Fusion) -> Program:
    """Return the program with each group of steps as one step."""
    program = without_broadcasts(program, fusion)
    stretches = [program.steps[i : i + MAX_STRETCH] for i in range(0, len(program.steps), MAX_STRETCH)]
    needed, found = [set(program.outputs)], program
    for stretch in reversed(stretches[1:]):
        needed.append(needed[-1].union(v for step in stretch for v in flat(step.inputs)))
    steps: list[Step] = []
    for stretch in stretches:
        found = _fused_stretch(found._replace(steps=stretch, outputs=tuple(needed.pop())), fusion)
        steps += found.steps
    return found._replace(steps=tuple(steps), outputs=program.outputs)


def _fused_stretch(program: Program, fusion: Fusion) -> Program:
    groups, count = Groups(program, fusion), 0
    needs = [(groups.maker[v], i) for i, s in enumerate(program.steps) for v in flat(s.inputs) if v in groups.maker]
    fusible = [(one, other) for one, other in needs if groups.all[one].kind and groups.all[other].kind]
    while count != len(groups.all):  # a merge may enable further merges
        count = len(groups.all)
        for one, other in fusible:
            groups.join_alike(groups.home[one], groups.home[other])
            groups.join_reduction(groups.home[one], groups.home[other])
        for i in reversed(range(len(program.steps))):
            groups.join_only_user(groups.home[i])
        if count == len(groups.all):
            groups.join_readers()
    if fusion.concat:
        groups.join_concats(program)
    return _rebuilt(program, fusion, groups)


class Group(NamedTuple):
    """Steps that run as one.

    Attributes:
        steps: Indices of the steps, ascending.
        kind: Fusion class; None for a step that cannot be fused.
        own: Bit set of the group's steps.
        before: Bit set with at least one step of each group that this one depends on, directly or not.
        after: Bit set with at least one step of each group that depends on this one.
    """

    steps: tuple[int, ...]
    kind: Kind | None
    own: int
    before: int
    after: int


class Groups:
    """The groups of a program's steps.

    Attributes:
        maker: Slot -> index of the step that computes it.
        home: Index of each step's group.
        users: For each step, the steps that depend on it.
        all: Group index -> Group.
    """

    def __init__(self, program: Program, fusion: Fusion) -> None:
        self._steps, self._outputs, self._most = program.steps, set(program.outputs), fusion.most
        self._arrays = program.specs.keys()
        self._inside = program.constants.keys() - program.specs.keys()  # constant numbers, copied into each group
        self.maker = {v: i for i, step in enumerate(program.steps) for v in flat(step.outputs)}
        self.home = list(range(len(program.steps)))
        self._done = 0  # bit set of the steps that `order` has yielded
        waits = _waits(program.steps, self.maker)
        self.users: list[set[int]] = [set() for _ in program.steps]
        for i, others in enumerate(waits):
            for other in others:
                self.users[other].add(i)
        before, after = _reached(waits, self.home), _reached(self.users, self.home[::-1])
        self.all = {
            i: Group((i,), _kind(program, fusion, step), 1 << i, before[i], after[i])
            for i, step in enumerate(program.steps)
        }

    def join_alike(self, a: int, b: int) -> None:
        """Merge two groups if they have one iteration shape and nothing prevents it."""
        one, other = self.all[a].kind, self.all[b].kind
        if a != b and one and other and one.shape == other.shape and self._may_join(a, b, one, other):
            self._join(a, b, one, other)

    def join_only_user(self, a: int) -> None:
        """Merge a group into its only user if it has one element per row of that user."""
        kind = self.all[a].kind
        if not kind or not _is_by_rows(kind, kind):  # most have more
            return
        users = {self.home[i] for step in self.all[a].steps for i in self.users[step]} - {a}
        outputs = {v for step in self.all[a].steps for v in flat(self._steps[step].outputs)}
        if len(users) == 1 and outputs.isdisjoint(self._outputs):
            (b,) = users
            one, other = self.all[a].kind, self.all[b].kind
            if one and other and _is_by_rows(one, other) and self._may_join(a, b, one, other):
                self._join(a, b, one, other)

    def join_reduction(self, a: int, b: int) -> None:
        """Merge a group that computes one element per row into the group that reduces the rows it reads."""
        one, other = self.all[a].kind, self.all[b].kind
        if a != b and one and other and one.reduced and _is_by_rows(other, one) and self._may_join(a, b, one, other):
            self._join(a, b, other, one)

    def join_readers(self) -> None:
        """Merge groups that read the same array, if each step from one to the other can be fused."""
        readers: dict[int, list[int]] = {}
        for i, step in enumerate(self._steps):
            for v in dict.fromkeys(flat(step.inputs)):
                readers.setdefault(v, []).append(i)
        for v, found in readers.items():
            for i, j in pairwise(found):
                if v in self._arrays and all(self.all[self.home[k]].kind for k in range(i, j)):
                    self.join_alike(self.home[i], self.home[j])

    def join_concats(self, program: Program) -> None:
        """Merge each step that concatenates arrays of one shape into the group that computes all of them."""
        for i, step in enumerate(self._steps):
            if not equal_pieces(program, step) or not self.maker.keys() >= {*step.inputs[1]}:
                continue
            a, *others = {self.home[self.maker[v]] for v in step.inputs[1]}
            kind, shape = self.all[a].kind, program.specs[step.inputs[1][0]].shape
            if others or kind is None or kind.reduced or kind.shape != shape:
                continue
            if self._may_join(a, self.home[i], kind, kind):
                self._join(a, self.home[i], kind, kind)

    def edges(self, steps: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return the values that steps read from outside, and their results that are needed outside."""
        inside = set(steps)
        own = [self._steps[i].outputs for i in sorted(inside)]
        taken = dict.fromkeys(v for i in sorted(inside) for v in flat(self._steps[i].inputs[1:]))
        needed = [v for v in own if v in self._outputs or not self.users[self.maker[v]] <= inside]
        return [v for v in taken if v not in own and v not in self._inside], needed

    def order(self) -> Iterator[int]:
        """Yield the groups in order: each at its last step, or earlier if another group needs it."""
        self._done = 0
        for i, home in enumerate(self.home):
            if i == self.all[home].steps[-1]:
                yield from self._until(home)

    def _until(self, group: int) -> Iterator[int]:
        """Yield a group after those that it depends on, as far as they were not yielded before."""
        if not self._done & self.all[group].own:
            due = {self.home[step] for step in _bits(self.all[group].before & ~self._done)}
            for other in sorted(due, key=lambda g: (self.all[g].before.bit_count(), g)):
                yield from self._until(other)
            self._done |= self.all[group].own
            yield group

    def _may_join(self, a: int, b: int, kind: Kind, others: Kind) -> bool:
        one, other = self.all[a], self.all[b]
        if any(x and y and x != y for x, y in zip(kind[1:], others[1:], strict=True)):
            return False
        if (one.before & other.after) | (one.after & other.before):
            return False  # a group between the two would depend on itself
        steps = one.steps + other.steps
        return len(steps) <= MAX_STEPS and sum(map(len, self.edges(steps))) <= self._most

    def _join(self, a: int, b: int, kind: Kind, others: Kind) -> None:
        """Merge group b into group a."""
        one, other = self.all[a], self.all.pop(b)
        own = one.own | other.own
        before, after = (one.before | other.before) & ~own, (one.after | other.after) & ~own
        joint = Kind(others.shape, kind.calls or others.calls, kind.reduced or others.reduced)
        self.all[a] = Group(tuple(sorted(one.steps + other.steps)), joint, own, before, after)
        for i in other.steps:
            self.home[i] = a
        self._connect(one, other, self.all[a])
        self._connect(other, one, self.all[a])

    def _connect(self, one: Group, other: Group, joint: Group) -> None:
        """Update the groups that depend only on `one` of two merged groups, and those that only `other` depends on."""
        later, earlier = one.after & ~(other.after | other.own), other.before & ~(one.before | one.own)
        if later and earlier:
            for g in {self.home[i] for i in _bits(later)}:
                self.all[g] = self.all[g]._replace(before=self.all[g].before | joint.before | joint.own)
            for g in {self.home[i] for i in _bits(earlier)}:
                self.all[g] = self.all[g]._replace(after=self.all[g].after | joint.after | joint.own)


def _waits(steps: tuple[Step, ...], maker: dict[int, int]) -> list[set[int]]:
    """Return, per step, the steps that must run before it: its producers and the previous step that may report."""
    found, last = [], set[int]()
    for i, step in enumerate(steps):
        waits = {maker[v] for v in flat(step.inputs) if v in maker}
        if step.op.indices or step.op.numbers:
            waits, last = waits | last, {i}
        found.append(waits)
    return found


def _reached(edges: list[set[int]], order: list[int]) -> list[int]:
    """Return, per step, the bit set of all steps that `edges` lead to. Edges lead to steps earlier in `order`."""
    found = [0] * len(edges)
    for i in order:
        for other in edges[i]:
            found[i] |= found[other] | 1 << other
    return found


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _kind(program: Program, fusion: Fusion, step: Step) -> Kind | None:
    kind = fusion.kind_of(step, program.spec)
    return kind if kind and program.specs[step.outputs].size else None


def _is_by_rows(one: Kind, other: Kind) -> bool:
    """Return whether `one` broadcasts to the shape of `other` with one element along the whole last axis."""
    small, large = one.shape, other.shape
    pairs = zip(small[::-1], large[::-1], strict=False)
    is_broadcast = len(small) <= len(large) and all(n in (1, length) for n, length in pairs)
    return is_broadcast and small[-1:] in ((), (1,)) and not one.reduced


def _rebuilt(program: Program, fusion: Fusion, groups: Groups) -> Program:
    steps, constants, size, made = [], dict(program.constants), program.size, dict[Any, Callable]()
    for group in groups.order():
        members, kind = groups.all[group].steps, groups.all[group].kind
        if kind is None or len(members) == 1:
            steps.append(program.steps[group])
            continue
        inputs, outputs = groups.edges(members)
        constants[size] = tuple([program.specs[v] for v in outputs])
        found = _part(program, members, inputs, outputs)
        key = kind, _computation(found)
        if key not in made:  # a loop has many equal groups
            made[key] = fusion.make(found, kind)
        step = program.steps[members[-1]]._replace(op=found, part="group", call=made[key])
        steps.append(step._replace(inputs=(size, *inputs), params={}, outputs=tuple(outputs)))
        size += 1
    return program._replace(steps=tuple(steps), constants=constants, size=size)


def _part(program: Program, members: tuple[int, ...], inputs: list[int], outputs: list[int]) -> Program:
    """Return some of a program's steps as a program."""
    steps = tuple([program.steps[i] for i in members])
    known = {v for step in steps for v in flat(step.inputs)} - {*inputs}
    constants = {v: program.constants[v] for v in known if v in program.constants}
    name = "+".join(step.op.name for step in steps)
    return program._replace(
        name=name, scalar_steps=(), steps=steps, constants=constants, inputs=tuple(inputs), outputs=tuple(outputs),
        donated=frozenset(),
    )  # fmt: skip


def _computation(group: Program) -> Any:
    """Return a key that is equal for groups that compute the same from inputs of the same Specs, in any slots."""
    values = (*group.inputs, *(step.outputs for step in group.steps))
    names: dict[int, Any] = {v: (type(c), c if type(c) is Spec else repr(c)) for v, c in group.constants.items()}
    names |= {v: i for i, v in enumerate(values)}
    steps = [
        (id(step.call), step.op, renamed(step.inputs, names), tuple([(n, repr(p)) for n, p in step.params.items()]))
        for step in group.steps
    ]
    return tuple(steps), tuple(map(group.spec, values)), renamed(group.outputs, names)
