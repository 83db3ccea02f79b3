"""Startup time in a new process until something is computed, compared with NumPy and PyTorch.

    python benchmarks/startup.py [--turns 5] [--only opencl] [--preset demo] [--json FILE] [--png FILE]

A process imports a library, computes a first sum of two arrays, and then a first training step of a small GPT; creating
its weights is not counted. "cold" starts with empty caches of compiled kernels, "warm" with those that a cold process
filled. All alternate. polyarr runs on NumPy and on the OpenCL device that POLYARR_DEVICE names; PyTorch (optional) on
CUDA if available.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import report

STAGES = ("import", "first op", "first step", "in all")
CACHES = ("POCL_CACHE_DIR", "CUDA_CACHE_PATH")  # cache folders of polyarr and PoCL, and of NVIDIA's driver
HAS_TORCH = importlib.util.find_spec("torch") is not None


# ---- in the process that is measured -------------------------------------------------------------------------------


def child(library: str, backend: str, preset: str) -> dict[str, float]:
    """Return the seconds of each stage but the last."""
    began = time.perf_counter()
    module = importlib.import_module(library)
    imported = time.perf_counter()
    first = {"numpy": _numpy_op, "torch": _torch_op, "polyarr": _polyarr_op}[library]
    first(module, backend)
    computed = time.perf_counter()
    found = {"import": imported - began, "first op": computed - imported}
    if library != "numpy":
        found["first step"] = _step(library, backend, preset)
    return found


def _numpy_op(numpy: Any, _: str) -> None:
    x = numpy.ones(16, numpy.float32)
    assert (x + x)[0] == 2


def _torch_op(torch: Any, device: str) -> None:
    x = torch.ones(16, device=device)
    assert (x + x)[0].item() == 2


def _polyarr_op(polyarr: Any, backend: str) -> None:
    polyarr.set_backend(backend)
    x = polyarr.ones((16,))
    assert float((x + x)[0]) == 2


def _step(library: str, backend: str, preset: str) -> float:
    """Return the seconds of a training step, without creating weights."""
    import numpy as np
    import train_step

    import polyarr as pa

    recipe = train_step.PRESETS[preset]
    vocabulary = train_step.VOCABULARIES.get(preset, 65)
    windows = np.arange(recipe.batch_size * (recipe.model["context_length"] + 1), dtype=np.int32) % vocabulary
    if library == "torch":
        pa.set_backend("numpy")
    model = train_step.GPTModel(recipe.config(vocabulary))
    if library == "polyarr":
        step = pa.compile(train_step.step_of(recipe))
        made = train_step.PolyarrStep(recipe, model, step, pa.get_backend())
    else:
        made = train_step.TorchStep(recipe, model, backend)
    pa.synchronize()
    began = time.perf_counter()
    float(made(windows.reshape(recipe.batch_size, -1)))
    return time.perf_counter() - began


# ---- in the one that measures --------------------------------------------------------------------------------------


def run(library: str, backend: str, preset: str, caches: str) -> dict[str, float]:
    """Return the seconds of each stage in a new process whose caches are in this folder."""
    environment = {**os.environ, **dict.fromkeys(CACHES, caches)}
    command = [sys.executable, __file__, "--child", library, backend, "--preset", preset]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{library} on {backend}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "in all": sum(found.values())}


def contenders() -> dict[str, tuple[str, str, bool]]:
    """Return by name: the library, its backend or device, and whether it starts without caches."""
    found = {"NumPy": ("numpy", "cpu", False), "polyarr numpy": ("polyarr", "numpy", False)}
    found |= {"polyarr opencl, cold": ("polyarr", "opencl", True), "polyarr opencl, warm": ("polyarr", "opencl", False)}
    if HAS_TORCH:
        import torch

        where = "cuda" if torch.cuda.is_available() else "cpu"
        found[f"PyTorch {where}"] = ("torch", where, False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="how often each is started")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--preset", default="demo", help="what is trained, as `polyarr train` has it")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = report.parsed(parser)
    if options.child:
        print(json.dumps(child(*options.child, options.preset)))
        return
    chosen = {name: found for name, found in contenders().items() if options.only in name}
    times: dict[str, dict[str, list[float]]] = {name: {stage: [] for stage in STAGES} for name in chosen}
    with tempfile.TemporaryDirectory() as warm:
        run("polyarr", "opencl", options.preset, warm)
        for _ in range(options.turns):
            for name, (library, backend, is_cold) in chosen.items():
                with tempfile.TemporaryDirectory() as cold:
                    took = run(library, backend, options.preset, cold if is_cold else warm)
                for stage, seconds in took.items():
                    times[name][stage].append(seconds)
    show(times, options)


def show(times: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    """Print the table, a row for each contender."""
    print(f"{'seconds by medians':24}" + "".join(f"{stage:>15}" for stage in STAGES))
    found = {
        name: {stage: statistics.median(took) for stage, took in stages.items() if took}
        for name, stages in times.items()
    }
    for name, stages in found.items():
        cells = (f"{stages[stage]:15.2f}" if stage in stages else f"{'-':>15}" for stage in STAGES)
        print(f"{name:24}" + "".join(cells))
    title = f"A new process, and a first step of {options.preset}"
    report.write(options, {"seconds": found, "all": times}, title, "seconds", found)


if __name__ == "__main__":
    main()
