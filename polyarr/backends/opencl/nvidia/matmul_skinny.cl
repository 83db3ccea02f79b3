// Skinny GEMM on the matrix units of NVIDIA GPUs from Ampere on (mma.sync): out = activation(x @ y + bias) for few rows
// of x, in 16-bit floats with float32 sums. It is bound by the bandwidth of y, a weight that is contiguous along k. y may
// be a quantized weight: its codes become floats in registers, which is exact, and scales multiply float32 sums. With
// GATED it is activation(x @ y + bias) * (x @ up + up_bias), with each factor rounded to T, as in a gated feed-forward.
//
// A work-group multiplies TILES tiles of 16 columns of y by M rows of x; y is the instructions' first operand. Its
// WARPS warps take steps of STEP along k in turn. A warp copies a step to local memory (cp.async), STAGES steps ahead,
// and waits for no other warp before the sums are added. Rows of local memory are padded, so that the lanes of a load
// meet in no bank. A lane takes four neighboring numbers along k where the instructions expect two pairs: the order
// along k is free, as long as it is the same for x. All sums are added in a fixed order that does not depend on m, so the
// bits of a row of out do not depend on the other rows.
//
// Arrays   x (m, k), y (n, k) of T, whose rows begin at multiples of 16 bytes, k is a multiple of 8; bias (n) of BIAS_T;
//          of a quantized weight, y is codes (n, k) or (n, k / 2), and scale (n) or (n, k / 32); k is a multiple of 16,
//          and of 64 with IN_BLOCKS; out, saved (m, n) of T, row-major; saved is the input of the activation; up,
//          up_scale and up_bias, used if GATED, are like y, scale and bias
// Launch   global (groups * 32, blocks * WARPS), local (32, WARPS); a group has TILES * 16 columns, a block M rows
// Params   T, LOAD, STORE, KIND    the dtype: see prelude.cl; KIND is its PTX name
//          M, TILES, WARPS         as above; M is 1 for one row, else a multiple of 8
//          STAGES                  steps of a warp that are in flight
//          GATED                   1 to multiply by the product with a second weight
//          OVERLAPS                1 to let the next kernel begin; 0 if it is bound by instructions, which work-groups that
//                                  wait would delay
//          BIAS, SAVE, ACTIVATION  1 to add bias, to write saved; none, relu, silu, gelu or gelu_tanh
//          BIAS_T, BIAS_LOAD       the dtype of bias
//          BITS                    8 or 4 for codes of a quantized weight as in dequantize.cl; else 0
//          IN_BLOCKS, SCALE_T, SCALE_LOAD   1 for a scale per block of 32 codes, 0 for one per row; its dtype
//          SCALE_KIND              the PTX name of the dtype of a block's scale, f16 or bf16
#include "ptx.cl"
#if !defined(M) || !defined(TILES) || !defined(WARPS) || !defined(STAGES) || !defined(GATED) || !defined(OVERLAPS)
#error "matmul_skinny.cl needs M, TILES, WARPS, STAGES, GATED and OVERLAPS"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(BIAS_T) || !defined(BIAS_LOAD)
#error "matmul_skinny.cl needs BIAS, SAVE, ACTIVATION, BIAS_T and BIAS_LOAD"
#endif
#if !defined(BITS) || !defined(IN_BLOCKS) || !defined(SCALE_T) || !defined(SCALE_LOAD)
#error "matmul_skinny.cl needs BITS, IN_BLOCKS, SCALE_T and SCALE_LOAD"
#endif

#define BLOCK 32  // numbers along k that two instructions multiply, and that share a scale
#if BITS
#define Y_T uchar
#define STEP 128                  // of k, for a warp
#define Y_BYTES (STEP * BITS / 8)  // of a column in a step
#define Y_PITCH (Y_BYTES + 16)     // of a column in local memory
#define BYTES_OF(count) ((count) * BITS / 8)  // a column is read by bytes
#else
#define Y_T T
#define STEP 64
#define Y_BYTES 128
#define Y_PITCH 160
#define BYTES_OF(count) (count)
#endif
#define X_PITCH (STEP * 2 + 32)
#define COLUMNS (16 * TILES)         // of a work-group
#define WEIGHTS (GATED + 1)
#define ALL_TILES (WEIGHTS * TILES)   // those of y, then those of up
#define ALL_COLUMNS (WEIGHTS * COLUMNS)
#define TILES_OF_ROWS ((M + 7) / 8)
#define OUTPUTS (ALL_COLUMNS * 8 * TILES_OF_ROWS)
#define SCALE_WORDS (STEP / 64)  // of a column in a step, two scales each
#define SCALES_AT (ALL_COLUMNS * Y_PITCH)
#define X_AT (SCALES_AT + (IN_BLOCKS ? ALL_COLUMNS * SCALE_WORDS * 4 : 0))
#define STAGE_BYTES (X_AT + M * X_PITCH)

// Copy 16 or 4 bytes to local memory asynchronously, or zeros unless is_used. Neighbors read what is prefetched.
INLINE void copy(uint to, __global const void *from, int is_used) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(to), "l"(from), "r"(is_used ? 16 : 0) : "memory");
}
INLINE void copy_word(uint to, __global const void *from, int is_used) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(is_used ? 4 : 0) : "memory");
}
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define AWAIT_COPIES() asm volatile("cp.async.wait_group " TEXT(STAGES) " - 1;" ::: "memory")
#define AWAIT_WARP() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")

// The copies of a step: each lane has a piece of 16 bytes of several columns, then of several rows, then words of scales.
#define PIECES (Y_BYTES / 16)
#define EACH_OF_Y UNROLL for (int i = 0, c = lane / PIECES; i < ALL_COLUMNS * PIECES / 32; i++, c += 32 / PIECES)
#define X_PIECES (STEP / 8)
#define EACH_OF_X UNROLL for (int i = 0, r = lane / X_PIECES; i < (M * X_PIECES + 31) / 32; i++, r += 32 / X_PIECES)
#define EACH_OF_SCALES UNROLL for (int p = lane; p < ALL_COLUMNS * SCALE_WORDS; p += 32)
#define COLUMN(c) MIN(first + (c) % COLUMNS, n - 1)  // of a weight
#if IN_BLOCKS
#define COPY_SCALES(to, step) \
    EACH_OF_SCALES { \
        const int at = (step) * (STEP / BLOCK) + p % SCALE_WORDS * 2, c = p / SCALE_WORDS; \
        copy_word((to) + SCALES_AT + p * 4, (c < COLUMNS ? scale : up_scale) + (long)COLUMN(c) * (k / BLOCK) + at, \
                  at * BLOCK < k); \
    }
#else
#define COPY_SCALES(to, step)
#endif
#define COPY_WEIGHTS(to, step) { \
        const int at = (step) * STEP + lane % PIECES * (STEP / PIECES); \
        EACH_OF_Y copy((to) + c * Y_PITCH + lane % PIECES * 16, columns[i] + BYTES_OF(at), at < k); \
        COPY_SCALES(to, step) \
    }
#define COPY_X(to, step) { \
        const int at = (step) * STEP + lane % X_PIECES * 8; \
        EACH_OF_X if (r < m) \
            copy((to) + X_AT + r * X_PITCH + lane % X_PIECES * 16, x + (long)r * x_row + at, at < k); \
    }

#if BITS
INLINE uint fma_pair(uint x, uint y, uint z) {
    uint v;
    asm("fma.rn." TEXT(KIND) "x2 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(z));
    return v;
}
INLINE uint chosen_bytes(uint v, uint selector) {
    uint found;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(found) : "r"(v), "r"(selector));
    return found;
}
INLINE uint masked_or(uint v, uint mask, uint bits) {
    uint found;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(v), "r"(mask), "r"(bits));
    return found;
}
// Bits of two floats: 1 and -1, and a power of two whose next floats are one apart, so that it holds a code in its bits.
#define IS_BF16_bf16 1
#define IS_BF16_f16 0
#define JOINED_NOW(x, y) x##y
#define JOINED(x, y) JOINED_NOW(x, y)
#define IS_BF16 JOINED(IS_BF16_, KIND)
#define ONES (IS_BF16 ? 0x3f803f80u : 0x3c003c00u)
#define HOLDER (IS_BF16 ? 0x43004300u : 0x64006400u)
#define NEGATIVE 0x80008000u  // two signs
#endif

// Load a lane's numbers of a block of a column as four pairs of floats: two of each half of the block.
INLINE void load_pairs(uint *pairs, __local const char *column, int block, int quarter) {
#if BITS == 4
    const uint each = chosen_bytes(*(__local const uint *)(column + block * 16 + quarter * 4), 0x3120);
    UNROLL for (int i = 0; i < 4; i++)
        pairs[i] = fma_pair(masked_or(each >> (i % 2 * 8 + i / 2 * 4), 0x000f000fu, HOLDER), ONES, HOLDER | 0x80088008u);
#elif BITS == 8
    UNROLL for (int i = 0; i < 4; i++) {
        const uint word = *(__local const uint *)(column + block * 32 + i / 2 * 16 + quarter * 4);
        const uint each = chosen_bytes(word, i % 2 ? 0x4342 : 0x4140), low = masked_or(each, 0x007f007fu, HOLDER);
        pairs[i] = fma_pair(masked_or(each, 0x00800080u, HOLDER), ONES | NEGATIVE, low);  // a set sign stands for -128
    }
#else
    UNROLL for (int i = 0; i < 2; i++) {
        const uint2 both = *(__local const uint2 *)(column + block * 64 + i * 32 + quarter * 8);
        pairs[2 * i] = both.x, pairs[2 * i + 1] = both.y;
    }
#endif
}
#if IN_BLOCKS
// The scale of a block of a column.
INLINE float scale_of(__local const uint *words, int block) {
    float v;
    const ushort bits = words[block / 2] >> block % 2 * 16;
    asm("cvt.f32." TEXT(SCALE_KIND) " %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}
#endif

__kernel __attribute__((reqd_work_group_size(32, WARPS, 1))) void matmul(
        __global const T *restrict x, __global const Y_T *restrict y, __global const SCALE_T *restrict scale,
        __global const BIAS_T *restrict bias, __global T *restrict out, __global T *restrict saved,
        __global const Y_T *restrict up, __global const SCALE_T *restrict up_scale, __global const BIAS_T *restrict up_bias,
        const long x_start, const long y_start, const int rows, const int n, const int k, const int x_row,
        const int y_row) {
    __local uint4 stored[WARPS * STAGES * STAGE_BYTES / 16];
    const int lane = get_local_id(0), warp = get_local_id(1), flat = warp * 32 + lane;
    const int first = get_group_id(0) * COLUMNS, own = lane / 4, quarter = lane % 4, steps = (k + STEP - 1) / STEP;
    __local const char *mine = (__local const char *)stored + warp * STAGES * STAGE_BYTES;
    const uint address = local_address(mine);
    const int above = get_group_id(1) * M, m = MIN(rows - above, M);  // rows of other work-groups, and of this one
    x += x_start + (long)above * x_row;
    __global const Y_T *columns[ALL_COLUMNS * PIECES / 32];
    EACH_OF_Y columns[i] = (c < COLUMNS ? y : up) + y_start + (long)COLUMN(c) * y_row;

    UNROLL for (int s = 0; s < STAGES; s++)
        if (warp + s * WARPS < steps) COPY_WEIGHTS(address + s * STAGE_BYTES, warp + s * WARPS)
    AWAIT_BEFORE();
    if (OVERLAPS) ALLOW_NEXT();
    UNROLL for (int s = 0; s < STAGES; s++) {
        if (warp + s * WARPS < steps) COPY_X(address + s * STAGE_BYTES, warp + s * WARPS)
        COMMIT();
    }
    float sum[ALL_TILES][TILES_OF_ROWS][4];
    UNROLL for (int i = 0; i < ALL_TILES; i++) UNROLL for (int j = 0; j < TILES_OF_ROWS; j++)
        UNROLL for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
    int stage = 0;
    for (int step = warp; step < steps; step += WARPS) {
        AWAIT_COPIES();
        AWAIT_WARP();
        __local const char *loaded = mine + stage * STAGE_BYTES;
        UNROLL for (int b = 0; b < STEP / BLOCK; b++) {
            uint right[TILES_OF_ROWS][4];
            UNROLL for (int j = 0; j < TILES_OF_ROWS; j++) UNROLL for (int i = 0; i < 2; i++) {
                const uint2 both = *(__local const uint2 *)(
                    loaded + X_AT + MIN(j * 8 + own, m - 1) * X_PITCH + b * 64 + i * 32 + quarter * 8);
                right[j][2 * i] = both.x, right[j][2 * i + 1] = both.y;
            }
            UNROLL for (int i = 0; i < ALL_TILES; i++) {
                __local const char *column = loaded + (i * 16 + own) * Y_PITCH;
                uint low[4], high[4];
                load_pairs(low, column, b, quarter);
                load_pairs(high, column + 8 * Y_PITCH, b, quarter);
                UNROLL for (int j = 0; j < TILES_OF_ROWS; j++) {
                    float part[4] = {0, 0, 0, 0};
                    UNROLL for (int p = 0; p < 4; p += 2) {
                        const uint quad[4] = {low[p], high[p], low[p + 1], high[p + 1]};
                        mma(IN_BLOCKS ? part : sum[i][j], quad, right[j] + p);
                    }
#if IN_BLOCKS
                    __local const uint *words = (__local const uint *)(loaded + SCALES_AT) + (i * 16 + own) * SCALE_WORDS;
                    UNROLL for (int e = 0; e < 4; e++)
                        sum[i][j][e] = fma(part[e], scale_of(words + e / 2 * 8 * SCALE_WORDS, b), sum[i][j][e]);
#endif
                }
            }
        }
        AWAIT_WARP();
        if (step + STAGES * WARPS < steps) {
            COPY_WEIGHTS(address + stage * STAGE_BYTES, step + STAGES * WARPS)
            COPY_X(address + stage * STAGE_BYTES, step + STAGES * WARPS)
        }
        COMMIT();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);  // the sums take the place of what was loaded
    __local float *total = (__local float *)stored;

    UNROLL for (int i = 0; i < ALL_TILES; i++) UNROLL for (int j = 0; j < TILES_OF_ROWS; j++)
        UNROLL for (int e = 0; e < 4; e++)
            total[((warp * ALL_TILES + i) * TILES_OF_ROWS + j) * 128 + e * 32 + lane] = sum[i][j][e];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int o = flat; o < COLUMNS * m; o += WARPS * 32) {
        const int c = o % COLUMNS, r = o / COLUMNS, column = first + c;
        if (column >= n) continue;
        float found[WEIGHTS];
        UNROLL for (int g = 0; g < WEIGHTS; g++) {
            const int tile = g * TILES + c / 16;
            const int at = ((tile * TILES_OF_ROWS + r / 8) * 4 + c / 8 % 2 * 2 + r % 2) * 32 + c % 8 * 4 + r % 8 / 2;
            float v = 0;
            UNROLL for (int w = 0; w < WARPS; w++) v += total[w * OUTPUTS + at];
#if BITS && !IN_BLOCKS
            v *= SCALE_LOAD(g ? up_scale : scale, column);
#endif
            if (BIAS) v += BIAS_LOAD(g ? up_bias : bias, column);
            found[g] = v;
        }
        const size_t to = (size_t)(above + r) * n + column;
        if (SAVE) STORE(saved, to, found[0]);
        const float v = ACTIVATE(found[0]);
#if GATED
        const float2 rounded = unpack_pair(pack_pair(v, found[1]));
        STORE(out, to, rounded.x * rounded.y);
#else
        STORE(out, to, v);
#endif
    }
}
