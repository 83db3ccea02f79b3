// What of a step of Adam changes from step to step, where some of it is in memory: with b1 and b2 given by logarithms,
//     step_size = lr / (1 - b1^step),   root = 1 / sqrt(1 - b2^step),   scale,   lr
// in the widest type that the device has, so that nothing differs from what the host would have worked out.
//
// Arrays   lr_at, step_at, scale_at (1), of L, N and S; numbers (4)
// Launch   one work-item
// Params   ACC type of the result | WIDE double, or float where there is none | for L (lr), N (step) and S (scale): the
//          type, how to read it (LOAD_L ..), and L_ON_DEVICE .. 1 where it is in memory, 0 where it is given
#if !defined(ACC) || !defined(WIDE) || !defined(L_ON_DEVICE) || !defined(N_ON_DEVICE) || !defined(S_ON_DEVICE)
#error "adamw_numbers.cl needs ACC, WIDE, and the macros of L, N and S"
#endif

__kernel void adamw_numbers(const WIDE lr, __global const L *lr_at, const WIDE step, __global const N *step_at,
                            const WIDE scale, __global const S *scale_at, const WIDE log_b1, const WIDE log_b2,
                            __global ACC *numbers) {
    const WIDE rate = L_ON_DEVICE ? LOAD_L(lr_at, 0) : lr, count = N_ON_DEVICE ? LOAD_N(step_at, 0) : step;
    numbers[0] = rate / -expm1(count * log_b1);
    numbers[1] = 1 / sqrt(-expm1(count * log_b2));
    numbers[2] = S_ON_DEVICE ? LOAD_S(scale_at, 0) : scale;
    numbers[3] = rate;
}
