"""Recipes, batches, the training loop and checkpoints."""

import dataclasses
import math
import os
import re
import signal

import numpy as np
import pytest

import polyarr as pa
from polyarr.text import Corpus, open_prepared, prepare, train_bpe
from polyarr.training import (
    Recipe,
    evaluation_loss,
    interruption,
    load_checkpoint,
    loop,
    new_run,
    resumed_run,
    steps,
    train,
)
from polyarr.training.data import evaluation_windows, shuffled_windows
from polyarr.training.evaluation import Score
from polyarr.training.metrics import numbers, read_metrics
from polyarr.training.reporting import reporting
from polyarr.training.run import perplexity, speed
from polyarr.training.steps import gradients, step_of

STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
TEXT = "the quick brown fox jumps over the lazy dog; " * 30
RECIPE = Recipe(
    {
        "context_length": 8,
        "emb_dim": 16,
        "n_heads": 2,
        "n_layers": 1,
        "drop_rate": 0.1,
        "qkv_bias": False,
        "tie_embeddings": True,
    },
    batch_size=4,
    steps=20,
    lr=1e-2,
    min_lr=1e-3,
    warmup=2,
    eval_every=10,
    eval_windows=8,
)


@pytest.fixture(autouse=True)
def _numpy():
    with pa.use_backend("numpy"):
        yield


def quiet(line):
    """Ignore progress messages."""


def same(model, other):
    pairs = zip(pa.tree.leaves(model), pa.tree.leaves(other), strict=True)
    return all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)


def one_step(run):
    """Return one step of a run, and its loss."""
    return loop._one_step(run, step_of(run.recipe), run.windows(run.step))[0]


# ---- data ----------------------------------------------------------------------------------------------------


def test_evaluation_predicts_each_token_once():
    tokens = np.arange(50, dtype=np.int32)
    batches = list(evaluation_windows(tokens, 7, 3))
    assert [len(b) for b in batches] == [3, 3, 1]
    assert np.concatenate(batches)[:, 1:].ravel().tolist() == list(range(1, 50))
    some = np.concatenate(list(evaluation_windows(tokens, 7, 3, limit=4)))
    assert len(some) == 4 and some[0, 0] == 0 and some[-1, -1] == 49
    assert [b.shape for b in evaluation_windows(tokens[:5], 7, 3)] == [(1, 5)]


def test_evaluation_is_the_mean_over_all_tokens():
    run = new_run(TEXT, RECIPE, seed=1)
    whole = evaluation_loss(run.model, run.validation, 100)
    assert whole == pytest.approx(math.log(run.tokenizer.vocab_size), rel=0.05)
    assert evaluation_loss(run.model, run.validation, 3) == pytest.approx(whole, rel=1e-5)
    assert run.model.training


# ---- the loop ------------------------------------------------------------------------------------------------


def test_training_learns_and_is_repeatable(tmp_path):
    lines = []
    run = train(new_run(TEXT, RECIPE, seed=1), tmp_path, lines.append)
    assert [row["step"] for row in run.history] == [10, 20] and run.step == 20
    assert run.history[-1]["val"] < run.history[0]["val"] < math.log(28)
    assert "val loss " + f"{run.history[-1]['val']:.4f}" in lines[-1] and "perplexity" in lines[-1]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    again = train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    assert same(run.model, again.model) and not same(run.model, new_run(TEXT, RECIPE, seed=2).model)


def test_a_batch_that_cannot_fit_is_refused_before_anything_is_drawn(tmp_path):
    """Drawing its windows would take minutes."""
    corpus, recipe = Corpus.of_text(TEXT), dataclasses.replace(RECIPE, batch_size=10**9)
    with pa.use_backend(pa.get_backend()._replace(memory=lambda: {"limit": 10**9})):
        run = new_run(corpus, recipe, seed=0)
        text = "^the embeddings of a batch of 1,000,000,000 x 8 characters take 512,000,000,000 bytes; .* 1,000,000,000"
        with pytest.raises(pa.DeviceMemoryError, match=text):
            train(run, tmp_path, quiet)



def test_a_compiled_run_is_the_same_to_the_last_bit(tmp_path, backend):
    recipe = RECIPE.changed(steps=10, accumulation=2)
    runs = [train(new_run(TEXT, recipe, seed=1), tmp_path, quiet, compiled=c) for c in (True, False)]
    assert same(runs[0].model, runs[1].model)
    assert runs[0].curve == runs[1].curve
    assert runs[0].history[-1]["val"] == runs[1].history[-1]["val"]


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_a_run_that_recomputes_is_the_same_to_the_last_bit(tmp_path, backend, monkeypatch, family):
    """Including dropout; each block is called again for the gradient."""
    recipe = RECIPE.changed(steps=2, accumulation=2)
    if family == "llama":
        sizes = {"n_kv_heads": 1, "hidden_dim": 16, "head_size": 8, "tie_embeddings": True}
        shared = {name: recipe.model[name] for name in ("context_length", "emb_dim", "n_heads", "n_layers")}
        recipe = dataclasses.replace(recipe, model={"family": family, **shared, **sizes})
    kept = new_run(TEXT, recipe, seed=1)
    block, calls = type(kept.model.blocks[0]), []
    called = block.__call__
    monkeypatch.setattr(block, "__call__", lambda *args: calls.append(1) or called(*args))
    train(kept, tmp_path, quiet, compiled=False)
    plain = len(calls)
    for compiled in (False, True):
        calls.clear()
        run = train(new_run(TEXT, recipe.changed(recompute=True), seed=1), tmp_path, quiet, compiled=compiled)
        assert same(run.model, kept.model) and run.curve == kept.curve
        assert compiled or len(calls) == plain + 4


def test_a_run_creates_its_folder(tmp_path):
    folder = str(tmp_path / "runs" / "first")
    train(new_run(TEXT, RECIPE, seed=1), folder, quiet)
    assert load_checkpoint(folder, "last").state["step"] == RECIPE.steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path, dtype):
    recipe = RECIPE.changed(dtype=dtype, precision="high")
    whole = train(new_run(TEXT, recipe, seed=1), tmp_path, quiet)
    broken = new_run(TEXT, recipe, seed=1)
    for _ in range(10):
        one_step(broken)
    broken.seconds = 7.5
    with reporting(broken, tmp_path, quiet, quiet=True, tensorboard=False) as reports:
        loop._evaluate_and_save(broken, 1.0, tmp_path, reports)
    pa.random.seed(99)
    saved = load_checkpoint(tmp_path, "last")
    resumed = resumed_run(TEXT, saved, Recipe.from_dict(saved.info["recipe"]))
    assert resumed.step == 10 and resumed.best == broken.best and resumed.recipe == recipe and resumed.seconds == 7.5
    train(resumed, tmp_path, quiet)
    states = ({**run.state, "step": pa.asarray(run.step)} for run in (resumed, whole))
    assert same(resumed.model, whole.model) and same(*states)
    assert {p.dtype for p in pa.tree.leaves(resumed.model)} == {pa.float32}
    assert [row["step"] for row in resumed.history] == [10, 20] and resumed.curve[-1] == whole.curve[-1]


@pytest.mark.parametrize(("dtype", "parts"), [("float32", 1), ("bfloat16", 1), ("bfloat16", 2), ("float16", 1)])
def test_gradients_leave_in_the_dtype_of_the_wire(dtype, parts):
    """They are rounded as before sending; a single bfloat16 batch is not rounded at all."""
    recipe = RECIPE.changed(dtype=dtype, accumulation=parts)
    run = new_run(TEXT, recipe, seed=1)
    batches = [pa.asarray(part) for part in run.windows(0)]
    pa.random.seed(3)
    loss, wide = gradients(recipe, run.model, batches)
    pa.random.seed(3)
    loss_too, narrow = gradients(recipe, run.model, batches, wire="bfloat16")
    assert len(batches) == parts and same(loss, loss_too) and same(narrow, wide.astype("bfloat16"))
    assert {g.dtype for g in pa.tree.leaves(narrow)} == {pa.bfloat16}
    assert same(narrow.astype("float32"), wide) == (dtype == "bfloat16" and parts == 1)


def test_a_run_computes_as_its_recipe_says(tmp_path, monkeypatch):
    """In training and in evaluation; a run may be resumed in another dtype."""
    seen = set()

    def noted(model, windows, reduction="mean"):
        seen.add((reduction, model.out_head.weight.dtype.name, pa.get_matmul_precision()))
        return loss_of(model, windows, reduction)

    loss_of = steps.loss_of
    monkeypatch.setattr(steps, "loss_of", noted)
    recipe = RECIPE.changed(dtype="bfloat16", precision="medium", steps=1)
    recipe = dataclasses.replace(recipe, model={**recipe.model, "tie_embeddings": False})
    train(new_run(TEXT, recipe, seed=1), tmp_path, quiet)
    assert seen == {("mean", "bfloat16", "medium"), ("sum", "bfloat16", "medium")}
    for dtype, kept in (("float16", 2), ("bfloat16", 0)):
        further = recipe.changed(dtype=dtype, steps=further_steps(tmp_path))
        run = train(resumed_run(TEXT, load_checkpoint(tmp_path, "last"), further), tmp_path, quiet)
        assert len(run.state.get("loss_scale", ())) == kept and ("mean", dtype, "medium") in seen


def test_a_run_on_prepared_tokens_goes_on_exactly_with_its_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    prepare([tmp_path / "a.txt"], tmp_path / "data", train_bpe([TEXT], 270))
    corpus = open_prepared(tmp_path / "data")
    whole = train(new_run(corpus, RECIPE, seed=1), tmp_path, quiet)
    train(new_run(corpus, RECIPE.changed(steps=7, decay_steps=20), seed=1), tmp_path, quiet)
    saved = load_checkpoint(tmp_path, "last")
    resumed = train(resumed_run(open_prepared(tmp_path / "data"), saved, RECIPE), tmp_path, quiet)
    assert same(resumed.model, whole.model) and resumed.curve[-1] == whole.curve[-1]
    assert saved.tokenizer.decode(whole.validation).endswith("lazy dog; <|endoftext|>")
    with pytest.raises(ValueError, match="the corpus is of another tokenizer; it must be of the one that the run has"):
        resumed_run(Corpus.of_text(TEXT), saved, RECIPE)


def test_tokens_that_are_none_stop_a_run(tmp_path):
    corpus = Corpus.of_text(TEXT)
    damaged = dataclasses.replace(corpus, train=corpus.train + np.uint16(1))
    with pytest.raises(ValueError, match=r"^data is damaged: it has a token 28; prepare it again$"):
        train(new_run(damaged, RECIPE, seed=1, data="data"), tmp_path, quiet)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: os.truncate(path, 100), r"it ends at byte 100, and bytes [\d,]+ to [\d,]+ must be read"),
        (lambda path: path.write_bytes(b"\xff" * path.stat().st_size), r"it has a token 65535, and its tok"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "another program changed it while it was in use$"),
    ],
    ids=["cut", "overwritten with no tokens", "overwritten with tokens"],
)
def test_prepared_tokens_that_change_during_a_run_end_it_with_their_name(tmp_path, damage, told):
    """A truncated mapped file would crash the process, and a run on zeros would be saved."""
    (tmp_path / "a.txt").write_text(TEXT)
    prepare([tmp_path / "a.txt"], tmp_path / "data")
    run = new_run(open_prepared(tmp_path / "data"), RECIPE.changed(steps=4), seed=1)
    (path,) = (tmp_path / "data").glob("tokens-*.bin")
    assert np.isfinite(evaluation_loss(run.model, run.validation, 100))
    path.touch()  # equal tokens with another modification time are accepted
    run.check_unchanged()
    damage(path)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: {told}"):
        train(run, tmp_path, quiet)
    assert not (tmp_path / "last.safetensors").exists()
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: "):
        run.check_unchanged()


def further_steps(folder):
    return load_checkpoint(folder, "last").info["step"] + 1


def test_best_begins_anew_on_another_text(tmp_path):
    run = train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    saved = load_checkpoint(tmp_path, "last")
    assert resumed_run(TEXT, saved, RECIPE).best == run.best
    other = resumed_run(TEXT[::-1], saved, RECIPE.changed(steps=30))
    assert other.best == math.inf
    other.history[0]["val"] = 0.0  # on the first text
    train(other, tmp_path, quiet)
    again = resumed_run(TEXT[::-1], load_checkpoint(tmp_path, "last"), RECIPE)
    assert again.best == other.history[-1]["val"] > 0


def test_accumulation_equals_a_larger_batch():
    plain = dataclasses.replace(RECIPE, model={**RECIPE.model, "drop_rate": 0.0})
    runs = [new_run(TEXT, plain.changed(accumulation=n), 1) for n in (1, 2)]
    losses = [float(one_step(run)) for run in runs]
    first, second = (shuffled_windows(runs[1].tokens, 8, 4, 1, draw) for draw in (0, 1))
    model = new_run(TEXT, runs[0].recipe, 1).model
    expected = float(steps.loss_of(model, pa.asarray(np.concatenate([first, second]))))
    assert losses[1] == pytest.approx(expected, rel=1e-5) and losses[0] != losses[1]
    for run in runs:
        run.seconds = 2.0
    assert [speed(run) for run in runs] == [4 * 8 / 2, 2 * 4 * 8 / 2]  # tokens per second


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_burst_of_signals_saves_once(tmp_path, monkeypatch, number):
    """As a terminal and a supervisor send them: the first one counts, and none is dropped with a traceback."""
    step, other = loop._one_step, signal.SIGTERM if number == signal.SIGINT else signal.SIGINT

    def interrupted(run, *args):
        if run.step == 2:
            for one in (number, other, number):
                os.kill(os.getpid(), one)
        return step(run, *args)

    monkeypatch.setattr(interruption, "BURST_SECONDS", 1e9)
    monkeypatch.setattr(loop, "_one_step", interrupted)
    run = train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    assert run.stopped_by in (number, other) and run.step == 3
    assert same(load_checkpoint(tmp_path, "last").model, run.model)


@pytest.fixture
def hangup():
    """SIGHUP with its usual effect, which is none where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL) if hasattr(signal, "SIGHUP") else None
    yield
    if before is not None:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", STOPPING)
def test_interruption_saves_what_was_learned(tmp_path, monkeypatch, number):
    step, calls = loop._one_step, []

    def interrupted(run, *args):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), number)
        return step(run, *args)

    monkeypatch.setattr(loop, "_one_step", interrupted)
    before = [signal.getsignal(n) for n in STOPPING]
    run = train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    assert run.stopped_by == number and run.step == 5
    assert [signal.getsignal(n) for n in STOPPING] == before
    for name in ("best", "last"):
        assert same(load_checkpoint(tmp_path, name).model, run.model)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_terminal_may_go_at_any_time(tmp_path, monkeypatch, is_ignored):
    """Under nohup SIGHUP is ignored and stops nothing; else the first one stops and saves, later ones do nothing."""
    step = loop._one_step

    def gone(run, *args):
        if run.step == 2:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
        return step(run, *args)

    monkeypatch.setattr(interruption, "BURST_SECONDS", 0)
    monkeypatch.setattr(loop, "_one_step", gone)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        run = train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (run.step, run.stopped_by) == ((20, 0) if is_ignored else (3, signal.SIGHUP))
    assert same(load_checkpoint(tmp_path, "last").model, run.model)


def test_the_curve_has_the_steps_before_an_interruption(tmp_path, monkeypatch):
    recipe = RECIPE.changed(eval_every=100)
    whole = train(new_run(TEXT, recipe, seed=1), tmp_path / "whole", quiet)  # folders that do not exist
    step = loop._one_step

    def interrupted(run, *args):
        if run.step == 13:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(run, *args)

    monkeypatch.setattr(loop, "_one_step", interrupted)
    assert train(new_run(TEXT, recipe, seed=1), str(tmp_path / "broken"), quiet).step == 14
    saved = load_checkpoint(str(tmp_path / "broken"), "last")
    monkeypatch.setattr(loop, "_one_step", step)
    resumed = train(resumed_run(TEXT, saved, recipe), tmp_path / "broken", quiet)
    (_, before), (_, first), (_, second) = resumed.curve
    assert [row[0] for row in resumed.curve] == [10, 14, 20] and before == whole.curve[0][1]
    assert (4 * first + 6 * second) / 10 == pytest.approx(whole.curve[1][1], rel=1e-6)
    rows = numbers(read_metrics(tmp_path / "broken", resumed.id), "loss")
    assert rows == [(step, pytest.approx(loss)) for step, loss in resumed.curve]


@pytest.mark.skipif(os.name != "posix", reason="the system has no locks on folders")
def test_two_trainings_keep_out_of_each_others_folder(tmp_path):
    """The second one gets an error, and nothing is lost; the folder is free when the first one has ended."""
    told = []

    def start_another(line):
        with pytest.raises(OSError, match="another training writes here") as error:
            train(new_run(TEXT, RECIPE, seed=2), tmp_path, quiet)
        told.append(error.value.filename)

    first = train(new_run(TEXT, RECIPE, seed=1), tmp_path, start_another)
    assert told == [str(tmp_path)] * 2
    assert load_checkpoint(tmp_path, "last").info["run"] == first.id
    second = train(new_run(TEXT, RECIPE, seed=2), tmp_path, quiet)
    assert load_checkpoint(tmp_path, "last").info["run"] == second.id


@pytest.fixture
def interruptible():
    """Make Ctrl-C a KeyboardInterrupt even if the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_second_interruption_while_saving_leaves_what_was_saved_before(tmp_path, monkeypatch):
    train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    kept = [path for path in tmp_path.iterdir() if path.name != "metrics.jsonl"]  # a log of steps that may be lost
    before = [path.read_bytes() for path in kept]
    saved = load_checkpoint(tmp_path, "last")
    step, sync, calls = loop._one_step, os.fsync, []

    def interrupted(run, *args):
        os.kill(os.getpid(), signal.SIGINT)
        return step(run, *args)

    def again(number):
        calls.append(number)
        os.kill(os.getpid(), signal.SIGINT)
        sync(number)

    monkeypatch.setattr(interruption, "BURST_SECONDS", 0)
    monkeypatch.setattr(loop, "_one_step", interrupted)
    monkeypatch.setattr(os, "fsync", again)
    with pytest.raises(KeyboardInterrupt):
        train(resumed_run(TEXT, saved, RECIPE.changed(steps=30)), tmp_path, quiet)
    assert calls and [path.read_bytes() for path in kept] == before and len([*tmp_path.iterdir()]) == len(kept) + 1


def test_the_schedule_belongs_to_the_run(tmp_path):
    for folder in ("straight", "halves"):
        (tmp_path / folder).mkdir()
    straight = train(new_run(TEXT, RECIPE, seed=1), tmp_path / "straight", quiet)
    train(new_run(TEXT, RECIPE.changed(steps=7), seed=1), tmp_path / "halves", quiet)
    saved = load_checkpoint(tmp_path / "halves", "last")
    recipe = Recipe.from_dict(saved.info["recipe"])
    assert (saved.info["step"], recipe.steps, recipe.decay_steps) == (7, 7, 20)
    whole = train(resumed_run(TEXT, saved, recipe.changed(steps=20)), tmp_path / "halves", quiet)
    assert whole.recipe == straight.recipe and same(whole.model, straight.model)


def test_nothing_left_to_do_still_draws_the_curve(tmp_path):
    run = train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    (tmp_path / "loss.png").unlink()
    again = train(resumed_run(TEXT, load_checkpoint(tmp_path, "last"), RECIPE), tmp_path, quiet)
    assert same(again.model, run.model) and (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_best_checkpoint_that_was_lost_is_made_again(tmp_path):
    train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    (tmp_path / "best.safetensors").unlink()
    resumed = resumed_run(TEXT, load_checkpoint(tmp_path, "last"), RECIPE.changed(steps=21, lr=1e-30))
    train(resumed, tmp_path, quiet)
    assert load_checkpoint(tmp_path, "best").info["step"] == 21


def test_a_last_checkpoint_that_was_lost_is_made_again(tmp_path):
    """Even if no step is left: the run was killed after it saved the best model at its last step."""
    train(new_run(TEXT, RECIPE, seed=1), tmp_path, quiet)
    (tmp_path / "last.safetensors").unlink()
    saved = load_checkpoint(tmp_path, "best")
    train(resumed_run(TEXT, saved, RECIPE), tmp_path, quiet)
    assert saved.info["step"] == 20 and same(load_checkpoint(tmp_path, "last").model, saved.model)


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (1e3, math.inf), (3e38, math.inf)])
def test_perplexity_has_no_error(loss, expected):
    assert perplexity(loss) == expected


def test_the_perplexity_of_no_token_is_nan():
    assert math.isnan(Score("empty", 0, 0, 0.0).perplexity)


def test_a_step_reads_nothing():
    run = new_run(TEXT, RECIPE, seed=1)
    before = pa.transfers()
    one_step(run)
    after = pa.transfers()
    assert after.downloads == before.downloads and after.uploads == before.uploads + 1
