// One pass of a Fourier transform: a batch of short transforms, of `length` elements each. For GPUs see passes_gpu.cl.
//
// A transform of n elements is one pass, or several whose lengths multiply to n (Stockham's algorithm: no reordering is
// left). The elements of a short transform lie `lanes_of_row` apart; lane c of a row begins at its element c. A pass
// writes element k of lane c = p * stride + q to p * stride * length + k * stride + q, multiplied by the root
// exp(-2 pi i p k unit / n).
//
// Arrays   x, y      rows of x_length and y_length elements: the first pass reads the form SOURCE of n numbers, the last one
//                    writes the form RESULT; all others complex numbers
//          roots     (length) exp(-2 pi i t / length)
//          fine      (2^FINE_BITS) exp(-2 pi i t / n), then coarse: exp(-2 pi i t 2^FINE_BITS / n)
//          before    (n) weights of the numbers of a row of x
//          after     (y_length) weights of the elements of a row of y, in the last pass
// Launch   a work-item for each VECTOR lanes: `tiles` for each row, or for all lanes of all rows if tiles is 0
// Params   see stages.cl, forms.cl and factors.cl; neither form is HALF_OF_PAIRS

#include "butterflies.cl"
#include "stages.cl"
#include "forms.cl"
#include "factors.cl"

typedef V Parts __attribute__((aligned(sizeof(REAL))));  // of VECTOR / 2 complex numbers, anywhere in memory

// stages: radices, 4 bits each. swaps: see factors.cl; the inverse transform exchanges real and imaginary parts on both ends.
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void transform_lanes(__global const X *restrict x, __global Y *restrict y, __global const PAIR *restrict roots,
                     __global const PAIR *restrict fine, __global const PAIR *restrict before,
                     __global const PAIR *restrict after, const REAL scale, const int length, const long stages,
                     const int swaps, const long rows, const long lanes_of_row, const long tiles, const long stride,
                     const int unit, const int has_roots, const long n, const long x_length, const long y_length) {
    __local V held[HELD];
    __local long rows_of[VECTOR], reads[VECTOR], writes[VECTOR];  // lanes' rows, or -1; where they begin in rows of x and y
    __local int turns[VECTOR];
    __local V *re = held, *im = held + SPACE;
    const long g = get_group_id(0), first = tiles ? g % tiles * VECTOR : g * VECTOR;  // lane of a row, or of all rows
    for (int lane = 0; lane < VECTOR; lane++) {
        const long row = tiles ? g / tiles : (first + lane) / lanes_of_row;
        const long c = tiles ? first + lane : (first + lane) % lanes_of_row;
        const long p = c / stride;
        rows_of[lane] = row < rows && c < lanes_of_row ? row : -1;
        reads[lane] = c;
        writes[lane] = c + p * stride * (length - 1);
        turns[lane] = (int)p * unit;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int is_full = tiles && first + VECTOR <= lanes_of_row;
    if (is_full && SOURCE == COMPLEX && !BEFORE) {
        const int swapped = swaps & ON_READ;
        const __global REAL *from = (const __global REAL *)(x + rows_of[0] * x_length + reads[0]);
        for (int j = 0; j < length; j++, from += 2 * lanes_of_row) {
            const V low = *(const __global Parts *)from, high = *(const __global Parts *)(from + VECTOR);
            V even, odd;
            even.lo = low.even, even.hi = high.even, odd.lo = low.odd, odd.hi = high.odd;
            re[j] = swapped ? odd : even, im[j] = swapped ? even : odd;
        }
    } else {
        for (int j = 0; j < length; j++) {
            for (int lane = 0; lane < VECTOR; lane++) {
                const long row = rows_of[lane], i = reads[lane] + j * lanes_of_row;
                const PAIR v = row < 0 ? (PAIR)(0, 0) : read_element(x + row * x_length, before, i, n, swaps);
                ((__local REAL *)(re + j))[lane] = v.x;
                ((__local REAL *)(im + j))[lane] = v.y;
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    re = held + transform_held(held, 0, roots, length, stages);
    im = re + SPACE;
    if (is_full && stride % VECTOR == 0 && RESULT == COMPLEX && !AFTER) {  // all lanes have the same p
        const int swapped = swaps & ON_WRITE;
        __global REAL *to = (__global REAL *)(y + rows_of[0] * y_length + writes[0]);
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
    for (int k = 0; k < length; k++) {
        for (int lane = 0; lane < VECTOR; lane++) {
            const long row = rows_of[lane];
            if (row < 0) continue;
            PAIR v = (PAIR)(((__local REAL *)(re + k))[lane], ((__local REAL *)(im + k))[lane]);
            if (has_roots) v = times(v, root_at(fine, turns[lane] * k));
            write_element(y + row * y_length, after, writes[lane] + k * stride, y_length, swaps, v * scale);
        }
    }
}
