// Each row in order, as sort.cl has it, for GPUs: tiles are sorted in local memory, then runs are merged.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): an element's key, and where in the row it came from; out (rows, kept)
// Launch   local TEAM * TEAMS. sort_tiles: a team for each tile of each row, `last` 1 to write out, where n is at most
//          TILE, else keys and index, whose tiles are sorted then.
//          merge_tiles: a team for each TILE elements of each row; runs of `width`, a multiple of TILE, become runs of
//          twice that, in out if `last`; `values` 1 for the elements in order, 0 for the order; `kept` of each row, from the
//          first on
// Params   those of keys.cl and items.cl, ITEM_BITS being BITS | TEAMS a power of two
#include "keys.cl"
#include "items.cl"
#if !defined(TEAMS)
#error "sort_gpu.cl needs TEAMS"
#endif

#define SORTING __attribute__((reqd_work_group_size(TEAM * TEAMS, 1, 1)))

// How many of the first `skipped` elements of two runs, merged, come from the run at a; that at b is second.
static inline long split_of_row(__global const KEY *keys, long a, long a_end, long b, long b_end, long skipped) {
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
    SORT_TILE(items, mine, me)
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
