/* Models that several devices compute together (dev/parallel): every bit must be that of one of them alone, however
 * many they are; and what is kept of a sequence is what one of them would keep.  All of them are the CPU, or as many
 * cards as there are: test_parallel cuda, and with `quick` three models with one plan. */
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

enum { PROMPT = 150, MORE = 70, RUNS = 5 };

/* Those that `quick` takes come first. */
static const char *const models[] = {"tiny/mixtral-q5_0.gguf",   "tiny/deepseek2-lite.gguf", "tiny/deepseek4-grid.gguf",
                                     "tiny/llama-untied.gguf",   "tiny/llama-tied.gguf",     "tiny/gemma3-w8.gguf",
                                     "tiny/qwen35.gguf",         "tiny/gemma2.gguf",         "tiny/gemma4-small.gguf",
                                     "tiny/qwen2.gguf",          "tiny/deepseek2-q4_0.gguf", "tiny/deepseek4.gguf",
                                     "tiny/phi3-window.gguf",    "tiny/llama4-experts.gguf", "tiny/llama-h80-q8_0.gguf",
                                     "tiny/llama-b32-q4_1.gguf", "tiny/llama-k256-q6_k.gguf"};
enum { MOST_MODELS = sizeof models / sizeof *models };
static const char *const plans[] = {"t4", "k=f16,v=l4", "q8,recent=128", "l2,max=128,first=0"};
enum { MOST_PLANS = sizeof plans / sizeof *plans };
static int n_models = MOST_MODELS, n_plans = MOST_PLANS;
static const int numbers[] = {2, 3, 8}; /* of devices: even shares, uneven ones, more than there are KV heads */

static tern_error e, *err = &e;
static char folder[64];
static float *expected[MOST_MODELS][MOST_PLANS];
static const struct tern_dev_ops *one; /* device of the kind; by its name later ones would be found */
static const char *kind = "cpu";

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

/* Two sequences in one step, of which one reads a prompt and the other goes on. */
static void both(tern_engine *engine, tern_seq *a, tern_seq *b, const float **logits)
{
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = i * 11 % 89 + 3;
    const tern_step_item it[2] = {{.seq = a, .tokens = ids, .n_tokens = 40, .logits = TERN_LOGITS_LAST},
                                  {.seq = b, .tokens = ids, .n_tokens = 1, .decode = true, .logits = TERN_LOGITS_LAST}};
    ok(tern_step(engine, it, 2, logits, err));
}

/* Logits behind a prompt in three steps, behind decode steps, of a fork that was trimmed and goes on, of one that came
 * from a file, and of two in one step: [RUNS + 1][n_vocab].  from: a file of a sequence as long, to go on from. */
static float *run(tern_model *m, const char *kv, const char *file, const char *from)
{
    const int n_vocab = tern_model_get_info(m)->n_vocab;
    const size_t bytes = (size_t)n_vocab * sizeof(float);
    tern_engine *engine;
    tern_seq *s, *fork, *back, *fresh;
    const float *logits;
    float *all = malloc((RUNS + 1) * bytes);
    const tern_engine_params p = {.n_threads = 2, .ctx = 256, .max_seqs = 4, .chunk = PROMPT, .kv = kv};
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
    ok(tern_seq_trim(fork, 200, err));
    step(engine, fork, 200, 1, true, &logits);
    memcpy((char *)all + 2 * bytes, logits, bytes);
    ok(tern_seq_save(s, file, err));
    ok(tern_seq_load(&back, engine, from, err));
    step(engine, back, PROMPT + MORE, 1, true, &logits);
    memcpy((char *)all + 3 * bytes, logits, bytes);
    ok(tern_seq_new(&fresh, engine, err));
    both(engine, fresh, back, &logits);
    memcpy((char *)all + 4 * bytes, logits, 2 * bytes);
    tern_seq_free(fresh);
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

/* Rows of several tokens are kept for good. */
static bool refused(int model, int plan)
{
    return strstr(models[model], "deepseek4") && strstr(plans[plan], "max=");
}

/* One device alone, before there is another. */
static int alone(void **state)
{
    char path[128];
    (void)state;
    ok(tern_dev_find(&one, kind, err));
    tern_dev_add_first(one);
    (void)snprintf(folder, sizeof folder, "/tmp/tern-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < n_models; i++) {
        tern_model *m;
        open_model(&m, i, "off");
        for (int p = 0; p < n_plans; p++) {
            session(path, i, p);
            expected[i][p] = refused(i, p) ? NULL : run(m, plans[p], path, path);
        }
        tern_model_close(&m);
    }
    return 0;
}

static int clear(void **state)
{
    char path[128];
    (void)state;
    for (int i = 0; i < n_models; i++)
        for (int p = 0; p < n_plans; p++) {
            session(path, i, p);
            (void)unlink(path);
            free(expected[i][p]);
        }
    return rmdir(folder);
}

static bool same_files(const char *a, const char *b)
{
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    int c = 0, d = 0;
    assert_non_null(x);
    assert_non_null(y);
    while (c == d && c != EOF) {
        c = fgetc(x);
        d = fgetc(y);
    }
    (void)fclose(x);
    (void)fclose(y);
    return c == d;
}

static void check(int model, int devices, const char *packed)
{
    char own[128], alone_file[128];
    tern_model *m;
    open_model(&m, model, packed);
    const size_t bytes = (RUNS + 1) * (size_t)tern_model_get_info(m)->n_vocab * sizeof(float);
    (void)snprintf(own, sizeof own, "%s/own", folder);
    for (int p = 0; p < n_plans; p++) {
        if (refused(model, p))
            continue;
        session(alone_file, model, p);
        float *x = run(m, plans[p], own, alone_file);
        if (memcmp(x, expected[model][p], bytes) != 0)
            fail_msg("%s, --kv %s, %d devices: other bits", models[model], plans[p], devices);
        if (!same_files(own, alone_file))
            fail_msg("%s, --kv %s, %d devices: another session", models[model], plans[p], devices);
        free(x);
    }
    (void)unlink(own);
    tern_model_close(&m);
}

/* So many devices of the kind; NULL: there are not so many. */
static const struct tern_dev_ops *together(int n)
{
    char about[TERN_DEV_NAME];
    const struct tern_dev_ops *of[8], *all;
    for (int i = 0; i < n; i++) {
        of[i] = one->card ? one->card(i) : one;
        if (of[i]->probe && of[i]->probe(about, NULL) < 0)
            return NULL;
    }
    ok(tern_dev_parallel_new(&all, of, n, err));
    return all;
}

static void test_numbers(void **state)
{
    char packed[128];
    (void)state;
    (void)snprintf(packed, sizeof packed, "%s/packed", folder);
    for (int k = 0; k < 3; k++) {
        const struct tern_dev_ops *many = together(numbers[k]);
        if (!many) {
            print_message("left out: %d devices %s\n", numbers[k], kind);
            continue;
        }
        tern_dev_add_first(many);
        for (int i = 0; i < n_models; i++) {
#ifdef TERN_TEST_FEW /* half of the models at each number: sanitizers see the same code at the others */
            if ((i + k) % 2)
                continue;
#endif
            check(i, numbers[k], packed); /* packs, and writes the file */
            assert_int_equal(access(packed, R_OK), 0);
            check(i, numbers[k], packed); /* maps it */
            (void)unlink(packed);
        }
    }
}

/* A file of packed weights is the same, whoever wrote it. */
static void test_packed_file(void **state)
{
    char mine[128], theirs[128];
    tern_model *m;
    (void)state;
    (void)snprintf(mine, sizeof mine, "%s/mine", folder);
    (void)snprintf(theirs, sizeof theirs, "%s/theirs", folder);
    const struct tern_dev_ops *two = together(2);
    if (!two)
        skip();
    for (int i = 0; i < n_models; i++) {
        tern_dev_add_first(one);
        open_model(&m, i, mine);
        tern_model_close(&m);
        tern_dev_add_first(two);
        open_model(&m, i, theirs);
        tern_model_close(&m);
        assert_true(same_files(mine, theirs));
        (void)unlink(mine);
        (void)unlink(theirs);
    }
}

/* Plans a stack of two matrices [384][128], an expert's: 0, or what is wrong. */
static int plan_experts(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *from)
{
    return d->ops->weight_plan(d, w, from, 384, 128, 2, err);
}

/* Gate and up may be stored unlike.  What is multiplied by one device's columns of both has to be those of both, so an
 * up that cannot be divided where gate is fails, by a sentence. */
static void test_experts_alike(void **state)
{
    const struct tern_weight_source plain = {.form = TERN_FORM_PLAIN, .type = TERN_BF16};
    const struct tern_weight_source fp8 = {
        .form = TERN_FORM_FP8, .scale_type = TERN_F32, .group = 128, .group_rows = 128};
    struct tern_dev_weight first, second;
    struct tern_dev *d;
    const struct tern_dev_ops *two = together(2);
    (void)state;
    if (!two)
        skip();
    ok(two->open(&d, two, NULL, err));
    d->ops->layer(d, 0, (struct tern_dev_rows){0}, 0);
    d->ops->use(d, TERN_DEV_EXPERTS);
    ok(plan_experts(d, &first, &plain)); /* outputs 0 to 191 are the first device's */
    assert_int_equal(plan_experts(d, &second, &fp8), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err->msg, "--gpus"));
    d->ops->weight_drop(d, &first);
    d->ops->layer(d, 1, (struct tern_dev_rows){0}, 0);
    ok(plan_experts(d, &first, &fp8)); /* 0 to 127 */
    ok(plan_experts(d, &second, &plain));
    d->ops->weight_drop(d, &first);
    d->ops->weight_drop(d, &second);
    d->ops->close(d);
    tern_dev_parallel_free(two);
}

int main(int argc, char **argv)
{
    kind = argc > 1 ? argv[1] : kind;
    tern_dev_try_one();     /* what is refused shall not run elsewhere */
#ifdef __SANITIZE_ADDRESS__ /* takes minutes */
    n_models = 7;
    n_plans = 2;
#endif
    if (argc > 2 && strcmp(argv[2], "quick") == 0) {
        n_models = 3;
        n_plans = 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_packed_file),
        cmocka_unit_test(test_experts_alike),
    };
    return cmocka_run_group_tests(tests, alone, clear);
}
