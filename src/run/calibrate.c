/* Key conditioning from a model's own keys and queries (design: docs/kv-cache.md).
 *
 * What matters is the noise that coding a key puts on the scores of the queries that attend to it.  So every key counts
 * by what it receives - the sum of p(1-p), the slope of the softmax, over the queries that meet it as a code - and a
 * query dim by the attention variance it faces.  With those weights, per KV head:
 *   mean    of the keys after the rotary embedding; softmax does not see a constant
 *   pairs   of the embedding with a large mean before it, where such means dominate the rest (Qwen2's key bias)
 *   scale   (E q_j^2 / Var k_j)^(1/4): the split of noise between dims that minimises q^2 * error */
#include "run/run.h"

#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"

#define MIN_TOKENS  256
#define MAX_TOKENS  4096
#define PROBE       32   /* tokens of the step that is timed */
#define LATE        3    /* times the limit: then the estimate was wrong, and it ends */
#define FIRST_QUERY 80   /* before that hardly anything is coded */
#define QUERY_STEP  4    /* every fourth query is enough */
#define BLEND       0.8  /* weight by attention; the rest is spread evenly, so that no key counts for nothing */
#define RIDGE       0.03 /* of the average dim, added to every dim's energy */

/* One KV head of one layer. */
struct head_stats {
    float *keys;    /* [pages][dim][64] */
    double *weight; /* [tokens] received attention variance */
    double *q2;     /* [dim] */
};

struct calibration {
    const struct tern_desc *desc;
    struct tern_pool *pool;
    struct head_stats **layers; /* [n_layers] -> [n_kv_heads] */
    int n_tokens;               /* in all */
    int pos0, n_rows;           /* of the step in hand */
    double deadline;            /* 0: none */
    float *scores;              /* [threads][n_tokens, whole pages] */
    size_t score_floats;        /* of one thread */
    /* The layer in hand, densely. */
    int layer;
    float *q, *k; /* [chunk][heads * dim] of the widest layer */
    size_t q_stride, k_stride;
};

/* ---- watching ---------------------------------------------------------------------------------------------------- */

static void keep_keys(const struct calibration *c, struct head_stats *h, int head, int dim)
{
    for (int r = 0; r < c->n_rows; r++) {
        int pos = c->pos0 + r;
        const float *k = c->k + (size_t)r * c->k_stride + (size_t)head * (size_t)dim;
        float *to = h->keys + (size_t)(pos / TERN_PAGE) * TERN_PAGE * (size_t)dim + pos % TERN_PAGE;
        for (int d = 0; d < dim; d++)
            to[d * TERN_PAGE] = k[d];
    }
}

/* One query row: softmax over what it sees, then its coded part into weights and q2.  s: [tokens] raw scores. */
static void count_query(struct head_stats *h, const struct tern_layer_desc *l, const float *q, float *s, int pos)
{
    int from = tern_kv_oldest(tern_attend_reach(&l->at), pos);
    float top = -INFINITY;
    double sum = 0, variance = 0;
    for (int t = from; t <= pos; t++) {
        s[t] *= l->at.scale;
        if (l->at.score_cap > 0)
            s[t] = l->at.score_cap * tanhf(s[t] / l->at.score_cap);
        top = s[t] > top ? s[t] : top;
    }
    for (int t = from; t <= pos; t++) {
        s[t] = expf(s[t] - top);
        sum += (double)s[t];
    }
    int coded = pos / TERN_PAGE * TERN_PAGE;
    for (int t = from > 4 ? from : 4; t < coded; t++) {
        double p = (double)s[t] / sum, v = p * (1 - p);
        h->weight[t] += v;
        variance += v;
    }
    for (int d = 0; d < l->at.dim_k; d++)
        h->q2[d] += (double)q[d] * (double)q[d] * variance;
}

/* All queries of one KV head; independent of all others, so threads cannot change a sum. */
static void watch_head(void *ctx, int head, int worker)
{
    struct calibration *c = ctx;
    const struct tern_layer_desc *l = &c->desc->layers[c->layer];
    struct head_stats *h = &c->layers[c->layer][head];
    int group = l->at.n_heads / l->at.n_kv_heads;
    size_t dim = (size_t)l->at.dim_k;
    float *s = c->scores + (size_t)worker * c->score_floats;
    keep_keys(c, h, head, l->at.dim_k);
    for (int r = 0; r < c->n_rows; r++) {
        int pos = c->pos0 + r;
        if (pos < FIRST_QUERY || pos % QUERY_STEP)
            continue;
        for (int g = 0; g < group; g++) {
            const float *q = c->q + (size_t)r * c->q_stride + (size_t)(head * group + g) * dim;
            for (int p = 0; p <= pos / TERN_PAGE; p++)
                tern_k.attn.score_f32(s + (size_t)p * TERN_PAGE, q, h->keys + (size_t)p * TERN_PAGE * dim, l->at.dim_k,
                                      1);
            count_query(h, l, q, s, pos);
        }
    }
}

static void watch(void *user, struct tern_dev *dev, int layer, struct tern_dev_rows q, struct tern_dev_rows k)
{
    struct calibration *c = user;
    const struct tern_layer_desc *l = &c->desc->layers[layer];
    if (l->at.kv_of >= 0) /* the keys are another layer's; its own queries alone weigh them */
        return;
    c->layer = layer;
    c->q_stride = (size_t)l->at.n_heads * (size_t)l->at.dim_k;
    c->k_stride = (size_t)l->at.n_kv_heads * (size_t)l->at.dim_k;
    tern_dev_rows_out(dev, c->q, tern_dev_columns(q, 0, (int)c->q_stride), 0, c->n_rows);
    tern_dev_rows_out(dev, c->k, tern_dev_columns(k, 0, (int)c->k_stride), 0, c->n_rows);
    dev->ops->sync(dev);
    tern_pool_run(c->pool, watch_head, c, l->at.n_kv_heads);
}

/* ---- from what was seen to constants ----------------------------------------------------------------------------- */

static float key_at(const struct head_stats *h, int dim, int t, int d)
{
    return h->keys[((size_t)(t / TERN_PAGE) * (size_t)dim + (size_t)d) * TERN_PAGE + (size_t)(t % TERN_PAGE)];
}

static void finish_weights(struct head_stats *h, int n)
{
    double sum = 0;
    for (int t = 0; t < n; t++)
        sum += h->weight[t];
    for (int t = 0; t < n; t++) {
        double even = t >= 4 ? 1.0 / (n - 4) : 0;
        h->weight[t] = sum > 0 ? BLEND * h->weight[t] / sum + (1 - BLEND) * even : even;
    }
}

static struct tern_pair_mean measure_pair(const struct head_stats *h, int dim, const struct tern_kv_pair *p, int n,
                                          double *energy)
{
    struct tern_pair_mean s = {0};
    double ma = 0, mb = 0;
    *energy = 0;
    for (int t = 0; t < n; t++) {
        double w = h->weight[t], a = (double)key_at(h, dim, t, p->a), b = (double)key_at(h, dim, t, p->b);
        double c = cos((double)p->freq * t), si = sin((double)p->freq * t);
        s.re += w * (a * c + b * si);
        s.im += w * (b * c - a * si);
        ma += w * a;
        mb += w * b;
        *energy += w * (a * a + b * b);
    }
    s.after2 = ma * ma + mb * mb;
    return s;
}

static void choose_pairs(struct tern_kv_cond *c, const struct head_stats *h, const struct tern_kv_decl *d, int n)
{
    struct tern_pair_mean s[TERN_KVQ_MAX_DIM / 2];
    double varying = 0, energy;
    for (int i = 0; i < d->n_rot / 2; i++) {
        struct tern_kv_pair p = tern_kv_cond_pair(d, i, 0, 0);
        s[i] = measure_pair(h, d->dim_k, &p, n, &energy);
        varying += energy - fmax(s[i].re * s[i].re + s[i].im * s[i].im, s[i].after2);
    }
    (void)tern_cond_choose_pairs(c, d, s, varying);
}

/* Mean and scale of what the pairs leave. */
static void choose_scales(float *vectors, const struct tern_kv_cond *c, const struct head_stats *h,
                          const struct tern_kv_decl *d, int n)
{
    const int dim = d->dim_k;
    double mean[TERN_KVQ_MAX_DIM] = {0}, var[TERN_KVQ_MAX_DIM] = {0}, all_var = 0, all_q2 = 0;
    float *x = h->keys; /* [pages][dim][64] minus the pairs */
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        for (int t = 0; t < n; t++) {
            double co = cos((double)p->freq * t), si = sin((double)p->freq * t);
            size_t at = (size_t)(t / TERN_PAGE) * (size_t)dim * TERN_PAGE + (size_t)(t % TERN_PAGE);
            x[at + (size_t)p->a * TERN_PAGE] -= (float)((double)p->re * co - (double)p->im * si);
            x[at + (size_t)p->b * TERN_PAGE] -= (float)((double)p->re * si + (double)p->im * co);
        }
    }
    for (int e = 0; e < dim; e++) {
        for (int t = 0; t < n; t++)
            mean[e] += h->weight[t] * (double)key_at(h, dim, t, e);
        for (int t = 0; t < n; t++) {
            double r = (double)key_at(h, dim, t, e) - mean[e];
            var[e] += h->weight[t] * r * r;
        }
        all_var += var[e] / dim;
        all_q2 += h->q2[e] / dim;
    }
    for (int e = 0; e < dim; e++) {
        double ratio = all_var > 0 && all_q2 > 0 ? (h->q2[e] / all_q2 + RIDGE) / (var[e] / all_var + RIDGE) : 1;
        vectors[e] = (float)mean[e];
        vectors[dim + e] = (float)sqrt(sqrt(ratio));
    }
}

static void finish_head(struct tern_kv_cond_set *set, const struct tern_kv_decl *d, struct head_stats *h, int layer,
                        int head, int n)
{
    struct tern_kv_cond *c = &set->layers[layer][head];
    finish_weights(h, n);
    choose_pairs(c, h, d, n);
    choose_scales(tern_kv_cond_vectors(set, layer, head), c, h, d, n);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int new_stats(struct calibration *c, int n_threads, int chunk, tern_error *err)
{
    int rc = 0;
    size_t heads = 0;
    size_t pages = (size_t)(c->n_tokens + TERN_PAGE - 1) / TERN_PAGE;
    c->score_floats = pages * TERN_PAGE;
    TERN_TRY(tern_alloc(&c->scores, (size_t)n_threads * c->score_floats, sizeof *c->scores, err));
    TERN_TRY(tern_alloc(&c->layers, (size_t)c->desc->n_layers, sizeof *c->layers, err));
    for (int i = 0; i < c->desc->n_layers; i++) {
        const struct tern_layer_desc *l = &c->desc->layers[i];
        size_t width = (size_t)l->at.n_heads * (size_t)l->at.dim_k;
        heads = width > heads ? width : heads;
        TERN_TRY(tern_alloc(&c->layers[i], (size_t)l->at.n_kv_heads, sizeof **c->layers, err));
        for (int h = 0; h < l->at.n_kv_heads; h++) {
            struct head_stats *s = &c->layers[i][h];
            TERN_TRY(tern_alloc(&s->keys, pages * TERN_PAGE * (size_t)l->at.dim_k, sizeof *s->keys, err));
            TERN_TRY(tern_alloc(&s->weight, (size_t)c->n_tokens, sizeof *s->weight, err));
            TERN_TRY(tern_alloc(&s->q2, (size_t)l->at.dim_k, sizeof *s->q2, err));
        }
    }
    TERN_TRY(tern_alloc(&c->q, (size_t)chunk, heads * sizeof *c->q, err));
    TERN_TRY(tern_alloc(&c->k, (size_t)chunk, heads * sizeof *c->k, err));
out:
    return rc;
}

static void free_stats(struct calibration *c)
{
    for (int i = 0; c->layers && i < c->desc->n_layers; i++) {
        for (int h = 0; c->layers[i] && h < c->desc->layers[i].at.n_kv_heads; h++) {
            tern_free(c->layers[i][h].keys);
            tern_free(c->layers[i][h].weight);
            tern_free(c->layers[i][h].q2);
        }
        tern_free(c->layers[i]);
    }
    tern_free(c->layers);
    tern_free(c->scores);
    tern_free(c->q);
    tern_free(c->k);
}

static int observe(struct calibration *c, tern_engine *e, const int32_t *ids, tern_progress_fn *progress, void *user,
                   tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    TERN_TRY(tern_seq_new(&s, e, err));
    e->tap = watch;
    e->tap_user = c;
    while (c->pos0 < c->n_tokens) {
        c->n_rows = c->n_tokens - c->pos0 < e->chunk ? c->n_tokens - c->pos0 : e->chunk;
        tern_step_item it = {.seq = s, .tokens = ids + c->pos0, .n_tokens = c->n_rows};
        TERN_TRY(tern_step(e, &it, 1, NULL, err));
        c->pos0 += c->n_rows;
        if (c->deadline > 0 && tern_now() > c->deadline && c->pos0 < c->n_tokens)
            TERN_FAIL(err, TERN_ELIMIT, "calibration takes too long: %d of %d tokens by now", c->pos0, c->n_tokens);
        if (progress && progress(user, c->pos0, c->n_tokens))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %d of %d tokens", c->pos0, c->n_tokens);
    }
out:
    tern_seq_free(s);
    return rc;
}

/* Tokens per second of short steps, after one token that reads the weights: less than those of long ones, which makes
 * up for the scores that are measured beside them.  0: that one token took longer than `seconds`. */
static int probe(double *rate, tern_engine *e, const int32_t *ids, double seconds, tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    double start = tern_now();
    tern_step_item it = {.tokens = ids, .n_tokens = 1};
    *rate = 0;
    TERN_TRY(tern_seq_new(&s, e, err));
    it.seq = s;
    TERN_TRY(tern_step(e, &it, 1, NULL, err));
    if (tern_now() - start > seconds)
        goto out;
    it.tokens++;
    it.n_tokens = e->chunk < PROBE ? e->chunk : PROBE;
    start = tern_now();
    TERN_TRY(tern_step(e, &it, 1, NULL, err));
    *rate = it.n_tokens / fmax(tern_now() - start, 1e-6);
out:
    tern_seq_free(s);
    return rc;
}

/* The most tokens that take `seconds`; all of them, a power of two, or an error. */
static int shorten(struct calibration *c, tern_engine *e, const int32_t *ids, double seconds, double *expected,
                   tern_error *err)
{
    int rc = 0;
    double rate;
    TERN_TRY(probe(&rate, e, ids, seconds, err));
    int n = c->n_tokens, shorter = MAX_TOKENS / 2;
    while (shorter >= n)
        shorter /= 2;
    for (; n > MIN_TOKENS && !(n * (1 + (double)n / MAX_TOKENS) < rate * seconds); shorter /= 2)
        n = shorter < MIN_TOKENS ? MIN_TOKENS : shorter;
    *expected = rate > 0 ? n * (1 + (double)n / MAX_TOKENS) / rate : INFINITY;
    if (*expected > seconds)
        TERN_FAIL(err, TERN_ELIMIT, "calibration on %d tokens would take %.0f seconds", n, *expected);
    c->n_tokens = n;
    c->deadline = tern_now() + LATE * seconds;
out:
    return rc;
}

int tern_model_calibrate(tern_model *m, const int32_t *ids, int n, int n_threads, const char *path,
                         tern_progress_fn *progress, void *user, tern_error *err)
{
    int n_used;
    double expected;
    return tern_model_calibrate_within(m, ids, n, n_threads, path, 0, progress, user, &n_used, &expected, err);
}

int tern_model_calibrate_within(tern_model *m, const int32_t *ids, int n, int n_threads, const char *path,
                                double seconds, tern_progress_fn *progress, void *user, int *n_used, double *expected,
                                tern_error *err)
{
    int rc = 0;
    const struct tern_desc *d = &m->net->desc;
    struct calibration c = {.desc = d};
    struct tern_kv_decl *decl = NULL;
    struct tern_kv_cond_set *set = NULL;
    struct tern_buf own_path = {0};
    tern_engine *e = NULL;
    for (int i = 0; i < d->n_layers; i++)
        if (d->layers[i].mixer == TERN_MIX_SPARSE)
            TERN_FAIL(err, TERN_EUNSUPPORTED,
                      "%s: layer %d caches keys that are values, which codes hold as values: there is nothing to "
                      "calibrate",
                      m->path, i);
        else if (d->layers[i].mixer == TERN_MIX_LATENT)
            TERN_FAIL(err, TERN_EUNSUPPORTED,
                      "%s: layer %d has latent attention, whose keys are not coded: there is nothing to calibrate",
                      m->path, i);
    c.n_tokens = n < MAX_TOKENS ? n : MAX_TOKENS;
    if (c.n_tokens > d->ctx)
        c.n_tokens = d->ctx;
    if (c.n_tokens < MIN_TOKENS)
        TERN_FAIL(err, TERN_EINVAL, "calibration needs at least %d tokens, there are %d", MIN_TOKENS, c.n_tokens);
    const tern_engine_params params = {.n_threads = n_threads, .kv = "f16"};
    TERN_TRY(tern_engine_open(&e, m, &params, err));
    c.pool = e->pool;
    if (seconds > 0)
        TERN_TRY(shorten(&c, e, ids, seconds, expected, err));
    *n_used = c.n_tokens;
    TERN_TRY(new_stats(&c, tern_engine_threads(e), e->chunk, err));
    TERN_TRY(tern_alloc(&decl, (size_t)d->n_layers, sizeof *decl, err));
    tern_desc_kv(d, tern_engine_ctx(e), false, decl);
    TERN_TRY(tern_kv_cond_new(&set, decl, d->n_layers, err));
    set->n_tokens = c.n_tokens;
    TERN_TRY(observe(&c, e, ids, progress, user, err));
    for (int i = 0; i < d->n_layers; i++)
        for (int h = 0; h < decl[i].n_heads; h++)
            finish_head(set, &decl[i], &c.layers[i][h], i, h, c.n_tokens);
    tern_kv_cond_seal(set, decl);
    if (!path)
        TERN_TRY(tern_beside(&own_path, m->path, ".ternkv", true, err));
    TERN_TRY(tern_kv_cond_save(set, decl, m->net->digest, path ? path : own_path.p, err));
out:
    free_stats(&c);
    tern_engine_close(&e);
    tern_kv_cond_free(set);
    tern_free(decl);
    tern_buf_clear(&own_path);
    return rc;
}
