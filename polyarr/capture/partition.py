"""Partition of a program with a gradient into a forward and a backward program that keep few bytes between them.

What the backward program needs is kept or computed again. Elementwise steps that the backend can fuse, views, and steps
without array inputs may be computed again; the values that are kept have the fewest bytes in all: a minimum cut.

Source: the idea of a minimum cut is that of PyTorch's AOTAutograd partitioner
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from polyarr import ops
from polyarr.capture.passes import Pass, without_dead
from polyarr.core.backend import Backend
from polyarr.core.program import Fusion, Kind, Program, Step, flat, renamed

VIEWS = frozenset({ops.reshape, ops.permute_dims, ops.broadcast_to, ops.slice})
INFINITE = 1 << 62
Vertex = tuple[int, int]  # a value, and whether the vertex is where it leaves (1) or arrives (0)


def partitioned(
    program: Program, results: int, cotangents: frozenset[int], fusion: Fusion | None
) -> tuple[Program, Program]:
    """Return the forward and the backward program.

    The forward program leads from the inputs to the results, followed by the values that are kept; the backward program
    from the numbers among the inputs, the values that are kept and the cotangents to the gradients.

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
    known = numbers + kept + tuple(v for v in program.inputs if v in cotangents)
    forward = without_dead(program._replace(inputs=given, outputs=values + kept))
    return forward, without_dead(program._replace(inputs=known, outputs=gradients))


def without_cotangents(
    program: Program, cotangents: tuple[int, ...], absent: frozenset[int], backend: Backend
) -> tuple[Program, tuple[int | None, ...]]:
    """Return a backward program for calls in which some cotangents are absent, and its gradients; None if absent, too.

    What depends on absent cotangents alone is not computed, as zeros times an infinity would be nan.
    """
    absence = _Absence(program, cotangents, absent, backend)
    whole = absence.run()
    found = tuple(None if v in absence.gone else v for v in whole.outputs)
    inputs, outputs = tuple(v for v in program.inputs if v not in absent), tuple(v for v in found if v is not None)
    return without_dead(whole._replace(inputs=inputs, outputs=outputs)), found


class _Absence(Pass):
    """The steps without absent values, which are in `gone`."""

    def __init__(
        self, program: Program, cotangents: tuple[int, ...], absent: frozenset[int], backend: Backend
    ) -> None:
        super().__init__(program)
        self.gone, self._late, self._backend = set(absent), _dependents(program, cotangents), backend

    def add(self, step: Step) -> None:
        """Add a step, or what replaces it."""
        step = step._replace(inputs=renamed(step.inputs, self.names))
        given = {*flat(step.inputs)}
        missing = given & self.gone
        if not missing:
            self.steps.append(step)
        elif (given & self._late) <= self.gone:
            self.gone.update(flat(step.outputs))
        elif (other := self._addend(step)) is not None:
            self.names[step.outputs] = other
        else:
            self.steps.append(step._replace(inputs=renamed(step.inputs, {v: self._zeros(step, v) for v in missing})))

    def _addend(self, step: Step) -> int | None:
        """Return what a step adds an absent value to, if that is its result."""
        if step.part != "kernel" or step.op is not ops.add:
            return None
        (other,) = {*step.inputs[1:]} - self.gone
        return other if self.specs.get(other) == self.specs[step.outputs] else None

    def _zeros(self, step: Step, v: int) -> int:
        spec = self.specs[v]
        inputs = tuple(map(self.constant, (spec, 0, None)))
        params, call, out = {"shape": spec.shape, "dtype": spec.dtype}, self._backend.kernels[ops.fill], self.new(spec)
        self.steps.append(
            step._replace(op=ops.fill, part="kernel", call=call, inputs=inputs, params=params, outputs=out)
        )
        return out


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
        is_repeated, is_computed = _is_repeated(program, step, fusion), _reads_arrays(program, step)
        for v in flat(step.outputs):
            if not is_repeated or (is_computed and v in whole):
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
    if step.op in VIEWS or not _reads_arrays(program, step):
        return True
    kind = _kind(program, step, fusion)
    return kind is not None and not kind.reduced


def _reads_arrays(program: Program, step: Step) -> bool:
    return any(v in program.specs for v in flat(step.inputs))


def _kind(program: Program, step: Step, fusion: Fusion | None) -> Kind | None:
    """Return the kind of a step that the backend can fuse."""
    return None if fusion is None else fusion.kind_of(step, program.spec)


class Graph:
    """Flow network over values, for their minimum vertex cut between sources and sinks.

    Source: shortest paths are those of Edmonds and Karp 1972, "Theoretical improvements in algorithmic efficiency for
    network flow problems"; each search here serves all edges to the sink
    """

    _SOURCE, _SINK = (-1, 1), (-2, 0)

    def __init__(self) -> None:
        self._left: dict[Vertex, dict[Vertex, int]] = {}  # remaining capacities of edges

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
        while self._SINK in (before := self._reached(self._SOURCE, self._left_after)):
            self._fill(before)
        needed, found = self._reached(self._SINK, self._left_before), set[int]()
        for v, side in self._left:
            if side == 0 and (v, 0) not in needed and (v, 1) in needed and (v, 1) in self._left[(v, 0)]:
                found.add(v)
        return found

    def _edge(self, a: Vertex, b: Vertex, capacity: int) -> None:
        forward = self._left.setdefault(a, {})
        forward[b] = forward.get(b, 0) + capacity
        self._left.setdefault(b, {}).setdefault(a, 0)

    def _left_after(self, a: Vertex) -> Iterator[Vertex]:
        return (b for b, left in self._left.get(a, {}).items() if left > 0)

    def _left_before(self, b: Vertex) -> Iterator[Vertex]:
        return (a for a in self._left.get(b, {}) if self._left[a].get(b, 0) > 0)

    def _reached(self, start: Vertex, following: Callable[[Vertex], Iterator[Vertex]]) -> dict[Vertex, Vertex]:
        """Return the vertices that can be reached where capacity is left, each with the one before it."""
        before, due = {start: start}, deque([start])
        while due:
            a = due.popleft()
            for b in following(a):
                if b not in before:
                    before[b] = a
                    due.append(b)
        return before

    def _fill(self, before: dict[Vertex, Vertex]) -> None:
        """Send flow along these paths to the sink until each has an edge without capacity."""
        for last in [v for v in self._left_before(self._SINK) if v in before]:
            path = [self._SINK, last]
            while path[-1] != self._SOURCE:
                path.append(before[path[-1]])
            edges = [(x, y) for y, x in pairwise(path)]
            flow = min(self._left[x][y] for x, y in edges)
            for x, y in edges:
                self._left[x][y] -= flow
                self._left[y][x] += flow
