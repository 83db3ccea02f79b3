// iota: out[i] = start + i * step.
//
// Arrays   out (size)
// Launch   global: the number of work-items, a multiple of WG; each writes per_item consecutive elements
// Params   T, ACC, STORE    dtype of out: see prelude.cl
//          COUNTER          type of start, step and the arithmetic. Devices without double use float and the kernel
//                           iota_of_floats: each value is a sum of two floats (value, rest)
//          WG               work-items per group

#pragma OPENCL FP_CONTRACT OFF  // the same results on devices with and without fma

// start + i * step in double-float arithmetic: the rounding error of every product and sum is kept.
static inline float float_at(float start, float start_rest, float step, float step_rest, long i) {
    const float high = (float)(i >> 12 << 12), low = (float)(i & 4095);  // both exact
    const float p = high * step, q = low * step;
    const float sum = start + p, added = sum - start, total = sum + q, more = total - sum;
    const float errors = fma(high, step, -p) + fma(low, step, -q) + ((start - (sum - added)) + (p - added))
        + ((sum - (total - more)) + (q - more));
    return total + (errors + (start_rest + (high + low) * step_rest));
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void iota_of_floats(__global T *restrict out, const float start, const float start_rest, const float step,
                      const float step_rest, const long size, const long per_item) {
    const long first = (long)get_global_id(0) * per_item, stop = MIN(first + per_item, size);
    for (long i = first; i < stop; i++) STORE(out, i, (ACC)float_at(start, start_rest, step, step_rest, i));
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void iota(__global T *restrict out, const COUNTER start, const COUNTER step, const long size, const long per_item) {
    const long first = (long)get_global_id(0) * per_item, stop = MIN(first + per_item, size);
    for (long i = first; i < stop; i++) STORE(out, i, (ACC)(start + (COUNTER)i * step));
}
