/* From file to memory: every tensor the architecture lists is found, its shape checked, and packed. */
#include "model/arch/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "model/load_impl.h"
#include "model/resident.h"

#define NAME_MAX_LEN 128

struct loader {
    struct tern_net *net;
    struct tern_dev *dev;
    const struct tern_file *f;
    const struct tern_arch *arch;
    struct tern_weight_place *places;
    size_t n_places, cap_places;
    const struct tern_tensor **known; /* all that have a place in it, and those known to be of no use to this model */
    size_t n_known, cap_known;
    size_t total;
    int layer; /* whose tensors are looked up; -1: of none */
    struct tern_load_watch watch;
};

static int64_t columns_of(const struct tern_tensor_rule *r, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    return r->k ? r->k(d, l) : 1;
}

/* Matrices in a tensor. */
static int stack_of(const struct tern_layer_desc *l, enum tern_stacked stacked)
{
    return stacked == TERN_PER_EXPERT  ? l->experts.n
           : stacked == TERN_PER_HEAD  ? l->at.n_heads
           : stacked == TERN_PER_GROUP ? l->sparse.groups
                                       : 1;
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
                            tern_file_path(ld->f), t->source, (unsigned long long)t->file_offset, (long long)t->dims[0],
                            (long long)t->dims[1], (long long)t->dims[2], (long long)k, (long long)n, (long long)stack);
    if (vector)
        return tern_err_set(err, TERN_EFORMAT, "%s: tensor \"%s\" at byte %llu has shape [%lld, %lld], expected [%lld]",
                            tern_file_path(ld->f), t->source, (unsigned long long)t->file_offset, (long long)t->dims[0],
                            (long long)t->dims[1], (long long)n);
    return tern_err_set(err, TERN_EFORMAT,
                        "%s: tensor \"%s\" at byte %llu has shape [%lld, %lld], expected [%lld, %lld]",
                        tern_file_path(ld->f), t->source, (unsigned long long)t->file_offset, (long long)t->dims[0],
                        (long long)t->dims[1], (long long)k, (long long)n);
}

/* The matrices of a stack are described by one form. */
static bool same_form(const struct tern_dev_ops *ops, const struct tern_dev_weight *a, const struct tern_dev_weight *b)
{
    struct tern_dev_about x, y;
    ops->weight_about(a, &x);
    ops->weight_about(b, &y);
    return x.unit_bytes == y.unit_bytes && x.codes == y.codes && x.scales == y.scales && x.zero == y.zero &&
           x.group == y.group && x.d_type == y.d_type && x.m_type == y.m_type && x.unit == y.unit &&
           memcmp(x.table, y.table, sizeof x.table) == 0;
}

/* How operations use what a rule names. */
static enum tern_dev_use use_of(const struct tern_tensor_rule *r)
{
    return r->stacked == TERN_PER_EXPERT                                 ? TERN_DEV_EXPERTS
           : r->stacked == TERN_PER_HEAD || r->stacked == TERN_PER_GROUP ? TERN_DEV_HEADS
           : r->whole                                                    ? TERN_DEV_WHOLE
                                                                         : TERN_DEV_OUTPUTS;
}

/* Memory for the n rows of k that a place's slot gets. */
static int place_bytes(const struct loader *ld, struct tern_weight_place *p, int64_t k, enum tern_dev_use use,
                       tern_error *err)
{
    if (p->vector) {
        p->bytes = tern_round_up((size_t)p->n * sizeof(float), TERN_ALIGN);
        return 0;
    }
    tern_error e = {0};
    const struct tern_dev_ops *ops = ld->dev->ops;
    struct tern_dev_weight w;
    struct tern_weight_source one = p->src;
    one.factor_rows = 0; /* as matrix_source has it */
    if (ops->use)
        ops->use(ld->dev, use);
    int rc = ops->weight_plan(ld->dev, &w, &one, p->n, k, p->matrices, &e);
    if (rc < 0)
        return tern_err_set(err, rc, "%s: tensor \"%s\": %s", tern_file_path(ld->f), p->t->source, e.msg);
    p->bytes = ops->weight_bytes(&w) / (size_t)p->matrices * (size_t)p->stack;
    if (p->matrix == 0) {
        p->dst->mat = w;
        return 0;
    }
    const bool same = same_form(ops, &w, &p->dst->mat);
    ops->weight_drop(ld->dev, &w);
    if (!same)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "%s: tensor \"%s\" at byte %llu is of another type than those of the experts before it",
                            tern_file_path(ld->f), p->t->source, (unsigned long long)p->t->file_offset);
    return 0;
}

/* A tensor of which the name differs in its last word: NAME.scale of NAME.weight.  NULL when absent. */
static const struct tern_tensor *sibling(const struct loader *ld, const struct tern_tensor *t, const char *word)
{
    char name[NAME_MAX_LEN + 16];
    const char *dot = strrchr(t->name, '.');
    (void)snprintf(name, sizeof name, "%.*s.%s", dot ? (int)(dot - t->name) : 0, t->name, word);
    return tern_file_tensor(ld->f, name);
}

/* What a tensor says about its weights; GGUF's factors come with find_parts. */
static struct tern_weight_source source_of(const struct tern_tensor *t)
{
    struct tern_weight_source s = {
        .type = t->type, .data = t->data, .name = t->source, .n_stored = t->turned ? t->dims[1] : 0};
    const struct tern_quant *q = t->quant;
    if (!q)
        return s;
    s.form = q->form;
    s.scale_type = q->scales->type;
    s.bits = q->bits;
    s.group = q->group;
    s.group_rows = q->group_rows;
    s.zero_plus_one = q->zero_plus_one;
    s.turned = t->turned;
    s.n_stored = t->turned || q->form == TERN_FORM_GPTQ || q->form == TERN_FORM_AWQ ? t->dims[1] : 0;
    s.scales = q->scales->data;
    s.zeros = q->zeros ? q->zeros->data : NULL;
    s.factors = q->factors ? q->factors->data : NULL;
    return s;
}

/* GGUF's NVFP4 has one more factor for each matrix, as a tensor.  Another one says by what activations are multiplied
 * before they are rounded to four bits: of no use where they are not. */
static int find_parts(const struct loader *ld, struct tern_weight_place *p, struct tern_weight_source *s,
                      tern_error *err)
{
    if (p->t->type != TERN_NVFP4) {
        (void)tern_tensor_parts(p->t, p->parts);
        return 0;
    }
    const struct tern_tensor *scale = sibling(ld, p->t, "scale");
    int n = 0;
    if (scale && (scale->type != TERN_F32 || scale->dims[0] != p->stack || scale->n_dims != 1))
        return tern_err_set(err, TERN_EFORMAT, "%s: tensor \"%s\" at byte %llu is not F32 [%d]", tern_file_path(ld->f),
                            scale->name, (unsigned long long)scale->file_offset, p->stack);
    if (scale) {
        p->parts[n++] = scale;
        s->factors = scale->data;
        s->factor_rows = p->stack > 1 ? p->stack_rows : 0;
    }
    p->parts[n] = sibling(ld, p->t, "input_scale");
    return 0;
}

static int know(struct loader *ld, const struct tern_tensor *t, tern_error *err)
{
    int rc = tern_grow(&ld->known, &ld->cap_known, ld->n_known + 1, sizeof *ld->known, err);
    if (rc == 0)
        ld->known[ld->n_known++] = t;
    return rc;
}

/* Layers that attend to another's keys and values have no use for their own, which files hold all the same. */
static bool left_out(const struct tern_layer_desc *l, const struct tern_tensor_rule *r)
{
    return r->own_kv && l->at.kv_of >= 0;
}

/* A tensor of the file and what it is to the rules that share it. */
struct found {
    const struct tern_tensor *t;
    int64_t rows, k;             /* of one matrix */
    int stack, matrix, matrices; /* as in struct tern_weight_place */
    bool vector, flat, merged;
    enum tern_dev_use use;
    int ids; /* how many experts there are, where they are what it names; 0: numbers */
};

/* One matrix of all rows, where there may be a stack. */
static bool is_merged(const struct found *o)
{
    return o->merged && o->t->n_dims == 2;
}

/* Finds a place for the rows [row0, row0 + n) of a tensor, or of each matrix of a stack. */
static int place_rows(struct loader *ld, const struct found *o, struct tern_weights *dst, int64_t row0, int64_t n,
                      tern_error *err)
{
    int rc = 0;
    const struct tern_tensor *t = o->t;
    struct tern_weight_source whole = source_of(t);
    tern_error e = {0};
    TERN_TRY(tern_grow(&ld->places, &ld->cap_places, ld->n_places + 1, sizeof *ld->places, err));
    struct tern_weight_place *p = &ld->places[ld->n_places++];
    *p = (struct tern_weight_place){.t = t,
                                    .dst = dst,
                                    .n = (int)n,
                                    .vector = o->vector,
                                    .stack = o->stack,
                                    .offset = ld->total,
                                    .layer = ld->layer};
    if (o->vector) {
        p->columns = o->flat ? 1 : (int)o->k;
        p->n *= (int)o->k;
        p->ids = o->ids;
        p->ids_row = (int)o->k;
    }
    p->stack_rows = is_merged(o) ? (int)o->rows : (int)t->dims[1];
    p->matrix = o->matrix;
    p->matrices = o->matrices;
    TERN_TRY(find_parts(ld, p, &whole, err));
    TERN_TRY(know(ld, t, err));
    for (int i = 0; i < TERN_TENSOR_PARTS && p->parts[i]; i++)
        TERN_TRY(know(ld, p->parts[i], err));
    p->src = whole;
    if (!o->ids && (rc = tern_weight_rows(&p->src, &whole, row0, o->k, &e)) < 0)
        TERN_FAIL(err, rc, "%s: %s", tern_file_path(ld->f), e.msg);
    TERN_TRY(place_bytes(ld, p, o->k, o->use, err));
    if (!tern_add(ld->total, p->bytes, &ld->total))
        TERN_FAIL(err, TERN_ENOMEM, "%s: the weights do not fit in memory", tern_file_path(ld->f));
    ld->net->n_params += n * o->k * o->stack;
out:
    return rc;
}

/* Looks up the tensor of n_rules rules, which share its rows; o says what is wanted.  layer -1: global rules. */
static int place_tensor(struct loader *ld, struct found *o, const struct tern_tensor_rule *r, int n_rules, int layer,
                        struct tern_weights *slots, tern_error *err)
{
    int rc = 0;
    char name[NAME_MAX_LEN];
    const struct tern_desc *d = &ld->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer < 0 ? 0 : layer];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(name, sizeof name, r->name, layer, o->matrix); /* the tables are constants of this program */
#pragma GCC diagnostic pop
    o->t = tern_file_tensor(ld->f, name);
    if (!o->t && o->matrix == 0 && (r->optional || left_out(l, r)))
        return 0;
    if (!o->t)
        TERN_FAIL(err, TERN_EFORMAT, "%s: tensor \"%s\" is missing", tern_file_path(ld->f), name);
    if (is_merged(o))
        TERN_TRY(check_shape(ld, o->t, o->rows * o->stack, o->k, 1, false, err));
    else
        TERN_TRY(check_shape(ld, o->t, o->rows, o->k, o->stack, o->vector && o->k == 1, err));
    if (left_out(l, r)) /* known, but nobody's */
        return know(ld, o->t, err);
    int64_t row0 = 0;
    for (int i = 0; i < n_rules; i++) {
        int64_t n = r[i].n(d, l);
        slots[r[i].slot].stacked = r->stacked;
        o->use = use_of(&r[i]);
        TERN_TRY(place_rows(ld, o, &slots[r[i].slot], row0, n, err));
        row0 += n;
    }
out:
    return rc;
}

/* One tensor, or one for each matrix of a stack. */
static int place_rule(struct loader *ld, const struct tern_tensor_rule *r, int n_rules, int layer,
                      struct tern_weights *slots, tern_error *err)
{
    int rc = 0;
    const struct tern_desc *d = &ld->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer < 0 ? 0 : layer];
    const char *number = strstr(r->name, "%d");
    const bool apart = number && strstr(number + 2, "%d");
    const int stack = stack_of(l, r->stacked);
    struct found o = {.stack = apart ? 1 : stack,
                      .matrices = stack,
                      .vector = !r->k || r->table || r->flat,
                      .flat = r->flat,
                      .merged = r->merged,
                      .ids = r->ids ? l->experts.n : 0};
    if ((r->when && !r->when(l)) || slots[r->slot].mat.n > 0)
        return 0;
    o.k = columns_of(r, d, l);
    for (int i = 0; i < n_rules; i++)
        o.rows += r[i].n(d, l);
    TERN_ASSERT(o.rows > 0 && o.k > 0);
    do
        TERN_TRY(place_tensor(ld, &o, r, n_rules, layer, slots, err));
    while (apart && o.t && ++o.matrix < stack);
out:
    return rc;
}

/* All rules of a table. */
static int place_rules(struct loader *ld, const struct tern_tensor_rule *r, int layer, struct tern_weights *slots,
                       tern_error *err)
{
    int rc = 0;
    for (int n; r && r->name; r += n) {
        for (n = 1; r[n].name && strcmp(r[n].name, r->name) == 0;)
            n++;
        TERN_TRY(place_rule(ld, r, n, layer, slots, err));
    }
out:
    return rc;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
    return (x > y) - (x < y);
}

/* Is it of an MTP layer, behind the model's own?  Files may hold parts of some that cannot be run. */
static bool of_mtp_layers(const struct tern_desc *d, const struct tern_tensor *t)
{
    const char *name = t->name;
    if (!d->n_mtp_layers || strncmp(name, "blk.", 4) != 0)
        return false;
    char *end;
    long layer = strtol(name + 4, &end, 10);
    return end > name + 4 && *end == '.' && layer >= d->n_layers && layer - d->n_layers < d->n_mtp_layers;
}

/* A tensor that no rule knows would be a part of the model left out of the sum: refuse. */
static int check_unknown(struct loader *ld, tern_error *err)
{
    TERN_ASSERT(ld->known); /* the embedding at least */
    qsort(ld->known, ld->n_known, sizeof *ld->known, by_address);
    for (size_t i = 0; i < tern_file_n_tensors(ld->f); i++) {
        const struct tern_tensor *t = tern_file_tensor_at(ld->f, i);
        if (!t->unused && !(of_mtp_layers(&ld->net->desc, t) && !ld->net->desc.n_mtp) &&
            !bsearch(&t, ld->known, ld->n_known, sizeof *ld->known, by_address))
            return tern_err_set(err, TERN_EUNSUPPORTED, "%s: tensor \"%s\" at byte %llu is not part of architecture %s",
                                tern_file_path(ld->f), t->source, (unsigned long long)t->file_offset, ld->arch->name);
    }
    return 0;
}

/* ---- packing ---------------------------------------------------------------------------------------------------- */

/* Matrix i of a stack between whose matrices something else lies. */
static struct tern_weight_source matrix_at(const struct tern_weight_place *p, int i)
{
    struct tern_weight_source s = p->src;
    s.data = (const uint8_t *)s.data + (size_t)i * p->t->stride;
    if (p->t->quant)
        s.scales = (const uint8_t *)s.scales + (size_t)i * p->t->quant->stride;
    return s;
}

/* user: the place of the weight's tensor, or of the first where its matrices are tensors of their own. */
static int matrix_source(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME],
                         tern_error *err)
{
    const struct tern_weight_place *first = user;
    const bool apart = first->stack < first->matrices;
    const struct tern_weight_place *p = apart ? &first[i] : first;
    int rc = 0;
    if (p->t->stride)
        *out = matrix_at(p, i);
    else
        rc = tern_weight_rows(out, &p->src, apart ? 0 : (int64_t)i * p->stack_rows, p->dst->mat.k, err);
    if (rc == 0)
        out->factor_rows = 0; /* they are those of one matrix */
    if (p->stack > 1) {
        (void)snprintf(name, TERN_DEV_NAME, "%s[%d]", p->t->source, i);
        out->name = name;
    }
    return rc;
}

static int pack_matrix(const struct loader *ld, const struct tern_weight_place *p, tern_error *err)
{
    tern_error e = {0};
    const struct tern_dev_source from = {matrix_source, p};
    int rc = ld->dev->ops->weight_load(ld->dev, &p->dst->mat, &from, &e);
    return rc == 0 ? 0 : tern_err_set(err, rc, "%s: %s", tern_file_path(ld->f), e.msg);
}

/* Says where the model's tensors lie. */
static void bind_all(const struct loader *ld)
{
    for (size_t i = 0; i < ld->n_places; i++) {
        const struct tern_weight_place *p = &ld->places[i];
        if (p->vector)
            p->dst->vec = (struct tern_dev_vec){ld->net->memory, p->offset / sizeof(float)};
        else if (p->matrix == 0)
            ld->dev->ops->weight_place(ld->dev, &p->dst->mat, ld->net->memory, p->offset);
    }
}

static int load_vector(const struct loader *ld, const struct tern_weight_place *p, tern_error *err)
{
    int rc = 0;
    float *x = NULL;
    TERN_TRY(tern_alloc(&x, (size_t)p->n, sizeof *x, err));
    TERN_TRY(tern_vector_read(p, x, tern_file_path(ld->f), err));
    TERN_TRY(tern_vector_check(p, x, tern_file_path(ld->f), p->t->file_offset, err));
    ld->dev->ops->copy_in(ld->dev, ld->net->memory, p->offset, x, (size_t)p->n * sizeof *x);
out:
    tern_free(x);
    return rc;
}

#define HASHED_AT_ONCE ((size_t)64 << 20) /* bytes that are read for their hashes, and again to be packed */

/* Hashes of tensors from i on are made where they are not, of as many as stay in memory until they are packed. */
static size_t hash_ahead(const struct loader *ld, const struct tern_weight_block *b, size_t i, struct tern_pool *pool)
{
    size_t end = i, bytes = 0;
    while (end < b->n && (end == i || bytes < HASHED_AT_ONCE))
        bytes += ld->places[end++].t->n_bytes;
    tern_weight_sources(b, i, end, pool);
    return end;
}

/* Tensors [i, i + n), which are packed: the file's copy is not needed again, without this both would be resident; nor
 * is that in memory, where it goes to a file. */
static int let_go(struct loader *ld, struct tern_packfile *to, size_t i, size_t n, tern_error *err)
{
    for (size_t j = i; j < i + n; j++) {
        const struct tern_weight_place *p = &ld->places[j];
        tern_file_forget(ld->f, p->t);
        for (int part = 0; part < TERN_TENSOR_PARTS && p->parts[part]; part++)
            tern_file_forget(ld->f, p->parts[part]);
        int rc = to ? tern_packfile_add(to, err) : 0;
        if (rc < 0)
            return rc;
        if (to)
            ld->dev->ops->discard(ld->dev, ld->net->memory, p->offset, p->bytes);
    }
    return 0;
}

/* to: the path of a file that gets them, one after the other; NULL: they stay in memory. */
static int pack_all(struct loader *ld, const struct tern_weight_block *b, struct tern_pool *pool, const char *to,
                    tern_error *err)
{
    int rc = 0;
    size_t hashed = 0;
    struct tern_packfile *file = NULL;
    TERN_TRY(ld->dev->ops->reserve(ld->dev, &ld->net->memory, ld->total, true, err));
    TERN_TRY(tern_load_divide(b, ld->net->memory, err));
    bind_all(ld);
    if (to)
        TERN_TRY(tern_packfile_begin(&file, b, ld->net->memory, to, err));
    for (size_t i = 0, n; i < ld->n_places; i += n) {
        const struct tern_weight_place *p = &ld->places[i];
        if (ld->watch.on_progress && ld->watch.on_progress(ld->watch.user, (int)i, (int)ld->n_places) != 0)
            TERN_FAIL(err, TERN_ECANCELLED, "%s: the opening was cancelled", tern_file_path(ld->f));
        for (n = 1; i + n < ld->n_places && p[n].matrix > 0;)
            n++;
        while (hashed < i + n)
            hashed = hash_ahead(ld, b, hashed, pool);
        TERN_TRY(p->vector ? load_vector(ld, p, err) : pack_matrix(ld, p, err));
        TERN_TRY(let_go(ld, file, i, n, err));
    }
    if (file) {
        rc = tern_packfile_end(file, err);
        file = NULL;
    }
out:
    tern_packfile_drop(file);
    return rc;
}

/* ---- the file that keeps packed weights -------------------------------------------------------------------------- */

/* Nothing here makes a load fail: the weights are in memory.  why: what was wrong with the file that is there. */
static void write_packed(struct tern_net *net, const struct tern_weight_block *b, const struct tern_packed_file *kept,
                         const tern_error *why)
{
    tern_error e = {0};
    if (tern_packfile_write(b, net->memory, kept->path, &e) < 0)
        (void)snprintf(net->notice, sizeof net->notice, "%s; the weights were packed for this run alone", e.msg);
    else if (why->code)
        (void)snprintf(net->notice, sizeof net->notice, "%s; packed anew", why->msg);
    else if (!kept->before) /* else all is said */
        (void)snprintf(net->notice, sizeof net->notice, "%s: packed weights written (%zu MiB), for later runs to map",
                       tern_path_show(kept->path), b->bytes >> 20);
}

/* The mapped file becomes the model's memory. */
static int use_packed(struct loader *ld, const struct tern_weight_block *b, const uint8_t *data, const char *path,
                      tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ld->n_places; i++) {
        const struct tern_weight_place *p = &ld->places[i];
        const uint8_t *x = data + p->offset;
        if (p->vector)
            TERN_TRY(
                tern_vector_check(p, (const float *)(const void *)x, path, (uint64_t)(x - ld->net->packed.p), err));
    }
    TERN_TRY(ld->dev->ops->adopt(ld->dev, &ld->net->memory, data, ld->total, err));
    TERN_TRY(tern_load_divide(b, ld->net->memory, err));
    bind_all(ld);
out:
    return rc;
}

/* Experts that stay in the file: there has to be one, and what is in memory of them is resident.c's to say. */
static int load_lean(struct loader *ld, struct tern_weight_block *b, struct tern_pool *pool,
                     const struct tern_packed_file *kept, tern_error *err)
{
    int rc = 0;
    struct tern_net *net = ld->net;
    const uint8_t *data;
    bool replace = false;
    tern_error why = {0};
    rc = tern_packfile_open(&net->packed, &data, b, kept->path, pool, &replace, &why);
    if (rc < 0 && replace && kept->write) {
        TERN_TRY(tern_packfile_check(kept->path, err));
        if (kept->before)
            kept->before(kept->user, kept->path, tern_packfile_bytes(b));
        TERN_TRY(pack_all(ld, b, pool, kept->path, err));
        ld->dev->ops->release(ld->dev, net->memory);
        net->memory = NULL;
        rc = tern_packfile_open(&net->packed, &data, b, kept->path, pool, &replace, &why);
    }
    if (rc < 0)
        TERN_FAIL(err, rc,
                  "%s; experts can be left on disk in a file of packed weights alone (--packed auto writes it)",
                  why.msg);
    TERN_TRY(use_packed(ld, b, data, kept->path, err));
    TERN_TRY(tern_resident_new(&net->resident, net, b, data, kept->path, kept->experts, err));
    TERN_TRY(tern_net_experts_check(net, 1, err));
out:
    return rc;
}

/* Bytes of memory that the weights take; TERN_EUNSUPPORTED where experts cannot be left on disk. */
static int plan_memory(const struct loader *ld, const struct tern_weight_block *b, const struct tern_packed_file *kept,
                       size_t *bytes, tern_error *err)
{
    const size_t experts = tern_resident_bytes(b);
    *bytes = ld->total;
    if (!kept || !kept->experts)
        return 0;
    if (!experts)
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: the model has no experts that could be left on disk",
                            tern_file_path(ld->f));
    if (!ld->dev->ops->in_place)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "device %s has all weights in its memory: experts are left on disk "
                            "on the CPU alone",
                            ld->dev->ops->name);
    if (!kept->path)
        return tern_err_set(err, TERN_EINVAL,
                            "without a file of packed weights (--packed off) all experts are in "
                            "memory: --packed auto writes one");
    *bytes -= experts > kept->experts ? experts - kept->experts : 0;
    return 0;
}

static int load_weights(struct loader *ld, struct tern_pool *pool, const struct tern_packed_file *kept, tern_error *err)
{
    int rc = 0;
    struct tern_net *net = ld->net;
    struct tern_weight_block b = {ld->dev, ld->f, ld->places, ld->n_places, ld->total, net->digest, NULL, false};
    bool replace = false;
    tern_error why = {0};
    const uint8_t *data;
    size_t in_memory;
    b.lean = kept && kept->experts && kept->experts < tern_resident_bytes(&b);
    net->memory_bytes = ld->total;
    TERN_TRY(plan_memory(ld, &b, kept, &in_memory, err));
    TERN_TRY(tern_load_room(&b, net, err));
    if (ld->watch.before_weights)
        TERN_TRY(ld->watch.before_weights(ld->watch.user, in_memory, err));
    TERN_TRY(tern_alloc(&b.sources, b.n, sizeof *b.sources, err));
    if (kept && kept->experts) {
        TERN_TRY(load_lean(ld, &b, pool, kept, err));
        goto out;
    }
    if (kept && kept->path) {
        if (tern_packfile_open(&net->packed, &data, &b, kept->path, pool, &replace, &why) == 0) {
            if (use_packed(ld, &b, data, kept->path, &why) == 0)
                goto out;
            tern_map_close(&net->packed);
        }
        if (why.code == TERN_ENOENT) {
            replace = ld->total >= kept->write_from;
            why = (tern_error){0};
        }
    }
    tern_error refusal = {0};
    replace = replace && kept->write && why.code != TERN_ENOMEM; /* that says nothing about the file */
    if (replace && tern_packfile_check(kept->path, &refusal) < 0) {
        replace = false;
        why = refusal;
    }
    if (replace && kept->before)
        kept->before(kept->user, kept->path, tern_packfile_bytes(&b));
    TERN_TRY(pack_all(ld, &b, pool, NULL, err));
    if (replace)
        write_packed(net, &b, kept, &why);
    else if (refusal.code)
        (void)snprintf(net->notice, sizeof net->notice, "%s; the weights were packed for this run alone", refusal.msg);
    else if (why.code)
        (void)snprintf(net->notice, sizeof net->notice, "%s; not used", why.msg);
out:
    if (rc == 0)
        net->whole = XXH3_64bits_withSeed(b.sources, b.n * sizeof *b.sources, net->digest);
    tern_free(b.sources);
    return rc;
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static int find_arch(const struct tern_arch **out, const struct tern_file *f, tern_error *err)
{
    struct tern_str name;
    int rc = tern_file_get_str(f, "general.architecture", &name, err);
    if (rc < 0)
        return rc;
    if (!name.p)
        return tern_err_set(err, TERN_EFORMAT, "%s: metadata key general.architecture is missing", tern_file_path(f));
    char known[512] = "";
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

static int place_all(struct loader *ld, tern_error *err)
{
    int rc = 0;
    struct tern_net *net = ld->net;
    ld->layer = -1;
    TERN_TRY(place_rules(ld, ld->arch->globals, -1, net->globals, err));
    for (int i = 0; i < net->desc.n_layers + net->desc.n_mtp; i++) {
        const int64_t before = net->n_params;
        ld->layer = i;
        if (ld->dev->ops->layer)
            ld->dev->ops->layer(ld->dev, i, (struct tern_dev_rows){0}, 0);
        TERN_TRY(place_rules(ld, ld->arch->layers, i, net->layers[i], err));
        TERN_TRY(place_rules(ld, ld->arch->more_layers, i, net->layers[i], err));
        TERN_TRY(place_rules(ld, tern_expert_layers, i, net->layers[i], err));
        if (i < net->desc.n_layers)
            continue;
        TERN_TRY(place_rules(ld, ld->arch->mtp ? ld->arch->mtp : tern_mtp_layers, i, net->layers[i], err));
        net->n_mtp_params += net->n_params - before;
    }
    TERN_TRY(check_unknown(ld, err));
out:
    return rc;
}

int tern_net_load(struct tern_net **out, const struct tern_file *f, const struct tern_dev_ops *device, int gpu_layers,
                  struct tern_pool *pool, const struct tern_packed_file *kept, const struct tern_load_watch *watch,
                  tern_error *err)
{
    int rc = 0;
    struct loader ld = {.f = f, .watch = watch ? *watch : (struct tern_load_watch){0}};
    struct tern_net *net = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&net, 1, sizeof *net, err));
    ld.net = net;
    TERN_TRY(find_arch(&ld.arch, f, err));
    net->desc.arch = ld.arch->name;
    TERN_TRY(ld.arch->configure(&net->desc, f, err));
    if (ld.arch->gguf.pairs)
        net->desc.ropes[0].interleaved = tern_file_kind(f) == TERN_FILE_GGUF;
    TERN_TRY(vocab_size(&net->desc, f, err));
    tern_error detail;
    if (tern_desc_check(&net->desc, &detail) < 0)
        TERN_FAIL(err, detail.code, "%s: %s", tern_file_path(f), detail.msg);
    if (tern_desc_check_device(&net->desc, device, &detail) < 0)
        TERN_FAIL(err, detail.code, "%s: %s", tern_file_path(f), detail.msg);
    TERN_TRY(tern_load_open(net, &ld.dev, f, device, pool, gpu_layers, err));
    TERN_TRY(tern_alloc(&net->layers, (size_t)(net->desc.n_layers + net->desc.n_mtp), sizeof *net->layers, err));
    TERN_TRY(place_all(&ld, err));
    net->digest = tern_load_digest(ld.f);
    TERN_TRY(load_weights(&ld, pool, kept, err));
    ld.dev->ops->sync(ld.dev);
    TERN_TRY(tern_dev_fault(ld.dev, false, err));
    if (!net->globals[TERN_HEAD].mat.form) /* tied: the embedding is the output matrix */
        net->globals[TERN_HEAD] = net->globals[TERN_EMBED];
    TERN_TRY(tern_load_ropes(net, f, err));
    TERN_TRY(tern_load_scales(net, err));
    *out = net;
    net = NULL;
out:
    tern_free(ld.places);
    tern_free(ld.known);
    tern_dev_close(ld.dev);
    tern_net_free(net);
    return rc;
}

static void drop_weights(struct tern_net *n)
{
    const struct tern_dev_ops *ops = n->dev->ops;
    if (n->globals[TERN_HEAD].mat.form == n->globals[TERN_EMBED].mat.form)
        n->globals[TERN_HEAD].mat.form = NULL;
    for (int g = 0; g < TERN_N_GLOBALS; g++)
        ops->weight_drop(n->dev, &n->globals[g].mat);
    for (int i = 0; n->layers && i < n->desc.n_layers + n->desc.n_mtp; i++)
        for (int slot = 0; slot < TERN_N_SLOTS; slot++)
            ops->weight_drop(n->dev, &n->layers[i][slot].mat);
    ops->release(n->dev, n->memory);
}

void tern_net_free(struct tern_net *n)
{
    if (!n)
        return;
    if (n->dev)
        drop_weights(n);
    tern_dev_close(n->dev);
    for (int r = 0; r < n->desc.n_ropes; r++) {
        tern_free(n->desc.ropes[r].freq);
        tern_free(n->desc.ropes[r].freq_long);
    }
    tern_free(n->desc.layers);
    tern_free(n->layers);
    tern_free(n->out_scales);
    tern_resident_free(n->resident);
    tern_map_close(&n->packed);
    tern_dev_split_free(n->split);
    tern_free(n);
}

size_t tern_net_tensor_bytes(const struct tern_net *n, const struct tern_tensor *t)
{
    struct tern_dev_weight w;
    const struct tern_weight_source s = source_of(t);
    if (t->unused)
        return 0;
    if (t->n_dims == 1)
        return (size_t)t->dims[0] * sizeof(float);
    if (n->dev->ops->weight_plan(n->dev, &w, &s, t->dims[1], t->dims[0], (int)t->dims[2], NULL) < 0)
        return 0;
    const size_t bytes = n->dev->ops->weight_bytes(&w);
    n->dev->ops->weight_drop(n->dev, &w);
    return bytes;
}

/* Of so many of its matrices. */
static size_t matrix_bytes(const struct tern_net *n, const struct tern_weights *w, int matrices)
{
    return w->mat.form ? n->dev->ops->weight_bytes(&w->mat) / (size_t)w->mat.stack * (size_t)matrices : 0;
}

size_t tern_net_step_bytes(const struct tern_net *n, int rows)
{
    size_t bytes = matrix_bytes(n, &n->globals[TERN_HEAD], 1);
    for (int i = 0; i < n->desc.n_layers; i++) {
        const struct tern_layer_desc *l = &n->desc.layers[i];
        int64_t chosen = (int64_t)rows * l->experts.n_active;
        int experts = (int)(chosen < l->experts.n ? chosen : l->experts.n);
        for (int slot = 0; slot < TERN_N_SLOTS; slot++) {
            const struct tern_weights *w = &n->layers[i][slot];
            bytes += matrix_bytes(n, w, w->stacked == TERN_PER_EXPERT ? experts : stack_of(l, w->stacked));
        }
    }
    return bytes;
}
