// Images with few channels in pieces: at each place what ROWS rows of a window have, side by side, with zeros behind.
//
// Arrays   x (images, height, PARTS, width * channels), y (images, places, PARTS, PIECE), row-major
// Launch   global (whole groups of blocks of WIDE numbers of a row of y, rows of y that run at once), local (GROUP, 1)
// Params   spatial.cl's | PIECE numbers of a piece, a multiple of WIDE | ROW numbers of a window's row | ROWS of a piece,
//          ROWS * ROW <= PIECE | CHANNELS of a place of x | PARTS that a number consists of | GROUP as above
#include "spatial.cl"
#if !defined(PIECE) || !defined(ROW) || !defined(ROWS) || !defined(CHANNELS) || !defined(PARTS) || !defined(GROUP)
#error "conv_pieces.cl needs PIECE, ROW, ROWS, CHANNELS, PARTS and GROUP"
#endif

#define BLOCKS (PARTS * PIECE / WIDE)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void conv_pieces(__global const T *restrict x, __global T *restrict y, const Geometry geometry) {
    const Geometry *g = &geometry;
    const int me = get_global_id(0), column = me / BLOCKS, part = me % BLOCKS * WIDE / PIECE, begin = me % BLOCKS * WIDE % PIECE;
    const uint line = g->length[2] * CHANNELS, height = g->length[1], high = g->out[1];
    const int first = element_of(g, 2, column, 0) * CHANNELS;
    if (column >= g->out[2]) return;
    for (long place = get_global_id(1); place < g->images * high; place += get_global_size(1)) {
        const uint image = (uint)place / high;
        const int row = element_of(g, 1, (uint)place % high, 0);
        int r = begin / ROW, in_row = begin % ROW;
        ACC v[WIDE];
        EACH_CHANNEL {
            const uint i = row + r, at = first + in_row;
            v[c] = r < ROWS && i < height && at < line ? LOAD(x, (((long)image * height + i) * PARTS + part) * line + at) : 0;
            if (++in_row == ROW) in_row = 0, r++;
        }
        GIVE(y, (place * g->out[2] * BLOCKS + me) * WIDE, v);
    }
}
