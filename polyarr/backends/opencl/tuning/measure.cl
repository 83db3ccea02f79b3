// Benchmarks the peak multiply-add rate of a CPU, against which the throughput of kernels is compared.
//
// Arrays   out (work-items) of T: a value that depends on every multiply-add, so that none is optimized away
// Launch   global: the number of work-items, local 1
// Params   T       element type
//          WIDE    elements of a vector
//          SUMS    independent accumulators: enough to hide the latency of an addition, few enough to stay in registers

typedef PASTE(T, WIDE) vector __attribute__((aligned(4)));

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void peak(__global T *out, const long rounds, const T factor, const T addend) {
    const vector left = factor, right = addend;
    vector sum[SUMS];
    _Pragma("unroll") for (int i = 0; i < SUMS; i++) sum[i] = (vector)(T)(get_global_id(0) + i);
    for (long round = 0; round < rounds; round++)
        _Pragma("unroll") for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * left + right;
    _Pragma("unroll") for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
    T total = 0;
    _Pragma("unroll") for (int i = 0; i < WIDE; i++) total += ((T *)sum)[i];
    out[get_global_id(0)] = total;
}
