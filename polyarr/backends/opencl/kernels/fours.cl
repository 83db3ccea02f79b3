// Four neighbours of a row of float32 at once.
//
// Params   VECTOR 1 if fours of columns are aligned
#ifndef VECTOR
#error "fours.cl needs VECTOR"
#endif

// Columns column .. column + 3 of a row; 0 behind its end.
static inline float4 four_of(__global const float *row, long column, long columns) {
#if VECTOR
    if (column + 3 < columns) return *(__global const float4 *)(row + column);
#endif
    return (float4)(column < columns ? row[column] : 0, column + 1 < columns ? row[column + 1] : 0,
                    column + 2 < columns ? row[column + 2] : 0, column + 3 < columns ? row[column + 3] : 0);
}

// ---- rows whose parts are written beside each other in every row -------------------------------------------------

#define BATCH 4  // are read before the first is written

// Where the first part of four number i begins, of rows of `row` fours.
static inline size_t beside(uint i, uint row, int parts) { return (size_t)(i / row) * (parts - 1) * row + i; }

// WRITE, of fours v of x whose first parts belong to `at`. A work-item's own are one grid apart; where that is whole rows,
// so is where their parts begin.
#define EACH_FOUR_BESIDE(x, fours, row, parts, WRITE) { \
        const uint grid = get_global_size(0); \
        uint i = get_global_id(0); \
        if (grid % (row) == 0) { \
            size_t at = beside(i, row, parts); \
            for (; i + (BATCH - 1) * grid < (fours); i += BATCH * grid) { \
                float4 all[BATCH]; \
                _Pragma("unroll") for (int b = 0; b < BATCH; b++) all[b] = (x)[i + b * grid]; \
                _Pragma("unroll") for (int b = 0; b < BATCH; b++, at += (size_t)(parts) * grid) { \
                    const float4 v = all[b]; \
                    WRITE; \
                } \
            } \
            for (; i < (fours); i += grid, at += (size_t)(parts) * grid) { \
                const float4 v = (x)[i]; \
                WRITE; \
            } \
        } else { \
            for (; i < (fours); i += grid) { \
                const float4 v = (x)[i]; \
                const size_t at = beside(i, row, parts); \
                WRITE; \
            } \
        } \
    }
