// Attention on CPUs, forward and backward: out = dropout(softmax(scale q k^T + mask)) v, one tile of scores at a time.
// Only tiles of the (t, s) scores exist. The backward kernel recomputes the weights from lse = log(sum(exp(scores))) of
// each row. A row in which every key is masked has lse = inf, which makes its weights 0.
//
// Arrays   q, dq (.., t, D); k, dk (.., s, D); v, dv (.., s, DV); out, dout (.., t, DV); mask (.., t, s)
//          lse (batch, t)
//          long4 <name>_at is the layout of an array: offset, strides of its two leading axes, stride of a row. The
//          last axis has stride 1, that of mask mask_step. batch = index on the outer axis * inner + index on the inner
//          axis.
//          `group` neighbors on the inner axis share a matrix of k and v, whose inner axis is so much shorter
// Launch   attention_forward: one work-item per (block of BQ queries, batch)
//          attention_backward: one work-item per (batch, part); a part processes its share of the blocks of BK keys and
//          accumulates dq in its own slice of `partial`
//          attention_join: one work-item per row of dq; adds the slices
// Params   T, ACC, LOAD, STORE    the dtype: see prelude.cl
//          D, DV                  lengths of the last axes
//          BQ, BK                 queries and keys of a tile, multiples of LANES * VECTORS and of ROWS
//          LANES                  elements of a vector
//          ROWS, VECTORS          the register tile of `multiply`: ROWS x VECTORS vectors
//          MASK                   0 none, 1 bool, 2 added to the scores
//          MASK_T, MASK_LOAD      dtype of the mask
//          DROPOUT                1 to drop weights
//          STATE_ON_DEVICE        1 to read the dropout key and counter from memory, 0 to use the arguments
//          BACKWARD               1 to compile the backward kernels, 0 for the forward kernel
#include "attention_starts.cl"

typedef PASTE(ACC, LANES) __attribute__((aligned(sizeof(ACC)))) vector;

#define PANEL (LANES * VECTORS)
#define CEIL(n, m) (((n) + (m) - 1) / (m) * (m))
#define DP CEIL(D, PANEL)    // D and DV, padded to whole panels
#define DVP CEIL(DV, PANEL)
#define BATCH 8              // Philox blocks computed side by side
#define ONE_ITEM __attribute__((reqd_work_group_size(1, 1, 1)))

#define EACH_SUM _Pragma("unroll") for (int i = 0; i < ROWS; i++) _Pragma("unroll") for (int w = 0; w < VECTORS; w++)

// ---- tiles ------------------------------------------------------------------------------------------------------

// c[r][n] = (add ? c[r][n] : 0) + sum over k < depth of a[r * a_row + k * a_step] * b[k][n], for r < rows, a multiple
// of ROWS, and n < columns, a multiple of PANEL. c and b have rows of columns elements.
static inline void multiply(__local ACC *restrict c, const int rows, const int columns, const int add,
                            __local const ACC *restrict a, const int a_row, const int a_step,
                            __local const ACC *restrict b, const int depth) {
    for (int n = 0; n < columns; n += PANEL)
        for (int r = 0; r < rows; r += ROWS) {
            vector sum[ROWS][VECTORS];
            EACH_SUM sum[i][w] = 0;
            for (int k = 0; k < depth; k++) {
                __local const vector *right = (__local const vector *)(b + k * columns + n);
                __local const ACC *left = a + r * a_row + k * a_step;
                EACH_SUM sum[i][w] = left[i * a_row] * right[w] + sum[i][w];
            }
            EACH_SUM {
                __local vector *into = (__local vector *)(c + (r + i) * columns + n) + w;
                *into = add ? *into + sum[i][w] : sum[i][w];
            }
        }
}

// The dot product of two rows of DV elements.
static inline ACC product(__local const ACC *a, __global const T *b) {
    ACC part[LANES];
    int d = 0;
    for (int l = 0; l < LANES; l++) part[l] = 0;
    for (; d + LANES <= DV; d += LANES)
        _Pragma("unroll") for (int l = 0; l < LANES; l++) part[l] += a[d + l] * LOAD(b, d + l);
    for (; d < DV; d++) part[0] += a[d] * LOAD(b, d);
    for (int half_of_them = LANES / 2; half_of_them > 0; half_of_them /= 2)
        for (int l = 0; l < half_of_them; l++) part[l] += part[l + half_of_them];
    return part[0];
}

static inline void clear(__local ACC *restrict tile, const int length) {
    for (int i = 0; i < length; i++) tile[i] = 0;
}

// tile[r][c] = x[r * row + c] for r < rows, c < columns; tile has rows of `width` elements. The padding that multiply
// reads is set to 0: its products are not used, but stale denormals there would be slow.
static inline void pack(__local ACC *restrict tile, const int width, __global const T *restrict x, const long row,
                        const int rows, const int columns) {
    for (int r = 0; r < rows; r++) {
        WIDELY for (int c = 0; c < columns; c++) tile[r * width + c] = LOAD(x + r * row, c);
        for (int c = columns; c < width; c++) tile[r * width + c] = 0;
    }
    clear(tile + rows * width, (CEIL(rows, ROWS) - rows) * width);
}

// tile[c][r] = x[r * row + c]: pack, transposed.
static inline void pack_transposed(__local ACC *restrict tile, const int width, __global const T *restrict x,
                                   const long row, const int rows, const int columns) {
    if (rows < width) clear(tile, columns * width);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) tile[c * width + r] = LOAD(x + r * row, c);
}

// ---- mask, causality and dropout ---------------------------------------------------------------------------------

// Applies the mask and causality (query i sees keys j <= i + ahead) to a tile of scores with query q0 + i and key
// k0 + j at scores[i * i_step + j * j_step]. mask is that of query q0 and key k0.
static inline void apply_mask(__local ACC *restrict scores, const int i_step, const int j_step, const int queries,
                        const int keys, __global const MASK_T *mask, const long mask_row, const long mask_step,
                        const long q0, const long k0, const long causal, const long ahead) {
#if MASK
    for (int i = 0; i < queries; i++)
        for (int j = 0; j < keys; j++) {
            __local ACC *score = scores + i * i_step + j * j_step;
            const ACC m = MASK_LOAD(mask, i * mask_row + j * mask_step);
            *score = MASK == 2 ? *score + m : m != 0 ? *score : -INFINITY;
        }
#endif
    if (causal && k0 + keys - 1 > q0 + ahead)
        for (int i = 0; i < queries; i++)
            for (int j = (int)MAX(0, q0 + i + ahead + 1 - k0); j < keys; j++)
                scores[i * i_step + j * j_step] = -INFINITY;
}

// factor[n] = kept if weight number first + n survives dropout, else 0, for n < length <= BK. `dropout` holds the key,
// the counter, and the threshold that the upper 24 bits of a weight's word must reach. Each round runs over BATCH
// Philox blocks of four words, a loop that compilers vectorize.
static inline void draw(ACC *restrict factor, const int length, const ulong first, const ulong4 dropout,
                        const ACC kept) {
    uint words[BK + 4 * BATCH], a[BATCH], b[BATCH], c[BATCH], d[BATCH];
    for (int begin = 0; begin < (int)(first % 4) + length; begin += 4 * BATCH) {
        const ulong block = (first + begin) / 4;
        for (int n = 0; n < BATCH; n++) {
            a[n] = (uint)(block + n), b[n] = (uint)((block + n) >> 32);
            c[n] = (uint)dropout.y, d[n] = (uint)(dropout.y >> 32);
        }
        uint k0 = (uint)dropout.x, k1 = (uint)(dropout.x >> 32);
        for (int round = 0; round < 10; round++, k0 += PHILOX_STEP_0, k1 += PHILOX_STEP_1)
            for (int n = 0; n < BATCH; n++) PHILOX_ROUND(a[n], b[n], c[n], d[n], k0, k1);
        uint *restrict word = words + begin;
        for (int n = 0; n < BATCH; n++)
            word[4 * n] = a[n], word[4 * n + 1] = b[n], word[4 * n + 2] = c[n], word[4 * n + 3] = d[n];
    }
    const uint *restrict word = words + first % 4;
    const uint threshold = (uint)dropout.z;
    for (int n = 0; n < length; n++) factor[n] = (word[n] >> 8) >= threshold ? kept : 0;
}

#if !BACKWARD
// ---- forward ------------------------------------------------------------------------------------------------------

// Scores and weights are stored transposed, ps[key][query]: each query has a vector lane, so reductions over keys need
// no horizontal sums.
__kernel ONE_ITEM void attention_forward(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global T *restrict out, const long4 out_at, __global ACC *restrict lse, const long inner,
    const long t, const long s, const long causal, const ACC scale, STATE, const uint threshold, const ACC kept,
    const long group) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    __local ACC qs[D * BQ], ks[BK * D], vs[BK * DVP], ps[BK * BQ], os[BQ * DVP];
    ACC top[BQ], base[BQ], sum[BQ], shrink[BQ], keep[BK];
    const long batch = get_global_id(1), q0 = get_global_id(0) * BQ, ahead = s - t;
    const int queries = MIN(BQ, t - q0);
    const long end = causal ? MIN(s, q0 + queries + ahead) : s;
    q += start_of(q_at, batch, inner) + q0 * q_at.w;
    k += start_of(k_at, batch / group, inner / group);
    v += start_of(v_at, batch / group, inner / group);
    out += start_of(out_at, batch, inner) + q0 * out_at.w;
    mask += start_of(mask_at, batch, inner) + q0 * mask_at.w;

    pack_transposed(qs, BQ, q, q_at.w, queries, D);
    for (int n = 0; n < D * BQ; n++) qs[n] *= scale;
    clear(os, BQ * DVP);
    for (int i = 0; i < BQ; i++) top[i] = -INFINITY;
    for (int i = 0; i < BQ; i++) sum[i] = 0;

    for (long k0 = 0; k0 < end; k0 += BK) {
        const int keys = MIN(BK, end - k0);
        pack(ks, D, k + k0 * k_at.w, k_at.w, keys, D);
        pack(vs, DVP, v + k0 * v_at.w, v_at.w, keys, DV);
        multiply(ps, CEIL(keys, ROWS), BQ, 0, ks, D, 1, qs, D);
        apply_mask(ps, 1, BQ, queries, keys, mask + k0 * mask_step, mask_at.w, mask_step, q0, k0, causal, ahead);

        for (int i = 0; i < BQ; i++) base[i] = top[i];
        for (int j = 0; j < keys; j++)
            WIDELY for (int i = 0; i < BQ; i++) base[i] = MAX(ps[j * BQ + i], base[i]);
        for (int i = 0; i < BQ; i++) shrink[i] = top[i] == base[i] ? 1 : EXP(top[i] - base[i]);
        for (int i = 0; i < BQ; i++) top[i] = base[i];
        for (int i = 0; i < BQ; i++) base[i] = top[i] == -INFINITY ? 0 : top[i];  // all masked so far: avoid inf - inf
        for (int i = 0; i < BQ; i++) sum[i] *= shrink[i];
        for (int j = 0; j < keys; j++)
            WIDELY for (int i = 0; i < BQ; i++) {
                const ACC p = EXP(ps[j * BQ + i] - base[i]);
                ps[j * BQ + i] = p;
                sum[i] += p;
            }
#if DROPOUT
        for (int i = 0; i < queries; i++) {
            draw(keep, keys, (ulong)(batch * t + q0 + i) * s + k0, dropout, kept);
            for (int j = 0; j < keys; j++) ps[j * BQ + i] *= keep[j];
        }
#endif
        if (k0 > 0)
            for (int i = 0; i < queries; i++)
                for (int d = 0; d < DVP; d++) os[i * DVP + d] *= shrink[i];
        multiply(os, CEIL(queries, ROWS), DVP, 1, ps, 1, BQ, vs, keys);
    }
    for (int i = 0; i < queries; i++) {
        const ACC factor = sum[i] == 0 ? 0 : 1 / sum[i];
        for (int d = 0; d < DV; d++) STORE(out + i * out_at.w, d, os[i * DVP + d] * factor);
        lse[batch * t + q0 + i] = sum[i] == 0 ? INFINITY : top[i] + log(sum[i]);
    }
}

#else
// ---- backward -----------------------------------------------------------------------------------------------------

// With p the weights, z the dropped weights and dz = dout v^T:  dv = z^T dout,  ds = p (drop(dz) - sum(dout out)),
// dq = scale ds k,  dk = scale ds^T q. `partial` is dq itself with one part, else one array like dq per part.
__kernel ONE_ITEM void attention_backward(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global const T *restrict out, const long4 out_at, __global const T *restrict dout,
    const long4 dout_at, __global const ACC *restrict lse, __global ACC *restrict partial, const long4 partial_at,
    const long partial_size, __global T *restrict dk, const long4 dk_at, __global T *restrict dv, const long4 dv_at,
    const long inner, const long t, const long s, const long causal, const ACC scale, STATE, const uint threshold,
    const ACC kept, const long group) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    __local ACC qs[BQ * DP], gs[BQ * DVP], ks[BK * DP], kt[D * BK], vt[DV * BK], ps[BQ * BK], ds[BQ * BK],
        dqs[BQ * DP], dks[BK * DP], dvs[BK * DVP];
    ACC delta[BQ], keep[BK];
    const long batch = get_global_id(0), part = get_global_id(1), parts = get_global_size(1), ahead = s - t;
    q += start_of(q_at, batch, inner);
    k += start_of(k_at, batch / group, inner / group);
    v += start_of(v_at, batch / group, inner / group);
    mask += start_of(mask_at, batch, inner);
    out += start_of(out_at, batch, inner);
    dout += start_of(dout_at, batch, inner);
    lse += batch * t;
    partial += part * partial_size + start_of(partial_at, batch, inner);
    dk += start_of(dk_at, batch, inner);
    dv += start_of(dv_at, batch, inner);
    for (long i = 0; i < t; i++)
        for (int d = 0; d < D; d++) partial[i * partial_at.w + d] = 0;

    for (long k0 = part * BK; k0 < s; k0 += parts * BK) {
        const int keys = MIN(BK, s - k0);
        const long first = causal ? MAX(0, k0 - ahead) / BQ * BQ : 0;
        pack(ks, DP, k + k0 * k_at.w, k_at.w, keys, D);
        pack_transposed(kt, BK, k + k0 * k_at.w, k_at.w, keys, D);
        pack_transposed(vt, BK, v + k0 * v_at.w, v_at.w, keys, DV);
        clear(dks, BK * DP);
        clear(dvs, BK * DVP);

        for (long q0 = first; q0 < t; q0 += BQ) {
            const int queries = MIN(BQ, t - q0);
            pack(qs, DP, q + q0 * q_at.w, q_at.w, queries, D);
            for (int n = 0; n < queries * DP; n++) qs[n] *= scale;  // as in forward: the scores are bitwise equal
            pack(gs, DVP, dout + q0 * dout_at.w, dout_at.w, queries, DV);
            for (int i = 0; i < queries; i++) delta[i] = product(gs + i * DVP, out + (q0 + i) * out_at.w);
            multiply(ps, CEIL(queries, ROWS), BK, 0, qs, DP, 1, kt, D);
            multiply(ds, CEIL(queries, ROWS), BK, 0, gs, DVP, 1, vt, DV);
            apply_mask(ps, BK, 1, queries, keys, mask + q0 * mask_at.w + k0 * mask_step, mask_at.w, mask_step, q0, k0,
                 causal, ahead);
            for (int i = 0; i < queries; i++) {
                __local ACC *restrict p = ps + i * BK, *restrict dp = ds + i * BK;
                const ACC row_lse = lse[q0 + i], row_delta = delta[i];
                WIDELY for (int j = 0; j < BK; j++) p[j] = EXP(p[j] - row_lse);
#if DROPOUT
                draw(keep, keys, (ulong)(batch * t + q0 + i) * s + k0, dropout, kept);
                for (int j = 0; j < keys; j++) dp[j] = p[j] * (dp[j] * keep[j] - row_delta);
                for (int j = 0; j < keys; j++) p[j] *= keep[j];
#else
                WIDELY for (int j = 0; j < BK; j++) dp[j] = p[j] * (dp[j] - row_delta);
#endif
            }
            multiply(dvs, CEIL(keys, ROWS), DVP, 1, ps, 1, BK, gs, queries);
            multiply(dks, CEIL(keys, ROWS), DP, 1, ds, 1, BK, qs, queries);
            multiply(dqs, CEIL(queries, ROWS), DP, 0, ds, BK, 1, ks, keys);
            for (int i = 0; i < queries; i++)
                WIDELY for (int d = 0; d < D; d++) partial[(q0 + i) * partial_at.w + d] += dqs[i * DP + d] * scale;
        }
        for (int j = 0; j < keys; j++) {
            for (int d = 0; d < D; d++) STORE(dk + (k0 + j) * dk_at.w, d, dks[j * DP + d]);
            for (int d = 0; d < DV; d++) STORE(dv + (k0 + j) * dv_at.w, d, dvs[j * DVP + d]);
        }
    }
}

// dq = the sum of partial (parts, batch, t, D) over its first axis.
__kernel ONE_ITEM void attention_join(__global const ACC *restrict partial, const long parts, __global T *restrict dq,
                                      const long4 dq_at, const long inner, const long t) {
    const long row = get_global_id(0), batch = get_global_id(1), size = get_global_size(1) * t * D;
    partial += (batch * t + row) * D;
    dq += start_of(dq_at, batch, inner) + row * dq_at.w;
    for (int d = 0; d < D; d++) {
        ACC sum = 0;
        for (long part = 0; part < parts; part++) sum += partial[part * size + d];
        STORE(dq, d, sum);
    }
}
#endif
