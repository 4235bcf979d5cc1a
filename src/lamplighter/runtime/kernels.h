/* What Python hands over: one operation of a network, and the team of threads that carries it out.
 *
 * A tensor lies as planes, one for each channel. A plane is flattened: rows of `pitch` positions, so that a shift of
 * the image is a constant offset, and each position holds the values of all images of a chunk side by side. Between
 * rows and around the plane lie zeros, which is what a convolution reads beyond the edge of the image.
 *
 * Everything here is checked in Python before it is called: nothing below looks at a bound again.
 */
#ifndef LAMP_KERNELS_H
#define LAMP_KERNELS_H

#include <stdint.h>

enum { LAMP_CONV, LAMP_DOT, LAMP_POOL, LAMP_MEAN, LAMP_SPLIT, LAMP_LOAD, LAMP_STORE };

typedef struct {
    int32_t kind;
    int32_t relu;     /* 1: negative results become 0 */
    int32_t lanes;    /* floats in a vector */
    int32_t group;    /* output channels computed together: 1, 2 or 4 */
    int32_t block;    /* vectors of a plane computed together */
    int32_t groups;   /* how many groups of output channels */
    int32_t vectors;  /* vectors in a plane */
    int32_t chunk;    /* groups, rows or channels in a task */
    int32_t tasks;    /* pieces that may be done in any order, by any thread */
    int32_t channels; /* of the output; of the input for LAMP_SPLIT and LAMP_LOAD */
    int32_t batch;    /* images side by side */
    int32_t average;  /* 1: the pool sums and scales; 0: it takes the maximum */
    int32_t in_h, in_w, in_pitch, out_h, out_w, out_pitch;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    float scale;
    int32_t phases;                    /* how many of the strides' phases LAMP_SPLIT writes: all, or the first */
    int64_t x_plane, y_plane, z_plane; /* floats from one channel to the next */
    const float *x;                    /* input, at the first position of the first channel */
    const float *z;                    /* what is added to the result, or NULL */
    float *y;                          /* output */
    const int32_t *mask;               /* -1 where a position is part of the image, else 0 */
    const float *bias;                 /* by output channel */
    const int32_t *rows;               /* output channels of each group, -1 for none */
    const int32_t *counts;             /* entries of each group by class */
    const int64_t *begins;             /* first entry and first weight of each group; of LAMP_DOT, of each row */
    const int32_t *offsets;            /* of each entry, in floats from x */
    const uint16_t *columns;           /* the same for LAMP_DOT; NULL if every column is there */
    const float *weights;
} lamp_op;

typedef void (*lamp_task)(const lamp_op *op, int32_t task);

/* What an instruction set provides: NULL where it has no vectors of that many lanes. */
typedef struct {
    lamp_task conv, dot, pool;
} lamp_kernels;

#endif
