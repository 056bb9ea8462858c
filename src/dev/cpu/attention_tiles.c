/* Wide units on matrix units: both products of attention in bf16 tiles, scores and sums in f32 in between. */
#include "dev/cpu/attention.h"

void tern_attn_tile_page(const struct attn_unit *u, struct attn_scratch *c, const float *k, const float *v)
{
    tern_k.bf16.pack_right(c->k16, k, u->step->kv->k.dim, TERN_PAGE);
    tern_k.bf16.pack_right(c->v16, v, TERN_PAGE, u->step->kv->v.dim);
}

void tern_attn_tile_scores(const struct attn_unit *u, struct attn_scratch *c, const float *x, int i, int n)
{
    const int dk = u->step->kv->k.dim;
    uint16_t *band = c->x16 + (size_t)(i / TERN_BAND) * tern_bf16_band(dk);
    if (x)
        tern_k.bf16.pack(band, x, (size_t)dk, n, dk);
    tern_k.bf16.multiply(c->s, TERN_PAGE, NULL, band, n, c->k16, dk, TERN_PAGE);
}

void tern_attn_tile_accum(const struct attn_unit *u, struct attn_scratch *c, int i, int n)
{
    const int dv = u->step->kv->v.dim;
    tern_k.bf16.pack(c->p16, c->s, TERN_PAGE, n, TERN_PAGE);
    tern_k.bf16.multiply(c->o + (size_t)i * (size_t)dv, (size_t)dv, c->shrink, c->p16, n, c->v16, TERN_PAGE, dv);
}
