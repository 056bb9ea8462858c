/* The text side of a model: its vocabulary, chat template and recommended sampling, out of a GGUF file or the JSON
 * files of a directory. */
#include "run/run.h"

#include <stdio.h>
#include <string.h>

#define MAX_JSON ((size_t)64 << 20)

/* The files beside a Hugging Face model; the bytes live until cleared. */
struct texts {
    struct tern_buf tokenizer, config, generation, model, jinja, tool_jinja, processor;
};

static void clear_texts(struct texts *t)
{
    tern_buf_clear(&t->tokenizer);
    tern_buf_clear(&t->config);
    tern_buf_clear(&t->generation);
    tern_buf_clear(&t->model);
    tern_buf_clear(&t->jinja);
    tern_buf_clear(&t->tool_jinja);
    tern_buf_clear(&t->processor);
}

static int read_texts(struct texts *t, const struct tern_file *f, tern_error *err)
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

static struct tern_str view(const struct tern_buf *b)
{
    return (struct tern_str){b->p, b->len};
}

static int load_tokenizer(tern_model *m, const struct texts *t, tern_error *err)
{
    char name[4200];
    if (!t->tokenizer.p)
        return tern_tokenizer_from_file(&m->tok, m->file, err);
    (void)snprintf(name, sizeof name, "%s: tokenizer.json", m->path);
    struct tern_tokenizer_json files = {.name = name,
                                        .tokenizer = view(&t->tokenizer),
                                        .config = view(&t->config),
                                        .generation = view(&t->generation),
                                        .model = view(&t->model)};
    return tern_tokenizer_from_json(&m->tok, &files, err);
}

/* The model's own template, else ChatML when the vocabulary has its two tokens, else none. */
static int load_template(tern_model *m, const struct texts *t, tern_error *err)
{
    int rc = 0;
    struct tern_str text;
    char name[4200];
    TERN_TRY(tern_file_get_str(m->file, "tokenizer.chat_template", &text, err));
    if (!m->tok)
        goto out;
    if (t->jinja.p)
        text = view(&t->jinja);
    (void)snprintf(name, sizeof name, "%s: chat template", m->path);
    if (text.p) {
        TERN_TRY(tern_template_parse(&m->tmpl, name, text.p, text.n, err));
        goto out;
    }
    if (t->config.p)
        TERN_TRY(tern_template_from_json(&m->tmpl, NULL, name, t->config.p, t->config.len, err));
    if (!m->tmpl && t->processor.p)
        TERN_TRY(tern_template_from_json(&m->tmpl, NULL, name, t->processor.p, t->processor.len, err));
    if (!m->tmpl && tern_tokenizer_find(m->tok, "<|im_start|>", 12) >= 0 &&
        tern_tokenizer_find(m->tok, "<|im_end|>", 10) >= 0)
        TERN_TRY(tern_template_parse(&m->tmpl, "ChatML", tern_template_chatml, strlen(tern_template_chatml), err));
out:
    return rc;
}

/* The template for conversations with tools, where the model has one of its own. */
static int load_tool_template(tern_model *m, const struct texts *t, tern_error *err)
{
    int rc = 0;
    struct tern_str text;
    char name[4200];
    (void)snprintf(name, sizeof name, "%s: chat template tool_use", m->path);
    TERN_TRY(tern_file_get_str(m->file, "tokenizer.chat_template.tool_use", &text, err));
    if (!m->tmpl)
        goto out;
    if (t->tool_jinja.p)
        text = view(&t->tool_jinja);
    if (text.p)
        TERN_TRY(tern_template_parse(&m->tool_tmpl, name, text.p, text.n, err));
    else if (t->config.p && !t->jinja.p)
        TERN_TRY(tern_template_from_json(&m->tool_tmpl, "tool_use", name, t->config.p, t->config.len, err));
out:
    return rc;
}

int tern_model_load_text(tern_model *m, tern_error *err)
{
    int rc = 0;
    struct texts t = {0};
    TERN_TRY(read_texts(&t, m->file, err));
    TERN_TRY(load_tokenizer(m, &t, err));
    TERN_TRY(load_template(m, &t, err));
    TERN_TRY(load_tool_template(m, &t, err));
    const struct tern_str generation = view(&t.generation);
    TERN_TRY(tern_model_load_recommended(m, &generation, err));
out:
    clear_texts(&t);
    return rc;
}
