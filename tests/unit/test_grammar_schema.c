/* Schemas whose keywords meet: what is joined, compared or impossible, and what takes too long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/buf.h"
#include "base/clock.h"
#include "grammar/grammar.h"

/* yes and no: texts, ended by NULL. */
static void table(enum tern_gr_kind kind, const char *rule, const char *const *yes, const char *const *no)
{
    tern_grammar *g;
    tern_grammar_fit fit;
    tern_error err = {0};
    if (tern_gr_compile(&g, kind, rule, strlen(rule), NULL, NULL, &err) < 0)
        fail_msg("%.300s: %s", rule, err.msg);
    for (; *yes; yes++) {
        assert_int_equal(tern_grammar_check(g, *yes, strlen(*yes), &fit, &err), 0);
        if (fit != TERN_GRAMMAR_WHOLE)
            fail_msg("%.300s refuses %s", rule, *yes);
    }
    for (; *no; no++) {
        assert_int_equal(tern_grammar_check(g, *no, strlen(*no), &fit, &err), 0);
        if (fit == TERN_GRAMMAR_WHOLE)
            fail_msg("%.300s accepts %s", rule, *no);
    }
    tern_grammar_free(g);
}
#define L(...)                ((const char *const[]){__VA_ARGS__, NULL})
#define SCHEMA(rule, yes, no) table(TERN_GR_SCHEMA, rule, yes, no)

static void refused(const char *schema, int code, const char *words)
{
    tern_grammar *g = NULL;
    tern_error err = {0};
    int rc = tern_gr_compile(&g, TERN_GR_SCHEMA, schema, strlen(schema), NULL, NULL, &err);
    if (rc >= 0)
        fail_msg("%.300s is not refused", schema);
    if (rc != code || !strstr(err.msg, words))
        fail_msg("%.300s: %d, %s (expected %d, %s)", schema, rc, err.msg, code, words);
}

/* `items` of one schema holds for elements that prefixItems of the other one names. */
static void test_joined_items(void **state)
{
    (void)state;
    SCHEMA("{\"allOf\":[{\"type\":\"array\",\"prefixItems\":[{\"enum\":[\"a\",\"b\"]}],\"minItems\":1,\"maxItems\":2},"
           "{\"items\":{\"enum\":[\"b\"]}}]}",
           L("[\"b\"]", "[\"b\",\"b\"]"), L("[\"a\"]", "[\"b\",\"a\"]", "[]"));
    SCHEMA("{\"allOf\":[{\"items\":{\"enum\":[\"b\"]},\"type\":\"array\"},{\"prefixItems\":[{\"enum\":[\"a\",\"b\"]}],"
           "\"items\":{\"type\":\"string\"},\"minItems\":1}]}",
           L("[\"b\"]", "[\"b\",\"b\"]"), L("[\"a\"]", "[\"b\",\"a\"]"));
    SCHEMA("{\"type\":\"array\",\"prefixItems\":[{\"enum\":[\"a\",\"b\",\"c\"]}],\"minItems\":1,\"maxItems\":1,"
           "\"anyOf\":[{\"items\":{\"const\":\"b\"}},{\"items\":{\"const\":\"c\"}}]}",
           L("[\"b\"]", "[\"c\"]"), L("[\"a\"]", "[]"));
    SCHEMA("{\"allOf\":[{\"type\":\"array\",\"prefixItems\":[{\"const\":1}]},{\"items\":false}]}", L("[]"), L("[1]"));
    SCHEMA("{\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false},"
           "{\"prefixItems\":[{\"enum\":[1,\"a\"]},{\"const\":2}],\"items\":{\"const\":3}}]}",
           L("[]", "[1]"), L("[1,2]", "[\"a\"]", "[2]"));
    SCHEMA("{\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"}]},"
           "{\"prefixItems\":[{\"enum\":[1,\"a\"]},{\"const\":2}],\"items\":{\"const\":3}}]}",
           L("[]", "[1]", "[1,2,3,3]"), L("[1,3]", "[\"a\"]", "[1,2,2]"));
    refused("{\"allOf\":[{\"prefixItems\":{}},{\"items\":{\"const\":1}}]}", TERN_EINVAL, "prefixItems must be a list");
}

/* What says nothing about values, OpenAPI's, too: pydantic writes which member tells alternatives apart. */
static void test_notes(void **state)
{
    (void)state;
    SCHEMA("{\"discriminator\":{\"propertyName\":\"k\",\"mapping\":{\"a\":\"#/$defs/"
           "a\"}},\"example\":7,\"oneOf\":[{\"$ref\":\"#/$defs/a\"},"
           "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}],\"$defs\":{\"a\":{"
           "\"type\":\"object\",\"properties\":{\"k\":{"
           "\"const\":\"a\"}},"
           "\"required\":[\"k\"]}}}",
           L("{\"k\":\"a\"}", "{\"k\":\"b\"}"), L("{\"k\":\"c\"}", "7"));
}

/* 1 and 1.0 are one value. */
static void test_equal_numbers(void **state)
{
    (void)state;
    refused("{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", TERN_EUNSUPPORTED, "number 0 and number 1");
    refused("{\"oneOf\":[{\"enum\":[1,2]},{\"enum\":[1.0,3]}]}", TERN_EUNSUPPORTED, "number 0 and number 1");
    refused("{\"oneOf\":[{\"enum\":[{\"a\":[1]},2]},{\"const\":{\"a\":[1.0]}}]}", TERN_EUNSUPPORTED, "number 0");
    SCHEMA("{\"oneOf\":[{\"enum\":[1,2]},{\"enum\":[1.5,3.0]}]}", L("1", "2", "1.5", "3.0"), L("3", "4"));
    SCHEMA("{\"allOf\":[{\"enum\":[5]},{\"enum\":[5.0,6]}]}", L("5"), L("6"));
    SCHEMA("{\"allOf\":[{\"const\":5},{\"enum\":[5.0,6]}]}", L("5.0"), L("6"));
    SCHEMA("{\"allOf\":[{\"const\":5},{\"const\":5.0}]}", L("5"), L("6"));
    SCHEMA("{\"allOf\":[{\"enum\":[{\"a\":[5]},[-0.0]]},{\"enum\":[{\"a\":[5.0]},[0]]}]}", L("{\"a\":[5]}", "[-0.0]"),
           L("[0]", "{\"a\":[6]}"));
    /* no double is 2^53 + 1 */
    SCHEMA("{\"allOf\":[{\"enum\":[9007199254740993,7]},{\"enum\":[9007199254740992.0,7]}]}", L("7"),
           L("9007199254740993"));
    SCHEMA("{\"type\":\"integer\",\"allOf\":[{\"minimum\":9007199254740992},{\"minimum\":9007199254740993}]}",
           L("9007199254740993"), L("9007199254740992"));
}

/* Bounds that 64 bits do not hold, and those beyond the digits that are written otherwise. */
static void test_far_bounds(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "{\"type\":\"integer\",\"minimum\":1e29,\"maximum\":1e30}",
        "{\"type\":\"integer\",\"minimum\":9.3e18}",
        "{\"type\":\"integer\",\"exclusiveMaximum\":-1e25}",
        "{\"type\":\"number\",\"minimum\":1e29}",
        "{\"type\":\"number\",\"maximum\":-1e25}",
        "{\"type\":\"number\",\"exclusiveMinimum\":9223372036854775807}",
        "{\"type\":\"number\",\"maximum\":-9223372036854775808}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(rows[i], TERN_EUNSUPPORTED, "64 bits");
    refused("{\"type\":\"integer\",\"exclusiveMinimum\":9223372036854775807}", TERN_EINVAL, "no text can satisfy");
    refused("{\"type\":\"string\",\"maxLength\":1e30}", TERN_ELIMIT, "1000000");
    SCHEMA("{\"type\":\"integer\",\"minimum\":-1e29,\"maximum\":1e29}", L("0", "-5", "999999999999999999"), L("1.5"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0,\"maximum\":1e29}", L("0", "1.5"), L("-1"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":9.1e18}", L("9100000000000000000", "9223372036854775807"),
           L("9099999999999999999", "1"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":1500000000000000000,\"maximum\":2000000000000000000}",
           L("1500000000000000000", "2000000000000000000"), L("1499999999999999999", "2000000000000000001"));
    SCHEMA("{\"type\":\"number\",\"minimum\":-2000000000000000000,\"maximum\":-1500000000000000000}",
           L("-1500000000000000000", "-2000000000000000000"), L("-1499999999999999999", "-2000000000000000001"));
    SCHEMA("{\"type\":\"integer\",\"maximum\":-9223372036854775808}", L("-9223372036854775808"), L("0", "-1"));
    SCHEMA("{\"type\":\"integer\",\"enum\":[1e19,-1e300,1.5]}", L("1e19", "-1e300"), L("1.5"));
}

/* An alternative that nothing satisfies takes no part; a schema of such alone is refused. */
static void test_impossible(void **state)
{
    (void)state;
    SCHEMA("{\"type\":[\"integer\",\"string\"],\"maxLength\":2,\"anyOf\":[{\"type\":\"integer\",\"minimum\":1,"
           "\"maximum\":2},{\"type\":\"null\"}]}",
           L("1", "2"), L("3", "null", "\"a\""));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":false,"
           "\"anyOf\":[{\"required\":[\"b\"]},{\"required\":[\"a\"]}]}",
           L("{\"a\":1}"), L("{}", "{\"b\":1}"));
    SCHEMA("{\"enum\":[1,2],\"anyOf\":[{\"const\":3},{\"const\":2}]}", L("2"), L("1", "3"));
    SCHEMA("{\"const\":2,\"anyOf\":[{\"const\":3},{\"const\":2}]}", L("2"), L("3"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"required\":[\"b\"],"
           "\"additionalProperties\":false},\"c\":{}}}",
           L("{}", "{\"c\":1}"), L("{\"a\":{}}"));
    refused("{\"allOf\":[{\"const\":1},{\"const\":2}]}", TERN_EINVAL, "no text can satisfy");
    refused("{\"type\":\"null\",\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", TERN_EINVAL,
            "no text can satisfy");
    refused("{\"additionalProperties\":false,\"anyOf\":[{\"required\":[\"b\"]},{\"required\":[\"c\"]}]}", TERN_EINVAL,
            "anyOf/0: \"b\" is required and not allowed");
    /* what is wrong by itself is so in any alternative */
    refused("{\"type\":\"null\",\"anyOf\":[{\"type\":\"text\"},{\"type\":\"null\"}]}", TERN_EINVAL, "no type \"text\"");
    refused("{\"type\":\"null\",\"anyOf\":[{\"type\":[]},{\"type\":\"null\"}]}", TERN_EINVAL, "type must be a name");
    refused("{\"type\":\"null\",\"anyOf\":[{\"type\":\"string\",\"not\":{}},{\"type\":\"null\"}]}", TERN_EUNSUPPORTED,
            "the keyword \"not\"");
}

/* before, n times a number within `each`, after */
static void numbered(struct tern_buf *b, const char *before, const char *each, int n, const char *after)
{
    (void)tern_buf_addf(b, NULL, "%s", before);
    for (int i = 0; i < n; i++) {
        (void)tern_buf_addf(b, NULL, i ? "," : "");
        const char *at = strchr(each, '#');
        (void)tern_buf_addf(b, NULL, "%.*s%d%s", (int)(at - each), each, i, at + 1);
    }
    (void)tern_buf_addf(b, NULL, "%s", after);
}

/* Many alternatives and long lists: values are looked up, and what takes long all the same ends with the limit. */
static void test_seconds(void **state)
{
    (void)state;
    static const struct {
        const char *before, *each;
        int n;
        const char *between, *each2, *after;
        bool compiles; /* within the limit, surely */
    } rows[] = {
        {"{\"oneOf\":[", "{\"const\":#}", 12000, "]", NULL, "}", true},
        {"{\"oneOf\":[{\"type\":\"integer\"},", "{\"const\":\"#\"}", 12000, "]", NULL, "}", true},
        {"{\"oneOf\":[{\"enum\":[", "\"a#\"", 20000, "]},{\"enum\":[", "\"b#\"", "]}]}", true},
        {"{\"allOf\":[{\"enum\":[", "\"a#\"", 20000, ",\"b1\"]},{\"enum\":[", "\"b#\"", "]}]}", true},
        {"{\"oneOf\":[", "{\"required\":[\"t\"],\"type\":\"object\",\"properties\":{\"t\":{\"const\":#}}}", 14000, "]",
         NULL, "}", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tern_buf b = {0};
        tern_error err = {0};
        tern_grammar *g = NULL;
        numbered(&b, rows[i].before, rows[i].each, rows[i].n, rows[i].between);
        if (rows[i].each2)
            numbered(&b, "", rows[i].each2, rows[i].n, "");
        (void)tern_buf_addf(&b, NULL, "%s", rows[i].after);
        double start = tern_now();
        int rc = tern_gr_compile(&g, TERN_GR_SCHEMA, b.p, b.len, NULL, NULL, &err);
        if (tern_now() - start > 30) /* under sanitizers, on a loaded machine */
            fail_msg("row %zu took %.1f seconds", i, tern_now() - start);
        if (rc < 0 && (rows[i].compiles || rc != TERN_ELIMIT || !strstr(err.msg, "seconds to compile")))
            fail_msg("row %zu: %d, %s", i, rc, err.msg);
        tern_grammar_free(g);
        tern_buf_clear(&b);
    }
}

/* Numbers of equal bounds share their states. */
static void test_many_numbers(void **state)
{
    (void)state;
    static const char *const each[] = {"\"a#\":{\"type\":\"integer\"}", "\"a#\":{\"type\":\"number\",\"minimum\":-3}",
                                       "\"a#\":{\"type\":\"integer\",\"minimum\":0}"};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct tern_buf b = {0};
        numbered(&b, "{\"type\":\"object\",\"properties\":{", each[i], 300, "},\"required\":[\"a299\"]}");
        SCHEMA(b.p, L("{\"a299\":7}", "{\"a0\":1,\"a150\":999999999999999999,\"a299\":0}"),
               L("{\"a0\":7}", "{\"a299\":-}", "{\"a299\":01}", "{\"a299\":-4.5}"));
        tern_buf_clear(&b);
    }
    SCHEMA("{\"prefixItems\":[{\"type\":\"integer\",\"minimum\":5,\"maximum\":7},{\"type\":\"integer\",\"minimum\":5,"
           "\"maximum\":8},{\"type\":\"integer\",\"minimum\":5,\"maximum\":7}]}",
           L("[5,8,7]"), L("[8]", "[5,9]", "[5,8,8]"));
}

/* A name that is not allowed is none of the further members. */
static void test_forbidden_member(void **state)
{
    (void)state;
    SCHEMA("{\"properties\":{\"a\":{},\"c\":false},\"additionalProperties\":true}",
           L("{}", "{\"a\":1}", "{\"cc\":1}", "{\"a\":1,\"d\":2}"), L("{\"c\":1}", "{\"d\":1,\"c\":1}"));
}

/* Pairs of escapes in patterns, as other programs write them. */
static void test_pairs(void **state)
{
    (void)state;
    const enum tern_gr_kind k = TERN_GR_REGEX;
    table(k, "\\ud83d\\ude00+", L("😀", "😀😀"), L("😁", ""));
    table(k, "[a\\ud83d\\ude00-\\uD83D\\uDE02]", L("a", "😀", "😂"), L("😃", "b"));
    table(k, "[^\\ud83d\\ude00]|\\u00e9\\u0041", L("😁", "x", "éA"), L("😀"));
    table(k, "\\ud83d|\\ude00|\\ud83dx|\\ud83d\\u0041|b", L("b"), L("😀", "x", "A")); /* halves are no character */
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^\\\\ud83d\\\\ude00[\\\\ud83d\\\\ude01]$\"}", L("\"😀😁\""),
           L("\"😁😁\"", "\"\""));
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_items), cmocka_unit_test(test_notes),      cmocka_unit_test(test_equal_numbers),
        cmocka_unit_test(test_far_bounds),   cmocka_unit_test(test_impossible), cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_many_numbers), cmocka_unit_test(test_pairs),      cmocka_unit_test(test_forbidden_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
