"""Work of single MPI ranks; tests/distributed/test_distributed.py checks what they print.

mpiexec -n N python ranks.py right BACKEND   every check of this file; rank 0 prints a line of JSON for each
mpiexec -n N python ranks.py unseen BACKEND  rank 0 prints a sum, the others exit without reading it
mpiexec -n N python ranks.py elsewhere       rank 0 prints the results of collectives on arrays of other devices
mpiexec -n N python ranks.py fault HOW       rank 1 fails while the others wait: see FAULTS
"""

import hashlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import polyarr as pa
from polyarr import random, tree
from polyarr.core.backend import Collectives
from polyarr.distributed import Sharded, host
from polyarr.distributed.devices import over_devices, shared_by
from polyarr.distributed.host import HostTransport
from polyarr.distributed.start import NAMED
from polyarr.distributed.world import OPS
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.optim import SGD, AdamW, LossScale, Muon, warmup_cosine
from polyarr.plugins import hookimpl, register_plugin

PATIENCE = 2.0
BACKENDS = ("numpy", "opencl")
CHECKS: list[Callable] = []
CONFIG = {"vocab_size": 17, "context_length": 6, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "qkv_bias": False}
STEPS, FEW, BATCH = 8, 3, 2


def check(function):
    """Register a check: (world) -> values to be checked, on every rank."""
    CHECKS.append(function)
    return function


def bits(given):
    """Return a digest of all arrays and numbers of a tree."""
    leaves = [leaf.numpy() if type(leaf) is pa.Array else np.float64(leaf) for leaf in tree.leaves(given)]
    return hashlib.blake2b(b"".join(leaf.tobytes() for leaf in leaves), digest_size=8).hexdigest()


def values(seed, shape, dtype):
    """Return numbers of a dtype that bfloat16 does not hold exactly, apart from bools."""
    drawn = np.random.default_rng(seed).normal(size=shape) * 300
    return drawn > 0 if dtype == np.dtype("bool") else drawn.astype(dtype)


def error_of(call):
    """Return the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# ---- trees -------------------------------------------------------------------------------------------------------


@check
def trees(world):
    """Compare results of all ops, dtypes and wires with NumPy's, in rank order; small chunks split the leaves."""
    world.transport.chunk = 64
    wrong, said = [], []
    shapes = {"float32": (5, 7), "bfloat16": (3, 4), "float16": (9,), "float64": (2, 3), "int32": (4,), "bool": (5,)}
    shapes["complex64"] = (2, 2)
    for backend, op, wire in itertools.product(BACKENDS, OPS, (None, "bfloat16")):
        with pa.use_backend(backend):
            left_out = {"sum": ("bool",), "mean": ("bool", "int32")}.get(op, ("complex64",))
            names = [name for name in shapes if name not in left_out]
            hosts = [{n: values(r, shapes[n], pa.Spec((), n).dtype) for n in names} for r in range(world.size)]
            own = {name: pa.asarray(h) for name, h in hosts[world.rank].items()}
            given = own | {"empty": pa.zeros((0, 2)), "none": None}
            found = world.mean(given, wire) if op == "mean" else world.all_reduce(given, op, wire)
            said.append(bits(found))
            for name in names:
                expected, place = _together([h[name] for h in hosts], op, wire), (backend, op, wire, name)
                if found[name].dtype != expected.dtype or not np.array_equal(found[name].numpy(), expected):
                    wrong.append(place)
                if found[name].device != own[name].device:
                    wrong.append((*place, "device"))
    world.transport.chunk = host.CHUNK_BYTES
    return {"wrong": wrong, "bits": said}


def _together(parts, op, wire):
    """Return the result for all ranks' arrays of one dtype, computed with NumPy."""
    dtype = parts[0].dtype
    sent = pa.bfloat16 if wire and dtype == np.float32 else dtype
    wide = [p.astype(sent).astype(np.float32 if sent.itemsize == 2 else sent) for p in parts]
    total = wide[0]
    for p in wide[1:]:
        total = {"max": np.maximum, "min": np.minimum}.get(op, np.add)(total, p)
    return (total / np.float32(len(parts)) if op == "mean" else total).astype(sent).astype(dtype)


@check
def numbers_and_broadcast(world):
    """Check that Python numbers stay Python numbers, and that a broadcast returns root's values and leaves."""
    own = {"n": world.rank + 1, "x": 0.5 * world.rank, "a": pa.full((3,), float(world.rank))}
    cast = world.broadcast({**own, "big": 2**70 + world.rank, "inf": float("inf"), "name": "as it was"}, root=1)
    cast["a"] = cast["a"].numpy().tolist()
    reduced = {
        op: [v for v in tree.leaves(world.all_reduce({k: own[k] for k in "nx"}, op))] for op in ("sum", "mean", "max")
    }
    gathered = world.all_gather([pa.full((2, 2), float(world.rank))])[0].numpy()[:, 0].tolist()
    empty = world.all_gather(pa.zeros((0, 2))).shape
    at_last = float("nan") if world.rank == world.size - 1 else 1.0
    lost = [op for op in ("max", "min", "sum") if not np.isnan(world.all_reduce(at_last, op))]
    return {"cast": cast, "reduced": reduced, "gathered": gathered, "empty": empty, "nans lost": lost}


@check
def windows(world):
    """Check that OpenCL devices of one host sum through shared memory, in many slots, to the bits of MPI's sums."""
    from mpi4py import MPI

    local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    with pa.use_backend("opencl"):
        through = over_devices(world.link, pa.get_backend(), lambda _: shared_by(MPI, local, 8192))
        names = ("float32", "bfloat16", "float16", "float64")
        own = {name: pa.asarray(values(world.rank, (50, 77), np.dtype(pa.Spec((), name).dtype))) for name in names}
        found = [
            [bits(replace(world, transport=way).all_reduce(own, op, wire)) for op in OPS for wire in (None, "bfloat16")]
            for way in (through, HostTransport(world.link))
        ]
        late = replace(world, transport=through).mean(pa.full((3,), float(world.rank)))
        if world.rank == 0:
            late.numpy()  # the others have not asked for it yet, and reach the barrier later
        world.barrier()
    return {"name": through.name, "same": found[0] == found[1], "late": late.numpy().tolist(), "bits": found[0]}


@check
def shared_memory(world):
    """Check that shared memory has no name any more, so that nothing is left of it, however the processes end."""
    return {"named": NAMED.findall(Path("/proc/self/maps").read_text())}


@check
def refusals(world):
    """Check that errors are one line, equal on all ranks, and that ranks can go on afterwards."""
    a, last = pa.ones((2, 3)), world.size - 1
    calls = {
        "shape": lambda: world.mean({"w": a if world.rank < last else pa.ones((3,))}),
        "dtype": lambda: world.mean({"w": a if world.rank < last else a.astype("bfloat16")}),
        "name": lambda: world.broadcast({"w": a} if world.rank < last else {"v": a}),
        "more": lambda: world.mean([a] if world.rank < last else [a, 1.0]),
        "op": lambda: world.all_reduce([a], "sum" if world.rank < last else "max"),
        "call": lambda: world.mean([a]) if world.rank < last else world.barrier(),
        "agree": lambda: world.agree("the seed", 5 if world.rank < last else 7),
        "leaf": lambda: world.mean({"w": a, "note": "text"}),
        "integers": lambda: world.mean([pa.ones((2,), dtype="int32")]),
        "complex": lambda: world.all_reduce([pa.ones((2,), dtype="complex64")], "max"),
        "flags": lambda: world.all_reduce([pa.ones((2,), dtype="bool")], "sum"),
        "wrong op": lambda: world.all_reduce([a], "product"),
        "wire": lambda: world.mean([a], wire="float8"),
        "surrogate": lambda: world.broadcast({"\ud800": a} if world.rank < last else {"v": a}),
        "no int": lambda: world.broadcast([a], root=0.0),
        "root": lambda: world.broadcast([a], root=world.size),
        "captured": lambda: pa.compile(world.mean)([a]),
        "differentiated": lambda: pa.grad(lambda x: world.mean([x])[0].sum())(a),
        "axes": lambda: world.all_gather([pa.asarray(1.0)]),
    }
    found = {name: error_of(call) for name, call in calls.items()}
    found["threads"] = at_once(world)
    world.barrier()
    world.agree("the seed", 5)
    return found


def at_once(world):
    """Return the errors of collectives that another thread calls while this one is in a collective, and of that one."""
    a, errors = pa.ones((2, 3)), []
    calls = (world.mean, world.broadcast, world.all_gather, lambda a: world.barrier(), lambda a: world.agree("it", 1))

    def collective():
        with ThreadPoolExecutor(1) as pool, world.link.turn("this one"):
            errors.extend(pool.submit(error_of, partial(call, a)).result() for call in calls)

    errors.append(error_of(collective))
    return [error.replace(f"rank {world.rank}", "a rank") for error in errors]


# ---- training ----------------------------------------------------------------------------------------------------


def loss_fn(model, tokens):
    return pa.ops.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


def batches(size):
    drawn = np.random.default_rng(7).integers(0, CONFIG["vocab_size"], (STEPS, size, CONFIG["context_length"] + 1))
    return [[pa.asarray(part) for part in np.array_split(step, size // BATCH)] for step in drawn]


def new_model(drop_rate=0.0):
    random.seed(3)
    return GPTModel(GPTConfig(**CONFIG, drop_rate=drop_rate))


def trained(optimizer, size, world=None, steps=FEW, gradient=None, update=None):
    """Return losses, model and state after some steps: of one rank on the whole batch, or of all ranks on slices."""
    model = new_model()
    state = optimizer.init(model)
    gradient, update = gradient or pa.value_and_grad(loss_fn), update or optimizer.update
    losses = []
    for slices in batches(BATCH * size)[:steps]:
        if world is None:
            loss, grads = gradient(model, pa.concat(slices))
        else:
            loss, grads = world.mean(gradient(model, slices[world.rank]))
        model, state = update(grads, state, model)
        losses.append(loss)
    return [float(loss) for loss in losses], model, state


def apart(one, other):
    """Return the largest difference between two models, relative to the largest number."""
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


@check
def as_one_process(world):
    """Compare captured steps of N ranks with batch b to one process with batch N * b; also steps not captured."""
    found = {}
    for backend in BACKENDS[world.size > 2 :]:
        with pa.use_backend(backend):
            optimizer = AdamW(warmup_cosine(1e-2, 3, STEPS), clip=0.5)
            captured = pa.compile(pa.value_and_grad(loss_fn)), pa.compile(optimizer.update)
            alone, ranks, again = (trained(optimizer, world.size, w, STEPS, *captured) for w in (None, world, world))
            plain = trained(optimizer, world.size, world)
            found[backend] = {
                "losses": max(abs(a - b) for a, b in zip(alone[0], ranks[0], strict=True)),
                "model": apart(alone[1], ranks[1]),
                "again": bits(again[1]) == bits(ranks[1]),
                "captured": ranks[0][:FEW] == plain[0],
                "bits": bits(ranks[1]),
            }
    return found


@check
def muon(world):
    """Compare steps of Muon on N ranks with those of one process for the whole batch, in float32 and in bfloat16."""
    found = {}
    for backend in BACKENDS[world.size > 2 :]:
        for dtype in ("float32", "bfloat16"):
            with pa.use_backend(backend):
                optimizer = Muon(1e-2, clip=0.3, weight_decay=0.1, dtype=dtype)
                alone, ranks = (trained(optimizer, world.size, w) for w in (None, world))
                found[f"{backend} {dtype}"] = {
                    "model": apart(alone[1], ranks[1]),
                    "momentum": apart(alone[2]["m"], ranks[2]["m"]),
                    "bits": bits([ranks[1], ranks[2]["m"]]),
                }
    return found


@check
def gradients(world):
    """Compare the gradients of one step with those of one process for the whole batch."""
    found = []
    for backend in BACKENDS:
        with pa.use_backend(backend):
            slices, step = batches(BATCH * world.size)[0], pa.value_and_grad(loss_fn)
            whole = step(new_model(), pa.concat(slices))
            found.append(apart(whole, world.mean(step(new_model(), slices[world.rank]))))
    return found


@check
def sharded(world):
    """Check that optimizers with sharded state do the same as unsharded ones, with clipping, and can be gathered."""
    found = {}
    optimizers = {
        "adamw": ("opencl", AdamW(1e-2, clip=0.3, weight_decay=0.1)),
        "sgd": ("numpy", SGD(1e-1, momentum=0.9)),
        "scaled": ("numpy", AdamW(1e-2, clip=0.3, loss_scale=LossScale(first=1.0))),
    }
    for name, (backend, optimizer) in optimizers.items():
        with pa.use_backend(backend):
            whole = Sharded(world, optimizer)
            plain, divided = (trained(each, world.size, world) for each in (optimizer, whole))
            parts = whole.gathered(divided[2], divided[1])
            own = whole.divided(parts)
            found[name] = {
                "model": apart(plain[1], divided[1]),
                "state": apart({m: plain[2][m] for m in optimizer.moments}, {m: parts[m] for m in optimizer.moments}),
                "back": bits({m: own[m] for m in optimizer.moments})
                == bits({m: divided[2][m] for m in optimizer.moments}),
                "bits": bits(divided[1]),
            }
    model, adamw = new_model(), optimizers["adamw"][1]
    state = Sharded(world, adamw).init(model)
    kept = sum(a.size * a.dtype.itemsize for m in ("m", "v") for a in state[m].values())
    return found | {"memory": [kept, *Sharded(world, adamw).memory(model)]}


@check
def dropout(world):
    """Check that each rank draws the dropout masks of its slice of the batch."""
    model, step = new_model(0.5), pa.value_and_grad(loss_fn)
    slices = batches(BATCH * world.size)[0]
    random.seed(11 + world.rank)  # rank 0's counts
    world.split_random()
    own = [world.mean(step(model, slices[world.rank])) for _ in range(2)]
    random.seed(11)
    alone, states = [], [(11, r << 48) for r in range(world.size)]
    for _ in range(2):
        parts = []
        for r, part in enumerate(slices):
            random.set_state(states[r])
            parts.append(step(model, part))
            states[r] = random.get_state()
        alone.append(tree.map(lambda *leaves: sum(leaves[1:], leaves[0]) / len(leaves), *parts))
    return {"apart": apart(alone, own), "bits": bits(own)}


# ---- faults ------------------------------------------------------------------------------------------------------


def loop():
    while True:
        pass


FAULTS: dict[str, Callable] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exception": lambda: [][1],
    "_exit": lambda: os._exit(0),
    "exit": lambda: sys.exit(0),
    "loop": loop,
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
}


# ---- other devices -----------------------------------------------------------------------------------------------


class Toy:
    """NumPy as a backend with one device per rank, which reduces through shared memory."""

    @hookimpl
    def polyarr_backends(self, register):
        register("toy", self.start, api=2, shared=lambda number, count: str(number))

    @staticmethod
    def start(device="0"):
        together = Collectives(shared_memory=lambda pieces, rank, wait: partial(Toy.reduce, pieces, rank, wait))
        return pa.get_backend("numpy")._replace(name=f"toy:{device}", collectives=together, dlpack=None)

    @staticmethod
    def reduce(pieces, rank, wait, bufs, wire, op):
        found = []
        for buf in bufs:
            own = pieces[rank][: buf.nbytes]
            own[:] = np.ascontiguousarray(buf).reshape(-1).view(np.uint8)
            wait()
            total = sum(piece[: buf.nbytes].view(buf.dtype).reshape(buf.shape) for piece in pieces)
            wait()
            found.append((total / len(pieces) if op == "mean" else total).astype(buf.dtype))
        return found


def elsewhere(world):
    """Run every collective with arrays on this rank's device, on that of rank 0, and on no rank's."""
    calls = {
        "sum": lambda x: world.all_reduce({"x": x}, "sum")["x"],
        "max": lambda x: world.all_reduce({"x": x}, "max")["x"],
        "broadcast": lambda x: world.broadcast({"x": x}, root=1)["x"],
        "gather": lambda x: world.all_gather({"x": x})["x"],
    }
    found = {"transport": world.transport.name, "device": world.device}
    for where in ("toy", "toy:0", "numpy"):
        with pa.use_backend(where):
            x = pa.full((3,), 1.0 + world.rank)
        for name, call in calls.items():
            try:
                y = call(x)
                found[f"{name} on {where}"] = [y.tolist(), y.device == x.device]
            except ValueError as error:
                found[f"{name} on {where}"] = str(error)
    return found


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "elsewhere":
        register_plugin(Toy())
        world = pa.distributed.init("toy")
        said = world.link.texts(json.dumps(elsewhere(world)))
        if world.rank == 0:
            print(json.dumps([json.loads(text) for text in said]), flush=True)
        return
    # Drivers of two devices take different times to compile, long ones on a busy machine.
    settings = {"patience": PATIENCE} if what == "fault" else {"backend": rest[0], "patience": 200.0}
    world = pa.distributed.init(**settings)
    if what == "fault":
        print(json.dumps([world.rank, os.getpid()]), flush=True)
        world.barrier()
        if world.rank == 1:
            FAULTS[rest[0]]()
        world.barrier()
        return
    if what == "unseen":
        total = world.all_reduce(pa.full((4,), 1.0 + world.rank), "sum")
        print(total.numpy().tolist() if world.rank == 0 else "not seen", flush=True)
        return
    for each in CHECKS:
        began = time.monotonic()
        said = world.link.texts(json.dumps(each(world)))
        if world.rank == 0:
            print(
                json.dumps([each.__name__, [json.loads(text) for text in said], time.monotonic() - began]), flush=True
            )


if __name__ == "__main__":
    main()
