"""Memory-bound ops, compared with PyTorch on the same device.

    python benchmarks/rows.py [--dtype float32,bfloat16] [--rows N] [--only softmax] [--turns 9] [--json FILE]
                              [--png FILE]

Rows: norms, softmax, losses, sorts, reductions; elementwise ops; and the parts of a training step besides its matrix
products. polyarr runs on the OpenCL device that POLYARR_DEVICE names, PyTorch on CUDA, or on the CPU if that device is
one. Both alternate in one process, after their results were compared. A turn enqueues an op several times and waits
once, after three untimed calls. GB/s are the bytes that an op has to read and write, divided by polyarr's time; next to
them is the rate of PyTorch's copy of as many bytes. Needs PyTorch: pip install torch
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads of PyTorch sleep

import numpy as np
import report
import torch
import torch.nn.functional as F  # noqa: N812  the customary name

import polyarr as pa
from polyarr import ops
from polyarr.backends.opencl.devices import select

WIDTH, HIDDEN, VOCABULARY = 768, 3072, 50257  # GPT-2's
SETTLE = 3  # untimed calls at the start of a turn, which are slower
BURST = 4e-3  # target seconds of a turn, long enough to hide the final wait
SHOWN = 1 << 20  # largest number of compared elements per array
CLOSE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}  # tolerance relative to the largest result


class Row(NamedTuple):
    """The same work for both libraries, and the bytes that it has to move."""

    name: str
    polyarr: Callable[[], Any]
    torch: Callable[[], Any]
    nbytes: float
    expected: Callable[[], Any] | None = None  # PyTorch's result in higher precision, if its own is inaccurate


class Bench:
    """Arrays of one dtype for both libraries, with enough rows to occupy the device."""

    def __init__(self, dtype: str, rows: int, tokens: int, where: str) -> None:
        self.dtype, self.rows, self.tokens, self.where = dtype, rows, tokens, where
        self.item = 4 if dtype == "float32" else 2
        self.array = cache(self._array)

    def _array(self, name: str, *shape: int) -> tuple[pa.Array, torch.Tensor]:
        """Return equal normal numbers for both; the name distinguishes arrays of one shape."""
        generator = np.random.default_rng(sum(map(ord, name)))
        block = generator.standard_normal((min(shape[0], 64), *shape[1:]), dtype=np.float32)
        host = np.resize(block, shape) if len(shape) > 1 else generator.standard_normal(shape, dtype=np.float32)
        return self.both(host)

    def both(self, host: np.ndarray) -> tuple[pa.Array, torch.Tensor]:
        """Return an array for both: floats in the bench's dtype, integers unchanged."""
        x, t = pa.asarray(host), torch.from_numpy(host).to(self.where)
        if host.dtype == np.float32:
            x, t = pa.astype(x, getattr(pa, self.dtype)), t.to(getattr(torch, self.dtype))
        return x, t

    def pulled(self, name: str, fn: Any, torch_fn: Any, arrays: list, nbytes: float, g: tuple | None = None) -> Row:
        """Return the row of fn's backward pass alone; g is its cotangent."""
        xs, ts = zip(*arrays, strict=True)
        ts = [t.detach().requires_grad_() for t in ts]
        y, pull = pa.vjp(fn, *xs)
        t = torch_fn(*ts)
        gx, gt = self.array("g", *y.shape) if g is None else g

        def exact() -> tuple[torch.Tensor, ...]:  # PyTorch accumulates rows in bfloat16 on CPUs
            wide = [t.detach().double().requires_grad_() for t in ts]
            return torch.autograd.grad(torch_fn(*wide), wide, gt.double())

        return Row(name, lambda: pull(gx), lambda: torch.autograd.grad(t, ts, gt, retain_graph=True), nbytes, exact)


# ---- the rows ------------------------------------------------------------------------------------------------------


def elementwise(b: Bench) -> Iterator[Row]:
    (x, t), (y, u), (c, d) = b.array("x", b.rows, 1024), b.array("y", b.rows, 1024), b.array("c", 1024)
    n = b.item * x.size
    yield Row("add", lambda: x + y, lambda: t + u, 3 * n)
    yield Row("add a row", lambda: x + c, lambda: t + d, 2 * n)
    yield Row("times a number", lambda: x * 0.5, lambda: t * 0.5, 2 * n)
    yield Row("exp", lambda: ops.exp(x), lambda: torch.exp(t), 2 * n)
    yield Row("sin", lambda: ops.sin(x), lambda: torch.sin(t), 2 * n)
    yield Row("where", lambda: ops.where(x > 0, x, y), lambda: torch.where(t > 0, t, u), 4 * n + 2 * x.size)
    other = "bfloat16" if b.dtype == "float32" else "float32"
    yield Row("astype", lambda: pa.astype(x, getattr(pa, other)), lambda: t.to(getattr(torch, other)), 6 * x.size)
    for form in ("tanh", "none"):
        def gelu(x, f=form):
            return ops.gelu(x, approximate=f)

        def theirs(t, f=form):
            return F.gelu(t, approximate=f)

        label = "gelu" if form == "tanh" else "gelu by erf"
        yield Row(label, lambda g=gelu: g(x), lambda g=theirs: g(t), 2 * n)
        yield b.pulled(f"{label} backward", gelu, theirs, [(x, t)], 3 * n)


def norms(b: Bench) -> Iterator[Row]:
    arrays = [b.array("x", b.rows, WIDTH), b.array("w", WIDTH), b.array("b", WIDTH)]
    (x, w, c), (t, v, d) = zip(*arrays, strict=True)
    n = b.item * x.size

    def layer_norm(t, v, d):
        return F.layer_norm(t, (WIDTH,), v, d)

    def rms_norm(t, v):
        return F.rms_norm(t, (WIDTH,), v, 1e-5)

    yield Row("layer norm", lambda: ops.layer_norm(x, w, c), lambda: layer_norm(t, v, d), 2 * n)
    yield b.pulled("layer norm backward", ops.layer_norm, layer_norm, arrays, 3 * n)
    yield Row("rms norm", lambda: ops.rms_norm(x, w), lambda: rms_norm(t, v), 2 * n)
    yield b.pulled("rms norm backward", ops.rms_norm, rms_norm, arrays[:2], 3 * n)


def softmaxes(b: Bench) -> Iterator[Row]:
    x, t = b.array("x", b.rows, 1024)
    n = b.item * x.size
    yield Row("softmax", lambda: ops.softmax(x), lambda: torch.softmax(t, -1), 2 * n)
    yield b.pulled("softmax backward", ops.softmax, lambda t: torch.softmax(t, -1), [(x, t)], 3 * n)
    yield Row("log softmax", lambda: ops.log_softmax(x), lambda: torch.log_softmax(t, -1), 2 * n)


def losses(b: Bench) -> Iterator[Row]:
    logits = x, t = b.array("logits", b.tokens, VOCABULARY)
    y, u = b.both(np.arange(b.tokens) * 997 % VOCABULARY)
    n = b.item * x.size

    def loss(x):
        return ops.cross_entropy(x, y)

    def theirs(t):
        return F.cross_entropy(t, u)

    yield Row("cross entropy", lambda: loss(x), lambda: theirs(t), n)
    one = pa.asarray(np.float32(1)), torch.ones((), device=b.where, dtype=t.dtype)  # polyarr's losses are float32
    yield b.pulled("cross entropy backward", loss, theirs, [logits], 2 * n, one)
    yield Row("argmax of 50257", lambda: ops.argmax(x, axis=-1), lambda: t.argmax(-1), n)
    yield Row("top 40 of 50257", lambda: ops.topk(x, k=40)[0], lambda: t.topk(40)[0], n)
    yield Row("softmax of 50257", lambda: ops.softmax(x), lambda: torch.softmax(t, -1), 2 * n)


def reductions(b: Bench) -> Iterator[Row]:
    x, t = b.array("x", b.rows, 1024)
    n = b.item * x.size
    yield Row("sum of all", lambda: ops.sum(x), lambda: t.sum(), n)
    yield Row("sum of rows", lambda: ops.sum(x, axis=1), lambda: t.sum(1), n)
    yield Row("sum of columns", lambda: ops.sum(x, axis=0), lambda: t.sum(0), n)
    yield Row("sum of the middle", lambda: ops.sum(ops.reshape(x, shape=(16, -1, 1024)), axis=1),
              lambda: t.view(16, -1, 1024).sum(1), n)  # fmt: skip
    yield Row("max of rows", lambda: ops.max(x, axis=1), lambda: t.amax(1), n)
    yield Row("argmax", lambda: ops.argmax(x, axis=1), lambda: t.argmax(1), n)
    yield Row("mean of squares", lambda: ops.mean(x * x, axis=1), lambda: (t * t).mean(1), 4 * n)
    a, e = b.array("long", x.size // 4)
    for name, mine, other, axis, nbytes in (
        ("cumulative sum", x, t, 1, 2 * n), ("cumulative sum down", x, t, 0, 2 * n),
        ("cumulative sum of all", a, e, 0, n / 2),
    ):  # fmt: skip
        yield Row(name, lambda x=mine, at=axis: pa.cumulative_sum(x, axis=at), lambda t=other, at=axis: t.cumsum(at),
                  nbytes, lambda t=other, at=axis: t.double().cumsum(at))  # fmt: skip


def orders(b: Bench) -> Iterator[Row]:
    x, t = b.array("x", b.rows, 1024)
    n = b.item * x.size
    yield Row("sort", lambda: ops.sort(x), lambda: torch.sort(t, stable=True)[0], 2 * n)
    yield Row("argsort", lambda: ops.argsort(x), lambda: torch.argsort(t, stable=True), n + 8 * x.size)
    yield Row("top 40 of 1024", lambda: ops.topk(x, k=40)[0], lambda: t.topk(40)[0], n)
    a, e = b.array("long", x.size // 4)
    yield Row("sort of all", lambda: ops.sort(a), lambda: torch.sort(e, stable=True)[0], n / 2)


def training(b: Bench) -> Iterator[Row]:
    """Yield the parts of a GPT-2 step besides its products and its attention."""
    (x, t), (c, d) = b.array("hidden", b.tokens, HIDDEN), b.array("bias", HIDDEN)
    depth = b.array("in", b.tokens, 1)[0], b.array("weight", HIDDEN, 1)[0]
    g = b.array("g", b.tokens, HIDDEN)
    n = b.item * x.size
    pull = pa.vjp(lambda c: ops.linear(*depth, c, activation="gelu_tanh"), c)[1]
    z = (b.array("in", b.tokens, 1)[1].float() @ b.array("weight", HIDDEN, 1)[1].float().T + d.float()).to(t.dtype)

    def theirs():
        return torch.ops.aten.gelu_backward(g[1], z, approximate="tanh").sum(0)

    yield Row("gelu and bias backward", lambda: pull(g[0]), theirs, 3 * n)
    yield Row("dropout", lambda: ops.dropout(x, 1, 2, rate=0.1), unseen(lambda: F.dropout(t, 0.1)), 2 * n)
    yield Row("add rows up", lambda: ops.sum(x, axis=0), lambda: t.sum(0), n)

    table = w, v = b.array("table", VOCABULARY, WIDTH)
    i, j = b.both(np.random.default_rng(0).zipf(1.3, b.tokens) % VOCABULARY)
    moved = b.item * b.tokens * WIDTH
    yield Row("embedding", lambda: ops.embedding(w, i), lambda: F.embedding(j, v), 2 * moved)
    yield b.pulled("embedding backward", lambda w: ops.embedding(w, i), lambda v: F.embedding(j, v), [table],
                   2 * moved + b.item * w.size)  # fmt: skip
    yield from steps(b)


def steps(b: Bench) -> Iterator[Row]:
    """Yield AdamW and the gradient norm, for the shapes of GPT-2 (on a CPU, of a tenth of it)."""
    width, layers = (WIDTH, 12) if b.where == "cuda" else (WIDTH // 2, 4)
    vocabulary = VOCABULARY if b.where == "cuda" else 4096
    block = [(width,)] * 6 + [(3 * width, width), (width, width), (4 * width, width), (4 * width,), (width, 4 * width)]
    shapes = [(vocabulary, width), (1024, width), *block * layers, (width,), (width,)]
    arrays = [b.array("g", *shape) for shape in shapes]
    xs, ts = ([pair[which] for pair in arrays] for which in (0, 1))
    size, rates = sum(x.size for x in xs), {"betas": (0.9, 0.95), "weight_decay": 0.1}
    optimizer = pa.optim.AdamW(1e-3, **rates)
    state = optimizer.init(xs)
    parameters = [torch.nn.Parameter(t.clone()) for t in ts]
    for p, t in zip(parameters, ts, strict=True):
        p.grad = t
    peer = torch.optim.AdamW(parameters, 1e-3, fused=True, **rates)
    yield Row("adamw", lambda: optimizer.update(xs, state, xs)[0][0], peer.step, (3 * b.item + 16) * size)
    norm = torch._foreach_norm
    yield Row("norm of all", lambda: ops.global_norm(xs), lambda: torch.stack(norm(ts)).norm(), b.item * size)


def unseen(function: Callable) -> Callable[[], None]:
    """Return the function without its result, which is random."""
    return lambda: (function(), None)[1]


FAMILIES = (elementwise, norms, softmaxes, losses, reductions, orders, training)


# ---- measuring -----------------------------------------------------------------------------------------------------


def arrays_of(found: Any) -> list:
    """Return a function's result as a flat list."""
    return [found] if isinstance(found, pa.Array | torch.Tensor) else list(found) if found is not None else []


def agree(row: Row, dtype: str) -> None:
    """Compare the two results, if PyTorch returns one."""
    theirs = arrays_of((row.expected or row.torch)())
    for mine, other in zip(arrays_of(row.polyarr()), theirs, strict=False):
        assert mine.shape == tuple(other.shape), f"{row.name}: {mine.shape}, PyTorch has {tuple(other.shape)}"
        step = max(1, mine.size // SHOWN)
        expected = other.detach().reshape(-1)[::step].double().cpu().numpy()
        got = ops.reshape(mine, shape=(-1,))
        got = pa.astype(got[::step], pa.float32 if got.dtype in (pa.bfloat16, pa.float16) else got.dtype).numpy()
        if np.issubdtype(got.dtype, np.integer):
            assert np.array_equal(got, expected), f"{row.name}: another order"
        scale = CLOSE[dtype] * max(np.abs(expected).max(), 1e-30)
        worst = np.abs(got - expected).max()
        assert worst <= scale, f"{row.name}: {worst:.2e} off, at most {scale:.2e} would do"


def measure(row: Row, wait: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Return the median seconds per call, by name."""
    functions = {"polyarr": row.polyarr, "PyTorch": row.torch}
    times: dict[str, list[float]] = {name: [] for name in functions}
    calls = {name: 1 for name in functions}
    for turn in range(turns + 1):
        for name, function in functions.items():
            for _ in range(SETTLE if turn else 1):
                function()
            wait[name]()
            began = time.perf_counter()
            for _ in range(calls[name]):
                function()
            wait[name]()
            took = (time.perf_counter() - began) / calls[name]
            if turn:
                times[name].append(took)
            else:
                calls[name] = max(1, min(100, round(BURST / took)))
    return {name: statistics.median(found) for name, found in times.items()}


def copy_rates(b: Bench, wait: dict[str, Callable[[], Any]], turns: int) -> Callable[[float], float]:
    """Return a function from bytes (read and written) to the bytes per second of PyTorch's copy."""
    x, t = b.array("x", b.rows, 1024)

    @cache
    def rate(rows: int) -> float:
        piece = t[:rows]
        row = Row("copy", lambda: x, lambda: piece.clone(), 2 * b.item * piece.numel())
        return row.nbytes / measure(row, wait, turns)["PyTorch"]

    return lambda nbytes: rate(max(1, min(b.rows, 2 ** round(np.log2(max(nbytes / (2 * b.item * 1024), 1))))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32,bfloat16", help="the dtypes, separated by commas")
    parser.add_argument("--rows", type=int, help="of 1024 or 768 columns (65536; on a processor 2048)")
    parser.add_argument("--tokens", type=int, help="of a training step (8192; on a processor 256)")
    parser.add_argument("--families", help="some of " + ", ".join(family.__name__ for family in FAMILIES))
    parser.add_argument("--only", default="", help="rows whose name contains this, or one of several, separated by |")
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed")
    parser.add_argument("--threads", type=int, help="for PyTorch, on a processor")
    options = report.parsed(parser)
    name, peer, where, wait = sides(options.threads)
    sizes = (65536, 8192) if where == "cuda" else (2048, 256)
    found = []
    for dtype in options.dtype.split(","):
        b = Bench(dtype, options.rows or sizes[0], options.tokens or sizes[1], where)
        found += measured(b, wait, options)
        del b
    shown = {f"{row['name']} ({row['dtype']})": row["seconds"] for row in found if "seconds" in row}
    report.write(options, {"device": name, "peer": peer, "rows": found}, f"Rows on {name}", "seconds", shown)
    if wrong := [f"{row['name']} ({row['dtype']})" for row in found if "error" in row]:
        sys.exit(f"not timed, because results differ or one side lacks it: {', '.join(wrong)}")


def sides(threads: int | None) -> tuple[str, str, str, dict[str, Callable[[], Any]]]:
    """Select polyarr's device; return its name, PyTorch's, PyTorch's device string, and functions that wait."""
    if threads:
        torch.set_num_threads(threads)
    device = select()
    where = "cpu" if device.features.is_cpu else "cuda"
    pa.set_backend(device.name)
    name = device.cl_device.name.strip()
    peer = torch.cuda.get_device_name() if where == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"polyarr on {name}; PyTorch {torch.__version__}, {peer}")
    wait = {"polyarr": pa.synchronize, "PyTorch": torch.cuda.synchronize if where == "cuda" else lambda: None}
    return name, peer, where, wait


def measured(b: Bench, wait: dict[str, Callable[[], Any]], options: Any) -> Iterator[dict[str, Any]]:
    """Measure all rows of one dtype, and print each."""
    rate = copy_rates(b, wait, options.turns)
    print(f"{b.dtype:24}   polyarr us  PyTorch us   ratio    GB/s  of a copy")
    for family in FAMILIES:
        chosen = not options.families or family.__name__ in options.families.split(",")
        for row in family(b) if chosen else ():
            if not any(part in row.name for part in options.only.split("|")):
                continue
            try:
                agree(row, b.dtype)
                seconds = measure(row, wait, options.turns)
            except (AssertionError, RuntimeError, NotImplementedError) as error:
                print(f"{row.name:24} {error!s:.200}", flush=True)
                yield {"name": row.name, "dtype": b.dtype, "error": str(error)}
                continue
            speed = row.nbytes / seconds["polyarr"]
            of_copy, ratio = speed / rate(row.nbytes), seconds["PyTorch"] / seconds["polyarr"]
            print(f"{row.name:24} {1e6 * seconds['polyarr']:12.1f} {1e6 * seconds['PyTorch']:11.1f} {ratio:7.2f}"
                  f" {speed / 1e9:7.0f} {of_copy:10.2f}", flush=True)  # fmt: skip
            yield {"name": row.name, "dtype": b.dtype, "seconds": seconds, "ratio": ratio, "of a copy": of_copy}


if __name__ == "__main__":
    main()
