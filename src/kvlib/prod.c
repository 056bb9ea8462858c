/* TurboQuant_prod, the paper's unbiased code, for comparison: plain C, in the paper's own steps.
 *
 * With y = R x, R the rotation of the rotated schemes, and the scalar code c of y at b - 1 bits, the residual r = y - c
 * is kept as its norm and z = sign(S r), S a matrix of independent standard normals.  By the QJL lemma
 * (arXiv:2406.03482)
 *
 *     <Rq, c> + |r| sqrt(pi/2)/d <S Rq, z>        estimates <q, x> without bias
 *
 * The paper (arXiv:2504.19874) has S act on the residual before the rotation; a normal matrix does not notice. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "kvlib/kvlib.h"
#include "tern/kvq.h"

#define HALF_PI 1.5707963267948966

struct ternkv_prod {
    _Alignas(TERN_ALIGN) float sign[TERN_KVQ_MAX_DIM];
    float *normal; /* S: [dim][dim] */
    int dim, bits;
};

/* In front of a vector's symbols: scalar code in the low bits - 1 bits, sign of the projection above it; symbol i in
 * bits i * bits and up. */
struct code {
    float unit;     /* value of level 1: |x| / sqrt(dim) */
    float residual; /* |r| */
    uint8_t symbols[];
};

/* Standard normals by Box and Muller from a counter-based hash: the same matrix in every process. */
static void fill_normal(ternkv_prod *p, int layer)
{
    const size_t n = (size_t)p->dim * (size_t)p->dim;
    for (size_t i = 0; i < n; i += 2) {
        uint64_t counter = ((uint64_t)(uint32_t)layer << 32 | i) ^ 0x716A6C2070726F64u;
        double u = (double)((tern_hash64(counter) >> 11) + 1) * 0x1p-53;
        double angle = (double)(tern_hash64(counter ^ 1) >> 11) * 0x1p-53 * 4 * HALF_PI, r = sqrt(-2 * log(u));
        p->normal[i] = (float)(r * cos(angle));
        p->normal[i + 1] = (float)(r * sin(angle));
    }
}

int ternkv_prod_open(ternkv_prod **out, int dim, int bits, int layer, tern_error *err)
{
    int rc = 0;
    ternkv_prod *p = NULL;
    const char *why = NULL;
    *out = NULL;
    if (bits < 1 || bits > 5)
        TERN_FAIL(err, TERN_EINVAL, "TurboQuant_prod takes 1 to 5 bits, not %d", bits);
    if (!tern_kv_codec_find("l4", 2)->accepts(dim, &why))
        TERN_FAIL(err, TERN_EINVAL, "TurboQuant_prod cannot code vectors of %d dims: %s", dim, why);
    if (layer < 0)
        TERN_FAIL(err, TERN_EINVAL, "layer %d is negative", layer);
    ternkv_start();
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    TERN_TRY(tern_alloc(&p->normal, (size_t)dim * (size_t)dim, sizeof *p->normal, err));
    p->dim = dim;
    p->bits = bits;
    tern_kv_signs(p->sign, dim, layer, true);
    fill_normal(p, layer);
    *out = p;
    p = NULL;
out:
    ternkv_prod_close(&p);
    return rc;
}

void ternkv_prod_close(ternkv_prod **prod)
{
    if (!prod || !*prod)
        return;
    tern_free((*prod)->normal);
    tern_free(*prod);
    *prod = NULL;
}

size_t ternkv_prod_bytes(const ternkv_prod *p)
{
    return sizeof(struct code) + (size_t)p->dim * (size_t)p->bits / 8;
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* ---- symbols ------------------------------------------------------------------------------------------------ */

static void put_symbol(uint8_t *p, int i, int bits, unsigned symbol)
{
    for (int b = 0, at = i * bits; b < bits; b++, at++)
        p[at / 8] |= (uint8_t)((symbol >> b & 1) << at % 8);
}

static unsigned get_symbol(const uint8_t *p, int i, int bits)
{
    unsigned symbol = 0;
    for (int b = 0, at = i * bits; b < bits; b++, at++)
        symbol |= (unsigned)(p[at / 8] >> at % 8 & 1) << b;
    return symbol;
}

/* What the scalar part of a symbol stands for, at unit 1.  Of one bit, none is scalar. */
static float level_of(const ternkv_prod *p, unsigned symbol)
{
    return p->bits > 1 ? TERN_KV_LEVELS(p->bits - 1)[symbol & ((1u << (p->bits - 1)) - 1)] : 0;
}

static unsigned nearest_level(const ternkv_prod *p, float z)
{
    const float *level = TERN_KV_LEVELS(p->bits - 1);
    unsigned k = 0;
    while (k + 1 < 1u << (p->bits - 1) && z > (level[k] + level[k + 1]) * 0.5f)
        k++;
    return k;
}

/* ---- coding ------------------------------------------------------------------------------------------------- */

static void encode_vector(const ternkv_prod *p, struct code *c, const float *x)
{
    const int dim = p->dim, scalar = p->bits - 1;
    float y[TERN_KVQ_MAX_DIM] __attribute__((aligned(TERN_ALIGN)));
    memset(c, 0, ternkv_prod_bytes(p));
    memcpy(y, x, (size_t)dim * sizeof *y);
    tern_k.kvq.rotate(y, p->sign, dim, 0);
    float unit = (float)sqrt(dot(y, y, dim) / dim);
    if (!isfinite(unit) || unit < TERN_KVQ_TINY)
        return;
    for (int i = 0; i < dim && scalar; i++) {
        unsigned symbol = nearest_level(p, y[i] / unit);
        put_symbol(c->symbols, i, p->bits, symbol);
        y[i] -= level_of(p, symbol) * unit;
    }
    c->unit = unit;
    c->residual = (float)sqrt(dot(y, y, dim));
    for (int i = 0; i < dim; i++) {
        unsigned negative = dot(p->normal + (size_t)i * (size_t)dim, y, dim) < 0;
        put_symbol(c->symbols, i, p->bits, negative << scalar);
    }
}

int ternkv_prod_encode(const ternkv_prod *p, void *codes, const float *x, int n, tern_error *err)
{
    if (n < 0)
        return tern_err_set(err, TERN_EINVAL, "%d vectors cannot be coded", n);
    if ((uintptr_t)codes % sizeof(float))
        return tern_err_set(err, TERN_EINVAL, "codes must be 4-byte aligned, and lie at %p", codes);
    for (size_t i = 0; i < (size_t)n; i++)
        encode_vector(p, (struct code *)(void *)((uint8_t *)codes + i * ternkv_prod_bytes(p)), x + i * (size_t)p->dim);
    return 0;
}

static float score_vector(const ternkv_prod *p, const struct code *c, const float *q, const float *projected)
{
    double scalar = 0, residual = 0;
    for (int i = 0; i < p->dim; i++) {
        unsigned symbol = get_symbol(c->symbols, i, p->bits);
        scalar += (double)q[i] * (double)level_of(p, symbol);
        residual += symbol >> (p->bits - 1) ? -(double)projected[i] : (double)projected[i];
    }
    return (float)((double)c->unit * scalar + (double)c->residual * sqrt(HALF_PI) / p->dim * residual);
}

int ternkv_prod_score(const ternkv_prod *p, float *s, const float *q, int n_q, const void *codes, int n,
                      tern_error *err)
{
    const size_t dim = (size_t)p->dim;
    float y[TERN_KVQ_MAX_DIM] __attribute__((aligned(TERN_ALIGN))), projected[TERN_KVQ_MAX_DIM];
    if (n < 0 || n_q < 0)
        return tern_err_set(err, TERN_EINVAL, "%d queries and %d vectors cannot be scored", n_q, n);
    if ((uintptr_t)codes % sizeof(float))
        return tern_err_set(err, TERN_EINVAL, "codes must be 4-byte aligned, and lie at %p", codes);
    for (size_t i = 0; i < (size_t)n_q; i++) {
        memcpy(y, q + i * dim, dim * sizeof *y);
        tern_k.kvq.rotate(y, p->sign, p->dim, 0);
        for (int d = 0; d < p->dim; d++)
            projected[d] = (float)dot(p->normal + (size_t)d * dim, y, p->dim);
        for (size_t j = 0; j < (size_t)n; j++) {
            const void *code = (const uint8_t *)codes + j * ternkv_prod_bytes(p);
            s[i * (size_t)n + j] = score_vector(p, code, y, projected);
        }
    }
    return 0;
}
