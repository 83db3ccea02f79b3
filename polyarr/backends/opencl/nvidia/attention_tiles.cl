// Included by attention_wgmma.cl: loads tiles of the operands through TMA, and multiplies them with wgmma, for 16-bit
// operands or for float32 split into 2 or 3 bfloat16 terms.
//
// A tile is 64 rows of D elements in local memory, stored in blocks of 64 columns: those of the high term first, then
// those of the other terms. Scores are 64 x 64, in the registers of four warps: p[i] of a lane is at row ROW_OF(i) and
// column COLUMN_OF(i), relative to the lane's first row and column.
//
// Params   D        length of the last axis, a multiple of 8 up to 128
//          TERMS    terms per operand: 1; or 2 or 3 with KIND bf16: see attention_wgmma.cl
#if !defined(D) || !defined(TERMS)
#error "attention_tiles.cl needs D and TERMS"
#endif

#define TILE 64
#define BLOCKS ((D + 63) / 64)  // blocks of 64 columns
#define BLOCK_BYTES (TILE * 128)
#define TERM_BYTES (BLOCKS * BLOCK_BYTES)
#define TILE_BYTES (TERMS * TERM_BYTES)
#define SLICES ((D + 15) / 16)  // slices of 16 columns: the depth of one wgmma
#define SCORES (TILE / 2)
#define RESULTS (BLOCKS * 32)

#define ROW_OF(i) ((i) / 2 % 2 * 8)
#define COLUMN_OF(i) ((i) / 4 * 8 + (i) % 2)
#define EACH_SCORE UNROLL for (int i = 0; i < SCORES; i++)

// Start the TMA load of 64 rows of array number `which`; the barrier receives TILE_BYTES.
INLINE void tile_load(uint to, __global const ulong *maps, int which, int walks, int row, int inner, int outer,
                      uint barrier) {
    inner *= walks >> 2 * which & 1;
    outer *= walks >> (2 * which + 1) & 1;
    UNROLL for (int i = 0; i < TERMS * BLOCKS; i++)
        tma_load(to + i * BLOCK_BYTES, maps + which * 16, i * 64, row, inner, outer, barrier);
}

// p = own tile @ other tile^T, or p += that if `adds` is not 0
#define PRODUCT_OF_TILES(p, own, other, adds) \
    UNROLL for (int slice = 0; slice < SLICES; slice++) \
        WGMMA(p, DESCRIPTOR_K_MAJOR(own, slice / 4 * BLOCK_BYTES + slice % 4 * 32), \
              DESCRIPTOR_K_MAJOR(other, slice / 4 * BLOCK_BYTES + slice % 4 * 32), \
              (uint)((adds) || slice > 0), 0, 0)

// sum += weights (64 x 64) @ tile, of 16-bit floats
#define ADD_PRODUCT(sum, weights, tile) \
    UNROLL for (int slice = 0; slice < TILE / 16; slice++) \
        UNROLL for (int block = 0; block < BLOCKS; block++) \
            WGMMA_FROM_REGISTERS((sum) + 32 * block, weights[slice], \
                                 DESCRIPTOR_MN_MAJOR(tile, block * BLOCK_BYTES + slice * 2048))

// p = own tile @ other tile^T, of all terms, the smallest products first
#if TERMS == 2
#define PRODUCTS(p, own, other) { \
        PRODUCT_OF_TILES(p, (own) + TERM_BYTES, other, 0); \
        PRODUCT_OF_TILES(p, own, (other) + TERM_BYTES, 1); \
        PRODUCT_OF_TILES(p, own, other, 1); \
    }
#elif TERMS == 3
#define PRODUCTS(p, own, other) { \
        PRODUCT_OF_TILES(p, (own) + 2 * TERM_BYTES, other, 0); \
        PRODUCT_OF_TILES(p, own, (other) + 2 * TERM_BYTES, 1); \
        PRODUCT_OF_TILES(p, (own) + TERM_BYTES, (other) + TERM_BYTES, 1); \
        PRODUCT_OF_TILES(p, (own) + TERM_BYTES, other, 1); \
        PRODUCT_OF_TILES(p, own, (other) + TERM_BYTES, 1); \
        PRODUCT_OF_TILES(p, own, other, 1); \
    }
#else
#define PRODUCTS(p, own, other) PRODUCT_OF_TILES(p, own, other, 0)
#endif

// sum += weights @ tile, of all terms. With one term the products may still be in flight afterwards; with more they are
// done.
#if TERMS == 2
#define ADD_LOW_PRODUCTS(sum, weights, tile) \
    ADD_PRODUCT(sum, weights[1], tile); \
    ADD_PRODUCT(sum, weights[0], (tile) + TERM_BYTES)
#elif TERMS == 3
#define ADD_LOW_PRODUCTS(sum, weights, tile) \
    ADD_PRODUCT(sum, weights[2], tile); \
    ADD_PRODUCT(sum, weights[0], (tile) + 2 * TERM_BYTES); \
    ADD_PRODUCT(sum, weights[1], (tile) + TERM_BYTES); \
    ADD_PRODUCT(sum, weights[1], tile); \
    ADD_PRODUCT(sum, weights[0], (tile) + TERM_BYTES)
#endif
#if TERMS > 1
#define ADD_WEIGHTED(sum, weights, tile) { \
        float added[RESULTS]; \
        EACH_SCORE added[i] = 0; \
        WGMMA_FENCE(); \
        ADD_LOW_PRODUCTS(added, weights, tile); \
        ADD_PRODUCT(added, weights[0], tile); \
        WGMMA_COMMIT(); \
        WGMMA_WAIT(0); \
        EACH_SCORE (sum)[i] += added[i]; \
    }
#else
#define ADD_WEIGHTED(sum, weights, tile) ADD_PRODUCT(sum, weights[0], tile)
#endif

// Unpack two bfloat16 from a word.
INLINE float2 upper_floats(uint pair) { return (float2)(as_float(pair << 16), as_float(pair & 0xffff0000u)); }

// Round scores to 16-bit terms in registers, laid out as the left operand of wgmma.
INLINE void pack(uint packed[TERMS][TILE / 16][4], const float *p) {
    UNROLL for (int slice = 0; slice < TILE / 16; slice++)
        UNROLL for (int i = 0; i < 4; i++) {
            const float a = p[8 * slice + 2 * i], b = p[8 * slice + 2 * i + 1];
            packed[0][slice][i] = pack_pair(a, b);
#if TERMS > 1
            const float2 high = upper_floats(packed[0][slice][i]), rest = (float2)(a - high.x, b - high.y);
            packed[1][slice][i] = pack_pair(rest.x, rest.y);
#endif
#if TERMS == 3
            const float2 middle = upper_floats(packed[1][slice][i]);
            packed[2][slice][i] = pack_pair(rest.x - middle.x, rest.y - middle.y);
#endif
        }
}
