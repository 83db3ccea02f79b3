// GEMV or skinny GEMM with an int8 weight: y[r, j] = activation(scale[j] * sum over c of x[r, c] * weight[j, c] +
// bias[j]). It is bound by the bandwidth of the weight, each row of which is read from memory once for all rows of x.
//
// Arrays   x (rows, cols) of T, weight (n, cols) of int8, scale (n) of ACC, bias (n) of BIAS_T, y (rows, n) of T,
//          row-major
// Launch   local (LANES, ROWS), global (LANES, ROWS * groups): LANES work-items compute `each` columns of y, one by one
// Params   T, ACC, LOAD, STORE          dtype of x and y: see prelude.cl
//          BIAS, BIAS_T, BIAS_LOAD      1 to add bias; its dtype
//          ACTIVATION                   none, relu, silu, gelu or gelu_tanh
//          LANES, ROWS                  work-items that share a row of weight, rows of weight per group, powers of two
//          WIDE                         partial sums per work-item
#if !defined(T) || !defined(ACC) || !defined(LANES) || !defined(ROWS) || !defined(WIDE)
#error "int8_linear.cl needs a dtype's macros, LANES, ROWS and WIDE"
#endif
#if !defined(BIAS) || !defined(BIAS_T) || !defined(BIAS_LOAD) || !defined(ACTIVATION)
#error "int8_linear.cl needs BIAS, BIAS_T, BIAS_LOAD and ACTIVATION"
#endif

// A single accumulator would lose a digit for every few thousand terms, so chunks are summed on their own and then
// added.
#define CHUNK 128

__kernel ROW_GROUP void int8_linear(
        __global const T *restrict x, __global const char *restrict weight, __global const ACC *restrict scale,
        __global const BIAS_T *restrict bias, __global T *restrict y, const long rows, const long n, const long cols,
        const long each) {
    __local ACC lanes[LANES * ROWS];
    const int me = get_local_id(0), turn = get_local_id(1);
    const long first = get_group_id(1) * each * ROWS + turn;
    for (long i = 0, j = first; i < each; i++, j += ROWS) {
        const long depth = j < n ? cols : 0;
        for (long r = 0; r < rows; r++) {
            ACC total[WIDE], lost[WIDE];
            for (int w = 0; w < WIDE; w++) total[w] = lost[w] = 0;
            for (long begin = 0; begin < depth; begin += CHUNK * WIDE * LANES) {
                const size_t columns = MIN(CHUNK * WIDE * LANES, depth - begin);  // what EACH_COLUMN visits
                __global const T *left = x + r * cols + begin;
                __global const char *right = weight + j * cols + begin;
                ACC part[WIDE];
                for (int w = 0; w < WIDE; w++) part[w] = 0;
                EACH_COLUMN(part[w] += LOAD(left, c) * right[c];)
                for (int w = 0; w < WIDE; w++) KAHAN_ADD(ACC, total[w], lost[w], part[w])
            }
            const ACC sum = row_sum(total, me, lanes + turn * LANES);
            if (me == 0 && j < n) STORE(y, r * n + j, ACTIVATE(sum * scale[j] + (BIAS ? BIAS_LOAD(bias, j) : 0)));
        }
    }
}
