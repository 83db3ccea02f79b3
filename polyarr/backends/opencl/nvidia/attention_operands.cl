// Included by the kernels that split the operands of attention into 16-bit terms (split precision): macros that iterate
// over the rows of q, k, v and dout. 16 work-items share a row, each takes four columns.
//
// Arrays   q, g (.., t, D) and k, v (.., s, D) of float, where g is dout; with layouts <name>_at: offset, strides of
//          the two leading axes, stride of a row. The first element and all strides are multiples of four elements
// Launch   global (any number of groups * 128, number of arrays: 3 or 4), local (128, 1)
// Params   D        length of the last axis, a multiple of 8 up to 64
//          walks    (argument) bit 2 i is 1 if array i of q, k, v, g has the inner leading axis, bit 2 i + 1 if it has
//                   the outer one; otherwise the array is broadcast along that axis
#ifndef D
#error "attention_operands.cl needs D"
#endif

#define GROUP __attribute__((reqd_work_group_size(128, 1, 1)))
#define LANES 16  // work-items per row
#define WHOLE \
    __global const float *q, const long4 q_at, __global const float *k, const long4 k_at, __global const float *v, \
        const long4 v_at, __global const float *g, const long4 g_at
// Declare the array that group id 1 selects: x, its layout `at`, its total number of rows, `high` rows of one matrix,
// and the work-item's lane within a row.
#define CHOOSE_ARRAY() \
    const int which = get_group_id(1), lane = get_local_id(0) % LANES, inside = lane * 4 < D; \
    __global const float *x = which == 0 ? q : which == 1 ? k : which == 2 ? v : g; \
    const long4 at = which == 0 ? q_at : which == 1 ? k_at : which == 2 ? v_at : g_at; \
    const int high = which == 0 || which == 3 ? t : s, wide = walks >> 2 * which & 1 ? inner : 1; \
    const int rows = high * wide * (walks >> (2 * which + 1) & 1 ? batches / inner : 1); \
    x += at.x
#define EACH_ROW for (int row = get_global_id(0) / LANES; row < rows; row += get_global_size(0) / LANES)

static inline float4 load_float4(__global const float *x, const long4 at, const int row, const int high,
                                 const int wide) {
    const int matrix = row / high;
    return *(__global const float4 *)(x + matrix / wide * at.y + matrix % wide * at.z + row % high * at.w);
}
