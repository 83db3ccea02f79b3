// Triangular systems of `width` equations m y = b, which are solved in place.
//
// Kernels  substitute   exchange rows of b as pivots say, and solve for a chunk of columns of b
// Arrays   m, b of Element, a real or complex number: located by steps from matrix to matrix (long), from row to row and,
//          in m, from column to column. The diagonal is that of m divided by `diagonal`; if that is 0, it is 1.
//          pivots of int: row j is exchanged with row pivots[j] of b, unless pivot_matrix is 0
// Launch   a group of WG per matrix and chunk of CHUNK columns
// Params   ACC, COMPLEX    see elements.cl
//          WG, CHUNK       work-items per group, 1 on CPUs; columns of a chunk
//          PANEL           most equations

#include "complex_arithmetic.cl"
#include "elements.cl"

#define EQUATION(t) (upward ? width - 1 - (t) : (t))  // its row, in the order in which they are solved

__kernel GROUP void substitute(__global const Element *restrict m, __global Element *b,
                               __global const int *restrict pivots,
                               const long m_start, const long m_matrix, const int m_row, const int m_column,
                               const long b_start, const long b_matrix, const int b_row,
                               const int pivot_start, const int pivot_matrix,
                               const int width, const int columns, const int chunks, const int upward,
                               const int diagonal, const int conjugated) {
    const size_t g = get_group_id(0) / chunks;
    const int begin = get_group_id(0) % chunks * CHUNK, end = MIN(begin + CHUNK, columns);
    const int me = begin + get_local_id(0);
    m += m_start + g * m_matrix;
    b += b_start + g * b_matrix;
    if (pivot_matrix)
        for (int j = 0; j < width; j++) {
            const long place = pivots[g * pivot_matrix + pivot_start + j];
            __global Element *row = b + (long)j * b_row, *other = b + place * b_row;
            if (row != other)
                for (int c = me; c < end; c += WG) {
                    const Element v = row[c];
                    row[c] = other[c];
                    other[c] = v;
                }
        }
#if WG > 1
    // A work-item solves for columns of its own, in registers.
    __local Element factors[PANEL * PANEL];
    for (int e = get_local_id(0); e < width * width; e += WG) {
        const int t = e / width, s = e % width;
        if (s > t || (s == t && !diagonal)) continue;
        const Element given = m[(long)EQUATION(t) * m_row + (long)EQUATION(s) * m_column];
        const Element factor = s == t ? given / (ACC)diagonal : given;
        factors[t * PANEL + s] = conjugated ? CONJUGATE(factor) : factor;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int c = me; c < end; c += WG) {
        Element own[PANEL];
        _Pragma("unroll") for (int t = 0; t < PANEL; t++)
            if (t < width) own[t] = b[(long)EQUATION(t) * b_row + c];
        _Pragma("unroll") for (int t = 0; t < PANEL; t++)
            if (t < width) {
                _Pragma("unroll") for (int s = 0; s < t; s++) own[t] -= TIMES(factors[t * PANEL + s], own[s]);
                if (diagonal) own[t] = OVER(own[t], factors[t * (PANEL + 1)]);
                b[(long)EQUATION(t) * b_row + c] = own[t];
            }
    }
#else
    for (int t = 0; t < width; t++) {
        const int i = EQUATION(t);
        __global Element *restrict row = b + (long)i * b_row;
        for (int s = 0; s < t; s++) {
            const int j = EQUATION(s);
            const Element given = m[(long)i * m_row + (long)j * m_column];
            const Element factor = conjugated ? CONJUGATE(given) : given;
            __global const Element *restrict other = b + (long)j * b_row;
            for (int c = me; c < end; c++) row[c] -= TIMES(factor, other[c]);
        }
        if (diagonal) {
            const Element given = m[(long)i * (m_row + m_column)] / (ACC)diagonal;
            const Element pivot = conjugated ? CONJUGATE(given) : given;
            for (int c = me; c < end; c++) row[c] = OVER(row[c], pivot);
        }
    }
#endif
}
