/* Attention of prompt rows on emulated tiles: against the float64 oracle, within what bf16 rounds away, and against
 * itself, bit for bit.  Decode rows are to be what they are without tiles. */
#include "attention_case.h"
#include "tiles_emulated.h"

static const struct budget rounded = {1e-2, 0.03};

static void one_on_tiles(struct config cfg, int n, int from, struct budget narrow)
{
    cfg.bf16 = true;
    both_roles(&cfg, n, from, rounded, narrow);
}

/* Every kind of start and length, head sizes that fill no tile, windows, caps, pages seen raw. */
static void shapes(void **state)
{
    (void)state;
    static const int dims[][2] = {{64, 64}, {256, 128}, {72, 40}, {40, 136}, {8, 16}};
    static const int lens[][2] = {{1, 0}, {65, 0}, {200, 70}, {300, 299}, {700, 610}};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            const char *scheme = (i + j) % 3 == 0 ? "f16" : (i + j) % 3 == 1 ? "mirror" : "f32";
            struct config cfg = {.k = scheme, .v = scheme, .n_kv = 1 + j % 2, .group = 1 + (3 * i + j) % 7};
            cfg.dk = dims[i][0];
            cfg.dv = dims[i][1];
            cfg.first = j;
            cfg.window = j == 3 ? 100 : 0;
            cfg.recent = j == 4 ? 2 : 0;
            cfg.keeps = j == 3 || (j == 4 && i % 2);
            cfg.window = cfg.keeps && j == 4 ? 260 : cfg.window;
            cfg.softcap = i == 1 ? 9 : 0;
            cfg.coded32 = i % 2;
            one_on_tiles(cfg, lens[j][0], lens[j][1], i == 1 ? (struct budget){1e-5, 5e-5} : tight);
        }
}

/* Page 0 in the domain of its codes, with raw first tokens in the place of theirs: rotated keys and values, conditioned
 * keys with pairs of a rotary embedding, a cap, a window that leaves page 0 behind. */
static void firsts(void **state)
{
    (void)state;
    static const struct config cfgs[] = {
        {.k = "l4", .v = "l4", .n_kv = 2, .group = 3, .dk = 64, .dv = 64, .first = 4},
        {.k = "t4", .v = "t4", .n_kv = 2, .group = 2, .dk = 80, .dv = 80, .first = 3, .cond = true, .pairs = 2},
        {.k = "q8", .v = "f16", .n_kv = 1, .group = 4, .dk = 64, .dv = 32, .first = 63, .cond = true, .coded32 = true},
        {.k = "f16", .v = "l3", .n_kv = 1, .group = 1, .dk = 64, .dv = 128, .first = 4, .window = 70},
        {.k = "l4", .v = "f16", .n_kv = 2, .group = 2, .dk = 256, .dv = 64, .first = 4, .softcap = 20, .cond = true},
    };
    for (size_t i = 0; i < sizeof cfgs / sizeof *cfgs; i++) {
        one_on_tiles(cfgs[i], 200, 60, (struct budget){0.08, 0.2});
        one_on_tiles(cfgs[i], 420, 390, (struct budget){0.08, 0.2});
    }
}

/* Of sequences of n and 133 tokens: rows [from, from + rows). */
static void invariant(const struct config *cfg, int n, int from, int rows)
{
    struct layer l;
    struct seq s, other;
    layer_init(&l, cfg);
    seq_init(&s, &l, n, 5);
    seq_init(&other, &l, 133, 6);
    check_invariance(&s, &other, from, rows);
    seq_clear(&s);
    seq_clear(&other);
    layer_clear(&l);
}

static void invariance(void **state)
{
    (void)state;
    static const struct config cfgs[] = {
        {.k = "f16", .v = "f16", .n_kv = 2, .group = 3, .dk = 64, .dv = 64, .bf16 = true},
        {.k = "mirror", .v = "f16", .n_kv = 1, .group = 4, .dk = 72, .dv = 40, .first = 4, .window = 70, .bf16 = true},
        {.k = "l4",
         .v = "f16",
         .n_kv = 1,
         .group = 3,
         .dk = 64,
         .dv = 40,
         .first = 4,
         .window = 70,
         .bf16 = true,
         .keeps = true},
        {.k = "l4", .v = "l3", .n_kv = 1, .group = 2, .dk = 64, .dv = 64, .first = 4, .recent = 1, .bf16 = true},
        {.k = "t4", .v = "t4", .n_kv = 1, .group = 3, .dk = 64, .dv = 64, .first = 4, .window = 70, .bf16 = true},
    };
    for (size_t i = 0; i < sizeof cfgs / sizeof *cfgs; i++) {
        invariant(&cfgs[i], 340, 0, 150);
        invariant(&cfgs[i], 340, 203, 130);
    }
}

/* As many rows as it takes for neighbouring blocks to share the pages that became tiles, where there is one thread;
 * with more of them, or fewer rows, every block has its own. */
static void shared_pages(void **state)
{
    (void)state;
    static const struct config cfgs[] = {
        {.k = "f16", .v = "f16", .n_kv = 1, .group = 3, .dk = 64, .dv = 64, .bf16 = true},
        {.k = "f16", .v = "l4", .n_kv = 1, .group = 1, .dk = 40, .dv = 64, .first = 4, .window = 330, .bf16 = true},
        {.k = "f16", .v = "f16", .n_kv = 1, .group = 1, .dk = 64, .dv = 64, .first = 4, .window = 130, .bf16 = true},
        {.k = "l4", .v = "f16", .n_kv = 2, .group = 1, .dk = 64, .dv = 40, .first = 4, .recent = 1, .bf16 = true},
    };
    for (size_t i = 0; i < sizeof cfgs / sizeof *cfgs; i++)
        invariant(&cfgs[i], 780, 250 + 64 * (int)i, 400);
}

static int start(void **state)
{
    int rc = setup(state);
    tern_bf16_init_emulated(&tern_k.bf16);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes), cmocka_unit_test(firsts), cmocka_unit_test(invariance),
                                       cmocka_unit_test(shared_pages)};
    return cmocka_run_group_tests(tests, start, teardown);
}
