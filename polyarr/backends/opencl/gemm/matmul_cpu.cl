// GEMM on CPUs: out = activation(x @ y + bias), for a batch of matrices.
//
// Each product is cut into shares of rows_each x columns_each. A work-group is one work-item that takes shares from a
// common counter until none are left (dynamic scheduling), so that cores that start late or are slow take fewer. It
// packs blocks of y (DEPTH x Y_BLOCK) and of x (X_BLOCK x DEPTH), unless x is read in place, into panels whose order is
// that in which the register tile of ROWS x (VECTORS * WIDE) sums reads them. A panel of y fits into the L1 cache, a
// block of x into L2, a block of y into L3. There is no barrier.
//
// Arrays   x (batch, m, k), y (batch, k, n) of T; one of the strides of their two last axes is 1, the other is x_step,
//          y_step
//          bias (n) of T; out, saved (batch, m, n) of T, row-major; saved is the input of the activation
//          sums (batch, m, n) of ACC: accumulators, which are out itself if T is ACC
//          panels (groups, room) of ACC: packed blocks of y (y_room elements) and of x, both multiples of 64 bytes;
//          unused if LOCAL_ROOM
//          dealt (2) of uint: shares taken, and groups that have finished; 0 before and after
//          Matrix b of x begins at x_start + (b / inner) * x_outer + (b % inner) * x_inner; likewise for y
// Launch   global (groups), local (1); a group takes at_once shares at a time
// Params   T, ACC, LOAD, STORE     the dtype: see prelude.cl
//          FLOATING, FLOAT_SUMS    1 if the dtype is floating-point, if ACC is float
//          FINISH                  1 if there is an epilogue: sums are not yet the result
//          X_ALONG_K, Y_ALONG_K    1 if the operand is contiguous along k
//          DIRECT                  1 to read x in place; T must be ACC
//          IM2COL                  1 if x is an im2col view (im2col.cl), contiguous along k; 2 if y is, contiguous
//                                  along its columns; else 0. With 1 and 2 the kernel is called matmul_im2col
//          BIAS, SAVE              1 to add bias, to write saved
//          ACTIVATION              none, relu, silu, gelu or gelu_tanh
//          LOCAL_ROOM              elements of local memory for the panels, or 0
//          WIDE                    elements of a vector
//          ROWS, VECTORS           the register tile
//          DEPTH, X_BLOCK, Y_BLOCK  lengths of packed blocks along k, m and n
#include "im2col.cl"
#include "vectors.cl"

#if LOCAL_ROOM
#define PANELS __local
#else
#define PANELS __global
#endif
#define COLUMNS (VECTORS * WIDE)
#define STRIP 8  // columns packed together: a panel's part of one column is less than a cache line
#define INLINE static inline __attribute__((always_inline))
typedef PASTE(ACC, WIDE) vector __attribute__((aligned(4)));

// ---- packing ----------------------------------------------------------------------------------------------
//
// A panel holds `width` rows of a matrix: panel[k * width + i] is element (i, k). Missing rows are 0. A transposed
// store of 8 rows may run past a narrower panel, so every block is followed by spare elements.

#if FLOAT_SUMS
DEFINE_READ(8)
#define LANE(s) (float8)(r0.s, r1.s, r2.s, r3.s, r4.s, r5.s, r6.s, r7.s)
#define ROW(i) read_8(source + MIN(i, last) * step)
#define TO(k) *(PANELS float8_unaligned *)(panel + (k) * width)

// Transpose 8 rows of 8 elements. Rows after the last one are copies of it, which are overwritten later.
INLINE void transpose_8x8(__global const T *restrict source, long step, int last, int width,
                          PANELS float *restrict panel) {
    const float8 r0 = ROW(0), r1 = ROW(1), r2 = ROW(2), r3 = ROW(3);
    const float8 r4 = ROW(4), r5 = ROW(5), r6 = ROW(6), r7 = ROW(7);
    TO(0) = LANE(s0);
    TO(1) = LANE(s1);
    TO(2) = LANE(s2);
    TO(3) = LANE(s3);
    TO(4) = LANE(s4);
    TO(5) = LANE(s5);
    TO(6) = LANE(s6);
    TO(7) = LANE(s7);
}
#endif

// Rows of a panel that a tile reads if `rows` exist: whole vectors for y.
#define READ_OF(width, rows) (width == ROWS ? width : MIN(width, (rows + WIDE - 1) / WIDE * WIDE))

INLINE void pack_elements(__global const T *restrict source, long row_step, long k_step, int width, int rows, int from,
                          int depth, PANELS ACC *restrict panel) {
    for (int k = from; k < depth; k++)
        for (int i = 0; i < READ_OF(width, rows); i++)
            panel[k * width + i] = i < rows ? LOAD(source, i * row_step + k * k_step) : 0;
}

// Pack one panel from rows that are contiguous along k.
INLINE void pack_along_k(__global const T *restrict source, long step, int width, int rows, int depth,
                         PANELS ACC *restrict panel) {
    int k = 0;
#if FLOAT_SUMS
    if (rows == width) {
        for (; k + 8 <= depth; k += 8)
            for (int i = 0; i < width; i += 8) {
                const int row = width < 8 ? 0 : MIN(i, width - 8);
                transpose_8x8(source + row * step + k, step, width - 1 - row, width, panel + k * width + row);
            }
    }
#endif
    pack_elements(source, step, 1, width, rows, k, depth, panel);
}

// Pack columns `from` to `to` of one panel, from columns that are contiguous along the rows, of which `rows` are left.
// For panels narrower than 8, 8 elements are moved at once, and the next column overwrites the excess.
INLINE void pack_along_rows(__global const T *restrict source, long step, int width, int rows, int from, int to,
                            PANELS ACC *restrict panel) {
    int k = from;
#if FLOAT_SUMS
    if (width < 8 && rows >= 8)
        for (; k < to - 1; k++) TO(k) = read_8(source + k * step);
#endif
    if (rows >= width)
        for (; k < to; k++)
            for (int i = 0; i < width; i++) panel[k * width + i] = LOAD(source, k * step + i);
    else
        pack_elements(source, 1, step, width, rows, k, to, panel);
}

INLINE void pack(__global const T *restrict source, long step, int along_k, int width, int rows, int depth,
                 PANELS ACC *restrict panel) {
    const int strip = along_k ? depth : STRIP;
    for (int from = 0; from < depth; from += strip)
        for (int i = 0; i < rows; i += width) {
            PANELS ACC *to = panel + i * depth;
            if (along_k) pack_along_k(source + i * step, step, width, MIN(width, rows - i), depth, to);
            else pack_along_rows(source + i, step, width, rows - i, from, MIN(from + strip, depth), to);
        }
}

// ---- im2col views -----------------------------------------------------------------------------------------
//
// Offsets of the rows of a block of x (or columns of a block of y), and of its steps along k, with runs of consecutive
// ones.

#define KEPT (IM2COL == 2 ? Y_BLOCK : X_BLOCK)

typedef struct {
    long kept[KEPT], deep[DEPTH];
    long run[DEPTH], runs;  // offset of each run, and number of runs
    int length[DEPTH];  // length of each run
} Offsets;

// Offsets beyond `count` repeat the last one.
INLINE void find_kept(Offsets *offsets, const Axes *kept, long from, int count) {
    for (int i = 0; i < KEPT; i++) offsets->kept[i] = i < count ? walk(kept, from + i) : offsets->kept[count - 1];
}

INLINE void find_deep(Offsets *offsets, const Axes *deep, long from, int depth) {
    offsets->runs = 0;
    for (int k = 0; k < depth; k++) {
        const long offset = offsets->deep[k] = walk(deep, from + k);
        if (k == 0 || offset != offsets->deep[k - 1] + 1) {
            offsets->run[offsets->runs] = offset;
            offsets->length[offsets->runs++] = 0;
        }
        offsets->length[offsets->runs - 1]++;
    }
}

// Pack a block of an im2col view into panels.
INLINE void pack_im2col(__global const T *restrict source, const Offsets *offsets, int width, int rows, int depth,
                         PANELS ACC *restrict panel) {
    for (int i = 0; i < rows; i += width, panel += width * depth) {
        const long *kept = offsets->kept + i;
        int neighbours = i + width <= rows;
        for (int r = 1; r < width; r++) neighbours = neighbours && kept[r] == kept[0] + r;
        if (neighbours)
            for (int k = 0; k < depth; k++) {
                __global const T *from = source + kept[0] + offsets->deep[k];
                _Pragma("unroll") for (int r = 0; r < width; r++) panel[k * width + r] = LOAD(from, r);
            }
        else {
            const int left = MIN(width, rows - i);
            for (int k = 0; k < depth; k++) {
                for (int r = 0; r < left; r++) panel[k * width + r] = LOAD(source, kept[r] + offsets->deep[k]);
                for (int r = left; r < READ_OF(width, left); r++) panel[k * width + r] = 0;
            }
        }
    }
}

// ---- one tile in registers --------------------------------------------------------------------------------

// Prefetch the sums that are updated when a tile is done.
#if HAS_BUILTINS
#define EXPECT(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define EXPECT(p) prefetch(p, 1)
#endif

// How a tile iterates over x, whose element in row r is LEFT(r): by strides, or over the runs of an im2col view.
#define STRIDES(SPACE) SPACE const ACC *restrict x, long row_step, long k_step
#define ALONG_STRIDES for (int k = 0; k < depth; k++, x += k_step, y += COLUMNS)
#define LEFT_OF_STRIDES(r) x[(r) * row_step]
#define RUNS __global const ACC *restrict x, const long *restrict at, const Offsets *restrict offsets
#define ALONG_RUNS \
    for (int run = 0; run < offsets->runs; run++) \
        for (__global const ACC *from = x + offsets->run[run], *end = from + offsets->length[run]; from < end; \
             from++, y += COLUMNS)
#define LEFT_OF_RUN(r) from[at[r]]

// Defines NAME, the microkernel: multiply ROWS rows of x by V vectors of a panel of y, and set (or add to) rows x
// columns of sums. Not inlined, which would double the time that the program takes to compile.
#define DEFINE_TILE(NAME, V, LEFT_ARGUMENTS, EACH, LEFT) \
    static __attribute__((noinline)) WIDE_VECTORS void NAME(LEFT_ARGUMENTS, PANELS const ACC *restrict y, int depth, \
                                               __global ACC *sums, long n, int first, int rows, int columns) { \
        vector sum[ROWS][V]; \
        _Pragma("unroll") for (int r = 0; r < ROWS; r++) \
            _Pragma("unroll") for (int v = 0; v < V; v++) { \
                EXPECT(sums + r * n + v * WIDE); \
                sum[r][v] = 0; \
            } \
        EACH { \
            vector right[V]; \
            _Pragma("unroll") for (int v = 0; v < V; v++) right[v] = ((PANELS const vector *)y)[v]; \
            _Pragma("unroll") for (int r = 0; r < ROWS; r++) { \
                const vector left = LEFT(r); \
                _Pragma("unroll") for (int v = 0; v < V; v++) sum[r][v] = left * right[v] + sum[r][v]; \
            } \
        } \
        if (rows == ROWS && columns == V * WIDE) { \
            _Pragma("unroll") for (int r = 0; r < ROWS; r++) { \
                __global vector *row = (__global vector *)(sums + r * n); \
                _Pragma("unroll") for (int v = 0; v < V; v++) \
                    row[v] = first ? sum[r][v] : row[v] + sum[r][v]; \
            } \
        } else { \
            ACC edge[ROWS * V * WIDE]; \
            _Pragma("unroll") for (int r = 0; r < ROWS; r++) \
                _Pragma("unroll") for (int v = 0; v < V; v++) ((vector *)edge)[r * V + v] = sum[r][v]; \
            for (int r = 0; r < rows; r++) \
                for (int c = 0; c < columns; c++) \
                    sums[r * n + c] = edge[r * V * WIDE + c] + (first ? 0 : sums[r * n + c]); \
        } \
    }
#define DEFINE_TILES(V) \
    DEFINE_TILE(packed_##V, V, STRIDES(PANELS), ALONG_STRIDES, LEFT_OF_STRIDES) \
    DEFINE_TILE(direct_##V, V, STRIDES(__global), ALONG_STRIDES, LEFT_OF_STRIDES) \
    DEFINE_TILE(im2col_##V, V, RUNS, ALONG_RUNS, LEFT_OF_RUN)
DEFINE_TILES(1)
DEFINE_TILES(2)
DEFINE_TILES(3)
DEFINE_TILES(4)

// Multiply a tile with the fewest vectors that hold its columns.
#define MULTIPLY_TILE(KIND, columns, ...) \
    if (columns <= WIDE) KIND##_1(__VA_ARGS__, columns); \
    else if (VECTORS >= 2 && columns <= 2 * WIDE) KIND##_2(__VA_ARGS__, columns); \
    else if (VECTORS >= 3 && columns <= 3 * WIDE) KIND##_3(__VA_ARGS__, columns); \
    else if (VECTORS >= 4) KIND##_4(__VA_ARGS__, columns)

// Multiply all tiles of a block of x by a packed block of y. With DIRECT, only the last rows of x, less than a tile,
// are packed, and none of an im2col view.
INLINE void multiply_blocks(__global const T *x, long x_row, long x_deep, const Offsets *offsets,
                            PANELS const ACC *x_panels, PANELS const ACC *y_panels, int depth, __global ACC *sums,
                            long n, int first, int rows, int columns) {
    for (int c = 0; c < columns; c += COLUMNS)
        for (int r = 0; r < rows; r += ROWS) {
            const int height = MIN(ROWS, rows - r), width = MIN(COLUMNS, columns - c);
            PANELS const ACC *left = x_panels + (DIRECT ? 0 : r * depth), *right = y_panels + c * depth;
            __global ACC *corner = sums + r * n + c;
#if DIRECT && IM2COL == 1
            MULTIPLY_TILE(im2col, width, x, offsets->kept + r, offsets, right, depth, corner, n, first, height);
            continue;
#elif DIRECT
            if (height == ROWS) {
                MULTIPLY_TILE(direct, width, x + r * x_row, x_row, x_deep, right, depth, corner, n, first, ROWS);
                continue;
            }
#endif
            MULTIPLY_TILE(packed, width, left, 1, ROWS, right, depth, corner, n, first, height);
        }
}

// ---- epilogue: bias, activation, rounding -----------------------------------------------------------------

INLINE void finish(__global const ACC *sums, __global const T *bias, __global T *out, __global T *saved,
                   long top, long left, long n, int rows, int columns) {
    for (int r = 0; r < rows; r++) {
        const long first = (top + r) * n + left;
        // out may be sums: every element is read before it is overwritten, hence assume_safety.
        WIDELY _Pragma("clang loop vectorize(assume_safety)") for (int c = 0; c < columns; c++) {
            const ACC v = sums[first + c] + (BIAS ? LOAD(bias, left + c) : 0);
            if (SAVE) STORE(saved, first + c, v);
            STORE(out, first + c, ACTIVATE(v));
        }
    }
}

// Compute one share: rows [top, bottom) and columns [left, right) of one product.
INLINE void multiply(__global const T *x, const long x_step, __global const T *y, const long y_step,
                     __global const T *bias, __global ACC *sums, __global T *out, __global T *saved,
                     PANELS ACC *x_panels, PANELS ACC *y_panels, const long top, const long bottom, const long left,
                     const long right, const long n, const long k, const Im2col *im2col) {
    const long x_row = X_ALONG_K ? x_step : 1, x_deep = X_ALONG_K ? 1 : x_step;
    const long y_column = Y_ALONG_K ? y_step : 1, y_deep = Y_ALONG_K ? 1 : y_step;
#if IM2COL
    Offsets found, *offsets = &found;
#else
    const Offsets *offsets = 0;
#endif
    for (long c = left; c < right; c += Y_BLOCK)
        for (long d = 0; d == 0 || d < k; d += DEPTH) {  // at least once: with k = 0 the sums are 0
            const int columns = MIN(Y_BLOCK, right - c), depth = MIN(DEPTH, k - d);
#if IM2COL
            find_deep(offsets, &im2col->deep, d, depth);
#endif
#if IM2COL == 2
            find_kept(offsets, &im2col->kept, c, columns);
            pack_im2col(y, offsets, COLUMNS, columns, depth, y_panels);
#else
            pack(y + c * y_column + d * y_deep, y_step, Y_ALONG_K, COLUMNS, columns, depth, y_panels);
#endif
            for (long r = top; r < bottom; r += X_BLOCK) {
                const int rows = MIN(X_BLOCK, bottom - r), whole = DIRECT ? rows / ROWS * ROWS : 0;
#if IM2COL == 1
                __global const T *block = x;
                find_kept(offsets, &im2col->kept, r, rows);
                if (!DIRECT) pack_im2col(x, offsets, ROWS, rows, depth, x_panels);
#else
                __global const T *block = x + r * x_row + d * x_deep;
                pack(block + whole * x_row, x_step, X_ALONG_K, ROWS, rows - whole, depth, x_panels);
#endif
                multiply_blocks(block, x_row, x_deep, offsets, x_panels, y_panels, depth, sums + r * n + c, n, d == 0,
                                rows, columns);
                if (FINISH && d + depth == k) finish(sums, bias, out, saved, r, c, n, rows, columns);
            }
        }
}

#define ATTRIBUTES __attribute__((reqd_work_group_size(1, 1, 1)))
#define ARGUMENTS \
    __global const T *x, __global const T *y, __global const T *bias, __global ACC *sums, __global T *out, \
    __global T *saved, __global ACC *panels, __global volatile uint *dealt, const uint shares, const uint at_once, \
    const long m, const long n, const long k, const long rows_each, const long columns_each, const long room, \
    const long y_room, const long x_start, const long x_step, const long y_start, const long y_step, \
    const long inner, const long x_outer, const long x_inner, const long y_outer, const long y_inner
#if IM2COL
__kernel ATTRIBUTES void matmul_im2col(ARGUMENTS, const Im2col im2col) {
    const Im2col *found = &im2col;
#else
__kernel ATTRIBUTES void matmul(ARGUMENTS) {
    const Im2col *found = 0;
#endif
#if LOCAL_ROOM
    __local ACC own[LOCAL_ROOM] __attribute__((aligned(64)));
#else
    __global ACC *own = panels + get_group_id(0) * room;
#endif
    const long high = (m + rows_each - 1) / rows_each, each = high * ((n + columns_each - 1) / columns_each);
    for (uint from = atomic_add(dealt, at_once); from < shares; from = atomic_add(dealt, at_once))
        for (uint share = from; share < MIN(from + at_once, shares); share++) {
            const long b = share / each, top = share % each % high * rows_each;
            const long left = share % each / high * columns_each;
            multiply(x + x_start + (b / inner) * x_outer + (b % inner) * x_inner, x_step,
                     y + y_start + (b / inner) * y_outer + (b % inner) * y_inner, y_step, bias, sums + b * m * n,
                     out + b * m * n, SAVE ? saved + b * m * n : saved, own + y_room, own, top, MIN(m, top + rows_each),
                     left, MIN(n, left + columns_each), n, k, found);  // panels of y are page-aligned
        }
    if (atomic_inc(dealt + 1) == get_num_groups(0) - 1) {  // the last group resets both counters
        atomic_cmpxchg(dealt, atomic_add(dealt, 0), 0);
        atomic_cmpxchg(dealt + 1, get_num_groups(0), 0);
    }
}
