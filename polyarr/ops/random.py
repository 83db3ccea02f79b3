"""Random bits: the one source of randomness, a pure function of key and counter."""

from typing import Any

from polyarr.core.op import primitive
from polyarr.core.spec import INTEGERS, Spec, described, uint32
from polyarr.ops.create import shape_of


def check_random(op: str, key: Any, counter: Any) -> None:
    """Raise TypeError unless the Specs of key and counter of random bits are of integers."""
    for name, given in (("key", key), ("counter", counter)):
        if type(given) is not Spec or given.shape or given.dtype not in INTEGERS:
            raise TypeError(f"{op}: {name} is {described(given)}; it must be an int")


@primitive(numbers="key counter")
def random_bits(key, counter, like=None, *, shape):
    """Return uniform 32-bit integers by Philox4x32-10: element i is word i % 4 of block i // 4.

    The four counter words of block b are the low and high half of b, then those of `counter`; the two key words are
    the halves of `key`. Every backend gives the same bits.

    Args:
        key: Int of up to 64 bits, or an integer array without axes.
        counter: Int of up to 64 bits, or an integer array without axes.
        like: Array whose backend the result is on; None for the current backend.
        shape: Int or tuple of ints.

    Returns:
        uint32 array of that shape.

    Raises:
        ShapeError: A length is negative.
        TypeError: key or counter is not an integer.

    Examples:
        >>> import polyarr as pa
        >>> pa.ops.random_bits(1, 0, shape=3)
        Array([3823634032, 3842641596, 2515673792], uint32, 'numpy')

    Gradients: none

    Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"
    """
    check_random("random_bits", key, counter)
    shape = shape_of("random_bits", shape)
    return Spec(shape, uint32), {"shape": shape}


random_bits.vjp(key=None, counter=None, like=None)
