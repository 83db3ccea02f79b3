// Copies rows of 16-bit elements that begin at any element to rows that begin at multiples of 4 bytes. A work-item
// writes EACH pairs of elements that lie GROUP pairs apart. An odd last column is followed by a 0.
//
// Arrays   x: row r begins at element x_start + r * x_step
//          out: row r begins at pair r * out_step
// Launch   global (ceil(pairs / (GROUP * EACH)) * GROUP, any number of rows), local (GROUP, 1)
// Params   GROUP, EACH    work-items per group, pairs per work-item

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void copy_rows(__global const ushort *restrict x, __global uint *restrict out, const long x_start, const long rows,
               const long columns, const long x_step, const long out_step) {
    const long first = get_group_id(0) * (GROUP * EACH) + get_local_id(0);
    for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
        __global const ushort *from = x + x_start + row * x_step;
        const int whole = (x_start + row * x_step) % 2 == 0;
        for (int i = 0; i < EACH; i++) {
            const long pair = first + i * GROUP, column = 2 * pair;
            if (column >= columns) break;
            out[row * out_step + pair] = column + 1 == columns ? from[column]
                                         : whole               ? ((__global const uint *)from)[pair]
                                                               : from[column] | (uint)from[column + 1] << 16;
        }
    }
}
