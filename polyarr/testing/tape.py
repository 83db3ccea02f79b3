"""Checks of the buffers that the tape keeps, for an op's VJP rules and a backend's Fused kernels."""

import functools
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import polyarr
from polyarr import ops, tree
from polyarr.autograd.arguments import carries_gradient
from polyarr.core.array import Array, flatten
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.core.spec import float32
from polyarr.testing.checks import check, cotangents_of, gradients_of, label_of
from polyarr.testing.compare import CheckFailure, Lacking, gradients_agree, values
from polyarr.testing.strategies import Sample

SEVERAL = 5  # with up to so many inputs, every subset is tried
PLAIN = (type(None), bool, int, float, str)


class TrackedBuffer:
    """A buffer that supports weak references, so that its release can be observed."""

    __slots__ = ("__weakref__", "buf")

    def __init__(self, buf: Any) -> None:
        self.buf = buf


class TrackingBackend:
    """A backend whose kernels return TrackedBuffers; `made` has weak references to them."""

    def __init__(self, backend: Backend) -> None:
        self.made: list[weakref.ref] = []
        self.declined: list[Op] = []
        self.plain = backend
        self.backend = backend._replace(
            kernels={op: self._tracking(op, kernel) for op, kernel in backend.kernels.items()},
            upload=lambda host: TrackedBuffer(backend.upload(host)),
            download=lambda held: backend.download(held.buf),
            download_later=None,
            home=self,
        )

    def alive(self) -> int:
        """Return the number of kernels' buffers that are still alive."""
        return sum(reference() is not None for reference in self.made)

    def _tracking(self, op: Op, kernel: Any) -> Any:
        if not isinstance(kernel, Fused):
            return lambda out, *bufs, **params: self._tracked(out, kernel(out, *_untracked(bufs), **params))

        def forward(out: Any, *bufs: Any, **params: Any) -> Any:
            found = kernel.forward(out, *_untracked(bufs), **params)
            if found is NotImplemented:
                self.declined.append(op)
                return found
            return self._tracked(out, found[0]), found[1]

        def backward(g: Any, saved: Any, *bufs: Any, **params: Any) -> Any:
            found = kernel.backward(_untracked(g), saved, *_untracked(bufs), **params)
            return tuple(self._of_input(d, b) for d, b in zip(found, bufs, strict=True))

        return kernel._replace(forward=forward, backward=backward)

    def _tracked(self, out: Any, found: Any) -> Any:
        if type(out) is tuple:
            return tuple(self._tracked(o, b) for o, b in zip(out, found, strict=True))
        held = TrackedBuffer(found)
        self.made.append(weakref.ref(held))
        return held

    def _of_input(self, gradient: Any, buf: Any) -> Any:
        return gradient if gradient is None else self._tracked(buf if type(buf) is tuple else None, gradient)


def _untracked(bufs: Any) -> Any:
    if type(bufs) is tuple:
        return tuple(map(_untracked, bufs))
    return bufs.buf if type(bufs) is TrackedBuffer else bufs


@check
def check_tape(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that the tape keeps only the inputs and results that the op's rules name or its Fused kernels need.

    This holds for the gradients of all inputs together, and for each input alone.
    """
    if not (isinstance(backend.kernels.get(op), Fused) or op.rules):
        raise Lacking(f"{op.name} runs as other ops, which are checked by themselves")
    carrying = [i for i, a in enumerate(sample.arrays(backend)) if any(map(carries_gradient, tree.leaves(a)))]
    for wanted in (carrying, *([i] for i in carrying if len(carrying) > 1)):
        kept, most = _kept(op, backend, sample, wanted)
        if kept > most:
            of = f"of {' and '.join(op.inputs[i] for i in wanted)} "
            raise CheckFailure(
                f"{label_of(op, backend)}: after forward {kept} buffers are kept; the gradient {of}needs {most} at most"
            )


def _kept(op: Op, backend: Backend, sample: Sample, wanted: list[int]) -> tuple[int, int]:
    """Return how many buffers the tape keeps for the gradients of these inputs, and the largest number allowed."""
    kernel, watch = backend.kernels.get(op), TrackingBackend(backend)
    needed = _needs(op, kernel, {op.inputs[i] for i in wanted})
    kept = most = 0

    def fn(*given: Any) -> Array:
        nonlocal kept, most
        inputs = [tree.map(_passed_on, a) for a in given]
        watch.made = [weakref.ref(a.buf) for a in flatten(tuple(inputs)) if carries_gradient(a)]
        value = op(*inputs, **sample.params)
        named = [a for a, name in zip(inputs, op.inputs, strict=False) if name in needed]
        results = sum(map(carries_gradient, tree.leaves(value))) if "out" in needed else 0
        most = sum(map(carries_gradient, flatten(tuple(named)))) + results
        total = _total(value)
        del inputs, named, value
        kept = watch.alive() - 1  # not counting the total
        return total

    with use_backend(watch.backend):
        polyarr.value_and_grad(fn, tuple(wanted))(*sample.arrays(watch.backend))
    if watch.declined:
        raise Lacking(f"the fused kernel of {backend.name} declines this call")
    return kept, most


def _needs(op: Op, kernel: Any, wanted: set[str]) -> set[str]:
    """Return the names of inputs (or "out") that the gradients of the wanted inputs need."""
    if isinstance(kernel, Fused):
        return {name for one in wanted for name in kernel.needs.get(one, op.inputs)}
    return {need for name in wanted if op.rules[name][0] for need in op.rules[name][1]}


def _total(value: Any) -> Array:
    """Return a scalar whose gradient keeps nothing of `value` alive."""
    parts = [ops.astype(ops.real(ops.sum(a)), dtype=float32) for a in tree.leaves(value) if carries_gradient(a)]
    return functools.reduce(ops.add, parts, polyarr.zeros(()))


def _passed_on(a: Any) -> Any:
    """Return the same values in a buffer that only the op refers to."""
    return ops.add(a, 0) if carries_gradient(a) else a


@check
def check_wanted(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that Fused kernels give the same gradients for every subset that is wanted, and save a tree of buffers.

    For a subset, backward gets only the inputs that the kernels declare as needed.
    """
    kernel = backend.kernels.get(op)
    if not isinstance(kernel, Fused):
        raise Lacking(f"{backend.name} has no fused kernel with a VJP for {op.name}, which is checked without")
    place, known = label_of(op, backend), set[type]()

    def forward(out: Any, *bufs: Any, **params: Any) -> Any:
        found = kernel.forward(out, *bufs, **params)
        if found is not NotImplemented:
            known.update(map(type, (*_members(bufs), *(found[0] if type(out) is tuple else (found[0],)))))
            _check_saved(place, found[1], known)
        return found

    with use_backend(backend._replace(kernels={**backend.kernels, op: kernel._replace(forward=forward)})) as observing:
        args = sample.arrays(observing)
        together = _values(place, gradients_of(op, args, sample))
        for paths in _subsets([path for path, a in tree.items(args) if carries_gradient(a)]):
            found = _values(place, _asked_for(op, args, paths, sample))
            how = "asked for alone, " if len(found) == 1 else f"asked for with {len(found) - 1} of the others, "
            gradients_agree(place, found, {name: together[name] for name in found}, how)


def _values(place: str, grads: dict[str, Array]) -> dict:
    return {name: values(place, g, f"d/d{name}")[0] for name, g in grads.items()}


def _subsets(paths: list[tuple]) -> Iterator[tuple[tuple, ...]]:
    """Yield the proper subsets of the inputs; of many inputs, those of one, of two and of all but one."""
    sizes = range(1, len(paths)) if len(paths) <= SEVERAL else (1, 2, len(paths) - 1)
    for size in sizes:
        yield from itertools.combinations(paths, size)


def _asked_for(op: Op, args: tuple, paths: tuple[tuple, ...], sample: Sample) -> dict[str, Array]:
    """Return the gradients of these inputs; no other gradient is requested."""

    def weighted(*asked: Array) -> Array:
        chosen = dict(zip(paths, asked, strict=True))
        leaves = [chosen.get(path, leaf) for path, leaf in tree.items(args)]
        value = op(*tree.unflatten(args, leaves), **sample.params)
        return _total(tree.map(lambda v, g: v * g if carries_gradient(v) else v, value, cotangents_of(value, sample)))

    members = dict(tree.items(args))
    found = polyarr.grad(weighted, tuple(range(len(paths))))(*(members[path] for path in paths))
    return {op.inputs[path[0]] + "".join(f"[{k}]" for k in path[1:]): g for path, g in zip(paths, found, strict=True)}


def _members(bufs: tuple) -> Iterator[Any]:
    """Yield every buffer among the inputs; a list is a plain tuple, while a buffer may be a tuple subclass."""
    for buf in bufs:
        yield from _members(buf) if type(buf) is tuple else (buf,)


def _check_saved(place: str, saved: Any, known: set[type]) -> None:
    if type(saved) in known or isinstance(saved, PLAIN):
        return
    if not isinstance(saved, tuple):
        kind = f"{type(saved).__module__}.{type(saved).__qualname__}"
        due = "it must be a tree of tuples, buffers and plain values"
        raise CheckFailure(f"{place}: the fused kernel saves a {kind}; {due}")
    for member in saved:
        _check_saved(place, member, known)
