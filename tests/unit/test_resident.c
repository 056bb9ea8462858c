/* Experts larger than memory: logits do not depend on how many are in memory, memory stays within the limit, and what
 * cannot be is refused. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <linux/magic.h>
#include "gguf_writer.h"
#include "scratch.h"
#include "tiny_promises.h"

enum { PROMPT = 40, DECODE = 24, IDS = PROMPT + DECODE, CHUNK = 5 };

static const char *tiny_path(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/tiny/%s.gguf", TERN_TEST_DATA, name);
    return path;
}

/* limit 0: all in memory. */
static tern_model *open_with(const char *path, const char *packed, size_t limit)
{
    tern_model *m;
    tern_error err = {0};
    const tern_model_params p = {.n_threads = 2, .packed = packed, .experts_resident = limit};
    tiny_ok(tern_model_open(&m, path, &p, &err), &err);
    return m;
}

static tern_engine *engine_of(tern_model *m, int chunk, int seqs)
{
    tern_engine *e;
    tern_error err = {0};
    const tern_engine_params p = {.n_threads = 2, .ctx = 128, .max_seqs = seqs, .chunk = chunk, .kv = "f16"};
    tiny_ok(tern_engine_open(&e, m, &p, &err), &err);
    return e;
}

static void place(char *out, size_t n, const char *path)
{
    (void)snprintf(out, n, "%s", path);
}

static int token_at(const tern_model *m, int i)
{
    return (7 + 11 * i + i * i) % tern_model_get_info(m)->n_vocab;
}

/* Logits of the last token of two sequences, prompt in steps of CHUNK, then decoded together; [DECODE][2][vocab]. */
static float *run_both(tern_model *m, tern_engine *e)
{
    const size_t vocab = (size_t)tern_model_get_info(m)->n_vocab;
    float *out = malloc(DECODE * 2 * vocab * sizeof *out);
    int32_t ids[2][IDS];
    tern_seq *s[2];
    tern_error err = {0};
    const float *logits;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < IDS; i++)
            ids[k][i] = token_at(m, 3 * k + i);
        tiny_ok(tern_seq_new(&s[k], e, &err), &err);
        tiny_ok(tern_prefill(e, s[k], ids[k], PROMPT, NULL, NULL, NULL, &err), &err);
    }
    for (int i = 0; i < DECODE; i++) {
        const tern_step_item items[] = {{s[0], &ids[0][PROMPT + i], 1, true, TERN_LOGITS_LAST},
                                        {s[1], &ids[1][PROMPT + i], 1, true, TERN_LOGITS_LAST}};
        tiny_ok(tern_step(e, items, 2, &logits, &err), &err);
        memcpy(out + (size_t)i * 2 * vocab, logits, 2 * vocab * sizeof *out);
    }
    tern_seq_free(s[0]);
    tern_seq_free(s[1]);
    return out;
}

static float *logits_of(tern_model *m)
{
    tern_engine *e = engine_of(m, CHUNK, 2);
    float *out = run_both(m, e);
    tern_engine_close(&e);
    return out;
}

static size_t logits_bytes(const tern_model *m)
{
    return (size_t)DECODE * 2 * (size_t)tern_model_get_info(m)->n_vocab * sizeof(float);
}

/* What the largest layer's step of so many rows takes, out of the refusal of a limit that is just too small. */
static size_t least_of(const char *path, const char *packed, int chunk)
{
    tern_model *m;
    tern_engine *e;
    size_t one = 0, all = 0;
    int layer = -1;
    tern_error err = {0};
    const tern_model_params p = {.n_threads = 2, .packed = packed, .experts_resident = 1};
    assert_int_equal(tern_model_open(&m, path, &p, &err), TERN_EINVAL);
    assert_int_equal(
        sscanf(err.msg, "1 bytes of experts in memory (--experts-resident) are less than the %zu that one", &one), 1);
    m = open_with(path, packed, one);
    const tern_engine_params ep = {.ctx = 128, .chunk = chunk, .kv = "f16"};
    const int rc = tern_engine_open(&e, m, &ep, &err);
    if (rc == 0) {
        tern_engine_close(&e);
        tern_model_close(&m);
        return one;
    }
    assert_int_equal(rc, TERN_EINVAL);
    assert_int_equal(sscanf(err.msg,
                            "%*u bytes of experts in memory (--experts-resident) are less than the %zu that "
                            "layer %d takes",
                            &all, &layer),
                     2);
    assert_non_null(strstr(err.msg, "steps of 1 tokens at most (--chunk)"));
    tern_model_close(&m);
    return all;
}

static void check_stats(const tern_model *m, size_t limit, const char *name)
{
    tern_expert_stats s;
    tern_model_experts(m, &s);
    if (s.limit_bytes != limit || s.most_resident_bytes > limit || s.resident_bytes > s.most_resident_bytes)
        fail_msg("%s: limit %zu, of %zu; %zu resident, %zu at most", name, limit, s.bytes, s.resident_bytes,
                 s.most_resident_bytes);
    assert_int_equal(s.rows, 2 * IDS);
    assert_true(s.found <= s.used && s.read_ahead <= s.read);
    if (limit >= s.bytes) {
        assert_int_equal(s.found, s.used);
        assert_int_equal(s.read_bytes, 0);
    } else { /* what was not found was read, and what was read ahead was found */
        assert_true(s.used - s.found <= s.read && s.read > 0 && s.read_bytes > 0);
        assert_true(s.read - s.read_ahead == s.used - s.found);
    }
}

static void test_same_logits(void **state)
{
    static const char *const names[] = {"qwen3moe-q8_0", "qwen35moe",      "deepseek4",     "deepseek4-grid",
                                        "mixtral-apart", "gemma4-experts", "llama4-experts"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512], kept[300];
        place(path, sizeof path, tiny_path(names[i]));
        place(kept, sizeof kept, in_dir("kept"));
        tern_expert_stats s;
        tern_model *m = open_with(path, "off", 0);
        tern_model_experts(m, &s);
        assert_int_equal(s.limit_bytes, 0);
        float *want = logits_of(m);
        tern_model_close(&m);
        const size_t least = least_of(path, kept, CHUNK);
        m = open_with(path, kept, least);
        tern_model_experts(m, &s);
        tern_model_close(&m);
        const size_t limits[] = {s.bytes, s.bytes * 2, (s.bytes + least) / 2, least > s.bytes / 2 ? least : s.bytes / 2,
                                 least};
        for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
            m = open_with(path, kept, limits[k]);
            float *have = logits_of(m);
            if (memcmp(have, want, logits_bytes(m)) != 0)
                fail_msg("%s: logits differ with %zu of %zu bytes of experts in memory", names[i], limits[k], s.bytes);
            check_stats(m, limits[k], names[i]);
            free(have);
            tern_model_close(&m);
        }
        free(want);
        (void)unlink(kept);
    }
}

/* Layers that choose by token are read ahead, and nothing is read for a layer that the router decides. */
static void test_read_ahead(void **state)
{
    (void)state;
    tern_expert_stats s, t;
    char kept[300];
    place(kept, sizeof kept, in_dir("kept"));
    const size_t least = least_of(tiny_path("deepseek4"), kept, CHUNK);
    tern_model *m = open_with(tiny_path("deepseek4"), kept, least + least / 2);
    free(logits_of(m));
    tern_model_experts(m, &s);
    tern_model_close(&m);
    assert_true(s.read_ahead > 0 && s.read_ahead < s.read);
    m = open_with(tiny_path("qwen3moe-q8_0"), in_dir("other"), least + least / 2);
    free(logits_of(m));
    tern_model_experts(m, &t);
    tern_model_close(&m);
    assert_int_equal(t.read_ahead, 0);
}

static void expect_refused(const char *path, const char *packed, const char *device, size_t limit, int code,
                           const char *says)
{
    tern_model *m;
    tern_error err = {0};
    const tern_model_params p = {.n_threads = 2, .packed = packed, .experts_resident = limit, .device = device};
    const int rc = tern_model_open(&m, path, &p, &err);
    if (rc != code || !strstr(err.msg, says))
        fail_msg("%d: \"%s\" does not say \"%s\"", rc, err.msg, says);
    assert_null(m);
}

static void test_refusals(void **state)
{
    (void)state;
    const size_t room = (size_t)1 << 30;
    clear_dir();
    expect_refused(tiny_path("llama-b32-q8_0"), in_dir("kept"), NULL, room, TERN_EUNSUPPORTED, "has no experts");
    expect_refused(tiny_path("deepseek4"), "off", NULL, room, TERN_EINVAL, "--packed auto writes one");
    expect_refused(tiny_path("deepseek4"), "use", NULL, room, TERN_ENOENT, "--packed auto writes it");
    write_text("kept", "somebody's letter");
    expect_refused(tiny_path("deepseek4"), in_dir("kept"), NULL, room, TERN_EFORMAT, "not a file of packed weights");
    expect_refused(tiny_path("deepseek4"), in_dir("none/kept"), NULL, room, TERN_EIO, "none/kept");
    expect_refused(tiny_path("deepseek4"), in_dir("new"), NULL, 1, TERN_EINVAL, "takes for one token");
    assert_int_equal(access(in_dir("new"), F_OK), 0);
}

static void read_all(const char *name, uint8_t **p, size_t *n)
{
    struct stat st;
    FILE *f = fopen(in_dir(name), "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    *n = (size_t)st.st_size;
    *p = malloc(*n);
    assert_int_equal(fread(*p, 1, *n, f), *n);
    (void)fclose(f);
}

/* What is written tensor by tensor is the file that a whole block in memory gives; a damaged one is made anew. */
static void test_written_in_passing(void **state)
{
    uint8_t *a, *b;
    size_t n, m;
    (void)state;
    clear_dir();
    tern_model *whole = open_with(tiny_path("mixtral-apart"), in_dir("whole"), 0);
    tern_model_close(&whole);
    tern_model *lean = open_with(tiny_path("mixtral-apart"), in_dir("lean"), (size_t)1 << 30);
    assert_string_equal(tern_model_get_info(lean)->packed, in_dir("lean"));
    tern_model_close(&lean);
    read_all("whole", &a, &n);
    read_all("lean", &b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    b[n - 100] ^= 1;
    write_bytes("lean", b, n);
    lean = open_with(tiny_path("mixtral-apart"), in_dir("lean"), (size_t)1 << 30);
    tern_model_close(&lean);
    free(b);
    read_all("lean", &b, &m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
}

/* ---- a model whose experts are many pages ------------------------------------------------------------------------ */

enum { EMBD = 64, FF = 1024, EXPERTS = 16, ACTIVE = 2, LAYERS = 3, VOCAB = 64, HEAD = 32 };

static void tensor(struct gguf_writer *w, const char *name, int layer, int k, int n, int stack)
{
    static uint32_t x = 1;
    char full[64];
    const size_t count = (size_t)k * (size_t)n * (size_t)stack;
    float *p = malloc(count * sizeof *p);
    const int at = layer < 0 ? 0 : snprintf(full, sizeof full, "blk.%d.", layer);
    (void)snprintf(full + at, sizeof full - (size_t)at, "%s.weight", name);
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525 + 1013904223;
        p[i] = n > 1 ? ((float)(x >> 8) / (1 << 23) - 1) * 1.7f / sqrtf((float)k) : 1;
    }
    gw_tensor(w, full, 0,
              n == 1       ? 1
              : stack == 1 ? 2
                           : 3,
              (uint64_t[]){(uint64_t)k, (uint64_t)n, (uint64_t)stack}, p, count * sizeof *p);
    free(p);
}

static void write_large(const char *path)
{
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, "general.architecture", "qwen3moe");
    gw_u32(&w, "qwen3moe.block_count", LAYERS);
    gw_u32(&w, "qwen3moe.context_length", 256);
    gw_u32(&w, "qwen3moe.embedding_length", EMBD);
    gw_u32(&w, "qwen3moe.feed_forward_length", FF);
    gw_u32(&w, "qwen3moe.attention.head_count", 2);
    gw_u32(&w, "qwen3moe.attention.head_count_kv", 1);
    gw_u32(&w, "qwen3moe.attention.key_length", HEAD);
    gw_u32(&w, "qwen3moe.attention.value_length", HEAD);
    gw_f32(&w, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
    gw_u32(&w, "qwen3moe.expert_count", EXPERTS);
    gw_u32(&w, "qwen3moe.expert_used_count", ACTIVE);
    gw_u32(&w, "qwen3moe.expert_feed_forward_length", FF);
    tensor(&w, "token_embd", -1, EMBD, VOCAB, 1);
    tensor(&w, "output_norm", -1, EMBD, 1, 1);
    tensor(&w, "output", -1, EMBD, VOCAB, 1);
    for (int i = 0; i < LAYERS; i++) {
        tensor(&w, "attn_norm", i, EMBD, 1, 1);
        tensor(&w, "attn_q", i, EMBD, 2 * HEAD, 1);
        tensor(&w, "attn_k", i, EMBD, HEAD, 1);
        tensor(&w, "attn_v", i, EMBD, HEAD, 1);
        tensor(&w, "attn_output", i, 2 * HEAD, EMBD, 1);
        tensor(&w, "attn_q_norm", i, HEAD, 1, 1);
        tensor(&w, "attn_k_norm", i, HEAD, 1, 1);
        tensor(&w, "ffn_norm", i, EMBD, 1, 1);
        tensor(&w, "ffn_gate_inp", i, EMBD, EXPERTS, 1);
        tensor(&w, "ffn_gate_exps", i, EMBD, FF, EXPERTS);
        tensor(&w, "ffn_up_exps", i, EMBD, FF, EXPERTS);
        tensor(&w, "ffn_down_exps", i, FF, EMBD, EXPERTS);
    }
    assert_int_equal(gw_save(&w, path), 0);
    gw_clear(&w);
}

static void new_large(char path[300], char kept[300])
{
    clear_dir();
    place(path, 300, in_dir("large.gguf"));
    place(kept, 300, in_dir("large.packed"));
    write_large(path);
}

/* Bytes of a file that this process has in memory. */
static size_t resident_of(const char *path)
{
    char line[600];
    bool ours = false;
    size_t sum = 0, kib;
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            ours = strstr(line, path) != NULL;
        else if (ours && sscanf(line, "Rss: %zu kB", &kib) == 1)
            sum += kib << 10;
    }
    (void)fclose(f);
    return sum;
}

/* Bytes of it that the system has in memory. */
static size_t cached_of(const char *path)
{
    struct stat st;
    size_t pages = 0;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    const size_t n = ((size_t)st.st_size + page - 1) / page;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    unsigned char *in = malloc(n);
    assert_true(p != MAP_FAILED && in);
    assert_int_equal(mincore(p, (size_t)st.st_size, in), 0);
    for (size_t i = 0; i < n; i++)
        pages += in[i] & 1;
    free(in);
    (void)munmap(p, (size_t)st.st_size);
    (void)close(fd);
    return pages * page;
}

/* Another process that has all of the file in memory, so that the system keeps it. */
static pid_t keep_cached(const char *path)
{
    struct stat st;
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int fd = open(path, O_RDONLY);
        (void)fstat(fd, &st);
        const volatile char *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        for (off_t i = 0; i < st.st_size; i += 4096)
            byte = (char)(byte + p[i]);
        (void)!write(ready[1], &byte, 1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return child;
}

static bool on_disk(const char *path)
{
    struct statfs s;
    return statfs(path, &s) == 0 && s.f_type != TMPFS_MAGIC;
}

/* Pages that hold bytes of two experts, of each stack's experts; large folios of the system's cache are several pages.
 */
#define BORDERS ((size_t)LAYERS * 3 * (EXPERTS + 1) * 4096)

static void test_memory(void **state)
{
    (void)state;
    char path[300], kept[300];
    new_large(path, kept);
    tern_model *m = open_with(path, kept, (size_t)1 << 30);
    float *want = logits_of(m);
    tern_expert_stats s;
    tern_model_experts(m, &s);
    const size_t others = tern_model_get_info(m)->weight_bytes - s.bytes + 3 * 4096, all = resident_of(kept);
    if (all < s.bytes)
        fail_msg("with room for all %zu bytes of experts %zu are in memory", s.bytes, all);
    tern_model_close(&m);

    const size_t least = least_of(path, kept, CHUNK), limits[] = {s.bytes / 2, least, s.bytes / 2};
    for (size_t k = 0; k < 3; k++) {
        const pid_t other = k == 2 ? keep_cached(kept) : 0;
        m = open_with(path, kept, limits[k]);
        assert_true(resident_of(kept) <= others + BORDERS);
        tern_engine *e = engine_of(m, CHUNK, 2);
        for (int i = 0; i < 2; i++) {
            float *have = run_both(m, e);
            assert_memory_equal(have, want, logits_bytes(m));
            free(have);
            tern_model_experts(m, &s);
            const size_t now = resident_of(kept), cached = cached_of(kept);
            if (now > limits[k] + others + BORDERS)
                fail_msg("limit %zu: %zu bytes are in memory, %zu besides experts", limits[k], now, others);
            if (now < s.resident_bytes / 2)
                fail_msg("%zu bytes are said to be in memory, and %zu of the file are", s.resident_bytes, now);
            if (!other && on_disk(kept) && cached > all - (all - limits[k]) / 2)
                fail_msg("limit %zu: the system keeps %zu of %zu bytes", limits[k], cached, all);
        }
        tern_engine_close(&e);
        tern_model_close(&m);
        if (other)
            assert_int_equal(kill(other, SIGKILL) | (waitpid(other, NULL, 0) != other), 0);
    }
    free(want);
}

/* Where some experts are asked for more often, they stay. */
static void test_often_used_stay(void **state)
{
    (void)state;
    tern_expert_stats a, b;
    tern_error err = {0};
    char path[300], kept[300];
    new_large(path, kept);
    const size_t least = least_of(path, kept, 1);
    tern_model *m = open_with(path, kept, least * LAYERS + least);
    tern_engine *e = engine_of(m, 1, 1);
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    for (int i = 0; i < 120; i++) { /* two of three times the same token, whose experts fit, at the same place */
        const int32_t id = i % 3 == 2 ? token_at(m, i) : 5;
        const tern_step_item it = {.seq = s, .tokens = &id, .n_tokens = 1, .decode = true};
        if (i == 60)
            tern_model_experts(m, &a);
        tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
        tiny_ok(tern_seq_trim(s, 0, &err), &err);
    }
    tern_model_experts(m, &b);
    const double share = (double)(b.found - a.found) / (double)(b.used - a.used);
    if (share < .65)
        fail_msg("%.2f of the experts were in memory", share);
    tern_engine_close(&e);
    tern_model_close(&m);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

static void test_file_made_shorter(void **state)
{
    (void)state;
    tern_error err = {0};
    char path[300], kept[300];
    new_large(path, kept);
    tern_model *m = open_with(path, kept, (size_t)8 << 20);
    tern_engine *e = engine_of(m, 1, 1);
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    const int32_t id = 3;
    const tern_step_item it = {.seq = s, .tokens = &id, .n_tokens = 1, .decode = true};
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    struct stat st;
    assert_int_equal(stat(kept, &st), 0);
    assert_int_equal(truncate(kept, st.st_size - 4096), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tern_step(e, &it, 1, NULL, &err), TERN_EIO);
        assert_non_null(strstr(err.msg, kept));
        assert_non_null(strstr(err.msg, "has another size now"));
        assert_int_equal(tern_seq_length(s), 1);
    }
    tern_engine_close(&e);
    tern_model_close(&m);
    m = open_with(path, kept, (size_t)8 << 20); /* made anew */
    tern_model_close(&m);
}

/* ---- engines side by side ---------------------------------------------------------------------------------------- */

struct side {
    tern_model *m;
    tern_engine *e;
    float *out;
};

static void *run_side(void *ctx)
{
    struct side *s = ctx;
    s->out = run_both(s->m, s->e);
    return NULL;
}

static void test_two_engines(void **state)
{
    (void)state;
    char path[300], kept[300];
    new_large(path, kept);
    tern_model *m = open_with(path, kept, (size_t)1 << 30);
    float *want = logits_of(m);
    tern_model_close(&m);
    m = open_with(path, kept, 2 * least_of(path, kept, CHUNK));
    struct side sides[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        sides[i] = (struct side){m, engine_of(m, CHUNK, 2), NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, run_side, &sides[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_memory_equal(sides[i].out, want, logits_bytes(m));
        free(sides[i].out);
        tern_engine_close(&sides[i].e);
    }
    free(want);
    tern_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_read_ahead),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_written_in_passing),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_often_used_stay),
        cmocka_unit_test(test_file_made_shorter),
        cmocka_unit_test(test_two_engines),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
