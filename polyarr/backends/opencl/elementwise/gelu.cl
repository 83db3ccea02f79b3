// GELU, y = x (1 + erf(x / sqrt(2))) / 2 or its tanh approximation, and its gradient dx = g y'(x), or that of another
// activation. The formulas are in prelude.cl.
//
// Arrays   x, y, g, dx (n) of T, contiguous
// Launch   local GROUP, global GROUP * ceil(n / BLOCK); see EACH_RUN_OF_BLOCK in prelude.cl
// Params   T, ACC, DTYPE, RAW, WORD    the dtype, for DEFINE_VECTOR
//          FLOATING                1
//          GROUP, BLOCK, VECTOR    work-items per group, elements per group, elements per vector load
//          ACTIVATION              relu, silu, gelu or gelu_tanh

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)

__kernel BLOCK_GROUP void gelu_forward(__global const T *restrict x, __global T *restrict y, const long n) {
    WIDELY EACH_RUN_OF_BLOCK(i, get_group_id(0), n) {
        ACC v[VECTOR];
        read_vector(x, i, end, v);
        EACH_OF_VECTOR v[k] = ACTIVATE(v[k]);
        write_vector(y, i, end, v);
    }
}

__kernel BLOCK_GROUP void gelu_backward(__global const T *restrict g, __global const T *restrict x,
                                        __global T *restrict dx, const long n) {
    WIDELY EACH_RUN_OF_BLOCK(i, get_group_id(0), n) {
        ACC v[VECTOR], slope[VECTOR];
        read_vector(x, i, end, slope);
        read_vector(g, i, end, v);
        EACH_OF_VECTOR v[k] *= SLOPE(slope[k]);
        write_vector(dx, i, end, v);
    }
}
