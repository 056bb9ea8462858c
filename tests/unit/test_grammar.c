/* Grammars: each notation by tables and against something independent; masks against their slow twin; limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar_case.h"

static tern_grammar *compile(enum tern_gr_kind kind, const char *text)
{
    tern_grammar *g;
    tern_error err = {0};
    if (tern_gr_compile(&g, kind, text, strlen(text), NULL, NULL, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return g;
}

static tern_grammar_fit fit_of(const tern_grammar *g, const char *text)
{
    tern_grammar_fit fit;
    tern_error err = {0};
    if (tern_grammar_check(g, text, strlen(text), &fit, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return fit;
}

/* yes and no: texts, ended by NULL. */
static void table(enum tern_gr_kind kind, const char *rule, const char *const *yes, const char *const *no)
{
    tern_grammar *g = compile(kind, rule);
    for (; *yes; yes++)
        if (fit_of(g, *yes) != TERN_GRAMMAR_WHOLE)
            fail_msg("%s refuses %s", rule, *yes);
    for (; *no; no++)
        if (fit_of(g, *no) == TERN_GRAMMAR_WHOLE)
            fail_msg("%s accepts %s", rule, *no);
    tern_grammar_free(g);
}
#define L(...) ((const char *const[]){__VA_ARGS__, NULL})

static void refused(enum tern_gr_kind kind, const char *text, size_t n, int code, const char *words)
{
    tern_grammar *g = NULL;
    tern_error err = {0};
    double start = tern_now();
    int rc = tern_gr_compile(&g, kind, text, n, NULL, NULL, &err);
    if (rc >= 0)
        fail_msg("%.80s is not refused", text);
    if (rc != code || !strstr(err.msg, words))
        fail_msg("%.80s: %d, %s (expected %d, %s)", text, rc, err.msg, code, words);
    assert_null(g);
    assert_null(strchr(err.msg, '\n'));
    assert_true(tern_now() - start < 30); /* under sanitizers, on a loaded machine */
}
#define REFUSED(kind, text, code, words) refused(kind, text, strlen(text), code, words)

/* ---- regular expressions ----------------------------------------------------------------------------------------- */

static void test_regex(void **state)
{
    (void)state;
    const enum tern_gr_kind k = TERN_GR_REGEX;
    table(k, "a(b|c)*d{2,3}",
          L("add",
            "abcbd"
            "d",
            "addd"),
          L("ad", "adddd", "", "abb"));
    table(k, "^x?$", L("", "x"), L("xx"));
    table(k, "^a|b$", L("a", "b"), L("ab", "c"));
    table(k, "[^a-c\\d]+?", L("x", "-é", "日本"), L("a", "x1", ""));
    table(k, "\\w\\s\\S\\W", L("a b-", "_\t\\!"), L("a bb", "aab-"));
    table(k, "\\x41\\u00e9\\u{1F600}\\n\\.", L("Aé😀\n."), L("Aé😀\nx"));
    table(k, ".{2}", L("é日", "ab"), L("a\n", "a", "abc"));
    table(k, "(?:a|(?<n>b)){2}", L("ab", "bb"), L("a"));
    table(k, "a{0}b", L("b"), L("ab"));
    table(k, "(a*)*b|((c?)+)+", L("b", "aaab", "", "ccc"),
          L("bc", "aab"
                  "b"));
    table(k, "(a?){3}", L("", "a", "aaa"), L("aaaa"));
}

/* A large count costs neither states nor time before it is followed. */
static void test_large_counts(void **state)
{
    (void)state;
    enum { N = 99999 };
    tern_grammar *g = compile(TERN_GR_REGEX, "(ab?){99999}");
    char *text = malloc(N + 2);
    tern_error err = {0};
    tern_grammar_fit fit;
    memset(text, 'a', N + 1);
    assert_int_equal(tern_grammar_check(g, text, N - 1, &fit, &err), 0);
    assert_int_equal(fit, TERN_GRAMMAR_BEGIN);
    assert_int_equal(tern_grammar_check(g, text, N, &fit, &err), 0);
    assert_int_equal(fit, TERN_GRAMMAR_WHOLE);
    assert_int_equal(tern_grammar_check(g, text, N + 1, &fit, &err), 0);
    assert_int_equal(fit, TERN_GRAMMAR_NOT);
    free(text);
    tern_grammar_free(g);
}

static void test_regex_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        int code;
        const char *words;
    } rows[] = {
        {"", TERN_EINVAL, "empty"},
        {"^+", TERN_EINVAL, "nothing to repeat"},
        {"*a", TERN_EINVAL, "nothing to repeat"},
        {"{2}", TERN_EINVAL, "nothing to repeat"},
        {"a**", TERN_EINVAL, "nothing to repeat"},
        {"(|+)", TERN_EINVAL, "nothing to repeat"},
        {"a{3,2}", TERN_EINVAL, "upside down"},
        {"a{,2}", TERN_EINVAL, "brace"},
        {"a{2", TERN_EINVAL, "count"},
        {"a{2000000}", TERN_ELIMIT, "1000000"},
        {"a{99999999999999999999}", TERN_ELIMIT, "1000000"},
        {"(?=x)", TERN_EUNSUPPORTED, "looking ahead"},
        {"(?!x)", TERN_EUNSUPPORTED, "looking ahead"},
        {"(?<=x)", TERN_EUNSUPPORTED, "behind"},
        {"(?<!x)", TERN_EUNSUPPORTED, "behind"},
        {"(a)\\1", TERN_EUNSUPPORTED, "references"},
        {"\\bx", TERN_EUNSUPPORTED, "borders"},
        {"\\p{L}", TERN_EUNSUPPORTED, "properties"},
        {"\\q", TERN_EUNSUPPORTED, "escape"},
        {"(?i)a", TERN_EUNSUPPORTED, "group"},
        {"a++", TERN_EUNSUPPORTED, "possessive"},
        {"a^b", TERN_EUNSUPPORTED, "^ and $"},
        {"(a$)b", TERN_EUNSUPPORTED, "^ and $"},
        {"a$b", TERN_EUNSUPPORTED, "^ and $"},
        {"(a", TERN_EINVAL, "bracket"},
        {"a)", TERN_EINVAL, "bracket"},
        {"[a", TERN_EINVAL, "bracket"},
        {"[]", TERN_EUNSUPPORTED, "empty class"},
        {"[b-a]", TERN_EINVAL, "upside down"},
        {"[[:alpha:]]", TERN_EUNSUPPORTED, "names of classes"},
        {"a\\", TERN_EINVAL, "backslash"},
        {"\\x4", TERN_EINVAL, "hex"},
        {"\\u{110000}", TERN_EINVAL, "hex"},
        {"\xC3", TERN_EINVAL, "UTF-8"},
        {"[^\\s\\S]", TERN_EINVAL, "no text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        REFUSED(TERN_GR_REGEX, rows[i].pattern, rows[i].code, rows[i].words);
    char *deep = malloc(100001);
    memset(deep, '(', 100000);
    deep[100000] = 0;
    REFUSED(TERN_GR_REGEX, deep, TERN_ELIMIT, "64");
    free(deep);
}

/* A random pattern over a, b and c. */
static void random_pattern(struct tern_rng *r, char *out, int depth)
{
    static const char *const atoms[] = {"a", "b", "c", "[ab]", "[^a]", "."};
    static const char *const counts[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"};
    int n = 1 + (int)(tern_rng_u64(r) % 3);
    for (int i = 0; i < n; i++) {
        if (depth > 0 && tern_rng_u64(r) % 3 == 0) {
            strcat(out, "(");
            random_pattern(r, out, depth - 1);
            if (tern_rng_u64(r) % 2) {
                strcat(out, "|");
                random_pattern(r, out, depth - 1);
            }
            strcat(out, ")");
        } else {
            strcat(out, atoms[tern_rng_u64(r) % 6]);
        }
        if (tern_rng_u64(r) % 3 == 0)
            strcat(out, counts[tern_rng_u64(r) % 7]);
    }
}

/* Every text of up to six letters: what PCRE2 says of it. */
static void test_regex_like_pcre(void **state)
{
    (void)state;
    struct tern_rng r = {11};
    for (int i = 0; i < 60; i++) {
        char pattern[4096] = "", whole[4200];
        int code;
        size_t where;
        random_pattern(&r, pattern, 2);
        (void)snprintf(whole, sizeof whole, "\\A(?:%s)\\z", pattern);
        pcre2_code *p = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, 0, &code, &where, NULL);
        assert_non_null(p);
        pcre2_match_data *d = pcre2_match_data_create(4, NULL);
        tern_grammar *g = compile(TERN_GR_REGEX, pattern);
        for (int k = 0; k < 400; k++) {
            char text[8];
            size_t n = tern_rng_u64(&r) % 7;
            for (size_t j = 0; j < n; j++)
                text[j] = (char)('a' + tern_rng_u64(&r) % 3);
            text[n] = 0;
            bool fits = pcre2_match(p, (PCRE2_SPTR)text, n, 0, 0, d, NULL) >= 0;
            if ((fit_of(g, text) == TERN_GRAMMAR_WHOLE) != fits)
                fail_msg("pattern %s, text \"%s\": PCRE2 says %d", pattern, text, fits);
        }
        tern_grammar_free(g);
        pcre2_match_data_free(d);
        pcre2_code_free(p);
    }
}

/* ---- GBNF -------------------------------------------------------------------------------------------------------- */

static void test_gbnf(void **state)
{
    (void)state;
    const enum tern_gr_kind k = TERN_GR_GBNF;
    table(k, "# lists\nroot ::= \"- \" item+ # and more\nitem ::= [^\\n]+ \"\\n\" (\"- \" | \"\")\n",
          L("- a\n", "- a\n- b\n"), L("- a", "a\n"));
    table(k, "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]{1,3} | \"(\" expr \")\"",
          L("1+(2+345)", "(((1)))"), L("1+", "(1", "1234"));
    table(k, "root ::=\n  a |\n  (\"x\"\n   \"y\")\na ::= \"\\\"\" . [\\]\\-\\^] \"\\u00e9\\x41\"\n",
          L("xy", "\"日-éA", "\"z]éA"), L("x", "\"zzéA"));
    table(k, "root ::= (\"a\" | b)* \nb ::= \"b\"? ", L("", "abab"), L("c"));
    table(k, "root ::= \"a\" root | \"\"", L("", "aaa"), L("b"));
    table(k, "root ::= r{2,} [a-]{0,1}\nr ::= \"r\"", L("rr", "rrr-", "rra"), L("r", "rr--"));
}

static void test_gbnf_refused(void **state)
{
    (void)state;
    static const struct {
        const char *grammar;
        int code;
        const char *words;
    } rows[] = {
        {"", TERN_EINVAL, "empty"},
        {"   # nothing\n", TERN_EINVAL, "root"},
        {"a ::= \"x\"", TERN_EINVAL, "root"},
        {"root ::= a", TERN_EINVAL, "line 1: there is no rule \"a\""},
        {"root ::= root \"a\" | \"b\"", TERN_EINVAL, "\"root\" begins with itself"},
        {"root ::= a \"x\"\na ::= b?  root", TERN_EINVAL, "begins with itself"},
        {"root ::= (\"\" root)* \"x\"", TERN_EINVAL, "begins with itself"},
        {"root ::= \"a\" root", TERN_EINVAL, "no text can satisfy"},
        {"root ::= \"a\"\nroot ::= \"b\"", TERN_EINVAL, "line 2"},
        {"root ::= \"a", TERN_EINVAL, "quote"},
        {"root ::= [a", TERN_EINVAL, "bracket"},
        {"root ::= (\"a\"", TERN_EINVAL, "bracket"},
        {"root ::= \"a\" )", TERN_EINVAL, "neither part"},
        {"root ::= * \"a\"", TERN_EINVAL, "nothing to repeat"},
        {"root ::= \"a\"{2,1}", TERN_EINVAL, "upside down"},
        {"root ::= \"a\"{x}", TERN_EINVAL, "count"},
        {"root ::= \"a\"{99999999}", TERN_ELIMIT, "1000000"},
        {"root = \"a\"", TERN_EINVAL, "::="},
        {"root ::= \"\\q\"", TERN_EINVAL, "escape"},
        {"root ::= \"\\x4\"", TERN_EINVAL, "hex"},
        {"root ::= <|im_end|>", TERN_EUNSUPPORTED, "tokens"},
        {"root ::= [b-a]", TERN_EINVAL, "upside down"},
        {"?", TERN_EINVAL, "name of a rule"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "%s%s", rows[i].grammar,
                       strstr(rows[i].grammar, "b?") ? "\nb ::= \"b\"" : "");
        REFUSED(TERN_GR_GBNF, text, rows[i].code, rows[i].words);
    }
    enum { DEEP = 60000 };
    char *deep = malloc(DEEP + 32);
    (void)strcpy(deep, "root ::= ");
    memset(deep + 9, '(', DEEP);
    deep[9 + DEEP] = 0;
    REFUSED(TERN_GR_GBNF, deep, TERN_ELIMIT, "64");
    free(deep);
}

/* A chain of rules is followed without recursion; its limit is a number of rules. */
static void test_gbnf_chain(void **state)
{
    (void)state;
    for (int n = 5000; n <= 80000; n += 75000) {
        struct tern_buf b = {0};
        (void)tern_buf_addf(&b, NULL, "root ::= r0\n");
        for (int i = 0; i < n; i++)
            (void)tern_buf_addf(&b, NULL, "r%d ::= r%d\n", i, i + 1);
        (void)tern_buf_addf(&b, NULL, "r%d ::= \"x\"\n", n);
        if (n == 5000)
            table(TERN_GR_GBNF, b.p, L("x"), L("xx", ""));
        else
            REFUSED(TERN_GR_GBNF, b.p, TERN_ELIMIT, "bytes");
        tern_buf_clear(&b);
    }
}

/* ---- schemas ----------------------------------------------------------------------------------------------------- */

static void test_schema(void **state)
{
    (void)state;
    const enum tern_gr_kind k = TERN_GR_SCHEMA;
    table(k,
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"}},\"required\":"
          "[\"b\"]}",
          L("{\"b\":1}", "{\"a\":\"x\",\"b\":-7}", "{ \"a\": \"\\u00e9\\n\", \"b\": 0 }", "{\n  \"b\": 3\n}"),
          L("{}", "{\"a\":\"x\"}", "{\"b\":1.5}", "{\"b\":01}", "{\"b\":1,}", "{\"b\":1,\"c\":2}", "{\"b\":1} "));
    table(k,
          "{\"type\":\"object\",\"properties\":{\"ab\":{},\"ac\":{\"type\":\"null\"}},\"additionalProperties\":{"
          "\"type\":\"boolean\"}}",
          L("{}", "{\"ab\":[1,{}]}", "{\"x\":true,\"a\":false,\"abc\":true}", "{\"ac\":null,\"é\":true}"),
          L("{\"x\":1}", "{\"x\":true,\"ac\":true}", "{\"x\":true,\"\\u0061c\":true}"));
    table(k, "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":3}",
          L("[true]", "[true, false,true]"), L("[]", "[true,true,true,true]", "[1]", "[true,]"));
    table(k, "{\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],\"items\":{\"const\":7},\"minItems\":1}",
          L("[null]", "[null,true]", "[null,true,7,7]"), L("[]", "[true]", "[null,7]"));
    table(k, "{\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],\"items\":false}", L("[]", "[null,true]"),
          L("[null,true,1]"));
    table(k, "{\"enum\":[\"a\",\"ab\",3,null,{\"x\":[1.5]},\"q\\\"\"]}",
          L("\"a\"", "\"ab\"", "3", "null", "{\"x\":[1.5]}", "\"q\\\"\""), L("\"b\"", "33", "\"a"));
    table(k, "{\"type\":\"string\",\"enum\":[\"a\",3]}", L("\"a\""), L("3"));
    table(k, "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", L("3", "\"é\"", "\"\""),
          L("\"ab\"", "null"));
    table(k, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", L("3", "null"), L("true"));
    table(k,
          "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}},\"required\":[\"t\"]},"
          "{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[2,3]}},\"required\":[\"t\"]}]}",
          L("{\"t\":1}", "{\"t\":3}"), L("{\"t\":4}"));
    table(k,
          "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":[\"integer\",\"null\"]}},\"required\":["
          "\"a\"]},"
          "{\"properties\":{\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"integer\",\"minimum\":3}},"
          "\"additionalProperties\":false}]}",
          L("{\"a\":3}", "{\"a\":9,\"b\":true}"), L("{\"a\":null}", "{\"a\":2}", "{\"b\":true}"));
    table(k,
          "{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":"
          "[\"n\"]}",
          L("{\"n\":null}", "{\"n\":{\"n\":{\"n\":null}}}"), L("{}", "{\"n\":{}}"));
    table(k,
          "{\"$defs\":{\"a/b\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/a~1b\"}}},\"$ref\":\"#/$defs/a~1b\"}",
          L("[]", "[[],[[]]]"), L("[1]", "[[]"));
    table(k, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", L("\"ab\"", "\"é\\n日\"", "\"\\u00e9x\""),
          L("\"a\"", "\"abcd\""));
    table(k, "{\"type\":\"string\",\"pattern\":\"^[a-z]+\\\\.(com|org)$\"}", L("\"ab.com\""),
          L("\"ab.net\"", "\"ab.com \""));
    table(k, "{\"type\":\"string\",\"pattern\":\"b[\\\"\\\\\\\\]\"}", L("\"b\\\"\"", "\"aab\\\\cc\""),
          L("\"b\"", "\"bc\""));
    table(k, "true", L("1", "{\"a\":[]}", "null", "-0.5e-3", "\"x\""),
          L("x", "1.", "01", "+1", "\"\x01\"", "\"\\ud800\"", "\"\\u0000\""));
    table(k, "{\"type\":[\"number\",\"null\"],\"title\":\"t\",\"description\":\"d\",\"default\":1}",
          L("1", "1.5E+3", "null"), L("\"\""));
    table(k, "{\"const\":{\"a\":[true,0.1]}}", L("{\"a\":[true,0.1]}"), L("{}"));
    table(TERN_GR_CHOICE, "[\"yes\",\"no\",\"yesterday\"]", L("yes", "no", "yesterday"), L("ye", "yest", "yesno", ""));
    table(TERN_GR_JSON, "", L("{}", "{\"a\":[1, 2.5, {\"b\":\"c\"}]}"), L("[]", "1", "{\"a\"}", "{} "));
}

static void test_bounds(void **state)
{
    (void)state;
    static const int64_t of[][2] = {{0, 9},   {-5, 5}, {7, 7},      {-120, -7}, {95, 1042},
                                    {0, 255}, {-1, 0}, {100, 2000}, {-9, 10},   {-1999, 1001}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char schema[160], text[32];
        (void)snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", (int)of[i][0],
                       (int)of[i][1]);
        tern_grammar *g = compile(TERN_GR_SCHEMA, schema);
        (void)snprintf(schema, sizeof schema,
                       "{\"type\":\"integer\",\"exclusiveMinimum\":%d,\"exclusiveMaximum\":%d.5}", (int)of[i][0] - 1,
                       (int)of[i][1] - (of[i][1] < 0));
        tern_grammar *h = of[i][1] >= 0 ? compile(TERN_GR_SCHEMA, schema) : NULL;
        for (int v = -2200; v <= 2200; v++) {
            (void)snprintf(text, sizeof text, "%d", v);
            bool in = v >= of[i][0] && v <= of[i][1];
            if ((fit_of(g, text) == TERN_GRAMMAR_WHOLE) != in || (h && (fit_of(h, text) == TERN_GRAMMAR_WHOLE) != in))
                fail_msg("%s: %d", schema, v);
        }
        tern_grammar_free(g);
        tern_grammar_free(h);
    }
    const enum tern_gr_kind k = TERN_GR_SCHEMA;
    table(k, "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", L("0", "1", "0.5", "0.999", "0.0"),
          L("1.5", "-0.5", "2", "1.0001"));
    table(k, "{\"type\":\"number\",\"exclusiveMinimum\":0}", L("0.01", "1", "12.5"), L("0", "0.0", "-1", "0.000"));
    table(k, "{\"type\":\"number\",\"minimum\":-2,\"exclusiveMaximum\":3}", L("-2", "-1.5", "-0.5", "0", "2.999", "1"),
          L("-2.5", "3", "3.0", "-3"));
    table(k, "{\"type\":\"number\",\"maximum\":-3}", L("-3", "-3.5", "-100"), L("-2.5", "0", "3"));
    table(k, "{\"type\":\"integer\",\"minimum\":9223372036854775807}", L("9223372036854775807"),
          L("9223372036854775806", "1"));
}

/* Of each format: texts that are of it, and some that are not. */
static void test_formats(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"date", "\"2024-02-28\"", "\"2024-02-30\""},
        {"date", "\"1999-12-31\"", "\"1999-13-01\""},
        {"time", "\"23:59:59.5Z\"", "\"24:00:00Z\""},
        {"time", "\"08:00:00+02:00\"", "\"08:00:00\""},
        {"date-time", "\"2024-01-01T00:00:00Z\"", "\"2024-01-01 00:00:00Z\""},
        {"uuid", "\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567e89b12d3a456426614174000\""},
        {"ipv4", "\"192.168.0.255\"", "\"192.168.0.256\""},
        {"ipv6", "\"2001:db8:0:0:0:0:0:1\"", "\"2001:db8\""},
        {"hostname", "\"a.b-c.example\"", "\"-a\""},
        {"email", "\"ann.b@example.com\"", "\"ann@\""},
        {"uri", "\"https://example.com/a/b?x=1#y\"", "\"example\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char schema[80];
        (void)snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", rows[i][0]);
        table(TERN_GR_SCHEMA, schema, L(rows[i][1]), L(rows[i][2], "\"\""));
    }
}

static void test_schema_refused(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        int code;
        const char *words;
    } rows[] = {
        {"", TERN_EINVAL, "empty"},
        {"{", TERN_EINVAL, "malformed JSON"},
        {"3", TERN_EINVAL, "a schema is an object"},
        {"{\"$ref\":\"#\"}", TERN_EINVAL, "without an end"},
        {"{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}",
         TERN_EINVAL, "without an end"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", TERN_ELIMIT, ""},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", TERN_EINVAL, "begins with itself"},
        {"{\"$ref\":\"#/nowhere\"}", TERN_EINVAL, "leads nowhere"},
        {"{\"$ref\":\"http://x/y\"}", TERN_EUNSUPPORTED, "leads out"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", TERN_EINVAL,
         "no text can satisfy"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":3}", TERN_EINVAL, "no text can satisfy"},
        {"{\"type\":\"string\",\"minLength\":5,\"maxLength\":3}", TERN_EINVAL, "no text can satisfy"},
        {"{\"enum\":[]}", TERN_EINVAL, "no text can satisfy"},
        {"false", TERN_EINVAL, "no text can satisfy"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", TERN_EINVAL,
         "required and not allowed"},
        {"{\"not\":{}}", TERN_EUNSUPPORTED, "\"not\""},
        {"{\"if\":{}}", TERN_EUNSUPPORTED, "\"if\""},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"patternProperties\":{}}}}", TERN_EUNSUPPORTED,
         "/properties/a: the keyword \"patternProperties\""},
        {"{\"type\":\"array\",\"uniqueItems\":true}", TERN_EUNSUPPORTED, "uniqueItems"},
        {"{\"type\":\"number\",\"multipleOf\":2}", TERN_EUNSUPPORTED, "multipleOf"},
        {"{\"type\":\"number\",\"minimum\":0.5}", TERN_EUNSUPPORTED, "not whole"},
        {"{\"type\":\"text\"}", TERN_EINVAL, "no type \"text\""},
        {"{\"type\":3}", TERN_EINVAL, "type"},
        {"{\"type\":\"string\",\"format\":\"color\"}", TERN_EUNSUPPORTED, "format \"color\""},
        {"{\"type\":\"string\",\"pattern\":\"^+\"}", TERN_EINVAL, "nothing to repeat"},
        {"{\"type\":\"string\",\"pattern\":\"(?<=x)\"}", TERN_EUNSUPPORTED, "behind"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", TERN_EUNSUPPORTED, "one is supported at a time"},
        {"{\"type\":\"string\",\"maxLength\":2000000}", TERN_ELIMIT, "1000000"},
        {"{\"type\":\"string\",\"minLength\":-1}", TERN_EINVAL, "whole number"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", TERN_EUNSUPPORTED, "oneOf"},
        {"{\"enum\":[1],\"minimum\":0}", TERN_EUNSUPPORTED, "enum and const beside"},
        {"{\"properties\":[]}", TERN_EINVAL, "properties"},
        {"{\"required\":\"a\"}", TERN_EINVAL, "required"},
        {"{\"items\":[{}]}", TERN_EUNSUPPORTED, "prefixItems"},
        {"{\"anyOf\":[]}", TERN_EINVAL, "anyOf"},
        {"{\"a\":1,\"a\":2}", TERN_EINVAL, "malformed JSON"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        REFUSED(TERN_GR_SCHEMA, rows[i].schema, rows[i].code, rows[i].words);
}

static void repeat_text(struct tern_buf *b, const char *text, int n)
{
    for (int i = 0; i < n; i++)
        (void)tern_buf_add(b, text, strlen(text), NULL);
}

/* Schemas that are too large or too deep: one sentence, soon. */
static void test_schema_limits(void **state)
{
    (void)state;
    struct tern_buf b = {0};
    repeat_text(&b, "{\"items\":", 10000);
    repeat_text(&b, "{}", 1);
    repeat_text(&b, "}", 10000);
    REFUSED(TERN_GR_SCHEMA, b.p, TERN_EINVAL, "depth");
    tern_buf_reset(&b);
    repeat_text(&b, "{\"items\":", 100);
    repeat_text(&b, "{}", 1);
    repeat_text(&b, "}", 100);
    REFUSED(TERN_GR_SCHEMA, b.p, TERN_ELIMIT, "64 levels");
    tern_buf_reset(&b);
    (void)tern_buf_addf(&b, NULL, "{\"enum\":[0");
    for (int i = 1; i < 1000000; i++)
        (void)tern_buf_addf(&b, NULL, ",%d", i);
    (void)tern_buf_addf(&b, NULL, "]}");
    REFUSED(TERN_GR_SCHEMA, b.p, TERN_ELIMIT, "bytes");
    tern_buf_reset(&b);
    (void)tern_buf_addf(&b, NULL, "{\"enum\":[\"x\"");
    for (int i = 1; i < 10000; i++)
        (void)tern_buf_addf(&b, NULL, ",\"%u\"", (unsigned)i * 2654435761u);
    (void)tern_buf_addf(&b, NULL, "]}");
    table(TERN_GR_SCHEMA, b.p, L("\"x\"", "\"2654435761\""), L("\"y\"", "\"265443576\""));
    tern_buf_reset(&b);
    /* 2^20 ways through references that double each other */
    (void)tern_buf_addf(&b, NULL, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 20; i++)
        (void)tern_buf_addf(&b, NULL, "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},", i,
                            i + 1, i + 1);
    (void)tern_buf_addf(&b, NULL, "\"d20\":{\"type\":\"null\"}}}");
    tern_grammar *g = NULL;
    tern_error err = {0};
    double start = tern_now();
    int rc = tern_gr_compile(&g, TERN_GR_SCHEMA, b.p, b.len, NULL, NULL, &err);
    assert_true(rc == 0 || rc == TERN_ELIMIT);
    assert_true(tern_now() - start < 30);
    tern_grammar_free(g);
    tern_buf_reset(&b);
    /* a chain of references takes no stack */
    (void)tern_buf_addf(&b, NULL, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 5000; i++)
        (void)tern_buf_addf(&b, NULL, "\"d%d\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/d%d\"}},", i, i + 1);
    (void)tern_buf_addf(&b, NULL, "\"d5000\":{\"type\":\"null\"}}}");
    table(TERN_GR_SCHEMA, b.p, L("[]", "[[[]]]"), L("null", "[1]"));
    tern_buf_clear(&b);
}

/* ---- what is sampled is valid ------------------------------------------------------------------------------------ */

/* 200 random schemas, texts at random: a validator that knows nothing of grammars accepts them. */
static void test_random_schemas(void **state)
{
    (void)state;
    struct grammar_case c;
    struct tern_rng r = {5};
    grammar_case_open(&c);
    int n = getenv("TERN_GRAMMAR_CASES") ? atoi(getenv("TERN_GRAMMAR_CASES")) : 200;
    for (int i = 0; i < n; i++) {
        json_t *schema = random_schema(&r, 3);
        char *text = json_dumps(schema, JSON_ENCODE_ANY);
        tern_grammar *g = compile(TERN_GR_SCHEMA, text);
        for (int k = 0; k < 3; k++) {
            struct tern_buf sample = {0};
            sample_text(&c, g, &r, i % 10 == 0, &sample);
            json_t *v = json_loadb(sample.p ? sample.p : "", sample.len, JSON_DECODE_ANY, NULL);
            if (!v || !valid(schema, schema, v))
                fail_msg("schema %s, text %s", text, sample.p ? sample.p : "");
            json_decref(v);
            tern_buf_clear(&sample);
        }
        tern_grammar_free(g);
        free(text);
        json_decref(schema);
    }
    grammar_case_close(&c);
}

/* Masks along texts of all notations: what trying each token by itself says. */
static void test_masks(void **state)
{
    (void)state;
    static const struct {
        enum tern_gr_kind kind;
        const char *text;
    } rows[] = {
        {TERN_GR_REGEX, "(the|then|\\d{2,5}){3,40} ?[a-zé😀]{10,300}x"},
        {TERN_GR_REGEX, "a{20,30}(ab){3}|[^b]{5,}"},
        {TERN_GR_GBNF, "root ::= (\"<\" root \">\" | [a-c]{2,} | \"日本\")+ "},
        {TERN_GR_JSON, ""},
        {TERN_GR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":60},"
         "\"n\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-50,\"maximum\":1999}}},"
         "\"required\":[\"name\",\"n\"],\"additionalProperties\":true}"},
        {TERN_GR_CHOICE, "[\"the\",\"then\",\"theory\",\"日\"]"},
    };
    struct grammar_case c;
    struct tern_rng r = {7};
    grammar_case_open(&c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tern_grammar *g = compile(rows[i].kind, rows[i].text);
        struct tern_buf sample = {0};
        for (int k = 0; k < 4; k++) {
            sample_text(&c, g, &r, true, &sample);
            if (fit_of(g, sample.p ? sample.p : "") != TERN_GRAMMAR_WHOLE)
                fail_msg("%s: %s", rows[i].text, sample.p);
            tern_buf_reset(&sample);
        }
        tern_buf_clear(&sample);
        tern_grammar_free(g);
    }
    grammar_case_close(&c);
}

/* A follow that is full is left for a new one in the middle of a text. */
static void test_moving(void **state)
{
    (void)state;
    enum { N = 400000 };
    tern_grammar *g = compile(TERN_GR_REGEX, "(\\((a|b){0,300000}\\)|[c-e]){1,500000}");
    char *text = malloc(N);
    tern_grammar_fit fit;
    tern_error err = {0};
    text[0] = 'c';
    text[1] = '(';
    memset(text + 2, 'a', 250000);
    text[250002] = ')';
    memset(text + 250003, 'd', N - 250003);
    assert_int_equal(tern_grammar_check(g, text, N, &fit, &err), 0);
    assert_int_equal(fit, TERN_GRAMMAR_WHOLE);
    text[N - 1] = 'x';
    assert_int_equal(tern_grammar_check(g, text, N, &fit, &err), 0);
    assert_int_equal(fit, TERN_GRAMMAR_NOT);
    free(text);
    tern_grammar_free(g);
}

struct sampler {
    const struct grammar_case *c;
    const tern_grammar *g;
    uint64_t seed;
    struct tern_buf out;
};

static void *sample_one(void *arg)
{
    struct sampler *s = arg;
    struct tern_rng r = {s->seed};
    for (int i = 0; i < 4; i++)
        sample_text(s->c, s->g, &r, false, &s->out);
    return NULL;
}

/* Choices of one request follow one grammar on several threads: each as it would by itself. */
static void test_threads(void **state)
{
    (void)state;
    struct grammar_case c;
    struct sampler many[4];
    pthread_t threads[4];
    grammar_case_open(&c);
    tern_grammar *g = compile(TERN_GR_SCHEMA,
                              "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"maxLength\":90}}");
    for (int i = 0; i < 4; i++) {
        many[i] = (struct sampler){.c = &c, .g = g, .seed = (uint64_t)i / 2};
        assert_int_equal(pthread_create(&threads[i], NULL, sample_one, &many[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 4; i += 2)
        assert_string_equal(many[i].out.p, many[i + 1].out.p);
    for (int i = 0; i < 4; i++)
        tern_buf_clear(&many[i].out);
    tern_grammar_free(g);
    grammar_case_close(&c);
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

static tern_grammar_fit fit_with(const struct tern_gr_frame *frame, const struct tern_gr_calls *calls, const char *rule,
                                 const char *text)
{
    tern_grammar *g;
    tern_error err = {0};
    if (tern_gr_compile(&g, calls ? TERN_GR_CALLS : TERN_GR_REGEX, rule, strlen(rule), frame, calls, &err) < 0)
        fail_msg("%s: %s", rule, err.msg);
    tern_grammar_fit f = fit_of(g, text);
    tern_grammar_free(g);
    return f;
}

static void test_reasoning(void **state)
{
    (void)state;
    struct tern_gr_frame f = {"<think>", "</think>", false};
    assert_int_equal(fit_with(&f, NULL, "x+", "xx"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(&f, NULL, "x+", "<think>a <b </thin</think>\n\nx"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(&f, NULL, "x+", "<think>a"), TERN_GRAMMAR_BEGIN);
    assert_int_equal(fit_with(&f, NULL, "x+", "<think></think>y"), TERN_GRAMMAR_NOT);
    f.begun = true;
    assert_int_equal(fit_with(&f, NULL, "x+", "a</think>x"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(&f, NULL, "x+", "x"), TERN_GRAMMAR_BEGIN);
    assert_int_equal(fit_with(&f, NULL, "x+", "</think></think>"), TERN_GRAMMAR_NOT);
}

static void test_calls(void **state)
{
    (void)state;
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"strict\":true,\"parameters\":{\"type\":\"object\","
        "\"properties\":"
        "{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":false}}},{\"name\":\"now\"}]";
    static const char add[] = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                      now[] = "<tool_call>{\"name\":\"now\",\"arguments\":{\"z\":[]}}</tool_call>",
                      bad[] = "<tool_call>{\"name\":\"add\",\"arguments\":{\"b\":1}}</tool_call>";
    struct tern_gr_calls c = {"<tool_call>", "</tool_call>", false, "name", "arguments", NULL,
                              NULL,          true,           NULL,  false,  false};
    char two[256];
    (void)snprintf(two, sizeof two, "%s\n%s", add, now);
    assert_int_equal(fit_with(NULL, &c, tools, add), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, now), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, bad), TERN_GRAMMAR_NOT);
    assert_int_equal(fit_with(NULL, &c, tools, two), TERN_GRAMMAR_NOT);
    assert_int_equal(fit_with(NULL, &c, tools, "Hi"), TERN_GRAMMAR_NOT);
    c.several = true;
    assert_int_equal(fit_with(NULL, &c, tools, two), TERN_GRAMMAR_WHOLE);
    c.function = "now";
    assert_int_equal(fit_with(NULL, &c, tools, now), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, add), TERN_GRAMMAR_NOT);
    c.function = NULL;
    c.required = false;
    assert_int_equal(fit_with(NULL, &c, tools, "Hi <tool"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, two), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, bad), TERN_GRAMMAR_NOT);
    (void)snprintf(two, sizeof two, "Well: %s Done.", add);
    assert_int_equal(fit_with(NULL, &c, tools, two), TERN_GRAMMAR_WHOLE);
    c.otherwise = "{\"type\":\"array\",\"items\":{\"type\":\"null\"}}";
    assert_int_equal(fit_with(NULL, &c, tools, "[null]"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, add), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_with(NULL, &c, tools, "Hi"), TERN_GRAMMAR_NOT);
    struct tern_gr_calls list = {"[TOOL_CALLS]", "", true, "name", "arguments", NULL, NULL, true, NULL, true, false};
    assert_int_equal(
        fit_with(NULL, &list, tools,
                 "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"name\":\"add\",\"arguments\":{\"a\":2}}]"),
        TERN_GRAMMAR_WHOLE);
    struct tern_gr_calls tagged = {"<function=", "</function>", false, NULL, NULL, ">", NULL, true, NULL, false, false};
    assert_int_equal(fit_with(NULL, &tagged, tools, "<function=add>{\"a\":7}</function>"), TERN_GRAMMAR_WHOLE);
    struct tern_gr_calls bare = {"", "", false, "name", "parameters", NULL, NULL, true, NULL, false, false};
    assert_int_equal(fit_with(NULL, &bare, tools, "{\"name\": \"add\", \"parameters\": {\"a\":7}}"),
                     TERN_GRAMMAR_WHOLE);
}

/* Control tokens: a mark where the grammar has one, never text. */
static void test_control_tokens(void **state)
{
    (void)state;
    struct grammar_case c;
    struct tern_gr_frame f = {"<think>", "</think>", false};
    tern_grammar *g;
    tern_error err = {0};
    struct tern_gr_matcher *m;
    grammar_case_open(&c);
    assert_int_equal(tern_gr_compile(&g, TERN_GR_REGEX, ".*", 2, &f, NULL, &err), 0);
    assert_int_equal(tern_gr_matcher_new(&m, g, c.vocab, &err), 0);
    assert_true(allowed(&c, m, CASE_THINK));
    assert_false(allowed(&c, m, CASE_UNTHINK));
    assert_false(allowed(&c, m, CASE_OTHER));
    assert_true(allowed(&c, m, CASE_END));
    assert_int_equal(tern_gr_take(m, CASE_THINK, &err), 0);
    assert_false(allowed(&c, m, CASE_END));
    assert_false(allowed(&c, m, CASE_THINK));
    assert_true(allowed(&c, m, 'x'));
    assert_int_equal(tern_gr_take(m, 'x', &err), 0);
    assert_true(allowed(&c, m, CASE_UNTHINK));
    assert_int_equal(tern_gr_take(m, CASE_UNTHINK, &err), 0);
    assert_true(allowed(&c, m, CASE_END));
    assert_false(allowed(&c, m, CASE_UNTHINK));
    assert_int_equal(tern_gr_take(m, CASE_OTHER, &err), TERN_EINVAL);
    tern_gr_matcher_free(m);
    tern_grammar_free(g);
    grammar_case_close(&c);
}

/* A reading for each of many alternatives at every byte is too much for one token, and says so. */
static void test_too_ambiguous(void **state)
{
    (void)state;
    struct grammar_case c;
    tern_grammar *g;
    tern_error err = {0};
    struct tern_gr_matcher *m;
    uint32_t *mask = calloc(CASE_VOCAB / 32 + 1, 4);
    int rc;
    grammar_case_open(&c);
    g = compile(TERN_GR_REGEX, "((a{1,900}b?){1,900}c?){1,900}");
    rc = tern_gr_matcher_new(&m, g, c.vocab, &err);
    for (int i = 0; i < 200 && rc == 0; i++) {
        memset(mask, 0, (CASE_VOCAB / 32 + 1) * 4);
        rc = tern_gr_mask(m, mask, &err);
        if (rc == 0 && !(mask['a' / 32] >> ('a' % 32) & 1))
            break; /* readings beyond the limit were dropped: nothing is left, and the loop will say so */
        rc = rc < 0 ? rc : tern_gr_take(m, 'a', &err);
    }
    if (rc != 0 && rc != TERN_ELIMIT)
        fail_msg("%d: %s", rc, err.msg);
    tern_gr_matcher_free(m);
    tern_grammar_free(g);
    free(mask);
    grammar_case_close(&c);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),          cmocka_unit_test(test_large_counts),
        cmocka_unit_test(test_regex_refused),  cmocka_unit_test(test_regex_like_pcre),
        cmocka_unit_test(test_gbnf),           cmocka_unit_test(test_gbnf_refused),
        cmocka_unit_test(test_gbnf_chain),     cmocka_unit_test(test_schema),
        cmocka_unit_test(test_bounds),         cmocka_unit_test(test_formats),
        cmocka_unit_test(test_schema_refused), cmocka_unit_test(test_schema_limits),
        cmocka_unit_test(test_random_schemas), cmocka_unit_test(test_masks),
        cmocka_unit_test(test_moving),         cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_calls),          cmocka_unit_test(test_control_tokens),
        cmocka_unit_test(test_too_ambiguous),  cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
