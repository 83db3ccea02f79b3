"""Decompositions of matrices, compared with NumPy or, on a GPU, with PyTorch.

    python benchmarks/linalg.py [--torch] [--dtype float32] [--only eigh] [--turns 7] [--json FILE] [--png FILE]

polyarr runs on the OpenCL device that POLYARR_DEVICE names; --torch takes PyTorch on CUDA instead of NumPy on the host.
Both alternate in one process, after their results were compared. A turn is one call of each and a wait for its end.
Medians in milliseconds, and polyarr's time in terms of the other's. PyTorch checks for errors in every call, and so
waits for the device; polyarr reports them at the next read, which is not timed.
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa

SHAPES = ((1000, 8, 8), (64, 64), (256, 256), (512, 512), (1000, 1000))
OPS = ("cholesky", "solve", "inv", "slogdet", "qr", "eigh", "svd")
CLOSE = {"float32": 2e-3, "float64": 1e-9}  # of the largest result; the matrices are well conditioned


def given(op, shape, dtype):
    """Return the arguments of an op: a symmetric definite matrix where it needs one, else a random one."""
    rng = np.random.default_rng(len(op) + shape[-1])
    x = rng.standard_normal(shape)
    if op in ("cholesky", "eigh"):
        x = x @ np.swapaxes(x, -1, -2) / shape[-1] + np.eye(shape[-1])
    elif op in ("solve", "inv", "slogdet"):
        x = x / shape[-1] ** 0.5 + 2 * np.eye(shape[-1])
    more = (rng.standard_normal((*shape[:-1], 8)),) if op == "solve" else ()
    return [a.astype(dtype) for a in (x, *more)]


def called(linalg, op, args, **options):
    """Return a function that calls the op."""
    fn = getattr(linalg, op)
    return lambda: fn(*args, **(options if op == "svd" else {}))


def compared(result, op):
    """Return what is the same for every library: factors without signs, eigenvalues, singular values."""
    picked = {"qr": lambda r: abs(r[1]), "eigh": lambda r: r[0], "svd": lambda r: r[1], "slogdet": lambda r: r[1]}
    return np.asarray(picked.get(op, lambda r: r)(result).tolist())


def measured(ours, theirs, turns):
    """Return the median milliseconds of both, which alternate."""
    times = [], []
    for turn in range(turns + 2):
        for call, found in zip((ours, theirs), times, strict=True):
            began = time.perf_counter()
            call()
            if turn > 1:
                found.append((time.perf_counter() - began) * 1e3)
    return [statistics.median(found) for found in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch on CUDA")
    parser.add_argument("--dtype", default="float32", choices=CLOSE)
    parser.add_argument("--only", default="")
    parser.add_argument("--turns", type=int, default=7)
    options = report.parsed(parser)
    pa.set_backend("opencl")
    other = "PyTorch" if options.torch else "NumPy"
    print(f"{pa.get_backend().hardware}\n{'':26}{'polyarr':>10}{other:>10}   ratio")
    rows = {}
    for op in (op for op in OPS if options.only in op):
        for shape in SHAPES:
            hosts = given(op, shape, options.dtype)
            ours = called(pa.linalg, op, [pa.asarray(a) for a in hosts], full_matrices=False)
            if options.torch:
                import torch

                theirs = called(torch.linalg, op, [torch.asarray(a, device="cuda") for a in hosts], full_matrices=False)
                wait = torch.cuda.synchronize
            else:
                theirs, wait = called(np.linalg, op, hosts, full_matrices=False), lambda: None
            found, due = compared(ours(), op), compared(theirs(), op)
            if not np.abs(found - due).max() <= CLOSE[options.dtype] * np.abs(due).max():
                raise SystemExit(f"{op} {shape}: the results differ by {np.abs(found - due).max()}")
            times = measured(lambda: (ours(), pa.synchronize()), lambda: (theirs(), wait()), options.turns)  # noqa: B023
            name = f"{op} {' x '.join(map(str, shape))}"
            rows[name] = {"polyarr": times[0], other: times[1]}
            print(f"{name:26}{times[0]:10.3f}{times[1]:10.3f}{times[0] / times[1]:8.2f}", flush=True)
    report.write(options, rows, "decompositions", "ms", rows)


if __name__ == "__main__":
    main()
