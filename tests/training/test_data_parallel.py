"""Data-parallel training with real mpiexec: results, refused settings, and how runs end."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import polyarr as pa
from polyarr.cli import main
from polyarr.cli.ranks import of_ranks
from polyarr.core.spec import Spec
from polyarr.distributed import World
from polyarr.distributed.link import Link
from polyarr.saving.tensor_file import Source, source_of
from polyarr.training import DivergenceError, Recipe, load_checkpoint, new_run, train
from polyarr.training.ranks import all_max, broadcast_content, check_equal_on_ranks, on_root, split_step
from tests.helpers.root import ROOT
from tests.training.data_parallel_runs import CASES, RECIPE, outcome

TEXT = "the quick brown fox jumps over the lazy dog;\n" * 60
SMALL = (
    *("--backend", "numpy", "--seed", "1", "--no-compile"),
    *("--set", "model.n_layers=1", "--set", "model.emb_dim=16", "--set", "model.context_length=8"),
)
ENDLESS = ("train", "--data", "a.txt", *SMALL, "--steps", "1000000", "--set", "eval_every=20")


@pytest.fixture(scope="module")
def mpiexec():
    """The launcher of the MPI installed next to Python."""
    pytest.importorskip("mpi4py")
    found = Path(sys.executable).with_name("mpiexec")
    if not found.exists():
        pytest.skip("no mpiexec beside Python; pip install 'polyarr[mpi]'")
    return found


@pytest.fixture
def start(mpiexec, tmp_path):
    """Return a function that starts `polyarr ...` on ranks in a folder with a text; several commands start as one."""
    (tmp_path / "a.txt").write_text(TEXT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYARR_")}
    started = []

    def started_as(*commands, of="-m polyarr"):
        words = [mpiexec]
        for count, *words_of_one in commands:
            words += [*[":"] * (len(words) > 1), "-n", count, sys.executable, *of.split(), *words_of_one]
        environment = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(list(map(str, words)), cwd=tmp_path, env=environment, **pipes))
        return started[-1]

    yield started_as
    for process in started:
        process.kill()
        process.wait()


def ended(process):
    """Return exit code, output and errors of a process that ends."""
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def ours(err):
    """Return polyarr's lines of standard error, without those of the launcher."""
    return [line for line in err.splitlines() if line.startswith("polyarr")]


def saved(folder):
    with pa.use_backend("numpy"):
        return load_checkpoint(folder, "last").info


# ---- what they compute -----------------------------------------------------------------------------------------------


def test_ranks_compute_what_one_process_does(start, tmp_path):
    """20 steps of three ranks equal those of one process with the same recipe; only rank 0 writes files."""
    (tmp_path / "alone").mkdir()
    every = {name: outcome(name, tmp_path / "alone" / name) for name in CASES}  # first: the ranks find compiled kernels
    code, out, err = ended(start((3, tmp_path), of=str(ROOT / "tests" / "training" / "data_parallel_runs.py")))
    assert code == 0, err
    found = {name: (rows, files) for name, rows, files in map(json.loads, out.splitlines())}
    assert found.keys() == CASES.keys()
    for name, (rows, files) in found.items():
        assert rows[1:] == rows[:1] * 2 and files == [], name  # losses, evaluations and the model's bits
        alone = every[name]
        close = 1e-3 if name in ("float16", "wire") else 2e-5
        assert [step for step, _ in rows[0]["curve"]] == [step for step, _ in alone["curve"]], name
        np.testing.assert_allclose(rows[0]["curve"], alone["curve"], rtol=close, err_msg=name)
        np.testing.assert_allclose(rows[0]["values"], alone["values"], rtol=close, err_msg=name)
    assert found["wire"][0][0]["digest"] != found["captured"][0][0]["digest"]
    assert found["again"] == found["plain"] and len(found["stale"][0][0]["curve"]) < 20


def test_a_run_goes_on_with_another_number_of_ranks(start, tmp_path):
    """Two ranks, then three, end where one process does; a message says that bits differ."""
    begin = ("train", "--data", "a.txt", *SMALL, "--set", "eval_every=2")
    code, out, err = ended(start((2, *begin, "--steps", 4, "--decay-steps", 8, "--out", "run")))
    assert code == 0 and err == "", err
    assert "4 steps, each of 12 windows of 8 characters" in out
    assert "2 ranks; numpy: ranks 0, 1, which share it; each has 6 of a step's windows; the learning rate is" in out
    code, out, err = ended(start((3, "train", "--resume", "--out", "run", "--backend", "numpy", "--steps", 8)))
    assert code == 0 and err == "" and out.count("saved in run") == 1, err
    assert "step 4 was computed on 2 x numpy (the host's CPU, NumPy), the next ones are on 3 x numpy" in out
    info = saved(tmp_path / "run")
    (tmp_path / "alone").mkdir()
    with pa.use_backend("numpy"):
        alone = train(new_run(TEXT, Recipe.from_dict(info["recipe"]), 1), tmp_path / "alone", quiet=True)
    assert [row["step"] for row in info["history"]] == [2, 4, 6, 8]
    losses = [[row["val"] for row in history] for history in (info["history"], alone.history)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["ranks"] for row in rows if "backend" in row] == [2, 3]


# ---- what they refuse ------------------------------------------------------------------------------------------------


def test_ranks_that_differ_are_refused(start, tmp_path):
    """One line each, before anything is written."""
    (tmp_path / "b.txt").write_text(TEXT[:-1] + "!")
    words = ("train", *SMALL, "--steps", "2", "--data")
    settings = start((1, *words, "a.txt"), (1, *words, "a.txt", "--lr", "1"))
    data = start((1, *words, "a.txt"), (1, *words, "b.txt"))
    assert ended(settings)[2].splitlines()[:1] == [
        "polyarr: the ranks differ: --lr is nothing on rank 0, 1.0 on rank 1; it must be the same on all"
    ]
    code, out, err = ended(data)
    assert code == 1 and out == "" and len(ours(err)) == 1
    assert re.match(r"polyarr: the ranks differ: the data's digest is \w{64} on rank 0, \w{64} on rank 1; it", err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_what_stops_one_rank_ends_all_with_its_name(start, tmp_path):
    words = ("train", *SMALL, "--steps", "2", "--data")
    one = start((1, *words, "a.txt"), (1, *words, "c.txt"))
    every = start((2, *words, "c.txt"))
    uneven = start((5, *words, "a.txt"))
    option = start((1, *words, "a.txt"), (1, *words, "a.txt", "--stepz", "3"))
    device = start((1, *words, "a.txt"), (1, *words, "a.txt", "--backend", "nowhere"))
    assert ours(ended(one)[2]) == ["polyarr: rank 1: c.txt: No such file or directory; all ranks end"]
    assert ours(ended(option)[2])[0].startswith("polyarr: rank 1: No such option '--stepz'.")  # not joined yet
    (line,) = ours(ended(device)[2])
    assert re.match(r"polyarr: rank 1 of \S+: no backend called 'nowhere'; installed: ", line)
    assert ended(every) == (1, "", "polyarr: c.txt: No such file or directory\n")
    code, _, err = ended(uneven)
    assert code == 1 and ours(err) == [
        "polyarr: a step is 1 x 12 windows, which 5 ranks cannot share equally; take 2, 3, 4, 6 or 12 of them, or "
        "another batch size (--set batch_size=...)"
    ]
    assert not (tmp_path / "runs").exists()


# ---- how they end ----------------------------------------------------------------------------------------------------


def until(condition):
    """Wait up to a minute for a condition."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def ranks(folder):
    """Return the process id of each rank that trains in a folder."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            match = re.search(rb"(?:PMI|OMPI_COMM_WORLD)_RANK=(\d+)", (path / "environ").read_bytes())
            if match and os.readlink(path / "cwd") == str(folder) and b"\0train\0" in (path / "cmdline").read_bytes():
                found[int(match[1])] = int(path.name)
        except OSError:  # a process that has ended or is not ours
            pass
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_once_and_ends_all(start, tmp_path, number):
    process = start((2, *ENDLESS, "--out", "run"))
    until((tmp_path / "run" / "last.safetensors").exists)
    process.send_signal(number)
    code, out, err = ended(process)
    assert code and out.count("stopped after") == 1 and ours(err) == [], err
    steps = int(re.search(r"stopped after (\d+) steps", out)[1])
    assert saved(tmp_path / "run")["step"] == steps and steps > 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir())[:2] == ["best.safetensors", "last.safetensors"]


def test_a_rank_that_is_killed_ends_all_and_the_checkpoint_is_whole(start, tmp_path):
    process = start((2, *ENDLESS, "--out", "run"))
    until((tmp_path / "run" / "last.safetensors").exists)
    os.kill(ranks(tmp_path)[1], signal.SIGKILL)
    _, _, err = ended(process)
    assert len(ours(err)) == 1 and re.match(r"polyarr: rank 1 \(process \d+ on .*\) died; all ranks end", ours(err)[0])
    assert saved(tmp_path / "run")["step"] % 20 == 0
    until(lambda: not ranks(tmp_path))


# ---- what ranks tell each other --------------------------------------------------------------------------------------


class Threads:
    """Ranks as threads that have a link to each other."""

    def __init__(self, size):
        self.size, self.rendezvous, self.lines = size, threading.Barrier(size), [None] * size

    def world(self, rank):
        return World(rank, self.size, rank, "numpy", ThreadLink(self, rank), None)

    def each(self, do):
        """Return do(world) of each rank, or raise its exception."""
        with ThreadPoolExecutor(self.size) as pool:
            found = [pool.submit(do, self.world(rank)) for rank in range(self.size)]
            return [one.exception() or one.result() for one in found]


class ThreadLink(Link):
    """A Link between threads instead of MPI processes."""

    def __init__(self, threads, rank):
        super().__init__()
        self.threads, self.rank = threads, rank

    def gather(self, line):
        self.threads.lines[self.rank] = line
        self.threads.rendezvous.wait(10)
        found = list(self.threads.lines)
        self.threads.rendezvous.wait(10)
        return found

    texts = gather

    def spread(self, memory, root):
        memory[:] = np.frombuffer(self.gather(memory.tobytes())[root], memory.dtype)


@pytest.mark.parametrize("size", [1, 3])
def test_one_does_it_and_all_know_how_it_went(size):
    """Errors have equal types and texts on all ranks; those that cannot be sent become RuntimeErrors."""
    ranks_, done = Threads(size), []
    assert ranks_.each(lambda w: on_root(w, lambda: done.append(w.rank) or "done")) == ["done", *[None] * (size - 1)]
    assert done == [0]
    full = OSError(28, "No space left on device", "run/last")
    assert {repr(e) for e in ranks_.each(lambda w: on_root(w, lambda: _raise(full)))} == {repr(full)}
    assert all(e.filename == "run/last" for e in ranks_.each(lambda w: on_root(w, lambda: _raise(full))))
    lost = [type(e).__name__ for e in ranks_.each(lambda w: on_root(w, lambda: _raise(DivergenceError("nan", 3))))]
    assert lost == ["DivergenceError", *["RuntimeError"] * (size - 1)]
    assert ranks_.each(lambda w: all_max(w, 3 * w.rank)) == [3 * (size - 1)] * size


def _raise(error):
    raise error


@pytest.mark.parametrize("size", [1, 3])
def test_what_the_first_reads_all_get(size):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    held = {"a": a.T, "b": np.float64(2.5)[None], "c": np.ones((0, 2)), "d": a.astype(pa.bfloat16)}
    content = {"step": 3}, {name: source_of(array) for name, array in held.items()}

    def received(world):
        info, arrays = broadcast_content(world, lambda: content)
        return info, {name: (source.spec, source.read()) for name, source in arrays.items()}

    for info, arrays in Threads(size).each(received):
        assert info == content[0] and arrays.keys() == held.keys()
        for name, (spec, a) in arrays.items():
            assert spec == content[1][name].spec and a.dtype == spec.dtype and np.array_equal(a, held[name]), name


def test_an_array_that_the_first_cannot_read_is_an_error_of_all():
    def gone():
        raise ValueError("it ends at byte 3")

    content = {"step": 3}, {"a": Source(Spec((2,), pa.float32), gone)}
    errors = Threads(3).each(lambda w: broadcast_content(w, lambda: content)[1]["a"].read())
    assert [str(error) for error in errors] == ["it ends at byte 3"] * 3


def test_what_differs_is_named_with_all_who_have_it():
    rows = [{"a": 1, **({"seed": seed} if seed else {})} for seed in (1, 2, 1, 1, None, None)]
    errors = Threads(6).each(lambda w: check_equal_on_ranks(w, lambda: rows[w.rank]))
    assert {str(e) for e in errors} == {
        "the ranks differ: seed is 1 on ranks 0, 2-3, 2 on rank 1, nothing on ranks 4-5; it must be the same on all"
    }
    assert Threads(6).each(lambda w: check_equal_on_ranks(w, lambda: rows[0])) == [None] * 6


@pytest.mark.parametrize(
    ("accumulation", "batch_size", "size", "share"),
    [(1, 12, 1, (1, 12)), (1, 12, 3, (1, 4)), (8, 4, 4, (2, 4)), (6, 2, 4, (3, 1)), (4, 3, 6, (2, 1))],
)
def test_batches_are_shared_before_what_is_in_them(accumulation, batch_size, size, share):
    recipe = dataclasses.replace(RECIPE, accumulation=accumulation, batch_size=batch_size)
    assert split_step(recipe, size) == share and share[0] * share[1] * size == accumulation * batch_size


@pytest.mark.parametrize(("accumulation", "size"), [(1, 1), (4, 3), (6, 4)])
def test_ranks_see_together_what_one_process_sees(accumulation, size):
    recipe = dataclasses.replace(RECIPE, accumulation=accumulation, batch_size=12)
    with pa.use_backend("numpy"):
        run = new_run(TEXT, recipe, 1)
        whole = np.concatenate(run.windows(5))
        parts = []
        for rank in range(size):
            run.world = World(rank, size, rank, "numpy", Link(), None)
            parts += run.windows(5)
    assert sorted(map(bytes, whole)) == sorted(map(bytes, np.concatenate(parts)))


# ---- other commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "rank", "warned"), [("3", "0", True), ("3", "1", False), ("1", "0", False)])
def test_a_command_that_shares_no_work_says_so_once(monkeypatch, size, rank, warned):
    monkeypatch.setenv("PMI_SIZE", size)
    monkeypatch.setenv("PMI_RANK", rank)
    found = CliRunner().invoke(main, ["ops", "--help"])
    line = "warning: each of 3 processes does all of ops by itself; leave out mpiexec\n"
    assert found.exit_code == 0 and found.stderr == line * warned


def test_doctor_shows_each_rank_and_what_differs():
    row = {"host": "a", "process": "7", "device": "numpy (x)", "polyarr": "1", "Python": "3.11", "numpy": "2.1"}
    found = of_ranks([row, {**row, "polyarr": "2", "numpy": "2.2"}, row])
    assert [line.level for line in found] == ["ok", "ok", "ok", "error", "ok", "warning"]
    assert found[1].text == "rank 1, process 7 on a, computes on numpy (x)"
    assert found[3].text == "polyarr 1 and 2 on the ranks"


def test_doctor_on_ranks(start):
    """One report for both ranks."""
    code, out, err = ended(start((2, "doctor")))
    assert code in (0, 1) and out.count("\nEnvironment\n") == 1, err
    assert re.search(r"ok +mpi4py [\d.]+ with \S", out)
    for rank in (0, 1):
        assert re.search(rf"ok +rank {rank}, process \d+ on \S+, computes on opencl", out)
