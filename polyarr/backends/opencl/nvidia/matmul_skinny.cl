// Skinny GEMM on the matrix units of NVIDIA GPUs from Ampere on (mma.sync): out = activation(x @ y + bias) for few rows
// of x, in 16-bit floats with float32 sums. It is bound by the bandwidth of y, a weight that is contiguous along k. y may
// be a quantized weight: its codes become floats in registers, which is exact, and are multiplied by the scales of
// blocks, rounded to 16 bits; scales of rows multiply the sums.
//
// A warp multiplies TILES blocks of 16 columns of y by BLOCKS blocks of 8 rows of x; y is the instructions' first
// operand. Each lane copies 16 bytes of a column at a time to local memory (cp.async), STAGES steps ahead, and reads
// back what it copied itself: the order of the numbers along k is free, as long as it is the same for x. The WARPS warps
// of a work-group take steps of STEP along k in turn, and `parts` work-groups share the columns (split-K). All sums are
// added in a fixed order that does not depend on m, so the bits of a row of out do not depend on the other rows.
//
// Arrays   x (m, k), y (n, k) of T, whose rows begin at multiples of 16 bytes, k is a multiple of 8; bias (n) of BIAS_T;
//          of a quantized weight, y is codes (n, k) or (n, k / 2), and scale (n) or (n, k / 32); k is a multiple of 16
//          sums (groups, parts, outputs of a group) of float and words (groups), 0 before and after, used if SPLIT;
//          out, saved (m, n) of T, row-major; saved is the input of the activation
// Launch   global (groups * 32, WARPS, parts), local (32, WARPS, 1); a group has TILES * 16 columns
// Params   T, LOAD, STORE, KIND    the dtype: see prelude.cl; KIND is its PTX name
//          TILES, BLOCKS, WARPS    as above; 8 * BLOCKS is at least m
//          STAGES                  steps of a warp that are in flight
//          SPLIT                   1 if there are several parts
//          BIAS, SAVE, ACTIVATION  1 to add bias, to write saved; none, relu, silu, gelu or gelu_tanh
//          BIAS_T, BIAS_LOAD       the dtype of bias
//          BITS                    8 or 4 for codes of a quantized weight as in dequantize.cl; else 0
//          IN_BLOCKS, SCALE_T, SCALE_LOAD   1 for a scale per block of 32 codes, 0 for one per row; its dtype
//          SCALE_KIND              the PTX name of the dtype of a block's scale, f16 or bf16
#include "ptx.cl"
#if !defined(TILES) || !defined(BLOCKS) || !defined(WARPS) || !defined(STAGES) || !defined(SPLIT)
#error "matmul_skinny.cl needs TILES, BLOCKS, WARPS, STAGES and SPLIT"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(BIAS_T) || !defined(BIAS_LOAD)
#error "matmul_skinny.cl needs BIAS, SAVE, ACTIVATION, BIAS_T and BIAS_LOAD"
#endif
#if !defined(BITS) || !defined(IN_BLOCKS) || !defined(SCALE_T) || !defined(SCALE_LOAD)
#error "matmul_skinny.cl needs BITS, IN_BLOCKS, SCALE_T and SCALE_LOAD"
#endif

#if BITS
#define LOADS 1            // of a lane in a step, from each of its columns
#define EACH (128 / BITS)  // numbers of such a load: 16 bytes
#define Y_T uchar
#define BYTES_OF(count) ((count) * BITS / 8)  // a column is read by bytes
#else
#define LOADS 2
#define EACH 8
#define Y_T T
#define BYTES_OF(count) (count)
#endif
#define STEP (4 * LOADS * EACH)  // of k
#define X_LOADS (STEP / 4 / 8)   // of a lane in a step, from each of its rows
#define COLUMNS (16 * TILES)
#define ROWS (8 * BLOCKS)
#define OUTPUTS (COLUMNS * ROWS)
#define SLOTS (LOADS * 2 * TILES + X_LOADS * BLOCKS)  // loads of a lane in a step
#define SLOT_BYTES (32 * 16)

// Copy 16 bytes to local memory asynchronously, or zeros unless is_used.
INLINE void copy(uint to, __global const T *from, int is_used) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_used ? 16 : 0) : "memory");
}
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define AWAIT_COPIES() asm volatile("cp.async.wait_group " TEXT(STAGES) " - 1;" ::: "memory")

// The numbers of a lane in a step: position along k, and whether they are there.
#define AT(step, l) ((step) * STEP + (l) * (STEP / LOADS) + lane % 4 * EACH)
#define X_AT(step, l) (BITS ? AT(step, 0) + (l) * 8 : AT(step, l))
#define IS_USED(step, l) ((step) < end && AT(step, l) < k)
#define COPY_Y(stage, step) \
    UNROLL for (int l = 0; l < LOADS; l++) UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int h = 0; h < 2; h++) \
        copy(own_address + ((stage) * SLOTS + (l * TILES + i) * 2 + h) * SLOT_BYTES, \
             (__global const T *)(columns[i][h] + BYTES_OF(AT(step, l))), IS_USED(step, l));
#define COPY_X(stage, step) \
    UNROLL for (int l = 0; l < X_LOADS; l++) UNROLL for (int j = 0; j < BLOCKS; j++) \
        copy(own_address + ((stage) * SLOTS + 2 * LOADS * TILES + l * BLOCKS + j) * SLOT_BYTES, \
             rows[j] + X_AT(step, l), (step) < end && X_AT(step, l) < k && j * 8 + row < m);

#if IN_BLOCKS
// The scale of a lane's block is copied with its neighbor, a word together. scales[i][h]: index of a column's first.
#define SCALE_AT(step, i, h) (scales[i][h] + AT(step, 0) / 32)
INLINE void copy_word(uint to, __global const SCALE_T *from, int is_used) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(is_used ? 4 : 0) : "memory");
}
INLINE float scale_of(ushort bits) {
    float v;
    asm("cvt.f32." TEXT(SCALE_KIND) " %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}
#define COPY_SCALES(stage, step) \
    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int h = 0; h < 2; h++) \
        copy_word(factors_address + ((stage) * 2 * TILES + i * 2 + h) * 128, \
                  scale + SCALE_AT(step, i, h) / 2 * 2, IS_USED(step, 0));
#else
#define COPY_SCALES(stage, step)
#endif

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
// Bits of two floats: 1 and -1, and a power of two whose next floats are one apart, so that it holds a code in its bits.
#define IS_BF16_bf16 1
#define IS_BF16_f16 0
#define JOINED_NOW(x, y) x##y
#define JOINED(x, y) JOINED_NOW(x, y)
#define IS_BF16 JOINED(IS_BF16_, KIND)
#define ONES (IS_BF16 ? 0x3f803f80u : 0x3c003c00u)
#define HOLDER (IS_BF16 ? 0x43004300u : 0x64006400u)
#define NEGATIVE 0x80008000u  // two signs, or zeros that change no sum

// Widen the codes of one word of a column to pairs of floats, four codes to two pairs.
#if BITS == 8
#define PAIRS 2
INLINE void widen_codes(uint *pairs, uint word) {
    UNROLL for (int i = 0; i < 2; i++) {
        const uint each = chosen_bytes(word, i ? 0x4342 : 0x4140);
        const uint low = (each & 0x007f007fu) | HOLDER, sign = (each & 0x00800080u) | HOLDER;
        pairs[i] = fma_pair(sign, ONES | NEGATIVE, low);  // a set sign bit stands for -128
    }
}
#else
#define PAIRS 4
INLINE void widen_codes(uint *pairs, uint word) {
    const uint each = chosen_bytes(word, 0x3120);
    UNROLL for (int i = 0; i < 4; i++)
        pairs[i] = fma_pair((each >> (i % 2 * 8 + i / 2 * 4) & 0x000f000fu) | HOLDER, ONES, HOLDER | 0x80088008u);
}
#endif
#endif

__kernel __attribute__((reqd_work_group_size(32, WARPS, 1))) void matmul(
        __global const T *restrict x, __global const Y_T *restrict y, __global const SCALE_T *restrict scale,
        __global const BIAS_T *restrict bias, __global float *restrict sums, __global uint *restrict words,
        __global T *restrict out, __global T *restrict saved, const long x_start, const long y_start, const int m, const int n, const int k,
        const int x_row, const int y_row) {
    __local uint4 stored[WARPS * STAGES * SLOTS * 32];  // each lane reads what it has copied itself
    const int lane = get_local_id(0), warp = get_local_id(1), flat = warp * 32 + lane;
    const int first = get_group_id(0) * COLUMNS, row = lane / 4;
    const int part = get_group_id(2), parts = get_num_groups(2), steps = (k + STEP - 1) / STEP;
    const int begin = (int)((long)steps * part / parts), end = (int)((long)steps * (part + 1) / parts);
    __local const uint4 *own = stored + warp * (STAGES * SLOTS * 32) + lane;
    const uint own_address = local_address(own);
    __global const Y_T *columns[TILES][2];
    __global const T *rows[BLOCKS];
    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int h = 0; h < 2; h++)
        columns[i][h] = y + y_start + (long)MIN(first + i * 16 + h * 8 + row, n - 1) * y_row;
#if IN_BLOCKS
    __local uint factors[WARPS * STAGES * 2 * TILES * 32];
    __local const uint *own_factors = factors + warp * (STAGES * 2 * TILES * 32) + lane;
    const uint factors_address = local_address(own_factors);
    long scales[TILES][2];
    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int h = 0; h < 2; h++)
        scales[i][h] = (long)MIN(first + i * 16 + h * 8 + row, n - 1) * (k / 32);
#endif
    UNROLL for (int j = 0; j < BLOCKS; j++) rows[j] = x + x_start + (long)MIN(j * 8 + row, m - 1) * x_row;

    UNROLL for (int s = 0; s < STAGES; s++) {
        COPY_Y(s, begin + warp + s * WARPS)
        COPY_X(s, begin + warp + s * WARPS)
        COPY_SCALES(s, begin + warp + s * WARPS)
        COMMIT();
    }
    float sum[TILES][BLOCKS][4];
    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int j = 0; j < BLOCKS; j++) UNROLL for (int e = 0; e < 4; e++)
        sum[i][j][e] = 0;
    int stage = 0;
    for (int step = begin + warp; step < end; step += WARPS) {
        AWAIT_COPIES();
        __local const uint4 *loaded = own + stage * (SLOTS * 32);
#if BITS
        uint4 left[X_LOADS][BLOCKS];
        UNROLL for (int l = 0; l < X_LOADS; l++) UNROLL for (int j = 0; j < BLOCKS; j++)
            left[l][j] = loaded[(2 * TILES + l * BLOCKS + j) * 32];
        UNROLL for (int i = 0; i < TILES; i++) {
            uint given[2][4];
            UNROLL for (int h = 0; h < 2; h++) {
                const uint4 v = loaded[(i * 2 + h) * 32];
                given[h][0] = v.x, given[h][1] = v.y, given[h][2] = v.z, given[h][3] = v.w;
            }
#if IN_BLOCKS
            uint factor[2];
            UNROLL for (int h = 0; h < 2; h++) {
                const uint word = own_factors[(stage * 2 * TILES + i * 2 + h) * 32];
                const float f = scale_of(SCALE_AT(step, i, h) % 2 ? word >> 16 : word);
                factor[h] = pack_pair(f, f);
            }
#endif
            UNROLL for (int word = 0; word < 4; word++) {
                uint pairs[2][PAIRS];
                UNROLL for (int h = 0; h < 2; h++) {
                    widen_codes(pairs[h], given[h][word]);
#if IN_BLOCKS
                    UNROLL for (int p = 0; p < PAIRS; p++) pairs[h][p] = fma_pair(pairs[h][p], factor[h], NEGATIVE);
#endif
                }
                // Four numbers along k at a time; of 4 bits, those of a word lie in both halves of a block.
                UNROLL for (int p = 0; p < PAIRS / 2; p++) {
                    const uint quad[4] = {pairs[0][2 * p], pairs[1][2 * p], pairs[0][2 * p + 1], pairs[1][2 * p + 1]};
                    const int at = word + 4 * p;
                    UNROLL for (int j = 0; j < BLOCKS; j++) {
                        const uint4 v = left[at / 2][j];
                        const uint pair[2] = {at % 2 ? v.z : v.x, at % 2 ? v.w : v.y};
                        mma(sum[i][j], quad, pair);
                    }
                }
            }
        }
#else
        UNROLL for (int l = 0; l < LOADS; l++) UNROLL for (int i = 0; i < TILES; i++) {
            const uint4 low = loaded[((l * TILES + i) * 2) * 32], high = loaded[((l * TILES + i) * 2 + 1) * 32];
            const uint first_half[4] = {low.x, high.x, low.y, high.y}, second_half[4] = {low.z, high.z, low.w, high.w};
            UNROLL for (int j = 0; j < BLOCKS; j++) {
                const uint4 v = loaded[(2 * LOADS * TILES + l * BLOCKS + j) * 32];
                const uint first_pair[2] = {v.x, v.y}, second_pair[2] = {v.z, v.w};
                mma(sum[i][j], first_half, first_pair);
                mma(sum[i][j], second_half, second_pair);
            }
        }
#endif
        COPY_Y(stage, step + STAGES * WARPS)
        COPY_X(stage, step + STAGES * WARPS)
        COPY_SCALES(stage, step + STAGES * WARPS)
        COMMIT();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);  // the sums take the place of what was loaded
    __local float *total = (__local float *)stored;

    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int j = 0; j < BLOCKS; j++) UNROLL for (int e = 0; e < 4; e++)
        total[((warp * TILES + i) * BLOCKS + j) * 128 + e * 32 + lane] = sum[i][j][e];
    barrier(CLK_LOCAL_MEM_FENCE);
#if SPLIT
    __local int is_last;
    __global float *shared = sums + (size_t)get_group_id(0) * parts * OUTPUTS;
    for (int o = flat; o < OUTPUTS; o += WARPS * 32) {
        float v = 0;
        UNROLL for (int w = 0; w < WARPS; w++) v += total[w * OUTPUTS + o];
        shared[part * OUTPUTS + o] = v;
    }
    FENCE_GPU();
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (!flat) {
        is_last = atomic_inc(words + get_group_id(0)) == parts - 1;
        if (is_last) words[get_group_id(0)] = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!is_last) return;
    FENCE_GPU();
#endif
    for (int o = flat; o < OUTPUTS; o += WARPS * 32) {
        const int c = o % COLUMNS, r = o / COLUMNS, column = first + c;
        if (r >= m || column >= n) continue;
        const int at = ((c / 16 * BLOCKS + r / 8) * 4 + c / 8 % 2 * 2 + r % 2) * 32 + c % 8 * 4 + r % 8 / 2;
        float v = 0;
#if SPLIT
        for (int p = 0; p < parts; p++) v += shared[p * OUTPUTS + at];
#else
        UNROLL for (int w = 0; w < WARPS; w++) v += total[w * OUTPUTS + at];
#endif
#if BITS && !IN_BLOCKS
        v *= SCALE_LOAD(scale, column);
#endif
        if (BIAS) v += BIAS_LOAD(bias, column);
        const size_t to = (size_t)r * n + column;
        if (SAVE) STORE(saved, to, v);
        STORE(out, to, ACTIVATE(v));
    }
}
