"""Gradient checks for functions written by users, such as the loss of a model:

    from polyarr.testing import assert_gradients_agree, check_grads
    check_grads(loss, (model, x))               # are the gradients right?
    assert_gradients_agree(loss, (model, x))    # do all backends compute the same gradients?

Both raise CheckFailure. The message names the function, the argument, the value found and the value expected; a note on
the exception has the Python code that repeats the check.

Neither check works at points without a derivative: ties of a max, relu(0) and abs(0), values at a rounding threshold or
at the boundary of a comparison. Arguments must be more than a few `eps` away from them; random arguments nearly always
are.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr import random, tree
from polyarr.autograd import jvp, vjp
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import DtypeError, GradientError
from polyarr.core.spec import DTYPES, FLOATS, Spec, float64, shown
from polyarr.creation import finfo
from polyarr.plugins.diagnosis import overrides
from polyarr.testing.checks import reference
from polyarr.testing.compare import CheckFailure, close, gradients_agree, values
from polyarr.testing.strategies import Data
from polyarr.testing.tolerance import FLOOR, largest

STEP = 1e-5  # of central differences in float64: truncation and rounding errors are both about 1e-10
RELATIVE, ABSOLUTE = 1e-7, 1e-9  # tolerances of a slope, relative to the slope and to the function values
NOISE = 1e-12  # by which two equal calls may differ, relative to the largest value: sums in no fixed order
FINER = 10  # the second step, tried if the slope disagrees with the first one, is this many times smaller
MODES = ("rev", "fwd")
_SHOWN = 6  # arguments that a note lists


def check_grads(
    fn: Callable,
    args: Sequence[Any],
    order: int = 2,
    modes: str | Sequence[str] = ("rev",),
    *,
    backend: str | Backend | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    eps: float = STEP,
) -> None:
    """Check the derivatives of `fn(*args)` against central differences in float64.

    For each floating-point array in `args` in turn, <w, J u> is compared with the slope of <w, fn> between -eps u and
    +eps u, where u and w are random directions and J is the Jacobian. Order k + 1 checks the gradient function of
    order k in the same way.

    `fn` must be smooth within a few `eps` of `args`: no ties of a max, no relu at 0, no rounding. If the numerical
    slope depends on the step or on the side, the message says that the function seems to have a kink. `fn` must return
    the same values for the same arguments: random numbers from polyarr.random are fine, because every call starts from
    the same state; other random numbers, and state kept from call to call, are reported as a failure.

    Args:
        fn: Function of `args` that returns a tree with at least one floating-point array.
        args: Tuple of the arguments: trees of polyarr and NumPy arrays, Modules and other leaves. Floating-point
            arrays are widened to float64; integers, bools, Python numbers and other leaves are held fixed.
        order: Highest order of derivative to check, at least 1.
        modes: "rev" (vjp), "fwd" (jvp), or both; with both, every combination of the two is checked at higher orders.
        backend: Backend to compute on; by default that of the first polyarr array in `args`, else the current one.
        seed: Seed of the directions, and of the numbers that `fn` draws with polyarr.random.
        atol: Absolute tolerance; by default 1e-9 times the norm of the vector w * (1 + |value|).
        rtol: Tolerance relative to the size of the slope; by default 1e-7.
        eps: Step of the central differences. If they disagree with the derivative, a tenth of `eps` is tried as well.

    Raises:
        CheckFailure: The derivatives disagree, or two calls with the same arguments differ.
        ValueError: `order`, `modes` or `eps` is out of range, or `fn` is nan or infinite.
        GradientError: `args` holds no floating-point array, or `fn` returns none.
        TypeError: `args` is not a tuple, or `fn` is not callable.
        DtypeError: The backend holds no float64, or `fn` returns another floating-point dtype.

    Examples:
        >>> import numpy as np
        >>> import polyarr as pa
        >>> from polyarr.testing import check_grads
        >>> check_grads(lambda x: pa.mean(pa.tanh(x) ** 2), (np.linspace(-1.0, 1.0, 5),))
        >>> check_grads(lambda p: pa.sum(pa.exp(p["w"])), ({"w": np.ones((2, 3))},), modes=("rev", "fwd"))
    """
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    _check_settings(order, modes, eps)
    leaves = _Leaves.of("check_grads", fn, args)
    home = _home(args) if backend is None else get_backend(backend)
    if float64 not in home.dtypes:
        place = f"{home.name!r} ({home.hardware})"
        raise DtypeError(f'check_grads: {place} holds no float64, which is required; backend="numpy" does')
    case = _Case(leaves, home, modes, order, seed, atol, RELATIVE if rtol is None else rtol, eps)
    given = {"order": order, "modes": modes, "backend": home.name, "seed": seed}
    given |= {name: v for name, v in (("atol", atol), ("rtol", rtol)) if v is not None}
    given |= {"eps": eps} if eps != STEP else {}
    with _with_note(leaves, given), use_backend(home):
        run = leaves.on(home, seed)
        _check_order(case, lambda *found: _unrounded(leaves, _floating(run(*found))), ())


def assert_gradients_agree(
    fn: Callable, args: Sequence[Any], backends: Sequence[str | Backend] = ("numpy", "opencl"), *, seed: int = 0
) -> None:
    """Check that `fn(*args)` and its gradients are on each backend what NumPy computes in float64.

    Each backend computes in the dtypes of `args`, which are copied to it, with the same random cotangent. The
    tolerances are those of the classes "program" (results) and "gradient" in polyarr.testing.tolerance: about 1e-4 of
    the largest element in float32. Errors of results and gradients smaller than 0.1 count as absolute, so scale up a
    function with tiny gradients.

    A wrong rule given to custom_vjp is wrong on every backend alike: check_grads finds it, this function does not.
    `fn` must be smooth around `args`, because a tie may be resolved differently in another dtype.

    Args:
        fn: Function of `args` that returns a tree with at least one floating-point array.
        args: Tuple of the arguments, as in `check_grads`. Every array that `fn` uses must be among them, or be created
            by `fn`.
        backends: Backends, or names of backends, to compare with NumPy.
        seed: Seed of the cotangent, and of the numbers that `fn` draws with polyarr.random (equal on all backends).

    Raises:
        CheckFailure: A result or a gradient differs.
        GradientError: `args` holds no floating-point array, or `fn` returns none.
        TypeError: `args` is not a tuple, or `fn` is not callable.
        BackendError: A backend cannot start.
        ValueError: `backends` is empty.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.testing import assert_gradients_agree
        >>> x = pa.asarray([[0.5, -1.0], [2.0, 0.25]])
        >>> assert_gradients_agree(lambda x: pa.gelu(x @ x), (x,), backends=("numpy",))
    """
    leaves = _Leaves.of("assert_gradients_agree", fn, args)
    places = [get_backend(b) for b in ((backends,) if isinstance(backends, (str, Backend)) else backends)]
    if not places:
        raise ValueError("assert_gradients_agree: backends is empty; it must name at least one")
    for place in places:
        with _with_note(leaves, {"backends": [place.name], "seed": seed}):
            where = f"{leaves.title} on {place.name}"
            expected = _pulled(where, leaves.widened(), _oracle(), seed)
            got = _pulled(where, leaves, place, seed)
            try:
                _agree(where, leaves, got, expected)
            except CheckFailure:
                again = _pulled(where, leaves.widened(), _oracle(), seed)
                _same_again(leaves.title, [*expected.results.values()], [*again.results.values()])
                raise


# ---- the function and its arguments --------------------------------------------------------------------------


class _Leaves(NamedTuple):
    """A function and its arguments, with the floating-point arrays copied to the host and named."""

    check: str  # the public function that error messages name
    fn: Callable
    title: str  # fn's name
    args: tuple
    hosts: dict[int, np.ndarray]  # by their position among the leaves of args
    names: list[str]

    @classmethod
    def of(cls, check: str, fn: Callable, args: Any) -> "_Leaves":
        if type(args) not in (tuple, list):
            given = args.spec if type(args) is Array else type(args).__name__
            raise TypeError(f"{check}: args is {given}; it must be the tuple of fn's arguments, such as (x,)")
        if not callable(fn):
            raise TypeError(f"{check}: fn is {shown(fn)}; it must be a function of args")
        first = _argument_names(fn, len(args))
        found = {
            i: (".".join([first[path[0]], *map(str, path[1:])]), host)
            for i, (path, leaf) in enumerate(tree.items(tuple(args)))
            if _is_floating(host := _host(leaf))
        }
        title = _title(fn)
        if not found:
            raise GradientError(f"{check}: {title} has no floating-point array among its arguments; one must be there")
        hosts = {i: host for i, (_, host) in found.items()}
        return cls(check, fn, title, tuple(args), hosts, [name for name, _ in found.values()])

    def widened(self) -> "_Leaves":
        return self._replace(hosts={i: host.astype(float64) for i, host in self.hosts.items()})

    def arrays(self, backend: Backend) -> list[Array]:
        return [from_numpy(host, backend) for host in self.hosts.values()]

    def on(self, backend: Backend, seed: int) -> Callable[..., dict[str, Array]]:
        """Return fn as a function of its floating-point arrays that returns its results by name.

        Every call of it starts from the same random state.
        """
        fixed = [leaf if i in self.hosts else _moved(leaf, backend) for i, leaf in enumerate(tree.leaves(self.args))]

        def run(*found: Array) -> dict[str, Array]:
            leaves = list(fixed)
            for i, a in zip(self.hosts, found, strict=True):
                leaves[i] = a
            with random.restored((seed, 0)):
                value = self.fn(*tree.unflatten(self.args, leaves))
            results = {".".join(map(str, path)): leaf for path, leaf in tree.items(value) if type(leaf) is Array}
            if not _floating(results):
                given = f"{self.title} returned {value.spec if type(value) is Array else type(value).__name__}"
                raise GradientError(f"{self.check}: {given}; it must return a floating-point array")
            return results

        return run


def _title(fn: Any) -> str:
    """Return the name of a function as messages show it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    code = getattr(fn, "__code__", None)
    return f"lambda at {Path(code.co_filename).name}:{code.co_firstlineno}" if code and name == "<lambda>" else name


def _argument_names(fn: Callable, count: int) -> list[str]:
    """Return the names of fn's first `count` positional arguments; "args[i]" where its signature has no name."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # callables written in C may have no signature
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"args[{i}]" for i in range(len(names), count)]


def _host(leaf: Any) -> Any:
    return leaf.numpy() if type(leaf) is Array else leaf


def _is_floating(host: Any) -> bool:
    return isinstance(host, np.ndarray) and (host.dtype in FLOATS or host.dtype.kind == "f")


def _moved(leaf: Any, backend: Backend) -> Any:
    """Copy an array that is held fixed to the backend; return any other leaf unchanged."""
    host = _host(leaf)
    return from_numpy(host, backend) if isinstance(host, np.ndarray) and host.dtype in DTYPES else leaf


def _floating(results: dict[str, Array]) -> list[Array]:
    return [a for a in results.values() if a.dtype in FLOATS]


def _unrounded(leaves: _Leaves, results: list[Array]) -> list[Array]:
    """Return the results after checking that all are float64, so that central differences are not lost in rounding."""
    for a in results:
        if a.dtype != float64:
            given = f"{leaves.title} returned {a.spec} for float64 arguments"
            raise DtypeError(f"{leaves.check}: {given}; it must return float64, or steps drown in rounding")
    return results


def _home(args: Sequence[Any]) -> Backend:
    """Return the backend of the first polyarr array in args, or else the current backend."""
    found = [leaf.backend for leaf in tree.leaves(tuple(args)) if type(leaf) is Array]
    return found[0] if found else get_backend()


def _check_settings(order: int, modes: tuple, eps: float) -> None:
    if type(order) is not int or order < 1:
        raise ValueError(f"check_grads: order is {shown(order)}; it must be an int from 1")
    if not modes or any(mode not in MODES for mode in modes):
        raise ValueError(f"check_grads: modes is {modes!r}; it must hold some of {', '.join(map(repr, MODES))}")
    if not 0 < eps < np.inf:
        raise ValueError(f"check_grads: eps is {eps!r}; it must be above 0 and finite")


@contextlib.contextmanager
def _with_note(leaves: _Leaves, given: dict[str, Any]) -> Iterator[None]:
    """Add a note to any exception: the Python code that repeats the check."""
    try:
        yield
    except Exception as error:
        keywords = ", ".join(f"{name}={value!r}" for name, value in given.items())
        specs = [f"{n} {Spec(h.shape, h.dtype)}" for n, h in zip(leaves.names, leaves.hosts.values(), strict=True)]
        more = f" and {len(specs) - _SHOWN} more" if len(specs) > _SHOWN else ""
        error.add_note(
            f"to reproduce it, where args hold {', '.join(specs[:_SHOWN])}{more}:\n"
            f"    from polyarr.testing import {leaves.check}\n"
            f"    {leaves.check}({leaves.title if leaves.title.isidentifier() else 'fn'}, args, {keywords})"
        )
        raise


# ---- against central differences -----------------------------------------------------------------------------


class _Case(NamedTuple):
    """The arguments of one call of check_grads."""

    leaves: _Leaves
    backend: Backend
    modes: tuple
    order: int
    seed: int
    atol: float | None
    rtol: float
    eps: float

    def arrays(self, hosts: list[np.ndarray]) -> list[Array]:
        return [from_numpy(host, self.backend) for host in hosts]


class _Line(NamedTuple):
    """The scalar function t -> <w, fn(x + t u)>, where the direction u changes only the array at `position`."""

    case: _Case
    fn: Callable[..., list[Array]]
    points: list[np.ndarray]
    position: int
    u: np.ndarray
    w: list[np.ndarray]
    here: list[np.ndarray]  # the value of fn at t = 0

    def at(self, t: float) -> float:
        moved = list(self.points)
        moved[self.position] = np.asarray(moved[self.position] + t * self.u)
        results = self.fn(*self.case.arrays(moved))
        return float(sum(np.sum(w * a.numpy()) for w, a in zip(self.w, results, strict=True)))

    def slope(self, step: float) -> float:
        return (self.at(step) - self.at(-step)) / (2 * step)


def _check_order(case: _Case, fn: Callable[..., list[Array]], above: tuple) -> None:
    """Check fn's slopes in every mode, then those of its gradient functions; `above` lists the modes applied so far."""
    leaves, points = case.leaves, list(case.leaves.widened().hosts.values())
    head = f"{leaves.title} on {case.backend.name}, order {len(above) + 1}"
    hosts = [a.numpy() for a in fn(*case.arrays(points))]
    if not all(np.isfinite(host).all() for host in hosts):
        raise ValueError(f"check_grads: {leaves.title} is nan or infinite at these arguments; it must be finite")
    rng = np.random.default_rng([case.seed, len(above)])
    w, u = ([_direction(rng, a.shape) for a in found] for found in (hosts, points))
    _same_again(head, hosts, [a.numpy() for a in fn(*case.arrays(points))])
    lines = [_Line(case, fn, points, i, direction, w, hosts) for i, direction in enumerate(u)]
    slopes = [line.slope(case.eps) for line in lines]
    size = np.sqrt(sum(np.sum(np.square(a * (1 + np.abs(host)))) for a, host in zip(w, hosts, strict=True)))
    cotangents = case.arrays(w)
    for mode in case.modes:
        path = (mode, *above)
        where = f"{head}, mode {' over '.join(path)}"
        for line, slope, terms in zip(lines, slopes, _TERMS[mode](where, lines, cotangents), strict=True):
            _compare(where, line, slope, terms, float(size))
        if len(path) < case.order:
            _check_order(case, _gradient_function(mode, fn, cotangents, case.arrays(u)), path)


def _same_again(where: str, first: list[np.ndarray], second: list[np.ndarray]) -> None:
    """Check that two calls with the same arguments gave the same results; otherwise no slope means anything.

    Raises:
        CheckFailure: The shapes or the values differ.
    """
    shapes = [[list(host.shape) for host in hosts] for hosts in (first, second)]
    found = [(shape, again) for shape, again in zip_longest(*shapes) if shape != again]
    for a, b in [] if found else zip(first, second, strict=True):
        if a.size and np.abs(a - b).max() > NOISE * (1 + np.abs(a).max()):
            at = np.unravel_index(np.argmax(np.abs(a - b)), a.shape)
            found.append((a[at], b[at]))
    if found:
        raise CheckFailure(
            f"{where}: two calls with the same arguments gave {found[0][0]} and {found[0][1]}; they must give the "
            "same, so draw with polyarr.random and keep nothing from call to call"
        )


def _direction(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers of both signs with magnitudes of 0.5 to 1.5, so that every element moves."""
    return np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape))


def _reverse_terms(where: str, lines: list[_Line], cotangents: list[Array]) -> Iterator[np.ndarray]:
    """Yield, for each line, the terms of <w, J u>: the gradient from vjp times u."""
    case, fn, points = lines[0][:3]
    grads = vjp(fn, *case.arrays(points))[1](cotangents)
    for line, name, g in zip(lines, case.leaves.names, grads, strict=True):
        yield _finite(f"{where}: the gradient by {name}", g) * line.u


def _forward_terms(where: str, lines: list[_Line], cotangents: list[Array]) -> Iterator[np.ndarray]:
    """Yield, for each line, the terms of <w, J u>: w times the derivative along u from jvp."""
    case, fn, points = lines[0][:3]
    for line, name in zip(lines, case.leaves.names, strict=True):
        tangents: list[Array | None] = [None] * len(lines)
        tangents[line.position] = from_numpy(line.u, case.backend)
        along = jvp(fn, tuple(case.arrays(points)), tuple(tangents))[1]
        what = f"{where}: the derivative along {name}"
        found = [_finite(what, a) * w for a, w in zip(along, line.w, strict=True)]
        yield np.concatenate([terms.reshape(-1) for terms in found])


_TERMS = {"rev": _reverse_terms, "fwd": _forward_terms}


def _gradient_function(mode: str, fn: Callable, cotangents: list[Array], tangents: list[Array]) -> Callable:
    """Return the function that the next order checks: w pulled back through fn, or fn's derivative along u."""
    if mode == "rev":
        return lambda *x: list(vjp(fn, *x)[1](cotangents))
    return lambda *x: jvp(fn, x, tuple(tangents))[1]


def _finite(what: str, found: Array) -> np.ndarray:
    host = found.numpy()
    if not np.isfinite(host).all():
        at = np.unravel_index(np.argmin(np.isfinite(host)), host.shape)
        raise CheckFailure(f"{what} is {host[at]} at {list(map(int, at))}; it must be finite where the value is")
    return host


def _compare(where: str, line: _Line, slope: float, terms: np.ndarray, size: float) -> None:
    """Compare the sum of terms with the numerical slope, and if they differ with the slope of a finer step."""
    case, found = line.case, float(terms.sum())
    # The sum goes in a random direction, so its size is that of a random walk with these steps.
    own = np.sqrt(np.square(terms).sum()) + abs(slope)
    allowed = (ABSOLUTE * size if case.atol is None else case.atol) + case.rtol * own
    if abs(found - slope) <= allowed:
        return
    finer = line.slope(case.eps / FINER)
    if abs(found - finer) <= allowed:
        return
    name = case.leaves.names[line.position]
    _same_again(where, line.here, [a.numpy() for a in line.fn(*case.arrays(line.points))])
    if not np.isfinite(slope) or not np.isfinite(finer):
        raise ValueError(
            f"check_grads: {case.leaves.title} is nan or infinite when {name} moves by about {case.eps:g}; "
            "give args away from there or a smaller eps"
        )
    raise CheckFailure(
        f"{where}: the derivative along a random direction of {name} is {found:.9g}, numerically {slope:.9g} "
        f"(off by {abs(found - slope):.3g}, allowed {allowed:.3g}){_kink(line, slope, finer, allowed)}"
    )


def _kink(line: _Line, slope: float, finer: float, allowed: float) -> str:
    """Return an addition to the message if the numerical slope depends on the step or on the side, else ""."""
    step = line.case.eps
    if abs(slope - finer) > 10 * allowed + 1e-3 * (abs(slope) + abs(finer)):
        return (
            f"; the function seems to have a kink here: the numerical slope is {slope:.9g} with step {step:g} "
            f"and {finer:.9g} with step {step / FINER:g}"
        )
    here = line.at(0.0)
    sides = [((line.at(h) - here) / h, (here - line.at(-h)) / h) for h in (step, step / FINER)]
    wider, gap = (abs(ahead - behind) for ahead, behind in sides)
    # Between the slopes of the two sides of a smooth point lies h times its curvature, which shrinks with the step.
    if gap > max(10 * allowed, wider / 2):
        ahead, behind = (f"{slope:.9g}" for slope in sides[1])
        return f"; the function seems to have a kink here: the numerical slope is {ahead} ahead and {behind} behind"
    return ""


# ---- against NumPy in float64 --------------------------------------------------------------------------------


def _oracle() -> Backend:
    """Return NumPy without plugins' kernels: the running NumPy backend if it has none, so that fn may name it."""
    running = get_backend(reference().name)
    return reference() if any(row.backend == running.name for row in overrides()) else running


class _Pulled(NamedTuple):
    """Results and gradients as host arrays, by name."""

    results: dict[str, np.ndarray]
    grads: dict[str, np.ndarray]


def _pulled(where: str, leaves: _Leaves, backend: Backend, seed: int) -> _Pulled:
    """Return fn's results and its gradients for a cotangent whose values are the same in every dtype."""
    with use_backend(backend):
        results, pull = vjp(leaves.on(backend, seed), *leaves.arrays(backend))
        cotangents = {
            name: Data(a.shape, a.dtype.name, "eighths", seed=seed + i).array(backend) if a.dtype in FLOATS else a
            for i, (name, a) in enumerate(results.items())
        }
        grads = pull(cotangents)
    hosts = dict(zip(results, values(where, results), strict=True))
    return _Pulled(hosts, dict(zip(leaves.names, values(where, grads), strict=True)))


def _agree(where: str, leaves: _Leaves, got: _Pulled, expected: _Pulled) -> None:
    """Compare results and gradients with the tolerance of the coarsest dtype among the arguments."""
    coarsest = max((host.dtype for host in leaves.hosts.values()), key=lambda dtype: finfo(dtype).eps)
    if got.results.keys() != expected.results.keys():
        raise CheckFailure(f"{where}: results {[*got.results]}, expected {[*expected.results]}")
    for name, e in expected.results.items():
        what = f"result {name}" if name else "the result"
        close(where, what, got.results[name], e, "program", max(FLOOR, largest(e)), coarsest)
    gradients_agree(where, got.grads, expected.grads, dtype=coarsest)
