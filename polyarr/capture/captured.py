"""The capture of a function: run it once on tracers of its arguments, and turn the trace into a program."""

import contextlib
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from polyarr import ops, random, tree
from polyarr.capture import observed
from polyarr.capture.arguments import containers_of, fingerprint, is_input, restore, unflattener
from polyarr.capture.fuse import fused
from polyarr.capture.passes import simplified
from polyarr.capture.pieces import in_pieces
from polyarr.capture.run import runner
from polyarr.capture.trace import Trace
from polyarr.core import watch
from polyarr.core.array import Array, number_of
from polyarr.core.backend import Backend
from polyarr.core.current import capturing, get_backend, use_backend
from polyarr.core.errors import BackendError, CaptureError
from polyarr.core.number import Number, user_location
from polyarr.core.program import KEPT, Inputs, Program, Run, release
from polyarr.core.spec import Spec
from polyarr.core.tape import paused


class Result(NamedTuple):
    """A leaf of the function's result.

    Attributes:
        output: Index of the program's output; None for a constant.
        spec: Spec of an array; None for a number or a constant.
        constant: Value of a constant.
    """

    output: int | None
    spec: Spec | None
    constant: Any = None


class Captured(NamedTuple):
    """A program, and how a call's arguments and result map to its inputs and outputs.

    Attributes:
        program: The program.
        run: Function from the inputs' values to the outputs' values.
        backend: Backend of the arrays. Kept alive, so that its id in the cache key stays unique.
        unflatten: Function that builds the result from its leaves.
        results: Description of each leaf of the result.
        effects: (input index, output index, Spec) of each argument whose handle the function rebinds in place.
        draws: Number of random draws per run.
    """

    program: Program
    run: Run
    backend: Backend
    unflatten: Callable[[Iterator[Any]], Any]
    results: tuple[Result, ...]
    effects: tuple[tuple[int, int, Spec], ...]
    draws: int

    def call(self, arguments: Inputs, donated: list[Array]) -> Any:
        """Return the function's result for these inputs. The arrays in `donated` become unusable.

        Raises:
            Exception: That of a step. The random state and all arrays that are not donated are then unchanged.
        """
        inputs = _values(arguments)
        state: random.State | tuple[()] = ()
        if self.draws:
            state, slots = random.reserve(self.draws), self.program.inputs[len(arguments) :]
            inputs += [
                part.buf if type(part) is Array and slot not in self.program.scalars else number_of(part)
                for slot, part in zip(slots, state, strict=True)
            ]
        for a in donated:  # inlined Array.rebind, for speed
            a.backend, a.buf, a.node = DONATED, None, None
        if KEPT and donated:
            release(donated)
        try:
            outputs = self.outputs(inputs)
        except BaseException:
            if state:
                random.release(state, self.draws)
            raise
        backend = self.backend
        for i, at, spec in self.effects:  # likewise: nothing captures or reads handles here
            a = arguments[i]
            a.backend, a.buf, a.spec, a.node = backend, outputs[at], spec, None
        if KEPT and self.effects:
            release([arguments[i] for i, *_ in self.effects])
        return self.value(outputs)

    def outputs(self, inputs: list[Any]) -> list[Any]:
        """Run the program and return its outputs' values."""
        return self.run(inputs)

    def value(self, outputs: list[Any]) -> Any:
        """Return the function's result, given the outputs' values."""
        return self.unflatten(self._leaves(outputs))

    def _observed(self, inputs: list[Any]) -> list[Any]:
        watch.report_capture(self.program.name, self.backend, "run as captured")
        if watch.takes_programs(self.backend):
            return observed.run_whole(self.program, self.run, self.backend, inputs)
        return observed.run(self.program, self.backend, inputs)

    def _leaves(self, outputs: list[Any]) -> Iterator[Any]:
        leaves, backend, new = list[Any](), self.backend, object.__new__
        for at, spec, constant in self.results:
            if at is None:
                leaves.append(constant)
            elif spec is None:
                leaves.append(outputs[at])
            else:  # inlined Array(...), for speed
                array = new(Array)
                array.backend, array.buf, array.spec, array.node = backend, outputs[at], spec, None
                leaves.append(array)
        return iter(leaves)


watch.replace_while_observed(Captured, "outputs", Captured._observed)


def _values(arguments: Inputs) -> Inputs:
    """Return the values of a call's inputs."""
    kept, start = arguments.kept, arguments.start
    known = [] if kept is None else kept.values  # another thread may release them from now on
    if kept is None or not known:
        return Inputs([a.buf if type(a) is Array else a for a in arguments])
    values = Inputs([a.buf if type(a) is Array else a for a in arguments[:start]])
    values.keep(kept, known)
    values += [a.buf if type(a) is Array else a for a in arguments[start + len(known) :]]
    return values


class _Donated(dict):
    def get(self, op: Any, _: Any = None) -> Any:
        refuse_donated()


def refuse_donated(*_: Any) -> Any:
    """Raise CaptureError for the use of a donated array."""
    raise CaptureError(
        f"compile: {user_location()} uses an array that was donated to a compiled function; take what that returned"
    )


DONATED = Backend(
    "nowhere: it was donated to a compiled function", _Donated(), upload=refuse_donated, download=refuse_donated
)


def captured(
    fn: Callable, name: str, backend: Backend, arguments: list[tuple[str, Any, bool]], positional: int, captures: Any,
    donated: list[int], line: str = "",
) -> Captured:  # fmt: skip
    """Capture fn for these arguments.

    Args:
        fn: The function.
        name: Its name, for errors.
        backend: Backend of the arrays.
        arguments: (name, value, whether its numbers are inputs) of each argument; keyword arguments come last.
        positional: Number of positional arguments.
        captures: Tree of the arrays that `fn` uses without receiving them.
        donated: Indices of the inputs that the caller donates.
        line: Line that all steps get; "" for the line of the user's code that made the step.
    """
    trace = Trace(backend, line)
    try:
        capture = Capture(trace, captures)
        args = [capture.argument(value, scalars_are_inputs) for _, value, scalars_are_inputs in arguments]
        named = {called: arg for (called, *_), arg in zip(arguments[positional:], args[positional:], strict=True)}
        fingerprints = [*map(fingerprint, args)]
        outcome = capture.run(name, lambda: fn(*args[:positional], **named))
        for (called, *_), before, after in zip(arguments, fingerprints, map(fingerprint, args), strict=True):
            if before != after:
                raise CaptureError(f"compile: {name} changes what is in its argument {called!r}; return what is new")
        return capture.finish(name, outcome, donated)
    finally:
        trace.close()


class _Generator(random.Generator):
    """Random generator whose state is an input of every run; counts its draws."""

    draws = 0

    def draw(self) -> random.State:
        self.draws += 1
        return super().draw()

    def restart(self, seed: int | Array, counter: int | Array) -> None:
        raise CaptureError(f"compile: {user_location()} calls random.seed or set_state; do so outside of the function")


class _Input(NamedTuple):
    """An input of the program.

    Attributes:
        slot: Its slot.
        original: The caller's handle, of an array.
        handle: The handle that fn sees: a tracer or, for an array in `captures`, the caller's.
    """

    slot: int
    original: Array | None = None
    handle: Array | None = None


class _Outcome(NamedTuple):
    """Outcome of fn: its value, the leaves of the value as tracers, and the tracers of handles that fn rebound."""

    value: Any
    leaves: list[Any]
    rebound: list[tuple[_Input, Array]]


class Capture:
    """The one run of fn on a trace, and the tracers of its inputs."""

    def __init__(self, trace: Trace, captures: Any) -> None:
        self.trace, self.inputs, self.captures = trace, list[_Input](), captures
        is_read = ops.random_bits in trace.target.reads  # otherwise a state on the device is read at every run
        state = [
            trace.array(part) if is_read and type(part) is Array else trace.number(number_of(part))
            for part in random.get_state()
        ]
        self.generator = _Generator(*state)
        self.state = [part.slot if isinstance(part, Number) else part.buf.slot for part in state]
        self.captured_arrays = [a for a in tree.leaves(captures) if type(a) is Array]
        # By id of the caller's handle. An array in `captures` is its own handle, even if it is also an argument.
        distinct = {id(a): a for a in self.captured_arrays}
        self._by_handle = {key: _Input(trace.expect(a).buf.slot, a, a) for key, a in distinct.items()}

    def argument(self, value: Any, scalars_are_inputs: bool) -> Any:
        """Return an argument with tracers in place of its arrays and numbers."""
        leaves = tree.leaves(value)
        return tree.unflatten(value, [self._input(a) if is_input(a, scalars_are_inputs) else a for a in leaves])

    def _input(self, leaf: Any) -> Any:
        if type(leaf) is not Array:
            number = self.trace.number(leaf)
            self.inputs.append(_Input(number.slot))
            return number
        if id(leaf) not in self._by_handle:
            tracer = self.trace.array(leaf)
            self._by_handle[id(leaf)] = _Input(tracer.buf.slot, leaf, tracer)
        self.inputs.append(self._by_handle[id(leaf)])
        return self.inputs[-1].handle

    def run(self, name: str, call: Callable[[], Any]) -> _Outcome:
        """Run fn on the trace and return its outcome. The arrays and containers in `captures` are restored afterwards.

        Raises:
            CaptureError: fn does something that it may not do in a capture; nothing is changed.
            Exception: That of fn; its in-place changes and draws before the error then reach the caller.
        """
        self.inputs += [self._by_handle[id(a)] for a in self.captured_arrays]
        before = [(a, a.snapshot()) for a in self.captured_arrays]
        containers, was = containers_of(self.captures), fingerprint(self.captures)
        is_current, rebound = get_backend() is self.trace.target, None
        token = capturing.set(self.trace.context)
        try:
            with use_backend(self.trace.backend) if is_current else contextlib.nullcontext():
                with random.drawing_from(self.generator), paused():
                    value = call()
            if fingerprint(self.captures) != was:
                text = f"compile: {name} changes what is in captures="
                raise CaptureError(f"{text}; make it an argument, and return what is new")
            return _Outcome(value, self._leaves(name, value), self._rebound())
        except CaptureError:
            raise
        except BaseException:
            rebound = self._rebound()
            raise
        finally:
            capturing.reset(token)
            restore(containers)
            for a, then in before:
                a.rebind(then)
            if rebound is not None:
                self._keep_effects(name, rebound)

    def _leaves(self, name: str, value: Any) -> list[Any]:
        try:
            return [self._tracer(a) if type(a) is Array else a for a in tree.leaves(value)]
        except RecursionError:
            raise CaptureError(f"compile: what {name} returns contains itself; return a tree") from None

    def _rebound(self) -> list[tuple[_Input, Array]]:
        """Return the inputs whose handles fn rebound, each with the tracer of the new value."""
        found = [(s, self._tracer(s.handle)) for s in self._by_handle.values() if s.handle is not None]
        return [(s, a) for s, a in found if a.buf.slot != s.slot]

    def _keep_effects(self, name: str, rebound: list[tuple[_Input, Array]]) -> None:
        """Apply in-place changes and draws to the caller's arrays after fn raised, as if it had not been traced."""
        given, outputs = self.trace.given, [now.buf.slot for _, now in rebound]
        program = self.trace.program(name, [*given], outputs)._replace(scalar_steps=())  # all scalars are given
        bufs = runner(simplified(program))([*given.values()])
        for (source, now), buf in zip(rebound, bufs, strict=True):
            source.original.rebind(Array(self.trace.target, buf, now.spec))  # type: ignore[union-attr]
        if self.generator.draws:
            random.reserve(self.generator.draws)

    def _tracer(self, a: Array) -> Array:
        """Return the tracer of an array as a new handle, because the caller's handle will be restored."""
        return self.trace.context.lift(a).snapshot()

    def finish(self, name: str, outcome: _Outcome, donated: list[int]) -> Captured:
        """Simplify the program, fuse its steps, and return the Captured."""
        outputs, results, unflatten = described(outcome.value, outcome.leaves)
        indices = {id(s): i for i, s in enumerate(self.inputs)}
        effects = tuple((indices[id(s)], len(outputs) + i, a.spec) for i, (s, a) in enumerate(outcome.rebound))
        outputs += [a.buf.slot for _, a in outcome.rebound]
        inputs = [s.slot for s in self.inputs] + (self.state if self.generator.draws else [])
        program, backend = simplified(self.trace.program(name, inputs, outputs)), self.trace.target
        program, run = runnable(program._replace(donated=frozenset([inputs[i] for i in donated])), backend)
        return Captured(program, run, backend, unflatten, results, effects, self.generator.draws)


def described(value: Any, leaves: list[Any]) -> tuple[list[int], tuple[Result, ...], Callable[[Iterator[Any]], Any]]:
    """Return the slots of a value's tracers, the description of each leaf, and what builds the value from leaves."""
    outputs: list[int] = []

    def output(leaf: Any) -> int:
        outputs.append(leaf.slot if isinstance(leaf, Number) else leaf.buf.slot)
        return len(outputs) - 1

    def result(leaf: Any) -> Result:
        if isinstance(leaf, Number):
            return Result(output(leaf), None)
        return Result(output(leaf), leaf.spec) if type(leaf) is Array else Result(None, None, leaf)

    results = tuple(map(result, leaves))
    template = tree.unflatten(value, [leaf.constant if leaf.output is None else _ARRAY for leaf in results])
    return outputs, results, unflattener(template)


def runnable(program: Program, backend: Backend) -> tuple[Program, Run]:
    """Return a program with its steps fused as the backend can, and the function that runs it."""
    if backend.fusion is not None:
        program = fused(in_pieces(program, backend), backend.fusion)
    run = runner(program)
    return program, run if backend.replay is None else backend.replay(program, run)


_BACKEND = attrgetter("backend")
_ARRAY = Spec((), float)  # placeholder of a leaf in the template of a result; a Module accepts it as a child


def backend_of(fn: Callable, arrays: list[Array]) -> Backend:
    """Return the backend of the arrays that a compiled function is called with."""
    if not arrays:
        return get_backend()
    first = arrays[0].backend
    if first is not DONATED and [*map(_BACKEND, arrays)].count(first) == len(arrays):
        return first
    for a in arrays:
        if a.backend is DONATED:
            refuse_donated()
        if a.backend is not first and not first.meets(a.backend):
            text = f"compile: arguments of {name_of(fn)} live on {first.name!r} and {a.backend.name!r}"
            raise BackendError(f"{text}; bring them to one backend with .to(name)")
    return first


def name_of(fn: Callable) -> str:
    """Return the name of a function, for errors."""
    return getattr(fn, "__name__", type(fn).__name__)
