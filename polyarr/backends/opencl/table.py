"""The kernel table: Op -> launcher, or a Fused kernel with its VJP."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from polyarr import ops
from polyarr.backends.opencl.attention import attention, cache_update
from polyarr.backends.opencl.convolution import batch_norm, conv, pool
from polyarr.backends.opencl.copying import create, shape
from polyarr.backends.opencl.elementwise import adamw, astype_all, dropout, elementwise, gelu, random
from polyarr.backends.opencl.fft import spectra
from polyarr.backends.opencl.gemm import grouped, linear, matmul, quantized_linear
from polyarr.backends.opencl.indexing import embedding, index, segments
from polyarr.backends.opencl.linalg import cholesky, eigen, elimination, qr
from polyarr.backends.opencl.reductions import global_norm, reduce, scan
from polyarr.backends.opencl.rows import cross_entropy, norm, softmax
from polyarr.backends.opencl.runtime.checking import checked_kernels, is_checked
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.planning import PlanningDevice
from polyarr.backends.opencl.sorting import sort, topk
from polyarr.core.backend import Fused
from polyarr.core.op import Op

KERNELS = {
    **{getattr(ops, name): elementwise.launcher(name) for name in elementwise.EXPRESSIONS},
    ops.where: elementwise.where,
    ops.astype: elementwise.astype,
    ops.complex: elementwise.complex_of_parts,
    ops.real_part: elementwise.real_part,
    ops.imaginary_part: elementwise.imaginary_part,
    ops.conj: elementwise.conj,
    ops.astype_all: astype_all.astype_all,
    ops.fill: create.fill,
    ops.iota: create.iota,
    **{getattr(ops, name): reduce.launcher(name) for name in reduce.JOINS},
    ops.argmax: reduce.argmax,
    ops.argmin: reduce.argmin,
    ops.cumulative_sum: scan.cumulative_sum,
    ops.reshape: shape.reshape,
    ops.permute_dims: shape.permute_dims,
    ops.broadcast_to: shape.broadcast_to,
    ops.slice: shape.slice,
    ops.slice_update: shape.slice_update,
    ops.concat: shape.concat,
    ops.take: index.take,
    ops.take_along_axis: index.take_along_axis,
    ops.scatter: index.scatter,
    ops.scatter_add: index.scatter_add,
    ops.argsort: sort.argsort,
    ops.sort: sort.sort,
    ops.argtopk: topk.argtopk,
    ops.cache_update: cache_update.cache_update,
    ops.grouped_linear: grouped.grouped_linear,
    ops.quantized_grouped_linear: grouped.quantized_grouped_linear,
    ops.quantized_linear: quantized_linear.quantized_linear,
    ops.matrix_product: matmul.matmul,
    ops.matmul: matmul.matmul,
    ops.windows: conv.windows,
    ops.conv_product: conv.conv_product,
    ops.conv_input_gradient: conv.conv_input_gradient,
    ops.conv_weight_gradient: conv.conv_weight_gradient,
    ops.random_bits: random.random_bits,
    ops.dropout: dropout.dropout,
    ops.global_norm: global_norm.global_norm,
    ops.adamw: adamw.adamw,
    ops.cross_entropy_and_gradient: cross_entropy.cross_entropy_and_gradient,
    ops.dft: spectra.dft,
    ops.dft_of_real: spectra.dft_of_real,
    ops.dft_to_real: spectra.dft_to_real,
    ops.cholesky: cholesky.cholesky,
    ops.solve: elimination.solve,
    ops.solve_triangular: elimination.solve_triangular,
    ops.inv: elimination.inv,
    ops.slogdet: elimination.slogdet,
    ops.qr: qr.qr,
    ops.eigh: eigen.eigh,
    ops.svd: eigen.svd,
}

# Scalar inputs that kernels can read from device memory.
READS = {
    ops.slice: ("starts",),
    ops.slice_update: ("starts",),
    ops.adamw: ("lr", "step", "scale"),
    ops.random_bits: ("key", "counter"),
    ops.dropout: ("key", "counter"),
    ops.attention: ("key", "counter"),
}

PAIRS: dict[Op, tuple[Any, ...]] = {
    ops.softmax: (softmax.softmax, softmax.softmax_backward, {"x": ()}),
    ops.log_softmax: (softmax.log_softmax, softmax.log_softmax_backward, {"x": ()}),
    ops.layer_norm: (norm.layer_norm, norm.layer_norm_backward),
    ops.rms_norm: (norm.rms_norm, norm.rms_norm_backward),
    ops.gelu: (gelu.gelu, gelu.gelu_backward),
    ops.linear: (linear.forward, linear.backward, {"x": ("weight",), "weight": ("x",), "bias": ()}),
    ops.conv: (conv.conv, conv.conv_backward, {"x": ("weight",), "weight": ("x",), "bias": ()}),
    ops.max_pool: (pool.max_pool, pool.max_pool_backward, {"x": ()}),
    ops.mean_pool: (pool.mean_pool, pool.mean_pool_backward, {"x": ()}),
    ops.batch_norm: (batch_norm.batch_norm, batch_norm.batch_norm_backward),
    ops.embedding: (embedding.forward, embedding.backward, {"weight": ("indices",)}),
    ops.cross_entropy: (cross_entropy.cross_entropy, cross_entropy.cross_entropy_backward),
    ops.attention: (attention.forward, attention.backward),
}


def make_kernels(device: Device) -> dict[Any, Callable | Fused]:
    """Return the kernel table of one device."""
    plain = {op: following(device, launcher) for op, launcher in KERNELS.items()}
    kernels = plain | {
        op: Fused(following(device, forward), following(device, backward), *needs)
        for op, (forward, backward, *needs) in PAIRS.items()
    }
    return checked_kernels(device, kernels) if is_checked() else kernels


def abstract_kernels(device: Device, kernels: dict[Any, Callable | Fused]) -> dict[Callable, Callable]:
    """Return, by kernel of the device's table, the launcher on a device that computes nothing: see Backend.abstract."""
    planning = PlanningDevice(device)
    return {kernel: following(planning, kernel.__wrapped__) for kernel in kernel_functions(kernels)}  # type: ignore[attr-defined]


def kernel_functions(kernels: dict[Any, Callable | Fused]) -> Iterator[Callable]:
    """Yield the kernels of a table; forward and backward of fused kernels."""
    for kernel in kernels.values():
        yield from kernel[:2] if isinstance(kernel, Fused) else (kernel,)


def following(device: Device, launcher: Callable) -> Callable:
    """Bind a launcher to the device, and track from which threads its arrays come, for reporting faults."""

    faults = device.faults

    @functools.wraps(launcher)
    def kernel(first: Any, *bufs: Any, **params: Any) -> Any:  # first: a Spec, or the cotangent of a backward kernel
        if faults.are_several():
            faults.follow((first, *bufs))
        return launcher(device, first, *bufs, **params)

    return kernel


def precisions(device: Device) -> dict[Any, tuple[str, ...]]:
    """Return the extra precisions of each GEMM op on a device; their kernels may still turn out not to work."""
    convolutions = ops.conv, ops.conv_product, ops.conv_input_gradient, ops.conv_weight_gradient
    products = dict.fromkeys((ops.matrix_product, ops.matmul, ops.linear, *convolutions), device.vendor.gemm)
    by_op = products | {ops.attention: device.vendor.attention}
    return {
        op: ("high",) for op, variants in by_op.items()
        if any(variant.tells_precision and variant.may_suit(device.features) for variant in variants)
    }  # fmt: skip


def unordered(device: Device) -> frozenset[Any]:
    """Return the ops that add in no fixed order on this device."""
    return frozenset({ops.scatter_add, ops.embedding}) if segments.adds_atomically(device) else frozenset()
