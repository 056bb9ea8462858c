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

/* exact: bit for bit.  Else decoded tokens have their activations in eight bits beside codes, and in 32 beside floats. */
static void same_logits(const float *want, const float *want_fast, const char *path, const char *what)
{
    float *got = logits_of(path, true), *fast = logits_of(path, false);
    const double d = tiny_kld(want, fast, TOKENS, V4_VOCAB), f = tiny_kld(want, want_fast, TOKENS, V4_VOCAB);
    print_message("%-40s KLD of the fast classes %.1e (plain %.1e)\n", what, d, f);
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
        float *want = logits_of(dir, true), *fast = logits_of(dir, false);
        for (int n = 0; n < 3; n++) {
            char what[80];
            (void)snprintf(what, sizeof what, "MLX, %s, %s", wide ? "2 to 8 bits" : "mxfp4 and mxfp8", names[n]);
            v4_write_mlx(&m, (enum v4_names)n);
            same_logits(want, fast, dir, what);
        }
        free(want);
        free(fast);
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
    static const int types[][2] = {{TERN_IQ2_XXS, TERN_Q2_K}, {TERN_Q4_K, TERN_Q4_K}, {TERN_Q3_K, TERN_Q5_K},
                                   {TERN_Q6_K, TERN_Q8_0},    {TERN_MXFP4, TERN_Q4_0}, {TERN_IQ3_XXS, TERN_IQ4_XS}};
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        static struct v4_model m;
        struct gguf_writer w;
        char what[80];
        v4_make(&m);
        block_all(&m, types[k][0], types[k][1]);
        v4_write_plain(&m);
        float *want = logits_of(dir, true), *fast = logits_of(dir, false);
        gw_init(&w);
        v4_gguf_keys(&w);
        v4_gguf_tensors(&w, &m);
        assert_int_equal(gw_save(&w, in_dir("v4.gguf")), 0);
        (void)snprintf(what, sizeof what, "GGUF, experts %s", tern_type_name(types[k][0]));
        same_logits(want, fast, in_dir("v4.gguf"), what);
        gw_clear(&w);
        free(want);
        free(fast);
        v4_free(&m);
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mlx), cmocka_unit_test(test_gguf)};
    return cmocka_run_group_tests(tests, prepare, tear_down);
}
