// Root-mean-square norm over the last axis: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps).
// Backward, with n = x * rstd and h = g * weight: dx = rstd * (h - n * mean(h * n)), dweight = sum over rows of g * n.
//
// Arrays   x, y, g, dx (rows, cols) row-major; weight (cols); saved (rows) of ACC = rstd;
//          dweight (global size 1, cols) of ACC: each set of LANES work-items sums the rows that it took
// Launch   local (LANES, ROWS), global (LANES, ROWS * ceil(rows / (ROWS * rows_each))); see EACH_ROW
// Params   T, ACC, LOAD, STORE of the dtype | LANES work-items per row, ROWS rows per work-group, powers of two |
//          WIDE partial results per work-item | HAS_WEIGHT 0 or 1: whether weight is read |
//          WANTS_WEIGHT 0 or 1: whether its gradient is written
#if !defined(T) || !defined(LANES) || !defined(WIDE) || !defined(ROWS) || !defined(HAS_WEIGHT) || !defined(WANTS_WEIGHT)
#error "rms_norm.cl needs a dtype's macros, LANES, WIDE, ROWS, HAS_WEIGHT and WANTS_WEIGHT"
#endif

#if HAS_WEIGHT
#define WEIGHT(c) LOAD(weight, c)
#else
#define WEIGHT(c) 1
#endif
#if WANTS_WEIGHT
#define SET_DWEIGHT(c, OPERATION) dweight_part[c] OPERATION
#else
#define SET_DWEIGHT(c, OPERATION)
#endif

__kernel ROW_GROUP void rms_norm_forward(__global const T *restrict x, __global const T *restrict weight,
                                         __global T *restrict y, __global ACC *restrict saved, const ACC eps,
                                         const long rows, const long cols, const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        __global const T *restrict x_row = x + row * cols;
        __global T *restrict y_row = y + row * cols;
        ACC squares[WIDE];
        for (int w = 0; w < WIDE; w++) squares[w] = 0;
        EACH_COLUMN(const ACC v = LOAD(x_row, c); squares[w] += v * v;)
        const ACC rstd = 1 / sqrt(row_sum(squares, me, lane) / cols + eps);
        EACH_COLUMN(STORE(y_row, c, LOAD(x_row, c) * rstd * WEIGHT(c));)
        if (me == 0 && row < rows) saved[row] = rstd;
    }
}

__kernel ROW_GROUP void rms_norm_backward(__global const T *restrict g, __global const T *restrict x,
                                          __global const T *restrict weight, __global const ACC *restrict saved,
                                          __global T *restrict dx, __global ACC *restrict dweight,
                                          const long rows, const long cols, const long rows_each) {
    __global ACC *restrict dweight_part = dweight + get_global_id(1) * cols;
    for (size_t c = get_local_id(0); c < cols; c += LANES) SET_DWEIGHT(c, = 0);
    EACH_ROW(rows, cols, rows_each) {
        __global const T *restrict g_row = g + row * cols;
        __global const T *restrict x_row = x + row * cols;
        __global T *restrict dx_row = dx + row * cols;
        const ACC rstd = columns ? saved[row] : 0;
        ACC dot[WIDE];
        for (int w = 0; w < WIDE; w++) dot[w] = 0;
        EACH_COLUMN(dot[w] += LOAD(g_row, c) * WEIGHT(c) * LOAD(x_row, c);)
        const ACC mean_hn = row_sum(dot, me, lane) * rstd / cols;
        EACH_COLUMN(
            const ACC v = LOAD(g_row, c);
            const ACC n = LOAD(x_row, c) * rstd;
            STORE(dx_row, c, rstd * (v * WEIGHT(c) - n * mean_hn));
            SET_DWEIGHT(c, += v * n);)
    }
}
