"""polyarr: a plugin-based, multi-backend array engine with gradients and GPT models. The public names."""
# fmt: off

from typing import TYPE_CHECKING

from polyarr import interrupts as _interrupts  # first
from polyarr import distributed, fft, interop as _interop, linalg, nn, ops, optim, plugins, random, special, tree
from polyarr.autograd import checkpoint, custom_vjp, grad, jvp, stop_gradient, value_and_grad, vjp
from polyarr.batching import hessian, jacfwd, jacrev, linearize, scan, vmap, while_loop
from polyarr.capture import repeated as _repeated
from polyarr.capture.compile import CaptureWarning, compile
from polyarr.capture.fused_function import fused
from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused, Transfers, transfers
from polyarr.core.current import get_backend, set_backend, synchronize, use_backend
from polyarr.core.errors import (
    BackendError, BatchingError, CaptureError, DeviceMemoryError, DtypeError, GradientError, MatrixError, NestingError,
    ShapeError,
)
from polyarr.core.names import answering as _answering
from polyarr.core.number import evaluate
from polyarr.core.precision import get_matmul_precision, set_matmul_precision, use_matmul_precision
from polyarr.core.spec import (
    Spec, bfloat16, bool, complex64, complex128, float16, float32, float64,
    int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)
from polyarr.creation import (
    arange, asarray, e, empty, eye, finfo, from_dlpack, full, iinfo, inf, linspace, meshgrid, nan, newaxis, ones, pi,
    zeros,
)
from polyarr.inspection import __array_namespace_info__, can_cast, isdtype, result_type
from polyarr.ops import (
    broadcast_arrays, broadcast_shapes, catalogue as _catalogue, einsum, empty_like, full_like, nonzero, ones_like,
    zeros_like,
)
from polyarr.ops.catalogue import *
from polyarr.ops.layouts import adaptive_mean_pool, conv, conv_transpose, interpolate, max_pool, mean_pool
from polyarr.ops.sets import isin, searchsorted, unique_all, unique_counts, unique_inverse, unique_values
from polyarr.ops.standard import (
    astype, concat, count_nonzero, cumulative_prod, cumulative_sum, diff, repeat, reshape, where,
)
from polyarr.profiling import memory_stats, profile
from polyarr.saving import load, save
from polyarr.version import ARRAY_API_VERSIONS as _VERSIONS, __version__

__array_api_version__ = _VERSIONS[-1]
__all__ = [
    "Array", "Backend", "BackendError", "BatchingError", "CaptureError", "CaptureWarning", "DeviceMemoryError",
    "DtypeError", "Fused", "GradientError", "MatrixError", "NestingError", "ShapeError", "Spec", "Transfers",
    "adaptive_mean_pool", "arange", "asarray", "astype", "bfloat16", "bool", "broadcast_arrays", "broadcast_shapes",
    "can_cast", "checkpoint", "compile", "complex64", "complex128", "concat", "conv", "conv_transpose",
    "count_nonzero", "cumulative_prod", "cumulative_sum", "custom_vjp", "diff", "distributed", "e", "einsum",
    "empty", "empty_like", "evaluate", "eye", "fft", "finfo", "float16", "float32", "float64", "from_dlpack", "full",
    "full_like", "fused", "get_backend", "get_matmul_precision", "grad", "hessian", "iinfo", "inf", "int8", "int16",
    "int32", "int64", "interpolate", "isdtype", "isin", "jacfwd", "jacrev", "jvp", "linalg", "linearize",
    "linspace", "load", "max_pool", "mean_pool", "memory_stats", "meshgrid", "nan", "newaxis", "nn", "nonzero",
    "ones", "ones_like", "ops", "optim", "pi", "plugins", "profile", "random", "repeat", "reshape", "result_type",
    "save", "scan", "searchsorted", "set_backend", "set_matmul_precision", "special", "stop_gradient", "synchronize",
    "transfers", "tree", "uint8", "uint16", "uint32", "uint64", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "use_backend", "use_matmul_precision", "value_and_grad", "vjp", "vmap", "where", "while_loop",
    "zeros", "zeros_like",
]  # fmt: skip
__all__ += _catalogue.__all__


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = _answering(__name__, __all__)
