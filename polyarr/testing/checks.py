"""What must hold for any op on any backend. Plain functions, usable from a prompt:

    from polyarr import ops
    from polyarr.testing import Data, Sample, checks
    checks.check_forward(ops.exp, "opencl", Sample((Data((3,)),)))

Each takes an op, a backend (or its name) and a Sample, and raises CheckFailure: which op on which backend, what
differs, where and by how much. What to type to see it again is attached as a note.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import polyarr
from polyarr import ops, tree
from polyarr.core.backend import Backend
from polyarr.core.op import Array, Op
from polyarr.core.spec import FLOATS
from polyarr.plugins import get_backend, use_backend
from polyarr.testing.samples import SAMPLES, Entry
from polyarr.testing.strategies import LAYOUTS, Data, Sample
from polyarr.testing.tolerance import FLOOR, GRADIENT_FLOOR, allowed, largest

STEP = 1e-5  # of central differences in float64: truncation and rounding are both about 1e-10
NUMERIC = 2e-6  # what they may differ by, relative to the sum of what was added up


class CheckFailure(AssertionError):  # noqa: N818  a verdict, not a mishap
    """A check that did not hold."""


def _check(fn: Callable) -> Callable:
    """A check: the backend may be given by name, and any error gets a note with what to type."""

    @functools.wraps(fn)
    def wrapped(op: Op, backend: str | Backend, sample: Sample) -> None:
        found = get_backend(backend)
        try:
            with use_backend(found):
                fn(op, found, sample)
        except Exception as error:
            error.add_note(
                "to see it again:\n    from polyarr import ops\n    from polyarr.testing import Data, Sample, checks\n"
                f"    checks.{fn.__name__}(ops.{op.name}, {found.name!r}, {sample!r})"
            )
            raise

    return wrapped


# ---- the checks ----------------------------------------------------------------------------------------------


@_check
def check_forward(op: Op, backend: Backend, sample: Sample) -> None:
    """The value agrees with the reference in float64."""
    entry = SAMPLES[op]
    got = _values(op(*sample.arrays(backend), **sample.params))
    expected = _reference(op, entry, sample.hosts(entry.wide), sample.params)
    bounds = _magnitudes(op, entry, sample, expected)
    _same_count(op, backend, got, expected)
    for i, (g, e, m) in enumerate(zip(got, expected, bounds, strict=True)):
        what = "the result" if len(got) == 1 else f"result {i}"
        _close(op, backend, what, g, e, entry.kind, m)
        if entry.signed_zeros:
            _same_zeros(op, backend, what, g, e)


@_check
def check_backward(op: Op, backend: Backend, sample: Sample) -> None:
    """The gradients agree with those of NumPy in float64."""
    got = _gradients(op, backend, sample)
    if got:
        expected = _gradients(op, get_backend("numpy"), sample, wide=True)
        _compare_gradients(op, backend, got, expected)


@_check
def check_fused_pair(op: Op, backend: Backend, sample: Sample) -> None:
    """The backend's pair agrees with the backend without it, in value and in gradients."""
    plain = backend.without_fused()
    got = _values(op(*sample.arrays(backend), **sample.params))
    with use_backend(plain):
        expected = _values(op(*sample.arrays(plain), **sample.params))
    for g, e in zip(got, expected, strict=True):
        _close(op, backend, "the pair's result", g, e, "fused", max(FLOOR, largest(e)))
    _compare_gradients(op, backend, _gradients(op, backend, sample), _gradients(op, plain, sample), "the pair's ")


@_check
def check_gradient(op: Op, backend: Backend, sample: Sample) -> None:
    """In float64: the gradient along a random direction agrees with central differences."""
    value = _scalar(op, backend, sample)
    grads = polyarr.grad(value, argnums=tuple(range(len(sample.inputs))))(*sample.arrays(backend, wide=True))
    _compare_numeric(op, backend, sample, "the gradient", lambda *args: value(*args).item(), grads)


@_check
def check_second_order(op: Op, backend: Backend, sample: Sample) -> None:
    """In float64: the gradient of <v, gradient> agrees with central differences of <v, gradient>."""
    slope = _slope(op, backend, sample)
    grads = polyarr.grad(slope, argnums=tuple(range(len(sample.inputs))))(*sample.arrays(backend, wide=True))
    _compare_numeric(op, backend, sample, "the second derivative", lambda *args: slope(*args).item(), grads)


@_check
def check_second_order_agrees(op: Op, backend: Backend, sample: Sample) -> None:
    """The gradient of <v, gradient> agrees with NumPy in float64."""
    found = []
    for place, wide in ((backend, False), (get_backend("numpy"), True)):
        slope = _slope(op, place, sample, wide)
        with use_backend(place):
            grads = polyarr.grad(slope, argnums=tuple(range(len(sample.inputs))))(*sample.arrays(place, wide))
        found.append({name: g.numpy() for name, g in _named(op, grads).items()})
    _compare_gradients(op, backend, *found, "the second derivative's ")


@_check
def check_purity(op: Op, backend: Backend, sample: Sample) -> None:
    """Neither the op nor its gradient changes an input."""
    args = sample.arrays(backend)
    before = _bits(args)
    op(*args, **sample.params)
    for moment in ("the op", "its gradient"):
        for (path, old), new in zip(before.items(), _bits(args).values(), strict=True):
            if old != new:
                raise CheckFailure(f"{op.name} on {backend.name}: {moment} changed the input {_path(op, path)}")
        if moment == "the op":
            _pulled(op, args, sample)


@_check
def check_layout(op: Op, backend: Backend, sample: Sample) -> None:
    """Strides, steps, offsets and negative strides make no difference."""
    for layout in LAYOUTS:
        check_forward(op, backend, sample.with_layout(layout))


@_check
def check_determinism(op: Op, backend: Backend, sample: Sample) -> None:
    """The same inputs give the same bits, in value and in gradients."""
    runs = [_bits((op(*sample.arrays(backend), **sample.params), _gradients(op, backend, sample))) for _ in range(2)]
    for path, first in runs[0].items():
        if first != runs[1][path]:
            what = "the result" if path[0] == 0 else f"d/d{path[1]}"
            raise CheckFailure(f"{op.name} on {backend.name}: {what} has other bits the second time")


@_check
def check_no_transfers(op: Op, backend: Backend, sample: Sample) -> None:
    """Nothing passes through the host, neither in the op nor in its gradient."""
    args = sample.arrays(backend)
    cotangents = _cotangents(op(*args, **sample.params), sample)
    before = polyarr.transfers()
    op(*args, **sample.params)
    between = polyarr.transfers()
    if cotangents is not None:
        _pulled(op, args, sample, cotangents)
    for moment, a, b in (("the op", before, between), ("its gradient", between, polyarr.transfers())):
        if a != b:
            up, down = b.uploads - a.uploads, b.downloads - a.downloads
            raise CheckFailure(
                f"{op.name} on {backend.name}: {moment} made {up} uploads and {down} downloads; expected none"
            )


# ---- values and gradients ------------------------------------------------------------------------------------


def _values(result: Any) -> list[np.ndarray]:
    return [leaf.numpy() for leaf in tree.leaves(result)]


def _reference(op: Op, entry: Entry, hosts: tuple, params: dict) -> list[np.ndarray]:
    """The expected values: by the entry's NumPy function, or by the body on NumPy in float64."""
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        if entry.reference is not None:
            found = entry.reference(*hosts, **{**op.defaults, **params})
            return [np.asarray(f) for f in found] if isinstance(found, (tuple, list)) else [np.asarray(found)]
        numpy = get_backend("numpy")
        with use_backend(numpy):
            args = tree.map(lambda a: polyarr.asarray(a, device=numpy) if isinstance(a, np.ndarray) else a, hosts)
            return _values(op(*args, **params))


def _magnitudes(op: Op, entry: Entry, sample: Sample, expected: list[np.ndarray]) -> list:
    """What each result's tolerance is relative to; see tolerance.TABLE."""
    if entry.kind == "reduction":
        positive = tree.map(lambda a: np.abs(a) if _moves(a) else a, sample.hosts())
        return _reference(op, entry, positive, sample.params)
    if entry.kind == "step":
        return [largest(e, *_flat_hosts(sample)) for e in expected]
    if entry.kind == "cancelling":
        hosts = [np.where(np.isfinite(a), np.abs(a), 0.0) for a in _flat_hosts(sample)]
        joint = functools.reduce(np.maximum, hosts)
        return [joint if joint.shape == expected[0].shape else largest(joint)]
    return [max(FLOOR, largest(e)) for e in expected]


def _flat_hosts(sample: Sample) -> list[np.ndarray]:
    return [np.asarray(a) for a in tree.leaves(sample.hosts())]


def _cotangents(result: Any, sample: Sample) -> Any:
    """One cotangent per floating-point result, None if there is none; integers get zeros, which do not matter."""
    if not any(a.dtype in FLOATS for a in tree.leaves(result)):
        return None

    def cotangent(a: Array) -> Array:
        return _direction(a, 7, sample.g) if a.dtype in FLOATS else a

    return tree.map(cotangent, result)


def _direction(a: Array, seed: int, layout: str = "plain") -> Array:
    """Numbers in a's shape and dtype that are the same in every dtype."""
    return Data(a.shape, a.dtype.name, "eighths", layout, seed).array(a.backend)


def _pulled(op: Op, args: tuple, sample: Sample, cotangents: Any = None, wide: bool = False) -> dict[str, Array]:
    """The gradients, by the input's name."""
    params = sample.wide_params() if wide else sample.params
    value, pull = polyarr.vjp(lambda *a: op(*a, **params), *args)
    if cotangents is None:
        cotangents = _cotangents(value, sample)
    return {} if cotangents is None else _named(op, pull(cotangents))


def _named(op: Op, grads: tuple) -> dict[str, Array]:
    return {_path(op, path): g for path, g in tree.items(grads) if type(g) is Array}


def _path(op: Op, path: tuple) -> str:
    return op.inputs[path[0]] + "".join(f"[{i}]" for i in path[1:])


def _gradients(op: Op, backend: Backend, sample: Sample, wide: bool = False) -> dict[str, np.ndarray]:
    with use_backend(backend):
        found = _pulled(op, sample.arrays(backend, wide), sample, wide=wide)
        return {name: g.numpy() for name, g in found.items()}


def _scalar(op: Op, backend: Backend, sample: Sample, wide: bool = True) -> Callable:
    """The op followed by the scalar product with a cotangent."""
    params = sample.wide_params() if wide else sample.params

    def value(*args: Any) -> Array:
        result = op(*args, **params)
        pairs = zip(tree.leaves(result), tree.leaves(_cotangents(result, sample)), strict=True)
        return _added([ops.sum(a * g) for a, g in pairs if a.dtype in FLOATS])

    return value


def _slope(op: Op, backend: Backend, sample: Sample, wide: bool = True) -> Callable:
    """The scalar product of the gradient with a direction."""
    value = _scalar(op, backend, sample, wide)

    def slope(*args: Any) -> Array:
        grads = polyarr.grad(value, argnums=tuple(range(len(args))))(*args)
        found = [g for g in tree.leaves(grads) if type(g) is Array]
        return _added([ops.sum(g * _direction(g, 11 + i)) for i, g in enumerate(found)])

    return slope


def _added(parts: list[Array]) -> Array:
    return functools.reduce(ops.add, parts)


# ---- comparing -----------------------------------------------------------------------------------------------


def _compare_numeric(op: Op, backend: Backend, sample: Sample, what: str, value: Callable, grads: tuple) -> None:
    """grads along a random direction against (value(x + h u) - value(x - h u)) / 2h."""
    hosts = sample.hosts()
    direction = tree.map(lambda a: np.random.default_rng(3).standard_normal(np.shape(a)), hosts)

    def at(t: float) -> float:
        moved = tree.map(lambda a, d: np.asarray(a + t * d) if _moves(a) else a, hosts, direction)
        return value(*tree.map(lambda a: polyarr.asarray(a, device=backend) if isinstance(a, np.ndarray) else a, moved))

    along, found = dict(tree.items(direction)), dict(tree.items(grads))
    terms = [(g.numpy() * along[path]).reshape(-1) for path, g in found.items() if type(g) is Array]
    exact = float(sum(t.sum() for t in terms))
    numeric = (at(STEP) - at(-STEP)) / (2 * STEP)
    size = 1 + abs(numeric) + float(sum(np.abs(t).sum() for t in terms))
    if not abs(exact - numeric) <= NUMERIC * size:
        raise CheckFailure(
            f"{op.name} on {backend.name}: {what} along a direction is {exact:.9g}, numerically {numeric:.9g}"
        )


def _moves(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.kind == "f"


def _compare_gradients(op: Op, backend: Backend, got: dict, expected: dict, whose: str = "") -> None:
    if got.keys() != expected.keys():
        raise CheckFailure(f"{op.name} on {backend.name}: {whose}gradients for {[*got]}, expected for {[*expected]}")
    for name, e in expected.items():
        _close(op, backend, f"{whose}d/d{name}", got[name], e, "gradient", max(GRADIENT_FLOOR, largest(e)))


def _same_count(op: Op, backend: Backend, got: list, expected: list) -> None:
    if len(got) != len(expected):
        raise CheckFailure(f"{op.name} on {backend.name}: {len(got)} results, expected {len(expected)}")


def _close(
    op: Op, backend: Backend, what: str, got: np.ndarray, expected: np.ndarray, kind: str, magnitude: Any
) -> None:
    """got agrees with expected, which may be of a wider dtype, within the table's tolerance."""
    head = f"{op.name} on {backend.name}: {what}"
    if got.shape != expected.shape:
        raise CheckFailure(f"{head} has shape {list(got.shape)}, expected {list(expected.shape)}")
    if got.dtype not in FLOATS:
        bad, bound = got != expected, np.zeros(got.shape)
    else:
        bad, bound = _apart(got, np.asarray(expected, np.float64), kind, magnitude)
    if bad.any():
        at = np.unravel_index(np.argmax(bad), bad.shape)
        raise CheckFailure(
            f"{head} ({got.dtype.name}) differs at {list(map(int, at))}: {got[at]}, expected {expected[at]} "
            f"(allowed {bound[at]:.3g}; {int(bad.sum())} of {bad.size} elements differ)"
        )


def _apart(got: np.ndarray, expected: np.ndarray, kind: str, magnitude: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where got and expected differ by more than is allowed, and what is allowed."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype).astype(np.float64)
        found = got.astype(np.float64)
        bound = allowed(kind, got.dtype, np.where(np.isfinite(rounded), rounded, 0.0), magnitude)
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        near = np.abs(found - expected) <= bound
        # On the edge of overflow, the largest number and infinity are neighbours.
        edge = np.isfinite(expected) & (np.isinf(found) != np.isinf(rounded)) & (np.sign(found) == np.sign(rounded))
        limit = float(polyarr.finfo(got.dtype).max)
        near |= edge & (np.abs(np.clip(found, -limit, limit) - np.clip(expected, -limit, limit)) <= 1e-5 * limit)
    return ~(same | near), bound


def _same_zeros(op: Op, backend: Backend, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    if got.dtype in FLOATS:
        zeros = (got == 0) & (expected == 0)
        bad = zeros & (np.signbit(got.astype(np.float64)) != np.signbit(expected))
        if bad.any():
            at = np.unravel_index(np.argmax(bad), bad.shape)
            raise CheckFailure(
                f"{op.name} on {backend.name}: {what} at {list(map(int, at))} is {got[at]}, expected {expected[at]}"
            )


def _bits(result: Any) -> dict[tuple, bytes]:
    """Every array as bytes, by path: what may not differ at all."""
    hosts = {path: leaf.numpy() if type(leaf) is Array else leaf for path, leaf in tree.items(result)}
    return {path: h.tobytes() for path, h in hosts.items() if isinstance(h, np.ndarray)}
