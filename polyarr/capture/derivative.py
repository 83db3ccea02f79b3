"""Value and gradient of a function for one signature, as a forward and a backward program."""

from collections.abc import Callable
from typing import Any, NamedTuple

from polyarr import ops, tree
from polyarr.autograd import vjp
from polyarr.autograd.arguments import carries_gradient
from polyarr.capture.arguments import fingerprint
from polyarr.capture.captured import Capture, Captured, described, runnable
from polyarr.capture.partition import partitioned, without_cotangents
from polyarr.capture.passes import simplified
from polyarr.capture.trace import Trace
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.current import CaptureContext, capturing, use_backend
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number, check, evaluate
from polyarr.core.program import Program, assigned, lookup
from polyarr.core.tape import reads


class RunnableProgram(NamedTuple):
    """A forward or a backward program, as it runs and as single steps.

    Attributes:
        captured: The program as it runs.
        plain: The program with single steps, for a surrounding capture.
        outputs: Whether each of the gradients is computed; () for a forward program.
    """

    captured: Captured
    plain: Program
    outputs: tuple[bool, ...] = ()


class Derivative:
    """The programs of one signature.

    Attributes:
        forward: From the inputs to the results and the values that are kept.
        backwards: By which floating-point results have a cotangent: from the numbers, the kept values and these
            cotangents to the gradients.
    """

    def __init__(self, forward: RunnableProgram, backward: Program, cotangents: tuple[int, ...]) -> None:
        self.forward, self._backward, self._cotangents = forward, backward, cotangents
        self.backwards: dict[tuple[bool, ...], RunnableProgram] = {}

    def backward(self, given: tuple[bool, ...]) -> RunnableProgram:
        """Return the backward program for the cotangents that are given."""
        if given not in self.backwards:
            backend = self.forward.captured.backend
            absent = frozenset(v for v, is_given in zip(self._cotangents, given, strict=True) if not is_given)
            program, found = without_cotangents(self._backward, self._cotangents, absent, backend)
            captured = Captured(*runnable(program, backend), backend, iter, (), (), 0)
            self.backwards[given] = RunnableProgram(captured, program, tuple(v is not None for v in found))
        return self.backwards[given]


def derivative(fn: Callable, name: str, backend: Backend, arguments: Any, wanted: tuple[int, ...]) -> Derivative:
    """Capture fn and its gradient.

    Args:
        fn: Function of trees.
        name: Its name, for errors.
        backend: Backend of the arrays.
        arguments: Tree (args, kwargs); its arrays and numbers are the inputs.
        wanted: Indices among the inputs of the arrays whose gradients are computed.

    Raises:
        CaptureError: As `compile`; also if fn changes an argument in place or draws random numbers.
    """
    trace, tokens = Trace(backend), (capturing.set(None), reads.set(None))
    try:
        with use_backend(backend):
            return _JointCapture(trace, fn, name, wanted).derivative(arguments)
    finally:
        trace.close()
        capturing.reset(tokens[0])
        reads.reset(tokens[1])


class _JointCapture:
    """One capture of a function and its gradient."""

    def __init__(self, trace: Trace, fn: Callable, name: str, wanted: tuple[int, ...]) -> None:
        self.trace, self.fn, self.name, self.wanted = trace, fn, name, wanted
        self.cotangents: list[int] = []

    def derivative(self, arguments: Any) -> Derivative:
        capture, backend = Capture(self.trace, ()), self.trace.target
        given = capture.argument(arguments, scalars_are_inputs=True)
        outcome = capture.run(self.name, lambda: self._both(given))
        if outcome.rebound or capture.generator.draws:
            raise impure(self.name, draws=not outcome.rebound)
        value, gradients = outcome.value
        leaves = outcome.leaves[: len(outcome.leaves) - len(gradients)]
        outputs, results, unflatten = described(value, leaves)
        inputs = [s.slot for s in capture.inputs] + self.cotangents
        ends = [a.buf.slot for a in outcome.leaves[len(leaves) :]]
        program = simplified(self.trace.program(self.name, inputs, outputs + ends))
        forward, backward = partitioned(program, len(outputs), frozenset(self.cotangents), backend.fusion)
        captured = Captured(*runnable(forward, backend), backend, unflatten, results, (), 0)
        backward = backward._replace(name=f"{self.name} backward")
        return Derivative(RunnableProgram(captured, forward), backward, tuple(self.cotangents))

    def _both(self, given: Any) -> tuple[Any, list[Array]]:
        """Return the value of fn and the gradients of the wanted inputs."""
        leaves = tree.leaves(given)
        inputs = [i for i, leaf in enumerate(leaves) if type(leaf) is Array or isinstance(leaf, Number)]
        places = [inputs[i] for i in self.wanted]
        value, pull = vjp(self._of_wanted(given, leaves, places), *[leaves[i] for i in places])
        return value, [*pull(tree.map(self._cotangent, value))]

    def _of_wanted(self, given: Any, leaves: list[Any], places: list[int]) -> Callable:
        def call(*tracked: Array) -> Any:
            before = [a.buf for a in tracked]
            arguments = tree.unflatten(given, _with(leaves, places, tracked))
            structure = fingerprint(arguments)
            value = self.fn(*arguments[0], **arguments[1])
            if fingerprint(arguments) != structure:
                raise CaptureError(f"fused: {self.name} changes what is in an argument; return what is new")
            if any(a.buf is not buf for a, buf in zip(tracked, before, strict=True)):
                raise impure(self.name, draws=False)
            return value

        return call

    def _cotangent(self, leaf: Any) -> Array | None:
        """Return the tracer of a result's cotangent; its value during the capture is that of the result."""
        if not carries_gradient(leaf):
            return None
        found = self.trace.array(Array(self.trace.target, self.trace.context.lift(leaf).buf.real, leaf.spec))
        self.cotangents.append(found.buf.slot)
        return found


def impure(name: str, draws: bool) -> CaptureError:
    """Return the error for a function that draws random numbers or changes an argument in place."""
    what = "draws random numbers" if draws else "changes an argument in place"
    return CaptureError(f"fused: {name} {what}; do so outside of it")


def _with(leaves: list[Any], places: list[int], others: Any) -> list[Any]:
    """Return leaves with others at these places."""
    found = dict(zip(places, others, strict=True))
    return [found.get(i, leaf) for i, leaf in enumerate(leaves)]


def replayed(program: Program, capture: CaptureContext, inputs: list[Any]) -> list[Any]:
    """Have a capture record a program's steps; return the outputs' values."""
    backend, values = capture.backend, {**program.constants, **dict(zip(program.inputs, inputs, strict=True))}
    for v in program.constants.keys() & program.specs.keys():
        spec = program.specs[v]
        if v in program.zeros:  # so that the capture knows
            values[v] = backend.kernels[ops.fill](spec, 0, None, shape=spec.shape, dtype=spec.dtype)
        else:
            values[v] = capture.constant(values[v], spec)
    for step in program.scalar_steps:
        if step.outputs is None:
            check(step.call, *lookup(values, step.inputs))
        else:
            values[step.outputs] = evaluate(step.call, *lookup(values, step.inputs))
    for step in program.steps:
        kernel = backend.kernels[step.op]
        call = kernel if step.part == "kernel" else getattr(kernel, step.part)
        values.update(assigned(step.outputs, call(*lookup(values, step.inputs), **step.params)))
    return [values[slot] for slot in program.outputs]
