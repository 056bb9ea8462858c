/* Models of which another device has the first layers (dev/split): as both devices are the CPU here, every bit must be
 * that of the CPU alone, wherever the cut is; and what is kept of a sequence belongs to its cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "dev/dev.h"
#include "tern/tern.h"

enum { CUTS = 4, PLANS = 3, MOST = 300 };

static const struct kind {
    int cuts, ctx, prompt, more, trim; /* trim: to so many tokens, over the edge of a page */
    const char *plans[PLANS];
} usual = {3, 256, 150, 70, 129, {"t4", "k=f16,v=l4", "q8,recent=64"}};
/* A page of rows of 4 tokens is closed; all layers may be before the cut. */
static const struct kind rows = {4, 384, MOST, 25, 301, {"t4", "f16", "fp8"}};

static const struct entry {
    const char *file;
    const struct kind *is;
} models[] = {
    {"tiny/llama-tied.gguf", &usual},     {"tiny/llama-untied.gguf", &usual},   {"tiny/gemma3-w8.gguf", &usual},
    {"tiny/gemma2.gguf", &usual},         {"tiny/mixtral-q5_0.gguf", &usual},   {"tiny/qwen35.gguf", &usual},
    {"tiny/deepseek2-lite.gguf", &usual}, {"tiny/llama4-experts.gguf", &usual}, {"tiny/qwen3moe-q8_0.gguf", &usual},
    {"tiny/llama-b32-q8_0.gguf", &usual}, {"tiny/deepseek4.gguf", &rows},       {"tiny/deepseek4-grid.gguf", &rows},
};
enum { MODELS = sizeof models / sizeof *models };

static tern_error e, *err = &e;
static char folder[64];
static const struct tern_dev_ops *cpu;
static float *expected[MODELS][PLANS];

static void ok(int rc)
{
    if (rc < 0)
        fail_msg("%d: %s", rc, err->msg);
}

static void step(tern_engine *engine, tern_seq *s, int from, int n, bool decode, const float **logits)
{
    int32_t ids[MOST];
    for (int i = 0; i < n; i++)
        ids[i] = (from + i) * 37 % 89 + 3;
    const tern_step_item it = {.seq = s, .tokens = ids, .n_tokens = n, .decode = decode, .logits = TERN_LOGITS_LAST};
    ok(tern_step(engine, &it, 1, logits, err));
}

/* Logits behind a prompt in three steps, behind decode steps, of a fork that was trimmed and goes on, and of one that
 * came from a file: [4][n_vocab]. */
static float *run(tern_model *m, const struct kind *n, const char *kv, const char *file)
{
    const int n_vocab = tern_model_get_info(m)->n_vocab;
    const size_t bytes = (size_t)n_vocab * sizeof(float);
    tern_engine *engine;
    tern_seq *s, *fork, *back;
    const float *logits;
    float *all = malloc(4 * bytes);
    const tern_engine_params p = {.n_threads = 2, .ctx = n->ctx, .max_seqs = 3, .chunk = n->prompt, .kv = kv};
    ok(tern_engine_open(&engine, m, &p, err));
    ok(tern_seq_new(&s, engine, err));
    step(engine, s, 0, 64, false, &logits);
    step(engine, s, 64, 1, false, &logits);
    step(engine, s, 65, n->prompt - 65, false, &logits);
    memcpy(all, logits, bytes);
    for (int i = 0; i < n->more; i++)
        step(engine, s, n->prompt + i, 1, true, &logits);
    memcpy((char *)all + bytes, logits, bytes);
    ok(tern_seq_fork(&fork, s, err));
    ok(tern_seq_trim(fork, n->trim, err));
    step(engine, fork, n->trim, 1, true, &logits);
    memcpy((char *)all + 2 * bytes, logits, bytes);
    ok(tern_seq_save(s, file, err));
    ok(tern_seq_load(&back, engine, file, err));
    step(engine, back, n->prompt + n->more, 1, true, &logits);
    memcpy((char *)all + 3 * bytes, logits, bytes);
    tern_seq_free(back);
    tern_seq_free(fork);
    tern_seq_free(s);
    tern_engine_close(&engine);
    return all;
}

static void open_model(tern_model **m, int i, const char *packed)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, models[i].file);
    const tern_model_params p = {.n_threads = 2, .packed = packed};
    ok(tern_model_open(m, path, &p, err));
}

static void session(char out[128], int model, int plan)
{
    (void)snprintf(out, 128, "%s/%d-%d", folder, model, plan);
}

/* The CPU alone, before there is another device. */
static int alone(void **state)
{
    char path[128];
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/tern-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    ok(tern_dev_find(&cpu, "cpu", err));
    for (int i = 0; i < MODELS; i++) {
        tern_model *m;
        open_model(&m, i, "off");
        assert_int_equal(tern_model_get_info(m)->n_cpu_layers, 0);
        for (int p = 0; p < PLANS; p++) {
            session(path, i, p);
            expected[i][p] = run(m, models[i].is, models[i].is->plans[p], path);
        }
        tern_model_close(&m);
    }
    return 0;
}

static int clear(void **state)
{
    char path[128];
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int p = 0; p < PLANS; p++) {
            session(path, i, p);
            (void)unlink(path);
            free(expected[i][p]);
        }
    return rmdir(folder);
}

/* A session of another cut is of another model. */
static void check_session(tern_model *m, int model)
{
    char path[128];
    tern_engine *engine;
    tern_seq *s;
    const tern_engine_params p = {.n_threads = 1, .ctx = models[model].is->ctx, .kv = models[model].is->plans[0]};
    session(path, model, 0);
    ok(tern_engine_open(&engine, m, &p, err));
    assert_int_equal(tern_seq_load(&s, engine, path, err), TERN_EMISMATCH);
    tern_engine_close(&engine);
}

static void check_cut(int model, const char *packed)
{
    char path[128];
    tern_model *m;
    open_model(&m, model, packed);
    const size_t bytes = 4 * (size_t)tern_model_get_info(m)->n_vocab * sizeof(float);
    check_session(m, model);
    (void)snprintf(path, sizeof path, "%s/own", folder);
    for (int p = 0; p < PLANS; p++) {
        float *x = run(m, models[model].is, models[model].is->plans[p], path);
        if (memcmp(x, expected[model][p], bytes) != 0)
            fail_msg("%s, --kv %s, %d layers before the cut: other bits", models[model].file,
                     models[model].is->plans[p], tern_model_get_info(m)->n_cpu_layers);
        free(x);
    }
    (void)unlink(path);
    tern_model_close(&m);
}

static void test_cuts(void **state)
{
    char packed[128];
    const struct tern_dev_ops *split[CUTS];
    (void)state;
    (void)snprintf(packed, sizeof packed, "%s/packed", folder);
    for (int cut = 1; cut <= CUTS; cut++) {
        ok(tern_dev_split_new(&split[cut - 1], cpu, cpu, cut, err));
        tern_dev_add_first(split[cut - 1]);
        for (int i = 0; i < MODELS; i++) {
            if (cut > models[i].is->cuts)
                continue;
#ifdef TERN_TEST_FEW /* half of the models at each cut: sanitizers see the same code at the others */
            if ((i + cut) % 2)
                continue;
#endif
            check_cut(i, packed); /* packs, and writes the file */
            assert_int_equal(access(packed, R_OK), 0);
            check_cut(i, packed); /* maps it */
            (void)unlink(packed);
        }
    }
}

static void refused(const char *file, const char *words)
{
    char path[512];
    tern_model *m;
    (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, file);
    assert_int_equal(tern_model_open(&m, path, NULL, err), TERN_EUNSUPPORTED);
    assert_null(m);
    if (!strstr(err->msg, words))
        fail_msg("%s", err->msg);
}

/* What reads more of the layers before the cut than the stream is refused by a sentence, and what one side lacks. */
static void test_refused(void **state)
{
    static struct tern_dev_ops lacks[2]; /* devices that are added stay */
    const struct tern_dev_ops *split;
    (void)state;
    refused("tiny/gemma4-small.gguf", "embeddings for each layer");
    lacks[0] = lacks[1] = *cpu;
    lacks[0].hyper_write = NULL;
    lacks[1].sparse = NULL;
    for (int i = 0; i < 4; i++) {
        const struct tern_dev_ops *less = &lacks[i / 2];
        ok(tern_dev_split_new(&split, i % 2 ? cpu : less, i % 2 ? less : cpu, 1, err));
        tern_dev_add_first(split);
        refused("tiny/deepseek4.gguf", i / 2 ? "attention to compressed rows of a kind that device cpu does not compute"
                                             : "device cpu does not compute residual streams that mix");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, alone, clear);
}
