// Rows of x times the transpose of a weight of bytes, as int8_linear.cl has them, for GPUs.
//
// Arrays   x (rows, cols), weight (n, cols), scale (n) of ACC, bias (n), y (rows, n), all row-major
// Launch   local (LANES, ROWS), global (LANES, ROWS * groups): a line of LANES work-items takes AHEAD columns of y at
//          once, which is `each`
// Params   T, ACC, LOAD, STORE and DEFINE_VECTOR's of the dtype of x and y
//          BIAS, BIAS_T, BIAS_LOAD, ACTIVATION see int8_linear.cl
//          LANES work-items side by side along a row of weight, ROWS such lines (powers of two) | AHEAD
//          VECTOR codes that a work-item reads at once, 1 or a divisor of cols, and CODES their type
#if !defined(T) || !defined(ACC) || !defined(LANES) || !defined(ROWS) || !defined(WORD) || !defined(VECTOR)
#error "int8_linear_gpu.cl needs a dtype's macros, LANES, ROWS, WORD and VECTOR"
#endif
#if !defined(BIAS) || !defined(BIAS_T) || !defined(BIAS_LOAD) || !defined(ACTIVATION)
#error "int8_linear_gpu.cl needs BIAS, BIAS_T, BIAS_LOAD and ACTIVATION"
#endif
#if !defined(AHEAD) || !defined(CODES)
#error "int8_linear_gpu.cl needs AHEAD and CODES"
#endif

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)
typedef union { CODES all; char each[VECTOR]; } Codes;
#define EACH_AHEAD _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
#define DEEP (LANES * VECTOR)
#define UNROLLED 4  // steps along a row, of which all codes are asked for before any is used

__kernel ROW_GROUP void int8_linear(
        __global const T *restrict x, __global const char *restrict weight, __global const ACC *restrict scale,
        __global const BIAS_T *restrict bias, __global T *restrict y, const long rows, const long n, const long cols,
        const long each) {
    __local ACC lanes[LANES * ROWS];
    const int me = get_local_id(0), turn = get_local_id(1);
    const long first = ((long)get_group_id(1) * ROWS + turn) * AHEAD;
    for (long r = 0; r < rows; r++) {
        ACC total[AHEAD], lost[AHEAD];
        EACH_AHEAD total[a] = lost[a] = 0;
        for (long begin = 0; begin < cols; begin += DEEP * UNROLLED) {
            Codes codes[UNROLLED][AHEAD];
            ACC part[AHEAD];
            EACH_AHEAD part[a] = 0;
            _Pragma("unroll") for (int s = 0; s < UNROLLED; s++) {
                const long c = MIN(begin + s * DEEP + me * VECTOR, cols - VECTOR);
                EACH_AHEAD codes[s][a].all = *(__global const CODES *)(weight + MIN(first + a, n - 1) * cols + c);
            }
            _Pragma("unroll") for (int s = 0; s < UNROLLED; s++) {
                const long c = begin + s * DEEP + me * VECTOR;
                if (c < cols) {
                    ACC v[VECTOR];
                    read_vector(x, r * cols + c, (r + 1) * cols, v);
                    EACH_OF_VECTOR EACH_AHEAD part[a] += v[k] * codes[s][a].each[k];
                }
            }
            EACH_AHEAD ADD_KEEPING(ACC, total[a], lost[a], part[a])
        }
        EACH_AHEAD {
            const ACC sum = lanes_sum(total[a], me, lanes + turn * LANES);
            const long j = first + a;
            if (me == 0 && j < n) STORE(y, r * n + j, ACTIVATE(sum * scale[j] + (BIAS ? BIAS_LOAD(bias, j) : 0)));
        }
    }
}
