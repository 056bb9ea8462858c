#include "kernel/avx512/simd.h"
#include "kernel/delta.h"

#define COLS TERN_DELTA_COLS

static __m512 sum4(const __m512 part[4])
{
    return _mm512_add_ps(_mm512_add_ps(part[0], part[2]), _mm512_add_ps(part[1], part[3]));
}

/* One token. */
static inline void scan_row(float *s, int dk, const float *q, const float *k, const float *v, float decay, float beta,
                            float *out)
{
    const __m512 g = _mm512_set1_ps(decay);
    __m512 m[4], o[4];
    for (int j = 0; j < 4; j++)
        m[j] = o[j] = _mm512_setzero_ps();
    for (int i = 0; i < dk; i += 4) {
        for (int j = 0; j < 4; j++) {
            __m512 t = _mm512_mul_ps(_mm512_load_ps(s + (size_t)(i + j) * COLS), g);
            m[j] = _mm512_fmadd_ps(_mm512_set1_ps(k[i + j]), t, m[j]);
        }
    }
    const __m512 d = _mm512_mul_ps(_mm512_set1_ps(beta), _mm512_sub_ps(_mm512_load_ps(v), sum4(m)));
    for (int i = 0; i < dk; i += 4) {
        for (int j = 0; j < 4; j++) {
            float *row = s + (size_t)(i + j) * COLS;
            __m512 t = _mm512_mul_ps(_mm512_load_ps(row), g);
            t = _mm512_fmadd_ps(_mm512_set1_ps(k[i + j]), d, t);
            _mm512_store_ps(row, t);
            o[j] = _mm512_fmadd_ps(_mm512_set1_ps(q[i + j]), t, o[j]);
        }
    }
    _mm512_store_ps(out, sum4(o));
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
    for (int c = 0; c < n; c += 16) {
        __m512 sum = _mm512_mul_ps(load_part(w + c, n - c), load_part(x[0] + c, n - c));
        for (int j = 1; j < width; j++)
            sum = _mm512_fmadd_ps(load_part(w + (size_t)j * w_stride + c, n - c), load_part(x[j] + c, n - c), sum);
        __m512 t = _mm512_xor_ps(sum, _mm512_set1_ps(-0.0f));
        store_part(y + c, n - c, logistic_product(sum, t, _mm512_set1_ps(1.0f)));
    }
}

void tern_delta_init_avx512(struct tern_delta_kernels *k)
{
    k->scan = scan;
    k->conv = conv;
}
