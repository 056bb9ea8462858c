/* Calls of DeepSeek-V4: arguments between marks, texts as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "grammar/grammar.h"

#define BAR            "｜DSML｜"
#define INVOKE(name)   "<" BAR "invoke name=\"" name "\">\n"
#define TEXT(key, v)   "<" BAR "parameter name=\"" key "\" string=\"true\">" v "</" BAR "parameter>\n"
#define JSON(key, v)   "<" BAR "parameter name=\"" key "\" string=\"false\">" v "</" BAR "parameter>\n"
#define DONE           "</" BAR "invoke>\n"
#define BLOCK(calls)   "\n\n<" BAR "tool_calls>\n" calls "</" BAR "tool_calls>"
#define ONE(arguments) BLOCK(INVOKE("f") arguments DONE)

static const char tools[] =
    "[{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\",\"description\":\"x\"},\"n\":{\"type\":\"integer\",\"maximum\":9},"
    "\"e\":{\"$ref\":\"#/$defs/e\"},\"u\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"null\"}]},"
    "\"l\":{\"type\":[\"string\",\"boolean\"]},\"p\":{\"type\":\"string\",\"pattern\":\"^a+$\"},"
    "\"d\":{\"type\":\"string\",\"format\":\"date\"},\"o\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":"
    "\"string\"}}}},\"required\":[\"n\"],\"$defs\":{\"e\":{\"enum\":[\"a b\",\"\\\"c\"]}}}},"
    "{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":{\"type\":"
    "\"integer\"}}},{\"name\":\"any\"}]";

static const struct {
    const char *text;
    tern_grammar_fit fit;
} cases[] = {
    {ONE(JSON("n", "7")), TERN_GRAMMAR_WHOLE},
    {ONE(TEXT("s", "It \"is\" </b> <｜x｜ </｜D \n\\ </</") JSON("n", "7")), TERN_GRAMMAR_WHOLE},
    {ONE(TEXT("s", "") JSON("n", "7")), TERN_GRAMMAR_WHOLE},
    {ONE(TEXT("s", "\xC3(") JSON("n", "7")), TERN_GRAMMAR_NOT}, /* no character */
    {ONE(JSON("s", "\"x\"") JSON("n", "7")), TERN_GRAMMAR_NOT},
    {ONE(TEXT("n", "7")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "10")), TERN_GRAMMAR_NOT},
    {ONE(""), TERN_GRAMMAR_NOT}, /* n is required */
    {ONE(JSON("n", "7") TEXT("s", "x")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") JSON("n", "7")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") JSON("z", "7")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") TEXT("e", "a b")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") TEXT("e", "\"c")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") TEXT("e", "a")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") TEXT("u", "öö")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") TEXT("u", "ööö")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") JSON("u", "null")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") TEXT("l", "true")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") JSON("l", "true")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") JSON("l", "1")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") JSON("p", "\"aa\"")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") JSON("p", "\"ab\"")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") TEXT("d", "2026-11-23")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") TEXT("d", "2026-13-23")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") JSON("o", "{\"k\": \"v\"}")), TERN_GRAMMAR_WHOLE},
    {ONE(JSON("n", "7") JSON("o", "{\"k\": 1}")), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7") JSON("o", "{\"k\": \"</" BAR "parameter>\"}")), TERN_GRAMMAR_NOT}, /* would end it */
    {BLOCK(INVOKE("now") "\n" DONE), TERN_GRAMMAR_WHOLE},
    {BLOCK(INVOKE("now") DONE), TERN_GRAMMAR_WHOLE},
    {BLOCK(INVOKE("now") JSON("a", "1") JSON("b", "2") DONE), TERN_GRAMMAR_WHOLE},
    {BLOCK(INVOKE("now") TEXT("a", "1") DONE), TERN_GRAMMAR_NOT},
    {BLOCK(INVOKE("any") TEXT("a", "1") JSON("b", "[{}]") DONE), TERN_GRAMMAR_WHOLE},
    {BLOCK(INVOKE("none") DONE), TERN_GRAMMAR_NOT},
    {BLOCK(""), TERN_GRAMMAR_NOT},
    {ONE(JSON("n", "7")) "x", TERN_GRAMMAR_NOT},
    {ONE(TEXT("s", "It</" BAR)), TERN_GRAMMAR_NOT},
    {"\n\n<" BAR "tool_calls>\n<" BAR "invoke name=\"f\">\n<" BAR "parameter name=\"s\" string=\"true\">It</" BAR,
     TERN_GRAMMAR_BEGIN},
    {"Hi", TERN_GRAMMAR_NOT},
};

static tern_grammar_fit fit_of(const struct tern_gr_calls *calls, const char *text)
{
    tern_grammar *g;
    tern_grammar_fit fit;
    tern_error err = {0};
    if (tern_gr_compile(&g, TERN_GR_CALLS, tools, strlen(tools), NULL, calls, &err) < 0 ||
        tern_grammar_check(g, text, strlen(text), &fit, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    tern_grammar_free(g);
    return fit;
}

static void test_calls(void **state)
{
    struct tern_gr_calls c = {.dsml = true, .required = true};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tern_grammar_fit fit = fit_of(&c, cases[i].text);
        if (fit != cases[i].fit)
            fail_msg("%s: %d instead of %d", cases[i].text, (int)fit, (int)cases[i].fit);
    }
    static const char two[] = BLOCK(INVOKE("now") "\n" DONE INVOKE("f") JSON("n", "1") DONE);
    assert_int_equal(fit_of(&c, two), TERN_GRAMMAR_NOT);
    c.several = true;
    assert_int_equal(fit_of(&c, two), TERN_GRAMMAR_WHOLE);
    c.function = "now";
    assert_int_equal(fit_of(&c, two), TERN_GRAMMAR_NOT);
    assert_int_equal(fit_of(&c, BLOCK(INVOKE("now") DONE)), TERN_GRAMMAR_WHOLE);
    c = (struct tern_gr_calls){.dsml = true};
    assert_int_equal(fit_of(&c, "Hi <b>"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_of(&c, "Hi" BLOCK(INVOKE("now") TEXT("a", "1") DONE)), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_of(&c, "Hi" ONE(JSON("n", "7"))), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_of(&c, "Hi" ONE(JSON("n", "77"))), TERN_GRAMMAR_NOT);
    c.otherwise = "{\"type\":\"null\"}";
    assert_int_equal(fit_of(&c, "null"), TERN_GRAMMAR_WHOLE);
    assert_int_equal(fit_of(&c, ONE(JSON("n", "7"))), TERN_GRAMMAR_WHOLE);
}

/* What cannot be written so is refused, and named. */
static void test_refusals(void **state)
{
    static const char *const wrong[][2] = {
        {"[{\"name\":\"a\\\"b\"}]", "its name has a quote"},
        {"[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\\nb\":{}}}}]",
         "the name of a parameter has a quote"},
        {"[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"anyOf\":[{}]}}]", "\"anyOf\" is not supported here"},
        {"[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"</" BAR "\"]}}}}]",
         "properties/a: a value that holds the mark"},
        {"[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}}]", "\"not\""},
        {"[{\"name\":\"f\",\"parameters\":{\"type\":\"array\"}}]", "not of type object"}};
    const struct tern_gr_calls c = {.dsml = true, .required = true};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tern_grammar *g;
        tern_error err = {0};
        assert_true(tern_gr_compile(&g, TERN_GR_CALLS, wrong[i][0], strlen(wrong[i][0]), NULL, &c, &err) < 0);
        print_message("%s\n", err.msg);
        assert_null(g);
        if (!strstr(err.msg, wrong[i][1]))
            fail_msg("it does not say %s", wrong[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
