#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

#define TERN_ARCH(name) extern const struct tern_arch tern_arch_##name;
#include "model/archs.def"
#undef TERN_ARCH

const struct tern_arch *const tern_archs[] = {
#define TERN_ARCH(name) &tern_arch_##name,
#include "model/archs.def"
#undef TERN_ARCH
    NULL,
};

/* Limits that keep every later product of two of these inside an int. */
#define MAX_LAYERS 1024
#define MAX_EMBD   (1 << 17)
#define MAX_HEADS  1024
#define MAX_HEAD   TERN_KVQ_MAX_DIM
#define MAX_FF     (1 << 20)
#define MAX_CTX    (1 << 24)

struct dims {
    int64_t layers, embd, ctx, heads, kv_heads, dim_k, dim_v, ff, rot;
    double eps, theta, factor;
};

struct config {
    const struct tern_file *f;
    const char *arch;
    const struct tern_config_default *defaults;
};

/* The value of a key that the file leaves out; false where there is none. */
static bool default_of(const struct config *c, const char *name, double *v)
{
    char key[160];
    if (tern_file_meta(c->f, tern_arch_key(key, sizeof key, c->f, c->arch, name)))
        return false;
    for (const struct tern_config_default *d = c->defaults; d && d->name; d++)
        if (strcmp(d->name, name) == 0) {
            *v = d->value;
            return true;
        }
    return false;
}

/* def -1: needed. */
static int read_int(const struct config *c, const char *name, int64_t def, int64_t min, int64_t max, int64_t *out,
                    tern_error *err)
{
    char key[160];
    double v;
    if (default_of(c, name, &v))
        def = (int64_t)v;
    tern_arch_key(key, sizeof key, c->f, c->arch, name);
    return def < 0 ? tern_file_need_int(c->f, key, min, max, out, err)
                   : tern_file_get_int(c->f, key, def, min, max, out, err);
}

static int read_float(const struct config *c, const char *name, double def, double *out, tern_error *err)
{
    char key[160];
    if (default_of(c, name, out))
        return 0;
    return tern_file_get_float(c->f, tern_arch_key(key, sizeof key, c->f, c->arch, name), def, out, err);
}

static int read_heads(struct dims *v, const struct config *c, tern_error *err)
{
    int rc = 0;
    TERN_TRY(read_int(c, "attention.head_count", -1, 1, MAX_HEADS, &v->heads, err));
    TERN_TRY(read_int(c, "attention.head_count_kv", v->heads, 1, v->heads, &v->kv_heads, err));
    if (v->heads % v->kv_heads)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %lld KV heads do not divide the %lld heads", tern_file_path(c->f),
                  (long long)v->kv_heads, (long long)v->heads);
    int64_t head = v->embd / v->heads;
    TERN_TRY(read_int(c, "attention.key_length", head, 1, MAX_HEAD, &v->dim_k, err));
    TERN_TRY(read_int(c, "attention.value_length", head, 1, MAX_HEAD, &v->dim_v, err));
    if (v->dim_k < 16 || v->dim_k > MAX_HEAD || v->dim_k % 16 || v->dim_v < 16 || v->dim_v > MAX_HEAD || v->dim_v % 16)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: head size %lld/%lld is not a multiple of 16 from 16 to %d",
                  tern_file_path(c->f), (long long)v->dim_k, (long long)v->dim_v, MAX_HEAD);
out:
    return rc;
}

static int read_dims(struct dims *v, const struct config *c, tern_error *err)
{
    int rc = 0;
    double part;
    TERN_TRY(read_int(c, "block_count", -1, 1, MAX_LAYERS, &v->layers, err));
    TERN_TRY(read_int(c, "embedding_length", -1, 1, MAX_EMBD, &v->embd, err));
    TERN_TRY(read_int(c, "context_length", -1, 1, MAX_CTX, &v->ctx, err));
    TERN_TRY(read_heads(v, c, err));
    TERN_TRY(read_int(c, "feed_forward_length", -1, 1, MAX_FF, &v->ff, err));
    TERN_TRY(read_float(c, "attention.layer_norm_rms_epsilon", 1e-5, &v->eps, err));
    TERN_TRY(read_float(c, "partial_rotary_factor", 1, &part, err));
    if (!(part > 0) || part > 1)
        TERN_FAIL(err, TERN_EFORMAT, "%s: a partial_rotary_factor of %g is impossible", tern_file_path(c->f), part);
    TERN_TRY(read_int(c, "rope.dimension_count", (int64_t)(part * (double)v->dim_k), 2, v->dim_k, &v->rot, err));
    TERN_TRY(read_float(c, "rope.freq_base", 10000.0, &v->theta, err));
    TERN_TRY(read_float(c, "rope.scaling.factor", 1.0, &v->factor, err));
    if (v->rot % 2)
        TERN_FAIL(err, TERN_EFORMAT, "%s: the %lld rotated dimensions are an odd number", tern_file_path(c->f),
                  (long long)v->rot);
    if (!(v->eps > 0) || !(v->theta > 1) || !(v->factor > 0) || !isfinite(v->eps + v->theta + v->factor))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s has an impossible norm epsilon (%g), RoPE base (%g) or factor (%g)",
                  tern_file_path(c->f), c->arch, v->eps, v->theta, v->factor);
out:
    return rc;
}

/* The frequency bands of Llama 3, which GGUF replaces by a tensor of divisors. */
static int read_bands(struct tern_rope *rope, const struct config *c, double factor, tern_error *err)
{
    int rc = 0;
    double low, high, ctx;
    TERN_TRY(read_float(c, "rope.scaling.low_freq_factor", 0, &low, err));
    TERN_TRY(read_float(c, "rope.scaling.high_freq_factor", 0, &high, err));
    TERN_TRY(read_float(c, "rope.scaling.original_context_length", 0, &ctx, err));
    if (!(low > 0) || !(high >= low) || !(ctx >= 1) || !isfinite(high + ctx))
        TERN_FAIL(err, TERN_EFORMAT,
                  "%s: RoPE scaling \"llama3\" has impossible frequency factors (%g, %g) or original context (%g)",
                  tern_file_path(c->f), low, high, ctx);
    rope->bands = (struct tern_rope_bands){(float)factor, (float)low, (float)high, (float)ctx};
out:
    return rc;
}

static int read_rope(struct tern_rope *rope, const struct config *c, const struct dims *v, tern_error *err)
{
    int rc = 0;
    char key[160];
    struct tern_str type;
    *rope = (struct tern_rope){.n_rot = (int)v->rot, .theta = (float)v->theta, .factor = 1, .magnitude = 1};
    tern_arch_key(key, sizeof key, c->f, c->arch, "rope.scaling.type");
    TERN_TRY(tern_file_get_str(c->f, key, &type, err));
    char name[16] = "none";
    if (type.p)
        (void)snprintf(name, sizeof name, "%.*s", (int)(type.n < 15 ? type.n : 15), type.p);
    if (strcmp(name, "linear") == 0)
        rope->factor = (float)v->factor;
    else if (strcmp(name, "llama3") == 0)
        TERN_TRY(read_bands(rope, c, v->factor, err));
    else if (strcmp(name, "none") != 0 && strcmp(name, "default") != 0)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: RoPE scaling \"%.*s\" (%s) is not supported", tern_file_path(c->f),
                  (int)(type.n < 40 ? type.n : 40), type.p, key);
out:
    return rc;
}

int tern_configure_common(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err)
{
    return tern_configure_defaults(d, f, arch, NULL, err);
}

int tern_configure_defaults(struct tern_desc *d, const struct tern_file *f, const char *arch,
                            const struct tern_config_default *defaults, tern_error *err)
{
    int rc = 0;
    struct dims v;
    struct config c = {f, arch, defaults};
    TERN_TRY(read_dims(&v, &c, err));
    d->n_layers = (int)v.layers;
    d->n_embd = (int)v.embd;
    d->ctx = (int)v.ctx;
    d->eps = (float)v.eps;
    d->embed_scale = 1;
    d->n_ropes = 1;
    TERN_TRY(read_rope(&d->ropes[0], &c, &v, err));
    TERN_TRY(tern_alloc(&d->layers, (size_t)v.layers, sizeof *d->layers, err));
    for (int i = 0; i < d->n_layers; i++)
        d->layers[i] = (struct tern_layer_desc){
            .n_heads = (int)v.heads,
            .n_kv_heads = (int)v.kv_heads,
            .dim_k = (int)v.dim_k,
            .dim_v = (int)v.dim_v,
            .scale = (float)(1.0 / sqrt((double)v.dim_k)),
            .kv_of = -1,
            .n_ff = (int)v.ff,
        };
out:
    return rc;
}

int tern_desc_check(const struct tern_desc *d, tern_error *err)
{
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        const char *what = l->mixer == TERN_MIX_LATENT    ? "latent attention"
                           : l->mixer == TERN_MIX_DELTA   ? "gated delta net"
                           : l->mask == TERN_MASK_CHUNK   ? "chunked attention"
                           : l->router != TERN_ROUTE_NONE ? "mixture of experts"
                           : l->out_gate                  ? "gated attention output"
                           : l->q_temperature != 0.0f     ? "position-dependent query scale"
                           : l->kv_of >= 0                ? "KV shared between layers"
                           : l->v_is_k                    ? "values taken from the keys"
                           : l->n_ple                     ? "per-layer embeddings"
                           : l->rope >= d->n_ropes        ? "a missing position embedding"
                                                          : NULL;
        if (what)
            return tern_err_set(err, TERN_EUNSUPPORTED, "architecture %s: layer %d uses %s, which is not supported",
                                d->arch, i, what);
    }
    return 0;
}

void tern_desc_kv(const struct tern_desc *d, struct tern_kv_decl *decl)
{
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        decl[i] = (struct tern_kv_decl){.n_heads = l->n_kv_heads,
                                        .dim_k = l->dim_k,
                                        .dim_v = l->dim_v,
                                        .window = l->mask == TERN_MASK_WINDOW ? l->span : 0};
        if (l->rope >= 0) {
            decl[i].n_rot = d->ropes[l->rope].n_rot;
            decl[i].interleaved = d->ropes[l->rope].interleaved;
            decl[i].freq = d->ropes[l->rope].freq;
        }
    }
}
