"""What do ops of a compiled function cost that become one kernel, beside the kernel that somebody wrote by hand?

    python benchmarks/fusion.py [--backend opencl] [--rounds 25] [--size 8e6] [--json FILE] [--png FILE]

Eager and compiled do the same ops, and give the same bits, or nothing is timed. Of tanh(a * b + c) * d the third is a
kernel in OpenCL C; of softmax, layer norm and rms norm, which run from their bodies here, the backend's own pair, on
about as many elements as --size says. A GPU wants 1e8: it cuts few long rows into parts, and does not join those. All
take turns in one process; a turn is several calls, of which the last is waited for. Medians, in milliseconds a call.
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
CALLS = 4  # in a turn


def array(*shape, seed=0):
    return pa.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def chain(a, b, c, d):
    return pa.tanh(a * b + c) * d


def by_hand(handle, args):
    """A call of the kernel in SOURCE."""
    import pyopencl as cl

    kernel, y = cl.Program(handle.context, SOURCE).build().by_hand, handle.empty(args[0].spec)
    memories = [a.buf.memory for a in args] + [y.memory]
    return lambda: kernel(handle.queue, (SIZE,), None, *memories)


def rows(size):
    """By name: eager and compiled calls of the same, and what they are held against."""
    args = [array(SIZE, seed=i) for i in range(4)]
    compiled, handle = pa.compile(chain), pa.get_backend().handle
    found = {"eager": lambda: chain(*args), "compiled": lambda: compiled(*args)}
    yield "tanh(a*b+c)*d, 1e7", found | ({"by hand": by_hand(handle, args)} if hasattr(handle, "context") else {})
    for length in LENGTHS:
        shape = (max(1, size // length), length)
        x, weight, bias = array(*shape), array(shape[-1], seed=1), array(shape[-1], seed=2)
        for op, rest in ((ops.softmax, ()), (ops.layer_norm, (weight, bias)), (ops.rms_norm, (weight,))):
            yield f"{op.name} {shape[0]} x {shape[1]}", of_body(op, x, *rest)


def of_body(op, *args):
    compiled = pa.compile(op.body)
    return {"eager": lambda: op.body(*args), "compiled": lambda: compiled(*args), "pair": lambda: op(*args)}


def measured(ways, rounds):
    """By way, the median milliseconds of a call."""
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
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--size", type=float, default=8e6, help="elements of the rows")
    options = report.parsed(parser)
    pa.set_backend(options.backend)
    heads = "".join(f"{head:>9}" for head in ("eager", "compiled", "third"))
    print(f"{pa.get_backend().hardware}\n{'':26}{heads}  eager/compiled  compiled/third")
    found = {}
    for name, ways in rows(int(options.size)):
        row = found[name] = measured(ways, options.rounds)
        eager, compiled, third = (*row.values(), float("nan"))[:3]
        times, ratios = f"{eager:9.3f}{compiled:9.3f}{third:9.3f}", (eager / compiled, compiled / third)
        print(f"{name:26}{times}{ratios[0]:16.2f}{ratios[1]:16.2f}", flush=True)
    report.write(options, found, "ops that become one kernel", "ms", found)


if __name__ == "__main__":
    main()
