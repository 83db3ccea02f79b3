// Splits float32 matrices into bfloat16 terms, for GEMM on matrix units (split precision); see bfloat16_terms.cl. Numbers
// that are not finite are reported. A work-item takes four columns (along the contiguous axis) of some rows.
//
// Arrays   x of float: matrix b begins at x_start + (b / inner) * outer_step + (b % inner) * inner_step; row_step
//          between rows
//          special (1): set to 1 if a number is not finite
//          split_matrix: terms (TERMS, batch, rows, pitch): high terms first; pitch is a multiple of 8
//          split_rows: x and y (rows, columns), row-major, lengths in float4; there is no y if y_fours is 0.
//          x_terms, y_terms (rows, TERMS, columns): the terms side by side
// Launch   split_matrix: global (float4 of columns, any number of rows, batch), local (64, 4, 1)
//          split_rows: global any multiple of 256, local 256
// Params   VECTOR    1 if rows consist of aligned float4
//          TERMS     2 or 3
#include "float4.cl"
#include "bfloat16_terms.cl"

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void split_matrix(__global const float *x, __global volatile uint *special, __global uint2 *terms, const long x_start,
                  const long rows, const long columns, const long row_step, const long inner, const long inner_step,
                  const long outer_step, const long pitch) {
    const long b = get_group_id(2), column = get_global_id(0) * 4, each = get_num_groups(2) * rows * pitch / 4;
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    if (column >= pitch) return;
    int all_finite = 1;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const float4 v = load_float4(x + row * row_step, column, columns);
        all_finite &= write_terms(v, terms + ((b * rows + row) * pitch + column) / 4, each);
    }
    if (!all_finite) atomic_max(special, 1u);
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void split_rows(__global const float4 *restrict x, __global const float4 *restrict y, __global volatile uint *special,
                __global uint2 *restrict x_terms, __global uint2 *restrict y_terms, const uint x_fours,
                const uint x_row, const uint y_fours, const uint y_row) {
    int all_finite = 1;
    EACH_FLOAT4_INTERLEAVED(x, x_fours, x_row, TERMS, all_finite &= write_terms(v, x_terms + at, x_row))
    EACH_FLOAT4_INTERLEAVED(y, y_fours, y_row, TERMS, all_finite &= write_terms(v, y_terms + at, y_row))
    if (!all_finite) atomic_max(special, 1u);
}
