/* What a configuration says, and what is made of it: the words that families and the translation share. */
#include "file/hf/words.h"

#include <stdlib.h>

#include "base/mem.h"

int tern_hf_fail(const struct tern_hf_words *w, const struct tern_meta *m, int code, tern_error *err, const char *what)
{
    struct tern_cursor c = {.part = w->part, .table = "metadata key", .name = m->key};
    return tern_cursor_fail(&c, TERN_NO_OFFSET, code, err, "%s", what);
}

/* "DIR/config.json: metadata key "x": the value "y" is not supported" */
int tern_hf_fail_text(const struct tern_hf_words *w, const struct tern_meta *m, const struct tern_str *s,
                      tern_error *err)
{
    char text[96];
    (void)snprintf(text, sizeof text, "\"%.*s\" is not supported", (int)(s->n < 60 ? s->n : 60), s->p ? s->p : "");
    return tern_hf_fail(w, m, TERN_EUNSUPPORTED, err, text);
}

/* Adds an entry under the architecture's key, or under `name` itself when that has an architecture. */
int tern_hf_put(const struct tern_hf_words *w, const char *name, struct tern_meta m, tern_error *err)
{
    struct tern_meta_table *t = &w->part->meta;
    size_t n = strlen(w->arch) + strlen(name) + 2;
    char *key;
    int rc = tern_file_arena_alloc(w->arena, &key, n, 1, err);
    if (rc < 0)
        return rc;
    bool global = strncmp(name, "general.", 8) == 0;
    (void)snprintf(key, n, "%s%s%s", global ? "" : w->arch, global ? "" : ".", name);
    TERN_ASSERT(t->n < t->cap);
    m.source = m.key ? m.key : key;
    m.key = key;
    t->v[t->n] = m;
    if (!tern_file_index_add(&t->index, t->n, tern_meta_name, t->v))
        return tern_hf_fail(w, &t->v[t->n], TERN_EFORMAT, err, "the configuration says this in two ways");
    t->n++;
    return 0;
}

int tern_hf_layer_types(const struct tern_hf_words *w, const struct tern_meta *types, int64_t **windows,
                        size_t *n_windows, tern_error *err)
{
    int rc = 0;
    const struct tern_meta *layers = said(w, "num_hidden_layers");
    *windows = NULL;
    *n_windows = 0;
    if (!types)
        return 0;
    if (types->type != TERN_META_ARRAY || types->elem != TERN_META_STRING || !layers || types->n != (uint64_t)layers->i)
        return tern_hf_fail(w, types, TERN_EFORMAT, err, "it is not a list of one name for each layer");
    TERN_TRY(tern_file_arena_alloc(w->arena, windows, types->n, sizeof **windows, err));
    for (size_t i = 0; i < types->n; i++) {
        const struct tern_str *s = (const struct tern_str *)types->arr + i;
        (*windows)[i] = is_text(s, "sliding_attention");
        *n_windows += (size_t)(*windows)[i];
        if (!(*windows)[i] && !is_text(s, "full_attention"))
            return tern_hf_fail_text(w, types, s, err);
    }
out:
    return rc;
}

const struct tern_meta *tern_hf_said_of_rope(const struct tern_hf_words *w, const char *name)
{
    static const char *const groups[] = {"rope_scaling.", "rope_parameters.", "rope_parameters.full_attention."};
    const struct tern_meta *m = NULL;
    for (size_t i = 0; i < sizeof groups / sizeof *groups && !m; i++) {
        char key[96];
        (void)snprintf(key, sizeof key, "%s%s", groups[i], name);
        m = said(w, key);
    }
    return m;
}

const struct tern_tensor *tern_hf_find(const struct tern_tensor_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->v[i].name, name) == 0)
            return &list->v[i];
    return NULL;
}
