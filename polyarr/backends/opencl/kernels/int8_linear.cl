// Rows of x times the transpose of a weight of bytes: y[r, j] = activation(scale[j] * sum over c of x[r, c] *
// weight[j, c] + bias[j]). It is bound by reading the weight, which is read from memory once for all rows, so these
// should be few.
//
// Arrays   x (rows, cols), weight (n, cols), scale (n) of ACC, bias (n), y (rows, n), all row-major
// Launch   local (LANES, ROWS), global (LANES, ROWS * groups): a line of LANES work-items takes each columns of y, one
//          after the other
// Params   T, ACC, LOAD, STORE of the dtype of x and y | BIAS 1 to add bias, of BIAS_T, BIAS_LOAD | ACTIVATION none, relu,
//          silu, gelu or gelu_tanh | LANES work-items side by side along a row of weight, ROWS such lines (powers of two) |
//          WIDE sums that a work-item keeps
#if !defined(T) || !defined(ACC) || !defined(LANES) || !defined(ROWS) || !defined(WIDE)
#error "int8_linear.cl needs a dtype's macros, LANES, ROWS and WIDE"
#endif
#if !defined(BIAS) || !defined(BIAS_T) || !defined(BIAS_LOAD) || !defined(ACTIVATION)
#error "int8_linear.cl needs BIAS, BIAS_T, BIAS_LOAD and ACTIVATION"
#endif

// One running sum over all of a row would lose a digit for every few thousand terms: sums of chunks are added instead.
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
                for (int w = 0; w < WIDE; w++) ADD_KEEPING(ACC, total[w], lost[w], part[w])
            }
            const ACC sum = row_sum(total, me, lanes + turn * LANES);
            if (me == 0 && j < n) STORE(y, r * n + j, ACTIVATE(sum * scale[j] + (BIAS ? BIAS_LOAD(bias, j) : 0)));
        }
    }
}
