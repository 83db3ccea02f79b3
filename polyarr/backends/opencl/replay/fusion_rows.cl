// A group of fused ops that iterate over the same rows, some of which reduce them (softmax, norms); for CPUs.
//
// Arrays   inputs: strided views; broadcasting makes strides 0. outputs: dense, one value per element or one per row
//          kept (work-groups, KEPT, columns) of T: workspace for values of a row that later phases read again
// Launch   one group of one work-item per layout.block rows
// Params   PARAMETERS, BASES    see elementwise.cl; the bases are those of a row
//          PHASES               statements for one row, see fusion_rows.py. They use `row`; i, the offset of the row in
//                               the outputs; `columns`; KEPT_FROM(k), the start of kept row k; and join_row of join.cl
//          KEPT                 kept rows per work-group, besides those that an output's memory holds until it is
//                               written; with 0 there is no argument `kept`
//          NDIM                 number of axes after merging: those of the rows, and the row itself
//          ARRAYS, INDEX        see elementwise.cl
//          those of expressions.cl, and of join.cl without JOIN and START

#include "functions.cl"
#include "expressions.cl"
#include "unravel.cl"
#include "join.cl"

// Unfused ops round their results, so a product and a sum of two ops must not be contracted to an fma.
#pragma OPENCL FP_CONTRACT OFF

#define SETTLED(v) (v)  // see elementwise.cl
#define KEPT_FROM(k) (((long)get_group_id(0) * KEPT + (k)) * columns)
#if KEPT
#define KEPT_ROWS __global T *restrict kept,
#else
#define KEPT_ROWS
#endif

// JOIN_BEGINS(name, which) STATEMENTS JOIN_CONTINUES(value) STATEMENTS JOIN_ENDS(name, value): name = the reduction over
// a row of value, which the statements compute for element j. Elements are joined in the order of join_row, so that
// results equal those of the unfused reduction. The first loop has a fixed length, which halves its overhead.
#define JOIN_BEGINS(name, which) \
    A name; \
    { \
        const int how = which, is_short = columns < 16; \
        A first = 0, total = 0; \
        Half all = 0; \
        for (long chunk = 0; chunk < columns; chunk += CHUNK) { \
            const long stop = MIN(chunk + CHUNK, columns); \
            long at = chunk; \
            A block[PARTIALS] __attribute__((aligned(64))); \
            Vector partial[PARTIALS / 16]; \
            EACH_VECTOR(PARTIALS / 16) partial[p] = 0; \
            for (; at + PARTIALS <= stop; at += PARTIALS) { \
                WIDELY_AND_INTERLEAVED for (int w = 0; w < PARTIALS; w++) { \
                    const long j = at + w;
#define JOIN_CONTINUES(value) \
                    block[w] = value; \
                } \
                if (how != ADDED && at == chunk) START_FROM_BLOCK \
                EACH_VECTOR(PARTIALS / 16) { \
                    const Vector v = ((const Vector *)block)[p]; \
                    partial[p] = JOIN(partial[p], v); \
                } \
            } \
            const int count = (int)(stop - at); \
            WIDELY for (int w = 0; w < count; w++) { \
                const long j = at + w;
#define JOIN_ENDS(name, value) \
                block[w] = value; \
            } \
            if (how != ADDED && at == chunk) START_FROM_BLOCK \
            int w = 0; \
            Half parts[PARTIALS / 8]; \
            EACH_VECTOR(PARTIALS / 8) parts[p] = ((const Half *)partial)[p]; \
            for (; !is_short && w + 8 <= count; w += 8) { \
                const Half v = *(const Half *)(block + w); \
                parts[0] = JOIN(parts[0], v); \
            } \
            for (; w < count; w++) total = JOIN(total, block[w]); \
            _Pragma("unroll") for (int step = PARTIALS / 16; step > 0; step /= 2) \
                EACH_VECTOR(step) parts[p] = JOIN(parts[p], parts[p + step]); \
            all = JOIN(all, parts[0]); \
        } \
        for (int j = 0; !is_short && j < 8; j++) total = JOIN(total, all[j]); \
        name = total; \
    }
#define START_FROM_BLOCK { \
        if (at == 0) { \
            first = block[0]; \
            total = first; \
            all = (Half)(first); \
        } \
        EACH_VECTOR(PARTIALS / 16) partial[p] = (Vector)(first); \
    }

typedef struct {
    long shape[NDIM], steps[ARRAYS * NDIM];  // lengths, then the strides of every input
    long rows, block;
} Layout;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void fusion_rows(PARAMETERS KEPT_ROWS const Layout layout) {
    INDEX index[NDIM];
    const long columns = layout.shape[NDIM - 1], first = (long)get_group_id(0) * layout.block;
    for (long row = first; row < MIN(first + layout.block, layout.rows); row++) {
        const long i = row * columns;
        unravel((INDEX)i, layout.shape, index);
        BASES
        PHASES
    }
}
