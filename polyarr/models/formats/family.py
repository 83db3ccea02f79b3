"""Family of transformers' models that LlamaModel computes: what its settings mean, read and written."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from polyarr.models.formats.scaling import ORIGINAL_LENGTH, mapping, scaling_of, written_scaling
from polyarr.models.formats.tables import Format, Layer, check_fixed, layer, positive, settings_with, sizes_of
from polyarr.models.llama import LlamaConfig

_NONE: Mapping[str, Any] = MappingProxyType({})
BLOCK = "model.layers.*"
_LAYERS = {
    "tok_emb": layer("model.embed_tokens"),
    "blocks.*.norm1": layer(f"{BLOCK}.input_layernorm"),
    "blocks.*.att.qkv": layer(*(f"{BLOCK}.self_attn.{part}_proj" for part in "qkv")),
    "blocks.*.att.q_norm": layer(f"{BLOCK}.self_attn.q_norm"),
    "blocks.*.att.k_norm": layer(f"{BLOCK}.self_attn.k_norm"),
    "blocks.*.att.out": layer(f"{BLOCK}.self_attn.o_proj"),
    "blocks.*.norm2": layer(f"{BLOCK}.post_attention_layernorm"),
    "blocks.*.ff.gate": layer(f"{BLOCK}.mlp.gate_proj"),
    "blocks.*.ff.up": layer(f"{BLOCK}.mlp.up_proj"),
    "blocks.*.ff.down": layer(f"{BLOCK}.mlp.down_proj"),
    "final_norm": layer("model.norm"),
    "out_head": layer("lm_head"),
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
SILU = {"hidden_act": ("silu",)}
_EXPERT_FIELDS = ("n_experts", "experts_per_token", "normalize_experts", "expert_dim", "shared_dim")
_LAYER_TYPES = ("full_attention", "sliding_attention")


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
        window: Default of "sliding_window".
        is_windowed: Function from config.json and the number of a block to whether the block has a sliding window,
            where "layer_types" does not say.
        tied: Default of "tie_word_embeddings".
        head_dim: Default of "head_dim"; None for hidden_size / num_attention_heads.
        eps: Default of "rms_norm_eps".
        theta: Default of "rope_theta".
        local_theta: Default of "rope_local_base_freq", the base of blocks with a window; None if all have the same.
        has_scaled_embeddings: Whether embeddings are multiplied by the root of their width.
        scalar: Default of "query_pre_attn_scalar", whose inverse root scales the scores; None for the size of a head.
        default_scaling: Default of "rope_scaling".
        scalings: Types of "rope_scaling" that the family has beside "default" and "dynamic".
        is_partial: Whether "partial_rotary_factor" says how much of each head has rotary embeddings.
        interval: Default of "no_rope_layer_interval": every block of this number has no rotary embeddings; None if all
            blocks of the family have them.
        router_loss: Default of "router_aux_loss_coef"; None for families without experts.
        has_dense_blocks: Whether "mlp_only_layers" and "decoder_sparse_step" say which blocks have no experts.
    """

    kind: str
    name: str
    settings: Mapping[str, tuple[str, Any]] = _NONE
    flags: Mapping[str, Any] = _NONE
    fixed: Mapping[str, tuple] = MappingProxyType(SILU)
    layers: Mapping[str, Layer] = _NONE
    windows: tuple[str, ...] = ()
    window: int | None = 4096
    is_windowed: Callable[[Mapping[str, Any], int], bool] = lambda given, number: True
    tied: bool = False
    head_dim: int | None = None
    eps: float = 1e-6
    theta: float = 10_000.0
    local_theta: float | None = None
    has_scaled_embeddings: bool = False
    scalar: int | None = None
    default_scaling: Mapping[str, Any] = _NONE
    scalings: tuple[str, ...] = ("linear", "llama3", "yarn")
    is_partial: bool = False
    interval: int | None = None
    router_loss: float | None = None
    has_dense_blocks: bool = False

    def config_of(self, given: Mapping[str, Any]) -> LlamaConfig:
        """Return polyarr's configuration for the content of a config.json."""
        check_fixed(given, self.fixed)
        if given.get("num_key_value_heads") is None and "num_attention_heads" in given:
            given = {**given, "num_key_value_heads": given["num_attention_heads"]}
        if "num_local_experts" in given:  # which transformers 5 writes for Qwen3Moe, and reads by both names
            given = {"num_experts": given["num_local_experts"], **given}
        sizes = sizes_of(given, _SIZES)
        head_size = _head_size(given.get("head_dim", self.head_dim), sizes)
        given = {**given, "no_rope_layers": (rotary_blocks := self._rotary_blocks(given, sizes["n_layers"]))}
        found = {own: given.get(theirs, default) for own, (theirs, default) in self.settings.items()}
        if self.router_loss is not None:
            found |= self._experts(given, found, sizes["n_layers"])
        return LlamaConfig(
            **sizes,
            **{**self.flags, **found},
            **self._scales(given),
            **self._rotary(given, head_size),
            head_size=head_size,
            rotary_blocks=rotary_blocks,
            norm_eps=given.get("rms_norm_eps", self.eps),
            tie_embeddings=given.get("tie_word_embeddings", self.tied),
            windows=self._windows(given, sizes["n_layers"]),
        )

    def settings_of(self, config: LlamaConfig) -> dict[str, Any]:
        """Return the content of config.json for polyarr's configuration, as far as the family has it."""
        found: dict[str, Any] = {"architectures": [f"{self.name}ForCausalLM"], "model_type": self.kind}
        found |= settings_with(config, _SIZES, self.fixed)
        scale = config.attention_scale or config.head_size**-0.5
        own_values = {**vars(config), "attention_scale": scale, "expert_dim": config.expert_dim or config.hidden_dim}
        found |= {theirs: own_values[own] for own, (theirs, _) in self.settings.items()}
        found |= {"head_dim": config.head_size, "rms_norm_eps": config.norm_eps}
        found |= {"tie_word_embeddings": config.tie_embeddings, "rope_theta": config.rope_theta}
        scaling = config.rope_scaling and written_scaling(config.rope_scaling)
        found["rope_scaling"] = scaling or ({"rope_type": "default"} if self.default_scaling else None)
        if self.is_partial:
            share = (config.rotary_size or config.head_size) / config.head_size
            found["partial_rotary_factor"] = math.ceil(1e6 * share) / 1e6  # readers round share * head_size down
        if "longrope" in self.scalings and config.rope_scaling:
            found[ORIGINAL_LENGTH] = config.rope_scaling.original_length
        if self.interval is not None:
            found["no_rope_layers"] = list(config.rotary_blocks or (1,) * config.n_layers)
        if self.local_theta is not None:
            local = {"rope_type": "default", "rope_theta": config.local_rope_theta or config.rope_theta}
            whole = {**(scaling or {"rope_type": "default"}), "rope_theta": config.rope_theta}
            found["rope_local_base_freq"] = local["rope_theta"]  # which transformers reads before version 5
            found["rope_parameters"] = {"sliding_attention": local, "full_attention": whole}
        if self.router_loss is not None:
            found |= {"router_aux_loss_coef": config.router_loss, "output_router_logits": config.router_loss > 0}
        if self.has_dense_blocks:
            dense = [number for number in range(config.n_layers) if not config.has_experts(number)]
            found |= {"mlp_only_layers": dense, "decoder_sparse_step": 1}
        if self.scalar is not None:
            found["query_pre_attn_scalar"] = round(scale**-2)
        # Gemma2 of transformers needs a size also if no block has a window.
        written_windows = _written_windows(config, self.window if "layer_types" in self.windows else None)
        return found | {name: written_windows[name] for name in self.windows}

    def fits(self, config: LlamaConfig) -> bool:
        """Return whether the family has models with this configuration."""
        if (self.router_loss is not None) != (config.n_experts > 0):
            return False
        try:
            return self.config_of(self.settings_of(config)) == config
        except ValueError:  # such as a type of "rope_scaling" that the family does not have
            return False

    def format(self) -> Format:
        """Return the format of the family's models."""
        return Format(
            {**_LAYERS, **self.layers},
            self.config_of,
            self.settings_of,
            prefix="model.",
            ignored=(f"{BLOCK}.self_attn.rotary_emb.inv_freq",),
            fits=self.fits,
        )

    def _scales(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the factors of embeddings and scores."""
        found = {}
        if self.has_scaled_embeddings:
            found["embedding_scale"] = positive(given, "hidden_size") ** 0.5
        if self.scalar is not None:
            found["attention_scale"] = positive(given, "query_pre_attn_scalar", self.scalar) ** -0.5
        return found

    def _experts(self, given: Mapping[str, Any], fields: Mapping[str, Any], count: Any) -> dict[str, Any]:
        """Return the fields of experts that need more than a setting each; transformers adds the loss only if asked."""
        for name in {"shared_dim", "swiglu_limit"} & fields.keys():
            positive(given, *self.settings[name])
        has_loss = given.get("output_router_logits", False)
        loss = given.get("router_aux_loss_coef", self.router_loss) if has_loss else 0.0
        found: dict[str, Any] = {"router_loss": loss}
        if self.has_dense_blocks and _is_size("n_layers", count):
            step, dense = positive(given, "decoder_sparse_step", 1), given.get("mlp_only_layers") or []
            if not isinstance(dense, list):
                raise ValueError(f"its mlp_only_layers is {dense!r}; it must be a list of numbers of blocks")
            found["expert_blocks"] = tuple(int(i not in dense and (i + 1) % step == 0) for i in range(count))
        if fields["n_experts"] == 0 or not any(found.get("expert_blocks", (1,))):
            return {name: getattr(LlamaConfig, name) for name in (*_EXPERT_FIELDS, *found)}  # a model without experts
        return found

    def _rotary(self, given: Mapping[str, Any], head_size: Any) -> dict[str, Any]:
        """Return the fields of rotary embeddings, which transformers 5 has in one dict or one by kind of block."""
        found = mapping(given.get("rope_parameters") or given.get("rope_scaling") or self.default_scaling)
        local, found = mapping(found.get("sliding_attention")), mapping(found.get("full_attention", found))
        theta = found.get("rope_theta", given.get("rope_theta", self.theta))
        fields = {"rope_theta": theta, "rope_scaling": scaling_of(found, given, self.scalings)}
        if self.is_partial:
            share = positive({**given, **found}, "partial_rotary_factor", 1.0)
            fields["rotary_size"] = int(head_size * share) if _is_size("head_size", head_size) else None
        if self.local_theta is not None:
            if scaling_of(local, given, self.scalings) is not None:
                raise ValueError(f"its rotary embeddings of blocks with a window are {local!r}; they must be 'default'")
            default = given.get("rope_local_base_freq", self.local_theta)
            fields["local_rope_theta"] = local.get("rope_theta", default)
        return fields

    def _windows(self, given: Mapping[str, Any], count: Any) -> tuple[int, ...]:
        """Return the size of the window of each block, 0 for none, or ()."""
        size = given.get("sliding_window", self.window) if self.windows else None
        if "use_sliding_window" in self.windows and not given.get("use_sliding_window", False):
            size = None
        if size is None or not _is_size("n_layers", count):
            return ()
        size, types = positive(given, "sliding_window", size), given.get("layer_types")
        if "layer_types" not in self.windows or types is None:
            return tuple(size * bool(self.is_windowed(given, number)) for number in range(count))
        if not isinstance(types, list) or len(types) != count:
            raise ValueError(f"its layer_types is {types!r}; it must be a list of num_hidden_layers names")
        if unknown := [kind for kind in types if kind not in _LAYER_TYPES]:
            raise ValueError(f"its layer_types have {unknown[0]!r}; polyarr's models have {' or '.join(_LAYER_TYPES)}")
        return tuple(size * (kind == "sliding_attention") for kind in types)

    def _rotary_blocks(self, given: Mapping[str, Any], count: Any) -> tuple[int, ...]:
        """Return whether each block has rotary embeddings, or () if all have."""
        if self.interval is None or not _is_size("n_layers", count):
            return ()
        blocks = given.get("no_rope_layers")  # 1 for blocks with rotary embeddings
        if blocks is None:
            interval = positive(given, "no_rope_layer_interval", self.interval)
            return tuple(int((number + 1) % interval != 0) for number in range(count))
        if not isinstance(blocks, list) or len(blocks) != count or not all(block in (0, 1) for block in blocks):
            raise ValueError(f"its no_rope_layers is {blocks!r}; it must be a list of num_hidden_layers ones and zeros")
        return tuple(map(int, blocks))


def _is_size(name: str, value: Any) -> bool:
    """Return whether a size of LlamaConfig may have this value; it refuses others itself."""
    return type(value) is int and 0 < value <= LlamaConfig._max_sizes[name]


def _head_size(size: Any, sizes: Mapping[str, Any]) -> Any:
    """Return the size of a head: the given one, or for None hidden_size / num_attention_heads."""
    emb_dim, n_heads = sizes["emb_dim"], sizes["n_heads"]
    if size is None:
        if type(emb_dim) is not int or type(n_heads) is not int or n_heads < 1 or emb_dim % n_heads:
            given = f"its hidden_size is {emb_dim!r}, num_attention_heads is {n_heads!r}"
            raise ValueError(f"{given}; it must divide hidden_size")
        size = emb_dim // n_heads
    return size


def _written_windows(config: LlamaConfig, unused: int | None) -> dict[str, Any]:
    """Return all settings of sliding windows, of which a family has some; `unused` is the size if there are none."""
    windows = config.windows or (0,) * config.n_layers
    return {
        "sliding_window": max(windows) or unused,
        "use_sliding_window": any(windows),
        "max_window_layers": next((number for number, size in enumerate(windows) if size), config.n_layers),
        "layer_types": ["sliding_attention" if size else "full_attention" for size in windows],
    }
