// Attention on GPUs, forward and backward: out = dropout(softmax(scale q k^T + mask)) v, one tile of scores at a time.
// The (t, s) scores exist in registers and local memory only. The backward kernels recompute the weights from
// lse = log(sum(exp(scores))) of each row. A row in which every key is masked has lse = inf, which makes its weights 0.
//
// Arrays   q, dq (.., t, D); k, dk (.., s, D); v, dv (.., s, DV); out, dout (.., t, DV); mask (.., t, s)
//          lse, delta (batch, t) of ACC; delta = sum(dout * out) of each row
//          long4 <name>_at is the layout of an array: offset, strides of its two leading axes, stride of a row. The
//          last axis has stride 1, that of mask mask_step. batch = index on the outer axis * inner + index on the inner
//          axis.
//          `group` neighbors on the inner axis share a matrix of k and v, whose inner axis is so much shorter
// Launch   local (TX * TY, 1) for all kernels
//          attention_forward, attention_backward_q: one work-group per (OWN queries, batch); it iterates over the keys,
//          STREAM at a time
//          attention_backward_kv: one work-group per (OWN keys, batch); it iterates over the queries
//          attention_delta: one work-item per (query, batch)
// Params   T, ACC, LOAD, STORE    the dtype: see prelude.cl
//          D, DV                  lengths of the last axes
//          OWN, STREAM            the tile of scores: OWN rows that the work-group keeps x STREAM that it iterates over
//          TX, TY                 work-items of a group; each computes OWN / TY rows and STREAM / TX columns of the
//                                 tile
//          MASK                   0 none, 1 bool, 2 added to the scores
//          MASK_T, MASK_LOAD      dtype of the mask
//          DROPOUT                1 to drop weights
//          STATE_ON_DEVICE        1 to read the dropout key and counter from memory, 0 to use the arguments
//          BACKWARD               1 to compile the backward kernels, 0 for the forward kernel
//          VECTOR                 1 if T is float and all rows of q, k, v and dout consist of aligned float4
#include "attention_starts.cl"

typedef PASTE(ACC, 4) vector;
#define TILE(name, rows, width) __local ACC name[(rows) * (width)] __attribute__((aligned(4 * sizeof(ACC))))

#define CEIL(n, m) (((n) + (m) - 1) / (m) * (m))
#define WG (TX * TY)
#define ROWS (OWN / TY)             // rows of the tile of scores per work-item: ty, ty + TY ..
#define COLUMNS (STREAM / TX)       // columns per work-item: tx, tx + TX ..
#define FOURS(n) (CEIL(n, 4 * TX) / (4 * TX))  // vectors of a row of n elements per work-item: tx, tx + TX ..
#define WIDTH(n) (CEIL(n, 4 * TX) + 4)         // padded length of a row of n in local memory, against bank conflicts
#define SCORE_WIDTH (STREAM + 4)
#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
// For all loops over rows, columns and vectors of a work-item: arrays stay in registers only if all indices are
// constants.
#define UNROLL _Pragma("unroll")
// For the loops around them: unrolling these costs more in registers than it saves.
#define ONE_BY_ONE _Pragma("unroll 1")

// ---- tiles ------------------------------------------------------------------------------------------------------

// The work-group loads tile[r][c] = x[r * row + c], or 0 beyond `rows` and `columns`.
static inline void load_tile(__local ACC *tile, const int width, __global const T *x, const long row, const int rows,
                             const int tile_rows, const int columns, const int me) {
    const int padded = width - 4;
#if VECTOR
    UNROLL for (int n = me; n < tile_rows * (padded / 4); n += WG) {
        const int r = n / (padded / 4), c = n % (padded / 4) * 4;
        *(__local vector *)(tile + r * width + c) =
            r < rows && c < columns ? *(__global const vector *)(x + r * row + c) : (vector)(0);
    }
#else
    for (int n = me; n < tile_rows * padded; n += WG) {
        const int r = n / padded, c = n % padded;
        tile[r * width + c] = r < rows && c < columns ? LOAD(x + r * row, c) : 0;
    }
#endif
}

// sum[r][c] = the dot product of row ty + r * TY of `own` and row tx + c * TX of `streamed`.
static inline void scores(ACC sum[ROWS][COLUMNS], __local const ACC *own, __local const ACC *streamed,
                          const int width, const int length, const int tx, const int ty) {
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = 0;
    ONE_BY_ONE for (int d = 0; d < length; d += 4) {
        vector x[ROWS], y[COLUMNS];
        UNROLL for (int r = 0; r < ROWS; r++) x[r] = *(__local const vector *)(own + (ty + r * TY) * width + d);
        UNROLL for (int c = 0; c < COLUMNS; c++) y[c] = *(__local const vector *)(streamed + (tx + c * TX) * width + d);
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                sum[r][c] += x[r].x * y[c].x;
                sum[r][c] += x[r].y * y[c].y;
                sum[r][c] += x[r].z * y[c].z;
                sum[r][c] += x[r].w * y[c].w;
            }
    }
}

// sum += weights (OWN, STREAM) @ streamed tile; sum holds rows ty + r * TY and vectors tx + c * TX. This is a macro
// because the number of vectors per row differs between calls.
#define ADD_WEIGHTED(sum, weights, streamed, width, fours) \
    ONE_BY_ONE for (int j = 0; j < STREAM; j += 4) { \
        vector weight[ROWS]; \
        UNROLL for (int r = 0; r < ROWS; r++) \
            weight[r] = *(__local const vector *)(weights + (ty + r * TY) * SCORE_WIDTH + j); \
        UNROLL for (int c = 0; c < fours; c++) { \
            __local const ACC *right = streamed + j * width + 4 * (tx + c * TX); \
            const vector y0 = *(__local const vector *)right, y1 = *(__local const vector *)(right + width), \
                         y2 = *(__local const vector *)(right + 2 * width), \
                         y3 = *(__local const vector *)(right + 3 * width); \
            UNROLL for (int r = 0; r < ROWS; r++) { \
                sum[r][c] += weight[r].x * y0; \
                sum[r][c] += weight[r].y * y1; \
                sum[r][c] += weight[r].z * y2; \
                sum[r][c] += weight[r].w * y3; \
            } \
        } \
    }

// Store sum[r] * factor[r] to rows ty + r * TY < rows.
#define STORE_ROWS(to, row, rows, length, sum, fours, factor) \
    UNROLL for (int r = 0; r < ROWS; r++) \
        UNROLL for (int c = 0; c < fours; c++) { \
            const int at = ty + r * TY, d = 4 * (tx + c * TX); \
            const vector y = sum[r][c] * factor[r]; \
            if (at < rows && d < length) STORE(to + at * row, d, y.x); \
            if (at < rows && d + 1 < length) STORE(to + at * row, d + 1, y.y); \
            if (at < rows && d + 2 < length) STORE(to + at * row, d + 2, y.z); \
            if (at < rows && d + 3 < length) STORE(to + at * row, d + 3, y.w); \
        }

// ---- mask, causality and dropout ---------------------------------------------------------------------------------

// The score of query i < t and key j < s after the mask and causality.
static inline ACC masked(const ACC score, __global const MASK_T *mask, const long mask_row, const long mask_step,
                       const long i, const long j, const long causal, const long ahead) {
    if (causal && j > i + ahead) return -INFINITY;
#if MASK == 1
    return MASK_LOAD(mask, i * mask_row + j * mask_step) ? score : -INFINITY;
#elif MASK == 2
    return score + MASK_LOAD(mask, i * mask_row + j * mask_step);
#else
    return score;
#endif
}

// 1 if weight number `index` survives dropout. `dropout` holds the key, the counter, and the threshold for the upper 24
// bits of the weight's random word.
static inline int survives(const ulong index, const ulong4 dropout) {
    const uint4 four = philox4x32(index / 4, dropout.y, dropout.x);
    const uint word = index & 2 ? (index & 1 ? four.w : four.z) : (index & 1 ? four.y : four.x);
    return (word >> 8) >= (uint)dropout.z;
}

// Scale the products p[r][c] of query I and key J, and mask those that are hidden or outside of the arrays. The mask
// step is skipped for tiles of which nothing is hidden: no mask, all_there (inside the arrays), and wholly below the
// diagonal.
#define MASK_SCORES(p, I, J, all_there, keys_in_tile) { \
        const int all_visible = !MASK && (all_there) && !(causal && k0 + (keys_in_tile) - 1 > q0 + ahead); \
        UNROLL for (int r = 0; r < ROWS; r++) \
            UNROLL for (int c = 0; c < COLUMNS; c++) p[r][c] *= scale; \
        if (!all_visible) \
            UNROLL for (int r = 0; r < ROWS; r++) \
                UNROLL for (int c = 0; c < COLUMNS; c++) { \
                    const long i = I, j = J; \
                    p[r][c] = i < t && j < s ? masked(p[r][c], mask, mask_at.w, mask_step, i, j, causal, ahead) \
                                             : -INFINITY; \
                } \
    }

#if !BACKWARD
// ---- forward ------------------------------------------------------------------------------------------------------

__kernel GROUP void attention_forward(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global T *restrict out, const long4 out_at, __global ACC *restrict lse, const long inner,
    const long t, const long s, const long causal, const ACC scale, STATE, const uint threshold, const ACC kept,
    const long group) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    TILE(qs, OWN, WIDTH(D));
    TILE(shared, 1, MAX(STREAM * WIDTH(D), OWN * SCORE_WIDTH));  // the keys, then the weights
    TILE(vs, STREAM, WIDTH(DV));
    TILE(across, OWN, TX);
    const int me = get_local_id(0), tx = me % TX, ty = me / TX;
    const long batch = get_group_id(1), ahead = s - t;
    const long q0 = (get_num_groups(0) - 1 - get_group_id(0)) * OWN;  // the longest causal rows first
    const int queries = MIN(OWN, t - q0);
    const long end = causal ? MIN(s, q0 + queries + ahead) : s;
    q += start_of(q_at, batch, inner) + q0 * q_at.w;
    k += start_of(k_at, batch / group, inner / group);
    v += start_of(v_at, batch / group, inner / group);
    out += start_of(out_at, batch, inner) + q0 * out_at.w;
    mask += start_of(mask_at, batch, inner);
    vector os[ROWS][FOURS(DV)];
    ACC top[ROWS], sum[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        top[r] = -INFINITY;
        sum[r] = 0;
        UNROLL for (int c = 0; c < FOURS(DV); c++) os[r][c] = 0;
    }
    load_tile(qs, WIDTH(D), q, q_at.w, queries, OWN, D, me);

    for (long k0 = 0; k0 < end; k0 += STREAM) {
        const int keys = MIN(STREAM, end - k0);
        load_tile(shared, WIDTH(D), k + k0 * k_at.w, k_at.w, keys, STREAM, D, me);
        load_tile(vs, WIDTH(DV), v + k0 * v_at.w, v_at.w, keys, STREAM, DV, me);
        SYNC;
        ACC p[ROWS][COLUMNS];
        scores(p, qs, shared, WIDTH(D), D, tx, ty);
        MASK_SCORES(p, q0 + ty + r * TY, k0 + tx + c * TX, queries == OWN && keys == STREAM, STREAM)
        UNROLL for (int r = 0; r < ROWS; r++) {
            ACC largest = -INFINITY;
            UNROLL for (int c = 0; c < COLUMNS; c++) largest = MAX(p[r][c], largest);
            across[(ty + r * TY) * TX + tx] = largest;
        }
        SYNC;
        UNROLL for (int r = 0; r < ROWS; r++) {
            const ACC before = top[r];
            for (int c = 0; c < TX; c++) top[r] = MAX(across[(ty + r * TY) * TX + c], top[r]);
            const ACC base = top[r] == -INFINITY ? 0 : top[r];  // all masked so far: avoid inf - inf
            const ACC shrink = EXP(before - base);
            sum[r] *= shrink;
            UNROLL for (int c = 0; c < FOURS(DV); c++) os[r][c] *= shrink;
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                ACC weight = EXP(p[r][c] - base);
                sum[r] += weight;
#if DROPOUT
                const long i = q0 + ty + r * TY, j = k0 + tx + c * TX;
                weight = survives((ulong)(batch * t + i) * s + j, dropout) ? weight : 0;
#endif
                shared[(ty + r * TY) * SCORE_WIDTH + tx + c * TX] = weight;
            }
        }
        SYNC;
        ADD_WEIGHTED(os, shared, vs, WIDTH(DV), FOURS(DV))
        SYNC;
    }
    UNROLL for (int r = 0; r < ROWS; r++) across[(ty + r * TY) * TX + tx] = sum[r];
    SYNC;
    ACC factor[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        const int i = ty + r * TY;
        ACC total = 0;
        for (int c = 0; c < TX; c++) total += across[i * TX + c];
        factor[r] = total == 0 ? 0 : kept / total;
        if (tx == 0 && i < queries) lse[batch * t + q0 + i] = total == 0 ? INFINITY : top[r] + log(total);
    }
    STORE_ROWS(out, out_at.w, queries, DV, os, FOURS(DV), factor)
}

#else
// ---- backward -----------------------------------------------------------------------------------------------------

// With p the weights, z the dropped weights and dz = dout v^T:  dv = z^T dout,  ds = p (drop(dz) - delta),
// dq = scale ds k,  dk = scale ds^T q,  delta = sum(dout out).

// Summed in the order of scores(), so that a row with all its weight on one key gets gradients of exactly 0.
__kernel GROUP void attention_delta(__global const T *restrict out, const long4 out_at, __global const T *restrict dout,
                                    const long4 dout_at, __global ACC *restrict delta, const long inner,
                                    const long t) {
    const long i = get_global_id(0), batch = get_global_id(1);
    if (i >= t) return;
    out += start_of(out_at, batch, inner) + i * out_at.w;
    dout += start_of(dout_at, batch, inner) + i * dout_at.w;
    ACC sum = 0;
    for (int d = 0; d < DV; d++) sum += LOAD(out, d) * LOAD(dout, d);
    delta[batch * t + i] = sum;
}

__kernel GROUP void attention_backward_q(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global const T *restrict dout, const long4 dout_at, __global const ACC *restrict lse,
    __global const ACC *restrict delta, __global T *restrict dq, const long4 dq_at, const long inner, const long t,
    const long s, const long causal, const ACC scale, STATE, const uint threshold, const ACC kept,
    const long group) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    TILE(qs, OWN, WIDTH(D));
    TILE(gs, OWN, WIDTH(DV));
    TILE(ks, STREAM, WIDTH(D));
    TILE(vs, STREAM, WIDTH(DV));
    TILE(ds, OWN, SCORE_WIDTH);
    const int me = get_local_id(0), tx = me % TX, ty = me / TX;
    const long batch = get_group_id(1), ahead = s - t;
    const long q0 = (get_num_groups(0) - 1 - get_group_id(0)) * OWN;  // the longest causal rows first
    const int queries = MIN(OWN, t - q0);
    const long end = causal ? MIN(s, q0 + queries + ahead) : s;
    q += start_of(q_at, batch, inner) + q0 * q_at.w;
    k += start_of(k_at, batch / group, inner / group);
    v += start_of(v_at, batch / group, inner / group);
    dout += start_of(dout_at, batch, inner) + q0 * dout_at.w;
    dq += start_of(dq_at, batch, inner) + q0 * dq_at.w;
    mask += start_of(mask_at, batch, inner);
    vector dqs[ROWS][FOURS(D)];
    ACC row_lse[ROWS], row_delta[ROWS], factor[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        const int i = ty + r * TY;
        row_lse[r] = i < queries ? lse[batch * t + q0 + i] : INFINITY;
        row_delta[r] = i < queries ? delta[batch * t + q0 + i] : 0;
        factor[r] = scale;
        UNROLL for (int c = 0; c < FOURS(D); c++) dqs[r][c] = 0;
    }
    load_tile(qs, WIDTH(D), q, q_at.w, queries, OWN, D, me);
    load_tile(gs, WIDTH(DV), dout, dout_at.w, queries, OWN, DV, me);

    for (long k0 = 0; k0 < end; k0 += STREAM) {
        const int keys = MIN(STREAM, end - k0);
        load_tile(ks, WIDTH(D), k + k0 * k_at.w, k_at.w, keys, STREAM, D, me);
        load_tile(vs, WIDTH(DV), v + k0 * v_at.w, v_at.w, keys, STREAM, DV, me);
        SYNC;
        ACC p[ROWS][COLUMNS], dp[ROWS][COLUMNS];
        scores(p, qs, ks, WIDTH(D), D, tx, ty);
        scores(dp, gs, vs, WIDTH(DV), DV, tx, ty);
        MASK_SCORES(p, q0 + ty + r * TY, k0 + tx + c * TX, queries == OWN && keys == STREAM, STREAM)
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                const ACC weight = EXP(p[r][c] - row_lse[r]);
                ACC dz = dp[r][c] * kept;
#if DROPOUT
                const long i = q0 + ty + r * TY, j = k0 + tx + c * TX;
                dz = survives((ulong)(batch * t + i) * s + j, dropout) ? dz : 0;
#endif
                ds[(ty + r * TY) * SCORE_WIDTH + tx + c * TX] = weight * (dz - row_delta[r]);
            }
        SYNC;
        ADD_WEIGHTED(dqs, ds, ks, WIDTH(D), FOURS(D))
        SYNC;
    }
    STORE_ROWS(dq, dq_at.w, queries, D, dqs, FOURS(D), factor)
}

// The tiles of scores are transposed here: rows are the keys that the work-group owns, columns are queries.
__kernel GROUP void attention_backward_kv(
    __global const T *restrict q, const long4 q_at, __global const T *restrict k, const long4 k_at,
    __global const T *restrict v, const long4 v_at, __global const MASK_T *restrict mask, const long4 mask_at,
    const long mask_step, __global const T *restrict dout, const long4 dout_at, __global const ACC *restrict lse,
    __global const ACC *restrict delta, __global T *restrict dk, const long4 dk_at, __global T *restrict dv,
    const long4 dv_at, const long inner, const long t, const long s, const long causal, const ACC scale,
    STATE, const uint threshold, const ACC kept, const long group) {
    const ulong4 dropout = (ulong4)(STATE_KEY, STATE_COUNTER, threshold, 0);
    TILE(ks, OWN, WIDTH(D));
    TILE(vs, OWN, WIDTH(DV));
    TILE(qs, STREAM, WIDTH(D));
    TILE(gs, STREAM, WIDTH(DV));
    TILE(weights, OWN, SCORE_WIDTH);
    __local ACC column_lse[STREAM], column_delta[STREAM];
    const int me = get_local_id(0), tx = me % TX, ty = me / TX;
    const long batch = get_group_id(1), ahead = s - t, k0 = get_group_id(0) * OWN;
    const int keys = MIN(OWN, s - k0);
    q += start_of(q_at, batch, inner);
    k += start_of(k_at, batch / group, inner / group) + k0 * k_at.w;
    v += start_of(v_at, batch / group, inner / group) + k0 * v_at.w;
    dout += start_of(dout_at, batch, inner);
    dk += start_of(dk_at, batch, inner) + k0 * dk_at.w;
    dv += start_of(dv_at, batch, inner) + k0 * dv_at.w;
    mask += start_of(mask_at, batch, inner);
    vector dks[ROWS][FOURS(D)], dvs[ROWS][FOURS(DV)];
    ACC dk_factor[ROWS], dv_factor[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        dk_factor[r] = scale;
        dv_factor[r] = kept;
        UNROLL for (int c = 0; c < FOURS(D); c++) dks[r][c] = 0;
        UNROLL for (int c = 0; c < FOURS(DV); c++) dvs[r][c] = 0;
    }
    load_tile(ks, WIDTH(D), k, k_at.w, keys, OWN, D, me);
    load_tile(vs, WIDTH(DV), v, v_at.w, keys, OWN, DV, me);

    for (long q0 = causal ? MAX(0, k0 - ahead) : 0; q0 < t; q0 += STREAM) {
        const int queries = MIN(STREAM, t - q0);
        load_tile(qs, WIDTH(D), q + q0 * q_at.w, q_at.w, queries, STREAM, D, me);
        load_tile(gs, WIDTH(DV), dout + q0 * dout_at.w, dout_at.w, queries, STREAM, DV, me);
        for (int n = me; n < STREAM; n += WG) {
            column_lse[n] = n < queries ? lse[batch * t + q0 + n] : INFINITY;
            column_delta[n] = n < queries ? delta[batch * t + q0 + n] : 0;
        }
        SYNC;
        ACC p[ROWS][COLUMNS], dp[ROWS][COLUMNS];
        scores(p, ks, qs, WIDTH(D), D, tx, ty);
        scores(dp, vs, gs, WIDTH(DV), DV, tx, ty);
        MASK_SCORES(p, q0 + tx + c * TX, k0 + ty + r * TY, queries == STREAM && keys == OWN, OWN)
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                const int column = tx + c * TX;
                const ACC weight = EXP(p[r][c] - column_lse[column]);
                ACC dz = dp[r][c] * kept, z = weight;
#if DROPOUT
                const long j = k0 + ty + r * TY, i = q0 + column;
                const int stay = survives((ulong)(batch * t + i) * s + j, dropout);
                dz = stay ? dz : 0;
                z = stay ? z : 0;
#endif
                p[r][c] = weight * (dz - column_delta[column]);
                weights[(ty + r * TY) * SCORE_WIDTH + column] = z;
            }
        SYNC;
        ADD_WEIGHTED(dvs, weights, gs, WIDTH(DV), FOURS(DV))
        SYNC;
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) weights[(ty + r * TY) * SCORE_WIDTH + tx + c * TX] = p[r][c];
        SYNC;
        ADD_WEIGHTED(dks, weights, qs, WIDTH(D), FOURS(D))
        SYNC;
    }
    STORE_ROWS(dk, dk_at.w, keys, D, dks, FOURS(D), dk_factor)
    STORE_ROWS(dv, dv_at.w, keys, DV, dvs, FOURS(DV), dv_factor)
}
#endif
