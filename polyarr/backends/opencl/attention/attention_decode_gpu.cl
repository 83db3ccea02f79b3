// Decode attention (few queries per batch entry) on GPUs: out = softmax(scale q k^T + mask) v. Either one work-group
// reads all keys for a query, or the keys are split across work-groups and attention_join combines their partial results
// (split-K). Rows of k and v whose key is masked are not read.
//
// A work-group is SETS sets of LANES work-items. A set processes AHEAD rows of k or v at a time, so that many loads
// are in flight; the lanes of a set share a row, each taking every LANES-th vector.
//
// Arrays   q (.., t, D); k (.., s, D); v (.., s, DV); out (.., t, DV); mask (.., t, s)
//          with layouts <name>_at, and `group`, as in attention_gpu.cl
//          lse (batch, t) of ACC: the logarithm of the sum of the exponentials; inf if every key is masked
//          pieces (batch, t, parts, DV + 2) of ACC: partial results of a split: the weighted sum of v, the largest score,
//          and the sum of the weights exp(score - largest); null if WHOLE
// Launch   attention_decode: global (parts * WG, batch * t), local (WG, 1), where parts = ceil(s / KEYS)
//          attention_join: global (WG, batch * t), local (WG, 1)
// Params   T, ACC, LOAD, STORE    the dtype: see prelude.cl
//          D, DV                  lengths of the last axes
//          KEYS                   keys per work-group
//          WHOLE                  1 if KEYS covers all keys: the kernel writes out and lse, and no join follows
//          PARTS                  upper bound of parts
//          WG, LANES              work-items per group and per set, powers of two
//          AHEAD                  rows that a work-item has in flight
//          MASK                   0 none, 1 bool, 2 added to the scores
//          MASK_T, MASK_LOAD      dtype of the mask
//          VECTOR                 elements of k and v per load; more than 1 only if all rows begin at multiples of
//                                 VECTOR and it divides D and DV
//          DTYPE, RAW, WORD       see DEFINE_VECTOR in prelude.cl
#include "attention_starts.cl"

#define SETS (WG / LANES)
#define ROUND (AHEAD * SETS)  // keys that a group processes at once
#define HELD (KEYS <= ROUND)   // one round is enough: v is loaded together with k and held in registers
#define FOLDS MIN(SETS, MAX(1, WG / DV))  // work-items that add up one column together
#define SHARE(n) (((n) + LANES * VECTOR - 1) / (LANES * VECTOR))  // vectors of a lane
#define COLUMN(i) (((i) * LANES + lane) * VECTOR)                 // first column of its i-th vector
#define EACH_ELEMENT _Pragma("unroll") for (int e = 0; e < VECTOR; e++)
#define EACH_ROW _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
#define EACH_SHARE(n) _Pragma("unroll") for (int i = 0; i < SHARE(n); i++)
#define PIECE (DV + 2)
#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)

// Return the maximum of v over the work-group to all its work-items. `lanes` holds WG elements.
#define STAGED MIN(WG, 32)
static inline ACC largest_of(ACC v, const int me, __local ACC *lanes) {
    lanes[me] = v;
    SYNC;
    if (me < STAGED) {
        for (int i = me + STAGED; i < WG; i += STAGED) v = MAX(lanes[i], v);
        lanes[me] = v;
    }
    SYNC;
    v = lanes[0];
    _Pragma("unroll") for (int i = 1; i < STAGED; i++) v = MAX(lanes[i], v);
    return v;
}

// Elements in their storage type: widening waits for the load, so all AHEAD loads are issued before any is widened.
typedef union { WORD word; RAW each[VECTOR]; } Stored;
#define LOAD_IF(stored, p, is_visible) \
    stored.word = (WORD)(0); \
    if (is_visible) stored.word = *(__global const WORD *)(p)

__kernel GROUP void attention_decode(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global ACC *restrict pieces, __global T *restrict out, const long4 out_at,
    __global ACC *restrict lse, const long inner, const long group, const long t, const long s,
    const ACC scale) {
    __local ACC parts[MAX(ROUND * (LANES + 1), SETS * DV)];  // partial scores, later partial sums of columns
    __local ACC weights[KEYS], lanes[WG], totals[SETS];
    const int me = get_local_id(0), lane = me % LANES, set = me / LANES;
    const long n = get_group_id(1), batch = n / t, k0 = get_group_id(0) * KEYS;
    const int keys = MIN(KEYS, s - k0);
    q += start_of_row(q_at, n, inner, t);
    k += start_of(k_at, batch / group, inner / group) + k0 * k_at.w;
    v += start_of(v_at, batch / group, inner / group) + k0 * v_at.w;
    mask += start_of_row(mask_at, n, inner, t) + k0 * mask_step;

    ACC query[SHARE(D)][VECTOR], top = -INFINITY;
    EACH_SHARE(D) EACH_ELEMENT query[i][e] = COLUMN(i) + e < D ? LOAD(q, COLUMN(i) + e) * scale : 0;
#if HELD
    Stored held[SHARE(DV)][AHEAD];
#endif
    for (int begin = 0; begin < keys; begin += ROUND) {
        ACC sum[AHEAD], added[AHEAD];
        EACH_ROW {
            const int j = begin + a * SETS + set;
            added[a] = j < keys ? 0 : -INFINITY;
#if MASK == 1
            if (j < keys && !MASK_LOAD(mask, j * mask_step)) added[a] = -INFINITY;
#elif MASK == 2
            if (j < keys) added[a] = MASK_LOAD(mask, j * mask_step);
#endif
            sum[a] = 0;
        }
#if HELD
        EACH_SHARE(DV) EACH_ROW {
            const int j = a * SETS + set, is_visible = added[a] != -INFINITY && COLUMN(i) < DV;
            LOAD_IF(held[i][a], v + j * v_at.w + COLUMN(i), is_visible);
        }
#endif
        EACH_SHARE(D) {
            Stored row[AHEAD];
            EACH_ROW {
                const int j = begin + a * SETS + set, is_visible = added[a] != -INFINITY && COLUMN(i) < D;
                LOAD_IF(row[a], k + j * k_at.w + COLUMN(i), is_visible);
            }
            EACH_ROW EACH_ELEMENT sum[a] += query[i][e] * PASTE(widen_, DTYPE)(row[a].each[e]);
        }
        EACH_ROW {
            const int j = a * SETS + set;
            parts[j * (LANES + 1) + lane] = sum[a];
            if (lane == 0 && begin + j < KEYS) weights[begin + j] = added[a];
        }
        SYNC;
        for (int j = me; j < ROUND && begin + j < KEYS; j += WG) {
            ACC score = weights[begin + j];
            if (score == -INFINITY) continue;
            _Pragma("unroll") for (int i = 0; i < LANES; i++) score += parts[j * (LANES + 1) + i];
            weights[begin + j] = score;
            top = MAX(score, top);
        }
        SYNC;
    }
    top = largest_of(top, me, lanes);
    const ACC base = top == -INFINITY ? 0 : top;  // all masked: avoid inf - inf
    for (int j = me; j < keys; j += WG) weights[j] = EXP(weights[j] - base);
    SYNC;

    ACC sums[SHARE(DV)][VECTOR], total = 0;
    EACH_SHARE(DV) EACH_ELEMENT sums[i][e] = 0;
    for (int begin = 0; begin < keys; begin += ROUND) {
        ACC weight[AHEAD];
        EACH_ROW {
            const int j = begin + a * SETS + set;
            weight[a] = j < keys ? weights[j] : 0;
            total += weight[a];
        }
        EACH_SHARE(DV) {
            Stored row[AHEAD];
            EACH_ROW {
                const int j = begin + a * SETS + set, is_used = weight[a] != 0 && COLUMN(i) < DV;
#if HELD
                row[a].word = is_used ? held[i][a].word : (WORD)(0);
#else
                LOAD_IF(row[a], v + j * v_at.w + COLUMN(i), is_used);
#endif
            }
            EACH_ROW EACH_ELEMENT sums[i][e] += weight[a] * PASTE(widen_, DTYPE)(row[a].each[e]);
        }
    }
    EACH_SHARE(DV) EACH_ELEMENT if (COLUMN(i) + e < DV) parts[set * DV + COLUMN(i) + e] = sums[i][e];
    if (lane == 0) totals[set] = total;
    SYNC;
    // Each of FOLDS work-items adds the partial sums of every FOLDS-th set, in place of the first of them.
    const int fold = me / DV;
    if (fold < FOLDS)
        for (int d = me - fold * DV; d < DV; d += WG) {
            for (int n = fold + FOLDS; n < SETS; n += FOLDS) parts[fold * DV + d] += parts[n * DV + d];
            if (d == 0) for (int n = fold + FOLDS; n < SETS; n += FOLDS) totals[fold] += totals[n];
        }
    SYNC;
    total = 0;
    for (int n = 0; n < FOLDS; n++) total += totals[n];
#if WHOLE
    out += start_of_row(out_at, n, inner, t);
#else
    pieces += (n * get_num_groups(0) + get_group_id(0)) * PIECE;
#endif
    for (int d = me; d < DV; d += WG) {
        ACC sum = 0;
        for (int n = 0; n < FOLDS; n++) sum += parts[n * DV + d];
#if WHOLE
        STORE(out, d, total == 0 ? 0 : sum / total);
#else
        pieces[d] = sum;
#endif
    }
#if WHOLE
    if (me == 0) lse[n] = total == 0 ? INFINITY : top + log(total);
#else
    if (me == 0) pieces[DV] = top, pieces[DV + 1] = total;
#endif
}

#define EACH_PART _Pragma("unroll 16") for (int n = 0; n < PARTS; n++)  // unrolled: several loads in flight
#define OF_PART(n, what) pieces[MIN(n, parts - 1) * PIECE + (what)]        // clamped: parts past the end get weight 0
#define CACHES_WEIGHTS (PARTS <= 256)              // few enough for local memory: each weight is computed once
#define LOADS_FIRST (PARTS <= 32 && DV <= WG)  // a work-item can load its column before the weights are known

__kernel GROUP void attention_join(__global const ACC *restrict pieces, const long parts, __global T *restrict out,
                                   const long4 out_at, __global ACC *restrict lse, const long inner, const long t) {
    __local ACC lanes[WG];
    const int me = get_local_id(0);
    const long query = get_group_id(1);
    pieces += query * parts * PIECE;
    out += start_of_row(out_at, query, inner, t);
#if LOADS_FIRST
    ACC column[PARTS];
    EACH_PART column[n] = OF_PART(n, MIN(me, DV - 1));
#endif
    ACC top = -INFINITY, total = 0;
    for (int n = me; n < parts; n += WG) top = MAX(OF_PART(n, DV), top);
    top = largest_of(top, me, lanes);
    const ACC base = top == -INFINITY ? 0 : top;
#if CACHES_WEIGHTS
    __local ACC weights[PARTS], totals[PARTS];
    for (int n = me; n < PARTS; n += WG) {
        weights[n] = n < parts ? EXP(OF_PART(n, DV) - base) : 0;
        totals[n] = n < parts ? weights[n] * OF_PART(n, DV + 1) : 0;
    }
    SYNC;
    EACH_PART total += totals[n];
#define WEIGHT weights[n]
#else
#define WEIGHT EXP(OF_PART(n, DV) - base)
    EACH_PART total += n < parts ? WEIGHT * OF_PART(n, DV + 1) : 0;
#endif
    for (int d = me; d < DV; d += WG) {
        ACC sum = 0;
#if LOADS_FIRST
        EACH_PART sum += n < parts ? WEIGHT * column[n] : 0;
#else
        EACH_PART sum += n < parts ? WEIGHT * OF_PART(n, d) : 0;
#endif
        STORE(out, d, total == 0 ? 0 : sum / total);
    }
    if (me == 0) lse[query] = total == 0 ? INFINITY : top + log(total);
}
