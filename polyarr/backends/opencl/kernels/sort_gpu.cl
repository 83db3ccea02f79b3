// The order that sorts each row, as sort.cl has it, for GPUs: tiles are sorted in local memory, then runs are merged.
//
// TEAM work-items share a tile of TILE elements, EACH of them each. They sort their own, then merge two runs into one, again
// and again: each work-item finds where its share of the merged run begins in both, and merges that.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): an element's key, and where in the row it came from; out (rows, n)
// Launch   local TEAM * TEAMS. sort_tiles: a team for each tile of each row, `last` 1 to write out, where n is at most
//          TILE, else keys and index, whose tiles are sorted then.
//          merge_tiles: a team for each TILE elements of each row; runs of `width`, a multiple of TILE, become runs of
//          twice that, in out if `last`
// Params   those of keys.cl | TEAM, TEAMS powers of two | EACH
#include "keys.cl"
#if !defined(TEAM) || !defined(TEAMS) || !defined(EACH)
#error "sort_gpu.cl needs TEAM, TEAMS and EACH"
#endif

#define TILE (TEAM * EACH)
#define ROOM (TILE + TILE / 32)
#define AT(i) ((i) + (i) / 32)  // so that neighbours' shares lie in different banks
#define SORTING __attribute__((reqd_work_group_size(TEAM * TEAMS, 1, 1)))
#define EACH_OF_MINE _Pragma("unroll") for (int j = 0; j < EACH; j++)

// How many of the first `skipped` elements of two runs, merged, come from the run at a; that at b is second.
#define DEFINE_SPLIT(NAME, SPACE, AT) \
    static inline long NAME(SPACE const KEY *keys, long a, long a_end, long b, long b_end, long skipped) { \
        long low = MAX(0L, skipped - (b_end - b)), high = MIN(skipped, a_end - a); \
        while (low < high) { \
            const long middle = (low + high) / 2; \
            if (keys[AT(a + middle)] <= keys[AT(b + skipped - 1 - middle)]) low = middle + 1; else high = middle; \
        } \
        return low; \
    }
#define HERE(i) (i)
DEFINE_SPLIT(split_of_tile, __local, AT)
DEFINE_SPLIT(split_of_row, __global, HERE)

// Merge EACH elements from a and b on, which end at a_end and b_end, into key and place, by way of which they go back.
static inline void merge_mine(__local const KEY *keys, __local const int *index, int a, int a_end, int b, int b_end,
                              KEY *key, int *place) {
    EACH_OF_MINE {
        const int second = a >= a_end || (b < b_end && keys[AT(b)] < keys[AT(a)]);
        const int from = second ? b : a;
        if (from < (second ? b_end : a_end)) {
            key[j] = keys[AT(from)];
            place[j] = index[AT(from)];
        }
        b += second;
        a += !second;
    }
}

__kernel SORTING
void sort_tiles(__global const KEY *restrict x, __global KEY *restrict to_keys, __global int *restrict to_index,
                __global long *restrict out, const long n, const long tiles, const int last) {
    __local KEY all_keys[TEAMS * ROOM];
    __local int all_index[TEAMS * ROOM];
    const int team = get_local_id(0) / TEAM, me = get_local_id(0) % TEAM;
    __local KEY *keys = all_keys + team * ROOM;
    __local int *index = all_index + team * ROOM;
    const long per_row = (n + TILE - 1) / TILE, tile = (long)get_group_id(0) * TEAMS + team;
    const long first = tile % per_row * TILE, start = tile / per_row * n + first;
    const int count = tile < tiles ? (int)MIN((long)TILE, n - first) : 0;
    KEY key[EACH];
    int place[EACH];

    EACH_OF_MINE {  // what is past the end comes last, even after a nan
        place[j] = me * EACH + j;
        key[j] = place[j] < count ? key_of(x[start + place[j]]) : (KEY)~(KEY)0;
    }
    for (int round = 0; round < EACH; round++) {
        _Pragma("unroll") for (int odd = 0; odd < 2; odd++)
            if (odd == (round & 1))
                _Pragma("unroll") for (int j = odd; j + 1 < EACH; j += 2) {
                    const int swap = key[j + 1] < key[j], other = place[j];
                    const KEY held = key[j];
                    key[j] = swap ? key[j + 1] : held;
                    place[j] = swap ? place[j + 1] : other;
                    key[j + 1] = swap ? held : key[j + 1];
                    place[j + 1] = swap ? other : place[j + 1];
                }
    }
    for (int width = EACH; ; width *= 2) {
        EACH_OF_MINE {
            keys[AT(me * EACH + j)] = key[j];
            index[AT(me * EACH + j)] = place[j];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (width == TILE) break;
        const int a = me * EACH / (2 * width) * (2 * width), b = a + width, end = b + width, skipped = me * EACH - a;
        const int low = split_of_tile(keys, a, b, b, end, skipped);
        merge_mine(keys, index, a + low, b, b + skipped - low, end, key, place);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = me; i < count; i += TEAM) {
        if (last) {
            out[start + i] = first + index[AT(i)];
        } else {
            to_keys[start + i] = keys[AT(i)];
            to_index[start + i] = (int)first + index[AT(i)];
        }
    }
}

__kernel SORTING
void merge_tiles(__global const KEY *restrict from_keys, __global const int *restrict from_index,
                 __global KEY *restrict to_keys, __global int *restrict to_index, __global long *restrict out,
                 const long n, const long width, const long tiles, const int last) {
    __local KEY all_keys[TEAMS * ROOM];
    __local int all_index[TEAMS * ROOM];
    __local long all_splits[TEAMS][2];
    const int team = get_local_id(0) / TEAM, me = get_local_id(0) % TEAM;
    __local KEY *keys = all_keys + team * ROOM;
    __local int *index = all_index + team * ROOM;
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
        keys[AT(i)] = from_keys[from];
        index[AT(i)] = from_index[from];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    KEY key[EACH];
    int place[EACH];
    const int skipped = MIN(me * EACH, count);
    const int mine = split_of_tile(keys, 0, from_a, from_a, count, skipped);
    merge_mine(keys, index, mine, from_a, from_a + skipped - mine, count, key, place);
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_OF_MINE if (me * EACH + j < count) {
        keys[AT(me * EACH + j)] = key[j];
        index[AT(me * EACH + j)] = place[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = me; i < count; i += TEAM) {
        if (last) {
            out[row + at + i] = index[AT(i)];
        } else {
            to_keys[row + at + i] = keys[AT(i)];
            to_index[row + at + i] = index[AT(i)];
        }
    }
}
