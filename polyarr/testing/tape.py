"""What the tape keeps of an op: checks as those of checks.py, of its VJP rules and of a backend's pairs."""

import weakref
from collections.abc import Iterator
from typing import Any

import polyarr
from polyarr import ops, tree
from polyarr.core.array import Array, flatten
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.core.spec import FLOATS
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

        return Fused(forward, backward)

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
    """Of inputs and result, the tape keeps what the op's rules name, or what its pair takes, and nothing else."""
    is_pair = isinstance(backend.kernels.get(op), Fused)
    if not (is_pair or op.rules):
        raise Lacking(f"{op.name} runs as other ops, which are checked by themselves")
    watch = Watched(backend)
    inputs: list[Any] = []

    def fn(*given: Any) -> Any:
        inputs[:] = (tree.map(_passed_on, a) for a in given)
        watch.made = [weakref.ref(a.buf) for a in flatten(tuple(inputs)) if _carries(a)]
        return op(*inputs, **sample.params)

    with use_backend(watch.backend):
        value, pull = polyarr.vjp(fn, *sample.arrays(watch.backend))
    if watch.declined:
        raise Lacking(f"the pair of {backend.name} declines this call")
    named = [a for a, name in zip(inputs, op.inputs, strict=False) if is_pair or name in _needs(op)]
    results = sum(map(_carries, tree.leaves(value))) if "out" in _needs(op) and not is_pair else 0
    most = sum(map(_carries, flatten(tuple(named)))) + results
    inputs.clear()
    del value, named
    if (found := watch.alive()) > most:
        raise CheckFailure(
            f"{place_of(op, backend)}: after forward {found} buffers are kept; the gradient needs {most} at most"
        )
    del pull


def _passed_on(a: Any) -> Any:
    """The same values in a buffer that nobody but the op needs."""
    return ops.add(a, 0) if _carries(a) else a


def _carries(a: Any) -> bool:
    return type(a) is Array and a.dtype in FLOATS


def _needs(op: Op) -> set[str]:
    return {need for rule, needs in op.rules.values() if rule for need in needs}


@check
def check_wanted(op: Op, backend: Backend, sample: Sample) -> None:
    """A pair gives the same gradient whether it is asked for alone or with others, and saves a tree of buffers."""
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

    with use_backend(backend._replace(kernels={**backend.kernels, op: Fused(forward, pair.backward)})) as noting:
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
    value, pull = polyarr.vjp(lambda a: op(*args[:i], a, *args[i + 1 :], **sample.params), args[i])
    (found,) = pull(cotangents_of(value, sample))
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
