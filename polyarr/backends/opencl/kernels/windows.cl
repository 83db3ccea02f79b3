// Places in an operand that is made of windows, as the images that a convolution sees: element (i, k) lies at the place
// of i among the kept axes, plus the place of k among the deep ones. Each of both is a row-major walk of four axes.

// Divided by length[a], a number below 2^31 is ((it * magic[a] >> 32) + it) >> shift[a].
typedef struct {
    uint length[4], magic[4], shift[4];
    long step[4];
} Axes;

typedef struct {
    Axes kept, deep;
} Windows;

static inline __attribute__((always_inline)) long walk(const Axes *axes, uint i) {
    long place = 0;
    _Pragma("unroll") for (int a = 3; a > 0; a--) {
        const uint quotient = ((uint)((ulong)i * axes->magic[a] >> 32) + i) >> axes->shift[a];
        place += (i - quotient * axes->length[a]) * axes->step[a];
        i = quotient;
    }
    return place + i * axes->step[0];
}
