// Attention of one query per batch, for GPUs: out = softmax(scale q k^T + mask) v. Work-groups share the keys, and a
// second kernel joins what they found. Of keys that a mask hides neither k nor v is read.
//
// A work-group is TEAMS teams of LANES work-items; a team takes AHEAD rows of k or v at a time, so that as many are on
// their way from memory, and a lane every LANES-th vector of them.
//
// Arrays   q (.., 1, D), k (.., s, D), v (.., s, DV), out (.., 1, DV), mask (.., 1, s) with layouts <name>_at as
//          attention_gpu.cl has them; lse (batch): the logarithm of the sum of the exponentials, inf if nothing is seen;
//          pieces (batch, parts, DV + 2): of some keys the weighted sum of v, the largest score, the sum of the weights,
//          which are exp(score - largest)
// Launch   attention_decode: global (parts * WG, batch), local (WG, 1): parts = ceil(s / KEYS)
//          attention_join: global (WG, batch), local (WG, 1)
// Params   T, ACC, LOAD, STORE of the dtype | D, DV lengths of the last axes | KEYS of a work-group | WG, LANES work-items
//          of a group, of a team | MASK 0 none, 1 bool, 2 added to the scores; MASK_T, MASK_LOAD | VECTOR elements of k
//          and v that are read at once, 1 unless all rows begin at multiples of as many and D and DV are such; DTYPE, RAW,
//          WORD as DEFINE_VECTOR has them
#if !defined(T) || !defined(D) || !defined(DV) || !defined(KEYS) || !defined(WG) || !defined(LANES)
#error "attention_decode_gpu.cl needs a dtype's macros, D, DV, KEYS, WG and LANES"
#endif
#if !defined(MASK) || !defined(MASK_T)
#error "attention_decode_gpu.cl needs a mask's macros"
#endif

#if !defined(VECTOR) || !defined(DTYPE) || !defined(RAW) || !defined(WORD)
#error "attention_decode_gpu.cl needs VECTOR, DTYPE, RAW and WORD"
#endif

#define TEAMS (WG / LANES)
#define AHEAD 4
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

// The largest, or the sum, of what the work-items have; everybody gets it. lanes holds WG elements.
#define ACROSS(result, lanes, join) \
    lanes[me] = result; \
    for (int step = WG / 2; step > 0; step /= 2) { \
        SYNC; \
        if (me < step) lanes[me] = join(lanes[me], lanes[me + step]); \
    } \
    SYNC; \
    result = lanes[0]; \
    SYNC
#define PLUS(a, b) ((a) + (b))

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
    const long mask_step, __global ACC *restrict pieces, const long inner, const long s, const ACC scale) {
    __local ACC parts[MAX(KEYS * (LANES + 1), TEAMS * DV)];  // of a key's score, later of a column's sum
    __local ACC weights[KEYS], lanes[WG];
    const int me = get_local_id(0), lane = me % LANES, team = me / LANES;
    const long batch = get_group_id(1), k0 = get_group_id(0) * KEYS;
    const int keys = MIN(KEYS, s - k0);
    q += start_of(q_at, batch, inner);
    k += start_of(k_at, batch, inner) + k0 * k_at.w;
    v += start_of(v_at, batch, inner) + k0 * v_at.w;
    mask += start_of(mask_at, batch, inner) + k0 * mask_step;
    pieces += (batch * get_num_groups(0) + get_group_id(0)) * PIECE;

    for (int j = me; j < KEYS; j += WG) {
        weights[j] = j < keys ? 0 : -INFINITY;
#if MASK == 1
        if (j < keys && !MASK_LOAD(mask, j * mask_step)) weights[j] = -INFINITY;
#elif MASK == 2
        if (j < keys) weights[j] = MASK_LOAD(mask, j * mask_step);
#endif
    }
    ACC query[SHARE(D)][VECTOR];
    EACH_SHARE(D) EACH_ELEMENT query[i][e] = COLUMN(i) + e < D ? LOAD(q, COLUMN(i) + e) * scale : 0;
    SYNC;
    for (int first = team; first < keys; first += AHEAD * TEAMS) {
        ACC sum[AHEAD];
        Stored row[AHEAD];
        EACH_ROW sum[a] = 0;
        EACH_SHARE(D) {
            EACH_ROW {
                const int j = first + a * TEAMS, is_seen = j < keys && weights[j] != -INFINITY && COLUMN(i) < D;
                ASK_FOR(row[a], k + j * k_at.w + COLUMN(i), is_seen);
            }
            EACH_ROW EACH_ELEMENT sum[a] += query[i][e] * WIDEN(DTYPE)(row[a].each[e]);
        }
        EACH_ROW if (first + a * TEAMS < keys) parts[(first + a * TEAMS) * (LANES + 1) + lane] = sum[a];
    }
    SYNC;
    ACC top = -INFINITY;
    for (int j = me; j < keys; j += WG)
        if (weights[j] != -INFINITY) {
            ACC score = weights[j];
            for (int i = 0; i < LANES; i++) score += parts[j * (LANES + 1) + i];
            weights[j] = score;
            top = MAX(score, top);
        }
    ACROSS(top, lanes, MAX);
    const ACC base = top == -INFINITY ? 0 : top;  // no key: not inf - inf
    ACC total = 0;
    for (int j = me; j < KEYS; j += WG) total += weights[j] = EXP(weights[j] - base);
    ACROSS(total, lanes, PLUS);

    ACC sums[SHARE(DV)][VECTOR];
    EACH_SHARE(DV) EACH_ELEMENT sums[i][e] = 0;
    for (int first = team; first < keys; first += AHEAD * TEAMS)
        EACH_SHARE(DV) {
            ACC weight[AHEAD];
            Stored row[AHEAD];
            EACH_ROW {
                const int j = first + a * TEAMS;
                weight[a] = j < keys && COLUMN(i) < DV ? weights[j] : 0;
                ASK_FOR(row[a], v + j * v_at.w + COLUMN(i), weight[a] != 0);
            }
            EACH_ROW EACH_ELEMENT sums[i][e] += weight[a] * WIDEN(DTYPE)(row[a].each[e]);
        }
    EACH_SHARE(DV) EACH_ELEMENT if (COLUMN(i) + e < DV) parts[team * DV + COLUMN(i) + e] = sums[i][e];
    SYNC;
    for (int d = me; d < DV; d += WG) {
        ACC sum = 0;
        for (int n = 0; n < TEAMS; n++) sum += parts[n * DV + d];
        pieces[d] = sum;
    }
    if (me == 0) pieces[DV] = top, pieces[DV + 1] = total;
}

#define EACH_PART _Pragma("unroll 8") for (long n = 0; n < parts; n++)  // so that several are on their way

__kernel GROUP void attention_join(__global const ACC *restrict pieces, const long parts, __global T *restrict out,
                                   const long4 out_at, __global ACC *restrict lse, const long inner) {
    const int me = get_local_id(0);
    const long batch = get_group_id(1);
    pieces += batch * parts * PIECE;
    out += start_of(out_at, batch, inner);
    ACC top = -INFINITY, total = 0;
    EACH_PART top = MAX(pieces[n * PIECE + DV], top);
    const ACC base = top == -INFINITY ? 0 : top;
    EACH_PART total += EXP(pieces[n * PIECE + DV] - base) * pieces[n * PIECE + DV + 1];
    for (int d = me; d < DV; d += WG) {
        ACC sum = 0;
        EACH_PART sum += EXP(pieces[n * PIECE + DV] - base) * pieces[n * PIECE + d];
        STORE(out, d, total == 0 ? 0 : sum / total);
    }
    if (me == 0) lse[batch] = total == 0 ? INFINITY : top + log(total);
}
