// Casts up to 24 arrays of one dtype to another dtype in one launch: out = x, rounded.
//
// Arrays   x<k> (n[k]) of T, out<k> (n[k]) of OUT_T, contiguous; an unused argument slot has n[k] = 0
// Launch   local GROUP, global GROUP * (sum over k of ceil(n[k] / BLOCK)): a work-group casts one block of one array
// Params   T, ACC, X_DTYPE, X_RAW, X_WORD    dtype of the inputs, for DEFINE_VECTOR
//          OUT_T, OUT_DTYPE, OUT_RAW, OUT_WORD    dtype of the results, whose arithmetic type is ACC as well
//          GROUP, BLOCK, VECTOR    work-items per group, elements per group, elements per vector load

DEFINE_VECTOR(x, X_DTYPE, T, X_RAW, ACC, X_WORD)
DEFINE_VECTOR(out, OUT_DTYPE, OUT_T, OUT_RAW, ACC, OUT_WORD)

#define VECTORS (BLOCK / (GROUP * VECTOR))  // of a work-item

typedef struct { long n[24]; } Sizes;

#define ARRAY(k) __global const T *restrict x##k, __global OUT_T *restrict out##k

// Select array k if `block` is one of its blocks; otherwise skip its blocks.
#define PICK(k) \
    if (n == 0) { \
        if (block < BLOCKS(sizes.n[k])) \
            x = x##k, out = out##k, n = sizes.n[k]; \
        else \
            block -= BLOCKS(sizes.n[k]); \
    }
#define PICKS(a, b, c, d, e, f) PICK(a) PICK(b) PICK(c) PICK(d) PICK(e) PICK(f)

__kernel BLOCK_GROUP void astype_all(
    ARRAY(0), ARRAY(1), ARRAY(2), ARRAY(3), ARRAY(4), ARRAY(5), ARRAY(6), ARRAY(7),
    ARRAY(8), ARRAY(9), ARRAY(10), ARRAY(11), ARRAY(12), ARRAY(13), ARRAY(14), ARRAY(15),
    ARRAY(16), ARRAY(17), ARRAY(18), ARRAY(19), ARRAY(20), ARRAY(21), ARRAY(22), ARRAY(23),
    const Sizes sizes) {
    __global const T *x = x0;
    __global OUT_T *out = out0;
    long block = get_group_id(0), n = 0;
    PICKS(0, 1, 2, 3, 4, 5) PICKS(6, 7, 8, 9, 10, 11) PICKS(12, 13, 14, 15, 16, 17) PICKS(18, 19, 20, 21, 22, 23)
#if !IS_CPU
    if (((size_t)block + 1) * BLOCK <= (size_t)n) {  // all loads of a work-item at once
        const size_t first = (size_t)block * BLOCK + get_local_id(0) * VECTOR;
        ACC values[VECTORS][VECTOR];
        _Pragma("unroll") for (int j = 0; j < VECTORS; j++) {
            const size_t i = first + j * GROUP * VECTOR;
            read_x(x, i, i + VECTOR, values[j]);
        }
        _Pragma("unroll") for (int j = 0; j < VECTORS; j++) {
            const size_t i = first + j * GROUP * VECTOR;
            write_out(out, i, i + VECTOR, values[j]);
        }
        return;
    }
#endif
    EACH_RUN_OF_BLOCK(i, block, n) {
        ACC value[VECTOR];
        read_x(x, i, end, value);
        write_out(out, i, end, value);
    }
}
