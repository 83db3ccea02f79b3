// How kernels that divide attention's operands into parts walk over them: a row is taken by 16 work-items, four columns each.
//
// Arrays   q, g (.., t, D), k, v (.., s, D), g for dout, with layouts <name>_at: offset, strides of the two leading axes,
//          stride of a row; the first elements and all strides are multiples of four
//          walks: bits 2 i and 2 i + 1 are 1 where array i of these four has the inner, the outer leading axis
// Launch   global (any number of groups, arrays: 3 or 4), local (128, 1)
// Params   D length of the last axes, a multiple of 8 up to 64
#ifndef D
#error "attention_operands.cl needs D"
#endif

#define GROUP __attribute__((reqd_work_group_size(128, 1, 1)))
#define LANES 16  // work-items per row
#define WHOLE \
    __global const float *q, const long4 q_at, __global const float *k, const long4 k_at, __global const float *v, \
        const long4 v_at, __global const float *g, const long4 g_at
// One of the arrays, by the group's second number: x, at, its rows in all and those of a matrix; one's lane of a row.
#define CHOOSE_ARRAY() \
    const int which = get_group_id(1), lane = get_local_id(0) % LANES, inside = lane * 4 < D; \
    __global const float *x = which == 0 ? q : which == 1 ? k : which == 2 ? v : g; \
    const long4 at = which == 0 ? q_at : which == 1 ? k_at : which == 2 ? v_at : g_at; \
    const int high = which == 0 || which == 3 ? t : s, wide = walks >> 2 * which & 1 ? inner : 1; \
    const int rows = high * wide * (walks >> (2 * which + 1) & 1 ? batches / inner : 1); \
    x += at.x
#define EACH_ROW for (int row = get_global_id(0) / LANES; row < rows; row += get_global_size(0) / LANES)

static inline float4 four_of(__global const float *x, const long4 at, const int row, const int high, const int wide) {
    const int matrix = row / high;
    return *(__global const float4 *)(x + matrix / wide * at.y + matrix % wide * at.z + row % high * at.w);
}
