// Philox4x32-10: element i of out is word i % 4 of block i / 4.
//
// Arrays   out (4 * blocks): the last block is written whole, into the room that every allocation has at its end
// Launch   one work-item per span of blocks, rounded up; any group size
// Params   none

__kernel void random_bits(__global uint4 *restrict out, const ulong key, const ulong counter,
                          const long blocks, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, blocks);
    for (long block = first; block < last; block++) out[block] = philox4x32(block, counter, key);
}
