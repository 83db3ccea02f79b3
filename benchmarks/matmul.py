"""How fast are float32 matrix products, beside NumPy's and PyTorch's on the same cores?

    python benchmarks/matmul.py [--turns 15] [--threads 2] [--only 1024] [--json FILE]

Square products and those of a GPT's training step: NN is x @ y, NT is x @ y^T, TN is x^T @ y, of row-major arrays. All
take turns in one process, and each product is timed until its result is there. polyarr runs on the OpenCL device that
POLYARR_DEVICE names, which must be a CPU; its tile is chosen first, as by the first sizeable product of any program.
NumPy chooses its own kernels: OPENBLAS_CORETYPE is unset where it is set. Threads that have nothing to do sleep, those
of the peers too. PyTorch is optional: pip install torch
"""

import argparse
import json
import os
import statistics
import sys
import time

# NumPy reads OPENBLAS_CORETYPE once, as libraries do what lets idle threads sleep: polyarr is timed on the same cores.
if os.environ.pop("OPENBLAS_CORETYPE", None) or "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
    os.environ.update(OPENBLAS_THREAD_TIMEOUT="4", OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0", KMP_BLOCKTIME="0")
    os.execv(sys.executable, [sys.executable, *sys.argv])

import numpy as np

import polyarr as pa
from polyarr.backends.opencl.devices import select
from polyarr.backends.opencl.speed import speed_of

try:
    import torch
except ImportError:
    torch = None

SQUARES = [(f"{n}", n, n, n, "NN") for n in (512, 1024, 2048)]
GPT = [  # batch 8 of 256 tokens, width 384, a vocabulary of 65
    ("qkv", 2048, 1152, 384, "NT"),
    ("up", 2048, 1536, 384, "NT"),
    ("down", 2048, 384, 1536, "NT"),
    ("head", 2048, 65, 384, "NT"),
    ("d up/d x", 2048, 384, 1536, "NN"),
    ("d up/d w", 1536, 384, 2048, "TN"),
    ("d down/d w", 384, 1536, 2048, "TN"),
]
SETTLE = 3  # runs before the first that counts


def operands(m, n, k, layout):
    """x (m, k) and y (k, n) as NumPy arrays: views of row-major ones, one perhaps transposed."""
    generator = np.random.default_rng(m + n + k)
    x = generator.standard_normal((k, m) if layout == "TN" else (m, k), dtype=np.float32)
    y = generator.standard_normal((n, k) if layout == "NT" else (k, n), dtype=np.float32)
    return (x.T if layout == "TN" else x), (y.T if layout == "NT" else y)


def on_polyarr(host):
    """The same view on polyarr: what is transposed stays so, and is not copied."""
    return pa.asarray(host) if host.flags.c_contiguous else pa.asarray(host.T).T


def contenders(x, y):
    """Functions that compute x @ y and wait, by the name of who does."""
    left, right = on_polyarr(x), on_polyarr(y)

    def polyarr():
        product = left @ right
        pa.synchronize()
        return product

    found = {"polyarr": polyarr, "NumPy": lambda: x @ y}
    if torch is not None:
        a, b = torch.from_numpy(x), torch.from_numpy(y)
        found["PyTorch"] = lambda: a @ b
    return found


def measure(functions, turns):
    """Seconds of each function, by name, taken in turns."""
    times = {name: [] for name in functions}
    for turn in range(SETTLE + turns):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if turn >= SETTLE:
                times[name].append(time.perf_counter() - began)
    return times


def row(name, m, n, k, layout, turns):
    """GFLOP/s by medians and by the best runs, of everyone; the results must agree."""
    x, y = operands(m, n, k, layout)
    functions = contenders(x, y)
    np.testing.assert_allclose(functions["polyarr"]().numpy(), x @ y, rtol=0, atol=1e-6 * k)
    work, times = 2e-9 * m * n * k, measure(functions, turns)
    median = {who: work / statistics.median(found) for who, found in times.items()}
    return {
        "name": name, "shape": [m, n, k], "layout": layout, "median": median,
        "best": {who: work / min(found) for who, found in times.items()},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15, help="how often each product is timed")
    parser.add_argument("--threads", type=int, help="for PyTorch; NumPy's are set by OPENBLAS_NUM_THREADS")
    parser.add_argument("--only", help="products whose name contains this")
    parser.add_argument("--json", help="write everything to this file as well")
    options = parser.parse_args()
    if torch is not None and options.threads:
        torch.set_num_threads(options.threads)
    device = select()
    if not device.features.is_cpu:
        parser.error(f"{device.name} is no CPU: choose one by POLYARR_DEVICE")
    pa.set_backend(device.name)
    began = time.perf_counter()
    speed = speed_of(device)
    print(f"polyarr on {device.cl_device.name.strip()}, {device.features.compute_units} cores: {speed}")
    print(f"its tile was ready after {time.perf_counter() - began:.1f} s; NumPy {np.__version__}", end="")
    print(f", PyTorch {torch.__version__}, {torch.get_num_threads()} threads" if torch else ", no PyTorch")
    rows = []
    print(f"{'GFLOP/s by medians':34}  polyarr    NumPy  PyTorch   of NumPy  of PyTorch   of NumPy by best")
    for name, m, n, k, layout in SQUARES + GPT:
        if options.only and options.only not in name:
            continue
        rows.append(row(name, m, n, k, layout, options.turns))
        show(rows[-1])
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"speed": speed._asdict() | {"tile": str(speed.tile)}, "rows": rows}, file, indent=1)


def show(found):
    """One line of the table."""
    median, best = found["median"], found["best"]
    m, n, k = found["shape"]
    line = f"{found['name']:12} {f'{m} x {n} x {k}':18} {found['layout']}"
    line += f"  {median['polyarr']:7.0f}  {median['NumPy']:7.0f}"
    line += f"  {median['PyTorch']:7.0f}" if "PyTorch" in median else "        -"
    line += f"  {median['polyarr'] / median['NumPy']:9.2f}"
    line += f"  {median['polyarr'] / median['PyTorch']:10.2f}" if "PyTorch" in median else "           -"
    print(f"{line}  {best['polyarr'] / best['NumPy']:16.2f}", flush=True)


if __name__ == "__main__":
    main()
