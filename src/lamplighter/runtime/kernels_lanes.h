/* The kernels for one instruction set and vector length.
 *
 * Included several times, with LANES (floats in a vector) and NAME(x) (a name of its own for each) defined.
 *
 * A sparse convolution is a list of entries: offset and weight. For some vectors of the output plane, held in
 * registers, each entry adds weight * (input at offset). Output channels are taken in groups of 1, 2 or 4, so that an
 * input vector that several of them need is loaded once: the entries of a group are sorted by class, the set of
 * channels in the group that have a weight there, and each class has a loop of its own.
 */
typedef float NAME(vec) __attribute__((vector_size(4 * LANES)));
typedef float NAME(loose) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(bits) __attribute__((vector_size(4 * LANES)));
typedef int32_t NAME(loose_bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define VEC NAME(vec)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")

INLINE VEC NAME(load)(const float *at) { return *(const NAME(loose) *)at; }

/* Bias, what is added, ReLU, and zeros outside the image. `first` is the first vector's position in floats. */
INLINE void NAME(finish)(const lamp_op *op, int32_t row, int64_t first, const VEC *sums, const int n) {
    const float bias = op->bias[row];
    float *y = op->y + row * op->y_plane + first;
    const float *z = op->z ? op->z + row * op->z_plane + first : 0;
    const VEC zero = {0};
    UNROLL for (int j = 0; j < n; j++) {
        VEC sum = sums[j] + bias;
        if (z) sum += NAME(load)(z + j * LANES);
        if (op->relu) sum = (VEC)((NAME(bits))sum & ~(sum < zero));
        const NAME(bits) inside = *(const NAME(loose_bits) *)(op->mask + first + j * LANES);
        *(NAME(loose) *)(y + j * LANES) = (VEC)((NAME(bits))sum & inside);
    }
}

/* The entries of one class: `class` has bit g set if channel g of the group has a weight at each of them. */
INLINE void NAME(entries)(VEC *sums, const int group, const int n, const int class, const int32_t count,
                          const float *x, const int32_t **offsets, const float **weights) {
    const int each = __builtin_popcount(class);
    const int32_t *offset = *offsets, *end = offset + count;
    const float *weight = *weights;
    for (; offset < end; offset++, weight += each) {
        const float *at = x + *offset;
        UNROLL for (int j = 0; j < n; j++) {
            VEC value = NAME(load)(at + j * LANES);
            if (each > 1) IN_REGISTER(value);
            int k = 0;
            UNROLL for (int g = 0; g < group; g++)
                if (class >> g & 1) sums[g * n + j] += value * weight[k++];
        }
    }
    *offsets = end;
    *weights = weight;
}

/* One channel alone: `parts` sums side by side, so that no addition waits for the one before. */
INLINE void NAME(alone)(VEC *sums, const int n, const int parts, const int32_t count, const float *x,
                        const int32_t *offsets, const float *weights) {
    int32_t i = 0;
    for (; i + parts <= count; i += parts)
        UNROLL for (int p = 0; p < parts; p++) {
            const float *at = x + offsets[i + p];
            UNROLL for (int j = 0; j < n; j++) sums[p * n + j] += NAME(load)(at + j * LANES) * weights[i + p];
        }
    for (; i < count; i++) {
        const float *at = x + offsets[i];
        UNROLL for (int j = 0; j < n; j++) sums[j] += NAME(load)(at + j * LANES) * weights[i];
    }
    UNROLL for (int p = 1; p < parts; p++)
        UNROLL for (int j = 0; j < n; j++) sums[j] += sums[p * n + j];
}

INLINE void NAME(block)(const lamp_op *op, int32_t place, int64_t first, const int group, const int n) {
    const int classes = (1 << group) - 1, parts = group > 1 || n > 7 ? 1 : n == 1 ? 8 : n == 2 ? 4 : n == 3 ? 3 : 2;
    VEC sums[64];
    UNROLL for (int j = 0; j < group * n * parts; j++) sums[j] = (VEC){0};
    const float *x = op->x + first;
    const int32_t *counts = op->counts + (int64_t)place * classes, *offsets = op->offsets + op->begins[2 * place];
    const float *weights = op->weights + op->begins[2 * place + 1];
    if (group == 1) NAME(alone)(sums, n, parts, counts[0], x, offsets, weights);
#define CLASS(c) if (classes >= c) NAME(entries)(sums, group, n, c, counts[c - 1], x, &offsets, &weights);
    if (group > 1) {
        CLASS(1) CLASS(2) CLASS(3) CLASS(4) CLASS(5) CLASS(6) CLASS(7) CLASS(8)
        CLASS(9) CLASS(10) CLASS(11) CLASS(12) CLASS(13) CLASS(14) CLASS(15)
    }
#undef CLASS
    UNROLL for (int g = 0; g < group; g++) {
        const int32_t row = op->rows[(int64_t)place * group + g];
        if (row >= 0) NAME(finish)(op, row, first, sums + g * n, n);
    }
}

typedef void (*NAME(blocks))(const lamp_op *, int32_t, int64_t);

#define BLOCK(g, n) \
    static void NAME(block_##g##_##n)(const lamp_op *op, int32_t place, int64_t first) { \
        NAME(block)(op, place, first, g, n); \
    }
BLOCK(1, 1) BLOCK(1, 2) BLOCK(1, 3) BLOCK(1, 4) BLOCK(1, 5) BLOCK(1, 6) BLOCK(1, 7) BLOCK(1, 8)
BLOCK(1, 9) BLOCK(1, 10) BLOCK(1, 11) BLOCK(1, 12) BLOCK(1, 13) BLOCK(1, 14) BLOCK(1, 15) BLOCK(1, 16)
BLOCK(2, 1) BLOCK(2, 2) BLOCK(2, 3) BLOCK(2, 4) BLOCK(2, 5) BLOCK(2, 6)
BLOCK(2, 7) BLOCK(2, 8) BLOCK(2, 9) BLOCK(2, 10) BLOCK(2, 11) BLOCK(2, 12)
BLOCK(4, 1) BLOCK(4, 2) BLOCK(4, 3) BLOCK(4, 4) BLOCK(4, 5) BLOCK(4, 6)
#undef BLOCK

#define AT(g, n) NAME(block_##g##_##n)
static const NAME(blocks) NAME(table)[3][17] = {
    {0, AT(1, 1), AT(1, 2), AT(1, 3), AT(1, 4), AT(1, 5), AT(1, 6), AT(1, 7), AT(1, 8),
     AT(1, 9), AT(1, 10), AT(1, 11), AT(1, 12), AT(1, 13), AT(1, 14), AT(1, 15), AT(1, 16)},
    {0, AT(2, 1), AT(2, 2), AT(2, 3), AT(2, 4), AT(2, 5), AT(2, 6),
     AT(2, 7), AT(2, 8), AT(2, 9), AT(2, 10), AT(2, 11), AT(2, 12)},
    {0, AT(4, 1), AT(4, 2), AT(4, 3), AT(4, 4), AT(4, 5), AT(4, 6)},
};
#undef AT

/* A task is one block of vectors in some groups; tasks on the same vectors follow each other. */
static void NAME(conv)(const lamp_op *op, int32_t task) {
    const int32_t chunks = (op->groups + op->chunk - 1) / op->chunk;
    const int32_t vector = task / chunks * op->block, left = op->vectors - vector;
    const int32_t begin = task % chunks * op->chunk, end = begin + op->chunk;
    const NAME(blocks) block = NAME(table)[op->group >> 1][left < op->block ? left : op->block];
    for (int32_t place = begin; place < end && place < op->groups; place++)
        block(op, place, (int64_t)vector * LANES);
}

/* One row of a matrix with a single vector: 16-bit columns, offsets, or every column. */
INLINE float NAME(row)(const lamp_op *op, int32_t row) {
    const int64_t begin = op->begins[row], count = op->begins[row + 1] - begin;
    const float *weights = op->weights + begin, *x = op->x;
    float sum = op->bias[row];
    int64_t i = 0;
    if (op->columns || op->offsets) {
        const uint16_t *columns = op->columns ? op->columns + begin : 0;
        const int32_t *offsets = op->columns ? 0 : op->offsets + begin;
        float sums[8] = {0};
        if (columns)
            for (; i + 8 <= count; i += 8)
                UNROLL for (int k = 0; k < 8; k++) sums[k] += weights[i + k] * x[columns[i + k]];
        else
            for (; i + 8 <= count; i += 8)
                UNROLL for (int k = 0; k < 8; k++) sums[k] += weights[i + k] * x[offsets[i + k]];
        UNROLL for (int k = 0; k < 8; k++) sum += sums[k];
        for (; i < count; i++) sum += weights[i] * x[columns ? columns[i] : offsets[i]];
        return sum;
    }
    VEC sums[4] = {{0}};
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        UNROLL for (int k = 0; k < 4; k++)
            sums[k] += NAME(load)(weights + i + k * LANES) * NAME(load)(x + i + k * LANES);
    const VEC total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    UNROLL for (int k = 0; k < LANES; k++) sum += total[k];
    for (; i < count; i++) sum += weights[i] * x[i];
    return sum;
}

static void NAME(dot)(const lamp_op *op, int32_t task) {
    const int32_t begin = task * op->chunk, end = begin + op->chunk;
    for (int32_t row = begin; row < end && row < op->channels; row++) {
        float sum = NAME(row)(op, row);
        if (op->z) sum += op->z[row * op->z_plane];
        op->y[row * op->y_plane] = op->relu && sum < 0 ? 0 : sum;
    }
}

/* The higher of each pair, or whichever is not a number. */
INLINE VEC NAME(higher)(VEC a, VEC b) {
    const NAME(bits) first = (a > b) | (a != a);
    return (VEC)(((NAME(bits))a & first) | ((NAME(bits))b & ~first));
}

/* Several rows of the input reduced to one; whole vectors, so that a little more is read and written. */
INLINE void NAME(pool_rows)(const lamp_op *op, const float *x, int32_t top, int32_t bottom, float *row, const int average) {
    const int64_t width = (int64_t)op->in_w * op->batch, pitch = (int64_t)op->in_pitch * op->batch;
    for (int64_t i = 0; i < width; i += LANES) {
        VEC found = NAME(load)(x + top * pitch + i);
        for (int32_t line = top + 1; line < bottom; line++) {
            const VEC next = NAME(load)(x + line * pitch + i);
            found = average ? found + next : NAME(higher)(next, found);
        }
        *(NAME(loose) *)(row + i) = found;
    }
}

/* And the columns of that row, for images side by side: all of them, or vectors of them. */
INLINE void NAME(pool_columns)(const lamp_op *op, const float *row, float *y, int32_t begin, int32_t end, const int average) {
    const int32_t batch = op->batch;
    for (int32_t out = begin; out < end; out++) {
        int32_t left = out * op->stride_w - op->pad_w, right = left + op->kernel_w;
        left = left < 0 ? 0 : left;
        right = right > op->in_w ? op->in_w : right;
        for (int32_t i = 0; i < batch;) {
            const float *from = row + (int64_t)left * batch + i;
            float *to = y + (int64_t)out * batch + i;
            if (i + LANES <= batch) {
                VEC found = NAME(load)(from);
                for (int32_t column = left + 1; column < right; column++) {
                    from += batch;
                    found = average ? found + NAME(load)(from) : NAME(higher)(NAME(load)(from), found);
                }
                *(NAME(loose) *)to = average ? found * op->scale : found;
                i += LANES;
            } else {
                float found = *from;
                for (int32_t column = left + 1; column < right; column++) {
                    from += batch;
                    found = average ? found + *from : *from > found || *from != *from ? *from : found;
                }
                *to = average ? found * op->scale : found;
                i++;
            }
        }
    }
}

/* Every other window of 2 or 3 columns, all of them inside the image: the commonest pools of single images. */
INLINE void NAME(pool_halves)(const float *row, float *restrict y, int32_t count, const int kernel) {
    for (int32_t out = 0; out < count; out++) {
        float found = row[2 * out];
        UNROLL for (int k = 1; k < kernel; k++) {
            const float next = row[2 * out + k];
            found = next > found || next != next ? next : found;
        }
        y[out] = found;
    }
}

INLINE void NAME(pool_lines)(const lamp_op *op, int32_t channel, float *row, const int average) {
    const int halves = op->batch == 1 && !average && op->stride_w == 2 && (op->kernel_w == 2 || op->kernel_w == 3);
    const int32_t first = (op->pad_w + 1) / 2, inside = halves ? (op->in_w - op->kernel_w + op->pad_w) / 2 + 1 : 0;
    const int32_t last = inside < first ? first : inside < op->out_w ? inside : op->out_w; /* windows in [first, last) */
    const float *x = op->x + channel * op->x_plane;
    float *y = op->y + channel * op->y_plane;
    for (int32_t out = 0; out < op->out_h; out++, y += (int64_t)op->out_pitch * op->batch) {
        int32_t top = out * op->stride_h - op->pad_h, bottom = top + op->kernel_h;
        top = top < 0 ? 0 : top;
        bottom = bottom > op->in_h ? op->in_h : bottom;
        NAME(pool_rows)(op, x, top, bottom, row, average);
        if (!halves || first >= op->out_w) {
            NAME(pool_columns)(op, row, y, 0, op->out_w, average);
            continue;
        }
        NAME(pool_columns)(op, row, y, 0, first, average);
        const float *from = row + 2 * first - op->pad_w;
        if (op->kernel_w == 2)
            NAME(pool_halves)(from, y + first, last - first, 2);
        else
            NAME(pool_halves)(from, y + first, last - first, 3);
        NAME(pool_columns)(op, row, y, last, op->out_w, average);
    }
}

static void NAME(pool)(const lamp_op *op, int32_t task) {
    float row[WIDEST + LANES];
    const int32_t begin = task * op->chunk, end = begin + op->chunk;
    for (int32_t channel = begin; channel < end && channel < op->channels; channel++)
        if (op->average)
            NAME(pool_lines)(op, channel, row, 1);
        else
            NAME(pool_lines)(op, channel, row, 0);
}

#undef VEC
#undef INLINE
#undef UNROLL
