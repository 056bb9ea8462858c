/* append, attention and recode: what the host does for them.
 *
 * A step's jobs are cut into units, the rows of one job in one page, when it begins; kernels find everything else in
 * tables.  Jobs whose rows span pages work in staging tiles, as on the CPU (dev/cpu/step.c). */
#include <limits.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/attn/state.h"
#include "dev/cuda/products/products.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Are there kernels on tensor cores for such heads, and is f16 allowed?  Then prompt rows go through prompts/wide.cu,
 * or wide_90.cu. */
static bool on_tensors(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return !d->limits.exact && !l->latent && l->k.dim == l->v.dim &&
           (l->k.dim == 64 || l->k.dim == 128 || l->k.dim == 256);
}

/* Pages of 16-bit floats? */
static bool of_halves(const struct tern_cuda_layer *l)
{
    return l->k.form <= TERN_CUDA_BF16 && l->v.form <= TERN_CUDA_BF16;
}

#define ALIKE_CODES 14 /* kernels of keys and values of one kind; behind them those of two */

/* Which kernel takes the codes of a layer as they lie: the place of its first in the list of a head size; -1: none. */
static int kind_of_codes(const struct tern_cuda_layer *l)
{
    static const int scalar[] = {[2] = 0, [3] = 2, [4] = 4, [8] = 8}, trellis[] = {[2] = 12, [3] = 10, [4] = 6};
    static const struct { /* as kernels.def has them */
        int keys, values;
    } mixed[] = {{8, 4}, {8, 3}, {8, 2}, {4, 3}, {4, 2}};
    if (l->k.form != TERN_CUDA_CODES || l->v.form != TERN_CUDA_CODES || l->k.trellis != l->v.trellis)
        return -1;
    if (l->k.bits == l->v.bits)
        return l->k.trellis ? trellis[l->k.bits] : scalar[l->k.bits];
    for (int i = 0; !l->k.trellis && l->k.dim <= 128 && i < (int)(sizeof mixed / sizeof *mixed); i++)
        if (l->k.bits == mixed[i].keys && l->v.bits == mixed[i].values)
            return ALIKE_CODES + 2 * i;
    return -1;
}

/* Shared bytes of a page in two halves for each of four warps, and of what they put down (attn/codes). */
static unsigned codes_shared(const struct tern_cuda_layer *l, bool eight)
{
    const unsigned dim = (unsigned)l->k.dim, blocks = dim > 128 ? dim / 128 : 1;
    const unsigned half = 128 * blocks + 4 * dim * (unsigned)(l->k.bits + l->v.bits) + (l->k.bits < 4 ? dim : 0);
    return 4 * 2 * half + TERN_CUDA_CODES_ROOM(dim, eight ? 8u : 4u);
}

/* Has the card room for it, and for what the kernel has besides? */
static bool codes_fit(const struct tern_cuda *d, const struct tern_cuda_layer *l, bool eight)
{
    return codes_shared(l, eight) + TERN_CUDA_CODES_BESIDE((unsigned)l->k.dim) <= (unsigned)d->card->shared_most;
}

/* Do decode rows go through attn/codes? */
static bool on_codes(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return on_tensors(d, l) && kind_of_codes(l) >= 0 && codes_fit(d, l, l->k.dim <= 128);
}

/* Stages of a warp of attn/halves.cu, of so many warps: up to four, as fit; 0: not even two. */
static int halves_stages(const struct tern_cuda *d, int dim, unsigned warps)
{
    const unsigned beside = TERN_CUDA_HALVES_ROOM((unsigned)dim, warps, TERN_CUDA_HALVES_ROWS(dim, warps)) + 1024,
                   most = (unsigned)d->card->shared_most;
    const unsigned fit = most > beside ? (most - beside) / (warps * TERN_CUDA_HALVES_PART) : 0;
    return fit < 2 ? 0 : fit < 4 ? (int)fit : 4;
}

/* Warps of a block of attn/any.cu. */
static unsigned any_warps(const struct tern_cuda_layer *l)
{
    return !l->latent && l->k.dim <= 128 && l->v.dim <= 128 ? 4 : 8;
}

/* Its places, or pages of codes, with so many q rows: up to four places or two pages, where several blocks of a
 * processor have as many, else fewer; 0: there is no room for one. */
static int any_stages(const struct tern_cuda *d, const struct tern_cuda_layer *l, unsigned rows)
{
    const bool halves = of_halves(l);
    const unsigned place = TERN_CUDA_ANY_PLACE(l), most = (unsigned)d->card->shared_most,
                   beside = TERN_CUDA_ANY_BESIDE(l, rows, any_warps(l)) + (halves ? 0 : place),
                   each = halves ? place : (unsigned)l->head_bytes;
    for (unsigned blocks = 4; blocks; blocks--)
        for (int stages = halves ? 4 : 2; stages > (halves && blocks > 1 ? 2 : blocks > 2 ? 1 : 0); stages--)
            if (blocks * (beside + (unsigned)stages * each + 1024) <= most + 1024)
                return stages;
    return 0;
}

/* Do decode rows go through it? */
static bool any_takes(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return !d->limits.exact && l->k.dim && l->v.dim && l->k.dim % 16 == 0 && l->v.dim % 16 == 0 && l->v.dim <= 512 &&
           any_stages(d, l, 8);
}

/* Have decode rows a kernel on tensor cores: of codes, of halves, or the one of all others? */
static bool narrow_on_tensors(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return on_codes(d, l) || (on_tensors(d, l) && of_halves(l) && halves_stages(d, l->k.dim, 4)) || any_takes(d, l);
}

/* And do those leave their answers as int8, too, 32 numbers of a head at a time? */
static bool leaves_q8(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return narrow_on_tensors(d, l) && l->v.dim % 32 == 0;
}

/* Or through prompts/wide_any.cu? */
static bool on_any(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return !d->limits.exact && !on_tensors(d, l) && l->k.dim && l->v.dim && l->v.dim % 8 == 0 &&
           TERN_CUDA_ANY_VALUES(l) <= 512 && TERN_CUDA_ANY_SHARED(l) <= d->card->shared_most;
}

/* Pages of 16-bit floats that prompt rows read where the cache has them? */
static bool in_place(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return of_halves(l) && on_tensors(d, l);
}

static size_t expanded_bytes(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    return on_tensors(d, l) ? (size_t)TERN_PAGE * 2 * (size_t)(l->k.dim + l->v.dim) : (size_t)TERN_CUDA_ANY_BYTES(l);
}

/* Room for closed pages as halves (prompts/expand.cu): of all KV heads of the longest context, but at most a 512th of
 * the card; then of as many heads as fit, and of one at least.  They lie where products have weights. */
static void size_expanded(struct tern_cuda *d, const struct tern_dev_limits *l)
{
    struct tern_cuda_attn *t = d->attn;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < t->n_layers; i++) {
            const struct tern_cuda_layer *layer = &t->layers[c * t->n_spans + i];
            if (l->caches[c].group_of[i] < 0 || in_place(d, layer) || !(on_tensors(d, layer) || on_any(d, layer)))
                continue;
            const size_t head = expanded_bytes(d, layer) * (size_t)l->max_pages, most = d->card->memory / 512;
            const size_t all = head * (size_t)layer->n_heads, bytes = all < most ? all : most > head ? most : head;
            t->expanded_bytes = bytes > t->expanded_bytes ? bytes : t->expanded_bytes;
        }
    d->dense_room = t->expanded_bytes > d->dense_room ? t->expanded_bytes : d->dense_room;
}

#define SEQUENCE_ROWS 8 /* decode rows of a sequence, with drafts, that partial results have room for */

/* Room for decode rows' partial results.  A step may have as many decode rows as prompt rows (tokens that are computed
 * again), but seldom has: there is room for some of each sequence, at most for what a 1024th of the card holds, for a
 * page's rows at least, and more rows go one part after the other. */
static int open_part(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    struct tern_cuda_attn *t = d->attn;
    size_t part = 0;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < t->n_layers; i++) {
            const struct tern_kv_layer *at = &l->caches[c].layers[l->shapes[i].n_heads ? l->shapes[i].layer : i];
            const size_t floats = (size_t)l->shapes[i].n_heads * ((size_t)at->v.dim + 2);
            part = floats > part ? floats : part;
        }
    const size_t row_bytes = part * TERN_CUDA_PARTS * sizeof(float), some = (size_t)l->max_jobs * SEQUENCE_ROWS,
                 held = row_bytes ? d->card->memory / 1024 / row_bytes : 0, fit = some < held ? some : held;
    t->part_rows = fit < TERN_PAGE ? TERN_PAGE : fit < (size_t)l->max_narrow ? (int)fit : l->max_narrow;
    return tern_cuda_take(d, &t->part, row_bytes * (size_t)t->part_rows, err);
}

/* Room for the queries of decode rows as attention on codes multiplies them. */
static int open_columns(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    struct tern_cuda_attn *t = d->attn;
    size_t bytes = 0;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < t->n_layers; i++) {
            const int n_heads = l->shapes[i].n_heads, at = n_heads ? l->shapes[i].layer : i;
            const struct tern_cuda_layer *layer = &t->layers[c * t->n_spans + at];
            const size_t row = (size_t)n_heads * TERN_CUDA_COLUMNS_BYTES((size_t)layer->k.dim);
            if (on_codes(d, layer) && row > bytes)
                bytes = row;
        }
    return bytes ? tern_cuda_take(d, &t->columns, bytes * (size_t)l->max_narrow, err) : 0;
}

int tern_cuda_attn_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    struct tern_cuda_attn *t;
    TERN_TRY(tern_alloc(&d->attn, 1, sizeof *d->attn, err));
    t = d->attn;
    t->n_layers = l->caches[0].n_layers;
    t->n_spans = l->caches[0].n_spans;
    t->n_caches = l->n_caches;
    TERN_TRY(tern_alloc(&t->layers, (size_t)t->n_spans * (size_t)t->n_caches, sizeof *t->layers, err));
    TERN_TRY(tern_cuda_attn_layers(d, l, err));
    TERN_TRY(tern_cuda_jobs_open(d, l, err));
    TERN_TRY(open_part(d, l, err));
    TERN_TRY(open_columns(d, l, err));
    size_expanded(d, l);
    TERN_TRY(tern_cuda_spans_open(d, l, err));
out:
    return rc;
}

void tern_cuda_attn_close(struct tern_cuda *d)
{
    struct tern_cuda_attn *t = d->attn;
    const tern_cu_address scratch[] = {t->part,       t->columns,    t->constants,
                                       t->spans.made, t->spans.rows, t->spans.scores};
    tern_cuda_jobs_close(d);
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        tern_cuda_give(d, scratch[i]);
    tern_free(t->layers);
    tern_free(t);
    d->attn = NULL;
}

/* ---- append ------------------------------------------------------------------------------------------------------ */

static void run(struct tern_cuda *d, enum tern_cuda_kernel kernel, struct tern_cuda_append_args *a,
                struct tern_cuda_list_of units)
{
    a->units = units.p;
    tern_cuda_launch(d, kernel, (unsigned)units.n, (unsigned)a->l.n_heads, 1, 256, 0, a, sizeof *a);
}

static struct tern_cuda_append_args append_args(const struct tern_cuda *d, int cache, int layer)
{
    struct tern_cuda_append_args a;
    memset(&a, 0, sizeof a); /* lists of calls are compared byte by byte */
    a.t = d->tables;
    a.t.jobs = tern_cuda_rate_of(d, layer)->table;
    a.l = *tern_cuda_layer_at(d, cache, layer);
    a.stage = tern_cuda_stage_at(d, layer);
    a.tiles = (struct tern_cuda_blocks){d->step.caches[cache].tiles.mem ? d->step.caches[cache].tiles.mem->p : 0,
                                        d->step.caches[cache].tiles.bytes};
    return a;
}

/* Scalar codes have a kernel of their own.  The others search in shared memory: as many warps as find room. */
static void run_encode(struct tern_cuda *d, struct tern_cuda_append_args *a, struct tern_cuda_list_of units)
{
    const struct tern_cuda_side *sides[] = {&a->l.k, &a->l.v};
    unsigned threads = 512, shared[2] = {0};
    for (int i = 0; i < 2; i++) {
        const struct tern_cuda_side *s = sides[i];
        const unsigned vectors = TERN_CUDA_ENCODE_BYTES((unsigned)s->dim);
        unsigned *most = &shared[TERN_CUDA_SCALAR(*s)], search = 0;
        if (s->form < TERN_CUDA_CODES)
            continue;
        while (s->trellis && threads > 64 &&
               vectors + 256 + threads / 32 * TERN_CUDA_CHAIN > (unsigned)d->card->shared_most)
            threads /= 2;
        if (s->trellis)
            search = 256 + threads / 32 * TERN_CUDA_CHAIN;
        *most = vectors + search > *most ? vectors + search : *most;
    }
    a->units = units.p;
    if (shared[0])
        tern_cuda_launch(d, TERN_CUDA_K_encode, (unsigned)units.n, (unsigned)a->l.n_heads, 4, threads, shared[0], a,
                         sizeof *a);
    if (shared[1])
        tern_cuda_launch(d, TERN_CUDA_K_encode_scalar, (unsigned)units.n, (unsigned)a->l.n_heads, 4, 512, shared[1], a,
                         sizeof *a);
}

void tern_cuda_keep(struct tern_cuda *d, int layer)
{
    for (int c = 0; c < d->attn->n_caches; c++) {
        struct tern_cuda_append_args a = append_args(d, c, layer);
        run(d, TERN_CUDA_K_keep, &a, tern_cuda_rate_of(d, layer)->lists[c].staged);
    }
    d->attn->waits[layer] = false;
}

/* The set of h that is x: all heads of a side of the cache; -1: none. */
static int set_of(const struct tern_cuda_heads_args *h, tern_cu_address x, uint64_t stride, int n_heads, int dim)
{
    for (int i = 0; i < h->n_sets; i++)
        if (h->set[i].x == x && h->set[i].stride == stride && h->set[i].n_heads == n_heads && h->set[i].dim == dim)
            return i;
    return -1;
}

/* The call before is what is done to the heads of the step's rows, all decode rows of one cache, keys among them: one
 * kernel does both. */
static bool with_heads(struct tern_cuda *d, const struct tern_cuda_append_args *a, struct tern_cuda_list_of units)
{
    const struct tern_cuda_heads_args *h = tern_cuda_last_call(d, TERN_CUDA_K_heads);
    int others = 0;
    if (!h || d->attn->n_caches != 1 || d->decode_rows != d->step.n_rows || h->n_rows != d->step.n_rows)
        return false;
    struct tern_cuda_append_heads_args all;
    memset(&all, 0, sizeof all); /* lists of calls are compared byte by byte */
    all.append = *a;
    all.append.units = units.p;
    all.heads = *h;
    all.k = set_of(h, a->k, a->k_stride, a->l.n_heads, a->l.k.dim);
    all.v = set_of(h, a->v, a->v_stride, a->l.n_heads, a->l.v.dim);
    if (all.k < 0 || all.k == all.v)
        return false;
    for (int i = 0; i < h->n_sets; i++)
        others += i == all.k || i == all.v ? 0 : h->set[i].n_heads;
    tern_cuda_drop_last(d);
    tern_cuda_launch(d, TERN_CUDA_K_append_heads, (unsigned)units.n, (unsigned)(a->l.n_heads + (others + 7) / 8), 1,
                     256, 0, &all, sizeof all);
    return true;
}

void tern_cuda_append_at(struct tern_cuda *d, int span, tern_cu_address k, size_t k_stride, tern_cu_address v,
                         size_t v_stride)
{
    const struct tern_cuda_rate *r = tern_cuda_rate_of(d, span);
    d->attn->waits[span] = true;
    for (int c = 0; c < d->attn->n_caches; c++) {
        struct tern_cuda_append_args a = append_args(d, c, span);
        a.k = r->rate > 1 ? k + (size_t)a.l.v.dim * sizeof(float) : k;
        a.v = v;
        a.k_stride = k_stride;
        a.v_stride = v_stride;
        if (r->rate > 1 || !with_heads(d, &a, r->lists[c].all))
            run(d, TERN_CUDA_K_append, &a, r->lists[c].all);
        run_encode(d, &a, r->lists[c].closing);
    }
}

void tern_cuda_append(struct tern_dev *dev, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    tern_cuda_append_at(tern_cuda_of(dev), layer, tern_cuda_rows_at(k), k.stride, tern_cuda_rows_at(v), v.stride);
}

void tern_cuda_recode(struct tern_dev *dev, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                      struct tern_dev_rows v)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_dev_cache *cache = &d->step.caches[from->cache];
    const int group = cache->group_of[layer];
    const struct tern_dev_table *table = &from->tables[group];
    TERN_ASSERT(d->step.n_jobs == 1 && d->step.jobs[0].pos0 == from->pos0 && d->step.jobs[0].n_rows == from->n_rows);
    const struct tern_cuda_recode r = {
        .job = {.row0 = from->row0, .n_rows = from->n_rows, .pos0 = from->pos0, .tile = from->tile},
        .table = {.first = table->first, .n = table->n},
        .pages = {cache->pages[group].mem ? cache->pages[group].mem->p : 0, cache->pages[group].bytes},
        .tiles = {cache->tiles.mem->p, cache->tiles.bytes},
        .numbers = tern_cuda_send(d, table->blocks, (size_t)table->n * sizeof *table->blocks),
    };
    struct tern_cuda_append_args a = append_args(d, from->cache, layer);
    a.from = tern_cuda_send(d, &r, sizeof r);
    a.k = tern_cuda_rows_at(k);
    a.v = tern_cuda_rows_at(v);
    a.k_stride = k.stride;
    a.v_stride = v.stride;
    run(d, TERN_CUDA_K_raw_rows, &a, (struct tern_cuda_list_of){.n = tern_cuda_pages_of(&r.job)});
    tern_cuda_append(dev, layer, k, v);
    tern_cuda_keep(d, layer);
}

void tern_cuda_attn_end(struct tern_cuda *d)
{
    for (int i = 0; i < d->attn->n_spans; i++)
        if (d->attn->waits[i])
            tern_cuda_keep(d, i);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* A KV head's query heads, evenly for as few blocks as have `most` each. */
static void split_heads(struct tern_cuda_attn_args *a, int most)
{
    a->n_split = (a->group + most - 1) / most;
    a->heads = (a->group + a->n_split - 1) / a->n_split;
    a->inverse = 65535u / (unsigned)a->heads + 1;
}

static unsigned plain_shared(const struct tern_cuda_layer *l, int q_rows)
{
    const unsigned dk = (unsigned)l->k.dim, dv = (unsigned)l->v.dim, most = dk > dv ? dk : dv;
    const unsigned dq = l->latent ? dk + dv : dk, pages = l->latent ? 32 * (dk + 1 + dv + 1) : 32 * (most + 1);
    return (TERN_CUDA_Q * 32 + 32 + 2 * (unsigned)q_rows * dq + pages) * (unsigned)sizeof(float);
}

/* Blocks of the plain kernels: up to 8 q rows of one KV head, 4 where shared memory is too small. */
static void cut_plain(const struct tern_cuda *d, struct tern_cuda_attn_args *a, struct tern_cuda_list_of units)
{
    const bool fit = plain_shared(&a->l, TERN_CUDA_Q) <= (unsigned)d->card->shared_most;
    a->q_rows = fit ? TERN_CUDA_Q : TERN_CUDA_Q / 2;
    split_heads(a, a->q_rows);
    a->rows = a->q_rows / a->heads;
    a->n_blocks = (units.rows + a->rows - 1) / a->rows;
    a->units = units.p;
    a->n_units = units.n;
}

/* pages: does it read any? */
static void run_plain(struct tern_cuda *d, enum tern_cuda_kernel kernel, struct tern_cuda_attn_args *a, unsigned z,
                      bool pages)
{
    const unsigned own = plain_shared(&a->l, a->q_rows), most = (unsigned)d->card->shared_most,
                   page = (unsigned)a->l.head_bytes;
    a->stages = !pages ? 0 : own + 2 * page <= most ? 2 : own + page <= most ? 1 : 0;
    tern_cuda_launch(d, kernel, (unsigned)(a->n_units * a->n_blocks), (unsigned)(a->l.n_heads * a->n_split), z, 256,
                     own + (unsigned)a->stages * page, a, sizeof *a);
}

/* Prompt rows that go together: units of the jobs [job, end), and how many closed pages these see. */
struct pass {
    int job, end, units, pages;
};

static struct pass next_pass(const struct tern_cuda *d, const struct tern_cuda_attn_args *a, int cache, int job)
{
    const size_t room = d->attn->expanded_bytes / (expanded_bytes(d, &a->l) * (size_t)a->l.n_heads);
    struct pass p = {.job = -1, .end = job};
    for (int first; p.end < d->step.n_jobs; p.end++) {
        const struct tern_cuda_job *j = &d->jobs[p.end];
        if (!j->wide || j->cache != cache)
            continue;
        const int more = a->expanded ? tern_cuda_closed_pages(&a->l, j->pos0, j->n_rows, &first) : 0;
        if (p.pages && (size_t)(p.pages + more) > room)
            break;
        p.job = p.job < 0 ? p.end : p.job;
        p.units += tern_cuda_pages_of(j);
        p.pages += more;
    }
    return p;
}

/* The kernel of a head size, of those for 64, 128 and 256 dims that follow each other. */
static enum tern_cuda_kernel kernel_for(enum tern_cuda_kernel of_64, int dim)
{
    return (enum tern_cuda_kernel)((int)of_64 + (dim == 64 ? 0 : dim == 128 ? 1 : 2));
}

static void run_expand(struct tern_cuda *d, struct tern_cuda_attn_args *a, int pages)
{
    if (!on_tensors(d, &a->l)) {
        tern_cuda_launch(d, TERN_CUDA_K_expand_any, (unsigned)pages, (unsigned)a->kv_n, 1, 256,
                         8 * (unsigned)(a->l.k.dim + a->l.v.dim) * (unsigned)sizeof(float), a, sizeof *a);
        return;
    }
    const unsigned room = TERN_CUDA_EXPAND_ROOM((unsigned)a->l.k.dim), both = 2 * (unsigned)a->l.head_bytes;
    const int each = pages * a->kv_n / (3 * d->card->processors); /* three blocks of a processor, and so many each */
    a->staged = a->l.k.form == TERN_CUDA_CODES && a->l.v.form == TERN_CUDA_CODES &&
                room + both <= (unsigned)d->card->shared_most;
    a->pages = pages;
    a->per_block = each < 1 ? 1 : each < 8 ? each : 8;
    tern_cuda_launch(d, kernel_for(TERN_CUDA_K_expand_64, a->l.k.dim),
                     (unsigned)((pages + a->per_block - 1) / a->per_block), (unsigned)a->kv_n, 1, 256,
                     room + (a->staged ? both : 0), a, sizeof *a);
}

/* A kernel of prompt rows: prompts/wide_90.cu runs on cards of 9.0, and on no newer ones. */
struct wide {
    enum tern_cuda_kernel kernel;
    int rows; /* of a block of threads */
    unsigned threads, shared;
};

static struct wide wide_of(const struct tern_cuda *d, const struct tern_cuda_layer *l)
{
    const int dim = l->k.dim;
    const unsigned part = 2 * TERN_PAGE * (unsigned)(dim < 128 ? dim : 128);
    if (!on_tensors(d, l))
        return (struct wide){(enum tern_cuda_kernel)(TERN_CUDA_K_wide_any_1 + TERN_CUDA_ANY_VALUES(l) / 128 - 1),
                             TERN_CUDA_ANY_ROWS, 256, (unsigned)TERN_CUDA_ANY_SHARED(l)};
    if (d->card->major == 9 && dim < 256)
        return (struct wide){kernel_for(TERN_CUDA_K_wide_90_64, dim), TERN_CUDA_WIDE_90_ROWS, 384,
                             1024 + 6 * (256 * (unsigned)dim + 16)}; /* six pages, two barriers for each */
    return (struct wide){kernel_for(TERN_CUDA_K_wide_64, dim), TERN_CUDA_WIDE_ROWS, 2 * TERN_CUDA_WIDE_ROWS,
                         TERN_CUDA_WIDE_STAGES * part};
}

/* Each pass through as many KV heads at once as there is room for their closed pages. */
static void run_passes(struct tern_cuda *d, struct tern_cuda_attn_args *a, int cache, struct wide w)
{
    a->expanded = in_place(d, &a->l) || !d->attn->expanded_bytes ? 0 : d->dense;
    for (struct pass p = next_pass(d, a, cache, 0); p.units; p = next_pass(d, a, cache, p.end)) {
        const size_t fit = p.pages ? d->attn->expanded_bytes / (expanded_bytes(d, &a->l) * (size_t)p.pages) : SIZE_MAX;
        const int heads = fit < (size_t)a->l.n_heads ? (int)fit : a->l.n_heads;
        a->job0 = p.job;
        a->n_units = p.units;
        for (a->kv0 = 0; a->kv0 < a->l.n_heads; a->kv0 += heads) {
            a->kv_n = a->l.n_heads - a->kv0 < heads ? a->l.n_heads - a->kv0 : heads;
            if (p.pages)
                run_expand(d, a, p.pages);
            tern_cuda_launch(d, w.kernel, (unsigned)(p.units * a->n_blocks), (unsigned)(a->kv_n * a->n_split), 1,
                             w.threads, w.shared, a, sizeof *a);
        }
        a->units += (size_t)p.units * sizeof(struct tern_cuda_unit);
    }
}

static void run_wide(struct tern_cuda *d, struct tern_cuda_attn_args *a, int cache, struct tern_cuda_list_of units)
{
    cut_plain(d, a, units);
    if (!on_tensors(d, &a->l) && !on_any(d, &a->l)) {
        run_plain(d, TERN_CUDA_K_attn_wide, a, 1, true);
        return;
    }
    const struct wide w = wide_of(d, &a->l);
    split_heads(a, w.rows);
    a->rows = w.rows / a->heads;
    a->n_blocks = (units.rows + a->rows - 1) / a->rows;
    run_passes(d, a, cache, w);
}

/* Blocks of threads that go round through the items of a step (attn/items.cuh): as many as the card holds at once,
 * where there is work for them. */
static unsigned item_blocks(const struct tern_cuda *d, const struct tern_cuda_attn_args *a, int ranges)
{
    const unsigned items = (unsigned)(a->n_units * a->n_blocks * a->l.n_heads * a->n_split) * (unsigned)(ranges + 1);
    const unsigned most = (unsigned)d->card->processors;
    return items < most ? items : most;
}

/* With eight warps, or with four; false: there is no room for these. */
static bool run_halves(struct tern_cuda *d, struct tern_cuda_attn_args *a, struct tern_cuda_list_of units, int ranges)
{
    const unsigned dim = (unsigned)a->l.k.dim, warps = halves_stages(d, (int)dim, 8) ? 8 : 4;
    const int rows = TERN_CUDA_HALVES_ROWS(dim, warps);
    const enum tern_cuda_kernel kernel =
        kernel_for(warps == 8 ? TERN_CUDA_K_halves_64_8 : TERN_CUDA_K_halves_64_4, (int)dim);
    a->stages = halves_stages(d, (int)dim, warps);
    if (!a->stages)
        return false;
    if (rows < TERN_CUDA_Q) {
        split_heads(a, rows);
        a->rows = rows / a->heads;
        a->n_blocks = (units.rows + a->rows - 1) / a->rows;
    }
    tern_cuda_launch(d, kernel, item_blocks(d, a, ranges), 1, 1, 32 * warps,
                     TERN_CUDA_HALVES_ROOM(dim, warps, rows) + (unsigned)a->stages * warps * TERN_CUDA_HALVES_PART, a,
                     sizeof *a);
    return true;
}

/* Ranges of the decode rows of a step: most of any row, of all, and how many rows there are (or pages with some). */
struct work {
    int ranges, all, rows;
};

/* Blocks of threads of a processor (attn/codes). */
static int codes_places(const struct tern_cuda *d, const struct tern_cuda_layer *l, bool eight)
{
    return d->card->processors * (eight || l->k.bits == 8 || l->k.dim > 128 ? 2 : l->k.trellis ? 3 : 4);
}

/* Eighths of a range for each of n blocks of threads with one: of one range, or of as few as leave so many blocks.  In
 * steps of up to a fourth, so that a graph goes on serving many sequences while their ranges grow in number. */
static int codes_eighths(int64_t n, int blocks)
{
    const size_t share = (size_t)((8 * n + blocks - 1) / blocks);
    size_t step = 2;
    while (share >= 8 * step)
        step *= 2;
    return share > 8 ? (int)tern_round_up(share, step) : 8;
}

/* Blocks of up to `most` q rows. */
static int cut_rows(struct tern_cuda_attn_args *a, int rows, int most)
{
    split_heads(a, most);
    a->rows = most / a->heads;
    a->n_blocks = (rows + a->rows - 1) / a->rows;
    return a->n_blocks * a->l.n_heads * a->n_split;
}

/* Few enough that each finishes its heads, or has more registers. */
static bool is_little(const struct tern_cuda *d, const struct tern_cuda_attn_args *a, struct work work, int times)
{
    return (work.all + work.rows) * times <= 3 * d->card->processors && a->l.k.dim <= 128;
}

/* Blocks of up to four q rows, or of eight where there is room for them, unless a card has nothing better to do than to
 * read pages twice.  alike: keys and values are, so blocks of four can finish their heads. */
static bool cut_codes(const struct tern_cuda *d, struct tern_cuda_attn_args *a, int rows, struct work work, bool alike)
{
    const int times = cut_rows(a, rows, 4);
    if (!codes_fit(d, &a->l, true) || a->group * rows <= 4 || (a->group > 4 && alike && is_little(d, a, work, times)))
        return false;
    (void)cut_rows(a, rows, 8);
    return true;
}

/* The call before finishes the heads of the very rows of `a`, which need nothing else of it: attention does it itself
 * (attn/codes), and leaves shifts alone of what columns have. */
static bool own_heads(struct tern_cuda *d, const struct tern_cuda_attn_args *a, struct tern_cuda_list_of units,
                      struct tern_cuda_codes_own_args *own)
{
    const struct tern_cuda_append_heads_args *before = tern_cuda_last_call(d, TERN_CUDA_K_append_heads);
    const struct tern_cuda_lists *l = &d->attn->rates[0].lists[0];
    if (!before || !before->columns || a->columns != before->columns || a->n_blocks > 1 || l->all.n != units.n ||
        l->staged.n || before->heads.n_sets != 2 + (before->v >= 0))
        return false;
    memset(own, 0, sizeof *own); /* lists of calls are compared byte by byte */
    own->attn = *a;
    own->attn.columns = 0;
    own->columns = a->columns;
    own->heads = before->heads;
    own->tiles = before->append.tiles;
    own->v = before->append.v;
    own->v_stride = before->append.v_stride;
    own->set_q = before->q;
    own->set_k = before->k;
    own->set_v = before->v;
    tern_cuda_drop_last(d);
    return true;
}

static bool run_codes(struct tern_cuda *d, struct tern_cuda_attn_args *a, struct tern_cuda_list_of units,
                      struct work work)
{
    const int codes = kind_of_codes(&a->l);
    if (!on_codes(d, &a->l))
        return false;
    const bool alike = codes < ALIKE_CODES, eight = cut_codes(d, a, units.rows, work, alike);
    const bool small = a->l.k.dim == 64, large = a->l.k.dim == 256;
    const int times = a->n_blocks * a->l.n_heads * a->n_split;
    const bool little = !eight && is_little(d, a, work, times);
    const bool few = little && alike && !a->l.k.trellis && a->l.k.bits < 8;
    const int first = small ? TERN_CUDA_K_codes_64_2_1 : large ? TERN_CUDA_K_codes_256_2_1 : TERN_CUDA_K_codes_128_2_1;
    const int first_few = small ? TERN_CUDA_K_codes_few_64_2 : TERN_CUDA_K_codes_few_128_2;
    struct tern_cuda_codes_own_args own;
    const bool owns = little && alike && own_heads(d, a, units, &own);
    /* Twice as many as have places at once, for processors do not all go through their blocks as fast. */
    a->eighths =
        codes_eighths((int64_t)work.all * times, 2 * (owns ? d->card->processors : codes_places(d, &a->l, eight)));
    own.attn.eighths = a->eighths;
    const int blocks = tern_cuda_codes_blocks(work.ranges, a->eighths) + tern_cuda_codes_apart(a->eighths);
    const int kernel = owns  ? (small ? TERN_CUDA_K_codes_own_64_2 : TERN_CUDA_K_codes_own_128_2) + codes / 2
                       : few ? first_few + codes / 2
                             : first + codes + eight;
    tern_cuda_launch(d, (enum tern_cuda_kernel)kernel, (unsigned)(a->n_units * a->n_blocks),
                     (unsigned)(a->l.n_heads * a->n_split), (unsigned)blocks,
                     TERN_CUDA_CODES_THREADS + (owns ? TERN_CUDA_CODES_HELPERS : 0), codes_shared(&a->l, eight),
                     owns ? (const void *)&own : a, owns ? sizeof own : sizeof *a);
    return true;
}

/* Blocks of 16 q rows where a KV head has more than 8 in a page and there is room for them; of four warps where heads
 * have up to 128 dims. */
static void run_any(struct tern_cuda *d, struct tern_cuda_attn_args *a, struct tern_cuda_list_of units, int ranges)
{
    const struct tern_cuda_layer *l = &a->l;
    const bool halves = of_halves(l), many = a->group * units.rows > 8 && any_stages(d, l, 16);
    const unsigned warps = any_warps(l);
    const int rows = many ? 16 : 8, first = warps == 4        ? TERN_CUDA_K_any_halves_1_1
                                            : l->v.dim <= 256 ? TERN_CUDA_K_any_halves_2_1
                                                              : TERN_CUDA_K_any_halves_4_1;
    const bool half_keys = !halves && warps == 4 && l->k.form <= TERN_CUDA_BF16;
    const int kernel = half_keys ? TERN_CUDA_K_any_half_keys_1 + many : first + 2 * many + !halves;
    split_heads(a, rows);
    a->rows = rows / a->heads;
    a->n_blocks = (units.rows + a->rows - 1) / a->rows;
    a->stages = any_stages(d, l, (unsigned)rows);
    const unsigned places = halves ? (unsigned)a->stages * TERN_CUDA_ANY_PLACE(l)
                                   : TERN_CUDA_ANY_PLACE(l) + (unsigned)a->stages * (unsigned)l->head_bytes;
    tern_cuda_launch(d, (enum tern_cuda_kernel)kernel, (unsigned)(a->n_units * a->n_blocks),
                     (unsigned)(l->n_heads * a->n_split), (unsigned)ranges + 1, 32 * warps,
                     places + TERN_CUDA_ANY_BESIDE(l, (unsigned)rows, warps), a, sizeof *a);
}

/* Decode rows whose ranges have a kernel of their own; with what is raw, and all put together. */
static void run_fast(struct tern_cuda *d, struct tern_cuda_attn_args *a, struct tern_cuda_list_of units,
                     struct work work)
{
    if (!run_codes(d, a, units, work) &&
        !(on_tensors(d, &a->l) && of_halves(&a->l) && run_halves(d, a, units, work.ranges)))
        run_any(d, a, units, work.ranges);
    tern_cuda_launch(
        d, on_tensors(d, &a->l) ? kernel_for(TERN_CUDA_K_attn_merge_64, a->l.k.dim) : TERN_CUDA_K_attn_merge_any,
        (unsigned)(a->n_units * a->n_blocks), (unsigned)(a->l.n_heads * a->n_split),
        (unsigned)(a->heads * (a->rows < units.rows ? a->rows : units.rows)), 128, 0, a, sizeof *a);
}

/* Decode rows that go together: units that follow each other, of which there is room for partial results. */
struct slice {
    int job, page; /* the first unit behind them; page -1: of the job's */
    int units, rows, row0;
};

static struct slice next_slice(const struct tern_cuda *d, int cache, int job, int page)
{
    struct slice s = {.job = job, .page = page, .row0 = INT_MAX};
    int end = 0;
    for (; s.job < d->step.n_jobs; s.job++, s.page = -1) {
        const struct tern_cuda_job *j = &d->jobs[s.job];
        const int first = j->pos0 / TERN_PAGE;
        if (j->wide || j->cache != cache)
            continue;
        for (s.page = s.page < 0 ? first : s.page; s.page < first + tern_cuda_pages_of(j); s.page++) {
            const int pos = s.page * TERN_PAGE > j->pos0 ? s.page * TERN_PAGE : j->pos0,
                      rows = tern_cuda_rows_in(j, s.page);
            const int row = j->row0 + pos - j->pos0, low = row < s.row0 ? row : s.row0;
            const int high = row + rows > end ? row + rows : end;
            if (s.units && high - low > d->attn->part_rows)
                return s;
            s.row0 = low;
            end = high;
            s.units++;
            s.rows = rows > s.rows ? rows : s.rows;
        }
    }
    return s;
}

static void run_narrow(struct tern_cuda *d, struct tern_cuda_attn_args *a, int cache, struct work work)
{
    tern_cu_address units = d->attn->rates[0].lists[cache].narrow.p;
    for (struct slice s = next_slice(d, cache, 0, -1); s.units; s = next_slice(d, cache, s.job, s.page)) {
        const struct tern_cuda_list_of list = {units, s.units, s.rows};
        a->row0 = s.row0;
        cut_plain(d, a, list);
        if (narrow_on_tensors(d, &a->l)) {
            run_fast(d, a, list, work);
        } else {
            run_plain(d, TERN_CUDA_K_attn_range, a, (unsigned)work.ranges, true);
            run_plain(d, TERN_CUDA_K_attn_finish, a, 1, false);
        }
        units += (size_t)s.units * sizeof(struct tern_cuda_unit);
    }
}

static struct work work_of(const struct tern_cuda *d, int cache, const struct tern_cuda_layer *l)
{
    struct work work = {0};
    for (int i = 0; i < d->step.n_jobs; i++) {
        const struct tern_dev_job *j = &d->step.jobs[i];
        const int last = j->pos0 + j->n_rows - 1;
        for (int pos = j->pos0; j->cache == cache && !j->wide && pos <= last;
             pos = pos / TERN_PAGE * TERN_PAGE + TERN_PAGE) {
            int first;
            const int pages = tern_cuda_range_pages(l, pos), closed = tern_cuda_closed_pages(l, pos, 1, &first);
            const int n = closed ? (first + closed - 1) / pages - first / pages + 1 : 0;
            work.ranges = n > work.ranges ? n : work.ranges;
            work.all += n;
            work.rows++;
        }
    }
    return work;
}

/* The call before finishes the queries' heads: it shall leave them as columns, too.  Where they lie then; 0: not so. */
static tern_cu_address columns_before(const struct tern_cuda *d, const struct tern_cuda_attn_args *a)
{
    struct tern_cuda_append_heads_args *before = tern_cuda_last_call(d, TERN_CUDA_K_append_heads);
    if (!before || !on_codes(d, &a->l) || before->append.l.layer_off != a->l.layer_off ||
        before->append.l.group != a->l.group || d->step.n_rows > d->limits.max_narrow)
        return 0;
    before->q = set_of(&before->heads, a->q, a->q_stride, a->n_heads, a->l.k.dim);
    if (before->q < 0)
        return 0;
    before->columns = d->attn->columns;
    before->q_scale = a->q_scale;
    return before->columns;
}

void tern_cuda_attention(struct tern_dev *dev, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                         struct tern_dev_rows out)
{
    const double log2e = 1.4426950408889634;
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_attn *t = d->attn;
    tern_cu_address q8 = 0;
    bool fast = true;
    for (int c = 0; c < t->n_caches; c++)
        fast &= leaves_q8(d, tern_cuda_layer_at(d, c, shape->layer));
    if (fast)
        q8 = tern_cuda_as_q8(d, out, d->step.n_rows);
    else
        tern_cuda_wrote(d, out);
    for (int c = 0; c < t->n_caches; c++) {
        struct tern_cuda_attn_args a;
        memset(&a, 0, sizeof a); /* lists of calls are compared byte by byte */
        a.t = d->tables;
        a.l = *tern_cuda_layer_at(d, c, shape->layer);
        a.stage = tern_cuda_stage_at(d, shape->layer);
        a.q = tern_cuda_rows_at(q);
        a.out = tern_cuda_rows_at(out);
        a.q_stride = q.stride;
        a.out_stride = out.stride;
        a.part = t->part;
        a.n_heads = shape->n_heads;
        a.group = shape->n_heads / a.l.n_heads;
        a.q_scale = (float)(shape->scale * log2e);
        a.cap = (float)(shape->softcap * log2e);
        a.one = 0x3C003C00;
        a.columns = columns_before(d, &a);
        run_wide(d, &a, c, t->rates[0].lists[c].wide);
        a.q8 = q8;
        a.q8_bytes = d->q8_row_bytes;
        a.q8_lanes = tern_cuda_lanes(d->step.n_rows);
        run_narrow(d, &a, c, work_of(d, c, &a.l));
    }
    if (t->waits[shape->layer] && !t->stage_set[shape->layer])
        tern_cuda_keep(d, shape->layer);
    tern_cuda_flush_first(d); /* what comes is put together with nothing of this */
}
