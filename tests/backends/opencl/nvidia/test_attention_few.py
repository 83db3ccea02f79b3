"""Attention of few queries on tensor cores: values, what it accepts, and bits that do not depend on the batch."""

import struct

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.spec import Spec
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
few, tiled, layout = opencl_modules("attention_few", "attention_tiled", "layout")


@pytest.fixture
def nvidia(backend):
    if not few.VARIANT.may_suit(backend.home.features):
        pytest.skip("needs an NVIDIA GPU from Ampere on")
    return backend


def drawn(rng, dtype, *shape):
    return pa.asarray(rng.standard_normal(shape, np.float32)).astype(dtype)


def visible(rng, kind, batch, queries, size):
    """Return a mask, and which keys it leaves to each query (batch, 1, queries, size)."""
    if kind == "none":
        return None, np.ones((1, 1, 1, size), bool)
    if kind == "queries":  # another one for each query
        seen = rng.random((batch, 1, queries, size)) < 0.3
        seen[..., size // 2] = True
        return pa.asarray(seen), seen
    seen = np.arange(size) <= rng.integers(0, size, (batch if kind == "rows" else 1, 1, 1, 1))
    if kind == "added":
        return pa.asarray(np.where(seen, 0, -np.inf).astype(np.float32)), seen
    return pa.asarray(seen), seen


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("length", [64, 128])
@pytest.mark.parametrize("kind", ["none", "rows", "all", "queries", "added"])
@pytest.mark.parametrize(("batch", "heads", "queries", "size"), [
    (1, 8, 4, 1024), (3, 2, 1, 1), (2, 3, 8, 127), (40, 2, 3, 300), (1, 1, 5, 128), (1, 2, 2, 9000), (70, 2, 1, 4500),
])  # fmt: skip
def test_values_are_right_and_masked_keys_are_not_read(nvidia, dtype, length, kind, batch, heads, queries, size):
    rng = np.random.default_rng(size + queries)
    q, cache = drawn(rng, dtype, batch, heads, queries, length), drawn(rng, dtype, 2, batch, heads, size, length)
    mask, seen = visible(rng, kind, batch, queries, size)
    if kind in ("rows", "all", "added"):
        cache = pa.where(pa.asarray(seen[..., 0, :, None]), cache, np.nan).astype(dtype)
    found = ops.attention(q, cache[0], cache[1], mask).astype("float64").numpy()
    k, v = np.nan_to_num(cache.astype("float64").numpy())
    scores = np.where(seen, q.astype("float64").numpy() @ k.swapaxes(-1, -2) / np.sqrt(length), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    error = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(found, expected, rtol=error, atol=error * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["none", "rows"])
def test_bits_depend_neither_on_the_batch_nor_on_masked_keys(nvidia, kind):
    rng = np.random.default_rng(7)
    q, cache = drawn(rng, "bfloat16", 80, 2, 3, 64), drawn(rng, "bfloat16", 2, 80, 2, 1000, 64)
    mask, seen = visible(rng, kind, 80, 3, 1000)
    whole = ops.attention(q, cache[0], cache[1], mask).astype("float32").numpy()
    for first, count in ((0, 1), (79, 1), (3, 7), (20, 40)):
        rows = slice(first, first + count)
        size = 1000 if mask is None else int(seen[rows].sum(-1).max())
        k, v = cache[:, rows, :, :size]
        part = ops.attention(q[rows], k, v, mask if mask is None else mask[rows, ..., :size])
        np.testing.assert_array_equal(part.astype("float32").numpy(), whole[rows])


def test_rows_that_see_no_key_are_zero(nvidia):
    q, cache = pa.ones((2, 1, 2, 64), dtype="bfloat16"), pa.full((2, 2, 1, 300, 64), np.nan, dtype="bfloat16")
    found = ops.attention(q, cache[0], cache[1], pa.zeros((2, 1, 1, 300), dtype="bool"))
    np.testing.assert_array_equal(found.astype("float32").numpy(), 0)


def problem(**changed):
    rows = struct.pack("3q", 2 * 1024 * 64, 1024 * 64, 64)
    given = tiled.Problem(
        np.dtype(pa.bfloat16), None, 6, 3, 4, 1024, (64, 64), (rows,) * 3, True, False, True, False, False, 1
    )
    return given._replace(**changed)


@pytest.mark.parametrize("changed", [
    {"dtype": np.dtype("float32")}, {"lengths": (64, 128)}, {"lengths": (96, 96)}, {"lengths": (256, 256)},
    {"is_aligned": False}, {"batch": 2**15 + 1}, {"s": 2**30 + 1}, {"layouts": (struct.pack("3q", 0, 0, 68),) * 3},
], ids=str)  # fmt: skip
def test_what_it_leaves_to_other_kernels(changed) -> None:
    assert few.accepts(problem())
    assert not few.accepts(problem(**changed))


@pytest.mark.parametrize("size", [1, 128, 129, 1000, 4096, 4097, 8192, 100_000, 2**30])
def test_parts_cover_all_keys_and_are_few(size) -> None:
    keys, parts = few.parts_of(size)
    assert parts <= few.MAX_PARTS
    assert (parts - 1) * keys < size <= parts * keys
    assert keys % few.KEYS == 0


def test_strides_of_axes_of_length_1_do_not_matter(backend) -> None:
    row = backend.home.empty(Spec((3, 5, 1, 64), np.dtype(pa.bfloat16)))
    strided = layout.view(row, (1, 5, 1, 64), (3, 64, 9, 1), 0)
    assert few._is_readable(row, row.dtype)
    assert few._is_readable(strided, row.dtype)
    assert not few._is_readable(layout.view(row, (2, 5, 1, 60), (324, 60, 60, 1), 0), row.dtype)
    assert not few._is_readable(layout.view(row, (1, 2, 1, 64), (0, 64, 64, 1), 4), row.dtype)
    assert not few._is_readable(row, np.dtype("float16"))
