/* Sequences that start from what others left, closed pages by reference and a checkpoint of the rest: equal to the cold
 * run bit for bit, in the same engine, and in another one that has read the bytes. */
#include "tiny_promises.h"

#include "base/mem.h"
#include "base/rng.h"
#include "run/run.h"
#include "served.h"

enum { LENGTH = 230, PROMPT = 140, MOST_SLICES = LENGTH / 64, PLACES = 12 };

static const struct {
    const char *name, *kv[6];
} models[] = {
    {"llama-tied", {"f16", "t4", "k=q8,v=l3,recent=128", "affine4,first=0", "f32", "t4,max=70,first=5"}},
    {"gemma3-w70", {"f16", "t4", "t4,layers=0-6:l4,recent=128", "f16,max=64"}},
    {"llama4-128", {"f16", "l4"}},
    {"deepseek2-lite", {"t4", "k=f16,v=l4", "l3,recent=192"}},
    {"qwen35", {"t4", "l3,recent=128", "f16", "t4,max=90"}},
};

/* Where checkpoints are taken: around edges of pages, of the prompt, and elsewhere. */
static const int places[PLACES] = {0, 1, 63, 64, 65, 100, 127, 128, 129, 140, 192, 200};

/* What a prefix cache would hold of one sequence. */
struct kept {
    struct tern_kv_slice slices[MOST_SLICES];
    struct tern_kv_checkpoint *at[PLACES];
};

static uint8_t roles[LENGTH];

static void run_to(struct tiny *t, tern_engine *e, tern_seq *s, int to, float *out)
{
    int from = tern_seq_length(s), border = to < PROMPT ? to : from > PROMPT ? from : PROMPT;
    tiny_run(e, s, t->ids, from, border, 11, false, out, 0, t->n_vocab);
    tiny_run(e, s, t->ids, border, to, 3, true, out, 0, t->n_vocab);
}

static void equal_from(const struct tiny *t, const float *got, const float *want, int from, const char *what)
{
    for (int r = from; r < LENGTH; r++)
        if (memcmp(got + (size_t)r * (size_t)t->n_vocab, want + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *got) != 0)
            fail_msg("%s from token %d: position %d differs from the cold run", what, from, r);
}

/* One sequence to its end, what is worth keeping taken on the way. */
static void fill(struct tiny *t, tern_engine *e, struct kept *k, float *want)
{
    tern_error err = {0};
    struct tern_kv_cache *c = tern_engine_cache(e, 0);
    tern_seq *s;
    int n_slices = 0;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    for (int i = 0; i <= PLACES; i++) {
        const int to = i < PLACES ? places[i] : LENGTH;
        run_to(t, e, s, to, want);
        tern_kv_slices_take(c, s->kv, n_slices, to / 64, k->slices + n_slices);
        n_slices = to / 64;
        if (i < PLACES)
            tiny_ok(tern_kv_checkpoint_take(c, s->kv, to ? want + (size_t)(to - 1) * (size_t)t->n_vocab : NULL,
                                            (size_t)t->n_vocab, &k->at[i], &err),
                    &err);
    }
    tern_seq_free(s);
}

static void drop(tern_engine *e, struct kept *k)
{
    for (int i = 0; i < MOST_SLICES; i++)
        tern_kv_slice_drop(tern_engine_cache(e, 0), &k->slices[i]);
    for (int i = 0; i < PLACES; i++)
        tern_kv_checkpoint_drop(k->at[i]);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
}

/* From every place, and back again by a few tokens, twice: what was shared must not have changed. */
static void start_everywhere(struct tiny *t, tern_engine *e, const struct kept *k, const float *want, const char *what)
{
    tern_error err = {0};
    float *got = tiny_buffer(t);
    const bool all = getenv("TERN_TEST_LONG") != NULL;
    for (int i = 0; i < PLACES; i++)
        for (int round = 0; round < (all || i % 3 == 0 ? 2 : 1); round++) {
            tern_seq *s;
            const struct tern_kv_checkpoint *at = k->at[i];
            tiny_ok(tern_seq_start(&s, e, 0, k->slices, at->at / 64, at, t->ids, roles, &err), &err);
            assert_int_equal(tern_seq_length(s), places[i]);
            assert_true(!at->at == !at->n_logits);
            if (at->n_logits)
                assert_memory_equal(at->logits, want + (size_t)(at->at - 1) * (size_t)t->n_vocab,
                                    (size_t)t->n_vocab * sizeof *want);
            run_to(t, e, s, LENGTH, got);
            equal_from(t, got, want, places[i], what);
            for (int cut = LENGTH - 5; cut > 0; cut -= 70) {
                int rc = tern_seq_trim(s, cut, &err);
                if (rc == TERN_EUNSUPPORTED)
                    break;
                tiny_ok(rc, &err);
                run_to(t, e, s, LENGTH, got);
                equal_from(t, got, want, cut, what);
            }
            tern_seq_free(s);
        }
    free(got);
}

/* At ends of slices no checkpoint is needed where all that a token leaves is in its page. */
static void start_without(struct tiny *t, tern_engine *e, const struct kept *k, const float *want, bool can)
{
    tern_error err = {0};
    float *got = tiny_buffer(t);
    for (int n = 0; n <= MOST_SLICES; n++) {
        tern_seq *s;
        int rc = tern_seq_start(&s, e, 0, k->slices, n, NULL, t->ids, roles, &err);
        if (!can && n) {
            assert_int_equal(rc, TERN_EUNSUPPORTED);
            assert_true(s == NULL && strstr(err.msg, "cannot start at token"));
            continue;
        }
        tiny_ok(rc, &err);
        assert_int_equal(tern_seq_length(s), n * 64);
        run_to(t, e, s, LENGTH, got);
        equal_from(t, got, want, n * 64, "without a checkpoint");
        tern_seq_free(s);
    }
    free(got);
}

/* The same in another engine, by bytes. */
static void by_bytes(tern_engine *from_e, const struct kept *from, tern_engine *to_e, struct kept *to)
{
    tern_error err = {0};
    struct tern_kv_cache *a = tern_engine_cache(from_e, 0), *b = tern_engine_cache(to_e, 0);
    for (int i = 0; i < MOST_SLICES; i++) {
        unsigned parts = 0;
        for (int p = 0; p < TERN_KV_PARTS; p++)
            parts |= (unsigned)(from->slices[i].part[p] != TERN_NO_BLOCK) << p;
        tiny_ok(tern_kv_slice_new(b, parts, &to->slices[i], &err), &err);
        for (int p = 0; p < TERN_KV_PARTS; p++) {
            if (!(parts >> p & 1))
                continue;
            assert_int_equal(tern_kv_part_bytes(a, p), tern_kv_part_bytes(b, p));
            uint8_t *bytes = malloc(tern_kv_part_bytes(a, p));
            tern_kv_part_read(a, &from->slices[i], p, bytes);
            tern_kv_part_write(b, &to->slices[i], p, bytes);
            free(bytes);
        }
    }
    for (int i = 0; i < PLACES; i++) {
        const size_t n = tern_kv_checkpoint_packed_bytes(from->at[i]);
        uint8_t *bytes = malloc(n);
        struct tern_kv_checkpoint *none;
        tern_kv_checkpoint_pack(from->at[i], bytes);
        for (size_t cut = 0; cut < n; cut += 1 + n / 7) {
            assert_int_equal(tern_kv_checkpoint_unpack(b, bytes, cut, &none, &err), TERN_EFORMAT);
            assert_null(none);
        }
        tiny_ok(tern_kv_checkpoint_unpack(b, bytes, n, &to->at[i], &err), &err);
        assert_int_equal(tern_kv_checkpoint_bytes(to->at[i]), tern_kv_checkpoint_bytes(from->at[i]));
        bytes[0] = 0xff; /* more tokens than the context has */
        bytes[2] = 0x7f;
        assert_int_equal(tern_kv_checkpoint_unpack(b, bytes, n, &none, &err), TERN_ECAPACITY);
        free(bytes);
    }
}

static void share(struct tiny *t, const char *name, const char *kv)
{
    float *want = tiny_buffer(t);
    tern_engine *e = tiny_engine(t, kv, false, 2, 2, 64), *other = tiny_engine(t, kv, false, 1, 1, 128);
    const struct tern_kv_layout *l = tern_engine_cache(e, 0)->layout;
    struct kept k, there;
    print_message("%s, %s\n", name, kv);
    fill(t, e, &k, want);
    start_everywhere(t, e, &k, want, kv);
    start_without(t, e, &k, want, !l->state_bytes && l->recent == 1);
    by_bytes(e, &k, other, &there);
    drop(e, &k);
    tern_engine_close(&e);
    start_everywhere(t, other, &there, want, "from bytes");
    drop(other, &there);
    tern_engine_close(&other);
    free(want);
}

static void test_share(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTH; i++)
        roles[i] = i >= PROMPT;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        struct tern_rng rng = {m};
        const char *name = models[m].name;
        tiny_open(&t, name, name, name);
        assert_true(tern_model_get_info(t.model)->ctx >= LENGTH);
        t.n_ids = LENGTH;
        for (int i = 0; i < t.n_ids; i++)
            t.ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)t.n_vocab);
        for (int i = 0; i < 6 && models[m].kv[i]; i++)
            if (!strstr(models[m].kv[i], "max=") || served_firsts()) /* first tokens are kept by default, too */
                share(&t, name, models[m].kv[i]);
        tiny_close(&t);
    }
}

/* What a recurrent sequence keeps by itself is a checkpoint, too, and outlives the sequence. */
static void test_kept(void **state)
{
    tern_error err = {0};
    struct tiny t;
    (void)state;
    tiny_open(&t, "qwen35", "qwen35", "qwen35");
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    tern_engine *e = tiny_engine(&t, "t4", false, 2, 2, 128);
    struct tern_kv_cache *c = tern_engine_cache(e, 0);
    struct tern_kv_slice slice;
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    assert_null(tern_kv_checkpoint_kept(s->kv, 1000));
    tiny_run(e, s, t.ids, 0, 100, 33, false, want, 0, t.n_vocab);
    tiny_run(e, s, t.ids, 100, t.n_ids, 1, true, want, 0, t.n_vocab);
    struct tern_kv_checkpoint *p = tern_kv_checkpoint_kept(s->kv, 100);
    assert_non_null(p);
    assert_int_equal(p->at, 64);
    tern_kv_slices_take(c, s->kv, 0, 1, &slice);
    tern_seq_free(s);
    tiny_ok(tern_seq_start(&s, e, 0, &slice, 1, p, t.ids, roles, &err), &err);
    tern_kv_checkpoint_drop(p);
    tern_kv_slice_drop(c, &slice);
    tiny_run(e, s, t.ids, 64, 100, 36, false, got, 0, t.n_vocab);
    tiny_run(e, s, t.ids, 100, t.n_ids, 1, true, got, 0, t.n_vocab);
    assert_memory_equal(got + 64 * (size_t)t.n_vocab, want + 64 * (size_t)t.n_vocab,
                        (size_t)(t.n_ids - 64) * (size_t)t.n_vocab * sizeof *want);
    tern_engine_close(&e);
    free(want);
    free(got);
    tiny_close(&t);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_share), cmocka_unit_test(test_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
