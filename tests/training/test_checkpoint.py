"""Checkpoints: round trips, crashes while one is written, and errors in one line."""

import copy
import json
import math
import os
import random
import shutil

import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open

import polyarr as pa
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.text import byte_tokenizer
from polyarr.training import CheckpointError, Recipe, load_checkpoint, new_run, resumed_run, train
from polyarr.training import checkpoint as checkpoints
from polyarr.training.checkpoint import Checkpoint, save_checkpoint
from polyarr.training.files import newest
from polyarr.training.run import checkpoint_of
from tests.training.killed_runs import OTHER, SIZES, TEXT

RECIPE = Recipe(SIZES, batch_size=2, steps=2, lr=1e-2, min_lr=1e-3, warmup=0, eval_every=1, eval_windows=2)


def quiet(line):
    """Ignore progress messages."""


@pytest.fixture(scope="module", autouse=True)
def _numpy():
    with pa.use_backend("numpy"):
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two folders with a run each, and the first run."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    run = train(new_run(TEXT, RECIPE, seed=1, preset="p"), folders[0], quiet)
    train(new_run(OTHER, RECIPE, seed=2), folders[1], quiet)
    return *folders, run


@pytest.fixture
def folder(runs, tmp_path):
    """A folder with a run."""
    shutil.copytree(runs[0], tmp_path / "run")
    return tmp_path / "run"


def parts(path):
    """Return the metadata, info and arrays of a checkpoint."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        return metadata, json.loads(metadata["info"]), {name: file.get_tensor(name) for name in file.keys()}


def write(path, info, arrays, **metadata):
    """Write a checkpoint with any content and a valid checksum."""
    text = info if isinstance(info, str) else json.dumps(info)
    metadata = {"format": "2", "info": text, "checksum": checkpoints._checksum(text, arrays), **metadata}
    path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))


def refused(path):
    """Return the one-line error of loading a damaged checkpoint; None if it loads."""
    try:
        load_checkpoint(path.parent, path.stem)
    except CheckpointError as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error) and len(str(error)) < 1000
        return str(error)
    return None


# ---- what comes back -----------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_by_bit(runs):
    folder, _, run = runs
    found = load_checkpoint(folder, "last")
    assert found.model.config == run.model.config and found.tokenizer.characters == run.tokenizer.characters
    assert found.state["step"] == 2 and found.state.keys() == run.state.keys()
    pairs = ((found.model, run.model), *((found.state[moment], run.state[moment]) for moment in ("m", "v")))
    for ours, theirs in pairs:
        ours, theirs = dict(pa.tree.items(ours)), dict(pa.tree.items(theirs))
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name].numpy(), theirs[name].numpy()) for name in ours)
    info = found.info
    assert (info["step"], info["seed"], info["preset"], info["run"]) == (2, 1, "p", run.id)
    assert (info["history"], info["curve"]) == (run.history, run.curve)
    assert info["val_loss"] == run.history[-1]["val"] and "polyarr" in info["versions"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors", "last.safetensors", "loss.png", "metrics.jsonl",
    ]  # fmt: skip


def test_a_checkpoint_before_the_first_evaluation_comes_back(tmp_path):
    run = new_run(TEXT, RECIPE, seed=1)
    save_checkpoint(tmp_path, "last", checkpoint_of(run, None))
    found = load_checkpoint(tmp_path, "last")
    assert (found.info["history"], found.info["curve"], found.info["val_loss"]) == ([], [], None)


def test_a_model_of_16_bits_stays_so_unless_asked_and_is_trained_in_float32(folder):
    path = folder / "last.safetensors"
    _, info, arrays = parts(path)
    narrow = {name: a.astype(pa.bfloat16 if name.startswith("model.") else a.dtype) for name, a in arrays.items()}
    write(path, info, narrow)
    for asked, due in ((None, "bfloat16"), ("float32", "float32"), ("float16", "float16")):
        found = load_checkpoint(folder, "last", dtype=asked)
        for name, leaf in found.model.named_parameters().items():
            assert leaf.dtype.name == due
            assert np.array_equal(leaf.numpy(), narrow[f"model.{name}"].astype(leaf.dtype))
        assert {leaf.dtype.name for leaf in pa.tree.leaves(found.state["m"])} == {"float32"}
        resumed = resumed_run(TEXT, found, RECIPE)
        assert {leaf.dtype.name for leaf in resumed.model.named_parameters().values()} == {"float32"}


def with_bytes(**changes):
    """Return a checkpoint whose tokenizer is one of the library tokenizers."""
    tokenizer = byte_tokenizer()
    model = GPTModel(RECIPE.config(tokenizer.vocab_size))
    info = {**checkpoint_of(new_run(TEXT, RECIPE, seed=1), None).info, **changes}
    return Checkpoint(model, tokenizer, RECIPE.new_optimizer().init(model), info)


def test_a_checkpoint_holds_any_tokenizer(tmp_path):
    saved = with_bytes()
    save_checkpoint(tmp_path, "last", saved)
    found = load_checkpoint(tmp_path, "last")
    assert found.tokenizer.to_dict() == saved.tokenizer.to_dict()
    path = tmp_path / "last.safetensors"
    _, info, arrays = parts(path)
    for at in places(info["tokenizer"], ("tokenizer",)):
        for value in VALUES:
            if (new := changed(info, at, value)) != info:
                write(path, new, arrays)
                assert refused(path) or (at[-1] == "end" and value in ("x", None)), (at, value)  # a token, or none


def test_a_tokenizer_that_is_too_large_to_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MAX_INFO", 1000)
    with pytest.raises(ValueError, match=r"^a checkpoint would hold [\d,]+ bytes of JSON, .*; 1,000 fit$"):
        save_checkpoint(tmp_path, "last", with_bytes())
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_read_is_not_written(tmp_path):
    run = new_run(TEXT, RECIPE, seed=1, preset="two words")
    with pytest.raises(ValueError, match=r'^preset: "two words" was given; it must be of the form '):
        train(run, tmp_path, quiet)
    assert run.step == 0 and not list(tmp_path.iterdir())


def test_the_larger_config_that_a_gpt_refuses():
    with pytest.raises(ValueError, match="n_layers is 1000000; it must be at most 10,000"):
        GPTConfig.of({**SIZES, "vocab_size": 5, "n_layers": 10**6})
    with pytest.raises(ValueError, match="vocab_size is 2147483648; it must be at most 2,147,483,647"):
        GPTConfig.of({**SIZES, "vocab_size": 2**31})


# ---- writing -------------------------------------------------------------------------------------------------


def test_a_full_disk_names_the_file_and_leaves_the_old_checkpoint(runs, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(folder, "last", checkpoint_of(runs[2], 1.0))
    assert caught.value.filename == str(folder / "last.safetensors") and caught.value.errno == 28
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_missing_checkpoint_names_the_file(folder):
    (folder / "last.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 'last' here \(last.\w+ is missing; there is best\)"):
        load_checkpoint(folder, "last")
    assert newest(folder) == "best"
    (folder / "best.safetensors").unlink()
    assert newest(folder) == "last"
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_checkpoint(folder / "none")


def test_a_pipe_is_no_checkpoint(folder):
    (folder / "last.safetensors").unlink()
    os.mkfifo(folder / "last.safetensors")
    with pytest.raises(FileNotFoundError, match="no checkpoint 'last' here"):
        load_checkpoint(folder, "last")


# ---- two runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["best", "last"])
def test_parts_of_two_runs_are_refused(runs, folder, name):
    shutil.copy(runs[1] / f"{name}.safetensors", folder)
    for asked in ("best", "last"):
        with pytest.raises(CheckpointError, match="belong to two runs; remove the one that is not wanted"):
            load_checkpoint(folder, asked)


def test_a_damaged_neighbour_does_not_matter(folder):
    path = folder / "best.safetensors"
    metadata, info, arrays = parts(path)
    write(path, {**info, "run": "0" * 32}, arrays, checksum=metadata["checksum"])
    assert load_checkpoint(folder, "last").info["step"] == 2
    assert "checksum" in refused(path)


def test_saving_removes_what_is_of_another_run_and_nothing_else(runs, folder):
    other = new_run(OTHER, RECIPE, seed=2)
    (folder / "notes.txt").write_text("mine")
    (folder / "last.safetensors").write_bytes(b"damaged")
    save_checkpoint(folder, "best", checkpoint_of(other, None))
    assert (folder / "last.safetensors").exists()  # of no run
    shutil.copy(runs[0] / "last.safetensors", folder)
    save_checkpoint(folder, "best", checkpoint_of(other, None))
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors", "loss.png", "metrics.jsonl", "notes.txt",
    ]  # fmt: skip


def test_a_resumed_run_stays_the_same_run(runs):
    saved = load_checkpoint(runs[0], "last")
    assert resumed_run(TEXT, saved, RECIPE).id == runs[2].id != new_run(TEXT, RECIPE, seed=1).id


# ---- damage --------------------------------------------------------------------------------------------------


def test_every_cut_is_noticed(folder):
    path = folder / "last.safetensors"
    whole = path.read_bytes()
    for length in [*range(0, 64), *range(64, len(whole), len(whole) // 100)]:
        path.write_bytes(whole[:length])
        assert refused(path), length
    path.write_bytes(whole + b"\0")
    assert refused(path)


def test_every_flipped_bit_is_noticed(folder):
    path, draw = folder / "last.safetensors", random.Random(1)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    anywhere = [draw.randrange(8, header) for _ in range(150)] + [draw.randrange(len(whole)) for _ in range(100)]
    for place in [*range(8), *anywhere]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        assert refused(path), place


DAMAGE = {
    "lost at the end": lambda data, draw, start, end: data[:start],
    "lost inside": lambda data, draw, start, end: data[:start] + data[end:],
    "zeros": lambda data, draw, start, end: data[:start] + bytes(end - start) + data[end:],
    "noise": lambda data, draw, start, end: data[:start] + draw.randbytes(end - start) + data[end:],
    "twice": lambda data, draw, start, end: data[:end] + data[start:],
    "other order": lambda data, draw, start, end: data[end:] + data[start:end] + data[:start],
    "a length": lambda data, draw, start, end: draw.randbytes(draw.choice([1, 2, 8])).ljust(8, b"\0") + data[8:],
}


def test_damaged_files_are_one_line_each(folder, pytestconfig):
    """A few dozen files, or a thousand with --polyarr-thorough."""
    path, draw = folder / "last.safetensors", random.Random(2)
    whole, count = path.read_bytes(), 0
    header = 8 + int.from_bytes(whole[:8], "little")
    while count < (1000 if pytestconfig.getoption("polyarr_thorough") else 50):
        start, end = sorted(draw.randrange(draw.choice([16, header, len(whole)])) for _ in range(2))
        kind = draw.choice([*DAMAGE])
        damaged = DAMAGE[kind](whole, draw, start, end)
        if damaged != whole:
            count += 1
            path.write_bytes(damaged)
            assert refused(path), (kind, start, end)
    path.write_bytes(whole)
    assert refused(path) is None


def places(value, path=()):
    """Return the paths of all values in a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def changed(info, path, value):
    """Return a copy with another value at a path; ... removes it."""
    if not path:
        return {} if value is ... else value
    new = copy.deepcopy(info)
    at = new
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return new


NUMBERS = (-1, 0, 1.5, 10**30, 1e308, math.nan, math.inf)
VALUES = (..., None, True, "", "x", "a" * 100_000, "\ud800", *NUMBERS, [], [1] * 5, {}, {"x": 1})


def test_no_change_of_the_info_is_a_raw_error_and_the_checksum_sees_each(folder):
    path = folder / "last.safetensors"
    metadata, info, arrays = parts(path)
    loaded = []
    for at in places(info):
        for value in VALUES:
            new = changed(info, at, value)
            if new == info:
                continue
            write(path, json.dumps(new), arrays)
            if refused(path) is None:
                loaded.append((at, value))
    # Changes that only a checksum can detect.
    free = {("data",), ("base",), ("preset",), ("seed",), ("val_loss",), ("seconds",), ("since",), ("device",)}
    free |= {("versions",)} | {("random_state", i) for i in (0, 1)} | {("recipe", "betas", i) for i in (0, 1)}
    free |= {("recipe", name) for name in RECIPE.to_dict()} | {("versions", name) for name in info["versions"]}
    assert {at for at, _ in loaded} <= free | {("recipe", "model", "drop_rate")}
    for at, value in loaded:
        write(path, changed(info, at, value), arrays, checksum=metadata["checksum"])
        assert "its checksum does not agree with its content" in refused(path)


def test_a_line_says_what_is_wrong(folder):
    path = folder / "last.safetensors"
    _, info, arrays = parts(path)
    for at, value, said in [
        (("step",), "x", 'step: "x" was given; it must be an integer'),
        (("step",), 3, "step: 3 is more than the 2 steps of the recipe"),
        (("recipe", "steps"), 0, "Recipe: steps is 0; it must be an integer from 1 to 1,000,000,000,000"),
        (("recipe", "model", "n_layers"), 10**30, "GPTConfig: n_layers is 1" + "0" * 30),
        (("recipe", "model", "emb_dim"), 10, "model.tok_emb.weight is float32[28, 8]; its shape must be [28, 10]"),
        (("preset",), "a" * 100_000, 'preset: "aaa'),
        (("run",), ..., "run is missing; it is required"),
        (("tokenizer", "characters"), "ab", "model.tok_emb.weight is float32["),
    ]:
        write(path, changed(info, at, value), arrays)
        assert f"damaged checkpoint: {said}" in refused(path).replace("$: ", "")


def test_json_that_is_none(folder):
    path = folder / "last.safetensors"
    _, _, arrays = parts(path)
    for text in ("", "{", "[" * 100_000, "1" * 10_000, '{"step": NaN}', "null", "[]"):
        write(path, text, arrays)
        assert refused(path)


ARRAYS = {
    "nan": (lambda a: a * np.float32(math.nan), "holds numbers that are not finite"),
    "inf": (lambda a: a + np.float32(math.inf), "holds numbers that are not finite"),
    "float16": (lambda a: a.astype(np.float16), "is of dtype F16; it must be F"),
    "int64": (lambda a: a.astype(np.int64), "is of dtype I64; it must be F"),
    "bool": (lambda a: a.astype(bool), "is of dtype BOOL; it must be F"),
    "shape": (lambda a: a.reshape(1, *a.shape), "its shape must be ["),
    "0-d": (lambda a: a.ravel()[0], "its shape must be ["),
    "missing": (lambda a: None, "arrays are missing, "),
}


@pytest.mark.parametrize(("change", "said"), ARRAYS.values(), ids=ARRAYS.keys())
def test_a_damaged_array_is_named(folder, change, said):
    path = folder / "last.safetensors"
    _, info, arrays = parts(path)
    for name, array in arrays.items():
        new = {**arrays, name: change(array)}
        write(path, info, {n: np.asarray(a) for n, a in new.items() if a is not None})
        assert name in refused(path) and said in refused(path)
    write(path, info, {**arrays, "model.extra": np.zeros(3, np.float32)})
    assert "1 arrays are unknown, model.extra among them" in refused(path)


def test_the_story_must_fit_the_step(folder):
    path = folder / "last.safetensors"
    _, info, arrays = parts(path)
    for name in ("history", "curve"):
        for step in (-1, 0.5, 3, 1e300):
            table = arrays[name].copy()
            table[-1, 0] = step
            write(path, info, {**arrays, name: table})
            assert f"{name}" in refused(path)
        write(path, info, {**arrays, name: arrays[name][::-1].copy()})
        assert f"{name}: its steps must be integers that rise from 0 to 2" in refused(path)
        table = arrays[name].copy()
        table[0, 1] = 1e300
        write(path, info, {**arrays, name: table})
        assert f"{name} holds numbers that are no loss" in refused(path)


def test_other_formats_are_distinguished(folder):
    path = folder / "last.safetensors"
    _, info, arrays = parts(path)
    write(path, info, arrays, format="3")
    assert "a checkpoint of format 3; this polyarr reads 2" in refused(path)
    for metadata in (None, {"format": "pt"}):
        path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))
        assert "no checkpoint: its metadata is not the format, info and checksum of one" in refused(path)


def test_swapped_parts_are_noticed(runs, folder):
    path = folder / "last.safetensors"
    _, ours, arrays = parts(path)
    metadata, theirs, others = parts(runs[1] / "last.safetensors")
    weight, bias = "model.blocks.0.norm1.weight", "model.blocks.0.norm1.bias"
    swapped = {**arrays, weight: arrays[bias], bias: arrays[weight]}
    moments = {name: arrays[name.replace(".m.", ".v.") if ".m." in name else name] for name in arrays}
    for info, found, checksum in [
        (ours, others, metadata["checksum"]),
        (theirs, arrays, metadata["checksum"]),
        (ours, {**arrays, "curve": arrays["history"][:, ::2].copy()}, parts(path)[0]["checksum"]),
        (ours, swapped, parts(path)[0]["checksum"]),
        (ours, moments, parts(path)[0]["checksum"]),
    ]:
        write(path, info, found, checksum=checksum)
        assert "its checksum does not agree with its content" in refused(path)
