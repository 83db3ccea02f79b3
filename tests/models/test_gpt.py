"""GPT: its size, its gradient, its causal mask, and generated text."""

import time

import numpy as np
import pytest

import polyarr as pa
from polyarr import models, nn, optim
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.models import Writer, generation
from polyarr.models.generation import generate, stream
from polyarr.models.gpt import GPT_CONFIG_124M, PRESETS, GPTConfig, GPTModel
from polyarr.text import CharTokenizer
from polyarr.training import new_run

SMALL = {
    "vocab_size": 11,
    "context_length": 8,
    "emb_dim": 8,
    "n_heads": 2,
    "n_layers": 2,
    "drop_rate": 0.0,
    "qkv_bias": False,
}


@pytest.fixture(autouse=True)
def _numpy_and_seed():
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        yield


def small(**changes):
    return GPTModel({**SMALL, **changes})


def tokens(*shape):
    return pa.random.randint(0, SMALL["vocab_size"], shape).astype(pa.int32)


def loss_of(model, windows):
    return pa.cross_entropy(model(windows[:, :-1]), windows[:, 1:])


# ---- configuration and size ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 163_009_536),
        ({"context_length": 256}, 162_419_712),
        ({"tie_embeddings": True}, 124_412_160),
        ({"tie_embeddings": True, "qkv_bias": True}, 124_439_808),
    ],
)
def test_parameter_counts(changes, count):
    started = time.perf_counter()
    with nn.shapes_only():
        model = GPTModel({**GPT_CONFIG_124M, **changes})
    assert model.num_parameters() == count
    assert time.perf_counter() - started < 3


def test_the_tutorials_keys_are_the_configuration():
    assert PRESETS["gpt2-124m"] is GPT_CONFIG_124M
    assert GPTConfig.of(GPT_CONFIG_124M) == GPTConfig(50257, 1024, 768, 12, 12, 0.1, False)
    config = GPTConfig.of(SMALL)
    assert GPTModel(config).config is config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"emb_dims": 3}, "GPTConfig: unknown emb_dims; the keys are vocab_size, context_length, emb_dim"),
        ({"emb_dim": 9}, "GPTConfig: emb_dim is 9, n_heads is 2; it must divide emb_dim"),
        ({"n_layers": 0}, "GPTConfig: n_layers is 0; it must be a positive int"),
        ({"n_heads": 2.0}, "GPTConfig: n_heads is 2.0; it must be a positive int"),
        ({"drop_rate": 1.5}, "GPTConfig: drop_rate is 1.5; it must be a number from 0 to 1"),
        ({"qkv_bias": "no"}, "GPTConfig: qkv_bias is 'no'; it must be True or False"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(changes, message):
    with pytest.raises(ValueError) as caught:
        small(**changes)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_missing_keys_are_named():
    with pytest.raises(ValueError, match=r"^GPTConfig: missing n_heads, drop_rate; the keys are"):
        GPTModel({k: v for k, v in SMALL.items() if k not in ("n_heads", "drop_rate")})


def test_weights_begin_as_gpt2s():
    model = small(emb_dim=64, vocab_size=500)
    block = model.blocks[0]
    for weight, std in (
        (model.tok_emb.weight, 0.02),
        (block.att.qkv.weight, 0.02),
        (block.ff.down.weight, 0.01),
    ):
        assert weight.numpy().std() == pytest.approx(std, rel=0.05)
    assert not block.ff.down.bias.numpy().any() and block.att.qkv.bias is None


# ---- forward and gradient ------------------------------------------------------------------------------------


def test_no_position_sees_a_later_token():
    model, x = small().eval(), tokens(1, 8)
    other = x.copy() if hasattr(x, "copy") else pa.asarray(x.numpy())
    other[0, 5] = (int(x[0, 5]) + 1) % 11
    a, b = model(x).numpy(), model(other).numpy()
    assert a.shape == (1, 8, 11)
    np.testing.assert_allclose(a[:, :5], b[:, :5], atol=1e-6)
    assert np.abs(a[:, 5:] - b[:, 5:]).max() > 1e-4


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True, "qkv_bias": True}])
def test_gradient_matches_finite_differences_in_float64(changes):
    model = pa.tree.map(lambda p: p.astype(pa.float64) * 3, small(**changes))
    windows = tokens(2, 7)
    _, grads = pa.value_and_grad(loss_of)(model, windows)
    generator = np.random.default_rng(1)
    for name, p in model.named_parameters().items():
        direction = pa.asarray(generator.standard_normal(p.shape))
        ends = []
        for sign in (1, -1):
            moved = {
                n: q + direction * (sign * 1e-5) if n == name else q for n, q in model.state_dict().items()
            }
            ends.append(float(loss_of(model.copy().load_parameters(moved), windows)))
        numeric = (ends[0] - ends[1]) / 2e-5
        found = float(pa.sum(grads.named_parameters()[name] * direction))
        assert found == pytest.approx(numeric, rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("drop_rate", [0.0, 0.1])
def test_it_learns_a_small_batch_by_heart(drop_rate):
    model, windows = small(emb_dim=32, drop_rate=drop_rate), tokens(2, 9)
    optimizer = optim.AdamW(lr=1e-2, clip=1.0)
    state, step = optimizer.init(model), pa.value_and_grad(loss_of)
    for _ in range(120):
        _, grads = step(model, windows)
        model, state = optimizer.update(grads, state, model)
    assert float(loss_of(model.eval(), windows)) < 0.1


def test_tokens_that_do_not_fit_are_refused():
    model = small()
    with pytest.raises(
        ShapeError, match=r"^GPTModel: tokens is int32\[1, 9\]; it must be \[batch, at most 8\]$"
    ):
        model(tokens(1, 9))
    with pytest.raises(ShapeError, match="it must be \\[batch, at most 8\\]"):
        model(tokens(4))
    with pytest.raises(DtypeError, match="tokens is float32\\[1, 4\\]; its dtype must be integer"):
        model(pa.zeros((1, 4)))


# ---- generation ----------------------------------------------------------------------------------------------


def greedy(model, x, count):
    """Return greedy tokens by definition: no cache, the last context of tokens each time."""
    for _ in range(count):
        logits = model(pa.asarray(x[:, -8:])).numpy()[:, -1]
        x = np.concatenate([x, logits.argmax(-1)[:, None].astype(x.dtype)], axis=1)
    return x


@pytest.mark.filterwarnings("error")
def test_a_warning_says_when_the_text_is_beyond_the_context_and_stopping_there_has_none(on_numpy):
    model, tokens, size = GPTModel(SMALL), pa.asarray([[1, 2, 3]]), SMALL["context_length"]
    assert generate(model, tokens, size - 2, temperature=0).shape == (1, size + 1)  # the last token is not read
    drawn = stream(model, tokens, size, temperature=0)
    for _ in range(size - 2):
        next(drawn)
    with pytest.warns(RuntimeWarning, match=rf"the model's context of {size:,} tokens: from here on each"):
        next(drawn)
    next(drawn)  # the warning appears once
    whole = generate(model, tokens, 99, temperature=0, stop_at_context=True)
    assert whole.shape == (1, size)
    assert generate(model, whole, 5, stop_at_context=True).shape == (1, size)
    writer = Writer(model, CharTokenizer("abcdefghijk"))
    short, long = writer.complete(["a", "abc"], 99, temperature=0, stop_at_context=True)
    assert (short.tokens, long.tokens, long.finish) == (size - 3, size - 3, "length")


def test_greedy_generation_crops_to_the_context():
    model = pa.tree.map(lambda p: p * 20, small())
    for length in (1, 5, 12):
        x = tokens(2, length)
        found = generate(model, x, 9, temperature=0)
        assert found.shape == (2, length + 9) and found.dtype == x.dtype
        np.testing.assert_array_equal(found.numpy(), greedy(model, x.numpy(), 9))


def test_generation_is_seeded_and_leaves_the_model_and_the_generator_alone():
    model, x = small(drop_rate=0.5), tokens(1, 3)
    pa.random.seed(8)
    first = generate(model, x, 20, seed=4).numpy()
    assert pa.random.get_state() == (8, 0) and all(m.training for m in model.modules())
    np.testing.assert_array_equal(first, generate(model, x, 20, seed=4).numpy())
    assert not np.array_equal(first, generate(model, x, 20, seed=5).numpy())
    a, b = generate(model, x, 20), generate(model, x, 20)
    assert not np.array_equal(a.numpy(), b.numpy())
    np.testing.assert_array_equal(generate(model, x, 0).numpy(), x.numpy())


def test_one_capture_serves_a_whole_text_and_the_text_is_eager_s(backend, monkeypatch):
    functions, real = [], generation.compile

    def noting(fn, **options):
        functions.append(real(fn, **options))
        return functions[-1]

    monkeypatch.setattr(generation, "compile", noting)
    model, x = pa.tree.map(lambda p: p * 20, small(drop_rate=0.5)), tokens(2, 3)
    texts = [generate(model, x, 12, temperature=0.7, top_p=0.9, seed=1).numpy()]
    assert len(functions[0].programs()) == 2  # one token at a time; and beyond the context, where all positions shift
    monkeypatch.setenv("POLYARR_COMPILE", "0")
    texts.append(generate(model, x, 12, temperature=0.7, top_p=0.9, seed=1).numpy())
    assert not functions[1].programs()
    np.testing.assert_array_equal(*texts)


def test_generation_reads_nothing_from_the_device():
    model, x = small(), tokens(1, 3)
    before = pa.transfers()
    generate(model, x, 12, temperature=0.7, top_k=3, top_p=0.9, seed=1)
    assert pa.transfers() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature is -1; it must be 0 or more, and finite"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must not be negative"),
        ({"tokens": pa.Spec((1, 0), pa.int32)}, r"tokens is int32\[1, 0\]; it must be \[batch, at least 1\]"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        generation.stream(**{"model": None, "tokens": tokens(1, 2), "max_new_tokens": 1, **settings})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m(None), "^GPTModel: tokens is None; it must be a polyarr array"),
        (lambda m, x: m.with_context("4"), "^with_context: length is '4'; it must be an int$"),
        (lambda m, x: GPTModel(None), "^GPTConfig: config is None; it must be a mapping of its fields$"),
        (lambda m, x: generate(None, x, 1), "^generate: model is None; it must be a LanguageModel, such as a GPT"),
        (lambda m, x: generate(m, [1, 2], 1), "^generate: tokens is a list; it must be a polyarr array"),
        (lambda m, x: generate(m, x, 1.5), r"^generate: max_new_tokens is 1\.5; it must be an int$"),
        (lambda m, x: generate(m, x, 1, vocab_size="a"), "^generate: vocab_size is 'a'; it must be an int$"),
        (lambda m, x: m.load_parameters(None), "^load_parameters: named is None; it must be a mapping from dotted"),
        (lambda m, x: m.with_arrays([x]), "^with_arrays: named is a list; it must be a mapping from dotted names"),
        (lambda m, x: models.LeNet("28"), "^LeNet: size is '28'; it must be an int$"),
        (lambda m, x: models.LeNet(channels=None), "^Conv2d: in_channels is None; it must be an int$"),
        (lambda m, x: new_run(3, None, seed=1), "^new_run: corpus is a int; it must be a Corpus$"),
        (lambda m, x: new_run("abc", {}, seed=1), "^new_run: recipe is a dict; it must be a Recipe$"),
    ],
)
def test_what_is_of_another_kind(call, message):
    with pytest.raises(TypeError, match=message):
        call(small(), tokens(1, 2))
