// GEMM on GPUs without matrix units: out = activation(x @ y + bias), for a batch of matrices.
//
// A work-group computes a tile of TILE_M x TILE_N. It iterates over k in steps of TILE_K with two buffers in local
// memory: while one is multiplied, the next tiles of x and y are loaded through registers into the other (double
// buffering). With SPLIT, tiles do not divide evenly among the work-groups: the steps of all tiles form one sequence,
// of which each work-group takes an equal range (stream-K); partial sums of a tile go to workspace, and matmul_join
// adds them. A work-item keeps ITEM_M x ITEM_N sums, in pieces of 4 x 4 that lie LANES_M and LANES_N pieces apart, so
// that neighbors read neighboring words. Positions beyond the end of a matrix read its last row or column and are not
// written; elements beyond the end of k are 0.
//
// Arrays   x (batch, m, k), y (batch, k, n) of T; one of the strides of their two last axes is 1, the other is x_step,
//          y_step
//          bias (n) of T; out, saved (batch, m, n) of T, row-major; saved is the input of the activation
//          sums (work-groups, 2, TILE_M * TILE_N) of ACC: partial sums of the first and last tile of a range; used if
//          SPLIT
//          Matrix b of x begins at x_start + (b / inner) * x_outer + (b % inner) * x_inner; likewise for y
// Launch   matmul: global (groups * ITEMS), local ITEMS; one group per tile of all matrices, or any number if SPLIT
//          matmul_join, if SPLIT: global (tiles * ITEMS, ITEM_M / 4), local (ITEMS, 1); parts is the groups of matmul
// Params   T, ACC, LOAD, STORE           the dtype: see prelude.cl
//          FLOATING, FLOAT32             1 if the dtype is floating-point, float32
//          X_ALONG_K, Y_ALONG_K          1 if the operand is contiguous along k
//          X_VECTOR, Y_VECTOR, OUT_VECTOR    elements per load or store: 4 if rows consist of aligned vectors of 4,
//                                            else 1
//          BIAS, SAVE                    1 to add bias, to write saved
//          ACTIVATION                    none, relu, silu, gelu or gelu_tanh
//          IM2COL                        1 if x is an im2col view (im2col.cl), contiguous along k; 2 if y is,
//                                        contiguous along its columns; else 0. With 1 and 2 the kernel is called
//                                        matmul_im2col
//          SPLIT                         1 if work-groups share tiles
//          TILE_M, TILE_N, TILE_K        the tile of a work-group
//          ITEM_M, ITEM_N                the tile of a work-item, multiples of 4
//          LANES_N                       of 32 consecutive work-items, how many lie side by side along n
//          RASTER                        tiles along m that run together, so that they share columns of y in the cache
#include "im2col.cl"

#define ITEMS (TILE_M / ITEM_M * TILE_N / ITEM_N)
#define LANES_M (32 / LANES_N)
#define BLOCKS_N (TILE_N / (LANES_N * ITEM_N))  // blocks of 32 work-items along n
#define ROW_M (TILE_M + 4)  // a row in local memory; the 4 spread a transposed store over the banks
#define ROW_N (TILE_N + 4)
#define X_LOADS (TILE_M * TILE_K / X_VECTOR / ITEMS)
#define Y_LOADS (TILE_N * TILE_K / Y_VECTOR / ITEMS)
#define SUMS (TILE_M * TILE_N / 4)  // partial sums of a tile, in vectors of 4; those of a work-item lie ITEMS apart
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
typedef PASTE(ACC, 4) four;

// ---- tiles of an operand ----------------------------------------------------------------------------------
//
// The tile of an operand has `length` positions (rows of x, columns of y) x TILE_K. Its contiguous axis is k or that of
// the positions; consecutive work-items load consecutive vectors along it.

#define POSITION(e) (along_k ? (e) / (TILE_K / width) : (e) % (length / width) * width)
#define DEEP(e) (along_k ? (e) % (TILE_K / width) * width : (e) / (length / width))

// Offsets of the vectors that a work-item loads, from the first element of the tile; `last` is the last position at
// which a vector may begin.
INLINE void find_offsets(int *offset, int loads, int along_k, int width, int length, int last, int step, int me) {
    UNROLL for (int l = 0; l < loads; l++) {
        const int e = me + l * ITEMS, position = MIN(POSITION(e), last);
        offset[l] = along_k ? position * step + DEEP(e) : position + DEEP(e) * step;
    }
}

// Load a work-item's share of a tile of which `depth` steps along k exist.
INLINE void load_share(ACC *share, __global const T *source, const int *offset, int loads, int along_k, int width,
                  int length, int depth, int me) {
    UNROLL for (int l = 0; l < loads; l++) {
        const int exists = DEEP(me + l * ITEMS) < depth;
#if FLOAT32
        if (width == 4) {
            const float4 v = exists ? *(__global const float4 *)(source + offset[l]) : (float4)0;
            share[4 * l] = v.x, share[4 * l + 1] = v.y, share[4 * l + 2] = v.z, share[4 * l + 3] = v.w;
        } else
#endif
            UNROLL for (int i = 0; i < width; i++)
                share[l * width + i] = exists ? LOAD(source, offset[l] + i) : 0;
    }
}

// The same for im2col views: offsets of the positions, and the share of a tile that begins at element k0 along k.
INLINE void find_view_offsets(long *offset, const Axes *kept, int loads, int along_k, int width, int length, long first,
                          int last, int me) {
    UNROLL for (int l = 0; l < loads; l++) offset[l] = walk(kept, first + MIN(POSITION(me + l * ITEMS), last));
}

INLINE void load_view(ACC *share, __global const T *source, const long *offset, const Axes *deep, long k0, int loads,
                          int along_k, int width, int length, int depth, int me) {
    const long same = along_k ? walk(deep, k0 + MIN(DEEP(me), depth - 1)) : 0;  // all of its vectors are equally deep
    UNROLL for (int l = 0; l < loads; l++) {
        const int e = me + l * ITEMS, exists = DEEP(e) < depth;
        __global const T *from = source + offset[l] + (along_k ? same : walk(deep, k0 + MIN(DEEP(e), depth - 1)));
#if FLOAT32
        if (width == 4) {
            const float4 v = exists ? *(__global const float4 *)from : (float4)0;
            share[4 * l] = v.x, share[4 * l + 1] = v.y, share[4 * l + 2] = v.z, share[4 * l + 3] = v.w;
        } else
#endif
            UNROLL for (int i = 0; i < width; i++) share[l * width + i] = exists ? LOAD(from, i) : 0;
    }
}

// Write a work-item's share to local memory as tile[k * row + position].
INLINE void store_share(const ACC *share, __local ACC *tile, int loads, int along_k, int width, int length, int row,
                int me) {
    UNROLL for (int l = 0; l < loads; l++) {
        const int e = me + l * ITEMS;
        __local ACC *target = tile + DEEP(e) * row + POSITION(e);
        if (width == 4 && !along_k)
            *(__local four *)target =
                (four)(share[4 * l], share[4 * l + 1], share[4 * l + 2], share[4 * l + 3]);
        else
            UNROLL for (int i = 0; i < width; i++) target[along_k ? i * row : i] = share[l * width + i];
    }
}

#if IM2COL == 1
#define FETCH_X(k0, depth) \
    load_view(x_share, x_from, x_offset, &im2col.deep, k0, X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, depth, me)
#else
#define FETCH_X(k0, depth) load_share(x_share, x_from, x_offset, X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, depth, me)
#endif
#if IM2COL == 2
#define FETCH_Y(k0, depth) \
    load_view(y_share, y_from, y_offset, &im2col.deep, k0, Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, depth, me)
#else
#define FETCH_Y(k0, depth) load_share(y_share, y_from, y_offset, Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, depth, me)
#endif
#define FETCH(k0, depth) \
    FETCH_X(k0, depth); \
    FETCH_Y(k0, depth)
#define PUT(buffer) \
    store_share(x_share, (__local ACC *)x_tile[buffer], X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, ROW_M, me); \
    store_share(y_share, (__local ACC *)y_tile[buffer], Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, ROW_N, me)

// ---- epilogue ---------------------------------------------------------------------------------------------

INLINE void write_four(__global T *out, __global T *saved, __global const T *bias, size_t i, int columns,
                       const ACC *v) {
    ACC before[4], after[4];
    UNROLL for (int c = 0; c < 4; c++) {
        before[c] = v[c] + (BIAS && c < columns ? LOAD(bias, c) : 0);
        after[c] = ACTIVATE(before[c]);
    }
#if FLOAT32
    if (OUT_VECTOR == 4) {
        if (SAVE) *(__global float4 *)(saved + i) = (float4)(before[0], before[1], before[2], before[3]);
        *(__global float4 *)(out + i) = (float4)(after[0], after[1], after[2], after[3]);
        return;
    }
#endif
    UNROLL for (int c = 0; c < 4; c++)
        if (c < columns) {
            if (SAVE) STORE(saved, i + c, before[c]);
            STORE(out, i + c, after[c]);
        }
}

#define WRITE_FOUR(row, column, v) \
    if (row < m && column < n) \
        write_four(out, saved, BIAS ? bias + (column) : bias, (b * m + row) * n + (column), MIN(4, n - (column)), v);

// ---- scheduling -------------------------------------------------------------------------------------------

// The matrix, first row and first column of a tile. Tiles are ordered in bands of RASTER along m.
typedef struct {
    long matrix, top, left;
} Origin;

INLINE void find_origin(Origin *origin, long tile, long m, long n) {
    const long tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
    const int in_matrix = tile % (tiles_m * tiles_n), band = in_matrix / (RASTER * tiles_n);
    const int in_band = in_matrix % (RASTER * tiles_n), high = MIN(RASTER, tiles_m - band * RASTER);
    origin->matrix = tile / (tiles_m * tiles_n);
    origin->top = (long)(band * RASTER + in_band % high) * TILE_M;
    origin->left = (long)(in_band / high) * TILE_N;
}

// The first step of work-group `part`, if `parts` groups share the steps of all tiles.
INLINE long share_begin(long all, long part, long parts) { return all / parts * part + all % parts * part / parts; }

// The first row and column of a work-item's sums in a tile; further ones lie LANES_M, LANES_N pieces of four apart.
// Pairs of neighbors share pieces of y; work-items at distance 2 share pieces of x.
INLINE int first_row(int me) {
    const int lane = me % 32;
    return me / 32 / BLOCKS_N * (LANES_M * ITEM_M) + ((lane & 1) | (lane / (2 * LANES_N) << 1)) * 4;
}
INLINE int first_column(int me) {
    return me / 32 % BLOCKS_N * (LANES_N * ITEM_N) + (me % 32 >> 1) % LANES_N * 4;
}

// ---- the kernels ------------------------------------------------------------------------------------------

#define ATTRIBUTES __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#define ARGUMENTS \
    __global const T *restrict x, __global const T *restrict y, __global const T *restrict bias, \
    __global four *sums, __global T *out, __global T *saved, const long m, const long n, const long k, \
    const long tiles, const long x_start, const long x_step, const long y_start, const long y_step, \
    const long inner, const long x_outer, const long x_inner, const long y_outer, const long y_inner
#if IM2COL
__kernel ATTRIBUTES void matmul_im2col(ARGUMENTS, const Im2col im2col) {
#else
__kernel ATTRIBUTES void matmul(ARGUMENTS) {
#endif
    __local four x_tile[2][TILE_K * ROW_M / 4], y_tile[2][TILE_K * ROW_N / 4];
    const int me = get_local_id(0), first_m = first_row(me), first_n = first_column(me);
    const long group = get_group_id(0), steps = (k + TILE_K - 1) / TILE_K;
#if SPLIT
    const long parts = get_num_groups(0), end = share_begin(tiles * steps, group + 1, parts);
    for (long at = share_begin(tiles * steps, group, parts); at < end;) {
        const long tile = at / steps, begin = at % steps, until = MIN(steps, begin + end - at);
        at += until - begin;
#else
    {
        const long tile = group, begin = 0, until = steps;
#endif
        Origin origin;
        find_origin(&origin, tile, m, n);
        const long b = origin.matrix, from = begin * TILE_K, depth = MIN(until * TILE_K, k) - from;
        __global const T *x_from = x + x_start + (b / inner) * x_outer + (b % inner) * x_inner;
        __global const T *y_from = y + y_start + (b / inner) * y_outer + (b % inner) * y_inner;
        const int last_m = MIN(TILE_M, m - origin.top) - (X_ALONG_K ? 1 : X_VECTOR);
        const int last_n = MIN(TILE_N, n - origin.left) - (Y_ALONG_K ? 1 : Y_VECTOR);
#if IM2COL == 1
        long x_offset[X_LOADS];
        find_view_offsets(x_offset, &im2col.kept, X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, origin.top, last_m, me);
#else
        int x_offset[X_LOADS];
        x_from += X_ALONG_K ? origin.top * x_step + from : from * x_step + origin.top;
        find_offsets(x_offset, X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, last_m, x_step, me);
#endif
#if IM2COL == 2
        long y_offset[Y_LOADS];
        find_view_offsets(y_offset, &im2col.kept, Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, origin.left, last_n, me);
#else
        int y_offset[Y_LOADS];
        y_from += Y_ALONG_K ? origin.left * y_step + from : from * y_step + origin.left;
        find_offsets(y_offset, Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, last_n, y_step, me);
#endif
        ACC sum[ITEM_M][ITEM_N], x_share[X_LOADS * X_VECTOR], y_share[Y_LOADS * Y_VECTOR];
        UNROLL for (int i = 0; i < ITEM_M; i++)
            UNROLL for (int j = 0; j < ITEM_N; j++) sum[i][j] = 0;

        if (depth > 0) {
            FETCH(from, depth);
            PUT(0);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        int current = 0;
        for (long d = 0; d < depth; d += TILE_K, current ^= 1) {
            const long remaining = depth - d - TILE_K;
            if (remaining > 0) {
                if (IM2COL != 1) x_from += X_ALONG_K ? TILE_K : TILE_K * x_step;
                if (IM2COL != 2) y_from += Y_ALONG_K ? TILE_K : TILE_K * y_step;
            }
            if (remaining >= TILE_K) { FETCH(from + d + TILE_K, TILE_K); }
            else if (remaining > 0) { FETCH(from + d + TILE_K, remaining); }
            __local const four *left_pieces = x_tile[current] + first_m / 4;
            __local const four *right_pieces = y_tile[current] + first_n / 4;
            UNROLL for (int t = 0; t < TILE_K; t++) {
                ACC l[ITEM_M], r[ITEM_N];
                UNROLL for (int i = 0; i < ITEM_M / 4; i++)
                    *(four *)(l + 4 * i) = left_pieces[t * (ROW_M / 4) + i * LANES_M];
                UNROLL for (int j = 0; j < ITEM_N / 4; j++)
                    *(four *)(r + 4 * j) = right_pieces[t * (ROW_N / 4) + j * LANES_N];
                UNROLL for (int i = 0; i < ITEM_M; i++)
                    UNROLL for (int j = 0; j < ITEM_N; j++) {
                        const int zigzag = i % 2 ? ITEM_N - 1 - j : j;  // consecutive multiply-adds share an operand
                        sum[i][zigzag] = l[i] * r[zigzag] + sum[i][zigzag];
                    }
            }
            if (remaining > 0) { PUT(current ^ 1); }
            barrier(CLK_LOCAL_MEM_FENCE);
        }

#if SPLIT
        if (until - begin < steps) {
            __global four *piece = sums + (2 * group + (begin == 0)) * SUMS + me;
            UNROLL for (int i = 0; i < ITEM_M; i++)
                UNROLL for (int j = 0; j < ITEM_N / 4; j++)
                    piece[(i * (ITEM_N / 4) + j) * ITEMS] = *(four *)(sum[i] + 4 * j);
            continue;
        }
#endif
        UNROLL for (int i = 0; i < ITEM_M; i++) {
            const long row = origin.top + first_m + i / 4 * (LANES_M * 4) + i % 4;
            UNROLL for (int j = 0; j < ITEM_N; j += 4)
                WRITE_FOUR(row, origin.left + first_n + j * LANES_N, sum[i] + j)
        }
    }
}

#if SPLIT
// Add the partial sums of a tile that work-groups have shared, in a fixed order; four of each ITEM_M rows.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void matmul_join(__global const T *restrict bias, __global const four *restrict sums, __global T *restrict out,
                 __global T *restrict saved, const long m, const long n, const long k, const long tiles,
                 const long parts) {
    const int me = get_local_id(0), first_m = first_row(me), first_n = first_column(me), rows = get_group_id(1);
    const long tile = get_group_id(0), steps = (k + TILE_K - 1) / TILE_K, all = tiles * steps;
    const long begin = tile * steps, end = begin + steps;
    long part = begin * parts / all;
    while (share_begin(all, part + 1, parts) <= begin) part++;
    while (share_begin(all, part, parts) > begin) part--;
    if (share_begin(all, part + 1, parts) >= end) return;  // one work-group computed the whole tile
    ACC sum[4][ITEM_N];
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < ITEM_N; j++) sum[i][j] = 0;
    for (; share_begin(all, part, parts) < end; part++) {
        if (share_begin(all, part, parts) == share_begin(all, part + 1, parts)) continue;  // more groups than steps
        __global const four *piece = sums + (2 * part + (share_begin(all, part, parts) <= begin)) * SUMS + me;
        UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int j = 0; j < ITEM_N / 4; j++)
                *(four *)(sum[i] + 4 * j) += piece[((rows * 4 + i) * (ITEM_N / 4) + j) * ITEMS];
    }
    Origin origin;
    find_origin(&origin, tile, m, n);
    const long b = origin.matrix;
    UNROLL for (int i = 0; i < 4; i++) {
        const long row = origin.top + first_m + rows * (LANES_M * 4) + i;
        UNROLL for (int j = 0; j < ITEM_N; j += 4)
            WRITE_FOUR(row, origin.left + first_n + j * LANES_N, sum[i] + j)
    }
}
#endif
