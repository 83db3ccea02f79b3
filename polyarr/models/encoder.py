"""Encoders, in which every position sees all others: for telling what a sequence is, and what stood in its gaps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyarr import ops, random
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import INTEGERS
from polyarr.core.spec import bool as bool_
from polyarr.models.decoder import Config
from polyarr.nn import (
    Dropout,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Module,
    MultiHeadAttention,
    PositionalEncoding,
    normal,
)
from polyarr.ops.validation import check_array

ACTIVATIONS = ("relu", "gelu", "gelu_tanh")
IGNORED = -100  # a target that counts nothing, as cross_entropy has it


@dataclass(frozen=True)
class EncoderConfig(Config):
    """The size and form of an encoder.

    hidden_dim  the width of the feed-forward layers; None: 4 * emb_dim
    activation  "relu", as the first Transformer has it, or "gelu", as BERT has
    norm_first  whether a norm comes before each half of a block, and one at the end, instead of one after each half

    Errors:  ValueError as Config, for a rate outside 0 to 1 or another activation, or if emb_dim does not divide by
             n_heads
    """

    drop_rate: float = 0.1
    hidden_dim: int | None = None
    activation: str = ACTIVATIONS[0]
    norm_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("drop_rate", self.drop_rate, 0, 1)
        if self.hidden_dim is not None and (type(self.hidden_dim) is not int or self.hidden_dim < 1):
            self._refuse(f"hidden_dim is {self.hidden_dim!r}; it must be a positive int or None")
        if self.activation not in ACTIVATIONS:
            self._refuse(f"activation is {self.activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
        if self.emb_dim % self.n_heads:
            self._refuse(f"emb_dim is {self.emb_dim}, n_heads is {self.n_heads}; it must divide emb_dim")


class EncoderBlock(Module):
    """Attention and feed-forward, each around a shortcut, with a norm after each or before."""

    def __init__(self, config: EncoderConfig) -> None:
        self.norm1, self.norm2 = LayerNorm(config.emb_dim), LayerNorm(config.emb_dim)
        self.att = MultiHeadAttention(config.emb_dim, config.n_heads, drop_rate=config.drop_rate)
        self.ff = FeedForward(config.emb_dim, config.hidden_dim, activation=config.activation)
        self.drop_shortcut, self.norm_first = Dropout(config.drop_rate), config.norm_first

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """(B, T, C) -> the same. mask as ops.attention has it."""
        if self.norm_first:
            x = x + self.drop_shortcut(self.att(self.norm1(x), mask))  # (B, T, C)
            return x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
        x = self.norm1(x + self.drop_shortcut(self.att(x, mask)))  # (B, T, C)
        return self.norm2(x + self.drop_shortcut(self.ff(x)))  # (B, T, C)


class Encoder(Module):
    """Token embeddings with sines and cosines of the position, and blocks in which every position sees all others.

    Errors:  ValueError as EncoderConfig.of
    Source:  Vaswani et al. 2017, arXiv:1706.03762
    """

    def __init__(self, config: EncoderConfig | Mapping[str, Any]) -> None:
        self.config = config = EncoderConfig.of(config)
        self.tok_emb = Embedding(config.vocab_size, config.emb_dim, init=normal(1 / math.sqrt(config.emb_dim)))
        self.positions, self.drop_emb = PositionalEncoding(config.emb_dim), Dropout(config.drop_rate)
        self.blocks = [EncoderBlock(config) for _ in range(config.n_layers)]
        self.final_norm = LayerNorm(config.emb_dim) if config.norm_first else None

    def __call__(self, tokens: Array, keep: Array | None = None) -> Array:
        """(B, T) integers -> (B, T, C). keep (B, T) is False where there is only padding, which nobody then sees.

        Errors:  DtypeError unless tokens are integers and keep bools; ShapeError if they do not fit
        """
        self._check(tokens, keep)
        x = self.tok_emb(tokens) * math.sqrt(self.config.emb_dim)  # (B, T, C)
        x = self.drop_emb(self.positions(x))  # (B, T, C)
        mask = None if keep is None else keep[:, None, None, :]  # (B, 1, 1, T)
        for block in self.blocks:
            x = block(x, mask)  # (B, T, C)
        return self.final_norm(x) if self.final_norm else x

    def _check(self, tokens: Array, keep: Array | None) -> None:
        length = self.config.context_length
        check_array("Encoder", "tokens", tokens)
        if tokens.dtype not in INTEGERS:
            raise DtypeError(f"Encoder: tokens is {spec_of(tokens)}; its dtype must be integer")
        if len(tokens.shape) != 2 or tokens.shape[1] > length:
            raise ShapeError(f"Encoder: tokens is {spec_of(tokens)}; it must be [batch, at most {length}]")
        if keep is not None and keep.dtype != bool_:
            raise DtypeError(f"Encoder: keep is {spec_of(keep)}; its dtype must be bool")
        if keep is not None and keep.shape != tokens.shape:
            raise ShapeError(f"Encoder: keep is {spec_of(keep)}; it must have the shape of tokens, {tokens.shape}")


class EncoderClassifier(Module):
    """What a sequence is: a head on the mean of what an encoder makes of its tokens.

    Errors:  ValueError as EncoderConfig.of
    """

    def __init__(self, config: EncoderConfig | Mapping[str, Any], n_classes: int) -> None:
        self.encoder = Encoder(config)
        self.head = Linear(self.encoder.config.emb_dim, n_classes)

    def __call__(self, tokens: Array, keep: Array | None = None) -> Array:
        """(B, T) integers -> logits (B, classes). keep, and Errors, as Encoder has them."""
        x = self.encoder(tokens, keep)  # (B, T, C)
        if keep is None:
            return self.head(ops.mean(x, axis=1))  # (B, classes)
        weight = ops.astype(keep, dtype=x.dtype)[:, :, None]  # (B, T, 1)
        count = ops.maximum(ops.sum(weight, axis=1), 1.0)  # (B, 1)
        return self.head(ops.sum(x * weight, axis=1) / count)  # (B, classes)

    def loss(self, tokens: Array, targets: Array, keep: Array | None = None) -> Array:
        """The mean cross-entropy of targets (B,)."""
        return ops.cross_entropy(self(tokens, keep), targets)


class MaskedModel(Module):
    """What stood at the positions that mask_tokens changed: BERT's head, with the token embedding's weight.

    Its encoder can go on as that of an EncoderClassifier.

    Errors:  ValueError as EncoderConfig.of
    Source:  Devlin et al. 2018, arXiv:1810.04805
    """

    def __init__(self, config: EncoderConfig | Mapping[str, Any]) -> None:
        self.encoder = Encoder(config)
        config = self.encoder.config
        self.turn = Linear(config.emb_dim, config.emb_dim, activation=config.activation)
        self.norm = LayerNorm(config.emb_dim)

    def __call__(self, tokens: Array, keep: Array | None = None) -> Array:
        """(B, T) integers -> logits (B, T, V). keep, and Errors, as Encoder has them."""
        return ops.linear(self._features(tokens, keep), self.encoder.tok_emb.weight)  # (B, T, V)

    def loss(self, tokens: Array, targets: Array, keep: Array | None = None) -> Array:
        """The mean cross-entropy of targets (B, T), of which those that are IGNORED count nothing."""
        features = self._features(tokens, keep)  # (B, T, C)
        return ops.linear_cross_entropy(features, self.encoder.tok_emb.weight, targets, ignore_index=IGNORED)

    def _features(self, tokens: Array, keep: Array | None) -> Array:
        return self.norm(self.turn(self.encoder(tokens, keep)))  # (B, T, C)


def mask_tokens(
    tokens: Array, mask_token: int, vocab_size: int, keep: Array | None = None, rate: float = 0.15
) -> tuple[Array, Array]:
    """Tokens with gaps, and targets that are IGNORED elsewhere, as a MaskedModel learns from them.

    Of the tokens that are kept a share, `rate`, has a target; of those 8 in 10 become mask_token, 1 another token.

    Errors:  ValueError unless 0 < rate <= 1
    """
    if not 0 < rate <= 1:
        raise ValueError(f"mask_tokens: rate is {rate}; it must be above 0 and at most 1")
    is_target = random.uniform(tokens.shape) < rate  # (B, T)
    if keep is not None:
        is_target = ops.logical_and(is_target, keep)
    fate, other = random.uniform(tokens.shape), random.randint(0, vocab_size, tokens.shape, dtype=tokens.dtype)
    changed = ops.where(fate < 0.8, ops.full(mask_token, tokens, shape=(), dtype=tokens.dtype), other)  # (B, T)
    changed = ops.where(ops.logical_and(is_target, fate < 0.9), changed, tokens)
    return changed, ops.where(is_target, tokens, ops.full(IGNORED, tokens, shape=(), dtype=tokens.dtype))
