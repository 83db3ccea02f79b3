"""Low-rank adapters: the initial model is unchanged, only adapters have gradients, merging gives a plain model."""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim
from polyarr.models import GPTModel, LlamaModel, generate

GPT = {
    "vocab_size": 31, "context_length": 12, "emb_dim": 16, "n_heads": 2, "n_layers": 2, "drop_rate": 0.0,
    "qkv_bias": True, "tie_embeddings": True,
}  # fmt: skip
LLAMA = {
    "vocab_size": 31, "context_length": 12, "emb_dim": 16, "n_heads": 4, "n_layers": 2, "n_kv_heads": 2,
    "hidden_dim": 20, "head_size": 4,
}  # fmt: skip


def tokens():
    return pa.asarray(np.random.default_rng(0).integers(0, 31, (3, 12)))


def new(kind, config, *args, **settings):
    """Return a model, and the same model with adapters."""
    pa.random.seed(0)
    model = kind(config)
    return model, nn.lora(model, *args, **settings)


def drawn(model):
    """Return the model with random adapters, so that they have an effect."""
    return pa.tree.map(lambda p: p, model).load_parameters({
        name: 0.1 * np.random.default_rng(i).standard_normal(p.shape) if name.endswith((".a", ".b")) else p
        for i, (name, p) in enumerate(model.named_parameters().items())
    })  # fmt: skip


def loss_of(model):
    return model.loss(tokens()[:, :-1], tokens()[:, 1:])


@pytest.mark.parametrize(("kind", "config"), [(GPTModel, GPT), (LlamaModel, LLAMA)])
@pytest.mark.parametrize(
    ("match", "paths"),
    [
        ("att.*", ["blocks.0.att.qkv", "blocks.0.att.out", "blocks.1.att.qkv", "blocks.1.att.out"]),
        ("q?v", ["blocks.0.att.qkv", "blocks.1.att.qkv"]),
        ("blocks.1.ff.down", ["blocks.1.ff.down"]),
        ("*", None),
    ],
)
def test_a_model_with_adapters_is_the_same_at_first_and_trains_them_alone(backend, kind, config, match, paths):
    model, adapted = new(kind, config, 3, match)
    assert np.array_equal(adapted(tokens()).numpy(), model(tokens()).numpy())
    assert float(loss_of(adapted)) == float(loss_of(model))
    trained = list(adapted.named_parameters(only_trainable=True))
    linear = [name for name, p in model.named_parameters().items() if name.endswith("weight") and p.ndim == 2]
    paths = paths or [name.removesuffix(".weight") for name in linear if "emb" not in name]
    assert trained == [f"{path}.{name}" for path in paths for name in "ab"]
    assert list(pa.tree.by_name(pa.grad(loss_of)(adapted))) == trained
    assert not any(p.endswith((".a", ".b")) for p in model.named_parameters()) and not model.frozen
    assert list(optim.AdamW().init(adapted)["m"]) == trained


def test_gradients_are_those_through_the_whole_weight(backend):
    """For W + s b a with gradient g, a has the gradient s b^T g and b has s g a^T. The head's adapter is included."""
    adapted = drawn(new(LlamaModel, LLAMA, 3, "*", alpha=6)[1])
    merged = nn.merge_lora(adapted)
    np.testing.assert_allclose(adapted(tokens()).numpy(), merged(tokens()).numpy(), rtol=0, atol=2e-6)
    (loss, grads), (wanted_loss, wanted) = (pa.value_and_grad(loss_of)(m) for m in (adapted, merged))
    assert float(loss) == pytest.approx(float(wanted_loss), abs=1e-5)
    found, held, wanted = grads.named_parameters(), adapted.named_parameters(), wanted.named_parameters()
    assert len(found) == 2 * (5 * 2 + 1)
    for name in {name.rpartition(".")[0] for name in found}:
        a, b, g = held[f"{name}.a"].numpy(), held[f"{name}.b"].numpy(), wanted[f"{name}.weight"].numpy()
        for own, whole in (("a", 2 * b.T @ g), ("b", 2 * g @ a.T)):
            largest = np.abs(whole).max()
            assert largest > 1e-4
            np.testing.assert_allclose(found[f"{name}.{own}"].numpy(), whole, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize(("kind", "config"), [(GPTModel, GPT), (LlamaModel, LLAMA)])
@pytest.mark.parametrize("names", ["q", "v", "qv", "kqv"])
def test_parts_of_attention_have_adapters_of_their_own(backend, kind, config, names):
    """Rows of other parts do not change, and each part's gradients come from its own rows."""
    model, adapted = new(kind, config, 2, f"att.[{names}]", alpha=6)
    assert np.array_equal(adapted(tokens()).numpy(), model(tokens()).numpy())
    trained = adapted.named_parameters(only_trainable=True)
    assert list(trained) == [f"blocks.{n}.att.qkv.{half}" for n in range(2) for half in "ab"]
    adapted = drawn(adapted)
    merged = nn.merge_lora(adapted)
    np.testing.assert_allclose(adapted(tokens()).numpy(), merged(tokens()).numpy(), rtol=0, atol=2e-6)
    grads, whole = (pa.grad(loss_of)(m).named_parameters() for m in (adapted, merged))
    layer, at = adapted.blocks[1].att.qkv, "blocks.1.att.qkv"
    a, b, g = layer.a.numpy(), layer.b.numpy(), whole[f"{at}.weight"].numpy()
    change, done, rest = merged.blocks[1].att.qkv.weight.numpy() - layer.base.weight.numpy(), 0, np.ones(len(g), bool)
    for number, name in enumerate(sorted(names, key="qkv".index)):
        start, stop = model.blocks[1].att.parts()[name]
        part, rest[start:stop] = slice(2 * number, 2 * number + 2), False
        rows = slice(done, done + stop - start)
        np.testing.assert_allclose(change[start:stop], 3 * b[rows] @ a[part], rtol=0, atol=1e-6)
        for found, wanted in (
            (grads[f"{at}.a"].numpy()[part], 3 * b[rows].T @ g[start:stop]),
            (grads[f"{at}.b"].numpy()[rows], 3 * g[start:stop] @ a[part].T),
        ):
            assert np.abs(wanted).max() > 1e-5
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
        done += stop - start
    assert not change[rest].any() and len(b) == done


def test_gradients_are_central_differences_in_float64(on_numpy):
    adapted = drawn(new(GPTModel, GPT, 2, "*")[1]).astype("float64")
    grads = pa.grad(loss_of)(adapted).named_parameters()
    rng, eps = np.random.default_rng(5), 1e-6
    along = {name: rng.standard_normal(g.shape) for name, g in grads.items()}

    def at(step):
        held = adapted.named_parameters()
        moved = {name: p + step * pa.asarray(along[name]) if name in along else p for name, p in held.items()}
        return float(loss_of(adapted.copy().load_parameters(moved)))

    slope = sum(float(np.sum(g.numpy() * along[name])) for name, g in grads.items())
    assert abs(slope) > 1e-3 and slope == pytest.approx((at(eps) - at(-eps)) / (2 * eps), rel=1e-6)


def test_a_merged_model_is_a_plain_one(backend):
    model, adapted = new(GPTModel, GPT, 3, alpha=1.5)
    adapted = drawn(adapted)
    merged = nn.merge_lora(adapted)
    assert str(merged) == str(model) and not any(module.frozen for module in merged.modules())
    assert list(merged.named_parameters()) == list(model.named_parameters())
    a, b = (adapted.blocks[1].att.out.named_parameters()[name].numpy() for name in "ab")
    wanted = model.blocks[1].att.out.weight.numpy() + 0.5 * b @ a
    np.testing.assert_allclose(merged.blocks[1].att.out.weight.numpy(), wanted, rtol=1e-6, atol=1e-6)
    plain = nn.merge_lora(model)
    assert all(p is q for p, q in zip(pa.tree.leaves(plain), pa.tree.leaves(model), strict=True))
    text = [generate(m, tokens()[:1, :4], 12, temperature=0).numpy() for m in (adapted, merged)]
    assert np.array_equal(*text) and len(set(text[0][0].tolist())) > 4


def test_steps_are_the_same_captured_and_with_less_memory_and_the_loss_falls(backend):
    adapted = new(GPTModel, GPT, 4, dropout=0.25)[1]
    optimizer = optim.AdamW(lr=0.03)

    def step(model, state):
        def loss(m):
            m = m.astype("bfloat16")
            features = pa.checkpoint(m.features)(tokens()[:, :-1])
            head = m.tok_emb.weight
            return pa.linear_cross_entropy(features, head, tokens()[:, 1:])

        value, grads = pa.value_and_grad(loss)(model)
        return value, *optimizer.update(grads, state, model)

    losses = []
    for run in (step, pa.compile(step, donate=("model", "state"))):
        pa.random.seed(1)
        model, state = pa.tree.map(lambda p: p + 0, adapted), optimizer.init(adapted)
        found = []
        for _ in range(8):
            loss, model, state = run(model, state)
            found.append(float(loss))
        losses.append(found)
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0] - 0.02


def test_adapters_beside_narrow_weights_are_wide(backend):
    pa.random.seed(0)
    model = GPTModel(GPT).astype("bfloat16")
    adapted = nn.lora(model, 3)
    assert {p.dtype for p in adapted.named_parameters(only_trainable=True).values()} == {pa.float32}
    assert adapted.blocks[0].att.qkv.base.weight is model.blocks[0].att.qkv.weight
    assert np.array_equal(adapted(tokens()).numpy(), model(tokens()).numpy())
    assert {g.dtype for g in pa.tree.leaves(pa.grad(loss_of)(drawn(adapted)))} == {pa.float32}
    assert {p.dtype for p in pa.tree.leaves(nn.merge_lora(adapted))} == {pa.bfloat16}


def test_dropout_is_in_the_models_mode(on_numpy):
    model, adapted = new(GPTModel, GPT, 3, dropout=0.5)
    adapted = drawn(adapted)
    assert not np.array_equal(adapted(tokens()).numpy(), adapted(tokens()).numpy())
    assert np.array_equal(adapted.eval()(tokens()).numpy(), adapted(tokens()).numpy())
    again = drawn(nn.lora(model.eval(), 3, dropout=0.5))
    assert np.array_equal(again(tokens()).numpy(), adapted(tokens()).numpy())


def test_what_cannot_be_is_refused_in_one_line(on_numpy):
    model, adapted = new(GPTModel, GPT, 3)
    such = r"such as blocks.0.att.qkv, .*, or of one part, such as blocks.0.att.q$"
    for match in ("nope", "", "att", ".*", "attention.*", "tok_emb"):
        with pytest.raises(ValueError, match=rf"^lora: match is .*paths of Linear layers, {such}"):
            nn.lora(model, match=match)
    with pytest.raises(ValueError, match="of which there is none"):
        nn.lora(nn.LayerNorm(3))
    with pytest.raises(ValueError, match="has adapters already; merge_lora puts them into its weights"):
        nn.lora(adapted, match="ff.*")
    for wrong in ({"rank": 0}, {"rank": 1.5}, {"rank": True}, {"alpha": 0}, {"alpha": math.nan}, {"alpha": math.inf}):
        with pytest.raises(ValueError, match=r"lora: (rank|alpha) is .*; it must be a positive (int|number)"):
            nn.lora(model, **wrong)
    with pytest.raises(ValueError, match="lora: match is 3; it must be a pattern for paths of layers"):
        nn.lora(model, match=3)
    experts = nn.MixtureOfExperts(4, 8, experts=6, per_token=2)
    paths = [name[:-2] for name in nn.lora(experts, match="*").named_parameters(only_trainable=True)][::2]
    assert paths == ["router", "expert_gate", "expert_up", "expert_down"]
    with pytest.raises(TypeError, match="lora: model is a list; it must be a Module"):
        nn.lora([model])
    with pytest.raises(ValueError, match="dropout rate is 2; it must be from 0 to 1"):
        nn.lora(model, dropout=2)
