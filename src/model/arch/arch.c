#include "model/arch/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

const struct tern_arch *const tern_archs[] = {
#define TERN_ARCH(name) &tern_arch_##name,
#include "model/arch/archs.def"
#undef TERN_ARCH
    NULL,
};

bool tern_arch_find_gguf(struct tern_arch_gguf *out, const char *arch)
{
    for (int i = 0; tern_archs[i]; i++)
        if (strcmp(tern_archs[i]->name, arch) == 0 && tern_archs[i]->hf) {
            *out = tern_archs[i]->gguf;
            return true;
        }
    return false;
}

const struct tern_hf_family *tern_hf_family_at(int i, const char **arch)
{
    for (int a = 0; tern_archs[a]; a++)
        for (const struct tern_hf_family *family = tern_archs[a]->hf; family && family->model_type; family++)
            if (i-- == 0) {
                *arch = tern_archs[a]->name;
                return family;
            }
    return NULL;
}

const char *tern_arch_key(char *buf, size_t n, const char *arch, const char *name)
{
    (void)snprintf(buf, n, "%s.%s", arch, name);
    return buf;
}

/* Limits that keep every later product of two of these inside an int. */
#define MAX_LAYERS 1024
#define MAX_EMBD   (1 << 17)
#define MAX_HEADS  1024
#define MAX_HEAD   TERN_KVQ_MAX_DIM
#define MAX_FF     (1 << 20)
#define MAX_CTX    (1 << 24)

struct dims {
    int64_t layers, embd, ctx, heads, dim_k, dim_v, rot, window;
    double eps;
};

static int read_dims(struct dims *v, const struct tern_file *f, const char *arch, tern_error *err)
{
    int rc = 0;
    char key[160];
#define KEY(name) tern_arch_key(key, sizeof key, arch, name)
    TERN_TRY(tern_file_need_int(f, KEY("block_count"), 1, MAX_LAYERS, &v->layers, err));
    TERN_TRY(tern_file_need_int(f, KEY("embedding_length"), 1, MAX_EMBD, &v->embd, err));
    TERN_TRY(tern_file_need_int(f, KEY("context_length"), 1, MAX_CTX, &v->ctx, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.head_count"), 1, MAX_HEADS, &v->heads, err));
    int64_t head = v->embd / v->heads;
    TERN_TRY(tern_file_get_int(f, KEY("attention.key_length"), head, 1, 2 * MAX_HEAD, &v->dim_k, err));
    TERN_TRY(tern_file_get_int(f, KEY("attention.value_length"), head, 1, MAX_HEAD, &v->dim_v, err));
    if (v->dim_k < 16 || v->dim_k % 16 || v->dim_v < 16 || v->dim_v % 16)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: head size %lld/%lld is not a multiple of 16", tern_file_path(f),
                  (long long)v->dim_k, (long long)v->dim_v);
    TERN_TRY(tern_file_get_float(f, KEY("attention.layer_norm_rms_epsilon"), 1e-5, &v->eps, err));
    TERN_TRY(tern_file_get_int(f, KEY("rope.dimension_count"), v->dim_k, 2, v->dim_k, &v->rot, err));
    TERN_TRY(tern_file_get_int(f, KEY("attention.sliding_window"), 0, 0, MAX_CTX, &v->window, err));
    if (v->rot % 2)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s.rope.dimension_count = %lld is odd", tern_file_path(f), arch,
                  (long long)v->rot);
    if (!(v->eps > 0))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s has an impossible norm epsilon (%g)", tern_file_path(f), arch, v->eps);
#undef KEY
out:
    return rc;
}

/* A key that is a number for all layers or an array with one for each.  def 0: the key must be there. */
static int read_layer(const struct tern_file *f, const char *key, int layer, int n_layers, int64_t def, int64_t max,
                      int64_t *out, tern_error *err)
{
    const struct tern_meta *m = tern_file_meta(f, key);
    if (!m || m->type != TERN_META_ARRAY)
        return def ? tern_file_get_int(f, key, def, 1, max, out, err) : tern_file_need_int(f, key, 1, max, out, err);
    if (m->elem != TERN_META_INT || m->n != (size_t)n_layers)
        return tern_err_set(err, TERN_EFORMAT, "%s: %s at byte %llu is not an array of %d numbers", tern_file_path(f),
                            key, (unsigned long long)m->file_offset, n_layers);
    *out = ((const int64_t *)m->arr)[layer];
    if (*out < 1 || *out > max)
        return tern_err_set(err, TERN_EFORMAT, "%s: %s at byte %llu: %lld of layer %d is outside 1..%lld",
                            tern_file_path(f), key, (unsigned long long)m->file_offset, (long long)*out, layer,
                            (long long)max);
    return 0;
}

/* What files may say of every layer apart. */
static int read_layers(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err)
{
    int rc = 0;
    char key[160];
    int64_t kv_heads, ff, expert_ff = 0;
    /* Where there are only experts, files may say no more than how wide these are. */
    if (!tern_file_meta(f, tern_arch_key(key, sizeof key, arch, "feed_forward_length")))
        TERN_TRY(tern_file_get_int(f, tern_arch_key(key, sizeof key, arch, "expert_feed_forward_length"), 0, 0, MAX_FF,
                                   &expert_ff, err));
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        TERN_TRY(read_layer(f, tern_arch_key(key, sizeof key, arch, "feed_forward_length"), i, d->n_layers, expert_ff,
                            MAX_FF, &ff, err));
        TERN_TRY(read_layer(f, tern_arch_key(key, sizeof key, arch, "attention.head_count_kv"), i, d->n_layers,
                            l->at.n_heads, l->at.n_heads, &kv_heads, err));
        if (l->at.n_heads % kv_heads)
            TERN_FAIL(err, TERN_EFORMAT, "%s: %s = %lld does not divide the %d heads", tern_file_path(f), key,
                      (long long)kv_heads, l->at.n_heads);
        l->at.n_kv_heads = (int)kv_heads;
        l->n_ff = (int)ff;
    }
out:
    return rc;
}

int tern_configure_common(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err)
{
    int rc = 0;
    struct dims v;
    TERN_TRY(read_dims(&v, f, arch, err));
    d->n_layers = (int)v.layers;
    d->n_embd = (int)v.embd;
    d->ctx = (int)v.ctx;
    d->eps = (float)v.eps;
    d->embed_scale = 1;
    d->n_ropes = 1;
    TERN_TRY(tern_rope_read(&d->ropes[0], f, arch, (int)v.rot, err));
    TERN_TRY(tern_alloc(&d->layers, (size_t)v.layers, sizeof *d->layers, err));
    for (int i = 0; i < d->n_layers; i++)
        d->layers[i].at = (struct tern_attend_desc){
            .n_heads = (int)v.heads,
            .dim_k = (int)v.dim_k,
            .dim_v = (int)v.dim_v,
            .mask = v.window ? TERN_MASK_WINDOW : TERN_MASK_CAUSAL,
            .span = (int)v.window,
            .scale = (float)(1.0 / sqrt((double)v.dim_k)),
            .kv_of = -1,
        };
    TERN_TRY(read_layers(d, f, arch, err));
out:
    return rc;
}

int tern_refuse_experts(const struct tern_file *f, const char *arch, tern_error *err)
{
    char key[160];
    const struct tern_meta *experts = tern_file_meta(f, tern_arch_key(key, sizeof key, arch, "expert_count"));
    if (experts && experts->i > 0)
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: %s = %lld: mixture of experts is not supported",
                            tern_file_path(f), key, (long long)experts->i);
    return 0;
}

int tern_configure_pattern(struct tern_desc *d, const struct tern_file *f, const char *arch, int every, tern_error *err)
{
    char key[160];
    int64_t n = every;
    const struct tern_meta *m =
        tern_file_meta(f, tern_arch_key(key, sizeof key, arch, "attention.sliding_window_pattern"));
    bool array = m && m->type == TERN_META_ARRAY;
    if (array && (m->elem != TERN_META_BOOL || m->n != (size_t)d->n_layers || m->odd))
        return tern_err_set(err, TERN_EFORMAT, "%s: %s at byte %llu is not an array of %d booleans", tern_file_path(f),
                            key, (unsigned long long)m->file_offset, d->n_layers);
    int rc = array ? 0 : tern_file_get_int(f, key, every, 1, MAX_LAYERS, &n, err);
    for (int i = 0; rc == 0 && i < d->n_layers; i++)
        if (array ? !((const int64_t *)m->arr)[i] : (i + 1) % n == 0) {
            d->layers[i].at.mask = TERN_MASK_CAUSAL;
            d->layers[i].at.span = 0;
        }
    return rc;
}

struct experts {
    int64_t n, active, ff, shared, ff_shared, groups, groups_used, gating, dense, step;
    double scale;
    bool norm;
};

static int read_experts(struct experts *v, const struct tern_file *f, const char *arch, tern_error *err)
{
    int rc = 0;
    char key[160];
#define KEY(name) tern_arch_key(key, sizeof key, arch, name)
    TERN_TRY(tern_file_need_int(f, KEY("expert_used_count"), 1, v->n, &v->active, err));
    TERN_TRY(tern_file_get_int(f, KEY("expert_feed_forward_length"), v->ff, 1, MAX_FF, &v->ff, err));
    TERN_TRY(tern_file_get_int(f, KEY("expert_shared_count"), 0, 0, MAX_FF / v->ff, &v->shared, err));
    TERN_TRY(tern_file_get_int(f, KEY("expert_shared_feed_forward_length"), v->shared * v->ff, 0, MAX_FF, &v->ff_shared,
                               err));
    TERN_TRY(tern_file_get_int(f, KEY("expert_gating_func"), 1, 1, 4, &v->gating, err));
    TERN_TRY(tern_file_get_bool(f, KEY("expert_weights_norm"), v->norm, &v->norm, err));
    TERN_TRY(tern_file_get_float(f, KEY("expert_weights_scale"), 1.0, &v->scale, err));
    if (!(v->scale > 0))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s = %g is not above 0", tern_file_path(f), key, v->scale);
    TERN_TRY(tern_file_get_int(f, KEY("leading_dense_block_count"), 0, 0, MAX_LAYERS, &v->dense, err));
    TERN_TRY(tern_file_get_int(f, KEY("interleave_moe_layer_step"), 1, 1, MAX_LAYERS, &v->step, err));
    TERN_TRY(tern_file_get_int(f, KEY("expert_group_count"), 1, 1, v->n, &v->groups, err));
    TERN_TRY(tern_file_get_int(f, KEY("expert_group_used_count"), v->groups, 1, v->groups, &v->groups_used, err));
    int64_t size = v->n / v->groups;
    if (v->groups > 1 && (v->n % v->groups || size < 2 || size * v->groups_used < v->active))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s: %lld of %lld groups of %lld experts cannot give %lld experts",
                  tern_file_path(f), key, (long long)v->groups_used, (long long)v->groups, (long long)v->n,
                  (long long)v->active);
#undef KEY
out:
    return rc;
}

int tern_configure_experts(struct tern_desc *d, const struct tern_file *f, const char *arch, bool norm, tern_error *err)
{
    int rc = 0;
    struct experts v = {.norm = norm, .ff = d->layers[0].n_ff};
    char key[160];
    TERN_TRY(
        tern_file_get_int(f, tern_arch_key(key, sizeof key, arch, "expert_count"), 0, 0, TERN_MAX_EXPERTS, &v.n, err));
    if (!v.n)
        return 0;
    TERN_TRY(read_experts(&v, f, arch, err));
    for (int i = (int)v.dense; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        if ((i + 1) % v.step)
            continue;
        l->ffn = TERN_FFN_EXPERTS;
        l->experts = (struct tern_experts_desc){
            .router = v.gating == 2   ? TERN_ROUTE_SIGMOID
                      : v.gating == 4 ? TERN_ROUTE_SQRT_SOFTPLUS
                                      : TERN_ROUTE_SOFTMAX,
            .n = (int)v.n,
            .n_active = (int)v.active,
            .n_ff = (int)v.ff,
            .n_ff_shared = (int)v.ff_shared,
            .n_groups = (int)v.groups,
            .n_groups_used = (int)v.groups_used,
            .norm = v.norm || v.gating == 3, /* 3: the softmax of the chosen alone */
            .scale = (float)v.scale,
        };
    }
out:
    return rc;
}
