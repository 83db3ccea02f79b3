// What NVIDIA's GPUs can do from Ampere on beyond OpenCL C, as inline PTX, and float32 as two float16.
//
// Addresses in local memory are 32-bit numbers (place_of).
//
// Params   KIND bf16 or f16
#ifndef KIND
#error "ptx.cl needs KIND"
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

INLINE uint place_of(__local const void *p) {
    uint place;
    asm("cvt.u32.u64 %0, %1;" : "=r"(place) : "l"(p));
    return place;
}

// Two sums as 16-bit floats in a word, the first in its lower half.
INLINE uint pair_of(float first, float second) {
    uint pair;
    asm("cvt.rn." TEXT(KIND) "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
// And back.
INLINE float2 floats_of(uint pair) {
    float2 v;
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\ncvt.f32." TEXT(KIND) " %0, first;\n"
        "cvt.f32." TEXT(KIND) " %1, second;\n}" : "=f"(v.x), "=f"(v.y) : "r"(pair));
    return v;
}

// ---- float32 as two float16 --------------------------------------------------------------------------------------

// x 2^shift = high + low / 2^11. The shift brings a tensor's largest finite magnitude, of which these are the bits, to
// 2^14 or a little more: what is 2^-28 of that still has all bits in high and low.
INLINE int shift_of(uint largest) { return MAX(MIN(141 - (int)(largest >> 23), 126), -113); }
INLINE float power_of_2(int exponent) { return as_float((uint)(127 + exponent) << 23); }
#define LOW_UP 2048.0f
INLINE float low_of(float v, float high) {
    const float low = (v - high) * LOW_UP;
    return low == low ? low : 0;  // of an infinity
}
