/* Attention on conditioned keys: means, channel scales and rotated pair means leave the codes and must come back in the
 * scores, next to raw tokens that never lost them. */
#include "attention_case.h"

/* Keys with means several times as large as what varies: scores are sums of large terms that cancel. */
static const struct budget near = {2e-5, 1e-4};

static const struct config cases[] = {
    {.k = "l4", .v = "f16", .n_kv = 2, .group = 3, .dk = 64, .dv = 64, .first = 4, .cond = true},
    {.k = "l3", .v = "l4", .n_kv = 1, .group = 9, .dk = 128, .dv = 64, .first = 4, .cond = true, .pairs = 1},
    {.k = "q8", .v = "f16", .n_kv = 3, .group = 1, .dk = 64, .dv = 32, .first = 0, .cond = true, .pairs = 8},
    {.k = "t4", .v = "t4", .n_kv = 2, .group = 2, .dk = 80, .dv = 80, .first = 4, .cond = true, .pairs = 2},
    {.k = "l4",
     .v = "f32",
     .n_kv = 2,
     .group = 4,
     .dk = 32,
     .dv = 32,
     .first = 5,
     .window = 70,
     .cond = true,
     .pairs = 2},
    {.k = "l4",
     .v = "f16",
     .n_kv = 2,
     .group = 2,
     .dk = 256,
     .dv = 64,
     .first = 4,
     .softcap = 20,
     .cond = true,
     .pairs = 3,
     .coded32 = true},
};

static void wide_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layer l;
        struct seq s;
        layer_init(&l, &cases[i]);
        seq_init(&s, &l, 1100, 3 + i);
        check_role(&s, 1060, 40, true, near);
        check_role(&s, 0, 130, true, near);
        seq_clear(&s);
        layer_clear(&l);
    }
}

/* Narrow rows round the query to integers.  What conditioning adds back must not be rounded with it: keys with the mean
 * and the pairs are no further off than keys without. */
static void narrow_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layer l;
        struct seq s;
        layer_init(&l, &cases[i]);
        seq_init(&s, &l, 1100, 13 + i);
        check_role(&s, 1060, 40, false, (struct budget){0.08, 0.2});
        check_role(&s, 0, 130, false, (struct budget){0.08, 0.2});
        seq_clear(&s);
        layer_clear(&l);
    }
}

/* The reason for all of this: the same keys coded with and without. */
static void conditioning_pays(void **state)
{
    (void)state;
    struct config cfg = cases[0];
    struct layer l;
    struct seq s, plain;
    cfg.pairs = 4;
    layer_init(&l, &cfg);
    seq_init(&s, &l, 600, 5);
    double with = scheme_error(&s, 520, 60);
    struct layer without = l;
    without.kv.k.cond = NULL;
    without.shape.kv = &without.kv;
    plain = s;
    plain.l = &without;
    close_pages(&plain);
    double unconditioned = scheme_error(&plain, 520, 60);
    if (!(with < 0.5 * unconditioned))
        fail_msg("error %.3g with conditioning, %.3g without", with, unconditioned);
    seq_clear(&s);
    layer_clear(&l);
}

static void invariance(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct two t;
        two_init(&t, &cases[i], 1240, 333, 23 + i);
        check_invariance(&t.s, &t.other, 0, 150);
        check_invariance(&t.s, &t.other, 1003, 80);
        two_clear(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_rows),
        cmocka_unit_test(narrow_rows),
        cmocka_unit_test(conditioning_pays),
        cmocka_unit_test(invariance),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
