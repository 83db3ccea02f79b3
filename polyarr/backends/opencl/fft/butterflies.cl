// Fourier transforms of a few elements in registers. Included by the kernels of this folder.
//
// Params   REAL, PAIR    type of the parts: float or double; of a complex number: float2 or double2
//          K(c)          the constant c in type REAL
//          V             REAL, or a vector of the same parts of several transforms

static inline void dft_1(V *re, V *im) {}

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

// Transforms of a * b elements as b of a and a of b. Lengths without a common divisor need no roots between them: ka and kb
// are 1 for one of them and 0 for the other.
#define DEFINE_COPRIME(n, a, b, ka, kb) \
    static inline void dft_##n(V *re, V *im) { \
        V u_re[n], u_im[n], v_re[a], v_im[a]; \
        _Pragma("unroll") for (int j = 0; j < b; j++) { \
            _Pragma("unroll") for (int i = 0; i < a; i++) \
                v_re[i] = re[(b * i + a * j) % n], v_im[i] = im[(b * i + a * j) % n]; \
            dft_##a(v_re, v_im); \
            _Pragma("unroll") for (int i = 0; i < a; i++) u_re[b * i + j] = v_re[i], u_im[b * i + j] = v_im[i]; \
        } \
        _Pragma("unroll") for (int i = 0; i < a; i++) { \
            dft_##b(u_re + b * i, u_im + b * i); \
            _Pragma("unroll") for (int j = 0; j < b; j++) \
                re[(ka * i + kb * j) % n] = u_re[b * i + j], im[(ka * i + kb * j) % n] = u_im[b * i + j]; \
        } \
    }
DEFINE_COPRIME(6, 2, 3, 3, 4)
DEFINE_COPRIME(10, 2, 5, 5, 6)
DEFINE_COPRIME(12, 3, 4, 4, 9)
DEFINE_COPRIME(14, 2, 7, 7, 8)
DEFINE_COPRIME(15, 3, 5, 10, 6)

// Cosines and sines of t / n turns, from t = 0 on, as far as squares need them.
__constant REAL COS_9[] = {K(1.0), K(0.766044443118978), K(0.17364817766693033), 0, K(-0.9396926207859084)};
__constant REAL SIN_9[] = {0, K(0.6427876096865393), K(0.984807753012208), 0, K(0.3420201433256687)};
__constant REAL COS_16[] = {
    K(1.0), K(0.9238795325112867), K(0.7071067811865476), K(0.3826834323650898), 0, 0, K(-0.7071067811865476), 0, 0,
    K(-0.9238795325112867),
};
__constant REAL SIN_16[] = {
    0, K(0.3826834323650898), K(0.7071067811865476), K(0.9238795325112867), K(1.0), 0, K(0.7071067811865476), 0, 0,
    K(-0.3826834323650898),
};
#define DEFINE_SQUARE(n, r) \
    static inline void dft_##n(V *re, V *im) { \
        V u_re[n], u_im[n], v_re[r], v_im[r]; \
        _Pragma("unroll") for (int j = 0; j < r; j++) { \
            _Pragma("unroll") for (int i = 0; i < r; i++) v_re[i] = re[r * i + j], v_im[i] = im[r * i + j]; \
            dft_##r(v_re, v_im); \
            _Pragma("unroll") for (int i = 0; i < r; i++) { \
                const REAL c = COS_##n[i * j], s = SIN_##n[i * j]; \
                u_re[r * i + j] = i * j ? v_re[i] * c + v_im[i] * s : v_re[i]; \
                u_im[r * i + j] = i * j ? v_im[i] * c - v_re[i] * s : v_im[i]; \
            } \
        } \
        _Pragma("unroll") for (int i = 0; i < r; i++) { \
            dft_##r(u_re + r * i, u_im + r * i); \
            _Pragma("unroll") for (int j = 0; j < r; j++) re[r * j + i] = u_re[r * i + j], im[r * j + i] = u_im[r * i + j]; \
        } \
    }
DEFINE_SQUARE(9, 3)
DEFINE_SQUARE(16, 4)
