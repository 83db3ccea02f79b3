// A test kernel that makes the launch configuration visible, to compare launches of a CUDA graph with plain launches. It
// takes some microseconds, so that a launch that begins early and does not wait reads what is not written yet.
//
// Arrays   sums (global size): every launch multiplies each element by 3 and adds a hash of it, the work-item's ids,
//          the launch sizes and the arguments
// Launch   any configuration with as many work-items as sums
// Params   none
typedef struct { int first, second, third; } Given;

__kernel void graph_check(__global uint *sums, const Given given, const float scale, const long number) {
    uint hash = 0;
    for (uint axis = 0; axis < 3; axis++) {
        hash = hash * 7 + (uint)get_group_id(axis);
        hash = hash * 7 + (uint)get_num_groups(axis);
        hash = hash * 7 + (uint)get_local_id(axis);
        hash = hash * 7 + (uint)get_local_size(axis);
        hash = hash * 7 + (uint)get_global_size(axis);
        hash = hash * 7 + (uint)get_global_offset(axis);
    }
    const size_t row = get_global_id(2) * get_global_size(1) + get_global_id(1);
    const size_t i = row * get_global_size(0) + get_global_id(0);
    const uint before = sums[i];
    uint slow = before;
    for (int n = 0; n < 1000; n++) slow = slow * 3 + (slow >> 7);
    sums[i] = before * 3 + slow + hash + (uint)(given.first + 10 * given.second + 100 * given.third) + (uint)(4 * scale)
            + (uint)number;
}
