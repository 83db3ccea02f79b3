// Strided spreading of images with channels last: element o goes to position o * stride - before along each axis.
//
// Arrays   x (images, input positions, channels), y (images, output positions, channels) of T, row-major
// Launch   at least one work-item per `each` consecutive blocks of WIDE channels: of y for spread, of x for lay
// Params   those of spatial.cl
#include "spatial.cl"

// Gather: every element of y is written, with zeros between and around the elements of x.
__kernel void spread(__global const T *restrict x, __global T *restrict y, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->length) {
        const int i = window_of(g, 0, position.at[0], 0), j = window_of(g, 1, position.at[1], 0);
        const int k = window_of(g, 2, position.at[2], 0);
        ACC v[WIDE];
        EACH_CHANNEL v[c] = 0;
        if (i >= 0 && j >= 0 && k >= 0)
            LOAD_CHANNELS(x, start_of(g, position.image, g->out, i, j, k, position.block), v);
        STORE_CHANNELS(y, item * WIDE, v);
    }
}

// Scatter: only the elements of y that come from x are written.
__kernel void lay(__global const T *restrict x, __global T *restrict y, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->out) {
        const int i = element_of(g, 0, position.at[0], 0), j = element_of(g, 1, position.at[1], 0);
        const int k = element_of(g, 2, position.at[2], 0);
        ACC v[WIDE];
        LOAD_CHANNELS(x, item * WIDE, v);
        STORE_CHANNELS(y, start_of(g, position.image, g->length, i, j, k, position.block), v);
    }
}
