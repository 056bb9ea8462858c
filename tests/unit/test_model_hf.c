/* Models as Hugging Face publishes them: every family's logits against the reference, the bits of GGUF twins, other
 * places and spellings of the same model, and checkpoints that must not open. */
#include "tiny.h"

#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    const char *twin; /* the same weights in another file or under other names: the same bits */
} models[] = {{"llama", NULL},
              {"mistral", NULL},
              {"qwen2", "qwen2.gguf"},
              {"qwen3", NULL},
              {"qwen3_moe", "qwen3_moe-stacked"},
              {"mixtral", "mixtral-stacked"},
              {"qwen3_5", NULL},
              {"qwen3_5_moe", NULL},
              {"llama4", NULL},
              {"gemma4", "gemma4.gguf"},
              {"gemma4_small", NULL},
              {"deepseek_v2", "deepseek_v2.gguf"},
              {"deepseek_v3", "deepseek_v3-stacked"},
              {"glm4_moe_lite", NULL},
              {"glm4", NULL},
              {"ministral3", NULL},
              {"smollm3", NULL},
              {"phi3", NULL},
              {"gemma2", NULL},
              {"gemma3", "gemma3.gguf"}};

static const char *data_path(const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/hf/%s", TERN_TEST_DATA, name);
    return path[turn];
}

/* Opens `path` with the prompt and the logits of `name`.  packed: a file, or NULL. */
static void open_packed(struct tiny *t, const char *path, const char *name, const char *packed)
{
    char base[64];
    tern_error err = {0};
    memset(t, 0, sizeof *t);
    tiny_ok(tern_model_open(&t->model, path, &(tern_model_params){.n_threads = 2, .packed = packed}, &err), &err);
    (void)snprintf(base, sizeof base, "../hf/%s", name);
    tiny_read_ids(t, base);
    tiny_read_ref(t, base);
    assert_int_equal(t->n_vocab, tern_model_get_info(t->model)->n_vocab);
}

static void open_model(struct tiny *t, const char *path, const char *name)
{
    open_packed(t, path, name, NULL);
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
        if (!models[i].twin)
            continue;
        open_model(&a, data_path(models[i].name), models[i].name);
        open_model(&b, data_path(models[i].twin), models[i].name);
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
    (void)unlink(in_dir("config.json")); /* may be a link to a committed one */
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
        {LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": 1, \"mscale_all_dim\": 1}"),
         "mscale\": this is set, which is not supported", TERN_EUNSUPPORTED},
        {LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": 0.7, \"mscale_all_dim\": 1}"),
         "not supported beside mscale_all_dim", TERN_EUNSUPPORTED},
        {LLAMA(", \"quantization_config\": {\"quant_method\": \"bitsandbytes\"}"), "quantization_config.quant_method",
         TERN_EUNSUPPORTED},
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

/* Places a committed directory in which some bytes of the weights' file read otherwise. */
static void place_changed(const char *model, const char *from, const char *to)
{
    static char bytes[200000], path[600];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", data_path(model));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(strlen(from), strlen(to));
    char *at = memmem(bytes, n, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    (void)unlink(in_dir("model.safetensors"));
    (void)unlink(in_dir("config.json"));
    f = fopen(in_dir("model.safetensors"), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    (void)snprintf(path, sizeof path, "%s/config.json", data_path(model));
    assert_int_equal(symlink(path, in_dir("config.json")), 0);
}

/* Of experts that are tensors of their own one is missing, or of another type or shape. */
static void test_experts(void **state)
{
    static const struct {
        const char *model, *from, *to, *want;
    } cases[] = {
        {"mixtral", "experts.2.w1", "experts.7.w1", "\"blk.0.ffn_gate.2.weight\" is missing"},
        {"mixtral", "experts.0.w1", "experts.7.w1", "\"blk.0.ffn_gate_exps.weight\" is missing"},
        {"mixtral", "experts.3.w2.weight\":{\"dtype\":\"BF16\"", "experts.3.w2.weight\":{\"dtype\": \"F16\"",
         "experts.3.w2.weight\" at byte"},
        {"mixtral", "experts.1.w3.weight\":{\"dtype\":\"BF16\",\"shape\":[96,32]",
         "experts.1.w3.weight\":{\"dtype\":\"BF16\",\"shape\":[32,96]", "has shape [96, 32], expected [32, 96]"},
        {"mixtral", "block_sparse_moe.gate", "block_sparse_moe.gave", "\"blk.0.ffn_gate_inp.weight\" is missing"},
        {"llama4", "\"shape\":[3,32,80]", "\"shape\":[3,80,32]", "has shape [80, 32, 3], expected [32, 80, 3]"},
        {"mixtral-stacked", "experts.gate_up_proj", "experts.gate_xp_proj",
         "\"blk.0.ffn_gate_exps.weight\" is missing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_model *m;
        tern_error err = {0};
        place_changed(cases[i].model, cases[i].from, cases[i].to);
        assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
        print_message("%s\n", err.msg);
        assert_non_null(strstr(err.msg, cases[i].want));
    }
}

#define LLAMA4(more)                                                                                                 \
    "{\"model_type\": \"llama4\", \"text_config\": {\"model_type\": \"llama4_text\", \"num_hidden_layers\": 4, "     \
    "\"hidden_size\": 32, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 32, "                \
    "\"intermediate_size\": 40, \"intermediate_size_mlp\": 64, \"num_local_experts\": 3, \"attention_chunk_size\": " \
    "30, "                                                                                                           \
    "\"floor_scale\": 20, \"attn_scale\": 0.4, \"use_qk_norm\": false, \"rope_theta\": 500000.0, \"rope_scaling\": " \
    "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 1, "                   \
    "\"original_max_position_embeddings\": 32}" more "}}"
#define EVERY_OTHER ", \"interleave_moe_layer_step\": 2"

/* What the configuration of llama4 may leave out, and what it must not say. */
static void test_llama4(void **state)
{
    static const struct {
        const char *config, *want;
    } cases[] = {
        {LLAMA4(EVERY_OTHER ", \"no_rope_layers\": [1, 1, 0, 1]"), "no_rope_layers\": another order of layers"},
        {LLAMA4(EVERY_OTHER ", \"layer_types\": [\"full_attention\"]"), "layer_types\": another order of layers"},
        {LLAMA4(EVERY_OTHER ", \"no_rope_layer_interval\": 3"), "an interval other than 4"},
        {LLAMA4(EVERY_OTHER ", \"moe_layers\": [0, 2]"), "these are not the layers of"},
        {LLAMA4(EVERY_OTHER ", \"moe_layers\": []"), "these are not the layers of"},
        {LLAMA4(""), "\"blk.0.ffn_gate_shexp.weight\" is missing"},
    };
    (void)state;
    place("llama4", LLAMA4(EVERY_OTHER ", \"no_rope_layers\": [], \"moe_layers\": [1, 3]"));
    check_same(dir, "llama4");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_model *m;
        tern_error err = {0};
        place("llama4", cases[i].config);
        assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
        print_message("%s\n", err.msg);
        assert_non_null(strstr(err.msg, cases[i].want));
    }
}

/* Configurations that must not open with the weights of a committed directory. */
struct refusal {
    const char *config, *want;
};

static void check_refused(const char *model, const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tern_model *m;
        tern_error err = {0};
        place(model, cases[i].config);
        assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
        print_message("%s\n", err.msg);
        assert_non_null(strstr(err.msg, cases[i].want));
    }
}

#define QWEN35(more)                                                                                               \
    "{\"model_type\": \"qwen3_5\", \"text_config\": {\"model_type\": \"qwen3_5_text\", \"num_hidden_layers\": 3, " \
    "\"hidden_size\": 32, \"intermediate_size\": 96, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "     \
    "\"head_dim\": 64, \"rms_norm_eps\": 1e-5, \"linear_key_head_dim\": 16, \"linear_num_key_heads\": 2" more "}}"
#define QWEN35_ROPE   ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e5}"
#define QWEN35_LAYERS ", \"layer_types\": [\"full_attention\", \"linear_attention\", \"linear_attention\"]"
#define QWEN35_VALUES ", \"linear_num_value_heads\": 6, \"linear_value_head_dim\": 32"
#define QWEN35_GOOD   QWEN35_ROPE QWEN35_LAYERS QWEN35_VALUES

/* What the configuration of qwen3_5 may leave out, what it must not say, and how its tensors must lie. */
static void test_qwen35(void **state)
{
    static const struct refusal cases[] = {
        {QWEN35(QWEN35_GOOD ", \"attn_output_gate\": false"), "attention without a gate is not supported"},
        {QWEN35(QWEN35_GOOD ", \"num_experts\": 4"), "experts are not supported for this model_type"},
        {QWEN35(QWEN35_ROPE QWEN35_VALUES ", \"layer_types\": [\"full_attention\"]"), "one name for each layer"},
        {QWEN35(QWEN35_ROPE QWEN35_VALUES ", \"layer_types\": [\"a\", \"b\", \"c\"]"), "\"a\" is not supported"},
        {QWEN35(QWEN35_ROPE QWEN35_VALUES), "no layer has attention"}, /* all but every fourth are recurrent */
        {QWEN35(QWEN35_ROPE QWEN35_LAYERS), "expected [32, 4160]"},    /* 32 heads of 128 */
        {QWEN35(QWEN35_ROPE QWEN35_LAYERS ", \"linear_num_value_heads\": 5"), "is not a multiple of the 2 key heads"},
        {QWEN35(QWEN35_ROPE QWEN35_LAYERS ", \"linear_value_head_dim\": \"32\""), "is no possible size"},
        {QWEN35(QWEN35_GOOD ", \"linear_conv_kernel_dim\": 5"), "has shape [4, 256], expected [5, 256]"},
    };
    static const char *const changes[][3] = {
        {"layers.2.linear_attn.A_log", "layers.2.linear_attn.B_log", "\"blk.2.ssm_a\" is missing"},
        {"[256,1,4]", "[256,4,1]", "has shape [1, 4], expected [4, 256]"}, /* as mlx-lm turns it; its norms hold 1+w */
    };
    (void)state;
    check_refused("qwen3_5", cases, sizeof cases / sizeof *cases);
    place("qwen3_5", QWEN35(QWEN35_GOOD ", \"attn_output_gate\": true, \"mtp_num_hidden_layers\": 1"));
    check_same(dir, "qwen3_5");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        tern_model *m;
        tern_error err = {0};
        place_changed("qwen3_5", changes[i][0], changes[i][1]);
        assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
        print_message("%s\n", err.msg);
        assert_non_null(strstr(err.msg, changes[i][2]));
    }
}

#define GEMMA4(more)                                                                                             \
    "{\"model_type\": \"gemma4\", \"text_config\": {\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 2, " \
    "\"hidden_size\": 32, \"intermediate_size\": 48, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "   \
    "\"head_dim\": 16, \"sliding_window\": 24, \"rms_norm_eps\": 1e-5, \"hidden_size_per_layer_input\": 0, "     \
    "\"attention_k_eq_v\": true, \"final_logit_softcapping\": 4.0" more "}}"
#define GEMMA4_ROPE(type)                                                                                   \
    ", \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1000.0}, " \
    "\"full_attention\": {\"rope_type\": \"" type "\", \"rope_theta\": 1e6, \"partial_rotary_factor\": 0.25}}"
#define GEMMA4_HEADS ", \"global_head_dim\": 48, \"num_global_key_value_heads\": 1"
#define GEMMA4_EXPERTS                                                                                        \
    ", \"enable_moe_block\": true, \"num_experts\": 3, \"top_k_experts\": 2, \"moe_intermediate_size\": 40, " \
    "\"use_bidirectional_attention\": \"vision\""
#define GEMMA4_GOOD GEMMA4_ROPE("proportional") GEMMA4_EXPERTS

/* Layers' heads by names of their own or layer by layer; without kinds every sixth layer and the last have no window.
 */
static void test_gemma4(void **state)
{
    static const struct refusal cases[] = {
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"per_layer_config\": {\"1\": {\"sliding_window\": 3}}"),
         "per_layer_config.1.sliding_window\": this is not supported for single layers"},
        {GEMMA4(GEMMA4_GOOD ", \"per_layer_config\": {\"1\": {\"head_dim\": 48}}"), "has shape [32, 48], expected"},
        {GEMMA4(GEMMA4_GOOD ", \"per_layer_config\": {\"1\": {\"head_dim\": \"48\"}}"), "key_length"},
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
         "has shape [32, 32], expected [32, 96]"},
        {GEMMA4(GEMMA4_ROPE("default") GEMMA4_EXPERTS GEMMA4_HEADS), "rope_type\": \"default\" is not supported"},
        {GEMMA4(GEMMA4_ROPE("proportional") GEMMA4_HEADS), "is not part of architecture gemma4"},
        {GEMMA4(GEMMA4_ROPE("proportional") GEMMA4_HEADS ", \"enable_moe_block\": true, \"num_experts\": 3"),
         "expert_used_count"},
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"attn_logit_softcapping\": 30"), "soft caps are not supported"},
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"num_kv_shared_layers\": 1"), "of its kind"},
    };
    (void)state;
    check_refused("gemma4", cases, sizeof cases / sizeof *cases);
    place("gemma4", GEMMA4(GEMMA4_GOOD GEMMA4_HEADS));
    check_same(dir, "gemma4");
    place("gemma4", GEMMA4(GEMMA4_GOOD ", \"per_layer_config\": {\"0\": {\"num_key_value_heads\": 2}, \"1\": "
                                       "{\"head_dim\": 48, \"num_key_value_heads\": 1}}"));
    check_same(dir, "gemma4");
}

#define DEEPSEEK(type, layers, more)                                                                                   \
    "{\"model_type\": \"" type "\", \"num_hidden_layers\": " layers ", \"hidden_size\": 32, \"intermediate_size\": "   \
    "40, \"moe_intermediate_size\": 24, \"num_attention_heads\": 2, \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, "  \
    "\"qk_rope_head_dim\": 16, \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false, \"first_k_dense_replace\": 1, " \
    "\"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"routed_scaling_factor\": 1.3, \"rope_theta\": 1000.0, "    \
    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 6.0, \"beta_slow\": 1.5, \"mscale\": "     \
    "0.7, "                                                                                                            \
    "\"mscale_all_dim\": 0.7, \"original_max_position_embeddings\": 32}" more "}"
#define DEEPSEEK2(more) DEEPSEEK("deepseek_v2", "2", ", \"v_head_dim\": 48" more)
#define LIMITED         ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 3, \"topk_group\": 2"

/* Latent attention: what its configurations may say, and a layer behind the last. */
static void test_latent(void **state)
{
    static const struct refusal cases[] = {
        {DEEPSEEK("deepseek_v2", "2", ", \"v_head_dim\": 64"),
         "kv_b_proj.weight\": its 160 rows are not those of 2 heads of 32 and 64"},
        {DEEPSEEK("deepseek_v2", "2", ", \"v_head_dim\": -3"), "is no possible size"},
        {DEEPSEEK2(", \"q_lora_rank\": 48"), "\"blk.0.attn_q_a.weight\" is missing"},
        {DEEPSEEK2(", \"topk_method\": \"noaux_tc\""), "topk_method\": \"noaux_tc\" is not supported"},
        {DEEPSEEK2(", \"scoring_func\": \"sigmoid\""), "scoring_func\": \"sigmoid\" is not supported"},
        {DEEPSEEK2(", \"norm_topk_prob\": true"), "norm_topk_prob\": this is set"},
        {DEEPSEEK2(", \"moe_layer_freq\": 2"), "only experts in every layer"},
        {DEEPSEEK2(", \"mlp_layer_types\": [\"sparse\", \"dense\"]"), "dense layers before sparse ones"},
        {DEEPSEEK2(", \"mlp_layer_types\": [\"sparse\", \"sparse\"]"), "\"blk.0.ffn_gate_shexp.weight\" is missing"},
        {DEEPSEEK2(", \"topk_group\": 4, \"n_group\": 3, \"topk_method\": \"group_limited_greedy\""),
         "expert_group_used_count"},
        {DEEPSEEK("deepseek_v3", "2",
                  ", \"v_head_dim\": 48, \"n_group\": 1, \"topk_group\": 1, \"rope_interleave\": 1"),
         "rope_interleave\": an integer"},
        {DEEPSEEK("deepseek_v2", "1", ", \"v_head_dim\": 48"), "is not part of architecture deepseek2"},
    };
    tern_model *m;
    tern_error err = {0};
    (void)state;
    check_refused("deepseek_v2", cases, sizeof cases / sizeof *cases);
    place("deepseek_v2", DEEPSEEK2(LIMITED ", \"mlp_layer_types\": [\"dense\", \"sparse\"]"));
    check_same(dir, "deepseek_v2");
    place("deepseek_v2", DEEPSEEK("deepseek_v2", "1", ", \"v_head_dim\": 48, \"num_nextn_predict_layers\": 1"));
    tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
    tern_model_close(&m);
}

/* A file of packed weights has every expert, and knows when one has changed. */
static void check_packed(const char *model, long at)
{
    struct tiny t[2];
    float *x[2];
    char packed[128];
    tern_model *m;
    tern_error err = {0};
    (void)snprintf(packed, sizeof packed, "%s", in_dir("packed"));
    place_changed(model, "BF16", "BF16");
    for (int i = 0; i < 2; i++) {
        open_packed(&t[i], dir, model, packed);
        assert_int_equal(tern_model_get_info(t[i].model)->packed != NULL, i == 1);
        x[i] = run(&t[i], NULL, false, true);
    }
    assert_memory_equal(x[0], x[1], (size_t)t[0].n_ids * (size_t)t[0].n_vocab * sizeof *x[0]);
    for (int i = 0; i < 2; i++) {
        free(x[i]);
        tiny_close(&t[i]);
    }
    FILE *f = fopen(in_dir("model.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_true(fputc(1, f) == 1 && fclose(f) == 0);
    tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1, .packed = packed}, &err), &err);
    assert_null(tern_model_get_info(m)->packed);
    assert_non_null(tern_model_get_info(m)->notice);
    tern_model_close(&m);
    (void)unlink(packed);
}

static void test_packed_experts(void **state)
{
    (void)state;
    check_packed("mixtral", 50384);      /* the low byte of a weight of experts.2.w1 */
    check_packed("deepseek_v2", 121598); /* of the last one of kv_b_proj, whose heads' parts are tensors */
}

static void refused(const char *want)
{
    tern_model *m;
    tern_error err = {0};
    assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
    print_message("%s\n", err.msg);
    assert_null(m);
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, dir));
    assert_null(strchr(err.msg, '\n'));
}

/* Sizes that no model has. */
static void test_bad_sizes(void **state)
{
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        {"\"head_dim\": 48", "\"head_dim\": 0", "config.head_dim"},
        {"\"head_dim\": 48", "\"head_dim\": -48", "config.head_dim"},
        {"\"head_dim\": 48", "\"head_dim\": 9223372036854775807", "config.head_dim"},
        {"\"head_dim\": 48", "\"head_dim\": 47", "not a multiple of 16"},
        {"\"head_dim\": 48", "\"head_dim\": 32", "has shape"},
        {"\"head_dim\": 48", "\"head_dim\": \"48\"", "config.head_dim"},
        {"\"num_attention_heads\": 2", "\"num_attention_heads\": 0", "config.num_attention_heads"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", "config.num_key_value_heads"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 0", "config.num_hidden_layers"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "\"blk.1.attn_norm.weight\" is missing"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 4294967297", "config.num_hidden_layers"},
        {"\"hidden_size\": 64", "\"hidden_size\": 0", "config.hidden_size"},
        {"\"intermediate_size\": 96", "\"intermediate_size\": 0", "config.intermediate_size"},
        {"\"rms_norm_eps\": 1e-5", "\"rms_norm_eps\": \"x\"", "config.rms_norm_eps"},
        {"\"rms_norm_eps\": 1e-5", "\"rms_norm_eps\": 1e400", "malformed JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char good[] = LLAMA(ROPE);
        char config[2048];
        const char *at = strstr(good, cases[i].from);
        assert_non_null(at);
        (void)snprintf(config, sizeof config, "%.*s%s%s", (int)(at - good), good, cases[i].to,
                       at + strlen(cases[i].from));
        place("llama", config);
        refused(cases[i].want);
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

/* Weights that are no numbers, a tensor that is not there, a file that ends early, more words than rows. */
static void test_bad_weights(void **state)
{
    static char bytes[200000];
    char path[600], *text = malloc(20000);
    (void)state;
    place_changed("llama", "self_attn.q_proj", "self_attn.q_prox");
    refused("\"blk.0.attn_q.weight\" is missing");
    place("llama", LLAMA(ROPE));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", data_path("llama"));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(unlink(in_dir("model.safetensors")), 0);
    for (size_t cut = 0; cut < 8; cut++) {
        f = fopen(in_dir("model.safetensors"), "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, n * cut / 8, f), n * cut / 8);
        assert_int_equal(fclose(f), 0);
        refused(cut ? "model.safetensors" : "the file is empty");
    }
    memcpy(bytes + n - 2, "\0\x7E", 2); /* F16's NaN */
    f = fopen(in_dir("model.safetensors"), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    refused("finite");
    place("llama", LLAMA(ROPE));
    assert_non_null(text);
    n = (size_t)sprintf(text, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int i = 0; i < 193; i++)
        n += (size_t)sprintf(text + n, "%s\"t%d\": %d", i ? ", " : "", i, i);
    (void)strcpy(text + n, "}, \"merges\": []}, \"added_tokens\": [], \"decoder\": {\"type\": \"Fuse\"}}");
    write_text("tokenizer.json", text);
    refused("the tokenizer has 193 entries, the embedding has 192 rows");
    assert_int_equal(unlink(in_dir("tokenizer.json")), 0);
    free(text);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),      cmocka_unit_test(test_twins),          cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_mismatch),       cmocka_unit_test(test_text),
        cmocka_unit_test(test_experts),     cmocka_unit_test(test_packed_experts), cmocka_unit_test(test_llama4),
        cmocka_unit_test(test_messages),    cmocka_unit_test(test_qwen35),         cmocka_unit_test(test_gemma4),
        cmocka_unit_test(test_latent),      cmocka_unit_test(test_recommended),    cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_bad_weights), cmocka_unit_test(test_tool_template),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
