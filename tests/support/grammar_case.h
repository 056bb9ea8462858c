/* support/grammar_case.h - a small vocabulary, texts sampled from a grammar with it, random JSON schemas, and a
 * validator of JSON schemas that knows nothing of grammars. */
#ifndef GRAMMAR_CASE_H
#define GRAMMAR_CASE_H

#include <jansson.h>
#include "base/buf.h"
#include "base/rng.h"
#include "grammar/grammar.h"

/* ---- vocabulary: all bytes, some longer tokens, control tokens
 * ------------------------------------------------------- */

static const char *const case_words[] = {"the",  "then",  " the", "ory",       "aa",       "aaaa", "aaaaaaaaaaaaaaaa",
                                         "ab",   "abab",  "\":",  "\": ",      "\",",      "\"}",  "{\"",
                                         "\"}]", "[[",    "]]",   "}}",        ", \"",     ",\n",  "\n  ",
                                         "true", "false", "null", "12",        "345",      "-1",   "0.",
                                         "é",    "日",    "本",   "日本",      "\xE6\x97", "\xA5", "x\"",
                                         "\\n",  "\\u00", "name", "\"name\":", "\"n\": [", "99",   "1999",
                                         "b\"",  "><",    "<a"};
enum {
    CASE_WORDS = sizeof case_words / sizeof *case_words,
    CASE_END = 256 + CASE_WORDS,
    CASE_THINK,
    CASE_UNTHINK,
    CASE_OTHER,
    CASE_VOCAB
};

struct grammar_case {
    struct tern_gr_vocab *vocab;
};

static int case_token(void *user, int32_t id, struct tern_gr_token *out, tern_error *err)
{
    static _Thread_local char byte;
    (void)user;
    (void)err;
    byte = (char)id;
    *out = (struct tern_gr_token){0};
    if (id < CASE_END) {
        out->p = id < 256 ? &byte : case_words[id - 256];
        out->n = id < 256 ? 1 : strlen(out->p);
        return 0;
    }
    out->ends = id == CASE_END;
    out->control = id == CASE_END       ? "<end>"
                   : id == CASE_THINK   ? "<think>"
                   : id == CASE_UNTHINK ? "</think>"
                                        : "<other>";
    return 0;
}

static void grammar_case_open(struct grammar_case *c)
{
    assert_int_equal(tern_gr_vocab_new(&c->vocab, CASE_VOCAB, case_token, NULL, NULL), 0);
}

static void grammar_case_close(struct grammar_case *c)
{
    tern_gr_vocab_free(c->vocab);
}

static bool in_mask(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

static bool allowed(const struct grammar_case *c, struct tern_gr_matcher *m, int32_t id)
{
    uint32_t mask[CASE_VOCAB / 32 + 1] = {0};
    (void)c;
    assert_int_equal(tern_gr_mask(m, mask, NULL), 0);
    return in_mask(mask, id);
}

/* The slow twin: each token's bytes by themselves. */
static void check_mask(const struct tern_gr_matcher *m, const uint32_t *mask)
{
    for (int32_t id = 0; id < CASE_VOCAB; id++) {
        struct tern_gr_token t;
        struct tern_gr_matcher *copy;
        bool alive = false;
        (void)case_token(NULL, id, &t, NULL);
        assert_int_equal(tern_gr_matcher_copy(&copy, m, NULL), 0);
        if (!t.control)
            assert_int_equal(tern_gr_push(copy, t.p, t.n, &alive, NULL), 0);
        else
            alive = t.ends && tern_gr_complete(m);
        if (alive != in_mask(mask, id))
            fail_msg("token %d \"%.*s\": mask %d, by itself %d", id, (int)t.n, t.p, in_mask(mask, id), alive);
        tern_gr_matcher_free(copy);
    }
}

/* A text of g, tokens at random; after some, those that lead to an end soonest.  slow: every mask is checked. */
static void sample_text(const struct grammar_case *c, const tern_grammar *g, struct tern_rng *r, bool slow,
                        struct tern_buf *out)
{
    static const char closers[] = "\"}]>:ntf,0123456789-Tabcdefghijklmnopqrstuvwxyz.@Z{[<\\ ";
    struct tern_gr_matcher *m;
    tern_error err = {0};
    assert_int_equal(tern_gr_matcher_new(&m, g, c->vocab, &err), 0);
    for (int step = 0; step < 4000; step++) {
        uint32_t mask[CASE_VOCAB / 32 + 1] = {0};
        int32_t list[CASE_VOCAB], n = 0, id = -1;
        if (tern_gr_mask(m, mask, &err) < 0)
            fail_msg("%s", err.msg);
        if (slow && (step < 60 || step % 32 == 0))
            check_mask(m, mask);
        for (int32_t i = 0; i < CASE_VOCAB; i++)
            if (in_mask(mask, i))
                list[n++] = i;
        if (n == 0)
            fail_msg("no token is allowed behind %s", out->p);
        id = list[tern_rng_u64(r) % (uint64_t)n];
        if (step > 60 && in_mask(mask, CASE_END))
            id = CASE_END;
        for (const char *p = closers; step > 60 && id != CASE_END && *p; p++)
            if (in_mask(mask, *p)) {
                id = *p;
                break;
            }
        if (tern_gr_take(m, id, &err) < 0)
            fail_msg("%s", err.msg);
        if (id == CASE_END)
            break;
        struct tern_gr_token t;
        (void)case_token(NULL, id, &t, NULL);
        assert_int_equal(tern_buf_add(out, t.p, t.n, NULL), 0);
    }
    if (!tern_gr_complete(m))
        fail_msg("no end: %s", out->p);
    tern_gr_matcher_free(m);
}

/* ---- schemas
 * --------------------------------------------------------------------------------------------------------- */

static int below(struct tern_rng *r, int n)
{
    return (int)(tern_rng_u64(r) % (uint64_t)n);
}

static json_t *random_schema(struct tern_rng *r, int depth);

static json_t *random_object(struct tern_rng *r, int depth)
{
    static const char *const names[] = {"name", "n", "a b", "é", "quote\"d", "nam", ""};
    json_t *properties = json_object(), *required = json_array();
    for (int i = 0; i < 7; i++) {
        if (below(r, 3))
            continue;
        json_object_set_new(properties, names[i], random_schema(r, depth - 1));
        if (below(r, 2))
            json_array_append_new(required, json_string(names[i]));
    }
    json_t *v = json_pack("{ss so so}", "type", "object", "properties", properties, "required", required);
    int more = below(r, 4);
    if (more < 2)
        json_object_set_new(v, "additionalProperties", json_boolean(more));
    else if (more == 2)
        json_object_set_new(v, "additionalProperties", random_schema(r, 0));
    return v;
}

static json_t *random_array(struct tern_rng *r, int depth)
{
    json_t *v = json_pack("{ss so}", "type", "array", "items", random_schema(r, depth - 1));
    int min = below(r, 3);
    if (below(r, 2))
        json_object_set_new(v, "minItems", json_integer(min));
    if (below(r, 2))
        json_object_set_new(v, "maxItems", json_integer(min + below(r, 3)));
    if (below(r, 4) == 0)
        json_object_set_new(v, "prefixItems", json_pack("[oo]", random_schema(r, 0), random_schema(r, 0)));
    return v;
}

static json_t *random_string(struct tern_rng *r)
{
    static const char *const patterns[] = {"^[a-z]{2,5}$", "[0-9}]{2}", "^(ab|\"q\")*$", "[é}]$"};
    static const char *const formats[] = {"date", "date-time", "uuid", "ipv4"};
    json_t *v = json_pack("{ss}", "type", "string");
    int min = below(r, 6), kind = below(r, 5);
    if (kind == 0)
        json_object_set_new(v, "pattern", json_string(patterns[below(r, 4)]));
    else if (kind == 1)
        json_object_set_new(v, "format", json_string(formats[below(r, 4)]));
    else if (kind < 4)
        json_object_update_new(v, json_pack("{si si}", "minLength", min, "maxLength", min + below(r, 40)));
    return v;
}

static json_t *random_schema(struct tern_rng *r, int depth)
{
    static const char *const bounds[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    json_t *v;
    switch (below(r, depth > 0 ? 11 : 6)) {
    case 0:
        return random_string(r);
    case 1:
    case 2:
        v = json_pack("{ss}", "type", below(r, 2) ? "integer" : "number");
        if (below(r, 2))
            json_object_set_new(v, bounds[below(r, 2)], json_integer(below(r, 300) - 200));
        if (below(r, 2))
            json_object_set_new(v, bounds[2 + below(r, 2)], json_integer(120 + below(r, 3000)));
        return v;
    case 3:
        return json_pack("{s[ss]}", "type", "boolean", "null");
    case 4:
        return json_pack("{s[sifn{s[b]}]}", "enum", "one", 2, 2.5, "k", 1);
    case 5:
        return json_pack("{s{ss}}", "const", "a\"b", "é\\");
    case 6:
    case 7:
        return random_object(r, depth);
    case 8:
        return random_array(r, depth);
    case 9:
        return json_pack("{s[oo]}", "anyOf", random_schema(r, depth - 1), random_schema(r, depth - 1));
    default:
        return json_pack("{ss s{so s{s[{ss}{ss}]}} s[s]}", "type", "object", "properties", "v",
                         random_schema(r, depth - 1), "next", "anyOf", "type", "null", "type", "boolean", "required",
                         "v");
    }
}

/* ---- the validator
 * --------------------------------------------------------------------------------------------------- */

static bool valid(const json_t *root, const json_t *s, const json_t *v);

static size_t characters(const char *p)
{
    size_t n = 0;
    for (; *p; p++)
        n += ((unsigned char)*p & 0xC0) != 0x80;
    return n;
}

static bool matches(const char *pattern, const char *text)
{
    int code;
    size_t where;
    pcre2_code *p = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code,
                                  &where, NULL);
    assert_non_null(p);
    pcre2_match_data *d = pcre2_match_data_create(16, NULL);
    bool ok = pcre2_match(p, (PCRE2_SPTR)text, strlen(text), 0, 0, d, NULL) >= 0;
    pcre2_match_data_free(d);
    pcre2_code_free(p);
    return ok;
}

static bool valid_type(const char *t, const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "object", [JSON_ARRAY] = "array",  [JSON_STRING] = "string", [JSON_INTEGER] = "integer",
        [JSON_REAL] = "number",   [JSON_TRUE] = "boolean", [JSON_FALSE] = "boolean", [JSON_NULL] = "null"};
    return strcmp(names[json_typeof(v)], t) == 0 || (json_is_integer(v) && strcmp(t, "number") == 0);
}

static bool valid_string(const json_t *s, const char *text)
{
    static const char *const formats[][2] = {
        {"date", "^\\d{4}-\\d\\d-\\d\\d$"},
        {"date-time", "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"ipv4", "^\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}$"}};
    const json_t *min = json_object_get(s, "minLength"), *max = json_object_get(s, "maxLength");
    const char *pattern = json_string_value(json_object_get(s, "pattern")),
               *format = json_string_value(json_object_get(s, "format"));
    for (size_t i = 0; format && i < 4; i++)
        if (strcmp(formats[i][0], format) == 0 && !matches(formats[i][1], text))
            return false;
    return (!min || characters(text) >= (size_t)json_integer_value(min)) &&
           (!max || characters(text) <= (size_t)json_integer_value(max)) && (!pattern || matches(pattern, text));
}

static bool valid_number(const json_t *s, double x)
{
    const json_t *a = json_object_get(s, "minimum"), *b = json_object_get(s, "exclusiveMinimum"),
                 *c = json_object_get(s, "maximum"), *d = json_object_get(s, "exclusiveMaximum");
    return (!a || x >= json_number_value(a)) && (!b || x > json_number_value(b)) && (!c || x <= json_number_value(c)) &&
           (!d || x < json_number_value(d));
}

static bool valid_object(const json_t *root, const json_t *s, const json_t *v)
{
    const json_t *properties = json_object_get(s, "properties"), *rest = json_object_get(s, "additionalProperties");
    const char *key;
    json_t *x;
    size_t i;
    json_array_foreach(json_object_get(s, "required"), i, x)
    {
        if (!json_object_get(v, json_string_value(x)))
            return false;
    }
    json_object_foreach((json_t *)v, key, x)
    {
        const json_t *own = json_object_get(properties, key);
        if ((own || rest) && !valid(root, own ? own : rest, x))
            return false;
    }
    return true;
}

static bool valid_array(const json_t *root, const json_t *s, const json_t *v)
{
    const json_t *first = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items"),
                 *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems");
    size_t i;
    json_t *x;
    json_array_foreach(v, i, x)
    {
        const json_t *own = i < json_array_size(first) ? json_array_get(first, i) : items;
        if (own && !valid(root, own, x))
            return false;
    }
    return (!min || json_array_size(v) >= (size_t)json_integer_value(min)) &&
           (!max || json_array_size(v) <= (size_t)json_integer_value(max));
}

static bool valid(const json_t *root, const json_t *s, const json_t *v)
{
    const json_t *type = json_object_get(s, "type"), *list = json_object_get(s, "enum"),
                 *any = json_object_get(s, "anyOf"), *one = json_object_get(s, "const");
    bool ok = !type && !list && !any;
    size_t i;
    json_t *x;
    if (json_is_boolean(s))
        return json_is_true(s);
    if (json_is_string(type))
        ok = valid_type(json_string_value(type), v);
    json_array_foreach(type, i, x) ok = ok || valid_type(json_string_value(x), v);
    json_array_foreach(list, i, x) ok = ok || json_equal(x, v);
    json_array_foreach(any, i, x) ok = ok || valid(root, x, v);
    if (one && !json_equal(one, v))
        return false;
    return ok && (!json_is_string(v) || valid_string(s, json_string_value(v))) &&
           (!json_is_number(v) || valid_number(s, json_number_value(v))) &&
           (!json_is_object(v) || valid_object(root, s, v)) && (!json_is_array(v) || valid_array(root, s, v));
}

#endif
