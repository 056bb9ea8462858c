#include "kernel/neon/simd.h"
#include "kernel/delta.h"

#define COLS TERN_DELTA_COLS

static float32x4_t sum4(const float32x4_t part[4])
{
    return vaddq_f32(vaddq_f32(part[0], part[2]), vaddq_f32(part[1], part[3]));
}

/* Four of the columns of one token. */
static inline void scan_part(float *s, int dk, const float *q, const float *k, const float *v, float decay, float beta,
                             float *out)
{
    const float32x4_t g = vdupq_n_f32(decay);
    float32x4_t m[4], o[4];
    for (int j = 0; j < 4; j++)
        m[j] = o[j] = vdupq_n_f32(0);
    for (int i = 0; i < dk; i += 4) {
        for (int j = 0; j < 4; j++) {
            float32x4_t t = vmulq_f32(vld1q_f32(s + (size_t)(i + j) * COLS), g);
            m[j] = vfmaq_n_f32(m[j], t, k[i + j]);
        }
    }
    const float32x4_t d = vmulq_f32(vdupq_n_f32(beta), vsubq_f32(vld1q_f32(v), sum4(m)));
    for (int i = 0; i < dk; i += 4) {
        for (int j = 0; j < 4; j++) {
            float *row = s + (size_t)(i + j) * COLS;
            float32x4_t t = vmulq_f32(vld1q_f32(row), g);
            t = vfmaq_n_f32(t, d, k[i + j]);
            vst1q_f32(row, t);
            o[j] = vfmaq_n_f32(o[j], t, q[i + j]);
        }
    }
    vst1q_f32(out, sum4(o));
}

static void scan(float *s, const struct tern_delta_rows *r)
{
    for (int t = 0; t < r->n_rows; t++) {
        size_t at = (size_t)t * r->stride, gate = (size_t)t * r->gate_stride;
        float *out = r->out + (size_t)t * r->out_stride;
        for (int h = 0; h < COLS; h += 4)
            scan_part(s + h, r->dk, r->q + at, r->k + at, r->v + at + h, r->gate[gate], r->beta[gate], out + h);
    }
}

static void conv(float *y, const float *const *x, const float *w, size_t w_stride, int width, int n)
{
    for (int c = 0; c < n; c += 4) {
        float32x4_t sum = vmulq_f32(load_part(w + c, n - c), load_part(x[0] + c, n - c));
        for (int j = 1; j < width; j++)
            sum = vfmaq_f32(sum, load_part(w + (size_t)j * w_stride + c, n - c), load_part(x[j] + c, n - c));
        store_part(y + c, n - c, logistic_product(sum, vnegq_f32(sum), vdupq_n_f32(1.0f)));
    }
}

void tern_delta_init_neon(struct tern_delta_kernels *k)
{
    k->scan = scan;
    k->conv = conv;
}
