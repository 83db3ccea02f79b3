// How the work-items of a group share rows on a GPU: included by the kernels <op>_gpu.cl that work row by row.
//
// LANES work-items share a row, ROWS rows a group. A row is read in aligned vectors of VECTOR elements; where rows lie
// at any place (EVEN 0), the first and the last vector hold elements of its neighbours, which are passed over. A
// work-item takes SLOTS vectors at once, its share, of a CHUNK of the row. With HELD the row is no longer than that, and
// stays in registers from the first use to the last; otherwise it is read again, chunk by chunk, for each use.
//
// Launch   local (LANES, ROWS), global (LANES * groups, ROWS)
// Params   T, ACC, LOAD, STORE and DEFINE_VECTOR's of a float dtype | LANES, ROWS powers of two | SLOTS | HELD, EVEN 0 or 1
#if !defined(T) || !defined(VECTOR) || !defined(WORD) || !defined(LANES) || !defined(ROWS) || !defined(SLOTS)
#error "shares.cl needs a dtype's macros, VECTOR, WORD, LANES, ROWS and SLOTS"
#endif
#if !defined(HELD) || !defined(EVEN)
#error "shares.cl needs HELD and EVEN"
#endif

#define SHARE (SLOTS * VECTOR)
#define CHUNK (LANES * SHARE)
#define SHARING __attribute__((reqd_work_group_size(LANES, ROWS, 1)))
#define EACH_OF_SHARE _Pragma("unroll") for (int k = 0; k < SHARE; k++)
#define PAIR_NOW(type) type##2
#define PAIR(type) PAIR_NOW(type)
typedef PAIR(ACC) ACC2;

DEFINE_VECTOR(vector, DTYPE, T, RAW, ACC, WORD)

// Element k of a share lies at this place of its chunk. [low, high) of a chunk are the row's own.
#define PLACE(k) (((k) / VECTOR * LANES + me) * VECTOR + (k) % VECTOR)
#define IS_OWN(k) ((EVEN || PLACE(k) >= low) && PLACE(k) < high)

// A share of the chunk that begins at p; `other` stands for what is not the row's.
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

// Declares me, and the rows of this set of LANES work-items: from `row` on, each ROWS after the last. A row past the end
// has no columns.
#define SET_OF_ROWS(rows_each) \
    const int me = get_local_id(0), set = get_local_id(1); \
    const size_t first_row = get_group_id(0) * rows_each * ROWS + set;

// Declares, for a row of this many columns: where it begins in its first vector, and its start there.
#define AT_ROW(row, rows, cols) AT_PITCHED_ROW(row, rows, cols, cols)
// The same where rows lie `pitch` elements apart, a multiple of VECTOR where EVEN is 1.
#define AT_PITCHED_ROW(row, rows, cols, pitch) \
    const size_t columns = (row) < (rows) ? (cols) : 0, shift = EVEN ? 0 : (row) * (pitch) % VECTOR; \
    const size_t start = (row) * (pitch) - shift;

// Runs what follows for each chunk of the row, from element `at` of start on. A held row is one.
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

// Defines TYPE NAME(TYPE v, int me, __local TYPE *lane): v joined over the LANES work-items that share lane[LANES]. All
// receive the result, and every work-item of the group must call it.
#define DEFINE_SHARED(NAME, TYPE, JOIN) \
    static inline TYPE NAME(TYPE v, int me, __local TYPE *lane) { \
        if (LANES > 1) { \
            const int few = LANES > 32 ? LANES / 16 : LANES; \
            barrier(CLK_LOCAL_MEM_FENCE); /* who has read the last join's results */ \
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
DEFINE_SHARED(shared_sum, ACC, ADD)
DEFINE_SHARED(shared_max, ACC, MAX)
DEFINE_SHARED(shared_sums, ACC2, ADD)

// The largest element m of a row, and in *sum that of exp(x - m). A nan, an inf, or nothing but -inf makes *sum nan.
// A held row is in v afterwards.
static inline ACC shared_exponentials(__global const T *restrict x, size_t start, size_t shift, size_t columns, int me,
                                      __local ACC *lane, ACC *v, ACC *sum) {
    ACC largest = -INFINITY, part = 0;
    EACH_CHUNK {
        const int low = LOW, high = HIGH;
        ACC before = largest;
        READ_SHARE(x, -INFINITY, v)
        EACH_OF_SHARE largest = MAX(largest, v[k]);
#if !HELD
        const ACC from = largest == -INFINITY ? 0 : largest;  // so that -inf less -inf adds nothing here
        if (before != largest) part *= EXP(before - from);
        EACH_OF_SHARE part += EXP(v[k] - from);
#endif
    }
    const ACC m = shared_max(largest, me, lane);
#if HELD
    EACH_OF_SHARE part += EXP(v[k] - m);
#else
    part *= EXP(largest - m);
#endif
    *sum = shared_sum(part, me, lane);
    return m;
}

// ---- sums over rows ----------------------------------------------------------------------------------------------
//
// SUMS_OF_COLUMNS(name, partials, cols) declares them, ADD_TO_COLUMN(name, value) adds to that of element k of a share,
// and WRITE_SUMS(name, cols) leaves those of the group in its row of partials (groups, cols). Only where EVEN is 1. Those
// of a row that is not held lie in partials from the beginning; ROWS is 1 then.
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
                EACH_OF_SHARE totals[PLACE(k)] = turn ? totals[PLACE(k)] + name##_sum[k] : name##_sum[k]; \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        for (int c = set * LANES + me; c < cols; c += LANES * ROWS) name##_total[c] = totals[c]; \
    }
#else
#define WRITE_SUMS(name, cols) EACH_OF_SHARE if (PLACE(k) < cols) name##_total[PLACE(k)] = name##_sum[k];
#endif
#else
#define SUMS_OF_COLUMNS(name, partials, cols) \
    __global ACC *name##_total = (partials) + get_group_id(0) * (cols); \
    for (size_t at = 0; at < cols; at += CHUNK) \
        EACH_OF_SHARE if (at + PLACE(k) < cols) name##_total[at + PLACE(k)] = 0;
#define ADD_TO_COLUMN(name, value) if (PLACE(k) < high) name##_total[at + PLACE(k)] += value;
#define WRITE_SUMS(name, cols)
#endif
