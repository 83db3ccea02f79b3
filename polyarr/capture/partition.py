"""Partition of a program with a gradient into a forward and a backward program that keep few bytes between them.

What the backward program needs is kept or computed again. Elementwise steps that the backend can fuse, views, and steps
without array inputs may be computed again; the values that are kept have the fewest bytes in all: a minimum cut.

Source: the idea of a minimum cut is that of PyTorch's AOTAutograd partitioner
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from polyarr import ops
from polyarr.core.program import Fusion, Kind, Program, Step, flat

VIEWS = frozenset({ops.reshape, ops.permute_dims, ops.broadcast_to, ops.slice})
INFINITE = 1 << 62


class Halves(NamedTuple):
    """The two programs.

    Attributes:
        forward: From the inputs to the results, followed by the values that are kept.
        backward: From the numbers among the inputs, the values that are kept and the cotangents to the gradients.
        kept: Slots of the values that are kept.
    """

    forward: Program
    backward: Program
    kept: tuple[int, ...]


def partitioned(program: Program, results: int, cotangents: frozenset[int], fusion: Fusion | None) -> Halves:
    """Return the halves of a program.

    Args:
        program: Program whose outputs are results, then gradients, and whose last inputs are the cotangents.
        results: Number of results among the outputs.
        cotangents: Slots of the cotangents.
        fusion: What the backend can fuse; None: nothing.
    """
    given = tuple(v for v in program.inputs if v not in cotangents)
    values, gradients = program.outputs[:results], program.outputs[results:]
    late = _dependents(program, cotangents)
    after = [step for step in program.steps if not late.isdisjoint(flat(step.outputs))]
    before = [step for step in program.steps if late.isdisjoint(flat(step.outputs))]
    read = {v for step in after for v in flat(step.inputs)} | {*gradients}
    kept = _cheapest(program._replace(inputs=given), before, after, read - late, fusion)
    numbers = tuple(v for v in given if v in program.scalars)
    forward = part(program, given, values + kept)
    backward = part(program, numbers + kept + tuple(v for v in program.inputs if v in cotangents), gradients)
    return Halves(forward, backward, kept)


def part(program: Program, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Program:
    """Return the steps that lead from some values to others."""
    there, needed, steps = {*inputs}, {*outputs}, list[Step]()
    for step in reversed(program.steps):
        if not needed.isdisjoint({*flat(step.outputs)} - there):
            needed.update(flat(step.inputs))
            steps.append(step)
    return program._replace(steps=tuple(steps[::-1]), inputs=inputs, outputs=outputs)


def _dependents(program: Program, values: Iterable[int]) -> set[int]:
    """Return these values and all that are computed from them."""
    found = {*values}
    for step in program.steps:
        if not found.isdisjoint(flat(step.inputs)):
            found.update(flat(step.outputs))
    return found


def _cheapest(
    program: Program, before: list[Step], after: list[Step], read: set[int], fusion: Fusion | None
) -> tuple[int, ...]:
    """Return the values to keep between the steps before and after, of which the latter read some."""
    known = program.constants.keys() | program.scalars.keys()
    arrays = [v for v in dict.fromkeys(program.inputs) if v not in known]
    outside = {*program.inputs, *program.outputs}  # these exist in any case, so they are preferred
    whole = _read_whole(program, before, after, fusion)
    graph = Graph()
    for v in arrays:
        graph.source(v)
    for step in before:
        is_repeated = _is_repeated(program, step, fusion)
        for v in flat(step.outputs):
            if not is_repeated or v in whole:
                graph.source(v)
            for x in flat(step.inputs):
                if x not in known:
                    graph.arrow(x, v)
    values = [*arrays, *(v for step in before for v in flat(step.outputs))]
    for v in values:
        spec = program.specs.get(v)
        graph.vertex(v, (1 if v in outside else 2) * spec.size * spec.dtype.itemsize if spec else 1)
        if v in read:
            graph.sink(v)
    found = graph.cut()
    return tuple(v for v in values if v in found)


def _read_whole(program: Program, before: list[Step], after: list[Step], fusion: Fusion | None) -> set[int]:
    """Return the values that a later step reads which cannot be fused, such as a product: they have to be in memory."""
    alone = [step for step in after if step.op not in VIEWS and _kind(program, step, fusion) is None]
    found = {v for step in alone for v in flat(step.inputs)}
    for step in reversed(before + after):
        if step.op in VIEWS and not found.isdisjoint(flat(step.outputs)):
            found.update(flat(step.inputs))
    return found


def _is_repeated(program: Program, step: Step, fusion: Fusion | None) -> bool:
    """Return whether a step may be computed again: elementwise if that is fused, a view, or without array inputs."""
    if step.part != "kernel" or type(step.outputs) is not int:
        return False
    if step.op in VIEWS or not any(v in program.specs for v in flat(step.inputs)):
        return True
    kind = _kind(program, step, fusion)
    return kind is not None and not kind.reduced


def _kind(program: Program, step: Step, fusion: Fusion | None) -> Kind | None:
    """Return the kind of a step that the backend can fuse."""
    if fusion is None or step.part != "kernel" or type(step.outputs) is not int:
        return None
    specs = [program.spec(v) if type(v) is int else None for v in step.inputs[1:]]
    return None if None in specs else fusion.kind(step, tuple(specs), program.specs[step.outputs])  # type: ignore[arg-type]


class Graph:
    """Flow network over values, for their minimum vertex cut between sources and sinks (Edmonds and Karp 1972)."""

    _SOURCE, _SINK = (-1, 1), (-2, 0)

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], dict[tuple[int, int], int]] = {}  # remaining capacities of edges

    def vertex(self, v: int, cost: int) -> None:
        """Add a value that costs so much to cut."""
        self._edge((v, 0), (v, 1), cost)

    def arrow(self, x: int, y: int) -> None:
        """Add that y is computed from x."""
        self._edge((x, 1), (y, 0), INFINITE)

    def source(self, v: int) -> None:
        """Add that a value is there only if it is kept."""
        self._edge(self._SOURCE, (v, 0), INFINITE)

    def sink(self, v: int) -> None:
        """Add that a value is needed."""
        self._edge((v, 1), self._SINK, INFINITE)

    def cut(self) -> set[int]:
        """Return the values of the cheapest cut; of several, the one nearest to the sinks, which repeats least."""
        while path := self._path():
            flow = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= flow
                self._left[b][a] += flow
        needed, found = self._reaching_sink(), set[int]()
        for v, side in self._left:
            if side == 0 and (v, 0) not in needed and (v, 1) in needed and (v, 1) in self._left[(v, 0)]:
                found.add(v)
        return found

    def _edge(self, a: tuple[int, int], b: tuple[int, int], capacity: int) -> None:
        forward = self._left.setdefault(a, {})
        forward[b] = forward.get(b, 0) + capacity
        self._left.setdefault(b, {}).setdefault(a, 0)

    def _path(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the edges of a shortest path with capacity left; [] if there is none."""
        came, due = {self._SOURCE: self._SOURCE}, deque([self._SOURCE])
        while due and self._SINK not in came:
            a = due.popleft()
            for b, left in self._left.get(a, {}).items():
                if left > 0 and b not in came:
                    came[b] = a
                    due.append(b)
        return [*self._back(came)] if self._SINK in came else []

    def _back(self, came: dict) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        b = self._SINK
        while b != self._SOURCE:
            yield came[b], b
            b = came[b]

    def _reaching_sink(self) -> set[tuple[int, int]]:
        """Return the vertices from which capacity is left to the sink."""
        found, due = {self._SINK}, deque([self._SINK])
        while due:
            b = due.popleft()
            for a in self._left.get(b, {}):
                if a not in found and self._left[a].get(b, 0) > 0:
                    found.add(a)
                    due.append(a)
        return found
