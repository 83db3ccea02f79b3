// Attention on the matrix units of NVIDIA Hopper (wgmma, TMA), forward and backward:
// out = dropout(softmax(scale q k^T + mask)) v, for 16-bit floats with float32 sums, and for float32 split into 2 or 3
// bfloat16 terms. The scores exist in registers only.
//
// A work-group is four warps; the forward kernel has a fifth, which loads. Of each of its blocks it owns 64 rows of q (or
// of k and v) and iterates over tiles of 64 rows of the other operand, while TMA loads the next ones. It works on several
// blocks one after another, because it writes and acquires its tensor maps once, and each acquire delays all loads of a
// multiprocessor. Of a 64 x 64 tile of scores a lane holds 2 rows x 16 columns: p[i] is at row ROW_OF(i) and column
// COLUMN_OF(i), relative to the lane's first row and column.
//
// Of the products of terms (see bfloat16_terms.cl) the three or six largest are added, the smallest first.
//
// Arrays   q, k, v, out, dout and the gradients (.., rows, D); mask (.., t, s)
//          long4 <name>_at is the layout of an array: offset, strides of its two leading axes, stride of a row. The
//          last axis has stride 1, that of mask mask_step. batch = index on the outer axis * inner + index on the inner
//          axis.
//          `group` neighbors on the inner axis share a matrix of k and v, whose inner axis is so much shorter
//          The first elements and all strides of q, k, v, out and dout are multiples of 16 bytes.
//          lse (batch, padded): log2 of the sum of the exponentials of each row of scores; inf where every key is
//          masked and in rows t <= row < padded, where padded is t rounded up to a multiple of 64
//          delta (batch, padded): sum(dout * out) of each row, 0 in the padding
//          plans: tensor maps of q, k, v and dout without addresses
//          maps: the same with addresses, 4 of each work-group, which the work-group writes; not the memory of the launch
//          before, which may still run then
//          walks: bit 2 i is 1 if array i of q, k, v, dout has the inner leading axis, bit 2 i + 1 if it has the outer
//          one
//          With TERMS above 1 the tensor maps are those of the terms
// Launch   local 128, attention_forward 160. attention_delta: 8 work-items per row of lse. The other kernels: as many
//          work-groups as the device holds, which share the blocks (64 rows, batch)
// Params   T, KIND            the dtype, and its PTX name: bf16 or f16
//          D                  length of the last axes, a multiple of 8 up to 128
//          TERMS              terms per operand: 1; or 2 or 3 with KIND bf16: then T is float, D at most 64
//          SLOTS, WIDE        parts of the ring of keys and values in local memory, and the tiles of each, forward
//          STAGES_KEYS, STAGES_QUERIES    tiles of the streamed operands in local memory, backward, per kernel
//          MASK               0 none, 1 bool, 2 added to the scores; MASK_T, MASK_LOAD of its dtype
//          DROPOUT            1 to drop weights
//          BACKWARD           1 to compile the backward kernels, 0 for the forward kernels
//          STATE_ON_DEVICE    1 to read the dropout key and counter from memory, 0 to use the arguments
//          GROUPS_FORWARD, GROUPS_KEYS, GROUPS_QUERIES    work-groups per multiprocessor to compile for, per kernel
//          COLUMNS            64
#include "ptx.cl"
#include "wgmma.cl"
#include "attention_tiles.cl"
#if !defined(D) || !defined(MASK) || !defined(MASK_T) || !defined(DROPOUT) || !defined(BACKWARD)
#error "attention_wgmma.cl needs a dtype's and a mask's macros, D, DROPOUT and BACKWARD"
#endif
#if !defined(STATE_ON_DEVICE) || !defined(GROUPS_FORWARD) || !defined(GROUPS_KEYS) || !defined(GROUPS_QUERIES)
#error "attention_wgmma.cl needs STATE_ON_DEVICE, GROUPS_FORWARD, GROUPS_KEYS and GROUPS_QUERIES"
#endif
#if !defined(TERMS) || !defined(SLOTS) || !defined(WIDE) || !defined(STAGES_KEYS) || !defined(STAGES_QUERIES)
#error "attention_wgmma.cl needs TERMS, SLOTS, WIDE, STAGES_KEYS and STAGES_QUERIES"
#endif

#define STAGE_BYTES (2 * TILE_BYTES)
#define ROW_BYTES (TILE * 4)  // of the lse or delta of a tile
#define LOG2_E 1.4426950408889634f
#define GROUP __attribute__((reqd_work_group_size(128, 1, 1)))

// Write the work-group's tensor maps with addresses; each of the four warps does one. The fourth array is dout.
#define MAPPED \
    __global const ulong *plans, __global ulong *maps, __global const T *q, const long q_start, \
        __global const T *k, const long k_start, __global const T *v, const long v_start, __global const T *g, \
        const long g_start
INLINE void make_maps(MAPPED) {
    const int lane = get_local_id(0) % 32, warp = get_local_id(0) / 32;
    const ulong address = warp == 0   ? (ulong)(q + q_start)
                          : warp == 1 ? (ulong)(k + k_start)
                          : warp == 2 ? (ulong)(v + v_start)
                                      : (ulong)(g + g_start);
    map_write(maps + warp * 16, lane, lane == 0 ? address : lane < 16 ? plans[warp * 16 + lane] : 0);
}
// What a kernel does before its first block. Before that it reads no array.
#define PREPARE() { \
        maps += get_group_id(0) * 64; \
        if (warp < 4) make_maps(plans, maps, q, q_start, k, k_start, v, v_start, g, g_start); \
        if (me == 0) MAKE_BARRIERS(); \
        AWAIT_BEFORE(); \
        ALLOW_NEXT(); \
    }

// Hide the value of an address from the optimizer. Otherwise it hoists the addresses of all matrices out of the loop
// and runs out of registers.
INLINE uint opaque(uint address) {
    asm volatile("mov.b32 %0, %0;" : "+r"(address));
    return address;
}

// Store sum * factor to rows row and row + 8, if below `rows`.
#define STORE_ROWS(to, at, row, rows, sum, factor) \
    UNROLL for (int side = 0; side < 2; side++) \
        if (row + 8 * side < rows) { \
            __global pair *pairs = (__global pair *)(to + start_of(at, batch, inner) + (row + 8 * side) * at.w); \
            UNROLL for (int j = 0; j < D / 8; j++) \
                pairs[4 * j + lane % 4] = PAIR_OF(sum[4 * j + 2 * side] * factor[side], \
                                                  sum[4 * j + 2 * side + 1] * factor[side]); \
        }
#if TERMS > 1
typedef float2 pair;
#define PAIR_OF(a, b) (float2)(a, b)
#else
typedef uint pair;
#define PAIR_OF pack_pair
#endif

INLINE long start_of(const long4 at, const int batch, const int inner) {
    return at.x + batch / inner * at.y + batch % inner * at.z;
}

// ---- mask and dropout -------------------------------------------------------------------------------------------

// 1 if weight number `index` survives dropout. `dropout` holds the key, the counter, and the threshold for the upper 24
// bits of the weight's random word.
INLINE int survives(const ulong index, const ulong4 dropout) {
    const uint4 four = philox4x32(index / 4, dropout.y, dropout.x);
    const uint word = index & 2 ? (index & 1 ? four.w : four.z) : (index & 1 ? four.y : four.x);
    return (word >> 8) >= (uint)dropout.z;
}

// Apply the mask to so many scores in units of UNIT; query and key are those of p[0]; `turned` is 1 if rows are keys.
#if MASK == 2
#define UNIT 1.0f
#else
#define UNIT (scale * LOG2_E)
#endif
#if MASK
#define APPLY_MASK(p, count, query, key, turned) \
    UNROLL for (int i = 0; i < count; i++) { \
        const long q_at = (query) + (turned ? COLUMN_OF(i) : ROW_OF(i)), k_at = (key) + (turned ? ROW_OF(i) : COLUMN_OF(i)); \
        if (q_at < t && k_at < s) p[i] = masked(p[i], MASK_LOAD(mask, q_at * mask_at.w + k_at * mask_step), scale); \
    }
INLINE float masked(const float p, const float m, const float scale) {
#if MASK == 1
    return m != 0 ? p : -INFINITY;
#else
    return (p * scale + m) * LOG2_E;
#endif
}
#else
#define APPLY_MASK(p, count, query, key, turned)
#endif

// ---- blocks of 64 rows --------------------------------------------------------------------------------------------

// The block of a work-group in a round. Blocks are in the order of their work, the largest first; every other round is
// reversed, so that work-groups have about equal work.
INLINE int block_of(const int round) {
    const int group = get_group_id(0), groups = get_num_groups(0);
    return round * groups + (round % 2 ? groups - 1 - group : group);
}
#define EACH_BLOCK(rows) for (int round = 0; block_of(round) < batches * (((rows) + TILE - 1) / TILE); round++)
// The block's batch, the batch's indices on the two leading axes and its mask, and the block's number in the batch.
#define FIND_BLOCK() \
    const int batch = block_of(round) % batches, outer = batch / inner, in_outer = batch % inner; \
    const int head_of_keys = in_outer / group; \
    const int block = block_of(round) / batches; \
    __global const MASK_T *mask = whole_mask + start_of(mask_at, batch, inner)

#if !BACKWARD
// ---- forward ----------------------------------------------------------------------------------------------------

// One work-item of the fifth warp loads tiles of keys and values by turns into a ring of SLOTS, each of WIDE tiles. The
// other warps signal that they have read a slot, or the own tile.
#define KEYS (WIDE * TILE)  // of a slot
#define SLOT_BYTES (WIDE * TILE_BYTES)
#define RING_AT TILE_BYTES  // in local memory: own tile, ring, barriers
#define BARRIERS_AT (RING_AT + SLOTS * SLOT_BYTES)
#define OWN SLOTS  // the number of the own tile's barriers
#define IS_FULL(slot) (local_at + BARRIERS_AT + (slot) * 16)
#define IS_FREE(slot) (IS_FULL(slot) + 8)
#define LOCAL_BYTES (BARRIERS_AT + 16 * (SLOTS + 1))
#define MAKE_BARRIERS() { \
        UNROLL for (int slot = 0; slot <= SLOTS; slot++) { \
            mbarrier_init(IS_FULL(slot), 1); \
            mbarrier_init(IS_FREE(slot), 4); \
        } \
        mbarrier_init_fence(); \
    }
// A slot is filled and read for the n-th time in phase n of its barriers. Nobody waits for the first one to be free.
#define AWAIT_FULL(slot, n) mbarrier_wait(IS_FULL(slot), (n) % 2)
#define AWAIT_FREE(slot, n) mbarrier_wait(IS_FREE(slot), ((n) + 1) % 2)
#define FREE(slot) mbarrier_arrive(IS_FREE(slot), lane == 0)
#define NEXT_SLOT() { if (++slot == SLOTS) slot = 0, n++; }
#define LOAD_SLOT(which, number) { \
        AWAIT_FREE(slot, n); \
        mbarrier_expect(IS_FULL(slot), SLOT_BYTES); \
        UNROLL for (int i = 0; i < WIDE; i++) \
            tile_load(local_at + RING_AT + slot * SLOT_BYTES + i * TILE_BYTES, maps, which, walks, \
                      (number) * KEYS + i * TILE, head_of_keys, outer, IS_FULL(slot)); \
        NEXT_SLOT() \
    }
#define ALL_SCORES (WIDE * SCORES)
#define EVERY_SCORE UNROLL for (int i = 0; i < ALL_SCORES; i++)

__kernel __attribute__((reqd_work_group_size(160, 1, 1))) void attention_forward(
    MAPPED, const int walks, __global const MASK_T *whole_mask,
    const long4 mask_at, const long mask_step, __global T *out, const long4 out_at, __global float *lse,
    const int batches, const int inner, const int t, const int s, const int causal, const float scale, STATE,
    const uint threshold, const float kept, const int group) {
    GROUPS_HELD(GROUPS_FORWARD);
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const int blocks = (t + TILE - 1) / TILE;
    const int ahead = causal ? s - t : s;  // query i attends to keys up to i + ahead
    const uint local_at = local_address(memory);
    PREPARE()
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    uint slot = 0, n = 0, blocks_read = 0;
    if (warp == 4 && lane) return;
    EACH_BLOCK(t) {
        FIND_BLOCK();
        const int first = (blocks - 1 - block) * TILE, row = first + warp * 16 + lane / 4;
        const int tiles = (clamp(first + TILE + ahead, 0, s) + KEYS - 1) / KEYS;
        if (warp == 4) {
            if (tiles == 0) continue;
            AWAIT_FREE(OWN, blocks_read++);
            mbarrier_expect(IS_FULL(OWN), TILE_BYTES);
            tile_load(local_at, maps, 0, walks, first, in_outer, outer, IS_FULL(OWN));
            for (int tile = 0; tile < tiles; tile++) {
                LOAD_SLOT(1, tile)
                LOAD_SLOT(2, tile)
            }
            continue;
        }
        float results[RESULTS], sum[2] = {0, 0};
        float top[2] = {-INFINITY, -INFINITY};  // running maximum of the exponents
        UNROLL for (int i = 0; i < RESULTS; i++) results[i] = 0;
        if (tiles) AWAIT_FULL(OWN, blocks_read++);
        for (int tile = 0; tile < tiles; tile++) {
            const uint own = opaque(local_at);
            const int column = tile * KEYS + lane % 4 * 2;
            float p[ALL_SCORES];
            AWAIT_FULL(slot, n);
            const uint keys = own + RING_AT + slot * SLOT_BYTES;
            WGMMA_FENCE();
            UNROLL for (int i = 0; i < WIDE; i++) PRODUCTS(p + i * SCORES, own, keys + i * TILE_BYTES);
            WGMMA_COMMIT();
            WGMMA_WAIT(0);
            FREE(slot);
            NEXT_SLOT()
            if (tile + 1 == tiles) FREE(OWN);
            APPLY_MASK(p, ALL_SCORES, row, column, 0)
            if (tile * KEYS + KEYS > MIN(first + ahead + 1, s))
                EVERY_SCORE if (column + COLUMN_OF(i) > MIN(row + ROW_OF(i) + ahead, s - 1)) p[i] = -INFINITY;
            UNROLL for (int side = 0; side < 2; side++) {
                float largest = -INFINITY;
                EVERY_SCORE if (ROW_OF(i) == 8 * side) largest = fmax(largest, p[i]);
                largest = fmax(largest, shuffle_xor(largest, 1));
                largest = fmax(largest, shuffle_xor(largest, 2));
                // If the maximum does not change, this is bitwise the old value, so that rounding does not shrink every
                // tile.
                largest = fmax(top[side], largest * UNIT);
                const float base = largest == -INFINITY ? 0 : largest;  // all masked so far: avoid inf - inf
                const float shrink = exp2_approx(top[side] - base);
                float weights = 0;
                EVERY_SCORE if (ROW_OF(i) == 8 * side)
                    weights += p[i] = exp2_approx(fma(p[i], UNIT, -base));
                UNROLL for (int i = 0; i < RESULTS; i++) if (ROW_OF(i) == 8 * side) results[i] *= shrink;
                sum[side] = sum[side] * shrink + weights;
                top[side] = largest;
            }
#if DROPOUT
            EVERY_SCORE {
                const ulong index = ((ulong)batch * t + row + ROW_OF(i)) * s + column + COLUMN_OF(i);
                p[i] = survives(index, dropout) ? p[i] : 0;
            }
#endif
            uint weights[WIDE][TERMS][TILE / 16][4];
            UNROLL for (int i = 0; i < WIDE; i++) pack(weights[i], p + i * SCORES);
            AWAIT_FULL(slot, n);
            const uint values = own + RING_AT + slot * SLOT_BYTES;
            WGMMA_FENCE();
            UNROLL for (int i = 0; i < WIDE; i++) ADD_WEIGHTED(results, weights[i], values + i * TILE_BYTES);
            WGMMA_COMMIT();
            WGMMA_WAIT(0);
            FREE(slot);
            NEXT_SLOT()
        }
        float factor[2];
        UNROLL for (int side = 0; side < 2; side++) {
            float total = sum[side] + shuffle_xor(sum[side], 1);
            total += shuffle_xor(total, 2);
            factor[side] = total == 0 ? 0 : kept / total;
            if (lane % 4 == 0)
                lse[(long)batch * blocks * TILE + row + 8 * side] =
                    total == 0 || row + 8 * side >= t ? INFINITY : top[side] + log2(total);
        }
        STORE_ROWS(out, out_at, row, t, results, factor)
    }
}

#else
// ---- backward ---------------------------------------------------------------------------------------------------

// With p the weights, z the dropped weights and dz = dout v^T:  dv = z^T dout,  ds = p (drop(dz) - delta),
// dq = scale ds k,  dk = scale ds^T q,  delta = sum(dout out).

// ---- pipeline stages ----------------------------------------------------------------------------------------------

// A stage holds a tile of each of two arrays. With APART each tile has its own barrier and is reloaded as soon as it
// has been read: three terms leave local memory for one stage only.
#define APART (TERMS == 3)
#define FULL(stage, second) (local_at + BARRIERS_AT + ((second) * APART * STAGES + (stage)) * 8)
#define OWN_FULL (local_at + BARRIERS_AT + (1 + APART) * STAGES * 8)
#define BARRIERS_BYTES (((1 + APART) * STAGES + 1) * 8)
#define MAKE_BARRIERS() { \
        UNROLL for (int i = 0; i < (1 + APART) * STAGES; i++) \
            mbarrier_init(local_at + BARRIERS_AT + i * 8, 2 - APART); \
        mbarrier_init(OWN_FULL, 1); \
        mbarrier_init_fence(); \
    }
// `before` counts the tiles of the work-group's earlier blocks.
#define STAGE ((before + tile) % STAGES)
#define WAIT_FOR(second) mbarrier_wait(FULL(stage, second), (before + tile) / STAGES % 2)
#define WAIT_FOR_OWN() mbarrier_wait(OWN_FULL, round % 2)
// Start the first loads of a block; all warps have finished the block before.
#define LOAD_BLOCK() { \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if (me == 0) { \
            LOAD_OWN(); \
            for (int tile = 0; tile < MIN(STAGES, tiles); tile++) { LOAD(0, STAGE, tile); LOAD(1, STAGE, tile); } \
        } \
    }
// Reload the tile that has been read; unless APART, both tiles of the stage.
#define LOAD_NEXT(second) { \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if (me == 0 && tile + STAGES < tiles) { \
            LOAD(second, stage, tile + STAGES); \
            if (!APART) LOAD(1 - (second), stage, tile + STAGES); \
        } \
    }

// Computes delta.
__kernel GROUP void attention_delta(__global const T *dout, const long4 dout_at, __global const T *out,
                                    const long4 out_at, __global float *delta, const int batches, const int inner,
                                    const int t) {
    const int padded = (t + TILE - 1) / TILE * TILE, lane = get_local_id(0) % 8;
    const long at = get_global_id(0) / 8;
    const int batch = at / padded, row = at % padded;
    float sum = 0;
    if (batch < batches && row < t) {
        out += start_of(out_at, batch, inner) + row * out_at.w;
        dout += start_of(dout_at, batch, inner) + row * dout_at.w;
#if TERMS > 1
        for (int d = lane * 4; d < D; d += 32) {
            const float4 x = *(__global const float4 *)(out + d), y = *(__global const float4 *)(dout + d);
            sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
        }
#else
        for (int d = lane * 8; d < D; d += 64) {
            const uint4 x = *(__global const uint4 *)(out + d), y = *(__global const uint4 *)(dout + d);
            const uint xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
            UNROLL for (int i = 0; i < 4; i++) {
                const float2 a = unpack_pair(xs[i]), b = unpack_pair(ys[i]);
                sum += a.x * b.x + a.y * b.y;
            }
        }
#endif
    }
    UNROLL for (int i = 1; i < 8; i *= 2) sum += shuffle_xor(sum, i);
    if (lane == 0 && batch < batches) delta[at] = sum;
}

#define STAGES_AT (2 * TILE_BYTES)  // in local memory: own tiles, stages of the others, lse and delta, barriers
#define ROWS_AT (STAGES_AT + STAGES * STAGE_BYTES)
#define BARRIERS_AT (ROWS_AT + STAGES * 2 * ROW_BYTES)
#define LOCAL_BYTES (BARRIERS_AT + BARRIERS_BYTES + 8)
#define LOAD_OWN_TILES(one, other, head) { \
        mbarrier_expect(OWN_FULL, 2 * TILE_BYTES); \
        tile_load(local_at, maps, one, walks, first, head, outer, OWN_FULL); \
        tile_load(local_at + TILE_BYTES, maps, other, walks, first, head, outer, OWN_FULL); \
    }
#define PRODUCTS_OF_TILES(p, dz, own, others) \
    WGMMA_FENCE(); \
    PRODUCTS(p, own, others); \
    WGMMA_COMMIT(); \
    if (APART) WAIT_FOR(1); \
    PRODUCTS(dz, (own) + TILE_BYTES, (others) + TILE_BYTES); \
    WGMMA_COMMIT(); \
    WGMMA_WAIT(1)

// Computes dk and dv: a work-group owns 64 keys. Tiles of scores are transposed: rows are keys, columns are queries.
#define STAGES STAGES_KEYS
#undef LOAD
#define LOAD(second, stage, number) { \
        const uint full = FULL(stage, second), at = local_at + ROWS_AT + ((stage) * 2 + (second)) * ROW_BYTES; \
        const int query = (from + (number)) * TILE; \
        mbarrier_expect(full, TILE_BYTES + ROW_BYTES); \
        tile_load(local_at + STAGES_AT + (stage) * STAGE_BYTES + (second) * TILE_BYTES, maps, (second) * 3, walks, query, \
                  in_outer, outer, full); \
        tma_load_bytes(at, ((second) ? delta : lse) + (long)batch * padded + query, ROW_BYTES, full); \
    }

#define LOAD_OWN() LOAD_OWN_TILES(1, 2, head_of_keys)

__kernel GROUP void attention_backward_kv(
    MAPPED, const int walks, __global const MASK_T *whole_mask,
    const long4 mask_at, const long mask_step, __global const float *lse, __global const float *delta,
    __global T *dk, const long4 dk_at, __global T *dv, const long4 dv_at, const int batches, const int inner,
    const int t, const int s, const int causal, const float scale, STATE, const uint threshold, const float kept,
    const int group) {
    GROUPS_HELD(GROUPS_KEYS);
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const int padded = (t + TILE - 1) / TILE * TILE;
    const int ahead = causal ? s - t : s;  // queries from j - ahead on attend to key j
    const uint local_at = local_address(memory);
    PREPARE()
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    uint before = 0;
    EACH_BLOCK(s) {
        FIND_BLOCK();
        const int first = block * TILE, row = first + warp * 16 + lane / 4;
        const int from = MAX(first - ahead, 0) / TILE, tiles = MAX(padded / TILE - from, 0);
        LOAD_BLOCK()
        float dks[RESULTS], dvs[RESULTS];
        UNROLL for (int i = 0; i < RESULTS; i++) dks[i] = dvs[i] = 0;
        WAIT_FOR_OWN();
        for (int tile = 0; tile < tiles; tile++) {
            const uint stage = STAGE, own = opaque(local_at);
            const uint queries = own + STAGES_AT + stage * STAGE_BYTES;
            const uint rows = local_at + ROWS_AT + stage * 2 * ROW_BYTES + lane % 4 * 8;
            const int query = (from + tile) * TILE, column = query + lane % 4 * 2;
            float p[SCORES], dz[SCORES];
            WAIT_FOR(0);
            PRODUCTS_OF_TILES(p, dz, own, queries);
            APPLY_MASK(p, SCORES, column, row, 1)
            UNROLL for (int j = 0; j < SCORES / 4; j++) {
                const float2 row_lse = local_load_2(rows + j * 32);
                UNROLL for (int i = 0; i < 4; i++)
                    p[4 * j + i] =
                        exp2_approx(fma(p[4 * j + i], UNIT, -(i % 2 ? row_lse.y : row_lse.x)));
            }
            if (first + TILE - 1 > query + ahead)
                EACH_SCORE if (row + ROW_OF(i) > column + COLUMN_OF(i) + ahead) p[i] = 0;
            uint weights[TERMS][TILE / 16][4], changes[TERMS][TILE / 16][4];
#if DROPOUT
            uint staying = 0;
            EACH_SCORE {
                const ulong index = ((ulong)batch * t + column + COLUMN_OF(i)) * s + row + ROW_OF(i);
                staying |= (uint)survives(index, dropout) << i;
            }
            float z[SCORES];
            EACH_SCORE z[i] = staying >> i & 1 ? p[i] : 0;
            pack(weights, z);
#else
            pack(weights, p);
#endif
            WGMMA_WAIT(0);
#if DROPOUT
            EACH_SCORE dz[i] = staying >> i & 1 ? dz[i] * kept : 0;
#endif
            UNROLL for (int j = 0; j < SCORES / 4; j++) {
                const float2 row_delta = local_load_2(rows + ROW_BYTES + j * 32);
                UNROLL for (int i = 0; i < 4; i++) p[4 * j + i] *= dz[4 * j + i] - (i % 2 ? row_delta.y : row_delta.x);
            }
#if APART  // dk first, because the next tile of queries is waited for first
            pack(changes, p);
            ADD_WEIGHTED(dks, changes, queries);
            LOAD_NEXT(0);
            ADD_WEIGHTED(dvs, weights, queries + TILE_BYTES);
#else
            WGMMA_FENCE();
            ADD_WEIGHTED(dvs, weights, queries + TILE_BYTES);
            WGMMA_COMMIT();
            pack(changes, p);
            WGMMA_FENCE();
            ADD_WEIGHTED(dks, changes, queries);
            WGMMA_COMMIT();
            WGMMA_WAIT(0);
#endif
            LOAD_NEXT(1);
        }
        const float dk_factor[2] = {scale, scale}, dv_factor[2] = {kept, kept};
        STORE_ROWS(dk, dk_at, row, s, dks, dk_factor)
        STORE_ROWS(dv, dv_at, row, s, dvs, dv_factor)
        before += tiles;
    }
}

// Computes dq: a work-group owns 64 queries.
#undef STAGES
#define STAGES STAGES_QUERIES
#undef LOAD
#define LOAD(second, stage, number) { \
        const uint full = FULL(stage, second); \
        mbarrier_expect(full, TILE_BYTES); \
        tile_load(local_at + STAGES_AT + (stage) * STAGE_BYTES + (second) * TILE_BYTES, maps, 1 + (second), walks, \
                  (number) * TILE, head_of_keys, outer, full); \
    }

#undef LOAD_OWN
#define LOAD_OWN() LOAD_OWN_TILES(0, 3, in_outer)

__kernel GROUP void attention_backward_q(
    MAPPED, const int walks, __global const MASK_T *whole_mask,
    const long4 mask_at, const long mask_step, __global const float *lse, __global const float *delta,
    __global T *dq, const long4 dq_at, const int batches, const int inner, const int t, const int s,
    const int causal, const float scale, STATE, const uint threshold, const float kept,
    const int group) {
    GROUPS_HELD(GROUPS_QUERIES);
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const int padded = (t + TILE - 1) / TILE * TILE;
    const int ahead = causal ? s - t : s;
    const uint local_at = local_address(memory);
    PREPARE()
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    uint before = 0;
    EACH_BLOCK(t) {
        FIND_BLOCK();
        const int first = padded - TILE - block * TILE, row = first + warp * 16 + lane / 4;
        const int tiles = (clamp(first + TILE + ahead, 0, s) + TILE - 1) / TILE;
        LOAD_BLOCK()
        float dqs[RESULTS], row_lse[2], row_delta[2];
        UNROLL for (int i = 0; i < RESULTS; i++) dqs[i] = 0;
        UNROLL for (int side = 0; side < 2; side++) {
            row_lse[side] = lse[(long)batch * padded + row + 8 * side];
            row_delta[side] = delta[(long)batch * padded + row + 8 * side];
        }
        WAIT_FOR_OWN();
        for (int tile = 0; tile < tiles; tile++) {
            const uint stage = STAGE, own = opaque(local_at);
            const uint keys = own + STAGES_AT + stage * STAGE_BYTES;
            const int column = tile * TILE + lane % 4 * 2;
            float p[SCORES], dz[SCORES];
#if APART  // v first, because the next tile of keys is loaded last
            WAIT_FOR(1);
            WGMMA_FENCE();
            PRODUCTS(dz, own + TILE_BYTES, keys + TILE_BYTES);
            WGMMA_COMMIT();
            WAIT_FOR(0);
            PRODUCTS(p, own, keys);
            WGMMA_COMMIT();
            WGMMA_WAIT(0);
            LOAD_NEXT(1);
#else
            WAIT_FOR(0);
            PRODUCTS_OF_TILES(p, dz, own, keys);
#endif
            APPLY_MASK(p, SCORES, row, column, 0)
            EACH_SCORE p[i] = exp2_approx(fma(p[i], UNIT, -row_lse[ROW_OF(i) / 8]));
            if (tile * TILE + TILE > MIN(first + ahead + 1, s))
                EACH_SCORE if (column + COLUMN_OF(i) > MIN(row + ROW_OF(i) + ahead, s - 1)) p[i] = 0;
            WGMMA_WAIT(0);
#if DROPOUT
            EACH_SCORE {
                const ulong index = ((ulong)batch * t + row + ROW_OF(i)) * s + column + COLUMN_OF(i);
                dz[i] = survives(index, dropout) ? dz[i] * kept : 0;
            }
#endif
            EACH_SCORE p[i] *= dz[i] - row_delta[ROW_OF(i) / 8];
            uint changes[TERMS][TILE / 16][4];
            pack(changes, p);
            WGMMA_FENCE();
            ADD_WEIGHTED(dqs, changes, keys);
            WGMMA_COMMIT();
            WGMMA_WAIT(0);
            LOAD_NEXT(0);
        }
        const float factor[2] = {scale, scale};
        STORE_ROWS(dq, dq_at, row, t, dqs, factor)
        before += tiles;
    }
}
#endif
