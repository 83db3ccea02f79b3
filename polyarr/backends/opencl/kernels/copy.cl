// A dense copy of transposed matrices: out[b, i, j] = x[b, i, j], with x's elements side by side along i.
//
// Arrays   x: window of (outer, inner, rows, columns) elements with strides outer_stride, inner_stride, 1, stride;
//          out: the same shape, row-major
// Launch   CPU (GROUP_ROWS 1): global (blocks of TILE rows, outer * inner), group 1
//          GPU: groups of (TILE, GROUP_ROWS), one per tile of TILE x TILE: global (blocks of columns * TILE,
//          blocks of rows * GROUP_ROWS, outer * inner)
// Params   WORD  an unsigned type as wide as an element | TILE, GROUP_ROWS powers of two
#if !defined(WORD) || !defined(TILE) || !defined(GROUP_ROWS)
#error "copy.cl needs WORD, TILE and GROUP_ROWS"
#endif

#if GROUP_ROWS == 1
// A tile is read and written a cache line at a time. Its way leads through private memory because lines a power of two
// apart drive each other out of the cache.
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
    __local WORD tile[TILE][TILE + 1];  // one more, so that a column lies in as many banks as a row
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
