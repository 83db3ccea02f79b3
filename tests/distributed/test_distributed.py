"""polyarr.distributed with real MPI processes on NumPy and OpenCL, and failures of ranks."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr.distributed import World, witness
from polyarr.distributed.link import Link
from polyarr.distributed.watch import RankState, hung_rank
from tests.distributed import ranks

SCRIPT = Path(__file__).parent / "ranks.py"
ENDS_WITHIN = 60  # seconds: the ranks' PATIENCE, and a margin for a busy machine
PACKAGE = Path(pa.__file__).parents[1]


@pytest.fixture(scope="module")
def mpiexec() -> str:
    """The mpiexec next to this Python, or on the path."""
    pytest.importorskip("mpi4py", reason="pip install 'polyarr[mpi]'")
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ['PATH']}") or pytest.skip("no mpiexec")


def started(mpiexec: str, count: int, *what: str) -> subprocess.Popen:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "POLYARR_DEVICE"))}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OPENBLAS_NUM_THREADS": "1"}
    env |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PYTHONPATH": str(PACKAGE)}
    command = [mpiexec, "-n", str(count), sys.executable, str(SCRIPT), *what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.fixture(scope="module", params=[(2, "opencl"), (3, "numpy")], ids=["2 on opencl", "3 on numpy"])
def said(mpiexec: str, request: pytest.FixtureRequest) -> dict[str, list]:
    """Output of each rank's checks: two ranks with device reductions, and three with MPI's."""
    count, backend = request.param
    if backend == "opencl":  # compile kernels here once, not on each rank
        alone = World(0, 1, 0, "numpy", Link(), None)
        for check in (ranks.as_one_process, ranks.muon, ranks.dropout):
            check(alone)
    run = started(mpiexec, count, "right", backend)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    found = {name: each for name, each, _ in map(json.loads, out.splitlines())}
    assert {len(each) for each in found.values()} == {count}
    return found


def alike(each: list) -> object:
    """Return the output of all ranks, which must be equal."""
    assert all(one == each[0] for one in each)
    return each[0]


# ---- right -------------------------------------------------------------------------------------------------------


def test_trees(said: dict[str, list]) -> None:
    assert alike(said["trees"])["wrong"] == []


def test_numbers_and_broadcast(said: dict[str, list]) -> None:
    found, size = alike(said["numbers_and_broadcast"]), len(said["trees"])
    assert found["cast"] == {
        "n": 2,
        "x": 0.5,
        "a": [1.0] * 3,
        "big": 2**70 + 1,
        "inf": float("inf"),
        "name": "as it was",
    }
    total = [size * (size + 1) // 2, 0.25 * size * (size - 1)]
    assert found["reduced"] == {"sum": total, "mean": [t / size for t in total], "max": [size, 0.5 * (size - 1)]}
    assert found["gathered"] == [float(rank) for rank in range(size) for _ in range(2)]
    assert found["empty"] == [0, 2] and found["nans lost"] == []


def test_opencl_sums_through_memory_that_all_ranks_see(said: dict[str, list]) -> None:
    found = alike(said["windows"])
    assert found["name"] == "memory that all ranks see" and found["same"]
    assert found["late"] == [(len(said["windows"]) - 1) / 2] * 3


def test_a_rank_that_ends_without_reading_blocks_no_other(mpiexec: str) -> None:
    out, err = started(mpiexec, 3, "unseen", "opencl").communicate(timeout=ENDS_WITHIN)
    assert out.count("[6.0, 6.0, 6.0, 6.0]") == 1 and out.count("not seen") == 2 and "polyarr:" not in err


def test_arrays_of_other_devices(mpiexec: str) -> None:
    """A name without a device means the rank's own; arrays that only some ranks have there are refused by all."""
    out, err = started(mpiexec, 2, "elsewhere").communicate(timeout=ENDS_WITHIN)
    each = json.loads(out or err)
    assert [found.pop("device") for found in each] == ["toy:0", "toy:1"]
    found = alike(each)
    assert found.pop("transport") == "memory that all ranks see"
    right = {"sum": [3.0] * 3, "max": [2.0] * 3, "broadcast": [2.0] * 3, "gather": [1.0] * 3 + [2.0] * 3}
    assert found == {
        **{f"{name} on {where}": [value, True] for where in ("toy", "numpy") for name, value in right.items()},
        **{
            f"{name} on toy:0": f"{op}: rank 0 has float32[3] at x, rank 1 has float32[3] at x on a device of 'toy' "
            "that is not its own; all ranks must have the same"
            for name, op in zip(right, ("all_reduce", "all_reduce", "broadcast", "all_gather"), strict=True)
        },
    }


def test_shared_memory_is_freed_with_its_processes(said: dict[str, list]) -> None:
    assert alike(said["shared_memory"])["named"] == []


def test_refusals(said: dict[str, list]) -> None:
    """One line on all ranks if they differ; none hangs."""
    found, last = alike(said["refusals"]), len(said["trees"]) - 1
    same, array = "; all ranks must have the same", "float32[2, 3] at w"
    assert found == {
        "shape": f"ValueError: all_reduce: rank 0 has {array}, rank {last} has float32[3] at w{same}",
        "dtype": f"ValueError: all_reduce: rank 0 has {array}, rank {last} has bfloat16[2, 3] at w{same}",
        "name": f"ValueError: broadcast: rank 0 has {array}, rank {last} has float32[2, 3] at v{same}",
        "more": f"ValueError: all_reduce: rank 0 has nothing more, rank {last} has float at 1{same}",
        "op": "ValueError: distributed: rank 0 has all_reduce op='sum', wire=None, "
        f"rank {last} has all_reduce op='max', wire=None{same}",
        "call": f"ValueError: distributed: rank 0 has all_reduce op='mean', wire=None, rank {last} has barrier{same}",
        "agree": f"ValueError: the seed: rank 0 has 5, rank {last} has 7{same}",
        "leaf": "TypeError: all_reduce: note is 'text'; leaves must be arrays, ints and floats",
        "integers": "DtypeError: all_reduce: op is 'mean' of int32; it must be floating or complex, or op 'sum', 'max' "
        "or 'min'",
        "complex": "DtypeError: all_reduce: op is 'max' of complex64; it must be real-valued, or op 'mean' or 'sum'",
        "flags": "DtypeError: all_reduce: op is 'sum' of bool; it must be 'max', which is any, or 'min', which is all",
        "wrong op": "ValueError: all_reduce: op is 'product'; it must be one of mean, sum, max, min",
        "wire": "ValueError: all_reduce: wire is 'float8'; it must be None or 'bfloat16'",
        "surrogate": f"ValueError: broadcast: rank 0 has {array[:-1]}\\ud800, rank {last} has float32[2, 3] at v{same}",
        "no int": "TypeError: broadcast: root is 0.0; it must be an int",
        "root": f"ValueError: broadcast: root is {last + 1}; it must be from 0 to {last}",
        "captured": "CaptureError: all_reduce: it is called in a compiled function; call it between two of them",
        "differentiated": "GradientError: all_reduce: it is called in a function that is differentiated; give it the "
        "gradients",
        "threads": [
            f"RuntimeError: {name}: another thread of a rank is in a collective; call one at a time"
            for name in ("all_reduce", "broadcast", "all_gather", "barrier", "agree", "this one")
        ],
        "axes": "ShapeError: all_gather: a leaf has no axes; every leaf must be an array with one at least",
    }


def test_ranks_are_one_process_with_a_larger_batch(said: dict[str, list]) -> None:
    assert max(alike(said["gradients"])) < 2e-6
    for found in alike(said["as_one_process"]).values():
        assert found["losses"] < 2e-6 and found["model"] < 2e-5
        assert found["again"] and found["captured"]


def test_sharded_optimizers(said: dict[str, list]) -> None:
    found = alike(said["sharded"])
    kept, own, whole = found.pop("memory")
    assert kept == own and whole / len(said["trees"]) <= own < 1.05 * whole / len(said["trees"])
    for each in found.values():
        assert each["model"] < 1e-6 and each["state"] < 1e-6 and each["back"]


def test_muon_on_several_ranks_steps_as_one_process(said: dict[str, list]) -> None:
    """Small differences of the gradients may round to another bfloat16 in an iteration, so that bound is wider."""
    for name, found in alike(said["muon"]).items():
        assert found["model"] < (2e-5 if "float32" in name else 2e-4) and found["momentum"] < 2e-5, name


def test_dropout(said: dict[str, list]) -> None:
    assert alike(said["dropout"])["apart"] == 0


# ---- safe --------------------------------------------------------------------------------------------------------

BLAMED = {
    "kill": "rank 1 (process {1} on {host}) died; all ranks end",
    "_exit": "rank 1 (process {1} on {host}) died; all ranks end",
    "stop": "rank 1 (process {1} on {host}) has given no sign of life for ",
    "loop": "rank 1 (process {1} on {host}) has kept the others waiting for ",
    "exit": "rank 1 (process {1} on {host}) ended while others wait for it; all ranks end",
    "exception": "rank 1 (process {1} on {host}) failed: IndexError: list index out of range; all ranks end",
    "interrupt": None,  # the user knows the reason
}


def test_a_rank_that_dies_or_hangs_ends_all_and_is_named(mpiexec: str) -> None:
    """All faults run concurrently, as they mostly wait."""
    assert BLAMED.keys() == ranks.FAULTS.keys()
    with ExitStack() as ends:
        runs = {how: started(mpiexec, 2, "fault", how) for how in BLAMED}
        for run in runs.values():
            ends.enter_context(run)
            ends.callback(run.kill)
        for how, run in runs.items():
            out, err = run.communicate(timeout=ENDS_WITHIN)
            _check_end(how, run.returncode, out, err)


def _check_end(how: str, code: int, out: str, err: str) -> None:
    pids, host = {rank: int(pid) for rank, pid in re.findall(r"\[(\d), (\d+)\]", out)}, os.uname().nodename
    expected, lines = BLAMED[how], [line for line in err.splitlines() if line.startswith("polyarr: ")]
    assert sorted(pids) == ["0", "1"] and len(lines) == (expected is not None), (how, err)
    assert not lines or lines[0].startswith("polyarr: " + expected.format(0, pids["1"], host=host)), (how, err)
    assert code or how == "_exit", how  # the launcher's own exit code, if it noticed first
    assert not [pid for pid in pids.values() if _lives(pid)], how


def _lives(pid: int) -> bool:
    """Return whether a process still exists after a grace period."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def test_who_is_to_blame() -> None:
    def judged(now: float = 10.0, **other: object) -> object:
        return hung_rank([RankState(now, came=5), RankState(**{"when": now, "came": 5, **other})], now, patience=3)

    assert judged() is None
    assert judged(when=6.0) == (1, "has given no sign of life for 4 s")
    assert judged(came=4) is None and judged(came=4, behind=8.0) is None
    assert judged(came=4, behind=6.0) == (1, "has kept the others waiting for 4 s")
    assert judged(came=4, behind=6.0, state=Link.ALONE) is None
    assert judged(came=4, state=Link.ENDED) == (1, "ended while others wait for it")
    assert judged(came=5, behind=6.0) is None  # it came


def test_a_rank_that_arrives_is_not_late_any_more() -> None:
    heard = RankState(0.0, came=1)
    heard.compare(1.0, furthest=2)
    assert heard.behind == 1.0
    heard.hear(2.0, 2, Link.RUNNING)
    assert heard.behind is None


# ---- alone -------------------------------------------------------------------------------------------------------


def test_one_process_is_the_identity_and_loads_no_mpi() -> None:
    code = (
        "import sys, polyarr as pa; w = pa.distributed.init(); t = {'a': pa.ones(3), 'n': 2}; "
        "assert w.mean(t) is t and w.broadcast(t) is t and w.all_gather([t['a']])[0] is t['a']; w.barrier(); "
        "w.agree('x', 1); w.split_random(); assert pa.distributed.init() is w; "
        "print(w, repr(w), [m for m in sys.modules if 'mpi4py' in m])"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "POLYARR_"))}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=PACKAGE, check=True)
    assert run.stdout == "1 rank; numpy: rank 0 World(rank=0, size=1, local_rank=0, device='numpy') []\n"


def test_threads_of_one_process_may_be_in_collectives_at_once() -> None:
    world = World(0, 1, 0, "numpy", Link(), None)
    with world.link.turn("of this thread"), ThreadPoolExecutor(1) as pool:
        pool.submit(world.barrier).result()
        pool.submit(world.agree, "it", 1).result()


def test_deferred_collectives_are_completed_before_messages():
    class Comm:
        rank, size = 0, 2

        def __getattr__(self, name):
            return lambda *_: SimpleNamespace(Test=lambda: done.append(name) or True)

    link, done = Link(Comm()), []
    link.settle = lambda: done.append("settle")
    link.spread(np.zeros(1, np.uint8), 0)
    link.gather(b"a")
    assert done == ["settle", "Ibcast", "settle", "Iallgather"]


def test_bad_calls_are_refused_by_one_process_too() -> None:
    world = World(0, 1, 0, "numpy", Link(), None)
    for call, error in (
        (lambda: world.all_reduce([pa.ones(2)], "product"), ValueError),
        (lambda: world.mean([pa.ones(2, dtype="int32")]), pa.DtypeError),
        (lambda: world.mean(["text"]), TypeError),
        (lambda: world.broadcast([1], root=1), ValueError),
        (lambda: pa.compile(world.mean)([pa.ones(2)]), pa.CaptureError),
    ):
        with pytest.raises(error):
            call()


def test_an_mpiexec_of_another_mpi_is_reported(mpiexec: str) -> None:
    """Each process would consider itself the only one."""
    env = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "PYTHONPATH": str(PACKAGE)}
    code = "import polyarr; polyarr.distributed.init()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode and "mpiexec started 2 processes, and" in run.stderr.splitlines()[-1]


def test_who_shares_a_device() -> None:
    places = (("one", "opencl:0"), ("one", "opencl:1"), ("one", "opencl:0"), ("two", "opencl:0"))
    world = World(0, 4, 0, "opencl:0", Link(), None, places)
    assert str(world) == (
        "4 ranks; opencl:0 of one: ranks 0, 2, which share it; opencl:1 of one: rank 1; opencl:0 of two: rank 3"
    )


def test_the_witness_is_a_script_of_its_own() -> None:
    """It starts without polyarr and may import only the standard library."""
    run = subprocess.run([sys.executable, "-I", "-S", witness.__file__], capture_output=True, text=True)
    assert "IndexError" in run.stderr  # an error about its arguments: all imports worked
