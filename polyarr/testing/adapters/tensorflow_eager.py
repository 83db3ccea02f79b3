"""TensorFlow's tensors and tape, on which Keras runs; its functions are those of keras_ops.py."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from polyarr.core.spec import FLOATS
from polyarr.testing.adapters import Framework, as_slices


def framework(device: str) -> Framework:
    """Return TensorFlow on a device such as "CPU:0", with slices alone."""
    hardware = f"{device}, TensorFlow {tf.__version__}"
    flushed = frozenset(FLOATS)
    return Framework({"slice": slice_}, vjp, partial(upload, device), download, hardware, flushes=flushed)


def upload(device: str, host: np.ndarray) -> tf.Tensor:
    """Return a tensor on a device with a copy of a host array."""
    with tf.device(device):
        return tf.identity(tf.convert_to_tensor(host.copy()))


def download(tensor: tf.Tensor) -> np.ndarray:
    """Return a tensor as a host array of its dtype."""
    return np.array(tensor.numpy(), order="C")


def vjp(function: Callable[..., list], inputs: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor]) -> list[Any]:
    """Return the gradients by a tape. Gradients of complex numbers are the conjugates of polyarr's."""
    leaves = [tf.identity(x) for x in inputs]  # one tensor passed twice has two gradients
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        results = function(*leaves)
    both = zip(results, cotangents, strict=True)
    pairs = [(y, conj(g)) for y, g in both if y.dtype.is_floating or y.dtype.is_complex]
    outputs, directions = zip(*pairs, strict=True) if pairs else ((), ())
    found = tape.gradient(list(outputs), leaves, list(directions), tf.UnconnectedGradients.ZERO)
    return [conj(tf.convert_to_tensor(d)) for d in found]  # which may be slices with indices


def conj(x: tf.Tensor) -> tf.Tensor:
    return tf.math.conj(x) if x.dtype.is_complex else x


def slice_(x: tf.Tensor, starts: tuple, *, steps: tuple, shape: tuple) -> tf.Tensor:
    return x[as_slices(starts, steps, shape)]
