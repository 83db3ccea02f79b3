"""polyarr.fused: a function whose value and gradient are captured, each fused into as few kernels as possible."""

import types
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from polyarr import tree
from polyarr.autograd import vjp
from polyarr.autograd.arguments import carries_gradient
from polyarr.autograd.transforms import joined
from polyarr.capture.arguments import alias_pattern, difference, flatten
from polyarr.capture.captured import backend_of, name_of
from polyarr.capture.compile import MAX_CAPTURES, Compiled, Signature, parameters_of, warn_of_captures
from polyarr.capture.derivative import Derivative, RunnableProgram, derivative, impure, replayed
from polyarr.core import watch
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.current import CaptureContext, capturing, current_level
from polyarr.core.number import Number
from polyarr.core.precision import get_matmul_precision
from polyarr.core.record import as_read
from polyarr.core.spec import Spec
from polyarr.core.tape import is_pulled_once, reads, records

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class _Pure(Compiled):
    """A compiled function that is refused if it changes arguments or draws random numbers."""

    def __init__(self, fn: Callable) -> None:
        super().__init__(fn, frozenset(), (), frozenset())

    def _lookup(self, *call: Any) -> Signature:
        found = super()._lookup(*call)
        if found.captured.effects or found.captured.draws:
            self._last = None
            raise impure(name_of(self.fn), draws=not found.captured.effects)
        return found


class FusedFunction(Generic[P, R]):
    """A function whose value and gradient are captured; made by `polyarr.fused`.

    Attributes:
        fn: The function itself.
    """

    def __init__(self, fn: Callable[P, R]) -> None:
        parameters_of("fused", fn)
        update_wrapper(self, fn)
        self.fn, self._compiled = fn, _Pure(fn)
        self._derivatives: dict[Any, Derivative] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return fn(*args, **kwargs); within a gradient transform, with a gradient that is captured too."""
        if records() and not self._compiled.is_plain and current_level() is None:
            inputs, key = list[Any](), list[Any]()
            flatten((args, kwargs), inputs, key)
            if any(map(_is_tracked, inputs)):
                return _Call(self, (args, kwargs), inputs, key).recorded()
        return self._compiled(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a method: the Module is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a function by its name, and any other callable with it; captured programs are left out."""
        return self.fn.__qualname__ if isinstance(self.fn, types.FunctionType) else (FusedFunction, (self.fn,))

    def programs(self) -> list[Any]:
        """Return the captured programs: of calls without gradient, then a forward and a backward one per signature.

        Returns:
            List of Program; printing one shows its steps.
        """
        found = [program for each in self._derivatives.values() for program in (each.forward, *each.backwards.values())]
        return [*self._compiled.programs(), *(program.captured.program for program in found)]

    def derivative(
        self, key: tuple, backend: Backend, arguments: Callable[[], Any], wanted: tuple[int, ...]
    ) -> Derivative:
        """Return the programs of a signature, captured with the arguments if it is new."""
        key = *key, wanted, id(backend)
        found = self._derivatives.get(key)
        if found is None:
            name, before = name_of(self.fn), [part for known in [*self._derivatives][-1:] for part in known]
            why = f"an argument {difference(before, [*key])}" if before else ""
            event = f"again, because {why}" if why else "for the first time"
            watch.report_capture(name, backend, f"captured with its gradient {event}")
            found = derivative(self.fn, name, backend, arguments(), wanted)
            self._derivatives[key] = found
            if len(self._derivatives) == MAX_CAPTURES + 1:
                warn_of_captures("fused", name, MAX_CAPTURES + 1, why, stacklevel=5)
        return found


class _Call:
    """One call within a gradient transform, and its pull."""

    def __init__(self, function: FusedFunction, arguments: Any, inputs: list[Any], key: list[Any]) -> None:
        self._function, self._arguments, self._capture = function, arguments, capturing.get()
        self._key = get_matmul_precision(), *key, alias_pattern(inputs)
        self._inputs: list[Any] = [as_read(a) if type(a) is Array else a for a in inputs]
        self._wanted = tuple([i for i, a in enumerate(self._inputs) if _is_tracked(a)])
        self._backend = backend_of(function.fn, [a for a in self._inputs if type(a) is Array])

    def recorded(self) -> Any:
        """Return the value of the function, with its gradient on the tape."""
        values = [a.buf if type(a) is Array else a for a in self._inputs]
        target = self._backend if self._capture is None else self._capture.target
        found = self._function.derivative(self._key, target, partial(self._concrete, target), self._wanted)
        outputs = _run(found.forward, list(values), self._backend, self._capture)
        captured = found.forward.captured
        value = captured._replace(backend=self._backend).value(outputs)
        numbers = [v for v in values if type(v) in (int, float) or isinstance(v, Number)]
        kept = numbers + outputs[sum(result.output is not None for result in captured.results) :]
        again = None if is_pulled_once() else self._again()
        ends = [(a.node, a.spec) for a in (self._inputs[i] for i in self._wanted)]
        floats = [carries_gradient(leaf) for leaf in tree.leaves(value)]
        run = partial(_run, backend=self._backend, capture=self._capture)
        due = [spec for _, spec in ends]
        return joined(value, ends, _pull(partial(_gradients, found, run, kept, floats), due, self._backend, again))

    def _concrete(self, target: Backend) -> Any:
        """Return the arguments with the values that they have during a capture."""

        def concrete(a: Any) -> Any:
            if type(a) is not Array:
                return a.now if isinstance(a, Number) else a
            return Array(target, a.buf if self._capture is None else a.buf.real, a.spec)

        handles: dict[int, Array] = {}  # one array in two places stays one
        leaves, lifted = tree.leaves(self._arguments), iter(self._inputs)
        of_inputs = [
            handles.setdefault(id(a), concrete(next(lifted))) if type(a) is Array
            else concrete(next(lifted)) if type(a) in (int, float) or isinstance(a, Number)
            else a
            for a in leaves
        ]  # fmt: skip
        return tree.unflatten(self._arguments, of_inputs)

    def _again(self) -> Callable[[list[Any]], list[Any]]:
        """Return the pull that differentiates the function itself, for higher derivatives."""
        leaves = tree.leaves(self._arguments)
        inputs = [i for i, a in enumerate(leaves) if type(a) in (Array, int, float) or isinstance(a, Number)]
        places, fn = [inputs[i] for i in self._wanted], self._function.fn
        given = [leaf.snapshot() if type(leaf) is Array else leaf for leaf in leaves]
        arguments = tree.unflatten(self._arguments, given)  # containers of its own: the caller's may change

        def call(*tracked: Array) -> Any:
            found = dict(zip(places, tracked, strict=True))
            args, kwargs = tree.unflatten(arguments, [found.get(i, leaf) for i, leaf in enumerate(given)])
            return fn(*args, **kwargs)

        def again(g: list[Any]) -> list[Any]:
            value, pull = vjp(call, *[given[i] for i in places])
            return [*pull(tree.unflatten(value, g))]

        return again


def _run(program: RunnableProgram, values: list[Any], backend: Backend, capture: CaptureContext | None) -> list[Any]:
    """Run a program; within a capture, have it recorded."""
    if capture is not None:
        return replayed(program.plain, capture, values)
    if (other := capturing.get()) is not None:
        other.lift(Array(backend, None, Spec((), float)))  # raises: the capture was not given what is kept
    return program.captured.outputs(values)


def _gradients(
    found: Derivative, run: Callable[[RunnableProgram, list[Any]], list[Any]], kept: list[Any], floats: list[bool],
    g: list[Any],
) -> list[Any]:  # fmt: skip
    """Return the gradients' buffers for the cotangents of all results; None where there is none."""
    given = [part for part, is_float in zip(g, floats, strict=True) if is_float]
    program = found.backward(tuple([part is not None for part in given]))
    buffers = iter(run(program, kept + [as_read(part).buf for part in given if part is not None]))
    return [next(buffers) if is_there else None for is_there in program.outputs]


def _pull(
    gradients: Callable[[list[Any]], list[Any]], due: list[Spec], backend: Backend,
    again: Callable[[list[Any]], list[Any]] | None,
) -> Callable[[list[Any]], list[Any]]:  # fmt: skip
    """Return the pull of a call, which holds nothing but what is kept, and `again` for higher derivatives."""

    def pull(g: list[Any]) -> list[Any]:
        if again is not None and (records() or current_level() is not None or reads.get() is not None):
            return again(g)  # also for a checkpoint, which notes what is read
        found = zip(gradients(g), due, strict=True)
        return [None if buf is None else Array(backend, buf, spec) for buf, spec in found]

    return pull


def fused(fn: Callable[P, R]) -> FusedFunction[P, R]:
    """Capture a function and its gradient, and fuse each into as few kernels as the backend can.

    Outside of a gradient transform this is `compile`. Within one, the function runs as a forward program, which keeps
    as few bytes as possible, and its gradient as a backward program, which computes elementwise steps again instead of
    reading them. Both are captured at the first call with arguments of each signature. Also a decorator.

    Gradients have the bits of those of the plain function. Where an array is an argument twice, or is used outside
    of the function as well, its gradient adds up in another order, as with `checkpoint`.

    Args:
        fn: Function of trees of arrays and numbers whose value is a tree. It must be pure: it may not change an
            argument, draw random numbers, or use arrays that it is not given.

    Returns:
        FusedFunction: a function with the same arguments, value and derivatives, to any order.

    Raises:
        CaptureError: At the first call: fn is not pure, reads an array's values, or asks for the value of a number.
        TypeError: `fn` is not a plain function.

    Examples:
        >>> import polyarr as pa
        >>> @pa.fused
        ... def swiglu(gate, up):
        ...     return pa.silu(gate) * up
        >>> pa.grad(lambda x: pa.sum(swiglu(x, x)))(pa.asarray([0.0, 1.0]))
        Array([0.       , 1.6587291], float32, 'numpy')
    """
    return FusedFunction(fn)


def _is_tracked(a: Any) -> bool:
    return carries_gradient(a) and a.node is not None
