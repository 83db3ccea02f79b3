// Cross entropy of rows of logits, as cross_entropy.cl has it, for GPUs.
//
// Arrays   as there
// Launch   see shares.cl; a set of LANES work-items takes one row, rows_each is 1. cross_entropy_reduce: one work-group
// Params   those of shares.cl | INDEX the C type of targets | REDUCED 1 where the losses become one, else 0 |
//          SMOOTHED 0 or 1
#if !defined(INDEX) || !defined(REDUCED) || !defined(SMOOTHED)
#error "cross_entropy_gpu.cl needs INDEX, REDUCED and SMOOTHED"
#endif

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
    const int in_range = target >= 0 && target < cols, counts = in_range && target != ignore_index;
    AT_PITCHED_ROW(row, counts ? rows : 0, cols, pitch)
    ACC v[SHARE], sum;
    const ACC m = shared_exponentials(x, start, shift, columns, me, lanes[set], v, &sum);
#if SMOOTHED
    ACC part = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_AGAIN(x, 0, v)
        EACH_OF_SHARE part += IS_OWN(k) ? v[k] - m : 0;
    }
    const ACC mean = shared_sum(part, me, lanes[set]) / cols;
#endif
    if (me == 0 && row < rows) {
        const ACC log_sum = log(sum);
        ACC loss = 0;
        if (counts) {
            loss = log_sum - (LOAD(x, row * pitch + target) - m);
#if SMOOTHED
            loss = (1 - smoothing) * loss + smoothing * (log_sum - mean);
#endif
        } else if (target != ignore_index) {
            note_fault(fault, call, target, cols);
        }
        saved[2 * row] = m;
        saved[2 * row + 1] = log_sum;
        losses[row] = loss;
    }
}

__kernel SHARING void cross_entropy_reduce(__global const ACC *restrict losses,
                                           __global const INDEX *restrict targets, __global ACC *restrict loss,
                                           __global ACC *restrict divisor,
                                           const long ignore_index, const long is_mean, const long rows) {
    __local ACC lanes[ROWS][LANES];
    const int me = get_local_id(0), set = get_local_id(1);
    ACC sum = 0, lost = 0, count = 0;
    for (long row = me; row < rows; row += LANES) {
        ADD_KEEPING(ACC, sum, lost, losses[row])
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
    const int counts = target != ignore_index && target >= 0 && target < cols;
    const ACC m = counts ? saved[2 * row] : 0, log_sum = counts ? saved[2 * row + 1] : 0, spread = smoothing / cols;
    ACC factor = 0, v[SHARE];
#if REDUCED
    if (counts) factor = g[0] / divisor[0];
#else
    if (counts) factor = g[row];
#endif
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        READ_SHARE(x, 0, v)
        if (counts)
            EACH_OF_SHARE v[k] = (EXP(v[k] - m - log_sum) - spread) * factor;
        else
            EACH_OF_SHARE v[k] = 0;
        WRITE_SHARE(dx, v)
    }
    if (counts && (target + shift) / VECTOR % LANES == me) {  // whoever wrote column t writes it again
        const size_t i = row * pitch + target;
        STORE(dx, i, (EXP(LOAD(x, i) - m - log_sum) - spread - (1 - smoothing)) * factor);
    }
}
