/* Weight formats: dequantisation against recorded results, packing against dequantisation, refusals. */
#include <math.h>
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

/* What a type looks like from outside, and the digest of 512 elements as others dequantise them:
 * tools/weight_digests.py computes it, and says which bytes (see file_bytes) and which digest. */
static const struct {
    int type;
    int halves[2]; /* offsets of f16 scales in a block; -1: none */
    uint64_t digest;
} kinds[] = {
    {TERN_F32, {-1, -1}, 0xC7BE895FE3C2853Eu},    {TERN_F16, {0, -1}, 0x7BC2AE93FA1EC87Cu},
    {TERN_BF16, {0, -1}, 0x2F01ABFAE33F437Du},    {TERN_Q8_0, {0, -1}, 0x49CF573F874A6D79u},
    {TERN_Q4_0, {0, -1}, 0xF4A8E3602ADFF079u},    {TERN_Q4_1, {0, 2}, 0x11E093E56DE8BFBAu},
    {TERN_Q5_0, {0, -1}, 0x5CBE763E91905737u},    {TERN_Q5_1, {0, 2}, 0x50DF5ECD1EFEC0C5u},
    {TERN_Q2_K, {80, 82}, 0x3A73BADA12957C70u},   {TERN_Q3_K, {108, -1}, 0x51F011E4B512EBEEu},
    {TERN_Q4_K, {0, 2}, 0xB1D5BA88D3504FE3u},     {TERN_Q5_K, {0, 2}, 0xB2E817D3760D8F35u},
    {TERN_Q6_K, {208, -1}, 0xB153269299584703u},  {TERN_IQ4_NL, {0, -1}, 0xCE84CC09D0595AD0u},
    {TERN_IQ4_XS, {0, -1}, 0x444AFD9A5AF3B0FEu},  {TERN_IQ3_S, {0, -1}, 0xE190AB50F51856C2u},
    {TERN_IQ3_XXS, {0, -1}, 0x5BC37DA661CEFCC2u}, {TERN_IQ2_S, {0, -1}, 0x1A0A334E2690AFE4u},
    {TERN_IQ2_XS, {0, -1}, 0x94D05A094437C4D1u},  {TERN_IQ2_XXS, {0, -1}, 0xC49BDFB7CD3B5348u},
    {TERN_MXFP4, {-1, -1}, 0xD0C1FA5EE92E0F69u},  {TERN_NVFP4, {-1, -1}, 0xA791B4EEABAA43F6u},
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
        uint8_t *block = p + b * bytes;
        if (kinds[kind].type == TERN_F32)
            block[3] &= 0xBF;
        if (kinds[kind].type == TERN_MXFP4)
            block[0] &= 0x7F;
        for (int g = 0; g < 4 && kinds[kind].type == TERN_NVFP4; g++)
            block[g] &= 0x3F;
        for (int h = 0; h < 2; h++) {
            if (kinds[kind].halves[h] >= 0)
                block[kinds[kind].halves[h] + 1] &= 0xBF;
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
                check_round_trip(i, rows[r], elems == 1 ? 128 : elems);
            }
        }
    }
}

/* Numbers that lie as [k][n_stored]: a part of the columns of the second of two matrices. */
static void check_turned(size_t kind)
{
    enum { K = 13, STORED = 37, FROM = 18, N = STORED - FROM };
    const int type = kinds[kind].type;
    const size_t size = (size_t)tern_type_bytes(type);
    tern_error err = {0};
    struct tern_packed w;
    struct tern_weight_source part, rest;
    uint8_t *src = file_bytes(kind, (size_t)2 * K * STORED, 31), *data;
    const struct tern_weight_source whole = {.type = type, .data = src, .n_stored = STORED, .name = "test.weight"};
    assert_int_equal(tern_weight_rows(&part, &whole, FROM, K, &err), 0);
    assert_int_equal(tern_weight_rows(&rest, &part, STORED, K, &err), 0);
    assert_int_equal(tern_weight_plan(&w, &rest, N + 1, K, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "20 of 37 columns"));
    assert_int_equal(tern_weight_plan(&w, &rest, N, K, &err), 0);
    assert_int_equal(tern_alloc(&data, tern_weight_bytes(&w), 1, &err), 0);
    assert_int_equal(tern_weight_pack(&w, data, &rest, 0, 2, &err), 0);
    w.data = data;
    for (int r = 0; r < N; r++) {
        float row[K], want;
        tern_k.gemm.row(row, &w, r);
        for (size_t i = 0; i < K; i++) {
            const uint8_t *at = src + ((K + i) * STORED + FROM + (size_t)r) * size;
            assert_int_equal(tern_dequantize(&want, type, at, 1, &err), 0);
            assert_memory_equal(&want, &row[i], sizeof want);
        }
    }
    memset(src + ((K + 7) * STORED + FROM + 2) * size, 0xFF, size);
    char at[48];
    (void)snprintf(at, sizeof at, "row 2 at byte %zu ", (7 * STORED + FROM + 2) * size);
    assert_int_equal(tern_weight_pack(&w, data, &rest, 0, 2, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, at));
    tern_free(data);
    free(src);
}

static void test_turned(void **state)
{
    const struct tern_weight_source blocks = {.type = TERN_Q8_0, .n_stored = 64, .name = "w"};
    struct tern_packed w;
    tern_error err = {0};
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++)
        if (tern_type_elems(kinds[i].type) == 1)
            check_turned(i);
    assert_int_equal(tern_weight_plan(&w, &blocks, 32, 64, &err), TERN_EUNSUPPORTED);
}

/* What is not finite is found wherever it lies, the first of several in the order of the file; the largest numbers are.
 */
static void check_finite(int type, const uint32_t *bad, uint32_t most)
{
    enum { N = 19, K = 67 };
    const size_t size = (size_t)tern_type_bytes(type);
    const struct tern_weight_source source = {.type = type, .data = calloc(N * K, size), .name = "w"};
    uint8_t *p = (uint8_t *)(uintptr_t)source.data, *data;
    struct tern_packed w;
    tern_error err = {0};
    assert_non_null(p);
    assert_int_equal(tern_weight_plan(&w, &source, N, K, &err), 0);
    assert_int_equal(tern_alloc(&data, tern_weight_bytes(&w), 1, &err), 0);
    for (size_t i = 0; i < (size_t)N * K; i++) {
        const uint32_t sign = i % 2 ? 1u << (8 * size - 1) : 0, large = most | sign;
        memcpy(p + i * size, &large, size);
    }
    assert_int_equal(tern_weight_pack(&w, data, &source, 0, 2, &err), 0);
    for (size_t i = 0; i < (size_t)N * K; i += i % K == 3 ? 1 : 2) {
        char at[64];
        memcpy(p + i * size, &bad[i % 4], size);
        if (i % 3 == 0)
            memcpy(p + ((size_t)N * K - 1) * size, &bad[0], size);
        assert_int_equal(tern_weight_pack(&w, data, &source, i < 16 * K ? 0 : 1, 2, &err), TERN_EFORMAT);
        (void)snprintf(at, sizeof at, "the weight of row %zu at byte %zu of the tensor", i / K, i * size);
        if (!strstr(err.msg, at))
            fail_msg("%s, expected %s", err.msg, at);
        memcpy(p + i * size, &most, size);
        memcpy(p + ((size_t)N * K - 1) * size, &most, size);
    }
    tern_free(data);
    free(p);
}

static void test_not_finite(void **state)
{
    (void)state;
    check_finite(TERN_F32, (uint32_t[]){0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF}, 0x7F7FFFFF);
    check_finite(TERN_F16, (uint32_t[]){0x7C00, 0xFC00, 0x7E01, 0xFFFF}, 0x7BFF);
    check_finite(TERN_BF16, (uint32_t[]){0x7F80, 0xFF80, 0x7FC1, 0xFFFF}, 0x7F7F);
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
                         inf_b16[] = {0x80, 0x7F}, nan_e8[] = {0xFF}, huge_e8[] = {0xFC}, nan_e4[] = {0x7F};
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        int type = kinds[i].type;
        if (type == TERN_F32) {
            expect_refusal(i, 20, 0, nan32, 4, "weight");
        } else if (type == TERN_BF16) {
            expect_refusal(i, 125, 0, inf_b16, 2, "weight");
        } else if (type == TERN_MXFP4) {
            expect_refusal(i, 35, 0, nan_e8, 1, "scale");
            expect_refusal(i, 0, 0, huge_e8, 1, "scale");
        } else if (type == TERN_NVFP4) {
            expect_refusal(i, 3, 2, nan_e4, 1, "scale");
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

/* ---- weights of several tensors ---- */

#define ROWS 24
#define COLS 384

static const float factors[3] = {0.3f, 1.7f, -0.25f};

/* ROWS x COLS weights; data, scales and zeros are filled in by make_form. */
static const struct {
    struct tern_weight_source source;
    uint64_t digest;
} forms[] = {
    {{.form = TERN_FORM_AFFINE, .bits = 2, .group = 32, .scale_type = TERN_F16}, 0x29C68225AB0EC7BEu},
    {{.form = TERN_FORM_AFFINE, .bits = 3, .group = 64, .scale_type = TERN_BF16}, 0x48ABB65EE8010B83u},
    {{.form = TERN_FORM_AFFINE, .bits = 4, .group = 64, .scale_type = TERN_BF16}, 0x6BCB2A1258273DF9u},
    {{.form = TERN_FORM_AFFINE, .bits = 4, .group = 128, .scale_type = TERN_F32}, 0xC06EDBBA9A9D0844u},
    {{.form = TERN_FORM_AFFINE, .bits = 5, .group = 32, .scale_type = TERN_F16}, 0x0A2320ABBAE58C2Eu},
    {{.form = TERN_FORM_AFFINE, .bits = 6, .group = 128, .scale_type = TERN_BF16}, 0xD738ACD1B905FF0Bu},
    {{.form = TERN_FORM_AFFINE, .bits = 8, .group = 64, .scale_type = TERN_BF16}, 0x3DDB1A827E88BA07u},
    {{.form = TERN_FORM_MXFP4}, 0x9450252C5884D050u},
    {{.form = TERN_FORM_NVFP4}, 0x8007692BF3B0995Cu},
    {{.form = TERN_FORM_NVFP4, .factors = factors}, 0xAC794B065A216461u},
    {{.form = TERN_FORM_NVFP4, .factors = factors, .factor_rows = 8}, 0x7F335B809FC8E01Bu},
    {{.form = TERN_FORM_MXFP8}, 0x89B2E1ACE57356C9u},
    {{.form = TERN_FORM_FP8, .group_rows = 16, .group = 128, .scale_type = TERN_BF16}, 0xAAFE0E35991F76B1u},
    {{.form = TERN_FORM_FP8, .group_rows = 20, .group = 160, .scale_type = TERN_F32}, 0xFDC24462C32AE083u},
    {{.form = TERN_FORM_FP8, .group_rows = 1, .scale_type = TERN_F32}, 0x63CA6FF100108C44u},
    {{.form = TERN_FORM_FP8, .scale_type = TERN_F16}, 0x1BB592489C4D7854u},
    {{.form = TERN_FORM_GPTQ, .group = 128, .scale_type = TERN_F16, .zero_plus_one = true}, 0x2E4FBAC5B5A3F291u},
    {{.form = TERN_FORM_GPTQ, .group = 32, .scale_type = TERN_BF16}, 0x8EF72F5D4690F06Fu},
    {{.form = TERN_FORM_GPTQ, .scale_type = TERN_F16, .zero_plus_one = true}, 0x2E1FD922A3343487u},
    {{.form = TERN_FORM_AWQ, .group = 64, .scale_type = TERN_F16}, 0xCE94C132D4CA68EFu},
};
#define N_FORMS (sizeof forms / sizeof *forms)

static uint8_t *made_up(uint64_t seed)
{
    uint8_t *p = malloc(4 * ROWS * COLS); /* more than any tensor needs */
    assert_non_null(p);
    for (size_t i = 0; i < (size_t)4 * ROWS * COLS; i++)
        p[i] = (uint8_t)tern_hash64(seed + i);
    return p;
}

/* Spoils what would not be finite, as tools/weight_digests.py does. */
static void make_form(struct tern_weight_source *s, size_t form)
{
    *s = forms[form].source;
    uint8_t *data = made_up(1000000), *scales = made_up(2000000), *zeros = made_up(3000000);
    size_t size = s->scale_type == TERN_F32 ? 4 : 2;
    for (size_t i = 0; i < (size_t)4 * ROWS * COLS; i++) {
        if ((s->form == TERN_FORM_MXFP8 || s->form == TERN_FORM_FP8) && (data[i] & 0x7F) == 0x7F)
            data[i] &= 0xFE;
        if (s->form == TERN_FORM_NVFP4)
            scales[i] &= (scales[i] & 0x7F) == 0x7F ? 0xFE : 0xFF;
        else if (s->form == TERN_FORM_MXFP4 || s->form == TERN_FORM_MXFP8)
            scales[i] &= 0x7F;
        else if (i % size == size - 1)
            scales[i] &= 0xBF;
        if (s->form == TERN_FORM_AFFINE && i % size == size - 1)
            zeros[i] &= 0xBF;
    }
    s->data = data;
    s->scales = scales;
    s->zeros = zeros;
    s->name = "test.weight";
}

static void free_form(struct tern_weight_source *s)
{
    free((void *)s->data);
    free((void *)s->scales);
    free((void *)s->zeros);
}

static uint8_t *pack_form(struct tern_packed *w, const struct tern_weight_source *s, int n)
{
    tern_error err = {0};
    uint8_t *data;
    int panels = (n + TERN_PANEL - 1) / TERN_PANEL;
    assert_int_equal(tern_weight_plan(w, s, n, COLS, &err), 0);
    assert_int_equal(tern_alloc(&data, tern_weight_bytes(w), 1, &err), 0);
    assert_int_equal(tern_weight_pack(w, data, s, panels / 2, panels, &err), 0);
    assert_int_equal(tern_weight_pack(w, data, s, 0, panels / 2, &err), 0);
    w->data = data;
    return data;
}

/* The rows from row0 on, as a matrix of their own, are those of the whole. */
static void check_division(const struct tern_weight_source *s, const struct tern_packed *whole, int row0)
{
    struct tern_weight_source part;
    struct tern_packed w;
    tern_error err = {0};
    float row[COLS], want[COLS];
    assert_int_equal(tern_weight_rows(&part, s, row0, COLS, &err), 0);
    uint8_t *data = pack_form(&w, &part, ROWS - row0);
    for (int r = row0; r < ROWS; r++) {
        tern_k.gemm.row(row, &w, r - row0);
        tern_k.gemm.row(want, whole, r);
        assert_memory_equal(row, want, sizeof row);
    }
    tern_free(data);
}

static void check_form(size_t form)
{
    struct tern_weight_source s;
    struct tern_packed w;
    uint64_t h = 0;
    float row[COLS];
    make_form(&s, form);
    uint8_t *data = pack_form(&w, &s, ROWS);
    for (int r = 0; r < ROWS; r++) {
        tern_k.gemm.row(row, &w, r);
        for (int e = 0; e < COLS; e++)
            h = tern_hash64(h ^ tern_f32_bits(row[e]));
    }
    if (h != forms[form].digest)
        fail_msg("form %zu: digest %016llx", form, (unsigned long long)h);
    s.n_stored = ROWS;
    check_division(&s, &w, 0);
    check_division(&s, &w, s.group_rows == 20 ? 20 : 16);
    tern_free(data);
    free_form(&s);
}

/* FP8 whose outputs are contiguous: the same weights. */
static void check_turned_form(size_t form)
{
    struct tern_weight_source s, t, part;
    struct tern_packed w, turned;
    float row[COLS], want[COLS];
    tern_error err = {0};
    make_form(&s, form);
    const size_t group = s.group ? (size_t)s.group : COLS, rows = s.group_rows ? (size_t)s.group_rows : ROWS;
    const size_t across = (COLS + group - 1) / group, down = (ROWS + rows - 1) / rows;
    const size_t size = s.scale_type == TERN_F32 ? 4 : 2;
    uint8_t *codes = malloc((size_t)ROWS * COLS), *scales = malloc(size * across * down);
    assert_true(codes && scales);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLS; c++)
            codes[c * ROWS + r] = ((const uint8_t *)s.data)[r * COLS + c];
    for (size_t r = 0; r < down; r++)
        for (size_t c = 0; c < across; c++)
            memcpy(scales + (c * down + r) * size, (const uint8_t *)s.scales + (r * across + c) * size, size);
    t = s;
    t.turned = true;
    t.n_stored = ROWS;
    t.data = codes;
    t.scales = scales;
    uint8_t *a = pack_form(&w, &s, ROWS), *b = pack_form(&turned, &t, ROWS);
    for (int r = 0; r < ROWS; r++) {
        tern_k.gemm.row(want, &w, r);
        tern_k.gemm.row(row, &turned, r);
        assert_memory_equal(row, want, sizeof row);
    }
    codes[70 * ROWS + 7] = 0xFF; /* of the block that begins at input 64 */
    assert_int_equal(tern_weight_pack(&turned, b, &t, 0, 1, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "weight of row 7 at byte 1543 of the tensor"));
    t.n_stored++;
    assert_int_equal(tern_weight_plan(&turned, &t, ROWS, COLS, &err), TERN_EUNSUPPORTED);
    assert_int_equal(tern_weight_rows(&part, &t, 16, COLS, &err), TERN_EUNSUPPORTED);
    tern_free(a);
    tern_free(b);
    free(codes);
    free(scales);
    free_form(&s);
}

static void test_turned_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMS; i++)
        if (forms[i].source.form == TERN_FORM_FP8)
            check_turned_form(i);
}

static void test_forms(void **state)
{
    static const unsigned masks[] = {0, ~0u};
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        tern_kernels_init(masks[m]);
        for (size_t i = 0; i < N_FORMS; i++)
            check_form(i);
    }
}

/* Bits in memory per weight, in hundredths, beside those of the file. */
static void test_sizes(void **state)
{
    static const struct {
        int type, bits;
    } sizes[] = {
        {TERN_Q2_K, 262},    {TERN_Q3_K, 356},    {TERN_IQ4_NL, 450}, {TERN_IQ4_XS, 431},
        {TERN_IQ3_S, 431},   {TERN_IQ3_XXS, 431}, {TERN_IQ2_S, 356},  {TERN_IQ2_XS, 356},
        {TERN_IQ2_XXS, 331}, {TERN_MXFP4, 425},   {TERN_NVFP4, 453},  {TERN_Q4_0, 450},
    };
    struct tern_packed w;
    tern_error err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct tern_weight_source s = {.type = sizes[i].type};
        assert_int_equal(tern_weight_plan(&w, &s, 64, 1024, &err), 0);
        assert_int_equal(w.panel_bytes * 800 / ((size_t)16 * 1024), sizes[i].bits);
    }
    struct tern_weight_source affine = {.form = TERN_FORM_AFFINE, .bits = 4, .group = 64, .scale_type = TERN_BF16};
    assert_int_equal(tern_weight_plan(&w, &affine, 64, 1024, &err), 0);
    assert_int_equal(w.panel_bytes * 800 / ((size_t)16 * 1024), 450);
}

static void test_forms_refused(void **state)
{
    static const struct {
        struct tern_weight_source source;
        int64_t n, k;
        const char *word;
    } bad[] = {
        {{.form = TERN_FORM_AFFINE, .bits = 7, .group = 64, .scale_type = TERN_F16}, 8, 128, "7 bits"},
        {{.form = TERN_FORM_AFFINE, .bits = 4, .group = 48, .scale_type = TERN_F16}, 8, 96, "48"},
        {{.form = TERN_FORM_AFFINE, .bits = 4, .group = 128, .scale_type = TERN_F16}, 8, 192, "192"},
        {{.form = TERN_FORM_AFFINE, .bits = 4, .group = 64, .scale_type = TERN_Q4_0}, 8, 128, "Q4_0"},
        {{.form = TERN_FORM_MXFP4}, 8, 40, "40"},
        {{.form = TERN_FORM_MXFP4, .factors = factors}, 8, 64, "factors"},
        {{.form = TERN_FORM_FP8, .group = 100, .group_rows = 7, .scale_type = TERN_F32}, 8, 128, "7 x 100"},
        {{.form = TERN_FORM_GPTQ, .group = 128, .scale_type = TERN_F16}, 12, 128, "12 rows"},
        {{.form = TERN_FORM_GPTQ, .group = 128, .scale_type = TERN_F32}, 16, 128, "F32"},
        {{.form = TERN_FORM_AWQ, .group = 128, .scale_type = TERN_F16}, 16, 192, "192"},
        {{.form = TERN_FORM_AWQ, .group = 128, .scale_type = TERN_F16, .row0 = 8, .n_stored = 16}, 16, 128, "16 rows"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_error err = {0};
        struct tern_packed w;
        assert_int_equal(tern_weight_plan(&w, &bad[i].source, bad[i].n, bad[i].k, &err), TERN_EUNSUPPORTED);
        if (!strstr(err.msg, bad[i].word))
            fail_msg("\"%s\" does not mention %s", err.msg, bad[i].word);
    }
    static const struct tern_weight_source undivided[] = {
        {.form = TERN_FORM_GPTQ, .group = 128, .scale_type = TERN_F16, .name = "q"},
        {.form = TERN_FORM_FP8, .group = 128, .group_rows = 128, .scale_type = TERN_F32, .name = "q"},
        {.type = TERN_NVFP4, .factors = factors, .factor_rows = 9, .name = "q"},
    };
    for (size_t i = 0; i < sizeof undivided / sizeof *undivided; i++) {
        struct tern_weight_source part;
        tern_error err = {0};
        assert_int_equal(tern_weight_rows(&part, &undivided[i], 8, 128, &err), TERN_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, "row 8"));
    }
}

/* Byte `at` of one of the tensors becomes `value`; what precedes it in a bf16 number has its highest bit set. */
static void expect_form_refusal(size_t form, char tensor, size_t at, uint8_t value, const char *words)
{
    struct tern_weight_source s;
    struct tern_packed w;
    tern_error err = {0};
    uint8_t *data;
    make_form(&s, form);
    uint8_t *p = (uint8_t *)(tensor == 'd' ? s.data : tensor == 's' ? s.scales : s.zeros) + at;
    p[0] = value;
    p[-1] |= s.form == TERN_FORM_AFFINE ? 0x80 : 0;
    assert_int_equal(tern_weight_plan(&w, &s, ROWS, COLS, &err), 0);
    assert_int_equal(tern_alloc(&data, tern_weight_bytes(&w), 1, &err), 0);
    assert_int_equal(tern_weight_pack(&w, data, &s, 0, 2, &err), TERN_EFORMAT);
    if (!strstr(err.msg, words))
        fail_msg("form %zu: \"%s\" does not say \"%s\"", form, err.msg, words);
    tern_free(data);
    free_form(&s);
}

static void test_forms_non_finite(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMS; i++) {
        switch (forms[i].source.form) {
        case TERN_FORM_AFFINE:
            if (forms[i].source.scale_type != TERN_BF16 || forms[i].source.group != 64)
                break;
            expect_form_refusal(i, 's', 2 * (6 * 17 + 2) + 1, 0x7F,
                                "scale of the block of row 17 at byte 208 of the sc");
            expect_form_refusal(i, 'z', 2 * (6 * 3 + 1) + 1, 0xFF, "minimum of the block of row 3 at byte 38 of the z");
            break;
        case TERN_FORM_MXFP4:
            expect_form_refusal(i, 's', 12 * 5 + 3, 0xFF, "scale of the block of row 5 at byte 63 of the scales");
            break;
        case TERN_FORM_NVFP4:
            expect_form_refusal(i, 's', 24 * 2 + 7, 0xFF, "scale of the block of row 2 at byte 54 of the scales");
            break;
        case TERN_FORM_MXFP8:
        case TERN_FORM_FP8:
            expect_form_refusal(i, 'd', (size_t)COLS * 7 + 70, 0xFF, "weight of row 7 at byte 2752 of the tensor");
            break;
        default:
            break;
        }
    }
    static const float endless[2] = {1, INFINITY};
    struct tern_weight_source s = {
        .type = TERN_NVFP4, .data = made_up(7), .factors = endless, .factor_rows = 5, .name = "w"};
    for (int i = 0; i < ROWS * COLS; i++)
        ((uint8_t *)s.data)[i] &= 0x77;
    struct tern_packed w;
    tern_error err = {0};
    uint8_t *data;
    assert_int_equal(tern_weight_plan(&w, &s, 10, 64, &err), 0);
    assert_int_equal(tern_alloc(&data, tern_weight_bytes(&w), 1, &err), 0);
    assert_int_equal(tern_weight_pack(&w, data, &s, 0, 1, &err), TERN_EFORMAT);
    assert_non_null(strstr(err.msg, "factor of row 5 at byte 4 of the factors"));
    tern_free(data);
    free((void *)s.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dequantize),         cmocka_unit_test(test_dequantize_refuses),
        cmocka_unit_test(test_round_trip),         cmocka_unit_test(test_turned),
        cmocka_unit_test(test_padding_rows),       cmocka_unit_test(test_shapes_refused),
        cmocka_unit_test(test_non_finite_refused), cmocka_unit_test(test_forms),
        cmocka_unit_test(test_turned_forms),       cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_forms_refused),      cmocka_unit_test(test_forms_non_finite),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
