// Decode attention (up to 8 queries per batch entry, such as those that share keys in grouped-query attention) on the
// matrix units of NVIDIA GPUs from Ampere on (mma.sync): out = softmax(scale q k^T + mask) v. It is bound by the
// bandwidth of k and v, which are read once for all queries. Rows of k and v whose key is masked are not read. It may
// also store a new row of k and of v, as an update of a key-value cache does.
//
// The keys are parts of keys_per_part, in order. A team of WARPS warps computes a part, a work-group with WHOLE all parts
// of a batch entry, TEAMS at a time, otherwise one (split-KV). Parts are joined in their order: with WHOLE in registers,
// otherwise by the last work-group of a batch entry to end. Parts in which every key is masked are left out. So the bits
// of a result depend neither on the batch nor on masked keys, as long as keys_per_part is the same.
//
// A warp takes CHUNK keys at a time, straight from global memory to registers, with an online softmax. It prefetches its
// first chunk to the L2 cache while the kernel before still runs, and with PREFETCHES each next one while it computes.
// q k^T has the queries as rows and 8 keys as columns of an instruction; a lane takes 8 neighboring numbers of a key where
// the instruction expects pairs from 4 places: their order is free, as long as it is the same for q. Its result has the
// layout of the first operand of weights @ v, for which two rows of v become pairs by byte permutations.
//
// Arrays   q (.., t, D), not `restrict`, for then its loads might move to before AWAIT_BEFORE; k, v (.., s, D), whose rows
//          begin at multiples of 16 bytes; out (.., t, D); mask (.., t, s); with layouts <name>_at, and `group`, as in
//          attention_gpu.cl
//          new_k, new_v (.., D): rows for k and v at the position in `place`; all are null if there are none. Their
//          layouts are like the others, but the inner axis has length `heads`.
//          lse (batch, t) of float: the logarithm of the sum of the exponentials; inf if every key is masked
//          pieces (batch, parts, t, D + 2) of float: results of parts: the weighted sum of v, the largest score, and the
//          sum of the weights exp(score - largest); null with WHOLE
//          ended (batch): how many work-groups of a batch entry have ended; 0 before and after; null with WHOLE
// Launch   global (32 * groups, batch * TEAMS * WARPS), local (32, TEAMS * WARPS), where groups is 1 with WHOLE, otherwise
//          parts = ceil(s / keys_per_part), which is at most 32
// Params   T, LOAD, STORE, KIND   the dtype: see prelude.cl; KIND is its PTX name
//          D                      length of the last axes, a multiple of 64, at most 128
//          WARPS                  warps of a team
//          TEAMS, WHOLE           as above; one team unless WHOLE
//          MASK                   0 none, 1 bool, 2 added to the scores
//          MASK_T, MASK_LOAD      dtype of the mask
#include "ptx.cl"
#if !defined(D) || !defined(WARPS) || !defined(TEAMS) || !defined(WHOLE)
#error "attention_few.cl needs D, WARPS, TEAMS and WHOLE"
#endif
#if !defined(MASK) || !defined(MASK_T) || !defined(MASK_LOAD)
#error "attention_few.cl needs MASK, MASK_T and MASK_LOAD"
#endif

#define QUERIES 8
#define WG (TEAMS * WARPS * 32)
#define OUTPUTS ((QUERIES * D + WG - 1) / WG)  // of a work-item
#define EACH_OUTPUT UNROLL for (int i = 0, at = flat; i < OUTPUTS; i++, at += WG) if (at < t * D)
#define CHUNK (2048 / D)             // keys that a warp takes at once, a multiple of 16
#define TILES (CHUNK / 8)            // of keys
#define K_LOADS (D / 32)             // of 16 bytes, for a lane's share of a row of k
#define V_LOADS (D / 64)             // likewise of v
#define LINES (D / 64)               // of the cache, in a row; a chunk of rows has one for each lane
#define PREFETCHES (WHOLE && D > 64) // rows of 64 would take up to a tenth longer
#define PITCH 33                     // of what the lanes of a warp hold, in local memory, so that they meet in no bank
#define AT_ONCE 4                    // loads of the mask
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#if MASK == 2
#define IS_SEEN(v) ((v) != -INFINITY)
#else
#define IS_SEEN(v) ((v) != 0)
#endif

// The parts with keys that are seen, as warps found them, and the one with the new row; if there is none, the first one,
// which writes zeros.
#define WITH_NEW (any_of_warp(seen_parts[lane % (TEAMS * WARPS)]) | (position < 0 ? 0 : 1u << position / keys_per_part))
#define PARTS_LEFT left_or_first(WITH_NEW)
INLINE uint left_or_first(uint parts) { return parts ? parts : 1; }

// Where an array's rows of a batch entry begin.
INLINE size_t start_of(const long4 at, const uint batch, const uint inner) {
    return at.x + batch / inner * at.y + batch % inner * at.z;
}
// The lanes, as bits, for which a condition holds.
INLINE uint ballot(int condition) {
    uint lanes;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %1, 0;\nvote.sync.ballot.b32 %0, p, 0xffffffff;\n}"
                 : "=r"(lanes) : "r"(condition));
    return lanes;
}
// The bits that are set in any lane.
INLINE uint any_of_warp(uint bits) {
    uint found;
    asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(found) : "r"(bits));
    return found;
}
// The value of the lane whose number differs in one bit.
INLINE float other_lane(float v, int bit) {
    float found;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(found) : "f"(v), "r"(bit));
    return found;
}
// The lower or the upper halves of two words.
INLINE uint lower_halves(uint first, uint second) {
    uint pair;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(pair) : "r"(first), "r"(second));
    return pair;
}
INLINE uint upper_halves(uint first, uint second) {
    uint pair;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(pair) : "r"(first), "r"(second));
    return pair;
}
// Load 16 bytes, or zeros unless is_used. Without branches, around which a compiler may copy what follows: all lanes must
// meet in one and the same instruction of a warp.
INLINE void load_if(uint *v, __global const T *from, int is_used) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=&r"(v[0]), "=&r"(v[1]), "=&r"(v[2]), "=&r"(v[3]) : "l"(from), "r"(is_used) : "memory");
}

// Prefetch the rows of a chunk that are before an end to the L2 cache.
INLINE void prefetch(__global const T *rows, long step, int first, int end, int lane) {
    const int key = first + lane / LINES;
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %1, %2;\n@p prefetch.global.L2 [%0];\n}"
                 ::"l"(rows + key * step + lane % LINES * 64), "r"(key), "r"(end));
}

// Results of keys: a column of the weighted sum of v, the largest score, and the sum of the weights.
typedef struct { float sum, top, total; } Result;

// Join the results of other keys.
INLINE void join(Result *r, float sum, float top, float total) {
    const float largest = MAX(top, r->top), base = largest == -INFINITY ? 0 : largest;
    const float before = EXP_TO_T(r->top - base), now = EXP_TO_T(top - base);
    r->sum = fma(r->sum, before, sum * now);
    r->total = fma(r->total, before, total * now);
    r->top = largest;
}

__kernel __attribute__((reqd_work_group_size(32, TEAMS * WARPS, 1))) void attention_few(
        __global const T *q, const long4 q_at, __global T *k, const long4 k_at, __global T *v, const long4 v_at,
        __global const MASK_T *restrict mask, const long4 mask_at, const long mask_step, __global const T *new_k,
        const long4 new_k_at, __global const T *new_v, const long4 new_v_at, const int heads, __global const int *place,
        __global float *pieces, __global volatile int *ended, __global T *restrict out,
        const long4 out_at, __global float *restrict lse, const long inner, const long group, const int t, const int s,
        const int keys_per_part, const int parts, const float scale) {
    __local float sums[TEAMS * WARPS][D / 4][PITCH], tops[TEAMS * WARPS][QUERIES], totals[TEAMS * WARPS][QUERIES];
    __local uint seen_parts[TEAMS * WARPS], is_last;
    const int lane = get_local_id(0), warp = get_local_id(1), own = lane / 4, quarter = lane % 4;
    const int team = warp / WARPS, flat = warp * 32 + lane, own_row = MIN(own, t - 1);
    const int batch = get_group_id(1), position = place ? *place : -1;
    q += start_of(q_at, batch, inner);
    k += start_of(k_at, batch / group, inner / group);
    v += start_of(v_at, batch / group, inner / group);
    mask += start_of(mask_at, batch, inner);
    out += start_of(out_at, batch, inner);
    new_k += start_of(new_k_at, batch, heads);
    new_v += start_of(new_v_at, batch, heads);
    const int earliest = (WHOLE ? team : get_group_id(0)) * keys_per_part + warp % WARPS * CHUNK;  // of the warp's keys

#if MASK
    const int rows = mask_at.w == 0 ? 1 : t;  // of the mask, that differ
    uint is_seen = 0, found_parts = 0;
    for (int row = 0; row < rows; row++)
        is_seen |= IS_SEEN(MASK_LOAD(mask + row * mask_at.w, MIN(earliest + lane % CHUNK, s - 1) * mask_step));
    for (int part = warp; part < parts; part += TEAMS * WARPS) {
        int any = 0;
        const int begin = part * keys_per_part, last = MIN(s, begin + keys_per_part) - 1;
        for (int row = 0; row < rows; row++)
            for (int from = begin + lane; from <= last; from += 32 * AT_ONCE)
                UNROLL for (int i = 0; i < AT_ONCE; i++)  // clamped: all loads are in flight at once
                    any |= IS_SEEN(MASK_LOAD(mask + row * mask_at.w, MIN(from + 32 * i, last) * mask_step));
        found_parts |= (uint)any << part;
    }
    found_parts = any_of_warp(found_parts);
    if (lane == 0) seen_parts[warp] = found_parts;
    const int prefetch_end = any_of_warp(is_seen) ? s : 0;
#else
    const int prefetch_end = s;
#endif
    prefetch(k, k_at.w, earliest, prefetch_end, lane);
    prefetch(v, v_at.w, earliest, prefetch_end, lane);
    AWAIT_BEFORE();
    ALLOW_NEXT();
    uint query[K_LOADS][4];  // pairs of a lane's query; those past t are zeros
    UNROLL for (int i = 0; i < K_LOADS; i++) UNROLL for (int w = 0; w < 4; w++) {
        const long at = own_row * q_at.w + i * 32 + quarter * 8 + w * 2;
        const uint pair = pack_pair(LOAD(q, at), LOAD(q, at + 1));
        query[i][w] = own < t ? pair : 0;
    }
#if MASK && !WHOLE
    SYNC;
    const uint parts_left = PARTS_LEFT;
#else
    uint parts_left = parts == 32 ? ~0u : (1u << parts) - 1;  // WHOLE: each warp looks for itself in the first round
#endif
    // Nobody reads these rows: what is new is taken from where it was.
    if (position >= 0 && (WHOLE || get_group_id(0) == position / keys_per_part) && flat < D / 4) {
        const int piece = flat % (D / 8) * 8;
        __global T *row = flat < D / 8 ? k + position * k_at.w : v + position * v_at.w;
        *(__global uint4 *)(row + piece) = *(__global const uint4 *)((flat < D / 8 ? new_k : new_v) + piece);
    }
    Result results[OUTPUTS];
    EACH_OUTPUT { results[i].sum = results[i].total = 0; results[i].top = -INFINITY; }

#if WHOLE
    for (int round = 0; round < parts; round += TEAMS) {
        if (round && !(parts_left >> round & ((1u << TEAMS) - 1))) continue;
#else
    {
        const int round = get_group_id(0);
        if (!(parts_left >> round & 1)) return;
#endif
#if PREFETCHES
        int after = round + TEAMS;  // the next round
        while (after < parts && !(parts_left >> after & ((1u << TEAMS) - 1))) after += TEAMS;
        const int is_known = !MASK || round, is_next = is_known && after < parts && parts_left >> (after + team) & 1;
#endif
        const int begin = (round + team) * keys_per_part, end = MIN(s, begin + keys_per_part);
        float sum[D / 8][4], top = -INFINITY, total = 0;
        UNROLL for (int j = 0; j < D / 8; j++) UNROLL for (int e = 0; e < 4; e++) sum[j][e] = 0;
        for (int first = begin + warp % WARPS * CHUNK; first < end; first += WARPS * CHUNK) {
            // As bits: the keys that the lane's query sees, and those that any query sees.
            uint seen = (uint)(((ulong)1 << MIN(end - first, CHUNK)) - 1), any = seen;
#if MASK
            seen = any = 0;
            for (int row = 0; row < rows; row++) {
                const int key = MIN(first + lane, end - 1), is_own = lane < CHUNK && first + lane < end;
                const uint found = ballot(is_own & IS_SEEN(MASK_LOAD(mask + row * mask_at.w, key * mask_step)));
                any |= found;
                seen = MIN(row, own_row) == row ? found : seen;
            }
#endif
            if (!any && (position < first || position >= first + CHUNK)) continue;
            uint keys[TILES][K_LOADS][4], values[TILES][2][V_LOADS][4];
            UNROLL for (int n = 0; n < TILES; n++) {
                const int key = first + n * 8 + own, is_new = key == position;
                __global const T *from = (is_new ? new_k : k + key * k_at.w) + quarter * 8;
                UNROLL for (int i = 0; i < K_LOADS; i++)
                    load_if(keys[n][i], from + i * 32, (any >> (n * 8 + own) & 1) | is_new);
            }
            UNROLL for (int n = 0; n < TILES; n++) UNROLL for (int e = 0; e < 2; e++) {
                const int key = first + n * 8 + quarter * 2 + e, is_new = key == position;
                __global const T *from = (is_new ? new_v : v + key * v_at.w) + own * 8;
                UNROLL for (int i = 0; i < V_LOADS; i++)
                    load_if(values[n][e][i], from + i * 64, (any >> (n * 8 + quarter * 2 + e) & 1) | is_new);
            }
#if PREFETCHES
            int next = first + WARPS * CHUNK;
            if (next >= begin + keys_per_part) next = is_next ? next + (after - round - 1) * keys_per_part : s;
            prefetch(k, k_at.w, next, s, lane);
            prefetch(v, v_at.w, next, s, lane);
#endif
            float score[TILES][2], largest = top;
            UNROLL for (int n = 0; n < TILES; n++) {
                float product[4] = {0, 0, 0, 0};
                UNROLL for (int i = 0; i < K_LOADS; i++) UNROLL for (int w = 0; w < 4; w += 2) {
                    const uint rows[4] = {query[i][w], 0, query[i][w + 1], 0};
                    mma(product, rows, keys[n][i] + w);
                }
                UNROLL for (int e = 0; e < 2; e++) {
                    const int at = n * 8 + quarter * 2 + e;
                    float added = 0;
#if MASK == 2
                    added = MASK_LOAD(mask + own_row * mask_at.w, MIN(first + at, end - 1) * mask_step);
#endif
                    score[n][e] = seen >> at & 1 ? fma(product[e], scale, added) : -INFINITY;
                    largest = MAX(score[n][e], largest);
                }
            }
            UNROLL for (int bit = 1; bit <= 2; bit *= 2) {  // over the lanes of a query
                const float other = other_lane(largest, bit);
                largest = MAX(other, largest);
            }
            const float base = largest == -INFINITY ? 0 : largest, shrink = EXP_TO_T(top - base);
            top = largest;
            total *= shrink;
            UNROLL for (int j = 0; j < D / 8; j++) UNROLL for (int e = 0; e < 2; e++) sum[j][e] *= shrink;
            UNROLL for (int n = 0; n < TILES; n += 2) {
                uint weights[4] = {0, 0, 0, 0};
                UNROLL for (int h = 0; h < 2; h++) {
                    const float left = EXP_TO_T(score[n + h][0] - base), right = EXP_TO_T(score[n + h][1] - base);
                    total += left + right;
                    weights[2 * h] = pack_pair(left, right);
                }
                UNROLL for (int i = 0; i < V_LOADS; i++) UNROLL for (int w = 0; w < 4; w++) {
                    const uint low[2] = {lower_halves(values[n][0][i][w], values[n][1][i][w]),
                                         lower_halves(values[n + 1][0][i][w], values[n + 1][1][i][w])};
                    const uint high[2] = {upper_halves(values[n][0][i][w], values[n][1][i][w]),
                                          upper_halves(values[n + 1][0][i][w], values[n + 1][1][i][w])};
                    mma(sum[i * 8 + 2 * w], weights, low);
                    mma(sum[i * 8 + 2 * w + 1], weights, high);
                }
            }
        }
        total += other_lane(total, 1);
        total += other_lane(total, 2);
        UNROLL for (int j = 0; j < D / 8; j++) UNROLL for (int e = 0; e < 2; e++) sums[warp][2 * j + e][lane] = sum[j][e];
        if (quarter == 0) tops[warp][own] = top, totals[warp][own] = total;
        SYNC;
        EACH_OUTPUT {
            const int row = at / D, c = at % D, of_eight = c / 8 % 8;  // sum[j][e] of a quarter is of column c
            const int j = c / 64 * 8 + c % 8, e = of_eight % 2, owner = row * 4 + of_eight / 2;
            UNROLL for (int first = 0; first < TEAMS * WARPS; first += WARPS) {
                float largest = -INFINITY, part = 0, part_total = 0;
                UNROLL for (int w = first; w < first + WARPS; w++) largest = MAX(largest, tops[w][row]);
                UNROLL for (int w = first; w < first + WARPS; w++) {
                    const float share = tops[w][row] == -INFINITY ? 0 : EXP_TO_T(tops[w][row] - largest);
                    part = fma(sums[w][2 * j + e][owner], share, part);
                    part_total = fma(totals[w][row], share, part_total);
                }
                join(&results[i], part, largest, part_total);
            }
        }
#if MASK && WHOLE
        parts_left = PARTS_LEFT;
#endif
        SYNC;
    }
#if !WHOLE
    if (popcount(parts_left) > 1) {
        const int row_length = D + 2;
        EACH_OUTPUT {
            __global float *row = pieces + ((batch * parts + get_group_id(0)) * t + at / D) * row_length;
            row[at % D] = results[i].sum;
            if (at % D == 0) row[D] = results[i].top, row[D + 1] = results[i].total;
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (flat == 0) {
            FENCE_GPU();
            is_last = atomic_inc(ended + batch) == popcount(parts_left) - 1;
            FENCE_GPU();
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (!is_last) return;
        if (flat == 0) ended[batch] = 0;
        EACH_OUTPUT { results[i].sum = results[i].total = 0; results[i].top = -INFINITY; }
        _Pragma("unroll 4") for (int p = 0; p < parts; p++) {
            float row[OUTPUTS][3];
            UNROLL for (int i = 0; i < OUTPUTS; i++) {  // clamped: all loads are in flight at once
                const int at = MIN(flat + i * WG, t * D - 1);
                __global const float *from = pieces + ((batch * parts + p) * t + at / D) * (D + 2);
                row[i][0] = from[at % D], row[i][1] = from[D], row[i][2] = from[D + 1];
            }
            if (parts_left >> p & 1) EACH_OUTPUT join(&results[i], row[i][0], row[i][1], row[i][2]);
        }
    }
#endif
    EACH_OUTPUT {
        const Result r = results[i];
        STORE(out + at / D * out_at.w, at % D, r.total == 0 ? 0 : r.sum / r.total);
        if (at % D == 0) lse[batch * t + at / D] = r.total == 0 ? INFINITY : r.top + log(r.total);
    }
}
