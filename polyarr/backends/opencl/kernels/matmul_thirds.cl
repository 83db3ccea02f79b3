// Float32 matrices as three of bfloat16 each, for products on matrix units: x = high + middle + low, with all its bits.
//
// Each part has 8 bits, of the sign too, and what is left is less than half of its last: 24 bits in all. Of numbers below
// 2^-110 the last ones are lost. What is not finite has itself, 0 and 0, and is told.
//
// A work-item takes four columns of some rows: of the contiguous axis, whichever that is.
//
// Arrays   x: matrix b at x_start + (b / inner) * outer_step + (b % inner) * inner_step, row_step between its rows
//          told: set to 1 if a number is not finite; of divide_beside two words
//          parts (3, batch, rows, pitch): high, middle and low, pitch a multiple of 8
//          or, of divide_beside, (rows, 3, columns) for x (rows, columns) row-major, and likewise for y; lengths by four.
//          Where there is no y, y_fours is 0
// Launch   divide: global (fours of columns, rows that run at once, batch), local (64, 4, 1)
//          divide_beside: global any multiple of 256, local 256
// Params   VECTOR 1 if fours of columns are aligned
#include "fours.cl"
#include "thirds.cl"

// The parts of four numbers, which are so far apart; 0 if one of the numbers is not finite.
static inline int write_parts(float4 v, __global uint2 *parts, long apart) {
    const int4 finite = v - v == 0;  // what is not becomes a nan
    const float4 high = high_of_four(v), rest = finite ? v - high : 0, middle = high_of_four(rest);
    parts[0] = four_upper(high);
    parts[apart] = four_upper(middle);
    parts[2 * apart] = four_upper(rest - middle);
    return finite.x & finite.y & finite.z & finite.w;
}

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void divide(__global const float *x, __global volatile uint *told, __global uint2 *parts, const long x_start, const long rows,
            const long columns, const long row_step, const long inner, const long inner_step, const long outer_step,
            const long pitch) {
    const long b = get_group_id(2), column = get_global_id(0) * 4, each = get_num_groups(2) * rows * pitch / 4;
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    if (column >= pitch) return;
    int all_finite = 1;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const float4 v = four_of(x + row * row_step, column, columns);
        all_finite &= write_parts(v, parts + ((b * rows + row) * pitch + column) / 4, each);
    }
    if (!all_finite) atomic_max(told, 1u);
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void divide_beside(__global const float4 *restrict x, __global const float4 *restrict y, __global volatile uint *told,
                   __global uint2 *restrict x_parts, __global uint2 *restrict y_parts, const uint x_fours, const uint x_row,
                   const uint y_fours, const uint y_row) {
    int all_finite = 1;
    EACH_FOUR_BESIDE(x, x_fours, x_row, 3, all_finite &= write_parts(v, x_parts + at, x_row))
    EACH_FOUR_BESIDE(y, y_fours, y_row, 3, all_finite &= write_parts(v, y_parts + at, y_row))
    if (!all_finite) {
        atomic_max(told, 1u);
        atomic_max(told + 1, 1u);
    }
}
