// Long rows in order, for GPUs: by one digit of the keys after the other, from the lowest on. For each digit,
// count_digits counts how often each tile has each value; running sums of the counts say where the elements of a tile with
// that value begin; by_digit puts them there, in the order that they have.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): an element's key, and where in the row it came from; out (rows, kept)
//          counts, sums (rows, 1 << DIGIT, tiles of a row): how many, and how many up to and including these
// Launch   local WG, a work-group for each tile of WG * EACH elements of each row. shift is where the digit begins; `first` 1
//          to read x, else keys and index; `last` 1 to write out, else keys and index; `values` 1 for the elements in
//          order, 0 for the order; `kept` of each row, from the first on
// Params   those of keys.cl | WG | EACH elements of a work-item, at most 2^16 / WG
#include "keys.cl"
#if !defined(WG) || !defined(EACH)
#error "sort_digits.cl needs WG and EACH"
#endif

#define DIGIT 8  // bits; the launcher has it too
#define HALF (DIGIT / 2)
#define VALUES (1 << DIGIT)
#define TILE (WG * EACH)
#define AT(i) ((i) + (i) / 32)  // so that neighbours' shares lie in different banks
#define PLACE(i) ((i) + (i) / COUNTED * 2)  // the same of numbers of 16 bits
#define DIGIT_OF(key) ((int)((key) >> shift) & (VALUES - 1))
#define HALF_OF(key) ((int)((key) >> from) & (COUNTED - 1))
#define SORTING __attribute__((reqd_work_group_size(WG, 1, 1)))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define EACH_OF_MINE _Pragma("unroll") for (int j = 0; j < EACH; j++)
#define COUNTED (1 << HALF)  // counts that a work-item adds up

__kernel SORTING
void count_digits(__global const KEY *restrict keys, __global int *restrict counts, const long n, const long tiles,
                  const int shift, const int first) {
    __local int found[VALUES];
    const int me = get_local_id(0);
    const long row = get_group_id(0) / tiles, tile = get_group_id(0) % tiles;
    const int count = (int)MIN((long)TILE, n - tile * TILE);
    for (int v = me; v < VALUES; v += WG) found[v] = 0;
    SYNC;
    keys += row * n + tile * TILE;
    for (int i = me; i < count; i += WG) {
        const KEY key = first ? key_of(keys[i]) : keys[i];
        atomic_inc(&found[DIGIT_OF(key)]);
    }
    SYNC;
    for (int v = me; v < VALUES; v += WG) counts[(row * VALUES + v) * tiles + tile] = found[v];
}

__kernel SORTING
void by_digit(__global const KEY *restrict from_keys, __global const int *restrict from_index,
              __global KEY *restrict to_keys, __global int *restrict to_index, __global const KEY *restrict x,
              __global void *restrict out, __global const int *restrict counts, __global const int *restrict totals, const long n,
              const long tiles, const int shift, const int first, const int last, const int values,
              const long kept) {
    __local KEY keys[AT(TILE)];
    __local int index[AT(TILE)], sums[WG], starts[VALUES];
    __local ushort places[PLACE(COUNTED * WG)];
    const int me = get_local_id(0);
    const long row = get_group_id(0) / tiles, tile = get_group_id(0) % tiles, begin = tile * TILE;
    const int count = (int)MIN((long)TILE, n - begin);
    for (int i = me; i < TILE; i += WG) {  // what is past the end comes last, behind the largest digit
        KEY key = (KEY)~(KEY)0;
        int from = 0;
        if (i < count) {
            const KEY read = from_keys[row * n + begin + i];
            key = first ? key_of(read) : read;
            from = first ? (int)(begin + i) : from_index[row * n + begin + i];
        }
        keys[AT(i)] = key;
        index[AT(i)] = from;
    }
    SYNC;
    // Sort the tile by one half of the digit, then by the other. Not in a function of its own, with which PoCL 3.0 writes
    // where it may not.
    for (int from = shift; from < shift + DIGIT; from += HALF) {
        KEY key[EACH];
        int place[EACH], rank[EACH], sum = 0;
        // How many elements have a value, later how many come before; by value and work-item.
        for (int v = 0; v < COUNTED; v++) places[PLACE(v * WG + me)] = 0;
        EACH_OF_MINE {
            key[j] = keys[AT(me * EACH + j)];
            place[j] = index[AT(me * EACH + j)];
            rank[j] = places[PLACE(HALF_OF(key[j]) * WG + me)]++;
        }
        SYNC;
        for (int c = 0; c < COUNTED; c++) sum += places[PLACE(me * COUNTED + c)];
        sums[me] = sum;
        for (int step = 1; step < WG; step *= 2) {
            SYNC;
            const int others = me >= step ? sums[me - step] : 0;
            SYNC;
            sums[me] += others;
        }
        int before = sums[me] - sum;
        for (int c = 0; c < COUNTED; c++) {
            const int found = places[PLACE(me * COUNTED + c)];
            places[PLACE(me * COUNTED + c)] = (ushort)before;
            before += found;
        }
        SYNC;
        EACH_OF_MINE {
            const int to = places[PLACE(HALF_OF(key[j]) * WG + me)] + rank[j];
            keys[AT(to)] = key[j];
            index[AT(to)] = place[j];
        }
        SYNC;
    }
    // starts[v]: what to add to a place in the tile for the place in the row of an element with value v.
    for (int i = me; i < count; i += WG) {
        const int v = DIGIT_OF(keys[AT(i)]);
        if (i == 0 || DIGIT_OF(keys[AT(i - 1)]) != v) {
            const long at = (row * VALUES + v) * tiles + tile;
            starts[v] = totals[at] - counts[at] - i;
        }
    }
    SYNC;
    for (int i = me; i < count; i += WG) {
        const KEY key = keys[AT(i)];
        const long to = starts[DIGIT_OF(key)] + i;
        if (last) {
            if (to < kept) GIVE(out, row * kept + to, x + row * n, index[AT(i)], values)
        } else {
            to_keys[row * n + to] = key;
            to_index[row * n + to] = index[AT(i)];
        }
    }
}
