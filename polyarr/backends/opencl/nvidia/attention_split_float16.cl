// Splits the float32 operands of attention into 2 float16 terms for attention_wgmma.cl: x 2^shift = high + low / 2^11.
// The shift follows from the amax of the array: see ptx.cl.
//
// Arrays   q, k, v, g, walks: see attention_operands.cl
//          amax (4): the amax of each array, as the bits of a float; 0 before attention_amax
//          <name>_parts (distinct matrices, rows, 128): 64 columns of high terms, then 64 of low terms; 0 from column D
//          on
// Launch   attention_amax, then attention_divide, both as in attention_operands.cl
// Params   KIND f16
//          D    see attention_operands.cl
#include "ptx.cl"
#include "amax.cl"
#include "attention_operands.cl"

__kernel GROUP void attention_amax(WHOLE, __global volatile uint *amax, const int walks, const int batches,
                                    const int inner, const int t, const int s) {
    __local uint largest;
    CHOOSE_ARRAY();
    uint bits = 0;
    if (inside) EACH_ROW {
        const float4 v = load_float4(x + lane * 4, at, row, high, wide);
        bits = MAX(bits, MAX(MAX(finite_bits(v.x), finite_bits(v.y)), MAX(finite_bits(v.z), finite_bits(v.w))));
    }
    if (get_local_id(0) == 0) largest = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_max(&largest, bits);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) atomic_max(amax + which, largest);
}

__kernel GROUP void attention_divide(WHOLE, __global const uint *amax, const int walks, const int batches,
                                     const int inner, const int t, const int s, __global uint2 *q_parts,
                                     __global uint2 *k_parts, __global uint2 *v_parts, __global uint2 *g_parts) {
    CHOOSE_ARRAY();
    __global uint2 *parts = which == 0 ? q_parts : which == 1 ? k_parts : which == 2 ? v_parts : g_parts;
    const float scale = power_of_2(shift_of(amax[which]));
    EACH_ROW {
        const float4 v = inside ? load_float4(x + lane * 4, at, row, high, wide) * scale : (float4)0;
        const uint2 upper = (uint2)(pack_pair(v.x, v.y), pack_pair(v.z, v.w));
        const float2 a = unpack_pair(upper.x), c = unpack_pair(upper.y);
        parts[(long)row * 2 * LANES + lane] = upper;
        parts[(long)row * 2 * LANES + LANES + lane] =
            (uint2)(pack_pair(low_of(v.x, a.x), low_of(v.y, a.y)), pack_pair(low_of(v.z, c.x), low_of(v.w, c.y)));
    }
}
