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
    EACH_ITEM(item, g->images * g->out[0] * g->out[1] * g->out[2] * g->blocks) {
        Place place;
        find_place(&place, g, g->out, item);
        ACC most[WIDE], v[WIDE];
        INDEX first[WIDE];
        int begun = 0;
        EACH_CHANNEL most[c] = -INFINITY, first[c] = 0;  // of a window that has padding only
        EACH_ELEMENT(place) {
            TAKE(x, FROM(g->length, place), v);
            const INDEX tap = TAP;
            EACH_CHANNEL {
                const int more = !begun || v[c] > most[c] || (v[c] != v[c] && most[c] == most[c]);
                most[c] = more ? v[c] : most[c];
                first[c] = more ? tap : first[c];
            }
            begun = 1;
        }
        GIVE(y, item * WIDE, most);
        EACH_CHANNEL which[item * WIDE + c] = first[c];
    }
}

__kernel void max_pool_backward(__global const T *restrict g_out, __global const INDEX *restrict which,
                                __global T *restrict dx, const long each, const Geometry geometry) {
    const Geometry *g = &geometry;
    EACH_ITEM(item, g->images * g->length[0] * g->length[1] * g->length[2] * g->blocks) {
        Place place;
        find_place(&place, g, g->length, item);
        ACC sum[WIDE], v[WIDE];
        EACH_CHANNEL sum[c] = 0;
        EACH_WINDOW(place) {
            const long from = FROM(g->out, place);
            const INDEX tap = TAP;
            TAKE(g_out, from, v);
            EACH_CHANNEL sum[c] += which[from + c] == tap ? v[c] : 0;
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
    EACH_ITEM(item, g->images * g->out[0] * g->out[1] * g->out[2] * g->blocks) {
        Place place;
        find_place(&place, g, g->out, item);
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
    EACH_ITEM(item, g->images * g->length[0] * g->length[1] * g->length[2] * g->blocks) {
        Place place;
        find_place(&place, g, g->length, item);
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
