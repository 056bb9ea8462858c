/* What stands behind tern/kvq.h: the KV schemes of src/codec with their constants in one object, and checks of what a
 * stranger passes in.  cmake/ternkv.cmake makes a library of it. */
#include "tern/kvq.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "kvlib/kvlib.h"

_Static_assert(TERNKV_PAGE == TERN_PAGE, "the public page is the codec's page");

struct ternkv_side {
    struct tern_kv_side side;
    struct tern_kv_cond cond;
    ternkv_info info;
    _Alignas(TERN_ALIGN) float sign[TERN_KVQ_MAX_DIM];
    float mean[TERN_KVQ_MAX_DIM], scale[TERN_KVQ_MAX_DIM], unscale[TERN_KVQ_MAX_DIM];
};

/* In front of a prepared query's arrays. */
struct ternkv_query {
    const ternkv_side *side;
    int n_q;
};

/* ---- opening ------------------------------------------------------------------------------------------------ */

static pthread_once_t kernels_once = PTHREAD_ONCE_INIT;

static void init_kernels(void)
{
    tern_kernels_init(~0u);
}

void ternkv_start(void)
{
    pthread_once(&kernels_once, init_kernels);
}

const char *ternkv_scheme(int i)
{
    int n = 0;
    while (tern_kv_codecs[n])
        n++;
    return i >= 0 && i < n ? tern_kv_codecs[i]->name : NULL;
}

static int set_conditioning(ternkv_side *s, const ternkv_params *p, tern_error *err)
{
    if (!p->mean && !p->scale)
        return 0;
    if (!p->mean || !p->scale)
        return tern_err_set(err, TERN_EINVAL, "conditioning needs a mean and a scale, and there is no %s",
                            p->mean ? "scale" : "mean");
    if (!p->key)
        return tern_err_set(err, TERN_EINVAL, "conditioning is for keys, and this side holds values");
    if (s->side.codec->raw)
        return tern_err_set(err, TERN_EINVAL, "conditioning is for codes, and %s keeps keys as they are",
                            s->info.scheme);
    if (s->side.codec->unconditioned)
        return tern_err_set(err, TERN_EINVAL, "%s codes keys without conditioning, as the engine that it comes from",
                            s->info.scheme);
    for (int d = 0; d < p->dim; d++) {
        if (!isfinite(p->mean[d]))
            return tern_err_set(err, TERN_EINVAL, "the mean of dim %d is not finite", d);
        if (!isfinite(p->scale[d]) || p->scale[d] <= 0 || !isfinite(1 / p->scale[d]))
            return tern_err_set(err, TERN_EINVAL,
                                "the scale of dim %d is %g, and it and 1/scale must be positive and finite", d,
                                (double)p->scale[d]);
        s->mean[d] = p->mean[d];
        s->scale[d] = p->scale[d];
        s->unscale[d] = 1 / p->scale[d];
    }
    s->cond = (struct tern_kv_cond){.mean = s->mean, .scale = s->scale, .unscale = s->unscale};
    s->side.cond = &s->cond;
    return 0;
}

static void fill(ternkv_side *s, const struct tern_kv_codec *c, const ternkv_params *p)
{
    const size_t tile = (size_t)p->dim * TERN_PAGE;
    s->side = (struct tern_kv_side){.codec = c, .dim = p->dim, .key = p->key, .raw32 = !c->raw || c->bits == 32};
    if (c->rotated) {
        tern_kv_signs(s->sign, p->dim, p->layer, p->key);
        s->side.sign = s->sign;
    }
    s->info = (ternkv_info){
        .scheme = c->name,
        .level = tern_cpu_name(tern_k.mask),
        .dim = p->dim,
        .key = p->key,
        .layer = p->layer,
        .bits = c->bits,
        .head_bytes = c->head_bytes(p->dim),
        .page_bytes = c->head_bytes(p->dim) + c->data_bytes(p->dim),
        .scratch_bytes = tile * (sizeof(float) + sizeof(uint16_t)) + TERN_KV_SCRATCH,
    };
}

int ternkv_open(ternkv_side **out, const ternkv_params *p, tern_error *err)
{
    int rc = 0;
    ternkv_side *s = NULL;
    const char *why = NULL;
    *out = NULL;
    if (!p->scheme)
        TERN_FAIL(err, TERN_EINVAL, "no KV scheme is named");
    const struct tern_kv_codec *c = tern_kv_codec_find(p->scheme, strlen(p->scheme));
    if (!c)
        TERN_FAIL(err, TERN_EINVAL, "there is no KV scheme \"%s\"", p->scheme);
    if (!c->accepts(p->dim, &why))
        TERN_FAIL(err, TERN_EINVAL, "scheme %s cannot code vectors of %d dims: %s", c->name, p->dim, why);
    if (p->layer < 0)
        TERN_FAIL(err, TERN_EINVAL, "layer %d is negative", p->layer);
    ternkv_start();
    TERN_TRY(tern_alloc(&s, 1, sizeof *s, err));
    fill(s, c, p);
    TERN_TRY(set_conditioning(s, p, err));
    *out = s;
    s = NULL;
out:
    tern_free(s);
    return rc;
}

void ternkv_close(ternkv_side **side)
{
    if (!side)
        return;
    tern_free(*side);
    *side = NULL;
}

const ternkv_info *ternkv_get_info(const ternkv_side *side)
{
    return &side->info;
}

/* ---- what is passed in -------------------------------------------------------------------------------------- */

static int check_aligned(const void *p, const char *what, tern_error *err)
{
    if (p && (uintptr_t)p % TERN_ALIGN == 0)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%s must be %d-byte aligned, and lies at %p", what, TERN_ALIGN, p);
}

static int check_key(const ternkv_side *s, bool key, const char *what, tern_error *err)
{
    if (s->side.key == key)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%s are for %s, and this side holds %s", what, key ? "keys" : "values",
                        key ? "values" : "keys");
}

static int check_n_q(int n_q, tern_error *err)
{
    if (n_q >= 1 && n_q <= TERNKV_MAX_QUERIES)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%d query heads are not in the range 1 to %d", n_q, TERNKV_MAX_QUERIES);
}

static const uint16_t *head_of(const void *page)
{
    return page;
}

static const uint8_t *data_of(const ternkv_side *s, const void *page)
{
    return (const uint8_t *)page + s->info.head_bytes;
}

/* ---- pages -------------------------------------------------------------------------------------------------- */

int ternkv_encode(const ternkv_side *s, void *page, const float *x, int n, void *scratch, tern_error *err)
{
    int rc = 0;
    const size_t dim = (size_t)s->side.dim;
    if (n < 0 || n > TERN_PAGE)
        TERN_FAIL(err, TERN_EINVAL, "%d tokens are not in the range 0 to %d of a page", n, TERN_PAGE);
    TERN_TRY(check_aligned(page, "a page", err));
    TERN_TRY(check_aligned(scratch, "scratch", err));
    float *tile = scratch;
    uint16_t *half = (uint16_t *)(tile + dim * TERN_PAGE);
    memset(tile, 0, dim * TERN_PAGE * sizeof *tile);
    for (size_t t = 0; t < (size_t)n; t++) {
        for (size_t d = 0; d < dim; d++)
            tile[s->side.key ? d * TERN_PAGE + t : t * dim + d] = x[t * dim + d];
    }
    if (!s->side.raw32)
        tern_k.attn.f32_to_f16(half, tile, dim * TERN_PAGE);
    s->side.codec->encode(&s->side, (uint8_t *)page + s->info.head_bytes, page, s->side.raw32 ? (void *)tile : half, 0,
                          half + dim * TERN_PAGE);
out:
    return rc;
}

int ternkv_decode(const ternkv_side *s, float *x, const void *page, void *scratch, tern_error *err)
{
    int rc = 0;
    const size_t dim = (size_t)s->side.dim;
    TERN_TRY(check_aligned(x, "x", err));
    TERN_TRY(check_aligned(page, "a page", err));
    TERN_TRY(check_aligned(scratch, "scratch", err));
    float *out = s->side.key ? scratch : x; /* keys come transposed */
    s->side.codec->decode(&s->side, out, data_of(s, page), head_of(page));
    for (size_t t = 0; t < TERN_PAGE && s->side.key; t++) {
        for (size_t d = 0; d < dim; d++)
            x[t * dim + d] = out[d * TERN_PAGE + t];
    }
    for (size_t t = 0; t < TERN_PAGE && s->side.sign; t++)
        tern_k.kvq.rotate(x + t * dim, s->sign, s->side.dim, 1);
    for (size_t j = 0; j < TERN_PAGE * dim && s->side.cond; j++)
        x[j] = x[j] * s->unscale[j % dim] + s->mean[j % dim];
out:
    return rc;
}

/* ---- keys --------------------------------------------------------------------------------------------------- */

/* The arrays behind a query's head, and where they end. */
struct parts {
    struct tern_kv_query q;
    float *shift; /* [n_q] q.mean */
    size_t bytes;
};

static void *take(uint8_t *base, size_t *at, size_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += tern_round_up(bytes, TERN_ALIGN);
    return p;
}

static struct parts parts_of(const ternkv_side *s, uint8_t *base, int n_q)
{
    const size_t n = (size_t)n_q, blocks = (size_t)tern_kvq_blocks(s->side.dim);
    struct parts p = {.bytes = TERN_ALIGN};
    p.q.x = take(base, &p.bytes, n * (size_t)s->side.dim * sizeof *p.q.x);
    p.q.q = take(base, &p.bytes, n * (size_t)s->side.dim);
    p.q.scale = take(base, &p.bytes, n * blocks * sizeof *p.q.scale);
    p.q.sum = take(base, &p.bytes, n * blocks * sizeof *p.q.sum);
    p.shift = take(base, &p.bytes, n * sizeof *p.shift);
    return p;
}

size_t ternkv_query_bytes(const ternkv_side *side, int n_q)
{
    return check_n_q(n_q, NULL) < 0 ? 0 : parts_of(side, NULL, n_q).bytes;
}

int ternkv_prep(const ternkv_side *s, ternkv_query *query, const float *q, int n_q, tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_key(s, true, "queries", err));
    TERN_TRY(check_n_q(n_q, err));
    TERN_TRY(check_aligned(query, "a prepared query", err));
    struct parts p = parts_of(s, (uint8_t *)query, n_q);
    *query = (struct ternkv_query){s, n_q};
    if (s->side.cond)
        tern_kv_cond_shifts(s->side.cond, p.shift, q, n_q, s->side.dim);
    else
        memset(p.shift, 0, (size_t)n_q * sizeof *p.shift);
    s->side.codec->prep(&s->side, &p.q, q, n_q, true);
out:
    return rc;
}

int ternkv_score(const ternkv_side *s, float *scores, const ternkv_query *query, const void *page, tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_key(s, true, "scores", err));
    TERN_TRY(check_aligned(scores, "s", err));
    TERN_TRY(check_aligned(query, "a prepared query", err));
    TERN_TRY(check_aligned(page, "a page", err));
    if (query->side != s)
        TERN_FAIL(err, TERN_EINVAL, "the query was prepared for another side");
    struct parts p = parts_of(s, (uint8_t *)(uintptr_t)query, query->n_q);
    s->side.codec->score(&s->side, scores, &p.q, data_of(s, page), head_of(page), query->n_q, NULL);
    for (size_t j = 0; j < (size_t)query->n_q * TERN_PAGE && s->side.cond; j++)
        scores[j] += p.shift[j / TERN_PAGE];
out:
    return rc;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

int ternkv_accum(const ternkv_side *s, float *o, const float *p, const void *page, const float *shrink, int n_q,
                 tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_key(s, false, "weights", err));
    TERN_TRY(check_n_q(n_q, err));
    TERN_TRY(check_aligned(o, "o", err));
    TERN_TRY(check_aligned(p, "p", err));
    TERN_TRY(check_aligned(page, "a page", err));
    s->side.codec->accum(&s->side, o, p, data_of(s, page), head_of(page), shrink, n_q, NULL);
out:
    return rc;
}

int ternkv_finish(const ternkv_side *s, float *o, int n_q, tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_key(s, false, "outputs", err));
    TERN_TRY(check_n_q(n_q, err));
    TERN_TRY(check_aligned(o, "o", err));
    s->side.codec->finish(&s->side, o, n_q);
out:
    return rc;
}
