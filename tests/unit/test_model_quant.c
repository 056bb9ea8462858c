/* Quantised checkpoints of Hugging Face: every method's logits against the reference on the dequantised weights, what
 * is told about them, and checkpoints whose tensors and configuration do not fit each other. */
#include "fixtures.h"
#include "served.h"
#include "hf_model.h"

static void test_parity(void **state)
{
    struct fixtures models;
    (void)state;
    fixtures_find(&models, "hf", ".logits.npy");
    for (int i = 0; i < models.n; i++) {
        struct tiny t;
        /* others are test_model_hf's */
        if (!fixture_read(data_path(models.names[i])).quantised || !served(models.names[i]))
            continue;
        tern_error err = {0};
        tern_engine *e;
        tern_seq *s;
        open_model(&t, data_path(models.names[i]), models.names[i]);
        float *got = tiny_buffer(&t);
        tern_engine_params p = {.n_threads = 2, .max_seqs = 1, .chunk = 128, .ctx = 96, .exact = true};
        tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, t.n_ids, 128, false, got, 0, t.n_vocab);
        tern_engine_close(&e);
        double d = tiny_max_diff(&t, got);
        p.exact = false;
        float *decode = tiny_buffer(&t);
        tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, t.n_ids, 1, true, decode, 0, t.n_vocab);
        tern_engine_close(&e);
        double k = tiny_kld(got, decode, t.n_ids, t.n_vocab);
        print_message("%-12s exact max |difference| %.2e, decode rows KLD %.2e\n", models.names[i], d, k);
        assert_true(d <= 1e-4 && k <= 2e-2); /* where rounding changes the choice of experts a single row counts 0.2 */
        free(decode);
        free(got);
        tiny_close(&t);
    }
}

/* Parts are told as one weight: its form, its shape, the bytes of all. */
static void test_told(void **state)
{
    static const struct {
        const char *model, *tensor, *type;
        int64_t dims[3];
        size_t bytes;
    } cases[] = {
        {"affine_moe",
         "model.layers.0.mlp.switch_mlp.down_proj.weight",
         "affine 6 bit, groups of 32",
         {32, 64, 3},
         3 * 64 * (24 + 4)},
        {"affine_moe",
         "model.layers.0.mlp.switch_mlp.up_proj.weight",
         "MXFP4, groups of 32",
         {64, 32, 3},
         3 * 32 * (32 + 2)},
        {"micro_latent",
         "model.layers.0.self_attn.embed_q.weight",
         "MXFP4, groups of 32",
         {32, 64, 2},
         2 * 64 * (16 + 1)},
        {"affine", "model.embed_tokens.weight", "affine 4 bit, groups of 64", {64, 192, 1}, 192 * (32 + 4)},
        {"affine", "model.layers.0.self_attn.q_proj.weight", "affine 3 bit, groups of 32", {64, 96, 1}, 96 * (24 + 8)},
        {"affine", "model.layers.0.self_attn.k_proj.weight", "BF16", {64, 48, 1}, 48 * 128},
        {"fp8", "model.layers.0.mlp.down_proj.weight", "FP8, blocks of 32 x 64", {96, 64, 1}, 64 * 96 + 2 * 2 * 4},
        {"fp8_tensor", "model.layers.0.mlp.up_proj.weight", "FP8, a scale per row", {64, 96, 1}, 96 * (64 + 2)},
        {"fp8_tensor", "model.layers.0.mlp.gate_proj.weight", "FP8, a scale per matrix", {64, 96, 1}, 96 * 64 + 4},
        {"fp8_latent", /* the keys' half */
         "model.layers.0.self_attn.kv_b_proj.weight",
         "FP8, blocks of 32 x 32",
         {32, 64, 2},
         2 * (32 * 64 + 2 * 4)},
        {"gptq",
         "model.layers.0.mlp.down_proj.qweight",
         "GPTQ 4 bit, groups of 32",
         {96, 64, 1},
         64 * (48 + 3 * 2) + 3 * 32},
        {"awq",
         "model.layers.0.mlp.down_proj.qweight",
         "AWQ 4 bit, groups of 32",
         {96, 64, 1},
         64 * (48 + 3 * 2) + 3 * 32},
        {"nvfp4", "model.layers.0.mlp.down_proj.weight_packed", "NVFP4, groups of 16", {128, 64, 1}, 64 * (64 + 8) + 4},
        {"micro", "lm_head.weight", "NVFP4, groups of 16", {64, 192, 1}, 192 * (32 + 4)},
        {"micro", "model.layers.0.mlp.up_proj.weight", "MXFP8, groups of 32", {64, 128, 1}, 128 * (64 + 2)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tiny t;
        tern_tensor_info info;
        open_model(&t, data_path(cases[i].model), cases[i].model);
        assert_string_equal(tern_model_get_info(t.model)->container, "safetensors");
        size_t k = 0, n = tern_model_n_tensors(t.model);
        for (; k < n; k++) {
            tern_model_tensor(t.model, k, &info);
            assert_null(strstr(info.name, "scales"));
            if (strcmp(info.name, cases[i].tensor) == 0)
                break;
        }
        assert_true(k < n);
        assert_string_equal(info.type, cases[i].type);
        assert_memory_equal(info.dims, cases[i].dims, sizeof cases[i].dims);
        assert_int_equal(info.file_bytes, cases[i].bytes);
        assert_true(info.memory_bytes >= info.file_bytes && info.memory_bytes < info.file_bytes + 1024);
        tiny_close(&t);
    }
}

/* Byte `at` of a tensor's data. */
static char *data_of(struct bytes *b, const char *tensor, int at)
{
    uint64_t n;
    size_t begin;
    memcpy(&n, b->p, 8);
    const char *p = memmem(b->p, b->n, tensor, strlen(tensor));
    assert_non_null(p);
    p = strstr(p, "\"data_offsets\":[");
    assert_non_null(p);
    assert_int_equal(sscanf(p, "\"data_offsets\":[%zu", &begin), 1);
    return &b->p[8 + n + begin + (size_t)at];
}

/* A file of packed weights fits the model while no byte of any part is another. */
static void test_packed(void **state)
{
    static struct bytes b;
    static const char *const changes[] = {"", "q_proj.scales\"", "q_proj.biases\"", "q_proj.weight\""};
    (void)state;
    read_file(&b, "affine", "config.json");
    write_file("config.json", &b);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        for (int again = 0; again < 2; again++) {
            tern_model *m;
            tern_error err = {0};
            char kept[128];
            (void)snprintf(kept, sizeof kept, "%s", in_dir("kept"));
            read_file(&b, "affine", "model.safetensors");
            if (changes[i][0])
                *data_of(&b, changes[i], 0) ^= 1;
            write_file("model.safetensors", &b);
            tiny_ok(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1, .packed = kept}, &err), &err);
            assert_true((tern_model_get_info(m)->packed != NULL) == (again == 1));
            tern_model_close(&m);
        }
    }
}

/* Values that only the data have. */
static void test_refused_values(void **state)
{
    static const struct {
        const char *model, *tensor, *want;
        char at, to; /* byte of its data, and what it becomes */
    } cases[] = {
        {"gptq", "down_proj.g_idx\"", "down_proj.g_idx\": input 0 is in group 2: groups of scattered inputs", 0, 2},
        {"gptq", "down_proj.bias\"", "down_proj.bias\" at byte", 1, 60},
        {"nvfp4", "down_proj.weight_global_scale\"", "weight_global_scale\": its value is no positive number", 3, -66},
        {"nvfp4", "down_proj.weight_scale\"", "the scale of the block of row 0 at byte 4 of the scales is not", 4, 127},
    };
    static struct bytes b;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_model *m;
        tern_error err = {0};
        read_file(&b, cases[i].model, "config.json");
        write_file("config.json", &b);
        read_file(&b, cases[i].model, "model.safetensors");
        *data_of(&b, cases[i].tensor, cases[i].at) = cases[i].to;
        write_file("model.safetensors", &b);
        assert_true(tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err) < 0);
        print_message("%s\n", err.msg);
        assert_non_null(strstr(err.msg, cases[i].want));
        assert_null(m);
    }
}

#define LAYER   "\"model.layers.0."
#define CONFIG  "config.json"
#define WEIGHTS "model.safetensors"

/* Malformed checkpoints: one change of a good one's configuration or header, which keeps its length. */
static const struct {
    const char *model, *file, *after, *from, *to, *want;
    int code;
} changes[] = {
    {"affine", CONFIG, "\"quantization\"", "\"bits\": 4", "\"bits\": 7", "quantization.bits\": this mode has no",
     TERN_EUNSUPPORTED},
    {"affine", CONFIG, "\"quantization\"", "\"bits\": 4", "\"bits\": 9", "9 is outside 2 to 8", TERN_EFORMAT},
    {"affine", CONFIG, "\"quantization\"", "\"bits\": 4", "\"bits\": 8",
     "tensor \"model.embed_tokens.weight\": its rows are not whole groups of 64 codes of 8 bits", TERN_EFORMAT},
    {"affine", CONFIG, "\"quantization\"", "\"bits\": 4", "\"bits\": 2",
     "tensor \"model.embed_tokens.scales\": its shape is [192, 1], the quantisation of this weight needs [192, 2]",
     TERN_EFORMAT},
    {"affine", CONFIG, "\"quantization\"", "\"group_size\": 64", "\"group_size\": 96",
     "quantization.group_size\": this mode has no groups of this size", TERN_EUNSUPPORTED},
    {"affine", CONFIG, "\"quantization\"", "\"group_size\": 64", "\"group_size\": 32",
     "tensor \"model.embed_tokens.scales\": its shape is [192, 1], the quantisation of this weight needs [192, 2]",
     TERN_EFORMAT},
    {"affine", CONFIG, "\"quantization\"", "\"bits\": 4", "\"bits\": 4, \"mode\": \"turbo\"",
     "quantization.mode\": \"turbo\" is not supported", TERN_EUNSUPPORTED},
    {"affine", CONFIG, "\"quantization\"", "\"group_size\": 64", "\"model.embed_tokens\": false",
     "quantization.model.embed_tokens\": only true", TERN_EUNSUPPORTED},
    {"affine", CONFIG, "\"quantization\"", "\"group_size\": 128", "\"group_size\": 64",
     "down_proj.scales\": its shape is [64, 1]", TERN_EFORMAT},
    {"micro", CONFIG, "\"quantization\"", "\"group_size\": 32", "\"group_size\": 64",
     "this mode has no groups of this size", TERN_EUNSUPPORTED},
    {"affine", CONFIG, "\"quantization\"", "\"quantization\"", "\"nothing\"", "quantization_config.", 0},
    {"affine", WEIGHTS, LAYER "self_attn.q_proj", "q_proj.scales", "q_proj.scalez",
     "q_proj.weight\": a tensor with \".scales\" is missing beside it", TERN_EFORMAT},
    {"affine", WEIGHTS, LAYER "self_attn.q_proj", "q_proj.biases", "q_proj.biasez",
     "q_proj.weight\": a tensor with \".biases\" is missing beside it", TERN_EFORMAT},
    {"affine", WEIGHTS, LAYER "self_attn.q_proj.biases", "BF16\",\"shape\":[96,2]", "BF16\",\"shape\":[2,96]",
     "q_proj.biases\": its shape is [2, 96], the quantisation of this weight needs [96, 2]", TERN_EFORMAT},
    {"affine", WEIGHTS, LAYER "self_attn.q_proj.biases", "\"BF16\"", "\"F16\" ",
     "q_proj.biases\": its dtype is F16, the quantisation of this weight has BF16", TERN_EFORMAT},
    {"affine", WEIGHTS, LAYER "self_attn.q_proj.weight", "\"U32\"", "\"I32\"",
     "q_proj.weight\": codes that are no matrix of dtype U32", TERN_EFORMAT},
    {"affine", WEIGHTS, LAYER "self_attn.q_proj.weight", "[96,6]", "[6,96]",
     "q_proj.scales\": its shape is [96, 2], the quantisation of this weight needs [6, 32]", TERN_EFORMAT},
    {"micro", WEIGHTS, LAYER "self_attn.q_proj.scales", "q_proj.scales\"", "q_proj.biases\"",
     "q_proj.weight\": a tensor with \".scales\" is missing beside it", TERN_EFORMAT},
    {"fp8", CONFIG, "", "\"quantization_config\"", "\"nothing\"",
     "down_proj.weight\": dtype \"F8_E4M3\" is not supported but in a quantised weight", TERN_EUNSUPPORTED},
    {"fp8", CONFIG, "", "\"fp8\"", "\"bitsandbytes\"", "quant_method\": \"bitsandbytes\" is not supported",
     TERN_EUNSUPPORTED},
    {"fp8", CONFIG, "", "\"e4m3\"", "\"e5m2\"", "quantization_config.fmt\": \"e5m2\" is not", TERN_EUNSUPPORTED},
    {"fp8", CONFIG, "\"weight_block_size\"", "64", "96", "down_proj.weight_scale_inv\": its shape is [2, 2]",
     TERN_EFORMAT},
    {"fp8", CONFIG, "\"weight_block_size\"", "64", "0", "it is not two numbers", TERN_EUNSUPPORTED},
    {"fp8", CONFIG, "\"weight_block_size\"", "64", "80", "blocks of 32 x 80 weights are not supported",
     TERN_EUNSUPPORTED},
    {"fp8", CONFIG, "\"weight_block_size\"", "32", "24", "weight_scale_inv\": its shape is", TERN_EFORMAT},
    {"fp8", WEIGHTS, LAYER "mlp.down_proj", "weight_scale_inv", "weight_scale_ins",
     "down_proj.weight\": a tensor with \".weight_scale_inv\" is missing", TERN_EFORMAT},
    {"fp8", WEIGHTS, LAYER "mlp.down_proj.weight\"", "\"F8_E4M3\"", "\"U8\"     ",
     "down_proj.weight\": codes that are no matrix of dtype F8_E4M3", TERN_EFORMAT},
    {"fp8_tensor", WEIGHTS, LAYER "mlp.up_proj.weight_scale\"", "[96,1]", "[1,96]",
     "up_proj.weight_scale\": its shape is [1, 96]", TERN_EFORMAT},
    {"gptq", CONFIG, "", "\"bits\": 4", "\"bits\": 8", "only codes of 4 bits are supported", TERN_EUNSUPPORTED},
    {"gptq", CONFIG, "", "\"desc_act\": false", "\"desc_act\": true", "desc_act\": only false", TERN_EUNSUPPORTED},
    {"gptq", CONFIG, "", "format\": \"gptq\"", "format\": \"marlin\"", "\"marlin\" is not supported",
     TERN_EUNSUPPORTED},
    {"gptq", CONFIG, "", "\"sym\": false", "\"dynamic\": {\"a\": {}, \"b\": 1}", "modules that differ",
     TERN_EUNSUPPORTED},
    {"gptq", CONFIG, "", "\"group_size\": 32", "\"group_size\": 0", "groups of 0", TERN_EUNSUPPORTED},
    {"gptq", CONFIG, "", "\"group_size\": 32", "\"group_size\": 64", "down_proj.qweight\": its rows are not whole",
     TERN_EFORMAT},
    {"gptq", CONFIG, "", "\"group_size\": 32", "\"group_size\": -1", "down_proj.scales\": its shape is [3, 64]",
     TERN_EFORMAT},
    {"gptq", WEIGHTS, LAYER "mlp.down_proj", "qzeros", "qzeroz",
     "down_proj.qweight\": a tensor with \".qzeros\" is missing", TERN_EFORMAT},
    {"gptq", WEIGHTS, LAYER "mlp.down_proj", "scales", "scalez",
     "down_proj.qweight\": a tensor with \".scales\" is missing", TERN_EFORMAT},
    {"awq", CONFIG, "", "\"version\": \"gemm\"", "\"version\": \"gemv\"", "\"gemv\" is not supported",
     TERN_EUNSUPPORTED},
    {"awq", CONFIG, "", "\"zero_point\": true", "\"zero_point\": false", "zero_point\": only true", TERN_EUNSUPPORTED},
    {"awq", CONFIG, "", "\"awq\"", "\"gptq\"",
     "down_proj.scales\": its shape is [3, 64], the quantisation of this weight needs [24, 8]", TERN_EFORMAT},
    {"nvfp4", CONFIG, "", "nvfp4-pack-quantized", "mixed-precision", "\"mixed-precision\" is not supported",
     TERN_EUNSUPPORTED},
    {"nvfp4", CONFIG, "", "\"format\"", "\"form\"", "format\": only", TERN_EUNSUPPORTED},
    {"affine_moe", WEIGHTS, LAYER "mlp.switch_mlp.gate_proj.scales", "[3,32,2]", "[1,96,2]",
     "gate_proj.scales\": its shape is [1, 96, 2], the quantisation of this weight needs [3, 32, 2]", TERN_EFORMAT},
    {"affine_moe", WEIGHTS, LAYER "mlp.switch_mlp.down_proj.biases", "[3,64,1]", "[3,1,64]",
     "down_proj.biases\": its shape is [3, 1, 64], the quantisation of this weight needs [3, 64, 1]", TERN_EFORMAT},
    {"affine_moe", WEIGHTS, LAYER "mlp.switch_mlp.down_proj.weight", "[3,64,6]", "[3,6,64]",
     "down_proj.weight\": its rows are not whole groups of 32 codes of 6 bits", TERN_EFORMAT},
    {"affine_moe", WEIGHTS, LAYER "mlp.switch_mlp.up_proj", "up_proj.scales", "up_proj.scalez",
     "up_proj.weight\": a tensor with \".scales\" is missing beside it", TERN_EFORMAT},
    {"affine_moe", CONFIG, "", "\"num_local_experts\": 3", "\"num_local_experts\": 4", "mlp.gate.weight\" at byte",
     TERN_EFORMAT},
    {"micro_latent", WEIGHTS, LAYER "self_attn.embed_q.scales", "[2,64,1]", "[2,1,64]",
     "embed_q.scales\": its shape is [2, 1, 64], the quantisation of this weight needs [2, 64, 1]", TERN_EFORMAT},
    {"fp8_moe", WEIGHTS, LAYER "mlp.experts.1.up_proj.weight_scale_inv", "[2,2]", "[1,4]",
     "experts.1.up_proj.weight_scale_inv\": its shape is [1, 4], the quantisation of this weight needs [2, 2]",
     TERN_EFORMAT},
    {"fp8_moe", WEIGHTS, LAYER "mlp.experts.1.up_proj.weight\"", "[32,64]", "[64,32]",
     "experts.1.up_proj.weight_scale_inv\": its shape is [2, 2], the quantisation of this weight needs [4, 1]",
     TERN_EFORMAT},
    {"gptq_moe", WEIGHTS, LAYER "mlp.experts.2.down_proj.", "down_proj.qzeros", "down_proj.qzeroz",
     "experts.2.down_proj.qweight\": a tensor with \".qzeros\" is missing", TERN_EFORMAT},
    {"nvfp4_moe", WEIGHTS, LAYER "mlp.experts.0.up_proj.", "up_proj.weight_global_scale", "up_proj.weight_global_scalf",
     "experts.0.up_proj.weight_packed\": a tensor with \".weight_global_scale\" is missing", TERN_EFORMAT},
    {"nvfp4", WEIGHTS, LAYER "mlp.down_proj", "weight_global_scale", "weight_global_scalf",
     "down_proj.weight_packed\": a tensor with \".weight_global_scale\" is missing", TERN_EFORMAT},
};

static void test_refused(void **state)
{
    static struct bytes b;
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        tern_model *m;
        tern_error err = {0};
        static const char *const files[] = {"config.json", "model.safetensors"};
        for (int k = 0; k < 2; k++) {
            read_file(&b, changes[i].model, files[k]);
            if (strcmp(files[k], changes[i].file) == 0)
                replace(&b, changes[i].after, changes[i].from, changes[i].to);
            write_file(files[k], &b);
        }
        int rc = tern_model_open(&m, dir, &(tern_model_params){.n_threads = 1}, &err);
        print_message("%s\n", err.msg);
        assert_int_equal(rc, changes[i].code);
        assert_true(rc == 0 || strstr(err.msg, changes[i].want));
        assert_true(rc == 0 || strstr(err.msg, dir));
        tern_model_close(&m);
    }
}

/* Vectors are not quantised: that of the last norm is, in the bytes that it had. */
static void test_quantised_vector(void **state)
{
    static struct bytes b;
    static const char name[] = "\"model.norm.weight\":";
    char from[200], to[600];
    uint64_t header;
    int at, grown;
    (void)state;
    read_file(&b, "affine", CONFIG);
    write_file(CONFIG, &b);
    read_file(&b, "affine", WEIGHTS);
    const char *entry = strstr(b.p + 8, name);
    assert_non_null(entry);
    assert_int_equal(sscanf(strstr(entry, "\"data_offsets\":["), "\"data_offsets\":[%d", &at), 1);
    (void)snprintf(from, sizeof from, "%.*s", (int)(strchr(entry, '}') + 1 - entry), entry);
    grown = snprintf(to, sizeof to,
                     "%s{\"dtype\":\"U32\",\"shape\":[1,8],\"data_offsets\":[%d,%d]},\"model.norm.scales\":{\"dtype\":"
                     "\"BF16\",\"shape\":[1,1],\"data_offsets\":[%d,%d]},\"model.norm.biases\":{\"dtype\":\"BF16\","
                     "\"shape\":[1,1],\"data_offsets\":[%d,%d]},\"mtp.rest\":{\"dtype\":\"U8\",\"shape\":[92],"
                     "\"data_offsets\":[%d,%d]}",
                     name, at, at + 32, at + 32, at + 34, at + 34, at + 36, at + 36, at + 128);
    replace(&b, "", from, to);
    memcpy(&header, b.p, sizeof header);
    header += (uint64_t)grown - strlen(from);
    memcpy(b.p, &header, sizeof header);
    write_file(WEIGHTS, &b);
    refused("tensor \"model.norm.weight\": weights of U32 cannot be read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),  cmocka_unit_test(test_told),           cmocka_unit_test(test_packed),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_refused_values), cmocka_unit_test(test_quantised_vector),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
