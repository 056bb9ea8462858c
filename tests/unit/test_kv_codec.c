/* KV schemes as a whole: registry, signs, quality against published figures, attention through codes. */
#include "kv_bench.h"

/* ---- registry and signs ------------------------------------------------------------------------------------- */

static void test_registry(void **state)
{
    (void)state;
    static const char *const order[] = {"f32", "f16", "bf16", "q8",      "fp8",     "l4",  "l3",    "l2",
                                        "t4",  "t3",  "t2",   "affine8", "affine4", "g16", "g16_3", "g16_2"};
    static const char *const aliases[][2] = {{"fp32", "f32"},  {"fp16", "f16"},  {"q8_0", "q8"},
                                             {"turbo4", "l4"}, {"turbo3", "l3"}, {"turbo2", "l2"}};
    size_t n = sizeof order / sizeof *order;
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(tern_kv_codecs[i]->name, order[i]);
        assert_ptr_equal(find(order[i]), tern_kv_codecs[i]);
        assert_true(strlen(tern_kv_codecs[i]->about) > 0);
    }
    assert_null(tern_kv_codecs[n]);
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        assert_ptr_equal(find(aliases[i][0]), find(aliases[i][1]));
    assert_null(tern_kv_codec_find("", 0));
    assert_null(tern_kv_codec_find("l", 1));
    assert_null(tern_kv_codec_find("l44", 3));
    assert_null(tern_kv_codec_find("L4", 2));
    assert_ptr_equal(tern_kv_codec_find("l4,v=l3", 2), find("l4")); /* a name inside a longer text */
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int dim;
        bool ok;
    } cases[] = {{"f32", 80, true},   {"f32", 8, true},   {"f16", 512, true}, {"f16", 4, false},   {"f16", 84, false},
                 {"f16", 520, false}, {"q8", 32, true},   {"q8", 96, true},   {"q8", 160, true},   {"q8", 512, true},
                 {"q8", 80, true},    {"q8", 544, false}, {"q8", 0, false},   {"l4", 32, true},    {"l4", 64, true},
                 {"l4", 512, true},   {"l4", 96, true},   {"l4", 16, true},   {"l4", 1024, false}, {"l3", 80, true},
                 {"l3", 128, true},   {"l2", 256, true},  {"l2", 192, true},  {"l2", -64, false},  {"t4", 32, true},
                 {"t4", 96, true},    {"l4", 352, false}, {"t2", 448, true},  {"t3", 64, true},    {"t3", 1024, false},
                 {"t2", 512, true},   {"t2", 16, true},   {"t4", 112, true},  {"t3", 48, true},    {"t4", 80, true},
                 {"t4", 72, false},   {"q8", 144, true},  {"q8", 208, true},  {"q8", 40, false},   {"l4", 144, false},
                 {"t4", 208, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *why = NULL;
        const struct tern_kv_codec *c = find(cases[i].name);
        assert_int_equal(c->accepts(cases[i].dim, &why), cases[i].ok);
        assert_int_equal(why != NULL, !cases[i].ok);
        if (!cases[i].ok)
            continue;
        assert_int_equal(c->data_bytes(cases[i].dim), 8 * cases[i].dim * c->bits);
        assert_int_equal(c->data_bytes(cases[i].dim) % 64, 0);
        assert_int_equal(c->head_bytes(cases[i].dim), c->raw ? 0 : (cases[i].dim + 127) / 128 * 128);
    }
}

/* Pages on disk hold codes made with these signs: the values below may never change. */
static void test_signs(void **state)
{
    (void)state;
    static const struct {
        int layer;
        bool key;
        uint64_t word[2];
    } known[] = {{0, true, {0x7A7F990B24ED981Bu, 0xEF535A33167E8160u}},
                 {0, false, {0xB9B37F9087575FFAu, 0xCC1FCA1BF7E41C4Fu}},
                 {31, true, {0x83F4BC22314A7C29u, 0xCADC40B0C333423Fu}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        float s[128];
        tern_kv_signs(s, 128, known[i].layer, known[i].key);
        for (int d = 0; d < 128; d++)
            assert_true(s[d] == (known[i].word[d / 64] >> (d % 64) & 1 ? -1.0f : 1.0f));
    }
    float a[MAX_DIM], b[MAX_DIM];
    int minus = 0, same = 0;
    tern_kv_signs(a, MAX_DIM, 7, true);
    tern_kv_signs(b, 64, 7, true); /* a shorter head sees the same start */
    assert_memory_equal(a, b, 64 * sizeof *a);
    tern_kv_signs(b, MAX_DIM, 7, false);
    for (int d = 0; d < MAX_DIM; d++) {
        minus += a[d] < 0;
        same += a[d] == b[d];
    }
    assert_in_range(minus, 200, 312);
    assert_in_range(same, 200, 312);
}

/* ---- headers ------------------------------------------------------------------------------------------------ */

static void test_headers(void **state)
{
    (void)state;
    uint16_t near = 0, up = 0;
    for (double f = 0x1p-26; f < 1e6; f *= 1.0009) {
        float x = (float)f;
        uint16_t n = tern_kvq_head_near(x), u = tern_kvq_head_up(x);
        assert_true(n >= near && u >= up && !(n & 15) && !(u & 15)); /* monotone, start bits free */
        near = n;
        up = u;
        double slack = fmax(f * (0x1p-8 + 0x1p-11), 0x1p-22 + 0x1p-25);
        if (f > 65280) {
            assert_int_equal(n, TERN_KVQ_HEAD_MAX);
            assert_int_equal(u, TERN_KVQ_HEAD_MAX);
            continue;
        }
        assert_true(fabs(tern_kvq_scale(n) - f) <= slack);
        assert_true(tern_kvq_scale(u) >= x);
        assert_true(tern_kvq_scale(u) <= fmax(f * (1 + 0x1p-7), f + 0x1p-21));
    }
    for (uint32_t h = 0; h <= TERN_KVQ_HEAD_MAX; h += 16) { /* every scale stands for itself */
        float f = tern_kvq_scale((uint16_t)h);
        assert_int_equal(tern_kvq_head_near(f), h);
        assert_int_equal(tern_kvq_head_up(f), h);
    }
    assert_int_equal(tern_kvq_head_near(INFINITY), TERN_KVQ_HEAD_MAX);
    assert_int_equal(tern_kvq_head_up(1e-44f), 16);
}

/* ---- page order --------------------------------------------------------------------------------------------- */

/* The example of docs/kv-page.md: code of token t and dim d = (7t + 3d + t/4) mod 2^bits, t/4 rounded down. */
static void test_page_order(void **state)
{
    (void)state;
    static const struct {
        int bits;
        uint64_t hash[2][2]; /* FNV-1a, 64 bits, of a whole side: [64, 80 dims][keys, values] */
        uint8_t start[2][8]; /* keys, values */
    } known[] = {
        {8,
         {{0x6205571305F7E625u, 0x485428AE188658A5u}, {0xAE7E3E9A72ED45C5u, 0x287086533A90F605u}},
         {{0x00, 0x03, 0x06, 0x09, 0x07, 0x0a, 0x0d, 0x10}, {0x00, 0x07, 0x0e, 0x15, 0x03, 0x0a, 0x11, 0x18}}},
        {4,
         {{0xF3199940D03EEB25u, 0x096F01A4C43B5625u}, {0x739882700A8D5625u, 0x4CAC18671AD16565u}},
         {{0x30, 0x96, 0xfc, 0x52, 0xa7, 0x0d, 0x63, 0xc9}, {0x70, 0x5e, 0x4d, 0x2b, 0xa3, 0x81, 0x70, 0x5e}}},
        {3,
         {{0x0A3B0AC899AF4925u, 0x0EB4942FACD3EF25u}, {0x8016D4D340487425u, 0x4EF1429DEAFD6225u}},
         {{0xb0, 0x96, 0xf4, 0xd2, 0x2f, 0x0d, 0x6b, 0x49}, {0xf0, 0xd6, 0x4d, 0x2b, 0x2b, 0x09, 0xf0, 0xd6}}},
        {2,
         {{0x668D3562BC8BC925u, 0xF935D88ABABA1925u}, {0xC8A96CCC23C04DA5u, 0x232D3A1790BC3CA5u}},
         {{0x6c, 0x6c, 0x6c, 0x6c, 0x1b, 0x1b, 0x1b, 0x1b}, {0x6c, 0xb1, 0xc6, 0x1b, 0x1b, 0x6c, 0xb1, 0xc6}}},
    };
    for (size_t i = 0; i < 2 * sizeof known / sizeof *known; i++) {
        const int bits = known[i / 2].bits, dim = i % 2 ? 80 : 64;
        uint8_t codes[64 * 80] __attribute__((aligned(64))), side[64 * 80] __attribute__((aligned(64)));
        for (int j = 0; j < 64 * dim; j++)
            codes[j] = (uint8_t)((7 * (j / dim) + 3 * (j % dim) + j / dim / 4) & ((1 << bits) - 1));
        for (int key = 0; key < 2; key++) {
            uint64_t h = 0xCBF29CE484222325u;
            (key ? tern_k.kvq.pack_k : tern_k.kvq.pack_v)(side, codes, bits, dim);
            for (int j = 0; j < 8 * dim * bits; j++)
                h = (h ^ side[j]) * 0x100000001B3u;
            assert_memory_equal(side, known[i / 2].start[!key], 8);
            assert_true(h == known[i / 2].hash[i % 2][!key]);
        }
    }
}

/* ---- quality ------------------------------------------------------------------------------------------------ */

/* The same quantiser in double precision: real-valued Lloyd-Max levels, exact scale. */
static double ideal_error(const float *y, int n, const double *level, int n_levels, bool key)
{
    double ss = 0, yc = 0, cc = 0, err = 0, c[TERN_KVQ_BLOCK];
    for (int i = 0; i < n; i++)
        ss += (double)y[i] * (double)y[i];
    for (int i = 0; i < n; i++) {
        double z = fabs((double)y[i]) / sqrt(ss / n);
        int best = 0;
        for (int k = 1; k < n_levels; k++)
            best = fabs(z - level[k]) < fabs(z - level[best]) ? k : best;
        c[i] = copysign(level[best], y[i]);
        yc += (double)y[i] * c[i];
        cc += c[i] * c[i];
    }
    double s = key ? sqrt(ss / cc) : yc / cc;
    for (int i = 0; i < n; i++)
        err += ((double)y[i] - s * c[i]) * ((double)y[i] - s * c[i]);
    return err;
}

static const struct {
    const char *name;
    int n_levels;
    double level[8];
    double matched, least; /* relative squared error at 128 dims in a block: published figures */
} normal[] = {
    {"l4",
     8,
     {0.12839503, 0.38804830, 0.65675912, 0.94234046, 1.25623120, 1.61804639, 2.06901723, 2.73258957},
     0.00919,
     0.00917},
    {"l3", 4, {0.24509418, 0.75600528, 1.34390928, 2.15194570}, 0.03385, 0.03356},
    {"l2", 2, {0.45278003, 1.51041761}, 0.11890, 0.11530},
};

struct side {
    int scheme;
    bool key;
};

static double ideal_of_side(const float *y, int dim, const void *ctx)
{
    const struct side *side = ctx;
    double sum = 0;
    for (int d = 0; d < dim; d += TERN_KVQ_BLOCK)
        sum += ideal_error(y + d, dim - d < TERN_KVQ_BLOCK ? dim - d : TERN_KVQ_BLOCK, normal[side->scheme].level,
                           normal[side->scheme].n_levels, side->key);
    return sum;
}

static void check_quality(int scheme, int dim, bool key)
{
    const struct side side = {scheme, key};
    double ideal;
    double got = scheme_error(normal[scheme].name, dim, key, dim <= 64 ? 400 : 200, ideal_of_side, &side, &ideal);
    print_message("%s %s dim %3d: %.5f, in double %.5f\n", normal[scheme].name, key ? "keys  " : "values", dim, got,
                  ideal);
    assert_true(fabs(got - ideal) < 0.005 * ideal);
    double published = key ? normal[scheme].matched : normal[scheme].least;
    if (dim % TERN_KVQ_BLOCK == 0) /* the figures are for blocks of 128; smaller ones do a little better */
        assert_true(fabs(got - published) < 0.01 * published);
    else
        assert_true(got < published && got > 0.93 * published);
}

static void test_quality(void **state)
{
    (void)state;
    rng.state = 11;
    static const int dims[] = {64, 80, 96, 112, 128, 192, 256, 448, 512};
    for (int scheme = 0; scheme < 3; scheme++) {
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            check_quality(scheme, dims[i], true);
            check_quality(scheme, dims[i], false);
        }
    }
}

static void test_q8_bound(void **state)
{
    (void)state;
    static const int dims[] = {32, 96, 128, 144, 160, 208, 256, 384, 512};
    rng.state = 12;
    for (int c = 0; c < 72; c++) {
        struct bench b;
        int dim = dims[c % 9];
        bench_open(&b, "q8", dim, c / 9 & 1, c / 18 & 1);
        for (int j = 0; j < 64 * dim; j++)
            b.x[j] = (float)(gauss() * ldexp(1, j / dim % 26 - 17) * (j % 37 == 0 ? 20 : 1));
        bench_code(&b);
        for (int t = 0; t < 64; t++) {
            for (int d0 = 0; d0 < dim; d0 += 128) {
                double amax = 0, worst = 0;
                for (int d = d0; d < dim && d < d0 + 128; d++) {
                    amax = fmax(amax, fabs((double)b.x[t * dim + d]));
                    worst = fmax(worst, fabs((double)b.x[t * dim + d] - (double)decoded_at(&b, t, d)));
                }
                double f = tern_kvq_scale(b.head[d0 / 128 * 64 + t]);
                assert_true(f >= amax && f <= amax * (1 + 0x1p-7) + 0x1p-21);
                assert_true(worst <= f / 254 * (1 + 0x1p-13));
            }
        }
        bench_close(&b);
    }
}

/* ---- agreement of the functions of a codec ------------------------------------------------------------------ */

static const char *const coded[] = {"q8", "l4", "l3", "l2", "t4", "t3", "t2"};
#define N_CODED (int)(sizeof coded / sizeof *coded)

/* The table of coded[i], once more. */
static struct tern_kvq_table table_of(int i)
{
    if (i > 3)
        return trellis[i - 4];
    struct tern_kvq_table tab = {.bits = i ? 5 - i : 8, .unit = 1.0f / 127.0f};
    if (i) {
        const double *level = normal[i - 1].level;
        int half = normal[i - 1].n_levels;
        tab.unit = (float)level[half - 1] / 127.0f;
        for (int k = 0; k < half; k++) {
            tab.entry[half + k] = (int8_t)lrint(level[k] / (level[half - 1] / 127.0));
            tab.entry[half - 1 - k] = (int8_t)-tab.entry[half + k];
        }
    }
    return tab;
}

/* Through the codec, and codes through the kernels one by one, packed and decoded: the same to the bit, and where a
 * code stands for itself, f * unit * entry. */
static void test_round_trip(void **state)
{
    (void)state;
    static const int dims[] = {16, 32, 48, 64, 80, 112, 128, 256};
    rng.state = 13;
    for (int c = 0; c < 16 * N_CODED; c++) {
        struct bench b;
        int dim = dims[c / N_CODED % 8];
        bool key = c / N_CODED / 8;
        struct tern_kvq_table tab = table_of(c % N_CODED);
        bench_open(&b, coded[c % N_CODED], dim, key, true);
        for (int j = 0; j < 64 * dim; j++)
            b.x[j] = (float)gauss();
        bench_code(&b);
        for (int t = 0; t < 64 && b.side.codec->rotated; t++)
            tern_k.kvq.rotate(b.x + t * dim, b.sign, dim, 0);
        uint8_t *codes = buffer((size_t)(64 * dim)), *data = buffer(b.side.codec->data_bytes(dim));
        float *decoded = buffer((size_t)(64 * dim) * 4);
        uint16_t head[4 * 64] __attribute__((aligned(64)));
        tern_k.kvq.encode(codes, head, b.x, &tab, key, dim, 64, b.scratch);
        assert_memory_equal(head, b.head, b.side.codec->head_bytes(dim));
        for (int j = 0; j < 64 * dim && !tab.trellis; j++) {
            int t = j / dim, d = j % dim, e = tab.bits == 8 ? (int8_t)codes[j] : tab.entry[codes[j]];
            assert_true(decoded_at(&b, t, d) == tern_kvq_scale(head[d / 128 * 64 + t]) * tab.unit * (float)e);
        }
        (key ? tern_k.kvq.pack_k : tern_k.kvq.pack_v)(data, codes, tab.bits, dim);
        assert_memory_equal(data, b.data, b.side.codec->data_bytes(dim));
        (key ? tern_k.kvq.decode_k : tern_k.kvq.decode_v)(decoded, data, head, &tab, dim);
        assert_memory_equal(decoded, b.decoded, (size_t)(64 * dim) * 4);
        tern_free(decoded);
        tern_free(codes);
        tern_free(data);
        bench_close(&b);
    }
}

/* One query per dim, or one weight per token, reads the page's values one by one; they are the decoded ones. */
static void test_one_by_one(void **state)
{
    (void)state;
    enum { ROWS = 21 }; /* more than one kernel call takes */
    static const int dims[] = {64, 80, 112, 256};
    rng.state = 14;
    for (int c = 0; c < 8 * N_CODED; c++) {
        struct bench b;
        int dim = dims[c / N_CODED % 4];
        bool key = c / N_CODED / 4;
        bench_open(&b, coded[c % N_CODED], dim, key, c & 1);
        for (int j = 0; j < 64 * dim; j++)
            b.x[j] = (float)gauss();
        bench_code(&b);
        size_t n = (size_t)(ROWS * dim);
        float *x = buffer(n * 4), *out = buffer((n + ROWS * 64) * 4), *p = buffer(ROWS * 64 * 4);
        float *scale = buffer(ROWS * 16), biggest = 0;
        int8_t *q = buffer(n);
        int32_t *sum = buffer(ROWS * 16);
        for (int j = 0; j < 64 * dim; j++)
            biggest = fmaxf(biggest, fabsf(b.decoded[j]));
        for (int i = 0; i < ROWS; i++) {
            x[i * dim + (dim - 1 - i * 3)] = 1.0f; /* from the last dim down */
            p[i * 64 + i * 3] = 1.0f;
        }
        if (key) {
            struct tern_kv_query query = {x, q, scale, sum};
            for (int i = 0; i < ROWS && b.side.sign; i++)
                tern_k.kvq.rotate(x + i * dim, b.sign, dim, 1);
            b.side.codec->prep(&b.side, &query, x, ROWS, true);
            b.side.codec->score(&b.side, out, &query, b.data, b.head, ROWS, NULL);
        } else {
            b.side.codec->accum(&b.side, out, p, b.data, b.head, NULL, ROWS, NULL);
        }
        for (int i = 0; i < ROWS; i++) {
            for (int j = 0; j < (key ? 64 : dim); j++) {
                float want = key ? decoded_at(&b, j, dim - 1 - i * 3) : decoded_at(&b, i * 3, j);
                assert_true(fabsf(out[i * (key ? 64 : dim) + j] - want) <= 2e-6f * biggest);
            }
        }
        void *all[] = {x, out, p, q, scale, sum};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            tern_free(all[i]);
        bench_close(&b);
    }
}

/* Every f16 through a bf16 page: the nearest number of eight significant bits, ties to the even one. */
static void test_bf16(void **state)
{
    (void)state;
    const struct tern_kv_codec *c = find("bf16");
    struct tern_kv_side side = {.codec = c, .dim = 512, .key = true};
    uint16_t *tile = buffer(512 * 64 * 2), *page = buffer(512 * 64 * 2);
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < 32768; i++)
            tile[i] = (uint16_t)(half << 15 | i);
        c->encode(&side, (uint8_t *)page, NULL, tile, 0, NULL);
        for (uint32_t i = 0; i < 32768; i++) {
            uint16_t below = tile[i] & ~7, above = below + 8;
            float x = tern_f16_to_f32(tile[i]), got = tern_f16_to_f32(page[i]);
            if (i >= 0x7C00) { /* infinity and NaN */
                assert_int_equal(page[i], tile[i]);
                continue;
            }
            assert_true(isfinite(got));
            double down = fabs((double)x - (double)tern_f16_to_f32(below));
            double up = i >= 0x7BF8 ? INFINITY : fabs((double)tern_f16_to_f32(above) - (double)x);
            bool to_above = up < down || (up == down && (below & 8));
            assert_int_equal(page[i], to_above ? above : below);
        }
    }
    tern_free(tile);
    tern_free(page);
}

static void test_raw(void **state)
{
    (void)state;
    static const int dims[] = {8, 80, 128};
    rng.state = 15;
    for (int c = 0; c < 12; c++) {
        struct bench b;
        int dim = dims[c % 3];
        bool key = c / 3 & 1, wide = c / 6;
        bench_open(&b, wide ? "f32" : "f16", dim, key, wide);
        for (int j = 0; j < 64 * dim; j++)
            b.x[j] = (float)(gauss() * 100);
        b.x[3] = INFINITY; /* raw pages keep what they are given */
        bench_code(&b);
        assert_memory_equal(b.data, b.tile, b.side.codec->data_bytes(dim));
        for (int t = 0; t < 64; t++) {
            for (int d = 0; d < dim; d++)
                assert_true(decoded_at(&b, t, d) == b.x[t * dim + d]);
        }
        float *q = buffer(3 * (size_t)dim * 4), *x = buffer(3 * (size_t)dim * 4), *s = buffer(3 * 64 * 4);
        float *want = buffer(3 * (size_t)(dim + 64) * 4), *o = buffer(3 * (size_t)dim * 4), shrink[3] = {1, 0, 0.5f};
        for (int j = 0; j < 3 * dim; j++)
            q[j] = o[j] = want[j] = (float)gauss();
        if (key) {
            struct tern_kv_query query = {.x = x};
            b.side.codec->prep(&b.side, &query, q, 3, true);
            assert_memory_equal(x, q, 3 * (size_t)dim * 4);
            b.side.codec->score(&b.side, s, &query, b.data, NULL, 3, NULL);
            tern_k.attn.score_f32(want, q, b.decoded, dim, 3);
            for (int j = 0; j < 3 * 64; j++)
                assert_true(s[j] == want[j] || (isnan(s[j]) && isnan(want[j])));
        } else {
            for (int j = 0; j < 3 * 64; j++)
                s[j] = (float)tern_rng_f64(&rng);
            b.side.codec->accum(&b.side, o, s, b.data, NULL, shrink, 3, NULL);
            tern_k.attn.accum_f32(want, s, b.decoded, shrink, dim, 64, 3);
            assert_memory_equal(o, want, 3 * (size_t)dim * 4);
            b.side.codec->finish(&b.side, o, 3);
            assert_memory_equal(o, want, 3 * (size_t)dim * 4);
        }
        void *all[] = {q, x, s, want, o};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            tern_free(all[i]);
        bench_close(&b);
    }
}

/* Every level writes the same page, also for vectors that cannot be coded. */
static void test_levels(void **state)
{
    (void)state;
    static const int dims[] = {32, 64, 80, 112, 128, 256};
    rng.state = 16;
    for (int c = 0; c < 18 * N_CODED; c++) {
        struct bench b;
        int round = c / N_CODED, dim = dims[round % 6];
        bench_open(&b, coded[c % N_CODED], dim, round / 6 & 1, round / 12);
        for (int t = 0; t < 64; t++) {
            for (int d = 0; d < dim; d++) {
                float g = (float)gauss();
                b.x[t * dim + d] = t % 8 == 0 ? 0.0f : t % 8 == 1 ? 2.0f : t % 8 == 2 ? (float)(d == t % dim) : g;
            }
            if (t % 8 == 3)
                b.x[t * dim + 5] = t & 16 ? NAN : INFINITY;
        }
        tern_kernels_init(0);
        bench_code(&b);
        size_t n_data = b.side.codec->data_bytes(dim), n_head = b.side.codec->head_bytes(dim);
        uint8_t *data = buffer(n_data), *head = buffer(n_head);
        memcpy(data, b.data, n_data);
        memcpy(head, b.head, n_head);
        tern_kernels_init(tern_cpu_detect());
        bench_code(&b);
        assert_memory_equal(data, b.data, n_data);
        assert_memory_equal(head, b.head, n_head);
        for (int t = 0; t < 64; t += 8) {
            assert_int_equal(b.head[t], 0);     /* zeros */
            assert_int_equal(b.head[t + 3], 0); /* infinity, NaN */
            for (int d = 0; d < dim; d++) {
                assert_true(decoded_at(&b, t, d) == 0.0f);
                if (d < TERN_KVQ_BLOCK || b.side.codec->rotated) /* unrotated, the damage stays in its block */
                    assert_true(decoded_at(&b, t + 3, d) == 0.0f);
            }
        }
        tern_free(data);
        tern_free(head);
        bench_close(&b);
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

#define HEADS 5

struct attention {
    struct bench k, v;
    float *q, *x, *s, *o, *scale;
    int8_t *q8;
    int32_t *sum;
};

/* out[HEADS][dim]: softmax attention of the first n tokens, straight from vectors, in double. */
static void reference(double *out, const float *q, const float *k, const float *v, int dim, int n)
{
    for (int i = 0; i < HEADS; i++) {
        double p[64], top = -INFINITY, l = 0;
        for (int t = 0; t < n; t++) {
            p[t] = 0;
            for (int d = 0; d < dim; d++)
                p[t] += (double)q[i * dim + d] * (double)k[t * dim + d];
            top = fmax(top, p[t]);
        }
        memset(out + i * dim, 0, (size_t)dim * sizeof *out);
        for (int t = 0; t < n; t++) {
            p[t] = exp2(p[t] - top);
            l += p[t];
        }
        for (int t = 0; t < n; t++) {
            for (int d = 0; d < dim; d++)
                out[i * dim + d] += p[t] / l * (double)v[t * dim + d];
        }
    }
}

/* The same through the codecs; `narrow` on codes, else on decoded pages. */
static void through_codecs(struct attention *a, int dim, int n, bool narrow)
{
    const struct tern_kv_codec *k = a->k.side.codec, *v = a->v.side.codec;
    struct tern_kv_query query = {a->x, a->q8, a->scale, a->sum};
    float shrink[HEADS], m[HEADS], l[HEADS];
    k->prep(&a->k.side, &query, a->q, HEADS, narrow);
    if (narrow)
        k->score(&a->k.side, a->s, &query, a->k.data, a->k.head, HEADS, a->v.data);
    else
        tern_k.attn.score_f32(a->s, a->x, a->k.decoded, dim, HEADS);
    memset(a->o, 0, (size_t)(HEADS * dim) * sizeof *a->o);
    for (int i = 0; i < HEADS; i++) {
        m[i] = -INFINITY;
        l[i] = 0;
        shrink[i] = tern_k.attn.softmax(a->s + i * 64, 0, 1, 0, n, &m[i], &l[i]);
    }
    if (narrow)
        v->accum(&a->v.side, a->o, a->s, a->v.data, a->v.head, shrink, HEADS, NULL);
    else
        tern_k.attn.accum_f32(a->o, a->s, a->v.decoded, shrink, dim, 64, HEADS);
    for (int j = 0; j < HEADS * dim; j++)
        a->o[j] /= l[j / dim];
    v->finish(&a->v.side, a->o, HEADS);
}

/* Decoded vectors in the model's domain, [64][dim]. */
static void undo(const struct bench *b, float *out)
{
    int dim = b->side.dim;
    for (int t = 0; t < 64; t++) {
        for (int d = 0; d < dim; d++)
            out[t * dim + d] = decoded_at(b, t, d);
        if (b->side.codec->rotated)
            tern_k.kvq.rotate(out + t * dim, b->sign, dim, 1);
    }
}

/* For every length: the codes cost what they cost (`budget`, relative squared error), and the kernels add less than
 * `share` of that on top. */
static void check_attention(const char *ks, const char *vs, int dim, double budget, double share)
{
    struct attention a = {.q = buffer((size_t)(HEADS * dim) * 4)};
    bench_open(&a.k, ks, dim, true, false);
    bench_open(&a.v, vs, dim, false, false);
    a.x = buffer((size_t)(HEADS * dim) * 4);
    a.s = buffer(HEADS * 64 * 4);
    a.o = buffer((size_t)(HEADS * dim) * 4);
    a.q8 = buffer((size_t)(HEADS * dim));
    a.scale = buffer(HEADS * 16);
    a.sum = buffer(HEADS * 16);
    float *k = buffer((size_t)(64 * dim) * 4), *v = buffer((size_t)(64 * dim) * 4);
    double *exact = buffer((size_t)(HEADS * dim) * 8), *coded_ref = buffer((size_t)(HEADS * dim) * 8);
    double total = 0, code_error = 0, kernel_error = 0, wide_error = 0;
    for (int round = 0; round < 12; round++) {
        for (int j = 0; j < 64 * dim; j++) {
            a.k.x[j] = (float)gauss();
            a.v.x[j] = (float)gauss();
        }
        bench_code(&a.k);
        bench_code(&a.v);
        undo(&a.k, k);
        undo(&a.v, v);
        for (int n = 1; n <= 64; n++) {
            for (int j = 0; j < HEADS * dim; j++) /* scores with a standard deviation of 2 nats */
                a.q[j] = (float)(gauss() * 2 * 1.4426950408889634 / sqrt(dim));
            reference(exact, a.q, a.k.x, a.v.x, dim, n);
            reference(coded_ref, a.q, k, v, dim, n);
            for (int narrow = 0; narrow < 2; narrow++) {
                through_codecs(&a, dim, n, narrow);
                for (int j = 0; j < HEADS * dim; j++) {
                    double e = (double)a.o[j] - coded_ref[j];
                    *(narrow ? &kernel_error : &wide_error) += e * e;
                }
            }
            for (int j = 0; j < HEADS * dim; j++) {
                double e = coded_ref[j] - exact[j];
                code_error += e * e;
                total += exact[j] * exact[j];
            }
        }
    }
    print_message("k=%s v=%s dim %d: codes %.2e, narrow kernels add %.2e (%.2f %%), wide %.1e\n", ks, vs, dim,
                  code_error / total, kernel_error / total, 100 * kernel_error / code_error, wide_error / total);
    assert_true(code_error < budget * total);
    assert_true(kernel_error < share * code_error);
    assert_true(wide_error < 1e-10 * total);
    void *all[] = {a.q, a.x, a.s, a.o, a.q8, a.scale, a.sum, k, v, exact, coded_ref};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
    bench_close(&a.k);
    bench_close(&a.v);
}

static void test_attention(void **state)
{
    (void)state;
    rng.state = 17;
    check_attention("l4", "l4", 64, 0.026, 0.01);
    check_attention("l4", "l4", 128, 0.026, 0.01);
    check_attention("l4", "l4", 256, 0.026, 0.01);
    check_attention("l3", "l3", 128, 0.09, 0.005);
    check_attention("l2", "l2", 128, 0.28, 0.002);
    check_attention("q8", "l4", 128, 0.012, 0.02);
    check_attention("f16", "l3", 64, 0.04, 0.001);
    check_attention("f16", "l4", 128, 0.012, 0.004);
    check_attention("f16", "t4", 64, 0.008, 0.008);
    check_attention("f16", "q8", 96, 1e-4, 0.02);
    check_attention("l4", "q8", 512, 0.016, 0.01);
    check_attention("t4", "t4", 64, 0.016, 0.02);
    check_attention("t4", "t4", 128, 0.016, 0.02);
    check_attention("t3", "t3", 128, 0.06, 0.01);
    check_attention("t2", "t2", 256, 0.2, 0.005);
    check_attention("t4", "t3", 512, 0.05, 0.01);
    check_attention("l4", "t4", 96, 0.026, 0.01);
    check_attention("t4", "l4", 192, 0.026, 0.02);
    check_attention("t4", "t4", 80, 0.016, 0.02);
    check_attention("l3", "t3", 112, 0.09, 0.01);
    check_attention("q8", "q8", 160, 1.3e-4, 1); /* query and key are both int8: each adds its own half */
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    tern_kernels_init(tern_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry),  cmocka_unit_test(test_sizes),      cmocka_unit_test(test_signs),
        cmocka_unit_test(test_headers),   cmocka_unit_test(test_page_order), cmocka_unit_test(test_quality),
        cmocka_unit_test(test_q8_bound),  cmocka_unit_test(test_round_trip), cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_bf16),      cmocka_unit_test(test_raw),        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
