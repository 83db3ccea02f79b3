// Matrix product on the matrix units of NVIDIA's Hopper: out = activation(x @ y + bias), for a batch of matrices of
// 16-bit floats, added up in float32; or of float32 in parts: two of float16 each (matmul_parts.cl), or three of bfloat16
// (matmul_thirds.cl), which are as exact as float32.
//
// A work-group is three groups of four warps. One lane of the last copies boxes of x and y, 64 long along k, into a ring
// of STAGES in local memory; the first two multiply them: 64 rows of each tile of 128 x COLUMNS, or every other tile in
// turn, so that one's writing runs under the other's products. Sums leave through local memory, 64 columns at a time.
//
// The work-groups are as many as multiprocessors, and each takes tiles until there are none. The first `shared` tiles
// are cut along k as well: all their steps in one row, divided among the work-groups evenly, each of which walks its
// range downwards. Whoever has a tile's last piece adds the others in a fixed order (stream-K), so that results are the
// same every time. It waits for work-groups of lower numbers only, which start before it.
//
// With parts, every stretch of FOLD steps along k is walked several times, with the smallest products first, so that what is
// read again was read just now. Of two parts, low by high, high by low, high by high; of three, the six whose parts' places
// from above sum up to two at most: what is left out is 2^-24 of a product. The matrix units round their sums towards zero, so
// these are added up in ordinary float32 after each stretch; of two parts, after their products with low ones as well.
// TOGETHER, of two parts, each step has both of x and of y in local memory, and all three products: so every box is copied
// once. That takes three sums in registers, so that tiles are narrow.
//
// Arrays   x (batch, m, k), y (batch, k, n), each with one stride of its two last axes 1 and all others multiples of 16
//          bytes; bias (n); out, saved (batch, m, n) row-major, saved what activation is applied to; sums, used if SHARES:
//          128 x COLUMNS floats for each work-group; flags: two words for each, 0 before and after
//          x_told, of which word 0 is x's, and y_told, of which word 1 is y's: what their shifts follow from, used if WALKS
//          is 3; not 0 if a number is not finite, used if WALKS is 6
//          maps: tensor maps of x, y, out and saved without addresses; own_maps: 64 words for each work-group
// Images   IMAGES 1: x is places of images, and so is out; 2: both x and y are, along k. See images.cl
// Batch    matrix b of x is at (b / inner, b % inner) of its map's outer axes, where x_outer and x_inner are 1, else at 0;
//          with parts, the outermost axis is that of the parts
// Launch   global (groups * 384), local 384
// Params   T, LOAD, STORE, KIND of the dtype | COLUMNS, STAGES as above, BUFFERS of 8 KB for the sums that leave, 1 or 2
//          TURNS 1 if tiles are multiplied in turn, where COLUMNS are at most 192, no tile is shared and WALKS is 1
//          X_ALONG_K, Y_ALONG_K 1 if the stride along k is the one that is 1
//          ALIGNED 1 if rows of out begin at multiples of 16 bytes
//          BIAS, SAVE 1 to add bias, to write saved | ACTIVATION none, relu, silu, gelu or gelu_tanh
//          SHARES 1 if there are tiles that are cut along k
//          IMAGES 0, or 1 or 2 as above, where ALIGNED is 1
//          TOGETHER 1 as above, where WALKS is 3 and COLUMNS at most 128
//          WALKS along k: 1; 3 or 6 if x and y are two parts of float16, or three of bfloat16, and out is float32
#include "ptx.cl"
#include "wgmma.cl"
#include "images.cl"
#if !defined(STAGES) || !defined(BUFFERS) || !defined(TURNS) || !defined(X_ALONG_K) || !defined(Y_ALONG_K) || !defined(ALIGNED) || \
    !defined(TOGETHER)
#error "matmul_wgmma.cl needs STAGES, BUFFERS, TURNS, X_ALONG_K, Y_ALONG_K, ALIGNED and TOGETHER"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(SHARES) || !defined(WALKS) || !defined(IMAGES)
#error "matmul_wgmma.cl needs BIAS, SAVE, ACTIVATION, SHARES, WALKS and IMAGES"
#endif

#define HALVES 2  // of a tile, or of the tiles: a group of four warps each
#define BLOCKS (TURNS ? 2 : 1)  // of 64 rows that each of them has at once
#define ROWS (64 * HALVES)
#define ITEMS (128 * HALVES + 128)
#define STEP 64  // of k: 128 bytes
#define X_BYTES (ROWS * 128)
#define PART_BYTES (X_BYTES + COLUMNS * 128)  // of one part of x and of y
#define STAGE_BYTES ((1 + TOGETHER) * PART_BYTES)
#if WALKS > 1
#define INPUT ushort
#define CHUNK 32
#define FOLD 4  // steps of a stretch
// Which parts of x and y a walk multiplies, four bits for each, the first walk's lowest: the high ones are 0.
#define X_PARTS (WALKS == 3 ? 0x001 : 0x001012)
#define Y_PARTS (WALKS == 3 ? 0x010 : 0x010210)
#define PART_OF(walk, parts) ((parts) >> 4 * (walk) & 15)
#else
#define INPUT T
#define CHUNK 64  // columns that leave at once: 128 bytes
#endif
#define CHUNK_BYTES (64 * 128)
#define SUMS_AT (STAGES * STAGE_BYTES)  // in local memory: stages, sums that leave, barriers
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
#define X_TURNED 0
#define X_MATRIX(place, part) MATRIX_ALONG_K((place) + (part) * 32)
#else
#define X_TURNED 1
#define X_MATRIX(place, part) MATRIX_TURNED((place) + (part) * 2048)
#endif
#if Y_ALONG_K
#define Y_TURNED 0
#define Y_MATRIX(place, part) MATRIX_ALONG_K((place) + (part) * 32)
#else
#define Y_TURNED 1
#define Y_MATRIX(place, part) MATRIX_TURNED((place) + (part) * 2048)
#endif

// ---- who computes what ------------------------------------------------------------------------------------------

// The numbers of a launch.
typedef struct {
    int m, n, k, pitch, steps, tiles_m, tiles_n, tiles, shared, raster, inner, x_outer, x_inner, y_outer, y_inner;
} Numbers;

// A tile, or the steps [from, to) of it; row and column are its first, matrix its place in the batch.
typedef struct {
    int tile, from, to, row, column, matrix;
} Piece;

// Where a work-group is: it goes down from `next` to `least` among the shared tiles' steps, then up from `whole`.
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

// The next piece; 0 if there is none. Tiles go in bands of `raster` along m, to share columns of y.
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

#define WALKED (WALKS > 1 && !TOGETHER)
#if WALKED
// The stretch that a step is in: where it begins, how long it is, and the step's number among those of all its walks.
typedef struct {
    int first, length, at;
} Stretch;

INLINE Stretch stretch_of(const Numbers *a, int step) {
    const int first = step / (FOLD * WALKS) * FOLD;
    Stretch s = {first, MIN(FOLD, a->steps / WALKS - first), step - first * WALKS};
    return s;
}
#endif

// Which walk a step belongs to, and how many steps along k it is from the beginning.
INLINE int2 walk_at(const Numbers *a, int step) {
#if WALKED
    const Stretch s = stretch_of(a, step);
    return (int2)(s.at / s.length, s.first + s.at % s.length);
#else
    return (int2)(0, step);
#endif
}

// ---- copying in -------------------------------------------------------------------------------------------------

#if IMAGES
INLINE void copy_in(const Numbers *a, uint local_at, __global const ulong *maps, const Images *images,
                    __global const int4 *places) {
    Walk walk = walk_of(a, get_group_id(0));
    Piece piece;
    uint stage = 0, phase = 1;
    map_take(maps);
    map_take(maps + 16);
    while (next_piece(a, &walk, &piece)) {
        Boxes boxes;
        boxes_find(&boxes, images, places, piece.row, piece.column);
        int2 at = walk_at(a, piece.from);
        Step next = step_of(images, places, at.y);
        for (int step = piece.from; step < piece.to; step++) {
            const Step now = next;
            const uint x_at = local_at + stage * STAGE_BYTES, y_at = x_at + X_BYTES, full = local_at + FULL_AT + stage * 8;
            barrier_wait(local_at + EMPTY_AT + stage * 8, phase);
#if WALKED
            const int x_part = PART_OF(at.x, X_PARTS), y_part = PART_OF(at.x, Y_PARTS);
#else
            const int x_part = 0, y_part = 0;
#endif
            const int part_bytes = IMAGES == 1 ? ROWS / 64 * images->box_bytes + COLUMNS * 128 : PART_BYTES;
            barrier_expect(full, (1 + TOGETHER) * part_bytes);
            boxes_load(x_at, y_at, maps, images, &boxes, now, x_part, y_part, full);
            if (TOGETHER) boxes_load(x_at + PART_BYTES, y_at + PART_BYTES, maps, images, &boxes, now, 1, 1, full);
            at = walk_at(a, MIN(step + 1, a->steps - 1));
            next = step_of(images, places, at.y);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}
#else
// A step of x and y from the outer and inner axes of their maps.
INLINE void parts_load(uint x_at, __global const ulong *maps, const Piece *piece, int k, int x_inner, int x_outer,
                       int y_inner, int y_outer, uint full) {
    const uint y_at = x_at + X_BYTES;
#if X_ALONG_K
    box_load(x_at, maps, k, piece->row, x_inner, x_outer, full);
#else
    UNROLL for (int i = 0; i < ROWS / 64; i++)
        box_load(x_at + i * 8192, maps, piece->row + i * 64, k, x_inner, x_outer, full);
#endif
#if Y_ALONG_K
    box_load(y_at, maps + 16, k, piece->column, y_inner, y_outer, full);
#else
    UNROLL for (int i = 0; i < COLUMNS / 64; i++)
        box_load(y_at + i * 8192, maps + 16, piece->column + i * 64, k, y_inner, y_outer, full);
#endif
}

INLINE void copy_in(const Numbers *a, uint local_at, __global const ulong *maps) {
    Walk walk = walk_of(a, get_group_id(0));
    Piece piece;
    uint stage = 0, phase = 1;
    map_take(maps);
    map_take(maps + 16);
    while (next_piece(a, &walk, &piece)) {
        const int outer = piece.matrix / a->inner, inner = piece.matrix % a->inner;
        const int x_inner = inner * a->x_inner, y_inner = inner * a->y_inner;
#if WALKS == 1
        const int x_outer = outer * a->x_outer, y_outer = outer * a->y_outer;
#endif
        for (int step = piece.from; step < piece.to; step++) {
            const uint at = local_at + stage * STAGE_BYTES, full = local_at + FULL_AT + stage * 8;
            barrier_wait(local_at + EMPTY_AT + stage * 8, phase);
            barrier_expect(full, STAGE_BYTES);
#if TOGETHER
            parts_load(at, maps, &piece, step * STEP, x_inner, 0, y_inner, 0, full);
            parts_load(at + PART_BYTES, maps, &piece, step * STEP, x_inner, 1, y_inner, 1, full);
#elif WALKS > 1
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

// ---- sums of other work-groups ----------------------------------------------------------------------------------

#define SUMS_OF(group) (sums + ((size_t)(group) * HALVES + side) * (COLUMNS / 8) * 128 + in_half)

#define LEAVE_SUMS() { \
        UNROLL for (int i = 0; i < COLUMNS / 8; i++) \
            SUMS_OF(group)[i * 128] = (float4)(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]); \
        FENCE_GPU(); \
        wait_for_warps(1 + side); \
        if (first) flag_raise(flags + group * HALVES + side); \
    }

#define ADD_SUMS_OF(other) { \
        if (first) { \
            flag_await(flags + (other) * HALVES + side); \
            flags[(other) * HALVES + side] = 0; \
        } \
        wait_for_warps(1 + side); \
        UNROLL for (int i = 0; i < COLUMNS / 8; i += 8) { \
            float4 v[8]; \
            UNROLL for (int j = 0; j < 8; j++) v[j] = load_fresh(SUMS_OF(other) + (i + j) * 128); \
            UNROLL for (int j = 0; j < 8; j++) { \
                sum[4 * (i + j)] += v[j].x, sum[4 * (i + j) + 1] += v[j].y; \
                sum[4 * (i + j) + 2] += v[j].z, sum[4 * (i + j) + 3] += v[j].w; \
            } \
        } \
    }

// ---- writing ----------------------------------------------------------------------------------------------------

// Of a chunk of sums a lane has, for each block of 8 columns, two neighbours in row lane / 4 of its warp's 16 and two in
// the row 8 further. Writes them where boxes are read from.
INLINE void stage_chunk(uint chunk_at, const float *v, int warp, int lane) {
#if WALKS > 1
    const uint row = (warp % 4) * 16 + lane / 4;
    UNROLL for (int j = 0; j < CHUNK / 8; j++) {
        const uint to = chunk_at + row * 128 + (((uint)(2 * j + lane % 4 / 2) ^ (row % 8)) << 4) + lane % 2 * 8;
        local_store_2(to, v[4 * j], v[4 * j + 1]);
        local_store_2(to + 8 * 128, v[4 * j + 2], v[4 * j + 3]);
    }
#else
    const uint row = (warp % 4) * 16 + lane % 16;
    UNROLL for (int j = 0; j < CHUNK / 8; j += 2)
        store_matrices(chunk_at + row * 128 + (((uint)(j + lane / 16) ^ (row % 8)) << 4),
                       pair_of(v[4 * j], v[4 * j + 1]), pair_of(v[4 * j + 2], v[4 * j + 3]),
                       pair_of(v[4 * j + 4], v[4 * j + 5]), pair_of(v[4 * j + 6], v[4 * j + 7]));
#endif
}

// Two elements of each of 16 rows per lane, where rows begin anywhere.
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
#define CHUNK_OUT(target, map) if (first) image_store(map, column, places[row / 64], chunk_at)
#elif ALIGNED
#define CHUNK_OUT(target, map) if (first) box_store(map, column, row, piece.matrix, chunk_at)
#else
#define CHUNK_OUT(target, map) write_chunk((__global ushort *)target, chunk_at, &a, &piece, row, column, warp, lane)
#endif

#define WRITE_CHUNK(target, map) { \
        const uint chunk_at = local_at + SUMS_AT + (side * BUFFERS + buffer) * CHUNK_BYTES; \
        if (first) BOXES_READ(BUFFERS_LEFT); \
        wait_for_warps(1 + side); \
        stage_chunk(chunk_at, v, warp, lane); \
        BOXES_SEE_STORES(); \
        wait_for_warps(1 + side); \
        CHUNK_OUT(target, map); \
        buffer = buffer + 1 == BUFFERS ? 0 : buffer + 1; \
    }

// ---- without matrix units ---------------------------------------------------------------------------------------

#if WALKS == 6 && !IMAGES
// A number from its parts, which are so far apart. One that is not finite is its own high part.
INLINE float whole_of(__global const ushort *part, long apart) {
    return widen_bfloat16(part[0]) + (widen_bfloat16(part[apart]) + widen_bfloat16(part[2 * apart]));
}

// The same product in float32 arithmetic, slowly: with an infinity there would be others of it with parts that are 0.
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
            v = fma(whole_of(left + k * (X_ALONG_K ? 1 : x_pitch), x_apart),
                    whole_of(right + k * (Y_ALONG_K ? 1 : y_pitch), y_apart), v);
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
    __global T *saved, __global const uint *x_told, __global const uint *y_told, __global const ulong *maps, \
    __global ulong *own_maps, __global uint *flags, const long x_start, const long y_start, const Numbers a
#if IMAGES
__kernel ATTRIBUTES void matmul_of_images(ARGUMENTS, __global const int4 *places, const Images images) {
#else
__kernel ATTRIBUTES void matmul(ARGUMENTS) {
#endif
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32, side = me / 128, in_half = me % 128;
    const int group = get_group_id(0);
    const uint local_at = place_of(memory);
#if WALKS == 6
    if (x_told[0] | y_told[1]) {
#if IMAGES
        multiply_numbers(&images, places, a.m, a.n, a.k, x, y, bias, out, saved);
#else
        multiply_numbers(&a, x, y, bias, out, saved);
#endif
        return;
    }
#endif
    own_maps += group * 64;
#if IMAGES
    out += images.out_start;
    if (SAVE) saved += images.out_start;
#endif
    if (warp < 4) {
        const ulong address = warp == 0 ? (ulong)(x + x_start) : warp == 1 ? (ulong)(y + y_start)
                            : warp == 2 ? (ulong)out : (ulong)saved;
        map_write(own_maps + warp * 16, lane, lane == 0 ? address : lane < 16 ? maps[warp * 16 + lane] : 0);
    }
    if (me == 0) {
        UNROLL for (int s = 0; s < STAGES; s++) {
            barrier_make(local_at + FULL_AT + s * 8, 1);
            barrier_make(local_at + EMPTY_AT + s * 8, HALVES / BLOCKS);
        }
        UNROLL for (int s = 0; s < HALVES; s++) barrier_make(local_at + TURN_AT + s * 8, 1);
        barriers_made();
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (side == HALVES) {
        REGISTERS_GIVEN(40);
#if IMAGES
        if (in_half == 0) copy_in(&a, local_at, own_maps, &images, places);
#else
        if (in_half == 0) copy_in(&a, local_at, own_maps);
#endif
        return;
    }
    REGISTERS_TAKEN(232);

    const uint first = in_half == 0;
    const uint x_at = local_at + (TURNS ? 0 : side * 8192), y_at = local_at + X_BYTES;
    float sum[BLOCKS * COLUMNS / 2];
#if WALKS > 1
    float total[COLUMNS / 2];
    uint adds;
#endif
#if TOGETHER
    float low[COLUMNS / 2];
#endif
#if WALKS == 3
    const int shift = -shift_of(x_told[0]) - shift_of(y_told[1]);
    const float scale = power_of_2(shift / 2), rest = power_of_2(shift - shift / 2);  // as one it could be infinite
#endif
    uint stage = 0, phase = 0, before = 0;
    int buffer = 0;
    Walk walk = walk_of(&a, group);
    Piece piece;
    if (first && ALIGNED) {
        map_take(own_maps + 32);
        if (SAVE) map_take(own_maps + 48);
    }
#if TURNS
    uint turn = 0;
#endif
    while (next_piece(&a, &walk, &piece)) {
#if TURNS
        // The other's tile: its steps are the ring's next. Nobody waits for a stage before the one before it came, because
        // a barrier's phases have only two names.
        if ((turn++ + side) % 2) {
            const uint at = stage + a.steps;
            phase ^= at / STAGES & 1;
            stage = at % STAGES;
            continue;
        }
        barrier_wait(local_at + TURN_AT + side * 8, ((turn - 1) / 2 + side + 1) % 2);
#endif
#if WALKS > 1
        UNROLL for (int i = 0; i < COLUMNS / 2; i++) total[i] = 0;
        adds = 0;
#endif
        for (int step = piece.from; step < piece.to; step++) {
#if WALKS == 1
            const uint adds = step > piece.from;
#endif
            barrier_wait(local_at + FULL_AT + stage * 8, phase);
            PRODUCTS_BEGIN();
#if TOGETHER
            UNROLL for (int part = 0; part < STEP / 16; part++) {
                const uint from = stage * STAGE_BYTES, add = adds | (uint)(part > 0);
                const ulong left = X_MATRIX(x_at + from, part), right = Y_MATRIX(y_at + from, part);
                const ulong left_low = X_MATRIX(x_at + from + PART_BYTES, part);
                const ulong right_low = Y_MATRIX(y_at + from + PART_BYTES, part);
                PRODUCT(low, left_low, right, add, X_TURNED, Y_TURNED);
                PRODUCT(low, left, right_low, 1, X_TURNED, Y_TURNED);
                PRODUCT(sum, left, right, add, X_TURNED, Y_TURNED);
            }
#else
            UNROLL for (int part = 0; part < STEP / 16; part++) {
                const ulong right = Y_MATRIX(y_at + stage * STAGE_BYTES, part);
                UNROLL for (int b = 0; b < BLOCKS; b++) {
                    const ulong left = X_MATRIX(x_at + stage * STAGE_BYTES + b * 8192, part);
                    PRODUCT(sum + b * COLUMNS / 2, left, right, adds | (uint)(part > 0), X_TURNED, Y_TURNED);
                }
            }
#endif
            PRODUCTS_GO();
#if TOGETHER
            adds = !((step - piece.from) % FOLD == FOLD - 1 || step == piece.to - 1);
            if (adds) {
                PRODUCTS_WAIT(1);
            } else {
                PRODUCTS_WAIT(0);
                UNROLL for (int i = 0; i < COLUMNS / 2; i++) total[i] += low[i] * (1 / LOW_UP) + sum[i];
            }
#elif WALKS > 1
            const Stretch s = stretch_of(&a, step);
            const int is_low = WALKS == 3 && s.at < 2 * s.length;
            adds = !(s.at == (is_low ? 2 : WALKS) * s.length - 1 || step == piece.to - 1);
            if (adds) {
                PRODUCTS_WAIT(1);
            } else {
                const float weight = is_low ? 1 / LOW_UP : 1;
                PRODUCTS_WAIT(0);
                UNROLL for (int i = 0; i < COLUMNS / 2; i++) total[i] = sum[i] * weight + total[i];
            }
#else
            PRODUCTS_WAIT(1);
#endif
            barrier_arrive(local_at + EMPTY_AT + before * 8, first & (uint)(step > piece.from));
            before = stage;
            phase ^= stage + 1 == STAGES;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
#if TURNS
        barrier_arrive(local_at + TURN_AT + (1 - side) * 8, first);
#endif
        PRODUCTS_WAIT(0);
        barrier_arrive(local_at + EMPTY_AT + before * 8, first);
#if WALKS > 1
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
#if WALKS == 3
            UNROLL for (int i = 0; i < CHUNK / 2; i++) v[i] = v[i] * scale * rest;
#endif
#if BIAS
            // Each lane reads some columns of the chunk, and gives them to those who have sums of these.
            float b[CHUNK / 32];
            UNROLL for (int i = 0; i < CHUNK / 32; i++) {
                const int c = column + i * 32 + lane;
                b[i] = c < a.n ? LOAD(bias, c) : 0;
            }
            UNROLL for (int j = 0; j < CHUNK / 8; j++) {
                const int from = j % 4 * 8 + lane % 4 * 2;
                const float b0 = of_lane(b[j / 4], from), b1 = of_lane(b[j / 4], from + 1);
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
    if (first) BOXES_STORED();
}
