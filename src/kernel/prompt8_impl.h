/* kernel/prompt8_impl.h - what the class int8 has of its own in kernel/prompt_impl.h, which includes it. */
#ifndef TERN_KERNEL_PROMPT8_IMPL_H
#define TERN_KERNEL_PROMPT8_IMPL_H

#include "kernel/panel.h"
#include "kernel/prompt.h"

#ifdef PROMPT_INT8

#include <string.h>

/* A panel's weights of a step in scratch. */
struct block {
    uint8_t quads[TERN_BLOCK / 4][TERN_VEC];
    float scale[2][TERN_PANEL], minimum[2][TERN_PANEL]; /* of each half */
};

/* 32 inputs of a band.  isum, product: of both halves and of all 32. */
struct step {
    int8_t q[TERN_BAND][TERN_BLOCK];
    float scale[TERN_BAND];
    int32_t isum[3][TERN_BAND];
    float product[3][TERN_BAND]; /* scale * isum */
};

/* Where the operands of a register tile lie. */
struct operands {
    const struct step *x;  /* first step of the band */
    int row;               /* first row in it */
    const struct block *w; /* first step of panel 0; panels are `steps` blocks apart */
    int steps, zero;
};

#define PIECE 256 /* inputs that are quantised at once: 15 KB of a band, which stay in L1 for all its rows */

static size_t band(int k)
{
    return (size_t)k / TERN_BLOCK * sizeof(struct step) / sizeof(uint16_t);
}

static void pack_block(struct step *s, int r, const int8_t *q, float scale, const int32_t sum16[2])
{
    /* Rows that are not finite have sums that wrap; their scale is not finite either. */
    const int32_t isum[3] = {sum16[0], sum16[1], (int32_t)((uint32_t)sum16[0] + (uint32_t)sum16[1])};
    memcpy(s->q[r], q, TERN_BLOCK);
    s->scale[r] = scale;
    for (int g = 0; g < 3; g++) {
        s->isum[g][r] = isum[g];
        s->product[g][r] = scale * (float)isum[g];
    }
}

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    struct step *steps = (struct step *)(void *)out;
    int8_t q[PIECE] __attribute__((aligned(64)));
    float scale[PIECE / TERN_BLOCK] __attribute__((aligned(64)));
    int32_t sum16[PIECE / 16] __attribute__((aligned(64)));
    for (int at = 0; at < k; at += PIECE)
        for (int r = 0; r < n_rows; r++) {
            const int n = k - at < PIECE ? k - at : PIECE;
            PROMPT_INT8(q, scale, sum16, x + (size_t)r * x_stride + at, n);
            for (int b = 0; b < n / TERN_BLOCK; b++)
                pack_block(steps + at / TERN_BLOCK + b, r, q + b * TERN_BLOCK, scale[b], sum16 + 2 * b);
        }
    memset(q, 0, TERN_BLOCK);
    memset(sum16, 0, 2 * sizeof *sum16);
    for (int r = n_rows; r % PAD; r++) /* register tiles read them, and nobody looks at what comes of it */
        for (int b = 0; b < k / TERN_BLOCK; b++)
            pack_block(steps + b, r, q, 0, sum16);
}

/* Where the operands of row r of the band at `at` lie. */
PROMPT_INLINE void row_operands(struct operands *o, const uint16_t *at, int first_step, int r)
{
    o->x = (const struct step *)(const void *)at + first_step;
    o->row = r % TERN_BAND;
}

static int zero_of(const struct tern_packed *w)
{
    return (tern_scales_zero(w->scales) ? w->zero : 0) + RAISED * tern_codes_signed(w->codes);
}

/* What an output of the row is multiplied by at the end: nothing. */
PROMPT_INLINE const float *row_scale(const uint16_t *at, int r)
{
    (void)at;
    (void)r;
    return NULL;
}

#endif
#endif
