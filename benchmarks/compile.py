"""polyarr.compile against eager mode: host time and wall time of a training step and of a generated token.

    python benchmarks/compile.py [--backend opencl] [--preset shakespeare-char] [--rounds 30] [--json FILE] [--png FILE]

Eager and compiled calls alternate in one process; the table has medians. "Host" is the CPU time of the calling thread
until the call returns: Python and enqueueing. "Wall" ends when the results are computed. The losses and tokens of both
must be equal bit for bit, or nothing is timed. A step is forward, backward, clipping and AdamW, with model and state
donated; a token comes from a model with a KV cache of the whole context. "Peak" is the peak memory of a separate
process, minus the memory before the first call.
"""

import argparse
import multiprocessing
import statistics
import time

import numpy as np
import report

import polyarr as pa
from polyarr.models.gpt import GPTModel
from polyarr.training import PRESETS
from polyarr.training.steps import step_of

VOCABULARY = 65  # characters
WARM_UP = 3
WAYS = {"eager": lambda fn, donate: fn, "compiled": lambda fn, donate: pa.compile(fn, donate=donate)}


class Training:
    """A training step; a call returns its loss without waiting."""

    def __init__(self, recipe, way):
        pa.random.seed(0)
        self.model = GPTModel(recipe.config(VOCABULARY))
        self.state, self.step = recipe.new_optimizer().init(self.model), way(step_of(recipe), ("model", "state"))
        shape = recipe.batch_size, recipe.model["context_length"] + 1
        self.windows = pa.asarray(np.random.default_rng(0).integers(0, VOCABULARY, shape, dtype=np.int32))

    def __call__(self):
        loss, self.model, self.state, _ = self.step(self.model, self.state, [self.windows])
        return loss


class Decoding:
    """Greedy decoding; a call returns the next token without waiting. After the last position the text starts again."""

    def __init__(self, recipe, way):
        pa.random.seed(0)
        self.model = GPTModel(recipe.config(VOCABULARY)).eval()
        self.length = recipe.model["context_length"]
        self.caches, self.position, self.token = self.model.caches(1, self.length), 0, pa.asarray([[1]], dtype="int32")

        def following(model, token, caches, position):
            logits = model(token, caches, position)[:, -1]
            return pa.random.choice_from_logits(logits)[:, None].astype("int32")

        self.following = way(following, ("caches",))

    def __call__(self):
        self.token = self.following(self.model, self.token, self.caches, self.position)
        self.position = (self.position + 1) % self.length
        return self.token


def measured(kind, recipe, rounds):
    """Return, by mode, the seconds of the first call, and host and wall milliseconds of the others."""
    calls = {name: kind(recipe, way) for name, way in WAYS.items()}
    states = dict.fromkeys(calls, (1, 0))
    first, host, wall, found = {}, {n: [] for n in WAYS}, {n: [] for n in WAYS}, {n: [] for n in WAYS}
    for i in range(WARM_UP + rounds):
        for name, call in calls.items():
            pa.random.set_state(states[name])
            pa.synchronize()
            began, host_began = time.perf_counter(), time.thread_time()
            value = call()
            host_took = time.thread_time() - host_began
            pa.synchronize()
            took = time.perf_counter() - began
            states[name] = pa.random.get_state()
            found[name].append(value.numpy().tobytes())
            first.setdefault(name, took)
            if i >= WARM_UP:
                host[name].append(host_took * 1e3)
                wall[name].append(took * 1e3)
        if found["eager"] != found["compiled"]:
            raise SystemExit(f"{kind.__name__}: eager and compiled differ in call {i + 1}")
    median = statistics.median
    return {n: {"first s": first[n], "host ms": median(host[n]), "wall ms": median(wall[n])} for n in WAYS}


def peak(kind, recipe, way, backend):
    """Return the peak memory of a few calls in megabytes; None if the backend does not report it."""
    pa.set_backend(backend)
    call = kind(recipe, WAYS[way])
    pa.synchronize()
    before = pa.memory_stats().in_use
    for _ in range(WARM_UP):
        call()
    pa.synchronize()
    found = pa.memory_stats().peak
    return None if found is None else (found - before) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--preset", choices=list(PRESETS), default="shakespeare-char")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rounds", type=int, default=30)
    options = report.parsed(parser)
    pa.set_backend(options.backend)
    recipe = PRESETS[options.preset]
    recipe = recipe.changed(batch_size=options.batch_size or recipe.batch_size)
    found = {kind.__name__: measured(kind, recipe, options.rounds) for kind in (Training, Decoding)}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as alone:
        for kind in (Training, Decoding):
            for way in WAYS:
                most = alone.apply(peak, (kind, recipe, way, options.backend))
                found[kind.__name__][way] |= {} if most is None else {"peak MB": most}
    heads = "".join(f"{name:>10}" for name in found["Training"]["eager"])
    print(f"{options.preset} on {pa.get_backend().hardware}\n{'':20}{heads}")
    for what, ways in found.items():
        for name, row in ways.items():
            print(f"{what + ', ' + name:20}" + "".join(f"{value:10.3f}" for value in row.values()))
    kinds = [(what, ways, clock) for what, ways in found.items() for clock in ("host ms", "wall ms")]
    rows = {f"{what}, {clock}": {way: ways[way][clock] for way in WAYS} for what, ways, clock in kinds}
    report.write(options, found, f"polyarr.compile, {options.preset}", "ms", rows)


if __name__ == "__main__":
    main()
