// Elementwise ops: every element of out is EXPRESSION of the elements of x, y and c that broadcast to it.
//
// Arrays   x, y of T, c of bool, out of OUT_T: strided views; broadcasting makes strides 0. out may be the same memory
//          as an operand of the same length and element size, if both have one axis and stride 1: each element is read
//          by the work-item that overwrites it, and by no other. This holds whatever a compiler makes of `restrict`
// Launch   CPU (WG 1): one group per layout.block consecutive elements of out, in row-major order
//          GPU: groups of WG work-items, one per WG * PER_ITEM * VECTOR consecutive elements of out
// Params   EXPRESSION                   a C expression of x, y (of type ACC) and c (int)
//          IS_USUAL, USUAL              optional, CPUs only: a condition on x and y, and a faster expression to use for
//                                       a run of SPAN elements that all satisfy it
//          X_IS, Y_IS, C_IS             kind of each operand: ABSENT, NUMBER (a scalar argument), or an array whose
//                                       stride along the last axis is 0 (REPEATED), 1 (DENSE) or anything (STRIDED)
//          OUT_IS                       DENSE or STRIDED
//          NDIM                         number of axes after merging, at least 1; on CPUs at least 2, padded with axes
//                                       of length 1
//          INDEX                        unsigned type that can count the elements of out
//          T, ACC, LOAD, DTYPE          dtype of x and y: storage type, arithmetic type, load function, polyarr's name
//          FLOATING, SIGNED, BOOLEAN    see expressions.cl
//          OUT_T, OUT_STORE             dtype of out: storage type, store function
//          START                        optional: int or long, dtype of a view's start that is read from memory
//          WG, PER_ITEM                 work-items per group, and (on GPUs) vectors per work-item
//          VECTOR                       elements per vector. More than 1 only if all arrays are DENSE or REPEATED and
//                                       no vector crosses the end of a row, except at the end of a single row
//          RAW, WORD                    of x and y, see DEFINE_VECTOR; C_WORD of c; OUT_ACC, OUT_DTYPE, OUT_RAW,
//                                       OUT_WORD
#if !defined(EXPRESSION) || !defined(NDIM) || !defined(INDEX) || !defined(WG) || !defined(PER_ITEM)
#error "elementwise.cl needs EXPRESSION, NDIM, INDEX, WG and PER_ITEM"
#endif
#if !defined(VECTOR) || !defined(RAW) || !defined(WORD) || !defined(C_WORD) || !defined(OUT_DTYPE) || !defined(OUT_WORD)
#error "elementwise.cl needs VECTOR, RAW, WORD, C_WORD, OUT_DTYPE, OUT_ACC, OUT_RAW and OUT_WORD"
#endif
#if !defined(X_IS) || !defined(Y_IS) || !defined(C_IS) || !defined(OUT_IS)
#error "elementwise.cl needs X_IS, Y_IS, C_IS and OUT_IS"
#endif
#if !defined(T) || !defined(ACC) || !defined(LOAD) || !defined(DTYPE) || !defined(OUT_T) || !defined(OUT_STORE)
#error "elementwise.cl needs T, ACC, LOAD, DTYPE, OUT_T and OUT_STORE"
#endif

#include "functions.cl"
#include "expressions.cl"
#include "unravel.cl"

#define ABSENT 0
#define NUMBER 1
#define REPEATED 2
#define DENSE 3
#define STRIDED 4
#define SPAN 256

// ---- operands --------------------------------------------------------------------------------------------------

typedef struct {
    long shape[NDIM], x[NDIM], y[NDIM], c[NDIM], out[NDIM];  // lengths, then the strides of every operand
    long size, block;
} Layout;

#define STEP(is, strides) ((is) == DENSE ? 1 : (is) == REPEATED ? 0 : (strides)[NDIM - 1])

#if X_IS == NUMBER
#define X_PARAMETER const ACC x_number,
#define X_AT(base, j) x_number
#elif X_IS != ABSENT
#define X_PARAMETER __global const T *restrict x_data, const long x_offset,
#define X_AT(base, j) LOAD(x_data, (base) + (j) * STEP(X_IS, layout.x))
#else
#error "elementwise.cl: x may not be ABSENT"
#endif

#if Y_IS == NUMBER
#define Y_PARAMETER const ACC y_number,
#define Y_AT(base, j) y_number
#elif Y_IS != ABSENT
#define Y_PARAMETER __global const T *restrict y_data, const long y_offset,
#define Y_AT(base, j) LOAD(y_data, (base) + (j) * STEP(Y_IS, layout.y))
#else
#define Y_PARAMETER
#define Y_AT(base, j) 0
#endif

#if C_IS == NUMBER
#define C_PARAMETER const int c_number,
#define C_AT(base, j) c_number
#elif C_IS != ABSENT
#define C_PARAMETER __global const uchar *restrict c_data, const long c_offset,
#define C_AT(base, j) load_bool(c_data, (base) + (j) * STEP(C_IS, layout.c))
#else
#define C_PARAMETER
#define C_AT(base, j) 0
#endif

#if X_IS == NUMBER
#define x_offset 0
#endif
#if Y_IS == NUMBER || Y_IS == ABSENT
#define y_offset 0
#endif
#if C_IS == NUMBER || C_IS == ABSENT
#define c_offset 0
#endif

// ---- a view whose start is read from memory --------------------------------------------------------------------

#ifdef START
#define START_PARAMETER \
    , __global const START *restrict start_data, const long start_offset, const long first_start, \
    const long last_start, const long axis_length, const long x_step, const long out_step, FAULT

// Return the start, clamped to [first, last]; record a fault if it was out of range.
static inline long start_of(const long start, const long first, const long last, const long length, FAULT) {
    if (start >= first && start <= last) return start;
    if (get_global_id(0) == 0) note_fault(fault, call, start < first ? start - first : start + length - 1 - last, length);
    return start < first ? first : last;
}
#else
#define START_PARAMETER
#endif

// ---- kernel ----------------------------------------------------------------------------------------------------

// Compute element j counted from the base offsets, where every operand advances by its own step.
#define COMPUTE(j, EXPRESSION) { \
        const ACC x = X_AT(x_base, j), y = Y_AT(y_base, j); \
        const int c = C_AT(c_base, j); \
        OUT_STORE(out, out_base + (j) * STEP(OUT_IS, layout.out), EXPRESSION); \
    }

#if VECTOR > 1
DEFINE_VECTOR(x, DTYPE, T, RAW, ACC, WORD)
DEFINE_VECTOR(c, bool, uchar, uchar, int, C_WORD)
DEFINE_VECTOR(out, OUT_DTYPE, OUT_T, OUT_RAW, OUT_ACC, OUT_WORD)

// Read a vector of an operand, of which `count` elements exist: a vector load if DENSE, else one repeated element.
#define READ(is, read, data, at, base, v) \
    if (is == DENSE) read(data, base, (base) + count, v); \
    else EACH_OF_VECTOR v[k] = at(base, 0);
#if X_IS == NUMBER || X_IS == ABSENT
#define x_data 0
#endif
#if Y_IS == NUMBER || Y_IS == ABSENT
#define y_data 0
#endif
#if C_IS == NUMBER || C_IS == ABSENT
#define c_data 0
#endif
#define COMPUTE_VECTOR(count) { \
        ACC xs[VECTOR], ys[VECTOR]; \
        int cs[VECTOR]; \
        OUT_ACC outs[VECTOR]; \
        READ(X_IS, read_x, x_data, X_AT, x_base, xs) \
        READ(Y_IS, read_x, y_data, Y_AT, y_base, ys) \
        READ(C_IS, read_c, c_data, C_AT, c_base, cs) \
        EACH_OF_VECTOR { \
            const ACC x = xs[k], y = ys[k]; \
            const int c = cs[k]; \
            outs[k] = EXPRESSION; \
        } \
        write_out(out, out_base, out_base + count, outs); \
    }
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void elementwise(X_PARAMETER Y_PARAMETER C_PARAMETER __global OUT_T *restrict out, const long out_offset,
                 const Layout layout START_PARAMETER) {
    INDEX index[NDIM];
#ifdef START
    const long moved = start_of(start_data[start_offset], first_start, last_start, axis_length, fault, call);
    const long x_first = x_offset + moved * x_step, out_first = out_offset + moved * out_step;
#else
    const long x_first = x_offset, out_first = out_offset;
#endif
#if WG == 1
    const long start = (long)get_group_id(0) * layout.block, stop = MIN(start + layout.block, layout.size);
    for (long i = start, run; i < stop; i += run) {
        unravel((INDEX)i, layout.shape, index);
        run = MIN(layout.shape[NDIM - 1] - (long)index[NDIM - 1], stop - i);
        const long x_base = x_first + distance_to(index, layout.x);
        const long y_base = y_offset + distance_to(index, layout.y);
        const long c_base = c_offset + distance_to(index, layout.c);
        const long out_base = out_first + distance_to(index, layout.out);
#ifdef USUAL
        for (long first = 0, last; first < run; first = last) {
            last = MIN(first + SPAN, run);
            int usual = 1;
            WIDELY
            for (long j = first; j < last; j++) {
                const ACC x = X_AT(x_base, j), y = Y_AT(y_base, j);
                usual &= IS_USUAL;
            }
            if (usual)
                WIDELY for (long j = first; j < last; j++) COMPUTE(j, USUAL)
            else
                WIDELY for (long j = first; j < last; j++) COMPUTE(j, EXPRESSION)
        }
#else
        WIDELY for (long j = 0; j < run; j++) COMPUTE(j, EXPRESSION)
#endif
    }
#else
    const size_t vectors = WG * PER_ITEM, start = get_group_id(0) * vectors + get_local_id(0);
#if VECTOR > 1
    const int is_aligned = ((x_first | y_offset | c_offset | out_first) & (VECTOR - 1)) == 0;
#endif
    const int is_whole = (get_group_id(0) + 1) * vectors * VECTOR <= layout.size;  // no bounds checks needed
#pragma unroll
    for (int turn = 0; turn < PER_ITEM; turn++) {
        const long i = (start + turn * WG) * VECTOR;
        if (is_whole || i < layout.size) {
            unravel((INDEX)i, layout.shape, index);
            const long x_base = x_first + distance_to(index, layout.x);
            const long y_base = y_offset + distance_to(index, layout.y);
            const long c_base = c_offset + distance_to(index, layout.c);
            const long out_base = out_first + distance_to(index, layout.out);
#if VECTOR > 1
            const int count = is_whole ? VECTOR : (int)MIN((long)VECTOR, layout.size - i);
            if (is_aligned) COMPUTE_VECTOR(count)
            else for (int j = 0; j < count; j++) COMPUTE(j, EXPRESSION)
#else
            COMPUTE(0, EXPRESSION)
#endif
        }
    }
#endif
}
