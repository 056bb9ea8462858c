/* Quantised checkpoints: which tensors of a safetensors directory are one weight, and what their codes mean.
 *
 * A line of `methods` says what the tensors of a module are called, and reads what config.json says about the codes.  A
 * module is quantised when its codes have scales beside them, whatever lists of exceptions the configuration has; their
 * shapes and types must then be what the configuration says. */
#include "file/hf/hf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ANY_FLOAT = -1, ANY_SCALE = -2, LARGEST_GROUP = 1 << 20 };

struct quantiser {
    struct tern_file *f;
    struct tern_tensor_list *list; /* name NULL: the tensor is part of another one */
    struct tern_file_index index;  /* of the list, by source */
    const struct method *method;
    struct tern_quant all;               /* what holds for all modules; of MLX each may say otherwise */
    char scope[TERN_GGUF_MAX_NAME + 64]; /* "config.quantization.", where the configuration speaks of the codes */
    size_t root;                         /* length of that without a module */
};

/* ---- configuration ----------------------------------------------------------------------------------------------- */

struct key {
    char text[TERN_GGUF_MAX_NAME + 128];
};

static struct key key_of(const struct quantiser *q, const char *name)
{
    struct key k;
    (void)snprintf(k.text, sizeof k.text, "%s%s", q->scope, name);
    return k;
}

static const struct tern_meta *said(const struct quantiser *q, const char *name)
{
    return tern_meta_table_find(&q->f->parts[0].meta, key_of(q, name).text);
}

static int fail_key(const struct quantiser *q, const char *name, tern_error *err, const char *what)
{
    const struct key key = key_of(q, name);
    struct tern_cursor c = {.part = &q->f->parts[0], .table = "metadata key", .name = key.text};
    return tern_cursor_fail(&c, TERN_NO_OFFSET, TERN_EUNSUPPORTED, err, "%s", what);
}

static int read_int(const struct quantiser *q, const char *name, int64_t def, int64_t min, int64_t max, int *out,
                    tern_error *err)
{
    int64_t v = 0;
    int rc = tern_part_int(&q->f->parts[0], key_of(q, name).text, &def, min, max, &v, err);
    *out = (int)v;
    return rc;
}

/* Which of the `n` words a key says; the first when it says nothing. */
static int read_word(const struct quantiser *q, const char *name, const char *const *words, int n, int *which,
                     tern_error *err)
{
    const struct tern_meta *m = said(q, name);
    const char *word = m && m->type == TERN_META_STRING ? m->s.p : ""; /* JSON's strings have no NUL inside */
    char text[128];
    for (*which = 0; *which < n; ++*which)
        if (!m || strcmp(word, words[*which]) == 0)
            return 0;
    (void)snprintf(text, sizeof text, "\"%s\" is not supported", tern_name_show(word).text);
    return fail_key(q, name, err, text);
}

/* `name` must be false (or true), where it is said at all. */
static int need_flag(const struct quantiser *q, const char *name, bool want, tern_error *err)
{
    const struct tern_meta *m = said(q, name);
    if (!m || (m->type == TERN_META_BOOL && m->i == want))
        return 0;
    return fail_key(q, name, err, want ? "only true is supported" : "only false is supported");
}

static int read_mlx(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    static const char *const modes[] = {"affine", "mxfp4", "mxfp8", "nvfp4"};
    static const struct {
        enum tern_weight_form form;
        int bits, group;
    } forms[] = {
        {TERN_FORM_AFFINE, 4, 64}, {TERN_FORM_MXFP4, 4, 32}, {TERN_FORM_MXFP8, 8, 32}, {TERN_FORM_NVFP4, 4, 16}};
    int rc = 0, i;
    TERN_TRY(read_word(q, "mode", modes, 4, &i, err));
    TERN_TRY(read_int(q, "bits", forms[i].bits, 2, 8, &x->bits, err));
    TERN_TRY(read_int(q, "group_size", forms[i].group, 16, 128, &x->group, err));
    x->form = forms[i].form;
    if (x->form == TERN_FORM_AFFINE ? x->bits == 7 : x->bits != forms[i].bits)
        return fail_key(q, "bits", err, "this mode has no codes of so many bits");
    if (x->form == TERN_FORM_AFFINE ? x->group % 32 || x->group == 96 : x->group != forms[i].group)
        return fail_key(q, "group_size", err, "this mode has no groups of this size");
out:
    return rc;
}

/* What MLX says about one module: nothing, true, false, or an object whose defaults are those of its mode. */
static int read_module(struct quantiser *q, struct tern_quant *x, const char *module, tern_error *err)
{
    static const char *const words[] = {"mode", "bits", "group_size"};
    int rc = 0;
    bool own = false;
    TERN_TRY(need_flag(q, module, true, err));
    (void)snprintf(q->scope + q->root, sizeof q->scope - q->root, "%s.", module);
    for (size_t i = 0; i < 3; i++)
        own |= said(q, words[i]) != NULL;
    if (own)
        TERN_TRY(read_mlx(q, x, err));
out:
    q->scope[q->root] = 0;
    return rc;
}

static int read_fp8(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    static const char *const formats[] = {"e4m3"};
    int rc = 0, i;
    const struct tern_meta *block = said(q, "weight_block_size");
    *x = (struct tern_quant){.form = TERN_FORM_FP8, .bits = 8};
    TERN_TRY(read_word(q, "fmt", formats, 1, &i, err));
    if (!block)
        return 0;
    const int64_t *size = block->arr;
    if (block->type != TERN_META_ARRAY || block->elem != TERN_META_INT || block->n != 2 || size[0] < 1 || size[1] < 1 ||
        size[0] > LARGEST_GROUP || size[1] > LARGEST_GROUP)
        return fail_key(q, "weight_block_size", err, "it is not two numbers of rows and columns");
    x->group_rows = (int)size[0];
    x->group = (int)size[1];
out:
    return rc;
}

/* GPTQ and AWQ. */
static int read_words(const struct quantiser *q, struct tern_quant *x, enum tern_weight_form form, tern_error *err)
{
    int rc = 0;
    *x = (struct tern_quant){.form = form};
    TERN_TRY(read_int(q, "bits", 4, 2, 8, &x->bits, err));
    if (x->bits != 4)
        return fail_key(q, "bits", err, "only codes of 4 bits are supported");
    TERN_TRY(read_int(q, "group_size", 128, -1, LARGEST_GROUP, &x->group, err));
    if (x->group == 0)
        return fail_key(q, "group_size", err, "groups of 0 are not supported");
    if (x->group < 0) /* a whole row */
        x->group = 0;
out:
    return rc;
}

static int read_gptq(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    static const char *const formats[] = {"gptq", "gptq_v2"};
    int rc = 0, i;
    const struct key dynamic = key_of(q, "dynamic.");
    TERN_TRY(read_words(q, x, TERN_FORM_GPTQ, err));
    TERN_TRY(need_flag(q, "desc_act", false, err));
    TERN_TRY(read_word(q, said(q, "format") ? "format" : "checkpoint_format", formats, 2, &i, err));
    x->zero_plus_one = i == 0;
    for (size_t k = 0; k < q->f->parts[0].meta.n; k++)
        if (starts_with(q->f->parts[0].meta.v[k].key, dynamic.text))
            return fail_key(q, "dynamic", err, "modules that differ from each other are not supported");
out:
    return rc;
}

static int read_awq(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    static const char *const versions[] = {"gemm", "GEMM"};
    int rc = 0, i;
    TERN_TRY(read_words(q, x, TERN_FORM_AWQ, err));
    TERN_TRY(need_flag(q, "zero_point", true, err));
    TERN_TRY(read_word(q, "version", versions, 2, &i, err));
out:
    return rc;
}

static int read_compressed(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    static const char *const formats[] = {"", "nvfp4-pack-quantized"};
    int rc = 0, i;
    *x = (struct tern_quant){.form = TERN_FORM_NVFP4, .bits = 4, .group = 16};
    TERN_TRY(read_word(q, "format", formats, 2, &i, err));
    if (i == 0)
        return fail_key(q, "format", err, "only \"nvfp4-pack-quantized\" is supported");
out:
    return rc;
}

/* ---- methods ----------------------------------------------------------------------------------------------------- */

struct method {
    const char *codes, *scales[3], *zeros, *factor; /* endings of the names of a module's tensors */
    const char *idle;                               /* of use where activations are rounded too */
    int codes_type;
    int scales_type; /* of forms whose scales are bytes */
    int (*read)(const struct quantiser *q, struct tern_quant *x, tern_error *err);
};

enum { MLX, FP8, N_METHODS = 5 };

static const char *const method_names[N_METHODS] = {"mlx", "fp8", "gptq", "awq", "compressed-tensors"};

static const struct method methods[N_METHODS] = {
    {".weight", {".scales"}, ".biases", NULL, NULL, TERN_U32, TERN_U8, read_mlx},
    {".weight",
     {".weight_scale_inv", ".weight_scale", ".scale"},
     NULL,
     NULL,
     ".input_scale",
     TERN_F8_E4M3,
     ANY_SCALE,
     read_fp8},
    {".qweight", {".scales"}, ".qzeros", NULL, NULL, TERN_I32, ANY_FLOAT, read_gptq},
    {".qweight", {".scales"}, ".qzeros", NULL, NULL, TERN_I32, ANY_FLOAT, read_awq},
    {".weight_packed",
     {".weight_scale"},
     NULL,
     ".weight_global_scale",
     ".input_global_scale",
     TERN_U8,
     TERN_F8_E4M3,
     read_compressed},
};

/* Which method a checkpoint uses; q->method stays NULL when it is not quantised. */
static int find_method(struct quantiser *q, tern_error *err)
{
    static const char *const roots[] = {"config.quantization.", "config.quantization_config.",
                                        "config.text_config.quantization.", "config.text_config.quantization_config."};
    const struct tern_meta_table *t = &q->f->parts[0].meta;
    int i;
    for (size_t r = 0; r < sizeof roots / sizeof *roots && !q->root; r++)
        for (size_t k = 0; k < t->n && !q->root; k++)
            if (starts_with(t->v[k].key, roots[r])) {
                q->root = strlen(roots[r]);
                memcpy(q->scope, roots[r], q->root + 1);
            }
    if (!q->root)
        return 0;
    int rc = read_word(q, "quant_method", method_names, N_METHODS, &i, err);
    if (rc < 0)
        return rc;
    q->method = &methods[i];
    return q->method->read(q, &q->all, err);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const char *source_name(const void *table, size_t i)
{
    return ((const struct tern_tensor *)table)[i].source;
}

static int fail(const struct quantiser *q, const struct tern_tensor *t, tern_error *err, const char *what)
{
    struct tern_cursor c = {.part = tern_file_part_of(q->f, t), .table = "tensor", .name = t->source};
    return tern_cursor_fail(&c, (size_t)t->file_offset, TERN_EFORMAT, err, "%s", what);
}

int tern_hf_fail_raw(const struct tern_file *f, const struct tern_tensor *t, tern_error *err)
{
    struct tern_cursor c = {.part = tern_file_part_of(f, t), .table = "tensor", .name = t->source};
    const int type = t->type;
    const bool never = type == TERN_F8_E5M2 || type == TERN_BOOL || type == TERN_F64 || type == TERN_I16 ||
                       type == TERN_U16 || type == TERN_U64;
    return tern_cursor_fail(&c, (size_t)t->file_offset, TERN_EUNSUPPORTED, err, "dtype \"%s\" is not supported%s",
                            tern_type_name(type), never ? "" : " but in a quantised weight with its scales");
}

/* Is there a tensor of this name?  *i: its number. */
static bool find(const struct quantiser *q, size_t *i, const char *module, const char *ending)
{
    char name[TERN_GGUF_MAX_NAME + 32];
    (void)snprintf(name, sizeof name, "%s%s", module, ending);
    *i = tern_file_index_find(&q->index, name, source_name, q->list->v);
    return *i != SIZE_MAX;
}

static int fail_missing(const struct quantiser *q, const struct tern_tensor *codes, const char *ending, tern_error *err)
{
    char text[64];
    (void)snprintf(text, sizeof text, "a tensor with \"%s\" is missing beside it", ending);
    return fail(q, codes, err, text);
}

/* Moves a tensor that `codes` need out of the list. */
static int take(const struct quantiser *q, const struct tern_tensor **out, const struct tern_tensor *codes,
                const char *module, const char *ending, tern_error *err)
{
    struct tern_tensor *copy;
    size_t i;
    *out = NULL;
    if (!find(q, &i, module, ending))
        return fail_missing(q, codes, ending, err);
    int rc = tern_file_arena_alloc(&q->f->arena, &copy, 1, sizeof *copy, err);
    if (rc < 0)
        return rc;
    *copy = q->list->v[i];
    *out = copy;
    q->list->v[i].name = NULL;
    return 0;
}

static bool is_float(int type)
{
    return type == TERN_F32 || type == TERN_F16 || type == TERN_BF16;
}

static bool fits(int type, int want)
{
    return want == ANY_FLOAT   ? is_float(type)
           : want == ANY_SCALE ? is_float(type) || type == TERN_F8_E8M0
                               : type == want;
}

/* Is t a matrix [rows, columns] of this type, or a stack of so many as the codes are? */
static int check(const struct quantiser *q, const struct tern_tensor *t, int type, int64_t columns, int64_t rows,
                 int64_t stack, tern_error *err)
{
    char text[240], has[64] = "", more[24] = "";
    size_t used = 0;
    if (!fits(t->type, type)) {
        (void)snprintf(text, sizeof text, "its dtype is %s, the quantisation of this weight has %s here",
                       tern_type_name(t->type),
                       type == ANY_FLOAT   ? "F32, F16 or BF16"
                       : type == ANY_SCALE ? "F32, F16, BF16 or F8_E8M0"
                                           : tern_type_name(type));
        return fail(q, t, err, text);
    }
    if (t->dims[0] == columns && t->dims[1] == rows && t->dims[2] == stack && t->dims[3] == 1)
        return 0;
    if (stack > 1)
        (void)snprintf(more, sizeof more, "%lld, ", (long long)stack);
    for (int k = t->n_dims > 2 ? t->n_dims : 2; k-- > 0 && used < sizeof has;)
        used += (size_t)snprintf(has + used, sizeof has - used, "%lld%s", (long long)t->dims[k], k ? ", " : "");
    (void)snprintf(text, sizeof text, "its shape is [%s], the quantisation of this weight needs [%s%lld, %lld]", has,
                   more, (long long)rows, (long long)columns);
    return fail(q, t, err, text);
}

/* How many weights the codes are: dims[0] inputs of dims[1] outputs, in dims[2] matrices where MLX has a stack. */
static int count_weights(const struct quantiser *q, const struct tern_quant *x, const struct tern_tensor *t,
                         int64_t dims[3], tern_error *err)
{
    char text[128];
    const bool stack = q->method == &methods[MLX] && t->n_dims == 3;
    const int type = x->form == TERN_FORM_MXFP4 && q->method == &methods[FP8] ? TERN_I8 : q->method->codes_type;
    if (t->type != type || (t->n_dims != 2 && !stack)) {
        (void)snprintf(text, sizeof text, "codes that are no matrix of dtype %s are not supported",
                       tern_type_name(type));
        return fail(q, t, err, text);
    }
    const int64_t bits = t->dims[0] * (t->type == TERN_U32 || t->type == TERN_I32 ? 32 : 8);
    dims[0] = bits / x->bits;
    dims[1] = t->dims[1];
    dims[2] = t->dims[2];
    if (x->form == TERN_FORM_GPTQ || x->form == TERN_FORM_AWQ) {
        dims[0] = t->dims[1] * (x->form == TERN_FORM_GPTQ ? 8 : 1);
        dims[1] = t->dims[0] * (x->form == TERN_FORM_GPTQ ? 1 : 8);
    }
    if (bits % x->bits == 0 && (x->form == TERN_FORM_FP8 || !x->group || dims[0] % x->group == 0))
        return 0;
    (void)snprintf(text, sizeof text, "its rows are not whole groups of %d codes of %d bits", x->group, x->bits);
    return fail(q, t, err, text);
}

static int64_t pieces(int64_t n, int64_t size)
{
    return size ? (n + size - 1) / size : 1;
}

static int check_parts(const struct quantiser *q, struct tern_quant *x, const int64_t dims[3], tern_error *err)
{
    int rc = 0;
    const int64_t groups = pieces(dims[0], x->group), n = dims[1];
    if (x->form == TERN_FORM_GPTQ || x->form == TERN_FORM_AWQ) {
        TERN_TRY(check(q, x->scales, ANY_FLOAT, n, groups, 1, err));
        TERN_TRY(check(q, x->zeros, TERN_I32, n / 8, groups, 1, err));
        return 0;
    }
    if (x->form == TERN_FORM_FP8 && !x->group) /* a scale for each row is told from one for all by its shape alone */
        x->group_rows = x->scales->dims[1] > 1;
    const int64_t rows = x->form == TERN_FORM_FP8 ? pieces(n, x->group_rows) : n;
    const bool packed = x->form == TERN_FORM_MXFP4 && q->method == &methods[FP8];
    const int type = packed ? TERN_F8_E8M0 : x->form == TERN_FORM_AFFINE ? ANY_FLOAT : q->method->scales_type;
    TERN_TRY(check(q, x->scales, type, groups, rows, dims[2], err));
    if (x->zeros)
        TERN_TRY(check(q, x->zeros, x->scales->type, groups, rows, dims[2], err));
    if (x->factors)
        TERN_TRY(check(q, x->factors, TERN_F32, 1, 1, 1, err));
out:
    return rc;
}

/* The file holds by what scales were multiplied before they were rounded; factors multiply weights. */
static int invert_factor(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    int rc = 0;
    struct tern_tensor *t;
    float v, *inverse;
    memcpy(&v, x->factors->data, sizeof v);
    if (!(v > 0) || !isfinite(v))
        return fail(q, x->factors, err, "its value is no positive number");
    TERN_TRY(tern_file_arena_alloc(&q->f->arena, &t, 1, sizeof *t, err));
    TERN_TRY(tern_file_arena_alloc(&q->f->arena, &inverse, 1, sizeof *inverse, err));
    *inverse = 1 / v;
    *t = *x->factors;
    t->data = inverse;
    x->factors = t;
out:
    return rc;
}

/* The text for reports. */
static int describe(const struct quantiser *q, struct tern_quant *x, tern_error *err)
{
    static const char *const names[] = {"plain", "affine", "MXFP4", "NVFP4", "MXFP8", "FP8", "GPTQ 4 bit", "AWQ 4 bit"};
    char *about;
    const size_t size = 48;
    int rc = tern_file_arena_alloc(&q->f->arena, &about, size, 1, err);
    if (rc < 0)
        return rc;
    if (x->form == TERN_FORM_AFFINE)
        (void)snprintf(about, size, "affine %d bit, groups of %d", x->bits, x->group);
    else if (x->form == TERN_FORM_FP8 && x->group)
        (void)snprintf(about, size, "FP8, blocks of %d x %d", x->group_rows, x->group);
    else if (x->group)
        (void)snprintf(about, size, "%s, groups of %d", names[x->form], x->group);
    else
        (void)snprintf(about, size, "%s, a scale per %s", names[x->form],
                       x->form == TERN_FORM_FP8 && !x->group_rows ? "matrix" : "row");
    x->about = about;
    return 0;
}

/* GPTQ: inputs must lie in the order of their groups. */
static int check_order(const struct quantiser *q, const struct tern_quant *x, const struct tern_tensor *t,
                       int64_t inputs, tern_error *err)
{
    char text[128];
    if (t->type != TERN_I32 || t->dims[0] != inputs || t->n_dims != 1)
        return fail(q, t, err, "it is not one I32 for each input");
    for (int64_t i = 0; i < inputs; i++) {
        int32_t group;
        memcpy(&group, (const char *)t->data + 4 * i, 4);
        if (group == (x->group ? i / x->group : 0))
            continue;
        (void)snprintf(text, sizeof text, "input %lld is in group %d: groups of scattered inputs are not supported",
                       (long long)i, group);
        return fail(q, t, err, text);
    }
    return 0;
}

static bool is_zero(const struct tern_tensor *t)
{
    const uint8_t *p = t->data;
    size_t i = 0;
    while (i < t->n_bytes && p[i] == 0)
        i++;
    return i == t->n_bytes;
}

/* What a quantised module may have besides, and the computation does without. */
static int leave_out(const struct quantiser *q, const struct tern_quant *x, const char *module, int64_t inputs,
                     tern_error *err)
{
    const bool gptq = x->form == TERN_FORM_GPTQ;
    struct tern_tensor *list = q->list->v;
    size_t i;
    if (q->method->idle && find(q, &i, module, q->method->idle))
        list[i].unused = true;
    if (gptq && find(q, &i, module, ".bias") && is_zero(&list[i])) /* written for modules that have none */
        list[i].unused = true;
    if (!gptq || !find(q, &i, module, ".g_idx"))
        return 0;
    list[i].unused = true;
    return check_order(q, x, &list[i], inputs, err);
}

/* t: the codes of a module that has scales. */
static int join_module(struct quantiser *q, struct tern_tensor *t, const char *module, const char *scales,
                       tern_error *err)
{
    int rc = 0;
    struct tern_quant *x;
    char *name;
    const size_t n = strlen(module) + sizeof ".weight";
    int64_t dims[3];
    TERN_TRY(tern_file_arena_alloc(&q->f->arena, &x, 1, sizeof *x, err));
    *x = q->all;
    if (q->method == &methods[MLX])
        TERN_TRY(read_module(q, x, module, err));
    if (q->method == &methods[FP8] && t->type == TERN_I8) /* two E2M1 to a byte */
        *x = (struct tern_quant){.form = TERN_FORM_MXFP4, .bits = 4, .group = 32};
    TERN_TRY(take(q, &x->scales, t, module, scales, err));
    if (x->form == TERN_FORM_AFFINE || x->form == TERN_FORM_GPTQ || x->form == TERN_FORM_AWQ)
        TERN_TRY(take(q, &x->zeros, t, module, q->method->zeros, err));
    if (q->method->factor)
        TERN_TRY(take(q, &x->factors, t, module, q->method->factor, err));
    TERN_TRY(count_weights(q, x, t, dims, err));
    TERN_TRY(check_parts(q, x, dims, err));
    if (x->factors)
        TERN_TRY(invert_factor(q, x, err));
    TERN_TRY(leave_out(q, x, module, dims[0], err));
    TERN_TRY(describe(q, x, err));
    TERN_TRY(tern_file_arena_alloc(&q->f->arena, &name, n, 1, err));
    (void)snprintf(name, n, "%s.weight", module);
    t->name = name;
    memcpy(t->dims, dims, sizeof dims);
    t->quant = x;
out:
    return rc;
}

static int join_all(struct quantiser *q, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < q->list->n; i++) {
        struct tern_tensor *t = &q->list->v[i];
        char module[TERN_GGUF_MAX_NAME + 1];
        size_t at;
        if (!t->name || t->unused || !ends_with(t->source, q->method->codes))
            continue;
        (void)snprintf(module, sizeof module, "%.*s", (int)(strlen(t->source) - strlen(q->method->codes)), t->source);
        for (int k = 0; k < 3 && q->method->scales[k] && !t->quant; k++)
            if (find(q, &at, module, q->method->scales[k]))
                TERN_TRY(join_module(q, t, module, q->method->scales[k], err));
        if (!t->quant && t->type == q->method->codes_type)
            return fail_missing(q, t, q->method->scales[0], err);
    }
out:
    return rc;
}

int tern_hf_join(struct tern_file *f, struct tern_tensor_list *list, tern_error *err)
{
    int rc = 0;
    struct quantiser q = {.f = f, .list = list};
    size_t n = 0;
    TERN_TRY(find_method(&q, err));
    if (!q.method)
        return 0;
    TERN_TRY(tern_file_index_init(&q.index, list->n, &f->arena, err));
    for (size_t i = 0; i < list->n; i++) /* two of one name are found when all have their last one */
        (void)tern_file_index_add(&q.index, i, source_name, list->v);
    TERN_TRY(join_all(&q, err));
    for (size_t i = 0; i < list->n; i++)
        if (list->v[i].name)
            list->v[n++] = list->v[i];
    list->n = n;
out:
    return rc;
}
