"""Matrix products, compared with NumPy and PyTorch on the same device.

    python benchmarks/matmul.py [--turns 15] [--threads 2] [--only 1024] [--dtype bfloat16,float32] [--captured]
                                [--json FILE] [--png FILE] [--pieces 1,2,4,8]

Square products and those of a GPT's training step: NN is x @ y, NT is x @ y^T, TN is x^T @ y, of row-major arrays. All
alternate in one process, after their results were compared. polyarr runs on the OpenCL device that POLYARR_DEVICE
names.

On a CPU each float32 product is timed until its result is computed, with the tile sizes of `polyarr tune` or else the
default ones. NumPy selects its own kernels: OPENBLAS_CORETYPE is removed from the environment. Idle threads sleep, also
those of the peers: OpenBLAS' would otherwise spin for tens of milliseconds after each of NumPy's products, on the cores
of the next measurement. PyTorch is optional: pip install torch

--pieces also times the same products split into at most so many pieces per core: with 1 all cores wait for the slowest;
polyarr's default is 8. All of it takes half a minute on two cores.

On a GPU the peer is PyTorch on CUDA, without tf32, and the shapes are GPT-2's. A turn is a burst of products with one
wait at its end, after some untimed ones, because the first ones of a turn are slower. Short products are bound by the
host: with --captured, several of polyarr's are in a compiled function and as many of PyTorch's in a CUDA graph.
"""

import argparse
import os
import statistics
import sys
import time

# NumPy reads OPENBLAS_CORETYPE once, and libraries read once whether idle threads sleep: set both before the imports.
if os.environ.pop("OPENBLAS_CORETYPE", None) or "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
    os.environ.update(OPENBLAS_THREAD_TIMEOUT="4", OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0", KMP_BLOCKTIME="0")
    os.execv(sys.executable, [sys.executable, *sys.argv])

import numpy as np
import report

import polyarr as pa
from polyarr.backends.opencl.devices import select
from polyarr.backends.opencl.gemm import matmul
from polyarr.backends.opencl.runtime.plans import Plans
from polyarr.backends.opencl.tuning.speed import speed_of

try:
    import torch
except ImportError:
    torch = None

SQUARES = [(f"{n}", n, n, n, "NN") for n in (64, 256, 512, 1024, 2048)]
GPT = [  # batch 8 of 256 tokens, width 384, a vocabulary of 65
    ("qkv", 2048, 1152, 384, "NT"),
    ("up", 2048, 1536, 384, "NT"),
    ("down", 2048, 384, 1536, "NT"),
    ("head", 2048, 65, 384, "NT"),
    ("d up/d x", 2048, 384, 1536, "NN"),
    ("d up/d w", 1536, 384, 2048, "TN"),
    ("d down/d w", 384, 1536, 2048, "TN"),
]
TOKENS, WIDTH, VOCABULARY = 8192, 768, 50257
LAYERS = {"qkv": (WIDTH, 3 * WIDTH), "proj": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
ON_GPU = [
    *((f"{n} {layout}", n, n, n, layout) for n in (1024, 4096, 8192) for layout in ("NT", "NN", "TN")),
    *((f"{name}", TOKENS, wide, deep, "NT") for name, (deep, wide) in LAYERS.items()),
    *((f"{name} d x", TOKENS, deep, wide, "NN") for name, (deep, wide) in LAYERS.items()),
    *((f"{name} d w", wide, deep, TOKENS, "TN") for name, (deep, wide) in LAYERS.items()),
    *((f"head {n}", TOKENS, n, WIDTH, "NT") for n in (VOCABULARY, 50304)),
    *((f"head {n} d x", TOKENS, WIDTH, n, "NN") for n in (VOCABULARY, 50304)),
    *((f"head {n} d w", n, WIDTH, TOKENS, "TN") for n in (VOCABULARY, 50304)),
]
SETTLE = 3  # untimed runs
BURST = 4e-3  # target seconds of a turn on a GPU
SHORT = 2**24  # elements of x and the result, below which more products are captured: the host's time would count
ERROR = {"float32": 5e-6, "bfloat16": 3e-3, "float16": 5e-4}  # tolerance of the relative error, by norms


def operands(m, n, k, layout):
    """Return x (m, k) and y (k, n) as NumPy arrays: views of row-major ones, one perhaps transposed."""
    generator = np.random.default_rng(m + n + k)
    x = generator.standard_normal((k, m) if layout == "TN" else (m, k), dtype=np.float32)
    y = generator.standard_normal((n, k) if layout == "NT" else (k, n), dtype=np.float32)
    return (x.T if layout == "TN" else x), (y.T if layout == "NT" else y)


def on_polyarr(host):
    """Return the same view on polyarr: a transposed array stays a view."""
    return pa.asarray(host) if host.flags.c_contiguous else pa.asarray(host.T).T


def in_pieces(device, pieces, function):
    """Return the function with products split into at most so many pieces per core, with launch plans of its own."""
    plans = Plans(device)

    def run():
        own = device.plans, matmul.TURNS
        device.plans, matmul.TURNS = plans, pieces
        try:
            return function()
        finally:
            device.plans, matmul.TURNS = own

    return run


def contenders(x, y, pieces):
    """Return functions that compute x @ y and wait, by name."""
    left, right = on_polyarr(x), on_polyarr(y)

    def polyarr():
        product = left @ right
        pa.synchronize()
        return product

    found = {"polyarr": polyarr, "NumPy": lambda: x @ y}
    found |= {f"{most} each": in_pieces(select(), most, polyarr) for most in pieces}
    if torch is not None:
        a, b = torch.from_numpy(x), torch.from_numpy(y)
        found["PyTorch"] = lambda: a @ b
    return found


def measure(functions, turns):
    """Return the seconds of each function, by name; they alternate."""
    times = {name: [] for name in functions}
    for turn in range(SETTLE + turns):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if turn >= SETTLE:
                times[name].append(time.perf_counter() - began)
    return times


def row(name, m, n, k, layout, turns, pieces):
    """Return median and best GFLOP/s of all; the results must agree."""
    x, y = operands(m, n, k, layout)
    functions = contenders(x, y, pieces)
    for who in functions.keys() - {"NumPy", "PyTorch"}:
        np.testing.assert_allclose(functions[who]().numpy(), x @ y, rtol=0, atol=1e-6 * k)
    work, times = 2e-9 * m * n * k, measure(functions, turns)
    median = {who: work / statistics.median(found) for who, found in times.items()}
    return {
        "name": name, "shape": [m, n, k], "layout": layout, "median": median,
        "best": {who: work / min(found) for who, found in times.items()},
    }  # fmt: skip


# ---- on a GPU ----------------------------------------------------------------------------------------------------


def burst(run, wait, calls):
    """Return the seconds per call of `calls` calls."""
    for _ in range(SETTLE):
        run()
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return (time.perf_counter() - began) / calls


def pair(rows, columns, dtype, is_transposed):
    """Return equal normal numbers on polyarr and on PyTorch."""
    a = torch.randn(rows, columns, device="cuda").to(getattr(torch, dtype))
    x = pa.asarray(a.float().cpu().numpy()).astype(getattr(pa, dtype))
    return (x.T, a.T) if is_transposed else (x, a)


def error_of(found, a, b):
    """Return the relative error of a product against float64."""
    exact = a.double() @ b.double()
    return float((found.double() - exact).norm() / exact.norm())


def several(x, y, a, b, is_transposed):
    """Return captured functions that compute several products with one y."""
    from captured import SEVERAL, captured  # needs PyTorch

    is_short = x.size + x.shape[0] * y.shape[1] < SHORT
    xs = [(x.T + i).T if is_transposed else x + i for i in range(4 * SEVERAL if is_short else SEVERAL)]
    return len(xs), *captured(lambda x, y: x @ y, xs, [y], lambda: a @ b)


def row_on_gpu(name, m, n, k, layout, dtype, turns, is_captured):
    """Return median and best TFLOP/s; polyarr's result must be as accurate as the dtype allows."""
    x, a = pair(*((k, m) if layout == "TN" else (m, k)), dtype, layout == "TN")
    y, b = pair(*((n, k) if layout == "NT" else (k, n)), dtype, layout == "NT")
    found = torch.from_numpy((x @ y).astype(pa.float32).numpy()).cuda()
    errors = {"polyarr": error_of(found, a, b), "PyTorch": error_of(a @ b, a, b)}
    assert errors["polyarr"] < ERROR[dtype], f"{name}: the result is wrong by {errors['polyarr']:.1e}"
    plain = 1, lambda: x @ y, lambda: a @ b
    products, ours, theirs = several(x, y, a, b, layout == "TN") if is_captured else plain
    runs = {"polyarr": (ours, pa.synchronize), "PyTorch": (theirs, torch.cuda.synchronize)}
    calls = {who: max(3, min(60, int(BURST / burst(*run, 3)))) for who, run in runs.items()}
    times = {who: [] for who in runs}
    for _ in range(turns):
        for who, run in runs.items():
            times[who].append(burst(*run, calls[who]))
    work = 2e-12 * m * n * k * products
    return {
        "name": name, "shape": [m, n, k], "layout": layout, "dtype": dtype, "error": errors,
        "median": {who: work / statistics.median(found) for who, found in times.items()},
        "best": {who: work / min(found) for who, found in times.items()},
    }  # fmt: skip


def main_on_gpu(device, options):
    """Print the table for a GPU."""
    torch.backends.cuda.matmul.allow_tf32 = False
    driver = device.cl_device.driver_version.strip()
    print(f"polyarr on {device.cl_device.name.strip()}, driver {driver}; PyTorch {torch.__version__}")
    print(f"{'TFLOP/s by medians':44} polyarr  PyTorch  of PyTorch  by best  error, PyTorch's")
    rows = []
    for dtype in options.dtype.split(","):
        for name, m, n, k, layout in ON_GPU:
            if options.only and options.only not in name:
                continue
            found = row_on_gpu(name, m, n, k, layout, dtype, options.turns, options.captured)
            median, best, error = found["median"], found["best"], found["error"]
            ratio, by_best = (each["polyarr"] / each["PyTorch"] for each in (median, best))
            print(
                f"{name:16} {f'{m} x {n} x {k}':18} {dtype:8} {median['polyarr']:7.1f}  {median['PyTorch']:7.1f}"
                f"  {ratio:10.2f}  {by_best:7.2f}  {error['polyarr']:.1e}, {error['PyTorch']:.1e}", flush=True,
            )  # fmt: skip
            rows.append(found)
    return {"device": device.cl_device.name.strip(), "driver": driver, "rows": rows}


# ---- the program -------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15, help="how often each product is timed")
    parser.add_argument("--threads", type=int, help="for PyTorch; NumPy's are set by OPENBLAS_NUM_THREADS")
    parser.add_argument("--only", help="products whose name contains this")
    parser.add_argument("--dtype", default="bfloat16,float32", help="on a GPU")
    parser.add_argument("--captured", action="store_true", help="on a GPU: both sides captured")
    parser.add_argument("--pieces", default="", help="on a CPU: other numbers of pieces for each core")
    options = report.parsed(parser)
    if torch is not None and options.threads:
        torch.set_num_threads(options.threads)
    device = select()
    pa.set_backend(device.name)
    if device.features.is_cpu:
        found = main_on_cpu(device, options)
    elif torch is None or not torch.cuda.is_available():
        parser.error(f"{device.name} is no CPU, and there is no PyTorch on CUDA to compare with")
    else:
        found = main_on_gpu(device, options)
    unit = "GFLOP/s" if device.features.is_cpu else "TFLOP/s"
    rows = {f"{row['name']} {row['layout']} {row.get('dtype', 'float32')}": row["median"] for row in found["rows"]}
    report.write(options, found, f"Matrix products on {device.cl_device.name.strip()}", unit, rows)


def main_on_cpu(device, options):
    """Print the table for a CPU."""
    speed = speed_of(device)
    print(f"polyarr on {device.cl_device.name.strip()}, {device.features.compute_units} cores: {speed}")
    print(f"NumPy {np.__version__}", end="")
    print(f", PyTorch {torch.__version__}, {torch.get_num_threads()} threads" if torch else ", no PyTorch")
    rows, pieces = [], [int(most) for most in options.pieces.split(",") if most]
    heading = f"{'GFLOP/s by medians':34}  polyarr    NumPy  PyTorch   of NumPy  of PyTorch   of NumPy by best"
    print(heading + (f"   of NumPy by medians in {options.pieces} pieces each" if pieces else ""))
    for name, m, n, k, layout in SQUARES + GPT:
        if options.only and options.only not in name:
            continue
        rows.append(row(name, m, n, k, layout, options.turns, pieces))
        show(rows[-1])
    return {"speed": speed._asdict() | {"tile": str(speed.tile)}, "rows": rows}


def show(found):
    """Print one line of the table."""
    median, best = found["median"], found["best"]
    m, n, k = found["shape"]
    line = f"{found['name']:12} {f'{m} x {n} x {k}':18} {found['layout']}"
    line += f"  {median['polyarr']:7.0f}  {median['NumPy']:7.0f}"
    line += f"  {median['PyTorch']:7.0f}" if "PyTorch" in median else "        -"
    line += f"  {median['polyarr'] / median['NumPy']:9.2f}"
    line += f"  {median['polyarr'] / median['PyTorch']:10.2f}" if "PyTorch" in median else "           -"
    line += f"  {best['polyarr'] / best['NumPy']:16.2f}  "
    print(line, *(f"{rate / median['NumPy']:.2f}" for who, rate in median.items() if who.endswith(" each")), flush=True)


if __name__ == "__main__":
    main()
