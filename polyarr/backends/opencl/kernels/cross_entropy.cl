// Cross entropy of rows of logits against target classes, without the array of log-probabilities. With m the largest
// logit of a row, s the sum of exp(x - m), t its target and e the smoothing:
//     loss = (1 - e) (m + log(s) - x[t]) + e (m + log(s) - mean(x))
//     dx = factor (exp(x - m) / s - e / cols - (1 - e) [c = t])
// A row whose target is ignored has loss 0 and gradient 0. So has one whose target is out of range, which is noted.
//
// Arrays   x, dx (rows, cols), rows pitch elements apart; targets (rows) of INDEX; saved (rows, 2) of ACC = m, log(s);
//          losses (rows), loss () and divisor () of ACC; g of ACC, () if REDUCED, else (rows); FAULT as in the prelude
// Launch   local (LANES, ROWS), global (LANES, ROWS * ceil(rows / (ROWS * rows_each))); see EACH_ROW.
//          cross_entropy_reduce: one work-group
// Params   T, ACC, LOAD, STORE of the dtype | INDEX the C type of targets | LANES work-items per row, ROWS rows per
//          work-group, powers of two | WIDE partial results per work-item | REDUCED 1 where the losses become one,
//          else 0 | SMOOTHED 0 or 1
#if !defined(T) || !defined(INDEX) || !defined(LANES) || !defined(WIDE) || !defined(REDUCED) || !defined(SMOOTHED)
#error "cross_entropy.cl needs a dtype's macros, INDEX, LANES, WIDE, ROWS, REDUCED and SMOOTHED"
#endif

__kernel ROW_GROUP void cross_entropy_forward(__global const T *restrict x, __global const INDEX *restrict targets,
                                              __global ACC *restrict losses, __global ACC *restrict saved,
                                              FAULT, const long ignore_index,
                                              const ACC smoothing, const long pitch, const long rows, const long cols,
                                              const long rows_each) {
    EACH_ROW(rows, cols, rows_each) {
        const long target = columns ? targets[row] : ignore_index;
        const int in_range = target >= 0 && target < cols, counts = in_range && target != ignore_index;
        if (!counts) columns = 0;
        __global const T *restrict x_row = x + row * pitch;
        ACC sum;
        const ACC m = row_exponentials(x_row, columns, me, lane, &sum);
#if SMOOTHED
        ACC part[WIDE];
        for (int w = 0; w < WIDE; w++) part[w] = 0;
        EACH_COLUMN(part[w] += LOAD(x_row, c) - m;)
        const ACC mean = row_sum(part, me, lane) / cols;
#endif
        if (me == 0 && row < rows) {
            const ACC log_sum = log(sum);
            ACC loss = 0;
            if (counts) {
                loss = log_sum - (LOAD(x_row, target) - m);
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
}

__kernel ROW_GROUP void cross_entropy_reduce(__global const ACC *restrict losses,
                                             __global const INDEX *restrict targets, __global ACC *restrict loss,
                                             __global ACC *restrict divisor,
                                             const long ignore_index, const long is_mean, const long rows) {
    EACH_ROW(1, rows, 1) {
        ACC sum[WIDE], lost[WIDE], count[WIDE];
        for (int w = 0; w < WIDE; w++) sum[w] = lost[w] = count[w] = 0;
        EACH_COLUMN(ADD_KEEPING(ACC, sum[w], lost[w], losses[c]) count[w] += (long)targets[c] != ignore_index;)
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
        if (target == ignore_index || target < 0 || target >= cols) {
            EACH_COLUMN(STORE(dx_row, c, 0);)
        } else {
            const ACC m = saved[2 * row], log_sum = saved[2 * row + 1], spread = smoothing / cols;
#if REDUCED
            const ACC factor = g[0] / divisor[0];
#else
            const ACC factor = g[row];
#endif
            EACH_COLUMN(STORE(dx_row, c, (EXP(LOAD(x_row, c) - m - log_sum) - spread) * factor);)
            if (target % LANES == me) {  // whoever wrote column t writes it again
                const ACC p = EXP(LOAD(x_row, target) - m - log_sum);
                STORE(dx_row, target, (p - spread - (1 - smoothing)) * factor);
            }
        }
    }
}
