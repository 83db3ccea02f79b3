"""Products of few rows with a quantized weight, compared with a weight of floats.

    python benchmarks/quantized.py [--rows 1,8,32] [--n 8192] [--k 2048] [--turns 9] [--captured] [--weights 6]

polyarr runs on the OpenCL device that POLYARR_DEVICE names. All kinds of weights alternate in one process. A turn
multiplies several weights, which no cache should hold together; with --captured it is one call of a compiled function,
on NVIDIA GPUs a CUDA graph. Medians in milliseconds per product.
"""

import argparse
import statistics
import time

import polyarr as pa
from polyarr import nn

KINDS = ("float32", "bfloat16", "int8", "q8_0", "q4_0")


def layers(kind, n, k, count):
    """Return layers with a weight (n, k) of a kind."""
    if kind in ("float32", "bfloat16"):
        return [nn.Linear(k, n, bias=False).eval().astype(kind) for _ in range(count)]
    return [nn.QuantizedLinear.of(pa.random.normal((n, k)), kind) for _ in range(count)]


def products(layers, x):
    """Return the product of x and each layer's weight."""
    return [layer(x) for layer in layers]


def seconds(multiply, layers, x):
    """Return the seconds of a product."""
    pa.synchronize()
    began = time.perf_counter()
    found = multiply(layers, x)
    pa.synchronize()
    assert len(found) == len(layers)
    return (time.perf_counter() - began) / len(layers)


def main():
    """Print a table for each number of rows and dtype of x."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,8,32")
    for name, default in (("n", 8192), ("k", 2048), ("turns", 9), ("weights", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--captured", action="store_true", help="the products as one compiled function")
    options = parser.parse_args()
    pa.set_backend("opencl")
    multiply = {kind: pa.compile(products) if options.captured else products for kind in KINDS}
    found = {kind: layers(kind, options.n, options.k, options.weights) for kind in KINDS}
    for rows in map(int, options.rows.split(",")):
        for dtype in ("float32", "bfloat16"):
            x = pa.random.normal((rows, options.k))
            inputs = {kind: x.astype(kind if kind in ("float32", "bfloat16") else dtype) for kind in KINDS}
            turns = [
                {kind: seconds(multiply[kind], found[kind], inputs[kind]) * 1e3 for kind in KINDS}
                for _ in range(options.turns + 2)
            ]
            median = {kind: statistics.median(turn[kind] for turn in turns[2:]) for kind in KINDS}
            cells = " | ".join(f"{median[kind]:.4g}" for kind in KINDS)
            print(f"| {rows}, {dtype} | {cells} |")


if __name__ == "__main__":
    main()
