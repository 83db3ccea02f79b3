// Attention on the matrix units of NVIDIA's Hopper: out = dropout(softmax(scale q k^T + mask)) v, and its gradients, for
// 16-bit floats with sums in float32, and for float32 in two or three parts. The scores exist in registers only.
//
// A work-group is four warps, which own 64 rows of q, or of k and v, and pass over the others 64 at a time; copies of the
// next tiles run meanwhile. A lane has, of a tile of 64 x 64 scores, in p[i], row ROW_OF(i) and column COLUMN_OF(i) from
// its own first: 2 rows, 16 columns each.
//
// Of 2 PARTS, each operand of a product is two float16 (see ptx.cl), one power of two for each of q, k, v and dout. Weights
// count as 2^14 at most; of the scores' gradients each row of a tile has its own power of two. Of 3, each operand is three
// bfloat16 (see thirds.cl), and of the nine products of parts the six largest are added, the smallest first.
//
// Arrays   q, k, v, out, dout and the gradients (.., rows, D), mask (.., t, s), with layouts <name>_at: offset, strides of
//          the two leading axes, stride of a row; the last axis has stride 1, that of mask has mask_step. batch = outer
//          axis * inner + inner axis. The first elements and all strides of q, k, v, out and dout are multiples of 16 bytes.
//          lse (batch, padded): the logarithm to base 2 of the sum of the exponentials of a row of scores, inf where
//          nothing is seen, and in rows t <= row < padded, a multiple of 64; delta likewise: sum(dout out), there 0
//          plans: tensor maps of q, k, v and dout without addresses; maps: the same with them, for all work-groups
//          walks: bits 2 i and 2 i + 1 are 1 where array i of these four has the inner, the outer leading axis
//          peaks: what attention_parts.cl finds, 0 before; used with 2 PARTS. Of more than 1 the maps are of the parts
// Launch   local 128; maps: one work-group; delta: 8 work-items per row of lse; the others: one work-group per 64 rows
//          and batch
// Params   T, KIND of the dtype: bf16 or f16 | D length of the last axes, a multiple of 8 up to 128
//          PARTS 1; or 2, KIND f16, or 3, KIND bf16: then T is float, D at most 64 |
//          STAGES_FORWARD, STAGES_KEYS, STAGES_QUERIES tiles of the others that local memory holds
//          MASK 0 none, 1 bool, 2 added to the scores; MASK_T, MASK_LOAD | DROPOUT 0 or 1 | BACKWARD 0 or 1: which kernels
//          STATE_ON_DEVICE 0 or 1: whether dropout's key and counter are in memory
//          GROUPS_FORWARD, GROUPS_KEYS, GROUPS_QUERIES work-groups that a multiprocessor should hold | COLUMNS 64
#include "ptx.cl"
#include "wgmma.cl"
#include "attention_tiles.cl"
#if !defined(D) || !defined(MASK) || !defined(MASK_T) || !defined(DROPOUT) || !defined(BACKWARD)
#error "attention_wgmma.cl needs a dtype's and a mask's macros, D, DROPOUT and BACKWARD"
#endif
#if !defined(STATE_ON_DEVICE) || !defined(GROUPS_FORWARD) || !defined(GROUPS_KEYS) || !defined(GROUPS_QUERIES)
#error "attention_wgmma.cl needs STATE_ON_DEVICE, GROUPS_FORWARD, GROUPS_KEYS and GROUPS_QUERIES"
#endif
#if !defined(PARTS) || !defined(STAGES_FORWARD) || !defined(STAGES_KEYS) || !defined(STAGES_QUERIES)
#error "attention_wgmma.cl needs PARTS, STAGES_FORWARD, STAGES_KEYS and STAGES_QUERIES"
#endif

#define STAGE_BYTES (2 * TILE_BYTES)
#define ROW_BYTES (TILE * 4)  // of lse or delta, for a tile
#define LOG2_E 1.4426950408889634f
#define WEIGHTS_UP (PARTS == 2 ? 14 : 0)  // the logarithm of what weights are multiplied by
#define GROUP __attribute__((reqd_work_group_size(128, 1, 1)))

// Maps with addresses; each of the four warps writes one. The fourth array is dout.
#define MAPPED \
    __global const ulong *plans, __global ulong *maps, __global uint *peaks, __global const T *q, const long q_start, \
        __global const T *k, const long k_start, __global const T *v, const long v_start, __global const T *g, \
        const long g_start
INLINE void write_maps(MAPPED, const int me) {
    const int lane = me % 32, warp = me / 32;
    const ulong address = warp == 0   ? (ulong)(q + q_start)
                          : warp == 1 ? (ulong)(k + k_start)
                          : warp == 2 ? (ulong)(v + v_start)
                                      : (ulong)(g + g_start);
    map_write(maps + warp * 16, lane, lane == 0 ? address : lane < 16 ? plans[warp * 16 + lane] : 0);
    if (PARTS == 2 && me < 4) peaks[me] = 0;
}
#define WRITE_MAPS() write_maps(plans, maps, peaks, q, q_start, k, k_start, v, v_start, g, g_start, get_local_id(0))
// What maps lead to. A kernel does not name it, but whoever plans memory goes by what a kernel is given.
#define BEHIND_MAPS \
    __global const void *behind_q, __global const void *behind_k, __global const void *behind_v, \
        __global const void *behind_g

// Multiplies each row of a tile by a power of two, so that its parts keep their digits; rows are what undoes it.
INLINE void scale_rows(float *p, float *rows) {
    UNROLL for (int side = 0; side < 2; side++) {
        rows[side] = 1;
#if PARTS == 2
        float largest = 0;
        EACH_SCORE if (ROW_OF(i) == 8 * side) largest = fmax(largest, fabs(p[i]));
        largest = fmax(largest, of_lane_across(largest, 1));
        largest = fmax(largest, of_lane_across(largest, 2));
        const int shift = shift_of(as_uint(largest));
        rows[side] = power_of_2(-shift);
        EACH_SCORE if (ROW_OF(i) == 8 * side) p[i] *= power_of_2(shift);
#endif
    }
}

// What a number of array number `which` is worth.
#if PARTS == 2
#define ONE_OF(which) power_of_2(-shift_of(peaks[which]))
#else
#define ONE_OF(which) 1.0f
#endif

// A place again, which the compiler takes for another: else it computes all matrices' places before a loop, and has no
// registers left.
INLINE uint anew(uint place) {
    asm volatile("mov.b32 %0, %0;" : "+r"(place));
    return place;
}

// Stores rows row, row + 8 < rows of sum times factor.
#define STORE_ROWS(to, at, row, rows, sum, factor) \
    UNROLL for (int side = 0; side < 2; side++) \
        if (row + 8 * side < rows) { \
            __global pair *pairs = (__global pair *)(to + start_of(at, batch, inner) + (row + 8 * side) * at.w); \
            UNROLL for (int j = 0; j < D / 8; j++) \
                pairs[4 * j + lane % 4] = PAIR_OF(sum[4 * j + 2 * side] * factor[side], \
                                                  sum[4 * j + 2 * side + 1] * factor[side]); \
        }
#if PARTS > 1
typedef float2 pair;
#define PAIR_OF(a, b) (float2)(a, b)
#else
typedef uint pair;
#define PAIR_OF pair_of
#endif

INLINE long start_of(const long4 at, const int batch, const int inner) {
    return at.x + batch / inner * at.y + batch % inner * at.z;
}

// ---- what changes scores and weights ----------------------------------------------------------------------------

// 1 if the weight of query i and key j stays. dropout holds key, counter, and the threshold for the upper 24 bits.
INLINE int stays(const ulong index, const ulong4 dropout) {
    const uint4 four = philox4x32(index / 4, dropout.y, dropout.x);
    const uint word = index & 2 ? (index & 1 ? four.w : four.z) : (index & 1 ? four.y : four.x);
    return (word >> 8) >= (uint)dropout.z;
}

// Scores after a mask, in units of `unit`; query and key are those of p[0], and `turned` where rows are keys.
#if MASK == 2
#define UNIT 1.0f
#else
#define UNIT (one_score * LOG2_E)
#endif
#if MASK
#define APPLY_MASK(p, query, key, turned) \
    EACH_SCORE { \
        const long q_at = (query) + (turned ? COLUMN_OF(i) : ROW_OF(i)), k_at = (key) + (turned ? ROW_OF(i) : COLUMN_OF(i)); \
        if (q_at < t && k_at < s) p[i] = masked(p[i], MASK_LOAD(mask, q_at * mask_at.w + k_at * mask_step), one_score); \
    }
INLINE float masked(const float p, const float m, const float one_score) {
#if MASK == 1
    return m != 0 ? p : -INFINITY;
#else
    return (p * one_score + m) * LOG2_E;
#endif
}
#else
#define APPLY_MASK(p, query, key, turned)
#endif

// ---- stages -----------------------------------------------------------------------------------------------------

// A stage has a tile of each of two arrays. APART, each has its own barrier, and is loaded anew as soon as nobody reads it:
// three parts leave room for one stage.
#define APART (PARTS == 3)
#define FULL(stage, second) (local_at + BARRIERS_AT + ((second) * APART * STAGES + (stage)) * 8)
#define OWN_FULL (local_at + BARRIERS_AT + (1 + APART) * STAGES * 8)
#define BARRIERS_BYTES (((1 + APART) * STAGES + 1) * 8)
#define MAKE_BARRIERS() { \
        UNROLL for (int i = 0; i < (1 + APART) * STAGES; i++) barrier_make(local_at + BARRIERS_AT + i * 8, 2 - APART); \
        barrier_make(OWN_FULL, 1); \
        barriers_made(); \
    }
#define WAIT_FOR(second) barrier_wait(FULL(stage, second), tile / STAGES % 2)
#define LOAD_FIRST() for (int i = 0; i < MIN(STAGES, tiles); i++) { LOAD(0, i, i); LOAD(1, i, i); }
// What nobody reads any more: this array, or both unless they are APART.
#define LOAD_NEXT(second) { \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if (me == 0 && tile + STAGES < tiles) { \
            LOAD(second, stage, tile + STAGES); \
            if (!APART) LOAD(1 - (second), stage, tile + STAGES); \
        } \
    }

#if !BACKWARD
// ---- forward ----------------------------------------------------------------------------------------------------

__kernel GROUP void attention_maps(MAPPED) { WRITE_MAPS(); }

#define STAGES STAGES_FORWARD

#define STAGES_AT TILE_BYTES  // in local memory: own tile, stages of keys and values, barriers
#define BARRIERS_AT (STAGES_AT + STAGES * STAGE_BYTES)
#define LOAD(second, stage, number) { \
        const uint full = FULL(stage, second); \
        barrier_expect(full, TILE_BYTES); \
        tile_load(local_at + STAGES_AT + (stage) * STAGE_BYTES + (second) * TILE_BYTES, maps, 1 + (second), walks, \
                  (number) * TILE, in_outer, outer, full); \
    }

__kernel GROUP void attention_forward(
    BEHIND_MAPS, __global const ulong *maps, const int walks, __global const uint *peaks, __global const MASK_T *mask,
    const long4 mask_at, const long mask_step, __global T *out, const long4 out_at, __global float *lse,
    const int batches, const int inner, const int t, const int s, const int causal, const float scale, STATE,
    const uint threshold, const float kept) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    GROUPS_HELD(GROUPS_FORWARD);
    __local uint4 memory[(BARRIERS_AT + BARRIERS_BYTES + 15) / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const int batch = get_group_id(0) % batches, outer = batch / inner, in_outer = batch % inner;
    const int blocks = (t + TILE - 1) / TILE, first = (blocks - 1 - (int)get_group_id(0) / batches) * TILE;
    const int ahead = causal ? s - t : s;  // query i sees keys up to i + ahead; the longest rows come first
    const int tiles = (clamp(first + TILE + ahead, 0, s) + TILE - 1) / TILE;
    const int row = first + warp * 16 + lane / 4;
    const float one_score = scale * ONE_OF(0) * ONE_OF(1);
    const uint local_at = place_of(memory);
    mask += start_of(mask_at, batch, inner);
    if (me == 0) {
        map_take(maps), map_take(maps + 16), map_take(maps + 32);
        MAKE_BARRIERS();
        barrier_expect(OWN_FULL, TILE_BYTES);
        tile_load(local_at, maps, 0, walks, first, in_outer, outer, OWN_FULL);
        LOAD_FIRST();
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    float results[RESULTS], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // top: of exponents
    UNROLL for (int i = 0; i < RESULTS; i++) results[i] = 0;
    barrier_wait(OWN_FULL, 0);
    for (int tile = 0; tile < tiles; tile++) {
        const uint stage = tile % STAGES, own = anew(local_at);
        const uint keys = own + STAGES_AT + stage * STAGE_BYTES;
        const int column = tile * TILE + lane % 4 * 2;
        float p[SCORES];
        WAIT_FOR(0);
        PRODUCTS_BEGIN();
#if PARTS == 2
        LOW_PRODUCTS(p, own, keys);
        PRODUCTS_GO();
        PRODUCTS_WAIT(0);
        SHRINK(p);
        PRODUCTS_BEGIN();
#endif
        HIGH_PRODUCTS(p, own, keys);
        PRODUCTS_GO();
        PRODUCTS_WAIT(0);
        if (APART) LOAD_NEXT(0);
        APPLY_MASK(p, row, column, 0)
        if (tile * TILE + TILE > MIN(first + ahead + 1, s))
            EACH_SCORE if (column + COLUMN_OF(i) > MIN(row + ROW_OF(i) + ahead, s - 1)) p[i] = -INFINITY;
        UNROLL for (int side = 0; side < 2; side++) {
            float largest = -INFINITY;
            EACH_SCORE if (ROW_OF(i) == 8 * side) largest = fmax(largest, p[i]);
            largest = fmax(largest, of_lane_across(largest, 1));
            largest = fmax(largest, of_lane_across(largest, 2));
            // The same product as before where it stays the largest: what rounding it leaves is not to shrink every tile.
            largest = fmax(top[side], largest * UNIT);
            const float base = largest == -INFINITY ? 0 : largest;  // no key so far: not inf - inf
            const float shrink = exp2_near(top[side] - base);
            float weights = 0;
            EACH_SCORE if (ROW_OF(i) == 8 * side) weights += p[i] = exp2_near(fma(p[i], UNIT, WEIGHTS_UP - base));
            UNROLL for (int i = 0; i < RESULTS; i++) if (ROW_OF(i) == 8 * side) results[i] *= shrink;
            sum[side] = sum[side] * shrink + weights;
            top[side] = largest;
        }
#if DROPOUT
        EACH_SCORE {
            const ulong index = ((ulong)batch * t + row + ROW_OF(i)) * s + column + COLUMN_OF(i);
            p[i] = stays(index, dropout) ? p[i] : 0;
        }
#endif
        uint weights[PARTS][TILE / 16][4];
        const float as_they_are[2] = {1, 1};
        pack(weights, p);
        if (APART) WAIT_FOR(1);
        PRODUCTS_BEGIN();
        ADD_WEIGHTED(results, weights, keys + TILE_BYTES, as_they_are);
        PRODUCTS_GO();
        PRODUCTS_WAIT(0);
        LOAD_NEXT(1);
    }
    float factor[2];
    UNROLL for (int side = 0; side < 2; side++) {
        float total = sum[side] + of_lane_across(sum[side], 1);
        total += of_lane_across(total, 2);
        factor[side] = total == 0 ? 0 : kept / total * ONE_OF(2);
        if (lane % 4 == 0)
            lse[(long)batch * blocks * TILE + row + 8 * side] =
                total == 0 || row + 8 * side >= t ? INFINITY : top[side] + log2(total) - WEIGHTS_UP;
    }
    STORE_ROWS(out, out_at, row, t, results, factor)
}

#else
// ---- backward ---------------------------------------------------------------------------------------------------

// With p the weights, z the dropped weights and dz = dout v^T:  dv = z^T dout,  ds = p (drop(dz) - delta),
// dq = scale ds k,  dk = scale ds^T q,  delta = sum(dout out).

// Also the maps for the two other kernels.
__kernel GROUP void attention_delta(MAPPED, __global const T *dout, const long4 dout_at, __global const T *out,
                                    const long4 out_at, __global float *delta, const int batches, const int inner,
                                    const int t) {
    if (get_group_id(0) == 0) WRITE_MAPS();
    const int padded = (t + TILE - 1) / TILE * TILE, lane = get_local_id(0) % 8;
    const long at = get_global_id(0) / 8;
    const int batch = at / padded, row = at % padded;
    float sum = 0;
    if (batch < batches && row < t) {
        out += start_of(out_at, batch, inner) + row * out_at.w;
        dout += start_of(dout_at, batch, inner) + row * dout_at.w;
#if PARTS > 1
        for (int d = lane * 4; d < D; d += 32) {
            const float4 x = *(__global const float4 *)(out + d), y = *(__global const float4 *)(dout + d);
            sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
        }
#else
        for (int d = lane * 8; d < D; d += 64) {
            const uint4 x = *(__global const uint4 *)(out + d), y = *(__global const uint4 *)(dout + d);
            const uint xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
            UNROLL for (int i = 0; i < 4; i++) {
                const float2 a = floats_of(xs[i]), b = floats_of(ys[i]);
                sum += a.x * b.x + a.y * b.y;
            }
        }
#endif
    }
    UNROLL for (int i = 1; i < 8; i *= 2) sum += of_lane_across(sum, i);
    if (lane == 0 && batch < batches) delta[at] = sum;
}

#define STAGES_AT (2 * TILE_BYTES)  // in local memory: own tiles, stages of the others, lse and delta, barriers
#define ROWS_AT (STAGES_AT + STAGES * STAGE_BYTES)
#define BARRIERS_AT (ROWS_AT + STAGES * 2 * ROW_BYTES)
#define LOCAL_BYTES (BARRIERS_AT + BARRIERS_BYTES + 8)
#define LOAD_OWN(one, other, first) { \
        map_take(maps), map_take(maps + 16), map_take(maps + 32), map_take(maps + 48); \
        MAKE_BARRIERS(); \
        barrier_expect(OWN_FULL, 2 * TILE_BYTES); \
        tile_load(local_at, maps, one, walks, first, in_outer, outer, OWN_FULL); \
        tile_load(local_at + TILE_BYTES, maps, other, walks, first, in_outer, outer, OWN_FULL); \
    }
#if PARTS == 2
#define BOTH_LOW_PRODUCTS(p, dz, own, others) \
    PRODUCTS_BEGIN(); \
    LOW_PRODUCTS(p, own, others); \
    LOW_PRODUCTS(dz, (own) + TILE_BYTES, (others) + TILE_BYTES); \
    PRODUCTS_GO(); \
    PRODUCTS_WAIT(0); \
    SHRINK(p); \
    SHRINK(dz)
#else
#define BOTH_LOW_PRODUCTS(p, dz, own, others)
#endif
#define PRODUCTS_OF_TILES(p, dz, own, others) \
    BOTH_LOW_PRODUCTS(p, dz, own, others); \
    PRODUCTS_BEGIN(); \
    HIGH_PRODUCTS(p, own, others); \
    PRODUCTS_GO(); \
    if (APART) WAIT_FOR(1); \
    HIGH_PRODUCTS(dz, (own) + TILE_BYTES, (others) + TILE_BYTES); \
    PRODUCTS_GO(); \
    PRODUCTS_WAIT(1)

// Own 64 keys: tiles of scores are turned, a row is a key, a column a query.
#define STAGES STAGES_KEYS
#undef LOAD
#define LOAD(second, stage, number) { \
        const uint full = FULL(stage, second), at = local_at + ROWS_AT + ((stage) * 2 + (second)) * ROW_BYTES; \
        const int query = (from + (number)) * TILE; \
        barrier_expect(full, TILE_BYTES + ROW_BYTES); \
        tile_load(local_at + STAGES_AT + (stage) * STAGE_BYTES + (second) * TILE_BYTES, maps, (second) * 3, walks, query, \
                  in_outer, outer, full); \
        bytes_load(at, ((second) ? delta : lse) + (long)batch * padded + query, ROW_BYTES, full); \
    }

__kernel GROUP void attention_backward_kv(
    BEHIND_MAPS, __global const ulong *maps, const int walks, __global const uint *peaks, __global const MASK_T *mask,
    const long4 mask_at, const long mask_step, __global const float *lse, __global const float *delta,
    __global T *dk, const long4 dk_at, __global T *dv, const long4 dv_at, const int batches, const int inner,
    const int t, const int s, const int causal, const float scale, STATE, const uint threshold, const float kept) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    GROUPS_HELD(GROUPS_KEYS);
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const int batch = get_group_id(0) % batches, outer = batch / inner, in_outer = batch % inner;
    const int padded = (t + TILE - 1) / TILE * TILE, first = get_group_id(0) / batches * TILE;
    const int ahead = causal ? s - t : s;  // key j is seen by queries from j - ahead
    const int from = MAX(first - ahead, 0) / TILE, tiles = MAX(padded / TILE - from, 0);
    const int row = first + warp * 16 + lane / 4;
    const float one_score = scale * ONE_OF(0) * ONE_OF(1);
    const uint local_at = place_of(memory);
    mask += start_of(mask_at, batch, inner);
    if (me == 0) {
        LOAD_OWN(1, 2, first);
        LOAD_FIRST();
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    float dks[RESULTS], dvs[RESULTS];
    UNROLL for (int i = 0; i < RESULTS; i++) dks[i] = dvs[i] = 0;
    barrier_wait(OWN_FULL, 0);
    for (int tile = 0; tile < tiles; tile++) {
        const uint stage = tile % STAGES, own = anew(local_at);
        const uint queries = own + STAGES_AT + stage * STAGE_BYTES;
        const uint rows = local_at + ROWS_AT + stage * 2 * ROW_BYTES + lane % 4 * 8;
        const int query = (from + tile) * TILE, column = query + lane % 4 * 2;
        float p[SCORES], dz[SCORES];
        WAIT_FOR(0);
        PRODUCTS_OF_TILES(p, dz, own, queries);
        APPLY_MASK(p, column, row, 1)
        UNROLL for (int j = 0; j < SCORES / 4; j++) {
            const float2 row_lse = local_load_2(rows + j * 32);
            UNROLL for (int i = 0; i < 4; i++)
                p[4 * j + i] = exp2_near(fma(p[4 * j + i], UNIT, WEIGHTS_UP - (i % 2 ? row_lse.y : row_lse.x)));
        }
        if (first + TILE - 1 > query + ahead)
            EACH_SCORE if (row + ROW_OF(i) > column + COLUMN_OF(i) + ahead) p[i] = 0;
        uint weights[PARTS][TILE / 16][4], changes[PARTS][TILE / 16][4];
#if DROPOUT
        uint staying = 0;
        EACH_SCORE {
            const ulong index = ((ulong)batch * t + column + COLUMN_OF(i)) * s + row + ROW_OF(i);
            staying |= (uint)stays(index, dropout) << i;
        }
        float z[SCORES];
        EACH_SCORE z[i] = staying >> i & 1 ? p[i] : 0;
        pack(weights, z);
#else
        pack(weights, p);
#endif
        PRODUCTS_WAIT(0);
#if DROPOUT
        EACH_SCORE dz[i] = staying >> i & 1 ? dz[i] * kept : 0;
#endif
        const float one_change = ONE_OF(2) * ONE_OF(3), as_they_are[2] = {1, 1};
        float change_rows[2];
        UNROLL for (int j = 0; j < SCORES / 4; j++) {
            const float2 row_delta = local_load_2(rows + ROW_BYTES + j * 32);
            UNROLL for (int i = 0; i < 4; i++) p[4 * j + i] *= dz[4 * j + i] * one_change - (i % 2 ? row_delta.y : row_delta.x);
        }
#if APART  // dk first: the next queries come first
        scale_rows(p, change_rows);
        pack(changes, p);
        ADD_WEIGHTED(dks, changes, queries, change_rows);
        LOAD_NEXT(0);
        ADD_WEIGHTED(dvs, weights, queries + TILE_BYTES, as_they_are);
#else
        PRODUCTS_BEGIN();
        ADD_WEIGHTED(dvs, weights, queries + TILE_BYTES, as_they_are);
        PRODUCTS_GO();
        scale_rows(p, change_rows);
        pack(changes, p);
        PRODUCTS_BEGIN();
        ADD_WEIGHTED(dks, changes, queries, change_rows);
        PRODUCTS_GO();
        PRODUCTS_WAIT(0);
#endif
        LOAD_NEXT(1);
    }
    const float dk_one = scale / (1 << WEIGHTS_UP) * ONE_OF(0), dv_one = kept / (1 << WEIGHTS_UP) * ONE_OF(3);
    const float dk_factor[2] = {dk_one, dk_one}, dv_factor[2] = {dv_one, dv_one};
    STORE_ROWS(dk, dk_at, row, s, dks, dk_factor)
    STORE_ROWS(dv, dv_at, row, s, dvs, dv_factor)
}

// Own 64 queries.
#undef STAGES
#define STAGES STAGES_QUERIES
#undef LOAD
#define LOAD(second, stage, number) { \
        const uint full = FULL(stage, second); \
        barrier_expect(full, TILE_BYTES); \
        tile_load(local_at + STAGES_AT + (stage) * STAGE_BYTES + (second) * TILE_BYTES, maps, 1 + (second), walks, \
                  (number) * TILE, in_outer, outer, full); \
    }

__kernel GROUP void attention_backward_q(
    BEHIND_MAPS, __global const ulong *maps, const int walks, __global const uint *peaks, __global const MASK_T *mask,
    const long4 mask_at, const long mask_step, __global const float *lse, __global const float *delta,
    __global T *dq, const long4 dq_at, const int batches, const int inner, const int t, const int s,
    const int causal, const float scale, STATE, const uint threshold, const float kept) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    GROUPS_HELD(GROUPS_QUERIES);
    __local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(1024)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const int batch = get_group_id(0) % batches, outer = batch / inner, in_outer = batch % inner;
    const int padded = (t + TILE - 1) / TILE * TILE, first = padded - TILE - (int)get_group_id(0) / batches * TILE;
    const int ahead = causal ? s - t : s;
    const int tiles = (clamp(first + TILE + ahead, 0, s) + TILE - 1) / TILE;
    const int row = first + warp * 16 + lane / 4;
    const float one_score = scale * ONE_OF(0) * ONE_OF(1);
    const uint local_at = place_of(memory);
    mask += start_of(mask_at, batch, inner);
    if (me == 0) {
        LOAD_OWN(0, 3, first);
        LOAD_FIRST();
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    float dqs[RESULTS], row_lse[2], row_delta[2];
    UNROLL for (int i = 0; i < RESULTS; i++) dqs[i] = 0;
    UNROLL for (int side = 0; side < 2; side++) {
        row_lse[side] = lse[(long)batch * padded + row + 8 * side];
        row_delta[side] = delta[(long)batch * padded + row + 8 * side];
    }
    barrier_wait(OWN_FULL, 0);
    for (int tile = 0; tile < tiles; tile++) {
        const uint stage = tile % STAGES, own = anew(local_at);
        const uint keys = own + STAGES_AT + stage * STAGE_BYTES;
        const int column = tile * TILE + lane % 4 * 2;
        float p[SCORES], dz[SCORES];
#if APART  // values first: the next keys come last
        WAIT_FOR(1);
        PRODUCTS_BEGIN();
        HIGH_PRODUCTS(dz, own + TILE_BYTES, keys + TILE_BYTES);
        PRODUCTS_GO();
        WAIT_FOR(0);
        HIGH_PRODUCTS(p, own, keys);
        PRODUCTS_GO();
        PRODUCTS_WAIT(0);
        LOAD_NEXT(1);
#else
        WAIT_FOR(0);
        PRODUCTS_OF_TILES(p, dz, own, keys);
#endif
        APPLY_MASK(p, row, column, 0)
        EACH_SCORE p[i] = exp2_near(fma(p[i], UNIT, WEIGHTS_UP - row_lse[ROW_OF(i) / 8]));
        if (tile * TILE + TILE > MIN(first + ahead + 1, s))
            EACH_SCORE if (column + COLUMN_OF(i) > MIN(row + ROW_OF(i) + ahead, s - 1)) p[i] = 0;
        PRODUCTS_WAIT(0);
#if DROPOUT
        EACH_SCORE {
            const ulong index = ((ulong)batch * t + row + ROW_OF(i)) * s + column + COLUMN_OF(i);
            dz[i] = stays(index, dropout) ? dz[i] * kept : 0;
        }
#endif
        const float one_change = ONE_OF(2) * ONE_OF(3);
        EACH_SCORE p[i] *= dz[i] * one_change - row_delta[ROW_OF(i) / 8];
        uint changes[PARTS][TILE / 16][4];
        float change_rows[2];
        scale_rows(p, change_rows);
        pack(changes, p);
        PRODUCTS_BEGIN();
        ADD_WEIGHTED(dqs, changes, keys, change_rows);
        PRODUCTS_GO();
        PRODUCTS_WAIT(0);
        LOAD_NEXT(0);
    }
    const float dq_one = scale / (1 << WEIGHTS_UP) * ONE_OF(1), factor[2] = {dq_one, dq_one};
    STORE_ROWS(dq, dq_at, row, t, dqs, factor)
}
#endif
