"""Formats of GPTs: transformers' GPT-2, and the GPT of "Build a large language model (from scratch)"."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from polyarr import ops
from polyarr.models.formats.tables import Format, check_fixed, layer, settings_with, sizes_of
from polyarr.models.gpt import GPTConfig, GPTModel

_GPT2_LAYERS = {
    "tok_emb": layer("transformer.wte"),
    "pos_emb": layer("transformer.wpe"),
    "blocks.*.norm1": layer("transformer.h.*.ln_1"),
    "blocks.*.att.qkv": layer("transformer.h.*.attn.c_attn", transposed=True),
    "blocks.*.att.out": layer("transformer.h.*.attn.c_proj", transposed=True),
    "blocks.*.norm2": layer("transformer.h.*.ln_2"),
    "blocks.*.ff.up": layer("transformer.h.*.mlp.c_fc", transposed=True),
    "blocks.*.ff.down": layer("transformer.h.*.mlp.c_proj", transposed=True),
    "final_norm": layer("transformer.ln_f"),
    "out_head": layer("lm_head"),
}
_GPT2_FIELDS = {
    "vocab_size": "vocab_size",
    "context_length": "n_positions",
    "emb_dim": "n_embd",
    "n_heads": "n_head",
    "n_layers": "n_layer",
}
_GPT2_RATES = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_GPT2_FIXED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def _gpt2_config(given: Mapping[str, Any]) -> GPTConfig:
    check_fixed(given, _GPT2_FIXED)
    sizes = sizes_of(given, _GPT2_FIELDS)
    if given.get("n_inner") not in (None, 4 * sizes["emb_dim"]):
        raise ValueError(f"its n_inner is {given['n_inner']!r}; polyarr's models have 4 * n_embd")
    rate, tied = given.get(_GPT2_RATES[0], 0.1), given.get("tie_word_embeddings", True)
    return GPTConfig(**sizes, drop_rate=rate, qkv_bias=True, tie_embeddings=tied)


def _gpt2_settings(config: GPTConfig) -> dict[str, Any]:
    written = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    written |= settings_with(config, _GPT2_FIELDS, _GPT2_FIXED) | dict.fromkeys(_GPT2_RATES, config.drop_rate)
    return written | {"tie_word_embeddings": config.tie_embeddings}


def _with_qkv_bias(model: GPTModel) -> GPTModel:
    if model.config.qkv_bias:
        return model
    model = model.copy()
    model.config = replace(model.config, qkv_bias=True)
    for block in model.blocks:
        weight = block.att.qkv.weight
        block.att.qkv.bias = ops.fill(0, weight, shape=weight.shape[:1], dtype=weight.dtype)
    return model


GPT2 = Format(
    _GPT2_LAYERS,
    _gpt2_config,
    _gpt2_settings,
    prefix="transformer.",
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    complete=_with_qkv_bias,
)

# ---- the tutorial's GPT ------------------------------------------------------------------------------------------
# Raschka, "Build a large language model (from scratch)": the state_dict of its PyTorch model, and its dict of settings.

_TUTORIAL_NORM = {"weight": "scale", "bias": "shift"}
_TUTORIAL_LAYERS = {
    "tok_emb": layer("tok_emb"),
    "pos_emb": layer("pos_emb"),
    "blocks.*.norm1": layer("trf_blocks.*.norm1", **_TUTORIAL_NORM),
    "blocks.*.att.qkv": layer(*(f"trf_blocks.*.att.W_{part}" for part in ("query", "key", "value"))),
    "blocks.*.att.out": layer("trf_blocks.*.att.out_proj"),
    "blocks.*.norm2": layer("trf_blocks.*.norm2", **_TUTORIAL_NORM),
    "blocks.*.ff.up": layer("trf_blocks.*.ff.layers.0"),
    "blocks.*.ff.down": layer("trf_blocks.*.ff.layers.2"),
    "final_norm": layer("final_norm", **_TUTORIAL_NORM),
    "out_head": layer("out_head"),
}


def _tutorial_config(given: Mapping[str, Any]) -> GPTConfig:
    return GPTConfig.of({**given, "tie_embeddings": False})


def _tutorial_settings(config: GPTConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name != "tie_embeddings"}


def _untied(model: GPTModel) -> GPTModel:
    if model.out_head:
        return model
    untied = model.tree_rebuild({"out_head": model.tok_emb})
    untied.config = replace(model.config, tie_embeddings=False)
    return untied


TUTORIAL = Format(
    _TUTORIAL_LAYERS,
    _tutorial_config,
    _tutorial_settings,
    ignored=("trf_blocks.*.att.mask",),
    complete=_untied,
)
