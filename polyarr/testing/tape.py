"""What the tape keeps of an op: checks as those of checks.py, of its VJP rules and of a backend's pairs."""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import polyarr
from polyarr import ops, tree
from polyarr.core.array import Array, flatten
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.core.spec import FLOATS, float32
from polyarr.testing.checks import check, cotangents_of, place_of, pulled
from polyarr.testing.compare import CheckFailure, Lacking, gradients_agree, values
from polyarr.testing.strategies import Sample

PLAIN = (type(None), bool, int, float, str)


class Held:
    """A buffer that one can see being given up."""

    __slots__ = ("__weakref__", "buf")

    def __init__(self, buf: Any) -> None:
        self.buf = buf


class Watched:
    """A backend whose kernels give Held buffers. What they gave is in `made`, as weak references."""

    def __init__(self, backend: Backend) -> None:
        self.made: list[weakref.ref] = []
        self.declined: list[Op] = []
        self.plain = backend
        self.backend = backend._replace(
            kernels={op: self._watched(op, kernel) for op, kernel in backend.kernels.items()},
            upload=lambda host: Held(backend.upload(host)),
            download=lambda held: backend.download(held.buf),
            home=self,
        )

    def alive(self) -> int:
        """How many buffers that kernels gave are still there."""
        return sum(reference() is not None for reference in self.made)

    def _watched(self, op: Op, kernel: Any) -> Any:
        if not isinstance(kernel, Fused):
            return lambda out, *bufs, **params: self._held(out, kernel(out, *_freed(bufs), **params))

        def forward(out: Any, *bufs: Any, **params: Any) -> Any:
            found = kernel.forward(out, *_freed(bufs), **params)
            if found is NotImplemented:
                self.declined.append(op)
                return found
            return self._held(out, found[0]), found[1]

        def backward(g: Any, saved: Any, *bufs: Any, **params: Any) -> Any:
            found = kernel.backward(_freed(g), saved, *_freed(bufs), **params)
            return tuple(self._of_input(d, b) for d, b in zip(found, bufs, strict=True))

        return kernel._replace(forward=forward, backward=backward)

    def _held(self, out: Any, found: Any) -> Any:
        if type(out) is tuple:
            return tuple(self._held(o, b) for o, b in zip(out, found, strict=True))
        held = Held(found)
        self.made.append(weakref.ref(held))
        return held

    def _of_input(self, gradient: Any, buf: Any) -> Any:
        return gradient if gradient is None else self._held(buf if type(buf) is tuple else None, gradient)


def _freed(bufs: Any) -> Any:
    if type(bufs) is tuple:
        return tuple(map(_freed, bufs))
    return bufs.buf if type(bufs) is Held else bufs


@check
def check_tape(op: Op, backend: Backend, sample: Sample) -> None:
    """Of inputs and result, the tape keeps what the op's rules name, or what its pair needs, and nothing else.

    So it does for the gradients of all inputs, and for that of each of them alone.
    """
    if not (isinstance(backend.kernels.get(op), Fused) or op.rules):
        raise Lacking(f"{op.name} runs as other ops, which are checked by themselves")
    carrying = [i for i, a in enumerate(sample.arrays(backend)) if any(map(_carries, tree.leaves(a)))]
    for wanted in (carrying, *([i] for i in carrying if len(carrying) > 1)):
        kept, most = _kept(op, backend, sample, wanted)
        if kept > most:
            of = f"of {' and '.join(op.inputs[i] for i in wanted)} "
            raise CheckFailure(
                f"{place_of(op, backend)}: after forward {kept} buffers are kept; the gradient {of}needs {most} at most"
            )


def _kept(op: Op, backend: Backend, sample: Sample, wanted: list[int]) -> tuple[int, int]:
    """How many buffers the tape keeps for the gradients of these inputs, and how many it may."""
    pair, watch = backend.kernels.get(op), Watched(backend)
    needed = _needs(op, pair, {op.inputs[i] for i in wanted})
    kept = most = 0

    def fn(*given: Any) -> Array:
        nonlocal kept, most
        inputs = [tree.map(_passed_on, a) for a in given]
        watch.made = [weakref.ref(a.buf) for a in flatten(tuple(inputs)) if _carries(a)]
        value = op(*inputs, **sample.params)
        named = [a for a, name in zip(inputs, op.inputs, strict=False) if name in needed]
        results = sum(map(_carries, tree.leaves(value))) if "out" in needed else 0
        most = sum(map(_carries, flatten(tuple(named)))) + results
        total = _total(value)
        del inputs, named, value
        kept = watch.alive() - 1  # the total
        return total

    with use_backend(watch.backend):
        polyarr.value_and_grad(fn, tuple(wanted))(*sample.arrays(watch.backend))
    if watch.declined:
        raise Lacking(f"the pair of {backend.name} declines this call")
    return kept, most


def _needs(op: Op, pair: Any, wanted: set[str]) -> set[str]:
    """What the gradients of these inputs need, by name."""
    if isinstance(pair, Fused):
        return {name for one in wanted for name in pair.needs.get(one, op.inputs)}
    return {need for name in wanted if op.rules[name][0] for need in op.rules[name][1]}


def _total(value: Any) -> Array:
    """A scalar whose gradient, as the tape sees it, needs nothing of value."""
    parts = [ops.astype(ops.sum(a), dtype=float32) for a in tree.leaves(value) if _carries(a)]
    return functools.reduce(ops.add, parts, polyarr.zeros(()))


def _passed_on(a: Any) -> Any:
    """The same values in a buffer that nobody but the op needs."""
    return ops.add(a, 0) if _carries(a) else a


def _carries(a: Any) -> bool:
    return type(a) is Array and a.dtype in FLOATS


@check
def check_wanted(op: Op, backend: Backend, sample: Sample) -> None:
    """A pair gives the same gradient whether it is asked for alone or with others, and saves a tree of buffers.

    Asked for alone it has to do with what it says that it needs.
    """
    pair = backend.kernels.get(op)
    if not isinstance(pair, Fused):
        raise Lacking(f"{backend.name} brings no pair for {op.name}: its body runs")
    place, known = place_of(op, backend), set[type]()

    def forward(out: Any, *bufs: Any, **params: Any) -> Any:
        found = pair.forward(out, *bufs, **params)
        if found is not NotImplemented:
            known.update(map(type, (*_members(bufs), *(found[0] if type(out) is tuple else (found[0],)))))
            _check_saved(place, found[1], known)
        return found

    with use_backend(backend._replace(kernels={**backend.kernels, op: pair._replace(forward=forward)})) as noting:
        args = sample.arrays(noting)
        together = _values(place, pulled(op, args, sample))
        for i, a in enumerate(args):
            if any(map(_carries, tree.leaves(a))):
                alone = _values(place, _alone(op, args, i, sample))
                gradients_agree(place, alone, {name: together[name] for name in alone}, "asked for alone, ")


def _values(place: str, grads: dict[str, Array]) -> dict:
    return {name: values(place, g, f"d/d{name}")[0] for name, g in grads.items()}


def _alone(op: Op, args: tuple, i: int, sample: Sample) -> dict[str, Array]:
    """The gradient of one input, nobody asking for the others."""

    def weighted(a: Any) -> Array:
        value = op(*args[:i], a, *args[i + 1 :], **sample.params)
        return _total(tree.map(lambda v, g: v * g if _carries(v) else v, value, cotangents_of(value, sample)))

    found = polyarr.grad(weighted)(args[i])
    named = {op.inputs[i] + "".join(f"[{k}]" for k in path): g for path, g in tree.items(found)}
    return {name: g for name, g in named.items() if type(g) is Array}


def _members(bufs: tuple) -> Iterator[Any]:
    """Every buffer among the inputs; a list is a plain tuple, while a buffer may be a tuple of another type."""
    for buf in bufs:
        yield from _members(buf) if type(buf) is tuple else (buf,)


def _check_saved(place: str, saved: Any, known: set[type]) -> None:
    if type(saved) in known or isinstance(saved, PLAIN):
        return
    if not isinstance(saved, tuple):
        kind = f"{type(saved).__module__}.{type(saved).__qualname__}"
        raise CheckFailure(f"{place}: the pair saves a {kind}; it must be a tree of tuples, buffers and plain values")
    for member in saved:
        _check_saved(place, member, known)
