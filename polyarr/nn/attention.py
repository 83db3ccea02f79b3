"""Multi-head self-attention, and the pre-norm transformer block."""

from polyarr import ops, random
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.nn.init import Initialiser
from polyarr.nn.layers import Dropout, FeedForward, LayerNorm, Linear, checked_rate
from polyarr.nn.module import Module


class KeyValueCache:
    """The keys and values of the positions that one attention layer has seen, while text is generated."""

    def __init__(self) -> None:
        self.k: Array | None = None  # (B, H, S, D)
        self.v: Array | None = None  # (B, H, S, D)

    @property
    def length(self) -> int:
        """How many positions are held."""
        return 0 if self.k is None else self.k.shape[2]

    def extend(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Add further positions; all keys and values so far."""
        self.k = k if self.k is None else ops.concat([self.k, k], axis=2)
        self.v = v if self.v is None else ops.concat([self.v, v], axis=2)
        return self.k, self.v


class MultiHeadAttention(Module):
    """Self-attention in n_heads subspaces. One projection makes queries, keys and values.

    Errors:  ValueError unless emb_dim divides by n_heads
    """

    def __init__(
        self,
        emb_dim: int,
        n_heads: int,
        *,
        causal: bool = False,
        drop_rate: float = 0.0,
        qkv_bias: bool = True,
        init: Initialiser | None = None,
        out_init: Initialiser | None = None,
    ) -> None:
        if n_heads < 1 or emb_dim % n_heads:
            raise ValueError(
                f"MultiHeadAttention: emb_dim is {emb_dim}, n_heads is {n_heads}; it must divide emb_dim"
            )
        self.n_heads, self.causal = n_heads, causal
        self.drop_rate = checked_rate("MultiHeadAttention", drop_rate)
        self.qkv = Linear(emb_dim, 3 * emb_dim, bias=qkv_bias, init=init)
        self.out = Linear(emb_dim, emb_dim, init=out_init)

    def __call__(self, x: Array, mask: Array | None = None, cache: KeyValueCache | None = None) -> Array:
        """(B, T, C) -> the same. mask as ops.attention has it; with a cache, x follows the positions in it."""
        if x.ndim != 3:
            raise ShapeError(f"MultiHeadAttention: x is {x.spec}; it must be [batch, time, channels]")
        b, t, c = x.shape
        qkv = ops.reshape(self.qkv(x), shape=(b, t, 3, self.n_heads, c // self.n_heads))
        q, k, v = (ops.permute_dims(a, axes=(0, 2, 1, 3)) for a in ops.unstack(qkv, axis=2))  # (B, H, T, D)
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, H, S, D)
        rate = self.drop_rate if self.training else 0.0
        key, counter = random.draw() if rate else (0, 0)
        y = ops.attention(q, k, v, mask, key, counter, causal=self.causal, dropout_rate=rate)  # (B, H, T, D)
        return self.out(ops.reshape(ops.permute_dims(y, axes=(0, 2, 1, 3)), shape=(b, t, c)))


class TransformerBlock(Module):
    """Attention and feed-forward, each after a norm and around a shortcut."""

    def __init__(
        self,
        emb_dim: int,
        n_heads: int,
        *,
        causal: bool = False,
        drop_rate: float = 0.0,
        qkv_bias: bool = True,
        activation: str = "gelu_tanh",
        init: Initialiser | None = None,
        out_init: Initialiser | None = None,
    ) -> None:
        self.norm1, self.norm2 = LayerNorm(emb_dim), LayerNorm(emb_dim)
        self.att = MultiHeadAttention(
            emb_dim,
            n_heads,
            causal=causal,
            drop_rate=drop_rate,
            qkv_bias=qkv_bias,
            init=init,
            out_init=out_init,
        )
        self.ff = FeedForward(emb_dim, activation=activation, init=init, out_init=out_init)
        self.drop_shortcut = Dropout(drop_rate)

    def __call__(self, x: Array, mask: Array | None = None, cache: KeyValueCache | None = None) -> Array:
        """(B, T, C) -> the same"""
        x = x + self.drop_shortcut(self.att(self.norm1(x), mask, cache))  # (B, T, C)
        return x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
