// Stable sort of rows on GPUs: tiles are sorted in local memory, then runs are merged pairwise. nan is the largest
// value.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): the key of an element, and its position in the row
//          out (rows, kept): the result
// Launch   local LANES * TILES_PER_GROUP: LANES work-items process a tile of TILE elements of a row of the output.
//          sort_tiles sorts each tile; `last` is 1 if n is at most TILE. merge_tiles merges runs of `width`, a multiple
//          of TILE, into runs of twice that. Arguments: `last` is 1 to write out, else keys and index; `values` is 1 to
//          write the sorted elements, 0 for the order; `kept` is the length of the result's rows
// Params   those of keys.cl and items.cl; ITEM_BITS is BITS
//          TILES_PER_GROUP    tiles per work-group, a power of two
#include "keys.cl"
#include "items.cl"

#define SORTING __attribute__((reqd_work_group_size(LANES * TILES_PER_GROUP, 1, 1)))

// Merge path: how many of the first `skipped` elements of two merged runs come from the run at a.
static inline long merge_path_in_row(__global const KEY *keys, long a, long a_end, long b, long b_end, long skipped) {
    long low = MAX(0L, skipped - (b_end - b)), high = MIN(skipped, a_end - a);
    while (low < high) {
        const long middle = (low + high) / 2;
        if (keys[a + middle] <= keys[b + skipped - 1 - middle]) low = middle + 1; else high = middle;
    }
    return low;
}

__kernel SORTING
void sort_tiles(__global const KEY *restrict x, __global KEY *restrict to_keys, __global int *restrict to_index,
                __global void *restrict out, const long n, const long tiles, const int last,
                const int values, const long kept) {
    __local Item all_items[TILES_PER_GROUP * PADDED_TILE];
    const int local_tile = get_local_id(0) / LANES, me = get_local_id(0) % LANES;
    __local Item *items = all_items + local_tile * PADDED_TILE;
    const long per_row = (n + TILE - 1) / TILE, tile = (long)get_group_id(0) * TILES_PER_GROUP + local_tile;
    const long first = tile % per_row * TILE, row = tile / per_row * n, start = row + first;
    const int count = tile < tiles ? (int)MIN((long)TILE, n - first) : 0;
    Item mine[EACH];

    EACH_OF_MINE {  // positions past the end get the largest key, so that they sort last, even after nan
        const int place = me + j * LANES;
        const KEY key = place < count ? key_of(x[start + place]) : (KEY)~(KEY)0;
        mine[j] = ITEM(key, place);
    }
    SORT_TILE(items, mine, me)
    for (int i = me; i < count; i += LANES) {
        const Item item = items[AT(i)];
        const long from = first + PLACE_OF(item);
        if (last) {
            if (first + i < kept) WRITE_RESULT(out, tile / per_row * kept + first + i, x + row, from, values)
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
    __local Item all_items[TILES_PER_GROUP * PADDED_TILE];
    __local int all_index[TILES_PER_GROUP * TILE];
    __local long all_splits[TILES_PER_GROUP][2];
    const int local_tile = get_local_id(0) / LANES, me = get_local_id(0) % LANES;
    __local Item *items = all_items + local_tile * PADDED_TILE;
    __local int *index = all_index + local_tile * TILE;
    const long per_row = (n + TILE - 1) / TILE, tile = (long)get_group_id(0) * TILES_PER_GROUP + local_tile;
    const long row = tile < tiles ? tile / per_row * n : 0, at = tile % per_row * TILE;
    const long a = at / (2 * width) * (2 * width), b = MIN(a + width, n), end = MIN(b + width, n);
    const int count = tile < tiles ? (int)MIN((long)TILE, end - at) : 0;

    if (me < 2 && count) {  // the positions in both runs at which the tile begins and ends
        const long skipped = at - a + (me ? count : 0);
        all_splits[local_tile][me] = merge_path_in_row(from_keys + row, a, b, b, end, skipped);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const long low = count ? all_splits[local_tile][0] : 0, high = count ? all_splits[local_tile][1] : 0;
    const int from_a = (int)(high - low);
    const long a_start = row + a + low, b_start = row + b + (at - a) - low - from_a;
    for (int i = me; i < count; i += LANES) {
        const long from = (i < from_a ? a_start : b_start) + i;
        items[AT(i)] = ITEM(from_keys[from], i);
        index[i] = from_index[from];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    Item mine[EACH];
    const int skipped = MIN(me * EACH, count);
    const int split = merge_path(items, 0, from_a, from_a, count, skipped);
    merge_mine(items, split, from_a, from_a + skipped - split, count, mine);
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_OF_MINE if (me * EACH + j < count) items[AT(me * EACH + j)] = mine[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = me; i < count; i += LANES) {
        const Item item = items[AT(i)];
        const int from = index[PLACE_OF(item)];
        if (last) {
            if (at + i < kept) WRITE_RESULT(out, tile / per_row * kept + at + i, x + row, from, values)
        } else {
            to_keys[row + at + i] = KEY_OF(item);
            to_index[row + at + i] = from;
        }
    }
}
