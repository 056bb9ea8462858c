/* Layers with a recurrent state: the convolution, then the gated delta rule.  Channels never meet in the first, columns
 * of a head never in the second, so both are cut there and run through a job's rows in order: the same bits for every
 * cut of a prompt, every batch and every number of threads. */
#include "dev/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define CHANNELS 128 /* of a task: the rows that are left to the next step fit a small array */

static size_t channels_of(const struct tern_delta *l)
{
    return 2 * (size_t)l->n_k * (size_t)l->dk + (size_t)l->n_v * (size_t)l->dv;
}

struct work {
    const struct tern_delta *l;
    const float *conv, *a, *dt;
    const struct tern_delta_job *jobs;
    float *x;
    size_t stride;
    float *decay, *beta;
    size_t gate_stride;
    float *out;
    size_t out_stride;
    int parts; /* of a job */
};

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* Row `row` of a job's input, of which those before the first are the state's. */
static const float *input_row(const struct work *w, const struct tern_delta_job *j, const float *state, int row)
{
    if (row >= 0)
        return w->x + (size_t)(j->row0 + row) * w->stride;
    return state + (size_t)(w->l->width - 1 + row) * channels_of(w->l);
}

/* The last rows before row `end`, of n channels from c on: what the convolution of row `end` reads besides. */
static void tail(const struct work *w, const struct tern_delta_job *j, int end, int c, int n, float *to,
                 size_t to_stride)
{
    const int width = w->l->width;
    for (int i = 0; i < width - 1; i++)
        memcpy(to + (size_t)i * to_stride, input_row(w, j, j->state, end - width + 1 + i) + c, (size_t)n * sizeof *to);
}

/* Backwards, so that a row is overwritten after all that read it. */
static void conv_task(void *ctx, int task, int worker)
{
    const struct work *w = ctx;
    const struct tern_delta *l = w->l;
    const struct tern_delta_job *j = &w->jobs[task / w->parts];
    const size_t all = channels_of(l);
    const int c = task % w->parts * CHANNELS, n = (int)all - c < CHANNELS ? (int)all - c : CHANNELS;
    float last[TERN_DELTA_WIDTH - 1][CHANNELS];
    const float *x[TERN_DELTA_WIDTH];
    (void)worker;
    tail(w, j, j->n_rows, c, n, last[0], CHANNELS);
    for (int m = 0; m < j->n_marks; m++)
        tail(w, j, j->marks[m].at, c, n, j->marks[m].to + c, all);
    for (int r = j->n_rows - 1; r >= 0; r--) {
        for (int i = 0; i < l->width; i++)
            x[i] = input_row(w, j, j->state, r - l->width + 1 + i) + c;
        tern_k.delta.conv(w->x + (size_t)(j->row0 + r) * w->stride + c, x, w->conv + c, all, l->width, n);
    }
    for (int i = 0; i < l->width - 1; i++)
        memcpy(j->state + (size_t)i * all + c, last[i], (size_t)n * sizeof(float));
}

/* ---- what rows bring into the rule ------------------------------------------------------------------------------- */

/* x / sqrt(sum of squares + eps), as a mean: then times `scale` besides. */
static void normalise(float *x, int n, float scale)
{
    tern_k.vec.rmsnorm(x, x, NULL, n, 1e-6f / (float)n);
    tern_k.vec.scale(x, x, scale, n);
}

static void gates_row(const void *args, int r)
{
    const struct work *w = args;
    const struct tern_delta *l = w->l;
    float *x = w->x + (size_t)r * w->stride;
    const double length = 1 / sqrt(l->dk);
    for (int h = 0; h < l->n_k; h++) {
        normalise(x + (size_t)h * (size_t)l->dk, l->dk, (float)(length * length));
        normalise(x + (size_t)(l->n_k + h) * (size_t)l->dk, l->dk, (float)length);
    }
    float *decay = w->decay + (size_t)r * w->gate_stride, *beta = w->beta + (size_t)r * w->gate_stride;
    for (int h = 0; h < l->n_v; h++) {
        double t = (double)decay[h] + (double)w->dt[h];
        double softplus = t > 0 ? t + log1p(exp(-t)) : log1p(exp(t));
        decay[h] = (float)exp((double)w->a[h] * softplus);
        beta[h] = (float)(1 / (1 + exp(-(double)beta[h])));
    }
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

static void scan_task(void *ctx, int task, int worker)
{
    const struct work *w = ctx;
    const struct tern_delta *l = w->l;
    const struct tern_delta_job *j = &w->jobs[task / w->parts];
    const int part = task % w->parts, per_head = l->dv / TERN_DELTA_COLS, h = part / per_head;
    const int h_k = l->grouped ? h / (l->n_v / l->n_k) : h % l->n_k;
    const size_t dk = (size_t)l->dk, col = (size_t)part * TERN_DELTA_COLS, block = dk * TERN_DELTA_COLS;
    const size_t at = channels_of(l) * (size_t)(l->width - 1) + (size_t)part * block, row0 = (size_t)j->row0;
    const float *x = w->x + row0 * w->stride;
    struct tern_delta_rows r = {.dk = l->dk,
                                .q = x + (size_t)h_k * dk,
                                .k = x + (size_t)(l->n_k + h_k) * dk,
                                .v = x + 2 * (size_t)l->n_k * dk + col,
                                .stride = w->stride,
                                .gate = w->decay + row0 * w->gate_stride + h,
                                .beta = w->beta + row0 * w->gate_stride + h,
                                .gate_stride = w->gate_stride,
                                .out = w->out + row0 * w->out_stride + col,
                                .out_stride = w->out_stride};
    (void)worker;
    for (int m = 0, done = 0; m <= j->n_marks; m++) {
        const int to = m < j->n_marks ? j->marks[m].at : j->n_rows;
        const size_t n = (size_t)(to - done);
        r.n_rows = (int)n;
        if (n)
            tern_k.delta.scan(j->state + at, &r);
        if (m < j->n_marks)
            memcpy(j->marks[m].to + at, j->state + at, block * sizeof(float));
        r.q += n * w->stride;
        r.k += n * w->stride;
        r.v += n * w->stride;
        r.gate += n * w->gate_stride;
        r.beta += n * w->gate_stride;
        r.out += n * w->out_stride;
        done = to;
    }
}

void tern_cpu_delta_jobs(struct tern_cpu *d, const struct tern_delta *l, const struct tern_delta_job *jobs, int n_jobs,
                         const struct tern_delta_io *io, int n_rows)
{
    struct work w = {.l = l,
                     .conv = tern_cpu_vec(l->conv),
                     .a = tern_cpu_vec(l->a),
                     .dt = tern_cpu_vec(l->dt),
                     .jobs = jobs,
                     .x = tern_cpu_f32(io->x),
                     .stride = io->x.stride,
                     .decay = tern_cpu_f32(io->decay),
                     .beta = tern_cpu_f32(io->beta),
                     .gate_stride = io->decay.stride,
                     .out = tern_cpu_f32(io->out),
                     .out_stride = io->out.stride};
    const int channels = (int)channels_of(l);
    w.parts = (channels + CHANNELS - 1) / CHANNELS;
    tern_pool_run(d->pool, conv_task, &w, n_jobs * w.parts);
    tern_cpu_each_row(d, gates_row, &w, n_rows, channels + 64 * l->n_v);
    w.parts = l->n_v * (l->dv / TERN_DELTA_COLS);
    tern_pool_run(d->pool, scan_task, &w, n_jobs * w.parts);
}
