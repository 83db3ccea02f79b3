"""Random arrays. Every draw is a pure function of (seed, number of the draw): the same on every backend."""

import math
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.number import Number
from polyarr.core.spec import as_dtype, bfloat16, float16, float32, float64, int64, told
from polyarr.ops.create import shape_of
from polyarr.ops.shape import one_axis
from polyarr.ops.validation import check_array, number, whole, within

TWO_PI = 2 * math.pi
_MASK = 2**64 - 1
_BITS = {float16: 11, bfloat16: 8}  # as many as the dtype tells apart below 1; more would round up to 1


def _in_64_bits(seed: Any) -> Any:
    return seed if isinstance(seed, (Array, Number)) else seed & _MASK


class Generator:
    """A source of (key, counter) pairs, each of which is used for one draw."""

    def __init__(self, seed: int, counter: int = 0) -> None:
        self.seed, self.counter, self._lock = _in_64_bits(seed), counter, threading.Lock()

    def draw(self) -> tuple[int, int]:
        """The next (key, counter)."""
        with self._lock:
            self.counter = self.counter + 1  # of an array, another array
            return self.seed, self.counter

    def reserve(self, count: int) -> tuple[int, int]:
        """The state now, for somebody who draws so many times from it; this one goes on after that."""
        with self._lock:
            state = self.seed, self.counter
            self.counter = self.counter + count
            return state

    def restart(self, seed: int, counter: int) -> None:
        """Go to a state."""
        self.seed, self.counter = _in_64_bits(seed), counter


_default = Generator(secrets.randbits(64))
_scoped: ContextVar[Generator | None] = ContextVar("polyarr_generator", default=None)


def _generator() -> Generator:
    return _scoped.get() or _default


def seed(value: int) -> None:
    """Start the sequence that belongs to value: the same draws then give the same numbers, on every backend.

    Errors:  TypeError unless value is an int
    """
    if not isinstance(value, int):
        raise TypeError(f"random.seed: got {type(value).__name__}; it must be an int")
    _generator().restart(value, 0)


def get_state() -> tuple[int, int]:
    """The seed and the number of draws so far."""
    return _generator().seed, _generator().counter


def set_state(state: tuple[int, int]) -> None:
    """Go back, or ahead, to a state that get_state gave. Its numbers may be arrays of integers without axes.

    Errors:  TypeError if it is no tuple of a seed and a counter
    """
    _generator().restart(*_checked("random.set_state", state))


def restored(state: tuple[int, int]) -> AbstractContextManager[None]:
    """Draw from a state inside the block, and go on as if nothing had happened after it.

    Errors:  TypeError if it is no tuple of a seed and a counter
    """
    return drawing_from(Generator(*_checked("random.restored", state)))


def _checked(name: str, state: Any) -> tuple[Any, Any]:
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"{name}: state is {told(state)}; it must be a tuple that get_state gave")
    seed, counter = (p if isinstance(p, (Array, Number)) else whole(name, "state", p) for p in state)
    return seed, counter


@contextmanager
def drawing_from(generator: Generator) -> Iterator[None]:
    """Draw from a generator inside the block."""
    token = _scoped.set(generator)
    try:
        yield
    finally:
        _scoped.reset(token)


def draw() -> tuple[int, int]:
    """A fresh (key, counter) for an op that takes them, such as dropout."""
    return _generator().draw()


def reserve(count: int) -> tuple[int, int]:
    """The state now, after which so many draws are left out: a compiled function makes them."""
    return _generator().reserve(whole("random.reserve", "count", count))


def bits(shape: Any) -> Array:
    """Uniform random 32-bit integers.

    Shapes:  -> shape
    Dtypes:  -> uint32
    """
    return ops.random_bits(*draw(), shape=shape_of("random.bits", shape))


def uniform(shape: Any = (), *, low: float = 0.0, high: float = 1.0, dtype: Any = float32) -> Array:
    """Uniform numbers from low up to high.

    Shapes:  -> shape
    Dtypes:  -> dtype, floating; 24 random bits each, 53 in float64, 11 in float16, 8 in bfloat16
    """
    shape, dtype = shape_of("random.uniform", shape), as_dtype(dtype)
    low, high = number("random.uniform", "low", low), number("random.uniform", "high", high)
    if dtype == float64:
        words = bits((2, *shape))
        upper = (words[0] >> 5).astype(float64) * 2.0**26
        unit = (upper + (words[1] >> 6).astype(float64)) * 2.0**-53
    else:
        kept = _BITS.get(dtype, 24)
        unit = (bits(shape) >> (32 - kept)).astype(float32) * 2.0**-kept
    return (unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low).astype(dtype)


def normal(shape: Any = (), *, mean: float = 0.0, std: float = 1.0, dtype: Any = float32) -> Array:
    """Normally distributed numbers.

    Shapes:  -> shape
    Dtypes:  -> dtype, floating
    Errors:  ValueError for a negative std
    Source:  Box, Muller 1958
    """
    shape, dtype = shape_of("random.normal", shape), as_dtype(dtype)
    mean, std = number("random.normal", "mean", mean), within("random.normal", "std", std, 0)
    wide = float64 if dtype == float64 else float32
    size = math.prod(shape)
    words = bits((2, (size + 1) // 2)).astype(wide)
    radius = ops.sqrt(ops.log((words[0] + 0.5) * 2.0**-32) * -2.0)
    angle = words[1] * (TWO_PI * 2.0**-32)
    both = ops.concat([radius * ops.cos(angle), radius * ops.sin(angle)])
    unit = ops.reshape(both[:size], shape=shape)
    return (unit if (mean, std) == (0.0, 1.0) else unit * std + mean).astype(dtype)


def randint(low: int, high: int, shape: Any = (), *, dtype: Any = int64) -> Array:
    """Uniform integers from low up to but not including high.

    Shapes:  -> shape
    Dtypes:  -> dtype, integer
    Errors:  ValueError unless low < high <= low + 2^32
    """
    low, high = whole("random.randint", "low", low), whole("random.randint", "high", high)
    if not 0 < high - low <= 2**32:
        raise ValueError(f"random.randint: low is {low}, high is {high}; need low < high <= low + 2**32")
    scaled = bits(shape).astype("uint64") * (high - low) >> 32
    return (scaled.astype(int64) + low).astype(dtype)


def bernoulli(p: float, shape: Any = ()) -> Array:
    """True with probability p, to 24 bits.

    Shapes:  -> shape
    Dtypes:  -> bool
    Errors:  ValueError unless 0 <= p <= 1
    """
    p = within("random.bernoulli", "p", p, 0, 1)
    return (bits(shape) >> 8) < round(p * 2**24)


def permutation(x: int | Array, *, axis: int = 0) -> Array:
    """The numbers below x in random order, or a copy of the array x with its slices along axis in random order.

    Shapes:  n -> (n,), or x's
    Dtypes:  -> int64, or x's
    """
    if not isinstance(x, int):
        check_array("random.permutation", "x", x)
        axis = one_axis("random.permutation", x, axis)
    n = x if isinstance(x, int) else x.shape[axis]
    order = ops.argsort(bits((n,)))
    return order if isinstance(x, int) else ops.take(x, order, axis=axis)


def choice_from_logits(logits: Array) -> Array:
    """One class for each row of logits, with the probabilities softmax(logits), by the Gumbel trick.

    Shapes:  (..., v) -> (...)
    Dtypes:  floating -> int64
    """
    check_array("random.choice_from_logits", "logits", logits)
    # 23 bits: with more, the half is rounded away, the unit can be 1, and the noise infinite.
    unit = ((bits(logits.shape) >> 9).astype(float32) + 0.5) * 2.0**-23
    noise = -ops.log(-ops.log(unit))
    return ops.argmax(logits.astype(float32) + noise, axis=-1)
