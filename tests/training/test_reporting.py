"""Reports during training: metrics.jsonl, lines and progress bars, TensorBoard, and the amount of work."""

import importlib
import io
import json
import struct
import sys
import time

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import GPTModel, LlamaModel
from polyarr.models.gpt import GPT_CONFIG_124M, GPTConfig
from polyarr.models.llama import LlamaConfig
from polyarr.nn import shapes_only
from polyarr.training import Recipe, load_checkpoint, new_run, progress, read_metrics, resumed_run, train
from polyarr.training.flops import flops_per_token
from polyarr.training.metrics import MetricsFile, numbers
from polyarr.training.report import write_report
from polyarr.training.steps import gradients

TEXT = "the quick brown fox jumps over the lazy dog; " * 12
SIZES = {"context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0, "qkv_bias": False}
RECIPE = Recipe(
    {**SIZES, "tie_embeddings": True}, batch_size=2, steps=25, lr=1e-2, min_lr=1e-3, warmup=5, eval_every=15
)  # fmt: skip


def silent(line):
    """Ignore progress messages."""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run of 25 steps, and its folder."""
    folder = tmp_path_factory.mktemp("reported")
    with pa.use_backend("numpy"):
        return train(new_run(TEXT, RECIPE, seed=1), folder, silent), folder


def test_every_report_is_a_line(run_folder):
    run, folder = run_folder
    begun, *rows = read_metrics(folder)
    assert (begun["step"], begun["backend"]) == (0, "numpy") and begun["hardware"]
    assert [row["step"] for row in rows] == [10, 15, 15, 20, 25, 25]
    assert {row["run"] for row in rows} == {run.id} and read_metrics(folder, "another") == []
    assert numbers(rows, "loss") == run.curve
    assert numbers(rows, "val_loss") == [(row["step"], row["val"]) for row in run.history]
    rate = RECIPE.new_optimizer().learning_rate
    assert numbers(rows, "lr") == [(step, rate(step - 1)) for step in (10, 15, 20, 25)]
    assert all(row["tokens_per_second"] > 0 and row["tflops"] >= 0 and row["time"] > 1e9 for row in rows if "lr" in row)
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    rates = [rate for _, rate in numbers(rows, "tokens_per_second")]  # each of the steps since the row before
    seconds = sum(n * 2 * 4 / rate for n, rate in zip((10, 5, 5, 5), rates, strict=True))
    assert seconds == pytest.approx(run.seconds, 0.01)


def test_the_share_of_the_peak_is_of_the_peak_that_the_backend_knows(on_numpy, tmp_path):
    with pa.use_backend(on_numpy._replace(peaks=lambda: {"GFLOP/s": 2.0, "GB/s": 1.0})):
        train(new_run(TEXT, RECIPE.changed(steps=10), seed=1), tmp_path, silent)
    begun, row, _ = read_metrics(tmp_path)
    assert begun["peak_gflops"] == 2 and row["of_peak"] == pytest.approx(row["tflops"] / 0.002, rel=0.02, abs=1e-3)


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        ({"GFLOP/s in bfloat16": 8.0, "GFLOP/s in float32 at highest": 3.0}, 8),
        ({"GFLOP/s in bfloat16": 0.0}, None),
        ({"GFLOP/s in float32 at highest": 3.0}, None),
        ({"GFLOP/s": 2.0}, 2),
    ],
)
def test_the_peak_is_that_of_products_as_the_run_computes_them(on_numpy, tmp_path, peaks, expected):
    with pa.use_backend(on_numpy._replace(peaks=lambda: peaks)):
        train(new_run(TEXT, RECIPE.changed(steps=10, dtype="bfloat16"), seed=1), tmp_path, silent)
    begun, row, _ = read_metrics(tmp_path)
    assert begun.get("peak_gflops") == expected and ("of_peak" in row) == (expected is not None)
    assert ("of the device&#39;s peak" in write_report(tmp_path).read_text()) == (expected is not None)


@pytest.mark.parametrize("changes", [{}, {"clip": 1e-3}, {"lora": {"rank": 2}}, {"dtype": "float16"}])
def test_the_norm_is_the_gradients_before_they_are_clipped(on_numpy, tmp_path, changes):
    """The mean over the steps since the previous line, for the gradient of the unscaled loss."""
    run = new_run(TEXT, RECIPE.changed(steps=10, eval_every=1, **changes), seed=1)
    train(run, tmp_path, silent)
    norms = numbers(read_metrics(tmp_path), "grad_norm")
    assert [step for step, _ in norms] == list(range(1, 11)) and min(norm for _, norm in norms) > 0
    begun = new_run(TEXT, run.recipe, seed=1)
    parts = [pa.asarray(part) for part in begun.windows(0)]
    _, grads = gradients(run.recipe.changed(dtype="float32"), begun.model, parts)
    expected = np.sqrt(sum(np.sum(leaf.numpy().astype("float64") ** 2) for leaf in pa.tree.leaves(grads)))
    assert norms[0][1] == pytest.approx(expected, rel=2e-2 if "dtype" in changes else 1e-5)


def test_nothing_is_read_from_the_device_for_it(on_numpy, tmp_path, monkeypatch):
    """As many downloads as without reports: the losses and the checkpoints."""

    def reads(folder, is_reported):
        seen = []
        watched = on_numpy._replace(download=lambda buf: seen.append(1) or on_numpy.download(buf))
        with pa.use_backend(watched), monkeypatch.context() as patched:
            if not is_reported:
                patched.setattr("polyarr.training.reporting.Reports.steps", lambda *_: None)
            folder.mkdir()
            train(new_run(TEXT, RECIPE, seed=1), folder, silent)
        return len(seen)

    assert reads(tmp_path / "a", True) == reads(tmp_path / "b", False) > 0


@pytest.mark.parametrize("torn", [b'{"run": "', b"\0" * 100, b"[1]\n", b'{"run": 1, "step": 2}\n', b"\xff\n"])
def test_what_is_torn_is_no_line(tmp_path, torn):
    with MetricsFile(tmp_path, "a", 0) as file:
        file.write({"step": 10, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("ab") as raw:
        raw.write(torn)
    assert [row["step"] for row in read_metrics(tmp_path)] == [10]
    with MetricsFile(tmp_path, "a", 10) as file:
        file.write({"step": 20, "loss": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20]


def test_a_full_disk_is_one_line_with_the_files_name(tmp_path):
    said = r"No space left on device: '.*metrics.jsonl'"
    with pytest.raises(OSError, match=said), MetricsFile(tmp_path, "a", 0) as file:
        file._file.close()
        file._file = open("/dev/full", "wb")
        file.write({"step": 10})


def test_steps_that_come_again_are_there_once(tmp_path):
    with MetricsFile(tmp_path, "a", 0) as file:
        for step in (10, 20, 30):
            file.write({"step": step})
    with MetricsFile(tmp_path, "a", 20) as file:
        file.write({"step": 30, "loss": 2.0})
    assert [(row["step"], row.get("loss")) for row in read_metrics(tmp_path)] == [(10, None), (20, None), (30, 2.0)]


def test_the_lines_of_a_run_go_when_the_one_that_replaces_it_is_saved(tmp_path):
    with MetricsFile(tmp_path, "old", 0) as file:
        file.write({"step": 10})
    with MetricsFile(tmp_path, "new", 0) as file:
        file.write({"step": 10})
        assert [row["run"] for row in read_metrics(tmp_path)] == ["old", "new"]
        file.saved()
        file.write({"step": 20})
    assert [(row["run"], row["step"]) for row in read_metrics(tmp_path)] == [("new", 10), ("new", 20)]


def test_the_lines_of_a_run_that_was_to_replace_another_go_when_that_goes_on(tmp_path):
    for run in ("old", "new"):
        with MetricsFile(tmp_path, run, 0) as file:
            file.write({"step": 10})
    with MetricsFile(tmp_path, "old", 10):
        assert [row["run"] for row in read_metrics(tmp_path)] == ["old"]


def test_a_resumed_run_goes_on_with_its_lines(on_numpy, run_folder, tmp_path):
    _, whole = run_folder
    train(new_run(TEXT, RECIPE.changed(steps=15, decay_steps=25), seed=1), tmp_path, silent)
    saved = load_checkpoint(tmp_path, "last")
    train(resumed_run(TEXT, saved, RECIPE), tmp_path, silent)
    told = [[row for row in read_metrics(folder) if "backend" not in row] for folder in (whole, tmp_path)]
    first, second = ([[row.get(k) for k in ("step", "loss", "lr", "val_loss")] for row in rows] for rows in told)
    assert first == second and len(first) == 6


# ---- work ----------------------------------------------------------------------------------------------------------


def test_the_work_of_gpt2_is_what_palms_report_says():
    with shapes_only():
        model = GPTModel(GPTConfig.of({**GPT_CONFIG_124M, "tie_embeddings": True, "qkv_bias": True}))
    used = model.num_parameters() - 1024 * 768
    assert used == 123_653_376  # 124,439,808 in all, as GPT-2's
    assert flops_per_token(model) == 6 * used + 12 * 12 * 1024 * 768


def test_embeddings_that_are_looked_up_are_no_work_and_frozen_weights_are_less():
    with shapes_only():
        tied = GPTModel(GPTConfig(vocab_size=7, **SIZES, tie_embeddings=True))
        free = GPTModel(GPTConfig(vocab_size=7, **SIZES, tie_embeddings=False))
    assert flops_per_token(tied) == flops_per_token(free)
    frozen = tied.copy().freeze()
    attention = 12 * 1 * 4 * 8
    assert (flops_per_token(frozen) - attention) * 6 == (flops_per_token(tied) - attention) * 4


def test_heads_may_be_wider_than_the_model():
    with shapes_only():
        model = LlamaModel(LlamaConfig(
            vocab_size=7, context_length=4, emb_dim=8, n_heads=2, n_layers=3, n_kv_heads=1, hidden_dim=5, head_size=16
        ))  # fmt: skip
    lookups = 0 if model.out_head is None else 7 * 8
    assert flops_per_token(model) == 6 * (model.num_parameters() - lookups) + 12 * 3 * 4 * 2 * 16


def test_of_experts_the_chosen_ones_are_work():
    sizes = {**SIZES, "vocab_size": 7, "n_kv_heads": 1, "hidden_dim": 5, "head_size": 16, "tie_embeddings": True}
    del sizes["drop_rate"], sizes["qkv_bias"]
    with shapes_only():
        dense = LlamaModel(LlamaConfig(**sizes))
        mixed = LlamaModel(LlamaConfig(**sizes, n_experts=6, experts_per_token=2))
    layers, width = sizes["n_layers"], sizes["emb_dim"]
    one_more_and_routers = 6 * layers * (3 * 5 * width + 6 * width)
    assert flops_per_token(mixed) == flops_per_token(dense) + one_more_and_routers


# ---- what people see -----------------------------------------------------------------------------------------------

ROW = {"step": 50, "loss": 2.3456, "tokens_per_second": 12345.6, "tflops": 0.8123}


def test_a_file_has_plain_lines_now_and_then(capsys):
    now = iter([0, 5, 20, 21, 40])
    lines = progress.Lines(200, 0, lambda: next(now))
    for step in (10, 50, 60, 100):
        lines.show(ROW | {"step": step, "memory": 1_500_000_000, "memory_peak": 2e9})
    assert capsys.readouterr() == (
        "",
        "step    50/200  loss 2.346  12,346 tokens/s  0.812 TFLOP/s  1.5 GB (at most 2 GB)  0:01:00 left\n"
        "step   100/200  loss 2.346  12,346 tokens/s  0.812 TFLOP/s  1.5 GB (at most 2 GB)  0:00:40 left\n",
    )
    now = iter([0, 20])
    progress.Lines(200, 20, lambda: next(now)).show(ROW | {"step": 60})  # of a run that was resumed
    assert capsys.readouterr().err.endswith("  0:01:10 left\n")


def test_slow_work_is_reported_in_gflops():
    row = ROW | {"tflops": 0.0123, "of_peak": 0.456}
    assert progress.facts(row) == ["loss 2.346", "12,346 tokens/s", "12.3 GFLOP/s (46% of peak)"]
    assert progress.facts(row | {"of_peak": 0.0012})[-1] == "12.3 GFLOP/s (0.1% of peak)"


@pytest.mark.parametrize(
    ("is_terminal", "term", "kind"),
    [(True, "xterm", "Bar"), (True, "dumb", "Lines"), (False, "xterm", "Lines")],
)
def test_who_sees_what(monkeypatch, is_terminal, term, kind):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    shown = progress.progress_of(100, 40)
    assert type(shown).__name__ == kind
    shown.show(ROW)
    shown.close()
    assert ("\r" in stream.getvalue()) == (kind == "Bar")
    if kind == "Bar":
        assert "50/100" in stream.getvalue() and "loss 2.346, 12,346 tokens/s, 0.812 TFLOP/s" in stream.getvalue()
    else:
        assert stream.getvalue() == ""


def test_amounts_and_durations():
    sizes = [progress.format_bytes(n) for n in (0, 999, 1500, 2.5e9, 3e12)]
    assert sizes == ["0 B", "999 B", "1.5 kB", "2.5 GB", "3 TB"]
    assert [progress.format_seconds(s) for s in (0, 59.6, 3725)] == ["0:00:00", "0:01:00", "1:02:05"]


@pytest.fixture
def boarded(on_numpy, tmp_path, monkeypatch):
    """A run in two parts within one second that writes event files; and its folder."""
    pytest.importorskip("tensorboardX")
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    run = train(new_run(TEXT, RECIPE.changed(steps=15, decay_steps=25), seed=1), tmp_path, silent, tensorboard=True)
    return train(resumed_run(TEXT, load_checkpoint(tmp_path, "last"), RECIPE), tmp_path, silent, tensorboard=True), run


def test_event_files_hold_the_rows(boarded, tmp_path):
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    found, starts = [], []
    for path in sorted((tmp_path / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:  # a length, its checksum, an event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            starts += [event.step] * (event.session_log.status == 1)
            data = data[16 + length :]
    rows = read_metrics(tmp_path)
    for name in ("loss", "lr", "val_loss", "tokens_per_second"):
        np.testing.assert_allclose([f[1:] for f in found if f[0] == name], numbers(rows, name), rtol=1e-6)
    assert starts == [16]  # from there on, what another process wrote is not shown


def test_tensorboard_reads_event_files(boarded, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    rows = read_metrics(tmp_path)
    for name in ("loss", "lr", "val_loss", "tokens_per_second"):
        events = [(event.step, event.value) for event in found.Scalars(name)]
        np.testing.assert_allclose(events, numbers(rows, name), rtol=1e-6)
