// Loads of four consecutive float32 of a row as a float4; used to split float32 operands into 16-bit terms.
//
// Params   VECTOR    1 if rows consist of aligned float4

// Columns column .. column + 3 of a row; 0 beyond its end.
static inline float4 load_float4(__global const float *row, long column, long columns) {
#if VECTOR
    if (column + 3 < columns) return *(__global const float4 *)(row + column);
#endif
    return (float4)(column < columns ? row[column] : 0, column + 1 < columns ? row[column + 1] : 0,
                    column + 2 < columns ? row[column + 2] : 0, column + 3 < columns ? row[column + 3] : 0);
}

// ---- rows whose terms are stored side by side: high terms of a row, then its low terms -----------------------------

#define BATCH 4  // float4 that a work-item reads before it writes the first

// The index of the first term of float4 number i, in rows of `row` float4.
static inline size_t interleaved(uint i, uint row, int parts) { return (size_t)(i / row) * (parts - 1) * row + i; }

// Run WRITE for every float4 v of x whose first term is stored at `at`. A work-item's float4 lie one grid apart; if the
// grid is a multiple of the row, `at` advances by a constant and needs no division.
#define EACH_FLOAT4_INTERLEAVED(x, fours, row, parts, WRITE) { \
        const uint grid = get_global_size(0); \
        uint i = get_global_id(0); \
        if (grid % (row) == 0) { \
            size_t at = interleaved(i, row, parts); \
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
                const size_t at = interleaved(i, row, parts); \
                WRITE; \
            } \
        } \
    }
