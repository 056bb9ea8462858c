/* Layers that cache several things at several rates, as DeepSeek-V4 does: a window of tokens, a compressed row for
 * every 4 or 128 tokens, keys that choose among them, and states.  A made-up engine writes what each row and state has
 * seen, so that whatever steps, cuts, forks, checkpoints and files leave can be read. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "blocks.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

enum { CTX = 20480, STEP = 700, SEQS = 4 };

#define WINDOW .n_heads = 1, .dim_v = 96, .latent = true, .reach = {128, false}

static const struct tern_kv_decl decl[4] = {
    {WINDOW},
    {WINDOW, .state_bytes = 1000, .more = {{TERN_KV_ROWS, 4, 1, 96}, {TERN_KV_INDEX, 4, 2, 32}}, .n_more = 2},
    {WINDOW, .state_bytes = 3000, .more = {{TERN_KV_ROWS, 128, 1, 80}}, .n_more = 1},
    {WINDOW, .state_bytes = 1000, .more = {{TERN_KV_ROWS, 4, 1, 96}, {TERN_KV_INDEX, 4, 2, 32}}, .n_more = 2},
};

static void ok(int rc, const tern_error *err)
{
    if (rc < 0)
        fail_msg("%d: %s", rc, err->msg);
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static void test_layout(void **state)
{
    tern_error err = {0};
    struct tern_kv_layout *l;
    (void)state;
    ok(tern_kv_layout_new(&l, decl, 4, "l4", false, &err), &err);
    assert_int_equal(l->n_spans, 9);
    assert_int_equal(l->n_groups, 3);
    assert_int_equal(tern_kv_span_of(l, 0, TERN_KV_ROWS), -1);
    const int rows = tern_kv_span_of(l, 3, TERN_KV_ROWS), index = tern_kv_span_of(l, 3, TERN_KV_INDEX);
    assert_int_equal(rows, 7);
    assert_int_equal(index, 8);
    assert_int_equal(l->group_of[rows], l->group_of[tern_kv_span_of(l, 1, TERN_KV_INDEX)]);
    assert_int_equal(l->groups[l->group_of[rows]].rate, 4);
    assert_int_equal(l->groups[l->group_of[tern_kv_span_of(l, 2, TERN_KV_ROWS)]].rate, 128);
    /* Windows stay raw beside what grows, rows are coded like values, keys that choose are raw. */
    assert_string_equal(l->layers[0].v.codec->name, "f16");
    assert_string_equal(l->layers[rows].v.codec->name, "l4");
    assert_string_equal(l->layers[index].k.codec->name, "f16");
    assert_true(l->layers[rows].latent && l->layers[rows].k.dim == 0);
    assert_int_equal(l->layers[rows].head_bytes, 64 * (96 * 4 + 16) / 8);
    assert_int_equal(l->layers[index].head_bytes, 64 * 32 * 2);
    tern_kv_layout_free(l);
}

/* DeepSeek-V4-Flash: 43 layers, of which 21 have compressed rows of 4 tokens with an index and 20 of 128. */
static void test_deepseek_v4(void **state)
{
    tern_error err = {0};
    struct tern_kv_layout *l;
    struct tern_kv_decl d[43] = {{0}};
    double per_token = 0;
    (void)state;
    for (int i = 0; i < 43; i++) {
        d[i] = (struct tern_kv_decl){.n_heads = 1, .dim_v = 512, .latent = true, .reach = {128, false}, .n_rot = 64};
        if (i < 2)
            continue;
        d[i].more[d[i].n_more++] = (struct tern_kv_more){TERN_KV_ROWS, i % 2 ? 128 : 4, 1, 512, true};
        if (i % 2 == 0)
            d[i].more[d[i].n_more++] = (struct tern_kv_more){TERN_KV_INDEX, 4, 1, 128, true};
        d[i].state_bytes = i % 2 ? 512 << 10 : 80 << 10;
    }
    ok(tern_kv_layout_new(&l, d, 43, "f16", false, &err), &err);
    for (int g = 0; g < l->n_groups; g++)
        if (!l->groups[g].reach.window)
            per_token += (double)l->groups[g].page_bytes / tern_kv_page_tokens(&l->groups[g]);
    assert_true(per_token == 2 * 3440); /* numbers that the model's own arithmetic says grow with a token */
    assert_int_equal(l->state_bytes, 21 * (80 << 10) + 20 * (512 << 10));
    for (int i = 0; i < 43; i++) {
        const double rows = i < 2 ? 0 : i % 2 ? 512.0 / 128 : (512.0 + 128) / 4;
        assert_true(tern_kv_spans_bytes(l, i) == 2 * (512 + rows) && tern_kv_spans_f16_bytes(l, i) == 2 * (512 + rows));
    }
    tern_kv_layout_free(l);
    /* Bytes of a row, its scales among them; keys beside coded rows are 64 and 4 scales. */
    static const struct {
        const char *kv;
        double row;
    } coded[] = {{"t4", 264}, {"fp8", 448 + 7 + 128}, {"t4,position=f16", 448 / 2 + 8 + 128}, {"q8", 512 + 8}};
    for (size_t k = 0; k < sizeof coded / sizeof *coded; k++) {
        per_token = 0;
        ok(tern_kv_layout_new(&l, d, 43, coded[k].kv, false, &err), &err);
        assert_int_equal(l->n_notes, 0);
        assert_true(tern_kv_spans_f16_bytes(l, 4) == 2 * (512 + (512.0 + 128) / 4));
        assert_true(tern_kv_spans_bytes(l, 4) == 2 * 512 + coded[k].row / 4 + 68 / 4.0);
        for (int g = 0; g < l->n_groups; g++)
            if (!l->groups[g].reach.window)
                per_token += (double)l->groups[g].page_bytes / tern_kv_page_tokens(&l->groups[g]);
        assert_true(fabs(per_token - (21 * (coded[k].row + 68) / 4 + 20 * coded[k].row / 128)) < 1e-6);
        print_message("%-16s %.1f bytes per token\n", coded[k].kv, per_token);
        tern_kv_layout_free(l);
    }
    for (int i = 0; i < 43; i++)
        d[i].more[0].grid = d[i].more[1].grid = false; /* weights that were not trained so */
    ok(tern_kv_layout_new(&l, d, 43, "t4", false, &err), &err);
    assert_true(tern_kv_spans_bytes(l, 4) == 2 * 512 + 264 / 4.0 + 2 * 128 / 4.0);
    tern_kv_layout_free(l);
    ok(tern_kv_layout_new(&l, d, 43, "f16,position=f16", false, &err), &err);
    assert_int_equal(l->n_notes, 1);
    assert_non_null(strstr(l->note[0], "position=f16 changes nothing"));
    tern_kv_layout_free(l);
    assert_int_equal(tern_kv_layout_new(&l, d, 43, "t4,position=t4", false, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "position wants f16"));
    assert_int_equal(tern_kv_layout_new(&l, d, 43, "fp4", false, &err), TERN_EINVAL);
}

/* ---- an engine that writes down what it saw ---------------------------------------------------------------------- */

static struct tern_kv_layout *layout;
static struct tern_kv_cache cache;
static struct tern_rng rng;

struct text {
    struct tern_kv_seq *seq;
    int32_t tokens[CTX];
    int n;
};

static int below(int n)
{
    return (int)(tern_rng_u64(&rng) % (uint64_t)n);
}

/* What row j of a span says: something of all its tokens. */
static uint8_t row_of(const struct text *t, int span, int j)
{
    const int rate = layout->layers[span].rate;
    uint32_t h = (uint32_t)span;
    for (int i = j * rate; i < (j + 1) * rate; i++)
        h = h * 31 + (uint32_t)t->tokens[i];
    return (uint8_t)(h >> 3 ^ h);
}

static uint8_t state_after(const struct text *t, int n)
{
    uint32_t h = 7;
    for (int i = n > 50 ? n - 50 : 0; i < n; i++)
        h = h * 37 + (uint32_t)t->tokens[i];
    return (uint8_t)(h >> 5 ^ h ^ (uint32_t)n);
}

/* Where byte 0 of a page's raw tile is, and of a page. */
static size_t tile_of(int span, int page)
{
    const struct tern_kv_layer *y = &layout->layers[span];
    return y->tile_layer_off + (size_t)(page % y->ring) * (size_t)y->n_heads * y->tile_bytes;
}

static uint32_t page_of(const struct tern_kv_seq *s, int span, int page)
{
    const struct tern_kv_table *t = &s->table[layout->group_of[span]];
    return t->pages[page - t->first];
}

static void run(struct text *t, int from, int n, bool prompt)
{
    tern_error err = {0};
    struct tern_kv_seq *s = t->seq;
    uint8_t tile[TERN_PAGE];
    ok(tern_kv_begin(&cache, s, n, &err), &err);
    const struct tern_kv_checkpoint *mark = tern_kv_mark(&cache, s, n, prompt);
    if (mark)
        block_fill(&cache.states, mark->state, state_after(t, mark->at), layout->state_bytes);
    for (int span = 0; span < layout->n_spans; span++) {
        const struct tern_kv_pool *pool = &cache.pool[layout->group_of[span]];
        const int rate = layout->layers[span].rate;
        for (int j = from / rate; j < (from + n) / rate; j++) {
            const uint8_t row = row_of(t, span, j);
            const size_t at = tile_of(span, j / TERN_PAGE);
            tern_kv_block_write(&cache.tiles, s->tile, at + (size_t)(j % TERN_PAGE), &row, 1);
            if (j % TERN_PAGE < TERN_PAGE - 1)
                continue;
            tern_kv_block_read(&cache.tiles, s->tile, at, tile, TERN_PAGE);
            tern_kv_block_write(pool, page_of(s, span, j / TERN_PAGE), layout->layers[span].layer_off, tile, TERN_PAGE);
        }
    }
    block_fill(&cache.states, s->state, state_after(t, from + n), layout->state_bytes);
    tern_kv_commit(&cache, s, n);
}

static void check_page(const struct text *t, int span, int page, int rows, bool closed)
{
    uint8_t at[TERN_PAGE];
    if (closed)
        tern_kv_block_read(&cache.pool[layout->group_of[span]], page_of(t->seq, span, page),
                           layout->layers[span].layer_off, at, TERN_PAGE);
    else
        tern_kv_block_read(&cache.tiles, t->seq->tile, tile_of(span, page), at, TERN_PAGE);
    for (int j = 0; j < rows; j++)
        if (at[j] != row_of(t, span, page * TERN_PAGE + j))
            fail_msg("span %d: row %d of page %d is wrong", span, j, page);
}

static void check(const struct text *t)
{
    const struct tern_kv_seq *s = t->seq;
    uint8_t last;
    assert_int_equal(s->n_tokens, t->n);
    tern_kv_block_read(&cache.states, s->state, layout->state_bytes - 1, &last, 1);
    assert_int_equal(last, t->n ? state_after(t, t->n) : 0);
    for (int span = 0; span < layout->n_spans; span++) {
        const int g = layout->group_of[span], rows = t->n / layout->layers[span].rate, closed = rows / TERN_PAGE;
        const struct tern_kv_table *table = &s->table[g];
        assert_int_equal(table->first + table->n, closed);
        assert_true(table->first <= tern_kv_first_needed(layout->groups[g].reach, t->n));
        assert_true(!table->first || layout->groups[g].reach.window);
        for (int page = table->first; page < closed; page++)
            check_page(t, span, page, TERN_PAGE, true);
        check_page(t, span, closed, rows % TERN_PAGE, false);
    }
}

static void grow(struct text *t, int n, bool prompt)
{
    for (int i = t->n; i < t->n + n; i++)
        t->tokens[i] = below(1000);
    run(t, t->n, n, prompt);
    t->n += n;
}

static int back(struct text *t, int to)
{
    tern_error err = {0};
    int kept;
    int rc = tern_kv_trim(&cache, t->seq, to, &kept, &err);
    ok(rc, &err); /* where a window has moved on, the way leads to the beginning */
    assert_true(kept <= to);
    t->n = kept;
    check(t);
    for (int n; t->n < to; t->n += n) {
        n = to - t->n < STEP ? to - t->n : STEP;
        run(t, t->n, n, true);
    }
    check(t);
    return kept;
}

static void open_all(const char *spec)
{
    tern_error err = {0};
    tern_kernels_init(~0u);
    ok(tern_kv_layout_new(&layout, decl, 4, spec, false, &err), &err);
    ok(tern_kv_cache_init(&cache, layout, &(struct tern_kv_room){SEQS, CTX, STEP, NULL, NULL}, &err), &err);
}

static void close_all(void)
{
    assert_true(tern_kv_used_bytes(&cache) == 0 && tern_kv_state_bytes(&cache) == 0);
    tern_kv_cache_clear(&cache);
    tern_kv_layout_free(layout);
}

/* A copy by slices and a checkpoint, which are gone before the copy is looked at. */
static void start_from(struct text *to, const struct text *from)
{
    tern_error err = {0};
    static struct tern_kv_slice slices[CTX / TERN_PAGE];
    struct tern_kv_checkpoint *p;
    const int n = from->n / TERN_PAGE;
    ok(tern_kv_checkpoint_take(&cache, from->seq, NULL, 0, &p, &err), &err);
    tern_kv_slices_take(&cache, from->seq, 0, n, slices);
    ok(tern_kv_seq_new(&cache, &to->seq, &err), &err);
    ok(tern_kv_start(&cache, to->seq, slices, n, p, &err), &err);
    for (int i = 0; i < n; i++)
        tern_kv_slice_drop(&cache, &slices[i]);
    tern_kv_checkpoint_drop(p);
}

static void through_file(struct text *to, const struct text *from)
{
    static uint8_t roles[CTX];
    tern_error err = {0};
    char path[64];
    int32_t *tokens;
    uint8_t *read_roles;
    struct tern_kv_snapshot_info info = {5, from->tokens, roles};
    (void)snprintf(path, sizeof path, "/tmp/tern-spans-%ld", (long)getpid());
    ok(tern_kv_save(&cache, from->seq, &info, path, &err), &err);
    ok(tern_kv_load(&cache, &to->seq, 5, 1000, path, &tokens, &read_roles, &err), &err);
    (void)unlink(path);
    assert_memory_equal(tokens, from->tokens, (size_t)from->n * sizeof *tokens);
    tern_free(tokens);
    tern_free(read_roles);
}

static void random_life(const char *spec, uint64_t seed)
{
    static struct text texts[SEQS];
    tern_error err = {0};
    int n_back = 0, n_far = 0;
    rng = (struct tern_rng){seed};
    open_all(spec);
    for (int step = 0; step < 3000; step++) {
        struct text *t = &texts[below(SEQS)], *other = &texts[below(SEQS)];
        const int act = below(16);
        if (!t->seq) {
            t->n = 0;
            if (!other->seq || act < 3) {
                ok(tern_kv_seq_new(&cache, &t->seq, &err), &err);
            } else {
                *t = *other;
                if (act < 8)
                    ok(tern_kv_seq_fork(&cache, &t->seq, other->seq, &err), &err);
                else if (act < 12)
                    start_from(t, other);
                else
                    through_file(t, other);
            }
        } else if (act < 10) {
            const int n = act < 5 ? 1 + below(STEP) : 1 + below(4);
            if (t->n + n <= CTX)
                grow(t, n, act < 5);
        } else if (act < 13) {
            const int by = below(act == 12 && below(4) == 0 ? 3000 : 140);
            if (by < t->n)
                n_far += back(t, t->n - by) == 0;
            n_back++;
        } else if (act == 13 && t->n + 300 <= CTX) {
            ok(tern_kv_begin(&cache, t->seq, 300, &err), &err);
            (void)tern_kv_mark(&cache, t->seq, 300, true);
            tern_kv_abort(&cache, t->seq);
        } else if (act == 15 && below(8) == 0) {
            tern_kv_seq_free(&cache, t->seq);
            t->seq = NULL;
        }
        if (t->seq)
            check(t);
        if (other->seq)
            check(other);
    }
    int most = 0;
    for (int i = 0; i < SEQS; i++) {
        most = texts[i].seq && texts[i].n > most ? texts[i].n : most;
        tern_kv_seq_free(&cache, texts[i].seq);
        texts[i].seq = NULL;
    }
    print_message("%s, seed %d: back %d times, %d of them to the beginning; the longest has %d tokens\n", spec,
                  (int)seed, n_back, n_far, most);
    assert_true(n_back > 100 && n_far > 10 && n_far < n_back && most > 64 * 128);
    close_all();
}

static void test_random_life(void **state)
{
    (void)state;
    random_life("t4", 1);
    random_life("f16", 2);
    random_life("l3,recent=128", 3);
}

/* Going back by a few tokens costs 640 tokens at most, wherever edges of pages of 64, 256 and 8,192 tokens lie. */
static void test_cost_of_going_back(void **state)
{
    static struct text t;
    tern_error err = {0};
    (void)state;
    open_all("t4");
    ok(tern_kv_seq_new(&cache, &t.seq, &err), &err);
    while (t.n < 8000)
        grow(&t, 500, true);
    for (int n = 8000; n < 8500; n++) {
        grow(&t, 1, false);
        if (n % 7 == 0) {
            const int to = t.n - 6, kept = back(&t, to);
            assert_true(kept >= to - TERN_KV_STATE_REACH);
        }
    }
    tern_kv_seq_free(&cache, t.seq);
    close_all();
}

/* What a sequence cannot start from is named. */
static void test_refusals(void **state)
{
    static struct text t;
    static struct tern_kv_slice slices[10];
    tern_error err = {0};
    struct tern_kv_seq *s;
    struct tern_kv_checkpoint *p, *kept;
    (void)state;
    open_all("t4");
    t.n = 0;
    ok(tern_kv_seq_new(&cache, &t.seq, &err), &err);
    grow(&t, 650, true);
    tern_kv_slices_take(&cache, t.seq, 0, 10, slices);
    ok(tern_kv_checkpoint_take(&cache, t.seq, NULL, 0, &p, &err), &err);
    kept = tern_kv_checkpoint_kept(t.seq, 650);
    assert_int_equal(kept->at, 640);
    ok(tern_kv_seq_new(&cache, &s, &err), &err);
    assert_int_equal(tern_kv_start(&cache, s, slices, 9, p, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "650"));
    assert_int_equal(tern_kv_start(&cache, s, slices, 10, NULL, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "states"));
    assert_int_equal(tern_kv_start(&cache, s, slices, 10, kept, &err),
                     TERN_EUNSUPPORTED); /* 160 rows of 4: half a page */
    assert_non_null(strstr(err.msg, "inside a page"));
    tern_kv_slice_drop(&cache, &slices[9]);
    assert_int_equal(tern_kv_start(&cache, s, slices, 10, p, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "window of 128"));
    assert_int_equal(s->n_tokens, 0);
    for (int i = 0; i < 9; i++)
        tern_kv_slice_drop(&cache, &slices[i]);
    tern_kv_checkpoint_drop(p);
    tern_kv_checkpoint_drop(kept);
    tern_kv_seq_free(&cache, s);
    tern_kv_seq_free(&cache, t.seq);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),      cmocka_unit_test(test_deepseek_v4),
        cmocka_unit_test(test_random_life), cmocka_unit_test(test_cost_of_going_back),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
