// Elements as keys: unsigned integers in the order of the elements, for files that include this one. An element is read
// as an unsigned integer of its size. nan is the largest number, and -0.0 equals 0.0.
//
// Params   KEY unsigned type | BITS its bits | KIND of elements: 0 unsigned, 1 signed, 2 float
//          INFINITY_BITS what infinity looks like (KIND 2) | DESCENDING 1 for the largest (and nan) first
#if !defined(KEY) || !defined(BITS) || !defined(KIND) || !defined(INFINITY_BITS) || !defined(DESCENDING)
#error "keys.cl needs KEY, BITS, KIND, INFINITY_BITS and DESCENDING"
#endif

// What a sort gives at place `to` for the element at `from` of the row x: the element, or where it was.
#define GIVE(out, to, x, from, values) { \
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
