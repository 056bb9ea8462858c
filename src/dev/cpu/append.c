/* New keys and values: into the raw tile of their page, and, when a page is full, from there into its codes.
 *
 * A page is always encoded from the original values, whatever steps they arrived in, so a cache built token by token
 * equals one built in one prefill. */
#include "dev/cpu/cpu.h"

#include <string.h>
#include "base/fp16.h"

struct append_work {
    struct tern_cpu *d;
    const struct tern_kv_layer *l;
    const struct tern_append_job *jobs;
    int n_jobs;
    const float *k, *v;
    size_t k_stride, v_stride;
};

static int pages_touched(const struct tern_attn_job *at)
{
    return (at->pos0 + at->n_rows - 1) / TERN_PAGE - at->pos0 / TERN_PAGE + 1;
}

/* One token into column c of a tile side.  Keys are stored transposed: a vector is 16 tokens of one dim. */
static void put_token(const struct tern_kv_side *side, uint8_t *tile, const float *x, int c)
{
    int dim = side->dim;
    if (side->raw32) {
        float *t = (float *)(void *)tile;
        if (side->key)
            for (int i = 0; i < dim; i++)
                t[i * TERN_PAGE + c] = x[i];
        else
            memcpy(t + (size_t)c * (size_t)dim, x, (size_t)dim * sizeof *x);
        return;
    }
    uint16_t h[TERN_KVQ_MAX_DIM] __attribute__((aligned(64)));
    uint16_t *t = (uint16_t *)(void *)tile;
    tern_k.attn.f32_to_f16(side->key ? h : t + (size_t)c * (size_t)dim, x, (size_t)dim);
    if (side->key)
        for (int i = 0; i < dim; i++)
            t[i * TERN_PAGE + c] = h[i];
}

/* The first tokens of page 0, raw: keys [dim][first], values [first][dim]. */
static void put_sink(const struct tern_kv_layer *l, uint8_t *sink, const uint8_t *tile)
{
    size_t ke = l->k.raw32 ? 4 : 2, ve = l->v.raw32 ? 4 : 2, first = (size_t)l->first;
    for (size_t i = 0; i < (size_t)l->k.dim; i++)
        memcpy(sink + i * first * ke, tile + i * TERN_PAGE * ke, first * ke);
    memcpy(sink + l->sink_v_off, tile + l->tile_v_off, first * (size_t)l->v.dim * ve);
}

static void close_page(const struct append_work *w, const struct tern_append_job *j, int page, int head,
                       const uint8_t *tile, int worker)
{
    const struct tern_kv_layer *l = w->l;
    const struct tern_attn_job *at = j->at;
    uint8_t *scratch = w->d->encode_scratch + (size_t)worker * TERN_KV_SCRATCH;
    const struct tern_kv_side k = tern_kv_side_of(&l->k, head);
    if (page == 0 && l->first)
        put_sink(l, j->sink + l->sink_layer_off + (size_t)head * l->sink_bytes, tile);
    if (page < at->first_page) /* recode: a window has dropped the page, its first tokens are seen all the same */
        return;
    uint8_t *p =
        tern_block_at(at->page_mem, at->pages[page - at->first_page]) + l->layer_off + (size_t)head * l->head_bytes;
    k.codec->encode(&k, p + l->k_off, (uint16_t *)(void *)(p + l->k_head_off), tile, page * TERN_PAGE, scratch);
    l->v.codec->encode(&l->v, p + l->v_off, (uint16_t *)(void *)(p + l->v_head_off), tile + l->tile_v_off,
                       page * TERN_PAGE, scratch);
}

/* Where a sequence keeps the raw tile of a page: all its KV heads. */
static uint8_t *own_tile(const struct tern_kv_layer *l, uint8_t *seq_tile, int page)
{
    return seq_tile + l->tile_layer_off + (size_t)(page % l->ring) * (size_t)l->n_heads * l->tile_bytes;
}

/* One page of one job and one KV head. */
static void append_page(const struct append_work *w, const struct tern_append_job *j, int t, int head, int worker)
{
    const struct tern_kv_layer *l = w->l;
    const struct tern_attn_job *at = j->at;
    int page = at->pos0 / TERN_PAGE + t, end = at->pos0 + at->n_rows;
    int from = page * TERN_PAGE > at->pos0 ? page * TERN_PAGE : at->pos0;
    int to = (page + 1) * TERN_PAGE < end ? (page + 1) * TERN_PAGE : end;
    size_t head_off = (size_t)head * l->tile_bytes;
    uint8_t *tile = j->tile_base + (size_t)t * at->tile_stride + at->tile_layer_off + head_off;
    bool full = to % TERN_PAGE == 0;
    if (j->staged && from % TERN_PAGE)
        memcpy(tile, own_tile(l, j->seq_tile, page) + head_off, l->tile_bytes);
    else if (j->staged && !full)
        memset(tile, 0, l->tile_bytes); /* columns behind the last token must be finite */
    for (int p = from; p < to; p++) {
        size_t row = (size_t)(at->row0 + p - at->pos0);
        put_token(&l->k, tile, w->k + row * w->k_stride + (size_t)head * (size_t)l->k.dim, p % TERN_PAGE);
        put_token(&l->v, tile + l->tile_v_off, w->v + row * w->v_stride + (size_t)head * (size_t)l->v.dim,
                  p % TERN_PAGE);
    }
    if (full)
        close_page(w, j, page, head, tile, worker);
}

/* First a page of each job, so that a batch of single tokens finds its jobs by division; then what jobs have besides.
 */
static void append_task(void *ctx, int task, int worker)
{
    const struct append_work *w = ctx;
    int heads = w->l->n_heads, n = w->n_jobs * heads;
    if (task < n) {
        append_page(w, &w->jobs[task / heads], 0, task % heads, worker);
        return;
    }
    task -= n;
    for (int i = 0; i < w->n_jobs; i++) {
        n = (pages_touched(w->jobs[i].at) - 1) * heads;
        if (task < n) {
            append_page(w, &w->jobs[i], 1 + task / heads, task % heads, worker);
            return;
        }
        task -= n;
    }
}

void tern_cpu_append_jobs(struct tern_cpu *d, const struct tern_kv_layer *l, const struct tern_append_job *jobs,
                          int n_jobs, const float *k, size_t k_stride, const float *v, size_t v_stride)
{
    struct append_work w = {d, l, jobs, n_jobs, k, v, k_stride, v_stride};
    int tasks = 0, rows = 0;
    bool closes = false;
    for (int i = 0; i < n_jobs; i++) {
        const struct tern_attn_job *at = jobs[i].at;
        tasks += pages_touched(at) * l->n_heads;
        rows += at->n_rows;
        closes |= (at->pos0 + at->n_rows) / TERN_PAGE > at->pos0 / TERN_PAGE;
    }
    /* A few tokens into open tiles are less work than waking anybody. */
    if (rows <= 8 && !closes)
        for (int t = 0; t < tasks; t++)
            append_task(&w, t, 0);
    else
        tern_pool_run(d->pool, append_task, &w, tasks);
}

void tern_cpu_keep(const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs)
{
    for (int i = 0; i < n_jobs; i++) {
        const struct tern_attn_job *at = jobs[i].at;
        int first = at->pos0 / TERN_PAGE, to = (at->pos0 + at->n_rows + TERN_PAGE - 1) / TERN_PAGE;
        int from = to - l->ring > first ? to - l->ring : first;
        for (int page = from; jobs[i].staged && page < to; page++)
            memcpy(own_tile(l, jobs[i].seq_tile, page),
                   jobs[i].tile_base + (size_t)(page - first) * at->tile_stride + at->tile_layer_off,
                   (size_t)l->n_heads * l->tile_bytes);
    }
}

/* ---- and out again ------------------------------------------------------------------------------------------- */

struct value_work {
    struct tern_cpu *d;
    const struct tern_kv_layer *l;
    const struct tern_attn_job *job;
    float *k, *v;
    size_t k_stride, v_stride;
};

/* The inverse of put_token, of a tile of so many columns. */
static void take_token(const struct tern_kv_side *side, float *x, const uint8_t *raw, int c, int columns)
{
    size_t first = (size_t)c * (side->key ? 1 : (size_t)side->dim), step = side->key ? (size_t)columns : 1;
    const float *f32 = (const float *)(const void *)raw;
    const uint16_t *f16 = (const uint16_t *)(const void *)raw;
    for (size_t i = 0; i < (size_t)side->dim; i++)
        x[i] = side->raw32 ? f32[first + i * step] : tern_f16_to_f32(f16[first + i * step]);
}

/* Where one side of a page and KV head lies. */
struct side_at {
    const uint8_t *raw; /* in a tile, or in a page that is one; else NULL, and codes with their headers */
    const uint8_t *data, *head;
    const uint8_t *sink; /* the first n_sink tokens, raw */
    int n_sink;
};

/* x: rows of the columns [from, to) of a page. */
static void side_rows(const struct tern_kv_side *side, const struct side_at *at, float *x, size_t stride, int page,
                      int from, int to, float *scratch)
{
    const size_t dim = (size_t)side->dim;
    float *rows = scratch;
    if (!at->raw)
        tern_kv_values(side, rows, at->data, (const uint16_t *)(const void *)at->head, page * TERN_PAGE,
                       scratch + TERN_PAGE * dim);
    for (int c = from; c < to; c++, x += stride) {
        if (at->sink && c < at->n_sink)
            take_token(side, x, at->sink, c, at->n_sink);
        else if (at->raw)
            take_token(side, x, at->raw, c, TERN_PAGE);
        else
            memcpy(x, rows + (size_t)c * dim, dim * sizeof *x);
    }
}

static void zero_rows(float *x, size_t stride, int n, size_t dim)
{
    for (int i = 0; i < n; i++, x += stride)
        memset(x, 0, dim * sizeof *x);
}

/* One page of the job and one KV head. */
static void value_task(void *ctx, int task, int worker)
{
    const struct value_work *w = ctx;
    const struct tern_kv_layer *l = w->l;
    const struct tern_attn_job *at = w->job;
    const int head = task % l->n_heads, page = at->pos0 / TERN_PAGE + task / l->n_heads;
    const int start = page * TERN_PAGE, end = at->pos0 + at->n_rows, open = at->first_page + at->n_pages;
    const int from = start > at->pos0 ? 0 : at->pos0 - start, to = end - start < TERN_PAGE ? end - start : TERN_PAGE;
    const size_t row = (size_t)(at->row0 + start + from - at->pos0);
    const struct tern_kv_side k = tern_kv_side_of(&l->k, head);
    float *x_k = w->k + row * w->k_stride + (size_t)head * (size_t)l->k.dim;
    float *x_v = w->v + row * w->v_stride + (size_t)head * (size_t)l->v.dim;
    float *scratch = (float *)(void *)(w->d->encode_scratch + (size_t)worker * TERN_KV_SCRATCH);
    struct side_at k_at = {0}, v_at = {0};
    int n = to; /* rows behind the n-th are gone */
    if (page == 0 && open > 0 && l->first) {
        k_at.sink = at->sink + l->sink_layer_off + (size_t)head * l->sink_bytes;
        v_at.sink = k_at.sink + l->sink_v_off;
        k_at.n_sink = v_at.n_sink = l->first;
    }
    if (page < at->first_page) { /* a window has dropped it */
        n = k_at.n_sink < to ? k_at.n_sink : to;
        n = n > from ? n : from;
        zero_rows(x_k + (size_t)(n - from) * w->k_stride, w->k_stride, to - n, (size_t)l->k.dim);
        zero_rows(x_v + (size_t)(n - from) * w->v_stride, w->v_stride, to - n, (size_t)l->v.dim);
        k_at.raw = v_at.raw = k_at.sink; /* not read: first tokens alone are left */
    } else if (page > open - l->recent) {
        k_at.raw = at->ring + (size_t)(page % l->ring * l->n_heads + head) * l->tile_bytes;
        v_at.raw = k_at.raw + l->tile_v_off;
    } else {
        const uint8_t *p =
            tern_block_at(at->page_mem, at->pages[page - at->first_page]) + l->layer_off + (size_t)head * l->head_bytes;
        k_at.data = p + l->k_off, k_at.head = p + l->k_head_off;
        v_at.data = p + l->v_off, v_at.head = p + l->v_head_off;
        k_at.raw = k.codec->raw ? k_at.data : NULL;
        v_at.raw = l->v.codec->raw ? v_at.data : NULL;
    }
    if (n == from)
        return;
    side_rows(&k, &k_at, x_k, w->k_stride, page, from, n, scratch);
    side_rows(&l->v, &v_at, x_v, w->v_stride, page, from, n, scratch);
}

void tern_cpu_value_rows(struct tern_cpu *d, const struct tern_kv_layer *l, const struct tern_attn_job *job, float *k,
                         size_t k_stride, float *v, size_t v_stride)
{
    struct value_work w = {d, l, job, k, v, k_stride, v_stride};
    tern_pool_run(d->pool, value_task, &w, pages_touched(job) * l->n_heads);
}
