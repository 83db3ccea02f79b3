"""Ops without a kernel of their own, called eagerly: step by step, as captured programs, and beside PyTorch's kernels.

    python benchmarks/composed.py [--elements 16,4e6] [--only erfinv] [--turns 15] [--json FILE] [--png FILE]

polyarr runs on the OpenCL device that POLYARR_DEVICE names: each op first with captures turned off, then as users call
it, which is captured after a few calls. PyTorch (optional) runs on CUDA if available, alternating with polyarr. Results
were compared before. A turn is a burst of calls and one wait. Medians in microseconds per call.
"""

import argparse
import math
import statistics
import time
from functools import partial

import numpy as np
import report

import polyarr as pa
from polyarr.capture import repeated

try:
    import torch
except ImportError:
    torch = None

OPS = {
    "std": (lambda x: pa.std(x, axis=-1), lambda x: torch.std(x, dim=-1, correction=0)),
    "logsumexp": (lambda x: pa.logsumexp(x, axis=-1), lambda x: torch.logsumexp(x, dim=-1)),
    "logit": (pa.special.logit, lambda x: torch.special.logit(x)),
    "sinc": (pa.special.sinc, lambda x: torch.special.sinc(x)),
    "erfinv": (pa.special.erfinv, lambda x: torch.special.erfinv(x)),
    "gammaln": (pa.special.gammaln, lambda x: torch.special.gammaln(x)),
}
BURST = 4e-3  # target seconds of a turn, long enough to hide the final wait
CLOSE = 1e-4  # of results that are at most about 5
WARM = 2 * repeated.MANY  # calls before those that are timed


def microseconds(ways, turns, wait):
    """Return the median microseconds per call, by way."""
    times, calls = {name: [] for name in ways}, {}
    for turn in range(-1, turns):
        for name, call in ways.items():
            for _ in range(1 if turn >= 0 else WARM):
                call()
            wait()
            began = time.perf_counter()
            for _ in range(calls.get(name, 1)):
                call()
            wait()
            took = (time.perf_counter() - began) / calls.get(name, 1)
            calls.setdefault(name, max(1, int(BURST / took)))
            times[name].append(took * 1e6)
    return {name: statistics.median(own[1:]) for name, own in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", default="16,4e6")
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--turns", type=int, default=15)
    options = report.parsed(parser)
    backend = pa.set_backend("opencl")
    where = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"

    def wait():
        backend.synchronize()
        if where == "cuda":
            torch.cuda.synchronize()

    print(f"polyarr {pa.__version__} on {backend.hardware}", f"PyTorch {torch.__version__}" if torch else "no PyTorch")
    found = {}
    for elements in map(float, options.elements.split(",")):
        rows = max(4, round(elements / 1000))
        host = np.linspace(0.05, 0.95, rows * max(4, int(elements) // rows), dtype=np.float32).reshape(rows, -1)
        x, other = pa.asarray(host), None if torch is None else torch.from_numpy(host).to(where)
        for name, (ours, theirs) in OPS.items():
            if options.only not in name:
                continue
            with repeated.after(math.inf):
                times = microseconds({"step by step": partial(ours, x)}, options.turns, wait)
            ways = {"polyarr": partial(ours, x)}
            if torch is not None:
                np.testing.assert_allclose(ours(x).numpy(), theirs(other).cpu().numpy(), rtol=CLOSE, atol=CLOSE)
                ways["PyTorch"] = partial(theirs, other)
            times |= microseconds(ways, options.turns, wait)
            found[f"{name}, {x.size}"] = times
            cells = "".join(f"{way:>14} {us:9.1f}" for way, us in times.items())
            share = times["polyarr"] / times["step by step"]
            print(f"{name:10} {x.size:9}{cells}   of step by step {share:.2f}", flush=True)
    report.write(options, {"hardware": backend.hardware, "us": found}, "Composed ops, eager", "microseconds", found)


if __name__ == "__main__":
    main()
