// The square root of the sum of squares of many arrays, in two kernels: partial sums of blocks, then the root of their
// sum.
//
// Arrays   x<k> (n<k>) of T for k < 16, contiguous; an unused argument slot has n<k> = 0
//          partials (blocks of all launches) of ACC; y () of ACC
// Launch   local (LANES, 1). global_norm_partials: global LANES * (sum over k of ceil(n<k> / BLOCK)), one work-group
//          per block, which writes partials[first + its group id]. global_norm_root: one work-group
// Params   T, LOAD               dtype of the arrays
//          ACC                   type of the result and of all sums
//          LANES, WIDE, ROWS     work-items per group, partial sums per work-item, 1: see EACH_COLUMN in prelude.cl
//          BLOCK                 elements per block

#define TENSOR(k) __global const T *restrict x##k, const long n##k
#define BLOCKS(n) (((n) + BLOCK - 1) / BLOCK)
#define PICK(k) \
    if (n == 0) { \
        if (block < BLOCKS(n##k)) { \
            x = x##k, n = n##k; \
        } else { \
            block -= BLOCKS(n##k); \
        } \
    }

__kernel ROW_GROUP void global_norm_partials(__global ACC *restrict partials, const long first,
                                             TENSOR(0), TENSOR(1), TENSOR(2), TENSOR(3), TENSOR(4), TENSOR(5),
                                             TENSOR(6), TENSOR(7), TENSOR(8), TENSOR(9), TENSOR(10), TENSOR(11),
                                             TENSOR(12), TENSOR(13), TENSOR(14), TENSOR(15)) {
    __local ACC lane[LANES];
    const int me = get_local_id(0);
    __global const T *x = x0;
    long block = get_group_id(0), n = 0;
    PICK(0) PICK(1) PICK(2) PICK(3) PICK(4) PICK(5) PICK(6) PICK(7)
    PICK(8) PICK(9) PICK(10) PICK(11) PICK(12) PICK(13) PICK(14) PICK(15)
    x += (size_t)block * BLOCK;
    const size_t columns = MIN(BLOCK, n - block * BLOCK);
    ACC part[WIDE];
    for (int w = 0; w < WIDE; w++) part[w] = 0;
    EACH_COLUMN(const ACC v = LOAD(x, c); part[w] += v * v;)
    const ACC sum = row_sum(part, me, lane);
    if (me == 0) partials[first + get_group_id(0)] = sum;
}

__kernel ROW_GROUP void global_norm_root(__global const ACC *restrict partials, __global ACC *restrict y,
                                         const long count) {
    __local ACC lane[LANES];
    const int me = get_local_id(0);
    const size_t columns = count;
    ACC part[WIDE];
    for (int w = 0; w < WIDE; w++) part[w] = 0;
    EACH_COLUMN(part[w] += partials[c];)
    const ACC sum = row_sum(part, me, lane);
    if (me == 0) y[0] = sqrt(sum);
}
