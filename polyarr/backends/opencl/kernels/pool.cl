// Pools over windows of images with channels last, and their gradients.
//
// Arrays   x, dx (images, lengths, channels), y, g (images, windows, channels), all row-major
//          which (images, windows, channels) of INDEX: the first element of each window that is the largest, or a nan
// Launch   global as many work-items as there are shares of `each` neighbouring blocks of WIDE channels
// Params   spatial.cl's | INDEX an unsigned type
#include "spatial.cl"
#ifndef INDEX
#error "pool.cl needs INDEX"
#endif

__kernel void max_pool(__global const T *restrict x, __global T *restrict y, __global INDEX *restrict which,
                       const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_PLACE(item, place, g->out) {
        const int k0 = first_inside(g, 0, place.at[0]), k1 = first_inside(g, 1, place.at[1]);
        const int k2 = first_inside(g, 2, place.at[2]), begun = TAP;  // the largest where all are -inf
        ACC most[WIDE], v[WIDE];
        int first[WIDE], more[WIDE];
        EACH_CHANNEL most[c] = -INFINITY, first[c] = begun;
        EACH_ELEMENT(place) {
            const int tap = TAP;
            TAKE(x, FROM(g->length, place), v);
            // a nan is more, and then nothing; in this form, and in loops of their own, these become vectors
            EACH_CHANNEL more[c] = (most[c] == most[c]) & !(v[c] <= most[c]);
            EACH_CHANNEL most[c] = more[c] ? v[c] : most[c];
            EACH_CHANNEL first[c] = more[c] ? tap : first[c];
        }
        GIVE(y, item * WIDE, most);
        EACH_CHANNEL which[item * WIDE + c] = first[c];
    }
}

__kernel void max_pool_backward(__global const T *restrict g_out, __global const INDEX *restrict which,
                                __global T *restrict dx, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_PLACE(item, place, g->length) {
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_WINDOW(place) {
            const long from = FROM(g->out, place);
            const int tap = TAP;
            int found[WIDE];
            TAKE(g_out, from, v);
            EACH_CHANNEL found[c] = which[from + c];
            EACH_CHANNEL sum[c] += found[c] == tap ? v[c] : 0;
        }
        GIVE(dx, item * WIDE, sum);
    }
}

// How many elements of a window count.
INLINE ACC count_of(const Geometry *g, const int *at) {
    ACC count = 1;
    for (int a = 0; a < 3; a++) {
        int inside = 0;
        for (int k = 0; k < g->taps[a]; k++) {
            const int i = at[a] * g->stride[a] - g->before[a] + k * g->dilation[a];
            inside += -g->counted[a] <= i && i < g->length[a] + g->counted[3 + a];
        }
        count *= inside;
    }
    return count;
}

__kernel void mean_pool(__global const T *restrict x, __global T *restrict y, const ACC divisor, const long each,
                        const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_PLACE(item, place, g->out) {
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_ELEMENT(place) {
            TAKE(x, FROM(g->length, place), v);
            EACH_CHANNEL sum[c] += v[c];
        }
        const ACC count = divisor != 0 ? divisor : count_of(g, place.at);
        EACH_CHANNEL sum[c] /= count;
        GIVE(y, item * WIDE, sum);
    }
}

__kernel void mean_pool_backward(__global const T *restrict g_out, __global T *restrict dx, const ACC divisor,
                                 const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_PLACE(item, place, g->length) {
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_WINDOW(place) {
            const int at[3] = {p0, p1, p2};
            const ACC count = divisor != 0 ? divisor : count_of(g, at);
            TAKE(g_out, FROM(g->out, place), v);
            EACH_CHANNEL sum[c] += v[c] / count;
        }
        GIVE(dx, item * WIDE, sum);
    }
}
