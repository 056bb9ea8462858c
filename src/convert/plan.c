/* Which tensors the new file has, where their rows come from, and what types they get. */
#include "convert/convert_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

int tern_convert_fail(const struct plan *p, const struct tern_tensor *t, int code, tern_error *err, const char *what)
{
    return tern_err_set(err, code, "%s: tensor \"%.100s\": %s", tern_path_show(tern_file_path(p->f)), t->source, what);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool is_float(int type)
{
    return type == TERN_F32 || type == TERN_F16 || type == TERN_BF16;
}

bool tern_convert_ids(const struct tern_tensor *t)
{
    return t->type == TERN_I32 || t->type == TERN_I64;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* Matrices that are multiplied by, as against norms, biases, routers and tables of constants, which stay 32 bits. */
static bool is_matrix(const struct piece *o)
{
    return o->n_dims >= 2 && o->dims[1] > 1 && ends_with(o->name, ".weight") && !strstr(o->name, "_norm") &&
           !strstr(o->name, "ffn_gate_inp") && !strstr(o->name, "ssm_conv1d") && !strstr(o->name, "_ape.") &&
           !strstr(o->name, "hc_");
}

/* Of n layers the first and last eighth and every third between: those whose errors count most. */
static bool gets_more(int64_t layer, int64_t n)
{
    return layer < n / 8 || layer >= n - n / 8 || (layer - n / 8) % 3 == 2;
}

/* The smallest of the usual types whose blocks fill a row. */
static int fitting(int type, int64_t k)
{
    if (k % tern_type_elems(type) == 0)
        return type;
    if (k % 32)
        return TERN_F16;
    return type == TERN_Q4_K ? TERN_Q5_0 : TERN_Q8_0;
}

/* The matrix of the logits: output, or the embedding where that is both. */
static bool is_head(const struct plan *p, const struct piece *o)
{
    return strcmp(o->name, "output.weight") == 0 ||
           (strcmp(o->name, "token_embd.weight") == 0 && !tern_file_tensor(p->f, "output.weight"));
}

static int mixed_type(const struct plan *p, const struct piece *o, int64_t n_layers)
{
    const int64_t k = o->dims[0];
    if (p->type == CONVERT_Q8_0)
        return fitting(TERN_Q8_0, k);
    if (is_head(p, o))
        return fitting(TERN_Q6_K, k);
    if (p->type == CONVERT_Q4_0)
        return fitting(TERN_Q4_0, k);
    const bool dear =
        strstr(o->name, ".attn_v.") || strstr(o->name, ".ffn_down.") || strstr(o->name, ".ffn_down_exps.");
    const bool more = dear && starts_with(o->name, "blk.") && gets_more(strtol(o->name + 4, NULL, 10), n_layers);
    return fitting(more ? TERN_Q6_K : TERN_Q4_K, k);
}

static int choose_type(const struct plan *p, const struct piece *o, int64_t n_layers)
{
    const bool directory = tern_file_kind(p->f) == TERN_FILE_HF;
    if (tern_convert_ids(o->t))
        return TERN_I32;
    if (p->type == CONVERT_KEEP)
        return directory && !is_matrix(o) ? TERN_F32 : o->t->type;
    if (!is_matrix(o))
        return TERN_F32;
    switch (p->type) {
    case CONVERT_F32:
        return TERN_F32;
    case CONVERT_F16:
        return TERN_F16;
    case CONVERT_BF16:
        return TERN_BF16;
    default:
        return mixed_type(p, o, n_layers);
    }
}

/* May this tensor become that type? */
static int check_source(const struct plan *p, const struct piece *o, tern_error *err)
{
    char text[160];
    if (o->t->quant) {
        (void)snprintf(text, sizeof text, "it is quantised (%s), which convert does not read", o->t->quant->about);
        return tern_convert_fail(p, o->t, TERN_EUNSUPPORTED, err, text);
    }
    if (o->type == o->t->type || is_float(o->t->type) || tern_convert_ids(o->t))
        return 0;
    if (!p->requantize) {
        (void)snprintf(text, sizeof text,
                       "it is %s already; to lose more of it by making it %s, say --allow-requantize",
                       tern_type_name(o->t->type), tern_type_name(o->type));
        return tern_convert_fail(p, o->t, TERN_EINVAL, err, text);
    }
    if (o->t->type == TERN_NVFP4) /* its factors lie in tensors of their own */
        return tern_convert_fail(p, o->t, TERN_EUNSUPPORTED, err, "NVFP4 is not given another type");
    return 0;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static size_t row_bytes(int type, int64_t k)
{
    return (size_t)(k / tern_type_elems(type)) * (size_t)tern_type_bytes(type);
}

size_t tern_convert_row_bytes(const struct piece *o)
{
    return row_bytes(o->type, o->k);
}

static void set_chunks(struct piece *o)
{
    const size_t from = row_bytes(o->t->type, o->k), to = tern_convert_row_bytes(o);
    const size_t most = CHUNK_BYTES / (from > to ? from : to);
    o->chunk_rows = most > 1 ? (int64_t)most : 1;
    o->n_chunks = (size_t)((o->rows + o->chunk_rows - 1) / o->chunk_rows);
}

/* A tensor of the same shape as t, to be changed and then settled. */
static int add(struct plan *p, struct piece **out, const struct tern_tensor *t, const char *name, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_grow(&p->v, &p->cap, p->n + 1, sizeof *p->v, err));
    struct piece *o = *out = &p->v[p->n++];
    *o = (struct piece){.t = t, .n_dims = t->n_dims};
    if (snprintf(o->name, sizeof o->name, "%s", name) >= (int)sizeof o->name)
        return tern_convert_fail(p, t, TERN_ELIMIT, err,
                                 "its name has more bytes than the 63 that GGUF's readers take");
    memcpy(o->dims, t->dims, sizeof o->dims);
    o->k = t->dims[0];
    o->matrix_rows = o->source_rows = t->dims[1];
    o->rows = t->dims[1] * t->dims[2] * t->dims[3];
out:
    return rc;
}

static int settle(struct plan *p, struct piece *o, int64_t n_layers, tern_error *err)
{
    int rc = 0;
    o->type = choose_type(p, o, n_layers);
    TERN_TRY(check_source(p, o, err));
    TERN_TRY(tern_gguf_tensor(&p->head, o->name, o->type, o->n_dims, o->dims, &o->offset, &o->n_bytes, err));
    set_chunks(o);
    p->n_chunks += o->n_chunks;
out:
    return rc;
}

/* Is this blk.N.ffn_MATRIX.E.weight?  *n_base: length of "blk.N.ffn_MATRIX". */
static bool is_expert(const char *name, long *expert, size_t *n_base)
{
    if (!starts_with(name, "blk.") || !ends_with(name, ".weight"))
        return false;
    const char *word = strchr(name + 4, '.');
    if (!word ||
        (!starts_with(word, ".ffn_gate.") && !starts_with(word, ".ffn_up.") && !starts_with(word, ".ffn_down.")))
        return false;
    const char *number = strchr(word + 1, '.') + 1;
    char *end;
    *expert = strtol(number, &end, 10);
    *n_base = (size_t)(number - 1 - name);
    return end != number && strcmp(end, ".weight") == 0;
}

/* Experts that have a tensor each become one. */
static int add_stack(struct plan *p, const struct tern_tensor *first, size_t n_base, int64_t n_layers, tern_error *err)
{
    int rc = 0;
    char key[96], name[160];
    int64_t n;
    struct piece *o;
    (void)snprintf(key, sizeof key, "%s.expert_count", p->arch);
    TERN_TRY(tern_file_need_int(p->f, key, 1, 65536, &n, err));
    (void)snprintf(name, sizeof name, "%.*s_exps.weight", (int)n_base, first->name);
    TERN_TRY(add(p, &o, first, name, err));
    TERN_TRY(tern_alloc(&o->each, (size_t)n, sizeof(const struct tern_tensor *), err));
    for (int64_t e = 0; e < n; e++) {
        (void)snprintf(name, sizeof name, "%.*s.%lld.weight", (int)n_base, first->name, (long long)e);
        const struct tern_tensor *t = tern_file_tensor(p->f, name);
        if (!t)
            TERN_FAIL(err, TERN_EFORMAT, "%s: tensor \"%s\" is missing", tern_path_show(tern_file_path(p->f)), name);
        if (t->quant)
            return tern_convert_fail(p, t, TERN_EUNSUPPORTED, err, "quantised experts are not converted");
        if (t->type != first->type || t->n_dims != 2 || memcmp(t->dims, first->dims, sizeof t->dims) != 0)
            return tern_convert_fail(p, t, TERN_EFORMAT, err,
                                     "it is of another shape or type than the experts before it");
        o->each[e] = t;
    }
    o->n_dims = 3;
    o->dims[2] = n;
    o->rows = o->matrix_rows * n;
    TERN_TRY(settle(p, o, n_layers, err));
out:
    return rc;
}

/* The others are taken along with the first one, as many as the model has. */
static int check_expert(const struct plan *p, const struct tern_tensor *t, long expert, size_t n_base, tern_error *err)
{
    char key[96], name[160];
    int64_t n;
    (void)snprintf(key, sizeof key, "%s.expert_count", p->arch);
    (void)snprintf(name, sizeof name, "%.*s.0.weight", (int)n_base, t->name);
    int rc = tern_file_need_int(p->f, key, 1, 65536, &n, err);
    if (rc == 0 && (expert < 0 || expert >= n || !tern_file_tensor(p->f, name)))
        return tern_convert_fail(p, t, TERN_EFORMAT, err, "it belongs to no expert");
    return rc;
}

/* Gate and up of all experts in one tensor become two. */
static int add_halves(struct plan *p, const struct tern_tensor *t, int64_t n_layers, tern_error *err)
{
    static const char *const halves[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight"};
    int rc = 0;
    char name[160];
    struct piece *o;
    if (t->n_dims != 3 || t->dims[1] % 2)
        return tern_convert_fail(p, t, TERN_EFORMAT, err, "it is not a stack of two matrices for each expert");
    for (int i = 0; i < 2; i++) {
        (void)snprintf(name, sizeof name, "%.*s%s", (int)(strstr(t->name, "ffn_") - t->name), t->name, halves[i]);
        TERN_TRY(add(p, &o, t, name, err));
        o->dims[1] = o->matrix_rows = t->dims[1] / 2;
        o->row0 = i * o->matrix_rows;
        o->rows = o->matrix_rows * t->dims[2];
        TERN_TRY(settle(p, o, n_layers, err));
    }
out:
    return rc;
}

static int add_tensor(struct plan *p, const struct tern_tensor *t, int64_t n_layers, tern_error *err)
{
    int rc = 0;
    long expert;
    size_t n_base;
    struct piece *o;
    if (t->unused)
        return 0;
    if (tern_file_kind(p->f) == TERN_FILE_HF && strcmp(t->name, t->source) == 0)
        return tern_convert_fail(p, t, TERN_EUNSUPPORTED, err, "GGUF has no name for it");
    if (is_expert(t->name, &expert, &n_base))
        return expert == 0 ? add_stack(p, t, n_base, n_layers, err) : check_expert(p, t, expert, n_base, err);
    if (ends_with(t->name, ".ffn_gate_up_exps.weight") && tern_file_kind(p->f) == TERN_FILE_HF)
        return add_halves(p, t, n_layers, err);
    TERN_TRY(add(p, &o, t, t->name, err));
    TERN_TRY(tern_convert_order(p, o, err));
    TERN_TRY(settle(p, o, n_layers, err));
out:
    return rc;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Latent attention has neighbours as rotated pairs in GGUF, and either in directories. */
static int find_pairs(struct plan *p, tern_error *err)
{
    bool neighbours;
    char key[160];
    if (!p->latent)
        return 0;
    int rc =
        tern_file_get_bool(p->f, tern_arch_key(key, sizeof key, p->arch, "rope.interleaved"), true, &neighbours, err);
    p->permuted = rc == 0 && !neighbours;
    return rc;
}

static int find_arch(struct plan *p, tern_error *err)
{
    struct tern_str s;
    int rc = tern_file_get_str(p->f, "general.architecture", &s, err);
    if (rc < 0)
        return rc;
    if (!s.p || s.n == 0 || s.n >= sizeof p->arch)
        return tern_err_set(err, TERN_EFORMAT, "%s: the metadata key \"general.architecture\" is missing or no name",
                            tern_path_show(tern_file_path(p->f)));
    (void)snprintf(p->arch, sizeof p->arch, "%.*s", (int)s.n, s.p);
    if (tern_file_kind(p->f) == TERN_FILE_GGUF)
        return 0;
    struct tern_arch_gguf gguf;
    if (tern_arch_find_gguf(&gguf, p->arch)) {
        p->permuted = gguf.pairs;
        p->divided = gguf.divisors;
        p->grouped = gguf.grouped;
        p->latent = gguf.latent;
        return find_pairs(p, err);
    }
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: directories of architecture %s are not converted",
                        tern_path_show(tern_file_path(p->f)), p->arch);
}

static int find_type(struct plan *p, const char *name, tern_error *err)
{
    static const char *const names[CONVERT_N_TYPES] = {"keep", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_k"};
    for (int i = 0; i < CONVERT_N_TYPES; i++)
        if (strcmp(name ? name : "keep", names[i]) == 0) {
            p->type = (enum convert_type)i;
            return 0;
        }
    return tern_err_set(err, TERN_EINVAL, "\"%.40s\" is no type to convert to: keep, f32, f16, bf16, q8_0, q4_0, q4_k",
                        name);
}

int tern_convert_plan_make(struct plan *p, const tern_convert_params *params, tern_error *err)
{
    int rc = 0;
    char key[96];
    int64_t n_layers, n_mtp;
    p->requantize = params->requantize;
    TERN_TRY(find_type(p, params->type, err));
    TERN_TRY(find_arch(p, err));
    (void)snprintf(key, sizeof key, "%s.block_count", p->arch);
    TERN_TRY(tern_file_need_int(p->f, key, 1, 65536, &n_layers, err));
    (void)snprintf(key, sizeof key, "%s.nextn_predict_layers", p->arch);
    TERN_TRY(tern_file_get_int(p->f, key, 0, 0, n_layers - 1, &n_mtp, err));
    n_layers -= n_mtp; /* which layers are the last does not depend on those behind */
    TERN_TRY(tern_convert_metadata(p, params, err));
    for (size_t i = 0; i < tern_file_n_tensors(p->f); i++)
        TERN_TRY(add_tensor(p, tern_file_tensor_at(p->f, i), n_layers, err));
    TERN_TRY(tern_convert_divisors(p, err));
    if (p->divisor_values)
        TERN_TRY(add_tensor(p, &p->divisors, n_layers, err));
    TERN_TRY(tern_gguf_head(&p->head, &p->head_bytes, err));
out:
    return rc;
}

void tern_convert_plan_clear(struct plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        tern_free(p->v[i].each);
    tern_free(p->v);
    tern_free(p->divisor_values);
    tern_gguf_clear(&p->head);
    tern_buf_clear(&p->head_bytes);
}
