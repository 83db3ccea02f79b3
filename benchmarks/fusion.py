"""Fused ops of a compiled function, compared with eager ops and with a kernel written by hand.

    python benchmarks/fusion.py [--backend opencl] [--dtype float32] [--rounds 25] [--size 8e6] [--json FILE]

Eager and compiled functions run the same ops and must give the same bits, or nothing is timed. The third column is an
OpenCL C kernel for tanh(a * b + c) * d, and the backend's own Fused kernels for softmax, log-softmax, layer norm and
rms norm, whose decompositions are compiled here, in float32 for 16-bit dtypes, on about --size elements. Use 1e8 for a
GPU: it splits few long rows, which are not fused. All alternate in one process; a turn is several calls with one wait
at the end. Medians in milliseconds per call.
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa
from polyarr import ops

SIZE, LENGTHS = 10**7, (64, 768, 4096, 50257)
SOURCE = """
__kernel void by_hand(__global const float *restrict a, __global const float *restrict b,
                      __global const float *restrict c, __global const float *restrict d, __global float *restrict y) {
    const size_t i = get_global_id(0);
    y[i] = tanh(a[i] * b[i] + c[i]) * d[i];
}
"""
CALLS = 4  # calls per turn


def array(*shape, seed=0):
    return pa.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def chain(a, b, c, d):
    return pa.tanh(a * b + c) * d


def by_hand(handle, args):
    """Return a call of the kernel in SOURCE."""
    import pyopencl as cl

    kernel, y = cl.Program(handle.context, SOURCE).build().by_hand, handle.empty(args[0].spec)
    memories = [a.buf.memory for a in args] + [y.memory]
    return lambda: kernel(handle.queue, (SIZE,), None, *memories)


def rows(size, dtype):
    """Return, by name, eager and compiled calls, and the kernel that they are compared with."""
    args = [array(SIZE, seed=i) for i in range(4)]
    compiled, handle = pa.compile(chain), pa.get_backend().handle
    found = {"eager": lambda: chain(*args), "compiled": lambda: compiled(*args)}
    yield "tanh(a*b+c)*d, 1e7", found | ({"by hand": by_hand(handle, args)} if hasattr(handle, "context") else {})
    for length in LENGTHS:
        shape = (max(1, size // length), length)
        weight, bias = (pa.astype(array(length, seed=i), dtype) for i in (1, 2))
        x, norms = pa.astype(array(*shape), dtype), ((ops.layer_norm, (weight, bias)), (ops.rms_norm, (weight,)))
        for op, rest in ((ops.softmax, ()), (ops.log_softmax, ()), *norms):
            yield f"{op.name} {shape[0]} x {shape[1]}", of_decomposition(op, x, *rest)


def of_decomposition(op, *args):
    def eager(*args):
        return pa.astype(op.decomposition(*(pa.astype(a, pa.float32) for a in args)), args[0].dtype)

    compiled = pa.compile(eager)
    return {"eager": lambda: eager(*args), "compiled": lambda: compiled(*args), "hand-written": lambda: op(*args)}


def measured(ways, rounds):
    """Return the median milliseconds per call, by variant."""
    if ways["eager"]().numpy().tobytes() != ways["compiled"]().numpy().tobytes():
        raise SystemExit("eager and compiled differ")
    times = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, call in ways.items():
            call()
            pa.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            pa.synchronize()
            if turn > 1:
                times[name].append((time.perf_counter() - began) / CALLS * 1e3)
    return {name: statistics.median(own) for name, own in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--size", type=float, default=8e6, help="elements of the rows")
    options = report.parsed(parser)
    pa.set_backend(options.backend)
    heads = "".join(f"{head:>9}" for head in ("eager", "compiled", "third"))
    print(f"{pa.get_backend().hardware}\n{'':26}{heads}  eager/compiled  compiled/third")
    found = {}
    for name, ways in rows(int(options.size), options.dtype):
        row = found[name] = measured(ways, options.rounds)
        eager, compiled, third = (*row.values(), float("nan"))[:3]
        times, ratios = f"{eager:9.3f}{compiled:9.3f}{third:9.3f}", (eager / compiled, compiled / third)
        print(f"{name:26}{times}{ratios[0]:16.2f}{ratios[1]:16.2f}", flush=True)
    report.write(options, found, "ops that become one kernel", "ms", found)


if __name__ == "__main__":
    main()
