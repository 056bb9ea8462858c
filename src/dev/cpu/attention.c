/* Planning: cuts the jobs into blocks, spreads their units over the pool, merges page ranges. */
#include "dev/cpu/attention.h"

#include <string.h>
#include "base/err.h"
#include "base/mem.h"

/* Partial results are kept for as many narrow blocks at a time as fit in this many floats (16 MiB), or for one. */
#define PART_CAP ((size_t)4 << 20)

#define SHARED_TASKS 3 /* that every thread keeps where wide blocks share theirs */
#define UNIT_TASKS   2 /* and where units of narrow blocks go side by side, */
#define RANGE_TASKS  4 /* and ranges one after the other */
#define MOST_RANGES  8 /* that one task takes */
#define QUERY_BLOCKS 4 /* of a query, at most */

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* Heads of a unit, evenly: nine heads in units of at most four are 3 + 3 + 3. */
static int unit_heads(const struct tern_cpu_shape *s, int most)
{
    int group = s->n_heads / s->kv->n_heads;
    return ceil_div(group, ceil_div(group, most));
}

static int narrow_rows(const struct tern_cpu_shape *s)
{
    return ATTN_NARROW / unit_heads(s, ATTN_NARROW);
}

/* ---- scratch ------------------------------------------------------------------------------------------------ */

static void *take(uint8_t *base, size_t *at, size_t n, size_t size)
{
    uint8_t *p = base ? base + *at : NULL;
    *at += tern_round_up(n * size, TERN_ALIGN);
    return p;
}

/* What wide rows on integers have besides, n q rows at most. */
static void lay_out_codes(struct attn_codes *c, uint8_t *base, size_t *at, const struct tern_kv_layer *kv, size_t n)
{
    const size_t dk = (size_t)kv->k.dim, dv = (size_t)kv->v.dim, tokens = TERN_SOFTMAX_PAGES * TERN_PAGE;
    const size_t bk = (size_t)tern_kvq_blocks(kv->k.dim), bv = (size_t)tern_kvq_blocks(kv->v.dim);
    c->x = take(base, at, n * dk, sizeof *c->x);
    c->x_scale = take(base, at, n * bk, sizeof *c->x_scale);
    c->k = take(base, at, tokens * dk, sizeof *c->k);
    c->k_scale = take(base, at, tokens * bk, sizeof *c->k_scale);
    c->v = take(base, at, tokens * dv, sizeof *c->v);
    c->v_scale = take(base, at, tokens * bv, sizeof *c->v_scale);
    c->w = take(base, at, ATTN_BAND * tokens * bv, sizeof *c->w);
    c->unit = take(base, at, ATTN_BAND * bv, sizeof *c->unit);
}

/* Blocks of one task of wide rows, at most. */
static size_t sharing(const struct tern_cpu_shape *shape)
{
    return shape->bf16 && !shape->kv->latent ? ATTN_SHARING : 1;
}

/* Narrow units of one task, at most. */
static int most_together(const struct tern_cpu_shape *shape)
{
    const int units =
        shape->kv->n_heads * ceil_div(shape->n_heads / shape->kv->n_heads, unit_heads(shape, ATTN_NARROW));
    return shape->kv->latent ? 1 : units < ATTN_TOGETHER ? units : ATTN_TOGETHER;
}

/* Lays out one thread's memory and returns its size; base NULL: only the size. */
static size_t lay_out(struct attn_scratch *c, uint8_t *base, const struct tern_cpu_shape *shape)
{
    size_t dk = (size_t)shape->kv->k.dim, dv = (size_t)shape->kv->v.dim, f = sizeof(float), at = 0;
    size_t n = (size_t)TERN_PAGE * (size_t)unit_heads(shape, ATTN_WIDE_HEADS) * sharing(shape);
    const size_t narrow = (size_t)ATTN_NARROW * (size_t)most_together(shape);
    n = n < narrow ? narrow : n;
    c->x = take(base, &at, n * dk, f);
    c->o = take(base, &at, n * dv, f);
    c->m = take(base, &at, n, f);
    c->l = take(base, &at, n, f);
    c->s = take(base, &at, (size_t)ATTN_SCORES * TERN_PAGE, f);
    c->shrink = take(base, &at, ATTN_SUB, f);
    c->raw = take(base, &at, ATTN_SUB * dk, f);
    c->k = take(base, &at, TERN_PAGE * dk, f);
    c->v = take(base, &at, TERN_PAGE * dv, f);
    c->query.x = c->x;
    c->query.q = take(base, &at, narrow * dk, 1);
    c->query.scale = take(base, &at, narrow * QUERY_BLOCKS, f);
    c->query.sum = take(base, &at, narrow * QUERY_BLOCKS, sizeof(int32_t));
    if (shape->kv->latent) {
        c->xv = take(base, &at, n * dv, f);
        c->raw_v = take(base, &at, ATTN_SUB * dv, f);
        c->vk = take(base, &at, TERN_PAGE * dv, f);
        c->s_k = take(base, &at, (size_t)ATTN_SUB * TERN_PAGE, f);
    } else if (shape->bf16) {
        const size_t bands = (n + TERN_BAND - 1) / TERN_BAND, u16 = sizeof(uint16_t);
        c->x16 = take(base, &at, bands * tern_bf16_band(shape->kv->k.dim), u16);
        c->k16 = take(base, &at, TERN_SOFTMAX_PAGES * tern_bf16_right(shape->kv->k.dim, TERN_PAGE), u16);
        c->v16 = take(base, &at, tern_bf16_right(TERN_SOFTMAX_PAGES * TERN_PAGE, shape->kv->v.dim), u16);
        c->p16 = take(base, &at, tern_bf16_band(TERN_SOFTMAX_PAGES * TERN_PAGE), u16);
        const size_t firsts = (size_t)shape->kv->first * (dk > dv ? dk : dv);
        c->firsts = take(base, &at, tern_round_up(firsts, TERN_ALIGN), f);
        c->first_keys = take(base, &at, firsts, f);
    } else if (attn_on_codes(shape)) {
        lay_out_codes(&c->codes, base, &at, shape->kv, n);
    }
    return at;
}

static size_t part_floats(const struct tern_cpu_shape *s, int n_rows, int n_ranges)
{
    return (size_t)n_rows * (size_t)s->n_heads * (size_t)n_ranges * attn_part_floats(s->kv);
}

size_t tern_cpu_attention_scratch(const struct tern_cpu_shape *shape, int n_threads, int max_rows, int max_narrow,
                                  int max_pages)
{
    struct attn_scratch c;
    int table = max_rows < ATTN_TABLE ? max_rows : ATTN_TABLE;
    int rows = max_narrow < narrow_rows(shape) ? max_narrow : narrow_rows(shape);
    int n_ranges = max_pages / TERN_ATTN_RANGE + 2; /* both ends may lie inside a range */
    size_t all = part_floats(shape, max_narrow, n_ranges), one = part_floats(shape, rows, n_ranges);
    size_t part = all < PART_CAP ? all : one < PART_CAP ? PART_CAP : one;
    return tern_round_up((size_t)table * sizeof(struct attn_block), TERN_ALIGN) +
           tern_round_up((size_t)n_threads * sizeof(struct attn_ready), TERN_ALIGN) +
           (size_t)n_threads * lay_out(&c, NULL, shape) + tern_round_up(part * sizeof(float), TERN_ALIGN);
}

/* ---- tasks -------------------------------------------------------------------------------------------------- */

void tern_attn_unit_init(struct attn_unit *u, const struct attn_step *step, const struct attn_block *b, int index)
{
    int heads = step->heads[b->job->wide], per_kv = step->units[b->job->wide];
    int first = index % per_kv * heads;
    *u = (struct attn_unit){.step = step, .block = b, .kv_head = index / per_kv};
    u->kind = step->kv->latent             ? &tern_attn_latent
              : !b->job->wide              ? &tern_attn_narrow
              : step->shape->bf16          ? &tern_attn_tiles
              : attn_on_codes(step->shape) ? &tern_attn_codes
                                           : &tern_attn_wide;
    u->key = tern_kv_side_of(&step->kv->k, u->kv_head);
    u->heads = step->group - first < heads ? step->group - first : heads;
    u->head0 = u->kv_head * step->group + first;
    u->n_q = b->n_rows * u->heads;
}

/* The block that a task or merge number belongs to: the last one that starts at or before it and has any. */
static const struct attn_block *find_block(const struct attn_step *step, int number, bool merge)
{
    int lo = 0, hi = step->n_blocks;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        int start = merge ? step->blocks[mid].merge0 : step->blocks[mid].task0;
        if (start <= number)
            lo = mid;
        else
            hi = mid;
    }
    return &step->blocks[lo];
}

static void thread_scratch(struct attn_scratch *c, const struct attn_step *step, int worker)
{
    lay_out(c, step->threads + (size_t)worker * step->thread_bytes, step->shape);
}

/* The scratch of a unit that shares a task with the one that has c, which has n q rows: rows of its own. */
static struct attn_scratch scratch_behind(const struct attn_scratch *c, const struct attn_unit *u, size_t n)
{
    const size_t dk = (size_t)u->step->kv->k.dim;
    struct attn_scratch next = *c;
    next.x += n * dk;
    next.o += n * (size_t)u->step->kv->v.dim;
    next.m += n;
    next.l += n;
    next.query.x = next.x;
    return next;
}

static struct attn_scratch wide_behind(const struct attn_scratch *c, const struct attn_unit *u)
{
    const size_t n = (size_t)TERN_PAGE * (size_t)u->heads;
    struct attn_scratch next = scratch_behind(c, u, n);
    next.x16 += n / TERN_BAND * tern_bf16_band(u->step->kv->k.dim);
    return next;
}

static struct attn_scratch narrow_behind(const struct attn_scratch *c, const struct attn_unit *u)
{
    struct attn_scratch next = scratch_behind(c, u, ATTN_NARROW);
    next.query.q += (size_t)ATTN_NARROW * (size_t)u->step->kv->k.dim;
    next.query.scale += ATTN_NARROW * QUERY_BLOCKS;
    next.query.sum += ATTN_NARROW * QUERY_BLOCKS;
    return next;
}

static void run_wide(const struct attn_step *step, const struct attn_block *b, int number, int worker)
{
    struct attn_scratch c[ATTN_SHARING];
    struct attn_unit u[ATTN_SHARING];
    thread_scratch(&c[0], step, worker);
    step->ready[worker].block = NULL;     /* its queries go where those of narrow units were */
    for (int i = 0; i < b->stripe; i++) { /* b: the last of them */
        tern_attn_unit_init(&u[i], step, b - b->stripe + 1 + i, number);
        if (i)
            c[i] = wide_behind(&c[i - 1], &u[i]);
    }
    tern_attn_wide_units(u, c, b->stripe);
}

/* At least one, which may be empty. */
static int n_ranges_of(const struct attn_block *b)
{
    return b->n_ranges ? b->n_ranges : 1;
}

/* Tasks of the units of a narrow block that go together. */
static int range_tasks(const struct attn_block *b)
{
    return ceil_div(n_ranges_of(b), b->per_task);
}

static void run_narrow(const struct attn_step *step, const struct attn_block *b, int number, int worker)
{
    struct attn_scratch c[ATTN_TOGETHER];
    struct attn_unit u[ATTN_TOGETHER];
    /* The last block of a stripe knows how many there are. */
    const int turn = number % b->stripe, part = number / b->stripe, tasks = range_tasks(b);
    const int first = part % tasks * b->per_task, left = n_ranges_of(b) - first;
    const struct attn_ready now = {b - turn, part / tasks * b->together};
    thread_scratch(&c[0], step, worker);
    for (int i = 0; i < b->together; i++) {
        tern_attn_unit_init(&u[i], step, now.block, now.unit + i);
        if (i)
            c[i] = narrow_behind(&c[i - 1], &u[i]);
    }
    const bool ready = step->ready[worker].block == now.block && step->ready[worker].unit == now.unit;
    step->ready[worker] = now;
    tern_attn_narrow_ranges(u, c, b->together, first, first + (left < b->per_task ? left : b->per_task), ready);
}

static void run_task(void *ctx, int task, int worker)
{
    const struct attn_step *step = ctx;
    /* The last blocks of a prompt see the most pages: longest tasks first. */
    const int number = step->n_tasks - 1 - task;
    const struct attn_block *b = find_block(step, number, false);
    (b->job->wide ? run_wide : run_narrow)(step, b, number - b->task0, worker);
}

static void run_merge(void *ctx, int task, int worker)
{
    const struct attn_step *step = ctx;
    struct attn_scratch c;
    struct attn_unit u;
    const struct attn_block *b = find_block(step, task, true);
    thread_scratch(&c, step, worker);
    tern_attn_unit_init(&u, step, b, task - b->merge0);
    tern_attn_narrow_merge(&u, &c);
}

static void flush(struct attn_step *step, struct tern_pool *pool)
{
    memset(step->ready, 0, (size_t)tern_pool_threads(pool) * sizeof *step->ready);
    tern_pool_run(pool, run_task, step, step->n_tasks);
    tern_pool_run(pool, run_merge, step, step->n_merges);
    step->n_blocks = step->n_tasks = step->n_merges = 0;
    step->part_used = 0;
}

/* ---- planning ----------------------------------------------------------------------------------------------- */

/* The block of a job that starts at row `row0`. */
static struct attn_block cut_block(const struct attn_step *step, const struct tern_attn_job *job, int row0)
{
    struct attn_block b = {.job = job, .row0 = row0, .pos0 = job->pos0 + row0};
    int most = job->wide ? TERN_PAGE : narrow_rows(step->shape), to_edge = TERN_PAGE - b.pos0 % TERN_PAGE;
    int left = job->n_rows - row0;
    most = to_edge < most ? to_edge : most;
    b.n_rows = left < most ? left : most;
    b.own = b.pos0 / TERN_PAGE;
    b.page0 = tern_kv_oldest(step->kv->reach, b.pos0) / TERN_PAGE;
    b.raw0 = b.own - step->kv->recent + 1 > b.page0 ? b.own - step->kv->recent + 1 : b.page0;
    if (!job->wide && b.page0 < b.raw0)
        b.n_ranges = (b.raw0 - 1) / TERN_ATTN_RANGE - b.page0 / TERN_ATTN_RANGE + 1;
    return b;
}

/* Does a block share the tasks of the one before it?  Wide ones only where every thread keeps SHARED_TASKS of them. */
static bool joins(const struct attn_step *step, const struct attn_block *before, const struct attn_block *b,
                  int n_threads)
{
    if (before->job != b->job)
        return false;
    if (!b->job->wide)
        return before->own == b->own && before->page0 == b->page0 && before->raw0 == b->raw0;
    const int tasks = b->job->n_rows / (ATTN_SHARING * TERN_PAGE) * step->kv->n_heads * step->units[1];
    return sharing(step->shape) > 1 && before->stripe < ATTN_SHARING && tasks >= SHARED_TASKS * n_threads;
}

/* Units side by side, as many as leave UNIT_TASKS to every thread, in equal shares; then ranges one after the other,
 * for the beginning of a task waits for memory: 1, 2, 4 or 8, as equal shares of what is often a multiple of them. */
static void share_narrow(struct attn_block *b, const struct attn_step *step, int units, int n_threads)
{
    const int all = b->n_ranges * units, most = most_together(step->shape);
    b->together = b->per_task = 1;
    for (int n = 2; n <= most; n++)
        if (units % n == 0 && n * UNIT_TASKS * n_threads <= all)
            b->together = n;
    while (b->per_task < MOST_RANGES && 2 * b->per_task * b->together * RANGE_TASKS * n_threads <= all)
        b->per_task *= 2;
}

static void add_block(struct attn_step *step, struct tern_pool *pool, struct attn_block b, int table)
{
    int per_block = step->kv->n_heads * step->units[b.job->wide];
    /* A single range needs no partial result: merging it alone would change nothing. */
    size_t part = b.n_ranges > 1 ? part_floats(step->shape, b.n_rows, b.n_ranges) : 0;
    TERN_ASSERT(part <= step->part_cap);
    if (step->n_blocks == table || part > step->part_cap - step->part_used)
        flush(step, pool);
    const struct attn_block *before = step->n_blocks ? &step->blocks[step->n_blocks - 1] : &b;
    const bool joined = before != &b && joins(step, before, &b, tern_pool_threads(pool));
    b.stripe = joined ? before->stripe + 1 : 1;
    if (!b.job->wide)
        share_narrow(&b, step, per_block, tern_pool_threads(pool));
    b.task0 = joined ? before->task0 : step->n_tasks;
    b.merge0 = step->n_merges;
    b.part = step->part_used;
    if (!b.job->wide)
        step->n_tasks += per_block / b.together * range_tasks(&b);
    else if (!joined)
        step->n_tasks += per_block;
    step->n_merges += b.n_ranges > 1 ? per_block : 0;
    step->part_used += part;
    step->blocks[step->n_blocks++] = b;
}

static int count_rows(const struct tern_attn_job *jobs, int n_jobs)
{
    int n = 0;
    for (int i = 0; i < n_jobs && n < ATTN_TABLE; i++)
        n += jobs[i].n_rows;
    return n < ATTN_TABLE ? n : ATTN_TABLE;
}

void tern_cpu_attend(struct tern_pool *pool, const struct tern_cpu_shape *shape, const struct tern_attn_job *jobs,
                     int n_jobs, const float *q, size_t q_stride, float *out, size_t out_stride,
                     struct tern_attn_scratch scratch)
{
    const double log2e = 1.4426950408889634;
    struct attn_scratch c;
    int table = count_rows(jobs, n_jobs);
    TERN_ASSERT(shape->n_heads % shape->kv->n_heads == 0);
    struct attn_step step = {
        .shape = shape,
        .kv = shape->kv,
        .group = shape->n_heads / shape->kv->n_heads,
        .heads = {unit_heads(shape, ATTN_NARROW), unit_heads(shape, ATTN_WIDE_HEADS)},
        .q_scale = (float)(shape->scale * log2e),
        .cap = (float)(shape->softcap * log2e),
        .q = q,
        .out = out,
        .q_stride = q_stride,
        .out_stride = out_stride,
        .blocks = (struct attn_block *)(void *)scratch.p,
        .thread_bytes = lay_out(&c, NULL, shape),
    };
    for (int wide = 0; wide < 2; wide++)
        step.units[wide] = ceil_div(step.group, step.heads[wide]);
    size_t at = tern_round_up((size_t)table * sizeof(struct attn_block), TERN_ALIGN);
    step.ready = (struct attn_ready *)(void *)(scratch.p + at);
    at += tern_round_up((size_t)tern_pool_threads(pool) * sizeof *step.ready, TERN_ALIGN);
    step.threads = scratch.p + at;
    at += (size_t)tern_pool_threads(pool) * step.thread_bytes;
    TERN_ASSERT(at <= scratch.bytes);
    step.part = (float *)(void *)(scratch.p + at);
    step.part_cap = (scratch.bytes - at) / sizeof(float);
    for (int i = 0; i < n_jobs; i++)
        for (int row = 0; row < jobs[i].n_rows;) {
            struct attn_block b = cut_block(&step, &jobs[i], row);
            add_block(&step, pool, b, table);
            row += b.n_rows;
        }
    flush(&step, pool);
}
