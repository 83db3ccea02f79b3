// Declarations of the OpenCL C functions that kernels use, for PoCL 3.0 and 3.1, where this file precedes the prelude.
//
// PoCL makes the compiler parse clang's opencl-c.h, 18,500 lines of declarations, twice per program: 0.15 to 0.2 of the
// 0.25 s that a small program takes. With _OPENCL_H_ defined it skips them; types and constants are still there. The
// declarations here equal those of opencl-c.h, so that the same functions are called; a function that is missing here
// fails to compile. Every float function also has its double version: without it a double argument would silently
// become a float.

#ifndef _OPENCL_H_
#error "builtins.cl needs _OPENCL_H_"
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define OVERLOADED __attribute__((overloadable))
#define VALUE __attribute__((overloadable, const))
#define LOADED __attribute__((overloadable, pure))

// ---- work-item ids, barriers, atomics ----------------------------------------------------------------------------

size_t VALUE get_global_id(uint axis);
size_t VALUE get_global_size(uint axis);
size_t VALUE get_group_id(uint axis);
size_t VALUE get_local_id(uint axis);
size_t VALUE get_num_groups(uint axis);
size_t VALUE get_local_size(uint axis);
size_t VALUE get_global_offset(uint axis);
void OVERLOADED __attribute__((convergent)) barrier(cl_mem_fence_flags flags);

#define DECLARE_ATOMICS(SPACE, TYPE) \
    TYPE OVERLOADED atomic_add(volatile SPACE TYPE *p, TYPE value); \
    TYPE OVERLOADED atomic_inc(volatile SPACE TYPE *p); \
    TYPE OVERLOADED atomic_max(volatile SPACE TYPE *p, TYPE value); \
    TYPE OVERLOADED atomic_cmpxchg(volatile SPACE TYPE *p, TYPE expected, TYPE value);
DECLARE_ATOMICS(__global, int)
DECLARE_ATOMICS(__global, uint)
DECLARE_ATOMICS(__local, int)
DECLARE_ATOMICS(__local, uint)

#define DECLARE_HALVES(SPACE) \
    float LOADED vload_half(size_t i, const SPACE half *p); \
    void OVERLOADED vstore_half(float value, size_t i, SPACE half *p); \
    void OVERLOADED vstore_half_rte(float value, size_t i, SPACE half *p);
DECLARE_HALVES(__global)
DECLARE_HALVES(__local)
DECLARE_HALVES(__private)

// ---- math functions of one, two and three arguments --------------------------------------------------------------

#ifdef cl_khr_fp64
#define EACH_FLOAT(DECLARE, NAME) DECLARE(float, NAME) DECLARE(double, NAME)
#else
#define EACH_FLOAT(DECLARE, NAME) DECLARE(float, NAME)
#endif
#define DECLARE_1(TYPE, NAME) TYPE VALUE NAME(TYPE x);
#define DECLARE_2(TYPE, NAME) TYPE VALUE NAME(TYPE x, TYPE y);
#define DECLARE_3(TYPE, NAME) TYPE VALUE NAME(TYPE x, TYPE y, TYPE z);
#define DECLARE_SCALING(TYPE, NAME) TYPE VALUE NAME(TYPE x, int exponent);
#define DECLARE_TEST(TYPE, NAME) int VALUE NAME(TYPE x);

EACH_FLOAT(DECLARE_1, acos)
EACH_FLOAT(DECLARE_1, acosh)
EACH_FLOAT(DECLARE_1, asin)
EACH_FLOAT(DECLARE_1, asinh)
EACH_FLOAT(DECLARE_1, atan)
EACH_FLOAT(DECLARE_1, atanh)
EACH_FLOAT(DECLARE_1, ceil)
EACH_FLOAT(DECLARE_1, cos)
EACH_FLOAT(DECLARE_1, cosh)
EACH_FLOAT(DECLARE_1, erf)
EACH_FLOAT(DECLARE_1, exp)
EACH_FLOAT(DECLARE_1, expm1)
EACH_FLOAT(DECLARE_1, fabs)
EACH_FLOAT(DECLARE_1, floor)
EACH_FLOAT(DECLARE_1, log)
EACH_FLOAT(DECLARE_1, log10)
EACH_FLOAT(DECLARE_1, log1p)
EACH_FLOAT(DECLARE_1, log2)
EACH_FLOAT(DECLARE_1, rint)
EACH_FLOAT(DECLARE_1, sin)
EACH_FLOAT(DECLARE_1, sinh)
EACH_FLOAT(DECLARE_1, sqrt)
EACH_FLOAT(DECLARE_1, tan)
EACH_FLOAT(DECLARE_1, tanh)
EACH_FLOAT(DECLARE_1, trunc)
EACH_FLOAT(DECLARE_2, atan2)
EACH_FLOAT(DECLARE_2, copysign)
EACH_FLOAT(DECLARE_2, fmax)
EACH_FLOAT(DECLARE_2, fmin)
EACH_FLOAT(DECLARE_2, fmod)
EACH_FLOAT(DECLARE_2, hypot)
EACH_FLOAT(DECLARE_2, nextafter)
EACH_FLOAT(DECLARE_2, pow)
EACH_FLOAT(DECLARE_3, fma)
EACH_FLOAT(DECLARE_SCALING, ldexp)
float VALUE native_exp2(float x);
float VALUE native_recip(float x);
EACH_FLOAT(DECLARE_TEST, ilogb)
EACH_FLOAT(DECLARE_TEST, signbit)
