"""AdamW, and Adam: one step for many parameters in few launches."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer
from polyarr.backends.opencl.program import types
from polyarr.backends.opencl.rows import block_launch
from polyarr.core.spec import Spec

PLACES = 12  # parameters per launch; adamw.cl repeats its arguments as often

Buffers = tuple[Buffer, ...]
Specs = tuple[tuple[Spec, ...], ...]


def adamw(
    device: Device, out: Specs, params: Buffers, grads: Buffers, m: Buffers, v: Buffers,
    lr: float, step: int, scale: float | Buffer,
    *, beta1: float, beta2: float, eps: float, weight_decay: tuple[float, ...], decoupled: bool,
) -> tuple[Buffers, Buffers, Buffers]:  # fmt: skip
    """The new parameters, first and second moments; scale multiplies every gradient."""
    inputs = [[dense(device, b) for b in group] for group in (params, grads, m, v)]
    results = [[device.empty(spec) for spec in group] for group in out]
    tensors = list(zip(*inputs, *results, weight_decay, strict=True))
    rates = (beta1, beta2, 1 - beta1, 1 - beta2, eps, lr / (1 - beta1**step), 1 / sqrt(1 - beta2**step))
    by_dtypes: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if tensor[0].size:
            by_dtypes.setdefault(tuple(b.dtype for b in tensor[:3]), []).append(tensor)
    for same in by_dtypes.values():
        for i in range(0, len(same), PLACES):
            _launch(device, same[i : i + PLACES], rates, scale, lr, decoupled)
    new_params, new_m, new_v = map(tuple, results)
    return new_params, new_m, new_v


def _launch(
    device: Device, tensors: Sequence[Any], rates: Sequence[float], scale: float | Buffer, lr: float, decoupled: bool
) -> None:
    p, g, m, *_ = tensors[0]
    acc, group = p.dtype, (device.geometry.blocks["GROUP"],)
    on_device = isinstance(scale, Buffer)
    scales = dense(device, scale) if on_device else p
    program = device.build(
        "adamw", **types(acc), **device.geometry.blocks, **_names("G", g.dtype), **_names("M", m.dtype),
        **_names("S", scales.dtype), DECOUPLED=int(decoupled), SCALE_ON_DEVICE=int(on_device),
    )  # fmt: skip
    args, work = [*rates, 1.0 if on_device else scale, scales.memory], 0
    for *buffers, decay in tensors:
        size = buffers[0].size
        args += [b.memory for b in buffers]
        args += [size, decay * lr if decoupled else decay]
        work += block_launch(device, size)[0][0]
    unused = [*args[9:16], 0, 0.0]  # a place without elements
    program.adamw((work,), group, *args, *unused * (PLACES - len(tensors)))


def _names(letter: str, dtype: Any) -> dict[str, str]:
    """The macros of one more dtype: letter is its type, LOAD_ and STORE_ take the letter."""
    macros = types(dtype)
    return {letter: macros["T"], f"LOAD_{letter}": macros["LOAD"], f"STORE_{letter}": macros["STORE"]}
