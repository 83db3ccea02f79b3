// Functions that the expressions of elementwise ops call: included by the kernels that compute such.
//
// Params   T, ACC, DTYPE              type of the operands: stored, computed with, polyarr's name
//          FLOATING, SIGNED, BOOLEAN  1 or 0: whether they are floats, have a sign, are bool
//          OUT_T                      type of the result, as it is stored
#if !defined(T) || !defined(ACC) || !defined(DTYPE) || !defined(OUT_T)
#error "expressions.cl needs T, ACC, DTYPE and OUT_T"
#endif
#if !defined(FLOATING) || !defined(SIGNED) || !defined(BOOLEAN)
#error "expressions.cl needs FLOATING, SIGNED and BOOLEAN"
#endif

#define JOIN_NAMES(a, b) a##b
#define NAMED(prefix, dtype) JOIN_NAMES(prefix, dtype)

#if FLOATING

// PoCL calls its own of these, too.
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

#if IS_CPU && HAS_FP64 && defined(__SSE4_1__)  // which has instructions for them
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

// The remainder has the divisor's sign, a zero too.
static inline ACC remainder_after(ACC rest, ACC y) {
    const ACC moved = ((rest < 0) != (y < 0)) & (rest == rest) ? rest + y : rest;
    return rest == 0 ? COPYSIGN((ACC)0, y) : moved;
}
static inline ACC remainder_of(ACC x, ACC y) { return remainder_after(fmod(x, y), y); }

// The quotient is found from the remainder, because x / y may round up to the next integer. Where x or y is infinite
// there is no remainder to speak of, and the standard asks for the floor of x / y.
static inline ACC quotient_after(ACC rest, ACC x, ACC y) {
    const ACC quotient = (x - rest) / y - ((rest != 0) & ((rest < 0) != (y < 0)) ? 1 : 0);
    const ACC whole = FLOOR(quotient), nearest = quotient - whole > (ACC)0.5f ? whole + 1 : whole;
    return quotient == 0 ? COPYSIGN((ACC)0, x / y) : nearest;
}
static inline ACC floor_divide(ACC x, ACC y) {
    if (y == 0 || x - x != 0 || y - y != 0) return FLOOR(x / y);
    return quotient_after(fmod(x, y), x, y);
}

// A square is by far the most frequent power.
static inline ACC power_of(ACC x, ACC y) { return y == 2 ? x * x : POW(x, y); }

static inline ACC logaddexp(ACC x, ACC y) {
    const ACC distance = x == y ? 0 : ABSOLUTE(x - y);  // equal infinities too, whose difference is nan
    return MAX(x, y) + LOG1P(EXP(-distance));
}

// The 16-bit floats in order are the integers in order, when the negative ones are mirrored.
static inline int next_of_16_bits(int bits, int up) {
    const int sign = bits & 0x8000, place = sign ? -(bits & 0x7fff) : bits;
    const int next = place + (up ? 1 : -1);
    return next < 0 ? 0x8000 | -next : next ? next : sign;
}
static inline float nextafter_float16(float x, float y) {
    ushort bits;
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    vstore_half(x, 0, (half *)&bits);
    bits = (ushort)next_of_16_bits(bits, y > x);
    return vload_half(0, (const half *)&bits);
}
static inline float nextafter_bfloat16(float x, float y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    return as_float((uint)next_of_16_bits(as_uint(x) >> 16, y > x) << 16);
}
#define nextafter_float32 nextafter
#define nextafter_float64 nextafter
#define NEXTAFTER NAMED(nextafter_, DTYPE)

// A double that becomes a float16 by way of a float would be rounded twice. A float that is cut off, with its last bit
// set if anything was lost, rounds to what the double rounds to.
static inline float round_to_odd(ACC x) {
    const float near = (float)x;
    if (near == x || x != x) return near;
    return as_float((as_uint(near) - (ABSOLUTE((ACC)near) > ABSOLUTE(x) ? 1 : 0)) | 1);
}

#define TO_INTEGER(x) (sizeof(OUT_T) < 4 ? (long)(int)(x) : (long)(x))
#define TO_UINT64(x) ((x) < 0 ? (ulong)(long)(x) : (ulong)(x))

#else

// C rounds a quotient towards zero and traps on x / 0 and on the least integer / -1; here those are 0 and wrap.
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

// A negative power is 0, but for the bases 1 and -1.
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

// A shift by the width or more leaves nothing but the sign; C does not say so.
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
