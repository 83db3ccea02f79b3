// Splits float32 matrices into 3 bfloat16 terms each, for GEMM on matrix units (split precision): x = high + middle +
// low, exactly; see split_bfloat16.cl. A non-finite number becomes itself, 0 and 0, and is reported. A work-item takes
// four columns (along the contiguous axis) of some rows.
//
// Arrays   x of float: matrix b begins at x_start + (b / inner) * outer_step + (b % inner) * inner_step; row_step
//          between rows
//          not_finite: set to 1 if a number is not finite; two words for divide_beside
//          divide: parts (3, batch, rows, pitch): high, middle and low terms; pitch is a multiple of 8
//          divide_beside: x and y (rows, columns), row-major, lengths in float4; there is no y if y_fours is 0.
//          x_parts, y_parts (rows, 3, columns): the terms side by side
// Launch   divide: global (float4 of columns, any number of rows, batch), local (64, 4, 1)
//          divide_beside: global any multiple of 256, local 256
// Params   VECTOR    1 if rows consist of aligned float4
#include "float4.cl"
#include "split_bfloat16.cl"

// Write the three terms of four numbers, `apart` uint2 apart; return 0 if one of the numbers is not finite.
static inline int write_terms(float4 v, __global uint2 *parts, long apart) {
    const int4 finite = v - v == 0;  // inf - inf and nan - nan are nan
    const float4 high = round4_to_bfloat16(v), rest = finite ? v - high : 0, middle = round4_to_bfloat16(rest);
    parts[0] = pack4_upper(high);
    parts[apart] = pack4_upper(middle);
    parts[2 * apart] = pack4_upper(rest - middle);
    return finite.x & finite.y & finite.z & finite.w;
}

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void divide(__global const float *x, __global volatile uint *not_finite, __global uint2 *parts, const long x_start,
            const long rows, const long columns, const long row_step, const long inner, const long inner_step, const long outer_step,
            const long pitch) {
    const long b = get_group_id(2), column = get_global_id(0) * 4, each = get_num_groups(2) * rows * pitch / 4;
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    if (column >= pitch) return;
    int all_finite = 1;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const float4 v = load_float4(x + row * row_step, column, columns);
        all_finite &= write_terms(v, parts + ((b * rows + row) * pitch + column) / 4, each);
    }
    if (!all_finite) atomic_max(not_finite, 1u);
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void divide_beside(__global const float4 *restrict x, __global const float4 *restrict y,
                   __global volatile uint *not_finite, __global uint2 *restrict x_parts, __global uint2 *restrict y_parts, const uint x_fours, const uint x_row,
                   const uint y_fours, const uint y_row) {
    int all_finite = 1;
    EACH_FLOAT4_INTERLEAVED(x, x_fours, x_row, 3, all_finite &= write_terms(v, x_parts + at, x_row))
    EACH_FLOAT4_INTERLEAVED(y, y_fours, y_row, 3, all_finite &= write_terms(v, y_parts + at, y_row))
    if (!all_finite) {
        atomic_max(not_finite, 1u);
        atomic_max(not_finite + 1, 1u);
    }
}
