"""Short data-parallel training runs; tests/training/test_data_parallel.py checks what they print.

mpiexec -n N python data_parallel_runs.py FOLDER      each of CASES; rank 0 prints a line of JSON
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from unittest import mock

import polyarr as pa
from polyarr import distributed
from polyarr.training import Recipe, loop, new_run, train
from polyarr.training.ranks import ALONE, all_gather

TEXT = "the quick brown fox jumps over the lazy dog; " * 30
SIZES = {"context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0, "qkv_bias": False}
RECIPE = Recipe(SIZES, 12, 20, lr=1e-2, min_lr=1e-3, warmup=2, eval_every=10, eval_windows=37, clip=0.5)
# name -> backend, what differs from RECIPE, whether steps are captured
CASES = {
    "plain": ("numpy", {}, False),
    "again": ("numpy", {}, False),
    "captured": ("opencl", {}, True),
    "parts": ("numpy", {"accumulation": 6, "batch_size": 2, "steps": 3}, False),
    "float16": ("numpy", {"dtype": "float16", "steps": 3}, False),
    "wire": ("opencl", {}, True),  # gradients travel in bfloat16
    "by the clock": ("numpy", {"eval_every": None, "eval_minutes": 1e-9, "steps": 3, "patience": 9}, True),
    "stale": ("numpy", {"eval_every": 1, "patience": 1, "lr": 1.0, "schedule": "constant"}, False),
}


def outcome(name, folder, world=ALONE):
    """Return the losses of a case's steps and evaluations, and a digest of the model."""
    backend, changes, compiled = CASES[name]
    with pa.use_backend(backend), mock.patch.multiple(loop, READ_EVERY=1, save_curves=lambda *_: None):
        recipe = dataclasses.replace(RECIPE, **{"decay_steps": None, **changes})
        run = new_run(TEXT, recipe, 1, world=world)
        run.wire = "bfloat16" if name == "wire" else None
        folder.mkdir()
        train(run, folder, compiled=compiled, quiet=True)
        leaves = b"".join(leaf.numpy().tobytes() for leaf in pa.tree.leaves(run.model))
    digest = hashlib.sha256(leaves).hexdigest()
    return {"curve": run.curve, "values": [row["val"] for row in run.history], "digest": digest}


def main(folder):
    """Run every case on all ranks."""
    world = distributed.init("numpy")
    for name in CASES:
        mine = folder / name if world.rank == 0 else folder / f"{name} of {world.rank}"
        found = all_gather(world, outcome(name, mine, world))
        if world.rank == 0:
            files = sorted(path.name for other in folder.glob(f"{name} of *") for path in other.iterdir())
            print(json.dumps([name, found, files]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
