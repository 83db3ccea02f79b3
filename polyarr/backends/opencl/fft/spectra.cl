// What comes before and after the passes of long transforms: rows of n complex numbers for their form HALF_OF_PAIRS.
//
// Kernels  tangle, untangle   from that form, and to it; both multiply by scale
// Arrays   x, y       rows of n + 1 complex numbers and of n, or the other way around
//          halves     (n + 1) exp(-2 pi i k / (2 n))
// Launch   groups of WG work-items: `chunks` of CHUNK elements of y for each row
// Params   see forms.cl; SOURCE and RESULT are HALF_OF_PAIRS
//          WG, CHUNK  work-items of a group, and the elements that it computes

#include "forms.cl"

#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
// The elements below `end` of this work-item's chunk.
#define EACH(k, end) \
    for (int first = get_group_id(0) % chunks * CHUNK, k = first + get_local_id(0); k < MIN(first + CHUNK, end); k += WG)

__kernel GROUP void tangle(__global const PAIR *restrict x, __global PAIR *restrict y,
                           __global const PAIR *restrict halves, const REAL scale, const int inverse, const int n,
                           const int chunks) {
    const long row = get_group_id(0) / chunks;
    x += row * (n + 1), y += row * n;
    EACH(k, n) y[k] = read_number(x, halves, k, n, inverse) * scale;
}

__kernel GROUP void untangle(__global const PAIR *restrict x, __global PAIR *restrict y,
                             __global const PAIR *restrict halves, const REAL scale, const int inverse, const int n,
                             const int chunks) {
    const long row = get_group_id(0) / chunks;
    x += row * n, y += row * (n + 1);
    EACH(k, n + 1) y[k] = half_of_pairs(x[k < n ? k : 0], x[k ? n - k : 0], halves, k, n, inverse) * scale;
}
