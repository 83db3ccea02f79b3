"""Random bits: the one source of randomness, a pure function of key and counter."""

from polyarr.core.op import primitive
from polyarr.core.spec import INTEGERS, Spec, described, uint32
from polyarr.ops.create import shape_of


@primitive(numbers="key counter")
def random_bits(key, counter, like=None, *, shape):
    """Uniform 32-bit integers by Philox4x32-10: element i is word i % 4 of block i // 4.

    The four counter words of a block are the low and high half of its number, then those of `counter`; the key words
    are the halves of `key`. Every backend gives the same bits.

    Shapes:  -> shape
    Dtypes:  -> uint32
    Errors:  ShapeError for a negative length
    Grads:   none
    Source:  Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"
    """
    for name, given in (("key", key), ("counter", counter)):
        if type(given) is not Spec or given.shape or given.dtype not in INTEGERS:
            raise TypeError(f"random_bits: {name} is {described(given)}; it must be an int")
    shape = shape_of("random_bits", shape)
    return Spec(shape, uint32), {"shape": shape}


random_bits.vjp(key=None, counter=None, like=None)
