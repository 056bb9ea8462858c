/* bench/recode.c - what a change of plan costs a text: a sequence is read in one plan up to the middle, changes to
 * another one (tern_seq_recode), and reads on; beside it one that had the other plan from the beginning.
 *
 *     bench_recode MODEL TEXT [TOKENS [CHUNKS [THREADS]]]
 *
 * For each pair of plans: KLD in nats per token from a 16-bit cache that reads the same tokens, over the AFTER tokens
 * behind the change, mean and without the worst 1 %; all in prompt rows of exact arithmetic.  No clock takes part. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tern/tern.h"

enum { AFTER = 256, STEP = 64, MOST_CHUNKS = 64, N_PLANS = 8 };

static const char *const plans[N_PLANS] = {"f16", "q8", "t4", "l4", "t3", "l3", "t2", "l2"};
static const struct {
    int from, to; /* of plans; from 0: nothing changes, the text was read in the other plan from the beginning */
} ways[] = {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}, {0, 7}, {1, 2}, {1, 4}, {1, 5}, {2, 4},
            {2, 5}, {2, 3}, {3, 2}, {3, 5}, {4, 5}, {4, 6}, {2, 6}, {2, 7}, {5, 7}, {2, 0}};
#define N_WAYS (sizeof ways / sizeof *ways)

static tern_error err;

static void ok(int rc)
{
    if (rc < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

static char *read_text(const char *path, size_t *n)
{
    char *text = malloc((size_t)1 << 22);
    FILE *f = fopen(path, "rb");
    if (!f || !text) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    *n = fread(text, 1, (size_t)1 << 22, f);
    (void)fclose(f);
    return text;
}

/* ln of the probabilities. */
static void log_softmax(double *out, const float *x, int n)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - most);
    for (int i = 0; i < n; i++)
        out[i] = x[i] - most - log(sum);
}

/* Reads AFTER tokens on and leaves the logits of all in out[AFTER][n_vocab]. */
static void read_on(tern_engine *e, tern_seq *s, const int32_t *ids, float *out, int n_vocab)
{
    for (int i = 0; i < AFTER; i += STEP) {
        const float *logits;
        const tern_step_item item = {s, ids + i, STEP, false, TERN_LOGITS_ALL};
        ok(tern_step(e, &item, 1, &logits, &err));
        memcpy(out + (size_t)i * (size_t)n_vocab, logits, (size_t)STEP * (size_t)n_vocab * sizeof *out);
    }
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(int way, double *kld, int n)
{
    double all = 0, most = 0;
    qsort(kld, (size_t)n, sizeof *kld, by_size);
    const int kept = n - (n + 99) / 100;
    for (int i = 0; i < n; i++) {
        all += kld[i];
        most += i < kept ? kld[i] : 0;
    }
    const char *from = plans[ways[way].from], *to = plans[ways[way].to];
    (void)printf("%-4s %-4s %-10s  %.6f  %.6f  %d\n", from, to, ways[way].from ? "recoded" : "direct", all / n,
                 most / kept, n);
}

int main(int argc, char **argv)
{
    const int middle = argc > 3 ? atoi(argv[3]) : 1024, chunks = argc > 4 ? atoi(argv[4]) : 4;
    tern_model *m;
    tern_engine *e;
    tern_tokens ids = {0};
    size_t n_text;
    if (argc < 3 || middle < 64 || chunks < 1 || chunks > MOST_CHUNKS) {
        (void)fprintf(stderr, "bench_recode MODEL TEXT [TOKENS [CHUNKS [THREADS]]]\n");
        return 2;
    }
    char *text = read_text(argv[2], &n_text);
    const tern_model_params mp = {.n_threads = argc > 5 ? atoi(argv[5]) : 2};
    ok(tern_model_open(&m, argv[1], &mp, &err));
    const int n_vocab = tern_model_get_info(m)->n_vocab, need = middle + AFTER;
    ok(tern_model_tokenize(m, text, n_text, 0, &ids, &err));
    if (ids.len < (size_t)need * (size_t)chunks) {
        (void)fprintf(stderr, "%s has %zu tokens, and %d are asked for\n", argv[2], ids.len, need * chunks);
        return 1;
    }
    const tern_engine_params ep = {.n_threads = mp.n_threads,
                                   .ctx = need,
                                   .max_seqs = N_PLANS + 2,
                                   .kv = plans[0],
                                   .more_kv = plans + 1,
                                   .n_more_kv = N_PLANS - 1,
                                   .exact = true};
    ok(tern_engine_open(&e, m, &ep, &err));
    static double kld[N_WAYS][MOST_CHUNKS * AFTER];
    float *want = malloc((size_t)AFTER * (size_t)n_vocab * sizeof *want),
          *got = malloc((size_t)AFTER * (size_t)n_vocab * sizeof *got);
    double *p = malloc((size_t)n_vocab * sizeof *p), *q = malloc((size_t)n_vocab * sizeof *q);
    if (!want || !got || !p || !q)
        return 1;
    for (int c = 0; c < chunks; c++) {
        /* Chunks are spread evenly over the text. */
        const int32_t *at = ids.p + (ids.len - (size_t)need) / (size_t)chunks * (size_t)c;
        tern_seq *base[N_PLANS], *s;
        for (int i = 0; i < N_PLANS; i++) {
            ok(tern_seq_new_plan(&base[i], e, i, &err));
            ok(tern_prefill(e, base[i], at, middle, NULL, NULL, NULL, &err));
        }
        ok(tern_seq_fork(&s, base[0], &err));
        read_on(e, s, at + middle, want, n_vocab);
        tern_seq_free(s);
        for (size_t w = 0; w < N_WAYS; w++) {
            const bool direct = !ways[w].from;
            ok(tern_seq_fork(&s, base[direct ? ways[w].to : ways[w].from], &err));
            if (!direct)
                ok(tern_seq_recode(s, ways[w].to, NULL, &err));
            read_on(e, s, at + middle, got, n_vocab);
            tern_seq_free(s);
            for (int i = 0; i < AFTER; i++) {
                double sum = 0;
                log_softmax(p, want + (size_t)i * (size_t)n_vocab, n_vocab);
                log_softmax(q, got + (size_t)i * (size_t)n_vocab, n_vocab);
                for (int k = 0; k < n_vocab; k++)
                    sum += exp(p[k]) * (p[k] - q[k]);
                kld[w][c * AFTER + i] = sum;
            }
        }
        for (int i = 0; i < N_PLANS; i++)
            tern_seq_free(base[i]);
    }
    (void)printf("# %d chunks: a plan up to token %d, then another; KLD from f16 of the %d tokens behind\n", chunks,
                 middle, AFTER);
    (void)printf("# from to   mean  without the worst 1 %%  tokens\n");
    for (size_t w = 0; w < N_WAYS; w++)
        report((int)w, kld[w], chunks * AFTER);
    free(text);
    free(want);
    free(got);
    free(p);
    free(q);
    tern_tokens_clear(&ids);
    tern_engine_close(&e);
    tern_model_close(&m);
    return 0;
}
