/* Pages back to vectors: out of the scheme's order and domain, and with the conditioning's constants again. */
#include "codec/codec.h"

#define STRIP 16 /* dims that are turned at once: one cache line of each vector */

/* [dim][64] to [64][dim]. */
static void turn_keys(float *x, const float *page, size_t dim)
{
    for (size_t d = 0; d < dim; d += STRIP) {
        const size_t n = dim - d < STRIP ? dim - d : STRIP;
        for (size_t t = 0; t < TERN_PAGE; t++)
            for (size_t j = 0; j < n; j++)
                x[t * dim + d + j] = page[(d + j) * TERN_PAGE + t];
    }
}

void tern_kv_values(const struct tern_kv_side *side, float *x, const uint8_t *data, const uint16_t *head, int pos0,
                    float *scratch)
{
    if (side->key) {
        side->codec->decode(side, scratch, data, head);
        turn_keys(x, scratch, (size_t)side->dim);
    } else {
        side->codec->decode(side, x, data, head);
    }
    side->codec->finish(side, x, TERN_PAGE);
    if (side->cond)
        tern_kv_cond_restore(side->cond, x, side->dim, pos0);
}
