// im2col views: index arithmetic for a GEMM operand that is a virtual im2col matrix of the images of a convolution
// (implicit GEMM). Element (i, k) has the offset of i on the kept axes plus the offset of k on the deep axes. Each is a
// row-major index over four axes.

// Division by multiplication: i / length[a] is ((i * magic[a] >> 32) + i) >> shift[a] for i below 2^31.
typedef struct {
    uint length[4], magic[4], shift[4];
    long step[4];
} Axes;

typedef struct {
    Axes kept, deep;
} Im2col;

static inline __attribute__((always_inline)) long walk(const Axes *axes, uint i) {
    long offset = 0;
    _Pragma("unroll") for (int a = 3; a > 0; a--) {
        const uint quotient = ((uint)((ulong)i * axes->magic[a] >> 32) + i) >> axes->shift[a];
        offset += (i - quotient * axes->length[a]) * axes->step[a];
        i = quotient;
    }
    return offset + i * axes->step[0];
}
