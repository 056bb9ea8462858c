#include "kernel/avx2/simd.h"
#include "kernel/delta.h"

#define COLS TERN_DELTA_COLS

static __m256 sum4(const __m256 part[4])
{
    return _mm256_add_ps(_mm256_add_ps(part[0], part[2]), _mm256_add_ps(part[1], part[3]));
}

/* Half of the columns of one token. */
static inline void scan_half(float *s, int dk, const float *q, const float *k, const float *v, float decay, float beta,
                             float *out)
{
    const __m256 g = _mm256_set1_ps(decay);
    __m256 m[4], o[4];
    for (int j = 0; j < 4; j++)
        m[j] = o[j] = _mm256_setzero_ps();
    for (int i = 0; i < dk; i += 4) {
        for (int j = 0; j < 4; j++) {
            __m256 t = _mm256_mul_ps(_mm256_load_ps(s + (size_t)(i + j) * COLS), g);
            m[j] = _mm256_fmadd_ps(_mm256_broadcast_ss(k + i + j), t, m[j]);
        }
    }
    const __m256 d = _mm256_mul_ps(_mm256_set1_ps(beta), _mm256_sub_ps(_mm256_load_ps(v), sum4(m)));
    for (int i = 0; i < dk; i += 4) {
        for (int j = 0; j < 4; j++) {
            float *row = s + (size_t)(i + j) * COLS;
            __m256 t = _mm256_mul_ps(_mm256_load_ps(row), g);
            t = _mm256_fmadd_ps(_mm256_broadcast_ss(k + i + j), d, t);
            _mm256_store_ps(row, t);
            o[j] = _mm256_fmadd_ps(_mm256_broadcast_ss(q + i + j), t, o[j]);
        }
    }
    _mm256_store_ps(out, sum4(o));
}

static void scan(float *s, const struct tern_delta_rows *r)
{
    for (int t = 0; t < r->n_rows; t++) {
        size_t at = (size_t)t * r->stride, gate = (size_t)t * r->gate_stride;
        float *out = r->out + (size_t)t * r->out_stride;
        for (int h = 0; h < COLS; h += 8)
            scan_half(s + h, r->dk, r->q + at, r->k + at, r->v + at + h, r->gate[gate], r->beta[gate], out + h);
    }
}

static void conv(float *y, const float *const *x, const float *w, size_t w_stride, int width, int n)
{
    for (int c = 0; c < n; c += 8) {
        __m256 sum = _mm256_mul_ps(load_part(w + c, n - c), load_part(x[0] + c, n - c));
        for (int j = 1; j < width; j++)
            sum = _mm256_fmadd_ps(load_part(w + (size_t)j * w_stride + c, n - c), load_part(x[j] + c, n - c), sum);
        __m256 t = _mm256_xor_ps(sum, _mm256_set1_ps(-0.0f));
        store_part(y + c, n - c, logistic_product(sum, t, _mm256_set1_ps(1.0f)));
    }
}

void tern_delta_init_avx2(struct tern_delta_kernels *k)
{
    k->scan = scan;
    k->conv = conv;
}
