"""Data-parallel scaling: all-reduces, steps on one rank and on several, and a forecast for many more.

    python benchmarks/scale.py [--preset demo] [--ranks 2] [--steps 30] [--threads 2]
    python benchmarks/scale.py --preset gpt2-124m --batch-size 8 --torch-device cuda [--dtype bfloat16]
                               [--precision high] [--wire bfloat16]
    either with                [--mpi] [--json FILE] [--png FILE]

Starts its own ranks with mpiexec: one with all threads, then several that share them. Steps are those of `polyarr
train`, captured; next to them PyTorch's eager steps, on several ranks under DistributedDataParallel (gloo on CPUs, nccl
on GPUs). PyTorch is optional: pip install torch. Every step is timed until its loss is computed; medians of rank 0.

weak    work of all ranks in units of one rank's work in the same time, each with its batch: ideally their number
global  time of one rank with the batches of all, divided by the ranks' time

The forecast comes from cost.py with this run's measurements; docs/scale.md explains it.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import cost
import numpy as np
import report
from train_step import VOCABULARIES, TorchStep, torch

import polyarr as pa
from polyarr.distributed.devices import over_devices, shared_by
from polyarr.distributed.host import HostTransport
from polyarr.models.gpt import GPTModel
from polyarr.training import PRESETS
from polyarr.training.steps import gradients, step_of

WARM_UP = 3
SIZES = [1 << n for n in range(12, 29, 4)]  # bytes of all-reduces
REPEATS = 7
MODELS = {"124M": 163_037_184, "1.5B": 1_638_022_400}  # parameters, including the head
RANKS = (2, 8, 64, 256, 1024)


# ---- one rank: started by mpiexec with --measure ------------------------------------------------------------------


class Alone:
    """The captured step of a single rank."""

    def __init__(self, recipe, model):
        self.model, self.step = model, pa.compile(step_of(recipe), donate=("model", "state"))
        self.state = recipe.new_optimizer().init(self.model)

    def __call__(self, windows):
        loss, self.model, self.state, _ = self.step(self.model, self.state, [pa.asarray(windows)])
        return float(loss)


class Collectives:
    """The step of one of several ranks: a captured gradient, the mean over ranks, a captured update."""

    def __init__(self, recipe, model, world, wire):
        self.model, self.world = model, world
        optimizer = recipe.new_optimizer()
        self.state = optimizer.init(self.model)
        self.gradients = pa.compile(lambda model, windows: gradients(recipe, model, [windows], wire=wire))
        self.update = pa.compile(optimizer.update, donate=("state", "model"))
        self.parts = {"gradient": [], "mean": [], "update": []}

    def __call__(self, windows):
        loss, grads = self.gradients(self.model, pa.asarray(windows))
        loss, grads = self.world.mean((loss, grads))
        self.model, self.state = self.update(grads, self.state, self.model)
        return float(loss)

    def in_parts(self, windows):
        """Run the step with a wait after each part."""
        times = [time.perf_counter()]
        loss, grads = self.gradients(self.model, pa.asarray(windows))
        self._waited(times)
        loss, grads = self.world.mean((loss, grads))
        self._waited(times)
        self.model, self.state = self.update(grads, self.state, self.model)
        self._waited(times)
        for part, seconds in zip(self.parts.values(), np.diff(times), strict=True):
            part.append(seconds)

    def _waited(self, times):
        pa.synchronize()
        times.append(time.perf_counter())


def torch_step(recipe, model, device, world, wire):
    """Return PyTorch's step, on several ranks under its DistributedDataParallel."""
    step = TorchStep(recipe, model, device)
    if world.size == 1:
        return step
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    class Net(torch.nn.Module):
        def __init__(self, logits):
            super().__init__()
            self.logits, self.all = logits, torch.nn.ParameterList(step.p.values())

        def forward(self, tokens):
            return self.logits(tokens)

    place = [torch.cuda.current_device()] if device == "cuda" else None
    step.logits = torch.nn.parallel.DistributedDataParallel(Net(step.logits), place, gradient_as_bucket_view=True)
    if wire:
        step.logits.register_comm_hook(None, bf16_compress_hook)
    return step


def timed(world, step, batches, count):
    """Return the seconds of each of `count` calls after some untimed ones, and the first losses."""
    losses = [float(step(batch)) for batch in batches[:WARM_UP]]
    times = []
    for i in range(count):
        world.barrier()
        started = time.perf_counter()
        float(step(batches[i % len(batches)]))
        times.append(time.perf_counter() - started)
    return losses, times


def reductions(world, wait, reduce, make):
    """Return the median seconds of mean all-reduces, by bytes."""
    found = {}
    for nbytes in SIZES:
        x, times = make(nbytes // 4), []
        for _ in range(REPEATS if nbytes < SIZES[-1] else 3):
            world.barrier()
            started = time.perf_counter()
            reduce(x)
            wait()
            times.append(time.perf_counter() - started)
        found[nbytes] = statistics.median(times[1:])
    return found


def joined_torch(world, device):
    """Initialize PyTorch's process group with MPI's ranks."""
    if device == "cuda":
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = world.link.texts(str(free.getsockname()[1]))[0]
    where = f"tcp://127.0.0.1:{port}"
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, where, rank=world.rank, world_size=world.size)


def ways(world, with_mpi):
    """Return the ways to all-reduce: polyarr's default, shared memory if that is another, and MPI on request."""
    from mpi4py import MPI

    backend, host = pa.get_backend(), HostTransport(world.link)
    windows = backend._replace(collectives=backend.collectives and backend.collectives._replace(rendezvous=None))
    local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    through = over_devices(world.link, windows, lambda nbytes: shared_by(MPI, local, nbytes))
    found = {transport.name: transport for transport in (world.transport, through, *([host] if with_mpi else []))}
    return [replace(world, transport=transport) for transport in found.values()]


def recipe_of(options):
    """Return the preset changed by the options, without dropout, whose masks would differ."""
    recipe = PRESETS[options.preset]
    recipe = recipe.changed(dtype=options.dtype, precision=options.precision)
    return recipe.changed(model={**recipe.model, "drop_rate": 0.0})


def fresh(options, recipe):
    """Return a model with the same weights every time: steps overwrite donated ones."""
    pa.random.seed(0)
    return GPTModel(recipe.config(VOCABULARIES.get(options.preset, 65)))


def measure_steps(options, recipe, worlds, rows, found):
    """Measure the steps with so many windows per rank, one after the other, as a device may not have memory for all."""
    world, shape = worlds[0], (rows, recipe.model["context_length"] + 1)
    generator, vocabulary = np.random.default_rng(world.rank), VOCABULARIES.get(options.preset, 65)
    batches = [generator.integers(0, vocabulary, shape, dtype=np.int32) for _ in range(WARM_UP)]
    steps = {"polyarr": lambda: Alone(recipe, fresh(options, recipe))}
    if world.size > 1:
        steps = {
            f"polyarr, {w.transport.name}": lambda w=w: Collectives(recipe, fresh(options, recipe), w, options.wire)
            for w in worlds
        }
    if torch is not None:
        steps["PyTorch"] = lambda: torch_step(recipe, fresh(options, recipe), options.torch_device, world, options.wire)
    for name, make in steps.items():
        step = make()
        losses, times = timed(world, step, batches, options.steps)
        found["steps"][f"{name}/{rows}"] = {"losses": losses, "seconds": times}
        if type(step) is Collectives:
            for batch in batches * 2:
                step.in_parts(batch)
            found["parts"][name] = {part: statistics.median(t[1:]) for part, t in step.parts.items()}
        del step


def measure(options):
    """Measure on one rank; rank 0 writes the results."""
    world, recipe = pa.distributed.init(options.backend), recipe_of(options)
    size, count = options.batch_size or recipe.batch_size, fresh(options, recipe).num_parameters()
    found = {"parameters": count, "hardware": pa.get_backend().hardware, "steps": {}, "parts": {}, "means": {}}
    worlds = ways(world, options.mpi) if world.size > 1 else [world]
    if torch is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if world.size > 1:
            joined_torch(world, options.torch_device)
    for rows in (size, size * options.ranks) if world.size == 1 else (size,):
        measure_steps(options, recipe, worlds, rows, found)
    if world.size > 1:
        for w in worlds:
            found["means"][w.transport.name] = reductions(
                w, pa.synchronize, lambda x, w=w: w.mean([x], wire=options.wire), pa.zeros
            )
        if torch is not None:
            wait = torch.cuda.synchronize if options.torch_device == "cuda" else lambda: None
            make = lambda n: torch.zeros(n, device=options.torch_device)
            found["means"]["PyTorch"] = reductions(world, wait, torch.distributed.all_reduce, make)
            torch.distributed.destroy_process_group()
    if world.rank == 0:
        Path(options.measure).write_text(json.dumps(found))
    world.barrier()


# ---- all of it ----------------------------------------------------------------------------------------------------


def started(options, ranks, folder):
    """Return the measurements of `ranks` ranks."""
    path, threads = folder / f"{ranks}.json", str(max(1, options.threads // ranks))
    launcher = shutil.which("mpiexec") or str(Path(sys.executable).with_name("mpiexec"))
    environment = {**os.environ, "POCL_MAX_PTHREAD_COUNT": threads, "OMP_NUM_THREADS": threads}
    environment |= {"OPENBLAS_NUM_THREADS": threads}
    command = [launcher, "-n", str(ranks), sys.executable, __file__, *sys.argv[1:], "--measure", str(path)]
    subprocess.run(command, env=environment, check=True)
    return json.loads(path.read_text())


def seconds(found, key):
    return statistics.median(found["steps"][key]["seconds"])


def print_means(many):
    """Print latency and bandwidth of all-reduces."""
    print(f"\nmeans over ranks, ms{'':20}" + "".join(f"{nbytes / 1024:>11,.0f} KB" for nbytes in SIZES) + "     GB/s")
    for name, times in many["means"].items():
        nbytes, longest = max((int(n), t) for n, t in times.items())
        row = "".join(f"{1e3 * t:14.3f}" for t in times.values())
        print(f"{name[:40]:40}{row}{nbytes / longest / 1e9:9.2f}")


def print_steps(options, size, one, many):
    """Print the steps, and the work of all ranks in the time of one."""
    print(f"\n{'a step':44}  {'1 rank ms':>10}  {f'{options.ranks} ranks ms':>11}  {'weak':>6}  {'global':>6}")
    rows = {}
    for key in many["steps"]:
        name = key.rpartition("/")[0]
        who = name.partition(",")[0]
        alone, all_rows = (seconds(one, f"{who}/{rows_}") for rows_ in (size, size * options.ranks))
        together = seconds(many, key)
        ratios = options.ranks * alone / together, all_rows / together
        print(f"{name[:44]:44}  {1e3 * alone:10.1f}  {1e3 * together:11.1f}  {ratios[0]:6.2f}  {ratios[1]:6.2f}")
        rows[name] = {"1 rank": alone, f"{options.ranks} ranks": together}
    return rows


def print_forecast(options, one, many):
    """Print for each way the parts of its step, the fitted model, and its forecast for this and for more ranks."""
    each = 2 if options.wire else 4
    for name, parts in many["parts"].items():
        times = {int(n) // 4 * each: t for n, t in many["means"][name.partition(", ")[2]].items()}
        wire = cost.fitted(times, options.ranks)
        work = cost.Work(parts["gradient"], parts["update"], each * many["parameters"])
        step = cost.overlapped if name.endswith("all ranks see") else cost.by_ring
        expected = step(options.ranks, work, wire)
        measured = next(seconds(many, key) for key in many["steps"] if key.startswith(f"{name}/"))
        split = ", ".join(f"{part} {1e3 * t:.1f}" for part, t in parts.items())
        print(f"\n{name}: {split} ms; a wire of {1e6 * wire.latency:.0f} us and {wire.bandwidth / 1e9:.2f} GB/s")
        print(f"  a step by that {1e3 * expected:.1f} ms, measured {1e3 * measured:.1f} ({expected / measured:.2f})")
        print(f"  {'efficiency of ranks':28}" + "".join(f"{n:>8,}" for n in RANKS))
        for model, parameters in MODELS.items():
            other = cost.scaled(work, many["parameters"], parameters)
            for way in cost.WAYS:
                row = "".join(f"{cost.efficiency(way, n, other, wire):8.2f}" for n in RANKS)
                print(f"  {f'{model}, {way}':28}{row}")


def parsed():
    """Return the parsed options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--preset", default="demo", choices=list(PRESETS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of all ranks of a host, on CPUs")
    parser.add_argument("--torch-device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--precision", default="highest", choices=["highest", "high"])
    parser.add_argument("--wire", choices=["bfloat16"], help="the dtype of gradients on their way, if not theirs")
    parser.add_argument("--batch-size", type=int, help="windows a step of each rank, instead of the preset's")
    parser.add_argument("--mpi", action="store_true", help="also through MPI, as between hosts")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return report.parsed(parser)


def main():
    options = parsed()
    if options.measure:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        one, many = (started(options, ranks, Path(folder)) for ranks in (1, options.ranks))
    size = options.batch_size or PRESETS[options.preset].batch_size
    kind = f"{options.dtype}, {options.precision}, {options.wire or 'float32'} on the wire"
    print(f"{options.preset}: {one['parameters']:,} parameters, {size} windows each, {kind}; on {one['hardware']}")
    print_means(many)
    rows = print_steps(options, size, one, many)
    print_forecast(options, one, many)
    report.write(options, {"one": one, "many": many}, f"Steps of {options.preset}", "seconds", rows)


if __name__ == "__main__":
    main()
