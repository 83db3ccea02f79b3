"""Fourier transforms, compared with SciPy or NumPy or, on a GPU, with PyTorch.

    python benchmarks/fft.py [--torch] [--dtype float32] [--only rfft] [--turns 9] [--json FILE] [--png FILE]

polyarr runs on the OpenCL device that POLYARR_DEVICE names; --torch takes PyTorch on CUDA (cuFFT) instead of SciPy on
the host, with as many threads as it has cores, or of NumPy, with one thread, if SciPy is not installed. NumPy computes
unscaled transforms of float32 in float64. Both alternate in one process, after their results were compared. A turn is
as many calls of each as take about a millisecond, and a wait for their end. Medians in milliseconds per call, and
polyarr's time in terms of the other's.
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa

# A function, the shape of its argument, further arguments. 1,021 and 100,003 are primes.
CALLS = (
    ("fft", (1024,), {}),
    ("fft", (10_000, 64), {}),
    ("fft", (1000, 1000), {}),
    ("fft", (1000, 1000), {"axis": 0}),
    ("fft", (1000, 1021), {}),
    ("fft", (16, 2**16), {}),
    ("fft", (100_003,), {}),
    ("fft", (2**20,), {}),
    ("ifft", (2**22,), {}),
    ("rfft", (1000, 1000), {}),
    ("rfft", (2**20,), {}),
    ("irfft", (1000, 513), {}),
    ("fft2", (1024, 1024), {}),
    ("fft2", (64, 128, 128), {}),
)
CLOSE = {"float32": 1e-5, "float64": 1e-13}  # of the largest element of the result


def given(name, shape, dtype):
    """Return the argument of a function."""
    rng = np.random.default_rng(len(shape) + shape[-1])
    x = rng.standard_normal(shape)
    x = x if name == "rfft" else x + 1j * rng.standard_normal(shape)
    return x.astype(dtype if name == "rfft" else {"float32": "complex64", "float64": "complex128"}[dtype])


def polyarr_call(name, host, params):
    """Return a function that calls polyarr."""
    x, fn = pa.asarray(host), pa.fft.fftn if name == "fft2" else getattr(pa.fft, name)
    params = {"axes": (-2, -1)} if name == "fft2" else params
    return lambda: fn(x, **params)


def torch_call(name, host, params):
    """Return a function that calls PyTorch on CUDA, and one that waits for it."""
    import torch

    x, fn = torch.asarray(host, device="cuda"), getattr(torch.fft, name)
    params = {"dim": params["axis"]} if params else {}
    return lambda: fn(x, **params), torch.cuda.synchronize


def host_call(name, host, params):
    """Return a function that calls SciPy or NumPy, and one that does nothing."""
    try:
        import scipy.fft as library
    except ImportError:
        library = np.fft
    else:
        params = {**params, "workers": -1}
    return lambda: getattr(library, name)(host, **params), lambda: None


def measured(pairs, turns):
    """Return the median milliseconds of calls, each with the function that waits for it; they alternate."""
    times, repeats = [[] for _ in pairs], []
    for call, wait in pairs:
        call(), wait()
        began = time.perf_counter()
        call(), wait()
        repeats.append(max(1, min(100, round(1e-3 / (time.perf_counter() - began)))))
    for _ in range(turns):
        for (call, wait), found, count in zip(pairs, times, repeats, strict=True):
            began = time.perf_counter()
            for _ in range(count):
                call()
            wait()
            found.append((time.perf_counter() - began) * 1e3 / count)
    return [statistics.median(found) for found in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch on CUDA")
    parser.add_argument("--dtype", default="float32", choices=CLOSE)
    parser.add_argument("--only", default="")
    parser.add_argument("--turns", type=int, default=9)
    options = report.parsed(parser)
    pa.set_backend("opencl")
    other = "PyTorch" if options.torch else "host"
    print(f"{pa.get_backend().hardware}\n{'':30}{'polyarr':>10}{other:>10}   ratio")
    rows = {}
    for name, shape, params in (call for call in CALLS if options.only in call[0]):
        host = given(name, shape, options.dtype)
        ours = polyarr_call(name, host, params)
        theirs, wait = (torch_call if options.torch else host_call)(name, host, params)
        due = getattr(np.fft, name)(host.astype(np.float64 if name == "rfft" else np.complex128), **params)
        found = ours().numpy()
        if not np.abs(found - due).max() <= CLOSE[options.dtype] * np.abs(due).max():
            raise SystemExit(f"{name} {shape}: the results differ by {np.abs(found - due).max()}")
        times = measured([(ours, pa.synchronize), (theirs, wait)], options.turns)
        label = f"{name} {' x '.join(map(str, shape))}{' columns' if params else ''}"
        rows[label] = {"polyarr": times[0], other: times[1]}
        print(f"{label:30}{times[0]:10.3f}{times[1]:10.3f}{times[0] / times[1]:8.2f}", flush=True)
    report.write(options, rows, "Fourier transforms", "ms", rows)


if __name__ == "__main__":
    main()
