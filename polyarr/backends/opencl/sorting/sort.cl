// Stable sort of rows on CPUs: tiles are sorted by insertion and merging, or by radix sort, then runs are merged
// pairwise. nan is the largest value.
//
// Elements are compared as keys: see keys.cl. A row is stored in keys and index as sorted runs, whose width a merge
// doubles.
//
// Arrays   x (rows, n) elements; keys, index (rows, n): the key of an element, and its position in the row
// Launch   sort_tiles_serial: one work-item per span of tiles, group 1
//          merge_runs: one work-item per `span` outputs, at least rows * ceil(n / span); span divides width
//          finish: one work-item per `span` of the `total` elements of out, which are the first `kept` of each row,
//          group 1; `values` is 1 to write the sorted elements, 0 for the order
// Params   those of keys.cl

#include "keys.cl"

#define SHORT_RUN 16
#define MIN_RADIX_TILE 512  // elements of a tile from which on radix sort is faster than merging
#define DIGITS (BITS / 8)

// Merge the runs [a, a_end) and [b, b_end), elements of the first run first if keys are equal; stop after count
// elements.
static inline void merge(__global const KEY *restrict keys, __global const int *restrict index,
                         long a, long a_end, long b, long b_end,
                         __global KEY *restrict to_keys, __global int *restrict to_index, long count) {
    long i = 0;
    for (; i < count && a < a_end && b < b_end; i++) {
        const KEY key_a = keys[a], key_b = keys[b];
        const int index_a = index[a], index_b = index[b];
        const bool second = key_b < key_a;
        to_keys[i] = second ? key_b : key_a;
        to_index[i] = second ? index_b : index_a;
        b += second;
        a += !second;
    }
    for (; i < count && a < a_end; i++, a++) { to_keys[i] = keys[a]; to_index[i] = index[a]; }
    for (; i < count; i++, b++) { to_keys[i] = keys[b]; to_index[i] = index[b]; }
}

// Sort runs of SHORT_RUN elements of x[first, last) by insertion; start is the index at which the row begins.
static inline void sort_short_runs(__global const KEY *restrict x, __global KEY *restrict keys,
                                   __global int *restrict index, long start, long first, long last) {
    for (long i = first; i < last; i++) {
        const KEY key = key_of(x[i]);
        const long run = first + (i - first) / SHORT_RUN * SHORT_RUN;
        long to = i;
        for (; to > run && keys[to - 1] > key; to--) { keys[to] = keys[to - 1]; index[to] = index[to - 1]; }
        keys[to] = key;
        index[to] = (int)(i - start);
    }
}

// Radix sort (least significant digit first) of x[first, last) into keys and index; start is the index at which the row
// begins. Not inlined, because that would slow down short rows.
static __attribute__((noinline)) void radix_sort(
    __global const KEY *restrict x, __global KEY *keys, __global int *index, __global KEY *spare_keys,
    __global int *spare_index, long start, long first, long last) {
    int due[DIGITS][256];                      // next output position for each digit value, relative to first
    for (int d = 0; d < DIGITS; d++) for (int b = 0; b < 256; b++) due[d][b] = 0;
    for (long i = first; i < last; i++) {
        const KEY key = key_of(x[i]);
        for (int d = 0; d < DIGITS; d++) due[d][key >> 8 * d & 255]++;
    }
    for (int d = 0; d < DIGITS; d++) {
        for (int b = 0, before = 0; b < 256; b++) {
            const int count = due[d][b];
            due[d][b] = before;
            before += count;
        }
    }
    for (int d = 0; d < DIGITS; d++) {
        const bool is_other = (DIGITS - d) % 2 == 0;   // the last pass writes to keys
        __global const KEY *from_keys = is_other ? keys : spare_keys;
        __global const int *from_index = is_other ? index : spare_index;
        __global KEY *to_keys = is_other ? spare_keys : keys;
        __global int *to_index = is_other ? spare_index : index;
        for (long i = first; i < last; i++) {
            const KEY key = d ? from_keys[i] : key_of(x[i]);
            const long to = first + due[d][key >> 8 * d & 255]++;
            to_keys[to] = key;
            to_index[to] = d ? from_index[i] : (int)(i - start);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void sort_tiles_serial(__global const KEY *restrict x, __global KEY *keys, __global int *index,
                       __global KEY *spare_keys, __global int *spare_index,
                       const long n, const long tile, const long tiles, const long span) {
    const long per_row = (n + tile - 1) / tile, begin = get_global_id(0) * span;

    for (long t = begin; t < MIN(begin + span, tiles); t++) {
        const long start = t / per_row * n, first = start + t % per_row * tile, last = MIN(first + tile, start + n);
        if (last - first >= MIN_RADIX_TILE) {
            radix_sort(x, keys, index, spare_keys, spare_index, start, first, last);
            continue;
        }
        __global KEY *from_keys = keys, *to_keys = spare_keys;
        __global int *from_index = index, *to_index = spare_index;
        long passes = 0;
        for (long width = SHORT_RUN; width < last - first; width *= 2) passes++;
        if (passes % 2) {                      // so that the last pass writes into keys
            from_keys = spare_keys; to_keys = keys;
            from_index = spare_index; to_index = index;
        }
        sort_short_runs(x, from_keys, from_index, start, first, last);
        for (long width = SHORT_RUN; width < last - first; width *= 2) {
            for (long a = first; a < last; a += 2 * width) {
                const long b = MIN(a + width, last), end = MIN(b + width, last);
                merge(from_keys, from_index, a, b, b, end, to_keys + a, to_index + a, end - a);
            }
            __global KEY *swap_keys = from_keys; from_keys = to_keys; to_keys = swap_keys;
            __global int *swap_index = from_index; from_index = to_index; to_index = swap_index;
        }
    }
}

__kernel void merge_runs(__global const KEY *restrict keys, __global const int *restrict index,
                         __global KEY *restrict to_keys, __global int *restrict to_index,
                         const long n, const long width, const long pieces, const long span) {
    const long piece = get_global_id(0), per_row = (n + span - 1) / span;
    if (piece >= pieces) return;
    const long start = piece / per_row * n, at = piece % per_row * span;
    const long a = at / (2 * width) * (2 * width), b = MIN(a + width, n), end = MIN(b + width, n);
    __global const KEY *row = keys + start;

    // Merge path: of the first (at - a) elements of the merged run, `low` come from the first run.
    const long skipped = at - a;
    long low = MAX(0L, skipped - (end - b)), high = MIN(skipped, b - a);
    while (low < high) {
        const long middle = (low + high) / 2;
        if (row[a + middle] <= row[b + skipped - 1 - middle]) low = middle + 1; else high = middle;
    }
    merge(row, index + start, a + low, b, b + skipped - low, end,
          to_keys + start + at, to_index + start + at, MIN(span, end - at));
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void finish(__global const KEY *restrict x, __global const int *restrict index, __global void *restrict out,
            const long n, const int values, const long kept, const long total, const long span) {
    const long begin = get_global_id(0) * span;
    for (long i = begin; i < MIN(begin + span, total); i++) {
        const long row = i / kept * n;
        WRITE_RESULT(out, i, x + row, index[row + i % kept], values)
    }
}
