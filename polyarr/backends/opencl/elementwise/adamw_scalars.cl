// Computes the scalars of an AdamW step on the device, for steps whose lr, step or scale is an array:
//     step_size = lr / (1 - b1^step),   root = 1 / sqrt(1 - b2^step),   scale,   lr
// The arithmetic is in the widest float type of the device, so that the results equal those computed on the host.
//
// Arrays   lr_at (1) of L, step_at (1) of N, scale_at (1) of S: the dynamic scalars
//          scalars (4) of ACC: the results, read by adamw.cl
// Launch   one work-item
// Params   ACC        type of the results
//          WIDE       type of the arithmetic: double, or float on devices without double
//          L, N, S    types of lr_at, step_at and scale_at; LOAD_L, LOAD_N, LOAD_S read them
//          L_ON_DEVICE, N_ON_DEVICE, S_ON_DEVICE    1 to read that scalar from its array, 0 to use the argument

__kernel void adamw_scalars(const WIDE lr, __global const L *lr_at, const WIDE step, __global const N *step_at,
                            const WIDE scale, __global const S *scale_at, const WIDE log_b1, const WIDE log_b2,
                            __global ACC *scalars) {
    const WIDE rate = L_ON_DEVICE ? LOAD_L(lr_at, 0) : lr, count = N_ON_DEVICE ? LOAD_N(step_at, 0) : step;
    scalars[0] = rate / -expm1(count * log_b1);
    scalars[1] = 1 / sqrt(-expm1(count * log_b2));
    scalars[2] = S_ON_DEVICE ? LOAD_S(scale_at, 0) : scale;
    scalars[3] = rate;
}
