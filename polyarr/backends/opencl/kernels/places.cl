// Places in arrays of NDIM axes, at least 1, of which INDEX, an unsigned type, counts the elements.
#if !defined(NDIM) || !defined(INDEX)
#error "places.cl needs NDIM and INDEX"
#endif

// Where element i of a row-major array of this shape is, axis by axis.
static inline void locate(INDEX i, const long *shape, INDEX *place) {
#pragma unroll
    for (int axis = NDIM - 1; axis > 0; axis--) {
        const INDEX length = (INDEX)shape[axis], quotient = i / length;
        place[axis] = i - quotient * length;
        i = quotient;
    }
    place[0] = i;
}

static inline long distance_to(const INDEX *place, const long *strides) {
    long sum = 0;
#pragma unroll
    for (int axis = 0; axis < NDIM; axis++) sum += place[axis] * strides[axis];
    return sum;
}
