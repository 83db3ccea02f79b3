// Column sums of partial results that a row kernel left: out[c] = sum over p of partials[p, c], for one or two arrays.
//
// Arrays   partials, others (parts, cols) of ACC, row-major; out, out_of_others (cols) of T: the sums of each
// Launch   local (COLUMNS, SPLIT, 1), global (COLUMNS * ceil(cols / (COLUMNS * TILE)), SPLIT, number of arrays)
// Params   T, ACC, STORE    dtype of the results: see prelude.cl
//          COLUMNS          adjacent columns per group
//          SPLIT            work-items per column, a power of two
//          TILE             columns per work-item

DEFINE_JOIN(split_sum, ACC, SPLIT, ADD)

__kernel __attribute__((reqd_work_group_size(COLUMNS, SPLIT, 1)))
void column_sums(__global const ACC *restrict partials, __global const ACC *restrict others, __global T *restrict out,
                 __global T *restrict out_of_others, const long parts, const long cols) {
    __local ACC lanes[COLUMNS * SPLIT];
    const int me = get_local_id(1);
    if (get_group_id(2)) {
        partials = others;
        out = out_of_others;
    }
    const size_t first = get_group_id(0) * COLUMNS * TILE + get_local_id(0);
    ACC sum[TILE], lost[TILE];
    for (int k = 0; k < TILE; k++) sum[k] = lost[k] = 0;
#pragma unroll 4
    for (long p = me; p < parts; p += SPLIT)
        for (int k = 0; k < TILE; k++) {
            const size_t c = first + k * COLUMNS;
            if (c < cols) KAHAN_ADD(ACC, sum[k], lost[k], partials[p * cols + c])
        }
    for (int k = 0; k < TILE; k++) {
        const size_t c = first + k * COLUMNS;
        const ACC total = split_sum(sum[k], me, lanes + get_local_id(0) * SPLIT);
        if (me == 0 && c < cols) STORE(out, c, total);
    }
}
