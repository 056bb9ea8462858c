/* GBNF, the notation for grammars that llama.cpp publishes. */
#include "grammar/build.h"

#include <string.h>
#include "base/utf8.h"

struct gbnf {
    tern_grammar *g;
    const char *text;
    size_t n, at, counted; /* counted: lines before this byte are in `line` */
    int line;
    json_t *rules; /* name -> [rule, line where it was first used, 1 once it is defined] */
    int depth;
};

static int line_of(struct gbnf *b)
{
    for (; b->counted < b->at && b->counted < b->n; b->counted++)
        b->line += b->text[b->counted] == '\n';
    return b->line;
}

static struct tern_gr_frag refuse(struct gbnf *b, int code, const char *what)
{
    if (!tern_gr_failed(b->g))
        (void)tern_gr_fail(b->g, code, "the grammar, line %d: %s", line_of(b), what);
    return (struct tern_gr_frag){0};
}

static int peek(const struct gbnf *b)
{
    return b->at < b->n ? (unsigned char)b->text[b->at] : -1;
}

static void skip_blanks(struct gbnf *b, bool lines)
{
    for (;;) {
        int c = peek(b);
        if (c == '#')
            while (peek(b) >= 0 && peek(b) != '\n')
                b->at++;
        else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))
            b->at++;
        else
            return;
    }
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static size_t name_length(const struct gbnf *b)
{
    size_t n = 0;
    for (; b->at + n < b->n; n++) {
        int c = (unsigned char)b->text[b->at + n];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '-' && c != '_')
            break;
    }
    return n;
}

/* The rule of that name, which may still have to be defined. */
static json_t *find_rule(struct gbnf *b, const char *name, size_t n)
{
    json_t *r = json_object_getn(b->rules, name, n);
    if (r || tern_gr_failed(b->g))
        return r;
    r = json_pack("[iii]", (int)tern_gr_declare(b->g), line_of(b), 0);
    if (!r || json_object_setn_new(b->rules, name, n, r) < 0) {
        (void)tern_gr_fail(b->g, TERN_ENOMEM, "cannot allocate the rules of a grammar");
        return NULL;
    }
    return r;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

static uint32_t take_hex(struct gbnf *b, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++, b->at++) {
        int c = peek(b);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            (void)refuse(b, TERN_EINVAL, "an escape lacks hex digits");
        v = v * 16 + (uint32_t)(d < 0 ? 0 : d);
    }
    if (v > 0x10FFFF)
        (void)refuse(b, TERN_EINVAL, "an escape is no character");
    return v;
}

static uint32_t take_char(struct gbnf *b)
{
    uint32_t cp = 0;
    if (peek(b) == '\\') {
        b->at++;
        int e = peek(b);
        b->at++;
        switch (e) {
        case 'x':
            return take_hex(b, 2);
        case 'u':
            return take_hex(b, 4);
        case 'U':
            return take_hex(b, 8);
        case 't':
            return '\t';
        case 'r':
            return '\r';
        case 'n':
            return '\n';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '^':
        case '-':
            return (uint32_t)e;
        default:
            (void)refuse(b, TERN_EINVAL, "this escape is not known");
            return 0;
        }
    }
    int n = b->at < b->n ? tern_utf8_decode(b->text + b->at, b->n - b->at, &cp) : 0;
    if (n == 0)
        (void)refuse(b, TERN_EINVAL, "it is not UTF-8, or ends too early");
    b->at += n ? (size_t)n : 1;
    return cp;
}

static struct tern_gr_frag one_char(struct gbnf *b, struct tern_gr_chars *c)
{
    struct tern_gr_frag f = tern_gr_char(b->g, c);
    tern_gr_chars_clear(c);
    return f;
}

/* Behind the opening quote. */
static struct tern_gr_frag take_literal(struct gbnf *b)
{
    struct tern_gr_frag f = tern_gr_empty(b->g);
    while (!tern_gr_failed(b->g) && peek(b) != '"') {
        struct tern_gr_chars c = {0};
        if (peek(b) < 0)
            return refuse(b, TERN_EINVAL, "a text lacks its quote");
        uint32_t cp = take_char(b);
        tern_gr_chars_add(b->g, &c, cp, cp);
        f = tern_gr_then(b->g, f, one_char(b, &c));
    }
    b->at++;
    return f;
}

/* Behind the opening bracket. */
static struct tern_gr_frag take_brackets(struct gbnf *b)
{
    struct tern_gr_chars c = {0};
    bool negated = peek(b) == '^';
    b->at += negated;
    while (!tern_gr_failed(b->g) && peek(b) != ']') {
        if (peek(b) < 0)
            (void)refuse(b, TERN_EINVAL, "a class of characters lacks its bracket");
        uint32_t from = take_char(b), to = from;
        if (peek(b) == '-' && b->at + 1 < b->n && b->text[b->at + 1] != ']') {
            b->at++;
            to = take_char(b);
            if (to < from)
                (void)refuse(b, TERN_EINVAL, "a range of characters is upside down");
        }
        tern_gr_chars_add(b->g, &c, from, to);
    }
    b->at++;
    if (negated)
        tern_gr_chars_not(b->g, &c);
    return one_char(b, &c);
}

/* ---- structure --------------------------------------------------------------------------------------------------- */

static struct tern_gr_frag take_choice(struct gbnf *b, bool nested);

static struct tern_gr_frag take_item(struct gbnf *b, bool *any)
{
    struct tern_gr_frag f;
    struct tern_gr_chars c = {0};
    size_t n = name_length(b);
    *any = true;
    if (n) {
        json_t *r = find_rule(b, b->text + b->at, n);
        b->at += n;
        return tern_gr_call(b->g, (uint32_t)json_integer_value(json_array_get(r, 0)));
    }
    switch (peek(b)) {
    case '"':
        b->at++;
        return take_literal(b);
    case '[':
        b->at++;
        return take_brackets(b);
    case '.':
        b->at++;
        tern_gr_chars_add(b->g, &c, 0, 0x10FFFF);
        return one_char(b, &c);
    case '(':
        b->at++;
        if (++b->depth > TERN_GR_MAX_DEPTH)
            return refuse(b, TERN_ELIMIT, "groups are nested deeper than 64 levels");
        skip_blanks(b, true);
        f = take_choice(b, true);
        b->depth--;
        if (peek(b) != ')')
            return refuse(b, TERN_EINVAL, "a group lacks its bracket");
        b->at++;
        return f;
    case '<':
    case '!':
        return refuse(b, TERN_EUNSUPPORTED, "tokens in a grammar are not supported, it describes text");
    default:
        *any = false;
        return (struct tern_gr_frag){0};
    }
}

static uint32_t take_number(struct gbnf *b, bool *any)
{
    uint32_t v = 0;
    for (*any = false; peek(b) >= '0' && peek(b) <= '9'; b->at++, *any = true)
        v = v > TERN_GR_MAX_REPEAT ? v : v * 10 + (uint32_t)(peek(b) - '0');
    return v;
}

static void take_counts(struct gbnf *b, bool nested, uint32_t *min, uint32_t *max)
{
    bool lower, upper = true;
    b->at++;
    skip_blanks(b, nested);
    *min = *max = take_number(b, &lower);
    skip_blanks(b, nested);
    if (peek(b) == ',') {
        b->at++;
        skip_blanks(b, nested);
        *max = take_number(b, &upper);
        *max = upper ? *max : TERN_GR_NO_END;
        skip_blanks(b, nested);
    }
    if (!lower || peek(b) != '}')
        (void)refuse(b, TERN_EINVAL, "a count is not {n}, {n,} or {n,m}");
    else if (*max < *min)
        (void)refuse(b, TERN_EINVAL, "a count is upside down");
    b->at++;
}

static struct tern_gr_frag take_sequence(struct gbnf *b, bool nested)
{
    struct tern_gr_frag all = tern_gr_empty(b->g);
    while (!tern_gr_failed(b->g)) {
        bool any;
        struct tern_gr_frag f = take_item(b, &any);
        if (!any && (peek(b) == '*' || peek(b) == '+' || peek(b) == '?' || peek(b) == '{'))
            return refuse(b, TERN_EINVAL, "there is nothing to repeat");
        if (!any)
            break;
        skip_blanks(b, nested);
        for (int c = peek(b); !tern_gr_failed(b->g) && (c == '*' || c == '+' || c == '?' || c == '{'); c = peek(b)) {
            uint32_t min = c == '+', max = c == '?' ? 1 : TERN_GR_NO_END;
            if (c == '{')
                take_counts(b, nested, &min, &max);
            else
                b->at++;
            f = tern_gr_times(b->g, f, min, max);
            skip_blanks(b, nested);
        }
        all = tern_gr_then(b->g, all, f);
    }
    return all;
}

static struct tern_gr_frag take_choice(struct gbnf *b, bool nested)
{
    struct tern_gr_frag f = take_sequence(b, nested);
    while (!tern_gr_failed(b->g) && peek(b) == '|') {
        b->at++;
        skip_blanks(b, true);
        f = tern_gr_or(b->g, f, take_sequence(b, nested));
    }
    return f;
}

static void take_rule(struct gbnf *b)
{
    size_t n = name_length(b);
    if (n == 0) {
        (void)refuse(b, TERN_EINVAL, "the name of a rule is expected");
        return;
    }
    json_t *r = find_rule(b, b->text + b->at, n);
    if (json_integer_value(json_array_get(r, 2)))
        (void)refuse(b, TERN_EINVAL, "this rule is defined a second time");
    (void)json_array_set_new(r, 2, json_integer(1));
    b->at += n;
    skip_blanks(b, false);
    if (b->n - b->at < 3 || memcmp(b->text + b->at, "::=", 3) != 0) {
        (void)refuse(b, TERN_EINVAL, "::= is expected behind the name of a rule");
        return;
    }
    b->at += 3;
    skip_blanks(b, true);
    struct tern_gr_frag f = take_choice(b, false);
    tern_gr_define(b->g, (uint32_t)json_integer_value(json_array_get(r, 0)), f);
    if (peek(b) >= 0 && peek(b) != '\n')
        (void)refuse(b, TERN_EINVAL, "this is neither part of a rule nor its end");
    skip_blanks(b, true);
}

struct tern_gr_frag tern_gr_gbnf(tern_grammar *g, const char *p, size_t n)
{
    struct gbnf b = {.g = g, .text = p, .n = n, .line = 1, .rules = json_object()};
    struct tern_gr_frag f = {0};
    const char *name;
    json_t *r;
    skip_blanks(&b, true);
    while (!tern_gr_failed(g) && b.at < b.n)
        take_rule(&b);
    json_t *root = json_object_get(b.rules, "root");
    if (!tern_gr_failed(g) && (!root || !json_integer_value(json_array_get(root, 2))))
        (void)tern_gr_fail(g, TERN_EINVAL, "the grammar has no rule \"root\"");
    json_object_foreach(b.rules, name, r)
    {
        if (!tern_gr_failed(g) && !json_integer_value(json_array_get(r, 2)))
            (void)tern_gr_fail(g, TERN_EINVAL, "the grammar, line %d: there is no rule \"%.60s\"",
                               (int)json_integer_value(json_array_get(r, 1)), name);
    }
    if (!tern_gr_failed(g))
        f = tern_gr_call(g, (uint32_t)json_integer_value(json_array_get(root, 0)));
    g->names = b.rules; /* until it is checked */
    return f;
}
