// Products of a few rows of x with the rows of a matrix, on CPUs: out = activation(x @ y + bias). y is read once from
// memory, and a tile of out is computed in registers. Each element of out is summed in the same order however
// many rows there are, so its bits do not depend on them.
//
// Arrays   x (m, k), y (n, k), both with rows along k; out, saved (m, n) with any strides; bias with one stride for the
//          rows and one for the columns of out. x and y begin at x_start and y_start
// Launch   local (1, 1, 1), global (groups of columns, 1, 1); a group computes columns_each columns
// Params   T, ACC, LOAD, STORE     float32, float16 or bfloat16: see prelude.cl
//          BIAS, SAVE              1 to add bias, to write saved
//          ACTIVATION              none, relu, silu, gelu or gelu_tanh
//          WIDE                    floats of a vector register: partial sums per element of out
//          M, COLUMNS              rows and columns of a tile

#include "tile_sums.cl"
#include "vectors.cl"

typedef PASTE(uint, WIDE) Words __attribute__((aligned(2)));
typedef struct { Lanes first, second; } Terms;  // STEP terms, in an order that is the same for x and y
DEFINE_READ(WIDE)
#define READ PASTE(read_, WIDE)

// Chunks are summed on their own and then added with Kahan's compensation, so that long sums stay accurate.
#define CHUNK 128L
#define STEP (2 * WIDE)
#define AT (g * COLUMNS + h)
#define ADD_TERMS(READ_TERMS) { \
        Terms right[COLUMNS]; \
        EACH_COLUMN_OF_TILE right[h] = READ_TERMS(row[h] + d); \
        EACH_ROW_OF_TILE { \
            const Terms left = READ_TERMS(x_rows[g] + d); \
            EACH_COLUMN_OF_TILE part[g][h] += left.first * right[h].first; \
            EACH_COLUMN_OF_TILE part[g][h] += left.second * right[h].second; \
        } \
    }
#define READ_SOME(p) read_some(p, k - d)

// Not always_inline: inlining a function that returns a struct emits an intrinsic that Oclgrind lacks.
#define READING static inline __attribute__((overloadable))
READING Terms read_all(__global const float *p) { return (Terms){READ(p), READ(p + WIDE)}; }
READING Terms read_all(__global const half *p) { return (Terms){READ(p), READ(p + WIDE)}; }

// A bfloat16 is the upper half of a float: even terms come first, then odd ones, which takes fewer instructions.
READING Terms read_all(__global const ushort *p) {
    const Words pairs = *(__global const Words *)p;
    return (Terms){PASTE(as_float, WIDE)(pairs << 16), PASTE(as_float, WIDE)(pairs & 0xffff0000u)};
}

// The last `count` elements of a row, and zeros.
static inline Terms read_some(__global const T *p, long count) {
    union { Terms all; float each[STEP]; } found;
    for (int w = 0; w < STEP; w++) found.each[w] = w < count ? LOAD(p, w) : 0;
    return found.all;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void matmul(
        __global const T *restrict x, __global const T *restrict y, __global const T *restrict bias,
        __global T *restrict out, __global T *restrict saved, const long m, const long n, const long k,
        const long columns_each, const long out_row, const long out_column, const long bias_row,
        const long bias_column, const long x_start, const long x_row, const long x_deep, const long y_start,
        const long y_column, const long y_deep, const long inner, const long x_outer, const long x_inner,
        const long y_outer, const long y_inner) {
    const long first = get_group_id(0) * columns_each, end = MIN(first + columns_each, n);
    for (long column = first; column < end; column += COLUMNS) {
        // Rows and columns that do not exist are read as the last ones, and not written.
        __global const T *row[COLUMNS];
        EACH_COLUMN_OF_TILE row[h] = y + y_start + MIN(column + h, n - 1) * y_column;
        for (long r = 0; r < m; r += M) {
            __global const T *x_rows[M];
            Lanes total[M][COLUMNS], lost[M][COLUMNS];
            EACH_ROW_OF_TILE x_rows[g] = x + x_start + MIN(r + g, m - 1) * x_row;
            EACH_SUM total[g][h] = lost[g][h] = (Lanes)(0);
            for (long d = 0; d < k;) {
                const bool is_first = !d;
                const long whole = MIN(CHUNK * WIDE, k - d) / STEP;
                Lanes part[M][COLUMNS];
                EACH_SUM part[g][h] = (Lanes)(0);
                for (long i = 0; i < whole; i++, d += STEP) ADD_TERMS(read_all)
                if (k - d < STEP) {
                    if (d < k) ADD_TERMS(READ_SOME)
                    d = k;
                }
                if (is_first) {
                    EACH_SUM total[g][h] = part[g][h];
                } else {
                    EACH_SUM add_part(&total[g][h], &lost[g][h], part[g][h]);
                }
            }
            ACC found[M * COLUMNS], activated[M * COLUMNS];
            EACH_SUM {
                const long i = MIN(r + g, m - 1), j = MIN(column + h, n - 1);
                found[AT] = sum_of(total[g][h]) + (BIAS ? LOAD(bias, i * bias_row + j * bias_column) : 0);
            }
            // One loop over the tile, which the compiler turns into vectors.
            WIDELY for (int e = 0; e < M * COLUMNS; e++) activated[e] = ACTIVATE(found[e]);
            EACH_SUM if (r + g < m && column + h < end) {
                const long at = (r + g) * out_row + (column + h) * out_column;
                if (SAVE) STORE(saved, at, found[AT]);
                STORE(out, at, activated[AT]);
            }
        }
    }
}
