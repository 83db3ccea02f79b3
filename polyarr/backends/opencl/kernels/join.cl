// Reduces the elements of a row; included by reduce.cl and fusion_rows.cl, which call
// join_row(x, base, stride, begin, end, me, lane, how).
//
// Params   T, LOAD                 storage type of x, and its load function
//          A                       type of the accumulator
//          JOIN, START             optional: the binary reduction, and its initial value, which may use `first`, the
//                                  first element. Without them the constant argument `how` selects ADDED, GREATEST or
//                                  SMALLEST, and LANES is 1
//          VECTORS, STRIDE, LANES, PARTIALS    see reduce.cl

#define ADDED 0
#define GREATEST 1
#define SMALLEST 2

#define MULTIPLY(a, b) ((a) * (b))
#define CHUNK (128L * PARTIALS * LANES)  // chunks are summed on their own, which loses fewer digits than one long sum

#define AT(i) ((A)LOAD(x, base + (i) * STRIDE))

#ifdef JOIN
DEFINE_JOIN(join_lanes, A, LANES, JOIN)
#else
#define join_lanes(v, me, lane) (v)
#define JOIN(a, b) (how == ADDED ? ADD(a, b) : how == GREATEST ? LARGEST(a, b) : LEAST(a, b))
#define START (how == ADDED ? (A)0 : first)
#endif

#if VECTORS
typedef PASTE(T, 8) Half;
typedef PASTE(T, 16) Vector;
typedef Half __attribute__((aligned(sizeof(T)))) HalfAnywhere;
typedef Vector __attribute__((aligned(sizeof(T)))) VectorAnywhere;
#define HALF_AT(i) *(__global const HalfAnywhere *)(x + base + (i))
#define VECTOR_AT(i) *(__global const VectorAnywhere *)(x + base + (i))
#define EACH_VECTOR(count) _Pragma("unroll") for (int p = 0; p < (count); p++)
#endif

// Reduce elements begin + me, begin + me + LANES .. < end of a row, then reduce over the lanes.
static inline A join_row(__global const T *restrict x, long base, long stride, long begin, long end, int me,
                         __local A *lane, const int how) {
    const A first = begin < end ? AT(begin) : (A)0;
    A total = START;
    const int is_short = end - begin < (VECTORS ? 16 : PARTIALS * LANES);
    for (long i = begin + me; is_short && i < end; i += LANES) {
        const A v = AT(i);
        total = JOIN(total, v);
    }
#if VECTORS
    Half all = (Half)(START);
    for (long chunk = begin; !is_short && chunk < end; chunk += CHUNK) {
        const long stop = MIN(chunk + CHUNK, end);
        long i = chunk;
        Vector partial[PARTIALS / 16];  // stays in registers only if loops over it are unrolled
        EACH_VECTOR(PARTIALS / 16) partial[p] = (Vector)(START);
        for (; i + PARTIALS <= stop; i += PARTIALS)
            EACH_VECTOR(PARTIALS / 16) {
                const Vector v = VECTOR_AT(i + 16 * p);
                partial[p] = JOIN(partial[p], v);
            }
        Half parts[PARTIALS / 8];
        EACH_VECTOR(PARTIALS / 8) parts[p] = ((const Half *)partial)[p];
        for (; i + 8 <= stop; i += 8) {
            const Half v = HALF_AT(i);
            parts[0] = JOIN(parts[0], v);
        }
        for (; i < stop; i++) {
            const A v = AT(i);
            total = JOIN(total, v);
        }
        _Pragma("unroll") for (int step = PARTIALS / 16; step > 0; step /= 2)
            EACH_VECTOR(step) parts[p] = JOIN(parts[p], parts[p + step]);
        all = JOIN(all, parts[0]);
    }
    for (int j = 0; !is_short && j < 8; j++) total = JOIN(total, all[j]);
#else
    for (long chunk = begin; !is_short && chunk < end; chunk += CHUNK) {
        const long stop = MIN(chunk + CHUNK, end);
        long i = chunk + me;
        A partial[PARTIALS];
        for (int p = 0; p < PARTIALS; p++) partial[p] = START;
        for (; i + (PARTIALS - 1) * LANES < stop; i += PARTIALS * LANES)
            for (int p = 0; p < PARTIALS; p++) {
                const A v = AT(i + p * LANES);
                partial[p] = JOIN(partial[p], v);
            }
        for (; i < stop; i += LANES) {
            const A v = AT(i);
            partial[0] = JOIN(partial[0], v);
        }
        for (int step = PARTIALS / 2; step > 0; step /= 2)
            for (int p = 0; p < step; p++) partial[p] = JOIN(partial[p], partial[p + step]);
        total = JOIN(total, partial[0]);
    }
#endif
    return join_lanes(total, me, lane);
}
