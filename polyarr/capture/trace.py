"""Trace: a backend whose kernels call those of the traced backend and append a step to the program.

Ops, autograd, Fused kernels and optimizers run on it unchanged. The kernels do run, because only they know what a
Fused kernel saves, which gradients are None, and whether a Fused kernel declines a call; on a backend with
functions that find this out without computing (Backend.abstract), buffers hold nothing.
"""

import itertools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from polyarr.capture.locations import Locations
from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import CaptureContext
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number, tracer, user_location
from polyarr.core.op import Op
from polyarr.core.program import Program, Step, flat
from polyarr.core.spec import Spec
from polyarr.ops.create import fill

MAX_FOLDED_SIZE = 2**20  # elements of a result that is folded because it depends on constants only
COPY = "copy"  # part of an identity step, see CaptureContext.copy; the passes remove all of them


class TracedBuffer:
    """Buffer of a trace: its slot in the program, and the concrete buffer, which may hold nothing."""

    __slots__ = ("real", "slot")

    def __init__(self, slot: int, real: Any) -> None:
        self.slot, self.real = slot, real


class ScalarFunction:
    """Function of numbers that must return the kind that it returned at capture; None: the result is unused."""

    __slots__ = ("__name__", "fn", "kind")

    def __init__(self, fn: Callable[..., Any], kind: type | None) -> None:
        self.fn, self.kind, self.__name__ = fn, kind, getattr(fn, "__name__", type(fn).__name__)

    def __eq__(self, other: object) -> bool:
        return type(other) is ScalarFunction and other.fn == self.fn and other.kind is self.kind

    def __hash__(self) -> int:
        return hash((self.fn, self.kind))

    def __call__(self, *numbers: Any) -> Any:
        found = self.fn(*numbers)
        if self.kind is None or type(found) is self.kind:
            return found
        if self.kind is float and isinstance(found, (int, float)):
            return float(found)
        if self.kind is int and isinstance(found, np.integer):
            return int(found)
        raise CaptureError(
            f"compile: {self.__name__} gave {found!r}, and {self.kind.__name__} when it was captured; "
            "what polyarr.evaluate calls must always give a float, or always an int"
        )


class Trace:
    """The steps that one capture records, over slots.

    Attributes:
        target: The traced backend.
        backend: The tracing backend.
        steps: Steps that call kernels.
        scalar_steps: Steps that call functions of Python numbers.
        constants: Slot -> value known at capture.
        specs: Slot -> Spec, for arrays.
        scalars: Slot -> int or float, for scalar inputs and what is computed from them.
        given: Slot -> value that the trace was given or has computed itself: of array inputs, and of all scalars.
        zeros: Slots of constants whose elements are all 0.
    """

    def __init__(self, target: Backend, line: str = "") -> None:
        self.target, self.steps, self.scalar_steps = target, list[Step](), list[Step]()
        self.constants: dict[int, Any] = {}
        self.specs: dict[int, Spec] = {}
        self.scalars: dict[int, type] = {}
        self.zeros = set[int]()
        self.is_open, self.given, self._abstract = True, dict[int, Any](), _abstract_of(target)
        self._new, self._here = itertools.count(), Locations(line).here
        self._known: dict[int, tuple[Array, Any, TracedBuffer]] = {}  # by id: a handle, its buffer and its tracer
        self._same: dict[Any, int] = {}  # slots of constants by type and value
        self.backend = target._replace(
            kernels=MappingProxyType({op: self._recording(op, kernel) for op, kernel in target.kernels.items()}),
            upload=lambda host: self._constant_buffer(target.upload(host), Spec(host.shape, host.dtype)),
            download=self._refuse_to_read,
            download_later=None,
            synchronize=self._refuse_to_read,
            transfer=self._refuse_to_move,
            guarded=None,
            observing=None,
            dlpack=None,
            replay=None,
            home=target.name if target.home is None else target.home,
        )
        self.context = CaptureContext(target, self.backend, self._traced, self._lift, self._copy, self._constant_buffer)

    def program(self, name: str, inputs: list[int], outputs: list[int]) -> Program:
        """Return the recorded program."""
        scalar_steps, steps, size = tuple(self.scalar_steps), tuple(self.steps), next(self._new)
        return Program(
            name, scalar_steps, steps, size, self.constants, tuple(inputs), tuple(outputs), self.specs, self.scalars,
            zeros=frozenset(self.zeros),
        )  # fmt: skip

    def close(self) -> None:
        """Stop recording and release all buffers; later use of an array of this trace raises CaptureError."""
        self.is_open = False
        for held in (self._known, self._same, self.given):
            held.clear()
        self.steps, self.scalar_steps, self.constants, self.specs, self.scalars = [], [], {}, {}, {}
        self._here = Locations().here

    # ---- values ----------------------------------------------------------------------------------------------

    def array(self, a: Array) -> Array:
        """Return the tracer of an array input."""
        held = self._buffer(a.buf, a.spec)
        self.given[held.slot] = a.buf
        return Array(self.backend, held, a.spec)

    def expect(self, a: Array) -> Array:
        """Return the tracer of an array that the function uses by name, and use it wherever this handle occurs.

        The handle identifies the array, not its buffer: another handle on the buffer may be rebound between two runs.
        """
        handle = self.array(a)
        self._known[id(a)] = a, a.buf, handle.buf
        return handle

    def number(self, now: int | float) -> Number:
        """Return the tracer of a number that every run brings or computes."""
        slot = next(self._new)
        self.scalars[slot] = int if isinstance(now, int) else float
        self.given[slot] = now
        return tracer(slot, now, self._evaluate)

    def constant(self, value: Any) -> int:
        """Return the slot of a constant; equal constants share one."""
        key = (type(value), repr(value)) if isinstance(value, (int, float, complex)) else (type(value), value)
        try:
            found = self._same.get(key)
        except TypeError:  # not hashable
            key, found = (TracedBuffer, next(self._new)), None
        if found is None:
            found = self._same[key] = next(self._new)
            self.constants[found] = value
        return found

    def _constant_buffer(self, buf: Any, spec: Spec) -> TracedBuffer:
        held = self._buffer(buf, spec)
        self.constants[held.slot] = buf
        return held

    def _buffer(self, real: Any, spec: Spec | None) -> TracedBuffer:
        held = TracedBuffer(next(self._new), real)
        if spec is not None:
            self.specs[held.slot] = spec
        return held

    def _slot(self, a: Any) -> Any:
        if isinstance(a, (TracedBuffer, Number)):
            return a.slot
        if type(a) is tuple:
            return tuple(map(self._slot, a))
        return self.constant(None if type(a) is Array else a)  # a check looks at numbers only

    # ---- recording -------------------------------------------------------------------------------------------

    def _recording(self, op: Op, kernel: Callable[..., Any] | Fused) -> Any:
        if isinstance(kernel, Fused):
            return kernel._replace(
                forward=self._forward(op, kernel.forward), backward=self._backward(op, kernel.backward)
            )

        abstract = self._abstract.get(id(kernel), kernel)
        like = op.inputs.index("like") if "like" in op.inputs else len(op.inputs)

        def run(out: Any, *args: Any, **params: Any) -> Any:
            if like < len(args):
                args = (*args[:like], None, *args[like + 1 :])  # `like` only selected the backend
            inputs = self._inputs((out, *args))
            is_folded = type(out) is Spec and out.size <= MAX_FOLDED_SIZE
            is_folded = is_folded and all(t in self.constants for t in flat(inputs))
            found = (kernel if is_folded else abstract)(*map(_concrete, (out, *args)), **params)
            if found is NotImplemented:
                return found
            if is_folded:
                folded = self._constant_buffer(found, out)
                self.zeros.update([folded.slot] if op is fill and is_zero(args[0]) else ())
                return folded
            return self._append(op, "kernel", kernel, inputs, params, self._results(found, out))

        return run

    def _forward(self, op: Op, forward: Callable) -> Callable:
        abstract = self._abstract.get(id(forward), forward)

        def run(out: Any, *args: Any, **params: Any) -> Any:
            inputs = self._inputs((out, *args))
            found = abstract(*map(_concrete, (out, *args)), **params)
            if found is NotImplemented or type(found) is not tuple or len(found) != 2:
                return found
            outputs = self._results(found[0], out), self._saved(found[1])
            return self._append(op, "forward", forward, inputs, params, outputs)

        return run

    def _backward(self, op: Op, backward: Callable) -> Callable:
        abstract = self._abstract.get(id(backward), backward)

        def run(g: Any, saved: Any, *args: Any, **params: Any) -> Any:
            inputs = self._inputs((g, saved, *args))
            found = abstract(*map(_concrete, (g, saved, *args)), **params)
            if type(found) not in (tuple, list) or len(found) != len(args):
                return found
            outputs = tuple(map(self._gradient, found, inputs[2:]))
            return self._append(op, "backward", backward, inputs, params, outputs)

        return run

    def _inputs(self, args: tuple) -> tuple:
        """Return the slots of a kernel's arguments."""
        if not self.is_open:
            raise CaptureError(_outlived(user_location()))
        return tuple(self.constant(a) if _is_out(a) else self._slot(a) for a in args)

    def _results(self, found: Any, out: Any) -> Any:
        if type(out) is tuple:
            return tuple(map(self._results, found, out))
        return self._buffer(found, out)

    def _saved(self, found: Any) -> Any:
        return tuple(map(self._saved, found)) if type(found) is tuple else self._buffer(found, None)

    def _gradient(self, found: Any, like: Any) -> Any:
        if found is None:
            return None
        if type(like) is tuple:
            return tuple(map(self._gradient, found, like))
        # An input that the Fused kernel does not need was replaced by its Spec, a constant.
        return self._buffer(found, self.specs[like] if like in self.specs else self.constants[like])

    def _append(
        self, op: Op, part: str, call: Callable, inputs: tuple, params: dict[str, Any], outputs: Any
    ) -> Any:
        self.steps.append(Step(op, part, call, inputs, params, _slots(outputs), *self._here()))
        return outputs

    def _evaluate(self, fn: Callable, numbers: tuple, has_output: bool) -> Any:
        inputs = self._inputs(numbers)
        now = fn(*map(_concrete, numbers))
        if not has_output:
            self.scalar_steps.append(Step(None, "number", ScalarFunction(fn, None), inputs, {}, None, *self._here()))
            return None
        if isinstance(now, bool) or not isinstance(now, (int, float)):
            what = f"{user_location()}: {getattr(fn, '__name__', fn)} gave {type(now).__name__}"
            raise CaptureError(f"compile: {what}; what polyarr.evaluate calls must give an int or float")
        found = self.number(now)
        kind = self.scalars[found.slot]
        self.scalar_steps.append(Step(None, "number", ScalarFunction(fn, kind), inputs, {}, found.slot, *self._here()))
        return found

    def _copy(self, leaf: Any) -> Any:
        if isinstance(leaf, Number):
            found = self.number(leaf.now)
            self.scalar_steps.append(Step(None, COPY, _same, (leaf.slot,), {}, found.slot, *self._here()))
            return found
        if type(leaf) is not Array:
            return leaf
        leaf = self._lift(leaf)
        held = self._buffer(leaf.buf.real, leaf.spec)
        self.steps.append(Step(None, COPY, _same, (leaf.buf.slot,), {}, held.slot, *self._here()))
        return Array(self.backend, held, leaf.spec, leaf.node)

    # ---- refusals --------------------------------------------------------------------------------------------

    def _refuse_to_read(self, *_: Any) -> NoReturn:
        if not self.is_open:
            raise CaptureError(_outlived(user_location()))
        raise CaptureError(
            f"compile: {user_location()} reads an array's values, which a compiled function does not know while it is "
            "captured; return the array and read it outside, or choose by pa.where"
        )

    def _refuse_to_move(self, buf: Any, target: Backend) -> NoReturn:
        raise CaptureError(
            f"compile: {user_location()} takes an array from {self.target.name!r} to {target.name!r}; "
            "a compiled function computes on one backend, so do so outside of it"
        )

    def _traced(self, a: Array) -> Array:
        """Return the tracer of an array used by name, unless its handle was rebound; any other array itself."""
        _, buf, held = self._known.get(id(a), (None, None, None))
        return Array(self.backend, held, a.spec, a.node) if held is not None and a.buf is buf else a

    def _lift(self, a: Array) -> Array:
        """Return the tracer of an array, which is the array itself if it belongs to this trace."""
        a = self._traced(a)
        if a.backend is self.backend:
            return a
        raise CaptureError(
            f"compile: {user_location()} uses an array {a.spec} on {a.backend.name!r} that the function was not given; "
            "make it an argument; pa.compile can also name it in captures="
        )


def is_zero(value: Any) -> bool:
    """Return whether a value is the number 0, and not -0.0."""
    return type(value) in (int, float) and repr(value) in ("0", "0.0")


def _abstract_of(backend: Backend) -> dict[int, Callable]:
    """Return a backend's abstract kernels by the kernels' ids, as kernels of somebody else may have no hash.

    Without an abstract kernel for each kernel there are none: the others would be given what holds nothing.
    """
    kernels, found = backend.kernels.values(), {id(kernel): result for kernel, result in backend.abstract.items()}
    functions = [f for kernel in kernels for f in (kernel[:2] if isinstance(kernel, Fused) else (kernel,))]
    return found if all(id(f) in found for f in functions) else {}


def _outlived(where: str) -> str:
    return f"compile: {where} uses an array or a number that a compiled function kept while it was captured; return it"


def _is_out(a: Any) -> bool:
    """Return whether an argument is the Spec, or Specs, of a kernel's result: a constant, however nested."""
    return type(a) is Spec or (type(a) is tuple and bool(a) and all(map(_is_out, a)))


def _same(a: Any) -> Any:
    return a


def _concrete(a: Any) -> Any:
    if type(a) is TracedBuffer:
        return a.real
    if isinstance(a, Number):
        return a.now
    return tuple(map(_concrete, a)) if type(a) is tuple else a


def _slots(outputs: Any) -> Any:
    if type(outputs) is tuple:
        return tuple(map(_slots, outputs))
    return None if outputs is None else outputs.slot
