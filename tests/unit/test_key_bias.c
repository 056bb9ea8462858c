/* Keys with an enormous bias, as Qwen2.5 has them (norm 600 against 20 of what varies, a part of it in pairs that
 * rotate fast): coded with conditioning they must be about as good as without the bias, and without conditioning they
 * are not.
 */
#include "tiny.h"

#include <unistd.h>
#include "base/rng.h"
#include "gguf_writer.h"

enum { EMBD = 96, FF = 128, HEADS = 4, HEAD = 64, VOCAB = 320, LAYERS = 2, CTX = 1024, LENGTH = 500, F32 = 0 };
enum { PAGE = 64 };
enum { FAST = 4, SLOW = 8 }; /* pairs with a bias, from both ends of the embedding */

static float gauss(struct tern_rng *r)
{
    double u = 1.0 - tern_rng_f64(r), v = tern_rng_f64(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static const char *path_of(const char *what)
{
    static char path[3][64];
    static int turn;
    turn = (turn + 1) % 3;
    (void)snprintf(path[turn], sizeof path[turn], "/tmp/tern-bias-%ld-%s", (long)getpid(), what);
    return path[turn];
}

static bool has_bias(int d)
{
    int pair = d % (HEAD / 2);
    return pair < FAST || pair >= HEAD / 2 - SLOW;
}

static void matrix(struct gguf_writer *w, struct tern_rng *r, const char *name, int n_in, int n_out, float size)
{
    static float data[VOCAB * EMBD];
    for (int i = 0; i < n_in * n_out; i++)
        data[i] = size * gauss(r);
    /* Trained queries hardly look along pairs that only turn: their products would swamp every score. */
    if (strstr(name, "attn_q"))
        for (int i = 0; i < n_in * n_out; i++)
            if (i / n_in % (HEAD / 2) < FAST)
                data[i] *= 0.1f;
    gw_tensor(w, name, F32, 2, (uint64_t[]){(uint64_t)n_in, (uint64_t)n_out}, data,
              (size_t)n_in * (size_t)n_out * sizeof *data);
}

static void vector(struct gguf_writer *w, const char *name, const float *x, int n)
{
    gw_tensor(w, name, F32, 1, (uint64_t[]){(uint64_t)n}, x, (size_t)n * sizeof *x);
}

static void layer(struct gguf_writer *w, struct tern_rng *r, int i, bool biased)
{
    static const char *const shapes[][2] = {{"attn_q", "eq"},      {"attn_k", "ek"},   {"attn_v", "ek"},
                                            {"attn_output", "qe"}, {"ffn_gate", "ef"}, {"ffn_up", "ef"},
                                            {"ffn_down", "fe"}};
    /* Keys of norm 20, scores of 1.5 nats, everything else of size 1. */
    static const float sizes[] = {0.06f, 0.255f, 0.1f, 0.06f, 0.1f, 0.1f, 0.09f};
    float one[EMBD], bias[HEAD] = {0}, none[HEADS * HEAD] = {0};
    char name[64];
    for (int j = 0; j < EMBD; j++)
        one[j] = 1;
    for (int j = 0; j < 7; j++) {
        int n[2];
        for (int k = 0; k < 2; k++)
            switch (shapes[j][1][k]) {
            case 'e':
                n[k] = EMBD;
                break;
            case 'q':
                n[k] = HEADS * HEAD;
                break;
            case 'k':
                n[k] = HEAD;
                break;
            default:
                n[k] = FF;
            }
        (void)snprintf(name, sizeof name, "blk.%d.%s.weight", i, shapes[j][0]);
        matrix(w, r, name, n[0], n[1], sizes[j]);
    }
    for (int d = 0; d < HEAD; d++) { /* 4 % of the energy in the fast pairs */
        float share = d % (HEAD / 2) < FAST ? 0.04f / (2 * FAST) : 0.96f / (2 * SLOW);
        float x = 600 * sqrtf(share) * (gauss(r) > 0 ? 1.0f : -1.0f);
        bias[d] = biased && has_bias(d) ? x : 0;
    }
    static const char *const norms[] = {"attn_norm", "ffn_norm"};
    for (int j = 0; j < 2; j++) {
        (void)snprintf(name, sizeof name, "blk.%d.%s.weight", i, norms[j]);
        vector(w, name, one, EMBD);
    }
    (void)snprintf(name, sizeof name, "blk.%d.attn_q.bias", i);
    vector(w, name, none, HEADS * HEAD);
    (void)snprintf(name, sizeof name, "blk.%d.attn_k.bias", i);
    vector(w, name, bias, HEAD);
}

static void write_model(const char *path, bool biased)
{
    struct gguf_writer w;
    struct tern_rng r = {2024};
    float one[EMBD];
    for (int j = 0; j < EMBD; j++)
        one[j] = 1;
    gw_init(&w);
    gw_str(&w, "general.architecture", "qwen2");
    gw_u32(&w, "qwen2.block_count", LAYERS);
    gw_u32(&w, "qwen2.context_length", CTX);
    gw_u32(&w, "qwen2.embedding_length", EMBD);
    gw_u32(&w, "qwen2.feed_forward_length", FF);
    gw_u32(&w, "qwen2.attention.head_count", HEADS);
    gw_u32(&w, "qwen2.attention.head_count_kv", 1);
    gw_u32(&w, "qwen2.attention.key_length", HEAD);
    gw_u32(&w, "qwen2.attention.value_length", HEAD);
    gw_f32(&w, "qwen2.attention.layer_norm_rms_epsilon", 1e-6f);
    gw_f32(&w, "qwen2.rope.freq_base", 1e6f);
    gw_str(&w, "tokenizer.ggml.model", "none");
    matrix(&w, &r, "token_embd.weight", EMBD, VOCAB, 0.2f);
    vector(&w, "output_norm.weight", one, EMBD);
    for (int i = 0; i < LAYERS; i++)
        layer(&w, &r, i, biased);
    assert_int_equal(gw_save(&w, path), 0);
    gw_clear(&w);
}

/* KLD of coded keys and values against f16, decode rows behind the first page, calibrated on another text. */
static void measure(bool biased, const char *scheme, double *conditioned, double *plain)
{
    tern_error err = {0};
    struct tiny t = {.n_ids = LENGTH, .n_vocab = VOCAB};
    char spec[160];
    const char *path = path_of("model"), *sidecar = path_of("sidecar");
    struct tern_rng r = {5};
    int32_t other[LENGTH];
    write_model(path, biased);
    tiny_ok(tern_model_open(&t.model, path, &(tern_model_params){.n_threads = 1}, &err), &err);
    for (int i = 0; i < LENGTH; i++) {
        t.ids[i] = (int32_t)(tern_rng_f64(&r) * VOCAB);
        other[i] = (int32_t)(tern_rng_f64(&r) * VOCAB);
    }
    tiny_ok(tern_model_calibrate(t.model, other, LENGTH, 1, sidecar, NULL, NULL, &err), &err);
    float *out[3];
    for (int i = 0; i < 3; i++) {
        if (i == 0)
            (void)snprintf(spec, sizeof spec, "f16");
        else
            (void)snprintf(spec, sizeof spec, "%s,cond=%s", scheme, i == 1 ? sidecar : "off");
        tern_engine *e = tiny_engine(&t, spec, true, 2, 1, 64);
        tern_seq *s;
        out[i] = tiny_buffer(&t);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, LENGTH, 1, true, out[i], 0, VOCAB);
        tern_engine_close(&e);
    }
    const size_t skip = (size_t)PAGE * VOCAB;
    *conditioned = tiny_kld(out[0] + skip, out[1] + skip, LENGTH - PAGE, VOCAB);
    *plain = tiny_kld(out[0] + skip, out[2] + skip, LENGTH - PAGE, VOCAB);
    for (int i = 0; i < 3; i++)
        free(out[i]);
    (void)unlink(path);
    (void)unlink(sidecar);
    tiny_close(&t);
}

static void bias_costs_nothing(void **state)
{
    (void)state;
    static const char *const schemes[] = {"t4", "l4", "t3", "l3"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        double with[2], without[2];
        measure(false, schemes[i], &with[0], &without[0]);
        measure(true, schemes[i], &with[1], &without[1]);
        print_message("%s: no bias %.2e (unconditioned %.2e), key bias of 600 %.2e (unconditioned %.2e)\n", schemes[i],
                      with[0], without[0], with[1], without[1]);
        assert_true(with[1] <= 2 * with[0]);
        assert_true(without[1] >= 10 * with[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bias_costs_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
