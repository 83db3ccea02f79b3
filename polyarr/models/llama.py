"""Llama, Qwen2 and SmolLM2: rotary positions, RMS norms, gated feed-forward, grouped-query attention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from polyarr.core.array import Array
from polyarr.models.decoder import MAX_SIZE, Config, LanguageModel
from polyarr.nn import (
    Embedding,
    GatedFeedForward,
    KeyValueCache,
    Linear,
    Module,
    MultiHeadAttention,
    RMSNorm,
    RotaryScaling,
    RotaryTables,
    normal,
    turns,
)

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
_MAX_NUMBER = 1e12  # largest base or factor: the angles computed from it still fit float32


@dataclass(frozen=True)
class LlamaConfig(Config):
    """Configuration of a model of the Llama family.

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

    Raises:
        ValueError: A field is of another type or out of range, or a size does not divide as it must.

    Examples:
        >>> from polyarr.models import LlamaConfig
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> LlamaConfig(**sizes, n_kv_heads=1, hidden_dim=16, head_size=4).rope_theta
        10000.0
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
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", self._checked_scaling(self.rope_scaling))

    def _checked_scaling(self, given: Any) -> RotaryScaling:
        names, values = RotaryScaling._fields, tuple(given) if isinstance(given, (list, tuple)) else ()
        if len(values) != len(names):
            self._refuse(f"rope_scaling is {given!r}; it must be {', '.join(names)}")
        for name, value in zip(names, values, strict=True):
            self._check_number(f"rope_scaling's {name}", value, 1e-3, _MAX_NUMBER)
        found = RotaryScaling(*values)
        if not found.low_freq_factor < found.high_freq_factor:
            self._refuse("rope_scaling's low_freq_factor is not below its high_freq_factor; it must be")
        return found


class LlamaBlock(Module):
    """Pre-norm block: attention and a gated feed-forward layer, each with a residual connection."""

    def __init__(self, config: LlamaConfig) -> None:
        # GPT-2's initialization: the papers of these models do not state their own.
        init, out_init = normal(0.02), normal(0.02 / math.sqrt(2 * config.n_layers))
        self.norm1, self.norm2 = (RMSNorm(config.emb_dim, config.norm_eps) for _ in range(2))
        self.att = MultiHeadAttention(
            config.emb_dim,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_size=config.head_size,
            causal=True,
            qkv_bias=config.qkv_bias,
            out_bias=config.out_bias,
            init=init,
            out_init=out_init,
        )
        self.ff = GatedFeedForward(
            config.emb_dim, config.hidden_dim, bias=config.ff_bias, init=init, out_init=out_init
        )

    def __call__(
        self, x: Array, mask: Array | None, cache: KeyValueCache | None, position: int | None,
        rotary_tables: RotaryTables,
    ) -> Array:  # fmt: skip
        """Return the output (B, T, C) of the block for x (B, T, C)."""
        x = x + self.att(self.norm1(x), mask, cache, position, rotary_tables)  # (B, T, C)
        return x + self.ff(self.norm2(x))  # (B, T, C)


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
        self.blocks = [LlamaBlock(config) for _ in range(config.n_layers)]
        self.final_norm = RMSNorm(config.emb_dim, config.norm_eps)
        tied, sizes = config.tie_embeddings, (config.emb_dim, config.vocab_size)
        self.out_head = None if tied else Linear(*sizes, bias=False, init=init)

    def features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | None = None,
        padding: Array | None = None,
    ) -> Array:
        """Return the input of the head, (B, T, C), for tokens (B, T) and arguments as in a call."""
        config, count, start = self.config, tokens.shape[1], 0 if position is None else position
        x = self.tok_emb(tokens)  # (B, T, C)
        rotary_tables = turns(x, config.head_size, count, start, config.rope_theta, config.rope_scaling, padding)
        mask = self._attention_mask(tokens, caches, position, padding)
        return self.final_norm(self.through_blocks(x, mask, caches, position, rotary_tables))  # (B, T, C)
