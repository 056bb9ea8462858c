/* The texts beside a Hugging Face model. */
#include <jansson.h>
#include <string.h>

#include "text/text.h"

#define MAX_JSON ((size_t)64 << 20)

int tern_texts_read(struct tern_texts *t, const struct tern_file *f, tern_error *err)
{
    const struct {
        const char *name;
        struct tern_buf *buf;
    } files[] = {{"tokenizer.json", &t->tokenizer},
                 {"tokenizer_config.json", &t->config},
                 {"generation_config.json", &t->generation},
                 {"config.json", &t->model},
                 {"chat_template.jinja", &t->jinja},
                 {"chat_template.json", &t->processor},
                 {"additional_chat_templates/tool_use.jinja", &t->tool_jinja}};
    bool found;
    int rc = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && rc == 0; i++)
        rc = tern_file_beside(f, files[i].name, MAX_JSON, files[i].buf, &found, err);
    return rc;
}

void tern_texts_clear(struct tern_texts *t)
{
    tern_buf_clear(&t->tokenizer);
    tern_buf_clear(&t->config);
    tern_buf_clear(&t->generation);
    tern_buf_clear(&t->model);
    tern_buf_clear(&t->jinja);
    tern_buf_clear(&t->tool_jinja);
    tern_buf_clear(&t->processor);
}

static struct tern_str view(const struct tern_buf *b)
{
    return (struct tern_str){b->p, b->len};
}

struct tern_tokenizer_json tern_texts_tokenizer(const struct tern_texts *t, const char *name)
{
    return (struct tern_tokenizer_json){.name = name,
                                        .tokenizer = view(&t->tokenizer),
                                        .config = view(&t->config),
                                        .generation = view(&t->generation),
                                        .model = view(&t->model)};
}

/* Of a list of {"name", "template"} the one of this name; NULL: none. */
static const json_t *named_template(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_object_get(json_array_get(list, i), "name"));
        if (s && strcmp(s, name) == 0)
            return json_object_get(json_array_get(list, i), "template");
    }
    return NULL;
}

/* The text at "chat_template", or of a list of named ones that of the name "default"; with `which` that of this name,
 * from lists alone. */
static int template_of(const struct tern_buf *json, const char *which, const char *name, struct tern_buf *out,
                       bool *found, tern_error *err)
{
    int rc = 0;
    json_error_t e;
    json_t *root = json_loadb(json->p, json->len, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &e);
    if (!root) /* numbers of any size are none of ours */
        return tern_err_set(err, TERN_EFORMAT, "%s: malformed JSON: %s (line %d, column %d)", name, e.text, e.line,
                            e.column);
    const json_t *t = json_object_get(root, "chat_template");
    if (json_is_array(t)) {
        t = named_template(t, which ? which : "default");
        if (!t && !which)
            TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: none of the chat templates is called \"default\"", name);
    } else if (which) {
        t = NULL;
    }
    if (t && !json_is_null(t) && !json_is_string(t))
        TERN_FAIL(err, TERN_EFORMAT, "%s: chat_template is no text", name);
    *found = json_is_string(t);
    if (*found)
        TERN_TRY(tern_buf_add(out, json_string_value(t), json_string_length(t), err));
out:
    json_decref(root);
    return rc;
}

int tern_texts_template(const struct tern_texts *t, bool tools, const char *name, struct tern_buf *out, bool *found,
                        tern_error *err)
{
    int rc = 0;
    const struct tern_buf *file = tools ? &t->tool_jinja : &t->jinja;
    const char *which = tools ? "tool_use" : NULL;
    *found = file->p != NULL;
    if (*found)
        return tern_buf_add(out, file->p, file->len, err);
    if (t->config.p && !t->jinja.p)
        TERN_TRY(template_of(&t->config, which, name, out, found, err));
    if (!*found && t->processor.p && !tools)
        TERN_TRY(template_of(&t->processor, which, name, out, found, err));
out:
    return rc;
}
