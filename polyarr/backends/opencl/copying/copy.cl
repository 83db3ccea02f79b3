// Copies a batch of transposed matrices to row-major order: out[b, i, j] = x[b, i, j], where x is contiguous along i.
//
// Arrays   x: (outer, inner, rows, columns) with strides outer_stride, inner_stride, 1, stride from `offset` on
//          out: (outer, inner, rows, columns), row-major
// Launch   CPU (GROUP_ROWS 1): global (ceil(rows / TILE), outer * inner), local 1
//          GPU: a work-group per tile of TILE x TILE: global (ceil(columns / TILE) * TILE,
//          ceil(rows / TILE) * GROUP_ROWS, outer * inner), local (TILE, GROUP_ROWS, 1)
// Params   WORD                an unsigned type of the element's size
//          TILE, GROUP_ROWS    powers of two

#if GROUP_ROWS == 1
// A tile is read and written one cache line at a time. It is staged in private memory because cache lines that lie a
// power of two apart evict each other.
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void copy_transposed(__global const WORD *restrict x, const long offset, __global WORD *restrict out,
                     const long inner, const long rows, const long columns, const long outer_stride,
                     const long inner_stride, const long stride) {
    const long row = (long)get_group_id(0) * TILE, batch = get_group_id(1);
    const long base = offset + batch / inner * outer_stride + batch % inner * inner_stride + row;
    __global WORD *to = out + (batch * rows + row) * columns;
    const int height = (int)MIN((long)TILE, rows - row);
    WORD tile[TILE][TILE];
    long column = 0;
    for (; height == TILE && column + TILE <= columns; column += TILE) {
        for (int j = 0; j < TILE; j++)
            for (int i = 0; i < TILE; i++) tile[j][i] = x[base + (column + j) * stride + i];
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < TILE; j++) to[i * columns + column + j] = tile[j][i];
    }
    for (; column < columns; column++)
        for (int i = 0; i < height; i++) to[i * columns + column] = x[base + column * stride + i];
}
#else
__kernel __attribute__((reqd_work_group_size(TILE, GROUP_ROWS, 1)))
void copy_transposed(__global const WORD *restrict x, const long offset, __global WORD *restrict out,
                     const long inner, const long rows, const long columns, const long outer_stride,
                     const long inner_stride, const long stride) {
    __local WORD tile[TILE][TILE + 1];  // padded by one, so that a column has no bank conflicts
    const int me = get_local_id(0), first = get_local_id(1);
    const long column = (long)get_group_id(0) * TILE, row = (long)get_group_id(1) * TILE, batch = get_group_id(2);
    const long base = offset + batch / inner * outer_stride + batch % inner * inner_stride + row;
    for (int j = first; j < TILE; j += GROUP_ROWS)
        if (row + me < rows && column + j < columns) tile[j][me] = x[base + (column + j) * stride + me];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = first; i < TILE; i += GROUP_ROWS)
        if (row + i < rows && column + me < columns)
            out[(batch * rows + row + i) * columns + column + me] = tile[me][i];
}
#endif
