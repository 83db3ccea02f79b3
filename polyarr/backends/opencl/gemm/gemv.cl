// GEMV and skinny GEMM (few rows of x) on CPUs: out = activation(x @ y + bias), for a batch. It is bound by the
// bandwidth of y, which is read once. A tall matrix times one with few columns is the same product, transposed.
//
// Arrays   x (batch, m, k), y (batch, k, n), out, saved (batch, m, n) of T, each with any strides; saved is the input
//          of the activation; bias of T, with one stride for the rows and one for the columns of out
//          Matrix b of x begins at x_start + (b / inner) * x_outer + (b % inner) * x_inner; likewise for y
// Launch   local (1, 1, 1), global (groups of columns, 1, batch); a group computes columns_each columns if Y_ALONG_K,
//          else WIDE columns
// Params   T, ACC, LOAD, STORE     the dtype: see prelude.cl
//          FLOATING                1 if the dtype is floating-point
//          X_ALONG_K, Y_ALONG_K    1 if the stride along k is 1; without Y_ALONG_K the stride along n should be 1
//          BIAS, SAVE              1 to add bias, to write saved
//          ACTIVATION              none, relu, silu, gelu or gelu_tanh
//          WIDE                    partial sums per work-item
//          LANES, ROWS             1

// A single accumulator would lose a digit for every few thousand terms, so chunks are summed on their own and then
// added.
#define CHUNK 128L
#define X(r, d) LOAD(x, (r) * x_row + (d) * (X_ALONG_K ? 1 : x_deep))
#define WRITE(r, c, sum) { \
        const ACC v = (sum) + (BIAS ? LOAD(bias, (r) * bias_row + (c) * bias_column) : 0); \
        const size_t at = b * m * n + (r) * out_row + (c) * out_column; \
        if (SAVE) STORE(saved, at, v); \
        STORE(out, at, ACTIVATE(v)); \
    }

__kernel ROW_GROUP void matmul(
        __global const T *restrict x, __global const T *restrict y, __global const T *restrict bias,
        __global T *restrict out, __global T *restrict saved, const long m, const long n, const long k,
        const long columns_each, const long out_row, const long out_column, const long bias_row,
        const long bias_column, const long x_start, const long x_row, const long x_deep, const long y_start,
        const long y_column, const long y_deep, const long inner, const long x_outer, const long x_inner,
        const long y_outer, const long y_inner) {
    __local ACC lanes[1];
    const int me = 0;
    const long b = get_group_id(2);
    x += x_start + (b / inner) * x_outer + (b % inner) * x_inner;
    y += y_start + (b / inner) * y_outer + (b % inner) * y_inner;
#if Y_ALONG_K
    for (long i = 0, column = get_group_id(0) * columns_each; i < columns_each; i++, column++) {
        const long depth = column < n ? k : 0;
        __global const T *row = y + (column < n ? column * y_column : 0);
        for (long r = 0; r < m; r++) {
            ACC total[WIDE], lost[WIDE];
            for (int w = 0; w < WIDE; w++) total[w] = lost[w] = 0;
            for (long begin = 0; begin < depth; begin += CHUNK * WIDE) {
                // The columns that EACH_COLUMN visits are those of y transposed.
                const size_t columns = MIN(CHUNK * WIDE, depth - begin);
                ACC part[WIDE];
                for (int w = 0; w < WIDE; w++) part[w] = 0;
                EACH_COLUMN(part[w] += X(r, begin + c) * LOAD(row, begin + c);)
                for (int w = 0; w < WIDE; w++) KAHAN_ADD(ACC, total[w], lost[w], part[w])
            }
            const ACC sum = row_sum(total, me, lanes);
            if (column < n) WRITE(r, column, sum)
        }
    }
#else
    const long first = get_group_id(0) * WIDE;
    const int whole = first + WIDE <= n;
    for (long r = 0; r < m; r++) {
        ACC total[WIDE], lost[WIDE];
        for (int w = 0; w < WIDE; w++) total[w] = lost[w] = 0;
        for (long begin = 0; begin < k; begin += CHUNK) {
            const long end = MIN(begin + CHUNK, k);
            ACC part[WIDE];
            for (int w = 0; w < WIDE; w++) part[w] = 0;
            for (long d = begin; d < end; d++) {
                const ACC left = X(r, d);
                __global const T *row = y + d * y_deep + first * y_column;
                if (whole) for (int w = 0; w < WIDE; w++) part[w] += left * LOAD(row, w * y_column);
                else
                    for (int w = 0; w < WIDE; w++)
                        if (first + w < n) part[w] += left * LOAD(row, w * y_column);
            }
            for (int w = 0; w < WIDE; w++) KAHAN_ADD(ACC, total[w], lost[w], part[w])
        }
        for (int w = 0; w < WIDE; w++)
            if (first + w < n) WRITE(r, first + w, total[w])
    }
#endif
}
