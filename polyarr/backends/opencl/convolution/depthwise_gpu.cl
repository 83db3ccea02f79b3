// Depthwise convolution (each channel has its own filter) and the gradient of the filters, for GPUs. A work-item
// computes POSITIONS neighbors along the last axis of the output; with stride 1 it reads each input element once for
// all of them.
//
// Arrays   as in depthwise.cl, but filters (channels, filter elements) and partials (parts, channels, filter elements)
// Launch   depthwise_positions: global (blocks of WIDE channels * runs of POSITIONS, other positions of an image,
//          images)
//          depthwise_sums: global (LANES * groups of blocks, SLICES * parts, 1 if HOLDS, else TAPS_0 * TAPS_1), local
//          (LANES, SLICES, 1); a part is rows_each rows of output positions, which SLICES work-items share
// Params   those of spatial.cl
//          POSITIONS               output positions per work-item
//          TAPS_0, TAPS_1, TAPS    filter elements along each axis
//          HOLDS                   1 if a work-item holds all elements of its filters (or sums for all of them) in
//                                  registers
//          SLIDES                  1 if stride and dilation along the last axis are 1
//          TURNED                  1 to apply the filter reversed
//          LANES, SLICES           work-items as above, powers of two
#include "spatial.cl"

#define UNROLL _Pragma("unroll")
#define ELEMENTS (TAPS_0 * TAPS_1 * TAPS)
#if HOLDS
#define UNROLL_HELD UNROLL
#define OTHERS (TAPS_0 * TAPS_1)
#else
#define UNROLL_HELD
#define OTHERS 1
#endif

// EACH_TAP_OF_RUN(x, line) STATEMENTS END_TAP_OF_RUN: for output positions p of the run that begins at `first` and
// filter elements t, run the statements with u, the WIDE channels of the input element that they share; `there` is 0 if
// it is in the padding. With SLIDES, each input element is read once. Reads are clamped instead of predicated, so that
// no read waits for a branch.
#define READ_AT(x, line, i) LOAD_CHANNELS(x, ((line + MAX(MIN(i, g->length[2] - 1), 0)) * g->blocks + block) * WIDE, u)
#if SLIDES
#define EACH_TAP_OF_RUN(x, line) \
    UNROLL for (int j = 0; j < POSITIONS + TAPS - 1; j++) { \
        const int i2 = first - g->before[2] + j, there = is_inside(g, 2, i2); \
        ACC u[WIDE]; \
        READ_AT(x, line, i2); \
        UNROLL for (int t = 0; t < TAPS; t++) { const int p = j - t; if (p >= 0 && p < POSITIONS) {
#else
#define EACH_TAP_OF_RUN(x, line) \
    UNROLL for (int p = 0; p < POSITIONS; p++) { \
        UNROLL for (int t = 0; t < TAPS; t++) { { \
            const int i2 = element_of(g, 2, first + p, t), there = is_inside(g, 2, i2); \
            ACC u[WIDE]; \
            READ_AT(x, line, i2);
#endif
#define END_TAP_OF_RUN }}}

__kernel void depthwise_positions(__global const T *restrict x, __global const T *restrict filters,
                                  __global T *restrict y, const Geometry geometry) {
    const Geometry *g = &geometry;
    const uint blocks = g->blocks, me = get_global_id(0), row = get_global_id(1);
    const int block = me % blocks, first = me / blocks * POSITIONS, o0 = row / g->out[1], o1 = row % g->out[1];
    const long image = get_global_id(2);
    if (first >= g->out[2]) return;
    filters += (long)block * WIDE * ELEMENTS;
#if HOLDS
    ACC held[ELEMENTS * WIDE];
    UNROLL for (int i = 0; i < ELEMENTS; i++) LOAD_CHANNELS(filters, i * WIDE, (held + i * WIDE));
#define FILTER(i) held[i]
#else
#define FILTER(i) LOAD(filters, i)
#endif
    ACC sum[POSITIONS][WIDE];
    UNROLL for (int p = 0; p < POSITIONS; p++) EACH_CHANNEL sum[p][c] = 0;
    UNROLL_HELD for (int k0 = 0; k0 < TAPS_0; k0++) {
        const int i0 = element_of(g, 0, o0, k0);
        if (!is_inside(g, 0, i0)) continue;
        UNROLL_HELD for (int k1 = 0; k1 < TAPS_1; k1++) {
            const int i1 = element_of(g, 1, o1, k1);
            if (!is_inside(g, 1, i1)) continue;
            const long line = ((image * g->length[0] + i0) * g->length[1] + i1) * g->length[2];
            ACC w[TAPS][WIDE];
            UNROLL for (int t = 0; t < TAPS; t++) {
                const int element = (k0 * TAPS_1 + k1) * TAPS + t;
                EACH_CHANNEL w[t][c] = FILTER(c * ELEMENTS + (TURNED ? ELEMENTS - 1 - element : element));
            }
            EACH_TAP_OF_RUN(x, line)
                EACH_CHANNEL sum[p][c] = there ? u[c] * w[t][c] + sum[p][c] : sum[p][c];
            END_TAP_OF_RUN
        }
    }
    const long to = ((image * g->out[0] + o0) * g->out[1] + o1) * g->out[2] + first;
    UNROLL for (int p = 0; p < POSITIONS; p++)
        if (first + p < g->out[2]) STORE_CHANNELS(y, ((to + p) * g->blocks + block) * WIDE, sum[p]);
}

__kernel __attribute__((reqd_work_group_size(LANES, SLICES, 1)))
void depthwise_sums(__global const T *restrict g_out, __global const T *restrict x, __global ACC *restrict partials,
                    const long rows_each, const Geometry geometry) {
    __local ACC shared[(SLICES / 2 ? SLICES / 2 : 1) * LANES * WIDE];
    const Geometry *g = &geometry;
    const int block = get_global_id(0), lane = get_local_id(0), slice = get_local_id(1);
    const long part = get_group_id(1), rows = g->images * g->out[0] * g->out[1];
    const long begin = part * rows_each, end = block < g->blocks ? MIN(begin + rows_each, rows) : begin;
    ACC sum[OTHERS][TAPS][WIDE];
    UNROLL for (int o = 0; o < OTHERS; o++) UNROLL for (int t = 0; t < TAPS; t++) EACH_CHANNEL sum[o][t][c] = 0;
    for (long row = begin + slice; row < end; row += SLICES) {
        const uint in_images = row / g->out[1];
        const int o1 = row % g->out[1], o0 = in_images % g->out[0];
        const long image = in_images / g->out[0];
        for (int first = 0; first < g->out[2]; first += POSITIONS) {
            ACC v[POSITIONS][WIDE];
            UNROLL for (int p = 0; p < POSITIONS; p++)
                LOAD_CHANNELS(g_out, ((row * g->out[2] + MIN(first + p, g->out[2] - 1)) * g->blocks + block) * WIDE,
                              v[p]);
            UNROLL for (int o = 0; o < OTHERS; o++) {
                const int tap = o + get_group_id(2), i0 = element_of(g, 0, o0, tap / TAPS_1);
                const int i1 = element_of(g, 1, o1, tap % TAPS_1);
                if (!is_inside(g, 0, i0) || !is_inside(g, 1, i1)) continue;
                const long line = ((image * g->length[0] + i0) * g->length[1] + i1) * g->length[2];
                EACH_TAP_OF_RUN(x, line)
                    const int counts = there & (first + p < g->out[2]);
                    EACH_CHANNEL sum[o][t][c] = counts ? u[c] * v[p][c] + sum[o][t][c] : sum[o][t][c];
                END_TAP_OF_RUN
            }
        }
    }
    UNROLL for (int o = 0; o < OTHERS; o++) UNROLL for (int t = 0; t < TAPS; t++) {
        for (int half_size = SLICES / 2; half_size > 0; half_size /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            EACH_CHANNEL if (slice >= half_size && slice < 2 * half_size)
                shared[((slice - half_size) * LANES + lane) * WIDE + c] = sum[o][t][c];
            barrier(CLK_LOCAL_MEM_FENCE);
            EACH_CHANNEL if (slice < half_size) sum[o][t][c] += shared[(slice * LANES + lane) * WIDE + c];
        }
        const long element = (o + get_group_id(2)) * TAPS + t;
        if (slice == 0 && block < g->blocks)
            EACH_CHANNEL partials[((part * g->blocks + block) * WIDE + c) * ELEMENTS + element] = sum[o][t][c];
    }
}
