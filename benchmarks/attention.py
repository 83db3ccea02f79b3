"""Attention, compared with PyTorch on the same device.

    python benchmarks/attention.py [--dtype float32,bfloat16] [--precision high] [--captured] [--only training]
                                   [--json FILE] [--png FILE]

Rows: forward, and forward with backward, for GPT-2's training shapes and others; decoding with one query and many keys.
polyarr runs on the OpenCL device that POLYARR_DEVICE names, PyTorch on CUDA, or on the CPU if that device is one. Each
row uses the fastest of PyTorch's scaled_dot_product_attention kernels for it. Both alternate in one process as in
rows.py, after polyarr's results were compared with PyTorch's in float64. TFLOP/s count the necessary products: two
forward, five backward, half of each with a causal mask. --precision applies to polyarr only, for float32. Short calls
are bound by the host: with --captured polyarr's side is compiled and PyTorch's is a CUDA graph. Needs PyTorch: pip
install torch
"""

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import report
import torch
import torch.nn.functional as F  # noqa: N812  the customary name
from captured import SEVERAL, captured
from rows import Row, agree, measure, sides
from torch.nn.attention import SDPBackend, sdpa_kernel

import polyarr as pa
from polyarr import ops

KERNELS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


class Shape(NamedTuple):
    """Sizes of one attention call."""

    name: str
    batch: int
    heads: int
    shared: int  # heads of keys and values
    queries: int
    keys: int
    size: int
    causal: bool

    @property
    def operations(self) -> float:
        """Return the floating-point operations of the two products of the forward pass."""
        return 4.0 * self.batch * self.heads * self.queries * self.keys * self.size * (0.5 if self.causal else 1)


ON_GPU = (
    Shape("training", 8, 12, 12, 1024, 1024, 64, True), Shape("all keys", 8, 12, 12, 1024, 1024, 64, False),
    Shape("long", 1, 12, 12, 4096, 4096, 64, True), Shape("heads of 128", 8, 6, 6, 1024, 1024, 128, True),
    Shape("grouped keys", 8, 12, 4, 1024, 1024, 64, True), Shape("one query", 8, 12, 12, 1, 1024, 64, False),
    Shape("one query, one text", 1, 12, 12, 1, 1024, 64, False),
    Shape("one query, many keys", 8, 32, 32, 1, 4096, 128, False),
)  # fmt: skip
ON_CPU = (
    Shape("training", 8, 6, 6, 256, 256, 64, True), Shape("all keys", 8, 6, 6, 256, 256, 64, False),
    Shape("grouped keys", 8, 6, 2, 256, 256, 64, True), Shape("one query", 8, 12, 12, 1, 1024, 64, False),
    Shape("one query, one text", 1, 12, 12, 1, 1024, 64, False),
)  # fmt: skip


class Work(NamedTuple):
    """The same computation three times: polyarr's, PyTorch's, and PyTorch's in float64."""

    name: str
    ours: Callable[..., Any]
    arrays: list[pa.Array]
    theirs: Callable[[], Any]
    exact: Callable[[], Any]
    operations: float

    @property
    def row(self) -> Row:
        """Return it as a Row of rows.py, with operations in the field for bytes."""
        return Row(self.name, lambda: self.ours(*self.arrays), self.theirs, self.operations, self.exact)


def works(shape: Shape, dtype: str, precision: str | None, where: str) -> Iterator[Work]:
    """Yield the forward pass and, for more than one query, forward with backward."""
    group = shape.heads // shape.shared

    def attend(q: pa.Array, k: pa.Array, v: pa.Array) -> pa.Array:
        if group == 1:
            return ops.attention(q, k, v, causal=shape.causal, precision=precision)
        b, h, t, d = q.shape
        k, v = (ops.expand_dims(x, axis=2) for x in (k, v))
        q = ops.reshape(q, shape=(b, h // group, group, t, d))
        return ops.reshape(ops.attention(q, k, v, causal=shape.causal, precision=precision), shape=(b, h, t, d))

    def theirs(*arrays: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*arrays, is_causal=shape.causal, enable_gqa=group > 1)

    wide = shape.batch, shape.heads, shape.queries, shape.size
    shared = shape.batch, shape.shared, shape.keys, shape.size
    (*xs, g), (*ts, h) = made(dtype, where, (wide, shared, shared, wide))
    exact, leaves = [t.double().requires_grad_() for t in ts], [t.detach().requires_grad_() for t in ts]
    yield Work(shape.name, attend, xs, lambda: theirs(*ts), lambda: theirs(*exact), shape.operations)
    if shape.queries == 1:
        return

    def both(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
        out = theirs(*arrays)
        return [out, *torch.autograd.grad(out, arrays, h.to(out.dtype))]

    def ours(*arrays: pa.Array) -> list[pa.Array]:
        out, pull = pa.vjp(attend, *arrays[:3])
        return [out, *pull(arrays[3])]

    name, operations = f"{shape.name}, backward too", 3.5 * shape.operations
    yield Work(name, ours, [*xs, g], lambda: both(leaves), lambda: both(exact), operations)


def made(dtype: str, where: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[list[pa.Array], list[torch.Tensor]]:
    """Return equal normal numbers for both libraries."""
    hosts = [np.random.default_rng(i).standard_normal(shape, dtype=np.float32) for i, shape in enumerate(shapes)]
    ours = [pa.astype(pa.asarray(host), getattr(pa, dtype)) for host in hosts]
    return ours, [torch.from_numpy(host).to(where, getattr(torch, dtype)) for host in hosts]


def fastest(row: Row, wait: dict[str, Callable[[], Any]]) -> SDPBackend:
    """Return the fastest of PyTorch's kernels."""
    times = {}
    for kernel in KERNELS:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(), sdpa_kernel(kernel):  # it may refuse inputs
            warnings.simplefilter("ignore")
            times[kernel] = measure(row._replace(polyarr=lambda: None), wait, 1)["PyTorch"]
    return min(times, key=times.__getitem__)


def measured(work: Work, dtype: str, wait: dict[str, Callable[[], Any]], options: Any) -> dict[str, Any]:
    """Measure one row and print it."""
    row = work.row
    try:
        agree(row, dtype)
        kernel = fastest(row, wait)
        with sdpa_kernel(kernel):
            if options.captured:
                firsts = [work.arrays[0] + i for i in range(SEVERAL)]
                ours, theirs = captured(work.ours, firsts, work.arrays[1:], work.theirs)
                row = row._replace(polyarr=ours, torch=theirs)
            seconds = measure(row, wait, options.turns)
            if options.captured:
                seconds = {who: each / SEVERAL for who, each in seconds.items()}
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        print(f"{row.name:30} {error!s:.200}", flush=True)
        return {"name": row.name, "dtype": dtype, "error": str(error)}
    name, ratio = kernel.name.partition("_")[0].lower(), seconds["PyTorch"] / seconds["polyarr"]
    print(f"{row.name:30} {1e6 * seconds['polyarr']:12.1f} {1e6 * seconds['PyTorch']:11.1f} {ratio:7.2f} "
          f"{row.nbytes / seconds['polyarr'] / 1e12:8.2f}  {name}", flush=True)  # fmt: skip
    return {"name": row.name, "dtype": dtype, "seconds": seconds, "ratio": ratio, "kernel": name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32,bfloat16", help="the dtypes, separated by commas")
    parser.add_argument("--precision", choices=("highest", "high", "medium"), help="of polyarr's float32")
    parser.add_argument("--captured", action="store_true", help="both sides captured, on a GPU")
    parser.add_argument("--only", default="", help="rows whose name contains this, or one of several, separated by |")
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed")
    parser.add_argument("--threads", type=int, help="for PyTorch, on a processor")
    options = report.parsed(parser)
    name, peer, where, wait = sides(options.threads)
    if options.captured and where != "cuda":
        parser.error("--captured needs a GPU: PyTorch has graphs of CUDA only")
    found = []
    for dtype in options.dtype.split(","):
        print(f"{dtype:30}   polyarr us  PyTorch us   ratio  TFLOP/s  PyTorch's kernel")
        for shape in ON_GPU if where == "cuda" else ON_CPU:
            for work in works(shape, dtype, options.precision, where):
                if any(part in work.name for part in options.only.split("|")):
                    found.append(measured(work, dtype, wait, options))
    shown = {f"{row['name']} ({row['dtype']})": row["seconds"] for row in found if "seconds" in row}
    report.write(options, {"device": name, "peer": peer, "rows": found}, f"Attention on {name}", "seconds", shown)
    if wrong := [f"{row['name']} ({row['dtype']})" for row in found if "error" in row]:
        sys.exit(f"not timed, because results differ or one side lacks it: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
