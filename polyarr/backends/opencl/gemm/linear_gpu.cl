// Backward of the epilogue of a linear layer on GPUs: gz = g * slope(z), and partial column sums of gz.
//
// Arrays   g, z, gz (rows, n) of T, row-major; z is the input of the activation, or the result of relu. gz may be g or
//          z: each element is read by the work-item that overwrites it, and by no other
//          partials (row blocks, n) of ACC: column sums of gz over each block of rows; not accessed without BIAS
// Launch   local (LANES, SLICES), global (LANES * column blocks, SLICES * row blocks): a group processes LANES * VECTOR
//          columns of rows_each rows
// Params   T, ACC, DTYPE, RAW, WORD    a float dtype, for DEFINE_VECTOR
//          VECTOR           elements per vector load, a divisor of n
//          FLOATING         1
//          ACTIVATION       none, relu, silu, gelu or gelu_tanh
//          ACTIVATES        1 to read z and write gz
//          BIAS             1 to write partials
//          LANES, SLICES    adjacent work-items, and work-items that share a column
//          DEPTH            rows that a work-item has in flight

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)
#define WORD_AT(p, i) (*(__global const WORD *)((p) + (i)))

__kernel __attribute__((reqd_work_group_size(LANES, SLICES, 1)))
void linear_gradient(__global const T *restrict g, __global const T *restrict z, __global T *restrict gz,
                     __global ACC *restrict partials, const long rows, const long n, const long rows_each) {
    __local ACC lanes[SLICES][LANES * VECTOR];
    const int me = get_local_id(0) * VECTOR, slice = get_local_id(1);
    const size_t block = get_group_id(1), column = get_group_id(0) * (LANES * VECTOR) + me;
    const long end = column < n ? MIN((long)(block + 1) * rows_each, rows) : 0;
    ACC sum[VECTOR];
    EACH_OF_VECTOR sum[k] = 0;
    for (long first = block * rows_each + slice; first < end; first += SLICES * DEPTH) {
        WORD own[DEPTH], before[DEPTH];  // as they are stored: numbers would take more registers
        const size_t start = first * n + column;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (first + d * SLICES < end) {
                own[d] = WORD_AT(g, start + d * SLICES * n);
                if (ACTIVATES) before[d] = WORD_AT(z, start + d * SLICES * n);
            }
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (first + d * SLICES < end) {
                Word_vector g_word, z_word, gz_word;
                g_word.word = own[d];
                if (ACTIVATES) z_word.word = before[d];
                EACH_OF_VECTOR {
                    ACC v = PASTE(widen_, DTYPE)(g_word.each[k]);
                    if (ACTIVATES) v *= SLOPE(PASTE(widen_, DTYPE)(z_word.each[k]));
                    sum[k] += v;
                    gz_word.each[k] = PASTE(narrow_, DTYPE)(v);
                }
                if (ACTIVATES) *(__global WORD *)(gz + start + d * SLICES * n) = gz_word.word;
            }
        }
    }
#if BIAS
    EACH_OF_VECTOR lanes[slice][me + k] = sum[k];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int flat = slice * LANES + get_local_id(0);
    for (int c = flat; c < LANES * VECTOR; c += LANES * SLICES) {
        const size_t target = get_group_id(0) * (LANES * VECTOR) + c;
        ACC total = 0;
        for (int s = 0; s < SLICES; s++) total += lanes[s][c];
        if (target < n) partials[block * n + target] = total;
    }
#endif
}
