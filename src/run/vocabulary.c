/* The text side of a model: its vocabulary, chat template and recommended sampling, out of a GGUF file or the JSON
 * files of a directory. */
#include "run/run.h"

#include <stdio.h>
#include <string.h>

static int load_tokenizer(tern_model *m, const struct tern_texts *t, tern_error *err)
{
    char name[4200];
    if (!t->tokenizer.p)
        return tern_tokenizer_from_file(&m->tok, m->file, err);
    (void)snprintf(name, sizeof name, "%s: tokenizer.json", m->path);
    struct tern_tokenizer_json files = tern_texts_tokenizer(t, name);
    return tern_tokenizer_from_json(&m->tok, &files, err);
}

/* The template of this key, else among the texts; *out NULL: none. */
static int load_one(struct tern_template **out, tern_model *m, const struct tern_texts *t, bool tools, tern_error *err)
{
    int rc = 0;
    struct tern_str text;
    struct tern_buf found = {0};
    bool is_there;
    char name[4200];
    const char *key = tools ? "tokenizer.chat_template.tool_use" : "tokenizer.chat_template";
    TERN_TRY(tern_file_get_str(m->file, key, &text, err));
    (void)snprintf(name, sizeof name, "%s: chat template%s", m->path, tools ? " tool_use" : "");
    if (!text.p) {
        TERN_TRY(tern_texts_template(t, tools, name, &found, &is_there, err));
        text = (struct tern_str){is_there ? found.p ? found.p : "" : NULL, found.len};
    }
    if (text.p)
        TERN_TRY(tern_template_parse(out, name, text.p, text.n, err));
out:
    tern_buf_clear(&found);
    return rc;
}

/* Ours for models of this architecture. */
static int load_builtin(tern_model *m, const struct tern_texts *t, tern_error *err)
{
    int rc = 0;
    struct tern_str arch;
    struct tern_buf text = {0};
    bool found = false;
    char name[4200];
    TERN_TRY(tern_file_get_str(m->file, "general.architecture", &arch, err));
    if (arch.p)
        TERN_TRY(tern_texts_builtin(t, arch, m->tok, &text, &found, err));
    (void)snprintf(name, sizeof name, "%s: built-in chat template", m->path);
    if (found)
        TERN_TRY(tern_template_parse(&m->tmpl, name, text.p, text.len, err));
out:
    tern_buf_clear(&text);
    return rc;
}

/* The model's own template, else ours for its architecture, else ChatML when the vocabulary has its two tokens, else
 * none; and the one for conversations with tools, where the model has one of its own. */
static int load_templates(tern_model *m, const struct tern_texts *t, tern_error *err)
{
    int rc = 0;
    if (!m->tok)
        goto out;
    TERN_TRY(load_one(&m->tmpl, m, t, false, err));
    if (!m->tmpl)
        TERN_TRY(load_builtin(m, t, err));
    if (!m->tmpl && tern_tokenizer_find(m->tok, "<|im_start|>", 12) >= 0 &&
        tern_tokenizer_find(m->tok, "<|im_end|>", 10) >= 0)
        TERN_TRY(tern_template_parse(&m->tmpl, "ChatML", tern_template_chatml, strlen(tern_template_chatml), err));
    if (m->tmpl)
        TERN_TRY(load_one(&m->tool_tmpl, m, t, true, err));
    if (m->tmpl)
        TERN_TRY(tern_template_set_names(m->tmpl, tern_tokenizer_names(m->tok), err));
    if (m->tool_tmpl)
        TERN_TRY(tern_template_set_names(m->tool_tmpl, tern_tokenizer_names(m->tok), err));
out:
    return rc;
}

int tern_model_load_text(tern_model *m, tern_error *err)
{
    int rc = 0;
    struct tern_texts t = {0};
    TERN_TRY(tern_texts_read(&t, m->file, err));
    TERN_TRY(load_tokenizer(m, &t, err));
    TERN_TRY(load_templates(m, &t, err));
    const struct tern_str generation = {t.generation.p, t.generation.len};
    TERN_TRY(tern_model_load_recommended(m, &generation, err));
out:
    tern_texts_clear(&t);
    return rc;
}
