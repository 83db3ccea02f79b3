// Functions that the expressions of complex elementwise ops call. Included by elementwise.cl after expressions.cl and
// complex_arithmetic.cl, whose macros and functions it uses; ACC and FLOATING are those of the parts.
//
// Params   COMPLEX    1 if the operands or results of some expression are complex; else 0
//
// Infinities, nan and signed zeros are treated as the array API standard asks, and as NumPy treats them where the
// standard leaves it open. Errors are a few ulp of the larger part, also near branch points, zeros and the limits of the
// exponent.
//
// Source: Kahan, Branch cuts for complex elementary functions, 1987 (asin, acos, asinh, acosh, atanh, tanh, sqrt)

#if COMPLEX

#if HAS_FP64
#define OF_TYPE(single, double_) ((Real)(sizeof(Real) == 4 ? (single) : (double_)))
typedef double Wide;
#else
#define OF_TYPE(single, double_) ((Real)(single))
typedef float Wide;
#endif
#define MAX_REAL OF_TYPE(FLT_MAX, DBL_MAX)
#define MIN_REAL OF_TYPE(FLT_MIN, DBL_MIN)         // the smallest normal number
#define MAX_EXP OF_TYPE(88.0f, 709.0)              // exp is finite up to here
#define SQRT_MAX OF_TYPE(9.2e18f, 6.7e153)         // its square is finite
#define SQRT_MIN OF_TYPE(1.1e-19f, 1.5e-154)       // its square is a normal number
#define LN_2 OF_TYPE(0.693147181f, 0.69314718055994531)
#define HALF_PI OF_TYPE(1.57079633f, 1.5707963267948966)
#define UP OF_TYPE(16777216.0f, 18014398509481984.0)  // 2^24, 2^54: the square makes subnormal numbers normal

static inline int is_infinite(Real x) { return ABSOLUTE(x) == INFINITY; }
static inline int c_isnan(Complex z) { return (z.x != z.x) | (z.y != z.y); }
static inline int c_isinf(Complex z) { return is_infinite(z.x) | is_infinite(z.y); }
static inline Complex times_i(Complex z) { return (Complex)(-z.y, z.x); }
static inline Complex over_i(Complex z) { return (Complex)(z.y, -z.x); }

// ---- arithmetic -------------------------------------------------------------------------------------------------

#define C_EQUAL(x, y) (((x).x == (y).x) & ((x).y == (y).y))
#define C_TRUE(v) (((v).x != 0) | ((v).y != 0))
#define C_ABS(z) HYPOT((z).x, (z).y)

static inline Complex c_sign(Complex z) {
    if (z.x == 0 && z.y == 0) return (Complex)(0, 0);
    if (is_infinite(z.x) != is_infinite(z.y) && z.x == z.x && z.y == z.y)
        return is_infinite(z.x) ? (Complex)(COPYSIGN((Real)1, z.x), 0) : (Complex)(0, COPYSIGN((Real)1, z.y));
    const Real size = MAX(ABSOLUTE(z.x), ABSOLUTE(z.y));
    const Complex v = size > MAX_REAL / 4 ? z * (Real)0.25f : size < 4 * MIN_REAL ? z * (UP * UP) : z;
    const Real length = C_ABS(v);
    return length < INFINITY ? v / length : (Complex)((Real)NAN, (Real)NAN);
}

static inline Complex c_round(Complex z) { return (Complex)(ROUND(z.x), ROUND(z.y)); }

static inline Complex c_sqrt(Complex z) {
    const Real a = ABSOLUTE(z.x), b = ABSOLUTE(z.y), most = MAX(a, b);
    if (a == 0 && b == 0) return (Complex)(0, z.y);
    if (b == INFINITY) return (Complex)(b, z.y);
    if (a == INFINITY && z.y != z.y) return z.x > 0 ? z : (Complex)(z.y, a);
    if (a == INFINITY) return z.x > 0 ? (Complex)(a, COPYSIGN((Real)0, z.y)) : (Complex)(0, COPYSIGN(a, z.y));
    const Real scale = most > MAX_REAL / 8 ? (Real)0.0625f : most < 8 * MIN_REAL ? UP * UP : (Real)1;
    const Real back = most > MAX_REAL / 8 ? (Real)4 : most < 8 * MIN_REAL ? 1 / UP : (Real)1;
    const Real u = a * scale, v = b * scale, t = SQRT((Real)0.5f * (u + HYPOT(u, v))), s = v / (2 * t);
    return back * (z.x >= 0 ? (Complex)(t, COPYSIGN(s, z.y)) : (Complex)(s, COPYSIGN(t, z.y)));
}

// ---- logarithms and powers --------------------------------------------------------------------------------------

static inline Complex c_log(Complex z) {
    const Real a = ABSOLUTE(z.x), b = ABSOLUTE(z.y), angle = ATAN2(z.y, z.x);
    const Real large = MAX(a, b), small = MIN(a, b);
    if (large > (Real)0.5f && a < (Real)1.5f && b < (Real)1.5f)  // log |z| may be near 0
        return (Complex)((Real)0.5f * LOG1P((large - 1) * (large + 1) + small * small), angle);
    if (large > MAX_REAL / 4) return (Complex)(LOG(HYPOT(a * (Real)0.25f, b * (Real)0.25f)) + 2 * LN_2, angle);
    if (large < 8 * MIN_REAL && large > 0)
        return (Complex)(LOG(HYPOT(a * (UP * UP), b * (UP * UP))) - OF_TYPE(48.0f, 108.0) * LN_2, angle);
    return (Complex)(LOG(HYPOT(a, b)), angle);
}

static inline Complex c_log1p(Complex z) {
    const Real t = z.x * (2 + z.x) + z.y * z.y;
    if (ABSOLUTE(z.x) < 2 && ABSOLUTE(z.y) < 2 && t > (Real)-0.5f)
        return (Complex)((Real)0.5f * LOG1P(t), ATAN2(z.y, 1 + z.x));
    return c_log((Complex)(1 + z.x, z.y));
}

static inline Complex c_exp(Complex z) {
    if (z.y == 0) return (Complex)(EXP(z.x), z.y);
    if (is_infinite(z.x) && !is_finite_real(z.y)) return z.x > 0 ? (Complex)(z.x, (Real)NAN) : (Complex)(0, 0);
    const Complex turn = (Complex)(COS(z.y), SIN(z.y));
    if (z.x > MAX_EXP) {  // exp(x) may overflow where exp(x) cos(y) does not
        const Real root = EXP(z.x * (Real)0.5f);
        return root * turn * root;
    }
    return EXP(z.x) * turn;
}

static inline Complex c_expm1(Complex z) {
    if (z.y == 0) return (Complex)(EXPM1(z.x) + 0, z.y);  // -0 becomes 0
    if (z.x > 1 || is_infinite(z.x)) return c_exp(z) - (Complex)(1, 0);
    const Real s = SIN(z.y * (Real)0.5f);
    return (Complex)(EXPM1(z.x) * COS(z.y) - 2 * s * s, EXP(z.x) * SIN(z.y));
}

#define C_LOG2(z) (c_log(z) * OF_TYPE(1.44269504f, 1.4426950408889634))
#define C_LOG10(z) (c_log(z) * OF_TYPE(0.434294482f, 0.43429448190325183))

// x^n by repeated squaring; the parts of an integer power of integers are integers.
static inline Complex c_pow_int(Complex x, int n) {
    Wide real = 1, imaginary = 0, a = x.x, b = x.y;
    for (int rest = n < 0 ? -n : n; rest; rest >>= 1) {
        if (rest & 1) {
            const Wide next = real * a - imaginary * b;
            imaginary = real * b + imaginary * a;
            real = next;
        }
        const Wide square = a * a - b * b;
        b = 2 * a * b;
        a = square;
    }
    if (n >= 0) return (Complex)((Real)real, (Real)imaginary);
    if (sizeof(Real) == sizeof(Wide)) return c_div((Complex)(1, 0), (Complex)((Real)real, (Real)imaginary));
    const Wide size = real * real + imaginary * imaginary;
    if (size > (Wide)1e-300 && size < INFINITY) return (Complex)((Real)(real / size), (Real)(-imaginary / size));
    return c_div((Complex)(1, 0), (Complex)((Real)real, (Real)imaginary));
}

static inline Complex c_pow(Complex x, Complex y) {
    if (y.x == 0 && y.y == 0) return (Complex)(1, 0);
    if (x.x == 0 && x.y == 0) return y.x > 0 ? (Complex)(0, 0) : (Complex)((Real)NAN, (Real)NAN);
    if (y.y == 0 && ABSOLUTE(y.x) <= 100 && ROUND(y.x) == y.x) return c_pow_int(x, (int)y.x);
    const Complex l = c_log(x);
#if HAS_FP64
    if (sizeof(Real) == 4 && is_finite_real(x.x) && is_finite_real(x.y)) {  // a product y log x loses no digits here
        const double r = 0.5 * log((double)x.x * x.x + (double)x.y * x.y), angle = atan2((double)x.y, (double)x.x);
        const double size = exp(y.x * r - y.y * angle), turn = y.y * r + y.x * angle;
        return (Complex)((Real)(size * cos(turn)), (Real)(size * sin(turn)));
    }
#endif
    return c_exp(c_mul(l, y));
}

// ---- sine, cosine, tangent, and hyperbolic ones -----------------------------------------------------------------

// sinh(x) * t.x + i cosh(x) * t.y for |x| > MAX_EXP, where sinh(x) may overflow and the products do not; t is on the
// unit circle.
static inline Complex c_grown(Real x, Complex t) {
    const Real root = EXP(ABSOLUTE(x) * (Real)0.5f);
    const Complex found = (Real)0.5f * root * t * root;
    return (Complex)(COPYSIGN((Real)1, x) * found.x, found.y);
}

static inline Complex c_sinh(Complex z) {
    if (z.y == 0) return (Complex)(SINH(z.x), z.y);
    if (z.x == 0) return (Complex)(is_finite_real(z.y) ? z.x * COS(z.y) : z.x, SIN(z.y));
    if (is_infinite(z.x) && !is_finite_real(z.y)) return (Complex)(z.x, (Real)NAN);
    const Complex turn = (Complex)(COS(z.y), SIN(z.y));
    if (ABSOLUTE(z.x) > MAX_EXP) return c_grown(z.x, turn);
    return (Complex)(SINH(z.x) * turn.x, COSH(z.x) * turn.y);
}

static inline Complex c_cosh(Complex z) {
    if (z.y == 0) return (Complex)(COSH(z.x), z.x == z.x ? COPYSIGN(z.y, z.y * COPYSIGN((Real)1, z.x)) : z.y);
    if (z.x == 0) return (Complex)(COS(z.y), is_finite_real(z.y) ? z.x * SIN(z.y) : (Real)0);
    if (is_infinite(z.x) && !is_finite_real(z.y)) return (Complex)((Real)INFINITY, (Real)NAN);
    const Complex turn = (Complex)(COS(z.y), SIN(z.y));
    if (ABSOLUTE(z.x) > MAX_EXP) {
        const Complex grown = c_grown(z.x, (Complex)(turn.y, turn.x));
        return (Complex)(grown.y, grown.x);
    }
    return (Complex)(COSH(z.x) * turn.x, SINH(z.x) * turn.y);
}

static inline Complex c_tanh(Complex z) {
    if (z.y == 0) return (Complex)(TANH(z.x), z.y);
    if (z.x == 0) return (Complex)(z.x, TAN(z.y));
    if (!is_finite_real(z.y) && is_finite_real(z.x)) return (Complex)((Real)NAN, (Real)NAN);
    if (ABSOLUTE(z.x) > OF_TYPE(11.0f, 22.0)) {
        const Real rest = is_finite_real(z.y) ? 4 * SIN(z.y) * COS(z.y) * EXP(-2 * ABSOLUTE(z.x)) : (Real)0;
        return (Complex)(COPYSIGN((Real)1, z.x), rest);
    }
    const Real t = TAN(z.y), s = SINH(z.x), slope = 1 + t * t, d = 1 + slope * s * s;
    return (Complex)(slope * COSH(z.x) * s / d, t / d);
}

static inline Complex c_sin(Complex z) { return over_i(c_sinh(times_i(z))); }
static inline Complex c_cos(Complex z) { return c_cosh(times_i(z)); }
static inline Complex c_tan(Complex z) { return over_i(c_tanh(times_i(z))); }

// ---- their inverses ---------------------------------------------------------------------------------------------

static inline int is_large(Complex z) { return (ABSOLUTE(z.x) > MAX_REAL / 4) | (ABSOLUTE(z.y) > MAX_REAL / 4); }
static inline Real log_twice(Complex z) { return LOG(HYPOT(z.x * (Real)0.5f, z.y * (Real)0.5f)) + 2 * LN_2; }

static inline Complex c_asinh(Complex z) {
    if (z.x != z.x && z.y == 0) return z;
    if (is_large(z)) return (Complex)(COPYSIGN(log_twice(z), z.x), ATAN2(z.y, ABSOLUTE(z.x)));
    const Complex s = c_sqrt((Complex)(1 + z.y, -z.x)), t = c_sqrt((Complex)(1 - z.y, z.x));
    return (Complex)(ASINH(s.x * t.y - t.x * s.y), ATAN2(z.y, s.x * t.x - s.y * t.y));
}

static inline Complex c_acosh(Complex z) {
    if (z.x == 0 && z.y != z.y) return (Complex)(z.y, HALF_PI);
    if (is_large(z)) return (Complex)(log_twice(z), ATAN2(z.y, z.x));
    const Complex s = c_sqrt((Complex)(z.x - 1, z.y)), t = c_sqrt((Complex)(z.x + 1, z.y));
    return (Complex)(ASINH(s.x * t.x + s.y * t.y), 2 * ATAN2(s.y, t.x));
}

static inline Complex c_acos(Complex z) {
    if (z.x == 0 && z.y != z.y) return (Complex)(HALF_PI, z.y);
    if (is_large(z)) return (Complex)(ATAN2(ABSOLUTE(z.y), z.x), -COPYSIGN(log_twice(z), z.y));
    const Complex s = c_sqrt((Complex)(1 - z.x, -z.y)), t = c_sqrt((Complex)(1 + z.x, z.y));
    return (Complex)(2 * ATAN2(s.x, t.x), ASINH(t.x * s.y - t.y * s.x));
}

static inline Complex c_atanh(Complex z) {
    const Real flip = COPYSIGN((Real)1, z.x), x = ABSOLUTE(z.x), y = z.y * flip, b = ABSOLUTE(y);
    if (x > SQRT_MAX || b > SQRT_MAX) {
        const Real length = HYPOT(x * (Real)0.5f, b * (Real)0.5f);
        const Real real = is_infinite(x) || is_infinite(b) ? (Real)0 : x * (Real)0.25f / length / length;
        const int known = y == y && (x == x || is_infinite(b));
        return flip * (Complex)(real, known ? COPYSIGN(HALF_PI, y) : x + y);
    }
    if (x == 1 && b == 0) return flip * (Complex)((Real)INFINITY, y);
    if (x == 1 && b < SQRT_MIN)
        return flip * (Complex)(-LOG(SQRT(b) / SQRT(HYPOT(b, (Real)2))), COPYSIGN((Real)0.5f * ATAN2((Real)2, -b), y));
    const Real distance = (1 - x) * (1 - x) + b * b;
    const Real real = x == 0 ? x : (Real)0.25f * LOG1P(4 * x / distance);
    return flip * (Complex)(real, (Real)-0.5f * ATAN2(-2 * y, (1 - x) * (1 + x) - b * b));
}

static inline Complex c_asin(Complex z) { return over_i(c_asinh(times_i(z))); }
static inline Complex c_atan(Complex z) { return over_i(c_atanh(times_i(z))); }

#endif
