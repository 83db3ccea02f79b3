// Row tiling for GPU kernels that work row by row; included by <op>_gpu.cl.
//
// LANES work-items share a row; a work-group has ROWS rows. Rows are read in aligned vectors of VECTOR elements. If
// rows may begin at any element (EVEN 0), the first and last vector also contain elements of neighboring rows, which
// are ignored. A work-item loads SLOTS vectors at once, its share of a CHUNK of the row. With HELD the row fits into
// one chunk and stays in registers; otherwise it is reread, chunk by chunk, for each use.
//
// Launch   local (LANES, ROWS), global (LANES * groups, ROWS)
// Params   T, ACC, LOAD, STORE, DTYPE, RAW, WORD    a float dtype, for DEFINE_VECTOR
//          VECTOR         elements per vector
//          LANES, ROWS    powers of two
//          SLOTS          vectors of a share
//          HELD           1 if a row fits into one chunk
//          EVEN           1 if every row begins with an aligned vector and consists of whole ones

#define SHARE (SLOTS * VECTOR)
#define CHUNK (LANES * SHARE)
#define SHARING __attribute__((reqd_work_group_size(LANES, ROWS, 1)))
#define EACH_OF_SHARE _Pragma("unroll") for (int k = 0; k < SHARE; k++)
typedef PASTE(ACC, 2) ACC2;

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)

// IN_CHUNK(k) is the index of element k of a share in its chunk. Elements [low, high) of a chunk belong to the row.
#define IN_CHUNK(k) (((k) / VECTOR * LANES + me) * VECTOR + (k) % VECTOR)
#define IS_OWN(k) (EVEN ? IN_CHUNK((k) / VECTOR * VECTOR) < high : IN_CHUNK(k) >= low && IN_CHUNK(k) < high)

// Read a share of the chunk that begins at p; `other` replaces elements that do not belong to the row.
static inline void read_share(__global const T *restrict p, int low, int high, int me, ACC other, ACC *v) {
    const int is_whole = (EVEN || low == 0) && high == CHUNK;
    _Pragma("unroll") for (int s = 0; s < SLOTS; s++) {
        const int first = (s * LANES + me) * VECTOR;
        if (is_whole || ((EVEN || first >= low) && first + VECTOR <= high))
            read_vector(p, first, first + VECTOR, v + s * VECTOR);
        else
            EACH_OF_VECTOR v[s * VECTOR + k] = !EVEN && first + k >= low && first + k < high ? LOAD(p, first + k) : other;
    }
}

// The words of a share of a row that is held, and whose vectors are aligned (EVEN), as they are in memory. fetch_share
// only loads them, those of other elements from within the row, so that nothing waits for them before widen_share.
typedef struct {
    Word_vector slot[SLOTS];
} Words;
static inline void fetch_share(__global const T *restrict p, int cols, int me, Words *words) {
    _Pragma("unroll") for (int s = 0; s < SLOTS; s++) {
        const int first = (s * LANES + me) * VECTOR, at = first < cols ? first : cols - VECTOR;
        words->slot[s] = *(__global const Word_vector *)(p + at);
    }
}
static inline void widen_share(const Words *words, int high, int me, ACC other, ACC *v) {
    _Pragma("unroll") for (int s = 0; s < SLOTS; s++) {
        const bool is_own = (s * LANES + me) * VECTOR < high;
        EACH_OF_VECTOR v[s * VECTOR + k] = is_own ? PASTE(widen_, DTYPE)(words->slot[s].each[k]) : other;
    }
}

static inline void write_share(__global T *restrict p, int low, int high, int me, const ACC *v) {
    const int is_whole = (EVEN || low == 0) && high == CHUNK;
    _Pragma("unroll") for (int s = 0; s < SLOTS; s++) {
        const int first = (s * LANES + me) * VECTOR;
        if (is_whole || ((EVEN || first >= low) && first + VECTOR <= high))
            write_vector(p, first, first + VECTOR, v + s * VECTOR);
        else if (!EVEN)
            EACH_OF_VECTOR if (first + k >= low && first + k < high) STORE(p, first + k, v[s * VECTOR + k]);
    }
}

// Declare me, set (which of the ROWS sets of LANES work-items this is) and first_row; further rows follow at distance
// ROWS.
#define SET_OF_ROWS(rows_each) \
    const int me = get_local_id(0), set = get_local_id(1); \
    const size_t first_row = get_group_id(0) * rows_each * ROWS + set;

// Declare for a row: columns (0 past the end), shift, the row's offset within its first aligned vector, and start, the
// offset of that vector.
#define AT_ROW(row, rows, cols) AT_PITCHED_ROW(row, rows, cols, cols)
// The same for rows that lie `pitch` elements apart, a multiple of VECTOR if EVEN is 1.
#define AT_PITCHED_ROW(row, rows, cols, pitch) \
    const size_t columns = (row) < (rows) ? (cols) : 0, shift = EVEN ? 0 : (row) * (pitch) % VECTOR; \
    const size_t start = (row) * (pitch) - shift;

// Loop over the chunks of the row, at offset `at` from start. A held row is one chunk.
#if HELD
#define EACH_CHUNK for (size_t at = 0, once = 1; once; once = 0)
#else
#define EACH_CHUNK for (size_t at = 0; at < columns + shift; at += CHUNK)
#endif
#define LOW (at ? 0 : (int)shift)
#define HIGH (columns ? (int)MIN(columns + shift - at, (size_t)CHUNK) : 0)
#define READ_SHARE(x, other, v) read_share((x) + start + at, low, high, me, other, v);
#define WRITE_SHARE(y, v) write_share((y) + start + at, low, high, me, v);
#if HELD
#define READ_AGAIN(x, other, v)
#else
#define READ_AGAIN READ_SHARE
#endif

// Defines TYPE NAME(TYPE v, int me, __local TYPE *lane): reduce v by JOIN over the LANES work-items that share
// lane[LANES]. All receive the result, and every work-item of the group must call it.
#define IS_float 1
#define IS_double 0
#if defined(SHUFFLE_XOR) && PASTE(IS_, ACC) && (LANES <= 32 || LANES * SLOTS > 128)
// Work-items of a warp pass numbers to each other by instructions, warps through local memory. On shorter rows that is
// no faster for several warps.
static inline float shuffled(float v, int distance) {
    float found;
    SHUFFLE_XOR(found, v, distance);
    return found;
}
#define shuffled2(v, distance) (float2)(shuffled(v.x, distance), shuffled(v.y, distance))
#define JOIN_LANES(TYPE, JOIN, SHUFFLED, COUNT) \
    _Pragma("unroll") for (int d = (COUNT) / 2; d; d /= 2) { \
        const TYPE other = SHUFFLED(v, d); \
        v = JOIN(v, other); \
    }
#define DEFINE_SHARED(NAME, TYPE, JOIN, SHUFFLED) \
    static inline TYPE NAME(TYPE v, int me, __local TYPE *lane) { \
        JOIN_LANES(TYPE, JOIN, SHUFFLED, MIN(LANES, 32)) \
        if (LANES > 32) { \
            barrier(CLK_LOCAL_MEM_FENCE); /* all have read the results of the previous reduction */ \
            if (me % 32 == 0) lane[me / 32] = v; \
            barrier(CLK_LOCAL_MEM_FENCE); \
            v = lane[me % MAX(LANES / 32, 1)]; \
            JOIN_LANES(TYPE, JOIN, SHUFFLED, LANES / 32) \
        } \
        return v; \
    }
#else
#define DEFINE_SHARED(NAME, TYPE, JOIN, SHUFFLED) \
    static inline TYPE NAME(TYPE v, int me, __local TYPE *lane) { \
        if (LANES > 1) { \
            const int few = LANES > 32 ? LANES / 16 : LANES; \
            barrier(CLK_LOCAL_MEM_FENCE); /* all have read the results of the previous reduction */ \
            lane[me] = v; \
            barrier(CLK_LOCAL_MEM_FENCE); \
            if (LANES > 32) { \
                if (me < few) { \
                    _Pragma("unroll") for (int i = 1; i < 16; i++) v = JOIN(v, lane[i * few + me]); \
                    lane[me] = v; \
                } \
                barrier(CLK_LOCAL_MEM_FENCE); \
            } \
            v = lane[0]; \
            _Pragma("unroll") for (int i = 1; i < few; i++) v = JOIN(v, lane[i]); \
        } \
        return v; \
    }
#endif
DEFINE_SHARED(shared_sum, ACC, ADD, shuffled)
DEFINE_SHARED(shared_max, ACC, MAX, shuffled)
DEFINE_SHARED(shared_sums, ACC2, ADD, shuffled2)

// Online softmax statistics: return the largest element m of a row, and in *sum the sum of exp(x - m), which is nan if
// the row has nan, inf, or only -inf. A held row is in v afterwards.
static inline ACC shared_exponentials(__global const T *restrict x, size_t start, size_t shift, size_t columns, int me,
                                      __local ACC *lane, ACC *v, ACC *sum) {
    ACC largest = -INFINITY, part = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        ACC before = largest;
        READ_SHARE(x, -INFINITY, v)
        EACH_OF_SHARE largest = fmax(largest, v[k]);  // skips nan, which makes the sum nan
#if !HELD
        const ACC from = largest == -INFINITY ? 0 : largest;  // avoid -inf - -inf
        if (before != largest) part *= EXP_TO_T(before - from);
        EACH_OF_SHARE part += EXP_TO_T(v[k] - from);
#endif
    }
    const ACC m = shared_max(largest, me, lane);
#if HELD
    EACH_OF_SHARE part += EXP_TO_T(v[k] - m);
#else
    part *= EXP_TO_T(largest - m);
#endif
    *sum = shared_sum(part, me, lane);
    return m;
}

// ---- column sums -------------------------------------------------------------------------------------------------
//
// SUMS_OF_COLUMNS(name, partials, cols) declares accumulators, ADD_TO_COLUMN(name, value) adds to that of element k of
// a share, and WRITE_SUMS(name, cols) writes the sums of the group to its row of partials (groups, cols). EVEN must be
// 1. If rows are not held, sums are accumulated in partials directly; ROWS is 1 then.
#if HELD
#define SUMS_OF_COLUMNS(name, partials, cols) \
    __global ACC *name##_total = (partials) + get_group_id(0) * (cols); \
    ACC name##_sum[SHARE]; \
    EACH_OF_SHARE name##_sum[k] = 0;
#define ADD_TO_COLUMN(name, value) name##_sum[k] += value;
#if ROWS > 1
#define WRITE_SUMS(name, cols) { \
        for (int turn = 0; turn < ROWS; turn++) { \
            barrier(CLK_LOCAL_MEM_FENCE); \
            if (turn == set) \
                EACH_OF_SHARE totals[IN_CHUNK(k)] = turn ? totals[IN_CHUNK(k)] + name##_sum[k] : name##_sum[k]; \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        for (int c = set * LANES + me; c < cols; c += LANES * ROWS) name##_total[c] = totals[c]; \
    }
#else
#define WRITE_SUMS(name, cols) EACH_OF_SHARE if (IN_CHUNK(k) < cols) name##_total[IN_CHUNK(k)] = name##_sum[k];
#endif
#else
#define SUMS_OF_COLUMNS(name, partials, cols) \
    __global ACC *name##_total = (partials) + get_group_id(0) * (cols); \
    for (size_t at = 0; at < cols; at += CHUNK) \
        EACH_OF_SHARE if (at + IN_CHUNK(k) < cols) name##_total[at + IN_CHUNK(k)] = 0;
#define ADD_TO_COLUMN(name, value) if (IN_CHUNK(k) < high) name##_total[at + IN_CHUNK(k)] += value;
#define WRITE_SUMS(name, cols)
#endif
