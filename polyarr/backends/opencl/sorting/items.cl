// Sorts a tile of items in local memory; included by the GPU kernels that sort.
//
// LANES work-items share a tile of TILE items, EACH items per work-item. Each work-item sorts its own items with a
// sorting network; then runs are merged pairwise: each work-item finds by binary search where its share of the merged
// run begins in both inputs (merge path), and merges that share.
//
// Params   KEY          unsigned type of keys
//          ITEM_BITS    bits of an item's key: at most 16, 32 or 64
//          LANES        work-items per tile, a power of two, at most 2^16 / EACH
//          EACH         items per work-item: 8 or 16

// An item is a key and its position in the tile. No two items are equal, which makes the sort stable. NONE is greater
// than every item.
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
typedef ulong2 Item;  // not a struct: drivers that compile to SPIR-V need minutes for a sorting network of structs
#define ITEM(key, place) ((ulong2)((key), (ulong)(place)))
#define PLACE_OF(item) ((int)(item).y)
#define KEY_OF(item) ((item).x)
#define BEFORE(a, b) ((a).x < (b).x || ((a).x == (b).x && PLACE_OF(a) < PLACE_OF(b)))
#define NONE ITEM(~0UL, 0x7fffffff)
#endif

#define TILE (LANES * EACH)
#define AT(i) ((i) + (i) / (int)(128 / sizeof(Item)))  // padded, against bank conflicts between work-items
#define PADDED_TILE (TILE + TILE / (int)(128 / sizeof(Item)))  // items of local memory for a padded tile
#define EACH_OF_MINE _Pragma("unroll") for (int j = 0; j < EACH; j++)

// Merge path: how many of the first `skipped` items of two merged runs come from the run at a.
static inline int merge_path(__local const Item *items, int a, int a_end, int b, int b_end, int skipped) {
    int low = MAX(0, skipped - (b_end - b)), high = MIN(skipped, a_end - a);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (BEFORE(items[AT(a + middle)], items[AT(b + skipped - 1 - middle)])) low = middle + 1; else high = middle;
    }
    return low;
}

#define ITEM_AT(i, end) ((i) < (end) ? items[AT(i)] : NONE)

// Merge EACH items of the runs [a, a_end) and [b, b_end) into mine.
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

// Sort a work-item's own items with Batcher's network for 8; two sorted eights are merged by a bitonic network.
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

// Sort a tile, of which `mine` are the items of work-item `me`, into `items`. All work-items of the group must reach
// it. A macro, because PoCL 3.0 miscompiles it as a function (it writes out of bounds).
#define SORT_TILE(items, mine, me) \
    sort_mine(mine); \
    for (int width = EACH; ; width *= 2) { \
        EACH_OF_MINE items[AT(me * EACH + j)] = mine[j]; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if (width == TILE) break; \
        const int a = me * EACH / (2 * width) * (2 * width), b = a + width, end = b + width, skipped = me * EACH - a; \
        const int low = merge_path(items, a, b, b, end, skipped); \
        merge_mine(items, a + low, b, b + skipped - low, end, mine); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    }
