"""Multi-head self-attention with its key-value cache, and the pre-norm transformer block."""

import math

from polyarr import ops, random
from polyarr.core.array import Array
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.keywords import explained
from polyarr.core.spec import FLOATS, bfloat16, float16, float32, int32
from polyarr.core.spec import bool as bool_
from polyarr.nn.init import Initializer, constant
from polyarr.nn.layers import Dropout, FeedForward, LayerNorm, Linear, RMSNorm
from polyarr.nn.module import Module
from polyarr.nn.rotary import RotaryTables, by_row, rotary
from polyarr.ops.validation import check_array, whole, within

MASKED = -1e30  # score of a key that a query may not attend to
# Attention with sinks stores the scores if there are at most so many queries; otherwise it copies the keys, with the
# sink as one more key.
MAX_STORED_QUERIES = 8
_SINK_COLUMNS = 8  # added to queries and keys then, of which one is used: tensor cores need rows of multiples of 8


class KeyValueCache(Module):
    """Key-value cache of one attention layer, with a capacity of `size` positions, for generating text.

    Its arrays keep their length, so that a compiled function that takes the cache serves all positions.

    Args:
        batch: Number of rows.
        n_heads: Number of heads of keys and values.
        size: Capacity: number of positions.
        head_size: Length of the vectors of a head.
        like: Array whose dtype and backend the cache has; None for float32 on the current backend.

    Attributes:
        span: Number of positions, from the first on, that queries attend to; None for all. The rest is not read.

    Examples:
        >>> from polyarr import nn
        >>> nn.KeyValueCache(1, 2, 16, 4).k.shape
        (1, 2, 16, 4)
    """

    span: int | None = None

    def __init__(self, batch: int, n_heads: int, size: int, head_size: int, like: Array | None = None) -> None:
        if like is not None:
            check_array("KeyValueCache", "like", like)
        shape, dtype = (2, batch, n_heads, size, head_size), float32 if like is None else like.dtype
        self.both = ops.fill(0, like, shape=shape, dtype=dtype)  # (2, B, H, S, D)

    @property
    def k(self) -> Array:
        """The keys (B, H, S, D)."""
        return self.both[0]

    @property
    def v(self) -> Array:
        """The values (B, H, S, D)."""
        return self.both[1]

    @property
    def size(self) -> int:
        """The capacity: number of positions."""
        return self.both.shape[3]

    @property
    def seen_size(self) -> int:
        """The number of positions that queries attend to."""
        return self.size if self.span is None else self.span

    def read(self, batch: int) -> tuple[Array, Array]:
        """Return the keys and values of the first rows that queries attend to, (batch, H, S, D)."""
        if (batch, self.seen_size) == (self.both.shape[1], self.size):
            return self.k, self.v
        return self.k[:batch, :, : self.seen_size], self.v[:batch, :, : self.seen_size]

    def put(self, k: Array, v: Array, position: int | Array, together: bool = False) -> None:
        """Store keys and values from a position on.

        Args:
            k: Keys (B, H, T, D).
            v: Values (B, H, T, D).
            position: First position; or the position of each row, int32 (B,), for T = 1, of the first B rows.
            together: Whether to copy both at once, which is faster if they are slices of one array.
        """
        if isinstance(position, Array) and position.ndim:
            self.both.rebind(ops.cache_update(self.both, k, v, position))
            return
        for first, new in [(0, ops.stack([k, v]))] if together else [(0, k[None]), (1, v[None])]:
            both = ops.slice_update(self.both, new, (first, 0, 0, position, 0), steps=(1, 1, 1, 1, 1))
            self.both.rebind(both)

    def seen(self, count: int, position: int | Array, padding: Array | None = None, window: int = 0) -> Array:
        """Return the attention mask of queries from a position on: the positions that each query attends to.

        Args:
            count: Number T of queries.
            position: Position of the first query, or those of each row, int32 (B,).
            padding: Integer array (B,): the number of padding positions at the beginning of each row; None for none.
            window: Number of positions, its own and earlier ones, that a query attends to; 0 for all.

        Returns:
            bool array (T, S), or (B, 1, T, S) with padding or positions of each row.
        """
        rows = ops.iota(0, 1, self.both, size=count, dtype=int32)[:, None] + by_row(position, 4)  # (T, 1)
        columns = ops.iota(0, 1, self.both, size=self.seen_size, dtype=int32)  # (S,)
        mask = columns <= rows  # (T, S)
        if 0 < window < self.seen_size:
            mask = mask & (columns > rows - window)
        return mask if padding is None else mask & unpadded(padding, self.seen_size)


def windowed(like: Array, count: int, window: int) -> Array:
    """Return the mask (T, T) of `count` positions that attend to `window` positions, their own and earlier ones."""
    columns = ops.iota(0, 1, like, size=count, dtype=int32)  # (T,)
    rows = columns[:, None]  # (T, 1)
    return (columns <= rows) & (columns > rows - window)


def unpadded(padding: Array, size: int) -> Array:
    """Return which of `size` positions are behind the padding of their row (B,), or of each query (B, T).

    The mask is of shape (B, 1, 1, S) or (B, 1, T, S).
    """
    batch, *queries = padding.shape
    before = ops.reshape(padding, shape=(batch, 1, *(queries or [1]), 1))
    return ops.iota(0, 1, padding, size=size, dtype=padding.dtype) >= before


class MultiHeadAttention(Module):
    """Multi-head self-attention. One projection makes queries, keys and values.

    Args:
        emb_dim: Length of the last axis.
        n_heads: Number of heads of queries.
        n_kv_heads: Number of heads of keys and values, each for as many heads of queries; None for n_heads.
        head_size: Length of the vectors of a head; None for emb_dim / n_heads.
        causal: Whether a position attends only to itself and earlier positions.
        drop_rate: Probability with which an attention weight is dropped while training.
        qkv_bias: Whether the projection of queries, keys and values has a bias.
        out_bias: Whether the output projection has a bias.
        q_norm: Norm of queries before they are rotated: of each head if its weight has the length of a head, otherwise
            of all heads together; None for none.
        k_norm: Norm of keys, likewise.
        scale: Factor of the scores; None for 1 / sqrt(head_size).
        softcap: Limit c of the scores, which become c tanh(score / c); None for no limit.
        sinks: Whether each head has an attention sink: a learned logit, 0 at first, that joins the scores in the
            softmax, and whose probability is then dropped.
        init: Initializer of the first projection, as in Linear.
        out_init: Initializer of the output projection.

    Raises:
        ValueError: n_heads does not divide emb_dim and there is no head_size, or n_kv_heads does not divide n_heads.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.MultiHeadAttention(8, 2, causal=True)(pa.ones((1, 5, 8))).shape
        (1, 5, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762; for n_kv_heads Ainslie et al. 2023, arXiv:2305.13245; for sinks
    OpenAI 2025, arXiv:2508.10925
    """

    def __init__(
        self,
        emb_dim: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_size: int | None = None,
        causal: bool = False,
        drop_rate: float = 0.0,
        qkv_bias: bool = True,
        out_bias: bool = True,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        emb_dim, n_heads = whole(name, "emb_dim", emb_dim), whole(name, "n_heads", n_heads)
        if n_heads < 1 or (head_size is None and emb_dim % n_heads):
            raise ValueError(f"{name}: emb_dim is {emb_dim}, n_heads is {n_heads}; it must divide emb_dim")
        n_kv_heads = n_heads if n_kv_heads is None else whole(name, "n_kv_heads", n_kv_heads)
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise ValueError(f"{name}: n_heads is {n_heads}, n_kv_heads is {n_kv_heads}; it must divide n_heads")
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_size = emb_dim // n_heads if head_size is None else whole(name, "head_size", head_size)
        self.causal, self.drop_rate = causal, within(name, "the dropout rate", drop_rate, 0, 1)
        self.q_norm, self.k_norm, self.scale, self.softcap = q_norm, k_norm, scale, softcap
        self.sinks = constant(0)((n_heads,)) if sinks else None
        rows = (n_heads + 2 * self.n_kv_heads) * self.head_size
        self.qkv = Linear(emb_dim, rows, bias=qkv_bias, init=init)
        self.out = Linear(n_heads * self.head_size, emb_dim, bias=out_bias, init=out_init)

    def parts(self) -> dict[str, tuple[int, int]]:
        """Return the rows (start, stop) of the weight of qkv that make queries "q", keys "k" and values "v"."""
        queries, keys = self.n_heads * self.head_size, self.n_kv_heads * self.head_size
        return {"q": (0, queries), "k": (queries, queries + keys), "v": (queries + keys, queries + 2 * keys)}

    def cache(self, batch: int, size: int, like: Array | None = None) -> KeyValueCache:
        """Return an empty key-value cache for this layer.

        Args:
            batch: Number of rows.
            size: Capacity: number of positions.
            like: Array whose dtype and backend the cache has; None for those of the weights.

        Returns:
            KeyValueCache.
        """
        like = self.qkv.weight if like is None else like
        return KeyValueCache(batch, self.n_kv_heads, size, self.head_size, like)

    @explained
    def __call__(
        self,
        x: Array,
        mask: Array | None = None,
        cache: KeyValueCache | None = None,
        position: int | Array | None = None,
        turned: RotaryTables | None = None,
        *,
        key_mask: Array | None = None,
    ) -> Array:
        """Return the output (B, T, C) for x (B, T, C).

        Args:
            x: Floating-point array (B, T, C).
            mask: Attention mask that broadcasts to (B, heads, T, T), as in polyarr.attention. One of shape (T, T) is
                for all rows of the batch; give a padding mask (B, T) as key_mask.
            cache: Key-value cache, which is updated in place; None for none.
            position: Position of the first x, after what the cache holds, or those of each row, int32 (B,); None if
                nothing was before.
            turned: Rotary tables; None for queries and keys without rotary embeddings.
            key_mask: bool array (B, S), true where the key of a row may be seen, and false for padding; None for all.
                S is T, with a cache the number of its positions.

        Returns:
            Array of the shape of x.

        Raises:
            ShapeError: x does not have three axes, or the mask does not broadcast.
            TypeError: cache is an array, such as the keys that PyTorch's layer takes.
        """
        check_array("MultiHeadAttention", "x", x)
        if x.ndim != 3:
            raise ShapeError(f"MultiHeadAttention: x is {x.spec}; it must be [batch, time, channels]")
        if isinstance(cache, Array):
            required = "it must be a KeyValueCache; queries, keys and values are made of x, so write attention(x, mask)"
            raise TypeError(f"MultiHeadAttention: cache is {cache.spec}; {required}")
        t = x.shape[1]
        q, k, v = self._projected(x, turned)  # (B, H, T, D), twice (B, K, T, D)
        if cache is not None:
            cache.put(k, v, 0 if position is None else position, together=turned is None)
        if cache is not None and position is not None:
            k, v = cache.read(x.shape[0])  # (B, K, S, D)
            mask = cache.seen(t, position) if mask is None else mask  # (T, S)
        if key_mask is not None:
            mask = _of_keys(key_mask, mask)  # (B, 1, 1, S), or broadcast with mask
        causal = self.causal and position is None  # otherwise the mask is causal
        return self.out(self._attended(q, k, v, mask, causal))

    def _projected(self, x: Array, turned: RotaryTables | None) -> tuple[Array, Array, Array]:
        (b, t, _), heads, kv = x.shape, self.n_heads, self.n_kv_heads
        qkv = ops.reshape(self.qkv(x), shape=(b, t, heads + 2 * kv, self.head_size))
        if self.q_norm is not None or self.k_norm is not None:
            found = _normed(self.q_norm, qkv[:, :, :heads]), _normed(self.k_norm, qkv[:, :, heads : heads + kv])
            q, k = found if turned is None else (rotary(part, turned) for part in found)
            parts: tuple[Array, ...] = (q, k, qkv[:, :, heads + kv :])
        elif heads == kv and turned is None:
            parts = ops.unstack(ops.reshape(qkv, shape=(b, t, 3, heads, self.head_size)), axis=2)
        else:
            turning = qkv[:, :, : heads + kv] if turned is None else rotary(qkv[:, :, : heads + kv], turned)
            parts = turning[:, :, :heads], turning[:, :, heads:], qkv[:, :, heads + kv :]
        q, k, v = (ops.permute_dims(a, axes=(0, 2, 1, 3)) for a in parts)
        return q, k, v

    def _attended(self, q: Array, k: Array, v: Array, mask: Array | None, causal: bool) -> Array:
        """Return the attention of queries (B, H, T, D) to keys and values (B, K, S, D) as (B, T, H * D)."""
        b, heads, t, size = q.shape
        rate = self.drop_rate if self.training else 0.0
        if (kv := k.shape[1]) != heads and t == 1 and not causal and not rate:  # a group's queries are rows of a matrix
            if mask is not None and mask.ndim == 4 and mask.shape[1] != 1:  # (B or 1, H, 1, S)
                mask = ops.reshape(mask, shape=(mask.shape[0], kv, heads // kv, mask.shape[3]))
            y = self._weighted(ops.reshape(q, shape=(b, kv, heads // kv, size)), k, v, mask)  # (B, K, H / K, D)
            return ops.reshape(y, shape=(b, 1, heads * size))
        if kv != heads:  # they share its keys and values
            q = ops.reshape(q, shape=(b, kv, heads // kv, t, size))  # (B, K, H / K, T, D)
            k, v = (ops.expand_dims(a, axis=2) for a in (k, v))  # (B, K, 1, S, D)
            if mask is not None and mask.ndim == 4:  # (B or 1, H or 1, T, S)
                grouped = (1, 1) if mask.shape[1] == 1 else (kv, heads // kv)
                mask = ops.reshape(mask, shape=(mask.shape[0], *grouped, *mask.shape[2:]))
        y = self._weighted(q, k, v, mask, causal, rate)  # (as q)
        axes = (0, 2, 1, 3) if y.ndim == 4 else (0, 3, 1, 2, 4)
        return ops.reshape(ops.permute_dims(y, axes=axes), shape=(b, t, heads * size))

    def _weighted(
        self, q: Array, k: Array, v: Array, mask: Array | None, causal: bool = False, rate: float = 0.0
    ) -> Array:
        """Return the attention of queries (..., T, D) to keys and values (..., S, D), an array like the queries."""
        draw = random.draw() if rate else (0, 0)
        if self.softcap is None and self.sinks is None:
            return ops.attention(q, k, v, mask, *draw, causal=causal, scale=self.scale, dropout_rate=rate)
        scale, sinks = self.scale or self.head_size**-0.5, None
        if self.sinks is not None:
            sinks = ops.reshape(self.sinks, shape=(*q.shape[1:-2], -1, 1))  # (..., T or 1, 1)
            if self.softcap is None and math.prod(q.shape[1:-1]) > MAX_STORED_QUERIES * self.n_heads:
                inputs = _with_sink_key(q, k, v, mask, sinks / scale)
                return ops.attention(*inputs, *draw, causal=causal, scale=scale, dropout_rate=rate)[..., : v.shape[-1]]
        scores = _scores(q, k, mask, causal, scale, self.softcap)
        weights = ops.softmax(scores, axis=-1)
        if mask is not None and sinks is None:  # zeros for a query that may attend to no key, as ops.attention
            weights = ops.where(scores > MASKED, weights, 0)
        if rate:
            weights = ops.dropout(weights, *draw, rate=rate)
        y = ops.matmul(ops.astype(weights, dtype=v.dtype), v)
        if sinks is None:
            return y
        rest = ops.sigmoid(ops.logsumexp(scores, axis=-1, keepdims=True) - sinks)  # (..., T, 1): 1 - the sink's share
        return y * ops.astype(rest, dtype=y.dtype)


def _of_keys(key_mask: Array, mask: Array | None) -> Array:
    """Return the attention mask of a mask (B, S) of keys and of another mask, bool or floating-point."""
    check_array("MultiHeadAttention", "key_mask", key_mask)
    if key_mask.ndim != 2 or key_mask.dtype != bool_:
        raise ShapeError(f"MultiHeadAttention: key_mask is {key_mask.spec}; it must be bool [batch, keys]")
    keys = key_mask[:, None, None, :]
    if mask is None:
        return keys
    check_array("MultiHeadAttention", "mask", mask)
    if mask.dtype not in (bool_, *FLOATS):
        raise DtypeError(f"MultiHeadAttention: mask is {mask.spec}; it must be bool or floating-point")
    return keys & mask if mask.dtype == bool_ else ops.where(keys, mask, -math.inf)


def _normed(norm: RMSNorm | None, x: Array) -> Array:
    """Return the queries or keys (B, T, H, D) after a norm of each head, or of all heads together."""
    if norm is None or norm.weight.shape[0] == x.shape[-1]:
        return x if norm is None else norm(x)
    return ops.reshape(norm(ops.reshape(x, shape=(*x.shape[:2], -1))), shape=x.shape)


def _with_sink_key(
    q: Array, k: Array, v: Array, mask: Array | None, score: Array
) -> tuple[Array, Array, Array, Array | None]:
    """Return queries, keys, values and mask with one more key, the first, which has a given score and the value 0.

    One more column of the queries holds the score, and the same column of the key a 1.

    Args:
        q: Queries (..., T, D).
        k: Keys (..., S, D).
        v: Values (..., S, D).
        mask: Attention mask, as in polyarr.attention.
        score: Score before it is scaled, which broadcasts to (..., T, 1).

    Returns:
        Tuple of q (..., T, D + 8), k and v (..., S + 1, D + 8), whose new columns are else 0, and the mask.
    """
    size, s = k.shape[-1], k.shape[-2]

    def wide(a: Array, rows: int) -> Array:
        return ops.pad(a, pad_width=(*[(0, 0)] * (a.ndim - 2), (rows, 0), (0, _SINK_COLUMNS)))

    is_column = ops.iota(0, 1, q, size=size + _SINK_COLUMNS, dtype=int32) == size  # (D + 8,)
    is_sink = (ops.iota(0, 1, q, size=s + 1, dtype=int32) == 0)[:, None] & is_column  # (S + 1, D + 8)
    if mask is not None:
        mask = ops.broadcast_to(mask, shape=(*mask.shape[:-1], s))
        seen = ops.fill(mask.dtype == bool_, mask, shape=(*mask.shape[:-1], 1), dtype=mask.dtype)  # true, or 0
        mask = ops.concat([seen, mask], axis=-1)
    q = ops.where(is_column, ops.astype(score, dtype=q.dtype), wide(q, 0))
    return q, ops.where(is_sink, 1, wide(k, 1)), wide(v, 1), mask


def _scores(q: Array, k: Array, mask: Array | None, causal: bool, scale: float, cap: float | None) -> Array:
    """Return the scores (..., T, S), limited to values from -cap to cap unless it is None, and MASKED if masked.

    A query that may attend to no key has equal scores.
    """
    scores = ops.matmul(q, ops.matrix_transpose(k)) * scale
    if scores.dtype in (float16, bfloat16):
        scores = ops.astype(scores, dtype=float32)
    if cap is not None:
        scores = cap * ops.tanh(scores / cap)
    if mask is not None and mask.dtype != bool_:
        scores, mask = ops.maximum(scores + mask, MASKED), None
    if causal:
        t, s = scores.shape[-2:]
        before = ops.tril(ops.fill(True, scores, shape=(t, s), dtype=bool_), k=s - t)
        mask = before if mask is None else mask & before
    return scores if mask is None else ops.where(mask, scores, MASKED)


class TransformerBlock(Module):
    """Pre-norm transformer block: attention and feed-forward, each after a layer norm and inside a residual connection.

    Args:
        emb_dim: Length of the last axis.
        n_heads: Number of heads.
        causal: Whether a position attends only to itself and earlier positions.
        drop_rate: Probability of dropout while training.
        qkv_bias: Whether the projection of queries, keys and values has a bias.
        activation: Activation of the feed-forward block.
        init: Initializer of the weights, as in Linear.
        out_init: Initializer of the two output projections.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.TransformerBlock(8, 2, causal=True)(pa.ones((1, 5, 8))).shape
        (1, 5, 8)
    """

    def __init__(
        self,
        emb_dim: int,
        n_heads: int,
        *,
        causal: bool = False,
        drop_rate: float = 0.0,
        qkv_bias: bool = True,
        activation: str = "gelu_tanh",
        init: Initializer | None = None,
        out_init: Initializer | None = None,
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
        position: int | Array | None = None,
        *,
        key_mask: Array | None = None,
    ) -> Array:
        """Return the output (B, T, C) for x (B, T, C); the others are those of MultiHeadAttention."""
        x = x + self.drop_shortcut(self.att(self.norm1(x), mask, cache, position, key_mask=key_mask))  # (B, T, C)
        return x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
