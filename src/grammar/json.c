/* JSON without a schema: what front ends share.
 *
 * Blanks are bounded (a space, or a new line with an indent), and so are numbers: a model that writes blanks or digits
 * without end would never come to an end of the text. */
#include "grammar/build.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define INDENT   24
#define DIGITS   18 /* of the whole part: what fits into 64 bits */
#define FRACTION 17
#define EXPONENT 2 /* so that no reader overflows */

/* Rules that are made once: `made` is where their number is kept. */
static bool unmade(tern_grammar *g, uint32_t *made)
{
    if (*made != UINT32_MAX)
        return false;
    *made = tern_gr_declare(g);
    return true;
}

struct tern_gr_frag tern_gr_json_blank(tern_grammar *g)
{
    if (unmade(g, &g->blank)) {
        struct tern_gr_set s = {{(uint64_t)1 << ' ' | (uint64_t)1 << '\t', 0, 0, 0}};
        struct tern_gr_frag line =
            tern_gr_then(g, tern_gr_text(g, "\n"), tern_gr_times(g, tern_gr_set(g, &s), 0, INDENT));
        tern_gr_define(g, g->blank, tern_gr_maybe(g, tern_gr_or(g, tern_gr_text(g, " "), line)));
    }
    return tern_gr_call(g, g->blank);
}

static struct tern_gr_frag digits(tern_grammar *g, uint32_t min, uint32_t max)
{
    return tern_gr_times(g, tern_gr_span(g, '0', '9'), min, max);
}

static struct tern_gr_frag hex(tern_grammar *g)
{
    struct tern_gr_set s = {
        {(uint64_t)0x3FF << '0', (uint64_t)0x3F << ('A' - 64) | (uint64_t)0x3F << ('a' - 64), 0, 0}};
    return tern_gr_set(g, &s);
}

/* \uXXXX of a character that is neither NUL nor half of a pair. */
static struct tern_gr_frag unicode_escape(tern_grammar *g)
{
    struct tern_gr_set rest = {
        {(uint64_t)0x3FE << '0', (uint64_t)0x37 << ('A' - 64) | (uint64_t)0x37 << ('a' - 64), 0, 0}}; /* no 0, no D */
    struct tern_gr_set d = {{0, (uint64_t)1 << ('D' - 64) | (uint64_t)1 << ('d' - 64), 0, 0}};
    struct tern_gr_set not0 = {
        {(uint64_t)0x3FE << '0', (uint64_t)0x3F << ('A' - 64) | (uint64_t)0x3F << ('a' - 64), 0, 0}};
    struct tern_gr_frag high = tern_gr_then(g, tern_gr_set(g, &rest), tern_gr_times(g, hex(g), 3, 3));
    struct tern_gr_frag hangul =
        tern_gr_then(g, tern_gr_set(g, &d), tern_gr_then(g, tern_gr_span(g, '0', '7'), tern_gr_times(g, hex(g), 2, 2)));
    struct tern_gr_frag tail = tern_gr_then(g, tern_gr_text(g, "00"), tern_gr_then(g, tern_gr_set(g, &not0), hex(g)));
    tail = tern_gr_or(g, tail, tern_gr_then(g, tern_gr_text(g, "000"), tern_gr_set(g, &not0)));
    struct tern_gr_frag low =
        tern_gr_then(g, tern_gr_text(g, "0"), tern_gr_then(g, tern_gr_set(g, &not0), tern_gr_times(g, hex(g), 2, 2)));
    return tern_gr_then(g, tern_gr_text(g, "\\u"),
                        tern_gr_or(g, tern_gr_or(g, high, hangul), tern_gr_or(g, low, tail)));
}

struct tern_gr_frag tern_gr_json_char(tern_grammar *g)
{
    if (unmade(g, &g->string_char)) {
        struct tern_gr_chars c = {0};
        struct tern_gr_frag escape = tern_gr_empty(g), letter = tern_gr_never(g);
        for (const char *p = "\"\\/bfnrt"; *p; p++)
            letter = tern_gr_or(g, letter, tern_gr_span(g, *p, *p));
        escape = tern_gr_then(g, escape, tern_gr_then(g, tern_gr_text(g, "\\"), letter));
        tern_gr_chars_add(g, &c, 0, 0x1F);
        tern_gr_chars_add(g, &c, '"', '"');
        tern_gr_chars_add(g, &c, '\\', '\\');
        if (g->dsml) /* its marks begin with it, and end JSON too; \uFF5C is left */
            tern_gr_chars_add(g, &c, TERN_GR_DSML_SIGN, TERN_GR_DSML_SIGN);
        tern_gr_chars_not(g, &c);
        struct tern_gr_frag plain = tern_gr_char(g, &c);
        tern_gr_chars_clear(&c);
        tern_gr_define(g, g->string_char, tern_gr_or(g, plain, tern_gr_or(g, escape, unicode_escape(g))));
    }
    return tern_gr_call(g, g->string_char);
}

struct tern_gr_frag tern_gr_json_string(tern_grammar *g)
{
    (void)tern_gr_json_char(g);
    struct tern_gr_frag chars = tern_gr_repeat(g, g->string_char, 0, TERN_GR_NO_END);
    return tern_gr_then(g, tern_gr_text(g, "\""), tern_gr_then(g, chars, tern_gr_text(g, "\"")));
}

struct tern_gr_frag tern_gr_json_number(tern_grammar *g)
{
    struct tern_gr_frag whole =
        tern_gr_or(g, tern_gr_text(g, "0"), tern_gr_then(g, tern_gr_span(g, '1', '9'), digits(g, 0, DIGITS - 1)));
    struct tern_gr_frag fraction = tern_gr_then(g, tern_gr_text(g, "."), digits(g, 1, FRACTION));
    struct tern_gr_set e = {{0, (uint64_t)1 << ('e' - 64) | (uint64_t)1 << ('E' - 64), 0, 0}};
    struct tern_gr_set signs = {{(uint64_t)1 << '+' | (uint64_t)1 << '-', 0, 0, 0}};
    struct tern_gr_frag exponent = tern_gr_then(
        g, tern_gr_set(g, &e), tern_gr_then(g, tern_gr_maybe(g, tern_gr_set(g, &signs)), digits(g, 1, EXPONENT)));
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_maybe(g, tern_gr_text(g, "-")), whole);
    return tern_gr_then(g, f, tern_gr_then(g, tern_gr_maybe(g, fraction), tern_gr_maybe(g, exponent)));
}

/* open item (, item)* close, or open close */
static struct tern_gr_frag list(tern_grammar *g, const char *open, uint32_t item, const char *close)
{
    struct tern_gr_frag more =
        tern_gr_then(g, tern_gr_text(g, ","), tern_gr_then(g, tern_gr_json_blank(g), tern_gr_call(g, item)));
    struct tern_gr_frag items = tern_gr_then(g, tern_gr_call(g, item), tern_gr_times(g, more, 0, TERN_GR_NO_END));
    items = tern_gr_maybe(g, tern_gr_then(g, items, tern_gr_json_blank(g)));
    items = tern_gr_then(g, tern_gr_json_blank(g), items);
    return tern_gr_then(g, tern_gr_text(g, open), tern_gr_then(g, items, tern_gr_text(g, close)));
}

static struct tern_gr_frag colon(tern_grammar *g)
{
    return tern_gr_then(g, tern_gr_text(g, ":"), tern_gr_json_blank(g));
}

struct tern_gr_frag tern_gr_json_object(tern_grammar *g)
{
    if (unmade(g, &g->any_object)) {
        struct tern_gr_frag pair =
            tern_gr_then(g, tern_gr_json_string(g), tern_gr_then(g, colon(g), tern_gr_json_value(g)));
        tern_gr_define(g, g->any_object, list(g, "{", tern_gr_rule(g, pair), "}"));
    }
    return tern_gr_call(g, g->any_object);
}

struct tern_gr_frag tern_gr_json_value(tern_grammar *g)
{
    if (unmade(g, &g->any_value)) {
        struct tern_gr_frag f = tern_gr_or(g, tern_gr_json_string(g), tern_gr_json_number(g));
        f = tern_gr_or(g, f, tern_gr_json_object(g));
        f = tern_gr_or(g, f, list(g, "[", g->any_value, "]"));
        f = tern_gr_or(g, f, tern_gr_or(g, tern_gr_text(g, "true"), tern_gr_text(g, "false")));
        tern_gr_define(g, g->any_value, tern_gr_or(g, f, tern_gr_text(g, "null")));
    }
    return tern_gr_call(g, g->any_value);
}

int tern_gr_json_write(struct tern_buf *b, const json_t *v, tern_error *err)
{
    for (size_t digits_of_real = 15; digits_of_real <= 17; digits_of_real++) {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits_of_real));
        if (!text)
            return tern_err_set(err, TERN_ENOMEM, "cannot allocate a JSON text");
        json_t *back = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        bool same = json_equal(back, v);
        json_decref(back);
        int rc = same || digits_of_real == 17 ? tern_buf_add(b, text, strlen(text), err) : 0;
        free(text);
        if (rc < 0 || same)
            return rc;
    }
    return 0;
}

struct tern_gr_frag tern_gr_json_exactly(tern_grammar *g, const json_t *v)
{
    struct tern_buf b = {0};
    if (g->rc == 0)
        g->rc = tern_gr_json_write(&b, v, &g->err);
    struct tern_gr_frag f = tern_gr_bytes(g, b.p ? b.p : "", b.len);
    tern_buf_clear(&b);
    return f;
}

/* ---- integers within bounds -------------------------------------------------------------------------------------- */

/* The digits behind the first `at` of those from lo to hi, which have `n` digits each.  low, high: all digits so far
 * were those of lo, of hi. */
static struct tern_gr_frag tail(tern_grammar *g, const char *lo, const char *hi, uint32_t at, uint32_t n, bool low,
                                bool high)
{
    if (at == n)
        return tern_gr_empty(g);
    if (!low && !high)
        return digits(g, n - at, n - at);
    int a = low ? lo[at] : '0', b = high ? hi[at] : '9';
    struct tern_gr_frag all = tern_gr_never(g);
    if (low && high && a == b)
        return tern_gr_then(g, tern_gr_span(g, a, a), tail(g, lo, hi, at + 1, n, true, true));
    if (low)
        all = tern_gr_or(g, all, tern_gr_then(g, tern_gr_span(g, a, a), tail(g, lo, hi, at + 1, n, true, false)));
    if (high)
        all = tern_gr_or(g, all, tern_gr_then(g, tern_gr_span(g, b, b), tail(g, lo, hi, at + 1, n, false, true)));
    a += low;
    b -= high;
    if (a <= b)
        all = tern_gr_or(g, all, tern_gr_then(g, tern_gr_span(g, a, b), tail(g, lo, hi, at + 1, n, false, false)));
    return all;
}

static struct tern_gr_frag natural(tern_grammar *g, uint64_t lo, uint64_t hi)
{
    struct tern_gr_frag all = tern_gr_never(g);
    for (uint32_t n = 1; n <= 20; n++) {
        uint64_t least = 1, most;
        for (uint32_t i = 1; i < n; i++)
            least *= 10;
        most = n == 20 ? UINT64_MAX : least * 10 - 1;
        least = n == 1 ? 0 : least;
        least = lo > least ? lo : least;
        most = hi < most ? hi : most;
        if (least > most)
            continue;
        char a[24], b[24];
        (void)snprintf(a, sizeof a, "%llu", (unsigned long long)least);
        (void)snprintf(b, sizeof b, "%llu", (unsigned long long)most);
        all = tern_gr_or(g, all, tail(g, a, b, 0, n, true, true));
    }
    return all;
}

static struct tern_gr_frag integers(tern_grammar *g, int64_t lo, int64_t hi)
{
    struct tern_gr_frag all = tern_gr_never(g);
    if (lo < 0) {
        uint64_t most = (uint64_t)0 - (uint64_t)lo, least = hi < 0 ? (uint64_t)0 - (uint64_t)hi : 1;
        all = tern_gr_or(g, all, tern_gr_then(g, tern_gr_text(g, "-"), natural(g, least, most)));
    }
    if (hi >= 0)
        all = tern_gr_or(g, all, natural(g, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi));
    return all;
}

/* Some have thousands of states, and schemas name the same bounds, or none, again and again. */
struct tern_gr_frag tern_gr_integers(tern_grammar *g, int64_t lo, int64_t hi)
{
    for (size_t i = 0; i < g->n_wholes; i++)
        if (g->wholes[i].lo == lo && g->wholes[i].hi == hi)
            return tern_gr_call(g, g->wholes[i].rule);
    uint32_t rule = tern_gr_rule(g, integers(g, lo, hi));
    if (g->rc == 0)
        g->rc = tern_grow(&g->wholes, &g->cap_wholes, g->n_wholes + 1, sizeof *g->wholes, &g->err);
    if (g->rc == 0)
        g->wholes[g->n_wholes++] = (struct tern_gr_whole){lo, hi, rule};
    return tern_gr_call(g, rule);
}
