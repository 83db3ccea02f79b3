// The largest finite magnitude of many numbers, as bits, whose order is that of the magnitudes.

static inline uint finite_bits(float v) {
    const uint bits = as_uint(v) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

// The largest of what the work-items of a group have, of which there are a power of two.
static inline uint most_in_group(uint bits, __local uint *largest, int me, int count) {
    barrier(CLK_LOCAL_MEM_FENCE);
    largest[me] = bits;
    for (int step = count / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < step) largest[me] = MAX(largest[me], largest[me + step]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return largest[0];
}
