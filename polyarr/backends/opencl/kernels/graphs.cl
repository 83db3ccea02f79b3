// What a launch tells its work-items, for a comparison of two ways to launch.
//
// Arrays   sums (global size): every launch multiplies each by 3 and adds where the work-item is, and what is given
// Launch   any, of as many work-items as there are sums
// Params   none
typedef struct { int first, second, third; } Given;

__kernel void graph_check(__global uint *sums, const Given given, const float scale, const long number) {
    uint told = 0;
    for (uint axis = 0; axis < 3; axis++) {
        told = told * 7 + (uint)get_group_id(axis);
        told = told * 7 + (uint)get_num_groups(axis);
        told = told * 7 + (uint)get_local_id(axis);
        told = told * 7 + (uint)get_local_size(axis);
        told = told * 7 + (uint)get_global_size(axis);
        told = told * 7 + (uint)get_global_offset(axis);
    }
    const size_t row = get_global_id(2) * get_global_size(1) + get_global_id(1);
    const size_t i = row * get_global_size(0) + get_global_id(0);
    sums[i] = sums[i] * 3 + told + (uint)(given.first + 10 * given.second + 100 * given.third) + (uint)(4 * scale)
            + (uint)number;
}
