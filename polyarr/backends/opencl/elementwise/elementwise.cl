// An elementwise op, or a group of fused ones: every input is read once, and only outputs are written.
//
// Arrays   inputs: strided views; broadcasting makes strides 0. outputs: dense, or for a single op a strided view. An
//          output may be the same memory as an input of the same length and element size, if both have one axis and
//          stride 1: each element is read by the work-item that overwrites it, and by no other. This holds whatever a
//          compiler makes of `restrict`
// Launch   CPU (WG 1): one group per layout.block consecutive elements, in row-major order
//          GPU: groups of WG work-items, one per WG * PER_ITEM * VECTOR consecutive elements
// Params   PARAMETERS                  kernel arguments: numbers n0 .., arrays p0 .. and q0 .. with their offsets; see
//                                      elements.py
//          FUNCTIONS                   DEFINE_VECTOR for each of their dtypes
//          BASES                       declares b0 ..: offsets of the arrays' elements at `index`
//          LOADS(j)                    declares the inputs' values j elements after the bases
//          LINKS                       declares the value of each op in turn; in a group, a value that another op reads
//                                      is rounded to its dtype, and SETTLED(v) wraps those that end with a division or
//                                      a function
//          STORES(j)                   writes the outputs' elements j elements after the bases
//          OFFSETS                     all offsets, combined by |
//          READS, PICK, PUT, WRITES    the counterparts of LOADS and STORES for vectors of `count` elements
//          IS_USUAL, USUAL             optional, CPUs only: a statement that clears `usual` unless a condition on the
//                                      values holds, and faster LINKS for a run of SPAN elements that all satisfy it
//          START                       optional: int or long, dtype of a view's start that is read from memory; offsets
//                                      use `moved`, its value
//          NDIM                        number of axes after merging, at least 1
//          ARRAYS                      number of strides in the layout, at least 1
//          INDEX                       unsigned type that can count the elements
//          WG, PER_ITEM                work-items per group, and (on GPUs) vectors per work-item
//          VECTOR                      elements per vector. More than 1 only if all arrays are DENSE or REPEATED and no
//                                      vector crosses the end of a row, except at the end of a single row
//          those of expressions.cl     ACC is the arithmetic type of the ops that call functions; of complex ones,
//                                      that of the parts
//          COMPLEX                     1 if an op is one of complex numbers; see complex.cl

#include "functions.cl"
#include "expressions.cl"
#include "complex_arithmetic.cl"
#include "complex.cl"
#include "unravel.cl"

#define SPAN 256

// Unfused ops round their results, so a product and a sum of two ops must not be contracted to an fma.
#pragma OPENCL FP_CONTRACT OFF

// NVIDIA's assembler contracts a sum with the product that ends a division, in spite of the pragma. It does not
// contract this fma, which returns v for every v: `one` is 1, but the compiler cannot know.
#if IS_CPU
#define SETTLED(v) (v)
#define SETTLED_COMPLEX(v) (v)
#else
#define SETTLED(v) fma((v), one, -0.0f)
#define SETTLED_COMPLEX(v) settled_parts(v, one)
static inline float2 settled_parts(float2 v, float one) { return (float2)(fma(v.x, one, -0.0f), fma(v.y, one, -0.0f)); }
#endif

typedef struct {
    long shape[NDIM], steps[ARRAYS * NDIM];  // lengths, then strides
    long size, block;
} Layout;

FUNCTIONS

#ifdef START
#define START_PARAMETER \
    , __global const START *restrict start_data, const long start_offset, const long first_start, \
    const long last_start, const long axis_length, const long x_step, const long out_step, FAULT
#define FIND_START \
    const long moved = start_of(start_data[start_offset], first_start, last_start, axis_length, fault, call);

// Return the start, clamped to [first, last]; record a fault if it was out of range.
static inline long start_of(const long start, const long first, const long last, const long length, FAULT) {
    if (start >= first && start <= last) return start;
    if (get_global_id(0) == 0) note_fault(fault, call, start < first ? start - first : start + length - 1 - last, length);
    return start < first ? first : last;
}
#else
#define START_PARAMETER
#define FIND_START
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void elementwise(PARAMETERS const Layout layout START_PARAMETER) {
    INDEX index[NDIM];
    const float one = layout.block != 0;
    FIND_START
#if WG == 1
    const long start = (long)get_group_id(0) * layout.block, stop = MIN(start + layout.block, layout.size);
    for (long i = start, run; i < stop; i += run) {
        unravel((INDEX)i, layout.shape, index);
        run = MIN(layout.shape[NDIM - 1] - (long)index[NDIM - 1], stop - i);
        BASES
#ifdef USUAL
        for (long first = 0, last; first < run; first = last) {
            last = MIN(first + SPAN, run);
            int usual = 1;
            WIDELY for (long j = first; j < last; j++) { LOADS(j) IS_USUAL }
            if (usual)
                WIDELY for (long j = first; j < last; j++) { LOADS(j) USUAL STORES(j) }
            else
                WIDELY for (long j = first; j < last; j++) { LOADS(j) LINKS STORES(j) }
        }
#else
        WIDELY for (long j = 0; j < run; j++) { LOADS(j) LINKS STORES(j) }
#endif
    }
#else
    const size_t vectors = WG * PER_ITEM, start = get_group_id(0) * vectors + get_local_id(0);
    const int is_whole = (get_group_id(0) + 1) * vectors * VECTOR <= layout.size;  // no bounds checks needed
#pragma unroll
    for (int turn = 0; turn < PER_ITEM; turn++) {
        const long i = (start + turn * WG) * VECTOR;
        if (is_whole || i < layout.size) {
            unravel((INDEX)i, layout.shape, index);
            BASES
#if VECTOR > 1
            const int count = is_whole ? VECTOR : (int)MIN((long)VECTOR, layout.size - i);
            if (((OFFSETS) & (VECTOR - 1)) == 0) {
                READS
                EACH_OF_VECTOR { PICK LINKS PUT }
                WRITES
            } else
#else
            const int count = 1;
#endif
                for (int j = 0; j < count; j++) { LOADS(j) LINKS STORES(j) }
        }
    }
#endif
}
