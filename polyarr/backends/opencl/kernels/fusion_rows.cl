// Several ops in one kernel that go through the same rows, some of which reduce them; for CPUs.
//
// Arrays   inputs: windows with any strides, which broadcasting makes 0; outputs: dense, of the rows' elements or of one
//          element for each row; kept: for each group KEPT rows
// Launch   one group of one work-item for layout.block rows
// Params   PARAMETERS, BASES  see fusion.cl; bases are those of a row
//          PHASES             what is done with a row: see fusion_rows.py. It has `row`, i, where it begins in outputs,
//                             `columns`, KEEP(k, j, v) and KEPT_AT(k, j), element j of row k that is kept, which begins at
//                             KEPT_FROM(k) of kept; and join_row of join.cl
//          NDIM               number of axes: those of the rows, after axes that can be one have become one, and their own
//          ARRAYS, INDEX      see fusion.cl
//          and those of expressions.cl and of join.cl, without JOIN and START
#if !defined(PARAMETERS) || !defined(BASES) || !defined(PHASES) || !defined(KEPT)
#error "fusion_rows.cl needs PARAMETERS, BASES, PHASES and KEPT"
#endif
#if !defined(NDIM) || !defined(ARRAYS) || !defined(INDEX)
#error "fusion_rows.cl needs NDIM, ARRAYS and INDEX"
#endif

#include "functions.cl"
#include "expressions.cl"
#include "places.cl"
#include "join.cl"

// An op by itself rounds its result: no product and sum of two ops may become one operation.
#pragma OPENCL FP_CONTRACT OFF

#define SETTLED(v) (v)  // see fusion.cl
#define KEPT_FROM(k) (((long)get_group_id(0) * KEPT + (k)) * columns)
#define KEPT_AT(k, j) kept[KEPT_FROM(k) + (j)]
#define KEEP(k, j, v) KEPT_AT(k, j) = (v)

// name = the sum over a row of value, which is computed between SUM_BEGINS(name) and SUM_ENDS(value) for element j; in the
// order of join_row.
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
    long shape[NDIM], steps[ARRAYS][NDIM];  // lengths, then every input's strides
    long rows, block;
} Layout;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void fusion_rows(PARAMETERS __global T *restrict kept, const Layout layout) {
    __local A lanes[LANES];
    INDEX place[NDIM];
    const long columns = layout.shape[NDIM - 1], first = (long)get_group_id(0) * layout.block;
    for (long row = first; row < MIN(first + layout.block, layout.rows); row++) {
        const long i = row * columns;
        locate((INDEX)i, layout.shape, place);
        BASES
        PHASES
    }
}
