/* The head of a GGUF file as it is written: what tern_file_open reads back, values of every kind, and tensors in their
 * places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "file/gguf_write.h"
#include "gguf_writer.h"

static struct tern_file *open_bytes(const struct tern_buf *b)
{
    tern_error err = {0};
    struct tern_file *f;
    if (tern_file_open_memory(&f, b->p, b->len, "written", &err) < 0)
        fail_msg("%s", err.msg);
    return f;
}

static void test_empty(void **state)
{
    struct tern_gguf g = {0};
    struct tern_buf b = {0};
    (void)state;
    assert_int_equal(tern_gguf_head(&g, &b, NULL), 0);
    assert_int_equal(b.len, 32);
    struct tern_file *f = open_bytes(&b);
    assert_int_equal(tern_file_n_meta(f), 0);
    assert_int_equal(tern_file_n_tensors(f), 0);
    tern_file_close(&f);
    tern_buf_clear(&b);
    tern_gguf_clear(&g);
}

static void test_values(void **state)
{
    static const int32_t ints[] = {-1, 0, INT32_MAX};
    static const float floats[] = {0.5f, -3e38f};
    static const struct tern_str texts[] = {{"a\0b", 3}, {NULL, 0}, {"xyz", 3}};
    struct tern_gguf g = {0};
    struct tern_buf b = {0};
    (void)state;
    assert_int_equal(tern_gguf_put_u32(&g, "u", UINT32_MAX, NULL), 0);
    assert_int_equal(tern_gguf_put_f32(&g, "f", 0.1f, NULL), 0);
    assert_int_equal(tern_gguf_put_bool(&g, "b", true, NULL), 0);
    assert_int_equal(tern_gguf_put_str(&g, "s", "", 0, NULL), 0);
    assert_int_equal(tern_gguf_put_i32s(&g, "is", ints, 3, NULL), 0);
    assert_int_equal(tern_gguf_put_i32s(&g, "none", NULL, 0, NULL), 0);
    assert_int_equal(tern_gguf_put_f32s(&g, "fs", floats, 2, NULL), 0);
    assert_int_equal(tern_gguf_put_strs(&g, "ss", texts, 3, NULL), 0);
    assert_int_equal(tern_gguf_head(&g, &b, NULL), 0);
    assert_int_equal(b.len % TERN_GGUF_ALIGN, 0);
    struct tern_file *f = open_bytes(&b);
    assert_int_equal(tern_file_n_meta(f), 8);
    assert_int_equal(tern_file_meta(f, "u")->i, UINT32_MAX);
    assert_true(tern_file_meta(f, "f")->f == (double)0.1f);
    assert_int_equal(tern_file_meta(f, "b")->type, TERN_META_BOOL);
    assert_int_equal(tern_file_meta(f, "b")->i, 1);
    assert_int_equal(tern_file_meta(f, "s")->s.n, 0);
    assert_memory_equal(((const int64_t[]){-1, 0, INT32_MAX}), tern_file_meta(f, "is")->arr, 24);
    assert_int_equal(tern_file_meta(f, "none")->n, 0);
    assert_true(((const double *)tern_file_meta(f, "fs")->arr)[1] == (double)-3e38f);
    const struct tern_str *s = tern_file_meta(f, "ss")->arr;
    assert_int_equal(tern_file_meta(f, "ss")->n, 3);
    assert_int_equal(s[0].n, 3);
    assert_memory_equal(s[0].p, "a\0b", 3);
    assert_int_equal(s[1].n, 0);
    tern_file_close(&f);
    tern_buf_clear(&b);
    tern_gguf_clear(&g);
}

/* Entries of a file keep value and type, whatever they are. */
static void test_copies(void **state)
{
    struct gguf_writer w;
    struct tern_gguf g = {0};
    struct tern_buf from = {0}, b = {0};
    size_t n;
    (void)state;
    gw_init(&w);
    gw_scalar(&w, "u8", GW_U8, &(uint8_t){200});
    gw_scalar(&w, "i8", GW_I8, &(int8_t){-100});
    gw_scalar(&w, "u16", GW_U16, &(uint16_t){60000});
    gw_scalar(&w, "i16", GW_I16, &(int16_t){-30000});
    gw_u32(&w, "u32", 4000000000u);
    gw_i32(&w, "i32", -7);
    gw_u64(&w, "u64", (uint64_t)1 << 40);
    gw_scalar(&w, "i64", GW_I64, &(int64_t){-((int64_t)1 << 40)});
    gw_f32(&w, "f32", 0.1f);
    gw_scalar(&w, "f64", GW_F64, &(double){0.1});
    gw_bool(&w, "bool", 1);
    gw_str(&w, "str", "text");
    gw_array(&w, "u16s", GW_U16, (const uint16_t[]){1, 65535, 3}, 3);
    gw_array(&w, "f64s", GW_F64, (const double[]){0.1, 1e300}, 2);
    gw_array(&w, "bools", GW_BOOL, (const uint8_t[]){1, 0, 1}, 3);
    gw_str_array(&w, "strs", (const char *const[]){"x", "", "zz"}, 3);
    const uint8_t *p = gw_finish(&w, &n);
    assert_int_equal(tern_buf_add(&from, p, n, NULL), 0);
    struct tern_file *f = open_bytes(&from);
    for (size_t i = 0; i < tern_file_n_meta(f); i++)
        assert_int_equal(tern_gguf_put_meta(&g, tern_file_meta_at(f, i), i % 2, NULL), 0);
    assert_int_equal(tern_gguf_head(&g, &b, NULL), 0);
    assert_true(b.len >= n && b.len < n + TERN_GGUF_ALIGN);
    assert_memory_equal(b.p, p, n); /* the same bytes */
    tern_file_close(&f);
    gw_clear(&w);
    tern_gguf_clear(&g);
    tern_buf_clear(&from);
    tern_buf_clear(&b);
}

/* Entries that come from elsewhere get the types that readers of GGUF want. */
static void test_types_chosen(void **state)
{
    static const int64_t small[] = {1, -2}, large[] = {1, (int64_t)1 << 33};
    static const struct tern_meta entries[] = {
        {.key = "u32", .type = TERN_META_INT, .i = 5, .f = 5},
        {.key = "i64", .type = TERN_META_INT, .i = -5, .f = -5},
        {.key = "f32", .type = TERN_META_INT, .i = 10000, .f = 10000},
        {.key = "i32s", .type = TERN_META_ARRAY, .elem = TERN_META_INT, .n = 2, .arr = small},
        {.key = "i64s", .type = TERN_META_ARRAY, .elem = TERN_META_INT, .n = 2, .arr = large},
        {.key = "float", .type = TERN_META_FLOAT, .f = 0.25},
    };
    static const uint8_t want[] = {GW_U32, GW_I64, GW_F32, GW_I32, GW_I64, GW_F32};
    struct tern_gguf g = {0};
    struct tern_buf b = {0};
    (void)state;
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(tern_gguf_put_meta(&g, &entries[i], i == 2, NULL), 0);
    assert_int_equal(tern_gguf_head(&g, &b, NULL), 0);
    struct tern_file *f = open_bytes(&b);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(tern_file_meta(f, entries[i].key)->stored, 1 + want[i]);
    assert_true(tern_file_meta(f, "f32")->f == 10000);
    assert_int_equal(((const int64_t *)tern_file_meta(f, "i64s")->arr)[1], large[1]);
    tern_file_close(&f);
    tern_buf_clear(&b);
    tern_gguf_clear(&g);
}

static void test_tensors(void **state)
{
    struct tern_gguf g = {0};
    struct tern_buf b = {0};
    tern_error err = {0};
    uint64_t at[3], n[3];
    char name[65];
    (void)state;
    assert_int_equal(tern_gguf_tensor(&g, "a", TERN_F32, 1, (const int64_t[]){5}, &at[0], &n[0], NULL), 0);
    assert_int_equal(tern_gguf_tensor(&g, "b", TERN_Q4_0, 2, (const int64_t[]){64, 3}, &at[1], &n[1], NULL), 0);
    assert_int_equal(tern_gguf_tensor(&g, "c", TERN_F16, 3, (const int64_t[]){2, 3, 4}, &at[2], &n[2], NULL), 0);
    assert_true(at[0] == 0 && n[0] == 20 && at[1] == 32 && n[1] == 108 && at[2] == 160 && n[2] == 48);
    assert_int_equal(g.data_bytes, 224);
    assert_int_equal(tern_gguf_head(&g, &b, NULL), 0);
    const size_t head = b.len;
    for (int i = 0; i < 224; i++)
        assert_int_equal(tern_buf_addc(&b, (char)i, NULL), 0);
    struct tern_file *f = open_bytes(&b);
    assert_int_equal(tern_file_n_tensors(f), 3);
    const struct tern_tensor *t = tern_file_tensor(f, "b");
    assert_true(t->type == TERN_Q4_0 && t->n_dims == 2 && t->dims[0] == 64 && t->dims[1] == 3 && t->n_bytes == 108);
    assert_int_equal(t->file_offset, head + 32);
    assert_int_equal(*(const uint8_t *)tern_file_tensor(f, "c")->data, 160);
    tern_file_close(&f);
    assert_int_equal(tern_gguf_tensor(&g, "d", TERN_Q4_0, 2, (const int64_t[]){48, 3}, &at[0], &n[0], &err),
                     TERN_EINVAL);
    assert_non_null(strstr(err.msg, "\"d\": rows of 48"));
    assert_int_equal(tern_gguf_tensor(&g, "e", TERN_F32, 2, (const int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40},
                                      &at[0], &n[0], &err),
                     TERN_ELIMIT);
    memset(name, 'x', 64);
    name[64] = 0;
    assert_int_equal(tern_gguf_tensor(&g, name, TERN_F32, 1, (const int64_t[]){1}, &at[0], &n[0], &err), TERN_ELIMIT);
    assert_int_equal(tern_gguf_tensor(&g, name + 1, TERN_F32, 1, (const int64_t[]){1}, &at[0], &n[0], &err), 0);
    tern_buf_clear(&b);
    tern_gguf_clear(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),        cmocka_unit_test(test_values),  cmocka_unit_test(test_copies),
        cmocka_unit_test(test_types_chosen), cmocka_unit_test(test_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
