#include <math.h>
#include "kernel/delta.h"

#define COLS TERN_DELTA_COLS

static float sum4(const float (*part)[COLS], int c)
{
    return (part[0][c] + part[2][c]) + (part[1][c] + part[3][c]);
}

static void scan_row(float *s, int dk, const float *q, const float *k, const float *v, float decay, float beta,
                     float *out)
{
    float m[4][COLS] = {0}, d[COLS], o[4][COLS] = {0};
    for (int i = 0; i < dk; i++) {
        float *row = s + (size_t)i * COLS;
        for (int c = 0; c < COLS; c++) {
            row[c] *= decay;
            m[i % 4][c] = fmaf(k[i], row[c], m[i % 4][c]);
        }
    }
    for (int c = 0; c < COLS; c++)
        d[c] = beta * (v[c] - sum4(m, c));
    for (int i = 0; i < dk; i++) {
        float *row = s + (size_t)i * COLS;
        for (int c = 0; c < COLS; c++) {
            row[c] = fmaf(k[i], d[c], row[c]);
            o[i % 4][c] = fmaf(q[i], row[c], o[i % 4][c]);
        }
    }
    for (int c = 0; c < COLS; c++)
        out[c] = sum4(o, c);
}

static void scan(float *s, const struct tern_delta_rows *r)
{
    for (int t = 0; t < r->n_rows; t++) {
        size_t at = (size_t)t * r->stride, gate = (size_t)t * r->gate_stride;
        scan_row(s, r->dk, r->q + at, r->k + at, r->v + at, r->gate[gate], r->beta[gate],
                 r->out + (size_t)t * r->out_stride);
    }
}

static void conv(float *y, const float *const *x, const float *w, size_t w_stride, int width, int n)
{
    for (int c = 0; c < n; c++) {
        float sum = w[c] * x[0][c];
        for (int j = 1; j < width; j++)
            sum = fmaf(w[(size_t)j * w_stride + (size_t)c], x[j][c], sum);
        y[c] = sum == -INFINITY ? -0.0f : (float)(sum / (1 + exp(-(double)sum)));
    }
}

void tern_delta_init_ref(struct tern_delta_kernels *k)
{
    k->scan = scan;
    k->conv = conv;
}
