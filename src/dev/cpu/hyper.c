/* Residual streams that mix: weights out of their products, and the streams' sums by them. */
#include "dev/cpu/cpu.h"

#include <math.h>
#include "base/err.h"

#define LANES 16

struct hyper_args {
    const struct tern_hyper *h;
    const float *base, *scale;
    float *m, *streams, *x;
    size_t m_stride, stream_stride, x_stride;
};

/* 1 / sqrt(mean square + eps), summed in lanes. */
static double inverse_root(const float *x, int n, float eps)
{
    double lane[LANES] = {0}, sum = 0;
    for (int i = 0; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int i = n / LANES * LANES; i < n; i++)
        lane[i % LANES] += (double)x[i] * (double)x[i];
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return 1 / sqrt(sum / n + (double)eps);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void divide_rows(double *c, int n, double eps)
{
    for (int j = 0; j < n; j++) {
        double sum = eps;
        for (int k = 0; k < n; k++)
            sum += c[j * n + k];
        for (int k = 0; k < n; k++)
            c[j * n + k] /= sum;
    }
}

static void divide_columns(double *c, int n, double eps)
{
    for (int k = 0; k < n; k++) {
        double sum = eps;
        for (int j = 0; j < n; j++)
            sum += c[j * n + k];
        for (int j = 0; j < n; j++)
            c[j * n + k] /= sum;
    }
}

/* Rows' softmax, then rows and columns divided by their sums by turns, columns first and last. */
static void make_stochastic(double *c, int n, int iterations, double eps)
{
    for (int j = 0; j < n; j++) {
        double max = c[j * n], sum = 0;
        for (int k = 1; k < n; k++)
            max = fmax(max, c[j * n + k]);
        for (int k = 0; k < n; k++)
            sum += c[j * n + k] = exp(c[j * n + k] - max);
        for (int k = 0; k < n; k++)
            c[j * n + k] = c[j * n + k] / sum + eps;
    }
    divide_columns(c, n, eps);
    for (int i = 1; i < iterations; i++) {
        divide_rows(c, n, eps);
        divide_columns(c, n, eps);
    }
}

/* m becomes pre[n], post[n] (twice a sigmoid), matrix[n][n]. */
static void weigh(const struct hyper_args *a, float *m, double root)
{
    const struct tern_hyper *h = a->h;
    const int n = h->n;
    double c[TERN_MAX_STREAMS * TERN_MAX_STREAMS];
    for (int j = 0; j < n; j++)
        m[j] = (float)(sigmoid((double)m[j] * root * (double)a->scale[0] + (double)a->base[j]) + (double)h->eps);
    if (!h->iterations)
        return;
    for (int j = n; j < 2 * n; j++)
        m[j] = (float)(2 * sigmoid((double)m[j] * root * (double)a->scale[1] + (double)a->base[j]));
    for (int j = 0; j < n * n; j++)
        c[j] = (double)m[2 * n + j] * root * (double)a->scale[2] + (double)a->base[2 * n + j];
    make_stochastic(c, n, h->iterations, (double)h->eps);
    for (int j = 0; j < n * n; j++)
        m[2 * n + j] = (float)c[j];
}

static void read_row(const void *args, int r)
{
    const struct hyper_args *a = args;
    const size_t dim = (size_t)a->h->dim;
    const float *streams = a->streams + (size_t)r * a->stream_stride;
    float *m = a->m + (size_t)r * a->m_stride, *x = a->x + (size_t)r * a->x_stride;
    weigh(a, m, inverse_root(streams, a->h->n * a->h->dim, a->h->norm_eps));
    for (size_t i = 0; i < dim; i++)
        x[i] = m[0] * streams[i];
    for (int j = 1; j < a->h->n; j++) {
        const float w = m[j], *stream = streams + (size_t)j * dim;
        for (size_t i = 0; i < dim; i++)
            x[i] += w * stream[i];
    }
}

/* In pieces, so that what is read of all streams is there until all are written. */
#define PIECE 64

static void write_row(const void *args, int r)
{
    const struct hyper_args *a = args;
    const int n = a->h->n;
    const size_t dim = (size_t)a->h->dim;
    const float *m = a->m + (size_t)r * a->m_stride, *t = a->x + (size_t)r * a->x_stride, *matrix = m + 2 * n;
    float *streams = a->streams + (size_t)r * a->stream_stride, old[TERN_MAX_STREAMS][PIECE];
    for (size_t at = 0; at < dim; at += PIECE) {
        const size_t end = dim - at < PIECE ? dim - at : PIECE;
        for (int j = 0; j < n; j++)
            for (size_t i = 0; i < end; i++)
                old[j][i] = streams[(size_t)j * dim + at + i];
        for (int k = 0; k < n; k++) {
            float *to = streams + (size_t)k * dim + at;
            for (size_t i = 0; i < end; i++)
                to[i] = m[n + k] * t[at + i];
            for (int j = 0; j < n; j++)
                for (size_t i = 0; i < end; i++)
                    to[i] += matrix[j * n + k] * old[j][i];
        }
    }
}

static struct hyper_args args_of(const struct tern_hyper *h, struct tern_dev_rows m, struct tern_dev_rows streams,
                                 struct tern_dev_rows x)
{
    TERN_ASSERT(h->n >= 1 && h->n <= TERN_MAX_STREAMS);
    return (struct hyper_args){.h = h,
                               .base = tern_cpu_vec(h->base),
                               .scale = tern_cpu_vec(h->scale),
                               .m = tern_cpu_f32(m),
                               .streams = tern_cpu_f32(streams),
                               .x = tern_cpu_f32(x),
                               .m_stride = m.stride,
                               .stream_stride = streams.stride,
                               .x_stride = x.stride};
}

void tern_cpu_hyper_read(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows m,
                         struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows)
{
    const struct hyper_args a = args_of(h, m, streams, x);
    tern_cpu_each_row(tern_cpu_of(dev), read_row, &a, n_rows, 2 * h->n * h->dim + 64 * h->n * h->n);
}

void tern_cpu_hyper_write(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows streams,
                          struct tern_dev_rows m, struct tern_dev_rows t, int n_rows)
{
    const struct hyper_args a = args_of(h, m, streams, t);
    tern_cpu_each_row(tern_cpu_of(dev), write_row, &a, n_rows, h->n * (h->n + 1) * h->dim);
}
