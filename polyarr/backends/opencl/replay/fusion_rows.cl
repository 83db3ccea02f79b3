// A group of fused ops that iterate over the same rows, some of which reduce them (softmax, norms); for CPUs.
//
// Arrays   inputs: strided views; broadcasting makes strides 0. outputs: dense, one value per element or one per row
//          kept (work-groups, KEPT, columns) of T: workspace for values of a row that later phases read again
// Launch   one group of one work-item per layout.block rows
// Params   PARAMETERS, BASES    see elementwise.cl; the bases are those of a row
//          PHASES               statements for one row, see fusion_rows.py. They use `row`; i, the offset of the row in
//                               the outputs; `columns`; KEEP(k, j, v) and KEPT_AT(k, j) to write and read element j of
//                               kept row k, which begins at KEPT_FROM(k); and join_row of join.cl
//          KEPT                 kept rows per work-group
//          NDIM                 number of axes after merging: those of the rows, and the row itself
//          ARRAYS, INDEX        see elementwise.cl
//          those of expressions.cl, and of join.cl without JOIN and START
#if !defined(PARAMETERS) || !defined(BASES) || !defined(PHASES) || !defined(KEPT)
#error "fusion_rows.cl needs PARAMETERS, BASES, PHASES and KEPT"
#endif
#if !defined(NDIM) || !defined(ARRAYS) || !defined(INDEX)
#error "fusion_rows.cl needs NDIM, ARRAYS and INDEX"
#endif

#include "functions.cl"
#include "expressions.cl"
#include "unravel.cl"
#include "join.cl"

// Unfused ops round their results, so a product and a sum of two ops must not be contracted to an fma.
#pragma OPENCL FP_CONTRACT OFF

#define SETTLED(v) (v)  // see elementwise.cl
#define KEPT_FROM(k) (((long)get_group_id(0) * KEPT + (k)) * columns)
#define KEPT_AT(k, j) kept[KEPT_FROM(k) + (j)]
#define KEEP(k, j, v) KEPT_AT(k, j) = (v)

// SUM_BEGINS(name) STATEMENTS SUM_ENDS(value): name = the sum over a row of value, which the statements compute for
// element j. Elements are added in the order of join_row, so that results equal those of the unfused reduction.
#define EACH_EIGHT _Pragma("unroll") for (int p = 0; p < PARTIALS / 8; p++)
#define SUM_BEGINS(name) \
    A name = 0; \
    { \
        A *total = &name; \
        const int is_short = columns < 16; \
        Vector all = 0; \
        for (long chunk = 0; chunk < columns; chunk += CHUNK) { \
            const long stop = MIN(chunk + CHUNK, columns); \
            Vector partial[PARTIALS / 8]; \
            EACH_EIGHT partial[p] = 0; \
            for (long at = chunk; at < stop; at += PARTIALS) { \
                const int count = (int)MIN((long)PARTIALS, stop - at); \
                A block[PARTIALS] __attribute__((aligned(64))); \
                WIDELY for (int w = 0; w < count; w++) { \
                    const long j = at + w;
#define SUM_ENDS(value) \
                    block[w] = value; \
                } \
                int w = 0; \
                if (count == PARTIALS) { \
                    EACH_EIGHT partial[p] += ((const Vector *)block)[p]; \
                    w = PARTIALS; \
                } \
                for (; !is_short && w + 8 <= count; w += 8) partial[0] += *(const Vector *)(block + w); \
                for (; w < count; w++) *total += block[w]; \
            } \
            _Pragma("unroll") for (int step = PARTIALS / 16; step > 0; step /= 2) \
                _Pragma("unroll") for (int p = 0; p < step; p++) partial[p] += partial[p + step]; \
            all += partial[0]; \
        } \
        for (int j = 0; !is_short && j < 8; j++) *total += all[j]; \
    }

typedef struct {
    long shape[NDIM], steps[ARRAYS * NDIM];  // lengths, then the strides of every input
    long rows, block;
} Layout;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void fusion_rows(PARAMETERS __global T *restrict kept, const Layout layout) {
    __local A lanes[LANES];
    INDEX index[NDIM];
    const long columns = layout.shape[NDIM - 1], first = (long)get_group_id(0) * layout.block;
    for (long row = first; row < MIN(first + layout.block, layout.rows); row++) {
        const long i = row * columns;
        unravel((INDEX)i, layout.shape, index);
        BASES
        PHASES
    }
}
