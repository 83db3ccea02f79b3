"""Folders of gpt-oss: experts in MXFP4 packed here number by number, and the names and layouts of their arrays."""

import json
import re

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

import polyarr as pa
from polyarr import nn
from polyarr.models import (
    LlamaModel,
    PretrainedError,
    generate,
    load_adapters,
    load_pretrained,
    save_adapters,
    save_gguf,
    save_pretrained,
)

# What the codes 0 to 15 stand for.
NUMBERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
CONFIG = {
    "vocab_size": 23, "context_length": 64, "emb_dim": 64, "n_heads": 4, "n_layers": 2, "n_kv_heads": 2,
    "hidden_dim": 32, "head_size": 8, "n_experts": 3, "experts_per_token": 2, "normalize_experts": True,
    "expert_bias": True, "swiglu_limit": 7.0, "attention_sinks": True, "qkv_bias": True, "out_bias": True,
    "windows": [5, 0], "rope_theta": 150_000.0,
}  # fmt: skip
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
EXPERTS = "model.layers.1.mlp.experts"
NAMES = {  # parts of transformers' names, and llama.cpp's
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.sinks": "attn_sinks.weight", "mlp.router": "ffn_gate_inp",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias", "mlp.experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip
TOKENS = np.array([[1, 5, 2, 7, 3, 22, 0, 9]])


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy):
    pa.random.seed(0)


def model_of(**changes):
    """Return a model whose parameters, also sinks and biases, are random; blocks outweigh the embedding."""
    made = LlamaModel({**CONFIG, **changes}).eval()
    held = made.named_parameters()
    scales = {name: 0.1 if name.startswith(("tok_emb", "out_head")) else 0.4 for name in held}
    return made.with_arrays({n: scales[n] * pa.random.normal(p.shape) + float("norm" in n) for n, p in held.items()})


def packed(shape, draw, exponents=(-6, 3)):
    """Return blocks and scales of random weights (experts, out, in), and the weights in float64."""
    e, n, k = shape
    codes, scales = draw.integers(0, 16, shape), draw.integers(*exponents, (e, n, k // 32)) + 127
    blocks, weights = np.zeros((e, n, k // 32, 16), np.uint8), np.zeros(shape)
    for i, j, m in np.ndindex(shape):
        block, at = divmod(m, 32)
        blocks[i, j, block, at // 2] |= codes[i, j, m] << 4 * (at % 2)
        weights[i, j, m] = NUMBERS[codes[i, j, m]] * 2.0 ** (scales[i, j, block] - 127)
    return blocks, scales.astype(np.uint8), weights


def written(folder, exponents=(-6, 3)):
    """Write a bfloat16 model with random experts in MXFP4; return their weights by name, in float64."""
    save_pretrained(folder, model_of(), dtype="bfloat16")
    path, draw, weights = folder / "model.safetensors", np.random.default_rng(0), {}
    arrays = load_file(path)
    for name in [name for name in arrays if name.endswith(("gate_up_proj", "down_proj"))]:
        e, k, n = arrays.pop(name).shape
        arrays[f"{name}_blocks"], arrays[f"{name}_scales"], weights[name] = packed((e, n, k), draw, exponents)
    save_file(arrays, path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": MXFP4}))
    return weights


def read(model):
    """Return the weights of the experts of a model, by the names of the folder."""
    found = {}
    for number, block in enumerate(model.blocks):
        gate, up, down = (getattr(block.ff, f"expert_{part}").weight.numpy() for part in ("gate", "up", "down"))
        both = np.empty((len(gate), 2 * gate.shape[1], gate.shape[2]), gate.dtype)
        both[:, 0::2], both[:, 1::2] = gate, up
        found |= {f"model.layers.{number}.mlp.experts.{n}": a for n, a in (("gate_up_proj", both), ("down_proj", down))}
    return found


def test_arrays_have_the_names_and_layouts_of_the_folder(tmp_path):
    model = model_of()
    save_pretrained(tmp_path, model)
    arrays, ff = load_file(tmp_path / "model.safetensors"), model.blocks[1].ff
    assert len([name for name in arrays if name.startswith("model.layers.1.")]) == 17
    for expert in range(3):
        gate_up, bias = arrays[f"{EXPERTS}.gate_up_proj"][expert], arrays[f"{EXPERTS}.gate_up_proj_bias"][expert]
        assert gate_up.shape == (64, 2 * 32)
        for start, layer in ((0, ff.expert_gate), (1, ff.expert_up)):
            np.testing.assert_array_equal(gate_up[:, start::2], layer.weight[expert].numpy().T)
            np.testing.assert_array_equal(bias[start::2], layer.bias[expert].numpy())
        np.testing.assert_array_equal(arrays[f"{EXPERTS}.down_proj"][expert], ff.expert_down.weight[expert].numpy().T)
        np.testing.assert_array_equal(arrays[f"{EXPERTS}.down_proj_bias"][expert], ff.expert_down.bias[expert].numpy())
    np.testing.assert_array_equal(arrays["model.layers.1.mlp.router.bias"], ff.router.bias.numpy())
    np.testing.assert_array_equal(arrays["model.layers.1.self_attn.sinks"], model.blocks[1].att.sinks.numpy())


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32", "float16"])
def test_numbers_of_mxfp4_are_those_of_the_table(dtype, tmp_path):
    weights = written(tmp_path)
    model = load_pretrained(tmp_path, dtype=dtype)
    found = read(model)
    assert {p.dtype for p in model.named_parameters().values()} == {np.dtype(dtype or bfloat16)}
    assert found.keys() == weights.keys() and len(weights) == 4
    for name, weight in weights.items():
        assert len(np.unique(weight)) > 20
        np.testing.assert_array_equal(found[name].astype(np.float64), weight, err_msg=name)


def test_the_least_and_largest_exponents_are_exact(tmp_path):
    """From -127, where numbers are subnormal, and to 125, where 6 times a power of two is in the range of bfloat16."""
    for exponents in ((-127, -120), (118, 126)):
        weights = written(tmp_path / str(exponents[0]), exponents)
        found = read(load_pretrained(tmp_path / str(exponents[0])))
        for name, weight in weights.items():
            np.testing.assert_array_equal(found[name].astype(np.float64), weight)
            assert found[name].any()


def test_numbers_beyond_a_dtype_are_refused(tmp_path):
    """6 * 2 ** 14 is not in float16, in which 1 * 2 ** 14 is."""
    written(tmp_path, (14, 15))
    with pytest.raises(PretrainedError, match="_proj holds numbers that are not finite in float16"):
        load_pretrained(tmp_path, dtype="float16")
    arrays = load_file(tmp_path / "model.safetensors")
    ones = {name: np.full_like(a, 0x2A) for name, a in arrays.items() if name.endswith("blocks")}  # -1 and 1
    save_file(arrays | ones, tmp_path / "model.safetensors")
    found = load_pretrained(tmp_path, dtype="float16").blocks[0].ff.expert_gate.weight.numpy()
    np.testing.assert_array_equal(found[0, 0], np.tile([-(2.0**14), 2.0**14], 32))


def test_experts_of_mxfp4_stay_quantized_without_loss(tmp_path, backend):
    """Also their biases; other layers have no codes."""
    weights = written(tmp_path / "a")
    kept = load_pretrained(tmp_path / "a", dtype="float32", keep_quantized=True)
    layer = kept.blocks[0].ff.expert_up
    assert type(layer) is nn.QuantizedLinear and layer.codes.dtype == pa.int8 and layer.scale.dtype == pa.float16
    assert type(kept.blocks[0].att.qkv) is type(kept.blocks[0].ff.router) is type(kept.out_head) is nn.Linear
    for name, weight in read(kept).items():
        np.testing.assert_array_equal(weight.astype(np.float64), weights[name])
    plain, tokens = load_pretrained(tmp_path / "a", dtype="float32"), pa.asarray(TOKENS)
    np.testing.assert_array_equal(layer.bias.numpy(), plain.blocks[0].ff.expert_up.bias.numpy())
    np.testing.assert_allclose(kept(tokens).numpy(), plain(tokens).numpy(), rtol=1e-4, atol=1e-4)
    save_pretrained(tmp_path / "b", kept)
    again = load_pretrained(tmp_path / "b").named_parameters()
    for name, p in plain.named_parameters().items():
        np.testing.assert_array_equal(again[name].numpy(), p.numpy())


def test_scales_beyond_float16_are_dequantized_with_a_warning(tmp_path):
    written(tmp_path, (20, 25))
    with pytest.warns(RuntimeWarning, match="gate_up_proj, .* and 1 more: dequantized; those kept have"):
        model = load_pretrained(tmp_path, keep_quantized=True)
    assert type(model.blocks[0].ff.expert_up) is nn.GroupedLinear


def lost(arrays):
    del arrays[f"{EXPERTS}.down_proj_scales"]


def shorter(arrays):
    arrays[f"{EXPERTS}.down_proj_scales"] = arrays[f"{EXPERTS}.down_proj_scales"][:, :3].copy()


def flat(arrays):
    arrays[f"{EXPERTS}.down_proj_blocks"] = arrays[f"{EXPERTS}.down_proj_blocks"].reshape(3, 64, 16)


def signed(arrays):
    arrays[f"{EXPERTS}.down_proj_blocks"] = arrays[f"{EXPERTS}.down_proj_blocks"].view(np.int8)


def twice(arrays):
    arrays[f"{EXPERTS}.down_proj"] = np.zeros((3, 32, 64), bfloat16)


def fewer(arrays):
    for last in ("blocks", "scales"):
        arrays[f"{EXPERTS}.down_proj_{last}"] = arrays[f"{EXPERTS}.down_proj_{last}"][:2].copy()


def not_a_number(arrays):
    """Return arrays with the exponent that stands for nan, which zeros do not hide."""
    arrays[f"{EXPERTS}.down_proj_scales"][0, 0, 0] = 255
    arrays[f"{EXPERTS}.down_proj_blocks"][0, 0, 0] = 0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lost, f"missing {EXPERTS}.down_proj_scales"),
        (shorter, f"{EXPERTS}.down_proj_scales is [3, 3, 1] and must be [3, 64, 1] beside blocks [3, 64, 1, 16]"),
        (flat, f"{EXPERTS}.down_proj_blocks is [3, 64, 16]; it must be [experts, out, in / 32, 16]"),
        (signed, f"{EXPERTS}.down_proj_blocks is of I8 and must be of U8"),
        (twice, f"{EXPERTS}.down_proj is there both with and without quantization; it must be one of them"),
        (fewer, f"{EXPERTS}.down_proj is [2, 32, 64] and must be [3, 32, 64]"),
        (not_a_number, f"{EXPERTS}.down_proj holds numbers that are not finite in bfloat16"),
    ],
)
def test_damaged_folders_are_refused(damage, reason, tmp_path):
    written(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    damage(arrays)
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(PretrainedError) as caught:
        load_pretrained(tmp_path)
    assert str(caught.value) == f"load_pretrained: {tmp_path}: {reason}"


def test_settings_that_are_left_out_are_those_of_the_class(tmp_path):
    """A folder without "rope_scaling" has YaRN, unlike one of other families."""
    save_pretrained(tmp_path, model_of())
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    assert settings["rope_scaling"] == {"rope_type": "default"}
    assert load_pretrained(tmp_path).config.rope_scaling is None
    due = {"rope_scaling", "rope_theta", "sliding_window", "layer_types", "swiglu_limit", "rms_norm_eps"}
    path.write_text(json.dumps({name: value for name, value in settings.items() if name not in due}))
    found = load_pretrained(tmp_path).config
    path.write_text(json.dumps({k: v for k, v in settings.items() if k not in due} | {"sliding_window_pattern": 3}))
    assert load_pretrained(tmp_path).config.windows == (128, 128)  # all blocks but every third, as GGUF files say it
    attention_factor = 0.1 * np.log(32) + 1
    assert found.rope_scaling == nn.RotaryScaling(32, 1, 32, 4096, "yarn", attention_factor, (), (), False)
    assert (found.rope_theta, found.windows, found.swiglu_limit, found.norm_eps) == (150_000, (128, 0), 7, 1e-5)
    path.write_text(json.dumps({**settings, "swiglu_alpha": 1.5}))
    with pytest.raises(PretrainedError, match=r"its swiglu_alpha is 1.5; polyarr's models have 1.702"):
        load_pretrained(tmp_path)


def adapted(model, match, rank=2):
    """Return a model with random adapters."""
    made = nn.lora(model, rank, match, alpha=5).eval()
    held = made.named_parameters(only_trainable=True)
    return made.with_arrays({name: 0.3 * pa.random.normal(p.shape) for name, p in held.items()})


@pytest.mark.parametrize("match", ["att.*", "att.[qv]", "expert_*", "expert_up", "ff.router", "*"])
def test_adapters_are_written_and_read(match, tmp_path):
    """Also merged into the weights."""
    model, tokens = model_of(), pa.asarray(TOKENS)
    made = adapted(model, match)
    due = made(tokens).numpy()
    assert np.abs(due - model(tokens).numpy()).max() > 0.1
    save_adapters(tmp_path / "a", made)
    found = load_adapters(tmp_path / "a", model)
    np.testing.assert_allclose(found(tokens).numpy(), due, rtol=1e-4, atol=1e-4)
    save_pretrained(tmp_path / "b", made)
    np.testing.assert_allclose(load_pretrained(tmp_path / "b")(tokens).numpy(), due, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_alone", [True, False])
def test_adapters_of_experts_are_in_pefts_layout(is_alone, tmp_path):
    """Columns of B belong to experts in turn; PEFT wraps their module once for each array, the last one outermost."""
    made = adapted(model_of(), "expert_down" if is_alone else "expert_*")
    save_adapters(tmp_path, made)
    arrays = load_file(tmp_path / "adapter_model.safetensors")
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    names = ["down_proj"] if is_alone else ["gate_up_proj", "down_proj"]
    due = [f"model.layers.{number}.mlp.experts.{name}" for number in range(2) for name in names]
    assert settings["target_parameters"] == due and settings["target_modules"] == []
    assert (settings["lora_dropout"], settings["fan_in_fan_out"]) == (0, False)
    rank, ff = settings["r"], made.blocks[1].ff
    assert rank == (2 if is_alone else 4)  # gate and up have an A each

    def change(prefix, expert):
        a, b = (arrays[f"base_model.model.{prefix}.lora_{half}.weight"] for half in "AB")
        return b.reshape(-1, rank, 3)[:, :, expert] @ a.reshape(3, rank, -1)[expert] * settings["lora_alpha"] / rank

    for expert in range(3):
        for part, own in (("down", change(EXPERTS, expert)),) if is_alone else (
            ("down", change(EXPERTS, expert)),
            ("gate", change(f"{EXPERTS}.base_layer", expert)[0::2]),
            ("up", change(f"{EXPERTS}.base_layer", expert)[1::2]),
        ):  # fmt: skip
            layer = getattr(ff, f"expert_{part}")
            np.testing.assert_allclose(own, (layer.weight - layer.base.weight).numpy()[expert], rtol=0, atol=1e-5)


def test_adapters_of_parts_of_attention_name_no_others(tmp_path):
    save_adapters(tmp_path, adapted(model_of(), "att.[qv]"))
    path = tmp_path / "adapter_config.json"
    settings = json.loads(path.read_text())
    named = {name.rpartition(".")[2] for name in settings["target_modules"]}
    assert named == {"q_proj", "v_proj"} and "target_parameters" not in settings
    path.write_text(json.dumps({**settings, "target_parameters": 5}))
    with pytest.raises(PretrainedError, match="its target_parameters is 5; it must be a list of names"):
        load_adapters(tmp_path, model_of())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, for what PEFT calls
def test_pefts_adapters_of_attention_and_experts_are_read(tmp_path, backend):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    save_pretrained(tmp_path / "base", model_of())
    given = {"target_modules": ["q_proj", "o_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    tokens = np.arange(16)[None]
    for changes in ({}, {"target_parameters": ["1.mlp.experts.gate_up_proj", "mlp.router.weight"]}):
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        theirs = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=5, **{**given, **changes})).eval()
        with torch.no_grad():
            plain = base(torch.tensor(tokens)).logits.numpy()
            for name, p in theirs.named_parameters():
                p.copy_(0.3 * torch.randn_like(p) if "lora_" in name else p)
            logits = theirs(torch.tensor(tokens)).logits.numpy()
        theirs.save_pretrained(folder := tmp_path / str(len(changes)))
        found = load_adapters(folder, load_pretrained(tmp_path / "base"))
        np.testing.assert_allclose(found(pa.asarray(tokens)).numpy(), logits, rtol=0, atol=1e-4)
        assert np.abs(logits - plain).max() > 0.1


def file_of(path, folder, experts, others, **changes):
    """Write a GGUF file of the weights of a folder as llama.cpp's converter does; put what it has into the folder.

    Expert weights are of the type `experts`, other matrices of `others`, biases and the router float32.
    """
    gguf = pytest.importorskip("gguf")
    yarn = nn.RotaryScaling(32.0, 1.0, 32.0, 16, "yarn", float(0.1 * np.log(32) + 1), (), (), False)
    save_pretrained(folder, model_of(rope_scaling=yarn, **changes), dtype="float32")
    arrays, writer = load_file(folder / "model.safetensors"), gguf.GGUFWriter(path, "gpt-oss")
    for key, value in {
        "context_length": 64, "embedding_length": 64, "block_count": 2, "feed_forward_length": 32,
        "expert_feed_forward_length": 32, "attention.head_count": 4, "attention.head_count_kv": 2, "expert_count": 3,
        "expert_used_count": 2, "attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 5,
        "rope.scaling.original_context_length": 16,
    }.items():  # fmt: skip
        writer.add_uint32(f"gpt-oss.{key}", value)
    for key, value in {
        "rope.freq_base": 150_000.0, "attention.layer_norm_rms_epsilon": 1e-5, "rope.scaling.factor": 32.0,
    }.items():  # fmt: skip
        writer.add_float32(f"gpt-oss.{key}", value)
    writer.add_string("gpt-oss.rope.scaling.type", "yarn")

    def add(name, a, type="F32"):
        """Add a tensor, and return the numbers that the library reads."""
        kind = gguf.GGMLQuantizationType[type]
        data = gguf.quants.quantize(np.ascontiguousarray(a), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        return gguf.quants.dequantize(data, kind)

    for name, a in arrays.items():
        own = re.sub(r"^model\.layers\.(\d)\.", r"blk.\1.", name)
        for theirs, ours in NAMES.items():
            own = own.replace(theirs, ours)
        if own.endswith("gate_up_proj"):  # rows of gate and up alternate, and llama.cpp's arrays are (experts, out, in)
            before, rows = own.removesuffix("mlp.experts.gate_up_proj"), a.swapaxes(1, 2)
            gate = add(f"{before}ffn_gate_exps.weight", rows[:, 0::2], experts)
            up = add(f"{before}ffn_up_exps.weight", rows[:, 1::2], experts)
            arrays[name] = np.stack([gate, up], axis=2).reshape(rows.shape).swapaxes(1, 2)
        elif own.endswith("gate_up_proj_bias"):
            before = own.removesuffix("mlp.experts.gate_up_proj_bias")
            add(f"{before}ffn_gate_exps.bias", a[:, 0::2])
            add(f"{before}ffn_up_exps.bias", a[:, 1::2])
        elif own.endswith("down_exps.weight"):
            arrays[name] = add(own, a.swapaxes(1, 2), experts).swapaxes(1, 2)
        else:
            arrays[name] = add(own, a, others if a.ndim == 2 and "ffn" not in own else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("experts", "others"),
    [("MXFP4", "Q8_0"), ("MXFP4", "BF16"), ("Q8_0", "Q8_0"), ("F16", "F16"), ("BF16", "BF16"), ("F32", "F32")],
)
def test_a_gguf_file_is_the_folder_of_its_numbers(experts, others, tmp_path):
    file_of(tmp_path / "a.gguf", tmp_path / "folder", experts, others)
    found, due = (load_pretrained(tmp_path / name, dtype="float32") for name in ("a.gguf", "folder"))
    assert found.config == due.config and found.config.rope_scaling.truncate is False
    held = found.named_parameters()
    for name, p in due.named_parameters().items():
        np.testing.assert_array_equal(held[name].numpy(), p.numpy(), err_msg=name)
    np.testing.assert_allclose(found(pa.asarray(TOKENS)).numpy(), due(pa.asarray(TOKENS)).numpy(), rtol=0, atol=1e-5)
    texts = [generate(model, pa.asarray(TOKENS), 30, temperature=0).numpy() for model in (found, due)]
    np.testing.assert_array_equal(*texts)
    assert len(set(texts[0][0, 8:].tolist())) > 4


def test_experts_of_a_gguf_file_in_mxfp4_stay_quantized_without_loss(tmp_path, backend):
    """They can also be written as Q8_0 without loss, or as MXFP4 again."""
    file_of(tmp_path / "a.gguf", tmp_path / "folder", "MXFP4", "Q8_0")
    due = load_pretrained(tmp_path / "a.gguf", dtype="float32")
    kept = load_pretrained(tmp_path / "a.gguf", dtype="float32", keep_quantized=True)
    for layer in (kept.blocks[0].ff.expert_gate, kept.blocks[1].ff.expert_down, kept.blocks[0].att.qkv):
        assert type(layer) is nn.QuantizedLinear and layer.codes.dtype == pa.int8
    assert type(kept.blocks[0].ff.router) is nn.Linear and kept.blocks[0].ff.expert_gate.bias is not None
    tokens = pa.asarray(TOKENS)
    np.testing.assert_allclose(kept(tokens).numpy(), due(tokens).numpy(), rtol=1e-4, atol=1e-4)
    for type_ in (None, "MXFP4"):
        save_gguf(tmp_path / f"{type_}.gguf", kept, type=type_)
        again = load_pretrained(tmp_path / f"{type_}.gguf", dtype="float32").named_parameters()
        for name, p in due.named_parameters().items():
            bound = 0.01 if name.startswith("tok_emb") else 0  # which is not kept, and float in the one file
            np.testing.assert_allclose(again[name].numpy(), p.numpy(), rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("match", ["att.*", "expert_*"])
@pytest.mark.parametrize("source", ["folder", "file"])
def test_adapters_are_trained_beside_mxfp4(source, match, tmp_path, backend):
    """Their gradients are those beside the dequantized weights, the loss falls, and the codes stay."""
    path = tmp_path / {"folder": "folder", "file": "a.gguf"}[source]
    if source == "file":
        file_of(path, tmp_path / "folder", "MXFP4", "Q8_0")
    else:
        written(path)
    small, plain = (load_pretrained(path, dtype="float32", keep_quantized=kept) for kept in (True, False))
    rows = np.random.default_rng(1).integers(0, 23, (4, 17))
    tokens, targets = pa.asarray(rows[:, :-1]), pa.asarray(rows[:, 1:])

    def loss_of(model):
        return model.loss(tokens, targets)

    model = adapted(small, match).train()
    other = nn.lora(plain, 2, match, alpha=5).with_arrays(model.named_parameters(only_trainable=True)).train()
    found, due = (pa.grad(loss_of)(m).named_parameters(only_trainable=True) for m in (model, other))
    assert len(found) == {"att.*": 8, "expert_*": 12}[match]
    for name, g in due.items():
        g, largest = g.numpy(), np.abs(g.numpy()).max()
        np.testing.assert_allclose(found[name].numpy(), g, rtol=0, atol=1e-4 * largest, err_msg=name)
        assert largest > 1e-4

    codes, optimizer = small.blocks[0].ff.expert_up.codes.numpy(), pa.optim.AdamW(lr=0.01)
    state, losses = optimizer.init(model), []
    for _ in range(8):
        loss, g = pa.value_and_grad(loss_of)(model)
        model, state = optimizer.update(g, state, model)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
    layer = model.blocks[0].ff.expert_up
    np.testing.assert_array_equal((layer.base if match == "expert_*" else layer).codes.numpy(), codes)


def test_files_are_written_in_the_types_of_llama_cpp(tmp_path):
    """Experts in MXFP4 beside Q8_0, or all in one type; biases, sinks and routers are float32 in all."""
    gguf = pytest.importorskip("gguf")
    file_of(tmp_path / "a.gguf", tmp_path / "folder", "MXFP4", "Q8_0")
    model = load_pretrained(tmp_path / "folder")
    for type_, others, number in (("MXFP4", "Q8_0", 38), ("Q8_0", "Q8_0", 7), ("BF16", "BF16", 32)):
        save_gguf(tmp_path / f"{type_}.gguf", model, type=type_)
        reader = gguf.GGUFReader(tmp_path / f"{type_}.gguf")
        found = {tensor.name: tensor for tensor in reader.tensors}
        due = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
        assert found.keys() == due.keys() and reader.fields["general.file_type"].contents() == number
        for name, tensor in found.items():
            kind = {"MXFP4": type_, "Q8_0": others}.get(due[name].tensor_type.name, "F32")
            assert (tensor.tensor_type.name, tensor.shape.tolist()) == (kind, due[name].shape.tolist()), name
            if type_ == "MXFP4":
                np.testing.assert_array_equal(tensor.data, due[name].data, err_msg=name)
    for model, told in (
        (model_of(swiglu_limit=6.0), "llama.cpp's 'gpt-oss' do not have all settings"),
        (model_of(qkv_bias=False, out_bias=False), "llama.cpp's 'gpt-oss' do not have all settings"),
        (model_of(tie_embeddings=True), "llama.cpp's 'gpt-oss' do not have all settings"),
        (LlamaModel({n: CONFIG[n] for n in [*CONFIG][:8]}), "type is 'MXFP4', which is of experts, and the model has"),
    ):
        with pytest.raises(ValueError, match=f"^save_gguf: .*{told}") as caught:
            save_gguf(tmp_path / "refused.gguf", model, type="MXFP4")
        assert "\n" not in str(caught.value)


def test_a_batch_of_prompts_and_mxfp4_are_transformers(tmp_path, backend):
    """Prompts of different lengths, texts longer than the sliding window, and weights that transformers dequantizes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    written(tmp_path)
    given = {"dtype": torch.float32, "quantization_config": transformers.Mxfp4Config(dequantize=True)}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **given).eval()
    ours, padding = load_pretrained(tmp_path, dtype="float32"), np.array([14, 0, 8], np.int32)
    prompts = np.random.default_rng(0).integers(1, 23, (3, 17))
    mask = np.arange(17) >= padding[:, None]
    wanted = theirs.generate(
        torch.tensor(prompts * mask), attention_mask=torch.tensor(mask), max_new_tokens=30, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    ).numpy()  # fmt: skip
    found = generate(ours, pa.asarray(prompts * mask), 30, padding=pa.asarray(padding), temperature=0).numpy()
    np.testing.assert_array_equal(found, wanted)
    assert all(len(set(row.tolist())) > 4 for row in found[:, 17:])
    with torch.no_grad():
        logits = theirs(torch.tensor(prompts)).logits.numpy()
    np.testing.assert_allclose(ours(pa.asarray(prompts)).numpy(), logits, rtol=0, atol=1e-4)
    for row, count in zip(found, padding.tolist(), strict=True):
        alone = generate(ours, pa.asarray(row[None, count:17]), 30, temperature=0).numpy()
        np.testing.assert_array_equal(alone[0], row[count:])
