"""One capture of a function: fn runs once with what stands for its arguments, and what is left is a program."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from polyarr import ops, random, tree
from polyarr.capture import watched
from polyarr.capture.arguments import builder, form, is_fed, kept, put_back
from polyarr.capture.fuse import fused
from polyarr.capture.passes import simplified
from polyarr.capture.run import runner
from polyarr.capture.trace import Trace
from polyarr.core import watch
from polyarr.core.array import Array, number_of
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, stand_in, use_backend
from polyarr.core.errors import CaptureError
from polyarr.core.number import Number, users_place
from polyarr.core.program import Program, Run
from polyarr.core.spec import Spec
from polyarr.core.tape import paused


class Result(NamedTuple):
    """A leaf of the result: an output's place, with the Spec of an array; or, without a place, a constant."""

    at: int | None
    spec: Spec | None
    constant: Any = None


class Captured(NamedTuple):
    """A program, and how a call's arguments and result relate to it.

    backend   of the arrays; held, so that its id in the key stays its own
    build     makes the result out of its leaves; `results` says what each of them is
    effects   (place among what is fed, output's place, Spec) of the arguments whose handles the function rebinds
    draws     how many random draws a run makes
    """

    program: Program
    run: Run
    backend: Backend
    build: Callable[[Iterator[Any]], Any]
    results: tuple[Result, ...]
    effects: tuple[tuple[int, int, Spec], ...]
    draws: int

    def call(self, fed: list[Any], gone: list[Array]) -> Any:
        """The function's result for these arrays and numbers. `gone` are the arrays that the caller gives away."""
        inputs = [a.buf if type(a) is Array else a for a in fed]
        if self.draws:
            slots = self.program.inputs[len(fed) :]
            inputs += [
                number_of(part) if slot in self.program.numbers else part.buf
                for slot, part in zip(slots, random.reserve(self.draws), strict=True)
            ]
        for a in gone:  # as rebind does it, in a third of the time
            a.backend, a.buf, a.node = DONATED, None, None
        outputs = self.outputs(inputs)
        for place, at, spec in self.effects:
            fed[place].rebind(Array(self.backend, outputs[at], spec))
        return self.build(self._leaves(outputs))

    def outputs(self, inputs: list[Any]) -> list[Any]:
        """The outputs' values."""
        return self.run(inputs)

    def _watched(self, inputs: list[Any]) -> list[Any]:
        return watched.run(self.program, self.backend, inputs)

    def _leaves(self, outputs: list[Any]) -> Iterator[Any]:
        leaves, backend, new = list[Any](), self.backend, object.__new__
        for at, spec, constant in self.results:
            if spec is None:
                leaves.append(constant if at is None else outputs[at])
            else:  # as Array(...) makes it, in half of the time
                array = new(Array)
                array.backend, array.buf, array.spec, array.node = backend, outputs[at], spec, None
                leaves.append(array)
        return iter(leaves)


watch.stand_in(Captured, "outputs", Captured._watched)


class _Donated(dict):
    def get(self, op: Any, _: Any = None) -> Any:
        refuse_donated()


def refuse_donated(*_: Any) -> Any:
    """Say that an array is gone."""
    raise CaptureError(
        f"compile: {users_place()} uses an array that was donated to a compiled function; take what that returned"
    )


DONATED = Backend(
    "nowhere: it was donated to a compiled function", _Donated(), upload=refuse_donated, download=refuse_donated
)


def captured(
    fn: Callable, name: str, backend: Backend, given: list[tuple[str, Any, bool]], positional: int, captures: Any
) -> Captured:
    """What fn does with arguments.

    given       the arguments' names and values, and whether numbers in them are fed; those by name come last
    positional  how many are by position
    """
    trace = Trace(backend)
    try:
        capture = _Capture(trace, captures)
        args = [capture.argument(value, numbers) for _, value, numbers in given]
        named = {called: arg for (called, *_), arg in zip(given[positional:], args[positional:], strict=True)}
        forms = [*map(form, args)]
        value = capture.run(name, lambda: fn(*args[:positional], **named))
        for (called, *_), before, after in zip(given, forms, map(form, args), strict=True):
            if before != after:
                raise CaptureError(f"compile: {name} changes what is in its argument {called!r}; return what is new")
        return capture.finish(name, value)
    finally:
        trace.close()


class _Generator(random.Generator):
    """Draws from a state that every run brings, and counts how often."""

    draws = 0

    def draw(self) -> tuple[int, int]:
        self.draws += 1
        return super().draw()

    def restart(self, seed: int, counter: int) -> None:
        raise CaptureError(f"compile: {users_place()} calls random.seed or set_state; do so outside of the function")


class _Stand(NamedTuple):
    """What stands for an array or a number that is fed: its value; with an array's handle, and the buffer it had."""

    slot: int
    handle: Array | None = None
    buf: Any = None


class _Capture:
    """fn's one run on a trace, and what stands for what is fed to it."""

    def __init__(self, trace: Trace, captures: Any) -> None:
        self.trace, self.stands = trace, list[_Stand]()
        self.captures, self.own = captures, [a for a in tree.leaves(captures) if type(a) is Array]
        is_read = ops.random_bits in trace.target.reads  # otherwise what is in memory becomes a number at every run
        state = [
            trace.array(part) if is_read and type(part) is Array else trace.number(number_of(part))
            for part in random.get_state()
        ]
        self.generator = _Generator(*state)
        self.state = [part.buf.slot if type(part) is Array else part.slot for part in state]
        self._handles: dict[int, Array] = {}

    def argument(self, value: Any, numbers: bool) -> Any:
        """An argument with what stands for its arrays and numbers."""
        leaves = tree.leaves(value)
        return tree.unflatten(value, [self._stand(a) if is_fed(a, numbers) else a for a in leaves])

    def _stand(self, leaf: Any) -> Any:
        if type(leaf) is not Array:
            number = self.trace.number(leaf)
            self.stands.append(_Stand(number.slot))
            return number
        handle = self._handles.setdefault(id(leaf), self.trace.array(leaf))
        self.stands.append(_Stand(handle.buf.slot, handle, handle.buf))
        return handle

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """What fn gives on the trace. What it uses without being given it stays as it is."""
        before = [(a, a.snapshot(), self.trace.expect(a).buf.slot) for a in self.own]
        containers, was = kept(self.captures), form(self.captures)
        is_current = get_backend() is self.trace.target
        token = stand_in.set(self.trace.stand_in)
        try:
            with use_backend(self.trace.backend) if is_current else contextlib.nullcontext():
                with random.drawing_from(self.generator), paused():
                    value = call()
            if form(self.captures) != was:
                text = f"compile: {name} changes what is in captures="
                raise CaptureError(f"{text}; make it an argument, and return what is new")
            return value
        finally:
            stand_in.reset(token)
            put_back(containers)
            for a, then, slot in before:
                self.stands.append(_Stand(slot, a.snapshot(), then.buf))
                a.rebind(then)

    def finish(self, name: str, value: Any) -> Captured:
        """What is left of the run, where fn gave this value."""
        outputs: list[int] = []

        def output(a: Array) -> int:
            outputs.append(self.trace.stand_in.lift(a).buf.slot)
            return len(outputs) - 1

        def result(leaf: Any) -> Result:
            if isinstance(leaf, Number):
                outputs.append(leaf.slot)
                return Result(len(outputs) - 1, None)
            return Result(output(leaf), leaf.spec) if type(leaf) is Array else Result(None, None, leaf)

        try:
            results = tuple(map(result, tree.leaves(value)))
        except RecursionError:
            raise CaptureError(f"compile: what {name} returns contains itself; return a tree") from None
        handles = [(i, s.handle, s.buf) for i, s in enumerate(self.stands) if s.handle is not None]
        effects = tuple((i, output(a), a.spec) for i, a, buf in handles if a.buf is not buf)
        inputs = [s.slot for s in self.stands] + (self.state if self.generator.draws else [])
        program, backend = simplified(self.trace.program(name, inputs, outputs)), self.trace.target
        if backend.fusion is not None:
            program = fused(program, backend.fusion)
        run = runner(program)
        if backend.replay is not None:
            run = backend.replay(program, run)
        template = tree.unflatten(value, [leaf.constant if leaf.at is None else _ARRAY for leaf in results])
        build, draws = builder(template), self.generator.draws
        return Captured(program, run, backend, build, results, effects, draws)


_ARRAY = Spec((), float)  # stands for an array or a number in the template of a result: a Module takes it for a child
