// Converts linear indices to multi-dimensional indices and offsets.
//
// Params   NDIM     number of axes, at least 1
//          INDEX    unsigned type that can count the elements

// Unravel index i of a row-major array of this shape into index[].
static inline void unravel(INDEX i, const long *shape, INDEX *index) {
#pragma unroll
    for (int axis = NDIM - 1; axis > 0; axis--) {
        const INDEX length = (INDEX)shape[axis], quotient = i / length;
        index[axis] = i - quotient * length;
        i = quotient;
    }
    index[0] = i;
}

// The offset of an index under these strides.
static inline long distance_to(const INDEX *index, const long *strides) {
    long sum = 0;
#pragma unroll
    for (int axis = 0; axis < NDIM; axis++) sum += index[axis] * strides[axis];
    return sum;
}
