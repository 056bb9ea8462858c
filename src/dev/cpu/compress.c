/* Compressed rows: one for every so many tokens, out of what each of them brings.
 *
 * Tokens that wait for the rest of their window, and of a window that the next one overlaps, stand in the layer's state
 * at their position modulo its size.  So a row is made of the same numbers in the same order wherever steps are cut. */
#include "dev/cpu/spans.h"

#include <math.h>
#include <string.h>

/* One call; rows are numbered through all jobs. */
struct work {
    struct tern_cpu *d;
    const struct tern_compress *c;
    const struct tern_cpu_span *span;
    const float *x, *gate, *ape, *norm, *freq;
    size_t x_stride, gate_stride, channels;
    int n_jobs;
};

static int ring_of(const struct tern_compress *c)
{
    return c->rate * (c->overlap ? 2 : 1);
}

size_t tern_compress_floats(const struct tern_compress *c)
{
    return 2 * (size_t)ring_of(c) * (size_t)c->dim * (c->overlap ? 2 : 1);
}

static float *state_in(const struct work *w, int job, uint32_t block)
{
    const struct tern_cpu_step *t = &w->d->step;
    const struct tern_dev_cache *cache = &t->s.caches[tern_cpu_dev_job(t, job)->cache];
    uint8_t *p = tern_block_at(tern_cpu_blocks(cache->states), block) + cache->state_off[w->c->layer];
    return (float *)(void *)p + w->c->state_at;
}

/* What token pos of a job brings: channels of x, and of gate with its constant, in `sum` or where they stand. */
struct token {
    const float *x, *gate;
    const float *ape; /* to be added; NULL: done */
};

static struct token token_of(const struct work *w, int job, const float *state, int pos)
{
    const struct tern_dev_job *j = tern_cpu_dev_job(&w->d->step, job);
    const size_t slot = (size_t)(pos % ring_of(w->c)), row = (size_t)(j->row0 + pos - j->pos0);
    if (pos >= j->pos0)
        return (struct token){w->x + row * w->x_stride, w->gate + row * w->gate_stride,
                              w->ape + (size_t)(pos % w->c->rate) * w->channels};
    const float *x = state + slot * w->channels;
    return (struct token){x, x + (size_t)ring_of(w->c) * w->channels, NULL};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

#define CHANNELS 64 /* at a time */
#define TOKENS   256

/* The tokens that row j is made of, as channels `from` on; how many. */
static int tokens_of(const struct work *w, int job, int row, struct token *out)
{
    const struct tern_compress *c = w->c;
    const float *state = state_in(w, job, tern_cpu_dev_job(&w->d->step, job)->state);
    int n = 0;
    TERN_ASSERT(state);
    for (int pos = (c->overlap && row ? row - 1 : row) * c->rate; pos < (row + 1) * c->rate; pos++) {
        struct token t = token_of(w, job, state, pos);
        const size_t from = c->overlap && pos >= row * c->rate ? (size_t)c->dim : 0;
        out[n++] = (struct token){t.x + from, t.gate + from, t.ape ? t.ape + from : NULL};
    }
    return n;
}

/* out[end - at] = sum over tokens of softmax(gate) * x, channels [at, end). */
static void pool(float *out, const struct token *t, int n, size_t at, size_t end)
{
    float gate[TOKENS][CHANNELS], max[CHANNELS];
    double sum[CHANNELS], total[CHANNELS];
    const size_t width = end - at;
    for (size_t i = 0; i < width; i++) {
        max[i] = -INFINITY;
        sum[i] = total[i] = 0;
    }
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < width; i++) {
            gate[k][i] = t[k].gate[at + i] + (t[k].ape ? t[k].ape[at + i] : 0.0f);
            max[i] = gate[k][i] > max[i] ? gate[k][i] : max[i];
        }
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < width; i++) {
            const double p = exp((double)gate[k][i] - (double)max[i]);
            total[i] += p;
            sum[i] += p * (double)t[k].x[at + i];
        }
    for (size_t i = 0; i < width; i++)
        out[i] = (float)(sum[i] / total[i]);
}

static void turn(const struct work *w, float *row, int pos)
{
    const struct tern_compress *c = w->c;
    float cos_of[TERN_KVQ_MAX_DIM / 2], sin_of[TERN_KVQ_MAX_DIM / 2];
    for (int i = 0; i < c->n_rot / 2; i++) {
        const float angle = (float)pos * w->freq[i];
        double s, co;
        sincos((double)angle, &s, &co);
        cos_of[i] = (float)co;
        sin_of[i] = (float)s;
    }
    tern_k.vec.rope(row + c->dim - c->n_rot, cos_of, sin_of, c->n_rot, true);
}

/* Row `task` of all jobs. */
static void row_task(void *ctx, int task, int worker)
{
    const struct work *w = ctx;
    const struct tern_compress *c = w->c;
    const size_t dim = (size_t)c->dim;
    struct token tokens[TOKENS];
    float *out = w->d->compressed + (size_t)task * dim;
    int job = 0;
    (void)worker;
    while (task >= w->span->at[job].row0 + w->span->at[job].n_rows)
        job++;
    const int row = w->span->at[job].pos0 + task - w->span->at[job].row0;
    const int n = tokens_of(w, job, row, tokens);
    for (size_t at = 0; at < dim; at += CHANNELS)
        pool(out + at, tokens, n, at, at + CHANNELS < dim ? at + CHANNELS : dim);
    tern_k.vec.rmsnorm(out, out, w->norm, c->dim, c->eps);
    turn(w, out, row * c->rate);
    tern_cpu_to_grid(out, c->grid == TERN_GRID_FP8 ? c->dim - c->n_rot : c->dim, c->grid);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* The state after n of a job's rows: slots whose newest token is among these are written.  Others hold what `from`
 * holds, which may be `to`. */
static void write_state(const struct work *w, int job, float *to, const float *from, int n)
{
    const struct tern_dev_job *j = tern_cpu_dev_job(&w->d->step, job);
    const int ring = ring_of(w->c), end = j->pos0 + n;
    const size_t gates = (size_t)ring * w->channels;
    if (to != from)
        memcpy(to, from, 2 * gates * sizeof *to);
    for (int pos = end - ring > j->pos0 ? end - ring : j->pos0; pos < end; pos++) {
        const struct token t = token_of(w, job, from, pos);
        TERN_ASSERT(to && t.ape); /* these are all of the step */
        float *x = to + (size_t)(pos % ring) * w->channels, *gate = x + gates;
        memcpy(x, t.x, w->channels * sizeof *x);
        for (size_t i = 0; i < w->channels; i++)
            gate[i] = t.gate[i] + t.ape[i];
    }
}

static void state_task(void *ctx, int job, int worker)
{
    const struct work *w = ctx;
    const struct tern_dev_job *j = tern_cpu_dev_job(&w->d->step, job);
    float *state = state_in(w, job, j->state);
    (void)worker;
    for (int m = 0; m < j->n_marks; m++)
        write_state(w, job, state_in(w, job, j->marks[m].block), state, j->marks[m].at);
    write_state(w, job, state, state, j->n_rows);
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

static void append(const struct work *w)
{
    struct tern_cpu_step *t = &w->d->step;
    struct tern_cpu_span *s = &t->spans[w->span != &t->spans[0]];
    const size_t dim = (size_t)w->c->dim;
    for (int i = 0; i < w->n_jobs; i++) {
        const struct tern_kv_layer *kv = tern_cpu_kv(t, i, w->c->span);
        if (s->at[i].n_rows)
            tern_cpu_append_jobs(w->d, kv, &s->app[i], 1, w->d->compressed + kv->v.dim, dim, w->d->compressed, dim);
    }
    s->waits = true;
}

void tern_cpu_compress(struct tern_dev *dev, const struct tern_compress *c, struct tern_dev_rows x,
                       struct tern_dev_rows gate)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct work w = {.d = d,
                     .c = c,
                     .span = tern_cpu_span_fill(&d->step, c->span),
                     .x = tern_cpu_f32(x),
                     .gate = tern_cpu_f32(gate),
                     .ape = tern_cpu_vec(c->ape),
                     .norm = tern_cpu_vec(c->norm),
                     .freq = tern_cpu_vec(c->freq),
                     .x_stride = x.stride,
                     .gate_stride = gate.stride,
                     .channels = (size_t)c->dim * (c->overlap ? 2 : 1),
                     .n_jobs = d->step.s.n_jobs};
    int rows = 0;
    TERN_ASSERT(ring_of(c) <= TOKENS && c->dim % TERN_PANEL == 0 && c->n_rot <= c->dim);
    for (int i = 0; i < w.n_jobs; i++)
        rows += w.span->at[i].n_rows;
    tern_pool_run(d->pool, row_task, &w, rows);
    append(&w);
    tern_pool_run(d->pool, state_task, &w, w.n_jobs);
}
