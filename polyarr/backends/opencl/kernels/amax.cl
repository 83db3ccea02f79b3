// amax: the largest finite magnitude of float32 numbers, as the bits of a float, which are ordered as the magnitudes
// are.

static inline uint finite_bits(float v) {
    const uint bits = as_uint(v) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

// Return the maximum of `bits` over a work-group of `count` work-items, a power of two, to all of them.
static inline uint group_max(uint bits, __local uint *largest, int me, int count) {
    barrier(CLK_LOCAL_MEM_FENCE);
    largest[me] = bits;
    for (int step = count / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < step) largest[me] = MAX(largest[me], largest[me + step]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return largest[0];
}
