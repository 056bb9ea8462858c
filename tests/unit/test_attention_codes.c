/* Attention of prompt rows in 16-bit integers, on any machine: against the float64 oracle, within what 16 bits round
 * away; against itself, bit for bit; and of every level against plain C.  Rows whose keys or values are no codes, and
 * decode rows, are to be what they are without it. */
#include "attention_case.h"

/* Root mean square error of 1.1e-4 for normal data; keys and values of the test are of the same kind. */
static const struct budget rounded = {4e-4, 1.5e-3};
static const struct budget narrow = {0.08, 0.2};

static void one(struct config cfg, int n, int from, struct budget wide)
{
    cfg.int16 = true;
    both_roles(&cfg, n, from, wide, narrow);
}

/* Every kind of start and length, one page and one token more or less, and groups that are not full. */
static void lengths(void **state)
{
    (void)state;
    static const int lens[][2] = {{1, 0},     {63, 0},    {64, 0},    {65, 0},    {127, 0},    {128, 63},
                                  {129, 64},  {192, 100}, {256, 255}, {257, 250}, {320, 256},  {321, 1},
                                  {383, 320}, {513, 500}, {577, 513}, {700, 610}, {1100, 1030}};
#ifdef TERN_TEST_FEW /* a fifth of them, with all schemes: sanitizers see the same code at each */
    const size_t by = 5;
#else
    const size_t by = 1;
#endif
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i += by) {
        struct config cfg = {.k = i % 2 ? "t4" : "l4", .v = i % 3 ? "t4" : "q8", .n_kv = 1 + (int)i % 2, .group = 3};
        cfg.dk = cfg.dv = 64;
        cfg.first = i % 4 ? 4 : 0;
        one(cfg, lens[i][0], lens[i][1], rounded);
    }
}

/* Every scheme on codes, head sizes that fill no tile and that have several scales, windows, caps, pages seen raw. */
static void shapes(void **state)
{
    (void)state;
    static const int dims[][2] = {{64, 64}, {256, 128}, {128, 256}, {80, 112}, {192, 160}, {16, 48}};
    static const char *const names[] = {"t4", "l4", "l3", "q8", "l2", "t3", "t2"};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 7; j++) {
#ifdef TERN_TEST_FEW /* every scheme and every size, not all pairs */
            if ((i + j) % 3)
                continue;
#endif
            struct config cfg = {
                .k = names[j], .v = names[(i + j) % 7], .n_kv = 1 + j % 2, .group = 1 + (3 * i + j) % 7};
            cfg.dk = dims[i][0];
            cfg.dv = dims[i][1];
            cfg.first = j;
            cfg.window = j == 3 ? 300 : j == 5 ? 70 : 0;
            cfg.chunked = j == 5 && i % 2;
            cfg.recent = j == 4 ? 2 : 0;
            cfg.keeps = j == 3 || (j == 4 && i % 2);
            cfg.softcap = i == 1 ? 9 : 0;
            cfg.coded32 = i % 2;
            one(cfg, 700, 610, rounded);
            one(cfg, 130, 3, rounded);
        }
}

/* Scores are completed with what conditioning keeps out of the codes. */
static void conditioned(void **state)
{
    (void)state;
    const struct budget near = {1e-3, 4e-3};
    for (int i = 0; i < 6; i++) {
        struct config cfg = {.k = i % 2 ? "t4" : "l3", .v = "t4", .n_kv = 2, .group = 1 + i, .cond = true, .pairs = i};
        cfg.dk = i == 2 ? 256 : 64;
        cfg.dv = 80;
        cfg.first = 4;
        cfg.softcap = i == 3 ? 20 : 0;
        cfg.window = i == 4 ? 70 : 0;
        one(cfg, 1100, 1060, near);
        one(cfg, 130, 0, near);
    }
}

/* Where one side is no page of bytes, nothing changes. */
static void others_stay(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"f16", "t4"}, {"t4", "f16"}, {"mirror", "l4"}, {"fp8", "t4"}, {"f16", "f16"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct config cfg = {.k = pairs[i][0], .v = pairs[i][1], .n_kv = 2, .group = 3, .dk = 64, .dv = 64, .first = 4};
        one(cfg, 400, 300, tight);
    }
}

static const struct config cfgs[] = {
    {.k = "t4", .v = "t4", .n_kv = 2, .group = 3, .dk = 64, .dv = 64, .first = 4, .int16 = true},
    {.k = "l4", .v = "l3", .n_kv = 1, .group = 9, .dk = 80, .dv = 112, .first = 4, .recent = 1, .int16 = true},
    {.k = "q8", .v = "l2", .n_kv = 1, .group = 4, .dk = 144, .dv = 256, .window = 170, .int16 = true},
    {.k = "l3",
     .v = "q8",
     .n_kv = 1,
     .group = 2,
     .dk = 256,
     .dv = 64,
     .window = 290,
     .first = 4,
     .keeps = 1,
     .int16 = true},
    {.k = "t4", .v = "t4", .n_kv = 1, .group = 5, .dk = 64, .dv = 64, .window = 400, .chunked = 1, .int16 = true},
    {.k = "t4",
     .v = "l4",
     .n_kv = 2,
     .group = 2,
     .dk = 64,
     .dv = 64,
     .softcap = 9,
     .cond = 1,
     .pairs = 2,
     .int16 = true},
};
#define N_CFGS (sizeof cfgs / sizeof *cfgs)

static void invariance(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CFGS; i++) {
        struct two t;
        two_init(&t, &cfgs[i], 1240, 333, 5 + i);
#ifndef TERN_TEST_FEW /* sanitizers see the same code at each cut */
        check_invariance(&t.s, &t.other, 0, 150);
        check_invariance(&t.s, &t.other, 1003, 140);
#endif
        check_invariance(&t.s, &t.other, 203, 130);
        check_invariance(&t.other, &t.s, 332, 1);
        two_clear(&t);
    }
}

/* The same bits with plain C in its place, at every level that has the class. */
static void levels(void **state)
{
    (void)state;
    enum { N = 120 };
#define X(bit, name, word) , tern_cpu_mask(bit)
    const unsigned masks[] = {0 TERN_CPU_LIST(X)};
#undef X
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
        for (size_t i = 0; i < N_CFGS; i++) {
            struct layer l;
            struct seq s;
#ifdef TERN_TEST_FEW /* each level with half of them, and each of them at half of the levels */
            if ((m + i) % 2)
                continue;
#endif
            tern_kernels_init(masks[m]);
            if (!tern_k.attn16.score)
                continue;
            layer_init(&l, &cfgs[i]);
            seq_init(&s, &l, 900, 12 + i);
            const size_t n = (size_t)(N * l.shape.n_heads * cfgs[i].dv);
            float *got = grab(n, 4), *want = grab(n, 4);
            struct span sp = {.s = &s, .pos = 900 - N, .n = N, .wide = true};
            run(got, &sp, 1, 2);
            tern_attn16_init_ref(&tern_k.attn16);
            run(want, &sp, 1, 2);
            same(got, want, n, tern_cpu_name(masks[m]), &cfgs[i]);
            tern_free(got);
            tern_free(want);
            seq_clear(&s);
            layer_clear(&l);
        }
    tern_kernels_init(~0u);
}

static int start(void **state)
{
    int rc = setup(state);
    if (!tern_k.attn16.score)
        tern_attn16_init_ref(&tern_k.attn16);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lengths),     cmocka_unit_test(shapes),
                                       cmocka_unit_test(conditioned), cmocka_unit_test(others_stay),
                                       cmocka_unit_test(invariance),  cmocka_unit_test(levels)};
    return cmocka_run_group_tests(tests, start, teardown);
}
