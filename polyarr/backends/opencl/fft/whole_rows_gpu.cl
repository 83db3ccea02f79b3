// Fourier transforms of whole rows on a GPU: as whole_rows.cl, where arrays are explained.
//
// Arrays   roots     see stages_gpu.cl
// Launch   a group of WG for each LANES rows
// Params   CONVOLVED         1 or 0: a convolution by two transforms of LENGTH; if it is 0, LENGTH is n
//          Others: see stages_gpu.cl and forms.cl

#include "butterflies.cl"
#include "stages_gpu.cl"
#include "forms.cl"

static inline int partner(int k, int n) { return MAX(k ? n - k : 0, 0); }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void transform_rows(__global const X *restrict x, __global Y *restrict y, __global const PAIR *restrict roots,
                    __global const PAIR *restrict halves, __global const PAIR *restrict chirp,
                    __global const PAIR *restrict spectrum, const REAL scale, const int inverse, const int n,
                    const int x_length, const int y_length, const long rows) {
    __local REAL held[HELD];
    REAL re[REGISTERS], im[REGISTERS];
    int lane = LANE(READ_BY_LANE), item = ITEM(READ_BY_LANE);
    const int last_lane = lane, last_item = item;
    const int swapped = SOURCE == HALF_OF_PAIRS || (RESULT != HALF_OF_PAIRS && inverse);
    const long row = get_group_id(0) * (long)LANES + lane;
    x += (row < rows ? row : 0) * x_length, y += row * y_length;

    OWN(FIRST, item) ELEMENTS(FIRST, j) {
        const int number = NUMBER(FIRST, j), there = CONVOLVED ? MIN(number, n - 1) : number;
        PAIR v = swapped_if(swapped, read_number(x, halves, there, n, inverse));
        if (CONVOLVED) v = number < n ? times(v, chirp[there]) : (PAIR)(0, 0);
        re[q * FIRST + j] = v.x, im[q * FIRST + j] = v.y;
    }
    STAGES
#if CONVOLVED
    OWN(LAST, item) ELEMENTS(LAST, k) {
        const PAIR v = times((PAIR)(re[q * LAST + k], im[q * LAST + k]), spectrum[NUMBER(LAST, k)]);
        re[q * LAST + k] = v.y, im[q * LAST + k] = v.x;  // exchanged for the inverse transform
    }
    EXCHANGE(LAST, COUNT(LAST), FIRST)
    STAGES
    OWN(LAST, item) ELEMENTS(LAST, k) {
        const PAIR v = times((PAIR)(im[q * LAST + k], re[q * LAST + k]), chirp[MIN(NUMBER(LAST, k), n - 1)]);
        re[q * LAST + k] = v.x, im[q * LAST + k] = v.y;
    }
#endif
#if RESULT == HALF_OF_PAIRS
    REAL other_re[REGISTERS], other_im[REGISTERS];  // of numbers n - k
#define FETCH(part, other) \
    barrier(CLK_LOCAL_MEM_FENCE); \
    OWN(LAST, item) ELEMENTS(LAST, k) held[SLOT(NUMBER(LAST, k), lane)] = part[q * LAST + k]; \
    barrier(CLK_LOCAL_MEM_FENCE); \
    OWN(LAST, item) ELEMENTS(LAST, k) other[q * LAST + k] = held[SLOT(partner(NUMBER(LAST, k), n), lane)];
    FETCH(re, other_re)
    FETCH(im, other_im)
#endif
    if (row >= rows) return;
    OWN(LAST, item) ELEMENTS(LAST, j) {
        const int k = NUMBER(LAST, j), at = q * LAST + j;
        const PAIR v = (PAIR)(re[at], im[at]);
        if (k >= y_length || (CONVOLVED && k >= n)) continue;
#if RESULT == HALF_OF_PAIRS
        const PAIR other = (PAIR)(other_re[at], other_im[at]);
        y[k] = half_of_pairs(v, other, halves, k, n, inverse) * scale;
        if (k == 0) y[n] = half_of_pairs(v, other, halves, n, n, inverse) * scale;
#elif RESULT == REAL_NUMBERS
        y[k] = (swapped ? v.y : v.x) * scale;
#else
        y[k] = swapped_if(swapped, v) * scale;
#endif
    }
}
