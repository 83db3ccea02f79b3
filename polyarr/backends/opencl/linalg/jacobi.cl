// Jacobi's method by blocks: eigenvalues of Hermitian matrices, and singular values by orthogonal rows.
//
// The rows of a matrix are `blocks` blocks of HALF. In each round of a sweep they form pairs, as in a tournament, and
// each pair of blocks is rotated by a unitary matrix of SIZE = 2 HALF rows. Rows past the end of the matrix are 0.
//
// Kernels  find_rotations  find the rotation of each pair: a sweep of Jacobi's method over the products of its rows (if
//                          GRAM), or over its rows and columns of a Hermitian matrix
//          rotate_pairs    multiply the rows of each pair by its rotation; with other steps, its columns by the
//                          conjugate one
//          normalize_rows  normalize the right halves of rows; write the norms of the left halves, or, unless gram, the
//                          products of both halves
//          arrange         write rows, conjugated, as columns of left and right, in the order of their keys
// Arrays   y, left and right of Element, a real or complex number; keys and values of ACC
//          y: matrices of rows `pitch` apart, `matrix` from one to the next
//          turns (matrices, pairs, SIZE, SIZE) of Element: the rotations
//          turned (matrices, pairs) of int: whether a rotation is other than the identity
//          moved (matrices, sweeps) of int: whether a sweep rotated anything; if not, later sweeps do nothing
// Launch   find_rotations  a group of WG per matrix and pair
//          rotate_pairs    a group of WG per matrix, pair and chunk of CHUNK columns
//          normalize_rows, arrange   a group of WG per row
// Params   ACC, COMPLEX    see elements.cl
//          EPS, WG         distance from 1 to the next number of type ACC; work-items per group, 1 on CPUs
//          HALF            rows of a block, at least 2, and 4 HALF^2 >= WG
//          WIDE            columns of a vector, a divisor of 2 HALF; 1 if elements are complex
//          CHUNK           columns of a chunk, a multiple of WIDE * WG

#include "complex_arithmetic.cl"
#include "elements.cl"

#define WAIT if (WG > 1) barrier(CLK_LOCAL_MEM_FENCE);
#define SIZE (2 * HALF)
#define LANES_X (WG < SIZE ? WG : SIZE)  // work-items along a row
#define LANES_Y (WG / LANES_X)
#define FEW 32  // columns that are multiplied at a time
#define LINE (SIZE + 1)  // padded, against bank conflicts
#define LOADS_X (WG < FEW ? WG : FEW)  // work-items along a row that is read
#define LOADS_Y (WG / LOADS_X)

// Products of rows: a work-item has OWN_ROWS rows of OWN_VECTORS vectors, and adds up AT_ONCE rows at a time.
#define OWN_ROWS (SIZE / LANES_Y)
#define OWN_VECTORS (SIZE / LANES_X / WIDE)
#define AT_ONCE (OWN_ROWS < 2 ? 1 : 2)
#define COLUMN(j) (((j) * LANES_X + ix) * WIDE)
#define VECTOR_AT(p) (*(__local UNALIGNED *)(p))

#if WIDE > 1
typedef PASTE(ACC, WIDE) VECTOR;
typedef VECTOR __attribute__((aligned(sizeof(ACC)))) UNALIGNED;
#else
typedef Element VECTOR;
typedef Element UNALIGNED;
#endif

DEFINE_JOIN(group_sum, ACC, WG, ADD)

// The first row of the blocks of a pair: block 0 stays, the others move on by one place in each round.
static inline int block_at(int place, int round, int blocks) {
    return HALF * (place == 0 ? 0 : 1 + (place - 1 + round) % (blocks - 1));
}
#define FIND_PAIR \
    const int pair = get_group_id(0) / chunks % pairs, upper = block_at(pair, round, 2 * pairs); \
    const int lower = block_at(2 * pairs - 1 - pair, round, 2 * pairs); \
    const size_t g = get_group_id(0) / chunks / pairs;
#define ROW(i) (long)((i) < HALF ? upper + (i) : lower + (i) - HALF)

// Within a pair, the rows form pairs (k, HALF + k), and then move on in the same way.
static inline int next_upper(int k) { return k == 0 ? 0 : k < HALF - 1 ? k + 1 : SIZE - 1; }
static inline int next_lower(int k) { return k == 0 ? 1 : HALF + k - 1; }

// Rotate rows k and columns l of a pair of pairs; the columns move on to `up` and `low`.
#define ROTATE(k, l, up, low) { \
        const ACC c = cosine[k], d = cosine[l]; \
        const Element s = sine[k], t = sine[l], s_conjugate = CONJUGATE(s), t_conjugate = CONJUGATE(t); \
        const Element a00 = a[(k) * SIZE + (l)], a01 = a[(k) * SIZE + HALF + (l)]; \
        const Element a10 = a[(HALF + (k)) * SIZE + (l)], a11 = a[(HALF + (k)) * SIZE + HALF + (l)]; \
        const Element b00 = c * a00 - TIMES(s, a10), b01 = c * a01 - TIMES(s, a11); \
        const Element b10 = TIMES(s_conjugate, a00) + c * a10, b11 = TIMES(s_conjugate, a01) + c * a11; \
        next_a[next_upper(k) * SIZE + (up)] = d * b00 - TIMES(t_conjugate, b01); \
        next_a[next_upper(k) * SIZE + (low)] = TIMES(t, b00) + d * b01; \
        next_a[next_lower(k) * SIZE + (up)] = d * b10 - TIMES(t_conjugate, b11); \
        next_a[next_lower(k) * SIZE + (low)] = TIMES(t, b10) + d * b11; \
    }

__kernel GROUP void find_rotations(__global const Element *restrict y, __global Element *restrict turns,
                                   __global int *restrict turned, __global volatile int *moved,
                                   const long matrix, const int pitch, const int columns, const int pairs,
                                   const int round, const int sweep, const int sweeps, const int most, const int gram) {
    __local Element products[2][SIZE * SIZE], vectors[2][SIZE * SIZE], part[FEW * LINE], sine[HALF];
    __local ACC cosine[HALF];
    __local int rotated[HALF];
    const int me = get_local_id(0), ix = me % LANES_X, iy = me / LANES_X, chunks = 1;
    const int load_x = me % LOADS_X, load_y = me / LOADS_X;
    FIND_PAIR
    if (sweep > 0 && moved[g * sweeps + sweep - 1] == 0) {
        if (me == 0) turned[get_group_id(0)] = 0;
        return;
    }
    y += g * matrix;
    if (gram) {
        VECTOR sums[OWN_ROWS][OWN_VECTORS];
        for (int i = 0; i < OWN_ROWS; i++)
            for (int j = 0; j < OWN_VECTORS; j++) sums[i][j] = 0;
        for (int begin = 0; begin < columns; begin += FEW) {
            WAIT
            for (int i = load_y; i < SIZE; i += LOADS_Y) {
                __global const Element *restrict row = y + ROW(i) * pitch + begin;
                for (int c = load_x; c < FEW; c += LOADS_X)
                    part[c * LINE + i] = begin + c < columns ? row[c] : (Element)0;
            }
            WAIT
            _Pragma("unroll") for (int i = 0; i < OWN_ROWS; i += AT_ONCE)
                for (int c = 0; c < FEW; c++) {
                    __local const Element *restrict line = part + c * LINE;
                    _Pragma("unroll") for (int r = 0; r < AT_ONCE; r++)
                        _Pragma("unroll") for (int j = 0; j < OWN_VECTORS; j++) {
                            const VECTOR other = VECTOR_AT(line + COLUMN(j));
                            sums[i + r][j] += TIMES(line[(i + r) * LANES_Y + iy], CONJUGATE(other));
                        }
                }
        }
        for (int i = 0; i < OWN_ROWS; i++)
            for (int j = 0; j < OWN_VECTORS; j++)
                VECTOR_AT(products[0] + (i * LANES_Y + iy) * SIZE + COLUMN(j)) = sums[i][j];
    } else
        for (int i = iy; i < SIZE; i += LANES_Y)
            for (int j = ix; j < SIZE; j += LANES_X) {
                const Element above = y[ROW(i) * pitch + ROW(j)], below = y[ROW(j) * pitch + ROW(i)];
                products[0][i * SIZE + j] = (above + CONJUGATE(below)) * (ACC)0.5;
            }
    for (int e = me; e < SIZE * SIZE; e += WG) vectors[0][e] = ELEMENT(e / SIZE == e % SIZE);
    // Rows whose cosine is at most `least`, or elements off the diagonal of at most `floor`, count as orthogonal.
    const ACC least = gram ? EPS * SQRT((ACC)columns) : EPS, floor = gram ? 0 : EPS;
    int now = 0, any = 0;
    for (int again = 0; again < most; again++) {
        for (int k = me; k < HALF; k += WG) rotated[k] = 0;
        for (int step = 0; step < SIZE - 1; step++, now = !now) {
            __local const Element *restrict a = products[now];
            __local const Element *restrict v = vectors[now];
            __local Element *restrict next_a = products[!now];
            __local Element *restrict next_v = vectors[!now];
            WAIT
            for (int k = me; k < HALF; k += WG) {
                const ACC p = REAL_PART(a[k * (SIZE + 1)]), q = REAL_PART(a[(HALF + k) * (SIZE + 1)]);
                const Element r = a[k * SIZE + HALF + k];
                const ACC size = MAGNITUDE(r), bound = SQRT(p < 0 ? -p : p) * SQRT(q < 0 ? -q : q);
                ACC c = 1;
                Element s = (Element)0;
                if (size > least * bound && size > floor) {
                    const ACC slope = (q - p) / (2 * size), steep = slope < 0 ? -slope : slope;
                    const ACC t = steep * EPS > 1 ? 1 / (2 * steep) : 1 / (steep + SQRT(1 + steep * steep));
                    c = 1 / SQRT(1 + t * t);
                    s = (slope < 0 ? -t * c : t * c) * phase_of(r);
                    rotated[k] = 1;
                }
                cosine[k] = c;
                sine[k] = s;
            }
            WAIT
#if WG > 1
            for (int e = me; e < MAX(HALF * HALF, WG); e += WG) {  // PoCL errs if some work-items have no turn
                const int k = e / HALF, l = e % HALF;
                if (e < HALF * HALF) ROTATE(k, l, next_upper(l), next_lower(l))
            }
#else
            for (int k = 0; k < HALF; k++) {
                ROTATE(k, 0, 0, 1)
                for (int l = 1; l < HALF - 1; l++) ROTATE(k, l, l + 1, HALF + l - 1)  // vectorized
                ROTATE(k, HALF - 1, SIZE - 1, SIZE - 2)
            }
#endif
            for (int k = iy; k < HALF; k += LANES_Y) {
                __local const Element *restrict upper_v = v + k * SIZE;
                __local const Element *restrict lower_v = upper_v + HALF * SIZE;
                __local Element *restrict new_upper = next_v + next_upper(k) * SIZE;
                __local Element *restrict new_lower = next_v + next_lower(k) * SIZE;
                const ACC c = cosine[k];
                const Element s = sine[k], s_conjugate = CONJUGATE(s);
                for (int j = ix; j < SIZE; j += LANES_X) {
                    const Element above = upper_v[j], below = lower_v[j];
                    new_upper[j] = c * above - TIMES(s, below);
                    new_lower[j] = TIMES(s_conjugate, above) + c * below;
                }
            }
        }
        WAIT
        int more = 0;
        for (int k = 0; k < HALF; k++) more |= rotated[k];
        WAIT
        any |= more;
        if (!more) break;
    }
    for (int e = me; e < SIZE * SIZE; e += WG) turns[get_group_id(0) * SIZE * SIZE + e] = vectors[now][e];
    if (me > 0) return;
    turned[get_group_id(0)] = any;
    if (any) atomic_cmpxchg(moved + g * sweeps + sweep, 0, 1);
}

__kernel GROUP void rotate_pairs(__global Element *y, __global const Element *restrict turns,
                                 __global const int *restrict turned, const long matrix, const int row_step,
                                 const int column_step, const int columns, const int pairs, const int round,
                                 const int chunks, const int conjugated) {
    __local Element turn[SIZE * SIZE];
    FIND_PAIR
    const size_t at = g * pairs + pair;
    if (!turned[at]) return;
    const int me = get_local_id(0), begin = get_group_id(0) % chunks * CHUNK, end = MIN(begin + CHUNK, columns);
    for (int e = me; e < SIZE * SIZE; e += WG) {
        const Element v = turns[at * SIZE * SIZE + e];
        turn[e] = conjugated ? CONJUGATE(v) : v;
    }
    WAIT
    y += g * matrix;
    for (int c = begin + me * WIDE; c < end; c += WG * WIDE) {
        VECTOR x[SIZE];
        for (int i = 0; i < SIZE; i++) {
            __global Element *from = y + ROW(i) * row_step + (long)c * column_step;
            if (column_step == 1)
                x[i] = *(__global UNALIGNED *)from;
            else
                for (int e = 0; e < WIDE; e++) ((Element *)&x[i])[e] = from[(long)e * column_step];
        }
        for (int i = 0; i < SIZE; i += 4) {
            VECTOR sums[4] = {0, 0, 0, 0};
            _Pragma("unroll") for (int k = 0; k < SIZE; k++)
                _Pragma("unroll") for (int r = 0; r < 4; r++) sums[r] += TIMES(turn[(i + r) * SIZE + k], x[k]);
            _Pragma("unroll") for (int r = 0; r < 4; r++) {
                __global Element *to = y + ROW(i + r) * row_step + (long)c * column_step;
                if (column_step == 1)
                    *(__global UNALIGNED *)to = sums[r];
                else
                    for (int e = 0; e < WIDE; e++) to[(long)e * column_step] = ((Element *)&sums[r])[e];
            }
        }
    }
}

// The rows from more_start on should have norm 1, but rounding errors of many rotations add up, mostly in their norms.
__kernel GROUP void normalize_rows(__global Element *restrict y, __global ACC *restrict keys, const long matrix,
                                   const int pitch, const int more_start, const int rows, const int gram) {
    __local ACC lane[WG];
    const size_t g = get_group_id(0) / rows;
    const int me = get_local_id(0), i = get_group_id(0) % rows;
    __global Element *restrict row = y + g * matrix + (long)i * pitch;
    __global Element *restrict more = row + more_start;
    ACC sum = 0, more_sum = 0;
    for (int begin = me; begin < rows; begin += FEW * WG) {  // in parts, whose sums round less than one long sum
        ACC part = 0, more_part = 0;
        for (int j = begin; j < MIN(begin + FEW * WG, rows); j += WG) {
            part += gram ? SQUARE(row[j]) : REAL_PART(TIMES(row[j], CONJUGATE(more[j])));
            more_part += SQUARE(more[j]);
        }
        sum += part;
        more_sum += more_part;
    }
    more_sum = group_sum(more_sum, me, lane);
    sum = group_sum(sum, me, lane);
    const ACC norm = SQRT(more_sum);
    const ACC key = gram ? SQRT(sum) / norm : sum / more_sum;
    if (me == 0) keys[get_group_id(0)] = key == key ? key : 0;  // nan, of bad matrices, has no place in an order
    for (int j = me; j < rows; j += WG) more[j] /= norm;
}

// Row i goes to place r if its key is number r in order: the key to values[r], its right half, from more_start on, to
// column r of left, and if keys descend (they are norms) its left half, normalized, to column r of right, conjugated.
__kernel GROUP void arrange(__global const Element *restrict y, __global const ACC *restrict keys,
                            __global ACC *restrict values, __global Element *restrict left,
                            __global Element *restrict right,
                            const long matrix, const int pitch, const int more_start, const long left_matrix,
                            const int columns, const int descending) {
    __local ACC lane[WG];
    const size_t g = get_group_id(0) / columns;
    const int me = get_local_id(0), i = get_group_id(0) % columns;
    keys += g * columns;
    const ACC key = keys[i];
    ACC before = 0;
    for (int j = me; j < columns; j += WG) {
        const ACC other = keys[j];
        before += (descending ? other > key : other < key) || (other == key && j < i);
    }
    const int place = (int)group_sum(before, me, lane);
    __global const Element *row = y + g * matrix + (long)i * pitch;
    if (me == 0) values[g * columns + place] = key;
    for (int j = me; j < columns; j += WG) {
        left[g * left_matrix + (long)j * columns + place] = CONJUGATE(row[more_start + j]);
        if (descending) right[(g * columns + j) * columns + place] = key > 0 ? CONJUGATE(row[j]) / key : (Element)0;
    }
}
