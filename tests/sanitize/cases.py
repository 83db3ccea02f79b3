"""Cases for the sanitizer: every op with a kernel, on shapes too small and too irregular to fill a tile."""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import polyarr
from polyarr import ops
from polyarr.backends.opencl.attention import attention
from polyarr.backends.opencl.copying.copy import duplicate, in_whole_rows
from polyarr.backends.opencl.elementwise.elementwise import COMPLEX_EXPRESSIONS, EXPRESSIONS
from polyarr.backends.opencl.gemm.product import Operand, Problem
from polyarr.backends.opencl.nvidia import conv_pieces
from polyarr.backends.opencl.nvidia.attention_split import split, walks
from polyarr.backends.opencl.nvidia.split import DenseOperand, split_product, split_side_by_side
from polyarr.backends.opencl.rows import norm
from polyarr.backends.opencl.tuning.measure import peak_rate
from polyarr.core.errors import MatrixError
from polyarr.core.spec import Spec

WIDE, NARROW = ("float32",), ("float32", "float16", "bfloat16")
BINARY = {name for name, expression in EXPRESSIONS.items() if "y" in expression.replace("copysign", "")}


class Case(NamedTuple):
    """A call: fn, its arrays, and whether its gradient runs, too."""

    name: str
    fn: Callable[..., Any]
    arrays: tuple[Any, ...]
    backward: bool = False


def array(*shape: int, dtype: str = "float32", low: float = 0.5, high: float = 3.0) -> polyarr.Array:
    """Return fixed random numbers between low and high."""
    host = np.random.default_rng(sum(shape)).uniform(low, high, shape)
    return polyarr.asarray(host > (low + high) / 2 if dtype == "bool" else host, dtype=getattr(polyarr, dtype))


def whole(*shape: int, below: int = 4, dtype: str = "int32") -> polyarr.Array:
    """Return fixed random integers from 0 to below."""
    return polyarr.asarray(np.random.default_rng(sum(shape)).integers(0, below, shape), dtype=getattr(polyarr, dtype))


def pairs(*shape: int, dtype: str = "complex64") -> polyarr.Array:
    """Return fixed random complex numbers, whose parts are between 0.5 and 3."""
    return polyarr.asarray(array(*shape).numpy() + 1j * array(*shape[::-1]).numpy().T, dtype=getattr(polyarr, dtype))


def families() -> Iterator[Iterator[Case]]:
    """Yield the cases of each family of ops. No array is in two of them."""
    for family in (elementwise, complex_numbers, layouts, creation, reductions, scans, moves, indices, sorts, matrices):
        yield family()
    yield transforms()
    yield products()
    yield convolutions()
    yield groups()
    yield measurements()
    for dtype in NARROW:
        for family_of in (rows, losses, attentions, decodes, optimizers):
            yield family_of(dtype)


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for family in families():
        yield from family


def measurements() -> Iterator[Case]:
    yield Case("peak", peak, ())
    yield Case("graphs", graph_check, ())


# ---- elementwise -----------------------------------------------------------------------------------------------


def elementwise() -> Iterator[Case]:
    for name in EXPRESSIONS:
        dtypes = ("int32",) if name.startswith("bitwise") else ("bool",) if name.startswith("logical") else WIDE
        if name in ("add", "exp", "maximum", "pow", "remainder", "sign", "tanh"):
            dtypes = (*NARROW, "float64")
        for dtype in dtypes:
            x, y = array(3, 5, dtype=dtype, high=0.9), array(5, dtype=dtype, low=1.0)
            yield Case(f"{name} {dtype}", getattr(ops, name), (x, y) if name in BINARY else (x,))
    for name in ("add", "floor_divide", "remainder", "pow", "abs", "sign"):
        for dtype in ("int8", "uint16", "int64"):
            x, y = whole(3, 5, dtype=dtype), whole(5, below=3, dtype=dtype)
            yield Case(f"{name} {dtype}", getattr(ops, name), (x, y) if name in BINARY else (x,))
    for source, target in (("float32", "int8"), ("int32", "float16"), ("float16", "bool"), ("int64", "bfloat16"),
                           ("float32", "uint64")):  # fmt: skip
        yield Case(
            f"astype {source} {target}", lambda x, t=target: ops.astype(x, dtype=t), (array(3, 7, dtype=source),)
        )


def complex_numbers() -> Iterator[Case]:
    """Yield calls with complex numbers: elementwise ops, and the other kernels that know of them."""
    for name in COMPLEX_EXPRESSIONS:
        x, y = pairs(3, 5), pairs(5)
        yield Case(f"{name} complex64", getattr(ops, name), (x, y) if name in BINARY else (x,))
    for dtype in ("complex64", "complex128"):
        x = pairs(3, 37, dtype=dtype)
        yield Case(f"multiply number {dtype}", lambda x: x[:, 1:] * (2.0 - 1j), (x,))
        yield Case(f"complex {dtype}", ops.complex, (ops.real_part(x), ops.imaginary_part(x)))
        yield Case(f"conj {dtype}", ops.conj, (x,))
        yield Case(f"real_part {dtype}", lambda x: ops.real_part(x) + ops.imaginary_part(x), (x,))
        yield Case(f"astype {dtype} bool", lambda x: ops.astype(x, dtype="bool"), (x,))
        yield Case(f"astype float32 {dtype}", lambda x, t=dtype: ops.astype(x, dtype=t), (array(3, 5),))
        yield Case(f"reshape {dtype}", lambda x: ops.reshape(x, shape=(111,)), (ops.matrix_transpose(x),))
        for op in (ops.sum, ops.prod):
            for axis in (0, 1, (0, 1)):
                yield Case(f"{op.name} {axis} {dtype}", partial(op, axis=axis), (x,))
        yield Case(f"cumulative_sum {dtype}", lambda x: ops.cumulative_sum(x, axis=1), (x,))
        yield Case(f"take {dtype}", lambda x, i: ops.take(x, i, axis=0), (x, whole(4, below=3)))
        yield Case(f"scatter_add {dtype}", lambda x, i: ops.scatter_add(x, i, x, axis=0), (x, whole(3, below=3)))
        yield Case(f"matmul {dtype}", ops.matmul, (x, ops.matrix_transpose(x)))


def layouts() -> Iterator[Case]:
    """Yield calls with Python numbers, broadcasting and views of every kind."""
    x, y = array(4, 5, 3), array(3, 5, 4)
    turned = ops.permute_dims(y, axes=(2, 1, 0))
    strided = x[::2, 1:, ::-1]
    yield Case("where", ops.where, (array(4, 1, 3, dtype="bool"), x, turned))
    yield Case("where number", lambda c, x: ops.where(c, x, 0.0), (array(5, 1, dtype="bool"), x))
    yield Case("add turned", ops.add, (x, turned))
    yield Case("add number", lambda x: 2.0 - x, (strided,))
    yield Case("add broadcast", ops.add, (array(4, 1, 3), array(5, 1)))
    yield Case("add 0-d", ops.add, (array(), array()))
    yield Case("add nothing", ops.add, (array(0, 3), array(3)))
    yield Case("add long", ops.add, (array(1031), array(1031)))
    yield Case("exp five axes", ops.exp, (ops.permute_dims(array(2, 3, 1, 2, 3), axes=(4, 1, 2, 0, 3))[1:, ::-1],))
    for dtype in NARROW:  # transposed in tiles
        for shape in ((35, 19), (2, 33, 70)):
            view = ops.matrix_transpose(array(*shape, dtype=dtype))
            yield Case(f"reshape {dtype} {shape}", lambda x: ops.reshape(x, shape=(x.size,)), (view,))
    for dtype in ("float64", "float16", "int8"):
        view = ops.permute_dims(array(5, 3, dtype=dtype), axes=(1, 0))
        yield Case(f"reshape {dtype}", lambda x: ops.reshape(x, shape=(15,)), (view,))


def creation() -> Iterator[Case]:
    for dtype in (*NARROW, "int8", "int64"):
        yield Case(f"full {dtype}", lambda d=dtype: polyarr.full((3, 5), 2, dtype=getattr(polyarr, d)), ())
        yield Case(f"arange {dtype}", lambda d=dtype: polyarr.arange(0, 77, 7, dtype=getattr(polyarr, d)), ())
    for size in (1, 6, 1100, 1029):
        yield Case(f"random_bits {size}", lambda n=size: ops.random_bits(5, 7, shape=(n,)), ())
    yield Case("random_bits of arrays", lambda key: ops.random_bits(key, 7, shape=(6,)), (whole(),))
    yield Case("arange in floats", counted_in_floats, ())


def counted_in_floats() -> None:
    """Run arange as on a device without float64."""
    device = polyarr.get_backend().upload.__self__
    with patch.object(device, "features", device.features._replace(fp64=False)):
        ops.iota(0.5, 0.1, size=37, dtype=polyarr.float32)


# ---- reductions and scans --------------------------------------------------------------------------------------


def reductions() -> Iterator[Case]:
    for op in (ops.sum, ops.prod, ops.max, ops.min):
        for dtype in (*NARROW, "int8"):
            yield Case(f"{op.name} {dtype}", partial(op, axis=1), (array(3, 37, dtype=dtype),))
    for op in (ops.argmax, ops.argmin):
        for dtype in ("float32", "float16", "int32"):
            yield Case(f"{op.name} {dtype}", partial(op, axis=1), (array(3, 71, dtype=dtype),))
        yield Case(f"{op.name} all", op, (array(3, 5),))
        yield Case(f"{op.name} columns", partial(op, axis=0), (array(7, 5),))
    for shape in ((1,), (5,), (64,), (1100,), (3, 130), (0, 3)):
        yield Case(f"sum all {shape}", ops.sum, (array(*shape),))
    for axis in (0, 1, 2, (0, 2), (1, 2)):
        yield Case(f"sum axis {axis}", lambda x, a=axis: ops.sum(x, axis=a), (array(5, 7, 33),))
        yield Case(f"max axis {axis}", lambda x, a=axis: ops.max(x, axis=a), (array(3, 4, 5)[::-1, :, 1::2],))
    yield from (Case(f"sum columns {n}", partial(ops.sum, axis=0), (array(150, n),)) for n in (35, 72))  # 72: vectors
    yield Case("sum float16 parts", ops.sum, (array(300, dtype="float16"),))


def scans() -> Iterator[Case]:
    for dtype in (*NARROW, "int32"):
        yield Case(
            f"cumulative_sum rows {dtype}", lambda x: ops.cumulative_sum(x, axis=1), (array(3, 21, dtype=dtype),)
        )
    yield Case("cumulative_sum long", lambda x: ops.cumulative_sum(x, axis=0), (array(300),))
    yield Case("cumulative_sum columns", lambda x: ops.cumulative_sum(x, axis=1), (array(2, 5, 67),))


# ---- moving elements -------------------------------------------------------------------------------------------


def moves() -> Iterator[Case]:
    x, y = array(3, 5), array(2, 5)
    yield Case("permute_dims", lambda x: ops.permute_dims(x, axes=(1, 0)) + 1, (x,), backward=True)
    yield Case("reshape", lambda x: ops.reshape(x, shape=(5, 3)) + 1, (x,), backward=True)
    yield Case("broadcast_to", lambda x: ops.broadcast_to(x, shape=(4, 3, 5)) + 1, (x,), backward=True)
    yield Case("slice", lambda x: x[::-2, 1:4] + 1, (x,), backward=True)
    at = polyarr.asarray(2)
    yield Case("slice held", lambda x, i: ops.slice(x, (i, i), steps=(-1, 1), shape=(3, 2)), (x, at), backward=True)
    yield Case("concat", lambda x, y: ops.concat((x, y), axis=0), (x, y), backward=True)
    for dtype in ("float32", "float16", "int8"):
        value = array(2, 2, dtype=dtype)
        yield Case(
            f"slice_update {dtype}", lambda x, v: ops.slice_update(x, v, starts=(2, 1), steps=(-2, 3)),
            (array(3, 5, dtype=dtype), value),
        )  # fmt: skip
        yield Case(
            f"slice_update held {dtype}", lambda x, v, i: ops.slice_update(x, v, starts=(i, 1), steps=(-2, 3)),
            (array(3, 5, dtype=dtype), value, at),
        )  # fmt: skip


def indices() -> Iterator[Case]:
    for dtype in (*NARROW, "int8", "int64"):
        for axis, index in ((0, "int32"), (1, "int64")):
            x, at = array(5, 7, 3, dtype=dtype), whole(9, below=5, dtype=index)
            updates = array(*(9 if a == axis else n for a, n in enumerate(x.shape)), dtype=dtype)
            label = f"{dtype} axis {axis}"
            yield Case(f"take {label}", lambda x, i, a=axis: ops.take(x, i, axis=a), (x, at - 5))
            yield Case(f"scatter {label}", lambda x, i, u, a=axis: ops.scatter(x, i, u, axis=a), (x, at, updates))
            add = lambda x, i, u, a=axis: ops.scatter_add(x, i, u, axis=a)
            yield Case(f"scatter_add {label}", add, (x, at, updates))
    yield Case("scatter few", partial(ops.scatter, axis=0), (array(5, 3), whole(4, below=5), array(4, 3)))
    cache, new = array(2, 3, 2, 5, 4), array(2, 2, 1, 4)
    yield Case("cache_update", ops.cache_update, (cache, new, new, whole(2, below=5)))
    yield Case("take_along_axis", lambda x, i: ops.take_along_axis(x, i, axis=1), (array(3, 5, 2), whole(3, 4, 1)))
    yield Case("take rows of 8", lambda x, i: ops.take(x, i, axis=0), (array(5, 16), whole(40)))
    note = lambda x: x.backend.upload.__self__.build("faults").fault_time((1,), (1,), x.buf.memory, 7)
    yield Case("time of a run", note, (whole(9),))
    yield Case("take nothing", lambda x, i: ops.take(x, i, axis=0), (array(5, 3), whole(0)))
    yield Case(
        "scatter_add many",
        lambda x, i, u: ops.scatter_add(x, i, u, axis=0),
        (array(3, 20), whole(100, below=3), array(100, 20)),
    )
    yield Case("scatter_add few", partial(ops.scatter_add, axis=0), (array(9, 70), whole(7), array(7, 70)))
    yield Case("take empty rows", lambda x, i: ops.take(x, i, axis=0), (array(5, 0), whole(9)))
    yield Case("take out of range", lambda x, i: refused(ops.take, x, i), (array(5, 3), whole(9, below=99)))
    yield Case(
        "scatter_add in any order",
        lambda x, i, u: in_any_order(ops.scatter_add, x, i, u),
        (array(5, 3), whole(40), array(40, 3)),
    )
    for dtype in NARROW:
        weight = array(7, 5, dtype=dtype)
        yield Case(f"embedding {dtype}", lambda w, i: ops.embedding(w, i), (weight, whole(2, 9)), True)


def refused(op: Callable, *arrays: Any) -> None:
    """Call an op whose kernel must note a bad index or matrix."""
    result = polyarr.tree.leaves(op(*arrays))
    try:
        result[0].numpy()
    except (IndexError, MatrixError):
        return
    raise AssertionError("a fault was not reported")


def in_any_order(op: Callable, *arrays: Any) -> Any:
    """Call an op that may add atomically, as if the device had been started with POLYARR_DETERMINISTIC=0."""
    device = polyarr.get_backend().upload.__self__
    device.deterministic = False
    try:
        return op(*arrays)
    finally:
        device.deterministic = True


def sorts() -> Iterator[Case]:
    for dtype in (*NARROW, "float64", "int8", "uint16"):
        for descending in (False, True):
            label = f"argsort {dtype} {'descending' if descending else 'ascending'}"
            yield Case(
                label, lambda x, d=descending: ops.argsort(x, axis=0, descending=d), (array(37, 3, dtype=dtype),)
            )
    yield Case("argsort merges", lambda x: ops.argsort(x), (whole(1, 530, below=9),))
    for dtype in ("int8", "float32"):
        yield Case(f"argsort {dtype} by digits", lambda x: ops.argsort(x), (whole(2, 1100, below=90, dtype=dtype),))
    for n in (37, 530, 1100):
        yield Case(f"sort of {n}", lambda x: ops.sort(x), (whole(2, n, below=90),))
    for shape, k in (((2, 1100), 7), ((3, 200), 7), ((5, 4), 1), ((1, 70), 0), ((2, 6), 5)):
        yield Case(f"topk {k} of {shape}", lambda x, k=k: ops.topk(x, k=k), (array(*shape),))


def matrices() -> Iterator[Case]:
    for dtype, n in ("float32", 3), ("float16", 3), ("float64", 3), ("complex64", 3), ("float32", 6), ("complex64", 6):
        x, sides, label = array(1, n, n, dtype=dtype), array(n, 3, dtype=dtype), f"{dtype} matrix of {n}"
        definite = polyarr.asarray(np.eye(n) + 1, dtype=getattr(polyarr, dtype))
        yield Case(f"cholesky {label}", ops.cholesky, (definite,))
        yield Case(f"solve {label}", ops.solve, (x, sides))
        for op in (partial(ops.solve_triangular, upper=upper) for upper in (False, True)):
            yield Case(f"solve_triangular {op.keywords} {label}", op, (definite, sides))
        yield Case(f"inv {label}", ops.inv, (x,))
        yield Case(f"slogdet {label}", ops.slogdet, (x,))
        yield Case(f"qr {label}", lambda x: ops.qr(x[..., :-1]), (x,))
        yield Case(f"eigh {label}", ops.eigh, (x,))
        yield Case(f"svd {label}", lambda x: ops.svd(x[:, :-1]), (x,))
    yield Case("eigh of equal halves", ops.eigh, (polyarr.asarray(np.eye(16, k=1) + np.eye(16, k=-1)),))
    bad = polyarr.asarray(np.full((2, 3, 3), np.nan, np.float32))
    for op in (ops.cholesky, ops.inv, ops.slogdet, ops.qr, ops.eigh, ops.svd):
        yield Case(f"{op.name} of nan", partial(refused, op), (bad,))


def transforms() -> Iterator[Case]:
    for dtype in ("complex64", "complex128"):
        for n, axis in ((60, 1), (66, 0), (1001, 1), (13, 0), (17, 1), (8, 1)):
            x = pairs(*((n, 5) if axis == 0 else (3, n)), dtype=dtype)
            yield Case(f"dft {dtype} of {n} along {axis}", lambda x, a=axis: ops.dft(x, axis=a, inverse=a == 0), (x,))
        for n in (9, 34, 35):
            x = pairs(3, n // 2 + 1, dtype=dtype)
            yield Case(f"dft to {n} real {dtype}", lambda x, n=n: ops.dft_to_real(x, n=n), (x,))
            real = ops.real_part(pairs(3, n, dtype=dtype))
            yield Case(f"dft of {n} real {dtype}", ops.dft_of_real, (real,))


# ---- groups of ops ---------------------------------------------------------------------------------------------


def groups() -> Iterator[Case]:
    @polyarr.compile
    def joined(x, y, k):
        z = ops.tanh(x * y + k)
        return z, z > y, ops.astype(ops.where(z > y, z, x), dtype=polyarr.float16) * k

    x = array(5, 7, 6)
    layouts = (x, array(1, 6)), (x[::2, ::-1], array(7, 1)), (array(1031), array()), (array(1027)[1:], array(1026))
    for x, y in layouts:
        yield Case(f"group {x.shape}", lambda x=x, y=y: joined(x, y, 0.5), ())
    norm = polyarr.compile(ops.layer_norm.decomposition)
    for shape in ((3, 7), (2, 130), (4, 2, 19), (3, 5), (5, 8)):
        yield Case(f"group of rows {shape}", norm, (array(*shape), array(shape[-1]), array(shape[-1])))

    @polyarr.compile
    def mixed(x, column):
        y = ops.astype(x, dtype=polyarr.float32) * column
        total = ops.sum(y, axis=-1, keepdims=True)
        return total, ops.astype(y - total, dtype=polyarr.float64), y > total, ops.astype(y, dtype=polyarr.float16)

    for length in (4, 9):
        x = ops.permute_dims(array(length, 3, dtype="float16"), axes=(1, 0))
        yield Case(f"group of rows of {length}, mixed", lambda x=x: mixed(x, array(3, 1)), ())


# ---- products --------------------------------------------------------------------------------------------------


def graph_check() -> None:
    """Launch the kernel that compares CUDA graphs with single launches, on few of the elements that it gets there."""
    device = polyarr.get_backend().upload.__self__
    arguments = device.empty_words(8), struct.pack("3i", 5, 6, 7), 0.5, 0
    device.build("graphs").graph_check((4, 2, 1), (2, 2, 1), *arguments)


def peak() -> None:
    """Run the products that measure the peak of the current backend's device."""
    peak_rate(polyarr.get_backend().upload.__self__, np.dtype("float32"))


def whole_rows(x: polyarr.Array) -> None:
    """Copy rows with any multiple of two bytes to the alignment that some products need; the result is compared."""
    copied = in_whole_rows(polyarr.get_backend().upload.__self__, x.buf)
    np.testing.assert_array_equal(polyarr.get_backend().download(copied), x.numpy())


def split_operands(x: polyarr.Array, y: polyarr.Array) -> None:
    """Split both operands of a product into bfloat16 terms, as for Hopper."""
    (m, k), n, device = x.shape, y.shape[0], polyarr.get_backend().upload.__self__
    p = Problem(1, 1, m, n, k, Operand(k, 1, 0, 0), Operand(k, 1, 0, 0))
    for terms in (2, 3):
        split_product(device, p, (True, True), terms)[1]((x.buf.memory, y.buf.memory), (0, 0))


def split_operands_of_attention(q: polyarr.Array, k: polyarr.Array) -> None:
    """Split queries, and keys shared by several heads, into bfloat16 terms."""
    device, y = polyarr.get_backend().upload.__self__, k.buf
    for precision in ("high", "highest"):
        call = attention._call(device, q.shape[:2], (q.buf, y, y, None), (q.buf,), 0, 0, True, 1.0, 0.0, precision)
        split(device, call, walks(call.problem))


def split_rows(x: polyarr.Array, y: polyarr.Array) -> None:
    """Split x into bfloat16 terms next to each other in every row, and y into consecutive ones."""
    device, fours = polyarr.get_backend().upload.__self__, y.size // 4
    first = DenseOperand("x", x.buf.memory, x.size // 4, x.shape[1] // 4)
    for terms in (2, 3):
        split_side_by_side(device, (first, DenseOperand("y", y.buf.memory, fours, fours)), terms, {})


def pieces(x: polyarr.Array) -> None:
    """Split images into pieces of channels, and into two terms of as many numbers."""
    device, cut = polyarr.get_backend().upload.__self__, conv_pieces.cut_of((3, 4, 3, 2), (2, 1), (1, 1))
    for parts in (1, 2):
        conv_pieces.gathered(device, x.buf._replace(shape=(2, 5 // parts, 6, 2)), cut, (3, 5), (2, 1), (1, 1), parts)


def convolutions() -> Iterator[Case]:
    """Yield convolutions with every kind of padding, in groups and depthwise; pools and batch norm."""
    x, where = array(1, 4, 3, 4), {"stride": (2, 1), "padding": ((1, 2), (0, 1)), "dilation": (1, 2)}
    for dtype in NARROW:
        # conv has Fused kernels; conv_product's gradients are two further ops
        kinds = ((ops.conv, "", 5, 1), (ops.conv_product, " in groups", 6, 2), (ops.conv, " depthwise", 4, 4))
        for op, name, n, groups in kinds if dtype == "float32" else kinds[-1:]:
            arrays = array(1, 4, 3, 4, dtype=dtype), array(n, 2, 2, 4 // groups, dtype=dtype)
            yield Case(f"{op.name}{name} {dtype}", partial(op, groups=groups, **where), arrays, backward=True)
        pooled = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True}
        for pool in (ops.max_pool, ops.mean_pool):
            yield Case(f"{pool.name} {dtype}", partial(pool, **pooled), arrays[:1], backward=True)
        rows, channel = array(9, 5, dtype=dtype), array(5, dtype=dtype)
        for activation in (None, "silu"):
            norm = partial(ops.batch_norm, activation=activation)
            name = f"batch_norm {activation or ''} {dtype}"
            yield Case(name, lambda *a, norm=norm: norm(*a)[0], (rows, channel, channel), backward=True)
    for name, shape, kernel in (("runs", (1, 3, 9, 4), (2, 3)), ("long kernels", (1, 2, 12, 4), (1, 9))):
        layer = partial(ops.conv, groups=4, padding="same")
        yield Case(f"depthwise with {name}", layer, (array(*shape), array(4, *kernel, 1)), backward=True)
    is_cpu = polyarr.get_backend().upload.__self__.features.is_cpu  # with kernels for groups; GPUs: a product each
    for channels, groups in ((5, 5), (8, 4), (8, 2), (16, 2)) if is_cpu else ((8, 2),):
        layer = partial(ops.conv, groups=groups, **where)
        arrays = array(1, 3, 2, channels), array(channels, 2, 1, channels // groups)
        yield Case(f"conv of {channels} channels in {groups} groups", layer, arrays, backward=True)
    yield Case("pieces of few channels", pieces, (array(2, 5, 6, 2),))
    yield Case("windows", partial(ops.windows, kernel=2, stride=2), (x,))
    layer = partial(ops.conv, padding=1, activation="gelu")
    yield Case("conv with bias", layer, (x, array(3, 3, 3, 4), array(3)), backward=True)


def products() -> Iterator[Case]:
    yield Case("split operands", split_operands, (array(5, 8), array(3, 8)))
    yield Case("split operands of attention", split_operands_of_attention, (array(2, 3, 5, 24), array(2, 1, 7, 24)))
    yield Case("split rows", split_rows, (array(6, 8), array(2, 4)))
    yield Case("split operands with odd rows", split_operands, (array(5, 7), array(3, 7)))
    for rows, columns in ((3, 7), (4, 8), (2, 1100)):  # the array ends with the last row
        x, dense = array(rows, columns + 1, dtype="bfloat16"), array(rows, columns, dtype="bfloat16")
        yield Case(f"whole rows {rows}x{columns}", lambda a: whole_rows(a), (x[:, 1:],))
        yield Case(f"whole rows {rows}x{columns}, dense", lambda a: whole_rows(a), (dense,))
    for m, k, n in ((5, 7, 9), (33, 17, 35), (8, 16, 12), (1, 37, 5), (6, 37, 1), (3, 5, 40), (5, 0, 6), (7, 70, 5)):
        for form in ("NN", "NT", "TN", "TT"):
            if form != "NN" and (k in (0, 70) or (m == 33 and form != "TT")):
                continue
            x, y = array(*((m, k) if form[0] == "N" else (k, m))), array(*((k, n) if form[1] == "N" else (n, k)))
            x, y = (a if f == "N" else ops.matrix_transpose(a) for a, f in zip((x, y), form, strict=True))
            yield Case(f"matrix_product {form} {m}x{k}x{n}", ops.matrix_product, (x, y))
    for dtype in ("float16", "bfloat16", "float64", "int32", "int8"):
        yield Case(f"matrix_product {dtype}", ops.matrix_product, (array(6, 7, dtype=dtype), array(7, 9, dtype=dtype)))
        yield Case(
            f"matrix_product thin {dtype}", ops.matrix_product, (array(2, 7, dtype=dtype), array(7, 9, dtype=dtype))
        )
    for dtype in ("float32", "float64"):  # in larger tiles: see device.small_tiles
        batches = array(2, 5, 7, dtype=dtype), array(2, 7, 6, dtype=dtype)
        yield Case(f"matrix_product batch {dtype}", ops.matrix_product, batches)
    yield Case("matmul", ops.matmul, (array(7), array(3, 7, 9)))
    yield Case("matrix_product offset", ops.matrix_product, (array(9, 9)[1:7, 2:], array(9, 9)[2:, 1:7]))
    yield Case("matrix_product copied", ops.matrix_product, (array(9, 9)[:, ::2], array(9, 9)[4:, ::2]))
    for dtype in NARROW:
        for activation in (None, "relu", "silu", "gelu", "gelu_tanh") if dtype == "float32" else ("gelu",):
            for shape in ((2, 3, 7), (2, 7)) if activation == "gelu" else ((2, 3, 7),):
                yield Case(
                    f"linear {dtype} {activation} {shape}",
                    lambda x, w, b, a=activation: ops.linear(x, w, b, activation=a),
                    (array(*shape, dtype=dtype), array(9, 7, dtype=dtype), array(9, dtype=dtype)),
                    backward=True,
                )
        for rows in (3, 33) if dtype == "float32" else (3,):
            long = array(rows, 71, dtype=dtype), array(9, 71, dtype=dtype)
            yield Case(f"linear long {dtype} {rows}", ops.linear, long)
    for dtype, rows in (("float32", 1), ("float32", 2), ("float32", 33), ("float16", 1), ("bfloat16", 9)):
        inputs = array(rows, 7, dtype=dtype), whole(5, 7, dtype="int8"), array(5)
        yield Case(f"quantized_linear {dtype} {rows}", ops.quantized_linear, inputs)
        layer = partial(ops.quantized_linear, activation="gelu")
        yield Case(f"quantized_linear with a bias {dtype} {rows}", layer, (*inputs, array(5)))
        for codes in (whole(5, 64, dtype="int8"), whole(5, 32, dtype="uint8")):
            inputs = array(rows, 64, dtype=dtype), codes, array(5, 2, dtype="float16")
            yield Case(f"quantized_linear in blocks {codes.dtype} {dtype} {rows}", ops.quantized_linear, inputs)
    for dtype, rows in (("float32", 1), ("float32", 9), ("float32", 13), ("float16", 3), ("bfloat16", 3)):
        inputs = array(rows, 7, dtype=dtype), array(3, 5, 7, dtype=dtype), whole(rows, below=3)
        yield Case(f"grouped_linear {dtype} {rows}", ops.grouped_linear, inputs, backward=dtype == "float32")
        for codes, blocks in (("int8", ()), ("int8", (2,)), ("uint8", (2,))):
            held = whole(3, 5, 32 if codes == "uint8" else 64 if blocks else 33, dtype=codes)
            x = array(rows, 64 if blocks else 33, dtype=dtype)
            inputs = x, held, array(3, 5, *blocks, dtype="float16"), whole(rows, below=3)
            yield Case(f"quantized_grouped_linear {codes} {dtype} {rows}", ops.quantized_grouped_linear, inputs)
    yield Case("linear without bias", ops.linear, (array(5, 7), array(33, 7)), backward=True)


# ---- rows, losses, attention, optimizers -----------------------------------------------------------------------


def norm_of_a_sum(*arrays: polyarr.Array) -> None:
    """Run a norm of a sum forward, and backward with a gradient that is added."""
    device, (x, y, weight) = polyarr.get_backend().upload.__self__, [a.buf for a in arrays]
    total, (_, saved) = norm.layer_norm_of_sum(device, arrays[0].spec, x, y, weight, weight, eps=0.1)
    wanted = True, True, True
    norm.layer_norm_backward(device, y, saved, total, weight, weight, x, wanted=wanted, eps=0.1)


def rows(dtype: str) -> Iterator[Case]:
    for shape in ((5, 1), (3, 7), (3, 37), (9, 70), (1, 516)) if dtype == "float32" else ((3, 7), (9, 70)):
        x = array(*shape, dtype=dtype)
        weight, bias = array(shape[-1], dtype=dtype), array(shape[-1], dtype=dtype)
        label = f"{dtype} {shape}"
        yield Case(f"softmax {label}", ops.softmax, (x,), backward=True)
        yield Case(f"log_softmax {label}", ops.log_softmax, (x,), backward=True)
        yield Case(f"layer_norm {label}", ops.layer_norm, (x, weight, bias), backward=True)
        yield Case(f"rms_norm {label}", ops.rms_norm, (x, weight), backward=True)
    x = array(3, 4, 5, dtype=dtype)
    yield Case(f"softmax axis 1 {dtype}", lambda x: ops.softmax(x, axis=1), (x,), backward=True)
    yield Case(f"dropout {dtype} of arrays", lambda x, key: ops.dropout(x, key, 4, rate=0.3), (x, whole()))
    yield Case(f"layer_norm plain {dtype}", ops.layer_norm, (x,), backward=True)
    yield Case(f"rms_norm plain {dtype}", ops.rms_norm, (x,), backward=True)
    for shape in ((3, 7), (9, 70)):
        x = array(*shape, dtype=dtype)
        yield Case(f"layer_norm of a sum {dtype} {shape}", norm_of_a_sum, (x, x, array(shape[-1], dtype=dtype)))
    for approximate in ("none", "tanh"):
        yield Case(
            f"gelu {approximate} {dtype}", lambda x, a=approximate: ops.gelu(x, approximate=a), (x,), backward=True
        )
    for shape in ((3, 7), (1, 4100)) if dtype == "float32" else ((3, 7),):
        x = array(*shape, dtype=dtype)
        yield Case(f"dropout {dtype} {shape}", lambda x: ops.dropout(x, 3, 4, rate=0.3), (x,), backward=True)


def losses(dtype: str) -> Iterator[Case]:
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            yield Case(
                f"cross_entropy {reduction} {smoothing} {dtype}",
                lambda x, t, r=reduction, s=smoothing: ops.cross_entropy(
                    x, t, ignore_index=2, reduction=r, label_smoothing=s
                ),
                (array(3, 2, 11, dtype=dtype), whole(3, 2)),
                backward=True,
            )
    rows, wide = array(3, 11, dtype=dtype), array(3)
    yield Case(f"cross_entropy_and_gradient {dtype}", ops.cross_entropy_and_gradient, (wide, rows, whole(3)))
    long = array(3, 600, dtype=dtype), whole(3, dtype="int64")
    yield Case(f"cross_entropy long {dtype}", ops.cross_entropy, long, True)


def attentions(dtype: str) -> Iterator[Case]:
    lengths = ((1, 1, 3, 3, 4, 4), (2, 1, 5, 7, 3, 6), (1, 1, 35, 39, 9, 17))
    for turn, (b, h, t, s, d, e) in enumerate(lengths if dtype == "float32" else lengths[:1]):
        q, k, v = array(b, h, t, d, dtype=dtype), array(b, h, s, d, dtype=dtype), array(b, h, s, e, dtype=dtype)
        masks = (None, array(t, s, dtype="bool"), array(b, 1, t, s, dtype=dtype))
        for i, mask in enumerate(masks if dtype == "float32" and t < 35 else masks[1:2]):
            causal = dtype != "float32" or (turn + i) % 2 == 1
            kind = f"{'no' if mask is None else mask.dtype.name} mask{', causal, dropout' if causal else ''}"
            call = partial(attend, mask=mask, causal=causal)
            yield Case(f"attention {dtype} {t}x{s} {kind}", call, (q, k, v), backward=True)
    if dtype == "float32":
        heads = array(2, 5, 5, 4, dtype=dtype)
        q, k = ops.reshape(heads[:, :4], shape=(2, 2, 2, 5, 4)), heads[:, 3:, None]  # two queries share a key
        yield Case("attention of groups", partial(attend, mask=None, causal=True), (q, k, k), backward=True)


def decodes(dtype: str) -> Iterator[Case]:
    masks = None, array(70, dtype="bool"), array(2, 1, 1, 70, dtype=dtype), array(60, dtype="bool")
    # The second and the last have whole vectors; the last fits into one work-group.
    for mask, (length, columns) in zip(masks, ((37, 76), (40, 72), (5, 20), (8, 16)), strict=True):
        keys = 60 if columns == 16 else 70
        q, k, v = (array(2, 1, *shape, dtype=dtype) for shape in ((1, length), (keys, length), (keys, columns)))
        kind = f"{keys} keys, " + ("no mask" if mask is None else f"{mask.dtype.name} mask")
        yield Case(f"attention {dtype} of one query, {kind}", partial(attend, mask=mask, causal=False), (q, k, v))
    rows = array(1, 2, 3, 1, 37, dtype=dtype), array(1, 2, 3, 1, 20, dtype=dtype)
    caches = array(2, 3, 9, 37, dtype=dtype), array(2, 3, 9, 20, dtype=dtype)
    q = array(2, 3, 1, 37, dtype=dtype)
    yield Case(f"decode attention {dtype} that stores rows", store_and_attend, (q, *caches, *rows))


def store_and_attend(q: polyarr.Array, k: polyarr.Array, v: polyarr.Array, *rows: polyarr.Array) -> None:
    """Store the last rows of keys and values, as captured steps of decoders do."""
    device = polyarr.get_backend().upload.__self__
    caches, spec = [duplicate(device, x.buf) for x in (k, v)], Spec((*q.shape[:3], v.shape[3]), q.dtype)
    given = q.buf, *caches, None, 0, 0, tuple([x.buf for x in rows]), k.shape[2] - 1
    attention.forward_storing(device, spec, *given, causal=False, scale=1.0, dropout_rate=0.0)


def attend(q: Any, k: Any, v: Any, *, mask: Any, causal: bool) -> Any:
    return ops.attention(q, k, v, mask, 1, 2, causal=causal, dropout_rate=0.3 * causal)


def optimizers(dtype: str) -> Iterator[Case]:
    shapes = [(3, 5), (7,), (0,), (1, 4100)] + [(2,)] * 14  # more than one launch handles
    params, grads = ([array(*s, dtype=d) for s in shapes] for d in ("float32", dtype))
    yield Case(f"global_norm {dtype}", lambda *arrays: ops.global_norm(list(arrays)), tuple(grads))
    for target in ("float16", "bfloat16", "float32"):
        yield Case(f"astype_all {dtype} {target}", partial(ops.astype_all, dtype=target), ([*grads, *grads],))
    for decoupled, scale in ((True, 0.5), (False, array())):
        yield Case(
            f"adamw {dtype} {'decoupled' if decoupled else 'L2'}",
            lambda p, g, m, v, scale=scale, decoupled=decoupled: ops.adamw(
                p, g, m, v, 0.1, 3, scale, beta1=0.9, beta2=0.99, eps=1e-8,
                weight_decay=(0.1,) * len(p), decoupled=decoupled,
            ),
            (params, grads, [array(*s) for s in shapes], [array(*s) for s in shapes]),
        )  # fmt: skip
