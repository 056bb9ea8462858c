/* Regular expressions as tokenizers write them: in Oniguruma's notation, run by PCRE2.
 *
 * The two agree on nearly all that tokenizers use.  What they read differently is rewritten here, and what cannot be is
 * refused, because PCRE2 would accept it and match something else:
 *   \s \S \w \b      spelled out: PCRE2 counts U+180E as a space, and marks not as part of words
 *   \v \uHHHH        VT alone; another spelling
 *   {,n} {1,n}+      {0,n}; a repeated repeat, which is +, not a possessive one
 *   [a[b]] [a&&b]    sets of sets: refused
 * `^` and `$` are the borders of lines in both, since patterns are compiled as PCRE2_MULTILINE. */
#include "text/tok/tok.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SPACES "\\t-\\r\\x{85}\\p{Z}"
/* As Oniguruma has it: some numbers above and below a line, and letters in circles and squares. */
#define WORD                                                                                   \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}" \
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define BOUNDARY "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"

enum {
    MAX_PATTERN = 1 << 14,
    WINDOW = 512,
    LOOKS = 1 << 28, /* about a second */
};

struct rewrite {
    const char *p;
    size_t n, i;
    struct tern_buf *out;
    tern_error *err;
};

static int refuse(const struct rewrite *r, const char *what)
{
    return tern_err_set(r->err, TERN_EUNSUPPORTED, "the pattern '%.*s' has %s at byte %zu, which is not supported",
                        (int)(r->n < 200 ? r->n : 200), r->p, what, r->i);
}

static int put(struct rewrite *r, const char *text)
{
    return tern_buf_add(r->out, text, strlen(text), r->err);
}

/* Copies n bytes of the pattern. */
static int copy(struct rewrite *r, size_t n)
{
    int rc = tern_buf_add(r->out, r->p + r->i, n, r->err);
    r->i += n;
    return rc;
}

static bool at(const struct rewrite *r, const char *text)
{
    size_t n = strlen(text);
    return r->n - r->i >= n && memcmp(r->p + r->i, text, n) == 0;
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* A backslash and what belongs to it, inside a set or outside. */
static int escape(struct rewrite *r, bool set)
{
    static const struct {
        char c;
        const char *in_set, *outside;
    } table[] = {
        {'s', SPACES, "[" SPACES "]"}, {'S', "\\S\\x{180E}", "[^" SPACES "]"},
        {'w', WORD, "[" WORD "]"},     {'W', NULL, "[^" WORD "]"},
        {'d', "\\p{Nd}", "\\p{Nd}"},   {'D', "\\P{Nd}", "\\P{Nd}"},
        {'b', NULL, BOUNDARY},         {'v', "\\x{0B}", "\\x{0B}"},
    };
    char c = r->n - r->i >= 2 ? r->p[r->i + 1] : 0;
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        if (table[k].c != c)
            continue;
        const char *text = set ? table[k].in_set : table[k].outside;
        if (!text)
            break;
        r->i += 2;
        return put(r, text);
    }
    if (c == 'u' && r->n - r->i >= 6) {
        int rc = put(r, "\\x{");
        r->i += 2;
        rc = rc < 0 ? rc : copy(r, 4);
        return rc < 0 ? rc : put(r, "}");
    }
    if (c == 'p' || c == 'P' || c == 'x') {
        const char *end = at(r, "\\x{") || c != 'x' ? memchr(r->p + r->i, '}', r->n - r->i) : r->p + r->i + 1;
        return end ? copy(r, (size_t)(end - (r->p + r->i)) + 1) : refuse(r, "an open brace");
    }
    if (c != 0 && (!is_alnum(c) || strchr("nrtfae", c) || (!set && strchr("Az", c))))
        return copy(r, 2);
    return refuse(r, "an escape");
}

static int set(struct rewrite *r)
{
    int rc = 0;
    TERN_TRY(copy(r, at(r, "[^") ? 2 : 1));
    if (at(r, "]"))
        return refuse(r, "an empty set");
    while (r->i < r->n && !at(r, "]")) {
        if (at(r, "\\")) {
            TERN_TRY(escape(r, true));
        } else if (at(r, "[:")) {
            const char *end = memmem(r->p + r->i, r->n - r->i, ":]", 2);
            TERN_TRY(end ? copy(r, (size_t)(end - (r->p + r->i)) + 2) : refuse(r, "an open set"));
        } else if (at(r, "[") || at(r, "&&")) {
            return refuse(r, "a set of sets");
        } else {
            TERN_TRY(copy(r, 1));
        }
    }
    TERN_TRY(r->i < r->n ? copy(r, 1) : refuse(r, "an open set"));
out:
    return rc;
}

static int group(struct rewrite *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"};
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
        if (at(r, known[k]))
            return copy(r, strlen(known[k]));
    if (r->i == 0 && at(r, "(?i)")) /* elsewhere the two disagree how far it reaches */
        return copy(r, 4);
    return at(r, "(?") || at(r, "(*") ? refuse(r, "a group") : copy(r, 1);
}

/* {n}, {n,m}, {n,}, {,m}; any other brace is itself. */
static int repeat(struct rewrite *r)
{
    int rc = 0;
    size_t k = r->i + 1, digits = 0;
    bool none = k < r->n && r->p[k] == ',', one = r->n - r->i > 2 && r->p[k] == '1' && !is_alnum(r->p[k + 1]);
    while (k < r->n && ((r->p[k] >= '0' && r->p[k] <= '9') || r->p[k] == ','))
        digits += r->p[k++] != ',';
    if (k == r->n || r->p[k] != '}' || digits == 0)
        return copy(r, 1);
    if (k + 1 < r->n && r->p[k + 1] == '+') {
        if (!one)
            return refuse(r, "a repeated repeat");
        r->i = k + 2;
        return put(r, "+");
    }
    TERN_TRY(copy(r, 1));
    if (none)
        TERN_TRY(put(r, "0"));
    TERN_TRY(copy(r, k + 1 - r->i));
out:
    return rc;
}

static int rewrite(struct rewrite *r)
{
    int rc = 0;
    if (r->n > MAX_PATTERN)
        TERN_FAIL(r->err, TERN_ELIMIT, "a pattern has %zu bytes; at most %d are possible", r->n, MAX_PATTERN);
    while (r->i < r->n)
        switch (r->p[r->i]) {
        case '\\':
            TERN_TRY(escape(r, false));
            break;
        case '[':
            TERN_TRY(set(r));
            break;
        case '(':
            TERN_TRY(group(r));
            break;
        case '{':
            TERN_TRY(repeat(r));
            break;
        default:
            TERN_TRY(copy(r, 1));
        }
out:
    return rc;
}

struct tern_tok_regex {
    pcre2_code *code;
    bool jit;
};

static int compile(struct tern_tok_regex **out, const char *pattern, size_t n, uint32_t options, tern_error *err)
{
    int rc = 0, code;
    size_t offset;
    PCRE2_UCHAR why[128] = "";
    struct tern_tok_regex *re = NULL;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    TERN_TRY(tern_alloc(&re, 1, sizeof *re, err));
    if (!context)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the context of a pattern");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    (void)pcre2_set_parens_nest_limit(context, 32);
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &code, &offset, context);
    if (!re->code) {
        (void)pcre2_get_error_message(code, why, sizeof why);
        TERN_FAIL(err, TERN_EUNSUPPORTED, "the pattern '%.*s' is refused: %s (at byte %zu)", (int)(n < 200 ? n : 200),
                  pattern, (const char *)why, offset);
    }
    /* Compiling to machine code needs writable executable memory, which a hardened service may forbid; the
     * interpreter gives the same matches. */
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
out:
    pcre2_compile_context_free(context);
    if (rc < 0) {
        tern_tok_regex_free(re);
        re = NULL;
    }
    *out = re;
    return rc;
}

int tern_tok_regex_new(struct tern_tok_regex **out, const char *pattern, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    struct rewrite r = {.p = pattern, .n = n, .out = &text, .err = err};
    *out = NULL;
    TERN_TRY(rewrite(&r));
    TERN_TRY(compile(out, text.p ? text.p : "", text.len, PCRE2_UCP | PCRE2_MULTILINE, err));
out:
    tern_buf_clear(&text);
    return rc;
}

int tern_tok_regex_literal(struct tern_tok_regex **out, const char *text, size_t n, tern_error *err)
{
    return compile(out, text, n, PCRE2_LITERAL, err);
}

void tern_tok_regex_free(struct tern_tok_regex *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    tern_free(re);
}

int tern_tok_regex_begin(struct tern_tok_regex_run *run, size_t n, tern_error *err)
{
    run->window = WINDOW;
    run->left = LOOKS + 64 * n;
    run->match = pcre2_match_data_create(1, NULL);
    run->limits = pcre2_match_context_create(NULL);
    if (!run->match || !run->limits) {
        tern_tok_regex_end(run);
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the pre-tokenizer's match data");
    }
    return 0;
}

void tern_tok_regex_end(struct tern_tok_regex_run *run)
{
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->limits);
    *run = (struct tern_tok_regex_run){0};
}

/* The first match in text[0..end) at or behind `from`.  `more`: there is text behind `end`, and a match that depends on
 * it is none but PCRE2_ERROR_PARTIAL. */
static int match(const struct tern_tok_regex *re, struct tern_tok_regex_run *run, const char *text, size_t end,
                 size_t from, bool more)
{
    int got = PCRE2_ERROR_JIT_STACKLIMIT;
    uint32_t options = more ? PCRE2_PARTIAL_HARD : 0;
    /* A few steps per byte are enough for every sane pattern; without a limit tied to the text, one fixed number would
     * either refuse long runs of spaces or permit minutes. */
    size_t limit = 10000 + 16 * (end - from);
    (void)pcre2_set_match_limit(run->limits, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    if (re->jit)
        got = pcre2_jit_match(re->code, (PCRE2_SPTR)text, end, from, options, run->match, run->limits);
    if (got == PCRE2_ERROR_JIT_STACKLIMIT)
        got = pcre2_match(re->code, (PCRE2_SPTR)text, end, from, options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          run->match, run->limits);
    return got;
}

/* Most matches are short, but a pattern may look ahead to the end of the text for each of them, which would take time
 * in the square of its length.  So a search sees a window, and more only when that did not decide; what all searches of
 * a call see beyond their first windows is limited. */
int tern_tok_regex_find(const struct tern_tok_regex *re, struct tern_tok_regex_run *run, const char *text, size_t n,
                        size_t from, struct tern_tok_range *found, tern_error *err)
{
    const size_t *range = pcre2_get_ovector_pointer(run->match);
    size_t start = from, window = run->window;
    *found = (struct tern_tok_range){.begin = n, .end = n};
    for (;;) {
        size_t end = window < n - start ? start + window : n;
        while (end < n && ((unsigned char)text[end] & 0xC0) == 0x80)
            end++;
        int got = match(re, run, text, end, start, end < n);
        if (end < n && (got == PCRE2_ERROR_PARTIAL || got == PCRE2_ERROR_MATCHLIMIT)) {
            if (end - start > run->left)
                return tern_err_set(err, TERN_ELIMIT, "a pattern of the tokenizer looks too often at a long text");
            run->left -= end - start;
            start = got == PCRE2_ERROR_PARTIAL && range[0] > start ? range[0] : start;
            window = 2 * (end - start) + run->window;
            continue;
        }
        if (end < n && (got == PCRE2_ERROR_NOMATCH || (got > 0 && range[0] == end))) {
            start = end;
            window = run->window;
            continue;
        }
        if (got == PCRE2_ERROR_NOMATCH)
            return 0;
        if (got < 0)
            return tern_err_set(err, TERN_ELIMIT, "the pre-tokenizer gave up at byte %zu of %zu (PCRE2 error %d)", from,
                                n, got);
        if (range[0] < from || range[1] < range[0]) /* \K or the like; the rewriting lets none through */
            return tern_err_set(err, TERN_EUNSUPPORTED, "a pattern matched bytes %zu to %zu from byte %zu on", range[0],
                                range[1], from);
        *found = (struct tern_tok_range){.begin = range[0], .end = range[1]};
        return 1;
    }
}

int tern_tok_regex_walk(const struct tern_tok_regex *re, struct tern_tok_regex_run *run, const char *text, size_t n,
                        struct tern_tok_walk *walk, struct tern_tok_range *found, tern_error *err)
{
    while (walk->from <= n) {
        uint32_t cp;
        int rc = tern_tok_regex_find(re, run, text, n, walk->from, found, err);
        if (rc <= 0)
            return rc;
        bool nothing = found->begin == found->end;
        bool again = nothing && walk->any && found->begin == walk->end;
        walk->from = found->end;
        if (nothing)
            walk->from += found->end < n ? (size_t)tern_utf8_decode(text + found->end, n - found->end, &cp) : 1;
        walk->any = true;
        walk->end = found->end;
        if (!again)
            return 1;
    }
    return 0;
}
