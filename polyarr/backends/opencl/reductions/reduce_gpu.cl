// Reductions of contiguous rows on GPUs: sum, prod, max, min, argmax, argmin. See reduce.cl for the other layouts.
//
// LANES work-items share a part of a row, as described in teams.cl. In its first and last vector, elements of other
// rows are replaced by START, which does not change the result.
//
// Arrays   as in reduce.cl; arg_rows writes indices, and takes the length as one part
// Launch   groups of WG, with WG / LANES rows each; parts along the second dimension
// Params   T, ACC, LOAD, DTYPE, RAW, WORD    dtype of x, for DEFINE_VECTOR
//          VECTOR          elements per vector
//          A               type of the accumulator
//          OUT_T, STORE    dtype of the results
//          JOIN, START     the binary reduction, and its initial value, which may use `first`, the first element
//          BEFORE          optional: comparison of arg_rows, > or <; complex numbers have no order
//          WG, LANES       work-items per group, and per row: powers of two

#include "teams.cl"

#define MULTIPLY(a, b) ((a) * (b))
#define AT_ONCE 4
#define TURNS (RUN / AT_ONCE)

DEFINE_JOIN(join_lanes, A, LANES, JOIN)
DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)

// Read elements position .. position + VECTOR - 1 of the row at x; `other` replaces those outside of [begin, end).
static inline void read_part(__global const T *restrict x, long position, long begin, long end, ACC other, ACC *v) {
    if (position >= begin && position + VECTOR <= end)
        read_vector(x + position, 0, VECTOR, v);
    else
        EACH_OF_VECTOR v[k] = position + k >= begin && position + k < end ? LOAD(x, position + k) : other;
}

// Declare a work-item's row and part: me, team, row, part, x_row, begin and end, and `aligned`, the index at which
// vectors begin.
#define PART_OF_ROW \
    TEAM \
    const long row = (long)get_group_id(0) * (WG / LANES) + team / LANES, part = get_group_id(1); \
    const long base = row < rows ? offset + row / inner * outer_stride + row % inner * inner_stride : offset; \
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
            _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++)
                read_part(x_row, at + (turn * AT_ONCE + j) * STEP, begin, end, (ACC)(START), v[j]);
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
        _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++) read_part(x_row, at + j * STEP, begin, end, first, v[j]);
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
