"""Checks of everything that kernels are given, for debugging: POLYARR_CHECK_LAUNCHES.

A kernel trusts its caller: it reads a buffer of a wrong dtype or device as if it were right. A Buffer carries its shape
and dtype, so the op can infer again what its result must be. Without the switch there is no overhead: functions are not
wrapped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.core.array import flatten, spec_of
from polyarr.core.backend import Fused
from polyarr.core.errors import BackendError
from polyarr.core.program import Program
from polyarr.core.spec import Spec
from polyarr.settings import is_on

if TYPE_CHECKING:
    from polyarr.backends.opencl.runtime.device import Device


def is_checked() -> bool:
    """Return whether devices that start now are checked."""
    return is_on("POLYARR_CHECK_LAUNCHES")


def checked_launch(name: str, driver: Any, enqueue: Callable[..., Any]) -> Callable[..., Any]:
    """Return `enqueue` wrapped so that it refuses memory of another device.

    Raises:
        BackendError: (the wrapper) An argument is memory of another context than the queue's.
    """

    def launch(queue: Any, work: Any, group: Any, *args: Any) -> Any:
        for i, arg in enumerate(args):
            if isinstance(arg, driver.memory) and driver.is_foreign(arg):
                raise BackendError(
                    f"{name}: argument {i} is memory of another device than {queue.device.name.strip()!r}"
                )
        return enqueue(queue, work, group, *args)

    return launch


def checked_kernels(device: "Device", kernels: dict[Any, Any]) -> dict[Any, Any]:
    """Return a table whose kernels check their inputs and outputs."""
    return {
        op: kernel._replace(
            forward=checked_kernel(device, op, kernel.forward, "forward"),
            backward=checked_backward(device, op, kernel.backward),
        )
        if isinstance(kernel, Fused)
        else checked_kernel(device, op, kernel)
        for op, kernel in kernels.items()
    }


def checked_kernel(device: "Device", op: Any, kernel: Callable[..., Any], part: str = "kernel") -> Callable[..., Any]:
    """Return a kernel, or the forward part of a fused one, that checks its buffers against the op's result.

    Raises:
        BackendError: (the wrapper) A shape, dtype, size or device is wrong, or the result is not what the op infers.
    """

    def run(out: Any, *bufs: Any, **params: Any) -> Any:
        _check_memory(device, op.name, bufs)
        if out != (due := _inferred(op, bufs, params)):
            given = f"{_listed(_specs(bufs))} to make {_listed((out,))} of"
            raise BackendError(f"{op.name}: its kernel was given {given}; the op makes {_listed((due,))} of them")
        found = kernel(out, *bufs, **params)
        if found is not NotImplemented:
            _check(op, "gave", _specs(found[0] if part == "forward" else found), out)
        return found

    return _in_place_of(kernel, run)


def checked_backward(device: "Device", op: Any, backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward kernel that checks the cotangent against the result, and gradients against the inputs.

    Raises:
        BackendError: (the wrapper) As checked_kernel.
    """

    def run(g: Any, saved: Any, *bufs: Any, wanted: tuple[Any, ...], **params: Any) -> Any:
        _check_memory(device, f"{op.name} backward", (g, saved, bufs))
        _check(op, "was given a cotangent", _specs(g), _inferred(op, bufs, params))
        found = backward(g, saved, *bufs, wanted=wanted, **params)
        for name, given, buf in zip(op.inputs, found, bufs, strict=True):
            for one, like in zip(flatten((given,)), flatten((buf,)), strict=given is not None):
                if one is not None:
                    _check(op, f"gave as the gradient of {name}", _specs(one), _specs(like))
        return found

    return _in_place_of(backward, run)


def _in_place_of(kernel: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    found: Any = functools.wraps(kernel)(run)
    found.__wrapped__ = kernel.__wrapped__  # type: ignore[attr-defined]  # the launcher, for code that identifies it
    return found


def _inferred(op: Any, bufs: Any, params: dict[str, Any]) -> Any:
    """Return the Specs that the op infers for its results from the buffers."""
    specs = _specs(bufs)
    given = {**op.defaults, **({"precision": "highest"} if op.has_precision else {}), **params}
    try:
        plan = op.plan(specs, given)
    except (TypeError, ValueError) as error:
        raise BackendError(f"{op.name}: its kernel was given {_listed(specs)}; {error}") from error
    if plan.casts is not None:
        raise BackendError(f"{op.name}: its kernel was given {_listed(specs)}; they must be cast before")
    return plan.out


def _specs(value: Any) -> Any:
    """Return the Specs of buffers, in the same tree."""
    return tuple(map(_specs, value)) if type(value) in (tuple, list) else spec_of(value)


def _check(op: Any, what: str, given: Any, required: Any) -> None:
    if given != required:
        raise BackendError(f"{op.name}: its kernel {what} {_listed((given,))}; it must be {_listed((required,))}")


def _listed(specs: Any) -> str:
    return ", ".join(map(str, flatten(specs)))


def _check_memory(device: "Device", name: str, value: Any) -> None:
    """Check that the buffers in a tree of tuples lie in the device's memory and within their allocations."""
    if type(value) is tuple:
        for member in value:
            _check_memory(device, name, member)
    elif type(value) is Buffer:
        spec = Spec(value.shape, value.dtype)
        if device.driver.is_foreign(value.memory):
            raise BackendError(f"{name}: its kernel was given {spec} in memory of another device than {device.name!r}")
        if type(value.offset) is int and value.size:
            reach = [step * (length - 1) for step, length in zip(value.strides, value.shape, strict=True)]
            first = value.offset + sum(step for step in reach if step < 0)
            last = value.offset + sum(step for step in reach if step > 0)
            if first < 0 or (last + 1) * value.dtype.itemsize > value.memory.size:
                where = f"elements {first} to {last} of {value.memory.size} bytes"
                raise BackendError(f"{name}: its kernel was given {spec} at {where}; it must lie within them")


def check_inputs(device: "Device", program: Program, inputs: Sequence[Any]) -> None:
    """Check that a program's inputs match the captured ones.

    Raises:
        BackendError: A shape, dtype, size or device differs.
    """
    for v, value in zip(program.inputs, inputs, strict=True):
        if type(value) is Buffer and _specs(value) != program.specs.get(v, _specs(value)):
            given, due = _specs(value), program.specs[v]
            raise BackendError(f"{program.name}: input {v} is {given}; it was captured as {due}")
        _check_memory(device, program.name, value)
