// Philox4x32-10: element i of out is word i % 4 of block i / 4.
//
// Arrays   out (size)
// Launch   one work-item per span of blocks, rounded up; any group size
// Params   STATE_ON_DEVICE 0 or 1: whether key and counter are numbers, or read from memory
#if !defined(STATE_ON_DEVICE)
#error "random.cl needs STATE_ON_DEVICE"
#endif

__kernel void random_bits(__global uint *restrict out, STATE, const long size, const long span) {
    const ulong key = STATE_KEY, counter = STATE_COUNTER;
    const long first = get_global_id(0) * span, last = MIN(first + span, size / 4);
    for (long block = first; block < last; block++) ((__global uint4 *)out)[block] = philox4x32(block, counter, key);

    // The item that has the last block writes what there is of it.
    if (first <= size / 4 && size / 4 < first + span && size % 4) {
        const uint4 words = philox4x32(size / 4, counter, key);
        out[size / 4 * 4] = words.x;
        if (size % 4 > 1) out[size / 4 * 4 + 1] = words.y;
        if (size % 4 > 2) out[size / 4 * 4 + 2] = words.z;
    }
}
