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

#define BLOCK 32
#define PIECES (BLOCK / WIDE)
typedef PASTE(ACC, WIDE) Lanes;
typedef PASTE(char, WIDE) Piece;
typedef Lanes UnalignedLanes __attribute__((aligned(4)));
typedef char16 UnalignedHalf __attribute__((aligned(1)));
typedef union { char16 half_of[2]; Piece piece[PIECES]; char each[BLOCK]; } Codes;

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
#define EACH_ROW_OF_TILE _Pragma("unroll") for (int g = 0; g < M; g++)
#define EACH_COLUMN_OF_TILE _Pragma("unroll") for (int h = 0; h < COLUMNS; h++)
#define EACH_SUM EACH_ROW_OF_TILE EACH_COLUMN_OF_TILE
#define EACH_PIECE _Pragma("unroll") for (int p = 0; p < PIECES; p++)

// The codes of a block that begins at column d of a row.
static inline Codes read_block(__global const CODE_T *row, long d) {
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

// Kahan's compensated addition; a sum that is not finite has lost nothing.
static inline void add_part(Lanes *total, Lanes *lost, Lanes part) {
    const Lanes added = part - *lost, next = *total + added, error = (next - *total) - added;
    *lost = error == error ? error : (Lanes)(0);
    *total = next;
}

static inline ACC sum_of(Lanes lanes) {
    union { Lanes all; ACC each[WIDE]; } found;
    found.all = lanes;
    for (int step = WIDE / 2; step > 0; step /= 2)
        for (int w = 0; w < step; w++) found.each[w] += found.each[w + step];
    return found.each[0];
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
                for (long b = begin; b < MIN(begin + CHUNK, blocks); b++) {
                    Codes block[COLUMNS];
                    ACC factor[COLUMNS];
                    EACH_COLUMN_OF_TILE {
                        block[h] = read_block(row[h], b * BLOCK);
                        PREFETCH(row[h] + (COLUMNS * k + b * BLOCK) * BITS / 8);
                        factor[h] = IN_BLOCKS ? SCALE_LOAD(scales[h], b) : 1;
                    }
                    EACH_PIECE {
                        Lanes right[COLUMNS];
                        EACH_COLUMN_OF_TILE {
                            right[h] = WIDEN_PIECE(block[h].piece[p]);
                            if (IN_BLOCKS) right[h] *= factor[h];
                        }
                        EACH_ROW_OF_TILE {
                            const Lanes left = *(__global const UnalignedLanes *)(x_rows[g] + b * BLOCK + p * WIDE);
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
