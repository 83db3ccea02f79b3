"""Tiny training runs in child processes that are killed at a chosen file-system operation; one JSON line each.

    python killed_runs.py plain | overwrite | kept | full | random  FOLDER  [STRIDE or COUNT]

plain      every operation of a run in an empty folder
overwrite  every operation of a run that replaces another
kept       every STRIDE-th operation of a run that keeps several checkpoints, saves between evaluations and ends early
full       the run of "kept", not killed: the disk is full at that operation
random     COUNT kills (50) at moments drawn from a seed, of a run that saves by the clock (not in the tests)

It forks, so that polyarr is imported once. tests/training/test_kills.py checks what it prints.
"""

import builtins
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

import polyarr as pa
from polyarr.atomic import write_whole
from polyarr.training import Recipe, load_checkpoint, loop, new_run, resumed_run, train
from polyarr.training.files import CHECKPOINTS, checkpoints, newest

TEXT = "the quick brown fox jumps over the lazy dog; " * 12
OTHER = "PACK MY BOX WITH FIVE DOZEN LIQUOR JUGS. " * 12
SIZES = {
    "context_length": 4,
    "emb_dim": 8,
    "n_heads": 2,
    "n_layers": 1,
    "drop_rate": 0.1,
    "qkv_bias": False,
    "tie_embeddings": True,
}
TRAINING = {"batch_size": 2, "lr": 1e-2, "min_lr": 1e-3, "warmup": 0, "eval_windows": 2}
RECIPE = Recipe(SIZES, steps=2, eval_every=1, **TRAINING)
KEPT = Recipe(
    SIZES, steps=20, eval_every=2, save_every=1, keep=2, patience=1, schedule="linear", **{**TRAINING, "lr": 0.3}
)
LONG = Recipe(SIZES, steps=60, eval_every=2, save_minutes=2e-4, keep=3, patience=6, **{**TRAINING, "lr": 0.1})


def quiet(line):
    """Ignore progress messages."""


# ---- dying at a step -----------------------------------------------------------------------------------------


class Countdown:
    """Counter of file-system operations that runs an action at the n-th one: by default SIGKILL."""

    def __init__(self, steps, act=None):
        self.left, self.act = steps, act or self.kill

    def step(self, name):
        self.left -= 1
        if self.left == 0:
            self.act(name)

    def kill(self, name):
        os.write(3, name.encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner, name):
        function = getattr(owner, name)

        def counted(*args, **settings):
            self.step(f"before {name}")
            return function(*args, **settings)

        setattr(owner, name, counted)

    def install(self, names):
        def in_two(opened):
            def open_in_two(path, mode="r", *args, **settings):
                file = opened(path, mode, *args, **settings)
                return InTwo(file, self, at_once=settings.get("buffering") == 0) if mode[0] in "wa" else file

            return open_in_two

        Path.open, builtins.open = in_two(Path.open), in_two(open)
        for name in names:
            self.before(os, name)


def no_space(name):
    """Raise the system's error for a full disk."""
    os.write(3, f"{name}: ".encode())
    raise OSError(28, "No space left on device")


class InTwo:
    """A file that is written to disk in two halves when it is flushed (or at once), with an operation before each."""

    def __init__(self, file, countdown, at_once):
        self.file, self.countdown, self.at_once, self.held = file, countdown, at_once, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.flush()
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.held.append(data)
        if self.at_once:
            self.flush()

    def flush(self):
        if not self.held:
            return
        data, self.held = ("" if isinstance(self.held[0], str) else b"").join(self.held), []
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            self.countdown.step("before half a write")
            self.file.write(half)
            self.file.flush()


def forked(work, *args):
    """Run work in a child process; return how it ended and what it wrote to descriptor 3."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 3)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        code = 1
        try:
            work(*args)
            code = 0
        except BaseException as error:
            os.write(3, f"{type(error).__name__}: {error}".encode())
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


# ---- training ------------------------------------------------------------------------------------------------


def begin(folder, text, recipe, kill_at=0, is_full=False):
    names = ("fsync", "replace", "link")  # files can still be deleted on a full disk
    Countdown(kill_at, no_space if is_full else None).install(names if is_full else (*names, "unlink"))
    train(new_run(text, recipe, seed=1), folder, quiet, compiled=False)  # files do not depend on it


def go_on(folder, recipe):
    """Resume the run that exists; write which one, its weights and its losses."""
    saved = load_checkpoint(folder, newest(folder))
    text = OTHER if "Q" in saved.tokenizer.characters else TEXT
    train(resumed_run(text, saved, recipe), folder, quiet, compiled=False)
    os.write(3, json.dumps(ending(folder)).encode())


def ending(folder):
    """Return the files of a finished run except for times, its identity, and results that depend on the clock."""
    found, is_timed = {}, load_checkpoint(folder).info["recipe"]["save_minutes"] is not None
    for name in CHECKPOINTS if is_timed else checkpoints(folder):
        model, tokenizer, state, info = load_checkpoint(folder, name)
        leaves = np.concatenate([p.numpy().ravel() for p in pa.tree.leaves((model, state["m"], state["v"]))])
        rows = [[row["step"], row["val"], not is_timed and row["train"]] for row in info["history"]]
        found[name] = [tokenizer.characters, leaves.tobytes().hex(), rows, info["random_state"]]
    # Each step occurs once, and no line is torn.
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [row for row in lines if "backend" not in row]  # except for the first lines of each process
    if not is_timed:
        found["metrics"] = [[row["step"], row.get("loss"), row.get("lr"), row.get("val_loss")] for row in told]
    assert {row["run"] for row in lines} == {info["run"]}
    return [found, sorted(path.name for path in folder.iterdir() if not (is_timed and path.name.startswith("step-")))]


def one(folder, recipe, text, kill_at, replaced, is_full):
    """Return what became of one killed run."""
    shutil.rmtree(folder, ignore_errors=True)
    if replaced:
        shutil.copytree(replaced, folder)
    else:
        folder.mkdir()
    code, where = forked(begin, folder, text, recipe, kill_at, is_full)
    found = sorted(path.name for path in folder.iterdir())
    ended, said = forked(go_on, folder, recipe)
    return {
        "code": code,
        "where": where,
        "found": found,
        "ended": ended,
        "said": said if ended else "",
        "ending": None if ended else json.loads(said),
    }


def aimed(root, recipe, replaced=None, is_full=False, stride=1):
    """Kill runs at every operation (or every so many) until a run finishes."""
    for kill_at in range(1, 10_000, stride):
        row = one(root / "run", recipe, TEXT, kill_at, replaced, is_full)
        print(json.dumps(row), flush=True)
        if not row["where"]:
            return


def at_random(root, kills):
    draw = random.Random(1)
    (root / "timed").mkdir()
    started = time.perf_counter()
    forked(begin, root / "timed", TEXT, LONG)
    seconds = time.perf_counter() - started
    while kills:
        folder = root / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            begin(folder, TEXT, LONG)
            os._exit(0)
        while not list(folder.iterdir()):  # until it begins to save
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.8 * seconds))
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:  # it was quicker
            continue
        kills -= 1
        found = sorted(path.name for path in folder.iterdir())
        ended, said = forked(go_on, folder, LONG)
        result = {"ending": None, "said": said} if ended else {"ending": json.loads(said), "said": ""}
        print(json.dumps({"code": code, "where": "", "found": found, "ended": ended, **result}), flush=True)


def main(mode, folder, number=None):
    root = Path(folder)
    recipe = {"random": LONG, "kept": KEPT, "full": KEPT}.get(mode, RECIPE)
    # Drawing the curves each time would take two thirds of a run; only writing them into the folder is interrupted.
    loop.save_curves = lambda path, *curves: write_whole(path, b"a picture")
    with pa.use_backend("numpy"):
        for name, text in (("whole", TEXT), ("other", OTHER)):
            (root / name).mkdir()
            train(new_run(text, recipe, seed=1), root / name, quiet, compiled=False)
            print(json.dumps(ending(root / name)), flush=True)
        if mode == "random":
            at_random(root, int(number or 50))
        else:
            replaced = root / "other" if mode == "overwrite" else None
            aimed(root, recipe, replaced, mode == "full", int(number or 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
