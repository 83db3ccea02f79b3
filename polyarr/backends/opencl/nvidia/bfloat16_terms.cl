// Splits float32 into 2 or 3 bfloat16 terms, each the remainder before it, rounded: x = high + low, or high + middle +
// low.
//
// A term has 8 significant bits and a sign, and its remainder is at most half a unit in its last place: two terms are
// off by at most 2^-17 of x, three by nothing. Numbers below 2^-110 lose their last bits. A non-finite number becomes
// itself and zeros.
//
// Params   TERMS    2 or 3; 1 if nothing is split
#ifndef TERMS
#error "bfloat16_terms.cl needs TERMS"
#endif

// Round to the nearest bfloat16, but truncate numbers that would round to infinity.
static inline float round_to_bfloat16(float v) {
    const uint bits = as_uint(v), near = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    if (v != v) return NAN;
    return as_float((near & 0x7fffffffu) < 0x7f800000u ? near : bits & 0xffff0000u);
}
static inline float4 round4_to_bfloat16(float4 v) {
    return (float4)(round_to_bfloat16(v.x), round_to_bfloat16(v.y), round_to_bfloat16(v.z), round_to_bfloat16(v.w));
}
// Pack the upper halves of two floats into a word, the first in its lower half.
static inline uint pack_upper(float first, float second) {
    return as_uint(first) >> 16 | (as_uint(second) & 0xffff0000u);
}
static inline uint2 pack4_upper(float4 v) { return (uint2)(pack_upper(v.x, v.y), pack_upper(v.z, v.w)); }

// Write the terms of four numbers, `apart` uint2 apart; return 0 if one of the numbers is not finite.
static inline int write_terms(float4 v, __global uint2 *terms, long apart) {
    const int4 finite = v - v == 0;  // inf - inf and nan - nan are nan
    const float4 high = round4_to_bfloat16(v), rest = finite ? v - high : 0, next = round4_to_bfloat16(rest);
    terms[0] = pack4_upper(high);
    terms[apart] = pack4_upper(next);
#if TERMS == 3
    terms[2 * apart] = pack4_upper(rest - next);
#endif
    return finite.x & finite.y & finite.z & finite.w;
}

// Return a number from its terms, `apart` elements apart.
static inline float join_terms(__global const ushort *term, long apart) {
    float low = widen_bfloat16(term[(TERMS - 1) * apart]);
    if (TERMS == 3) low += widen_bfloat16(term[apart]);
    return widen_bfloat16(term[0]) + low;
}
