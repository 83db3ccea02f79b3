"""All ops, and the operators and methods that Array (and Spec, for inference) gets from them."""

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarr.core.array import NUMBERS, Array, values_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.names import HINTS, answer_attribute, renamed
from polyarr.core.op import Op
from polyarr.core.spec import Spec, described, shown
from polyarr.core.tape import check_unrecorded
from polyarr.ops import catalogue, inner
from polyarr.ops.catalogue import *
from polyarr.ops.create import empty_like, full_like, ones_like, zeros_like
from polyarr.ops.getitem import get_item, nonzero, set_item
from polyarr.ops.inner import *
from polyarr.ops.linalg import einsum
from polyarr.ops.shape import broadcast_arrays, broadcast_shapes, one_axis
from polyarr.version import ARRAY_API_VERSIONS

__all__ = [
    "broadcast_arrays", "broadcast_shapes", "einsum", "empty_like", "full_like", "get_item", "nonzero", "ones_like",
    "set_item", "zeros_like",
]  # fmt: skip
__all__ += catalogue.__all__
__all__ += inner.__all__


def _power(x: Any, y: Any) -> Any:
    return square(x) if type(y) in (int, float) and y == 2 else pow(x, y)


BINARY: dict[str, Callable] = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": divide,
    "floordiv": floor_divide,
    "mod": remainder,
    "pow": _power,
    "matmul": matmul,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": bitwise_left_shift,
    "rshift": bitwise_right_shift,
}
COMPARISONS = {"eq": equal, "ne": not_equal, "lt": less, "le": less_equal, "gt": greater, "ge": greater_equal}
REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}  # others: "r" + name
UNARY = {"neg": negative, "pos": positive, "abs": abs, "invert": bitwise_invert}
# Methods that the arrays of NumPy, PyTorch and MLX have in common; everything else is a function.
NAMED = (all, any, argmax, argmin, max, mean, min, prod, squeeze, std, sum, var)


OPERANDS = {Array, Spec, *NUMBERS}
OF_NUMBERS = (np.ndarray, np.generic, list, tuple)  # ops accept these, or raise an error that says what to do


def _is_foreign(other: Any, reflected: str) -> bool:
    """Return whether an operand is of another library, and may have an operator for arrays."""
    if type(other) in OPERANDS or isinstance(other, OF_NUMBERS) or hasattr(type(other), "polyarr_op"):
        return False
    if reflected in ("__eq__", "__ne__") and hasattr(type(other), "__dlpack__"):
        return False  # every object has these two; Python would call another library's array unequal
    return hasattr(type(other), reflected)


def _forward(name: str, op: Callable) -> Callable:
    reflected = f"__{REFLECTED.get(name, f'r{name}')}__"

    def method(self: Any, other: Any) -> Any:
        if type(other) not in OPERANDS and _is_foreign(other, reflected):
            return NotImplemented
        return op(self, other)

    return method


def _reflected(op: Callable) -> Callable:
    return lambda self, other: op(other, self)


def _unary(op: Callable) -> Callable:
    return lambda self: op(self)


def _named(op: Op) -> Callable:
    """Return the op as a method: x.sum(axis=0) for sum(x, axis=0)."""

    def method(self: Array, *args: Any, **params: Any) -> Any:
        if "out" in params:  # numpy.sum(x) calls x.sum with all arguments that ndarray.sum has
            unused = {"out": None, "dtype": None, "ddof": 0}
            params = {n: v for n, v in params.items() if n in op.defaults or n not in unused or v != unused[n]}
        return op(self, *args, **params)

    method.__doc__ = op.__doc__
    method.__signature__ = inspect.signature(op)  # type: ignore[attr-defined]
    return method


def _in_place(name: str, op: Callable) -> Callable:
    reflected = f"__r{name}__"

    def update(self: Array, other: Any) -> Any:
        if _is_foreign(other, reflected):
            return NotImplemented
        found = op(self, other)
        if type(found) not in (Array, Spec):  # `other` took over the call by polyarr_op
            return found
        if found.spec != self.spec:
            error, cast = (ShapeError, "") if found.shape != self.shape else (DtypeError, ", so cast one of the two")
            raise error(f"{name}: the result is {found.spec}; in place it must stay {self.spec}{cast}")
        self.rebind(found)
        return self

    return update


def _give(kind: type, name: str, method: Any) -> None:
    """Set a method under a name; its __name__ appears in Python's own errors of a wrong call."""
    if getattr(method, "__module__", "") == __name__:
        method.__name__, method.__qualname__ = name, f"Array.{name}"
    setattr(kind, name, method)


for _kind in (Array, Spec):  # an op runs on Specs too: that is inference
    _give(_kind, "astype", lambda self, dtype: astype(self, dtype=dtype))
    for _name, _op in BINARY.items():
        _give(_kind, f"__{_name}__", _forward(_name, _op))
        _give(_kind, f"__r{_name}__", _reflected(_op))
    for _name, _op in UNARY.items():
        _give(_kind, f"__{_name}__", _unary(_op))
    for _named_op in NAMED:
        _give(_kind, _named_op.name, _named(_named_op))
for _name, _op in COMPARISONS.items():
    _give(Array, f"__{_name}__", _forward(_name, _op))
for _name, _op in BINARY.items():
    _give(Array, f"__i{_name}__", _in_place(_name, _op))


# ---- the protocols of Python, NumPy and other array libraries -----------------------------------------------------


def _scalar(x: Array, asked: str, kind: str = "number") -> Any:
    if x.size != 1:
        raise TypeError(f"{asked}: x is {x.spec}; only an array with one element converts to a Python {kind}")
    return values_of(x).reshape(()).item()


def _iterate(x: Array) -> Iterator[Array]:
    if not x.shape:
        raise TypeError(f"iteration: x is {x.spec}; an array without axes cannot be iterated over")
    return _elements(x.snapshot())  # iter(x) alone, as in np.iterable(x), computes nothing


def _elements(x: Array) -> Iterator[Array]:
    yield from unstack(x)


def _length(x: Array) -> int:
    if not x.shape:
        raise TypeError(f"len: x is {x.spec}; an array without axes has no length")
    return x.shape[0]


def _repr(x: Array) -> str:
    text = np.array2string(values_of(x), separator=", ", prefix="Array(", threshold=1000)
    shape = "" if x.size else f"shape={x.shape}, "  # an empty array shows no elements
    return f"Array({text}, {shape}{x.dtype.name}, {x.backend.name!r})"


def _index(x: Array) -> int:
    if x.shape or x.dtype.kind not in "iu":
        raise TypeError(f"index: x is {x.spec}; only an integer array without axes can be an index")
    return int(values_of(x))


def _array(x: Array, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    if copy is False:
        raise ValueError("numpy.asarray: a polyarr array cannot be viewed without a copy; leave copy out")
    check_unrecorded("numpy.asarray", x)
    return values_of(x) if dtype is None else values_of(x).astype(dtype)


def _ufunc(x: Array, ufunc: np.ufunc, method: str, *inputs: Any, **params: Any) -> Any:
    """Run the op of the same meaning as a ufunc of NumPy: of numpy.exp(x), and of number * x for a number of NumPy."""
    if not isinstance(ufunc, np.ufunc):
        raise TypeError(f"Array.__array_ufunc__: ufunc is {described(ufunc)}; it must be a ufunc of NumPy")
    name = ufunc.__name__
    code = HINTS["polyarr"].get(name, f"pa.{name}")
    op = getattr(catalogue, code.removeprefix("pa."), None)
    if op is not None and method == "__call__" and not params:
        # NumPy makes arrays without axes of its scalars in comparisons.
        return op(*(a[()] if type(a) is np.ndarray and not a.ndim else a for a in inputs))
    called = f"numpy.{name}" if getattr(np, name, None) is ufunc else name  # other libraries have ufuncs, too
    ours = f" {code}, or" if op is not None or name in HINTS["polyarr"] else ""
    if method != "__call__":
        hints = HINTS["polyarr"]
        at = {"add": "pa.scatter_add(x, i, y)", "maximum": hints["segment_max"], "minimum": hints["segment_min"]}
        ours = f" {at[name]}, or" if method == "at" and name in at else ""
        called = f"{called}.{method}"
    given = f" with {', '.join(params)}" if params else ""
    raise TypeError(f"{called}: got a polyarr array{given}; write{ours} {called}(x.numpy())")


def _transpose(x: Array) -> Array:
    if x.ndim != 2:
        raise ShapeError(f"T: x is {x.spec}; it must have two axes, use .mT or permute_dims")
    return matrix_transpose(x)


def _item(x: Array) -> Any:
    """Return the only element as a Python number."""
    return _scalar(x, "item")


def _one_by_one(given: tuple) -> Any:
    """Return arguments given as one tuple, or one by one, as a tuple."""
    return given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _reshaped(x: Array, *shape: Any) -> Array:
    """Return the elements in another shape, as polyarr.reshape; lengths may be given one by one."""
    return reshape(x, shape=_one_by_one(shape))


def _transposed(x: Array, *axes: Any) -> Array:
    """Return x with its axes in another order, as polyarr.permute_dims; without arguments in reverse."""
    return permute_dims(x, axes=_one_by_one(axes) if axes else tuple(reversed(range(x.ndim))))


def _swapped(x: Array, axis1: int, axis2: int) -> Array:
    """Return x with two axes swapped."""
    order = list(range(x.ndim))
    i, j = (one_axis("swapaxes", x, axis) for axis in (axis1, axis2))
    order[i], order[j] = j, i
    return permute_dims(x, axes=tuple(order))


def _flattened(x: Array) -> Array:
    """Return the elements along one axis, in row-major order."""
    return reshape(x, shape=(-1,))


def _format(x: Array, spec: str) -> str:
    """Format the only element as Python does, as in f"{loss:.4f}"; without a format, return str(x)."""
    return format(_scalar(x, f"format {spec!r}"), spec) if spec else str(x)


def _round(x: Array, digits: int | None = None) -> Any:
    """Return the only element as a Python number, rounded by Python, as in round(loss, 3)."""
    return builtins.round(_scalar(x, "round"), digits)


def _namespace(x: Array, api_version: str | None = None) -> Any:
    if api_version is not None and api_version not in ARRAY_API_VERSIONS:
        known = ", ".join(ARRAY_API_VERSIONS)
        raise ValueError(f"__array_namespace__: api_version is {shown(api_version)}; it must be one of {known}")
    return sys.modules["polyarr"]


def _to_device(x: Array, device: str, *, stream: Any = None) -> Array:
    """Return the values on the backend called device: the name of Array.to in the array API standard.

    Backends order their own work, so there is no stream to give.
    """
    if stream is not None:
        raise ValueError(f"to_device: stream is {shown(stream)}; backends have no streams to choose, leave it out")
    return x.to(device)


def _assign(x: Array, key: Any, value: Any) -> None:
    found = set_item(x, key, value)
    if type(found) is not Array:
        raise TypeError(f"x[key] = value: what took over the call gave {described(found)}; it must give an array")
    x.rebind(found)


METHODS = {
    "__getitem__": get_item,
    "__setitem__": _assign,
    "__bool__": lambda self: bool(_scalar(self, "bool", "bool")),
    "__int__": lambda self: int(_scalar(self, "int", "int")),
    "__float__": lambda self: float(_scalar(self, "float", "float")),
    "__complex__": lambda self: builtins.complex(_scalar(self, "complex", "complex")),
    "__index__": _index,
    "__len__": _length,
    "__iter__": _iterate,
    "__repr__": _repr,
    "__array__": _array,
    "__array_ufunc__": _ufunc,
    "__array_namespace__": _namespace,
    "__copy__": Array.snapshot,  # the buffer never changes, so a copy is another handle on it
    "__deepcopy__": lambda self, memo: self.snapshot(),
    "__hash__": None,  # == compares element by element
    "to_device": _to_device,
    "item": _item,
    "tolist": lambda self: values_of(self).tolist(),
    "reshape": _reshaped,
    "transpose": _transposed,
    "swapaxes": _swapped,
    "flatten": _flattened,
    "__format__": _format,
    "__round__": _round,
    "T": property(_transpose, doc="The transpose of a matrix."),
    "mT": property(matrix_transpose, doc="The array with its last two axes swapped."),
}
for _name, _method in METHODS.items():
    _give(Array, _name, _method)
_give(Array, "__getattr__", answer_attribute("Array"))


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there

    def __getattr__(name: str) -> Op:
        return globals()[renamed(__name__, name, {"full": "fill", "arange": "iota"})]
