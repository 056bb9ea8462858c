/* Grammars for the replies of a model, and constraints: grammars at work on its vocabulary. */
#include <string.h>
#include "run/run.h"

/* ---- the vocabulary ---------------------------------------------------------------------------------------------- */

struct tokens {
    const tern_model *m;
    struct tern_buf bytes, shown;
};

static int token(void *user, int32_t id, struct tern_gr_token *out, tern_error *err)
{
    int rc = 0;
    struct tokens *t = user;
    const struct tern_tokenizer *tok = t->m->tok;
    if (id >= tern_tokenizer_n_vocab(tok)) /* a row of the output matrix that is no token */
        return 0;
    tern_buf_reset(&t->bytes);
    tern_buf_reset(&t->shown);
    TERN_TRY(tern_token_bytes(tok, id, true, &t->bytes, err));
    out->ends = tern_tokenizer_is_eog(tok, id);
    if (tern_tokenizer_is_control(tok, id)) {
        out->control = t->bytes.p ? t->bytes.p : "";
        return 0;
    }
    out->p = t->bytes.p;
    out->n = t->bytes.len;
    TERN_TRY(tern_detokenize(tok, &id, 1, false, &t->shown, err));
    out->drops_space = t->shown.len + 1 == t->bytes.len && *t->bytes.p == ' ';
out:
    return rc;
}

/* The model's vocabulary as grammars need it, made by who needs it first. */
static int vocabulary(const tern_model *m, const struct tern_gr_vocab **out, tern_error *err)
{
    int rc = 0;
    struct tokens t = {.m = m};
    tern_model *to = (tern_model *)(uintptr_t)m; /* immutable but for this */
    struct tern_gr_vocab *v = atomic_load(&to->vocab), *made = NULL;
    if (!m->tok)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: the model has no tokenizer, so its output cannot be constrained",
                  m->path);
    if (!v) {
        TERN_TRY(tern_gr_vocab_new(&made, m->net->desc.n_vocab, token, &t, err));
        if (atomic_compare_exchange_strong(&to->vocab, &v, made)) {
            v = made;
            made = NULL;
        }
    }
    *out = v;
out:
    tern_gr_vocab_free(made);
    tern_buf_clear(&t.bytes);
    tern_buf_clear(&t.shown);
    return rc;
}

/* ---- constraints ------------------------------------------------------------------------------------------------- */

static int allow(void *state, uint32_t *mask, tern_error *err)
{
    return tern_gr_mask(state, mask, err);
}

static int accept_token(void *state, int32_t id, tern_error *err)
{
    return tern_gr_take(state, id, err);
}

static void *fork_state(void *state)
{
    struct tern_gr_matcher *copy;
    return tern_gr_matcher_copy(&copy, state, NULL) < 0 ? NULL : copy;
}

static void free_state(void *state)
{
    tern_gr_matcher_free(state);
}

int tern_constraint_new(tern_constraint *out, const struct tern_model *m, const tern_grammar *g, tern_error *err)
{
    int rc = 0;
    const struct tern_gr_vocab *v = NULL;
    struct tern_gr_matcher *state = NULL;
    *out = (tern_constraint){0};
    TERN_TRY(vocabulary(m, &v, err));
    TERN_TRY(tern_gr_matcher_new(&state, g, v, err));
    *out = (tern_constraint){state, allow, accept_token, fork_state, free_state};
out:
    return rc;
}

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

/* The reasoning of a reply, by the template and the end of the prompt. */
static int find_frame(const tern_grammar_reply *r, const struct tern_template *t, struct tern_gr_frame *out,
                      tern_error *err)
{
    int rc = 0, last = 32, from = r->n_prompt > last ? r->n_prompt - last : 0; /* more than any mark has */
    struct tern_buf text = {0};
    const struct tern_reasoning_format *f = t ? tern_template_reasoning(t) : NULL;
    *out = (struct tern_gr_frame){0};
    if (!f)
        return 0;
    if (r->n_prompt)
        TERN_TRY(tern_detokenize(r->model->tok, r->prompt + from, (size_t)(r->n_prompt - from), true, &text, err));
    *out = (struct tern_gr_frame){tern_reasoning_open(f), tern_reasoning_close(f), false};
    out->begun = tern_reasoning_begun(f, text.p ? text.p : "", text.len);
out:
    tern_buf_clear(&text);
    return rc;
}

static int compile(tern_grammar **out, enum tern_gr_kind kind, const char *text, size_t n,
                   const tern_grammar_reply *reply, tern_error *err)
{
    int rc = 0;
    struct tern_gr_frame frame = {0};
    *out = NULL;
    if (!reply)
        return tern_gr_compile(out, kind, text, n, &frame, NULL, err);
    if (reply->model->tok)
        TERN_TRY(find_frame(reply, reply->model->tmpl, &frame, err));
    TERN_TRY(tern_known_compile(reply->model->known, out, kind, text, n, &frame, NULL, err));
out:
    return rc;
}

int tern_grammar_new_json(tern_grammar **out, const tern_grammar_reply *reply, tern_error *err)
{
    return compile(out, TERN_GR_JSON, "", 0, reply, err);
}

int tern_grammar_new_schema(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                            tern_error *err)
{
    return compile(out, TERN_GR_SCHEMA, text, n, reply, err);
}

int tern_grammar_new_regex(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                           tern_error *err)
{
    return compile(out, TERN_GR_REGEX, text, n, reply, err);
}

int tern_grammar_new_gbnf(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                          tern_error *err)
{
    return compile(out, TERN_GR_GBNF, text, n, reply, err);
}

int tern_grammar_new_choice(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                            tern_error *err)
{
    return compile(out, TERN_GR_CHOICE, text, n, reply, err);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Formats whose calls are JSON, and DeepSeek-V4's.  Others write values without quotes, or in another language. */
static const struct {
    const char *name;
    bool list;
    const char *name_key, *args_key, *tag;
} call_formats[] = {
    {"hermes", false, "name", "arguments", NULL},
    {"llama3", false, "name", "parameters", NULL},
    {"mistral", true, "name", "arguments", NULL},
    {"tool_calls", true, "name", "arguments", NULL},
    {"toolcall", true, "name", "arguments", NULL},
    {"granite", true, "name", "arguments", NULL},
    {"cohere", true, "tool_name", "parameters", NULL},
    {"function", false, NULL, NULL, ">"},
    {"dsml", false, NULL, NULL, NULL},
};

int tern_grammar_new_calls(tern_grammar **out, const char *tools, size_t n, const tern_grammar_calls *p,
                           const tern_grammar_reply *reply, tern_error *err)
{
    int rc = 0;
    size_t i = 0, n_formats = sizeof call_formats / sizeof *call_formats;
    struct tern_gr_frame frame;
    const tern_model *m = reply ? reply->model : NULL;
    const struct tern_template *t = m && m->tool_tmpl ? m->tool_tmpl : m ? m->tmpl : NULL;
    const struct tern_calls_format *f = t ? tern_template_calls(t) : NULL;
    *out = NULL;
    if (!f)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "there is no chat template that describes calls in a format that is known");
    while (i < n_formats && strcmp(call_formats[i].name, tern_calls_name(f)) != 0)
        i++;
    if (i == n_formats)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "calls in the model's format \"%s\" cannot be constrained: it does not write them as JSON",
                  tern_calls_name(f));
    if (p->required && p->otherwise)
        TERN_FAIL(err, TERN_EINVAL, "a call that is required leaves nothing to stand in its place");
    bool bare = strcmp(call_formats[i].name, "llama3") == 0;
    struct tern_gr_calls c = {.open = bare ? "" : tern_calls_open(f),
                              .close = bare ? "" : tern_calls_close(f),
                              .list = call_formats[i].list,
                              .name_key = call_formats[i].name_key,
                              .args_key = call_formats[i].args_key,
                              .tag = call_formats[i].tag,
                              .function = p->function,
                              .required = p->required,
                              .otherwise = p->otherwise,
                              .several = p->several,
                              .dsml = strcmp(call_formats[i].name, "dsml") == 0};
    TERN_TRY(find_frame(reply, t, &frame, err));
    TERN_TRY(tern_known_compile(m->known, out, TERN_GR_CALLS, tools, n, &frame, &c, err));
out:
    return rc;
}
