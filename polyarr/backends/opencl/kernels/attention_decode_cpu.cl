// Attention of one query per batch, for CPUs: out = softmax(scale q k^T + mask) v, in one pass over the keys, BLOCK at a
// time. Of keys that a mask hides neither k nor v is read.
//
// Arrays   q (.., 1, D), k (.., s, D), v (.., s, DV), out (.., 1, DV), mask (.., 1, s) with layouts <name>_at as
//          attention_cpu.cl has them; lse (batch): the logarithm of the sum of the exponentials, inf if nothing is seen
// Launch   global (batch), local 1
// Params   T, ACC, LOAD, STORE of the dtype | D, DV lengths of the last axes | BLOCK keys | LANES of a vector
//          MASK 0 none, 1 bool, 2 added to the scores; MASK_T, MASK_LOAD
#if !defined(T) || !defined(D) || !defined(DV) || !defined(BLOCK) || !defined(LANES)
#error "attention_decode_cpu.cl needs a dtype's macros, D, DV, BLOCK and LANES"
#endif
#if !defined(MASK) || !defined(MASK_T)
#error "attention_decode_cpu.cl needs a mask's macros"
#endif

static inline size_t start_of(const long4 at, const long batch, const long inner) {
    return at.x + batch / inner * at.y + batch % inner * at.z;
}

// The product of the query and a row: LANES sums side by side, which the compiler keeps in vectors.
static inline ACC product(const ACC *query, __global const T *row) {
    ACC sums[LANES], sum = 0;
    for (int l = 0; l < LANES; l++) sums[l] = 0;
    for (int d = 0; d < D / LANES * LANES; d += LANES)
        for (int l = 0; l < LANES; l++) sums[l] += query[d + l] * LOAD(row, d + l);
    for (int d = D / LANES * LANES; d < D; d++) sum += query[d] * LOAD(row, d);
    for (int l = 0; l < LANES; l++) sum += sums[l];
    return sum;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void attention_decode(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global T *restrict out, const long4 out_at, __global ACC *restrict lse, const long inner,
    const long s, const ACC scale) {
    const long batch = get_group_id(0);
    q += start_of(q_at, batch, inner);
    k += start_of(k_at, batch, inner);
    v += start_of(v_at, batch, inner);
    out += start_of(out_at, batch, inner);
    mask += start_of(mask_at, batch, inner);
    ACC query[D], sums[DV], weights[BLOCK], top = -INFINITY, total = 0;
    for (int d = 0; d < D; d++) query[d] = LOAD(q, d) * scale;
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
        for (int j = 0; j < keys; j++)
            if (weights[j] != -INFINITY) {
                weights[j] += product(query, k + (k0 + j) * k_at.w);
                largest = MAX(weights[j], largest);
            }
        if (largest == -INFINITY) continue;
        if (largest > top) {
            const ACC shrink = EXP(top - largest);
            total *= shrink;
            for (int d = 0; d < DV; d++) sums[d] *= shrink;
            top = largest;
        }
        for (int j = 0; j < BLOCK; j++) weights[j] = EXP(weights[j] - top);
        for (int j = 0; j < BLOCK; j++) total += weights[j];
        for (int j = 0; j < keys; j++)
            if (weights[j] != 0) {
                __global const T *row = v + (k0 + j) * v_at.w;
                for (int d = 0; d < DV; d++) sums[d] += weights[j] * LOAD(row, d);
            }
    }
    for (int d = 0; d < DV; d++) STORE(out, d, total == 0 ? 0 : sums[d] / total);
    lse[batch] = total == 0 ? INFINITY : top + log(total);
}
