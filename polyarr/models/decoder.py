"""Base classes of decoder-only language models: configuration, logits, loss and key-value caches."""

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self

from polyarr import ops
from polyarr.autograd import checkpoint
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import INTEGERS, described, shown
from polyarr.nn import Embedding, KeyValueCache, Linear, Module, QuantizedLinear, quantized
from polyarr.nn.attention import unpadded, windowed
from polyarr.ops.validation import check_array, whole

MAX_SIZE = 2**31 - 1  # largest int32: backends index arrays with it


@dataclass(frozen=True)
class Config:
    """Base class of language models' configurations; a family adds its fields, and lists its sizes in `_max_sizes`.

    Args:
        vocab_size: Number of tokens.
        context_length: Largest number of positions.
        emb_dim: Width of the embeddings.
        n_heads: Number of attention heads (of queries).
        n_layers: Number of transformer blocks.

    Raises:
        ValueError: A size is not a positive int or is too large, or a flag is not a bool.
    """

    vocab_size: int
    context_length: int
    emb_dim: int
    n_heads: int
    n_layers: int

    # n_layers has a limit far above any real model, so that a wrong number does not build blocks for ever.
    _max_sizes: ClassVar[dict[str, int]] = {
        "vocab_size": MAX_SIZE,
        "context_length": MAX_SIZE,
        "emb_dim": MAX_SIZE,
        "n_heads": MAX_SIZE,
        "n_layers": 10_000,
    }

    def __post_init__(self) -> None:
        for name, largest in self._max_sizes.items():
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                self._refuse(f"{name} is {shown(value)}; it must be a positive int")
            if value > largest:
                self._refuse(f"{name} is {value}; it must be at most {largest:,}")
        for f in fields(self):
            if f.type is bool and not isinstance(getattr(self, f.name), bool):
                self._refuse(f"{f.name} is {shown(getattr(self, f.name))}; it must be True or False")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"{type(self).__name__}: {reason}")

    def _check_heads(self) -> None:
        if self.emb_dim % self.n_heads:
            self._refuse(f"emb_dim is {self.emb_dim}, n_heads is {self.n_heads}; it must divide emb_dim")

    def _check_number(self, name: str, value: Any, least: float, most: float) -> None:
        if type(value) not in (int, float) or not least <= value <= most:
            self._refuse(f"{name} is {value!r}; it must be a number from {least:g} to {most:g}")

    @classmethod
    def of(cls, config: "Self | Mapping[str, Any]") -> Self:
        """Return the configuration that a mapping of its fields describes; a configuration is returned unchanged.

        Raises:
            TypeError: `config` is neither a configuration nor a mapping.
            ValueError: Keys are missing or unknown, or a value is out of range.
        """
        if isinstance(config, cls):
            return config
        if not isinstance(config, Mapping):
            raise TypeError(f"{cls.__name__}: config is {described(config)}; it must be a mapping of its fields")
        known = {f.name: f.default for f in fields(cls)}
        missing = [name for name, default in known.items() if default is MISSING and name not in config]
        unknown = [str(name) for name in config if name not in known]
        if missing or unknown:
            wrong = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
            raise ValueError(f"{cls.__name__}: {wrong}; the keys are {', '.join(known)}")
        return cls(**config)


def check_tokens(name: str, tokens: Array, length: int, start: int = 0) -> None:
    """Raise DtypeError or ShapeError unless tokens are integers (B, T) that fit into a context after `start` others."""
    check_array(name, "tokens", tokens)
    if tokens.dtype not in INTEGERS:
        raise DtypeError(f"{name}: tokens is {spec_of(tokens)}; its dtype must be integer")
    if len(tokens.shape) != 2 or start + tokens.shape[1] > length:
        given = f"{spec_of(tokens)}{f' after {start} cached ones' if start else ''}"
        raise ShapeError(f"{name}: tokens is {given}; it must be [batch, at most {length - start}]")


class LanguageModel(Module):
    """Base class of decoder-only language models, which map tokens to the logits of the token after each of them.

    A family defines `features` and has the attributes config, tok_emb, blocks and out_head. out_head is None if the
    head shares the weight of the token embedding.
    """

    config: Any
    tok_emb: Embedding
    blocks: list[Any]
    out_head: Linear | QuantizedLinear | None
    recompute = False  # True: gradient checkpointing; activations inside a block are recomputed in the backward pass

    def __call__(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | Array | None = None,
        padding: Array | None = None,
    ) -> Array:
        """Return the logits of the token after each position.

        Args:
            tokens: Integers of shape (B, T).
            caches: One key-value cache per block, which the call extends; None: no cache.
            position: Position of the first of `tokens` in the caches, or those of each row, int32 (B,), for T = 1;
                None: they are the first tokens.
            padding: Integers of shape (B,): how many tokens at the start of each row are padding. They are masked, and
                positions count from the first token that is not. Integers of shape (B, T) are those of each token: in
                a row of several texts, how many tokens are before its own.

        Returns:
            Logits of shape (B, T, V).

        Raises:
            DtypeError: `tokens` are not integers.
            ShapeError: `tokens` is not of shape (B, T) or does not fit into the context.
        """
        self._check(tokens, position)
        return self.head(self.features(tokens, caches, position, padding))  # (B, T, V)

    def next_token_logits(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | Array | None = None,
        padding: Array | None = None,
    ) -> Array:
        """Return the logits (B, V) of the token after `tokens` (B, T); arguments and errors are those of a call."""
        self._check(tokens, position)
        return self.head(self.features(tokens, caches, position, padding)[:, -1:])[:, 0]  # (B, V)

    def loss(
        self, tokens: Array, targets: Array, reduction: str = "mean", padding: Array | None = None
    ) -> Array:
        """Return the cross-entropy of `targets` (B, T) given `tokens` (B, T), without storing all logits at once.

        Args:
            tokens: Integers of shape (B, T).
            targets: Integers of shape (B, T), usually the tokens shifted by one position.
            reduction: "mean" or "sum" for a scalar, "none" for an array of shape (B, T).
            padding: As in a call.

        Raises:
            DtypeError: `tokens` or `targets` are not integers.
            ShapeError: `tokens` is not of shape (B, T) or does not fit into the context, or `targets` has another
                shape.
        """
        self._check(tokens, None)
        return self.loss_of_features(self.features(tokens, padding=padding), targets, reduction)

    def loss_of_features(self, x: Array, targets: Array, reduction: str = "mean") -> Array:
        """Return the cross-entropy of `targets` (B, T) given the input of the head, (B, T, C)."""
        head = self.out_head or self.tok_emb
        return ops.linear_cross_entropy(x, head.weight, targets, reduction=reduction)

    def features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | Array | None = None,
        padding: Array | None = None,
    ) -> Array:
        """Return the input of the head, (B, T, C), for tokens (B, T) and arguments as in a call."""
        raise TypeError(f"{type(self).__name__}: it defines no features, so it has no logits")

    def through_blocks(
        self, x: Any, masks: list[Array | None], caches: list[Any] | None, position: int | Array | None,
        *others: list[Any],
    ) -> Any:  # fmt: skip
        """Return x (B, T, C), or what blocks take in its place, after all blocks.

        masks, caches and others have an element for each block.
        """
        for block, mask, cache, *own in zip(
            self.blocks, masks, caches or [None] * len(self.blocks), *others, strict=True
        ):
            x = (checkpoint(block.__call__) if self.recompute else block)(x, mask, cache, position, *own)  # (B, T, C)
        return x

    def with_context(self, length: int) -> Self:
        """Return the model with a shorter context.

        Args:
            length: The new context_length.

        Raises:
            ValueError: `length` is not from 1 to the model's own context_length.
        """
        if not 1 <= whole("with_context", "length", length) <= self.config.context_length:
            own = self.config.context_length
            raise ValueError(f"with_context: length is {length}; it must be from 1 to {own}, the model's own")
        model = self.copy()
        model.config = replace(self.config, context_length=length)
        return model

    def caches(self, batch: int, size: int) -> list[KeyValueCache]:
        """Return empty key-value caches, one for each block, with a capacity of `size` positions of `batch` rows."""
        return [block.att.cache(batch, size, self.tok_emb.weight) for block in self.blocks]

    def quantized(self, kind: str = "int8") -> Self:
        """Return the model with quantized weights in its linear layers (weight-only quantization).

        Generation is bound by the bandwidth of reading the weights. A head that shares the weight of the token
        embedding gets a quantized weight of its own; embeddings and the routers of experts stay as they are.

        Args:
            kind: "int8", "q8_0" or "q4_0", as in nn.QuantizedLinear.of.

        Raises:
            ValueError: There is no such kind.
            ShapeError: The rows of a weight do not consist of whole blocks.

        Source: Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339
        """
        model = quantized(self, kind)
        if self.out_head is None:
            model.out_head = QuantizedLinear.of(self.tok_emb.weight, kind)
        return model

    def quantised(self, kind: str = "int8") -> Self:
        """Return `quantized(kind)`, of which this is the name before 0.1; it goes with version 1.0."""
        warnings.warn("quantised is called quantized now; the old name goes with version 1.0", DeprecationWarning, 2)
        return self.quantized(kind)

    def head(self, x: Array) -> Array:
        """Return the logits (B, T, V) for features (B, T, C)."""
        return self.out_head(x) if self.out_head else ops.linear(x, self.tok_emb.weight)  # (B, T, V)

    def _attention_mask(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None,
        position: int | Array | None,
        padding: Array | None,
        window: int = 0,
    ) -> Array | None:
        """Return the mask of attention: of cached, padded and far positions, or None if the causal mask is enough."""
        count = tokens.shape[1]
        if position is not None and caches is not None:
            return caches[0].seen(count, position, padding, window)  # (T, S) or (B, 1, T, S)
        near = windowed(tokens, count, window) if 0 < window < count else None  # (T, T)
        if padding is None:
            return near
        mask = unpadded(padding, count)  # (B, 1, 1, T)
        return mask if near is None else mask & near

    def _check(self, tokens: Array, position: int | Array | None) -> None:
        # Within a compiled function the position is a scalar input; its value is unknown, so only T is checked.
        start = position if isinstance(position, int) else 0
        check_tokens(type(self).__name__, tokens, self.config.context_length, start)
