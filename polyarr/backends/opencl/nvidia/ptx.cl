// Inline PTX for NVIDIA GPUs from Ampere on, and the split of float32 into 2 float16 terms. Addresses in local memory
// are 32-bit numbers (local_address).
//
// Params   KIND    the 16-bit float type: bf16 or f16
#ifndef KIND
#error "ptx.cl needs KIND"
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

INLINE uint local_address(__local const void *p) {
    uint place;
    asm("cvt.u32.u64 %0, %1;" : "=r"(place) : "l"(p));
    return place;
}

// Round two floats to 16 bits and pack them into a word, the first in its lower half.
INLINE uint pack_pair(float first, float second) {
    uint pair;
    asm("cvt.rn." TEXT(KIND) "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
// Unpack two 16-bit floats from a word.
INLINE float2 unpack_pair(uint pair) {
    float2 v;
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\ncvt.f32." TEXT(KIND) " %0, first;\n"
        "cvt.f32." TEXT(KIND) " %1, second;\n}" : "=f"(v.x), "=f"(v.y) : "r"(pair));
    return v;
}

// ---- float32 as 2 float16 terms ----------------------------------------------------------------------------------

// x 2^shift = high + low / 2^11. The shift, from the bits of the tensor's amax, scales the amax to at least 2^14 and
// below 2^15: numbers down to 2^-28 of it keep all their bits in the two terms.
INLINE int shift_of(uint largest) { return MAX(MIN(141 - (int)(largest >> 23), 126), -113); }
INLINE float power_of_2(int exponent) { return as_float((uint)(127 + exponent) << 23); }
#define LOW_SCALE 2048.0f
INLINE float low_of(float v, float high) {
    const float low = (v - high) * LOW_SCALE;
    return low == low ? low : 0;  // inf - inf is nan
}
