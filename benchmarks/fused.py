"""Functions of one's own, forward and backward: polyarr.fused beside eager polyarr, and beside PyTorch's compiled ones.

    python benchmarks/fused.py [--dtype float32,bfloat16] [--elements 4e6] [--turns 15] [--json FILE] [--png FILE]

A swiglu, a rotary embedding, an RMS norm and a Huber loss per row. A call is the value and the gradients of the inputs
for a given cotangent; the tables of the rotary embedding are constants. The results of fused and eager polyarr must
have the same bits and be close to PyTorch's, or nothing is timed. polyarr runs on the OpenCL device that POLYARR_DEVICE
names; PyTorch, if it is installed, on CUDA, or on the CPU if that device is one, eager and by torch.compile. All
alternate in one process; a turn enqueues a call several times and waits once. Medians in milliseconds per call. Use
--elements 3e7 for a GPU.
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa

try:
    import torch
except ImportError:
    torch = None

CLOSE = {"float32": 1e-5, "bfloat16": 3e-2}  # largest difference from PyTorch, relative to the largest result
BURST = 4e-3  # target seconds of a turn, long enough to hide the final wait


def swiglu(xp):
    silu = pa.silu if xp is pa else torch.nn.functional.silu
    return lambda gate, up: silu(gate) * up


def rotary(xp):
    def fn(x, cos, sin):
        half = x.shape[-1] // 2
        turned = [-x[..., half:], x[..., :half]]
        return x * cos + (pa.concat(turned, axis=-1) if xp is pa else torch.cat(turned, -1)) * sin

    return fn


def rms_norm(xp):
    def fn(x, weight):
        scale = pa.mean(x * x, axis=-1, keepdims=True) if xp is pa else (x * x).mean(-1, keepdim=True)
        return x * xp.rsqrt(scale + 1e-6) * weight

    return fn


def huber(xp):
    def fn(predicted, target):
        error = xp.abs(predicted - target)
        loss = xp.where(error < 1, error * error * 0.5, error - 0.5)
        return pa.sum(loss, axis=-1) if xp is pa else loss.sum(-1)

    return fn


def shapes(elements):
    """Return the functions, the number of inputs that have a gradient, and the shapes of all."""
    rows, tokens = max(1, int(elements) // 1024), max(1, int(elements) // (12 * 64))
    return {
        "swiglu": (swiglu, 2, [(rows, 1024)] * 2),
        "rotary embedding": (rotary, 1, [(12, tokens, 64), (tokens, 64), (tokens, 64)]),
        "rms norm": (rms_norm, 2, [(rows, 1024), (1024,)]),
        "huber loss": (huber, 2, [(rows, 1024)] * 2),
    }


def ways_of(make, trained, given, dtype, where):
    """Return, by name, calls that enqueue the value and the gradients."""
    args = [pa.astype(pa.asarray(host), dtype) for host in given]
    fn, fused = make(pa), pa.fused(make(pa))
    g = pa.ones_like(fn(*args))

    def both(fn, args, g):
        value, pull = pa.vjp(lambda *own: fn(*own, *args[trained:]), *args[:trained])
        return value, pull(g)

    results = [pa.tree.leaves(both(f, args, g)) for f in (fn, fused)]
    if any(a.numpy().tobytes() != b.numpy().tobytes() for a, b in zip(*results, strict=True)):
        raise SystemExit("fused and eager differ")
    whole = pa.compile(lambda args, g: both(fn, args, g))
    found = {"eager": lambda: both(fn, args, g), "fused": lambda: both(fused, args, g)}
    found["compiled"] = lambda: whole(args, g)
    if torch is not None:
        tensors = [torch.from_numpy(h).to(where).to(getattr(torch, dtype)) for h in given]
        own = [t.requires_grad_() for t in tensors[:trained]]
        plain, compiled = make(torch), torch.compile(make(torch))
        ones = torch.ones_like(plain(*tensors))

        def theirs(fn):
            y = fn(*tensors)
            return y, torch.autograd.grad(y, own, ones)

        y, gradients = theirs(plain)
        for ours, other in zip(results[0], (y, *gradients), strict=True):
            due = other.detach().float().cpu().numpy()
            error = np.abs(ours.astype("float32").numpy() - due).max() / np.abs(due).max()
            if not error < CLOSE[dtype]:
                raise SystemExit(f"PyTorch's results differ by {error:.2g} of the largest")
        found |= {"torch": lambda: theirs(plain), "torch.compile": lambda: theirs(compiled)}
    return found


def measured(ways, turns, wait):
    """Return the median milliseconds per call, by way."""
    times, calls = {name: [] for name in ways}, {}
    for name, call in ways.items():
        for _ in range(3):
            call()
        wait()
        began = time.perf_counter()
        call()
        wait()
        calls[name] = max(1, int(BURST / (time.perf_counter() - began)))
    for _ in range(turns):
        for name, call in ways.items():
            call()
            wait()
            began = time.perf_counter()
            for _ in range(calls[name]):
                call()
            wait()
            times[name].append((time.perf_counter() - began) / calls[name] * 1e3)
    return {name: statistics.median(own) for name, own in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--elements", type=float, default=4e6, help="elements of the largest input")
    parser.add_argument("--turns", type=int, default=15)
    options = report.parsed(parser)
    backend = pa.set_backend("opencl")
    on_gpu = torch is not None and torch.cuda.is_available()
    where = "cuda" if on_gpu else "cpu"

    def wait():
        pa.synchronize()
        if on_gpu:
            torch.cuda.synchronize()

    print(backend.hardware)
    found = {}
    for dtype in options.dtype.split(","):
        for name, (make, trained, sizes) in shapes(options.elements).items():
            generator = np.random.default_rng(0)
            given = [generator.standard_normal(shape, np.float32) for shape in sizes]
            row = found[f"{name}, {dtype}"] = measured(ways_of(make, trained, given, dtype, where), options.turns, wait)
            shown = "  ".join(f"{way} {ms:.3f}" for way, ms in row.items())
            peer = f", / torch.compile {row['fused'] / row['torch.compile']:.2f}" if torch is not None else ""
            print(f"{name + ', ' + dtype:28}{shown}  fused / eager {row['fused'] / row['eager']:.2f}{peer}", flush=True)
    report.write(options, found, "functions of one's own, forward and backward", "ms", found)


if __name__ == "__main__":
    main()
