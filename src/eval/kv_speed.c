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
    struct tern_attn_job *jobs; /* [n_layers] */
    float *out;                 /* [n_layers][stride] */
    uint8_t *blocks;            /* [n_layers][BLOCKS][block_bytes] */
    size_t block_bytes;         /* of the largest layer */
    double *seconds, *encode;   /* [reps] */
};

struct speed {
    const tern_kv_speed_params *p;
    struct tern_pool *pool;
    struct plan *plans;
    /* [BLOCKS][64 * head_dim] of values ([0], [64][dim]) and keys ([1], [dim][64]): the same numbers twice. */
    uint16_t *f16[2];
    float *f32[2];
    float *q; /* [n_layers][stride] */
    size_t stride;
    struct tern_dev *dev;
    uint8_t *codec_scratch; /* [threads][TERN_KV_SCRATCH] */
    tern_reader *reader;
    double *read; /* [reps] bytes per second */
    struct tern_turns turns;
};

static struct tern_attn_shape shape_of(const struct speed *s, const struct plan *pl, int layer)
{
    return (struct tern_attn_shape){
        .kv = &pl->layout->layers[layer], .n_heads = s->p->n_heads, .scale = 1.0f / sqrtf((float)s->p->head_dim)};
}

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
    size_t n = (size_t)BLOCKS * TERN_PAGE * (size_t)s->p->head_dim, n_q = (size_t)s->p->n_layers * s->stride;
    for (int side = 0; side < 2; side++) {
        TERN_TRY(tern_alloc(&s->f16[side], n, sizeof(uint16_t), err));
        TERN_TRY(tern_alloc(&s->f32[side], n, sizeof(float), err));
        for (size_t i = 0; i < n; i++) {
            s->f16[side][i] = tern_f32_to_f16(tern_speed_gauss(&r));
            s->f32[side][i] = tern_f16_to_f32(s->f16[side][i]);
        }
    }
    TERN_TRY(tern_alloc(&s->q, n_q, sizeof(float), err));
    for (size_t i = 0; i < n_q; i++)
        s->q[i] = tern_speed_gauss(&r);
out:
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

static void page_task(void *ctx, int page, int worker)
{
    const struct fill *f = ctx;
    uint8_t *p = tern_kv_block(&f->pl->cache.pool[0], f->pl->seq->table[0].pages[page]);
    (void)worker;
    for (int i = 0; i < f->s->p->n_layers; i++) {
        const struct tern_kv_layer *l = &f->pl->layout->layers[i];
        for (int h = 0; h < l->n_heads; h++)
            memcpy(p + l->layer_off + (size_t)h * l->head_bytes, encoded(f->pl, i, block_at(page, h)), l->head_bytes);
    }
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

static void fill_raw(const struct speed *s, struct plan *pl, const struct tern_kv_layer *l)
{
    size_t k_bytes = (size_t)l->k.dim * TERN_PAGE * (l->k.raw32 ? 4 : 2);
    size_t v_bytes = (size_t)l->v.dim * TERN_PAGE * (l->v.raw32 ? 4 : 2);
    int own = (s->p->ctx - 1) / TERN_PAGE, from = own - l->recent + 1;
    for (int h = 0; h < l->n_heads; h++) {
        for (int page = from > 0 ? from : 0; page <= own; page++) {
            size_t slot = (size_t)(page % l->ring) * (size_t)l->n_heads + (size_t)h;
            uint8_t *tile = tern_kv_block(&pl->cache.tiles, pl->seq->tile) + l->tile_layer_off + slot * l->tile_bytes;
            memcpy(tile, vectors(s, &l->k, block_at(page, h)), k_bytes);
            memcpy(tile + l->tile_v_off, vectors(s, &l->v, block_at(page, h)), v_bytes);
        }
        if (pl->seq->sink != TERN_NO_BLOCK && l->first)
            fill_sink(s, l,
                      tern_kv_block(&pl->cache.sinks, pl->seq->sink) + l->sink_layer_off + (size_t)h * l->sink_bytes,
                      h);
    }
}

/* As a step would attend to the last token. */
static struct tern_attn_job last_row(const struct speed *s, const struct plan *pl, const struct tern_kv_layer *l)
{
    int own = (s->p->ctx - 1) / TERN_PAGE;
    const struct tern_kv_table *t = &pl->seq->table[0];
    const uint8_t *tiles = tern_kv_block(&pl->cache.tiles, pl->seq->tile);
    return (struct tern_attn_job){
        .n_rows = 1,
        .pos0 = s->p->ctx - 1,
        .pages = t->pages,
        .page_mem = pl->cache.pool[0].mem,
        .n_pages = t->n,
        .sink = tern_kv_block(&pl->cache.sinks, pl->seq->sink),
        .tile_base = tiles,
        .tile_first = own,
        .tile_layer_off = l->tile_layer_off + (size_t)(own % l->ring) * (size_t)l->n_heads * l->tile_bytes,
        .ring = tiles + l->tile_layer_off,
    };
}

static int fill_plan(struct speed *s, struct plan *pl, tern_error *err)
{
    int rc = 0;
    const tern_kv_speed_params *p = s->p;
    struct fill f = {s, pl};
    const struct tern_kv_room room = {.max_seqs = 1, .max_tokens = p->ctx, .max_step = p->ctx};
    for (int i = 0; i < p->n_layers; i++)
        if (pl->block_bytes < pl->layout->layers[i].head_bytes)
            pl->block_bytes = pl->layout->layers[i].head_bytes;
    TERN_TRY(tern_alloc(&pl->blocks, (size_t)p->n_layers * BLOCKS, pl->block_bytes, err));
    TERN_TRY(tern_alloc(&pl->out, (size_t)p->n_layers * s->stride, sizeof *pl->out, err));
    TERN_TRY(tern_alloc(&pl->jobs, (size_t)p->n_layers, sizeof *pl->jobs, err));
    TERN_TRY(tern_alloc(&pl->seconds, (size_t)p->reps, sizeof *pl->seconds, err));
    TERN_TRY(tern_alloc(&pl->encode, (size_t)p->reps, sizeof *pl->encode, err));
    TERN_TRY(tern_kv_cache_init(&pl->cache, pl->layout, &room, err));
    TERN_TRY(tern_kv_seq_new(&pl->cache, &pl->seq, err));
    TERN_TRY(tern_kv_begin(&pl->cache, pl->seq, p->ctx, err));
    tern_kv_commit(&pl->cache, pl->seq, p->ctx);
    tern_pool_run(s->pool, encode_task, &f, p->n_layers * BLOCKS);
    tern_pool_run(s->pool, page_task, &f, pl->seq->table[0].n);
    for (int i = 0; i < p->n_layers; i++) {
        fill_raw(s, pl, &pl->layout->layers[i]);
        pl->jobs[i] = last_row(s, pl, &pl->layout->layers[i]);
    }
out:
    return rc;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static double time_step(struct speed *s, struct plan *pl)
{
    double start = tern_now();
    for (int i = 0; i < s->p->n_layers; i++) {
        struct tern_attn_shape shape = shape_of(s, pl, i);
        size_t at = (size_t)i * s->stride;
        s->dev->ops->attention(s->dev, &shape, &pl->jobs[i], 1, s->q + at, s->stride, pl->out + at, s->stride);
    }
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

static double output_error(const struct speed *s, const struct plan *pl)
{
    double e2 = 0, o2 = 0;
    for (size_t i = 0; i < (size_t)s->p->n_layers * s->stride; i++) {
        double base = (double)s->plans[0].out[i], e = (double)pl->out[i] - base;
        e2 += e * e;
        o2 += base * base;
    }
    return sqrt(e2 / o2);
}

static int summarise(const struct speed *s, const struct plan *pl, tern_kv_speed *out, double *x, tern_error *err)
{
    int rc = 0, reps = s->p->reps;
    *out = (tern_kv_speed){.error = output_error(s, pl)};
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

static int open_device(struct speed *s, tern_error *err)
{
    int rc = 0;
    const tern_kv_speed_params *p = s->p;
    struct tern_attn_shape *shapes = NULL;
    struct tern_dev_limits lim = {.max_rows = 1, .max_narrow = 1, .max_pages = p->ctx / TERN_PAGE};
    TERN_TRY(tern_alloc(&shapes, (size_t)p->n_plans * (size_t)p->n_layers, sizeof *shapes, err));
    for (int i = 0; i < p->n_plans; i++)
        for (int l = 0; l < p->n_layers; l++)
            shapes[lim.n_shapes++] = shape_of(s, &s->plans[i], l);
    lim.shapes = shapes;
    TERN_TRY(tern_dev_open(&s->dev, NULL, s->pool, err));
    TERN_TRY(s->dev->ops->prepare(s->dev, &lim, err));
out:
    tern_free(shapes);
    return rc;
}

static int take_memory(struct speed *s, tern_error *err)
{
    int rc = 0, threads = tern_pool_threads(s->pool);
    const tern_kv_speed_params *p = s->p;
    TERN_TRY(open_device(s, err));
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
        void *all[] = {pl->jobs, pl->out, pl->blocks, pl->seconds, pl->encode};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            tern_free(all[j]);
        tern_kv_cache_clear(&pl->cache);
        tern_kv_layout_free(pl->layout);
    }
    void *all[] = {s->plans, s->f16[0], s->f16[1], s->f32[0], s->f32[1], s->q, s->codec_scratch, s->read};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
    tern_reader_free(s->reader);
    tern_dev_close(s->dev);
    tern_pool_free(s->pool);
}

int tern_eval_kv_speed(tern_kv_speed *out, tern_read_speed *read, const tern_kv_speed_params *p, tern_error *err)
{
    int rc = 0;
    struct speed s = {.p = p, .turns = {.progress = p->progress, .user = p->user}};
    TERN_TRY(check(p, err));
    s.stride = tern_round_up((size_t)p->n_heads * (size_t)p->head_dim, 16);
    s.turns.total = p->n_plans * (p->reps + 2);
    TERN_TRY(lay_out_all(&s, err));
    TERN_TRY(tern_pool_new(&s.pool, p->n_threads ? p->n_threads : tern_cpu_cores(), 1, err));
    TERN_TRY(take_memory(&s, err));
    for (int i = 0; i < p->n_plans; i++) {
        TERN_TRY(fill_plan(&s, &s.plans[i], err));
        TERN_TRY(tern_turns_next(&s.turns, err));
    }
    for (int round = -1; round < p->reps; round++)
        TERN_TRY(run_round(&s, round, err));
    rc = report(&s, out, read, err);
out:
    clear(&s);
    return rc;
}
