"""File formats of other programs' models: tables of layer names and of settings, used in both directions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from polyarr import ops
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.models.llama import LlamaConfig, LlamaModel
from polyarr.nn import RotaryScaling


class Layer(NamedTuple):
    """Name of one of polyarr's layers in another program: one name, or several whose rows polyarr concatenates.

    Attributes:
        names: Names of the other program's layers, with a star for the number of the block.
        transposed: Whether the other program stores weights as (in, out); polyarr has (out, in).
        weight: Name of the weight.
        bias: Name of the bias.
    """

    names: tuple[str, ...]
    transposed: bool = False
    weight: str = "weight"
    bias: str = "bias"

    def arrays(self, own: str, number: str) -> tuple[str, ...]:
        """Return the other program's names of the array `own`, "weight" or "bias", in the block with this number."""
        suffix = {"weight": self.weight, "bias": self.bias}[own]
        return tuple(f"{name.replace('*', number)}.{suffix}" for name in self.names)


def layer(*names: str, **settings: Any) -> Layer:
    """Return a Layer with these names."""
    return Layer(names, **settings)


class Format(NamedTuple):
    """Format of another program's models of one family.

    Attributes:
        layers: Layers of the other program by the name of polyarr's layer, with a star for the number of a block.
        config_of: Function from the content of config.json to polyarr's configuration.
        settings_of: Function from polyarr's configuration to the content of config.json.
        prefix: Prefix of all names but the head's, which some files leave out.
        ignored: Names of arrays in files that are not weights, with stars.
        complete: Function that adds arrays the other program always has, to a model that computes the same.
    """

    layers: Mapping[str, Layer]
    config_of: Callable[[Mapping[str, Any]], Config]
    settings_of: Callable[[Any], dict[str, Any]]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    complete: Callable[[Any], LanguageModel] = lambda model: model

    def parts(self, name: str) -> tuple[tuple[str, ...], bool]:
        """Return the names of the arrays that make up one of polyarr's, and whether these are transposed."""
        path, _, own = name.rpartition(".")
        number = re.search(r"\.(\d+)\.", path)
        found = self.layers[path.replace(number[0], ".*.", 1) if number else path]
        return found.arrays(own, number[1] if number else ""), found.transposed and own == "weight"

    def ignores(self, name: str) -> bool:
        """Return whether an array of this name is not a weight."""
        return re.sub(r"\.\d+\.", ".*.", name, count=1) in self.ignored


# ---- settings ----------------------------------------------------------------------------------------------------


def _sizes(given: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return polyarr's fields, taken from the other program's settings, all of which must be there."""
    missing = [theirs for theirs in fields.values() if theirs not in given]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return {own: given[theirs] for own, theirs in fields.items()}


def _check_fixed(given: Mapping[str, Any], fixed: Mapping[str, tuple]) -> None:
    """Raise ValueError for settings that polyarr does not support; the first of the known values is the default."""
    for name, known in fixed.items():
        if given.get(name, known[0]) not in known:
            listed = " or ".join(repr(value) for value in known)
            raise ValueError(f"its {name} is {given[name]!r}; polyarr's models have {listed}")


def _written(config: Config, fields: Mapping[str, str], fixed: Mapping[str, tuple]) -> dict[str, Any]:
    settings = {theirs: getattr(config, own) for own, theirs in fields.items()}
    return settings | {name: known[0] for name, known in fixed.items()}


# ---- GPT-2 -------------------------------------------------------------------------------------------------------

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
    _check_fixed(given, _GPT2_FIXED)
    sizes = _sizes(given, _GPT2_FIELDS)
    if given.get("n_inner") not in (None, 4 * sizes["emb_dim"]):
        raise ValueError(f"its n_inner is {given['n_inner']!r}; polyarr's models have 4 * n_embd")
    rate, tied = given.get(_GPT2_RATES[0], 0.1), given.get("tie_word_embeddings", True)
    return GPTConfig(**sizes, drop_rate=rate, qkv_bias=True, tie_embeddings=tied)


def _gpt2_settings(config: GPTConfig) -> dict[str, Any]:
    written = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    written |= _written(config, _GPT2_FIELDS, _GPT2_FIXED) | dict.fromkeys(_GPT2_RATES, config.drop_rate)
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


# ---- Llama, Qwen2 ------------------------------------------------------------------------------------------------

_LLAMA_LAYERS = {
    "tok_emb": layer("model.embed_tokens"),
    "blocks.*.norm1": layer("model.layers.*.input_layernorm"),
    "blocks.*.att.qkv": layer(*(f"model.layers.*.self_attn.{part}_proj" for part in "qkv")),
    "blocks.*.att.out": layer("model.layers.*.self_attn.o_proj"),
    "blocks.*.norm2": layer("model.layers.*.post_attention_layernorm"),
    "blocks.*.ff.gate": layer("model.layers.*.mlp.gate_proj"),
    "blocks.*.ff.up": layer("model.layers.*.mlp.up_proj"),
    "blocks.*.ff.down": layer("model.layers.*.mlp.down_proj"),
    "final_norm": layer("model.norm"),
    "out_head": layer("lm_head"),
}
_LLAMA_FIELDS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "emb_dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
}
_LLAMA_FIXED = {"hidden_act": ("silu",)}
_QWEN2_FIXED = {"hidden_act": ("silu",), "use_sliding_window": (False,)}
_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_length": "original_max_position_embeddings",
}


def _llama_config(given: Mapping[str, Any]) -> LlamaConfig:
    _check_fixed(given, _LLAMA_FIXED)
    bias = given.get("attention_bias", False)
    return _of_the_family(given, qkv_bias=bias, out_bias=bias, ff_bias=given.get("mlp_bias", False))


def _qwen2_config(given: Mapping[str, Any]) -> LlamaConfig:
    _check_fixed(given, _QWEN2_FIXED)
    return _of_the_family(given, qkv_bias=True)


def _of_the_family(given: Mapping[str, Any], **biases: bool) -> LlamaConfig:
    if given.get("num_key_value_heads") is None and "num_attention_heads" in given:
        given = {**given, "num_key_value_heads": given["num_attention_heads"]}
    sizes = _sizes(given, _LLAMA_FIELDS)
    emb_dim, n_heads, size = sizes["emb_dim"], sizes["n_heads"], given.get("head_dim")
    if size is None:
        if type(emb_dim) is not int or type(n_heads) is not int or n_heads < 1 or emb_dim % n_heads:
            raise ValueError(f"its hidden_size is {emb_dim!r}, num_attention_heads is {n_heads!r}; it must divide it")
        size = emb_dim // n_heads
    theta, scaling = _rotary(given)
    return LlamaConfig(
        **sizes,
        **biases,
        head_size=size,
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=given.get("rms_norm_eps", 1e-6),
        tie_embeddings=given.get("tie_word_embeddings", False),
    )


def _rotary(given: Mapping[str, Any]) -> tuple[Any, RotaryScaling | None]:
    """Return the base and the scaling of rotary embeddings, which transformers 5 has in one dict, unlike before."""
    found = given.get("rope_parameters") or given.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"its rope_scaling is {found!r}; it must be a dict")
    theta = found.get("rope_theta", given.get("rope_theta", 10_000.0))
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"its rope_scaling is of type {kind!r}; polyarr's models have 'default' or 'llama3'")
    return theta, RotaryScaling(**_sizes(found, _SCALING)) if kind == "llama3" else None


def _llama_settings(config: LlamaConfig) -> dict[str, Any]:
    is_qwen2 = config.qkv_bias and not config.out_bias
    for own, other, is_odd in (
        ("out_bias", "no qkv_bias", config.out_bias and not config.qkv_bias),
        ("ff_bias", "qkv_bias without out_bias", config.ff_bias and is_qwen2),
    ):
        if is_odd:
            raise ValueError(f"this model has {own} and {other}, which no model of transformers has")
    kind, name, fixed = ("qwen2", "Qwen2", _QWEN2_FIXED) if is_qwen2 else ("llama", "Llama", _LLAMA_FIXED)
    written = {"architectures": [f"{name}ForCausalLM"], "model_type": kind, **_written(config, _LLAMA_FIELDS, fixed)}
    written |= {} if is_qwen2 else {"attention_bias": config.qkv_bias, "mlp_bias": config.ff_bias}
    scaling = config.rope_scaling and {theirs: getattr(config.rope_scaling, own) for own, theirs in _SCALING.items()}
    return written | {
        "head_dim": config.head_size,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling and {"rope_type": "llama3", **scaling},
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


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
    untied = model.copy()
    untied.config = replace(model.config, tie_embeddings=False)
    untied.out_head = model.tok_emb
    return untied


# ---- all of them -------------------------------------------------------------------------------------------------

GPT2 = Format(
    _GPT2_LAYERS,
    _gpt2_config,
    _gpt2_settings,
    prefix="transformer.",
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    complete=_with_qkv_bias,
)
LLAMA = Format(
    _LLAMA_LAYERS,
    _llama_config,
    _llama_settings,
    prefix="model.",
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
)
QWEN2 = LLAMA._replace(config_of=_qwen2_config)
TUTORIAL = Format(
    _TUTORIAL_LAYERS,
    _tutorial_config,
    _tutorial_settings,
    ignored=("trf_blocks.*.att.mask",),
    complete=_untied,
)
# By the "model_type" of a config.json; the tutorial's settings have none.
READ = {"gpt2": GPT2, "llama": LLAMA, "qwen2": QWEN2, None: TUTORIAL}
WRITTEN = {"huggingface": {GPTModel: GPT2, LlamaModel: LLAMA}, "tutorial": {GPTModel: TUTORIAL}}


def format_of(given: Mapping[str, Any]) -> Format:
    """Return the format of a model whose config.json has this content.

    Raises:
        ValueError: polyarr does not have such a model.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str | None) or kind not in READ or (kind is None and "emb_dim" not in given):
        known = ", ".join(repr(name) for name in READ if name)
        raise ValueError(f"its model_type is {kind!r}; polyarr reads {known}, and the tutorial's settings")
    return READ[kind]
