// Layer norm and RMS norm over the last axis, forward and backward, for GPUs. norm.cl has the formulas.
//
// Arrays   those of norm.cl, but dweight, dbias (groups, cols) of ACC: partial sums, one row per work-group
// Launch   see shares.cl; backward, LANES work-items process rows_each rows
// Params   those of shares.cl, with EVEN 1
//          CENTRED, HAS_WEIGHT, HAS_BIAS, WANTS_WEIGHT, WANTS_BIAS, ADDS    see norm.cl

#define SAVED(row, what) saved[(1 + CENTRED) * (row) + (what)]

#include "shares.cl"

// The sum of two arrays, rounded to the dtype as an unfused addition would be.
#define ROUNDED(v) PASTE(widen_, DTYPE)(PASTE(narrow_, DTYPE)(v))
#if ADDS
#define SUMMED total
#else
#define SUMMED x
#endif

// Load weight and bias together with the row if a work-item holds little of it: one wait for memory instead of two.
#define WEIGHTS_FIRST (HELD && SLOTS <= 3)

__kernel SHARING void norm_forward(__global const T *restrict x, __global const T *restrict added,
                                   __global const T *restrict weight, __global const T *restrict bias,
                                   __global T *restrict total, __global T *restrict y, __global ACC *restrict saved,
                                   const ACC eps, const long rows, const long cols, const long rows_each) {
    __local ACC lanes[ROWS][LANES];
#if CENTRED
    __local ACC2 pairs[ROWS][LANES];
#endif
    SET_OF_ROWS(1)
    const ACC share = (ACC)1 / cols;  // of a column in a mean
    const size_t row = first_row;
    AT_ROW(row, rows, cols)
    ACC v[SHARE], other[SHARE], w[SHARE], b[SHARE], part = 0;
#if WEIGHTS_FIRST
    Words x_words, added_words, weights, biases;
    const size_t from = MIN(row, (size_t)rows - 1) * cols;
    fetch_share(x + from, cols, me, &x_words);
    if (ADDS) fetch_share(added + from, cols, me, &added_words);
    if (HAS_WEIGHT) fetch_share(weight, cols, me, &weights);
    if (HAS_BIAS) fetch_share(bias, cols, me, &biases);
#endif
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
#if WEIGHTS_FIRST
        widen_share(&x_words, high, me, 0, v);
        if (ADDS) widen_share(&added_words, high, me, 0, other);
#else
        READ_SHARE(x, 0, v)
        if (ADDS) READ_SHARE(added, 0, other)
#endif
#if ADDS
        EACH_OF_SHARE v[k] = ROUNDED(v[k] + other[k]);
        WRITE_SHARE(total, v)
#endif
        EACH_OF_SHARE part += CENTRED ? v[k] : v[k] * v[k];
    }
#if CENTRED
    const ACC rough_mean = shared_sum(part, me, lanes[set]) * share;

    // Two passes: differences from the rough mean are squared, and their sum corrects the rounding error of that mean.
    ACC2 parts = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(SUMMED, 0, v)
        EACH_OF_SHARE {
            const ACC d = IS_OWN(k) ? v[k] - rough_mean : 0;
            parts += (ACC2)(d, d * d);
        }
    }
    parts = shared_sums(parts, me, pairs[set]) * share;
    const ACC mean = rough_mean + parts.x, rstd = 1 / sqrt(parts.y - parts.x * parts.x + eps);
#else
    const ACC mean = 0, rstd = 1 / sqrt(shared_sum(part, me, lanes[set]) * share + eps);
#endif
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(SUMMED, 0, v)
#if WEIGHTS_FIRST
        if (HAS_WEIGHT) widen_share(&weights, high, me, 0, w);
        if (HAS_BIAS) widen_share(&biases, high, me, 0, b);
#else
        if (HAS_WEIGHT) read_share(weight + at, low, high, me, 0, w);
        if (HAS_BIAS) read_share(bias + at, low, high, me, 0, b);
#endif
        EACH_OF_SHARE {
            const ACC scaled = (v[k] - mean) * rstd * (HAS_WEIGHT ? w[k] : 1);
            v[k] = HAS_BIAS ? scaled + b[k] : scaled;
        }
        WRITE_SHARE(y, v)
    }
    if (me == 0 && row < rows) {
        SAVED(row, 0) = mean;
        SAVED(row, CENTRED) = rstd;
    }
}

__kernel SHARING void norm_backward(__global const T *restrict g, __global const T *restrict x,
                                    __global const T *restrict added, __global const T *restrict weight,
                                    __global const ACC *restrict saved,
                                    __global T *restrict dx, __global ACC *restrict dweight,
                                    __global ACC *restrict dbias,
                                    const long rows, const long cols, const long rows_each) {
#if CENTRED
    __local ACC2 pairs[ROWS][LANES];
#else
    __local ACC lanes[ROWS][LANES];
#endif
    __local ACC totals[ROWS > 1 ? CHUNK : 1];
    SET_OF_ROWS(rows_each)
    const ACC share = (ACC)1 / cols;
    ACC v[SHARE], n[SHARE], w[SHARE];
#if ADDS
    ACC other[SHARE];
    const ACC one = rows != 0;  // see elementwise.cl
#endif
#if WANTS_WEIGHT
    SUMS_OF_COLUMNS(weight, dweight, cols)
#endif
#if WANTS_BIAS
    SUMS_OF_COLUMNS(bias, dbias, cols)
#endif
#if HAS_WEIGHT && HELD
    read_share(weight, 0, cols, me, 0, w);
#endif
    for (long turn = 0; turn < rows_each; turn++) {
        const size_t row = first_row + turn * ROWS;
        AT_ROW(row, rows, cols)
        const ACC mean = CENTRED && columns ? SAVED(row, 0) : 0, rstd = columns ? SAVED(row, CENTRED) : 0;
        ACC2 parts = 0;
        EACH_CHUNK {
            const int low = LOW, high = HIGH;
            READ_SHARE(g, 0, v)
            READ_SHARE(x, 0, n)
#if ADDS && HELD
            READ_SHARE(added, 0, other)
#endif
#if HAS_WEIGHT && !HELD
            read_share(weight + at, low, high, me, 0, w);
#endif
            EACH_OF_SHARE {
                const ACC h = HAS_WEIGHT ? v[k] * w[k] : v[k];
                parts += (ACC2)(h, h * (n[k] - mean));
            }
        }
#if CENTRED
        parts = shared_sums(parts, me, pairs[set]) * share;
        const ACC mean_h = parts.x, mean_hn = parts.y * rstd;
#else
        const ACC mean_h = 0, mean_hn = shared_sum(parts.y, me, lanes[set]) * share * rstd;
#endif
        EACH_CHUNK {
            const int low = LOW, high = HIGH;
            READ_AGAIN(g, 0, v)
            READ_AGAIN(x, 0, n)
#if HAS_WEIGHT && !HELD
            read_share(weight + at, low, high, me, 0, w);
#endif
            EACH_OF_SHARE {
                const ACC unit = (n[k] - mean) * rstd, h = HAS_WEIGHT ? v[k] * w[k] : v[k];
#if WANTS_WEIGHT
                ADD_TO_COLUMN(weight, v[k] * unit)
#endif
#if WANTS_BIAS
                ADD_TO_COLUMN(bias, v[k])
#endif
                v[k] = rstd * (h - mean_h - unit * mean_hn);
            }
#if ADDS
            READ_AGAIN(added, 0, other)
            EACH_OF_SHARE v[k] = ROUNDED(fma(v[k], one, (ACC)-0.0f)) + other[k];
#endif
            WRITE_SHARE(dx, v)
        }
    }
#if WANTS_WEIGHT
    WRITE_SUMS(weight, cols)
#endif
#if WANTS_BIAS
    WRITE_SUMS(bias, cols)
#endif
}
