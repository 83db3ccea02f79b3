// Layer norm and RMS norm over the last axis, forward and backward, for CPUs.
// Forward: y = (x - mean) * rstd * weight + bias with rstd = 1 / sqrt(variance + eps). RMS norm is not CENTRED: its
// mean is 0. Backward, with n = (x - mean) * rstd and h = g * weight: dx = rstd * (h - mean(h) - n * mean(h * n)),
// without mean(h) if not CENTRED; dweight = the sum of g * n over rows, dbias = the sum of g over rows. ADDS fuses a
// residual connection: forward normalizes total = x + added; backward writes dx + added.
//
// Arrays   x, y, g, dx, added, total (rows, cols) of T, row-major; weight, bias (cols) of T
//          saved (rows, 1 + CENTRED) of ACC: mean (if CENTRED) and rstd
//          dweight, dbias (global size 1, cols) of ACC: partial sums, one row per set of LANES work-items
// Launch   local (LANES, ROWS), global (LANES, ROWS * ceil(rows / (ROWS * rows_each))); see EACH_ROW in prelude.cl
// Params   T, ACC, LOAD, STORE          the dtype: see prelude.cl
//          LANES, ROWS                  work-items per row, rows per work-group, powers of two
//          WIDE                         partial sums per work-item
//          CENTRED                      1 for layer norm, 0 for RMS norm
//          HAS_WEIGHT, HAS_BIAS         1 if weight, bias are read
//          WANTS_WEIGHT, WANTS_BIAS     1 to write dweight, dbias
//          ADDS                         1 to read added (and write total)

#define SAVED(row, what) saved[(1 + CENTRED) * (row) + (what)]

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
#if HAS_BIAS
#define SHIFT(c) + LOAD(bias, c)
#else
#define SHIFT(c)
#endif
#if WANTS_BIAS
#define SET_DBIAS(c, OPERATION) dbias_part[c] OPERATION
#else
#define SET_DBIAS(c, OPERATION)
#endif

__kernel ROW_GROUP void norm_forward(__global const T *restrict x, __global const T *restrict added,
                                     __global const T *restrict weight, __global const T *restrict bias,
                                     __global T *restrict total, __global T *restrict y, __global ACC *restrict saved,
                                     const ACC eps, const long rows, const long cols, const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
#if ADDS
        __global T *restrict x_row = total + row * cols;
        EACH_COLUMN(STORE(x_row, c, LOAD(x, row * cols + c) + LOAD(added, row * cols + c));)
#else
        __global const T *restrict x_row = x + row * cols;
#endif
        __global T *restrict y_row = y + row * cols;
        ACC squares[WIDE];
#if CENTRED
        ACC sum[WIDE];
        for (int w = 0; w < WIDE; w++) sum[w] = 0;
        EACH_COLUMN(sum[w] += LOAD(x_row, c);)
        const ACC rough_mean = row_sum(sum, me, lane) / cols;

        // Two passes: differences from the rough mean are squared, and their sum corrects the rounding error of that
        // mean.
        for (int w = 0; w < WIDE; w++) sum[w] = squares[w] = 0;
        EACH_COLUMN(const ACC d = LOAD(x_row, c) - rough_mean; sum[w] += d; squares[w] += d * d;)
        const ACC lost = row_sum(sum, me, lane) / cols;
        const ACC mean = rough_mean + lost;
        const ACC variance = row_sum(squares, me, lane) / cols - lost * lost;
#else
        for (int w = 0; w < WIDE; w++) squares[w] = 0;
        EACH_COLUMN(const ACC v = LOAD(x_row, c); squares[w] += v * v;)
        const ACC mean = 0, variance = row_sum(squares, me, lane) / cols;
#endif
        const ACC rstd = 1 / sqrt(variance + eps);

        EACH_COLUMN(STORE(y_row, c, (LOAD(x_row, c) - mean) * rstd * WEIGHT(c) SHIFT(c));)
        if (me == 0 && row < rows) {
            SAVED(row, 0) = mean;
            SAVED(row, CENTRED) = rstd;
        }
    }
}

__kernel ROW_GROUP void norm_backward(__global const T *restrict g, __global const T *restrict x,
                                      __global const T *restrict added, __global const T *restrict weight,
                                      __global const ACC *restrict saved,
                                      __global T *restrict dx, __global ACC *restrict dweight,
                                      __global ACC *restrict dbias,
                                      const long rows, const long cols, const long rows_each) {
    __global ACC *restrict dweight_part = dweight + get_global_id(1) * cols;
    __global ACC *restrict dbias_part = dbias + get_global_id(1) * cols;
    for (size_t c = get_local_id(0); c < cols; c += LANES) {
        SET_DWEIGHT(c, = 0);
        SET_DBIAS(c, = 0);
    }
    EACH_ROW(rows, cols, rows_each) {
        __global const T *restrict g_row = g + row * cols;
        __global const T *restrict x_row = x + row * cols;
        __global T *restrict dx_row = dx + row * cols;
        const ACC mean = CENTRED && columns ? SAVED(row, 0) : 0, rstd = columns ? SAVED(row, CENTRED) : 0;
        ACC sum[WIDE], dot[WIDE];
        for (int w = 0; w < WIDE; w++) sum[w] = dot[w] = 0;
        EACH_COLUMN(
            const ACC h = LOAD(g_row, c) * WEIGHT(c);
            sum[w] += CENTRED ? h : 0;
            dot[w] += h * (LOAD(x_row, c) - mean);)
        const ACC mean_h = CENTRED ? row_sum(sum, me, lane) / cols : 0;
        const ACC mean_hn = row_sum(dot, me, lane) * rstd / cols;
        EACH_COLUMN(
            const ACC v = LOAD(g_row, c);
            const ACC n = (LOAD(x_row, c) - mean) * rstd;
            STORE(dx_row, c, rstd * (v * WEIGHT(c) - mean_h - n * mean_hn));
            SET_DWEIGHT(c, += v * n);
            SET_DBIAS(c, += v);)
#if ADDS
        EACH_COLUMN(STORE(dx_row, c, LOAD(dx_row, c) + LOAD(added, row * cols + c));)
#endif
    }
}
