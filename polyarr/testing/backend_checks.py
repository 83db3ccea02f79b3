"""Checks of a backend as a whole: promises that no single op makes, layers, and the training of a GPT.

Each function takes a backend and the number of examples to try. It raises CheckFailure, or Lacking if the backend
declares that it cannot do what the check needs.
"""

import contextlib
import json
import mmap
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import polyarr
from polyarr import nn, ops, optim, tree
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.groups import IN_PART, groups, lacking, offer
from polyarr.core.op import OPS, Op
from polyarr.core.spec import DTYPES, FLOATS, float32, float64, int32, int64, uint32
from polyarr.core.spec import bool as bool_
from polyarr.models.generation import generate
from polyarr.models.gpt import GPTModel
from polyarr.plugins.diagnosis import status
from polyarr.plugins.starting import THIS_PROCESS
from polyarr.testing import references
from polyarr.testing.checks import reference
from polyarr.testing.compare import CheckFailure, Lacking, bits, close, gradients_agree, values
from polyarr.testing.strategies import Data
from polyarr.testing.tolerance import FLOOR, PRECISIONS, TABLE, largest

NEEDED = (bool_, int32, int64, uint32, float32)  # dtypes of conditions, indices, sizes, random bits and numbers
THREADS, ROUNDS = 8, 4
STEPS = 20
LARGE = (143, 701)  # more than 64 KiB in every dtype; 15 and 13 more than whole tiles of 16
LOSSES = 1e-5  # tolerance of losses, relative to NumPy's in float64
GPT: dict[str, Any] = {
    "vocab_size": 29, "context_length": 17, "emb_dim": 24, "n_heads": 3, "n_layers": 2, "drop_rate": 0.1,
    "qkv_bias": True, "tie_embeddings": True,
}  # fmt: skip


# ---- core ----------------------------------------------------------------------------------------------------


def check_complete(backend: Backend, examples: int) -> None:
    """Check that every primitive has a kernel, groups are whole or absent, and the dtypes programs need are held."""
    unheld = [d.name for d in NEEDED if d not in backend.dtypes]
    if unheld:
        raise CheckFailure(f"{backend.name}: holds no {', '.join(unheld)}; every backend must")
    missing = [op.name for op in primitives() if op not in backend.kernels]
    if missing:
        raise CheckFailure(f"{backend.name}: no kernel for {', '.join(missing)}; every primitive needs one")
    for group in groups():
        if offer(backend, group) == IN_PART:
            names = ", ".join(op.name for op in lacking(backend, group))
            raise CheckFailure(
                f"{backend.name}: of {group}, no kernel for {names}; a group is there as a whole, or not"
            )


def primitives() -> list[Op]:
    """Return polyarr's own ops that every backend must implement."""
    return [op for op in OPS if op.decomposition is None and not op.group and op.__module__.startswith("polyarr.ops.")]


def why_copies_fail(backend: Backend) -> str:
    """Return why arrays of the dtypes that every program needs do not survive a round trip; "" if they do."""
    for dtype in (d for d in NEEDED if d in backend.dtypes):
        for shape in ((), (33,), (2, 3)):
            host = Data(shape, dtype.name).numpy()
            try:
                found = polyarr.asarray(host, device=backend).numpy()
            except Exception as error:
                return f"{dtype.name}{list(shape)}: {type(error).__name__}: {error}"
            if (found.shape, found.tobytes()) != (host.shape, host.tobytes()):
                return f"{dtype.name}{list(shape)} comes back from an upload as other bytes"
    return ""


def check_copies(backend: Backend, examples: int) -> None:
    """Check that uploads come back bit for bit, and that no copy shares memory with the caller's array."""
    for dtype in (d for d in DTYPES if d in backend.dtypes):
        for shape in ((), (0,), (1,), (33,), (2, 3, 5), LARGE):
            host = Data(shape, dtype.name, "special").numpy()
            given = _at_a_page(host)
            x = polyarr.asarray(given, device=backend)
            given[...] = np.zeros((), dtype)
            first = x.numpy()
            if first.tobytes() != host.tobytes():
                raise CheckFailure(f"{backend.name}: {x.spec} comes back from an upload as other bytes")
            first[...] = np.ones((), dtype)
            if x.numpy().tobytes() != host.tobytes():
                raise CheckFailure(f"{backend.name}: a download of {x.spec} shares the array's memory")


def _at_a_page(host: np.ndarray) -> np.ndarray:
    """Return a copy that begins a page of memory: a library may share aligned memory that it should copy."""
    memory = np.empty(host.nbytes + mmap.PAGESIZE, np.uint8)
    start = -memory.ctypes.data % mmap.PAGESIZE
    found = memory[start : start + host.nbytes].view(host.dtype).reshape(host.shape)
    found[...] = host
    return found


# Layouts of host arrays, and views of an array on a backend; all are made from a matrix.
HOSTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a transposed host array": lambda a: a.T,
    "a host array of every second row": lambda a: a[::2],
    "a host array of every second column": lambda a: a[:, ::2],
    "a reversed host array": lambda a: a[::-1, ::-1],
    "a host array in Fortran's order": np.asfortranarray,
    "a host array that repeats a row": lambda a: np.broadcast_to(a[:1], a.shape),
    "a host array that begins later": lambda a: a[1:, 3:],
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "the transpose": lambda a: a.T,
    "every second row": lambda a: a[::2],
    "the reverse": lambda a: a[::-1, ::-1],
    "a part": lambda a: a[1:, 3:],
    "a row": lambda a: a[1],
    "an element": lambda a: a[1, 2],
    "an element of a transposed part": lambda a: a[1:].T[2:, 1:2],
}


def check_hosts(backend: Backend, examples: int) -> None:
    """Check uploads of host arrays in every layout and downloads of every view; no copy shares memory."""
    for shape in ((5, 7), LARGE):
        for dtype in ("float32", "int64", "bool"):
            host = Data(shape, dtype, seed=1).numpy()
            for what, view in HOSTS.items():
                _check_upload(backend, what, view, host)
            x = polyarr.asarray(host, device=backend)
            for what, view in VIEWS.items():
                _check_download(backend, f"{what} of {x.spec}", view(x), view(host))
            if x.numpy().tobytes() != host.tobytes():
                raise CheckFailure(f"{backend.name}: writing to a download of a view of {x.spec} changed the array")


def _check_upload(backend: Backend, what: str, view: Callable, host: np.ndarray) -> None:
    """Check the upload of a view, writable and read-only; later writes to the host's memory do not matter."""
    own, before = host.copy(), view(host).tobytes()
    given, fixed = view(own), view(own).view()
    fixed.flags.writeable = False
    both = [polyarr.asarray(a, device=backend) for a in (given, fixed)]
    if given.tobytes() != before:
        raise CheckFailure(f"{backend.name}: the upload of {what}, {both[0].spec}, changed it")
    for how, x in zip(("", "read-only, "), both, strict=True):
        if x.numpy().tobytes() != before:
            raise CheckFailure(f"{backend.name}: {what}, {x.spec}, {how}comes back as other bytes")
    own[...] = ~own if own.dtype.kind == "b" else own + 1
    for how, x in zip(("", "read-only and "), both, strict=True):
        if x.numpy().tobytes() != before:
            raise CheckFailure(f"{backend.name}: {what}, {x.spec}, {how}changed after its upload, shares its memory")


def _check_download(backend: Backend, what: str, x: Array, host: np.ndarray) -> None:
    got = x.numpy()
    if got.shape != host.shape or got.tobytes() != host.tobytes():
        raise CheckFailure(f"{backend.name}: {what} comes down as other bytes")
    if not (got.flags.c_contiguous and got.flags.writeable):
        raise CheckFailure(f"{backend.name}: {what} comes down in another order than C's, or cannot be written to")
    got[...] = np.ones((), got.dtype)
    if x.numpy().tobytes() != host.tobytes():
        raise CheckFailure(f"{backend.name}: a download of {what} shares the array's memory")


def check_synchronize(backend: Backend, examples: int) -> None:
    """Check that synchronize waits for enqueued work, and so reports an index out of range."""
    x = polyarr.asarray([1.0, 2.0, 3.0], device=backend)
    backend.synchronize()
    try:
        found = ops.take(x, polyarr.asarray([0, 3], device=backend))
        backend.synchronize()
    except IndexError:
        backend.synchronize()
        return
    with contextlib.suppress(IndexError):
        found.numpy()  # so that the error does not surface elsewhere
    raise CheckFailure(f"{backend.name}: synchronize returned before an index that is out of range was reported")


def check_random_bits(backend: Backend, examples: int) -> None:
    """Check that random_bits is Philox4x32-10, bit for bit, for long arrays and 64-bit keys and counters."""
    like = polyarr.asarray(0, device=backend)
    for key, counter, size in ((0, 0, 4), (1, 2**63 + 5, 1031), (2**64 - 1, 2**32, 33), (0x299F31D0A4093822, 7, 4096)):
        got = ops.random_bits(key, counter, like, shape=(size,)).numpy()
        expected = references.random_bits(key, counter, shape=(size,))
        close(f"random_bits on {backend.name}", f"key {key}, counter {counter}", got, expected, "exact", 0)


def check_bad_indices(backend: Backend, examples: int) -> None:
    """Check that an index out of range raises IndexError at once or at the next download, and that later calls work."""
    x, at = polyarr.asarray([1.0, 2.0, 3.0], device=backend), polyarr.asarray([0, 3], device=backend)
    calls: dict[str, Callable[[], Array]] = {
        "take": lambda: ops.take(x, at),
        "scatter": lambda: ops.scatter(x, at, x[:2]),
        "scatter_add": lambda: ops.scatter_add(x, at, x[:2]),
    }
    for name, call in calls.items():
        try:
            found = call().tolist()
        except IndexError:
            continue
        raise CheckFailure(f"{name} on {backend.name}: index 3 of 3 elements gave {found}; expected an IndexError")
    if ops.sum(x).item() != 6.0:
        raise CheckFailure(f"sum on {backend.name}: wrong after an index was out of range")


def check_precisions(backend: Backend, examples: int) -> None:
    """Check that product kernels which distinguish precisions keep the bound of each for operands of any range.

    The bounds hold for the gradients, too. They apply to float32 only.
    """
    distinguishing = [op for op in (ops.matrix_product, ops.linear) if backend.precisions.get(op)]
    if not distinguishing:
        raise Lacking(f"{backend.name} distinguishes no precisions of products")
    for op in distinguishing:
        for depth in (3, 64, 130):
            for word in ("highest", *backend.precisions[op]):
                _check_product(op, backend, (37, 66, depth), word)
                _check_batches(op, backend, depth, word)
        if float64 in backend.dtypes:
            x, y = (_spread((33, 33), seed).astype(np.float64) for seed in (0, 1))
            given = [polyarr.asarray(a, device=backend) for a in (x, y)]
            found = op(given[0], given[1], precision=backend.precisions[op][-1])
            y = y.T if op is ops.linear else y
            bound = np.abs(x) @ np.abs(y)
            close(f"{op.name} on {backend.name}", "the result", found.numpy(), x @ y, "reduction", bound)


def check_large_precisions(backend: Backend, examples: int) -> None:
    """Check the bounds of precisions for products of sizes at which a backend may switch to less accurate kernels."""
    distinguishing = [op for op in (ops.matrix_product, ops.linear) if backend.precisions.get(op)]
    if not distinguishing:
        raise Lacking(f"{backend.name} distinguishes no precisions of products")
    for op in distinguishing:
        for word in ("highest", *backend.precisions[op]):
            _check_product(op, backend, (1537, 1544, 1416), word)


def _check_product(op: Op, backend: Backend, sizes: tuple[int, int, int], word: str) -> None:
    """Check the product of (m, k) and (k, n) and its gradients, which are also products."""
    m, n, k = sizes
    x, right = _spread((m, k), 0), _spread((n, k), 1).T
    g = np.random.default_rng(2).uniform(0.5, 1, (m, n)).astype(np.float32)
    value, dx, dy = _product_and_gradients(op, backend, word, x, right.T if op is ops.linear else right, g)
    products = {"the result": (value, x, right), "d/dx": (dx, g, right.T)}
    products["d/dy"] = (dy, g.T, x) if op is ops.linear else (dy, x.T, g)
    for what, (found, a, b) in products.items():
        _compare_product(op, backend, word, what, found, a, b)


def _check_batches(op: Op, backend: Backend, depth: int, word: str) -> None:
    """Check three products in a batch, with one right operand and, for matrix products, with three."""
    apart = np.exp2([0, 12, 24]).astype(np.float32)[:, None, None]  # so that no single scale fits all three
    x, g = _spread((3, 37, depth), 3) * apart, np.random.default_rng(4).uniform(0.5, 1, (3, 37, 66)).astype(np.float32)
    right = _spread((66, depth), 5).T
    value, dx, _ = _product_and_gradients(op, backend, word, x, right.T if op is ops.linear else right, g)
    for what, found, a, b in (("the result", value, x, right), ("d/dx", dx, g, right.T)):
        _compare_product(op, backend, word, f"of a batch, {what}", found, a, b)
    if op is ops.matrix_product:
        right = (_spread((3, 66, depth), 6) * apart).swapaxes(1, 2)
        value, dx, dy = _product_and_gradients(op, backend, word, x, right, g)
        for what, found, a, b in (
            ("the result", value, x, right), ("d/dx", dx, g, right.swapaxes(1, 2)), ("d/dy", dy, x.swapaxes(1, 2), g)
        ):  # fmt: skip
            _compare_product(op, backend, word, f"of a batch, {what}", found, a, b)


def _product_and_gradients(op: Op, backend: Backend, word: str, x: Any, y: Any, g: Any) -> tuple[np.ndarray, ...]:
    arrays = [polyarr.asarray(a, device=backend) for a in (x, y)]
    value, pull = polyarr.vjp(lambda x, y: op(x, y, precision=word), *arrays)
    return tuple(a.numpy() for a in (value, *pull(polyarr.asarray(g, device=backend))))


def _compare_product(op: Op, backend: Backend, word: str, what: str, found: np.ndarray, a: Any, b: Any) -> None:
    a, b = a.astype(np.float64), b.astype(np.float64)
    place = f"{op.name} on {backend.name} with precision {word!r}"
    close(place, what, found, a @ b, "reduction", _as_magnitude(word, a, b))


def _spread(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return rows scaled by up to 2**40 against each other; half of a row is near its maximum, the rest smaller."""
    rng = np.random.default_rng(seed)
    near = rng.choice([-1, 1], shape) * rng.uniform(0.5, 1, shape)
    smaller = np.exp2(-rng.integers(0, 24, shape) * rng.integers(0, 2, shape))
    return (near * smaller * np.exp2(rng.integers(-20, 20, (*shape[:-1], 1)))).astype(np.float32)


def _as_magnitude(word: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the bound of a product as the magnitude for which the class "reduction" has that tolerance."""
    return np.abs(a) @ np.abs(b) * (1 + PRECISIONS[word] / (TABLE["reduction"][float32] * polyarr.finfo(float32).eps))


def check_large_copies(backend: Backend, examples: int) -> None:
    """Check that arrays of several MiB survive uploads and downloads in every layout, and share no memory."""
    for dtype, shape in (("float32", (1_310_723,)), ("int8", (17_000_003,)), ("int64", (4099, 517))):
        host = Data(shape, dtype, seed=1).numpy()
        views = HOSTS if host.ndim > 1 else {"a host array of every second element": lambda a: a[::2]}
        for what, view in {"a host array": lambda a: a, **views}.items():
            _check_upload(backend, what, view, host)
        x = polyarr.asarray(host, device=backend)
        for what, view in (VIEWS if host.ndim > 1 else {"a part": lambda a: a[3:]}).items():
            _check_download(backend, f"{what} of {x.spec}", view(x), view(host))
        _check_download(backend, str(x.spec), x, host)


def check_threads(backend: Backend, examples: int) -> None:
    """Check that many threads at once compute what one computes, bit for bit."""
    if backend.unordered:
        raise Lacking(
            f"{backend.name} adds in no fixed order in {', '.join(sorted(op.name for op in backend.unordered))}"
        )
    x, w = (Data(shape, "float32", seed=i).array(backend) for i, shape in enumerate(((33, 31), (17, 31))))

    def work(i: int) -> dict[tuple, bytes]:
        with use_backend(backend):
            own = Data((33, 31), "float32", seed=100 + i).array(backend)
            loss = lambda w: ops.sum(ops.softmax(ops.gelu(ops.linear(x + own, w)), axis=-1) ** 2)
            value, grad = polyarr.value_and_grad(loss)(w)
            order = ops.argsort(own, axis=0)
            at, total = ops.take(own[:, 0], order[:, 1]), ops.cumulative_sum(own, axis=1)
            seen = ops.layer_norm(ops.attention(own, x, x, causal=True))
            lost = ops.cross_entropy(own, ops.argmax(x, axis=1))
            return bits([value, grad, order, at, total, seen, lost, ops.random_bits(i, 1, shape=(99,))])

    for _ in range(ROUNDS):
        with ThreadPoolExecutor(THREADS) as pool:
            together = list(pool.map(work, range(2 * THREADS)))
        for i, found in enumerate(together):
            if found != work(i):
                raise CheckFailure(
                    f"{backend.name}: thread {i} of {len(together)} computed other bits than it does alone"
                )


# A matrix product, a Fused kernel that works by rows, and elementwise ops: few programs, because two of the processes
# compile all of them.
PROGRAM = """
import json, sys, numpy as np, polyarr as pa
pa.set_backend(sys.argv[1])
x, w = (pa.asarray(np.sin(np.arange(n * 16.0)).reshape(n, 16), dtype="float32") for n in (7, 9))
loss, slope = pa.value_and_grad(lambda x: pa.sum(pa.softmax(pa.linear(x, w)) * w[:7, :9]))(x)
print(json.dumps([a.numpy().tobytes().hex() for a in (loss, slope)]))
"""


def check_program_cache(backend: Backend, examples: int) -> None:
    """Check that a new process computes the same bits with an empty program cache, a full one, and none."""
    with tempfile.TemporaryDirectory() as folder:
        user = {"HOME": folder, "XDG_CACHE_HOME": folder, "PYTHONUSERBASE": site.getuserbase()}
        runs = {
            "with an empty cache": run_new_process(backend, PROGRAM, environment=user),
            "with a full cache": run_new_process(backend, PROGRAM, environment=user),
            "without a cache": run_new_process(backend, PROGRAM, environment={**user, "POLYARR_NO_CACHE": "1"}),
        }
    first, *others = runs
    for other in others:
        if runs[other] != runs[first]:
            raise CheckFailure(f"{backend.name}: a process {other} computes other bits than one {first}")


def run_new_process(
    backend: Backend, code: str, *args: str, given: str = "", environment: Mapping[str, str] = {}
) -> Any:
    """Return what Python code prints as JSON in a new process, with the backend's name as its first argument.

    Raises:
        CheckFailure: The process fails.
        Lacking: Another process cannot start the backend.
    """
    name = backend.name
    if not any(row.name == backend.family and row.distribution != THIS_PROCESS for row in status()):
        raise Lacking(f"{name} is known to this process only: another one cannot start it")
    ran = subprocess.run(
        [sys.executable, "-c", code, name, *args],
        input=given, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailure(f"{name}: a new process fails with exit code {ran.returncode}: {last}")
    return json.loads(ran.stdout.splitlines()[-1])


# ---- autograd ------------------------------------------------------------------------------------------------


def check_transforms(backend: Backend, examples: int) -> None:
    """Check that vjp, jvp, checkpoint and nested gradients of one function agree with NumPy's in float64."""

    def f(x: Array, w: Array) -> Array:
        return ops.sum(ops.tanh(x @ w) * ops.exp(-(x[:, :3] ** 2)))

    def found(place: Backend, wide: bool) -> dict[str, np.ndarray]:
        x, w, v = (Data(s, "float32", seed=i).array(place, wide) for i, s in enumerate(((7, 5), (5, 3), (7, 5))))
        slope = polyarr.grad(lambda x: ops.sum(polyarr.grad(f)(x, w) * v))
        every = {
            "vjp": polyarr.vjp(f, x, w)[1](ops.sum(w * w)),
            "jvp": polyarr.jvp(lambda x: f(x, w), (x,), (v,))[1],
            "checkpoint": polyarr.grad(polyarr.checkpoint(f), argnums=(0, 1))(x, w),
            "nested": slope(x),
        }
        return {f"{name}{list(path)}": a.numpy() for name, t in every.items() for path, a in tree.items(t)}

    with use_backend(reference()):
        expected = found(reference(), True)
    gradients_agree(f"transforms on {backend.name}", found(backend, False), expected)


# ---- nn ------------------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], Any], Data]] = {
    "Linear": (lambda: nn.Linear(9, 33, activation="gelu"), Data((5, 9))),
    "Embedding": (lambda: nn.Embedding(31, 8), Data((3, 7), "int64", "below", limit=31)),
    "LayerNorm": (lambda: nn.LayerNorm(33, eps=0.1), Data((4, 33), values="offset")),
    "RMSNorm": (lambda: nn.RMSNorm(33, eps=0.1), Data((4, 33))),
    "BatchNorm": (lambda: nn.BatchNorm(33, eps=0.1).eval(), Data((4, 3, 33))),
    "GroupNorm": (lambda: nn.GroupNorm(3, 33, eps=0.1), Data((4, 3, 33), values="offset")),
    "InstanceNorm": (lambda: nn.InstanceNorm(33, eps=0.1, affine=True), Data((4, 5, 33))),
    "Dropout": (lambda: nn.Dropout(0.3), Data((31, 5))),
    "FeedForward": (lambda: nn.FeedForward(12), Data((2, 5, 12))),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(24, 3, causal=True, drop_rate=0.2), Data((2, 33, 24))),
    "TransformerBlock": (lambda: nn.TransformerBlock(24, 3, causal=True, drop_rate=0.2), Data((2, 9, 24))),
}


def check_layer(layer: str, backend: Backend) -> None:
    """Check that a layer's value and gradients agree with NumPy's in float64, for weights that no fresh layer has."""
    make, data = LAYERS[layer]
    with use_backend(reference()):
        polyarr.random.seed(11)
        model = tree.map(_shifted, make())

    def found(place: Backend, wide: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with use_backend(place):
            polyarr.random.seed(12)  # of dropout
            here, x = tree.map(lambda a: _moved(a, place, wide), model), data.array(place, wide)
            inputs = (here, x) if data.is_floating else (here,)
            value, pull = polyarr.vjp(lambda m, *a: m(*a) if a else m(x), *inputs)
            grads = pull(Data(value.shape, value.dtype.name, "eighths", seed=7).array(place))
            named = {".".join(map(str, path)): a for path, a in tree.items(grads) if type(a) is Array}
            return value.numpy(), {
                path: values(f"{layer} on {place.name}", a, f"d/d{path}")[0] for path, a in named.items()
            }

    (value, grads), (expected, slopes) = found(backend, False), found(reference(), True)
    close(f"{layer} on {backend.name}", "the result", value, expected, "composed", max(FLOOR, largest(expected)))
    gradients_agree(f"{layer} on {backend.name}", grads, slopes)


def _shifted(leaf: Any) -> Any:
    """Return an array with other elements: weights of norms begin at 1 and biases at 0, which hides their factors."""
    if type(leaf) is not Array or leaf.dtype not in FLOATS:
        return leaf
    return leaf + ops.astype(polyarr.random.uniform(leaf.shape, low=-0.25, high=0.25), dtype=leaf.dtype)


def _moved(leaf: Any, place: Backend, wide: bool) -> Any:
    if type(leaf) is not Array:
        return leaf
    return polyarr.asarray(leaf.numpy(), device=place, dtype=float64 if wide and leaf.dtype in FLOATS else leaf.dtype)


# ---- gpt -----------------------------------------------------------------------------------------------------


def check_training(backend: Backend, examples: int) -> None:
    """Check that a small GPT, with dropout, clipping and AdamW, trains 20 steps to NumPy's losses in float64."""
    for seed in range(max(1, examples // 50)):
        got, expected = _losses(backend, seed, False), _losses(reference(), seed, True)
        for i, (g, e) in enumerate(zip(got, expected, strict=True)):
            if not abs(g - e) <= LOSSES * e:
                raise CheckFailure(
                    f"GPT on {backend.name}: with seed {seed}, the loss at step {i} is {g:.7g}, expected {e:.7g} "
                    f"(off by {abs(g - e):.3g}, allowed {LOSSES * e:.3g})"
                )
        if not got[-1] < 0.5 * got[0]:
            raise CheckFailure(f"GPT on {backend.name}: the loss fell from {got[0]:.4g} to {got[-1]:.4g} only")


def _losses(place: Backend, seed: int, wide: bool) -> list[float]:
    """Return the loss of each step. Models with an odd seed have no tied embeddings and no bias."""
    tied = seed % 2 == 0
    with use_backend(reference()):
        polyarr.random.seed(seed)
        model = GPTModel({**GPT, "tie_embeddings": tied, "qkv_bias": tied})
    with use_backend(place):
        polyarr.random.seed(seed)  # of dropout
        here = tree.map(lambda a: _moved(a, place, wide), model)
        optimizer = optim.AdamW(lr=1e-2, clip=1.0, weight_decay=0.1)
        state = optimizer.init(here)
        step = polyarr.value_and_grad(lambda m, t: ops.cross_entropy(m(t[:, :-1]), t[:, 1:]))
        tokens = polyarr.asarray(_text(seed), device=place)
        losses = []
        for _ in range(STEPS):
            loss, grads = step(here, tokens)
            here, state = optimizer.update(grads, state, here)
            losses.append(loss.item())
    return losses


def _text(seed: int) -> np.ndarray:
    """Return four lines that can be learned: each counts upwards with a step of its own."""
    start, step = np.random.default_rng(seed).integers(0, GPT["vocab_size"], (2, 4, 1))
    return ((start + (step % 5 + 1) * np.arange(GPT["context_length"] + 1)) % GPT["vocab_size"]).astype(np.int32)


def check_generation(backend: Backend, examples: int) -> None:
    """Check that a GPT generates NumPy's tokens, and the same tokens with and without its KV cache."""
    drawn = [_tokens(place) for place in (backend, reference())]
    for name, got, expected in zip(("with top_k", "greedily", "without the cache"), *drawn, strict=True):
        if got != expected:
            raise CheckFailure(f"GPT on {backend.name}: drew {got} {name}, expected {expected}")
    if drawn[0][1] != drawn[0][2]:
        raise CheckFailure(f"GPT on {backend.name}: drew {drawn[0][1]} with the cache, {drawn[0][2]} without")


def _tokens(place: Backend) -> list[list[int]]:
    with use_backend(reference()):
        polyarr.random.seed(2)
        model = tree.map(lambda a: 4 * a if type(a) is Array and a.ndim > 1 else a, GPTModel(GPT)).eval()
    with use_backend(place):
        here = tree.map(lambda a: _moved(a, place, False), model)
        prompt = polyarr.asarray([[1, 2, 3]])
        plain = prompt
        for _ in range(12):
            plain = ops.concat([plain, ops.argmax(here(plain)[:, -1], axis=-1, keepdims=True)], axis=1)
        sampled = generate(here, prompt, 12, temperature=0.8, top_k=9, seed=8)
        greedy = generate(here, prompt, 12, temperature=0)
        return [a[0].tolist() for a in (sampled, greedy, plain)]
