// Convolution in groups of few channels, depthwise included, and its gradients, for CPUs. A work-item computes
// POSITIONS neighbors along the last axis at once for WIDE channels, so that each filter element is read once for all
// of them and sums stay in registers; x is neither padded nor copied.
//
// The "source" is x, or g_out for the gradient of x; the "result" is y or dx. Both have channels last; a group has
// SOURCES and RESULTS channels of them.
//
// Arrays   x, dx (images, input positions, channels), y, g_out (images, output positions, outputs), row-major
//          filters, and sums of weight gradients of ACC (parts of the output positions, filter elements):
//          (blocks of WIDE result channels, filter elements, SOURCES, WIDE) if PACKED, else (filter elements, channels),
//          where the last block overlaps the one before
// Launch   grouped: one work-item per `each` runs of POSITIONS positions of the result; all runs for blocks_each blocks
//          of channels, whose filters stay in a cache, precede those for the next ones
//          grouped_weight_gradient: one work-item per part and blocks_each blocks of channels
// Params   T, ACC, LOAD, STORE     a float dtype: see prelude.cl
//          WIDE                    channels of a block: 2 to 16, a power of two
//          MOVES_WORDS             0
//          IS_PLAIN                1 if T is ACC
//          SOURCES, RESULTS        as above: both 1, both 2, both 4, or RESULTS a multiple of WIDE
//          PACKED                  as above; 0 for depthwise convolutions only
//          GRADIENT                0: `grouped`, whose result is y; 1: `grouped`, whose result is dx; 2:
//                                  `grouped_weight_gradient`
//          POSITIONS               positions of the result (grouped), or of the output (gradient of the weight), per run
//          TAPS, HELD              filter elements along the last axis and source channels whose gradients are summed
//                                  in registers
#include "spatial.cl"

typedef PASTE(ACC, WIDE) vector __attribute__((aligned(4)));
#define UNROLL _Pragma("unroll")

INLINE vector load_block(__global const T *p) {
#if IS_PLAIN
    return *(__global const vector *)p;
#else
    ACC v[WIDE];
    EACH_CHANNEL v[c] = LOAD(p, c);
    return *(vector *)v;
#endif
}

INLINE void store_block(__global T *p, vector v) {
#if IS_PLAIN
    *(__global vector *)p = v;
#else
    EACH_CHANNEL STORE(p, c, ((ACC *)&v)[c]);
#endif
}

// Add the channels from `first` on; without PACKED those before it are the previous block's.
INLINE void add_block(__global ACC *p, vector v, int first) {
#if PACKED
    *(__global vector *)p += v;
#else
    EACH_CHANNEL if (c >= first) p[c] += ((ACC *)&v)[c];
#endif
}

// The WIDE numbers by which channel j of the groups of a block is multiplied; p is at the first of these groups.
INLINE vector source_of(__global const T *p, int j) {
#if RESULTS == 1
    return load_block(p);
#elif RESULTS == 2 && WIDE == 16
    return j ? load_block(p).s1133557799bbddff : load_block(p).s0022446688aaccee;
#elif RESULTS == 2
    return j ? load_block(p).s11335577 : load_block(p).s00224466;
#elif RESULTS == 4 && WIDE == 16
    const vector v = load_block(p);
    return j == 0 ? v.s000044448888cccc : j == 1 ? v.s111155559999dddd : j == 2 ? v.s22226666aaaaeeee
                                                                                : v.s33337777bbbbffff;
#elif RESULTS == 4
    const vector v = load_block(p);
    return j == 0 ? v.s00004444 : j == 1 ? v.s11115555 : j == 2 ? v.s22226666 : v.s33337777;
#else
    return LOAD(p, j);
#endif
}
#if RESULTS <= 4
#define UNROLL_SOURCES UNROLL
#else
#define UNROLL_SOURCES
#endif

// Along one axis: source positions first + u * step, multiplied by filter elements tap + u * every, for u < count.
typedef struct {
    int first, step, tap, every, count;
} Taps;

// Leave out the positions that are not in [0, length).
INLINE void keep_inside(Taps *t, int length) {
    const int first = t->step < 0 ? length - 1 - t->first : t->first, step = t->step < 0 ? -t->step : t->step;
    const int skipped = first < 0 ? (step - 1 - first) / step : 0;
    const int end = first < length ? MIN(t->count, (length - 1 - first) / step + 1) : 0;
    t->first += skipped * t->step;
    t->tap += skipped * t->every;
    t->count = end - skipped;
}

// The output position o reads these positions of x.
INLINE void taps_of_output(Taps *t, const Geometry *g, int a, int o) {
    *t = (Taps){element_of(g, a, o, 0), g->dilation[a], 0, 1, g->taps[a]};
}

// The input position i is read by these output positions.
INLINE void taps_of_input(Taps *t, const Geometry *g, int a, int i) {
    const int tap = first_of(g, a, i), every = g->every[a], reach = reach_of(g, a, i, tap), s = g->stride[a];
    const int count = reach % s ? 0 : (g->taps[a] - tap + every - 1) / every;
    *t = (Taps){reach / s, -(every * g->dilation[a] / s), tap, every, count};
}

#define FILTER_STEP (PACKED ? WIDE : channels)
INLINE int channel_of(int block, int channels) { return PACKED ? block * WIDE : MIN(block * WIDE, channels - WIDE); }
INLINE long filters_of(int channel, int elements) { return PACKED ? (long)channel * elements * SOURCES : channel; }

#if GRADIENT < 2
#if GRADIENT
#define TAPS_OF taps_of_input
#else
#define TAPS_OF taps_of_output
#endif

#define ADD_PRODUCTS(is_inside) \
    UNROLL_SOURCES for (int j = 0; j < SOURCES; j++) { \
        const vector weight = load_block(w + (long)j * FILTER_STEP); \
        UNROLL for (int p = 0; p < POSITIONS; p++) \
            if (is_inside) sum[p] = source_of(at + (long)p * apart * sources, j) * weight + sum[p]; \
    }

// Sums of a block of channels for a run of positions, which are `apart` in the source.
INLINE void sum_run(__global const T *x, __global const T *filters, vector *sum, const Geometry *g, const Taps *t0,
                    const Taps *t1, const Taps *t2, int apart, const int *lengths, int sources, int channels) {
    UNROLL for (int p = 0; p < POSITIONS; p++) sum[p] = 0;
    for (int u0 = 0; u0 < t0->count; u0++)
        for (int u1 = 0; u1 < t1->count; u1++) {
            const int line = (t0->first + u0 * t0->step) * lengths[1] + t1->first + u1 * t1->step;
            const int taps = ((t0->tap + u0 * t0->every) * g->taps[1] + t1->tap + u1 * t1->every) * g->taps[2];
            for (int u2 = 0; u2 < t2->count; u2++) {
                const int from = t2->first + u2 * t2->step;
                __global const T *at = x + ((long)line * lengths[2] + from) * sources;
                __global const T *w = filters + (long)(taps + t2->tap + u2 * t2->every) * SOURCES * FILTER_STEP;
                if (from >= 0 && from + (POSITIONS - 1) * apart < lengths[2]) ADD_PRODUCTS(1)
                else ADD_PRODUCTS((uint)(from + p * apart) < (uint)lengths[2])
            }
        }
}

__kernel void grouped(__global const T *restrict x, __global const T *restrict filters, __global T *restrict y,
                      const long each, const long blocks_each, const Geometry geometry) {
    const Geometry *g = &geometry;
    const int *lengths = GRADIENT ? g->out : g->length, *results = GRADIENT ? g->length : g->out;
    const int sources = GRADIENT ? g->blocks / RESULTS * SOURCES : g->blocks, channels = sources / SOURCES * RESULTS;
    const int elements = g->taps[0] * g->taps[1] * g->taps[2], blocks = (channels + WIDE - 1) / WIDE;
    // Neighbors in a run read neighbors in the source: every `phases`-th position of dx, and each of y.
    const int phases = GRADIENT ? g->stride[2] : 1, apart = GRADIENT ? 1 : g->stride[2];
    const int runs = ((results[2] + phases - 1) / phases + POSITIONS - 1) / POSITIONS;
    const long rows = g->images * results[0] * results[1], sets = (blocks + blocks_each - 1) / blocks_each;
    const long first_unit = get_global_id(0) * each, end = MIN(first_unit + each, sets * rows * phases * runs);
    for (long unit = first_unit; unit < end;) {
        const long set = unit / (phases * runs) / rows, row = unit / (phases * runs) % rows;
        const long image = row / results[1] / results[0], first_block = set * blocks_each;
        Taps t0, t1, t2;
        TAPS_OF(&t0, g, 0, row / results[1] % results[0]);
        TAPS_OF(&t1, g, 1, row % results[1]);
        keep_inside(&t0, lengths[0]);
        keep_inside(&t1, lengths[1]);
        __global const T *source = x + image * lengths[0] * lengths[1] * lengths[2] * sources;
        for (int run = unit % (phases * runs); run < phases * runs && unit < end; run++, unit++) {
            const int phase = run / runs, from = run % runs * POSITIONS;
            const int count = MIN(POSITIONS, (results[2] - phase + phases - 1) / phases - from);
            if (count <= 0) continue;
            TAPS_OF(&t2, g, 2, phase);
            t2.first += from * apart;
            __global T *result = y + (row * results[2] + phase + (long)from * phases) * channels;
            for (int block = first_block; block < MIN(first_block + blocks_each, blocks); block++) {
                const int channel = channel_of(block, channels);
                __global const T *read = source + (RESULTS < WIDE ? channel : channel / RESULTS * SOURCES);
                __global const T *own = filters + filters_of(channel, elements);
                vector sum[POSITIONS];
                sum_run(read, own, sum, g, &t0, &t1, &t2, apart, lengths, sources, channels);
                UNROLL for (int p = 0; p < POSITIONS; p++)
                    if (p < count) store_block(result + (long)p * phases * channels + channel, sum[p]);
            }
        }
    }
}
#else
__kernel void grouped_weight_gradient(__global const T *restrict g_out, __global const T *restrict x,
                                      __global ACC *restrict partials, const long parts, const long blocks_each,
                                      const Geometry geometry) {
    const Geometry *g = &geometry;
    const int sources = g->blocks, channels = sources / SOURCES * RESULTS, blocks = (channels + WIDE - 1) / WIDE;
    const int elements = g->taps[0] * g->taps[1] * g->taps[2], runs = (g->out[2] + POSITIONS - 1) / POSITIONS;
    const int dilation = g->dilation[2];
    const long part = get_global_id(0) % parts, units = g->images * g->out[0] * g->out[1] * runs;
    const long end = units * (part + 1) / parts, each = elements * SOURCES;
    const int first_block = get_global_id(0) / parts * blocks_each, end_block = MIN(first_block + blocks_each, blocks);
    partials += part * each * channels;
    for (int block = first_block; block < end_block; block++)
        for (long i = 0; i < each; i++) {
            __global ACC *own = partials + filters_of(channel_of(block, channels), elements) + i * FILTER_STEP;
            EACH_CHANNEL own[c] = 0;
        }
    for (long unit = units * part / parts; unit < end; unit++) {
        const long row = unit / runs, image = row / g->out[1] / g->out[0];
        const int from = unit % runs * POSITIONS, end_of_run = MIN(from + POSITIONS, g->out[2]);
        Taps t0, t1;
        taps_of_output(&t0, g, 0, row / g->out[1] % g->out[0]);
        taps_of_output(&t1, g, 1, row % g->out[1]);
        keep_inside(&t0, g->length[0]);
        keep_inside(&t1, g->length[1]);
        for (int block = first_block; block < end_block; block++) {
            const int channel = channel_of(block, channels);
            __global const T *read = x + (RESULTS < WIDE ? channel : channel / RESULTS * SOURCES);
            __global ACC *own = partials + filters_of(channel, elements);
            for (int u0 = 0; u0 < t0.count; u0++)
                for (int u1 = 0; u1 < t1.count; u1++)
                    for (int tap = 0; tap < g->taps[2]; tap += TAPS) {
                        const int i0 = t0.first + u0 * t0.step, i1 = t1.first + u1 * t1.step;
                        const long line = ((image * g->length[0] + i0) * g->length[1] + i1) * g->length[2];
                        const int element = ((t0.tap + u0) * g->taps[1] + t1.tap + u1) * g->taps[2] + tap;
                        UNROLL_SOURCES for (int j = 0; j < SOURCES; j += HELD) {
                            vector sum[TAPS][HELD];
                            UNROLL for (int t = 0; t < TAPS; t++)
                                UNROLL for (int h = 0; h < HELD; h++) sum[t][h] = 0;
                            for (int o = from; o < end_of_run; o++) {
                                const vector v = load_block(g_out + (row * g->out[2] + o) * channels + channel);
                                const int i2 = element_of(g, 2, o, tap);
                                __global const T *at = read + (line + i2) * sources;
                                if (i2 >= 0 && i2 + (TAPS - 1) * dilation < g->length[2]) {
                                    UNROLL for (int t = 0; t < TAPS; t++)
                                        UNROLL for (int h = 0; h < HELD; h++)
                                            sum[t][h] += source_of(at + (long)t * dilation * sources, j + h) * v;
                                } else {
                                    UNROLL for (int t = 0; t < TAPS; t++)
                                        if (is_inside(g, 2, i2 + t * dilation))
                                            UNROLL for (int h = 0; h < HELD; h++)
                                                sum[t][h] += source_of(at + (long)t * dilation * sources, j + h) * v;
                                }
                            }
                            UNROLL for (int t = 0; t < TAPS; t++)
                                if (tap + t < g->taps[2])
                                    UNROLL for (int h = 0; h < HELD; h++) {
                                        __global ACC *to = own + ((element + t) * SOURCES + j + h) * FILTER_STEP;
                                        add_block(to, sum[t][h], block * WIDE - channel);
                                    }
                        }
                    }
        }
    }
}
#endif
