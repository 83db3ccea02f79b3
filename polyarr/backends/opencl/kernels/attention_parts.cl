// Attention's operands of float32 as two float16 each, for attention_wgmma.cl: x 2^shift = high + low / 2^11; see ptx.cl.
//
// A row is taken by 16 work-items, four columns each.
//
// Arrays   q, g (.., t, D), k, v (.., s, D), g for dout, with layouts <name>_at: offset, strides of the two leading axes,
//          stride of a row; the first elements and all strides are multiples of four
//          peaks (4): the bits of the largest finite magnitude of each, 0 at first
//          <name>_parts (matrices that differ, rows, 128): 64 columns of high parts, then 64 of low ones, 0 from D on
//          walks: bits 2 i and 2 i + 1 are 1 where array i of these four has the inner, the outer leading axis
// Launch   both: global (any number of groups, arrays: 3 or 4), local (128, 1)
// Params   KIND f16 | D length of the last axes, a multiple of 8 up to 64
#include "ptx.cl"
#ifndef D
#error "attention_parts.cl needs D"
#endif

#define GROUP __attribute__((reqd_work_group_size(128, 1, 1)))
#define LANES 16  // work-items per row
#define WHOLE \
    __global const float *q, const long4 q_at, __global const float *k, const long4 k_at, __global const float *v, \
        const long4 v_at, __global const float *g, const long4 g_at
// One of the arrays, by the group's second number: x, at, its rows in all and those of a matrix; one's lane of a row.
#define CHOOSE_ARRAY() \
    const int which = get_group_id(1), lane = get_local_id(0) % LANES, inside = lane * 4 < D; \
    __global const float *x = which == 0 ? q : which == 1 ? k : which == 2 ? v : g; \
    const long4 at = which == 0 ? q_at : which == 1 ? k_at : which == 2 ? v_at : g_at; \
    const int high = which == 0 || which == 3 ? t : s, wide = walks >> 2 * which & 1 ? inner : 1; \
    const int rows = high * wide * (walks >> (2 * which + 1) & 1 ? batches / inner : 1); \
    x += at.x
#define EACH_ROW for (int row = get_global_id(0) / LANES; row < rows; row += get_global_size(0) / LANES)

INLINE float4 four_of(__global const float *x, const long4 at, const int row, const int high, const int wide) {
    const int matrix = row / high;
    return *(__global const float4 *)(x + matrix / wide * at.y + matrix % wide * at.z + row % high * at.w);
}

__kernel GROUP void attention_peaks(WHOLE, __global volatile uint *peaks, const int walks, const int batches,
                                    const int inner, const int t, const int s) {
    __local uint largest;
    CHOOSE_ARRAY();
    uint bits = 0;
    if (inside) EACH_ROW {
        const float4 v = four_of(x + lane * 4, at, row, high, wide);
        bits = MAX(bits, MAX(MAX(finite_bits(v.x), finite_bits(v.y)), MAX(finite_bits(v.z), finite_bits(v.w))));
    }
    if (get_local_id(0) == 0) largest = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_max(&largest, bits);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) atomic_max(peaks + which, largest);
}

__kernel GROUP void attention_divide(WHOLE, __global const uint *peaks, const int walks, const int batches,
                                     const int inner, const int t, const int s, __global uint2 *q_parts,
                                     __global uint2 *k_parts, __global uint2 *v_parts, __global uint2 *g_parts) {
    CHOOSE_ARRAY();
    __global uint2 *parts = which == 0 ? q_parts : which == 1 ? k_parts : which == 2 ? v_parts : g_parts;
    const float scale = power_of_2(shift_of(peaks[which]));
    EACH_ROW {
        const float4 v = inside ? four_of(x + lane * 4, at, row, high, wide) * scale : (float4)0;
        const uint2 upper = (uint2)(pair_of(v.x, v.y), pair_of(v.z, v.w));
        const float2 a = floats_of(upper.x), c = floats_of(upper.y);
        parts[(long)row * 2 * LANES + lane] = upper;
        parts[(long)row * 2 * LANES + LANES + lane] =
            (uint2)(pair_of(low_of(v.x, a.x), low_of(v.y, a.y)), pair_of(low_of(v.z, c.x), low_of(v.w, c.y)));
    }
}
