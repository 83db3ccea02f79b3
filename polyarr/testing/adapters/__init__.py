"""Adapters: the conformance kit for the functions and the autograd of another framework, on one of its devices.

    polyarr conformance --adapter torch:cpu

An adapter is a Backend whose kernels are the framework's own functions, and whose gradients the framework's own
autograd computes. The kit's checks of values and gradients therefore compare the framework with the kit's references.
An op without a function in the framework is skipped; its decomposition never runs in its place.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.array import flatten
from polyarr.core.backend import Backend, Fused, family_of
from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.core.op import OPS
from polyarr.core.record import nested
from polyarr.core.spec import DTYPES, NARROW
from polyarr.plugins import hookimpl, register_plugin

FAMILY = "adapter"  # of the names of these backends, such as "adapter:torch:cpu"
# Name of a framework -> (module of this package, name of the framework's own package).
FRAMEWORKS = {"torch": ("pytorch", "torch"), "jax": ("xla", "jax"), "keras": ("keras_ops", "keras")}
# Checks of functions and their gradients; the others are about polyarr's own compile, vmap, tape and memory.
CHECKS = frozenset((
    "forward", "special", "alone", "layout", "large", "sweep", "promised", "numbers", "alias", "bounds", "purity",
    "determinism", "lasting", "caches", "threads", "backward", "cotangents", "huge", "crossed", "concurrent",
    *(dtype.name for dtype in DTYPES),
))  # fmt: skip
STEPS = ("relative", "cancelling", "reduction", "layer", "step", "composed", "weighted")  # tolerances of several steps


class Absent(Exception):  # noqa: N818  a call that is left out rather than an error
    """The exception that a function of an adapter raises for a call that the framework has no counterpart of."""


class Framework(NamedTuple):
    """A framework on one device: its functions, its autograd and how data moves.

    Attributes:
        functions: Name of an op -> function (*tensors, **params) of the framework that computes it, with the inputs and
            parameters of a kernel (polyarr/core/backend.py). The views slice, permute_dims and broadcast_to are
            required: the kit lays out its inputs with them.
        vjp: (function of tensors that returns a list of tensors, inputs, cotangents) -> the gradient of each input, by
            the framework's autograd. Results that are not floating-point or complex have no gradient.
        upload: numpy.ndarray -> tensor that owns its memory.
        download: tensor -> C-contiguous numpy.ndarray.
        hardware: One line about the device and the framework's version.
        dtypes: dtypes of the tensors that the framework computes with.
        flushes: dtypes whose denormal numbers may be flushed to 0.
    """

    functions: Mapping[str, Callable[..., Any]]
    vjp: Callable[[Callable[..., list], Sequence[Any], Sequence[Any]], Sequence[Any]]
    upload: Callable[[np.ndarray], Any]
    download: Callable[[Any], np.ndarray]
    hardware: str
    dtypes: frozenset[np.dtype] = frozenset(DTYPES)
    flushes: frozenset[np.dtype] = frozenset()


def backend_of(framework: Framework, name: str) -> Backend:
    """Return the adapter of a framework, a Backend called adapter:NAME."""
    functions, vjp, upload, download, hardware, dtypes, flushes = framework
    kernels = {op: _kernel(functions[op.name], vjp) for op in OPS if op.name in functions}
    named = f"{FAMILY}:{name}"
    return Backend(named, kernels, upload, download, dtypes=dtypes, hardware=hardware, flushes=flushes)


def _kernel(function: Callable[..., Any], vjp: Callable[..., Sequence[Any]]) -> Fused:
    """Return a function of a framework as a Fused kernel whose gradients the framework's autograd computes."""

    @_left_out
    def forward(out: Any, *bufs: Any, **params: Any) -> tuple[Any, tuple]:
        return function(*bufs, **params), ()

    @_left_out
    def backward(g: Any, saved: tuple, *bufs: Any, wanted: tuple, **params: Any) -> tuple:
        leaves, chosen = list(flatten(bufs)), list(flatten(wanted))

        def results(*tensors: Any) -> list:
            members = iter(tensors)
            mixed = [next(members) if want else leaf for leaf, want in zip(leaves, chosen, strict=True)]
            args = nested(bufs, iter(mixed))
            return list(flatten((function(*args, **params),)))

        found = iter(vjp(results, list(compress(leaves, chosen)), list(flatten((g,)))))
        return nested(wanted, iter([next(found) if want else None for want in chosen]))

    return Fused(forward, backward)


def _left_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises Absent where the framework says that it has not implemented a call."""

    @wraps(function)
    def run(*args: Any, **params: Any) -> Any:
        try:
            return function(*args, **params)
        except NotImplementedError as error:
            raise Absent from error

    return run


_checked: ContextVar[list[bool] | None] = ContextVar("polyarr_checked", default=None)  # by the checks of a check


@contextmanager
def leaving_out() -> Iterator[None]:
    """Leave out a check's calls that the framework has no counterpart of; a check may consist of other checks.

    Raises:
        Absent: All calls of the outermost check were left out, so that nothing was checked.
    """
    outer, inner, is_left_out = _checked.get(), list[bool](), False
    token = _checked.set(inner)
    try:
        yield
    except Absent:
        is_left_out = True
    finally:
        _checked.reset(token)
    found = any(inner) if inner else not is_left_out
    if outer is not None:
        outer.append(found)
    elif not found:
        raise Absent


def as_slices(starts: tuple, steps: tuple, shape: tuple) -> tuple[slice, ...]:
    """Return the parameters of the op slice as Python's slices, for libraries that have negative steps."""
    slices = []
    for start, step, n in zip(starts, steps, shape, strict=True):
        end = start + n * step
        slices.append(slice(start, None if end < 0 else end, step) if n else slice(0, 0))
    return tuple(slices)


def absent_if(is_lacking: Callable[[Any], bool], function: Callable) -> Callable:
    """Return a function of matrices that raises Absent for those that the framework does not have it for."""

    def run(x: Any, *others: Any) -> Any:
        if is_lacking(x):
            raise Absent
        return function(x, *others)

    return run


def start(device: str) -> Backend:
    """Return the adapter for a name such as "torch:cpu" or "keras:jax".

    Raises:
        BackendError: There is no such framework or device, or the framework cannot be imported.
    """
    name, _, place = device.partition(":")
    if name not in FRAMEWORKS or not place:
        known = ", ".join(FRAMEWORKS)
        required = f"a framework ({known}), a colon and a device, for keras one of its backends"
        raise BackendError(f"adapter {device!r}; it must be {required}")
    module, package = FRAMEWORKS[name]
    if name == "keras":
        os.environ["KERAS_BACKEND"] = place  # which Keras reads when it is imported
    try:
        importlib.import_module(package)
    except ImportError as error:
        reason = f"{package} cannot be imported ({error}); pip install {package}"
        raise BackendError(f"adapter {device!r}: {reason}") from error
    return backend_of(importlib.import_module(f"{__name__}.{module}").framework(place), device)


class _Plugin:
    """The plugin that starts adapters by name."""

    @hookimpl
    def polyarr_backends(self, register: Callable) -> None:
        register(FAMILY, start, summary="functions and autograd of another framework", api=2)


@cache
def _register() -> None:
    register_plugin(_Plugin(), __name__)


def find(name: str | Backend) -> Backend:
    """Return the backend with a name, as get_backend; names of adapters are known here and nowhere else."""
    if isinstance(name, str) and is_adapter(name):
        _register()
    return get_backend(name)


def is_adapter(name: str) -> bool:
    """Return whether a backend with a name is an adapter."""
    return family_of(name) == FAMILY


def applies(check: str, name: str) -> bool:
    """Return whether a check applies to the backend with a name; to an adapter, only CHECKS do."""
    return not is_adapter(name) or check in CHECKS


def tolerance_of(name: str, kind: str, dtype: np.dtype) -> str:
    """Return the class of tolerances of a result: other frameworks may round 16-bit floats between steps of an op."""
    return "program" if is_adapter(name) and dtype in NARROW and kind in STEPS else kind


def known_differences(device: str) -> Path | None:
    """Return the file of the differences that are known of a framework on a device, if there is one."""
    found = Path(__file__).with_name(f"{device.replace(':', '_')}.toml")
    return found if found.is_file() else None
