/* Key conditioning: plain C, the same operations in the same order on every machine. */
#include <math.h>
#include <string.h>
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

/* accum_f32 with queries in the place of lanes and dims in that of tokens: one chain per query, many side by side. */
void tern_kv_cond_shifts(const struct tern_kv_cond *c, float *out, const float *q, int n_q, int dim)
{
    enum { ROWS = TERN_PAGE, DIMS = TERN_PAGE };
    float turned[DIMS * ROWS] __attribute__((aligned(64))), sum[ROWS] __attribute__((aligned(64)));
    for (int r0 = 0; r0 < n_q; r0 += ROWS) {
        const int rows = n_q - r0 < ROWS ? n_q - r0 : ROWS, lanes = (rows + 7) / 8 * 8;
        memset(sum, 0, sizeof sum);
        memset(turned, 0, sizeof *turned * (size_t)(rows < lanes ? lanes * DIMS : 0));
        for (int d0 = 0; d0 < dim; d0 += DIMS) {
            const int n = dim - d0 < DIMS ? dim - d0 : DIMS;
            for (int r = 0; r < rows; r++) {
                const float *x = q + (size_t)(r0 + r) * (size_t)dim + d0;
                for (int d = 0; d < n; d++)
                    turned[d * lanes + r] = x[d];
            }
            tern_k.attn.accum_f32(sum, c->mean + d0, turned, NULL, lanes, n, 1);
        }
        memcpy(out + r0, sum, (size_t)rows * sizeof *out);
    }
}

void tern_kv_cond_turn(struct tern_kv_cond *c)
{
    for (int i = 0; i < c->n_pairs; i++)
        angles(&c->pairs[i], 0, c->turns[2 * i], c->turns[2 * i + 1]);
}

/* The angle of token pos0 + j is that of pos0 plus that of j: the first goes into the query's two products with the
 * mean, the second is the same for every page, and so a page costs 2 products per pair, token and row. */
void tern_kv_cond_pairs(const struct tern_kv_cond *c, float *s, const float *q, int n_q, int dim, int pos0)
{
    enum { ROWS = 16 };
    float p[ROWS][TERN_PAGE] __attribute__((aligned(64))), co[TERN_KV_MAX_PAIRS], si[TERN_KV_MAX_PAIRS];
    for (int i = 0; i < c->n_pairs; i++) {
        co[i] = (float)cos((double)c->pairs[i].freq * pos0);
        si[i] = (float)sin((double)c->pairs[i].freq * pos0);
    }
    for (int r0 = 0; r0 < n_q; r0 += ROWS) {
        int rows = n_q - r0 < ROWS ? n_q - r0 : ROWS;
        for (int r = 0; r < rows; r++) {
            const float *x = q + (size_t)(r0 + r) * (size_t)dim;
            for (int i = 0; i < c->n_pairs; i++) {
                const struct tern_kv_pair *m = &c->pairs[i];
                float along = x[m->a] * m->re + x[m->b] * m->im, across = x[m->b] * m->re - x[m->a] * m->im;
                p[r][2 * i] = along * co[i] + across * si[i];
                p[r][2 * i + 1] = across * co[i] - along * si[i];
            }
        }
        tern_k.attn.accum_f32(s + (size_t)r0 * TERN_PAGE, p[0], c->turns[0], NULL, TERN_PAGE, 2 * c->n_pairs, rows);
    }
}

void tern_kv_cond_keys(const struct tern_kv_cond *c, float *x, int n, int dim, int pos0)
{
    float turns[2][TERN_PAGE];
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        const float *cosine = c->turns[2 * i], *sine = c->turns[2 * i + 1];
        if (pos0) {
            angles(p, pos0, turns[0], turns[1]);
            cosine = turns[0];
            sine = turns[1];
        }
        for (int j = 0; j < n; j++) {
            x[j * dim + p->a] -= p->re * cosine[j] - p->im * sine[j];
            x[j * dim + p->b] -= p->re * sine[j] + p->im * cosine[j];
        }
    }
    for (int j = 0; j < n; j++)
        for (int d = 0; d < dim; d++)
            x[j * dim + d] = (x[j * dim + d] - c->mean[d]) * c->scale[d];
}

void tern_kv_cond_restore(const struct tern_kv_cond *c, float *x, int dim, int pos0)
{
    float cosine[TERN_PAGE], sine[TERN_PAGE];
    for (int j = 0; j < TERN_PAGE; j++)
        for (int d = 0; d < dim; d++)
            x[j * dim + d] = x[j * dim + d] * c->unscale[d] + c->mean[d];
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        angles(p, pos0, cosine, sine);
        for (int j = 0; j < TERN_PAGE; j++) {
            x[j * dim + p->a] += p->re * cosine[j] - p->im * sine[j];
            x[j * dim + p->b] += p->re * sine[j] + p->im * cosine[j];
        }
    }
}
