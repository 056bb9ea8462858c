/* The step in hand: its tables, copied to the card when it begins. */
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"

#define ALIGN       256
#define MARKS(jobs) ((jobs)*TERN_DEV_MARKS)

static int groups_of(const struct tern_dev_cache *c)
{
    int n = 0;
    for (int i = 0; i < c->n_spans; i++)
        n = c->group_of[i] >= n ? c->group_of[i] + 1 : n;
    return n;
}

/* Tokens of one row of a group's pages. */
static int rate_of(const struct tern_dev_cache *c, int group)
{
    int i = 0;
    while (c->group_of[i] != group)
        i++;
    return c->layers[i].rate;
}

/* Lists of rows for pick: two of a step, each of all rows. */
static size_t most_bytes(const struct tern_dev_limits *l)
{
    size_t jobs = (size_t)l->max_jobs, rows = (size_t)l->max_rows, groups = 0, all_groups = 0;
    for (int c = 0; c < l->n_caches; c++) {
        const size_t n = (size_t)groups_of(&l->caches[c]);
        groups = n > groups ? n : groups;
        all_groups += n;
    }
    return rows * (sizeof(struct tern_cuda_row) + 2 * sizeof(int32_t)) + jobs * sizeof(struct tern_cuda_job) +
           (size_t)l->n_caches * sizeof(struct tern_cuda_cache) + all_groups * sizeof(struct tern_cuda_blocks) +
           jobs * groups * (sizeof(struct tern_cuda_table) + (size_t)l->max_pages * sizeof(uint32_t)) +
           MARKS(jobs) * sizeof(struct tern_cuda_mark) + (size_t)32 * ALIGN +
           (l->n_caches ? (size_t)l->n_caches * (size_t)l->caches[0].n_layers * sizeof(uint64_t) : 0);
}

int tern_cuda_step_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    struct tern_cuda_upload *u = &d->upload;
    u->bytes = most_bytes(l) + (l->n_caches ? tern_cuda_attn_upload(l) : 0);
    TERN_TRY(tern_cuda_take(d, &u->p, u->bytes, err));
    for (int i = 0; i < 2; i++) {
        void *p = NULL;
        TERN_TRY(tern_cu_error(tern_cu.cuMemHostAlloc(&p, u->bytes, 0), "taking pinned memory", err));
        u->host[i] = p;
        TERN_TRY(tern_cu_error(tern_cu.cuEventCreate(&u->copied[i], TERN_CU_EVENT_NO_TIME), "making an event", err));
    }
out:
    return rc;
}

void tern_cuda_step_close(struct tern_cuda *d)
{
    struct tern_cuda_upload *u = &d->upload;
    for (int i = 0; i < 2; i++) {
        if (u->host[i])
            (void)tern_cu.cuMemFreeHost(u->host[i]);
        if (u->copied[i])
            (void)tern_cu.cuEventDestroy_v2(u->copied[i]);
    }
    tern_cuda_give(d, u->p);
}

/* Room of the upload, to be filled by the caller. */
static void *place(struct tern_cuda *d, size_t bytes, tern_cu_address *at)
{
    struct tern_cuda_upload *u = &d->upload;
    TERN_ASSERT(bytes <= u->bytes - u->used);
    uint8_t *host = u->host[u->turn] + u->used;
    *at = u->p + u->used;
    u->used = tern_round_up(u->used + bytes, ALIGN);
    u->used = u->used < u->bytes ? u->used : u->bytes;
    return host;
}

tern_cu_address tern_cuda_send(struct tern_cuda *d, const void *host, size_t bytes)
{
    tern_cu_address at;
    void *to = place(d, bytes, &at);
    if (bytes)
        memcpy(to, host, bytes);
    if (!d->in_step || !bytes) /* before the step's own copy */
        return at;
    if (tern_cuda_ok(d, 0, NULL))
        (void)tern_cuda_ok(d, tern_cu.cuMemcpyHtoDAsync_v2(at, to, bytes, d->stream), "copying to the card");
    return at;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static struct tern_cuda_blocks blocks_of(struct tern_dev_blocks b)
{
    return (struct tern_cuda_blocks){b.mem ? b.mem->p : 0, b.bytes};
}

static void put_caches(struct tern_cuda *d, const struct tern_dev_step *s)
{
    struct tern_cuda_tables *t = &d->tables;
    size_t pools = 0;
    struct tern_cuda_cache *caches = place(d, (size_t)s->n_caches * sizeof *caches, &t->caches);
    for (int c = 0; c < s->n_caches; c++) {
        const struct tern_dev_cache *from = &s->caches[c];
        caches[c] = (struct tern_cuda_cache){.tiles = blocks_of(from->tiles),
                                             .sinks = blocks_of(from->sinks),
                                             .states = blocks_of(from->states),
                                             .pages = (int32_t)pools,
                                             .n_groups = groups_of(from)};
        pools += (size_t)caches[c].n_groups;
    }
    struct tern_cuda_blocks *to = place(d, pools * sizeof *to, &t->pools);
    for (int c = 0; c < s->n_caches; c++)
        for (int g = 0; g < caches[c].n_groups; g++)
            *to++ = blocks_of(s->caches[c].pages[g]);
}

static void put_jobs(struct tern_cuda *d, const struct tern_dev_step *s)
{
    struct tern_cuda_tables *t = &d->tables;
    size_t n_marks = 0, n_tables = 0, n_numbers = 0;
    struct tern_cuda_job *jobs = place(d, (size_t)s->n_jobs * sizeof *jobs, &t->jobs);
    d->jobs = jobs;
    for (int i = 0; i < s->n_jobs; i++) {
        const struct tern_dev_job *j = &s->jobs[i];
        jobs[i] = (struct tern_cuda_job){.cache = j->cache,
                                         .row0 = j->row0,
                                         .n_rows = j->n_rows,
                                         .pos0 = j->pos0,
                                         .wide = j->wide,
                                         .tables = (int32_t)n_tables,
                                         .tile = j->tile,
                                         .sink = j->sink,
                                         .state = j->state,
                                         .marks = (int32_t)n_marks,
                                         .n_marks = j->n_marks};
        n_marks += (size_t)j->n_marks;
        n_tables += (size_t)groups_of(&s->caches[j->cache]);
    }
    struct tern_cuda_mark *marks = place(d, n_marks * sizeof *marks, &t->marks);
    struct tern_cuda_table *tables = place(d, n_tables * sizeof *tables, &t->tables);
    for (int i = 0; i < s->n_jobs; i++) {
        const struct tern_dev_job *j = &s->jobs[i];
        for (int m = 0; m < j->n_marks; m++)
            *marks++ = (struct tern_cuda_mark){j->marks[m].block, j->marks[m].at};
        for (int g = 0; g < groups_of(&s->caches[j->cache]); g++) {
            *tables++ = (struct tern_cuda_table){(int32_t)n_numbers, j->tables[g].first, j->tables[g].n};
            n_numbers += (size_t)j->tables[g].n;
        }
    }
    uint32_t *numbers = place(d, n_numbers * sizeof *numbers, &t->numbers);
    for (int i = 0; i < s->n_jobs; i++)
        for (int g = 0; g < groups_of(&s->caches[s->jobs[i].cache]); g++) {
            const struct tern_dev_table *from = &s->jobs[i].tables[g];
            if (from->n)
                memcpy(numbers, from->blocks, (size_t)from->n * sizeof *numbers);
            numbers += from->n;
        }
}

/* Where a layer's states lie in a block of each cache: [layers][caches]. */
static void put_states(struct tern_cuda *d, const struct tern_dev_step *s)
{
    const int layers = s->n_caches ? s->caches[0].n_layers : 0;
    uint64_t *to = place(d, (size_t)layers * (size_t)s->n_caches * sizeof *to, &d->state_off);
    for (int i = 0; i < layers; i++)
        for (int c = 0; c < s->n_caches; c++)
            *to++ = s->caches[c].state_off ? s->caches[c].state_off[i] : 0;
}

/* ---- memory that the step writes --------------------------------------------------------------------------------- */

static int map_block(struct tern_cuda *d, struct tern_dev_blocks b, uint32_t number, tern_error *err)
{
    return number == TERN_NO_BLOCK || !b.mem ? 0 : tern_cuda_map(d, b.mem, number * b.bytes, b.bytes, err);
}

static int map_job(struct tern_cuda *d, const struct tern_dev_cache *c, const struct tern_dev_job *j, tern_error *err)
{
    int rc = 0;
    TERN_TRY(map_block(d, c->tiles, j->tile, err));
    TERN_TRY(map_block(d, c->sinks, j->sink, err));
    TERN_TRY(map_block(d, c->states, j->state, err));
    for (int m = 0; m < j->n_marks; m++)
        TERN_TRY(map_block(d, c->states, j->marks[m].block, err));
    for (int g = 0; g < groups_of(c); g++) {
        const struct tern_dev_table *t = &j->tables[g];
        const int open = j->pos0 / rate_of(c, g) / TERN_PAGE, from = open > t->first ? open - t->first : 0;
        for (int i = from; i < t->n; i++)
            TERN_TRY(map_block(d, c->pages[g], t->blocks[i], err));
    }
out:
    return rc;
}

void tern_cuda_begin(struct tern_dev *dev, const struct tern_dev_step *s)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_upload *u = &d->upload;
    tern_error err = {0};
    TERN_ASSERT(s->n_rows <= d->limits.max_rows && s->n_jobs <= d->limits.max_jobs);
    TERN_ASSERT(s->n_caches == d->limits.n_caches);
    tern_cuda_enter(d);
    tern_cuda_flush(d);
    d->step = *s;
    d->quantized.x = 0;
    d->decode_rows = s->n_jobs ? 0 : s->n_rows; /* nobody says */
    for (int i = 0; i < s->n_jobs; i++)
        d->decode_rows += s->jobs[i].wide ? 0 : s->jobs[i].n_rows;
    for (int i = 0; i < s->n_jobs && tern_cuda_ok(d, 0, NULL); i++)
        if (map_job(d, &s->caches[s->jobs[i].cache], &s->jobs[i], &err) < 0)
            d->fault = err;
    u->turn ^= 1;
    u->used = 0;
    d->sent = false;
    (void)tern_cuda_ok(d, tern_cu.cuEventSynchronize(u->copied[u->turn]), "waiting for the card");
    struct tern_cuda_tables *t = &d->tables;
    *t = (struct tern_cuda_tables){.n_rows = s->n_rows, .n_jobs = s->n_jobs, .n_caches = s->n_caches};
    struct tern_cuda_row *rows = place(d, (size_t)s->n_rows * sizeof *rows, &t->rows);
    for (int r = 0; s->rows && r < s->n_rows; r++)
        rows[r] = (struct tern_cuda_row){s->rows[r].token, s->rows[r].pos};
    tern_cuda_together_begin(d);
    put_caches(d, s);
    put_jobs(d, s);
    put_states(d, s);
    if (d->attn)
        tern_cuda_attn_begin(d);
    if (tern_cuda_ok(d, 0, NULL))
        (void)tern_cuda_ok(d, tern_cu.cuMemcpyHtoDAsync_v2(u->p, u->host[u->turn], u->used, d->stream),
                           "copying to the card");
    d->in_step = true;
}

void tern_cuda_end(struct tern_dev *dev)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    if (d->attn)
        tern_cuda_attn_end(d);
    tern_cuda_flush(d);
    (void)tern_cuda_ok(d, tern_cu.cuEventRecord(d->upload.copied[d->upload.turn], d->stream), "waiting for the card");
    d->in_step = false;
}
