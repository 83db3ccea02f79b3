// A group of fused elementwise ops in one kernel: every input is read once, and only outputs of the group are written.
//
// Arrays   inputs: strided views; broadcasting makes strides 0. outputs: dense
// Launch   as elementwise.cl
// Params   PARAMETERS                  kernel arguments: numbers n0 .., inputs p0 .. with offsets o0 .., outputs q0 ..;
//                                      see fusion.py
//          FUNCTIONS                   DEFINE_VECTOR for each of their dtypes
//          BASES                       declares b0 ..: offsets of the inputs' elements at `index` of
//                                      out
//          LOADS(j)                    declares v0 ..: the inputs' values j elements after the bases
//          LINKS                       declares the value of each op in turn, rounded to the dtype of its result;
//                                      SETTLED(v) wraps values that end with a division or a function
//          STORES(j)                   writes the outputs' elements i + j
//          OFFSETS                     all offsets, combined by |
//          READS, PICK, PUT, WRITES    the counterparts of LOADS and STORES for vectors of `count` elements, through
//                                      arrays r0 .. and w0 ..
//          NDIM                        number of axes after merging, at least 1
//          ARRAYS                      number of inputs, at least 1
//          INDEX                       unsigned type that can count the elements
//          WG, PER_ITEM                work-items per group, and (on GPUs) vectors per work-item
//          VECTOR                      elements per vector; more than 1 as in elementwise.cl
//          those of expressions.cl     ACC is the arithmetic type of the ops that call functions
#if !defined(PARAMETERS) || !defined(FUNCTIONS) || !defined(BASES) || !defined(LOADS) || !defined(LINKS)
#error "fusion.cl needs PARAMETERS, FUNCTIONS, BASES, LOADS and LINKS"
#endif
#if !defined(STORES) || !defined(OFFSETS) || !defined(READS) || !defined(PICK) || !defined(PUT) || !defined(WRITES)
#error "fusion.cl needs STORES, OFFSETS, READS, PICK, PUT and WRITES"
#endif
#if !defined(NDIM) || !defined(ARRAYS) || !defined(INDEX) || !defined(WG) || !defined(PER_ITEM) || !defined(VECTOR)
#error "fusion.cl needs NDIM, ARRAYS, INDEX, WG, PER_ITEM and VECTOR"
#endif

#include "functions.cl"
#include "expressions.cl"
#include "unravel.cl"

// Unfused ops round their results, so a product and a sum of two ops must not be contracted to an fma.
#pragma OPENCL FP_CONTRACT OFF

// NVIDIA's assembler contracts a sum with the product that ends a division, in spite of the pragma. It does not
// contract this fma, which returns v for every v: `one` is 1, but the compiler cannot know.
#if IS_CPU
#define SETTLED(v) (v)
#else
#define SETTLED(v) fma((v), one, -0.0f)
#endif

typedef struct {
    long shape[NDIM], steps[ARRAYS * NDIM];  // lengths, then the strides of every input
    long size, block;
} Layout;

FUNCTIONS

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void fusion(PARAMETERS const Layout layout) {
    INDEX index[NDIM];
    const float one = layout.block != 0;
#if WG == 1
    const long start = (long)get_group_id(0) * layout.block, stop = MIN(start + layout.block, layout.size);
    for (long i = start, run; i < stop; i += run) {
        unravel((INDEX)i, layout.shape, index);
        run = MIN(layout.shape[NDIM - 1] - (long)index[NDIM - 1], stop - i);
        BASES
        WIDELY for (long j = 0; j < run; j++) {
            LOADS(j)
            LINKS
            STORES(j)
        }
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
                EACH_OF_VECTOR {
                    PICK
                    LINKS
                    PUT
                }
                WRITES
            } else
#else
            const int count = 1;
#endif
                for (int j = 0; j < count; j++) {
                    LOADS(j)
                    LINKS
                    STORES(j)
                }
        }
    }
#endif
}
