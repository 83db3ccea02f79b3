// One pass of a Fourier transform: a batch of short transforms, of `length` elements each.
//
// A transform of n elements is one pass, or several whose lengths multiply to n (Stockham's algorithm: no reordering is
// left). The elements of a short transform lie `lanes_of_row` apart; lane c of a row begins at its element c. A pass
// writes element k of lane c = p * stride + q to p * stride * length + k * stride + q, multiplied by the root
// exp(-2 pi i p k unit / n). Inside a work-group, the same algorithm runs in local memory, with small radices.
//
// Arrays   x, y      complex numbers as pairs: rows of lanes_of_row * length elements
//          roots     (length) exp(-2 pi i t / length)
//          fine      (2^FINE_BITS) exp(-2 pi i t / n), then coarse: exp(-2 pi i t 2^FINE_BITS / n)
// Launch   groups of WG work-items: `tiles` for each row, or for all lanes of all rows if tiles is 0
// Params   REAL, PAIR    type of the parts: float or double; of a complex number: float2 or double2
//          K(c)          the constant c in type REAL
//          WG            work-items of a group, 1 on CPUs
//          VECTOR        lanes that a work-item computes at once; 1 on GPUs
//          V             vector of VECTOR REAL
//          MAX_RADIX     8 or 13; the larger ones need many registers
//          CAPACITY      elements in local memory: of all transforms of a group, with padding
//          MAX_LANES     transforms of a group
//          FINE_BITS     see fine
#if !defined(REAL) || !defined(PAIR) || !defined(K) || !defined(WG) || !defined(VECTOR) || !defined(V)
#error "passes.cl needs REAL, PAIR, K, WG, VECTOR and V"
#endif
#if !defined(MAX_RADIX) || !defined(CAPACITY) || !defined(MAX_LANES) || !defined(FINE_BITS)
#error "passes.cl needs MAX_RADIX, CAPACITY, MAX_LANES and FINE_BITS"
#endif

typedef V Parts __attribute__((aligned(sizeof(REAL))));  // of VECTOR / 2 complex numbers, anywhere in memory

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

// ---- passes ---------------------------------------------------------------------------------------------------------

static inline PAIR times(PAIR a, PAIR b) { return (PAIR)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

// exp(-2 pi i t / n)
static inline PAIR root_at(__global const PAIR *restrict fine, int t) {
    return times(fine[(1 << FINE_BITS) + (t >> FINE_BITS)], fine[t & ((1 << FINE_BITS) - 1)]);
}

// A stage with radix r; `inner` is the product of the radices of earlier stages. Local memory has `columns` vectors
// for each element of a short transform, `pitch` apart.
#define STAGE(r) \
    case r: \
        for (int b = me; b < length / r << column_bits; b += WG) { \
            const int u = b >> column_bits, column = b & (columns - 1), p = (int)((u + 0.5f) * per_inner); \
            const int from = u * pitch + column, to = from + inner * p * (r - 1) * pitch; \
            V v_re[r], v_im[r]; \
            _Pragma("unroll") for (int j = 0; j < r; j++) \
                v_re[j] = re[from + length / r * j * pitch], v_im[j] = im[from + length / r * j * pitch]; \
            dft_##r(v_re, v_im); \
            next_re[to] = v_re[0], next_im[to] = v_im[0]; \
            _Pragma("unroll") for (int k = 1; k < r; k++) { \
                const PAIR w = roots[p * inner * k]; \
                const int at = to + inner * k * pitch; \
                next_re[at] = v_re[k] * w.x - v_im[k] * w.y, next_im[at] = v_re[k] * w.y + v_im[k] * w.x; \
            } \
        } \
        break;

// stages: radices, 4 bits each. For the inverse transform, swapped exchanges real and imaginary parts on both ends.
// read_by_lane, write_by_lane: whether neighboring lanes, rather than neighboring elements, are near in memory.
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void transform_lanes(__global const PAIR *restrict x, __global PAIR *restrict y, __global const PAIR *restrict roots,
                     __global const PAIR *restrict fine, const REAL scale, const int swapped, const int length,
                     const long stages, const int column_bits, const long rows, const long lanes_of_row,
                     const long tiles, const long stride, const int unit, const int read_by_lane,
                     const int write_by_lane, const int has_roots) {
    __local V held[4][CAPACITY / VECTOR];
    __local long reads[MAX_LANES], writes[MAX_LANES];  // where lanes begin in x and y; -1: there is no such lane
    __local int turns[MAX_LANES];
    __local V *re = held[0], *im = held[1], *next_re = held[2], *next_im = held[3];
    const int me = get_local_id(0), columns = 1 << column_bits, lanes = columns * VECTOR;
    const int pitch = WG > 1 ? columns | 1 : columns, lane_pitch = pitch * VECTOR;  // odd, against bank conflicts
    const long g = get_group_id(0);

    const long first = tiles ? g % tiles * lanes : g * lanes;  // lane of a row, or of all rows
    for (int lane = me; lane < lanes; lane += WG) {
        const long row = tiles ? g / tiles : (first + lane) / lanes_of_row;
        const long c = tiles ? first + lane : (first + lane) % lanes_of_row;
        const int is_there = row < rows && c < lanes_of_row;
        const long begin = row * lanes_of_row * length + c, p = c / stride;
        reads[lane] = is_there ? begin : -1;
        writes[lane] = begin + p * stride * (length - 1);
        turns[lane] = (int)p * unit;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if VECTOR > 1
    const int is_full = tiles && first + lanes <= lanes_of_row;
    if (is_full) {
        const __global REAL *from = (const __global REAL *)(x + reads[0]);
        for (int j = 0; j < length; j++, from += 2 * lanes_of_row) {
            const V low = *(const __global Parts *)from, high = *(const __global Parts *)(from + VECTOR);
            V even, odd;
            even.lo = low.even, even.hi = high.even, odd.lo = low.odd, odd.hi = high.odd;
            re[j] = swapped ? odd : even, im[j] = swapped ? even : odd;
        }
    } else
#endif
    {
        const float per_length = 1.0f / length;
        for (int e = me; e < length * lanes; e += WG) {
            const int quotient = (int)((e + 0.5f) * per_length);
            const int lane = read_by_lane ? e & (lanes - 1) : quotient;
            const int j = read_by_lane ? (e >> column_bits) / VECTOR : e - quotient * length;
            const PAIR v = reads[lane] < 0 ? (PAIR)(0, 0) : x[reads[lane] + j * lanes_of_row];
            ((__local REAL *)re)[j * lane_pitch + lane] = swapped ? v.y : v.x;
            ((__local REAL *)im)[j * lane_pitch + lane] = swapped ? v.x : v.y;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    int inner = 1;
    for (long left = stages; left; left >>= 4) {
        const float per_inner = 1.0f / inner;
        switch ((int)(left & 15)) {
            STAGE(2)
            STAGE(3)
            STAGE(4)
            STAGE(5)
            STAGE(7)
            STAGE(8)
#if MAX_RADIX > 8
            STAGE(11)
            STAGE(13)
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        inner *= (int)(left & 15);
        __local V *was_re = re, *was_im = im;
        re = next_re, im = next_im;
        next_re = was_re, next_im = was_im;
    }

#if VECTOR > 1
    if (is_full && stride % VECTOR == 0) {  // all lanes have the same p
        __global REAL *to = (__global REAL *)(y + writes[0]);
        for (int k = 0; k < length; k++, to += 2 * stride) {
            const PAIR w = has_roots ? root_at(fine, turns[0] * k) * scale : (PAIR)(scale, 0);
            const V a = re[k] * w.x - im[k] * w.y, b = re[k] * w.y + im[k] * w.x;
            const V even = swapped ? b : a, odd = swapped ? a : b;
            Parts low, high;
            low.even = even.lo, low.odd = odd.lo, high.even = even.hi, high.odd = odd.hi;
            *(__global Parts *)to = low;
            *(__global Parts *)(to + VECTOR) = high;
        }
        return;
    }
#endif
    const float per_length = 1.0f / length;
    for (int e = me; e < length * lanes; e += WG) {
        const int quotient = (int)((e + 0.5f) * per_length);
        const int lane = write_by_lane ? e & (lanes - 1) : quotient;
        const int k = write_by_lane ? (e >> column_bits) / VECTOR : e - quotient * length;
        if (reads[lane] < 0) continue;
        PAIR v = (PAIR)(((__local REAL *)re)[k * lane_pitch + lane], ((__local REAL *)im)[k * lane_pitch + lane]);
        if (has_roots) v = times(v, root_at(fine, turns[lane] * k));
        y[writes[lane] + k * stride] = (swapped ? v.yx : v) * scale;
    }
}
