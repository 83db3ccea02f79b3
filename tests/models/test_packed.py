"""Folders of AWQ and GPTQ: weights packed here number by number are read, kept without loss, or refused in one line."""

import json
import re
import shlex

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import polyarr as pa
from polyarr import nn
from polyarr.cli import main
from polyarr.core import current
from polyarr.models import GPTModel, LlamaModel, PretrainedError, load_pretrained, save_pretrained
from polyarr.text import byte_tokenizer
from polyarr.training.pretrained import import_model, load_model
from tests.helpers.root import ROOT

SIZES = {"vocab_size": 16, "context_length": 8, "emb_dim": 64, "n_heads": 2, "n_layers": 1}
LLAMA = {**SIZES, "n_kv_heads": 1, "hidden_dim": 128, "head_size": 32}
PHI3 = {**LLAMA, "rotary_size": 16}  # queries, keys and values in one array, gates and ups in another
AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
TOKENS = np.array([[1, 5, 2, 7, 3]])
GATE = "model.layers.0.mlp.gate_proj"


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy):
    pa.random.seed(0)


def words(numbers, bits, order=None):
    """Pack the numbers (rows, columns) of each row into int32, the first into the lowest bits, or in an order."""
    count = 32 // bits
    rows = np.asarray(numbers).tolist()
    packed = [
        [sum(row[at + i] << bits * j for j, i in enumerate(order or range(count))) for at in range(0, len(row), count)]
        for row in rows
    ]
    return np.array(packed, np.uint32).view(np.int32)


def quantized(shape, config, draw, zeros=None):
    """Return the stored arrays of a random weight (n, k), and the weight in float64."""
    (n, k), bits = shape, config["bits"]
    size = k if config["group_size"] == -1 else config["group_size"]
    groups = np.arange(k) // size
    if config.get("desc_act"):
        draw.shuffle(groups)
    codes = draw.integers(0, 2**bits, (k, n))
    if zeros is None:
        symmetric = config.get("sym", False)
        zeros = 2 ** (bits - 1) if symmetric else draw.integers(1, 2**bits, (groups.max() + 1, n))
    zeros = np.broadcast_to(zeros, (groups.max() + 1, n))
    scales = (draw.uniform(0.5, 1, zeros.shape) / 2**bits).astype(np.float16)
    weight = (codes - zeros[groups]) * scales[groups].astype(np.float64)
    if config["quant_method"] == "awq":
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        stored = {"qweight": words(codes, 4, order), "qzeros": words(zeros, 4, order), "scales": scales}
    else:
        less = 1 if config.get("checkpoint_format", "gptq") == "gptq" else 0
        stored = {"qweight": words(codes.T, bits).T.copy(), "qzeros": words(zeros - less, bits), "scales": scales}
        stored["g_idx"] = groups.astype(np.int32)
    return stored, weight.T


def written(folder, config, model=None, dtype="float16", only=("proj",), **options):
    """Write a model with random quantized layers; return the weights (n, k) by name, in float64."""
    draw = np.random.default_rng(0)
    save_pretrained(folder, model or LlamaModel(LLAMA), dtype=dtype)
    arrays, weights = load_file(folder / "model.safetensors"), {}
    for name in [name for name in arrays if any(part in name for part in only) and name.endswith(".weight")]:
        stored, weights[name] = quantized(arrays.pop(name).shape, config, draw, **options)
        stem = name.removesuffix(".weight")
        arrays |= {f"{stem}.{last}": a for last, a in stored.items()}
    save_file(arrays, folder / "model.safetensors")
    changed(folder, quantization_config=config)
    return weights


def changed(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def read(model):
    """Return the weights of the linear layers of a model of one block, by the names of the folder."""
    block = model.blocks[0]
    q, k, v = np.split(block.att.qkv.weight.numpy(), [64, 96])
    own = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v}
    layers = {"self_attn.o_proj": block.att.out, "mlp.gate_proj": block.ff.gate}
    layers |= {"mlp.up_proj": block.ff.up, "mlp.down_proj": block.ff.down}
    own |= {name: layer.weight.numpy() for name, layer in layers.items()}
    return {f"model.layers.0.{name}.weight": a for name, a in own.items()}


CONFIGS = {
    "awq": AWQ,
    "awq-64": {**AWQ, "group_size": 64},
    "awq-all": {**AWQ, "group_size": -1, "version": "GEMM"},
    "awq-named-format": {**{k: v for k, v in AWQ.items() if k != "version"}, "format": "gemm"},
    "gptq": GPTQ,
    "gptq-zeros": {**GPTQ, "sym": False, "group_size": 64},
    "gptq-v2": {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
    "gptq-all": {**GPTQ, "group_size": -1},
    "gptq-order": {**GPTQ, "desc_act": True, "sym": False},
    "gptq-8": {**GPTQ, "bits": 8},
    "gptq-8-zeros": {**GPTQ, "bits": 8, "sym": False, "checkpoint_format": "gptq_v2"},
    "gptq-48": {**GPTQ, "group_size": 48},  # the last group has fewer inputs
}
KEPT = {
    **dict.fromkeys(("gptq", "gptq-all"), pa.uint8),
    **dict.fromkeys(("awq", "awq-64", "awq-all", "awq-named-format", "gptq-zeros", "gptq-v2", "gptq-8"), pa.int8),
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_weights_are_the_formats(kind, dtype, tmp_path):
    weights = written(tmp_path, CONFIGS[kind])
    model = load_pretrained(tmp_path, dtype=None if dtype == "float16" else dtype)
    assert model.tok_emb.weight.dtype == dtype
    found = read(model)
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(found[name], weight.astype(found[name].dtype), err_msg=name)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.filterwarnings("ignore:load_pretrained")
def test_what_blocks_hold_stays_quantized(kind, tmp_path, backend):
    weights = written(tmp_path / "a", CONFIGS[kind])
    import_model(tmp_path / "a", tmp_path / "run", keep_quantized=True, dtype="float32")
    model, _ = load_model(tmp_path / "run")
    layer = model.blocks[0].ff.down
    assert (type(layer) is nn.QuantizedLinear) == (kind in KEPT)
    if kind in KEPT:
        assert layer.codes.dtype == KEPT[kind] and layer.scale.dtype == pa.float16
    for name, found in read(model).items():
        np.testing.assert_array_equal(found, weights[name].astype(np.float32), err_msg=name)
    logits, wanted = (m(pa.asarray(TOKENS)).numpy() for m in (model, load_pretrained(tmp_path / "a", dtype="float32")))
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


def test_layers_of_one_array_are_kept_apart(tmp_path):
    model = LlamaModel(PHI3)
    weights = written(tmp_path, AWQ, model)
    kept = load_pretrained(tmp_path, dtype="float32", keep_quantized=True).blocks[0].ff
    assert type(kept.gate) is type(kept.up) is nn.QuantizedLinear
    both = np.concatenate([kept.gate.weight.numpy(), kept.up.weight.numpy()])
    np.testing.assert_array_equal(both, weights["model.layers.0.mlp.gate_up_proj.weight"].astype(np.float32))


def test_experts_stay_quantized(tmp_path):
    """Each is a layer in the folder, and all of a block are one in polyarr."""
    experts = {"n_experts": 3, "experts_per_token": 2, "normalize_experts": True}
    weights = written(tmp_path, AWQ, LlamaModel({**LLAMA, **experts}), only=("experts",))
    model = load_pretrained(tmp_path, dtype="float32", keep_quantized=True)
    wanted = load_pretrained(tmp_path, dtype="float32")
    layer = model.blocks[0].ff.expert_up
    assert type(layer) is nn.QuantizedLinear and type(model.blocks[0].ff.router) is nn.Linear
    due = [weights[f"model.layers.0.block_sparse_moe.experts.{number}.w3.weight"] for number in range(3)]
    np.testing.assert_array_equal(layer.weight.numpy(), np.stack(due).astype(np.float32))
    tokens = pa.asarray(TOKENS)
    np.testing.assert_allclose(model(tokens).numpy(), wanted(tokens).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gptq-order", "gptq-8-zeros", "gptq-48"])
def test_what_cannot_be_kept_is_said_in_one_line(kind, tmp_path):
    weights = written(tmp_path, CONFIGS[kind])
    with pytest.warns(RuntimeWarning, match="and 4 more: dequantized; those kept have 32 inputs in a row") as caught:
        load_pretrained(tmp_path, keep_quantized=True)
    assert len(caught) == 1 and "\n" not in str(caught[0].message) and len(weights) == 7


def test_scales_beyond_float16_are_not_kept(tmp_path):
    written(tmp_path, AWQ)
    arrays = load_file(tmp_path / "model.safetensors")
    change = {f"{GATE}.scales": arrays[f"{GATE}.scales"].astype(np.float32) * np.float32(1.0001)}
    save_file(arrays | change, tmp_path / "model.safetensors")
    with pytest.warns(RuntimeWarning, match=f"load_pretrained: {GATE}.weight: dequantized; "):
        ff = load_pretrained(tmp_path, keep_quantized=True).blocks[0].ff
    assert type(ff.gate) is nn.Linear and type(ff.up) is nn.QuantizedLinear


def test_layers_that_are_not_quantized_and_a_quantized_head_are_read(tmp_path):
    weights = written(tmp_path, GPTQ, only=("mlp", "lm_head"))
    model = load_pretrained(tmp_path, keep_quantized=True, dtype="float32")
    assert type(model.blocks[0].att.qkv) is nn.Linear and type(model.out_head) is nn.QuantizedLinear
    np.testing.assert_array_equal(model.out_head.weight.numpy(), weights["lm_head.weight"].astype(np.float32))


def test_carries_of_zero_points_are_gptqmodels(tmp_path):
    # GPTQModel writes a zero point of 0 by subtracting one from each number of a word at once, with borrows.
    weights = written(tmp_path, {**GPTQ, "checkpoint_format": "gptq_v2"}, zeros=0)
    arrays = load_file(tmp_path / "model.safetensors")
    less = {name: a - np.int32(0x11111111) for name, a in arrays.items() if name.endswith("qzeros")}
    save_file(arrays | less, tmp_path / "model.safetensors")
    changed(tmp_path, quantization_config=GPTQ)
    np.testing.assert_array_equal(
        read(load_pretrained(tmp_path))[f"{GATE}.weight"], weights[f"{GATE}.weight"].astype(np.float16)
    )


def test_biases_of_zeros_that_autogptq_adds_are_ignored(tmp_path):
    written(tmp_path, GPTQ)
    path, bias = tmp_path / "model.safetensors", np.zeros(128, np.float16)
    save_file(load_file(path) | {f"{GATE}.bias": bias}, path)
    load_pretrained(tmp_path)
    save_file(load_file(path) | {f"{GATE}.bias": bias + 1}, path)
    assert refusal(tmp_path) == f"unknown {GATE}.bias"


def refusal(path):
    with pytest.raises(PretrainedError) as caught:
        load_pretrained(path)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    return text.removeprefix(f"load_pretrained: {path}: ")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("awq", "its quantization_config holds str; it must be a dict"),
        (
            {"quant_method": "fp8"},
            "its quantization_config has quant_method 'fp8'; polyarr reads 'awq' or 'gptq' or 'mxfp4'",
        ),
        ({}, "its quantization_config has quant_method None; polyarr reads 'awq' or 'gptq' or 'mxfp4'"),
        ({**AWQ, "version": "gemv"}, "its quantization_config has version 'gemv'; polyarr reads 'gemm'"),
        ({**AWQ, "bits": 8}, "its quantization_config has bits 8; polyarr reads 4"),
        ({**AWQ, "zero_point": False}, "its quantization_config has zero_point False; polyarr reads True"),
        ({**GPTQ, "bits": 3}, "its quantization_config has bits 3; polyarr reads 4 or 8"),
        ({**GPTQ, "bits": 4.0}, "its quantization_config has bits 4.0; polyarr reads 4 or 8"),
        ({**GPTQ, "group_size": 0}, "its quantization_config has group_size 0; it must be a positive int, or -1"),
        ({**GPTQ, "group_size": "32"}, "its quantization_config has group_size '32'; it must be a positive int, or -1"),
        ({**GPTQ, "desc_act": 1}, "its quantization_config has desc_act 1; polyarr reads False or True"),
        (
            {**GPTQ, "checkpoint_format": "marlin"},
            "its quantization_config has checkpoint_format 'marlin'; polyarr reads 'gptq' or 'gptq_v2'",
        ),
    ],
)
def test_other_quantizations_are_refused(config, reason, tmp_path):
    written(tmp_path, GPTQ)
    changed(tmp_path, quantization_config=config)
    assert refusal(tmp_path) == reason


@pytest.mark.parametrize(
    ("last", "change", "reason"),
    [
        ("qzeros", None, "missing {0}.qzeros"),
        ("scales", None, "missing {0}.scales"),
        ("qweight", None, "missing {0}.weight; unknown {0}.g_idx, {0}.qzeros, {0}.scales"),
        ("g_idx", None, "missing {0}.g_idx"),
        ("qweight", lambda a: a[0], "{0}.qweight is [128]; it must have 2 dimensions"),
        ("qweight", lambda a: a[:-1], "{0}.g_idx is [64] and must be [56] beside a qweight [7, 128]"),
        ("qweight", lambda a: a[:, :-1], "{0}.qweight is [8, 127]; its columns must be a multiple of 8"),
        ("qweight", lambda a: a.astype(np.int64), "{0}.qweight is of I64 and must be of I32"),
        ("qzeros", lambda a: a[:1], "{0}.qzeros is [1, 16] and must be [2, 16] beside a qweight [8, 128]"),
        ("scales", lambda a: a.T, "{0}.scales is [128, 2] and must be [2, 128] beside a qweight [8, 128]"),
        ("scales", lambda a: a.astype(np.int32), "{0}.scales is of I32 and must be of F64, F32, F16, BF16"),
        ("scales", lambda a: a * np.nan, "{0}.weight holds numbers that are not finite"),
        ("g_idx", lambda a: a + 1, "{0}.g_idx has numbers from 1 to 2; it has 2 groups"),
        ("g_idx", lambda a: a - 1, "{0}.g_idx has numbers from -1 to 0; it has 2 groups"),
        ("weight", lambda a: np.zeros((128, 64)), "{0} has both a weight and a qweight; it must have one of them"),
    ],
)
def test_every_damage_is_one_clear_line(last, change, reason, tmp_path):
    written(tmp_path, {**GPTQ, "desc_act": True})
    path, name = tmp_path / "model.safetensors", f"{GATE}.{last}"
    arrays = load_file(path)
    a = arrays.pop(name, None)
    save_file(arrays if change is None else arrays | {name: np.ascontiguousarray(change(a))}, path)
    assert refusal(tmp_path).startswith(reason.format(GATE))


def test_another_shape_than_the_models_is_named(tmp_path):
    written(tmp_path, GPTQ)
    changed(tmp_path, intermediate_size=120)
    assert f"{GATE}.weight is [128, 64] and must be [120, 64]" in refusal(tmp_path)


def test_gpt2_is_refused(tmp_path):
    save_pretrained(tmp_path, GPTModel({**SIZES, "drop_rate": 0.0, "qkv_bias": True, "tie_embeddings": True}))
    changed(tmp_path, quantization_config=GPTQ)
    assert refusal(tmp_path).startswith("its weights are quantized and stored as (in, out); ")


def test_the_page_is_what_happens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYARR_BACKEND", "numpy")
    monkeypatch.setattr(current, "_default", current._default)  # which commands set
    written(tmp_path / "Qwen2.5-0.5B-AWQ", AWQ, LlamaModel({**LLAMA, "vocab_size": 260, "context_length": 64}))
    (tmp_path / "Qwen2.5-0.5B-AWQ" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    page = (ROOT / "docs" / "run-gpt2-or-a-llama.md").read_text().partition("\n## AWQ, GPTQ and MXFP4\n")[2]
    block = re.search(r"^```sh\n(.*?)^```$", page, re.M | re.S)[1]
    for line in block.splitlines():
        main(shlex.split(line)[1:], standalone_mode=False)
    said = capsys.readouterr().out
    assert said.startswith("the quick") and "now try: polyarr generate runs/awq" in said
    assert type(load_model("runs/awq")[0].blocks[0].att.qkv) is nn.QuantizedLinear
