"""Products of few rows with a quantized weight, compared with a weight of floats.

    python benchmarks/quantized.py [--rows 1,8,32] [--n 8192] [--k 2048] [--turns 9]

polyarr runs on the OpenCL device that POLYARR_DEVICE names. All kinds of weights alternate in one process. A turn
multiplies several weights, which no cache holds together, and reads the results. Medians in milliseconds per product.
"""

import argparse
import statistics
import time

import polyarr as pa
from polyarr import nn, ops

KINDS = ("float32", "bfloat16", "int8", "q8_0", "q4_0")
WEIGHTS = 6  # of each kind


def layers(kind, n, k):
    """Return functions that multiply x by a weight (n, k) of a kind."""
    weight = pa.random.normal((n, k))
    if kind in ("float32", "bfloat16"):
        held = weight.astype(kind)
        return [lambda x, own=held + 0: ops.linear(x, own) for _ in range(WEIGHTS)]
    return [nn.QuantizedLinear.of(weight, kind) for _ in range(WEIGHTS)]


def seconds(found, x):
    """Return the seconds of a product of each layer, results read."""
    began = time.perf_counter()
    for y in [layer(x) for layer in found]:
        y.numpy()
    return (time.perf_counter() - began) / len(found)


def main():
    """Print a table for each number of rows and dtype of x."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,8,32")
    for name, default in (("n", 8192), ("k", 2048), ("turns", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    pa.set_backend("opencl")
    found = {kind: layers(kind, options.n, options.k) for kind in KINDS}
    for rows in map(int, options.rows.split(",")):
        for dtype in ("float32", "bfloat16"):
            x = pa.random.normal((rows, options.k))
            inputs = {kind: x.astype(kind if kind in ("float32", "bfloat16") else dtype) for kind in KINDS}
            turns = [
                {kind: seconds(found[kind], inputs[kind]) * 1e3 for kind in KINDS} for _ in range(options.turns + 1)
            ]
            median = {kind: statistics.median(turn[kind] for turn in turns[1:]) for kind in KINDS}
            cells = " | ".join(f"{median[kind]:.2f}" for kind in KINDS)
            print(f"| {rows}, {dtype} | {cells} |")


if __name__ == "__main__":
    main()
