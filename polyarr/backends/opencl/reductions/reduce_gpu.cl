// Reductions on GPUs: sum, prod, max, min, argmax, argmin of contiguous rows; sum, prod, max, min of adjacent columns.
// See reduce.cl for the other layouts.
//
// Rows: LANES work-items share a part of a row, as described in teams.cl. In its first and last vector, elements of
// other rows are replaced by START, which does not change the result.
//
// Columns: each work-item reduces VECTOR adjacent columns of every DEPTH-th row of a part; then the results of the
// work-items of a column are reduced.
//
// Arrays   as in reduce.cl; arg_rows writes indices, and takes the length as one part
// Launch   rows       groups of WG, with WG / LANES rows each; parts along the second dimension
//          columns    groups of (LANES, DEPTH), with LANES vectors of columns each, those of all `outers` one after the
//                     other; parts along the second dimension
// Params   T, ACC, LOAD, DTYPE, RAW, WORD    dtype of x, for DEFINE_VECTOR
//          VECTOR          elements per vector
//          A               type of the accumulator
//          OUT_T, STORE    dtype of the results
//          JOIN, START     the binary reduction, and its initial value, which may use `first`, the first element
//          COLUMNS         1 for columns, 0 for rows
//          BY_VECTORS      columns: 1 if results have the dtype of x, and inner is a multiple of VECTOR
//          BEFORE          optional: comparison of arg_rows, > or <; complex numbers have no order
//          WG, LANES       work-items per group, and per row: powers of two

#include "teams.cl"

#define MULTIPLY(a, b) ((a) * (b))
#define AT_ONCE 4
#define TURNS (RUN / AT_ONCE)

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)

#if COLUMNS
#define DEPTH (WG / LANES)
#define ROWS_AT_ONCE 8
#define JOIN_VECTOR(result, v) EACH_OF_VECTOR result[k] = JOIN(result[k], (A)v[k]);

__kernel __attribute__((reqd_work_group_size(LANES, DEPTH, 1)))
void reduce_columns(__global const T *restrict x, const long offset, __global OUT_T *restrict out, const long outers,
                    const long inner, const long length, const long outer_stride, const long stride,
                    const long part_length) {
    __local A lanes[VECTOR][WG];
    const int depth = get_local_id(1), me = depth * LANES + get_local_id(0);
    const ulong vectors = (inner + VECTOR - 1) / VECTOR;  // of a row
    const long outer = get_global_id(0) / vectors, column = get_global_id(0) % vectors * VECTOR;
    const long part = get_group_id(1), begin = part * part_length;
    const long end = outer < outers ? MIN(begin + part_length, length) : begin;
    __global const T *restrict x_row = x + offset + outer * outer_stride;
    ACC v[ROWS_AT_ONCE][VECTOR];
    A total[VECTOR], empty[VECTOR];
    EACH_OF_VECTOR v[0][k] = (ACC)0;
    if (begin < end) read_vector(x_row + begin * stride, column, inner, v[0]);
    EACH_OF_VECTOR {
        const A first = (A)v[0][k];
        total[k] = empty[k] = START;
    }
    for (long chunk = begin + depth; chunk < end; chunk += RUN * DEPTH) {
        const long stop = MIN(chunk + RUN * DEPTH, end);
        long r = chunk;
        A partial[VECTOR];
        EACH_OF_VECTOR partial[k] = empty[k];
        for (; r + (ROWS_AT_ONCE - 1) * DEPTH < stop; r += ROWS_AT_ONCE * DEPTH) {
            _Pragma("unroll") for (int j = 0; j < ROWS_AT_ONCE; j++)
                read_vector(x_row + (r + j * DEPTH) * stride, column, inner, v[j]);
            _Pragma("unroll") for (int j = 0; j < ROWS_AT_ONCE; j++) JOIN_VECTOR(partial, v[j])
        }
        for (; r < stop; r += DEPTH) {
            read_vector(x_row + r * stride, column, inner, v[0]);
            JOIN_VECTOR(partial, v[0])
        }
        JOIN_VECTOR(total, partial)
    }
    EACH_OF_VECTOR lanes[k][me] = total[k];
    for (int step = DEPTH / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (depth < step) EACH_OF_VECTOR lanes[k][me] = JOIN(lanes[k][me], lanes[k][me + step * LANES]);
    }
    if (depth || outer >= outers) return;
    const long result = (part * outers + outer) * inner + column;
#if BY_VECTORS
    EACH_OF_VECTOR v[0][k] = lanes[k][me];
    write_vector(out, result, result + VECTOR, v[0]);
#else
    EACH_OF_VECTOR if (column + k < inner) STORE(out, result + k, lanes[k][me]);
#endif
}
#else
DEFINE_JOIN(join_lanes, A, LANES, JOIN)

// Read elements position .. position + VECTOR - 1 of the row at x; `other` replaces those outside of [begin, end).
static inline void read_part(__global const T *restrict x, long position, long begin, long end, ACC other, ACC *v) {
    if (position >= begin && position + VECTOR <= end)
        read_vector(x + position, 0, VECTOR, v);
    else
        EACH_OF_VECTOR v[k] = position + k >= begin && position + k < end ? LOAD(x, position + k) : other;
}

// Read the AT_ONCE vectors at position, position + STEP, ... of the row at x. Where all of them are inside, no load waits
// for the condition of another.
static inline void read_parts(__global const T *restrict x, long position, long begin, long end, ACC other,
                              ACC v[AT_ONCE][VECTOR]) {
    if (position >= begin && position + (AT_ONCE - 1) * STEP + VECTOR <= end) {
        _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++) read_vector(x + position + j * STEP, 0, VECTOR, v[j]);
    } else {
        _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++) read_part(x, position + j * STEP, begin, end, other, v[j]);
    }
}

// Declare a work-item's row and part: me, team, row, part, x_row, begin and end, and `aligned`, the index at which
// vectors begin.
#define PART_OF_ROW \
    TEAM \
    const long row = (long)get_group_id(0) * (WG / LANES) + team / LANES, part = get_group_id(1); \
    const long at_row = inner == 1 ? row * outer_stride : row / inner * outer_stride + row % inner * inner_stride; \
    const long base = row < rows ? offset + at_row : offset; \
    const long begin = part * part_length, end = row < rows ? MIN(begin + part_length, length) : begin; \
    const long aligned = begin - (base + begin) % VECTOR; \
    __global const T *restrict x_row = x + base;

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void reduce_rows(__global const T *restrict x, const long offset, __global OUT_T *restrict out, const long rows,
                 const long inner, const long length, const long outer_stride, const long inner_stride,
                 const long part_length) {
    __local A lanes[WG];
    PART_OF_ROW
    const ACC other = begin < end ? LOAD(x_row, begin) : (ACC)0;
    const A first = (A)other;
    A total = START;
    for (long at = aligned + me * VECTOR; at < end; at += TURNS * AT_ONCE * STEP) {
        A partial[VECTOR];
        EACH_OF_VECTOR partial[k] = START;
        for (int turn = 0; turn < TURNS && at + turn * AT_ONCE * STEP < end; turn++) {
            ACC v[AT_ONCE][VECTOR];
            read_parts(x_row, at + turn * AT_ONCE * STEP, begin, end, (ACC)(START), v);
            _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++)
                EACH_OF_VECTOR partial[k] = JOIN(partial[k], (A)v[j][k]);
        }
        EACH_OF_VECTOR total = JOIN(total, partial[k]);
    }
    total = join_lanes(total, me, lanes + team);
    if (me == 0 && row < rows) STORE(out, part * rows + row, total);
}

#ifdef BEFORE
// 1 if v is better than best; nan is better than everything else.
#define IS_BETTER(v, best) ((v) BEFORE (best) || ((v) != (v) && (best) == (best)))

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void arg_rows(__global const T *restrict x, const long offset, __global OUT_T *restrict out, const long rows,
              const long inner, const long length, const long outer_stride, const long inner_stride,
              const long part_length) {
    __local ACC bests[WG];
    __local long positions[WG];
    PART_OF_ROW
    const ACC first = begin < end ? LOAD(x_row, begin) : 0;
    ACC best = first;
    long position = 0;
    for (long at = aligned + me * VECTOR; at < end; at += AT_ONCE * STEP) {
        ACC v[AT_ONCE][VECTOR];
        read_parts(x_row, at, begin, end, first, v);
        _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++)
            EACH_OF_VECTOR if (IS_BETTER(v[j][k], best)) {
                best = v[j][k];
                position = at + j * STEP + k;
            }
    }
    bests[team + me] = best;
    positions[team + me] = position;
    for (int step = LANES / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < step) {
            const ACC v = bests[team + me + step];
            const long other = positions[team + me + step];
            const int is_equal = v == best || (v != v && best != best);
            if (is_equal ? other < position : IS_BETTER(v, best)) {
                bests[team + me] = best = v;
                positions[team + me] = position = other;
            }
        }
    }
    if (me == 0 && row < rows) STORE(out, row, position);
}
#endif
#endif
