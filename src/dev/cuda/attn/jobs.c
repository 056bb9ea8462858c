/* The step's jobs as append and attention see them: cut into units, the rows of one job in one page, and for each rate
 * at which caches hold rows.  Jobs whose rows span pages work in staging tiles, as on the CPU (dev/cpu/step.c). */
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/attn/state.h"

static size_t max_units(const struct tern_dev_limits *l)
{
    return (size_t)l->max_rows / TERN_PAGE + 2 * (size_t)l->max_jobs + 2;
}

#define SLACK 256 /* of one piece of an upload */

size_t tern_cuda_attn_upload(const struct tern_dev_limits *l)
{
    const size_t lists = 5, units = max_units(l) * sizeof(struct tern_cuda_unit), jobs = (size_t)l->max_jobs;
    const size_t recode = sizeof(struct tern_cuda_recode) + (size_t)l->max_pages * sizeof(uint32_t) + 2 * SLACK;
    const size_t rate = lists * (units + (size_t)l->n_caches * SLACK) +
                        jobs * (sizeof(int32_t) + sizeof(struct tern_cuda_job)) + 2 * SLACK;
    const int rates = l->caches[0].n_spans > l->caches[0].n_layers ? TERN_CUDA_RATES : 1;
    return (size_t)rates * rate + (size_t)l->caches[0].n_layers * recode;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int open_rate(struct tern_cuda_attn *t, const struct tern_dev_limits *l, int rate, tern_error *err)
{
    int rc = 0;
    const size_t jobs = (size_t)l->max_jobs;
    if (t->n_rates == TERN_CUDA_RATES)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "device cuda keeps compressed rows of %d lengths at most",
                  TERN_CUDA_RATES - 1);
    struct tern_cuda_rate *r = &t->rates[t->n_rates++];
    r->rate = rate;
    TERN_TRY(tern_alloc(&r->stage_of, jobs, sizeof *r->stage_of, err));
    TERN_TRY(tern_alloc(&r->lists, (size_t)t->n_caches, sizeof *r->lists, err));
    if (rate > 1)
        TERN_TRY(tern_alloc(&r->counted, jobs, sizeof *r->counted, err));
out:
    return rc;
}

/* Spans stage theirs apart as well: those of rows, those of keys that choose. */
static int open_stages(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    struct tern_cuda_attn *t = d->attn;
    int sets = tern_dev_stages(l, t->stage_set, &t->stage_tile_bytes);
    for (int i = t->n_layers; i < t->n_spans; i++)
        t->stage_set[i] = sets + (l->caches[0].layers[i].v.dim == 0);
    sets += t->n_spans > t->n_layers ? 2 : 0;
    t->stage_tiles = max_units(l);
    return tern_cuda_take(d, &t->stage, t->stage_tiles * (size_t)sets * t->stage_tile_bytes, err);
}

int tern_cuda_jobs_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    struct tern_cuda_attn *t = d->attn;
    const size_t spans = (size_t)t->n_spans;
    TERN_TRY(tern_alloc(&t->stage_set, spans, sizeof *t->stage_set, err));
    TERN_TRY(tern_alloc(&t->rate_of, spans, sizeof *t->rate_of, err));
    TERN_TRY(tern_alloc(&t->waits, spans, sizeof *t->waits, err));
    TERN_TRY(tern_alloc(&t->units, max_units(l), sizeof *t->units, err));
    t->max_units = max_units(l);
    TERN_TRY(open_rate(t, l, 1, err));
    for (int i = t->n_layers; i < t->n_spans; i++) {
        int r = 0;
        while (r < t->n_rates && t->rates[r].rate != l->caches[0].layers[i].rate)
            r++;
        if (r == t->n_rates)
            TERN_TRY(open_rate(t, l, l->caches[0].layers[i].rate, err));
        t->rate_of[i] = r;
    }
    TERN_TRY(open_stages(d, l, err));
out:
    return rc;
}

void tern_cuda_jobs_close(struct tern_cuda *d)
{
    struct tern_cuda_attn *t = d->attn;
    void *all[] = {t->stage_set, t->rate_of, t->waits, t->units};
    tern_cuda_give(d, t->stage);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
    for (int i = 0; i < t->n_rates; i++) {
        tern_free(t->rates[i].stage_of);
        tern_free(t->rates[i].lists);
        tern_free(t->rates[i].counted);
    }
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Which units a list has. */
typedef bool chooser(const struct tern_cuda_rate *r, int job, int page);

static bool any(const struct tern_cuda_rate *r, int job, int page)
{
    (void)r;
    (void)job;
    (void)page;
    return true;
}

static bool closing(const struct tern_cuda_rate *r, int job, int page)
{
    return (page + 1) * TERN_PAGE <= r->jobs[job].pos0 + r->jobs[job].n_rows;
}

static bool staged(const struct tern_cuda_rate *r, int job, int page)
{
    (void)page;
    return r->stage_of[job] >= 0;
}

static bool wide(const struct tern_cuda_rate *r, int job, int page)
{
    (void)page;
    return r->jobs[job].wide;
}

static bool narrow(const struct tern_cuda_rate *r, int job, int page)
{
    return !wide(r, job, page);
}

static struct tern_cuda_unit unit_of(const struct tern_cuda_rate *r, int job, int page, int rows)
{
    const struct tern_cuda_job *j = &r->jobs[job];
    const int pos0 = page * TERN_PAGE > j->pos0 ? page * TERN_PAGE : j->pos0, stage = r->stage_of[job];
    return (struct tern_cuda_unit){.job = job,
                                   .page = page,
                                   .row0 = j->row0 + pos0 - j->pos0,
                                   .pos0 = pos0,
                                   .n_rows = rows,
                                   .stage = stage < 0 ? -1 : stage + page - j->pos0 / TERN_PAGE,
                                   .tile = j->tile,
                                   .sink = j->sink,
                                   .cache = j->cache,
                                   .tables = j->tables,
                                   .closed = j->pos0 / TERN_PAGE};
}

/* The units of a cache that a chooser wants, sent to the card. */
static struct tern_cuda_list_of make_list(struct tern_cuda *d, const struct tern_cuda_rate *r, int cache,
                                          chooser *choose)
{
    struct tern_cuda_attn *t = d->attn;
    struct tern_cuda_list_of list = {0};
    for (int i = 0; i < d->step.n_jobs; i++) {
        const struct tern_cuda_job *j = &r->jobs[i];
        const int first = j->pos0 / TERN_PAGE;
        for (int page = first; j->cache == cache && page < first + tern_cuda_pages_of(j); page++) {
            if (!choose(r, i, page))
                continue;
            const int rows = tern_cuda_rows_in(j, page);
            TERN_ASSERT((size_t)list.n < t->max_units);
            t->units[list.n++] = unit_of(r, i, page, rows);
            list.rows = rows > list.rows ? rows : list.rows;
        }
    }
    list.p = tern_cuda_send(d, t->units, (size_t)list.n * sizeof *t->units);
    return list;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The step's jobs, or jobs that count rows of several tokens: those that the step completes. */
static void count_rows(struct tern_cuda *d, struct tern_cuda_rate *r)
{
    const int n = d->step.n_jobs;
    r->jobs = d->jobs;
    r->table = d->tables.jobs;
    if (!r->counted)
        return;
    r->n_rows = 0;
    for (int i = 0; i < n; i++) {
        struct tern_cuda_job *j = &r->counted[i];
        *j = d->jobs[i];
        const int end = (j->pos0 + j->n_rows) / r->rate;
        j->pos0 /= r->rate;
        j->n_rows = end - j->pos0;
        j->row0 = r->n_rows;
        r->n_rows += j->n_rows;
    }
    r->jobs = r->counted;
    r->table = tern_cuda_send(d, r->counted, (size_t)n * sizeof *r->counted);
}

static void begin_rate(struct tern_cuda *d, struct tern_cuda_rate *r)
{
    struct tern_cuda_attn *t = d->attn;
    const int n = d->step.n_jobs;
    int used = 0;
    count_rows(d, r);
    for (int i = 0; i < n; i++) {
        const int pages = tern_cuda_pages_of(&r->jobs[i]);
        r->stage_of[i] = pages > 1 ? used : -1;
        used += pages > 1 ? pages : 0;
    }
    TERN_ASSERT((size_t)used <= t->stage_tiles);
    r->stage_table = tern_cuda_send(d, r->stage_of, (size_t)n * sizeof *r->stage_of);
    for (int c = 0; c < t->n_caches; c++) {
        struct tern_cuda_lists *to = &r->lists[c];
        memset(to, 0, sizeof *to);
        to->all = make_list(d, r, c, any);
        to->closing = make_list(d, r, c, closing);
        to->staged = make_list(d, r, c, staged);
        if (r->rate > 1) /* nobody attends to such rows unit by unit */
            continue;
        to->wide = make_list(d, r, c, wide);
        to->narrow = make_list(d, r, c, narrow);
    }
}

void tern_cuda_attn_begin(struct tern_cuda *d)
{
    for (int i = 0; i < d->attn->n_rates; i++)
        begin_rate(d, &d->attn->rates[i]);
}

const struct tern_cuda_layer *tern_cuda_layer_at(const struct tern_cuda *d, int cache, int span)
{
    return &d->attn->layers[cache * d->attn->n_spans + span];
}

struct tern_cuda_rate *tern_cuda_rate_of(const struct tern_cuda *d, int span)
{
    return &d->attn->rates[d->attn->rate_of[span]];
}

struct tern_cuda_stage tern_cuda_stage_at(const struct tern_cuda *d, int span)
{
    const struct tern_cuda_attn *t = d->attn;
    const size_t set = (size_t)t->stage_set[span] * t->stage_tiles * t->stage_tile_bytes;
    return (struct tern_cuda_stage){t->stage + set, t->stage_tile_bytes, tern_cuda_rate_of(d, span)->stage_table};
}
