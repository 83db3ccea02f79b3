// Products of a few rows of x with the rows of a quantized weight, on CPUs: y = activation(x @ weight.T + bias). The
// codes are read once from memory, converted in registers, and used for a tile of y. Each element of y is summed in the
// same order however many rows there are, so its bits do not depend on them.
//
// Arrays   x (m, k) of ACC; codes (n, k) of CODE_T, or (n, k / 2) if BITS is 4; scale (n) or (n, k / 32) of SCALE_T;
//          bias (n) of BIAS_T; y (m, n) of T, row-major
// Launch   local (1, 1, 1), global (groups of columns, 1, 1); a group computes columns_each columns
// Params   T, ACC, STORE                   dtype of y: see prelude.cl
//          BITS, CODE_T, IN_BLOCKS, SCALE_T, SCALE_LOAD   how codes and scales are stored: see dequantize.cl
//          BIAS, BIAS_T, BIAS_LOAD         1 to add bias; its dtype
//          ACTIVATION                      none, relu, silu, gelu or gelu_tanh
//          WIDE                            elements of a vector register: partial sums per element of y, 4, 8 or 16
//          M, COLUMNS                      rows and columns of a tile
#include "tile_sums.cl"

#define BLOCK 32
#define PIECES (BLOCK / WIDE)
typedef PASTE(char, WIDE) Piece;
typedef Lanes UnalignedLanes __attribute__((aligned(4)));
typedef char16 UnalignedHalf __attribute__((aligned(1)));

// Rows are short, so that the processor's own prefetching begins late: the next rows are requested while these are read.
#if HAS_BUILTINS
#define PREFETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define PREFETCH(p)
#endif
// PoCL implements conversions, and its loads of half, as calls.
#if HAS_BUILTINS
#define WIDEN_PIECE(piece) __builtin_convertvector(piece, Lanes)
#else
#define WIDEN_PIECE(piece) PASTE(PASTE(convert_, ACC), WIDE)(piece)
#endif

// Chunks of blocks are summed on their own and then added with Kahan's compensation, so that long sums stay accurate.
#define CHUNK 64L
#define EACH_PIECE _Pragma("unroll") for (int p = 0; p < PIECES; p++)

// read_codes loads the codes of a block, which begins at column d of a row; weights_of are their p-th piece as floats, times
// the block's scale. 16 floats are a table of the weights that codes of 4 bits stand for, and AVX-512 looks up 16 of them
// with one instruction, which ignores all but the lowest 4 bits of an index.
#if HAS_BUILTINS && BITS == 4 && WIDE == 16 && defined(__AVX512F__)
typedef float Table __attribute__((__vector_size__(64)));
typedef int Indices __attribute__((__vector_size__(64)));
typedef int16 Codes;
static inline Codes read_codes(__global const CODE_T *row, long d) {
    const uchar16 pairs = as_uchar16(*(__global const UnalignedHalf *)(row + d / 2));
    return __builtin_convertvector(pairs, int16);
}
static inline Lanes weights_of(Codes pairs, int p, ACC scale) {
    const Lanes codes = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, weights = codes * scale;
    const Indices at = __builtin_astype(p ? pairs >> 4 : pairs, Indices);
    return __builtin_astype(__builtin_ia32_permvarsf512(__builtin_astype(weights, Table), at), Lanes);
}
#else
typedef union { char16 half_of[2]; Piece piece[PIECES]; } Codes;
static inline Codes read_codes(__global const CODE_T *row, long d) {
    Codes found;
#if BITS == 8
    found.half_of[0] = *(__global const UnalignedHalf *)(row + d);
    found.half_of[1] = *(__global const UnalignedHalf *)(row + d + BLOCK / 2);
#else
    const uchar16 pairs = as_uchar16(*(__global const UnalignedHalf *)(row + d / 2));
    found.half_of[0] = as_char16(pairs & (uchar16)(15)) - (char16)(8);
    found.half_of[1] = as_char16(pairs >> (uchar16)(4)) - (char16)(8);
#endif
    return found;
}
static inline Lanes weights_of(Codes codes, int p, ACC scale) { return WIDEN_PIECE(codes.piece[p]) * scale; }
#endif

// Widen the scales of a chunk of blocks, in vectors: for one float16 at a time clang makes scalar code with branches.
static inline void read_scales(ACC *widened, __global const SCALE_T *scale, int count) {
    WIDELY
    for (int i = 0; i < count; i++) widened[i] = SCALE_LOAD(scale, i);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemv_quantized(
        __global const ACC *restrict x, __global const CODE_T *restrict codes, __global const SCALE_T *restrict scale,
        __global const BIAS_T *restrict bias, __global T *restrict y, const long m, const long n, const long k,
        const long columns_each) {
    const long first = get_group_id(0) * columns_each, end = MIN(first + columns_each, n);
    const long blocks = k / BLOCK;
    for (long column = first; column < end; column += COLUMNS) {
        // Rows and columns that do not exist are read as the last ones, and not written.
        __global const CODE_T *row[COLUMNS];
        __global const SCALE_T *scales[COLUMNS];
        EACH_COLUMN_OF_TILE {
            row[h] = codes + MIN(column + h, n - 1) * (k * BITS / 8);
            scales[h] = scale + MIN(column + h, n - 1) * (IN_BLOCKS ? blocks : 1);
        }
        for (long r = 0; r < m; r += M) {
            __global const ACC *x_rows[M];
            Lanes total[M][COLUMNS], lost[M][COLUMNS];
            EACH_ROW_OF_TILE x_rows[g] = x + MIN(r + g, m - 1) * k;
            EACH_SUM total[g][h] = lost[g][h] = (Lanes)(0);
            for (long begin = 0; begin < blocks; begin += CHUNK) {
                Lanes part[M][COLUMNS];
                EACH_SUM part[g][h] = (Lanes)(0);
                const int count = MIN(CHUNK, blocks - begin);
                ACC factors[COLUMNS][CHUNK];
                if (IN_BLOCKS) EACH_COLUMN_OF_TILE read_scales(factors[h], scales[h] + begin, count);
                for (int i = 0; i < count; i++) {
                    const long d = (begin + i) * BLOCK;
                    Codes codes[COLUMNS];
                    EACH_COLUMN_OF_TILE {
                        codes[h] = read_codes(row[h], d);
                        PREFETCH(row[h] + (COLUMNS * k + d) * BITS / 8);
                    }
                    EACH_PIECE {
                        Lanes right[COLUMNS];
                        EACH_COLUMN_OF_TILE right[h] = weights_of(codes[h], p, IN_BLOCKS ? factors[h][i] : 1);
                        EACH_ROW_OF_TILE {
                            const Lanes left = *(__global const UnalignedLanes *)(x_rows[g] + d + p * WIDE);
                            EACH_COLUMN_OF_TILE part[g][h] += left * right[h];
                        }
                    }
                }
                EACH_SUM add_part(&total[g][h], &lost[g][h], part[g][h]);
            }
            EACH_SUM if (r + g < m && column + h < end) {
                ACC sum = sum_of(total[g][h]);
                // Only int8 codes with a scale per row can have columns behind the last block.
                for (long d = blocks * BLOCK; d < k; d++) sum += x_rows[g][d] * row[h][d];
                const long j = column + h;
                const ACC v = (IN_BLOCKS ? sum : sum * SCALE_LOAD(scale, j)) + (BIAS ? BIAS_LOAD(bias, j) : 0);
                STORE(y, (r + g) * n + j, ACTIVATE(v));
            }
        }
    }
}
