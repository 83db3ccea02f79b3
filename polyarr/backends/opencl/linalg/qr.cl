// Householder's QR decomposition of a panel: `width` columns of matrices, from the diagonal element at `start` on.
//
// Kernels  reflect     write R into the panel's upper triangle, and the vectors of the reflections as columns of v,
//                      with 1 on the diagonal and 0 above; what is below the diagonal of w is not used afterwards
// Arrays   w, v of Element, a real or complex number: matrices of rows `pitch` apart, `matrix` from one to the next
// Launch   a group of WG per matrix
// Params   ACC, COMPLEX    see elements.cl
//          WG              work-items per group, 1 on CPUs
//          PANEL           largest width
//
// A reflection I - tau v v^H is Hermitian, so the diagonal of R has the phases of the vectors that are reflected.

#include "complex_arithmetic.cl"
#include "elements.cl"

#define WAIT if (WG > 1) barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#define LANES_X (WG < 32 ? WG : 32)  // work-items along a row
#define LANES_Y (WG / LANES_X)

DEFINE_JOIN(group_sum, ACC, WG, ADD)
DEFINE_JOIN(group_max, ACC, WG, MAX)

__kernel GROUP void reflect(__global Element *restrict w, __global Element *restrict v, const long start,
                            const long matrix, const int pitch, const int rows, const int width) {
    __local ACC lane[WG];
    __local Element sums[LANES_Y * PANEL];
    const int me = get_local_id(0), x = me % LANES_X, y = me / LANES_X;
    w += start + get_group_id(0) * matrix;
    v += start + get_group_id(0) * matrix;
    for (int j = 0; j < width; j++) {
        __global Element *restrict row = w + (long)j * pitch;
        ACC largest = 0, sum = 0;
        for (int i = j + me; i < rows; i += WG) {
            const Element a = w[(long)i * pitch + j];
            const ACC size = LARGER_PART(a);
            largest = MAX(largest, size);
        }
        largest = group_max(largest, me, lane);
        const ACC divisor = largest > 0 ? largest : 1;  // denormal numbers keep their digits, squares do not overflow
        for (int i = j + me; i < rows; i += WG) {
            const Element a = w[(long)i * pitch + j] / divisor;
            sum += SQUARE(a);
        }
        const ACC norm = SQRT(group_sum(sum, me, lane));
        const Element first = row[j] / divisor, turn = IS_ZERO(first) ? ELEMENT(-1) : phase_of(first);
        const Element last = -norm * turn, scale = first - last;  // no cancellation
        WAIT
        for (int i = me; i < rows; i += WG)
            v[(long)i * pitch + j] = i == j ? ELEMENT(1) : i < j || IS_ZERO(scale) ? (Element)0
                                   : OVER(w[(long)i * pitch + j] / divisor, scale);
        for (int c = j + 1 + x; c < width; c += LANES_X) sums[y * PANEL + c] = (Element)0;
        if (me == 0) row[j] = last * divisor;
        WAIT
        for (int i = j + y; i < rows; i += LANES_Y) {
            __global Element *restrict across = w + (long)i * pitch;
            const Element factor = CONJUGATE(v[(long)i * pitch + j]);
            for (int c = j + 1 + x; c < width; c += LANES_X) sums[y * PANEL + c] += TIMES(factor, across[c]);
        }
        WAIT
        const ACC tau = norm > 0 ? MAGNITUDE(scale) / norm : 2;
        for (int c = j + 1 + me; c < width; c += WG) {
            Element total = (Element)0;
            for (int part = 0; part < LANES_Y; part++) total += sums[part * PANEL + c];
            sums[c] = tau * total;
        }
        WAIT
        for (int i = j + y; i < rows; i += LANES_Y) {
            __global Element *restrict across = w + (long)i * pitch;
            const Element factor = v[(long)i * pitch + j];
            for (int c = j + 1 + x; c < width; c += LANES_X) across[c] -= TIMES(factor, sums[c]);
        }
        WAIT
    }
}
