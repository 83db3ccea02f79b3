// Epilogue of an int8 linear layer whose product is computed by another kernel:
// y[r, j] = activation(product[r, j] * scale[j] + bias[j]).
//
// Arrays   product (rows, n) of ACC, scale (n) of ACC, bias (n) of BIAS_T, y (rows, n) of T, row-major
// Launch   at least one work-item per `each` consecutive elements of y
// Params   T, ACC, STORE              dtype of y: see prelude.cl
//          BIAS, BIAS_T, BIAS_LOAD    1 to add bias; its dtype
//          ACTIVATION                 none, relu, silu, gelu or gelu_tanh
#if !defined(T) || !defined(ACC) || !defined(BIAS) || !defined(BIAS_T) || !defined(BIAS_LOAD) || !defined(ACTIVATION)
#error "int8_scaling.cl needs a dtype's macros, BIAS, BIAS_T, BIAS_LOAD and ACTIVATION"
#endif

__kernel void int8_scaling(__global const ACC *restrict product, __global const ACC *restrict scale,
                           __global const BIAS_T *restrict bias, __global T *restrict y, const long size, const long n,
                           const long each) {
    for (long i = get_global_id(0) * each, end = MIN(i + each, size); i < end; i++) {
        const long j = i % n;
        STORE(y, i, ACTIVATE(product[i] * scale[j] + (BIAS ? BIAS_LOAD(bias, j) : 0)));
    }
}
