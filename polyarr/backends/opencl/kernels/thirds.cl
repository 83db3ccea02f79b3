// Float32 as three bfloat16: x = high + middle + low, with all its bits.
//
// Each part has 8 bits, of the sign too, and what is left is less than half of its last: 24 bits in all. Of numbers below
// 2^-110 the last ones are lost. What is not finite has itself, 0 and 0.

// To the nearest bfloat16; what would be an infinity by that is cut off.
static inline float high_of(float v) {
    const uint bits = as_uint(v), near = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    if (v != v) return NAN;
    return as_float((near & 0x7fffffffu) < 0x7f800000u ? near : bits & 0xffff0000u);
}
// The upper halves of two numbers, the first in the lower half of a word.
static inline uint pair_of_upper(float first, float second) {
    return as_uint(first) >> 16 | (as_uint(second) & 0xffff0000u);
}
static inline uint2 four_upper(float4 v) { return (uint2)(pair_of_upper(v.x, v.y), pair_of_upper(v.z, v.w)); }

static inline float4 high_of_four(float4 v) {
    return (float4)(high_of(v.x), high_of(v.y), high_of(v.z), high_of(v.w));
}
