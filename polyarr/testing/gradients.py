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

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr.autograd import jvp, vjp
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import DtypeError
from polyarr.core.spec import FLOATS, float64, shown
from polyarr.creation import finfo
from polyarr.plugins.diagnosis import overrides
from polyarr.testing.arguments import Leaves, floating, home_of, with_note
from polyarr.testing.checks import reference
from polyarr.testing.compare import CheckFailure, close, gradients_agree, same_again, values
from polyarr.testing.strategies import Data
from polyarr.testing.tolerance import FLOOR, largest
from polyarr.testing.xp import GRADIENT, GraphBreak, graph_breaks, lines_of

__tracebackhide__ = True  # from pytest: a failure is shown at the line of the test
STEP = 1e-5  # of central differences in float64: truncation and rounding errors are both about 1e-10
RELATIVE, ABSOLUTE = 1e-7, 1e-9  # tolerances of a slope, relative to the slope and to the function values
FINER = 10  # the second step, tried if the slope disagrees with the first one, is this many times smaller
MODES = ("rev", "fwd")
_MOST_ELEMENTS = 256  # of an argument whose wrong elements are looked for, one by one


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
    leaves = Leaves.of("check_grads", fn, args)
    home = home_of(args) if backend is None else get_backend(backend)
    if float64 not in home.dtypes:
        place = f"{home.name!r} ({home.hardware})"
        raise DtypeError(f'check_grads: {place} holds no float64, which is required; backend="numpy" does')
    case = _Case(leaves, home, modes, order, seed, atol, RELATIVE if rtol is None else rtol, eps)
    given = {"order": order, "modes": modes, "backend": home.name, "seed": seed}
    given |= {name: v for name, v in (("atol", atol), ("rtol", rtol)) if v is not None}
    given |= {"eps": eps} if eps != STEP else {}
    with with_note(leaves, given), use_backend(home):
        run = leaves.on(home, seed)
        _check_order(case, lambda *found: _unrounded(leaves, floating(run(*found))), ())


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
    leaves = Leaves.of("assert_gradients_agree", fn, args)
    places = [get_backend(b) for b in ((backends,) if isinstance(backends, (str, Backend)) else backends)]
    if not places:
        raise ValueError("assert_gradients_agree: backends is empty; it must name at least one")
    for place in places:
        with with_note(leaves, {"backends": [place.name], "seed": seed}):
            where = f"{leaves.title} on {place.name}"
            expected = _pulled(where, leaves.widened(), _oracle(), seed)
            got = _pulled(where, leaves, place, seed)
            check_width(where, leaves, got.results)
            try:
                agree(where, leaves, got, expected)
            except CheckFailure:
                again = _pulled(where, leaves.widened(), _oracle(), seed)
                same_again(leaves.title, [*expected.results.values()], [*again.results.values()])
                raise


# ---- against central differences -----------------------------------------------------------------------------


def _unrounded(leaves: Leaves, results: list[Array]) -> list[Array]:
    """Return the results after checking that all are float64, so that central differences are not lost in rounding."""
    for a in results:
        if a.dtype != float64:
            given = f"{leaves.title} returned {a.spec} for float64 arguments"
            raise DtypeError(f"{leaves.check}: {given}; it must return float64, or steps drown in rounding")
    return results


def _check_settings(order: int, modes: tuple, eps: float) -> None:
    if type(order) is not int or order < 1:
        raise ValueError(f"check_grads: order is {shown(order)}; it must be an int from 1")
    if not modes or any(mode not in MODES for mode in modes):
        raise ValueError(f"check_grads: modes is {modes!r}; it must hold some of {', '.join(map(repr, MODES))}")
    if not 0 < eps < np.inf:
        raise ValueError(f"check_grads: eps is {eps!r}; it must be above 0 and finite")


class _Case(NamedTuple):
    """The arguments of one call of check_grads."""

    leaves: Leaves
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
    same_again(head, hosts, [a.numpy() for a in fn(*case.arrays(points))])
    lines = [_Line(case, fn, points, i, direction, w, hosts) for i, direction in enumerate(u)]
    slopes = [line.slope(case.eps) for line in lines]
    size = np.sqrt(sum(np.sum(np.square(a * (1 + np.abs(host)))) for a, host in zip(w, hosts, strict=True)))
    cotangents = case.arrays(w)
    for mode in case.modes:
        path = (mode, *above)
        where = f"{head}, mode {' over '.join(path)}"
        for line, slope, terms in zip(lines, slopes, _TERMS[mode](where, lines, cotangents), strict=True):
            _compare(where, line, slope, terms, float(size), mode == "rev")
        if len(path) < case.order:
            _check_order(case, _gradient_function(mode, fn, cotangents, case.arrays(u)), path)


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


def _compare(where: str, line: _Line, slope: float, terms: np.ndarray, size: float, is_gradient: bool) -> None:
    """Compare the sum of terms with the numerical slope, and if they differ with the slope of a finer step.

    `is_gradient` says whether the terms are those of the gradient, one for each element of the argument.
    """
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
    same_again(where, line.here, [a.numpy() for a in line.fn(*case.arrays(line.points))])
    if not np.isfinite(slope) or not np.isfinite(finer):
        raise ValueError(
            f"check_grads: {case.leaves.title} is nan or infinite when {name} moves by about {case.eps:g}; "
            "give args away from there or a smaller eps"
        )
    failure = CheckFailure(
        f"{where}: the derivative along a random direction of {name} is {found:.9g}, numerically {slope:.9g} "
        f"(off by {abs(found - slope):.3g}, allowed {allowed:.3g}){_kink(line, slope, finer, allowed)}"
    )
    if is_gradient and 1 < terms.size <= _MOST_ELEMENTS and (wrong := _wrong_elements(line, terms / line.u, allowed)):
        failure.add_note(wrong)
    if lost := _lost(line):
        failure.add_note(f"no gradient passes these lines:\n{lost}")
    raise failure


def _wrong_elements(line: _Line, grad: np.ndarray, allowed: float) -> str:
    """Return which elements of the gradient of <w, fn> are wrong, by central differences of each; "" if none is."""
    slopes = np.empty(grad.shape)
    for at in np.ndindex(grad.shape):
        one = np.zeros(grad.shape)
        one[at] = 1
        slopes[at] = line._replace(u=one).slope(line.case.eps)
    bad = np.abs(grad - slopes) > allowed
    if not bad.any():
        return ""
    at = np.unravel_index(np.argmax(bad), bad.shape)
    return (
        f"{int(bad.sum())} of {bad.size} elements of its gradient differ, the first at {list(map(int, at))}: "
        f"{grad[at]:.9g}, numerically {slopes[at]:.9g}"
    )


def _lost(line: _Line) -> str:
    """Return a table of the lines of the function where a gradient is lost, or ""."""
    with graph_breaks() as found:
        vjp(line.fn, *line.case.arrays(line.points))
    rows: list[tuple[tuple[int, ...], GraphBreak]] = [
        ((found.counts[place],), place) for place in found if GRADIENT in place.leaves
    ]
    return "\n".join(f"    {row}" for row in lines_of(rows, "times")) if rows else ""


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


class Pulled(NamedTuple):
    """Results and gradients as host arrays, by name."""

    results: dict[str, np.ndarray]
    grads: dict[str, np.ndarray]


def _pulled(where: str, leaves: Leaves, backend: Backend, seed: int) -> Pulled:
    """Return fn's results and its gradients for a cotangent whose values are the same in every dtype."""
    with use_backend(backend):
        results, pull = vjp(leaves.on(backend, seed), *leaves.arrays(backend))
        grads = pull(cotangents_by_name(results, backend, seed))
    hosts = dict(zip(results, values(where, results), strict=True))
    return Pulled(hosts, dict(zip(leaves.names, values(where, grads), strict=True)))


def cotangents_by_name(results: dict[str, Array], backend: Backend, seed: int) -> dict[str, Array]:
    """Return a cotangent for each floating-point result, with the same values in every dtype; else the result."""
    return {
        name: Data(a.shape, a.dtype.name, "eighths", seed=seed + i).array(backend) if a.dtype in FLOATS else a
        for i, (name, a) in enumerate(results.items())
    }


def check_width(where: str, leaves: Leaves, results: dict[str, np.ndarray]) -> None:
    """Check that no result is float64 if no argument is; most often a constant inside of fn made it so.

    Raises:
        CheckFailure: A result is float64.
    """
    given = {host.dtype for host in leaves.hosts.values()}
    for name, host in results.items():
        if host.dtype == float64 and float64 not in given:
            what = f"result {name}" if name else "the result"
            required = f"as narrow as its arguments ({', '.join(sorted(d.name for d in given))})"
            hint = "make constants with dtype=x.dtype, or cast with astype"
            raise CheckFailure(f"{where}: {what} is float64; it must be {required}: {hint}")


def agree(where: str, leaves: Leaves, got: Pulled, expected: Pulled) -> None:
    """Compare results and gradients with the tolerance of the coarsest dtype among the arguments."""
    coarsest = max((host.dtype for host in leaves.hosts.values()), key=lambda dtype: finfo(dtype).eps)
    if got.results.keys() != expected.results.keys():
        raise CheckFailure(f"{where}: results {[*got.results]}, expected {[*expected.results]}")
    for name, e in expected.results.items():
        what = f"result {name}" if name else "the result"
        close(where, what, got.results[name], e, "program", max(FLOOR, largest(e)), coarsest)
    gradients_agree(where, got.grads, expected.grads, dtype=coarsest)
