/* From a notation to a grammar. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "grammar/build.h"

tern_grammar *tern_gr_ref(const tern_grammar *g)
{
    tern_grammar *to = (tern_grammar *)(uintptr_t)g; /* immutable but for its references */
    atomic_fetch_add(&to->refs, 1);
    return to;
}

void tern_grammar_free(tern_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1)
        return;
    tern_gr_follow_free(g->met);
    json_decref(g->names);
    (void)pthread_mutex_destroy(&g->lock);
    tern_free(g->nodes);
    tern_free(g->flags);
    tern_free(g->sets);
    tern_free(g->counts);
    tern_free(g->rules);
    tern_free(g->marks);
    tern_free(g);
}

static const char *const names[] = {
    [TERN_GR_JSON] = "JSON",        [TERN_GR_SCHEMA] = "the schema", [TERN_GR_REGEX] = "the pattern",
    [TERN_GR_GBNF] = "the grammar", [TERN_GR_CHOICE] = "the choice", [TERN_GR_CALLS] = "the tools"};

static json_t *read_json(tern_grammar *g, enum tern_gr_kind kind, const char *text, size_t n)
{
    json_error_t e;
    json_t *j = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    if (!j)
        (void)tern_gr_fail(g, TERN_EINVAL, "%s: malformed JSON in line %d, column %d: %.100s", names[kind], e.line,
                           e.column, e.text);
    return j;
}

static struct tern_gr_frag read_choice(tern_grammar *g, const json_t *list)
{
    struct tern_gr_word *words = NULL;
    struct tern_gr_frag f = {0};
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0)
        (void)tern_gr_fail(g, TERN_EINVAL, "the choice must be a list of texts");
    if (g->rc == 0)
        g->rc = tern_alloc(&words, n, sizeof *words, &g->err);
    for (size_t i = 0; i < n && g->rc == 0; i++) {
        const json_t *v = json_array_get(list, i);
        words[i] = (struct tern_gr_word){json_string_value(v), json_string_length(v)};
        if (!json_is_string(v) || words[i].n == 0)
            (void)tern_gr_fail(g, TERN_EINVAL, "the choice: entry %zu is no text, or an empty one", i);
    }
    if (g->rc == 0)
        f = tern_gr_words(g, words, n);
    tern_free(words);
    return f;
}

static struct tern_gr_frag read(tern_grammar *g, enum tern_gr_kind kind, const char *text, size_t n,
                                const struct tern_gr_calls *calls)
{
    struct tern_gr_frag f = {0};
    json_t *j = NULL;
    if (n > TERN_GR_MAX_TEXT)
        (void)tern_gr_fail(g, TERN_ELIMIT, "%s has %zu bytes, and the limit is %zu", names[kind], n, TERN_GR_MAX_TEXT);
    else if (kind != TERN_GR_JSON && n == 0)
        (void)tern_gr_fail(g, TERN_EINVAL, "%s is empty", names[kind]);
    else if (kind == TERN_GR_SCHEMA || kind == TERN_GR_CHOICE || kind == TERN_GR_CALLS)
        j = read_json(g, kind, text, n);
    if (g->rc < 0)
        return f;
    switch (kind) {
    case TERN_GR_JSON:
        f = tern_gr_json_object(g);
        break;
    case TERN_GR_SCHEMA:
        f = tern_gr_schema(g, j);
        break;
    case TERN_GR_REGEX:
        f = tern_gr_regex(g, text, n, false);
        break;
    case TERN_GR_GBNF:
        f = tern_gr_gbnf(g, text, n);
        break;
    case TERN_GR_CHOICE:
        f = read_choice(g, j);
        break;
    case TERN_GR_CALLS:
        f = tern_gr_tools(g, j, calls);
        break;
    }
    json_decref(j);
    return f;
}

/* The reasoning that may come first, and the new lines behind it. */
static struct tern_gr_frag behind_reasoning(tern_grammar *g, const struct tern_gr_frame *frame, struct tern_gr_frag f)
{
    if (!frame || !frame->open || tern_gr_failed(g))
        return f;
    struct tern_gr_frag thought = tern_gr_until(g, frame->close, false);
    thought = tern_gr_then(g, thought, tern_gr_times(g, tern_gr_text(g, "\n"), 0, 2));
    if (!frame->begun)
        thought = tern_gr_maybe(g, tern_gr_then(g, tern_gr_mark(g, frame->open), thought));
    return tern_gr_then(g, thought, f);
}

int tern_gr_compile(tern_grammar **out, enum tern_gr_kind kind, const char *text, size_t n,
                    const struct tern_gr_frame *frame, const struct tern_gr_calls *calls, tern_error *err)
{
    int rc = 0;
    tern_grammar *g = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&g, 1, sizeof *g, err));
    atomic_init(&g->refs, 1);
    (void)pthread_mutex_init(&g->lock, NULL);
    g->any_value = g->any_object = g->string_char = g->blank = UINT32_MAX;
    g->until = tern_now() + TERN_GR_SECONDS;
    struct tern_gr_frag f = behind_reasoning(g, frame, read(g, kind, text, n, calls));
    g->start = tern_gr_rule(g, f);
    tern_gr_check(g);
    json_decref(g->names);
    g->names = NULL;
    tern_free(g->wholes);
    g->wholes = NULL;
    if (g->rc < 0) {
        bool named = strncmp(g->err.msg, "the ", 4) == 0;
        TERN_FAIL(err, g->rc, "%s%s%s", named ? "" : names[kind], named ? "" : ": ", g->err.msg);
    }
    *out = g;
    g = NULL;
out:
    tern_grammar_free(g);
    return rc;
}
