// Vectors of consecutive elements of float32, float16 or bfloat16 as floats, at any alignment, on CPUs.
//
// DEFINE_READ(COUNT) defines PASTE(read_, COUNT)(p), overloaded for pointers to each dtype's elements, where COUNT is
// the length of a vector. clang does not vectorize all loops over LOAD.

#if !IS_CPU
#error "vectors.cl is for CPUs"
#endif

#define OVERLOADED static inline __attribute__((always_inline, overloadable))

#if HAS_BUILTINS
#define WIDENED(v, COUNT) __builtin_convertvector(v, PASTE(uint, COUNT))
#else
#define WIDENED(v, COUNT) PASTE(convert_uint, COUNT)(v)
#endif

#if HAS_BUILTINS && defined(__F16C__)
#define DEFINE_READ_OF_HALF(COUNT) \
    typedef half PASTE(halves_, COUNT) __attribute__((ext_vector_type(COUNT), aligned(2))); \
    OVERLOADED PASTE(float, COUNT) PASTE(read_, COUNT)(__global const half *p) { \
        return __builtin_convertvector(*(__global const PASTE(halves_, COUNT) *)p, PASTE(float, COUNT)); \
    }
#else
#define DEFINE_READ_OF_HALF(COUNT) \
    OVERLOADED PASTE(float, COUNT) PASTE(read_, COUNT)(__global const half *p) { \
        union { PASTE(float, COUNT) all; float each[COUNT]; } found; \
        for (int i = 0; i < COUNT; i++) found.each[i] = load_float16(p, i); \
        return found.all; \
    }
#endif

#define DEFINE_READ(COUNT) \
    typedef PASTE(float, COUNT) PASTE(floats_, COUNT) __attribute__((aligned(4))); \
    typedef PASTE(ushort, COUNT) PASTE(ushorts_, COUNT) __attribute__((aligned(2))); \
    OVERLOADED PASTE(float, COUNT) PASTE(read_, COUNT)(__global const float *p) { \
        return *(__global const PASTE(floats_, COUNT) *)p; \
    } \
    OVERLOADED PASTE(float, COUNT) PASTE(read_, COUNT)(__global const ushort *p) { \
        return PASTE(as_float, COUNT)(WIDENED(*(__global const PASTE(ushorts_, COUNT) *)p, COUNT) << 16); \
    } \
    DEFINE_READ_OF_HALF(COUNT)
