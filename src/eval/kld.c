/* Divergence of next-token distributions between the KV plans of one engine.
 *
 * Chunks and plans advance together: a round takes some chunks and some plans, holds one sequence for each pair and one
 * per chunk for the base, prefills them one after the other and then steps all of them at once.  A sequence's logits do
 * not depend on its batch, so how rounds are cut changes nothing but speed and memory.
 *
 * Decode rows are fed one at a time, as they come in use.  In the wide class tokens go several to a step: the logits
 * are the same however a prompt is cut, and each page is decoded once for all of them. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "eval/stats.h"
#include "run/run.h"

#define DEFAULT_CHUNKS 4

struct tern_kld {
    tern_kld_info info;
    int *text_of;  /* [n_chunks] */
    double *kld;   /* [n_plans][n_chunks][n_scored] */
    double *nll;   /* the same shape: of the token that follows in the text */
    uint8_t *top1; /* the same shape: is the likeliest token the base's? */
};

/* What the rows of the other plans need to know about a row of the base. */
struct base_row {
    double *e; /* [n_vocab] exp(logit - max) */
    double sum, log_sum;
    int32_t best;
};

struct run {
    tern_engine *e;
    const tern_kld_params *p;
    struct tern_kld *k;
    int n_vocab, ctx, half;
    bool decode;     /* narrow rows; in an exact engine every row is wide */
    int rows;        /* most rows of a step that wants all logits */
    int32_t *ids;    /* [n_chunks][ctx] */
    tern_seq **seqs; /* [rows] the round's, chunk by chunk, the base first */
    tern_step_item *items;
    struct base_row *base; /* [rows] */
    double *e_rows;        /* what base[].e point into */
    int done, total;       /* tokens, for the progress */
};

/* A round and the step in hand. */
struct round {
    struct run *r;
    int chunk0, n_chunks;
    int plan0, n_plans;  /* beside the base */
    int at, n;           /* positions [at, at + n) of every chunk */
    const float *logits; /* [n_chunks][1 + n_plans][n][n_vocab] */
};

/* ---- scoring ----------------------------------------------------------------------------------------------------- */

/* Index of the largest logit, the first of equals. */
static int32_t likeliest(const float *x, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static size_t value_index(const struct round *g, int plan, int chunk, int row)
{
    const tern_kld_info *info = &g->r->k->info;
    size_t at = (size_t)plan * (size_t)info->n_chunks + (size_t)(g->chunk0 + chunk);
    return at * (size_t)info->n_scored + (size_t)(g->at - g->r->half + row);
}

static const float *logits_of(const struct round *g, int chunk, int plan, int row)
{
    size_t at = ((size_t)chunk * (size_t)(1 + g->n_plans) + (size_t)plan) * (size_t)g->n + (size_t)row;
    return g->logits + at * (size_t)g->r->n_vocab;
}

static double nll_of(const struct round *g, int chunk, int row, const float *x, double max, double log_sum)
{
    const struct run *r = g->r;
    int32_t next = r->ids[(size_t)(g->chunk0 + chunk) * (size_t)r->ctx + (size_t)(g->at + row + 1)];
    return log_sum + max - (double)x[next];
}

static void score_base(void *ctx, int task, int worker)
{
    const struct round *g = ctx;
    int n = g->r->n_vocab, chunk = task / g->n, row = task % g->n;
    struct base_row *b = &g->r->base[task];
    const float *x = logits_of(g, chunk, 0, row);
    (void)worker;
    b->best = likeliest(x, n);
    double max = (double)x[b->best], sum = 0;
    for (int i = 0; i < n; i++) {
        b->e[i] = exp((double)x[i] - max);
        sum += b->e[i];
    }
    b->sum = sum;
    b->log_sum = log(sum);
    size_t at = value_index(g, 0, chunk, row);
    g->r->k->nll[at] = nll_of(g, chunk, row, x, max, b->log_sum);
    g->r->k->top1[at] = 1;
}

/* sum p (log p - log q) = sum p (x - y) - (lse(x) - lse(y)), where the exponentials of x are known.  The sum over q
 * runs in the order of score_base, so that equal logits give 0. */
static void score_plan(void *ctx, int task, int worker)
{
    const struct round *g = ctx;
    int n = g->r->n_vocab, row = task % g->n, pair = task / g->n;
    int chunk = pair / g->n_plans, plan = pair % g->n_plans;
    const struct base_row *b = &g->r->base[chunk * g->n + row];
    const float *x = logits_of(g, chunk, 0, row), *y = logits_of(g, chunk, 1 + plan, row);
    (void)worker;
    int32_t best = likeliest(y, n);
    double max_x = (double)x[b->best], max = (double)y[best], sum = 0, dot = 0;
    for (int i = 0; i < n; i++) {
        sum += exp((double)y[i] - max);
        dot += b->e[i] * ((double)x[i] - (double)y[i]);
    }
    double log_sum = log(sum), kld = dot / b->sum - (b->log_sum + max_x - (log_sum + max));
    size_t at = value_index(g, g->plan0 + plan, chunk, row);
    g->r->k->kld[at] = kld < 0 ? 0 : kld; /* rounding may leave -1e-16 */
    g->r->k->nll[at] = nll_of(g, chunk, row, y, max, log_sum);
    g->r->k->top1[at] = best == b->best;
}

static int score(struct round *g, tern_error *err)
{
    const struct run *r = g->r;
    tern_pool_run(r->e->pool, score_base, g, g->n_chunks * g->n);
    tern_pool_run(r->e->pool, score_plan, g, g->n_chunks * g->n_plans * g->n);
    for (int c = 0; c < g->n_chunks; c++)
        for (int p = 0; p <= g->n_plans; p++)
            for (int i = 0; i < g->n; i++) {
                size_t at = value_index(g, p ? g->plan0 + p - 1 : 0, c, i);
                if (!isfinite(r->k->kld[at]) || !isfinite(r->k->nll[at]))
                    return tern_err_set(err, TERN_EFORMAT, "chunk %d, position %d, KV plan %d: a logit is not a number",
                                        g->chunk0 + c, g->at + i, p ? g->plan0 + p - 1 : 0);
            }
    return 0;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int advance(struct run *r, int tokens, tern_error *err)
{
    bool stop = r->p->progress && r->p->progress(r->p->user, r->done + tokens, r->total);
    r->done += tokens;
    if (stop || atomic_exchange_explicit(&r->e->cancel, 0, memory_order_relaxed))
        return tern_err_set(err, TERN_ECANCELLED, "cancelled after %d of %d tokens", r->done, r->total);
    return 0;
}

static int on_prefill(void *user, int done, int total)
{
    const struct run *r = user;
    (void)total;
    return r->p->progress ? r->p->progress(r->p->user, r->done + done, r->total) : 0;
}

static int prefill(struct round *g, tern_error *err)
{
    int rc = 0, per_chunk = 1 + g->n_plans;
    struct run *r = g->r;
    for (int i = 0; i < g->n_chunks * per_chunk; i++) {
        int plan = i % per_chunk;
        const int32_t *ids = r->ids + (size_t)(g->chunk0 + i / per_chunk) * (size_t)r->ctx;
        TERN_TRY(tern_seq_new_plan(&r->seqs[i], r->e, plan ? g->plan0 + plan - 1 : 0, err));
        TERN_TRY(tern_prefill_steps(r->e, r->seqs[i], ids, r->half, NULL, on_prefill, r, err));
        TERN_TRY(advance(r, r->half, err));
    }
out:
    return rc;
}

static int step(struct round *g, tern_error *err)
{
    int rc = 0, per_chunk = 1 + g->n_plans, n_seqs = g->n_chunks * per_chunk;
    struct run *r = g->r;
    for (int i = 0; i < n_seqs; i++)
        r->items[i] = (tern_step_item){
            .seq = r->seqs[i],
            .tokens = r->ids + (size_t)(g->chunk0 + i / per_chunk) * (size_t)r->ctx + (size_t)g->at,
            .n_tokens = g->n,
            .decode = r->decode,
            .logits = TERN_LOGITS_ALL,
        };
    TERN_TRY(tern_step(r->e, r->items, n_seqs, &g->logits, err));
    TERN_TRY(score(g, err));
    rc = advance(r, n_seqs * g->n, err);
out:
    return rc;
}

static int run_round(struct run *r, int chunk0, int plan0, tern_error *err)
{
    int rc = 0;
    const tern_kld_info *info = &r->k->info;
    struct round g = {.r = r, .chunk0 = chunk0, .plan0 = plan0};
    g.n_chunks = info->n_chunks - chunk0 < info->chunks_at_once ? info->n_chunks - chunk0 : info->chunks_at_once;
    g.n_plans = info->n_plans - plan0 < info->plans_at_once - 1 ? info->n_plans - plan0 : info->plans_at_once - 1;
    int most = r->decode ? 1 : r->rows / (g.n_chunks * info->plans_at_once);
    TERN_TRY(prefill(&g, err));
    for (g.at = r->half; g.at < r->ctx - 1; g.at += g.n) {
        g.n = r->ctx - 1 - g.at < most ? r->ctx - 1 - g.at : most;
        TERN_TRY(step(&g, err));
    }
out:
    for (int i = 0; i < r->rows; i++) {
        tern_seq_free(r->seqs[i]);
        r->seqs[i] = NULL;
    }
    return rc;
}

static int run_all(struct run *r, tern_error *err)
{
    int rc = 0;
    const tern_kld_info *info = &r->k->info;
    int others = info->plans_at_once - 1, rounds = (info->n_plans - 1 + others - 1) / others;
    int64_t total = (int64_t)info->n_chunks * (info->n_plans - 1 + rounds) * (r->ctx - 1);
    if (total > INT32_MAX)
        TERN_FAIL(err, TERN_ELIMIT, "%d chunks of %d tokens under %d plans are too many tokens", info->n_chunks, r->ctx,
                  info->n_plans);
    r->total = (int)total;
    for (int plan = 1; plan < info->n_plans; plan += others)
        for (int chunk = 0; chunk < info->n_chunks; chunk += info->chunks_at_once)
            TERN_TRY(run_round(r, chunk, plan, err));
    size_t n = (size_t)info->n_chunks * (size_t)info->n_scored;
    double nll = 0;
    for (size_t i = 0; i < n; i++)
        nll += r->k->nll[i];
    r->k->info.base_ppl = exp(nll / (double)n);
out:
    return rc;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* How many chunks each text gives: [n_texts], from a total that is shared out in turn. */
static int share_chunks(struct run *r, int fresh, int *share, tern_error *err)
{
    const tern_kld_params *p = r->p;
    int wanted = p->n_chunks;
    if (wanted == 0)
        wanted = p->n_texts > DEFAULT_CHUNKS ? p->n_texts : DEFAULT_CHUNKS;
    if (wanted < p->n_texts)
        return tern_err_set(err, TERN_EINVAL, "chunks = %d is less than one for each of %d texts", wanted, p->n_texts);
    r->k->info.n_chunks = 0;
    for (int t = 0; t < p->n_texts; t++) {
        const tern_kld_text *x = &p->texts[t];
        int64_t most = x->n / fresh, n = wanted / p->n_texts + (t < wanted % p->n_texts);
        if (most < 1)
            return tern_err_set(err, TERN_EINVAL, "%s: %lld tokens do not fill one chunk of %d", x->name,
                                (long long)x->n, fresh);
        if (n > most && p->n_chunks)
            return tern_err_set(err, TERN_EINVAL, "%s: its %lld tokens fill %lld chunks of %d, not %lld", x->name,
                                (long long)x->n, (long long)most, fresh, (long long)n);
        share[t] = (int)(n < most ? n : most);
        r->k->info.n_chunks += share[t];
    }
    return 0;
}

/* Chunk j of n begins where the j-th of n equal parts of the text begins. */
static int cut_chunks(struct run *r, const int *share, int fresh, int32_t bos, tern_error *err)
{
    int rc = 0, at = 0, n_chunks = r->k->info.n_chunks;
    TERN_TRY(tern_alloc(&r->k->text_of, (size_t)n_chunks, sizeof(int), err));
    TERN_TRY(tern_alloc(&r->ids, (size_t)n_chunks * (size_t)r->ctx, sizeof *r->ids, err));
    for (int j = 0; at < n_chunks; j++)
        for (int t = 0; t < r->p->n_texts; t++) {
            if (j >= share[t])
                continue;
            const tern_kld_text *x = &r->p->texts[t];
            int32_t *ids = r->ids + (size_t)at * (size_t)r->ctx;
            ids[0] = bos;
            memcpy(ids + r->ctx - fresh, x->ids + (int64_t)j * x->n / share[t], (size_t)fresh * sizeof *ids);
            r->k->text_of[at++] = t;
        }
out:
    return rc;
}

static int make_chunks(struct run *r, tern_error *err)
{
    int rc = 0, *share = NULL;
    int32_t bos = r->e->model->tok ? tern_tokenizer_front(r->e->model->tok) : -1;
    int fresh = r->ctx - (bos >= 0);
    TERN_TRY(tern_alloc(&share, (size_t)r->p->n_texts, sizeof *share, err));
    TERN_TRY(share_chunks(r, fresh, share, err));
    TERN_TRY(cut_chunks(r, share, fresh, bos, err));
out:
    tern_free(share);
    return rc;
}

/* ---- setting up -------------------------------------------------------------------------------------------------- */

static int check(const struct run *r, tern_error *err)
{
    int rc = 0;
    const tern_engine *e = r->e;
    if (r->p->n_texts < 1)
        TERN_FAIL(err, TERN_EINVAL, "no text given");
    if (r->p->n_chunks < 0)
        TERN_FAIL(err, TERN_EINVAL, "chunks = %d is negative", r->p->n_chunks);
    if (r->ctx < 8 || r->ctx > e->ctx)
        TERN_FAIL(err, TERN_EINVAL, "context = %d is outside 8..%d", r->ctx, e->ctx);
    if (e->n_plans < 2)
        TERN_FAIL(err, TERN_EINVAL, "the engine has one KV plan, nothing to compare it with");
out:
    return rc;
}

/* How many chunks and plans go into a round.  Rows that are left over are positions of the same sequences, which is the
 * cheapest use of them: so no more chunks than keep all threads busy. */
static int plan_rounds(struct run *r, tern_error *err)
{
    const tern_engine *e = r->e;
    tern_kld_info *info = &r->k->info;
    int most = e->chunk;
    r->rows = most < TERN_KLD_ROWS ? most : TERN_KLD_ROWS;
    int seqs = r->rows < e->max_seqs ? r->rows : e->max_seqs;
    if (seqs < 2)
        return tern_err_set(err, TERN_EINVAL, "two sequences must go through a step together; the engine takes %d",
                            seqs);
    info->plans_at_once = e->n_plans < seqs ? e->n_plans : seqs;
    int chunks = seqs / info->plans_at_once, threads = tern_pool_threads(e->pool);
    chunks = r->decode || chunks < threads ? chunks : threads;
    info->chunks_at_once = chunks < info->n_chunks ? chunks : info->n_chunks;
    return 0;
}

static int take_memory(struct run *r, tern_error *err)
{
    int rc = 0;
    const tern_kld_info *info = &r->k->info;
    size_t vocab = (size_t)r->n_vocab, rows = (size_t)(r->rows / info->plans_at_once), n;
    if (!tern_mul((size_t)info->n_chunks * (size_t)info->n_scored, (size_t)info->n_plans, &n))
        TERN_FAIL(err, TERN_ENOMEM, "%d chunks under %d plans are too many", info->n_chunks, info->n_plans);
    TERN_TRY(tern_alloc(&r->k->kld, n, sizeof *r->k->kld, err));
    TERN_TRY(tern_alloc(&r->k->nll, n, sizeof *r->k->nll, err));
    TERN_TRY(tern_alloc(&r->k->top1, n, 1, err));
    TERN_TRY(tern_alloc(&r->seqs, (size_t)r->rows, sizeof(tern_seq *), err));
    TERN_TRY(tern_alloc(&r->items, (size_t)r->rows, sizeof *r->items, err));
    TERN_TRY(tern_alloc(&r->base, rows, sizeof *r->base, err));
    TERN_TRY(tern_alloc(&r->e_rows, rows * vocab, sizeof *r->e_rows, err));
    for (size_t i = 0; i < rows; i++)
        r->base[i].e = r->e_rows + i * vocab;
out:
    return rc;
}

int tern_eval_kld(tern_kld **out, tern_engine *e, const tern_kld_params *p, tern_error *err)
{
    int rc = 0;
    struct run r = {.e = e, .p = p, .n_vocab = e->model->net->desc.n_vocab, .ctx = p->ctx ? p->ctx : e->ctx};
    *out = NULL;
    TERN_TRY(tern_alloc(&r.k, 1, sizeof *r.k, err));
    r.half = r.ctx / 2;
    r.decode = !p->prefill && !e->exact;
    r.k->info = (tern_kld_info){.n_plans = e->n_plans, .n_texts = p->n_texts, .ctx = r.ctx};
    r.k->info.n_scored = r.ctx - 1 - r.half;
    TERN_TRY(check(&r, err));
    TERN_TRY(make_chunks(&r, err));
    TERN_TRY(plan_rounds(&r, err));
    TERN_TRY(take_memory(&r, err));
    tern_cancel_clear(e);
    TERN_TRY(run_all(&r, err));
    *out = r.k;
    r.k = NULL;
out:
    tern_free(r.ids);
    tern_free(r.seqs);
    tern_free(r.items);
    tern_free(r.base);
    tern_free(r.e_rows);
    tern_kld_free(r.k);
    return rc;
}

void tern_kld_free(tern_kld *k)
{
    if (!k)
        return;
    tern_free(k->text_of);
    tern_free(k->kld);
    tern_free(k->nll);
    tern_free(k->top1);
    tern_free(k);
}

/* ---- reading
 * --------------------------------------------------------------------------------------------------------- */

const tern_kld_info *tern_kld_get_info(const tern_kld *k)
{
    return &k->info;
}

int tern_kld_text_chunks(const tern_kld *k, int text)
{
    int n = 0;
    for (int c = 0; c < k->info.n_chunks; c++)
        n += k->text_of[c] == text;
    return n;
}

const double *tern_kld_values(const tern_kld *k, int plan)
{
    return k->kld + (size_t)plan * (size_t)k->info.n_chunks * (size_t)k->info.n_scored;
}

int tern_kld_get_stats(const tern_kld *k, int plan, int text, tern_kld_stats *out, tern_error *err)
{
    int rc = 0;
    size_t scored = (size_t)k->info.n_scored, all = (size_t)k->info.n_chunks * scored, n = 0, runs = 0, same = 0;
    double excess = 0, *x = NULL;
    struct tern_series s = {0};
    TERN_ASSERT(plan >= 0 && plan < k->info.n_plans && text >= -1 && text < k->info.n_texts);
    TERN_TRY(tern_alloc(&x, all, sizeof *x, err));
    for (size_t c = 0; c < (size_t)k->info.n_chunks; c++) {
        if (text >= 0 && k->text_of[c] != text)
            continue;
        runs++;
        for (size_t i = c * scored; i < (c + 1) * scored; i++) {
            size_t at = (size_t)plan * all + i;
            x[n++] = k->kld[at];
            excess += k->nll[at] - k->nll[i];
            same += k->top1[at];
        }
    }
    TERN_TRY(tern_series_init(&s, x, runs, scored, err));
    *out = (tern_kld_stats){
        .mean = tern_series_mean(&s),
        .trimmed = tern_series_trimmed(&s),
        .median = tern_series_quantile(&s, .5),
        .p99 = tern_series_quantile(&s, .99),
        .max = tern_series_quantile(&s, 1),
        .top1 = (double)same / (double)n,
        .ppl_ratio = exp(excess / (double)n),
        .n_tokens = (int64_t)n,
    };
out:
    tern_series_clear(&s);
    tern_free(x);
    return rc;
}

int tern_kld_compare(const tern_kld *k, int a, int b, tern_kld_ratio *mean, tern_kld_ratio *trimmed, tern_error *err)
{
    int rc = 0;
    struct tern_series sa = {0}, sb = {0};
    size_t runs = (size_t)k->info.n_chunks, scored = (size_t)k->info.n_scored;
    TERN_ASSERT(a >= 0 && a < k->info.n_plans && b >= 0 && b < k->info.n_plans);
    TERN_TRY(tern_series_init(&sa, tern_kld_values(k, a), runs, scored, err));
    TERN_TRY(tern_series_init(&sb, tern_kld_values(k, b), runs, scored, err));
    rc = tern_series_compare(&sa, &sb, mean, trimmed, err);
out:
    tern_series_clear(&sa);
    tern_series_clear(&sb);
    return rc;
}
