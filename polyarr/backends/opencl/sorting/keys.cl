// Maps elements to sort keys: unsigned integers in the order of the elements; included by the kernels that sort and
// select. An element is read as an unsigned integer of its size. nan is the largest value, and -0.0 equals 0.0.
//
// Params   KEY, BITS        unsigned type of keys, and its number of bits
//          KIND             kind of elements: 0 unsigned, 1 signed, 2 float
//          INFINITY_BITS    the bits of infinity (KIND 2)
//          DESCENDING       1 for descending order (nan first), 0 for ascending order (nan last)

// Write out[to] for the element at index `from` of row x: the element itself if `values`, else its index.
#define WRITE_RESULT(out, to, x, from, values) { \
        if (values) ((__global KEY *)(out))[to] = (x)[from]; \
        else ((__global long *)(out))[to] = (from); \
    }

#define SIGN ((KEY)((KEY)1 << (BITS - 1)))

static inline KEY key_of(KEY x) {
#if KIND == 1
    x ^= SIGN;
#elif KIND == 2
    const KEY magnitude = x & (KEY)~SIGN;
    if (magnitude > INFINITY_BITS) x = (KEY)~(KEY)0;
    else if (magnitude == 0) x = SIGN;          // -0.0 equals 0.0
    else x = x & SIGN ? (KEY)~x : (KEY)(x | SIGN);
#endif
    return DESCENDING ? (KEY)~x : x;
}
