/* Time of append and attention on a device, one layer (8 KV heads, 4 query heads each; or latents, of 16 query heads):
 * decode steps of B sequences at a length, and prompts; a line per scheme, with the time that f16 takes divided by it.
 * Steps are given to the device `many` at a time and timed together; the smallest of several such times counts.
 *
 *   bench_attn [DEVICE [SEQUENCES POSITION ROWS [DIMS] [SCHEME..]]]    DIMS: 128 if there is none; latent
 *                                                                      SCHEME: of both sides, or KEYS:VALUES */
#include <time.h>
#include "attn_case.h"

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A step of rows at pos, its numbers already on the device: `layers` times append and attention in one. */
static void one_step(struct worker *w, int pos, int rows, int layers, bool appends)
{
    struct tern_dev_job jobs[64];
    struct tern_dev_table tables[64];
    for (int i = 0; i < w->seqs.n; i++) {
        tables[i] = (struct tern_dev_table){w->numbers + i * w->max_pages, 0, (pos + rows) / TERN_PAGE};
        jobs[i] = (struct tern_dev_job){.row0 = i * rows,
                                        .n_rows = rows,
                                        .pos0 = pos,
                                        .wide = rows > 1,
                                        .tables = &tables[i],
                                        .tile = (uint32_t)i,
                                        .sink = (uint32_t)i,
                                        .state = TERN_NO_BLOCK};
    }
    const struct tern_dev_step step = {
        .n_rows = rows * w->seqs.n, .caches = &w->cache, .n_caches = 1, .jobs = jobs, .n_jobs = w->seqs.n};
    w->ops->begin(w->dev, &step);
    for (int l = 0; l < layers; l++) {
        if (appends)
            w->ops->append(w->dev, l % w->n_layers, w->k, w->v);
        else
            w->ops->attention(w->dev, &w->shapes[l % w->n_layers], w->q, w->out);
    }
    w->ops->end(w->dev);
    w->ops->sync(w->dev);
}

static double best_time(struct worker *w, int pos, int rows, int layers, bool appends)
{
    double best = 1e9;
    for (int i = 0; i < 6; i++) {
        const double t = now();
        one_step(w, pos, rows, layers, appends);
        const double took = (now() - t) / layers;
        best = took < best ? took : best;
    }
    return best * 1e6;
}

static const char *const all_schemes[] = {"f16", "q8", "l4", "l3", "l2", "t4", "t3", "t2"};
#define N_SCHEMES (int)(sizeof all_schemes / sizeof *all_schemes)

static void bench(const char *device, struct tern_pool *pool, int n, int len, int rows, int dims,
                  const char *const *schemes, int n_schemes)
{
    double f16 = 0;
    printf("%d sequences, position %d, %d %s of each, %d dims%s\n", n, len, rows,
           rows > 1 ? "prompt rows" : "decode row", dims, dims ? "" : ": latents");
    for (int i = 0; i < n_schemes; i++) {
        char k[16];
        const char *colon = strchr(schemes[i], ':'), *v = colon ? colon + 1 : schemes[i];
        (void)snprintf(k, sizeof k, "%.*s", (int)(colon ? colon - schemes[i] : 15), schemes[i]);
        struct config cfg = {.k = k, .v = v, .dk = dims, .dv = dims, .n_kv = 8, .group = 4, .first = 4};
        if (!dims)
            cfg = (struct config){
                .k = "f16", .v = v, .dk = 64, .dv = 512, .n_kv = 1, .group = 16, .first = 4, .latent = true};
        const int chunk = 2048, n_layers = n < 4 && rows == 1 ? 10 : 1; /* more than a card's cache holds */
        struct layer l;
        struct worker w;
        layer_init(&l, &cfg);
        worker_open(&w, device, pool, &l, (struct seqs){n, len + rows + 64, NULL}, n * chunk, false, n_layers);
        struct part parts[64];
        for (int s = 0; s < n; s++)
            parts[s] = (struct part){s, 0, chunk, true};
        worker_send(&w, w.k, CASE_K, parts, n);
        worker_send(&w, w.v, CASE_V, parts, n);
        worker_send(&w, w.q, CASE_Q, parts, n);
        double encode = 0;
        for (int pos = 0; pos < len; pos += chunk) { /* every chunk holds the same numbers */
            const double t = now();
            one_step(&w, pos, chunk, n_layers, true);
            encode = (now() - t) / n_layers;
        }
        const double us = best_time(&w, len, rows, rows > 1 ? 1 : 20, false);
        const double append = rows > 1 ? 0 : best_time(&w, len, rows, 20, true);
        f16 = i ? f16 : us;
        printf("  %-4s %10.1f us  %5.2f   append %6.1f us   append and encode %d rows %8.0f us\n", schemes[i], us,
               f16 / us, append, n * chunk, encode * 1e6);
        (void)fflush(stdout);
        worker_close(&w);
        layer_clear(&l);
    }
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "cuda";
    struct tern_pool *pool;
    tern_error err;
    tern_kernels_init(~0u);
    if (tern_pool_new(&pool, 2, 0, &err) < 0)
        fail(err.msg);
    if (argc > 4) {
        const int n = atoi(argv[2]), len = atoi(argv[3]), rows = atoi(argv[4]), own = argc > 5 ? atoi(argv[5]) : 0;
        const bool latent = argc > 5 && strcmp(argv[5], "latent") == 0;
        const int named = own || latent ? 6 : 5;
        if (n < 1 || n > 64 || len < 0 || len % 2048 || rows < 1 || rows > 2048)
            fail("up to 64 sequences, a position that 2048 divides, up to 2048 rows");
        bench(device, pool, n, len, rows, own || latent ? own : 128,
              argc > named ? (const char *const *)argv + named : all_schemes, argc > named ? argc - named : N_SCHEMES);
    } else {
        bench(device, pool, 1, 32768, 1, 128, all_schemes, N_SCHEMES);
        bench(device, pool, 8, 32768, 1, 128, all_schemes, N_SCHEMES);
        bench(device, pool, 1, 8192, 2048, 128, all_schemes, N_SCHEMES);
    }
    tern_pool_free(pool);
    return 0;
}
