"""Llama and its kin (Qwen2, SmolLM2): rotary positions, RMS norms, gated feed-forward layers, grouped heads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from polyarr.core.array import Array
from polyarr.models.decoder import LONGEST, Config, LanguageModel
from polyarr.nn import (
    Embedding,
    GatedFeedForward,
    KeyValueCache,
    Linear,
    Module,
    MultiHeadAttention,
    RMSNorm,
    RotaryScaling,
    Turns,
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
_HIGHEST = 1e12  # of a base or a factor: float32 holds what is computed of it


@dataclass(frozen=True)
class LlamaConfig(Config):
    """The size and form of a model of the Llama family.

    n_kv_heads    how many heads of keys and values there are, each for as many queries
    hidden_dim    the width of the feed-forward layers
    head_size     the length of a head's vectors, emb_dim / n_heads or another
    rope_theta    the base of the rotary embeddings
    rope_scaling  how they are stretched, as RotaryScaling has it; or None

    Errors:  ValueError as Config, and for lengths that do not divide or numbers out of range
    """

    n_kv_heads: int
    hidden_dim: int
    head_size: int
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling | None = None
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    out_bias: bool = False  # of attention
    tie_embeddings: bool = False  # the head shares the token embedding's weight

    _largest: ClassVar[dict[str, int]] = Config._largest | dict.fromkeys(
        ("n_kv_heads", "hidden_dim", "head_size"), LONGEST
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_heads % self.n_kv_heads:
            self._refuse(f"n_heads is {self.n_heads}, n_kv_heads is {self.n_kv_heads}; it must divide n_heads")
        if self.head_size % 2:
            self._refuse(f"head_size is {self.head_size}; it must be even")
        self._check_number("rope_theta", self.rope_theta, 1, _HIGHEST)
        self._check_number("norm_eps", self.norm_eps, 0, 1)
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", self._checked_scaling(self.rope_scaling))

    def _checked_scaling(self, given: Any) -> RotaryScaling:
        names, values = RotaryScaling._fields, tuple(given) if isinstance(given, (list, tuple)) else ()
        if len(values) != len(names):
            self._refuse(f"rope_scaling is {given!r}; it must be {', '.join(names)}")
        for name, value in zip(names, values, strict=True):
            self._check_number(f"rope_scaling's {name}", value, 1e-3, _HIGHEST)
        found = RotaryScaling(*values)
        if not found.low_freq_factor < found.high_freq_factor:
            self._refuse("rope_scaling's low_freq_factor is not below its high_freq_factor; it must be")
        return found


class LlamaBlock(Module):
    """Attention and gated feed-forward, each after a norm and around a shortcut."""

    def __init__(self, config: LlamaConfig) -> None:
        # They begin as GPT-2's; of their own beginning these models' papers say nothing.
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
        self.ff = GatedFeedForward(config.emb_dim, config.hidden_dim, init=init, out_init=out_init)

    def __call__(
        self, x: Array, mask: Array | None, cache: KeyValueCache | None, position: int | None, turned: Turns
    ) -> Array:
        """(B, T, C) -> the same"""
        x = x + self.att(self.norm1(x), mask, cache, position, turned)  # (B, T, C)
        return x + self.ff(self.norm2(x))  # (B, T, C)


class LlamaModel(LanguageModel):
    """Token embeddings, blocks of masked attention with rotary positions and of gated layers, a norm and a head.

    Errors:  ValueError as LlamaConfig.of
    Source:  Touvron et al. 2023, arXiv:2302.13971
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
        """(B, T) integers -> (B, T, C), what the head sees."""
        config, count, start = self.config, tokens.shape[1], 0 if position is None else position
        x = self.tok_emb(tokens)  # (B, T, C)
        turned = turns(x, config.head_size, count, start, config.rope_theta, config.rope_scaling, padding)
        seen = self._seen(tokens, caches, position, padding)
        return self.final_norm(self.through_blocks(x, seen, caches, position, turned))  # (B, T, C)
