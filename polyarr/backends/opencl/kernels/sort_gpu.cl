// Each row in order, as sort.cl has it, for GPUs: tiles are sorted in local memory, then runs are merged.
//
// TEAM work-items share a tile of TILE elements, EACH of them each. They sort their own, then merge two runs into one, again
// and again: each work-item finds where its share of the merged run begins in both, and merges that.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): an element's key, and where in the row it came from; out (rows, kept)
// Launch   local TEAM * TEAMS. sort_tiles: a team for each tile of each row, `last` 1 to write out, where n is at most
//          TILE, else keys and index, whose tiles are sorted then.
//          merge_tiles: a team for each TILE elements of each row; runs of `width`, a multiple of TILE, become runs of
//          twice that, in out if `last`; `values` 1 for the elements in order, 0 for the order; `kept` of each row, from the
//          first on
// Params   those of keys.cl | TEAM, TEAMS powers of two, TEAM at most 2^16 / EACH | EACH 8 or 16
#include "keys.cl"
#if !defined(TEAM) || !defined(TEAMS) || !defined(EACH)
#error "sort_gpu.cl needs TEAM, TEAMS and EACH"
#endif

// An item is a key and its place in the tile, so that no two are equal: what is sorted stays as it was where keys are equal.
// NONE comes after all of them.
#if BITS <= 16
typedef uint Item;
#define ITEM(key, place) ((uint)(key) << 16 | (uint)(place))
#define PLACE_OF(item) ((int)((item) & 0xffff))
#define KEY_OF(item) ((KEY)((item) >> 16))
#define BEFORE(a, b) ((a) < (b))
#define NONE (~(Item)0)
#elif BITS == 32
typedef ulong Item;
#define ITEM(key, place) ((ulong)(key) << 32 | (ulong)(place))
#define PLACE_OF(item) ((int)(item))
#define KEY_OF(item) ((KEY)((item) >> 32))
#define BEFORE(a, b) ((a) < (b))
#define NONE (~(Item)0)
#else
typedef struct { KEY key; int place; } Item;
#define ITEM(k, p) ((Item){.key = (k), .place = (p)})
#define PLACE_OF(item) ((item).place)
#define KEY_OF(item) ((item).key)
#define BEFORE(a, b) ((a).key < (b).key || ((a).key == (b).key && (a).place < (b).place))
#define NONE ITEM((KEY)~(KEY)0, 0x7fffffff)
#endif

#define TILE (TEAM * EACH)
#define AT(i) ((i) + (i) / (int)(128 / sizeof(Item)))  // so that neighbours' shares lie in different banks
#define ROOM (TILE + TILE / (int)(128 / sizeof(Item)))
#define SORTING __attribute__((reqd_work_group_size(TEAM * TEAMS, 1, 1)))
#define EACH_OF_MINE _Pragma("unroll") for (int j = 0; j < EACH; j++)

// How many of the first `skipped` elements of two runs, merged, come from the run at a; that at b is second.
static inline long split_of_row(__global const KEY *keys, long a, long a_end, long b, long b_end, long skipped) {
    long low = MAX(0L, skipped - (b_end - b)), high = MIN(skipped, a_end - a);
    while (low < high) {
        const long middle = (low + high) / 2;
        if (keys[a + middle] <= keys[b + skipped - 1 - middle]) low = middle + 1; else high = middle;
    }
    return low;
}

// The same of items.
static inline int split_of_tile(__local const Item *items, int a, int a_end, int b, int b_end, int skipped) {
    int low = MAX(0, skipped - (b_end - b)), high = MIN(skipped, a_end - a);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (BEFORE(items[AT(a + middle)], items[AT(b + skipped - 1 - middle)])) low = middle + 1; else high = middle;
    }
    return low;
}

#define ITEM_AT(i, end) ((i) < (end) ? items[AT(i)] : NONE)

// Merge EACH items from a and b on, which end at a_end and b_end.
static inline void merge_mine(__local const Item *items, int a, int a_end, int b, int b_end, Item *mine) {
    Item left = ITEM_AT(a, a_end), right = ITEM_AT(b, b_end);
    EACH_OF_MINE {
        const int second = BEFORE(right, left);
        mine[j] = second ? right : left;
        const int next = second ? ++b : ++a;
        const Item following = ITEM_AT(next, second ? b_end : a_end);
        right = second ? following : right;
        left = second ? left : following;
    }
}

// Sort one's own, by Batcher's network for 8; two eights are merged bitonically.
#define EXCHANGE(i, j) { \
        const Item a = mine[i], b = mine[j]; \
        const int swap = BEFORE(b, a); \
        mine[i] = swap ? b : a; \
        mine[j] = swap ? a : b; \
    }
#define EXCHANGE_TWO(a, b, c, d) EXCHANGE(a, b) EXCHANGE(c, d)
#define EXCHANGE_FOUR(o, a, b, c, d, e, f, g, h) \
    EXCHANGE_TWO(o + a, o + b, o + c, o + d) EXCHANGE_TWO(o + e, o + f, o + g, o + h)
#define SORT_EIGHT(o) \
    EXCHANGE_FOUR(o, 0, 1, 2, 3, 4, 5, 6, 7) EXCHANGE_FOUR(o, 0, 2, 1, 3, 4, 6, 5, 7) EXCHANGE_TWO(o + 1, o + 2, o + 5, o + 6) \
    EXCHANGE_FOUR(o, 0, 4, 1, 5, 2, 6, 3, 7) EXCHANGE_TWO(o + 2, o + 4, o + 3, o + 5) \
    EXCHANGE_TWO(o + 1, o + 2, o + 3, o + 4) EXCHANGE(o + 5, o + 6)
#define MERGE_EIGHT(o) \
    EXCHANGE_FOUR(o, 0, 4, 1, 5, 2, 6, 3, 7) EXCHANGE_FOUR(o, 0, 2, 1, 3, 4, 6, 5, 7) EXCHANGE_FOUR(o, 0, 1, 2, 3, 4, 5, 6, 7)

static inline void sort_mine(Item *mine) {
    SORT_EIGHT(0)
#if EACH == 16
    SORT_EIGHT(8)
    EXCHANGE_FOUR(0, 0, 15, 1, 14, 2, 13, 3, 12)
    EXCHANGE_FOUR(0, 4, 11, 5, 10, 6, 9, 7, 8)
    MERGE_EIGHT(0)
    MERGE_EIGHT(8)
#endif
}

__kernel SORTING
void sort_tiles(__global const KEY *restrict x, __global KEY *restrict to_keys, __global int *restrict to_index,
                __global void *restrict out, const long n, const long tiles, const int last,
                const int values, const long kept) {
    __local Item all_items[TEAMS * ROOM];
    const int team = get_local_id(0) / TEAM, me = get_local_id(0) % TEAM;
    __local Item *items = all_items + team * ROOM;
    const long per_row = (n + TILE - 1) / TILE, tile = (long)get_group_id(0) * TEAMS + team;
    const long first = tile % per_row * TILE, row = tile / per_row * n, start = row + first;
    const int count = tile < tiles ? (int)MIN((long)TILE, n - first) : 0;
    Item mine[EACH];

    EACH_OF_MINE {  // what is past the end comes last, even after a nan
        const int place = me + j * TEAM;
        const KEY key = place < count ? key_of(x[start + place]) : (KEY)~(KEY)0;
        mine[j] = ITEM(key, place);
    }
    sort_mine(mine);
    for (int width = EACH; ; width *= 2) {
        EACH_OF_MINE items[AT(me * EACH + j)] = mine[j];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (width == TILE) break;
        const int a = me * EACH / (2 * width) * (2 * width), b = a + width, end = b + width, skipped = me * EACH - a;
        const int low = split_of_tile(items, a, b, b, end, skipped);
        merge_mine(items, a + low, b, b + skipped - low, end, mine);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = me; i < count; i += TEAM) {
        const Item item = items[AT(i)];
        const long from = first + PLACE_OF(item);
        if (last) {
            if (first + i < kept) GIVE(out, tile / per_row * kept + first + i, x + row, from, values)
        } else {
            to_keys[start + i] = KEY_OF(item);
            to_index[start + i] = (int)from;
        }
    }
}

__kernel SORTING
void merge_tiles(__global const KEY *restrict from_keys, __global const int *restrict from_index,
                 __global KEY *restrict to_keys, __global int *restrict to_index, __global const KEY *restrict x,
                 __global void *restrict out, const long n, const long width, const long tiles, const int last,
                 const int values, const long kept) {
    __local Item all_items[TEAMS * ROOM];
    __local int all_index[TEAMS * TILE];
    __local long all_splits[TEAMS][2];
    const int team = get_local_id(0) / TEAM, me = get_local_id(0) % TEAM;
    __local Item *items = all_items + team * ROOM;
    __local int *index = all_index + team * TILE;
    const long per_row = (n + TILE - 1) / TILE, tile = (long)get_group_id(0) * TEAMS + team;
    const long row = tile < tiles ? tile / per_row * n : 0, at = tile % per_row * TILE;
    const long a = at / (2 * width) * (2 * width), b = MIN(a + width, n), end = MIN(b + width, n);
    const int count = tile < tiles ? (int)MIN((long)TILE, end - at) : 0;

    if (me < 2 && count) {  // where the tile begins in both runs, and where it ends
        const long skipped = at - a + (me ? count : 0);
        all_splits[team][me] = split_of_row(from_keys + row, a, b, b, end, skipped);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const long low = count ? all_splits[team][0] : 0, high = count ? all_splits[team][1] : 0;
    const int from_a = (int)(high - low);
    const long a_start = row + a + low, b_start = row + b + (at - a) - low - from_a;
    for (int i = me; i < count; i += TEAM) {
        const long from = (i < from_a ? a_start : b_start) + i;
        items[AT(i)] = ITEM(from_keys[from], i);
        index[i] = from_index[from];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    Item mine[EACH];
    const int skipped = MIN(me * EACH, count);
    const int split = split_of_tile(items, 0, from_a, from_a, count, skipped);
    merge_mine(items, split, from_a, from_a + skipped - split, count, mine);
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_OF_MINE if (me * EACH + j < count) items[AT(me * EACH + j)] = mine[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = me; i < count; i += TEAM) {
        const Item item = items[AT(i)];
        const int from = index[PLACE_OF(item)];
        if (last) {
            if (at + i < kept) GIVE(out, tile / per_row * kept + at + i, x + row, from, values)
        } else {
            to_keys[row + at + i] = KEY_OF(item);
            to_index[row + at + i] = from;
        }
    }
}
