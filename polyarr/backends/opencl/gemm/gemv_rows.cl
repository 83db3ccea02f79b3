// Products of a few rows of x with the rows of a matrix, in float32 on CPUs: out = activation(x @ y + bias). y is read
// once from memory, and a tile of out is computed in registers. Each element of out is summed in the same order however
// many rows there are, so its bits do not depend on them.
//
// Arrays   x (m, k), y (n, k), both with rows along k; out, saved (m, n) with any strides; bias with one stride for the
//          rows and one for the columns of out. x and y begin at x_start and y_start
// Launch   local (1, 1, 1), global (groups of columns, 1, 1); a group computes columns_each columns
// Params   T, ACC, LOAD, STORE     the dtype: see prelude.cl
//          BIAS, SAVE              1 to add bias, to write saved
//          ACTIVATION              none, relu, silu, gelu or gelu_tanh
//          WIDE                    floats of a vector register: partial sums per element of out
//          M, COLUMNS              rows and columns of a tile

typedef PASTE(float, WIDE) Lanes;
typedef Lanes UnalignedLanes __attribute__((aligned(4)));

// Chunks are summed on their own and then added with Kahan's compensation, so that long sums stay accurate.
#define CHUNK 128L
#define EACH_ROW_OF_TILE _Pragma("unroll") for (int g = 0; g < M; g++)
#define EACH_COLUMN_OF_TILE _Pragma("unroll") for (int h = 0; h < COLUMNS; h++)
#define EACH_SUM EACH_ROW_OF_TILE EACH_COLUMN_OF_TILE
#define ADD_TERMS(READ) { \
        Lanes right[COLUMNS]; \
        EACH_COLUMN_OF_TILE right[h] = READ(row[h] + d); \
        EACH_ROW_OF_TILE { \
            const Lanes left = READ(x_rows[g] + d); \
            EACH_COLUMN_OF_TILE part[g][h] += left * right[h]; \
        } \
    }
#define READ_ALL(p) (*(__global const UnalignedLanes *)(p))
#define READ_SOME(p) read_some(p, k - d)

// The last `count` elements of a row, and zeros.
static inline Lanes read_some(__global const float *p, long count) {
    union { Lanes all; float each[WIDE]; } found;
    for (int w = 0; w < WIDE; w++) found.each[w] = w < count ? p[w] : 0;
    return found.all;
}

static inline float sum_of(Lanes lanes) {
#if WIDE == 16
    const float8 eight = lanes.lo + lanes.hi;
    const float4 four = eight.lo + eight.hi;
#elif WIDE == 8
    const float4 four = lanes.lo + lanes.hi;
#else
    const float4 four = lanes;
#endif
    const float2 two = four.lo + four.hi;
    return two.x + two.y;
}

// Kahan's compensated addition; a sum that is not finite has lost nothing.
static inline void add_part(Lanes *total, Lanes *lost, Lanes part) {
    const Lanes added = part - *lost, next = *total + added, error = (next - *total) - added;
    *lost = error == error ? error : (Lanes)(0);
    *total = next;
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
        __global const float *row[COLUMNS];
        EACH_COLUMN_OF_TILE row[h] = y + y_start + MIN(column + h, n - 1) * y_column;
        for (long r = 0; r < m; r += M) {
            __global const float *x_rows[M];
            Lanes total[M][COLUMNS], lost[M][COLUMNS];
            EACH_ROW_OF_TILE x_rows[g] = x + x_start + MIN(r + g, m - 1) * x_row;
            EACH_SUM total[g][h] = lost[g][h] = (Lanes)(0);
            for (long d = 0; d < k;) {
                const long whole = MIN(CHUNK * WIDE, k - d) / WIDE;
                Lanes part[M][COLUMNS];
                EACH_SUM part[g][h] = (Lanes)(0);
                for (long i = 0; i < whole; i++, d += WIDE) ADD_TERMS(READ_ALL)
                if (k - d < WIDE) {
                    if (d < k) ADD_TERMS(READ_SOME)
                    d = k;
                }
                EACH_SUM add_part(&total[g][h], &lost[g][h], part[g][h]);
            }
            EACH_SUM if (r + g < m && column + h < end) {
                const long i = r + g, j = column + h, at = i * out_row + j * out_column;
                const ACC v = sum_of(total[g][h]) + (BIAS ? LOAD(bias, i * bias_row + j * bias_column) : 0);
                if (SAVE) STORE(saved, at, v);
                STORE(out, at, ACTIVATE(v));
            }
        }
    }
}
