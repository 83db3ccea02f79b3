"""GPT: a decoder of pre-norm transformer blocks, and how text is drawn from it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from polyarr import ops, random
from polyarr.capture.compile import compile
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import INTEGERS, NARROW, float32
from polyarr.nn import Dropout, Embedding, KeyValueCache, LayerNorm, Linear, Module, TransformerBlock, normal

GPT_CONFIG_124M = {
    "vocab_size": 50257,
    "context_length": 1024,
    "emb_dim": 768,
    "n_heads": 12,
    "n_layers": 12,
    "drop_rate": 0.1,
    "qkv_bias": False,
}
_HOTTEST = 3e38  # as a temperature: all are equally likely, and float32 still holds it
PRESETS = {"gpt2-124m": GPT_CONFIG_124M}
# What an array can be indexed with, and more layers than any model has: a wrong number must not take for ever.
_LARGEST = {
    "vocab_size": 2**31 - 1,
    "context_length": 2**31 - 1,
    "emb_dim": 2**31 - 1,
    "n_heads": 2**31 - 1,
    "n_layers": 10_000,
}


@dataclass(frozen=True)
class GPTConfig:
    """The size and form of a GPT.

    Errors:  ValueError for a size that is not a positive int or is too large, a rate outside 0 to 1, or if emb_dim does
             not divide by n_heads
    """

    vocab_size: int
    context_length: int
    emb_dim: int
    n_heads: int
    n_layers: int
    drop_rate: float
    qkv_bias: bool
    tie_embeddings: bool = False  # the head shares the token embedding's weight

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"GPTConfig: {name} is {value!r}; it must be a positive int")
            if value > largest:
                raise ValueError(f"GPTConfig: {name} is {value}; it must be at most {largest:,}")
        if type(self.drop_rate) not in (int, float) or not 0 <= self.drop_rate <= 1:
            raise ValueError(f"GPTConfig: drop_rate is {self.drop_rate!r}; it must be from 0 to 1")
        for name in ("qkv_bias", "tie_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"GPTConfig: {name} is {getattr(self, name)!r}; it must be True or False")
        if self.emb_dim % self.n_heads:
            raise ValueError(
                f"GPTConfig: emb_dim is {self.emb_dim}, n_heads is {self.n_heads}; it must divide emb_dim"
            )

    @classmethod
    def of(cls, config: "GPTConfig | Mapping[str, Any]") -> Self:
        """The configuration that a mapping with these keys describes.

        Errors:  ValueError for keys that are missing or unknown, and as GPTConfig
        """
        if isinstance(config, cls):
            return config
        known = {f.name: f.default for f in fields(cls)}
        missing = [name for name, default in known.items() if default is MISSING and name not in config]
        unknown = [str(name) for name in config if name not in known]
        if missing or unknown:
            wrong = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
            raise ValueError(f"GPTConfig: {wrong}; the keys are {', '.join(known)}")
        return cls(**config)


class GPTModel(Module):
    """Token and position embeddings, blocks of masked attention and feed-forward, a norm and a head without bias.

    Weights begin as GPT-2's: normal with standard deviation 0.02, those that end a shortcut's branch divided by
    sqrt(2 * n_layers).

    Errors:  ValueError as GPTConfig.of
    Source:  Radford et al. 2019, "Language models are unsupervised multitask learners"
    """

    def __init__(self, config: GPTConfig | Mapping[str, Any]) -> None:
        self.config = config = GPTConfig.of(config)
        init, out_init = normal(0.02), normal(0.02 / math.sqrt(2 * config.n_layers))
        self.tok_emb = Embedding(config.vocab_size, config.emb_dim, init=init)
        self.pos_emb = Embedding(config.context_length, config.emb_dim, init=init)
        self.drop_emb = Dropout(config.drop_rate)
        self.blocks = [
            TransformerBlock(
                config.emb_dim,
                config.n_heads,
                causal=True,
                drop_rate=config.drop_rate,
                qkv_bias=config.qkv_bias,
                init=init,
                out_init=out_init,
            )
            for _ in range(config.n_layers)
        ]
        self.final_norm = LayerNorm(config.emb_dim)
        tied, sizes = config.tie_embeddings, (config.emb_dim, config.vocab_size)
        self.out_head = None if tied else Linear(*sizes, bias=False, init=init)

    def __call__(
        self, tokens: Array, caches: list[KeyValueCache] | None = None, position: int | None = None
    ) -> Array:
        """(B, T) integers -> logits (B, T, V).

        With caches, one per block, the tokens are from `position` on; None: they are the first ones.

        Errors:  DtypeError unless tokens are integers; ShapeError if they are not [B, T] or do not fit the context
        """
        x = self._features(tokens, caches, position)  # (B, T, C)
        return self.out_head(x) if self.out_head else ops.linear(x, self.tok_emb.weight)  # (B, T, V)

    def loss(self, tokens: Array, targets: Array, reduction: str = "mean") -> Array:
        """The cross-entropy of targets (B, T) under the logits of tokens (B, T), which never exist as a whole.

        Errors:  as for a call; as linear_cross_entropy for targets
        """
        head = self.out_head or self.tok_emb
        return ops.linear_cross_entropy(self._features(tokens), head.weight, targets, reduction=reduction)

    def caches(self, batch: int, size: int) -> list[KeyValueCache]:
        """Room for what the blocks see of so many positions."""
        config, like = self.config, self.pos_emb.weight
        sizes = batch, config.n_heads, size, config.emb_dim // config.n_heads
        return [KeyValueCache(*sizes, like=like) for _ in self.blocks]

    def _features(
        self, tokens: Array, caches: list[KeyValueCache] | None = None, position: int | None = None
    ) -> Array:
        start = 0 if position is None else position
        self._check(tokens, start)
        first, size = (start, 0), (tokens.shape[1], self.config.emb_dim)
        positions = ops.slice(self.pos_emb.weight, first, steps=(1, 1), shape=size)  # (T, C)
        x = self.drop_emb(self.tok_emb(tokens) + positions)  # (B, T, C)
        seen = None if position is None else caches[0].seen(tokens.shape[1], position)  # (T, S)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, seen, cache, position)  # (B, T, C)
        return self.final_norm(x)  # (B, T, C)

    def _check(self, tokens: Array, start: int) -> None:
        if tokens.dtype not in INTEGERS:
            raise DtypeError(f"GPTModel: tokens is {spec_of(tokens)}; its dtype must be integer")
        length = self.config.context_length
        start = start if isinstance(start, int) else 0  # another at each run: then only the positions can tell
        if len(tokens.shape) != 2 or start + tokens.shape[1] > length:
            given = f"{spec_of(tokens)}{f' after {start} cached ones' if start else ''}"
            raise ShapeError(f"GPTModel: tokens is {given}; it must be [batch, at most {length - start}]")


def generate(
    model: GPTModel,
    tokens: Array,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Array:
    """tokens (B, T) followed by max_new_tokens more, each drawn from the model: (B, T + max_new_tokens).

    The model sees at most its context's last tokens. Temperature 0 takes the likeliest token. top_k keeps the k
    likeliest; top_p the fewest that together have at least this probability. The same seed draws the same tokens.

    Errors:  ValueError for a parameter out of range; ShapeError unless tokens is [B, at least 1]
    """
    drawn = stream(model, tokens, max_new_tokens, temperature, top_k, top_p, seed)
    return ops.concat([tokens, *drawn], axis=1)


def stream(
    model: GPTModel,
    tokens: Array,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Iterator[Array]:
    """The new tokens of `generate` one by one, each (B, 1). Nothing is read from the device."""
    _check_sampling(tokens, max_new_tokens, temperature, top_k, top_p)
    return _drawn(model, tokens, max_new_tokens, temperature, top_k, top_p, seed)


def _drawn(
    model: GPTModel,
    tokens: Array,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: Any,
) -> Iterator[Array]:
    model = model.copy().eval()  # the caller's model stays in its mode
    length = model.config.context_length
    state = None if seed is None else (seed, 0)

    @compile
    def following(model: GPTModel, tokens: Array, caches: list[KeyValueCache] | None, position: int | None) -> Array:
        logits = model(tokens, caches, position)[:, -1]  # (B, V)
        return ops.astype(choose(logits, temperature, top_k, top_p)[:, None], dtype=tokens.dtype)  # (B, 1)

    new = tokens[:, -length:]  # (B, T)
    seen, position, end = [new], None, new.shape[1]
    caches = model.caches(tokens.shape[0], min(length, end + count))
    for _ in range(count):
        # Between two tokens the caller may draw: its random numbers are set aside for one draw only.
        with random.restored(state) if state else nullcontext():
            new = following(model, new, caches, position)  # (B, 1)
            state = random.get_state() if state else None
        yield new
        seen, position, end = [*seen, new], end, end + 1
        if end > length:  # every position moves, so what was cached is of no use
            new = ops.concat(seen, axis=1)[:, -length:]
            seen, caches, position, end = [new], None, None, length


def choose(
    logits: Array, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """One token for each row of logits (..., V) -> (...). Of equally likely ones, top_k and top_p keep the first."""
    if temperature == 0:
        return ops.argmax(logits, axis=-1)
    if top_k is None and top_p is None:
        return random.choice_from_logits(_tempered(logits, temperature))
    count = logits.shape[-1]
    ranked, tokens = ops.topk(logits, k=min(top_k or count, count))  # (..., K) the likeliest first
    ranked = _tempered(ranked, temperature)
    drawn = random.choice_from_logits(ranked if top_p is None else _nucleus(ranked, top_p))  # (...)
    return ops.take_along_axis(tokens, drawn[..., None], axis=-1)[..., 0]


def _tempered(logits: Array, temperature: float) -> Array:
    """The logits less their largest, divided by the temperature: the largest is 0, the others may be -inf."""
    behind = logits.astype(float32) if logits.dtype in NARROW else logits
    behind = behind - ops.max(behind, axis=-1, keepdims=True)
    # 0 / temperature is nan where the temperature is too small for the dtype, or for a device without denormals.
    return ops.where(behind == 0, behind, behind / min(temperature, _HOTTEST))


def _nucleus(ranked: Array, top_p: float) -> Array:
    """The logits, which fall, -inf behind the fewest that together have probability top_p; the first always stays."""
    together = ops.cumulative_sum(ops.softmax(ranked, axis=-1), axis=-1)
    before = ops.concat([ops.zeros_like(together[..., :1]), together[..., :-1]], axis=-1)
    kept = (before == 0) | (before < top_p)
    return ops.where(kept, ranked, -math.inf)


def _check_sampling(
    tokens: Array, count: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if len(tokens.shape) != 2 or tokens.shape[1] < 1:
        raise ShapeError(f"generate: tokens is {spec_of(tokens)}; it must be [batch, at least 1]")
    for wrong, text in (
        (count < 0, f"max_new_tokens is {count}; it must not be negative"),
        (not 0 <= temperature < math.inf, f"temperature is {temperature}; it must be 0 or more"),
        (top_k is not None and top_k < 1, f"top_k is {top_k}; it must be at least 1"),
        (top_p is not None and not 0 < top_p <= 1, f"top_p is {top_p}; it must be above 0 and at most 1"),
    ):
        if wrong:
            raise ValueError(f"generate: {text}")
