// Sums of a tile, each a vector of partial sums. Included by gemv_rows.cl and gemv_quantized.cl.
//
// Params   ACC           type of the sums
//          WIDE          elements of a vector: 4, 8 or 16
//          M, COLUMNS    rows and columns of the tile

typedef PASTE(ACC, WIDE) Lanes;
#define EACH_ROW_OF_TILE _Pragma("unroll") for (int g = 0; g < M; g++)
#define EACH_COLUMN_OF_TILE _Pragma("unroll") for (int h = 0; h < COLUMNS; h++)
#define EACH_SUM EACH_ROW_OF_TILE EACH_COLUMN_OF_TILE

// Kahan's compensated addition; a sum that is not finite has lost nothing.
static inline void add_part(Lanes *total, Lanes *lost, Lanes part) {
    const Lanes added = part - *lost, next = *total + added, error = (next - *total) - added;
    *lost = next - next == (Lanes)(0) ? error : (Lanes)(0);
    *total = next;
}

static inline ACC sum_of(Lanes lanes) {
#if WIDE == 16
    const PASTE(ACC, 8) eight = lanes.lo + lanes.hi;
#else
    const Lanes eight = lanes;
#endif
#if WIDE >= 8
    const PASTE(ACC, 4) four = eight.lo + eight.hi;
#else
    const Lanes four = eight;
#endif
    const PASTE(ACC, 2) two = four.lo + four.hi;
    return two.x + two.y;
}
