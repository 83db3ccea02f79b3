"""AdamW, and Adam: one step for many parameters in few launches."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer
from polyarr.backends.opencl.plans import LaunchPlan
from polyarr.backends.opencl.program import types
from polyarr.backends.opencl.rows import blocks_of
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
    on_device = isinstance(scale, Buffer)
    scales = dense(device, scale) if on_device else tensors[0][0]
    dtypes, sizes = tuple([b.dtype for b in (*tensors[0][:3], scales)]), tuple([t[0].size for t in tensors])
    plan = device.plans[_plan](dtypes, sizes, decoupled, on_device)
    args = [*rates, 1.0 if on_device else scale, scales.memory]
    for *buffers, decay in tensors:
        args += [b.memory for b in buffers]
        args += [buffers[0].size, decay * lr if decoupled else decay]
    unused = [*args[9:16], 0, 0.0]  # a place without elements
    plan.kernel(plan.work, plan.group, *args, *unused * (PLACES - len(tensors)))


def _plan(
    device: Device, dtypes: tuple[np.dtype, ...], sizes: tuple[int, ...], decoupled: bool, on_device: bool
) -> LaunchPlan:
    """For the dtypes of parameters, gradients, moments and the scale."""
    p, *others = dtypes
    names = {k: v for letter, dtype in zip("GMS", others, strict=True) for k, v in _names(letter, dtype).items()}
    flags = {"DECOUPLED": int(decoupled), "SCALE_ON_DEVICE": int(on_device)}
    program = device.build("adamw", **types(p), **device.geometry.blocks, **names, **flags)
    group = device.geometry.blocks["GROUP"]
    return LaunchPlan(program.adamw, (group * sum(blocks_of(device, size) for size in sizes),), (group,), ())


def _names(letter: str, dtype: Any) -> dict[str, str]:
    """The macros of one more dtype: letter is its type, LOAD_ and STORE_ take the letter."""
    macros = types(dtype)
    return {letter: macros["T"], f"LOAD_{letter}": macros["LOAD"], f"STORE_{letter}": macros["STORE"]}
