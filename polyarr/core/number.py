"""Python numbers that a captured function gets anew at every run: a step's number, a learning rate, a random counter.

They take part in arithmetic and in ops as Python numbers do. Their value is not known while a function is captured, so
asking for it (`if n > 3`, `float(n)`, `range(n)`) is an error that says where. `evaluate` calls a function of numbers
at every run instead.
"""

import functools
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from polyarr.core.errors import CaptureError

PACKAGE = str(Path(__file__).parents[1])
# What computes for others: a step belongs to whoever called it.
_MACHINERY = ("core/", "ops/", "capture/", "autograd", "creation", "optim", "random")
_INSIDE = tuple(f"{PACKAGE}/{part}" for part in _MACHINERY)


def place(*, inside: str | tuple[str, ...] = _INSIDE) -> str:
    """Where the innermost caller is whose file's path does not begin so: file:line."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(inside) or _is_generated(frame.f_code)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_generated(code: Any) -> bool:
    """True of what dataclasses write."""
    return code.co_filename == "<string>" and code.co_name == "__init__"


def users_place() -> str:
    """Where the innermost caller outside of polyarr is: file:line."""
    return place(inside=PACKAGE)


class Number:
    """A number of a trace: which value of the program it is, and what it was when the function was captured.

    record  (function, numbers, gives) -> what stands for the function's value; None where gives is False
    """

    __slots__ = ("now", "record", "slot")

    def __init__(self, slot: int, now: int | float, record: Callable[..., Any]) -> None:
        self.slot, self.now, self.record = slot, now, record

    def __repr__(self) -> str:
        return f"<a number of a compiled function, {self.now} when it was captured>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise CaptureError(
            f"compile: {users_place()} asks for the value of a number that changes from run to run ({self.now} at "
            "capture); name the argument in constants=, or compute with polyarr.evaluate(fn, number)"
        )

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __hash__ = _refuse
    __round__ = __trunc__ = __floor__ = __ceil__ = __array__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __array_ufunc__(self, ufunc: Any, method: str, *numbers: Any, **options: Any) -> Any:
        """What NumPy's functions and scalars compute with this; as an object in an array it would lose their dtype."""
        if method != "__call__" or options or not all(isinstance(v, (*NUMBERS, np.integer)) for v in numbers):
            self._refuse()

        @functools.wraps(ufunc)
        def plain(*values: Any) -> Any:
            found = ufunc(*values)
            return found.item() if type(found) in (np.float64, np.int64) else found

        return evaluate(plain, *numbers)


class IntNumber(Number):
    """One that is an int."""

    __slots__ = ()


class FloatNumber(Number):
    """One that is a float."""

    __slots__ = ()


NUMBERS = (int, float, Number)  # what an op takes as a Python number


def evaluate(fn: Callable[..., Any], *numbers: Any) -> Any:
    """fn(*numbers), an int or a float, of Python numbers; in a compiled function it is called anew at every run.

    fn must be a function of its arguments and nothing else, as a learning rate's schedule is. Its value must be of one
    kind, int or float.
    """
    traced = _traced(numbers)
    return fn(*numbers) if traced is None else traced.record(fn, numbers, True)


def check(fn: Callable[..., Any], *numbers: Any) -> None:
    """Call fn(*numbers) for the errors that it raises; in a compiled function anew at every run."""
    traced = _traced(numbers)
    fn(*numbers) if traced is None else traced.record(fn, numbers, False)


def _traced(values: tuple) -> Number | None:
    for value in values:
        if isinstance(value, Number):
            return value
        if type(value) is tuple and (found := _traced(value)) is not None:
            return found
    return None


def _forward(name: str) -> Callable[..., Any]:
    fn = getattr(operator, name)
    return lambda self, *other: evaluate(fn, self, *other) if _are_numbers(other) else NotImplemented


def _reflected(name: str) -> Callable[..., Any]:
    fn = getattr(operator, name)
    return lambda self, other: evaluate(fn, other, self) if _are_numbers((other,)) else NotImplemented


def _are_numbers(values: tuple) -> bool:
    return all(isinstance(v, NUMBERS) for v in values)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(Number, f"__{_name.strip('_')}__", _forward(_name))
    setattr(Number, f"__r{_name.strip('_')}__", _reflected(_name))
for _name in ("neg", "abs", "pos"):
    setattr(Number, f"__{_name}__", _forward(_name))
