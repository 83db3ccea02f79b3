// Factors of one pass: roots of unity of a long transform, by one product of two short tables; and weights of the elements
// that a convolution reads and writes. Included by passes.cl and passes_gpu.cl after forms.cl.
//
// Params   FINE_BITS        2^FINE_BITS roots are in the first table
//          BEFORE, AFTER    1 or 0: elements have weights as they are read; as they are written
//          PAIR             see forms.cl

// Bits of `swaps`: when to exchange real and imaginary parts.
#define ON_READ 1
#define ON_WRITE 2
#define AFTER_WEIGHTS 4

// exp(-2 pi i t / n)
static inline PAIR root_at(__global const PAIR *restrict fine, int t) {
    return times(fine[(1 << FINE_BITS) + (t >> FINE_BITS)], fine[t & ((1 << FINE_BITS) - 1)]);
}

// Element i of a row x of n numbers in the form SOURCE. With weights it is 0 beyond them.
static inline PAIR read_element(__global const X *restrict x, __global const PAIR *restrict before, long i, long n,
                                int swaps) {
#if BEFORE
    const long there = MIN(i, n - 1);
    const PAIR v = times(swapped_if(swaps & ON_READ, read_number(x, 0, there, n, 0)), before[there]);
    return i < n ? v : (PAIR)(0, 0);
#else
    return swapped_if(swaps & ON_READ, read_number(x, 0, i, n, 0));
#endif
}

// Write v to element i of the row y, in the form RESULT. Nothing is written beyond the end of the row.
static inline void write_element(__global Y *restrict y, __global const PAIR *restrict after, long i, long y_length,
                                 int swaps, PAIR v) {
    if ((AFTER || RESULT == HALF) && i >= y_length) return;
    v = swapped_if(swaps & ON_WRITE, v);
    if (AFTER) v = swapped_if(swaps & AFTER_WEIGHTS, times(v, after[i]));
#if RESULT == REAL_NUMBERS
    y[i] = v.x;
#else
    y[i] = v;
#endif
}
