/* append, encoding and attention of a device against those of the CPU: closed pages, tiles and first tokens byte for
 * byte, rows within a budget of the CPU's exact class, and a device's own rows equal however steps are cut.
 *
 *   check_attn [DEVICE [NAME]]    DEVICE: cuda; NAME: the cases that contain it
 *
 * CHECKDEV_QUICK leaves long cases out; CHECKDEV_RACES leaves one for each scheme, for tools that slow kernels down a
 * thousand times; CHECKDEV_MIDDLE leaves of the quick ones the longest.
 *
 * Exit 77 where the device is not there. */
#include "attn_case.h"

static int failures, n_cases;

/* How sequences come in: prompts cut in two, then decode rows; rows of several sequences in a step, or of one. */
struct script {
    const char *name;
    bool together, all_wide;
    int cut;             /* tokens of a first step; 0: no cut */
    int decoded, drafts; /* tokens at the end that are decoded, and how many at a time */
};

static void run_script(struct worker *w, const struct script *s)
{
    const struct seqs *q = &w->seqs;
    struct part *parts = grab((size_t)q->n, sizeof *parts);
    int *done = grab((size_t)q->n, sizeof *done);
    for (bool more = true; more;) {
        more = false;
        for (int role = 0; role < 2; role++) /* prompts, then decoding: they may share a step, prompts first */
            for (int i = 0, n = 0; i <= q->n; i++) {
                const bool last = i == q->n;
                if (!last) {
                    const int prompt = q->len[i] - s->decoded > 0 ? q->len[i] - s->decoded : 0;
                    const bool wide = done[i] < prompt;
                    const int left = wide ? prompt - done[i] : q->len[i] - done[i];
                    const int most = wide ? (s->cut && done[i] == 0 ? s->cut : 100000) : s->drafts;
                    if (left <= 0 || wide != (role == 0))
                        continue;
                    parts[n++] = (struct part){i, done[i], left < most ? left : most, wide || s->all_wide};
                    done[i] += parts[n - 1].n;
                    more = true;
                }
                if (n && (last || !s->together)) {
                    worker_step(w, parts, n);
                    n = 0;
                }
            }
    }
    tern_free(parts);
    tern_free(done);
}

static void say(const char *label, const char *script, bool ok, const char *what, double figure)
{
    if (!ok)
        failures++;
    if (!ok || getenv("CHECKDEV_VERBOSE"))
        printf("%s  %-40s %-10s %s %.3g\n", ok ? "ok    " : "FAILED", label, script, what, figure);
}

static void same_bytes(struct worker *a, struct worker *b, struct tern_dev_blocks in_a, struct tern_dev_blocks in_b,
                       size_t n, const char *label, const char *what)
{
    uint8_t *x = worker_bytes(a, in_a, n), *y = worker_bytes(b, in_b, n);
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < n * in_a.bytes; i++)
        if (x[i] != y[i]) {
            first = differ ? first : i;
            differ++;
        }
    say(label, what, differ == 0, "bytes that differ:", (double)differ);
    if (differ)
        printf("        first: block %zu, byte %zu: %02x for %02x\n", first / in_a.bytes, first % in_a.bytes, y[first],
               x[first]);
    tern_free(x);
    tern_free(y);
}

/* The largest relative error of a row. */
static double worst_row(const struct worker *ref, const struct worker *w)
{
    double worst = 0;
    const size_t width = (size_t)w->out.width;
    for (int s = 0; s < w->seqs.n; s++)
        for (int p = 0; p < w->seqs.len[s]; p++) {
            const size_t at = ((size_t)s * (size_t)w->seqs.max + (size_t)p) * width;
            double e = 0, r = 0;
            for (size_t i = 0; i < width; i++) {
                const double x = ref->home[at + i], d = (double)w->home[at + i] - x;
                e += d * d;
                r += x * x;
            }
            const double rel = sqrt(e / (r > 0 ? r : 1));
            worst = rel > worst || !(rel == rel) ? rel : worst;
            if (!(rel == rel))
                return INFINITY;
        }
    return worst;
}

static bool same_rows(const struct worker *a, const struct worker *b)
{
    const size_t width = (size_t)a->out.width;
    for (int s = 0; s < a->seqs.n; s++)
        if (memcmp(a->home + (size_t)s * (size_t)a->seqs.max * width, b->home + (size_t)s * (size_t)a->seqs.max * width,
                   (size_t)a->seqs.len[s] * width * sizeof(float)) != 0)
            return false;
    return true;
}

static void check(const char *device, struct tern_pool *pool, const struct config *cfg, struct seqs seqs, bool exact,
                  double budget)
{
    static const struct script scripts[] = {
        {.name = "batch", .together = true, .decoded = 5, .drafts = 1},
        {.name = "single", .decoded = 5, .drafts = 1, .cut = 100},
        {.name = "drafts", .together = true, .decoded = 5, .drafts = 3, .cut = 63},
    };
    static const struct script ref_script = {.name = "cpu", .decoded = 5, .drafts = 1, .all_wide = true};
    char label[176];
    struct layer l;
    struct worker ref, w[3];
    int rows = 0;
    for (int i = 0; i < seqs.n; i++)
        rows += seqs.len[i];
    layer_init(&l, cfg);
    (void)snprintf(label, sizeof label, "%s/%s %dx%d h%d g%d f%d w%d%s r%d%s%s c%d%s%s%s", cfg->k, cfg->v, cfg->dk,
                   cfg->dv, cfg->n_kv, cfg->group, l.kv.first, cfg->window, cfg->chunked ? "c" : "", cfg->recent,
                   cfg->cond ? " cond" : "", cfg->latent ? " latent" : "", (int)cfg->softcap,
                   cfg->coded32 ? " f32 tile" : "", cfg->wild ? " wild" : "", cfg->turned ? " turned" : "");
    const size_t pages = (size_t)(seqs.max / TERN_PAGE + 1) * (size_t)seqs.n;
    worker_open(&ref, "cpu", pool, &l, seqs, rows, true, 1);
    run_script(&ref, &ref_script);
    for (int i = 0; i < 3; i++) {
        worker_open(&w[i], device, pool, &l, seqs, rows, exact, 1);
        run_script(&w[i], &scripts[i]);
        same_bytes(&ref, &w[i], ref.pages, w[i].pages, pages, label, "pages");
        same_bytes(&ref, &w[i], ref.sinks, w[i].sinks, (size_t)seqs.n, label, "sinks");
        if (cfg->wild)
            continue;
        const double e = worst_row(&ref, &w[i]);
        say(label, scripts[i].name, e <= budget, "error", e);
        if (i)
            say(label, scripts[i].name, same_rows(&w[0], &w[i]), "rows equal those of the batch", 1);
    }
    for (int i = 0; i < 3; i++)
        worker_close(&w[i]);
    worker_close(&ref);
    layer_clear(&l);
    n_cases++;
    (void)fflush(stdout);
}

/* Decode rows of several pages and sequences in one step, more than partial results have room for on a small card:
 * those that come 37 of a sequence at a time are the same. */
static void check_again(const char *device, struct tern_pool *pool, const struct config *cfg, struct seqs seqs,
                        bool exact, double budget)
{
    static const struct script scripts[] = {
        {.name = "again", .together = true, .decoded = 150, .drafts = 150},
        {.name = "by 37", .decoded = 150, .drafts = 37},
    };
    static const struct script ref_script = {.name = "cpu", .decoded = 5, .drafts = 1, .all_wide = true};
    char label[64];
    struct layer l;
    struct worker ref, w[2];
    int rows = 0;
    for (int i = 0; i < seqs.n; i++)
        rows += seqs.len[i];
    layer_init(&l, cfg);
    (void)snprintf(label, sizeof label, "%s/%s %dx%d again", cfg->k, cfg->v, cfg->dk, cfg->dv);
    worker_open(&ref, "cpu", pool, &l, seqs, rows, true, 1);
    run_script(&ref, &ref_script);
    for (int i = 0; i < 2; i++) {
        worker_open(&w[i], device, pool, &l, seqs, rows, exact, 1);
        run_script(&w[i], &scripts[i]);
        const double e = worst_row(&ref, &w[i]);
        say(label, scripts[i].name, e <= budget, "error", e);
    }
    say(label, scripts[0].name, same_rows(&w[0], &w[1]), "rows equal those by 37", 1);
    for (int i = 0; i < 2; i++)
        worker_close(&w[i]);
    worker_close(&ref);
    layer_clear(&l);
    n_cases++;
}

static const int short_lens[] = {1, 63, 64, 65, 128, 129, 200, 333};
static const int race_lens[] = {65, 590}; /* two ranges, and as little to encode as can be */
static const int wild_lens[] = {64, 130, 256};
static const int large_lens[] = {1, 65, 200};
static const int middle_lens[] = {700, 1100};
static const int long_lens[] = {1024, 1100, 2500, 4097};
#define SEQS(lens)                                                                 \
    (struct seqs)                                                                  \
    {                                                                              \
        sizeof lens / sizeof *lens, lens[sizeof lens / sizeof *lens - 1] + 1, lens \
    }

static const char *const schemes[] = {"f32", "f16", "bf16", "q8",      "l4",      "l3",    "l2",   "t4",
                                      "t3",  "t2",  "g16",  "affine8", "affine4", "g16_3", "g16_2"};
#define N_SCHEMES (sizeof schemes / sizeof *schemes)

/* Codes of two kinds, and values of codes beside keys of halves: heads of both sizes, as many q rows as a block has and
 * more. */
static void check_mixed(const char *device, struct tern_pool *pool, const char *keys, bool exact, double budget)
{
    static const char *const values[] = {"l4", "l3", "l2"};
    for (int i = 0; i < 3; i++)
        for (int large = 0; large < 2 && strcmp(keys, values[i]) != 0; large++) {
            const struct config cfg = {.k = keys,
                                       .v = values[i],
                                       .dk = 64 + 64 * large,
                                       .dv = 64 + 64 * large,
                                       .n_kv = 2,
                                       .group = 4 + (i + large) % 2,
                                       .first = 4};
            check(device, pool, &cfg, SEQS(large_lens), exact, budget);
        }
}

/* Two blocks of codes, with all that scores get besides; latents; sides of different sizes and schemes, and many q
 * rows; conditioned keys of another scheme than values. */
static void check_large(const char *device, struct tern_pool *pool, struct config cfg, bool exact, double budget)
{
    const struct config latents = {
        .k = "f16", .v = cfg.v, .dk = 64, .dv = 512, .n_kv = 1, .group = 2, .first = 4, .latent = true};
    cfg.dk = cfg.dv = 256, cfg.n_kv = 1, cfg.group = 3, cfg.window = 100, cfg.softcap = 20;
    check(device, pool, &cfg, SEQS(large_lens), exact, budget);
    check(device, pool, &latents, SEQS(large_lens), exact, budget);
    const struct config sides = {.k = cfg.k, .v = "l3", .dk = 80, .dv = 160, .n_kv = 1, .group = 9, .first = 4};
    check(device, pool, &sides, SEQS(large_lens), exact, budget);
    cfg.v = "l4", cfg.dk = cfg.dv = 128, cfg.softcap = 0;
    check(device, pool, &cfg, SEQS(large_lens), exact, budget);
    if (strcmp(cfg.k, "q8") == 0 || strcmp(cfg.k, "l4") == 0 || strcmp(cfg.k, "f16") == 0)
        check_mixed(device, pool, cfg.k, exact, budget);
}

static const int dims[] = {64, 128, 256, 512, 80, 96, 112, 16, 192, 320, 448, 144 * 2};

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "cuda", *only = argc > 2 ? argv[2] : "";
    const struct tern_dev_ops *ops;
    tern_error err;
    struct tern_pool *pool;
    tern_kernels_init(~0u);
    if (tern_dev_find(&ops, device, &err) < 0) {
        printf("skipped: %s\n", err.msg);
        return 77;
    }
    if (tern_pool_new(&pool, 8, 0, &err) < 0)
        fail(err.msg);
    const bool exact = getenv("CHECKDEV_EXACT") != NULL, races = getenv("CHECKDEV_RACES") != NULL;
    const bool middle = getenv("CHECKDEV_MIDDLE") != NULL, quick = middle || getenv("CHECKDEV_QUICK") != NULL;
    const double budget = exact ? 2e-5 : 3e-3;
    for (size_t s = 0; s < N_SCHEMES; s++) {
        const char *name = schemes[s];
        if (*only && !strstr(name, only))
            continue;
        if (races) {
            const struct config cfg = {.k = name, .v = name, .dk = 128, .dv = 128, .n_kv = 1, .group = 4, .first = 4};
            check(device, pool, &cfg, SEQS(race_lens), exact, budget);
            continue;
        }
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) { /* encoders: all head sizes */
            struct config cfg = {.k = name, .v = name, .dk = dims[d], .dv = dims[d], .n_kv = 2, .group = 1, .first = 4};
            if (middle || (quick && d > 1))
                break;
            const char *why;
            if (!case_codec(name)->accepts(cfg.dk, &why))
                continue;
            cfg.wild = 50;
            cfg.coded32 = d % 2;
            check(device, pool, &cfg, SEQS(wild_lens), exact, budget);
            cfg.wild = 0;
            cfg.group = 1 + (int)(d + s) % 5;
            cfg.turned = d % 2;
            check(device, pool, &cfg, SEQS(short_lens), exact, budget);
            if (d < 2)
                check_again(device, pool, &cfg, SEQS(short_lens), exact, budget);
        }
        struct config cfg = {
            .k = name, .v = name, .dk = 128, .dv = 128, .n_kv = 2, .group = 4, .first = 4, .turned = true};
        check(device, pool, &cfg, quick ? SEQS(middle_lens) : SEQS(long_lens), exact, budget);
        for (cfg.group = 5; cfg.group < 9 && !middle; cfg.group += 3) /* heads in two blocks where there are few */
            check(device, pool, &cfg, SEQS(short_lens), exact, budget);
        cfg.group = 4;
        cfg.cond = true, cfg.pairs = 3, cfg.dk = cfg.dv = 64;
        if (!middle)
            check(device, pool, &cfg, SEQS(short_lens), exact, budget);
        if (!middle)
            check_large(device, pool, cfg, exact, budget);
        printf("%s: %d cases, %d failures so far\n", name, n_cases, failures);
        (void)fflush(stdout);
        if (quick)
            continue;
        cfg.turned = false;
        check(device, pool, &cfg, SEQS(short_lens), exact, budget);
        cfg.softcap = 20, cfg.window = 100;
        check(device, pool, &cfg, SEQS(short_lens), exact, budget);
        cfg = (struct config){.k = name, .v = "f16", .dk = 64, .dv = 48, .n_kv = 1, .group = 9, .first = 5};
        cfg.window = 70, cfg.chunked = true;
        check(device, pool, &cfg, SEQS(short_lens), exact, budget);
        cfg = (struct config){.k = "f16", .v = name, .dk = 40, .dv = 128, .n_kv = 1, .group = 17, .first = 4};
        cfg.recent = 2;
        check(device, pool, &cfg, SEQS(short_lens), exact, budget);
        cfg = (struct config){.k = "f16", .v = name, .dk = 64, .dv = 512, .n_kv = 1, .group = 16, .first = 4};
        cfg.latent = true;
        check(device, pool, &cfg, SEQS(short_lens), exact, budget);
    }
    tern_pool_free(pool);
    printf("%d cases, %d failures\n", n_cases, failures);
    return failures != 0;
}
