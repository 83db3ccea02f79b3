"""Elementwise steps on arrays that are concatenated from pieces, or cut into them, compute piece by piece.

A rotary embedding concatenates two halves that it computes from two halves, and its gradient places each half in zeros
and adds them. Computed in halves, such steps need no copies, and their results are written to where they belong.
"""

from typing import Any

import numpy as np

from polyarr import ops
from polyarr.capture.passes import Pass, readers_of, reads_elements, without_dead
from polyarr.capture.trace import is_zero
from polyarr.core.backend import Backend
from polyarr.core.program import Fusion, Program, Step, renamed
from polyarr.core.spec import Spec
from polyarr.core.spec import bool as bool_

MAX_PIECES = 4


def in_pieces(program: Program, backend: Backend) -> Program:
    """Return the program with these steps in pieces of the last axis. The results of all elements are the same."""
    if backend.fusion is None or not any(_is_in_pieces(program, step) for step in program.steps):
        return program
    return without_dead(_Pieces(program, backend, backend.fusion).run())


def equal_pieces(program: Program, step: Step) -> bool:
    """Return whether a step concatenates arrays of one shape along their last axis."""
    if step.part != "kernel" or step.op is not ops.concat:
        return False
    specs = [program.specs[v] for v in step.inputs[1]]
    return step.params["axis"] == specs[0].ndim - 1 and len({*specs}) == 1 and 1 < len(specs) <= MAX_PIECES


def _is_in_pieces(program: Program, step: Step) -> bool:
    return equal_pieces(program, step) or (step.part == "kernel" and step.op is ops.slice_update)


class _Pieces(Pass):
    """The new steps; `pieces` has the slots of each array's pieces, and 0 for a piece of zeros."""

    def __init__(self, program: Program, backend: Backend, fusion: Fusion) -> None:
        super().__init__(program)
        self._backend, self._fusion = backend, fusion
        self._pieces: dict[int, tuple[int, ...]] = {}
        self._slices: dict[tuple[int, int, int], int] = {}
        self._users = readers_of(program)
        zeros = {v for v, value in program.constants.items() if is_zero(value)}
        filled = {step.outputs for step in program.steps if step.op is ops.fill and step.inputs[1] in zeros}
        self._zeros = filled | program.zeros
        self._zero = self.constant(0)
        self._elementwise = {step.outputs for step in program.steps if self._is_elementwise(step)}
        self._counts = self._concatenated()
        self._counts |= self._cut_into()

    def add(self, step: Step) -> None:
        """Add a step, or what replaces it."""
        step, out = step._replace(inputs=renamed(step.inputs, self.names)), step.outputs
        if equal_pieces(self._program._replace(specs=self.specs), step):
            self._pieces[out] = step.inputs[1]
        elif cut := self._placed(step):
            k, count = cut
            self._pieces[out] = tuple([step.inputs[2] if i == k else self._zero for i in range(count)])
        elif cut := self._cut(step):
            v, (k, count) = step.inputs[1], cut
            known = self._pieces.get(v, ())
            piece = known[k] if len(known) == count else self._slices.setdefault((v, k, count), out)
            if piece not in (self._zero, out):
                self.names[out] = piece
                return
        elif out in self._elementwise and (parts := self._counts.get(out)):
            pieces = [self._inputs(step, k, parts) for k in range(parts)]
            if all(self._gives(operands, self.specs[out].shape, parts) for operands in pieces):
                self._add_pieces(step, pieces)
                return
        self.steps.append(step)

    def _concatenated(self) -> dict[int, int]:
        """Return the number of pieces of arrays that are concatenated, and of what is computed from them in pieces."""
        found: dict[int, int] = {}
        for step in self._program.steps:
            if equal_pieces(self._program, step):
                found[step.outputs] = len(step.inputs[1])
            elif cut := self._placed(step):
                found[step.outputs] = cut[1]
            elif step.outputs in self._elementwise:
                shape, given = self.specs[step.outputs].shape, step.inputs[1:]
                counts = {found[v] for v in given if v in found and self._is_read_in_pieces(v, shape, found[v])}
                if len(counts) == 1:
                    found[step.outputs] = counts.pop()
        return found

    def _cut_into(self) -> dict[int, int]:
        """Return the number of pieces of elementwise results of which only pieces are read."""
        found: dict[int, int] = {}
        for step in reversed(self._program.steps):
            if step.outputs in self._elementwise and step.outputs not in self._program.outputs:
                shape, counts = self.specs[step.outputs].shape, set[int]()
                for user in self._users.get(step.outputs, []):
                    cut, out = self._cut(user), user.outputs
                    alike = out in self._elementwise and self.specs[out].shape == shape
                    counts.add(cut[1] if cut else found.get(out, self._counts.get(out, 0)) if alike else 0)
                if len(counts) == 1 and counts != {0}:
                    found[step.outputs] = counts.pop()
        return found

    def _is_read_in_pieces(self, v: int, shape: tuple[int, ...], count: int) -> bool:
        """Return whether all steps that read an array of this shape can do so in pieces."""
        return self.specs[v].shape == shape and all(
            (cut and cut[1] == count) or (user.outputs in self._elementwise and self.specs[user.outputs].shape == shape)
            for user, cut in [(user, self._cut(user)) for user in self._users.get(v, [])]
        )

    def _is_elementwise(self, step: Step) -> bool:
        kind = self._fusion.kind_of(step, self._spec)
        return kind is not None and not kind.reduced and bool(self.specs[step.outputs].size)

    def _placed(self, step: Step) -> tuple[int, int] | None:
        """Return (k, count) if a step places an array in zeros, as the k-th of `count` pieces."""
        cut = self._piece_of(step, ops.slice_update)
        return cut if cut and step.inputs[1] in self._zeros and self.specs[step.inputs[1]].dtype != bool_ else None

    def _cut(self, step: Step) -> tuple[int, int] | None:
        """Return (k, count) if a step slices the k-th of `count` pieces, for readers that take a dense piece for it."""
        cut, users = self._piece_of(step, ops.slice), self._users.get(step.outputs, [])
        return cut if cut and all(reads_elements(user, self._fusion, self._spec) for user in users) else None

    def _piece_of(self, step: Step, op: Any) -> tuple[int, int] | None:
        """Return (k, count) if a slice or slice_update is of the k-th of `count` equal pieces of the last axis."""
        if step.part != "kernel" or step.op is not op:
            return None
        whole, starts = self.specs[step.inputs[1]].shape, [self.constants.get(v) for v in step.inputs[-1]]
        shape = step.params["shape"] if op is ops.slice else self.specs[step.inputs[2]].shape
        if not whole or whole[:-1] != shape[:-1] or not shape[-1] or {*step.params["steps"]} != {1}:
            return None
        if any(starts[:-1]) or type(starts[-1]) is not int or None in starts or whole[-1] % shape[-1]:
            return None
        (k, rest), count = divmod(starts[-1], shape[-1]), whole[-1] // shape[-1]
        return (k, count) if not rest and 1 < count <= MAX_PIECES else None

    def _inputs(self, step: Step, k: int, count: int) -> tuple[int, ...]:
        """Return the operands of the k-th piece of a step."""
        last = self.specs[step.outputs].shape[-1]

        def operand(v: int) -> int:
            spec = self.specs.get(v)
            if spec is None or not spec.shape or spec.shape[-1] != last:
                return v
            known = self._pieces.get(v, ())
            return known[k] if len(known) == count else self._sliced(step, v, k, count)

        return tuple(map(operand, step.inputs[1:]))

    def _gives(self, operands: tuple[int, ...], shape: tuple[int, ...], count: int) -> bool:
        """Return whether operands give a piece of an array of this shape; a piece of zeros has no shape of its own."""
        shapes = [self.specs[v].shape for v in operands if v in self.specs]
        is_array = any(v in self.specs for v in operands[-2:])
        return is_array and np.broadcast_shapes(*shapes) == (*shape[:-1], shape[-1] // count)

    def _add_pieces(self, step: Step, operands: list[tuple[int, ...]]) -> None:
        """Add the steps of all pieces, and the one that concatenates their results."""
        whole = self.specs[step.outputs]
        spec = Spec((*whole.shape[:-1], whole.shape[-1] // len(operands)), whole.dtype)
        pieces = tuple([self.new(spec) for _ in operands])
        for piece, inputs in zip(pieces, operands, strict=True):
            self.steps.append(step._replace(inputs=(self.constant(spec), *inputs), outputs=piece))
        self._pieces[step.outputs], params = pieces, {"axis": len(whole.shape) - 1}
        call, given = self._backend.kernels[ops.concat], (self.constant(whole), pieces)
        self.steps.append(step._replace(op=ops.concat, call=call, inputs=given, params=params))

    def _sliced(self, step: Step, v: int, k: int, count: int) -> int:
        if (v, k, count) not in self._slices:
            spec = self.specs[v]
            shape = (*spec.shape[:-1], spec.shape[-1] // count)
            starts = tuple([self._zero] * (len(shape) - 1) + [self.constant(k * shape[-1])])
            inputs, new = (self.constant(Spec(shape, spec.dtype)), v, starts), self.new(Spec(shape, spec.dtype))
            params = {"steps": (1,) * len(shape), "shape": shape}
            call = self._backend.kernels[ops.slice]
            self.steps.append(step._replace(op=ops.slice, call=call, inputs=inputs, params=params, outputs=new))
            self._slices[v, k, count] = new
        return self._slices[v, k, count]

    def _spec(self, v: int) -> Spec | None:
        return self.specs[v] if v in self.specs else self._program.spec(v) or Spec((), int)
