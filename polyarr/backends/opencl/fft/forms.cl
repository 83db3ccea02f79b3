// What the n complex numbers of a transform are in memory. Included by the kernels of this folder.
//
//     COMPLEX        n complex numbers
//     REAL_NUMBERS   n real numbers: the imaginary parts are 0, and those of a result are left out
//     HALF           the first n / 2 + 1 complex numbers: the others are their conjugates, in reverse
//     HALF_OF_PAIRS  the first n + 1 numbers of the spectrum of 2 n real ones, which are the parts of the n numbers
//
// Types    X, Y      elements of what is read, in the form SOURCE, and of what is written, in the form RESULT
// Params   SOURCE, RESULT    forms
//          REAL, PAIR        type of the parts: float or double; of a complex number: float2 or double2

#define COMPLEX 0
#define REAL_NUMBERS 1
#define HALF 2
#define HALF_OF_PAIRS 3
#if SOURCE == REAL_NUMBERS
typedef REAL X;
#else
typedef PAIR X;
#endif
#if RESULT == REAL_NUMBERS
typedef REAL Y;
#else
typedef PAIR Y;
#endif

static inline PAIR times(PAIR a, PAIR b) { return (PAIR)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
static inline PAIR swapped_if(int is_swapped, PAIR a) { return is_swapped ? a.yx : a; }
static inline PAIR conjugate(PAIR a) { return (PAIR)(a.x, -a.y); }

// Number j of n in the row x, whose form is SOURCE.
static inline PAIR read_number(__global const X *restrict x, __global const PAIR *restrict halves, long j, long n,
                               int inverse) {
#if SOURCE == REAL_NUMBERS
    return (PAIR)(x[j], 0);
#elif SOURCE == HALF
    return j <= n / 2 ? x[j] : conjugate(x[n - j]);
#elif SOURCE == HALF_OF_PAIRS
    PAIR a = x[j], b = conjugate(x[n - j]);
    if (j == 0) a.y = b.y = 0;
    if (!inverse) a = conjugate(a), b = conjugate(b);
    const PAIR odd = times(a - b, conjugate(halves[j]));
    return a + b + (PAIR)(-odd.y, odd.x);
#else
    return x[j];
#endif
}

// Number k of n + 1 in the form HALF_OF_PAIRS, from number k of the transform and n - k, or 0 instead of n.
static inline PAIR half_of_pairs(PAIR a, PAIR b, __global const PAIR *restrict halves, int k, int n, int inverse) {
    if (k == 0 || k == n) {
        a = (PAIR)(k ? a.x - a.y : a.x + a.y, 0);
    } else {
        b = conjugate(b);
        const PAIR odd = times(a - b, halves[k]);  // i times twice the transform of the odd elements, turned
        a = (a + b + (PAIR)(odd.y, -odd.x)) * (REAL)0.5;
    }
    return inverse ? conjugate(a) : a;
}
