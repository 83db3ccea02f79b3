"""Host time, launches and memory, compared with older versions of polyarr.

    git worktree add ../older COMMIT
    python benchmarks/versions.py ../older [MORE ...] [--layers 0,4,12] [--turns 5] [--json FILE]

Each version is a folder that contains polyarr; this one is measured, too. They alternate, in processes of their own.
With 0 layers, x + y of 16 elements is called; otherwise an eager GPT step with that number of layers and else
shakespeare-char's sizes runs: forward, backward, clipping and AdamW. Times are the CPU time of the calling thread until
it would wait; launches are PyOpenCL's; peak is the arrays' peak memory minus that before the step. Medians of the
turns; for calls, the minimum of many rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import report

CALLS, REPEATS, STEPS = 200, 25, 12
SIZES = {"vocab_size": 65, "context_length": 64, "emb_dim": 128, "n_heads": 4, "drop_rate": 0.0, "qkv_bias": False}
BATCH = 12


# ---- in a process that is measured -----------------------------------------------------------------------------------


def child(backend: str, layers: int) -> dict[str, float]:
    """Measure one version on one backend: calls of x + y for 0 layers, else a step."""
    return _calls(backend) if not layers else _step(backend, layers)


def _calls(backend: str) -> dict[str, float]:
    import polyarr as pa

    pa.set_backend(backend)
    x, y = pa.ones((4, 4)), pa.ones((4, 4))
    found = {"x + y, us": _least(x, y)}
    pa.grad(lambda x: (found.update({"x + y recorded, us": _least(x, y)}), pa.sum(x))[1])(x)
    return found


def _least(x, y) -> float:
    """Return the microseconds per call, the minimum of many rounds."""
    times = []
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(CALLS):
            x + y
        times.append(time.thread_time() - began)
        x.numpy()  # keeps the queue from filling up, which would block
    return min(times) / CALLS * 1e6


def _step(backend: str, layers: int) -> dict[str, float]:
    launches = _counted() if backend == "opencl" else []
    import numpy as np

    import polyarr as pa
    from polyarr.models.gpt import GPTModel
    from polyarr.optim import AdamW

    used = _watched(pa, backend)
    pa.random.seed(0)
    model, optimizer = GPTModel({**SIZES, "n_layers": layers}), AdamW(lr=1e-3, clip=1.0)
    windows = np.random.default_rng(0).integers(0, 65, (BATCH, SIZES["context_length"] + 1), dtype=np.int32)
    x, targets = pa.asarray(windows[:, :-1].copy()), pa.asarray(windows[:, 1:].copy())
    gradient, state = pa.value_and_grad(lambda m: pa.cross_entropy(m(x), targets)), optimizer.init(model)
    hosts = []
    for i in range(STEPS):
        before, began = len(launches), time.thread_time()
        if i == 1:  # the first one compiles and tunes
            used(begin=True)
        _, grads = gradient(model)
        model, state = optimizer.update(grads, state, model)
        peak = used() if i == 1 else 0
        hosts.append((time.thread_time() - began, len(launches) - before, peak))
        pa.synchronize()
    found = {"peak, MB": hosts[1][2] / 1e6}
    if backend == "opencl":  # NumPy computes on the host
        found |= {"launches": hosts[-1][1], "host, ms": statistics.median(host for host, *_ in hosts[3:]) * 1e3}
    return found


def _counted() -> list:
    """Return a list that grows with each launch in any version; to be called before polyarr is imported."""
    import pyopencl as cl

    found, plain = [], cl.enqueue_nd_range_kernel

    def counted(*args, **named):
        found.append(None)
        return plain(*args, **named)

    cl.enqueue_nd_range_kernel = cl._cl.enqueue_nd_range_kernel = counted
    return found


def _ended(peak: int) -> int:
    tracemalloc.stop()
    return peak


def _watched(pa, name):
    """Start to track the arrays' memory, or return the peak; the backend becomes the current one."""
    if name == "numpy":
        pa.set_backend(name)
        return lambda begin=False: tracemalloc.start() if begin else _ended(tracemalloc.get_traced_memory()[1])
    backend, seen = pa.get_backend(name), []

    def watched(kernel):
        def run(*args, **params):
            found = kernel(*args, **params)
            if seen:
                seen.append(backend.memory()["in use"])
            return found

        return run

    def halves(kernel):
        return kernel._replace(**{half: watched(getattr(kernel, half)) for half in ("forward", "backward")})

    def used(begin=False):
        seen.append(backend.memory()["in use"])
        most = max(seen) - seen[0]
        if not begin:
            seen.clear()
        return most

    kernels = {op: halves(k) if hasattr(k, "forward") else watched(k) for op, k in backend.kernels.items()}
    pa.set_backend(backend._replace(kernels=kernels))
    return used


# ---- what asks them --------------------------------------------------------------------------------------------------


def measured(folder: Path, backend: str, layers: int) -> dict[str, float]:
    """Return the measurements of a version's process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent)])}
    command = [sys.executable, __file__, "--child", backend, str(layers)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{folder}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def lines_of(folder: Path) -> int:
    """Return the lines of Python and OpenCL code in the package."""
    paths = [p for pattern in ("*.py", "*.cl") for p in (folder / "polyarr").rglob(pattern)]
    return sum(len(path.read_text().splitlines()) for path in paths)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--layers", default="0,4,12", type=lambda text: [*map(int, text.split(","))])
    parser.add_argument("--turns", type=int, default=5)
    options = report.parsed(parser)
    folders = [path.resolve() for path in (*options.folders, Path(__file__).parents[1])]
    rows: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.turns):
        for backend in ("numpy", "opencl"):
            for layers in options.layers:
                for folder in folders:
                    for what, value in measured(folder, backend, layers).items():
                        name = f"{backend}{f', {layers} layers' if layers else ''}: {what}"
                        rows.setdefault(name, {}).setdefault(folder.name, []).append(value)
    found = {row: {who: statistics.median(values) for who, values in cells.items()} for row, cells in rows.items()}
    found["lines of Python and OpenCL"] = {folder.name: lines_of(folder) for folder in folders}
    print(f"{'':38}" + "".join(f"{folder.name:>16}" for folder in folders))
    for row, cells in found.items():
        print(f"{row:38}" + "".join(f"{cells[folder.name]:16,.1f}" for folder in folders))
    report.write(options, found, "polyarr, version by version", "", found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
