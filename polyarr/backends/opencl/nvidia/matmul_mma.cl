// GEMM on the matrix units of NVIDIA GPUs from Ampere on (mma.sync): out = activation(x @ y + bias), for a batch of
// matrices of 16-bit floats with float32 sums, or of float32 split into 2 bfloat16 terms each (split.cl).
//
// A work-group computes a tile of TILE_M x TILE_N, each warp a part of WARP_M x WARP_N. Pieces of x and y that are 32
// long along k are copied asynchronously (cp.async) into a ring of STAGES in local memory while earlier ones are
// multiplied. Elements outside of a matrix arrive as zeros. If there are few tiles, `parts` work-groups share the steps
// of one (split-K), and matmul_join adds their partial sums in a fixed order.
//
// In local memory a piece has rows of 64 bytes along k or, transposed, 32 rows along the positions. The 16-byte chunks
// of a row are permuted by the row's number (swizzled), so that reads of eight rows have no bank conflicts.
//
// With 2 terms, the steps along k run three times: low @ high, high @ low, high @ high. Matrix units round their sums
// towards zero, so partial sums are added up in ordinary float32 every FOLD steps. Infinities may become nan.
//
// Arrays   x (batch, m, k), y (batch, k, n) of T; one of the strides of their two last axes is 1, all others are
//          multiples of 16 bytes; bias (n) of T; out, saved (batch, m, n) of T, row-major; saved is the input of the
//          activation
//          sums (tiles * parts, TILE_M * TILE_N) of float: partial sums, used if SPLIT
//          Matrix b of x begins at (b / inner) * x_outer + (b % inner) * x_inner; with terms, x_outer leads from the
//          high to the low term
// Launch   matmul: global (tiles * ITEMS, parts), local (ITEMS, 1)
//          matmul_join, if SPLIT: global (tiles * ITEMS, WARP_M / 16), local (ITEMS, 1)
// Params   T, LOAD, STORE, KIND              the dtype: see prelude.cl; KIND is its PTX name
//          TILE_M, TILE_N, WARP_M, WARP_N    as above; TILE_* are multiples of 64, WARP_* of 16
//          STAGES                            2, 3 or 4
//          X_ALONG_K, Y_ALONG_K              1 if the operand is contiguous along k
//          EVEN                              1 if n is even
//          BIAS, SAVE                        1 to add bias, to write saved
//          ACTIVATION                        none, relu, silu, gelu or gelu_tanh
//          IM2COL                            1 if x is an im2col view (im2col.cl), contiguous along k; 2 if y is,
//                                            contiguous along its columns; else 0. With 1 and 2, 16-byte chunks of the
//                                            view are contiguous, and the kernel is called matmul_im2col
//          SPLIT                             1 if work-groups share tiles
//          TERMS                             1; or 2 if x and y are bfloat16 terms and out is float32
#include "ptx.cl"
#include "im2col.cl"
#if !defined(TILE_M) || !defined(TILE_N) || !defined(WARP_M) || !defined(WARP_N) || !defined(STAGES)
#error "matmul_mma.cl needs TILE_M, TILE_N, WARP_M, WARP_N and STAGES"
#endif
#if !defined(X_ALONG_K) || !defined(Y_ALONG_K) || !defined(EVEN) || !defined(SPLIT) || !defined(TERMS)
#error "matmul_mma.cl needs X_ALONG_K, Y_ALONG_K, EVEN, SPLIT and TERMS"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(IM2COL)
#error "matmul_mma.cl needs BIAS, SAVE, ACTIVATION and IM2COL"
#endif

#define WARPS_M (TILE_M / WARP_M)
#define ITEMS (WARPS_M * (TILE_N / WARP_N) * 32)
#define HIGH (WARP_M / 16)  // the sums of a warp: HIGH x WIDE blocks of 16 x 8; a lane holds four sums of each
#define WIDE (WARP_N / 8)
#define STEP 32  // of k
#define X_BYTES (TILE_M * STEP * 2)
#define STAGE_BYTES (X_BYTES + TILE_N * STEP * 2)
#if STAGES == 2
#define STAGES_LEFT 0
#elif STAGES == 3
#define STAGES_LEFT 1
#elif STAGES == 4
#define STAGES_LEFT 2
#else
#error "matmul_mma.cl: STAGES is 2, 3 or 4"
#endif
#define FOLD 8  // steps after which sums are added up outside of the matrix units
#define PASSES (TERMS * (TERMS + 1) / 2)
#if TERMS > 1
#define INPUT ushort
#else
#define INPUT T
#endif

// Arguments of a launch. `raster` tiles along m run together, so that they share columns of y in the cache.
typedef struct {
    long m, n, k, tiles_m, tiles_n, raster, parts, inner, x_step, x_outer, x_inner, y_step, y_outer, y_inner;
} Numbers;

// ---- instructions -----------------------------------------------------------------------------------------------

// Copy 16 bytes to local memory asynchronously: `bytes` are read, the others are 0.
INLINE void cp_async(uint to, __global const INPUT *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
#define CP_ASYNC_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
// Wait until at most `left` groups of copies are in flight.
#define CP_ASYNC_WAIT(left) asm volatile("cp.async.wait_group " TEXT(left) ";" ::: "memory")

// ldmatrix: load four matrices of 8 x 8 from local memory into the registers of a warp; each lane passes one row's
// address.
#define LDMATRIX(how, v, from) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3]) : "r"(from) : "memory")

// ---- tiles of an operand in local memory ------------------------------------------------------------------------

// The offset of a 16-byte chunk, from its row and its number in the row.
INLINE uint swizzled_along_k(uint row, uint number) { return row * 64 + ((number ^ (row / 2 % 4)) << 4); }
INLINE uint swizzled_turned(uint row, uint number, uint length) {
    return row * (length * 2) + ((number ^ (row % 8)) << 4);
}

// Copy a work-item's share of the step that begins at k0; `from` is the matrix, `first` the tile's first position. Its
// chunks lie in rows that are a multiple of 8 apart, so their swizzled offset within a row is the same. Chunks outside
// of the matrix read 0 bytes.
INLINE void operand_load(uint to, __global const INPUT *from, int along_k, int length, long first, long positions,
                         long step, long k0, long k, int me) {
    const int in_row = (along_k ? STEP : length) / 8, number = me % in_row, row = me / in_row, apart = ITEMS / in_row;
    const long left = along_k ? k - k0 - number * 8 : positions - first - number * 8;  // elements, from the piece on
    const long rows = (along_k ? positions - first : k - k0) - row;
    const int bytes = (int)MAX(MIN(left * 2, 16L), 0L);
    from += along_k ? (first + row) * step + k0 + number * 8 : (k0 + row) * step + first + number * 8;
    to += along_k ? swizzled_along_k(row, number) : swizzled_turned(row, number, length);
    UNROLL for (int l = 0; l < length * STEP / 8 / ITEMS; l++)
        cp_async(to + l * apart * in_row * 16, from + l * apart * step, l * apart < rows ? bytes : 0);
}

// The same for im2col views: offsets of a work-item's chunks without their part along k, and the chunks of a step.
INLINE void find_view_offsets(long *kept, const Axes *axes, int along_k, int length, long first, long positions,
                              int me) {
    const int in_row = (along_k ? STEP : length) / 8, number = me % in_row, row = me / in_row, apart = ITEMS / in_row;
    UNROLL for (int l = 0; l < length * STEP / 8 / ITEMS; l++)
        kept[l] = walk(axes, MIN(first + (along_k ? row + l * apart : number * 8), positions - 1));
}

INLINE void view_load(uint to, __global const INPUT *from, const long *kept, const Axes *deep, int along_k, int length,
                         long first, long positions, long k0, long k, int me) {
    const int in_row = (along_k ? STEP : length) / 8, number = me % in_row, row = me / in_row, apart = ITEMS / in_row;
    const int bytes = (along_k ? k - k0 : positions - first) > number * 8 ? 16 : 0;
    const long rows = (along_k ? positions - first : k - k0) - row;
    to += along_k ? swizzled_along_k(row, number) : swizzled_turned(row, number, length);
    if (along_k) from += walk(deep, MIN(k0 + number * 8, k - 1));
    UNROLL for (int l = 0; l < length * STEP / 8 / ITEMS; l++)
        cp_async(to + l * apart * in_row * 16,
                   from + kept[l] + (along_k ? 0 : walk(deep, MIN(k0 + row + l * apart, k - 1))),
                   l * apart < rows ? bytes : 0);
}

// Load the fragment of x for 16 rows x 16 of k: four words per lane.
INLINE void load_x_fragment(uint *v, uint at, uint row, uint deep, uint lane) {
#if X_ALONG_K
    LDMATRIX("", v, at + swizzled_along_k(row + lane % 16, deep / 8 + lane / 16));
#else
    LDMATRIX(".trans", v, at + swizzled_turned(deep + lane / 16 * 8 + lane % 8, (row + lane / 8 % 2 * 8) / 8, TILE_M));
#endif
}
// Load the fragments of y for 16 of k x 16 columns: two words per lane for the first 8 columns, two for the others.
INLINE void load_y_fragment(uint *v, uint at, uint column, uint deep, uint lane) {
#if Y_ALONG_K
    LDMATRIX("", v, at + swizzled_along_k(column + lane / 16 * 8 + lane % 8, deep / 8 + lane / 8 % 2));
#else
    LDMATRIX(".trans", v, at + swizzled_turned(deep + lane % 16, (column + lane / 16 * 8) / 8, TILE_N));
#endif
}

// ---- scheduling and epilogue ------------------------------------------------------------------------------------

typedef struct {
    long row, column, matrix;
} Origin;

INLINE void find_origin(Origin *origin, const Numbers *a, long tile) {
    const long each = a->tiles_m * a->tiles_n, in_matrix = tile % each, band_tiles = a->raster * a->tiles_n;
    const long band = in_matrix / band_tiles, in_band = in_matrix % band_tiles;
    const long high = MIN(a->tiles_m - band * a->raster, a->raster);
    origin->matrix = tile / each;
    origin->row = (band * a->raster + in_band % high) * TILE_M;
    origin->column = in_band / high * TILE_N;
}

INLINE void write_two(__global T *target, const Numbers *a, long matrix, long row, long column, float v, float w) {
    if (row >= a->m || column >= a->n) return;
    const size_t i = ((size_t)matrix * a->m + row) * a->n + column;
#if TERMS == 1 && EVEN
    *(__global uint *)(target + i) = pack_pair(v, w);
#else
    STORE(target, i, v);
    if (column + 1 < a->n) STORE(target, i + 1, w);
#endif
}

// Apply the epilogue to two neighbors in each of two rows that lie 8 apart, and write them.
INLINE void write_four(__global T *out, __global T *saved, __global const T *bias, const Numbers *a, long matrix,
                       long row, long column, const float *sums) {
    float v[4];
    UNROLL for (int i = 0; i < 4; i++) {
        v[i] = sums[i];
        if (BIAS && column + i % 2 < a->n) v[i] += LOAD(bias, column + i % 2);
    }
    UNROLL for (int i = 0; i < 4; i += 2) {
        if (SAVE) write_two(saved, a, matrix, row + i * 4, column, v[i], v[i + 1]);
        write_two(out, a, matrix, row + i * 4, column, ACTIVATE(v[i]), ACTIVATE(v[i + 1]));
    }
}

// ---- the kernels ------------------------------------------------------------------------------------------------

#if IM2COL == 1
#define LOAD_X(to, from) \
    view_load(to, from, kept, &im2col.deep, X_ALONG_K, TILE_M, origin.row, a.m, k0, a.k, me)
#else
#define LOAD_X(to, from) operand_load(to, from, X_ALONG_K, TILE_M, origin.row, a.m, a.x_step, k0, a.k, me)
#endif
#if IM2COL == 2
#define LOAD_Y(to, from) \
    view_load(to, from, kept, &im2col.deep, Y_ALONG_K, TILE_N, origin.column, a.n, k0, a.k, me)
#else
#define LOAD_Y(to, from) operand_load(to, from, Y_ALONG_K, TILE_N, origin.column, a.n, a.y_step, k0, a.k, me)
#endif

// Start copying the operands of step number `step`, if there is one.
#define FETCH(step) { \
        const int next = step, slot = next % STAGES; \
        if (next < to) { \
            const uint at = local_at + slot * STAGE_BYTES; \
            const long k0 = (long)(TERMS > 1 ? next % each : next) * STEP; \
            const long x_low = TERMS > 1 && next < each ? a.x_outer : 0; \
            const long y_low = TERMS > 1 && next / each == 1 ? a.y_outer : 0; \
            LOAD_X(at, x + x_low); \
            LOAD_Y(at + X_BYTES, y + y_low); \
        } \
        CP_ASYNC_COMMIT(); \
    }

// Wait until the operands of the next step have arrived, for the whole work-group.
#define AWAIT_STEP() { \
        CP_ASYNC_WAIT(STAGES_LEFT); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    }

// Load half a step from local memory into registers; beyond the last step, stale data that is not used.
#define LOAD_FRAGMENTS(which, step, deep) { \
        const uint at = local_at + (step) % STAGES * STAGE_BYTES; \
        UNROLL for (int i = 0; i < HIGH; i++) load_x_fragment(left[which][i], at, warp_row + i * 16, deep, lane); \
        UNROLL for (int j = 0; j < WIDE / 2; j++) \
            load_y_fragment(right[which][j], at + X_BYTES, warp_column + j * 16, deep, lane); \
    }

#define MMA(which) { \
        UNROLL for (int i = 0; i < HIGH; i++) \
            UNROLL for (int j = 0; j < WIDE; j++) \
                mma(sum[i][j], left[which][i], right[which][j / 2] + j % 2 * 2); \
    }

#define EACH_SUM \
    UNROLL for (int i = 0; i < HIGH; i++) \
        UNROLL for (int j = 0; j < WIDE; j++) \
            UNROLL for (int c = 0; c < 4; c++)

#define ATTRIBUTES __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#define ARGUMENTS \
    __global const INPUT *x, __global const INPUT *y, __global const T *bias, __global float4 *sums, __global T *out, \
    __global T *saved, const long x_start, const long y_start, const Numbers a
#if IM2COL
__kernel ATTRIBUTES void matmul_im2col(ARGUMENTS, const Im2col im2col) {
#else
__kernel ATTRIBUTES void matmul(ARGUMENTS) {
#endif
    __local uint4 memory[STAGES * STAGE_BYTES / 16] __attribute__((aligned(128)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const uint local_at = local_address(memory), warp_row = warp % WARPS_M * WARP_M;
    const uint warp_column = warp / WARPS_M * WARP_N;
    const int each = (int)((a.k + STEP - 1) / STEP), steps = PASSES * each;
    const int from = (int)((long)steps * get_group_id(1) / a.parts), to = (int)((long)steps * (get_group_id(1) + 1) / a.parts);
    Origin origin;
    find_origin(&origin, &a, get_group_id(0));
    x += x_start + (TERMS > 1 ? 0 : origin.matrix / a.inner * a.x_outer) + origin.matrix % a.inner * a.x_inner;
    y += y_start + (TERMS > 1 ? 0 : origin.matrix / a.inner * a.y_outer) + origin.matrix % a.inner * a.y_inner;
#if IM2COL
    long kept[(IM2COL == 1 ? TILE_M : TILE_N) * STEP / 8 / ITEMS];
    if (IM2COL == 1) find_view_offsets(kept, &im2col.kept, X_ALONG_K, TILE_M, origin.row, a.m, me);
    else find_view_offsets(kept, &im2col.kept, Y_ALONG_K, TILE_N, origin.column, a.n, me);
#endif

    float sum[HIGH][WIDE][4];
    EACH_SUM sum[i][j][c] = 0;
#if TERMS > 1
    float total[HIGH][WIDE][4];
    EACH_SUM total[i][j][c] = 0;
#endif
    UNROLL for (int s = 0; s < STAGES - 1; s++) FETCH(from + s)
    uint left[2][HIGH][4], right[2][WIDE / 2][4];  // fragments of the first and second half of a step
    AWAIT_STEP();
    LOAD_FRAGMENTS(0, from, 0);
    for (int step = from; step < to; step++) {
        LOAD_FRAGMENTS(1, step, 16);
        FETCH(step + STAGES - 1);  // into the stage that all warps have finished reading
        MMA(0);
        AWAIT_STEP();
        LOAD_FRAGMENTS(0, step + 1, 0);
        MMA(1);
#if TERMS > 1
        if ((step - from) % FOLD == FOLD - 1 || step == to - 1) {
            EACH_SUM {
                total[i][j][c] += sum[i][j][c];
                sum[i][j][c] = 0;
            }
        }
#endif
    }
#if TERMS > 1
    EACH_SUM sum[i][j][c] = total[i][j][c];
#endif
#if SPLIT
    sums += ((size_t)get_group_id(0) * a.parts + get_group_id(1)) * (TILE_M * TILE_N / 4) + me;
    UNROLL for (int i = 0; i < HIGH; i++)
        UNROLL for (int j = 0; j < WIDE; j++)
            sums[(i * WIDE + j) * ITEMS] = (float4)(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
#else
    UNROLL for (int i = 0; i < HIGH; i++)
        UNROLL for (int j = 0; j < WIDE; j++)
            write_four(out, saved, bias, &a, origin.matrix, origin.row + warp_row + i * 16 + lane / 4,
                       origin.column + warp_column + j * 8 + lane % 4 * 2, sum[i][j]);
#endif
}

#if SPLIT
// Add the partial sums of a tile in a fixed order, and apply the epilogue: 16 rows of each warp.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void matmul_join(__global const float4 *sums, __global const T *bias, __global T *out, __global T *saved,
                 const Numbers a) {
    const int me = get_local_id(0), lane = me % 32, warp = me / 32, i = get_group_id(1);
    Origin origin;
    find_origin(&origin, &a, get_group_id(0));
    sums += (size_t)get_group_id(0) * a.parts * (TILE_M * TILE_N / 4) + i * WIDE * ITEMS + me;
    UNROLL for (int j = 0; j < WIDE; j++) {
        float4 sum = 0;
        for (int part = 0; part < a.parts; part++) sum += sums[part * (TILE_M * TILE_N / 4) + j * ITEMS];
        const float v[4] = {sum.x, sum.y, sum.z, sum.w};
        write_four(out, saved, bias, &a, origin.matrix, origin.row + warp % WARPS_M * WARP_M + i * 16 + lane / 4,
                   origin.column + warp / WARPS_M * WARP_N + j * 8 + lane % 4 * 2, v);
    }
}
#endif
