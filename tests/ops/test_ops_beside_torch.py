"""Ops against PyTorch: values, gradients and gradients of gradients of the samples of its own tests.

In float64 and complex128 on every backend, and in float32 and complex64 beside PyTorch's float64 and complex128. Runs
where torch and expecttest are installed, as in `make test-transformers`; test_convolutions_beside_torch.py has
convolutions and pools, test_fft_beside_torch.py Fourier transforms, test_linalg_beside_torch.py decompositions. A
sample that asks for what polyarr does not have is not compared, nor is one in dtypes that polyarr refuses.
"""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from tests.ops.beside_pytorch import DTYPES, PARTS, Absent, compare, compare_all, infos, torch

pytestmark = pytest.mark.filterwarnings("ignore")


def lack(condition: object) -> None:
    """Raise Absent: polyarr does not have what the sample asks for."""
    if condition:
        raise Absent


# ---- elementwise -----------------------------------------------------------------------------------------------------


def scaled(fn):
    """Return add or subtract with a factor of the second term."""
    return lambda x, y, alpha=1: fn(x, y if alpha == 1 else y * alpha)


def divide(x, y, rounding_mode=None):
    lack(rounding_mode and isinstance(x, (int, float)))
    found = pa.divide(x, y) if rounding_mode != "floor" else pa.floor_divide(x, y)
    return pa.trunc(found) if rounding_mode == "trunc" else found


def where(x, condition, y):
    return pa.where(condition, x, y)


def masked_fill(x, mask, value):
    return pa.where(mask, value, x).astype(x.dtype)


def decimals(x, decimals=0):
    lack(decimals)
    return pa.round(x)


def logical(fn):
    """Return a function of arrays of one dtype; PyTorch's inputs may have several."""
    return lambda *arrays: (lack(len({x.dtype for x in arrays}) > 1), fn(*arrays))[1]


def clamp(x, low=None, high=None):
    lack(any(isinstance(limit, pa.Array) and limit.dtype != x.dtype for limit in (low, high)))  # of another kind
    return pa.clip(x, low, high)


def gelu(x, approximate="none"):
    return pa.gelu(x, approximate=approximate)


# ---- reductions ------------------------------------------------------------------------------------------------------


def axes(dim):
    """Return PyTorch's axes, where none means all."""
    return None if dim is None or dim == [] or dim == () else tuple(dim) if isinstance(dim, list) else dim


def reduction(fn):
    def run(x, dim=None, keepdim=False, dtype=None):
        lack(not x.shape and axes(dim) is not None)
        return fn(x, axis=axes(dim), keepdims=keepdim)

    return run


def spread(fn):
    def run(x, dim=None, unbiased=None, correction=None, keepdim=False):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        divisor = 1 if correction is None else correction
        return fn(x, axis=axes(dim), correction=divisor if unbiased is None else int(unbiased), keepdims=keepdim)

    return run


def and_mean(fn):
    def run(x, dim=None, unbiased=None, correction=None, keepdim=False):
        found = spread(fn)(x, dim, unbiased, correction, keepdim)
        return found, pa.mean(x, axis=None if isinstance(dim, bool) else axes(dim), keepdims=keepdim)

    return run


def extreme(fn, at):
    """Return the largest element and its index."""

    def run(x, dim, keepdim=False):
        return fn(x, axis=dim, keepdims=keepdim), at(x, axis=dim, keepdims=keepdim)

    return one_dimensional(run)


def one_dimensional(run):
    """Wrap a function so that scalars, for which PyTorch accepts an axis, are not compared."""
    return lambda x, *args, **kwargs: (lack(not x.shape), run(x, *args, **kwargs))[1]


def running(fn):
    return one_dimensional(lambda x, dim, dtype=None: fn(x, axis=dim))


def vector_norm(x, ord=2.0, dim=None, keepdim=False, dtype=None):
    lack(not x.shape and dim is not None)
    return pa.linalg.vector_norm(x, ord=ord, axis=axes(dim), keepdims=keepdim)


def count_nonzero(x, dim=None):
    lack(not x.shape and isinstance(dim, int))
    return pa.count_nonzero(x, axis=axes(dim))


# ---- shapes ----------------------------------------------------------------------------------------------------------


def sizes(given):
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def expand(x, *shape):
    lead = len(sizes(shape)) - x.ndim
    return pa.broadcast_to(x, tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(sizes(shape))))


def flip(x, *dims, **named):
    return pa.flip(x, axis=tuple(sizes(named.get("dims") or dims)))


def roll(x, shifts, dims=None):
    whole = lambda v: tuple(v) if isinstance(v, (tuple, list)) else v
    shifts, dims = whole(shifts), None if dims == () else whole(dims)
    if isinstance(shifts, tuple) and dims is None:
        (shifts,) = shifts
    return pa.roll(x, shifts, axis=dims)


def split(x, size, dim=0):
    if isinstance(size, (list, tuple)):
        return pa.split(x, tuple(int(n) for n in np.cumsum(size)[:-1]), axis=dim)
    return pa.split(x, tuple(range(size, x.shape[dim], size)), axis=dim)


def squeeze(x, dim=None):
    given = range(x.ndim) if dim is None else dim if isinstance(dim, (list, tuple)) else (dim,)
    lack(not x.shape and given)
    return pa.squeeze(x, axis=tuple(i for i in given if x.shape[i] == 1))


def pad(x, pad, mode="constant", value=None):
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    lack(any(n < 0 for pair in pairs for n in pair))
    return pa.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value or 0)


def concat(arrays, dim=0):
    lack(len({a.ndim for a in arrays}) > 1)  # PyTorch ignores empty one-dimensional arrays
    return pa.concat(arrays, axis=dim)


def diff(x, n=1, dim=-1, prepend=None, append=None):
    return pa.diff(x, axis=dim, n=n, prepend=prepend, append=append)


def repeat_interleave(x, repeats, dim=None, output_size=None):
    lack(not x.shape)
    return pa.repeat(x, repeats, axis=dim)


def narrow(x, dim, start, length):
    start = int(start) if not isinstance(start, int) else start
    return x[(*(slice(None),) * (dim % x.ndim), slice(start % (x.shape[dim] + 1), start % (x.shape[dim] + 1) + length))]


def select(x, dim, index):
    return x[(*(slice(None),) * (dim % x.ndim), index)]


def assigned(x, key, value):
    new = pa.positive(x) if x.dtype != pa.bool else pa.logical_or(x, x)
    new[key] = value
    return new


def slice_scatter(x, value, dim=0, start=None, end=None, step=1):
    return assigned(x, (*(slice(None),) * (dim % x.ndim), slice(start, end, step)), value)


def select_scatter(x, value, dim, index):
    return assigned(x, (*(slice(None),) * (dim % x.ndim), index), value)


def key(index):
    """Return PyTorch's index as polyarr's."""
    if isinstance(index, list) and all(isinstance(i, int) for i in index):
        return pa.asarray(index)
    if isinstance(index, (tuple, list)) and not isinstance(index, pa.Array):
        return tuple(pa.asarray(i) if isinstance(i, list) else i for i in index)
    return index


def getitem(x, index):
    return x[key(index)]


def index_put(x, indices, values, accumulate=False):
    lack(accumulate)
    return assigned(x, tuple(indices), values)


# ---- indices and order -----------------------------------------------------------------------------------------------


def gather(x, dim, index):
    lack(x.ndim != index.ndim or not x.shape)
    keep = tuple(slice(None) if i == dim % x.ndim else slice(n) for i, n in enumerate(index.shape))
    return pa.take_along_axis(x[keep], index, axis=dim)


def take_along_dim(x, index, dim=None):
    lack(x.ndim != index.ndim)
    x, index = (x, index) if dim is not None else (pa.reshape(x, (-1,)), pa.reshape(index, (-1,)))
    return pa.take_along_axis(x, index, axis=-1 if dim is None else dim)


def index_select(x, dim, index):
    lack(not x.shape or not index.shape)
    return pa.take(x, index, axis=dim)


def index_add(x, dim, index, source, alpha=1):
    lack(not x.shape or not index.shape)
    return pa.scatter_add(x, index, source * alpha, axis=dim)


def index_copy(x, dim, index, source):
    lack(not x.shape or not index.shape)
    return pa.scatter(x, index, source, axis=dim)


def scatter_add(x, dim, index, source):
    lack(not x.shape or not index.shape)
    lack(any(a != b for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if i != dim % x.ndim))
    source = source[tuple(slice(n) for n in index.shape)]
    return pa.scatter_add_along_axis(x, index, source, axis=dim)


def ordered(fn):
    def run(x, dim=-1, descending=False, stable=False):
        lack(not x.shape)
        return fn(x, axis=dim, descending=descending)

    return run


def sort(x, dim=-1, descending=False, stable=False):
    lack(not x.shape)
    return pa.sort(x, axis=dim, descending=descending), pa.argsort(x, axis=dim, descending=descending)


def topk(x, k, dim=-1, largest=True, sorted=True):
    lack(not largest or not x.shape or x.dtype.kind in "iu")  # PyTorch's order of equal elements is unspecified
    return pa.topk(x, k, axis=dim)


def searchsorted(x, values, out_int32=False, right=False, side=None, sorter=None):
    lack(x.ndim != 1 or out_int32)
    return pa.searchsorted(x, values, side=side or ("right" if right else "left"), sorter=sorter)


def unique(x, sorted=True, return_inverse=False, return_counts=False, dim=None):
    lack(dim is not None)
    found = pa.unique_all(x)
    kept = [found.values] + [found.inverse_indices] * return_inverse + [found.counts] * return_counts
    return kept[0] if len(kept) == 1 else tuple(kept)


def argwhere(x):
    lack(not x.shape)
    return pa.stack(pa.nonzero(x), axis=-1)


# ---- products --------------------------------------------------------------------------------------------------------


def einsum(arrays, equation):
    return pa.einsum(equation, *arrays)


def tensordot(x, y, dims=2):
    lack(not isinstance(dims, int) and any(x.shape[i] != y.shape[j] for i, j in zip(*dims, strict=True)))
    return pa.tensordot(x, y, axes=dims)


# ---- networks --------------------------------------------------------------------------------------------------------


def softmax(fn):
    return one_dimensional(lambda x, dim, dtype=None: fn(x, axis=dim))


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    flat = lambda a: a if a is None else pa.reshape(a, (-1,))
    rows = pa.reshape(x, (*x.shape[: x.ndim - len(shape)], math.prod(shape)))
    return pa.reshape(pa.layer_norm(rows, flat(weight), flat(bias), eps=eps), x.shape)


def rms_norm(x, shape, weight=None, eps=None):
    rows = pa.reshape(x, (*x.shape[: x.ndim - len(shape)], math.prod(shape)))
    eps = float(np.finfo(x.dtype).eps) if eps is None else eps
    weight = weight if weight is None else pa.reshape(weight, (-1,))
    return pa.reshape(pa.rms_norm(rows, weight, eps=eps), x.shape)


def channels_last(x):
    return pa.moveaxis(x, 1, -1)


def channels_first(x):
    return pa.moveaxis(x, -1, 1)


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    return channels_first(pa.group_norm(channels_last(x), weight, bias, groups=groups, eps=eps))


def instance_norm(x, *running, weight=None, bias=None, use_input_stats=True, eps=1e-5, **unused):
    lack(not use_input_stats or running)
    return channels_first(pa.instance_norm(channels_last(x), weight, bias, eps=eps))


def batch_norm(x, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    lack(x.ndim < 2)
    if training:
        return channels_first(pa.batch_norm(channels_last(x), weight, bias, eps=eps)[0])
    return channels_first(pa.batch_norm_inference(channels_last(x), mean, variance, weight, bias, eps=eps))


def cross_entropy(x, targets, weight=None, ignore_index=-100, reduction="mean"):
    lack(weight is not None or targets.dtype in (pa.float64, pa.float32))
    x = channels_last(x) if x.ndim > 1 else x
    return pa.cross_entropy(x, targets, ignore_index=ignore_index, reduction=reduction)


def mse(x, y, reduction="mean"):
    lack(reduction != "mean")
    return pa.mse(x, y)


def embedding(weight, indices, padding_idx=None, scale_grad_by_freq=False, norm_type=2.0, max_norm=None, sparse=False):
    lack(padding_idx is not None or scale_grad_by_freq or max_norm is not None)
    return pa.embedding(weight, indices)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    lack(
        dropout_p or (is_causal and q.shape[-2] != k.shape[-2])
    )  # our causal masks align at the last key, theirs at the first
    return pa.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)


SAME = """abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp expm1 floor hypot isfinite isinf
isnan log log10 log1p log2 logaddexp positive pow reciprocal remainder round rsqrt sigmoid sign signbit sin sinh sqrt
square tan tanh trunc floor_divide maximum minimum matmul outer tril triu bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift isin real conj""".split()
OURS = {
    **{name: getattr(pa, name) for name in SAME},
    "nn.functional.relu": pa.relu,
    "nn.functional.silu": pa.silu,
    "nn.functional.gelu": gelu,
    "add": scaled(pa.add),
    "sub": scaled(pa.subtract),
    "rsub": lambda x, y, alpha=1: y - x * alpha,
    "__rsub__": lambda x, y: y - x,
    "mul": pa.multiply,
    "neg": pa.negative,
    "sgn": pa.sign,
    "imag": pa.imag,
    "complex": ops.complex,
    "bitwise_not": pa.bitwise_invert,
    "div.no_rounding_mode": divide,
    "div.floor_rounding": divide,
    "div.trunc_rounding": divide,
    "true_divide": divide,
    "lt": pa.less,
    "le": pa.less_equal,
    "gt": pa.greater,
    "ge": pa.greater_equal,
    "eq": pa.equal,
    "ne": pa.not_equal,
    "max.binary": pa.maximum,
    "min.binary": pa.minimum,
    **{f"logical_{name}": logical(getattr(pa, f"logical_{name}")) for name in ("and", "or", "xor", "not")},
    "clamp": clamp,
    "clamp_min": lambda x, low: pa.clip(x, low),
    "clamp_max": lambda x, high: pa.clip(x, None, high),
    "where": where,
    "masked_fill": masked_fill,
    "round.decimals_0": decimals,
    "sum": reduction(pa.sum),
    "prod": reduction(pa.prod),
    "amax": reduction(pa.max),
    "amin": reduction(pa.min),
    "max.reduction_no_dim": pa.max,
    "min.reduction_no_dim": pa.min,
    "max.reduction_with_dim": extreme(pa.max, pa.argmax),
    "min.reduction_with_dim": extreme(pa.min, pa.argmin),
    "mean": reduction(pa.mean),
    "any": reduction(pa.any),
    "all": reduction(pa.all),
    "argmax": reduction(pa.argmax),
    "argmin": reduction(pa.argmin),
    "logsumexp": reduction(pa.logsumexp),
    **{f"{name}{how}": spread(getattr(pa, name)) for name in ("var", "std") for how in ("", ".unbiased")},
    **{f"{name}_mean{how}": and_mean(getattr(pa, name)) for name in ("var", "std") for how in ("", ".unbiased")},
    "cumsum": running(pa.cumulative_sum),
    "cumprod": running(pa.cumulative_prod),
    "linalg.vector_norm": vector_norm,
    "count_nonzero": count_nonzero,
    "reshape": pa.reshape,
    "permute": lambda x, *dims: pa.permute_dims(x, sizes(dims)),
    "expand": expand,
    "broadcast_to": pa.broadcast_to,
    "flip": flip,
    "fliplr": lambda x: pa.flip(x, axis=1),
    "flipud": lambda x: pa.flip(x, axis=0),
    "roll": roll,
    "tile": lambda x, *dims: pa.tile(x, sizes(dims)),
    "repeat": lambda x, *dims: pa.tile(x, sizes(dims)),
    "cat": concat,
    "stack": lambda arrays, dim=0: pa.stack(arrays, axis=dim),
    "unbind": lambda x, dim=0: pa.unstack(x, axis=dim),
    "split": split,
    "split.list_args": split,
    "split_with_sizes": split,
    "squeeze": squeeze,
    "squeeze.multiple": squeeze,
    "unsqueeze": lambda x, dim: pa.expand_dims(x, axis=dim),
    "movedim": lambda x, source, to: pa.moveaxis(x, source, to),
    "nn.functional.pad.constant": pad,
    "diff": diff,
    "repeat_interleave": repeat_interleave,
    "narrow": narrow,
    "select": select,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "__getitem__": getitem,
    "index_put": index_put,
    "gather": gather,
    "take_along_dim": take_along_dim,
    "index_select": index_select,
    "index_add": index_add,
    "index_copy": index_copy,
    "scatter_add": scatter_add,
    "msort": lambda x: pa.sort(x, axis=0),
    "sort": sort,
    "argsort": ordered(pa.argsort),
    "topk": topk,
    "searchsorted": searchsorted,
    "unique": unique,
    "argwhere": argwhere,
    "mm": pa.matmul,
    "bmm": pa.matmul,
    "mv": pa.matmul,
    "dot": pa.matmul,
    "__rmatmul__": lambda x, y: y @ x,
    "einsum": einsum,
    "tensordot": tensordot,
    "linalg.vecdot": lambda x, y, dim=-1: pa.vecdot(x, y, axis=dim),
    "linalg.cross": lambda x, y, dim=-1: pa.linalg.cross(x, y, axis=dim),
    "trace": pa.linalg.trace,
    "nn.functional.linear": pa.linear,
    "softmax": softmax(pa.softmax),
    "log_softmax": softmax(pa.log_softmax),
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.mse_loss": mse,
    "nn.functional.embedding": embedding,
    "nn.functional.scaled_dot_product_attention": attention,
}
THEIRS = {"sgn": lambda x: torch.sgn(x).detach()}  # polyarr's has no gradient
REAL_IN_PYTORCH = """atan2 ceil complex copysign erf floor hypot remainder round sign signbit trunc floor_divide maximum
minimum bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift bitwise_not isin nn.functional.relu
nn.functional.silu nn.functional.gelu div.floor_rounding div.trunc_rounding lt le gt ge max.binary min.binary clamp
clamp_min clamp_max round.decimals_0 amax amin max.reduction_no_dim min.reduction_no_dim max.reduction_with_dim
min.reduction_with_dim argmax argmin slice_scatter select_scatter msort sort argsort topk searchsorted unique softmax
log_softmax nn.functional.layer_norm nn.functional.group_norm nn.functional.instance_norm nn.functional.batch_norm
nn.functional.cross_entropy nn.functional.mse_loss nn.functional.embedding
nn.functional.scaled_dot_product_attention""".split()
REAL_IN_POLYARR = """logaddexp logsumexp sigmoid var var.unbiased std
std.unbiased var_mean var_mean.unbiased std_mean std_mean.unbiased nn.functional.linear
nn.functional.rms_norm""".split()
COMPLEX = ["imag"]  # in PyTorch
REAL = REAL_IN_PYTORCH + REAL_IN_POLYARR
CASES = [(name, dtype) for name in OURS for dtype in DTYPES if name not in (REAL if dtype in PARTS else COMPLEX)]


@pytest.fixture(scope="module")
def entries():
    """Return op_db by name."""
    return {f"{info.name}.{info.variant_test_name}".rstrip("."): info for info in infos()}


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_sample_of_pytorch(backend, entries, name, dtype):
    if name not in entries:
        pytest.skip(f"PyTorch {torch.__version__} has no samples of {name}")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # which has a second order
        reference = THEIRS.get(name, entries[name].op)
        compared = compare_all(entries[name], reference, OURS[name], backend, dtype)
    assert compared["agree"] or dtype == "float32"


@pytest.mark.parametrize("name", REAL_IN_POLYARR)
def test_polyarr_refuses_complex_numbers(entries, name):
    sample = next(entries[name].sample_inputs("cpu", torch.complex128))
    with pytest.raises((Absent, pa.DtypeError)):
        compare(entries[name].op, OURS[name], sample, None, "complex128", 0)
