/* Checkpoints of Hugging Face that must not open: configurations, tensors and sizes that are no model's. */
#include "hf_model.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_mismatch),    cmocka_unit_test(test_experts),
        cmocka_unit_test(test_bad_sizes), cmocka_unit_test(test_bad_weights),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
