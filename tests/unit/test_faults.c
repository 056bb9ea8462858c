/* Calls of the system that fail, one after the other: for n = 1, 2, ... the n-th call of a kind fails, until the
 * operation is through without reaching it.  Each failure is an error with a sentence, or changes nothing; nothing is
 * leaked or lost, and the operation works afterwards.
 *
 *     test_faults [OPERATION [KIND]] */
#include <sys/stat.h>
#include <xxhash.h>
#include "base/err.h"
#include "faults.h"
#include "scratch.h"
#include "dev/dev.h"
#include "tern/convert.h"
#include "tern/eval.h"
#include "tern/loop.h"
#include "tiny.h"

enum { CTX = 256, N_IDS = 300 };

static void problem(const char *fmt, ...) TERN_PRINTF(1, 2);

static tern_model *model, *text_model;
static int32_t ids[N_IDS];
static int n_vocab;

/* What the operation computed, and what it found when it failed. */
static uint64_t result;

static void note(const void *p, size_t n)
{
    result = XXH3_64bits_withSeed(p, n, result);
}

static const char *tiny_path(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, name);
    return path;
}

static void note_file(const char *name)
{
    static char bytes[1 << 20];
    (void)fault_disarm();
    FILE *f = fopen(in_dir(name), "rb");
    assert_non_null(f);
    note(bytes, fread(bytes, 1, sizeof bytes, f));
    (void)fclose(f);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static int open_and_close(const char *path, const char *packed, tern_error *err)
{
    tern_model *m;
    int rc = tern_model_open(&m, path, &(tern_model_params){.n_threads = 2, .packed = packed}, err);
    if (rc < 0) {
        assert_null(m);
        return rc;
    }
    note(&tern_model_get_info(m)->n_params, sizeof(int64_t));
    tern_model_close(&m);
    return 0;
}

static int open_gguf(tern_error *err)
{
    return open_and_close(tiny_path("tiny/llama-b32-q4_1.gguf"), "off", err);
}

static int open_split(tern_error *err)
{
    return open_and_close(tiny_path("tiny/llama-untied-split-00001-of-00002.gguf"), "off", err);
}

static int open_directory(tern_error *err)
{
    return open_and_close(tiny_path("hf/gemma3"), "off", err);
}

static int open_quantised(tern_error *err)
{
    return open_and_close(tiny_path("hf/awq_moe"), "off", err);
}

static int open_text(tern_error *err)
{
    return open_and_close(in_dir("text.gguf"), "off", err);
}

/* The file is a convenience: without it the model opens all the same. */
static int write_packed(tern_error *err)
{
    (void)unlink(in_dir("packed"));
    return open_and_close(tiny_path("tiny/llama-b32-q4_1.gguf"), in_dir("packed"), err);
}

/* Whatever keeps a run from using it says nothing about the file: it stays, and is not written again. */
static int map_packed(tern_error *err)
{
    static ino_t first;
    struct stat st;
    int rc = open_and_close(tiny_path("tiny/llama-b32-q4_1.gguf"), in_dir("kept.packed"), err);
    (void)fault_disarm();
    assert_int_equal(stat(in_dir("kept.packed"), &st), 0);
    first = first ? first : st.st_ino;
    if (st.st_ino != first)
        problem("the file of packed weights was written again");
    first = st.st_ino;
    return rc;
}

static int calibrate(tern_error *err)
{
    int rc = tern_model_calibrate(model, ids, N_IDS, 2, in_dir("sidecar"), NULL, NULL, err);
    if (rc == 0)
        note_file("sidecar");
    return rc;
}

static int convert(tern_error *err)
{
    tern_convert_report report;
    tern_convert_params p = {.type = "q8_0", .n_threads = 2, .no_tokenizer = true};
    int rc = tern_convert(tiny_path("hf/llama"), in_dir("converted.gguf"), &p, &report, err);
    if (rc == 0)
        note_file("converted.gguf");
    return rc;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static int chat(tern_error *err)
{
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Fourteen geese, \\u00e4h?\"}]";
    tern_tokens t = {0};
    int rc = tern_model_chat_json(text_model, messages, NULL, true, &t, err);
    if (rc == 0)
        note(t.p, t.len * sizeof *t.p);
    tern_tokens_clear(&t);
    return rc;
}

static int tokenize(tern_error *err)
{
    static const char text[] = "Some words, 1234 of them; na\xC3\xAFve ones.";
    tern_tokens t = {0};
    tern_stream *s = NULL;
    const char *piece;
    size_t n;
    int rc = tern_model_tokenize(text_model, text, sizeof text - 1, TERN_TEXT_BOS, &t, err);
    if (rc == 0)
        rc = tern_stream_new(&s, text_model, true, err);
    for (size_t i = 0; rc == 0 && i < t.len; i++) {
        rc = tern_stream_push(s, t.p[i], &piece, &n, err);
        if (rc == 0)
            note(piece, n);
    }
    tern_stream_free(s);
    tern_tokens_clear(&t);
    return rc;
}

static int take(void *user, const char *text, size_t n)
{
    (void)user;
    note(text, n);
    return 0;
}

static int generate(tern_error *err)
{
    static const char *const stop[] = {"qqq"};
    tern_engine *e;
    tern_seq *s;
    tern_generate_params p = {.max_tokens = 20, .stop = stop, .n_stop = 1, .ignore_eog = true, .on_text = take};
    tern_generate_result r;
    int rc = tern_engine_open(&e, text_model, &(tern_engine_params){.n_threads = 1, .ctx = 64, .kv = "t4"}, err);
    if (rc < 0)
        return rc;
    tern_sampler_defaults(&p.sampler);
    p.sampler.temperature = 1;
    p.sampler.top_k = 40;
    p.sampler.repetition_penalty = 1.1f;
    rc = tern_seq_new(&s, e, err);
    if (rc == 0)
        rc = tern_generate(e, s, ids, 5, &p, &r, err);
    tern_engine_close(&e);
    return rc;
}

/* What a request's events come to. */
static int receive(tern_events *q, tern_error *err)
{
    tern_event e;
    do {
        if (!tern_events_next(q, &e, 60000))
            fail_msg("no event for a minute");
        if (e.kind == TERN_EVENT_TEXT)
            note(e.text, e.n);
        if (e.kind == TERN_EVENT_TOKEN || e.kind == TERN_EVENT_SCORES)
            for (int i = 0; i < e.n_tokens; i++)
                note(&e.tokens[i].id, sizeof e.tokens[i].id);
    } while (e.kind != TERN_EVENT_END);
    return e.rc < 0 ? tern_err_set(err, e.rc, "%s", e.message) : 0;
}

/* Two choices, with all that a request can ask for.  Whatever fails is an error of the request, or of its submission.
 */
static int request(tern_events *q, tern_loop *l, tern_error *err)
{
    static const char *const stop[] = {"qqq"};
    static const int32_t stop_id = 299;
    tern_reply_params reply = {.calls = "off", .reasoning = "off"};
    tern_request r;
    uint64_t id;
    tern_request_defaults(&r);
    r.prompt = ids;
    r.n_prompt = 70;
    r.max_tokens = 5;
    r.n_choices = 2;
    r.logprobs = r.prompt_logprobs = 2;
    r.min_tokens = 2;
    r.stop = stop;
    r.n_stop = 1;
    r.stop_ids = &stop_id;
    r.n_stop_ids = 1;
    r.reply = &reply;
    r.sampler.temperature = 1;
    r.sampler.repetition_penalty = 1.1f;
    int rc = tern_loop_submit(l, &r, q, NULL, &id, err);
    return rc < 0 ? rc : receive(q, err);
}

static int loop(tern_error *err)
{
    tern_engine *e;
    tern_loop *l = NULL;
    tern_events *q = NULL;
    tern_engine_params p = {.n_threads = 1, .ctx = 128, .kv = "t4", .max_seqs = 2};
    int rc = tern_engine_open(&e, text_model, &p, err);
    if (rc == 0)
        rc = tern_events_new(&q, err);
    if (rc == 0)
        rc = tern_loop_open(&l, e, NULL, err);
    if (rc == 0)
        rc = request(q, l, err);
    tern_loop_close(&l);
    tern_events_free(q);
    tern_engine_close(&e);
    return rc;
}

/* ---- engines and sequences --------------------------------------------------------------------------------------- */

static tern_engine_params params(void)
{
    static const char *const more[] = {"l3,recent=128"};
    return (tern_engine_params){
        .n_threads = 2, .ctx = CTX, .max_seqs = 3, .chunk = 128, .kv = "t4", .more_kv = more, .n_more_kv = 1};
}

static int open_engine(tern_error *err)
{
    tern_engine *e;
    tern_engine_params p = params();
    p.code_at_end = true;
    int rc = tern_engine_open(&e, model, &p, err);
    if (rc < 0)
        assert_null(e);
    tern_engine_close(&e);
    return rc;
}

static tern_engine *engine;
static tern_seq *seq; /* of 130 tokens, which no failure may change */

static int step_in(tern_seq *s, int from, int n, tern_error *err)
{
    const float *logits;
    tern_step_item it = {s, ids + from, n, n < 3, TERN_LOGITS_ALL};
    int rc = tern_step(engine, &it, 1, &logits, err);
    if (rc == 0)
        note(logits, (size_t)n * (size_t)n_vocab * sizeof *logits);
    return rc;
}

static void expect_seq(void)
{
    assert_int_equal(tern_seq_length(seq), 130);
    assert_memory_equal(tern_seq_tokens(seq), ids, 130 * sizeof *ids);
}

/* Rows that close a page, then a decode row, on a fork; and going back over the page's edge. */
static int step(tern_error *err)
{
    tern_seq *fork = NULL;
    int rc = tern_seq_fork(&fork, seq, err);
    if (rc < 0)
        assert_null(fork);
    if (rc == 0 && (rc = step_in(fork, 130, 66, err)) < 0)
        assert_int_equal(tern_seq_length(fork), 130);
    if (rc == 0)
        rc = step_in(fork, 196, 1, err);
    if (rc == 0)
        rc = tern_seq_trim(fork, 125, err);
    if (rc == 0)
        rc = step_in(fork, 125, 2, err);
    tern_seq_free(fork);
    expect_seq();
    return rc;
}

static int fresh_prompt(tern_error *err)
{
    const float *logits;
    tern_seq *s;
    int rc = tern_seq_new_plan(&s, engine, 1, err);
    if (rc == 0) {
        rc = tern_prefill(engine, s, ids, 100, &logits, NULL, NULL, err);
        if (rc == 0)
            note(logits, (size_t)n_vocab * sizeof *logits);
        tern_seq_free(s);
    }
    expect_seq();
    return rc;
}

static int save(tern_error *err)
{
    int rc = tern_seq_save(seq, in_dir("saved"), err);
    if (rc == 0)
        note_file("saved");
    expect_seq();
    return rc;
}

static int load(tern_error *err)
{
    tern_seq *s;
    int rc = tern_seq_load(&s, engine, in_dir("saved"), err);
    if (rc < 0) {
        assert_null(s);
        return rc;
    }
    assert_memory_equal(tern_seq_tokens(s), ids, 130 * sizeof *ids);
    rc = step_in(s, 130, 3, err);
    tern_seq_free(s);
    return rc;
}

static int divergence(tern_error *err)
{
    tern_kld *k;
    tern_kld_stats s;
    tern_engine_params p = params();
    tern_engine *e;
    tern_kld_text text = {"ids", ids, N_IDS};
    tern_kld_params kp = {.texts = &text, .n_texts = 1, .ctx = 64, .n_chunks = 1, .prefill = true};
    int rc = tern_engine_open(&e, model, &p, err);
    if (rc < 0)
        return rc;
    rc = tern_eval_kld(&k, e, &kp, err);
    if (rc == 0) {
        rc = tern_kld_get_stats(k, 1, -1, &s, err);
        if (rc == 0)
            note(&s.mean, sizeof s.mean);
        tern_kld_free(k);
    }
    tern_engine_close(&e);
    return rc;
}

static int logits_file(tern_error *err)
{
    int rc = tern_eval_logits(engine, ids, 70, false, in_dir("logits.npy"), err);
    if (rc == 0)
        note_file("logits.npy");
    expect_seq();
    return rc;
}

/* A model of which another device has the first layer, which is what opens from here on: the last operation. */
static int divided(tern_error *err)
{
    static const struct tern_dev_ops *split;
    const struct tern_dev_ops *cpu;
    tern_model *m = NULL;
    tern_engine *e = NULL;
    tern_seq *s = NULL;
    const float *logits;
    const tern_model_params mp = {.n_threads = 2, .packed = "off"};
    const tern_engine_params ep = {.n_threads = 2, .ctx = 128, .kv = "t4"};
    const tern_step_item it = {.tokens = ids, .n_tokens = 70, .logits = TERN_LOGITS_LAST};
    int rc = tern_dev_find(&cpu, "cpu", err);
    if (rc == 0 && !split) {
        if ((rc = tern_dev_split_new(&split, cpu, cpu, 1, err)) < 0)
            return rc;
        tern_dev_add_first(split);
    }
    rc = rc < 0 ? rc : tern_model_open(&m, tiny_path("tiny/llama-untied.gguf"), &mp, err);
    rc = rc < 0 ? rc : tern_engine_open(&e, m, &ep, err);
    rc = rc < 0 ? rc : tern_seq_new(&s, e, err);
    if (rc == 0) {
        tern_step_item now = it;
        now.seq = s;
        rc = tern_step(e, &now, 1, &logits, err);
    }
    if (rc == 0)
        note(logits, 16 * sizeof *logits);
    tern_seq_free(s);
    tern_engine_close(&e);
    tern_model_close(&m);
    return rc;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

/* files: what the operation leaves behind; it is there afterwards, as it was before. */
static const struct operation {
    const char *name;
    int (*run)(tern_error *err);
    const char *file;
    bool part; /* a failed run may leave FILE.part, to go on from */
} operations[] = {
    {"open-gguf", open_gguf, NULL, false},
    {"open-split", open_split, NULL, false},
    {"open-directory", open_directory, NULL, false},
    {"open-quantised", open_quantised, NULL, false},
    {"open-text", open_text, NULL, false},
    {"write-packed", write_packed, NULL, false},
    {"map-packed", map_packed, NULL, false},
    {"engine", open_engine, NULL, false},
    {"step", step, NULL, false},
    {"prefill", fresh_prompt, NULL, false},
    {"save", save, "saved", false},
    {"load", load, NULL, false},
    {"calibrate", calibrate, "sidecar", false},
    {"convert", convert, "converted.gguf", true},
    {"divergence", divergence, NULL, false},
    {"logits", logits_file, "logits.npy", false},
    {"chat", chat, NULL, false},
    {"tokenize", tokenize, NULL, false},
    {"generate", generate, NULL, false},
    {"loop", loop, NULL, false},
    {"divided", divided, NULL, false},
};

static const char *only_operation, *only_kind;
static int n_problems;

static void problem(const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_message("WRONG: %s\n", text);
    n_problems++;
}

static uint64_t digest_of_file(const char *name)
{
    uint64_t was = result, digest;
    result = 0;
    note_file(name);
    digest = result;
    result = was;
    return digest;
}

/* Only names that the operations themselves leave. */
static void expect_no_left_over(const struct operation *o, const char *when)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".tmp") || (strstr(e->d_name, ".part") && !o->part))
            problem("%s: %s is left over", when, e->d_name);
    (void)closedir(d);
}

/* Short transfers and interruptions are no failures. */
static bool must_succeed(enum fault kind)
{
    return kind == FAULT_SHORT || kind == FAULT_INTERRUPT;
}

static void expect_sentence(int rc, const tern_error *err, enum fault kind, const char *when)
{
    if (must_succeed(kind) || err->code != rc || strlen(err->msg) < 12 || rc == TERN_EFORMAT || rc == TERN_EINVAL)
        problem("%s: %d, code %d: \"%s\"", when, rc, err->code, err->msg);
    if (kind == FAULT_MEMORY && rc != TERN_ENOMEM)
        problem("%s: %d instead of TERN_ENOMEM: \"%s\"", when, rc, err->msg);
}

static void run_clean(const struct operation *o, uint64_t want, const char *when)
{
    tern_error err = {0};
    result = 0;
    int rc = o->run(&err);
    if (rc < 0)
        problem("%s, then without: %d: %s", when, rc, err.msg);
    if (want && result != want)
        problem("%s, then without: another result", when);
    expect_no_left_over(o, when);
}

/* Whether the operation is run once more after its n-th call failed.  Sanitizers see each failure, but of the same run
 * without one that follows only some.  What goes on from a part would otherwise have fewer calls to fail. */
static bool looks_after(const struct operation *o, int n)
{
#ifdef TERN_TEST_FEW
    return o->part || n < 4 || n % 4 == 0;
#else
    (void)o, (void)n;
    return true;
#endif
}

/* The n-th call fails; false when there is none. */
static bool fail_one(const struct operation *o, enum fault kind, int n, uint64_t want, int *refused)
{
    char when[120];
    tern_error err = {0};
    const struct fault_alive before = fault_alive();
    const uint64_t file = o->file ? digest_of_file(o->file) : 0;
    (void)snprintf(when, sizeof when, "%s, %s %d", o->name, fault_names[kind], n);
    result = 0;
    fault_arm(kind, n);
    int rc = o->run(&err);
    const bool came = fault_disarm();
    if (rc < 0)
        expect_sentence(rc, &err, kind, when);
    else if (result != want)
        problem("%s: another result", when);
    if (rc < 0 && n < 4)
        print_message("  %s: %s\n", when, err.msg);
    *refused += rc < 0;
    const struct fault_alive after = fault_alive();
    if (after.blocks != before.blocks || after.mappings != before.mappings || after.files != before.files)
        problem("%s: alive %zu blocks, %zu mappings, %zu files, before %zu, %zu, %zu (%s)", when, after.blocks,
                after.mappings, after.files, before.blocks, before.mappings, before.files, err.msg);
    if (kind != FAULT_STAT) /* whose file it is cannot be known then; the next run takes it over */
        expect_no_left_over(o, when);
    if (o->file && digest_of_file(o->file) != file)
        problem("%s: %s is another one", when, o->file);
    if (came && looks_after(o, n))
        run_clean(o, want, when);
    return came;
}

static void walk(const struct operation *o)
{
    run_clean(o, 0, "no fault"); /* lists that grow once have grown */
    run_clean(o, 0, "no fault");
    const uint64_t want = result;
    for (int kind = 0; kind < N_FAULTS; kind++) {
        int n = 1, refused = 0;
        if (only_kind && strcmp(only_kind, fault_names[kind]) != 0)
            continue;
        while (fail_one(o, (enum fault)kind, n, want, &refused))
            n++;
        if (n > 1)
            print_message("%s: %d calls failed (%s), %d refused\n", o->name, n - 1, fault_names[kind], refused);
    }
}

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!only_operation || strcmp(only_operation, operations[i].name) == 0)
            walk(&operations[i]);
    assert_int_equal(n_problems, 0);
}

static int open_all(void **state)
{
    tern_error err = {0};
    char command[600];
    tern_engine_params p = params();
    if (set_up(state) < 0)
        return -1;
    (void)snprintf(command, sizeof command, "%s %s >/dev/null", MAKE_TEXT_MODEL, in_dir("text.gguf"));
    assert_int_equal(system(command), 0);
    tiny_ok(tern_model_open(&model, tiny_path("tiny/llama-keys.gguf"), &(tern_model_params){.n_threads = 1}, &err),
            &err);
    tiny_ok(tern_model_open(&text_model, in_dir("text.gguf"), &(tern_model_params){.n_threads = 1}, &err), &err);
    n_vocab = tern_model_get_info(model)->n_vocab;
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * i * 7 + i * 31 + 3) % n_vocab;
    tiny_ok(tern_engine_open(&engine, model, &p, &err), &err);
    tiny_ok(tern_seq_new(&seq, engine, &err), &err);
    tiny_ok(tern_prefill(engine, seq, ids, 120, NULL, NULL, NULL, &err), &err);
    for (int i = 120; i < 130; i++)
        tiny_ok(step_in(seq, i, 1, &err), &err);
    tiny_ok(tern_seq_save(seq, in_dir("saved"), &err), &err);
    tiny_ok(open_and_close(tiny_path("tiny/llama-b32-q4_1.gguf"), in_dir("kept.packed"), &err), &err);
    return 0;
}

static int close_all(void **state)
{
    tern_engine_close(&engine);
    tern_model_close(&model);
    tern_model_close(&text_model);
    return tear_down(state);
}

int main(int argc, char **argv)
{
    only_operation = argc > 1 ? argv[1] : NULL;
    only_kind = argc > 2 ? argv[2] : NULL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
