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

enum { PROMPT = 150, MORE = 70, CUTS = 3 };

static const char *const models[] = {"tiny/llama-tied.gguf",     "tiny/llama-untied.gguf",   "tiny/gemma3-w8.gguf",
                                     "tiny/gemma2.gguf",         "tiny/mixtral-q5_0.gguf",   "tiny/qwen35.gguf",
                                     "tiny/deepseek2-lite.gguf", "tiny/llama4-experts.gguf", "tiny/qwen3moe-q8_0.gguf",
                                     "tiny/llama-b32-q8_0.gguf"};
enum { MODELS = sizeof models / sizeof *models };
static const char *const plans[] = {"t4", "k=f16,v=l4", "q8,recent=64"};
enum { PLANS = sizeof plans / sizeof *plans };

static tern_error e, *err = &e;
static char folder[64];
static float *expected[MODELS][PLANS];

static void ok(int rc)
{
    if (rc < 0)
        fail_msg("%d: %s", rc, err->msg);
}

static void step(tern_engine *engine, tern_seq *s, int from, int n, bool decode, const float **logits)
{
    int32_t ids[PROMPT];
    for (int i = 0; i < n; i++)
        ids[i] = (from + i) * 37 % 89 + 3;
    const tern_step_item it = {.seq = s, .tokens = ids, .n_tokens = n, .decode = decode, .logits = TERN_LOGITS_LAST};
    ok(tern_step(engine, &it, 1, logits, err));
}

/* Logits behind a prompt in three steps, behind decode steps, of a fork that was trimmed and goes on, and of one that
 * came from a file: [4][n_vocab]. */
static float *run(tern_model *m, const char *kv, const char *file)
{
    const int n_vocab = tern_model_get_info(m)->n_vocab;
    const size_t bytes = (size_t)n_vocab * sizeof(float);
    tern_engine *engine;
    tern_seq *s, *fork, *back;
    const float *logits;
    float *all = malloc(4 * bytes);
    const tern_engine_params p = {.n_threads = 2, .ctx = 256, .max_seqs = 3, .chunk = PROMPT, .kv = kv};
    ok(tern_engine_open(&engine, m, &p, err));
    ok(tern_seq_new(&s, engine, err));
    step(engine, s, 0, 64, false, &logits);
    step(engine, s, 64, 1, false, &logits);
    step(engine, s, 65, PROMPT - 65, false, &logits);
    memcpy(all, logits, bytes);
    for (int i = 0; i < MORE; i++)
        step(engine, s, PROMPT + i, 1, true, &logits);
    memcpy((char *)all + bytes, logits, bytes);
    ok(tern_seq_fork(&fork, s, err));
    ok(tern_seq_trim(fork, 129, err));
    step(engine, fork, 129, 1, true, &logits);
    memcpy((char *)all + 2 * bytes, logits, bytes);
    ok(tern_seq_save(s, file, err));
    ok(tern_seq_load(&back, engine, file, err));
    step(engine, back, PROMPT + MORE, 1, true, &logits);
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
    (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, models[i]);
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
    for (int i = 0; i < MODELS; i++) {
        tern_model *m;
        open_model(&m, i, "off");
        assert_int_equal(tern_model_get_info(m)->n_cpu_layers, 0);
        for (int p = 0; p < PLANS; p++) {
            session(path, i, p);
            expected[i][p] = run(m, plans[p], path);
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
    const tern_engine_params p = {.n_threads = 1, .ctx = 256, .kv = plans[0]};
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
        float *x = run(m, plans[p], path);
        if (memcmp(x, expected[model][p], bytes) != 0)
            fail_msg("%s, --kv %s, %d layers before the cut: other bits", models[model], plans[p],
                     tern_model_get_info(m)->n_cpu_layers);
        free(x);
    }
    (void)unlink(path);
    tern_model_close(&m);
}

static void test_cuts(void **state)
{
    char packed[128];
    const struct tern_dev_ops *cpu, *split[CUTS];
    (void)state;
    ok(tern_dev_find(&cpu, "cpu", err));
    (void)snprintf(packed, sizeof packed, "%s/packed", folder);
    for (int cut = 1; cut <= CUTS; cut++) {
        ok(tern_dev_split_new(&split[cut - 1], cpu, cpu, cut, err));
        tern_dev_add_first(split[cut - 1]);
        for (int i = 0; i < MODELS; i++) {
            check_cut(i, packed); /* packs, and writes the file */
            assert_int_equal(access(packed, R_OK), 0);
            check_cut(i, packed); /* maps it */
            (void)unlink(packed);
        }
    }
}

/* What reads more of the layers before the cut than the stream is refused by a sentence. */
static void test_refused(void **state)
{
    static const char *const names[] = {"tiny/gemma4-small.gguf", "tiny/deepseek4.gguf"};
    static const char *const words[] = {"embeddings for each layer", "cannot be divided|does not compute"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[512];
        tern_model *m;
        (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, names[i]);
        assert_int_equal(tern_model_open(&m, path, NULL, err), TERN_EUNSUPPORTED);
        assert_null(m);
        const char *other = strchr(words[i], '|');
        const size_t n = other ? (size_t)(other - words[i]) : strlen(words[i]);
        char first[64];
        (void)snprintf(first, sizeof first, "%.*s", (int)n, words[i]);
        if (!strstr(err->msg, first) && !(other && strstr(err->msg, other + 1)))
            fail_msg("%s", err->msg);
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
