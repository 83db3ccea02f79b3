// Eigenvalues and eigenvectors of tridiagonal matrices (a "chain": tridiagonal_reduce.cl) on CPUs: divide and conquer.
//
// A chain of `size` rows is divided into leaves, which the QL method solves. A merge joins the eigenvectors of two
// halves: except for a product z z^T, the whole is diagonal in them. Its eigenvalues are the roots of the secular
// equation 1 + sum z_j^2 / (d_j - x) = 0, one between each two poles d_j. They are found as distances from the nearest
// pole. Then z is computed anew, so that they are the exact roots: this makes eigenvectors orthogonal. If a z_j is near
// 0, d_j is an eigenvalue already, and of two poles that are nearly equal, a rotation makes one z_j 0 (deflation).
//
// Kernels  scale_chain     make the elements below the diagonal real and not negative; pad the chain with eigenvalues
//                          larger than the others
//          solve_leaves    find the eigenvalues and eigenvectors of leaves
//          deflate         find the poles and weights, which are z_j, of a merge of `rows` rows
//          find_roots, find_weights, find_vectors    find the roots, the new weights, and the eigenvectors in terms of
//                          those of both halves
//          sort            find the order of values, and write some of them in it
//          collect         write some rows and columns of the eigenvectors
//          find_quotients  find u^H x v for columns of u and v
// Arrays   of ACC (matrices, size): diagonal, below: the chain; values: eigenvalues; poles: those that are left, then
//          eigenvalues found by deflation; weights; offsets: of roots from the nearest pole; bounds (matrices): norms
//          of int (matrices, size): columns: where poles were among those of both halves; nearest: numbers of poles;
//          order: numbers of values, the lowest first
//          vectors of ACC (matrices, size, rows): eigenvectors, as columns; before a merge they have half as many rows
//          turns of ACC, turned of int (matrices, size, 2): cosine and sine, and both columns, of rotations
//          counts of int (matrices, size, 2): for each merge, the number of poles and of rotations
//          links, phases of Element (matrices, chain): the elements below the diagonal; factors of rows
//          u, p, v and out of Element: dense matrices; p is x v
// Launch   groups of one. scale_chain, sort: for each matrix; solve_leaves, deflate: for each leaf or merge; find_*:
//          for WIDE columns of each merge or matrix; collect: for each row of out
// Params   ACC, COMPLEX    see elements.cl
//          BITS            the signed integer type of the size of ACC
//          EPS, WG         distance from 1 to the next number of type ACC; work-items per group, 1
//          WIDE            numbers in a vector
//          LEAF            most rows of a leaf
//
// Source: Gu, Eisenstat 1995, doi:10.1137/S0895479892241287

#include "complex_arithmetic.cl"
#include "elements.cl"

typedef PASTE(ACC, WIDE) VECTOR;
typedef PASTE(BITS, WIDE) MASK;
typedef VECTOR __attribute__((aligned(sizeof(ACC)))) UNALIGNED;
#define AS_VECTOR PASTE(as_, PASTE(ACC, WIDE))
#define AS_MASK PASTE(as_, PASTE(BITS, WIDE))
#define FEW 32  // rows that are added up at a time
#define GET(v, e) ((ACC *)&(v))[e]

__kernel GROUP void scale_chain(__global const Element *links, __global Element *phases, __global ACC *diagonal,
                                __global ACC *below, __global ACC *bounds, const int chain, const int size) {
    const size_t g = get_group_id(0);
    diagonal += g * size;
    below += g * size;
    Element phase = ELEMENT(1);
    ACC bound = 0, before = 0;
    for (int j = 0; j < chain; j++) {
        const Element link = j < chain - 1 ? links[g * chain + j] : (Element)0;
        phases[g * chain + j] = phase;
        if (!IS_ZERO(link)) phase = phase_of(TIMES(phase, phase_of(link)));
        below[j] = MAGNITUDE(link);
        const ACC reach = fabs(diagonal[j]) + before + below[j];
        bound = MAX(bound, reach);
        before = below[j];
    }
    bounds[g] = bound;
    for (int j = chain; j < size; j++) {
        diagonal[j] = 2 * bound + 1;  // the last eigenvalues
        below[j] = 0;
    }
}

__kernel GROUP void solve_leaves(__global const ACC *restrict diagonal, __global const ACC *restrict below,
                                 __global const ACC *restrict bounds, __global ACC *restrict values,
                                 __global ACC *restrict vectors, const int leaf, const int leaves) {
    __local ACC rows[LEAF * LEAF];  // eigenvectors
    ACC d[LEAF], e[LEAF];
    const size_t block = get_group_id(0), at = block * leaf;
    const ACC small = EPS / 2 * bounds[block / leaves];
    for (int i = 0; i < leaf; i++) {
        d[i] = diagonal[at + i];
        e[i] = below[at + i];
    }
    if (block % leaves > 0) d[0] -= below[at - 1];  // what links leaves is part of z z^T
    d[leaf - 1] -= e[leaf - 1];
    e[leaf - 1] = 0;
    for (int i = 0; i < leaf * LEAF; i++) rows[i] = i % (LEAF + 1) == 0;
    for (int i = 0; i < leaf; i++)
        for (int again = 0; again < 60; again++) {
            int end = i;
            while (end < leaf - 1 && fabs(e[end]) > small) end++;
            if (end == i) break;
            // A rotation at the end, with an eigenvalue of the first two rows as shift; others chase its bulge.
            const ACC gap = (d[i + 1] - d[i]) / 2, far = hypot(gap, e[i]);
            const ACC shift = d[i] - e[i] * (e[i] / (gap < 0 ? gap - far : gap + far));
            ACC c = 1, s = 1, lost = 0, head = d[end] - shift;
            int k = end - 1;
            for (; k >= i; k--) {
                const ACC bulge = s * e[k], kept = c * e[k], size = hypot(bulge, head);
                e[k + 1] = size;
                if (size == 0) {
                    d[k + 1] -= lost;
                    break;
                }
                s = bulge / size;
                c = head / size;
                const ACC base = d[k + 1] - lost, turn = (d[k] - base) * s + 2 * c * kept;
                lost = s * turn;
                d[k + 1] = base + lost;
                head = c * turn - kept;
                __local ACC *upper = rows + k * LEAF, *lower = upper + LEAF;
                for (int r = 0; r < leaf; r++) {
                    const ACC above = upper[r], under = lower[r];
                    upper[r] = c * above - s * under;
                    lower[r] = s * above + c * under;
                }
            }
            if (k < i) {
                d[i] -= lost;
                e[i] = head;
            }
            e[end] = 0;
        }
    for (int i = 0; i < leaf; i++) {
        values[at + i] = d[i];
        for (int r = 0; r < leaf; r++) vectors[(at + r) * leaf + i] = rows[i * LEAF + r];
    }
}

static inline void order_of(__global const ACC *restrict values, __global int *restrict order, const int size) {
    for (int i = 0; i < size; i++) order[i] = i;  // for nan
    for (int i = 0; i < size; i++) {
        const ACC own = values[i];
        int place = 0;
        for (int j = 0; j < size; j++) place += (values[j] < own) | ((values[j] == own) & (j < i));
        order[place] = i;
    }
}

// Number i of `sorted` is that of number from + i * by of the ascending values.
__kernel GROUP void sort(__global const ACC *values, __global int *order, __global ACC *sorted, const int size,
                         const int n, const int from, const int by) {
    const size_t g = get_group_id(0);
    order_of(values + g * size, order + g * size, size);
    for (int i = 0; i < n; i++) sorted[g * n + i] = values[g * size + order[g * size + from + i * by]];
}

__kernel GROUP void deflate(__global const ACC *below, __global const ACC *bounds, __global const ACC *values,
                            __global const ACC *vectors, __global ACC *poles, __global ACC *weights,
                            __global int *columns, __global int *order, __global ACC *turns, __global int *turned,
                            __global int *counts, const int rows, const int blocks) {
    const size_t block = get_group_id(0), at = block * rows;
    const int middle = rows / 2;
    const ACC link = below[at + middle - 1], root = SQRT(link), small = 4 * EPS * bounds[block / blocks];
    __global const ACC *upper = vectors + at * middle + (middle - 1) * middle, *lower = upper + middle;
    poles += at; weights += at; columns += at; order += at; values += at; turns += 2 * at; turned += 2 * at;
    order_of(values, order, rows);
    int live = 0, dead = rows, rotations = 0, last = -1;
    ACC pole = 0, z = 0;  // of `last`, which may still be deflated
    for (int i = 0; i < rows; i++) {
        const int column = order[i];
        const ACC d = values[column], own = root * (column < middle ? upper[column] : lower[column - middle]);
        ACC next = d, joined = own;
        if (!(root * fabs(own) > small)) {
            columns[--dead] = column;
            poles[dead] = d;
            continue;
        }
        if (last >= 0) {
            joined = hypot(z, own);
            const ACC c = own / joined, s = z / joined;
            if (fabs((d - pole) * c * s) > small) {
                columns[live] = last; poles[live] = pole; weights[live++] = z;
                joined = own;
            } else {
                columns[--dead] = last;
                poles[dead] = c * c * pole + s * s * d;
                next = s * s * pole + c * c * d;
                turned[2 * rotations] = last; turned[2 * rotations + 1] = column;
                turns[2 * rotations] = c; turns[2 * rotations++ + 1] = s;
            }
        }
        last = column; pole = next; z = joined;
    }
    if (last >= 0) {
        columns[live] = last; poles[live] = pole; weights[live++] = z;
    }
    counts[2 * block] = live;
    counts[2 * block + 1] = rotations;
}

#define FIND_COLUMNS \
    const int chunks = (rows + WIDE - 1) / WIDE, start = get_group_id(0) % chunks * WIDE; \
    const size_t block = get_group_id(0) / chunks, at = block * rows; \
    const int live = counts[2 * block], most = MIN(WIDE, live - start); \
    poles += at;

// 1 + sum z_j^2 / (d_j - x) for x = origin + offset
static inline VECTOR secular(__global const ACC *restrict poles, __global const ACC *restrict weights, const int live,
                             const VECTOR origin, const VECTOR offset) {
    VECTOR sum = 0;
    for (int j = 0; j < live; j++) sum += weights[j] * weights[j] / ((poles[j] - origin) - offset);
    return 1 + sum;
}

__kernel GROUP void find_roots(__global const ACC *poles, __global const ACC *weights, __global ACC *offsets,
                               __global int *nearest, __global const int *counts, const int rows) {
    FIND_COLUMNS
    if (most <= 0) return;
    weights += at;
    ACC sum = 0;
    for (int j = 0; j < live; j++) sum += weights[j] * weights[j];
    VECTOR low, high;
    MASK is_last = 0;
    for (int e = 0; e < WIDE; e++) {
        const int i = MIN(start + e, live - 1);
        GET(low, e) = poles[i];
        GET(high, e) = i < live - 1 ? poles[i + 1] : poles[i] + 4 * sum;
        if (i == live - 1) ((BITS *)&is_last)[e] = -1;
    }
    const VECTOR middle = (high - low) / 2;
    const MASK is_left = (secular(poles, weights, live, low, middle) >= 0) | is_last;
    const VECTOR origin = is_left ? low : high, sign = is_left ? (VECTOR)1 : (VECTOR)-1;
    MASK least = 0, largest = AS_MASK(middle);  // distances of a sign are ordered as their bits are
    while (1) {
        const MASK center = least + (largest - least) / 2;
        const VECTOR f = sign * secular(poles, weights, live, origin, sign * AS_VECTOR(center));
        const MASK is_below = f < 0;
        least = is_below ? center : least;
        largest = is_below ? largest : center;
        const MASK open = largest - least > 1;
        int any = 0;
        for (int e = 0; e < WIDE; e++) any |= ((const BITS *)&open)[e] != 0;
        if (!any) break;
    }
    const VECTOR offset = sign * AS_VECTOR(largest);
    for (int e = 0; e < most; e++) {
        offsets[at + start + e] = GET(offset, e);
        nearest[at + start + e] = start + e + (((const BITS *)&is_left)[e] == 0);
    }
}

__kernel GROUP void find_weights(__global const ACC *poles, __global ACC *weights, __global const ACC *offsets,
                                 __global const int *nearest, __global const int *counts, const int rows) {
    FIND_COLUMNS
    offsets += at; nearest += at; weights += at;
    VECTOR own = 0, square = 1;
    for (int e = 0; e < most; e++) GET(own, e) = poles[start + e];
    for (int i = 0; i < live; i++) {
        const VECTOR above = (poles[nearest[i]] - own) + offsets[i];
        VECTOR other = 1;
        if (i < start)
            other = poles[i] - own;
        else if (i >= start + WIDE - 1) {
            if (i < live - 1) other = poles[i + 1] - own;
        } else
            for (int e = 0; e < most; e++)
                if (i < start + e)
                    GET(other, e) = poles[i] - poles[start + e];
                else if (i < live - 1)
                    GET(other, e) = poles[i + 1] - poles[start + e];
        square *= above / other;
    }
    for (int e = 0; e < most; e++) {
        const ACC size = SQRT(GET(square, e));
        weights[start + e] = weights[start + e] < 0 ? -size : size;
    }
}

__kernel GROUP void find_vectors(__global const ACC *poles, __global const ACC *weights, __global const ACC *offsets,
                                 __global const int *nearest, __global const int *counts, __global const int *columns,
                                 __global const ACC *turns, __global const int *turned, __global ACC *values,
                                 __global ACC *vectors, const int rows) {
    FIND_COLUMNS
    const int width = MIN(WIDE, rows - start);
    weights += at; offsets += at; nearest += at; columns += at; turns += 2 * at; turned += 2 * at; values += at;
    vectors += at * rows + start;
    VECTOR origin = 0, offset = 0, squares = 0;
    for (int e = 0; e < width; e++) {
        const int i = start + e;
        if (i < live) {
            GET(origin, e) = poles[nearest[i]];
            GET(offset, e) = offsets[i];
        }
        values[i] = i < live ? GET(origin, e) + GET(offset, e) : poles[i];
    }
    for (int j = 0; j < live; j++) {
        const VECTOR x = weights[j] / ((poles[j] - origin) - offset);
        squares += x * x;
    }
    VECTOR scale = 0;
    for (int e = 0; e < most; e++) GET(scale, e) = 1 / SQRT(GET(squares, e));
    for (int j = 0; j < rows; j++) {
        VECTOR x = 0;
        if (j < live && most > 0) x = weights[j] / ((poles[j] - origin) - offset) * scale;
        for (int e = MAX(most, 0); e < width; e++) GET(x, e) = start + e == j;
        __global ACC *to = vectors + (long)columns[j] * rows;
        if (width == WIDE)
            *(__global UNALIGNED *)to = x;
        else
            for (int e = 0; e < width; e++) to[e] = GET(x, e);
    }
    for (int k = counts[2 * block + 1] - 1; k >= 0; k--) {
        const ACC c = turns[2 * k], s = turns[2 * k + 1];
        __global ACC *first = vectors + (long)turned[2 * k] * rows, *second = vectors + (long)turned[2 * k + 1] * rows;
        for (int e = 0; e < width; e++) {
            const ACC x = first[e], y = second[e];
            first[e] = c * x + s * y;
            second[e] = c * y - s * x;
        }
    }
}

// values[i] = u_i^H p_i / (|u_i| |v_i|) for columns of u and p = x v; if positive, no less than 0
__kernel GROUP void find_quotients(__global const Element *u, __global const Element *p, __global const Element *v,
                                   __global ACC *values, const int u_rows, const int n,
                                   const int positive) {
    const size_t chunks = (n + WIDE - 1) / WIDE, g = get_group_id(0) / chunks;
    const int start = get_group_id(0) % chunks * WIDE, width = MIN(WIDE, n - start);
    ACC products[WIDE] = {0}, u_squares[WIDE] = {0}, v_squares[WIDE] = {0};
    u += g * u_rows * n + start;
    p += g * u_rows * n + start;
    v += g * n * n + start;
    for (int begin = 0; begin < u_rows; begin += FEW) {  // in parts, whose sums round less than one long sum
        ACC part[WIDE] = {0}, u_part[WIDE] = {0}, v_part[WIDE] = {0};
        for (long r = begin; r < MIN(begin + FEW, u_rows); r++)
            for (int e = 0; e < width; e++) {
                const Element own = u[r * n + e], other = r < n ? v[r * n + e] : (Element)0;
                part[e] += REAL_PART(TIMES(CONJUGATE(own), p[r * n + e]));
                u_part[e] += SQUARE(own);
                v_part[e] += SQUARE(other);
            }
        for (int e = 0; e < width; e++) {
            products[e] += part[e];
            u_squares[e] += u_part[e];
            v_squares[e] += v_part[e];
        }
    }
    for (int e = 0; e < width; e++) {
        const ACC value = products[e] / (SQRT(u_squares[e]) * SQRT(v_squares[e]));
        values[g * n + start + e] = positive && value < 0 ? 0 : value;
    }
}

__kernel GROUP void collect(__global const ACC *restrict vectors, __global const Element *restrict phases,
                            __global const int *restrict order, __global Element *restrict out, const int n,
                            const int size, const int chain, const int first, const int step, const int from,
                            const int by) {
    const size_t g = get_group_id(0) / n;
    const int i = get_group_id(0) % n, row = first + i * step;
    const Element phase = phases[g * chain + row];
    vectors += (g * size + row) * size;
    out += (g * n + i) * n;
    for (int j = 0; j < n; j++) out[j] = vectors[order[g * size + from + j * by]] * phase;
}
