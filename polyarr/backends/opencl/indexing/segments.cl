// Segmented sums for scatter_add and the gradient of embedding: result[:, k, :] += the sum of updates[:, p, :] over the
// positions p whose index is k. Updates are grouped by a sort, so that sums are deterministic.
//
// Arrays   result (outer, n, inner), updates (outer, count, inner) of T; indices (count) of INDEX; all row-major
//          keys (count) of KEY: the indices as 0 .. n - 1, or n for an index out of range
//          order (count) of int: positions sorted by key (stable). The positions of one slice are adjacent: a segment.
//          Below, a slot is an index into `order`
//          FAULT: see prelude.cl
// Launch   wrap_indices: one work-item per `span` consecutive indices
//          count_keys, count_slots, place_keys (CPU): parts of `span` positions, 1, parts; group 1. They fill order.
//          counts (parts, n + 1) of int is workspace: how many positions have a key, then the slot of the next one
//          segments_serial (CPU): (spans of slots, blocks of COLUMNS columns, outer), group 1; the work-item that finds
//          the first slot of a segment sums the segment
//          segments_parts (GPU): blocks * sets * outer groups of GROUP work-items: `lanes` columns x GROUP / lanes
//          parts of `span` slots; then segments_join: outer * parts * inner work-items, rounded up to GROUP. partial
//          (outer, parts, 2, inner) of ACC is workspace, mostly not accessed
//          slots_serial (CPU, few slices): global (parts of the updates, outer), group 1; then slots_join, group 1.
//          partial (parts, outer, n, inner) of WIDE holds the sums of each part
//          add_atomically: one work-item per element of updates, rounded up to GROUP, or fewer
// Params   T, ACC, LOAD, STORE    dtype of result and updates: see prelude.cl
//          WIDE                   type of long sums
//          INDEX                  int or long
//          KEY                    int, or long if int cannot count n
//          GROUP, COLUMNS         powers of two
//          ATOMICS                0 none, 1 by compare-and-swap, 2 by NVIDIA's instruction; 1 and 2 for float only

// To keep the digits of long sums, RUN updates are summed on their own, and runs are added with Kahan's compensation.
#define RUN 64
#define BATCH 8

__kernel void wrap_indices(__global const INDEX *restrict indices, __global KEY *restrict keys,
                           FAULT, const long n, const long count, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);
    for (long p = first; p < last; p++) {
        const INDEX index = indices[p];
        const long k = index < 0 ? index + n : index;
        const bool known = k >= 0 && k < n;
        keys[p] = (KEY)(known ? k : n);
        if (!known) note_fault(fault, call, index, n);
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void count_keys(__global const KEY *restrict keys, __global int *restrict counts, const long n, const long count,
                const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);
    counts += get_global_id(0) * (n + 1);
    for (long k = 0; k <= n; k++) counts[k] = 0;
    for (long p = first; p < last; p++) counts[keys[p]]++;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void count_slots(__global int *restrict counts, const long n, const long parts) {
    int slot = 0;
    for (long k = 0; k <= n; k++)
        for (long part = 0; part < parts; part++) {
            const int found = counts[part * (n + 1) + k];
            counts[part * (n + 1) + k] = slot;
            slot += found;
        }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void place_keys(__global const KEY *restrict keys, __global int *restrict order, __global int *restrict counts,
                const long n, const long count, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);
    counts += get_global_id(0) * (n + 1);
    for (long p = first; p < last; p++) order[counts[keys[p]]++] = p;
}

// The end of the segment that begins at slot, found by galloping and binary search.
static inline long segment_end(__global const KEY *keys, __global const int *order, long slot, long count) {
    const KEY k = keys[order[slot]];
    long step = 1;
    while (slot + step < count && keys[order[slot + step]] == k) step *= 2;
    long inside = slot + step / 2, outside = MIN(slot + step, count);
    while (outside - inside > 1) {
        const long middle = (inside + outside) / 2;
        if (keys[order[middle]] == k) inside = middle; else outside = middle;
    }
    return outside;
}

static inline bool begins_segment(__global const KEY *keys, __global const int *order, long slot, long n) {
    const KEY k = keys[order[slot]];
    return k != n && (slot == 0 || keys[order[slot - 1]] != k);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void segments_serial(__global T *restrict result, __global const T *restrict updates,
                     __global const KEY *restrict keys, __global const int *restrict order,
                     const long n, const long count, const long inner, const long span) {
    const long first = get_global_id(0) * span, last = MIN(first + span, count);
    const long column = get_global_id(1) * COLUMNS, outer = get_global_id(2);
    const int width = MIN(COLUMNS, inner - column);

    for (long slot = first; slot < last; slot++) {
        if (!begins_segment(keys, order, slot, n)) continue;
        const long end = segment_end(keys, order, slot, count);
        const long target = (outer * n + keys[order[slot]]) * inner + column;
        ACC sum[COLUMNS], lost[COLUMNS], part[COLUMNS];
        for (int c = 0; c < width; c++) sum[c] = lost[c] = 0;
        for (long run = slot; run < end; run += RUN) {
            for (int c = 0; c < width; c++) part[c] = 0;
            for (long s = run; s < MIN(run + RUN, end); s++) {
                const long from = (outer * count + order[s]) * inner + column;
                if (width == COLUMNS)
                    for (int c = 0; c < COLUMNS; c++) part[c] += LOAD(updates, from + c);
                else
                    for (int c = 0; c < width; c++) part[c] += LOAD(updates, from + c);
            }
            for (int c = 0; c < width; c++) KAHAN_ADD(ACC, sum[c], lost[c], part[c])
        }
        for (int c = 0; c < width; c++) STORE(result, target + c, LOAD(result, target + c) + sum[c]);
    }
}

// One segment may contain all updates, so work is divided into parts of the slots, not segments. A work-item sums one
// part, with BATCH loads in flight. The sum of a segment within the part goes to result; otherwise it goes to partial:
// [0] for the segment that an earlier part began, [1] for the one that begins here and continues in the next part.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void segments_parts(__global T *restrict result, __global const T *restrict updates,
                    __global const KEY *restrict keys, __global const int *restrict order, __global ACC *restrict partial,
                    const long n, const long count, const long inner, const long blocks, const long lanes,
                    const long span) {
    const long group = get_group_id(0), parts = (count + span - 1) / span, me = get_local_id(0);
    const long sets = (parts + GROUP / lanes - 1) / (GROUP / lanes), outer = group / blocks / sets;
    const long part = group / blocks % sets * (GROUP / lanes) + me / lanes, column = group % blocks * lanes + me % lanes;
    const long first = part * span, end = MIN(first + span, count), mine = ((outer * parts + part) * 2) * inner + column;
    if (first >= count || column >= inner) return;
    KEY current = keys[order[first]];
    bool began_before = first > 0 && keys[order[first - 1]] == current;
    ACC sum = 0, lost = 0;

    for (long slot = first; slot < end; slot += BATCH) {
        KEY key[BATCH];
        ACC v[BATCH], run = 0;
        _Pragma("unroll") for (int j = 0; j < BATCH; j++) {
            const int p = order[MIN(slot + j, end - 1)];
            key[j] = keys[p];
            v[j] = LOAD(updates, (outer * count + p) * inner + column);
        }
        _Pragma("unroll") for (int j = 0; j < BATCH; j++) {
            if (slot + j >= end) continue;
            if (key[j] != current) {
                KAHAN_ADD(ACC, sum, lost, run)
                if (began_before) {
                    partial[mine] = sum;
                } else if (current < n) {
                    const long target = (outer * n + current) * inner + column;
                    STORE(result, target, LOAD(result, target) + sum);
                }
                current = key[j], began_before = false, sum = lost = run = 0;
            }
            run += v[j];
        }
        KAHAN_ADD(ACC, sum, lost, run)
    }
    if (began_before) {
        partial[mine] = sum;
    } else if (end < count && keys[order[end]] == current) {
        partial[mine + inner] = sum;
    } else if (current < n) {
        const long target = (outer * n + current) * inner + column;
        STORE(result, target, LOAD(result, target) + sum);
    }
}

// Sum segments that span several parts: one work-item per column and part in which such a segment may begin.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void segments_join(__global T *restrict result, __global const KEY *restrict keys, __global const int *restrict order,
                   __global const ACC *restrict partial, const long n, const long count, const long inner,
                   const long span, const long total) {
    const long i = get_global_id(0), parts = (count + span - 1) / span, part = i / inner % parts;
    const long first = part * span, end = first + span, outer = i / inner / parts;
    if (i >= total || end >= count) return;
    const KEY k = keys[order[end]];
    const bool began_before = first > 0 && keys[order[first]] == k && keys[order[first - 1]] == k;
    if (k == n || keys[order[end - 1]] != k || began_before) return;
    __global const ACC *own = partial + (outer * parts + part) * 2 * inner + i % inner;
    ACC sum = own[inner], lost = 0;
    bool goes_on = true;

    for (long p = part + 1; goes_on; p += BATCH) {
        KEY next[BATCH];
        ACC v[BATCH];
        _Pragma("unroll") for (int j = 0; j < BATCH; j++) {
            const long here = MIN(p + j, parts - 1);
            next[j] = here + 1 < parts ? keys[order[(here + 1) * span]] : (KEY)n;
            v[j] = own[(here - part) * 2 * inner];
        }
        _Pragma("unroll") for (int j = 0; j < BATCH; j++) {
            if (!goes_on) continue;
            KAHAN_ADD(ACC, sum, lost, v[j])
            goes_on = next[j] == k;
        }
    }
    const long target = (outer * n + k) * inner + i % inner;
    STORE(result, target, LOAD(result, target) + sum);
}

// For few slices, whose sums stay in the cache: updates are added in their own order, without a sort.
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void slots_serial(__global WIDE *restrict partial, __global const T *restrict updates, __global const KEY *restrict keys,
                  const long n, const long count, const long inner, const long per_part) {
    const long part = get_group_id(0), outer = get_group_id(1), stop = MIN((part + 1) * per_part, count);
    __global WIDE *sums = partial + (part * (long)get_num_groups(1) + outer) * n * inner;
    for (long i = 0; i < n * inner; i++) sums[i] = 0;
    for (long p = part * per_part; p < stop; p++) {
        const long k = keys[p], from = (outer * count + p) * inner;
        for (long c = 0; k < n && c < inner; c++) sums[k * inner + c] += (WIDE)LOAD(updates, from + c);
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void slots_join(__global T *restrict result, __global const WIDE *restrict partial, const long parts,
                const long total) {
    for (long i = get_global_id(0); i < total; i += get_global_size(0)) {
        WIDE sum = LOAD(result, i);
        for (long part = 0; part < parts; part++) sum += partial[part * total + i];
        STORE(result, i, (ACC)sum);
    }
}

#if ATOMICS
static inline void add_float(__global float *p, float v) {
#if ATOMICS == 2
    __asm__ volatile("red.global.add.f32 [%0], %1;" : : "l"(p), "f"(v) : "memory");
#else
    __global volatile uint *bits = (__global volatile uint *)p;
    uint expected = 0, seen;  // start with a guess: a plain read would be a data race
    while ((seen = atomic_cmpxchg(bits, expected, as_uint(as_float(expected) + v))) != expected) expected = seen;
#endif
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void add_atomically(__global float *result, __global const float *restrict updates, __global const KEY *restrict keys,
                    const long n, const long count, const long inner, const long total) {
    for (long i = get_global_id(0); i < total; i += get_global_size(0)) {
        const long row = i / inner, outer = row / count, k = keys[row % count];
        if (k < n) add_float(result + (outer * n + k) * inner + i % inner, updates[i]);
    }
}
#endif
