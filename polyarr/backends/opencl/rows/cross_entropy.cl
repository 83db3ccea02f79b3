// Cross entropy of rows of logits against class indices, without materializing the log-probabilities; for CPUs.
//
// Arrays   see losses.cl
// Launch   local (LANES, ROWS), global (LANES, ROWS * ceil(rows / (ROWS * rows_each))); see EACH_ROW in prelude.cl.
//          cross_entropy_reduce: one work-group
// Params   those of losses.cl
//          LANES, ROWS    work-items per row, rows per work-group, powers of two
//          WIDE           partial results per work-item

#include "losses.cl"

__kernel ROW_GROUP void cross_entropy_forward(__global const T *restrict x, __global const INDEX *restrict targets,
                                              __global ACC *restrict losses, __global ACC *restrict saved,
                                              FAULT, const long ignore_index,
                                              const ACC smoothing, const long pitch, const long rows, const long cols,
                                              const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        const long target = columns ? targets[row] : ignore_index;
        if (!is_counted(target, ignore_index, cols)) columns = 0;
        __global const T *restrict x_row = x + row * pitch;
        ACC sum;
        const ACC m = row_exponentials(x_row, columns, me, lane, &sum);
        ACC mean = 0;
#if SMOOTHED
        ACC part[WIDE];
        for (int w = 0; w < WIDE; w++) part[w] = 0;
        EACH_COLUMN(part[w] += LOAD(x_row, c) - m;)
        mean = row_sum(part, me, lane) / cols;
#endif
        if (me == 0 && row < rows)
            write_loss(losses, saved, x_row, fault, call, row, cols, target, ignore_index, m, sum, mean, smoothing);
    }
}

__kernel ROW_GROUP void cross_entropy_reduce(__global const ACC *restrict losses,
                                             __global const INDEX *restrict targets, __global ACC *restrict loss,
                                             __global ACC *restrict divisor,
                                             const long ignore_index, const long is_mean, const long rows) {
    EACH_ROW(1, rows, 1) {
        ACC sum[WIDE], lost[WIDE], count[WIDE];
        for (int w = 0; w < WIDE; w++) sum[w] = lost[w] = count[w] = 0;
        EACH_COLUMN(KAHAN_ADD(ACC, sum[w], lost[w], losses[c]) count[w] += (long)targets[c] != ignore_index;)
        const ACC total = row_sum(sum, me, lane);
        const ACC counted = is_mean ? row_sum(count, me, lane) : 1;
        if (me == 0 && row == 0) {
            loss[0] = total / counted;
            divisor[0] = counted;
        }
    }
}

__kernel ROW_GROUP void cross_entropy_backward(__global const ACC *restrict g, __global const T *restrict x,
                                               __global const INDEX *restrict targets,
                                               __global const ACC *restrict saved,
                                               __global const ACC *restrict divisor, __global T *restrict dx,
                                               const long ignore_index, const ACC smoothing,
                                               const long pitch, const long rows, const long cols, const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        const long target = columns ? targets[row] : ignore_index;
        __global const T *restrict x_row = x + row * pitch;
        __global T *restrict dx_row = dx + row * pitch;
        if (!is_counted(target, ignore_index, cols)) {
            EACH_COLUMN(STORE(dx_row, c, 0);)
        } else {
            const ACC m = saved[2 * row], log_sum = saved[2 * row + 1], spread = smoothing / cols, factor = FACTOR(row);
            EACH_COLUMN_WIDELY(STORE(dx_row, c, LOGIT_SLOPE(LOAD(x_row, c)) * factor);)
            if (target % LANES == me)  // the work-item that wrote column t corrects it
                STORE(dx_row, target, (LOGIT_SLOPE(LOAD(x_row, target)) - (1 - smoothing)) * factor);
        }
    }
}
