"""Recipes: valid values, in TOML files and as settings on a command line."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarr.cli import main
from polyarr.models.gpt import GPT_CONFIG_124M, GPTConfig
from polyarr.models.llama import LlamaConfig
from polyarr.training import PRESETS, Recipe, load_checkpoint
from polyarr.training.presets import named_recipe, parsed_settings, read_recipe, to_toml
from polyarr.training.recipes import COMPUTED, OPTIMIZERS, SCHEDULES
from tests.helpers.root import ROOT

DEMO = PRESETS["demo"]
LLAMA = {
    "family": "llama",
    "context_length": 8,
    "emb_dim": 8,
    "n_heads": 2,
    "n_layers": 1,
    "n_kv_heads": 1,
    "hidden_dim": 8,
    "head_size": 4,
    "rope_scaling": [8.0, 1.0, 4.0, 16],
}


def run(capsys, *args):
    """Run the command in this process; return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    return ended.value.code, *capsys.readouterr()


# ---- presets -------------------------------------------------------------------------------------------------


def test_the_published_recipe_is_the_preset():
    recipe = PRESETS["shakespeare-char"]
    model = recipe.config(65)
    assert (model.n_layers, model.n_heads, model.emb_dim, model.context_length) == (4, 4, 128, 64)
    assert (model.drop_rate, recipe.batch_size, recipe.steps, recipe.clip) == (0.0, 12, 2000, 1.0)
    assert (recipe.lr, recipe.min_lr, recipe.warmup, recipe.weight_decay) == (1e-3, 1e-4, 100, 0.1)
    assert recipe.betas == (0.9, 0.99)
    assert set(PRESETS) == {"demo", "demo-llama", "shakespeare-char", "gpt2-124m"}


def test_the_large_preset_has_the_size_of_gpt2():
    config = PRESETS["gpt2-124m"].config(50257)
    assert config == GPTConfig.of(GPT_CONFIG_124M)


def test_a_llama_has_a_preset_which_a_change_of_the_family_names(capsys):
    config = PRESETS["demo-llama"].config(65)
    assert isinstance(config, LlamaConfig) and config.head_size * config.n_heads == config.emb_dim
    code, out, err = run(capsys, "train", "--set", "model.family=llama", "--show")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "the model of demo is a gpt, with other settings; begin with --preset demo-llama (try" in err
    assert run(capsys, "train", "--preset", "demo-llama", "--set", "model.family=llama", "--show")[0] == 0
    code, _, err = run(capsys, "train", "--preset", "demo-llama", "--set", "model.family=gpt", "--show")
    assert code == 2 and "begin with --preset demo or gpt2-124m or shakespeare-char" in err


def test_a_file_is_a_preset_of_its_name(tmp_path):
    file = tmp_path / "my own.toml"
    file.write_text(to_toml(DEMO))
    assert named_recipe(str(file)) == ("my-own", DEMO)


numbers = st.floats(1e-30, 1e30)
recipes = st.builds(
    Recipe,
    model=st.sampled_from([DEMO.model, LLAMA]),
    batch_size=st.integers(1, 10**9),
    steps=st.integers(1, 10**12),
    lr=numbers,
    min_lr=numbers | st.just(0.0),
    warmup=st.integers(0, 100),
    eval_every=st.none() | st.integers(1, 10**12),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    eval_minutes=st.none() | numbers,
    keep=st.integers(1, 10**9),
    patience=st.none() | st.integers(1, 10**9),
    eval_windows=st.none() | st.integers(1, 10**9),
    decay_steps=st.none() | st.integers(1, 10**12),
    dtype=st.sampled_from(COMPUTED),
    schedule=st.sampled_from([*SCHEDULES]),
    optimizer=st.sampled_from([*OPTIMIZERS]),
    recompute=st.booleans(),
    packing=st.booleans(),
)


@given(recipe=recipes)
def test_a_recipe_comes_back_from_its_file_and_from_json(tmp_path, recipe):
    file = tmp_path / "a.toml"
    file.write_text(to_toml(recipe))
    assert read_recipe(file) == recipe
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


BAD_FILES = {
    "no TOML": (b"steps = ", "Invalid value (at end of document)"),
    "no text": (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    "nested": (b"x = " + b"[" * 100_000, "maximum recursion depth exceeded"),
    "unknown": (b"step = 5", "Recipe: missing model, batch_size, steps, lr, min_lr, warmup; the keys are"),
    "twice": (b"steps = 5\nsteps = 6", "Cannot overwrite a value (at "),
}


@pytest.mark.parametrize(("content", "said"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_one_line(tmp_path, content, said):
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        named_recipe(str(file))
    assert str(error.value).startswith(f"{file}: {said}") and "\n" not in str(error.value)


# ---- other values --------------------------------------------------------------------------------------------


def test_a_changed_recipe_stays_in_proportion():
    recipe = PRESETS["shakespeare-char"].changed(steps=50, decay_steps=50, lr=2e-3)
    assert (recipe.steps, recipe.decay_steps, recipe.warmup, recipe.accumulation) == (50, 50, 5, 1)
    assert recipe.min_lr == pytest.approx(2e-4)


def test_what_is_named_is_taken_as_it_is():
    recipe = DEMO.changed(lr=1.0, min_lr=0.5, decay_steps=20, warmup=19, eval_windows=None, model={"n_layers": 2})
    assert (recipe.lr, recipe.min_lr, recipe.warmup, recipe.eval_windows) == (1.0, 0.5, 19, None)
    assert recipe.model == {**DEMO.model, "n_layers": 2}
    long = dataclasses.replace(DEMO, warmup=3000)
    assert long.changed(lr=1.0).warmup == 3000


def test_a_number_is_kept_as_its_kind():
    recipe = DEMO.changed(lr=1, betas=[0, 0.5])
    assert repr((recipe.lr, recipe.betas, recipe.min_lr)) == "(1.0, (0.0, 0.5), 0.1)"


def test_numbers_of_numpy_are_kept_as_pythons():
    """JSON and TOML have no other numbers."""
    model = {**DEMO.model, "emb_dim": np.int64(48), "drop_rate": np.float32(0.5), "qkv_bias": np.bool_(True)}
    lora = {"rank": np.int32(2), "alpha": np.float32(0.5), "dropout": np.float16(0.25)}
    given = {"steps": np.int64(7), "batch_size": np.uint8(3), "lr": np.float32(0.5), "clip": np.int16(2)}
    found = DEMO.changed(model=model, lora=lora, betas=np.array([0.5, 0.75]).tolist(), **given)
    plain = {"steps": 7, "batch_size": 3, "lr": 0.5, "clip": 2.0, "betas": (0.5, 0.75)}
    assert found == DEMO.changed(
        model={"emb_dim": 48, "drop_rate": 0.5, "qkv_bias": True},
        lora={"rank": 2, "alpha": 0.5, "dropout": 0.25}, **plain,
    )  # fmt: skip
    assert Recipe.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    for wrong in (np.float64(7), np.bool_(True), np.array(7)):
        with pytest.raises(ValueError, match=r"Recipe: steps is .*; it must be an integer from 1"):
            DEMO.changed(steps=wrong)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("cosine", [0.5, 1.0, 0.6, 0.2]), ("linear", [0.5, 1.0, 0.6, 0.2]), ("constant", [0.5, 1.0, 1.0, 1.0])],
)
def test_a_schedule_has_a_name(schedule, rates):
    recipe = DEMO.changed(schedule=schedule, lr=1.0, min_lr=0.2, warmup=1, decay_steps=5)
    assert [recipe.new_optimizer().learning_rate(step) for step in (0, 1, 3, 9)] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["lr=1e-3", "steps = 7"], {"lr": 1e-3, "steps": 7}),
        (["model.n_layers=6", "model.qkv_bias=false"], {"model": {"n_layers": 6, "qkv_bias": False}}),
        (["dtype=bfloat16", 'precision="high"'], {"dtype": "bfloat16", "precision": "high"}),
        (["eval_windows=none", "betas=[0.9, 0.95]"], {"eval_windows": None, "betas": [0.9, 0.95]}),
        (["lr=1", "lr=2"], {"lr": 2}),
    ],
)
def test_settings_are_keys_and_values(texts, found):
    assert parsed_settings(texts) == found


@pytest.mark.parametrize("text", ["lr", "=3", "a.b=3", "model.=3", "model.a.b=1", ""])
def test_what_is_no_setting_is_named(text):
    with pytest.raises(ValueError, match=r"sets nothing; it must be KEY=VALUE, such as lr=1e-3 or model.n_layers=6$"):
        parsed_settings([text])


@pytest.mark.parametrize("text", ["lr=", "lr=1 2", "lr=[", "lr=1\nx=2", "lr=" + "[" * 100_000, "lr=a b"])
def test_what_is_no_value_is_named(text):
    with pytest.raises(ValueError, match=r": its value is none that TOML has, such as 6, 1e-3, true, "):
        parsed_settings([text])


KEYS = ", ".join(f.name for f in dataclasses.fields(Recipe))
WRONG = {
    "unknown": ("epochs=3", f"Recipe: unknown 'epochs'; the keys are {KEYS}"),
    "of the model": ("n_layers=3", f"Recipe: unknown 'n_layers'; the model has model.n_layers; the keys are {KEYS}"),
    "the model's": ("model.n_layer=3", "GPTConfig: unknown n_layer; the keys are vocab_size, context_length, emb_dim"),
    "family": ("model.family=bert", "config_of: family is 'bert'; it must be one of gpt, llama"),
    "type of the model's": ("model.n_layers=6.0", "GPTConfig: n_layers is 6.0; it must be a positive int"),
    "no table": ("model=3", "Recipe: model is 3; it must be a table of settings"),
    "word": ("lr=fast", "Recipe: lr is 'fast'; it must be a number above 0, at most 1e+30"),
    "bool": ("steps=true", "Recipe: steps is True; it must be an integer from 1 to 1,000,000,000,000"),
    "float": ("steps=1e3", "Recipe: steps is 1000.0; it must be an integer from 1 to 1,000,000,000,000"),
    "none": ("steps=none", "Recipe: steps is None; it must be an integer from 1 to"),
    "nan": ("lr=nan", "Recipe: lr is nan; it must be a number above 0, at most 1e+30"),
    "inf": ("clip=inf", "Recipe: clip is inf; it must be a number above 0, at most 1e+30"),
    "zero": ("batch_size=0", "Recipe: batch_size is 0; it must be an integer from 1 to 1,000,000,000"),
    "negative": ("min_lr=-1", "Recipe: min_lr is -1; it must be a number from 0 to 1e+30"),
    "betas": ("betas=[0.9, 1]", "Recipe: betas is [0.9, 1]; it must be two numbers from 0 to below 1"),
    "dtype": ("dtype=float64", "Recipe: dtype is 'float64'; it must be one of float32, bfloat16, float16"),
    "precision": ("precision=3", "Recipe: precision is 3; it must be one of highest, high, medium"),
    "optimizer": ("optimizer=sgd", "Recipe: optimizer is 'sgd'; it must be one of adamw, muon"),
    "schedule": ("schedule=cos", "Recipe: schedule is 'cos'; it must be one of cosine, linear, constant"),
    "flag": ("recompute=1", "Recipe: recompute is 1; it must be true or false"),
    "date": ("lr=1979-05-27", "Recipe: lr is datetime.date(1979, 5, 27); it must be"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_one_line_with_what_is_right(capsys, text, said):
    code, out, err = run(capsys, "train", "--set", text, "--show")
    assert (code, out) == (1, "") and err.startswith(f"polyarr: {said}") and err.count("\n") == 1


def test_a_setting_that_is_no_option_is_given_with_set(capsys):
    code, out, err = run(capsys, "train", "--batch-size", 4, "--show")
    assert (code, out) == (2, "") and "No such option '--batch-size': give --set batch_size=VALUE (try" in err
    assert "No such option '--epochs'. Did you mean '--steps'?" in run(capsys, "train", "--epochs", 4)[2]


def test_the_page_names_every_setting_and_no_other():
    page = (ROOT / "docs" / "recipes.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == {f.name for f in dataclasses.fields(Recipe)}


# ---- the command ---------------------------------------------------------------------------------------------


def test_the_command_shows_a_recipe_that_it_takes(capsys, tmp_path):
    code, out, _ = run(capsys, "train", "--set", "model.n_layers=2", "--lr", "1e-4", "--steps", 30, "--show")
    assert code == 0
    (tmp_path / "mine.toml").write_text(out)
    assert read_recipe(tmp_path / "mine.toml") == DEMO.changed(model={"n_layers": 2}, lr=1e-4, steps=30, decay_steps=30)
    assert run(capsys, "train", "--preset", tmp_path / "mine.toml", "--show")[1] == out


def test_the_command_trains_by_a_file_with_other_settings(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("the quick brown fox jumps over the lazy dog; " * 20)
    Path("mine.toml").write_text(to_toml(DEMO.changed(model={"context_length": 8, "emb_dim": 8, "n_layers": 1})))
    settings = ("--set", "model.n_heads=2", "--set", "eval_windows=1", "--steps", 2, "--backend", "numpy")
    code, _, err = run(capsys, "train", "--preset", "mine.toml", "--data", "a.txt", *settings)
    assert code == 0, err
    saved = load_checkpoint(Path("runs/mine"))
    assert saved.info["preset"] == "mine" and saved.model.config.n_heads == 2 and saved.info["recipe"]["steps"] == 2
    more = ("train", "--resume", "--out", "runs/mine", "--backend", "numpy", "--steps", 3)
    code, out, err = run(capsys, *more, "--set", "clip=0.5")
    assert code == 0 and "the recipe changes after step 2" in out, err
    assert "\n1 steps, each of " in out
    code, out, err = run(capsys, *more)
    assert code == 0 and "\nall 3 steps are done already; give more --steps to go on\n" in out, err
    code, _, err = run(capsys, *more, "--set", "model.n_heads=4")
    assert code == 2 and "--resume goes on with the model that is there; leave out --set model" in err
