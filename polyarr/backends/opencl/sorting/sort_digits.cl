// Radix sort (least significant digit first) of long rows on GPUs. For each digit, count_digits makes a histogram per
// tile; the prefix sums of the histograms are the output positions of each tile's elements; by_digit scatters them
// there, stably.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): the key of an element, and its position in the row
//          out (rows, kept): the result
//          counts, sums (rows, VALUES, tiles of a row): the histograms, and their inclusive prefix sums
// Launch   local LANES, one work-group per TILE elements of each row. Arguments: `shift` is the lowest bit of the
//          digit; `first` is 1 to read x, else keys and index; `last` is 1 to write out, else keys and index; `values`
//          is 1 to write the sorted elements, 0 for the order; `kept` is the length of the result's rows
// Params   those of keys.cl and items.cl; ITEM_BITS is the number of bits of a digit
#include "keys.cl"
#include "items.cl"
#if ITEM_BITS > 16
#error "sort_digits.cl needs digits of at most 16 bits"
#endif

#define VALUES (1 << ITEM_BITS)
#define DIGIT_OF(key) ((int)((key) >> shift) & (VALUES - 1))
#define SORTING __attribute__((reqd_work_group_size(LANES, 1, 1)))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)

__kernel SORTING
void count_digits(__global const KEY *restrict keys, __global int *restrict counts, const long n, const long tiles,
                  const int shift, const int first) {
    __local int found[VALUES];
    const int me = get_local_id(0);
    const long row = get_group_id(0) / tiles, tile = get_group_id(0) % tiles;
    const int count = (int)MIN((long)TILE, n - tile * TILE);
    for (int v = me; v < VALUES; v += LANES) found[v] = 0;
    SYNC;
    keys += row * n + tile * TILE;
    for (int i = me; i < count; i += LANES) {
        const KEY key = first ? key_of(keys[i]) : keys[i];
        atomic_inc(&found[DIGIT_OF(key)]);
    }
    SYNC;
    for (int v = me; v < VALUES; v += LANES) counts[(row * VALUES + v) * tiles + tile] = found[v];
}

__kernel SORTING
void by_digit(__global const KEY *restrict from_keys, __global const int *restrict from_index,
              __global KEY *restrict to_keys, __global int *restrict to_index, __global const KEY *restrict x,
              __global void *restrict out, __global const int *restrict counts,
              __global const int *restrict totals, const long n, const long tiles, const int shift, const int first,
              const int last, const int values, const long kept) {
    __local Item items[PADDED_TILE];
    __local int starts[VALUES];
    const int me = get_local_id(0);
    const long row = get_group_id(0) / tiles, tile = get_group_id(0) % tiles, begin = tile * TILE;
    const int count = (int)MIN((long)TILE, n - begin);
    Item mine[EACH];
    from_keys += row * n + begin;
    from_index += row * n + begin;
    EACH_OF_MINE {  // positions past the end get a digit above the largest, so that they sort last
        const int place = me + j * LANES;
        const KEY key = place < count ? from_keys[place] : 0;
        mine[j] = ITEM(place < count ? DIGIT_OF(first ? key_of(key) : key) : VALUES, place);
    }
    SORT_TILE(items, mine, me)
    // starts[v]: the offset from a position in the sorted tile to the position in the row, for elements with digit v.
    for (int i = me; i < count; i += LANES) {
        const int v = KEY_OF(items[AT(i)]);
        if (i == 0 || KEY_OF(items[AT(i - 1)]) != v) {
            const long at = (row * VALUES + v) * tiles + tile;
            starts[v] = totals[at] - counts[at] - i;
        }
    }
    SYNC;
    for (int i = me; i < count; i += LANES) {
        const int place = PLACE_OF(items[AT(i)]);
        const long to = starts[KEY_OF(items[AT(i)])] + i;
        const int from = first ? (int)(begin + place) : from_index[place];
        if (last) {
            if (to < kept) WRITE_RESULT(out, row * kept + to, x + row * n, from, values)
        } else {
            to_keys[row * n + to] = first ? key_of(from_keys[place]) : from_keys[place];
            to_index[row * n + to] = from;
        }
    }
}
