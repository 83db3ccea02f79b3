// A step of a Cholesky decomposition L L^H on GPUs: TILE rows and columns of matrices, from `first` on, and the update
// of the rest.
//
// Every group factorizes the diagonal tile, so that no group waits for another one. It then takes tiles of the rest: it
// solves the equations of the two tiles of the step's rows that the update needs, and subtracts their product.
//
// Kernels  factorize_step  write TILE columns of L, and update w right of and below the diagonal tile
// Arrays   w       (matrices, n, n) of Element, a real or complex number; Hermitian, and read on and above the diagonal
//          out     (matrices, n, n) L: TILE columns from the diagonal on, and zeros above it
//          FAULT: see prelude.cl
// Launch   `groups` of WG for each matrix
// Params   ACC, COMPLEX    see elements.cl
//          OUT_T, STORE    dtype of out: storage type, store function
//          WG              work-items per group
//          TILE            rows and columns of a tile

#include "complex_arithmetic.cl"
#include "elements.cl"

#define SOME MIN(TILE, 8)
#define OWN ((TILE * TILE + WG - 1) / WG)  // elements of a tile of each work-item
#define ROW(q) ((me + (q) * WG) / TILE)
#define COLUMN(q) ((me + (q) * WG) % TILE)
#define IS_OWN(q) (me + (q) * WG < TILE * TILE)
#define EACH_OWN(q) _Pragma("unroll") for (int q = 0; q < OWN; q++)
#define WAIT barrier(CLK_LOCAL_MEM_FENCE);

// Write R^H, where R is a tile of rows from `row` on and of columns from `column` on, and zeros on the other side.
static inline void store_tile(__global OUT_T *out, __local Element (*r)[TILE + 1], int row, int column, int n, int me) {
    EACH_OWN(q) {
        const int x = ROW(q), y = COLUMN(q), is_lower = row < column || y <= x;
        if (!IS_OWN(q)) continue;
        if (column + x < n && row + y < n)
            STORE(out, (long)(column + x) * n + row + y, is_lower ? CONJUGATE(r[y][x]) : (Element)0);
        if (row < column && column + y < n) STORE(out, (long)(row + x) * n + column + y, (Element)0);
    }
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void factorize_step(__global Element *w, __global OUT_T *restrict out, FAULT, const int message, const int first,
                    const int n, const int tiles, const int groups) {
    __local Element square[TILE][TILE + 1], solved[2][TILE][TILE + 1];
    __local ACC roots[TILE], scales[TILE];
    const int me = get_local_id(0), group = get_group_id(0) % groups, next = first + TILE;
    const long matrix = (long)(get_group_id(0) / groups) * n * n;
    w += matrix, out += matrix;

    // Rows of R, each divided by the root of its pivot at the end. Beyond the matrix, the tile is an identity.
    Element own[OWN];
    EACH_OWN(q) {
        const int i = first + ROW(q), j = first + COLUMN(q), is_there = IS_OWN(q) && i < n && j < n && i <= j;
        own[q] = is_there ? w[(long)i * n + j] : ELEMENT(i == j);
        if (ROW(q) == 0) square[0][COLUMN(q)] = own[q];
    }
    WAIT
#pragma unroll 1
    for (int t = 0; t < TILE; t++) {
        const ACC pivot = REAL_PART(square[t][t]), inverse = 1 / (pivot > 0 ? pivot : 1);
        EACH_OWN(q) {
            if (!IS_OWN(q) || ROW(q) <= t) continue;
            own[q] -= TIMES(CONJUGATE(square[t][ROW(q)] * inverse), square[t][COLUMN(q)]);
            if (ROW(q) == t + 1) square[t + 1][COLUMN(q)] = own[q];
        }
        WAIT
    }
    for (int t = me; t < TILE; t += WG) {
        const ACC pivot = REAL_PART(square[t][t]);
        roots[t] = pivot > 0 ? SQRT(pivot) : 1, scales[t] = 1 / roots[t];
        if (group == 0 && !(pivot > 0)) note_matrix(fault, call, message);
    }
    WAIT
    EACH_OWN(q)
        if (IS_OWN(q)) square[ROW(q)][COLUMN(q)] = ROW(q) == COLUMN(q) ? ELEMENT(roots[ROW(q)]) : own[q] / roots[ROW(q)];
    WAIT
    if (group == 0) store_tile(out, square, first, first, n, me);

    for (int tile = group; tile < tiles; tile += groups) {
        int right = (int)((sqrt(8.0f * tile + 1) - 1) / 2);  // tiles of the upper triangle, column by column
        while (right * (right + 1) / 2 > tile) right--;
        while ((right + 1) * (right + 2) / 2 <= tile) right++;
        const int down = tile - right * (right + 1) / 2;
        Element rest[OWN];
        EACH_OWN(q) {
            const int i = next + down * TILE + ROW(q), j = next + right * TILE + COLUMN(q);
            rest[q] = IS_OWN(q) && i < n && j < n ? w[(long)i * n + j] : (Element)0;
        }
        for (int e = me; e < 2 * TILE * TILE; e += WG) {
            const int part = e / (TILE * TILE), t = e / TILE % TILE;
            const int column = next + (part ? right : down) * TILE + e % TILE;
            solved[part][t][e % TILE] = column < n ? w[(long)(first + t) * n + column] : (Element)0;
        }
        WAIT
        for (int c = me; c < 2 * TILE; c += WG) {
            __local Element(*rows)[TILE + 1] = solved[c / TILE];
            const int at = c % TILE;
#pragma unroll 1
            for (int begin = 0; begin < TILE; begin += SOME) {  // rows in registers
                Element y[SOME];
                _Pragma("unroll") for (int s = 0; s < SOME; s++) y[s] = rows[begin + s][at];
#pragma unroll 4
                for (int t = 0; t < begin; t++) {
                    const Element known = rows[t][at];
                    _Pragma("unroll") for (int s = 0; s < SOME; s++)
                        y[s] -= TIMES(CONJUGATE(square[t][begin + s]), known);
                }
                _Pragma("unroll") for (int t = 0; t < SOME; t++) {
                    y[t] *= scales[begin + t];
                    _Pragma("unroll") for (int s = 1; s < SOME; s++)
                        if (s > t) y[s] -= TIMES(CONJUGATE(square[begin + t][begin + s]), y[t]);
                    rows[begin + t][at] = y[t];
                }
            }
        }
        WAIT
        if (down == 0) store_tile(out, solved[1], first, next + right * TILE, n, me);
#pragma unroll 4
        for (int t = 0; t < TILE; t++)
            EACH_OWN(q)
                if (IS_OWN(q)) rest[q] -= TIMES(CONJUGATE(solved[0][t][ROW(q)]), solved[1][t][COLUMN(q)]);
        EACH_OWN(q) {
            const int i = next + down * TILE + ROW(q), j = next + right * TILE + COLUMN(q);
            if (IS_OWN(q) && i < n && j < n) w[(long)i * n + j] = rest[q];
        }
        WAIT
    }
}
