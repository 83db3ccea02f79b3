// Dropout: y[i] = x[i] * scale if the upper 24 of element i's random bits reach the threshold, else 0. The random bits
// of element i are word i % 4 of Philox block i / 4 under (key, counter). The gradient is dropout of g under the same
// state.
//
// Arrays   x, y (n), contiguous
// Launch   local GROUP, global GROUP * ceil(n / BLOCK): a work-item processes BATCH Philox blocks at a time
// Params   T, ACC, DTYPE, RAW, WORD    the dtype, for DEFINE_VECTOR
//          GROUP, BLOCK       work-items per group; elements per group, a multiple of 4 * BATCH
//          BATCH              Philox blocks that are computed side by side
//          VECTOR             elements per vector load, a divisor of 4 * BATCH
//          STATE_ON_DEVICE    1 to read key and counter from memory, 0 to use the arguments

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)

#define SPAN (4 * BATCH)
#define DROP(j) { \
        ACC v[VECTOR]; \
        read_vector(x, i + j, end, v); \
        EACH_OF_VECTOR v[k] = (bits[j + k] >> 8) >= threshold ? v[k] * scale : 0; \
        write_vector(y, i + j, end, v); \
    }

// The random bits of BATCH Philox blocks. Each round runs over the whole batch, a loop that compilers vectorize.
static inline void philox_batch(ulong block, ulong counter, ulong key, uint *bits) {
    uint a[BATCH], b[BATCH], c[BATCH], d[BATCH];
    for (int k = 0; k < BATCH; k++) {
        a[k] = (uint)(block + k), b[k] = (uint)((block + k) >> 32);
        c[k] = (uint)counter, d[k] = (uint)(counter >> 32);
    }
    uint k0 = (uint)key, k1 = (uint)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < BATCH; k++) PHILOX_ROUND(a[k], b[k], c[k], d[k], k0, k1);
        k0 += PHILOX_STEP_0, k1 += PHILOX_STEP_1;
    }
    for (int k = 0; k < BATCH; k++) {
        bits[4 * k] = a[k], bits[4 * k + 1] = b[k];
        bits[4 * k + 2] = c[k], bits[4 * k + 3] = d[k];
    }
}

__kernel BLOCK_GROUP void dropout(__global const T *restrict x, __global T *restrict y, const long n,
                                  const uint threshold, const ACC scale, STATE) {
    const ulong key = STATE_KEY, counter = STATE_COUNTER;
    const size_t first = get_group_id(0) * BLOCK, end = MIN(first + BLOCK, (size_t)n);
    for (size_t i = first + get_local_id(0) * SPAN; i < end; i += GROUP * SPAN) {
        uint bits[SPAN];
        philox_batch(i / 4, counter, key, bits);
        if (i + SPAN <= end) {
            for (int j = 0; j < SPAN; j += VECTOR) DROP(j)
        } else {
            for (int j = 0; j < SPAN; j += VECTOR)
                if (i + j < end) DROP(j)
        }
    }
}
