/* Files of packed weights: mapped weights compute what packed ones do, and no other file is taken for one. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>
#include "file/file.h"
#include "served.h"
#include "tiny.h"

/* The format, written down again (docs/packed-format.md). */
enum { HEADER = 64, RECORD = 64, HASH_AT = 48, STAMP_AT = 56, PAGE = 4096 };
enum {
    SOURCE_HASH = 8,
    BLOCK_HASH = 16,
    OFFSET = 24,
    BYTES = 32,
    PANEL_BYTES = 40,
    TYPE = 48,
    CODES = 52,
    N = 56,
    K = 60
};

#define MODEL  "llama-b32-q4_1"
#define PROMPT 70
#define DECODE 3

static char dir[64], kept[96];

struct bytes {
    uint8_t *p;
    size_t n;
};

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const char *tiny_path(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/tiny/%s.gguf", TERN_TEST_DATA, name);
    return path;
}

static struct bytes read_file(const char *path)
{
    struct bytes b = {NULL, 0};
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) < 0)
        fail_msg("cannot open %s", path);
    b.n = (size_t)st.st_size;
    b.p = malloc(b.n + 1);
    assert_int_equal(fread(b.p, 1, b.n, f), b.n);
    (void)fclose(f);
    return b;
}

static void write_file(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static bool left_behind(void)
{
    char tmp[128];
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", kept);
    return exists(tmp);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static tern_model *open_with(const char *path, const char *packed)
{
    tern_model *m;
    tern_error err = {0};
    tern_model_params p = {.n_threads = 2, .packed = packed};
    tiny_ok(tern_model_open(&m, path, &p, &err), &err);
    return m;
}

/* Logits of a prompt and of some decoded tokens. */
static float *logits_of(tern_model *m)
{
    int vocab = tern_model_get_info(m)->n_vocab;
    struct tiny t = {.model = m, .n_ids = PROMPT + DECODE, .n_vocab = vocab};
    tern_seq *s;
    tern_error err = {0};
    for (int i = 0; i < t.n_ids; i++)
        t.ids[i] = (7 + 11 * i) % vocab;
    tern_engine *e = tiny_engine(&t, "l4", false, 2, 1, 64);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    float *out = tiny_buffer(&t);
    tiny_run(e, s, t.ids, 0, PROMPT, 64, false, out, 0, vocab);
    tiny_run(e, s, t.ids, PROMPT, PROMPT + DECODE, 1, true, out, 0, vocab);
    tern_engine_close(&e);
    return out;
}

static size_t logits_bytes(const tern_model *m)
{
    return sizeof(float) * (PROMPT + DECODE) * (size_t)tern_model_get_info(m)->n_vocab;
}

/* Opens, compares with `want` when there is one, and closes.  mapped: from the file, without a word; else the notice
 * must have `text` in it. */
static void expect_open(const char *path, const char *packed, bool mapped, const char *text, const float *want)
{
    tern_model *m = open_with(path, packed);
    const tern_model_info *i = tern_model_get_info(m);
    if (mapped != (i->packed != NULL))
        fail_msg("%s: mapped %s, notice \"%s\"", text ? text : "", i->packed, i->notice);
    if (text ? !i->notice || !strstr(i->notice, text) || !strstr(i->notice, dir) || strchr(i->notice, '\n')
             : i->notice != NULL)
        fail_msg("\"%s\" does not say \"%s\"", i->notice, text);
    if (want) {
        float *have = logits_of(m);
        assert_memory_equal(have, want, logits_bytes(m));
        free(have);
    }
    tern_model_close(&m);
    assert_false(left_behind());
}

static struct bytes good(void)
{
    (void)unlink(kept);
    expect_open(tiny_path(MODEL), kept, false, "packed weights written", NULL);
    return read_file(kept);
}

static float *reference(const char *path)
{
    tern_model *m = open_with(path, "off");
    assert_null(tern_model_get_info(m)->packed);
    assert_null(tern_model_get_info(m)->notice);
    float *x = logits_of(m);
    tern_model_close(&m);
    return x;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void test_mapped_computes_what_packed_does(void **state)
{
    static const char *const names[] = {"llama-b32-q4_0",  "llama-b32-q4_1",  "llama-b32-q5_0",
                                        "llama-b32-q5_1",  "llama-b32-q8_0",  "llama-b32-f16",
                                        "llama-b32-bf16",  "llama-k256-q4_k", "llama-k256-q5_k",
                                        "llama-k256-q6_k", "llama-tied",      "llama-untied-split-00001-of-00002",
                                        "gemma3-w8"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        float *want = reference(tiny_path(names[i]));
        (void)unlink(kept);
        expect_open(tiny_path(names[i]), kept, false, "packed weights written", want);
        expect_open(tiny_path(names[i]), kept, true, NULL, want);
        free(want);
    }
    /* The last one's file says nothing about another model. */
    expect_open(tiny_path(MODEL), "off", false, NULL, NULL);
    expect_open(tiny_path(MODEL), kept, false, "made from another model file; packed anew", NULL);
    expect_open(tiny_path(MODEL), kept, true, NULL, NULL);
}

static void test_information(void **state)
{
    (void)state;
    struct bytes g = good();
    tern_model *off = open_with(tiny_path(MODEL), "off"), *on = open_with(tiny_path(MODEL), kept);
    const tern_model_info *a = tern_model_get_info(off), *b = tern_model_get_info(on);
    uint64_t at;
    memcpy(&at, g.p + 32, sizeof at);
    assert_string_equal(b->packed, kept);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
    assert_int_equal(b->weight_bytes, g.n - at);
    assert_int_equal(at % PAGE, 0);
    tern_model_close(&off);
    tern_model_close(&on);
    free(g.p);
}

/* What a file must be refused for, with a word of the sentence. */
struct damage {
    const char *says;
    size_t at;
    enum { FLIP, CUT } how; /* the lowest bit of byte `at`, or the file at byte `at` */
    bool left;              /* not ours: never overwritten */
};

static void expect_refused(const struct bytes *b, const char *says, bool left, const float *want)
{
    write_file(kept, b->p, b->n);
    expect_open(tiny_path(MODEL), kept, false, says, want);
    struct bytes now = read_file(kept);
    bool same = now.n == b->n && memcmp(now.p, b->p, b->n) == 0;
    assert_int_equal(same, left);
    free(now.p);
    if (!left)
        expect_open(tiny_path(MODEL), kept, true, NULL, NULL);
}

static void test_damage(void **state)
{
    (void)state;
    struct bytes g = good();
    float *want = reference(tiny_path(MODEL));
    const struct damage cases[] = {
        {"is empty", 0, CUT, false},
        {"inside the header", 5, CUT, false},
        {"inside the header", HEADER - 1, CUT, false},
        {"weights at byte 4096", HEADER, CUT, false},
        {"weights at byte 4096", HEADER + RECORD + 7, CUT, false},
        {"weights at byte 4096", PAGE - 1, CUT, false},
        {"0 bytes of weights", PAGE, CUT, false},
        {"bytes of weights", g.n - 1, CUT, false},
        {"wrong magic", 0, FLIP, true},
        {"wrong magic", 7, FLIP, true},
        {"format version 0", 8, FLIP, false},
        {"byte order", 12, FLIP, false},
        {"panel layout 3", 16, FLIP, false},
        {"header or table is damaged", 20, FLIP, false}, /* number of tensors */
        {"header or table is damaged", 24, FLIP, false}, /* digest */
        {"header or table is damaged", 32, FLIP, false}, /* offset of the block */
        {"header or table is damaged", 40, FLIP, false}, /* its size */
        {"header or table is damaged", HASH_AT, FLIP, false},
        {"header or table is damaged", HEADER, FLIP, false},
        {"header or table is damaged", HEADER + RECORD + SOURCE_HASH, FLIP, false},
        {"header or table is damaged", PAGE - 1, FLIP, false}, /* padding */
        {"is damaged", PAGE, FLIP, false},
        {"is damaged", PAGE + (g.n - PAGE) / 2, FLIP, false},
        {"is damaged", g.n - 1, FLIP, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct damage *d = &cases[i];
        struct bytes b = {malloc(g.n), d->how == CUT ? d->at : g.n};
        memcpy(b.p, g.p, g.n);
        b.p[d->at] ^= d->how == FLIP;
        expect_refused(&b, d->says, d->left, i % 8 ? NULL : want);
        free(b.p);
    }
    struct bytes longer = {malloc(g.n + 1), g.n + 1};
    memcpy(longer.p, g.p, g.n);
    longer.p[g.n] = 0;
    expect_refused(&longer, "bytes of weights", false, want);
    free(longer.p);
    free(want);
    free(g.p);
}

static void put(struct bytes *b, size_t at, uint64_t value, size_t n)
{
    memcpy(b->p + at, &value, n);
}

/* The checksums of header and table as a writer would set them. */
static void seal(struct bytes *b)
{
    uint64_t at;
    memcpy(&at, b->p + 32, sizeof at);
    if (at < HEADER || at > b->n)
        at = HEADER;
    put(b, HASH_AT, XXH3_64bits_withSeed(b->p + HEADER, at - HEADER, XXH3_64bits(b->p, HASH_AT)), 8);
}

/* Numbers that lie, under checksums that fit. */
static void test_lies(void **state)
{
    static const struct {
        const char *says;
        size_t at;
        uint64_t value;
        size_t n;
    } cases[] = {
        {"another model file", 20, 1, 4},
        {"another model file", 20, UINT32_MAX, 4},
        {"another model file", 24, 1, 8},
        {"weights at byte 0", 32, 0, 8},
        {"weights at byte 63", 32, 63, 8},
        {"weights at byte 18446744073709551615", 32, UINT64_MAX, 8},
        {"another model file", 32, HEADER, 8},
        {"another model file", 32, PAGE + 64, 8},
        {"another model file", 40, 0, 8},
        {"another model file", 40, UINT64_MAX, 8},
        {"table entry 0", HEADER, 1, 8},
        {"table entry 1", HEADER + RECORD + OFFSET, 0, 8}, /* overlaps entry 0 */
        {"table entry 1", HEADER + RECORD + OFFSET, UINT64_MAX - 63, 8},
        {"table entry 1", HEADER + RECORD + BYTES, UINT64_MAX, 8},
        {"table entry 0", HEADER + PANEL_BYTES, 0, 8},
        {"table entry 0", HEADER + TYPE, 30, 4},
        {"table entry 0", HEADER + CODES, 0xFFFF, 2},
        {"table entry 0", HEADER + CODES + 2, 0xFFFF, 2},
        {"table entry 0", HEADER + N, UINT32_MAX, 4},
        {"table entry 0", HEADER + K, 0, 4},
        {"other weights", HEADER + SOURCE_HASH, 1, 8},
        {"is damaged", HEADER + BLOCK_HASH, 1, 8},
    };
    (void)state;
    struct bytes g = good();
    float *want = reference(tiny_path(MODEL));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b = {malloc(g.n), g.n};
        memcpy(b.p, g.p, g.n);
        put(&b, cases[i].at, cases[i].value, cases[i].n);
        seal(&b);
        expect_refused(&b, cases[i].says, false, i % 8 ? NULL : want);
        free(b.p);
    }
    free(want);
    free(g.p);
}

/* A writer finds numbers that are none in the model file; a reader believes no file that it did not. */
static void test_not_finite(void **state)
{
    (void)state;
    struct bytes g = good();
    uint64_t n, at, offset, bytes;
    size_t r = HEADER;
    memcpy(&at, g.p + 32, sizeof at);
    do {
        r += RECORD;
        memcpy(&n, g.p + r + PANEL_BYTES, sizeof n);
    } while (n); /* up to the first vector */
    memcpy(&offset, g.p + r + OFFSET, sizeof offset);
    memcpy(&bytes, g.p + r + BYTES, sizeof bytes);
    put(&g, at + offset + 4, 0x7FC00000, 4);
    put(&g, r + BLOCK_HASH, XXH3_64bits(g.p + at + offset, bytes), 8);
    seal(&g);
    expect_refused(&g, "element 1 is not a finite number; packed anew", false, NULL);
    free(g.p);
}

/* The stamp stands for the model file's bytes as long as nothing has touched that file, and is renewed when it says
 * nothing. */
static void test_stamp(void **state)
{
    struct tern_file *f;
    tern_error err = {0};
    uint64_t hash, stamp;
    (void)state;
    struct bytes g = good();
    memcpy(&hash, g.p + HASH_AT, sizeof hash);
    memcpy(&stamp, g.p + STAMP_AT, sizeof stamp);
    tiny_ok(tern_file_open(&f, tiny_path(MODEL), &err), &err);
    assert_int_equal(stamp, tern_file_stamp(f, hash));
    assert_int_not_equal(stamp, 0);

    put(&g, STAMP_AT, 0, 8);
    write_file(kept, g.p, g.n);
    expect_open(tiny_path(MODEL), kept, true, NULL, NULL);
    struct bytes renewed = read_file(kept);
    assert_memory_equal(renewed.p + STAMP_AT, &stamp, sizeof stamp);
    free(renewed.p);

    /* With a right stamp nobody looks at the bytes ... */
    put(&g, HEADER + SOURCE_HASH, 1, 8);
    seal(&g);
    memcpy(&hash, g.p + HASH_AT, sizeof hash);
    put(&g, STAMP_AT, tern_file_stamp(f, hash), 8);
    write_file(kept, g.p, g.n);
    expect_open(tiny_path(MODEL), kept, true, NULL, NULL);
    /* ... and with that of another table everybody does. */
    put(&g, STAMP_AT, stamp, 8);
    expect_refused(&g, "other weights", false, NULL);
    tern_file_close(&f);
    free(g.p);
}

/* A model file that is replaced by one of the same size and times, different where nothing is sampled. */
static void test_model_replaced(void **state)
{
    char path[128];
    struct tern_file *f;
    struct stat st;
    tern_error err = {0};
    (void)state;
    struct bytes m = read_file(tiny_path("llama-b32-bf16"));
    (void)snprintf(path, sizeof path, "%s/replaced.gguf", dir);
    (void)unlink(kept);
    write_file(path, m.p, m.n);
    expect_open(path, kept, false, "packed weights written", NULL);
    expect_open(path, kept, true, NULL, NULL);
    struct bytes fresh = read_file(kept);
    uint64_t stamp;
    memcpy(&stamp, fresh.p + STAMP_AT, sizeof stamp);
    assert_int_equal(stamp, 0); /* too new a file: its times could hide a second change */
    free(fresh.p);

    tiny_ok(tern_file_open(&f, path, &err), &err);
    const struct tern_tensor *big = tern_file_tensor(f, "token_embd.weight");
    assert_true(big->n_bytes > 3 * 4096);
    m.p[big->file_offset + big->n_bytes / 2] ^= 1;
    tern_file_close(&f);
    assert_int_equal(stat(path, &st), 0);
    write_file(path, m.p, m.n);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){st.st_atim, st.st_mtim}, 0), 0);
    float *want = reference(path);
    expect_open(path, kept, false, "other weights: tensor \"token_embd.weight\" differs; packed anew", want);
    expect_open(path, kept, true, NULL, want);
    free(want);
    free(m.p);
    (void)unlink(path);
}

/* MODEL.packed and when it is written. */
static void test_modes(void **state)
{
    char path[128], beside[160];
    struct stat st;
    (void)state;
    struct bytes m = read_file(tiny_path(MODEL)), g = good();
    (void)snprintf(path, sizeof path, "%s/modes.gguf", dir);
    (void)snprintf(beside, sizeof beside, "%s.packed", path);
    write_file(path, m.p, m.n);
    expect_open(path, NULL, false, NULL, NULL);
    expect_open(path, "auto", false, NULL, NULL);
    expect_open(path, "use", false, NULL, NULL);
    expect_open(path, "off", false, NULL, NULL);
    assert_false(exists(beside)); /* too small */
    assert_int_equal(chmod(path, 0600), 0);
    expect_open(path, beside, false, "packed weights written", NULL);
    assert_int_equal(stat(beside, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600); /* as the model's */
    expect_open(path, NULL, true, NULL, NULL);
    expect_open(path, "use", true, NULL, NULL);
    expect_open(path, "off", false, NULL, NULL);
    g.p[g.n - 1] ^= 1;
    write_file(beside, g.p, g.n);
    expect_open(path, "use", false, "is damaged (checksum differs); not used", NULL);
    expect_open(path, "use", false, "is damaged (checksum differs); not used", NULL);
    expect_open(path, "auto", false, "is damaged (checksum differs); packed anew", NULL);
    expect_open(path, "auto", true, NULL, NULL);
    (void)unlink(beside);
    (void)unlink(path);
    /* A name that cannot be a file, and one that already is something else. */
    expect_open(tiny_path(MODEL), dir, false, "is a directory", NULL);
    (void)snprintf(path, sizeof path, "%s/none/packed", dir);
    expect_open(tiny_path(MODEL), path, false, "cannot create: No such file", NULL);
    free(m.p);
    free(g.p);
}

/* What lies in the user's cache folder, and goes with it. */
static int n_removed(const char *folder)
{
    char path[512];
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' && strncmp(e->d_name, "model.gguf-", 11) == 0 && unlink(path) == 0)
            n++;
    }
    if (d)
        (void)closedir(d);
    return rmdir(folder) == 0 ? n : -1;
}

static int read_only_child(const char *model, const char *cache)
{
    tern_model *m;
    tern_error err = {0};
    tern_model_params p = {.n_threads = 1, .packed = kept};
    char path[4096], folder[128];
    if (geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
        return 3;
    if (tern_model_open(&m, model, &p, &err) < 0)
        return 4;
    const char *says = tern_model_get_info(m)->notice;
    if (!says || !strstr(says, "cannot create: Permission denied"))
        return 5;
    /* What belongs to a model goes to the user's cache folder then, and is found there. */
    (void)setenv("XDG_CACHE_HOME", cache, 1);
    (void)snprintf(folder, sizeof folder, "%s/tern", cache);
    if (tern_model_beside(m, ".packed", path, sizeof path, &err) < 0 || strncmp(path, folder, strlen(folder)) != 0)
        return 6;
    p.packed = path;
    tern_model_close(&m);
    if (tern_model_open(&m, model, &p, &err) < 0 || !exists(path))
        return 7;
    tern_model_close(&m);
    if (tern_model_open(&m, model, NULL, &err) < 0 || !tern_model_get_info(m)->packed ||
        strcmp(tern_model_get_info(m)->packed, path) != 0)
        return 8;
    int32_t ids[300];
    for (int i = 0; i < 300; i++)
        ids[i] = i % 7;
    if (tern_model_calibrate(m, ids, 300, 1, NULL, NULL, NULL, &err) < 0)
        return 9;
    tern_kv_plan *plan;
    tern_kv_row r;
    if (tern_kv_plan_new(&plan, m, "l4", true, &err) < 0)
        return 10;
    tern_kv_plan_row(plan, 0, &r);
    if (!r.conditioning || strcmp(r.conditioning, "calibrated") != 0)
        return 11;
    tern_kv_plan_free(plan);
    tern_model_close(&m);
    return n_removed(folder) == 2 ? 0 : 12;
}

/* A folder that may only be read.  The superuser may write anywhere, so it becomes somebody else. */
static void test_read_only_folder(void **state)
{
    (void)state;
    needs_fork();
    (void)unlink(kept);
    struct bytes m = read_file(tiny_path(MODEL)); /* a copy: the source may lie where only its owner sees it */
    char model[128], cache[128];
    (void)snprintf(model, sizeof model, "%s/model.gguf", dir);
    (void)snprintf(cache, sizeof cache, "%s-cache", dir);
    write_file(model, m.p, m.n);
    free(m.p);
    assert_int_equal(mkdir(cache, 0755), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(cache, 65534, 65534), 0);
    assert_int_equal(chmod(dir, 0555), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(read_only_child(model, cache));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_false(exists(kept));
    assert_false(left_behind());
    (void)unlink(model);
    assert_int_equal(rmdir(cache), 0);
}

/* The kernel's limit on file size stands in for a full disk. */
static void test_full_disk(void **state)
{
    struct rlimit old, small;
    (void)state;
    struct bytes g = good();
    float *want = reference(tiny_path(MODEL));
    g.p[g.n - 1] ^= 1;
    write_file(kept, g.p, g.n);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 6000, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_open(tiny_path(MODEL), kept, false, "packed for this run alone", want);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    struct bytes now = read_file(kept);
    assert_int_equal(now.n, g.n);
    assert_memory_equal(now.p, g.p, g.n);
    free(now.p);
    free(want);
    free(g.p);
}

static void test_several_processes(void **state)
{
    enum { CHILDREN = 4 };
    char tmp[128], target[128];
    pid_t child[CHILDREN];
    (void)state;
    needs_fork();
    float *want = reference(tiny_path(MODEL));
    (void)unlink(kept);
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            tern_model *m = open_with(tiny_path(MODEL), kept);
            float *have = logits_of(m);
            _exit(memcmp(have, want, logits_bytes(m)) != 0);
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    expect_open(tiny_path(MODEL), kept, true, NULL, want);

    /* While somebody writes, others do without. */
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", kept);
    (void)unlink(kept);
    int fd = open(tmp, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    tern_model *m = open_with(tiny_path(MODEL), kept);
    assert_non_null(strstr(tern_model_get_info(m)->notice, "another process is writing it"));
    tern_model_close(&m);
    assert_false(exists(kept));
    /* What a killed writer left is taken over. */
    assert_int_equal(write(fd, "ternpak\nhalf", 12), 12);
    (void)close(fd);
    expect_open(tiny_path(MODEL), kept, false, "packed weights written", NULL);
    expect_open(tiny_path(MODEL), kept, true, NULL, want);

    /* But not through a link to somebody's file. */
    (void)snprintf(target, sizeof target, "%s/precious", dir);
    for (int hard = 0; hard < 2; hard++) {
        (void)unlink(kept);
        write_file(target, (const uint8_t *)"precious", 8);
        assert_int_equal(hard ? link(target, tmp) : symlink(target, tmp), 0);
        m = open_with(tiny_path(MODEL), kept);
        assert_non_null(strstr(tern_model_get_info(m)->notice, "cannot create"));
        tern_model_close(&m);
        struct bytes t = read_file(target);
        assert_int_equal(t.n, 8);
        free(t.p);
        (void)unlink(tmp);
    }
    (void)unlink(target);
    free(want);
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/tern-packed-XXXXXX");
    if (!mkdtemp(dir) || chmod(dir, 0755) < 0)
        return -1;
    (void)snprintf(kept, sizeof kept, "%s/weights", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    (void)unlink(kept);
    return rmdir(dir); /* fails when anything was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mapped_computes_what_packed_does),
        cmocka_unit_test(test_information),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_stamp),
        cmocka_unit_test(test_model_replaced),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_several_processes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
