// Inline PTX for NVIDIA GPUs from Ampere on. Addresses in local memory are 32-bit numbers (local_address).
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
    uint address;
    asm("cvt.u32.u64 %0, %1;" : "=r"(address) : "l"(p));
    return address;
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
