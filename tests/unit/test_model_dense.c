/* Every tiny model that has a prompt of its own (tests/data/tiny, tools/make_dense_models.py): the reference's logits,
 * and what every model promises.  A new one is in the walk; where other KV plans say more about what it adds it has a
 * line. */
#include "fixtures.h"
#include "served.h"
#include "tiny_promises.h"

static const struct plans {
    const char *name;
    const char *kv[2]; /* coded plans */
} plans[] = {
    {"qwen3", {"t4", "k=q8,v=l3,first=0"}},
    {"llama-yarn", {"t3", "l4,recent=128"}},
    {"llama-keys", {"l4", "affine8"}},
    {"gemma2", {"t4,layers=0-2:t3", "l4"}},
    {"gemma3-linear", {"t4", "l4,layers=0-2:q8"}},
    {"mistral", {"t4", "k=q8,v=l3,recent=128"}},
    {"llama4", {"l4,layers=0-3:l4", "t4"}},
    {"llama4-experts", {"t4", "l3,recent=128"}},
    {"llama4-128", {"t4", "l4"}},
    {"smollm3", {"t4,layers=3-3:l4", "l3"}},
    {"gemma4", {"t4", "l4,layers=0-2:t3"}},
    {"gemma4-small", {"t4", "l4,layers=0-1:t3,recent=128"}},
    {"qwen35", {"t4", "l4,recent=128"}},
    {"qwen35moe", {"l3,layers=3-3:t4", "t4"}},
    {"deepseek4", {"l4", "t4,layers=0-1:q8"}},
    {"deepseek4-grid", {"t4,recent=128", "q8,layers=0-3:l3"}},
    {"deepseek2-lite", {"t4", "k=f16,v=l4"}},
    {"gemma4-experts", {"t4", "l4,layers=1-1:t3"}},
    {"phi3-window", {"t4", "l3,layers=0-0:q8,recent=128"}},
    {"phi3-long", {"k=t4,v=t3", "f16"}},
};

static struct fixtures models;

static int find_models(void **state)
{
    struct fixtures all, prompts;
    (void)state;
    fixtures_find(&all, "tiny", ".gguf");
    fixtures_find(&prompts, "tiny", ".ids.txt");
    models.n = 0;
    for (int i = 0; i < all.n; i++)
        if (fixtures_have(&prompts, all.names[i]) && served(all.names[i]))
            memcpy(models.names[models.n++], all.names[i], sizeof all.names[i]);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (served(plans[i].name) && !fixtures_have(&models, plans[i].name))
            fail_msg("%s has plans, but is no model", plans[i].name);
    return 0;
}

/* Of two coded plans the one of an even or an odd number. */
static const char *plan_of(const char *name, int odd)
{
    static const char *const usual[2] = {"t4", "l3"};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (strcmp(plans[i].name, name) == 0)
            return plans[i].kv[odd % 2];
    return usual[odd % 2];
}

static void open_named(struct tiny *t, const char *name)
{
    tiny_open(t, name, name, name);
}

static void test_exact_parity(void **state)
{
    (void)state;
    for (int i = 0; i < models.n; i++) {
        struct tiny t;
        open_named(&t, models.names[i]);
        tiny_exact_parity(&t, 1e-4, models.names[i]);
        tiny_close(&t);
    }
}

/* What rounding may cost, int8 of decode rows or bf16 of prompt rows on matrix units: more where it has rows go to
 * other experts, of which these choose among many alike, or to other compressed rows. */
static double rounding_limit(const char *name, double usual)
{
    const bool choosy = strcmp(name, "qwen35moe") == 0 || strcmp(name, "llama4-128") == 0;
    return choosy || strncmp(name, "deepseek4", 9) == 0 ? 1e-2 : usual;
}

/* The 16-bit cache, and what 4 bits lose: random keys are harder to code than those of trained models. */
static void test_fast_paths_close_to_reference(void **state)
{
    bool close = true;
    (void)state;
    for (int i = 0; i < models.n; i++) {
        const char *name = models.names[i];
        struct tiny t;
        open_named(&t, name);
        double prompt = tiny_run_kld(&t, "f16", false, false), decode = tiny_run_kld(&t, "f16", false, true),
               coded = tiny_run_kld(&t, "t4", true, false);
        print_message("%-16s KLD prompt rows %.2e, decode rows %.2e, t4 %.2e\n", name, prompt, decode, coded);
        close &= prompt <= rounding_limit(name, 1e-3) && decode <= rounding_limit(name, 2e-3) && coded <= 2e-2;
        tiny_close(&t);
    }
    assert_true(close);
}

static void test_splits_and_threads(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 65}};
    (void)state;
    for (int i = 0; i < models.n; i++) {
        struct tiny t;
        open_named(&t, models.names[i]);
#ifdef TERN_TEST_FEW /* each model with one plan: threads meet in the same way with the other */
        const size_t first = (size_t)i % 2, by = 2;
#else
        const size_t first = 0, by = 1;
#endif
        for (size_t k = first; k < 2; k += by)
            tiny_splits_and_threads(&t, plan_of(models.names[i], (int)k), cases, sizeof cases / sizeof *cases,
                                    models.names[i]);
        tiny_close(&t);
    }
}

static void test_batch_equals_single(void **state)
{
    (void)state;
    for (int i = 0; i < models.n; i++) {
        struct tiny t;
        open_named(&t, models.names[i]);
        tiny_batch_equals_single(&t, plan_of(models.names[i], i), models.names[i]);
        tiny_close(&t);
    }
}

static void test_fork_trim_save(void **state)
{
    static const int cuts[] = {63, 71, 128};
    (void)state;
    for (int i = 0; i < models.n; i++) {
        struct tiny t;
        open_named(&t, models.names[i]);
#ifdef TERN_TEST_FEW /* models share the cuts: sanitizers see the same code at each */
        const size_t from = (size_t)i % 3, by = 3;
#else
        const size_t from = 0, by = 1;
#endif
        for (size_t c = from; c < sizeof cuts / sizeof *cuts; c += by)
            tiny_fork_trim_save(&t, plan_of(models.names[i], (int)c), cuts[c]);
        tiny_close(&t);
    }
}

/* Prompt and ten decode rows in an engine of its own: logits of the prompt's end and of these. */
static float *run_prompt(struct tiny *t, const char *kv, bool at_end, int chunk)
{
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s;
    const float *logits;
    float *out = tiny_buffer(t);
    tern_engine_params p = {.n_threads = 2, .chunk = chunk, .kv = kv, .code_at_end = at_end};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_ok(tern_prefill(e, s, t->ids, 120, &logits, NULL, NULL, &err), &err);
    memcpy(out, logits, (size_t)t->n_vocab * sizeof *out);
    tiny_run(e, s, t->ids, 120, 130, 1, true, out, 119, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

/* A prompt that is coded at its end was attended to in 16 bits, whatever the chunk. */
static void test_coded_at_end(void **state)
{
    static const char *const names[] = {"gemma4-small", "llama4", "qwen35", "deepseek4"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tiny t;
        if (!served(names[i]))
            continue;
        open_named(&t, names[i]);
        const char *kv = "t4,layers=0-1:l4,recent=128";
        float *raw = run_prompt(&t, "f16", false, 512), *end = run_prompt(&t, kv, true, 512),
              *part = run_prompt(&t, kv, true, 50);
        assert_memory_equal(raw, end, (size_t)t.n_vocab * sizeof *raw);
        tiny_equal_bits(&t, end, part, names[i]);
        /* What follows is near the 16-bit cache: all that the prompt has left is there, states too. */
        const double kld = tiny_kld(raw + t.n_vocab, end + t.n_vocab, 10, t.n_vocab);
        print_message("%-16s coded at its end: KLD %.2e\n", names[i], kld);
        assert_true(kld <= 1e-2);
        free(raw);
        free(end);
        free(part);
        tiny_close(&t);
    }
}

/* Measured conditioning knows chunks, windows, keys that several layers attend to, and the factors of long contexts. */
static void test_calibrated(void **state)
{
    static const char *const names[] = {"gemma4-small", "llama4", "gemma2", "phi3-long", "qwen35"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tiny t;
        tern_error err = {0};
        char path[] = "/tmp/tern-test-XXXXXX", kv[64];
        int32_t ids[300];
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        (void)close(fd);
        open_named(&t, names[i]);
        for (int k = 0; k < 300; k++)
            ids[k] = t.ids[k * 7 % t.n_ids];
        tiny_ok(tern_model_calibrate(t.model, ids, 300, 2, path, NULL, NULL, &err), &err);
        (void)snprintf(kv, sizeof kv, "t4,layers=0-1:t4,cond=%s", path);
        float *coded = tiny_run_all(&t, kv, true, 2, 512, false), *part = tiny_run_all(&t, kv, true, 1, 9, false);
        double k = tiny_kld_of(&t, coded);
        print_message("%-16s calibrated t4 %.2e\n", names[i], k);
        assert_true(k <= 1e-2);
        tiny_equal_bits(&t, coded, part, kv);
        (void)unlink(path);
        free(coded);
        free(part);
        tiny_close(&t);
    }
}

/* Contexts up to the original one have the short factors, and what they saved stays theirs. */
static void test_longrope(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *other;
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    tiny_open(&t, "phi3-long", "phi3-long", "phi3-long-short");
    tern_engine *all = tiny_engine(&t, "l4", false, 1, 1, 512);
    float *unused = tiny_buffer(&t);
    t.ctx = 100;
    t.n_ids = 97;
    float *whole = tiny_run_all(&t, NULL, true, 2, 512, false), *part = tiny_run_all(&t, NULL, true, 2, 7, false);
    assert_true(tiny_max_diff(&t, whole) <= 1e-4);
    tiny_equal_bits(&t, whole, part, "short factors in steps");
    tern_engine *few = tiny_engine(&t, "l4", false, 1, 1, 100);
    tiny_ok(tern_seq_new(&s, few, &err), &err);
    tiny_run(few, s, t.ids, 0, 70, 70, false, unused, 0, t.n_vocab);
    tiny_ok(tern_seq_save(s, path, &err), &err);
    assert_int_equal(tern_seq_load(&other, all, path, &err), TERN_EMISMATCH);
    assert_non_null(strstr(err.msg, "longrope"));
    tern_seq_free(s);
    tiny_ok(tern_seq_load(&other, few, path, &err), &err);
    tern_engine_close(&few);
    tern_engine_close(&all);
    (void)unlink(path);
    free(unused);
    free(whole);
    free(part);
    tiny_close(&t);
}

/* Fixtures with some bytes changed. */
#define BYTES(text) text, sizeof(text) - 1
static const struct lie {
    const char *file, *from;
    size_t n;
    const char *to;
    size_t n_to;
    const char *want; /* a part of the message */
} lies[] = {
    {"phi3-long", BYTES("rope_factors_short"), BYTES("rope_factors_shork"), "longrope wants both"},
    {"phi3-long", BYTES("original_context_length"), BYTES("original_context_lengtx"), "original_context_length"},
    {"phi3-window", BYTES("blk.1.attn_qkv"), BYTES("blk.1.attn_qkx"), "\"blk.1.attn_qkv.weight\" is missing"},
    {"llama-yarn", BYTES("\4\0\0\0\0\0\0\0yarn"), BYTES("\4\0\0\0\0\0\0\0yurn"), "\"yurn\""},
    {"llama-yarn", BYTES("original_context_length"), BYTES("original_context_lengtx"), "original_context_length"},
    {"qwen3", BYTES("blk.0.attn_k_norm"), BYTES("blk.0.attn_k_worm"), "\"blk.0.attn_k_norm.weight\" is missing"},
    {"gemma4", BYTES("blk.0.attn_v"), BYTES("blk.0.attn_w"), "\"blk.0.attn_w.weight\""},
    {"gemma4", BYTES("sliding_window_pattern"), BYTES("sliding_window_pattert"), "has shape"},
    {"gemma4", BYTES("\2\0\0\0\2\0\0\0\1\0\0\0"), BYTES("\2\0\0\0\2\0\0\0\5\0\0\0"), "5 of layer 2"},
    {"gemma4", BYTES("\xca\xf2\x49\x71"), BYTES("\0\0\0\0"), "divisor 8 "}, /* was 1e30 */
    {"gemma4-small", BYTES("shared_kv_layers\4\0\0\0\3"), BYTES("shared_kv_layers\4\0\0\0\4"), "of its kind"},
    {"llama4-experts", BYTES("blk.1.ffn_up_shexp"), BYTES("blk.1.ffn_up_shexq"),
     "\"blk.1.ffn_up_shexp.weight\" is missing"},
    {"llama4-experts", BYTES("expert_used_count\4\0\0\0\2"), BYTES("expert_used_count\4\0\0\0\6"), "expert_used_count"},
    {"qwen35", BYTES("ssm.conv_kernel\4\0\0\0\4"), BYTES("ssm.conv_kernel\4\0\0\0\11"), "ssm.conv_kernel"},
    {"qwen35", BYTES("ssm.conv_kernel\4\0\0\0\4"), BYTES("ssm.conv_kernel\4\0\0\0\3"), "blk.0.ssm_conv1d.weight"},
    {"qwen35", BYTES("ssm.inner_size\4\0\0\0\300"), BYTES("ssm.inner_size\4\0\0\0\301"), "ssm.inner_size"},
    {"qwen35", BYTES("ssm.inner_size\4\0\0\0\300"), BYTES("ssm.inner_size\4\0\0\0\220"), "no multiple of 16"},
    {"qwen35", BYTES("ssm.state_size"), BYTES("ssm.state_sizf"), "ssm.state_size"},
    {"qwen35", BYTES("time_step_rank\4\0\0\0\6"), BYTES("time_step_rank\4\0\0\0\5"), "ssm.time_step_rank"},
    {"qwen35", BYTES("attention_interval\4\0\0\0\2"), BYTES("attention_interval\4\0\0\0\3"),
     "\"blk.1.attn_qkv.weight\" is missing"},
    {"qwen35", BYTES("blk.2.ssm_a"), BYTES("blk.2.ssm_b"), "\"blk.2.ssm_a\" is missing"},
    {"qwen35moe", BYTES("nextn_predict_layers\4\0\0\0\1"), BYTES("nextn_predict_layers\4\0\0\0\5"), "nextn_predict"},
    {"qwen35moe", BYTES("nextn_predict_layers\4\0\0\0\1"), BYTES("nextn_predict_layers\4\0\0\0\2"),
     "no layer has attention"},
    {"qwen35moe", BYTES("nextn_predict_layers"), BYTES("nextn_predict_layerz"), "blk.4."},
    {"qwen35moe", BYTES("recurrent_layers\11\0\0\0\7"), BYTES("recurrent_layers\11\0\0\0\0"), "5 booleans"},
    {"qwen35moe", BYTES("blk.2.ffn_gate_inp_shexp"), BYTES("blk.2.ffn_gate_inp_shexq"),
     "\"blk.2.ffn_gate_inp_shexp.weight\" is missing"},
    {"mixtral-apart", BYTES("blk.0.ffn_up.2."), BYTES("blk.0.ffn_up.3."), "\"blk.0.ffn_up.2.weight\" is missing"},
    {"mixtral-apart", BYTES("blk.0.ffn_down.0."), BYTES("blk.0.ffn_down.3."),
     "\"blk.0.ffn_down_exps.weight\" is missing"},
    {"mixtral-apart", BYTES("expert_count\4\0\0\0\3"), BYTES("expert_count\4\0\0\0\2"), "has shape [64, 3], expected"},
    {"deepseek2-lite", BYTES("blk.1.attn_k_b"), BYTES("blk.1.attn_x_b"), "\"blk.1.attn_k_b.weight\" is missing"},
    {"gemma4-experts", BYTES("blk.1.pre_ffw_norm_2"), BYTES("blk.1.pre_ffw_norm_3"),
     "\"blk.1.pre_ffw_norm_2.weight\" is missing"},
    {"gemma4-experts", BYTES("blk.0.ffn_down_exps.scale"), BYTES("blk.0.ffn_down_exps.scala"),
     "\"blk.0.ffn_down_exps.scale\" is missing"},
    {"gemma4-experts", BYTES("expert_count"), BYTES("expert_cound"), "blk.0.ffn_gate_inp.scale\" at byte"},
    {"gemma4-small", BYTES("blk.3.post_norm"), BYTES("blk.3.past_norm"), "\"blk.3.post_norm.weight\" is missing"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const struct lie *l = &lies[i];
        char path[512], copy[] = "/tmp/tern-test-XXXXXX";
        static char bytes[400000];
        tern_error err = {0};
        tern_model *m;
        (void)snprintf(path, sizeof path, "%s/tiny/%s.gguf", TERN_TEST_DATA, l->file);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        size_t n = fread(bytes, 1, sizeof bytes, f);
        (void)fclose(f);
        char *at = memmem(bytes, n, l->from, l->n);
        assert_non_null(at);
        assert_int_equal(l->n, l->n_to);
        memcpy(at, l->to, l->n);
        int fd = mkstemp(copy);
        assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
        int rc = tern_model_open(&m, copy, NULL, &err);
        (void)unlink(copy);
        assert_true(rc < 0);
        if (!strstr(err.msg, l->want))
            fail_msg("%s without \"%s\": %s", l->file, l->from, err.msg);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_parity),       cmocka_unit_test(test_fast_paths_close_to_reference),
        cmocka_unit_test(test_splits_and_threads), cmocka_unit_test(test_batch_equals_single),
        cmocka_unit_test(test_fork_trim_save),     cmocka_unit_test(test_calibrated),
        cmocka_unit_test(test_coded_at_end),       cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, find_models, NULL);
}
