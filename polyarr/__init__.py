"""polyarr: a plugin-based, multi-backend array engine with gradients and GPT models. The public names."""

from typing import TYPE_CHECKING

from polyarr import (
    distributed as distributed,
    linalg as linalg,
    nn as nn,
    ops as ops,
    optim as optim,
    plugins as plugins,
    random as random,
    tree as tree,
)
from polyarr.autograd import (
    checkpoint as checkpoint,
    custom_vjp as custom_vjp,
    grad as grad,
    jvp as jvp,
    stop_gradient as stop_gradient,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from polyarr.capture.compile import (
    CaptureWarning as CaptureWarning,
    compile as compile,
)
from polyarr.core.array import (
    Array as Array,
)
from polyarr.core.backend import (
    Backend as Backend,
    Fused as Fused,
    Transfers as Transfers,
    transfers as transfers,
)
from polyarr.core.current import (
    get_backend as get_backend,
    set_backend as set_backend,
    synchronize as synchronize,
    use_backend as use_backend,
)
from polyarr.core.errors import (
    BackendError as BackendError,
    CaptureError as CaptureError,
    DeviceMemoryError as DeviceMemoryError,
    DtypeError as DtypeError,
    GradientError as GradientError,
    MatrixError as MatrixError,
    NestingError as NestingError,
    ShapeError as ShapeError,
)
from polyarr.core.names import unknown as _unknown
from polyarr.core.number import (
    evaluate as evaluate,
)
from polyarr.core.precision import (
    get_matmul_precision as get_matmul_precision,
    set_matmul_precision as set_matmul_precision,
    use_matmul_precision as use_matmul_precision,
)
from polyarr.core.spec import (
    Spec as Spec,
    bfloat16 as bfloat16,
    bool as bool,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from polyarr.creation import (
    arange as arange,
    asarray as asarray,
    e as e,
    empty as empty,
    eye as eye,
    finfo as finfo,
    from_dlpack as from_dlpack,
    full as full,
    iinfo as iinfo,
    inf as inf,
    linspace as linspace,
    meshgrid as meshgrid,
    nan as nan,
    newaxis as newaxis,
    ones as ones,
    pi as pi,
    zeros as zeros,
)
from polyarr.inspection import (
    __array_namespace_info__ as __array_namespace_info__,
    can_cast as can_cast,
    isdtype as isdtype,
    result_type as result_type,
)
from polyarr.ops import (
    broadcast_arrays as broadcast_arrays,
    broadcast_shapes as broadcast_shapes,
    einsum as einsum,
    empty_like as empty_like,
    full_like as full_like,
    nonzero as nonzero,
    ones_like as ones_like,
    zeros_like as zeros_like,
)
from polyarr.ops.catalogue import *
from polyarr.ops.layouts import (
    adaptive_mean_pool as adaptive_mean_pool,
    conv as conv,
    conv_transpose as conv_transpose,
    interpolate as interpolate,
    max_pool as max_pool,
    mean_pool as mean_pool,
)
from polyarr.ops.sets import (
    isin as isin,
    searchsorted as searchsorted,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from polyarr.ops.standard import (
    astype as astype,
    concat as concat,
    count_nonzero as count_nonzero,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    diff as diff,
    repeat as repeat,
    reshape as reshape,
    where as where,
)
from polyarr.profiling import (
    memory_stats as memory_stats,
    profile as profile,
)
from polyarr.saving import (
    load as load,
    save as save,
)
from polyarr.version import (
    __version__ as __version__,
)

__array_api_version__ = "2024.12"

if not TYPE_CHECKING:  # to a type checker, every name would seem to be there

    def __getattr__(name: str) -> object:
        raise AttributeError(_unknown(name, globals()))
