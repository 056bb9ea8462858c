/* Speed of decode attention alone, on pages of random vectors.
 *
 * A few blocks (one page of one KV head) are encoded per layer and copied to all addresses of a sequence in a cache of
 * the engine's own making; what a kernel costs does not depend on the codes being all different, only on where they
 * lie.  Raw tiles and first tokens hold the same vectors, so the output of every plan can be compared with the base's:
 * a plan that is fast because its pages are wrong shows. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/cpu.h"
#include "base/fp16.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "dev/dev.h"
#include "eval/speed.h"
#include "kv/kv.h"

#define BLOCKS    8 /* different blocks of each layer */
#define MAX_PLANS 1024
#define MAX_HEADS 65536
#define MAX_CTX   (1 << 28)

struct plan {
    const char *text;
    struct tern_kv_layout *layout;
    struct tern_kv_cache cache;
    struct tern_kv_seq *seq;
    /* The last token's row, as a step would attend with it. */
    struct tern_dev_blocks pages[TERN_KV_MAX_GROUPS];
    struct tern_dev_table tables[TERN_KV_MAX_GROUPS];
    struct tern_dev_job job;
    struct tern_dev_rows out; /* [n_layers] */
    uint8_t *blocks;          /* [n_layers][BLOCKS][block_bytes] */
    size_t block_bytes;       /* of the largest layer */
    double *seconds, *encode; /* [reps] */
};

struct speed {
    const tern_kv_speed_params *p;
    struct tern_pool *pool;
    struct plan *plans;
    /* [BLOCKS][64 * head_dim] of values ([0], [64][dim]) and keys ([1], [dim][64]): the same numbers twice. */
    uint16_t *f16[2];
    float *f32[2];
    struct tern_dev_rows q; /* [n_layers] */
    struct tern_dev *dev;
    struct tern_dev_cache *caches;  /* [n_plans] */
    struct tern_attn_shape *shapes; /* [n_layers] */
    uint8_t *codec_scratch;         /* [threads][TERN_KV_SCRATCH] */
    tern_reader *reader;
    double *read; /* [reps] bytes per second */
    struct tern_turns turns;
};

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* Which of the blocks stands in a page of a KV head. */
static int block_at(int page, int head)
{
    return (page + head) % BLOCKS;
}

/* The vectors of a block as a side's raw tile holds them. */
static const void *vectors(const struct speed *s, const struct tern_kv_side *side, int block)
{
    size_t at = (size_t)block * TERN_PAGE * (size_t)side->dim;
    return side->raw32 ? (const void *)(s->f32[side->key] + at) : (const void *)(s->f16[side->key] + at);
}

static int make_vectors(struct speed *s, tern_error *err)
{
    int rc = 0;
    struct tern_rng r = {.state = 1};
    size_t n = (size_t)BLOCKS * TERN_PAGE * (size_t)s->p->head_dim, n_q;
    float *q = NULL;
    for (int side = 0; side < 2; side++) {
        TERN_TRY(tern_alloc(&s->f16[side], n, sizeof(uint16_t), err));
        TERN_TRY(tern_alloc(&s->f32[side], n, sizeof(float), err));
        for (size_t i = 0; i < n; i++) {
            s->f16[side][i] = tern_f32_to_f16(tern_speed_gauss(&r));
            s->f32[side][i] = tern_f16_to_f32(s->f16[side][i]);
        }
    }
    TERN_TRY(tern_dev_rows_new(s->dev, &s->q, s->p->n_layers, s->p->n_heads * s->p->head_dim, err));
    n_q = (size_t)s->p->n_layers * s->q.stride;
    TERN_TRY(tern_alloc(&q, n_q, sizeof *q, err));
    for (size_t i = 0; i < n_q; i++)
        q[i] = tern_speed_gauss(&r);
    s->dev->ops->copy_in(s->dev, s->q.mem, 0, q, n_q * sizeof *q);
out:
    tern_free(q);
    return rc;
}

/* ---- a cache full of them ---------------------------------------------------------------------------------------- */

static void encode(const struct speed *s, const struct tern_kv_layer *l, uint8_t *to, int block, int worker)
{
    uint8_t *scratch = s->codec_scratch + (size_t)worker * TERN_KV_SCRATCH;
    l->k.codec->encode(&l->k, to + l->k_off, (uint16_t *)(void *)(to + l->k_head_off), vectors(s, &l->k, block), 0,
                       scratch);
    l->v.codec->encode(&l->v, to + l->v_off, (uint16_t *)(void *)(to + l->v_head_off), vectors(s, &l->v, block), 0,
                       scratch);
}

struct fill {
    const struct speed *s;
    struct plan *pl;
};

static uint8_t *encoded(const struct plan *pl, int layer, int block)
{
    return pl->blocks + ((size_t)layer * BLOCKS + (size_t)block) * pl->block_bytes;
}

static void encode_task(void *ctx, int task, int worker)
{
    const struct fill *f = ctx;
    int layer = task / BLOCKS, block = task % BLOCKS;
    encode(f->s, &f->pl->layout->layers[layer], encoded(f->pl, layer, block), block, worker);
}

/* All pages that a table may hold, by way of one on the host. */
static int fill_pages(const struct speed *s, struct plan *pl, tern_error *err)
{
    uint8_t *p;
    const size_t bytes = pl->layout->groups[0].page_bytes;
    int rc = tern_alloc(&p, bytes, 1, err);
    for (int page = 0; rc == 0 && page < pl->seq->table[0].n; page++) {
        for (int i = 0; i < s->p->n_layers; i++) {
            const struct tern_kv_layer *l = &pl->layout->layers[i];
            for (int h = 0; h < l->n_heads; h++)
                memcpy(p + l->layer_off + (size_t)h * l->head_bytes, encoded(pl, i, block_at(page, h)), l->head_bytes);
        }
        tern_kv_block_write(&pl->cache.pool[0], pl->seq->table[0].pages[page], 0, p, bytes);
    }
    tern_free(p);
    return rc;
}

/* The first tokens of one head, raw: keys [dim][first], values [first][dim]. */
static void fill_sink(const struct speed *s, const struct tern_kv_layer *l, uint8_t *sink, int head)
{
    size_t ke = l->k.raw32 ? 4 : 2, ve = l->v.raw32 ? 4 : 2, first = (size_t)l->first;
    const uint8_t *k = vectors(s, &l->k, block_at(0, head));
    for (size_t d = 0; d < (size_t)l->k.dim; d++)
        memcpy(sink + d * first * ke, k + d * TERN_PAGE * ke, first * ke);
    memcpy(sink + l->sink_v_off, vectors(s, &l->v, block_at(0, head)), first * (size_t)l->v.dim * ve);
}

static int fill_raw(const struct speed *s, struct plan *pl, const struct tern_kv_layer *l, tern_error *err)
{
    int rc = 0;
    uint8_t *sink = NULL;
    const struct tern_kv_pool *tiles = &pl->cache.tiles;
    size_t k_bytes = (size_t)l->k.dim * TERN_PAGE * (l->k.raw32 ? 4 : 2);
    size_t v_bytes = (size_t)l->v.dim * TERN_PAGE * (l->v.raw32 ? 4 : 2);
    int own = (s->p->ctx - 1) / TERN_PAGE, from = own - l->recent + 1;
    TERN_TRY(tern_alloc(&sink, l->sink_bytes, 1, err));
    for (int h = 0; h < l->n_heads; h++) {
        for (int page = from > 0 ? from : 0; page <= own; page++) {
            size_t slot = (size_t)(page % l->ring) * (size_t)l->n_heads + (size_t)h;
            size_t at = l->tile_layer_off + slot * l->tile_bytes;
            tern_kv_block_write(tiles, pl->seq->tile, at, vectors(s, &l->k, block_at(page, h)), k_bytes);
            tern_kv_block_write(tiles, pl->seq->tile, at + l->tile_v_off, vectors(s, &l->v, block_at(page, h)),
                                v_bytes);
        }
        if (pl->seq->sink == TERN_NO_BLOCK || !l->first)
            continue;
        fill_sink(s, l, sink, h);
        tern_kv_block_write(&pl->cache.sinks, pl->seq->sink, l->sink_layer_off + (size_t)h * l->sink_bytes, sink,
                            l->sink_bytes);
    }
out:
    tern_free(sink);
    return rc;
}

static int fill_plan(struct speed *s, struct plan *pl, tern_error *err)
{
    int rc = 0;
    const tern_kv_speed_params *p = s->p;
    struct fill f = {s, pl};
    const struct tern_kv_room room = {.max_seqs = 1, .max_tokens = p->ctx, .max_step = p->ctx, .dev = s->dev};
    for (int i = 0; i < p->n_layers; i++)
        if (pl->block_bytes < pl->layout->layers[i].head_bytes)
            pl->block_bytes = pl->layout->layers[i].head_bytes;
    TERN_TRY(tern_alloc(&pl->blocks, (size_t)p->n_layers * BLOCKS, pl->block_bytes, err));
    TERN_TRY(tern_dev_rows_new(s->dev, &pl->out, p->n_layers, s->q.width, err));
    TERN_TRY(tern_alloc(&pl->seconds, (size_t)p->reps, sizeof *pl->seconds, err));
    TERN_TRY(tern_alloc(&pl->encode, (size_t)p->reps, sizeof *pl->encode, err));
    TERN_TRY(tern_kv_cache_init(&pl->cache, pl->layout, &room, err));
    TERN_TRY(tern_kv_seq_new(&pl->cache, &pl->seq, err));
    TERN_TRY(tern_kv_begin(&pl->cache, pl->seq, p->ctx, err));
    tern_kv_commit(&pl->cache, pl->seq, p->ctx);
    tern_pool_run(s->pool, encode_task, &f, p->n_layers * BLOCKS);
    TERN_TRY(fill_pages(s, pl, err));
    for (int i = 0; i < p->n_layers; i++)
        TERN_TRY(fill_raw(s, pl, &pl->layout->layers[i], err));
    pl->job = tern_kv_dev_job(pl->seq, (int)(pl - s->plans), pl->tables);
    pl->job.n_rows = 1;
    pl->job.pos0 = p->ctx - 1;
out:
    return rc;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static double time_step(struct speed *s, struct plan *pl)
{
    const struct tern_dev_ops *ops = s->dev->ops;
    const struct tern_dev_step step = {
        .n_rows = 1, .caches = s->caches, .n_caches = s->p->n_plans, .jobs = &pl->job, .n_jobs = 1};
    double start = tern_now();
    ops->begin(s->dev, &step);
    for (int i = 0; i < s->p->n_layers; i++) {
        struct tern_dev_rows q = s->q, out = pl->out;
        q.at += (size_t)i * q.stride;
        out.at += (size_t)i * out.stride;
        ops->attention(s->dev, &s->shapes[i], q, out);
    }
    ops->end(s->dev);
    ops->sync(s->dev);
    return tern_now() - start;
}

/* One page of one KV head of every layer, as seconds per token of all heads. */
static double time_encode(const struct speed *s, struct plan *pl, int block)
{
    double start = tern_now();
    for (int i = 0; i < s->p->n_layers; i++)
        encode(s, &pl->layout->layers[i], encoded(pl, i, block), block, 0);
    return (tern_now() - start) * s->p->n_kv_heads / TERN_PAGE;
}

/* Round -1 warms up and is forgotten. */
static int run_round(struct speed *s, int round, tern_error *err)
{
    int rc = 0;
    for (int i = 0; i < s->p->n_plans; i++) {
        double t = time_step(s, &s->plans[i]);
        if (round >= 0)
            s->plans[i].seconds[round] = t;
        TERN_TRY(tern_turns_next(&s->turns, err));
    }
    double speed = tern_reader_speed(s->reader, s->pool);
    if (round >= 0)
        s->read[round] = speed;
    for (int i = 0; i < s->p->n_plans && round >= 0; i++)
        s->plans[i].encode[round] = time_encode(s, &s->plans[i], round % BLOCKS);
out:
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static int output_error(const struct speed *s, const struct plan *pl, double *out, tern_error *err)
{
    int rc = 0;
    const size_t n = (size_t)s->p->n_layers * (size_t)s->q.width;
    double e2 = 0, o2 = 0;
    float *base = NULL, *x = NULL;
    TERN_TRY(tern_alloc(&base, n, sizeof *base, err));
    TERN_TRY(tern_alloc(&x, n, sizeof *x, err));
    tern_dev_rows_out(s->dev, base, s->plans[0].out, 0, s->p->n_layers);
    tern_dev_rows_out(s->dev, x, pl->out, 0, s->p->n_layers);
    s->dev->ops->sync(s->dev);
    for (size_t i = 0; i < n; i++) {
        double e = (double)x[i] - (double)base[i];
        e2 += e * e;
        o2 += (double)base[i] * (double)base[i];
    }
    *out = sqrt(e2 / o2);
out:
    tern_free(base);
    tern_free(x);
    return rc;
}

static int summarise(const struct speed *s, const struct plan *pl, tern_kv_speed *out, double *x, tern_error *err)
{
    int rc = 0, reps = s->p->reps;
    *out = (tern_kv_speed){0};
    TERN_TRY(output_error(s, pl, &out->error, err));
    for (int i = 0; i < s->p->n_layers; i++)
        out->bytes += tern_speed_layer_bytes(&pl->layout->layers[i], s->p->ctx);
    out->elements = 2.0 * s->p->n_layers * s->p->n_kv_heads * s->p->head_dim * s->p->ctx;
    TERN_TRY(tern_spread_of(&out->seconds, pl->seconds, reps, err));
    TERN_TRY(tern_spread_of(&out->encode_seconds, pl->encode, reps, err));
    for (int i = 0; i < reps; i++)
        x[i] = s->plans[0].seconds[i] / pl->seconds[i];
    TERN_TRY(tern_spread_of(&out->speedup, x, reps, err));
    for (int i = 0; i < reps; i++)
        x[i] = out->bytes / pl->seconds[i] / s->read[i];
    TERN_TRY(tern_spread_of(&out->read_share, x, reps, err));
out:
    return rc;
}

static int report(const struct speed *s, tern_kv_speed *out, tern_read_speed *read, tern_error *err)
{
    int rc = 0, reps = s->p->reps;
    double *x = NULL;
    TERN_TRY(tern_alloc(&x, (size_t)reps, sizeof *x, err));
    for (int i = 0; i < s->p->n_plans; i++)
        TERN_TRY(summarise(s, &s->plans[i], &out[i], x, err));
    read->n_threads = tern_pool_threads(s->pool);
    TERN_TRY(tern_spread_of(&read->bytes_per_second, s->read, reps, err));
out:
    tern_free(x);
    return rc;
}

/* ---- setting up -------------------------------------------------------------------------------------------------- */

static int check(const tern_kv_speed_params *p, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_speed_range("plans", p->n_plans, 1, MAX_PLANS, err));
    TERN_TRY(tern_speed_range("head size", p->head_dim, 1, TERN_KVQ_MAX_DIM, err));
    TERN_TRY(tern_speed_range("heads", p->n_heads, 1, MAX_HEADS, err));
    TERN_TRY(tern_speed_range("KV heads", p->n_kv_heads, 1, MAX_HEADS, err));
    TERN_TRY(tern_speed_range("layers", p->n_layers, 1, MAX_HEADS, err));
    TERN_TRY(tern_speed_range("tokens", p->ctx, 1, MAX_CTX, err));
    TERN_TRY(tern_speed_range("threads", p->n_threads, 0, TERN_SPEED_MAX_THREADS, err));
    TERN_TRY(tern_speed_range("rounds", p->reps, 1, TERN_SPEED_MAX_REPS, err));
    if (p->n_heads % p->n_kv_heads)
        TERN_FAIL(err, TERN_EINVAL, "%d heads are not a multiple of %d KV heads", p->n_heads, p->n_kv_heads);
out:
    return rc;
}

static int lay_out(struct speed *s, struct plan *pl, const struct tern_kv_decl *decl, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_kv_layout_new(&pl->layout, decl, s->p->n_layers, pl->text, false, err));
    enum tern_kv_cond_from cond = pl->layout->spec.cond;
    if (cond == TERN_COND_NORMS || cond == TERN_COND_FILE)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: cond wants a model, and there is none here", pl->text);
    for (int i = 0; i < s->p->n_layers; i++)
        if (pl->layout->layers[i].why_raw)
            TERN_FAIL(err, TERN_EUNSUPPORTED, "--kv %s cannot have heads of %d: %s", pl->text, s->p->head_dim,
                      pl->layout->layers[i].why_raw);
out:
    return rc;
}

static int lay_out_all(struct speed *s, tern_error *err)
{
    int rc = 0;
    const tern_kv_speed_params *p = s->p;
    struct tern_kv_decl *decl = NULL;
    char what[64];
    double bytes = (double)p->read_bytes;
    TERN_TRY(tern_alloc(&decl, (size_t)p->n_layers, sizeof *decl, err));
    TERN_TRY(tern_alloc(&s->plans, (size_t)p->n_plans, sizeof *s->plans, err));
    for (int i = 0; i < p->n_layers; i++)
        decl[i] = (struct tern_kv_decl){.n_heads = p->n_kv_heads, .dim_k = p->head_dim, .dim_v = p->head_dim};
    for (int i = 0; i < p->n_plans; i++) {
        struct plan *pl = &s->plans[i];
        pl->text = p->plans[i];
        TERN_TRY(lay_out(s, pl, decl, err));
        size_t pages = (size_t)p->ctx / TERN_PAGE;
        bytes += (double)pl->layout->groups[0].page_bytes * (double)pages + (double)pl->layout->tile_bytes;
    }
    (void)snprintf(what, sizeof what, "the caches of %d KV plans", p->n_plans);
    TERN_TRY(tern_speed_fits(what, bytes, err));
out:
    tern_free(decl);
    return rc;
}

static int prepare_device(struct speed *s, tern_error *err)
{
    int rc = 0;
    const tern_kv_speed_params *p = s->p;
    struct tern_dev_limits lim = {.max_rows = 1, .max_narrow = 1, .max_jobs = 1, .max_pages = p->ctx / TERN_PAGE};
    TERN_TRY(tern_alloc(&s->caches, (size_t)p->n_plans, sizeof *s->caches, err));
    TERN_TRY(tern_alloc(&s->shapes, (size_t)p->n_layers, sizeof *s->shapes, err));
    for (int i = 0; i < p->n_plans; i++)
        tern_kv_dev_cache(&s->caches[i], s->plans[i].pages, &s->plans[i].cache);
    for (int i = 0; i < p->n_layers; i++)
        s->shapes[i] =
            (struct tern_attn_shape){.layer = i, .n_heads = p->n_heads, .scale = 1.0f / sqrtf((float)p->head_dim)};
    lim.caches = s->caches;
    lim.n_caches = p->n_plans;
    lim.shapes = s->shapes;
    TERN_TRY(s->dev->ops->prepare(s->dev, &lim, err));
out:
    return rc;
}

static int take_memory(struct speed *s, tern_error *err)
{
    int rc = 0, threads = tern_pool_threads(s->pool);
    const tern_kv_speed_params *p = s->p;
    TERN_TRY(tern_dev_host()->open(&s->dev, tern_dev_host(), s->pool, err));
    TERN_TRY(tern_alloc(&s->codec_scratch, (size_t)threads, TERN_KV_SCRATCH, err));
    TERN_TRY(tern_alloc(&s->read, (size_t)p->reps, sizeof(double), err));
    TERN_TRY(tern_reader_new(&s->reader, p->read_bytes, err));
    TERN_TRY(make_vectors(s, err));
out:
    return rc;
}

static void clear(struct speed *s)
{
    for (int i = 0; s->plans && i < s->p->n_plans; i++) {
        struct plan *pl = &s->plans[i];
        void *all[] = {pl->blocks, pl->seconds, pl->encode};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            tern_free(all[j]);
        tern_kv_cache_clear(&pl->cache);
        if (s->dev)
            s->dev->ops->release(s->dev, pl->out.mem);
        tern_kv_layout_free(pl->layout);
    }
    void *all[] = {s->plans,  s->f16[0], s->f16[1],        s->f32[0], s->f32[1],
                   s->caches, s->shapes, s->codec_scratch, s->read};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
    tern_reader_free(s->reader);
    if (s->dev)
        s->dev->ops->release(s->dev, s->q.mem);
    tern_dev_close(s->dev);
    tern_pool_free(s->pool);
}

int tern_eval_kv_speed(tern_kv_speed *out, tern_read_speed *read, const tern_kv_speed_params *p, tern_error *err)
{
    int rc = 0;
    struct speed s = {.p = p, .turns = {.progress = p->progress, .user = p->user}};
    TERN_TRY(check(p, err));
    s.turns.total = p->n_plans * (p->reps + 2);
    TERN_TRY(lay_out_all(&s, err));
    TERN_TRY(tern_pool_new(&s.pool, p->n_threads ? p->n_threads : tern_cpu_cores(), 1, err));
    TERN_TRY(take_memory(&s, err));
    for (int i = 0; i < p->n_plans; i++) {
        TERN_TRY(fill_plan(&s, &s.plans[i], err));
        TERN_TRY(tern_turns_next(&s.turns, err));
    }
    TERN_TRY(prepare_device(&s, err));
    for (int round = -1; round < p->reps; round++)
        TERN_TRY(run_round(&s, round, err));
    rc = report(&s, out, read, err);
out:
    clear(&s);
    return rc;
}
