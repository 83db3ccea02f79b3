// Roots of unity of a long transform by one product of two short tables. Included by passes.cl and passes_gpu.cl.
//
// Params   FINE_BITS     2^FINE_BITS roots are in the first table
//          PAIR          see butterflies.cl

// exp(-2 pi i t / n)
static inline PAIR root_at(__global const PAIR *restrict fine, int t) {
    return times(fine[(1 << FINE_BITS) + (t >> FINE_BITS)], fine[t & ((1 << FINE_BITS) - 1)]);
}
