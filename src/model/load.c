/* From file to memory: every tensor the architecture lists is found, its shape checked, and packed. */
#include "model/model.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"

#define NAME_MAX_LEN 128

/* A tensor on its way into memory. */
struct plan {
    const struct tern_tensor *t;
    struct tern_weights *dst;
    bool vector;
    int stack; /* matrices in it, tern_weight_bytes apart */
    size_t offset, bytes;
};

struct loader {
    struct tern_net *net;
    const struct tern_file *f;
    const struct tern_arch *arch;
    struct plan *plans;
    size_t n_plans, cap_plans;
    size_t total;
};

static int64_t resolve(enum tern_dim dim, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    switch (dim) {
    case TERN_DIM_NONE:
    case TERN_DIM_ONE:
        return 1;
    case TERN_DIM_EMBD:
        return d->n_embd;
    case TERN_DIM_VOCAB:
        return d->n_vocab;
    case TERN_DIM_FF:
        return l->n_ff;
    case TERN_DIM_EXPERTS:
        return l->n_experts;
    case TERN_DIM_FF_EXPERT:
        return l->n_ff_expert;
    case TERN_DIM_FF_SHARED:
        return l->n_ff_shared;
    case TERN_DIM_Q:
        return (int64_t)l->n_heads * l->dim_k;
    case TERN_DIM_K:
        return (int64_t)l->n_kv_heads * l->dim_k;
    case TERN_DIM_V:
        return (int64_t)l->n_kv_heads * l->dim_v;
    case TERN_DIM_O:
        return (int64_t)l->n_heads * l->dim_v;
    case TERN_DIM_HEAD_K:
        return l->dim_k;
    case TERN_DIM_Q_RANK:
        return l->q_rank;
    case TERN_DIM_Q_STRAIGHT:
        return l->q_rank ? 0 : d->n_embd;
    case TERN_DIM_Q_HEADS:
        return (int64_t)l->n_heads * (l->dim_nope + l->dim_k);
    case TERN_DIM_NOPE:
        return l->dim_nope;
    case TERN_DIM_LATENT:
        return l->dim_v;
    case TERN_DIM_LATENT_K:
        return l->dim_v + l->dim_k;
    case TERN_DIM_HEAD_V:
        return l->dim_head_v;
    case TERN_DIM_HEADS_V:
        return (int64_t)l->n_heads * l->dim_head_v;
    case TERN_DIM_ROPE:
        return d->ropes[0].n_rot / 2;
    }
    return -1;
}

/* Matrices in the tensor of a slot. */
static int stack_of(const struct tern_layer_desc *l, int slot)
{
    return slot >= TERN_SLOT_EXPERT_GATE ? l->n_experts : slot >= TERN_SLOT_K_B ? l->n_heads : 1;
}

static int check_shape(const struct loader *ld, const struct tern_tensor *t, int64_t n, int64_t k, int64_t stack,
                       bool vector, tern_error *err)
{
    int64_t want[2] = {vector ? n : k, vector ? 1 : n};
    if (t->dims[0] == want[0] && t->dims[1] == want[1] && t->dims[2] == stack && t->dims[3] == 1)
        return 0;
    if (stack > 1)
        return tern_err_set(err, TERN_EFORMAT,
                            "%s: tensor \"%s\" at byte %llu has shape [%lld, %lld, %lld], expected [%lld, %lld, %lld]",
                            tern_file_path(ld->f), t->name, (unsigned long long)t->file_offset, (long long)t->dims[0],
                            (long long)t->dims[1], (long long)t->dims[2], (long long)k, (long long)n, (long long)stack);
    if (vector)
        return tern_err_set(err, TERN_EFORMAT, "%s: tensor \"%s\" at byte %llu has shape [%lld, %lld], expected [%lld]",
                            tern_file_path(ld->f), t->name, (unsigned long long)t->file_offset, (long long)t->dims[0],
                            (long long)t->dims[1], (long long)n);
    return tern_err_set(err, TERN_EFORMAT,
                        "%s: tensor \"%s\" at byte %llu has shape [%lld, %lld], expected [%lld, %lld]",
                        tern_file_path(ld->f), t->name, (unsigned long long)t->file_offset, (long long)t->dims[0],
                        (long long)t->dims[1], (long long)k, (long long)n);
}

static int plan_bytes(const struct loader *ld, struct plan *p, int64_t n, int64_t k, tern_error *err)
{
    if (p->vector) {
        p->bytes = tern_round_up((size_t)n * sizeof(float), TERN_ALIGN);
        return 0;
    }
    if (tern_weight_plan(&p->dst->mat, p->t->type, n, k, err) < 0)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "%s: tensor \"%s\": %s [%lld, %lld] cannot be used: row length must be a multiple of 32",
                            tern_file_path(ld->f), p->t->name, tern_type_name(p->t->type), (long long)k, (long long)n);
    if (!tern_mul(tern_weight_bytes(&p->dst->mat), (size_t)p->stack, &p->bytes))
        return tern_err_set(err, TERN_ENOMEM, "%s: the weights do not fit in memory", tern_file_path(ld->f));
    return 0;
}

/* Looks one rule up and plans its memory.  layer -1: a global rule. */
static int plan_rule(struct loader *ld, const struct tern_tensor_rule *r, int layer, struct tern_weights *dst,
                     tern_error *err)
{
    int rc = 0;
    char name[NAME_MAX_LEN];
    const struct tern_desc *d = &ld->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer < 0 ? 0 : layer];
    int64_t n = resolve(r->n, d, l), k = resolve(r->k, d, l);
    if (!n || !k)
        return 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(name, sizeof name, r->name, layer); /* the tables are constants of this program */
#pragma GCC diagnostic pop
    const struct tern_tensor *t = tern_file_tensor(ld->f, name);
    if (!t) {
        if (r->optional)
            return 0;
        TERN_FAIL(err, TERN_EFORMAT, "%s: tensor \"%s\" is missing", tern_file_path(ld->f), name);
    }
    bool vector = r->k == TERN_DIM_NONE;
    int stack = layer < 0 ? 1 : stack_of(l, r->slot);
    TERN_TRY(check_shape(ld, t, n, k, stack, vector, err));
    TERN_TRY(tern_grow(&ld->plans, &ld->cap_plans, ld->n_plans + 1, sizeof *ld->plans, err));
    struct plan *p = &ld->plans[ld->n_plans++];
    *p = (struct plan){.t = t, .dst = dst, .vector = vector, .stack = stack, .offset = ld->total};
    TERN_TRY(plan_bytes(ld, p, n, k, err));
    if (!tern_add(ld->total, p->bytes, &ld->total))
        TERN_FAIL(err, TERN_ENOMEM, "%s: the weights do not fit in memory", tern_file_path(ld->f));
    ld->net->n_params += n * k * stack;
out:
    return rc;
}

/* A tensor that no rule knows would be a part of the model left out of the sum: refuse. */
static int check_unknown(const struct loader *ld, tern_error *err)
{
    size_t n = tern_file_n_tensors(ld->f);
    if (n == ld->n_plans)
        return 0;
    for (size_t i = 0; i < n; i++) {
        const struct tern_tensor *t = tern_file_tensor_at(ld->f, i);
        bool known = false;
        for (size_t j = 0; j < ld->n_plans && !known; j++)
            known = ld->plans[j].t == t;
        if (!known)
            return tern_err_set(err, TERN_EUNSUPPORTED, "%s: tensor \"%s\" at byte %llu is not part of architecture %s",
                                tern_file_path(ld->f), t->name, (unsigned long long)t->file_offset, ld->arch->name);
    }
    return 0;
}

/* ---- packing ---------------------------------------------------------------------------------------------------- */

#define PANELS_PER_TASK 16

struct pack_work {
    const struct plan *p;
    uint8_t *dst;
    int panels, tasks; /* of one matrix */
    pthread_mutex_t lock;
    tern_error err; /* of the lowest failing task, so that the message does not depend on timing */
    int failed;     /* that task, or -1 */
};

static void pack_task(void *ctx, int task, int worker)
{
    struct pack_work *w = ctx;
    tern_error err = {0};
    const struct tern_packed *m = &w->p->dst->mat;
    const struct tern_tensor *t = w->p->t;
    size_t i = (size_t)(task / w->tasks), file_bytes = t->n_bytes / (size_t)w->p->stack;
    int p0 = task % w->tasks * PANELS_PER_TASK;
    int p1 = p0 + PANELS_PER_TASK < w->panels ? p0 + PANELS_PER_TASK : w->panels;
    char name[NAME_MAX_LEN], number[24] = "";
    (void)worker;
    if (w->p->stack > 1)
        (void)snprintf(number, sizeof number, "[%zu]", i);
    (void)snprintf(name, sizeof name, "%s%s", t->name, number);
    if (tern_weight_pack(m, w->dst + i * tern_weight_bytes(m), t->type, (const uint8_t *)t->data + i * file_bytes, name,
                         p0, p1, &err) == 0)
        return;
    (void)pthread_mutex_lock(&w->lock);
    if (w->failed < 0 || task < w->failed) {
        w->failed = task;
        w->err = err;
    }
    (void)pthread_mutex_unlock(&w->lock);
}

static int pack_matrix(const struct loader *ld, const struct plan *p, struct tern_pool *pool, uint8_t *dst,
                       tern_error *err)
{
    struct pack_work w = {.p = p, .dst = dst, .failed = -1};
    w.panels = (p->dst->mat.n + TERN_PANEL - 1) / TERN_PANEL;
    w.tasks = (w.panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
    (void)pthread_mutex_init(&w.lock, NULL);
    tern_pool_run(pool, pack_task, &w, w.tasks * p->stack);
    (void)pthread_mutex_destroy(&w.lock);
    if (w.failed >= 0)
        return tern_err_set(err, w.err.code, "%s: %s", tern_file_path(ld->f), w.err.msg);
    p->dst->mat.data = dst;
    return 0;
}

static int read_vector(const struct loader *ld, const struct plan *p, float *dst, tern_error *err)
{
    int rc = 0;
    size_t n = (size_t)p->t->dims[0];
    TERN_TRY(tern_dequantize(dst, p->t->type, p->t->data, n, err));
    for (size_t i = 0; i < n; i++)
        if (!isfinite(dst[i]))
            TERN_FAIL(err, TERN_EFORMAT, "%s: tensor \"%s\" at byte %llu: element %zu is not a finite number",
                      tern_file_path(ld->f), p->t->name, (unsigned long long)p->t->file_offset, i);
    p->dst->vec = dst;
out:
    return rc;
}

static int read_all(struct loader *ld, struct tern_pool *pool, tern_error *err)
{
    int rc = 0;
    struct tern_net *net = ld->net;
    TERN_TRY(tern_reserve(&net->memory, ld->total, err));
    net->memory_bytes = ld->total;
    for (size_t i = 0; i < ld->n_plans; i++) {
        const struct plan *p = &ld->plans[i];
        uint8_t *dst = (uint8_t *)net->memory + p->offset;
        if (p->vector)
            TERN_TRY(read_vector(ld, p, (float *)(void *)dst, err));
        else
            TERN_TRY(pack_matrix(ld, p, pool, dst, err));
        /* The file's copy of this tensor is not needed again: without this both would be resident. */
        tern_file_forget(ld->f, p->t);
    }
out:
    return rc;
}

/* ---- derived values --------------------------------------------------------------------------------------------- */

static int make_ropes(struct tern_net *net, tern_error *err)
{
    int rc = 0;
    for (int r = 0; r < net->desc.n_ropes; r++) {
        struct tern_rope *rope = &net->desc.ropes[r];
        int half = rope->n_rot / 2;
        const float *factors = rope->use_factors ? net->globals[TERN_ROPE_FACTORS].vec : NULL;
        TERN_TRY(tern_alloc(&rope->freq, (size_t)half, sizeof(float), err));
        for (int i = 0; i < half; i++) {
            double f = pow((double)rope->theta, -2.0 * i / rope->n_rot) / (double)rope->factor;
            rope->freq[i] = (float)(factors ? f / (double)factors[i] : f);
        }
    }
out:
    return rc;
}

/* Identifies the weights well enough to refuse another model's session: names, types, shapes, and samples of the data.
 */
static uint64_t digest(const struct loader *ld)
{
    XXH64_hash_t h = 1;
    for (size_t i = 0; i < ld->n_plans; i++) {
        const struct tern_tensor *t = ld->plans[i].t;
        size_t sample = t->n_bytes < 4096 ? t->n_bytes : 4096;
        h = XXH3_64bits_withSeed(t->name, strlen(t->name), h);
        h = XXH3_64bits_withSeed(t->dims, sizeof t->dims, h + (uint64_t)t->type);
        h = XXH3_64bits_withSeed(t->data, sample, h);
        h = XXH3_64bits_withSeed((const char *)t->data + t->n_bytes - sample, sample, h);
    }
    return h;
}

static int find_arch(const struct tern_arch **out, const struct tern_file *f, tern_error *err)
{
    struct tern_str name;
    int rc = tern_file_get_str(f, "general.architecture", &name, err);
    if (rc < 0)
        return rc;
    if (!name.p)
        return tern_err_set(err, TERN_EFORMAT, "%s: metadata key general.architecture is missing", tern_file_path(f));
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; tern_archs[i]; i++) {
        *out = tern_archs[i];
        if (strlen((*out)->name) == name.n && memcmp((*out)->name, name.p, name.n) == 0)
            return 0;
        int w = snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", (*out)->name);
        used += w > 0 && used + (size_t)w < sizeof known ? (size_t)w : 0;
    }
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: architecture \"%.*s\" is not supported (known: %s)",
                        tern_file_path(f), (int)(name.n < 64 ? name.n : 64), name.p, known);
}

static int vocab_size(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    const struct tern_tensor *t = tern_file_tensor(f, "token_embd.weight");
    if (!t)
        return tern_err_set(err, TERN_EFORMAT, "%s: tensor \"token_embd.weight\" is missing", tern_file_path(f));
    if (t->n_dims != 2 || t->dims[1] > (1 << 24))
        return tern_err_set(err, TERN_EFORMAT,
                            "%s: tensor \"token_embd.weight\" at byte %llu is not a [vocabulary, width] matrix",
                            tern_file_path(f), (unsigned long long)t->file_offset);
    d->n_vocab = (int)t->dims[1];
    return 0;
}

static int plan_all(struct loader *ld, tern_error *err)
{
    int rc = 0;
    struct tern_net *net = ld->net;
    for (const struct tern_tensor_rule *r = ld->arch->globals; r->name; r++)
        TERN_TRY(plan_rule(ld, r, -1, &net->globals[r->slot], err));
    for (int i = 0; i < net->desc.n_layers; i++)
        for (const struct tern_tensor_rule *r = ld->arch->layers; r->name; r++)
            TERN_TRY(plan_rule(ld, r, i, &net->layers[i][r->slot], err));
    TERN_TRY(check_unknown(ld, err));
out:
    return rc;
}

int tern_net_load(struct tern_net **out, const struct tern_file *f, struct tern_pool *pool, tern_error *err)
{
    int rc = 0;
    struct loader ld = {.f = f};
    struct tern_net *net = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&net, 1, sizeof *net, err));
    ld.net = net;
    TERN_TRY(find_arch(&ld.arch, f, err));
    net->desc.arch = ld.arch->name;
    TERN_TRY(ld.arch->configure(&net->desc, f, err));
    TERN_TRY(vocab_size(&net->desc, f, err));
    tern_error detail;
    if (tern_desc_check(&net->desc, &detail) < 0)
        TERN_FAIL(err, detail.code, "%s: %s", tern_file_path(f), detail.msg);
    TERN_TRY(tern_alloc(&net->layers, (size_t)net->desc.n_layers, sizeof *net->layers, err));
    TERN_TRY(plan_all(&ld, err));
    net->digest = digest(&ld);
    TERN_TRY(read_all(&ld, pool, err));
    if (!net->globals[TERN_HEAD].mat.data) /* tied: the embedding is the output matrix */
        net->globals[TERN_HEAD] = net->globals[TERN_EMBED];
    TERN_TRY(make_ropes(net, err));
    *out = net;
    net = NULL;
out:
    tern_free(ld.plans);
    tern_net_free(net);
    return rc;
}

void tern_net_free(struct tern_net *n)
{
    if (!n)
        return;
    for (int r = 0; r < n->desc.n_ropes; r++)
        tern_free(n->desc.ropes[r].freq);
    tern_free(n->desc.layers);
    tern_free(n->layers);
    tern_release(n->memory, n->memory_bytes);
    tern_free(n);
}

size_t tern_net_tensor_bytes(const struct tern_tensor *t)
{
    struct tern_packed w;
    if (t->n_dims == 1)
        return (size_t)t->dims[0] * sizeof(float);
    return tern_weight_plan(&w, t->type, t->dims[1], t->dims[0], NULL) < 0 ? 0
                                                                           : tern_weight_bytes(&w) * (size_t)t->dims[2];
}
