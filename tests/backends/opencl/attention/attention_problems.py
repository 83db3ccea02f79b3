"""Random attention problems, their results in float64, and the error allowed for each number.

Each problem is made from its seed alone. Shapes, masks, layouts and values vary within `choices`.
"""

from typing import Any, NamedTuple

import numpy as np

import polyarr as pa
from polyarr import ops

KEY, COUNTER = 2**40 + 1, 3
# Relative errors: of a stored float; of an operand of a product; of a sum of products, relative to the magnitudes' sum.
# "high" is float32 in two bfloat16 terms.
ROUNDED = {"float32": 2.0**-22, "high": 2.0**-17, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SUMMED = {"float32": 2.0**-20, "high": 2.0**-15, "float16": 2.0**-18, "bfloat16": 2.0**-18}
SMALLEST = {"float32": 2.0**-126, "high": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}  # spacing of numbers


class Choices(NamedTuple):
    """Parameters that problems are drawn from. With `queries`, their numbers, attention is not causal."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    sizes: tuple[int, ...] = (8, 16, 40, 64, 128)
    masks: tuple[str, ...] = ("none", "bool", "float32")
    rates: tuple[float, ...] = (0.0, 0.25)
    longest: int = 300
    precision: str | None = None
    queries: tuple[int, ...] = ()


class Problem(NamedTuple):
    """Inputs of a problem, and the parameters that describe it."""

    name: str
    arrays: tuple[Any, ...]  # q, k, v, mask, dout on the host
    views: Any  # maps the arrays on the device to attention's q, k, v
    params: dict[str, Any]


def draw(seed: int, choices: Choices) -> Problem:
    """Draw a problem."""
    r = np.random.default_rng(seed)
    dtype, size, kind, rate = (pick(r, some) for some in choices[:4])
    t, s = lengths(r, choices.longest)
    t = pick(r, choices.queries) if choices.queries else t
    lead, shared, layout = heads(r)
    s = t if layout in ("packed", "grouped") else s
    spread = pick(r, (1.0, 1.0, 0.1, 4.0, 1e-3))
    q, k, v = (values(r, (*outer, n, size), dtype, spread)
               for outer, n in ((lead, t), (shared, s), (shared, s)))  # fmt: skip
    dout = values(r, (*lead, t, size), dtype, pick(r, (1.0, 1.0, 1e-3, 4.0)))
    mask = mask_of(r, kind, (*lead, t, s))
    params = {
        "causal": bool(r.integers(2)) and not choices.queries, "dropout_rate": rate, "precision": choices.precision,
        "scale": pick(r, (None, None, 0.3)),
    }  # fmt: skip
    masked = "no mask" if mask is None else f"mask {kind} {mask.shape}"
    name = f"seed {seed}: {dtype} q {q.shape} k {k.shape} {layout}, {masked}, {params}"
    return Problem(name, (q, k, v, mask, dout), LAYOUTS[layout], params)


def pick(r: np.random.Generator, among: tuple[Any, ...]) -> Any:
    """Draw one of the choices."""
    return among[r.integers(len(among))]


def lengths(r: np.random.Generator, longest: int) -> tuple[int, int]:
    """Draw numbers of queries and keys: often equal, at times 1 or 0, around tiles of 64."""
    t, s = (pick(r, (int(r.integers(1, longest)), 64 * int(r.integers(1, 4)) + int(r.integers(-1, 2)))) for _ in "ts")
    if r.integers(12) == 0:
        return pick(r, ((0, s), (t, 0), (0, 0), (t, 1), (1, 1)))
    t = pick(r, (t, t, t, t, t, t, 1, 16, 17))
    return (t, t) if r.integers(2) else (t, s)


def heads(r: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Draw the leading axes of queries and keys, and the memory layout of all arrays."""
    layout = pick(r, tuple(LAYOUTS))
    if layout == "packed":
        lead = (int(r.integers(1, 4)), int(r.integers(1, 5)))
        return lead, lead, layout
    if layout == "grouped":
        b, h, g = (int(n) for n in r.integers(1, 4, 3))
        return (b, h, g), (b, h, 1), layout
    b, h, g = (int(n) for n in r.integers(1, 4, 3))
    lead = pick(r, ((), (h,), (b, h), (b, h), (b, h, g), (b, h, g), (0, h) if r.integers(4) == 0 else (b, h)))
    shared = pick(r, (lead, (b, h, 1) if len(lead) == 3 else lead))
    return lead, shared, layout


def values(r: np.random.Generator, shape: tuple[int, ...], dtype: str, spread: float) -> np.ndarray:
    """Draw normal numbers, at times with very different scales from row to row."""
    x = spread * r.standard_normal(shape)
    if r.integers(4) == 0:
        x *= 2.0 ** r.integers(-8, 3, (*shape[:-1], 1))
    return x.astype(np.dtype(getattr(pa, dtype)))


def mask_of(r: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Draw a mask of a shape that broadcasts to this one; some rows of a bool mask are all False."""
    if kind == "none":
        return None
    own = tuple(1 if r.integers(4) == 0 else n for n in shape)[int(r.integers(len(shape) + 1)) :]
    if kind == "bool":
        return (r.random(own) > 0.3) & (r.random((*own[:-1], 1)[: len(own)]) > 0.1)
    added = r.standard_normal(own).astype(kind)
    return np.where(r.random(own) > 0.2, added, -np.inf).astype(kind)


# ---- layouts -----------------------------------------------------------------------------------------------------


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[pa.Array]:
    """Return contiguous arrays."""
    return [pa.asarray(x) for x in (q, k, v)]


def packed(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[pa.Array]:
    """Return q, k and v as slices of one (B, T, 3, H, D) array."""
    together = np.stack([x.transpose(0, 2, 1, 3) for x in (q, k, v)], axis=2)
    return [ops.permute_dims(x, axes=(0, 2, 1, 3)) for x in ops.unstack(pa.asarray(together), axis=2)]


def offset(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[pa.Array]:
    """Return slices of larger arrays filled with nan, at offsets that are and are not multiples of 16 bytes."""
    found = []
    for i, x in enumerate((q, k, v)):
        before, around = (3, 5)[i % 2], 8 if i < 2 else 0
        wide = np.full((*x.shape[:-2], x.shape[-2] + 7, x.shape[-1] + 2 * around), np.nan, x.dtype)
        rows, columns = slice(before, before + x.shape[-2]), slice(around, around + x.shape[-1])
        wide[..., rows, columns] = x
        found.append(pa.asarray(wide)[..., rows, columns])
    return found


def turned(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[pa.Array]:
    """Return arrays whose last axis is strided, which no kernel supports, and keys in reverse order."""
    first = pa.matrix_transpose(pa.asarray(np.ascontiguousarray(q.swapaxes(-1, -2))))
    return [first, pa.flip(pa.asarray(np.ascontiguousarray(k[..., ::-1, :])), axis=-2), pa.asarray(v)]


def grouped(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[pa.Array]:
    """Return q (B, K, H, T, D) and k, v (B, K, 1, T, D) as slices of one (B, T, K * H + 2 K, D) array."""
    (b, kv, h, t, d), shared = q.shape, k.shape[1]
    heads = kv * h
    rows = [np.moveaxis(x, 3, 1).reshape(b, t, n, d) for x, n in ((q, heads), (k, shared), (v, shared))]
    together = pa.asarray(np.concatenate(rows, axis=2))
    first, *rest = together[:, :, :heads], together[:, :, heads : heads + shared], together[:, :, heads + shared :]
    first, *rest = (ops.permute_dims(x, axes=(0, 2, 1, 3)) for x in (first, *rest))
    return [ops.reshape(first, shape=q.shape), *(ops.expand_dims(x, axis=2) for x in rest)]


LAYOUTS = {"plain": plain, "packed": packed, "offset": offset, "turned": turned, "grouped": grouped}


# ---- what it comes to --------------------------------------------------------------------------------------------


def found(problem: Problem) -> list[np.ndarray]:
    """Return the result and the gradients of q, k and v on the current backend."""
    q, k, v, mask, dout = problem.arrays
    mask = None if mask is None else pa.asarray(mask)
    out, pull = pa.vjp(lambda q, k, v: ops.attention(q, k, v, mask, KEY, COUNTER, **problem.params),
                       *problem.views(q, k, v))  # fmt: skip
    return [x.numpy().astype(np.float64) for x in (out, *pull(pa.asarray(dout)))]


def expected(problem: Problem) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the same four arrays in float64, and the allowed error of each number."""
    q, k, v, mask, dout = problem.arrays
    kind = "high" if problem.params["precision"] == "high" else q.dtype.name
    one, summed, least = (table[kind] for table in (ROUNDED, SUMMED, SMALLEST))
    shapes = [x.shape for x in (q, k, v)]
    scale, kept = problem.params["scale"] or q.shape[-1] ** -0.5, dropped(problem)
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    sizes_q, sizes_k, sizes_v, sizes_g = (np.abs(x) for x in (q, k, v, dout))
    turn = np.swapaxes
    scores = scale * (q @ turn(k, -1, -2))
    off = summed * scale * (sizes_q @ turn(sizes_k, -1, -2))  # allowed error of a score
    weights = softmax(seen(scores, mask, problem.params["causal"]))
    off = off + largest(np.where(weights > 0, off, 0), -1) + summed  # relative error of its weight
    z = weights * kept
    out = z @ v
    z_off = z * (one + off) + least
    most_out = z_off @ sizes_v + one * np.abs(out)
    dz = (dout @ turn(v, -1, -2)) * kept
    delta = (dout * out).sum(-1, keepdims=True)
    ds = weights * (dz - delta)
    delta_off = (sizes_g * (most_out + summed * np.abs(out))).sum(-1, keepdims=True)
    dz_off = summed * kept * (sizes_g @ turn(sizes_v, -1, -2))
    ds_off = (one + off) * np.abs(ds) + weights * (delta_off + dz_off)
    ds_off = ds_off + least * (1 + np.abs(dz - delta))  # weights may underflow
    results = [out, scale * (ds @ k), scale * (turn(ds, -1, -2) @ q), turn(z, -1, -2) @ dout]
    most = [
        most_out, scale * (ds_off @ sizes_k), scale * (turn(ds_off, -1, -2) @ sizes_q),
        turn(z_off, -1, -2) @ sizes_g,
    ]  # fmt: skip
    for i, shape in enumerate(shapes, start=1):  # gradients of broadcast arrays are rounded twice
        each = most[i] + one * np.abs(results[i]) + least
        results[i], most[i] = (added_up(x, shape) for x in (results[i], each))
        most[i] = most[i] + one * np.abs(results[i])
    return results, [x + least for x in most]


def largest(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the maximum along an axis, which stays with length 1."""
    return np.max(x, axis=axis, keepdims=True, initial=0)


def dropped(problem: Problem) -> np.ndarray:
    """Return the factors that dropout multiplies the weights by."""
    (*lead, t, _), (*_, s, _), rate = problem.arrays[0].shape, problem.arrays[1].shape, problem.params["dropout_rate"]
    with pa.use_backend("numpy"):
        ones = pa.asarray(np.ones((*lead, t, s), np.float64))
        return ops.dropout(ones, KEY, COUNTER, rate=rate).numpy()


def seen(scores: np.ndarray, mask: np.ndarray | None, causal: bool) -> np.ndarray:
    """Return scores with -inf where the masks hide a key."""
    t, s = scores.shape[-2:]
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return np.where(np.arange(s) <= np.arange(t)[:, None] + (s - t), scores, -np.inf) if causal else scores


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax, with zeros in rows that are all -inf."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total > 0, total, 1)


def added_up(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the sum over the axes along which an array of this shape was broadcast."""
    axes = tuple(i for i, n in enumerate(shape) if n == 1 != x.shape[i])
    return x.sum(axes, keepdims=True)


def worst(problem: Problem) -> float:
    """Return the largest error relative to the allowed one; inf for a nan."""
    results, most = expected(problem)
    share = 0.0
    for ours, theirs, limit in zip(found(problem), results, most, strict=True):
        assert ours.shape == theirs.shape, f"{problem.name}: {ours.shape}, expected {theirs.shape}"
        each = np.abs(ours - theirs) / limit
        share = max(share, np.max(np.where(np.isnan(each), np.inf, each), initial=0))
    return share
