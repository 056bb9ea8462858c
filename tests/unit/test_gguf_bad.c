/* GGUF reading: every kind of lie that a file can tell, and what the message says about it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/* A small file with some of everything, ending in the last byte of a tensor. */
static void build_small(struct gguf_writer *w)
{
    gw_init(w);
    gw_str(w, "general.architecture", "llama");
    gw_alignment(w, 64);
    gw_f32(w, "eps", 1e-6f);
    gw_bool(w, "flag", 1);
    gw_array(w, "list", GW_I32, (int32_t[]){1, 2, 3}, 3);
    gw_str_array(w, "words", (const char *const[]){"a", "", "bc"}, 3);
    gw_tensor(w, "first", TERN_F32, 2, DIMS(3, 2), NULL, 24);
    gw_tensor(w, "second", TERN_Q8_0, 1, DIMS(32), NULL, 34);
}

/* Touches everything that an open file offers. */
static uint64_t walk(const struct tern_file *f)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < tern_file_n_meta(f); i++) {
        const struct tern_meta *m = tern_file_meta_at(f, i);
        assert_ptr_equal(tern_file_meta(f, m->key), m);
        for (size_t k = 0; k < m->s.n; k++)
            sum += (uint8_t)m->s.p[k];
        for (size_t k = 0; m->type == TERN_META_ARRAY && k < m->n; k++) {
            const struct tern_str *s = m->arr;
            if (m->elem != TERN_META_STRING)
                sum += ((const uint64_t *)m->arr)[k];
            else if (s[k].n)
                sum += (uint8_t)s[k].p[0] + (uint8_t)s[k].p[s[k].n - 1];
        }
    }
    for (size_t i = 0; i < tern_file_n_tensors(f); i++) {
        const struct tern_tensor *t = tern_file_tensor_at(f, i);
        assert_ptr_equal(tern_file_tensor(f, t->name), t);
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += ((const uint8_t *)t->data)[k];
    }
    return sum;
}

static void test_truncated(void **state)
{
    (void)state;
    struct gguf_writer w;
    struct tern_file *f;
    tern_error err;
    uint8_t *copy;
    size_t n;
    build_small(&w);
    const uint8_t *bytes = gw_finish(&w, &n);
    for (size_t len = 0; len < n; len++) {
        int rc = open_copy(&f, bytes, len, &copy, &err);
        assert_int_equal(rc, TERN_EFORMAT);
        assert_int_equal(err.code, rc);
        assert_null(f);
        assert_memory_equal(err.msg, "m.gguf: ", 8);
        assert_true(len == 0 || strstr(err.msg, "at byte "));
        free(copy);
    }
    gw_put(&w.data, "trailing bytes do no harm", 25);
    bytes = gw_finish(&w, &n);
    for (size_t len = n - 25; len <= n; len++) {
        assert_int_equal(open_copy(&f, bytes, len, &copy, &err), 0);
        (void)walk(f);
        tern_file_close(&f);
        free(copy);
    }
    gw_clear(&w);
}

/* Every single-byte change either fails with a message or leaves a file that can be walked. */
static void test_one_byte_changed(void **state)
{
    (void)state;
    static const uint8_t masks[] = {0x01, 0x02, 0x08, 0x20, 0x80, 0xFF};
    struct gguf_writer w;
    struct tern_file *f;
    tern_error err;
    uint8_t *copy;
    size_t n, failed = 0, opened = 0;
    build_small(&w);
    (void)gw_finish(&w, &n);
    for (size_t at = 0; at < n; at++)
        for (size_t k = 0; k < sizeof masks; k++) {
            w.file.p[at] ^= masks[k];
            int rc = open_copy(&f, w.file.p, n, &copy, &err);
            w.file.p[at] ^= masks[k];
            if (rc < 0) {
                failed++;
                assert_int_equal(err.code, rc);
                assert_memory_equal(err.msg, "m.gguf: ", 8);
            } else {
                opened++;
                (void)walk(f);
                tern_file_close(&f);
            }
            free(copy);
        }
    assert_true(failed > 500 && opened > 500);
    gw_clear(&w);
}

static void bad_magic(struct gguf_writer *w)
{
    w->magic[3] = 'V';
}
static void bad_version_1(struct gguf_writer *w)
{
    w->version = 1;
}
static void bad_version_4(struct gguf_writer *w)
{
    w->version = 4;
}
static void bad_big_endian(struct gguf_writer *w)
{
    w->version = 3u << 24;
}
static void bad_n_tensors(struct gguf_writer *w)
{
    w->n_tensors = 1ull << 60;
}
static void bad_n_tensors_32(struct gguf_writer *w)
{
    w->n_tensors = 1ull << 32;
}
static void bad_n_meta(struct gguf_writer *w)
{
    w->n_meta = 1ull << 32;
}
static void bad_n_meta_one_more(struct gguf_writer *w)
{
    w->n_meta++;
}
static void bad_empty_key(struct gguf_writer *w)
{
    gw_u32(w, "", 1);
}
static void bad_nul_key(struct gguf_writer *w)
{
    gw_put_str(&w->meta, "a\0b", 3);
    gw_put_u32(&w->meta, GW_U32);
    gw_put_u32(&w->meta, 7);
    w->n_meta++;
}
static void bad_long_key(struct gguf_writer *w)
{
    gw_put_u64(&w->meta, 65537);
    gw_put_zeros(&w->meta, 65537);
    gw_put_u64(&w->meta, 0);
    w->n_meta++;
}
static void bad_key_length(struct gguf_writer *w)
{
    gw_put_u64(&w->meta, 1ull << 63);
    gw_put_zeros(&w->meta, 16);
    w->n_meta++;
}
static void bad_duplicate_key(struct gguf_writer *w)
{
    gw_u32(w, "twice", 1);
    gw_f32(w, "twice", 1);
}
static void bad_value_type(struct gguf_writer *w)
{
    gw_key(w, "odd", 13);
    gw_put_u64(&w->meta, 0);
}
static void bad_string_length(struct gguf_writer *w)
{
    gw_key(w, "text", GW_STRING);
    gw_put_u64(&w->meta, UINT64_MAX);
}
static void bad_array_count(struct gguf_writer *w)
{
    gw_array(w, "list", GW_U32, NULL, 0);
    memcpy(w->meta.p + w->meta.n - 8, &(uint64_t){1ull << 60}, 8);
}
static void bad_array_count_one_more(struct gguf_writer *w)
{
    gw_array(w, "list", GW_U32, (uint32_t[]){1, 2}, 2);
    memcpy(w->meta.p + w->meta.n - 16, &(uint64_t){3}, 8);
}
static void bad_array_count_strings(struct gguf_writer *w)
{
    gw_str_array(w, "words", (const char *const[]){"x"}, 1);
    memcpy(w->meta.p + w->meta.n - 17, &(uint64_t){1ull << 61}, 8);
}
static void bad_array_string(struct gguf_writer *w)
{
    gw_str_array(w, "words", (const char *const[]){"xyz"}, 1);
    memcpy(w->meta.p + w->meta.n - 11, &(uint64_t){1u << 20}, 8);
}
static void bad_array_type(struct gguf_writer *w)
{
    gw_array(w, "list", GW_U32, NULL, 0);
    memcpy(w->meta.p + w->meta.n - 12, &(uint32_t){77}, 4);
}
static void bad_nested(struct gguf_writer *w)
{
    gw_array(w, "lists", GW_ARRAY, NULL, 0);
}
static void bad_alignment_0(struct gguf_writer *w)
{
    gw_u32(w, "general.alignment", 0);
}
static void bad_alignment_24(struct gguf_writer *w)
{
    gw_u32(w, "general.alignment", 24);
}
static void bad_alignment_large(struct gguf_writer *w)
{
    gw_u32(w, "general.alignment", 131072);
}
static void bad_alignment_type(struct gguf_writer *w)
{
    gw_str(w, "general.alignment", "32");
}
static void bad_dims_0(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 0, NULL, NULL, 64);
}
static void bad_dims_5(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 5, DIMS(1, 1, 1, 1, 1), NULL, 64);
}
static void bad_dim_zero(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 3, DIMS(2, 0, 2), NULL, 64);
}
static void bad_dim_product(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 3, DIMS(1ull << 31, 1ull << 31, 1ull << 31), NULL, 64);
}
static void bad_dim_product_to_zero(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 2, DIMS(1ull << 32, 1ull << 32), NULL, 64);
}
static void bad_dim_product_above_int64(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_Q4_0, 2, DIMS(1ull << 62, 2), NULL, 64); /* its bytes would fit in 64 bits */
}
static void bad_dim_negative(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 1, DIMS(UINT64_MAX), NULL, 64);
}
static void bad_bytes_overflow(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 2, DIMS(1ull << 62, 1), NULL, 64);
}
static void bad_type(struct gguf_writer *w)
{
    gw_tensor(w, "x", 19, 1, DIMS(256), NULL, 50);
}
static void bad_type_99(struct gguf_writer *w)
{
    gw_tensor(w, "x", 99, 1, DIMS(256), NULL, 74);
}
static void bad_type_huge(struct gguf_writer *w)
{
    gw_tensor(w, "x", 3000000000u, 1, DIMS(256), NULL, 74);
}
static void bad_row(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_Q4_K, 2, DIMS(320, 4), NULL, 720);
}
static void bad_misaligned(struct gguf_writer *w)
{
    gw_tensor_info(w, "x", TERN_F32, 1, DIMS(2), 8);
    gw_put_zeros(&w->data, 64);
}
static void bad_offset(struct gguf_writer *w)
{
    gw_tensor_info(w, "x", TERN_F32, 1, DIMS(2), 64);
    gw_put_zeros(&w->data, 64);
}
static void bad_offset_wrap(struct gguf_writer *w)
{
    gw_tensor_info(w, "x", TERN_F32, 1, DIMS(64), UINT64_MAX - 31);
    gw_put_zeros(&w->data, 64);
}
static void bad_past_end(struct gguf_writer *w)
{
    gw_tensor_info(w, "x", TERN_F32, 1, DIMS(17), 0);
    gw_put_zeros(&w->data, 64);
}
static void bad_no_data(struct gguf_writer *w)
{
    gw_tensor_info(w, "x", TERN_F32, 1, DIMS(1), 0);
}
static void bad_overlap(struct gguf_writer *w)
{
    gw_tensor_info(w, "later", TERN_F32, 1, DIMS(8), 32);
    gw_tensor_info(w, "earlier", TERN_F32, 1, DIMS(9), 0);
    gw_put_zeros(&w->data, 64);
}
static void bad_overlap_by_one_byte(struct gguf_writer *w)
{
    gw_alignment(w, 1);
    gw_tensor_info(w, "lo", TERN_F32, 1, DIMS(2), 0);
    gw_tensor_info(w, "hi", TERN_F32, 1, DIMS(2), 7);
    gw_put_zeros(&w->data, 64);
}
static void bad_same_offset(struct gguf_writer *w)
{
    gw_tensor_info(w, "x", TERN_F32, 1, DIMS(1), 0);
    gw_tensor_info(w, "y", TERN_F32, 1, DIMS(1), 0);
    gw_put_zeros(&w->data, 64);
}
static void bad_duplicate_tensor(struct gguf_writer *w)
{
    gw_tensor(w, "x", TERN_F32, 1, DIMS(1), NULL, 4);
    gw_tensor(w, "y", TERN_F32, 1, DIMS(1), NULL, 4);
    gw_tensor(w, "x", TERN_F32, 1, DIMS(1), NULL, 4);
}
static void bad_tensor_name_empty(struct gguf_writer *w)
{
    gw_tensor(w, "", TERN_F32, 1, DIMS(1), NULL, 4);
}
static void bad_tensor_name_long(struct gguf_writer *w)
{
    char name[258];
    memset(name, 'n', 257);
    name[257] = 0;
    gw_tensor(w, name, TERN_F32, 1, DIMS(1), NULL, 4);
}
static void bad_tensor_name_nul(struct gguf_writer *w)
{
    gw_tensor(w, "xyz", TERN_F32, 1, DIMS(1), NULL, 4);
    w->infos.p[8 + 1] = 0;
}
static void bad_escape_in_name(struct gguf_writer *w)
{
    gw_tensor(w, "x\033[2J", 99, 1, DIMS(1), NULL, 4);
}
static void bad_split_count(struct gguf_writer *w)
{
    gw_u32(w, "split.count", 100000);
}
static void bad_split_memory(struct gguf_writer *w)
{
    gw_u32(w, "split.count", 2);
    gw_u32(w, "split.no", 1);
    gw_i32(w, "split.tensors.count", 0);
}
static void bad_split_no(struct gguf_writer *w)
{
    gw_u32(w, "split.count", 2);
    gw_u32(w, "split.no", 2);
}
static void bad_split_no_missing(struct gguf_writer *w)
{
    gw_u32(w, "split.count", 2);
}

static const struct bad_file {
    void (*build)(struct gguf_writer *w);
    int code;
    const char *text; /* what stands between "m.gguf: " and the end of the message */
} bad_files[] = {
    {bad_magic, TERN_EFORMAT, "this is not a GGUF file: it starts with 47 47 55 56 at byte 0"},
    {bad_version_1, TERN_EUNSUPPORTED, "GGUF version 1 is not supported (2 and 3 are) at byte 4"},
    {bad_version_4, TERN_EUNSUPPORTED, "GGUF version 4 is not supported (2 and 3 are) at byte 4"},
    {bad_big_endian, TERN_EUNSUPPORTED,
     "the file is big-endian (its version reads as 50331648), which is not supported at byte 4"},
    {bad_n_tensors, TERN_EFORMAT, "the number of tensors is 1152921504606846976, but only 26 bytes follow at byte 8"},
    {bad_n_tensors_32, TERN_EFORMAT, "the number of tensors is 4294967296, but only 26 bytes follow at byte 8"},
    {bad_n_meta, TERN_EFORMAT, "the number of metadata entries is 4294967296, but only 18 bytes follow at byte 16"},
    {bad_n_meta_one_more, TERN_EFORMAT, "the number of metadata entries is 2, but only 18 bytes follow at byte 16"},
    {bad_empty_key, TERN_EFORMAT, "metadata key 1: the name is empty at byte 42"},
    {bad_nul_key, TERN_EFORMAT, "metadata key 1: the name contains a NUL byte at byte 42"},
    {bad_long_key, TERN_ELIMIT, "metadata key 1: the name has 65537 bytes, more than the 65536 allowed at byte 42"},
    {bad_key_length, TERN_EFORMAT,
     "metadata key 1: the name claims 9223372036854775808 bytes, but only 16 are left at byte 42"},
    {bad_duplicate_key, TERN_EFORMAT, "metadata key \"twice\": the key appears twice, the second time at byte 63"},
    {bad_value_type, TERN_EFORMAT, "metadata key \"odd\": there is no value type 13 at byte 53"},
    {bad_string_length, TERN_EFORMAT,
     "metadata key \"text\": the string claims 18446744073709551615 bytes, but only 0 are left at byte 58"},
    {bad_array_count, TERN_EFORMAT,
     "metadata key \"list\": the array claims 1152921504606846976 elements, but only 0 bytes are left at byte 62"},
    {bad_array_count_one_more, TERN_EFORMAT,
     "metadata key \"list\": the array claims 3 elements, but only 8 bytes are left at byte 62"},
    {bad_array_count_strings, TERN_EFORMAT,
     "metadata key \"words\": the array claims 2305843009213693952 elements, but only 9 bytes are left at byte 63"},
    {bad_array_string, TERN_EFORMAT,
     "metadata key \"words\": a string of the array claims 1048576 bytes, but only 3 are left at byte 71"},
    {bad_array_type, TERN_EFORMAT, "metadata key \"list\": there is no value type 77 at byte 58"},
    {bad_nested, TERN_EUNSUPPORTED, "metadata key \"lists\": arrays of arrays are not supported at byte 59"},
    {bad_alignment_0, TERN_EFORMAT, "metadata key \"general.alignment\": 0 is outside 1 to 65536 at byte 71"},
    {bad_alignment_24, TERN_EFORMAT, "metadata key \"general.alignment\": 24 is not a power of two at byte 71"},
    {bad_alignment_large, TERN_EFORMAT, "metadata key \"general.alignment\": 131072 is outside 1 to 65536 at byte 71"},
    {bad_alignment_type, TERN_EFORMAT,
     "metadata key \"general.alignment\": a string where an integer is wanted at byte 71"},
    {bad_dims_0, TERN_EFORMAT, "tensor \"x\": the number of dimensions is 0, not 1 to 4 at byte 51"},
    {bad_dims_5, TERN_EFORMAT, "tensor \"x\": the number of dimensions is 5, not 1 to 4 at byte 51"},
    {bad_dim_zero, TERN_EFORMAT, "tensor \"x\": dimension 1 is 0 at byte 63"},
    {bad_dim_product, TERN_EFORMAT,
     "tensor \"x\": dimension 2 is 2147483648, which makes the tensor too large at byte 71"},
    {bad_dim_product_to_zero, TERN_EFORMAT,
     "tensor \"x\": dimension 1 is 4294967296, which makes the tensor too large at byte 63"},
    {bad_dim_product_above_int64, TERN_EFORMAT,
     "tensor \"x\": dimension 1 is 2, which makes the tensor too large at byte 63"},
    {bad_dim_negative, TERN_EFORMAT,
     "tensor \"x\": dimension 0 is 18446744073709551615, which makes the tensor too large at byte 55"},
    {bad_bytes_overflow, TERN_EFORMAT, "tensor \"x\": 4611686018427387904 elements of F32 are too large at byte 71"},
    {bad_type, TERN_EUNSUPPORTED, "tensor \"x\": type IQ1_S is not supported at byte 63"},
    {bad_type_99, TERN_EUNSUPPORTED, "tensor \"x\": type 99 is not supported at byte 63"},
    {bad_type_huge, TERN_EUNSUPPORTED, "tensor \"x\": type 3000000000 is not supported at byte 63"},
    {bad_row, TERN_EFORMAT, "tensor \"x\": the row length 320 is not a multiple of the 256 of a Q4_K block at byte 71"},
    {bad_misaligned, TERN_EFORMAT, "tensor \"x\": the data offset 8 is not a multiple of the alignment 32 at byte 67"},
    {bad_offset, TERN_EFORMAT,
     "tensor \"x\": 8 bytes of data at offset 64 of the data section lie beyond the end of the file at byte 160"},
    {bad_offset_wrap, TERN_EFORMAT,
     "tensor \"x\": 256 bytes of data at offset 18446744073709551584 of the data section lie beyond the end of the "
     "file at byte 160"},
    {bad_past_end, TERN_EFORMAT,
     "tensor \"x\": 68 bytes of data at offset 0 of the data section lie beyond the end of the file at byte 160"},
    {bad_no_data, TERN_EFORMAT,
     "tensor \"x\": 4 bytes of data at offset 0 of the data section lie beyond the end of the file at byte 75"},
    {bad_overlap, TERN_EFORMAT, "tensor \"later\": its data overlaps that of tensor \"earlier\" at byte 160"},
    {bad_overlap_by_one_byte, TERN_EFORMAT, "tensor \"hi\": its data overlaps that of tensor \"lo\" at byte "},
    {bad_same_offset, TERN_EFORMAT, "its data overlaps that of tensor "},
    {bad_duplicate_tensor, TERN_EFORMAT,
     "tensor \"x\": two tensors have this name, the second one with data at byte 224"},
    {bad_tensor_name_empty, TERN_EFORMAT, "tensor 0: the name is empty at byte 42"},
    {bad_tensor_name_long, TERN_ELIMIT, "tensor 0: the name has 257 bytes, more than the 256 allowed at byte 42"},
    {bad_tensor_name_nul, TERN_EFORMAT, "tensor 0: the name contains a NUL byte at byte 42"},
    {bad_escape_in_name, TERN_EUNSUPPORTED, "tensor \"x?[2J\": type 99 is not supported at byte "},
    {bad_split_count, TERN_EFORMAT, "metadata key \"split.count\": 100000 is outside 0 to 1024 at byte 65"},
    {bad_split_memory, TERN_EUNSUPPORTED, "part 2 of a split set of 2 cannot be opened from memory"},
    {bad_split_no, TERN_EFORMAT, "metadata key \"split.no\": 2 is outside 0 to 1 at byte "},
    {bad_split_no_missing, TERN_EFORMAT, "the metadata key \"split.no\" is missing"},
};

static void test_malformed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        const struct bad_file *b = &bad_files[i];
        struct gguf_writer w;
        struct tern_file *f;
        tern_error err;
        uint8_t *copy;
        size_t n;
        gw_init(&w);
        gw_bool(&w, "sound", 1); /* 18 bytes behind the header's 24: what the case adds begins at byte 42 */
        b->build(&w);
        const uint8_t *bytes = gw_finish(&w, &n);
        int rc = open_copy(&f, bytes, n, &copy, &err);
        assert_null(f);
        if (rc != b->code || err.code != rc || strncmp(err.msg, "m.gguf: ", 8) != 0 || !strstr(err.msg, b->text))
            fail_msg("case %zu: %d \"%s\", expected %d \"%s\"", i, rc, err.msg, b->code, b->text);
        /* A caller that does not want the message gets the same answer. */
        assert_int_equal(tern_file_open_memory(&f, copy, n, "m.gguf", NULL), rc);
        free(copy);
        gw_clear(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_one_byte_changed),
        cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
