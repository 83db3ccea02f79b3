"""A trace is a backend: its kernels call those of the backend that it traces, and note that they did.

So the one path infer, run, record serves unchanged, and with it autograd, pairs and optimisers. The kernels do run:
only they know what a pair saves, which gradient is None, and whether a pair declines.
"""

import itertools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import StandIn
from polyarr.core.errors import CaptureError
from polyarr.core.number import FloatNumber, IntNumber, Number, place, users_place
from polyarr.core.op import Op
from polyarr.core.program import Program, Step, flat
from polyarr.core.spec import Spec

FOLDED = 2**20  # elements: up to here, what depends on constants only is computed once
AGAIN = "again"  # the part of a step that gives what it takes, as another value: see StandIn.again; no pass leaves one


class Held:
    """A buffer of a trace: which value of the program it is, and the real buffer while somebody holds it."""

    __slots__ = ("real", "slot")

    def __init__(self, slot: int, real: Any) -> None:
        self.slot, self.real = slot, real


class Count:
    """A function of numbers, whose value is of the kind that it was at capture, or is looked at by nobody."""

    __slots__ = ("__name__", "fn", "kind")

    def __init__(self, fn: Callable[..., Any], kind: type | None) -> None:
        self.fn, self.kind, self.__name__ = fn, kind, getattr(fn, "__name__", type(fn).__name__)

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
    """The steps that one capture notes, over numbered values.

    steps, counts    those of kernels, and those of Python numbers
    constants        what is known beforehand, by value
    specs, numbers   of the values that are arrays, and the kinds of those that are numbers
    """

    def __init__(self, target: Backend) -> None:
        self.target, self.steps, self.counts = target, list[Step](), list[Step]()
        self.constants: dict[int, Any] = {}
        self.specs: dict[int, Spec] = {}
        self.numbers: dict[int, type] = {}
        self.is_open = True
        self._new = itertools.count()
        self._known: dict[int, tuple[Any, Held]] = {}  # by id: a buffer from elsewhere, and what stands for it
        self._same: dict[Any, int] = {}  # constants by type and value
        self.backend = target._replace(
            kernels=MappingProxyType({op: self._recorder(op, kernel) for op, kernel in target.kernels.items()}),
            upload=lambda host: self._constant_buffer(target.upload(host), Spec(host.shape, host.dtype)),
            download=self._refuse_to_read,
            synchronize=self._refuse_to_read,
            transfer=self._refuse_to_move,
            guarded=None,
            noting=None,
            dlpack=None,
            replay=None,
            home=target.name if target.home is None else target.home,
        )
        self.stand_in = StandIn(target, self.backend, self._lift, self._again)

    def program(self, name: str, inputs: list[int], outputs: list[int]) -> Program:
        """What was noted."""
        counts, steps, size = tuple(self.counts), tuple(self.steps), next(self._new)
        return Program(
            name, counts, steps, size, self.constants, tuple(inputs), tuple(outputs), self.specs, self.numbers
        )

    def close(self) -> None:
        """Note nothing more, and let go of what was held; whoever kept an array of this trace learns of it."""
        self.is_open = False
        for held in (self._known, self._same):
            held.clear()
        self.steps, self.counts, self.constants, self.specs, self.numbers = [], [], {}, {}, {}

    # ---- values ----------------------------------------------------------------------------------------------

    def array(self, a: Array) -> Array:
        """The handle that stands for an array that every run brings."""
        return Array(self.backend, self._held(a.buf, a.spec), a.spec)

    def expect(self, a: Array) -> Array:
        """The same for an array that the function uses without being given it, wherever it meets it."""
        handle = self.array(a)
        self._known[id(a.buf)] = a.buf, handle.buf
        return handle

    def number(self, now: int | float) -> Number:
        """A number that every run brings, or computes."""
        kind, slot = int if isinstance(now, int) else float, next(self._new)
        self.numbers[slot] = kind
        return (IntNumber if kind is int else FloatNumber)(slot, now, self._count)

    def constant(self, value: Any) -> int:
        """The value of something that is known beforehand; equal ones share it."""
        key = (type(value), repr(value)) if isinstance(value, (bool, int, float)) else (type(value), value)
        try:
            found = self._same.get(key)
        except TypeError:  # not hashable
            key, found = (Held, next(self._new)), None
        if found is None:
            found = self._same[key] = next(self._new)
            self.constants[found] = value
        return found

    def _constant_buffer(self, buf: Any, spec: Spec) -> Held:
        held = self._held(buf, spec)
        self.constants[held.slot] = buf
        return held

    def _held(self, real: Any, spec: Spec | None) -> Held:
        held = Held(next(self._new), real)
        if spec is not None:
            self.specs[held.slot] = spec
        return held

    def _slot(self, a: Any) -> Any:
        if isinstance(a, (Held, Number)):
            return a.slot
        if type(a) is tuple:
            return tuple(map(self._slot, a))
        return self.constant(None if type(a) is Array else a)  # a check is of numbers

    # ---- noting ----------------------------------------------------------------------------------------------

    def _recorder(self, op: Op, kernel: Any) -> Any:
        if isinstance(kernel, Fused):
            return kernel._replace(
                forward=self._forward(op, kernel.forward), backward=self._backward(op, kernel.backward)
            )

        like = op.inputs.index("like") if "like" in op.inputs else len(op.inputs)

        def run(out: Any, *args: Any, **params: Any) -> Any:
            args = tuple(None if i == like else a for i, a in enumerate(args))  # it named the backend, known by now
            found, takes = self._call(kernel, (out, *args), params)
            if type(out) is Spec and out.size <= FOLDED and all(t in self.constants for t in flat(takes)):
                return self._constant_buffer(found, out)
            return self._noted(Step(op, "kernel", kernel, takes, params, None, place()), self._results(found, out))

        return run

    def _forward(self, op: Op, forward: Callable) -> Callable:
        def run(out: Any, *args: Any, **params: Any) -> Any:
            found, takes = self._call(forward, (out, *args), params)
            if found is NotImplemented or type(found) is not tuple or len(found) != 2:
                return found
            gives = self._results(found[0], out), self._saved(found[1])
            return self._noted(Step(op, "forward", forward, takes, params, None, place()), gives)

        return run

    def _backward(self, op: Op, backward: Callable) -> Callable:
        def run(g: Any, saved: Any, *args: Any, **params: Any) -> Any:
            found, takes = self._call(backward, (g, saved, *args), params)
            if type(found) not in (tuple, list) or len(found) != len(args):
                return found
            gives = tuple(map(self._gradient, found, takes[2:]))
            return self._noted(Step(op, "backward", backward, takes, params, None, place()), gives)

        return run

    def _call(self, kernel: Callable, args: tuple, params: dict[str, Any]) -> tuple[Any, tuple]:
        """What a kernel gives, and the values that it takes."""
        if not self.is_open:
            raise CaptureError(_outlived(users_place()))
        takes = tuple(self.constant(a) if _is_out(a) else self._slot(a) for a in args)
        return kernel(*map(_real, args), **params), takes

    def _results(self, found: Any, out: Any) -> Any:
        if type(out) is tuple:
            return tuple(map(self._results, found, out))
        return self._held(found, out)

    def _saved(self, found: Any) -> Any:
        return tuple(map(self._saved, found)) if type(found) is tuple else self._held(found, None)

    def _gradient(self, found: Any, like: Any) -> Any:
        if found is None:
            return None
        if type(like) is tuple:
            return tuple(map(self._gradient, found, like))
        # Of an input that a pair does not need, there is the Spec only, a constant.
        return self._held(found, self.specs[like] if like in self.specs else self.constants[like])

    def _noted(self, step: Step, gives: Any) -> Any:
        self.steps.append(step._replace(gives=_slots(gives)))
        return gives

    def _count(self, fn: Callable, numbers: tuple, gives: bool) -> Any:
        if not self.is_open:
            raise CaptureError(_outlived(users_place()))
        now, takes = fn(*map(_real, numbers)), tuple(map(self._slot, numbers))
        if not gives:
            self.counts.append(Step(None, "number", Count(fn, None), takes, {}, None, place()))
            return None
        if isinstance(now, bool) or not isinstance(now, (int, float)):
            what = f"{users_place()}: {getattr(fn, '__name__', fn)} gave {type(now).__name__}"
            raise CaptureError(f"compile: {what}; what polyarr.evaluate calls must give an int or float")
        found = self.number(now)
        kind = self.numbers[found.slot]
        self.counts.append(Step(None, "number", Count(fn, kind), takes, {}, found.slot, place()))
        return found

    def _again(self, leaf: Any) -> Any:
        if isinstance(leaf, Number):
            found = self.number(leaf.now)
            self.counts.append(Step(None, AGAIN, _same, (leaf.slot,), {}, found.slot, place()))
            return found
        if type(leaf) is not Array:
            return leaf
        leaf = self._lift(leaf)
        held = self._held(leaf.buf.real, leaf.spec)
        self.steps.append(Step(None, AGAIN, _same, (leaf.buf.slot,), {}, held.slot, place()))
        return Array(self.backend, held, leaf.spec, leaf.node)

    # ---- what may not be -------------------------------------------------------------------------------------

    def _refuse_to_read(self, *_: Any) -> NoReturn:
        if not self.is_open:
            raise CaptureError(_outlived(users_place()))
        raise CaptureError(
            f"compile: {users_place()} reads an array's values, which a compiled function does not know while it is "
            "captured; return the array and read it outside"
        )

    def _refuse_to_move(self, buf: Any, target: Backend) -> NoReturn:
        raise CaptureError(
            f"compile: {users_place()} takes an array from {self.target.name!r} to {target.name!r}; "
            "a compiled function computes on one backend, so do so outside of it"
        )

    def _lift(self, a: Array) -> Array:
        """What stands for an array: itself, if it is this trace's."""
        if a.backend is self.backend:
            return a
        if id(a.buf) in self._known:
            return Array(self.backend, self._known[id(a.buf)][1], a.spec, a.node)
        raise CaptureError(
            f"compile: {users_place()} uses an array {a.spec} on {a.backend.name!r} that the function was not given; "
            "make it an argument, or name it in captures="
        )


def _outlived(where: str) -> str:
    return f"compile: {where} uses an array or a number that a compiled function kept while it was captured; return it"


def _is_out(a: Any) -> bool:
    """True for the Spec, or Specs, of what a kernel is to give: a constant, however nested."""
    return type(a) is Spec or (type(a) is tuple and bool(a) and all(map(_is_out, a)))


def _same(a: Any) -> Any:
    return a


def _real(a: Any) -> Any:
    if type(a) is Held:
        return a.real
    if isinstance(a, Number):
        return a.now
    return tuple(map(_real, a)) if type(a) is tuple else a


def _slots(gives: Any) -> Any:
    if type(gives) is tuple:
        return tuple(map(_slots, gives))
    return None if gives is None else gives.slot
