/* The steps in front of the model: building a list of them, and cutting normalized text into words with those of the
 * pre-tokenizer.  A piece goes through all remaining steps before the next piece of the same step is looked at, so no
 * list of pieces is ever kept. */
#include "text/tok/encode.h"

#include <string.h>

/* ---- the list ----------------------------------------------------------------------------------------------- */

int tern_tok_steps_add(struct tern_tok_steps *s, enum tern_tok_step_kind kind, struct tern_tok_step **out,
                       tern_error *err)
{
    if (s->n == TERN_TOK_MAX_STEPS)
        return tern_err_set(err, TERN_ELIMIT, "more than %d steps of one kind", TERN_TOK_MAX_STEPS);
    *out = &s->step[s->n++];
    **out = (struct tern_tok_step){.kind = kind};
    return 0;
}

int tern_tok_steps_split(struct tern_tok_steps *s, const char *pattern, enum tern_tok_behavior behavior, bool invert,
                         tern_error *err)
{
    struct tern_tok_step *step = NULL;
    int rc = tern_tok_steps_add(s, TERN_TOK_SPLIT, &step, err);
    if (rc < 0)
        return rc;
    step->behavior = behavior;
    step->invert = invert;
    return tern_tok_regex_new(&step->re, pattern, strlen(pattern), err);
}

void tern_tok_steps_clear(struct tern_tok_steps *s)
{
    for (int i = 0; i < s->n; i++) {
        tern_tok_regex_free(s->step[i].re);
        tern_tok_charsmap_free(s->step[i].map);
        tern_buf_clear(&s->step[i].text);
    }
    s->n = 0;
}

/* ---- cutting ------------------------------------------------------------------------------------------------ */

/* A stretch between two borders, held back until it is known whether it grows. */
struct cut {
    struct tern_tok_work *w;
    const struct tern_tok_step *step;
    int next; /* the step that its pieces go to */
    int source;
    size_t base;
    struct tern_tok_range held;
    bool have, held_match;
    bool last_match; /* the stretch before was a match */
};

static int flush(struct cut *c, tern_error *err)
{
    bool have = c->have && c->held.end > c->held.begin;
    c->have = false;
    if (!have)
        return 0;
    c->w->at_start = c->w->at_start && c->held.begin == 0;
    return tern_tok_pieces(c->w, c->next, c->source, c->base + c->held.begin, c->base + c->held.end, err);
}

/* Whether a stretch becomes part of the one held back. */
static bool joins(const struct cut *c, bool match)
{
    switch (c->step->behavior) {
    case TERN_TOK_MERGED_WITH_PREVIOUS:
        return match && !c->last_match;
    case TERN_TOK_MERGED_WITH_NEXT:
        return !match && c->held_match;
    case TERN_TOK_CONTIGUOUS:
        return match == c->last_match;
    case TERN_TOK_REMOVED:
    case TERN_TOK_ISOLATED:
        break;
    }
    return false;
}

static int stretch(struct cut *c, size_t begin, size_t end, bool match, tern_error *err)
{
    int rc = 0;
    match = match != c->step->invert;
    if (c->have && joins(c, match)) {
        c->held.end = end;
        c->held_match = c->held_match && match;
    } else {
        TERN_TRY(flush(c, err));
        c->held = (struct tern_tok_range){begin, end};
        c->have = !(match && c->step->behavior == TERN_TOK_REMOVED);
        c->held_match = match;
    }
    c->last_match = match;
out:
    return rc;
}

static int split(struct tern_tok_work *w, int k, int source, size_t base, size_t n, tern_error *err)
{
    int rc = 0;
    struct cut c = {.w = w, .step = &w->t->pre.step[k], .next = k + 1, .source = source, .base = base};
    size_t done = 0;
    struct tern_tok_walk walk = {0};
    for (;;) {
        struct tern_tok_range m;
        /* The text may have moved: what a piece went through may have added to w->copy. */
        TERN_TRY(tern_tok_regex_walk(c.step->re, &w->run, tern_tok_source(w, source) + base, n, &walk, &m, err));
        if (rc == 0)
            break;
        if (m.begin > done)
            TERN_TRY(stretch(&c, done, m.begin, false, err));
        TERN_TRY(stretch(&c, m.begin, m.end, true, err));
        done = m.end;
    }
    if (done < n)
        TERN_TRY(stretch(&c, done, n, false, err));
    TERN_TRY(flush(&c, err));
out:
    return rc < 0 ? rc : 0;
}

/* ---- steps that write the piece anew ------------------------------------------------------------------------- */

static int mark(struct tern_tok_work *w, const struct tern_tok_step *step, int source, size_t begin, size_t n,
                tern_error *err)
{
    int rc = 0;
    const char *m = step->text.p;
    size_t len = step->text.len;
    const char *text = tern_tok_source(w, source) + begin;
    bool marked = n > 0 && (text[0] == ' ' || (n >= len && memcmp(text, m, len) == 0));
    bool wanted = step->prefix == TERN_TOK_PREFIX_ALWAYS || (step->prefix == TERN_TOK_PREFIX_FIRST && w->at_start);
    if (wanted && !marked && !w->behind_broken)
        TERN_TRY(tern_buf_add(&w->copy, m, len, err));
    for (size_t i = 0; i < n; i++) {
        char c = (tern_tok_source(w, source) + begin)[i];
        if (c == ' ')
            TERN_TRY(tern_buf_add(&w->copy, m, len, err));
        else
            TERN_TRY(tern_buf_addc(&w->copy, c, err));
    }
out:
    return rc;
}

static int prefix_space(struct tern_tok_work *w, int source, size_t begin, size_t n, tern_error *err)
{
    int rc = 0;
    if (!w->behind_broken && tern_tok_source(w, source)[begin] != ' ')
        TERN_TRY(tern_buf_addc(&w->copy, ' ', err));
    for (size_t i = 0; i < n; i++)
        TERN_TRY(tern_buf_addc(&w->copy, (tern_tok_source(w, source) + begin)[i], err));
out:
    return rc;
}

static int to_alphabet(struct tern_tok_work *w, int source, size_t begin, size_t n, tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        const char *text = w->t->alphabet[(uint8_t)(tern_tok_source(w, source) + begin)[i]];
        TERN_TRY(tern_buf_add(&w->copy, text, strlen(text), err));
    }
out:
    return rc;
}

/* A word of text in the byte alphabet, as bytes again. */
static int from_alphabet(struct tern_tok_work *w, int source, size_t begin, size_t end, tern_error *err)
{
    int rc = 0;
    size_t at = w->copy.len;
    while (begin < end) {
        uint32_t cp;
        int byte = -1;
        const char *text = tern_tok_source(w, source) + begin;
        int len = tern_utf8_decode(text, end - begin, &cp);
        for (int b = 0; b < 256 && byte < 0; b++)
            if (strncmp(w->t->alphabet[b], text, (size_t)len) == 0 && w->t->alphabet[b][len] == 0)
                byte = b;
        TERN_ASSERT(len > 0 && byte >= 0);
        TERN_TRY(tern_buf_addc(&w->copy, (char)byte, err));
        begin += (size_t)len;
    }
    rc = tern_tok_word(w, TERN_TOK_SOURCE_COPY, at, w->copy.len - at, err);
out:
    return rc;
}

int tern_tok_pieces(struct tern_tok_work *w, int k, int source, size_t begin, size_t end, tern_error *err)
{
    int rc = 0;
    const struct tern_tokenizer *t = w->t;
    size_t at = w->copy.len;
    if (begin == end)
        return 0;
    if (k == t->pre.n && w->lengths)
        return tern_ids_add(w->lengths, (int32_t)(end - begin), err);
    if (k == t->pre.n)
        return t->mapped ? from_alphabet(w, source, begin, end, err)
                         : tern_tok_word(w, source, begin, end - begin, err);
    const struct tern_tok_step *step = &t->pre.step[k];
    switch (step->kind) {
    case TERN_TOK_MARK:
        TERN_TRY(mark(w, step, source, begin, end - begin, err));
        break;
    case TERN_TOK_PREFIX_SPACE:
        TERN_TRY(prefix_space(w, source, begin, end - begin, err));
        break;
    case TERN_TOK_ALPHABET:
        TERN_TRY(to_alphabet(w, source, begin, end - begin, err));
        break;
    default:
        TERN_ASSERT(step->kind == TERN_TOK_SPLIT);
        return split(w, k, source, begin, end - begin, err);
    }
    rc = tern_tok_pieces(w, k + 1, TERN_TOK_SOURCE_COPY, at, w->copy.len, err);
out:
    return rc;
}
