"""An OpenCL device with exact allocations that runs the CPU kernels or the GPU kernels."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.attention import attention_decode, attention_tiled
from polyarr.backends.opencl.copying.copy import download
from polyarr.backends.opencl.fft import passes, spectra, stages
from polyarr.backends.opencl.gemm import grouped, matmul
from polyarr.backends.opencl.indexing import index
from polyarr.backends.opencl.linalg import eigen, jacobi, matrices, triangular, tridiagonal
from polyarr.backends.opencl.reductions import global_norm, reduce
from polyarr.backends.opencl.replay.fusion import fusion_of
from polyarr.backends.opencl.rows import softmax
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.geometry import CpuGeometry, GpuGeometry, geometry_of
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program
from polyarr.backends.opencl.sorting import sort, topk
from polyarr.backends.opencl.table import READS, make_kernels
from polyarr.backends.opencl.tuning import measure
from polyarr.backends.opencl.tuning.tuning import MatmulParams, lookup
from polyarr.core.backend import Backend, Fused
from polyarr.core.spec import DTYPES

IN_LARGER_TILES = 2, 5, 6, 7  # number and lengths of the matrices of the case "matrix_product batch"
KNOWN_AS = {"restrict": ""}  # Oclgrind lacks the instructions that the compiler emits for it


class SanitizedDevice(Device):
    """The interpreter as a CPU or as a GPU, without padding after arrays and without reuse of memory."""

    def __init__(self, *, is_cpu: bool) -> None:
        self._kept: list[cl.Buffer] = []
        super().__init__(cl.get_platforms()[0].get_devices()[0], "oclgrind")
        self.features = self.features._replace(is_cpu=is_cpu)
        self.geometry = geometry_of(self.features)

    def build(self, stem: str, **defines: Any) -> Program:
        return super().build(stem, IS_CPU=int(self.features.is_cpu), **KNOWN_AS, **defines)

    def _allocate(self, nbytes: int) -> Any:
        self._kept.append(cl.Buffer(self.context, cl.mem_flags.READ_WRITE, (nbytes + 3) & ~3))
        return self._kept[-1]

    def scratch(self, nbytes: int) -> Any:
        return self._allocate(nbytes)

    def fill_zero(self, buf: Buffer) -> None:
        """Fill with a kernel: Oclgrind considers memory written by clEnqueueFillBuffer uninitialized."""
        cl.enqueue_copy(self.queue, buf.memory, np.zeros(max(buf.size, 1), buf.dtype))


def shrink() -> None:
    """Split small arrays among several work-items, so that races between work-items appear."""
    CpuGeometry.block, CpuGeometry.span, CpuGeometry.least_part = 64, 8, 16
    CpuGeometry.part, GpuGeometry.part, CpuGeometry.small_view = 512, 256, 8
    CpuGeometry.sort_tile = CpuGeometry.sort_span = 64
    GpuGeometry.sort_tile, GpuGeometry.sort_long, GpuGeometry.sort_merges, sort.DIGIT_GROUP = 64, 1000, 0.5, 16
    GpuGeometry.most_lanes = GpuGeometry.row_share = GpuGeometry.most_held = 8
    GpuGeometry.most_values, GpuGeometry.narrow_lanes, GpuGeometry.norm = 40, 8, {"LANES": 16, "WIDE": 4}
    GpuGeometry.group = GpuGeometry.items_group = GpuGeometry.row_items = 32
    topk.GROUP = topk.CAPACITY = 8
    attention_decode.MAX_WHOLE_KEYS, attention_decode.MAX_ITEMS, attention_decode.ITEMS = 64, 64, 32
    attention_decode.MIN_KEYS = 16
    attention_tiled.GPU_TILES = attention_tiled.GPU_TILES[-2:]  # two rows and two columns per work-item
    global_norm.BLOCK, index.MAX_TILE, grouped.MAX_ROWS_PER_GROUP = 1000, 96, 4
    reduce.COLUMN_VECTORS, reduce.MIN_COLUMN_ROWS = 8, 2
    matrices.TILE_GROUP = matrices.GROUP["gpu"] = 8
    triangular.CHUNK["gpu"] = jacobi.CHUNK["gpu"] = jacobi.CHUNK["cpu"] = 8
    triangular.CHUNK["cpu"] = matrices.PANEL["cpu"] = matrices.PANEL["gpu"] = jacobi.MAX_HALF = 4
    jacobi.SWEEPS = jacobi.SWEEPS_OF_SEVERAL = 4
    eigen.MIN_TRIDIAGONAL, tridiagonal.PANEL, tridiagonal.MAX_LEAF = {"eigh": 5, "svd": 5}, 4, 2
    softmax.MAX_PLAIN_SUM = 500
    spectra.GROUP["gpu"] = spectra.CHUNK["gpu"] = spectra.CHUNK["cpu"] = 8
    stages.LOCAL_BYTES, passes.FINE_BITS = {"cpu": 2**12, "gpu": 2**10}, 3
    matmul.GROUPS_PER_UNIT, matmul.MIN_SLICE_K, matmul.MIN_PACKED_STRIDE = 1, 32, 8
    matmul.MAX_LOCAL_PANELS, matmul.MIN_WORK_PER_THREAD, matmul.MIN_WORK_PER_SHARE = 2048, 512, 64
    measure.PEAK_ROUNDS, measure.REPEATS = 10, 1
    matmul.tiles = small_tiles


def small_tiles(
    device: Device, dtype: np.dtype, form: str, batch: int, m: int, n: int, k: int
) -> tuple[MatmulParams, ...]:
    """Return the shipped tiles; for GPUs only the smallest but in one case: 128 x 64 take a second each."""
    found = lookup(device, dtype)
    return found[-1:] if device.geometry.kind == "gpu" and (batch, m, n, k) != IN_LARGER_TILES else found


def backend_of(device: Device, called: Counter) -> Backend:
    """Return the backend with kernels that count their calls."""
    kernels = {op: counted(kernel, op.name, called) for op, kernel in make_kernels(device).items()}
    return Backend(
        "sanitized", kernels, upload=device.upload, download=partial(download, device),
        synchronize=device.synchronize, reads=READS, fusion=fusion_of(device), dtypes=frozenset(DTYPES),
    )  # fmt: skip


def counted(kernel: Callable | Fused, name: str, called: Counter) -> Any:
    if isinstance(kernel, Fused):
        halves = zip(("forward", "backward"), kernel[:2], strict=True)
        return kernel._replace(**{which: counted(half, f"{name} {which}", called) for which, half in halves})

    def call(*args: Any, **params: Any) -> Any:
        called[name] += 1
        return kernel(*args, **params)

    return call


def launched(device: Device) -> set[str]:
    """Return the names of the kernels that ran, as stem.name."""
    programs = device.programs._programs.items()
    return {f"{key[0]}.{name}" for key, p in programs for name, kernel in p.kernels.items() if kernel.has_run}
