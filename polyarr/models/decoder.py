"""What the families of language models have in common: how they are configured, called, trained and given caches."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self

from polyarr import ops
from polyarr.autograd import checkpoint
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import INTEGERS, described, told
from polyarr.nn import Embedding, Int8Linear, KeyValueCache, Linear, Module, quantised
from polyarr.nn.attention import unpadded
from polyarr.ops.validation import check_array, whole

LONGEST = 2**31 - 1  # what an array can be indexed with


@dataclass(frozen=True)
class Config:
    """The size and form of a language model; each family adds its fields, and says which of them are sizes.

    Errors:  ValueError for a size that is not a positive int or is too large, or a flag that is no bool
    """

    vocab_size: int
    context_length: int
    emb_dim: int
    n_heads: int
    n_layers: int

    # More layers than any model has: a wrong number must not take for ever.
    _largest: ClassVar[dict[str, int]] = {
        "vocab_size": LONGEST,
        "context_length": LONGEST,
        "emb_dim": LONGEST,
        "n_heads": LONGEST,
        "n_layers": 10_000,
    }

    def __post_init__(self) -> None:
        for name, largest in self._largest.items():
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                self._refuse(f"{name} is {told(value)}; it must be a positive int")
            if value > largest:
                self._refuse(f"{name} is {value}; it must be at most {largest:,}")
        for f in fields(self):
            if f.type is bool and not isinstance(getattr(self, f.name), bool):
                self._refuse(f"{f.name} is {told(getattr(self, f.name))}; it must be True or False")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"{type(self).__name__}: {reason}")

    def _check_number(self, name: str, value: Any, least: float, most: float) -> None:
        if type(value) not in (int, float) or not least <= value <= most:
            self._refuse(f"{name} is {value!r}; it must be a number from {least:g} to {most:g}")

    @classmethod
    def of(cls, config: "Self | Mapping[str, Any]") -> Self:
        """The configuration that a mapping with these keys describes.

        Errors:  ValueError for keys that are missing or unknown, and as the class; TypeError for what is no mapping
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


class LanguageModel(Module):
    """Tokens to the logits of what follows each of them.

    A family defines `features`, and has a config, tok_emb, blocks, and an out_head or, where it shares the embedding's
    weight, None.
    """

    config: Any
    tok_emb: Embedding
    blocks: list[Any]
    out_head: Linear | Int8Linear | None
    recompute = False  # True: what is inside of a block is not kept for the gradient but computed again

    def __call__(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | None = None,
        padding: Array | None = None,
    ) -> Array:
        """(B, T) integers -> logits (B, T, V).

        With caches, one per block, the tokens are from `position` on; None: they are the first ones. padding, (B,)
        integers, is how many of each row's first tokens are none: nothing sees them, and positions count from there.

        Errors:  DtypeError unless tokens are integers; ShapeError if they are not [B, T] or do not fit the context
        """
        self._check(tokens, position)
        return self._head(self.features(tokens, caches, position, padding))  # (B, T, V)

    def following(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | None = None,
        padding: Array | None = None,
    ) -> Array:
        """The logits (B, V) of what follows the last of tokens (B, T), as a call gives them; of no other.

        Errors:  as for a call
        """
        self._check(tokens, position)
        return self._head(self.features(tokens, caches, position, padding)[:, -1:])[:, 0]  # (B, V)

    def loss(self, tokens: Array, targets: Array, reduction: str = "mean") -> Array:
        """The cross-entropy of targets (B, T) under the logits of tokens (B, T), which never exist as a whole.

        Errors:  as for a call; as linear_cross_entropy for targets
        """
        self._check(tokens, None)
        head = self.out_head or self.tok_emb
        return ops.linear_cross_entropy(self.features(tokens), head.weight, targets, reduction=reduction)

    def features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | None = None,
        padding: Array | None = None,
    ) -> Array:
        """(B, T) integers -> (B, T, C), what the head sees."""
        raise TypeError(f"{type(self).__name__}: it defines no features, so it has no logits")

    def through_blocks(self, x: Array, seen: Array | None, caches: list | None, *args: Any) -> Array:
        """(B, T, C) -> the same, after all blocks, which are called with (x, seen, their own cache, *args)."""
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = (checkpoint(block.__call__) if self.recompute else block)(x, seen, cache, *args)  # (B, T, C)
        return x

    def with_context(self, length: int) -> Self:
        """The same model for texts of at most so many tokens.

        Errors:  ValueError unless length is from 1 to the model's own
        """
        if not 1 <= whole("with_context", "length", length) <= self.config.context_length:
            own = self.config.context_length
            raise ValueError(f"with_context: length is {length}; it must be from 1 to {own}, the model's own")
        model = self.copy()
        model.config = replace(self.config, context_length=length)
        return model

    def caches(self, batch: int, size: int) -> list[KeyValueCache]:
        """Room for what the blocks see of so many positions."""
        return [block.att.cache(batch, size, self.tok_emb.weight) for block in self.blocks]

    def quantised(self) -> Self:
        """The same model with weights of a byte each in its linear layers: for writing, which waits for reading them.

        A head that shares the embedding's weight gets its own; the embeddings stay as they are.

        Source:  Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339
        """
        model = quantised(self)
        if self.out_head is None:
            model.out_head = Int8Linear(self.tok_emb.weight)
        return model

    def _head(self, x: Array) -> Array:
        return self.out_head(x) if self.out_head else ops.linear(x, self.tok_emb.weight)  # (B, T, V)

    def _seen(
        self, tokens: Array, caches: list[KeyValueCache] | None, position: int | None, padding: Array | None
    ) -> Array | None:
        """What attention gets as its mask, besides being causal where there is no position."""
        if position is not None and caches is not None:
            return caches[0].seen(tokens.shape[1], position, padding)  # (T, S) or (B, 1, T, S)
        return None if padding is None else unpadded(padding, tokens.shape[1])  # (B, 1, 1, T)

    def _check(self, tokens: Array, position: int | None) -> None:
        name, length = type(self).__name__, self.config.context_length
        check_array(name, "tokens", tokens)
        if tokens.dtype not in INTEGERS:
            raise DtypeError(f"{name}: tokens is {spec_of(tokens)}; its dtype must be integer")
        start = position if isinstance(position, int) else 0  # another at each run: then only the positions can tell
        if len(tokens.shape) != 2 or start + tokens.shape[1] > length:
            given = f"{spec_of(tokens)}{f' after {start} cached ones' if start else ''}"
            raise ShapeError(f"{name}: tokens is {given}; it must be [batch, at most {length - start}]")
