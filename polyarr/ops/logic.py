"""Elementwise ops that decide and do not compute: comparisons, bits and logic.

They broadcast and promote as those of elementwise.py do.
"""

from polyarr.core.spec import bool as bool_
from polyarr.ops.declare import elementwise

# ---- comparisons: no gradient ----------------------------------------------------------------------


@elementwise("any", bool_, widen=False)
def equal(x, y):
    """True where x equals y."""


@elementwise("real", bool_, widen=False)
def less(x, y):
    """True where x is below y."""


@elementwise("real", bool_, widen=False)
def less_equal(x, y):
    """True where x is not above y, and neither is nan."""


@elementwise("any", bool_, primitive=False, widen=False)
def not_equal(x, y):
    """True where x differs from y; nan differs from everything."""
    return bitwise_invert(equal(x, y))


@elementwise("real", bool_, primitive=False, widen=False)
def greater(x, y):
    """True where x is above y."""
    return less(y, x)


@elementwise("real", bool_, primitive=False, widen=False)
def greater_equal(x, y):
    """True where x is not below y, and neither is nan."""
    return less_equal(y, x)


@elementwise("real", bool_, primitive=False, widen=False)
def isnan(x):
    """True where x is not a number."""
    return not_equal(x, x)


equal.vjp(x=None, y=None)
less.vjp(x=None, y=None)
less_equal.vjp(x=None, y=None)
not_equal.vjp(x=None, y=None)
greater.vjp(x=None, y=None)
greater_equal.vjp(x=None, y=None)
isnan.vjp(x=None)


# ---- bits and logic: no gradient -------------------------------------------------------------------------------


@elementwise("integer or bool")
def bitwise_and(x, y):
    """x & y, bit by bit."""


@elementwise("integer or bool")
def bitwise_or(x, y):
    """x | y, bit by bit."""


@elementwise("integer or bool")
def bitwise_xor(x, y):
    """x ^ y, bit by bit."""


@elementwise("integer or bool")
def bitwise_invert(x):
    """~x, bit by bit; for bool, not x."""


@elementwise("integer")
def bitwise_left_shift(x, y):
    """x * 2**y, modulo the dtype's range."""


@elementwise("integer")
def bitwise_right_shift(x, y):
    """floor(x / 2**y)."""


@elementwise("bool", primitive=False)
def logical_and(x, y):
    """True where both are."""
    return bitwise_and(x, y)


@elementwise("bool", primitive=False)
def logical_or(x, y):
    """True where at least one is."""
    return bitwise_or(x, y)


@elementwise("bool", primitive=False)
def logical_xor(x, y):
    """True where exactly one is."""
    return bitwise_xor(x, y)


@elementwise("bool", primitive=False)
def logical_not(x):
    """True where x is not."""
    return bitwise_invert(x)


for _op in (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bitwise_left_shift,
    bitwise_right_shift,
    logical_and,
    logical_or,
    logical_xor,
):
    _op.vjp(x=None, y=None)
for _op in (bitwise_invert, logical_not):
    _op.vjp(x=None)
