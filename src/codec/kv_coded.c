/* What all schemes on page codes do alike: vectors out of the tile, rotation, kernels of kernel/kvq.h. */
#include <string.h>
#include "codec/kv_impl.h"

#define STRIP 16 /* dims of a key tile that are transposed at once: one cache line of each vector */

bool tern_kv_coded_accepts(int dim, const char **why)
{
    if (dim > 0 && dim <= TERN_KVQ_MAX_DIM && dim % 16 == 0)
        return true;
    *why = dim > TERN_KVQ_MAX_DIM ? "the head size is larger than 512" : "the head size is not a multiple of 16";
    return false;
}

bool tern_kv_rotated_accepts(int dim, const char **why)
{
    int odd = dim > 0 ? dim / (dim & -dim) : 0;
    if (!tern_kv_coded_accepts(dim, why))
        return false;
    if (odd <= 7)
        return true;
    *why = "the head size has an odd factor larger than 7";
    return false;
}

size_t tern_kv_bytes4(int dim)
{
    return (size_t)dim * TERN_PAGE / 2;
}

size_t tern_kv_bytes3(int dim)
{
    return (size_t)dim * TERN_PAGE * 3 / 8;
}

size_t tern_kv_bytes2(int dim)
{
    return (size_t)dim * TERN_PAGE / 4;
}

size_t tern_kv_coded_head_bytes(int dim)
{
    return (size_t)tern_kvq_blocks(dim) * TERN_PAGE * sizeof(uint16_t);
}

static const struct tern_kvq_table *table_of(const struct tern_kv_side *side)
{
    return &((const struct tern_kv_scheme *)side->codec)->table;
}

static void rotate_rows(const struct tern_kv_side *side, float *x, int n, int inverse)
{
    if (!side->codec->rotated)
        return;
    for (int i = 0; i < n; i++)
        tern_k.kvq.rotate(x + (size_t)i * (size_t)side->dim, side->sign, side->dim, inverse);
}

/* Key tile [dim][64] to vectors [64][dim].  strip: STRIP * 64 floats. */
static void gather_keys(const struct tern_kv_side *side, float *x, const void *tile, float *strip)
{
    const size_t dim = (size_t)side->dim;
    for (size_t d = 0; d < dim; d += STRIP) {
        const float *from = strip;
        if (side->raw32)
            from = (const float *)tile + d * TERN_PAGE;
        else
            tern_k.attn.f16_to_f32(strip, (const uint16_t *)tile + d * TERN_PAGE, STRIP * TERN_PAGE);
        for (size_t t = 0; t < TERN_PAGE; t++) {
            for (size_t j = 0; j < STRIP; j++)
                x[t * dim + d + j] = from[j * TERN_PAGE + t];
        }
    }
}

uint8_t *tern_kv_coded_vectors(const struct tern_kv_side *side, float *x, const void *tile, int pos0)
{
    const size_t n = (size_t)side->dim * TERN_PAGE;
    float *strip = x + n;
    if (side->key)
        gather_keys(side, x, tile, strip);
    else if (side->raw32)
        memcpy(x, tile, n * sizeof *x);
    else
        tern_k.attn.f16_to_f32(x, tile, n);
    tern_kv_coded_enter(side, x, TERN_PAGE, pos0);
    return (uint8_t *)(strip + STRIP * TERN_PAGE);
}

void tern_kv_coded_encode(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile, int pos0,
                          void *scratch)
{
    const size_t n = (size_t)side->dim * TERN_PAGE;
    const struct tern_kvq_table *tab = table_of(side);
    float *x = scratch;
    uint8_t *codes = tern_kv_coded_vectors(side, x, tile, pos0), *rest = codes + n; /* 5n + 4096 bytes before it */
    tern_k.kvq.encode(codes, head, x, tab, side->key, side->dim, TERN_PAGE, rest);
    if (side->key)
        tern_k.kvq.pack_k(data, codes, tab->bits, side->dim);
    else
        tern_k.kvq.pack_v(data, codes, tab->bits, side->dim);
}

void tern_kv_coded_prep(const struct tern_kv_side *side, struct tern_kv_query *out, const float *x, int n_q,
                        bool narrow)
{
    if (out->x != x)
        memmove(out->x, x, (size_t)n_q * (size_t)side->dim * sizeof *x);
    for (int i = 0; side->cond && i < n_q; i++)
        for (int d = 0; d < side->dim; d++)
            out->x[i * side->dim + d] *= side->cond->unscale[d];
    rotate_rows(side, out->x, n_q, 0);
    if (narrow)
        tern_k.kvq.prep(out->q, out->scale, out->sum, out->x, table_of(side), side->dim, n_q);
}

void tern_kv_coded_score(const struct tern_kv_side *side, float *s, const struct tern_kv_query *q, const uint8_t *data,
                         const uint16_t *head, int n_q, const void *next)
{
    const size_t n_blocks = (size_t)tern_kvq_blocks(side->dim);
    for (int i = 0; i < n_q; i += TERN_KVQ_MAX_Q) {
        int n = n_q - i < TERN_KVQ_MAX_Q ? n_q - i : TERN_KVQ_MAX_Q;
        struct tern_kvq_query part = {
            .q = q->q + (size_t)i * (size_t)side->dim,
            .scale = q->scale + (size_t)i * n_blocks,
            .sum = q->sum + (size_t)i * n_blocks,
        };
        tern_k.kvq.score(s + (size_t)i * TERN_PAGE, &part, data, head, table_of(side), side->dim, n, next);
    }
}

void tern_kv_coded_accum(const struct tern_kv_side *side, float *o, const float *p, const uint8_t *data,
                         const uint16_t *head, const float *shrink, int n_q, const void *next)
{
    for (int i = 0; i < n_q; i += TERN_KVQ_MAX_Q) {
        int n = n_q - i < TERN_KVQ_MAX_Q ? n_q - i : TERN_KVQ_MAX_Q;
        tern_k.kvq.accum(o + (size_t)i * (size_t)side->dim, p + (size_t)i * TERN_PAGE, data, head,
                         shrink ? shrink + i : NULL, table_of(side), side->dim, n, next);
    }
}

void tern_kv_coded_finish(const struct tern_kv_side *side, float *o, int n_q)
{
    rotate_rows(side, o, n_q, 1);
}

void tern_kv_coded_enter(const struct tern_kv_side *side, float *x, int n, int pos0)
{
    if (side->cond)
        tern_kv_cond_keys(side->cond, x, n, side->dim, pos0);
    rotate_rows(side, x, n, 0);
}

void tern_kv_coded_decode(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head)
{
    if (side->key)
        tern_k.kvq.decode_k(out, data, head, table_of(side), side->dim);
    else
        tern_k.kvq.decode_v(out, data, head, table_of(side), side->dim);
}
