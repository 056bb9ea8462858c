/* What configurations of single families say in a way of their own. */
#include "file/hf/words.h"

#include "base/mem.h"

enum { MOST_LAYERS = 1024, MOST_DIMS = 1 << 16 };

/* A whole number, or `def` where nothing is said; what is no such number becomes -1, which no key takes. */
static int64_t whole_or(const struct tern_meta *m, int64_t def)
{
    return !m ? def : m->type == TERN_META_INT ? m->i : -1;
}

static int64_t setting(const struct tern_hf_words *w, const char *name, int64_t def)
{
    return whole_or(said(w, name), def);
}

static bool is_on(const struct tern_meta *m)
{
    return m && m->type == TERN_META_BOOL && m->i;
}

/* A list that must say of each layer what the architecture takes for granted, that every fourth has no positions:
 * `kinds`, the names of layers without and with them, or NULL for 0 and 1. */
static int check_positions(const struct tern_hf_words *w, const struct tern_meta *m, const char *const kinds[2],
                           tern_error *err)
{
    if (!m || (m->type == TERN_META_ARRAY && m->n == 0))
        return 0;
    bool same = m->type == TERN_META_ARRAY && m->elem == (kinds ? TERN_META_STRING : TERN_META_INT);
    for (size_t i = 0; same && i < m->n; i++) {
        int positions = (i + 1) % 4 != 0;
        same = kinds ? is_text((const struct tern_str *)m->arr + i, kinds[positions])
                     : ((const int64_t *)m->arr)[i] == positions;
    }
    return same ? 0 : tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, "another order of layers is not supported");
}

int tern_hf_smollm3(const struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *every = said(w, "no_rope_layer_interval"), *layers = said(w, "no_rope_layers");
    if (every && every->i != 4 && !(layers && layers->n))
        return tern_hf_fail(w, every, TERN_EUNSUPPORTED, err, "an interval other than 4 is not supported");
    return check_positions(w, layers, NULL, err);
}

/* The list of layers with experts must be that of every step-th. */
static int check_moe_layers(const struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *m = said(w, "moe_layers"), *every = said(w, "interleave_moe_layer_step");
    const int64_t step = every && every->i > 0 ? every->i : 1;
    if (!m)
        return 0;
    bool same = m->type == TERN_META_ARRAY && m->elem == TERN_META_INT &&
                (int64_t)m->n == setting(w, "num_hidden_layers", 0) / step;
    for (size_t i = 0; same && i < m->n; i++)
        same = ((const int64_t *)m->arr)[i] == (int64_t)(i + 1) * step - 1;
    return same ? 0
                : tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, "these are not the layers of interleave_moe_layer_step");
}

int tern_hf_llama4(const struct tern_hf_words *w, tern_error *err)
{
    static const char *const kinds[] = {"full_attention", "chunked_attention"};
    int rc = 0;
    const struct tern_meta *temper = said(w, "attn_temperature_tuning"), *scale = said(w, "attn_scale");
    const struct tern_meta *norm = said(w, "use_qk_norm"), *ff = said(w, "intermediate_size");
    const struct tern_meta yes = {.type = TERN_META_BOOL, .i = 1, .file_offset = TERN_NO_OFFSET};
    TERN_TRY(tern_hf_smollm3(w, err));
    TERN_TRY(check_positions(w, said(w, "layer_types"), kinds, err));
    TERN_TRY(check_moe_layers(w, err));
    TERN_TRY(tern_hf_put(w, "attention.qk_norm", norm ? *norm : yes, err));
    if (temper && temper->i == 0)
        TERN_TRY(tern_hf_put(w, "attention.temperature_scale", number_meta(0), err));
    else if (scale)
        TERN_TRY(tern_hf_put(w, "attention.temperature_scale", *scale, err));
    if (ff)
        TERN_TRY(tern_hf_put(w, "expert_feed_forward_length", *ff, err));
out:
    return rc;
}

/* ---- gemma4 ------------------------------------------------------------------------------------------------------ */

static int put_whole(const struct tern_hf_words *w, const char *name, int64_t v, tern_error *err)
{
    return tern_hf_put(w, name, number_meta((double)v), err);
}

static int put_array(const struct tern_hf_words *w, const char *name, const int64_t *v, int64_t n,
                     enum tern_meta_type elem, tern_error *err)
{
    return tern_hf_put(
        w, name,
        (struct tern_meta){
            .type = TERN_META_ARRAY, .elem = elem, .n = (size_t)n, .arr = v, .file_offset = TERN_NO_OFFSET},
        err);
}

/* Newer configurations list what single layers differ in.  *listed: do they?  Anything but heads is refused. */
static int check_listed(const struct tern_hf_words *w, bool *listed, tern_error *err)
{
    char head[64];
    (void)snprintf(head, sizeof head, "%sper_layer_config.", w->root);
    *listed = false;
    for (size_t i = 0; i < w->part->meta.n; i++) {
        const struct tern_meta *m = &w->part->meta.v[i];
        if (!starts_with(m->key, head))
            continue;
        *listed = true;
        if (!ends_with(m->key, ".head_dim") && !ends_with(m->key, ".num_key_value_heads"))
            return tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, "this is not supported for single layers");
    }
    return 0;
}

/* A setting of layer i where layers are listed. */
static int64_t listed_setting(const struct tern_hf_words *w, int64_t i, const char *name, int64_t def)
{
    char key[64];
    (void)snprintf(key, sizeof key, "per_layer_config.%lld.%s", (long long)i, name);
    return whole_or(said(w, key), setting(w, name, def));
}

static int64_t head_dim(const struct tern_hf_words *w, bool listed, int64_t i, bool window)
{
    if (listed)
        return listed_setting(w, i, "head_dim", 256);
    return window ? setting(w, "head_dim", 256) : setting(w, "global_head_dim", 512);
}

static int64_t kv_heads(const struct tern_hf_words *w, bool listed, int64_t i, bool window)
{
    const struct tern_meta *whole = said(w, "num_global_key_value_heads");
    if (listed)
        return listed_setting(w, i, "num_key_value_heads", 4);
    return !window && whole && is_on(said(w, "attention_k_eq_v")) ? whole_or(whole, 0)
                                                                  : setting(w, "num_key_value_heads", 4);
}

int64_t tern_hf_proportional(const struct tern_hf_words *w, int64_t *rotated)
{
    const struct tern_meta *type = tern_hf_said_of_rope(w, "rope_type");
    const struct tern_meta *part = tern_hf_said_of_rope(w, "partial_rotary_factor");
    const int64_t layers = setting(w, "num_hidden_layers", 0);
    bool listed;
    if (w->family->more != tern_hf_gemma4 || layers < 1 || layers > MOST_LAYERS || check_listed(w, &listed, NULL) < 0)
        return 0;
    const int64_t dim = head_dim(w, listed, layers - 1, false);
    const double share = part ? number_of(part) : type ? 1 : 0.25;
    if (dim < 2 || dim > MOST_DIMS || !(share > 0) || share > 1)
        return 0;
    *rotated = (int64_t)floor((double)dim * share / 2);
    return dim / 2;
}

static int check_gemma4_rope(const struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *type = tern_hf_said_of_rope(w, "rope_type"), *factor = tern_hf_said_of_rope(w, "factor");
    const struct tern_meta *part = tern_hf_said_of_rope(w, "partial_rotary_factor");
    if (type && (type->type != TERN_META_STRING || !is_text(&type->s, "proportional")))
        return tern_hf_fail_text(w, type, &type->s, err);
    if (factor && number_of(factor) != 1)
        return tern_hf_fail(w, factor, TERN_EUNSUPPORTED, err, "a factor other than 1 is not supported");
    if (part && (!(number_of(part) > 0) || number_of(part) > 1))
        return tern_hf_fail(w, part, TERN_EFORMAT, err, "the rotated part of a head is not between 0 and 1");
    return 0;
}

/* Heads of layers without and with a window, and what of them each layer has. */
static int put_heads(const struct tern_hf_words *w, int64_t n, const int64_t *windows, tern_error *err)
{
    int rc = 0;
    int64_t *kv, *ff, dims[2] = {0, 0};
    const int64_t shared = setting(w, "num_kv_shared_layers", 0), wide = setting(w, "intermediate_size", 9216);
    const bool twice = is_on(said(w, "use_double_wide_mlp"));
    bool listed;
    TERN_TRY(check_listed(w, &listed, err));
    TERN_TRY(tern_file_arena_alloc(w->arena, &kv, (size_t)n, sizeof *kv, err));
    TERN_TRY(tern_file_arena_alloc(w->arena, &ff, (size_t)n, sizeof *ff, err));
    for (int64_t i = 0; i < n; i++) {
        const bool window = windows[i];
        const int64_t dim = head_dim(w, listed, i, window);
        if (dims[window] && dims[window] != dim)
            return tern_hf_fail(w, said(w, "model_type"), TERN_EUNSUPPORTED, err,
                                "layers of one kind with heads of several sizes are not supported");
        dims[window] = dim;
        kv[i] = kv_heads(w, listed, i, window);
        ff[i] = twice && shared > 0 && i >= n - shared && wide > 0 && wide < INT32_MAX ? 2 * wide : wide;
    }
    dims[1] = dims[1] ? dims[1] : dims[0];
    TERN_TRY(put_array(w, "attention.head_count_kv", kv, n, TERN_META_INT, err));
    TERN_TRY(put_array(w, "feed_forward_length", ff, n, TERN_META_INT, err));
    TERN_TRY(put_whole(w, "attention.key_length", dims[0], err));
    TERN_TRY(put_whole(w, "attention.value_length", dims[0], err));
    TERN_TRY(put_whole(w, "attention.key_length_swa", dims[1], err));
    TERN_TRY(put_whole(w, "attention.value_length_swa", dims[1], err));
    TERN_TRY(put_whole(w, "rope.dimension_count_swa", dims[1], err));
    TERN_TRY(put_whole(w, "attention.shared_kv_layers", shared, err));
out:
    return rc;
}

int tern_hf_gemma4(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const int64_t n = setting(w, "num_hidden_layers", 0);
    int64_t *windows;
    size_t n_windows;
    if (n < 1 || n > MOST_LAYERS) /* the architecture refuses that */
        return 0;
    TERN_TRY(check_gemma4_rope(w, err));
    TERN_TRY(tern_hf_layer_types(w, said(w, "layer_types"), &windows, &n_windows, err));
    if (!windows) {
        TERN_TRY(tern_file_arena_alloc(w->arena, &windows, (size_t)n, sizeof *windows, err));
        for (int64_t i = 0; i < n; i++)
            windows[i] = (i + 1) % 6 != 0;
    }
    windows[n - 1] = 0; /* whatever is said */
    TERN_TRY(put_heads(w, n, windows, err));
    TERN_TRY(put_array(w, "attention.sliding_window_pattern", windows, n, TERN_META_BOOL, err));
    TERN_TRY(put_whole(w, "attention.sliding_window", setting(w, "sliding_window", 512), err));
    TERN_TRY(put_whole(w, "embedding_length_per_layer_input", setting(w, "hidden_size_per_layer_input", 256), err));
    if (is_on(said(w, "enable_moe_block"))) {
        TERN_TRY(put_whole(w, "expert_count", setting(w, "num_experts", -1), err));
        TERN_TRY(put_whole(w, "expert_used_count", setting(w, "top_k_experts", -1), err));
        TERN_TRY(put_whole(w, "expert_feed_forward_length", setting(w, "moe_intermediate_size", -1), err));
    }
out:
    return rc;
}

int tern_hf_check_values(const struct tern_hf_words *w, const struct tern_tensor_list *list, tern_error *err)
{
    const struct tern_meta *windows = tern_meta_table_find(&w->part->meta, "gemma4.attention.sliding_window_pattern");
    const bool keys_serve = is_on(said(w, "attention_k_eq_v"));
    const int64_t shared = setting(w, "num_kv_shared_layers", 0);
    for (size_t i = 0; windows && i < windows->n; i++) {
        char k[48], v[48];
        const bool wanted = !keys_serve || ((const int64_t *)windows->arr)[i];
        (void)snprintf(k, sizeof k, "blk.%zu.attn_k.weight", i);
        (void)snprintf(v, sizeof v, "blk.%zu.attn_v.weight", i);
        const struct tern_tensor *keys = tern_hf_find(list, k);
        if (!keys || (shared > 0 && (int64_t)i >= (int64_t)windows->n - shared))
            continue; /* the loader looks for keys */
        struct tern_cursor c = {.part = tern_file_part_of(w->file, keys), .table = "tensor", .name = keys->source};
        if (wanted != (tern_hf_find(list, v) != NULL))
            return tern_cursor_fail(&c, (size_t)keys->file_offset, TERN_EFORMAT, err,
                                    wanted ? "it has no values beside it, and attention_k_eq_v does not let keys serve"
                                           : "it has values beside it, but attention_k_eq_v lets keys serve");
    }
    return 0;
}

/* ---- latent attention: deepseek_v2, deepseek_v3, glm4_moe_lite --------------------------------------------------- */

/* A setting, or the class's default, which stands under `gguf`; out of range -1. */
static int64_t dims_of(const struct tern_hf_words *w, const char *name, const char *gguf)
{
    const struct tern_hf_number *d = silent(w, gguf);
    const int64_t v = setting(w, name, d ? (int64_t)d->value : -1);
    return v < 0 || v > MOST_DIMS ? -1 : v;
}

int tern_hf_latent_heads(const struct tern_hf_words *w, int64_t *nope, int64_t *value)
{
    *nope = dims_of(w, "qk_nope_head_dim", "qk_nope_head_dim");
    *value = dims_of(w, "v_head_dim", "attention.value_length_mla");
    return *nope < 1 || *value < 1 ? -1 : 0;
}

/* How many layers come before those with experts. */
static int put_leading(const struct tern_hf_words *w, tern_error *err)
{
    const struct tern_meta *types = said(w, "mlp_layer_types"), *every = said(w, "moe_layer_freq");
    const struct tern_hf_number *usual = silent(w, "leading_dense_block_count");
    int64_t dense = setting(w, "first_k_dense_replace", usual ? (int64_t)usual->value : 0);
    if (every && number_of(every) != 1)
        return tern_hf_fail(w, every, TERN_EUNSUPPORTED, err, "only experts in every layer are supported");
    if (types && (types->type != TERN_META_ARRAY || types->elem != TERN_META_STRING ||
                  (int64_t)types->n != setting(w, "num_hidden_layers", -1)))
        return tern_hf_fail(w, types, TERN_EFORMAT, err, "it is not a list of one name for each layer");
    dense = types ? 0 : dense;
    for (size_t i = 0; types && i < types->n; i++) {
        const struct tern_str *kind = (const struct tern_str *)types->arr + i;
        if (dense == (int64_t)i && is_text(kind, "dense"))
            dense++;
        else if (!is_text(kind, "sparse"))
            return tern_hf_fail(w, types, TERN_EUNSUPPORTED, err,
                                "anything but dense layers before sparse ones is not supported");
    }
    return put_whole(w, "leading_dense_block_count", dense, err);
}

static int put_router(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const bool v2 = strcmp(w->family->model_type, "deepseek_v2") == 0;
    const struct tern_meta *score = said(w, "scoring_func"), *norm = said(w, "norm_topk_prob");
    const struct tern_meta *method = said(w, "topk_method");
    const bool greedy = v2 && (!method || is_text(&method->s, "greedy"));
    const char *const usual = v2 ? "group_limited_greedy" : "noaux_tc";
    if (score && (score->type != TERN_META_STRING || !is_text(&score->s, v2 ? "softmax" : "sigmoid")))
        return tern_hf_fail_text(w, score, &score->s, err);
    if (method && !greedy && (method->type != TERN_META_STRING || !is_text(&method->s, usual)))
        return tern_hf_fail_text(w, method, &method->s, err);
    if (v2 && is_on(norm))
        return tern_hf_fail(w, norm, TERN_EUNSUPPORTED, err, "this is set, which is not supported");
    TERN_TRY(put_whole(w, "expert_gating_func", v2 ? 1 : 2, err));
    if (!v2)
        TERN_TRY(tern_hf_put(w, "expert_weights_norm",
                             norm ? *norm : (struct tern_meta){.type = TERN_META_BOOL, .i = 1}, err));
    if (!greedy) {
        const struct tern_hf_number *n = silent(w, "expert_group_count"), *used = silent(w, "expert_group_used_count");
        TERN_TRY(put_whole(w, "expert_group_count", setting(w, "n_group", n ? (int64_t)n->value : 1), err));
        TERN_TRY(
            put_whole(w, "expert_group_used_count", setting(w, "topk_group", used ? (int64_t)used->value : 1), err));
    }
out:
    return rc;
}

/* YaRN: the scores grow with mscale_all_dim, cos and sin by mscale's growth over it. */
static int put_growth(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const struct tern_meta *type = tern_hf_said_of_rope(w, "rope_type");
    type = type ? type : tern_hf_said_of_rope(w, "type");
    const double over = number_of(tern_hf_said_of_rope(w, "mscale"));
    const double all = number_of(tern_hf_said_of_rope(w, "mscale_all_dim"));
    const double factor = number_of(tern_hf_said_of_rope(w, "factor"));
    const double stretch = factor > 1 ? 0.1 * log(factor) : 0;
    if (!type || type->type != TERN_META_STRING || !is_text(&type->s, "yarn") || !(all > 0))
        return 0;
    TERN_TRY(tern_hf_put(w, "rope.scaling.yarn_log_multiplier", number_meta((double)(float)(0.1 * all)), err));
    if (over != all)
        TERN_TRY(tern_hf_put(w, "rope.scaling.attn_factor",
                             number_meta(over > 0 ? (1 + over * stretch) / (1 + all * stretch) : 1 + stretch), err));
out:
    return rc;
}

int tern_hf_latent(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    int64_t nope, value, rank = dims_of(w, "kv_lora_rank", "attention.kv_lora_rank");
    const int64_t rot = dims_of(w, "qk_rope_head_dim", "rope.dimension_count");
    const struct tern_meta *neighbours = said(w, "rope_interleave");
    if (tern_hf_latent_heads(w, &nope, &value) < 0 || rank < 1 || rot < 1)
        return tern_hf_fail(w, said(w, "model_type"), TERN_EFORMAT, err,
                            "kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim or v_head_dim is no possible size");
    TERN_TRY(put_whole(w, "attention.head_count_kv", 1, err)); /* of what is cached */
    TERN_TRY(put_whole(w, "attention.key_length", rank + rot, err));
    TERN_TRY(put_whole(w, "attention.value_length", rank, err));
    TERN_TRY(put_whole(w, "attention.key_length_mla", nope + rot, err));
    TERN_TRY(put_leading(w, err));
    TERN_TRY(put_router(w, err));
    TERN_TRY(put_growth(w, err));
    if (neighbours)
        TERN_TRY(tern_hf_put(w, "rope.interleaved", *neighbours, err));
out:
    return rc;
}

/* ---- qwen3_5 ----------------------------------------------------------------------------------------------------- */

/* Which layers have a state, where they are listed. */
static int put_recurrent(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const struct tern_meta *types = said(w, "layer_types");
    int64_t *recurrent;
    if (!types)
        return 0;
    if (types->type != TERN_META_ARRAY || types->elem != TERN_META_STRING ||
        (int64_t)types->n != setting(w, "num_hidden_layers", -1))
        return tern_hf_fail(w, types, TERN_EFORMAT, err, "it is not a list of one name for each layer");
    const size_t n = types->n + w->mtp; /* that one has attention */
    TERN_TRY(tern_file_arena_alloc(w->arena, &recurrent, n, sizeof *recurrent, err));
    recurrent[n - 1] = 0;
    for (size_t i = 0; i < types->n; i++) {
        const struct tern_str *s = (const struct tern_str *)types->arr + i;
        recurrent[i] = is_text(s, "linear_attention");
        if (!recurrent[i] && !is_text(s, "full_attention"))
            return tern_hf_fail_text(w, types, s, err);
    }
    TERN_TRY(put_array(w, "attention.recurrent_layers", recurrent, (int64_t)n, TERN_META_BOOL, err));
out:
    return rc;
}

/* How many pairs turn with each coordinate of an image: nothing to a text, but readers of GGUF ask for it. */
static int put_sections(const struct tern_hf_words *w, tern_error *err)
{
    static const int64_t usual[4] = {11, 11, 10};
    const struct tern_meta *said_so = tern_hf_said_of_rope(w, "mrope_section");
    int64_t *v;
    if (!said_so)
        return put_array(w, "rope.dimension_sections", usual, 4, TERN_META_INT, err);
    if (said_so->type != TERN_META_ARRAY || said_so->elem != TERN_META_INT || said_so->n > 4)
        return tern_hf_fail(w, said_so, TERN_EFORMAT, err, "it is not a list of up to four whole numbers");
    int rc = tern_file_arena_alloc(w->arena, &v, 4, sizeof *v, err);
    if (rc < 0)
        return rc;
    memset(v, 0, 4 * sizeof *v);
    if (said_so->n)
        memcpy(v, said_so->arr, said_so->n * sizeof *v);
    return put_array(w, "rope.dimension_sections", v, 4, TERN_META_INT, err);
}

int tern_hf_qwen35(const struct tern_hf_words *w, tern_error *err)
{
    int rc = 0;
    const struct tern_meta *gate = said(w, "attn_output_gate"), *experts = said(w, "num_experts");
    const int64_t heads = dims_of(w, "linear_num_value_heads", "ssm.time_step_rank");
    const int64_t dim = dims_of(w, "linear_value_head_dim", "linear_value_head_dim");
    if (gate && !is_on(gate))
        return tern_hf_fail(w, gate, TERN_EUNSUPPORTED, err, "attention without a gate is not supported");
    if (heads < 1 || dim < 1)
        return tern_hf_fail(w, said(w, "model_type"), TERN_EFORMAT, err,
                            "linear_num_value_heads or linear_value_head_dim is no possible size");
    TERN_TRY(put_whole(w, "ssm.inner_size", heads * dim, err));
    TERN_TRY(put_recurrent(w, err));
    TERN_TRY(put_sections(w, err));
    if (experts)
        TERN_TRY(tern_hf_put(w, "expert_count", *experts, err));
    else if (w->family->experts)
        TERN_TRY(put_whole(w, "expert_count", (int64_t)silent(w, "expert_count")->value, err));
out:
    return rc;
}

/* ---- deepseek_v4 ------------------------------------------------------------------------------------------------- */

/* A list of one name for each layer; NULL: it is not said. */
static int read_names(const struct tern_hf_words *w, const char *name, int64_t n, const struct tern_str **out,
                      tern_error *err)
{
    const struct tern_meta *m = said(w, name);
    *out = NULL;
    if (!m)
        return 0;
    if (m->type != TERN_META_ARRAY || m->elem != TERN_META_STRING || (int64_t)m->n != n)
        return tern_hf_fail(w, m, TERN_EFORMAT, err, "it is not a list of one name for each layer");
    *out = m->arr;
    return 0;
}

/* Tokens of a compressed row, layer by layer: compress_ratios, or kinds of layers and what each kind has. */
static int put_rates(const struct tern_hf_words *w, int64_t n, tern_error *err)
{
    static const char *const kinds[] = {"sliding_attention", "compressed_sparse_attention",
                                        "heavily_compressed_attention"};
    int rc = 0;
    int64_t *rates;
    const struct tern_str *types;
    const struct tern_meta *listed = said(w, "compress_ratios");
    const int64_t of_kind[3] = {0, setting(w, "compress_rates.compressed_sparse_attention", 4),
                                setting(w, "compress_rates.heavily_compressed_attention", 128)};
    TERN_TRY(read_names(w, "layer_types", n, &types, err));
    if (listed && (listed->type != TERN_META_ARRAY || listed->elem != TERN_META_INT || (int64_t)listed->n < n))
        return tern_hf_fail(w, listed, TERN_EFORMAT, err, "it is not a list of one number for each layer");
    if (!listed && !types)
        return tern_hf_fail(w, said(w, "model_type"), TERN_EFORMAT, err,
                            "neither compress_ratios nor layer_types says what its layers are");
    if (types && of_kind[1] != 4)
        return tern_hf_fail(w, said(w, "compress_rates.compressed_sparse_attention"), TERN_EUNSUPPORTED, err,
                            "rows that are chosen are of 4 tokens");
    TERN_TRY(tern_file_arena_alloc(w->arena, &rates, (size_t)n, sizeof *rates, err));
    for (int64_t i = 0; i < n; i++) {
        int kind = 0;
        while (types && kind < 3 && !is_text(&types[i], kinds[kind]))
            kind++;
        if (kind == 3)
            return tern_hf_fail_text(w, said(w, "layer_types"), &types[i], err);
        rates[i] = listed ? ((const int64_t *)listed->arr)[i] : of_kind[kind];
    }
    TERN_TRY(put_array(w, "attention.compress_ratios", rates, n, TERN_META_INT, err));
out:
    return rc;
}

/* How many of the first layers have experts by token. */
static int put_listed(const struct tern_hf_words *w, int64_t n, tern_error *err)
{
    const struct tern_str *types;
    int64_t listed = 0;
    int rc = read_names(w, "mlp_layer_types", n, &types, err);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; types && i < n; i++) {
        const bool hash = is_text(&types[i], "hash_moe");
        if ((!hash && !is_text(&types[i], "moe")) || (hash && listed != i))
            return tern_hf_fail(w, said(w, "mlp_layer_types"), TERN_EUNSUPPORTED, err,
                                "anything but hash_moe layers before moe layers is not supported");
        listed += hash;
    }
    return put_whole(w, "hash_layer_count", types ? listed : setting(w, "num_hash_layers", 3), err);
}

/* A number under another name; what says nothing has the class's default, or, NAN, must be there. */
static int put_number(const struct tern_hf_words *w, const char *gguf, const char *name, double def, tern_error *err)
{
    const struct tern_meta *m = said(w, name);
    if (!m && isnan(def))
        return 0; /* the architecture names what is missing */
    if (m && m->type != TERN_META_INT && m->type != TERN_META_FLOAT)
        return tern_hf_fail(w, m, TERN_EFORMAT, err, "it is not a number");
    return tern_hf_put(w, gguf, m ? number_meta(m->f) : number_meta(def), err);
}

/* The stretched embedding stands apart in what transformers writes. */
static int put_stretch(const struct tern_hf_words *w, tern_error *err)
{
    static const char *const names[][2] = {{"rope.scaling.factor", "factor"},
                                           {"rope.scaling.original_context_length", "original_max_position_embeddings"},
                                           {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                           {"rope.scaling.yarn_beta_slow", "beta_slow"}};
    int rc = 0;
    char key[96];
#define PART(name) ((void)snprintf(key, sizeof key, "rope_parameters.compress.%s", name), key)
    const struct tern_meta *type = said(w, PART("rope_type")), *grows = said(w, PART("attention_factor"));
    const struct tern_meta *plain = said(w, "rope_parameters.main.rope_type");
    if (grows && number_of(grows) != 1)
        return tern_hf_fail(w, grows, TERN_EUNSUPPORTED, err, "a factor other than 1 is not supported");
    if (plain && (plain->type != TERN_META_STRING || !is_text(&plain->s, "default")))
        return tern_hf_fail_text(w, plain, &plain->s, err);
    if (type && type->type == TERN_META_STRING && !is_text(&type->s, "default")) {
        TERN_TRY(tern_hf_put(w, "rope.scaling.type", *type, err));
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            TERN_TRY(put_number(w, names[i][0], PART(names[i][1]), NAN, err));
    }
#undef PART
out:
    return rc;
}

int tern_hf_deepseek4(const struct tern_hf_words *w, tern_error *err)
{
    static const char *const names[][2] = {{"attention.output_lora_rank", "o_lora_rank"},
                                           {"attention.output_group_count", "o_groups"},
                                           {"attention.indexer.head_count", "index_n_heads"},
                                           {"attention.indexer.key_length", "index_head_dim"},
                                           {"attention.indexer.top_k", "index_topk"},
                                           {"attention.sliding_window", "sliding_window"},
                                           {"attention.compress_rope_freq_base", "compress_rope_theta"},
                                           {"hyper_connection.count", "hc_mult"},
                                           {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"},
                                           {"hyper_connection.epsilon", "hc_eps"},
                                           {"swiglu_clamp_exp", "swiglu_limit"}};
    int rc = 0;
    const int64_t n = setting(w, "num_hidden_layers", 0);
    const struct tern_meta *score = said(w, "scoring_func"), *method = said(w, "topk_method");
    const struct tern_meta *norm = said(w, "norm_topk_prob"), *grid = said(w, "simulated_quantization");
    if (n < 1 || n > MOST_LAYERS) /* the architecture refuses that */
        return 0;
    if (score && (score->type != TERN_META_STRING || !is_text(&score->s, "sqrtsoftplus")))
        return tern_hf_fail_text(w, score, &score->s, err);
    if (method && (method->type != TERN_META_STRING || !is_text(&method->s, "noaux_tc")))
        return tern_hf_fail_text(w, method, &method->s, err);
    TERN_TRY(put_whole(w, "expert_gating_func", 4, err));
    TERN_TRY(
        tern_hf_put(w, "expert_weights_norm", norm ? *norm : (struct tern_meta){.type = TERN_META_BOOL, .i = 1}, err));
    TERN_TRY(put_whole(w, "attention.head_count_kv", setting(w, "num_key_value_heads", 1), err));
    if (!said(w, "partial_rotary_factor"))
        TERN_TRY(put_number(w, "rope.dimension_count", "qk_rope_head_dim", 64, err));
    if (grid)
        TERN_TRY(tern_hf_put(w, "attention.simulated_quantization", *grid, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TERN_TRY(put_number(w, names[i][0], names[i][1], NAN, err));
    TERN_TRY(put_rates(w, n, err));
    TERN_TRY(put_listed(w, n, err));
    TERN_TRY(put_stretch(w, err));
out:
    return rc;
}
