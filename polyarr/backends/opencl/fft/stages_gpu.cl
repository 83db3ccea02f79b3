// Short Fourier transforms of lanes in the registers of a GPU's work-items, by Stockham's algorithm. Between two stages
// the work-items exchange elements through local memory, first the real parts, then the imaginary ones. Included by
// passes_gpu.cl and whole_rows_gpu.cl, whose kernels have these variables:
//
// Memory   re, im    (REGISTERS) elements of this work-item: r of each of its butterflies
//          held      (HELD) local memory
//          roots     factors before each stage but the first, stage after stage: for element k = 1, 2, ... of a butterfly
//                    those of all butterflies that differ
//          lane, item              lane of this work-item, and its number among the ITEMS of that lane
//          last_lane, last_item    the same in the last stage
// Params   LENGTH        elements of a transform
//          LANES         transforms of a group
//          ITEMS         work-items of a lane
//          REGISTERS     elements of a work-item
//          STAGES        BUTTERFLIES(r, inner, at) of all stages, with EXCHANGE(r, inner, next radix) between them
//          FIRST, LAST   radices of the first and the last stage
//          READ_BY_LANE, WRITE_BY_LANE   whether neighboring lanes, rather than neighboring elements, are near in memory
//          Others: see butterflies.cl

#define WG (LANES * ITEMS)
#define PADDED(i) ((i) + ((i) >> 5))  // against bank conflicts of elements that are a radix apart
#define HELD PADDED(LENGTH * LANES)
#if READ_BY_LANE
#define SLOT(j, lane) PADDED((j) * LANES + (lane))
#else
#define SLOT(j, lane) PADDED((lane) * LENGTH + (j))
#endif
#define LANE(by_lane) (int)(by_lane ? get_local_id(0) % LANES : get_local_id(0) / ITEMS)
#define ITEM(by_lane) (int)(by_lane ? get_local_id(0) / LANES : get_local_id(0) % ITEMS)

// The butterflies of radix r of a work-item: e is the q-th of them. Butterfly e reads every COUNT(r)-th element.
#define COUNT(r) (LENGTH / (r))
#define OWN(r, item) \
    _Pragma("unroll") for (int q = 0, e = item; q < (COUNT(r) + ITEMS - 1) / ITEMS; q++, e += ITEMS) \
        if (COUNT(r) % ITEMS == 0 || e < COUNT(r))
// Its elements j, and their numbers in the transform before the first stage and after the last one.
#define ELEMENTS(r, j) _Pragma("unroll") for (int j = 0; j < r; j++)
#define NUMBER(r, j) (e + COUNT(r) * (j))

// inner is the product of the radices of earlier stages. In the last stage all roots are 1.
#define BUTTERFLIES(r, inner, at) \
    OWN(r, item) { \
        dft_##r(re + q * r, im + q * r); \
        if (inner * r < LENGTH) { \
            _Pragma("unroll") for (int k = 1; k < r; k++) { \
                const PAIR w = roots[at + (k - 1) * (COUNT(r) / inner) + e / inner]; \
                const REAL a = re[q * r + k], b = im[q * r + k]; \
                re[q * r + k] = a * w.x - b * w.y, im[q * r + k] = a * w.y + b * w.x; \
            } \
        } \
    }
#define MOVE(part, r, inner, next, to_lane, to_item) \
    barrier(CLK_LOCAL_MEM_FENCE); \
    OWN(r, item) ELEMENTS(r, k) \
        held[SLOT(e + e / inner * inner * (r - 1) + inner * k, lane)] = part[q * r + k]; \
    barrier(CLK_LOCAL_MEM_FENCE); \
    OWN(next, to_item) ELEMENTS(next, j) part[q * next + j] = held[SLOT(NUMBER(next, j), to_lane)];
#define EXCHANGE(r, inner, next) \
    { \
        const int is_last = inner * r * next == LENGTH; \
        const int to_lane = is_last ? last_lane : lane, to_item = is_last ? last_item : item; \
        MOVE(re, r, inner, next, to_lane, to_item) \
        MOVE(im, r, inner, next, to_lane, to_item) \
        lane = to_lane, item = to_item; \
    }
