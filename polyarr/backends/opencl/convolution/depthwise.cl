// Depthwise convolution (each channel has its own filter) and its gradients, for what depthwise_gpu.cl does not take:
// long filters, many positions, and gradients of x with a stride.
//
// Arrays   x, dx (images, input positions, channels), y, g_out (images, output positions, channels), row-major
//          filters (filter elements, channels)
//          partials (parts, filter elements, channels) of ACC: the weight gradient over one part of the output
//          positions
// Launch   depthwise, depthwise_input_gradient: one work-item per `each` consecutive blocks of WIDE channels of the
//          result
//          depthwise_weight_gradient: at least blocks of channels * filter elements * parts work-items
// Params   those of spatial.cl
#include "spatial.cl"

__kernel void depthwise(__global const T *restrict x, __global const T *restrict filters, __global T *restrict y,
                        const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->out) {
        ACC sum[WIDE], v[WIDE], w[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_ELEMENT(position) {
            LOAD_CHANNELS(x, FROM(g->length, position), v);
            LOAD_CHANNELS(filters, (TAP * g->blocks + position.block) * WIDE, w);
            EACH_CHANNEL sum[c] = v[c] * w[c] + sum[c];
        }
        STORE_CHANNELS(y, item * WIDE, sum);
    }
}

__kernel void depthwise_input_gradient(__global const T *restrict g_out, __global const T *restrict filters,
                                       __global T *restrict dx, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->length) {
        ACC sum[WIDE], v[WIDE], w[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_WINDOW(position) {
            LOAD_CHANNELS(g_out, FROM(g->out, position), v);
            LOAD_CHANNELS(filters, (TAP * g->blocks + position.block) * WIDE, w);
            EACH_CHANNEL sum[c] = v[c] * w[c] + sum[c];
        }
        STORE_CHANNELS(dx, item * WIDE, sum);
    }
}

// The gradient of one filter element over one part of the output rows.
__kernel void depthwise_weight_gradient(__global const T *restrict g_out, __global const T *restrict x,
                                        __global ACC *restrict partials, const long parts, const Geometry geometry) {
    const Geometry *g = &geometry;
    const long rows = g->images * g->out[0] * g->out[1], me = get_global_id(0);
    const int elements = g->taps[0] * g->taps[1] * g->taps[2], block = me % g->blocks, tap = me / g->blocks % elements;
    const long part = me / g->blocks / elements;
    if (part >= parts) return;
    const int k0 = tap / (g->taps[1] * g->taps[2]), k1 = tap / g->taps[2] % g->taps[1], k2 = tap % g->taps[2];
    ACC sum[WIDE], v[WIDE], w[WIDE];
    EACH_CHANNEL sum[c] = 0;
    for (long row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
        const int o1 = row % g->out[1], o0 = row / g->out[1] % g->out[0];
        const long image = row / g->out[1] / g->out[0];
        const int i0 = element_of(g, 0, o0, k0), i1 = element_of(g, 1, o1, k1);
        if (!is_inside(g, 0, i0) || !is_inside(g, 1, i1)) continue;
        for (int o2 = 0; o2 < g->out[2]; o2++) {
            const int i2 = element_of(g, 2, o2, k2);
            if (!is_inside(g, 2, i2)) continue;
            LOAD_CHANNELS(x, start_of(g, image, g->length, i0, i1, i2, block), v);
            LOAD_CHANNELS(g_out, start_of(g, image, g->out, o0, o1, o2, block), w);
            EACH_CHANNEL sum[c] = v[c] * w[c] + sum[c];
        }
    }
    EACH_CHANNEL partials[me * WIDE + c] = sum[c];
}
