// One step of Adam for up to 12 parameters of one dtype in one launch. With g the scaled gradient:
//     m' = b1 m + a1 g,   v' = b2 v + a2 g^2,   p' = p - step_size m' / (sqrt(v') root + eps)
// where a1 = 1 - b1 and a2 = 1 - b2 (from the host: in float32 the difference would lose digits),
// step_size = lr / (1 - b1^step) and root = 1 / sqrt(1 - b2^step). Weight decay comes with each parameter:
// DECOUPLED, p is first multiplied by 1 - lr * decay; else decay * p is added to g.
//
// Arrays   per parameter k: p, p_new of T; g of G; m, v, m_new, v_new of M; n elements each, contiguous; an unused
//          place has n = 0. numbers: step_size, root, scale, lr, as adamw_numbers.cl leaves them; else unread
// Launch   local GROUP, global GROUP * (the sum of ceil(n / BLOCK)): a work-group takes one block of one parameter
// Params   T, ACC, LOAD, STORE of the parameters' dtype | G, LOAD_G of the gradients' | M, LOAD_M, STORE_M of the
//          moments' | GROUP work-items per group, BLOCK elements per group | DECOUPLED 0 or 1 |
//          NUMBERS_ON_DEVICE 1 where what changes from step to step is read from numbers; 0: it is given
#if !defined(T) || !defined(G) || !defined(M) || !defined(GROUP) || !defined(DECOUPLED) || !defined(NUMBERS_ON_DEVICE)
#error "adamw.cl needs three dtypes' macros, GROUP, BLOCK, DECOUPLED and NUMBERS_ON_DEVICE"
#endif

#define TENSOR(k) \
    __global const T *restrict p##k, __global const G *restrict g##k, __global const M *restrict m##k, \
    __global const M *restrict v##k, __global T *restrict p_new##k, __global M *restrict m_new##k, \
    __global M *restrict v_new##k

// If the block is one of parameter k's: these are its arrays. Else count on to the next parameter.
#define PICK(k) \
    if (n == 0) { \
        if (block < BLOCKS(fixed.n[k])) { \
            p = p##k, g = g##k, m = m##k, v = v##k, p_new = p_new##k, m_new = m_new##k, v_new = v_new##k; \
            n = fixed.n[k], decay = fixed.decay[k]; \
        } else { \
            block -= BLOCKS(fixed.n[k]); \
        } \
    }

// What is the same at every step.
typedef struct { long n[12]; ACC decay[12], b1, b2, a1, a2, eps; } Fixed;

typedef struct { ACC b1, b2, a1, a2, eps, step_size, root, scale, decay; } Step;

static inline void update_block(__global const T *restrict p, __global const G *restrict g,
                                __global const M *restrict m, __global const M *restrict v,
                                __global T *restrict p_new, __global M *restrict m_new, __global M *restrict v_new,
                                const size_t block, const size_t n, const Step s) {
    EACH_OF_BLOCK(i, block, n) {
        ACC value = LOAD(p, i), gradient = LOAD_G(g, i) * s.scale;
#if DECOUPLED
        value -= s.decay * value;
#else
        gradient += s.decay * value;
#endif
        const ACC old_m = LOAD_M(m, i), old_v = LOAD_M(v, i);
        const ACC first = s.b1 * old_m + s.a1 * gradient;
        const ACC second = s.b2 * old_v + s.a2 * gradient * gradient;
        STORE(p_new, i, value - s.step_size * first / (SQRT(second) * s.root + s.eps));
        STORE_M(m_new, i, first);
        STORE_M(v_new, i, second);
    }
}

__kernel BLOCK_GROUP void adamw(TENSOR(0), TENSOR(1), TENSOR(2), TENSOR(3), TENSOR(4), TENSOR(5), TENSOR(6),
                                TENSOR(7), TENSOR(8), TENSOR(9), TENSOR(10), TENSOR(11), const Fixed fixed,
                                const ACC step_size, const ACC root, const ACC scale, const ACC lr,
                                __global const ACC *restrict numbers) {
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
    if (NUMBERS_ON_DEVICE) {
        step.step_size = numbers[0], step.root = numbers[1], step.scale = numbers[2];
        rate = numbers[3];
    }
    if (DECOUPLED) step.decay *= rate;
    update_block(p, g, m, v, p_new, m_new, v_new, block, n, step);
}
