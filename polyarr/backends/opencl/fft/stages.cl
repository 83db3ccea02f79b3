// Short Fourier transforms of lanes in local memory, by Stockham's algorithm, each by one work-item of a CPU. Included by
// passes.cl and whole_rows.cl. For GPUs see stages_gpu.cl.
//
// Memory   held    of V: the real parts of all elements, SPACE later the imaginary parts; a stage writes to the other half
//          roots   (length) exp(-2 pi i t / length)
// Params   VECTOR        lanes that a work-item computes at once
//          MAX_RADIX     8 or 13; the larger ones take as long to compile as the others
//          CAPACITY      elements in local memory, of all lanes together
//          Others: see butterflies.cl

#define SPACE (CAPACITY / VECTOR)
#define HELD (4 * SPACE)

// Butterfly b of `count` with radix r reads every count-th vector. `inner` is the product of the radices of earlier
// stages; in the last stage all roots are 1.
#define STAGE(r) \
    case r: { \
        const int count = length / r; \
        for (int b = 0; b < count; b++) { \
            V v_re[r], v_im[r]; \
            _Pragma("unroll") for (int j = 0; j < r; j++) v_re[j] = re[b + count * j], v_im[j] = im[b + count * j]; \
            dft_##r(v_re, v_im); \
            const int turn = (int)((b + 0.5f) * per_inner) * inner, to = b + turn * (r - 1); \
            if (inner < count) { \
                _Pragma("unroll") for (int k = 1; k < r; k++) { \
                    const PAIR w = roots[turn * k]; \
                    const V a = v_re[k]; \
                    v_re[k] = a * w.x - v_im[k] * w.y, v_im[k] = a * w.y + v_im[k] * w.x; \
                } \
            } \
            _Pragma("unroll") for (int k = 0; k < r; k++) next_re[to + inner * k] = v_re[k], next_im[to + inner * k] = v_im[k]; \
        } \
        break; \
    }

#if MAX_RADIX > 8
#define LARGE_RADICES STAGE(11) STAGE(13)
#else
#define LARGE_RADICES
#endif

// Transform the lanes that begin at held[at], and return where the results begin. stages: radices, 4 bits each. PoCL errs
// where a function with barriers is not inlined.
static inline __attribute__((always_inline))
int transform_held(__local V *held, int at, __global const PAIR *restrict roots, int length, long stages) {
    int inner = 1;
    for (long left = stages; left; left >>= 4) {
        const float per_inner = 1.0f / inner;
        const int radix = (int)(left & 15);
        __local V *re = held + at, *im = re + SPACE;
        at = 2 * SPACE - at;
        __local V *next_re = held + at, *next_im = next_re + SPACE;
        switch (radix) { STAGE(2) STAGE(3) STAGE(4) STAGE(5) STAGE(7) STAGE(8) LARGE_RADICES }
        inner *= radix;
    }
    return at;
}
