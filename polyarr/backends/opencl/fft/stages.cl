// Short Fourier transforms of lanes in the local memory of a work-group, by Stockham's algorithm. Included by passes.cl
// and whole_rows.cl.
//
// Memory   held    of V: the real parts of all elements, SPACE later the imaginary parts; element j of lane l is number
//                  SLOT(j, l) of REAL. On CPUs a stage writes to the other half of held, on GPUs it writes in place,
//                  from registers.
//          roots   (length) exp(-2 pi i t / length)
// Params   REAL, PAIR    type of the parts: float or double; of a complex number: float2 or double2
//          K(c)          the constant c in type REAL
//          WG            work-items of a group, 1 on CPUs
//          VECTOR        lanes that a work-item computes at once; 1 on GPUs
//          V             vector of VECTOR REAL
//          MAX_RADIX     8 or 13; the larger ones need many registers
//          CAPACITY      elements in local memory: of all transforms of a group, with padding

#define SPACE (CAPACITY / VECTOR)
#if WG > 1
#define HELD (2 * SPACE)
#define PADDED(i) ((i) + ((i) >> 5))  // against bank conflicts of writes that are a radix apart
#define SLOT(j, lane) PADDED(((j) << column_bits) + (lane))
#else
#define HELD (4 * SPACE)
#define PADDED(i) (i)
#define SLOT(j, lane) ((j) * VECTOR + (lane))
#endif

static inline PAIR times(PAIR a, PAIR b) { return (PAIR)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

// ---- transforms in registers ----------------------------------------------------------------------------------------

static inline void dft_2(V *re, V *im) {
    const V a = re[1], b = im[1];
    re[1] = re[0] - a, im[1] = im[0] - b;
    re[0] += a, im[0] += b;
}

static inline void dft_4(V *re, V *im) {
    const V a_re = re[0] + re[2], a_im = im[0] + im[2], b_re = re[0] - re[2], b_im = im[0] - im[2];
    const V c_re = re[1] + re[3], c_im = im[1] + im[3], d_re = re[1] - re[3], d_im = im[1] - im[3];
    re[0] = a_re + c_re, im[0] = a_im + c_im;
    re[1] = b_re + d_im, im[1] = b_im - d_re;
    re[2] = a_re - c_re, im[2] = a_im - c_im;
    re[3] = b_re - d_im, im[3] = b_im + d_re;
}

static inline void dft_8(V *re, V *im) {
    V e_re[4] = {re[0], re[2], re[4], re[6]}, e_im[4] = {im[0], im[2], im[4], im[6]};
    V o_re[4] = {re[1], re[3], re[5], re[7]}, o_im[4] = {im[1], im[3], im[5], im[7]};
    dft_4(e_re, e_im);
    dft_4(o_re, o_im);
    const V half_root = K(0.7071067811865476);
    const V r_re[4] = {o_re[0], (o_re[1] + o_im[1]) * half_root, o_im[2], (o_im[3] - o_re[3]) * half_root};
    const V r_im[4] = {o_im[0], (o_im[1] - o_re[1]) * half_root, -o_re[2], -(o_re[3] + o_im[3]) * half_root};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        re[k] = e_re[k] + r_re[k], im[k] = e_im[k] + r_im[k];
        re[k + 4] = e_re[k] - r_re[k], im[k + 4] = e_im[k] - r_im[k];
    }
}

// Cosines and sines of j / n turns, from j = 1 on.
__constant REAL COS_3[] = {K(-0.5)};
__constant REAL SIN_3[] = {K(0.8660254037844386)};
__constant REAL COS_5[] = {K(0.30901699437494745), K(-0.8090169943749475)};
__constant REAL SIN_5[] = {K(0.9510565162951535), K(0.5877852522924731)};
__constant REAL COS_7[] = {K(0.6234898018587335), K(-0.2225209339563144), K(-0.9009688679024191)};
__constant REAL SIN_7[] = {K(0.7818314824680298), K(0.9749279121818236), K(0.4338837391175581)};
__constant REAL COS_11[] = {
    K(0.8412535328311812), K(0.41541501300188644), K(-0.14231483827328514), K(-0.6548607339452851),
    K(-0.9594929736144974),
};
__constant REAL SIN_11[] = {
    K(0.5406408174555976), K(0.9096319953545183), K(0.9898214418809327), K(0.7557495743542583), K(0.28173255684142967),
};
__constant REAL COS_13[] = {
    K(0.8854560256532099), K(0.5680647467311558), K(0.12053668025532305), K(-0.3546048870425356),
    K(-0.7485107481711011), K(-0.970941817426052),
};
__constant REAL SIN_13[] = {
    K(0.46472317204376856), K(0.8229838658936564), K(0.992708874098054), K(0.9350162426854148), K(0.6631226582407952),
    K(0.23931566428755777),
};

// Elements j and n - j are added and subtracted first; that halves the products.
#define DEFINE_ODD(n) \
    static inline void dft_##n(V *re, V *im) { \
        V plus_re[n / 2], plus_im[n / 2], minus_re[n / 2], minus_im[n / 2]; \
        const V x_re = re[0], x_im = im[0]; \
        _Pragma("unroll") for (int j = 0; j < n / 2; j++) { \
            plus_re[j] = re[j + 1] + re[n - 1 - j], plus_im[j] = im[j + 1] + im[n - 1 - j]; \
            minus_re[j] = re[j + 1] - re[n - 1 - j], minus_im[j] = im[j + 1] - im[n - 1 - j]; \
            re[0] += plus_re[j], im[0] += plus_im[j]; \
        } \
        _Pragma("unroll") for (int k = 1; k <= n / 2; k++) { \
            V c_re = x_re, c_im = x_im, s_re = 0, s_im = 0; \
            _Pragma("unroll") for (int j = 0; j < n / 2; j++) { \
                const int turn = (j + 1) * k % n, at = MIN(turn, n - turn) - 1; \
                const REAL c = COS_##n[at], s = turn > n / 2 ? -SIN_##n[at] : SIN_##n[at]; \
                c_re += c * plus_re[j], c_im += c * plus_im[j]; \
                s_re += s * minus_re[j], s_im += s * minus_im[j]; \
            } \
            re[k] = c_re + s_im, im[k] = c_im - s_re; \
            re[n - k] = c_re - s_im, im[n - k] = c_im + s_re; \
        } \
    }
DEFINE_ODD(3)
DEFINE_ODD(5)
DEFINE_ODD(7)
DEFINE_ODD(11)
DEFINE_ODD(13)

// ---- stages ---------------------------------------------------------------------------------------------------------

// Butterfly b of `count` with radix r reads every count-th vector. `inner` is the product of the radices of earlier stages
// and of the vectors of an element; in the last stage all roots are 1.
#define BUTTERFLY(r, b, v_re, v_im) \
    { \
        _Pragma("unroll") for (int j = 0; j < r; j++) \
            (v_re)[j] = re[PADDED((b) + count * j)], (v_im)[j] = im[PADDED((b) + count * j)]; \
        dft_##r(v_re, v_im); \
        if (inner < count) { \
            const int turn = (int)(((b) + 0.5f) * per_inner) * inner >> column_bits; \
            _Pragma("unroll") for (int k = 1; k < r; k++) { \
                const PAIR w = roots[turn * k]; \
                const V a = (v_re)[k]; \
                (v_re)[k] = a * w.x - (v_im)[k] * w.y, (v_im)[k] = a * w.y + (v_im)[k] * w.x; \
            } \
        } \
    }
#define WRITE(r, b, v_re, v_im) \
    { \
        const int to = (b) + (int)(((b) + 0.5f) * per_inner) * inner * (r - 1); \
        _Pragma("unroll") for (int k = 0; k < r; k++) \
            next_re[PADDED(to + inner * k)] = (v_re)[k], next_im[PADDED(to + inner * k)] = (v_im)[k]; \
    }

#if MAX_RADIX > 8
#define OF_RADIX(STAGE) STAGE(2) STAGE(3) STAGE(4) STAGE(5) STAGE(7) STAGE(8) STAGE(11) STAGE(13)
#define REGISTERS (SPACE / WG + 14)
#else
#define OF_RADIX(STAGE) STAGE(2) STAGE(3) STAGE(4) STAGE(5) STAGE(7) STAGE(8)
#define REGISTERS (SPACE / WG + 9)
#endif

#if WG > 1
#define EACH_OWN(r, DO) \
    case r: { \
        const int count = size / r; \
        _Pragma("unroll") for (int q = 0; q < (SPACE / r + WG - 1) / WG; q++) { \
            const int b = me + q * WG; \
            if (b < count) DO(r, b, v_re + q * r, v_im + q * r) \
        } \
        break; \
    }
#define READ_STAGE(r) EACH_OWN(r, BUTTERFLY)
#define WRITE_STAGE(r) EACH_OWN(r, WRITE)
#else
#define STAGE(r) \
    case r: { \
        const int count = size / r; \
        for (int b = 0; b < count; b++) { \
            V v_re[r], v_im[r]; \
            BUTTERFLY(r, b, v_re, v_im) \
            WRITE(r, b, v_re, v_im) \
        } \
        break; \
    }
#endif

// Transform the lanes that begin at held[at], and return where the results begin. stages: radices, 4 bits each. PoCL errs
// where a function with barriers is not inlined.
static inline __attribute__((always_inline))
int transform_held(__local V *held, int at, __global const PAIR *restrict roots, int length, long stages,
                   int column_bits, int me) {
    const int size = length << column_bits;
    int inner = 1 << column_bits;
#if WG > 1
    V v_re[REGISTERS], v_im[REGISTERS];
#endif
    for (long left = stages; left; left >>= 4) {
        const float per_inner = 1.0f / inner;
        const int radix = (int)(left & 15);
        __local V *re = held + at, *im = re + SPACE;
#if WG > 1
        __local V *next_re = re, *next_im = im;
        switch (radix) { OF_RADIX(READ_STAGE) }
        barrier(CLK_LOCAL_MEM_FENCE);
        switch (radix) { OF_RADIX(WRITE_STAGE) }
        barrier(CLK_LOCAL_MEM_FENCE);
#else
        at = 2 * SPACE - at;
        __local V *next_re = held + at, *next_im = next_re + SPACE;
        switch (radix) { OF_RADIX(STAGE) }
#endif
        inner *= radix;
    }
    return at;
}
