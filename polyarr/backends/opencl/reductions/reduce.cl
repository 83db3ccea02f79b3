// Reductions of one axis: sum, prod, max, min, and the second pass of argmax and argmin. reduce_gpu.cl has the kernels
// of GPUs for contiguous rows and for adjacent columns.
//
// x is a strided view of outer x length x inner elements. Each (outer, inner) has one result; results are row-major. If
// the length is split into parts, each part has its own results, and those of one part follow those of the part before.
//
// Kernels  reduce_rows       LANES work-items reduce a row together; any strides
//          reduce_columns    CPU: a work-item reduces adjacent columns; inner_stride is 1
//          find_rows, find_columns    the index of the first element equal to `wanted` (one per result, of type T; nan
//                            equals nan); the length if the part has none
// Launch   reduce_rows       CPU (WG 1): global (blocks of rows, parts); GPU: groups of WG, with WG / LANES rows each
//          reduce_columns    global (blocks of COLUMNS columns, outer, parts)
//          find_rows         as reduce_rows
//          find_columns      CPU: as reduce_columns
//                            GPU: groups of (COLUMNS, WG / COLUMNS), one per block of columns; outer and parts likewise
// Params   T, LOAD            dtype of x: storage type, load function
//          A                  type of the accumulator
//          OUT_T, STORE       dtype of the results: storage type, store function
//          JOIN, START        the binary reduction, and its initial value, which may use `first`, the first element
//          FIND               1 to compile the find_ kernels, 0 for the reduce_ kernels
//          VECTORS            1 to read dense rows eight elements at a time; T and A are the same; CPUs only
//          STRIDE             1 if the rows of reduce_rows are dense, which allows vector loads; else `stride`
//          WG, LANES          work-items per group, and per row: powers of two
//          PARTIALS           independent accumulators per work-item, a power of two
//          COLUMNS            columns per group of reduce_columns and find_columns

#include "join.cl"

#if FIND
DEFINE_JOIN(first_of_lanes, long, LANES, MIN)

#define IS_WANTED(v) (((v) == wanted) | (((v) != (v)) & (wanted != wanted)))
#define SKIP 64

static inline long find_in_row(__global const T *restrict x, long base, long stride, long begin, long end, long none,
                               A wanted, int me, __local long *lane) {
    long found = none, skipped = begin;
    for (int hit = 0; LANES == 1 && skipped + SKIP <= end; skipped += SKIP) {
        for (int j = 0; j < SKIP; j++) {
            const A v = AT(skipped + j);
            hit |= IS_WANTED(v);
        }
        if (hit) break;
    }
    for (long i = skipped + me; i < end; i += LANES) {
        const A v = AT(i);
        if (IS_WANTED(v)) {
            found = i;
            break;
        }
    }
    return first_of_lanes(found, me, lane);
}
#endif

// Run STATEMENTS for each row of the LANES work-items that share rows: its elements are base + i * STRIDE for i from
// begin to stop. Work-items without a row still take part in the barriers.
#define EACH_ROW(STATEMENTS) \
    const int me = (int)get_local_id(0) % LANES, team = (int)get_local_id(0) - me; \
    const long part = get_group_id(1), begin = part * part_length, end = MIN(begin + part_length, length); \
    const long first_row = ((long)get_group_id(0) * (WG / LANES) + team / LANES) * rows_per_item; \
    for (long row = first_row; row < first_row + rows_per_item; row++) { \
        const long base = offset + row / inner * outer_stride + row % inner * inner_stride; \
        const long stop = row < rows ? end : begin; \
        STATEMENTS \
    }

#if FIND
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void find_rows(__global const T *restrict x, const long offset, __global const T *restrict wanted,
               __global OUT_T *restrict out, const long rows, const long inner, const long length,
               const long outer_stride, const long inner_stride, const long stride, const long part_length,
               const long rows_per_item) {
    __local long places[WG];
    EACH_ROW(
        const A value = row < rows ? (A)LOAD(wanted, row) : (A)0;
        const long found = find_in_row(x, base, stride, begin, stop, length, value, me, places + team);
        if (me == 0 && row < rows) STORE(out, part * rows + row, found);)
}
#else
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void reduce_rows(__global const T *restrict x, const long offset, __global OUT_T *restrict out, const long rows,
                 const long inner, const long length, const long outer_stride, const long inner_stride,
                 const long stride, const long part_length, const long rows_per_item) {
    __local A lanes[WG];
    EACH_ROW(
        const A joined = join_row(x, base, stride, begin, stop, me, lanes + team, 0);
        if (me == 0 && row < rows) STORE(out, part * rows + row, joined);)
}
#endif

#if FIND
#if WG == 1
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void find_columns(__global const T *restrict x, const long offset, __global const T *restrict wanted,
                  __global OUT_T *restrict out, const long inner, const long length, const long outer_stride,
                  const long stride, const long part_length) {
    const long column = (long)get_group_id(0) * COLUMNS, outer = get_group_id(1), part = get_group_id(2);
    const int columns = (int)MIN((long)COLUMNS, inner - column);
    const long begin = part * part_length, end = MIN(begin + part_length, length);
    const long start = offset + outer * outer_stride + column;
    const long result = (part * (long)get_num_groups(1) + outer) * inner + column;
    A values[COLUMNS];
    uint found[COLUMNS];  // distance from the end; 0 if not found
    for (int c = 0; c < columns; c++) {
        values[c] = (A)LOAD(wanted, outer * inner + column + c);
        found[c] = 0;
    }
    for (long r = end - 1; r >= begin; r--)
        for (int c = 0; c < columns; c++) {
            const A v = (A)LOAD(x, start + r * stride + c), wanted = values[c];
            found[c] = IS_WANTED(v) ? (uint)(end - r) : found[c];
        }
    for (int c = 0; c < columns; c++) STORE(out, result + c, found[c] ? end - found[c] : length);
}
#else
#define DEPTH (WG / COLUMNS)

static inline long find_column(__global const T *restrict x, long base, long stride, long begin, long end, long none,
                               A wanted) {
    for (long r = begin; r < end; r += DEPTH) {
        const A v = (A)LOAD(x, base + r * stride);
        if (IS_WANTED(v)) return r;
    }
    return none;
}

__kernel __attribute__((reqd_work_group_size(COLUMNS, DEPTH, 1)))
void find_columns(__global const T *restrict x, const long offset, __global const T *restrict wanted,
                  __global OUT_T *restrict out, const long inner, const long length, const long outer_stride,
                  const long stride, const long part_length) {
    __local long lane[WG];
    const int c = get_local_id(0), depth = get_local_id(1);
    const long column = (long)get_group_id(0) * COLUMNS + c, outer = get_group_id(1), part = get_group_id(2);
    const long begin = part * part_length, end = column < inner ? MIN(begin + part_length, length) : begin;
    const A value = column < inner ? (A)LOAD(wanted, outer * inner + column) : (A)0;
    lane[depth * COLUMNS + c] = find_column(x, offset + outer * outer_stride + column, stride, begin + depth, end,
                                            length, value);
    for (int step = DEPTH / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (depth < step)
            lane[depth * COLUMNS + c] = MIN(lane[depth * COLUMNS + c], lane[(depth + step) * COLUMNS + c]);
    }
    if (depth == 0 && column < inner)
        STORE(out, (part * (long)get_num_groups(1) + outer) * inner + column, lane[c]);
}
#endif
#endif

#if !FIND && WG == 1
#define BELOW(r) ((A)LOAD(x, start + (r) * stride + c))
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void reduce_columns(__global const T *restrict x, const long offset, __global OUT_T *restrict out, const long inner,
                    const long length, const long outer_stride, const long stride, const long part_length) {
    const long column = (long)get_group_id(0) * COLUMNS, outer = get_group_id(1), part = get_group_id(2);
    const int columns = (int)MIN((long)COLUMNS, inner - column);
    const long begin = part * part_length, end = MIN(begin + part_length, length);
    const long start = offset + outer * outer_stride + column;
    const long result = (part * (long)get_num_groups(1) + outer) * inner + column;
    A total[COLUMNS], partial[COLUMNS];
    for (int c = 0; c < columns; c++) {
        const A first = begin < end ? BELOW(begin) : (A)0;
        total[c] = partial[c] = START;
    }
    for (long chunk = begin; chunk < end; chunk += 128) {
        const long stop = MIN(chunk + 128, end);
        long r = chunk;
        for (; r + 4 <= stop; r += 4)  // four rows per update, because partial results are in memory
            for (int c = 0; c < columns; c++) {
                const A v0 = BELOW(r), v1 = BELOW(r + 1), v2 = BELOW(r + 2), v3 = BELOW(r + 3);
                const A two = JOIN(v0, v1), more = JOIN(v2, v3), four = JOIN(two, more);
                partial[c] = JOIN(partial[c], four);
            }
        for (; r < stop; r++)
            for (int c = 0; c < columns; c++) {
                const A v = BELOW(r);
                partial[c] = JOIN(partial[c], v);
            }
        for (int c = 0; c < columns; c++) {
            const A first = partial[c];
            total[c] = JOIN(total[c], first);
            partial[c] = START;
        }
    }
    for (int c = 0; c < columns; c++) STORE(out, result + c, total[c]);
}
#endif
