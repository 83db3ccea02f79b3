"""Level: one call of vmap. Its backend takes the place of the real one while the mapped function runs.

The function sees arrays with the shape of one example. Their buffers hold an inner array, with the examples along
axis 0 if the array is mapped. The kernels of the backend are batching rules, which call ops on the inner arrays; an op
without a rule runs its decomposition, whose ops have rules. The tape of a gradient transform inside the function
records arrays of the level, and that of one outside records the inner arrays, so neither knows of the other.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from polyarr import ops, random, tree
from polyarr.autograd.arguments import two_values
from polyarr.autograd.transforms import stop_gradient, vjp
from polyarr.core.array import Array, flatten, from_numpy, spec_of, values_of
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import CaptureContext, capturing, current_level, get_backend, renewed, traced, use_backend
from polyarr.core.errors import BatchingError, GradientError
from polyarr.core.number import user_location
from polyarr.core.op import Op
from polyarr.core.precision import PRECISIONS
from polyarr.core.spec import Spec
from polyarr.core.tape import depth, reading, reads

KEPT = "uses an array that a mapped function kept; return it"


class Batched:
    """Buffer of a level: an array outside of it, and whether its axis 0 counts the examples."""

    __slots__ = ("array", "is_mapped")

    def __init__(self, array: Array, is_mapped: bool) -> None:
        self.array, self.is_mapped = array, is_mapped

    @property
    def spec(self) -> Spec:
        """Spec of one example."""
        spec = self.array.spec
        return Spec(spec.shape[1:], spec.dtype) if self.is_mapped else spec


class Call(NamedTuple):
    """A call of an op on a level, as batching rules receive it.

    Attributes:
        op: The op.
        size: Number of examples.
        out: Spec, or tuple of Specs, of the result for one example.
        randomness: The `randomness` of vmap.
        inner: Backend outside of the level.
    """

    op: Op
    size: int
    out: Any
    randomness: str
    inner: Backend


# (Call, *buffers, **params) -> the result as arrays with the examples along axis 0, a Batched, or NotImplemented for a
# call that the op's decomposition must serve. Numbers and None arrive as they are, lists of arrays as tuples.
Rule = Callable[..., Any]


class Rules(NamedTuple):
    """Batching rules.

    Attributes:
        of: Op -> rule.
        creation: Ops whose rule runs even if no input is mapped.
        fallback: Rule of a primitive that has none: it loops over the examples.
    """

    of: dict[Op, Rule]
    creation: frozenset[Op]
    fallback: Rule


class _All(dict):
    """Mapping that computes the value of any op, for Backend.reads and Backend.precisions."""

    def __init__(self, value: Callable[[Op], tuple[str, ...]]) -> None:
        self._value = value

    def get(self, op: Any, _: Any = None) -> Any:
        return self._value(op)


_READS = _All(lambda op: op.inputs)  # rules take scalar inputs as arrays
_PRECISIONS = _All(lambda op: PRECISIONS)  # the inner op decides


class _Kernels(Mapping):
    """Table of kernels of a level over an inner backend, filled as ops are called."""

    def __init__(self, level: "Level", inner: Backend) -> None:
        self._level, self._inner = level, inner
        self._found: dict[Op, Any] = {}

    def get(self, op: Op, default: Any = None) -> Any:
        if op not in self._found:
            self._found[op] = self._level.kernel(op, self._inner)
        found = self._found[op]
        return default if found is None else found

    def __getitem__(self, op: Op) -> Any:
        found = self.get(op)
        if found is None:
            raise KeyError(op)
        return found

    def __iter__(self) -> Iterator[Op]:
        return iter(self._inner.kernels)

    def __len__(self) -> int:
        return len(self._inner.kernels)


class _Around(NamedTuple):
    """The context that a level was entered from: what was active there.

    Attributes:
        capture: The capture or outer vmap; None if there was none.
        reads: The `reading` block of the tape.
        depth: Number of gradient transforms.
        current: Current backend.
    """

    capture: CaptureContext | None
    reads: Any
    depth: int
    current: Backend


class Level:
    """One call of vmap.

    Attributes:
        size: Number of examples.
        randomness: The `randomness` of vmap.
        rules: Batching rules.
    """

    def __init__(self, size: int, randomness: str, rules: Rules, inner: Backend) -> None:
        self.size, self.randomness, self.rules = size, randomness, rules
        self._backends: dict[int, tuple[Backend, Backend]] = {}  # inner backends, and those of this level over them
        self._inner = inner
        self._around: _Around | None = None

    # ---- the context of the mapped function --------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the mapped function within this block. A pull may enter it again, in another context."""
        before, self._around = self._around, _Around(capturing.get(), reads.get(), depth(), get_backend())
        target = self._inner if self._around.capture is None else self._around.capture.target
        own = self.over(self._inner)
        context = CaptureContext(target, own, self.lift, self.lift, self._renewed, self._constant, self)
        tokens = capturing.set(context), reads.set(None)
        try:
            generator = _OuterGenerator(self, random.current())
            with use_backend(self.over(self._around.current)), random.drawing_from(generator):
                yield
        finally:
            capturing.reset(tokens[0])
            reads.reset(tokens[1])
            self._around = before

    def outside(self) -> AbstractContextManager[None]:
        """Return a context manager within which ops on inner arrays run.

        Raises:
            BatchingError: The mapped function has returned.
        """
        if self._around is None:
            raise BatchingError(f"vmap: {user_location()} {KEPT}")
        return self._outside(self._around)

    @contextmanager
    def _outside(self, around: "_Around") -> Iterator[None]:
        tokens = capturing.set(around.capture), reads.set(around.reads)
        try:
            yield
        finally:
            capturing.reset(tokens[0])
            reads.reset(tokens[1])

    @contextmanager
    def around(self) -> Iterator[None]:
        """Run a block as code around vmap: with ops on inner arrays, and new arrays on the backend of that code."""
        with self.outside(), use_backend(self._around.current):  # type: ignore[union-attr]
            yield

    @property
    def transforms(self) -> tuple[int, int]:
        """Number of gradient transforms around the mapped function, and inside it around this point."""
        outer = self._around.depth if self._around else 0
        return outer, depth() - outer

    def over(self, inner: Backend) -> Backend:
        """Return the backend of arrays of this level whose inner arrays are on `inner`."""
        if id(inner) not in self._backends:
            own = inner._replace(
                kernels=_Kernels(self, inner),
                upload=partial(self._upload, inner),
                download=self._download,
                download_later=None,
                synchronize=lambda: None,
                unordered=frozenset(),
                guarded=None,
                observing=None,
                reads=_READS,
                precisions=_PRECISIONS,
                home=inner.name if inner.home is None else inner.home,
                transfer=None,
                dlpack=None,
                replay=None,
                fusion=None,
                collectives=None,
            )
            self._backends[id(inner)] = inner, own
        return self._backends[id(inner)][1]

    def owns(self, backend: Backend) -> bool:
        """Return whether a backend is one of this level."""
        return any(backend is own for _, own in self._backends.values())

    # ---- arrays ------------------------------------------------------------------------------------------------

    def lift(self, a: Array) -> Array:
        """Return an array as one of this level: the array itself, or one that all examples share."""
        if self.owns(a.backend):
            return a
        token = capturing.set(self._around and self._around.capture)
        try:
            inner = traced(a)
        finally:
            capturing.reset(token)
        return Array(self.over(inner.backend), Batched(inner, False), inner.spec)

    def mapped(self, a: Array) -> Array:
        """Return the array of this level whose examples are along axis 0 of an inner array."""
        return Array(self.over(a.backend), Batched(a, True), Spec(a.spec.shape[1:], a.spec.dtype))

    def inner(self, a: Array) -> Batched:
        """Return the buffer of an array, lifted if it is from outside of the level."""
        return self.lift(a).buf

    def rebound(self, handle: Array, other: Array) -> Array:
        """Return what `handle` is to refer to if it is rebound to `other`.

        Raises:
            BatchingError: The handle belongs to the code around vmap, and `other` differs between examples.
        """
        if self.owns(handle.backend):
            return self.lift(other)
        found = self.inner(other)
        if found.is_mapped:
            given = f"{user_location()} writes mapped values into an array {handle.spec} that is not mapped"
            raise BatchingError(f"vmap: {given}; make it an argument that is mapped, and return it")
        with self.outside():
            around = current_level()
            return found.array if around is None else around.rebound(handle, found.array)

    def differ(self, a: Array, b: Array, outside: Callable[[Array, Array], bool]) -> bool:
        """Return whether two arrays differ, by `outside` of their inner arrays: each lift of one makes a buffer."""
        x, y = self.inner(a), self.inner(b)
        with self.outside():
            return x.is_mapped != y.is_mapped or outside(x.array, y.array)

    def moved(self, a: Array, target: Backend) -> Array:
        """Return an array whose inner array is on another backend: `target`, or the one that it stands for."""
        found = self.inner(a)
        with self.outside():
            there = found.array.to(next((b for b, own in self._backends.values() if own is target), target))
        return Array(self.over(there.backend), Batched(there, found.is_mapped), a.spec)

    def stopped(self, a: Array) -> Array:
        """Return the same values, through which no gradient flows, neither inside nor outside of the level."""
        found = self.inner(a)
        with self.outside():
            return Array(self.lift(a).backend, Batched(stop_gradient(found.array), found.is_mapped), a.spec)

    def _renewed(self, leaf: Any) -> Any:
        if type(leaf) is not Array:
            return leaf
        lifted = self.lift(leaf)
        with self.outside():
            again = renewed(lifted.buf.array)
        return Array(lifted.backend, Batched(again, lifted.buf.is_mapped), lifted.spec, lifted.node)

    def _constant(self, buf: Any, spec: Spec) -> NoReturn:
        raise BatchingError(f"vmap: {user_location()} replays a captured program; call the function itself")

    def _upload(self, inner: Backend, host: np.ndarray) -> Batched:
        with self.outside():
            return Batched(from_numpy(host, inner), False)

    def _download(self, buf: Batched) -> np.ndarray:
        if buf.is_mapped:
            reads_values = f"{user_location()} reads the values of a mapped array {buf.spec}, which differ by example"
            raise BatchingError(f"vmap: {reads_values}; compute with pa.where instead, or read what vmap returns")
        with self.outside():
            return values_of(buf.array)

    # ---- transforms that belong outside of the level -----------------------------------------------------------

    def outward(self, transform: Callable, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return transform(fn)(*args, **kwargs), with the transform applied to inner arrays."""
        given, form = self._unwrapped((args, kwargs))
        value_form: list[_Form] = []

        def inner(*arrays: Array) -> list[Array]:
            with self.active(), reading() as read:
                wrapped = self._wrapped(form, arrays)
                value = fn(*wrapped[0], **wrapped[1])
                own_handles = {id(leaf) for leaf in tree.leaves((wrapped, value))}
                if changed := [a for a in read.rebound if id(a) not in own_handles]:
                    what = f"a checkpoint inside vmap changes an array {changed[0].spec} that it closes over in place"
                    raise BatchingError(f"vmap: {what}; return the new value instead")
                found, own = self._unwrapped(value)
            value_form[:] = [own]
            return found

        with self.around():
            found = transform(inner)(*given)
        return self._wrapped(value_form[0], found)

    def custom_vjp(self, transform: Callable, fn: Callable, forward: Callable, backward: Callable, args: tuple) -> Any:
        """Return custom_vjp(fn, forward, backward)(*args), with the gradient stated for inner arrays."""
        given, form = self._unwrapped(args)
        forms: list[_Form] = []

        def called(function: Callable, *arrays: Array) -> tuple:
            with self.active(), reading() as read:
                found = function(*self._wrapped(form, arrays))
                for spec in read.nodes.values():
                    what = f"an array {spec} is differentiated and is no argument of fn"
                    raise GradientError(f"custom_vjp: {what}; make it one, or use stop_gradient on it")
                due = "(value, saved)"
                value, kept = two_values(found, "custom_vjp: forward", due) if len(forms) else (found, None)
                both = self._unwrapped(value, is_spread=True), self._unwrapped(kept)
            forms[:] = [own for _, own in both]
            return tuple(arrays for arrays, _ in both)

        def inner_forward(*arrays: Array) -> tuple:
            forms[:] = [form]
            return called(forward, *arrays)

        def inner_backward(kept: list, g: list) -> tuple:
            with self.active():
                grads = backward(self._wrapped(forms[1], kept), self._wrapped(forms[0], g))
                return tuple(self._gradients(form, grads))

        with self.around():
            found = transform(lambda *arrays: called(fn, *arrays)[0], inner_forward, inner_backward)(*given)
        return self._wrapped(forms[0], found)

    def _unwrapped(self, value: Any, is_spread: bool = False) -> tuple[list[Array], "_Form"]:
        """Return the inner arrays of a tree, and what is needed to wrap others like them."""
        leaves = tree.leaves(value)
        bufs = [self.inner(leaf) for leaf in leaves if type(leaf) is Array]
        if is_spread:
            with self.outside():
                bufs = [Batched(spread(b, self.size), True) for b in bufs]
        blank = tree.unflatten(value, [_BLANK if type(leaf) is Array else leaf for leaf in leaves])
        return [b.array for b in bufs], _Form(blank, tuple(b.is_mapped for b in bufs))

    def _wrapped(self, form: "_Form", arrays: Any) -> Any:
        lifted = (self.mapped(a) if m else self.lift(a) for a, m in zip(arrays, form.is_mapped, strict=True))
        return tree.unflatten(form.tree, [next(lifted) if leaf is _BLANK else leaf for leaf in tree.leaves(form.tree)])

    def _gradients(self, form: "_Form", grads: Any) -> Iterator[Array | None]:
        """Yield the gradients of inner arrays; what the examples share has the sum of theirs."""
        found, mapped = dict(tree.items(tuple(grads))), iter(form.is_mapped)
        for path, leaf in tree.items(form.tree):
            if leaf is not _BLANK:
                continue
            is_mapped, g = next(mapped), found.get(path)
            if g is None:
                yield None
                continue
            buf = self.inner(g)
            with self.outside():
                whole = spread(buf, self.size)
                yield whole if is_mapped else ops.sum(whole, axis=0)

    # ---- kernels -----------------------------------------------------------------------------------------------

    def kernel(self, op: Op, inner: Backend) -> Any:
        """Return the kernel of an op on arrays over `inner`; None if its decomposition serves, or `inner` lacks it."""
        rule = self.rules.of.get(op)
        if op.group and op.decomposition is None and op not in inner.kernels:
            return None
        if op.decomposition is None:
            return partial(self._run, op, rule or self.rules.fallback, inner)
        if rule is None:
            return None
        if op.rules:
            return partial(self._run_or_decompose, op, rule, inner)
        return Fused(partial(self._forward, op, rule, inner), partial(self._backward, op, rule, inner))

    def _run(self, op: Op, rule: Rule, inner: Backend, out: Any, *bufs: Any, **params: Any) -> Any:
        """Run a rule; without a mapped input, the op itself."""
        if (around := self._around) is None:
            raise BatchingError(f"vmap: {user_location()} {KEPT}")
        token, other = capturing.set(around.capture), reads.set(around.reads)
        try:  # outside(), written out for speed
            if op in self.rules.creation or any(map(is_mapped, flatten(bufs))):
                return _buffers(rule(Call(op, self.size, out, self.randomness, inner), *bufs, **params), True)
            return _buffers(op(*map(plain, bufs), **params), False)
        finally:
            capturing.reset(token)
            reads.reset(other)

    def _run_or_decompose(self, op: Op, rule: Rule, inner: Backend, out: Any, *bufs: Any, **params: Any) -> Any:
        found = self._run(op, rule, inner, out, *bufs, **params)
        if found is not NotImplemented:
            return found
        args = tuple(self._handle(b) for b in bufs)
        value = op.run_decomposition(op.plan(tuple(map(spec_of, args)), params), args, params)
        return value.buf if type(value) is Array else tuple(self.inner(a) for a in value)

    def _handle(self, buf: Any) -> Any:
        if type(buf) is tuple:
            return tuple(map(self._handle, buf))
        return Array(self.over(buf.array.backend), buf, buf.spec) if type(buf) is Batched else buf

    def _forward(self, op: Op, rule: Rule, inner: Backend, out: Any, *bufs: Any, **params: Any) -> Any:
        found = self._run(op, rule, inner, out, *bufs, **params)
        return found if found is NotImplemented else (found, (out,))

    def _backward(
        self, op: Op, rule: Rule, inner: Backend, g: Any, saved: Any, *bufs: Any, wanted: tuple, **params: Any
    ) -> tuple:
        """Return the gradients of the mapped inputs, by pulling back through the rule.

        A shared input has a gradient per example, which the rule would add up: its decomposition gives it.
        """
        places = [i for i, want in enumerate(wanted) if want is True]
        if any(not is_mapped(bufs[i]) for i in places) or any(want for want in wanted if type(want) is tuple):
            return (None,) * len(bufs)
        call = Call(op, self.size, saved[0], self.randomness, inner)

        def value(*given: Array) -> Any:
            found = dict(zip(places, given, strict=True))
            return rule(call, *[Batched(found[i], True) if i in found else b for i, b in enumerate(bufs)], **params)

        with self.outside():
            _, pull = vjp(value, *[bufs[i].array for i in places])
            grads = dict(zip(places, pull(_spread(g, self.size)), strict=True))
        return tuple(Batched(grads[i], True) if i in grads else None for i in range(len(bufs)))


class _OuterGenerator(random.Generator):
    """The random generator from outside of a level, whose state stays outside."""

    def __init__(self, level: Level, generator: random.Generator) -> None:
        self._level, self._generator = level, generator

    @property
    def seed(self) -> Any:
        """Seed of the generator."""
        return self._generator.seed

    @property
    def counter(self) -> Any:
        """Number of draws so far."""
        return self._generator.counter

    def draw(self) -> Any:
        with self._level.outside():
            return self._generator.draw()

    def reserve(self, count: int) -> Any:
        with self._level.outside():
            return self._generator.reserve(count)

    def release(self, state: Any, count: int) -> None:
        with self._level.outside():
            self._generator.release(state, count)

    def restart(self, seed: Any, counter: Any) -> None:
        self._generator.restart(seed, counter)


class _Form(NamedTuple):
    """A tree with `_BLANK` in place of its arrays, and whether each of these is mapped."""

    tree: Any
    is_mapped: tuple[bool, ...]


_BLANK = object()


def spread(buf: Batched, size: int) -> Array:
    """Return an array of all examples, repeated along axis 0 if they share it."""
    a = buf.array
    return a if buf.is_mapped else ops.broadcast_to(a, shape=(size, *a.shape))


def _spread(g: Any, size: int) -> Any:
    return tuple(_spread(part, size) for part in g) if type(g) is tuple else spread(g, size)


def is_mapped(buf: Any) -> bool:
    """Return whether an input has the examples along axis 0."""
    return type(buf) is Batched and buf.is_mapped


def plain(buf: Any) -> Any:
    """Return the inner array of a buffer, also in tuples; anything else, such as numbers and None, unchanged."""
    return tuple(map(plain, buf)) if type(buf) is tuple else buf.array if type(buf) is Batched else buf


def _buffers(found: Any, is_mapped: bool) -> Any:
    """Return the arrays that a rule returned as buffers."""
    if type(found) is tuple:
        return tuple(_buffers(part, is_mapped) for part in found)
    return Batched(found, is_mapped) if type(found) is Array else found
