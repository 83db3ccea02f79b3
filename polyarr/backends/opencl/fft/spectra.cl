// What comes before and after complex transforms: real numbers as half as many complex ones.
//
// Kernels  untangle   X[k] for k = 0 ... h, from the transform Z of z[j] = x[2 j] + i x[2 j + 1] with h elements
//          tangle     the inverse: z such that its unscaled inverse transform interleaves the real numbers
//          mirror     the whole spectrum of n elements, from its first n / 2 + 1
//          All multiply their result by scale.
// Arrays   x, y       rows of complex numbers as pairs, row-major
//          roots      (h + 1) exp(-2 pi i k / (2 h))
// Launch   groups of WG work-items: `chunks` of CHUNK elements of y for each row
// Params   REAL, PAIR  type of the parts: float or double; of a complex number: float2 or double2
//          WG, CHUNK  work-items of a group, and the elements that it computes

#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
// The elements of this work-item's chunk from low on, below high.
#define EACH(i, low, high) \
    for (int first = get_group_id(0) % chunks * CHUNK, i = MAX(first, low) + get_local_id(0); \
         i < MIN(first + CHUNK, high); i += WG)
#define IS_FIRST (get_group_id(0) % chunks == 0 && get_local_id(0) == 0)

static inline PAIR times(PAIR a, PAIR b) { return (PAIR)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
static inline PAIR conjugate(PAIR a) { return (PAIR)(a.x, -a.y); }

__kernel GROUP void untangle(__global const PAIR *restrict z, __global PAIR *restrict y,
                             __global const PAIR *restrict roots, const REAL scale, const int is_conjugate,
                             const int half_length, const int length, const int chunks) {
    const long row = get_group_id(0) / chunks;
    z += row * half_length, y += row * length;
    if (IS_FIRST) y[0] = (PAIR)(z[0].x + z[0].y, 0) * scale, y[half_length] = (PAIR)(z[0].x - z[0].y, 0) * scale;
    EACH(k, 1, half_length) {
        const PAIR a = z[k], b = conjugate(z[half_length - k]);
        const PAIR odd = times(a - b, roots[k]);  // i times twice the transform of the odd elements, turned
        const PAIR r = (a + b + (PAIR)(odd.y, -odd.x)) * ((REAL)0.5 * scale);
        y[k] = is_conjugate ? conjugate(r) : r;
    }
}

// Imaginary parts of the first and last element of a row are ignored.
__kernel GROUP void tangle(__global const PAIR *restrict x, __global PAIR *restrict z,
                           __global const PAIR *restrict roots, const REAL scale, const int is_conjugate,
                           const int x_length, const int length, const int chunks) {
    const long row = get_group_id(0) / chunks;
    x += row * x_length, z += row * length;
    if (IS_FIRST) z[0] = (PAIR)(x[0].x + x[length].x, x[0].x - x[length].x) * scale;
    EACH(k, 1, length) {
        const REAL sign = is_conjugate ? -1 : 1;
        const PAIR a = (PAIR)(x[k].x, sign * x[k].y), b = (PAIR)(x[length - k].x, -sign * x[length - k].y);
        const PAIR odd = times(a - b, conjugate(roots[k]));
        z[k] = (a + b + (PAIR)(-odd.y, odd.x)) * scale;
    }
}

__kernel GROUP void mirror(__global const PAIR *restrict x, __global PAIR *restrict y, const REAL scale,
                           const int x_length, const int length, const int chunks) {
    const long row = get_group_id(0) / chunks;
    x += row * x_length, y += row * length;
    EACH(k, 0, length) y[k] = (k < x_length ? x[k] : conjugate(x[length - k])) * scale;
}
