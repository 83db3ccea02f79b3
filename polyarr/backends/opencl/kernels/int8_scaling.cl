// What is left of a linear layer of bytes after its product: y[r, j] = activation(product[r, j] * scale[j] + bias[j]).
//
// Arrays   product (rows, n), scale (n) of ACC, bias (n), y (rows, n), all row-major
// Launch   as many work-items as there are shares of `each` neighbouring elements of y, or more
// Params   STORE, T, ACC of y's dtype | BIAS 1 to add bias, of BIAS_T, BIAS_LOAD
//          ACTIVATION none, relu, silu, gelu or gelu_tanh
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
