"""Planted faults in Keras's backend: the adapter finds them. Runs where keras is installed, with JAX or PyTorch.

KERAS_BACKEND chooses the backend. The controls are the same cases without a fault, and the names of backends.
"""

import itertools
import os
from importlib.util import find_spec

import pytest

from polyarr.core.errors import BackendError
from polyarr.testing import adapters
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import CheckFailure

CASES = {case.name: case for case in cases()}
INSTALLED = [name for name in ("jax", "torch") if find_spec(name)]
BACKEND = os.environ.get("KERAS_BACKEND") or next(iter(INSTALLED), "")

pytestmark = pytest.mark.skipif(not (find_spec("keras") and BACKEND), reason="keras, or its backend, is not installed")


@pytest.fixture(scope="module")
def keras():
    adapters.start(f"keras:{BACKEND}")
    import keras

    return keras


def run(name: str) -> None:
    CASES[name].run(adapters.start(f"keras:{BACKEND}"), Effort(4))


def faults(old):
    """Return description -> (module and function of the backend, planted function, case); old is what it replaces."""
    from keras import ops

    count, known = itertools.count(), {}
    first = lambda factor: lambda *args, **params: old(*args, **params) * factor
    detached = lambda *args, **params: ops.stop_gradient(old(*args, **params))

    def passing(x):  # with the gradient 1
        return ops.stop_gradient(old(x) - x) + x

    def matmul(x, y):
        return ops.cast(old(ops.cast(x, "bfloat16"), ops.cast(y, "bfloat16")), x.dtype)

    def where_alike(x, y):
        return x if x is y else old(x, y)

    def log_softmax(x, axis=-1):
        return old(x, axis=known.setdefault(tuple(x.shape), axis))

    def in_dtype(name, factor=1.01):
        return lambda x: old(x) * factor if name in str(x.dtype) else old(x)

    def batch_normalization(x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3):
        return old(x, mean, variance, axis, scale=scale, epsilon=epsilon)

    def with_epsilon(x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3):
        return old(x, mean, variance, axis, offset, scale, 10 * epsilon)

    def conv(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
        return old(inputs, ops.flip(kernel, 0), strides, padding, data_format, dilation_rate)

    def slice_update(inputs, start_indices, updates):
        return old(inputs, start_indices, ops.stop_gradient(updates))

    return {
        "a value": ("numpy.exp", first(1.0001), "forward-exp"),
        "a value of math": ("math.erf", first(1.0001), "forward-erf"),
        "a gradient": ("numpy.tanh", passing, "backward-tanh"),
        "a gradient that is cut": ("numpy.sin", detached, "backward-sin"),
        "the gradient of one input": ("numpy.multiply", lambda x, y: old(ops.stop_gradient(x), y),
            "backward-multiply"),
        "the gradient of an update": ("core.slice_update", slice_update, "backward-slice_update"),
        "the gradient of an activation": ("nn.silu", detached, "backward-silu"),
        "the gradient of a pool": ("nn.average_pool", detached, "backward-mean_pool"),
        "a gradient at ties": ("nn.relu", lambda x: ops.where(x >= 0, x, ops.zeros_like(x)), "promised-relu"),
        "a dtype": ("numpy.sqrt", lambda x: ops.cast(old(x), "float16"), "forward-sqrt"),
        "a shape": ("numpy.sum", lambda x, axis=None, keepdims=False: old(x, axis=axis), "forward-sum"),
        "integers in float32": ("numpy.sum", lambda x, axis=None, keepdims=False: ops.cast(
            old(ops.cast(x, "float32"), axis=axis, keepdims=keepdims), x.dtype), "numbers-sum"),
        "no elements": ("numpy.prod", lambda x, axis=None, keepdims=False, dtype=None: old(
            x, axis=axis, keepdims=keepdims, dtype=dtype) * (0 if 0 in x.shape else 1), "forward-prod"),
        "an axis": ("nn.softmax", lambda x, axis=-1: old(x, axis=-1), "caches-softmax"),
        "a cache without the axis": ("nn.log_softmax", log_softmax, "caches-log_softmax"),
        "nan": ("numpy.maximum", lambda x, y: ops.where(ops.isnan(x), y, old(x, y)), "special-maximum"),
        "infinity": ("nn.sigmoid", lambda x: old(ops.clip(x, -15, 15)), "special-sigmoid"),
        "large arrays": ("numpy.add", lambda x, y: old(x, y) * (1.001 if ops.size(x) > 65_536 else 1), "large-add"),
        "products in 16 bits": ("numpy.matmul", matmul, "forward-matmul"),
        "float16": ("numpy.square", in_dtype("float16"), "float16-square"),
        "bfloat16": ("numpy.log", in_dtype("bfloat16", 1.05), "bfloat16-log"),
        "other bits each time": ("numpy.log", lambda x: old(x) * (1 + 1e-6 * (next(count) % 2)), "determinism-log"),
        "one array twice": ("numpy.subtract", where_alike, "alias-subtract"),
        "eps": ("nn.batch_normalization", with_epsilon, "forward-batch_norm_inference"),
        "an offset": ("nn.batch_normalization", batch_normalization, "forward-batch_norm_inference"),
        "a flipped kernel": ("nn.conv", conv, "forward-conv"),
        "a pool": ("nn.max_pool", first(1.001), "forward-max_pool"),
        "attention": ("nn.dot_product_attention", first(1.001), "forward-attention"),
        "a conjugate": ("math.rfft", lambda x, fft_length=None: tuple(
            part * sign for part, sign in zip(old(x, fft_length=fft_length), (1, -1), strict=True)),
            "forward-dft_of_real"),
        "a matrix": ("linalg.cholesky", lambda x, upper=False: old(x, upper=not upper), "forward-cholesky"),
    }  # fmt: skip


FAULTS = (
    "a value", "a value of math", "a gradient", "a gradient that is cut", "the gradient of one input",
    "the gradient of an update", "the gradient of an activation", "the gradient of a pool", "a gradient at ties",
    "a dtype",     "a shape", "integers in float32", "no elements", "an axis", "a cache without the axis",
    "nan", "infinity", "large arrays", "products in 16 bits", "float16", "bfloat16",
    "other bits each time", "one array twice", "eps", "an offset", "a flipped kernel", "a pool", "attention",
    "a conjugate", "a matrix",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_keras_is_found(keras, monkeypatch, fault):
    place, _, case = faults(None)[fault]
    module, name = place.split(".")
    module = getattr(keras.src.backend, module)
    _, planted, _ = faults(getattr(module, name))[fault]
    run(case)
    monkeypatch.setattr(module, name, planted)
    with pytest.raises((CheckFailure, BackendError)):
        run(case)


def test_a_backend_that_keras_lacks_is_an_error(keras, monkeypatch):
    from polyarr.testing.adapters import keras_ops

    with pytest.raises(BackendError, match="Keras has no backend 'theano' with gradients; it must be jax, torch"):
        keras_ops.framework("theano")
    monkeypatch.setattr(keras.config, "backend", lambda: "numpy")
    with pytest.raises(BackendError, match="Keras was imported with the backend 'numpy'; choose"):
        keras_ops.framework(BACKEND)
