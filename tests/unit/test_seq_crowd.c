/* What a server does to the library: forty sequences of four KV plans, in a third of the memory that they would all
 * take, join, leave, fork, go back, are saved and loaded in random order for 2,000 steps.  Every row has the logits of
 * the text's single run, bit for bit; a refusal changes nothing.
 *
 *     test_seq_crowd [MODEL [SEED]]       one of the models below, or all */
#include "scratch.h"
#include "tiny.h"

#include <xxhash.h>
#include "base/rng.h"

enum { TEXTS = 40, PLANS = 4, ROOM = TEXTS, FILES = 12, LENGTH = 330, CHUNK = 96 };
#ifdef TERN_TEST_FEW /* all kinds of events still come often */
enum { STEPS = 800 };
#else
enum { STEPS = 2000 };
#endif

static const struct entry {
    const char *name, *kv[PLANS];
} entries[] = {
    {"llama-keys", {"f16", "t4", "k=q8,v=l3,recent=128", "affine4"}},
    {"gemma3-w70", {"f16", "t4", "l3,recent=128", "k=f16,v=t2"}},
    {"qwen35", {"f16", "t4", "k=q8,v=l3,recent=128", "l4,first=0"}},
    {"deepseek2-lite", {"f16", "t4", "k=f16,v=l4", "l3,recent=128"}},
};

/* A text's plan and prompt follow from its number; its tokens and what they compute alone. */
static struct text {
    int32_t ids[LENGTH];
    int n_prompt;
    uint64_t logits[LENGTH]; /* digest of each row */
} texts[TEXTS];

static struct member {
    tern_seq *seq;
    int text;
} members[ROOM];

static struct {
    int text, length; /* length -1: no file yet */
} files[FILES];

static struct {
    int rows, joined, left, forked, trimmed, saved, loaded, refused, window;
} count;

static struct tern_rng rng;
static tern_engine *engine;
static size_t budget;
static int n_vocab;

static int below(int n)
{
    return (int)(tern_rng_u64(&rng) % (uint64_t)n);
}

static uint64_t digest(const float *logits)
{
    return XXH3_64bits(logits, (size_t)n_vocab * sizeof *logits);
}

/* ---- the texts, each alone --------------------------------------------------------------------------------------- */

static void run_alone(struct tiny *t, const char *kv, struct text *x)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, false, 1, 1, 512);
    tern_seq *s;
    tern_memory m;
    float *out = calloc((size_t)LENGTH * (size_t)n_vocab, sizeof *out);
    assert_non_null(out);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, x->ids, 0, x->n_prompt, 512, false, out, 0, n_vocab);
    tiny_run(e, s, x->ids, x->n_prompt, LENGTH, 1, true, out, 0, n_vocab);
    for (int i = 0; i < LENGTH; i++)
        x->logits[i] = digest(out + (size_t)i * (size_t)n_vocab);
    free(out);
    tern_engine_memory(e, &m);
    budget += m.kv_bytes + m.state_bytes;
    tern_engine_close(&e);
}

/* Some texts begin alike, as prompts of a server do.  The engine gets a third of what all take. */
static void make_texts(struct tiny *t, const struct entry *entry)
{
    budget = 0;
    for (int i = 0; i < TEXTS; i++) {
        struct text *x = &texts[i];
        for (int k = 0; k < LENGTH; k++)
            x->ids[k] = i % 5 && k < 70 ? x[-1].ids[k] : below(n_vocab);
        x->n_prompt = 1 + below(i % 3 ? 180 : 70);
        run_alone(t, entry->kv[i % PLANS], x);
    }
    budget /= 3;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static struct {
    tern_memory memory;
    int lengths[ROOM];
} before;

static void look(void)
{
    tern_engine_memory(engine, &before.memory);
    for (int i = 0; i < ROOM; i++)
        before.lengths[i] = members[i].seq ? tern_seq_length(members[i].seq) : -1;
}

static void assert_unchanged(const char *what)
{
    tern_memory now;
    tern_engine_memory(engine, &now);
    if (now.kv_bytes != before.memory.kv_bytes || now.state_bytes != before.memory.state_bytes)
        fail_msg("%s: %zu and %zu bytes in use, before %zu and %zu", what, now.kv_bytes, now.state_bytes,
                 before.memory.kv_bytes, before.memory.state_bytes);
    for (int i = 0; i < ROOM; i++)
        assert_int_equal(members[i].seq ? tern_seq_length(members[i].seq) : -1, before.lengths[i]);
}

/* Did the call work?  If not, it said that there is no room, in a sentence, and left everything as it was. */
static bool had_room(const char *what, int rc, const tern_error *err)
{
    if (rc == 0)
        return true;
    if (rc != TERN_ECAPACITY || err->code != rc || strlen(err->msg) < 10)
        fail_msg("%d: %s", rc, err->msg);
    assert_unchanged(what);
    count.refused++;
    return false;
}

/* ---- what happens to sequences ----------------------------------------------------------------------------------- */

static int members_now(void)
{
    int n = 0;
    for (int i = 0; i < ROOM; i++)
        n += members[i].seq != NULL;
    return n;
}

static struct member *any_member(void)
{
    int skip = members_now() ? below(members_now()) : 0;
    for (int i = 0; i < ROOM; i++)
        if (members[i].seq && skip-- == 0)
            return &members[i];
    return NULL;
}

/* A new sequence finds a place; when the engine had room, there is one here. */
static void admit(tern_seq *s, int text)
{
    for (int i = 0; i < ROOM; i++)
        if (!members[i].seq) {
            members[i] = (struct member){s, text};
            return;
        }
    fail_msg("the engine holds more than %d sequences", ROOM);
}

static void join(void)
{
    tern_error err = {0};
    tern_seq *s;
    int text = below(TEXTS);
    if (!had_room("join", tern_seq_new_plan(&s, engine, text % PLANS, &err), &err)) {
        assert_null(s);
        return;
    }
    admit(s, text);
    count.joined++;
}

static void leave(struct member *m)
{
    tern_seq_free(m->seq);
    m->seq = NULL;
    count.left++;
}

static void fork_one(struct member *m)
{
    tern_error err = {0};
    tern_seq *s;
    if (!had_room("fork", tern_seq_fork(&s, m->seq, &err), &err)) {
        assert_null(s);
        return;
    }
    assert_int_equal(tern_seq_length(s), tern_seq_length(m->seq));
    admit(s, m->text);
    count.forked++;
}

static void trim(struct member *m)
{
    tern_error err = {0};
    int have = tern_seq_length(m->seq), n = below(3) ? have - below(have < 80 ? have + 1 : 80) : below(have + 1);
    int rc = tern_seq_trim(m->seq, n, &err);
    if (rc == TERN_EUNSUPPORTED) { /* only a window that has moved on says that */
        assert_unchanged("trim");
        count.window++;
        return;
    }
    if (had_room("trim", rc, &err)) {
        assert_int_equal(tern_seq_length(m->seq), n);
        count.trimmed++;
    }
}

static const char *file_name(int i)
{
    static char name[32];
    (void)snprintf(name, sizeof name, "saved-%d", i);
    return in_dir(name);
}

static void save(struct member *m)
{
    tern_error err = {0};
    int i = below(FILES);
    tiny_ok(tern_seq_save(m->seq, file_name(i), &err), &err);
    assert_unchanged("save");
    files[i].text = m->text;
    files[i].length = tern_seq_length(m->seq);
    count.saved++;
}

static void load(void)
{
    tern_error err = {0};
    tern_seq *s;
    int i = below(FILES);
    if (files[i].length < 0)
        return;
    if (!had_room("load", tern_seq_load(&s, engine, file_name(i), &err), &err)) {
        assert_null(s);
        return;
    }
    assert_int_equal(tern_seq_length(s), files[i].length);
    admit(s, files[i].text);
    count.loaded++;
}

static void something(void)
{
    struct member *m = any_member();
    int what = below(20);
    look();
    if (what < 4 || !m)
        join();
    else if (what < 7)
        load();
    else if (what < 11)
        fork_one(m);
    else if (what < 15)
        trim(m);
    else if (what < 16)
        save(m);
    else if (what < 17 || members_now() > ROOM - 3)
        leave(m);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Rows for some of the members: pieces of prompts, and of decode rows one or a few. */
static int fill(tern_step_item *items, int *who)
{
    int n = 0, rows = 0, narrow = 0;
    for (int k = 0, first = below(ROOM); k < ROOM; k++) {
        int i = (k + first) % ROOM, at, most;
        if (!members[i].seq || below(5) == 0)
            continue;
        const struct text *x = &texts[members[i].text];
        at = tern_seq_length(members[i].seq);
        bool decode = at >= x->n_prompt;
        most = decode ? LENGTH - at : x->n_prompt - at;
        int want = decode ? 1 + (below(4) == 0) * below(3) : 1 + below(70);
        want = want < most ? want : most;
        if (want == 0 || rows + want > CHUNK || (decode && narrow + want > tern_engine_max_decode(engine)))
            continue;
        items[n] = (tern_step_item){members[i].seq, x->ids + at, want, decode, TERN_LOGITS_ALL};
        who[n++] = i;
        rows += want;
        narrow += decode ? want : 0;
    }
    return n;
}

static void check_rows(const tern_step_item *items, const int *who, int n, const float *logits)
{
    for (int k = 0; k < n; k++) {
        const struct member *m = &members[who[k]];
        int from = before.lengths[who[k]], to = tern_seq_length(m->seq);
        assert_int_equal(to, from + items[k].n_tokens);
        assert_memory_equal(tern_seq_tokens(m->seq), texts[m->text].ids, (size_t)to * sizeof(int32_t));
        for (int i = from; i < to; i++, logits += n_vocab)
            if (digest(logits) != texts[m->text].logits[i])
                fail_msg("text %d of plan %d differs from its single run at position %d", m->text, m->text % PLANS, i);
        count.rows += to - from;
    }
}

/* Without room for what these rows add, one that was not served leaves, or is put away to come back later. */
static void make_room(void)
{
    struct member *m = any_member();
    look();
    if (below(2))
        save(m);
    leave(m);
}

static void step(void)
{
    tern_error err = {0};
    tern_memory m;
    tern_step_item items[ROOM];
    const float *logits;
    int who[ROOM], n = fill(items, who);
    if (!n)
        return;
    look();
    if (had_room("step", tern_step(engine, items, n, &logits, &err), &err))
        check_rows(items, who, n, logits);
    else
        make_room();
    tern_engine_memory(engine, &m);
    assert_true(m.kv_bytes + m.state_bytes <= budget);
    for (int i = 0; i < ROOM; i++)
        if (members[i].seq && tern_seq_length(members[i].seq) == LENGTH && below(3) == 0)
            leave(&members[i]);
}

static void crowd(const struct entry *entry, uint64_t seed)
{
    const int least = STEPS / 40 - 1;
    struct tiny t;
    tern_error err = {0};
    tern_memory m;
    print_message("%s, seed %llu\n", entry->name, (unsigned long long)seed);
    rng.state = seed;
    memset(&count, 0, sizeof count);
    memset(members, 0, sizeof members);
    for (int i = 0; i < FILES; i++)
        files[i].length = -1;
    tiny_open(&t, entry->name, entry->name, entry->name);
    n_vocab = t.n_vocab;
    make_texts(&t, entry);
    tern_engine_params p = {.n_threads = 2,
                            .ctx = LENGTH,
                            .max_seqs = ROOM,
                            .chunk = CHUNK,
                            .kv = entry->kv[0],
                            .more_kv = entry->kv + 1,
                            .n_more_kv = PLANS - 1,
                            .kv_bytes = budget};
    tiny_ok(tern_engine_open(&engine, t.model, &p, &err), &err);
    for (int i = 0; i < STEPS; i++) {
        for (int k = below(3); k > 0; k--)
            something();
        step();
    }
    print_message(
        "%d rows; joined %d, left %d, forked %d, trimmed %d, saved %d, loaded %d; refused %d, by windows %d\n",
        count.rows, count.joined, count.left, count.forked, count.trimmed, count.saved, count.loaded, count.refused,
        count.window);
    assert_true(count.rows > 5 * STEPS && count.joined > least && count.forked > least && count.trimmed > least);
    assert_true(count.saved > least && count.loaded > least && count.refused > least);
    for (int i = 0; i < ROOM; i++)
        if (members[i].seq)
            leave(&members[i]);
    tern_engine_memory(engine, &m);
    assert_true(m.kv_bytes == 0 && m.state_bytes == 0); /* nothing leaked a page */
    tern_engine_close(&engine);
    tiny_close(&t);
}

static const struct entry *only;
static uint64_t seed_of_run = 11;

static void test_crowd(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!only || only == &entries[i])
            crowd(&entries[i], seed_of_run);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof entries / sizeof *entries; i++)
        if (strcmp(argv[1], entries[i].name) == 0)
            only = &entries[i];
    if (argc > 1 && !only)
        return 2;
    if (argc > 2)
        seed_of_run = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_crowd)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
