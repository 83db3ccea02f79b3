// Householder reductions on CPUs: a Hermitian matrix to a tridiagonal one, a square matrix to a bidiagonal one.
//
// A launch reduces a panel of rows and columns; then a product of matrices subtracts left^H right from the rest of a.
// Until then the current matrix is a - left^H right. Columns are reduced by the same steps, as rows of b = a^H.
// A bidiagonal matrix B is half of a tridiagonal one: of [0 B^H; B 0], with the rows of both halves in turn. So both
// reductions give a chain: a real diagonal, and the elements below it.
//
// Kernels  tridiagonalize   reduce rows and columns first to last of Hermitian matrices
//          bidiagonalize    reduce rows and columns first to last of square matrices
// Arrays   of Element, a real or complex number, `pitch` numbers a row, those from n on 0:
//          a, b (matrices, pitch, pitch); only bidiagonalize reads b
//          left, right (matrices, 2 PANEL, pitch): the factors of the product
//          lines (matrices, 2, pitch): workspace
//          u, v (matrices, n, pitch), of columns and of rows: zeros, row j becomes the conjugate vector of a reflection
//          below (matrices, n or 2 n) of Element, diagonal (matrices, chain) of ACC: the chain
// Launch   a group of one per matrix
// Params   ACC, COMPLEX     see elements.cl
//          WG               work-items per group, 1
//          PANEL            most rows that are reduced by a launch
//          WIDE             numbers in a vector, a multiple of 4; pitch is a multiple of it

#include "complex_arithmetic.cl"
#include "elements.cl"

#define NUMBERS (1 + COMPLEX)  // in an element
#define FEW 32  // elements that are added up at a time
#define AT_ONCE 4  // rows that are multiplied at a time
typedef PASTE(ACC, WIDE) VECTOR;
typedef VECTOR __attribute__((aligned(sizeof(ACC)))) UNALIGNED;
#define VECTOR_AT(p) (*(__global UNALIGNED *)(p))
#define ALIGNED(i) ((i) / WIDE * WIDE)

// Products of `rows` rows of x with the vector whose conjugate is lines[: pitch]. If complex, lines continues with i
// times the conjugate: then both parts of a product are products of real vectors.
static inline void multiply(__global const Element *x, __global Element *lines, const int rows, const int first,
                            const int pitch, Element *products) {
    VECTOR sums[NUMBERS][AT_ONCE];
    for (int r = 0; r < AT_ONCE; r++)
        for (int p = 0; p < NUMBERS; p++) sums[p][r] = 0;
    __global ACC *from = (__global ACC *)x, *by = (__global ACC *)lines;
    const int step = pitch * NUMBERS;
    for (int c = first * NUMBERS; c < step; c += WIDE)
        _Pragma("unroll") for (int r = 0; r < rows; r++)
            _Pragma("unroll") for (int p = 0; p < NUMBERS; p++)
                sums[p][r] += VECTOR_AT(from + (long)r * step + c) * VECTOR_AT(by + p * step + c);
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < NUMBERS; p++) {
            ACC sum = 0;
            for (int e = 0; e < WIDE; e++) sum += ((ACC *)&sums[p][r])[e];
            ((ACC *)(products + r))[p] = sum;
        }
}

// row -= factor x
static inline void subtract(__global Element *row, const Element factor, __global const Element *x, const int first,
                            const int pitch) {
    __global ACC *to = (__global ACC *)row, *from = (__global ACC *)x;
    for (int c = first * NUMBERS; c < pitch * NUMBERS; c += WIDE) {
        const VECTOR y = VECTOR_AT(from + c);
#if COMPLEX
        VECTOR turned;  // i y
        turned.even = -y.odd;
        turned.odd = y.even;
        VECTOR_AT(to + c) -= factor.x * y + factor.y * turned;
#else
        VECTOR_AT(to + c) -= factor * y;
#endif
    }
}

// Reflect row j of a - left^H right so that it is 0 after `start`, and return the element there. x becomes the
// conjugate vector of the reflection, y the conjugate product of tau, that matrix from row j + 1 on, and the vector.
static inline Element reflect(__global const Element *a, __global Element *left, __global Element *right,
                              __global Element *x, __global Element *y, __global Element *lines, const int pitch,
                              const int j, const int start, const int known, ACC *tau) {
    const int first = ALIGNED(start), next = ALIGNED(j + 1);
    for (int c = first; c < pitch; c++) x[c] = a[(long)j * pitch + c];
    for (int q = 0; q < known; q++)
        subtract(x, CONJUGATE(left[q * pitch + j]), right + q * pitch, first, pitch);
    for (int c = first; c < start; c++) x[c] = (Element)0;
    ACC largest = 0, sum = 0;
    for (int c = start; c < pitch; c++) {
        const ACC size = LARGER_PART(x[c]);
        largest = MAX(largest, size);
    }
    const ACC divisor = largest > 0 ? largest : 1;
    for (int begin = start; begin < pitch; begin += FEW) {  // in parts, whose sums round less than one long sum
        ACC part = 0;
        for (int c = begin; c < MIN(begin + FEW, pitch); c++) {
            x[c] = x[c] / divisor;  // squares neither overflow nor vanish, and quotients of denormal numbers keep digits
            part += SQUARE(x[c]);
        }
        sum += part;
    }
    const ACC norm = SQRT(sum);
    const Element head = x[start], turn = IS_ZERO(head) ? ELEMENT(-1) : phase_of(head);
    const Element last = -norm * turn, scale = head - last;  // no cancellation
    for (int c = start; c < pitch; c++) x[c] = IS_ZERO(scale) ? (Element)0 : OVER(x[c], scale);
    x[start] = ELEMENT(1);
    *tau = norm > 0 ? MAGNITUDE(scale) / norm : 2;
    for (int c = first; c < pitch; c++) {
        lines[c] = x[c];
#if COMPLEX
        lines[pitch + c] = (Element)(-x[c].y, x[c].x);
#endif
    }
    Element products[AT_ONCE];
    for (int i = next; i < pitch; i += AT_ONCE) {
        multiply(a + (long)i * pitch, lines, AT_ONCE, first, pitch, products);
        for (int r = 0; r < AT_ONCE; r++) y[i + r] = CONJUGATE(products[r]);
    }
    for (int q = 0; q < known; q++) {
        multiply(right + q * pitch, lines, 1, first, pitch, products);
        subtract(y, CONJUGATE(products[0]), left + q * pitch, next, pitch);
    }
    for (int c = next; c < pitch; c++) y[c] *= *tau;
    return last * divisor;
}

static inline void copy(__global Element *to, __global const Element *from, const int first, const int pitch) {
    for (int c = ALIGNED(first); c < pitch; c++) to[c] = from[c];
}

#define FIND_MATRIX \
    const size_t g = get_group_id(0), matrix = (size_t)pitch * pitch; \
    a += g * matrix; \
    left += g * 2 * PANEL * pitch; \
    right += g * 2 * PANEL * pitch; \
    u += g * n * pitch; \
    lines += g * 2 * pitch;

__kernel GROUP void tridiagonalize(__global const Element *a, __global Element *left, __global Element *right,
                                   __global Element *u, __global ACC *diagonal, __global Element *below,
                                   __global Element *lines, const int n, const int pitch, const int first,
                                   const int last, const int chain) {
    FIND_MATRIX
    for (int j = first; j < last; j++) {
        const int known = 2 * (j - first);
        __global Element *x = left + known * pitch, *y = right + known * pitch;
        Element own = a[(long)j * pitch + j], products[AT_ONCE];
        for (int q = 0; q < known; q++) own -= TIMES(CONJUGATE(left[q * pitch + j]), right[q * pitch + j]);
        diagonal[g * chain + j] = REAL_PART(own);
        if (j == n - 1) break;
        ACC tau;
        below[g * n + j] = CONJUGATE(reflect(a, left, right, x, y, lines, pitch, j, j + 1, known, &tau));
        multiply(y, lines, 1, ALIGNED(j + 1), pitch, products);
        subtract(y, ELEMENT(REAL_PART(products[0]) * tau / 2), x, ALIGNED(j + 1), pitch);
        copy(x + pitch, y, j + 1, pitch);
        copy(y + pitch, x, j + 1, pitch);
        copy(u + (long)j * pitch, x, j + 1, pitch);
    }
}

__kernel GROUP void bidiagonalize(__global const Element *a, __global const Element *b, __global Element *left,
                                  __global Element *right, __global Element *u, __global Element *v,
                                  __global Element *below, __global Element *lines, const int n, const int pitch,
                                  const int first, const int last) {
    FIND_MATRIX
    b += g * matrix;
    v += g * n * pitch;
    below += g * 2 * n;
    for (int j = first; j < last; j++) {
        const int known = 2 * (j - first);
        ACC tau;
        __global Element *x = left + known * pitch, *y = right + known * pitch;
        below[2 * j] = CONJUGATE(reflect(b, right, left, x, y, lines, pitch, j, j, known, &tau));
        copy(u + (long)j * pitch, x, j, pitch);
        if (j == n - 1) break;
        x += pitch;
        y += pitch;
        below[2 * j + 1] = CONJUGATE(reflect(a, left, right, y, x, lines, pitch, j, j + 1, known + 1, &tau));
        copy(v + (long)j * pitch, y, j + 1, pitch);
    }
}
