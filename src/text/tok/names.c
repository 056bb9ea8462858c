/* What a file calls its special tokens, besides BOS and EOS: chat templates see them under these names, as Hugging Face
 * passes them. */
#include <string.h>

#include "file/gguf_write.h"
#include "text/tok/json.h"

static const struct {
    const char *name, *key; /* in tokenizer_config.json; behind tokenizer.ggml. */
} words[] = {{"unk_token", "tokenizer.ggml.unknown_token_id"},
             {"pad_token", "tokenizer.ggml.padding_token_id"},
             {"sep_token", "tokenizer.ggml.seperator_token_id"}, /* GGUF's spelling */
             {"cls_token", "tokenizer.ggml.cls_token_id"},
             {"mask_token", "tokenizer.ggml.mask_token_id"}};
enum { N_WORDS = sizeof words / sizeof *words };

/* A text, or an object with the text as "content". */
static const json_t *text_of(const json_t *v)
{
    const json_t *text = json_is_object(v) ? json_object_get(v, "content") : v;
    return json_is_string(text) ? text : NULL;
}

/* Adds a copy; what is no text has no name. */
static int add(json_t *to, const char *name, const json_t *v, tern_error *err)
{
    if (!v)
        return 0;
    json_t *text = json_stringn(json_string_value(v), json_string_length(v));
    if (!text || (name ? json_object_set_new(to, name, text) : json_array_append_new(to, text)) < 0)
        return tern_err_set(err, TERN_ENOMEM, "out of memory");
    return 0;
}

/* Takes the names over as the text that templates get. */
static int keep(struct tern_tokenizer *t, json_t *names, int rc, tern_error *err)
{
    if (rc == 0 && json_object_size(names) > 0) {
        t->names = json_dumps(names, JSON_COMPACT);
        if (!t->names)
            rc = tern_err_set(err, TERN_ENOMEM, "out of memory");
    }
    json_decref(names);
    return rc;
}

int tern_tok_names_from_config(struct tern_tokenizer *t, const json_t *config, tern_error *err)
{
    static const char more[] = "additional_special_tokens";
    int rc = 0;
    json_t *names = json_object(), *list = json_array();
    const json_t *from = json_object_get(config, more);
    if (!names || !list)
        rc = tern_err_set(err, TERN_ENOMEM, "out of memory");
    for (size_t i = 0; i < N_WORDS && rc == 0; i++)
        rc = add(names, words[i].name, text_of(json_object_get(config, words[i].name)), err);
    for (size_t i = 0; i < json_array_size(from) && rc == 0; i++)
        rc = add(list, NULL, text_of(json_array_get(from, i)), err);
    if (rc == 0 && json_array_size(list) > 0 && json_object_set(names, more, list) < 0)
        rc = tern_err_set(err, TERN_ENOMEM, "out of memory");
    json_decref(list);
    return keep(t, names, rc, err);
}

int tern_tok_names_from_file(struct tern_tokenizer *t, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    json_t *names = json_object();
    if (!names)
        rc = tern_err_set(err, TERN_ENOMEM, "out of memory");
    for (size_t i = 0; i < N_WORDS && rc == 0; i++) {
        const struct tern_meta *m = tern_file_meta(f, words[i].key);
        if (!m || m->type != TERN_META_INT || m->odd || m->i < 0 || m->i >= t->n_vocab)
            continue;
        size_t n;
        const char *p = tern_tok_string(&t->piece, (int32_t)m->i, &n);
        json_t *text = json_stringn(p, n); /* NULL: not UTF-8, which no template prints */
        rc = add(names, words[i].name, text, err);
        json_decref(text);
    }
    return keep(t, names, rc, err);
}

int tern_tok_names_to_gguf(struct tern_gguf *g, const struct tern_tokenizer *t, tern_error *err)
{
    int rc = 0;
    json_t *names = t->names ? json_loads(t->names, 0, NULL) : NULL;
    for (size_t i = 0; i < N_WORDS && rc == 0; i++) {
        const json_t *v = json_object_get(names, words[i].name);
        const int32_t id = v ? tern_tokenizer_find(t, json_string_value(v), json_string_length(v)) : -1;
        const bool known = i == 0 && t->unknown >= 0; /* written with what the encoder needs */
        if (id >= 0 && !known)
            rc = tern_gguf_put_u32(g, words[i].key, (uint32_t)id, err);
    }
    json_decref(names);
    return rc;
}

const char *tern_tokenizer_names(const struct tern_tokenizer *t)
{
    return t->names;
}
