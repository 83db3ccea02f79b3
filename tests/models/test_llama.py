"""The Llama family: its size, its gradient, its causal mask, generation and training."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim
from polyarr.models.generation import generate
from polyarr.models.llama import PRESETS, LlamaConfig, LlamaModel
from polyarr.testing import assert_gradients_agree

SMALL = {
    "vocab_size": 11,
    "context_length": 12,
    "emb_dim": 8,
    "n_heads": 4,
    "n_layers": 2,
    "n_kv_heads": 2,
    "hidden_dim": 16,
    "head_size": 6,
    "rope_theta": 100.0,
    "rope_scaling": [4.0, 1.0, 4.0, 8],
}


@pytest.fixture(autouse=True)
def _numpy_and_seed():
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        yield


def small(**changes):
    return LlamaModel({**SMALL, **changes})


def tokens(*shape):
    return pa.random.randint(0, SMALL["vocab_size"], shape).astype(pa.int32)


@pytest.mark.parametrize(
    ("name", "count"),
    [("smollm2-135m", 134_515_008), ("qwen2-0.5b", 494_032_768), ("llama-3.2-1b", 1_235_814_400)],
)
def test_parameter_counts_are_the_published_ones(name, count):
    with nn.shapes_only():
        assert LlamaModel(PRESETS[name]).num_parameters() == count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_heads": 3}, "n_heads is 4, n_kv_heads is 3; it must divide n_heads"),
        ({"head_size": 7}, "head_size is 7; it must be even"),
        ({"rope_theta": float("nan")}, "rope_theta is nan; it must be a number from 1 to 1e+12"),
        ({"norm_eps": "1e-5"}, "norm_eps is '1e-5'; it must be a number from 0 to 1"),
        ({"rope_scaling": {"factor": 8}}, "rope_scaling is {'factor': 8}; it must be factor, low_freq_factor"),
        ({"rope_scaling": [8, 1, 4, 8, "ntk"]}, "rope_scaling's kind is 'ntk'; it must be 'llama3' or 'yarn'"),
        ({"activation": "tanh"}, "activation is 'tanh'; it must be 'relu' or"),
        ({"norm_place": None}, "norm_place is None; it must be 'before' or 'after' or 'both'"),
        ({"qk_norm": "each"}, "qk_norm is 'each'; it must be 'none' or 'head' or 'all'"),
        ({"norm_offset": 2}, "norm_offset is 2; it must be a number from 0 to 1"),
        ({"windows": 4}, "windows is 4; it must be a list of ints from 0 to"),
        ({"windows": [4, -1]}, "windows is [4, -1]; it must be a list of ints from 0 to"),
        ({"windows": [4, 4, 4]}, "windows has 3 numbers; it must have at most n_layers of them, 2"),
        ({"rotary_size": 5}, "rotary_size is 5; it must be an even int from 2 to head_size, 6"),
        ({"rotary_size": 8}, "rotary_size is 8; it must be an even int from 2 to head_size, 6"),
        ({"rotary_blocks": [2]}, "rotary_blocks is [2]; it must be a list of ints from 0 to 1"),
        ({"rope_scaling": [1, 1, 4, 8, "longrope"]}, "rope_scaling's short_factors is (); it must be a list of 3"),
        ({"rope_scaling": [1, 1, 4, 8, "yarn", 1, [1]]}, "rope_scaling's short_factors is [1]; it must be a list of 0"),
        ({"residual_scale": 0}, "residual_scale is 0; it must be a number from 1e-06 to"),
        ({"logit_softcap": 0}, "logit_softcap is 0; it must be a number from 1e-06 to"),
        ({"local_rope_theta": "1"}, "local_rope_theta is '1'; it must be a number from 1 to"),
        ({"rope_scaling": [8, 4, 4, 8]}, "rope_scaling's low_freq_factor is not below its high_freq_factor"),
        ({"n_experts": 2}, "experts_per_token is 0; it must be an int from 1 to 2"),
        ({"n_experts": 2, "experts_per_token": 3}, "experts_per_token is 3; it must be an int from 1 to 2"),
        ({"n_experts": None, "experts_per_token": 2}, "n_experts is None; it must be an int from 0 to"),
        ({"n_experts": True}, "n_experts is True; it must be an int from 0 to"),
        ({"n_experts": 2, "experts_per_token": 1, "expert_dim": 0}, "expert_dim is 0; it must be an int from 1 to"),
        ({"expert_bias": True}, "expert_bias is True, n_experts is 0; only experts have it"),
        ({"swiglu_limit": 7.0}, "swiglu_limit is 7.0, n_experts is 0; only experts have it"),
        ({"swiglu_limit": 0}, "swiglu_limit is 0; it must be a number from 1e-06 to"),
        ({"attention_sinks": 1}, "attention_sinks is 1; it must be True or False"),
        ({"shared_dim": 8}, "shared_dim is 8, n_experts is 0; only experts have it"),
        ({"n_experts": 2, "experts_per_token": 1, "router_loss": -1}, "router_loss is -1; it must be a number from 0"),
        ({"n_experts": 2, "experts_per_token": 1, "expert_blocks": [0]}, "expert_blocks has no 1; leave out n_experts"),
        ({"hidden_dim": 0}, "hidden_dim is 0; it must be a positive int"),
        ({"tie_embeddings": 1}, "tie_embeddings is 1; it must be True or False"),
        ({"emb": 1}, "unknown emb; the keys are vocab_size, context_length"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(changes, message):
    with pytest.raises(ValueError) as caught:
        small(**changes)
    assert str(caught.value).startswith(f"LlamaConfig: {message}") and "\n" not in str(caught.value)


QWEN3 = {"qk_norm": "head", "windows": [0, 3]}
OLMO2 = {"qk_norm": "all", "norm_place": "after"}
GEMMA = {
    "activation": "gelu_tanh", "norm_offset": 1.0, "norm_place": "both", "embedding_scale": 3.0, "tie_embeddings": True,
    "windows": [3, 0], "attention_scale": 0.3, "attention_softcap": 2.0, "logit_softcap": 4.0, "local_rope_theta": 10.0,
    "rope_scaling": [4.0, 1.0, 32.0, 8, "yarn", 1.1],
}  # fmt: skip
PHI3 = {"rotary_size": 4, "windows": [5], "rope_scaling": [1.0, 1.0, 4.0, 8, "longrope", 1.2, [1, 1], [2.0, 3.5]]}
GRANITE = {"embedding_scale": 3.0, "attention_scale": 0.3, "residual_scale": 0.7, "logit_divisor": 1.7}
SMOLLM3 = {"rotary_blocks": [1, 0], "windows": [0, 3]}
MIXTRAL = {"n_experts": 5, "experts_per_token": 2, "normalize_experts": True, "router_loss": 0.3}
QWEN2_MOE = {"n_experts": 3, "experts_per_token": 2, "expert_dim": 10, "shared_dim": 6, "expert_blocks": [0, 1]}
GPT_OSS = {
    "n_experts": 5, "experts_per_token": 3, "normalize_experts": True, "expert_bias": True, "swiglu_limit": 0.5,
    "attention_sinks": True, "qkv_bias": True, "out_bias": True, "windows": [3, 0],
    "rope_scaling": [4.0, 1.0, 32.0, 8, "yarn", 1.1, [], [], False],
}  # fmt: skip
FAMILIES = [{}, QWEN3, OLMO2, GEMMA, PHI3, GRANITE, SMOLLM3, MIXTRAL, QWEN2_MOE, GPT_OSS]


@pytest.mark.parametrize("changes", [*FAMILIES, {"tie_embeddings": True, "qkv_bias": True, "out_bias": True}])
def test_gradient_matches_finite_differences_in_float64(changes):
    model = pa.tree.map(lambda p: p.astype(pa.float64) * 3, small(**changes))
    inputs, targets = tokens(2, 7), tokens(2, 7)
    _, grads = pa.value_and_grad(lambda m: m.loss(inputs, targets))(model)
    generator = np.random.default_rng(1)
    for name, p in model.named_parameters().items():
        direction, ends = pa.asarray(generator.standard_normal(p.shape)), []
        for step in (1e-6, -1e-6):
            moved = {**model.state_dict(), name: p + direction * step}
            ends.append(float(model.copy().load_parameters(moved).loss(inputs, targets)))
        found = float(pa.sum(grads.named_parameters()[name] * direction))
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("changes", [{"qkv_bias": True}, *FAMILIES[1:]])
def test_gradients_are_the_same_on_every_backend(changes):
    model, inputs, targets = small(**changes), tokens(2, 7), tokens(2, 7)
    assert_gradients_agree(lambda m, x, y: m.loss(x, y), (model, inputs, targets), backends=("numpy", "opencl"))


def test_no_position_sees_a_later_token_and_order_matters():
    model, x = small(), tokens(1, 8)
    other = pa.asarray(x.numpy())
    other[0, 5] = (int(x[0, 5]) + 1) % 11
    a, b = model(x).numpy(), model(other).numpy()
    np.testing.assert_allclose(a[:, :5], b[:, :5], atol=1e-6)
    assert np.abs(a[:, 5:] - b[:, 5:]).max() > 1e-4
    turned_round = pa.asarray(x.numpy()[:, [1, 0, *range(2, 8)]])
    assert np.abs(model(turned_round).numpy()[:, -1] - a[:, -1]).max() > 1e-6


def test_a_window_hides_what_is_before_it_and_nothing_else():
    """With one block, the last logits are those of the last window alone; rotary positions see distances only."""
    model, x = pa.tree.map(lambda p: p * 4, small(n_layers=1, windows=[5])), tokens(1, 9)
    np.testing.assert_allclose(model(x)[:, -1].numpy(), model(x[:, 4:])[:, -1].numpy(), rtol=1e-4)
    assert np.abs(model(x)[:, -1].numpy() - model(x[:, 5:])[:, -1].numpy()).max() > 0.1
    np.testing.assert_array_equal(model(x[:, :5]).numpy(), small_like(model, windows=())(x[:, :5]).numpy())


def small_like(model, **changes):
    """Return a model with the parameters of `model` and another configuration."""
    return small(**{"n_layers": model.config.n_layers, **changes}).load_parameters(model.named_parameters())


def test_factors_of_longrope_are_chosen_by_the_context():
    model, x = pa.tree.map(lambda p: p * 20, small(**PHI3)), tokens(1, 8)
    long = PHI3["rope_scaling"]
    fixed = {which: [*long[:6], factors, factors] for which, factors in (("short", long[6]), ("long", long[7]))}
    wanted = {which: small_like(model, **{**PHI3, "rope_scaling": s})(x).numpy() for which, s in fixed.items()}
    np.testing.assert_array_equal(model(x).numpy(), wanted["long"])
    np.testing.assert_array_equal(model.with_context(9)(x).numpy(), wanted["long"])
    np.testing.assert_array_equal(model.with_context(8)(x).numpy(), wanted["short"])
    assert np.abs(wanted["short"] - wanted["long"]).max() > 0.1


def test_blocks_with_a_window_have_a_theta_of_their_own_and_no_scaling():
    model, x = pa.tree.map(lambda p: p * 20, small(windows=[4], local_rope_theta=9.0)), tokens(1, 8)
    plain, scaled = (small_like(model, windows=[4], rope_theta=9.0, **s) for s in ({"rope_scaling": None}, {}))
    np.testing.assert_array_equal(model(x).numpy(), plain(x).numpy())
    assert np.abs(scaled(x).numpy() - model(x).numpy()).max() > 0.1


def test_the_loss_of_routers_is_that_of_blocks_with_experts_in_training():
    """If each token chooses all experts, the load-balancing loss is their number."""
    experts = {"n_experts": 3, "experts_per_token": 3, "n_layers": 2, "expert_blocks": [0, 1]}
    model, given = small(**experts, router_loss=0.5), (tokens(2, 8), tokens(2, 8))
    without = small_like(model, **experts)
    for is_training, reduction, added in ((True, "mean", 0.5 * 3), (True, "sum", 0), (False, "mean", 0)):
        losses = [float(one.train(is_training).loss(*given, reduction=reduction)) for one in (model, without)]
        assert losses[0] - losses[1] == pytest.approx(added, abs=1e-5)


def test_blocks_without_rotary_embeddings_do_not_see_the_order():
    model, x = pa.tree.map(lambda p: p * 20, small(n_layers=1, rotary_blocks=[0])), tokens(1, 8)
    turned_round = pa.asarray(x.numpy()[:, [*range(6, -1, -1), 7]])
    np.testing.assert_allclose(model(turned_round).numpy()[:, -1], model(x).numpy()[:, -1], rtol=1e-4, atol=1e-4)
    rotary = small_like(model)
    assert np.abs(rotary(turned_round).numpy()[:, -1] - rotary(x).numpy()[:, -1]).max() > 0.01


def test_limits_hold_and_do_nothing_to_small_numbers():
    model, x = pa.tree.map(lambda p: p * 30, small()), tokens(2, 8)
    wide = model(x).numpy()
    assert np.abs(wide).max() > 8
    capped = small_like(model, logit_softcap=2.0)(x).numpy()
    np.testing.assert_allclose(capped, 2 * np.tanh(wide / 2), atol=1e-5)
    np.testing.assert_allclose(small_like(model, attention_softcap=1e6)(x).numpy(), wide, rtol=1e-3, atol=1e-3)
    assert np.abs(small_like(model, attention_softcap=0.1)(x).numpy() - wide).max() > 0.1


def test_padding_changes_no_text(backend):
    """Beside windows, limits of the scores and norms of queries and keys, too."""
    pa.random.seed(0)
    for changes in (QWEN3, GEMMA, PHI3, SMOLLM3, GPT_OSS):
        model, x = pa.tree.map(lambda p: p * 4, small(**changes)), tokens(2, 5)
        padded = pa.concat([x[:1], pa.concat([pa.zeros((1, 2), dtype=pa.int32), x[1:, :3]], axis=1)])
        found = generate(model, padded, 6, padding=pa.asarray([0, 2]), temperature=0).numpy()
        np.testing.assert_array_equal(found[:1], generate(model, x[:1], 6, temperature=0).numpy())
        np.testing.assert_array_equal(found[1:, 2:], generate(model, x[1:, :3], 6, temperature=0).numpy())


@pytest.mark.parametrize("changes", FAMILIES)
def test_logits_with_a_cache_are_those_without(changes, backend):
    pa.random.seed(0)
    model, x = pa.tree.map(lambda p: p * 20, small(**changes)), tokens(2, 8)
    wanted, caches = model(x).numpy(), model.caches(2, 10)
    parts = [model(x[:, :5], caches)] + [model(x[:, i : i + 1], caches, i) for i in range(5, 8)]
    atol = max(1e-4, 3e-5 * float(np.abs(wanted).max()))  # 14 digits are equal in float64
    np.testing.assert_allclose(np.concatenate([p.numpy() for p in parts], 1), wanted, rtol=1e-4, atol=atol)


def test_text_is_the_same_with_and_without_a_cache_beyond_the_context_too(backend):
    pa.random.seed(0)
    model, prompt = pa.tree.map(lambda p: p * 4, small()), tokens(2, 3)
    found = generate(model, prompt, 14, temperature=0).numpy()
    seen = prompt.numpy()
    for _ in range(14):
        logits = model(pa.asarray(seen[:, -12:]))[:, -1].numpy()
        seen = np.concatenate([seen, logits.argmax(-1)[:, None].astype(seen.dtype)], axis=1)
    np.testing.assert_array_equal(found, seen)
    assert len(set(found[0].tolist())) > 2


def test_it_learns_a_small_batch_by_heart_in_a_compiled_step(backend):
    pa.random.seed(0)
    model, windows = small(emb_dim=32), tokens(2, 9)
    optimizer = optim.AdamW(lr=1e-2, clip=1.0)

    @pa.compile
    def step(model, state, windows):
        loss, grads = pa.value_and_grad(lambda m: m.loss(windows[:, :-1], windows[:, 1:]))(model)
        return loss, *optimizer.update(grads, state, model)

    state = optimizer.init(model)
    for _ in range(100):
        loss, model, state = step(model, state, windows)
    assert float(loss) < 0.1


def test_a_config_survives_json_like_mappings():
    config = LlamaConfig.of(SMALL)
    assert config.rope_scaling == nn.RotaryScaling(4.0, 1.0, 4.0, 8) and LlamaModel(config).config is config


def test_tokens_that_the_tokenizer_lacks_are_not_drawn():
    drawn = generate(small(), tokens(4, 3), 20, temperature=1e9, seed=0, vocab_size=2).numpy()[:, 3:]
    assert set(drawn.ravel().tolist()) == {0, 1}
    with pytest.raises(ValueError, match="vocab_size is 0; it must be at least 1"):
        generate(small(), tokens(1, 3), 1, vocab_size=0)
