// Splits the float32 operands of attention into 3 bfloat16 terms for attention_wgmma.cl: x = high + middle + low; see
// split_bfloat16.cl.
//
// Arrays   q, k, v, g, walks: see attention_operands.cl
//          <name>_parts (distinct matrices, rows, 192): 64 columns of high terms, 64 of middle terms, 64 of low terms;
//          0 from column D on
// Launch   see attention_operands.cl
// Params   D    see attention_operands.cl
#include "split_bfloat16.cl"
#include "attention_operands.cl"

__kernel GROUP void attention_divide(WHOLE, const int walks, const int batches, const int inner, const int t, const int s,
                                     __global uint2 *q_parts, __global uint2 *k_parts, __global uint2 *v_parts,
                                     __global uint2 *g_parts) {
    CHOOSE_ARRAY();
    __global uint2 *parts = which == 0 ? q_parts : which == 1 ? k_parts : which == 2 ? v_parts : g_parts;
    EACH_ROW {
        const float4 v = inside ? load_float4(x + lane * 4, at, row, high, wide) : (float4)0;
        const int4 finite = v - v == 0;  // inf - inf and nan - nan are nan
        const float4 upper = round4_to_bfloat16(v), rest = finite ? v - upper : 0, middle = round4_to_bfloat16(rest);
        __global uint2 *to = parts + (long)row * 3 * LANES + lane;
        to[0] = pack4_upper(upper);
        to[LANES] = pack4_upper(middle);
        to[2 * LANES] = pack4_upper(rest - middle);
    }
}
