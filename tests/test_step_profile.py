"""Profiles of training runs: the steps as they train, for the table, the trace and the report."""

import json
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import tree
from polyarr.training import Recipe, new_run, resumed_run, train
from polyarr.training import profiled as module
from polyarr.training.checkpoint import load_checkpoint
from polyarr.training.profiled import StepProfile
from polyarr.training.report import write_report

TEXT = "the quick brown fox jumps over the lazy dog; " * 12
SIZES = {"context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 2, "drop_rate": 0.1, "qkv_bias": False}
RECIPE = Recipe(SIZES, batch_size=2, steps=22, lr=1e-2, min_lr=1e-3, warmup=5, eval_every=12)
LAYER = "linear, blocks.*.att.qkv, layers.py:"


def weights(run):
    return [leaf.numpy() for leaf in tree.leaves((run.model, run.state)) if type(leaf) is pa.Array]


def trained(tmp_path):
    """Return (a run without a profile, one with it, what that printed, its folder)."""
    said, folder = [], tmp_path / "profiled"
    folder.mkdir()
    (tmp_path / "plain").mkdir()
    plain = train(new_run(TEXT, RECIPE, seed=1), tmp_path / "plain", quiet=True)
    trace = tmp_path / "trace.json"
    found = train(new_run(TEXT, RECIPE, seed=1), folder, echo=said.append, profile=trace, quiet=True)
    return plain, found, "\n".join(said), folder


def test_the_compiled_step_is_profiled_as_it_trains(backend, tmp_path):
    """The profile is in the run's report, too, until another run is in the folder."""
    plain, found, said, folder = trained(tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(weights(plain), weights(found), strict=True))
    assert plain.curve == found.curve and [row["val"] for row in plain.history] == [row["val"] for row in found.history]
    head, *rest = said.splitlines()
    assert head.startswith("steps 9 to 18 of this run, ") and head.endswith(" ms without the profile")
    assert rest[-1] == f"{folder.parent / 'trace.json'} is for ui.perfetto.dev"
    assert "summed_loss" not in said, "the evaluation after step 12 is no part of a step"
    assert LAYER in said or pa.linear not in backend.kernels
    if backend.observing is not None:
        assert "graded" not in said and next(line for line in rest if line.startswith("step ")).split()[1] == "10"
    spans = json.loads((folder.parent / "trace.json").read_text())["traceEvents"]
    modules = {span["args"]["module"] for span in spans if span.get("cat") == "device" and "module" in span["args"]}
    assert {"blocks.0.att.qkv", "blocks.1.att.qkv"} <= modules

    pytest.importorskip("jinja2")
    assert "steps 9 to 18 of this run" in write_report(folder).read_text()
    assert (folder / "profile.txt").read_text() in said
    saved = load_checkpoint(folder)
    train(resumed_run(TEXT, saved, RECIPE.changed(steps=23)), folder, quiet=True)
    assert (folder / "profile.txt").exists()
    train(new_run(TEXT, RECIPE.changed(steps=1), seed=1), folder, quiet=True)
    assert not (folder / "profile.txt").exists(), "it is of another run"
    assert "Profile" not in write_report(folder).read_text()


@pytest.mark.parametrize(("steps", "first"), [(0, 0), (1, 0), (3, 0), (4, 3), (8, 3), (9, 8), (1000, 8)])
def test_a_short_run_is_profiled_from_an_earlier_step_on(steps, first):
    assert StepProfile(steps).first == first


def test_the_time_without_a_profile_is_that_of_steps_alone(monkeypatch):
    """By a fake clock, on which the five steps take a second; with an evaluation among them it is unknown."""
    clock = count()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    with pa.use_backend("numpy"):
        for paused, plain in ((None, ", 200.0 ms without the profile"), (5, "")):
            profile = StepProfile(30)
            for step in range(20):
                profile.before_step()
                if step == paused:
                    profile.pause()
            assert profile.profiled == 10 and str(profile).splitlines()[0].endswith(f" ms each{plain}")
