// A group of fused ops that iterate over the same rows, some of which reduce them (softmax, norms); for GPUs.
//
// Arrays   inputs: strided views; broadcasting makes strides 0. outputs: dense, one value per element or one per row
// Launch   groups of WG work-items, WG / LANES rows each; LANES work-items share a row, see teams.cl
// Params   PARAMETERS, BASES    see elementwise.cl; the bases are those of a row
//          FUNCTIONS            DEFINE_MOVES for the dtypes that are moved by vectors
//          HELD                 declares the values that a work-item holds in registers from one phase to another
//          PHASES               statements for one row, see fusion_rows_gpu.py
//          SLOTS                vectors of a row per work-item if values are held; else 0, and the loop has no fixed
//                               length
//          WHOLE                leading slots that are full for every work-item of the row, if known
//          EVEN                 1 if every row begins with an aligned vector
//          A                    type of accumulators
//          NDIM                 number of axes after merging: those of the rows, and the row itself
//          ARRAYS, INDEX        see elementwise.cl
//          those of expressions.cl and of teams.cl

#include "functions.cl"
#include "expressions.cl"
#include "unravel.cl"
#include "teams.cl"

// Unfused ops round their results, so a product and a sum of two ops must not be contracted to an fma.
#pragma OPENCL FP_CONTRACT OFF

#if IS_CPU
#define SETTLED(v) (v)
#else
#define SETTLED(v) fma((v), one, -0.0f)  // see elementwise.cl
#endif

DEFINE_JOIN(lanes_ADD, A, LANES, ADD)
DEFINE_JOIN(lanes_LARGEST, A, LANES, LARGEST)
DEFINE_JOIN(lanes_LEAST, A, LANES, LEAST)
#define EMPTY_ADD 0
#define EMPTY_LARGEST -INFINITY
#define EMPTY_LEAST INFINITY

// take_<dtype>(p, base, first, length, is_inner, v) reads elements first .. first + VECTOR - 1 of the row at p + base;
// indices outside of the row are clamped to it. put_<dtype> writes those inside of the row; length is 0 for work-items
// without a row. is_inner is 1 if all elements are known to be inside.
#define IS_WHOLE ((EVEN || first >= 0) && first + VECTOR <= length)
#define INSIDE(at, length) MAX(0, MIN(at, (length) - 1))
#define DEFINE_MOVES_NOW(DTYPE, T, RAW, ACC, WORD) \
    DEFINE_VECTOR(DTYPE, DTYPE, T, RAW, ACC, WORD) \
    static inline void take_##DTYPE(__global const T *restrict p, long base, int first, int length, int is_inner, ACC *v) { \
        if (is_inner || IS_WHOLE) \
            read_##DTYPE(p, base + first, base + first + VECTOR, v); \
        else \
            EACH_OF_VECTOR v[k] = load_##DTYPE(p, base + INSIDE(first + k, length)); \
    } \
    static inline void put_##DTYPE(__global T *restrict p, long base, int first, int length, int is_inner, const ACC *v) { \
        if ((is_inner && length) || IS_WHOLE) \
            write_##DTYPE(p, base + first, base + first + VECTOR, v); \
        else \
            EACH_OF_VECTOR if (first + k >= 0 && first + k < length) store_##DTYPE(p, base + first + k, v[k]); \
    }
#define DEFINE_MOVES(DTYPE, T, RAW, ACC, WORD) DEFINE_MOVES_NOW(DTYPE, T, RAW, ACC, WORD)
FUNCTIONS

// Loops over the slots of a row and the elements of a slot. Indices count from the beginning of the row. A work-item
// without a row owns no element, but takes part in the barriers of the reductions.
#if SLOTS
#define EACH_RUN
#define EACH_SLOT _Pragma("unroll") for (int s = 0; s < SLOTS; s++)
#else
#define EACH_RUN for (int run = 0; run * STEP < columns + shift; run += RUN)
#define EACH_SLOT for (int s = run; s < run + RUN && s * STEP < columns + shift; s++)
#endif
#define SLOT const int first = (s * LANES + me) * VECTOR - shift, is_inner = s >= !EVEN && s < WHOLE;
#define FIND_BASE \
    const int is_own = is_inner ? end > 0 : (EVEN || first + k >= 0) && first + k < end; \
    const long j = is_inner ? first + k : INSIDE(first + k, columns);
#define JOIN_OWN(JOIN, joined, v) joined = is_own ? JOIN(joined, v) : joined;

typedef struct {
    long shape[NDIM], steps[ARRAYS * NDIM];  // lengths, then the strides of every input
    long rows;
} Layout;

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void fusion_rows_gpu(PARAMETERS const Layout layout) {
    __local A lanes[WG];
    INDEX index[NDIM];
    TEAM
    const long due = (long)get_group_id(0) * (WG / LANES) + team / LANES, row = MIN(due, layout.rows - 1);
    const int columns = (int)layout.shape[NDIM - 1], end = due < layout.rows ? columns : 0;
    const long i = row * columns;
    const int shift = EVEN ? 0 : (int)(i % VECTOR);
    const float one = layout.rows != 0;
    unravel((INDEX)i, layout.shape, index);
    BASES
    HELD
    PHASES
}
