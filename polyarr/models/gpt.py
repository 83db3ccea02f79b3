"""GPT: a decoder of pre-norm transformer blocks with learnt positions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from polyarr import ops
from polyarr.core.array import Array
from polyarr.models.decoder import Config, LanguageModel
from polyarr.nn import Dropout, Embedding, KeyValueCache, LayerNorm, Linear, TransformerBlock, normal
from polyarr.nn.rotary import positions_of

GPT_CONFIG_124M = {
    "vocab_size": 50257,
    "context_length": 1024,
    "emb_dim": 768,
    "n_heads": 12,
    "n_layers": 12,
    "drop_rate": 0.1,
    "qkv_bias": False,
}
PRESETS = {"gpt2-124m": GPT_CONFIG_124M}


@dataclass(frozen=True)
class GPTConfig(Config):
    """The size and form of a GPT.

    Errors:  ValueError as Config, for a rate outside 0 to 1, or if emb_dim does not divide by n_heads
    """

    drop_rate: float
    qkv_bias: bool
    tie_embeddings: bool = False  # the head shares the token embedding's weight

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("drop_rate", self.drop_rate, 0, 1)
        if self.emb_dim % self.n_heads:
            self._refuse(f"emb_dim is {self.emb_dim}, n_heads is {self.n_heads}; it must divide emb_dim")


class GPTModel(LanguageModel):
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

    def with_context(self, length: int) -> Self:
        """The same model for texts of at most so many tokens: later positions are forgotten.

        Errors:  ValueError unless length is from 1 to the model's own
        """
        model = super().with_context(length)
        model.pos_emb.weight = model.pos_emb.weight[:length]
        return model

    def features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | None = None,
        padding: Array | None = None,
    ) -> Array:
        """(B, T) integers -> (B, T, C), what the head sees."""
        count, start = tokens.shape[1], 0 if position is None else position
        if padding is None:
            positions = ops.slice(self.pos_emb.weight, (start, 0), steps=(1, 1), shape=(count, self.config.emb_dim))
        else:
            positions = self.pos_emb(positions_of(tokens, count, start, padding)[..., 0])  # (B, T, C)
        x = self.drop_emb(self.tok_emb(tokens) + positions)  # (B, T, C)
        seen = self._seen(tokens, caches, position, padding)
        return self.final_norm(self.through_blocks(x, seen, caches, position))  # (B, T, C)
