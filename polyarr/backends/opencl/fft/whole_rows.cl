// Fourier transforms of whole rows, each in local memory, from and to complex or real numbers. For GPUs see
// whole_rows_gpu.cl.
//
// With CONVOLVED, a transform of any length is a convolution with a chirp, by two transforms of another length.
//
// Arrays   x, y      rows in the forms SOURCE and RESULT, row-major
//          roots     (length) exp(-2 pi i t / length)
//          halves    (n + 1) exp(-2 pi i k / (2 n)), if a form is HALF_OF_PAIRS
//          chirp     (n) factors of the numbers before and after a convolution
//          spectrum  (length) factors between its two transforms
// Launch   a work-item for each VECTOR rows
// Params   CONVOLVED         1 or 0: see above; if it is 0, length is n
//          Others: see stages.cl and forms.cl

#include "butterflies.cl"
#include "stages.cl"
#include "forms.cl"

#define PART(part, j) ((__local REAL *)(part + (j)))[lane]

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void transform_rows(__global const X *restrict x, __global Y *restrict y, __global const PAIR *restrict roots,
                    __global const PAIR *restrict halves, __global const PAIR *restrict chirp,
                    __global const PAIR *restrict spectrum, const REAL scale, const int length, const long stages,
                    const int inverse, const int n, const int x_length, const int y_length, const long rows) {
    __local V held[HELD];
    __local V *re = held, *im = held + SPACE;
    const int swapped = SOURCE == HALF_OF_PAIRS || (RESULT != HALF_OF_PAIRS && inverse);
    const long first = get_group_id(0) * (long)VECTOR;
    const int present = (int)MIN(rows - first, (long)VECTOR);
    x += first * x_length, y += first * y_length;

    for (int lane = 0; lane < VECTOR; lane++) {
        for (int j = 0; j < length; j++) {
            PAIR v = (PAIR)(0, 0);
            if (lane < present && j < n) {
                v = swapped_if(swapped, read_number(x + lane * x_length, halves, j, n, inverse));
                if (CONVOLVED) v = times(v, chirp[j]);
            }
            PART(re, j) = v.x, PART(im, j) = v.y;
        }
    }
    int at = 0;
    for (int turn = 0; turn <= CONVOLVED; turn++) {
        at = transform_held(held, at, roots, length, stages);
        barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL 7.1 runs the stages twice
        re = held + at, im = re + SPACE;
        for (int k = 0; k < length && CONVOLVED && turn == 0; k++) {
            const PAIR w = spectrum[k];
            const V product = re[k] * w.x - im[k] * w.y;
            re[k] = re[k] * w.y + im[k] * w.x, im[k] = product;  // exchanged for the inverse transform
        }
    }

#if CONVOLVED
#define NUMBER(k) times((PAIR)(PART(im, k), PART(re, k)), chirp[k])
#else
#define NUMBER(k) (PAIR)(PART(re, k), PART(im, k))
#endif
    for (int lane = 0; lane < present; lane++) {
        for (int k = 0; k < y_length; k++) {
            __global Y *to = y + lane * y_length + k;
#if RESULT == HALF_OF_PAIRS
            *to = half_of_pairs(NUMBER(k < n ? k : 0), NUMBER(k ? n - k : 0), halves, k, n, inverse) * scale;
#elif RESULT == REAL_NUMBERS
            *to = (swapped ? NUMBER(k).y : NUMBER(k).x) * scale;
#else
            *to = swapped_if(swapped, NUMBER(k)) * scale;
#endif
        }
    }
}
