// One pass of a Fourier transform on a GPU: as passes.cl, where arrays and numbers are explained.
//
// Arrays   roots     see stages_gpu.cl
// Launch   groups of WG work-items: `tiles` for each row, or for all lanes of all rows if tiles is 0
// Params   see stages_gpu.cl, forms.cl and factors.cl

#include "butterflies.cl"
#include "stages_gpu.cl"
#include "forms.cl"
#include "factors.cl"

static inline long quotient(long a, long b) { return (a | b) >> 31 ? a / b : (uint)a / (uint)b; }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void transform_lanes(__global const X *restrict x, __global Y *restrict y, __global const PAIR *restrict roots,
                     __global const PAIR *restrict fine, __global const PAIR *restrict before,
                     __global const PAIR *restrict after, const REAL scale, const int swaps, const long rows,
                     const long lanes_of_row, const long tiles, const long stride, const int unit, const int has_roots,
                     const long n, const long x_length, const long y_length) {
    __local REAL held[HELD];
    REAL re[REGISTERS], im[REGISTERS];
    int lane = LANE(READ_BY_LANE), item = ITEM(READ_BY_LANE);
    const int last_lane = LANE(WRITE_BY_LANE), last_item = ITEM(WRITE_BY_LANE);
    const long g = get_group_id(0), row_of_group = tiles ? quotient(g, tiles) : 0;
    const long first = (g - row_of_group * tiles) * LANES;  // lane of a row, or of all rows

    // Row and lane of it; a lane that is not there reads another one.
    long row = tiles ? row_of_group : quotient(first + lane, lanes_of_row);
    long c = first + lane - (tiles ? 0 : row * lanes_of_row);
    if (row >= rows || c >= lanes_of_row) row = c = 0;
    x += row * x_length;
    OWN(FIRST, item) ELEMENTS(FIRST, j) {
        const PAIR v = read_element(x, before, c + NUMBER(FIRST, j) * lanes_of_row, n, swaps);
        re[q * FIRST + j] = v.x, im[q * FIRST + j] = v.y;
    }
    STAGES
    row = tiles ? row_of_group : quotient(first + lane, lanes_of_row);
    c = first + lane - (tiles ? 0 : row * lanes_of_row);
    if (row >= rows || c >= lanes_of_row) return;

    const long p = quotient(c, stride);
    const int turn = (int)p * unit;
    y += row * y_length;
    PAIR steps[4];  // roots of neighbors, of which every fourth is read
    if (has_roots) {
#pragma unroll
        for (int k = 1; k < MIN(LAST, 4); k++) steps[k] = root_at(fine, turn * COUNT(LAST) * k);
    }
    OWN(LAST, item) {
        PAIR root;
        ELEMENTS(LAST, k) {
            PAIR v = (PAIR)(re[q * LAST + k], im[q * LAST + k]);
            if (has_roots) {
                if (k % 4 == 0) root = root_at(fine, turn * NUMBER(LAST, k));
                v = times(v, k % 4 ? times(root, steps[k % 4]) : root);
            }
            const long i = c + p * stride * (LENGTH - 1) + NUMBER(LAST, k) * stride;
            write_element(y, after, i, y_length, swaps, v * scale);
        }
    }
}
