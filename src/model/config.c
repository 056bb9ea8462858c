/* Reading the configuration by one set of names, whatever the container. */
#include "model/names.h"

#include <stdio.h>
#include <string.h>

/* GGUF key without its architecture, and the names that configurations have had for it, newest class of them last.  A
 * key that is not here has one name everywhere. */
static const struct {
    const char *gguf, *hf[4];
} keys[] = {
    {"block_count", {"num_hidden_layers"}},
    {"context_length", {"max_position_embeddings"}},
    {"embedding_length", {"hidden_size"}},
    {"feed_forward_length", {"intermediate_size"}},
    {"attention.head_count", {"num_attention_heads"}},
    {"attention.head_count_kv", {"num_key_value_heads"}},
    {"attention.key_length", {"head_dim"}},
    {"attention.value_length", {"head_dim"}},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}},
    {"attention.sliding_window", {"sliding_window"}},
    {"attention.sliding_window_pattern", {"sliding_window_pattern", "_sliding_window_pattern"}},
    {"rope.freq_base", {"rope_theta", "rope_parameters.rope_theta", "rope_parameters.full_attention.rope_theta"}},
    {"rope.freq_base_swa", {"rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"}},
    {"rope.scaling.type",
     {"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type",
      "rope_parameters.full_attention.rope_type"}},
    {"rope.scaling.factor", {"rope_scaling.factor", "rope_parameters.factor", "rope_parameters.full_attention.factor"}},
    {"rope.scaling.low_freq_factor", {"rope_scaling.low_freq_factor", "rope_parameters.low_freq_factor"}},
    {"rope.scaling.high_freq_factor", {"rope_scaling.high_freq_factor", "rope_parameters.high_freq_factor"}},
    {"rope.scaling.original_context_length",
     {"rope_scaling.original_max_position_embeddings", "rope_parameters.original_max_position_embeddings",
      "original_max_position_embeddings"}},
};

/* Models that see images keep the text model's configuration apart. */
const char *tern_config_root(const struct tern_file *f)
{
    return tern_file_meta(f, "config.text_config.model_type") ? "config.text_config." : "config.";
}

const char *tern_arch_key(char *buf, size_t n, const struct tern_file *f, const char *arch, const char *name)
{
    static const char *const same[4] = {0};
    if (tern_file_kind(f) == TERN_FILE_GGUF) {
        (void)snprintf(buf, n, "%s.%s", arch, name);
        return buf;
    }
    const char *root = tern_config_root(f);
    const char *const *hf = same;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].gguf, name) == 0)
            hf = keys[i].hf;
    for (int i = 0; i < 4 && hf[i]; i++) {
        (void)snprintf(buf, n, "%s%s", root, hf[i]);
        if (tern_file_meta(f, buf))
            return buf;
    }
    (void)snprintf(buf, n, "%s%s", root, hf[0] ? hf[0] : name);
    return buf;
}

static bool is_text(struct tern_str s, const char *text)
{
    return s.p && s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

int tern_arch_expect(const struct tern_file *f, const char *arch, const char *name, const char *want, tern_error *err)
{
    char key[160];
    struct tern_str s;
    int rc = tern_file_get_str(f, tern_arch_key(key, sizeof key, f, arch, name), &s, err);
    if (rc == 0 && s.p && !is_text(s, want))
        rc = tern_err_set(err, TERN_EUNSUPPORTED, "%s: %s = \"%.*s\" is not supported, only \"%s\" is",
                          tern_file_path(f), key, (int)(s.n < 64 ? s.n : 64), s.p, want);
    return rc;
}

int tern_arch_expect_off(const struct tern_file *f, const char *arch, const char *name, tern_error *err)
{
    char key[160];
    const struct tern_meta *m = tern_file_meta(f, tern_arch_key(key, sizeof key, f, arch, name));
    bool number = m && (m->type == TERN_META_INT || m->type == TERN_META_BOOL || m->type == TERN_META_FLOAT);
    if (!m || (number && m->i == 0 && m->f == 0.0))
        return 0;
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: %s is set, which is not supported", tern_file_path(f), key);
}

int tern_arch_layer_types(const struct tern_desc *d, const struct tern_file *f, const char *arch,
                          const struct tern_str **types, tern_error *err)
{
    char key[160];
    const struct tern_meta *m = tern_file_meta(f, tern_arch_key(key, sizeof key, f, arch, "layer_types"));
    *types = NULL;
    if (!m)
        return 0;
    if (m->type != TERN_META_ARRAY || m->elem != TERN_META_STRING || m->n != (size_t)d->n_layers)
        return tern_err_set(err, TERN_EFORMAT, "%s: %s is not a list of %d names, one for each layer",
                            tern_file_path(f), key, d->n_layers);
    const struct tern_str *s = m->arr;
    for (size_t i = 0; i < m->n; i++)
        if (!is_text(s[i], "full_attention") && !is_text(s[i], "sliding_attention"))
            return tern_err_set(err, TERN_EUNSUPPORTED, "%s: %s: layer %zu is \"%.*s\", which is not supported",
                                tern_file_path(f), key, i, (int)(s[i].n < 64 ? s[i].n : 64), s[i].p);
    *types = s;
    return 0;
}

bool tern_layer_slides(const struct tern_str *types, int layer)
{
    return is_text(types[layer], "sliding_attention");
}
