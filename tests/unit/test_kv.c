/* KV bookkeeping: the --kv grammar, layouts, reference counts against a naive model, snapshots and their damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <xxhash.h>
#include "blocks.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

#define OK(call)                      \
    do {                              \
        tern_error err_ = {0};        \
        tern_error *err = &err_;      \
        if ((call) < 0)               \
            fail_msg("%s", err_.msg); \
    } while (0)

static int setup(void **state)
{
    (void)state;
    tern_kernels_init(~0u);
    return 0;
}

/* ---- grammar ---------------------------------------------------------------------------------------------------- */

static void test_spec_good(void **state)
{
    struct tern_kv_spec s;
    (void)state;
    OK(tern_kv_spec_parse(&s, "l4", err));
    assert_string_equal(s.k->name, "l4");
    assert_string_equal(s.v->name, "l4");
    assert_int_equal(s.first, 4);
    OK(tern_kv_spec_parse(&s, "k=q8,v=l3", err));
    assert_string_equal(s.k->name, "q8");
    assert_string_equal(s.v->name, "l3");
    OK(tern_kv_spec_parse(&s, "turbo8v3,recent=128", err));
    assert_string_equal(s.k->name, "q8");
    assert_string_equal(s.v->name, "l3");
    assert_int_equal(s.recent, 128);
    OK(tern_kv_spec_parse(&s, "l4,layers=0-1:q8/l3,edge=2:f16/l2", err));
    assert_string_equal(s.rules[0].k->name, "q8");
    assert_string_equal(s.rules[0].v->name, "l3");
    assert_string_equal(s.edge_v->name, "l2");
    OK(tern_kv_spec_parse(&s, "turbo0v2", err));
    assert_string_equal(s.k->name, "f16");
    OK(tern_kv_spec_parse(&s, "first=0,turbo3,edge=2:q8_0,layers=3:f16,layers=5-7:l2", err));
    assert_string_equal(s.k->name, "l3");
    assert_int_equal(s.first, 0);
    assert_int_equal(s.edge, 2);
    assert_string_equal(s.edge_k->name, "q8");
    assert_int_equal(s.n_rules, 2);
    assert_int_equal(s.rules[0].from, 3);
    assert_int_equal(s.rules[0].to, 3);
    assert_int_equal(s.rules[1].to, 7);
    assert_string_equal(s.rules[1].v->name, "l2");
}

static void test_plan_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want; /* want: a word of the message, NULL when it is a plan */
    } files[] = {{"# a plan\nl4\r\nlayers=0:q8/l3   # the first layer\n\n  \nrecent=128", NULL},
                 {"", "no plan"},
                 {"# only this\n", "no plan"},
                 {"l4\nspeed=9\n", "speed"},
                 {"l4\nplan=/tmp/x\n", "another"},
                 {"l4,layers=1:l3\nfirst=0", NULL}};
    char path[64], text[96];
    (void)snprintf(path, sizeof path, "/tmp/tern-plan-%ld", (long)getpid());
    (void)snprintf(text, sizeof text, "plan=%s", path);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct tern_kv_spec s;
        tern_error why = {0};
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        (void)fputs(files[i].text, f);
        (void)fclose(f);
        int rc = tern_kv_spec_parse(&s, text, &why);
        if (files[i].want) {
            assert_int_equal(rc, TERN_EINVAL);
            assert_non_null(strstr(why.msg, files[i].want));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_string_equal(s.k->name, "l4");
        assert_int_equal(s.n_rules, 1);
        assert_string_equal(s.rules[0].v->name, "l3");
    }
    (void)unlink(path);
    struct tern_kv_spec s;
    assert_int_equal(tern_kv_spec_parse(&s, text, NULL), TERN_EIO);
}

static void test_spec_bad(void **state)
{
    static const char *const bad[][2] = {
        {"", "empty"},
        {"l9", "l9"},
        {"turbo5v4", "turbo5v4"},
        {"turbo4v", "turbo4v"},
        {"l4,layers=1:q8/zz", "zz"},
        {"prod4", "five times the variance"},
        {"k=prod3,v=l3", "TurboQuant_prod"},
        {"prod42", "unknown scheme \"prod42\""},
        {"l4,layers=1:/q8", "\"\""},
        {"plan=", "plan="},
        {"l4,", "empty"},
        {"k=l4", "values"},
        {"v=l4", "keys"},
        {"l4,first=", "first"},
        {"l4,first=65", "first"},
        {"l4,first=4x", "first"},
        {"l4,recent=0", "recent"},
        {"l4,recent=100", "recent"},
        {"l4,recent=4160", "recent"},
        {"l4,cond=", "cond"},
        {"l4,edge=2", "edge"},
        {"l4,edge=:q8", "edge"},
        {"l4,edge=2:zz", "zz"},
        {"l4,layers=4-2:q8", "layers"},
        {"l4,layers=1:", "\"\""},
        {"l4,layers=-1:q8", "layers"},
        {"l4,speed=9", "speed"},
        {"l4,layers=99999999999:q8", "layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tern_kv_spec s;
        tern_error why = {0};
        assert_int_equal(tern_kv_spec_parse(&s, bad[i][0], &why), TERN_EINVAL);
        if (!strstr(why.msg, bad[i][1]) || !strstr(why.msg, "--kv"))
            fail_msg("message for \"%s\" does not name %s: %s", bad[i][0], bad[i][1], why.msg);
    }
}

/* ---- layout ----------------------------------------------------------------------------------------------------- */

static const struct tern_kv_decl decl[6] = {
    {.n_heads = 3, .dim_k = 64, .dim_v = 64},
    {.n_heads = 2, .dim_k = 128, .dim_v = 64, .reach = {100, false}},
    {.n_heads = 0},
    {.n_heads = 1, .dim_k = 256, .dim_v = 128},
    {.n_heads = 1, .dim_k = 72, .dim_v = 80},
    {.n_heads = 2, .dim_k = 64, .dim_v = 32, .reach = {150, true}},
};

static void test_layout(void **state)
{
    struct tern_kv_layout *l;
    tern_error why = {0};
    (void)state;
    OK(tern_kv_layout_new(&l, decl, 6, "l4", false, err));
    assert_int_equal(l->n_groups, 3);
    assert_int_equal(l->group_of[2], -1);
    assert_string_equal(l->layers[0].k.codec->name, "l4");
    assert_null(l->layers[0].why_raw);
    assert_string_equal(l->layers[1].k.codec->name, "f16");
    assert_non_null(strstr(l->layers[1].why_raw, "window"));
    assert_non_null(strstr(l->layers[5].why_raw, "chunks"));
    assert_string_equal(l->layers[4].k.codec->name, "f16"); /* 72 is no multiple of 16; values of 80 stay coded */
    assert_string_equal(l->layers[4].v.codec->name, "l4");
    assert_non_null(strstr(l->layers[4].why_raw, "multiple of 16"));
    /* 4.25 bits a value at 64 dims: 64 tokens x (K and V) x (64*4 + 16) bits / 8 */
    assert_int_equal(l->layers[0].head_bytes, 64 * 2 * (64 * 4 + 16) / 8);
    assert_int_equal(l->layers[3].head_bytes, 64 * ((256 * 4 + 2 * 16) + (128 * 4 + 16)) / 8);
    assert_int_equal(l->layers[4].head_bytes, 64 * (2 * 72 + (80 * 4 + 16) / 8));
    tern_kv_layout_free(l);
    assert_int_equal(tern_kv_layout_new(&l, decl, 6, "l4", true, &why), TERN_EUNSUPPORTED);
    assert_non_null(strstr(why.msg, "layer 1"));
    assert_int_equal(tern_kv_layout_new(&l, decl, 6, "l4,edge=4:q8", false, &why), TERN_EINVAL);
    assert_int_equal(tern_kv_layout_new(&l, decl, 6, "l4,layers=2-6:q8", false, &why), TERN_EINVAL);
    OK(tern_kv_layout_new(&l, decl, 6, "l4,layers=0-5:l3,edge=1:q8", false, err));
    assert_string_equal(l->layers[1].k.codec->name, "l3"); /* named, so the window layer is coded too */
    assert_string_equal(l->layers[0].k.codec->name, "l3"); /* a layers= rule is more exact than edge= */
    tern_kv_layout_free(l);
    OK(tern_kv_layout_new(&l, decl + 1, 2, "l4", true, err)); /* where all layers have windows, they are all there is */
    assert_string_equal(l->layers[0].k.codec->name, "l4");
    tern_kv_layout_free(l);
}

/* edge= counts the layers that would be coded, wherever they lie: a window, a recurrent layer and a layer that a rule
 * names are none of them. */
static void test_edges(void **state)
{
    static const struct tern_kv_decl full = {.n_heads = 2, .dim_k = 64, .dim_v = 32};
    static const struct tern_kv_decl window = {.n_heads = 1, .dim_k = 64, .dim_v = 64, .reach = {100, false}};
    const struct tern_kv_decl model[9] = {window, {0}, full, full, window, full, full, {0}, window};
    static const struct {
        const char *spec, *k[9]; /* NULL: no keys */
    } cases[] = {
        {"l4,edge=1:q8", {"f16", NULL, "q8", "l4", "f16", "l4", "q8", NULL, "f16"}},
        {"l4,edge=2:q8", {"f16", NULL, "q8", "q8", "f16", "q8", "q8", NULL, "f16"}},
        {"l4,edge=3:q8", {"f16", NULL, "q8", "q8", "f16", "q8", "q8", NULL, "f16"}},
        {"l4,edge=1:f16,layers=2:l2", {"f16", NULL, "l2", "f16", "f16", "l4", "f16", NULL, "f16"}},
        {"f16,edge=1:q8", {"f16", NULL, "q8", "f16", "f16", "f16", "q8", NULL, "f16"}},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct tern_kv_layout *l;
        OK(tern_kv_layout_new(&l, model, 9, cases[c].spec, false, err));
        assert_int_equal(l->n_notes, 0);
        for (int i = 0; i < 9; i++)
            if (cases[c].k[i])
                assert_string_equal(l->layers[i].k.codec->name, cases[c].k[i]);
            else
                assert_int_equal(l->group_of[i], -1);
        tern_kv_layout_free(l);
    }
    static const char *const idle[][2] = {{"l4,layers=1:f16", "layers=1 changes nothing: no keys"},
                                          {"l4,layers=4:f16", "layers=4 changes nothing: those schemes"},
                                          {"l4,layers=0-8:l3,edge=1:q8", "edge=1 changes nothing"}};
    for (size_t c = 0; c < sizeof idle / sizeof *idle; c++) {
        struct tern_kv_layout *l;
        OK(tern_kv_layout_new(&l, model, 9, idle[c][0], false, err));
        assert_int_equal(l->n_notes, 1);
        assert_non_null(strstr(l->note[0], idle[c][1]));
        tern_kv_layout_free(l);
    }
}

static void test_layout_digests(void **state)
{
    static const char *const specs[] = {"f16",
                                        "f32",
                                        "q8",
                                        "l4",
                                        "l3",
                                        "l2",
                                        "k=l4,v=l3",
                                        "k=l3,v=l4",
                                        "l4,first=8",
                                        "l4,layers=0:q8",
                                        "l4,recent=128",
                                        "t4",
                                        "k=t3,v=t2",
                                        "affine8",
                                        "affine4",
                                        "g16",
                                        "g16_3",
                                        "g16_2",
                                        "k=affine4,v=g16"};
    uint64_t seen[sizeof specs / sizeof *specs];
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct tern_kv_layout *l;
        OK(tern_kv_layout_new(&l, decl, 6, specs[i], false, err));
        seen[i] = l->digest;
        for (size_t j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
        tern_kv_layout_free(l);
    }
}

/* ---- sequences against a naive model ----------------------------------------------------------------------------- */

/* Writes a value into every page that closes, as a step would, so that sharing and freeing can be checked by content.
 */
static void stamp(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, uint64_t value)
{
    for (int g = 0; g < c->layout->n_groups; g++)
        for (int page = s->n_tokens / TERN_PAGE; page < (s->n_tokens + n) / TERN_PAGE; page++) {
            uint64_t v = value + (uint64_t)page * 1000 + (uint64_t)g;
            tern_kv_block_write(&c->pool[g], s->table[g].pages[page - s->table[g].first], 0, &v, sizeof v);
        }
}

struct model {
    struct tern_kv_seq *seq;
    uint64_t page[64]; /* what page i of group 0 must contain */
    int n;
    int raw; /* the page whose original values are still there */
};

static void check(const struct tern_kv_cache *c, const struct model *m)
{
    for (int g = 0; g < c->layout->n_groups; g++) {
        const struct tern_kv_table *t = &m->seq->table[g];
        const struct tern_kv_reach reach = c->layout->groups[g].reach;
        int window = reach.window, oldest = reach.chunked ? m->n - m->n % window : m->n - window + 1;
        assert_int_equal(t->first + t->n, m->n / TERN_PAGE);
        /* everything a query at m->n reads is there */
        int need = window && oldest > 0 ? oldest / TERN_PAGE : 0;
        assert_true(t->first <= need);
        if (!window)
            assert_int_equal(t->first, 0);
        for (int i = 0; i < t->n; i++) {
            uint64_t v;
            tern_kv_block_read(&c->pool[g], t->pages[i], 0, &v, sizeof v);
            assert_true(v == m->page[t->first + i] + (uint64_t)g);
        }
    }
}

static void grow(struct tern_kv_cache *c, struct model *m, int n, uint64_t value)
{
    OK(tern_kv_begin(c, m->seq, n, err));
    stamp(c, m->seq, n, value);
    for (int page = m->n / TERN_PAGE; page < (m->n + n) / TERN_PAGE; page++)
        m->page[page] = value + (uint64_t)page * 1000;
    tern_kv_commit(c, m->seq, n);
    m->n += n;
    m->raw = (m->n - 1) / TERN_PAGE;
}

static void trim(struct tern_kv_cache *c, struct model *m, int n)
{
    int kept = -1, before = m->n;
    tern_error why = {0};
    int rc = tern_kv_trim(c, m->seq, n, &kept, &why);
    if (rc == TERN_EUNSUPPORTED) {
        assert_int_equal(m->seq->n_tokens, before);
        return;
    }
    assert_int_equal(rc, 0);
    assert_int_equal(kept, n == before || n / TERN_PAGE >= m->raw ? n : n / TERN_PAGE * TERN_PAGE);
    m->n = kept;
    m->raw = kept / TERN_PAGE < m->raw ? kept / TERN_PAGE : m->raw;
}

static void test_random_life(void **state)
{
    struct tern_kv_layout *l;
    struct tern_kv_cache c;
    struct tern_rng rng = {7};
    struct model m[4] = {{0}};
    (void)state;
    OK(tern_kv_layout_new(&l, decl, 6, "l4", false, err));
    OK(tern_kv_cache_init(&c, l, &(struct tern_kv_room){4, 2048, 300, NULL, NULL}, err));
    for (int step = 0; step < 20000; step++) {
        int i = (int)(tern_rng_u64(&rng) % 4), j = (int)(tern_rng_u64(&rng) % 4), act = (int)(tern_rng_u64(&rng) % 8);
        if (!m[i].seq) {
            if (m[j].seq && act < 5) {
                OK(tern_kv_seq_fork(&c, &m[i].seq, m[j].seq, err));
                memcpy(m[i].page, m[j].page, sizeof m[i].page);
                m[i].n = m[j].n;
                m[i].raw = m[j].raw;
            } else {
                OK(tern_kv_seq_new(&c, &m[i].seq, err));
                m[i].n = m[i].raw = 0;
            }
        } else if (act < 5) {
            int n = 1 + (int)(tern_rng_u64(&rng) % 150);
            if (m[i].n + n <= 2048)
                grow(&c, &m[i], n, tern_rng_u64(&rng) >> 8);
        } else if (act == 5) {
            trim(&c, &m[i], (int)(tern_rng_u64(&rng) % (uint64_t)(m[i].n + 1)));
        } else if (act == 6) {
            int n = 1 + (int)(tern_rng_u64(&rng) % 300);
            if (m[i].n + n <= 2048) {
                OK(tern_kv_begin(&c, m[i].seq, n, err));
                tern_kv_abort(&c, m[i].seq);
            }
        } else {
            tern_kv_seq_free(&c, m[i].seq);
            m[i].seq = NULL;
        }
        for (int k = 0; k < 4; k++)
            if (m[k].seq)
                check(&c, &m[k]);
    }
    for (int k = 0; k < 4; k++)
        tern_kv_seq_free(&c, m[k].seq);
    assert_int_equal(tern_kv_used_bytes(&c), 0);
    tern_kv_cache_clear(&c);
    tern_kv_layout_free(l);
}

static void test_capacity(void **state)
{
    struct tern_kv_layout *l;
    struct tern_kv_cache c;
    struct tern_kv_seq *s, *t;
    tern_error why = {0};
    (void)state;
    OK(tern_kv_layout_new(&l, decl, 6, "l4", false, err));
    OK(tern_kv_cache_init(&c, l, &(struct tern_kv_room){1, 128, 128, NULL, NULL}, err));
    OK(tern_kv_seq_new(&c, &s, err));
    assert_int_equal(tern_kv_seq_new(&c, &t, &why), TERN_ECAPACITY);
    assert_int_equal(tern_kv_begin(&c, s, 129, &why), TERN_EINVAL);
    OK(tern_kv_begin(&c, s, 100, err));
    tern_kv_commit(&c, s, 100);
    assert_int_equal(tern_kv_begin(&c, s, 29, &why), TERN_ECAPACITY);
    assert_non_null(strstr(why.msg, "128"));
    assert_int_equal(s->n_tokens, 100);
    OK(tern_kv_begin(&c, s, 28, err));
    tern_kv_commit(&c, s, 28);
    tern_kv_seq_free(&c, s);
    assert_int_equal(tern_kv_used_bytes(&c), 0);
    tern_kv_cache_clear(&c);
    tern_kv_layout_free(l);
}

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

struct saved {
    struct tern_kv_layout *l;
    struct tern_kv_cache c;
    char path[64];
    uint8_t *bytes;
    size_t n;
};

static void save(struct saved *v, int n_tokens)
{
    int32_t tokens[300];
    uint8_t roles[300];
    struct model m = {0};
    OK(tern_kv_layout_new(&v->l, decl, 6, "l4", false, err));
    OK(tern_kv_cache_init(&v->c, v->l, &(struct tern_kv_room){2, 300, 300, NULL, NULL}, err));
    OK(tern_kv_seq_new(&v->c, &m.seq, err));
    if (n_tokens)
        grow(&v->c, &m, n_tokens, 99);
    if (m.seq->sink != TERN_NO_BLOCK)
        block_fill(&v->c.sinks, m.seq->sink, 3, v->l->sink_bytes);
    for (int i = 0; i < 300; i++) {
        tokens[i] = i * 7 % 50;
        roles[i] = i % 3 == 0;
    }
    (void)snprintf(v->path, sizeof v->path, "/tmp/tern-kv-%ld", (long)getpid());
    struct tern_kv_snapshot_info info = {5, tokens, roles};
    OK(tern_kv_save(&v->c, m.seq, &info, v->path, err));
    tern_kv_seq_free(&v->c, m.seq);
    FILE *f = fopen(v->path, "rb");
    assert_non_null(f);
    v->bytes = malloc(1 << 20);
    v->n = fread(v->bytes, 1, 1 << 20, f);
    (void)fclose(f);
}

static void drop(struct saved *v)
{
    (void)unlink(v->path);
    free(v->bytes);
    assert_int_equal(tern_kv_used_bytes(&v->c), 0);
    tern_kv_cache_clear(&v->c);
    tern_kv_layout_free(v->l);
}

static int load(struct saved *v, const uint8_t *bytes, size_t n, uint64_t digest, tern_error *why)
{
    struct tern_kv_seq *s;
    int32_t *tokens;
    uint8_t *roles;
    FILE *f = fopen(v->path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    (void)fclose(f);
    int rc = tern_kv_load(&v->c, &s, digest, 50, v->path, &tokens, &roles, why);
    if (rc == 0) {
        for (int i = 0; i < s->n_tokens; i++)
            assert_true(tokens[i] == i * 7 % 50 && roles[i] == (i % 3 == 0));
        tern_kv_seq_free(&v->c, s);
        tern_free(tokens);
        tern_free(roles);
    } else {
        assert_null(s);
        assert_null(tokens);
        assert_true(strstr(why->msg, v->path) != NULL);
    }
    return rc;
}

static void test_snapshot_lengths(void **state)
{
    static const int lengths[] = {0, 1, 63, 64, 65, 128, 200};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct saved v;
        tern_error why = {0};
        save(&v, lengths[i]);
        assert_int_equal(load(&v, v.bytes, v.n, 5, &why), 0);
        assert_int_equal(load(&v, v.bytes, v.n, 6, &why), TERN_EMISMATCH);
        drop(&v);
    }
}

static void test_snapshot_damage(void **state)
{
    struct saved v;
    tern_error why = {0};
    (void)state;
    save(&v, 200);
    for (size_t n = 0; n < v.n; n += n < 1500 ? 1 : 997) { /* truncated in every section */
        int rc = load(&v, v.bytes, n, 5, &why);
        assert_int_equal(rc, TERN_EFORMAT);
    }
    for (size_t i = 0; i < v.n; i += i < 2000 ? 1 : 499) { /* one bit anywhere */
        v.bytes[i] ^= (uint8_t)(1u << (i % 8));
        assert_true(load(&v, v.bytes, v.n, 5, &why) < 0);
        v.bytes[i] ^= (uint8_t)(1u << (i % 8));
    }
    uint8_t *more = malloc(v.n + 1);
    memcpy(more, v.bytes, v.n);
    more[v.n] = 0;
    assert_int_equal(load(&v, more, v.n + 1, 5, &why), TERN_EFORMAT);
    free(more);
    assert_int_equal(load(&v, v.bytes, v.n, 5, &why), 0);
    drop(&v);
}

/* A header that is whole but lies: pages that the next query needs are said to be gone. */
static void test_snapshot_missing_pages(void **state)
{
    enum { FIRST_AT = 40, PAGES_AT = 56, HASH_AT = 352 };
    struct saved v;
    tern_error why = {0};
    (void)state;
    save(&v, 200);
    for (int g = 0; g < 2; g++) {
        uint8_t *bytes = malloc(v.n);
        uint32_t first, pages;
        memcpy(bytes, v.bytes, v.n);
        memcpy(&first, bytes + FIRST_AT + 4 * g, 4);
        memcpy(&pages, bytes + PAGES_AT + 4 * g, 4);
        assert_int_equal(first + pages, 3);
        first = 2;
        pages = 1;
        memcpy(bytes + FIRST_AT + 4 * g, &first, 4);
        memcpy(bytes + PAGES_AT + 4 * g, &pages, 4);
        uint64_t h = XXH3_64bits(bytes, HASH_AT);
        memcpy(bytes + HASH_AT, &h, sizeof h);
        assert_int_equal(load(&v, bytes, v.n, 5, &why), TERN_EFORMAT);
        assert_non_null(strstr(why.msg, "page table"));
        free(bytes);
    }
    drop(&v);
}

/* Files of other versions are refused by a sentence that names theirs and ours. */
static void test_snapshot_versions(void **state)
{
    static const uint32_t others[] = {0, 1, 2, 4};
    struct saved v;
    tern_error why = {0};
    (void)state;
    save(&v, 70);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char theirs[32];
        (void)snprintf(theirs, sizeof theirs, "version %u at byte 8", others[i]);
        memcpy(v.bytes + 8, &others[i], 4);
        assert_int_equal(load(&v, v.bytes, v.n, 5, &why), TERN_EUNSUPPORTED);
        assert_true(strstr(why.msg, theirs) && strstr(why.msg, "reads version 3"));
    }
    drop(&v);
}

static void test_snapshot_bad_paths(void **state)
{
    struct saved v;
    tern_error why = {0};
    struct tern_kv_seq *s;
    int32_t *tokens;
    uint8_t *roles;
    (void)state;
    save(&v, 70);
    assert_int_equal(tern_kv_load(&v.c, &s, 5, 50, "/nonexistent/x", &tokens, &roles, &why), TERN_EIO);
    assert_int_equal(tern_kv_load(&v.c, &s, 5, 50, "/tmp", &tokens, &roles, &why), TERN_EIO);
    assert_non_null(strstr(why.msg, "regular"));
    OK(tern_kv_seq_new(&v.c, &s, err));
    struct tern_kv_snapshot_info info = {5, NULL, NULL};
    assert_int_equal(tern_kv_save(&v.c, s, &info, "/nonexistent/x", &why), TERN_EIO);
    tern_kv_seq_free(&v.c, s);
    drop(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spec_good),
        cmocka_unit_test(test_spec_bad),
        cmocka_unit_test(test_plan_files),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_layout_digests),
        cmocka_unit_test(test_random_life),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_snapshot_lengths),
        cmocka_unit_test(test_snapshot_damage),
        cmocka_unit_test(test_snapshot_versions),
        cmocka_unit_test(test_snapshot_bad_paths),
        cmocka_unit_test(test_snapshot_missing_pages),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
