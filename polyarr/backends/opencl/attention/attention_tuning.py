"""Attention as `polyarr tune` sees it: candidates, checks and timings."""

import random
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.attention.attention import Saved, backward, forward
from polyarr.backends.opencl.attention.attention_reference import attention
from polyarr.backends.opencl.attention.attention_tiled import (
    LOCAL_MEMORY,
    CpuTile,
    GpuTile,
    cpu_bytes,
    gpu_bytes,
    shape_class,
    tiles,
)
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.tuning.tuned import Case, Tunable
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec
from polyarr.core.tuning import Work

FORMS = ("forward", "backward")
TILES: dict[str, type[CpuTile] | type[GpuTile]] = {"cpu": CpuTile, "gpu": GpuTile}
SMALL = (2, 64, 96), (3, 37, 53)  # heads, queries, keys
HEADS_OF_CORE, ROWS_ON_CPU = 4, 512  # upper limits of what is timed
MAX_SUMS = 32  # sums that a work-item of a GPU keeps in registers
ERRORS = {"float32": 3e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 3e-3}


def _case(work: Work) -> Case:
    """Return causal attention, or its gradients alone with forward's results taken from the reference."""
    heads, t, s, length = work.shape
    dtype, generator, scale = np.dtype(work.dtype), np.random.default_rng(0), length**-0.5
    q, k, v, g = (
        generator.standard_normal((heads, rows, length), np.float32).astype(dtype) for rows in (t, s, s, t)
    )
    parameters: dict[str, Any] = {"causal": t <= s, "scale": scale, "dropout_rate": 0.0}
    reference = attention(q, k, v, g, None, t <= s, scale)
    if work.form == "forward":

        def run(device: Device, buffers: list[Buffer]) -> tuple[Buffer, ...]:
            q, k, v = buffers
            return (forward(device, Spec((heads, t, length), dtype), q, k, v, None, 0, 0, **parameters)[0],)

        return Case([q, k, v], run, lambda: (reference.out,), ERRORS[work.dtype])

    def pull(device: Device, buffers: list[Buffer]) -> tuple[Buffer, ...]:
        q, k, v, g, out, lse = buffers
        wanted = (True,) * 3 + (False,) * 3
        found = backward(device, g, Saved(out, lse, False), q, k, v, None, 0, 0, wanted=wanted, **parameters)[:3]
        return tuple(each for each in found if each is not None)

    saved = reference.out.astype(dtype), reference.lse.astype(np.promote_types(dtype, np.float32))
    return Case([q, k, v, g, *saved], pull, lambda: reference[2:], ERRORS[work.dtype])


def _fitting(device: Device, work: Work, found: dict[str, Any]) -> Any:
    kind = TILES[device.geometry.kind]
    if found.keys() != set(kind._fields) or not all(type(v) is int and 0 < v <= 1024 for v in found.values()):
        return None
    tile = kind(**found)
    return tile if _fits(device, work, tile) else None


def _fits(device: Device, work: Work, tile: CpuTile | GpuTile) -> bool:
    """Return whether the tile divides evenly and fits into local memory."""
    itemsize, is_backward = max(4, np.dtype(work.dtype).itemsize), work.form == "backward"
    lengths = work.shape[-1], work.shape[-1]
    if isinstance(tile, CpuTile):
        whole = not any(side % step for side in tile[:2] for step in (tile.LANES * tile.VECTORS, tile.ROWS))
        return (
            whole and tile.LANES in (2, 4, 8, 16)
            and cpu_bytes(tile, itemsize, lengths, is_backward) <= device.features.local_memory
        )  # fmt: skip
    whole = not tile.OWN % tile.TY and not tile.STREAM % tile.TX and tile.TX * tile.TY <= device.features.max_work_group
    available = min(device.features.local_memory, LOCAL_MEMORY)
    return whole and gpu_bytes(tile, itemsize, lengths, is_backward) <= available


def _space(device: Device, work: Work) -> Iterator[CpuTile | GpuTile]:
    """Yield tiles whose sums fit into registers, in a reproducible order."""
    found: list[Any] = list({"cpu": _cpu_space, "gpu": _gpu_space}[device.geometry.kind](device, work))
    random.Random(0).shuffle(found)  # so that runs that end early still sample the whole space
    yield from (tile for tile in found if _fits(device, work, tile))


def _cpu_space(device: Device, work: Work) -> Iterator[CpuTile]:
    sides, lanes = (16, 32, 64, 128), max(2, vector_width(device) * 4 // max(4, np.dtype(work.dtype).itemsize))
    registers = 32 if vector_width(device) == 16 else 16
    for queries, keys, rows, vectors in product(sides, sides, (4, 6, 8), (1, 2, 3, 4)):
        if 4 <= rows * vectors and (rows + 1) * vectors < registers:
            yield CpuTile(queries, keys, rows, lanes, vectors)


def _gpu_space(device: Device, work: Work) -> Iterator[GpuTile]:
    for own, stream, across, down in product((16, 32, 64, 128), (16, 32, 64), (8, 16), (8, 16)):
        if 2 <= own // down * (stream // across) <= MAX_SUMS:
            yield GpuTile(own, stream, across, down)


def _small(device: Device, work: Work) -> tuple[Work, ...]:
    return tuple(work._replace(shape=(*shape, work.shape[-1])) for shape in SMALL)


def _timed(device: Device, work: Work) -> Work:
    if not device.geometry.is_timed_in_part:
        return work
    heads, *rows, length = work.shape
    heads = min(heads, HEADS_OF_CORE * device.features.compute_units)
    return work._replace(shape=(heads, *(min(n, ROWS_ON_CPU) for n in rows), length))


def _shape(device: Device, work: Work) -> str:
    _, t, s, length = work.shape
    return shape_class(t, s, (length, length), work.form == "backward")


def _operations(work: Work) -> int:
    """Return the operations of the products, as if no score were masked."""
    return prod(work.shape) * (4 if work.form == "forward" else 10)


TUNABLE = Tunable(
    "attention", FORMS, tiles,
    stem=lambda device: f"attention_{device.geometry.kind}",
    fitting=_fitting, space=_space, small=_small, timed=_timed, shape=_shape, case=_case, operations=_operations,
)  # fmt: skip
