/* Models as Hugging Face publishes them: every family's logits against the reference, the bits of GGUF twins, other
 * places and spellings of the same model, and what single families must not say. */
#include "fixtures.h"
#include "hf_model.h"

static struct fixtures models, files, stacked; /* with logits; those beside them */

static void find_models(void)
{
    struct fixtures all;
    fixtures_find(&all, "hf", ".logits.npy");
    fixtures_find(&files, "hf", ".gguf");
    fixtures_find(&stacked, "hf", "-stacked");
    models.n = 0;
    for (int i = 0; i < all.n; i++)
        if (!fixture_read(data_path(all.names[i])).quantised) /* those are test_model_quant's */
            memcpy(models.names[models.n++], all.names[i], sizeof all.names[i]);
}

/* The same weights in another file or under other names: the same bits.  NULL: none; GGUF may have rows in an order of
 * its own, whose sums round otherwise. */
static const char *twin_of(const char *name)
{
    static char twin[64];
    (void)snprintf(twin, sizeof twin, fixtures_have(&stacked, name) ? "%s-stacked" : "%s.gguf", name);
    const bool file = fixtures_have(&files, name) && !fixture_read(data_path(name)).reordered;
    return fixtures_have(&stacked, name) || file ? twin : NULL;
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
    for (int i = 0; i < models.n; i++) {
        struct tiny t;
        open_model(&t, data_path(models.names[i]), models.names[i]);
        float *got = run(&t, NULL, true, false);
        double d = tiny_max_diff(&t, got);
        print_message("%-10s exact max |difference| %.2e\n", models.names[i], d);
        assert_true(d <= 1e-4);
        free(got);
        tiny_close(&t);
    }
}

static void test_twins(void **state)
{
    (void)state;
    for (int i = 0; i < models.n; i++) {
        struct tiny a, b;
        const char *twin = twin_of(models.names[i]);
        if (!twin)
            continue;
        open_model(&a, data_path(models.names[i]), models.names[i]);
        open_model(&b, data_path(twin), models.names[i]);
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

/* The logits of a configuration opened with another scaling of its rotary embedding. */
static float *stretched(const char *config, const char *scaling, double base, int *ctx, size_t *n)
{
    struct tiny t = {0};
    tern_error err = {0};
    place("llama", config);
    tern_model_params p = {.n_threads = 2, .rope_scaling = scaling, .rope_base = base};
    tiny_ok(tern_model_open(&t.model, dir, &p, &err), &err);
    tiny_read_ids(&t, "../hf/llama");
    t.n_vocab = tern_model_get_info(t.model)->n_vocab;
    *ctx = tern_model_get_info(t.model)->ctx;
    *n = (size_t)t.n_ids * (size_t)t.n_vocab * sizeof(float);
    float *out = run(&t, NULL, true, false);
    tern_model_close(&t.model);
    return out;
}

/* What is asked for computes what the same words in the configuration do, and gives the longer context. */
static void test_stretch(void **state)
{
    static const struct {
        const char *config, *plain, *scaling;
        double base;
        int ctx;
    } cases[] = {
        {LLAMA(", \"rope_theta\": 1000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
               "\"original_max_position_embeddings\": 64}"),
         LLAMA(", \"rope_theta\": 1000"), "yarn,factor=4,original=64", 0, 256},
        {LLAMA(", \"rope_theta\": 1000, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}"),
         LLAMA(", \"rope_theta\": 1000"), "linear,factor=2", 0, 512},
        {LLAMA(", \"rope_theta\": 1000"), LLAMA(", \"rope_theta\": 5000"), NULL, 1000, 256},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int ctx;
        size_t n;
        float *want = stretched(cases[i].config, NULL, 0, &ctx, &n);
        float *got = stretched(cases[i].plain, cases[i].scaling, cases[i].base, &ctx, &n);
        float *plain = stretched(cases[i].plain, NULL, 0, &ctx, &n);
        assert_memory_equal(got, want, n);
        assert_memory_not_equal(got, plain, n);
        free(want);
        free(got);
        free(plain);
        float *again = stretched(cases[i].plain, cases[i].scaling, cases[i].base, &ctx, &n);
        assert_int_equal(ctx, cases[i].ctx);
        free(again);
    }
    static const char *const bad[] = {"yarn", "yarn,factor=0.5", "linear,factor=x", "ntk,factor=2",
                                      "",     "yarn,factor=4,",  "none,factor=2",   "linear,factor=2,original=-1"};
    place("llama", LLAMA(", \"rope_theta\": 1000"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_model *m;
        tern_error err = {0};
        tern_model_params p = {.n_threads = 1, .rope_scaling = bad[i]};
        assert_int_equal(tern_model_open(&m, dir, &p, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "linear,factor=N"));
        assert_non_null(strstr(err.msg, dir));
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

/* Places qwen3_5 with all norms of value x, but for those of layers with a state, and its convolutions turned. */
static void place_norms(uint16_t x, bool turned)
{
    static struct bytes b;
    uint64_t n_header;
    read_file(&b, "qwen3_5", "model.safetensors");
    memcpy(&n_header, b.p, sizeof n_header);
    char *data = b.p + 8 + n_header;
    for (char *p = b.p + 8; (p = memmem(p, (size_t)(data - p), "norm.weight\"", 12)); p++) {
        if (memcmp(p - 12, "linear_attn.", 12) == 0)
            continue;
        char *at = memmem(p, (size_t)(data - p), "data_offsets\":[", 15);
        assert_non_null(at);
        unsigned long from = strtoul(at + 15, &at, 10), to = strtoul(at + 1, NULL, 10);
        for (; from < to; from += 2)
            memcpy(data + from, &x, 2);
    }
    for (int i = 0; turned && i < 2; i++)
        replace(&b, "", "[256,1,4]", "[256,4,1]");
    write_file("model.safetensors", &b);
    char path[600];
    (void)snprintf(path, sizeof path, "%s/config.json", data_path("qwen3_5"));
    (void)unlink(in_dir("config.json"));
    assert_int_equal(symlink(path, in_dir("config.json")), 0);
}

/* mlx-lm turns convolutions and adds 1 to norms; what it wrote computes what it was made from. */
static void test_turned(void **state)
{
    (void)state;
    float *out[3];
    struct tiny t;
    size_t n = 0;
    static const struct {
        uint16_t norms;
        bool turned;
    } cases[3] = {{0x3F00, false}, {0x3FC0, true}, {0x3F00, true}}; /* .5, 1.5, .5 */
    for (int i = 0; i < 3; i++) {
        place_norms(cases[i].norms, cases[i].turned);
        open_model(&t, dir, "qwen3_5");
        out[i] = run(&t, NULL, true, false);
        n = (size_t)t.n_ids * (size_t)t.n_vocab * sizeof(float);
        tiny_close(&t);
    }
    assert_memory_equal(out[0], out[1], n);
    assert_memory_not_equal(out[0], out[2], n);
    for (int i = 0; i < 3; i++)
        free(out[i]);
}

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
        {"[256,1,4]", "[256,2,2]", "has shape [2, 2], expected [4, 256]"},
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
         "layers.0.self_attn.k_proj.weight\": it has values beside it, but attention_k_eq_v lets keys serve"},
        {GEMMA4(GEMMA4_ROPE("default") GEMMA4_EXPERTS GEMMA4_HEADS), "rope_type\": \"default\" is not supported"},
        {GEMMA4(GEMMA4_ROPE("proportional") GEMMA4_HEADS), "is not part of architecture gemma4"},
        {GEMMA4(GEMMA4_ROPE("proportional") GEMMA4_HEADS ", \"enable_moe_block\": true, \"num_experts\": 3"),
         "expert_used_count"},
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"attn_logit_softcapping\": 30"), "soft caps are not supported"},
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"num_kv_shared_layers\": 1"), "of its kind"},
        {GEMMA4(GEMMA4_GOOD GEMMA4_HEADS ", \"use_double_wide_mlp\": true, \"num_kv_shared_layers\": "
                                         "-9223372036854775808"),
         "shared_kv_layers"},
    };
    (void)state;
    check_refused("gemma4", cases, sizeof cases / sizeof *cases);
    place("gemma4", GEMMA4(GEMMA4_GOOD GEMMA4_HEADS));
    check_same(dir, "gemma4");
    char config[] = GEMMA4(GEMMA4_GOOD ", \"per_layer_config\": {\"0\": {\"num_key_value_heads\": 2}, \"1\": "
                                       "{\"head_dim\": 48, \"num_key_value_heads\": 1}}");
    place("gemma4", config);
    check_same(dir, "gemma4");
    memcpy(strstr(config, "true, \"final"), "null", 4);
    place("gemma4", config);
    refused("layers.1.self_attn.k_proj.weight\": it has no values beside it, and attention_k_eq_v does not");
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

/* Latent attention: what its configurations may say, one layer behind the last, and one behind that. */
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
        {DEEPSEEK2(", \"mlp_layer_types\": [\"dense\"]"), "not a list of one name for each layer"},
        {DEEPSEEK2(", \"mlp_layer_types\": [\"sparse\", \"sparse\"]"), "\"blk.0.ffn_gate_shexp.weight\" is missing"},
        {DEEPSEEK2(", \"topk_group\": 4, \"n_group\": 3, \"topk_method\": \"group_limited_greedy\""),
         "expert_group_used_count"},
        {DEEPSEEK("deepseek_v3", "2",
                  ", \"v_head_dim\": 48, \"n_group\": 1, \"topk_group\": 1, \"rope_interleave\": 1"),
         "rope_interleave\": an integer"},
        {DEEPSEEK("deepseek_v2", "1", ", \"v_head_dim\": 48"), "is not part of architecture deepseek2"},
    };
    static const char one_more[] =
        DEEPSEEK("deepseek_v2", "1", ", \"v_head_dim\": 48, \"num_nextn_predict_layers\": 1");
    static struct bytes b;
    tern_model *m;
    tern_error err = {0};
    (void)state;
    check_refused("deepseek_v2", cases, sizeof cases / sizeof *cases);
    place("deepseek_v2", DEEPSEEK2(LIMITED ", \"mlp_layer_types\": [\"dense\", \"sparse\"]"));
    check_same(dir, "deepseek_v2");
    place("deepseek_v2", one_more);
    tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err), &err);
    tern_model_close(&m);
    read_file(&b, "deepseek_v2", "model.safetensors");
    for (char *at = b.p; (at = memmem(at, b.n - (size_t)(at - b.p), "layers.1.", 9));)
        at[7] = '2';
    write_file("model.safetensors", &b);
    refused("is not part of architecture deepseek2");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),         cmocka_unit_test(test_twins),  cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_llama4),         cmocka_unit_test(test_qwen35), cmocka_unit_test(test_turned),
        cmocka_unit_test(test_stretch),        cmocka_unit_test(test_gemma4), cmocka_unit_test(test_latent),
        cmocka_unit_test(test_packed_experts),
    };
    find_models();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
