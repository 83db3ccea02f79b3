// arange: out[i] = start + i * step.
//
// Launch   global items, a multiple of WG; every work-item writes per_item consecutive elements
// Params   T, ACC, STORE  type of out: stored, computed with, how to write it
//          COUNTER        type of start, step and the arithmetic
//          WG             work-items per group
#if !defined(T) || !defined(ACC) || !defined(STORE) || !defined(COUNTER) || !defined(WG)
#error "create.cl needs T, ACC, STORE, COUNTER and WG"
#endif

#pragma OPENCL FP_CONTRACT OFF  // so that a device with fma gives the same numbers as one without

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void arange(__global T *restrict out, const COUNTER start, const COUNTER step, const long size, const long per_item) {
    const long first = (long)get_global_id(0) * per_item, stop = MIN(first + per_item, size);
    for (long i = first; i < stop; i++) STORE(out, i, (ACC)(start + (COUNTER)i * step));
}
