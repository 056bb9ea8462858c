/* Wide units in 16-bit integers, where keys and values are codes: pages become pairs of entries, never floats.  Raw
 * pages and first tokens are f32, as for other wide units.
 *
 * Pages go in aligned groups, as on tiles: one softmax for several pages, and one exact sum over all of their tokens.
 * A row's groups depend on its position alone; pages of them that it does not see have weight 0. */
#include "dev/cpu/attention.h"

/* Keys and values of the pages [page, page + n) as pairs. */
static void expand_group(const struct attn_unit *u, struct attn_scratch *c, int page, int n)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const size_t keys = (size_t)kv->k.dim * TERN_PAGE, scales = (size_t)tern_kvq_blocks(kv->k.dim) * TERN_PAGE;
    for (int j = 0; j < n; j++) {
        const uint8_t *p = tern_attn_page(u, page + j);
        const void *k_head = p + kv->k_head_off, *v_head = p + kv->v_head_off;
        tern_k.attn16.expand_k(c->codes.k + (size_t)j * keys, c->codes.k_scale + (size_t)j * scales, p + kv->k_off,
                               k_head, tern_kv_table(kv->k.codec), kv->k.dim);
        tern_k.attn16.expand_v(c->codes.v, c->codes.v_scale, p + kv->v_off, v_head, tern_kv_table(kv->v.codec),
                               kv->v.dim, j, n);
    }
}

/* Q rows [i, i + n) through the group. */
static void attend_band(const struct attn_unit *u, struct attn_scratch *c, int page, int n_pages, int i, int n)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const size_t dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim, blocks = (size_t)tern_kvq_blocks(kv->k.dim);
    const bool completes = tern_attn_completes(u);
    if (completes)
        tern_attn_load_q(u, c->raw, i, n);
    for (int j = 0; j < n_pages; j++) {
        float *s = c->s + (size_t)j * (size_t)n * TERN_PAGE;
        tern_k.attn16.score(s, c->codes.x + (size_t)i * dk, c->codes.x_scale + (size_t)i * blocks,
                            c->codes.k + (size_t)j * dk * TERN_PAGE, c->codes.k_scale + (size_t)j * blocks * TERN_PAGE,
                            kv->k.dim, n);
        if (completes)
            tern_attn_complete(u, s, c->raw, n, page + j);
    }
    tern_attn_codes_softmax(u, c, i, n, page, n_pages, attn_first_token(u, page));
    tern_k.attn16.accum(c->o + (size_t)i * dv, c->codes.w, c->codes.unit, c->shrink, c->codes.v, kv->v.dim, n_pages, n);
}

static void code_pages(const struct attn_unit *u, struct attn_scratch *c, int begin, int end)
{
    const struct tern_kv_side *k = &u->step->kv->k;
    if (begin < end) {
        tern_attn_wide_queries(u, c);
        tern_k.attn16.pack(c->codes.x, c->codes.x_scale, c->x, tern_kv_table(k->codec), k->dim, u->n_q);
    }
    for (int page = begin, next; page < end; page = next) {
        next = tern_attn_group_end(page, end);
        expand_group(u, c, page, next - page);
        for (int i = 0; i < u->n_q; i += ATTN_BAND)
            attend_band(u, c, page, next - page, i, u->n_q - i < ATTN_BAND ? u->n_q - i : ATTN_BAND);
    }
}
_Static_assert(ATTN_BAND *TERN_SOFTMAX_PAGES <= ATTN_SCORES && ATTN_BAND <= ATTN_SUB, "scores have room");

const struct attn_kind tern_attn_codes = {.pages = code_pages, .sinks = tern_attn_sinks, .raw = tern_attn_raw};
