// Batch norm, y = activation((x - mean) * rstd * weight + bias) with the mean and variance of each channel, forward and
// backward. Each pass reads x (and g) twice: once for the sums, once for the result.
//
// A work-group takes `rows_each` rows of LANES blocks of WIDE channels; SLICES work-items share a block. Sums are of
// differences from the first of these rows, so that no digits are lost if |mean| is large. Partial results are combined
// by the pairwise formula for means and variances.
//
// Arrays   x, y, g, dx (rows, channels) of T, row-major; weight, bias, dweight, dbias (channels) of T
//          partials (parts, 2, channels) of ACC: forward, mean of a part and sum of squared differences from it;
//          backward, sums of g and of g * (x - mean) * rstd
//          mean, variance (channels) of ACC; saved (2, channels) of ACC: mean and rstd
//          factors (3, channels) of ACC: dx = factors[0] * g + factors[1] * (x - mean) + factors[2]
//          gmean, gvariance (channels) of ACC: gradients of mean and variance, read if GIVEN
// Launch   batch_norm_join, batch_norm_gradient_join: global (channels * JOINERS), local (JOINERS)
//          all others: global (LANES * groups of blocks, SLICES * parts), local (LANES, SLICES)
// Params   those of spatial.cl
//          LANES, SLICES, JOINERS       work-items as above, powers of two
//          HAS_WEIGHT, HAS_BIAS         1 if weight, bias are read
//          WANTS_WEIGHT, WANTS_BIAS     1 to write dweight, dbias
//          ACTIVATION, ACTIVATES        see prelude.cl; ACTIVATES is 0 if the activation is none
//          GIVEN                        1 if mean and variance have gradients
#include "spatial.cl"

// Reduce `sum` over the slices of the work-group; the result is in slice 0.
INLINE void add_slices(__local ACC *shared, ACC *sum) {
    const int lane = get_local_id(0), slice = get_local_id(1);
    for (int half_size = SLICES / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_CHANNEL if (slice >= half_size && slice < 2 * half_size)
            shared[((slice - half_size) * LANES + lane) * WIDE + c] = sum[c];
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_CHANNEL if (slice < half_size) sum[c] += shared[(slice * LANES + lane) * WIDE + c];
    }
}

#define SHARED __local ACC shared[(SLICES / 2 ? SLICES / 2 : 1) * LANES * WIDE]
#define GROUP_ATTRIBUTES __attribute__((reqd_work_group_size(LANES, SLICES, 1)))
#define MY_ROWS \
    const long block = get_global_id(0), part = get_group_id(1), blocks = channels / WIDE, column = block * WIDE; \
    const long begin = part * rows_each, end = block < blocks ? MIN(begin + rows_each, rows) : begin
#define EACH_ROW _Pragma("unroll 4") for (long row = begin + get_local_id(1); row < end; row += SLICES)

__kernel GROUP_ATTRIBUTES void batch_norm_sums(__global const T *restrict x, __global ACC *restrict partials,
                                               const long rows, const long channels, const long rows_each) {
    SHARED;
    MY_ROWS;
    ACC first[WIDE], sum[WIDE], squares[WIDE];
    EACH_CHANNEL first[c] = sum[c] = squares[c] = 0;
    if (begin < end) LOAD_CHANNELS(x, begin * channels + column, first);
    EACH_ROW {
        ACC v[WIDE];
        LOAD_CHANNELS(x, row * channels + column, v);
        EACH_CHANNEL {
            const ACC d = v[c] - first[c];
            sum[c] += d;
            squares[c] = d * d + squares[c];
        }
    }
    add_slices(shared, sum);
    add_slices(shared, squares);
    if (begin < end && get_local_id(1) == 0) EACH_CHANNEL {
        const ACC mean = sum[c] / (end - begin);
        partials[2 * part * channels + column + c] = first[c] + mean;
        partials[(2 * part + 1) * channels + column + c] = MAX(squares[c] - sum[c] * mean, (ACC)0);
    }
}

DEFINE_JOIN(group_sum, ACC, JOINERS, ADD)

#define EACH_PART for (long part = me; part < parts; part += JOINERS)
#define PARTIAL(which) partials[(2 * part + which) * channels + channel]

__kernel __attribute__((reqd_work_group_size(JOINERS, 1, 1)))
void batch_norm_join(__global const ACC *restrict partials, __global ACC *restrict mean, __global ACC *restrict variance,
                     __global ACC *restrict saved, const ACC eps, const long rows,
                     const long channels, const long rows_each, const long parts) {
    __local ACC shared[JOINERS];
    const long channel = get_group_id(0);
    const int me = get_local_id(0);
    const ACC pivot = partials[channel];
    ACC sum = 0, squares = 0;
    EACH_PART sum += (PARTIAL(0) - pivot) * (MIN(rows_each, rows - part * rows_each) / (ACC)rows);
    const ACC centre = group_sum(sum, me, shared) + pivot;
    EACH_PART {
        const ACC d = PARTIAL(0) - centre;
        squares += PARTIAL(1) + d * d * MIN(rows_each, rows - part * rows_each);
    }
    const ACC spread = group_sum(squares, me, shared) / rows;
    if (me == 0) {
        mean[channel] = saved[channel] = centre;
        variance[channel] = spread;
        saved[channels + channel] = 1 / sqrt(spread + eps);
    }
}

__kernel GROUP_ATTRIBUTES void batch_norm(__global const T *restrict x, __global const T *restrict weight,
                                          __global const T *restrict bias, __global const ACC *restrict saved,
                                          __global T *restrict y, const long rows,
                                          const long channels, const long rows_each) {
    MY_ROWS;
    ACC mean[WIDE], scale[WIDE], shift[WIDE];
    EACH_CHANNEL scale[c] = 1, shift[c] = 0;
    if (begin < end) {
        if (HAS_WEIGHT) LOAD_CHANNELS(weight, column, scale);
        if (HAS_BIAS) LOAD_CHANNELS(bias, column, shift);
        EACH_CHANNEL {
            mean[c] = saved[column + c];
            scale[c] *= saved[channels + column + c];
        }
    }
    EACH_ROW {
        ACC v[WIDE];
        LOAD_CHANNELS(x, row * channels + column, v);
        EACH_CHANNEL v[c] = ACTIVATE((v[c] - mean[c]) * scale[c] + shift[c]);
        STORE_CHANNELS(y, row * channels + column, v);
    }
}

// THROUGH_ACTIVATION(v, u): multiply the gradient v by the slope of the activation at x = u.
// DECLARE_SCALES declares what it needs.
#if ACTIVATES
#define DECLARE_SCALES \
    ACC scale[WIDE], shift_y[WIDE]; \
    EACH_CHANNEL scale[c] = 1, shift_y[c] = 0; \
    if (begin < end) { \
        if (HAS_WEIGHT) LOAD_CHANNELS(weight, column, scale); \
        if (HAS_BIAS) LOAD_CHANNELS(bias, column, shift_y); \
        EACH_CHANNEL scale[c] *= saved[channels + column + c]; \
    }
#define THROUGH_ACTIVATION(v, u) EACH_CHANNEL v[c] *= SLOPE((u[c] - mean[c]) * scale[c] + shift_y[c])
#else
#define DECLARE_SCALES
#define THROUGH_ACTIVATION(v, u)
#endif

__kernel GROUP_ATTRIBUTES void batch_norm_gradient_sums(__global const T *restrict g, __global const T *restrict x,
                                                        __global const T *restrict weight,
                                                        __global const T *restrict bias,
                                                        __global const ACC *restrict saved,
                                                        __global ACC *restrict partials, const long rows,
                                                        const long channels, const long rows_each) {
    SHARED;
    MY_ROWS;
    ACC mean[WIDE], rstd[WIDE], sum[WIDE], products[WIDE];
    EACH_CHANNEL {
        sum[c] = products[c] = 0;
        mean[c] = begin < end ? saved[column + c] : 0;
        rstd[c] = begin < end ? saved[channels + column + c] : 0;
    }
    DECLARE_SCALES;
    EACH_ROW {
        ACC v[WIDE], u[WIDE];
        LOAD_CHANNELS(g, row * channels + column, v);
        LOAD_CHANNELS(x, row * channels + column, u);
        THROUGH_ACTIVATION(v, u);
        EACH_CHANNEL {
            sum[c] += v[c];
            products[c] = v[c] * ((u[c] - mean[c]) * rstd[c]) + products[c];
        }
    }
    add_slices(shared, sum);
    add_slices(shared, products);
    if (begin < end && get_local_id(1) == 0) EACH_CHANNEL {
        partials[2 * part * channels + column + c] = sum[c];
        partials[(2 * part + 1) * channels + column + c] = products[c];
    }
}

__kernel __attribute__((reqd_work_group_size(JOINERS, 1, 1)))
void batch_norm_gradient_join(__global const ACC *restrict partials, __global const T *restrict weight,
                              __global const ACC *restrict saved, __global const ACC *restrict gmean,
                              __global const ACC *restrict gvariance, __global T *restrict dweight,
                              __global T *restrict dbias, __global ACC *restrict factors,
                              const long rows, const long channels, const long parts) {
    __local ACC shared[JOINERS];
    const long channel = get_group_id(0);
    const int me = get_local_id(0);
    ACC sum = 0, products = 0;
    EACH_PART {
        sum += PARTIAL(0);
        products += PARTIAL(1);
    }
    sum = group_sum(sum, me, shared), products = group_sum(products, me, shared);
    if (me == 0) {
        const ACC rstd = saved[channels + channel], scale = rstd * (HAS_WEIGHT ? LOAD(weight, channel) : 1);
        if (WANTS_WEIGHT) STORE(dweight, channel, products);
        if (WANTS_BIAS) STORE(dbias, channel, sum);
        factors[channel] = scale;
        factors[channels + channel] = (-scale * rstd * products + (GIVEN ? 2 * gvariance[channel] : 0)) / rows;
        factors[2 * channels + channel] = (-scale * sum + (GIVEN ? gmean[channel] : 0)) / rows;
    }
}

__kernel GROUP_ATTRIBUTES void batch_norm_backward(__global const T *restrict g, __global const T *restrict x,
                                                   __global const T *restrict weight, __global const T *restrict bias,
                                                   __global const ACC *restrict saved,
                                                   __global const ACC *restrict factors, __global T *restrict dx,
                                                   const long rows,
                                                   const long channels, const long rows_each) {
    MY_ROWS;
    ACC mean[WIDE], by_g[WIDE], by_x[WIDE], shift[WIDE];
    if (begin < end) EACH_CHANNEL {
        mean[c] = saved[column + c];
        by_g[c] = factors[column + c];
        by_x[c] = factors[channels + column + c];
        shift[c] = factors[2 * channels + column + c];
    }
    DECLARE_SCALES;
    EACH_ROW {
        ACC v[WIDE], u[WIDE];
        LOAD_CHANNELS(g, row * channels + column, v);
        LOAD_CHANNELS(x, row * channels + column, u);
        THROUGH_ACTIVATION(v, u);
        EACH_CHANNEL v[c] = by_g[c] * v[c] + by_x[c] * (u[c] - mean[c]) + shift[c];
        STORE_CHANNELS(dx, row * channels + column, v);
    }
}
