// Splits the float32 operands of attention into bfloat16 terms for attention_wgmma.cl; see bfloat16_terms.cl. 16
// work-items share a row, each takes four columns.
//
// Arrays   q, g (.., t, D) and k, v (.., s, D) of float, where g is dout; with layouts <name>_at: offset, strides of
//          the two leading axes, stride of a row. The first element and all strides are multiples of four elements
//          <name>_terms (distinct matrices, rows, TERMS * 64): 64 columns of high terms first; 0 from column D on
// Launch   global (any number of groups * 128, number of arrays: 3 or 4), local (128, 1)
// Params   D        length of the last axis, a multiple of 8 up to 64
//          TERMS    2 or 3
//          walks    (argument) bit 2 i is 1 if array i of q, k, v, g has the inner leading axis, bit 2 i + 1 if it has
//                   the outer one; otherwise the array is broadcast along that axis
#include "bfloat16_terms.cl"
#ifndef D
#error "attention_split.cl needs D"
#endif

#define LANES 16  // work-items per row

static inline float4 load_float4(__global const float *x, const long4 at, const int row, const int high,
                                 const int wide) {
    const int matrix = row / high;
    return *(__global const float4 *)(x + matrix / wide * at.y + matrix % wide * at.z + row % high * at.w);
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void attention_split(__global const float *q, const long4 q_at, __global const float *k, const long4 k_at,
                     __global const float *v, const long4 v_at, __global const float *g, const long4 g_at,
                     const int walks, const int batches, const int inner, const int group, const int t, const int s,
                     __global uint2 *q_terms, __global uint2 *k_terms, __global uint2 *v_terms,
                     __global uint2 *g_terms) {
    const int which = get_group_id(1), lane = get_local_id(0) % LANES, inside = lane * 4 < D;
    __global const float *x = which == 0 ? q : which == 1 ? k : which == 2 ? v : g;
    __global uint2 *terms = which == 0 ? q_terms : which == 1 ? k_terms : which == 2 ? v_terms : g_terms;
    const long4 at = which == 0 ? q_at : which == 1 ? k_at : which == 2 ? v_at : g_at;
    const int is_key = which == 1 || which == 2, high = is_key ? s : t;
    const int wide = walks >> 2 * which & 1 ? inner / (is_key ? group : 1) : 1;
    const int rows = high * wide * (walks >> (2 * which + 1) & 1 ? batches / inner : 1);
    x += at.x;
    for (int row = get_global_id(0) / LANES; row < rows; row += get_global_size(0) / LANES) {
        const float4 numbers = inside ? load_float4(x + lane * 4, at, row, high, wide) : (float4)0;
        write_terms(numbers, terms + (long)row * TERMS * LANES + lane, LANES);
    }
}
