"""Random arrays. Every draw is a pure function of (seed, number of the draw): the same on every backend."""

import math
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from polyarr import ops
from polyarr.core.array import Array, number_of
from polyarr.core.errors import DtypeError
from polyarr.core.keywords import explained
from polyarr.core.names import answer_attribute, answering
from polyarr.core.number import Number
from polyarr.core.spec import (
    KINDS,
    as_dtype,
    bfloat16,
    check_kind,
    check_number,
    dtype_name,
    float16,
    float32,
    float64,
    int64,
    shown,
)
from polyarr.ops.create import shape_of
from polyarr.ops.shape import one_axis
from polyarr.ops.validation import check_array, number, whole, within

__all__ = [
    "Generator", "bernoulli", "bits", "choice_from_logits", "drawing_from", "get_state", "normal", "permutation",
    "randint", "restored", "seed", "set_state", "uniform",
]  # fmt: skip

TWO_PI = 2 * math.pi
_MASK = 2**64 - 1
_BITS = {float16: 11, bfloat16: 8}  # bits of precision below 1; more would round up to 1
State = tuple[int | Array, int | Array]  # seed, and number of draws so far


def _in_64_bits(seed: Any) -> Any:
    return seed if isinstance(seed, (Array, Number)) else whole("random", "seed", seed) & _MASK


class Generator:
    """Source of (key, counter) pairs, each of which is used for one draw."""

    def __init__(self, seed: int | Array | Number, counter: int | Array | Number = 0) -> None:
        self.seed, self._lock = _in_64_bits(seed), threading.Lock()
        self.counter: Any = counter  # in a capture, a Number, which ops take like an int

    __getattr__ = answer_attribute("Generator")

    def draw(self) -> State:
        """Return the next (key, counter)."""
        with self._lock:
            self.counter = self.counter + 1  # for an array, a new array
            return self.seed, self.counter

    def reserve(self, count: int) -> State:
        """Return the state and skip `count` draws, which the caller makes itself."""
        with self._lock:
            state = self.seed, self.counter
            self.counter = self.counter + count
            return state

    def release(self, state: State, count: int) -> None:
        """Undo reserve(count), which returned this state, unless something was drawn since."""
        with self._lock:
            if self.seed is state[0] and number_of(self.counter) == number_of(state[1]) + count:
                self.counter = state[1]

    def restart(self, seed: int | Array, counter: int | Array) -> None:
        """Set the state."""
        self.seed, self.counter = _in_64_bits(seed), counter


_default = Generator(secrets.randbits(64))
_scoped: ContextVar[Generator | None] = ContextVar("polyarr_generator", default=None)


def current() -> Generator:
    """Return the generator that draws in this context."""
    return _scoped.get() or _default


def seed(value: int) -> None:
    """Start the sequence of a seed: the same draws after it give the same numbers, on every backend.

    The bits are the same, too, but for those of `normal`, whose last digits are those of the backend's log and cos.

    Args:
        value: Int; its lower 64 bits count.

    Raises:
        TypeError: value is not an int.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.randint(0, 10, 5)
        Array([5, 9, 0, 5, 7], int64, 'numpy')
    """
    current().restart(whole("random.seed", "value", value), 0)


def get_state() -> State:
    """Return the state: the seed and the number of draws so far.

    Returns:
        Tuple (seed, counter), for set_state.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(7)
        >>> pa.random.get_state()
        (7, 0)
    """
    return current().seed, current().counter


def set_state(state: State) -> None:
    """Set the state to one that get_state returned.

    Args:
        state: Tuple (seed, counter) of ints, or of integer arrays without axes.

    Raises:
        TypeError: state is not such a tuple.

    Examples:
        >>> import polyarr as pa
        >>> state = pa.random.get_state()
        >>> x = pa.random.uniform()
        >>> pa.random.set_state(state)
        >>> bool(pa.random.uniform() == x)
        True
    """
    current().restart(*_checked("random.set_state", state))


def restored(state: State) -> AbstractContextManager[None]:
    """Draw from another state inside the block; the state outside does not change.

    Args:
        state: Tuple (seed, counter), as get_state returned it.

    Returns:
        Context manager.

    Raises:
        TypeError: state is not such a tuple.

    Examples:
        >>> import polyarr as pa
        >>> with pa.random.restored((0, 0)):
        ...     x = pa.random.randint(0, 10, 3)
        >>> x
        Array([5, 9, 0], int64, 'numpy')
    """
    return drawing_from(Generator(*_checked("random.restored", state)))


def _checked(name: str, state: Any) -> tuple[Any, Any]:
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"{name}: state is {shown(state)}; it must be a tuple that get_state gave")
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


def draw() -> State:
    """Return a fresh (key, counter) for an op that takes them, such as dropout.

    Returns:
        Tuple of two ints, or of arrays inside a compiled function.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(7)
        >>> pa.random.draw()
        (7, 1)
    """
    return current().draw()


def reserve(count: int) -> State:
    """Return the state and skip `count` draws, which the caller makes itself, as a compiled function does."""
    return current().reserve(whole("random.reserve", "count", count))


def release(state: State, count: int) -> None:
    """Undo reserve(count), which returned this state, unless something was drawn since: the draws were not made."""
    current().release(state, count)


def bits(shape: Any) -> Array:
    """Return uniform random 32-bit integers.

    Args:
        shape: Int or tuple of ints.

    Returns:
        uint32 array of that shape.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.bits(2)
        Array([2219120097, 4035800746], uint32, 'numpy')
    """
    return ops.random_bits(*draw(), shape=shape_of("random.bits", shape))


def _dtype_of(op: str, dtype: Any, kind: str) -> Any:
    """Return a dtype given by name or type; DtypeError unless it is of a kind, "floating" or "integer"."""
    found = as_dtype(dtype)
    if found not in KINDS[kind]:
        raise DtypeError(f"{op}: dtype is {dtype_name(found)}; it must be {kind}")
    return found


@explained
def uniform(shape: Any = (), *, low: float = 0.0, high: float = 1.0, dtype: Any = float32) -> Array:
    """Return uniform random numbers from low up to high.

    Args:
        shape: Int or tuple of ints.
        low: Lower bound, included.
        high: Upper bound, not included but for rounding.
        dtype: Floating-point dtype: 53 random bits in float64, 24 in float32, 11 in float16, 8 in bfloat16.

    Returns:
        Array of that shape and dtype.

    Raises:
        DtypeError: dtype is not floating-point.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.uniform(3, low=-1, high=1)
        Array([ 0.03335822,  0.8793161 , -0.8820267 ], float32, 'numpy')
    """
    shape, dtype = shape_of("random.uniform", shape), _dtype_of("random.uniform", dtype, "floating")
    low, high = number("random.uniform", "low", low), number("random.uniform", "high", high)
    if dtype == float64:
        words = bits((2, *shape))
        upper = (words[0] >> 5).astype(float64) * 2.0**26
        unit = (upper + (words[1] >> 6).astype(float64)) * 2.0**-53
    else:
        kept = _BITS.get(dtype, 24)
        unit = (bits(shape) >> (32 - kept)).astype(float32) * 2.0**-kept
    return (unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low).astype(dtype)


@explained
def normal(shape: Any = (), *, mean: float = 0.0, std: float = 1.0, dtype: Any = float32) -> Array:
    """Return normally distributed random numbers.

    Args:
        shape: Int or tuple of ints.
        mean: Mean of the distribution.
        std: Standard deviation, at least 0.
        dtype: Floating-point dtype.

    Returns:
        Array of that shape and dtype.

    Raises:
        DtypeError: dtype is not floating-point.
        ValueError: std is negative.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.normal(3)
        Array([ 1.0711733 , -0.35114095,  0.41623816], float32, 'numpy')

    Source: Box, Muller 1958
    """
    shape, dtype = shape_of("random.normal", shape), _dtype_of("random.normal", dtype, "floating")
    mean, std = number("random.normal", "mean", mean), within("random.normal", "std", std, 0)
    wide = float64 if dtype == float64 else float32
    size = math.prod(shape)
    words = bits((2, (size + 1) // 2)).astype(wide)
    radius = ops.sqrt(ops.log((words[0] + 0.5) * 2.0**-32) * -2.0)
    angle = words[1] * (TWO_PI * 2.0**-32)
    both = ops.concat([radius * ops.cos(angle), radius * ops.sin(angle)])
    unit = ops.reshape(both[:size], shape=shape)
    return (unit if (mean, std) == (0.0, 1.0) else unit * std + mean).astype(dtype)


@explained
def randint(low: int, high: int, shape: Any = (), *, dtype: Any = int64) -> Array:
    """Return uniform random integers from low up to but not including high.

    Args:
        low: Lower bound.
        high: Upper bound, at most low + 2**32.
        shape: Int or tuple of ints.
        dtype: Integer dtype.

    Returns:
        Array of that shape and dtype.

    Raises:
        DtypeError: dtype is not an integer dtype.
        OverflowError: dtype does not hold all numbers from low up to high.
        ValueError: low < high <= low + 2**32 does not hold.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.randint(0, 10, 5)
        Array([5, 9, 0, 5, 7], int64, 'numpy')
    """
    low, high = whole("random.randint", "low", low), whole("random.randint", "high", high)
    if not 0 < high - low <= 2**32:
        raise ValueError(f"random.randint: low is {low}, high is {high}; need low < high <= low + 2**32")
    dtype = _dtype_of("random.randint", dtype, "integer")
    check_number("random.randint", "low", low, dtype)
    check_number("random.randint", "high - 1", high - 1, dtype)
    scaled = bits(shape_of("random.randint", shape)).astype("uint64") * (high - low) >> 32
    return ((scaled if low >= 0 else scaled.astype(int64)) + low).astype(dtype)


@explained
def bernoulli(p: float | Array, shape: Any = None) -> Array:
    """Return random bools that are true with probability p, to 24 bits.

    Args:
        p: Probability from 0 to 1, or floating-point array of probabilities that broadcasts to shape.
        shape: Int or tuple of ints; None for the shape of p, () of a number.

    Returns:
        bool array of that shape.

    Raises:
        DtypeError: p is an array that is not floating-point.
        ValueError: p is a number that is not from 0 to 1.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.bernoulli(0.5, 4)
        Array([False, False,  True, False], bool, 'numpy')
    """
    if isinstance(p, (list, tuple)) or getattr(p, "ndim", False):  # otherwise it would have to be a number
        check_array("random.bernoulli", "p", p)
    if isinstance(p, Array):
        check_kind("random.bernoulli", "p", p.spec, "floating")
        shape = p.shape if shape is None else shape_of("random.bernoulli", shape)
        return uniform(shape) < ops.broadcast_to(p, shape=shape).astype(float32)
    p = within("random.bernoulli", "p", p, 0, 1)
    return (bits(shape_of("random.bernoulli", () if shape is None else shape)) >> 8) < round(p * 2**24)


@explained
def permutation(x: int | Array, axis: int = 0) -> Array:
    """Return the numbers below x, or the slices of the array x along an axis, in random order.

    Args:
        x: Int or array.
        axis: Axis of an array to shuffle along.

    Returns:
        int64 array (x,), or array of the shape and dtype of x.

    Raises:
        AxisError: x lacks the axis.
        ValueError: x is a negative number.

    Examples:
        >>> import polyarr as pa
        >>> pa.random.seed(0)
        >>> pa.random.permutation(5)
        Array([2, 3, 0, 4, 1], int64, 'numpy')
    """
    if not isinstance(x, int):
        check_array("random.permutation", "x", x)
        axis = one_axis("random.permutation", x, axis)
    n = x if isinstance(x, int) else x.shape[axis]
    if n < 0:
        raise ValueError(f"random.permutation: x is {n}; it must not be negative")
    order = ops.argsort(bits((n,)))
    return order if isinstance(x, int) else ops.take(x, order, axis=axis)


@explained
def choice_from_logits(logits: Array) -> Array:
    """Return one random class for each row of logits, with the probabilities softmax(logits), by the Gumbel trick.

    Args:
        logits: Floating-point array (..., v).

    Returns:
        int64 array (...).

    Examples:
        >>> import polyarr as pa
        >>> pa.random.choice_from_logits(pa.asarray([[0.0, -pa.inf], [-pa.inf, 0.0]]))
        Array([0, 1], int64, 'numpy')
        >>> weights = pa.asarray([0.2, 0.8])
        >>> pa.random.choice_from_logits(pa.broadcast_to(pa.log(weights), (5, 2))).shape  # five draws
        (5,)
    """
    check_array("random.choice_from_logits", "logits", logits)
    # Use 23 bits: with more, the half would be rounded away, the unit could be 1, and the noise infinite.
    unit = ((bits(logits.shape) >> 9).astype(float32) + 0.5) * 2.0**-23
    noise = -ops.log(-ops.log(unit))
    return ops.argmax(logits.astype(float32) + noise, axis=-1)


if not TYPE_CHECKING:  # to a type checker, every name would seem to be there
    __getattr__ = answering(__name__, __all__)
