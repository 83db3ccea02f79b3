"""Checks of compiled functions beyond a single op, with the form of those in backend_checks.py.

Each runs a function with and without polyarr.compile and compares bits. A backend may execute programs in its own way;
see polyarr/core/program.py.
"""

import copy
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import polyarr
from polyarr import nn, ops, random, tree
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.testing.compare import CheckFailure, bits

# Which of four arrays are x, y, held["w"] and held["more"][0]. The last two arrays share a buffer at first.
ROLES = ((0, 1, 2, 3), (0, 1, 0, 2), (0, 1, 2, 1), (0, 0, 1, 1), (1, 1, 1, 1), (2, 0, 3, 0), (3, 2, 2, 3))
WHAT = ("the result", "an array", "the random state")
SEEDS = (5, 2**32 + 5, 2**63 + 2**31 + 1, 2**64 - 1)
DRAWN = (0, 2**31, 2**32 + 7, 2**40 + 3)  # random numbers drawn before
SIZE = 2**24 + 40  # elements: more than float32 can count exactly
OFFSETS = (3, 2**8 + 1, 2**15 + 1, 2**16 + 3, 2**20 + 1, 2**24 + 1, SIZE - 9)
NUMBERS = (1, -1, 2**15 + 1, 2**16 + 1, 2**31 + 1, 2**33 + 1, -(2**40) - 1)
THREADS, ROUNDS = 4, 12
LAYERS, WEIGHT = 20, (3, 5)  # arrays of a model, and their shape


def check_captures(backend: Backend, examples: int) -> None:
    """Check that captured arrays can be changed in place, returned, and passed as arguments, as without compile."""
    with use_backend(backend):
        for fn in (_returned, _by_the_argument, _by_the_capture, _exchanged, _indexed, _drawn):
            random.seed(7)
            due = [*_calls(fn, is_compiled=False)]
            random.seed(7)
            for roles, expected, got in zip(ROLES + ROLES, due, _calls(fn, is_compiled=True), strict=True):
                for what, before, after in zip(WHAT, expected, got, strict=True):
                    if before != after:
                        who = f"compiled {fn.__name__.strip('_').replace('_', ' ')}, with arrays {roles}"
                        raise CheckFailure(f"{backend.name}: {who}: {what} is another one than without compile")


def _calls(fn: Callable, is_compiled: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Yield, for each of ROLES twice: the bits of all results so far, those of the arrays, and the random state."""
    host = np.random.default_rng(3).standard_normal((3, 3, 4), dtype=np.float32)
    pool = [polyarr.asarray(h) for h in host]
    pool.append(copy.copy(pool[2]))
    held: dict[str, Any] = {"w": pool[2], "more": [pool[3]]}

    def call(x: Array, y: Array) -> Any:
        return fn(x, y, held)

    called, results = polyarr.compile(call, captures=held) if is_compiled else call, []
    for x, y, w, more in ROLES + ROLES:
        held["w"], held["more"][0] = pool[w], pool[more]
        # Without compile, a returned array is the caller's own handle, which later calls rebind.
        results.append(tree.map(copy.copy, called(pool[x], pool[y])))
        yield bits(results), bits(pool), random.get_state()


def _returned(x: Array, y: Array, held: dict[str, Any]) -> Any:
    held["w"][0] = x[1]
    return held["w"], held["w"] + 0, held


def _by_the_argument(x: Array, y: Array, held: dict[str, Any]) -> Any:
    x += 1
    return x, held["w"] + 0, held["more"][0] * y


def _by_the_capture(x: Array, y: Array, held: dict[str, Any]) -> Any:
    held["more"][0] -= x * 0.5
    return x + 0, y, held["w"] + held["more"][0]


def _exchanged(x: Array, y: Array, held: dict[str, Any]) -> Any:
    before = held["w"][...]
    held["w"][...] = y
    y[...] = before
    return before, held["w"], y, x - held["more"][0]


def _indexed(x: Array, y: Array, held: dict[str, Any]) -> Any:
    w = held["w"]
    w[[0, 2]] = y[np.array([1, 1])]
    w[np.arange(12).reshape(3, 4) % 5 == 0] = 0.25
    return w[:, [0]], w[1, [3, 1]], held["more"][0][[2]]


def _drawn(x: Array, y: Array, held: dict[str, Any]) -> Any:
    held["w"] += random.uniform((3, 4))
    x[1] = random.uniform((4,))
    return held["w"] * y


# ---- what a run is given -------------------------------------------------------------------------------------------


def check_runs(backend: Backend, examples: int) -> None:
    """Check compiled functions with any number, offset and weights, in threads, after an exception, and for leaks."""
    with use_backend(backend):
        for check in (_check_keys, _check_numbers, _check_offsets, _check_weights, _check_errors, _check_threads):
            check(backend)
        _check_release(backend)


def _hold(backend: Backend, what: str, due: Any, got: Any) -> None:
    if bits(due) != bits(got):
        raise CheckFailure(f"{backend.name}: compiled, {what}: the result has other bits")


def _check_keys(backend: Backend) -> None:

    def draw() -> tuple[Array, Array]:
        return random.bits((5,)), random.bits((5,))  # two draws of one shape

    compiled = polyarr.compile(draw)
    for seed, drawn in itertools.product(SEEDS, DRAWN):
        random.set_state((seed, drawn))
        due = draw()
        random.set_state((seed, drawn))
        _hold(backend, f"with the random key {seed} after {drawn} draws", due, compiled())


def _check_numbers(backend: Backend) -> None:
    if np.dtype("int64") not in backend.dtypes:
        return
    x = from_numpy(np.arange(4), backend)

    def fn(x: Array, n: int) -> Any:
        return x + n, x * polyarr.evaluate(lambda n: n + 1, n)

    compiled = polyarr.compile(fn)
    for n in NUMBERS:
        _hold(backend, f"with the number {n}", fn(x, n), compiled(x, n))


def _check_offsets(backend: Backend) -> None:
    narrow = next((d for d in map(np.dtype, ("uint8", "int8", "float32")) if d in backend.dtypes), None)
    if narrow is None:
        return
    x = from_numpy((np.arange(SIZE) % 113).astype(narrow), backend)

    def at_a_number(x: Array, n: int) -> Any:
        return x[n], ops.take(x, ops.fill(n, x, shape=(2,), dtype=np.dtype("int64")), axis=0)

    def of_a_view(view: Array) -> Any:
        return view + view, view[1:]

    by_number, by_view = polyarr.compile(at_a_number), polyarr.compile(of_a_view)
    for place in OFFSETS:
        _hold(backend, f"at place {place}", at_a_number(x, place), by_number(x, place))
        view = x[place : place + 9]
        _hold(backend, f"with a view that begins at {place}", of_a_view(view), by_view(view))


class _Layers(nn.Module):
    """A model with as many weights as are kept from one run to the next, and more (core/program.py: Kept)."""

    def __init__(self, backend: Backend, seed: int) -> None:
        numbers = np.random.default_rng(seed).standard_normal((LAYERS, *WEIGHT)).astype(np.float32)
        self.weights = [from_numpy(each, backend) for each in numbers]

    def __call__(self, x: Array, n: int) -> Any:
        for weight in self.weights:
            x = x * weight + n
        return x, self.weights[0] + self.weights[-1]


def _check_weights(backend: Backend) -> None:
    """Check runs with two models, in each of several runs with the same weights, and with others beside them."""
    models, compiled = [_Layers(backend, 1), _Layers(backend, 2)], polyarr.compile(_Layers.__call__)
    wide = from_numpy(np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5), backend)
    for turn in range(20):
        model = models[turn // 5 % 2]
        weight = model.weights[turn]
        if turn % 5 == 4:
            weight.rebind(weight * 1.5)
        for given in (wide[:3] * float(turn), wide[turn % 9 :][:3], wide[::4], weight[...]):
            _hold(backend, f"with weights in turn {turn}", model(given, turn), compiled(model, given, turn))


def _check_errors(backend: Backend) -> None:
    """Check runs that follow a run that raised."""
    w, counted = polyarr.zeros((3,)), from_numpy(np.array([0.5, 2.0, -1.0], np.float32), backend)

    def fn(x: Array, at: Array, n: int) -> Any:
        w[...] = w + x
        y = x * polyarr.evaluate(_limited, n)
        return y, ops.take(y, at, axis=0) + w

    compiled = polyarr.compile(fn, captures=w)
    for n, at in ((1, 0), (1, 2), (9, 1), (2, 1), (2, 7), (3, 0), (9, 9), (4, 2)):
        index, found = from_numpy(np.array([at]), backend), []
        start = copy.copy(w)
        for call in (fn, compiled):
            w.rebind(start)
            found.append((_outcome(lambda: call(counted + n, index, n)), bits(w)))  # noqa: B023  called at once
        if found[0] != found[1]:
            raise CheckFailure(f"{backend.name}: compiled, with {n} and {at}, among runs that raise: another outcome")


def _limited(n: int) -> int:
    if n > 8:
        raise LookupError("more than 8")
    return n + 1


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the result's bits, or the type of the LookupError that the call or the download raises."""
    try:
        return bits(call())
    except LookupError as error:
        return type(error)


def _check_threads(backend: Backend) -> None:
    compiled = polyarr.compile(_elementwise)
    arrays = [from_numpy(np.full((200, 3), i + 0.5, np.float32), backend) for i in range(THREADS)]
    due = [bits(_elementwise(a, i)) for i, a in enumerate(arrays)]
    wrong, start = list[Any](), threading.Barrier(THREADS)
    compiled(arrays[0], 0)
    compiled(arrays[0], 0)

    def work(i: int) -> None:
        with use_backend(backend):
            start.wait()
            try:
                wrong.extend(i for _ in range(ROUNDS) if bits(compiled(arrays[i], i)) != due[i])
            except Exception as error:
                wrong.append(error)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    if wrong:
        said = f": {wrong[0]!r}" if isinstance(wrong[0], Exception) else ""
        raise CheckFailure(f"{backend.name}: compiled, in {THREADS} threads: the result has other bits{said}")


def _elementwise(x: Array, n: int) -> Any:
    return (x * n + 1) * x - n, -x


def _check_release(backend: Backend) -> None:
    """Check that nothing of the backend keeps the inputs of a call that has returned."""
    compiled, host = polyarr.compile(_elementwise), np.ones((50, 3), np.float32)

    def run() -> list[weakref.ref]:
        x = from_numpy(host, backend)
        tree.map(lambda a: a.numpy(), compiled(x, 2))
        return [*_references(x.buf)]

    gc.collect()
    before = backend.memory().get("in use", 0)
    kept = [reference for _ in range(3) for reference in run()]
    gc.collect()
    if any(reference() is not None for reference in kept) or backend.memory().get("in use", 0) > before:
        raise CheckFailure(f"{backend.name}: compiled: an input's memory is kept after the call")


def _references(buf: Any) -> Iterator[weakref.ref]:
    """Yield weak references to a buffer or to its parts if it is a tuple; none where the type does not support them."""
    for part in (buf, *(buf if isinstance(buf, tuple) else ())):
        if type(part).__weakrefoffset__:
            yield weakref.ref(part)
