"""Multi-head self-attention, and the pre-norm transformer block."""

from polyarr import ops, random
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.core.spec import float32, int32
from polyarr.nn.init import Initialiser
from polyarr.nn.layers import Dropout, FeedForward, LayerNorm, Linear, checked_rate
from polyarr.nn.module import Module


class KeyValueCache(Module):
    """Room for the keys and values of `size` positions of one attention layer, while text is generated.

    Its arrays keep their length, so that a compiled function that is given the cache serves all positions.
    """

    def __init__(self, batch: int, n_heads: int, size: int, head_size: int, like: Array | None = None) -> None:
        shape, dtype = (batch, n_heads, size, head_size), float32 if like is None else like.dtype
        self.k, self.v = (ops.full(0, like, shape=shape, dtype=dtype) for _ in range(2))  # (B, H, S, D)

    @property
    def size(self) -> int:
        """How many positions there is room for."""
        return self.k.shape[2]

    def put(self, k: Array, v: Array, position: int) -> None:
        """Place keys and values (B, H, T, D) from a position on."""
        for held, new in ((self.k, k), (self.v, v)):
            held.rebind(ops.slice_update(held, new, (0, 0, position, 0), steps=(1, 1, 1, 1)))

    def seen(self, count: int, position: int) -> Array:
        """Which positions each of `count` queries from a position on may see: (T, S)."""
        rows = ops.arange(0, 1, self.k, size=count, dtype=int32)[:, None] + position  # (T, 1)
        return ops.arange(0, 1, self.k, size=self.size, dtype=int32) <= rows


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

    def __call__(
        self,
        x: Array,
        mask: Array | None = None,
        cache: KeyValueCache | None = None,
        position: int | None = None,
    ) -> Array:
        """(B, T, C) -> the same. mask as ops.attention has it.

        With a cache, x is from `position` on, after what the cache has seen; None: there was nothing before.
        """
        if x.ndim != 3:
            raise ShapeError(f"MultiHeadAttention: x is {x.spec}; it must be [batch, time, channels]")
        b, t, c = x.shape
        qkv = ops.reshape(self.qkv(x), shape=(b, t, 3, self.n_heads, c // self.n_heads))
        q, k, v = (ops.permute_dims(a, axes=(0, 2, 1, 3)) for a in ops.unstack(qkv, axis=2))  # (B, H, T, D)
        if cache is not None:
            cache.put(k, v, 0 if position is None else position)
        if cache is not None and position is not None:
            k, v, mask = cache.k, cache.v, cache.seen(t, position) if mask is None else mask  # (B, H, S, D), (T, S)
        causal = self.causal and position is None  # otherwise the mask says so
        rate = self.drop_rate if self.training else 0.0
        key, counter = random.draw() if rate else (0, 0)
        y = ops.attention(q, k, v, mask, key, counter, causal=causal, dropout_rate=rate)  # (B, H, T, D)
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

    def __call__(
        self,
        x: Array,
        mask: Array | None = None,
        cache: KeyValueCache | None = None,
        position: int | None = None,
    ) -> Array:
        """(B, T, C) -> the same"""
        x = x + self.drop_shortcut(self.att(self.norm1(x), mask, cache, position))  # (B, T, C)
        return x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
