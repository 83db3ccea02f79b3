// Householder's QR decomposition of a panel: `width` columns of matrices, from the diagonal element at `start` on.
//
// Kernels  reflect     write R into the panel's upper triangle, and the vectors of the reflections as columns of v,
//                      with 1 on the diagonal and 0 above; what is below the diagonal of w is not used afterwards
// Arrays   w, v of ACC: matrices of rows `pitch` apart, `matrix` from one to the next
// Launch   a group of WG per matrix
// Params   ACC, WG     dtype; work-items per group, 1 on CPUs
//          PANEL       largest width
#if !defined(ACC) || !defined(WG) || !defined(PANEL)
#error "qr.cl needs ACC, WG and PANEL"
#endif
#define GROUP __attribute__((reqd_work_group_size(WG, 1, 1)))
#define WAIT if (WG > 1) barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#define LANES_X (WG < 32 ? WG : 32)  // work-items along a row
#define LANES_Y (WG / LANES_X)

DEFINE_JOIN(group_sum, ACC, WG, ADD)
DEFINE_JOIN(group_max, ACC, WG, MAX)

__kernel GROUP void reflect(__global ACC *restrict w, __global ACC *restrict v, const long start, const long matrix,
                            const int pitch, const int rows, const int width) {
    __local ACC lane[WG], sums[LANES_Y * PANEL];
    const int me = get_local_id(0), x = me % LANES_X, y = me / LANES_X;
    w += start + get_group_id(0) * matrix;
    v += start + get_group_id(0) * matrix;
    for (int j = 0; j < width; j++) {
        __global ACC *restrict row = w + (long)j * pitch;
        ACC largest = 0, sum = 0;
        for (int i = j + me; i < rows; i += WG) {
            const ACC a = w[(long)i * pitch + j], size = a < 0 ? -a : a;
            largest = MAX(largest, size);
        }
        largest = group_max(largest, me, lane);
        const ACC divisor = largest > 0 ? largest : 1;
        for (int i = j + me; i < rows; i += WG) {
            const ACC a = w[(long)i * pitch + j] / divisor;  // squares neither overflow nor vanish
            sum += a * a;
        }
        const ACC norm = divisor * SQRT(group_sum(sum, me, lane));
        const ACC first = row[j], last = first > 0 ? -norm : norm, scale = first - last;  // no cancellation
        WAIT
        for (int i = me; i < rows; i += WG)
            v[(long)i * pitch + j] = i < j ? 0 : i == j ? 1 : scale == 0 ? 0 : w[(long)i * pitch + j] / scale;
        for (int c = j + 1 + x; c < width; c += LANES_X) sums[y * PANEL + c] = 0;
        if (me == 0) row[j] = last;
        WAIT
        for (int i = j + y; i < rows; i += LANES_Y) {
            __global ACC *restrict across = w + (long)i * pitch;
            const ACC factor = v[(long)i * pitch + j];
            for (int c = j + 1 + x; c < width; c += LANES_X) sums[y * PANEL + c] += factor * across[c];
        }
        WAIT
        const ACC tau = scale == 0 ? 2 : -scale / last;
        for (int c = j + 1 + me; c < width; c += WG) {
            ACC total = 0;
            for (int part = 0; part < LANES_Y; part++) total += sums[part * PANEL + c];
            sums[c] = tau * total;
        }
        WAIT
        for (int i = j + y; i < rows; i += LANES_Y) {
            __global ACC *restrict across = w + (long)i * pitch;
            const ACC factor = v[(long)i * pitch + j];
            for (int c = j + 1 + x; c < width; c += LANES_X) across[c] -= factor * sums[c];
        }
        WAIT
    }
}
