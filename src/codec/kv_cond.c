/* Key conditioning: plain C, the same operations in the same order on every machine. */
#include <math.h>
#include "codec/codec.h"

/* cos and sin of freq * (pos0 + j), j = 0..63.  The angle of pos0 is reduced in double, so that it holds at any context
 * length; encoder and scorer call this same function and so remove and add back the same numbers. */
static void angles(const struct tern_kv_pair *p, int pos0, float cosine[TERN_PAGE], float sine[TERN_PAGE])
{
    double step_c = cos((double)p->freq), step_s = sin((double)p->freq);
    double c = cos((double)p->freq * pos0), s = sin((double)p->freq * pos0);
    for (int j = 0; j < TERN_PAGE; j++) {
        cosine[j] = (float)c;
        sine[j] = (float)s;
        double next = c * step_c - s * step_s;
        s = s * step_c + c * step_s;
        c = next;
    }
}

float tern_kv_cond_shift(const struct tern_kv_cond *c, const float *q, int dim)
{
    float sum = 0;
    for (int d = 0; d < dim; d++)
        sum = fmaf(q[d], c->mean[d], sum);
    return sum;
}

void tern_kv_cond_pairs(const struct tern_kv_cond *c, float *s, const float *q, int pos0)
{
    float cosine[TERN_PAGE], sine[TERN_PAGE];
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        angles(p, pos0, cosine, sine);
        float along = q[p->a] * p->re + q[p->b] * p->im, across = q[p->b] * p->re - q[p->a] * p->im;
        for (int j = 0; j < TERN_PAGE; j++)
            s[j] += along * cosine[j] + across * sine[j];
    }
}

void tern_kv_cond_keys(const struct tern_kv_cond *c, float *x, int dim, int pos0)
{
    float cosine[TERN_PAGE], sine[TERN_PAGE];
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        angles(p, pos0, cosine, sine);
        for (int j = 0; j < TERN_PAGE; j++) {
            x[j * dim + p->a] -= p->re * cosine[j] - p->im * sine[j];
            x[j * dim + p->b] -= p->re * sine[j] + p->im * cosine[j];
        }
    }
    for (int j = 0; j < TERN_PAGE; j++)
        for (int d = 0; d < dim; d++)
            x[j * dim + d] = (x[j * dim + d] - c->mean[d]) * c->scale[d];
}
