/* Compressed rows: made, chosen, attended to.  What the kernels of spans.cu and sparse.cu are told. */
#include "dev/cuda/attn/spans.h"
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/attn/state.h"

#define ROOM ((size_t)32 << 20) /* bytes for rows that queries see, and for scores; more where one query needs more */

/* Rows that one query sees at most, of all layers: every compressed one or as many as are chosen, and a window. */
static size_t most_seen(const struct tern_dev_limits *l)
{
    const struct tern_dev_cache *c = &l->caches[0];
    const size_t tokens = (size_t)l->max_pages * TERN_PAGE;
    size_t window = 0, rows = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const size_t sees = c->layers[i].reach.window ? (size_t)c->layers[i].reach.window : tokens;
        if (l->shapes[i].n_heads == 0 && c->group_of[i] < 0)
            continue;
        window = sees > window ? sees : window;
    }
    for (int i = c->n_layers; i < c->n_spans; i++) {
        const size_t all = tokens / (size_t)c->layers[i].rate;
        bool chosen = false;
        for (int k = c->n_layers; k < c->n_spans; k++)
            chosen |= c->layers[k].v.dim == 0 && c->span_layer[k] == c->span_layer[i];
        const size_t sees = chosen && (size_t)l->max_chosen < all ? (size_t)l->max_chosen : all;
        rows = sees > rows ? sees : rows;
    }
    return rows + window;
}

/* Bytes that choose_scores shares. */
static size_t choose_shared(int n_heads, int dim)
{
    const size_t heads = tern_round_up((size_t)n_heads, TERN_CUDA_CHOOSE_HEADS), d = (size_t)dim;
    return sizeof(float) * (d * TERN_PAGE + heads * d + heads * TERN_PAGE);
}

int tern_cuda_spans_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    struct tern_cuda_attn *t = d->attn;
    if (!l->max_compressed)
        return 0;
    for (int i = t->n_layers; i < t->n_spans; i++) {
        const struct tern_kv_layer *keys = &l->caches[0].layers[i];
        if (keys->v.dim == 0 && choose_shared(l->max_choose_heads, keys->k.dim) > (size_t)d->card->shared_most)
            TERN_FAIL(err, TERN_EUNSUPPORTED, "%s has too little shared memory for an index of %d heads of %d",
                      d->card->name, l->max_choose_heads, keys->k.dim);
    }
    const size_t row = (size_t)l->max_compressed * sizeof(float), seen = most_seen(l) * 2 * row;
    const size_t keys = (size_t)l->max_pages * TERN_PAGE * sizeof(float);
    t->spans.rows_bytes = seen > ROOM ? seen : ROOM;
    t->spans.scores_bytes = !l->max_chosen ? 0 : keys > ROOM ? keys : ROOM;
    TERN_TRY(tern_cuda_take(d, &t->spans.made, ((size_t)l->max_rows / 2 + (size_t)l->max_jobs) * row, err));
    TERN_TRY(tern_cuda_take(d, &t->spans.rows, t->spans.rows_bytes, err));
    TERN_TRY(tern_cuda_take(d, &t->spans.scores, t->spans.scores_bytes, err));
out:
    return rc;
}

void tern_cuda_compress(struct tern_dev *dev, const struct tern_compress *c, struct tern_dev_rows x,
                        struct tern_dev_rows gate)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_attn *t = d->attn;
    const struct tern_cuda_rate *r = tern_cuda_rate_of(d, c->span);
    const int channels = c->dim * (c->overlap ? 2 : 1);
    struct tern_cuda_compress_args a;
    memset(&a, 0, sizeof a); /* lists of calls are compared byte by byte */
    a.t = d->tables;
    a.t.jobs = r->table;
    a.jobs = d->tables.jobs;
    a.state_off = d->state_off + (size_t)c->layer * (size_t)d->step.n_caches * sizeof(uint64_t);
    a.state_at = c->state_at;
    a.x = tern_cuda_rows_at(x);
    a.x_stride = x.stride;
    a.gate = tern_cuda_rows_at(gate);
    a.gate_stride = gate.stride;
    a.ape = tern_cuda_vec_at(c->ape);
    a.norm = tern_cuda_vec_at(c->norm);
    a.freq = tern_cuda_vec_at(c->freq);
    a.out = t->spans.made;
    a.rate = c->rate;
    a.overlap = c->overlap;
    a.dim = c->dim;
    a.channels = channels;
    a.n_rot = c->n_rot;
    a.grid = c->grid;
    a.eps = c->eps;
    TERN_ASSERT(c->rate == r->rate && c->dim <= TERN_CUDA_SPARSE_DIM && c->n_rot <= c->dim);
    tern_cuda_launch(d, TERN_CUDA_K_compress_rows, (unsigned)r->n_rows, 1, 1, 128, 0, &a, sizeof a);
    tern_cuda_append_at(d, c->span, t->spans.made, (size_t)c->dim, t->spans.made, (size_t)c->dim);
    tern_cuda_launch(d, TERN_CUDA_K_compress_state, (unsigned)((channels + 127) / 128), (unsigned)d->step.n_jobs, 1,
                     128, 0, &a, sizeof a);
}

/* The most that is seen of a step's rows, rounded up so that it changes rarely: lists of calls repeat. */
static int rounded(int n)
{
    int most = 64;
    while (most < n)
        most *= 2;
    return most;
}

static int most_pos(const struct tern_cuda *d, int n_rows)
{
    int most = 0;
    for (int r = 0; r < n_rows; r++)
        most = d->step.rows[r].pos > most ? d->step.rows[r].pos : most;
    return most;
}

/* Rows of a step that go together, of so many bytes each. */
static int pass_of(size_t room, size_t bytes, int n_rows)
{
    TERN_ASSERT(bytes <= room);
    return room / bytes < (size_t)n_rows ? (int)(room / bytes) : n_rows;
}

void tern_cuda_choose(struct tern_dev *dev, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                      int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_attn *t = d->attn;
    struct tern_cuda_choose_args a;
    const int seen = (most_pos(d, n_rows) + 1) / c->rate;
    memset(&a, 0, sizeof a);
    a.t = d->tables;
    a.t.jobs = tern_cuda_rate_of(d, c->span)->table;
    a.jobs = d->tables.jobs;
    a.stage = tern_cuda_stage_at(d, c->span);
    a.q = tern_cuda_rows_at(q);
    a.q_stride = q.stride;
    a.w = tern_cuda_rows_at(w);
    a.w_stride = w.stride;
    a.scores = t->spans.scores;
    a.ids = tern_cuda_vec_at(c->ids);
    a.counts = tern_cuda_vec_at(c->counts);
    a.n_heads = c->n_heads;
    a.dim = c->dim;
    a.top = c->top;
    a.rate = c->rate;
    a.most = seen > c->top ? rounded(seen) : 0;
    const int pass = a.most ? pass_of(t->spans.scores_bytes, (size_t)a.most * sizeof(float), n_rows) : n_rows;
    for (int n; a.row0 < n_rows; a.row0 += n) {
        n = n_rows - a.row0 < pass ? n_rows - a.row0 : pass;
        for (a.cache = 0; a.most && a.cache < t->n_caches; a.cache++) {
            a.l = *tern_cuda_layer_at(d, a.cache, c->span);
            tern_cuda_launch(d, TERN_CUDA_K_choose_scores, (unsigned)n, (unsigned)(a.most / TERN_PAGE), 1, 256,
                             (unsigned)choose_shared(c->n_heads, c->dim), &a, sizeof a);
        }
        tern_cuda_launch(d, TERN_CUDA_K_choose_best, (unsigned)n, 1, 1, 1024, 0, &a, sizeof a);
    }
}

/* Heads of a block: few where there are few rows to share the card among. */
static int heads_of(const struct tern_cuda *d, const struct tern_sparse *s, int n_rows)
{
    return n_rows * s->n_heads / 8 < d->card->processors ? 2 : 8;
}

static void run_sparse(struct tern_cuda *d, struct tern_cuda_sparse_args *a, const struct tern_sparse *s, int n,
                       int heads)
{
    const unsigned dim = (unsigned)s->dim, h = (unsigned)heads, rows = TERN_CUDA_SPARSE_ROWS;
    const unsigned shared = (unsigned)sizeof(float) * ((rows + h) * dim + (rows + 1) * h);
    tern_cuda_launch(d, TERN_CUDA_K_sparse_rows, (unsigned)n, (unsigned)a->most / rows, 1, 256, 0, a, sizeof *a);
    tern_cuda_launch(d, heads == 2 ? TERN_CUDA_K_sparse_2 : TERN_CUDA_K_sparse_8, (unsigned)n,
                     ((unsigned)s->n_heads + h - 1) / h, 1, 256, shared, a, sizeof *a);
}

void tern_cuda_sparse(struct tern_dev *dev, const struct tern_sparse *s, struct tern_dev_rows q,
                      struct tern_dev_rows out, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_attn *t = d->attn;
    const int last = most_pos(d, n_rows), window = tern_cuda_layer_at(d, 0, s->layer)->window;
    int seen = window && window <= last ? window : last + 1;
    struct tern_cuda_sparse_args a;
    memset(&a, 0, sizeof a);
    a.t = d->tables;
    a.jobs = d->tables.jobs;
    a.own_stage = tern_cuda_stage_at(d, s->layer);
    if (s->span >= 0) {
        const int all = (last + 1) / s->rate;
        a.t.jobs = tern_cuda_rate_of(d, s->span)->table;
        a.span_stage = tern_cuda_stage_at(d, s->span);
        a.rate = s->rate;
        seen += s->chosen && s->chosen->top < all ? s->chosen->top : all;
    }
    if (s->chosen) {
        a.ids = tern_cuda_vec_at(s->chosen->ids);
        a.counts = tern_cuda_vec_at(s->chosen->counts);
        a.top = s->chosen->top;
    }
    a.q = tern_cuda_rows_at(q);
    a.q_stride = q.stride;
    a.out = tern_cuda_rows_at(out);
    a.out_stride = out.stride;
    a.sinks = tern_cuda_vec_at(s->sinks);
    a.rows = t->spans.rows;
    a.n_heads = s->n_heads;
    a.dim = s->dim;
    a.most = rounded(seen);
    a.scale = (float)((double)s->scale * 1.4426950408889634);
    TERN_ASSERT(s->dim <= TERN_CUDA_SPARSE_DIM && s->dim % 4 == 0);
    const int pass = pass_of(t->spans.rows_bytes, (size_t)a.most * (size_t)s->dim * sizeof(float), n_rows);
    const int heads = heads_of(d, s, n_rows);
    for (int n; a.row0 < n_rows; a.row0 += n) {
        n = n_rows - a.row0 < pass ? n_rows - a.row0 : pass;
        for (a.cache = 0; a.cache < t->n_caches; a.cache++) {
            a.own = *tern_cuda_layer_at(d, a.cache, s->layer);
            if (s->span >= 0)
                a.span = *tern_cuda_layer_at(d, a.cache, s->span);
            run_sparse(d, &a, s, n, heads);
        }
    }
    tern_cuda_wrote(d, out);
    tern_cuda_keep(d, s->layer);
    for (int i = t->n_layers; i < t->n_spans; i++)
        if (t->waits[i])
            tern_cuda_keep(d, i);
}
