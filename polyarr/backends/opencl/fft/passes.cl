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
// Params   MAX_LANES     transforms of a group
//          FINE_BITS     see fine
//          Others: see stages.cl

#include "stages.cl"

typedef V Parts __attribute__((aligned(sizeof(REAL))));  // of VECTOR / 2 complex numbers, anywhere in memory

// exp(-2 pi i t / n)
static inline PAIR root_at(__global const PAIR *restrict fine, int t) {
    return times(fine[(1 << FINE_BITS) + (t >> FINE_BITS)], fine[t & ((1 << FINE_BITS) - 1)]);
}

// stages: radices, 4 bits each. For the inverse transform, swapped exchanges real and imaginary parts on both ends.
// read_by_lane, write_by_lane: whether neighboring lanes, rather than neighboring elements, are near in memory.
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void transform_lanes(__global const PAIR *restrict x, __global PAIR *restrict y, __global const PAIR *restrict roots,
                     __global const PAIR *restrict fine, const REAL scale, const int swapped, const int length,
                     const long stages, const int column_bits, const long rows, const long lanes_of_row,
                     const long tiles, const long stride, const int unit, const int read_by_lane,
                     const int write_by_lane, const int has_roots) {
    __local V held[HELD];
    __local long reads[MAX_LANES], writes[MAX_LANES];  // where lanes begin in x and y; -1: there is no such lane
    __local int turns[MAX_LANES];
    __local V *re = held, *im = held + SPACE;
    const int me = get_local_id(0), lanes = VECTOR << column_bits;
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
            ((__local REAL *)re)[SLOT(j, lane)] = swapped ? v.y : v.x;
            ((__local REAL *)im)[SLOT(j, lane)] = swapped ? v.x : v.y;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    re = held + transform_held(held, 0, roots, length, stages, column_bits, me);
    im = re + SPACE;
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
        PAIR v = (PAIR)(((__local REAL *)re)[SLOT(k, lane)], ((__local REAL *)im)[SLOT(k, lane)]);
        if (has_roots) v = times(v, root_at(fine, turns[lane] * k));
        y[writes[lane] + k * stride] = (swapped ? v.yx : v) * scale;
    }
}
