// Elementwise: every element of out is EXPRESSION of the elements of x, y and c that broadcast to it.
//
// Arrays   x, y (elements T), c (bool), out (elements OUT_T): windows with any strides, which broadcasting makes 0.
//          out may be an operand that is as long and as wide, with one axis and steps of 1: the work-item that writes an
//          element has read it before, and nobody else reads it. That holds whatever a compiler makes of `restrict`
// Launch   CPU (WG 1): one group per layout.block consecutive elements of out, in row-major order
//          GPU: groups of WG work-items, each group for WG * PER_ITEM * VECTOR consecutive elements of out
// Params   EXPRESSION                 a C expression of x, y (ACC) and c (int)
//          IS_USUAL, USUAL            a condition of x and y, and what computes EXPRESSION faster where it holds for all of
//                                     SPAN elements; CPU only, may be missing
//          X_IS, Y_IS, C_IS           what an operand is: ABSENT, NUMBER (passed by value), or an array whose step
//                                     along the last axis is 0 (REPEATED), 1 (DENSE) or any (STRIDED)
//          OUT_IS                     DENSE or STRIDED, likewise
//          NDIM                       number of axes, at least 1, after axes that can be one have become one
//          INDEX                      unsigned type that counts out's elements
//          T, ACC, LOAD, DTYPE        type of x and y: stored, computed with, how to read it, polyarr's name
//          FLOATING, SIGNED, BOOLEAN  1 or 0: whether x and y are floats, have a sign, are bool
//          OUT_T, OUT_STORE           type of out, and how to write it
//          START                      int or long, the type of a window's start that is in memory; may be missing
//          WG, PER_ITEM               work-items per group, and vectors per work-item on a GPU
//          VECTOR                     elements of a vector. More than one where arrays are DENSE or REPEATED, and where
//                                     vectors neither begin nor end within a row, but for the last of a single row
//          RAW, WORD                  of x and y, see DEFINE_VECTOR; C_WORD of c; OUT_ACC, OUT_DTYPE, OUT_RAW, OUT_WORD
#if !defined(EXPRESSION) || !defined(NDIM) || !defined(INDEX) || !defined(WG) || !defined(PER_ITEM)
#error "elementwise.cl needs EXPRESSION, NDIM, INDEX, WG and PER_ITEM"
#endif
#if !defined(VECTOR) || !defined(RAW) || !defined(WORD) || !defined(C_WORD) || !defined(OUT_DTYPE) || !defined(OUT_WORD)
#error "elementwise.cl needs VECTOR, BITS, WORD, C_WORD, OUT_DTYPE, OUT_ACC, OUT_RAW and OUT_WORD"
#endif
#if !defined(X_IS) || !defined(Y_IS) || !defined(C_IS) || !defined(OUT_IS)
#error "elementwise.cl needs X_IS, Y_IS, C_IS and OUT_IS"
#endif
#if !defined(T) || !defined(ACC) || !defined(LOAD) || !defined(DTYPE) || !defined(OUT_T) || !defined(OUT_STORE)
#error "elementwise.cl needs T, ACC, LOAD, DTYPE, OUT_T and OUT_STORE"
#endif
#if !defined(FLOATING) || !defined(SIGNED) || !defined(BOOLEAN)
#error "elementwise.cl needs FLOATING, SIGNED and BOOLEAN"
#endif

#include "functions.cl"

#define ABSENT 0
#define NUMBER 1
#define REPEATED 2
#define DENSE 3
#define STRIDED 4
#define SPAN 256

#define JOIN_NAMES(a, b) a##b
#define NAMED(prefix, dtype) JOIN_NAMES(prefix, dtype)

// ---- functions for expressions ---------------------------------------------------------------------------------

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

#define TO_FLOAT16(x) (sizeof(ACC) > 4 ? round_to_odd(x) : (float)(x))
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
#define TO_FLOAT16(x) (x)
#define TO_INTEGER(x) (x)
#define TO_UINT64(x) (x)

#endif

// ---- operands --------------------------------------------------------------------------------------------------

typedef struct {
    long shape[NDIM], x[NDIM], y[NDIM], c[NDIM], out[NDIM];  // lengths, then every operand's strides
    long size, block;
} Layout;

#define STEP(is, strides) ((is) == DENSE ? 1 : (is) == REPEATED ? 0 : (strides)[NDIM - 1])

#if X_IS == NUMBER
#define X_PARAMETER const ACC x_number,
#define X_AT(base, j) x_number
#elif X_IS != ABSENT
#define X_PARAMETER __global const T *restrict x_data, const long x_offset,
#define X_AT(base, j) LOAD(x_data, (base) + (j) * STEP(X_IS, layout.x))
#else
#error "elementwise.cl: x may not be ABSENT"
#endif

#if Y_IS == NUMBER
#define Y_PARAMETER const ACC y_number,
#define Y_AT(base, j) y_number
#elif Y_IS != ABSENT
#define Y_PARAMETER __global const T *restrict y_data, const long y_offset,
#define Y_AT(base, j) LOAD(y_data, (base) + (j) * STEP(Y_IS, layout.y))
#else
#define Y_PARAMETER
#define Y_AT(base, j) 0
#endif

#if C_IS == NUMBER
#define C_PARAMETER const int c_number,
#define C_AT(base, j) c_number
#elif C_IS != ABSENT
#define C_PARAMETER __global const uchar *restrict c_data, const long c_offset,
#define C_AT(base, j) load_bool(c_data, (base) + (j) * STEP(C_IS, layout.c))
#else
#define C_PARAMETER
#define C_AT(base, j) 0
#endif

#if X_IS == NUMBER
#define x_offset 0
#endif
#if Y_IS == NUMBER || Y_IS == ABSENT
#define y_offset 0
#endif
#if C_IS == NUMBER || C_IS == ABSENT
#define c_offset 0
#endif

// Where element i of a row-major array of this shape is, axis by axis.
static inline void locate(INDEX i, const long *shape, INDEX *place) {
#pragma unroll
    for (int axis = NDIM - 1; axis > 0; axis--) {
        const INDEX length = (INDEX)shape[axis], quotient = i / length;
        place[axis] = i - quotient * length;
        i = quotient;
    }
    place[0] = i;
}

static inline long distance_to(const INDEX *place, const long *strides) {
    long sum = 0;
#pragma unroll
    for (int axis = 0; axis < NDIM; axis++) sum += place[axis] * strides[axis];
    return sum;
}

// ---- a window whose start is in memory -------------------------------------------------------------------------

#ifdef START
#define START_PARAMETER \
    , __global const START *restrict start_data, const long start_offset, const long first_start, \
    const long last_start, const long axis_length, const long x_step, const long out_step, FAULT

// The start; if it is out of range, the next one that is not, and a note of an element that is not there.
static inline long start_of(const long start, const long first, const long last, const long length, FAULT) {
    if (start >= first && start <= last) return start;
    if (get_global_id(0) == 0) note_fault(fault, call, start < first ? start - first : start + length - 1 - last, length);
    return start < first ? first : last;
}
#else
#define START_PARAMETER
#endif

// ---- kernel ----------------------------------------------------------------------------------------------------

// Elements j = first, first + stride ... < stop beyond a place where every operand advances by its own step.
#define COMPUTE(j, EXPRESSION) { \
        const ACC x = X_AT(x_base, j), y = Y_AT(y_base, j); \
        const int c = C_AT(c_base, j); \
        OUT_STORE(out, out_base + (j) * STEP(OUT_IS, layout.out), EXPRESSION); \
    }

#if VECTOR > 1
DEFINE_VECTOR(x, DTYPE, T, RAW, ACC, WORD)
DEFINE_VECTOR(c, bool, uchar, uchar, int, C_WORD)
DEFINE_VECTOR(out, OUT_DTYPE, OUT_T, OUT_RAW, OUT_ACC, OUT_WORD)

// The first `count` elements from the base on of an operand: DENSE ones, or one for all.
#define READ(is, read, data, at, base, v) \
    if (is == DENSE) read(data, base, (base) + count, v); \
    else EACH_OF_VECTOR v[k] = at(base, 0);
#if X_IS == NUMBER || X_IS == ABSENT
#define x_data 0
#endif
#if Y_IS == NUMBER || Y_IS == ABSENT
#define y_data 0
#endif
#if C_IS == NUMBER || C_IS == ABSENT
#define c_data 0
#endif
#define COMPUTE_VECTOR(count) { \
        ACC xs[VECTOR], ys[VECTOR]; \
        int cs[VECTOR]; \
        OUT_ACC outs[VECTOR]; \
        READ(X_IS, read_x, x_data, X_AT, x_base, xs) \
        READ(Y_IS, read_x, y_data, Y_AT, y_base, ys) \
        READ(C_IS, read_c, c_data, C_AT, c_base, cs) \
        EACH_OF_VECTOR { \
            const ACC x = xs[k], y = ys[k]; \
            const int c = cs[k]; \
            outs[k] = EXPRESSION; \
        } \
        write_out(out, out_base, out_base + count, outs); \
    }
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void elementwise(X_PARAMETER Y_PARAMETER C_PARAMETER __global OUT_T *restrict out, const long out_offset,
                 const Layout layout START_PARAMETER) {
    INDEX place[NDIM];
#ifdef START
    const long moved = start_of(start_data[start_offset], first_start, last_start, axis_length, fault, call);
    const long x_first = x_offset + moved * x_step, out_first = out_offset + moved * out_step;
#else
    const long x_first = x_offset, out_first = out_offset;
#endif
#if WG == 1
    const long start = (long)get_group_id(0) * layout.block, stop = MIN(start + layout.block, layout.size);
    for (long i = start, run; i < stop; i += run) {
        locate((INDEX)i, layout.shape, place);
        run = MIN(layout.shape[NDIM - 1] - (long)place[NDIM - 1], stop - i);
        const long x_base = x_first + distance_to(place, layout.x);
        const long y_base = y_offset + distance_to(place, layout.y);
        const long c_base = c_offset + distance_to(place, layout.c);
        const long out_base = out_first + distance_to(place, layout.out);
#ifdef USUAL
        for (long first = 0, last; first < run; first = last) {
            last = MIN(first + SPAN, run);
            int usual = 1;
            for (long j = first; j < last; j++) {
                const ACC x = X_AT(x_base, j), y = Y_AT(y_base, j);
                usual &= IS_USUAL;
            }
            if (usual)
                for (long j = first; j < last; j++) COMPUTE(j, USUAL)
            else
                for (long j = first; j < last; j++) COMPUTE(j, EXPRESSION)
        }
#else
        for (long j = 0; j < run; j++) COMPUTE(j, EXPRESSION)
#endif
    }
#else
    const size_t vectors = WG * PER_ITEM, start = get_group_id(0) * vectors + get_local_id(0);
#if VECTOR > 1
    const int is_aligned = ((x_first | y_offset | c_offset | out_first) & (VECTOR - 1)) == 0;
#endif
    const int is_whole = (get_group_id(0) + 1) * vectors * VECTOR <= layout.size;  // then no element is asked for
#pragma unroll
    for (int turn = 0; turn < PER_ITEM; turn++) {
        const long i = (start + turn * WG) * VECTOR;
        if (is_whole || i < layout.size) {
            locate((INDEX)i, layout.shape, place);
            const long x_base = x_first + distance_to(place, layout.x);
            const long y_base = y_offset + distance_to(place, layout.y);
            const long c_base = c_offset + distance_to(place, layout.c);
            const long out_base = out_first + distance_to(place, layout.out);
#if VECTOR > 1
            const int count = is_whole ? VECTOR : (int)MIN((long)VECTOR, layout.size - i);
            if (is_aligned) COMPUTE_VECTOR(count)
            else for (int j = 0; j < count; j++) COMPUTE(j, EXPRESSION)
#else
            COMPUTE(0, EXPRESSION)
#endif
        }
    }
#endif
}
