// Softmax and log-softmax over the last axis, forward and backward, for GPUs. softmax.cl has the formulas.
//
// Arrays   x, y, g, dx (rows, cols) of T, row-major
// Launch   see shares.cl; LANES work-items share a row, rows_each is 1
// Params   those of shares.cl
//          IN_LOGS    1 for log-softmax, 0 for softmax

#include "shares.cl"

__kernel SHARING void softmax_forward(__global const T *restrict x, __global T *restrict y,
                                      const long rows, const long cols, const long rows_each) {
    __local ACC lanes[ROWS][LANES];
    SET_OF_ROWS(1)
    AT_ROW(first_row, rows, cols)
    ACC v[SHARE], sum;
    const ACC m = shared_exponentials(x, start, shift, columns, me, lanes[set], v, &sum);
    const ACC scale = IN_LOGS ? log(sum) : 1 / sum;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(x, 0, v)
        EACH_OF_SHARE v[k] = IN_LOGS ? v[k] - m - scale : EXP_TO_T(v[k] - m) * scale;
        WRITE_SHARE(y, v)
    }
}

__kernel SHARING void softmax_backward(__global const T *restrict g, __global const T *restrict y,
                                       __global T *restrict dx, const long rows, const long cols,
                                       const long rows_each) {
    __local ACC lanes[ROWS][LANES];
    SET_OF_ROWS(1)
    AT_ROW(first_row, rows, cols)
    ACC v[SHARE], result[SHARE], part = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_SHARE(g, 0, v)
        READ_SHARE(y, 0, result)
        EACH_OF_SHARE part += IN_LOGS ? v[k] : v[k] * result[k];
    }
    const ACC sum = shared_sum(part, me, lanes[set]);
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(g, 0, v)
        READ_AGAIN(y, 0, result)
        EACH_OF_SHARE v[k] = IN_LOGS ? v[k] - EXP_TO_T(result[k]) * sum : result[k] * (v[k] - sum);
        WRITE_SHARE(dx, v)
    }
}
