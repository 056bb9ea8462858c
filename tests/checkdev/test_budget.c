/* What models and engines take of a card, under one budget, and what is said where it is too small: on a card that
 * holds memory and computes nothing (fake_driver.c). test_budget CASE */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tern/tern.h"

#define CHECK(cond)                                                               \
    do {                                                                          \
        if (!(cond)) {                                                            \
            (void)fprintf(stderr, "line %d: %s: %s\n", __LINE__, #cond, err.msg); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

#define MIB   ((size_t)1 << 20)
#define MODEL TERN_TEST_DATA "/tiny/llama-tied.gguf"
#define CHUNK 64
#define MOST  4000 /* sequences */

static tern_error err;

static tern_device_memory card(void)
{
    tern_device_memory m;
    CHECK(tern_device_get_memory("cuda", &m, &err) == 0);
    return m;
}

static int open_of(tern_model **m, const char *path, size_t budget, int cards)
{
    const tern_model_params p = {
        .n_threads = 1, .packed = "off", .device = "cuda", .gpu_memory = budget, .gpus = cards};
    return tern_model_open(m, path, &p, &err);
}

static int open_layers(tern_model **m, size_t budget, int layers)
{
    const tern_model_params p = {
        .n_threads = 1, .packed = "off", .device = "cuda", .gpu_memory = budget, .gpu_layers = layers};
    return tern_model_open(m, MODEL, &p, &err);
}

static int open_cards(tern_model **m, size_t budget, int cards)
{
    return open_of(m, MODEL, budget, cards);
}

static int open_model(tern_model **m, size_t budget)
{
    return open_layers(m, budget, 0);
}

static int open_engine(tern_engine **e, tern_model *m, int chunk, size_t kv_bytes)
{
    const tern_engine_params p = {
        .n_threads = 1, .ctx = 256, .max_seqs = MOST, .chunk = chunk, .kv = "f32", .kv_bytes = kv_bytes};
    return tern_engine_open(e, m, &p, &err);
}

/* Two steps, of n tokens and of one. */
static int step(tern_engine *e, tern_seq *s, int n)
{
    static int32_t ids[CHUNK];
    tern_step_item it = {.seq = s, .tokens = ids, .n_tokens = n};
    int rc = tern_step(e, &it, 1, NULL, &err);
    if (rc < 0)
        return rc;
    it.n_tokens = 1;
    return tern_step(e, &it, 1, NULL, &err);
}

static bool is_sentence(int code)
{
    return err.code == code && strlen(err.msg) > 20 && !strchr(err.msg, '\n');
}

/* Sequences until there is no more room: how many. */
static int fill(tern_engine *e, tern_seq **seqs, int tokens, int most)
{
    for (int n = 0; n < most; n++) {
        int rc = tern_seq_new(&seqs[n], e, &err);
        rc = rc < 0 ? rc : step(e, seqs[n], tokens);
        if (rc < 0) {
            CHECK(rc == TERN_ECAPACITY && is_sentence(TERN_ECAPACITY));
            tern_seq_free(seqs[n]);
            return n;
        }
        CHECK(card().used_bytes <= card().limit_bytes);
    }
    return most;
}

static void free_all(tern_seq **seqs, int n)
{
    for (int i = 0; i < n; i++)
        tern_seq_free(seqs[i]);
}

static void test_pages(tern_model *m)
{
    static tern_seq *seqs[MOST], *more[MOST];
    tern_engine *e, *other;
    tern_memory memory;
    CHECK(open_engine(&other, m, 1, 0) == 0);
    CHECK(open_engine(&e, m, CHUNK + 1, 0) == 0);
    CHECK(tern_engine_kv_limit(e) < card().limit_bytes - card().used_bytes);
    const int n = fill(e, seqs, CHUNK, MOST);
    CHECK(n > 0 && n < MOST && strstr(err.msg, "the KV memory is full"));
    tern_engine_memory(e, &memory);
    CHECK(memory.kv_bytes <= tern_engine_kv_limit(e));
    /* A refusal has changed nothing, and what is given back serves again. */
    const int32_t id = 1;
    const tern_step_item it = {.seq = seqs[0], .tokens = &id, .n_tokens = 1, .decode = true};
    CHECK(tern_seq_length(seqs[0]) == CHUNK + 1 && tern_step(e, &it, 1, NULL, &err) == 0);
    tern_seq_free(seqs[0]);
    CHECK(tern_seq_new(&seqs[0], e, &err) == 0 && step(e, seqs[0], CHUNK) == 0);
    /* Another engine that counted on the same memory is refused before a step. */
    const int k = fill(other, more, 1, MOST);
    CHECK(k < MOST && strstr(err.msg, "the card's memory is full"));
    free_all(seqs, n);
    tern_engine_close(&e);
    CHECK(tern_seq_new(&more[k], other, &err) == 0 && step(other, more[k], 1) == 0);
    free_all(more, k + 1);
    tern_engine_close(&other);
    /* Who asks for less gets it. */
    CHECK(open_engine(&e, m, CHUNK + 1, 4 * MIB) == 0 && tern_engine_kv_limit(e) == 4 * MIB);
    tern_engine_close(&e);
}

static void test_budget(void)
{
    tern_model *m;
    tern_engine *e;
    const size_t all = card().limit_bytes;
    CHECK(card().used_bytes == 0 && all > 3800 * MIB && all < 4096 * MIB);
    const tern_model_params on_cpu = {.packed = "off", .device = "cpu", .gpu_memory = 64 * MIB};
    CHECK(tern_model_open(&m, MODEL, &on_cpu, &err) == TERN_EINVAL && is_sentence(TERN_EINVAL));
    CHECK(open_model(&m, 5000 * MIB) == TERN_EINVAL && strstr(err.msg, "5000 MiB"));
    CHECK(open_model(&m, 1000) == TERN_ENOMEM && strstr(err.msg, "the weights take 1 MiB"));
    CHECK(card().used_bytes == 0 && card().limit_bytes == 1000);

    CHECK(open_model(&m, 2048 * MIB) == 0 && card().limit_bytes == 2048 * MIB);
    const size_t weights = card().used_bytes;
    CHECK(weights >= tern_model_get_info(m)->weight_bytes && weights < 8 * MIB);
    CHECK(open_engine(&e, m, CHUNK + 1, 0) == 0);
    const size_t scratch = card().used_bytes - weights;
    CHECK(scratch > MIB);
    tern_engine_close(&e);
    CHECK(card().used_bytes == weights);
    tern_model_close(&m);
    CHECK(open_model(&m, weights + 2 * scratch + 88 * MIB) == 0);
    test_pages(m);
    CHECK(card().used_bytes == weights);
    tern_model_close(&m);
    CHECK(card().used_bytes == 0);

    /* Weights fit, steps do not; then steps do, and nothing is left for a page. */
    CHECK(open_model(&m, weights + MIB / 2) == 0);
    CHECK(open_engine(&e, m, 256, 0) == TERN_ENOMEM && strstr(err.msg, "steps of 256 tokens (--chunk"));
    CHECK(card().used_bytes == weights);
    tern_model_close(&m);
    CHECK(open_model(&m, 0) == 0 && card().limit_bytes == weights + MIB / 2); /* as it was set */
    tern_model_close(&m);
}

/* Layers that the CPU has take nothing of the card, neither weights nor pages. */
static void test_layers(void)
{
    tern_model *m;
    tern_engine *e;
    tern_seq *s, *back;
    size_t used[3], pages[3];
    int most = -1;
    char path[] = "/tmp/tern-test-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    const tern_model_params on_cpu = {.packed = "off", .device = "cpu", .gpu_layers = 1};
    CHECK(tern_model_open(&m, MODEL, &on_cpu, &err) == TERN_EINVAL && is_sentence(TERN_EINVAL));
    for (int layers = 0; layers <= 2; layers++) {
        CHECK(open_layers(&m, 0, layers ? layers : -1) == 0);
        const tern_model_info *i = tern_model_get_info(m);
        CHECK(i->n_layers == 2 && (strstr(i->device, "the CPU for") != NULL) == (layers < 2));
        used[layers] = card().used_bytes;
        CHECK(open_engine(&e, m, CHUNK + 1, 0) == 0 && tern_seq_new(&s, e, &err) == 0);
        pages[layers] = card().used_bytes;
        CHECK(step(e, s, CHUNK) == 0);
        pages[layers] = card().used_bytes - pages[layers];
        /* What was saved on two layers of the card is not of one that has one, or none. */
        const int rc = layers == 0 ? tern_seq_save(s, path, &err) : tern_seq_load(&back, e, path, &err);
        CHECK(layers == 0 ? rc == 0 : rc == TERN_EMISMATCH && is_sentence(TERN_EMISMATCH));
        if (layers == 0) {
            CHECK(tern_seq_load(&back, e, path, &err) == 0 && step(e, back, 1) == 0);
            tern_seq_free(back);
        }
        tern_seq_free(s);
        tern_engine_close(&e);
        tern_model_close(&m);
        CHECK(card().used_bytes == 0);
    }
    CHECK(pages[0] == 0 && pages[1] > 0 && pages[2] >= pages[1]);
    CHECK(used[0] <= used[1] && used[1] <= used[2]);
    /* What would fit is said; more with more. */
    for (size_t budget = 100 << 10; budget < 700 << 10; budget += 20 << 10) {
        int n = -1;
        CHECK(open_model(&m, budget) == TERN_ENOMEM);
        const char *fits = strstr(err.msg, "are in use: ");
        CHECK(fits);
        if (sscanf(fits, "are in use: %d of the 2 layers would fit (--gpu-layers)", &n) == 1)
            CHECK(n < 2);
        CHECK(n >= most);
        most = n;
    }
    CHECK(most == 1);
    (void)close(fd);
    (void)unlink(path);
}

static size_t used_by(const char *device)
{
    tern_device_memory m;
    CHECK(tern_device_get_memory(device, &m, &err) == 0);
    return m.used_bytes;
}

/* Two cards have a part each of weights and pages, and what one of them saves is the other number's. */
static void test_cards(void)
{
    tern_model *m;
    tern_engine *e;
    tern_seq *s, *back;
    size_t weights[3], pages[3];
    char path[] = "/tmp/tern-test-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    const tern_model_params on_cpu = {.packed = "off", .device = "cpu", .gpus = 2},
                            both = {.device = "cuda", .gpus = 2, .gpu_layers = 1};
    CHECK(tern_model_open(&m, MODEL, &on_cpu, &err) == TERN_EINVAL && is_sentence(TERN_EINVAL));
    CHECK(tern_model_open(&m, MODEL, &both, &err) == TERN_EINVAL && is_sentence(TERN_EINVAL));
    CHECK(open_cards(&m, 0, 3) == TERN_EINVAL && strstr(err.msg, "cuda:2")); /* the fake machine has two */
    for (int cards = 1; cards <= 2; cards++) {
        CHECK(open_cards(&m, 0, cards) == 0 && tern_model_get_info(m)->n_cards == cards);
        CHECK((strstr(tern_model_get_info(m)->device, "2 cards together") != NULL) == (cards == 2));
        weights[cards] = used_by("cuda");
        CHECK((used_by("cuda:1") == weights[cards]) == (cards == 2));
        CHECK(open_engine(&e, m, CHUNK + 1, 0) == 0);
        pages[cards] = tern_engine_kv_limit(e);
        for (int from = 1; from <= cards; from++) { /* the second one's own, and what the first has written */
            CHECK((from == 1 && cards == 2 ? tern_seq_load(&s, e, path, &err) : tern_seq_new(&s, e, &err)) == 0);
            CHECK(step(e, s, CHUNK) == 0 && tern_seq_save(s, path, &err) == 0);
            CHECK(tern_seq_load(&back, e, path, &err) == 0 && step(e, back, 1) == 0);
            tern_seq_free(back);
            tern_seq_free(s);
        }
        tern_engine_close(&e);
        tern_model_close(&m);
        CHECK(used_by("cuda") == 0 && used_by("cuda:1") == 0);
    }
    CHECK(weights[2] <= weights[1] && pages[2] > pages[1] + pages[1] / 2);
    CHECK(open_cards(&m, 1000, 2) == TERN_ENOMEM && is_sentence(TERN_ENOMEM));
    (void)close(fd);
    (void)unlink(path);
}

/* What two cards promise to sequences they have, however little of a page can be divided among them: latents, one KV
 * head, three, and tiles of windows. */
static void test_divisions(void)
{
    static tern_seq *seqs[MOST];
    static const char *const models[] = {
        TERN_TEST_DATA "/tiny/deepseek2-lite.gguf", TERN_TEST_DATA "/tiny/gemma2.gguf",
        TERN_TEST_DATA "/tiny/gemma3-w8.gguf",      TERN_TEST_DATA "/tiny/deepseek4.gguf",
        TERN_TEST_DATA "/tiny/qwen35.gguf",         MODEL};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        tern_model *m;
        tern_engine *e;
        tern_memory memory;
        const tern_engine_params p = {.n_threads = 1, .ctx = 256, .max_seqs = MOST, .chunk = CHUNK + 1, .kv = "f16"};
        CHECK(open_of(&m, models[i], 3500 * MIB, 2) == 0 && tern_engine_open(&e, m, &p, &err) == 0);
        const size_t taken = used_by("cuda") > used_by("cuda:1") ? used_by("cuda") : used_by("cuda:1");
        tern_engine_close(&e);
        tern_model_close(&m);
        CHECK(open_of(&m, models[i], taken + 200 * MIB, 2) == 0 && tern_engine_open(&e, m, &p, &err) == 0);
        const int n = fill(e, seqs, CHUNK, MOST);
        CHECK(n > 0 && n < MOST && strstr(err.msg, "the KV memory is full"));
        tern_engine_memory(e, &memory);
        CHECK(memory.kv_bytes + memory.state_bytes > tern_engine_kv_limit(e) / 10 * 9);
        free_all(seqs, n);
        tern_engine_close(&e);
        tern_model_close(&m);
    }
}

/* Bytes that the fullest of some cards holds with an engine whose steps have so many tokens; 0: its own choice, and
 * *chosen is that.  budget: of each card; the answer is 0 where it is too small. */
static size_t with_steps(int cards, size_t budget, int chunk, int *chosen)
{
    const tern_model_params mp = {.n_threads = 1,
                                  .packed = "off",
                                  .device = "cuda",
                                  .gpu_memory = budget,
                                  .gpus = cards,
                                  .rope_scaling = "yarn,factor=16"};
    const tern_engine_params p = {.n_threads = 1, .max_seqs = 2, .chunk = chunk, .kv = "f16"};
    tern_model *m;
    tern_engine *e;
    CHECK(tern_model_open(&m, TERN_TEST_DATA "/tiny/qwen2.gguf", &mp, &err) == 0);
    const int rc = tern_engine_open(&e, m, &p, &err);
    CHECK(rc == 0 || (rc == TERN_ENOMEM && is_sentence(rc)));
    const size_t fullest = used_by("cuda") > used_by("cuda:1") ? used_by("cuda") : used_by("cuda:1");
    const size_t used = rc == 0 ? fullest : 0;
    *chosen = rc == 0 ? tern_engine_chunk(e) : 0;
    tern_engine_close(&e);
    tern_model_close(&m);
    return used;
}

/* Steps whose size nobody says are large where there is room to spare, else small, and smaller where there is none. */
static void test_steps(void)
{
    for (int cards = 1; cards <= 2; cards++) {
        int chosen;
        const size_t room = 3500 * MIB, large = with_steps(cards, room, 4096, &chosen),
                     small = with_steps(cards, room, 2048, &chosen), least = with_steps(cards, room, 512, &chosen);
        CHECK(large > small && small > least);
        (void)with_steps(cards, 6 * large, 0, &chosen);
        CHECK(chosen == 4096);
        (void)with_steps(cards, 3 * large, 0, &chosen);
        CHECK(chosen == 2048);
        for (size_t budget = least + 14 * MIB; !with_steps(cards, budget, 0, &chosen); budget += 2 * MIB)
            CHECK(budget < 2 * large);
        CHECK(chosen < 2048);
        CHECK(used_by("cuda") == 0 && used_by("cuda:1") == 0);
    }
}

/* Each time that memory is taken there is none, in turn; layers: of the card; or of several cards. */
static void test_faults(int layers, int cards)
{
    int n = 1, refused = 0;
    for (;; n++) {
        tern_model *m = NULL;
        tern_engine *e = NULL;
        tern_seq *s = NULL, *fork = NULL;
        char text[24];
        (void)snprintf(text, sizeof text, "%d", n);
        CHECK(n < 1000 && setenv("FAKE_FULL", text, 1) == 0);
        err = (tern_error){0};
        int rc = cards > 1 ? open_cards(&m, 0, cards) : open_layers(&m, 0, layers);
        rc = rc < 0 ? rc : open_engine(&e, m, CHUNK + 1, 0);
        rc = rc < 0 ? rc : tern_seq_new(&s, e, &err);
        rc = rc < 0 ? rc : step(e, s, CHUNK);
        rc = rc < 0 ? rc : tern_seq_fork(&fork, s, &err);
        rc = rc < 0 ? rc : step(e, fork, CHUNK);
        const bool failed = strcmp(getenv("FAKE_FULL"), "0") == 0;
        (void)setenv("FAKE_FULL", "0", 1);
        if (rc < 0) {
            CHECK(failed && (rc == TERN_ENOMEM || rc == TERN_ECAPACITY) && is_sentence(rc));
            refused++;
        }
        if (s) { /* it goes on as if nothing had been */
            CHECK(tern_seq_length(s) == 0 || tern_seq_length(s) == CHUNK || tern_seq_length(s) == CHUNK + 1);
            CHECK(step(e, s, CHUNK) == 0);
        }
        tern_seq_free(fork);
        tern_seq_free(s);
        tern_engine_close(&e);
        tern_model_close(&m);
        CHECK(card().used_bytes == 0 && used_by("cuda:1") == 0);
        if (!failed)
            break;
    }
    CHECK(refused > 20);
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "budget") == 0)
        test_budget();
    else if (strcmp(which, "faults") == 0)
        test_faults(0, 1);
    else if (strcmp(which, "layers") == 0)
        test_layers();
    else if (strcmp(which, "layers-faults") == 0)
        test_faults(1, 1);
    else if (strcmp(which, "cards") == 0)
        test_cards();
    else if (strcmp(which, "divisions") == 0)
        test_divisions();
    else if (strcmp(which, "steps") == 0)
        test_steps();
    else if (strcmp(which, "cards-faults") == 0)
        test_faults(0, 2);
    else
        return 2;
    return 0;
}
