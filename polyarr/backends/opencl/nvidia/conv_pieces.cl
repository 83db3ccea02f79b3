// Partial im2col for images with few channels: y gathers, for each output position along the width, the elements of
// ROWS rows of the receptive field into one contiguous piece, padded with zeros to PIECE elements.
//
// Arrays   x (images, height, TERMS, width * channels), y (images, rows and columns of positions, TERMS, PIECE),
//          row-major
// Launch   global (columns of positions * TERMS * PIECE / WIDE, rounded up to GROUP; any number of rows), local (GROUP,
//          1)
// Params   those of spatial.cl
//          PIECE       elements of a piece, a multiple of WIDE and at least ROWS * ROW
//          ROW         elements of one row of the receptive field
//          ROWS        rows of the receptive field in a piece
//          CHANNELS    channels of x
//          TERMS       terms per element: float32 may be split into several 16-bit terms
//          GROUP       work-items per group
#include "spatial.cl"
#if !defined(PIECE) || !defined(ROW) || !defined(ROWS) || !defined(CHANNELS) || !defined(TERMS) || !defined(GROUP)
#error "conv_pieces.cl needs PIECE, ROW, ROWS, CHANNELS, TERMS and GROUP"
#endif

#define BLOCKS (TERMS * PIECE / WIDE)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void conv_pieces(__global const T *restrict x, __global T *restrict y, const Geometry geometry) {
    const Geometry *g = &geometry;
    const int me = get_global_id(0), column = me / BLOCKS, part = me % BLOCKS * WIDE / PIECE, begin = me % BLOCKS * WIDE % PIECE;
    const uint line = g->length[2] * CHANNELS, height = g->length[1], high = g->out[1];
    const int first = element_of(g, 2, column, 0) * CHANNELS;
    if (column >= g->out[2]) return;
    for (long position = get_global_id(1); position < g->images * high; position += get_global_size(1)) {
        const uint image = (uint)position / high;
        const int row = element_of(g, 1, (uint)position % high, 0);
        int r = begin / ROW, in_row = begin % ROW;
        ACC v[WIDE];
        EACH_CHANNEL {
            const uint i = row + r, at = first + in_row;
            v[c] = r < ROWS && i < height && at < line ? LOAD(x, (((long)image * height + i) * TERMS + part) * line + at) : 0;
            if (++in_row == ROW) in_row = 0, r++;
        }
        STORE_CHANNELS(y, (position * g->out[2] * BLOCKS + me) * WIDE, v);
    }
}
