// argtopk on CPUs: the indices of the k largest elements of each row in descending order, the first of equal ones
// first.
//
// A work-item keeps the k best elements so far in a heap whose root is the worst of them. Most elements are no better
// than the root, which is tested for SKIP elements at once.
//
// Arrays   x (rows, n) elements; out (rows, k) of long
//          keys, index (work-items, k): the heaps: the key of an element (see keys.cl), and its position in the row
// Launch   one work-item per `span` rows, group 1; k is at least 1
// Params   those of keys.cl; DESCENDING is 1: the best key is the smallest
#include "keys.cl"
#if !DESCENDING
#error "topk.cl needs DESCENDING 1"
#endif

#define SKIP 64
#define IS_WORSE(i, key, place) ((keys[i] > (key)) | ((keys[i] == (key)) & (index[i] > (place))))

// Sift (key, place) down from `hole` in a heap of k elements.
static inline void sift(__global KEY *keys, __global int *index, long hole, long k, KEY key, int place) {
    for (long child = 2 * hole + 1; child < k; hole = child, child = 2 * hole + 1) {
        child += child + 1 < k && IS_WORSE(child + 1, keys[child], index[child]);
        if (!IS_WORSE(child, key, place)) break;
        keys[hole] = keys[child];
        index[hole] = index[child];
    }
    keys[hole] = key;
    index[hole] = place;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void argtopk_serial(__global const KEY *restrict x, __global KEY *keys, __global int *index,
                    __global long *restrict out, const long n, const long k, const long rows, const long span) {
    const long begin = get_global_id(0) * span, end = MIN(begin + span, rows);
    keys += get_global_id(0) * k;
    index += get_global_id(0) * k;
    x += begin * n;
    out += begin * k;
    for (long row = begin; row < end; row++, x += n, out += k) {
        for (long i = 0; i < k; i++) {
            keys[i] = key_of(x[i]);
            index[i] = (int)i;
        }
        for (long i = k / 2; i-- > 0;) sift(keys, index, i, k, keys[i], index[i]);
        for (long i = k, stop; i < n; i = stop) {
            const KEY worst = keys[0];
            stop = MIN(i + SKIP, n);
            int hit = stop < i + SKIP;
            if (!hit)
                for (int j = 0; j < SKIP; j++) hit |= key_of(x[i + j]) < worst;
            for (long j = i; hit && j < stop; j++) {
                const KEY key = key_of(x[j]);
                if (key < keys[0]) sift(keys, index, 0, k, key, (int)j);
            }
        }
        for (long last = k - 1; last > 0; last--) {
            const KEY key = keys[last];
            const int place = index[last];
            out[last] = index[0];
            sift(keys, index, 0, last, key, place);
        }
        out[0] = index[0];
    }
}
