/* The steps that wide and narrow units share: queries, masks, and everything after the last closed page. */
#include "dev/cpu/attention.h"

#include <string.h>
#include "base/err.h"
#include "base/fp16.h"

static int row_pos(const struct attn_unit *u, int i)
{
    return u->block->pos0 + i / u->heads;
}

/* Dims [from, from + dim) of q rows whose heads have q_dim. */
static void load_part(const struct attn_unit *u, float *dst, int i0, int n, size_t q_dim, size_t from, size_t dim)
{
    const struct attn_step *step = u->step;
    const float scale = step->q_scale;
    for (int i = i0; i < i0 + n; i++, dst += dim) {
        size_t row = (size_t)(u->block->job->row0 + u->block->row0 + i / u->heads);
        const float *src = step->q + row * step->q_stride + (size_t)(u->head0 + i % u->heads) * q_dim + from;
        tern_k.vec.scale(dst, src, scale, (int)dim);
    }
}

void tern_attn_load_q(const struct attn_unit *u, float *dst, int i0, int n)
{
    const struct tern_kv_layer *kv = u->step->kv;
    size_t before = kv->latent ? (size_t)kv->v.dim : 0, dim = (size_t)kv->k.dim;
    load_part(u, dst, i0, n, before + dim, before, dim);
}

void tern_attn_load_latent(const struct attn_unit *u, float *dst, int i0, int n)
{
    const struct tern_kv_layer *kv = u->step->kv;
    load_part(u, dst, i0, n, (size_t)kv->v.dim + (size_t)kv->k.dim, 0, (size_t)kv->v.dim);
}

const uint8_t *tern_attn_page(const struct attn_unit *u, int page)
{
    const struct tern_attn_job *job = u->block->job;
    const struct tern_kv_layer *kv = u->step->kv;
    TERN_ASSERT(page >= job->first_page && page < job->first_page + job->n_pages);
    const uint8_t *p = tern_block_at(job->page_mem, job->pages[page - job->first_page]);
    return p + kv->layer_off + (size_t)u->kv_head * kv->head_bytes;
}

/* Tokens [*t0, *t1) of the pages from `page` on that a row at pos sees, of [lo, hi). */
static void seen(const struct attn_unit *u, int pos, int page, int lo, int hi, int *t0, int *t1)
{
    int oldest = tern_kv_oldest(u->step->kv->reach, pos) - page * TERN_PAGE;
    *t1 = page == u->block->own && pos % TERN_PAGE + 1 < hi ? pos % TERN_PAGE + 1 : hi;
    *t0 = oldest > lo ? oldest : lo;
    /* The raw first tokens, or the tile of page 0, which lies in the window for as long as it is seen. */
    if (page == 0 && lo < u->step->kv->reach.first)
        *t0 = lo;
    if (*t0 > *t1)
        *t0 = *t1;
}

static void cap_scores(const struct attn_unit *u, float *s, size_t stride, int n_pages)
{
    for (int j = 0; j < n_pages && u->step->cap > 0; j++)
        tern_k.vec.softcap(s + (size_t)j * stride, s + (size_t)j * stride, u->step->cap, TERN_PAGE);
}

void tern_attn_softmax(const struct attn_unit *u, struct attn_scratch *c, int i0, int n, int page, int n_pages, int lo,
                       int hi, const void *next)
{
    const size_t stride = (size_t)n * TERN_PAGE;
    for (int i = 0; i < n; i++) {
        float *s = c->s + (size_t)i * TERN_PAGE;
        int t0, t1;
        if (next && i < ATTN_FETCHES)
            tern_attn_fetch((const uint8_t *)next + i * ATTN_FETCH, ATTN_FETCH);
        seen(u, row_pos(u, i0 + i), page, lo, hi, &t0, &t1);
        cap_scores(u, s, stride, n_pages);
        c->shrink[i] = tern_k.attn.softmax(s, stride, n_pages, t0, t1, &c->m[i0 + i], &c->l[i0 + i]);
    }
}

void tern_attn_tile_softmax(const struct attn_unit *u, struct attn_scratch *c, int i0, int n, int page, int n_pages,
                            int lo)
{
    const size_t stride = (size_t)n * TERN_PAGE;
    const int firsts_seen = page == 0 ? tern_attn_firsts_seen(u) : 0;
    int t0[TERN_BAND], t1[TERN_BAND], head = i0 % u->heads, pos = row_pos(u, i0);
    TERN_ASSERT(n <= TERN_BAND);
    for (int i = 0; i < n; i++) {
        if (i == 0 || head == 0) {
            seen(u, pos, page, i0 + i < firsts_seen ? 0 : lo, n_pages * TERN_PAGE, &t0[i], &t1[i]);
        } else { /* the heads of a row see the same */
            t0[i] = t0[i - 1];
            t1[i] = t1[i - 1];
        }
        if (++head == u->heads) {
            head = 0;
            pos++;
        }
        cap_scores(u, c->s + (size_t)i * TERN_PAGE, stride, n_pages);
    }
    tern_k.bf16.softmax(c->p16, c->s, stride, n_pages, n, t0, t1, c->m + i0, c->l + i0, c->shrink);
}

void tern_attn_codes_softmax(const struct attn_unit *u, struct attn_scratch *c, int i0, int n, int page, int n_pages,
                             int lo)
{
    const size_t stride = (size_t)n * TERN_PAGE;
    const struct tern_kv_side *v = &u->step->kv->v;
    const size_t blocks = (size_t)tern_kvq_blocks(v->dim), weights = blocks * (size_t)n_pages * TERN_PAGE;
    for (int i = 0; i < n; i++) {
        float *s = c->s + (size_t)i * TERN_PAGE;
        int t0, t1;
        seen(u, row_pos(u, i0 + i), page, lo, n_pages * TERN_PAGE, &t0, &t1);
        cap_scores(u, s, stride, n_pages);
        c->shrink[i] = tern_k.attn16.softmax(c->codes.w + (size_t)i * weights, c->codes.unit + (size_t)i * blocks, s,
                                             stride, c->codes.v_scale, tern_kv_table(v->codec), v->dim, n_pages, t0, t1,
                                             &c->m[i0 + i], &c->l[i0 + i]);
    }
}

/* ---- conditioned keys ---- */

bool tern_attn_completes(const struct attn_unit *u)
{
    return u->key.cond && (u->key.cond->n_pairs || u->step->cap > 0);
}

void tern_attn_complete(const struct attn_unit *u, float *scores, const float *raw, int n, int page)
{
    const struct tern_kv_cond *cond = u->key.cond;
    const int dim = u->key.dim;
    if (cond->n_pairs)
        tern_kv_cond_pairs(cond, scores, raw, n, dim, page * TERN_PAGE);
    if (u->step->cap <= 0)
        return;
    float shift[ATTN_SUB];
    TERN_ASSERT(n <= ATTN_SUB);
    tern_kv_cond_shifts(cond, shift, raw, n, dim);
    for (int j = 0; j < n * TERN_PAGE; j++)
        scores[j] += shift[j / TERN_PAGE];
}

/* The coded tokens of all q rows move by q.mean against the raw ones that follow. */
static void add_mean(const struct attn_unit *u, struct attn_scratch *c)
{
    for (int i0 = 0; i0 < u->n_q; i0 += ATTN_SUB) {
        float shift[ATTN_SUB];
        int n = u->n_q - i0 < ATTN_SUB ? u->n_q - i0 : ATTN_SUB;
        tern_attn_load_q(u, c->raw, i0, n);
        tern_kv_cond_shifts(u->key.cond, shift, c->raw, n, u->key.dim);
        for (int i = 0; i < n; i++)
            c->m[i0 + i] += shift[i];
    }
}

int tern_attn_firsts_seen(const struct attn_unit *u)
{
    const struct tern_kv_layer *kv = u->step->kv;
    int n = attn_firsts_in_page(u) ? u->n_q : 0;
    while (kv->reach.first && n && tern_kv_oldest(kv->reach, row_pos(u, n - 1)) > kv->first)
        n--;
    return n;
}

/* ---- sinks -------------------------------------------------------------------------------------------------- */

typedef float vec4 __attribute__((vector_size(16)));

/* Scores of n q rows against `first` tokens, keys k[dim][first4] with first4 a multiple of 4: per score one chain of
 * products and sums over ascending dims.  Four rows at a time hide the latency of the chain. */
static void sink_scores(float *s, const float *q, const float *k, int dim, int first4, int n)
{
    for (int i0 = 0; i0 < n; i0 += 4)
        for (int t = 0; t < first4; t += 4) {
            vec4 acc[4] = {0};
            int rows = n - i0 < 4 ? n - i0 : 4;
            const float *row[4];
            for (int r = 0; r < 4; r++) /* a missing row repeats the last one */
                row[r] = q + (size_t)(i0 + (r < rows ? r : rows - 1)) * (size_t)dim;
            for (int d = 0; d < dim; d++) {
                vec4 key;
                memcpy(&key, k + (size_t)d * (size_t)first4 + t, sizeof key);
                acc[0] += row[0][d] * key;
                acc[1] += row[1][d] * key;
                acc[2] += row[2][d] * key;
                acc[3] += row[3][d] * key;
            }
            for (int r = 0; r < rows; r++)
                memcpy(s + (size_t)(i0 + r) * TERN_PAGE + t, &acc[r], sizeof acc[r]);
        }
}

void tern_attn_sink_keys(float *out, const uint8_t *p, bool raw32, int dim, int first, int padded)
{
    if (first == padded && !raw32 && dim * first % 16 == 0) {
        tern_k.attn.f16_to_f32(out, (const uint16_t *)(const void *)p, (size_t)dim * (size_t)first);
        return;
    }
    for (int d = 0; d < dim; d++)
        for (int t = 0; t < padded; t++) {
            size_t at = (size_t)d * (size_t)first + (size_t)t;
            float x = 0;
            if (t < first)
                x = raw32 ? ((const float *)(const void *)p)[at]
                          : tern_f16_to_f32(((const uint16_t *)(const void *)p)[at]);
            *out++ = x;
        }
}

static void accum_raw(bool f32, float *o, const float *p, const void *v, const float *shrink, int dim, int n_tok, int n)
{
    if (f32)
        tern_k.attn.accum_f32(o, p, v, shrink, dim, n_tok, n);
    else
        tern_k.attn.accum_f16(o, p, v, shrink, dim, n_tok, n, NULL);
}

void tern_attn_sinks(const struct attn_unit *u, struct attn_scratch *c, const uint8_t *sink)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const int first4 = (kv->first + 3) / 4 * 4, dv = kv->v.dim;
    tern_attn_sink_keys(c->k, sink, kv->k.raw32, kv->k.dim, kv->first, first4);
    for (int i = tern_attn_firsts_seen(u); i < u->n_q; i += ATTN_SUB) {
        int n = u->n_q - i < ATTN_SUB ? u->n_q - i : ATTN_SUB;
        memset(c->s, 0, (size_t)n * TERN_PAGE * sizeof(float));
        tern_attn_load_q(u, c->raw, i, n);
        sink_scores(c->s, c->raw, c->k, kv->k.dim, first4, n);
        tern_attn_softmax(u, c, i, n, 0, 1, 0, kv->first, NULL);
        accum_raw(kv->v.raw32, c->o + (size_t)i * (size_t)dv, c->s, sink + kv->sink_v_off, c->shrink, dv, kv->first, n);
    }
}

/* ---- raw tiles -------------------------------------------------------------------------------------------------- */

static const uint8_t *raw_tile(const struct attn_unit *u, int page)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const struct tern_attn_job *job = u->block->job;
    const uint8_t *heads = job->ring + (size_t)(page % kv->ring) * (size_t)kv->n_heads * kv->tile_bytes;
    if (page >= job->tile_first)
        heads = job->tile_base + (size_t)(page - job->tile_first) * job->tile_stride + job->tile_layer_off;
    return heads + (size_t)u->kv_head * kv->tile_bytes;
}

void tern_attn_raw(const struct attn_unit *u, struct attn_scratch *c, int page, const uint8_t *tile)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const int dk = kv->k.dim, dv = kv->v.dim;
    const void *keys = tile, *values = tile + kv->tile_v_off;
    bool k32 = kv->k.raw32, v32 = kv->v.raw32;
    /* Many q rows are worth a conversion; the results are the same bits either way. */
    if (!k32 && u->n_q > ATTN_NARROW) {
        tern_k.attn.f16_to_f32(c->k, keys, (size_t)dk * TERN_PAGE);
        keys = c->k;
        k32 = true;
    }
    if (!v32 && u->n_q > ATTN_NARROW) {
        tern_k.attn.f16_to_f32(c->v, values, (size_t)dv * TERN_PAGE);
        values = c->v;
        v32 = true;
    }
    for (int i = 0; i < u->n_q; i += ATTN_SUB) {
        int n = u->n_q - i < ATTN_SUB ? u->n_q - i : ATTN_SUB;
        int n_tok = page == u->block->own ? row_pos(u, i + n - 1) % TERN_PAGE + 1 : TERN_PAGE;
        tern_attn_load_q(u, c->raw, i, n);
        if (k32)
            tern_k.attn.score_f32(c->s, c->raw, keys, dk, n);
        else
            tern_k.attn.score_f16(c->s, c->raw, keys, dk, n, values);
        tern_attn_softmax(u, c, i, n, page, 1, 0, TERN_PAGE, NULL);
        accum_raw(v32, c->o + (size_t)i * (size_t)dv, c->s, values, c->shrink, dv, n_tok, n);
    }
}

/* Tiles are made of f32. */
void tern_attn_raw_tiles(const struct attn_unit *u, struct attn_scratch *c, int page, const uint8_t *tile)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const float *keys = (const float *)(const void *)tile,
                *values = (const float *)(const void *)(tile + kv->tile_v_off);
    if (!kv->k.raw32) {
        tern_k.attn.f16_to_f32(c->k, (const uint16_t *)(const void *)keys, (size_t)kv->k.dim * TERN_PAGE);
        keys = c->k;
    }
    if (!kv->v.raw32) {
        tern_k.attn.f16_to_f32(c->v, (const uint16_t *)(const void *)values, (size_t)kv->v.dim * TERN_PAGE);
        values = c->v;
    }
    tern_attn_tile_page(u, c, 0, 1, keys, values);
    for (int i = 0; i < u->n_q; i += TERN_BAND) {
        int n = u->n_q - i < TERN_BAND ? u->n_q - i : TERN_BAND;
        tern_attn_load_q(u, c->raw, i, n);
        tern_attn_tile_band(u, c, page, 1, c->raw, i, n, false);
    }
}

static void attend_sinks(const struct attn_unit *u, struct attn_scratch *c)
{
    const struct tern_kv_layer *kv = u->step->kv;
    TERN_ASSERT(u->block->job->sink && kv->first <= TERN_PAGE);
    u->kind->sinks(u, c, u->block->job->sink + kv->sink_layer_off + (size_t)u->kv_head * kv->sink_bytes);
}

/* Adding +0 turns -0 into +0: the sign of a zero sum is the one thing that terms with weight 0 can change. */
static void write_out(const struct attn_unit *u, const struct attn_scratch *c)
{
    const struct attn_step *step = u->step;
    size_t dim = (size_t)step->kv->v.dim;
    const float *o = c->o;
    for (int i = 0; i < u->n_q; i++) {
        size_t row = (size_t)(u->block->job->row0 + u->block->row0 + i / u->heads);
        float *dst = step->out + row * step->out_stride + (size_t)(u->head0 + i % u->heads) * dim;
        const float inv = 1.0f / c->l[i];
        size_t d = 0;
        for (; d + 4 <= dim; d += 4) { /* compilers make no vectors of what may overlap */
            vec4 sum;
            memcpy(&sum, o + d, sizeof sum);
            sum = sum * inv + 0.0f;
            memcpy(dst + d, &sum, sizeof sum);
        }
        for (; d < dim; d++)
            dst[d] = o[d] * inv + 0.0f;
        o += dim;
    }
}

void tern_attn_finish(const struct attn_unit *u, struct attn_scratch *c)
{
    const struct tern_kv_layer *kv = u->step->kv;
    if (u->key.cond && u->step->cap <= 0 && u->block->page0 < u->block->raw0)
        add_mean(u, c);
    if (!kv->v.codec->raw)
        kv->v.codec->finish(&kv->v, c->o, u->n_q);
    /* The window may have left the sinks behind, where they are not seen for good; it moves forward, so the first row
     * decides. */
    if (kv->first && tern_attn_firsts_seen(u) < u->n_q && u->block->own >= kv->recent &&
        (kv->reach.first || tern_kv_oldest(kv->reach, u->block->pos0) < kv->first))
        attend_sinks(u, c);
    for (int page = u->block->raw0; page <= u->block->own; page++)
        u->kind->raw(u, c, page, raw_tile(u, page));
    write_out(u, c);
}
