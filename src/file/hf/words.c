/* A Hugging Face model in the words of GGUF, so that nothing above has to know two languages: config.json's values are
 * found under GGUF's keys too, and tensors have GGUF's names (`source` is what the file calls them).
 *
 * A family is listed by its architecture (file/hf_family.h).  What a configuration says that GGUF's keys for the family
 * cannot express is refused here. */
#include "file/hf/hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "file/hf/words.h"

/* Where the text model stands in a checkpoint: before its modules, and before lm_head. */
static const char *const places[][2] = {
    {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}, {"", ""}};

/* Beginnings of the names of what models that see or hear have besides. */
static const char *const towers[] = {"vision_tower.",
                                     "vision_model.",
                                     "audio_tower.",
                                     "multi_modal_projector.",
                                     "embed_vision.",
                                     "embed_audio.",
                                     "model.vision_tower.",
                                     "model.audio_tower.",
                                     "model.multi_modal_projector.",
                                     "model.embed_vision.",
                                     "model.embed_audio.",
                                     "model.visual.",
                                     "mtp."};

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static bool elsewhere(const struct tern_hf_words *w, const char *gguf)
{
    const char *const *k = w->family->elsewhere;
    while (k && *k && strcmp(*k, gguf) != 0)
        k++;
    return k && *k;
}

static int translate_keys(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    for (const struct tern_hf_key *key = tern_hf_keys; key->gguf; key++) {
        const struct tern_meta *m = NULL;
        if (elsewhere(w, key->gguf))
            continue;
        for (int k = 0; k < 4 && key->hf[k] && !m; k++)
            m = said(w, key->hf[k]);
        const struct tern_hf_number *d = m ? NULL : silent(w, key->gguf);
        const bool one_more = w->mtp && m && strcmp(key->gguf, "block_count") == 0; /* GGUF counts it */
        if (m || d)
            TERN_TRY(tern_hf_put(w, key->gguf,
                                 one_more ? number_meta(number_of(m) + 1)
                                 : m      ? *m
                                          : number_meta(d->value),
                                 err));
    }
out:
    return rc;
}

/* Refuses what would change the computation and has no key in GGUF. */
static int refuse(const struct tern_hf_words *w, tern_error *err)
{
    static const char *const acts[] = {"hidden_activation", "hidden_act"};
    static const char *const off[] = {"use_bidirectional_attention", "rope_parameters.truncate",
                                      "rope_scaling.attention_factor", "rope_parameters.attention_factor"};
    static const char *const caps[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    for (size_t i = 0; i < 2; i++) {
        const struct tern_meta *m = said(w, acts[i]);
        if (m && (m->type != TERN_META_STRING || !is_text(&m->s, w->family->act)))
            return tern_hf_fail_text(w, m, &m->s, err);
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const struct tern_meta *m = said(w, off[i]);
        const bool images = m && i == 0 && m->type == TERN_META_STRING && is_text(&m->s, "vision"); /* these alone */
        if (m && !images && !(m->type == TERN_META_BOOL && m->i == 0))
            return tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, "this is set, which is not supported");
    }
    for (size_t i = 0; i < w->part->meta.n; i++) {
        const struct tern_meta *m = &w->part->meta.v[i];
        if (strstr(m->key, "experts") && number_of(m) > 0 && !w->family->experts)
            return tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, "experts are not supported for this model_type");
    }
    for (size_t i = 0; i < 2; i++) {
        const struct tern_meta *m = said(w, caps[i]);
        if (m && !(i ? w->family->logit_cap : w->family->score_cap))
            return tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, "soft caps are not supported for this architecture");
    }
    return 0;
}

static int translate_windows(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const struct tern_meta *window = said(w, "sliding_window"), *use = said(w, "use_sliding_window");
    const struct tern_meta *types = said(w, "layer_types"), *every = said(w, "sliding_window_pattern");
    int64_t *windows;
    size_t n;
    TERN_TRY(tern_hf_layer_types(w, types, &windows, &n, err));
    if (use && use->type == TERN_META_BOOL && use->i && !types)
        return tern_hf_fail(w, use, TERN_EUNSUPPORTED, err, "this is set without layer_types, which is not supported");
    if (w->family->windows) {
        if (window)
            TERN_TRY(tern_hf_put(w, "attention.sliding_window", *window, err));
        if (windows)
            TERN_TRY(tern_hf_put(w, "attention.sliding_window_pattern",
                                 (struct tern_meta){.type = TERN_META_ARRAY,
                                                    .elem = TERN_META_BOOL,
                                                    .n = types->n,
                                                    .arr = windows,
                                                    .file_offset = TERN_NO_OFFSET},
                                 err));
        else if (every)
            TERN_TRY(tern_hf_put(w, "attention.sliding_window_pattern", *every, err));
        return 0;
    }
    if (windows && n > 0 && n < types->n)
        return tern_hf_fail(w, types, TERN_EUNSUPPORTED, err,
                            "layers of two kinds are not supported for this architecture");
    bool off = (use && use->type == TERN_META_BOOL && !use->i) || (windows && n == 0);
    if (window && !off)
        TERN_TRY(tern_hf_put(w, "attention.sliding_window", *window, err));
out:
    return rc;
}

/* What the usual keys do not say of experts. */
static int translate_experts(const struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *dense = said(w, "mlp_only_layers");
    if (!w->family->experts)
        return 0;
    if (dense && dense->type == TERN_META_ARRAY && dense->n > 0)
        return tern_hf_fail(w, dense, TERN_EUNSUPPORTED, err, "a list of layers without experts is not supported");
    if (w->family->experts_as_weighed && !said(w, "norm_topk_prob"))
        return tern_hf_put(w, "expert_weights_norm",
                           (struct tern_meta){.type = TERN_META_BOOL, .file_offset = TERN_NO_OFFSET}, err);
    return 0;
}

/* longrope: cos and sin grow with the stretch of the context. */
static double long_magnitude(const struct tern_hf_words *w)
{
    const struct tern_meta *inner = tern_hf_said_of_rope(w, "original_max_position_embeddings");
    double original = number_of(inner ? inner : said(w, "original_max_position_embeddings"));
    double stretch = number_of(tern_hf_said_of_rope(w, "factor"));
    if (stretch == 0.0)
        stretch = number_of(said(w, "max_position_embeddings")) / original;
    return original > 1 && stretch > 1 ? sqrt(1 + log(stretch) / log(original)) : 1;
}

/* YaRN whose growth of cos and sin, a function of mscale, is divided by that of mscale_all_dim. */
static int translate_mscale(const struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *over = tern_hf_said_of_rope(w, "mscale"),
                           *under = tern_hf_said_of_rope(w, "mscale_all_dim");
    double m = number_of(over), all = number_of(under);
    if ((!over && !under) || elsewhere(w, "rope.scaling.yarn_log_multiplier"))
        return 0;
    if (!(m > 0) || (m != all && m != 1)) /* without the other, each says something else */
        return tern_hf_fail(w, over ? over : under, TERN_EUNSUPPORTED, err,
                            "this is not supported beside mscale_all_dim");
    if (!w->family->mscale)
        return tern_hf_fail(w, over, TERN_EUNSUPPORTED, err, "this is set, which is not supported");
    return tern_hf_put(w, "rope.scaling.yarn_log_multiplier", number_meta(m == all ? 1 : all), err);
}

static int translate_rope(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const struct tern_meta *type = tern_hf_said_of_rope(w, "rope_type"), *part = said(w, "partial_rotary_factor");
    const struct tern_meta *local = said(w, "rope_parameters.sliding_attention.rope_type");
    const struct tern_meta *head = said(w, "head_dim");
    if (!type)
        type = tern_hf_said_of_rope(w, "type");
    int64_t rotated;
    if (local && (local->type != TERN_META_STRING || !is_text(&local->s, "default")))
        return tern_hf_fail_text(w, local, &local->s, err);
    if (tern_hf_proportional(w, &rotated))
        return tern_hf_put(w, "rope.scaling.type", text_meta("none"), err);
    if (type) {
        bool text = type->type == TERN_META_STRING;
        TERN_TRY(
            tern_hf_put(w, "rope.scaling.type", text && is_text(&type->s, "default") ? text_meta("none") : *type, err));
        if (text && is_text(&type->s, "longrope"))
            TERN_TRY(tern_hf_put(w, "rope.scaling.attn_factor", number_meta(long_magnitude(w)), err));
    }
    TERN_TRY(translate_mscale(w, err));
    if (!part)
        part = tern_hf_said_of_rope(w, "partial_rotary_factor");
    const struct tern_hf_number *usual = silent(w, "partial_rotary_factor");
    double share = part || !usual ? number_of(part) : usual->value;
    double dim = head ? number_of(head) : number_of(said(w, "hidden_size")) / number_of(said(w, "num_attention_heads"));
    if (part && (!(share > 0) || share > 1))
        return tern_hf_fail(w, part, TERN_EFORMAT, err, "the rotated part of a head is not between 0 and 1");
    if ((part || usual) && share < 1 && dim >= 1 && dim < 1e6)
        TERN_TRY(tern_hf_put(w, "rope.dimension_count", number_meta(floor(dim * share)), err));
out:
    return rc;
}

static int find_family(struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *m = said(w, "model_type");
    if (!m || m->type != TERN_META_STRING)
        return tern_err_set(err, TERN_EFORMAT, "%s: the metadata key \"%smodel_type\" is missing or no text",
                            tern_path_show(w->part->path), w->root);
    char known[320] = "";
    size_t used = 0;
    for (int i = 0; (w->family = tern_hf_family_at(i, &w->arch)); i++) {
        if (is_text(&m->s, w->family->model_type))
            return 0;
        int n = snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", w->family->model_type);
        used += n > 0 && used + (size_t)n < sizeof known ? (size_t)n : 0;
    }
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: model_type \"%.*s\" is not supported (known: %s)",
                        tern_path_show(w->part->path), (int)(m->s.n < 64 ? m->s.n : 64), m->s.p, known);
}

static struct tern_hf_words words_of(struct tern_file *f)
{
    struct tern_hf_words w = {.file = f, .part = &f->parts[0], .arena = &f->arena, .root = "config."};
    if (tern_meta_table_find(&w.part->meta, "config.text_config.model_type"))
        w.root = "config.text_config.";
    return w;
}

/* Is there a layer for multi-token prediction, and one alone? */
static bool has_mtp(const struct tern_hf_words *w, const struct tern_tensor_list *list)
{
    const struct tern_hf_mtp *m = w->family->mtp;
    return m && number_of(said(w, m->layers)) == 1 && number_of(said(w, "num_hidden_layers")) >= 1 &&
           tern_hf_find(list, m->needs);
}

/* name: of the model, owned by the file */
static int translate_config(struct tern_hf_words *w, const char *name, const struct tern_tensor_list *list,
                            tern_error *err)
{
    int rc = 0;
    const struct tern_meta *scalar = said(w, "query_pre_attn_scalar");
    TERN_TRY(find_family(w, err));
    w->mtp = has_mtp(w, list);
    TERN_TRY(refuse(w, err));
    TERN_TRY(tern_hf_put(w, "general.architecture", text_meta(w->arch), err));
    TERN_TRY(tern_hf_put(w, "general.name", text_meta(name), err));
    TERN_TRY(translate_keys(w, err));
    if (w->mtp)
        TERN_TRY(tern_hf_put(w, "nextn_predict_layers", number_meta(1), err));
    if (w->family->more)
        TERN_TRY(w->family->more(w, err));
    if (!elsewhere(w, "attention.sliding_window"))
        TERN_TRY(translate_windows(w, err));
    TERN_TRY(translate_experts(w, err));
    TERN_TRY(translate_rope(w, err));
    if (scalar && !(number_of(scalar) > 0))
        return tern_hf_fail(w, scalar, TERN_EFORMAT, err, "the scale of the scores is no positive number");
    if (scalar)
        TERN_TRY(tern_hf_put(w, "attention.scale", number_meta(1 / sqrt(scalar->f)), err));
out:
    return rc;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Does a name of n bytes fit the word, in which # stands for digits?  number: these, in the name. */
static bool fits(const char *word, const char *name, size_t n, struct tern_str *number)
{
    size_t i = 0;
    for (; *word; word++) {
        if (*word != '#') {
            if (i == n || name[i++] != *word)
                return false;
            continue;
        }
        number->p = name + i;
        number->n = strspn(number->p, "0123456789");
        number->n = number->n < n - i ? number->n : n - i;
        i += number->n;
        if (!number->n || number->n > 5)
            return false;
    }
    return i == n;
}

static const char *find_word(const struct tern_hf_words *w, const char *name, size_t n, bool whole,
                             struct tern_str *number)
{
    const struct tern_hf_word *const tables[] = {whole ? tern_hf_whole_names : w->family->modules,
                                                 whole ? NULL : tern_hf_modules};
    for (int i = 0; i < 2; i++)
        for (const struct tern_hf_word *m = tables[i]; m && m->hf; m++)
            if (fits(m->hf, name, n, number))
                return m->gguf;
    return NULL;
}

static const char kv_b[] = "attn_kv_b.weight";

/* What a tensor is called in GGUF; false: nothing that a model has there. */
static bool translate_in(const struct tern_hf_words *w, const char *body, const char *outer, const char *hf, char *out,
                         size_t size)
{
    size_t n = strlen(outer);
    if (strncmp(hf, outer, n) == 0 && (strcmp(hf + n, "lm_head.weight") == 0 || strcmp(hf + n, "head.weight") == 0)) {
        (void)snprintf(out, size, "output.weight");
        return true;
    }
    if (!starts_with(hf, body))
        return false;
    hf += strlen(body);
    unsigned long layer = 0;
    bool in_layer = starts_with(hf, "layers.");
    if (in_layer) {
        char *end;
        layer = strtoul(hf + 7, &end, 10);
        if (end == hf + 7 || *end != '.' || layer > 99999)
            return false;
        hf = end + 1;
    }
    const char *end = strrchr(hf, '.');
    bool whole = !end || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0);
    if (whole)
        end = hf + strlen(hf);
    struct tern_str number = {0};
    const char *word = find_word(w, hf, strlen(hf), true, &number);
    if (word)
        end = hf + strlen(hf);
    else
        word = find_word(w, hf, (size_t)(end - hf), whole, &number);
    if (!word)
        return false;
    char block[24] = "";
    if (in_layer)
        (void)snprintf(block, sizeof block, "blk.%lu.", layer);
    size_t before = strcspn(word, "#");
    (void)snprintf(out, size, "%s%.*s%.*s%s%s", block, (int)before, word, word[before] ? (int)number.n : 0,
                   number.n ? number.p : "", word[before] ? word + before + 1 : "", end);
    return true;
}

/* The same of what stands in the layer for multi-token prediction: names of its own, or those of the layer behind the
 * last. */
static bool translate_name(const struct tern_hf_words *w, const char *body, const char *outer, const char *hf,
                           char *out, size_t size)
{
    const struct tern_hf_mtp *m = w->family->mtp;
    if (!w->mtp || !starts_with(hf, "mtp."))
        return translate_in(w, body, outer, hf, out, size);
    const long long layer = (long long)number_of(said(w, "num_hidden_layers"));
    for (const struct tern_hf_word *word = m->whole; word->hf; word++)
        if (strcmp(word->hf, hf) == 0) {
            (void)snprintf(out, size, "blk.%lld.%s", layer, word->gguf);
            return true;
        }
    char name[TERN_GGUF_MAX_NAME + 64];
    if (!starts_with(hf, m->layer))
        return false;
    int n = snprintf(name, sizeof name, "layers.%lld.%s", layer, hf + strlen(m->layer));
    return n > 0 && n < (int)sizeof name && translate_in(w, "", "", name, out, size);
}

/* Is it of one of the num_nextn_predict_layers behind the last, which predict further tokens? */
static bool is_spare_layer(const struct tern_hf_words *w, const char *hf)
{
    const struct tern_meta *more = said(w, "num_nextn_predict_layers"), *layers = said(w, "num_hidden_layers");
    if (!more || number_of(more) <= 0 || !layers || layers->type != TERN_META_INT)
        return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *rest = hf + strlen(places[i][0]);
        if (starts_with(hf, places[i][0]) && starts_with(rest, "layers."))
            return rest[7] >= '0' && rest[7] <= '9' && strtoll(rest + 7, NULL, 10) >= layers->i &&
                   (double)strtoll(rest + 7, NULL, 10) - layers->f < number_of(more);
    }
    return false;
}

/* Does the text model leave this tensor out?  Image towers, and RoPE frequencies, which the configuration gives too. */
static bool is_foreign(const struct tern_hf_words *w, const char *hf)
{
    if (is_spare_layer(w, hf))
        return true;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (starts_with(hf, towers[i]))
            return !(w->mtp && strcmp(towers[i], "mtp.") == 0);
    return ends_with(hf, ".rotary_emb.inv_freq");
}

/* As the makers have it a convolution is [channels][1][width]; the bytes are the same. */
static bool is_turned_conv(const struct tern_tensor *t)
{
    return ends_with(t->source, ".linear_attn.conv1d.weight") && t->n_dims == 3 && t->dims[0] == 1 && t->dims[1] > 1;
}

static int translate_tensor(const struct tern_hf_words *w, const char *const place[2], struct tern_tensor *t,
                            tern_error *err)
{
    char name[TERN_GGUF_MAX_NAME + 64];
    const bool ids = (t->type == TERN_I32 || t->type == TERN_I64) && ends_with(t->source, ".tid2eid");
    if (!t->quant && !t->unused && !tern_type_is_weight(t->type) && !ids)
        return tern_hf_fail_raw(w->file, t, err);
    if (!translate_name(w, place[0], place[1], t->name, name, sizeof name))
        return 0;
    char *copy;
    size_t n = strlen(name) + 1;
    int rc = tern_file_arena_alloc(w->arena, &copy, n, 1, err);
    if (rc < 0)
        return rc;
    memcpy(copy, name, n);
    t->name = copy;
    if (strstr(t->source, ".feed_forward.experts.") && !ends_with(t->source, ".weight") && t->n_dims == 3) {
        int64_t inputs = t->dims[1];
        t->dims[1] = t->dims[0];
        t->dims[0] = inputs;
        t->turned = true;
    }
    const bool norm = ends_with(t->source, "norm.weight") || starts_with(t->source, "mtp.pre_fc_norm_");
    t->add = w->family->norms_from_1 && !w->turned && norm && !ends_with(name, "ssm_norm.weight");
    t->minus_exp = ends_with(name, ".ssm_a");
    if (ends_with(name, ".ssm_conv1d.weight") && t->n_dims == 3 && t->dims[1] == 1) { /* one input to a channel */
        t->n_dims = 2;
        t->dims[1] = t->dims[2];
        t->dims[2] = 1;
    } else if (is_turned_conv(t)) {
        t->n_dims = 2;
        t->dims[0] = t->dims[1];
        t->dims[1] = t->dims[2];
        t->dims[2] = 1;
    }
    return 0;
}

struct kv_b {
    const struct tern_tensor *both;
    int64_t heads, rows; /* of all; of a head */
    size_t row_bytes;    /* of codes or numbers */
};

/* The scales of an FP8 half, `rows` rows of each head from `row` on, which are whole blocks. */
static int half_scales(const struct tern_hf_words *w, const struct tern_quant **out, const struct kv_b *b, int64_t row,
                       int64_t rows, bool turned, tern_error *err)
{
    int rc = 0;
    struct tern_quant *q;
    struct tern_tensor *scales;
    const struct tern_quant *of = b->both->quant;
    const int64_t columns = of->group ? (b->both->dims[0] + of->group - 1) / of->group : 1;
    const size_t bytes = (size_t)columns * (size_t)tern_type_bytes(of->scales->type);
    TERN_TRY(tern_file_arena_alloc(w->arena, &q, 1, sizeof *q, err));
    TERN_TRY(tern_file_arena_alloc(w->arena, &scales, 1, sizeof *scales, err));
    *q = *of;
    *scales = *of->scales;
    const size_t skip = of->group_rows ? (size_t)(row / of->group_rows) * bytes : 0;
    scales->data = (const uint8_t *)scales->data + skip;
    q->scales = scales;
    q->stride = of->group_rows ? (size_t)(b->rows / of->group_rows) * bytes : 0;
    if (of->group_rows)
        scales->n_bytes = (size_t)(b->heads - 1) * q->stride + (size_t)(rows / of->group_rows) * bytes;
    if (turned) {
        q->group = of->group_rows;
        q->group_rows = of->group;
    }
    *out = q;
out:
    return rc;
}

/* `rows` rows of each head from `row` on, as a stack of its own; turned: each matrix transposed. */
static int half_of(const struct tern_hf_words *w, struct tern_tensor *out, const struct kv_b *b, const char *word,
                   int64_t row, int64_t rows, bool turned, tern_error *err)
{
    int rc = 0;
    char *name;
    const size_t before = strlen(b->both->name) - strlen(kv_b), size = before + strlen(word) + sizeof ".weight";
    TERN_TRY(tern_file_arena_alloc(w->arena, &name, size, 1, err));
    (void)snprintf(name, size, "%.*s%s.weight", (int)before, b->both->name, word);
    *out = *b->both;
    out->name = name;
    out->n_dims = 3;
    out->turned = turned;
    out->dims[0] = turned ? rows : b->both->dims[0];
    out->dims[1] = turned ? b->both->dims[0] : rows;
    out->dims[2] = b->heads;
    out->stride = (size_t)b->rows * b->row_bytes;
    out->data = (const uint8_t *)out->data + (size_t)row * b->row_bytes;
    out->file_offset += (size_t)row * b->row_bytes;
    out->n_bytes = (size_t)(b->heads - 1) * out->stride + (size_t)rows * b->row_bytes;
    if (out->quant)
        TERN_TRY(half_scales(w, &out->quant, b, row, rows, turned, err));
out:
    return rc;
}

/* GGUF has what multiplies latents for keys apart from what does for values, the former transposed. */
static int split_kv_b(const struct tern_hf_words *w, struct tern_tensor_list *list, size_t i, tern_error *err)
{
    int rc = 0;
    const struct tern_tensor both = list->v[i];
    const struct tern_quant *q = both.quant;
    const struct tern_meta *heads = said(w, "num_attention_heads");
    struct kv_b b = {.both = &both, .heads = heads && heads->type == TERN_META_INT ? heads->i : 0};
    struct tern_tensor k, v;
    int64_t nope, value;
    struct tern_cursor c = {.part = tern_file_part_of(w->file, &both), .table = "tensor", .name = both.source};
    if (tern_hf_latent_heads(w, &nope, &value) < 0 || b.heads < 1 || b.heads > both.dims[1] || both.n_dims != 2 ||
        both.dims[1] != b.heads * (nope + value))
        return tern_cursor_fail(&c, (size_t)both.file_offset, TERN_EFORMAT, err,
                                "its %lld rows are not those of %lld heads of %lld and %lld", (long long)both.dims[1],
                                (long long)b.heads, (long long)nope, (long long)value);
    b.rows = nope + value;
    const bool apart =
        q && q->form == TERN_FORM_FP8 && (!q->group_rows || (nope % q->group_rows == 0 && b.rows % q->group_rows == 0));
    if (q ? !apart : tern_type_elems(both.type) != 1)
        return tern_cursor_fail(&c, (size_t)both.file_offset, TERN_EUNSUPPORTED, err,
                                "its codes cannot be divided into heads, and keys and values");
    b.row_bytes = (size_t)both.dims[0] * (q ? 1 : (size_t)tern_type_bytes(both.type));
    TERN_TRY(half_of(w, &k, &b, "attn_k_b", 0, nope, true, err));
    TERN_TRY(half_of(w, &v, &b, "attn_v_b", nope, value, false, err));
    list->v[i] = k;
    TERN_TRY(tern_grow(&list->v, &list->cap, list->n + 1, sizeof *list->v, err));
    list->v[list->n++] = v;
out:
    return rc;
}

/* A tied output matrix is the embedding, whatever the checkpoint holds besides. */
static int tie_head(const struct tern_hf_words *w, const struct tern_tensor_list *list, tern_error *err)
{
    const struct tern_meta *tie = said(w, "tie_word_embeddings");
    if (!tie)
        tie = tern_meta_table_find(&w->part->meta, "config.tie_word_embeddings");
    struct tern_tensor *head = (struct tern_tensor *)(uintptr_t)tern_hf_find(list, "output.weight");
    if (tie && tie->type != TERN_META_BOOL)
        return tern_hf_fail(w, tie, TERN_EFORMAT, err, "it is not true or false");
    if (tie && !tie->i && !head)
        return tern_hf_fail(w, tie, TERN_EFORMAT, err, "it is false, but there is no tensor \"lm_head.weight\"");
    if (tie && tie->i && head) {
        head->unused = true;
        head->name = head->source;
    }
    return 0;
}

static int check_vocabulary(const struct tern_hf_words *w, const struct tern_tensor_list *list, tern_error *err)
{
    const struct tern_tensor *t = tern_hf_find(list, "token_embd.weight");
    const struct tern_meta *m = said(w, "vocab_size");
    if (!t || !m || (m->type == TERN_META_INT && m->i == t->dims[1]))
        return 0;
    char text[160];
    (void)snprintf(text, sizeof text, "it differs from the %lld rows of tensor \"%s\"", (long long)t->dims[1],
                   tern_name_show(t->source).text);
    return tern_hf_fail(w, m, TERN_EMISMATCH, err, text);
}

/* A vector that the configuration gives and GGUF has as a tensor. */
static int add_made(struct tern_tensor_list *list, const char *gguf, const char *source, const float *v, int64_t n,
                    tern_error *err)
{
    int rc = tern_grow(&list->v, &list->cap, list->n + 1, sizeof *list->v, err);
    if (rc == 0)
        list->v[list->n++] = (struct tern_tensor){.name = gguf,
                                                  .source = source,
                                                  .type = TERN_F32,
                                                  .n_dims = 1,
                                                  .dims = {n, 1, 1, 1},
                                                  .data = v,
                                                  .n_bytes = (size_t)n * sizeof *v};
    return rc;
}

/* longrope's divisors, which GGUF has as a tensor. */
static int add_divisors(const struct tern_hf_words *w, struct tern_tensor_list *list, const char *hf, const char *gguf,
                        tern_error *err)
{
    int rc = 0;
    const struct tern_meta *m = tern_hf_said_of_rope(w, hf);
    float *v;
    if (!m)
        return 0;
    if (m->type != TERN_META_ARRAY || m->n == 0 || (m->elem != TERN_META_FLOAT && m->elem != TERN_META_INT))
        return tern_hf_fail(w, m, TERN_EFORMAT, err, "it is not a list of numbers");
    TERN_TRY(tern_file_arena_alloc(w->arena, &v, m->n, sizeof *v, err));
    for (size_t i = 0; i < m->n; i++)
        v[i] = m->elem == TERN_META_FLOAT ? (float)((const double *)m->arr)[i] : (float)((const int64_t *)m->arr)[i];
    TERN_TRY(add_made(list, gguf, m->key, v, (int64_t)m->n, err));
out:
    return rc;
}

/* Pairs that are not rotated, which GGUF marks with a divisor. */
static int add_proportional(const struct tern_hf_words *w, struct tern_tensor_list *list, tern_error *err)
{
    int rc = 0;
    float *v;
    int64_t rotated, n = tern_hf_proportional(w, &rotated);
    if (!n)
        return 0;
    TERN_TRY(tern_file_arena_alloc(w->arena, &v, (size_t)n, sizeof *v, err));
    for (int64_t i = 0; i < n; i++)
        v[i] = i < rotated ? 1 : 1e30f;
    TERN_TRY(add_made(list, "rope_freqs.weight", "partial_rotary_factor", v, n, err));
out:
    return rc;
}

int tern_hf_translate(struct tern_file *f, struct tern_tensor_list *list, tern_error *err)
{
    int rc = 0;
    struct tern_hf_words w = words_of(f);
    size_t place = 0;
    const char *slash = strrchr(f->dir, '/');
    TERN_TRY(translate_config(&w, slash && slash[1] ? slash + 1 : f->dir, list, err));
    for (size_t i = 0; i < list->n; i++)
        list->v[i].unused = is_foreign(&w, list->v[i].source);
    TERN_TRY(tern_hf_join(f, list, err));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char name[64];
        char other[64];
        (void)snprintf(name, sizeof name, "%sembed_tokens.weight", places[i][0]);
        (void)snprintf(other, sizeof other, "%sembed.weight", places[i][0]);
        if (tern_hf_find(list, name) || tern_hf_find(list, other)) {
            place = i;
            break;
        }
    }
    for (size_t i = 0; i < list->n; i++)
        w.turned |= is_turned_conv(&list->v[i]);
    for (size_t i = 0; i < list->n; i++)
        TERN_TRY(translate_tensor(&w, places[place], &list->v[i], err));
    for (size_t i = 0, n = list->n; i < n; i++)
        if (ends_with(list->v[i].name, kv_b) && !list->v[i].unused)
            TERN_TRY(split_kv_b(&w, list, i, err));
    if (w.family->more == tern_hf_gemma4)
        TERN_TRY(tern_hf_check_values(&w, list, err));
    TERN_TRY(tie_head(&w, list, err));
    TERN_TRY(check_vocabulary(&w, list, err));
    TERN_TRY(add_divisors(&w, list, "short_factor", "rope_factors_short.weight", err));
    TERN_TRY(add_divisors(&w, list, "long_factor", "rope_factors_long.weight", err));
    TERN_TRY(add_proportional(&w, list, err));
out:
    return rc;
}
