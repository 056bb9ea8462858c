/* One attention layer and its sequences on a device: what checks and timings of append and attention share.  A run
 * takes sequences through steps, by the device's operations alone, and brings home rows and blocks. */
#ifndef TERN_CHECKDEV_ATTN_CASE_H
#define TERN_CHECKDEV_ATTN_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "dev/dev.h"

struct config {
    const char *k, *v; /* schemes */
    int dk, dv, n_kv, group, first, window;
    bool chunked, coded32, latent, cond;
    bool turned;       /* heads are turned by a right angle before, which no arithmetic can round */
    int pairs, recent; /* recent: pages seen raw besides the own one */
    float softcap;
    int wild; /* share of vectors, in percent, that nobody should have in a cache */
};

struct layer {
    struct config cfg;
    struct tern_kv_layer kv;
    struct tern_attn_shape shape;
    float *constants;
    struct tern_kv_cond *cond;
};

/* Sequence s has len tokens; their numbers are functions of s and the position. */
struct seqs {
    int n, max;
    const int *len; /* NULL: rows are not brought home */
};

static inline void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline void *grab(size_t n, size_t size)
{
    void *p;
    if (tern_alloc(&p, n, size, NULL) < 0)
        fail("out of memory");
    return p;
}

/* Nearly normal: the sum of four 16-bit numbers. */
static inline float gauss(struct tern_rng *r)
{
    const uint64_t u = tern_rng_u64(r);
    const int sum = (int)(u & 0xFFFF) + (int)(u >> 16 & 0xFFFF) + (int)(u >> 32 & 0xFFFF) + (int)(u >> 48);
    return (float)(sum - 131070) * 2.6429e-5f;
}

static inline void case_cond(struct layer *l)
{
    const struct config *cfg = &l->cfg;
    struct tern_rng r = {77};
    const size_t dk = (size_t)cfg->dk;
    float *at = l->constants + cfg->dk + cfg->dv;
    l->cond = grab((size_t)cfg->n_kv, sizeof *l->cond);
    for (int h = 0; h < cfg->n_kv; h++, at += 3 * dk) {
        for (size_t d = 0; d < dk; d++) {
            at[d] = 3 * gauss(&r);
            at[dk + d] = exp2f(gauss(&r));
            at[2 * dk + d] = 1 / at[dk + d];
        }
        struct tern_kv_cond *c = &l->cond[h];
        *c = (struct tern_kv_cond){.mean = at, .scale = at + dk, .unscale = at + 2 * dk, .n_pairs = cfg->pairs};
        for (int i = 0; i < cfg->pairs; i++)
            c->pairs[i] = (struct tern_kv_pair){
                .a = 3 * i, .b = 3 * i + 1 + h, .freq = 1.0f / (float)(i * i + 1), .re = 5 * gauss(&r), .im = 4};
        tern_kv_cond_turn(c);
    }
    l->kv.k.cond = l->cond;
}

static inline void case_places(struct tern_kv_layer *kv, const struct config *cfg)
{
    const size_t ke = kv->k.raw32 ? 4 : 2, ve = kv->v.raw32 ? 4 : 2;
    size_t at = 0;
    kv->k_head_off = at, at += kv->k.codec->head_bytes(cfg->dk);
    kv->v_head_off = at, at += kv->v.codec->head_bytes(cfg->dv);
    kv->k_off = at, at += kv->k.codec->data_bytes(cfg->dk);
    kv->v_off = at, at += kv->v.codec->data_bytes(cfg->dv);
    kv->head_bytes = at;
    kv->layer_off = 128;
    kv->tile_v_off = tern_round_up((size_t)cfg->dk * TERN_PAGE * ke, 64);
    kv->tile_bytes = kv->tile_v_off + tern_round_up((size_t)cfg->dv * TERN_PAGE * ve, 64);
    kv->tile_layer_off = 192;
    kv->sink_v_off = tern_round_up((size_t)(cfg->dk * kv->first) * ke, 64);
    kv->sink_bytes = kv->sink_v_off + tern_round_up((size_t)(cfg->dv * kv->first) * ve, 64);
    kv->sink_layer_off = 320;
}

static inline const struct tern_kv_codec *case_codec(const char *name)
{
    const struct tern_kv_codec *c = tern_kv_codec_find(name, strlen(name));
    if (!c)
        fail(name);
    return c;
}

static inline void layer_init(struct layer *l, const struct config *cfg)
{
    *l = (struct layer){.cfg = *cfg};
    struct tern_kv_layer *kv = &l->kv;
    l->constants = grab((size_t)(cfg->dk + cfg->dv + 3 * cfg->dk * cfg->n_kv), sizeof(float));
    tern_kv_signs(l->constants, cfg->dk, 3, true);
    tern_kv_signs(l->constants + cfg->dk, cfg->dv, 3, false);
    kv->n_heads = cfg->n_kv;
    kv->reach = (struct tern_kv_reach){.window = cfg->window, .chunked = cfg->chunked};
    kv->k = (struct tern_kv_side){.codec = case_codec(cfg->k), .dim = cfg->dk, .key = true, .sign = l->constants};
    kv->v = (struct tern_kv_side){.codec = case_codec(cfg->v), .dim = cfg->dv, .sign = l->constants + cfg->dk};
    kv->k.raw32 = kv->k.codec->raw ? kv->k.codec->bits == 32 : cfg->coded32;
    kv->v.raw32 = kv->v.codec->raw ? kv->v.codec->bits == 32 : cfg->coded32;
    kv->latent = cfg->latent;
    if (cfg->cond && !kv->k.codec->raw && !kv->k.codec->unconditioned)
        case_cond(l);
    kv->rate = 1;
    kv->recent = 1 + cfg->recent;
    kv->ring = kv->recent + 1;
    kv->first = kv->k.codec->raw && kv->v.codec->raw ? 0 : cfg->first;
    case_places(kv, cfg);
    l->shape = (struct tern_attn_shape){.n_heads = cfg->n_kv * cfg->group,
                                        .scale = 1.7f / sqrtf((float)(cfg->dk + (cfg->latent ? cfg->dv : 0))),
                                        .softcap = cfg->softcap};
}

static inline void layer_clear(struct layer *l)
{
    tern_free(l->constants);
    tern_free(l->cond);
}

/* ---- numbers ---- */

enum { CASE_K, CASE_V, CASE_Q };

static inline int case_width(const struct layer *l, int what)
{
    const struct config *c = &l->cfg;
    return what == CASE_K   ? c->n_kv * c->dk
           : what == CASE_V ? c->n_kv * c->dv
                            : l->shape.n_heads * (c->dk + (c->latent ? c->dv : 0));
}

/* Vectors that a cache may meet and that no encoder is made for. */
static inline void case_wild(float *x, int dim, struct tern_rng *r)
{
    const int kind = (int)(tern_rng_u64(r) % 10);
    for (int d = 0; d < dim; d++)
        switch (kind) {
        case 0:
            x[d] = d % 2 ? 0.0f : -0.0f;
            break;
        case 1:
            x[d] *= 30000;
            break;
        case 2:
            x[d] *= 1e-7f;
            break;
        case 3:
            x[d] = d ? 0 : 100;
            break;
        case 4:
            x[d] = 1;
            break;
        case 5:
            x[d] = d % 2 ? 1.0f : -1.0f;
            break;
        case 6:
            x[d] = d == 5 ? INFINITY : x[d];
            break;
        case 7:
            x[d] = d == 7 ? NAN : x[d];
            break;
        case 8:
            x[d] = (float)d - 3;
            break;
        default:
            x[d] = d % 16 ? x[d] : 50 * x[d];
        }
}

/* A head that is x when it is turned by a right angle, first half against second. */
static inline void case_turn_back(float *x, int dim)
{
    for (int d = 0; d < dim / 2; d++) {
        const float first = x[d];
        x[d] = x[dim / 2 + d];
        x[dim / 2 + d] = -first;
    }
}

static inline void case_row(const struct layer *l, float *x, int what, int seq, int pos)
{
    const struct config *c = &l->cfg;
    struct tern_rng r = {tern_hash64((uint64_t)seq << 40 ^ (uint64_t)pos << 8 ^ (uint64_t)what)};
    const int width = case_width(l, what), dim = what == CASE_K ? c->dk : c->dv;
    for (int i = 0; i < width; i++)
        x[i] = gauss(&r);
    for (int h = 0; l->cond && what == CASE_K && h < c->n_kv; h++) {
        for (int d = 0; d < c->dk; d++)
            x[h * c->dk + d] = x[h * c->dk + d] * l->cond[h].unscale[d] + l->cond[h].mean[d];
        if (c->turned)
            case_turn_back(x + h * c->dk, c->dk);
    }
    for (int h = 0; what != CASE_Q && c->wild && h < c->n_kv; h++)
        if ((int)(tern_rng_u64(&r) % 100) < c->wild)
            case_wild(x + h * dim, dim, &r);
}

/* ---- a device at work ---- */

struct worker {
    struct tern_dev *dev;
    const struct tern_dev_ops *ops;
    struct layer *l;
    struct seqs seqs;
    struct tern_dev_rows k, v, q, out;
    struct tern_dev_blocks pages, tiles, sinks;
    struct tern_dev_cache cache; /* of layers that are all alike, one behind the other in a page */
    struct tern_kv_layer *layers;
    struct tern_attn_shape *shapes;
    int n_layers, *group_of, *span_layer;
    size_t *state_off;
    uint32_t *numbers; /* [seq][max pages] */
    int max_pages, max_rows;
    float *home, *host;          /* out of all rows: [seq][max len][width]; room for a step's rows */
    struct tern_dev_mem *angles; /* cosines, then sines, of the rows */
};

static inline void worker_ok(struct worker *w, int rc, const tern_error *err)
{
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", w->ops ? w->ops->name : "device", err->msg);
        exit(1);
    }
}

static inline void worker_blocks(struct worker *w, struct tern_dev_blocks *b, size_t bytes, size_t n)
{
    tern_error err;
    b->bytes = tern_round_up(bytes, 64);
    worker_ok(w, w->ops->reserve(w->dev, &b->mem, b->bytes * n, false, &err), &err);
}

static inline void worker_layers(struct worker *w, int n)
{
    const struct tern_kv_layer *kv = &w->l->kv;
    const size_t heads = (size_t)kv->n_heads;
    w->n_layers = n;
    w->layers = grab((size_t)n, sizeof *w->layers);
    w->shapes = grab((size_t)n, sizeof *w->shapes);
    w->group_of = grab((size_t)n, sizeof *w->group_of);
    w->span_layer = grab((size_t)n, sizeof *w->span_layer);
    w->state_off = grab((size_t)n, sizeof *w->state_off);
    for (int i = 0; i < n; i++) {
        w->layers[i] = *kv;
        w->layers[i].layer_off += (size_t)i * heads * kv->head_bytes;
        w->layers[i].tile_layer_off += (size_t)i * (size_t)kv->ring * heads * kv->tile_bytes;
        w->layers[i].sink_layer_off += (size_t)i * heads * kv->sink_bytes;
        w->shapes[i] = w->l->shape;
        w->shapes[i].layer = i;
        w->span_layer[i] = i;
    }
}

static inline void worker_open(struct worker *w, const char *name, struct tern_pool *pool, struct layer *l,
                               struct seqs seqs, int max_rows, bool exact, int layers)
{
    tern_error err;
    *w = (struct worker){.l = l, .seqs = seqs, .max_pages = seqs.max / TERN_PAGE + 1, .max_rows = max_rows};
    worker_layers(w, layers);
    worker_ok(w, tern_dev_open(&w->dev, name, pool, &err), &err);
    w->ops = w->dev->ops;
    const struct tern_kv_layer *kv = &w->layers[layers - 1];
    const size_t heads = (size_t)kv->n_heads, pages = (size_t)w->max_pages, n = (size_t)seqs.n;
    worker_blocks(w, &w->pages, kv->layer_off + heads * kv->head_bytes, pages * n);
    worker_blocks(w, &w->tiles, kv->tile_layer_off + (size_t)kv->ring * heads * kv->tile_bytes, n);
    worker_blocks(w, &w->sinks, kv->sink_layer_off + heads * kv->sink_bytes, n);
    w->cache = (struct tern_dev_cache){.n_layers = layers,
                                       .n_spans = layers,
                                       .layers = w->layers,
                                       .group_of = w->group_of,
                                       .span_layer = w->span_layer,
                                       .state_off = w->state_off,
                                       .pages = &w->pages,
                                       .tiles = w->tiles,
                                       .sinks = w->sinks};
    const struct tern_dev_limits limits = {.max_rows = max_rows,
                                           .max_narrow = max_rows < 64 ? max_rows : 64,
                                           .max_k = 64,
                                           .exact = exact,
                                           .caches = &w->cache,
                                           .n_caches = 1,
                                           .shapes = w->shapes,
                                           .max_jobs = seqs.n,
                                           .max_pages = w->max_pages};
    worker_ok(w, w->ops->prepare(w->dev, &limits, &err), &err);
    struct tern_dev_rows *rows[] = {&w->k, &w->v, &w->q};
    for (int i = 0; i < 3; i++)
        worker_ok(w, tern_dev_rows_new(w->dev, rows[i], max_rows, case_width(l, i), &err), &err);
    worker_ok(w, tern_dev_rows_new(w->dev, &w->out, max_rows, l->shape.n_heads * l->cfg.dv, &err), &err);
    if (l->cfg.turned) {
        const size_t pairs = (size_t)max_rows * (size_t)(l->cfg.dk / 2);
        float *angles = grab(2 * pairs, sizeof *angles);
        for (size_t i = 0; i < pairs; i++)
            angles[pairs + i] = 1;
        worker_ok(w, w->ops->reserve(w->dev, &w->angles, 2 * pairs * sizeof *angles, false, &err), &err);
        w->ops->copy_in(w->dev, w->angles, 0, angles, 2 * pairs * sizeof *angles);
        w->ops->sync(w->dev);
        tern_free(angles);
    }
    w->numbers = grab(pages * n, sizeof *w->numbers);
    for (size_t i = 0; i < pages * n; i++) /* pages of a pool come in any order */
        w->numbers[i] = (uint32_t)((i * 7919 + 13) % (pages * n));
    if (pages * n % 7919 == 0)
        fail("page numbers repeat");
    w->home = grab(seqs.len ? n * (size_t)seqs.max * (size_t)w->out.width : 1, sizeof *w->home);
    w->host = grab((size_t)max_rows * (w->q.stride > w->out.stride ? w->q.stride : w->out.stride) + w->k.stride * 64 +
                       (size_t)max_rows * (w->k.stride + w->v.stride),
                   sizeof *w->host);
}

static inline void worker_close(struct worker *w)
{
    struct tern_dev_mem *mem[] = {w->pages.mem, w->tiles.mem, w->sinks.mem, w->k.mem,
                                  w->v.mem,     w->q.mem,     w->out.mem,   w->angles};
    for (size_t i = 0; i < sizeof mem / sizeof *mem; i++)
        w->ops->release(w->dev, mem[i]);
    tern_dev_close(w->dev);
    tern_free(w->layers);
    tern_free(w->shapes);
    tern_free(w->group_of);
    tern_free(w->span_layer);
    tern_free(w->state_off);
    tern_free(w->numbers);
    tern_free(w->home);
    tern_free(w->host);
}

/* Rows of sequence seq from pos on. */
struct part {
    int seq, pos, n;
    bool wide;
};

static inline void worker_send(struct worker *w, struct tern_dev_rows to, int what, const struct part *parts, int n)
{
    size_t row = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < parts[i].n; j++)
            case_row(w->l, w->host + row++ * to.stride, what, parts[i].seq, parts[i].pos + j);
    w->ops->copy_in(w->dev, to.mem, to.at * sizeof(float), w->host, row * to.stride * sizeof(float));
    w->ops->sync(w->dev);
}

static inline void worker_turn(struct worker *w, struct tern_dev_rows x, int n_heads, int rows)
{
    const size_t pairs = (size_t)w->max_rows * (size_t)(w->l->cfg.dk / 2);
    const struct tern_heads h = {.x = x,
                                 .n_heads = n_heads,
                                 .dim = w->l->cfg.dk,
                                 .cos = {w->angles, 0},
                                 .sin = {w->angles, pairs},
                                 .n_rot = w->l->cfg.dk};
    w->ops->heads(w->dev, &h, rows);
}

/* One step: append and attention of all parts, prompt rows first. */
static inline void worker_step(struct worker *w, const struct part *parts, int n)
{
    struct tern_dev_job *jobs = grab((size_t)n, sizeof *jobs);
    struct tern_dev_table *tables = grab((size_t)n, sizeof *tables);
    int rows = 0;
    tern_error err;
    for (int i = 0; i < n; i++) {
        const struct part *p = &parts[i];
        const int last = (p->pos + p->n) / TERN_PAGE, oldest = tern_kv_oldest(w->l->kv.reach, p->pos) / TERN_PAGE;
        const int first = oldest < last ? oldest : last;
        tables[i] = (struct tern_dev_table){w->numbers + p->seq * w->max_pages + first, first, last - first};
        jobs[i] = (struct tern_dev_job){.row0 = rows,
                                        .n_rows = p->n,
                                        .pos0 = p->pos,
                                        .wide = p->wide,
                                        .tables = &tables[i],
                                        .tile = (uint32_t)p->seq,
                                        .sink = last ? (uint32_t)p->seq : TERN_NO_BLOCK,
                                        .state = TERN_NO_BLOCK};
        rows += p->n;
    }
    if (rows > w->max_rows)
        fail("a step has too many rows");
    worker_send(w, w->k, CASE_K, parts, n);
    worker_send(w, w->v, CASE_V, parts, n);
    worker_send(w, w->q, CASE_Q, parts, n);
    const struct tern_dev_step step = {.n_rows = rows, .caches = &w->cache, .n_caches = 1, .jobs = jobs, .n_jobs = n};
    w->ops->begin(w->dev, &step);
    if (w->angles) {
        worker_turn(w, w->q, w->l->shape.n_heads, rows);
        worker_turn(w, w->k, w->l->kv.n_heads, rows);
    }
    w->ops->append(w->dev, 0, w->k, w->v);
    w->ops->attention(w->dev, &w->l->shape, w->q, w->out);
    w->ops->end(w->dev);
    tern_dev_rows_out(w->dev, w->host, w->out, 0, rows);
    w->ops->sync(w->dev);
    worker_ok(w, tern_dev_fault(w->dev, false, &err), &err);
    const float *from = w->host;
    for (int i = 0; i < n; i++) {
        const size_t width = (size_t)w->out.width, at = (size_t)parts[i].seq * (size_t)w->seqs.max;
        memcpy(w->home + (at + (size_t)parts[i].pos) * width, from, (size_t)parts[i].n * width * sizeof *from);
        from += (size_t)parts[i].n * width;
    }
    tern_free(jobs);
    tern_free(tables);
}

static inline uint8_t *worker_bytes(struct worker *w, struct tern_dev_blocks b, size_t n)
{
    uint8_t *p = grab(n * b.bytes, 1);
    w->ops->copy_out(w->dev, p, b.mem, 0, n * b.bytes);
    w->ops->sync(w->dev);
    return p;
}

#endif
