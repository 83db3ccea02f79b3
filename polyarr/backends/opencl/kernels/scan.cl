// Running sums along the middle axis of a row-major x (outer, length, inner): out has its shape.
//
// Kernels  scan_columns  every work-item goes down COLUMNS neighbouring columns, with a carry for each
//          scan_rows     a group goes along a row WG elements at a time; inner is 1; GPU only
// Launch   scan_columns  global (inner / COLUMNS rounded up, outer), groups of (WG, 1)
//          scan_rows     global outer * WG, groups of WG
// Params   T, LOAD       stored type of x, and how to read it
//          A             type of the sums
//          OUT_T, STORE  type of out, and how to write it
//          WG, COLUMNS   work-items per group, a power of two; columns per work-item
#if !defined(T) || !defined(LOAD) || !defined(A) || !defined(OUT_T) || !defined(STORE)
#error "scan.cl needs T, LOAD, A, OUT_T and STORE"
#endif
#if !defined(WG) || !defined(COLUMNS)
#error "scan.cl needs WG and COLUMNS"
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void scan_columns(__global const T *restrict x, __global OUT_T *restrict out, const long inner, const long length) {
    const long column = (long)get_global_id(0) * COLUMNS, start = (long)get_global_id(1) * length * inner + column;
    const int columns = (int)MAX(0L, MIN((long)COLUMNS, inner - column));
    A carry[COLUMNS];
    for (int c = 0; c < columns; c++) carry[c] = 0;
    for (long r = 0; r < length; r++)
        for (int c = 0; c < columns; c++) {
            carry[c] += (A)LOAD(x, start + r * inner + c);
            STORE(out, start + r * inner + c, carry[c]);
        }
}

#if WG > 1
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void scan_rows(__global const T *restrict x, __global OUT_T *restrict out, const long length) {
    __local A lane[WG];
    const int me = get_local_id(0);
    const long start = (long)get_group_id(0) * length;
    A carry = 0;
    for (long first = 0; first < length; first += WG) {
        const long i = first + me;
        A sum = i < length ? (A)LOAD(x, start + i) : (A)0;
        lane[me] = sum;
        for (int step = 1; step < WG; step *= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            const A before = me >= step ? lane[me - step] : (A)0;
            barrier(CLK_LOCAL_MEM_FENCE);
            lane[me] = sum += before;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < length) STORE(out, start + i, carry + sum);
        carry += lane[WG - 1];
        barrier(CLK_LOCAL_MEM_FENCE);  // before lane serves the next elements
    }
}
#endif
