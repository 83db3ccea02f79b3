// Attention's operands of float32 as three bfloat16 each, for attention_wgmma.cl: x = high + middle + low; see thirds.cl.
//
// Arrays   q, k, v, g, walks: see attention_operands.cl
//          <name>_parts (matrices that differ, rows, 192): 64 columns of high parts, of middle ones, of low ones, 0 from D on
// Launch   see attention_operands.cl
// Params   D, see there
#include "thirds.cl"
#include "attention_operands.cl"

__kernel GROUP void attention_divide(WHOLE, const int walks, const int batches, const int inner, const int t, const int s,
                                     __global uint2 *q_parts, __global uint2 *k_parts, __global uint2 *v_parts,
                                     __global uint2 *g_parts) {
    CHOOSE_ARRAY();
    __global uint2 *parts = which == 0 ? q_parts : which == 1 ? k_parts : which == 2 ? v_parts : g_parts;
    EACH_ROW {
        const float4 v = inside ? four_of(x + lane * 4, at, row, high, wide) : (float4)0;
        const int4 finite = v - v == 0;  // what is not becomes a nan
        const float4 upper = high_of_four(v), rest = finite ? v - upper : 0, middle = high_of_four(rest);
        __global uint2 *to = parts + (long)row * 3 * LANES + lane;
        to[0] = four_upper(upper);
        to[LANES] = four_upper(middle);
        to[2 * LANES] = four_upper(rest - middle);
    }
}
