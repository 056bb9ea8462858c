/* GGUF reading: round trips, lookups, typed reads, files on disk and split sets.  Broken files: test_gguf_bad.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "file/file.h"
#include "gguf_writer.h"

#define DIMS(...) ((uint64_t[]){__VA_ARGS__})

/* Opens what the writer made from an exact copy on the heap, so that a sanitizer sees one byte too far.  The caller
 * frees *copy after closing. */
static int open_copy(struct tern_file **f, const uint8_t *bytes, size_t n, uint8_t **copy, tern_error *err)
{
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    if (n)
        memcpy(*copy, bytes, n);
    memset(err, 0, sizeof *err);
    return tern_file_open_memory(f, *copy, n, "m.gguf", err);
}

static struct tern_file *open_good(struct gguf_writer *w, uint8_t **copy)
{
    size_t n;
    const uint8_t *bytes = gw_finish(w, &n);
    struct tern_file *f;
    tern_error err;
    if (open_copy(&f, bytes, n, copy, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(tern_file_bytes(f), n);
    return f;
}

static const struct tern_meta *meta(const struct tern_file *f, const char *key)
{
    const struct tern_meta *m = tern_file_meta(f, key);
    assert_non_null(m);
    assert_string_equal(m->key, key);
    return m;
}

static void test_scalars(void **state)
{
    (void)state;
    struct gguf_writer w;
    uint8_t u8 = 200, *copy;
    int8_t i8 = -3;
    uint16_t u16 = 60000;
    int16_t i16 = -300;
    uint32_t u32 = 4000000000u;
    int64_t i64 = INT64_MIN;
    double f64 = 0.1;
    for (uint32_t version = 2; version <= 3; version++) {
        gw_init(&w);
        w.version = version;
        gw_scalar(&w, "u8", GW_U8, &u8);
        gw_scalar(&w, "i8", GW_I8, &i8);
        gw_scalar(&w, "u16", GW_U16, &u16);
        gw_scalar(&w, "i16", GW_I16, &i16);
        gw_scalar(&w, "u32", GW_U32, &u32);
        gw_i32(&w, "i32", INT32_MIN);
        gw_f32(&w, "f32", 1e-5f);
        gw_bool(&w, "yes", 1);
        gw_bool(&w, "no", 0);
        gw_u64(&w, "u64", INT64_MAX);
        gw_scalar(&w, "i64", GW_I64, &i64);
        gw_scalar(&w, "f64", GW_F64, &f64);
        gw_str_n(&w, "str", "a\0b", 3);
        gw_str(&w, "empty", "");
        struct tern_file *f = open_good(&w, &copy);
        assert_int_equal(tern_file_n_meta(f), 14);
        assert_int_equal(tern_file_n_tensors(f), 0);
        assert_string_equal(tern_file_path(f), "m.gguf");
        assert_int_equal(meta(f, "u8")->i, 200);
        assert_int_equal(meta(f, "i8")->i, -3);
        assert_int_equal(meta(f, "u16")->i, 60000);
        assert_int_equal(meta(f, "i16")->i, -300);
        assert_true(meta(f, "u32")->i == 4000000000);
        assert_true(meta(f, "u32")->f == 4e9);
        assert_true(meta(f, "i32")->i == INT32_MIN);
        assert_true(meta(f, "u64")->i == INT64_MAX);
        assert_true(meta(f, "i64")->i == INT64_MIN);
        assert_true(meta(f, "f32")->f == (double)1e-5f);
        assert_true(meta(f, "f64")->f == 0.1);
        assert_int_equal(meta(f, "yes")->type, TERN_META_BOOL);
        assert_int_equal(meta(f, "yes")->i, 1);
        assert_int_equal(meta(f, "no")->i, 0);
        assert_int_equal(meta(f, "f64")->type, TERN_META_FLOAT);
        assert_int_equal(meta(f, "i8")->type, TERN_META_INT);
        assert_int_equal(meta(f, "str")->type, TERN_META_STRING);
        assert_int_equal(meta(f, "str")->s.n, 3);
        assert_memory_equal(meta(f, "str")->s.p, "a\0b", 3);
        assert_int_equal(meta(f, "empty")->s.n, 0);
        assert_null(tern_file_meta(f, "u9"));
        assert_null(tern_file_meta(f, ""));
        assert_ptr_equal(tern_file_meta_at(f, 0), meta(f, "u8"));
        /* header 24, key 8 + 2, type 4: the value of the first entry */
        assert_int_equal(meta(f, "u8")->file_offset, 24 + 8 + 2 + 4);
        tern_file_close(&f);
        assert_null(f);
        tern_file_close(&f);
        free(copy);
        gw_clear(&w);
    }
    tern_file_close(NULL);
}

static void expect_ints(const struct tern_file *f, const char *key, const int64_t *want, size_t n)
{
    const struct tern_meta *m = meta(f, key);
    assert_int_equal(m->type, TERN_META_ARRAY);
    assert_int_equal(m->n, n);
    for (size_t i = 0; i < n; i++)
        assert_true(((const int64_t *)m->arr)[i] == want[i]);
}

static void test_arrays(void **state)
{
    (void)state;
    struct gguf_writer w;
    uint8_t *copy;
    gw_init(&w);
    gw_array(&w, "u8", GW_U8, (uint8_t[]){0, 255}, 2);
    gw_array(&w, "i8", GW_I8, (int8_t[]){-128, 127, 1}, 3);
    gw_array(&w, "u16", GW_U16, (uint16_t[]){65535}, 1);
    gw_array(&w, "i16", GW_I16, (int16_t[]){-32768, 5}, 2);
    gw_array(&w, "u32", GW_U32, (uint32_t[]){UINT32_MAX, 0}, 2);
    gw_array(&w, "i32", GW_I32, (int32_t[]){-1, 1, 2, 3}, 4);
    gw_array(&w, "u64", GW_U64, (uint64_t[]){INT64_MAX}, 1);
    gw_array(&w, "i64", GW_I64, (int64_t[]){-7, INT64_MIN}, 2);
    gw_array(&w, "bool", GW_BOOL, (uint8_t[]){1, 0, 1}, 3);
    gw_array(&w, "f32", GW_F32, (float[]){0.5f, -3.25f}, 2);
    gw_array(&w, "f64", GW_F64, (double[]){0.1, 1e300, -2}, 3);
    gw_str_array(&w, "str", (const char *const[]){"", "<s>", "longer"}, 3);
    gw_array(&w, "none", GW_I32, NULL, 0);
    gw_str_array(&w, "nothing", NULL, 0);
    struct tern_file *f = open_good(&w, &copy);
    expect_ints(f, "u8", (int64_t[]){0, 255}, 2);
    expect_ints(f, "i8", (int64_t[]){-128, 127, 1}, 3);
    expect_ints(f, "u16", (int64_t[]){65535}, 1);
    expect_ints(f, "i16", (int64_t[]){-32768, 5}, 2);
    expect_ints(f, "u32", (int64_t[]){UINT32_MAX, 0}, 2);
    expect_ints(f, "i32", (int64_t[]){-1, 1, 2, 3}, 4);
    expect_ints(f, "u64", (int64_t[]){INT64_MAX}, 1);
    expect_ints(f, "i64", (int64_t[]){-7, INT64_MIN}, 2);
    expect_ints(f, "bool", (int64_t[]){1, 0, 1}, 3);
    expect_ints(f, "none", NULL, 0);
    assert_int_equal(meta(f, "bool")->elem, TERN_META_BOOL);
    assert_int_equal(meta(f, "i8")->elem, TERN_META_INT);
    assert_int_equal(meta(f, "f32")->elem, TERN_META_FLOAT);
    assert_int_equal(meta(f, "f32")->n, 2);
    assert_true(((const double *)meta(f, "f32")->arr)[1] == -3.25);
    assert_true(((const double *)meta(f, "f64")->arr)[0] == 0.1);
    assert_true(((const double *)meta(f, "f64")->arr)[2] == -2);
    const struct tern_str *s = meta(f, "str")->arr;
    assert_int_equal(meta(f, "str")->n, 3);
    assert_int_equal(meta(f, "str")->elem, TERN_META_STRING);
    assert_int_equal(s[0].n, 0);
    assert_int_equal(s[2].n, 6);
    assert_memory_equal(s[1].p, "<s>", 3);
    assert_memory_equal(s[2].p, "longer", 6);
    assert_int_equal(meta(f, "nothing")->n, 0);
    tern_file_close(&f);
    free(copy);
    gw_clear(&w);
}

static void test_tensors(void **state)
{
    (void)state;
    static const struct {
        int type, elems, bytes;
        const char *name;
    } types[] = {
#define TYPE_ROW(e, id, text, elems, bytes) {id, elems, bytes, text},
        TERN_TYPE_LIST(TYPE_ROW)
#undef TYPE_ROW
    };
    enum { N_TYPES = sizeof types / sizeof types[0] };
    struct gguf_writer w;
    uint8_t *copy;
    for (uint32_t alignment = 1; alignment <= 65536; alignment *= 16) {
        gw_init(&w);
        gw_alignment(&w, alignment);
        for (int i = 0; i < N_TYPES; i++) {
            uint8_t data[2 * 3 * 256];
            size_t n = (size_t)types[i].bytes * 2 * 3;
            memset(data, i + 1, sizeof data);
            gw_tensor(&w, types[i].name, (uint32_t)types[i].type, 2, DIMS((uint64_t)types[i].elems * 2, 3), data, n);
        }
        gw_tensor(&w, "deep", TERN_F16, 4, DIMS(5, 1, 3, 2), NULL, 60);
        gw_tensor(&w, "one", TERN_F32, 1, DIMS(1), "\x01\x02\x03\x04", 4);
        struct tern_file *f = open_good(&w, &copy);
        assert_int_equal(tern_file_n_tensors(f), N_TYPES + 2);
        for (int i = 0; i < N_TYPES; i++) {
            const struct tern_tensor *t = tern_file_tensor(f, types[i].name);
            assert_ptr_equal(t, tern_file_tensor_at(f, (size_t)i));
            assert_int_equal(t->type, types[i].type);
            assert_int_equal(t->n_dims, 2);
            assert_int_equal(t->dims[0], types[i].elems * 2);
            assert_int_equal(t->dims[1], 3);
            assert_int_equal(t->dims[2], 1);
            assert_int_equal(t->n_bytes, types[i].bytes * 6);
            assert_ptr_equal(t->data, copy + t->file_offset);
            for (size_t k = 0; k < t->n_bytes; k++)
                assert_int_equal(((const uint8_t *)t->data)[k], i + 1);
            tern_file_forget(f, t);
            assert_int_equal(((const uint8_t *)t->data)[0], i + 1);
        }
        const struct tern_tensor *deep = tern_file_tensor(f, "deep");
        assert_non_null(deep);
        assert_int_equal(deep->dims[0] * 1000 + deep->dims[1] * 100 + deep->dims[2] * 10 + deep->dims[3], 5132);
        assert_memory_equal(tern_file_tensor(f, "one")->data, "\x01\x02\x03\x04", 4);
        assert_null(tern_file_tensor(f, "ones"));
        assert_string_equal(tern_file_tensor_path(f, deep), "m.gguf");
        tern_file_close(&f);
        free(copy);
        gw_clear(&w);
    }
}

static void test_type_names(void **state)
{
    (void)state;
    assert_string_equal(tern_type_name(TERN_Q4_K), "Q4_K");
    assert_string_equal(tern_type_name(10), "Q2_K");
    assert_string_equal(tern_type_name(19), "IQ1_S");
    assert_string_equal(tern_type_name(39), "MXFP4");
    assert_string_equal(tern_type_name(99), "type 99");
    assert_string_equal(tern_type_name(-1), "type -1");
    assert_int_equal(tern_type_elems(TERN_Q6_K), 256);
    assert_int_equal(tern_type_bytes(TERN_Q6_K), 210);
    assert_int_equal(tern_type_elems(19), 0);
    assert_int_equal(tern_type_bytes(99), 0);
}

static void test_typed_reads(void **state)
{
    (void)state;
    struct gguf_writer w;
    tern_error err;
    uint8_t *copy;
    int64_t i;
    double d;
    bool b;
    struct tern_str s;
    gw_init(&w);
    gw_i32(&w, "int", -5);
    gw_f32(&w, "float", 0.5f);
    gw_bool(&w, "bool", 1);
    gw_str(&w, "str", "text");
    gw_array(&w, "arr", GW_U8, (uint8_t[]){1}, 1);
    gw_f32(&w, "nan", (float)strtod("nan", NULL));
    gw_f32(&w, "inf", (float)strtod("-inf", NULL));
    struct tern_file *f = open_good(&w, &copy);

    assert_int_equal(tern_file_get_int(f, "int", 1, -5, -5, &i, &err), 0);
    assert_int_equal(i, -5);
    assert_int_equal(tern_file_need_int(f, "int", INT64_MIN, INT64_MAX, &i, &err), 0);
    assert_int_equal(tern_file_get_int(f, "none", 77, 0, 1, &i, &err), 0); /* the default need not be in range */
    assert_int_equal(i, 77);
    assert_int_equal(tern_file_need_int(f, "none", 0, 1, &i, &err), TERN_EFORMAT);
    assert_string_equal(err.msg, "m.gguf: the metadata key \"none\" is missing");
    assert_int_equal(tern_file_get_int(f, "int", 0, -4, 9, &i, &err), TERN_EFORMAT);
    assert_string_equal(err.msg, "m.gguf: metadata key \"int\": -5 is outside -4 to 9 at byte 39");
    assert_int_equal(tern_file_need_int(f, "int", -9, -6, &i, &err), TERN_EFORMAT);
    static const char *const not_int[] = {"float", "bool", "str", "arr"};
    for (size_t k = 0; k < 4; k++) {
        assert_int_equal(tern_file_get_int(f, not_int[k], 0, -9, 9, &i, &err), TERN_EFORMAT);
        assert_non_null(strstr(err.msg, not_int[k]));
        assert_non_null(strstr(err.msg, " where an integer is wanted at byte "));
        assert_int_equal(tern_file_get_int(f, not_int[k], 0, -9, 9, &i, NULL), TERN_EFORMAT);
    }

    assert_int_equal(tern_file_get_float(f, "float", 9, &d, &err), 0);
    assert_true(d == 0.5);
    assert_int_equal(tern_file_get_float(f, "int", 9, &d, &err), 0);
    assert_true(d == -5);
    assert_int_equal(tern_file_get_float(f, "none", 9.5, &d, &err), 0);
    assert_true(d == 9.5);
    assert_int_equal(tern_file_get_float(f, "str", 9, &d, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "\"str\": a string where a number is wanted at byte "));
    assert_int_equal(tern_file_get_float(f, "bool", 9, &d, &err), TERN_EFORMAT);
    assert_int_equal(tern_file_get_float(f, "nan", 9, &d, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "\"nan\": the value is not a finite number at byte "));
    assert_int_equal(tern_file_get_float(f, "inf", 9, &d, &err), TERN_EFORMAT);

    assert_int_equal(tern_file_get_bool(f, "bool", false, &b, &err), 0);
    assert_true(b);
    assert_int_equal(tern_file_get_bool(f, "none", true, &b, &err), 0);
    assert_true(b);
    assert_int_equal(tern_file_get_bool(f, "int", false, &b, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "\"int\": an integer where a bool is wanted at byte "));

    assert_int_equal(tern_file_get_str(f, "str", &s, &err), 0);
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.p, "text", 4);
    assert_int_equal(tern_file_get_str(f, "none", &s, &err), 0);
    assert_null(s.p);
    assert_int_equal(s.n, 0);
    assert_int_equal(tern_file_get_str(f, "arr", &s, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "\"arr\": an array where a string is wanted at byte "));
    tern_file_close(&f);
    free(copy);
    gw_clear(&w);
}

/* Values that nobody can use hinder those alone who ask for them. */
static void test_odd_values(void **state)
{
    (void)state;
    struct gguf_writer w;
    tern_error err;
    uint8_t *copy;
    int64_t i;
    double d;
    bool b;
    gw_init(&w);
    gw_u64(&w, "large", 1ull << 63);
    gw_key(&w, "flag", GW_BOOL);
    gw_put(&w.meta, "\x02", 1);
    gw_array(&w, "list", GW_U64, (uint64_t[]){1, UINT64_MAX}, 2);
    gw_array(&w, "flags", GW_BOOL, (uint8_t[]){1, 3}, 2);
    gw_tensor(&w, "f64", TERN_F64, 1, (uint64_t[]){2}, NULL, 16);
    gw_tensor(&w, "i16", TERN_I16, 1, (uint64_t[]){3}, NULL, 6);
    gw_tensor(&w, "i8", TERN_I8, 1, (uint64_t[]){3}, NULL, 3);
    struct tern_file *f = open_good(&w, &copy);
    assert_int_equal(tern_file_n_tensors(f), 3);
    assert_int_equal(tern_file_tensor(f, "f64")->n_bytes, 16);
    assert_int_equal(tern_file_get_int(f, "large", 0, 0, INT64_MAX, &i, &err), TERN_ELIMIT);
    assert_string_equal(err.msg,
                        "m.gguf: metadata key \"large\": the value 9223372036854775808 is too large at byte 41");
    assert_int_equal(tern_file_get_float(f, "large", 0, &d, &err), TERN_ELIMIT);
    assert_int_equal(tern_file_get_bool(f, "flag", false, &b, &err), TERN_EFORMAT);
    assert_string_equal(err.msg, "m.gguf: metadata key \"flag\": the bool value is 2, neither 0 nor 1 at byte 65");
    assert_true(meta(f, "list")->odd && meta(f, "flags")->odd);
    tern_file_close(&f);
    free(copy);
    gw_clear(&w);
}

/* Enough names that the hash tables have long probe sequences if they have any. */
static void test_many_names(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct gguf_writer w;
    uint8_t *copy;
    char name[32];
    gw_init(&w);
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "blk.%d.weight", i);
        gw_tensor(&w, name, TERN_F32, 1, DIMS(1), &(float){(float)i}, 4);
        gw_u32(&w, name, (uint32_t)i);
    }
    struct tern_file *f = open_good(&w, &copy);
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "blk.%d.weight", i);
        float v;
        memcpy(&v, tern_file_tensor(f, name)->data, 4);
        assert_true(v == (float)i);
        assert_int_equal(meta(f, name)->i, i);
    }
    assert_null(tern_file_tensor(f, "blk.20000.weight"));
    assert_null(tern_file_meta(f, "blk.-1.weight"));
    tern_file_close(&f);
    free(copy);
    gw_clear(&w);
}

/* Files on disk live in a directory of their own. */
struct scratch {
    char dir[64];
    char path[160];
};

static int make_scratch(void **state)
{
    struct scratch *s = calloc(1, sizeof *s);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/test_gguf.XXXXXX");
    *state = s;
    return mkdtemp(s->dir) ? 0 : -1;
}

static const char *in_scratch(struct scratch *s, const char *name)
{
    (void)snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    return s->path;
}

static int remove_scratch(void **state)
{
    static const char *const names[] = {"a.gguf", "fifo", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                        "m-00003-of-00003.gguf"};
    struct scratch *s = *state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unlink(in_scratch(s, names[i]));
    int rc = rmdir(s->dir);
    free(s);
    return rc;
}

static void expect_open_fails(const char *path, int code, const char *text)
{
    struct tern_file *f = (struct tern_file *)1;
    tern_error err;
    int rc = tern_file_open(&f, path, &err);
    assert_null(f);
    if (rc != code || strncmp(err.msg, path, strlen(path)) != 0 || !strstr(err.msg, text))
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", path, rc, err.msg, code, text);
}

static void test_files(void **state)
{
    struct scratch *s = *state;
    struct gguf_writer w;
    struct tern_file *f;
    tern_error err;
    expect_open_fails(s->dir, TERN_ENOENT, "the directory has neither model.safetensors nor");
    const char *path = in_scratch(s, "a.gguf");
    expect_open_fails(path, TERN_ENOENT, "cannot open the file: No such file");
    assert_int_equal(fclose(fopen(path, "wb")), 0);
    expect_open_fails(path, TERN_EFORMAT, "the file is empty");

    gw_init(&w);
    gw_str(&w, "general.architecture", "llama");
    size_t n_floats = 10000; /* more than one page, so that forgetting has something to drop */
    float *data = malloc(n_floats * 4);
    for (size_t i = 0; i < n_floats; i++)
        data[i] = (float)i * 0.25f;
    gw_tensor(&w, "x", TERN_F32, 2, DIMS(100, 100), data, n_floats * 4);
    assert_int_equal(gw_save(&w, path), 0);
    assert_int_equal(tern_file_open(&f, path, &err), 0);
    const struct tern_tensor *t = tern_file_tensor(f, "x");
    assert_string_equal(tern_file_path(f), path);
    assert_string_equal(tern_file_tensor_path(f, t), path);
    assert_int_equal(tern_file_bytes(f), w.file.n);
    assert_memory_equal(t->data, data, n_floats * 4);
    tern_file_forget(f, t);
    assert_memory_equal(t->data, data, n_floats * 4);
    tern_file_close(&f);

    if (geteuid() != 0) { /* the superuser may read everything */
        assert_int_equal(chmod(path, 0), 0);
        expect_open_fails(path, TERN_EIO, "cannot open the file: Permission denied");
    }
    free(data);
    gw_clear(&w);
    path = in_scratch(s, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_open_fails(path, TERN_EINVAL, "is not a regular file");
}

/* One part of a set of three with two tensors each, called t<2*no> and t<2*no+1>. */
struct part {
    int no, count, n_tensors; /* as the metadata says */
    const char *extra;        /* name of the second tensor, or NULL for the usual one */
};

static void save_part(struct scratch *s, int place, struct part p)
{
    struct gguf_writer w;
    char name[32];
    gw_init(&w);
    if (place == 0) {
        gw_str(&w, "general.architecture", "llama");
        gw_alignment(&w, 128);
    }
    uint16_t no = (uint16_t)p.no, count = (uint16_t)p.count;
    gw_scalar(&w, "split.no", GW_U16, &no);
    gw_scalar(&w, "split.count", GW_U16, &count);
    gw_i32(&w, "split.tensors.count", p.n_tensors);
    for (int k = 0; k < 2; k++) {
        (void)snprintf(name, sizeof name, "t%d", place * 2 + k);
        gw_tensor(&w, k == 1 && p.extra ? p.extra : name, TERN_F32, 1, DIMS(3), (float[]){(float)place, (float)k, 7},
                  12);
    }
    (void)snprintf(name, sizeof name, "m-%05d-of-00003.gguf", place + 1);
    assert_int_equal(gw_save(&w, in_scratch(s, name)), 0);
    gw_clear(&w);
}

static void save_set(struct scratch *s)
{
    for (int i = 0; i < 3; i++)
        save_part(s, i, (struct part){i, 3, 6, NULL});
}

static void test_split(void **state)
{
    struct scratch *s = *state;
    tern_error err;
    char name[32];
    save_set(s);
    for (int from = 0; from < 3; from++) {
        struct tern_file *f;
        (void)snprintf(name, sizeof name, "m-%05d-of-00003.gguf", from + 1);
        if (tern_file_open(&f, in_scratch(s, name), &err) < 0)
            fail_msg("%s", err.msg);
        assert_string_equal(tern_file_path(f), s->path);
        assert_int_equal(tern_file_n_tensors(f), 6);
        assert_int_equal(tern_file_n_meta(f), 5); /* those of the first part, wherever we entered */
        assert_non_null(tern_file_meta(f, "general.architecture"));
        size_t sum = 0;
        for (int i = 0; i < 3; i++) {
            struct stat st;
            (void)snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i + 1);
            assert_int_equal(stat(in_scratch(s, name), &st), 0);
            sum += (size_t)st.st_size;
            for (int k = 0; k < 2; k++) {
                char tensor[16];
                float want[3] = {(float)i, (float)k, 7};
                (void)snprintf(tensor, sizeof tensor, "t%d", i * 2 + k);
                const struct tern_tensor *t = tern_file_tensor(f, tensor);
                assert_ptr_equal(t, tern_file_tensor_at(f, (size_t)(i * 2 + k)));
                assert_memory_equal(t->data, want, 12);
                assert_string_equal(tern_file_tensor_path(f, t), s->path);
            }
        }
        assert_int_equal(tern_file_bytes(f), sum);
        tern_file_close(&f);
    }
}

static void expect_set_fails(struct scratch *s, int from, int named, int code, const char *text)
{
    char name[32], path[160];
    struct tern_file *f;
    tern_error err;
    (void)snprintf(name, sizeof name, "m-%05d-of-00003.gguf", from + 1);
    (void)snprintf(path, sizeof path, "%s", in_scratch(s, name));
    int rc = tern_file_open(&f, path, &err);
    assert_null(f);
    (void)snprintf(name, sizeof name, "m-%05d-of-00003.gguf: ", named + 1);
    if (rc != code || !strstr(err.msg, in_scratch(s, name)) || !strstr(err.msg, text))
        fail_msg("%d \"%s\", expected %d \"%s%s\"", rc, err.msg, code, name, text);
}

static void test_bad_split(void **state)
{
    struct scratch *s = *state;
    save_set(s);
    assert_int_equal(unlink(in_scratch(s, "m-00002-of-00003.gguf")), 0);
    expect_set_fails(s, 0, 1, TERN_ENOENT, "part 2 of 3 of the split set is missing");
    expect_set_fails(s, 2, 1, TERN_ENOENT, "part 2 of 3 of the split set is missing");
    /* Part 3 in the place of part 2. */
    save_part(s, 1, (struct part){2, 3, 6, NULL});
    expect_set_fails(s, 0, 1, TERN_EMISMATCH, "\"split.no\": 2 does not fit the rest of the split set, which wants 1,");
    expect_set_fails(s, 1, 1, TERN_EINVAL, "this is part 3 of a split set of 3 and must be named NAME-00003-of-00003");
    save_part(s, 1, (struct part){1, 2, 6, NULL});
    expect_set_fails(s, 0, 1, TERN_EMISMATCH, "\"split.count\": 2 does not fit");
    save_part(s, 1, (struct part){1, 3, 5, NULL});
    expect_set_fails(s, 0, 1, TERN_EMISMATCH, "\"split.tensors.count\": 5 does not fit");
    save_part(s, 1, (struct part){1, 3, 6, "t5"});
    expect_set_fails(s, 0, 2, TERN_EFORMAT, "tensor \"t5\": two tensors have this name");
    for (int i = 0; i < 3; i++)
        save_part(s, i, (struct part){i, 3, 7, NULL});
    expect_set_fails(s, 1, 1, TERN_EMISMATCH, "the parts of the split set hold 6 tensors, split.tensors.count says 7");
    /* Errors inside a part name that part. */
    save_set(s);
    FILE *third = fopen(in_scratch(s, "m-00003-of-00003.gguf"), "wb");
    assert_int_equal(fwrite("GGUF", 1, 4, third), 4);
    assert_int_equal(fclose(third), 0);
    expect_set_fails(s, 0, 2, TERN_EFORMAT, "the file ends inside the version");
    /* A part under a name of its own cannot find the others. */
    save_set(s);
    char from[160];
    (void)snprintf(from, sizeof from, "%s", in_scratch(s, "m-00001-of-00003.gguf"));
    assert_int_equal(rename(from, in_scratch(s, "a.gguf")), 0);
    expect_open_fails(s->path, TERN_EINVAL, "this is part 1 of a split set of 3 and must be named NAME-00001-of-00003");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_type_names),
        cmocka_unit_test(test_typed_reads),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test_setup_teardown(test_files, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(test_split, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(test_bad_split, make_scratch, remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
