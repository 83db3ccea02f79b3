// Tiles of items, sorted by teams of work-items, for files that include this one.
//
// TEAM work-items share a tile of TILE items in local memory, EACH of them each. They sort their own, then merge two runs
// into one, again and again: each work-item finds where its share of the merged run begins in both, and merges that.
//
// Params   KEY unsigned type | ITEM_BITS of an item's key: at most 16, 32 or 64 | TEAM a power of two, at most 2^16 / EACH |
//          EACH 8 or 16
#if !defined(KEY) || !defined(ITEM_BITS) || !defined(TEAM) || !defined(EACH)
#error "items.cl needs KEY, ITEM_BITS, TEAM and EACH"
#endif

// An item is a key and its place in the tile, so that no two are equal: what is sorted stays as it was where keys are equal.
// NONE comes after all of them.
#if ITEM_BITS <= 16
typedef uint Item;
#define ITEM(key, place) ((uint)(key) << 16 | (uint)(place))
#define PLACE_OF(item) ((int)((item) & 0xffff))
#define KEY_OF(item) ((item) >> 16)
#define BEFORE(a, b) ((a) < (b))
#define NONE (~(Item)0)
#elif ITEM_BITS == 32
typedef ulong Item;
#define ITEM(key, place) ((ulong)(key) << 32 | (ulong)(place))
#define PLACE_OF(item) ((int)(item))
#define KEY_OF(item) ((item) >> 32)
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
#define ROOM (TILE + TILE / (int)(128 / sizeof(Item)))  // items of local memory for a tile
#define EACH_OF_MINE _Pragma("unroll") for (int j = 0; j < EACH; j++)

// How many of the first `skipped` items of two runs, merged, come from the run at a; that at b is second.
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

// Sort a tile, of which `mine` are the items of work-item `me`, into `items`. All work-items of a group are here at once. Not
// a function, with which PoCL 3.0 writes where it may not.
#define SORT_TILE(items, mine, me) \
    sort_mine(mine); \
    for (int width = EACH; ; width *= 2) { \
        EACH_OF_MINE items[AT(me * EACH + j)] = mine[j]; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if (width == TILE) break; \
        const int a = me * EACH / (2 * width) * (2 * width), b = a + width, end = b + width, skipped = me * EACH - a; \
        const int low = split_of_tile(items, a, b, b, end, skipped); \
        merge_mine(items, a + low, b, b + skipped - low, end, mine); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    }
