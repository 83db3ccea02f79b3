"""Quantized weights: rounding, text generated with them, and adapters beside them."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops
from polyarr.models import GPTModel, LlamaModel, generate
from polyarr.nn.lora import replaced

SIZES = {"vocab_size": 40, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
MODELS = {
    "gpt": lambda: GPTModel({**SIZES, "drop_rate": 0.0, "qkv_bias": True}),
    "tied gpt": lambda: GPTModel({**SIZES, "drop_rate": 0.0, "qkv_bias": False, "tie_embeddings": True}),
    "llama": lambda: LlamaModel({**SIZES, "n_kv_heads": 2, "hidden_dim": 48, "head_size": 8}),
}


def model_of(name):
    pa.random.seed(0)
    return pa.tree.map(lambda p: p * 4 if p.ndim > 1 else p, MODELS[name]()).eval()


@pytest.mark.parametrize("dtype", [pa.float32, pa.bfloat16])
def test_a_weight_is_half_a_step_away_at_most(backend, dtype):
    weight = pa.asarray(
        np.random.default_rng(0).normal(size=(5, 33)).astype(np.float32) * [[1], [1e-6], [1e4], [0], [3]]
    )
    layer = nn.QuantizedLinear.of(weight.astype("float32").astype(dtype))
    given, codes, scale = weight.astype(dtype).astype("float32").numpy(), layer.codes.numpy(), layer.scale.numpy()
    assert layer.codes.dtype == pa.int8 and np.abs(codes).max(axis=1).tolist() == [127, 127, 127, 0, 127]
    assert (np.abs(layer.weight.numpy() - given) <= 0.5001 * scale[:, None]).all()


def test_a_row_with_a_nan_does_not_become_numbers(backend):
    """Neither does a row so small that its scale is 0."""
    rows = [[np.nan, 5, 0.25], [np.inf, 1, 2], [1e-44, 0, 1e-44], [1, 2, 3]]
    found = nn.QuantizedLinear.of(pa.asarray(np.array(rows, np.float32)))(pa.ones((1, 3))).numpy()[0]
    assert np.isnan(found[:2]).all() and found[2] == 0 and abs(found[3] - 6) < 0.05


@pytest.mark.parametrize("activation", [None, "gelu_tanh"])
def test_a_layer_computes_with_its_dequantized_weight(backend, activation):
    pa.random.seed(1)
    plain = nn.Linear(33, 7, activation=activation)
    layer, x = nn.quantized(plain), pa.random.normal((2, 3, 33))
    wanted = ops.linear(x, layer.weight, plain.bias, activation=activation).numpy()
    np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert nn.quantized(nn.Linear(33, 7, bias=False))(x.astype("bfloat16")).dtype == pa.bfloat16
    for rows in (1, 8, 9, 72):  # few rows read the int8 codes, many the dequantized weight
        x = pa.random.normal((rows, 33))
        wanted = ops.linear(x, layer.weight, plain.bias, activation=activation).numpy()
        np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_blocks_have_the_bits_of_gguf(backend, kind):
    quants = pytest.importorskip("gguf").quants
    weight = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    weight[0, :32], weight[1, 3], weight[2] = 0, -50, np.round(weight[2] * 2) / 2
    layer = nn.QuantizedLinear.of(pa.asarray(weight), kind)
    kind = getattr(quants.GGMLQuantizationType, kind.upper())
    stored = quants.quantize(weight, kind).reshape(7, 3, -1)
    np.testing.assert_array_equal(layer.scale.numpy().view(np.uint8).reshape(7, 3, 2), stored[:, :, :2])
    np.testing.assert_array_equal(layer.codes.numpy().view(np.uint8).reshape(7, 3, -1), stored[:, :, 2:])
    np.testing.assert_array_equal(layer.weight.numpy(), quants.dequantize(stored.reshape(7, -1), kind))


@pytest.mark.parametrize(("kind", "steps"), [("q8_0", 127), ("q4_0", 7)])
def test_blocks_are_half_a_step_away_at_most(backend, kind, steps):
    weight = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    layer = nn.QuantizedLinear.of(pa.asarray(weight), kind)
    largest = np.abs(weight).reshape(5, 2, 32).max(axis=2).repeat(32, axis=1)
    assert (np.abs(layer.weight.numpy() - weight) <= 0.6 * largest / steps + 1e-3).all()
    x = pa.random.normal((3, 64))
    np.testing.assert_allclose(layer(x).numpy(), x.numpy() @ layer.weight.numpy().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0"])
def test_codes_and_scales_are_neither_trained_nor_cast(on_numpy, kind):
    layer = nn.quantized(nn.Linear(64, 4), kind)
    cast = layer.astype("bfloat16").unfreeze()
    assert not cast.named_parameters(only_trainable=True)
    for mine, theirs in zip(pa.tree.leaves(cast), pa.tree.leaves(layer), strict=True):
        assert mine.dtype == theirs.dtype


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0"])
def test_parameters_are_those_of_the_weights_that_codes_stand_for(on_numpy, kind):
    experts = {"n_kv_heads": 1, "hidden_dim": 64, "head_size": 16, "n_experts": 3, "expert_dim": 32}
    sizes = {"vocab_size": 23, "context_length": 8, "emb_dim": 32, "n_heads": 2, "n_layers": 1, **experts}
    for model in (model_of("gpt"), LlamaModel({**sizes, "experts_per_token": 1})):
        assert nn.quantized(model, kind).num_parameters() == model.num_parameters()
        assert nn.lora(nn.quantized(model, kind), 2).num_parameters() == nn.lora(model, 2).num_parameters()


def dequantized(node):
    """Return a copy of a model with a Linear layer in place of each quantized one."""
    def change(_, layer):
        plain = nn.Linear(*layer.shape[::-1], activation=layer.activation)
        plain.weight, plain.bias = layer.weight, layer.bias
        return plain

    return replaced(node, change)


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0"])
def test_adapters_learn_beside_quantized_weights(backend, kind):
    """Their gradients are those beside the dequantized weights, and the codes stay."""
    small = model_of("gpt").quantized(kind)
    tokens, targets = pa.asarray([[3, 1, 4, 1, 5]]), pa.asarray([[1, 4, 1, 5, 9]])

    def loss_of(model):
        return model.loss(tokens, targets)

    gradients = []
    for base in (small, dequantized(small)):
        pa.random.seed(5)
        model = nn.lora(base, rank=2, match="*")
        for name, a in model.named_parameters(only_trainable=True).items():
            model = model.with_arrays({name: a + 0.02})
        gradients.append(pa.grad(loss_of)(model).named_parameters(only_trainable=True))
    assert len(gradients[0]) == 2 * (4 * 2 + 1)  # a and b of four layers in each of two blocks, and of the head
    for name, g in gradients[0].items():
        np.testing.assert_allclose(g.numpy(), gradients[1][name].numpy(), rtol=1e-3, atol=1e-5)

    optimizer, model = pa.optim.AdamW(lr=0.02), nn.lora(small, rank=4, match="*")
    state, losses, codes = optimizer.init(model), [], small.blocks[0].att.qkv.codes.numpy()
    for _ in range(12):
        loss, g = pa.value_and_grad(loss_of)(model)
        model, state = optimizer.update(g, state, model)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    np.testing.assert_array_equal(model.blocks[0].att.qkv.base.codes.numpy(), codes)
    merged = nn.merge_lora(model)
    assert type(merged.blocks[0].att.qkv) is nn.Linear
    np.testing.assert_allclose(merged(tokens).numpy(), model(tokens).numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_writes_the_same_with_a_cache_and_without(backend, name):
    model = model_of(name)
    small, prompt = model.quantized(), pa.asarray([[3, 1, 4, 1], [5, 9, 2, 6]])
    held = {p.dtype.name for n, p in small.named_parameters().items() if n.endswith("codes")}
    assert held == {"int8"} and all(p.dtype != pa.int8 for p in model.named_parameters().values())
    assert small.caches(2, 8)[0].k.dtype == pa.float32 and type(small.out_head) is nn.QuantizedLinear
    a, b = (m(prompt).numpy() for m in (model, small))
    assert 0 < np.abs(a - b).max() < 0.03 * np.abs(a).max()
    seen = prompt
    for _ in range(9):
        seen = ops.concat([seen, ops.argmax(small(seen)[:, -1], axis=-1)[:, None].astype(seen.dtype)], axis=1)
    np.testing.assert_array_equal(generate(small, prompt, 9, temperature=0).numpy(), seen.numpy())


def test_adapters_are_merged_before(on_numpy):
    model = nn.lora(model_of("gpt"), rank=2)
    found = pa.tree.map(lambda p: p + 0.01, model)
    wanted = nn.merge_lora(found).quantized()
    for ours, theirs in zip(pa.tree.leaves(found.quantized()), pa.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert type(found.quantized().blocks[0].att.qkv) is nn.QuantizedLinear


@pytest.mark.parametrize(
    ("x", "codes", "scale", "error"),
    [
        ((2, 3), ((4, 3), "float32"), (4,), r"codes is float32\[4, 3\]; its dtype must be int8 or uint8"),
        ((2, 3), ((4, 5), "int8"), (4,), r"they must be \[..., k\], \[n, k\] and \[n\] or \[n, k / 32\]"),
        ((2, 3), ((4, 3), "int8"), (3,), r"scale is float32\[3\]; they must be"),
        ((), ((4, 3), "int8"), (4,), r"x is float32\[\]"),
        ((2, 64), ((4, 64), "int8"), (4, 1), r"scale is float32\[4, 1\]; they must be"),
        ((2, 33), ((4, 33), "int8"), (4, 1), r"k must be a multiple of 32 for blocks and for codes of 4 bits"),
        ((2, 8), ((4, 4), "uint8"), (4,), r"k must be a multiple of 32 for blocks and for codes of 4 bits"),
        ((2, 4), ((4, 4), "uint8"), (4,), r"they must be \[..., k\], \[n, k / 2\] and"),
        ((2, 3), ((3,), "int8"), (3,), r"codes is int8\[3\]"),
    ],
)
def test_what_does_not_fit_is_refused(x, codes, scale, error):
    with pytest.raises((ValueError, TypeError), match=error):
        ops.quantized_linear(pa.ones(x), pa.ones(codes[0], dtype=codes[1]), pa.ones(scale))
