"""How fast is attention, beside PyTorch's on the same device?

    python benchmarks/attention.py [--dtype float32,bfloat16] [--precision high] [--only training] [--json FILE]

Forward, and forward with backward, of what GPT-2 is trained with and of other shapes; one query over many keys, as when
a token is generated. polyarr runs on the OpenCL device that POLYARR_DEVICE names, PyTorch on CUDA, or on the processor
if that device is one; of PyTorch's kernels for scaled_dot_product_attention each row has the one that was fastest in
it. Both take turns in one process as in rows.py, after polyarr's results were compared with PyTorch's in float64.
TFLOP/s count the products that are needed: two forward, five backward, half of each where later keys are not seen.
--precision is polyarr's alone, for float32. Needs PyTorch: pip install torch
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  the name it has everywhere
from rows import Row, agree, measure
from torch.nn.attention import SDPBackend, sdpa_kernel

import polyarr as pa
from polyarr import ops
from polyarr.backends.opencl.devices import select

KERNELS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
Arrays = tuple[list[pa.Array], list[torch.Tensor]]


class Shape(NamedTuple):
    """What is computed."""

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
        """Of the two products of the forward pass."""
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


def rows(shape: Shape, dtype: str, precision: str | None, where: str) -> Iterator[Row]:
    """Forward and, of more than one query, forward with backward; a row's nbytes are its operations."""
    group = shape.heads // shape.shared

    def attend(q: pa.Array, k: pa.Array, v: pa.Array) -> pa.Array:
        return ops.attention(q, k, v, causal=shape.causal, precision=precision)

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if group > 1:
            k, v = (x.expand(-1, -1, group, -1, -1) for x in (k, v))
        flat = [x.flatten(1, 2) for x in (q, k, v)]
        return F.scaled_dot_product_attention(*flat, is_causal=shape.causal).view(q.shape)

    (xs, ts), (gs, hs) = inputs(shape, dtype, where), made(dtype, where, [query_shape(shape)], 3)
    exact = [t.double().requires_grad_() for t in ts]
    yield Row(shape.name, lambda: attend(*xs), lambda: theirs(*ts), shape.operations,
              lambda: theirs(*exact))  # fmt: skip
    if shape.queries == 1:
        return
    leaves = [t.detach().requires_grad_() for t in ts]

    def both(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
        out = theirs(*arrays)
        return [out, *torch.autograd.grad(out, arrays, hs[0].to(out.dtype))]

    def ours() -> list[pa.Array]:
        out, pull = pa.vjp(attend, *xs)
        return [out, *pull(gs[0])]

    yield Row(f"{shape.name}, backward too", ours, lambda: both(leaves), 3.5 * shape.operations, lambda: both(exact))


def query_shape(shape: Shape) -> tuple[int, ...]:
    """With an axis for the heads that share keys."""
    return (shape.batch, shape.shared, shape.heads // shape.shared, shape.queries, shape.size)


def inputs(shape: Shape, dtype: str, where: str) -> Arrays:
    """q, k and v of both."""
    shared = (shape.batch, shape.shared, 1, shape.keys, shape.size)
    return made(dtype, where, [query_shape(shape), shared, shared], 0)


def made(dtype: str, where: str, shapes: list[tuple[int, ...]], seed: int) -> Arrays:
    """The same normal numbers for both."""
    hosts = [np.random.default_rng(seed + i).standard_normal(s, dtype=np.float32) for i, s in enumerate(shapes)]
    ours = [pa.astype(pa.asarray(host), getattr(pa, dtype)) for host in hosts]
    return ours, [torch.from_numpy(host).to(where, getattr(torch, dtype)) for host in hosts]


def with_fastest(row: Row, wait: dict[str, Callable[[], Any]]) -> tuple[Row, str]:
    """The row with that of PyTorch's kernels that is fastest, and its name."""
    best, chosen = math.inf, None
    for kernel in KERNELS:
        def run(kernel: SDPBackend = kernel) -> Any:
            with sdpa_kernel(kernel):
                return row.torch()

        try:
            took = measure(row._replace(polyarr=lambda: None, torch=run), wait, 1)["PyTorch"]
        except RuntimeError:  # not for these
            continue
        if took < best:
            best, chosen = took, (run, kernel.name.partition("_")[0].lower())
    return row._replace(torch=chosen[0]), chosen[1]


def measured(row: Row, dtype: str, wait: dict[str, Callable[[], Any]], turns: int) -> dict[str, Any]:
    """One row, shown when it is found."""
    try:
        agree(row, dtype)
        row, kernel = with_fastest(row, wait)
        seconds = measure(row, wait, turns)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        print(f"{row.name:30} {error!s:.200}", flush=True)
        return {"name": row.name, "dtype": dtype, "error": str(error)}
    ratio = seconds["PyTorch"] / seconds["polyarr"]
    print(f"{row.name:30} {1e6 * seconds['polyarr']:12.1f} {1e6 * seconds['PyTorch']:11.1f} {ratio:7.2f} "
          f"{row.nbytes / seconds['polyarr'] / 1e12:8.2f}  {kernel}", flush=True)  # fmt: skip
    return {"name": row.name, "dtype": dtype, "seconds": seconds, "ratio": ratio, "kernel": kernel}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32,bfloat16", help="the dtypes, separated by commas")
    parser.add_argument("--precision", choices=("highest", "high", "medium"), help="of polyarr's float32")
    parser.add_argument("--only", default="", help="rows whose name contains this, or one of several, separated by |")
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed")
    parser.add_argument("--threads", type=int, help="for PyTorch, on a processor")
    parser.add_argument("--json", help="write everything to this file as well")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = select()
    where = "cpu" if device.features.is_cpu else "cuda"
    pa.set_backend(device.name)
    peer = torch.cuda.get_device_name() if where == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"polyarr on {device.cl_device.name.strip()}; PyTorch {torch.__version__}, {peer}")
    wait = {"polyarr": pa.synchronize, "PyTorch": torch.cuda.synchronize if where == "cuda" else lambda: None}
    found = []
    for dtype in options.dtype.split(","):
        print(f"{dtype:30}   polyarr us  PyTorch us   ratio  TFLOP/s  PyTorch's kernel")
        for shape in ON_GPU if where == "cuda" else ON_CPU:
            for row in rows(shape, dtype, options.precision, where):
                if any(part in row.name for part in options.only.split("|")):
                    found.append(measured(row, dtype, wait, options.turns))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": device.cl_device.name.strip(), "peer": peer, "rows": found}, file, indent=1)
    if wrong := [f"{row['name']} ({row['dtype']})" for row in found if "error" in row]:
        sys.exit(f"not timed, because results differ or one side lacks it: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
