// Moving elements to and from where integers point; elements are words of so many bytes, whatever they mean.
//
// Arrays   x (outer, n, words); indices (count); take's out and scatter's updates (outer, count, words);
//          take_along_axis: x (outer, n, words), indices and out (outer, count, words);
//          winner (n): 1 + the position of the last update for each slice, 0 for none. All row-major.
//          FAULT: see the prelude
// Launch   span > 1 or take_rows: one work-item per span of neighbours (CPU); otherwise one per word (GPU);
//          any group size
// Params   WORD type of a word | INDEX int or long, the type of indices | POSITION unsigned type that counts out's words
#if !defined(WORD) || !defined(INDEX) || !defined(POSITION)
#error "index.cl needs WORD, INDEX and POSITION"
#endif

// An index of an axis of length n, counted from the end if negative; -1, and a note, if there is no such element.
static inline long wrap(INDEX index, long n, FAULT) {
    const long k = index < 0 ? index + n : index;
    if (k >= 0 && k < n) return k;
    note_fault(fault, call, index, n);
    return -1;
}

// Only the note, for an op that has nothing to move.
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
                         const long n, const long count, const long words, const long total) {
    const POSITION i = get_global_id(0);
    if (i >= (POSITION)total) return;
    const POSITION row = i / (POSITION)words, word = i - row * (POSITION)words;
    const POSITION outer = row / (POSITION)count, p = row - outer * (POSITION)count;
    const long k = wrap(indices[p], n, fault, call);
    out[i] = k < 0 ? (WORD)0 : x[(outer * n + k) * words + word];
}

__kernel void take_along_axis(__global const WORD *restrict x, __global const INDEX *restrict indices,
                              __global WORD *restrict out, FAULT,
                              const long n, const long count, const long words, const long total, const long span) {
    const POSITION slice = count * words, last = MIN((long)(get_global_id(0) + 1) * span, total);

    for (POSITION i = get_global_id(0) * span; i < last; i++) {
        const long k = wrap(indices[i], n, fault, call);
        out[i] = k < 0 ? (WORD)0 : x[(i / slice * n + k) * words + i % (POSITION)words];
    }
}

__kernel void scatter_mark(__global const INDEX *restrict indices, __global volatile int *winner,
                           FAULT, const long n, const long count, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);

    for (long p = first; p < last; p++) {
        const long k = wrap(indices[p], n, fault, call);
        if (k >= 0) atomic_max(winner + k, (int)p + 1);
    }
}

__kernel void scatter_gather(__global const WORD *restrict x, __global const WORD *restrict updates,
                             __global const int *restrict winner, __global WORD *restrict out,
                             const long n, const long count, const long words, const long total, const long span) {
    const POSITION last = MIN((long)(get_global_id(0) + 1) * span, total);

    for (POSITION i = get_global_id(0) * span; i < last; i++) {
        const POSITION row = i / (POSITION)words, word = i - row * (POSITION)words;
        const POSITION outer = row / (POSITION)n, k = row - outer * (POSITION)n;
        const int from = winner[k];
        out[i] = from == 0 ? x[i] : updates[((long)outer * count + from - 1) * words + word];
    }
}
