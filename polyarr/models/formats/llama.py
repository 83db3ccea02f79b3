"""Formats of transformers' models that LlamaModel computes: a table of families, and the settings they share."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from polyarr.models.formats.tables import Format, Layer, check_fixed, layer, settings_with, sizes_of
from polyarr.models.llama import LlamaConfig
from polyarr.nn import RotaryScaling

_NONE: Mapping[str, Any] = MappingProxyType({})
_BLOCK = "model.layers.*"
_LAYERS = {
    "tok_emb": layer("model.embed_tokens"),
    "blocks.*.norm1": layer(f"{_BLOCK}.input_layernorm"),
    "blocks.*.att.qkv": layer(*(f"{_BLOCK}.self_attn.{part}_proj" for part in "qkv")),
    "blocks.*.att.q_norm": layer(f"{_BLOCK}.self_attn.q_norm"),
    "blocks.*.att.k_norm": layer(f"{_BLOCK}.self_attn.k_norm"),
    "blocks.*.att.out": layer(f"{_BLOCK}.self_attn.o_proj"),
    "blocks.*.norm2": layer(f"{_BLOCK}.post_attention_layernorm"),
    "blocks.*.ff.gate": layer(f"{_BLOCK}.mlp.gate_proj"),
    "blocks.*.ff.up": layer(f"{_BLOCK}.mlp.up_proj"),
    "blocks.*.ff.down": layer(f"{_BLOCK}.mlp.down_proj"),
    "final_norm": layer("model.norm"),
    "out_head": layer("lm_head"),
}
_OUT_NORMS = {  # of families with norms after attention and feed-forward layer
    "blocks.*.out_norm1": layer(f"{_BLOCK}.post_attention_layernorm"),
    "blocks.*.norm2": layer(f"{_BLOCK}.pre_feedforward_layernorm"),
    "blocks.*.out_norm2": layer(f"{_BLOCK}.post_feedforward_layernorm"),
}
_SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "emb_dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
}
_SILU = {"hidden_act": ("silu",)}
_GELU = {"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (None, False)}
_BIAS = {"qkv_bias": ("attention_bias", False), "out_bias": ("attention_bias", False)}
_LENGTH = "max_position_embeddings"


class Family(NamedTuple):
    """Family of transformers' models that LlamaModel computes.

    Attributes:
        kind: Its "model_type" in config.json.
        name: Beginning of the names of its classes.
        settings: Setting and its default, by the field of LlamaConfig that it is.
        flags: Fields of LlamaConfig that are the same for all models of the family.
        fixed: Settings with one supported value, or several.
        layers: Layer names that differ from Llama's.
        windows: Settings of sliding windows that the family has.
        is_windowed: Function from config.json and the number of a block to whether the block has a sliding window,
            where "layer_types" does not say.
        tied: Default of "tie_word_embeddings".
        eps: Default of "rms_norm_eps".
        theta: Default of "rope_theta".
        local_theta: Default of "rope_local_base_freq", the base of blocks with a window; None if all have the same.
        has_scaled_embeddings: Whether embeddings are multiplied by the root of their width.
        scalar: Default of "query_pre_attn_scalar", whose inverse root scales the scores; None for the size of a head.
    """

    kind: str
    name: str
    settings: Mapping[str, tuple[str, Any]] = _NONE
    flags: Mapping[str, Any] = _NONE
    fixed: Mapping[str, tuple] = MappingProxyType(_SILU)
    layers: Mapping[str, Layer] = _NONE
    windows: tuple[str, ...] = ()
    is_windowed: Callable[[Mapping[str, Any], int], bool] = lambda given, number: True
    tied: bool = False
    eps: float = 1e-6
    theta: float = 10_000.0
    local_theta: float | None = None
    has_scaled_embeddings: bool = False
    scalar: int | None = None

    def config_of(self, given: Mapping[str, Any]) -> LlamaConfig:
        """Return polyarr's configuration for the content of a config.json."""
        check_fixed(given, self.fixed)
        if given.get("num_key_value_heads") is None and "num_attention_heads" in given:
            given = {**given, "num_key_value_heads": given["num_attention_heads"]}
        sizes = sizes_of(given, _SIZES)
        found = {own: given.get(theirs, default) for own, (theirs, default) in self.settings.items()}
        return LlamaConfig(
            **sizes,
            **self.flags,
            **found,
            **self._scales(given),
            **self._rotary(given),
            head_size=_head_size(given, sizes),
            norm_eps=given.get("rms_norm_eps", self.eps),
            tie_embeddings=given.get("tie_word_embeddings", self.tied),
            windows=self._windows(given, sizes["n_layers"]),
        )

    def settings_of(self, config: LlamaConfig) -> dict[str, Any]:
        """Return the content of config.json for polyarr's configuration, as far as the family has it."""
        found = {"architectures": [f"{self.name}ForCausalLM"], "model_type": self.kind}
        found |= settings_with(config, _SIZES, self.fixed)
        found |= {theirs: getattr(config, own) for own, (theirs, _) in self.settings.items()}
        found |= {"head_dim": config.head_size, "rms_norm_eps": config.norm_eps}
        found |= {"tie_word_embeddings": config.tie_embeddings, "rope_theta": config.rope_theta}
        found |= {"rope_scaling": config.rope_scaling and _written_scaling(config.rope_scaling)}
        if self.local_theta is not None:
            found["rope_local_base_freq"] = config.local_rope_theta or config.rope_theta
        if self.scalar is not None:
            found["query_pre_attn_scalar"] = round((config.attention_scale or config.head_size**-0.5) ** -2)
        written_windows = _written_windows(config)
        return found | {name: written_windows[name] for name in self.windows}

    def fits(self, config: LlamaConfig) -> bool:
        """Return whether the family has models with this configuration."""
        return self.config_of(self.settings_of(config)) == config

    def format(self) -> Format:
        """Return the format of the family's models."""
        return Format(
            {**_LAYERS, **self.layers},
            self.config_of,
            self.settings_of,
            prefix="model.",
            ignored=(f"{_BLOCK}.self_attn.rotary_emb.inv_freq",),
            fits=self.fits,
        )

    def _scales(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Return the factors of embeddings and scores."""
        found = {}
        if self.has_scaled_embeddings:
            found["embedding_scale"] = _positive(given, "hidden_size") ** 0.5
        if self.scalar is not None:
            found["attention_scale"] = _positive(given, "query_pre_attn_scalar", self.scalar) ** -0.5
        return found

    def _rotary(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of rotary embeddings, which transformers 5 has in one dict or one by kind of block."""
        found = _mapping(given.get("rope_parameters") or given.get("rope_scaling"))
        local, found = _mapping(found.get("sliding_attention")), _mapping(found.get("full_attention", found))
        theta = found.get("rope_theta", given.get("rope_theta", self.theta))
        fields = {"rope_theta": theta, "rope_scaling": _scaling(found, given)}
        if self.local_theta is not None:
            if _scaling(local, given) is not None:
                raise ValueError(f"its rotary embeddings of blocks with a window are {local!r}; they must be 'default'")
            default = given.get("rope_local_base_freq", self.local_theta)
            fields["local_rope_theta"] = local.get("rope_theta", default)
        return fields

    def _windows(self, given: Mapping[str, Any], count: Any) -> tuple[int, ...]:
        """Return the size of the window of each block, 0 for none, or ()."""
        size = given.get("sliding_window", 4096) if self.windows else None
        if "use_sliding_window" in self.windows and not given.get("use_sliding_window", False):
            size = None
        if size is None or type(count) is not int or count > LlamaConfig._max_sizes["n_layers"]:  # refused elsewhere
            return ()
        size, types = _positive(given, "sliding_window", size), given.get("layer_types")
        if "layer_types" not in self.windows or types is None:
            return tuple(size * bool(self.is_windowed(given, number)) for number in range(count))
        if not isinstance(types, list) or len(types) != count:
            raise ValueError(f"its layer_types is {types!r}; it must be a list of num_hidden_layers names")
        return tuple(size * (kind == "sliding_attention") for kind in types)


def _positive(given: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return a setting, which must be a positive number."""
    value = given.get(name, default)
    if type(value) not in (int, float) or not value > 0:
        raise ValueError(f"its {name} is {value!r}; it must be a positive number")
    return value


def _mapping(given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"its rope_scaling is {given!r}; it must be a dict")
    return given or {}


def _head_size(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
    emb_dim, n_heads, size = sizes["emb_dim"], sizes["n_heads"], given.get("head_dim")
    if size is None:
        if type(emb_dim) is not int or type(n_heads) is not int or n_heads < 1 or emb_dim % n_heads:
            raise ValueError(f"its hidden_size is {emb_dim!r}, num_attention_heads is {n_heads!r}; it must divide it")
        size = emb_dim // n_heads
    return size


def _written_windows(config: LlamaConfig) -> dict[str, Any]:
    """Return all settings of sliding windows, of which a family has some."""
    windows = config.windows or (0,) * config.n_layers
    return {
        "sliding_window": max(windows) or None,
        "use_sliding_window": any(windows),
        "max_window_layers": next((number for number, size in enumerate(windows) if size), config.n_layers),
        "layer_types": ["sliding_attention" if size else "full_attention" for size in windows],
    }


# ---- scaling of rotary embeddings --------------------------------------------------------------------------------

_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_length": "original_max_position_embeddings",
}
_YARN = {
    "factor": "factor",
    "low_freq_factor": "beta_slow",
    "high_freq_factor": "beta_fast",
    "original_length": "original_max_position_embeddings",
    "attention_factor": "attention_factor",
}
_SCALINGS = {"linear": {"factor": "factor"}, "llama3": _LLAMA3, "yarn": _YARN}


def _scaling(found: Mapping[str, Any], given: Mapping[str, Any]) -> RotaryScaling | None:
    """Return the scaling that a dict of settings describes.

    "dynamic" changes nothing for texts that fit into the context.
    """
    kind = found.get("rope_type", found.get("type", "default"))
    if kind in ("default", "dynamic"):
        return None
    if kind not in ("linear", "llama3", "yarn"):
        known = "'default', 'linear', 'dynamic', 'llama3' or 'yarn'"
        raise ValueError(f"its rope_scaling is of type {kind!r}; polyarr's models have {known}")
    if kind == "yarn":
        found = _whole_yarn(found, given)
    return RotaryScaling(**sizes_of(found, _SCALINGS[kind]), kind=kind)


def _whole_yarn(found: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of yarn with defaults for those that are left out."""
    check_fixed(found, {"truncate": (True,)})
    found = {name: value for name, value in found.items() if value is not None}
    found = {"beta_slow": 1, "beta_fast": 32, "original_max_position_embeddings": given.get(_LENGTH), **found}
    if "attention_factor" not in found:
        factor, scales = _positive(found, "factor"), [found.get("mscale"), found.get("mscale_all_dim")]
        above, below = (_positive({"mscale": s}, "mscale") for s in scales) if all(scales) else (1, 0)
        found["attention_factor"] = _magnitude(factor, above) / _magnitude(factor, below)
    return found


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _written_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    names = _SCALINGS[scaling.kind]
    return {"rope_type": scaling.kind, **{theirs: getattr(scaling, own) for own, theirs in names.items()}}


# ---- families ----------------------------------------------------------------------------------------------------

_OF_QWEN: dict[str, Any] = {
    "windows": ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    "is_windowed": lambda given, number: number >= given.get("max_window_layers", 28),
}
_OF_GEMMA: dict[str, Any] = {"tied": True, "has_scaled_embeddings": True}
_GEMMA_FLAGS = {"activation": "gelu_tanh", "norm_offset": 1.0}
_GEMMA_GIVEN: dict[str, Any] = {"fixed": _GELU, "layers": _OUT_NORMS, "scalar": 256, **_OF_GEMMA}

# The first family that a model fits is the one it is written as.
FAMILIES = (
    Family("llama", "Llama", _BIAS | {"ff_bias": ("mlp_bias", False)}),
    Family("qwen2", "Qwen2", flags={"qkv_bias": True}, **_OF_QWEN),
    Family("mistral", "Mistral", windows=("sliding_window",)),
    Family("qwen3", "Qwen3", _BIAS, {"qk_norm": "head"}, **_OF_QWEN),
    Family(
        "olmo2",
        "Olmo2",
        _BIAS,
        {"norm_place": "after", "qk_norm": "all"},
        layers=_OUT_NORMS,
        eps=1e-5,
    ),
    Family(
        "gemma",
        "Gemma",
        _BIAS,
        _GEMMA_FLAGS,
        fixed={"hidden_act": ("gelu_pytorch_tanh", "gelu"), "use_bidirectional_attention": (None, False)},
        **_OF_GEMMA,
    ),
    Family(
        "gemma2",
        "Gemma2",
        _BIAS
        | {
            "attention_softcap": ("attn_logit_softcapping", 50.0),
            "logit_softcap": ("final_logit_softcapping", 30.0),
        },
        _GEMMA_FLAGS | {"norm_place": "both"},
        windows=("sliding_window", "layer_types"),
        is_windowed=lambda given, number: number % 2 == 0,
        **_GEMMA_GIVEN,
    ),
    Family(
        "gemma3_text",
        "Gemma3",
        _BIAS | {"logit_softcap": ("final_logit_softcapping", None)},
        _GEMMA_FLAGS | {"norm_place": "both", "qk_norm": "head"},
        windows=("sliding_window", "layer_types"),
        is_windowed=lambda given, number: (number + 1) % given.get("sliding_window_pattern", 6) != 0,
        theta=1_000_000.0,
        local_theta=10_000.0,
        **_GEMMA_GIVEN,
    ),
)
FORMATS = {family.kind: family.format() for family in FAMILIES}
