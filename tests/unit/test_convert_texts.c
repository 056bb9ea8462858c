/* Converting a directory: what lies beside its weights comes along, sampling and both templates. */
#include "tiny.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tern/convert.h"

static char dir[] = "/tmp/tern-convert-texts-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static const char *const files[] = {"config.json",    "model.safetensors",     "generation_config.json",
                                    "tokenizer.json", "tokenizer_config.json", "new.gguf"};

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    for (int i = 0; i < 2; i++) {
        char from[512];
        (void)snprintf(from, sizeof from, "%s/hf/qwen3/%s", TERN_TEST_DATA, files[i]);
        if (symlink(from, in_dir(files[i])))
            return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        (void)unlink(in_dir(files[i]));
    return rmdir(dir);
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static tern_model *open_model(const char *path)
{
    tern_model *m;
    tern_error err = {0};
    tiny_ok(tern_model_open(&m, path, &(tern_model_params){.n_threads = 1, .packed = "off"}, &err), &err);
    return m;
}

static void convert(void)
{
    tern_error err = {0};
    tiny_ok(tern_convert(dir, in_dir("new.gguf"), &(tern_convert_params){.n_threads = 1}, NULL, &err), &err);
}

/* The new file recommends what the directory does. */
static void test_sampling(void **state)
{
    static const struct {
        const char *json;
        bool anything;
    } cases[] = {
        {"{}", false},
        {"{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": 0.01}", true},
        {"{\"do_sample\": true}", true},
        {"{\"top_k\": 64}", true},
        {"{\"top_k\": -1, \"top_p\": 1}", true},
        {"{\"do_sample\": false, \"temperature\": 0.5, \"top_k\": 20}", true},
        {"{\"repetition_penalty\": 1.5}", true},
        {"{\"repetition_penalty\": 0.01}", false},
        {"{\"temperature\": -1, \"top_p\": \"1\", \"top_k\": 1e99, \"min_p\": 1.5}", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_sampler_params p[2];
        unsigned said[2];
        write_text("generation_config.json", cases[i].json);
        convert();
        for (int k = 0; k < 2; k++) {
            tern_model *m = open_model(k ? in_dir("new.gguf") : dir);
            tern_sampler_defaults(&p[k]);
            said[k] = tern_model_recommends(m, &p[k]);
            tern_model_close(&m);
        }
        assert_int_equal(said[0] != 0, cases[i].anything);
        assert_int_equal(said[0], said[1]);
        assert_true(p[0].temperature == p[1].temperature && p[0].top_k == p[1].top_k && p[0].top_p == p[1].top_p);
        assert_true(p[0].min_p == p[1].min_p && p[0].repetition_penalty == p[1].repetition_penalty);
        assert_int_equal(p[0].penalty_last, p[1].penalty_last);
    }
    tern_error err = {0};
    write_text("generation_config.json", "[1]");
    assert_int_equal(tern_convert(dir, in_dir("new.gguf"), NULL, NULL, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "generation_config.json is not a JSON object"));
    assert_int_equal(unlink(in_dir("generation_config.json")), 0);
}

/* A template of its own for conversations with tools. */
static void test_tool_template(void **state)
{
    (void)state;
    write_text("tokenizer.json",
               "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "
               "\"decoder\": {\"type\": \"ByteLevel\"}, "
               "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"<s>\": 3, \"<e>\": 4}, "
               "\"merges\": [\"a b\"]}, \"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}, "
               "{\"id\": 4, \"content\": \"<e>\", \"special\": true}]}");
    for (int has = 0; has < 2; has++) {
        char text[400];
        (void)snprintf(text, sizeof text,
                       "{\"chat_template\": [{\"name\": \"default\", \"template\": \"ab{{ thinking and effort }}\"}, "
                       "{\"name\": \"%s\", \"template\": \"{{ 'aba' if tools }}<tool_call>\"}]}",
                       has ? "tool_use" : "rag");
        write_text("tokenizer_config.json", text);
        convert();
        tern_model *m = open_model(in_dir("new.gguf"));
        assert_int_equal(tern_model_chat_uses(m, "tools"), has);
        const char *calls = tern_model_chat_calls(m);
        assert_true(has ? calls && strcmp(calls, "hermes") == 0 : !calls);
        tern_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sampling), cmocka_unit_test(test_tool_template)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
