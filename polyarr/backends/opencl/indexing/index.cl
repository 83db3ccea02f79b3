// Gather and scatter along an axis: take, take_along_axis, and scatter. Elements are moved as words, whatever their
// dtype.
//
// Arrays   take_rows, take_words: x (outer, n, words), indices (count), out (outer, count, words)
//          take_along_axis: x (outer, n, words), indices and out (outer, count, words)
//          scatter_mark, scatter_gather: x, out (outer, n, words), indices (count), updates (outer, count, words),
//          winner (slices) of int: 1 + the position of the last update of each slice from `begin` on, 0 for none
//          scatter_few: out, indices and updates likewise; out holds x and keeps what has no update
//          All arrays are row-major. FAULT: see prelude.cl
// Launch   any group size. On CPUs, and for take_rows, one work-item per `span` consecutive words, indices or rows; on
//          GPUs span is 1. take_words, take_along_axis and scatter_gather fill one tile of out, a contiguous part
//          (outer, height, width) of `total` words that an int can count: 64-bit divisions are slow on GPUs, and
//          launches of 2^31 work-items failed on NVIDIA's. first_*: offset of the tile in an array, in words, indices
//          or slices
// Params   WORD     type of a word
//          INDEX    type of indices: int or long

// Normalize an index of an axis of length n: negative ones count from the end. Out of range, record a fault and return
// -1.
static inline long wrap(INDEX index, long n, FAULT) {
    const long k = index < 0 ? index + n : index;
    if (k >= 0 && k < n) return k;
    note_fault(fault, call, index, n);
    return -1;
}

// Record faults only, for ops whose result has no elements.
__kernel void check_indices(__global const INDEX *restrict indices, FAULT,
                            const long n, const long count, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);

    for (long p = first; p < last; p++) wrap(indices[p], n, fault, call);
}

__kernel void take_rows(__global const WORD *restrict x, __global const INDEX *restrict indices,
                        __global WORD *restrict out, FAULT,
                        const long n, const long count, const long words, const long rows, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, rows);
    long outer = first / count, p = first % count;

    for (long row = first; row < last; row++) {
        const long k = wrap(indices[p], n, fault, call);
        __global const WORD *from = x + (outer * n + k) * words;
        __global WORD *to = out + row * words;
        if (k < 0)
            for (long w = 0; w < words; w++) to[w] = (WORD)0;
        else
            for (long w = 0; w < words; w++) to[w] = from[w];
        if (++p == count) { p = 0; outer++; }
    }
}

__kernel void take_words(__global const WORD *restrict x, __global const INDEX *restrict indices,
                         __global WORD *restrict out, FAULT,
                         const long n, const long words, const long height, const long width, const long total,
                         const long first_x, const long first_index, const long first_out) {
    const uint i = get_global_id(0);
    if (i >= (uint)total) return;
    const uint row = i / (uint)width, word = i - row * (uint)width;
    const uint outer = row / (uint)height, p = row - outer * (uint)height;
    const long k = wrap(indices[first_index + p], n, fault, call);
    out[first_out + i] = k < 0 ? (WORD)0 : x[first_x + (outer * n + k) * words + word];
}

__kernel void take_along_axis(__global const WORD *restrict x, __global const INDEX *restrict indices,
                              __global WORD *restrict out, FAULT,
                              const long n, const long words, const long height, const long width, const long total,
                              const long first_x, const long first_out, const long span) {
    const uint slice = height * width, last = MIN((long)(get_global_id(0) + 1) * span, total);

    for (uint i = get_global_id(0) * span; i < last; i++) {
        const long k = wrap(indices[first_out + i], n, fault, call);
        out[first_out + i] = k < 0 ? (WORD)0 : x[first_x + (i / slice * n + k) * words + i % (uint)width];
    }
}

__kernel void scatter_mark(__global const INDEX *restrict indices, __global volatile int *winner,
                           FAULT, const long n, const long begin, const long slices, const long count,
                           const long first_index, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);

    for (long p = first; p < last; p++) {
        const long k = wrap(indices[first_index + p], n, fault, call) - begin;
        if (k >= 0 && k < slices) atomic_max(winner + k, (int)p + 1);
    }
}

__kernel void scatter_gather(__global const WORD *restrict x, __global const WORD *restrict updates,
                             __global const int *restrict winner, __global WORD *restrict out,
                             const long count, const long words, const long height, const long width,
                             const long total, const long first_update, const long first_slice, const long first_out,
                             const long span) {
    const uint last = MIN((long)(get_global_id(0) + 1) * span, total);

    for (uint i = get_global_id(0) * span; i < last; i++) {
        const uint row = i / (uint)width, word = i - row * (uint)width;
        const uint outer = row / (uint)height, k = row - outer * (uint)height;
        const int from = winner[first_slice + k];
        out[first_out + i] = from == 0 ? x[first_out + i]
                                       : updates[first_update + (outer * count + from - 1) * words + word];
    }
}

// Write updates into a copy of x. Each work-item looks for later updates of its slice, so these must be few.
__kernel void scatter_few(__global const INDEX *restrict indices, __global const WORD *restrict updates,
                          __global WORD *restrict out, FAULT,
                          const long n, const long count, const long words, const long total, const long span) {
    const uint last = MIN((long)(get_global_id(0) + 1) * span, total);

    for (uint i = get_global_id(0) * span; i < last; i++) {
        const uint row = i / (uint)words, word = i - row * (uint)words;
        const uint outer = row / (uint)count, p = row - outer * (uint)count;
        const long k = wrap(indices[p], n, fault, call);
        uint later = p + 1;
        while (later < (uint)count && indices[later] != k && indices[later] + n != k) later++;
        if (k >= 0 && later == (uint)count) out[(outer * n + k) * words + word] = updates[i];
    }
}
