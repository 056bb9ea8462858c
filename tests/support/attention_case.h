/* One attention layer and sequences in it, the float64 attention they are compared with, and everything that may not
 * change a row's result: how jobs are cut, what else is in the batch, threads, pages outside its window.  Shared by the
 * attention tests. */
#ifndef TERN_TEST_ATTENTION_CASE_H
#define TERN_TEST_ATTENTION_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/cpu.h"
#include "base/fp16.h"
#include "base/mem.h"
#include "base/rng.h"
#include "dev/cpu/attention_job.h"

#define MAX_THREADS 5
#define TILE_OFF    192 /* job->tile_layer_off of the test */
#define GARBAGE     7.5f

static struct tern_pool *pools[MAX_THREADS + 1];

static inline void *grab(size_t n, size_t size)
{
    void *p;
    assert_int_equal(tern_alloc(&p, n, size, NULL), 0);
    return p;
}

static inline float gauss(struct tern_rng *r)
{
    double u = 1.0 - tern_rng_f64(r), v = tern_rng_f64(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

/* ---- a scheme of the test's own: codes that lose nothing ---------------------------------------------------------
 *
 * "mirror" stores f32 with the dims reversed, values doubled and queries reversed: every function of a codec has to be
 * called, on the right rows and exactly once, or the result is plainly wrong; and yet the error is that of f32. */

static inline bool mirror_accepts(int dim, const char **why)
{
    (void)dim;
    (void)why;
    return true;
}

static inline size_t mirror_data_bytes(int dim)
{
    return (size_t)dim * TERN_PAGE * 4;
}

static inline size_t mirror_head_bytes(int dim)
{
    (void)dim;
    return 128;
}

static inline float tile_value(const struct tern_kv_side *side, const void *tile, size_t i)
{
    return side->raw32 ? ((const float *)tile)[i] : tern_f16_to_f32(((const uint16_t *)tile)[i]);
}

static inline void mirror_encode(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile,
                                 int pos0, void *scratch)
{
    assert_int_equal(pos0 % TERN_PAGE, 0);
    float *out = (float *)(void *)data;
    size_t dim = (size_t)side->dim;
    (void)scratch;
    for (size_t t = 0; t < TERN_PAGE; t++) {
        head[t] = (uint16_t)(1000 + t);
        for (size_t d = 0; d < dim; d++)
            if (side->key)
                out[(dim - 1 - d) * TERN_PAGE + t] = tile_value(side, tile, d * TERN_PAGE + t);
            else
                out[t * dim + dim - 1 - d] = 2 * tile_value(side, tile, t * dim + d);
    }
}

static inline void mirror_prep(const struct tern_kv_side *side, struct tern_kv_query *out, const float *x, int n_q,
                               bool narrow)
{
    for (int i = 0; i < n_q; i++) {
        for (int d = 0, e = side->dim - 1; d <= e; d++, e--) {
            const float a = x[i * side->dim + d], b = x[i * side->dim + e];
            out->x[i * side->dim + d] = b;
            out->x[i * side->dim + e] = a;
        }
        for (int b = 0; b < 4 && narrow; b++) {
            out->scale[i * 4 + b] = 1;
            out->sum[i * 4 + b] = i;
        }
    }
    if (narrow)
        memset(out->q, 1, (size_t)(n_q * side->dim));
}

static inline void mirror_score(const struct tern_kv_side *side, float *s, const struct tern_kv_query *q,
                                const uint8_t *data, const uint16_t *head, int n_q, const void *next)
{
    (void)next;
    assert_true(n_q >= 1 && n_q <= 16);
    assert_int_equal(head[5], 1005);
    for (int i = 0; i < n_q; i++)
        assert_int_equal(q->sum[i * 4 + 3], i);
    tern_k.attn.score_f32(s, q->x, (const float *)(const void *)data, side->dim, n_q);
}

static inline void mirror_accum(const struct tern_kv_side *side, float *o, const float *p, const uint8_t *data,
                                const uint16_t *head, const float *shrink, int n_q, const void *next)
{
    (void)next;
    assert_true(n_q >= 1 && n_q <= 16);
    assert_int_equal(head[63], 1063);
    tern_k.attn.accum_f32(o, p, (const float *)(const void *)data, shrink, side->dim, TERN_PAGE, n_q);
}

static inline void mirror_finish(const struct tern_kv_side *side, float *o, int n_q)
{
    for (int i = 0; i < n_q; i++)
        for (int d = 0; 2 * d < side->dim; d++) {
            float *a = &o[i * side->dim + d], *b = &o[i * side->dim + side->dim - 1 - d], t = *a;
            *a = 0.5f * *b;
            *b = 0.5f * t;
        }
}

static inline void mirror_enter(const struct tern_kv_side *side, float *x, int n, int pos0)
{
    const float times = side->key ? 2 : 4; /* mirror_finish halves */
    (void)pos0;
    mirror_finish(side, x, n);
    for (int i = 0; i < n * side->dim; i++)
        x[i] *= times;
}

static inline void mirror_decode(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head)
{
    assert_int_equal(head[1], 1001);
    memcpy(out, data, mirror_data_bytes(side->dim));
}

static const struct tern_kv_codec mirror = {
    .name = "mirror",
    .bits = 32,
    .accepts = mirror_accepts,
    .data_bytes = mirror_data_bytes,
    .head_bytes = mirror_head_bytes,
    .encode = mirror_encode,
    .prep = mirror_prep,
    .score = mirror_score,
    .accum = mirror_accum,
    .finish = mirror_finish,
    .enter = mirror_enter,
    .decode = mirror_decode,
};

/* ---- one layer, and sequences in it ------------------------------------------------------------------------------ */

struct config {
    const char *k, *v; /* schemes; "mirror" is the one above */
    bool coded32;      /* open tiles of coded sides in f32 */
    int n_kv, group, dk, dv;
    int first, window;
    bool chunked;
    float softcap;
    bool cond;  /* keys have a large mean and unequal channels, and are conditioned for it */
    int pairs;  /* of them also have a mean before the rotation */
    int recent; /* pages seen raw besides the own one */
    bool bf16;  /* wide rows on tiles */
    bool int16; /* wide rows in 16-bit integers where both sides are codes */
    bool keeps; /* the first tokens are seen whatever the window */
};

struct layer {
    struct config cfg;
    struct tern_kv_layer kv;
    struct tern_cpu_shape shape;
    float *sign_k, *sign_v;
    struct tern_kv_cond *cond; /* [n_kv] */
    float *cond_memory;
};

static const struct tern_kv_codec *find_codec(const char *name)
{
    const struct tern_kv_codec *c = strcmp(name, "mirror") ? tern_kv_codec_find(name, strlen(name)) : &mirror;
    assert_non_null(c);
    return c;
}

/* Dim j of pair f of a key with nothing but the mean of its pairs. */
static inline double pair_mean(const struct tern_kv_cond *c, int d, int pos)
{
    double x = 0;
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        double a = (double)p->freq * pos;
        if (d == p->a)
            x += (double)p->re * cos(a) - (double)p->im * sin(a);
        else if (d == p->b)
            x += (double)p->re * sin(a) + (double)p->im * cos(a);
    }
    return x;
}

/* The oldest token that a row at pos sees. */
static inline int oldest_seen(const struct tern_kv_layer *l, int pos)
{
    int window = l->reach.window, oldest = l->reach.chunked ? pos - pos % window : pos - window + 1;
    return window && oldest > 0 ? oldest : 0;
}

static inline void make_cond(struct layer *l)
{
    const struct config *cfg = &l->cfg;
    struct tern_rng r = {77};
    size_t dk = (size_t)cfg->dk;
    l->cond = grab((size_t)cfg->n_kv, sizeof *l->cond);
    l->cond_memory = grab(3 * dk * (size_t)cfg->n_kv, 4);
    for (int h = 0; h < cfg->n_kv; h++) {
        float *mean = l->cond_memory + 3 * dk * (size_t)h, *scale = mean + dk, *unscale = scale + dk;
        for (size_t d = 0; d < dk; d++) {
            mean[d] = 3 * gauss(&r);
            scale[d] = exp2f(gauss(&r));
            unscale[d] = 1 / scale[d];
        }
        struct tern_kv_cond *c = &l->cond[h];
        *c = (struct tern_kv_cond){.mean = mean, .scale = scale, .unscale = unscale, .n_pairs = cfg->pairs};
        for (int i = 0; i < cfg->pairs; i++)
            c->pairs[i] = (struct tern_kv_pair){
                .a = 3 * i, .b = 3 * i + 1 + h, .freq = 1.0f / (float)(i * i + 1), .re = 5 * gauss(&r), .im = 4};
        tern_kv_cond_turn(c);
    }
    l->kv.k.cond = l->cond;
}

static inline void layer_init(struct layer *l, const struct config *cfg)
{
    *l = (struct layer){.cfg = *cfg};
    struct tern_kv_layer *kv = &l->kv;
    l->sign_k = grab((size_t)cfg->dk, 4);
    l->sign_v = grab((size_t)cfg->dv, 4);
    tern_kv_signs(l->sign_k, cfg->dk, 3, true);
    tern_kv_signs(l->sign_v, cfg->dv, 3, false);
    kv->n_heads = cfg->n_kv;
    kv->reach = (struct tern_kv_reach){cfg->window, cfg->chunked, cfg->keeps ? cfg->first : 0};
    kv->k = (struct tern_kv_side){.codec = find_codec(cfg->k), .dim = cfg->dk, .key = true, .sign = l->sign_k};
    kv->v = (struct tern_kv_side){.codec = find_codec(cfg->v), .dim = cfg->dv, .sign = l->sign_v};
    kv->k.raw32 = kv->k.codec->raw ? kv->k.codec->bits == 32 : cfg->coded32;
    kv->v.raw32 = kv->v.codec->raw ? kv->v.codec->bits == 32 : cfg->coded32;
    if (cfg->cond)
        make_cond(l);
    kv->recent = 1 + cfg->recent;
    kv->ring = kv->recent + 1;
    kv->first = kv->k.codec->raw && kv->v.codec->raw ? kv->reach.first : cfg->first;
    size_t at = 0, ke = kv->k.raw32 ? 4 : 2, ve = kv->v.raw32 ? 4 : 2;
    kv->k_head_off = at, at += kv->k.codec->head_bytes(cfg->dk);
    kv->v_head_off = at, at += kv->v.codec->head_bytes(cfg->dv);
    kv->k_off = at, at += kv->k.codec->data_bytes(cfg->dk);
    kv->v_off = at, at += kv->v.codec->data_bytes(cfg->dv);
    kv->head_bytes = at + 64;
    kv->layer_off = 128;
    kv->tile_v_off = tern_round_up((size_t)cfg->dk * TERN_PAGE * ke, 64);
    kv->tile_bytes = kv->tile_v_off + (size_t)cfg->dv * TERN_PAGE * ve;
    kv->sink_v_off = tern_round_up((size_t)(cfg->dk * kv->first) * ke, 64);
    kv->sink_bytes = kv->sink_v_off + tern_round_up((size_t)(cfg->dv * kv->first) * ve, 64);
    kv->sink_layer_off = 320;
    l->shape = (struct tern_cpu_shape){.kv = kv,
                                       .n_heads = cfg->n_kv * cfg->group,
                                       .scale = 1.7f / sqrtf((float)cfg->dk),
                                       .softcap = cfg->softcap,
                                       .bf16 = cfg->bf16,
                                       .int16 = cfg->int16};
}

static inline void layer_clear(struct layer *l)
{
    tern_free(l->sign_k);
    tern_free(l->sign_v);
    tern_free(l->cond);
    tern_free(l->cond_memory);
}

struct seq {
    const struct layer *l;
    int n, n_pages; /* tokens; pages that are closed */
    float *k, *v;   /* [n][n_kv][dim] as the tiles hold them */
    float *ke, *ve; /* [n_pages * 64][n_kv][dim] as the closed pages hold them, in the model's domain */
    float *q;       /* [n][n_heads][dk] */
    uint8_t *tiles, *pages, *sink;
    uint32_t *table;
    struct tern_blocks page_mem; /* the pages by number */
    size_t tile_stride;
};

static inline float as_stored(const struct tern_kv_side *side, float x)
{
    return side->raw32 ? x : tern_f16_to_f32(tern_f32_to_f16(x));
}

static inline void put(const struct tern_kv_side *side, void *p, size_t i, float x)
{
    if (side->raw32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = tern_f32_to_f16(x);
}

/* Raw tiles of all pages, garbage behind the last token. */
static inline void fill_tiles(struct seq *s)
{
    const struct tern_kv_layer *kv = &s->l->kv;
    size_t dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim, h_n = (size_t)kv->n_heads;
    for (size_t t = 0; t < (size_t)(s->n_pages + 1) * TERN_PAGE; t++)
        for (size_t h = 0; h < h_n; h++) {
            uint8_t *tile = s->tiles + t / TERN_PAGE * s->tile_stride + TILE_OFF + h * kv->tile_bytes;
            bool real = t < (size_t)s->n;
            for (size_t d = 0; d < dk; d++)
                put(&kv->k, tile, d * TERN_PAGE + t % TERN_PAGE, real ? s->k[(t * h_n + h) * dk + d] : GARBAGE);
            for (size_t d = 0; d < dv; d++)
                put(&kv->v, tile + kv->tile_v_off, t % TERN_PAGE * dv + d,
                    real ? s->v[(t * h_n + h) * dv + d] : GARBAGE);
        }
}

static inline void close_pages(struct seq *s)
{
    const struct tern_kv_layer *kv = &s->l->kv;
    void *scratch = grab(TERN_KV_SCRATCH, 1);
    for (int p = 0; p < s->n_pages; p++)
        for (size_t h = 0; h < (size_t)kv->n_heads; h++) {
            const uint8_t *tile = s->tiles + (size_t)p * s->tile_stride + TILE_OFF + h * kv->tile_bytes;
            uint8_t *page = tern_block_at(s->page_mem, s->table[p]) + kv->layer_off + h * kv->head_bytes;
            struct tern_kv_side k = tern_kv_side_of(&kv->k, (int)h);
            k.codec->encode(&k, page + kv->k_off, (uint16_t *)(void *)(page + kv->k_head_off), tile, p * TERN_PAGE,
                            scratch);
            kv->v.codec->encode(&kv->v, page + kv->v_off, (uint16_t *)(void *)(page + kv->v_head_off),
                                tile + kv->tile_v_off, p * TERN_PAGE, scratch);
        }
    tern_free(scratch);
}

static inline void fill_sink(struct seq *s)
{
    const struct tern_kv_layer *kv = &s->l->kv;
    size_t dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim, h_n = (size_t)kv->n_heads, first = (size_t)kv->first;
    for (size_t h = 0; h < h_n; h++)
        for (size_t t = 0; t < first; t++) {
            uint8_t *p = s->sink + kv->sink_layer_off + h * kv->sink_bytes;
            for (size_t d = 0; d < dk; d++)
                put(&kv->k, p, d * first + t, s->k[(t * h_n + h) * dk + d]);
            for (size_t d = 0; d < dv; d++)
                put(&kv->v, p + kv->sink_v_off, t * dv + d, s->v[(t * h_n + h) * dv + d]);
        }
}

/* What the codes of a closed page mean.  Keys: prep is linear and keeps dot products, so dim j of a key is its product
 * with the prepared unit vector j, plus what conditioning took away.  Values: finish brings them back. */
static inline void decode_pages(struct seq *s)
{
    const struct tern_kv_layer *kv = &s->l->kv;
    size_t dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim, h_n = (size_t)kv->n_heads;
    float *unit = grab(dk * dk, 4), *k = grab(dk * TERN_PAGE, 4), *v = grab(dv * TERN_PAGE, 4);
    struct tern_kv_query q = {.x = grab(dk * dk, 4)};
    for (size_t j = 0; j < dk; j++)
        unit[j * dk + j] = 1;
    for (size_t p = 0; p < (size_t)s->n_pages; p++)
        for (size_t h = 0; h < h_n; h++) {
            struct tern_kv_side side = tern_kv_side_of(&kv->k, (int)h);
            side.codec->prep(&side, &q, unit, (int)dk, false);
            const uint8_t *page = tern_block_at(s->page_mem, s->table[p]) + kv->layer_off + h * kv->head_bytes;
            kv->k.codec->decode(&kv->k, k, page + kv->k_off, (const uint16_t *)(const void *)(page + kv->k_head_off));
            kv->v.codec->decode(&kv->v, v, page + kv->v_off, (const uint16_t *)(const void *)(page + kv->v_head_off));
            kv->v.codec->finish(&kv->v, v, TERN_PAGE);
            for (size_t t = 0; t < TERN_PAGE; t++) {
                size_t at = (p * TERN_PAGE + t) * h_n + h;
                memcpy(s->ve + at * dv, v + t * dv, dv * 4);
                for (size_t j = 0; j < dk; j++) {
                    double x = 0;
                    for (size_t d = 0; d < dk; d++)
                        x += (double)q.x[j * dk + d] * (double)k[d * TERN_PAGE + t];
                    if (side.cond)
                        x += (double)side.cond->mean[j] + pair_mean(side.cond, (int)j, (int)(p * TERN_PAGE + t));
                    s->ke[at * dk + j] = (float)x;
                }
            }
        }
    tern_free(unit);
    tern_free(k);
    tern_free(v);
    tern_free(q.x);
}

static inline void seq_init(struct seq *s, const struct layer *l, int n, uint64_t seed)
{
    const struct tern_kv_layer *kv = &l->kv;
    size_t h_n = (size_t)kv->n_heads, dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim;
    struct tern_rng r = {seed};
    *s = (struct seq){.l = l, .n = n, .n_pages = n / TERN_PAGE};
    size_t pages = (size_t)s->n_pages + 1, page_bytes = kv->layer_off + h_n * kv->head_bytes + 64;
    s->k = grab((size_t)n * h_n * dk, 4);
    s->v = grab((size_t)n * h_n * dv, 4);
    s->q = grab((size_t)n * (size_t)l->shape.n_heads * dk, 4);
    for (size_t i = 0; i < (size_t)n * h_n * dk; i++) {
        const struct tern_kv_cond *c = kv->k.cond ? kv->k.cond + i / dk % h_n : NULL;
        float x = gauss(&r);
        if (c)
            x = x * c->unscale[i % dk] + c->mean[i % dk] + (float)pair_mean(c, (int)(i % dk), (int)(i / dk / h_n));
        s->k[i] = as_stored(&kv->k, x);
    }
    for (size_t i = 0; i < (size_t)n * h_n * dv; i++)
        s->v[i] = as_stored(&kv->v, gauss(&r));
    for (size_t i = 0; i < (size_t)n * (size_t)l->shape.n_heads * dk; i++)
        s->q[i] = gauss(&r);
    s->tile_stride = TILE_OFF + h_n * kv->tile_bytes + 128;
    s->tiles = grab(pages, s->tile_stride);
    s->pages = grab(pages, page_bytes);
    s->table = grab(pages, sizeof *s->table);
    s->page_mem = (struct tern_blocks){s->pages, page_bytes};
    for (size_t p = 0; p < (size_t)s->n_pages; p++) /* pages of a pool come in any order */
        s->table[p] = (uint32_t)(pages - 1 - p);
    fill_tiles(s);
    close_pages(s);
    s->ke = grab((size_t)s->n_pages * TERN_PAGE * h_n * dk, 4);
    s->ve = grab((size_t)s->n_pages * TERN_PAGE * h_n * dv, 4);
    decode_pages(s);
    if (kv->first && s->n_pages) {
        s->sink = grab(kv->sink_layer_off + h_n * kv->sink_bytes, 1);
        fill_sink(s);
    }
}

static inline void seq_clear(struct seq *s)
{
    void *all[] = {s->k, s->v, s->ke, s->ve, s->q, s->tiles, s->pages, s->sink, s->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

struct span {
    const struct seq *s;
    int pos, n;
    bool wide, trim; /* trim: give only the pages that the window needs */
};

/* The raw tiles before page `own`, as a sequence keeps them; the others are garbage. */
static inline uint8_t *make_ring(const struct seq *s, int own)
{
    const struct tern_kv_layer *kv = &s->l->kv;
    size_t heads = (size_t)kv->n_heads * kv->tile_bytes;
    uint8_t *ring = grab((size_t)kv->ring, heads);
    memset(ring, 0x7E, (size_t)kv->ring * heads);
    for (int p = own - kv->recent + 1 > 0 ? own - kv->recent + 1 : 0; p < own; p++)
        memcpy(ring + (size_t)(p % kv->ring) * heads, s->tiles + (size_t)p * s->tile_stride + TILE_OFF, heads);
    return ring;
}

static inline struct tern_attn_job make_job(const struct span *sp, int row0)
{
    const struct seq *s = sp->s;
    struct tern_attn_job j = {.row0 = row0,
                              .n_rows = sp->n,
                              .pos0 = sp->pos,
                              .wide = sp->wide,
                              .pages = s->table,
                              .page_mem = s->page_mem,
                              .n_pages = s->n_pages,
                              .sink = s->sink,
                              .tile_base = s->tiles,
                              .tile_stride = s->tile_stride,
                              .tile_layer_off = TILE_OFF};
    if (sp->trim) {
        int own = sp->pos / TERN_PAGE, last = (sp->pos + sp->n - 1) / TERN_PAGE;
        int first = oldest_seen(&s->l->kv, sp->pos) / TERN_PAGE;
        j.first_page = first;
        j.pages = s->table + first;
        j.n_pages = last - first > 0 ? last - first : 0;
        j.tile_first = own;
        j.tile_base = s->tiles + (size_t)own * s->tile_stride;
        j.ring = make_ring(s, own);
    }
    return j;
}

/* out: rows of all spans, densely, [n_heads * dv] each. */
static inline void run(float *out, const struct span *spans, int n_spans, int threads)
{
    const struct layer *l = spans[0].s->l;
    size_t q_width = (size_t)(l->shape.n_heads * l->kv.k.dim), o_width = (size_t)(l->shape.n_heads * l->kv.v.dim);
    size_t q_stride = tern_round_up(q_width, 16) + 16, o_stride = tern_round_up(o_width, 16) + 32;
    int rows = 0, narrow = 0, pages = 0;
    for (int i = 0; i < n_spans; i++) {
        rows += spans[i].n;
        narrow += spans[i].wide ? 0 : spans[i].n;
        pages = spans[i].s->n_pages > pages ? spans[i].s->n_pages : pages;
    }
    float *q = grab((size_t)rows * q_stride, 4), *o = grab((size_t)rows * o_stride, 4);
    struct tern_attn_job *jobs = grab((size_t)n_spans, sizeof *jobs);
    int row = 0;
    for (int i = 0; i < n_spans; i++) {
        jobs[i] = make_job(&spans[i], row);
        for (int r = 0; r < spans[i].n; r++, row++)
            memcpy(q + (size_t)row * q_stride, spans[i].s->q + (size_t)(spans[i].pos + r) * q_width, q_width * 4);
    }
    struct tern_attn_scratch scratch;
    scratch.bytes = tern_cpu_attention_scratch(&l->shape, threads, rows, narrow, pages);
    scratch.p = grab(scratch.bytes, 1);
    memset(scratch.p, 0xFF, scratch.bytes); /* NaN: nothing may be read before it is written */
    for (size_t i = 0; i < (size_t)rows * o_stride; i++)
        o[i] = GARBAGE;
    if (rows <= 16) { /* what a call leaves in its scratch is nothing to the next one */
        float *others = grab((size_t)rows * q_stride, 4);
        tern_cpu_attend(pools[threads], &l->shape, jobs, n_spans, others, q_stride, o, o_stride, scratch);
        tern_free(others);
    }
    tern_cpu_attend(pools[threads], &l->shape, jobs, n_spans, q, q_stride, o, o_stride, scratch);
    for (int r = 0; r < rows; r++) {
        memcpy(out + (size_t)r * o_width, o + (size_t)r * o_stride, o_width * 4);
        for (size_t i = o_width; i < o_stride; i++)
            assert_true(o[(size_t)r * o_stride + i] == GARBAGE);
    }
    for (int i = 0; i < n_spans; i++)
        tern_free((void *)(uintptr_t)jobs[i].ring);
    tern_free(q);
    tern_free(o);
    tern_free(jobs);
    tern_free(scratch.p);
}

/* ---- the oracle -------------------------------------------------------------------------------------------------- */

/* Attention of the row at `pos` in double: over what pages, sinks and tile hold, or over the original values. */
static inline void oracle(double *out, const struct seq *s, int pos, bool original)
{
    const struct layer *l = s->l;
    size_t h_n = (size_t)l->kv.n_heads, dk = (size_t)l->kv.k.dim, dv = (size_t)l->kv.v.dim;
    int t0 = oldest_seen(&l->kv, pos);
    int from = original ? pos + 1 : l->kv.first;
    int to = (pos / TERN_PAGE - l->kv.recent + 1) * TERN_PAGE; /* coded tokens: from .. to */
    double *p = grab((size_t)pos + 1, sizeof *p);
    for (int head = 0; head < l->shape.n_heads; head++) {
        const float *q = s->q + ((size_t)pos * (size_t)l->shape.n_heads + (size_t)head) * dk;
        size_t h = (size_t)(head / l->cfg.group);
        double top = -INFINITY, sum = 0;
        for (int t = 0; t <= pos; t++) {
            p[t] = -INFINITY;
            if (t < t0 && t >= l->kv.reach.first)
                continue;
            const float *k = (t >= from && t < to ? s->ke : s->k) + ((size_t)t * h_n + h) * dk;
            double x = 0;
            for (size_t d = 0; d < dk; d++)
                x += (double)q[d] * (double)k[d];
            x *= (double)l->shape.scale;
            if (l->shape.softcap > 0)
                x = (double)l->shape.softcap * tanh(x / (double)l->shape.softcap);
            p[t] = x;
            top = x > top ? x : top;
        }
        for (int t = 0; t <= pos; t++)
            sum += p[t] = exp(p[t] - top);
        memset(out + (size_t)head * dv, 0, dv * sizeof *out);
        for (int t = 0; t <= pos; t++) {
            const float *v = (t >= from && t < to ? s->ve : s->v) + ((size_t)t * h_n + h) * dv;
            for (size_t d = 0; d < dv; d++)
                out[(size_t)head * dv + d] += p[t] / sum * (double)v[d];
        }
    }
    tern_free(p);
}

struct budget {
    double rel, most; /* root mean square error over that of the oracle; largest error */
};

static inline void check_row(const float *got, const struct seq *s, int pos, struct budget b)
{
    size_t n = (size_t)(s->l->shape.n_heads * s->l->kv.v.dim);
    double *want = grab(n, sizeof *want), e2 = 0, w2 = 0, most = 0;
    oracle(want, s, pos, false);
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        e2 += e * e;
        w2 += want[i] * want[i];
        most = e > most || isnan(e) ? e : most;
    }
    if (!(sqrt(e2 / w2) <= b.rel && most <= b.most)) {
        const struct config *c = &s->l->cfg;
        fail_msg("k=%s v=%s kv heads %d x %d dims %d/%d window %d cap %g length %d row %d: rms error %.3g of %.3g, "
                 "largest %.3g of %.3g",
                 c->k, c->v, c->n_kv, c->group, c->dk, c->dv, c->window, (double)c->softcap, s->n, pos, sqrt(e2 / w2),
                 b.rel, most, b.most);
    }
    tern_free(want);
}

/* Rows [from, from + n) in one job, some of them checked. */
static inline void check_role(const struct seq *s, int from, int n, bool wide, struct budget b)
{
    size_t width = (size_t)(s->l->shape.n_heads * s->l->kv.v.dim);
    float *out = grab((size_t)n * width, 4);
    struct span sp = {.s = s, .pos = from, .n = n, .wide = wide};
    run(out, &sp, 1, 2);
    for (int i = 0; i < n; i++)
        if (i < 2 || i == n - 1 || i % 61 == 17)
            check_row(out + (size_t)i * width, s, from + i, b);
    tern_free(out);
}

static inline void check_rows(const struct seq *s, int from, int n, struct budget b)
{
    check_role(s, from, n, true, b);
    check_role(s, from, n, false, b);
}

static inline void same(const float *a, const float *b, size_t n, const char *what, const struct config *c)
{
    if (!memcmp(a, b, n * 4))
        return;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], 4))
            fail_msg("%s (k=%s v=%s group %d): element %zu is %.9g and %.9g", what, c->k, c->v, c->group, i,
                     (double)a[i], (double)b[i]);
}

/* All ways to cut the same rows, thread counts, company in the batch, trimmed page tables. */
static inline void check_invariance(const struct seq *s, const struct seq *other, int from, int n)
{
    const struct config *c = &s->l->cfg;
    size_t width = (size_t)(s->l->shape.n_heads * s->l->kv.v.dim);
    float *want = grab((size_t)n * width, 4), *got = grab((size_t)(n + 80) * width, 4);
    struct span *spans = grab((size_t)n + 2, sizeof *spans);
    for (int wide = 0; wide < 2; wide++) {
        struct span whole = {.s = s, .pos = from, .n = n, .wide = wide};
        run(want, &whole, 1, 1);
        for (int t = 2; t <= MAX_THREADS; t += 3) {
            run(got, &whole, 1, t);
            same(got, want, (size_t)n * width, "threads", c);
        }
        whole.trim = true;
        run(got, &whole, 1, 2);
        same(got, want, (size_t)n * width, "trimmed table", c);
        for (int step = 1; step < n; step = 3 * step + 2) { /* jobs of 1, 5, 17, 53 ... rows, in one batch */
            int n_spans = 0;
            for (int i = 0; i < n; i += step)
                spans[n_spans++] = (struct span){s, from + i, n - i < step ? n - i : step, wide, n_spans % 2};
            run(got, spans, n_spans, 2);
            same(got, want, (size_t)n * width, "cut into jobs", c);
        }
        /* Between rows of another sequence, of both roles. */
        int half = n / 2, o_n = other->n < 40 ? other->n : 40;
        struct span mixed[4] = {{other, other->n - o_n, o_n, !wide, false},
                                {s, from, half, wide, false},
                                {other, 0, o_n, wide, true},
                                {s, from + half, n - half, wide, true}};
        run(got, mixed, half ? 4 : 1, 3);
        if (half) {
            same(got + (size_t)o_n * width, want, (size_t)half * width, "mixed batch", c);
            same(got + (size_t)(half + 2 * o_n) * width, want + (size_t)half * width, (size_t)(n - half) * width,
                 "mixed batch", c);
        }
    }
    tern_free(want);
    tern_free(got);
    tern_free(spans);
}

/* A sequence, and another that is in a batch with it. */
struct two {
    struct layer l;
    struct seq s, other;
};

static inline void two_init(struct two *t, const struct config *cfg, int n, int n_other, uint64_t seed)
{
    layer_init(&t->l, cfg);
    seq_init(&t->s, &t->l, n, seed);
    seq_init(&t->other, &t->l, n_other, seed + 1);
}

static inline void two_clear(struct two *t)
{
    seq_clear(&t->s);
    seq_clear(&t->other);
    layer_clear(&t->l);
}

static const struct budget tight = {2e-6, 1e-5};

/* Rows from `from` on, in both roles, of a sequence of n. */
static inline void both_roles(const struct config *cfg, int n, int from, struct budget wide, struct budget narrow)
{
    struct layer l;
    struct seq s;
    layer_init(&l, cfg);
    seq_init(&s, &l, n, (uint64_t)n * 77 + (uint64_t)cfg->group);
    check_role(&s, from, n - from, true, wide);
    check_role(&s, from, n - from, false, narrow);
    seq_clear(&s);
    layer_clear(&l);
}

static inline void one_config(const struct config *cfg, int n, int from, struct budget b)
{
    both_roles(cfg, n, from, b, b);
}

/* Root mean square error of narrow rows against attention over the original values, over that attention. */
static inline double scheme_error(const struct seq *s, int from, int n)
{
    size_t width = (size_t)(s->l->shape.n_heads * s->l->kv.v.dim);
    float *out = grab((size_t)n * width, 4);
    double *want = grab(width, sizeof *want), e2 = 0, w2 = 0;
    struct span sp = {.s = s, .pos = from, .n = n};
    run(out, &sp, 1, 2);
    for (int r = 0; r < n; r += 3) {
        oracle(want, s, from + r, true);
        for (size_t i = 0; i < width; i++) {
            double e = (double)out[(size_t)r * width + i] - want[i];
            e2 += e * e;
            w2 += want[i] * want[i];
        }
    }
    tern_free(out);
    tern_free(want);
    return sqrt(e2 / w2);
}

static inline int setup(void **state)
{
    (void)state;
    tern_kernels_init(~0u);
    for (int i = 1; i <= MAX_THREADS; i++)
        if (tern_pool_new(&pools[i], i, 0, NULL) < 0)
            return -1;
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    for (int i = 1; i <= MAX_THREADS; i++)
        tern_pool_free(pools[i]);
    return 0;
}

#endif
