// Images with channels last that are spread over larger ones: element o goes to o * stride - before, along each axis.
//
// Arrays   x (images, windows, channels), y (images, lengths, channels), row-major
// Launch   global as many work-items as there are shares of `each` neighbouring blocks of WIDE channels, of y for spread
//          and of x for lay
// Params   spatial.cl's
#include "spatial.cl"

// With zeros in between and around.
__kernel void spread(__global const T *restrict x, __global T *restrict y, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_PLACE(item, place, g->length) {
        const int i = window_of(g, 0, place.at[0], 0), j = window_of(g, 1, place.at[1], 0);
        const int k = window_of(g, 2, place.at[2], 0);
        ACC v[WIDE];
        EACH_CHANNEL v[c] = 0;
        if (i >= 0 && j >= 0 && k >= 0) TAKE(x, start_of(g, place.image, g->out, i, j, k, place.block), v);
        GIVE(y, item * WIDE, v);
    }
}

// Of which only these are written.
__kernel void lay(__global const T *restrict x, __global T *restrict y, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_PLACE(item, place, g->out) {
        const int i = element_of(g, 0, place.at[0], 0), j = element_of(g, 1, place.at[1], 0);
        const int k = element_of(g, 2, place.at[2], 0);
        ACC v[WIDE];
        TAKE(x, item * WIDE, v);
        GIVE(y, start_of(g, place.image, g->length, i, j, k, place.block), v);
    }
}
