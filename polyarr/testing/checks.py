"""Checks of one op on one backend, as plain functions that also work at a prompt:

    from polyarr import ops
    from polyarr.testing import Data, Sample, checks
    checks.check_forward(ops.exp, "opencl", Sample((Data((3,)),)))

Each takes an op, a backend (or its name) and a Sample. A check raises CheckFailure with the op, the backend, what
differs, where and by how much; a note has the Python code that repeats it. It raises Lacking if the backend declares
that it lacks what the check needs.
"""

import contextlib
import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

import polyarr
from polyarr import ops, tree
from polyarr.backends import numpy as built_in
from polyarr.capture.repeated import after
from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.errors import BackendError
from polyarr.core.names import renamed
from polyarr.core.op import Op
from polyarr.core.spec import COMPLEX, INEXACT, Spec, float32, float64, int8, real_of, uint8
from polyarr.testing import adapters, covered
from polyarr.testing.causes import computed_by
from polyarr.testing.compare import (
    CheckFailure,
    Lacking,
    bits,
    close,
    direction_at,
    gradients_agree,
    same_count,
    same_zeros,
    values,
)  # fmt: skip
from polyarr.testing.layouts import LAYOUTS, REPEATING
from polyarr.testing.samples import SAMPLES, Entry, alone, large, numbers
from polyarr.testing.strategies import Data, Sample, wrong_numbers
from polyarr.testing.tolerance import FLOOR, largest

TO_REPRODUCE = "to reproduce it"  # begins the note that has the code to repeat a check
# Step and tolerance of central differences by dtype; the tolerance is relative to the sum of the terms' magnitudes. In
# float64, truncation and rounding errors are both about 1e-10; some results are float32 for any input.
STEPS = {float64: (1e-5, 2e-6), float32: (1e-3, 1e-3)}


@functools.cache
def reference() -> Backend:
    """Return NumPy with polyarr's own kernels only, without those of plugins."""
    return built_in.start()


def check(fn: Callable) -> Callable:
    """Wrap a check: it accepts a backend's name, and adds the code that repeats it as a note to any exception."""
    home = fn.__module__.rpartition(".")[2]

    @functools.wraps(fn)
    def wrapped(op: Op, backend: str | Backend, sample: Sample) -> None:
        found = adapters.find(backend)
        sample = sample.flushed(found.flushes)
        covered.note(sample)
        try:
            with use_backend(found), without_warnings(label_of(op, found)), adapters.leaving_out(), after(inf):
                fn(op, found, sample)
        except Exception as error:
            error.add_note(
                f"{TO_REPRODUCE}:\n    from polyarr import ops\n    from polyarr.testing import Data, Sample, {home}\n"
                f"    {home}.{fn.__name__}(ops.{op.name}, {found.name!r}, {sample!r}){computed_by(op, found)}"
            )
            raise

    return wrapped


@contextlib.contextmanager
def without_warnings(place: str) -> Iterator[None]:
    """Raise CheckFailure for a warning of one of Python's own categories; others, as PyOpenCL's, are libraries'."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for found in caught:
        if found.category.__module__ == "builtins":
            raise CheckFailure(f"{place}: warns: {found.category.__name__}: {found.message}")


def label_of(op: Op, backend: Backend) -> str:
    """Return the label that messages begin with, such as "exp on opencl"."""
    return f"{op.name} on {backend.name}"


# ---- the checks ----------------------------------------------------------------------------------------------


@check
def check_forward(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that the value agrees with the reference in float64."""
    entry, place = SAMPLES[op], label_of(op, backend)
    got = values(place, op(*sample.arrays(backend), **sample.params))
    expected = _reference(op, entry, sample.hosts(entry.wide), sample.params)
    bounds = magnitudes(op, entry, sample, expected)
    kind = "function" if op in (ops.abs, ops.sign) and sample.dtypes() & {*COMPLEX} else entry.kind
    same_count(place, got, expected)
    for i, (g, e, m) in enumerate(zip(got, expected, bounds, strict=True)):
        what = "the result" if len(got) == 1 else f"result {i}"
        tolerance = adapters.tolerance_of(backend.name, kind, g.dtype)
        close(place, what, g, e, tolerance, m, flushes=g.dtype in backend.flushes)
        if entry.signed_zeros:
            same_zeros(place, what, g, e)


@check
def check_backward(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that the gradients agree with NumPy's in float64."""
    place, got = label_of(op, backend), _gradients(op, backend, sample)
    if got:
        expected = _gradients(op, reference(), sample, wide=True)
        gradients_agree(place, got, expected, dtype=coarsest(op, sample))
        if sample.g == "plain":  # the layout that kernels most often mishandle
            got = _gradients(op, backend, replace(sample, g="transposed"))
            gradients_agree(place, got, expected, "with a transposed cotangent, ", coarsest(op, sample))


@check
def check_fused(op: Op, backend: Backend, sample: Sample) -> None:
    """Check a backend's Fused kernels against the op's decomposition on the same backend, in value and gradients.

    The gradients also hold if they are asked for twice, and after another call of the op.
    """
    if not isinstance(backend.kernels.get(op), Fused):
        raise Lacking(f"{backend.name} has no fused kernel with a VJP for {op.name}, which is checked without")
    plain, place = backend.without_fused(), label_of(op, backend)
    got = values(place, op(*sample.arrays(backend), **sample.params))
    with use_backend(plain):
        expected = values(place, op(*sample.arrays(plain), **sample.params))
    for g, e in zip(got, expected, strict=True):
        close(place, "the fused kernel's result", g, e, "composed", max(FLOOR, largest(e)))
    slopes = _gradients(op, plain, sample)
    gradients_agree(place, _gradients(op, backend, sample), slopes, "the fused kernel's ")
    again = _gradients(op, backend, sample, times=2)
    gradients_agree(place, again, slopes, "pulled for the second time, the fused kernel's ")
    later = _gradients(op, backend, sample, between=sample.with_other_numbers())
    gradients_agree(place, later, slopes, "after another call, the fused kernel's ")


@check
def check_gradient(op: Op, backend: Backend, sample: Sample) -> None:
    """Check the gradient along a random direction against central differences, in float64."""
    value = _scalar(op, backend, sample)
    grads = polyarr.grad(value, argnums=tuple(range(len(sample.inputs))))(*sample.arrays(backend, wide=True))
    _compare_numeric(op, backend, sample, "the gradient", lambda *args: value(*args).item(), grads)


@check
def check_second_order(op: Op, backend: Backend, sample: Sample) -> None:
    """Check the gradient of <v, gradient> against central differences of <v, gradient>, in float64."""
    slope = _slope(op, backend, sample)
    grads = polyarr.grad(slope, argnums=tuple(range(len(sample.inputs))))(*sample.arrays(backend, wide=True))
    _compare_numeric(op, backend, sample, "the second derivative", lambda *args: slope(*args).item(), grads)


@check
def check_second_order_agrees(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that the gradient of <v, gradient> agrees with NumPy's in float64."""
    if not carries_gradient(op, sample):
        return
    found = []
    for place, wide in ((backend, False), (reference(), True)):
        slope = _slope(op, place, sample, wide)
        with use_backend(place):
            grads = polyarr.grad(slope, argnums=tuple(range(len(sample.inputs))))(*sample.arrays(place, wide))
        found.append({name: g.numpy() for name, g in _named(op, grads).items()})
    got, expected = found
    gradients_agree(label_of(op, backend), got, expected, "the second derivative's ")


@check
def check_purity(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that neither the op nor its gradient changes an input, the result or the cotangent."""
    args = sample.arrays(backend)
    inputs = {f"the input {_path(op, path)}": a for path, a in tree.items(args)}
    with _unchanged(op, backend, "the op", inputs):
        op(*args, **sample.params)
    value, pull = polyarr.vjp(lambda *a: op(*a, **sample.params), *args)
    cotangents = cotangents_of(value, sample)
    if cotangents is not None:
        with _unchanged(op, backend, "its gradient", {**inputs, "the result": value, "the cotangent": cotangents}):
            pull(cotangents)


@contextlib.contextmanager
def _unchanged(op: Op, backend: Backend, moment: str, held: dict[str, Any]) -> Iterator[None]:
    before = {what: bits(a) for what, a in held.items()}
    yield
    for what, a in held.items():
        if bits(a) != before[what]:
            raise CheckFailure(f"{label_of(op, backend)}: {moment} changed {what}")


@check
def check_layout(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that strides, steps, offsets and negative strides make no difference."""
    for layout in LAYOUTS:
        if layout not in REPEATING or _takes_alike(op):
            check_forward(op, backend, sample.with_layout(layout))


def _takes_alike(op: Op) -> bool:
    """Return whether all elements may be equal; indices and ops that divide by a small difference exclude that."""
    return SAMPLES[op].kind in ("exact", "arithmetic", "function", "power") and not op.indices


@check
def check_alias(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that passing one array as two inputs gives the same as passing two equal arrays."""
    for twin in sample.with_twins():
        for layout in ("plain", "stepped"):
            compare_with_reference(op, backend, twin.with_layout(layout))


@check
def check_large(op: Op, backend: Backend, template: Sample) -> None:
    """Check the values and gradients of large calls."""
    for sample in large(op, template):
        compare_with_reference(op, backend, replace(sample, g="transposed"))


@check
def check_alone(op: Op, backend: Backend, template: Sample) -> None:
    """Check the value of calls with one nan, infinity, extreme or other special number among normal ones."""
    for sample in alone(op, template):
        check_forward(op, backend, sample)


@check
def check_numbers(op: Op, backend: Backend, template: Sample) -> None:
    """Check the value of calls with numbers that narrower dtypes cannot hold and naive sums lose."""
    entry = SAMPLES[op]
    for sample in numbers(op, entry, entry.usual, template):
        if sample.is_held(op, backend.dtypes):
            check_forward(op, backend, sample)


def compare_with_reference(op: Op, backend: Backend, sample: Sample) -> None:
    """Check the value and, if there is one, the gradient against the reference."""
    check_forward(op, backend, sample)
    if SAMPLES[op].smooth and carries_gradient(op, sample):
        check_backward(op, backend, sample)


@check
def check_indices(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that an index out of range raises IndexError at once or at the next download, and that later calls work."""
    for wrong in (w for w in _wrong_indices(op, sample) if w.is_held(op, backend.dtypes)):
        try:
            found = [a.tolist() for a in tree.leaves(op(*wrong.arrays(backend), **wrong.params))]
        except IndexError:
            continue
        name, at = op.inputs[op.indices[0]], wrong.inputs[op.indices[0]]
        raise CheckFailure(
            f"{label_of(op, backend)}: {name} {at.numpy().tolist()} ({at.dtype}) of {at.limit} gave "
            f"{np.ravel(found[0])[:4].tolist()}; expected an IndexError"
        )
    check_forward(op, backend, sample)
    changes = {} if "ignore_index" in sample.params else {"values": "index"}  # which are of both signs
    for dtype in ("int32", "int64"):  # the gradient of scatter is defined for distinct ones only
        valid = sample.changed_at((op.indices[0],), functools.partial(replace, dtype=dtype, **changes))
        (check_forward if op is ops.scatter else compare_with_reference)(op, backend, valid)


def _wrong_indices(op: Op, sample: Sample) -> Iterator[Sample]:
    """Yield the call with one invalid index at a time, in each dtype that holds it."""
    values, limit = "no class" if op is ops.cross_entropy else "wrong", sample.inputs[op.indices[0]].limit
    for dtype in ("int64", "int32", "uint64"):
        for seed in range(len(wrong_numbers(values, limit, dtype))):
            yield sample.changed_at((op.indices[0],), functools.partial(replace, dtype=dtype, values=values, seed=seed))


@check
def check_bounds(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that every element of the result is written, and no memory beside it or beside an input."""
    kept: list[tuple[np.ndarray, Any]] = []

    def upload(host: np.ndarray) -> Any:
        kept.append((host, backend.upload(host)))
        return kept[-1][1]

    watched = backend._replace(upload=upload)
    for layout in ("plain", "offset", "stepped"):
        moved = sample.with_layout(layout)
        try:
            with use_backend(watched), backend.guarded() if backend.guarded else contextlib.nullcontext():
                check_forward(op, watched, moved)
                _gradients(op, watched, moved)
        except BackendError as error:
            raise CheckFailure(f"{label_of(op, backend)}: {error}") from error
    for host, buf in kept:
        if backend.download(buf).tobytes() != host.tobytes():
            raise CheckFailure(f"{label_of(op, backend)}: memory beside the elements of an input was changed")


@check
def check_memory(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that the memory of the op and of its gradient is freed when nothing refers to it any more."""
    saved: list[Any] = []
    watched_backend = _recording_saved(op, backend, saved)

    def used() -> int:
        return backend.memory().get("in use", 0)

    def run() -> list[tuple[str, weakref.ref]]:
        args = sample.arrays(watched_backend)
        saved.clear()
        result = op(*args, **sample.params)
        made = [("the result", a.buf) for a in tree.leaves(result)]
        made += [(f"d/d{name}", a.buf) for name, a in gradients_of(op, args, sample).items()]
        made += [("what the fused kernel saved", s) for s in tree.leaves(tuple(saved)) if s is not None]
        saved.clear()
        return [(what, weakref.ref(buf)) for what, buf in made if type(buf).__weakrefoffset__]

    lasting = [ref() for _, ref in run()]  # buffers cached by the first run may stay
    before, watched = used(), run()
    if not (watched or backend.memory()):
        raise Lacking(f"{backend.name} does not report its memory, and no weak reference to a buffer can be made")
    if used() > before or any(ref() is not None for _, ref in watched):
        gc.collect()
    if used() > before:
        raise CheckFailure(f"{label_of(op, backend)}: {used() - before} bytes are in use that nobody holds")
    for what, ref in watched:
        if (buf := ref()) is not None and not any(buf is known for known in lasting):
            raise CheckFailure(f"{label_of(op, backend)}: the buffer of {what} lives on when nobody holds it")


def _recording_saved(op: Op, backend: Backend, saved: list[Any]) -> Backend:
    """Return the backend with a forward kernel that records what it saves for the op's backward."""
    kernel = backend.kernels.get(op)
    if not isinstance(kernel, Fused):
        return backend

    def forward(*args: Any, **params: Any) -> Any:
        found = kernel.forward(*args, **params)
        if found is not NotImplemented:
            saved.append(found[1])
        return found

    return backend._replace(kernels={**backend.kernels, op: kernel._replace(forward=forward)})


@check
def check_determinism(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that equal inputs give equal bits in value and gradients, unless an unordered op takes part."""
    if op in backend.unordered:
        raise Lacking(f"{backend.name} says that {op.name} adds in no fixed order")
    if backend.unordered and uses_unordered_op(op, backend, sample):
        return
    runs = [bits((op(*sample.arrays(backend), **sample.params), _gradients(op, backend, sample))) for _ in range(2)]
    for path, first in runs[0].items():
        if first != runs[1][path]:
            what = "the result" if path[0] == 0 else f"d/d{path[1]}"
            raise CheckFailure(f"{label_of(op, backend)}: {what} has other bits the second time")


def uses_unordered_op(op: Op, backend: Backend, sample: Sample) -> bool:
    """Return whether the op or its gradient runs one of backend.unordered."""
    called: set[Op] = set()
    watched = recording_calls(backend, called)
    with use_backend(watched):
        op(*sample.arrays(watched), **sample.params)
        _gradients(op, watched, sample)
    return not called.isdisjoint(backend.unordered)


def recording_calls(backend: Backend, called: set[Op]) -> Backend:
    """Return the backend with kernels that add their op to `called`."""

    def noted(op: Op, kernel: Any) -> Any:
        if isinstance(kernel, Fused):
            return kernel._replace(forward=noted(op, kernel.forward), backward=noted(op, kernel.backward))

        def run(*args: Any, **params: Any) -> Any:
            called.add(op)
            return kernel(*args, **params)

        return run

    return backend._replace(kernels={op: noted(op, kernel) for op, kernel in backend.kernels.items()})


@check
def check_no_transfers(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that neither the op nor its gradient copies data to or from the host."""
    args = sample.arrays(backend)
    cotangents = cotangents_of(op(*args, **sample.params), sample)
    before = polyarr.transfers()
    op(*args, **sample.params)
    between = polyarr.transfers()
    if cotangents is not None:
        gradients_of(op, args, sample, cotangents)
    for moment, a, b in (("the op", before, between), ("its gradient", between, polyarr.transfers())):
        if a != b:
            up, down = b.uploads - a.uploads, b.downloads - a.downloads
            raise CheckFailure(
                f"{label_of(op, backend)}: {moment} made {up} uploads and {down} downloads; expected none"
                + _remedy(op, backend)
            )


def _remedy(op: Op, backend: Backend) -> str:
    """Return advice for the author of a kernel if the transfers may come from dynamic scalars."""
    numbers = [op.inputs[i] for i in op.numbers if op.inputs[i] not in backend.reads.get(op, ())]
    if not numbers or op not in backend.kernels:
        return ""
    return f"; if they are numbers, have the kernel read {', '.join(numbers)} from arrays, and say so in Backend.reads"


# ---- values and gradients ------------------------------------------------------------------------------------


def _reference(op: Op, entry: Entry, hosts: tuple, params: dict) -> list[np.ndarray]:
    """Return the expected values from the entry's NumPy function, or from the decomposition on NumPy in float64."""
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        if entry.reference is not None:
            exact = {name: value for name, value in {**op.defaults, **params}.items() if name != "precision"}
            found = entry.reference(*hosts, **exact)
            return [np.asarray(f) for f in found] if isinstance(found, (tuple, list)) else [np.asarray(found)]
        with use_backend(reference()):
            args = tree.map(lambda a: polyarr.asarray(a) if isinstance(a, np.ndarray) else a, hosts)
            return values(label_of(op, reference()), op(*args, **params))


def magnitudes(op: Op, entry: Entry, sample: Sample, expected: list[np.ndarray]) -> list:
    """Return the magnitude that each result's tolerance is relative to; see tolerance.TABLE."""
    if entry.kind == "step" or sample.params.get("mode") in ("cubic", "bicubic"):  # whose weights have signs
        inputs = largest(*_flat_hosts(sample))
        return [max(inputs, largest(e)) for e in expected]
    if entry.kind in ("reduction", "layer"):
        positive = _reference(op, entry, tree.map(_without_sign, sample.hosts()), sample.params)
        return [max(FLOOR, largest(p)) for p in positive] if entry.kind == "layer" else positive
    if entry.kind == "relative":
        return [np.abs(e) for e in expected]
    if entry.kind == "cancelling":
        hosts = [np.where(np.isfinite(a), np.abs(a), 0.0) for a in _flat_hosts(sample)]
        joint = functools.reduce(np.maximum, hosts)
        same = joint.shape == expected[0].shape
        return [np.maximum(joint, np.abs(expected[0])) if same else largest(joint, *expected)]
    return [max(FLOOR, largest(e)) for e in expected]


def _without_sign(a: Any) -> Any:
    """Return inexact numbers and int8 as absolute values, and uint8 as the largest codes of 4 bits; others stay."""
    if not isinstance(a, np.ndarray) or (a.dtype.kind not in "fc" and a.dtype not in (int8, uint8)):
        return a
    return np.abs(a if a.dtype.kind in "fc" else a.astype(np.int16)) if a.dtype != uint8 else np.full_like(a, 255)


def _flat_hosts(sample: Sample) -> list[np.ndarray]:
    return [np.asarray(a) for a in tree.leaves(sample.hosts())]


def carries_gradient(op: Op, sample: Sample) -> bool:
    """Return whether an input and a result are floating-point or complex arrays."""
    return all(any(d in INEXACT for d in found) for found in _dtypes(op, sample))


def coarsest(op: Op, sample: Sample) -> np.dtype:
    """Return the floating-point dtype with the largest eps among inputs and results: it limits the gradients."""
    inputs, results = _dtypes(op, sample)
    return max((d for d in (*inputs, *results) if d in INEXACT), key=lambda d: polyarr.finfo(d).eps)


def _dtypes(op: Op, sample: Sample) -> tuple[list[np.dtype], list[np.dtype]]:
    """Return the dtypes of the input arrays and those of the results."""
    specs = sample.specs()
    inputs = [s.dtype for s in tree.leaves(specs) if isinstance(s, Spec)]
    return inputs, [s.dtype for s in tree.leaves(op(*specs, **sample.params))]


def cotangents_of(result: Any, sample: Sample, seed: int = 8) -> Any:
    """Return a cotangent for every result (an integer result is its own), or None without floating-point results."""
    if not any(a.dtype in INEXACT for a in tree.leaves(result)):
        return None

    def cotangent(a: Array) -> Array:
        return _direction(a, seed, sample.g) if a.dtype in INEXACT else a

    return tree.map(cotangent, result)


def _direction(a: Array, seed: int, layout: str = "plain") -> Array:
    """Return numbers of a's shape and dtype that are the same in every dtype."""
    return Data(a.shape, a.dtype.name, "eighths", layout, seed).array(a.backend)


def gradients_of(
    op: Op,
    args: tuple,
    sample: Sample,
    cotangents: Any = None,
    wide: bool = False,
    between: tuple | None = None,
    times: int = 1,
) -> dict[str, Array]:
    """Return the gradients of an op by the input's name, as its VJP gives them when called `times` times.

    If `between` is given, the op is called with it before the VJP.
    """
    params = sample.wide_params() if wide else sample.params
    value, pull = polyarr.vjp(lambda *a: op(*a, **params), *args)
    if between is not None:
        polyarr.vjp(lambda *a: op(*a, **params), *between)
    if cotangents is None:
        cotangents = cotangents_of(value, sample)
    if cotangents is None:
        return {}
    for _ in range(times - 1):
        pull(cotangents)
    return _named(op, pull(cotangents))


def _named(op: Op, grads: tuple) -> dict[str, Array]:
    return {_path(op, path): g for path, g in tree.items(grads) if type(g) is Array}


def _path(op: Op, path: tuple) -> str:
    return op.inputs[path[0]] + "".join(f"[{i}]" for i in path[1:])


def _gradients(
    op: Op, backend: Backend, sample: Sample, wide: bool = False, between: Sample | None = None, times: int = 1
) -> dict[str, np.ndarray]:
    with use_backend(backend):
        other = None if between is None else between.arrays(backend, wide)
        found = gradients_of(op, sample.arrays(backend, wide), sample, wide=wide, between=other, times=times)
        return {name: values(label_of(op, backend), g, f"d/d{name}")[0] for name, g in found.items()}


def _scalar(op: Op, backend: Backend, sample: Sample, wide: bool = True) -> Callable:
    """Return the function that multiplies the op's results with a cotangent and sums."""
    params = sample.wide_params() if wide else sample.params

    def value(*args: Any) -> Array:
        result = op(*args, **params)
        pairs = zip(tree.leaves(result), tree.leaves(cotangents_of(result, sample)), strict=True)
        return functools.reduce(ops.add, [ops.real(ops.sum(a * g)) for a, g in pairs if a.dtype in INEXACT])

    return value


def _slope(op: Op, backend: Backend, sample: Sample, wide: bool = True) -> Callable:
    """Return the function that multiplies the gradient with a direction and sums."""
    value = _scalar(op, backend, sample, wide)

    def slope(*args: Any) -> Array:
        grads = polyarr.grad(value, argnums=tuple(range(len(args))))(*args)
        found = [g for g in tree.leaves(grads) if type(g) is Array]
        return functools.reduce(ops.add, [ops.real(ops.sum(g * _direction(g, 11 + i))) for i, g in enumerate(found)])

    return slope


def _compare_numeric(op: Op, backend: Backend, sample: Sample, what: str, value: Callable, grads: tuple) -> None:
    """Compare grads along a random direction with (value(x + h u) - value(x - h u)) / 2h."""
    hosts = sample.hosts()
    direction = tree.map(direction_at, hosts)

    def at(t: float) -> float:
        moved = tree.map(lambda a, d: np.asarray(a + t * d) if _moves(a) else a, hosts, direction)
        return value(*tree.map(lambda a: polyarr.asarray(a, device=backend) if isinstance(a, np.ndarray) else a, moved))

    along, found = dict(tree.items(direction)), dict(tree.items(grads))
    terms = [(g.numpy() * along[path]).real.reshape(-1) for path, g in found.items() if type(g) is Array]
    exact = float(sum(t.sum() for t in terms))
    result = op(*sample.arrays(backend, wide=True), **sample.wide_params())
    step, tolerance = STEPS[float32 if any(real_of(a.dtype) == float32 for a in tree.leaves(result)) else float64]
    numeric = (at(step) - at(-step)) / (2 * step)
    size = 1 + abs(numeric) + float(sum(np.abs(t).sum() for t in terms))
    if not abs(exact - numeric) <= tolerance * size:
        raise CheckFailure(
            f"{label_of(op, backend)}: {what} along a direction is {exact:.9g}, numerically {numeric:.9g}"
        )


def _moves(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.kind in "fc"


def __getattr__(name: str) -> Any:
    return globals()[renamed(__name__, name, {"check_fused_pair": "check_fused"})]
