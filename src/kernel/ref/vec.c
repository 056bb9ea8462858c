#include <math.h>
#include "kernel/vec.h"

static void rmsnorm(float *y, const float *x, const float *w, int n, float eps)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    }
    float r = 1.0f / sqrtf(lane[0] / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = w ? x[i] * r * w[i] : x[i] * r;
}

static void add(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void scale(float *y, const float *x, float s, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = x[i] * s;
}

/* In double: the exponential neither overflows nor eats into the budget, whatever the C library's expf does. */
static double logistic_product(double gate, double t, double up)
{
    return gate == -INFINITY ? -0.0 * up : gate / (1 + exp(t)) * up;
}

static void silu_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = (float)logistic_product(gate[i], -(double)gate[i], up[i]);
}

/* 0.5 * (1 + tanh(u)) is 1 / (1 + exp(-2u)). */
static void gelu_mul(float *y, const float *gate, const float *up, int n)
{
    const double root = 0.7978845608028654; /* sqrt(2/pi) */
    for (int i = 0; i < n; i++) {
        double g = gate[i], u = root * (g + 0.044715 * g * g * g);
        y[i] = (float)logistic_product(g, -2 * u, up[i]);
    }
}

static void sigmoid_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = (float)logistic_product(1, -(double)gate[i], up[i]);
}

static void rope(float *x, const float *cos, const float *sin, int n_rot, int interleaved)
{
    int half = n_rot / 2;
    for (int i = 0; i < half; i++) {
        float *pa = interleaved ? x + 2 * i : x + i;
        float *pb = interleaved ? x + 2 * i + 1 : x + i + half;
        float a = *pa, b = *pb;
        *pa = fmaf(a, cos[i], -(b * sin[i]));
        *pb = fmaf(b, cos[i], a * sin[i]);
    }
}

static void softcap(float *y, const float *x, float cap, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = (float)(cap * tanh((double)x[i] / cap));
}

void tern_vec_init_ref(struct tern_vec_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->add = add;
    k->scale = scale;
    k->silu_mul = silu_mul;
    k->gelu_mul = gelu_mul;
    k->sigmoid_mul = sigmoid_mul;
    k->rope = rope;
    k->softcap = softcap;
}
