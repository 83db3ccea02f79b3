// Where the rows of a strided array begin; included by the kernels of attention. The layout `at` of an array is its
// offset, the strides of its two leading axes, and that of a row.

static inline size_t start_of(const long4 at, const long batch, const long inner) {
    return at.x + batch / inner * at.y + batch % inner * at.z;
}

// The row of query n: the queries of a batch entry share its keys, and come one after the other.
static inline size_t start_of_row(const long4 at, const long n, const long inner, const long t) {
    return start_of(at, n / t, inner) + n % t * at.w;
}
