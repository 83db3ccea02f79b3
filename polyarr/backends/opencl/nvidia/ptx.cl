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

// s (16 x 8) += x (16 x 16) @ y (16 x 8)
INLINE void mma(float *s, const uint *x, const uint *y) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TEXT(KIND) "." TEXT(KIND) ".f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}

// Make what this work-item wrote visible to the device, and what others made visible to it.
#define FENCE_GPU() asm volatile("fence.acq_rel.gpu;" ::: "memory")

// Programmatic dependent launch: a kernel may begin while the one before it still runs. What that one writes may be read
// after AWAIT_BEFORE, and the next kernel may begin after ALLOW_NEXT; all work-items must call both, in this order, so that
// of the kernels before only one still runs.
#ifndef AWAIT_BEFORE
#define AWAIT_BEFORE()
#define ALLOW_NEXT()
#endif
