"""Cost of sampling a token, compared with greedy decoding.

    python benchmarks/sampling.py [--preset gpt2-124m] [--backend opencl] [--dtype float32] [--tokens 12] [--turns 5]
                                  [--json FILE] [--png FILE]

Texts are generated from random weights by polyarr.models.stream; times include the prompt. Random weights make all
tokens about equally likely, which is the worst case for top-p: it keeps most of the vocabulary. All methods alternate
in one process, and a turn is timed until its tokens are computed.
"""

import argparse
import statistics
import time

import numpy as np
import report
from train_step import VOCABULARIES

import polyarr as pa
from polyarr.models import GPTModel, stream
from polyarr.models.generation import next_token
from polyarr.training import PRESETS

KINDS = {
    "greedy": {"temperature": 0},
    "temperature 1": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "all of them, penalty 1.1": {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1},
}


COLUMNS = "ms", "of greedy's", "CPU ms", "least CPU ms"


def turn(model, step, count, how):
    """Return the seconds of wall-clock time and of the process's CPU time for a text."""
    tokens = pa.asarray(np.array([[1, 2, 3, 4]], np.int32))
    pa.synchronize()
    began, worked = time.perf_counter(), time.process_time()
    pa.concat(list(stream(model, tokens, count, seed=1, step=step, **how)), axis=1).numpy()
    return time.perf_counter() - began, time.process_time() - worked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--preset", choices=list(PRESETS), default="gpt2-124m")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=12, help="of a text")
    parser.add_argument("--turns", type=int, default=5)
    options = report.parsed(parser)
    backend = pa.set_backend(options.backend)
    pa.random.seed(0)
    model = GPTModel(PRESETS[options.preset].config(VOCABULARIES.get(options.preset, 65))).eval()
    model, step = model.astype(options.dtype), next_token()
    times = {name: [] for name in KINDS}
    for i in range(options.turns + 1):
        for name, how in KINDS.items():
            took = turn(model, step, options.tokens, how)
            if i:  # kernels are compiled in the first turn
                times[name].append(took)
    found = {}
    for name, turns in times.items():
        ratios = sorted(mine[0] / greedy[0] for mine, greedy in zip(turns, times["greedy"], strict=True))
        wall, cpu = (statistics.median(column) / options.tokens for column in zip(*turns, strict=True))
        least = min(cpu for _, cpu in turns) / options.tokens
        shown = 1e3 * wall, statistics.median(ratios), 1e3 * cpu, 1e3 * least
        found[name] = dict(zip(COLUMNS, shown, strict=True))
    print(f"{options.preset}, {options.dtype}, on {backend.hardware}; a token, medians")
    print(f"{'':26}" + "".join(f"{name:>14}" for name in next(iter(found.values()))))
    for name, row in found.items():
        print(f"{name:26}" + "".join(f"{value:14.2f}" for value in row.values()))
    rows = {"ms a token": {name: row["ms"] for name, row in found.items()}}
    report.write(options, found, f"Drawing tokens of {options.preset} on {backend.hardware}", "ms", rows)


if __name__ == "__main__":
    main()
