// Attention of one query per batch, for GPUs: out = softmax(scale q k^T + mask) v. A work-group takes all keys, or
// work-groups share them, and a second kernel joins what they found. Of keys that a mask hides neither k nor v is read.
//
// A work-group is TEAMS teams of LANES work-items; a team takes AHEAD rows of k or v at a time, so that as many are on
// their way from memory, and a lane every LANES-th vector of them.
//
// Arrays   q (.., 1, D), k (.., s, D), v (.., s, DV), out (.., 1, DV), mask (.., 1, s) with layouts <name>_at as
//          attention_gpu.cl has them; lse (batch): the logarithm of the sum of the exponentials, inf if nothing is seen;
//          pieces (batch, parts, DV + 2): of some keys the weighted sum of v, the largest score, the sum of the weights,
//          which are exp(score - largest); null if WHOLE
// Launch   attention_decode: global (parts * WG, batch), local (WG, 1): parts = ceil(s / KEYS)
//          attention_join: global (WG, batch), local (WG, 1)
// Params   T, ACC, LOAD, STORE of the dtype | D, DV lengths of the last axes | KEYS of a work-group | WHOLE 1 if these
//          are all, so that it writes out and lse | PARTS parts, or a few more | WG, LANES work-items of a group, of a
//          team, powers of two | AHEAD rows of a work-item | MASK 0 none, 1 bool, 2 added to the scores; MASK_T,
//          MASK_LOAD | VECTOR elements of k and v that are read at once, 1 unless all rows begin at multiples of as
//          many and D and DV are such; DTYPE, RAW, WORD as DEFINE_VECTOR has them
#if !defined(T) || !defined(D) || !defined(DV) || !defined(KEYS) || !defined(WG) || !defined(LANES)
#error "attention_decode_gpu.cl needs a dtype's macros, D, DV, KEYS, WG and LANES"
#endif
#if !defined(MASK) || !defined(MASK_T)
#error "attention_decode_gpu.cl needs a mask's macros"
#endif

#if !defined(VECTOR) || !defined(DTYPE) || !defined(RAW) || !defined(WORD)
#error "attention_decode_gpu.cl needs VECTOR, DTYPE, RAW and WORD"
#endif

#if !defined(WHOLE) || !defined(AHEAD) || !defined(PARTS)
#error "attention_decode_gpu.cl needs WHOLE, AHEAD and PARTS"
#endif

#define TEAMS (WG / LANES)
#define ROUND (AHEAD * TEAMS)  // keys that a group takes at once
#define HELD (KEYS <= ROUND)   // then it asks for v together with k
#define FOLDS MIN(TEAMS, MAX(1, WG / DV))  // work-items that share a column's sum
#define SHARE(n) (((n) + LANES * VECTOR - 1) / (LANES * VECTOR))  // vectors of a lane
#define COLUMN(i) (((i) * LANES + lane) * VECTOR)                 // where its i-th begins
#define EACH_ELEMENT _Pragma("unroll") for (int e = 0; e < VECTOR; e++)
#define EACH_ROW _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
#define EACH_SHARE(n) _Pragma("unroll") for (int i = 0; i < SHARE(n); i++)
#define PIECE (DV + 2)
#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)

static inline size_t start_of(const long4 at, const long batch, const long inner) {
    return at.x + batch / inner * at.y + batch % inner * at.z;
}

// The largest of what the work-items have; everybody gets it. lanes holds WG elements.
#define FEW MIN(WG, 32)
static inline ACC largest_of(ACC v, const int me, __local ACC *lanes) {
    lanes[me] = v;
    SYNC;
    if (me < FEW) {
        for (int i = me + FEW; i < WG; i += FEW) v = MAX(lanes[i], v);
        lanes[me] = v;
    }
    SYNC;
    v = lanes[0];
    _Pragma("unroll") for (int i = 1; i < FEW; i++) v = MAX(lanes[i], v);
    return v;
}

// Elements as they are stored: to widen one waits for it, so all AHEAD are asked for before.
typedef union { WORD word; RAW each[VECTOR]; } Stored;
#define ASK_FOR(stored, p, is_seen) \
    stored.word = (WORD)(0); \
    if (is_seen) stored.word = *(__global const WORD *)(p)
#define WIDEN_NOW(dtype) widen_##dtype
#define WIDEN(dtype) WIDEN_NOW(dtype)

__kernel GROUP void attention_decode(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global ACC *restrict pieces, __global T *restrict out, const long4 out_at,
    __global ACC *restrict lse, const long inner, const long s, const ACC scale) {
    __local ACC parts[MAX(ROUND * (LANES + 1), TEAMS * DV)];  // of a key's score, later of a column's sum
    __local ACC weights[KEYS], lanes[WG], totals[TEAMS];
    const int me = get_local_id(0), lane = me % LANES, team = me / LANES;
    const long batch = get_group_id(1), k0 = get_group_id(0) * KEYS;
    const int keys = MIN(KEYS, s - k0);
    q += start_of(q_at, batch, inner);
    k += start_of(k_at, batch, inner) + k0 * k_at.w;
    v += start_of(v_at, batch, inner) + k0 * v_at.w;
    mask += start_of(mask_at, batch, inner) + k0 * mask_step;

    ACC query[SHARE(D)][VECTOR], top = -INFINITY;
    EACH_SHARE(D) EACH_ELEMENT query[i][e] = COLUMN(i) + e < D ? LOAD(q, COLUMN(i) + e) * scale : 0;
#if HELD
    Stored held[SHARE(DV)][AHEAD];
#endif
    for (int begin = 0; begin < keys; begin += ROUND) {
        ACC sum[AHEAD], added[AHEAD];
        EACH_ROW {
            const int j = begin + a * TEAMS + team;
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
            const int j = a * TEAMS + team, is_seen = added[a] != -INFINITY && COLUMN(i) < DV;
            ASK_FOR(held[i][a], v + j * v_at.w + COLUMN(i), is_seen);
        }
#endif
        EACH_SHARE(D) {
            Stored row[AHEAD];
            EACH_ROW {
                const int j = begin + a * TEAMS + team, is_seen = added[a] != -INFINITY && COLUMN(i) < D;
                ASK_FOR(row[a], k + j * k_at.w + COLUMN(i), is_seen);
            }
            EACH_ROW EACH_ELEMENT sum[a] += query[i][e] * WIDEN(DTYPE)(row[a].each[e]);
        }
        EACH_ROW {
            const int j = a * TEAMS + team;
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
    const ACC base = top == -INFINITY ? 0 : top;  // no key: not inf - inf
    for (int j = me; j < keys; j += WG) weights[j] = EXP(weights[j] - base);
    SYNC;

    ACC sums[SHARE(DV)][VECTOR], total = 0;
    EACH_SHARE(DV) EACH_ELEMENT sums[i][e] = 0;
    for (int begin = 0; begin < keys; begin += ROUND) {
        ACC weight[AHEAD];
        EACH_ROW {
            const int j = begin + a * TEAMS + team;
            weight[a] = j < keys ? weights[j] : 0;
            total += weight[a];
        }
        EACH_SHARE(DV) {
            Stored row[AHEAD];
            EACH_ROW {
                const int j = begin + a * TEAMS + team, is_due = weight[a] != 0 && COLUMN(i) < DV;
#if HELD
                row[a].word = is_due ? held[i][a].word : (WORD)(0);
#else
                ASK_FOR(row[a], v + j * v_at.w + COLUMN(i), is_due);
#endif
            }
            EACH_ROW EACH_ELEMENT sums[i][e] += weight[a] * WIDEN(DTYPE)(row[a].each[e]);
        }
    }
    EACH_SHARE(DV) EACH_ELEMENT if (COLUMN(i) + e < DV) parts[team * DV + COLUMN(i) + e] = sums[i][e];
    if (lane == 0) totals[team] = total;
    SYNC;
    // Each of FOLDS work-items adds every FOLDS-th team's, and leaves the sum in place of its first.
    const int fold = me / DV;
    if (fold < FOLDS)
        for (int d = me - fold * DV; d < DV; d += WG) {
            for (int n = fold + FOLDS; n < TEAMS; n += FOLDS) parts[fold * DV + d] += parts[n * DV + d];
            if (d == 0) for (int n = fold + FOLDS; n < TEAMS; n += FOLDS) totals[fold] += totals[n];
        }
    SYNC;
    total = 0;
    for (int n = 0; n < FOLDS; n++) total += totals[n];
#if WHOLE
    out += start_of(out_at, batch, inner);
#else
    pieces += (batch * get_num_groups(0) + get_group_id(0)) * PIECE;
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
    if (me == 0) lse[batch] = total == 0 ? INFINITY : top + log(total);
#else
    if (me == 0) pieces[DV] = top, pieces[DV + 1] = total;
#endif
}

#define EACH_PART _Pragma("unroll 16") for (int n = 0; n < PARTS; n++)  // so that several are on their way
#define OF_PART(n, what) pieces[MIN(n, parts - 1) * PIECE + (what)]        // of the last for what is none of them
#define FEW_PARTS (PARTS <= 256)              // then each weight is made once
#define ASKS_FIRST (PARTS <= 32 && DV <= WG)  // whether a work-item asks for its column before it knows the weights

__kernel GROUP void attention_join(__global const ACC *restrict pieces, const long parts, __global T *restrict out,
                                   const long4 out_at, __global ACC *restrict lse, const long inner) {
    __local ACC lanes[WG];
    const int me = get_local_id(0);
    const long batch = get_group_id(1);
    pieces += batch * parts * PIECE;
    out += start_of(out_at, batch, inner);
#if ASKS_FIRST
    ACC column[PARTS];
    EACH_PART column[n] = OF_PART(n, MIN(me, DV - 1));
#endif
    ACC top = -INFINITY, total = 0;
    for (int n = me; n < parts; n += WG) top = MAX(OF_PART(n, DV), top);
    top = largest_of(top, me, lanes);
    const ACC base = top == -INFINITY ? 0 : top;
#if FEW_PARTS
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
#if ASKS_FIRST
        EACH_PART sum += n < parts ? WEIGHT * column[n] : 0;
#else
        EACH_PART sum += n < parts ? WEIGHT * OF_PART(n, d) : 0;
#endif
        STORE(out, d, total == 0 ? 0 : sum / total);
    }
    if (me == 0) lse[batch] = total == 0 ? INFINITY : top + log(total);
}
