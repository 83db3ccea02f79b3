"""Llama and its relatives (Qwen, Gemma, Phi and others): rotary positions, RMS norms, gated feed-forward layers."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import float32, float64, shown
from polyarr.models.decoder import MAX_SIZE, Config, LanguageModel
from polyarr.nn import (
    Embedding,
    GatedFeedForward,
    KeyValueCache,
    Linear,
    MixtureOfExperts,
    Module,
    MultiHeadAttention,
    RMSNorm,
    RotaryScaling,
    RotaryTables,
    Routed,
    balance_loss,
    normal,
    turns,
)
from polyarr.ops.nn import ACTIVATIONS

SMOLLM2_135M = {
    "vocab_size": 49152,
    "context_length": 8192,
    "emb_dim": 576,
    "n_heads": 9,
    "n_layers": 30,
    "n_kv_heads": 3,
    "hidden_dim": 1536,
    "head_size": 64,
    "rope_theta": 100_000.0,
    "tie_embeddings": True,
}
QWEN2_0_5B = {
    "vocab_size": 151936,
    "context_length": 32768,
    "emb_dim": 896,
    "n_heads": 14,
    "n_layers": 24,
    "n_kv_heads": 2,
    "hidden_dim": 4864,
    "head_size": 64,
    "rope_theta": 1_000_000.0,
    "norm_eps": 1e-6,
    "qkv_bias": True,
    "tie_embeddings": True,
}
LLAMA_3_2_1B = {
    "vocab_size": 128256,
    "context_length": 131072,
    "emb_dim": 2048,
    "n_heads": 32,
    "n_layers": 16,
    "n_kv_heads": 8,
    "hidden_dim": 8192,
    "head_size": 64,
    "rope_theta": 500_000.0,
    "rope_scaling": RotaryScaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192),
    "tie_embeddings": True,
}
PRESETS = {"smollm2-135m": SMOLLM2_135M, "qwen2-0.5b": QWEN2_0_5B, "llama-3.2-1b": LLAMA_3_2_1B}
NORM_PLACES = ("before", "after", "both")
QK_NORMS = ("none", "head", "all")
SCALINGS = ("llama3", "yarn", "linear", "longrope")
_PAIR_FACTORS = ("short_factors", "long_factors")
MAX_EXPERTS = 10_000
_MAX_NUMBER = 1e12  # largest base or factor: the angles computed from it still fit float32


@dataclass(frozen=True)
class LlamaConfig(Config):
    """Configuration of a model of the Llama family or one of its relatives.

    Args:
        vocab_size: Number of tokens.
        context_length: Largest number of positions.
        emb_dim: Width of the embeddings.
        n_heads: Number of query heads.
        n_layers: Number of transformer blocks.
        n_kv_heads: Number of key and value heads, a divisor of n_heads.
        hidden_dim: Width of the feed-forward layers.
        head_size: Length of a head's vectors, an even number; usually emb_dim / n_heads.
        rope_theta: Base of the rotary embeddings.
        rope_scaling: Scaling of the rotary embeddings, a RotaryScaling; None: none.
        norm_eps: Epsilon of the RMS norms.
        qkv_bias: Whether the projections to queries, keys and values have a bias.
        out_bias: Whether the output projection of attention has a bias.
        tie_embeddings: Whether the head shares the weight of the token embedding.
        ff_bias: Whether the three feed-forward layers have a bias.
        activation: Activation of the feed-forward layers: "silu", "gelu", "gelu_tanh" or "relu".
        norm_place: Where the norms of a block are: "before" attention and feed-forward layer, "after", or "both".
        norm_offset: Number added to the weights of the norms: 1.0 in Gemma's models.
        qk_norm: Norms of queries and keys: "none", of each "head", or of "all" heads together.
        windows: Size of the sliding window of each block, its own position included; 0 for attention to all earlier
            positions. A shorter list is repeated; an empty one stands for zeros.
        local_rope_theta: Base of the rotary embeddings, without scaling, of blocks with a window; None: as in others.
        embedding_scale: Factor of the embeddings.
        attention_scale: Factor of the attention scores; None for 1 / sqrt(head_size).
        attention_softcap: Limit c of the attention scores, which become c tanh(score / c); None for no limit.
        attention_sinks: Whether each head has a learned logit that joins the scores in the softmax.
        logit_softcap: Limit of the logits, likewise.
        logit_divisor: Number that the logits are divided by.
        residual_scale: Factor of what attention and feed-forward layer add to the residual connection.
        rotary_size: Number of elements of each head that have rotary embeddings, an even number; None for all.
        rotary_blocks: Whether each block has rotary embeddings, 1 or 0. A shorter list is repeated; an empty one stands
            for ones.
        n_experts: Number of experts of a feed-forward layer; 0 for models without experts.
        experts_per_token: Number of experts that each token chooses.
        expert_dim: Width of an expert; None for hidden_dim.
        expert_blocks: Whether the feed-forward layer of each block has experts, 1 or 0. A shorter list is repeated; an
            empty one stands for ones.
        normalize_experts: Whether the probabilities of the chosen experts are divided by their sum.
        expert_bias: Whether router and experts have biases.
        swiglu_limit: Limit of gate and up of the experts, which then compute gate * sigmoid(1.702 * gate) * (up + 1)
            in place of activation(gate) * up; None for no limit, and the activation.
        shared_dim: Width of an expert that all tokens have, behind a gate; 0 for none.
        router_loss: Factor of the load-balancing loss, which training adds to the loss.

    Raises:
        ValueError: A field is of another type or out of range, or a size does not divide as it must.

    Examples:
        >>> from polyarr.models import LlamaConfig
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 3}
        >>> LlamaConfig(**sizes, n_kv_heads=1, hidden_dim=16, head_size=4, windows=(4, 0)).windows
        (4, 0, 4)
    """

    n_kv_heads: int
    hidden_dim: int
    head_size: int
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling | None = None
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    out_bias: bool = False
    tie_embeddings: bool = False
    ff_bias: bool = False
    activation: str = "silu"
    norm_place: str = "before"
    norm_offset: float = 0.0
    qk_norm: str = "none"
    windows: tuple[int, ...] = ()
    local_rope_theta: float | None = None
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    logit_softcap: float | None = None
    logit_divisor: float = 1.0
    residual_scale: float = 1.0
    rotary_size: int | None = None
    rotary_blocks: tuple[int, ...] = ()
    n_experts: int = 0
    experts_per_token: int = 0
    expert_dim: int | None = None
    expert_blocks: tuple[int, ...] = ()
    normalize_experts: bool = False
    expert_bias: bool = False
    swiglu_limit: float | None = None
    shared_dim: int = 0
    router_loss: float = 0.0

    _max_sizes: ClassVar[dict[str, int]] = Config._max_sizes | dict.fromkeys(
        ("n_kv_heads", "hidden_dim", "head_size"), MAX_SIZE
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_heads % self.n_kv_heads:
            self._refuse(f"n_heads is {self.n_heads}, n_kv_heads is {self.n_kv_heads}; it must divide n_heads")
        if self.head_size % 2:
            self._refuse(f"head_size is {self.head_size}; it must be even")
        self._check_number("rope_theta", self.rope_theta, 1, _MAX_NUMBER)
        self._check_number("norm_eps", self.norm_eps, 0, 1)
        self._check_number("norm_offset", self.norm_offset, 0, 1)
        activations = [name for name in ACTIVATIONS if name]
        for name, known in {"activation": activations, "norm_place": NORM_PLACES, "qk_norm": QK_NORMS}.items():
            self._check_known(name, getattr(self, name), known)
        optional = ("attention_scale", "attention_softcap", "logit_softcap", "swiglu_limit")
        for name in ("embedding_scale", "residual_scale", "logit_divisor", *optional):
            if (value := getattr(self, name)) is not None or name not in optional:
                self._check_number(name, value, 1e-6, _MAX_NUMBER)
        if self.local_rope_theta is not None:
            self._check_number("local_rope_theta", self.local_rope_theta, 1, _MAX_NUMBER)
        size = self.rotary_size
        if size is not None and (type(size) is not int or size % 2 or not 2 <= size <= self.head_size):
            self._refuse(f"rotary_size is {shown(size)}; it must be an even int from 2 to head_size, {self.head_size}")
        self._check_experts()
        windows = self._by_block("windows", self.windows, MAX_SIZE)
        expert_blocks = self._by_block("expert_blocks", self.expert_blocks, 1)
        if expert_blocks and not any(expert_blocks):
            self._refuse("expert_blocks has no 1; leave out n_experts for a model without experts")
        rotary_blocks = self._by_block("rotary_blocks", self.rotary_blocks, 1)
        canonical = {
            "rope_scaling": None if self.rope_scaling is None else self._checked_scaling(self.rope_scaling),
            "windows": windows if any(windows) else (),
            "rotary_blocks": () if all(rotary_blocks) else rotary_blocks,
            "attention_scale": None if self.attention_scale == self.head_size**-0.5 else self.attention_scale,
            "rotary_size": None if size == self.head_size else size,
            "expert_blocks": () if all(expert_blocks) else expert_blocks,
            "expert_dim": None if self.expert_dim == self.hidden_dim else self.expert_dim,
        }
        for name, value in canonical.items():
            object.__setattr__(self, name, value)

    def _check_experts(self) -> None:
        width = self.hidden_dim if self.expert_dim is None else self.expert_dim
        count = self.n_experts if type(self.n_experts) is int else 0  # others are refused first
        for name, value, least, most in (
            ("n_experts", self.n_experts, 0, MAX_EXPERTS),
            ("experts_per_token", self.experts_per_token, min(count, 1), count),
            ("expert_dim", width, 1, MAX_SIZE),
            ("shared_dim", self.shared_dim, 0, MAX_SIZE),
        ):
            if type(value) is not int or not least <= value <= most:
                self._refuse(f"{name} is {shown(value)}; it must be an int from {least} to {most:,}")
        self._check_number("router_loss", self.router_loss, 0, _MAX_NUMBER)
        names = ("expert_dim", "expert_blocks", "normalize_experts", "shared_dim", "router_loss", "expert_bias",
                 "swiglu_limit")  # fmt: skip
        if not count and (given := [name for name in names if getattr(self, name)]):
            self._refuse(f"{given[0]} is {shown(getattr(self, given[0]))}, n_experts is 0; only experts have it")

    def has_experts(self, number: int) -> bool:
        """Return whether the feed-forward layer of the block with this number has experts."""
        return self.n_experts > 0 and bool(not self.expert_blocks or self.expert_blocks[number])

    def _check_known(self, name: str, value: Any, known: Iterable[str]) -> None:
        if not isinstance(value, str) or value not in known:
            self._refuse(f"{name} is {shown(value)}; it must be {' or '.join(map(repr, known))}")

    def _checked_scaling(self, given: Any) -> RotaryScaling:
        names, values = RotaryScaling._fields, tuple(given) if isinstance(given, (list, tuple)) else ()
        if not 1 <= len(values) <= len(names):
            self._refuse(f"rope_scaling is {given!r}; it must be {', '.join(names)}")
        found = RotaryScaling(*values)
        self._check_known("rope_scaling's kind", found.kind, SCALINGS)
        for name, value in found._asdict().items():
            if name not in ("kind", "truncate", *_PAIR_FACTORS):
                self._check_number(f"rope_scaling's {name}", value, 1e-3, _MAX_NUMBER)
        if not isinstance(found.truncate, bool):
            self._refuse(f"rope_scaling's truncate is {shown(found.truncate)}; it must be True or False")
        if not found.low_freq_factor < found.high_freq_factor:
            self._refuse("rope_scaling's low_freq_factor is not below its high_freq_factor; it must be")
        short, long = (self._checked_factors(found, name) for name in _PAIR_FACTORS)
        return found._replace(short_factors=short, long_factors=long)

    def _checked_factors(self, scaling: RotaryScaling, name: str) -> tuple[float, ...]:
        """Return the factors of each pair, which only "longrope" has."""
        given, size = getattr(scaling, name), self.rotary_size or self.head_size
        count = size // 2 if scaling.kind == "longrope" else 0
        if not isinstance(given, (list, tuple)) or len(given) != count:
            self._refuse(f"rope_scaling's {name} is {shown(given)}; it must be a list of {count} numbers")
        for value in given:
            self._check_number(f"a number of rope_scaling's {name}", value, 1e-3, _MAX_NUMBER)
        return tuple(given)

    def _by_block(self, name: str, given: Any, most: int) -> tuple[int, ...]:
        """Return an int for each block, or () if there are none."""
        if not isinstance(given, (list, tuple)) or not all(type(n) is int and 0 <= n <= most for n in given):
            self._refuse(f"{name} is {shown(given)}; it must be a list of ints from 0 to {most}")
        if len(given) > self.n_layers:
            self._refuse(f"{name} has {len(given)} numbers; it must have at most n_layers of them, {self.n_layers}")
        return tuple(given[i % len(given)] for i in range(self.n_layers)) if given else ()

    def norm(self, size: int) -> RMSNorm:
        """Return a new norm of vectors of length `size`."""
        return RMSNorm(size, self.norm_eps, offset=self.norm_offset)


class LlamaBlock(Module):
    """Block of attention and a gated feed-forward layer, each with norms before or after it and a residual connection.

    Args:
        config: The configuration of the model.
        number: Number of the block, which decides whether its feed-forward layer has experts.
    """

    def __init__(self, config: LlamaConfig, number: int = 0) -> None:
        # GPT-2's initialization: the papers of these models do not state their own.
        init, out_init = normal(0.02), normal(0.02 / math.sqrt(2 * config.n_layers))
        is_before, is_after = config.norm_place != "after", config.norm_place != "before"
        self.residual_scale = config.residual_scale
        self.norm1, self.norm2 = (config.norm(config.emb_dim) if is_before else None for _ in range(2))
        self.out_norm1, self.out_norm2 = (config.norm(config.emb_dim) if is_after else None for _ in range(2))
        self.att = MultiHeadAttention(
            config.emb_dim,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_size=config.head_size,
            causal=True,
            qkv_bias=config.qkv_bias,
            out_bias=config.out_bias,
            q_norm=_head_norm(config, config.n_heads),
            k_norm=_head_norm(config, config.n_kv_heads),
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            sinks=config.attention_sinks,
            init=init,
            out_init=out_init,
        )
        if config.has_experts(number):
            self.ff: MixtureOfExperts | GatedFeedForward = MixtureOfExperts(
                config.emb_dim,
                config.expert_dim or config.hidden_dim,
                experts=config.n_experts,
                per_token=config.experts_per_token,
                normalize=config.normalize_experts,
                shared=config.shared_dim,
                activation=config.activation,
                bias=config.expert_bias,
                swiglu_limit=config.swiglu_limit,
                init=init,
                out_init=out_init,
            )
        else:
            self.ff = GatedFeedForward(
                config.emb_dim, config.hidden_dim, activation=config.activation, bias=config.ff_bias, init=init,
                out_init=out_init,
            )  # fmt: skip

    def __call__(
        self, x: Array | Routed, mask: Array | None, cache: KeyValueCache | None, position: int | Array | None,
        rotary_tables: RotaryTables | None,
    ) -> Array | Routed:  # fmt: skip
        """Return the output (B, T, C) of the block for x (B, T, C); of a Routed a Routed, with the load added."""
        x, load = x if isinstance(x, Routed) else (x, None)
        y = self.att(_normed(self.norm1, x), mask, cache, position, rotary_tables)  # (B, T, C)
        x = x + self._scaled(_normed(self.out_norm1, y))
        y = _normed(self.norm2, x)
        if load is not None and isinstance(self.ff, MixtureOfExperts):
            y, own = self.ff.routed(y)
            load = load + own
        else:
            y = self.ff(y)
        x = x + self._scaled(_normed(self.out_norm2, y))  # (B, T, C)
        return x if load is None else Routed(x, load)

    def _scaled(self, y: Array) -> Array:
        return y if self.residual_scale == 1 else y * self.residual_scale


def _normed(norm: RMSNorm | None, x: Array) -> Array:
    return x if norm is None else norm(x)


def _head_norm(config: LlamaConfig, heads: int) -> RMSNorm | None:
    """Return a new norm of queries or keys with this number of heads, or None."""
    sizes = {"none": None, "head": config.head_size, "all": heads * config.head_size}
    return None if (size := sizes[config.qk_norm]) is None else config.norm(size)


class LlamaModel(LanguageModel):
    """Llama language model: token embeddings, blocks of causal attention with rotary positions, a norm and a head.

    The feed-forward layers are gated and the norms are RMS norms.

    Args:
        config: A LlamaConfig, or a mapping of its fields.

    Raises:
        ValueError: The configuration is invalid.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import LlamaModel
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = LlamaModel({**sizes, "n_kv_heads": 1, "hidden_dim": 16, "head_size": 4})
        >>> model(pa.asarray([[1, 2, 3]])).shape
        (1, 3, 11)

    Source: Touvron et al. 2023, arXiv:2302.13971
    """

    def __init__(self, config: LlamaConfig | Mapping[str, Any]) -> None:
        self.config = config = LlamaConfig.of(config)
        init = normal(0.02)
        self.tok_emb = Embedding(config.vocab_size, config.emb_dim, init=init)
        self.blocks = [LlamaBlock(config, number) for number in range(config.n_layers)]
        self.final_norm = config.norm(config.emb_dim)
        tied, sizes = config.tie_embeddings, (config.emb_dim, config.vocab_size)
        self.out_head = None if tied else Linear(*sizes, bias=False, init=init)

    def features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | Array | None = None,
        padding: Array | None = None,
    ) -> Array:
        """Return the input of the head, (B, T, C), for tokens (B, T) and arguments as in a call."""
        return self._features(tokens, caches, position, padding, None)[0]

    def _features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None,
        position: int | Array | None,
        padding: Array | None,
        load: Array | None,
    ) -> tuple[Array, Array | None]:
        """Return the input of the head, (B, T, C), and `load` (2, experts) with the loads of all routers added."""
        config = self.config
        x = self.tok_emb(tokens)  # (B, T, C)
        if config.embedding_scale != 1:
            x = x * config.embedding_scale
        windows = config.windows or (0,) * config.n_layers
        masks = {w: self._attention_mask(tokens, caches, position, padding, w) for w in set(windows)}
        tables = {w: self._rotary_tables(x, position, padding, w > 0) for w in set(windows)}
        rotary_blocks = config.rotary_blocks or (1,) * config.n_layers
        others = [tables[w] if is_rotary else None for w, is_rotary in zip(windows, rotary_blocks, strict=True)]
        first = x if load is None else Routed(x, load)
        found = self.through_blocks(first, [masks[w] for w in windows], caches, position, others)
        x, load = found if isinstance(found, Routed) else (found, None)
        x = self.final_norm(x)
        # Divided here, the loss needs no logits of its own: the head is linear.
        return (x if config.logit_divisor == 1 else x / config.logit_divisor), load

    def _rotary_tables(
        self, x: Array, position: int | Array | None, padding: Array | None, is_local: bool
    ) -> RotaryTables:
        """Return the rotary tables of the blocks with windows, or of the others, for x (B, T, C)."""
        config, theta, scaling = self.config, self.config.rope_theta, self.config.rope_scaling
        if is_local and config.local_rope_theta is not None:
            theta, scaling = config.local_rope_theta, None
        start = 0 if position is None else position
        size = config.rotary_size or config.head_size
        return turns(x, size, x.shape[1], start, theta, scaling, padding, config.context_length)

    def head(self, x: Array) -> Array:
        """Return the logits (B, T, V) for features x (B, T, C)."""
        logits, cap = super().head(x), self.config.logit_softcap
        return logits if cap is None else cap * ops.tanh(logits / cap)

    def loss(
        self, tokens: Array, targets: Array, reduction: str = "mean", padding: Array | None = None
    ) -> Array:
        """Return the cross-entropy of `targets` (B, T); arguments and errors are those of LanguageModel.loss.

        A model with a limit of the logits stores all of them, unlike others. While a model with experts is trained, its
        mean loss includes router_loss times the load-balancing loss.
        """
        config, load = self.config, None
        self._check(tokens, None)
        if config.router_loss and self.training and reduction == "mean":
            dtype = float64 if self.tok_emb.weight.dtype == float64 else float32
            load = ops.fill(0, self.tok_emb.weight, shape=(2, config.n_experts), dtype=dtype)
        x, load = self._features(tokens, None, None, padding, load)
        if config.logit_softcap is None:
            found = self.loss_of_features(x, targets, reduction)
        else:
            found = ops.cross_entropy(self.head(x), targets, reduction=reduction)
        if load is None:
            return found
        rows = tokens.size * sum(config.has_experts(number) for number in range(config.n_layers))
        return found + config.router_loss * ops.astype(balance_loss(load, rows), dtype=found.dtype)
