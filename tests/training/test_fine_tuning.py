"""`polyarr train --from`: a run that starts from given weights, full or with adapters, and leaves them unchanged."""

import hashlib
import json

import click
import numpy as np
import pytest
from safetensors import safe_open

import polyarr as pa
from polyarr import nn
from polyarr.cli import main
from polyarr.core import current
from polyarr.models import GPTModel, LlamaModel, load_pretrained, save_pretrained
from polyarr.text import Corpus, byte_tokenizer
from polyarr.training import Recipe, load_checkpoint, new_run
from polyarr.training.presets import read_recipe, to_toml
from polyarr.training.pretrained import LORA_RATE, fine_tuning, load_model
from polyarr.training.steps import evaluation_loss

LLAMA = {
    "vocab_size": 260, "context_length": 32, "emb_dim": 8, "n_heads": 4, "n_layers": 1, "n_kv_heads": 2,
    "hidden_dim": 12, "head_size": 4, "tie_embeddings": True,
}  # fmt: skip
GPT = {
    "vocab_size": 257, "context_length": 32, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.1,
    "qkv_bias": True, "tie_embeddings": True,
}  # fmt: skip
TEXT = "the quick brown fox jumps over the lazy dog;\n" * 20
SHORT = ("--set", "window=16")


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy, monkeypatch):
    monkeypatch.setenv("POLYARR_BACKEND", "numpy")
    monkeypatch.setattr(current, "_default", current._default)  # which commands set


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A text, and Hugging Face folders with a Llama and a GPT-2, in which commands run."""
    pa.random.seed(0)
    for name, model in (("llama", LlamaModel(LLAMA)), ("gpt2", GPTModel(GPT))):
        save_pretrained(tmp_path / name, pa.tree.map(lambda p: p * 4, model))
        (tmp_path / name / "tokenizer.json").write_text(byte_tokenizer().to_json())
    (tmp_path / "a.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def polyarr(*args):
    main([str(arg) for arg in args], standalone_mode=False)


def train(*args):
    polyarr("train", "--data", "a.txt", *args)


def arrays(model):
    return {name: p.numpy() for name, p in model.named_parameters().items()}


def digest_of(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def equal(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_adapters_are_trained_beside_the_weights_of_a_folder_that_stays(folder, capsys, monkeypatch):
    before, theirs = digest_of(folder / "llama"), arrays(load_pretrained("llama"))
    train("--from", "llama", "--lora", 2, "--lora-alpha", 4, *SHORT, "--steps", 4, "--lr", 0.05, "--out", "run")
    assert "fine-tuning: 2,904 parameters, 128 of them trained, on numpy" in capsys.readouterr().out
    saved = load_checkpoint(folder / "run", "last")
    found = arrays(saved.model)
    assert saved.info["recipe"]["lora"] == {"rank": 2, "alpha": 4.0} and saved.model.config.context_length == 32
    assert saved.info["recipe"]["window"] == 16
    held = {name.replace(".base.", "."): p for name, p in found.items() if not name.endswith((".a", ".b"))}
    assert equal(held, theirs) and np.abs(found["blocks.0.att.qkv.b"]).max() > 0.01
    with safe_open(folder / "run" / "last.safetensors", "numpy") as file:
        kept = sorted(name for name in file.keys() if name.startswith("optimizer.m."))
    assert kept == [f"optimizer.m.blocks.0.att.{layer}.{half}" for layer in ("out", "qkv") for half in "ab"]

    polyarr("export", "run", "--out", "out", "--checkpoint", "last")
    assert "2,776 parameters" in capsys.readouterr().out
    tokens = pa.asarray(np.random.default_rng(0).integers(0, 260, (2, 16)))
    logits, merged = (model(tokens).numpy() for model in (saved.model.eval(), load_pretrained("out")))
    np.testing.assert_allclose(merged, logits, rtol=0, atol=1e-5)
    assert np.abs(logits - load_pretrained("llama")(tokens).numpy()).max() > 1e-2

    monkeypatch.delattr(nn.LoRALinear, "__call__")  # a run opened for reading has merged matrices
    for options in ((), ("--weights", "int8")):
        polyarr("generate", "run", "--prompt", "fox", "--tokens", 3, "--temperature", 0, *options)
        assert capsys.readouterr().out.startswith("fox")
    model, tokenizer = load_model("run")
    assert type(model) is LlamaModel and arrays(model).keys() == theirs.keys() and tokenizer.vocab_size == 257
    assert digest_of(folder / "llama") == before


def test_adapters_name_the_weights_that_they_belong_to(folder, capsys):
    """An import has the same weights, another run does not."""
    polyarr("import", "llama/model.safetensors", "--out", "imported")
    adapters = ("--lora", 2, *SHORT, "--steps", 1)
    for number, (source, base) in enumerate((("llama", "llama"), ("imported", "llama"), ("run1", "run1"))):
        train("--from", source, *adapters, "--out", f"run{number}")
        polyarr("train", "--resume", "--out", f"run{number}", "--steps", 2)
        polyarr("export", f"run{number}", "--format", "peft", "--out", f"out{number}", "--checkpoint", "last")
        config = json.loads((folder / f"out{number}" / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str((folder / base).resolve())
        assert ("is a run, which PEFT does not load" in capsys.readouterr().out) == (base == "run1")
    polyarr("export", "run0", "--format", "peft", "--out", "named", "--base", "meta-llama/Llama-3.2-1B")
    config = json.loads((folder / "named" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "meta-llama/Llama-3.2-1B"
    with pytest.raises(click.UsageError, match="--base is of adapters; give it with --format peft"):
        polyarr("export", "run0", "--out", "whole", "--base", "x")


def test_a_run_with_adapters_goes_on_to_the_same_bits(folder):
    options = ("--from", "llama", "--lora", 2, "--set", "lora.dropout=0.2", *SHORT, "--decay-steps", 4, "--seed", 5)
    train(*options, "--steps", 4, "--out", "whole")
    train(*options, "--steps", 2, "--out", "half")
    polyarr("train", "--resume", "--out", "half", "--steps", 4)
    whole, half = (load_checkpoint(folder / name, "last") for name in ("whole", "half"))
    assert equal(arrays(whole.model), arrays(half.model)) and whole.info["recipe"] == half.info["recipe"]
    for moment in "mv":
        assert equal({n: a.numpy() for n, a in whole.state[moment].items()},
                     {n: a.numpy() for n, a in half.state[moment].items()})  # fmt: skip


def test_a_run_begins_with_the_best_of_another_one_merged(folder, capsys):
    train("--from", "llama", "--lora", 2, *SHORT, "--steps", 2, "--out", "first")
    before, best = digest_of(folder / "first"), load_model("first")[0]
    train("--from", "first", "--steps", 1, "--lr", 1e-30, "--out", "second")
    assert digest_of(folder / "first") == before
    found = load_checkpoint(folder / "second", "last")
    assert found.info["recipe"]["lora"] is None and found.info["step"] == 1
    assert found.info["run"] != load_checkpoint(folder / "first").info["run"]
    assert equal(arrays(found.model), arrays(best))
    assert "2,776 parameters on" in capsys.readouterr().out


def test_gpt2s_dropout_is_a_setting(folder):
    train("--from", "gpt2", "--set", "model.drop_rate=0.0", *SHORT, "--steps", 1, "--out", "run")
    model = load_checkpoint(folder / "run").model
    assert model.config.drop_rate == model.blocks[0].att.drop_rate == model.drop_emb.rate == 0
    polyarr("export", "run", "--out", "out")
    assert load_pretrained("out").config.drop_rate == 0 and load_pretrained("gpt2").config.drop_rate == 0.1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--lora", 2), "give it with --from"),
        (("--from", "llama", "--preset", "demo"), "leave out --preset and --tokenizer"),
        (("--from", "llama", "--tokenizer", "byte"), "leave out --preset and --tokenizer"),
        (("--from", "nothing"), "hf download nothing --local-dir DIR"),
        (("--from", "llama", "--out", "llama", "--overwrite"), "llama is what the run begins with, and stays"),
        (("--from", "llama", "--lora", 2, "--lora-match", "nope"), "lora: match is 'nope'; it must be a pattern"),
        (("--from", "llama", "--lora", 2, "--lora-alpha", 0), "lora is {'rank': 2, 'alpha': 0.0}; it must be a table"),
        (("--from", "llama", "--set", "lora.rnk=2"), "lora is {'rnk': 2}; it must be a table of rank, an integer"),
        (("--from", "llama", "--set", "lora=3", "--set", "lora.rank=2"), "sets a part of lora, and another"),
        (("--from", "llama", "--set", "lora=3"), "lora is 3; it must be a table"),
        (("--from", "llama", "--set", "model.n_heads=2"), "its n_heads is 4, in the recipe 2; only context_length"),
        (("--from", "llama", "--set", "model.context_length=64"), "length is 64; it must be from 1 to 32"),
        (("--from", "llama", "--set", "window=33"), "window is 33; it must be at most the model's context_length, 32"),
        (("--from", "llama", "--set", "window=0"), "window is 0; it must be an integer from 1 to"),
        (("--from", "llama", "--data", "characters"), "characters is prepared with another tokenizer than the model's"),
        (("--resume", "--out", "run", "--from", "llama"), "leave out"),
        (("--resume", "--out", "run", "--lora-match", "*"), "leave out"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(folder, args, said):
    if "characters" in args:
        polyarr("prepare", "a.txt", "--out", "characters")
    out = () if "--out" in args else ("--out", "new")
    before = digest_of(folder / "llama")
    with pytest.raises((click.ClickException, ValueError, OSError)) as error:
        train(*args, *(SHORT if "window" not in str(args) else ()), *out)
    text = str(error.value)
    assert said in text and "\n" not in text
    assert digest_of(folder / "llama") == before and not (folder / "new").exists()


def test_a_recipe_with_adapters_is_a_file(folder, capsys):
    train("--from", "llama", "--lora", 2, "--lora-match", "ff.*", "--set", "lora.dropout=0.1", "--show")
    (folder / "mine.toml").write_text(text := capsys.readouterr().out)
    assert text.endswith('[lora]\ndropout = 0.1\nrank = 2\nmatch = "ff.*"\n')
    recipe = read_recipe(folder / "mine.toml")
    assert recipe.lr == LORA_RATE and to_toml(recipe) == text
    assert fine_tuning(load_pretrained("llama")).lr < LORA_RATE
    assert fine_tuning(load_pretrained("llama"), lora={}, lr=1.0).lr == 1


def test_options_come_before_settings(folder, capsys):
    for setting in ("lora=none", "lora=3", "lora.rank=3"):
        train("--from", "llama", "--lora", 2, "--set", setting, "--show")
        assert capsys.readouterr().out.endswith("[lora]\nrank = 2\n")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_window_is_of_training_and_leaves_the_models_context(folder, name, capsys):
    """Both losses are of short batches; longer sequences still work, and the export has all positions."""
    train("--from", name, *SHORT, "--steps", 2, "--lr", 1e-9, "--set", "eval_windows=3", "--out", "run")
    said = capsys.readouterr()
    assert "each of 4 windows of 16 tokens" in said.out and "context" not in said.err
    saved = load_checkpoint(folder / "run", "last")
    corpus = Corpus.of_files([folder / "a.txt"], saved.tokenizer)
    run = new_run(corpus, Recipe.from_dict(saved.info["recipe"]), 1, model=load_pretrained(name))
    assert [window.shape for window in run.windows(0)] == [(4, 17)]
    due = evaluation_loss(load_pretrained(name), corpus.validation, 4, 3, 16)
    assert saved.info["history"][-1]["val"] == pytest.approx(due, abs=1e-4)
    polyarr("export", "run", "--out", "out")
    model, theirs = load_pretrained("out"), load_pretrained(name)
    assert model.config.context_length == theirs.config.context_length == 32
    tokens = pa.asarray(np.arange(32)[None])
    np.testing.assert_allclose(model(tokens).numpy(), theirs(tokens).numpy(), rtol=0, atol=1e-5)


def test_a_context_changes_when_it_is_named_and_a_line_says_what_is_lost(folder):
    said = r"^the model's context becomes 16 tokens of 32.* and 128 numbers .* dropped; `polyarr train --set window=N`"
    with pytest.warns(RuntimeWarning, match=said):
        train("--from", "gpt2", "--set", "model.context_length=16", "--steps", 1, "--out", "run")
    assert load_checkpoint(folder / "run").model.config.context_length == 16
    with pytest.warns(RuntimeWarning, match="becomes 16 tokens of 32, for good; `polyarr train --set window"):
        polyarr("import", "llama", "--out", "imported", "--context", 16)


def test_a_run_takes_a_model_in_python(folder):
    model = load_pretrained("gpt2")
    recipe = fine_tuning(model, lora={"rank": 2}, model={"context_length": 16, "drop_rate": 0.0})
    with pytest.warns(RuntimeWarning, match="becomes 16 tokens of 32, for good, and 128 numb"):
        run = new_run(_corpus(), recipe, 1, model=model)
    assert type(run.model.blocks[0].att.qkv) is nn.LoRALinear and run.model.config.drop_rate == 0
    assert np.array_equal(run.model.pos_emb.weight.numpy(), model.pos_emb.weight.numpy()[:16])
    assert list(run.state["m"]) == list(run.model.named_parameters(only_trainable=True))
    other = Recipe({**recipe.model, "emb_dim": 16}, **{k: v for k, v in recipe.to_dict().items() if k != "model"})
    with pytest.raises(ValueError, match="its emb_dim is 8, in the recipe 16; only context_length and drop_rate may"):
        new_run(_corpus(), other, 1, model=model)


def _corpus():
    return Corpus.of_text(TEXT, byte_tokenizer())
