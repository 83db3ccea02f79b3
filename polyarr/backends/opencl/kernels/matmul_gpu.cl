// Matrix product on a GPU: out = activation(x @ y + bias), for a batch of matrices.
//
// A work-group computes a tile of TILE_M x TILE_N. It walks along k in steps of TILE_K with two buffers in
// local memory: while one is multiplied, the next tiles of x and y are on their way through registers into
// the other. A work-item keeps ITEM_M x ITEM_N sums, in pieces of 4 x 4 that lie LANES_M and LANES_N pieces
// apart, so that neighbours read neighbouring words. Positions past the end of a matrix read its last row or
// column again and are never written; elements past the end of k are 0.
//
// Arrays   x (batch, m, k), y (batch, k, n), each with one stride of its two last axes 1 and the other x_step
//          or y_step; bias (n); out, saved (batch, m, n) row-major, saved what activation is applied to;
//          sums (slices, batch, m, n) of ACC, used if SPLIT: one sum for each slice of k
// Batch    matrix b of x lies at x_start + (b / inner) * x_outer + (b % inner) * x_inner; the same for y
// Launch   matmul: global (tiles * ITEMS, slices, batch), local (ITEMS, 1, 1)
//          matmul_join: global a multiple of JOIN_ITEMS not less than batch * m * n, local JOIN_ITEMS
// Params   T, ACC, LOAD, STORE of the dtype | FLOATING 1 if it is a float dtype, FLOAT32 1 if it is float32
//          X_ALONG_K, Y_ALONG_K 1 if the stride along k is the one that is 1
//          X_VECTOR, Y_VECTOR, OUT_VECTOR elements read or written at once: 4 if rows are made of aligned
//          fours, else 1
//          BIAS, SAVE 1 to add bias, to write saved | ACTIVATION none, relu, silu, gelu or gelu_tanh
//          SPLIT 1 if k is cut into slices | TILE_* and ITEM_* as above, ITEM_* multiples of 4
//          LANES_N neighbours of 32 along n | RASTER tiles along m that run together, to share columns of y |
//          JOIN_ITEMS work-group size of matmul_join
#if !defined(FLOAT32) || !defined(X_ALONG_K) || !defined(Y_ALONG_K)
#error "matmul_gpu.cl needs FLOAT32, X_ALONG_K and Y_ALONG_K"
#endif
#if !defined(X_VECTOR) || !defined(Y_VECTOR)
#error "matmul_gpu.cl needs X_VECTOR and Y_VECTOR"
#endif
#if !defined(OUT_VECTOR) || !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(SPLIT)
#error "matmul_gpu.cl needs OUT_VECTOR, BIAS, SAVE, ACTIVATION and SPLIT"
#endif
#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(ITEM_M) || !defined(ITEM_N)
#error "matmul_gpu.cl needs TILE_M, TILE_N, TILE_K, ITEM_M and ITEM_N"
#endif
#if !defined(LANES_N) || !defined(RASTER) || !defined(JOIN_ITEMS)
#error "matmul_gpu.cl needs LANES_N, RASTER and JOIN_ITEMS"
#endif

#define ITEMS (TILE_M / ITEM_M * TILE_N / ITEM_N)
#define LANES_M (32 / LANES_N)
#define BLOCKS_N (TILE_N / (LANES_N * ITEM_N))  // blocks of 32 work-items along n
#define ROW_M (TILE_M + 4)  // a row in local memory; the 4 spread a transposed store over the banks
#define ROW_N (TILE_N + 4)
#define X_LOADS (TILE_M * TILE_K / X_VECTOR / ITEMS)
#define Y_LOADS (TILE_N * TILE_K / Y_VECTOR / ITEMS)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
typedef PASTE(ACC, 4) four;

// ---- tiles of an operand ----------------------------------------------------------------------------------
//
// An operand's tile has `length` positions (rows of x, columns of y) by TILE_K. Its contiguous axis is k or
// that of the positions; consecutive work-items take consecutive vectors along it.

#define POSITION(e) (along_k ? (e) / (TILE_K / width) : (e) % (length / width) * width)
#define DEEP(e) (along_k ? (e) % (TILE_K / width) * width : (e) / (length / width))

// Where each vector of one's share lies, from the first element of the tile; last is the last position of a
// vector.
INLINE void places(int *place, int loads, int along_k, int width, int length, int last, int step, int me) {
    UNROLL for (int l = 0; l < loads; l++) {
        const int e = me + l * ITEMS, position = MIN(POSITION(e), last);
        place[l] = along_k ? position * step + DEEP(e) : position + DEEP(e) * step;
    }
}

// Read one's share of a tile of which `depth` steps along k exist.
INLINE void fetch(ACC *share, __global const T *source, const int *place, int loads, int along_k, int width,
                  int length, int depth, int me) {
    UNROLL for (int l = 0; l < loads; l++) {
        const int exists = DEEP(me + l * ITEMS) < depth;
#if FLOAT32
        if (width == 4) {
            const float4 v = exists ? *(__global const float4 *)(source + place[l]) : (float4)0;
            share[4 * l] = v.x, share[4 * l + 1] = v.y, share[4 * l + 2] = v.z, share[4 * l + 3] = v.w;
        } else
#endif
            UNROLL for (int i = 0; i < width; i++)
                share[l * width + i] = exists ? LOAD(source, place[l] + i) : 0;
    }
}

// Write one's share to local memory as tile[k * row + position].
INLINE void put(const ACC *share, __local ACC *tile, int loads, int along_k, int width, int length, int row,
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

#define FETCH(depth) \
    fetch(x_share, x, x_place, X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, depth, me); \
    fetch(y_share, y, y_place, Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, depth, me)
#define PUT(buffer) \
    put(x_share, (__local ACC *)x_tile[buffer], X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, ROW_M, me); \
    put(y_share, (__local ACC *)y_tile[buffer], Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, ROW_N, me)

// ---- writing ----------------------------------------------------------------------------------------------

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

INLINE void write_sums(__global ACC *sums, size_t i, int columns, const ACC *v) {
    UNROLL for (int c = 0; c < 4; c++)
        if (c < columns) sums[i + c] = v[c];
}

// ---- the kernels ------------------------------------------------------------------------------------------

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void matmul(__global const T *restrict x, __global const T *restrict y, __global const T *restrict bias,
            __global ACC *sums, __global T *out, __global T *saved, const long m, const long n, const long k,
            const long slice, const long x_start, const long x_step, const long y_start, const long y_step,
            const long inner, const long x_outer, const long x_inner, const long y_outer,
            const long y_inner) {
    __local four x_tile[2][TILE_K * ROW_M / 4], y_tile[2][TILE_K * ROW_N / 4];
    const int me = get_local_id(0), lane = me % 32, block = me / 32;
    const long b = get_group_id(2), from = get_group_id(1) * slice, depth = MIN(slice, k - from);

    // Tiles in bands of RASTER along m.
    const int tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
    const int band = get_group_id(0) / (RASTER * tiles_n), in_band = get_group_id(0) % (RASTER * tiles_n);
    const int band_m = MIN(RASTER, tiles_m - band * RASTER);
    const long top = (long)(band * RASTER + in_band % band_m) * TILE_M;
    const long left = (long)(in_band / band_m) * TILE_N;

    x += x_start + (b / inner) * x_outer + (b % inner) * x_inner;
    y += y_start + (b / inner) * y_outer + (b % inner) * y_inner;
    x += X_ALONG_K ? top * x_step + from : from * x_step + top;
    y += Y_ALONG_K ? left * y_step + from : from * y_step + left;
    int x_place[X_LOADS], y_place[Y_LOADS];
    const int last_m = MIN(TILE_M, m - top) - (X_ALONG_K ? 1 : X_VECTOR);
    const int last_n = MIN(TILE_N, n - left) - (Y_ALONG_K ? 1 : Y_VECTOR);
    places(x_place, X_LOADS, X_ALONG_K, X_VECTOR, TILE_M, last_m, x_step, me);
    places(y_place, Y_LOADS, Y_ALONG_K, Y_VECTOR, TILE_N, last_n, y_step, me);

    // Neighbours share pieces of y, those at a distance of 2 share pieces of x.
    const int lane_n = (lane >> 1) % LANES_N, lane_m = (lane & 1) | (lane / (2 * LANES_N) << 1);
    const int first_m = block / BLOCKS_N * (LANES_M * ITEM_M) + lane_m * 4;
    const int first_n = block % BLOCKS_N * (LANES_N * ITEM_N) + lane_n * 4;
    ACC sum[ITEM_M][ITEM_N], x_share[X_LOADS * X_VECTOR], y_share[Y_LOADS * Y_VECTOR];
    UNROLL for (int i = 0; i < ITEM_M; i++)
        UNROLL for (int j = 0; j < ITEM_N; j++) sum[i][j] = 0;

    if (depth > 0) {
        FETCH(depth);
        PUT(0);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    int current = 0;
    for (long d = 0; d < depth; d += TILE_K, current ^= 1) {
        const long remaining = depth - d - TILE_K;
        if (remaining > 0) {
            x += X_ALONG_K ? TILE_K : TILE_K * x_step;
            y += Y_ALONG_K ? TILE_K : TILE_K * y_step;
        }
        if (remaining >= TILE_K) { FETCH(TILE_K); }
        else if (remaining > 0) { FETCH(remaining); }
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
                    const int zigzag = i % 2 ? ITEM_N - 1 - j : j;  // the last factor is the next one's first
                    sum[i][zigzag] = l[i] * r[zigzag] + sum[i][zigzag];
                }
        }
        if (remaining > 0) { PUT(current ^ 1); }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    const size_t matrix = (size_t)(b + (SPLIT ? get_group_id(1) * get_num_groups(2) : 0)) * m * n;
    UNROLL for (int i = 0; i < ITEM_M; i++) {
        const long row = top + first_m + i / 4 * (LANES_M * 4) + i % 4;
        UNROLL for (int j = 0; j < ITEM_N; j += 4) {
            const long column = left + first_n + j * LANES_N;
            if (row < m && column < n) {
                const size_t at = matrix + row * n + column;
                const int columns = MIN(4, n - column);
                if (SPLIT) write_sums(sums, at, columns, sum[i] + j);
                else write_four(out, saved, BIAS ? bias + column : bias, at, columns, sum[i] + j);
            }
        }
    }
}

// Add the slices' sums, in order.
__kernel __attribute__((reqd_work_group_size(JOIN_ITEMS, 1, 1)))
void matmul_join(__global const T *restrict bias, __global const ACC *restrict sums, __global T *restrict out,
                 __global T *restrict saved, const long count, const long n, const long slices) {
    const size_t i = get_global_id(0);
    if (i >= count) return;
    ACC v = 0;
    for (long s = 0; s < slices; s++) v += sums[s * count + i];
    v += BIAS ? LOAD(bias, i % n) : 0;
    if (SAVE) STORE(saved, i, v);
    STORE(out, i, ACTIVATE(v));
}
