// Prefix sums (inclusive scan) along the middle axis of a row-major x (outer, length, inner); out has the shape of x.
//
// Kernels  scan_columns    a work-item scans COLUMNS adjacent columns of one part of the length
//          scan_rows       LANES work-items scan a part of a row, VECTORS_PER_LANE vectors each at a time; inner is 1;
//                          GPUs only
//          scan_spans      a work-item scans a part of each of rows_each rows; inner is 1; CPUs only
// Arrays   starts (outer, parts - 1, inner) of A: the sums of all parts but the last; not read if there is one part
// Launch   scan_columns    global (ceil(inner / COLUMNS), outer, parts), groups of (WG, 1, 1)
//          scan_rows       groups of (LANES, WG / LANES); global (LANES, outer) rounded up to groups, along axis 0, and
//                          parts
//          scan_spans      global (ceil(outer / rows_each), parts), groups of 1
// Params   T, LOAD         dtype of x: storage type, load function
//          A               type of the sums
//          OUT_T, STORE    dtype of out: storage type, store function
//          COMPENSATED     1 for Kahan summation, if A is a float type no wider than that of out
//          WG, COLUMNS     work-items per group, a power of two; columns per work-item
//          LANES           for scan_rows: work-items that share a row, a power of two and at least 16
//          VECTORS_PER_LANE    for scan_rows: vectors of each of them at a time
//          VECTOR          for scan_rows: elements per vector
//          ACC, DTYPE, RAW, WORD                    of x, for DEFINE_VECTOR
//          OUT_ACC, OUT_DTYPE, OUT_RAW, OUT_WORD    of out

#if COMPENSATED
#define ADD_UP(SUM, LOST, V) KAHAN_ADD(A, SUM, LOST, V)
#else
#define ADD_UP(SUM, LOST, V) (SUM) += (V);
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void scan_columns(__global const T *restrict x, __global OUT_T *restrict out, __global const A *restrict starts,
                  const long inner, const long length, const long part_length) {
    const long column = (long)get_global_id(0) * COLUMNS, outer = get_global_id(1), part = get_global_id(2);
    const long begin = part * part_length, end = MIN(begin + part_length, length);
    const long parts_before = get_global_size(2) - 1, start = outer * length * inner + column;
    const int columns = (int)MAX(0L, MIN((long)COLUMNS, inner - column));
    A carry[COLUMNS], lost[COLUMNS];
    for (int c = 0; c < columns; c++) carry[c] = lost[c] = 0;
    for (long p = 0; p < part; p++)
        for (int c = 0; c < columns; c++)
            ADD_UP(carry[c], lost[c], starts[(outer * parts_before + p) * inner + column + c])
    for (long r = begin; r < end; r++)
        for (int c = 0; c < columns; c++) {
            ADD_UP(carry[c], lost[c], (A)LOAD(x, start + r * inner + c))
            STORE(out, start + r * inner + c, carry[c]);
        }
}

#if WG > 1
#define RUN 16  // lanes whose sums one work-item scans serially
#define SETS (WG / LANES)
#define CHUNK (VECTORS_PER_LANE * LANES * VECTOR)
#define AT(lane) ((lane) + (lane) / RUN)  // padded, against bank conflicts of the serial scans
#define EACH_VECTOR_OF_LANE _Pragma("unroll") for (int t = 0; t < VECTORS_PER_LANE; t++)

DEFINE_JOIN(sum_of_lanes, A, LANES, ADD)
DEFINE_VECTOR(x, DTYPE, T, RAW, ACC, WORD)
DEFINE_VECTOR(out, OUT_DTYPE, OUT_T, OUT_RAW, OUT_ACC, OUT_WORD)

__kernel __attribute__((reqd_work_group_size(LANES, SETS, 1)))
void scan_rows(__global const T *restrict x, __global OUT_T *restrict out, __global const A *restrict starts,
               const long outer, const long length, const long part_length) {
    __local A all_lanes[SETS][VECTORS_PER_LANE][AT(LANES)];
    const int me = get_local_id(0), set = get_local_id(1);
    __local A (*lane)[AT(LANES)] = all_lanes[set];
    // The last parts first: the pass that computed `starts` read them last, so they are still in the cache.
    const long parts_before = get_num_groups(1) - 1, part = parts_before - get_group_id(1);
    const long row = get_group_id(0) * SETS + set, count = MIN(part_length, length - part * part_length);
    const long begin = row * length + part * part_length, end = row < outer ? begin + count : begin;
    const int is_aligned = begin % VECTOR == 0;
    A carry = 0, lost = 0;
    if (part > 0) {
        for (long p = me; row < outer && p < part; p += LANES) carry += starts[row * parts_before + p];
        carry = sum_of_lanes(carry, me, lane[0]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (long at = 0; at < count; at += CHUNK) {
        A sums[VECTORS_PER_LANE][VECTOR], before[VECTORS_PER_LANE], total[VECTORS_PER_LANE];
        EACH_VECTOR_OF_LANE {
            const long i = begin + at + (t * LANES + me) * VECTOR;
            ACC v[VECTOR];
            if (is_aligned && i + VECTOR <= end)
                read_x(x, i, end, v);
            else
                EACH_OF_VECTOR v[k] = i + k < end ? LOAD(x, i + k) : 0;
            EACH_OF_VECTOR sums[t][k] = k ? sums[t][k - 1] + (A)v[k] : (A)v[k];
            lane[t][AT(me)] = sums[t][VECTOR - 1];
            before[t] = total[t] = 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int run = me; run < VECTORS_PER_LANE * (LANES / RUN); run += LANES) {
            __local A *first = lane[run % VECTORS_PER_LANE] + AT(run / VECTORS_PER_LANE * RUN);
            for (int j = 1; j < RUN; j++) first[j] += first[j - 1];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int run = 0; run < LANES / RUN; run++)
            EACH_VECTOR_OF_LANE {
                if (run == me / RUN) before[t] = total[t];
                total[t] += lane[t][AT(run * RUN + RUN - 1)];
            }
        EACH_VECTOR_OF_LANE {
            const long i = begin + at + (t * LANES + me) * VECTOR;
            OUT_ACC outs[VECTOR];
            if (me % RUN) before[t] += lane[t][AT(me - 1)];
            EACH_OF_VECTOR outs[k] = (OUT_ACC)(carry + (before[t] + sums[t][k]));
            if (is_aligned && i + VECTOR <= end)
                write_out(out, i, end, outs);
            else
                EACH_OF_VECTOR if (i + k < end) STORE(out, i + k, outs[k]);
            ADD_UP(carry, lost, total[t])
        }
        barrier(CLK_LOCAL_MEM_FENCE);  // the next elements reuse lane
    }
}
#else

typedef PASTE(A, 8) Vector;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void scan_spans(__global const T *restrict x, __global OUT_T *restrict out, __global const A *restrict starts,
                const long outer, const long length, const long part_length, const long rows_each) {
    const long first = get_global_id(0) * rows_each, part = get_global_id(1), parts_before = get_global_size(1) - 1;
    const long begin = part * part_length, end = MIN(begin + part_length, length);
    for (long row = first; row < MIN(first + rows_each, outer); row++) {
        const long start = row * length;
        A carry = 0, lost = 0;
        for (long p = 0; p < part; p++) ADD_UP(carry, lost, starts[row * parts_before + p])
        long i = start + begin;
#if !COMPENSATED
        for (; i + 8 <= start + end; i += 8) {
            Vector v;
            _Pragma("unroll") for (int j = 0; j < 8; j++) v[j] = (A)LOAD(x, i + j);
            v += (Vector)(0, v.s0, v.s1, v.s2, v.s3, v.s4, v.s5, v.s6);
            v += (Vector)(0, 0, v.s0, v.s1, v.s2, v.s3, v.s4, v.s5);
            v += (Vector)(0, 0, 0, 0, v.s0, v.s1, v.s2, v.s3);
            const Vector sums = v + carry;
            carry += v.s7;  // shorter dependency chain than carry = sums.s7
            _Pragma("unroll") for (int j = 0; j < 8; j++) STORE(out, i + j, sums[j]);
        }
#endif
        for (; i < start + end; i++) {
            ADD_UP(carry, lost, (A)LOAD(x, i))
            STORE(out, i, carry);
        }
    }
}
#endif
