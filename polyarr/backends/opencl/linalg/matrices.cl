// What the decompositions share: moves of matrices between arrays.
//
// Kernels  measure      write a power of two per matrix that scales its largest magnitude to about 1
//          move         copy elements of matrices, by strides, with the options of `move` in matrices.py
//          subtract     c -= p
//          find_signs   write the element of largest magnitude of each column
// Arrays   Matrices are located by steps: from matrix to matrix (long), from row to row, from column to column. Those
//          that are not finite are faults if message is not -1 (measure: always).
//          scales (matrices) of ACC; others of Element, a real or complex number. FAULT: see prelude.cl
// Launch   measure      a group of WG per matrix
//          move, subtract    groups of WG, one for `each` rows; rows of all matrices count
//          find_signs   a group of WG per matrix and chunk of WG columns
// Params   T, LOAD      dtype read by measure and move: storage type, load function
//          OUT_T, STORE  dtype written by move: storage type, store function
//          ACC, COMPLEX  see elements.cl; T and OUT_T are complex, too, if elements are
//          MAX_SCALE    the largest scale; its reciprocal is a normal number, too
//          WG           work-items per group, 1 on CPUs

#include "complex_arithmetic.cl"
#include "elements.cl"

DEFINE_JOIN(group_max, ACC, WG, MAX)

__kernel GROUP void measure(__global const T *restrict x, __global ACC *restrict scales, FAULT, const int message,
                            const long matrix) {
    __local ACC lane[WG];
    const size_t g = get_group_id(0);
    const int me = get_local_id(0);
    ACC largest = 0;
    int finite = 1;
    for (long e = me; e < matrix; e += WG) {
        const Element v = LOAD(x, g * matrix + e);
        const ACC size = LARGER_PART(v);
        finite &= IS_FINITE(v);
        largest = MAX(largest, size);
    }
    if (!finite) note_matrix(fault, call, message);
    largest = group_max(largest, me, lane);
    if (me > 0) return;
    ACC scale = 1;
    if (largest > 0 && largest < INFINITY) {
        while (largest * scale >= 2) scale /= 2;
        while (largest * scale < 1 && scale < MAX_SCALE) scale *= 2;
    }
    scales[g] = scale;
}

__kernel GROUP void move(__global const T *restrict x, __global OUT_T *restrict out,
                         __global const ACC *restrict scales, __global const Element *restrict signs, FAULT,
                         const int message,
                         const long x_start, const long x_matrix, const int x_row, const int x_column,
                         const long out_start, const long out_matrix, const int out_row, const int out_column,
                         const long sign_start, const long sign_matrix, const int sign_row, const int sign_column,
                         const int keep, const int hermitian, const int scaling, const int conjugated,
                         const int signed_by, const int rows, const int columns, const long total, const long each) {
    const long first = get_group_id(0) * each, last = MIN(first + each, total);
    int finite = 1;
    for (long r = first; r < last; r++) {
        const long g = r / rows;
        const int i = (int)(r - g * rows);
        const long from = x_start + g * x_matrix, to = out_start + g * out_matrix + (long)i * out_row;
        const ACC scale = scaling ? scales[g] : 1;
        const long sign = sign_start + g * sign_matrix + (long)i * sign_row;
        for (int j = get_local_id(0); j < columns; j += WG) {
            Element v = (Element)0;
            const int kept = keep == 0 || (keep < 0 ? j <= i : j >= i);
            if (kept) v = LOAD(x, from + (long)i * x_row + (long)j * x_column);
            finite &= IS_FINITE(v);
            if (scaling > 0) v = v * scale;
            if (hermitian) {
                Element other = CONJUGATE(LOAD(x, from + (long)j * x_row + (long)i * x_column));
                if (scaling > 0) other = other * scale;
                if (!IS_ZERO(v - other)) v = v / 2 + other / 2;  // v + other may overflow
            }
            if (scaling < 0) v = v / scale;
            if (conjugated) v = CONJUGATE(v);
            if (kept && signed_by) {
                const Element s = signs[sign + (long)j * sign_column];
                v = turned_by(v, signed_by > 0 ? s : CONJUGATE(s));
            }
            STORE(out, to + (long)j * out_column, v);
        }
    }
    if (message >= 0 && !finite) note_matrix(fault, call, message);
}

__kernel GROUP void subtract(__global Element *restrict c, __global const Element *restrict p, const long c_start,
                             const long c_matrix, const int c_row, const int rows, const int columns,
                             const long total, const long each) {
    const long first = get_group_id(0) * each, last = MIN(first + each, total);
    for (long r = first; r < last; r++) {
        const long g = r / rows, to = c_start + g * c_matrix + (r - g * rows) * c_row;
        for (int j = get_local_id(0); j < columns; j += WG) c[to + j] -= p[r * columns + j];
    }
}

__kernel GROUP void find_signs(__global const Element *restrict x, __global Element *restrict signs, const int rows,
                               const int columns, const int chunks) {
    const size_t g = get_group_id(0) / chunks;
    const int c = get_group_id(0) % chunks * WG + get_local_id(0);
    if (c >= columns) return;
    Element found = (Element)0;
    ACC largest = 0;
    for (long i = 0; i < rows; i++) {
        const Element v = x[(g * rows + i) * columns + c];
        const ACC size = SQUARE(v);
        if (size > largest) {
            largest = size;
            found = v;
        }
    }
    signs[g * columns + c] = found;
}
