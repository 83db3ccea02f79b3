// Float32 matrices as two of float16 each, for products on matrix units: x 2^shift = high + low / 2^11; see ptx.cl.
//
// A work-item takes four columns of some rows: of the contiguous axis, whichever that is.
//
// Arrays   x: matrix b at x_start + (b / inner) * outer_step + (b % inner) * inner_step, row_step between its rows
//          peaks (2): the bits of the largest finite magnitude of x and of y, 0 at first; this one's is peaks[which]
//          parts (2, batch, rows, pitch): high and low, pitch a multiple of 8
//          or, of divide_beside, (rows, 2, columns) for x (rows, columns) row-major, and likewise for y; lengths by four.
//          Without y_fours there is no y. x_peaks, y_peaks: the bits of the largest finite magnitude, twice, and then
//          x_found, y_found words of which it is the largest: what each group of find_peaks has seen, say
// Launch   find_peak, divide: global (fours of columns, rows that run at once, batch), local (64, 4, 1)
//          find_peaks, divide_beside: global any multiple of 256, local 256
// Params   KIND f16 | VECTOR 1 if fours of columns are aligned
#include "ptx.cl"
#include "fours.cl"
#include "peak.cl"

static inline uint most_bits(float4 v) {
    return MAX(MAX(finite_bits(v.x), finite_bits(v.y)), MAX(finite_bits(v.z), finite_bits(v.w)));
}

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void find_peak(__global const float *x, __global volatile uint *peaks, const int which, const long x_start,
               const long rows, const long columns, const long row_step, const long inner, const long inner_step,
               const long outer_step) {
    __local uint largest[256];
    const long b = get_group_id(2), column = get_global_id(0) * 4;
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    uint bits = 0;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1))
        bits = MAX(bits, most_bits(four_of(x + row * row_step, column, columns)));
    bits = most_in_group(bits, largest, get_local_id(1) * 64 + get_local_id(0), 256);
    if (get_local_id(0) + get_local_id(1) == 0) atomic_max(peaks + which, bits);
}

INLINE uint most_of_all(__global const float4 *restrict x, uint fours) {
    uint bits = 0;
    const uint grid = get_global_size(0);
    uint i = get_global_id(0);
    for (; i + (BATCH - 1) * grid < fours; i += BATCH * grid)
        UNROLL for (int b = 0; b < BATCH; b++) bits = MAX(bits, most_bits(x[i + b * grid]));
    for (; i < fours; i += grid) bits = MAX(bits, most_bits(x[i]));
    return bits;
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void find_peaks(__global const float4 *restrict x, __global const float4 *restrict y, __global uint *x_peaks,
                __global uint *y_peaks, const uint x_fours, const uint y_fours) {
    __local uint largest[256];
    const int me = get_local_id(0);
    const uint group = get_group_id(0), of_x = most_in_group(most_of_all(x, x_fours), largest, me, 256);
    const uint of_y = y_fours ? most_in_group(most_of_all(y, y_fours), largest, me, 256) : 0;
    if (me) return;
    x_peaks[2 + group] = of_x;
    if (y_fours) y_peaks[2 + group] = of_y;
}

// The parts of four numbers, which are so far apart.
static inline void write_parts(float4 v, __global uint2 *parts, long apart) {
    const uint2 high = (uint2)(pair_of(v.x, v.y), pair_of(v.z, v.w));
    const float2 a = floats_of(high.x), c = floats_of(high.y);
    parts[0] = high;
    parts[apart] = (uint2)(pair_of(low_of(v.x, a.x), low_of(v.y, a.y)), pair_of(low_of(v.z, c.x), low_of(v.w, c.y)));
}

__kernel __attribute__((reqd_work_group_size(64, 4, 1)))
void divide(__global const float *x, __global const uint *peaks, __global uint2 *parts, const int which,
            const long x_start, const long rows, const long columns, const long row_step, const long inner,
            const long inner_step, const long outer_step, const long pitch) {
    const long b = get_group_id(2), column = get_global_id(0) * 4, all = get_num_groups(2) * rows * pitch / 4;
    const float scale = power_of_2(shift_of(peaks[which]));
    x += x_start + b / inner * outer_step + b % inner * inner_step;
    if (column >= pitch) return;
    for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
        const float4 v = four_of(x + row * row_step, column, columns) * scale;
        write_parts(v, parts + ((b * rows + row) * pitch + column) / 4, all);
    }
}

// Of the peaks that were found the largest goes where products read it.
INLINE void write_beside(__global const float4 *restrict x, __global uint *peaks, __local uint *largest,
                         uint found, __global uint2 *restrict parts, uint fours, uint row) {
    uint bits = 0;
    for (uint i = get_local_id(0); i < found; i += 256) bits = MAX(bits, peaks[2 + i]);
    bits = most_in_group(bits, largest, get_local_id(0), 256);
    if (get_global_id(0) < 2) peaks[get_global_id(0)] = bits;
    const float scale = power_of_2(shift_of(bits));
    EACH_FOUR_BESIDE(x, fours, row, 2, write_parts(v * scale, parts + at, row))
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void divide_beside(__global const float4 *restrict x, __global const float4 *restrict y, __global uint *x_peaks,
                   __global uint *y_peaks, const uint x_found, const uint y_found, __global uint2 *restrict x_parts,
                   __global uint2 *restrict y_parts, const uint x_fours, const uint x_row, const uint y_fours,
                   const uint y_row) {
    __local uint largest[256];
    write_beside(x, x_peaks, largest, x_found, x_parts, x_fours, x_row);
    if (y_fours) write_beside(y, y_peaks, largest, y_found, y_parts, y_fours, y_row);
}
