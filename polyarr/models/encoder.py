"""Encoders, in which every position attends to all others: classification and masked language modeling."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyarr import ops, random
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import bool as bool_
from polyarr.models.decoder import Config, check_tokens
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

ACTIVATIONS = ("relu", "gelu", "gelu_tanh")
IGNORED = -100  # a target without a loss: the default ignore_index of cross_entropy


@dataclass(frozen=True)
class EncoderConfig(Config):
    """Configuration of an encoder.

    Args:
        vocab_size: Number of tokens.
        context_length: Largest number of positions.
        emb_dim: Width of the embeddings, a multiple of n_heads.
        n_heads: Number of attention heads.
        n_layers: Number of blocks.
        drop_rate: Rate of dropout, from 0 to 1.
        hidden_dim: Width of the feed-forward layers; None: 4 * emb_dim.
        activation: "relu" as in the first Transformer, "gelu" as in BERT, or "gelu_tanh".
        norm_first: True for pre-norm blocks and a norm at the end, False for post-norm blocks.

    Raises:
        ValueError: A field is of another type or out of range, or n_heads does not divide emb_dim.

    Examples:
        >>> from polyarr.models import EncoderConfig
        >>> EncoderConfig(vocab_size=10, context_length=8, emb_dim=8, n_heads=2, n_layers=1).activation
        'relu'
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
        self._check_heads()


class EncoderBlock(Module):
    """Attention and a feed-forward layer, each with a residual connection and a norm before or after it."""

    def __init__(self, config: EncoderConfig) -> None:
        self.norm1, self.norm2 = LayerNorm(config.emb_dim), LayerNorm(config.emb_dim)
        self.att = MultiHeadAttention(config.emb_dim, config.n_heads, drop_rate=config.drop_rate)
        self.ff = FeedForward(config.emb_dim, config.hidden_dim, activation=config.activation)
        self.drop_shortcut, self.norm_first = Dropout(config.drop_rate), config.norm_first

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Return the output (B, T, C) of the block for x (B, T, C) and a mask as in ops.attention."""
        if self.norm_first:
            x = x + self.drop_shortcut(self.att(self.norm1(x), mask))  # (B, T, C)
            return x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
        x = self.norm1(x + self.drop_shortcut(self.att(x, mask)))  # (B, T, C)
        return self.norm2(x + self.drop_shortcut(self.ff(x)))  # (B, T, C)


class Encoder(Module):
    """Transformer encoder: token embeddings, sinusoidal position encodings and blocks of unmasked attention.

    Args:
        config: An EncoderConfig, or a mapping of its fields.

    Raises:
        ValueError: The configuration is invalid.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import Encoder
        >>> sizes = {"vocab_size": 10, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> Encoder(sizes)(pa.asarray([[1, 2, 3]])).shape
        (1, 3, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762
    """

    def __init__(self, config: EncoderConfig | Mapping[str, Any]) -> None:
        self.config = config = EncoderConfig.of(config)
        self.tok_emb = Embedding(config.vocab_size, config.emb_dim, init=normal(1 / math.sqrt(config.emb_dim)))
        self.positions, self.drop_emb = PositionalEncoding(config.emb_dim), Dropout(config.drop_rate)
        self.blocks = [EncoderBlock(config) for _ in range(config.n_layers)]
        self.final_norm = LayerNorm(config.emb_dim) if config.norm_first else None

    def __call__(self, tokens: Array, keep: Array | None = None) -> Array:
        """Return the features of each position.

        Args:
            tokens: Integers of shape (B, T).
            keep: Bools of shape (B, T), False at padding, which no position attends to; None: no padding.

        Returns:
            Floating-point array of shape (B, T, C).

        Raises:
            DtypeError: `tokens` are not integers, or `keep` are not bools.
            ShapeError: `tokens` is not of shape (B, T) or does not fit into the context, or `keep` has another shape.
        """
        self._check(tokens, keep)
        x = self.tok_emb(tokens) * math.sqrt(self.config.emb_dim)  # (B, T, C)
        x = self.drop_emb(self.positions(x))  # (B, T, C)
        mask = None if keep is None else keep[:, None, None, :]  # (B, 1, 1, T)
        for block in self.blocks:
            x = block(x, mask)  # (B, T, C)
        return self.final_norm(x) if self.final_norm else x

    def _check(self, tokens: Array, keep: Array | None) -> None:
        check_tokens("Encoder", tokens, self.config.context_length)
        if keep is not None and keep.dtype != bool_:
            raise DtypeError(f"Encoder: keep is {spec_of(keep)}; its dtype must be bool")
        if keep is not None and keep.shape != tokens.shape:
            raise ShapeError(f"Encoder: keep is {spec_of(keep)}; it must have the shape of tokens, {tokens.shape}")


class EncoderClassifier(Module):
    """Classifier of sequences: an encoder, the mean of its features over positions, and a linear head.

    Args:
        config: An EncoderConfig, or a mapping of its fields.
        n_classes: Number of classes.

    Raises:
        ValueError: The configuration is invalid.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import EncoderClassifier
        >>> sizes = {"vocab_size": 10, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> EncoderClassifier(sizes, n_classes=3)(pa.asarray([[1, 2, 3]])).shape
        (1, 3)
    """

    def __init__(self, config: EncoderConfig | Mapping[str, Any], n_classes: int) -> None:
        self.encoder = Encoder(config)
        self.head = Linear(self.encoder.config.emb_dim, n_classes)

    def __call__(self, tokens: Array, keep: Array | None = None) -> Array:
        """Return logits (B, classes) for tokens (B, T); arguments and errors are those of Encoder."""
        x = self.encoder(tokens, keep)  # (B, T, C)
        if keep is None:
            return self.head(ops.mean(x, axis=1))  # (B, classes)
        weight = ops.astype(keep, dtype=x.dtype)[:, :, None]  # (B, T, 1)
        count = ops.maximum(ops.sum(weight, axis=1), 1.0)  # (B, 1)
        return self.head(ops.sum(x * weight, axis=1) / count)  # (B, classes)

    def loss(self, tokens: Array, targets: Array, keep: Array | None = None) -> Array:
        """Return the mean cross-entropy of targets (B,), for tokens (B, T) and `keep` as in Encoder."""
        return ops.cross_entropy(self(tokens, keep), targets)


class MaskedModel(Module):
    """Masked language model: an encoder with BERT's head, which shares the weight of the token embedding.

    It learns to predict the tokens that `mask_tokens` replaced. Its `encoder` can become that of an EncoderClassifier.

    Args:
        config: An EncoderConfig, or a mapping of its fields.

    Raises:
        ValueError: The configuration is invalid.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import MaskedModel
        >>> model = MaskedModel({"vocab_size": 10, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1})
        >>> model(pa.asarray([[1, 2, 3]])).shape
        (1, 3, 10)

    Source: Devlin et al. 2018, arXiv:1810.04805
    """

    def __init__(self, config: EncoderConfig | Mapping[str, Any]) -> None:
        self.encoder = Encoder(config)
        config = self.encoder.config
        self.turn = Linear(config.emb_dim, config.emb_dim, activation=config.activation)
        self.norm = LayerNorm(config.emb_dim)

    def __call__(self, tokens: Array, keep: Array | None = None) -> Array:
        """Return logits (B, T, V) for tokens (B, T); arguments and errors are those of Encoder."""
        return ops.linear(self._features(tokens, keep), self.encoder.tok_emb.weight)  # (B, T, V)

    def loss(self, tokens: Array, targets: Array, keep: Array | None = None) -> Array:
        """Return the mean cross-entropy of targets (B, T); targets of -100 (IGNORED) have no loss."""
        features = self._features(tokens, keep)  # (B, T, C)
        return ops.linear_cross_entropy(features, self.encoder.tok_emb.weight, targets, ignore_index=IGNORED)

    def _features(self, tokens: Array, keep: Array | None) -> Array:
        return self.norm(self.turn(self.encoder(tokens, keep)))  # (B, T, C)


def mask_tokens(
    tokens: Array, mask_token: int, vocab_size: int, keep: Array | None = None, rate: float = 0.15
) -> tuple[Array, Array]:
    """Return tokens in which some are replaced, and the targets from which a MaskedModel learns to restore them.

    A share `rate` of the tokens gets a target. Of these, 80% become `mask_token`, 10% a random token, and 10% stay.

    Args:
        tokens: Integers of shape (B, T).
        mask_token: The token that stands for a masked one.
        vocab_size: Random tokens are drawn from 0 to vocab_size - 1.
        keep: Bools of shape (B, T), False at padding, which is never replaced; None: no padding.
        rate: Share of tokens that get a target, above 0 and at most 1.

    Returns:
        The changed tokens (B, T), and targets (B, T), which are -100 where there is none.

    Raises:
        ValueError: `rate` is out of range.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import mask_tokens
        >>> tokens, targets = mask_tokens(pa.asarray([[5, 6, 7]]), mask_token=0, vocab_size=10, rate=1.0)
        >>> targets.tolist()
        [[5, 6, 7]]
    """
    if not 0 < rate <= 1:
        raise ValueError(f"mask_tokens: rate is {rate}; it must be above 0 and at most 1")
    is_target = random.uniform(tokens.shape) < rate  # (B, T)
    if keep is not None:
        is_target = ops.logical_and(is_target, keep)
    fate, other = random.uniform(tokens.shape), random.randint(0, vocab_size, tokens.shape, dtype=tokens.dtype)
    changed = ops.where(fate < 0.8, ops.fill(mask_token, tokens, shape=(), dtype=tokens.dtype), other)  # (B, T)
    changed = ops.where(ops.logical_and(is_target, fate < 0.9), changed, tokens)
    return changed, ops.where(is_target, tokens, ops.fill(IGNORED, tokens, shape=(), dtype=tokens.dtype))
