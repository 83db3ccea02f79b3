// Factors of one pass: roots of unity of a long transform, by one product of two short tables; and weights of the elements
// that a convolution reads and writes. Included by passes.cl and passes_gpu.cl.
//
// Params   FINE_BITS        2^FINE_BITS roots are in the first table
//          BEFORE, AFTER    1 or 0: elements have weights as they are read; as they are written
//          PAIR             see butterflies.cl

// Bits of `swaps`: when to exchange real and imaginary parts.
#define ON_READ 1
#define ON_WRITE 2
#define AFTER_WEIGHTS 4

// exp(-2 pi i t / n)
static inline PAIR root_at(__global const PAIR *restrict fine, int t) {
    return times(fine[(1 << FINE_BITS) + (t >> FINE_BITS)], fine[t & ((1 << FINE_BITS) - 1)]);
}

// Element i of the row x. With weights it is 0 beyond the end of the row.
static inline PAIR read_element(__global const PAIR *restrict x, __global const PAIR *restrict before, long i,
                                long x_length, int swaps) {
#if BEFORE
    const long there = MIN(i, x_length - 1);
    const PAIR v = times(swapped_if(swaps & ON_READ, x[there]), before[there]);
    return i < x_length ? v : (PAIR)(0, 0);
#else
    return swapped_if(swaps & ON_READ, x[i]);
#endif
}

// Write v to element i of the row y. With weights nothing is written beyond the end of the row.
static inline void write_element(__global PAIR *restrict y, __global const PAIR *restrict after, long i, long y_length,
                                 int swaps, PAIR v) {
    v = swapped_if(swaps & ON_WRITE, v);
#if AFTER
    if (i < y_length) y[i] = swapped_if(swaps & AFTER_WEIGHTS, times(v, after[i]));
#else
    y[i] = v;
#endif
}
