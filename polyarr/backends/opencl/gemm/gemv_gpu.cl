// GEMV and skinny GEMM (few rows of x) on GPUs: out = activation(x @ y * scale + bias), for a batch; see
// gemv.cl. It is bound by the bandwidth of y, so a work-item issues AHEAD vector loads of y before it uses the
// first, and uses each for M rows. y may be a quantized weight, whose sums are scaled.
//
// Arrays   those of gemv.cl; for a quantized weight, y is codes (n, k) or (n, k / 2), and scale (n) or (n, k / 32)
// Launch   local (LANES, LINES, 1), global (groups of columns * LANES, LINES, batch); a group computes LINES * COLUMNS
//          columns if Y_ALONG_K, else LANES * VECTOR columns
// Params   T, FLOATING, X_ALONG_K, Y_ALONG_K, BIAS, SAVE, ACTIVATION    see gemv.cl
//          M                      rows computed at once
//          LANES, LINES, COLUMNS  with Y_ALONG_K, LANES work-items share COLUMNS columns (split along k), for each of
//                                 LINES;
//                                 M * COLUMNS is at most LANES. Without it, LINES work-items share VECTOR columns,
//                                 COLUMNS is 1
//          AHEAD                  vector loads in flight
//          VECTOR                 elements of y per vector, along k or along n, whose length it divides. The order of
//                                 summation does not depend on the layout of y
//          BY_WORD, Y_BY_WORD     1 if vectors of x, y are contiguous and aligned, so that one load reads a vector
//          DTYPE, RAW, WORD       of x, for DEFINE_VECTOR
//          Y_T, Y_DTYPE, Y_RAW, Y_WORD    of y
//          BITS                   8 or 4 for codes of a quantized weight as in dequantize.cl, with Y_ALONG_K; else 0
//          IN_BLOCKS, SCALE_T, SCALE_LOAD   1 for a scale per block of 32 codes, 0 for one per row; its dtype
//          BIAS_T, BIAS_LOAD      dtype of bias
//          KEEPS                  1 for compensated summation: a work-item adds so many terms that digits would be lost

#define GROUP (LANES * LINES)
#define OUTPUTS (LINES * COLUMNS * M)  // outputs of a group, with Y_ALONG_K
#define WIDTH (LANES * VECTOR)         // columns of a group, without Y_ALONG_K
#define FOLDS MIN(8, MIN(LANES, GROUP / OUTPUTS))  // work-items that add the partial sums of one output together
#define LOADS_X_AHEAD (M * AHEAD <= 8)            // whether registers suffice to load x together with y
#define EACH_AHEAD _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
#define EACH_ROW _Pragma("unroll") for (int i = 0; i < M; i++)
#define EACH_COLUMN_OF_LINE _Pragma("unroll") for (int j = 0; j < COLUMNS; j++)
typedef union { WORD word; RAW each[VECTOR]; } Left;
typedef union { Y_WORD word; Y_RAW each[VECTOR]; } Right;

// Load a vector at p, whose elements lie `step` apart, or zeros unless is_used. p is always a valid address, so that no
// load waits for a branch.
#define LOAD_IF(stored, WORD, RAW, by_word, p, step, is_used) { \
        if (by_word) stored.word = *(__global const WORD *)(p); \
        else EACH_OF_VECTOR stored.each[k] = ((__global const RAW *)(p))[k * (step)]; \
        if (!(is_used)) stored.word = (WORD)(0); \
    }
#define LOAD_X_IF(stored, p, is_used) LOAD_IF(stored, WORD, RAW, BY_WORD, p, X_ALONG_K ? 1 : x_deep, is_used)
#define LOAD_Y_IF(stored, p, is_used) \
    LOAD_IF(stored, Y_WORD, Y_RAW, Y_BY_WORD, p, Y_ALONG_K ? y_deep : y_column, is_used)
#define X_AT(r, d) (x + MIN(r, m - 1) * x_row + (d) * (X_ALONG_K ? 1 : x_deep))
#define BLOCK 32
#define HAS_ROW_SCALE (BITS && !IN_BLOCKS)
#define SCALE(c) (HAS_ROW_SCALE ? SCALE_LOAD(scale, c) : 1)
#define BLOCK_SCALE(c, d) (IN_BLOCKS ? SCALE_LOAD(scale, (c) * (k / BLOCK) + (d) / BLOCK) : 1)
// Offset of the vector of y that begins at d, and the elements in it. A byte has code j of a block of 4-bit codes in its
// low bits, and code j + 16 in its high bits.
#if BITS == 4
#define Y_OFFSET(d) ((d) / BLOCK * (BLOCK / 2) + (d) % (BLOCK / 2))
#define Y_ELEMENT(stored, d) ((int)((stored) >> ((d) & (BLOCK / 2) ? 4 : 0) & 15) - 8)
#else
#define Y_OFFSET(d) (d)
#define Y_ELEMENT(stored, d) PASTE(widen_, Y_DTYPE)(stored)
#endif
#define ADDED(r, c) (BIAS ? BIAS_LOAD(bias, (r) * bias_row + (c) * bias_column) : 0)

// The sums of a work-item; with KEEPS they are sums of parts, added with Kahan's compensation.
#define EACH_SUM(high, wide) \
    _Pragma("unroll") for (int g = 0; g < high; g++) _Pragma("unroll") for (int h = 0; h < wide; h++)
#if KEEPS
#define SUMS(name, high, wide) \
    ACC name[high][wide], name##_lost[high][wide]; \
    EACH_SUM(high, wide) name[g][h] = name##_lost[g][h] = 0;
#define PARTS(name, high, wide) ACC name##_part[high][wide]; EACH_SUM(high, wide) name##_part[g][h] = 0;
#define PART(name) name##_part
#define ADD_PARTS(name, high, wide) \
    EACH_SUM(high, wide) KAHAN_ADD(ACC, name[g][h], name##_lost[g][h], name##_part[g][h])
#else
#define SUMS(name, high, wide) ACC name[high][wide]; EACH_SUM(high, wide) name[g][h] = 0;
#define PARTS(name, high, wide)
#define PART(name) name
#define ADD_PARTS(name, high, wide)
#endif

#define WRITE(r, c, sum, factor, added) { \
        const ACC v = HAS_ROW_SCALE ? (sum) * (factor) + (added) : (sum) + (added); \
        const size_t at = b * m * n + (r) * out_row + (c) * out_column; \
        if (SAVE) STORE(saved, at, v); \
        STORE(out, at, ACTIVATE(v)); \
    }

__kernel __attribute__((reqd_work_group_size(LANES, LINES, 1))) void matmul(
        __global const T *restrict x, __global const Y_T *restrict y, __global const SCALE_T *restrict scale,
        __global const BIAS_T *restrict bias, __global T *restrict out, __global T *restrict saved, const long m,
        const long n, const long k, const long out_row, const long out_column, const long bias_row,
        const long bias_column, const long x_start, const long x_row, const long x_deep, const long y_start,
        const long y_column, const long y_deep, const long inner, const long x_outer, const long x_inner,
        const long y_outer, const long y_inner) {
    const int me = get_local_id(0), line = get_local_id(1), flat = line * LANES + me;
    const long b = get_group_id(2);
    x += x_start + (b / inner) * x_outer + (b % inner) * x_inner;
    y += y_start + (b / inner) * y_outer + (b % inner) * y_inner;
#if Y_ALONG_K
    __local ACC sums[OUTPUTS * (LANES + 1)];
    const long begin_of_group = get_group_id(0) * (LINES * COLUMNS), first = begin_of_group + line * COLUMNS;
    for (long r = 0; r < m; r += M) {
        const long row = r + flat % M, column = begin_of_group + flat / M;  // of the output that this work-item writes
        const int writes = flat < OUTPUTS && row < m && column < n;
        const ACC factor = writes ? SCALE(column) : 0, added = writes ? ADDED(row, column) : 0;
        SUMS(total, COLUMNS, M)
        for (long d = me * VECTOR; d < k; d += AHEAD * LANES * VECTOR) {
            Right right[AHEAD][COLUMNS];
            Left left[LOADS_X_AHEAD ? AHEAD : 1][M];
            PARTS(total, COLUMNS, M)
            EACH_AHEAD {
                const long at = d + a * (LANES * VECTOR), near = MIN(at, k - VECTOR);
                EACH_COLUMN_OF_LINE
                    LOAD_Y_IF(right[a][j], y + MIN(first + j, n - 1) * y_column + Y_OFFSET(near), at < k)
                if (LOADS_X_AHEAD) EACH_ROW LOAD_X_IF(left[a][i], X_AT(r + i, near), at < k)
            }
            EACH_AHEAD {
                const long at = d + a * (LANES * VECTOR), near = MIN(at, k - VECTOR);
                const int here = LOADS_X_AHEAD ? a : 0;
                if (!LOADS_X_AHEAD) EACH_ROW LOAD_X_IF(left[here][i], X_AT(r + i, near), at < k)
                ACC factors[COLUMNS];
                if (IN_BLOCKS) EACH_COLUMN_OF_LINE factors[j] = at < k ? BLOCK_SCALE(MIN(first + j, n - 1), near) : 0;
                EACH_COLUMN_OF_LINE EACH_ROW {
                    ACC dot = 0;
                    EACH_OF_VECTOR dot += PASTE(widen_, DTYPE)(left[here][i].each[k]) * Y_ELEMENT(right[a][j].each[k], near);
                    PART(total)[j][i] += IN_BLOCKS ? dot * factors[j] : dot;
                }
            }
            ADD_PARTS(total, COLUMNS, M)
        }
        EACH_COLUMN_OF_LINE EACH_ROW sums[((line * COLUMNS + j) * M + i) * (LANES + 1) + me] = total[j][i];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (flat < OUTPUTS * FOLDS) {
            __local ACC *of_line = sums + flat / FOLDS * (LANES + 1) + flat % FOLDS;
            ACC sum = *of_line;
            _Pragma("unroll") for (int l = FOLDS; l < LANES; l += FOLDS) sum += of_line[l];
            *of_line = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (writes) {
            ACC sum = 0;
            _Pragma("unroll") for (int l = 0; l < FOLDS; l++) sum += sums[flat * (LANES + 1) + l];
            WRITE(row, column, sum, factor, added)
        }
        barrier(CLK_LOCAL_MEM_FENCE);  // the next rows reuse sums
    }
#else
    __local ACC sums[LINES][WIDTH];
    const long begin_of_group = get_group_id(0) * WIDTH, first = begin_of_group + me * VECTOR;
    for (long r = 0; r < m; r += M) {
        SUMS(total, M, VECTOR)
        __global const Y_T *own = y + MIN(first, n - VECTOR) * y_column;
        const long depth = k;
        for (long d = line; d < depth; d += AHEAD * LINES) {
            Right right[AHEAD];
            PARTS(total, M, VECTOR)
            EACH_AHEAD {
                const long at = d + a * LINES;
                LOAD_Y_IF(right[a], own + MIN(at, depth - 1) * y_deep, at < depth)
            }
            EACH_AHEAD {
                const long at = d + a * LINES;
                EACH_ROW {
                    const ACC left = at < depth ? LOAD(X_AT(r + i, at), 0) : 0;
                    EACH_OF_VECTOR PART(total)[i][k] += left * PASTE(widen_, Y_DTYPE)(right[a].each[k]);
                }
            }
            ADD_PARTS(total, M, VECTOR)
        }
        EACH_ROW {
            EACH_OF_VECTOR sums[line][me * VECTOR + k] = total[i][k];
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int c = flat; c < WIDTH; c += GROUP) {
                const long row = r + i, column = begin_of_group + c;
                if (row < m && column < n) {
                    ACC sum = 0;
                    for (int l = 0; l < LINES; l++) sum += sums[l][c];
                    WRITE(row, column, sum, SCALE(column), ADDED(row, column))
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
#endif
}
