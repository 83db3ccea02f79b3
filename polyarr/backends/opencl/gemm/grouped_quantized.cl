// Linear layer whose quantized weight each row chooses, for few rows: y[r, j] = sum over c of x[r, c] * weight[groups[r],
// j, c], where weight is codes * scale. The codes of the chosen weights are read where they are, in blocks of 32. The
// bits of a row of y depend on no other row.
//
// Arrays   x (rows, cols) of ACC; codes (count, n, cols) of CODE_T, or (count, n, cols / 2) if BITS is 4; scale (count, n)
//          or (count, n, cols / 32) of SCALE_T; groups (rows) of INDEX; y (rows, n) of T; all row-major
//          FAULT: see prelude.cl
// Launch   local (LANES, ROWS, 1), global (LANES, ROWS * work-groups, count): LANES work-items compute `each` columns of
//          the rows of one group, one by one
// Params   T, ACC, STORE                   dtype of y: see prelude.cl
//          BITS, CODE_T, IN_BLOCKS, SCALE_T, SCALE_LOAD   how codes and scales are stored: see dequantize.cl
//          LANES, ROWS                     work-items that share a row of codes, rows per group, powers of two
//          WIDE                            16, half of a block: partial sums per work-item
#include "groups.cl"

#define BLOCK 32
typedef PASTE(ACC, WIDE) Lanes;
typedef Lanes UnalignedLanes __attribute__((aligned(4)));
typedef char16 UnalignedCodes __attribute__((aligned(1)));  // int8 rows have any length
typedef union { Lanes all; ACC each[WIDE]; } Sums;
// PoCL implements conversions as calls.
#if HAS_BUILTINS
#define WIDEN_HALF(codes) __builtin_convertvector(codes, Lanes)
#else
#define WIDEN_HALF(codes) PASTE(PASTE(convert_, ACC), WIDE)(codes)
#endif

#define LANES_AT(p) (*(__global const UnalignedLanes *)(p))
#define CODES_AT(p) (*(__global const UnalignedCodes *)(p))

// Chunks of blocks are summed on their own and then added with Kahan's compensation, so that long sums stay accurate.
#define CHUNK 64L

// Return the products of a block that begins at column d, added in pairs.
static inline Lanes products(__global const ACC *x, __global const CODE_T *row, long d) {
#if BITS == 8
    const char16 low = CODES_AT(row + d), high = CODES_AT(row + d + BLOCK / 2);
#else
    const uchar16 pairs = as_uchar16(CODES_AT(row + d / 2));
    const char16 low = as_char16(pairs & (uchar16)(15)) - (char16)(8);
    const char16 high = as_char16(pairs >> (uchar16)(4)) - (char16)(8);
#endif
    return LANES_AT(x + d) * WIDEN_HALF(low) + LANES_AT(x + d + BLOCK / 2) * WIDEN_HALF(high);
}

__kernel ROW_GROUP void grouped_quantized(
        __global const ACC *restrict x, __global const CODE_T *restrict codes, __global const SCALE_T *restrict scale,
        __global const INDEX *restrict groups, __global T *restrict y, FAULT, const long rows, const long count,
        const long n, const long cols, const long each) {
    __local ACC lanes[LANES * ROWS];
    const int me = get_local_id(0), turn = get_local_id(1);
    const long own = get_group_id(2), first = get_group_id(1) * each * ROWS + turn, blocks = cols / BLOCK;
    if (!is_chosen(own, groups, rows, count, fault, call)) return;
    for (long i = 0, j = first; i < each; i++, j += ROWS) {
        const long line = own * n + MIN(j, n - 1);  // a row that does not exist is read as the last one
        __global const CODE_T *row = codes + line * (cols * BITS / 8);
        __global const SCALE_T *factors = scale + line * (IN_BLOCKS ? blocks : 1);
        for (long r = 0; r < rows; r++) {
            if (group_of(groups, r, count) != own) continue;
            __global const ACC *left = x + r * cols;
            Sums total, lost;
            total.all = lost.all = (Lanes)(0);
            for (long begin = 0; begin < blocks; begin += CHUNK * LANES) {
                Sums part;
                part.all = (Lanes)(0);
                for (long b = begin + me; b < MIN(begin + CHUNK * LANES, blocks); b += LANES)
                    part.all += products(left, row, b * BLOCK) * (IN_BLOCKS ? SCALE_LOAD(factors, b) : 1);
                for (int w = 0; w < WIDE; w++) KAHAN_ADD(ACC, total.each[w], lost.each[w], part.each[w])
            }
            // Only int8 codes with a scale per row can have columns behind the last block.
            for (long d = blocks * BLOCK + me; d < cols; d += LANES) total.each[0] += left[d] * row[d];
            const ACC sum = row_sum(total.each, me, lanes + turn * LANES);
            if (me == 0 && j < n) STORE(y, r * n + j, IN_BLOCKS ? sum : sum * SCALE_LOAD(factors, 0));
        }
    }
}
