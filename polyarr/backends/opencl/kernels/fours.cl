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
