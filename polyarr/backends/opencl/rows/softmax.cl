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
//          LONG                   1 to add up sums of segments with compensation: a long plain sum loses digits

#define HELD 4096  // exponentials buffered in the L1 cache, if y is too narrow to hold them

// Add to SUM what EACH_FROM, a macro of the prelude, adds to part[w] for each column of a work-group's only row.
#define SUM_COLUMNS(SUM, EACH_FROM, STATEMENTS) { \
        const size_t all = columns, segment = LONG ? 4096 : all; \
        ACC lost = 0; \
        for (size_t first = 0; first < all; first += segment) { \
            const size_t columns = MIN(first + segment, all); \
            ACC part[WIDE]; \
            for (int w = 0; w < WIDE; w++) part[w] = 0; \
            EACH_FROM(first, STATEMENTS) \
            const ACC of_segment = row_sum(part, me, lane); \
            KAHAN_ADD(ACC, SUM, lost, of_segment) \
        } \
    }

__kernel ROW_GROUP void softmax_forward(__global const T *restrict x, __global T *restrict y,
                                        const long rows, const long cols, const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        __global const T *restrict x_row = x + row * cols;
        __global T *restrict y_row = y + row * cols;
        const ACC m = row_largest(x_row, columns, me, lane);
        ACC sum = 0;
        if (sizeof(T) == sizeof(ACC)) {  // y holds intermediate values, which also fetches it
#if IN_LOGS
            SUM_COLUMNS(sum, EACH_COLUMN_WIDELY_FROM,
                        const ACC d = LOAD(x_row, c) - m; part[w] += EXP(d); STORE(y_row, c, d);)
            const ACC log_sum = log(sum);
            EACH_COLUMN(STORE(y_row, c, LOAD(y_row, c) - log_sum);)
#else
            SUM_COLUMNS(sum, EACH_COLUMN_WIDELY_FROM,
                        const ACC e = EXP(LOAD(x_row, c) - m); part[w] += e; STORE(y_row, c, e);)
            const ACC factor = 1 / sum;
            EACH_COLUMN(STORE(y_row, c, LOAD(y_row, c) * factor);)
#endif
        } else {
#if IN_LOGS
            SUM_COLUMNS(sum, EACH_COLUMN_WIDELY_FROM, part[w] += EXP(LOAD(x_row, c) - m);)
            const ACC log_sum = log(sum);
            EACH_COLUMN_WIDELY(STORE(y_row, c, LOAD(x_row, c) - m - log_sum);)
#else
            ACC held[HELD];
            if (columns <= HELD) {
                SUM_COLUMNS(sum, EACH_COLUMN_WIDELY_FROM,
                            const ACC e = EXP(LOAD(x_row, c) - m); part[w] += e; held[c] = e;)
            } else {
                SUM_COLUMNS(sum, EACH_COLUMN_WIDELY_FROM, part[w] += EXP(LOAD(x_row, c) - m);)
            }
            const ACC factor = 1 / sum;
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
        ACC sum = 0;
#if IN_LOGS
        SUM_COLUMNS(sum, EACH_COLUMN_FROM, part[w] += LOAD(g_row, c);)
        EACH_COLUMN_WIDELY(STORE(dx_row, c, LOAD(g_row, c) - EXP(LOAD(y_row, c)) * sum);)
#else
        SUM_COLUMNS(sum, EACH_COLUMN_FROM, part[w] += LOAD(g_row, c) * LOAD(y_row, c);)
        EACH_COLUMN(STORE(dx_row, c, LOAD(y_row, c) * (LOAD(g_row, c) - sum));)
#endif
    }
}
