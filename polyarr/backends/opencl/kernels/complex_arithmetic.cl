// Products and quotients of complex numbers. Included by elementwise.cl and the kernels of linalg.
//
// Params   ACC        arithmetic type of the parts: float or double
//          COMPLEX    1 if the program computes with complex numbers; else 0
//          ABSOLUTE   optional: a macro for fabs
//
// A complex number is a float2 or a double2: its real part and its imaginary part.

#if COMPLEX

#pragma OPENCL FP_CONTRACT OFF  // the same results in every kernel

#ifndef ABSOLUTE
#define ABSOLUTE(x) fabs(x)
#endif

typedef ACC Real;
typedef PASTE(ACC, 2) Complex;

static inline int is_finite_real(Real x) { return ABSOLUTE(x) < INFINITY; }
static inline int c_isfinite(Complex z) { return is_finite_real(z.x) & is_finite_real(z.y); }
static inline Complex c_conj(Complex z) { return (Complex)(z.x, -z.y); }

static inline Complex c_mul(Complex x, Complex y) {
    return (Complex)(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
}

// Smith's division, for operands that are zero or not finite: with the same zeros, infinities and nan as NumPy's.
static inline Complex smith(Complex x, Complex y) {
    if (ABSOLUTE(y.x) >= ABSOLUTE(y.y)) {
        const Real ratio = y.y / y.x, scale = 1 / (y.x + y.y * ratio);
        return (Complex)((x.x + x.y * ratio) * scale, (x.y - x.x * ratio) * scale);
    }
    const Real ratio = y.x / y.y, scale = 1 / (y.y + y.x * ratio);
    return (Complex)((x.x * ratio + x.y) * scale, (x.y * ratio - x.x) * scale);
}

// Both operands are scaled by powers of two, so that no product overflows or loses digits.
static inline Complex c_div(Complex x, Complex y) {
    const Real size = MAX(ABSOLUTE(x.x), ABSOLUTE(x.y)), length = MAX(ABSOLUTE(y.x), ABSOLUTE(y.y));
    if (y.x == 0 && y.y == 0) return (Complex)(x.x / length, x.y / length);
    if (size == 0 || !(c_isfinite(x) && c_isfinite(y))) return smith(x, y);
    if (y.y == 0) return (Complex)((x.x + x.y * (y.y / y.x)) / y.x, (x.y - x.x * (y.y / y.x)) / y.x);  // correctly rounded
    const int up = -ilogb(size), down = -ilogb(length);
    const Complex n = (Complex)(ldexp(x.x, up), ldexp(x.y, up)), d = (Complex)(ldexp(y.x, down), ldexp(y.y, down));
    const Real square = d.x * d.x + d.y * d.y;
    const Real real = (n.x * d.x + n.y * d.y) / square, imaginary = (n.y * d.x - n.x * d.y) / square;
    return (Complex)(ldexp(real, down - up), ldexp(imaginary, down - up));
}

#endif
