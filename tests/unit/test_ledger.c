/* What every model of tests/data computes, held to the bit against a committed list, tests/data/ledger.txt: a change of
 * arithmetic that stays inside the bound of every other test is seen here.
 *
 *     test_ledger LEVEL             the list is what this machine computes at an instruction-set level
 *     test_ledger --write FILE      writes the list, computed at the levels avx2 and c
 *
 * A digest is that of the bits of all logits: the same at the levels avx2, avxvnni and avx512, whose prompts are in
 * 16-bit integers without --exact (kernel/prompt.h), lines "int16".  Plain C rounds differently, so there the
 * divergences alone are compared, within a tolerance; its prompts are in f32, and lines without --exact are called
 * "fast".  The rotary tables come from libm, so another C library may need a list of its own.
 *
 * Only public headers are used: this source can be built against an older tern and say what that computed. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <cmocka.h>
#include "tern/tern.h"

enum { PROMPT = 150, DECODED = 6, ROWS = PROMPT + DECODED, MAX_PLANS = 32, MAX_LINES = 2048 };

#define LEDGER TERN_TEST_DATA "/ledger.txt"

/* Plan 0 is what divergences are measured from. */
static const char *const few[] = {"f32", "f16", "t4", NULL};
static const char *const fast[] = {"f16", "t4", "k=q8,v=l3", NULL};
/* Beside all schemes of the registry. */
static const char *const more[] = {"k=q8,v=l3,first=0", "t4,recent=128", "l4,edge=1:q8", NULL};

/* One of each kind: full attention, windows, chunks, latents, recurrent states, experts, shared keys and values. */
static const char *const thorough[] = {"tiny/llama-tied",    "tiny/gemma3-w70",    "tiny/llama4",
                                       "tiny/qwen35",        "tiny/gemma4-small",  "tiny/deepseek2-q4_0",
                                       "tiny/qwen3moe-q8_0", "tiny/llama-h80-q8_0"};

struct line {
    char key[80]; /* class, model, plan */
    unsigned long long digest;
    double kld;
    bool experts; /* of computed lines: rounding may send a row to another one */
    bool seen;    /* of the list: it was computed */
};

static struct line computed[MAX_LINES], listed[MAX_LINES];
static int n_computed, n_listed;
static const char *level = "avx2";

static bool is_plain(void)
{
    return strcmp(level, "c") == 0;
}

/* What lines without --exact are called at this level. */
static const char *fast_class(void)
{
    return is_plain() ? "fast" : "int16";
}

static void ok(int rc, const tern_error *err)
{
    if (rc < 0)
        fail_msg("%d: %s", rc, err->msg);
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static void fill_ids(int32_t *ids, int n_vocab)
{
    uint32_t x = 2463534242u;
    for (int i = 0; i < ROWS; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        ids[i] = (int32_t)(x % (uint32_t)n_vocab);
    }
}

/* Mean divergence of the rows of b from those of a, in nats. */
static double divergence(const float *a, const float *b, int n)
{
    double total = 0;
    for (int r = 0; r < ROWS; r++, a += n, b += n) {
        double ma = -INFINITY, mb = -INFINITY, sa = 0, sb = 0, kl = 0;
        for (int i = 0; i < n; i++) {
            ma = fmax(ma, (double)a[i]);
            mb = fmax(mb, (double)b[i]);
        }
        for (int i = 0; i < n; i++) {
            sa += exp((double)a[i] - ma);
            sb += exp((double)b[i] - mb);
        }
        for (int i = 0; i < n; i++) {
            double la = (double)a[i] - ma - log(sa), lb = (double)b[i] - mb - log(sb);
            kl += exp(la) * (la - lb);
        }
        total += kl;
    }
    return total / ROWS;
}

/* All plans side by side: out[plan][ROWS][n_vocab]. */
static void compute(tern_model *m, const char *const *plans, int n_plans, bool exact, float *out, int n_vocab)
{
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s[MAX_PLANS];
    tern_step_item items[MAX_PLANS];
    int32_t ids[ROWS];
    tern_engine_params p = {.n_threads = 1,
                            .ctx = ROWS,
                            .max_seqs = n_plans,
                            .kv = plans[0],
                            .more_kv = plans + 1,
                            .n_more_kv = n_plans - 1,
                            .exact = exact};
    fill_ids(ids, n_vocab);
    ok(tern_engine_open(&e, m, &p, &err), &err);
    const int piece = tern_engine_chunk(e) / n_plans;
    for (int i = 0; i < n_plans; i++)
        ok(tern_seq_new_plan(&s[i], e, i, &err), &err);
    for (int at = 0, n; at < ROWS; at += n) {
        const float *logits;
        n = at >= PROMPT ? 1 : at + piece > PROMPT ? PROMPT - at : piece;
        for (int i = 0; i < n_plans; i++)
            items[i] = (tern_step_item){s[i], ids + at, n, at >= PROMPT, TERN_LOGITS_ALL};
        ok(tern_step(e, items, n_plans, &logits, &err), &err);
        size_t size = (size_t)n * (size_t)n_vocab;
        for (int i = 0; i < n_plans; i++)
            memcpy(out + ((size_t)i * ROWS + (size_t)at) * (size_t)n_vocab, logits + (size_t)i * size,
                   size * sizeof *out);
    }
    tern_engine_close(&e);
}

static bool has_experts(const tern_model *m)
{
    tern_tensor_info t;
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_model_tensor(m, i, &t);
        if (strstr(t.name, "exps") || strstr(t.name, "experts"))
            return true;
    }
    return false;
}

static void add_lines(tern_model *m, const char *name, const char *const *plans, bool exact)
{
    const int n_vocab = tern_model_get_info(m)->n_vocab;
    const bool experts = has_experts(m);
    int n_plans = 0;
    for (; plans[n_plans]; n_plans++)
        ;
    size_t size = (size_t)ROWS * (size_t)n_vocab;
    float *out = calloc((size_t)n_plans * size, sizeof *out);
    assert_non_null(out);
    compute(m, plans, n_plans, exact, out, n_vocab);
    for (int i = 0; i < n_plans; i++) {
        const float *logits = out + (size_t)i * size;
        assert_true(n_computed < MAX_LINES);
        struct line *l = &computed[n_computed++];
        int n = snprintf(l->key, sizeof l->key, "%-5s %-32s %-17s", exact ? "exact" : fast_class(), name, plans[i]);
        assert_true(n > 0 && n < (int)sizeof l->key);
        l->digest = XXH3_64bits(logits, size * sizeof *logits);
        l->kld = divergence(out, logits, n_vocab);
        l->experts = experts;
    }
    free(out);
}

/* f32, and all others behind it. */
static void all_plans(const char *plans[MAX_PLANS])
{
    int n = 0;
    for (const char *const *s = tern_kv_schemes(); *s; s += 2) {
        assert_true(n < MAX_PLANS - 8);
        plans[n++] = *s;
    }
    assert_string_equal(plans[0], "f32");
    for (int i = 0; more[i]; i++)
        plans[n++] = more[i];
    plans[n] = NULL;
}

static bool is_thorough(const char *name)
{
    for (size_t i = 0; i < sizeof thorough / sizeof *thorough; i++)
        if (strcmp(name, thorough[i]) == 0)
            return true;
    return false;
}

static void run_model(const char *kind, const char *file)
{
    tern_error err = {0};
    tern_model *m;
    const char *all[MAX_PLANS];
    char path[600], name[300];
    (void)snprintf(path, sizeof path, "%s/%s/%s", TERN_TEST_DATA, kind, file);
    (void)snprintf(name, sizeof name, "%s/%s", kind, file);
    if (strcmp(kind, "tiny") == 0)
        name[strcspn(name, ".")] = 0;
    if (is_plain() && !is_thorough(name))
        return; /* forty times slower than the others */
    ok(tern_model_open(&m, path, &(tern_model_params){.n_threads = 1, .packed = "off"}, &err), &err);
    all_plans(all);
    add_lines(m, name, is_thorough(name) && !is_plain() ? all : few, true);
    if (strcmp(kind, "tiny") == 0)
        add_lines(m, name, fast, false);
    tern_model_close(&m);
}

/* A directory, or a GGUF file, of split ones the first part. */
static int is_model(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    const char *part = strstr(d->d_name, "-of-");
    return part ? strstr(d->d_name, "-00001-of-") != NULL
                : !strchr(d->d_name, '.') || (n > 5 && strcmp(d->d_name + n - 5, ".gguf") == 0);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_models(void)
{
    static const char *const kinds[] = {"tiny", "hf"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char path[512];
        struct dirent **list;
        (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, kinds[k]);
        int n = scandir(path, &list, is_model, by_name);
        assert_true(n > 0);
        for (int i = 0; i < n; i++) {
            run_model(kinds[k], list[i]->d_name);
            free(list[i]);
        }
        free(list);
    }
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void read_list(void)
{
    char text[200], class[8], model[40], plan[24];
    FILE *f = fopen(LEDGER, "r");
    if (!f)
        fail_msg("cannot open %s", LEDGER);
    while (fgets(text, sizeof text, f)) {
        struct line *l = &listed[n_listed];
        if (text[0] == '#' || text[0] == '\n')
            continue;
        assert_true(n_listed < MAX_LINES);
        if (sscanf(text, "%7s %39s %23s %16llx %lf", class, model, plan, &l->digest, &l->kld) != 5)
            fail_msg("a line that is none: %s", text);
        (void)snprintf(l->key, sizeof l->key, "%-5s %-32s %-17s", class, model, plan);
        n_listed++;
    }
    (void)fclose(f);
}

/* The first n_first lines are those of one level; of plain C those of its own class are added. */
static void write_list(const char *path, int n_first)
{
    FILE *f = fopen(path, "w");
    if (!f)
        fail_msg("cannot write %s", path);
    (void)fprintf(f, "# What the models of tests/data compute (docs/testing.md, \"The ledger\"); written by\n"
                     "#     build/tests/test_ledger --write tests/data/ledger.txt\n"
                     "# class, model, KV plan, digest of all logits' bits, divergence from the first plan in nats\n");
    for (int i = 0; i < n_computed; i++)
        if (i < n_first || strncmp(computed[i].key, "fast", 4) == 0)
            (void)fprintf(f, "%s %016llx %.3e\n", computed[i].key, computed[i].digest, computed[i].kld);
    assert_int_equal(fclose(f), 0);
}

/* A few percent more or less are rounding; another expert is more than that. */
static bool is_near(const struct line *got, const struct line *want)
{
    return fabs(got->kld - want->kld) <= (got->experts ? .2 : .05) * want->kld + 1e-8;
}

static int compare(struct line *got, bool digests)
{
    for (int i = 0; i < n_listed; i++) {
        struct line *want = &listed[i];
        if (strcmp(got->key, want->key) != 0)
            continue;
        want->seen = true;
        bool same = !digests || got->digest == want->digest;
        if (same && is_near(got, want))
            return 0;
        print_message("%s %016llx %.3e, listed %016llx %.3e%s\n", got->key, got->digest, got->kld, want->digest,
                      want->kld, is_near(got, want) ? "" : ": another divergence");
        return 1;
    }
    print_message("%s is not listed\n", got->key);
    return 1;
}

static void test_as_listed(void **state)
{
    const bool digests = strncmp(level, "avx", 3) == 0;
    int wrong = 0;
    (void)state;
    run_models();
    read_list();
    for (int i = 0; i < n_computed; i++)
        wrong += compare(&computed[i], digests);
    for (int i = 0; i < n_listed && !is_plain(); i++)
        if (!listed[i].seen && (strncmp(listed[i].key, "exact", 5) == 0 ||
                                strncmp(listed[i].key, fast_class(), strlen(fast_class())) == 0)) {
            print_message("%s is listed and was not computed\n", listed[i].key);
            wrong++;
        }
    if (wrong)
        fail_msg("%d of %d lines are not as tests/data/ledger.txt has them; if that is meant, say so in the commit and "
                 "write it anew: build/tests/test_ledger --write tests/data/ledger.txt",
                 wrong, n_computed);
}

static const char *write_to;

static void test_write(void **state)
{
    (void)state;
    tern_error err = {0};
    run_models();
    const int n_first = n_computed;
    level = "c";
    ok(tern_set_cpu_mask(level, &err), &err);
    run_models();
    write_list(write_to, n_first);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest check[] = {cmocka_unit_test(test_as_listed)}, write[] = {cmocka_unit_test(test_write)};
    tern_error err = {0};
    write_to = argc == 3 && strcmp(argv[1], "--write") == 0 ? argv[2] : NULL;
    if (argc == 2)
        level = argv[1];
    tern_machine machine;
    if (tern_set_cpu_mask(level, &err) < 0) {
        print_message("skipped: %s\n", err.msg);
        return 77;
    }
    tern_machine_describe(&machine);
    if (strcmp(machine.used, level) != 0) {
        print_message("skipped: this machine has no %s\n", level);
        return 77;
    }
    return write_to ? cmocka_run_group_tests(write, NULL, NULL) : cmocka_run_group_tests(check, NULL, NULL);
}
