// Long rows in order, for GPUs: by one digit of the keys after the other, from the lowest on. For each digit,
// count_digits counts how often each tile has each value; running sums of the counts say where the elements of a tile with
// that value begin; by_digit puts them there, in the order that they have.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): an element's key, and where in the row it came from; out (rows, kept)
//          counts, sums (rows, VALUES, tiles of a row): how many, and how many up to and including these
// Launch   local TEAM, a work-group for each TILE elements of each row. shift is where the digit begins; `first` 1
//          to read x, else keys and index; `last` 1 to write out, else keys and index; `values` 1 for the elements in
//          order, 0 for the order; `kept` of each row, from the first on
// Params   those of keys.cl and items.cl, ITEM_BITS being those of a digit
#include "keys.cl"
#include "items.cl"
#if ITEM_BITS > 16
#error "sort_digits.cl needs digits of at most 16 bits"
#endif

#define VALUES (1 << ITEM_BITS)
#define DIGIT_OF(key) ((int)((key) >> shift) & (VALUES - 1))
#define SORTING __attribute__((reqd_work_group_size(TEAM, 1, 1)))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)

__kernel SORTING
void count_digits(__global const KEY *restrict keys, __global int *restrict counts, const long n, const long tiles,
                  const int shift, const int first) {
    __local int found[VALUES];
    const int me = get_local_id(0);
    const long row = get_group_id(0) / tiles, tile = get_group_id(0) % tiles;
    const int count = (int)MIN((long)TILE, n - tile * TILE);
    for (int v = me; v < VALUES; v += TEAM) found[v] = 0;
    SYNC;
    keys += row * n + tile * TILE;
    for (int i = me; i < count; i += TEAM) {
        const KEY key = first ? key_of(keys[i]) : keys[i];
        atomic_inc(&found[DIGIT_OF(key)]);
    }
    SYNC;
    for (int v = me; v < VALUES; v += TEAM) counts[(row * VALUES + v) * tiles + tile] = found[v];
}

__kernel SORTING
void by_digit(__global const KEY *restrict from_keys, __global const int *restrict from_index,
              __global KEY *restrict to_keys, __global int *restrict to_index, __global const KEY *restrict x,
              __global void *restrict out, __global const int *restrict counts,
              __global const int *restrict totals, const long n, const long tiles, const int shift, const int first,
              const int last, const int values, const long kept) {
    __local Item items[ROOM];
    __local int starts[VALUES];
    const int me = get_local_id(0);
    const long row = get_group_id(0) / tiles, tile = get_group_id(0) % tiles, begin = tile * TILE;
    const int count = (int)MIN((long)TILE, n - begin);
    Item mine[EACH];
    from_keys += row * n + begin;
    from_index += row * n + begin;
    EACH_OF_MINE {  // what is past the end comes last, behind the largest digit
        const int place = me + j * TEAM;
        const KEY key = place < count ? from_keys[place] : 0;
        mine[j] = ITEM(place < count ? DIGIT_OF(first ? key_of(key) : key) : VALUES, place);
    }
    SORT_TILE(items, mine, me)
    // starts[v]: what to add to a place in the tile for the place in the row of an element with value v.
    for (int i = me; i < count; i += TEAM) {
        const int v = KEY_OF(items[AT(i)]);
        if (i == 0 || KEY_OF(items[AT(i - 1)]) != v) {
            const long at = (row * VALUES + v) * tiles + tile;
            starts[v] = totals[at] - counts[at] - i;
        }
    }
    SYNC;
    for (int i = me; i < count; i += TEAM) {
        const int place = PLACE_OF(items[AT(i)]);
        const long to = starts[KEY_OF(items[AT(i)])] + i;
        const int from = first ? (int)(begin + place) : from_index[place];
        if (last) {
            if (to < kept) GIVE(out, row * kept + to, x + row * n, from, values)
        } else {
            to_keys[row * n + to] = first ? key_of(from_keys[place]) : from_keys[place];
            to_index[row * n + to] = from;
        }
    }
}
