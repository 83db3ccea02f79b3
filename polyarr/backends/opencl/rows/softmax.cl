// Softmax and log-softmax over the last axis, forward and backward, for CPUs: y = exp(x - m) / s, or y = x - m -
// log(s), with m the largest element of the row and s the sum of exp(x - m). Backward, from the result: dx = y (g -
// sum(g y)), or dx = g - exp(y) sum(g).
//
// Arrays   x, y, g, dx (rows, cols) of T, row-major
// Launch   local (LANES, ROWS), global (LANES, ROWS * ceil(rows / (ROWS * rows_each))); see EACH_ROW in prelude.cl
// Params   T, ACC, LOAD, STORE    the dtype: see prelude.cl
//          LANES, ROWS            work-items per row, rows per work-group, powers of two
//          WIDE                   partial results per work-item
//          IN_LOGS                1 for log-softmax, 0 for softmax

#define HELD 4096  // exponentials buffered in the L1 cache, if y is too narrow to hold them

__kernel ROW_GROUP void softmax_forward(__global const T *restrict x, __global T *restrict y,
                                        const long rows, const long cols, const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        __global const T *restrict x_row = x + row * cols;
        __global T *restrict y_row = y + row * cols;
        const ACC m = row_largest(x_row, columns, me, lane);
        ACC part[WIDE];
        for (int w = 0; w < WIDE; w++) part[w] = 0;
        if (sizeof(T) == sizeof(ACC)) {  // y holds intermediate values, which also fetches it
#if IN_LOGS
            EACH_COLUMN_WIDELY(const ACC d = LOAD(x_row, c) - m; part[w] += EXP(d); STORE(y_row, c, d);)
            const ACC log_sum = log(row_sum(part, me, lane));
            EACH_COLUMN(STORE(y_row, c, LOAD(y_row, c) - log_sum);)
#else
            EACH_COLUMN_WIDELY(const ACC e = EXP(LOAD(x_row, c) - m); part[w] += e; STORE(y_row, c, e);)
            const ACC factor = 1 / row_sum(part, me, lane);
            EACH_COLUMN(STORE(y_row, c, LOAD(y_row, c) * factor);)
#endif
        } else {
#if IN_LOGS
            EACH_COLUMN_WIDELY(part[w] += EXP(LOAD(x_row, c) - m);)
            const ACC log_sum = log(row_sum(part, me, lane));
            EACH_COLUMN_WIDELY(STORE(y_row, c, LOAD(x_row, c) - m - log_sum);)
#else
            ACC held[HELD];
            if (columns <= HELD) {
                EACH_COLUMN_WIDELY(const ACC e = EXP(LOAD(x_row, c) - m); part[w] += e; held[c] = e;)
            } else {
                EACH_COLUMN_WIDELY(part[w] += EXP(LOAD(x_row, c) - m);)
            }
            const ACC factor = 1 / row_sum(part, me, lane);
            if (columns <= HELD) {
                EACH_COLUMN_WIDELY(STORE(y_row, c, held[c] * factor);)
            } else {
                EACH_COLUMN_WIDELY(STORE(y_row, c, EXP(LOAD(x_row, c) - m) * factor);)
            }
#endif
        }
    }
}

__kernel ROW_GROUP void softmax_backward(__global const T *restrict g, __global const T *restrict y,
                                         __global T *restrict dx, const long rows, const long cols,
                                         const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        __global const T *restrict g_row = g + row * cols;
        __global const T *restrict y_row = y + row * cols;
        __global T *restrict dx_row = dx + row * cols;
        ACC part[WIDE];
        for (int w = 0; w < WIDE; w++) part[w] = 0;
#if IN_LOGS
        EACH_COLUMN(part[w] += LOAD(g_row, c);)
        const ACC sum = row_sum(part, me, lane);
        EACH_COLUMN_WIDELY(STORE(dx_row, c, LOAD(g_row, c) - EXP(LOAD(y_row, c)) * sum);)
#else
        EACH_COLUMN(part[w] += LOAD(g_row, c) * LOAD(y_row, c);)
        const ACC sum = row_sum(part, me, lane);
        EACH_COLUMN(STORE(dx_row, c, LOAD(y_row, c) * (LOAD(g_row, c) - sum));)
#endif
    }
}
