/* Weight formats: dequantisation against recorded results, packing against dequantisation, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/fp16.h"
#include "base/mem.h"
#include "base/rng.h"
#include "codec/codec.h"

/* What a type looks like from outside, and the digest of 512 elements as the gguf Python package 0.19.0 dequantises
 * them.  The bytes are hash64(1000 * type id + i), with the exponents of all floats kept finite (see file_bytes); the
 * digest folds the result's bits with h = hash64(h ^ bits). */
static const struct {
    int type;
    int halves[2]; /* offsets of f16 scales in a block; -1: none */
    uint64_t digest;
} kinds[] = {
    {TERN_F32, {-1, -1}, 0xC7BE895FE3C2853Eu},   {TERN_F16, {0, -1}, 0x7BC2AE93FA1EC87Cu},
    {TERN_BF16, {0, -1}, 0x2F01ABFAE33F437Du},   {TERN_Q8_0, {0, -1}, 0x49CF573F874A6D79u},
    {TERN_Q4_0, {0, -1}, 0xF4A8E3602ADFF079u},   {TERN_Q4_1, {0, 2}, 0x11E093E56DE8BFBAu},
    {TERN_Q5_0, {0, -1}, 0x5CBE763E91905737u},   {TERN_Q5_1, {0, 2}, 0x50DF5ECD1EFEC0C5u},
    {TERN_Q4_K, {0, 2}, 0xB1D5BA88D3504FE3u},    {TERN_Q5_K, {0, 2}, 0xB2E817D3760D8F35u},
    {TERN_Q6_K, {208, -1}, 0xB153269299584703u},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* `n` blocks of made-up file bytes.  Clearing the top exponent bit of a float keeps it finite. */
static uint8_t *file_bytes(size_t kind, size_t n, uint64_t seed)
{
    size_t bytes = (size_t)tern_type_bytes(kinds[kind].type);
    uint8_t *p = malloc(n * bytes);
    assert_non_null(p);
    for (size_t i = 0; i < n * bytes; i++)
        p[i] = (uint8_t)tern_hash64(seed + i);
    for (size_t b = 0; b < n; b++) {
        if (kinds[kind].type == TERN_F32)
            p[b * bytes + 3] &= 0xBF;
        for (int h = 0; h < 2; h++) {
            if (kinds[kind].halves[h] >= 0)
                p[b * bytes + (size_t)kinds[kind].halves[h] + 1] &= 0xBF;
        }
    }
    return p;
}

static void test_dequantize(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        float out[512];
        uint64_t h = 0;
        tern_error err = {0};
        uint8_t *src = file_bytes(i, 512 / (size_t)tern_type_elems(kinds[i].type), 1000u * (uint64_t)kinds[i].type);
        assert_int_equal(tern_dequantize(out, kinds[i].type, src, 512, &err), 0);
        for (int e = 0; e < 512; e++)
            h = tern_hash64(h ^ tern_f32_bits(out[e]));
        if (h != kinds[i].digest)
            fail_msg("%s: digest %016llx", tern_type_name(kinds[i].type), (unsigned long long)h);
        free(src);
    }
}

static void test_dequantize_refuses(void **state)
{
    (void)state;
    float out[64];
    uint8_t src[256] = {0};
    tern_error err = {0};
    assert_int_equal(tern_dequantize(out, TERN_Q4_0, src, 33, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "Q4_0"));
    assert_int_equal(tern_dequantize(out, 9999, src, 32, &err), TERN_EUNSUPPORTED);
    assert_int_equal(tern_dequantize(out, TERN_Q4_0, src, 0, &err), 0);
}

/* Packs a matrix in several calls, the way threads share it, and compares every row at the current level. */
static void check_round_trip(size_t kind, int n, int k)
{
    int type = kinds[kind].type;
    tern_error err = {0};
    struct tern_packed w;
    size_t elems = (size_t)tern_type_elems(type), row_bytes = (size_t)k / elems * (size_t)tern_type_bytes(type);
    uint8_t *src = file_bytes(kind, (size_t)n * (size_t)k / elems, 77 + (uint64_t)n), *data;
    float *row = malloc((size_t)k * 4), *want = malloc((size_t)k * 4);
    assert_true(row && want);
    struct tern_weight_source source = {.type = type, .data = src, .name = "test.weight"};
    assert_int_equal(tern_weight_plan(&w, &source, n, k, &err), 0);
    assert_null(w.data);
    assert_int_equal(w.n, n);
    assert_int_equal(w.k, k);
    size_t bytes = tern_weight_bytes(&w);
    assert_int_equal(bytes % 64, 0);
    assert_int_equal(tern_alloc(&data, bytes, 1, &err), 0);
    memset(data, 0xA5, bytes);
    int panels = (n + TERN_PANEL - 1) / TERN_PANEL, half = panels / 2;
    assert_int_equal(tern_weight_pack(&w, data, &source, half, panels, &err), 0);
    assert_int_equal(tern_weight_pack(&w, data, &source, 0, half, &err), 0);
    for (size_t i = bytes - 64; i < bytes; i++) /* the readable tail is the caller's */
        assert_int_equal(data[i], 0xA5);
    w.data = data;
    for (int r = 0; r < n; r++) {
        tern_k.gemm.row(row, &w, r);
        assert_int_equal(tern_dequantize(want, type, src + (size_t)r * row_bytes, (size_t)k, &err), 0);
        if (memcmp(row, want, (size_t)k * 4))
            fail_msg("%s n=%d k=%d: row %d differs", tern_type_name(type), n, k, r);
    }
    tern_free(data);
    free(src);
    free(row);
    free(want);
}

static void test_round_trip(void **state)
{
    static const int rows[] = {1, 15, 16, 17, 33};
    static const unsigned masks[] = {0, ~0u};
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        tern_kernels_init(masks[m]);
        for (size_t i = 0; i < N_KINDS; i++) {
            int elems = tern_type_elems(kinds[i].type);
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                check_round_trip(i, rows[r], elems == 1 ? 13 : elems);
                check_round_trip(i, rows[r], elems == 1 ? 97 : 3 * elems);
            }
        }
    }
}

/* Rows that pad the last panel multiply to nothing. */
static void test_padding_rows(void **state)
{
    (void)state;
    tern_kernels_init(0);
    for (size_t i = 0; i < N_KINDS; i++) {
        int type = kinds[i].type, k = tern_type_elems(type) == 1 ? 9 : tern_type_elems(type);
        tern_error err = {0};
        struct tern_packed w;
        uint8_t *data, *src = file_bytes(i, (size_t)(3 * k / tern_type_elems(type)), 5);
        float *row = malloc((size_t)k * 4);
        struct tern_weight_source source = {.type = type, .data = src, .name = "w"};
        assert_int_equal(tern_weight_plan(&w, &source, 3, k, &err), 0);
        assert_int_equal(tern_alloc(&data, tern_weight_bytes(&w), 1, &err), 0);
        memset(data, 0x7F, tern_weight_bytes(&w));
        assert_int_equal(tern_weight_pack(&w, data, &source, 0, 1, &err), 0);
        w.data = data;
        for (int r = 3; r < TERN_PANEL; r++) {
            tern_k.gemm.row(row, &w, r);
            for (int e = 0; e < k; e++)
                assert_true(row[e] == 0.0f);
        }
        tern_free(data);
        free(src);
        free(row);
    }
}

static void test_shapes_refused(void **state)
{
    (void)state;
    static const struct {
        int type;
        int64_t n, k;
        const char *word;
    } bad[] = {
        {TERN_Q4_0, 4, 33, "33"},
        {TERN_Q4_0, 4, 31, "Q4_0"},
        {TERN_Q4_K, 4, 288, "256"},
        {TERN_Q6_K, 4, 128, "Q6_K"},
        {TERN_F32, 0, 8, "0 rows"},
        {TERN_F32, 8, 0, "of 0"},
        {TERN_F32, -1, 8, "-1"},
        {TERN_F16, INT64_MAX, 8, "outside"},
        {TERN_F16, 8, INT64_MAX, "outside"},
        {TERN_Q8_0, 8, INT32_MAX, "outside"},
        {9999, 8, 32, "9999"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_error err = {0};
        struct tern_packed w;
        struct tern_weight_source source = {.type = bad[i].type, .name = "w"};
        assert_int_equal(tern_weight_plan(&w, &source, bad[i].n, bad[i].k, &err), TERN_EUNSUPPORTED);
        if (!strstr(err.msg, bad[i].word))
            fail_msg("\"%s\" does not mention %s", err.msg, bad[i].word);
    }
}

static void expect_refusal(size_t kind, size_t block, size_t offset, const uint8_t *value, size_t value_bytes,
                           const char *what)
{
    int type = kinds[kind].type, n = 18, k = tern_type_elems(type) == 1 ? 7 : 2 * tern_type_elems(type);
    size_t per_row = (size_t)(k / tern_type_elems(type)), bytes = (size_t)tern_type_bytes(type);
    tern_error err = {0};
    struct tern_packed w;
    uint8_t *data, *src = file_bytes(kind, (size_t)n * per_row, 3);
    struct tern_weight_source source = {.type = type, .data = src, .name = "blk.7.ffn"};
    memcpy(src + block * bytes + offset, value, value_bytes);
    assert_int_equal(tern_weight_plan(&w, &source, n, k, &err), 0);
    assert_int_equal(tern_alloc(&data, tern_weight_bytes(&w), 1, &err), 0);
    assert_int_equal(tern_weight_pack(&w, data, &source, 0, 2, &err), TERN_EFORMAT);
    char row[32], at[32];
    snprintf(row, sizeof row, "row %zu ", block / per_row);
    snprintf(at, sizeof at, "byte %zu ", block * bytes);
    if (!strstr(err.msg, "blk.7.ffn") || !strstr(err.msg, row) || !strstr(err.msg, at) || !strstr(err.msg, what))
        fail_msg("%s: \"%s\" should name blk.7.ffn, %s, %s and %s", tern_type_name(type), err.msg, row, at, what);
    tern_free(data);
    free(src);
}

static void test_non_finite_refused(void **state)
{
    static const uint8_t inf16[] = {0x00, 0xFC}, nan16[] = {0x01, 0x7C}, nan32[] = {0x01, 0x00, 0x80, 0x7F},
                         inf_b16[] = {0x80, 0x7F};
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        int type = kinds[i].type;
        if (type == TERN_F32) {
            expect_refusal(i, 20, 0, nan32, 4, "weight");
        } else if (type == TERN_BF16) {
            expect_refusal(i, 125, 0, inf_b16, 2, "weight");
        } else if (type == TERN_F16) {
            expect_refusal(i, 0, 0, nan16, 2, "weight");
        } else {
            expect_refusal(i, 35, (size_t)kinds[i].halves[0], inf16, 2, "scale");
            expect_refusal(i, 0, (size_t)kinds[i].halves[0], nan16, 2, "scale");
            if (kinds[i].halves[1] >= 0)
                expect_refusal(i, 17, (size_t)kinds[i].halves[1], nan16, 2, "minimum");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dequantize),     cmocka_unit_test(test_dequantize_refuses),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_padding_rows),
        cmocka_unit_test(test_shapes_refused), cmocka_unit_test(test_non_finite_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
