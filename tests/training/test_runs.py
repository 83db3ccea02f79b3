"""Training runs: when they evaluate, save and stop, the files that they keep, and divergence."""

import dataclasses
import math
import os
from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.cli import train as cli
from polyarr.training import (
    DivergenceError,
    Recipe,
    divergence,
    load_checkpoint,
    loop,
    new_run,
    resumed_run,
    save_checkpoint,
    train,
)
from polyarr.training.checkpoint import NotFiniteError
from polyarr.training.files import checkpoints, kept_steps, newest, remove_left_overs
from polyarr.training.presets import to_toml
from polyarr.training.run import checkpoint_of, device, restart
from tests.training.killed_runs import SIZES, TEXT

RECIPE = Recipe(SIZES, batch_size=2, steps=6, lr=1e-2, min_lr=1e-3, warmup=0, eval_every=2, eval_windows=2)


@pytest.fixture(autouse=True)
def _numpy(on_numpy):
    pass


def quiet(line):
    """Ignore progress messages."""


def trained(folder, recipe=RECIPE, **settings):
    return train(new_run(TEXT, recipe, seed=1), folder, quiet, **settings)


def resumed(folder, name="last", **changes):
    saved = load_checkpoint(folder, name)
    return resumed_run(TEXT, saved, Recipe.from_dict(saved.info["recipe"]).changed(**changes))


def same(run, other):
    pairs = zip(pa.tree.leaves((run.model, run.state)), pa.tree.leaves((other.model, other.state)), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


@pytest.fixture
def saves(monkeypatch):
    """The step and the name of every checkpoint saved."""
    found = []

    def noted(folder, name, checkpoint):
        found.append((checkpoint.info["step"], name))
        save_checkpoint(folder, name, checkpoint)

    monkeypatch.setattr(loop, "save_checkpoint", noted)
    return found


# ---- when it evaluates and saves ------------------------------------------------------------------------------


def test_a_run_saves_between_its_evaluations(tmp_path, saves):
    run = trained(tmp_path, RECIPE.changed(eval_every=4, save_every=3))
    assert [step for step, name in saves if name == "last"] == [3, 4, 6]
    assert [row["step"] for row in run.history] == [4, 6]
    assert saves[:2] == [(3, "best"), (3, "last")]


def test_without_a_number_of_steps_only_the_last_is_evaluated(tmp_path, saves):
    assert [row["step"] for row in trained(tmp_path, RECIPE.changed(eval_every=None)).history] == [6]
    assert [step for step, _ in saves] == [6, 6]


@pytest.mark.parametrize(
    ("changes", "evaluated", "saved"),
    [
        ({"eval_minutes": 2}, [2, 4, 6], [2, 4, 6]),
        ({"save_minutes": 3}, [6], [3, 6]),
        ({"eval_minutes": 4, "save_minutes": 3}, [4, 6], [3, 4, 6]),
        ({"eval_minutes": 2, "eval_every": 3}, [2, 3, 5, 6], [2, 3, 5, 6]),
    ],
)
def test_minutes_count_from_the_last_time(tmp_path, monkeypatch, saves, changes, evaluated, saved):
    """With a clock in which a step takes a minute, and an evaluation ten, which are none of the run's seconds."""
    clock = [0.0]

    def slow(name, minutes):
        function = getattr(loop, name)

        def delayed(*args):
            clock[0] += 60 * minutes
            return function(*args)

        monkeypatch.setattr(loop, name, delayed)

    slow("_one_step", 1)
    slow("evaluation_loss", 10)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(loop.time, name, lambda: clock[0])
    run = trained(tmp_path, RECIPE.changed(**{"eval_every": None, **changes}))
    assert [row["step"] for row in run.history] == evaluated and run.seconds == 60 * run.step
    assert [step for step, name in saves if name == "last"] == saved
    assert same(run, trained(tmp_path))  # whenever it was read


# ---- what it keeps --------------------------------------------------------------------------------------------


def test_a_run_keeps_its_newest_checkpoints(tmp_path):
    trained(tmp_path, RECIPE.changed(eval_every=1, keep=3))
    assert checkpoints(tmp_path) == ["best", "last", "step-4", "step-5", "step-6"]
    assert (tmp_path / "last.safetensors").samefile(tmp_path / "step-6.safetensors")
    assert [load_checkpoint(tmp_path, f"step-{step}").info["step"] for step in (4, 5, 6)] == [4, 5, 6]
    train(resumed(tmp_path, steps=7, keep=1), tmp_path, quiet)
    assert checkpoints(tmp_path) == ["best", "last"]


def test_a_disk_without_second_names_has_copies(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    trained(tmp_path, RECIPE.changed(keep=2))
    assert checkpoints(tmp_path) == ["best", "last", "step-4", "step-6"]
    assert (tmp_path / "last.safetensors").read_bytes() == (tmp_path / "step-6.safetensors").read_bytes()
    assert len([*tmp_path.iterdir()]) == 6


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_run_goes_on_from_any_checkpoint_to_the_same_end(tmp_path, step):
    whole = trained(tmp_path, RECIPE.changed(keep=3))
    again = train(resumed(tmp_path, f"step-{step}"), tmp_path, quiet)
    assert same(again, whole)
    assert [row["val"] for row in again.history] == [row["val"] for row in whole.history]
    assert checkpoints(tmp_path) == ["best", "last", "step-2", "step-4", "step-6"]


def test_a_run_that_goes_back_leaves_nothing_of_what_came_after(tmp_path):
    trained(tmp_path, RECIPE.changed(keep=3))
    train(resumed(tmp_path, "step-2", steps=3, lr=1e-3), tmp_path, quiet)
    assert kept_steps(tmp_path) == [2, 3] and load_checkpoint(tmp_path, "last").info["step"] == 3


def test_another_run_leaves_nothing_of_the_one_before(tmp_path):
    trained(tmp_path, RECIPE.changed(keep=3))
    run = trained(tmp_path, RECIPE.changed(keep=2))
    assert checkpoints(tmp_path) == ["best", "last", "step-4", "step-6"]
    assert {load_checkpoint(tmp_path, name).info["run"] for name in checkpoints(tmp_path)} == {run.id}


def test_a_new_run_replaces_another_only_if_it_may(tmp_path):
    run = trained(tmp_path, RECIPE.changed(steps=2))
    before = (tmp_path / "last.safetensors").read_bytes()
    other = new_run(TEXT, RECIPE.changed(steps=2), seed=9)
    with pytest.raises(FileExistsError, match="it holds a run already; give another folder, or overwrite=True"):
        train(other, tmp_path, quiet=True, overwrite=False)
    assert not other.step and (tmp_path / "last.safetensors").read_bytes() == before
    assert train(resumed(tmp_path, steps=3), tmp_path, quiet=True, overwrite=False).id == run.id


def test_the_newest_is_found_by_its_step(tmp_path):
    trained(tmp_path, RECIPE.changed(steps=12, keep=3))
    for name, found in (("last", "step-12"), ("step-12", "step-10"), ("step-10", "step-8"), ("step-8", "best")):
        (tmp_path / f"{name}.safetensors").unlink()
        assert newest(tmp_path) == found
    for name in ("step-", "step-x", "step-07", "step-²"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    assert kept_steps(tmp_path) == []


def test_left_overs_of_kept_checkpoints_are_removed(tmp_path):
    (tmp_path / ".step-5.safetensors.12.tmp").write_bytes(b"half")
    remove_left_overs(tmp_path)
    assert not [*tmp_path.iterdir()]


# ---- when it ends ---------------------------------------------------------------------------------------------


@pytest.fixture
def losses(monkeypatch):
    """Make evaluations return these losses."""
    values = []
    monkeypatch.setattr(loop, "evaluation_loss", lambda *_: values.pop(0))
    return values


def test_a_run_ends_when_its_patience_does(tmp_path, losses):
    losses[:] = [3.0, 2.0, 2.0, 2.5, 1.0]
    run = trained(tmp_path, RECIPE.changed(steps=20, patience=2))
    assert run.step == 8 and run.is_stale and run.best == 2.0 and losses == [1.0]
    assert load_checkpoint(tmp_path, "best").info["step"] == 4
    assert load_checkpoint(tmp_path, "last").info["step"] == 8 and (tmp_path / "loss.png").exists()
    assert train(resumed(tmp_path), tmp_path, quiet).step == 8  # in every attempt
    losses[:] = [3.0, 3.0]
    assert train(resumed(tmp_path, patience=4), tmp_path, quiet).step == 12


def test_the_counter_of_patience_goes_on_with_the_run(tmp_path, losses):
    losses[:] = [2.0, 3.0]
    trained(tmp_path, RECIPE.changed(steps=4, patience=3))
    losses[:] = [4.0, 5.0, 1.0]
    assert train(resumed(tmp_path, steps=20), tmp_path, quiet).step == 8


def test_on_another_text_patience_begins_anew(tmp_path, losses):
    losses[:] = [2.0, 3.0, 3.0]
    trained(tmp_path, RECIPE.changed(patience=2))
    saved = load_checkpoint(tmp_path, "last")
    run = resumed_run(TEXT[::-1], saved, RECIPE.changed(patience=2, steps=20))
    losses[:] = [5.0, 5.0, 6.0]
    assert not run.is_stale and train(run, tmp_path, quiet).step == 12 and run.best == 5.0


# ---- how it diverges ------------------------------------------------------------------------------------------


DEEP = dataclasses.replace(RECIPE, model={**SIZES, "n_layers": 3, "tie_embeddings": False})


def spoil(monkeypatch, at, change):
    """Change a run before one of its steps, in every attempt, until divergence is detected."""
    windows = loop.Run.windows

    def spoilt(run, step):
        if step == at and run.step == at:
            change(run)
        return windows(run, step)

    monkeypatch.setattr(loop.Run, "windows", spoilt)
    monkeypatch.setattr(loop, "prefetched", lambda draw, first: _in_turn(draw, first))


class _in_turn:  # noqa: N801
    """Replace `prefetched`: each step's batch is drawn when it is requested."""

    def __init__(self, draw, first):
        self.draw, self.step = draw, first - 1

    def __enter__(self):
        def following():
            self.step += 1
            return self.draw(self.step)

        return following

    def __exit__(self, *_):
        pass


def weight(run, path, value):
    named = run.model.named_parameters()
    run.model = run.model.copy().load_parameters({**named, path: named[path] * 0 + value})


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("blocks.1.att.qkv.weight", math.inf, "the output of blocks.1.att.qkv of step 4"),
        ("blocks.2.norm1.weight", math.nan, "the output of blocks.2.norm1 of step 4"),
        ("out_head.weight", math.nan, "the head's logits or their loss of step 4"),
    ],
)
def test_a_diverged_run_names_the_layer_and_what_is_saved(tmp_path, monkeypatch, compiled, path, value, said):
    spoil(monkeypatch, 3, lambda run: weight(run, path, value))
    lines = []
    with pytest.raises(DivergenceError) as error:
        train(new_run(TEXT, DEEP, seed=1), tmp_path, lines.append, compiled=compiled)
    text = str(error.value)
    assert text.startswith("training diverged: the loss is ") and " at step 4; " in text and "\n" not in text
    assert f"the first nan or inf is in {said}; try a lower learning rate (--lr)" in text
    assert text.endswith(f"{tmp_path}/last.safetensors is from before, with 2 steps")
    assert lines[-1] == "training diverged; looking for the layer: steps 3 to 4 once more"
    assert load_checkpoint(tmp_path, "last").info["step"] == 2
    monkeypatch.undo()
    with pa.use_backend("numpy"):
        assert same(train(resumed(tmp_path), tmp_path, quiet), trained(tmp_path, DEEP))


def test_a_gradient_that_is_not_finite_is_named(tmp_path):
    """With a finite loss the weights are nan after that step. Nothing was saved yet; the run starts again."""
    recipe = RECIPE.changed(lr=1e3, clip=1e30, schedule="constant", eval_every=100, steps=100)
    recipe = dataclasses.replace(recipe, model={**SIZES, "emb_dim": 16, "context_length": 8, "drop_rate": 0.0})
    with pytest.raises(DivergenceError) as error:
        trained(tmp_path, recipe)
    assert "; nothing was saved before" in str(error.value) and "the first nan or inf is in the" in str(error.value)


def test_of_gradients_that_are_not_finite_the_nearest_to_the_loss_is_named(monkeypatch):
    run = new_run(TEXT, RECIPE, seed=1)
    grads = pa.tree.map(lambda p: p * math.nan, run.model)
    monkeypatch.setattr(divergence, "gradients", lambda *_: (None, grads))
    assert divergence._in_gradients(run, []) == "the gradient of final_norm.bias"


def test_a_run_starts_again_as_a_new_one(tmp_path):
    run, new = trained(tmp_path), new_run(TEXT, RECIPE, seed=1)
    restart(run)
    assert same(run, new) and (run.step, run.history, run.curve, run.seconds) == (0, [], [], 0.0)


def test_a_loss_scale_that_falls_below_one_stops_the_run(tmp_path, monkeypatch):
    spoil(monkeypatch, 3, lambda run: run.state["loss_scale"].update(scale=pa.asarray(0.5)))
    with pytest.raises(DivergenceError, match=r"overflow float16 by step 4; .*; try --dtype bfloat16, or a "):
        trained(tmp_path, RECIPE.changed(dtype="float16"))


def test_what_could_not_be_loaded_is_not_saved(tmp_path, monkeypatch):
    """A checkpoint between evaluations with weights spoilt by the last step, whose loss was finite."""
    trained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run = resumed(tmp_path)
    weight(run, "final_norm.weight", math.inf)
    with pytest.raises(NotFiniteError, match=r"^model.final_norm.weight holds nan or inf$"):
        save_checkpoint(tmp_path, "last", checkpoint_of(run, None))
    with pytest.raises(DivergenceError, match=r"model.final_norm.weight holds nan or inf after step 6$"):
        loop._save_as_it_is(run, tmp_path, None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_of_weights_from_elsewhere_is_not_drawn_again(tmp_path, monkeypatch):
    spoil(monkeypatch, 1, lambda run: weight(run, "final_norm.weight", math.nan))
    run = new_run(TEXT, RECIPE, seed=1)
    run.is_drawn = False
    with pytest.raises(DivergenceError, match=r"which layer was first could not be found; .* saved before$"):
        train(run, tmp_path, quiet)


# ---- the command ----------------------------------------------------------------------------------------------


def command(capsys, *args):
    """Run the command in this process; return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    return ended.value.code, *capsys.readouterr()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "mine.toml").write_text(to_toml(RECIPE.changed(keep=3)))
    return tmp_path


NEW = ("train", "--preset", "mine.toml", "--data", "a.txt", "--backend", "numpy", "--out", "run")
RESUME = ("train", "--resume", "--out", "run", "--backend", "numpy")


def test_the_command_goes_back_to_a_checkpoint(folder, capsys):
    assert command(capsys, *NEW)[0] == 0
    code, out, err = command(capsys, *RESUME, "--checkpoint", "step-2")
    assert code == 0 and "4 steps, each of" in out and "computed on" not in out, err
    code, _, err = command(capsys, *RESUME, "--checkpoint", "step-3")
    assert code == 1 and err.endswith("is missing; there is best, last, step-2, step-4, step-6)\n")
    code, _, err = command(capsys, *NEW, "--checkpoint", "best")
    assert code == 2 and "--checkpoint says what --resume goes on from; give that, too" in err


def test_the_command_says_so_on_another_backend_and_when_patience_ends(folder, capsys, monkeypatch, losses):
    losses[:] = [1.0, 2.0, 2.0]
    assert command(capsys, *NEW, "--steps", 2)[0] == 0
    assert load_checkpoint(Path("run")).info["device"] == device() and device().startswith("numpy (")
    monkeypatch.setattr(cli, "device", lambda world: "opencl:3 (a card)")
    code, out, err = command(capsys, *RESUME, "--set", "patience=1", "--steps", 20)
    assert code == 0, err
    line = f"step 2 was computed on {device()}, the next ones are on opencl:3 (a card): not the same bits as in one go"
    assert line in out.splitlines()
    assert "ended early: 1 evaluations in a row were no better than the best before them" in out


def test_the_command_says_that_a_run_diverged_in_one_line(folder, capsys):
    settings = ("--set", "lr=1e28", "--set", "min_lr=1e28", "--set", "save_every=1", "--set", "eval_every=none")
    code, _, err = command(capsys, *NEW, *settings)
    line = err.splitlines()[-1]
    assert code == 1 and line.startswith("polyarr: training diverged: ") and "the first nan or inf is in the" in line
    assert line.endswith(("run/last.safetensors is from before, with 1 steps", "nothing was saved before"))
