// Splits float32 matrices into 2 float16 terms each, for GEMM on matrix units (split precision): x 2^shift = high + low
// / 2^11. The shift follows from the amax of the matrix: see ptx.cl. A work-item takes four columns (along the
// contiguous axis) of some rows.
//
// Arrays   x of float: matrix b begins at x_start + (b / inner) * outer_step + (b % inner) * inner_step; row_step
//          between rows
//          find_amax, divide: amax (2): the amax of x and of y as bits of floats, 0 at first; `which` selects
//          this operand's
//          divide: parts (2, batch, rows, pitch): high terms, then low terms; pitch is a multiple of 8
//          find_amax_of_two, divide_beside: x and y (rows, columns), row-major, lengths in float4; there is no y if y_fours
//          is 0. x_parts, y_parts (rows, 2, columns): high and low terms side by side. x_amax, y_amax: two copies of
//          the amax, then x_found, y_found words whose maximum it is, such as the amax of each group of find_amax_of_two
// Launch   find_amax, divide: global (float4 of columns, any number of rows, batch), local (64, 4, 1)
//          find_amax_of_two, divide_beside: global any multiple of 256, local 256
// Params   KIND      f16
//          VECTOR    1 if rows consist of aligned float4
#include "ptx.cl"
#include "float4.cl"
#include "amax.cl"

static inline uint amax_bits(float4 v) {
    return MAX(MAX(finite_bits(v.x), finite_bits(v.y)), MAX(finite_bits(v.z), finite_bits(v.w)));
}

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void find_amax(__global const float *x, __global volatile uint *amax, const int which, const long x_start,
               const long rows, const long columns, const long row_step, const long inner, const long inner_step,
               const long outer_step) {
    __local uint largest[256];
    const long b = get_group_id(2), column = get_global_id(0) * 4;
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    uint bits = 0;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1))
        bits = MAX(bits, amax_bits(load_float4(x + row * row_step, column, columns)));
    bits = group_max(bits, largest, get_local_id(1) * 64 + get_local_id(0), 256);
    if (get_local_id(0) + get_local_id(1) == 0) atomic_max(amax + which, bits);
}

INLINE uint amax_of(__global const float4 *restrict x, uint fours) {
    uint bits = 0;
    const uint grid = get_global_size(0);
    uint i = get_global_id(0);
    for (; i + (BATCH - 1) * grid < fours; i += BATCH * grid)
        UNROLL for (int b = 0; b < BATCH; b++) bits = MAX(bits, amax_bits(x[i + b * grid]));
    for (; i < fours; i += grid) bits = MAX(bits, amax_bits(x[i]));
    return bits;
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void find_amax_of_two(__global const float4 *restrict x, __global const float4 *restrict y, __global uint *x_amax,
                __global uint *y_amax, const uint x_fours, const uint y_fours) {
    __local uint largest[256];
    const int me = get_local_id(0);
    const uint group = get_group_id(0), of_x = group_max(amax_of(x, x_fours), largest, me, 256);
    const uint of_y = y_fours ? group_max(amax_of(y, y_fours), largest, me, 256) : 0;
    if (me) return;
    x_amax[2 + group] = of_x;
    if (y_fours) y_amax[2 + group] = of_y;
}

// Write the two terms of four numbers, `apart` uint2 apart.
static inline void write_terms(float4 v, __global uint2 *parts, long apart) {
    const uint2 high = (uint2)(pack_pair(v.x, v.y), pack_pair(v.z, v.w));
    const float2 a = unpack_pair(high.x), c = unpack_pair(high.y);
    parts[0] = high;
    parts[apart] =
        (uint2)(pack_pair(low_of(v.x, a.x), low_of(v.y, a.y)), pack_pair(low_of(v.z, c.x), low_of(v.w, c.y)));
}

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void divide(__global const float *x, __global const uint *amax, __global uint2 *parts, const int which,
            const long x_start, const long rows, const long columns, const long row_step, const long inner,
            const long inner_step, const long outer_step, const long pitch) {
    const long b = get_group_id(2), column = get_global_id(0) * 4, all = get_num_groups(2) * rows * pitch / 4;
    const float scale = power_of_2(shift_of(amax[which]));
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    if (column >= pitch) return;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const float4 v = load_float4(x + row * row_step, column, columns) * scale;
        write_terms(v, parts + ((b * rows + row) * pitch + column) / 4, all);
    }
}

// Reduce the `found` amax values to one, write it for the GEMM, and split x with it.
INLINE void split_interleaved(__global const float4 *restrict x, __global uint *amax, __local uint *largest,
                         uint found, __global uint2 *restrict parts, uint fours, uint row) {
    uint bits = 0;
    for (uint i = get_local_id(0); i < found; i += 256) bits = MAX(bits, amax[2 + i]);
    bits = group_max(bits, largest, get_local_id(0), 256);
    if (get_global_id(0) < 2) amax[get_global_id(0)] = bits;
    const float scale = power_of_2(shift_of(bits));
    EACH_FLOAT4_INTERLEAVED(x, fours, row, 2, write_terms(v * scale, parts + at, row))
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void divide_beside(__global const float4 *restrict x, __global const float4 *restrict y, __global uint *x_amax,
                   __global uint *y_amax, const uint x_found, const uint y_found, __global uint2 *restrict x_parts,
                   __global uint2 *restrict y_parts, const uint x_fours, const uint x_row, const uint y_fours,
                   const uint y_row) {
    __local uint largest[256];
    split_interleaved(x, x_amax, largest, x_found, x_parts, x_fours, x_row);
    if (y_fours) split_interleaved(y, y_amax, largest, y_found, y_parts, y_fours, y_row);
}
