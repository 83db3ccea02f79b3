// Max pooling and mean pooling of images with channels last, forward and backward.
//
// Arrays   x, dx (images, input positions, channels), y, g_out (images, output positions, channels) of T, row-major
//          which (images, output positions, channels) of INDEX: the first element of each window that is the largest or
//          nan
// Launch   at least one work-item per `each` consecutive blocks of WIDE channels of the result
// Params   those of spatial.cl
//          INDEX    an unsigned type
#include "spatial.cl"

__kernel void max_pool(__global const T *restrict x, __global T *restrict y, __global INDEX *restrict which,
                       const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->out) {
        const int k0 = first_inside(g, 0, position.at[0]), k1 = first_inside(g, 1, position.at[1]);
        const int k2 = first_inside(g, 2, position.at[2]), begun = TAP;  // the largest where all are -inf
        ACC most[WIDE], v[WIDE];
        int first[WIDE], more[WIDE];
        EACH_CHANNEL most[c] = -INFINITY, first[c] = begun;
        EACH_ELEMENT(position) {
            const int tap = TAP;
            LOAD_CHANNELS(x, FROM(g->length, position), v);
            // nan replaces any maximum and is never replaced; branch-free, in separate loops, so that compilers
            // vectorize
            EACH_CHANNEL more[c] = (most[c] == most[c]) & !(v[c] <= most[c]);
            EACH_CHANNEL most[c] = more[c] ? v[c] : most[c];
            EACH_CHANNEL first[c] = more[c] ? tap : first[c];
        }
        STORE_CHANNELS(y, item * WIDE, most);
        EACH_CHANNEL which[item * WIDE + c] = first[c];
    }
}

__kernel void max_pool_backward(__global const T *restrict g_out, __global const INDEX *restrict which,
                                __global T *restrict dx, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->length) {
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_WINDOW(position) {
            const long from = FROM(g->out, position);
            const int tap = TAP;
            int found[WIDE];
            LOAD_CHANNELS(g_out, from, v);
            EACH_CHANNEL found[c] = which[from + c];
            EACH_CHANNEL sum[c] += found[c] == tap ? v[c] : 0;
        }
        STORE_CHANNELS(dx, item * WIDE, sum);
    }
}

// The number of elements of a window that count for the mean, along one axis and in total.
INLINE int count_along(const Geometry *g, const int *at, int a) {
    int inside = 0;
    for (int k = 0; k < g->taps[a]; k++) {
        const int i = element_of(g, a, at[a], k);
        inside += -g->counted[a] <= i && i < g->length[a] + g->counted[3 + a];
    }
    return inside;
}
INLINE ACC count_of(const Geometry *g, const int *at) {
    return (ACC)count_along(g, at, 0) * count_along(g, at, 1) * count_along(g, at, 2);
}

__kernel void mean_pool(__global const T *restrict x, __global T *restrict y, const ACC divisor, const long each,
                        const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->out) {
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_ELEMENT(position) {
            LOAD_CHANNELS(x, FROM(g->length, position), v);
            EACH_CHANNEL sum[c] += v[c];
        }
        const ACC count = divisor != 0 ? divisor : count_of(g, position.at);
        EACH_CHANNEL sum[c] /= count;
        STORE_CHANNELS(y, item * WIDE, sum);
    }
}

__kernel void mean_pool_backward(__global const T *restrict g_out, __global T *restrict dx, const ACC divisor,
                                 const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_POSITION(item, position, g->length) {
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_WINDOW(position) {
            const int at[3] = {p0, p1, p2};
            const ACC count = divisor != 0 ? divisor : count_of(g, at);
            LOAD_CHANNELS(g_out, FROM(g->out, position), v);
            EACH_CHANNEL sum[c] += v[c] / count;
        }
        STORE_CHANNELS(dx, item * WIDE, sum);
    }
}
