/* --device auto: a card is used where there is one, and the CPU for what that refuses, with a reason; on a card that is
 * none, the CPU's operations with a card's limits. */
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

#define MODEL TERN_TEST_DATA "/tiny/llama-tied.gguf"
#define V4    TERN_TEST_DATA "/tiny/deepseek4.gguf"
#define GIB   ((size_t)1 << 30)

enum { PROMPT = 100 };

extern const struct tern_dev_ops tern_dev_cpu;
static struct tern_dev_ops card;

/* What is wrong with it. */
static struct {
    int probe, open, reserve; /* an error; reserve: of that many takings, from the last on; 0: nothing */
    size_t limit, used;
} is;

static tern_error e, *err = &e;

static int card_probe(char about[TERN_DEV_NAME], tern_error *why)
{
    (void)snprintf(about, TERN_DEV_NAME, "no real card");
    return is.probe ? tern_err_set(why, is.probe, "the driver of this card is too old") : 0;
}

static int card_open(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, tern_error *why)
{
    *out = NULL;
    if (is.open)
        return tern_err_set(why, is.open, "opening the card failed");
    return tern_dev_cpu.open(out, self, pool, why);
}

static int card_reserve(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *why)
{
    *out = NULL;
    if (is.reserve && --is.reserve == 0)
        return tern_err_set(why, TERN_ENOMEM, "the card has no more memory");
    return tern_dev_cpu.reserve(d, out, bytes, lazy, why);
}

static int card_limit(struct tern_dev *d, size_t bytes, tern_error *why)
{
    (void)d;
    (void)why;
    is.limit = bytes;
    return 0;
}

static void card_held(const struct tern_dev *d, struct tern_dev_held *out)
{
    (void)d;
    *out = (struct tern_dev_held){.limit = is.limit, .used = is.used, .piece = 1 << 20};
}

/* How often each device was tried, and weights were asked for. */
static struct {
    int card, cpu, weights;
} tried;

static void on_device(void *user, const char *device)
{
    (void)user;
    tried.card += strcmp(device, "card") == 0;
    tried.cpu += strcmp(device, "cpu") == 0;
}

static int before_weights(void *user, size_t bytes, tern_error *why)
{
    (void)user;
    (void)why;
    assert_true(bytes > 0);
    tried.weights++;
    return 0;
}

static tern_model_params params(const char *device)
{
    memset(&tried, 0, sizeof tried);
    return (tern_model_params){
        .n_threads = 1, .packed = "off", .device = device, .on_device = on_device, .before_weights = before_weights};
}

static int fresh(void **state)
{
    (void)state;
    memset(&is, 0, sizeof is);
    is.limit = GIB;
    e = (tern_error){0};
    return 0;
}

static tern_model *open_auto(const char *path)
{
    tern_model *m;
    const tern_model_params p = params(NULL);
    if (tern_model_open(&m, path, &p, err) < 0)
        fail_msg("%s", err->msg);
    return m;
}

static float *logits_of(tern_model *m, const tern_engine_params *p)
{
    tern_engine *engine;
    tern_seq *s;
    const float *logits;
    int32_t ids[PROMPT];
    const size_t bytes = (size_t)tern_model_get_info(m)->n_vocab * sizeof(float);
    float *out = malloc(bytes);
    for (int i = 0; i < PROMPT; i++)
        ids[i] = i * 37 % 89 + 3;
    if (tern_engine_open(&engine, m, p, err) < 0)
        fail_msg("%s", err->msg);
    assert_int_equal(tern_seq_new(&s, engine, err), 0);
    const tern_step_item it = {.seq = s, .tokens = ids, .n_tokens = PROMPT, .logits = TERN_LOGITS_LAST};
    assert_int_equal(tern_step(engine, &it, 1, &logits, err), 0);
    memcpy(out, logits, bytes);
    tern_engine_close(&engine);
    return out;
}

/* The model is on the CPU, and says so in these words; NULL: nothing. */
static void on_cpu(const tern_model *m, const char *words)
{
    const tern_model_info *i = tern_model_get_info(m);
    assert_string_equal(i->device, "cpu");
    assert_int_equal(i->n_cards, 0);
    if (!words) {
        assert_null(i->device_notice);
        return;
    }
    assert_non_null(i->device_notice);
    if (!strstr(i->device_notice, words) || strchr(i->device_notice, '\n'))
        fail_msg("\"%s\" is not in: %s", words, i->device_notice);
}

static void on_card(const tern_model *m)
{
    const tern_model_info *i = tern_model_get_info(m);
    assert_string_equal(i->device, "card: no real card");
    assert_string_equal(i->kv_default, "l4");
    assert_int_equal(i->n_cards, 1);
    assert_null(i->device_notice);
}

/* The plan of an engine that is asked for none, or in exact arithmetic. */
static void check_plan(tern_model *m, bool exact, const char *plan)
{
    tern_engine *engine;
    const tern_engine_params p = {.n_threads = 1, .ctx = 256, .exact = exact};
    assert_int_equal(tern_engine_open(&engine, m, &p, err), 0);
    assert_string_equal(tern_kv_plan_text(tern_engine_plan(engine)), plan);
    tern_engine_close(&engine);
}

/* It computes what the CPU does when it was asked for. */
static void check_runs(tern_model *m, const char *path, const char *kv)
{
    tern_model *other;
    const tern_engine_params p = {.n_threads = 1, .ctx = 256, .kv = kv};
    const tern_model_params by_name = params("cpu");
    assert_int_equal(tern_model_open(&other, path, &by_name, err), 0);
    float *x = logits_of(m, &p), *y = logits_of(other, &p);
    assert_memory_equal(x, y, (size_t)tern_model_get_info(m)->n_vocab * sizeof(float));
    free(x);
    free(y);
    tern_model_close(&other);
}

/* ---- what is there ----------------------------------------------------------------------------------------------- */

static void test_absent(void **state)
{
    (void)state;
    is.probe = TERN_ENOENT;
    tern_model *m = open_auto(MODEL);
    on_cpu(m, NULL);
    assert_int_equal(tried.cpu, 1);
    assert_int_equal(tried.card, 0);
    check_plan(m, false, "t4");
    check_plan(m, true, "f32");
    tern_model_close(&m);
}

static void test_serves(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const tern_model_params p = params(i ? "auto" : NULL);
        tern_model *m;
        assert_int_equal(tern_model_open(&m, MODEL, &p, err), 0);
        on_card(m);
        assert_int_equal(tried.card, 1);
        assert_int_equal(tried.cpu, 0);
        check_runs(m, MODEL, "t4");
        check_plan(m, false, "l4");
        check_plan(m, true, "f32");
        tern_model_close(&m);
    }
}

/* Found, and of no use: one of another kind than none. */
static void test_unusable(void **state)
{
    tern_model *m;
    (void)state;
    is.probe = TERN_EUNSUPPORTED;
    m = open_auto(MODEL);
    on_cpu(m, "the driver of this card is too old");
    assert_int_equal(tried.card, 0);
    tern_model_close(&m);
    is.probe = TERN_EIO;
    m = open_auto(MODEL);
    on_cpu(m, "the driver of this card is too old");
    tern_model_close(&m);
    is.probe = 0;
    is.open = TERN_EIO;
    m = open_auto(MODEL);
    on_cpu(m, "opening the card failed");
    tern_model_close(&m);
    is.open = 0; /* and when it is back */
    m = open_auto(MODEL);
    on_card(m);
    tern_model_close(&m);
}

/* ---- what it refuses of a model ---------------------------------------------------------------------------------- */

static void test_model_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) { /* the second time is as the first */
        tern_model *m = open_auto(V4);
        on_cpu(m, "does not compute");
        assert_int_equal(tried.card, 1);
        assert_int_equal(tried.cpu, 1);
        check_runs(m, V4, "t4");
        tern_model_close(&m);
    }
}

static void test_too_large(void **state)
{
    (void)state;
    is.limit = 200 << 10;
    tern_model *m = open_auto(MODEL);
    on_cpu(m, "would fit (--gpu-layers)");
    assert_int_equal(tried.weights, 1); /* the card was not asked to take them */
    check_runs(m, MODEL, "t4");
    tern_model_close(&m);
    is.limit = GIB;
    for (int n = 1; n < 3; n++) { /* of several that ask for a card's memory, one comes too late */
        is.reserve = 1;
        m = open_auto(MODEL);
        on_cpu(m, "the card has no more memory");
        assert_int_equal(tried.weights, 2);
        tern_model_close(&m);
    }
    m = open_auto(MODEL);
    on_card(m);
    tern_model_close(&m);
}

/* ---- what it refuses of an engine -------------------------------------------------------------------------------- */

/* p is refused for what the words say, and the CPU serves it; the model is another one's before that. */
static void check_engine(const tern_engine_params *p, int code, const char *words)
{
    tern_engine *engine = NULL;
    tern_model *m = open_auto(MODEL);
    const tern_model_params mp = params(NULL);
    on_card(m);
    assert_int_equal(tern_engine_open(&engine, m, p, err), code);
    assert_null(engine);
    if (tern_model_fall_back(m, &mp, p, err, err) < 0)
        fail_msg("%s", err->msg);
    on_cpu(m, words);
    assert_int_equal(tried.cpu, 1);
    assert_int_equal(tried.card, 0);
    assert_int_equal(tried.weights, 1);
    check_runs(m, MODEL, p->kv);
    free(logits_of(m, p));
    /* Only once: there is nowhere to go from the CPU. */
    (void)tern_err_set(err, TERN_ENOMEM, "no room at all");
    assert_int_equal(tern_model_fall_back(m, &mp, p, err, err), TERN_ENOMEM);
    assert_string_equal(err->msg, "no room at all");
    tern_model_close(&m);
}

static void test_engine_refused(void **state)
{
    (void)state;
    const char *const more[] = {"f16", "t4,max=128"};
    for (int i = 0; i < 2; i++) {
        check_engine(&(tern_engine_params){.n_threads = 1, .ctx = 256, .kv = "t4,max=128"}, TERN_EUNSUPPORTED,
                     "keeps no first tokens");
        check_engine(&(tern_engine_params){.n_threads = 1, .ctx = 256, .kv = "t4", .more_kv = more, .n_more_kv = 2},
                     TERN_EUNSUPPORTED, "keeps no first tokens");
        check_engine(&(tern_engine_params){.n_threads = 1, .ctx = 256, .kv = "t4", .decode_bits = 16},
                     TERN_EUNSUPPORTED, "decode_bits = 16");
        check_engine(&(tern_engine_params){.n_threads = 1, .ctx = 256, .kv = "t4", .prompt_class = "int8"},
                     TERN_EUNSUPPORTED, "prompt_class");
    }
}

static void test_no_room_for_pages(void **state)
{
    (void)state;
    is.limit = 8 << 20;
    is.used = 6 << 20; /* weights fit, and pools have no piece each */
    check_engine(&(tern_engine_params){.n_threads = 1, .ctx = 256, .kv = "f32", .max_seqs = 4000}, TERN_ENOMEM,
                 "one page of the KV cache");
}

/* ---- what is the user's ------------------------------------------------------------------------------------------ */

static void refused(const char *path, const tern_model_params *p, int code, const char *words)
{
    tern_model *m;
    const int rc = tern_model_open(&m, path, p, err);
    assert_null(m);
    if (rc != code || !strstr(err->msg, words))
        fail_msg("%d, not %d with \"%s\": %s", rc, code, words, err->msg);
}

/* A copy of the model's first bytes. */
static void cut_short(char path[64], size_t n)
{
    char bytes[4096];
    (void)snprintf(path, 64, "/tmp/tern-test-XXXXXX");
    const int fd = mkstemp(path);
    FILE *from = fopen(MODEL, "rb");
    assert_true(fd >= 0 && from);
    while (n) {
        const size_t k = fread(bytes, 1, n < sizeof bytes ? n : sizeof bytes, from);
        assert_true(k > 0 && write(fd, bytes, k) == (ssize_t)k);
        n -= k;
    }
    (void)fclose(from);
    (void)close(fd);
}

static void test_errors_of_users(void **state)
{
    char path[64];
    tern_engine *engine;
    (void)state;
    tern_model_params p = params(NULL);
    refused("no/such/model.gguf", &p, TERN_ENOENT, "no/such/model.gguf");
    assert_int_equal(tried.card + tried.cpu, 0);
    cut_short(path, 2000);
    refused(path, &p, TERN_EFORMAT, path);
    assert_int_equal(tried.cpu, 0);
    (void)unlink(path);
    p.rope_scaling = "yarn,factor=4"; /* which the file has no place for, whatever the device */
    refused(MODEL, &p, TERN_EUNSUPPORTED, "RoPE");
    assert_int_equal(tried.card, 1);
    assert_int_equal(tried.cpu, 0);

    tern_model *m = open_auto(MODEL);
    p = params(NULL);
    const tern_engine_params plan = {.n_threads = 1, .kv = "nonsense"}, mtp = {.n_threads = 1, .draft = "mtp"};
    assert_int_equal(tern_engine_open(&engine, m, &plan, err), TERN_EINVAL);
    assert_int_equal(tern_model_fall_back(m, &p, &plan, err, err), TERN_EINVAL);
    assert_non_null(strstr(err->msg, "nonsense"));
    assert_int_equal(tern_engine_open(&engine, m, &mtp, err), TERN_EUNSUPPORTED); /* no device has it */
    assert_int_equal(tern_model_fall_back(m, &p, &mtp, err, err), TERN_EUNSUPPORTED);
    assert_int_equal(tried.cpu, 0);
    on_card(m);
    tern_model_close(&m);
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

static void test_by_name(void **state)
{
    tern_engine *engine;
    tern_model *m;
    (void)state;
    tern_model_params p = params("card");
    refused(V4, &p, TERN_EUNSUPPORTED, "does not compute");
    assert_int_equal(tried.cpu, 0);
    is.limit = 200 << 10;
    refused(MODEL, &p, TERN_ENOMEM, "--gpu-layers");
    is.limit = GIB;
    is.open = TERN_EIO;
    refused(MODEL, &p, TERN_EIO, "opening the card failed");
    is.open = 0;
    assert_int_equal(tern_model_open(&m, MODEL, &p, err), 0);
    on_card(m);
    const tern_engine_params firsts = {.n_threads = 1, .ctx = 256, .kv = "t4,max=128"};
    assert_int_equal(tern_engine_open(&engine, m, &firsts, err), TERN_EUNSUPPORTED);
    assert_int_equal(tern_model_fall_back(m, &p, &firsts, err, err), TERN_EUNSUPPORTED);
    on_card(m);
    tern_model_close(&m);
    is.probe = TERN_ENOENT;
    refused(MODEL, &p, TERN_ENOENT, "too old");
}

/* Who says what a card shall do has named it. */
static void test_by_its_options(void **state)
{
    tern_model *m;
    (void)state;
    tern_model_params p = params(NULL);
    p.gpu_memory = 200 << 10;
    refused(MODEL, &p, TERN_ENOMEM, "--gpu-layers");
    p.gpu_memory = GIB;
    assert_int_equal(tern_model_open(&m, MODEL, &p, err), 0);
    on_card(m);
    tern_model_close(&m);
    refused(V4, &p, TERN_EUNSUPPORTED, "does not compute");
    is.probe = TERN_ENOENT;
    refused(MODEL, &p, TERN_EINVAL, "gpu_memory is of a card");
    is.probe = TERN_EUNSUPPORTED;
    refused(MODEL, &p, TERN_EUNSUPPORTED, "too old");
    p = params("auto");
    p.gpu_layers = -1;
    refused(MODEL, &p, TERN_EUNSUPPORTED, "too old");
    is.probe = 0;
    refused(V4, &p, TERN_EUNSUPPORTED, "compute");
    p = params("auto");
    p.gpus = 2;
    refused(MODEL, &p, TERN_EINVAL, "card");
    assert_int_equal(tried.cpu, 0);
}

int main(void)
{
    card = tern_dev_cpu;
    card.name = "card";
    card.kv = "l4";
    card.probe = card_probe;
    card.open = card_open;
    card.reserve = card_reserve;
    card.limit = card_limit;
    card.held = card_held;
    card.clamp = NULL;
    card.firsts = card.decode16 = card.prompt8 = card.in_place = false;
    (void)setenv("TERN_CUDA_DRIVER", "/nowhere", 1); /* a machine's own card is none of this */
    tern_dev_add_first(&card);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_absent, fresh),
        cmocka_unit_test_setup(test_serves, fresh),
        cmocka_unit_test_setup(test_unusable, fresh),
        cmocka_unit_test_setup(test_model_refused, fresh),
        cmocka_unit_test_setup(test_too_large, fresh),
        cmocka_unit_test_setup(test_engine_refused, fresh),
        cmocka_unit_test_setup(test_no_room_for_pages, fresh),
        cmocka_unit_test_setup(test_errors_of_users, fresh),
        cmocka_unit_test_setup(test_by_name, fresh),
        cmocka_unit_test_setup(test_by_its_options, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
