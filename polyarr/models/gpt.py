"""GPT: a decoder of pre-norm transformer blocks with learned position embeddings."""

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
    """Configuration of a GPT.

    Args:
        vocab_size: Number of tokens.
        context_length: Largest number of positions.
        emb_dim: Width of the embeddings, a multiple of n_heads.
        n_heads: Number of attention heads.
        n_layers: Number of transformer blocks.
        drop_rate: Rate of dropout, from 0 to 1.
        qkv_bias: Whether the projections to queries, keys and values have a bias.
        tie_embeddings: Whether the head shares the weight of the token embedding.

    Raises:
        ValueError: A field is of another type or out of range, or n_heads does not divide emb_dim.

    Examples:
        >>> from polyarr.models import GPTConfig
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> GPTConfig(**sizes, drop_rate=0.0, qkv_bias=False).tie_embeddings
        False
    """

    drop_rate: float
    qkv_bias: bool
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("drop_rate", self.drop_rate, 0, 1)
        self._check_heads()


class GPTModel(LanguageModel):
    """GPT language model: token and position embeddings, causal transformer blocks, a norm and a head.

    Weights are initialized as in GPT-2: normal with standard deviation 0.02, divided by sqrt(2 * n_layers) for the last
    layer of each residual branch. The head has no bias.

    Args:
        config: A GPTConfig, or a mapping of its fields.

    Raises:
        ValueError: The configuration is invalid.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.models import GPTModel
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
        >>> model(pa.asarray([[1, 2, 3]])).shape
        (1, 3, 11)

    Source: Radford et al. 2019, "Language models are unsupervised multitask learners"
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
        """Return the model with a shorter context; the embeddings of later positions are dropped.

        Args:
            length: The new context_length.

        Raises:
            ValueError: `length` is not from 1 to the model's own context_length.
        """
        model = super().with_context(length)
        model.pos_emb.weight = model.pos_emb.weight[:length]
        return model

    def features(
        self,
        tokens: Array,
        caches: list[KeyValueCache] | None = None,
        position: int | Array | None = None,
        padding: Array | None = None,
    ) -> Array:
        """Return the input of the head, (B, T, C), for tokens (B, T) and arguments as in a call."""
        count, start = tokens.shape[1], 0 if position is None else position
        if padding is None and not isinstance(start, Array):
            positions = ops.slice(self.pos_emb.weight, (start, 0), steps=(1, 1), shape=(count, self.config.emb_dim))
        else:
            positions = self.pos_emb(positions_of(tokens, count, start, padding)[..., 0])  # (B, T, C)
        x = self.drop_emb(self.tok_emb(tokens) + positions)  # (B, T, C)
        masks = [self._attention_mask(tokens, caches, position, padding)] * len(self.blocks)
        return self.final_norm(self.through_blocks(x, masks, caches, position))  # (B, T, C)
