// Gaussian elimination of a panel: `width` columns of matrices, from the diagonal element at `start` on.
//
// Kernels  eliminate               LU with partial pivoting of `rows` rows: U in the upper triangle, L below it without
//                                  its diagonal of ones; pivots[j] is the row exchanged with row j, from start on
//          eliminate_hermitian     on CPUs: Cholesky decomposition R^H R of a square block, in the upper triangle
//          determinant             the sign and the logarithm of the magnitude of the product of the diagonal
// Arrays   w of Element, a real or complex number: matrices of rows `pitch` apart, `matrix` from one to the next.
//          FAULT: see prelude.cl
// Launch   a group of WG per matrix; determinant: a work-item per matrix, group 1 on CPUs
// Params   ACC, COMPLEX    see elements.cl
//          WG              work-items per group, 1 on CPUs
//          PANEL           largest width

#include "complex_arithmetic.cl"
#include "elements.cl"

#define WAIT if (WG > 1) barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#define LANES_X (WG < 32 ? WG : 32)  // work-items along a row
#define LANES_Y (WG / LANES_X)

__kernel GROUP void eliminate(__global Element *w, __global int *restrict pivots, FAULT, const int message,
                              const long start, const long matrix, const int pitch, const int rows, const int width,
                              const int pivot_start, const int pivot_matrix) {
    __local ACC sizes[WG];
    __local int places[WG];
    const size_t g = get_group_id(0);
    const int me = get_local_id(0), x = me % LANES_X, y = me / LANES_X;
    w += start + g * matrix;
    for (int j = 0; j < width; j++) {
        __global Element *restrict row = w + (long)j * pitch;
        ACC largest = -1;
        int place = j;
        for (int i = j + me; i < rows; i += WG) {
            const Element v = w[(long)i * pitch + j];
            const ACC size = NEAR_MAGNITUDE(v);
            if (size > largest) {
                largest = size;
                place = i;
            }
        }
        if (WG > 1) {
            sizes[me] = largest;
            places[me] = place;
            for (int step = WG / 2; step > 0; step /= 2) {
                WAIT
                if (me < step && sizes[me + step] > sizes[me]) {
                    sizes[me] = sizes[me + step];
                    places[me] = places[me + step];
                }
            }
            WAIT
            place = places[0];
        }
        __global Element *restrict other = w + (long)place * pitch;
        const Element pivot = other[j];
        if (me == 0) {
            pivots[g * pivot_matrix + pivot_start + j] = place;
            if (IS_ZERO(pivot) && message >= 0) note_matrix(fault, call, message);
        }
        WAIT
        if (place != j)
            for (int c = me; c < width; c += WG) {
                const Element v = row[c];
                row[c] = other[c];
                other[c] = v;
            }
        WAIT
        for (int i = j + 1 + me; i < rows; i += WG)
            w[(long)i * pitch + j] = IS_ZERO(pivot) ? (Element)0 : OVER(w[(long)i * pitch + j], pivot);
        WAIT
        for (int i = j + 1 + y; i < rows; i += LANES_Y) {
            __global Element *restrict below = w + (long)i * pitch;
            const Element factor = below[j];
            for (int c = j + 1 + x; c < width; c += LANES_X) below[c] -= TIMES(factor, row[c]);
        }
        WAIT
    }
}

#if WG == 1
__kernel GROUP void eliminate_hermitian(__global Element *w, FAULT, const int message, const long start,
                                        const long matrix, const int pitch, const int width) {
    w += start + get_group_id(0) * matrix;
    for (int j = 0; j < width; j++) {
        __global Element *restrict row = w + (long)j * pitch;
        const ACC pivot = REAL_PART(row[j]), root = pivot > 0 ? SQRT(pivot) : 1;
        if (!(pivot > 0)) note_matrix(fault, call, message);
        for (int c = j; c < width; c++) row[c] = c == j ? ELEMENT(root) : row[c] / root;
        for (int i = j + 1; i < width; i++) {
            __global Element *restrict below = w + (long)i * pitch;
            const Element factor = CONJUGATE(row[i]);
            for (int c = i; c < width; c++) below[c] -= TIMES(factor, row[c]);
        }
    }
}
#endif

__kernel void determinant(__global const Element *restrict w, __global const int *restrict pivots,
                          __global Element *restrict sign, __global ACC *restrict size,
                          const long matrix, const int pitch, const int n, const int panel) {
    const size_t g = get_global_id(0);
    Element turns = ELEMENT(1);
    ACC sum = 0;
    for (int j = 0; j < n; j++) {
        const Element v = w[g * matrix + (long)j * (pitch + 1)];
        if (pivots[g * n + j] != j % panel) turns = -turns;
        turns = TIMES(turns, phase_of(v));
        sum += LOG(MAGNITUDE(v));
    }
    sign[g] = phase_of(turns);
    size[g] = sum;
}
