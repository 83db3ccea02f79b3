// Root-mean-square norm over the last axis, as rms_norm.cl has it, for GPUs.
//
// Arrays   x, y, g, dx (rows, cols) row-major; weight (cols); saved (rows) of ACC = rstd;
//          dweight (groups, cols) of ACC: the sums over the rows that a group took
// Launch   see shares.cl; backward, a set takes rows_each rows
// Params   those of shares.cl, with EVEN 1 | HAS_WEIGHT 0 or 1: whether weight is read |
//          WANTS_WEIGHT 0 or 1: whether its gradient is written
#if !defined(HAS_WEIGHT) || !defined(WANTS_WEIGHT)
#error "rms_norm_gpu.cl needs HAS_WEIGHT and WANTS_WEIGHT"
#endif

#include "shares.cl"

__kernel SHARING void rms_norm_forward(__global const T *restrict x, __global const T *restrict weight,
                                       __global T *restrict y, __global ACC *restrict saved, const ACC eps,
                                       const long rows, const long cols, const long rows_each) {
    __local ACC lanes[ROWS][LANES];
    SET_OF_ROWS(1)
    const size_t row = first_row;
    AT_ROW(row, rows, cols)
    ACC v[SHARE], w[SHARE], part = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_SHARE(x, 0, v)
        EACH_OF_SHARE part += v[k] * v[k];
    }
    const ACC rstd = 1 / sqrt(shared_sum(part, me, lanes[set]) / cols + eps);
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(x, 0, v)
        if (HAS_WEIGHT) read_share(weight + at, low, high, me, 0, w);
        EACH_OF_SHARE v[k] = v[k] * rstd * (HAS_WEIGHT ? w[k] : 1);
        WRITE_SHARE(y, v)
    }
    if (me == 0 && row < rows) saved[row] = rstd;
}

__kernel SHARING void rms_norm_backward(__global const T *restrict g, __global const T *restrict x,
                                        __global const T *restrict weight, __global const ACC *restrict saved,
                                        __global T *restrict dx, __global ACC *restrict dweight,
                                        const long rows, const long cols, const long rows_each) {
    __local ACC lanes[ROWS][LANES];
    __local ACC totals[ROWS > 1 ? CHUNK : 1];
    SET_OF_ROWS(rows_each)
    ACC v[SHARE], n[SHARE], w[SHARE];
#if WANTS_WEIGHT
    SUMS_OF_COLUMNS(weight, dweight, cols)
#endif
#if HAS_WEIGHT && HELD
    read_share(weight, 0, cols, me, 0, w);
#endif
    for (long turn = 0; turn < rows_each; turn++) {
        const size_t row = first_row + turn * ROWS;
        AT_ROW(row, rows, cols)
        const ACC rstd = columns ? saved[row] : 0;
        ACC part = 0;
        EACH_CHUNK {
            const int low = LOW, high = HIGH;
            READ_SHARE(g, 0, v)
            READ_SHARE(x, 0, n)
#if HAS_WEIGHT && !HELD
            read_share(weight + at, low, high, me, 0, w);
#endif
            EACH_OF_SHARE part += (HAS_WEIGHT ? v[k] * w[k] : v[k]) * n[k];
        }
        const ACC mean_hn = shared_sum(part, me, lanes[set]) * rstd / cols;
        EACH_CHUNK {
            const int low = LOW, high = HIGH;
            READ_AGAIN(g, 0, v)
            READ_AGAIN(x, 0, n)
#if HAS_WEIGHT && !HELD
            read_share(weight + at, low, high, me, 0, w);
#endif
            EACH_OF_SHARE {
                const ACC unit = n[k] * rstd, h = HAS_WEIGHT ? v[k] * w[k] : v[k];
#if WANTS_WEIGHT
                ADD_TO_COLUMN(weight, v[k] * unit)
#endif
                v[k] = rstd * (h - unit * mean_hn);
            }
            WRITE_SHARE(dx, v)
        }
    }
#if WANTS_WEIGHT
    WRITE_SUMS(weight, cols)
#endif
}
