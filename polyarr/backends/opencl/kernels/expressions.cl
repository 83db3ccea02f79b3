// Functions that the expressions of elementwise ops call. Included by elementwise.cl and the kernels of fused rows.
//
// Params   T, ACC, DTYPE                dtype of the operands: storage type, arithmetic type, polyarr's name
//          FLOATING, SIGNED, BOOLEAN    1 if the dtype is floating-point, signed, bool; else 0
//          OUT_T                        storage type of the result

#if FLOATING

// PoCL implements fabs, copysign and signbit as calls; these are inlined.
#if IS_CPU && HAS_FP64
CHOICE float absolute_of(float x) { return magnitude_of(x); }
CHOICE double absolute_of(double x) { return as_double(as_ulong(x) & 0x7fffffffffffffffUL); }
CHOICE float with_sign(float x, float y) { return with_sign_of(x, y); }
CHOICE double with_sign(double x, double y) {
    return as_double((as_ulong(x) & 0x7fffffffffffffffUL) | (as_ulong(y) & 0x8000000000000000UL));
}
CHOICE int is_negative(float x) { return as_int(x) < 0; }
CHOICE int is_negative(double x) { return as_long(x) < 0; }
#define ABSOLUTE(x) absolute_of(x)
#define COPYSIGN(x, y) with_sign(x, y)
#define SIGNBIT(x) is_negative(x)
#else
#define ABSOLUTE(x) fabs(x)
#define COPYSIGN(x, y) copysign(x, y)
#define SIGNBIT(x) signbit(x)
#endif

#if HAS_BUILTINS && IS_CPU && HAS_FP64 && defined(__SSE4_1__)  // SSE4.1 has rounding instructions
#define DEFINE_ROUNDING(NAME) \
    CHOICE float NAME##_of(float x) { return __builtin_##NAME##f(x); } \
    CHOICE double NAME##_of(double x) { return __builtin_##NAME(x); }
DEFINE_ROUNDING(floor)
DEFINE_ROUNDING(ceil)
DEFINE_ROUNDING(trunc)
DEFINE_ROUNDING(rint)
#define FLOOR(x) floor_of(x)
#define CEIL(x) ceil_of(x)
#define TRUNC(x) trunc_of(x)
#define ROUND(x) rint_of(x)
#else
#define FLOOR(x) floor(x)
#define CEIL(x) ceil(x)
#define TRUNC(x) trunc(x)
#define ROUND(x) rint(x)
#endif

// The remainder has the sign of the divisor, also if it is zero.
static inline ACC remainder_after(ACC rest, ACC y) {
    const ACC moved = ((rest < 0) != (y < 0)) & (rest == rest) ? rest + y : rest;
    return rest == 0 ? COPYSIGN((ACC)0, y) : moved;
}
static inline ACC remainder_of(ACC x, ACC y) { return remainder_after(fmod(x, y), y); }

// The floor quotient is computed from the remainder, because x / y may round up to the next integer. If x or y is
// infinite, the array API standard asks for floor(x / y) instead.
static inline ACC quotient_after(ACC rest, ACC x, ACC y) {
    const ACC quotient = (x - rest) / y - ((rest != 0) & ((rest < 0) != (y < 0)) ? 1 : 0);
    const ACC whole = FLOOR(quotient), nearest = quotient - whole > (ACC)0.5f ? whole + 1 : whole;
    return quotient == 0 ? COPYSIGN((ACC)0, x / y) : nearest;
}
static inline ACC floor_divide(ACC x, ACC y) {
    if (y == 0 || x - x != 0 || y - y != 0) return FLOOR(x / y);
    return quotient_after(fmod(x, y), x, y);
}

// Squares are by far the most frequent powers.
static inline ACC power_of(ACC x, ACC y) { return y == 2 ? x * x : POW(x, y); }

static inline ACC logaddexp(ACC x, ACC y) {
    const ACC distance = x == y ? 0 : ABSOLUTE(x - y);  // x == y covers equal infinities, whose difference is nan
    return MAX(x, y) + LOG1P(EXP(-distance));
}

// The bits of the next float up or down: floats are ordered as their bits are, with the negative ones reversed.
// sign_bit is the highest bit.
static inline int next_of_bits(int bits, int sign_bit, int up) {
    const int sign = bits & sign_bit, place = sign ? -(bits & ~sign_bit) : bits;
    const int next = place + (up ? 1 : -1);
    return next < 0 ? sign_bit | -next : next ? next : sign;
}
static inline float nextafter_float16(float x, float y) {
    ushort bits;
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    vstore_half(x, 0, (half *)&bits);
    bits = (ushort)next_of_bits(bits, 0x8000, y > x);
    return vload_half(0, (const half *)&bits);
}
static inline float nextafter_bfloat16(float x, float y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    return as_float((uint)next_of_bits(as_uint(x) >> 16, 0x8000, y > x) << 16);
}
static inline float nextafter_float32(float x, float y) {  // the nextafter of some drivers skips subnormal numbers
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    return as_float(next_of_bits(as_int(x), INT_MIN, y > x));
}
#define nextafter_float64 nextafter
#define NEXTAFTER PASTE(nextafter_, DTYPE)

// Round a double to float by round-to-odd: truncate, and set the last bit if the result is inexact. Converting that
// float to float16 then rounds as the double itself would, without double rounding.
static inline float round_to_odd(ACC x) {
    const float near = (float)x;
    if (near == x || x != x) return near;
    return as_float((as_uint(near) - (ABSOLUTE((ACC)near) > ABSOLUTE(x) ? 1 : 0)) | 1);
}

#define TO_INTEGER(x) (sizeof(OUT_T) < 4 ? (long)(int)(x) : (long)(x))
#define TO_UINT64(x) ((x) < 0 ? (ulong)(long)(x) : (ulong)(x))

#else

// C rounds quotients towards zero and may trap on x / 0 and on the minimum integer / -1; here the results are 0 and the
// wrapped value.
static inline ACC floor_divide(ACC x, ACC y) {
    if (y == 0) return 0;
#if SIGNED
    if (y == -1) return -x;
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
#else
    return x / y;
#endif
}

static inline ACC remainder_of(ACC x, ACC y) {
    if (y == 0) return 0;
#if SIGNED
    if (y == -1) return 0;
    const ACC rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
#else
    return x % y;
#endif
}

// Integer powers with a negative exponent are 0, except for the bases 1 and -1.
static inline ACC power_of(ACC x, ACC y) {
#if SIGNED
    if (y < 0 && x != 1 && x != -1) return 0;
    if (y < 0) y = y & 1;
#endif
    ACC power = 1;
    for (; y != 0; y >>= 1, x *= x)
        if (y & 1) power *= x;
    return power;
}

// Shifts by the width or more give 0 (or the sign); in C they are undefined.
#define BITS (8 * (ulong)sizeof(T))
#define LEFT_SHIFT(x, y) ((ulong)(y) < BITS ? (x) << (y) : 0)
#define RIGHT_SHIFT(x, y) ((ulong)(y) < BITS ? (x) >> (y) : SIGNED && (x) < 0 ? -1 : 0)

#define ABSOLUTE(x) ((x) < 0 ? -(x) : (x))
#define FLOOR(x) (x)
#define CEIL(x) (x)
#define TRUNC(x) (x)
#define ROUND(x) (x)
#define INVERT(x) (BOOLEAN ? !(x) : ~(x))

#endif
