/* tern_cpu_attention against a plain float64 attention, and against itself: the result of a row may not depend on how
 * jobs are cut, on what else is in the batch, on threads or on pages outside its window. */
#include "attention_case.h"

#ifdef TERN_TEST_FEW /* each case at one of two places: sanitizers see the same code at the other */
#define AT_PLACE(i, place) ((i) % 2 == (place))
#else
#define AT_PLACE(i, place) true
#endif

/* Every length from every kind of start, raw f32 and f16 and a coded scheme without loss. */
static void lengths(void **state)
{
    (void)state;
#ifdef TERN_TEST_FEW /* sanitizers see the same code at each */
    static const int lens[] = {1, 63, 65, 128, 1000};
#else
    static const int lens[] = {1, 63, 64, 65, 128, 129, 1000, 1100};
#endif
    static const char *const schemes[][2] = {{"f32", "f32"}, {"f16", "f16"},    {"mirror", "mirror"},
                                             {"f32", "f16"}, {"mirror", "f16"}, {"f16", "mirror"}};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
        for (size_t j = 0; j < sizeof schemes / sizeof *schemes; j++) {
            struct config cfg = {.k = schemes[j][0], .v = schemes[j][1], .n_kv = 2, .group = 3, .dk = 64, .dv = 64};
            cfg.first = 4;
            cfg.coded32 = j % 2;
            int n = lens[i];
            one_config(&cfg, n, 0, tight);
            one_config(&cfg, n, n - 1, tight);
            one_config(&cfg, n, n / 2 > n - 90 ? n / 2 : n - 90, tight);
        }
}

static void shapes(void **state)
{
    (void)state;
    static const int dims[][2] = {{64, 64}, {256, 256}, {72, 40}, {40, 136}, {192, 128}, {8, 16}};
    static const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int j = 0; j < 2; j++) {
            const int *d = dims[(2 * g + (size_t)j) % 6];
            const char *scheme = (g + (size_t)j) % 3 == 0 ? "f16" : (g + (size_t)j) % 3 == 1 ? "mirror" : "f32";
            struct config cfg = {.k = scheme, .v = scheme, .n_kv = 1 + (int)g % 3, .group = groups[g], .dk = d[0]};
            cfg.dv = d[1];
            cfg.first = 1 + (int)g;
            one_config(&cfg, 200, 70, tight);
        }
}

static void windows(void **state)
{
    (void)state;
    static const int sizes[] = {1, 8, 64, 65, 70, 512};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int coded = 0; coded < 2; coded++) {
            const char *scheme = coded ? "mirror" : "f16";
            struct config cfg = {.k = scheme, .v = scheme, .n_kv = 2, .group = 2, .dk = 64, .dv = 32, .first = 4};
            cfg.window = sizes[i];
            one_config(&cfg, 300, 0, tight);
            one_config(&cfg, 1100, 900, tight);
            cfg.chunked = true;
            one_config(&cfg, 300, 200, tight);
        }
}

static void softcaps(void **state)
{
    (void)state;
    struct budget b = {1e-5, 5e-5}; /* the cap's own budget is 1e-6 * cap in the exponent */
    for (int i = 0; i < 3; i++) {
        struct config cfg = {.k = i ? "mirror" : "f32", .v = "f16", .n_kv = 2, .group = 2, .dk = 64, .dv = 64};
        cfg.first = 4;
        cfg.softcap = i == 2 ? 50 : 3;
        cfg.window = i == 1 ? 100 : 0;
        one_config(&cfg, 300, 100, b);
    }
}

static void sinks(void **state)
{
    (void)state;
    static const int firsts[] = {0, 1, 3, 4, 5, 63, 64};
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        struct config cfg = {.k = "mirror", .v = i % 2 ? "f16" : "mirror", .n_kv = 2, .group = 5, .dk = 64, .dv = 72};
        cfg.first = firsts[i];
        cfg.coded32 = i % 2;
        one_config(&cfg, 150, 0, tight);
        cfg.window = 146; /* the last rows see some of the sinks, or none */
        one_config(&cfg, 150, 140, tight);
    }
}

/* Windows that the first tokens stay outside of: a row at p sees tokens > p - window and tokens < first. */
static void kept_first_tokens(void **state)
{
    (void)state;
    static const struct {
        int window, first, recent;
    } sizes[] = {{60, 4, 0}, {64, 0, 0}, {63, 1, 0}, {1, 64, 0}, {70, 63, 0}, {128, 4, 0}, {124, 5, 1}, {256, 3, 3}};
    static const char *const schemes[][2] = {{"mirror", "mirror"}, {"f16", "f16"},    {"f32", "f32"},
                                             {"f16", "mirror"},    {"mirror", "f32"}, {"bf16", "f16"}};
    static const int lens[] = {1, 63, 64, 65, 127, 128, 129, 400, 1400};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof lens / sizeof *lens; j++) {
            const size_t scheme = (i + j) % 6;
            struct config cfg = {.k = schemes[scheme][0], .v = schemes[scheme][1], .n_kv = 2, .group = 3, .dk = 40};
            const int n = lens[j], around = sizes[i].window + sizes[i].first;
            cfg.dv = 72;
            cfg.keeps = true;
            cfg.window = sizes[i].window;
            cfg.first = sizes[i].first;
            cfg.recent = scheme == 1 || scheme == 2 || scheme == 5 ? 0 : sizes[i].recent;
            cfg.coded32 = j % 2;
            cfg.softcap = j == 6 ? 9 : 0;
            struct budget b = j == 6 ? (struct budget){1e-5, 5e-5} : tight;
            b = scheme == 5 ? (struct budget){5e-3, 0.02} : b; /* the oracle's tile has not been rounded to bf16 */
            one_config(&cfg, n, n > 90 ? n - 90 : 0, b);
            if (n > around + 3) /* the rows at which tokens begin to be forgotten */
                one_config(&cfg, around + 3, around > 4 ? around - 4 : 0, b);
        }
}

/* The newest pages before the own one are seen raw although their codes exist. */
static void recent_pages(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct config cfg = {.k = "mirror", .v = i == 1 ? "f16" : "mirror", .n_kv = 2, .group = 3, .dk = 64, .dv = 32};
        cfg.first = 4;
        cfg.recent = i == 3 ? 15 : i;
        cfg.window = i == 2 ? 150 : 0;
        one_config(&cfg, 400, 0, tight);
        one_config(&cfg, 1100, 1000, tight);
        cfg.k = "l4"; /* now the codes differ from the tiles */
        one_config(&cfg, 1100, 1000, (struct budget){0.05, 0.1});
        struct two t;
        two_init(&t, &cfg, 1240, 333, 55);
        if (AT_PLACE(i, 0))
            check_invariance(&t.s, &t.other, 0, 150);
        if (AT_PLACE(i, 1))
            check_invariance(&t.s, &t.other, 1003, 140);
        two_clear(&t);
    }
}

static void invariance(void **state)
{
    (void)state;
    static const struct config cfgs[] = {
        {.k = "f16", .v = "f16", .n_kv = 2, .group = 3, .dk = 64, .dv = 64},
        {.k = "f32", .v = "f32", .n_kv = 1, .group = 9, .dk = 32, .dv = 72},
        {.k = "mirror", .v = "f16", .n_kv = 2, .group = 4, .dk = 64, .dv = 32, .first = 4, .window = 70},
        {.k = "mirror", .v = "mirror", .n_kv = 1, .group = 18, .dk = 32, .dv = 32, .first = 5, .softcap = 9},
        {.k = "f16", .v = "mirror", .n_kv = 3, .group = 1, .dk = 64, .dv = 64, .first = 4, .window = 8},
        {.k = "mirror", .v = "f16", .n_kv = 1, .group = 2, .dk = 64, .dv = 32, .first = 4, .window = 90, .chunked = 1},
        {.k = "mirror", .v = "f16", .n_kv = 2, .group = 3, .dk = 64, .dv = 32, .first = 4, .window = 90, .keeps = 1},
        {.k = "f16", .v = "f16", .n_kv = 1, .group = 5, .dk = 40, .dv = 72, .first = 7, .window = 200, .keeps = 1},
        {.k = "t4",
         .v = "l3",
         .n_kv = 1,
         .group = 2,
         .dk = 64,
         .dv = 32,
         .first = 3,
         .window = 131,
         .recent = 1,
         .keeps = 1},
    };
    for (size_t i = 0; i < sizeof cfgs / sizeof *cfgs; i++) {
        struct two t;
        two_init(&t, &cfgs[i], 1240, 333, 5 + i);
        if (AT_PLACE(i, 0))
            check_invariance(&t.s, &t.other, 0, 150);
        if (AT_PLACE(i, 1))
            check_invariance(&t.s, &t.other, 1003, 140); /* crosses the border between ranges at token 1024 */
        check_invariance(&t.other, &t.s, 332, 1);
        two_clear(&t);
    }
}

/* More than 64 ranges of 16 pages: merging goes in chunks. */
static void many_ranges(void **state)
{
    (void)state;
    struct config cfg = {.k = "f16", .v = "f16", .n_kv = 1, .group = 2, .dk = 8, .dv = 8};
    struct layer l;
    struct seq s;
    layer_init(&l, &cfg);
    seq_init(&s, &l, 67000, 9);
    /* The mean of 67000 random values is nearly nothing: only the absolute error says something. */
    check_rows(&s, 66990, 10, (struct budget){1e-4, 2e-6});
    float want[10 * 16], got[10 * 16];
    struct span whole = {.s = &s, .pos = 66990, .n = 10},
                parts[3] = {{&s, 66990, 1, false, true}, {&s, 66991, 3, false, false}, {&s, 66994, 6, false, true}};
    run(want, &whole, 1, 1);
    run(got, parts, 3, 4);
    same(got, want, 10 * 16, "many ranges", &cfg);
    seq_clear(&s);
    layer_clear(&l);
}

/* Heads that go through a group of pages side by side: all of them, shares of them, two units of one head, pages that a
 * window hides, and one thread's tasks in any order. */
static void side_by_side(void **state)
{
    (void)state;
    static const struct config cfgs[] = {
        {.k = "t4", .v = "l3", .n_kv = 5, .group = 3, .dk = 64, .dv = 32, .first = 3},
        {.k = "f16", .v = "mirror", .n_kv = 6, .group = 17, .dk = 16, .dv = 8, .first = 4},
        {.k = "mirror", .v = "f16", .n_kv = 8, .group = 1, .dk = 8, .dv = 16, .first = 4, .window = 2100},
        {.k = "mirror", .v = "mirror", .n_kv = 9, .group = 2, .dk = 8, .dv = 24, .first = 5, .recent = 1},
    };
    for (size_t i = 0; i < sizeof cfgs / sizeof *cfgs; i++) {
        struct two t;
        two_init(&t, &cfgs[i], 4400, 1200, 21 + i);
        if (i)
            check_rows(&t.s, 4350, 3, (struct budget){1e-5, 1e-5});
        check_invariance(&t.s, &t.other, 4348, 7); /* the own page is the last of a group, then the first of the next */
        check_invariance(&t.other, &t.s, 1150, 4);
        two_clear(&t);
    }
}

/* So many narrow rows that their partial results do not fit at once, and more blocks than the table holds. */
static void many_rows(void **state)
{
    (void)state;
    struct config cfg = {.k = "f16", .v = "f16", .n_kv = 2, .group = 16, .dk = 8, .dv = 256};
    struct layer l;
    struct seq s;
    layer_init(&l, &cfg);
    seq_init(&s, &l, 1160, 10);
    enum { N = 1100 };
    size_t width = 32 * 256;
    static struct span spans[N];
    float *want = grab(N * width, 4), *got = grab(N * width, 4);
    struct span whole = {.s = &s, .pos = 60, .n = N};
    for (int i = 0; i < N; i++)
        spans[i] = (struct span){&s, 60 + i, 1, false, false};
    run(want, &whole, 1, 2);
    run(got, spans, N, 2);
    same(got, want, N * width, "many rows", &cfg);
    check_row(got, &s, 60, tight);
    check_row(got + (N - 1) * width, &s, 60 + N - 1, tight);
    tern_free(want);
    tern_free(got);
    seq_clear(&s);
    layer_clear(&l);
}

/* Under sanitizers every other mixture of schemes is enough. */
#ifdef TERN_DEBUG
#define SCHEME_STEP 2
#else
#define SCHEME_STEP 1
#endif

/* Every registered scheme.  Wide rows use exactly the decoded values; narrow rows round queries and weights to integers
 * besides; and the codes themselves are about as far from the original as their bits allow. */
static void schemes(void **state)
{
    (void)state;
    const struct budget rounded = {0.05, 0.1};
    for (int i = 0; tern_kv_codecs[i]; i++) {
        const struct tern_kv_codec *c = tern_kv_codecs[i];
        const bool rounds = !c->raw || strcmp(c->name, "bf16") == 0;
        const bool floats = strcmp(c->name, "fp8") == 0; /* three bits of mantissa */
        const double most = !rounds        ? 1e-5
                            : floats       ? 0.1
                            : c->bits >= 8 ? 0.05
                            : c->bits == 4 ? 0.35
                            : c->bits == 3 ? 0.65
                                           : 1.1;
        for (int mixed = i % SCHEME_STEP; mixed < 4; mixed += SCHEME_STEP) {
            struct config cfg = {.k = mixed == 1 ? "f16" : c->name, .v = mixed == 2 ? "f16" : c->name, .n_kv = 2};
            cfg.group = 1 + 2 * mixed;
            cfg.dk = mixed == 3 ? 80 : mixed == 2 ? 128 : 64;
            cfg.dv = mixed == 3 ? 112 : mixed == 0 ? 128 : mixed == 1 ? 256 : 64;
            cfg.first = 4;
            struct two t;
            two_init(&t, &cfg, 1100, 100, 31 + (uint64_t)i);
            check_role(&t.s, 1060, 40, true, tight);
            check_role(&t.s, 0, 130, true, tight);
            check_role(&t.s, 1060, 40, false, c->raw ? tight : rounded);
            check_role(&t.s, 0, 130, false, c->raw ? tight : rounded);
            const double error = scheme_error(&t.s, 1060, 40);
            if (!(error <= most))
                fail_msg("%s: off by %g", c->name, error);
            check_invariance(&t.s, &t.other, 1010, 60);
            two_clear(&t);
        }
    }
}

/* The same checks hold at every instruction-set level. */
static void levels(void **state)
{
    (void)state;
    struct config cfg = {.k = "f16", .v = "f32", .n_kv = 2, .group = 3, .dk = 72, .dv = 64};
    struct layer l;
    struct seq s;
    enum { N = 120 };
    size_t n = N * 6 * 64;
    float *got = grab(n, 4);
    layer_init(&l, &cfg);
    seq_init(&s, &l, 1100, 12);
#define X(bit, name, word) , tern_cpu_mask(bit)
    const unsigned masks[] = {0 TERN_CPU_LIST(X)};
#undef X
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
        for (int wide = 0; wide < 2; wide++) {
            if ((masks[i] & tern_cpu_detect()) != masks[i])
                continue;
            tern_kernels_init(masks[i]);
            struct span sp = {.s = &s, .pos = 1000 - N / 2, .n = N, .wide = wide};
            run(got, &sp, 1, 2);
            for (int r = 0; r < N; r += 13)
                check_row(got + (size_t)r * 6 * 64, &s, sp.pos + r, tight);
        }
    tern_kernels_init(~0u);
    tern_free(got);
    seq_clear(&s);
    layer_clear(&l);
}

/* test_attention [PATTERN]: only the tests whose names match. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths),      cmocka_unit_test(shapes),     cmocka_unit_test(windows),
        cmocka_unit_test(softcaps),     cmocka_unit_test(sinks),      cmocka_unit_test(kept_first_tokens),
        cmocka_unit_test(recent_pages), cmocka_unit_test(invariance), cmocka_unit_test(many_ranges),
        cmocka_unit_test(side_by_side), cmocka_unit_test(many_rows),  cmocka_unit_test(schemes),
        cmocka_unit_test(levels),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
