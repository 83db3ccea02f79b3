// GELU, y = x (1 + erf(x / sqrt(2))) / 2 or its tanh form, and its gradient dx = g y'(x). Formulas: prelude.cl.
//
// Arrays   x, y, g, dx (n), contiguous
// Launch   local GROUP, global GROUP * ceil(n / BLOCK); see EACH_OF_BLOCK
// Params   T, ACC, LOAD, STORE of the dtype, FLOATING 1 | GROUP work-items per group, BLOCK elements per group |
//          ACTIVATION gelu or gelu_tanh
#if !defined(T) || !defined(FLOATING) || !defined(GROUP) || !defined(BLOCK) || !defined(ACTIVATION)
#error "gelu.cl needs a dtype's macros, FLOATING, GROUP, BLOCK and ACTIVATION"
#endif

__kernel BLOCK_GROUP void gelu_forward(__global const T *restrict x, __global T *restrict y, const long n) {
    EACH_OF_BLOCK(i, get_group_id(0), n) {
        const ACC v = LOAD(x, i);
        STORE(y, i, ACTIVATE(v));
    }
}

__kernel BLOCK_GROUP void gelu_backward(__global const T *restrict g, __global const T *restrict x,
                                        __global T *restrict dx, const long n) {
    EACH_OF_BLOCK(i, get_group_id(0), n) {
        const ACC v = LOAD(x, i);
        STORE(dx, i, LOAD(g, i) * SLOPE(v));
    }
}
