"""Models of other families are trained, saved and resumed like GPT."""

import numpy as np
import pytest

import polyarr as pa
from polyarr.models import GPTModel, LlamaModel
from polyarr.models.families import config_of, settings_of
from polyarr.training import Checkpoint, Recipe, load_checkpoint, new_run, resumed_run, save_checkpoint, train
from polyarr.training.run import checkpoint_of

TEXT = "the quick brown fox jumps over the lazy dog; " * 30
LLAMA = {
    "family": "llama", "context_length": 8, "emb_dim": 16, "n_heads": 4, "n_layers": 1, "n_kv_heads": 2,
    "hidden_dim": 24, "head_size": 4, "rope_scaling": [8.0, 1.0, 4.0, 16],
}  # fmt: skip
RECIPE = Recipe(LLAMA, batch_size=4, steps=6, lr=1e-2, min_lr=1e-3, warmup=0, eval_every=3, eval_windows=8)


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy):
    yield


def quiet(line):
    """Ignore progress messages."""


def same(model, other):
    left, right = model.named_parameters(), other.named_parameters()
    return left.keys() == right.keys() and all(np.array_equal(left[n].numpy(), right[n].numpy()) for n in left)


def test_a_llama_is_trained_and_resumed_to_the_same_bits(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "half").mkdir()
    whole = train(new_run(TEXT, RECIPE, seed=1), tmp_path / "whole", quiet)
    assert type(whole.model) is LlamaModel and whole.history[-1]["val"] < whole.history[0]["val"]
    train(new_run(TEXT, RECIPE.changed(steps=3), seed=1), tmp_path / "half", quiet)
    saved = load_checkpoint(tmp_path / "half", "last")
    assert saved.model.config == whole.model.config
    assert same(train(resumed_run(TEXT, saved, RECIPE), tmp_path / "half", quiet).model, whole.model)


def test_a_run_with_muon_is_resumed_to_the_same_bits_and_keeps_its_optimizer(tmp_path):
    recipe = RECIPE.changed(optimizer="muon")
    (tmp_path / "whole").mkdir()
    (tmp_path / "half").mkdir()
    whole = train(new_run(TEXT, recipe, seed=1), tmp_path / "whole", quiet)
    assert not same(whole.model, train(new_run(TEXT, RECIPE, seed=1), tmp_path / "whole", quiet).model)
    train(new_run(TEXT, recipe.changed(steps=3), seed=1), tmp_path / "half", quiet)
    saved = load_checkpoint(tmp_path / "half", "last")
    without = saved.state["m"].keys() - saved.state["v"].keys()
    assert "blocks.0.att.qkv.weight" in without and "tok_emb.weight" in saved.state["v"]
    assert same(train(resumed_run(TEXT, saved, recipe), tmp_path / "half", quiet).model, whole.model)
    wrong = r"^resumed_run: the recipe's optimizer is 'adamw'; it must stay 'muon', whose state the checkpoint has$"
    with pytest.raises(ValueError, match=wrong):
        resumed_run(TEXT, saved, RECIPE)


def test_a_model_that_was_not_trained_yet_is_kept_without_moments(tmp_path):
    run = new_run(TEXT, RECIPE, seed=1)
    info = checkpoint_of(run, None).info
    save_checkpoint(tmp_path, "best", Checkpoint(run.model, run.tokenizer, {"step": 0}, info))
    found = load_checkpoint(tmp_path)
    assert found.state == {"step": 0} and same(found.model, run.model)
    trained = train(resumed_run(TEXT, found, RECIPE), tmp_path, quiet)
    (tmp_path / "plain").mkdir()
    assert same(trained.model, train(new_run(TEXT, RECIPE, seed=1), tmp_path / "plain", quiet).model)


def test_a_vocabulary_may_be_larger_than_the_tokenizers_and_not_smaller():
    settings = settings_of(config_of({**LLAMA, "vocab_size": 40}))
    recipe = Recipe(settings, batch_size=1, steps=1, lr=1e-2, min_lr=1e-3, warmup=0, eval_every=1)
    assert recipe.config(30).vocab_size == 40
    with pytest.raises(ValueError, match=r"^Recipe: the model has 40 tokens; it must have the tokenizer's 41$"):
        recipe.config(41)
    with pytest.raises(ValueError, match=r"^config_of: family is 'bert'; it must be one of gpt, llama$"):
        Recipe({**settings, "family": "bert"}, 1, 1, 1e-2, 1e-3, 0, 1).config(30)


@pytest.mark.parametrize("kind", [GPTModel, LlamaModel])
def test_a_shorter_context_computes_the_same(kind):
    sizes = {name: value for name, value in LLAMA.items() if name != "family"} | {"vocab_size": 11}
    if kind is GPTModel:
        sizes = {name: sizes[name] for name in ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers")}
        sizes |= {"drop_rate": 0.0, "qkv_bias": True}
    model, tokens = kind(sizes), pa.asarray([[1, 2, 3, 4]])
    short = model.with_context(5)
    assert short.config.context_length == 5 and model.config.context_length == 8
    np.testing.assert_array_equal(short(tokens).numpy(), model(tokens).numpy())
    with pytest.raises(pa.ShapeError, match="at most 5"):
        short(pa.asarray([[1] * 6]))
    with pytest.raises(ValueError, match=r"^with_context: length is 9; it must be from 1 to 8, the model's own$"):
        model.with_context(9)
