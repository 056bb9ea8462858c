/* Converting: the new file computes what its source computes, has the types that were asked for, does not depend on
 * threads or interruptions, and nothing is left where something is refused. */
#include "fixtures.h"

#include <sys/stat.h>
#include <unistd.h>

#include "codec/codec.h"
#include "file/file.h"
#include "gguf_writer.h"
#include "tern/convert.h"

static char dir[] = "/tmp/tern-convert-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static const char *data_path(const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", TERN_TEST_DATA, name);
    return path[turn];
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    static const char *const files[] = {"a.gguf", "b.gguf", "a.gguf.part", "model.safetensors", "config.json"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        (void)unlink(in_dir(files[i]));
    return rmdir(dir);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static void convert(const char *from, const char *to, const char *type, tern_convert_report *r)
{
    tern_error err = {0};
    tern_convert_params p = {.type = type, .n_threads = 2, .requantize = true};
    tiny_ok(tern_convert(from, to, &p, r, &err), &err);
    assert_true(exists(to));
}

static void refused(const char *from, const char *type, int code, const char *const *texts)
{
    tern_error err = {0};
    tern_convert_params p = {.type = type, .n_threads = 2};
    assert_int_equal(tern_convert(from, in_dir("a.gguf"), &p, NULL, &err), code);
    for (; *texts; texts++)
        if (!strstr(err.msg, *texts))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, *texts);
    assert_false(exists(in_dir("a.gguf.part")));
}
#define REFUSED(from, type, code, ...) refused(from, type, code, (const char *const[]){__VA_ARGS__, NULL})

/* ---- what the new file computes ---------------------------------------------------------------------------------- */

static float *run(const char *path, const struct tiny *like, const char *kv, bool decode)
{
    tern_error err = {0};
    tern_model *m;
    tern_engine *e;
    tern_seq *s;
    float *out = tiny_buffer(like);
    tern_engine_params p = {
        .n_threads = 2, .max_seqs = 1, .chunk = 128, .ctx = like->n_ids <= 96 ? 96 : 0, .kv = kv, .exact = !kv};
    tiny_ok(tern_model_open(&m, path, &(tern_model_params){.n_threads = 2, .packed = "off"}, &err), &err);
    assert_int_equal(tern_model_get_info(m)->n_vocab, like->n_vocab);
    tiny_ok(tern_engine_open(&e, m, &p, &err), &err);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, like->ids, 0, like->n_ids, decode ? 1 : 128, decode, out, 0, like->n_vocab);
    tern_engine_close(&e);
    tern_model_close(&m);
    return out;
}

/* The new file against the recorded logits. */
static double error_of(const char *path, const struct tiny *t)
{
    float *x = run(path, t, NULL, false);
    double d = tiny_max_diff(t, x);
    free(x);
    return d;
}

static void assert_same_bits(const char *a, const char *b, const struct tiny *t)
{
    for (int decode = 0; decode < 2; decode++) {
        float *x = run(a, t, "t4", decode), *y = run(b, t, "t4", decode);
        assert_memory_equal(x, y, (size_t)t->n_ids * (size_t)t->n_vocab * sizeof *x);
        free(x);
        free(y);
    }
}

static void read_reference(struct tiny *t, const char *ids, const char *logits)
{
    memset(t, 0, sizeof *t);
    tiny_read_ids(t, ids);
    tiny_read_ref(t, logits);
}

/* Every directory, with experts one by one and stacked.  Those in which rows or columns change their order agree to
 * rounding, the others to the last bit. */
static void convert_directory(const char *name, const char *of, bool reordered)
{
    struct tiny t;
    char path[128], reference[128];
    (void)snprintf(path, sizeof path, "hf/%s", name);
    (void)snprintf(reference, sizeof reference, "../hf/%s", of);
    read_reference(&t, reference, reference);
    convert(data_path(path), in_dir("a.gguf"), "keep", NULL);
    double d = error_of(in_dir("a.gguf"), &t);
    print_message("%-18s %.1e\n", name, d);
    assert_true(d <= 1e-4);
    if (!reordered)
        assert_same_bits(data_path(path), in_dir("a.gguf"), &t);
    convert(data_path(path), in_dir("a.gguf"), "f32", NULL);
    assert_true(error_of(in_dir("a.gguf"), &t) <= 1e-4);
    free(t.ref);
}

static void test_directories(void **state)
{
    struct fixtures models, stacked;
    char path[128], name[64];
    (void)state;
    fixtures_find(&models, "hf", ".logits.npy");
    fixtures_find(&stacked, "hf", "-stacked");
    for (int i = 0; i < models.n; i++) {
        (void)snprintf(path, sizeof path, "hf/%s", models.names[i]);
        const struct fixture about = fixture_read(data_path(path));
        if (about.quantised) /* refused: test_refused */
            continue;
        convert_directory(models.names[i], models.names[i], about.reordered);
        (void)snprintf(name, sizeof name, "%s-stacked", models.names[i]);
        if (fixtures_have(&stacked, models.names[i]))
            convert_directory(name, models.names[i], about.reordered);
    }
}

/* What the report says of models that llama.cpp would compute otherwise. */
static void test_differs(void **state)
{
    static const struct {
        const char *of, *says;
    } cases[] = {
        {"hf/llama", ""},
        {"hf/qwen3", ""},
        {"hf/mistral",
         "llama.cpp does not go by llama.attention.sliding_window, so it computes something else with this file"},
        {"hf/gemma2", "by gemma2.attention.scale,"},
        {"hf/gemma3", "by gemma3.attention.scale,"},
        {"hf/llama4", "by llama4.attention.chunk_size, llama4.attention.temperature_length, "
                      "llama4.attention.temperature_scale, llama4.attention.qk_norm,"},
        {"hf/qwen3_moe", "by qwen3moe.interleave_moe_layer_step, qwen3moe.expert_weights_norm,"},
        {"hf/deepseek_v2", ""},
        {"hf/deepseek_v3", "by deepseek2.rope.scaling.attn_factor,"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_convert_report r;
        convert(data_path(cases[i].of), in_dir("a.gguf"), "keep", &r);
        if (*cases[i].says ? !strstr(r.differs, cases[i].says) : *r.differs)
            fail_msg("%s: \"%s\", expected \"%s\"", cases[i].of, r.differs, cases[i].says);
    }
}

/* Floats that hold the same numbers, and types that come near them. */
static void test_types(void **state)
{
    static const struct {
        const char *type;
        double most;
    } types[] = {{"f32", 1e-4}, {"f16", 1e-2}, {"bf16", 0.05}, {"q8_0", 0.2}, {"q4_0", 3}, {"q4_k", 2}};
    struct tiny t;
    (void)state;
    read_reference(&t, "../hf/qwen3", "../hf/qwen3");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        convert(data_path("hf/qwen3"), in_dir("a.gguf"), types[i].type, NULL);
        double d = error_of(in_dir("a.gguf"), &t);
        print_message("%-5s %.1e\n", types[i].type, d);
        assert_true(d > 0 && d <= types[i].most);
    }
    free(t.ref);
}

/* GGUF into GGUF: all metadata but that of the parts, and the same numbers. */
static void test_gguf(void **state)
{
    static const struct {
        const char *name, *ids, *logits;
    } models[] = {{"llama-untied-split-00002-of-00002", "llama-untied", "llama-untied"},
                  {"llama-k256-q4_k", "llama-k256", "llama-k256-q4_k"},
                  {"qwen3moe-q8_0", "qwen3moe", "qwen3moe-q8_0"},
                  {"mixtral-q5_0", "mixtral", "mixtral-q5_0"}};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct tiny t;
        char path[128];
        struct tern_file *f, *g;
        (void)snprintf(path, sizeof path, "tiny/%s.gguf", models[i].name);
        read_reference(&t, models[i].ids, models[i].logits);
        convert(data_path(path), in_dir("a.gguf"), NULL, NULL);
        assert_same_bits(data_path(path), in_dir("a.gguf"), &t);
        free(t.ref);
        assert_int_equal(tern_file_open(&f, data_path(path), NULL), 0);
        assert_int_equal(tern_file_open(&g, in_dir("a.gguf"), NULL), 0);
        for (size_t k = 0; k < tern_file_n_meta(f); k++) {
            const struct tern_meta *m = tern_file_meta_at(f, k), *n = tern_file_meta(g, m->key);
            if (strncmp(m->key, "split.", 6) == 0 || strcmp(m->key, "general.alignment") == 0) {
                assert_null(n);
                continue;
            }
            assert_non_null(n);
            assert_int_equal(m->stored, n->stored);
            assert_int_equal(m->i, n->i);
            assert_int_equal(m->n, n->n);
            assert_int_equal(m->s.n, n->s.n);
            assert_true(m->f == n->f);
        }
        tern_file_close(&f);
        tern_file_close(&g);
    }
}

/* ---- files made here --------------------------------------------------------------------------------------------- */

enum { K = 256, LONG = 6001 }; /* rows of the embedding: two chunks */

static float numbers[LONG * K];

static void fill(void)
{
    uint32_t state = 5;
    for (int i = 0; i < LONG * K; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (float)(int32_t)state * 0x1p-33f;
    }
}

/* Eight layers of some tensors, rows of 256 but for one of 96 and one of 80. */
static void write_source(const char *path)
{
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, "general.architecture", "llama");
    gw_u32(&w, "llama.block_count", 8);
    gw_u32(&w, "general.file_type", 0);
    gw_tensor(&w, "token_embd.weight", TERN_F32, 2, (const uint64_t[]){K, LONG}, numbers, sizeof numbers);
    gw_tensor(&w, "output.weight", TERN_F32, 2, (const uint64_t[]){K, 7}, numbers, 7 * K * 4);
    gw_tensor(&w, "output_norm.weight", TERN_F32, 1, (const uint64_t[]){K}, numbers, K * 4);
    for (int i = 0; i < 8; i++) {
        static const struct {
            const char *name;
            uint64_t dims[3];
        } tensors[] = {{"attn_v.weight", {K, 5}},          {"attn_q.weight", {K, 3}},
                       {"ffn_up.weight", {96, 5}},         {"ffn_gate.weight", {80, 5}},
                       {"ffn_gate_inp.weight", {K, 4}},    {"attn_q_norm.weight", {K, 2}},
                       {"ffn_down_exps.weight", {K, 3, 4}}};
        for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
            char name[64];
            const uint64_t *d = tensors[k].dims;
            (void)snprintf(name, sizeof name, "blk.%d.%s", i, tensors[k].name);
            gw_tensor(&w, name, TERN_F32, d[2] ? 3 : 2, d, numbers + i * 100,
                      d[0] * d[1] * (d[2] ? d[2] : 1) * sizeof(float));
        }
    }
    assert_int_equal(gw_save(&w, path), 0);
    gw_clear(&w);
}

/* What a file is recognized by must have settled before an interruption can be gone on from. */
static void settle(void)
{
    (void)sleep(4);
}

static int type_of(const struct tern_file *f, const char *name)
{
    const struct tern_tensor *t = tern_file_tensor(f, name);
    assert_non_null(t);
    return t->type;
}

static void check_types(const char *type, const int *want, int64_t file_type)
{
    static const char *const names[] = {"token_embd.weight",          "output.weight",
                                        "output_norm.weight",         "blk.0.attn_v.weight",
                                        "blk.1.attn_v.weight",        "blk.3.attn_v.weight",
                                        "blk.7.attn_v.weight",        "blk.0.attn_q.weight",
                                        "blk.0.ffn_up.weight",        "blk.0.ffn_gate.weight",
                                        "blk.0.ffn_gate_inp.weight",  "blk.0.attn_q_norm.weight",
                                        "blk.0.ffn_down_exps.weight", "blk.2.ffn_down_exps.weight"};
    struct tern_file *f;
    int64_t v;
    convert(in_dir("b.gguf"), in_dir("a.gguf"), type, NULL);
    assert_int_equal(tern_file_open(&f, in_dir("a.gguf"), NULL), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (type_of(f, names[i]) != want[i])
            fail_msg("%s of %s is %s", names[i], type, tern_type_name(type_of(f, names[i])));
    assert_int_equal(tern_file_need_int(f, "general.file_type", 0, 99, &v, NULL), 0);
    assert_int_equal(v, file_type);
    tern_file_close(&f);
}

#define A TERN_F32
#define H TERN_F16
static void test_mixtures(void **state)
{
    (void)state;
    fill();
    write_source(in_dir("b.gguf"));
    check_types("keep", (const int[]){A, A, A, A, A, A, A, A, A, A, A, A, A, A}, 0);
    check_types("f16", (const int[]){H, H, A, H, H, H, H, H, H, H, A, A, H, H}, 1);
#define Q TERN_Q8_0
    check_types("q8_0", (const int[]){Q, Q, A, Q, Q, Q, Q, Q, Q, H, A, A, Q, Q}, 7);
#undef Q
#define Q TERN_Q4_0
#define R TERN_Q6_K
    check_types("q4_0", (const int[]){Q, R, A, Q, Q, Q, Q, Q, Q, H, A, A, Q, Q}, 2);
#undef Q
#define Q TERN_Q4_K
    check_types("q4_k", (const int[]){Q, R, A, R, Q, R, R, Q, TERN_Q5_0, H, A, A, R, Q}, 15);
#undef Q
#undef R
}
#undef A
#undef H

static void read_all(struct tern_buf *out, const char *path)
{
    tern_buf_reset(out);
    assert_int_equal(tern_buf_read_file(out, path, 1 << 28, NULL), 0);
}

/* Values come back near where they were, in the right rows: of the long tensor both chunks. */
static void test_rows(void **state)
{
    static float back[LONG * K];
    struct tern_file *f;
    double e = 0, s = 0;
    (void)state;
    fill();
    write_source(in_dir("b.gguf"));
    convert(in_dir("b.gguf"), in_dir("a.gguf"), "q4_k", NULL);
    assert_int_equal(tern_file_open(&f, in_dir("a.gguf"), NULL), 0);
    assert_int_equal(tern_dequantize(back, TERN_Q4_K, tern_file_tensor(f, "token_embd.weight")->data, LONG * K, NULL),
                     0);
    for (int i = 0; i < LONG * K; i++) {
        assert_true(fabs((double)back[i] - (double)numbers[i]) < 0.03);
        e += ((double)back[i] - (double)numbers[i]) * ((double)back[i] - (double)numbers[i]);
        s += (double)numbers[i] * (double)numbers[i];
    }
    assert_true(sqrt(e / s) < 0.07);
    tern_file_close(&f);
}

static void test_threads(void **state)
{
    struct tern_buf want = {0}, have = {0};
    (void)state;
    fill();
    write_source(in_dir("b.gguf"));
    for (int n = 1; n <= 3; n++) {
        tern_error err = {0};
        tern_convert_params p = {.type = "q4_k", .n_threads = n};
        tiny_ok(tern_convert(in_dir("b.gguf"), in_dir("a.gguf"), &p, NULL, &err), &err);
        read_all(n == 1 ? &want : &have, in_dir("a.gguf"));
        if (n > 1) {
            assert_int_equal(want.len, have.len);
            assert_memory_equal(want.p, have.p, want.len);
        }
    }
    tern_buf_clear(&want);
    tern_buf_clear(&have);
}

/* ---- interruptions ----------------------------------------------------------------------------------------------- */

static int stop_at(void *user, int done, int total)
{
    (void)total;
    return done == *(int *)user;
}

/* Stops after n chunks. */
static void interrupted(const char *type, int n)
{
    tern_error err = {0};
    tern_convert_params p = {.type = type, .n_threads = 2, .progress = stop_at, .user = &n};
    assert_int_equal(tern_convert(in_dir("b.gguf"), in_dir("a.gguf"), &p, NULL, &err), TERN_ECANCELLED);
    assert_true(exists(in_dir("a.gguf.part")));
}

/* Goes on; the result must be that of a run without interruptions, of which `kept` chunks had been written. */
static void goes_on(const struct tern_buf *want, const char *type, int kept)
{
    struct tern_buf have = {0};
    tern_convert_report r;
    convert(in_dir("b.gguf"), in_dir("a.gguf"), type, &r);
    assert_int_equal(r.chunks_kept, kept);
    assert_false(exists(in_dir("a.gguf.part")));
    read_all(&have, in_dir("a.gguf"));
    assert_int_equal(have.len, want->len);
    assert_memory_equal(have.p, want->p, want->len);
    tern_buf_clear(&have);
}

static void change_byte(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_true(fputc(c ^ 1, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

static void test_resume(void **state)
{
    struct tern_buf want = {0}, text = {0};
    tern_convert_report r;
    (void)state;
    fill();
    write_source(in_dir("b.gguf"));
    settle();
    convert(in_dir("b.gguf"), in_dir("a.gguf"), "q4_k", &r);
    assert_int_equal(r.chunks, 60); /* of 59 tensors */
    read_all(&want, in_dir("a.gguf"));
    static const int stops[] = {0, 1, 2, 33, 59};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        assert_int_equal(unlink(in_dir("a.gguf")), 0);
        interrupted("q4_k", stops[i]);
        assert_false(exists(in_dir("a.gguf")));
        goes_on(&want, "q4_k", stops[i]);
    }
    interrupted("q4_k", 20); /* twice, the second time later */
    interrupted("q4_k", 40);
    goes_on(&want, "q4_k", 40);
    interrupted("q4_k", 40); /* bytes that have changed are written again */
    change_byte(in_dir("a.gguf.part"), 100000);
    goes_on(&want, "q4_k", 39);
    interrupted("q4_k", 40); /* other options and another source begin anew */
    convert(in_dir("b.gguf"), in_dir("a.gguf"), "q8_0", &r);
    assert_int_equal(r.chunks_kept, 0);
    interrupted("q4_k", 40);
    change_byte(in_dir("b.gguf"), (long)(sizeof numbers / 2));
    change_byte(in_dir("b.gguf"), (long)(sizeof numbers / 2));
    settle();
    goes_on(&want, "q4_k", 0);
    interrupted("q4_k", 40); /* what is cut off */
    assert_int_equal(truncate(in_dir("a.gguf.part"), 1000), 0);
    tern_error err = {0};
    tern_convert_params p = {.type = "q4_k", .n_threads = 2};
    assert_int_equal(tern_convert(in_dir("b.gguf"), in_dir("a.gguf"), &p, NULL, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "convert has not written it")); /* somebody else's, by its looks */
    assert_int_equal(unlink(in_dir("a.gguf.part")), 0);
    tern_buf_clear(&want);
    tern_buf_clear(&text);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    tern_error err = {0};
    struct tern_buf before = {0}, after = {0};
    (void)state;
    fill();
    write_source(in_dir("b.gguf"));
    convert(in_dir("b.gguf"), in_dir("a.gguf"), "q8_0", NULL);
    read_all(&before, in_dir("a.gguf"));
    numbers[5 * K + 17] = NAN;
    write_source(in_dir("b.gguf"));
    REFUSED(in_dir("b.gguf"), "q4_0", TERN_EFORMAT, "b.gguf", "\"token_embd.weight\": row 5",
            "element 17 is not a number");
    REFUSED(in_dir("b.gguf"), "keep", TERN_EFORMAT, "element 17");
    numbers[5 * K + 17] = -INFINITY;
    write_source(in_dir("b.gguf"));
    REFUSED(in_dir("b.gguf"), "q8_0", TERN_EFORMAT, "row 5", "element 17 is infinite");
    numbers[5 * K + 17] = 1e30f;
    write_source(in_dir("b.gguf"));
    REFUSED(in_dir("b.gguf"), "f16", TERN_EUNSUPPORTED, "row 5", "too large for F16");
    read_all(&after, in_dir("a.gguf")); /* what was there stays */
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.p, after.p, before.len);
    REFUSED(data_path("tiny/llama-b32-q8_0.gguf"), "q4_0", TERN_EINVAL, "Q8_0 already", "--allow-requantize");
    REFUSED(data_path("hf/affine"), "keep", TERN_EUNSUPPORTED, "quantised (affine");
    REFUSED(data_path("hf/llama"), "q3_x", TERN_EINVAL, "\"q3_x\" is no type");
    REFUSED(in_dir("nothing"), "keep", TERN_ENOENT, "nothing");
    assert_int_equal(tern_convert(in_dir("a.gguf"), in_dir("a.gguf"), NULL, NULL, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "this run reads it"));
    assert_int_equal(tern_convert(in_dir("a.gguf"), dir, NULL, NULL, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "directory"));
    assert_int_equal(tern_convert(in_dir("a.gguf"), in_dir("no/such/x.gguf"), NULL, NULL, &err), TERN_EIO);
    struct gguf_writer w; /* experts without the first one, and more than there are */
    for (int i = 0; i < 2; i++) {
        gw_init(&w);
        gw_str(&w, "general.architecture", "llama");
        gw_u32(&w, "llama.block_count", 1);
        gw_u32(&w, "llama.expert_count", 2);
        for (int e = !i; e < 3; e++) {
            char name[64];
            (void)snprintf(name, sizeof name, "blk.0.ffn_up.%d.weight", e);
            gw_tensor(&w, name, TERN_F32, 2, (const uint64_t[]){32, 3}, NULL, 32 * 3 * 4);
        }
        assert_int_equal(gw_save(&w, in_dir("b.gguf")), 0);
        gw_clear(&w);
        REFUSED(in_dir("b.gguf"), "keep", TERN_EFORMAT, i ? "ffn_up.2" : "ffn_up.1", "no expert");
    }
    FILE *f = fopen(in_dir("a.gguf.part"), "w"); /* somebody else's */
    assert_true(f && fputs("a download", f) >= 0 && fclose(f) == 0);
    assert_int_equal(tern_convert(data_path("hf/llama"), in_dir("a.gguf"), NULL, NULL, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "a.gguf.part"));
    assert_true(exists(in_dir("a.gguf.part")));
    assert_int_equal(unlink(in_dir("a.gguf.part")), 0);
    tern_buf_clear(&before);
    tern_buf_clear(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directories), cmocka_unit_test(test_types),   cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_mixtures),    cmocka_unit_test(test_rows),    cmocka_unit_test(test_threads),
        cmocka_unit_test(test_resume),      cmocka_unit_test(test_refused), cmocka_unit_test(test_differs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
