"""View arithmetic of the OpenCL backend against NumPy's."""

import math
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

pytest.importorskip("pyopencl")
layout = import_module("polyarr.backends.opencl.runtime.layout")

MEMORY = np.arange(20000, dtype=np.int16)
shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


def buffer(shape, order, step):
    """Draw a view of MEMORY with axes in any memory order and gaps between elements."""
    strides, stride = [0] * len(shape), step
    for axis in order:
        strides[axis], stride = stride, stride * shape[axis]
    return layout.Buffer(MEMORY, shape, MEMORY.dtype, tuple(strides), 5)


def seen(buf):
    """Return the elements of a buffer."""
    return as_strided(buf.memory[buf.offset :], buf.shape, [2 * stride for stride in buf.strides])


buffers = shapes.flatmap(
    lambda shape: st.builds(buffer, st.just(shape), st.permutations(range(len(shape))), st.integers(1, 3))
)


@given(buffers, st.data())
def test_views_show_what_numpy_shows(buf, data):
    x = seen(buf)
    order = data.draw(st.permutations(range(buf.ndim)))
    np.testing.assert_array_equal(seen(layout.permuted(buf, order)), x.transpose(order))
    lead = data.draw(shapes)
    wide = lead + tuple(3 if n == 1 else n for n in buf.shape)
    np.testing.assert_array_equal(seen(layout.broadcast(buf, wide)), np.broadcast_to(x, wide))
    if buf.ndim:
        a, b = data.draw(st.tuples(*[st.integers(-buf.ndim, buf.ndim - 1)] * 2))
        np.testing.assert_array_equal(seen(layout.swapped(buf, a, b)), x.swapaxes(a, b))
        a, b = a % buf.ndim, b % buf.ndim
        np.testing.assert_array_equal(seen(layout.moved(buf, a, b)), np.moveaxis(x, a, b))
        starts, steps = [n - 1 for n in buf.shape], [-1] * buf.ndim
        np.testing.assert_array_equal(seen(layout.window(buf, buf.shape, starts, steps)), np.flip(x))
        cut = layout.pieces(buf, a, 0, buf.shape[a], 1)
        np.testing.assert_array_equal(seen(cut), np.stack(np.split(x, buf.shape[a], axis=a)))


@given(buffers, st.data())
def test_another_shape_is_a_view_only_if_strides_can_say_it(buf, data):
    x, wanted = seen(buf), data.draw(st.permutations([*buf.shape, 1]).map(tuple))
    strides = layout.reshaped_strides(buf.shape, buf.strides, wanted)
    if strides is not None:
        np.testing.assert_array_equal(seen(buf._replace(shape=wanted, strides=strides)), x.reshape(wanted))
    else:
        assert not np.shares_memory(x.reshape(wanted), MEMORY)


@given(buffers)
def test_joined_axes_show_the_same_elements_in_the_same_order(buf):
    lengths, (steps,) = layout.collapse(buf.shape, [buf.strides])
    assert math.prod(lengths) == buf.size and len(lengths) <= max(1, buf.ndim)
    flat = seen(buf._replace(shape=lengths, strides=steps)).ravel()
    np.testing.assert_array_equal(flat, seen(buf).ravel())
    gapless = layout.row_major(buf.shape)
    assert layout.is_gapless(buf.shape, gapless) and len(layout.collapse(buf.shape, [gapless])[0]) == 1
    assert buf.is_dense is False and layout.Buffer(MEMORY, buf.shape, MEMORY.dtype, gapless).is_dense
