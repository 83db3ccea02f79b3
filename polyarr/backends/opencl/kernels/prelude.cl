// Included by every program. IS_CPU and HAS_FP64 are defined for the device.
//
// Terms used by all kernel files: "T, ACC, LOAD, STORE of a dtype" are the type that its elements are stored in, the
// type that arithmetic is done in, and the functions load_<dtype> and store_<dtype> below. `me` is a work-item's index
// among those that share something (often a row), LANES is their number, a power of two. `each` is a number of units
// per work-item or group.
#pragma OPENCL FP_CONTRACT ON
#if HAS_FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// By default clang vectorizes with 256 bits even for AVX-512. This allows 512-bit vectors in kernels and in functions
// marked WIDE_VECTORS, and requests them for loops marked WIDELY; WIDELY_AND_INTERLEAVED also computes four of them side
// by side.
#if IS_CPU && defined(__AVX512F__)
#define WIDE_VECTORS __attribute__((min_vector_width(512)))
#define __kernel __kernel WIDE_VECTORS
#define WIDELY _Pragma("clang loop vectorize_width(16)")
#define WIDELY_AND_INTERLEAVED _Pragma("clang loop vectorize_width(16) interleave_count(4)")
#define WIDE_LOOPS 16  // minimum iterations of a loop marked WIDELY
#else
#define WIDE_VECTORS
#define WIDELY
#define WIDELY_AND_INTERLEAVED
#endif

// clang's builtins compile to instructions, whereas PoCL implements the functions of OpenCL C as calls. Use builtins
// below `#if HAS_BUILTINS` only: drivers that compile to SPIR-V, such as Mesa's, do not have them.
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__arm__) || defined(__riscv))
#define HAS_BUILTINS 1
#else
#define HAS_BUILTINS 0
#endif

// PoCL implements min and max as calls; these are inlined.
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

// PASTE(load_, DTYPE) is load_float32 if DTYPE is float32: it expands its arguments first.
#define PASTE_NOW(a, b) a##b
#define PASTE(a, b) PASTE_NOW(a, b)

// Arguments of kernels that can find an index out of range or a bad matrix: where the first faulty call of a thread, and
// one fault of that call, are recorded; see faults.py. The call is a number, or 0 if it is word TIME of the record.
#define FAULT __global volatile int *fault, const long call
#define TIME 4

static inline void note_fault(FAULT, long index, long limit) {
    if (atomic_cmpxchg(fault, 0, call ? (int)call : fault[TIME]) == 0) {
        fault[1] = (int)index;
        fault[2] = (int)limit;
        fault[3] = (int)((index - (int)index) >> 32);
    }
}

// Note that a matrix has no result; `message` is the number of the error's message.
static inline void note_matrix(FAULT, int message) { note_fault(fault, call, message, -1); }

// SUM += V with Kahan's compensated summation; LOST holds the rounding error, 0 at first. If the sum is infinite or nan,
// the error is taken as 0: the difference of two infinities is nan.
#define KAHAN_ADD(TYPE, SUM, LOST, V) { \
        const TYPE added = (V) - (LOST); \
        const TYPE next = (SUM) + added; \
        const TYPE error = (next - (SUM)) - added; \
        (LOST) = next - next == 0 ? error : 0; \
        (SUM) = next; \
    }

// A float8 of any alignment, accessed by plain dereferences, because PoCL does not inline vload8 and vstore8.
typedef float8 __attribute__((aligned(4))) float8_unaligned;

// load_<dtype>(p, i) widens element i to the arithmetic type; store_<dtype>(p, i, v) rounds v. widen_<dtype>(v) and
// narrow_<dtype>(v) do the same to a value; a float16 value is passed as its bits.
#define DEFINE_PLAIN(NAME, STORED, WIDE) \
    static inline WIDE widen_##NAME(STORED v) { return (WIDE)v; } \
    static inline STORED narrow_##NAME(WIDE v) { return (STORED)v; } \
    static inline WIDE load_##NAME(__global const STORED *p, size_t i) { return (WIDE)p[i]; } \
    static inline void store_##NAME(__global STORED *p, size_t i, WIDE v) { p[i] = (STORED)v; }
DEFINE_PLAIN(int8, char, int)
DEFINE_PLAIN(int16, short, int)
DEFINE_PLAIN(int32, int, int)
DEFINE_PLAIN(int64, long, long)
DEFINE_PLAIN(uint8, uchar, uint)
DEFINE_PLAIN(uint16, ushort, uint)
DEFINE_PLAIN(uint32, uint, uint)
DEFINE_PLAIN(uint64, ulong, ulong)
DEFINE_PLAIN(float32, float, float)
DEFINE_PLAIN(complex64, float2, float2)
#if HAS_FP64
DEFINE_PLAIN(float64, double, double)
DEFINE_PLAIN(complex128, double2, double2)

// complex64 whose arithmetic type is double2, for long products.
static inline double2 widen_complex64_wide(float2 v) { return (double2)((double)v.x, (double)v.y); }
static inline float2 narrow_complex64_wide(double2 v) { return (float2)((float)v.x, (float)v.y); }
static inline double2 load_complex64_wide(__global const float2 *p, size_t i) { return widen_complex64_wide(p[i]); }
static inline void store_complex64_wide(__global float2 *p, size_t i, double2 v) { p[i] = narrow_complex64_wide(v); }
#endif

static inline int widen_bool(uchar v) { return v != 0; }
static inline uchar narrow_bool(int v) { return v != 0; }
static inline int load_bool(__global const uchar *p, size_t i) { return p[i] != 0; }
static inline void store_bool(__global uchar *p, size_t i, int v) { p[i] = v != 0; }

#if IS_CPU  // bit manipulation, because PoCL implements vload_half and vstore_half as calls
static inline float widen_float16(ushort stored) {
    const uint bits = stored, m = (bits & 0x7fffu) << 13;
    const float small = as_float(m + 0x38800000u) - as_float(0x38800000u);
    const uint size = m < 0x800000u ? as_uint(small) : m + (m < 0xf800000u ? 0x38000000u : 0x70000000u);
    return as_float(size | (bits & 0x8000u) << 16);
}
static inline ushort narrow_float16(float v) {
    const uint bits = as_uint(v), m = bits & 0x7fffffffu;
    const uint small = as_uint(as_float(m) + 0.5f) - as_uint(0.5f);  // in steps of 2^-24, to nearest even
    const uint normal = (m + 0xfffu + (m >> 13 & 1u) - 0x38000000u) >> 13;
    const uint large = m > 0x7f800000u ? 0x7e00u | (m >> 13 & 0x3ffu) : 0x7c00u;
    const uint size = m < 0x38800000u ? small : m < 0x47800000u ? normal : large;
    return (ushort)(size | (bits >> 16 & 0x8000u));
}
static inline float load_float16(__global const half *p, size_t i) {
    return widen_float16(((__global const ushort *)p)[i]);
}
static inline void store_float16(__global half *p, size_t i, float v) {
    ((__global ushort *)p)[i] = narrow_float16(v);
}
#else  // access through bytes, which may alias anything: compilers may assume that half and ushort do not alias
// NVIDIA's conversion clears the sign of nan, so the sign bit (in the second byte) is set again.
static inline float with_sign(float v, uint byte) { return as_float(as_uint(v) | (byte & 0x80u) << 24); }
static inline float widen_float16(ushort bits) {
    const uchar2 bytes = as_uchar2(bits);
    return with_sign(vload_half(0, (const half *)&bytes), bytes.y);
}
static inline ushort narrow_float16(float v) {
    uchar2 bytes;
    vstore_half_rte(v, 0, (half *)&bytes);
    return as_ushort(bytes);
}
static inline float load_float16(__global const half *p, size_t i) {
    return with_sign(vload_half(i, p), ((__global const uchar *)(p + i))[1]);
}
static inline void store_float16(__global half *p, size_t i, float v) { vstore_half_rte(v, i, p); }
#endif

// bfloat16 is the upper half of a float32, rounded to nearest, ties to even; nan stays nan.
static inline float widen_bfloat16(ushort bits) { return as_float((uint)bits << 16); }
#ifdef ROUND_TO_BFLOAT16  // the device has an instruction, which the vendor's macro names
static inline ushort narrow_bfloat16(float v) {
    ushort bits;
    ROUND_TO_BFLOAT16(bits, v);
    return bits;
}
#else
static inline ushort narrow_bfloat16(float v) {
    const uint bits = as_uint(v);
    const uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (ushort)(v != v ? (bits >> 16) | 0x40u : rounded);
}
#endif
static inline float load_bfloat16(__global const ushort *p, size_t i) { return widen_bfloat16(p[i]); }
static inline void store_bfloat16(__global ushort *p, size_t i, float v) { p[i] = narrow_bfloat16(v); }

// ---- elementary functions that compilers can inline and vectorize ----------------------------------------------
//
// PoCL implements exp, tanh, erf and log as calls. These are straight-line code with a relative error of about 1e-7,
// and treat nan, infinities, subnormals and signed zeros correctly. The polynomials are weighted minimax fits.

#define ROUND_BY_ADDING 12582912.0f  // 1.5 * 2^23: the sum's low bits are x rounded to an integer

// x = n ln2 + r with |r| <= ln2 / 2. Returns n and a multiple of 2^22, and exp(r) - 1 in *excess.
static inline int split_exp(float x, float *excess) {
    const float shifted = x * 1.44269504f + ROUND_BY_ADDING;
    const float n = shifted - ROUND_BY_ADDING;
    const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln2 in two parts, the first exact times n
    const float p = (((1.394678111e-3f * r + 8.366774875e-3f) * r + 4.166627759e-2f) * r + 1.666654157e-1f) * r + 0.5f;
    *excess = r * r * p + r;
    return as_int(shifted);
}

// 2^n; only the lowest 9 bits of n are used.
static inline float two_to_the(int n) { return as_float(((uint)n << 23) + 0x3f800000u); }

static inline float exp_fast(float x) {
    // The result is inf from 89 on and 0 below -104. From -176 on both factors are 0: a product that underflows is a
    // hundred times slower on some processors. nan passes through.
    const float least = x < -176.0f ? -176.0f : x, bounded = least > 89.0f ? 89.0f : least;
    float excess;
    const int n = split_exp(bounded, &excess);
    const int half_n = n >> 1;  // 2^n in two factors, because n may be 128 or less than -126
    return (excess + 1.0f) * two_to_the(half_n) * two_to_the(n - half_n);
}

// exp(x) - 1 for x <= 0, without cancellation near 0.
static inline float expm1_of_negative(float x) {
    const float bounded = x < -40.0f ? -40.0f : x;
    float excess;
    const float scale = two_to_the(split_exp(bounded, &excess));
    return excess * scale + (scale - 1.0f);
}

static inline float with_sign_of(float magnitude, float sign) {
    return as_float((as_uint(magnitude) & 0x7fffffffu) | (as_uint(sign) & 0x80000000u));
}

static inline float magnitude_of(float x) { return as_float(as_uint(x) & 0x7fffffffu); }

// tanh |x| = -e / (e + 2) with e = exp(-2 |x|) - 1.
static inline float tanh_fast(float x) {
    const float e = expm1_of_negative(-2.0f * magnitude_of(x));
    return with_sign_of(e / (e + 2.0f), x);
}

// erf |x| = 1 - exp(-h), and h(|x|) = -log(erfc |x|) is |x| times a polynomial; from 4 on erf is 1 in a float.
static inline float erf_fast(float x) {
    const float magnitude = magnitude_of(x), t = magnitude > 4.0f ? 4.0f : magnitude;
    float p = -9.258836788e-6f * t + 1.176652253e-4f;
    p = ((p * t - 6.329263603e-4f) * t + 1.667200143e-3f) * t - 1.605804784e-4f;
    p = (((p * t - 1.915295545e-2f) * t + 1.027777977e-1f) * t + 6.366193863e-1f) * t + 1.128379171f;
    return with_sign_of(expm1_of_negative(-t * p), x);
}

// x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2); log(1 + f) - f is f^2 times a polynomial.
static inline float log_fast(float x) {
    const int tiny = x < 1.17549435e-38f;
    const uint bits = as_uint(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;  // less the bits of sqrt(1/2)
    const float n = (float)(((int)bits >> 23) - (tiny ? 23 : 0));
    const float f = as_float((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = (-7.824697130e-2f * f + 1.300673812e-1f) * f - 1.320918460e-1f;
    p = ((p * f + 1.416320759e-1f) * f - 1.661107940e-1f) * f + 2.000302646e-1f;
    p = ((p * f - 2.500152494e-1f) * f + 3.333330816e-1f) * f - 4.999998913e-1f;
    const float y = n * 0.693145752f + (f + (f * f * p + n * 1.42860677e-6f));
    const float special = x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    return x > 0.0f && x < INFINITY ? y : special;
}

// EXP, TANH, ERF, LOG and SQRT accept a float or a double: the functions above for floats on CPUs, the built-in ones
// otherwise.
#if IS_CPU
#if HAS_BUILTINS
#define SQRT_DOUBLE(x) __builtin_sqrt(x)
static inline float sqrt_fast(float x) { return __builtin_sqrtf(x); }
#else
#define SQRT_DOUBLE(x) sqrt(x)
static inline float sqrt_fast(float x) { return sqrt(x); }
#endif
#define CHOICE static inline __attribute__((overloadable))
#define DEFINE_CHOICE(NAME) CHOICE float NAME##_of(float x) { return NAME##_fast(x); }
DEFINE_CHOICE(exp)
DEFINE_CHOICE(tanh)
DEFINE_CHOICE(erf)
DEFINE_CHOICE(log)
DEFINE_CHOICE(sqrt)
#if HAS_FP64
#define DEFINE_DOUBLE(NAME) CHOICE double NAME##_of(double x) { return NAME(x); }
DEFINE_DOUBLE(exp)
DEFINE_DOUBLE(tanh)
DEFINE_DOUBLE(erf)
DEFINE_DOUBLE(log)
DEFINE_DOUBLE(sqrt)
#endif
#define EXP(x) exp_of(x)
#define TANH(x) tanh_of(x)
#define ERF(x) erf_of(x)
#define LOG(x) log_of(x)
#define SQRT(x) sqrt_of(x)
#else
#define EXP(x) exp(x)
#define TANH(x) tanh(x)
#define ERF(x) erf(x)
#define LOG(x) log(x)
#define SQRT(x) sqrt(x)
#endif

// exp and 1 / x for programs of a dtype T, of whose results 16-bit dtypes keep 11 bits at most: GPUs have instructions
// that are good for 20 or more.
#if IS_CPU
#define EXP_TO_T(x) EXP(x)
#define RECIPROCAL_TO_T(x) (1 / (x))
#else
#ifdef APPROXIMATE_EXP2
static inline float quick_exp2(float x) {
    float v;
    APPROXIMATE_EXP2(v, x);
    return v;
}
static inline float quick_reciprocal(float x) {
    float v;
    APPROXIMATE_RECIPROCAL(v, x);
    return v;
}
#else
static inline float quick_exp2(float x) { return native_exp2(x); }
static inline float quick_reciprocal(float x) { return native_recip(x); }
#endif
#define EXP_TO_T(x) (sizeof(T) == 2 ? (ACC)quick_exp2((float)(x) * 1.44269504f) : EXP(x))
#define RECIPROCAL_TO_T(x) (sizeof(T) == 2 ? (ACC)quick_reciprocal((float)(x)) : 1 / (x))
#endif

// ---- random bits ----------------------------------------------------------------------------------------------

// Philox4x32-10 (Salmon et al. 2011): four random words for a 128-bit counter and a 64-bit key.
#define PHILOX_STEP_0 0x9e3779b9u
#define PHILOX_STEP_1 0xbb67ae85u
#define PHILOX_ROUND(a, b, c, d, k0, k1) { \
        const ulong p = (ulong)(a) * 0xd2511f53u, q = (ulong)(c) * 0xcd9e8d57u; \
        a = (uint)(q >> 32) ^ (b) ^ (k0); \
        c = (uint)(p >> 32) ^ (d) ^ (k1); \
        b = (uint)q; \
        d = (uint)p; \
    }

static inline uint4 philox(uint4 counter, uint2 key) {
    uint a = counter.x, b = counter.y, c = counter.z, d = counter.w, k0 = key.x, k1 = key.y;
    for (int round = 0; round < 10; round++, k0 += PHILOX_STEP_0, k1 += PHILOX_STEP_1)
        PHILOX_ROUND(a, b, c, d, k0, k1)
    return (uint4)(a, b, c, d);
}

// The random words of elements 4 block .. 4 block + 3 of the stream (key, counter).
static inline uint4 philox4x32(ulong block, ulong counter, ulong key) {
    const uint4 words = (uint4)((uint)block, (uint)(block >> 32), (uint)counter, (uint)(counter >> 32));
    return philox(words, (uint2)((uint)key, (uint)(key >> 32)));
}

// STATE declares the arguments for key and counter; STATE_KEY and STATE_COUNTER read them: from memory if
// STATE_ON_DEVICE.
#define STATE const ulong key_given, const ulong counter_given, __global const ulong *restrict key_at, \
    __global const ulong *restrict counter_at
#define STATE_KEY (STATE_ON_DEVICE ? *key_at : key_given)
#define STATE_COUNTER (STATE_ON_DEVICE ? *counter_at : counter_given)

// ---- work-group reductions --------------------------------------------------------------------------------------

#define ADD(a, b) ((a) + (b))
// The product of complex numbers, which are vectors of type A.
#define MULTIPLY_COMPLEX(a, b) ((A)((a).x * (b).x - (a).y * (b).y, (a).x * (b).y + (a).y * (b).x))
// Maximum and minimum that propagate nan. | instead of || avoids a branch, so that compilers vectorize.
#define LARGEST(a, b) (((a) > (b)) | ((a) != (a)) ? (a) : (b))
#define LEAST(a, b) (((a) < (b)) | ((a) != (a)) ? (a) : (b))

// Defines A NAME(A v, int me, __local A *lane): reduce v by JOIN over the LANES work-items (a power of two) that share
// lane[LANES]; me is the work-item's index among them. All receive the result. Every work-item of the group must call
// it. With one lane it compiles to nothing.
#define DEFINE_JOIN(NAME, A, LANES, JOIN) \
    static inline A NAME(A v, int me, __local A *lane) { \
        if (LANES > 1) { \
            lane[me] = v; \
            for (int step = LANES / 2; step > 0; step /= 2) { \
                barrier(CLK_LOCAL_MEM_FENCE); \
                if (me < step) lane[me] = JOIN(lane[me], lane[me + step]); \
            } \
            barrier(CLK_LOCAL_MEM_FENCE); \
            v = lane[0]; \
            barrier(CLK_LOCAL_MEM_FENCE); /* the next reduction may reuse lane */ \
        } \
        return v; \
    }

// ---- rows -------------------------------------------------------------------------------------------------------
//
// For programs that define LANES, WIDE, ROWS and the macros of a dtype: LANES work-items share a row of any length, a
// work-group has ROWS rows at once, and each work-item keeps WIDE partial results, so that loads overlap and, with one
// lane, the compiler can vectorize. A work-group processes rows_each * ROWS rows. See rows.py.
#if defined(LANES) && defined(WIDE)
#define ROW_GROUP __attribute__((reqd_work_group_size(LANES, ROWS, 1)))

// Loop over the rows of a work-group; declares row and columns, and me and lane for the reductions below. A row past
// the end has 0 columns.
#define EACH_ROW(rows, cols, rows_each) \
    __local ACC lanes[LANES * ROWS]; \
    __local ACC *lane = lanes + get_local_id(1) * LANES; \
    const int me = get_local_id(0); \
    const size_t first_row = get_group_id(1) * rows_each * ROWS + get_local_id(1); \
    size_t row = first_row, columns = row < rows ? cols : 0; \
    for (long turn = 0; turn < rows_each; turn++, row += ROWS, columns = row < rows ? cols : 0)

// Run statements for each column c of a work-item's share of the row; w is the index of the partial result for it. The
// statements are one macro argument, so they must not contain a comma outside of parentheses. The loop is unrolled, to
// keep partial results in registers; if NARROW, for 16-bit dtypes, it is vectorized. EACH_COLUMN_WIDELY, for expensive
// columns, is always vectorized if it is long enough. EACH_COLUMN_FROM and EACH_COLUMN_WIDELY_FROM skip the first ones.
#if defined(NARROW) && NARROW && HAS_BUILTINS && WIDE < 16
#define EACH_COLUMN_FROM(FIRST, STATEMENTS) COLUMN_LOOPS(FIRST, _Pragma("clang loop vectorize_width(8)"), STATEMENTS)
#elif defined(NARROW) && NARROW && HAS_BUILTINS  // in some unrolled loops clang does not vectorize conversions
#define EACH_COLUMN_FROM(FIRST, STATEMENTS) COLUMN_LOOPS(FIRST, _Pragma("clang loop vectorize_width(16)"), STATEMENTS)
#else
#define EACH_COLUMN_FROM(FIRST, STATEMENTS) COLUMN_LOOPS(FIRST, _Pragma("unroll"), STATEMENTS)
#endif
#if defined(WIDE_LOOPS) && WIDE >= WIDE_LOOPS
#define EACH_COLUMN_WIDELY_FROM(FIRST, STATEMENTS) COLUMN_LOOPS(FIRST, WIDELY, STATEMENTS)
#else
#define EACH_COLUMN_WIDELY_FROM EACH_COLUMN_FROM
#endif
#define EACH_COLUMN(STATEMENTS) EACH_COLUMN_FROM(0, STATEMENTS)
#define EACH_COLUMN_WIDELY(STATEMENTS) EACH_COLUMN_WIDELY_FROM(0, STATEMENTS)
#define COLUMN_LOOPS(FIRST, HOW, STATEMENTS) { \
        size_t base = FIRST; \
        for (; base + WIDE * LANES <= columns; base += WIDE * LANES) \
            HOW for (int w = 0; w < WIDE; w++) { \
                const size_t c = base + w * LANES + me; \
                STATEMENTS \
            } \
        for (int w = 0; w < WIDE; w++) { \
            const size_t c = base + w * LANES + me; \
            if (c < columns) { \
                STATEMENTS \
            } \
        } \
    }

DEFINE_JOIN(lanes_sum, ACC, LANES, ADD)
DEFINE_JOIN(lanes_max, ACC, LANES, MAX)

// row_sum and row_max: reduce the partial results of a row.
#define DEFINE_ROW_JOIN(NAME, LANES_JOIN, JOIN) \
    static inline ACC NAME(ACC *part, int me, __local ACC *lane) { \
        for (int step = WIDE / 2; step > 0; step /= 2) \
            for (int w = 0; w < step; w++) part[w] = JOIN(part[w], part[w + step]); \
        return LANES_JOIN(part[0], me, lane); \
    }
DEFINE_ROW_JOIN(row_sum, lanes_sum, ADD)
DEFINE_ROW_JOIN(row_max, lanes_max, MAX)

#if !defined(FLOATING) || FLOATING  // gemv.cl takes integers too
static inline ACC row_largest(__global const T *restrict x, size_t columns, int me, __local ACC *lane) {
    ACC largest[WIDE];
    for (int w = 0; w < WIDE; w++) largest[w] = -INFINITY;
    EACH_COLUMN(const ACC v = LOAD(x, c); largest[w] = MAX(largest[w], v);)
    return row_max(largest, me, lane);
}

// Return the largest element m of a row, and in *sum the sum of exp(x - m), which is nan if the row has nan, inf, or
// only -inf.
static inline ACC row_exponentials(__global const T *restrict x, size_t columns, int me, __local ACC *lane, ACC *sum) {
    ACC part[WIDE];
    for (int w = 0; w < WIDE; w++) part[w] = 0;
    const ACC m = row_largest(x, columns, me, lane);
    EACH_COLUMN_WIDELY(part[w] += EXP(LOAD(x, c) - m);)
    *sum = row_sum(part, me, lane);
    return m;
}
#endif
#endif

// ---- blocks -----------------------------------------------------------------------------------------------------
//
// For programs that define GROUP and BLOCK: a work-group of GROUP work-items processes BLOCK consecutive elements.
#if defined(GROUP) && defined(BLOCK)
#define BLOCK_GROUP __attribute__((reqd_work_group_size(GROUP, 1, 1)))
#define BLOCKS(n) (((n) + BLOCK - 1) / BLOCK)
// Loop over these elements, VECTOR at a time: i is the first of a vector, and `end` may lie within it.
#define EACH_RUN_OF_BLOCK(i, block, n) \
    for (size_t i = (size_t)(block) * BLOCK + get_local_id(0) * VECTOR, \
                end = MIN(((size_t)(block) + 1) * BLOCK, (size_t)(n)); i < end; i += GROUP * VECTOR)
#endif

// ---- vectors ----------------------------------------------------------------------------------------------------
//
// For programs that define VECTOR, the number of elements per vector. DEFINE_VECTOR(NAME, DTYPE, T, RAW, ACC, WORD)
// defines read_NAME(p, i, end, v), which widens elements i .. i + VECTOR - 1 of p into v (0 from `end` on), and
// write_NAME(p, i, end, v). i is a multiple of VECTOR. RAW is the storage type of an element, WORD the type of VECTOR
// elements, which are loaded or stored at once if they all lie before `end`.
#ifdef VECTOR
#define EACH_OF_VECTOR _Pragma("unroll") for (int k = 0; k < VECTOR; k++)
#if VECTOR > 1
#define DEFINE_VECTOR_NOW(NAME, DTYPE, T, RAW, ACC, WORD) \
    typedef union { WORD word; RAW each[VECTOR]; } Word_##NAME; \
    static inline void read_##NAME(__global const T *p, size_t i, size_t end, ACC *v) { \
        if (i + VECTOR <= end) { \
            Word_##NAME u; \
            u.word = *(__global const WORD *)(p + i); \
            EACH_OF_VECTOR v[k] = widen_##DTYPE(u.each[k]); \
        } else { \
            EACH_OF_VECTOR v[k] = i + k < end ? load_##DTYPE(p, i + k) : (ACC)0; \
        } \
    } \
    static inline void write_##NAME(__global T *p, size_t i, size_t end, const ACC *v) { \
        if (i + VECTOR <= end) { \
            Word_##NAME u; \
            EACH_OF_VECTOR u.each[k] = narrow_##DTYPE(v[k]); \
            *(__global WORD *)(p + i) = u.word; \
        } else { \
            EACH_OF_VECTOR if (i + k < end) store_##DTYPE(p, i + k, v[k]); \
        } \
    }
#else
#define DEFINE_VECTOR_NOW(NAME, DTYPE, T, RAW, ACC, WORD) \
    typedef union { WORD word; RAW each[1]; } Word_##NAME; \
    static inline void read_##NAME(__global const T *p, size_t i, size_t end, ACC *v) { v[0] = load_##DTYPE(p, i); } \
    static inline void write_##NAME(__global T *p, size_t i, size_t end, const ACC *v) { store_##DTYPE(p, i, v[0]); }
#endif
#define DEFINE_VECTOR(NAME, DTYPE, T, RAW, ACC, WORD) DEFINE_VECTOR_NOW(NAME, DTYPE, T, RAW, ACC, WORD)
#endif

// ---- activations ------------------------------------------------------------------------------------------------
//
// For programs that define ACTIVATION as none, relu, silu, gelu or gelu_tanh: ACTIVATE(x) and its derivative SLOPE(x).
#ifdef ACTIVATION
#define ACTIVATE(x) PASTE(activate_, ACTIVATION)(x)
#define SLOPE(x) PASTE(slope_, ACTIVATION)(x)
#define HALF ((ACC)0.5)

static inline ACC activate_none(ACC x) { return x; }
static inline ACC slope_none(ACC x) { return 1; }

static inline ACC activate_relu(ACC x) { return x < 0 ? 0 : x; }  // propagates nan
static inline ACC slope_relu(ACC x) { return x > 0; }

#if FLOATING
static inline ACC activate_silu(ACC x) {
    return sizeof(T) == 2 ? x * RECIPROCAL_TO_T(1 + EXP_TO_T(-x)) : x / (1 + EXP(-x));
}
static inline ACC slope_silu(ACC x) {
    const ACC s = RECIPROCAL_TO_T(1 + EXP_TO_T(-x));
    return s + x * s * (1 - s);
}

#if IS_CPU
// HALF * x * (1 + ERF(x / sqrt(2))), with x erf(x) = |x| erf |x| and erf |x| = 1 - 2^-h, where h is |x| times a
// polynomial.
static inline float gelu_fast(float x) {
    const float a = magnitude_of(x), t = a > 5.65685425f ? 5.65685425f : a;
    float p = -5.903315398e-07f * t + 1.060968981e-05f;
    p = ((p * t - 8.070914337e-05f) * t + 3.006576723e-04f) * t - 4.095362009e-05f;
    p = (((p * t - 6.907968462e-03f) * t + 5.242384283e-02f) * t + 4.592238158e-01f) * t + 1.151104103e+00f;
    const float shifted = ROUND_BY_ADDING - t * p, n = shifted - ROUND_BY_ADDING, r = -t * p - n;
    float q = ((1.546773600e-04f * r + 1.338706552e-03f) * r + 9.618039295e-03f) * r + 5.550369206e-02f;
    q = q * r + 2.402265070e-01f;
    const float scale = two_to_the(as_int(shifted) - as_int(ROUND_BY_ADDING)), excess = r * (r * q + 0.693147181f);
    const float half_x = 0.5f * x, half_a = 0.5f * a;  // x + a may be infinite; in one expression their fma would round
    return half_x - half_a * (excess * scale + (scale - 1.0f));
}
CHOICE float gelu_of(float x) { return gelu_fast(x); }
#if HAS_FP64
CHOICE double gelu_of(double x) { return 0.5 * x * (1 + ERF(x * 0.7071067811865476)); }
#endif
static inline ACC activate_gelu(ACC x) { return gelu_of(x); }
#else
static inline ACC activate_gelu(ACC x) { return HALF * x * (1 + ERF(x * (ACC)0.7071067811865476)); }
#endif
static inline ACC slope_gelu(ACC x) {
    return HALF * (1 + ERF(x * (ACC)0.7071067811865476)) + x * EXP(-HALF * x * x) * (ACC)0.3989422804014327;
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which keeps its digits where tanh(u) is nearly -1.
#if IS_CPU
#define SHARE_OF_GELU(x) (1 / (1 + EXP((ACC)-1.5957691216057308 * ((x) + (ACC)0.044715 * (x) * (x) * (x)))))
static inline ACC activate_gelu_tanh(ACC x) { return x * SHARE_OF_GELU(x); }
static inline ACC slope_gelu_tanh(ACC x) {
    const ACC b = x < -100 ? -100 : x > 100 ? 100 : x;  // clamped against overflow of b^2; the slope is 0 or 1 there
    const ACC s = SHARE_OF_GELU(b);
    return s + b * s * (1 - s) * (ACC)1.5957691216057308 * (1 + 3 * (ACC)0.044715 * b * b);
}
#else  // fewer operations; `square` is that of x, or of another number of nearly the same share
static inline ACC share_of_gelu(ACC x, ACC square) {
    const ACC u = x * ((ACC)-1.5957691216057308 + (ACC)-0.07135481627260025 * square);
    return RECIPROCAL_TO_T(1 + EXP_TO_T(u));
}
static inline ACC activate_gelu_tanh(ACC x) { return x * share_of_gelu(x, x * x); }
static inline ACC slope_gelu_tanh(ACC x) {
    const ACC b = fmax(fmin(x, (ACC)100), (ACC)-100);  // against overflow of b^2; nan is in s
    const ACC s = share_of_gelu(x, b * b);
    return s + (s - s * s) * (b * ((ACC)1.5957691216057308 + (ACC)0.21406444881780076 * (b * b)));
}
#endif
#endif
#endif
