/* libternkv: the same bytes and numbers as the engine's codec, the error of whole attentions, misuse.
 *
 * This program links both libraries: what it calls tern_* is libtern's, what it calls ternkv_* has a copy of its own.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "tern/kvq.h"

#define N_Q   5
#define LAYER 3

static struct tern_rng rng;

static float gauss(void)
{
    double u = 1.0 - tern_rng_f64(&rng), v = tern_rng_f64(&rng);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static float *noise(size_t n)
{
    float *x;
    assert_int_equal(tern_alloc(&x, n, sizeof *x, NULL), 0);
    for (size_t j = 0; j < n; j++)
        x[j] = gauss();
    return x;
}

static void *zeros(size_t bytes)
{
    void *p;
    assert_int_equal(tern_alloc(&p, bytes, 1, NULL), 0);
    return p;
}

static void free_all(void **all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tern_free(all[i]);
}
#define FREE_ALL(...) free_all((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))

static ternkv_side *open_side(const char *scheme, int dim, bool key, const float *mean, const float *scale)
{
    tern_error err = {0};
    ternkv_side *s;
    ternkv_params p = {.scheme = scheme, .dim = dim, .key = key, .layer = LAYER, .mean = mean, .scale = scale};
    if (ternkv_open(&s, &p, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

#define OK(call)                      \
    do {                              \
        tern_error err_ = {0};        \
        if ((call) < 0)               \
            fail_msg("%s", err_.msg); \
    } while (0)

/* ---- equal to the engine ------------------------------------------------------------------------------------ */

/* The engine's side of the same parameters. */
struct engine {
    struct tern_kv_side side;
    struct tern_kv_cond cond;
    float *sign, *unscale;
};

static void engine_open(struct engine *e, const char *scheme, int dim, bool key, const float *mean, const float *scale)
{
    const struct tern_kv_codec *c = tern_kv_codec_find(scheme, strlen(scheme));
    *e = (struct engine){.sign = zeros((size_t)dim * 4), .unscale = zeros((size_t)dim * 4)};
    e->side = (struct tern_kv_side){.codec = c, .dim = dim, .key = key, .raw32 = !c->raw || c->bits == 32};
    tern_kv_signs(e->sign, dim, LAYER, key);
    if (c->rotated)
        e->side.sign = e->sign;
    for (int d = 0; mean && d < dim; d++)
        e->unscale[d] = 1.0f / scale[d];
    e->cond = (struct tern_kv_cond){.mean = mean, .scale = scale, .unscale = e->unscale};
    if (mean)
        e->side.cond = &e->cond;
}

static void engine_encode(const struct engine *e, uint8_t *data, uint16_t *head, const float *x, int n)
{
    const int dim = e->side.dim;
    float *tile = zeros((size_t)dim * 64 * 4);
    void *scratch = zeros(TERN_KV_SCRATCH);
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < dim; d++) {
            int at = e->side.key ? d * 64 + t : t * dim + d;
            if (e->side.raw32)
                tile[at] = x[t * dim + d];
            else
                ((uint16_t *)tile)[at] = tern_f32_to_f16(x[t * dim + d]);
        }
    }
    e->side.codec->encode(&e->side, data, head, tile, 0, scratch);
    FREE_ALL(tile, scratch);
}

static void same_scores(const struct engine *e, const ternkv_side *s, const uint8_t *page, const uint8_t *data,
                        const uint16_t *head)
{
    const size_t dim = (size_t)e->side.dim;
    float *q = noise(N_Q * dim), *x = zeros(N_Q * dim * 4), *scale = zeros(N_Q * 16);
    float *want = zeros(N_Q * 64 * 4), *got = zeros(N_Q * 64 * 4);
    struct tern_kv_query eq = {.x = x, .q = zeros(N_Q * dim), .scale = scale, .sum = zeros(N_Q * 16)};
    ternkv_query *query = zeros(ternkv_query_bytes(s, N_Q));
    e->side.codec->prep(&e->side, &eq, q, N_Q, true);
    e->side.codec->score(&e->side, want, &eq, data, head, N_Q, NULL);
    for (int j = 0; e->side.cond && j < N_Q * 64; j++) {
        float shift = 0; /* the chain that the contract names */
        for (size_t d = 0; d < dim; d++)
            shift = fmaf(q[(size_t)(j / 64) * dim + d], e->side.cond->mean[d], shift);
        want[j] += shift;
    }
    OK(ternkv_prep(s, query, q, N_Q, &err_));
    OK(ternkv_score(s, got, query, page, &err_));
    assert_memory_equal(got, want, N_Q * 64 * 4);
    OK(ternkv_prep(s, query, q + 2 * dim, 1, &err_)); /* a head alone, where rows may be unaligned, scores as before */
    OK(ternkv_score(s, got, query, page, &err_));
    assert_memory_equal(got, want + 2 * 64, 64 * 4);
    FREE_ALL(q, x, scale, want, got, eq.q, eq.sum, query);
}

static void same_sums(const struct engine *e, const ternkv_side *s, const uint8_t *page, const uint8_t *data,
                      const uint16_t *head)
{
    const size_t n = N_Q * (size_t)e->side.dim;
    float *p = zeros(N_Q * 64 * 4), *want = noise(n), *got = zeros(n * 4), shrink[N_Q] = {1, 0, 0.5f, 0.25f, 1};
    memcpy(got, want, n * 4);
    for (int j = 0; j < N_Q * 64; j++)
        p[j] = (float)tern_rng_f64(&rng);
    for (int round = 0; round < 2; round++) {
        e->side.codec->accum(&e->side, want, p, data, head, round ? NULL : shrink, N_Q, NULL);
        OK(ternkv_accum(s, got, p, page, round ? NULL : shrink, N_Q, &err_));
        assert_memory_equal(got, want, n * 4);
    }
    e->side.codec->finish(&e->side, want, N_Q);
    OK(ternkv_finish(s, got, N_Q, &err_));
    assert_memory_equal(got, want, n * 4);
    FREE_ALL(p, want, got);
}

static void same_vectors(const struct engine *e, const ternkv_side *s, const uint8_t *page, const uint8_t *data,
                         const uint16_t *head)
{
    const size_t dim = (size_t)e->side.dim;
    float *raw = zeros(dim * 64 * 4), *want = zeros(dim * 64 * 4), *got = zeros(dim * 64 * 4);
    void *scratch = zeros(ternkv_get_info(s)->scratch_bytes);
    e->side.codec->decode(&e->side, raw, data, head);
    for (size_t t = 0; t < 64; t++) {
        for (size_t d = 0; d < dim; d++)
            want[t * dim + d] = raw[e->side.key ? d * 64 + t : t * dim + d];
        if (e->side.sign)
            tern_k.kvq.rotate(want + t * dim, e->sign, e->side.dim, 1);
        for (size_t d = 0; e->side.cond && d < dim; d++)
            want[t * dim + d] = want[t * dim + d] * e->unscale[d] + e->cond.mean[d];
    }
    OK(ternkv_decode(s, got, page, scratch, &err_));
    assert_memory_equal(got, want, dim * 64 * 4);
    FREE_ALL(raw, want, got, scratch);
}

static void check_same(const char *scheme, int dim, bool key, bool conditioned)
{
    static const int lengths[] = {64, 0, 1, 63};
    struct engine e;
    float *mean = noise((size_t)dim), *scale = noise((size_t)dim), *x = noise((size_t)dim * 64 + 1);
    for (int d = 0; d < dim; d++)
        scale[d] = expf(scale[d]);
    engine_open(&e, scheme, dim, key, conditioned ? mean : NULL, scale);
    ternkv_side *s = open_side(scheme, dim, key, conditioned ? mean : NULL, conditioned ? scale : NULL);
    const ternkv_info *info = ternkv_get_info(s);
    const size_t n_head = e.side.codec->head_bytes(dim), n_data = e.side.codec->data_bytes(dim);
    assert_string_equal(info->scheme, e.side.codec->name);
    assert_true(info->dim == dim && info->key == key && info->layer == LAYER && info->bits == e.side.codec->bits);
    assert_int_equal(info->head_bytes, n_head);
    assert_int_equal(info->page_bytes, n_head + n_data);
    uint8_t *page = zeros(info->page_bytes), *data = zeros(n_data);
    uint16_t *head = zeros(n_head + 64);
    void *scratch = zeros(info->scratch_bytes);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const float *from = x + i % 2; /* x need not be aligned */
        engine_encode(&e, data, head, from, lengths[i]);
        memset(page, 0xAA, info->page_bytes); /* nothing of what was there before shines through */
        OK(ternkv_encode(s, page, from, lengths[i], scratch, &err_));
        assert_memory_equal(page, head, n_head);
        assert_memory_equal(page + n_head, data, n_data);
        same_vectors(&e, s, page, data, head);
        if (key)
            same_scores(&e, s, page, data, head);
        else
            same_sums(&e, s, page, data, head);
    }
    ternkv_close(&s);
    assert_null(s);
    FREE_ALL(mean, scale, x, page, data, head, scratch, e.sign, e.unscale);
}

/* Every scheme of the registry, whichever instruction sets the engine uses. */
static void equals_the_engine(void **state)
{
    (void)state;
#ifdef TERN_TEST_FEW /* one size of each kind: sanitizers see the same code at the others */
    static const int dims[] = {16, 80, 128, 288};
#else
    static const int dims[] = {16, 32, 64, 80, 96, 112, 128, 144, 160, 256, 512};
#endif
    const unsigned masks[] = {tern_cpu_detect(), 0};
    int n = 0;
    rng.state = 1;
    for (int i = 0; tern_kv_codecs[i]; i++) {
        const struct tern_kv_codec *c = tern_kv_codecs[i];
        assert_string_equal(ternkv_scheme(i), c->name);
        for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
            const char *why;
            if (!c->accepts(dims[j], &why))
                continue;
            for (int round = 0; round < 2; round++) {
                tern_kernels_init(masks[round]);
                check_same(c->name, dims[j], true, false);
                check_same(c->name, dims[j], false, false);
                if (!c->raw && !c->unconditioned)
                    check_same(c->name, dims[j], true, true);
                n++;
            }
        }
    }
    tern_kernels_init(masks[0]);
    assert_true(n > 0);
}

static void schemes_are_listed(void **state)
{
    (void)state;
    int n = 0;
    while (tern_kv_codecs[n])
        n++;
    assert_string_equal(ternkv_scheme(0), "f32");
    assert_null(ternkv_scheme(n));
    assert_null(ternkv_scheme(n + 1));
    assert_null(ternkv_scheme(-1));
    ternkv_side *s = open_side("turbo4", 64, true, NULL, NULL);
    assert_string_equal(ternkv_get_info(s)->scheme, "l4");
    const char *level = tern_cpu_name(tern_cpu_detect());
    if (strcmp(level, "avx512bf16") == 0 || strcmp(level, "amx") == 0) /* the library multiplies no matrices */
        level = "avx512";
    assert_string_equal(ternkv_get_info(s)->level, level);
    assert_int_equal(ternkv_query_bytes(s, 0), 0);
    assert_int_equal(ternkv_query_bytes(s, -1), 0);
    assert_int_equal(ternkv_query_bytes(s, TERNKV_MAX_QUERIES + 1), 0);
    assert_true(ternkv_query_bytes(s, TERNKV_MAX_QUERIES) > (size_t)TERNKV_MAX_QUERIES * 64 * 5);
    ternkv_close(&s);
    ternkv_close(&s); /* of nothing */
    ternkv_close(NULL);
}

/* ---- whole attentions --------------------------------------------------------------------------------------- */

/* out[N_Q][dim] in double; scores are q.k in nats. */
static void exact_attention(double *out, const float *q, const float *k, const float *v, int dim, int n)
{
    double *p = zeros((size_t)n * sizeof *p);
    for (int i = 0; i < N_Q; i++) {
        double top = -INFINITY, sum = 0;
        for (int t = 0; t < n; t++) {
            p[t] = 0;
            for (int d = 0; d < dim; d++)
                p[t] += (double)q[i * dim + d] * (double)k[t * dim + d];
            top = fmax(top, p[t]);
        }
        for (int t = 0; t < n; t++)
            sum += p[t] = exp(p[t] - top);
        for (int d = 0; d < dim; d++) {
            out[i * dim + d] = 0;
            for (int t = 0; t < n; t++)
                out[i * dim + d] += p[t] / sum * (double)v[t * dim + d];
        }
    }
    tern_free(p);
}

/* One page of the running softmax of one row: returns what the sums so far are multiplied by. */
static float online_softmax(float *s, int n, float *m, float *l)
{
    float top = *m, shrink;
    for (int t = 0; t < n; t++)
        top = fmaxf(top, s[t]);
    shrink = expf(*m - top);
    *m = top;
    *l *= shrink;
    for (int t = 0; t < 64; t++)
        *l += s[t] = t < n ? expf(s[t] - top) : 0.0f;
    return shrink;
}

static void coded_attention(float *o, const ternkv_side *ks, const ternkv_side *vs, const float *q, const float *k,
                            const float *v, int n)
{
    const ternkv_info *ki = ternkv_get_info(ks), *vi = ternkv_get_info(vs);
    const size_t dim = (size_t)ki->dim;
    void *kp = zeros(ki->page_bytes), *vp = zeros(vi->page_bytes), *scratch = zeros(ki->scratch_bytes);
    ternkv_query *query = zeros(ternkv_query_bytes(ks, N_Q));
    float *s = zeros(N_Q * 64 * 4), m[N_Q], l[N_Q] = {0}, shrink[N_Q];
    for (int i = 0; i < N_Q; i++)
        m[i] = -INFINITY;
    memset(o, 0, N_Q * dim * 4);
    OK(ternkv_prep(ks, query, q, N_Q, &err_));
    for (int t0 = 0; t0 < n; t0 += 64) {
        int here = n - t0 < 64 ? n - t0 : 64;
        OK(ternkv_encode(ks, kp, k + (size_t)t0 * dim, here, scratch, &err_));
        OK(ternkv_encode(vs, vp, v + (size_t)t0 * dim, here, scratch, &err_));
        OK(ternkv_score(ks, s, query, kp, &err_));
        for (int i = 0; i < N_Q; i++)
            shrink[i] = online_softmax(s + i * 64, here, &m[i], &l[i]);
        OK(ternkv_accum(vs, o, s, vp, shrink, N_Q, &err_));
    }
    OK(ternkv_finish(vs, o, N_Q, &err_));
    for (size_t j = 0; j < N_Q * dim; j++)
        o[j] /= l[j / dim];
    FREE_ALL(kp, vp, scratch, query, s);
}

/* Relative squared error of coded against exact attention over the first n tokens. */
static double error_of(const char *scheme, const float *q, const float *k, const float *v, int dim, int n,
                       const float *mean, const float *scale)
{
    ternkv_side *ks = open_side(scheme, dim, true, mean, scale), *vs = open_side(scheme, dim, false, NULL, NULL);
    double off = 0, all = 0, *exact = zeros((size_t)(N_Q * dim) * sizeof *exact);
    float *o = zeros((size_t)(N_Q * dim) * sizeof *o);
    exact_attention(exact, q, k, v, dim, n);
    coded_attention(o, ks, vs, q, k, v, n);
    for (int j = 0; j < N_Q * dim; j++) {
        off += ((double)o[j] - exact[j]) * ((double)o[j] - exact[j]);
        all += exact[j] * exact[j];
    }
    ternkv_close(&ks);
    ternkv_close(&vs);
    FREE_ALL(exact, o);
    return off / all;
}

/* Normal keys and values, scores with a standard deviation of 2 nats, one page and several.  Codes whose relative
 * squared error is D (docs/kv-page.md) move values by D and scores by D times their variance, so at most 5 D of the
 * output. */
static void attention_keeps_the_budget(void **state)
{
    (void)state;
    static const int lengths[] = {1, 63, 64, 65, 300};
    static const double budget[] = {
        [32] = 1e-10, [16] = 1e-4, [8] = 3e-4, [4] = 5 * 0.0092, [3] = 5 * 0.0338, [2] = 5 * 0.1188};
    const int dim = 128, longest = 300, n_lengths = sizeof lengths / sizeof *lengths, rounds = 4;
    rng.state = 2;
    for (int i = 0; ternkv_scheme(i); i++) {
        double sum = 0;
        for (int j = 0; j < n_lengths * rounds; j++) {
            float *q = noise((size_t)(N_Q * dim)), *k = noise((size_t)(longest * dim));
            float *v = noise((size_t)(longest * dim));
            for (int d = 0; d < N_Q * dim; d++)
                q[d] *= 2 / sqrtf((float)dim);
            sum += error_of(ternkv_scheme(i), q, k, v, dim, lengths[j % n_lengths], NULL, NULL);
            FREE_ALL(q, k, v);
        }
        sum /= n_lengths * rounds;
        print_message("%-4s %.2e\n", ternkv_scheme(i), sum);
        /* Three bits of mantissa: a relative error of 2^-4 at most, uniform, of values spread over an octave. */
        const bool floats = strcmp(ternkv_scheme(i), "fp8") == 0;
        assert_true(sum < (floats ? 5 * 8e-4 : budget[tern_kv_codecs[i]->bits]));
    }
}

/* Keys with a large mean and channels of different sizes: conditioned codes must do better, and scores must be those
 * of the keys as they were. */
static void conditioning_helps(void **state)
{
    (void)state;
    const int dim = 64, n = 200;
    rng.state = 3;
    float *mean = noise((size_t)dim), *scale = zeros((size_t)dim * 4), *size = zeros((size_t)dim * 4);
    float *q = noise((size_t)(N_Q * dim)), *k = noise((size_t)(n * dim)), *v = noise((size_t)(n * dim));
    for (int d = 0; d < dim; d++) {
        size[d] = d % 8 ? 0.5f : 4.0f;
        scale[d] = 1 / sqrtf(size[d]);
        mean[d] *= 6;
    }
    for (int j = 0; j < n * dim; j++)
        k[j] = k[j] * size[j % dim] + mean[j % dim];
    for (int j = 0; j < N_Q * dim; j++)
        q[j] *= 0.2f / size[j % dim];
    for (int i = 0; ternkv_scheme(i); i++) {
        if (tern_kv_codecs[i]->raw || tern_kv_codecs[i]->unconditioned)
            continue;
        double plain = error_of(ternkv_scheme(i), q, k, v, dim, n, NULL, NULL);
        double conditioned = error_of(ternkv_scheme(i), q, k, v, dim, n, mean, scale);
        print_message("%-4s %.2e, conditioned %.2e\n", ternkv_scheme(i), plain, conditioned);
        assert_true(conditioned < plain);
    }
    FREE_ALL(mean, scale, size, q, k, v);
}

/* Scores are what the decoded page says, but for the query's 8 bits; sums are, but for the weights' 15. */
static void slow_twin_agrees(void **state)
{
    (void)state;
    const size_t dim = 128;
    rng.state = 4;
    for (int i = 0; ternkv_scheme(i); i++) {
        ternkv_side *ks = open_side(ternkv_scheme(i), (int)dim, true, NULL, NULL);
        ternkv_side *vs = open_side(ternkv_scheme(i), (int)dim, false, NULL, NULL);
        float *q = noise(dim), *x = noise(64 * dim), *s = zeros(64 * 4), *o = zeros(dim * 4), *p = zeros(64 * 4);
        void *page = zeros(ternkv_get_info(ks)->page_bytes), *scratch = zeros(ternkv_get_info(ks)->scratch_bytes);
        ternkv_query *query = zeros(ternkv_query_bytes(ks, 1));
        double off = 0, all = 0;
        OK(ternkv_prep(ks, query, q, 1, &err_));
        OK(ternkv_encode(ks, page, x, 64, scratch, &err_));
        OK(ternkv_score(ks, s, query, page, &err_));
        OK(ternkv_decode(ks, x, page, scratch, &err_));
        for (size_t t = 0; t < 64; t++) {
            double dot = 0;
            for (size_t d = 0; d < dim; d++)
                dot += (double)q[d] * (double)x[t * dim + d];
            off += ((double)s[t] - dot) * ((double)s[t] - dot);
            all += dot * dot;
            p[t] = (float)t;
        }
        assert_true(off < 4e-4 * all);
        off = all = 0;
        OK(ternkv_encode(vs, page, x, 64, scratch, &err_));
        OK(ternkv_accum(vs, o, p, page, NULL, 1, &err_));
        OK(ternkv_finish(vs, o, 1, &err_));
        OK(ternkv_decode(vs, x, page, scratch, &err_));
        for (size_t d = 0; d < dim; d++) {
            double sum = 0;
            for (size_t t = 0; t < 64; t++)
                sum += (double)p[t] * (double)x[t * dim + d];
            /* of sums around 290: sixty-four weights, each off by at most half a step of 1/255 of the largest */
            assert_true(fabs((double)o[d] - sum) < 4);
            off += ((double)o[d] - sum) * ((double)o[d] - sum);
            all += sum * sum;
        }
        assert_true(off < 3e-5 * all);
        ternkv_close(&ks);
        ternkv_close(&vs);
        FREE_ALL(q, x, s, o, p, page, scratch, query);
    }
}

/* What cannot be coded becomes finite, and the vectors beside it are what they were. */
static void damage_stays_in_its_vector(void **state)
{
    (void)state;
    const int dim = 256;
    rng.state = 6;
    for (int i = 0; ternkv_scheme(i); i++) {
        if (tern_kv_codecs[i]->raw)
            continue;
        for (int key = 0; key < 2; key++) {
            ternkv_side *s = open_side(ternkv_scheme(i), dim, key, NULL, NULL);
            float *x = noise(64 * (size_t)dim), *good = zeros(64 * (size_t)dim * 4), *got = zeros(64 * (size_t)dim * 4);
            void *page = zeros(ternkv_get_info(s)->page_bytes), *scratch = zeros(ternkv_get_info(s)->scratch_bytes);
            OK(ternkv_encode(s, page, x, 64, scratch, &err_));
            OK(ternkv_decode(s, good, page, scratch, &err_));
            x[3 * dim + 5] = NAN;
            x[40 * dim + 200] = -INFINITY;
            OK(ternkv_encode(s, page, x, 64, scratch, &err_));
            OK(ternkv_decode(s, got, page, scratch, &err_));
            for (int j = 0; j < 64 * dim; j++) {
                assert_true(isfinite(got[j]));
                if (j / dim != 3 && j / dim != 40)
                    assert_true(got[j] == good[j]);
            }
            ternkv_close(&s);
            FREE_ALL(x, good, got, page, scratch);
        }
    }
}

/* ---- misuse ------------------------------------------------------------------------------------------------- */

/* One sentence: not empty, one line, no full stop, and it names the thing. */
static void refused(int rc, tern_error *err, const char *names)
{
    assert_int_equal(rc, TERN_EINVAL);
    assert_int_equal(err->code, TERN_EINVAL);
    assert_true(*err->msg && !strchr(err->msg, '\n') && err->msg[strlen(err->msg) - 1] != '.');
    if (!strstr(err->msg, names))
        fail_msg("\"%s\" does not name %s", err->msg, names);
    *err = (tern_error){0};
}

static void bad_sides_are_refused(void **state)
{
    (void)state;
    float ones[64], bad[64];
    for (int d = 0; d < 64; d++)
        ones[d] = bad[d] = 1;
    const struct {
        ternkv_params p;
        const char *names;
    } cases[] = {
        {{.dim = 64}, "no KV scheme"},
        {{.scheme = "", .dim = 64}, "\"\""},
        {{.scheme = "l5", .dim = 64}, "\"l5\""},
        {{.scheme = "l4", .dim = 0}, "0 dims"},
        {{.scheme = "l4", .dim = 33}, "33 dims"},
        {{.scheme = "l4", .dim = 1000}, "1000 dims"},
        {{.scheme = "l4", .dim = -64}, "-64 dims"},
        {{.scheme = "q8", .dim = 0}, "0 dims"},
        {{.scheme = "q8", .dim = 33}, "33 dims"},
        {{.scheme = "f16", .dim = 0}, "0 dims"},
        {{.scheme = "f16", .dim = 33}, "33 dims"},
        {{.scheme = "f32", .dim = 1000}, "1000 dims"},
        {{.scheme = "l4", .dim = 64, .layer = -1}, "layer -1"},
        {{.scheme = "l4", .dim = 64, .key = true, .mean = ones}, "no scale"},
        {{.scheme = "l4", .dim = 64, .key = true, .scale = ones}, "no mean"},
        {{.scheme = "l4", .dim = 64, .mean = ones, .scale = ones}, "values"},
        {{.scheme = "f16", .dim = 64, .key = true, .mean = ones, .scale = ones}, "f16"},
        {{.scheme = "affine4", .dim = 64, .key = true, .mean = ones, .scale = ones}, "without conditioning"},
        {{.scheme = "l4", .dim = 64, .key = true, .mean = bad, .scale = ones}, "mean of dim 7"},
        {{.scheme = "l4", .dim = 64, .key = true, .mean = ones, .scale = bad}, "scale of dim 7"},
    };
    const float wrong[] = {NAN, INFINITY, 0, -1, 1e-42f};
    tern_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t j = 0; j < sizeof wrong / sizeof *wrong; j++) {
            ternkv_side *s = (ternkv_side *)ones;
            bad[7] = cases[i].p.mean == bad ? wrong[j % 2] : wrong[j];
            refused(ternkv_open(&s, &cases[i].p, &err), &err, cases[i].names);
            assert_null(s);
        }
    }
    ternkv_side *s;
    assert_int_equal(ternkv_open(&s, &cases[2].p, NULL), TERN_EINVAL); /* nobody asks for the sentence */
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    const size_t dim = 64;
    ternkv_side *k = open_side("l4", (int)dim, true, NULL, NULL), *v = open_side("l4", (int)dim, false, NULL, NULL);
    ternkv_side *other = open_side("l4", (int)dim, true, NULL, NULL);
    const ternkv_info *info = ternkv_get_info(k);
    float *x = noise(64 * dim), *s = zeros(64 * 4), *o = zeros(dim * 4);
    uint8_t *page = zeros(info->page_bytes + 64), *scratch = zeros(info->scratch_bytes + 64);
    uint8_t *query = zeros(ternkv_query_bytes(k, 1) + 64);
    ternkv_query *q = (ternkv_query *)query, *odd_query = (ternkv_query *)(query + 8);
    tern_error err = {0};
    refused(ternkv_encode(k, page, x, -1, scratch, &err), &err, "-1 tokens");
    refused(ternkv_encode(k, page, x, 65, scratch, &err), &err, "65 tokens");
    refused(ternkv_encode(k, page + 32, x, 64, scratch, &err), &err, "page");
    refused(ternkv_encode(k, NULL, x, 64, scratch, &err), &err, "page");
    refused(ternkv_encode(k, page, x, 64, scratch + 4, &err), &err, "scratch");
    refused(ternkv_decode(k, x + 1, page, scratch, &err), &err, "x must");
    refused(ternkv_decode(k, x, page + 2, scratch, &err), &err, "page");
    refused(ternkv_decode(k, x, page, scratch + 2, &err), &err, "scratch");
    refused(ternkv_prep(v, q, x, 1, &err), &err, "queries");
    refused(ternkv_prep(k, q, x, 0, &err), &err, "0 query heads");
    refused(ternkv_prep(k, q, x, TERNKV_MAX_QUERIES + 1, &err), &err, "65537 query heads");
    refused(ternkv_prep(k, odd_query, x, 1, &err), &err, "query");
    OK(ternkv_prep(k, q, x, 1, &err_));
    refused(ternkv_score(v, s, q, page, &err), &err, "scores");
    refused(ternkv_score(other, s, q, page, &err), &err, "another side");
    refused(ternkv_score(k, s + 1, q, page, &err), &err, "s must");
    refused(ternkv_score(k, s, odd_query, page, &err), &err, "query");
    refused(ternkv_score(k, s, q, page + 1, &err), &err, "page");
    refused(ternkv_accum(k, o, s, page, NULL, 1, &err), &err, "weights");
    refused(ternkv_accum(v, o, s, page, NULL, 0, &err), &err, "0 query heads");
    refused(ternkv_accum(v, o + 1, s, page, NULL, 1, &err), &err, "o must");
    refused(ternkv_accum(v, o, s + 1, page, NULL, 1, &err), &err, "p must");
    refused(ternkv_accum(v, o, s, page + 1, NULL, 1, &err), &err, "page");
    refused(ternkv_finish(k, o, 1, &err), &err, "outputs");
    refused(ternkv_finish(v, o, -1, &err), &err, "-1 query heads");
    refused(ternkv_finish(v, o + 1, 1, &err), &err, "o must");
    for (size_t i = 0; i < info->page_bytes; i++)
        assert_int_equal(page[i], 0); /* a refused call has written nothing */
    ternkv_close(&k);
    ternkv_close(&v);
    ternkv_close(&other);
    FREE_ALL(x, s, o, page, scratch, query);
}

/* ---- threads ------------------------------------------------------------------------------------------------ */

struct worker {
    pthread_t thread;
    const ternkv_side *side; /* all share it */
    const float *x;
    uint8_t *page;
    float *s;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    void *scratch = zeros(ternkv_get_info(w->side)->scratch_bytes);
    ternkv_query *query = zeros(ternkv_query_bytes(w->side, N_Q));
    for (int round = 0; round < 20; round++) {
        (void)ternkv_encode(w->side, w->page, w->x, 64, scratch, NULL);
        (void)ternkv_prep(w->side, query, w->x, N_Q, NULL);
        (void)ternkv_score(w->side, w->s, query, w->page, NULL);
    }
    FREE_ALL(scratch, query);
    return NULL;
}

static void threads_share_a_side(void **state)
{
    (void)state;
    struct worker w[4];
    ternkv_side *side = open_side("l3", 128, true, NULL, NULL);
    const size_t bytes = ternkv_get_info(side)->page_bytes;
    rng.state = 5;
    float *x = noise(64 * 128);
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){.side = side, .x = x, .page = zeros(bytes), .s = zeros(N_Q * 64 * 4)};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
        assert_memory_equal(w[i].page, w[0].page, bytes);
        assert_memory_equal(w[i].s, w[0].s, N_Q * 64 * 4);
    }
    for (int i = 0; i < 4; i++)
        FREE_ALL(w[i].page, w[i].s);
    tern_free(x);
    ternkv_close(&side);
}

/* test_ternkv [PATTERN]: only the tests whose names match. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    tern_kernels_init(tern_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_engine),          cmocka_unit_test(schemes_are_listed),
        cmocka_unit_test(attention_keeps_the_budget), cmocka_unit_test(conditioning_helps),
        cmocka_unit_test(slow_twin_agrees),           cmocka_unit_test(damage_stays_in_its_vector),
        cmocka_unit_test(bad_sides_are_refused),      cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(threads_share_a_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
