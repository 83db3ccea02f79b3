"""The steps of a program while passes fuse them, and which steps make and use a value."""

from collections.abc import Iterable, Iterator
from typing import Any

from polyarr import ops
from polyarr.backends.opencl.table import KERNELS
from polyarr.core.program import Program, Step, flat


class Steps:
    """A program's steps; one that was fused into another is None."""

    def __init__(self, program: Program) -> None:
        self.all: list[Step | None] = [*program.steps]
        self.specs = program.specs
        self._program = program
        self._maker = {v: n for n, step in enumerate(program.steps) for v in flat(step.outputs)}
        self._users: dict[int, list[int]] = {}
        for n, step in enumerate(program.steps):
            for v in flat(step.inputs):
                self._users.setdefault(v, []).append(n)

    def sums_of(self, v: int) -> Iterator[tuple[int, int, int]]:
        """Yield the step that computes a value and its two addends, if it adds two arrays of the value's Spec."""
        m = self._maker.get(v)
        if m is not None and self._is_sum(m):
            yield m, *self._program.steps[m].inputs[1:]

    def only_sum_with(self, v: int) -> Iterator[tuple[int, int]]:
        """Yield the step that adds a value to another one, and that one, if nothing else uses the value."""
        users = self._users.get(v, [])
        if len(users) == 1 and v not in self._program.outputs and self._is_sum(users[0]):
            x, y = self._program.steps[users[0]].inputs[1:]
            yield users[0], y if x == v else x

    def are_there(self, n: int, values: tuple) -> bool:
        """Return whether values are computed before step n."""
        return all(self._maker.get(v, -1) < n for v in flat(values))

    def only_maker(self, v: int) -> int | None:
        """Return the step that computes a value and nothing else that is used, if one other step uses the value."""
        m = self._maker.get(v)
        if m is None or self.all[m] is not self._program.steps[m] or len(self._users.get(v, [])) != 1:
            return None
        others = [w for w in flat(self._program.steps[m].outputs) if w not in (v, None)]
        is_used = v in self._program.outputs or any(w in self._users or w in self._program.outputs for w in others)
        return None if is_used else m

    def maker(self, v: int) -> Step | None:
        """Return the step that computes a value; None for an input or a constant, or if it was fused."""
        m = self._maker.get(v)
        return None if m is None else self.all[m]

    def uses(self, v: int) -> int:
        """Return how many steps use a value."""
        return len(self._users.get(v, []))

    def is_output(self, v: int) -> bool:
        """Return whether a value is a result of the program."""
        return v in self._program.outputs

    def is_scalar(self, v: int) -> bool:
        """Return whether a value is a number that differs from run to run."""
        return v in self._program.scalars

    def constant(self, v: int) -> Any:
        """Return a value that is known at capture; None if it is not."""
        return self._program.constants.get(v)

    def join(self, kept: int, gone: Iterable[int], step: Step) -> None:
        """Replace steps by one, at the place of one of them."""
        for n in gone:
            self.all[n] = None
        self.all[kept] = step

    def program(self) -> Program:
        """Return the program with the steps that are left."""
        return self._program._replace(steps=tuple([step for step in self.all if step is not None]))

    def _is_sum(self, n: int) -> bool:
        """Return whether a step adds two arrays of its result's Spec, and is not fused yet."""
        step, specs = self._program.steps[n], self._program.specs
        if self.all[n] is not step or launcher_of(step) is not KERNELS[ops.add]:
            return False
        return all(specs.get(v) == specs[step.outputs] for v in step.inputs[1:])


def launcher_of(step: Step) -> Any:
    """Return the launcher that a step calls, unless it was replaced."""
    return getattr(step.call, "__wrapped__", None)
