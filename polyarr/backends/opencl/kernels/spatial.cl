// Windows on images with channels last, and the elements of windows: three spatial axes, of which the first may be of one
// element. A work-item takes WIDE channels of a place, and several places where there are few work-items.
//
// Params   T, ACC, LOAD, STORE, DTYPE, RAW of a float dtype | WIDE divides the number of channels | WORD the type of WIDE
//          elements that move as one, or none
#if !defined(T) || !defined(ACC) || !defined(WIDE) || !defined(MOVES_WORDS)
#error "spatial.cl needs a dtype's macros, WIDE and MOVES_WORDS"
#endif

#define INLINE static inline __attribute__((always_inline))
#define EACH_CHANNEL _Pragma("unroll") for (int c = 0; c < WIDE; c++)

// Window o has element k at o * stride - before + k * dilation. counted, of means: how much padding there is, before and
// behind, that counts.
typedef struct {
    long images, blocks;
    int length[3], out[3], taps[3], stride[3], before[3], dilation[3], counted[6];
} Geometry;

typedef struct {
    long image;
    int at[3], block;
} Place;

INLINE void find_place(Place *place, const Geometry *g, const int *lengths, long item) {
    place->block = item % g->blocks;
    item /= g->blocks;
    for (int a = 2; a >= 0; a--) {
        place->at[a] = item % lengths[a];
        item /= lengths[a];
    }
    place->image = item;
}

#if MOVES_WORDS
DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)
#define TAKE(p, i, v) read_vector(p, i, (i) + WIDE, v)
#define GIVE(p, i, v) write_vector(p, i, (i) + WIDE, v)
#else
#define TAKE(p, i, v) EACH_CHANNEL v[c] = LOAD(p, (i) + c)
#define GIVE(p, i, v) EACH_CHANNEL STORE(p, (i) + c, v[c])
#endif

// Where WIDE channels of a place among so many begin.
INLINE long start_of(const Geometry *g, long image, const int *lengths, int i, int j, int k, int block) {
    return ((((image * lengths[0] + i) * lengths[1] + j) * lengths[2] + k) * g->blocks + block) * WIDE;
}

// Along an axis, where element k of window o is, and of which window place i is element k; not there if negative.
INLINE int element_of(const Geometry *g, int a, int o, int k) {
    const int i = o * g->stride[a] - g->before[a] + k * g->dilation[a];
    return i < g->length[a] ? i : -1;
}
INLINE int window_of(const Geometry *g, int a, int i, int k) {
    const int t = i + g->before[a] - k * g->dilation[a];
    return t >= 0 && t % g->stride[a] == 0 && t / g->stride[a] < g->out[a] ? t / g->stride[a] : -1;
}

// What follows runs for each element of the window at `place`, or with window_of for each window that `place` is part of:
// `tap` is which element it is, and `from` where it lies, or where the window lies.
#define EACH(OTHER, lengths, place) \
    for (int k0 = 0, p0; k0 < g->taps[0]; k0++) \
        if ((p0 = OTHER(g, 0, place.at[0], k0)) >= 0) \
            for (int k1 = 0, p1; k1 < g->taps[1]; k1++) \
                if ((p1 = OTHER(g, 1, place.at[1], k1)) >= 0) \
                    for (int k2 = 0, p2; k2 < g->taps[2]; k2++) \
                        if ((p2 = OTHER(g, 2, place.at[2], k2)) >= 0)
#define TAP ((k0 * g->taps[1] + k1) * g->taps[2] + k2)
#define FROM(lengths, place) start_of(g, place.image, lengths, p0, p1, p2, place.block)
#define EACH_ELEMENT(place) EACH(element_of, g->length, place)
#define EACH_WINDOW(place) EACH(window_of, g->out, place)

// One's items, of `each` neighbours.
#define EACH_ITEM(item, total) \
    for (long item = get_global_id(0) * each, end = MIN(item + each, total); item < end; item++)
