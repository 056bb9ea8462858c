/* Key conditioning as a set for a whole model, and the sidecar file that keeps it. */
#include "kv/kv.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "base/outfile.h"

#define MAGIC    "ternkv\n"
#define VERSION  1
#define ENDIAN   0x01020304u
#define MAX_FILE ((size_t)1 << 28)

struct header {
    char magic[8]; /* with its final NUL */
    uint32_t version, endian;
    uint64_t model_digest;
    uint32_t n_layers, n_tokens;
    uint64_t hash; /* of all bytes behind the header */
};
_Static_assert(sizeof(struct header) == 8 + 8 + 8 + 8 + 8, "no padding in the file header");

static const struct tern_outfile_kind cond_kind = {"a key conditioning file", MAGIC, sizeof MAGIC - 1, true, false};

struct head_record {
    uint32_t layer, head, dim, n_pairs;
};

struct pair_record {
    uint32_t index;
    float re, im;
};

int tern_kv_cond_new(struct tern_kv_cond_set **out, const struct tern_kv_decl *decl, int n_layers, tern_error *err)
{
    int rc = 0;
    struct tern_kv_cond_set *s = NULL;
    size_t n_heads = 0;
    *out = NULL;
    TERN_TRY(tern_alloc(&s, 1, sizeof *s, err));
    s->n_layers = n_layers;
    for (int i = 0; i < n_layers; i++) {
        n_heads += (size_t)decl[i].n_heads;
        s->n_floats += 3 * (size_t)decl[i].n_heads * (size_t)decl[i].dim_k;
    }
    TERN_TRY(tern_alloc(&s->layers, (size_t)n_layers, sizeof *s->layers, err));
    TERN_TRY(tern_alloc(&s->conds, n_heads + 1, sizeof *s->conds, err));
    TERN_TRY(tern_alloc(&s->memory, s->n_floats + 1, sizeof *s->memory, err));
    struct tern_kv_cond *c = s->conds;
    float *p = s->memory;
    for (int i = 0; i < n_layers; i++) {
        size_t dim = (size_t)decl[i].dim_k;
        s->layers[i] = decl[i].n_heads ? c : NULL;
        for (int h = 0; h < decl[i].n_heads; h++, c++, p += 3 * dim) {
            *c = (struct tern_kv_cond){.mean = p, .scale = p + dim, .unscale = p + 2 * dim};
            for (size_t d = 0; d < 2 * dim; d++)
                p[dim + d] = 1;
        }
    }
    *out = s;
    s = NULL;
out:
    tern_kv_cond_free(s);
    return rc;
}

void tern_kv_cond_free(struct tern_kv_cond_set *s)
{
    if (!s)
        return;
    tern_free(s->layers);
    tern_free(s->conds);
    tern_free(s->memory);
    tern_free(s);
}

float *tern_kv_cond_vectors(struct tern_kv_cond_set *s, int layer, int head)
{
    return s->memory + (s->layers[layer][head].mean - s->memory);
}

void tern_kv_cond_seal(struct tern_kv_cond_set *s, const struct tern_kv_decl *decl)
{
    for (int i = 0; i < s->n_layers; i++)
        for (int h = 0; h < decl[i].n_heads; h++) {
            float *v = tern_kv_cond_vectors(s, i, h);
            size_t dim = (size_t)decl[i].dim_k;
            for (size_t d = 0; d < dim; d++)
                v[2 * dim + d] = 1 / v[dim + d];
            tern_kv_cond_turn(&s->layers[i][h]);
        }
}

struct tern_kv_pair tern_kv_cond_pair(const struct tern_kv_decl *d, int index, float re, float im)
{
    struct tern_kv_pair p = {.a = index, .b = index + d->n_rot / 2, .freq = d->freq[index], .re = re, .im = im};
    if (d->interleaved) {
        p.a = 2 * index;
        p.b = 2 * index + 1;
    }
    return p;
}

static int pair_index(const struct tern_kv_decl *d, const struct tern_kv_pair *p)
{
    return d->interleaved ? p->a / 2 : p->a;
}

/* ---- the sidecar ------------------------------------------------------------------------------------------------- */

static int add_head(struct tern_buf *b, const struct tern_kv_cond *c, const struct tern_kv_decl *d, int layer, int head,
                    tern_error *err)
{
    int rc = 0;
    struct head_record r = {(uint32_t)layer, (uint32_t)head, (uint32_t)d->dim_k, (uint32_t)c->n_pairs};
    TERN_TRY(tern_buf_add(b, &r, sizeof r, err));
    TERN_TRY(tern_buf_add(b, c->mean, (size_t)d->dim_k * sizeof(float), err));
    TERN_TRY(tern_buf_add(b, c->scale, (size_t)d->dim_k * sizeof(float), err));
    for (int i = 0; i < c->n_pairs; i++) {
        const struct tern_kv_pair *p = &c->pairs[i];
        struct pair_record pr = {(uint32_t)pair_index(d, p), p->re, p->im};
        TERN_TRY(tern_buf_add(b, &pr, sizeof pr, err));
    }
out:
    return rc;
}

int tern_kv_cond_save(const struct tern_kv_cond_set *s, const struct tern_kv_decl *decl, uint64_t model_digest,
                      const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_buf b = {0};
    struct tern_outfile f = {.fd = -1};
    struct header h = {.magic = MAGIC, .version = VERSION, .endian = ENDIAN, .model_digest = model_digest};
    h.n_layers = (uint32_t)s->n_layers;
    h.n_tokens = (uint32_t)s->n_tokens;
    for (int i = 0; i < s->n_layers; i++)
        for (int j = 0; j < decl[i].n_heads; j++)
            TERN_TRY(add_head(&b, &s->layers[i][j], &decl[i], i, j, err));
    h.hash = XXH3_64bits(b.p, b.len);
    TERN_TRY(tern_outfile_open(&f, path, 0644, &cond_kind, err));
    TERN_TRY(tern_outfile_write(&f, &h, sizeof h, err));
    TERN_TRY(tern_outfile_write(&f, b.p, b.len, err));
    TERN_TRY(tern_outfile_commit(&f, err));
out:
    tern_outfile_abort(&f);
    tern_buf_clear(&b);
    return rc;
}

struct reader {
    const char *p;
    size_t left;
};

static bool take(struct reader *r, void *out, size_t n)
{
    if (n > r->left)
        return false;
    memcpy(out, r->p, n);
    r->p += n;
    r->left -= n;
    return true;
}

/* One head's constants; false when the bytes end, or say what this layer cannot have. */
static bool take_head(struct reader *r, struct tern_kv_cond_set *s, const struct tern_kv_decl *d, int layer, int head)
{
    struct head_record h;
    struct tern_kv_cond *c = &s->layers[layer][head];
    float *v = tern_kv_cond_vectors(s, layer, head);
    if (!take(r, &h, sizeof h) || h.layer != (uint32_t)layer || h.head != (uint32_t)head ||
        h.dim != (uint32_t)d->dim_k || h.n_pairs > TERN_KV_MAX_PAIRS || !take(r, v, 2 * h.dim * sizeof *v))
        return false;
    for (uint32_t i = 0; i < 2 * h.dim; i++)
        if (!isfinite(v[i]) || fabsf(v[i]) > 1e6f || (i >= h.dim && v[i] < 1e-6f))
            return false;
    for (uint32_t i = 0; i < h.n_pairs; i++) {
        struct pair_record p;
        if (!take(r, &p, sizeof p) || p.index >= (uint32_t)d->n_rot / 2 || !isfinite(p.re) || !isfinite(p.im))
            return false;
        c->pairs[i] = tern_kv_cond_pair(d, (int)p.index, p.re, p.im);
    }
    c->n_pairs = (int)h.n_pairs;
    return true;
}

int tern_kv_cond_load(struct tern_kv_cond_set **out, const struct tern_kv_decl *decl, int n_layers,
                      uint64_t model_digest, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_buf b = {0};
    struct tern_kv_cond_set *s = NULL;
    struct header h;
    *out = NULL;
    TERN_TRY(tern_buf_read_regular(&b, path, MAX_FILE, err));
    struct reader r = {b.p, b.len};
    if (!take(&r, &h, sizeof h) || memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: not a key conditioning file (wrong magic at byte 0)", path);
    if (h.endian != ENDIAN)
        TERN_FAIL(err, TERN_EFORMAT, "%s: written on a machine of another byte order (byte 12)", path);
    if (h.version != VERSION)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: format version %u at byte 8; this program reads version %d", path,
                  h.version, VERSION);
    if (h.hash != XXH3_64bits(r.p, r.left))
        TERN_FAIL(err, TERN_EFORMAT, "%s: damaged (checksum differs)", path);
    if (h.model_digest != model_digest || h.n_layers != (uint32_t)n_layers)
        TERN_FAIL(err, TERN_EMISMATCH, "%s: was made for another model; tern doctor --calibrate writes it anew", path);
    TERN_TRY(tern_kv_cond_new(&s, decl, n_layers, err));
    s->n_tokens = (int)(h.n_tokens & INT32_MAX);
    for (int i = 0; i < n_layers; i++)
        for (int j = 0; j < decl[i].n_heads; j++)
            if (!take_head(&r, s, &decl[i], i, j))
                TERN_FAIL(err, TERN_EFORMAT, "%s: layer %d, head %d does not fit the model", path, i, j);
    if (r.left)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %zu bytes too many", path, r.left);
    tern_kv_cond_seal(s, decl);
    *out = s;
    s = NULL;
out:
    tern_kv_cond_free(s);
    tern_buf_clear(&b);
    return rc;
}
