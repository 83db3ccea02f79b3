// Cross entropy of rows of logits against class indices, for GPUs; the counterpart of cross_entropy.cl.
//
// Arrays   see losses.cl
// Launch   see shares.cl; LANES work-items share a row, rows_each is 1. cross_entropy_reduce: one work-group
// Params   those of shares.cl and of losses.cl
#include "losses.cl"
#include "shares.cl"

__kernel SHARING void cross_entropy_forward(__global const T *restrict x, __global const INDEX *restrict targets,
                                            __global ACC *restrict losses, __global ACC *restrict saved,
                                            FAULT, const long ignore_index,
                                            const ACC smoothing, const long pitch, const long rows, const long cols,
                                            const long rows_each) {
    __local ACC lanes[ROWS][LANES];
    SET_OF_ROWS(1)
    const size_t row = first_row;
    const long target = row < rows ? targets[row] : ignore_index;
    AT_PITCHED_ROW(row, is_counted(target, ignore_index, cols) ? rows : 0, cols, pitch)
    ACC v[SHARE], sum;
    const ACC m = shared_exponentials(x, start, shift, columns, me, lanes[set], v, &sum);
    ACC mean = 0;
#if SMOOTHED
    ACC part = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(x, 0, v)
        EACH_OF_SHARE part += IS_OWN(k) ? v[k] - m : 0;
    }
    mean = shared_sum(part, me, lanes[set]) / cols;
#endif
    if (me == 0 && row < rows)
        write_loss(
            losses, saved, x + row * pitch, fault, call, row, cols, target, ignore_index, m, sum, mean, smoothing
        );
}

__kernel SHARING void cross_entropy_reduce(__global const ACC *restrict losses,
                                           __global const INDEX *restrict targets, __global ACC *restrict loss,
                                           __global ACC *restrict divisor,
                                           const long ignore_index, const long is_mean, const long rows) {
    __local ACC lanes[ROWS][LANES];
    const int me = get_local_id(0), set = get_local_id(1);
    ACC sum = 0, lost = 0, count = 0;
    for (long row = me; row < rows; row += LANES) {
        KAHAN_ADD(ACC, sum, lost, losses[row])
        count += (long)targets[row] != ignore_index;
    }
    const ACC total = shared_sum(sum, me, lanes[set]), counted = shared_sum(count, me, lanes[set]);
    if (me == 0 && set == 0) {
        loss[0] = total / (is_mean ? counted : 1);
        divisor[0] = is_mean ? counted : 1;
    }
}

__kernel SHARING void cross_entropy_backward(__global const ACC *restrict g, __global const T *restrict x,
                                             __global const INDEX *restrict targets,
                                             __global const ACC *restrict saved,
                                             __global const ACC *restrict divisor, __global T *restrict dx,
                                             const long ignore_index, const ACC smoothing,
                                             const long pitch, const long rows, const long cols, const long rows_each) {
    SET_OF_ROWS(1)
    const size_t row = first_row;
    AT_PITCHED_ROW(row, rows, cols, pitch)
    const long target = columns ? targets[row] : ignore_index;
    const int counts = is_counted(target, ignore_index, cols);
    const ACC m = counts ? saved[2 * row] : 0, log_sum = counts ? saved[2 * row + 1] : 0, spread = smoothing / cols;
    ACC factor = 0, v[SHARE];
    if (counts) factor = FACTOR(row);
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_SHARE(x, 0, v)
        if (counts)
            EACH_OF_SHARE v[k] = LOGIT_SLOPE(v[k]) * factor;
        else
            EACH_OF_SHARE v[k] = 0;
        WRITE_SHARE(dx, v)
    }
    if (counts && (target + shift) / VECTOR % LANES == me) {  // the work-item that wrote column t corrects it
        const size_t i = row * pitch + target;
        STORE(dx, i, (LOGIT_SLOPE(LOAD(x, i)) - (1 - smoothing)) * factor);
    }
}
