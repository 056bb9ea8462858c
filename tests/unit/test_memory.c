/* What the cache takes is what the plan says: bytes from the allocator against bytes per token, for every scheme; and a
 * prompt costs codes, not a 16-bit copy of them. */
#include "tiny.h"

#include <unistd.h>
#include "base/mem.h"

enum { PAGE = 64 };

/* Growth of the cache from one whole page to three, per token. */
static double grown(struct tiny *t, const char *spec, double *planned, double *f16)
{
    tern_error err = {0};
    tern_memory a, b;
    tern_seq *s;
    tern_engine *e = tiny_engine(t, spec, false, 2, 1, 100);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_ok(tern_prefill(e, s, t->ids, PAGE, NULL, NULL, NULL, &err), &err);
    tern_engine_memory(e, &a);
    tiny_ok(tern_prefill(e, s, t->ids, 2 * PAGE, NULL, NULL, NULL, &err), &err);
    tern_engine_memory(e, &b);
    *planned = *f16 = 0;
    for (int i = 0; i < tern_kv_plan_rows(tern_engine_plan(e)); i++) {
        tern_kv_row r;
        tern_kv_plan_row(tern_engine_plan(e), i, &r);
        *planned += r.bytes_per_token;
        *f16 += r.f16_bytes_per_token;
    }
    assert_true(b.kv_f16_bytes - a.kv_f16_bytes == (size_t)(*f16 * 2 * PAGE));
    tern_engine_close(&e);
    return (double)(b.kv_bytes - a.kv_bytes) / (2 * PAGE);
}

static void growth_is_the_plan(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-tied", "llama-untied", "qwen2"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        tiny_open(&t, models[m], models[m], models[m]);
        for (const char *const *scheme = tern_kv_schemes(); *scheme; scheme += 2) {
            double planned, f16, real = grown(&t, *scheme, &planned, &f16);
            if (fabs(real - planned) > 0.01 * planned)
                fail_msg("%s %s: %.3f bytes per token, the plan says %.3f", models[m], *scheme, real, planned);
        }
        double planned, f16, real = grown(&t, "k=t4,v=l3,recent=128", &planned, &f16);
        assert_true(fabs(real - planned) <= 0.01 * planned);
        tiny_close(&t);
    }
}

/* 4.25 bits a value with its scales at 64 dims: 3.76 times less than 16 bits. */
static void four_bits_are_four_bits(void **state)
{
    (void)state;
    struct tiny t;
    double planned, f16;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    (void)grown(&t, "t4", &planned, &f16);
    assert_true(fabs(f16 / planned - 16 / 4.25) < 1e-9);
    tiny_close(&t);
}

/* Large blocks are not written to when they are handed out: what was used before must be zero all the same. */
static void new_memory_is_zero(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, (128 << 10) - 64, 128 << 10, (128 << 10) + 64, 131 * 1000, 777 * 777};
    for (int round = 0; round < 4; round++) {
        char *p[sizeof sizes / sizeof *sizes];
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            assert_int_equal(tern_alloc(&p[i], sizes[i], 1, NULL), 0);
            for (size_t j = 0; j < sizes[i]; j++)
                if (p[i][j])
                    fail_msg("round %d: byte %zu of %zu is not 0", round, j, sizes[i]);
            memset(p[i], 0xAB, sizes[i]);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            tern_free(p[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_memory_is_zero),
        cmocka_unit_test(growth_is_the_plan),
        cmocka_unit_test(four_bits_are_four_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
