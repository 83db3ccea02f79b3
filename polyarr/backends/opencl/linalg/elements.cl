// Arithmetic of the elements of matrices. Included by the kernels of linalg after complex_arithmetic.cl.
//
// Params   ACC        arithmetic type of real numbers, such as norms: float or double
//          COMPLEX    1 if elements are complex numbers, whose parts are of type ACC; 0 if they are of type ACC
//
// Sums of elements, and their products with and quotients by numbers of type ACC, are written as such.

#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))

#if COMPLEX
typedef Complex Element;
#define ELEMENT(real) ((Element)(real, 0))
#define TIMES(x, y) c_mul(x, y)
#define OVER(x, y) over(x, y)
#define CONJUGATE(x) c_conj(x)
#define REAL_PART(z) (z).x
#define MAGNITUDE(z) hypot((z).x, (z).y)
#define SQUARE(z) ((z).x * (z).x + (z).y * (z).y)                       // of the magnitude
#define NEAR_MAGNITUDE(z) (ABSOLUTE((z).x) + ABSOLUTE((z).y))           // at most 1.5 times as large
#define LARGER_PART(z) MAX(ABSOLUTE((z).x), ABSOLUTE((z).y))
#define IS_ZERO(z) (((z).x == 0) & ((z).y == 0))
#define IS_FINITE(x) c_isfinite(x)

// x / y; also 0 for 0 divided by a denormal number, where c_div gives nan as NumPy does
static inline Element over(Element x, Element y) { return IS_ZERO(x) && !IS_ZERO(y) ? x : c_div(x, y); }

// x / |x|, and 0 for 0
static inline Element phase_of(Element x) {
    const ACC larger = LARGER_PART(x);
    const Element near = x / larger;
    return larger == 0 ? (Element)(0, 0) : near / hypot(near.x, near.y);
}

// x multiplied by the phase of y. A power of two scales y, so that the product of a number and its conjugate is real.
static inline Element turned_by(Element x, Element y) {
    if (IS_ZERO(y) || !c_isfinite(y)) return x;
    const int up = -ilogb(LARGER_PART(y));
    const Element scaled = (Element)(ldexp(y.x, up), ldexp(y.y, up));
    return c_mul(x, scaled) / hypot(scaled.x, scaled.y);
}
#else
typedef ACC Element;
#define ELEMENT(real) (real)
#define TIMES(x, y) ((x) * (y))
#define OVER(x, y) ((x) / (y))
#define CONJUGATE(x) (x)
#define REAL_PART(x) (x)
#define MAGNITUDE(x) ((x) < 0 ? -(x) : (x))
#define SQUARE(x) ((x) * (x))
#define NEAR_MAGNITUDE(x) MAGNITUDE(x)
#define LARGER_PART(x) MAGNITUDE(x)
#define IS_ZERO(x) ((x) == 0)
#define IS_FINITE(x) ((x) - (x) == 0)
static inline Element phase_of(Element x) { return x < 0 ? -1 : x > 0 ? 1 : 0; }
static inline Element turned_by(Element x, Element y) { return y < 0 ? -x : x; }
#endif
