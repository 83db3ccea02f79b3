// Decode attention (one query token per batch entry) on CPUs: out = softmax(scale q k^T + mask) v, in one pass of
// online softmax over the keys, BLOCK keys at a time. Rows of k and v whose key is masked are not read.
//
// Arrays   q (.., 1, D); k (.., s, D); v (.., s, DV); out (.., 1, DV); mask (.., 1, s)
//          with layouts <name>_at as in attention_cpu.cl
//          new_k (.., D), new_v (.., DV): rows that are stored in k and v at `position` first, if t is 1; null, and a
//          position of -1, if there are none. The inner axis of their layouts has length `heads`.
//          lse (batch) of ACC: the logarithm of the sum of the exponentials; inf if every key is masked
// Launch   global (batch), local 1
// Params   T, ACC, LOAD, STORE    the dtype: see prelude.cl
//          D, DV                  lengths of the last axes
//          BLOCK                  keys per step
//          LANES                  elements of a vector
//          NARROW                 1 if elements have 16 bits
//          MASK                   0 none, 1 bool, 2 added to the scores
//          MASK_T, MASK_LOAD      dtype of the mask
#include "attention_starts.cl"

// Arrays of vectors stay in registers only if all indices are constants, so the loops over them are unrolled.
typedef PASTE(ACC, LANES) Vector;
#define UNROLLED _Pragma("unroll")
#define EACH_LANE UNROLLED for (int l = 0; l < LANES; l++)
#define WHOLE (D / LANES)  // vectors of a row of q and k
#define ROOM (WHOLE ? WHOLE : 1)
#define FOLDED(v) ((v).lo + (v).hi)
#if LANES == 2
#define SUM(v) FOLDED(v)
#elif LANES == 4
#define SUM(v) FOLDED(FOLDED(v))
#elif LANES == 8
#define SUM(v) FOLDED(FOLDED(FOLDED(v)))
#else
#define SUM(v) FOLDED(FOLDED(FOLDED(FOLDED(v))))
#endif

// The vector at p, as floats.
#if NARROW
#include "vectors.cl"
DEFINE_READ(LANES)
#define READ(p) PASTE(read_, LANES)(p)
#else
typedef Vector Unaligned __attribute__((aligned(4)));
#define READ(p) (*(__global const Unaligned *)(p))
#endif

// The dot product of the query and one row of k.
static inline ACC product(const Vector *query, const ACC *rest, __global const T *row) {
    Vector sums = 0;
    ACC sum = 0;
    UNROLLED for (int i = 0; i < WHOLE; i++) sums += query[i] * READ(row + i * LANES);
    for (int d = WHOLE * LANES; d < D; d++) sum += rest[d - WHOLE * LANES] * LOAD(row, d);
    return sum + SUM(sums);
}

#define ROWS_AT_ONCE 4  // keys whose dot products are computed side by side, to hide latency
#define EACH_ROW UNROLLED for (int r = 0; r < ROWS_AT_ONCE; r++)

// The dot products of the query and ROWS_AT_ONCE rows of k.
static inline void products(const Vector *query, const ACC *rest, __global const T *rows, const long step, ACC *found) {
    Vector sums[ROWS_AT_ONCE];
    EACH_ROW EACH_LANE sums[r][l] = 0;
    UNROLLED for (int i = 0; i < WHOLE; i++) EACH_ROW sums[r] += query[i] * READ(rows + r * step + i * LANES);
    EACH_ROW found[r] = SUM(sums[r]);
    for (int d = WHOLE * LANES; d < D; d++)
        EACH_ROW found[r] += rest[d - WHOLE * LANES] * LOAD(rows + r * step, d);
}

// sums[d] += the sum of weights[j] * v[j][d] over keys j with a nonzero weight, for COUNT vectors from `first` on.
#define ADD_ROWS(COUNT) { \
        Vector acc[COUNT]; \
        UNROLLED for (int i = 0; i < COUNT; i++) EACH_LANE acc[i][l] = sums[first + i * LANES + l]; \
        for (int j = 0; j < keys; j++) \
            if (weights[j] != 0) { \
                __global const T *row = v + j * step + first; \
                UNROLLED for (int i = 0; i < COUNT; i++) acc[i] += weights[j] * READ(row + i * LANES); \
            } \
        UNROLLED for (int i = 0; i < COUNT; i++) EACH_LANE sums[first + i * LANES + l] = acc[i][l]; \
        first += COUNT * LANES; \
    }
static inline void add_rows(ACC *sums, const ACC *weights, __global const T *v, const long step, const int keys) {
    int first = 0;
    while (first + 8 * LANES <= DV) ADD_ROWS(8)
    if (first + 4 * LANES <= DV) ADD_ROWS(4)
    if (first + 2 * LANES <= DV) ADD_ROWS(2)
    if (first + LANES <= DV) ADD_ROWS(1)
    for (; first < DV; first++)
        for (int j = 0; j < keys; j++)
            if (weights[j] != 0) sums[first] += weights[j] * LOAD(v + j * step, first);
}

// Copy a row by its bytes: drivers without cl_khr_fp16 assign no half.
static inline void copy_row(__global T *to, __global const T *from, const int count) {
    for (int i = 0; i < count * (int)sizeof(T); i++) ((__global uchar *)to)[i] = ((__global const uchar *)from)[i];
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void attention_decode(
    __global const T *restrict q, const long4 q_at, __global T *restrict k, const long4 k_at, __global T *restrict v,
    const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at, const long mask_step,
    __global const T *restrict new_k, const long4 new_k_at, __global const T *restrict new_v, const long4 new_v_at,
    const long heads, const long position, __global T *restrict out, const long4 out_at, __global ACC *restrict lse,
    const long inner, const long group, const long t, const long s, const ACC scale) {
    const long n = get_group_id(0), batch = n / t;
    q += start_of_row(q_at, n, inner, t);
    k += start_of(k_at, batch / group, inner / group);
    v += start_of(v_at, batch / group, inner / group);
    out += start_of_row(out_at, n, inner, t);
    mask += start_of_row(mask_at, n, inner, t);
    if (position >= 0) {
        new_k += start_of(new_k_at, batch, heads);
        new_v += start_of(new_v_at, batch, heads);
        copy_row(k + position * k_at.w, new_k, D);
        copy_row(v + position * v_at.w, new_v, DV);
    }
    Vector query[ROOM];
    ACC rest[LANES], sums[DV], weights[BLOCK], totals[LANES], top = -INFINITY, total = 0;
    for (int l = 0; l < LANES; l++) totals[l] = 0;
    UNROLLED for (int i = 0; i < WHOLE; i++) EACH_LANE query[i][l] = LOAD(q, i * LANES + l) * scale;
    for (int d = WHOLE * LANES; d < D; d++) rest[d - WHOLE * LANES] = LOAD(q, d) * scale;
    for (int d = 0; d < DV; d++) sums[d] = 0;

    for (long k0 = 0; k0 < s; k0 += BLOCK) {
        const int keys = MIN(BLOCK, s - k0);
        ACC largest = -INFINITY;
        for (int j = 0; j < BLOCK; j++) weights[j] = j < keys ? 0 : -INFINITY;
#if MASK == 1
        for (int j = 0; j < keys; j++) weights[j] = MASK_LOAD(mask, (k0 + j) * mask_step) ? 0 : -INFINITY;
#elif MASK == 2
        for (int j = 0; j < keys; j++) weights[j] = MASK_LOAD(mask, (k0 + j) * mask_step);
#endif
        int j = 0, is_hidden = 0;
        if (MASK) for (int i = 0; i < keys; i++) is_hidden |= weights[i] == -INFINITY;
        if (!is_hidden)
            for (; j + ROWS_AT_ONCE <= keys; j += ROWS_AT_ONCE) {
                ACC found[ROWS_AT_ONCE];
                products(query, rest, k + (k0 + j) * k_at.w, k_at.w, found);
                EACH_ROW {
                    weights[j + r] = MASK == 2 ? weights[j + r] + found[r] : found[r];
                    largest = MAX(weights[j + r], largest);
                }
            }
        for (; j < keys; j++)
            if (weights[j] != -INFINITY) {
                weights[j] += product(query, rest, k + (k0 + j) * k_at.w);
                largest = MAX(weights[j], largest);
            }
        if (largest == -INFINITY) continue;
        if (largest > top) {
            const ACC shrink = EXP(top - largest);
            for (int l = 0; l < LANES; l++) totals[l] *= shrink;
            for (int d = 0; d < DV; d++) sums[d] *= shrink;
            top = largest;
        }
        for (int j = 0; j < BLOCK; j++) weights[j] = EXP(weights[j] - top);
        for (int j = 0; j < BLOCK; j += LANES)
            for (int l = 0; l < LANES; l++) totals[l] += weights[j + l];
        add_rows(sums, weights, v + k0 * v_at.w, v_at.w, keys);
    }
    for (int l = 0; l < LANES; l++) total += totals[l];
    for (int d = 0; d < DV; d++) STORE(out, d, total == 0 ? 0 : sums[d] / total);
    lse[n] = total == 0 ? INFINITY : top + log(total);
}
