"""One step of AdamW or Adam for many parameters, in few launches."""

import struct
from functools import lru_cache
from math import inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.rows.rows import wide
from polyarr.backends.opencl.runtime.commands import InPlace
from polyarr.backends.opencl.runtime.device import Device, allocation_of
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.core.number import evaluate
from polyarr.core.spec import Spec, float64

MAX_PARAMS = 12  # parameters per launch: adamw.cl has as many sets of arguments
# Arguments of adamw.cl that may share memory: (old, new) of each parameter and of its two moments.
IN_PLACE = tuple(InPlace(7 * k + old, 7 * k + new) for k in range(MAX_PARAMS) for old, new in ((0, 4), (2, 5), (3, 6)))
LETTERS = ("L", "N", "S")  # for lr, step and scale in the macros of adamw_scalars.cl

Buffers = tuple[Buffer, ...]
Specs = tuple[tuple[Spec, ...], ...]
Number = float | Buffer


class Part(NamedTuple):
    """One launch: the indices and sizes of its parameters, and the dtype of its arithmetic."""

    launch: LaunchPlan
    members: tuple[int, ...]
    sizes: tuple[int, ...]
    acc: np.dtype


class Plan(NamedTuple):
    """Launch parameters of a step: strides of dense parameters, memory sizes of the results, and the launches."""

    strides: tuple[tuple[int, ...], ...]
    rooms: tuple[tuple[Any, ...], ...]
    parts: tuple[Part, ...]


def adamw(
    device: Device, out: Specs, params: Buffers, grads: Buffers, m: Buffers, v: Buffers,
    lr: Number, step: Number, scale: Number,
    *, beta1: float, beta2: float, eps: float, weight_decay: tuple[float, ...], decoupled: bool,
) -> tuple[Buffers, Buffers, Buffers]:  # fmt: skip
    """Return the new parameters, first moments and second moments; scale multiplies every gradient."""
    scalars, logs = (lr, step, scale), [log(beta) if beta else -inf for beta in (beta1, beta2)]
    on_device = any(type(n) is Buffer for n in scalars)
    dtypes = tuple([g.dtype for g in grads])
    plan, rates = device.plans[_plan](out, dtypes, decoupled, on_device), (beta1, beta2, eps)
    inputs = [
        [b if b.strides == s and not b.offset else dense(device, b) for b, s in zip(group, plan.strides, strict=True)]
        for group in (params, grads, m, v)
    ]
    results = [device.fresh_all(specs, rooms) for specs, rooms in zip(out, plan.rooms, strict=True)]
    memories = list(zip(*[[b.memory for b in group] for group in (*inputs, *results)], strict=True))
    compute = _device_scalars if on_device else _host_scalars
    found = {acc: compute(device, acc, scalars, logs) for acc in {p.acc for p in plan.parts}}
    for part in plan.parts:
        args = [memory for i in part.members for memory in memories[i]]
        unread = results[0][part.members[0]].memory  # placeholder for unused argument slots
        args += [unread] * 7 * (MAX_PARAMS - len(part.members))
        fixed = _fixed(part.acc, part.sizes, tuple([weight_decay[i] for i in part.members]), rates)
        changing, at = found[part.acc]
        part.launch.kernel(part.launch.work, part.launch.group, *args, fixed, *changing, at or unread)
    return tuple(map(tuple, results))  # type: ignore[return-value]


# ---- scalars that change from step to step -------------------------------------------------------------------------


def _host_scalars(device: Device, acc: np.dtype, scalars: tuple, logs: list[float]) -> tuple[tuple[float, ...], Any]:
    """Compute the scalar arguments of the kernel on the host; adamw_scalars.cl has the same formulas."""
    lr, step, scale = scalars
    return (evaluate(_step_size, lr, step, logs[0]), evaluate(_root, step, logs[1]), scale, lr), None


def _step_size(lr: float, step: float, log_beta: float) -> float:
    return lr / -np.expm1(step * log_beta)


def _root(step: float, log_beta: float) -> float:
    return 1 / sqrt(-np.expm1(step * log_beta))


def _device_scalars(device: Device, acc: np.dtype, scalars: tuple, logs: list[float]) -> tuple[tuple[float, ...], Any]:
    """Compute the scalar arguments on the device, for steps whose lr, step or scale is an array."""
    result, args = device.empty(Spec((4,), acc)), []
    given = [dense(device, n) if type(n) is Buffer else n for n in scalars]
    for n in given:
        args += [0, n.memory] if type(n) is Buffer else [n, result.memory]
    kernel = device.plans[_scalars_kernel](acc, *[n.dtype if type(n) is Buffer else None for n in given])
    kernel((1,), (1,), *args, *logs, result.memory)
    return (0.0,) * 4, result.memory


def _scalars_kernel(device: Device, acc: np.dtype, *dtypes: np.dtype | None) -> Any:
    """Return the kernel that computes the scalars from arrays of these dtypes; None for a scalar that is a number."""
    macros: dict[str, Any] = {"ACC": types(acc)["ACC"], "WIDE": "double" if device.features.fp64 else "float"}
    for letter, dtype in zip(LETTERS, dtypes, strict=True):
        macros |= {f"{letter}_ON_DEVICE": int(dtype is not None), **_dtype_macros(letter, dtype or acc)}
    return device.build("adamw_scalars", **macros).adamw_scalars


def _plan(device: Device, out: Specs, grads: tuple[np.dtype, ...], decoupled: bool, on_device: bool) -> Plan:
    rooms = tuple(tuple(allocation_of(device, spec) for spec in specs) for specs in out)
    by_dtypes: dict[Any, list[int]] = {}
    for i, (p, m, _) in enumerate(zip(*out, strict=True)):
        if p.size:
            by_dtypes.setdefault((p.dtype, grads[i], m.dtype), []).append(i)
    parts = []
    for dtypes, members in by_dtypes.items():
        for first in range(0, len(members), MAX_PARAMS):
            some = tuple(members[first : first + MAX_PARAMS])
            sizes = tuple(out[0][i].size for i in some)
            launch = _launch(device, dtypes, sizes, DECOUPLED=int(decoupled), SCALARS_ON_DEVICE=int(on_device))
            parts.append(Part(launch, some, sizes, wide(dtypes[0])))
    return Plan(tuple(strides for _, strides in rooms[0]), rooms, tuple(parts))


@lru_cache(maxsize=256)
def _fixed(acc: np.dtype, sizes: tuple[int, ...], decay: tuple[float, ...], betas: tuple[float, float, float]) -> bytes:
    """Pack the struct Fixed of adamw.cl: the arguments that rarely change between steps."""
    beta1, beta2, eps = betas
    unused, letter = [0] * (MAX_PARAMS - len(sizes)), "d" if acc == float64 else "f"
    rates = (beta1, beta2, 1 - beta1, 1 - beta2, eps, 0)
    return struct.pack(f"{MAX_PARAMS}q{MAX_PARAMS + len(rates)}{letter}", *sizes, *unused, *decay, *unused, *rates)


def _launch(device: Device, dtypes: tuple[np.dtype, ...], sizes: tuple[int, ...], **flags: Any) -> LaunchPlan:
    """Plan one launch, for the dtypes of parameters, gradients and moments."""
    p, g, m = dtypes
    blocks = device.geometry.blocks(max(dtype.itemsize for dtype in dtypes))
    for letter, dtype in zip("PGM", dtypes, strict=True):
        flags |= vector_types(dtype, blocks["VECTOR"], f"{letter}_")
    program = device.build("adamw", **types(p), **blocks, **_dtype_macros("G", g), **_dtype_macros("M", m), **flags)
    count, program.adamw.in_place = sum(-(-size // blocks["BLOCK"]) for size in sizes), IN_PLACE
    return LaunchPlan(program.adamw, (blocks["GROUP"] * count,), (blocks["GROUP"],), ())


def _dtype_macros(letter: str, dtype: Any) -> dict[str, str]:
    """Return the macros of an additional dtype: <letter>, LOAD_<letter> and STORE_<letter>."""
    macros = types(dtype)
    return {letter: macros["T"], f"LOAD_{letter}": macros["LOAD"], f"STORE_{letter}": macros["STORE"]}
