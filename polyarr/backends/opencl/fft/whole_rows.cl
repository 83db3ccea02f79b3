// Fourier transforms of whole rows, each in the local memory of a work-group, from and to complex or real numbers.
//
// A form says what the n complex numbers of a transform are in memory:
//     COMPLEX        n complex numbers
//     REAL           n real numbers: the imaginary parts are 0, and those of a result are left out
//     HALF           the first n / 2 + 1 complex numbers: the others are their conjugates, in reverse
//     HALF_OF_PAIRS  the first n + 1 numbers of the spectrum of 2 n real ones, which are the parts of the n numbers
// With CONVOLVED, a transform of any length is a convolution with a chirp, by two transforms of another length.
//
// Arrays   x, y      rows in the forms SOURCE and RESULT, row-major
//          roots     (length) exp(-2 pi i t / length)
//          halves    (n + 1) exp(-2 pi i k / (2 n)), if a form is HALF_OF_PAIRS
//          chirp     (n) factors of the numbers before and after a convolution
//          spectrum  (length) factors between its two transforms
// Launch   a group of WG for each VECTOR << column_bits rows
// Params   SOURCE, RESULT    forms
//          CONVOLVED         1 or 0: see above; if it is 0, length is n
//          Others: see stages.cl

#include "stages.cl"

#define COMPLEX 0
#define REAL_NUMBERS 1
#define HALF 2
#define HALF_OF_PAIRS 3
#if SOURCE == REAL_NUMBERS
typedef REAL X;
#else
typedef PAIR X;
#endif
#if RESULT == REAL_NUMBERS
typedef REAL Y;
#else
typedef PAIR Y;
#endif
#if WG > 1
#define WAIT barrier(CLK_LOCAL_MEM_FENCE);
#define EACH(lane, j, count, per_count) \
    for (int e = me, lane, j; \
         e < count * lanes && (lane = (int)((e + 0.5f) * per_count), j = e - lane * count, 1); e += WG)
#else
#define WAIT
#define EACH(lane, j, count, per_count) \
    for (int lane = 0; lane < lanes; lane++) \
        for (int j = 0; j < count; j++)
#endif

static inline PAIR conjugate(PAIR a) { return (PAIR)(a.x, -a.y); }
static inline PAIR swapped_if(int is_swapped, PAIR a) { return is_swapped ? a.yx : a; }

// Number j of n in the row x, whose form is SOURCE.
static inline PAIR read_number(__global const X *restrict x, __global const PAIR *restrict halves, int j, int n,
                               int inverse) {
#if SOURCE == REAL_NUMBERS
    return (PAIR)(x[j], 0);
#elif SOURCE == HALF
    return j <= n / 2 ? x[j] : conjugate(x[n - j]);
#elif SOURCE == HALF_OF_PAIRS
    PAIR a = x[j], b = conjugate(x[n - j]);
    if (j == 0) a.y = b.y = 0;
    if (!inverse) a = conjugate(a), b = conjugate(b);
    const PAIR odd = times(a - b, conjugate(halves[j]));
    return a + b + (PAIR)(-odd.y, odd.x);
#else
    return x[j];
#endif
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void transform_rows(__global const X *restrict x, __global Y *restrict y, __global const PAIR *restrict roots,
                    __global const PAIR *restrict halves, __global const PAIR *restrict chirp,
                    __global const PAIR *restrict spectrum, const REAL scale, const int inverse, const int length,
                    const long stages, const int column_bits, const int n, const int x_length, const int y_length,
                    const long rows) {
    __local V held[HELD];
    __local REAL *re = (__local REAL *)held, *im = re + CAPACITY;
    const int me = get_local_id(0), lanes = VECTOR << column_bits;
    const int swapped = SOURCE == HALF_OF_PAIRS || (RESULT != HALF_OF_PAIRS && inverse);
    const float per_length = 1.0f / length, per_y_length = 1.0f / y_length;
    const long first = get_group_id(0) * (long)lanes;
    const int present = (int)MIN(rows - first, (long)lanes);
    x += first * x_length, y += first * y_length;

    EACH(lane, j, length, per_length) {
        PAIR v = (PAIR)(0, 0);
        if (lane < present && j < n) {
            v = swapped_if(swapped, read_number(x + lane * x_length, halves, j, n, inverse));
            if (CONVOLVED) v = times(v, chirp[j]);
        }
        re[SLOT(j, lane)] = v.x, im[SLOT(j, lane)] = v.y;
    }
    WAIT
    int at = 0;
    for (int turn = 0; turn <= CONVOLVED; turn++) {
        at = transform_held(held, at, roots, length, stages, column_bits, me);
#if WG == 1
        barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL 7.1 runs the stages twice
#endif
#if CONVOLVED
        for (int e = me; e < length << column_bits && turn == 0; e += WG) {
            __local V *a = held + at + PADDED(e), *b = a + SPACE;
            const PAIR w = spectrum[e >> column_bits];
            const V product = *a * w.x - *b * w.y;
            *a = *a * w.y + *b * w.x, *b = product;  // exchanged for the inverse transform
        }
        WAIT
#endif
    }
    re = (__local REAL *)(held + at), im = re + CAPACITY;

#if CONVOLVED
#define NUMBER(k) times((PAIR)(im[SLOT(k, lane)], re[SLOT(k, lane)]), chirp[k])
#else
#define NUMBER(k) (PAIR)(re[SLOT(k, lane)], im[SLOT(k, lane)])
#endif
    EACH(lane, k, y_length, per_y_length) {
        if (lane >= present) continue;
        __global Y *to = y + lane * y_length + k;
#if RESULT == HALF_OF_PAIRS
        PAIR a = NUMBER(k < n ? k : 0);
        if (k == 0 || k == n) {
            a = (PAIR)(k ? a.x - a.y : a.x + a.y, 0);
        } else {
            const PAIR b = conjugate(NUMBER(n - k));
            const PAIR odd = times(a - b, halves[k]);  // i times twice the transform of the odd elements, turned
            a = (a + b + (PAIR)(odd.y, -odd.x)) * (REAL)0.5;
        }
        *to = (inverse ? conjugate(a) : a) * scale;
#elif RESULT == REAL_NUMBERS
        *to = (swapped ? NUMBER(k).y : NUMBER(k).x) * scale;
#else
        *to = swapped_if(swapped, NUMBER(k)) * scale;
#endif
    }
}
