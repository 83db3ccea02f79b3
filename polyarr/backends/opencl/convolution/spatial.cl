// Receptive fields on images with channels last, for convolution and pooling: three spatial axes, of which the first
// may have length 1. A work-item processes WIDE channels of one position, and several positions if there are few
// work-items.
//
// A "window" is an output position (with its receptive field), an "element" of a window is a filter element (tap).
//
// Params   T, ACC, LOAD, STORE    a float dtype: see prelude.cl
//          WIDE                channels per work-item, a divisor of the number of channels
//          MOVES_WORDS         1 if WIDE channels are loaded and stored at once, as WORD
//          DTYPE, RAW, WORD    optional: for MOVES_WORDS, see DEFINE_VECTOR in prelude.cl

#define INLINE static inline __attribute__((always_inline))
#define EACH_CHANNEL _Pragma("unroll") for (int c = 0; c < WIDE; c++)

// Element k of window o is at input position o * stride - before + k * dilation. taps: filter lengths; before: padding;
// counted: padding, before and after, that counts for means; every: an input position is covered by every `every`-th
// tap only.
typedef struct {
    long images, blocks;
    int length[3], out[3], taps[3], stride[3], before[3], dilation[3], every[3], counted[6], unused;
} Geometry;

typedef struct {
    long image;
    int at[3], block;
} Position;

INLINE void find_position(Position *position, const Geometry *g, const int *lengths, long item) {
    position->block = item % g->blocks;
    item /= g->blocks;
    _Pragma("unroll") for (int a = 2; a >= 0; a--) {
        position->at[a] = item % lengths[a];
        item /= lengths[a];
    }
    position->image = item;
}

// Advance to the position of the next item without divisions.
INLINE void step_position(Position *position, const Geometry *g, const int *lengths) {
    if (++position->block < g->blocks) return;
    position->block = 0;
    _Pragma("unroll") for (int a = 2; a >= 0; a--) {
        if (++position->at[a] < lengths[a]) return;
        position->at[a] = 0;
    }
    position->image++;
}

#if MOVES_WORDS
DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)
#define LOAD_CHANNELS(p, i, v) read_vector(p, i, (i) + WIDE, v)
#define STORE_CHANNELS(p, i, v) write_vector(p, i, (i) + WIDE, v)
#else
#define LOAD_CHANNELS(p, i, v) EACH_CHANNEL v[c] = LOAD(p, (i) + c)
#define STORE_CHANNELS(p, i, v) EACH_CHANNEL STORE(p, (i) + c, v[c])
#endif

// The offset of WIDE channels of position (i, j, k) in images with these spatial lengths.
INLINE long start_of(const Geometry *g, long image, const int *lengths, int i, int j, int k, int block) {
    return ((((image * lengths[0] + i) * lengths[1] + j) * lengths[2] + k) * g->blocks + block) * WIDE;
}

// Along one axis. element_of: the input position of element k of window o, maybe in the padding. first_inside: the
// first element of window o that is not in the padding before. first_of: the first k for which input position i may be
// element k of a window. window_of: the window of which i is element k, or a negative number.
INLINE int element_of(const Geometry *g, int a, int o, int k) {
    return o * g->stride[a] - g->before[a] + k * g->dilation[a];
}
INLINE int is_inside(const Geometry *g, int a, int i) { return 0 <= i && i < g->length[a]; }
INLINE int first_inside(const Geometry *g, int a, int o) {
    const int i = element_of(g, a, o, 0), d = g->dilation[a];
    return i < 0 ? (d - 1 - i) / d : 0;
}
INLINE int reach_of(const Geometry *g, int a, int i, int k) { return i + g->before[a] - k * g->dilation[a]; }
INLINE int first_of(const Geometry *g, int a, int i) {
    int k = 0;
    while (k < g->every[a] - 1 && reach_of(g, a, i, k) % g->stride[a]) k++;
    return k;
}
INLINE int window_of(const Geometry *g, int a, int i, int k) {
    const int t = reach_of(g, a, i, k), s = g->stride[a];
    const int o = s == 1 ? t : t >= 0 && t % s == 0 ? t / s : -1;
    return o < g->out[a] ? o : -1;
}

// EACH_ELEMENT and EACH_WINDOW loop over the elements of the window at `position`, or over the windows that cover
// input position `position`; per axis, k is the tap and p the position. TAP is the linear index of the tap, FROM the
// offset of the element or window.
#define ELEMENTS_ALONG(a, k, p) \
    for (int k = 0, p = element_of(g, a, position.at[a], 0); k < g->taps[a]; k++, p += g->dilation[a]) \
        if (is_inside(g, a, p))
#define WINDOWS_ALONG(a, k, p) \
    for (int k = first_of(g, a, position.at[a]), p; k < g->taps[a]; k += g->every[a]) \
        if ((p = window_of(g, a, position.at[a], k)) >= 0)
#define EACH(ALONG) ALONG(0, k0, p0) ALONG(1, k1, p1) ALONG(2, k2, p2)
#define TAP ((k0 * g->taps[1] + k1) * g->taps[2] + k2)
#define FROM(lengths, position) start_of(g, position.image, lengths, p0, p1, p2, position.block)
#define EACH_ELEMENT(position) EACH(ELEMENTS_ALONG)
#define EACH_WINDOW(position) EACH(WINDOWS_ALONG)

// Loop over the `each` consecutive items of a work-item, with the position of each.
#define EACH_POSITION(item, position, lengths) \
    Position position; \
    find_position(&position, g, lengths, get_global_id(0) * each); \
    for (long item = get_global_id(0) * each, \
              end = MIN(item + each, g->images * lengths[0] * lengths[1] * lengths[2] * g->blocks); \
         item < end; item++, step_position(&position, g, lengths))
