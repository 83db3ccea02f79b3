// random_bits: element i of out is word i % 4 of Philox4x32-10 block i / 4 under (key, counter).
//
// Arrays   out (size) of uint32
// Launch   one work-item per `span` blocks of four words, rounded up; any group size
// Params   STATE_ON_DEVICE    1 to read key and counter from memory, 0 to use the arguments

__kernel void random_bits(__global uint *restrict out, STATE, const long size, const long span) {
    const ulong key = STATE_KEY, counter = STATE_COUNTER;
    const long first = get_global_id(0) * span, last = MIN(first + span, size / 4);
    for (long block = first; block < last; block++) ((__global uint4 *)out)[block] = philox4x32(block, counter, key);

    // The work-item that has the last, incomplete block writes the words that exist.
    if (first <= size / 4 && size / 4 < first + span && size % 4) {
        const uint4 words = philox4x32(size / 4, counter, key);
        out[size / 4 * 4] = words.x;
        if (size % 4 > 1) out[size / 4 * 4 + 1] = words.y;
        if (size % 4 > 2) out[size / 4 * 4 + 2] = words.z;
    }
}
