/* The public face of the template engine: parse once, render many times. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/jinja/jinja.h"

const char tern_template_chatml[] = "{% for message in messages %}"
                                    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
                                    "{% endfor %}"
                                    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

int tern_template_parse(struct tern_template **out, const char *name, const char *text, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_template *t = NULL;
    struct jparse p = {.err = err};
    *out = NULL;
    if (n > JINJA_MAX_SOURCE)
        TERN_FAIL(err, TERN_ELIMIT, "%s: chat template: %zu bytes are more than the limit of %zu", name, n,
                  JINJA_MAX_SOURCE);
    TERN_TRY(tern_alloc(&t, 1, sizeof *t, err));
    t->arena.budget = (size_t)256 << 20;
    TERN_TRY(tern_alloc(&t->name, strlen(name) + 1, 1, err));
    memcpy(t->name, name, strlen(name) + 1);
    p.t = t;
    TERN_TRY(tern_jlex_run(&p, text, n));
    TERN_TRY(tern_jparse_template(&p));
    TERN_TRY(tern_alloc(&t->text, n + 1, 1, err));
    memcpy(t->text, text, n);
    t->calls = tern_calls_of_text(text, n);
    t->reasoning = tern_reasoning_of_text(text, n);
    *out = t;
    t = NULL;
out:
    tern_free(p.toks);
    tern_template_free(t);
    return rc;
}

void tern_template_free(struct tern_template *t)
{
    if (!t)
        return;
    tern_jarena_clear(&t->arena);
    tern_free(t->name);
    tern_free(t->text);
    tern_free(t->names);
    tern_free(t);
}

int tern_template_set_names(struct tern_template *t, const char *names_json, tern_error *err)
{
    tern_free(t->names);
    t->names = NULL;
    if (!names_json)
        return 0;
    const size_t n = strlen(names_json) + 1;
    int rc = tern_alloc(&t->names, n, 1, err);
    if (rc == 0)
        memcpy(t->names, names_json, n);
    return rc;
}

const struct tern_calls_format *tern_template_calls(const struct tern_template *t)
{
    return t->calls;
}

const struct tern_reasoning_format *tern_template_reasoning(const struct tern_template *t)
{
    return t->reasoning;
}

bool tern_template_says(const struct tern_template *t, const char *name)
{
    for (int i = 0; i < t->n_syms; i++)
        if (tern_jstr_is(&t->syms[i], name))
            return true;
    return false;
}

bool tern_template_quotes(const struct tern_template *t, const char *text)
{
    const size_t n = strlen(text);
    for (const char *p = t->text; (p = strstr(p, text)) != NULL; p++)
        if (p > t->text && (p[-1] == '"' || p[-1] == '\'') && p[n] == p[-1])
            return true;
    return false;
}

void tern_rendered_clear(struct tern_rendered *r)
{
    tern_buf_clear(&r->text);
    tern_free(r->spans);
    *r = (struct tern_rendered){.text.max = r->text.max};
}

/* ---- variables ------------------------------------------------------------------------------------------------- */

static void set_var(struct jrun *r, const char *name, size_t n, struct jval v)
{
    const struct jstr s = {.p = name, .len = n};
    for (int i = 0; i < r->t->n_syms; i++)
        if (tern_jstr_eq(&r->t->syms[i], &s))
            r->root[i] = v;
}

static int set_text(struct jrun *r, const char *name, const char *text)
{
    struct jval v;
    if (!text)
        return 0; /* stays undefined */
    JTRY(tern_jstr_new(r, text, strlen(text), false, &v));
    set_var(r, name, strlen(name), v);
    return 0;
}

/* The roles that every template compares with and prints next to its own control tokens count as template text; any
 * other role came from outside and is treated like the rest of the message. */
static bool known_role(const struct jstr *s)
{
    return tern_jstr_is(s, "system") || tern_jstr_is(s, "user") || tern_jstr_is(s, "assistant") ||
           tern_jstr_is(s, "tool");
}

static int unmark_roles(struct jrun *r, struct jlist *messages)
{
    struct jval role;
    JTRY(tern_jstr_lit(r, "role", &role));
    for (size_t i = 0; i < messages->n; i++) {
        struct jentry *e = NULL;
        if (messages->v[i].t == JV_DICT)
            JTRY(tern_jdict_find(r, messages->v[i].d, role, &e));
        if (e && e->val.t == JV_STR && known_role(e->val.s))
            e->val.s->user = false;
    }
    return 0;
}

static int message_list(struct jrun *r, const struct tern_chat_message *msgs, size_t n, struct jval *out)
{
    struct jval role, content, v, m;
    JTRY(tern_jstr_lit(r, "role", &role));
    JTRY(tern_jstr_lit(r, "content", &content));
    role.s->user = content.s->user = true;
    JTRY(tern_jval_list(r, JL_LIST, n, out));
    for (size_t i = 0; i < n; i++) {
        JTRY(tern_jval_dict(r, &m));
        JTRY(tern_jstr_new(r, msgs[i].role, strlen(msgs[i].role), true, &v));
        JTRY(tern_jdict_set(r, m.d, role, v));
        JTRY(tern_jstr_new(r, msgs[i].content, strlen(msgs[i].content), true, &v));
        JTRY(tern_jdict_set(r, m.d, content, v));
        JTRY(tern_jlist_add(r, out->l, m));
    }
    return 0;
}

static int more_vars(struct jrun *r, const char *vars_json)
{
    struct jval vars;
    JTRY(
        tern_jval_parse_json(r, "the JSON text of the template variables", vars_json, strlen(vars_json), false, &vars));
    if (vars.t != JV_DICT)
        return tern_jrun_fail(r, TERN_EINVAL, "the JSON text of the template variables is not an object");
    for (size_t i = 0; i < vars.d->n; i++)
        set_var(r, vars.d->e[i].key.s->p, vars.d->e[i].key.s->len, vars.d->e[i].val);
    return 0;
}

struct inputs {
    const struct tern_chat_message *msgs;
    size_t n_msgs;
    const char *messages_json; /* used when not NULL */
    bool add_generation_prompt;
    const char *bos_token, *eos_token, *vars_json;
};

static int set_vars(struct jrun *r, const struct inputs *in)
{
    struct jval messages;
    for (int i = 0; i < r->t->n_syms; i++) {
        const struct jbuiltin *fn = tern_jglobal_find(r->t->syms[i].p, r->t->syms[i].len);
        r->root[i] = fn ? (struct jval){.t = JV_FUNC, .fn = fn} : (struct jval){.t = JV_ABSENT};
    }
    if (in->messages_json)
        JTRY(tern_jval_parse_json(r, "the JSON text of the messages", in->messages_json, strlen(in->messages_json),
                                  true, &messages));
    else
        JTRY(message_list(r, in->msgs, in->n_msgs, &messages));
    if (messages.t != JV_LIST)
        return tern_jrun_fail(r, TERN_EINVAL, "the JSON text of the messages is not an array");
    JTRY(unmark_roles(r, messages.l));
    set_var(r, "messages", 8, messages);
    set_var(r, "add_generation_prompt", 21, tern_jval_bool(in->add_generation_prompt));
    set_var(r, "tools", 5, tern_jval_none()); /* Hugging Face always passes these two */
    set_var(r, "documents", 9, tern_jval_none());
    if (r->t->names)
        JTRY(more_vars(r, r->t->names));
    JTRY(set_text(r, "bos_token", in->bos_token));
    JTRY(set_text(r, "eos_token", in->eos_token));
    return in->vars_json ? more_vars(r, in->vars_json) : 0;
}

static int render(const struct tern_template *t, const struct inputs *in, struct tern_rendered *out, tern_error *err)
{
    int rc = 0;
    struct jrun r = {.t = t, .err = err, .out = out, .steps = JINJA_MAX_STEPS, .line = 1};
    r.arena.budget = JINJA_MAX_MEMORY;
    tern_rendered_clear(out);
    TERN_TRY(tern_buf_add(&out->text, "", 0, err)); /* an empty prompt is still a C string */
    TERN_TRY(tern_jrun_alloc_raw(&r, &r.root, (size_t)t->n_syms * sizeof *r.root));
    TERN_TRY(set_vars(&r, in));
    TERN_TRY(tern_jrun_exec(&r, t->body));
out:
    if (rc < 0)
        tern_rendered_clear(out);
    tern_jarena_clear(&r.arena);
    return rc;
}

int tern_template_render(const struct tern_template *t, const struct tern_chat_message *msgs, size_t n_msgs,
                         bool add_generation_prompt, const char *bos_token, const char *eos_token,
                         const char *vars_json, struct tern_rendered *out, tern_error *err)
{
    const struct inputs in = {.msgs = msgs,
                              .n_msgs = n_msgs,
                              .add_generation_prompt = add_generation_prompt,
                              .bos_token = bos_token,
                              .eos_token = eos_token,
                              .vars_json = vars_json};
    return render(t, &in, out, err);
}

int tern_template_render_json(const struct tern_template *t, const char *messages_json, bool add_generation_prompt,
                              const char *bos_token, const char *eos_token, const char *vars_json,
                              struct tern_rendered *out, tern_error *err)
{
    const struct inputs in = {.messages_json = messages_json,
                              .add_generation_prompt = add_generation_prompt,
                              .bos_token = bos_token,
                              .eos_token = eos_token,
                              .vars_json = vars_json};
    return render(t, &in, out, err);
}
