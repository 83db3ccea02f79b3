// Included by matmul_wgmma.cl: implicit GEMM through TMA. Operands of a convolution are loaded directly from images
// with channels last, as TMA tiles of at most 64 positions x 64 channels: no im2col copy is made, and TMA fills the
// padding with zeros.
//
// The tensor map of an image has five axes: channels (of `stride` neighbors along the width, and of all terms of a
// split float32), width in strides, rows within a stride, height in strides, images. A TMA tile begins at (channel,
// width, row, height, image).
//
// IMAGES 1: the result of a convolution, or the gradient of its input. x is the im2col view. Rows 64 i .. 64 i + 63 of
// the product are the positions of TMA tile i of the result. A step of k is 64 channels of one filter element. IMAGES
// 2: the gradient of a weight. x is the gradient of the result and y the im2col view, both with positions along k. A
// step of k is a TMA tile of 64 positions, and 64 columns are channels of one filter element.
//
// Arrays   entries (int4):
//          IMAGES 1: for each TMA tile its width, height and image; from `deep` on two entries per step: the offset of
//          its channels and filter element (channel, width, row, height), and the coordinates of its rows of y (row,
//          matrix)
//          IMAGES 2: for each 64 columns the channel, width, row and height; from `deep` on one entry per TMA tile, as
//          above
//
// Grouped convolutions: every `group` columns (IMAGES 1) or rows (IMAGES 2) of the result, which are whole tiles, begin
// `group_channels` further among the channels of the images.
//
// Params   IMAGES    0 to leave out this file, or 1 or 2 as above
#ifndef IMAGES
#error "images.cl needs IMAGES"
#endif
#if IMAGES

// out_start: offset of out. x_apart, y_apart: channels (or matrices of y) between the terms of a split float32. box:
// lengths of a TMA tile (width, height, images); count: lengths that all tiles cover. group, group_channels: see above;
// `own` columns and `own_channels` channels of these belong to one group of the convolution, the rest is multiplied by
// zeros. The other fields are for multiply_numbers: lengths of the tensor map of x (IMAGES 1) or y (IMAGES 2), and
// strides of out and y.
typedef struct {
    long out_start, out_step[3], y_step[4];
    int deep, columns, box_bytes, x_apart, y_apart, box[3], count[3], channels, lengths[2], rows;
    int group, group_channels, own, own_channels, spare;
} Images;

typedef struct {
    int4 box[IMAGES == 1 ? 2 : COLUMNS / 64];
    int row, column, first;
} Boxes;

typedef struct {
    int4 there, other;
} Step;

INLINE void tma_load_image(uint to, __global const ulong *map, int channel, int width, int row, int height, int image,
                       uint barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5, %6}], [%7];"
        ::"r"(to), "l"(map), "r"(channel), "r"(width), "r"(row), "r"(height), "r"(image), "r"(barrier) : "memory");
}
INLINE void tma_store_image(__global const ulong *map, int channel, int4 entry, uint from) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
                 ::"l"(map), "r"(channel), "r"(entry.x), "r"(entry.y), "r"(entry.z), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Find what is constant over the steps of a tile of the result: its TMA tiles, row, column and first channel.
INLINE void boxes_find(Boxes *boxes, const Images *images, __global const int4 *entries, int row, int column) {
    boxes->row = row;
    boxes->column = column;
    boxes->first = (IMAGES == 1 ? column : row) / images->group * images->group_channels;
#if IMAGES == 1
    if (!Y_ALONG_K) boxes->column = column % images->group;
    UNROLL for (int i = 0; i < 2; i++) boxes->box[i] = entries[row / 64 + i];
#else
    UNROLL for (int i = 0; i < COLUMNS / 64; i++) boxes->box[i] = entries[MIN(column / 64 + i, images->columns - 1)];
#endif
}

INLINE Step step_of(const Images *images, __global const int4 *entries, int step) {
    Step found;
    found.there = entries[images->deep + IMAGES % 2 * step + step];
    found.other = IMAGES == 1 ? entries[images->deep + 2 * step + 1] : found.there;
    return found;
}

INLINE void boxes_load(uint x_at, uint y_at, __global const ulong *maps, const Images *images, const Boxes *boxes, Step step,
                       int x_part, int y_part, uint full) {
    const int4 there = step.there;
#if IMAGES == 1
    UNROLL for (int i = 0; i < 2; i++) {
        const int4 box = boxes->box[i];
        tma_load_image(x_at + i * 8192, maps, there.x + boxes->first + x_part * images->x_apart,
                       box.x + there.y, there.z, box.y + there.w, box.z, full);
    }
#if Y_ALONG_K
    tma_load(y_at, maps + 16, step.other.x, boxes->column, 0, y_part, full);
#else
    UNROLL for (int i = 0; i < COLUMNS / 64; i++)
        tma_load(y_at + i * 8192, maps + 16, boxes->column + i * 64, step.other.x + boxes->first, step.other.y, y_part,
                 full);
#endif
#else
    UNROLL for (int i = 0; i < 2; i++)
        tma_load_image(x_at + i * 8192, maps, boxes->row + i * 64 + x_part * images->x_apart, there.x, 0, there.y,
                       there.z, full);
    UNROLL for (int i = 0; i < COLUMNS / 64; i++) {
        const int4 box = boxes->box[i];
        tma_load_image(y_at + i * 8192, maps + 16, box.x + boxes->first + y_part * images->y_apart,
                       there.x + box.y, box.z, there.y + box.w, there.z, full);
    }
#endif
}

// ---- without matrix units ---------------------------------------------------------------------------------------

#if TERMS > 1
// Return one element of an image; 0 outside of it.
INLINE float image_at(const Images *images, __global const ushort *image, long apart, int channel, int width, int row,
                      int height, int number) {
    if (width < 0 || width >= images->lengths[0] || height < 0 || height >= images->lengths[1]) return 0;
    const long line = ((long)number * images->lengths[1] + height) * images->rows + row;
    return join_terms(image + (line * images->lengths[0] + width) * images->channels + channel, apart);
}

// Find position r of a TMA tile, in at[]; return 0 if it does not exist.
INLINE int position_in(const Images *images, int4 box, int r, int *at) {
    at[0] = box.x + r % images->box[0];
    at[1] = box.y + r / images->box[0] % images->box[1];
    at[2] = box.z + r / images->box[0] / images->box[1];
    return r < images->box_bytes / 128 && at[0] < images->count[0] && at[1] < images->count[1] && at[2] < images->count[2];
}

// Compute the product in plain float32 arithmetic. Slow fallback for non-finite operands: split into terms, an infinity
// would be multiplied by terms that are 0, which gives nan.
INLINE void multiply_numbers(const Images *images, __global const int4 *entries, long m, long n, int k,
                             __global const ushort *x, __global const ushort *y, __global const T *bias,
                             __global T *out, __global T *saved) {
    out += images->out_start;
    if (SAVE) saved += images->out_start;
    for (long item = get_global_id(0); item < m * n; item += get_global_size(0)) {
        const long column = item % n, row = item / n;
        const int in_result = IMAGES == 1 ? column : row, first = in_result / images->group * images->group_channels;
        float v = 0;
        int at[3];
#if IMAGES == 1
        if (!position_in(images, entries[row / 64], row % 64, at)) continue;
        const int own = in_result % images->group / images->own * images->own_channels;
        for (int i = 0; i < k / 64; i++) {
            const Step step = step_of(images, entries, i);
            float sum = 0;
            for (int j = 0; j < 64; j++) {
                const int channel = step.other.x % images->group_channels + j;
                if (channel < own || channel >= own + images->own_channels) continue;
                const float left = image_at(images, x, images->x_apart, step.there.x + first + j, at[0] + step.there.y,
                                            step.there.z, at[1] + step.there.w, at[2]);
                const long of_column = Y_ALONG_K ? column : column % images->group, of_channel = Y_ALONG_K ? 0 : first;
                const long from = of_column * images->y_step[0] + (step.other.x + of_channel + j) * images->y_step[1] +
                                  step.other.y * images->y_step[2];
                sum = fma(left, join_terms(y + from, images->y_step[3]), sum);
            }
            v += sum;
        }
        const long to = at[0] * images->out_step[0] + at[1] * images->out_step[1] + at[2] * images->out_step[2] + column;
#else
        const int4 there = entries[column / 64];
        for (int i = 0; i < k / 64; i++) {
            const Step step = step_of(images, entries, i);
            float sum = 0;
            for (int j = 0; j < 64; j++) {
                if (!position_in(images, step.there, j, at)) continue;
                const long line = ((long)at[2] * images->count[1] + at[1]) * images->count[0] + at[0];
                const float right = image_at(images, y, images->y_apart, there.x + first + column % 64, at[0] + there.y, there.z,
                                             at[1] + there.w, at[2]);
                sum = fma(join_terms(x + line * images->y_step[0] + row, images->x_apart), right, sum);
            }
            v += sum;
        }
        const long to = item;
#endif
#if BIAS
        v += LOAD(bias, column);
#endif
#if SAVE
        STORE(saved, to, v);
#endif
        STORE(out, to, ACTIVATE(v));
    }
}
#endif
#endif
