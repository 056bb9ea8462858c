/* Texts, numbers and lists of a JSON schema. */
#include <math.h>
#include <string.h>
#include "grammar/schema.h"

/* ---- texts ------------------------------------------------------------------------------------------------------- */

#define DATE \
    "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8])))"
#define TIME  "(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d))"
#define BYTE  "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)"

/* Texts of a format, not always all of them: no 29th of February, no short forms of IPv6. */
static const char *const formats[][2] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"email", "^[a-zA-Z0-9_+-]{1,32}(\\.[a-zA-Z0-9_+-]{1,31}){0,1}@" LABEL "(\\." LABEL "){1,3}$"},
    {"uri", "^https?://" LABEL "(\\." LABEL "){0,3}(:[1-9]\\d{0,3})?(/[a-zA-Z0-9._~-]{0,64}){0,16}"
            "(\\?[a-zA-Z0-9._~=&-]{0,256})?(#[a-zA-Z0-9._~-]{0,64})?$"},
};

static struct tern_gr_frag quoted(tern_grammar *g, struct tern_gr_frag f)
{
    return tern_gr_then(g, tern_gr_text(g, "\""), tern_gr_then(g, f, tern_gr_text(g, "\"")));
}

const char *tern_schema_format(const char *name)
{
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i][0], name) == 0)
            return formats[i][1];
    return NULL;
}

static struct tern_gr_frag formatted(struct schema *s, const json_t *format)
{
    const char *name = json_string_value(format), *pattern = tern_schema_format(name);
    if (pattern)
        return quoted(s->g, tern_gr_regex(s->g, pattern, strlen(pattern), true));
    return tern_schema_refuse(s, TERN_EUNSUPPORTED, "the format \"%.40s\" is not supported", name ? name : "");
}

struct tern_gr_frag tern_schema_string(struct schema *s, const json_t *v)
{
    const json_t *pattern = json_object_get(v, "pattern"), *format = json_object_get(v, "format");
    uint32_t min = tern_schema_count(s, v, "minLength", 0), max = tern_schema_count(s, v, "maxLength", TERN_GR_NO_END);
    bool lengths = json_object_get(v, "minLength") || json_object_get(v, "maxLength");
    if ((pattern != NULL) + (format != NULL) + lengths > 1)
        return tern_schema_refuse(s, TERN_EUNSUPPORTED,
                                  "of pattern, format and lengths of a text only one is supported at a time");
    if (max < min)
        return tern_gr_never(s->g);
    if (format)
        return formatted(s, format);
    if (!pattern) {
        (void)tern_gr_json_char(s->g);
        return quoted(s->g, tern_gr_repeat(s->g, s->g->string_char, min, max));
    }
    if (!json_is_string(pattern))
        return tern_schema_refuse(s, TERN_EINVAL, "pattern must be a text");
    struct tern_gr_frag f = tern_gr_regex(s->g, json_string_value(pattern), json_string_length(pattern), true);
    return quoted(s->g, f);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

#define MOST   ((int64_t)999999999999999999)
#define TWO_63 9223372036854775808.0

struct bounds {
    int64_t lo, hi;            /* whole; of integers both are included */
    bool beyond_lo, beyond_hi; /* of other numbers: the bound itself is not */
    bool none;                 /* nothing lies between them */
};

/* A bound as a whole number, rounded up or down; *whole: it was one. */
static int64_t round_bound(const json_t *x, bool up, bool *whole)
{
    double d = json_number_value(x);
    *whole = json_is_integer(x) || d == floor(d);
    if (json_is_integer(x))
        return (int64_t)json_integer_value(x);
    d = up ? ceil(d) : floor(d);
    return d < -TWO_63 ? INT64_MIN : d >= TWO_63 ? INT64_MAX : (int64_t)d;
}

/* A bound that all numbers that are written violate, or whose neighbours, which other numbers need, have no place. */
static bool too_far(const json_t *x, int64_t i, bool low, bool integer)
{
    double d = json_number_value(x);
    if (json_is_real(x) && (low ? d >= TWO_63 : d < -TWO_63))
        return true;
    return !integer && (low ? i == INT64_MAX : i <= -INT64_MAX);
}

static void read_bound(struct schema *s, const json_t *v, const char *keyword, bool integer, struct bounds *b)
{
    const json_t *x = json_object_get(v, keyword);
    bool excluded = keyword[0] == 'e',
         low = strcmp(keyword, "minimum") == 0 || strcmp(keyword, "exclusiveMinimum") == 0;
    bool whole;
    if (!x)
        return;
    if (!json_is_number(x)) {
        (void)tern_schema_refuse(s, TERN_EINVAL, "%s must be a number", keyword);
        return;
    }
    int64_t i = round_bound(x, low, &whole);
    if (!integer && !whole) {
        (void)tern_schema_refuse(s, TERN_EUNSUPPORTED, "%s that is not whole is supported for integers only", keyword);
        return;
    }
    if (too_far(x, i, low, integer)) {
        (void)tern_schema_refuse(s, TERN_EUNSUPPORTED, "%s is farther from 0 than 64 bits hold", keyword);
        return;
    }
    if (integer && excluded && whole) {
        if (i == (low ? INT64_MAX : INT64_MIN))
            b->none = true;
        else
            i += low ? 1 : -1;
    }
    if (low && i >= b->lo) {
        b->beyond_lo = excluded || (i == b->lo && b->beyond_lo);
        b->lo = i;
    } else if (!low && i <= b->hi) {
        b->beyond_hi = excluded || (i == b->hi && b->beyond_hi);
        b->hi = i;
    }
}

/* Numbers from lo to hi, 0 <= lo, without a sign. */
static struct tern_gr_frag between(tern_grammar *g, int64_t lo, bool beyond_lo, int64_t hi, bool beyond_hi)
{
    int64_t first = lo + beyond_lo, last = hi - beyond_hi;
    struct tern_gr_frag all = tern_gr_never(g), digits;
    if (first <= last)
        all = tern_gr_integers(g, first, last);
    if (first <= hi - 1) {
        digits = tern_gr_times(g, tern_gr_span(g, '0', '9'), 1, 15);
        all = tern_gr_or(
            g, all, tern_gr_then(g, tern_gr_integers(g, first, hi - 1), tern_gr_then(g, tern_gr_text(g, "."), digits)));
    }
    if (beyond_lo && lo <= hi - 1) {
        digits = tern_gr_times(g, tern_gr_span(g, '0', '9'), 0, 14);
        digits = tern_gr_then(g, tern_gr_text(g, "."), tern_gr_then(g, digits, tern_gr_span(g, '1', '9')));
        all = tern_gr_or(g, all, tern_gr_then(g, tern_gr_integers(g, lo, lo), digits));
    }
    return all;
}

struct tern_gr_frag tern_schema_number(struct schema *s, const json_t *v, bool integer)
{
    static const char *const keywords[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    struct bounds b = {.lo = INT64_MIN, .hi = INT64_MAX};
    struct tern_gr_frag all = tern_gr_never(s->g);
    bool bounded = false;
    for (size_t i = 0; i < 4; i++) {
        bounded = bounded || json_object_get(v, keywords[i]);
        read_bound(s, v, keywords[i], integer, &b);
    }
    if (tern_gr_failed(s->g) || b.none)
        return all;
    /* More digits are written only where a bound leaves no others. */
    if (b.hi > MOST && b.lo <= MOST) {
        b.hi = MOST;
        b.beyond_hi = false;
    }
    if (b.lo < -MOST && b.hi >= -MOST) {
        b.lo = -MOST;
        b.beyond_lo = false;
    }
    if (!bounded)
        return integer ? tern_gr_integers(s->g, -MOST, MOST) : tern_gr_json_number(s->g);
    if (integer)
        return b.lo <= b.hi ? tern_gr_integers(s->g, b.lo, b.hi) : all;
    if (b.hi > 0 || (b.hi == 0 && !b.beyond_hi && b.lo <= 0 && !(b.lo == 0 && b.beyond_lo)))
        all = tern_gr_or(s->g, all, between(s->g, b.lo > 0 ? b.lo : 0, b.lo >= 0 && b.beyond_lo, b.hi, b.beyond_hi));
    if (b.lo < 0 && b.lo <= b.hi) {
        bool zero = b.hi >= 0; /* there is no -0 */
        int64_t least = zero ? 0 : -b.hi, most = b.lo == INT64_MIN ? INT64_MAX : -b.lo;
        struct tern_gr_frag f = between(s->g, least, zero || b.beyond_hi, most, b.beyond_lo);
        all = tern_gr_or(s->g, all, tern_gr_then(s->g, tern_gr_text(s->g, "-"), f));
    }
    return all;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* `, item` */
static struct tern_gr_frag next_item(tern_grammar *g, uint32_t item)
{
    return tern_gr_then(g, tern_gr_text(g, ","), tern_gr_then(g, tern_gr_json_blank(g), tern_gr_call(g, item)));
}

struct tern_gr_frag tern_schema_array(struct schema *s, const json_t *v)
{
    tern_grammar *g = s->g;
    json_t *first = json_object_get(v, "prefixItems"), *items = json_object_get(v, "items"), *x;
    uint32_t min = tern_schema_count(s, v, "minItems", 0), max = tern_schema_count(s, v, "maxItems", TERN_GR_NO_END);
    uint32_t n = (uint32_t)json_array_size(first);
    size_t i;
    if (first && !json_is_array(first))
        return tern_schema_refuse(s, TERN_EINVAL, "prefixItems must be a list of schemas");
    if (json_is_array(items))
        return tern_schema_refuse(s, TERN_EUNSUPPORTED, "items as a list is not supported, it is prefixItems today");
    if (json_is_false(items) && max > n)
        max = n;
    if (max < min || tern_gr_failed(g))
        return tern_gr_never(g);
    /* What comes behind the first n, from the end on; `all` is what may stand between the brackets. */
    struct tern_gr_frag all = tern_gr_empty(g);
    if (max > n) {
        uint32_t item = tern_gr_rule(g, items ? tern_schema_below(s, items, "items") : tern_gr_json_value(g));
        uint32_t least = min > n ? min - n : 0, most = max == TERN_GR_NO_END ? max : max - n;
        if (n > 0) {
            all = tern_gr_times(g, next_item(g, item), least, most);
        } else {
            most = most == TERN_GR_NO_END ? most : most - 1;
            all = tern_gr_times(g, next_item(g, item), least ? least - 1 : 0, most);
            all = tern_gr_then(g, tern_gr_call(g, item), all);
            all = min == 0 ? tern_gr_maybe(g, all) : all;
        }
    }
    for (i = n; i-- > 0;) {
        char name[40];
        (void)snprintf(name, sizeof name, "prefixItems/%zu", i);
        x = json_array_get(first, i);
        if (i >= max)
            continue;
        uint32_t item = tern_gr_rule(g, tern_schema_below(s, x, name));
        all = tern_gr_then(g, i ? next_item(g, item) : tern_gr_call(g, item), all);
        all = i >= min ? tern_gr_maybe(g, all) : all;
    }
    all = tern_gr_then(g, tern_gr_json_blank(g), tern_gr_then(g, all, tern_gr_json_blank(g)));
    return tern_gr_then(g, tern_gr_text(g, "["), tern_gr_then(g, all, tern_gr_text(g, "]")));
}
