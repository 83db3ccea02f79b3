// Several elementwise ops in one kernel: every input is read once, and only what others need is written.
//
// Arrays   inputs: windows with any strides, which broadcasting makes 0; outputs: dense
// Launch   as elementwise.cl
// Params   PARAMETERS         numbers n0 ..., inputs p0 ... with offsets o0 ..., outputs q0 ...: see fusion.py
//          FUNCTIONS          DEFINE_VECTOR for each of their dtypes
//          BASES              declares b0 ...: where in the inputs the element of out is that lies at `place`
//          LOADS(j)           declares the inputs' values v0 ... of element j beyond that
//          LINKS              declares the value of each op in turn, rounded to what the op gives; SETTLED(v) is there
//                             where the value comes from a division or a function
//          STORES(j)          writes the outputs' element j beyond element i
//          OFFSETS            all offsets together, by |
//          READS, PICK, PUT, WRITES: as LOADS and STORES, for `count` elements at once by way of r0 ... and w0 ...
//          NDIM               number of axes, at least 1, after axes that can be one have become one
//          ARRAYS             how many inputs there are, at least 1
//          INDEX              unsigned type that counts elements
//          WG, PER_ITEM       work-items per group, and vectors per work-item on a GPU
//          VECTOR             elements of a vector. More than one as in elementwise.cl
//          TELLS              1 if the largest finite magnitude of TOLD, a float32 value, is wanted: then there is an array
//                             peaks (3) behind the outputs, into whose last word its bits go; 0 before
//          and those of expressions.cl, whose ACC is that of the ops that call functions
#if !defined(PARAMETERS) || !defined(FUNCTIONS) || !defined(BASES) || !defined(LOADS) || !defined(LINKS)
#error "fusion.cl needs PARAMETERS, FUNCTIONS, BASES, LOADS and LINKS"
#endif
#if !defined(STORES) || !defined(OFFSETS) || !defined(READS) || !defined(PICK) || !defined(PUT) || !defined(WRITES)
#error "fusion.cl needs STORES, OFFSETS, READS, PICK, PUT and WRITES"
#endif
#if !defined(NDIM) || !defined(ARRAYS) || !defined(INDEX) || !defined(WG) || !defined(PER_ITEM) || !defined(VECTOR)
#error "fusion.cl needs NDIM, ARRAYS, INDEX, WG, PER_ITEM and VECTOR"
#endif
#if !defined(TELLS) || !defined(TOLD)
#error "fusion.cl needs TELLS and TOLD"
#endif

#include "functions.cl"
#include "expressions.cl"
#include "places.cl"
#include "peak.cl"

#if TELLS
#define PEAKS __global volatile uint *peaks,
#define PEAK most = MAX(most, finite_bits(TOLD));
#else
#define PEAKS
#define PEAK
#endif

// An op by itself rounds its result: no product and sum of two ops may become one operation.
#pragma OPENCL FP_CONTRACT OFF

// NVIDIA's assembler makes one operation of a sum and the product that a division ends with, whatever the pragma says;
// but not of a sum and this, which is v for every v: `one` is 1, and the compiler does not know it.
#if IS_CPU
#define SETTLED(v) (v)
#else
#define SETTLED(v) fma((v), one, -0.0f)
#endif

typedef struct {
    long shape[NDIM], steps[ARRAYS][NDIM];  // lengths, then every input's strides
    long size, block;
} Layout;

FUNCTIONS

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void fusion(PARAMETERS PEAKS const Layout layout) {
    INDEX place[NDIM];
#if TELLS
    __local uint largest[WG];
    uint most = 0;
#endif
    const float one = layout.block != 0;
#if WG == 1
    const long start = (long)get_group_id(0) * layout.block, stop = MIN(start + layout.block, layout.size);
    for (long i = start, run; i < stop; i += run) {
        locate((INDEX)i, layout.shape, place);
        run = MIN(layout.shape[NDIM - 1] - (long)place[NDIM - 1], stop - i);
        BASES
        WIDELY for (long j = 0; j < run; j++) {
            LOADS(j)
            LINKS
            PEAK
            STORES(j)
        }
    }
#else
    const size_t vectors = WG * PER_ITEM, start = get_group_id(0) * vectors + get_local_id(0);
    const int is_whole = (get_group_id(0) + 1) * vectors * VECTOR <= layout.size;  // then no element is asked for
#pragma unroll
    for (int turn = 0; turn < PER_ITEM; turn++) {
        const long i = (start + turn * WG) * VECTOR;
        if (is_whole || i < layout.size) {
            locate((INDEX)i, layout.shape, place);
            BASES
#if VECTOR > 1
            const int count = is_whole ? VECTOR : (int)MIN((long)VECTOR, layout.size - i);
            if (((OFFSETS) & (VECTOR - 1)) == 0) {
                READS
                EACH_OF_VECTOR {
                    PICK
                    LINKS
                    PEAK
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
                    PEAK
                    STORES(j)
                }
        }
    }
#endif
#if TELLS  // a look costs less than writing, which mostly nobody has to
    most = most_in_group(most, largest, get_local_id(0), WG);
    if (get_local_id(0) == 0 && most > peaks[2]) atomic_max(peaks + 2, most);
#endif
}
