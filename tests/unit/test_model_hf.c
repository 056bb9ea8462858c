/* Models as Hugging Face publishes them: every family's logits against the reference, the bits of GGUF twins, other
 * places and spellings of the same model, and checkpoints that must not open. */
#include "tiny.h"

#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    bool twin; /* a GGUF file of the same weights gives the same bits */
} models[] = {{"llama", false}, {"mistral", false}, {"qwen2", true}, {"qwen3", false},
              {"phi3", false},  {"gemma2", false},  {"gemma3", true}};

static const char *data_path(const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/hf/%s", TERN_TEST_DATA, name);
    return path[turn];
}

/* Opens `path` with the prompt and the logits of `name`. */
static void open_model(struct tiny *t, const char *path, const char *name)
{
    char base[64];
    tern_error err = {0};
    memset(t, 0, sizeof *t);
    tiny_ok(tern_model_open(&t->model, path, &(tern_model_params){.n_threads = 2}, &err), &err);
    (void)snprintf(base, sizeof base, "../hf/%s", name);
    tiny_read_ids(t, base);
    tiny_read_ref(t, base);
    assert_int_equal(t->n_vocab, tern_model_get_info(t->model)->n_vocab);
}

/* The logits of all positions; within 96 tokens phi3 uses its short factors. */
static float *run(struct tiny *t, const char *kv, bool exact, bool decode)
{
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s;
    float *out = tiny_buffer(t);
    tern_engine_params p = {.n_threads = 2, .max_seqs = 1, .chunk = 128, .ctx = 96, .kv = kv, .exact = exact};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, t->n_ids, decode ? 1 : 128, decode, out, 0, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

static void test_parity(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct tiny t;
        open_model(&t, data_path(models[i].name), models[i].name);
        float *got = run(&t, NULL, true, false);
        double d = tiny_max_diff(&t, got);
        print_message("%-10s exact max |difference| %.2e\n", models[i].name, d);
        assert_true(d <= 1e-4);
        free(got);
        tiny_close(&t);
    }
}

static void test_twins(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct tiny a, b;
        char twin[64];
        if (!models[i].twin)
            continue;
        (void)snprintf(twin, sizeof twin, "%s.gguf", models[i].name);
        open_model(&a, data_path(models[i].name), models[i].name);
        open_model(&b, data_path(twin), models[i].name);
        assert_string_equal(tern_model_get_info(a.model)->arch, tern_model_get_info(b.model)->arch);
        for (int decode = 0; decode < 2; decode++) {
            float *x = run(&a, "t4", false, decode), *y = run(&b, "t4", false, decode);
            assert_memory_equal(x, y, (size_t)a.n_ids * (size_t)a.n_vocab * sizeof *x);
            free(x);
            free(y);
        }
        tiny_close(&a);
        tiny_close(&b);
    }
}

/* ---- variations of one directory --------------------------------------------------------------------------------- */

static char dir[] = "/tmp/tern-hf-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* The weights of a committed directory under a configuration written here. */
static void place(const char *model, const char *config)
{
    (void)unlink(in_dir("model.safetensors"));
    char from[600];
    (void)snprintf(from, sizeof from, "%s/model.safetensors", data_path(model));
    assert_int_equal(symlink(from, in_dir("model.safetensors")), 0);
    write_text("config.json", config);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    (void)unlink(in_dir("model.safetensors"));
    (void)unlink(in_dir("config.json"));
    return rmdir(dir);
}

#define LLAMA(more)                                                                                                \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"intermediate_size\": 96, "       \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 48, \"max_position_embeddings\": 256, " \
    "\"rms_norm_eps\": 1e-5, \"vocab_size\": 192, \"hidden_act\": \"silu\"" more "}"
#define ROPE                                                                                                          \
    ", \"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, " \
    "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}"

static void check_same(const char *path, const char *name)
{
    struct tiny t;
    open_model(&t, path, name);
    float *got = run(&t, NULL, true, false);
    assert_true(tiny_max_diff(&t, got) <= 1e-4);
    free(got);
    tiny_close(&t);
}

/* Older spellings of the configuration, paths of the file instead of the directory, a path with a slash. */
static void test_spellings(void **state)
{
    (void)state;
    place("llama", LLAMA(ROPE));
    check_same(dir, "llama");
    check_same(in_dir("model.safetensors"), "llama");
    check_same(in_dir(""), "llama");
    check_same(data_path("qwen2/model.safetensors.index.json"), "qwen2");
    /* gemma2's class defaults and an older spelling */
    place("gemma2", "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma2\", "
                    "\"num_hidden_layers\": 2, \"hidden_size\": 32, \"intermediate_size\": 96, "
                    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 64, "
                    "\"rms_norm_eps\": 1e-5, \"sliding_window\": 24, \"query_pre_attn_scalar\": 48, "
                    "\"rope_theta\": 100000.0, \"attn_logit_softcapping\": 20, \"final_logit_softcapping\": 3.0}}");
    check_same(dir, "gemma2");
}

static void test_refused(void **state)
{
    static const struct {
        const char *config, *want;
        int code;
    } cases[] = {
        {"{}", "config.model_type", TERN_EFORMAT},
        {"{\"model_type\": \"rwkv\"}", "model_type \"rwkv\" is not supported (known: llama,", TERN_EUNSUPPORTED},
        {"[1]", "a list, not an object", TERN_EFORMAT},
        {"{\"a\": 1, \"a\": 2}", "malformed JSON: duplicate object key", TERN_EFORMAT},
        {"{\"a\": 1", "malformed JSON", TERN_EFORMAT},
        {LLAMA(ROPE ", \"hidden_act\\u0000\": 1"), "malformed JSON", TERN_EFORMAT},
        {LLAMA(ROPE ", \"tie_word_embeddings\": false"), "there is no tensor \"lm_head.weight\"", TERN_EFORMAT},
        {LLAMA(ROPE ", \"tie_word_embeddings\": 1"), "it is not true or false", TERN_EFORMAT},
        {LLAMA(ROPE ", \"rope_parameters.rope_theta\": 1, \"rope_parameters\": {\"rope_theta\": 2}"),
         "says this in two ways", TERN_EFORMAT},
        {LLAMA(ROPE ", \"use_bidirectional_attention\": true"), "this is set, which is not", TERN_EUNSUPPORTED},
        {LLAMA(ROPE ", \"final_logit_softcapping\": 30"), "soft caps are not supported", TERN_EUNSUPPORTED},
        {LLAMA(ROPE ", \"layer_types\": [\"full_attention\", \"full_attention\"]"), "one name for each layer",
         TERN_EFORMAT},
        {LLAMA(ROPE ", \"layer_types\": [\"linear_attention\"]"), "\"linear_attention\" is not supported",
         TERN_EUNSUPPORTED},
        {LLAMA(ROPE ", \"use_sliding_window\": true, \"sliding_window\": 8"), "without layer_types", TERN_EUNSUPPORTED},
        {LLAMA(ROPE ", \"partial_rotary_factor\": 1.5"), "not between 0 and 1", TERN_EFORMAT},
        {LLAMA(", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}"), "\"dynamic\"", TERN_EUNSUPPORTED},
        {LLAMA(", \"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": \"no\"}"), "not a list of numbers",
         TERN_EFORMAT},
        {LLAMA(", \"quantization_config\": {\"quant_method\": \"fp8\"}"), "quantization_config", TERN_EUNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_model *m;
        tern_error err = {0};
        place("llama", cases[i].config);
        int rc = tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err);
        print_message("%s\n", err.msg);
        assert_null(m);
        assert_int_equal(rc, cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].want));
        assert_non_null(strstr(err.msg, dir));
    }
}

/* Tensors that are another model's, and values of the wrong type or size: the file's own names are in the message. */
static void test_mismatch(void **state)
{
    static const struct {
        const char *model, *config, *want;
    } cases[] = {
        {"llama", LLAMA(ROPE ", \"vocab_size2\": 0, \"sliding_window\": \"8\""), "config.sliding_window"},
        {"qwen3", LLAMA(""), "tensor \"model.layers.0.self_attn.k_norm.weight\""},
        {"mistral", LLAMA(", \"num_local_experts\": 8"), "config.num_local_experts"},
        {"phi3", LLAMA(""), "blk.0.attn_"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_model *m;
        tern_error err = {0};
        place(cases[i].model, cases[i].config);
        assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
        print_message("%s\n", err.msg);
        assert_null(m);
        assert_non_null(strstr(err.msg, cases[i].want));
    }
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),   cmocka_unit_test(test_twins),    cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_mismatch), cmocka_unit_test(test_text),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
