// Skinny GEMM on the matrix units of NVIDIA GPUs from Ampere on (mma.sync): out = activation(x @ y + bias) for few rows
// of x, in 16-bit floats with float32 sums. It is bound by the bandwidth of y, a weight that is contiguous along k.
//
// A warp multiplies TILES blocks of 16 columns of y by BLOCKS blocks of 8 rows of x; y is the instructions' first
// operand. Each lane copies 16 bytes of a column at a time to local memory (cp.async), STAGES steps ahead, and reads
// back what it copied itself: the order of the numbers along k is free, as long as it is the same for x. The WARPS warps
// of a work-group take steps of 64 along k in turn, and `parts` work-groups share the columns (split-K). All sums are
// added in a fixed order that does not depend on m, so the bits of a row of out do not depend on the other rows.
//
// Arrays   x (m, k), y (n, k) of T, whose rows begin at multiples of 16 bytes, k is a multiple of 8; bias (n) of T;
//          sums (groups, parts, outputs of a group) of float and words (groups), 0 before and after, used if SPLIT;
//          out, saved (m, n) of T, row-major; saved is the input of the activation
// Launch   global (groups * 32, WARPS, parts), local (32, WARPS, 1); a group has TILES * 16 columns
// Params   T, LOAD, STORE, KIND    the dtype: see prelude.cl; KIND is its PTX name
//          TILES, BLOCKS, WARPS    as above; 8 * BLOCKS is at least m
//          STAGES                  steps of a warp that are in flight
//          SPLIT                   1 if there are several parts
//          BIAS, SAVE, ACTIVATION  1 to add bias, to write saved; none, relu, silu, gelu or gelu_tanh
#include "ptx.cl"
#if !defined(TILES) || !defined(BLOCKS) || !defined(WARPS) || !defined(STAGES) || !defined(SPLIT)
#error "matmul_skinny.cl needs TILES, BLOCKS, WARPS, STAGES and SPLIT"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION)
#error "matmul_skinny.cl needs BIAS, SAVE and ACTIVATION"
#endif

#define STEP 64  // of k
#define LOADS 2  // of a lane in a step, from each of its columns or rows
#define EACH 8   // numbers of a load: 16 bytes
#define COLUMNS (16 * TILES)
#define ROWS (8 * BLOCKS)
#define OUTPUTS (COLUMNS * ROWS)
#define SLOTS (LOADS * (2 * TILES + BLOCKS))  // loads of a lane in a step
#define SLOT_BYTES (32 * 16)

// Copy 16 bytes to local memory asynchronously, or zeros unless is_used.
INLINE void copy(uint to, __global const T *from, int is_used) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_used ? 16 : 0) : "memory");
}
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define AWAIT_COPIES() asm volatile("cp.async.wait_group " TEXT(STAGES) " - 1;" ::: "memory")

// The numbers of a lane in a step: position along k, and whether they are there.
#define AT(step, l) ((step) * STEP + (l) * (STEP / LOADS) + lane % 4 * EACH)
#define IS_USED(step, l) ((step) < end && AT(step, l) < k)
#define COPY_Y(stage, step) \
    UNROLL for (int l = 0; l < LOADS; l++) UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int h = 0; h < 2; h++) \
        copy(own_address + ((stage) * SLOTS + (l * TILES + i) * 2 + h) * SLOT_BYTES, columns[i][h] + AT(step, l), \
             IS_USED(step, l));
#define COPY_X(stage, step) \
    UNROLL for (int l = 0; l < LOADS; l++) UNROLL for (int j = 0; j < BLOCKS; j++) \
        copy(own_address + ((stage) * SLOTS + 2 * LOADS * TILES + l * BLOCKS + j) * SLOT_BYTES, rows[j] + AT(step, l), \
             IS_USED(step, l) && j * 8 + row < m);

__kernel __attribute__((reqd_work_group_size(32, WARPS, 1))) void matmul(
        __global const T *restrict x, __global const T *restrict y, __global const T *restrict bias,
        __global float *restrict sums, __global uint *restrict words, __global T *restrict out,
        __global T *restrict saved, const long x_start, const long y_start, const int m, const int n, const int k,
        const int x_row, const int y_row) {
    __local uint4 stored[WARPS * STAGES * SLOTS * 32];  // each lane reads what it has copied itself
    const int lane = get_local_id(0), warp = get_local_id(1), flat = warp * 32 + lane;
    const int first = get_group_id(0) * COLUMNS, row = lane / 4;
    const int part = get_group_id(2), parts = get_num_groups(2), steps = (k + STEP - 1) / STEP;
    const int begin = (int)((long)steps * part / parts), end = (int)((long)steps * (part + 1) / parts);
    __local const uint4 *own = stored + warp * (STAGES * SLOTS * 32) + lane;
    const uint own_address = local_address(own);
    __global const T *columns[TILES][2], *rows[BLOCKS];
    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int h = 0; h < 2; h++)
        columns[i][h] = y + y_start + (long)MIN(first + i * 16 + h * 8 + row, n - 1) * y_row;
    UNROLL for (int j = 0; j < BLOCKS; j++) rows[j] = x + x_start + (long)MIN(j * 8 + row, m - 1) * x_row;

    UNROLL for (int s = 0; s < STAGES; s++) {
        COPY_Y(s, begin + warp + s * WARPS)
        COPY_X(s, begin + warp + s * WARPS)
        COMMIT();
    }
    float sum[TILES][BLOCKS][4];
    UNROLL for (int i = 0; i < TILES; i++) UNROLL for (int j = 0; j < BLOCKS; j++) UNROLL for (int e = 0; e < 4; e++)
        sum[i][j][e] = 0;
    int stage = 0;
    for (int step = begin + warp; step < end; step += WARPS) {
        AWAIT_COPIES();
        __local const uint4 *loaded = own + stage * (SLOTS * 32);
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
        COPY_Y(stage, step + STAGES * WARPS)
        COPY_X(stage, step + STAGES * WARPS)
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
        if (BIAS) v += LOAD(bias, column);
        const size_t to = (size_t)r * n + column;
        if (SAVE) STORE(saved, to, v);
        STORE(out, to, ACTIVATE(v));
    }
}
