#include <math.h>
#include "kernel/neon/simd.h"
#include "kernel/vec.h"

/* ---- rmsnorm ---- */

static void rmsnorm(float *y, const float *x, const float *w, int n, float eps)
{
    const float r = 1.0f / sqrtf(square_sum16(x, n) / (float)n + eps);
    for (int i = 0; i < n; i += 4) {
        float32x4_t v = vmulq_n_f32(load_part(x + i, n - i), r);
        if (w)
            v = vmulq_f32(v, load_part(w + i, n - i));
        store_part(y + i, n - i, v);
    }
}

/* ---- sums and products ---- */

static void add(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += 4)
        store_part(y + i, n - i, vaddq_f32(load_part(a + i, n - i), load_part(b + i, n - i)));
}

static void scale(float *y, const float *x, float s, int n)
{
    for (int i = 0; i < n; i += 4)
        store_part(y + i, n - i, vmulq_n_f32(load_part(x + i, n - i), s));
}

/* ---- activations ---- */

static void silu_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 4) {
        float32x4_t g = load_part(gate + i, n - i);
        store_part(y + i, n - i, logistic_product(g, vnegq_f32(g), load_part(up + i, n - i)));
    }
}

/* 0.5 * (1 + tanh(u)) is 1 / (1 + exp(-2u)). */
static void gelu_mul(float *y, const float *gate, const float *up, int n)
{
    const float32x4_t linear = vdupq_n_f32(-1.5957691216f); /* -2 sqrt(2/pi) */
    const float32x4_t cubic = vdupq_n_f32(-1.5957691216f * 0.044715f);
    for (int i = 0; i < n; i += 4) {
        float32x4_t g = load_part(gate + i, n - i);
        float32x4_t t = vmulq_f32(g, vfmaq_f32(linear, vmulq_f32(g, g), cubic));
        store_part(y + i, n - i, logistic_product(g, t, load_part(up + i, n - i)));
    }
}

static void sigmoid_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 4) {
        float32x4_t t = vnegq_f32(load_part(gate + i, n - i));
        store_part(y + i, n - i, logistic_product(vdupq_n_f32(1.0f), t, load_part(up + i, n - i)));
    }
}

static void softcap(float *y, const float *x, float cap, int n)
{
    const float32x4_t c = vdupq_n_f32(cap);
    for (int i = 0; i < n; i += 4)
        store_part(y + i, n - i, vmulq_f32(c, tanh_vec(vdivq_f32(load_part(x + i, n - i), c))));
}

/* ---- rope ---- */

/* Four pairs (a, b), turned by the angles of c and s. */
static inline float32x4x2_t turn(float32x4x2_t v, float32x4_t c, float32x4_t s)
{
    float32x4x2_t out;
    out.val[0] = vfmaq_f32(vnegq_f32(vmulq_f32(v.val[1], s)), v.val[0], c);
    out.val[1] = vfmaq_f32(vmulq_f32(v.val[0], s), v.val[1], c);
    return out;
}

static void rope_halves(float *x, const float *cos, const float *sin, int half)
{
    for (int i = 0; i < half; i += 4) {
        int n = half - i;
        float32x4x2_t v = {{load_part(x + i, n), load_part(x + half + i, n)}};
        v = turn(v, load_part(cos + i, n), load_part(sin + i, n));
        store_part(x + i, n, v.val[0]);
        store_part(x + half + i, n, v.val[1]);
    }
}

static void rope_pairs(float *x, const float *cos, const float *sin, int half)
{
    int i = 0;
    for (; i + 4 <= half; i += 4)
        vst2q_f32(x + 2 * i, turn(vld2q_f32(x + 2 * i), vld1q_f32(cos + i), vld1q_f32(sin + i)));
    if (i < half) {
        float last[8] = {0};
        size_t bytes = (size_t)(half - i) * 2 * sizeof *last;
        memcpy(last, x + 2 * i, bytes);
        vst2q_f32(last, turn(vld2q_f32(last), load_part(cos + i, half - i), load_part(sin + i, half - i)));
        memcpy(x + 2 * i, last, bytes);
    }
}

static void rope(float *x, const float *cos, const float *sin, int n_rot, int interleaved)
{
    if (interleaved)
        rope_pairs(x, cos, sin, n_rot / 2);
    else
        rope_halves(x, cos, sin, n_rot / 2);
}

void tern_vec_init_neon(struct tern_vec_kernels *k)
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
