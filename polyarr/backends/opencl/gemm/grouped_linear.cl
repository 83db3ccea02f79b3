// Linear layer whose weight each row chooses, for few rows: y[r, j] = sum over c of x[r, c] * weight[groups[r], j, c]. It
// is bound by the bandwidth of the weights, of which it reads the chosen ones, each once. The bits of a row of y depend
// on no other row.
//
// Arrays   x (rows, cols), weight (count, n, cols), y (rows, n) of T, groups (rows) of INDEX, all row-major
//          FAULT: see prelude.cl
// Launch   local (LANES, ROWS, 1), global (LANES, ROWS * work-groups, count): LANES work-items compute `each` columns of
//          the rows of one group, one by one
// Params   T, ACC, LOAD, STORE    dtype of x, weight and y: see prelude.cl
//          LANES, ROWS            work-items that share a row of weight, rows of weight per group, powers of two
//          WIDE                   partial sums per work-item
#include "groups.cl"

// A single accumulator would lose a digit for every few thousand terms, so chunks are summed on their own and then
// added.
#define CHUNK 128

__kernel ROW_GROUP void grouped_linear(
        __global const T *restrict x, __global const T *restrict weight, __global const INDEX *restrict groups,
        __global T *restrict y, FAULT, const long rows, const long count, const long n, const long cols,
        const long each) {
    __local ACC lanes[LANES * ROWS];
    const int me = get_local_id(0), turn = get_local_id(1);
    const long own = get_group_id(2), first = get_group_id(1) * each * ROWS + turn;
    if (!is_chosen(own, groups, rows, count, fault, call)) return;
    for (long i = 0, j = first; i < each; i++, j += ROWS) {
        const long depth = j < n ? cols : 0;
        for (long r = 0; r < rows; r++) {
            if (group_of(groups, r, count) != own) continue;
            ACC total[WIDE], lost[WIDE];
            for (int w = 0; w < WIDE; w++) total[w] = lost[w] = 0;
            for (long begin = 0; begin < depth; begin += CHUNK * WIDE * LANES) {
                const size_t columns = MIN(CHUNK * WIDE * LANES, depth - begin);  // what EACH_COLUMN visits
                __global const T *left = x + r * cols + begin;
                __global const T *right = weight + (own * n + j) * cols + begin;
                ACC part[WIDE];
                for (int w = 0; w < WIDE; w++) part[w] = 0;
                EACH_COLUMN(part[w] += LOAD(left, c) * LOAD(right, c);)
                for (int w = 0; w < WIDE; w++) KAHAN_ADD(ACC, total[w], lost[w], part[w])
            }
            const ACC sum = row_sum(total, me, lanes + turn * LANES);
            if (me == 0 && j < n) STORE(y, r * n + j, sum);
        }
    }
}
