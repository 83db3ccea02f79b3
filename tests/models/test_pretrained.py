"""Model files of other programs: round trips and errors in one line, without these programs."""

import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import polyarr as pa
from polyarr import nn
from polyarr.models import (
    GPTModel,
    LlamaConfig,
    LlamaModel,
    PretrainedError,
    load_pretrained,
    save_pretrained,
)
from polyarr.models.formats import format_of, written_format

SIZES = {"vocab_size": 13, "context_length": 8, "emb_dim": 8, "n_heads": 4, "n_layers": 2}
GPT = {**SIZES, "drop_rate": 0.1, "qkv_bias": True, "tie_embeddings": True}
LLAMA = {**SIZES, "n_kv_heads": 2, "hidden_dim": 12, "head_size": 6, "rope_scaling": [8.0, 1.0, 4.0, 16]}
GEMMA = {"activation": "gelu_tanh", "norm_offset": 1.0, "embedding_scale": 8**0.5, "tie_embeddings": True}
EXPERTS = {"n_experts": 3, "experts_per_token": 2}
GPT_OSS = {"attention_sinks": True, "expert_bias": True, "normalize_experts": True, "swiglu_limit": 7.0}
GPT_OSS |= {"qkv_bias": True, "out_bias": True}
MODELS = {
    "gpt2": lambda: GPTModel(GPT),
    "llama": lambda: LlamaModel({**LLAMA, "qkv_bias": True, "out_bias": True, "ff_bias": True}),
    "qwen2": lambda: LlamaModel({**LLAMA, "qkv_bias": True, "tie_embeddings": True}),
    "mistral": lambda: LlamaModel({**LLAMA, "windows": [4]}),
    "phi3": lambda: LlamaModel(
        {**LLAMA, "windows": [4], "rotary_size": 4, "rope_scaling": [2.0, 1.0, 4.0, 4, "longrope", 1.2, [1, 2], [3, 4]]}
    ),
    "granite": lambda: LlamaModel(
        {**LLAMA, "embedding_scale": 12.0, "attention_scale": 0.3, "residual_scale": 0.22, "logit_divisor": 8.0}
    ),
    "smollm3": lambda: LlamaModel({**LLAMA, "rotary_blocks": [1, 0], "windows": [0, 4], "ff_bias": True}),
    "qwen3": lambda: LlamaModel({**LLAMA, "qk_norm": "head", "windows": [0, 4]}),
    "seed_oss": lambda: LlamaModel({**LLAMA, "qkv_bias": True, "ff_bias": True}),
    "ministral": lambda: LlamaModel({**LLAMA, "windows": [4, 0]}),
    "olmo3": lambda: LlamaModel(
        {**LLAMA, "qk_norm": "all", "norm_place": "after", "windows": [4, 0], "local_rope_theta": 9.0}
    ),
    "olmo2": lambda: LlamaModel({**LLAMA, "qk_norm": "all", "norm_place": "after"}),
    "gemma": lambda: LlamaModel({**LLAMA, **GEMMA}),
    "gemma2": lambda: LlamaModel(
        {**LLAMA, **GEMMA, "norm_place": "both", "windows": [4, 0], "attention_softcap": 5.0, "logit_softcap": 3.0}
    ),
    "gemma3_text": lambda: LlamaModel(
        {**LLAMA, **GEMMA, "norm_place": "both", "windows": [4, 0], "qk_norm": "head", "local_rope_theta": 9.0}
    ),
    "mixtral": lambda: LlamaModel({**LLAMA, **EXPERTS, "normalize_experts": True, "windows": [4]}),
    "qwen2_moe": lambda: LlamaModel({**LLAMA, **EXPERTS, "qkv_bias": True, "shared_dim": 9, "expert_blocks": [0, 1]}),
    "qwen3_moe": lambda: LlamaModel({**LLAMA, **EXPERTS, "qk_norm": "head", "expert_dim": 5, "router_loss": 0.1}),
    "olmoe": lambda: LlamaModel({**LLAMA, **EXPERTS, "qk_norm": "all"}),
    "gpt_oss": lambda: LlamaModel({**LLAMA, **EXPERTS, **GPT_OSS, "windows": [4, 0]}),
}


@pytest.fixture(autouse=True)
def _on_numpy(on_numpy):
    pa.random.seed(0)
    yield


@pytest.fixture
def folder(tmp_path):
    """A complete minimal model folder, to be damaged."""
    save_pretrained(tmp_path / "model", LlamaModel(LLAMA))
    return tmp_path / "model"


def same(model, other):
    left, right = model.named_parameters(), other.named_parameters()
    return left.keys() == right.keys() and all(np.array_equal(left[n].numpy(), right[n].numpy()) for n in left)


def dtypes(model):
    return {leaf.dtype.name for leaf in model.named_parameters().values()}


def changed(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def refusal(path):
    with pytest.raises(PretrainedError) as caught:
        load_pretrained(path)
    text = str(caught.value)
    assert text.startswith(f"load_pretrained: {path}: ") and "\n" not in text and len(text) < 500
    return text.removeprefix(f"load_pretrained: {path}: ")


# ---- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("limit", [2**31, 2000])
def test_what_is_written_is_read_back(kind, limit, tmp_path):
    model = MODELS[kind]()
    save_pretrained(tmp_path, model, shard_bytes=limit)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert (files == ["model.safetensors"]) == (limit > 2000)
    assert all(path.stat().st_size < 5000 for path in tmp_path.glob("model-*.safetensors"))
    found = load_pretrained(tmp_path)
    assert found.config == model.config and same(found, model) and not found.training


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_are_rounded_once_and_stay_narrow_unless_asked(dtype, tmp_path):
    model = LlamaModel(LLAMA)
    save_pretrained(tmp_path / "a", model, dtype=dtype)
    rounded, narrow = model.astype(dtype), load_pretrained(tmp_path / "a")
    assert same(load_pretrained(tmp_path / "a", dtype="float32"), rounded.astype("float32"))
    assert same(narrow, rounded) and dtypes(narrow) == {dtype}
    save_pretrained(tmp_path / "b", narrow)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["torch_dtype"] == dtype
    assert same(load_pretrained(tmp_path / "b"), narrow)


@pytest.mark.parametrize("other", ["bfloat16", "float64"])
def test_files_of_several_dtypes_or_float64_become_float32(other, tmp_path):
    save_pretrained(tmp_path / "a", LlamaModel(LLAMA), dtype=other)
    wide = load_pretrained(tmp_path / "a", dtype="float32")
    path = tmp_path / "a" / "model.safetensors"
    if other != "float64":
        arrays = load_file(path)
        save_file({**arrays, NORM: arrays[NORM].astype(np.float32)}, path)
    found = load_pretrained(tmp_path / "a")
    assert dtypes(found) == {"float32"} and same(found, wide)


def test_weights_beyond_the_range_of_a_dtype_are_refused(folder):
    _with(NORM, np.full(8, 1e5, np.float32))(folder)
    with pytest.raises(PretrainedError, match=f": {re.escape(NORM)} holds numbers that are not finite in float16$"):
        load_pretrained(folder, dtype="float16")
    model = load_pretrained(folder, dtype="bfloat16")
    assert dtypes(model) == {"bfloat16"}
    with pytest.raises(ValueError, match=f"^{re.escape(NORM)} holds numbers that are not finite in float16$"):
        save_pretrained(folder.parent / "out", model, dtype="float16")
    assert not list((folder.parent / "out").iterdir())


def test_gpt2s_files_may_lack_the_prefix_and_hold_masks(tmp_path):
    model = GPTModel(GPT)
    save_pretrained(tmp_path, model)
    arrays = load_file(tmp_path / "model.safetensors")
    assert arrays["transformer.h.1.attn.c_attn.weight"].shape == (8, 24) and "lm_head.weight" not in arrays
    bare = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    mask = np.ones((1, 1, 8, 8), np.float32)
    save_file({**bare, "h.0.attn.bias": mask, "h.1.attn.bias": mask}, tmp_path / "model.safetensors")
    assert same(load_pretrained(tmp_path), model)
    save_file({**bare, "lm_head.weight": bare["wte.weight"]}, tmp_path / "model.safetensors")
    assert same(load_pretrained(tmp_path), model)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_head_that_is_not_the_embedding_is_kept_whatever_the_settings_say(kind, tmp_path):
    untied = GPTModel({**GPT, "tie_embeddings": False}) if kind == "gpt2" else LlamaModel(LLAMA)
    save_pretrained(tmp_path, untied)
    changed(tmp_path, tie_word_embeddings=True)
    with pytest.warns(RuntimeWarning, match=r"^load_pretrained: .*tie the output head .* another head: that one is k"):
        found = load_pretrained(tmp_path)
    assert found.config == untied.config and same(found, untied)
    arrays = load_file(tmp_path / "model.safetensors")
    (embedding,) = (name for name in arrays if name.endswith(("wte.weight", "embed_tokens.weight")))
    save_file({**arrays, "lm_head.weight": arrays[embedding]}, tmp_path / "model.safetensors")
    assert load_pretrained(tmp_path).config.tie_embeddings  # without a warning
    save_file({**arrays, "lm_head.weight": arrays[embedding][:5].copy()}, tmp_path / "model.safetensors")
    with pytest.warns(RuntimeWarning):
        assert "lm_head.weight is [5, 8] and must be [13, 8]" in refusal(tmp_path)


def test_arrays_of_one_shape_are_not_taken_for_each_other(tmp_path):
    save_pretrained(tmp_path / "gpt", gpt := pa.tree.map(_drawn, GPTModel(GPT)))
    arrays, block = load_file(tmp_path / "gpt" / "model.safetensors"), gpt.blocks[1]
    for name, array in {
        "attn.c_proj.weight": block.att.out.weight.mT,  # which is square
        "attn.c_attn.bias": block.att.qkv.bias,
        "ln_1.weight": block.norm1.weight,
        "ln_2.weight": block.norm2.weight,
        "ln_2.bias": block.norm2.bias,
        "mlp.c_proj.bias": block.ff.down.bias,
    }.items():
        np.testing.assert_array_equal(arrays[f"transformer.h.1.{name}"], array.numpy(), err_msg=name)
    save_pretrained(tmp_path / "llama", llama := pa.tree.map(_drawn, LlamaModel({**LLAMA, "qkv_bias": True})))
    arrays, block = load_file(tmp_path / "llama" / "model.safetensors"), llama.blocks[1]
    for name, array in {
        "self_attn.q_proj.bias": block.att.qkv.bias[:24],
        "self_attn.k_proj.weight": block.att.qkv.weight[24:36],
        "self_attn.v_proj.weight": block.att.qkv.weight[36:],
        "mlp.gate_proj.weight": block.ff.gate.weight,
        "mlp.up_proj.weight": block.ff.up.weight,
        "input_layernorm.weight": block.norm1.weight,
        "post_attention_layernorm.weight": block.norm2.weight,
    }.items():
        np.testing.assert_array_equal(arrays[f"model.layers.1.{name}"], array.numpy(), err_msg=name)
    np.testing.assert_array_equal(arrays["lm_head.weight"], llama.out_head.weight.numpy())
    save_pretrained(tmp_path / "phi3", phi := pa.tree.map(_drawn, MODELS["phi3"]()))
    arrays, ff = load_file(tmp_path / "phi3" / "model.safetensors"), phi.blocks[1].ff
    joined = np.concatenate([ff.gate.weight.numpy(), ff.up.weight.numpy()])
    np.testing.assert_array_equal(arrays["model.layers.1.mlp.gate_up_proj.weight"], joined)


def _drawn(p):
    return pa.random.normal(p.shape)


def test_what_a_format_always_has_is_added_on_writing(tmp_path):
    without = GPTModel({**GPT, "qkv_bias": False})
    save_pretrained(tmp_path / "a", without)
    found = load_pretrained(tmp_path / "a")
    assert found.config.qkv_bias and not found.blocks[1].att.qkv.bias.numpy().any()
    tokens = pa.asarray([[1, 2, 3]])
    np.testing.assert_array_equal(found(tokens).numpy(), without.eval()(tokens).numpy())
    assert without.config.qkv_bias is False and without.blocks[0].att.qkv.bias is None
    save_pretrained(tmp_path / "b", without, format="tutorial")
    untied = load_pretrained(tmp_path / "b")
    assert not untied.config.tie_embeddings
    np.testing.assert_array_equal(untied.out_head.weight.numpy(), without.tok_emb.weight.numpy())


def test_the_tutorials_file_is_read_with_its_settings_beside_it(tmp_path):
    model = GPTModel({**GPT, "tie_embeddings": False, "qkv_bias": False})
    save_pretrained(tmp_path, model, format="tutorial")
    (tmp_path / "model.safetensors").rename(tmp_path / "gpt.safetensors")
    arrays = load_file(tmp_path / "gpt.safetensors")
    assert arrays["trf_blocks.0.att.W_key.weight"].shape == (8, 8) and arrays["trf_blocks.0.norm1.shift"].shape == (8,)
    save_file({**arrays, "trf_blocks.0.att.mask": np.ones((8, 8), np.float32)}, tmp_path / "gpt.safetensors")
    assert same(load_pretrained(tmp_path / "gpt.safetensors"), model)
    assert json.loads((tmp_path / "config.json").read_text()).keys() == set(GPT) - {"tie_embeddings"}


# ---- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ((768, 12, 12), 124_439_808),
        ((1024, 24, 16), 354_823_168),
        ((1280, 36, 20), 774_030_080),
        ((1600, 48, 25), 1_557_611_200),
    ],
)
def test_gpt2s_settings_are_its_four_sizes(sizes, count):
    width, layers, heads = sizes
    given = {"model_type": "gpt2", "vocab_size": 50257, "n_ctx": 1024, "n_positions": 1024}
    given |= {"n_embd": width, "n_layer": layers, "n_head": heads, "activation_function": "gelu_new"}
    config = format_of(given).config_of(given)
    with nn.shapes_only():
        assert GPTModel(config).num_parameters() == count
    assert (config.drop_rate, config.tie_embeddings) == (0.1, True)  # transformers' defaults


def test_rotary_settings_of_old_and_new_files_are_the_same():
    given = {
        "model_type": "llama", "vocab_size": 9, "max_position_embeddings": 8, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8,
    }  # fmt: skip
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    read = format_of(given).config_of
    assert read(given) == LlamaConfig(9, 8, 8, 2, 1, 2, 8, 4, norm_eps=1e-6)
    new = read({**given, "rope_parameters": {**scaling, "rope_theta": 500.0}})
    assert new == read({**given, "rope_theta": 500.0, "rope_scaling": scaling})
    assert new.rope_theta == 500.0 and new.rope_scaling == nn.RotaryScaling(8.0, 1.0, 4.0, 16)
    assert read({**given, "rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}).rope_theta == 3.0
    yarn = read({**given, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}).rope_scaling
    assert yarn == nn.RotaryScaling(4.0, 1.0, 32.0, 8, "yarn", 0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("kind", "full", "settings"),
    [
        ("qwen2", (0, 1), {"use_sliding_window": True, "max_window_layers": 2}),
        ("qwen2", range(7), {"max_window_layers": 2}),
        ("qwen2_moe", (1, 3, 4, 5, 6), {"use_sliding_window": True, "max_window_layers": 4}),
        ("gemma2", (1, 3, 5), {}),
        ("gemma3_text", (5,), {}),
        ("olmo3", (3,), {}),
        ("smollm3", (0, 1, 2, 4, 5, 6), {"use_sliding_window": True}),
        ("gpt_oss", (1, 3, 5), {}),
        ("mistral", (), {}),
    ],
)
def test_blocks_without_a_window_are_those_of_the_family(kind, full, settings):
    """Older files have no layer_types, so the family decides."""
    given = {
        "model_type": kind, "vocab_size": 9, "max_position_embeddings": 8, "hidden_size": 8, "num_hidden_layers": 7,
        "num_attention_heads": 2, "intermediate_size": 8, "head_dim": 4, "sliding_window": 4, **settings,
    }  # fmt: skip
    found = format_of(given).config_of(given)
    assert (found.windows or (0,) * 7) == tuple(0 if number in full else 4 for number in range(7))
    assert found.rotary_blocks == ((1, 1, 1, 0, 1, 1, 1) if kind == "smollm3" else ())


_WINDOWS = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4}


def _phi3(short=None, **settings):
    scaling = short and {"rope_type": "longrope", "short_factor": short, "long_factor": [1, 2, 3]}
    return {"model_type": "phi3", "rope_scaling": scaling, **settings}


def test_phi3s_longrope_has_the_defaults_of_its_files():
    """Top-level settings, as in the files of Phi-3 and Phi-4-mini; "su" is what Phi-3's were called at first."""
    given = {
        "model_type": "phi3", "vocab_size": 9, "max_position_embeddings": 131072, "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    factors = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [4, 5, 6]}
    read = format_of(given).config_of
    for kind in ("longrope", "su", "yarn"):
        found = read({**given, "rope_scaling": {**factors, "type": kind}})
        assert found.rotary_size == 6 and found.windows == () and found.norm_eps == 1e-5
        attention = math.sqrt(1 + math.log(32) / math.log(4096))
        assert found.rope_scaling == (32.0, 1.0, 4.0, 4096, "longrope", attention, (1.0, 1.5, 2.0), (4, 5, 6), True)
        nested = {**factors, "rope_type": kind, "original_max_position_embeddings": 7, "partial_rotary_factor": 0.75}
        assert read({**given, "partial_rotary_factor": 1.0, "rope_parameters": nested}) == found
    found = read({**given, "rope_scaling": {**factors, "type": "su", "factor": 1.0}})
    assert found.rope_scaling.attention_factor == 1.0


def test_which_blocks_have_experts_is_read_from_both_settings():
    settings = format_of({"model_type": "qwen3_moe"}).settings_of(MODELS["qwen3_moe"]().config)
    settings |= {"num_hidden_layers": 6, "num_experts_per_tok": 1}
    read = format_of(settings).config_of
    assert read({**settings, "decoder_sparse_step": 2}).expert_blocks == (0, 1, 0, 1, 0, 1)
    assert read({**settings, "decoder_sparse_step": 3, "mlp_only_layers": [2]}).expert_blocks == (0, 0, 0, 0, 0, 1)
    assert read({**settings, "mlp_only_layers": None}).expert_blocks == ()
    coefficient = {"router_aux_loss_coef": 0.5}
    losses = [read({**settings, **coefficient, "output_router_logits": given}).router_loss for given in (True, False)]
    assert losses == [0.5, 0.0]
    for none in ({"mlp_only_layers": [*range(6)]}, {"num_experts": 0}):
        dense = read({**settings, **none})
        assert (dense.n_experts, dense.experts_per_token, dense.router_loss) == (0, 0, 0)
    renamed = {("num_local_experts" if name == "num_experts" else name): value for name, value in settings.items()}
    assert read(renamed) == read(settings) and read(settings).n_experts == 3  # transformers 5 writes this name


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo3"])
def test_a_size_of_windows_is_written_even_if_no_block_has_one(kind):
    """transformers does not compute these families without one."""
    form = format_of({"model_type": kind})
    settings = form.settings_of(replace(MODELS[kind]().config, windows=()))
    assert settings["sliding_window"] == 4096 and set(settings["layer_types"]) == {"full_attention"}
    assert form.config_of(settings).windows == ()


def test_a_head_size_that_is_left_out_is_the_familys():
    sizes = {"vocab_size": 9, "max_position_embeddings": 8, "hidden_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 8}
    for kind, size in {"llama": 8, "qwen2": 8, "qwen3": 128, "seed_oss": 128, "gemma": 256, "gemma2": 256}.items():
        assert format_of({"model_type": kind}).config_of(sizes).head_size == size


def test_every_share_of_a_head_is_read_as_it_was_written():
    for head_size in (26, 44, 128):
        for rotary_size in range(2, head_size, 2):
            config = LlamaConfig.of({**LLAMA, "head_size": head_size, "rope_scaling": None, "rotary_size": rotary_size})
            form = format_of({"model_type": "phi3"})
            settings = form.settings_of(config)
            assert int(head_size * settings["partial_rotary_factor"]) == rotary_size
            assert form.config_of(settings) == config


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "mamba"}, "its model_type is 'mamba'; polyarr reads 'gpt2', 'llama', 'qwen2'"),
        ({"model_type": None}, "its model_type is None; polyarr reads"),
        ({"model_type": ["llama"]}, "its model_type is ['llama']; polyarr reads"),
        ({"hidden_act": "gelu"}, "its hidden_act is 'gelu'; polyarr's models have 'silu'"),
        ({"hidden_act": {}}, "its hidden_act is {}; polyarr's models have 'silu'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "its rope_scaling is of type 'longrope'; this family's models"),
        (_phi3(rope_scaling={"type": "yarn"}), "its rope_scaling is of type 'yarn'"),
        (_phi3(rope_scaling={"type": "su", "long_factor": [1, 1]}), "it lacks short_factor"),
        (_phi3([1, "2", 3]), "a number of rope_scaling's short_factors is '2'"),
        (_phi3([1]), "rope_scaling's short_factors is [1]; it must be a list of 3"),
        (_phi3(2), "rope_scaling's short_factors is 2; it must be a list of 3"),
        (_phi3(partial_rotary_factor=0.5), "rotary_size is 3; it must be an even int from 2 to head"),
        (_phi3(partial_rotary_factor=2), "rotary_size is 12; it must be an even int from 2 to head_size"),
        (_phi3(), "missing model.layers.0.self_attn.qkv_proj.weight, model.layers.0.mlp.gate_up_proj.weight, "),
        ({"model_type": "granite", "logits_scaling": 0}, "logit_divisor is 0; it must be a number from 1e-06"),
        ({"model_type": "granite", "residual_multiplier": None}, "residual_scale is None; it must be a number"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "its no_rope_layers is [1]; it must be a list of num_hid"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, "its no_rope_layers is [1, 2]; it must be a list of"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "its no_rope_layer_interval is 0; it must be a p"),
        ({**_WINDOWS, "max_window_layers": "2"}, "its max_window_layers is '2'; it must be 0 or a positive number"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": [1]}, "its sliding_window_pattern is [1]; it must"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "its sliding_window_pattern is 0; it must be a"),
        ({"model_type": "gemma3_text", "hidden_size": 10**400}, "its hidden_size is 1000"),
        (_phi3(head_dim=-(10**400)), "LlamaConfig: head_size is a int; it must be a positive int"),
        ({"model_type": "gemma2", "layer_types": ["full_attention", "linear"]}, "its layer_types have 'linear'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "its factor is None; it must be a positive number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": 3}}, "rope_scaling's truncate is 3; it must"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": "a", "mscale_all_dim": 1}}, "its mscale is 'a'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "8"}}, "rope_scaling's factor is '8'; it must be a number"),
        ({"model_type": "mistral", "sliding_window": "4"}, "its sliding_window is '4'; it must be a positive number"),
        ({"model_type": "mistral", "sliding_window": 4.5}, "LlamaConfig: windows is (4.5, 4.5); it must be a list"),
        ({"model_type": "gemma2", "layer_types": []}, "its layer_types is []"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "its query_pre_attn_scalar is 0; it must be a positive"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "its use_bidirectional_attention is True"),
        ({"model_type": "qwen3"}, "missing model.layers.0.self_attn.q_norm.weight"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "it lacks factor, low_freq_factor"),
        ({"rope_scaling": [1]}, "its rope_scaling is [1]; it must be a dict"),
        ({"hidden_size": -1}, "LlamaConfig: emb_dim is -1; it must be a positive int"),
        ({"hidden_size": 1e30}, "LlamaConfig: emb_dim is 1e+30; it must be a positive int"),
        ({"hidden_size": 10**30}, "LlamaConfig: emb_dim is 1000000000000000000000000000000; it must be at most"),
        ({"num_hidden_layers": 10**9}, "LlamaConfig: n_layers is 1000000000; it must be at most 10,000"),
        ({"num_hidden_layers": True}, "LlamaConfig: n_layers is True; it must be a positive int"),
        ({"num_attention_heads": "4"}, "LlamaConfig: n_heads is '4'; it must be a positive int"),
        ({"head_dim": None, "num_attention_heads": 0}, "its hidden_size is 8, num_attention_heads is 0"),
        ({"rms_norm_eps": float("nan")}, "LlamaConfig: norm_eps is nan; it must be a number from 0 to 1"),
        ({"rope_theta": 10**400}, "LlamaConfig: rope_theta is 1000"),
        ({"tie_word_embeddings": "no"}, "LlamaConfig: tie_embeddings is 'no'; it must be True or False"),
        ({"num_hidden_layers": 3}, "missing model.layers.2.input_layernorm.weight, model.layers.2.post_attention_lay"),
        ({"num_hidden_layers": 1}, "unknown model.layers.1"),
        ({"intermediate_size": 2**31 - 1}, "mlp.gate_proj.weight is [12, 8] and must be [2147483647, 8]"),
        ({"attention_bias": True}, "missing model.layers.0.self_attn.q_proj.bias"),
        ({"mlp_bias": True}, "missing model.layers.0.mlp.gate_proj.bias"),
        ({"mlp_bias": "no"}, "LlamaConfig: ff_bias is 'no'; it must be True or False"),
        ({"model_type": "mixtral"}, "missing model.layers.0.block_sparse_moe.gate.weight, model.layers.0.block_spars"),
        ({"model_type": "mixtral", "num_local_experts": None}, "LlamaConfig: n_experts is None; it must be an int"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "LlamaConfig: experts_per_token is 2; it must be an int"),
        ({"model_type": "mixtral", "router_jitter_noise": 0.1}, "its router_jitter_noise is 0.1; polyarr's models"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "its decoder_sparse_step is 0; it must be a positive"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 1}, "its mlp_only_layers is 1; it must be a list of numbers"),
        ({"model_type": "qwen3_moe", "norm_topk_prob": 1}, "LlamaConfig: normalize_experts is 1; it must be True or"),
        ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 0}, "its shared_expert_intermediate_size is"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "its clip_qkv is 8.0; polyarr's models have None"),
        (
            {"model_type": "olmoe", "output_router_logits": True, "router_aux_loss_coef": "1"},
            "LlamaConfig: router_loss is '1'; it must be a number from 0",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(folder, settings, reason):
    changed(folder, **settings)
    assert reason in refusal(folder)


# ---- damaged files -----------------------------------------------------------------------------------------------


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def _long_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def _header(text: bytes):
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)

    return damage


def _without(name: str):
    def damage(folder: Path) -> None:
        arrays = load_file(folder / "model.safetensors")
        del arrays[name]
        save_file(arrays, folder / "model.safetensors")

    return damage


def _with(name: str, array):
    return lambda folder: save_file(
        {**load_file(folder / "model.safetensors"), name: array}, folder / "model.safetensors"
    )


def _index(text: str):
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "all.safetensors")
        (folder / "model.safetensors.index.json").write_text(text)

    return damage


def _text(name: str, text: str):
    return lambda folder: (folder / name).write_text(text)


NORM, DAMAGED = "model.norm.weight", "model.safetensors is damaged or no safetensors file"
NAN_SHAPE = b'{"model.norm.weight":{"dtype":"F32","shape":[NaN],"data_offsets":[0,32]}}' + bytes(32)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_cut, DAMAGED),
        (_long_header, DAMAGED),
        (_header(NAN_SHAPE), DAMAGED),
        (_header(NAN_SHAPE.replace(b"NaN", b"-8")), DAMAGED),
        (_header(b"[" * 100_000), DAMAGED),
        (_text("model.safetensors", ""), DAMAGED),
        (_without(NORM), f"missing {NORM}"),
        (_with("model.more.weight", np.ones(2, np.float32)), "unknown model.more.weight"),
        (_with(NORM, np.ones(9, np.float32)), f"{NORM} is [9] and must be [8]"),
        (_with(NORM, np.ones(8, np.int8)), f"{NORM} is of I8 and must be of F64, F32, F16, BF16"),
        (_with(NORM, np.full(8, np.nan, np.float32)), f"{NORM} holds numbers that are not finite"),
        (_text("config.json", "{"), "config.json is no JSON"),
        (_text("config.json", "[" * 100_000), "config.json is no JSON"),
        (_text("config.json", "[1]"), "config.json holds list; it must be a dict"),
        (_text("config.json", '{"vocab_size": ' + "9" * 5000 + "}"), "config.json is no JSON"),
        (_text("config.json", '{"model_type": "gpt2"}'), "it lacks vocab_size, n_positions, n_embd, n_head, n_layer"),
        (_text("config.json", '{"emb_dim": 8}'), "GPTConfig: missing vocab_size"),
        (_index("{}"), "has no weight_map"),
        (_index('{"weight_map": {"a": 1}}'), "has no weight_map"),
        (_index('{"weight_map": {"a": "../x.safetensors"}}'), "names '../x.safetensors'; it must be a"),
        (_index('{"weight_map": {"a": "/etc/passwd"}}'), "names '/etc/passwd'; it must be a safetensors file of"),
        (_index('{"weight_map": {"a": "config.json"}}'), "names 'config.json'; it must be a safetensors file of"),
        (_index('{"weight_map": {"a": "all.safetensors"}}'), "a: not in the files that model.safetensors.index.json"),
        (_index('{"weight_map": {"model.norm.weight": "all.safetensors"}}'), "missing model.embed_tokens.weight"),
    ],
)
def test_every_damage_is_one_clear_line(folder, damage, reason):
    damage(folder)
    assert reason in refusal(folder)


def test_files_that_are_not_there_are_named(folder):
    _index('{"weight_map": {"a": "other.safetensors"}}')(folder)
    with pytest.raises(FileNotFoundError) as caught:
        load_pretrained(folder)
    assert caught.value.filename == str(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is pickled, which is never read"):
        load_pretrained(folder)
    assert "pickled weights are never read" in refusal(folder / "pytorch_model.bin")
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_pretrained(folder)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_pretrained(folder / "nowhere")


def test_a_truncation_or_a_flipped_bit_anywhere_in_the_header_never_does_more_than_refuse(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    size = 8 + struct.unpack("<Q", whole[:8])[0]
    for _ in range(150):
        at, bit = int(generator.integers(size)), int(generator.integers(8))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            load_pretrained(folder)  # a changed bit of the metadata has no effect
        except PretrainedError as error:
            assert "\n" not in str(error)
    for length in generator.integers(0, len(whole), 30):
        path.write_bytes(whole[:length])
        assert DAMAGED in refusal(folder)


# ---- writing -----------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_and_unknown_formats_are_refused(folder, tmp_path):
    with pytest.raises(FileExistsError, match="holds a model already; give another folder"):
        save_pretrained(folder, LlamaModel(LLAMA))
    with pytest.raises(ValueError, match=r"LlamaModel as 'tutorial'; it must be written as 'huggingface'"):
        save_pretrained(tmp_path / "b", LlamaModel(LLAMA), format="tutorial")
    no_family = ({"out_bias": True, "qk_norm": "head"}, {"qkv_bias": True, "qk_norm": "all"}, {"windows": [3, 4]})
    for odd in (*no_family, {"logit_softcap": 3.0}):
        with pytest.raises(ValueError, match=r"no model of transformers has all settings of this one, LlamaConfig\("):
            save_pretrained(tmp_path / "b", LlamaModel({**LLAMA, **odd}))
    assert not (tmp_path / "b").exists()


def test_every_array_of_every_model_has_a_name_of_its_own():
    for make in MODELS.values():
        model = make()
        form = written_format(model, "huggingface")
        names = [(name, form.layer(own).share) for own in model.named_parameters() for name in form.parts(own)[0]]
        assert len(set(names)) == len(names)
