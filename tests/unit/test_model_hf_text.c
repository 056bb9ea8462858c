/* What lies beside the weights of a directory: vocabulary, chat templates and recommended sampling. */
#include "hf_model.h"

#include <sys/stat.h>

static const char letters[] =
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"<s>\": 3, \"<e>\": 4}, "
    "\"merges\": [\"a b\"]}, \"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}, "
    "{\"id\": 4, \"content\": \"<e>\", \"special\": true}], \"decoder\": {\"type\": \"Fuse\"}}";

/* Vocabulary and chat template lie beside the weights; the template as a file of its own, or inside another. */
static void test_text(void **state)
{
    static const char *const names[] = {"tokenizer_config.json", "chat_template.json", "chat_template.jinja"};
    static const char *const texts[] = {
        "{\"bos_token\": \"<s>\", \"chat_template\": [{\"name\": \"tools\", \"template\": \"x\"}, "
        "{\"name\": \"default\", \"template\": \"{{ bos_token }}1{{ messages[0].content }}\"}]}",
        "{\"chat_template\": \"2{{ messages[0].content }}\"}", "3{{ messages[0].content }}"};
    static const char *const want[] = {"<s>1ab", "2ab", "3ab"};
    const tern_chat_turn turn = {"user", "ab"};
    (void)state;
    place("llama", LLAMA(ROPE));
    write_text("tokenizer.json", letters);
    write_text("generation_config.json", "{\"eos_token_id\": [4, 1]}");
    for (int i = 0; i < 3; i++) {
        tern_model *m;
        tern_error err = {0};
        tern_tokens ids = {0};
        char *text;
        write_text(names[i], texts[i]);
        tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
        tiny_ok(tern_model_tokenize(m, "abba", 4, 0, &ids, &err), &err);
        assert_int_equal(ids.len, 3);
        assert_memory_equal(ids.p, ((int32_t[]){2, 1, 0}), 3 * sizeof *ids.p);
        assert_true(tern_model_is_eog(m, 4) && tern_model_is_eog(m, 1) && !tern_model_is_eog(m, 2));
        tiny_ok(tern_model_chat_text(m, &turn, 1, true, &text, &err), &err);
        assert_string_equal(text, want[i]);
        free(text);
        tern_tokens_clear(&ids);
        tern_model_close(&m);
        assert_int_equal(unlink(in_dir(names[i])), 0);
    }
    write_text("tokenizer.json", "{}");
    tern_model *m;
    tern_error err = {0};
    assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
    assert_non_null(strstr(err.msg, "tokenizer.json"));
    assert_int_equal(unlink(in_dir("tokenizer.json")), 0);
    assert_int_equal(unlink(in_dir("generation_config.json")), 0);
}

/* What generation_config.json says of sampling: defaults of this program where it says nothing. */
static void test_recommended(void **state)
{
    enum { T = TERN_SAID_TEMPERATURE, K = TERN_SAID_TOP_K, P = TERN_SAID_TOP_P, M = TERN_SAID_MIN_P };
    enum { R = TERN_SAID_REPETITION, L = TERN_SAID_LAST };
    static const struct {
        const char *json;
        unsigned said;
        tern_sampler_params want;
        const char *left_out;
    } cases[] = {
        {"{}", 0, {.top_p = 1, .repetition_penalty = 1}, NULL},
        {"{\"eos_token_id\": [4, 1], \"num_beams\": 1, \"suppress_tokens\": [], \"typical_p\": null}",
         0,
         {.top_p = 1, .repetition_penalty = 1},
         NULL},
        {"{\"do_sample\": true, \"temperature\": 0.5, \"top_k\": 20, \"top_p\": 0.75, \"min_p\": 0.25}",
         T | K | P | M,
         {.temperature = .5f, .top_k = 20, .top_p = .75f, .min_p = .25f, .repetition_penalty = 1},
         NULL},
        {"{\"do_sample\": true}", T, {.temperature = 1, .top_p = 1, .repetition_penalty = 1}, NULL},
        {"{\"top_k\": 64}", T | K, {.temperature = 1, .top_k = 64, .top_p = 1, .repetition_penalty = 1}, NULL},
        {"{\"do_sample\": false, \"temperature\": 0.5, \"top_k\": 20}", T, {.top_p = 1, .repetition_penalty = 1}, NULL},
        {"{\"repetition_penalty\": 1.5}", R | L, {.top_p = 1, .repetition_penalty = 1.5f, .penalty_last = -1}, NULL},
        {"{\"top_k\": 20.5, \"do_sample\": true}", T, {.temperature = 1, .top_p = 1, .repetition_penalty = 1}, "top_k"},
        {"{\"temperature\": -1, \"top_p\": \"1\", \"top_k\": 1e99, \"min_p\": 1.5, \"no_repeat_ngram_size\": 3}",
         0,
         {.top_p = 1, .repetition_penalty = 1},
         "temperature, top_k, top_p, min_p, no_repeat_ngram_size"},
    };
    (void)state;
    place("llama", LLAMA(ROPE));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_model *m;
        tern_error err = {0};
        tern_sampler_params p, want = cases[i].want;
        write_text("generation_config.json", cases[i].json);
        tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
        tern_sampler_defaults(&p);
        assert_int_equal(tern_model_recommends(m, &p), cases[i].said);
        assert_true(p.temperature == want.temperature && p.top_k == want.top_k && p.top_p == want.top_p);
        assert_true(p.min_p == want.min_p && p.repetition_penalty == want.repetition_penalty);
        assert_int_equal(p.penalty_last, want.penalty_last);
        const char *left_out = tern_model_get_info(m)->sampling_left_out;
        assert_string_equal(left_out ? left_out : "", cases[i].left_out ? cases[i].left_out : "");
        tern_model_close(&m);
    }
    static const char *const bad[] = {"", "[]", "{\"top_k\": 1", "nul"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_model *m;
        tern_error err = {0};
        write_text("generation_config.json", bad[i]);
        assert_int_equal(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), TERN_EFORMAT);
        assert_non_null(strstr(err.msg, "generation_config.json"));
    }
    assert_int_equal(unlink(in_dir("generation_config.json")), 0);
}

static size_t prompt_length(const tern_model *m, const char *vars)
{
    tern_tokens ids = {0};
    tern_error err = {0};
    tiny_ok(tern_model_chat_json(m, "[{\"role\": \"user\", \"content\": \"ab\"}]", vars, false, &ids, &err), &err);
    size_t n = ids.len;
    tern_tokens_clear(&ids);
    return n;
}

/* A template of its own for conversations with tools, in a list or as a file. */
static void test_tool_template(void **state)
{
    static const char tool_use[] = "{{ 'aba' if tools and thinking }}<tool_call>",
                      one[] = "ab{{ thinking and effort }}";
    (void)state;
    place("llama", LLAMA(ROPE));
    write_text("tokenizer.json", letters);
    for (int i = 0; i < 3; i++) {
        tern_model *m;
        tern_error err = {0};
        char text[400];
        (void)snprintf(text, sizeof text,
                       "{\"chat_template\": [{\"name\": \"default\", \"template\": \"%s\"}, {\"name\": \"%s\", "
                       "\"template\": \"%s\"}]}",
                       one, i == 0 ? "tool_use" : "rag", tool_use);
        write_text("tokenizer_config.json", text);
        if (i == 2)
            assert_int_equal(mkdir(in_dir("additional_chat_templates"), 0755), 0);
        if (i == 2)
            write_text("additional_chat_templates/tool_use.jinja", tool_use);
        tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
        const bool has = i != 1;
        assert_int_equal(prompt_length(m, NULL), 1);
        assert_int_equal(prompt_length(m, "{\"tools\": [], \"thinking\": true, \"effort\": \"\"}"), 1);
        assert_int_equal(prompt_length(m, "{\"tools\": [1], \"thinking\": true, \"effort\": \"\"}"), has ? 3 : 1);
        assert_int_equal(tern_model_chat_uses(m, "tools"), has);
        assert_true(tern_model_chat_uses(m, "thinking"));
        assert_int_equal(tern_model_chat_uses(m, "effort"), !has);
        const char *calls = tern_model_chat_calls(m);
        assert_true(has ? calls && strcmp(calls, "hermes") == 0 : !calls);
        tern_model_close(&m);
    }
    assert_int_equal(unlink(in_dir("additional_chat_templates/tool_use.jinja")), 0);
    assert_int_equal(rmdir(in_dir("additional_chat_templates")), 0);
    assert_int_equal(unlink(in_dir("tokenizer_config.json")), 0);
    assert_int_equal(unlink(in_dir("tokenizer.json")), 0);
}

/* Arguments of calls come as text or as objects; templates want one or the other. */
static void test_messages(void **state)
{
    static const char *const templates[] = {"{{ messages[0].tool_calls[0].function.arguments.x }}",
                                            "{{ 'ab' if messages[0].tool_calls[0].function.arguments + '' }}"};
    static const char *const calls[] = {
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": {\"x\": \"ab\"}}}]}]",
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": \"{\\\"x\\\": \\\"ab\\\"}\"}}]}]"};
    (void)state;
    place("llama", LLAMA(ROPE));
    write_text("tokenizer.json", letters);
    for (int t = 0; t < 2; t++) {
        tern_model *m;
        tern_error err = {0};
        tern_tokens ids = {0};
        write_text("chat_template.jinja", templates[t]);
        tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
        for (int c = 0; c < 2; c++)
            tiny_ok(tern_model_chat_json(m, calls[c], "{\"tools\": []}", true, &ids, &err), &err);
        assert_int_equal(ids.len, 2);
        assert_true(ids.p[0] == 2 && ids.p[1] == 2 && err.code == 0);
        assert_int_equal(tern_model_chat_json(m, "{}", NULL, true, &ids, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "no JSON array"));
        assert_int_equal(tern_model_chat_json(m, "[]", NULL, true, &ids, &err), TERN_EINVAL);
        assert_true(tern_model_chat_uses(m, "messages") && !tern_model_chat_uses(m, "tools"));
        assert_null(tern_model_chat_calls(m));
        tern_tokens_clear(&ids);
        tern_model_close(&m);
    }
    assert_int_equal(unlink(in_dir("chat_template.jinja")), 0);
    assert_int_equal(unlink(in_dir("tokenizer.json")), 0);
}

/* DeepSeek-V4's marks and the letters of its texts, as tokens of their own. */
static void write_v4_vocabulary(void)
{
    static const char ascii[] = "abcdefghijklmnopqrstuvwxyzREAYMUST ,.:-";
    static const char *const marks[] = {
        "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"};
    char text[4000];
    int n = snprintf(text, sizeof text, "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\\n\": 0");
    for (int i = 0; ascii[i]; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", \"%c\": %d", ascii[i], i + 1);
    n += snprintf(text + n, sizeof text - (size_t)n, "}, \"merges\": []}, \"added_tokens\": [");
    for (int i = 0; i < 6; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s{\"id\": %d, \"content\": \"%s\", \"special\": true}",
                      i ? ", " : "", 50 + i, marks[i]);
    n += snprintf(text + n, sizeof text - (size_t)n, "], \"decoder\": {\"type\": \"Fuse\"}}");
    assert_true(n < (int)sizeof text);
    write_text("tokenizer.json", text);
}

static void check_prompt(const tern_model *m, const char *vars, const int32_t *want, size_t n)
{
    tern_tokens ids = {0};
    tern_error err = {0};
    tiny_ok(tern_model_chat_json(m, "[{\"role\": \"user\", \"content\": \"ab\"}]", vars, true, &ids, &err), &err);
    assert_int_equal(ids.len, n);
    assert_memory_equal(ids.p, want, n * sizeof *want);
    tern_tokens_clear(&ids);
}

/* A DeepSeek-V4 without a template is asked as its encoder asks; its configuration tells the release, and a template
 * beside it comes first. */
static void test_builtin(void **state)
{
    enum { BOS = 50, EOS, USER, ASSISTANT, THINK, ANSWER };
    static struct bytes config;
    static const int32_t think[] = {BOS, USER, 1, 2, ASSISTANT, THINK}, chat[] = {BOS, USER, 1, 2, ASSISTANT, ANSWER};
    (void)state;
    for (int later = 0; later < 2; later++) {
        tern_model *m;
        tern_error err = {0};
        read_file(&config, "deepseek_v4", "config.json");
        if (later)
            replace(&config, "", "{", "{\"dspark_block_size\": 5,");
        config.p[config.n] = 0;
        place("deepseek_v4", config.p);
        write_v4_vocabulary();
        tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
        check_prompt(m, NULL, think, 6);
        check_prompt(m, "{\"enable_thinking\": false}", chat, 6);
        check_prompt(m, "{\"reasoning_effort\": \"low\"}", think, 6);
        tern_tokens high = {0};
        tiny_ok(tern_model_chat_json(m, "[{\"role\": \"user\", \"content\": \"ab\"}]",
                                     later ? "{\"reasoning_effort\": \"high\"}" : "{\"reasoning_effort\": \"max\"}",
                                     true, &high, &err),
                &err);
        assert_int_equal(high.len, 6 + 476); /* the first release's one text */
        tern_tokens_clear(&high);
        if (!later)
            check_prompt(m, "{\"reasoning_effort\": \"high\"}", think, 6);
        assert_true(tern_model_chat_uses(m, "tools") && tern_model_chat_uses(m, "reasoning_effort"));
        assert_true(tern_model_chat_quotes(m, "max") && tern_model_chat_quotes(m, "latest_reminder"));
        assert_false(tern_model_chat_quotes(m, "max\"") || tern_model_chat_quotes(m, "ma"));
        assert_string_equal(tern_model_chat_calls(m), "dsml");
        tern_model_close(&m);
        write_text("chat_template.jinja", "{{ messages[0].content }}");
        tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
        check_prompt(m, NULL, (int32_t[]){1, 2}, 2);
        tern_model_close(&m);
        assert_int_equal(unlink(in_dir("chat_template.jinja")), 0);
    }
    assert_int_equal(unlink(in_dir("tokenizer.json")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),     cmocka_unit_test(test_recommended), cmocka_unit_test(test_tool_template),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_builtin),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
