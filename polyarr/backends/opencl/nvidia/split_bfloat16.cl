// Splits float32 into 3 bfloat16 terms: x = high + middle + low, exactly.
//
// Each term has 8 significant bits and a sign, and the remainder is at most half a unit in the last place of the term:
// 24 bits in total. Numbers below 2^-110 lose their last bits. A non-finite number becomes itself, 0 and 0.

// Round to the nearest bfloat16, but truncate numbers that would round to infinity.
static inline float round_to_bfloat16(float v) {
    const uint bits = as_uint(v), near = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    if (v != v) return NAN;
    return as_float((near & 0x7fffffffu) < 0x7f800000u ? near : bits & 0xffff0000u);
}
// Pack the upper halves of two floats into a word, the first in its lower half.
static inline uint pack_upper(float first, float second) {
    return as_uint(first) >> 16 | (as_uint(second) & 0xffff0000u);
}
static inline uint2 pack4_upper(float4 v) { return (uint2)(pack_upper(v.x, v.y), pack_upper(v.z, v.w)); }

static inline float4 round4_to_bfloat16(float4 v) {
    return (float4)(round_to_bfloat16(v.x), round_to_bfloat16(v.y), round_to_bfloat16(v.z), round_to_bfloat16(v.w));
}
