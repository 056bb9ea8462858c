/* DeepSeek-V4 as MLX converts it and as ds4 and llama.cpp name it in GGUF: the numbers are those of a directory as its
 * makers publish it, so the logits are, bit for bit.  Then files of both kinds that are damaged, half there, or say
 * what nothing computes: one sentence each. */
#include "v4_files.h"

enum { TOKENS = 150, PROMPT = 120 };

static int32_t ids[TOKENS];

/* Logits of what lies at `path`: a prompt in steps of 50, then tokens one by one. */
static float *logits_of(const char *path, bool exact)
{
    tern_model *m;
    tern_engine *e;
    tern_seq *s;
    tern_error err = {0};
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 1, .chunk = 64, .kv = "f16", .exact = exact};
    float *out = calloc((size_t)TOKENS * V4_VOCAB, sizeof *out);
    assert_non_null(out);
    tiny_ok(tern_model_open(&m, path, &(tern_model_params){.n_threads = 2}, &err), &err);
    assert_int_equal(tern_model_get_info(m)->n_vocab, V4_VOCAB);
    tiny_ok(tern_engine_open(&e, m, &p, &err), &err);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, ids, 0, PROMPT, 50, false, out, 0, V4_VOCAB);
    tiny_run(e, s, ids, PROMPT, TOKENS, 1, true, out, 0, V4_VOCAB);
    tern_engine_close(&e);
    tern_model_close(&m);
    for (int i = 0; i < TOKENS * V4_VOCAB; i++)
        assert_true(isfinite(out[i]));
    return out;
}

/* With --exact bit for bit.  Without, activations beside codes are rounded, and beside plain numbers are not. */
static void same_logits(const float *want, const char *path, const char *what)
{
    float *got = logits_of(path, true), *fast = logits_of(path, false);
    const double d = tiny_kld(want, fast, TOKENS, V4_VOCAB);
    print_message("%-46s KLD of the fast classes %.1e\n", what, d);
    for (int i = 0; i < TOKENS; i++)
        if (memcmp(got + i * V4_VOCAB, want + i * V4_VOCAB, V4_VOCAB * sizeof *got) != 0)
            fail_msg("%s: logits of position %d differ", what, i);
    assert_true(d < 2e-2);
    free(got);
    free(fast);
}

static bool has(const struct v4_tensor *t, const char *part)
{
    return strstr(t->name, part) != NULL;
}

/* mlx-vlm's own choice of forms; wide: codes of other widths and groups, by module. */
static void encode_all(struct v4_model *m, bool wide)
{
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    int turn = 0;
    for (int i = 0; i < m->n; i++) {
        struct v4_tensor *t = &m->t[i];
        const int group = t->cols % 64 ? 32 : 64;
        if (!t->matrix)
            continue;
        if (wide) {
            if (has(t, ".experts.")) /* of a layer's experts all are alike */
                v4_encode(m, t, V4_AFFINE, widths[(t->name[7] - '0') * 3 + t->name[strlen(t->name) - 8] - '1'], group);
            else if (!has(t, "wq_a"))
                v4_encode(m, t, V4_AFFINE, widths[turn++ % 6], 32);
        } else if (has(t, ".experts.")) {
            v4_encode(m, t, V4_MXFP4, 4, 32);
        } else if (has(t, "shared_experts") || has(t, ".attn.w") || has(t, ".indexer.wq")) {
            v4_encode(m, t, V4_MXFP8, 8, 32);
        } else {
            v4_encode(m, t, V4_AFFINE, 8, group);
        }
    }
}

static void test_mlx(void **state)
{
    static const char *const names[] = {"as mlx-vlm names it", "as mlx-lm's branches do", "in the makers' words"};
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        static struct v4_model m;
        v4_make(&m);
        encode_all(&m, wide);
        v4_write_plain(&m);
        float *want = logits_of(dir, true);
        for (int n = 0; n < 3; n++) {
            char what[80];
            (void)snprintf(what, sizeof what, "MLX, %s, %s", wide ? "2 to 8 bits" : "mxfp4 and mxfp8", names[n]);
            v4_write_mlx(&m, (enum v4_names)n);
            same_logits(want, dir, what);
        }
        free(want);
        v4_free(&m);
    }
}

/* What ds4's files lie in: experts in so many bits, the rest as all of them have it. */
static void block_all(struct v4_model *m, int in, int out)
{
    for (int i = 0; i < m->n; i++) {
        struct v4_tensor *t = &m->t[i];
        const bool matrix = t->matrix || has(t, "_fn") || has(t, ".ape") || has(t, "gate.weight");
        if (has(t, ".experts."))
            v4_block(m, t, has(t, ".w2.") ? out : in);
        else if (t->matrix && (has(t, ".attn.w") || has(t, "shared_experts") || has(t, "head.")))
            v4_block(m, t, TERN_Q8_0);
        else if (matrix && !t->ids)
            v4_block(m, t, TERN_F16);
    }
}

static void test_gguf(void **state)
{
    static const int types[][2] = {{TERN_IQ2_XXS, TERN_Q2_K}, {TERN_Q4_K, TERN_Q4_K},  {TERN_Q3_K, TERN_Q5_K},
                                   {TERN_Q6_K, TERN_Q8_0},    {TERN_MXFP4, TERN_Q4_0}, {TERN_IQ3_XXS, TERN_IQ4_XS}};
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        static struct v4_model m;
        struct gguf_writer w;
        char what[80];
        v4_make(&m);
        block_all(&m, types[k][0], types[k][1]);
        v4_write_plain(&m);
        float *want = logits_of(dir, true);
        gw_init(&w);
        v4_gguf_keys(&w);
        v4_gguf_tensors(&w, &m);
        assert_int_equal(gw_save(&w, in_dir("v4.gguf")), 0);
        (void)snprintf(what, sizeof what, "GGUF, experts %s", tern_type_name(types[k][0]));
        same_logits(want, in_dir("v4.gguf"), what);
        gw_clear(&w);
        free(want);
        v4_free(&m);
    }
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static char *read_whole(const char *name, size_t *n)
{
    FILE *f = fopen(in_dir(name), "rb");
    char *p = malloc((size_t)1 << 25);
    assert_true(f && p);
    *n = fread(p, 1, (size_t)1 << 25, f);
    assert_true(*n > 0 && *n < (size_t)1 << 25);
    (void)fclose(f);
    return p;
}

/* Writes the file anew with `to` where `from` stood first; of weights both are equally long. */
static void change(const char *name, const char *from, const char *to)
{
    size_t n;
    char *p = read_whole(name, &n), *at = memmem(p, n, from, strlen(from));
    if (!at)
        fail_msg("%s has no %s", name, from);
    memmove(at + strlen(to), at + strlen(from), n - (size_t)(at - p) - strlen(from));
    memcpy(at, to, strlen(to));
    write_bytes(name, p, n + strlen(to) - strlen(from));
    free(p);
}

static void refused(const char *path, const char *want)
{
    tern_model *m;
    tern_error err = {0};
    assert_true(tern_model_open(&m, path, &(tern_model_params){.n_threads = 1}, &err) < 0);
    print_message("%s\n", err.msg);
    assert_null(m);
    assert_non_null(strstr(err.msg, dir));
    assert_null(strchr(err.msg, '\n'));
    if (!strstr(err.msg, want))
        fail_msg("it does not say %s", want);
}

#define EXPERTS "\"language_model.model.layers.1.ffn.switch_mlp.up_proj\":"
#define MXFP4   "{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}"
#define EMBED   "\"language_model.model.embed_tokens\":"
#define AFFINE  "{\"group_size\":64,\"bits\":8,\"mode\":\"affine\"}"

static void test_damaged_mlx(void **state)
{
    static const struct {
        const char *file, *from, *to, *says;
    } cases[] = {
        /* what is said of a module */
        {"config.json", EXPERTS MXFP4, EXPERTS AFFINE,
         "layers.1.ffn.switch_mlp.up_proj.weight\": a tensor with \".bia"},
        {"config.json", EXPERTS MXFP4, EXPERTS "{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp8\"}",
         "up_proj.scales\": its shape is"},
        {"config.json", EXPERTS MXFP4, EXPERTS "{\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\"}",
         "up_proj.group_s...\": this mode has no groups of this size"},
        {"config.json", EXPERTS MXFP4, EXPERTS "{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp4\"}",
         "up_proj.bits\": this mode has no codes of so many bits"},
        {"config.json", EXPERTS MXFP4, EXPERTS "{\"mode\":\"mxfp6\"}", "\"mxfp6\" is not supported"},
        {"config.json", EXPERTS MXFP4, EXPERTS "false", "switch_mlp.up_proj\": only true is supported"},
        {"config.json", EMBED AFFINE, EMBED "{\"group_size\":32,\"bits\":8}", "embed_tokens.scales\": its shape is"},
        {"config.json", EMBED AFFINE, EMBED "{\"group_size\":64,\"bits\":4}", "embed_tokens.scales\": its shape is"},
        {"config.json", EMBED AFFINE, EMBED "{\"group_size\":64,\"bits\":7}", "no codes of so many bits"},
        /* sizes that are not those of the tensors */
        {"config.json", "\"n_routed_experts\":3", "\"n_routed_experts\":4", "ffn.gate.weight\" at byte"},
        {"config.json", "\"o_groups\":2", "\"o_groups\":4", "attn.wo_a.weight\" at byte"},
        {"config.json", "\"hc_mult\":4", "\"hc_mult\":3", "hc_head.fn\" at byte"},
        /* tensors that are called otherwise: one is missing, and one is nobody's */
        {"model.safetensors", "switch_mlp.up_proj.scales", "switch_mlp.up_proj.scalez", "\".scales\" is missing"},
        {"model.safetensors", "embed_tokens.biases", "embed_tokens.biasez", "\".biases\" is missing beside it"},
        {"model.safetensors", "layers.1.attn_hc.fn", "layers.1.attn_hc.fm", "\"blk.1.hc_attn_fn.weight\" is missing"},
        {"model.safetensors", "layers.0.attn.wo_a.w", "layers.0.attn.wo_x.w",
         "wo_x.weight\": a tensor with \".scales\" is missing"},
        {"model.safetensors", "hc_head.base", "hc_head.bass", "\"output_hc_base.weight\" is missing"},
        {"model.safetensors", "gate.tid2eid", "gate.tid2exd", "tid2exd\": dtype \"I32\" is not supported"},
        /* other types */
        {"model.safetensors", "gate.tid2eid\":{\"dtype\":\"I32\"", "gate.tid2eid\":{\"dtype\":\"F32\"",
         "its elements are F32, not whole numbers"},
        {"model.safetensors", "embed_tokens.weight\":{\"dtype\":\"U32\"", "embed_tokens.weight\":{\"dtype\":\"F32\"",
         "codes that are no matrix of dtype U32"},
        {"model.safetensors", "embed_tokens.biases\":{\"dtype\":\"BF16\"", "embed_tokens.biases\":{\"dtype\":\"F16\" ",
         "its dtype is F16, the quantisation of this weight has BF16"},
    };
    static struct v4_model m;
    (void)state;
    v4_make(&m);
    encode_all(&m, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        v4_write_mlx(&m, V4_MLX_VLM);
        change(cases[i].file, cases[i].from, cases[i].to);
        refused(dir, cases[i].says);
    }
    v4_free(&m);
}

/* Numbers that are none, ids of nobody, a download that ended early. */
static void test_damaged_mlx_data(void **state)
{
    static struct v4_model m;
    size_t n;
    char text[40];
    (void)state;
    v4_make(&m);
    encode_all(&m, false);
    struct v4_tensor *t = v4_find(&m, "layers.1.ffn.experts.2.w3.weight");
    const uint16_t was = t->scale[9];
    t->scale[9] = 255;
    v4_write_mlx(&m, V4_MLX_VLM);
    refused(dir, "switch_mlp.up_proj.weight[2]");
    t->scale[9] = was;
    t = v4_find(&m, "embed.weight");
    t->off[5] = 0x7F80;
    v4_write_mlx(&m, V4_MLX_VLM);
    refused(dir, "embed_tokens.weight: the minimum");
    t->off[5] = 0;
    t = v4_find(&m, "layers.0.ffn.gate.tid2eid");
    t->v[7] = V4_EXPERTS;
    v4_write_mlx(&m, V4_MLX_VLM);
    (void)snprintf(text, sizeof text, "element 7 is expert %d", V4_EXPERTS);
    refused(dir, text);
    t->v[7] = t->v[6];
    v4_write_mlx(&m, V4_MLX_VLM);
    refused(dir, "token 3 has expert");
    char *p = read_whole("model.safetensors", &n);
    write_bytes("model.safetensors", p, n - 1);
    refused(dir, "beyond the");
    free(p);
    v4_free(&m);
}

/* One GGUF with one change: `from` reads `to` in its bytes, which keep their number. */
static void test_damaged_gguf(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"deepseek4.hyper_connection.sinkhorn_iterations", "deepseek4.hyper_connection.sinkhorn_iterationz",
         "sinkhorn_iterations\" is missing"},
        {"deepseek4.attention.compress_ratios", "deepseek4.attention.compress_ratioz", "compress_ratios is not an arr"},
        {"deepseek4.swiglu_clamp_exp", "deepseek4.swiglu_clamp_exq", "swiglu_clamp_exp of layer 0 is missing"},
        {"deepseek4.hash_layer_count", "deepseek4.hash_layer_counz", "hash_layer_count\" is missing"},
        {"blk.0.hc_attn_fn.weight", "blk.0.hc_attn_fm.weight", "\"blk.0.hc_attn_fn.weight\" is missing"},
        {"blk.1.ffn_up_exps.weight", "blk.1.ffn_xp_exps.weight", "\"blk.1.ffn_up_exps.weight\" is missing"},
        {"blk.1.exp_probs_b.bias", "blk.1.exp_probs_x.bias", "\"blk.1.exp_probs_b.bias\" is missing"},
        {"output_hc_scale.weight", "output_hc_scalx.weight", "\"output_hc_scale.weight\" is missing"},
        {"token_embd.weight", "token_embx.weight", "\"token_embd.weight\" is missing"},
        {"blk.0.ffn_gate_tid2eid", "mtp.0.ffn_gate_tid2eid", "\"blk.0.ffn_gate_tid2eid.weight\" is missing"},
    };
    static struct v4_model m;
    struct gguf_writer w;
    (void)state;
    v4_make(&m);
    block_all(&m, TERN_IQ2_XXS, TERN_Q2_K);
    gw_init(&w);
    v4_gguf_keys(&w);
    v4_gguf_tensors(&w, &m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(gw_save(&w, in_dir("v4.gguf")), 0);
        change("v4.gguf", cases[i].from, cases[i].to);
        refused(in_dir("v4.gguf"), cases[i].says);
    }
    assert_int_equal(gw_save(&w, in_dir("v4.gguf")), 0);
    size_t n;
    char *p = read_whole("v4.gguf", &n);
    write_bytes("v4.gguf", p, n - 70000);
    refused(in_dir("v4.gguf"), "beyond the");
    /* The type of a tensor stands behind its name, the number of its dimensions and these. */
    char *at = memmem(p, n, "blk.0.ffn_down_exps.weight", 26);
    assert_non_null(at);
    *(at + 26 + 4 + 3 * 8) = 19;
    write_bytes("v4.gguf", p, n);
    refused(in_dir("v4.gguf"), "IQ1_S");
    free(p);
    gw_tensor(&w, "mtp.0.e_proj.weight", TERN_F32, 1, (uint64_t[]){4}, (float[]){1, 2, 3, 4}, 16);
    assert_int_equal(gw_save(&w, in_dir("v4.gguf")), 0);
    refused(in_dir("v4.gguf"), "\"mtp.0.e_proj.weight\" at byte");
    gw_clear(&w);
    v4_free(&m);
}

static int prepare(void **state)
{
    struct tern_rng rng = {5};
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(tern_rng_u64(&rng) % V4_VOCAB);
    return set_up(state);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mlx), cmocka_unit_test(test_gguf),
                                       cmocka_unit_test(test_damaged_mlx), cmocka_unit_test(test_damaged_mlx_data),
                                       cmocka_unit_test(test_damaged_gguf)};
    return cmocka_run_group_tests(tests, prepare, tear_down);
}
