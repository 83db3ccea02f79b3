// GEMM on the matrix units of NVIDIA Hopper (wgmma, TMA): out = activation(x @ y + bias), for a batch of matrices of
// 16-bit floats with float32 sums, or of float32 split into 2 or 3 bfloat16 terms each (split.cl). Three are as exact as
// float32.
//
// A work-group is three groups of four warps (warp specialization). One lane of the last group issues TMA loads of
// tiles of x and y, 64 long along k, into a ring of STAGES in local memory. The other two groups multiply: either 64
// rows each of a tile of 128 x COLUMNS, or (TURNS) alternate tiles, so that the epilogue of one overlaps the products
// of the other. Results leave through local memory, 64 columns at a time.
//
// There are as many work-groups as multiprocessors (persistent kernel). The first `shared` tiles are also split along
// k: their steps form one sequence that is divided evenly among the work-groups, each of which walks its range
// downwards (stream-K). The work-group with the last steps of a tile adds the partial sums of the others in a fixed
// order, so results are deterministic. It waits for work-groups of lower numbers only, which start before it.
//
// With terms, every stretch of FOLD steps along k is walked WALKS times, smallest products first, so that operands are
// reread from the cache. 2 terms: low @ high, high @ low, high @ high. 3 terms: the six largest products; the others
// are 2^-24 of a product. Matrix units round their sums towards zero, so sums are added up in ordinary float32 after
// each stretch. With TOGETHER (2 terms), each step loads both terms of x and y and computes all three products, so every
// tile is loaded once.
//
// Arrays   x (batch, m, k), y (batch, k, n) of T; one of the strides of their two last axes is 1, all others are
//          multiples of 16 bytes; bias (n) of T; out, saved (batch, m, n) of T, row-major; saved is the input of the
//          activation
//          sums (groups, 128, COLUMNS) of float and flags (groups, 2), 0 before and after; used if SHARES
//          x_special, y_special (1): not 0 if a number of x or y is infinite or nan; read if TERMS > 1
//          maps: tensor maps of x, y, out and saved without addresses; own_maps (groups, 64) of ulong: workspace, not
//          that of the launch before, which may still run when the maps are written
//          Matrix b of x is at index (b / inner, b % inner) of the outer axes of its tensor map if x_outer and x_inner
//          are 1, at 0 if they are 0 (broadcast); with terms, the outermost axis is that of the terms
// Launch   global (groups * 384), local 384
// Params   T, LOAD, STORE, KIND    the dtype: see prelude.cl; KIND is its PTX name
//          COLUMNS, STAGES         as above
//          BUFFERS                 8 KB buffers for results that leave, 1 or 2
//          TURNS                   1 as above; COLUMNS is at most 192, SHARES 0 and TERMS 1
//          X_ALONG_K, Y_ALONG_K    1 if the operand is contiguous along k
//          ALIGNED                 1 if rows of out begin at multiples of 16 bytes
//          BIAS, SAVE, ACTIVATION  1 to add bias, to write saved; none, relu, silu, gelu or gelu_tanh
//          SHARES                  1 if there are tiles that are split along k
//          IMAGES                  0; or, if ALIGNED, 1 or 2 for convolutions: see images.cl
//          TOGETHER                1 as above; TERMS is 2
//          TERMS                   1; or 2 or 3 if x and y are split, and out is float32
#include "ptx.cl"
#include "wgmma.cl"
#include "bfloat16_terms.cl"
#include "images.cl"
#if !defined(STAGES) || !defined(BUFFERS) || !defined(TURNS) || !defined(X_ALONG_K) || !defined(Y_ALONG_K) || !defined(ALIGNED) || \
    !defined(TOGETHER)
#error "matmul_wgmma.cl needs STAGES, BUFFERS, TURNS, X_ALONG_K, Y_ALONG_K, ALIGNED and TOGETHER"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(SHARES) || !defined(TERMS) || !defined(IMAGES)
#error "matmul_wgmma.cl needs BIAS, SAVE, ACTIVATION, SHARES, TERMS and IMAGES"
#endif

#define WALKS (TERMS * (TERMS + 1) / 2)

#define HALVES 2  // groups of four warps that multiply
#define BLOCKS (TURNS ? 2 : 1)  // blocks of 64 rows that each of them computes at once
#define ROWS (64 * HALVES)
#define ITEMS (128 * HALVES + 128)
#define STEP 64  // of k: 128 bytes
#define X_BYTES (ROWS * 128)
#define PART_BYTES (X_BYTES + COLUMNS * 128)  // of one term of x and of y
#define STAGE_BYTES ((1 + TOGETHER) * PART_BYTES)
#if TERMS > 1
#define INPUT ushort
#define CHUNK 32
#define FOLD 4  // steps of a stretch
// The terms of x and y that each walk multiplies, four bits per walk from the lowest on; 0 is the high term.
#define X_PARTS (TERMS == 2 ? 0x001 : 0x001012)
#define Y_PARTS (TERMS == 2 ? 0x010 : 0x010210)
#define PART_OF(walk, parts) ((parts) >> 4 * (walk) & 15)
#else
#define INPUT T
#define CHUNK 64  // columns written at once: 128 bytes
#endif
#define CHUNK_BYTES (64 * 128)
#define SUMS_AT (STAGES * STAGE_BYTES)  // local memory holds stages, output buffers, barriers
#define FULL_AT (SUMS_AT + HALVES * BUFFERS * CHUNK_BYTES)
#define EMPTY_AT (FULL_AT + STAGES * 8)
#define TURN_AT (EMPTY_AT + STAGES * 8)
#define LOCAL_BYTES (TURN_AT + HALVES * 8)
#if BUFFERS == 2
#define BUFFERS_LEFT 1
#else
#define BUFFERS_LEFT 0
#endif
#if X_ALONG_K
#define X_TRANSPOSED 0
#define X_MATRIX(address, part) DESCRIPTOR_K_MAJOR(address, (part) * 32)
#else
#define X_TRANSPOSED 1
#define X_MATRIX(address, part) DESCRIPTOR_MN_MAJOR(address, (part) * 2048)
#endif
#if Y_ALONG_K
#define Y_TRANSPOSED 0
#define Y_MATRIX(address, part) DESCRIPTOR_K_MAJOR(address, (part) * 32)
#else
#define Y_TRANSPOSED 1
#define Y_MATRIX(address, part) DESCRIPTOR_MN_MAJOR(address, (part) * 2048)
#endif

// ---- scheduling -------------------------------------------------------------------------------------------------

// Arguments of a launch.
typedef struct {
    int m, n, k, pitch, steps, tiles_m, tiles_n, tiles, shared, raster, inner, x_outer, x_inner, y_outer, y_inner;
} Numbers;

// Steps [from, to) of a tile; row and column are the tile's first, matrix its index in the batch.
typedef struct {
    int tile, from, to, row, column, matrix;
} Piece;

// Progress of a work-group: down from `next` to `least` over the steps of shared tiles, then up from tile `whole`.
typedef struct {
    int next, least, whole;
} Walk;

INLINE int share_begin(const Numbers *a, int group) {
    return (int)((long)a->shared * a->steps * group / get_num_groups(0));
}

INLINE Walk walk_of(const Numbers *a, int group) {
    Walk walk = {share_begin(a, group + 1), share_begin(a, group), a->shared + group};
    return walk;
}

// Find the next piece; return 0 if there is none. Tiles are ordered in bands of `raster` along m, which share columns
// of y in the cache.
INLINE int next_piece(const Numbers *a, Walk *walk, Piece *piece) {
    if (walk->next > walk->least) {
        piece->tile = (walk->next - 1) / a->steps;
        piece->to = walk->next - piece->tile * a->steps;
        piece->from = MAX(walk->least - piece->tile * a->steps, 0);
        walk->next = piece->tile * a->steps + piece->from;
    } else {
        piece->tile = walk->whole;
        piece->from = 0;
        piece->to = a->steps;
        walk->whole += get_num_groups(0);
        if (piece->tile >= a->tiles) return 0;
    }
    const int each = a->tiles_m * a->tiles_n, in_matrix = piece->tile % each, band_tiles = a->raster * a->tiles_n;
    const int band = in_matrix / band_tiles, in_band = in_matrix % band_tiles;
    const int high = MIN(a->tiles_m - band * a->raster, a->raster);
    piece->matrix = piece->tile / each;
    piece->row = (band * a->raster + in_band % high) * ROWS;
    piece->column = in_band / high * COLUMNS;
    return 1;
}

#define WALKED (TERMS > 1 && !TOGETHER)
#if WALKED
// The stretch of a step: its first step along k, its length, and the step's number among those of all its walks.
typedef struct {
    int first, length, at;
} Stretch;

INLINE Stretch stretch_of(const Numbers *a, int step) {
    const int first = step / (FOLD * WALKS) * FOLD;
    Stretch s = {first, MIN(FOLD, a->steps / WALKS - first), step - first * WALKS};
    return s;
}
#endif

// Return (walk, step along k) of a step.
INLINE int2 walk_at(const Numbers *a, int step) {
#if WALKED
    const Stretch s = stretch_of(a, step);
    return (int2)(s.at / s.length, s.first + s.at % s.length);
#else
    return (int2)(0, step);
#endif
}

// ---- TMA loads --------------------------------------------------------------------------------------------------

#if IMAGES
INLINE void copy_in(const Numbers *a, uint local_at, __global const ulong *maps, const Images *images,
                    __global const int4 *entries) {
    Walk walk = walk_of(a, get_group_id(0));
    Piece piece;
    uint stage = 0, phase = 1;
    while (next_piece(a, &walk, &piece)) {
        Boxes boxes;
        boxes_find(&boxes, images, entries, piece.row, piece.column);
        int2 at = walk_at(a, piece.from);
        Step next = step_of(images, entries, at.y);
        for (int step = piece.from; step < piece.to; step++) {
            const Step now = next;
            const uint x_at = local_at + stage * STAGE_BYTES, y_at = x_at + X_BYTES, full = local_at + FULL_AT + stage * 8;
            mbarrier_wait(local_at + EMPTY_AT + stage * 8, phase);
#if WALKED
            const int x_part = PART_OF(at.x, X_PARTS), y_part = PART_OF(at.x, Y_PARTS);
#else
            const int x_part = 0, y_part = 0;
#endif
            const int part_bytes = IMAGES == 1 ? ROWS / 64 * images->box_bytes + COLUMNS * 128 : PART_BYTES;
            mbarrier_expect(full, (1 + TOGETHER) * part_bytes);
            boxes_load(x_at, y_at, maps, images, &boxes, now, x_part, y_part, full);
            if (TOGETHER) boxes_load(x_at + PART_BYTES, y_at + PART_BYTES, maps, images, &boxes, now, 1, 1, full);
            at = walk_at(a, MIN(step + 1, a->steps - 1));
            next = step_of(images, entries, at.y);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}
#else
// Load one step of x and y, at these indices of the inner and outer axes of their tensor maps.
INLINE void parts_load(uint x_at, __global const ulong *maps, const Piece *piece, int k, int x_inner, int x_outer,
                       int y_inner, int y_outer, uint full) {
    const uint y_at = x_at + X_BYTES;
#if X_ALONG_K
    tma_load(x_at, maps, k, piece->row, x_inner, x_outer, full);
#else
    UNROLL for (int i = 0; i < ROWS / 64; i++)
        tma_load(x_at + i * 8192, maps, piece->row + i * 64, k, x_inner, x_outer, full);
#endif
#if Y_ALONG_K
    tma_load(y_at, maps + 16, k, piece->column, y_inner, y_outer, full);
#else
    UNROLL for (int i = 0; i < COLUMNS / 64; i++)
        tma_load(y_at + i * 8192, maps + 16, piece->column + i * 64, k, y_inner, y_outer, full);
#endif
}

INLINE void copy_in(const Numbers *a, uint local_at, __global const ulong *maps) {
    Walk walk = walk_of(a, get_group_id(0));
    Piece piece;
    uint stage = 0, phase = 1;
    while (next_piece(a, &walk, &piece)) {
        const int outer = piece.matrix / a->inner, inner = piece.matrix % a->inner;
        const int x_inner = inner * a->x_inner, y_inner = inner * a->y_inner;
#if TERMS == 1
        const int x_outer = outer * a->x_outer, y_outer = outer * a->y_outer;
#endif
        for (int step = piece.from; step < piece.to; step++) {
            const uint at = local_at + stage * STAGE_BYTES, full = local_at + FULL_AT + stage * 8;
            mbarrier_wait(local_at + EMPTY_AT + stage * 8, phase);
            mbarrier_expect(full, STAGE_BYTES);
#if TOGETHER
            parts_load(at, maps, &piece, step * STEP, x_inner, 0, y_inner, 0, full);
            parts_load(at + PART_BYTES, maps, &piece, step * STEP, x_inner, 1, y_inner, 1, full);
#elif TERMS > 1
            const int2 where = walk_at(a, step);
            const int x_part = PART_OF(where.x, X_PARTS), y_part = PART_OF(where.x, Y_PARTS);
            parts_load(at, maps, &piece, where.y * STEP, x_inner, x_part, y_inner, y_part, full);
#else
            parts_load(at, maps, &piece, step * STEP, x_inner, x_outer, y_inner, y_outer, full);
#endif
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}
#endif

// ---- partial sums of other work-groups --------------------------------------------------------------------------

#define SUMS_OF(group) (sums + ((size_t)(group) * HALVES + side) * (COLUMNS / 8) * 128 + in_half)

#define LEAVE_SUMS() { \
        UNROLL for (int i = 0; i < COLUMNS / 8; i++) \
            SUMS_OF(group)[i * 128] = (float4)(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]); \
        FENCE_GPU(); \
        sync_warps(1 + side); \
        if (first) flag_raise(flags + group * HALVES + side); \
    }

#define ADD_SUMS_OF(other) { \
        if (first) { \
            flag_await(flags + (other) * HALVES + side); \
            flags[(other) * HALVES + side] = 0; \
        } \
        sync_warps(1 + side); \
        UNROLL for (int i = 0; i < COLUMNS / 8; i += 8) { \
            float4 v[8]; \
            UNROLL for (int j = 0; j < 8; j++) v[j] = load_fresh(SUMS_OF(other) + (i + j) * 128); \
            UNROLL for (int j = 0; j < 8; j++) { \
                sum[4 * (i + j)] += v[j].x, sum[4 * (i + j) + 1] += v[j].y; \
                sum[4 * (i + j) + 2] += v[j].z, sum[4 * (i + j) + 3] += v[j].w; \
            } \
        } \
    }

// ---- epilogue ---------------------------------------------------------------------------------------------------

// Write a chunk of sums to a swizzled buffer, from which TMA stores it. For each block of 8 columns a lane holds two
// neighbors in row lane / 4 of its warp's 16, and two in the row 8 further.
INLINE void stage_chunk(uint chunk_at, const float *v, int warp, int lane) {
#if TERMS > 1
    const uint row = (warp % 4) * 16 + lane / 4;
    UNROLL for (int j = 0; j < CHUNK / 8; j++) {
        const uint to = chunk_at + row * 128 + (((uint)(2 * j + lane % 4 / 2) ^ (row % 8)) << 4) + lane % 2 * 8;
        local_store_2(to, v[4 * j], v[4 * j + 1]);
        local_store_2(to + 8 * 128, v[4 * j + 2], v[4 * j + 3]);
    }
#else
    const uint row = (warp % 4) * 16 + lane % 16;
    UNROLL for (int j = 0; j < CHUNK / 8; j += 2)
        stmatrix(chunk_at + row * 128 + (((uint)(j + lane / 16) ^ (row % 8)) << 4),
                       pack_pair(v[4 * j], v[4 * j + 1]), pack_pair(v[4 * j + 2], v[4 * j + 3]),
                       pack_pair(v[4 * j + 4], v[4 * j + 5]), pack_pair(v[4 * j + 6], v[4 * j + 7]));
#endif
}

// Store a chunk without TMA, for unaligned rows of out: two elements of each of 16 rows per lane.
INLINE void write_chunk(__global ushort *out, uint chunk_at, const Numbers *a, const Piece *piece, int row, int column,
                        int warp, int lane) {
    for (int i = 0; i < 16; i++) {
        const int r = (warp % 4) * 16 + i, c = column + lane * 2;
        const uint pair = local_load(chunk_at + r * 128 + ((((uint)lane / 4) ^ (r % 8)) << 4) + lane % 4 * 4);
        if (row + r < a->m) {
            __global ushort *p = out + ((size_t)piece->matrix * a->m + row + r) * a->n + c;
            if (c < a->n) p[0] = (ushort)pair;
            if (c + 1 < a->n) p[1] = (ushort)(pair >> 16);
        }
    }
}

#if IMAGES == 1
#define CHUNK_OUT(target, map) if (first) tma_store_image(map, column, entries[row / 64], chunk_at)
#elif ALIGNED
#define CHUNK_OUT(target, map) if (first) tma_store(map, column, row, piece.matrix, chunk_at)
#else
#define CHUNK_OUT(target, map) write_chunk((__global ushort *)target, chunk_at, &a, &piece, row, column, warp, lane)
#endif

#define WRITE_CHUNK(target, map) { \
        const uint chunk_at = local_at + SUMS_AT + (side * BUFFERS + buffer) * CHUNK_BYTES; \
        if (first) TMA_WAIT_READ(BUFFERS_LEFT); \
        sync_warps(1 + side); \
        stage_chunk(chunk_at, v, warp, lane); \
        FENCE_ASYNC_PROXY(); \
        sync_warps(1 + side); \
        CHUNK_OUT(target, map); \
        buffer = buffer + 1 == BUFFERS ? 0 : buffer + 1; \
    }

// ---- without matrix units ---------------------------------------------------------------------------------------

#if TERMS > 1 && !IMAGES
// Compute the product in plain float32 arithmetic. Slow fallback for non-finite operands: split into terms, an infinity
// would be multiplied by terms that are 0, which gives nan.
INLINE void multiply_numbers(const Numbers *a, __global const ushort *x, __global const ushort *y, __global const T *bias,
                             __global T *out, __global T *saved) {
    const long batch = a->tiles / (a->tiles_m * a->tiles_n);
    const long x_pitch = (X_ALONG_K ? a->k : a->m) + 7 & ~7, x_each = x_pitch * (X_ALONG_K ? a->m : a->k);
    const long y_pitch = (Y_ALONG_K ? a->k : a->n) + 7 & ~7, y_each = y_pitch * (Y_ALONG_K ? a->n : a->k);
    for (long at = get_global_id(0); at < batch * a->m * a->n; at += get_global_size(0)) {
        const long column = at % a->n, row = at / a->n % a->m, matrix = at / a->n / a->m;
        __global const ushort *left = x + (a->x_inner ? matrix * x_each : 0) + row * (X_ALONG_K ? x_pitch : 1);
        __global const ushort *right = y + (a->y_inner ? matrix * y_each : 0) + column * (Y_ALONG_K ? y_pitch : 1);
        const long x_apart = x_each * (a->x_inner ? batch : 1), y_apart = y_each * (a->y_inner ? batch : 1);
        float v = 0;
        for (int k = 0; k < a->k; k++)
            v = fma(join_terms(left + k * (X_ALONG_K ? 1 : x_pitch), x_apart),
                    join_terms(right + k * (Y_ALONG_K ? 1 : y_pitch), y_apart), v);
        const long to = (matrix * a->m + row) * a->pitch + column;
#if BIAS
        v += LOAD(bias, column);
#endif
#if SAVE
        STORE(saved, to, v);
#endif
        STORE(out, to, ACTIVATE(v));
    }
}
#endif

// ---- the kernel -------------------------------------------------------------------------------------------------

#define ATTRIBUTES __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#define ARGUMENTS \
    __global const INPUT *x, __global const INPUT *y, __global const T *bias, __global float4 *sums, __global T *out, \
    __global T *saved, __global const uint *x_special, __global const uint *y_special, __global const ulong *maps, \
    __global ulong *own_maps, __global uint *flags, const long x_start, const long y_start, const Numbers a
#if IMAGES
__kernel ATTRIBUTES void matmul_of_images(ARGUMENTS, __global const int4 *entries, const Images images) {
#else
__kernel ATTRIBUTES void matmul(ARGUMENTS) {
#endif
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32, side = me / 128, in_half = me % 128;
    const int group = get_group_id(0);
    const uint local_at = local_address(memory);
#if IMAGES
    const long out_start = images.out_start;
#else
    const long out_start = 0;
#endif
    own_maps += group * 64;
    if (warp < 4) {
        const ulong address = warp == 0 ? (ulong)(x + x_start) : warp == 1 ? (ulong)(y + y_start)
                            : (ulong)((warp == 2 ? out : saved) + out_start);
        map_write(own_maps + warp * 16, lane, lane == 0 ? address : lane < 16 ? maps[warp * 16 + lane] : 0);
    }
    if (me == 0) {
        UNROLL for (int s = 0; s < STAGES; s++) {
            mbarrier_init(local_at + FULL_AT + s * 8, 1);
            mbarrier_init(local_at + EMPTY_AT + s * 8, HALVES / BLOCKS);
        }
        UNROLL for (int s = 0; s < HALVES; s++) mbarrier_init(local_at + TURN_AT + s * 8, 1);
        mbarrier_init_fence();
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    AWAIT_BEFORE();
    ALLOW_NEXT();
#if TERMS > 1
    if (*x_special | *y_special) {
#if IMAGES
        multiply_numbers(&images, entries, a.m, a.n, a.k, x, y, bias, out, saved);
#else
        multiply_numbers(&a, x, y, bias, out, saved);
#endif
        return;
    }
#endif
    if (side == HALVES) {
        SETMAXNREG_DEC(40);
#if IMAGES
        if (in_half == 0) copy_in(&a, local_at, own_maps, &images, entries);
#else
        if (in_half == 0) copy_in(&a, local_at, own_maps);
#endif
        return;
    }
    SETMAXNREG_INC(232);

    const uint first = in_half == 0;
    const uint x_at = local_at + (TURNS ? 0 : side * 8192), y_at = local_at + X_BYTES;
    float sum[BLOCKS * COLUMNS / 2];
#if TERMS > 1
    float total[COLUMNS / 2];
    uint adds;
#endif
    uint stage = 0, phase = 0, before = 0;
    int buffer = 0;
    Walk walk = walk_of(&a, group);
    Piece piece;
#if TURNS
    uint turn = 0;
#endif
    while (next_piece(&a, &walk, &piece)) {
#if TURNS
        // Skip the tile of the other group of warps, whose steps are next in the ring. The wait below keeps the two
        // groups less than a round of the ring apart: a barrier can only tell two phases apart.
        if ((turn++ + side) % 2) {
            const uint at = stage + a.steps;
            phase ^= at / STAGES & 1;
            stage = at % STAGES;
            continue;
        }
        mbarrier_wait(local_at + TURN_AT + side * 8, ((turn - 1) / 2 + side + 1) % 2);
#endif
#if TERMS > 1
        UNROLL for (int i = 0; i < COLUMNS / 2; i++) total[i] = 0;
        adds = 0;
#endif
        for (int step = piece.from; step < piece.to; step++) {
#if TERMS == 1
            const uint adds = step > piece.from;
#endif
            mbarrier_wait(local_at + FULL_AT + stage * 8, phase);
            WGMMA_FENCE();
#if TOGETHER
            UNROLL for (int part = 0; part < STEP / 16; part++) {
                const uint from = stage * STAGE_BYTES, add = adds | (uint)(part > 0);
                const ulong left = X_MATRIX(x_at + from, part), right = Y_MATRIX(y_at + from, part);
                const ulong left_low = X_MATRIX(x_at + from + PART_BYTES, part);
                const ulong right_low = Y_MATRIX(y_at + from + PART_BYTES, part);
                WGMMA(sum, left_low, right, add, X_TRANSPOSED, Y_TRANSPOSED);
                WGMMA(sum, left, right_low, 1, X_TRANSPOSED, Y_TRANSPOSED);
                WGMMA(sum, left, right, 1, X_TRANSPOSED, Y_TRANSPOSED);
            }
#else
            UNROLL for (int part = 0; part < STEP / 16; part++) {
                const ulong right = Y_MATRIX(y_at + stage * STAGE_BYTES, part);
                UNROLL for (int b = 0; b < BLOCKS; b++) {
                    const ulong left = X_MATRIX(x_at + stage * STAGE_BYTES + b * 8192, part);
                    WGMMA(sum + b * COLUMNS / 2, left, right, adds | (uint)(part > 0), X_TRANSPOSED, Y_TRANSPOSED);
                }
            }
#endif
            WGMMA_COMMIT();
#if TERMS > 1
#if TOGETHER
            const int is_last = (step - piece.from) % FOLD == FOLD - 1;
#else
            const Stretch s = stretch_of(&a, step);
            const int is_last = s.at == WALKS * s.length - 1;
#endif
            adds = !(is_last || step == piece.to - 1);
            if (adds) {
                WGMMA_WAIT(1);
            } else {
                WGMMA_WAIT(0);
                UNROLL for (int i = 0; i < COLUMNS / 2; i++) total[i] += sum[i];
            }
#else
            WGMMA_WAIT(1);
#endif
            mbarrier_arrive(local_at + EMPTY_AT + before * 8, first & (uint)(step > piece.from));
            before = stage;
            phase ^= stage + 1 == STAGES;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
#if TURNS
        mbarrier_arrive(local_at + TURN_AT + (1 - side) * 8, first);
#endif
#if BIAS
        float b[COLUMNS / 32];  // of columns lane, lane + 32, ..; loaded while the last products run
        UNROLL for (int i = 0; i < COLUMNS / 32; i++) {
            const int c = piece.column + i * 32 + lane;
            b[i] = c < a.n ? LOAD(bias, c) : 0;
        }
#endif
        WGMMA_WAIT(0);
        mbarrier_arrive(local_at + EMPTY_AT + before * 8, first);
#if TERMS > 1
        UNROLL for (int i = 0; i < COLUMNS / 2; i++) sum[i] = total[i];
#endif
#if SHARES
        if (piece.to < a.steps) {
            LEAVE_SUMS();
            continue;
        }
        if (piece.from > 0)
            for (int other = group - 1;; other--) {
                ADD_SUMS_OF(other);
                if (share_begin(&a, other) <= piece.tile * a.steps) break;
            }
#endif
        UNROLL for (int q = 0; q < BLOCKS * COLUMNS / CHUNK; q++) {
            const int row = piece.row + (TURNS ? q * CHUNK / COLUMNS : side) * 64;
            const int column = piece.column + q * CHUNK % COLUMNS;
            float v[CHUNK / 2];
            UNROLL for (int i = 0; i < CHUNK / 2; i++) v[i] = sum[q * (CHUNK / 2) + i];
#if BIAS
            // Shuffles pass the bias to the lanes that hold sums of its columns.
            UNROLL for (int j = 0; j < CHUNK / 8; j++) {
                const int from = j % 4 * 8 + lane % 4 * 2, at = (q * CHUNK % COLUMNS + j * 8) / 32;
                const float b0 = shuffle_from(b[at], from), b1 = shuffle_from(b[at], from + 1);
                v[4 * j] += b0, v[4 * j + 1] += b1, v[4 * j + 2] += b0, v[4 * j + 3] += b1;
            }
#endif
            if (column < a.n) {
#if SAVE
                WRITE_CHUNK(saved, own_maps + 48);
#endif
                UNROLL for (int i = 0; i < CHUNK / 2; i++) v[i] = ACTIVATE(v[i]);
                WRITE_CHUNK(out, own_maps + 32);
            }
        }
    }
    if (first) TMA_WAIT_STORES();
}
