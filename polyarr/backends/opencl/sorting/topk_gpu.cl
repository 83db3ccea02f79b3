// argtopk on GPUs: the indices of the k largest elements of each row in descending order, the first of equal ones
// first.
//
// Each of GROUP work-items finds the best key of its share of a row. The k-th best of these is a bound: at least k
// elements of the row are as good, usually few more. These candidates are collected, and each counts how many are
// better (its rank). If there are more than CAPACITY, as among many equal elements, those better than the bound are
// candidates; if these are too many, too, the k-th key becomes the bound, found bit by bit (radix select). The row is
// searched for the first elements equal to the bound, as many as are missing.
//
// Arrays   x (rows, n) elements; out (rows, k) of long
// Launch   local GROUP, global GROUP * rows; k is at most GROUP
// Params   those of keys.cl; DESCENDING is 1: the best key is the smallest
//          GROUP    work-items per row, a power of two
//          CAPACITY     capacity for candidates, at least GROUP
#include "keys.cl"
#if !DESCENDING
#error "topk_gpu.cl needs DESCENDING 1"
#endif

#define AT_ONCE 8
#define EACH_OF_ROW(STATEMENTS) { \
        int i = me; \
        for (; i + (AT_ONCE - 1) * GROUP < n; i += AT_ONCE * GROUP) { \
            KEY loaded[AT_ONCE]; \
            _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++) loaded[j] = x[i + j * GROUP]; \
            _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++) { \
                const KEY key = key_of(loaded[j]); \
                const int place = i + j * GROUP; \
                STATEMENTS \
            } \
        } \
        for (; i < n; i += GROUP) { \
            const KEY key = key_of(x[i]); \
            const int place = i; \
            STATEMENTS \
        } \
    }

// Return the sum of `mine` over the work-group to all its work-items.
static inline int counted(int mine, int me, __local volatile int *total) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me == 0) *total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (mine) atomic_add(total, mine);
    barrier(CLK_LOCAL_MEM_FENCE);
    return *total;
}

// Return the place of the wanted-th element equal to a key, counted from 1; there are as many.
static inline int place_of_equal(
    __global const KEY *x, int n, KEY last, int wanted, int me, __local int *equal, __local volatile int *total
) {
    for (int first = 0;; first += GROUP) {
        const int mine = first + me < n && key_of(x[first + me]) == last;
        const int here = counted(mine, me, total);
        if (here < wanted) {
            wanted -= here;
            continue;
        }
        equal[me] = mine;
        barrier(CLK_LOCAL_MEM_FENCE);
        int before = 0;
        for (int i = 0; i < me; i++) before += equal[i];
        if (mine && before == wanted - 1) *total = first + me;
        barrier(CLK_LOCAL_MEM_FENCE);
        return *total;
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void argtopk_group(__global const KEY *restrict x, __global long *restrict out, const int n, const int k) {
    __local KEY keys[CAPACITY];
    __local int places[CAPACITY];
    __local volatile int total;
    __local KEY bound;
    const int me = get_local_id(0);
    x += (size_t)get_group_id(0) * n;
    out += (size_t)get_group_id(0) * k;

    KEY best = (KEY)~(KEY)0;
    EACH_OF_ROW(best = MIN(best, key);)
    keys[me] = best;
    barrier(CLK_LOCAL_MEM_FENCE);
    int rank = 0;
    for (int i = 0; i < GROUP; i++) rank += keys[i] < best || (keys[i] == best && i < me);
    if (rank == k - 1) bound = best;
    if (me == 0) total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    KEY last = bound;
    EACH_OF_ROW(
        if (key <= last) {
            const int at = atomic_inc(&total);
            if (at < CAPACITY) {
                keys[at] = key;
                places[at] = place;
            }
        })
    barrier(CLK_LOCAL_MEM_FENCE);
    int found = total;

    if (found > CAPACITY) {
        int less = 0;
        EACH_OF_ROW(less += key < last;)
        less = counted(less, me, &total);
        if (less > CAPACITY) {
            last = 0;
            less = 0;
            for (int bit = BITS - 1; bit >= 0; bit--) {
                const KEY trial = last | (KEY)((KEY)1 << bit);
                int below = 0;
                EACH_OF_ROW(below += key < trial;)
                below = counted(below, me, &total);
                if (below < k) {
                    last = trial;
                    less = below;
                }
            }
        }
        const int limit = less < k ? place_of_equal(x, n, last, k - less, me, places, &total) : -1;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me == 0) total = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_OF_ROW(
            if (key < last || (key == last && place <= limit)) {
                const int at = atomic_inc(&total);
                keys[at] = key;
                places[at] = place;
            })
        barrier(CLK_LOCAL_MEM_FENCE);
        found = MAX(k, less);
    }
    for (int i = me; i < found; i += GROUP) {
        const KEY key = keys[i];
        const int place = places[i];
        int better = 0;
        for (int j = 0; j < found; j++) better += keys[j] < key || (keys[j] == key && places[j] < place);
        if (better < k) out[better] = place;
    }
}
