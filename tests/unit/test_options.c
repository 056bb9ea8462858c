/* The option table and the parser that reads command lines by it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/cpu.h"
#include "base/options.h"

#define MAX_WORDS 40

struct line {
    char *argv[MAX_WORDS];
    int argc;
    char text[1024];
    struct tern_args a;
    tern_error err;
};

/* Splits "run|-m|FILE" at the bars and parses it as the command line of its first words. */
static int parse(struct line *l, const char *text)
{
    int words = 0;
    memset(l, 0, sizeof *l);
    (void)snprintf(l->text, sizeof l->text, "tern|%s", text);
    for (char *p = l->text; p && l->argc < MAX_WORDS - 1;) {
        char *bar = strchr(p, '|');
        l->argv[l->argc++] = p;
        if (bar)
            *bar++ = 0;
        p = bar;
    }
    const struct tern_command *c = tern_command_find(l->argc, l->argv, &words);
    assert_non_null(c);
    return tern_args_parse(&l->a, c, l->argc - words, l->argv + words, &l->err);
}

static void good(struct line *l, const char *text)
{
    int rc = parse(l, text);
    if (rc < 0)
        fail_msg("%s: %s", text, l->err.msg);
}

/* The line is refused and the message has every one of the words (separated by '|'). */
static void bad(const char *text, const char *words)
{
    struct line l;
    char copy[256];
    if (parse(&l, text) != TERN_EINVAL)
        fail_msg("accepted: %s", text);
    (void)snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, "|"); w; w = strtok(NULL, "|"))
        if (!strstr(l.err.msg, w))
            fail_msg("%s: message lacks \"%s\": %s", text, w, l.err.msg);
    assert_null(strchr(l.err.msg, '\n'));
}

static void test_values(void **state)
{
    (void)state;
    struct line l;
    good(&l, "run|-m|a.gguf|-p|hello|-n|0|--temp|0.75|--stop|x|--stop|yy|--raw|--kv-policy=strict|-t8");
    assert_string_equal(l.a.v[TERN_OPT_MODEL].s, "a.gguf");
    assert_string_equal(l.a.v[TERN_OPT_PROMPT].s, "hello");
    assert_int_equal(l.a.v[TERN_OPT_MAX_TOKENS].i, 0);
    assert_int_equal(l.a.v[TERN_OPT_MAX_TOKENS].n, 1);
    assert_true(l.a.v[TERN_OPT_TEMP].f == 0.75);
    assert_int_equal(l.a.v[TERN_OPT_STOP].n_items, 2);
    assert_string_equal(l.a.v[TERN_OPT_STOP].ss[0], "x");
    assert_string_equal(l.a.v[TERN_OPT_STOP].ss[1], "yy");
    assert_int_equal(l.a.v[TERN_OPT_RAW].n, 1);
    assert_string_equal(l.a.v[TERN_OPT_KV_POLICY].s, "strict");
    assert_int_equal(l.a.v[TERN_OPT_THREADS].i, 8);
    tern_args_clear(&l.a);
}

static void test_defaults(void **state)
{
    (void)state;
    struct line l;
    good(&l, "run|-m|a|-p|b");
    assert_int_equal(l.a.v[TERN_OPT_MAX_TOKENS].i, 256);
    assert_int_equal(l.a.v[TERN_OPT_MAX_TOKENS].n, 0);
    assert_true(l.a.v[TERN_OPT_TOP_P].f == 1.0);
    assert_null(l.a.v[TERN_OPT_KV].s);
    assert_string_equal(l.a.v[TERN_OPT_CPU_MASK].s, "all");
    tern_args_clear(&l.a);
    good(&l, "bench|-m|a");
    assert_int_equal(l.a.v[TERN_OPT_DEPTH].n_items, 3);
    assert_int_equal(l.a.v[TERN_OPT_DEPTH].ints[1], 4096);
    assert_int_equal(l.a.v[TERN_OPT_BENCH_PROMPT].i, 512);
    assert_int_equal(l.a.v[TERN_OPT_BENCH_KV].n_items, 1);
    assert_string_equal(l.a.v[TERN_OPT_BENCH_KV].ss[0], "f16,t4");
    tern_args_clear(&l.a);
}

static void test_last_one_counts(void **state)
{
    (void)state;
    struct line l;
    good(&l, "bench|-m|b|-d|1,2,3|-d|7|--kv|f16|--kv|k=l4,v=l3");
    assert_string_equal(l.a.v[TERN_OPT_MODEL].s, "b");
    assert_int_equal(l.a.v[TERN_OPT_DEPTH].n_items, 1);
    assert_int_equal(l.a.v[TERN_OPT_DEPTH].ints[0], 7);
    assert_int_equal(l.a.v[TERN_OPT_BENCH_KV].n_items, 2);
    tern_args_clear(&l.a);
}

static void test_edges(void **state)
{
    (void)state;
    struct line l;
    good(&l, "run|-m|a|-p|b|-n|2147483647|--top-p|0|--temp|100|--penalty-last|-1|--seed|9007199254740991");
    assert_int_equal(l.a.v[TERN_OPT_MAX_TOKENS].i, INT32_MAX);
    assert_int_equal(l.a.v[TERN_OPT_PENALTY_LAST].i, -1);
    assert_true(l.a.v[TERN_OPT_SEED].i == 9007199254740991);
    tern_args_clear(&l.a);
    bad("run|-m|a|-p|b|-n|-1", "-n|0 to 2147483647|\"-1\"");
    bad("run|-m|a|-p|b|-n|2147483648", "-n|2147483648");
    bad("run|-m|a|-p|b|-n|99999999999999999999", "-n");
    bad("run|-m|a|-p|b|-n|1x", "-n|\"1x\"");
    bad("run|-m|a|-p|b|-n|1.5", "-n");
    bad("run|-m|a|-p|b|-n|", "-n|\"\"");
    bad("run|-m|a|-p|b|-n| 1", "-n");
    bad("run|-m|a|-p|b|--top-p|1.0001", "--top-p|0 to 1");
    bad("run|-m|a|-p|b|--top-p|nan", "--top-p");
    bad("run|-m|a|-p|b|--temp|inf", "--temp");
    bad("run|-m|a|-p|b|--temp|-0.1", "--temp|0 to 100");
    bad("run|-m|a|-p|b|--temp|", "--temp");
    bad("run|-m|a|-p|b|--temp|1,5", "--temp|1,5");
    bad("run|-m|a|-p|b|--seed|-1", "--seed");
    bad("run|-m|a|-p|b|-t|257", "--threads|256");
    bad("chat|-m|a|-n|-2", "-n|-1 to");
}

static void test_lists(void **state)
{
    (void)state;
    struct line l;
    char many[512] = "bench|-m|a|-d|0";
    for (int i = 1; i < TERN_OPT_MAX_INTS; i++)
        strcat(many, ",0");
    good(&l, many);
    assert_int_equal(l.a.v[TERN_OPT_DEPTH].n_items, TERN_OPT_MAX_INTS);
    tern_args_clear(&l.a);
    strcat(many, ",0");
    bad(many, "-d|64");
    bad("bench|-m|a|-d|", "-d|list");
    bad("bench|-m|a|-d|1,", "-d|\"1,\"");
    bad("bench|-m|a|-d|,1", "-d");
    bad("bench|-m|a|-d|1,,2", "-d");
    bad("bench|-m|a|-d|1,-2", "-d|from 0");
    bad("bench|-m|a|-d|1 2", "-d");
}

static void test_words(void **state)
{
    (void)state;
    bad("run|-m|a|-p|b|--kv-policy|loose", "--kv-policy|loose");
    bad("run|-m|a|-p|b|--cpu-mask|avx", "--cpu-mask|" TERN_CPU_WORDS);
    bad("run|-m|a|-p|b|--cpu-mask|", "--cpu-mask");
    bad("run|-m|a|-p|b|-m|c", "-m (--model)|twice|\"a\"|\"c\"");
    bad("run|-m|a|-p|b|--bogus", "unknown|--bogus");
    bad("run|-m|a|-p|b|--bogus=1", "unknown|--bogus");
    bad("run|-m|a|-p|b|-z", "unknown|-z");
    bad("run|-m|a|-p|b|--json=1", "--json|no value");
    bad("run|-m|a|-p", "-p|needs a value");
    bad("run|-m|a|--prompt", "--prompt|needs a value");
    bad("run|-p|b", "-m|FILE|missing");
    bad("run|-m|a|b|stray", "unexpected|stray");
    bad("inspect", "FILE|missing");
    bad("inspect|a|b", "unexpected|\"b\"");
    bad("eval|logits|-m|a|--ids|1", "--out");
}

/* The longer name wins; without its second word it is another command. */
static void test_two_words(void **state)
{
    (void)state;
    struct line l;
    good(&l, "bench|kv|--preset|smollm2");
    assert_int_equal(l.a.command->id, TERN_CMD_BENCH_KV);
    tern_args_clear(&l.a);
    good(&l, "bench|-m|kv");
    assert_int_equal(l.a.command->id, TERN_CMD_BENCH);
    tern_args_clear(&l.a);
    bad("bench|-m|a|kv", "unexpected|\"kv\"");
}

static void test_operands_anywhere(void **state)
{
    (void)state;
    struct line l;
    good(&l, "inspect|--json|model.gguf|--kv|l4");
    assert_int_equal(l.a.n_operands, 1);
    assert_string_equal(l.a.operands[0], "model.gguf");
    assert_string_equal(l.a.v[TERN_OPT_KV].s, "l4");
    tern_args_clear(&l.a);
    good(&l, "inspect|--json|--|--kv");
    assert_string_equal(l.a.operands[0], "--kv");
    tern_args_clear(&l.a);
}

static void test_help_needs_nothing(void **state)
{
    (void)state;
    struct line l;
    good(&l, "run|--help");
    assert_int_equal(l.a.v[TERN_OPT_HELP].n, 1);
    tern_args_clear(&l.a);
    good(&l, "inspect|-h");
    tern_args_clear(&l.a);
}

static void test_command_names(void **state)
{
    (void)state;
    int words = 0;
    char *two[] = {"tern", "eval", "ppl", "-h"}, *half[] = {"tern", "eval"}, *other[] = {"tern", "runs"};
    assert_ptr_equal(tern_command_find(4, two, &words), &tern_commands[TERN_CMD_EVAL_PPL]);
    assert_int_equal(words, 2);
    assert_null(tern_command_find(2, half, &words));
    assert_null(tern_command_find(2, other, &words));
    assert_null(tern_command_find(1, other, &words));
}

/* The table itself: no command sees one name twice, ranges are ranges, defaults are legal, help texts are fragments. */
static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < TERN_N_OPTIONS; i++) {
        const struct tern_option *o = &tern_options[i];
        if (o->kind == TERN_KIND_GROUP)
            continue;
        assert_true(o->commands != 0);
        assert_int_equal(o->required & ~o->commands, 0);
        assert_true((o->kind == TERN_KIND_FLAG) == (o->metavar == NULL));
        assert_true(strlen(o->help) > 8 && o->help[strlen(o->help) - 1] != '.');
        if (o->kind == TERN_KIND_INT || o->kind == TERN_KIND_INTS || o->kind == TERN_KIND_FLOAT)
            assert_true(o->min < o->max);
        for (int j = 0; j < i; j++) {
            const struct tern_option *p = &tern_options[j];
            if (!(p->commands & o->commands) || p->kind == TERN_KIND_GROUP)
                continue;
            assert_string_not_equal(p->name, o->name);
            assert_true(!o->letter || p->letter != o->letter);
        }
    }
}

static void test_help_text(void **state)
{
    (void)state;
    for (int i = 0; i < TERN_N_COMMANDS; i++) {
        struct tern_buf b = {0};
        tern_error err = {0};
        assert_int_equal(tern_command_help(&tern_commands[i], &b, &err), 0);
        for (int id = 0; id < TERN_N_OPTIONS; id++) {
            const struct tern_option *o = &tern_options[id];
            char spelled[64];
            (void)snprintf(spelled, sizeof spelled, "--%s", o->name);
            if (o->kind != TERN_KIND_GROUP && (o->commands & (1u << i)) && !strstr(b.p, spelled))
                fail_msg("help of %s lacks %s", tern_commands[i].name, spelled);
        }
        size_t column = 0;
        for (const char *p = b.p; *p; p++) {
            column = *p == '\n' ? 0 : column + 1;
            assert_true(column <= 120);
            if (*p == '\n')
                assert_true(p == b.p || p[-1] != ' ');
        }
        tern_buf_clear(&b);
    }
}

static void wrapped(const char *text, int column, int indent, int width, const char *expected)
{
    struct tern_buf b = {0};
    assert_int_equal(tern_text_wrap(&b, text, column, indent, width, NULL), 0);
    assert_string_equal(b.p ? b.p : "", expected);
    tern_buf_clear(&b);
}

static void test_wrap(void **state)
{
    (void)state;
    wrapped("", 0, 0, 10, "");
    wrapped("aa bb cc", 0, 0, 8, "aa bb cc");
    wrapped("aa bb cc", 0, 0, 7, "aa bb\ncc");
    wrapped("aa bb cc", 0, 2, 5, "aa bb\n  cc");
    wrapped("aaaaaaaaaaaa b", 0, 0, 5, "aaaaaaaaaaaa\nb");
    wrapped("aa\nbb", 0, 1, 20, "aa\n bb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_last_one_counts),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_two_words),
        cmocka_unit_test(test_operands_anywhere),
        cmocka_unit_test(test_help_needs_nothing),
        cmocka_unit_test(test_command_names),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_help_text),
        cmocka_unit_test(test_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
