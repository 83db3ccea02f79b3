// Formulas of cross entropy, included by cross_entropy.cl and cross_entropy_gpu.cl. With m the largest logit of a row,
// s the sum of exp(x - m), t its target and e the label smoothing:
//     loss = (1 - e) (m + log(s) - x[t]) + e (m + log(s) - mean(x))
//     dx = factor (exp(x - m) / s - e / cols - (1 - e) [c = t])
// A row whose target is ignored has loss 0 and gradient 0, and so has one whose target is out of range, which is
// recorded as a fault.
//
// Arrays   x, dx (rows, cols) of T, row-major, `pitch` elements from row to row; targets (rows) of INDEX
//          saved (rows, 2) of ACC: m and log(s); losses (rows), loss () and divisor () of ACC
//          g of ACC: () if REDUCED, else (rows). FAULT: see prelude.cl
// Params   T, ACC, LOAD, STORE    the dtype: see prelude.cl
//          INDEX                  C type of targets
//          REDUCED                1 if the losses are reduced to one, else 0
//          SMOOTHED               1 if there is label smoothing

static inline int is_counted(const long target, const long ignore_index, const long cols) {
    return target != ignore_index && target >= 0 && target < cols;
}

// Write the results of one row; `mean` is the mean of x - m. One work-item per row calls it.
static inline void write_loss(__global ACC *losses, __global ACC *saved, __global const T *x_row, FAULT, const long row,
                              const long cols, const long target, const long ignore_index, const ACC m, const ACC sum,
                              const ACC mean, const ACC smoothing) {
    const ACC log_sum = log(sum);
    ACC loss = 0;
    if (is_counted(target, ignore_index, cols)) {
        loss = log_sum - (LOAD(x_row, target) - m);
        if (SMOOTHED) loss = (1 - smoothing) * loss + smoothing * (log_sum - mean);
    } else if (target != ignore_index) {
        note_fault(fault, call, target, cols);
    }
    saved[2 * row] = m;
    saved[2 * row + 1] = log_sum;
    losses[row] = loss;
}

// dx of column c other than t, before it is multiplied by FACTOR.
#define LOGIT_SLOPE(X) (EXP_TO_T((X) - m - log_sum) - spread)
#define FACTOR(row) (REDUCED ? g[0] / divisor[0] : g[row])
