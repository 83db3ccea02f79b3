"""Functions of tensors, where tinygrad has none, means something else or loses digits. Floats are float64."""

import math
from functools import reduce

from tinygrad import Tensor, dtypes

# ---- numbers and their bits ----------------------------------------------------------------------------------


def isnan(x):
    return x != x


def bits(x):
    """Return a floating-point number's bits as a signed integer."""
    return x.bitcast({2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[x.dtype.itemsize])


def signbit(x):
    return bits(x) < 0


def absolute(x):
    """Return |x|."""
    if not dtypes.is_float(x.dtype):
        return x if dtypes.is_unsigned(x.dtype) else (x < 0).where(-x, x)
    b = bits(x)
    return (b & b.dtype.max).bitcast(x.dtype)


def copysign(x, y):
    return (bits(x) | (bits(y) & bits(y).dtype.min)).bitcast(x.dtype)


def nextafter(x, y):
    b = bits(x)
    away = (x < y) == (x > 0)
    tiny = signbit(y).where(b.dtype.min + 1, 1)
    found = (x == 0).where(tiny, b + away.where(1, -1)).cast(b.dtype).bitcast(x.dtype)
    return (isnan(x) | isnan(y)).where(x + y, (x == y).where(y, found))


# ---- functions of floating-point numbers ---------------------------------------------------------------------


def expm1(x):
    """Return exp(x) - 1 by Kahan's formula, in which the errors of exp and log cancel."""
    u = x.exp()
    plain = (u - 1 == -1) | (u == math.inf)
    return (u == 1).where(x, plain.where(u - 1, (u - 1) * (x / plain.where(2, u).log())))


def log(x):
    return (x < 0).where(math.nan, x.log())  # of a negative denormal number tinygrad's is -inf


def log1p(x):
    u = (1 + x).contiguous()  # a kernel of its own: tinygrad would simplify u - 1 to x
    return ((u == 1) | (u == math.inf)).where(x, u.log() * (x / (u - 1)))


def tanh(x):
    e = expm1(2 * x.clip(-20, 20))
    return isnan(x).where(x, e / (e + 2))


def erf(x):
    """Return 2 / sqrt(pi) x exp(-x^2) sum of (2 x^2)^n / (3 5 ... (2n + 1)), whose terms are all positive."""
    near, terms = x.clip(-6, 6), 1
    for n in range(130, 0, -1):
        terms = 1 + terms * (2 * near * near / (2 * n + 1))
        terms = terms if n % 50 else terms.contiguous()  # clang accepts 256 nested parentheses
    found = 2 / math.sqrt(math.pi) * near * (-near * near).exp() * terms
    return (absolute(x) < 6).where(found, sign(x))


def cos(x):
    half = (x / 2).sin()  # exact for large x, where pi / 2 - x is not
    return 1 - 2 * half * half


def atan2(y, x):
    a, b = absolute(x), absolute(y)
    low, high = minimum(a, b), maximum(a, b)
    t = (low == high).where((high != 0).cast(x.dtype), low / (high == 0).where(1, high))
    for _ in range(3):  # atan(t) = 2 atan(t / (1 + sqrt(1 + t^2)))
        t = t / (1 + (1 + t * t).sqrt())
    angle = 8 * t * reduce(lambda total, n: 1 / n - t * t * total, range(21, 0, -2), 0.0)
    angle = (b > a).where(math.pi / 2 - angle, angle)
    angle = signbit(x).where(math.pi - angle, angle)
    return (isnan(x) | isnan(y)).where(x + y, signbit(y).where(-angle, angle))


def round_(x):
    if not dtypes.is_float(x.dtype):
        return x
    whole = absolute(x).trunc()
    odd = (whole / 2).trunc() * 2 != whole
    rest = absolute(x) - whole
    return copysign(whole + ((rest > 0.5) | ((rest == 0.5) & odd)).where(1.0, 0.0), x)


# ---- arithmetic and comparisons ------------------------------------------------------------------------------


def maximum(x, y):
    larger = (x < y).where(y, x)
    return isnan(y).where(y, larger) if dtypes.is_float(x.dtype) else larger


def minimum(x, y):
    smaller = (y < x).where(y, x)
    return isnan(y).where(y, smaller) if dtypes.is_float(x.dtype) else smaller


def less_equal(x, y):
    return (x < y) | (x == y)  # tinygrad's is not (y < x), which is true for nan


def sign(x):
    found = (x > 0).where(1, 0) - (x < 0).where(1, 0)
    return isnan(x).where(x, found) if dtypes.is_float(x.dtype) else found


def floor_divide(x, y):
    if dtypes.is_float(x.dtype):
        return (x / y).floor()
    found = x.div(traps(y).where(1, y), rounding_mode="floor")
    return (y == 0).where(0, traps(y).where(-x, found))


def remainder(x, y):
    if not dtypes.is_float(x.dtype):
        return traps(y).where(0, x - x.div(traps(y).where(1, y), rounding_mode="floor") * y)
    found = x - (x / y).floor() * y
    return ((absolute(y) == math.inf) & (absolute(x) != math.inf)).where((signbit(x) != signbit(y)).where(y, x), found)


def traps(y):
    """Return where a processor traps: x / 0, and the smallest integer / -1."""
    return y == 0 if dtypes.is_unsigned(y.dtype) else (y == 0) | (y == -1)


def power(x, y):
    if dtypes.is_float(x.dtype):
        found = ((absolute(x) == 1) | (y == 0)).where(1.0, (absolute(x).log2() * y).exp2())
        whole, odd = y.trunc() == y, (y / 2).trunc() * 2 != y
        found = (signbit(x) & whole & odd).where(-found, found)
        return ((x < 0) & (x != -math.inf) & ~whole).where(math.nan, found)
    found, square, none = x.ones_like(), x, (y < 0) & (x != 1) & (x != -1)
    for _ in range(int(absolute(y).max().item()).bit_length() + 1 if y.numel() else 0):
        # Each step is computed: tinygrad would need 12 GB to join 64 of them.
        found, square, y = (y & 1 == 1).where(found * square, found), square * square, y >> 1
        Tensor.realize(found, square, y)
    return none.where(0, found)


def left_shift(x, y):
    return (y < x.dtype.bitsize).where(x << y.minimum(x.dtype.bitsize - 1), 0)


def right_shift(x, y):
    return x >> y.minimum(x.dtype.bitsize - 1)


# ---- reductions ----------------------------------------------------------------------------------------------


def largest(x, axes):
    found = x.max(axes)
    if not dtypes.is_float(x.dtype):
        return found
    return isnan(x).any(axes).where(math.nan, found).contiguous()  # else isnan() of it would be simplified to False


def smallest(x, axes):
    return -largest(-x, axes) if dtypes.is_float(x.dtype) else ~largest(~x, axes)
