// The weight of quantized codes: y[j, c] = code[j, c] * scale[j], or * scale[j, c / 32] if IN_BLOCKS.
//
// Arrays   codes (n, k) of CODE_T, or (n, k / 2) if BITS is 4; scale (n) or (n, k / 32) of SCALE_T; y (n, k) of T,
//          row-major
// Launch   at least one work-item per `each` of `runs` consecutive runs of y
// Params   T, ACC, STORE                   dtype of y: see prelude.cl
//          BITS, CODE_T                    8 and char; or 4 and uchar: of each block of 32 codes, byte b has code b in
//                                          its low bits and code b + 16 in its high bits, both plus 8
//          IN_BLOCKS, SCALE_T, SCALE_LOAD  1 for a scale per block, 0 for one per row; its dtype
//          RUN                             consecutive elements that a work-item converts, which divide k, and 16 or 32

#define BLOCK 32
#define EACH_OF_RUN for (int w = 0; w < (RUN < BLOCK / 2 ? RUN : BLOCK / 2); w++)

__kernel void dequantize(__global const CODE_T *restrict codes, __global const SCALE_T *restrict scale,
                         __global T *restrict y, const long runs, const long runs_per_row, const long each) {
    for (long i = get_global_id(0) * each, end = MIN(i + each, runs); i < end; i++) {
        const ACC factor = SCALE_LOAD(scale, IN_BLOCKS ? i * RUN / BLOCK : i / runs_per_row);
        const long first = i * RUN;
#if BITS == 8
        for (int w = 0; w < RUN; w++) STORE(y, first + w, factor * codes[first + w]);
#else
        __global const CODE_T *pairs = codes + first / BLOCK * (BLOCK / 2) + first % (BLOCK / 2);
        const int shift = first % BLOCK / (BLOCK / 2) * 4;
        EACH_OF_RUN STORE(y, first + w, factor * (((pairs[w] >> shift) & 15) - 8));
        if (RUN == BLOCK) EACH_OF_RUN STORE(y, first + BLOCK / 2 + w, factor * ((pairs[w] >> 4) - 8));
#endif
    }
}
