// One step of AdamW (or Adam) for up to 12 parameters of one dtype in one launch. With g the scaled gradient:
//     m' = b1 m + a1 g,   v' = b2 v + a2 g^2,   p' = p - step_size m' / (sqrt(v') root + eps)
// where a1 = 1 - b1 and a2 = 1 - b2 (computed on the host, because float32 subtraction would lose digits),
// step_size = lr / (1 - b1^step) and root = 1 / sqrt(1 - b2^step). Each parameter has its own weight decay. With
// DECOUPLED, p is first multiplied by 1 - lr * decay; otherwise decay * p is added to g.
//
// Arrays   p<k>, p_new<k> (n[k]) of T: parameter k before and after the step; may be one array (in-place update)
//          g<k> (n[k]) of G: its gradient
//          m<k>, v<k>, m_new<k>, v_new<k> (n[k]) of M: its first and second moments; may be updated in place as well
//          scalars (4) of ACC: step_size, root, scale, lr, written by adamw_scalars.cl; read if SCALARS_ON_DEVICE
//          All arrays are contiguous. An unused argument slot has n[k] = 0.
// Launch   local GROUP, global GROUP * (sum over k of ceil(n[k] / BLOCK)): a work-group updates one block of one
//          parameter
// Params   T, ACC, P_DTYPE, P_RAW, P_WORD    dtype of the parameters, for DEFINE_VECTOR
//          G, G_DTYPE, G_RAW, G_WORD    the same for the gradients
//          M, M_DTYPE, M_RAW, M_WORD    the same for the moments
//          GROUP, BLOCK, VECTOR    work-items per group, elements per group, elements per vector load
//          DECOUPLED               1 for decoupled weight decay (AdamW), 0 for L2 regularization (Adam)
//          SCALARS_ON_DEVICE       1 to read step_size, root, scale and lr from `scalars`, 0 to use the arguments

DEFINE_VECTOR(p, P_DTYPE, T, P_RAW, ACC, P_WORD)
DEFINE_VECTOR(g, G_DTYPE, G, G_RAW, ACC, G_WORD)
DEFINE_VECTOR(m, M_DTYPE, M, M_RAW, ACC, M_WORD)

#define TENSOR(k) \
    __global const T *p##k, __global const G *restrict g##k, __global const M *m##k, __global const M *v##k, \
    __global T *p_new##k, __global M *m_new##k, __global M *v_new##k

// Select the arrays of parameter k if `block` is one of its blocks; otherwise skip its blocks.
#define PICK(k) \
    if (n == 0) { \
        if (block < BLOCKS(fixed.n[k])) { \
            p = p##k, g = g##k, m = m##k, v = v##k, p_new = p_new##k, m_new = m_new##k, v_new = v_new##k; \
            n = fixed.n[k], decay = fixed.decay[k]; \
        } else { \
            block -= BLOCKS(fixed.n[k]); \
        } \
    }

// Values that are constant from step to step; the launcher packs and caches them.
typedef struct { long n[12]; ACC decay[12], b1, b2, a1, a2, eps, unused; } Fixed;

typedef struct { ACC b1, b2, a1, a2, eps, step_size, root, scale, decay; } Step;

// p_new may be p, and the moments alike: each element is read by the work-item that overwrites it, and by no other, which
// holds whatever a compiler makes of `restrict` (as in elementwise.cl). Without it, clang compares addresses at run time in
// spite of assume_safety, and runs the scalar loop where they are equal.
static inline void update_block(__global const T *restrict p, __global const G *restrict g,
                                __global const M *restrict m, __global const M *restrict v,
                                __global T *restrict p_new, __global M *restrict m_new, __global M *restrict v_new,
                                const size_t block, const size_t n, const Step s) {
    WIDELY _Pragma("clang loop vectorize(assume_safety)") EACH_RUN_OF_BLOCK(i, block, n) {
        ACC value[VECTOR], gradient[VECTOR], first[VECTOR], second[VECTOR];
        read_p(p, i, end, value);
        read_g(g, i, end, gradient);
        read_m(m, i, end, first);
        read_m(v, i, end, second);
        EACH_OF_VECTOR {
            gradient[k] *= s.scale;
#if DECOUPLED
            value[k] -= s.decay * value[k];
#else
            gradient[k] += s.decay * value[k];
#endif
            first[k] = s.b1 * first[k] + s.a1 * gradient[k];
            second[k] = s.b2 * second[k] + s.a2 * gradient[k] * gradient[k];
            value[k] -= s.step_size * first[k] / (SQRT(second[k]) * s.root + s.eps);
        }
        write_p(p_new, i, end, value);
        write_m(m_new, i, end, first);
        write_m(v_new, i, end, second);
    }
}

__kernel BLOCK_GROUP void adamw(TENSOR(0), TENSOR(1), TENSOR(2), TENSOR(3), TENSOR(4), TENSOR(5), TENSOR(6),
                                TENSOR(7), TENSOR(8), TENSOR(9), TENSOR(10), TENSOR(11), const Fixed fixed,
                                const ACC step_size, const ACC root, const ACC scale, const ACC lr,
                                __global const ACC *restrict scalars) {
    __global const T *p = p0;
    __global const G *g = g0;
    __global const M *m = m0, *v = v0;
    __global T *p_new = p_new0;
    __global M *m_new = m_new0, *v_new = v_new0;
    long block = get_group_id(0), n = 0;
    ACC decay = 0;
    PICK(0) PICK(1) PICK(2) PICK(3) PICK(4) PICK(5) PICK(6) PICK(7) PICK(8) PICK(9) PICK(10) PICK(11)
    Step step = {fixed.b1, fixed.b2, fixed.a1, fixed.a2, fixed.eps, step_size, root, scale, decay};
    ACC rate = lr;
    if (SCALARS_ON_DEVICE) {
        step.step_size = scalars[0], step.root = scalars[1], step.scale = scalars[2];
        rate = scalars[3];
    }
    if (DECOUPLED) step.decay *= rate;
    update_block(p, g, m, v, p_new, m_new, v_new, block, n, step);
}
