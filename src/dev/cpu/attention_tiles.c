/* Wide units on matrix units: both products of attention in bf16 tiles, scores and sums in f32 in between. */
#include "dev/cpu/attention.h"

#include <string.h>

/* raw: of this side and KV head, keys [dim][first] or values [first][dim]. */
static void put_side(const struct tern_kv_side *side, struct attn_scratch *c, float *page, const uint8_t *raw,
                     int first)
{
    const size_t dim = (size_t)side->dim, n = dim * (size_t)first;
    float *x = c->firsts;
    if (side->raw32)
        memcpy(x, raw, n * sizeof *x);
    else
        tern_k.attn.f16_to_f32(x, (const uint16_t *)(const void *)raw, tern_round_up(n, TERN_ALIGN / sizeof *x));
    if (!side->key) {
        side->codec->enter(side, x, first, 0);
        memcpy(page, x, n * sizeof *x);
        return;
    }
    float *keys = c->first_keys;
    for (size_t t = 0; t < (size_t)first; t++)
        for (size_t d = 0; d < dim; d++)
            keys[t * dim + d] = x[d * (size_t)first + t];
    side->codec->enter(side, keys, first, 0);
    for (size_t t = 0; t < (size_t)first; t++)
        for (size_t d = 0; d < dim; d++)
            page[d * TERN_PAGE + t] = keys[t * dim + d];
}

void tern_attn_put_firsts(const struct attn_unit *u, struct attn_scratch *c, float *k, float *v)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const uint8_t *raw = u->block->job->sink + kv->sink_layer_off + (size_t)u->kv_head * kv->sink_bytes;
    if (!kv->k.codec->raw)
        put_side(&u->key, c, k, raw, kv->first);
    if (!kv->v.codec->raw)
        put_side(&kv->v, c, v, raw + kv->sink_v_off, kv->first);
}

void tern_attn_tile_page(const struct attn_unit *u, struct attn_scratch *c, int j, int n_pages, const float *k,
                         const float *v)
{
    const int dk = u->step->kv->k.dim, dv = u->step->kv->v.dim;
    uint16_t *keys = c->k16 + (size_t)j * tern_bf16_right(dk, TERN_PAGE);
    tern_k.bf16.pack_right(keys, tern_bf16_band(dk), k, dk, TERN_PAGE);
    uint16_t *values = c->v16 + tern_bf16_band(j * TERN_PAGE);
    tern_k.bf16.pack_right(values, tern_bf16_band(n_pages * TERN_PAGE), v, TERN_PAGE, dv);
}

void tern_attn_tile_band(const struct attn_unit *u, struct attn_scratch *c, int page, int n_pages, const float *x,
                         int i, int n, bool coded)
{
    const int dk = u->step->kv->k.dim, dv = u->step->kv->v.dim;
    const bool completes = coded && tern_attn_completes(u);
    uint16_t *band = c->x16 + (size_t)(i / TERN_BAND) * tern_bf16_band(dk);
    if (x)
        tern_k.bf16.pack(band, x, (size_t)dk, n, dk);
    if (completes)
        tern_attn_load_q(u, c->raw, i, n);
    tern_k.bf16.score(c->s, (size_t)n * TERN_PAGE, band, n, c->k16, dk, n_pages);
    for (int j = 0; j < n_pages && completes; j++)
        tern_attn_complete(u, c->s + (size_t)j * (size_t)n * TERN_PAGE, c->raw, n, page + j);
    tern_attn_tile_softmax(u, c, i, n, page, n_pages, coded ? attn_first_token(u, page) : 0);
    tern_k.bf16.multiply(c->o + (size_t)i * (size_t)dv, (size_t)dv, c->shrink, c->p16, n, c->v16, n_pages * TERN_PAGE,
                         dv);
}
