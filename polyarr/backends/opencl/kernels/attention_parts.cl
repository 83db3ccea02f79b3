// Attention's operands of float32 as two float16 each, for attention_wgmma.cl: x 2^shift = high + low / 2^11; see ptx.cl.
//
// Arrays   q, k, v, g, walks: see attention_operands.cl
//          peaks (4): the bits of the largest finite magnitude of each, 0 at first
//          <name>_parts (matrices that differ, rows, 128): 64 columns of high parts, then 64 of low ones, 0 from D on
// Launch   both: see attention_operands.cl
// Params   KIND f16 | D, see there
#include "ptx.cl"
#include "peak.cl"
#include "attention_operands.cl"

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
