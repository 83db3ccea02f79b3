// Backward of the epilogue of a linear layer on CPUs: gz = g * slope(z), and dbias = the column sums of gz.
//
// Arrays   g, z, gz (rows, n / FOLDED) of T, row-major, `size` elements; z is the input of the activation, or the
//          result of relu. gz may be g or z: each element is read by the work-item that overwrites it, and by no other
//          dbias (n / FOLDED) of T
// Launch   global (groups * LANES, SLICES), local (LANES, SLICES): a group processes LANES * WIDE whole columns
// Params   T, ACC, LOAD, STORE    a float dtype: see prelude.cl
//          FLOATING               1
//          ACTIVATION             none, relu, silu, gelu or gelu_tanh
//          ACTIVATES              1 to read z and write gz
//          BIAS                   1 to write dbias
//          LANES, WIDE            adjacent work-items, and columns per work-item
//          SLICES                 work-items that share the rows of a column
//          FOLDED                 rows that are viewed as one row of n columns, if one work-item takes all columns;
//                                 else 1

#define CHUNK 64  // rows summed without compensation before they are added to the total
#define COLUMNS_FROM(first, end) ((first) < (end) ? (int)MIN(WIDE, ((end) - (first) + LANES - 1) / LANES) : 0)
#define EACH_COLUMN_OF_MINE for (int w = 0; w < WIDE; w++)

// Process one row: a work-item's columns begin at i and lie LANES apart; `columns` of them exist.
static inline __attribute__((always_inline))
void process_row(__global const T *restrict g, __global const T *restrict z, __global T *restrict gz, ACC *part,
          size_t i, int columns) {
    ACC v[WIDE], before[WIDE];  // private, so that the compiler vectorises each loop
    WIDELY for (int w = 0; w < columns; w++) v[w] = LOAD(g, i + w * LANES);
    if (ACTIVATES) {
        WIDELY for (int w = 0; w < columns; w++) before[w] = LOAD(z, i + w * LANES);
        WIDELY for (int w = 0; w < columns; w++) v[w] *= SLOPE(before[w]);
        WIDELY for (int w = 0; w < columns; w++) STORE(gz, i + w * LANES, v[w]);
    }
    WIDELY for (int w = 0; w < columns; w++) part[w] += v[w];
}

__kernel __attribute__((reqd_work_group_size(LANES, SLICES, 1)))
void linear_gradient(__global const T *restrict g, __global const T *restrict z, __global T *restrict gz,
                     __global T *restrict dbias, const long size, const long n) {
    __local ACC lanes[SLICES * LANES];
    const int me = get_local_id(0), slice = get_local_id(1);
    const long first = get_group_id(0) * (LANES * WIDE) + me;
    const int columns = COLUMNS_FROM(first, n);
    const long rows = (size + n - 1) / n;
    ACC total[WIDE], lost[WIDE];
    EACH_COLUMN_OF_MINE total[w] = lost[w] = 0;

    for (long start = slice; start < rows; start += CHUNK * SLICES) {
        const long end = MIN(rows, start + CHUNK * SLICES);
        ACC part[WIDE];
        EACH_COLUMN_OF_MINE part[w] = 0;
        for (long r = start; r < end; r += SLICES) {
            const size_t i = r * n + first;
            if (columns == WIDE && (FOLDED == 1 || i + WIDE <= size)) process_row(g, z, gz, part, i, WIDE);
            else process_row(g, z, gz, part, i, FOLDED == 1 ? columns : COLUMNS_FROM(i, size));
        }
        EACH_COLUMN_OF_MINE KAHAN_ADD(ACC, total[w], lost[w], part[w])
    }

    const int own = FOLDED == 1 ? columns : n / FOLDED;
    if (FOLDED > 1) for (int w = own; w < columns; w++) total[w % own] += total[w];
    if (BIAS) EACH_COLUMN_OF_MINE {
        ACC sum = total[w];
        if (SLICES > 1) {
            lanes[slice * LANES + me] = sum;
            barrier(CLK_LOCAL_MEM_FENCE);
            sum = 0;
            for (int s = 0; s < SLICES; s++) sum += lanes[s * LANES + me];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (slice == 0 && w < own) STORE(dbias, first + w * LANES, sum);
    }
}
