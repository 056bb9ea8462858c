/* Bits where they count: a KV plan for a memory budget. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "run/run.h"
#include "tern/eval.h"

#define CHUNK 512

/* The ladder that every side steps down: share of the 4-bit divergence, from the codes' mean square errors (to the
 * power 1.1, as measured on whole models). */
static const struct step {
    const char *scheme;
    double share;
} ladder[] = {{"f16", 0}, {"q8", 0.003}, {"t4", 1}, {"t3", 4.2}, {"t2", 18}};
enum { N_STEPS = sizeof ladder / sizeof *ladder, MEASURED = 2 };

/* Keys or values of one layer. */
struct side {
    int layer;
    bool value;
    double bytes[N_STEPS]; /* of the whole context; 0: the scheme does not work here */
    double kld;            /* measured at 4 bits */
    int at;                /* step of the ladder */
    int plan;              /* of the measuring engine */
};

struct fit {
    tern_model *m;
    const tern_fit_params *p;
    struct side *sides; /* [2 * n_layers] */
    int n_sides;
    char (*specs)[64]; /* [n_sides] */
    double open_bytes; /* what a sequence takes beside closed pages: an open page and first tokens, raw whatever the
                          plan */
};

/* Bytes of one scheme in all layers: keys under k=SCHEME,v=f16 and values under the reverse. */
static int measure_bytes(struct fit *f, int step, bool value, tern_error *err)
{
    int rc = 0;
    tern_kv_plan *plan = NULL;
    char spec[160];
    const char *scheme = ladder[step].scheme;
    int last = tern_model_get_info(f->m)->n_layers - 1;
    (void)snprintf(spec, sizeof spec, "f16,layers=0-%d:%s/%s,cond=off", last, value ? "f16" : scheme,
                   value ? scheme : "f16");
    TERN_TRY(tern_kv_plan_new(&plan, f->m, spec, false, err));
    for (int i = 0; i < f->n_sides; i++) {
        struct side *s = &f->sides[i];
        tern_kv_row r;
        tern_kv_plan_row(plan, s->layer, &r);
        if (s->value != value || strcmp(value ? r.v : r.k, scheme) != 0)
            continue;
        const int tokens = tern_kv_row_tokens(&r, f->p->ctx);
        double other = 2.0 * r.n_heads * (value ? r.dim_k : r.dim_v);
        s->bytes[step] = (r.bytes_per_token - other) * tokens;
    }
out:
    tern_kv_plan_free(plan);
    return rc;
}

static int list_sides(struct fit *f, tern_error *err)
{
    int rc = 0, n_layers = tern_model_get_info(f->m)->n_layers;
    tern_kv_plan *plan = NULL;
    TERN_TRY(tern_alloc(&f->sides, 2 * (size_t)n_layers, sizeof *f->sides, err));
    TERN_TRY(tern_alloc(&f->specs, 2 * (size_t)n_layers, sizeof *f->specs, err));
    TERN_TRY(tern_kv_plan_new(&plan, f->m, "q8", false, err));
    f->open_bytes = (double)plan->layout->tile_bytes + (double)plan->layout->sink_bytes;
    for (int i = 0; i < 2 * n_layers; i++) {
        tern_kv_row r;
        tern_kv_plan_row(plan, i / 2, &r);
        if (r.n_heads)
            f->sides[f->n_sides++] = (struct side){.layer = i / 2, .value = i % 2, .plan = -1};
    }
    for (int step = 0; step < N_STEPS; step++)
        for (int value = 0; value < 2; value++)
            TERN_TRY(measure_bytes(f, step, value, err));
out:
    tern_kv_plan_free(plan);
    return rc;
}

static int measure_sides(struct fit *f, tern_error *err)
{
    int rc = 0, n = 0;
    const char **more = NULL;
    tern_engine *e = NULL;
    tern_kld *k = NULL;
    TERN_TRY(tern_alloc(&more, (size_t)f->n_sides, sizeof *more, err));
    for (int i = 0; i < f->n_sides; i++) {
        struct side *s = &f->sides[i];
        if (s->bytes[MEASURED] <= 0)
            continue;
        const char *scheme = ladder[MEASURED].scheme;
        (void)snprintf(f->specs[i], sizeof f->specs[i], "f16,layers=%d:%s/%s", s->layer, s->value ? "f16" : scheme,
                       s->value ? scheme : "f16");
        s->plan = 1 + n;
        more[n++] = f->specs[i];
    }
    if (!n)
        goto out; /* nothing can be coded: 16 bits or nothing */
    tern_engine_params ep = {.n_threads = f->p->n_threads,
                             .ctx = CHUNK,
                             .max_seqs = TERN_KLD_ROWS,
                             .kv = "f16",
                             .more_kv = more,
                             .n_more_kv = n,
                             .exact = true};
    tern_kld_text text = {"the text", f->p->ids, f->p->n_ids};
    tern_kld_params kp = {.texts = &text, .n_texts = 1, .ctx = CHUNK, .n_chunks = 1};
    kp.progress = f->p->progress;
    kp.user = f->p->user;
    TERN_TRY(tern_engine_open(&e, f->m, &ep, err));
    TERN_TRY(tern_eval_kld(&k, e, &kp, err));
    for (int i = 0; i < f->n_sides; i++) {
        tern_kld_stats stats;
        if (f->sides[i].plan < 0)
            continue;
        TERN_TRY(tern_kld_get_stats(k, f->sides[i].plan, -1, &stats, err));
        f->sides[i].kld = stats.trimmed;
    }
out:
    tern_kld_free(k);
    tern_engine_close(&e);
    tern_free(more);
    return rc;
}

/* The next step down that this side can take, or -1. */
static int next_step(const struct side *s)
{
    for (int step = s->at + 1; step < N_STEPS; step++)
        if (s->bytes[step] > 0 && s->bytes[step] < s->bytes[s->at])
            return step;
    return -1;
}

static double total_bytes(const struct fit *f)
{
    double n = f->open_bytes;
    for (int i = 0; i < f->n_sides; i++)
        n += f->sides[i].bytes[f->sides[i].at];
    return n;
}

/* Steps down until the budget holds; false when there is nothing left to take. */
static bool descend(struct fit *f, double budget)
{
    while (total_bytes(f) > budget) {
        struct side *best = NULL;
        double least = 0;
        for (int i = 0; i < f->n_sides; i++) {
            struct side *s = &f->sides[i];
            int step = next_step(s);
            if (step < 0)
                continue;
            double cost = s->kld * (ladder[step].share - ladder[s->at].share) / (s->bytes[s->at] - s->bytes[step]);
            if (!best || cost < least) {
                best = s;
                least = cost;
            }
        }
        if (!best)
            return false;
        best->at = next_step(best);
    }
    return true;
}

static int write_plan(tern_fit *out, const struct fit *f, tern_error *err)
{
    int rc = 0;
    struct tern_buf b = {0};
    const tern_model_info *info = tern_model_get_info(f->m);
    TERN_TRY(tern_buf_addf(&b, err, "# KV plan for %d tokens of %s in %.1f MiB: expected KLD %.4g\n", f->p->ctx,
                           info->name[0] ? info->name : info->arch, (double)f->p->bytes / 1048576, out->kld));
    TERN_TRY(tern_buf_addf(&b, err, "f16\n"));
    for (int i = 0; i + 1 < f->n_sides; i += 2) {
        const struct side *k = &f->sides[i], *v = k + 1;
        if (!k->at && !v->at)
            continue;
        TERN_TRY(tern_buf_addf(&b, err, "layers=%d:%s/%s # 4-bit keys alone %.2g, values %.2g\n", k->layer,
                               ladder[k->at].scheme, ladder[v->at].scheme, k->kld, v->kld));
    }
    out->plan = b.p;
    b.p = NULL;
out:
    tern_buf_clear(&b);
    return rc;
}

int tern_eval_fit(tern_fit *out, tern_model *m, const tern_fit_params *p, tern_error *err)
{
    int rc = 0;
    struct fit f = {.m = m, .p = p};
    *out = (tern_fit){0};
    if (p->ctx < 1)
        TERN_FAIL(err, TERN_EINVAL, "context = %d is not positive", p->ctx);
    if (p->n_ids < CHUNK)
        TERN_FAIL(err, TERN_EINVAL, "fitting needs a text of %d tokens, this one has %lld", CHUNK, (long long)p->n_ids);
    TERN_TRY(list_sides(&f, err));
    out->f16_bytes = total_bytes(&f);
    (void)descend(&f, 0);
    out->min_bytes = total_bytes(&f);
    if (out->min_bytes > (double)p->bytes)
        TERN_FAIL(err, TERN_ECAPACITY, "%d tokens take at least %.1f MiB (16 bit: %.1f MiB), %.1f MiB were given",
                  p->ctx, out->min_bytes / 1048576, out->f16_bytes / 1048576, (double)p->bytes / 1048576);
    for (int i = 0; i < f.n_sides; i++)
        f.sides[i].at = 0;
    if (out->f16_bytes > (double)p->bytes)
        TERN_TRY(measure_sides(&f, err));
    (void)descend(&f, (double)p->bytes);
    out->bytes = total_bytes(&f);
    for (int i = 0; i < f.n_sides; i++)
        out->kld += f.sides[i].kld * ladder[f.sides[i].at].share;
    rc = write_plan(out, &f, err);
out:
    tern_free(f.sides);
    tern_free(f.specs);
    return rc;
}

void tern_fit_clear(tern_fit *f)
{
    free(f->plan);
    *f = (tern_fit){0};
}
