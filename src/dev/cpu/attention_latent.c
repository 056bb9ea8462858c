/* Layers whose values are the first part of their keys, cached once.  A page becomes f32 for a unit's rows, of either
 * kind, and its values are turned over to be scored as keys; with the many query heads of such a layer that is little
 * beside the products.  A score is the sum of two chains: over the values, and over the keys after them. */
#include "dev/cpu/attention.h"

#include <string.h>

#define TURN 16 /* dims that are turned over at once */

/* c->vk[v.dim][64] = values [64][v.dim] */
static void turn_over(struct attn_scratch *c, const float *v, size_t dv)
{
    for (size_t d = 0; d < dv; d += TURN)
        for (size_t t = 0; t < TERN_PAGE; t++)
            for (size_t j = 0; j < TURN; j++)
                c->vk[(d + j) * TERN_PAGE + t] = v[t * dv + d + j];
}

/* Q rows [i, i + n), given as xv and xk, on a page of keys k, values v and c->vk.  Tokens [lo, hi) count. */
static void attend(const struct attn_unit *u, struct attn_scratch *c, const float *xv, const float *xk, const float *k,
                   const float *v, int i, int n, int page, int lo, int hi)
{
    const struct tern_kv_layer *kv = u->step->kv;
    tern_k.attn.score_f32(c->s, xv, c->vk, kv->v.dim, n);
    tern_k.attn.score_f32(c->s_k, xk, k, kv->k.dim, n);
    tern_k.vec.add(c->s, c->s, c->s_k, n * TERN_PAGE);
    tern_attn_softmax(u, c, i, n, page, 1, lo, hi, NULL);
    tern_k.attn.accum_f32(c->o + (size_t)i * (size_t)kv->v.dim, c->s, v, c->shrink, kv->v.dim, hi, n);
}

static void latent_pages(const struct attn_unit *u, struct attn_scratch *c, int begin, int end)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const size_t dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim;
    TERN_ASSERT(kv->k.codec->raw);
    if (begin >= end)
        return;
    tern_attn_load_q(u, c->x, 0, u->n_q);
    for (int i = 0; i < u->n_q; i += ATTN_SUB) {
        int n = u->n_q - i < ATTN_SUB ? u->n_q - i : ATTN_SUB;
        struct tern_kv_query query = {.x = c->xv + (size_t)i * dv};
        tern_attn_load_latent(u, c->raw_v, i, n);
        kv->v.codec->prep(&kv->v, &query, c->raw_v, n, false);
    }
    for (int page = begin; page < end; page++) {
        const uint8_t *p = tern_attn_page(u, page);
        const float *k = tern_attn_page_f32(&kv->k, c->k, p + kv->k_off, p + kv->k_head_off);
        const float *v = tern_attn_page_f32(&kv->v, c->v, p + kv->v_off, p + kv->v_head_off);
        turn_over(c, v, dv);
        for (int i = 0; i < u->n_q; i += ATTN_SUB) {
            int n = u->n_q - i < ATTN_SUB ? u->n_q - i : ATTN_SUB;
            attend(u, c, c->xv + (size_t)i * dv, c->x + (size_t)i * dk, k, v, i, n, page, page ? 0 : kv->first,
                   TERN_PAGE);
        }
    }
}

/* All q rows on a page that is not coded. */
static void attend_raw(const struct attn_unit *u, struct attn_scratch *c, const float *k, const float *v, int page,
                       int hi)
{
    turn_over(c, v, (size_t)u->step->kv->v.dim);
    for (int i = 0; i < u->n_q; i += ATTN_SUB) {
        int n = u->n_q - i < ATTN_SUB ? u->n_q - i : ATTN_SUB;
        tern_attn_load_q(u, c->raw, i, n);
        tern_attn_load_latent(u, c->raw_v, i, n);
        attend(u, c, c->raw_v, c->raw, k, v, i, n, page, 0, hi);
    }
}

static const float *to_f32(float *buf, const void *x, bool raw32, size_t n)
{
    if (raw32)
        return x;
    tern_k.attn.f16_to_f32(buf, x, n);
    return buf;
}

static void latent_sinks(const struct attn_unit *u, struct attn_scratch *c, const uint8_t *sink)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const size_t dv = (size_t)kv->v.dim, first = (size_t)kv->first;
    tern_attn_sink_keys(c->k, sink, kv->k.raw32, kv->k.dim, kv->first, TERN_PAGE);
    const float *v = to_f32(c->v, sink + kv->sink_v_off, kv->v.raw32, first * dv);
    if (v != c->v)
        memcpy(c->v, v, first * dv * sizeof *v);
    memset(c->v + first * dv, 0, (TERN_PAGE - first) * dv * sizeof *v);
    attend_raw(u, c, c->k, c->v, 0, kv->first);
}

static void latent_raw(const struct attn_unit *u, struct attn_scratch *c, int page, const uint8_t *tile)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const float *k = to_f32(c->k, tile, kv->k.raw32, (size_t)kv->k.dim * TERN_PAGE);
    const float *v = to_f32(c->v, tile + kv->tile_v_off, kv->v.raw32, (size_t)kv->v.dim * TERN_PAGE);
    attend_raw(u, c, k, v, page, TERN_PAGE);
}

const struct attn_kind tern_attn_latent = {.pages = latent_pages, .sinks = latent_sinks, .raw = latent_raw};
