// Matrix product on the matrix units of NVIDIA's GPUs from Ampere on: out = activation(x @ y + bias), for a batch of
// matrices of 16-bit floats, added up in float32; or of float32 in two parts of float16 each (matmul_parts.cl).
//
// A work-group computes a tile of TILE_M x TILE_N, each of its warps a part of WARP_M x WARP_N. Pieces of x and y, 32
// long along k, are copied into a ring of STAGES in local memory, past the registers, while earlier ones are multiplied.
// What lies outside of a matrix arrives as zeros. Where tiles are few, `parts` work-groups share the steps of one, and a
// second kernel adds what they have, in order.
//
// In local memory a piece has rows of 64 bytes along k or, turned, 32 rows along the positions. Their 16-byte pieces are
// exchanged by the row's number, so that eight rows are read from different banks.
//
// With PARTS, k is walked three times: low by high, high by low, high by high. The matrix units round their sums towards
// zero, so these are added up in ordinary float32 every few steps.
//
// Arrays   x (batch, m, k), y (batch, k, n), each with one stride of its two last axes 1 and all others multiples of 16
//          bytes; bias (n); out, saved (batch, m, n) row-major, saved what activation is applied to; sums, used if SPLIT:
//          float[tiles * parts][TILE_M * TILE_N]; peaks: what the shifts of x and y follow from, used if PARTS is 3
// Batch    matrix b of x is at (b / inner) * x_outer + (b % inner) * x_inner; with parts, x_outer leads from high to low
// Launch   matmul: global (tiles * ITEMS, parts), local (ITEMS, 1)
//          matmul_join, if SPLIT: global (tiles * ITEMS, WARP_M / 16), local (ITEMS, 1)
// Params   T, LOAD, STORE, KIND of the dtype | TILE_M, TILE_N, WARP_M, WARP_N, STAGES as above: WARP_M and WARP_N are
//          multiples of 16, TILE_M and TILE_N of 64
//          X_ALONG_K, Y_ALONG_K 1 if the stride along k is the one that is 1 | EVEN 1 if n is even
//          BIAS, SAVE 1 to add bias, to write saved | ACTIVATION none, relu, silu, gelu or gelu_tanh
//          WINDOWS 1 if x is made of windows (windows.cl), contiguous along k; 2 if y is, contiguous along its columns;
//          else 0. With windows, whose pieces of 16 bytes are whole, the kernel is called matmul_of_windows
//          SPLIT 1 if work-groups share tiles | PARTS 1, or 3 if x and y are float16 parts and out is float32
#include "ptx.cl"
#include "windows.cl"
#if !defined(TILE_M) || !defined(TILE_N) || !defined(WARP_M) || !defined(WARP_N) || !defined(STAGES)
#error "matmul_mma.cl needs TILE_M, TILE_N, WARP_M, WARP_N and STAGES"
#endif
#if !defined(X_ALONG_K) || !defined(Y_ALONG_K) || !defined(EVEN) || !defined(SPLIT) || !defined(PARTS)
#error "matmul_mma.cl needs X_ALONG_K, Y_ALONG_K, EVEN, SPLIT and PARTS"
#endif
#if !defined(BIAS) || !defined(SAVE) || !defined(ACTIVATION) || !defined(WINDOWS)
#error "matmul_mma.cl needs BIAS, SAVE, ACTIVATION and WINDOWS"
#endif

#define WARPS_M (TILE_M / WARP_M)
#define ITEMS (WARPS_M * (TILE_N / WARP_N) * 32)
#define HIGH (WARP_M / 16)  // a warp's sums: HIGH x WIDE blocks of 16 x 8, of which a lane has four
#define WIDE (WARP_N / 8)
#define STEP 32  // of k
#define X_BYTES (TILE_M * STEP * 2)
#define STAGE_BYTES (X_BYTES + TILE_N * STEP * 2)
#if STAGES == 2
#define STAGES_LEFT 0
#elif STAGES == 3
#define STAGES_LEFT 1
#elif STAGES == 4
#define STAGES_LEFT 2
#else
#error "matmul_mma.cl: STAGES is 2, 3 or 4"
#endif
#define FOLD 8  // steps after which sums leave the matrix units
#if PARTS == 3
#define INPUT half
#else
#define INPUT T
#endif

// The numbers of a launch; raster tiles along m run together, to share columns of y.
typedef struct {
    long m, n, k, tiles_m, tiles_n, raster, parts, inner, x_step, x_outer, x_inner, y_step, y_outer, y_inner;
} Numbers;

// ---- instructions -----------------------------------------------------------------------------------------------

// Sixteen bytes to local memory, of which `bytes` are read and the others are 0.
INLINE void piece_load(uint to, __global const INPUT *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
#define PIECES_GO() asm volatile("cp.async.commit_group;" ::: "memory")
// Until at most so many groups of pieces are on their way.
#define PIECES_WAIT(left) asm volatile("cp.async.wait_group " TEXT(left) ";" ::: "memory")

// Four matrices of 8 x 8 from local memory to the registers of a warp, a row at each lane's place.
#define LOAD_MATRICES(how, v, from) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3]) : "r"(from) : "memory")

// s (16 x 8) += x (16 x 16) @ y (16 x 8)
INLINE void multiply(float *s, const uint *x, const uint *y) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TEXT(KIND) "." TEXT(KIND) ".f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}

// ---- pieces of an operand in local memory -----------------------------------------------------------------------

// Where a piece is: its row and its number in the row.
INLINE uint swizzled_along_k(uint row, uint number) { return row * 64 + ((number ^ (row / 2 % 4)) << 4); }
INLINE uint swizzled_turned(uint row, uint number, uint length) {
    return row * (length * 2) + ((number ^ (row % 8)) << 4);
}

// One's share of the pieces of a step that begins at k0; `from` is the matrix, `first` the tile's first position. Its
// pieces have the same place in rows that lie a multiple of 8 apart. Of what is outside of the matrix 0 bytes are read.
INLINE void operand_load(uint to, __global const INPUT *from, int along_k, int length, long first, long positions,
                         long step, long k0, long k, int me) {
    const int in_row = (along_k ? STEP : length) / 8, number = me % in_row, row = me / in_row, apart = ITEMS / in_row;
    const long left = along_k ? k - k0 - number * 8 : positions - first - number * 8;  // elements, from the piece on
    const long rows = (along_k ? positions - first : k - k0) - row;
    const int bytes = (int)MAX(MIN(left * 2, 16L), 0L);
    from += along_k ? (first + row) * step + k0 + number * 8 : (k0 + row) * step + first + number * 8;
    to += along_k ? swizzled_along_k(row, number) : swizzled_turned(row, number, length);
    UNROLL for (int l = 0; l < length * STEP / 8 / ITEMS; l++)
        piece_load(to + l * apart * in_row * 16, from + l * apart * step, l * apart < rows ? bytes : 0);
}

// The same of windows: where one's pieces lie that do not move along k, and the pieces of a step.
INLINE void windows_places(long *kept, const Axes *axes, int along_k, int length, long first, long positions, int me) {
    const int in_row = (along_k ? STEP : length) / 8, number = me % in_row, row = me / in_row, apart = ITEMS / in_row;
    UNROLL for (int l = 0; l < length * STEP / 8 / ITEMS; l++)
        kept[l] = walk(axes, MIN(first + (along_k ? row + l * apart : number * 8), positions - 1));
}

INLINE void windows_load(uint to, __global const INPUT *from, const long *kept, const Axes *deep, int along_k, int length,
                         long first, long positions, long k0, long k, int me) {
    const int in_row = (along_k ? STEP : length) / 8, number = me % in_row, row = me / in_row, apart = ITEMS / in_row;
    const int bytes = (along_k ? k - k0 : positions - first) > number * 8 ? 16 : 0;
    const long rows = (along_k ? positions - first : k - k0) - row;
    to += along_k ? swizzled_along_k(row, number) : swizzled_turned(row, number, length);
    if (along_k) from += walk(deep, MIN(k0 + number * 8, k - 1));
    UNROLL for (int l = 0; l < length * STEP / 8 / ITEMS; l++)
        piece_load(to + l * apart * in_row * 16,
                   from + kept[l] + (along_k ? 0 : walk(deep, MIN(k0 + row + l * apart, k - 1))),
                   l * apart < rows ? bytes : 0);
}

// x for 16 rows and 16 of k: four words of each lane.
INLINE void x_take(uint *v, uint at, uint row, uint deep, uint lane) {
#if X_ALONG_K
    LOAD_MATRICES("", v, at + swizzled_along_k(row + lane % 16, deep / 8 + lane / 16));
#else
    LOAD_MATRICES(".trans", v, at + swizzled_turned(deep + lane / 16 * 8 + lane % 8, (row + lane / 8 % 2 * 8) / 8, TILE_M));
#endif
}
// y for 16 of k and 16 columns: two words of each lane for the first 8, two for the others.
INLINE void y_take(uint *v, uint at, uint column, uint deep, uint lane) {
#if Y_ALONG_K
    LOAD_MATRICES("", v, at + swizzled_along_k(column + lane / 16 * 8 + lane % 8, deep / 8 + lane / 8 % 2));
#else
    LOAD_MATRICES(".trans", v, at + swizzled_turned(deep + lane % 16, (column + lane / 16 * 8) / 8, TILE_N));
#endif
}

// ---- tiles and writing ------------------------------------------------------------------------------------------

typedef struct {
    long row, column, matrix;
} Place;

INLINE void find_place(Place *place, const Numbers *a, long tile) {
    const long each = a->tiles_m * a->tiles_n, in_matrix = tile % each, band_tiles = a->raster * a->tiles_n;
    const long band = in_matrix / band_tiles, in_band = in_matrix % band_tiles;
    const long high = MIN(a->tiles_m - band * a->raster, a->raster);
    place->matrix = tile / each;
    place->row = (band * a->raster + in_band % high) * TILE_M;
    place->column = in_band / high * TILE_N;
}

INLINE void write_two(__global T *target, const Numbers *a, long matrix, long row, long column, float v, float w) {
    if (row >= a->m || column >= a->n) return;
    const size_t i = ((size_t)matrix * a->m + row) * a->n + column;
#if PARTS == 1 && EVEN
    *(__global uint *)(target + i) = pair_of(v, w);
#else
    STORE(target, i, v);
    if (column + 1 < a->n) STORE(target, i + 1, w);
#endif
}

// Two neighbours in each of two rows, 8 apart.
INLINE void write_four(__global T *out, __global T *saved, __global const T *bias, const Numbers *a, long matrix,
                       long row, long column, const float *sums, float scale, float rest) {
    float v[4];
    UNROLL for (int i = 0; i < 4; i++) {
        v[i] = PARTS == 3 ? sums[i] * scale * rest : sums[i];
        if (BIAS && column + i % 2 < a->n) v[i] += LOAD(bias, column + i % 2);
    }
    UNROLL for (int i = 0; i < 4; i += 2) {
        if (SAVE) write_two(saved, a, matrix, row + i * 4, column, v[i], v[i + 1]);
        write_two(out, a, matrix, row + i * 4, column, ACTIVATE(v[i]), ACTIVATE(v[i + 1]));
    }
}

#if PARTS == 3
#define FIND_SCALES() \
    const int shift = -shift_of(peaks[0]) - shift_of(peaks[1]); \
    const float scale = power_of_2(shift / 2), rest = power_of_2(shift - shift / 2)  // as one it could be infinite
#else
#define FIND_SCALES() const float scale = 1, rest = 1
#endif

// ---- the kernels ------------------------------------------------------------------------------------------------

#if WINDOWS == 1
#define LOAD_X(to, from) \
    windows_load(to, from, kept, &windows.deep, X_ALONG_K, TILE_M, place.row, a.m, k0, a.k, me)
#else
#define LOAD_X(to, from) operand_load(to, from, X_ALONG_K, TILE_M, place.row, a.m, a.x_step, k0, a.k, me)
#endif
#if WINDOWS == 2
#define LOAD_Y(to, from) \
    windows_load(to, from, kept, &windows.deep, Y_ALONG_K, TILE_N, place.column, a.n, k0, a.k, me)
#else
#define LOAD_Y(to, from) operand_load(to, from, Y_ALONG_K, TILE_N, place.column, a.n, a.y_step, k0, a.k, me)
#endif

// The pieces of step number `step`, if there is one.
#define FETCH(step) { \
        const int next = step, slot = next % STAGES; \
        if (next < to) { \
            const uint at = local_at + slot * STAGE_BYTES; \
            const long k0 = (long)(PARTS == 3 ? next % each : next) * STEP; \
            const long x_low = PARTS == 3 && next < each ? a.x_outer : 0; \
            const long y_low = PARTS == 3 && next / each == 1 ? a.y_outer : 0; \
            LOAD_X(at, x + x_low); \
            LOAD_Y(at + X_BYTES, y + y_low); \
        } \
        PIECES_GO(); \
    }

// Until the next step's pieces are there, for everybody.
#define AWAIT_STEP() { \
        PIECES_WAIT(STAGES_LEFT); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    }

// Half a step from local memory; of the last one's successor, what lies there.
#define TAKE(which, step, deep) { \
        const uint at = local_at + (step) % STAGES * STAGE_BYTES; \
        UNROLL for (int i = 0; i < HIGH; i++) x_take(left[which][i], at, warp_row + i * 16, deep, lane); \
        UNROLL for (int j = 0; j < WIDE / 2; j++) \
            y_take(right[which][j], at + X_BYTES, warp_column + j * 16, deep, lane); \
    }

#define MULTIPLY(which) { \
        UNROLL for (int i = 0; i < HIGH; i++) \
            UNROLL for (int j = 0; j < WIDE; j++) \
                multiply(sum[i][j], left[which][i], right[which][j / 2] + j % 2 * 2); \
    }

#define EACH_SUM \
    UNROLL for (int i = 0; i < HIGH; i++) \
        UNROLL for (int j = 0; j < WIDE; j++) \
            UNROLL for (int c = 0; c < 4; c++)

#define ATTRIBUTES __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#define ARGUMENTS \
    __global const INPUT *x, __global const INPUT *y, __global const T *bias, __global float4 *sums, __global T *out, \
    __global T *saved, __global const uint *peaks, const long x_start, const long y_start, const Numbers a
#if WINDOWS
__kernel ATTRIBUTES void matmul_of_windows(ARGUMENTS, const Windows windows) {
#else
__kernel ATTRIBUTES void matmul(ARGUMENTS) {
#endif
    __local uint4 memory[STAGES * STAGE_BYTES / 16] __attribute__((aligned(128)));
    const int me = get_local_id(0), lane = me % 32, warp = me / 32;
    const uint local_at = place_of(memory), warp_row = warp % WARPS_M * WARP_M, warp_column = warp / WARPS_M * WARP_N;
    const int each = (int)((a.k + STEP - 1) / STEP), steps = PARTS * each;
    const int from = (int)((long)steps * get_group_id(1) / a.parts), to = (int)((long)steps * (get_group_id(1) + 1) / a.parts);
    Place place;
    find_place(&place, &a, get_group_id(0));
    x += x_start + (PARTS == 3 ? 0 : place.matrix / a.inner * a.x_outer) + place.matrix % a.inner * a.x_inner;
    y += y_start + (PARTS == 3 ? 0 : place.matrix / a.inner * a.y_outer) + place.matrix % a.inner * a.y_inner;
#if WINDOWS
    long kept[(WINDOWS == 1 ? TILE_M : TILE_N) * STEP / 8 / ITEMS];
    if (WINDOWS == 1) windows_places(kept, &windows.kept, X_ALONG_K, TILE_M, place.row, a.m, me);
    else windows_places(kept, &windows.kept, Y_ALONG_K, TILE_N, place.column, a.n, me);
#endif

    float sum[HIGH][WIDE][4];
    EACH_SUM sum[i][j][c] = 0;
#if PARTS == 3
    float total[HIGH][WIDE][4];
    EACH_SUM total[i][j][c] = 0;
#endif
    UNROLL for (int s = 0; s < STAGES - 1; s++) FETCH(from + s)
    uint left[2][HIGH][4], right[2][WIDE / 2][4];  // of a step's first and second half
    AWAIT_STEP();
    TAKE(0, from, 0);
    for (int step = from; step < to; step++) {
        TAKE(1, step, 16);
        FETCH(step + STAGES - 1);  // where everybody has read all that there was
        MULTIPLY(0);
        AWAIT_STEP();
        TAKE(0, step + 1, 0);
        MULTIPLY(1);
#if PARTS == 3
        if ((step - from) % FOLD == FOLD - 1 || step == to - 1 || step == 2 * each - 1) {
            const float weight = step < 2 * each ? 1 / 2048.0f : 1;
            EACH_SUM {
                total[i][j][c] = sum[i][j][c] * weight + total[i][j][c];
                sum[i][j][c] = 0;
            }
        }
#endif
    }
#if PARTS == 3
    EACH_SUM sum[i][j][c] = total[i][j][c];
#endif
#if SPLIT
    sums += ((size_t)get_group_id(0) * a.parts + get_group_id(1)) * (TILE_M * TILE_N / 4) + me;
    UNROLL for (int i = 0; i < HIGH; i++)
        UNROLL for (int j = 0; j < WIDE; j++)
            sums[(i * WIDE + j) * ITEMS] = (float4)(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
#else
    FIND_SCALES();
    UNROLL for (int i = 0; i < HIGH; i++)
        UNROLL for (int j = 0; j < WIDE; j++)
            write_four(out, saved, bias, &a, place.matrix, place.row + warp_row + i * 16 + lane / 4,
                       place.column + warp_column + j * 8 + lane % 4 * 2, sum[i][j], scale, rest);
#endif
}

#if SPLIT
// Add the parts of a tile in order: 16 rows of each warp.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void matmul_join(__global const float4 *sums, __global const T *bias, __global T *out, __global T *saved,
                 __global const uint *peaks, const Numbers a) {
    const int me = get_local_id(0), lane = me % 32, warp = me / 32, i = get_group_id(1);
    Place place;
    find_place(&place, &a, get_group_id(0));
    FIND_SCALES();
    sums += (size_t)get_group_id(0) * a.parts * (TILE_M * TILE_N / 4) + i * WIDE * ITEMS + me;
    UNROLL for (int j = 0; j < WIDE; j++) {
        float4 sum = 0;
        for (int part = 0; part < a.parts; part++) sum += sums[part * (TILE_M * TILE_N / 4) + j * ITEMS];
        const float v[4] = {sum.x, sum.y, sum.z, sum.w};
        write_four(out, saved, bias, &a, place.matrix, place.row + warp % WARPS_M * WARP_M + i * 16 + lane / 4,
                   place.column + warp / WARPS_M * WARP_N + j * 8 + lane % 4 * 2, v, scale, rest);
    }
}
#endif
