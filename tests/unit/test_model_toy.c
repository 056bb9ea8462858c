/* An architecture, a mixer and a residual that this program alone has (tests/toy): the logits of a plain computation,
 * and what every model promises. */
#include "gguf_writer.h"
#include "scratch.h"
#include "tiny_promises.h"

enum { EMBD = 64, HEADS = 3, DIM = 32, Q = HEADS * DIM, FF = 128, VOCAB = 70, LAYERS = 3, IDS = 140 };

struct layer {
    float attn_norm[EMBD], q[Q][EMBD], k[DIM][EMBD], v[DIM][EMBD], gate[Q][EMBD], o[EMBD][Q];
    float twin_norm[EMBD], twin_ffn_norm[EMBD], ffn_norm[EMBD], ff_gate[FF][EMBD], up[FF][EMBD], down[EMBD][FF];
};

static struct {
    float embed[VOCAB][EMBD], norm[EMBD], head[VOCAB][EMBD];
    struct layer layers[LAYERS];
} net;

static struct tiny toy;

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static float noise(void)
{
    static uint32_t x = 1;
    x = x * 1664525 + 1013904223;
    return (float)(x >> 8) / (1 << 23) - 1;
}

static void matrix(struct gguf_writer *w, const char *name, float *p, int n, int k)
{
    for (int i = 0; i < n * k; i++)
        p[i] = noise() * 1.7f / sqrtf((float)k);
    gw_tensor(w, name, 0, 2, (uint64_t[]){(uint64_t)k, (uint64_t)n}, p, (size_t)n * (size_t)k * sizeof *p);
}

static void vector(struct gguf_writer *w, const char *name, float *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = 1 + noise() / 2;
    gw_tensor(w, name, 0, 1, (uint64_t[]){(uint64_t)n}, p, (size_t)n * sizeof *p);
}

static void layer(struct gguf_writer *w, int i)
{
    char name[64];
    struct layer *l = &net.layers[i];
#define NAMED(word) ((void)snprintf(name, sizeof name, "blk.%d." word ".weight", i), name)
    vector(w, NAMED("attn_norm"), l->attn_norm, EMBD);
    matrix(w, NAMED("attn_q"), l->q[0], Q, EMBD);
    matrix(w, NAMED("attn_k"), l->k[0], DIM, EMBD);
    matrix(w, NAMED("attn_v"), l->v[0], DIM, EMBD);
    if (i % 2 == 0)
        matrix(w, NAMED("attn_gate"), l->gate[0], Q, EMBD);
    matrix(w, NAMED("attn_output"), l->o[0], EMBD, Q);
    vector(w, NAMED("twin_norm"), l->twin_norm, EMBD);
    vector(w, NAMED("twin_ffn_norm"), l->twin_ffn_norm, EMBD);
    vector(w, NAMED("ffn_norm"), l->ffn_norm, EMBD);
    matrix(w, NAMED("ffn_gate"), l->ff_gate[0], FF, EMBD);
    matrix(w, NAMED("ffn_up"), l->up[0], FF, EMBD);
    matrix(w, NAMED("ffn_down"), l->down[0], EMBD, FF);
#undef NAMED
}

static void write_toy(const char *path)
{
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, "general.architecture", "toy");
    gw_u32(&w, "toy.block_count", LAYERS);
    gw_u32(&w, "toy.context_length", 512);
    gw_u32(&w, "toy.embedding_length", EMBD);
    gw_u32(&w, "toy.feed_forward_length", FF);
    gw_u32(&w, "toy.attention.head_count", HEADS);
    gw_u32(&w, "toy.attention.head_count_kv", 1);
    gw_u32(&w, "toy.attention.key_length", DIM);
    gw_u32(&w, "toy.attention.value_length", DIM);
    gw_f32(&w, "toy.attention.layer_norm_rms_epsilon", 1e-5f);
    matrix(&w, "token_embd.weight", net.embed[0], VOCAB, EMBD);
    vector(&w, "output_norm.weight", net.norm, EMBD);
    matrix(&w, "output.weight", net.head[0], VOCAB, EMBD);
    for (int i = 0; i < LAYERS; i++)
        layer(&w, i);
    assert_int_equal(gw_save(&w, path), 0);
    gw_clear(&w);
}

/* ---- the plain computation --------------------------------------------------------------------------------------- */

static void product(double *y, const float *w, const double *x, int n, int k)
{
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int j = 0; j < k; j++)
            y[i] += (double)w[i * k + j] * x[j];
    }
}

static void rms_norm(double *y, const double *x, const float *w)
{
    double sum = 0;
    for (int i = 0; i < EMBD; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < EMBD; i++)
        y[i] = x[i] / sqrt(sum / EMBD + 1e-5) * (double)w[i];
}

static void rotate(double *x, int pos)
{
    for (int i = 0; i < DIM / 2; i++) {
        double angle = (double)((float)pos * (float)pow(10000, -2.0 * i / DIM)), a = x[i], b = x[i + DIM / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + DIM / 2] = a * sin(angle) + b * cos(angle);
    }
}

static void attend(double *out, const double *q, double (*keys)[DIM], double (*values)[DIM], int n)
{
    double s[IDS], sum = 0;
    for (int t = 0; t < n; t++) {
        s[t] = 0;
        for (int i = 0; i < DIM; i++)
            s[t] += q[i] * keys[t][i];
        sum += s[t] = exp(s[t] / sqrt(DIM));
    }
    for (int i = 0; i < DIM; i++) {
        out[i] = 0;
        for (int t = 0; t < n; t++)
            out[i] += s[t] / sum * values[t][i];
    }
}

static void mix(double *t, const double *h, int i, int pos)
{
    static double keys[LAYERS][IDS][DIM], values[LAYERS][IDS][DIM];
    const struct layer *l = &net.layers[i];
    double q[Q], gate[Q], a[Q];
    product(q, l->q[0], h, Q, EMBD);
    product(keys[i][pos], l->k[0], h, DIM, EMBD);
    product(values[i][pos], l->v[0], h, DIM, EMBD);
    product(gate, l->gate[0], h, Q, EMBD);
    rotate(keys[i][pos], pos);
    for (int head = 0; head < HEADS; head++) {
        rotate(q + head * DIM, pos);
        attend(a + head * DIM, q + head * DIM, keys[i], values[i], pos + 1);
    }
    for (int d = 0; d < Q && i % 2 == 0; d++)
        a[d] /= 1 + exp(-gate[d]);
    product(t, l->o[0], a, EMBD, Q);
}

static void network(double *t, const double *h, const struct layer *l)
{
    double gate[FF], up[FF];
    product(gate, l->ff_gate[0], h, FF, EMBD);
    product(up, l->up[0], h, FF, EMBD);
    for (int d = 0; d < FF; d++)
        gate[d] = gate[d] / (1 + exp(-gate[d])) * up[d];
    product(t, l->down[0], gate, EMBD, FF);
}

/* The streams, and what is made of them. */
static void compute(float *logits, int token, int pos)
{
    double a[EMBD], b[EMBD], sum[EMBD], h[EMBD], t[EMBD], out[VOCAB];
    for (int d = 0; d < EMBD; d++)
        a[d] = b[d] = (double)net.embed[token][d];
    for (int i = 0; i < 2 * LAYERS; i++) {
        const struct layer *l = &net.layers[i / 2];
        for (int d = 0; d < EMBD; d++)
            sum[d] = a[d] + b[d];
        rms_norm(h, sum, i % 2 ? l->ffn_norm : l->attn_norm);
        if (i % 2)
            network(t, h, l);
        else
            mix(t, h, i / 2, pos);
        rms_norm(b, b, i % 2 ? l->twin_ffn_norm : l->twin_norm);
        for (int d = 0; d < EMBD; d++) {
            a[d] += t[d];
            b[d] += t[d];
        }
    }
    for (int d = 0; d < EMBD; d++)
        sum[d] = a[d] + b[d];
    rms_norm(h, sum, net.norm);
    product(out, net.head[0], h, VOCAB, EMBD);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)out[i];
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static int open_toy(void **state)
{
    tern_error err = {0};
    assert_int_equal(set_up(state), 0);
    write_toy(in_dir("toy.gguf"));
    tiny_ok(tern_model_open(&toy.model, in_dir("toy.gguf"), &(tern_model_params){.n_threads = 2}, &err), &err);
    assert_string_equal(tern_model_get_info(toy.model)->arch, "toy");
    toy.n_ids = toy.n_ref = IDS;
    toy.n_vocab = VOCAB;
    toy.ref = calloc(IDS * VOCAB, sizeof *toy.ref);
    assert_non_null(toy.ref);
    for (int i = 0; i < IDS; i++) {
        toy.ids[i] = i * 37 % VOCAB;
        compute(toy.ref + i * VOCAB, toy.ids[i], i);
    }
    return 0;
}

static int close_toy(void **state)
{
    tiny_close(&toy);
    return tear_down(state);
}

static void test_parity(void **state)
{
    (void)state;
    tiny_exact_parity(&toy, 1e-4, "toy");
    double prompt = tiny_run_kld(&toy, "f16", false, false), decode = tiny_run_kld(&toy, "f16", false, true);
    print_message("toy: KLD prompt rows %.2e, decode rows %.2e\n", prompt, decode);
    assert_true(prompt <= 1e-3 && decode <= 2e-3);
}

static void test_splits_and_threads(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 65}, {2, 63}, {1, 1}};
    (void)state;
    tiny_splits_and_threads(&toy, "t4", cases, sizeof cases / sizeof *cases, "toy");
    tiny_splits_and_threads(&toy, "f16", cases, sizeof cases / sizeof *cases, "toy");
}

static void test_batch_equals_single(void **state)
{
    (void)state;
    tiny_batch_equals_single(&toy, "t4", "toy");
}

static void test_fork_trim_save(void **state)
{
    static const int cuts[] = {1, 63, 64, 65, 128};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        tiny_fork_trim_save(&toy, i % 2 ? "t4" : "l3", cuts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),
        cmocka_unit_test(test_splits_and_threads),
        cmocka_unit_test(test_batch_equals_single),
        cmocka_unit_test(test_fork_trim_save),
    };
    return cmocka_run_group_tests(tests, open_toy, close_toy);
}
