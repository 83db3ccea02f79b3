"""einops with arrays of polyarr: `rearrange`, `reduce`, `repeat`, `einsum`, `pack` and `unpack` take them.

einops finds a library by the subclasses of its AbstractBackend. The subclass for polyarr is made when both libraries
are imported, in either order: polyarr does not import einops, but waits until somebody does.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from polyarr import creation, ops
from polyarr.core.array import Array
from polyarr.core.spec import INEXACT

__all__ = ["EinopsBackend", "register_with_einops"]

_registered: list[type] = []  # a class keeps only weak references to its subclasses


class EinopsBackend:
    """The functions that einops calls on a library, for arrays of polyarr."""

    framework_name = "polyarr"

    def is_appropriate_type(self, tensor: Any) -> bool:
        """Return whether this backend computes with a tensor."""
        return isinstance(tensor, Array)

    def from_numpy(self, x: np.ndarray) -> Array:
        """Return a NumPy array as an Array."""
        return creation.asarray(x)

    def to_numpy(self, x: Array) -> np.ndarray:
        """Return the values as a NumPy array."""
        return x.numpy()

    def arange(self, start: int, stop: int) -> Array:
        """Return the integers from start to stop - 1."""
        return creation.arange(start, stop)

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        """Return the elements in another shape."""
        return ops.reshape(x, shape=tuple(shape))

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """Return x with its axes in another order."""
        return ops.permute_dims(x, axes=tuple(axes))

    def reduce(self, x: Array, operation: str, axes: Sequence[int]) -> Array:
        """Return x reduced over axes by "min", "max", "sum", "mean", "prod", "any" or "all"."""
        return getattr(x, operation)(axis=tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: list[Array]) -> Array:
        """Return the arrays stacked along a new first axis."""
        return ops.stack(tensors, axis=0)

    def add_axis(self, x: Array, new_position: int) -> Array:
        """Return x with one more axis, of length 1."""
        return ops.expand_dims(x, axis=new_position)

    def add_axes(self, x: Array, n_axes: int, pos2len: Mapping[int, int]) -> Array:
        """Return x repeated along new axes, whose lengths are given by position in the result of n_axes axes."""
        x = ops.expand_dims(x, axis=tuple(pos2len))
        return ops.broadcast_to(x, shape=tuple(pos2len.get(i, n) for i, n in enumerate(x.shape)))

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        """Return x repeated as a whole along each axis."""
        return ops.tile(x, repetitions=tuple(repeats))

    def concat(self, tensors: list[Array], axis: int) -> Array:
        """Return the arrays joined along an axis."""
        return ops.concat(tensors, axis=axis)

    def is_float_type(self, x: Array) -> bool:
        """Return whether the dtype is floating-point or complex."""
        return x.dtype in INEXACT

    def einsum(self, pattern: str, *x: Array) -> Array:
        """Return the sum of products that a pattern of one-letter axes describes."""
        return ops.einsum(pattern, *x)


def register_with_einops() -> None:
    """Register polyarr with einops, if it is imported and still finds libraries this way; once only."""
    abstract = getattr(sys.modules.get("einops._backends"), "AbstractBackend", None)
    if abstract is not None and not _registered:
        _registered.append(type("PolyarrBackend", (EinopsBackend, abstract), {}))


class _AtImport:
    """Finder of modules that calls a function after a module has been imported, and finds none itself.

    Args:
        name: Name of the module.
        then: Function to call.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders have for the module; None for any other module."""
        if name != self._name:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch() -> None:
    """Register with einops now if it is imported, else when it is."""
    if "einops._backends" in sys.modules:
        register_with_einops()
    else:
        sys.meta_path.insert(0, _AtImport("einops", register_with_einops))


_watch()
