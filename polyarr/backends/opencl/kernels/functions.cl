// Elementary functions of a float that CPU compilers can inline and vectorize. Those that other kernels than the
// elementwise ones use are in prelude.cl.
//
// PoCL implements these as calls, one element at a time. The functions here have neither calls nor branches. Most
// compute in double, where a polynomial with an error of 1e-9 is all that a float result needs: results are the
// correctly rounded float or a neighbor of it, for every argument. nan, infinities, subnormals and signed zeros are
// treated as in C. The polynomials are minimax fits.

#if IS_CPU && HAS_FP64

#define LN2 0.69314718055994531
#define PI 3.1415926535897932

#if HAS_BUILTINS
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) fma(a, b, c)
#endif

static inline int is_finite(float x) { return magnitude_of(x) < INFINITY; }

// ---- logarithms -------------------------------------------------------------------------------------------------

// log2 of v > 0 that is finite as a float. With v = 2^n (1 + s) / (1 - s) it is n plus an odd polynomial of s.
static inline double log2_wide(double v) {
    const int tiny = v < 1e-37;
    const double u = tiny ? v * 8388608.0 : v;
    const int n = (int)(as_uint((float)u) - 0x3f3504f3u) >> 23;  // minus the bits of sqrt(1/2)
    const double scaled = u * as_double((ulong)(uint)(1023 - n) << 52);
    const double s = (scaled - 1.0) / (scaled + 1.0), z = s * s;
    double p = 0.34074899206164622 * z + 0.41167174522803174;
    p = ((p * z + 0.57708360033887984) * z + 0.96179667326624685) * z + 2.8853900817901419;
    return (double)(tiny ? n - 23 : n) + s * p;
}

// log2(x) * scale
static inline float scaled_log2(float x, double scale) {
    const int regular = (x > 0.0f) & (x < INFINITY);
    const float special = x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    const float y = (float)(log2_wide(regular ? x : 1.0f) * scale);
    return regular ? y : special;
}

static inline float log2_fast(float x) { return scaled_log2(x, 1.0); }
static inline float log10_fast(float x) { return scaled_log2(x, 0.30102999566398120); }

static inline float log1p_fast(float x) {
    const int regular = (x > -1.0f) & (x < INFINITY) & (magnitude_of(x) > 2e-8f);  // below that log1p(x) is x
    const float special = x == -1.0f ? -INFINITY : x < -1.0f ? NAN : x;
    const float y = (float)(log2_wide(1.0 + (double)(regular ? x : 1.0f)) * LN2);
    return regular ? y : special;
}

// The factors 0.5 keep the arguments of log2_wide finite as floats for the largest x.
static inline float asinh_fast(float x) {
    const float a = magnitude_of(x);
    const int regular = (a < INFINITY) & (a > 1e-4f);  // below that asinh(x) is x
    const double u = regular ? a : 1.0f;
    const double y = (log2_wide(0.5 * (u + SQRT_DOUBLE(u * u + 1.0))) + 1.0) * LN2;
    return regular ? with_sign_of((float)y, x) : x;
}

static inline float acosh_fast(float x) {
    const int regular = (x >= 1.0f) & (x < INFINITY);
    const double u = regular ? x : 1.0f;
    const float y = (float)((log2_wide(0.5 * (u + SQRT_DOUBLE(u * u - 1.0))) + 1.0) * LN2);
    return regular ? y : x < 1.0f ? NAN : x;
}

static inline float atanh_fast(float x) {
    const float a = magnitude_of(x);
    const int regular = (a < 1.0f) & (a > 1e-4f);  // below that atanh(x) is x
    const double u = regular ? x : 0.5f;
    const float y = (float)(log2_wide((1.0 + u) / (1.0 - u)) * (0.5 * LN2));
    return regular ? y : a < 1.0f ? x : a == 1.0f ? with_sign_of(INFINITY, x) : NAN;
}

// ---- exponentials and powers ------------------------------------------------------------------------------------

// 2^t in double; converted to float it is 0 or inf if t is beyond the exponent range of floats.
static inline double exp2_wide(double t) {
    const double bounded = t > -200.0 ? t < 200.0 ? t : 200.0 : -200.0;
    const double n = (bounded + 6755399441055744.0) - 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer
    const double r = bounded - n;
    double p = (1.5345811776698364e-4 * r + 1.3399931218250893e-3) * r + 9.6184889579638728e-3;
    p = ((p * r + 5.5503287769684488e-2) * r + 2.4022646890626306e-1) * r + 6.9314720573726440e-1;
    return (p * r + 1.0000000005541665) * as_double((ulong)(uint)((int)n + 1023) << 52);
}

static inline float pow_fast(float x, float y) {
    const float a = magnitude_of(x), b = magnitude_of(y);
    const int regular = (a > 0.0f) & (a < INFINITY);
    const double logarithm = log2_wide(regular ? a : 1.0f);
    const double exponent = y * (regular ? logarithm : a == 0.0f ? -INFINITY : INFINITY);
    const float size = (float)exp2_wide(exponent == exponent ? exponent : 0.0);  // the exponent of 1 ^ inf is nan

    const int near = b < 16777216.0f, whole_part = (int)(near ? y : 0.0f);  // from 2^24 on all floats are even
    const int is_whole = !near | ((float)whole_part == y);
    const int is_odd = near & is_whole & whole_part;
    const float power = is_odd ? with_sign_of(size, x) : size;
    const int is_nan = (x != x) | (y != y) | ((x < 0.0f) & (a < INFINITY) & !is_whole);
    return (y == 0.0f) | (x == 1.0f) ? 1.0f : is_nan ? NAN : power;
}

static inline float expm1_fast(float x) {
    const float bounded = x > -40.0f ? x < 89.0f ? x : 89.0f : -40.0f;
    float excess;
    const float half_scale = two_to_the(split_exp(bounded, &excess) - 1);  // 2^128 is not a float
    const float half_of_it = excess * half_scale + (half_scale - 0.5f);
    return magnitude_of(x) > 1e-8f ? half_of_it + half_of_it : x;  // nan passes through
}

static inline float sinh_fast(float x) {
    const float a = magnitude_of(x), z = x * x;
    const double e = exp2_wide((double)a * (1.0 / LN2));
    const float large = with_sign_of((float)(0.5 * (e - 1.0 / e)), x);
    float p = (2.817439511e-6f * z + 1.983606627e-4f) * z + 8.333350598e-3f;
    p = p * z + 1.666666649e-1f;
    return a < 1.0f ? x + x * z * p : x == x ? large : x;
}

static inline float cosh_fast(float x) {
    const double e = exp2_wide((double)magnitude_of(x) * (1.0 / LN2));
    return x == x ? (float)(0.5 * (e + 1.0 / e)) : x;
}

// ---- sine, cosine, tangent --------------------------------------------------------------------------------------

#define CHOOSE(mask, yes, no) ((no) ^ (((yes) ^ (no)) & (mask)))  // a select; ?: might become a jump table
#define SHIFTED(high, low) (((high) << shift) | ((low) >> 1 >> (31 - shift)))

// Payne-Hanek range reduction: a = (n + 4 k) pi/2 + r for integers n and k, a >= 0, |r| <= pi/4. Returns n and r, exact
// for every finite float: bits of 2 / pi that contribute whole turns are skipped, and the product keeps the following
// 64 bits.
static inline int quarter_turns(float a, float *r) {
    const int exponent = MAX((int)(as_uint(a) >> 23), 126);
    const uint at = (uint)exponent - 120u, shift = at & 31u;  // offset of the 96 bits used, in 0 followed by 2 / pi
    const uint by_4 = 0u - (at >> 7 & 1u), by_2 = 0u - (at >> 6 & 1u), by_1 = 0u - (at >> 5 & 1u);
    const uint e0 = CHOOSE(by_4, 0xf534ddc0u, 0u), e1 = CHOOSE(by_4, 0xdb629599u, 0xa2f9836eu);
    const uint e2 = CHOOSE(by_4, 0x3c439041u, 0x4e441529u), e3 = CHOOSE(by_4, 0xfe5163abu, 0xfc2757d1u);
    const uint d0 = CHOOSE(by_2, e2, e0), d1 = CHOOSE(by_2, e3, e1), d2 = CHOOSE(by_2, 0xf534ddc0u, e2);
    const uint d3 = CHOOSE(by_2, 0xdb629599u, e3), d4 = CHOOSE(by_2, 0x3c439041u, 0xf534ddc0u);
    const uint b0 = CHOOSE(by_1, d1, d0), b1 = CHOOSE(by_1, d2, d1), b2 = CHOOSE(by_1, d3, d2), b3 = CHOOSE(by_1, d4, d3);
    const ulong mantissa = (as_uint(a) & 0x7fffffu) | 0x800000u;
    const ulong turns = (mantissa * SHIFTED(b0, b1) << 32) + mantissa * SHIFTED(b1, b2) +
                        (mantissa * SHIFTED(b2, b3) >> 32) + (1UL << 61);  // unit 2^-64, plus an eighth of a turn

    const uint upper = (uint)(turns >> 32), lower = (uint)turns;
    const int fraction = (int)(upper & 0x3fffffffu) - 0x20000000;
    const double angle = ((double)fraction * 4294967296.0 + (double)lower) * (PI / 2 / 4611686018427387904.0);
    const int is_small = a < 0.785398f;
    *r = is_small ? a : (float)angle;
    return is_small ? 0 : (int)(upper >> 30);
}

static inline float sin_of_small(float r) {
    const float z = r * r;
    const float p = ((2.718114105e-6f * z - 1.983931148e-4f) * z + 8.333329302e-3f) * z - 1.666666664e-1f;
    return r + r * z * p;
}

static inline float cos_of_small(float r) {
    const float z = r * r;
    const float p = (2.443308261e-5f * z - 1.388731562e-3f) * z + 4.166664567e-2f;
    return (1.0f - 0.5f * z) + z * z * p;
}

// The sine, cosine and tangent of x, where |x| is n quarter turns plus r.
static inline float sin_after(int n, float r, float x) {
    const float s = sin_of_small(r), c = cos_of_small(r), y = n & 1 ? c : s;
    const uint sign = ((uint)n << 30 & 0x80000000u) ^ (as_uint(x) & 0x80000000u);
    return is_finite(x) ? as_float(as_uint(y) ^ sign) : NAN;
}

static inline float cos_after(int n, float r, float x) {
    const float s = sin_of_small(r), c = cos_of_small(r), y = n & 1 ? s : c;
    const uint sign = (uint)(n + 1) << 30 & 0x80000000u;
    return is_finite(x) ? as_float(as_uint(y) ^ sign) : NAN;
}

static inline float tan_after(int n, float r, float x) {
    const float s = sin_of_small(r), c = cos_of_small(r);
    const float y = n & 1 ? -c / s : s / c;
    return is_finite(x) ? as_float(as_uint(y) ^ (as_uint(x) & 0x80000000u)) : NAN;
}

// Cody-Waite range reduction: quarter_turns for a below 2^17. pi/2 is subtracted in three float terms with fma, or in
// two double terms without it.
static inline int few_quarter_turns(float a, float *r) {
#ifdef __FMA__
    const float shifted = FMA(a, (float)(2 / PI), ROUND_BY_ADDING), n = shifted - ROUND_BY_ADDING;
    const float first = FMA(-n, 1.57079637f, a), second = FMA(-n, -4.37113883e-8f, first);
    *r = FMA(-n, -1.71512489e-15f, second);
    return as_int(shifted);
#else
    const double n = ((double)a * (2 / PI) + 6755399441055744.0) - 6755399441055744.0;
    *r = (float)(((double)a - n * 1.5707963267341256) - n * 6.0771005065061922e-11);
    return (int)n;
#endif
}

#define DEFINE_TURNING(NAME) \
    static inline float NAME##_fast(float x) { \
        float r; \
        const int n = quarter_turns(magnitude_of(x), &r); \
        return NAME##_after(n, r, x); \
    } \
    static inline float usual_##NAME(float x) { \
        float r; \
        const int n = few_quarter_turns(magnitude_of(x), &r); \
        return NAME##_after(n, r, x); \
    }
DEFINE_TURNING(sin)
DEFINE_TURNING(cos)
DEFINE_TURNING(tan)

// fmod for |x / y| below 2^28: x - y * trunc(x / y) is exact in double.
static inline float usual_fmod(float x, float y) {
    const double quotient = (double)x / (double)y;
    return (float)((double)x - (double)(int)quotient * (double)y);
}

// ---- angles -----------------------------------------------------------------------------------------------------

// The angle, between 0 and pi/2, of the point (x, y) in the first quadrant.
static inline double angle_of(double x, double y) {
    const double small = MIN(x, y), large = MAX(x, y);
    const double t = small / (large > 0.0 ? large : 1.0), z = t * t;
    double p = (1.0911146364413205e-3 * z - 7.1994011374398965e-3) * z + 2.2274386188227323e-2;
    p = ((p * z - 4.4357524229789835e-2) * z + 6.7161088915088277e-2) * z - 8.7987723066496895e-2;
    p = ((p * z + 1.1054501196186185e-1) * z - 1.4279159620533985e-1) * z + 1.9999604635084334e-1;
    p = (p * z - 3.3333323935219056e-1) * z + 9.9999999962822939e-1;
    return y > x ? PI / 2 - t * p : t * p;
}

static inline float atan_fast(float x) {
    return x == x ? with_sign_of((float)angle_of(1.0, MIN(magnitude_of(x), 1e30f)), x) : x;
}

static inline float atan2_fast(float y, float x) {
    const double a = is_finite(x) ? magnitude_of(x) : 1e300, b = is_finite(y) ? magnitude_of(y) : 1e300;
    const double angle = angle_of(a, b), turned = as_int(x) < 0 ? PI - angle : angle;
    return x == x && y == y ? with_sign_of((float)turned, y) : NAN;
}

static inline double other_side(float x) { return SQRT_DOUBLE((1.0 - x) * (1.0 + x)); }

static inline float asin_fast(float x) {
    const float a = magnitude_of(x), bounded = a <= 1.0f ? a : 1.0f;
    return a <= 1.0f ? with_sign_of((float)angle_of(other_side(bounded), bounded), x) : NAN;
}

static inline float acos_fast(float x) {
    const float a = magnitude_of(x), bounded = a <= 1.0f ? a : 1.0f;
    const double angle = angle_of(bounded, other_side(bounded));
    return a <= 1.0f ? (float)(x < 0.0f ? PI - angle : angle) : NAN;
}

static inline float hypot_fast(float x, float y) {
    const float length = (float)SQRT_DOUBLE((double)x * x + (double)y * y);
    return (magnitude_of(x) == INFINITY) | (magnitude_of(y) == INFINITY) ? INFINITY : length;
}

// ---- dispatch ---------------------------------------------------------------------------------------------------

// LOG1P(x) and the others accept a float or a double: the functions above for floats on CPUs, the built-in ones
// otherwise. NAME is pasted with ## directly, because it is a macro itself in PoCL.
#define DEFINE_BOTH(NAME) \
    CHOICE float NAME##_of(float x) { return NAME##_fast(x); } \
    CHOICE double NAME##_of(double x) { return NAME(x); }
#define DEFINE_BOTH_OF_TWO(NAME) \
    CHOICE float NAME##_of(float x, float y) { return NAME##_fast(x, y); } \
    CHOICE double NAME##_of(double x, double y) { return NAME(x, y); }
DEFINE_BOTH(log2)
DEFINE_BOTH(log10)
DEFINE_BOTH(log1p)
DEFINE_BOTH(expm1)
DEFINE_BOTH(sinh)
DEFINE_BOTH(cosh)
DEFINE_BOTH(asinh)
DEFINE_BOTH(acosh)
DEFINE_BOTH(atanh)
DEFINE_BOTH(sin)
DEFINE_BOTH(cos)
DEFINE_BOTH(tan)
DEFINE_BOTH(asin)
DEFINE_BOTH(acos)
DEFINE_BOTH(atan)
DEFINE_BOTH_OF_TWO(atan2)
DEFINE_BOTH_OF_TWO(pow)
DEFINE_BOTH_OF_TWO(hypot)
#define LOG2(x) log2_of(x)
#define LOG10(x) log10_of(x)
#define LOG1P(x) log1p_of(x)
#define EXPM1(x) expm1_of(x)
#define SINH(x) sinh_of(x)
#define COSH(x) cosh_of(x)
#define ASINH(x) asinh_of(x)
#define ACOSH(x) acosh_of(x)
#define ATANH(x) atanh_of(x)
#define SIN(x) sin_of(x)
#define COS(x) cos_of(x)
#define TAN(x) tan_of(x)
#define ASIN(x) asin_of(x)
#define ACOS(x) acos_of(x)
#define ATAN(x) atan_of(x)
#define ATAN2(x, y) atan2_of(x, y)
#define POW(x, y) pow_of(x, y)
#define HYPOT(x, y) hypot_of(x, y)
#else
#define LOG2(x) log2(x)
#define LOG10(x) log10(x)
#define LOG1P(x) log1p(x)
#define EXPM1(x) expm1(x)
#define SINH(x) sinh(x)
#define COSH(x) cosh(x)
#define ASINH(x) asinh(x)
#define ACOSH(x) acosh(x)
#define ATANH(x) atanh(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define TAN(x) tan(x)
#define ASIN(x) asin(x)
#define ACOS(x) acos(x)
#define ATAN(x) atan(x)
#define ATAN2(x, y) atan2(x, y)
#define POW(x, y) pow(x, y)
#define HYPOT(x, y) hypot(x, y)
#endif
