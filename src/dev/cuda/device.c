/* The CUDA device: opening, the queue, what can go wrong with it, the table of operations. */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"

#define CARD_OPS TERN_DEV_CARDS /* cards that have a name: cuda, cuda:1 ... */

/* ---- faults ------------------------------------------------------------------------------------------------------ */

bool tern_cuda_ok(struct tern_cuda *d, tern_cu_result rc, const char *doing)
{
    if (d->fault.code)
        return false;
    if (!rc)
        return true;
    (void)tern_cu_error(rc, doing, &d->fault);
    d->lost = rc != TERN_CU_OUT_OF_MEMORY; /* mostly the driver refuses everything from here on */
    return false;
}

static int op_fault(struct tern_dev *dev, bool keep, tern_error *err)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const int code = d->fault.code;
    if (!code)
        return 0;
    if (err) {
        *err = d->fault;
        if (d->lost)
            (void)tern_err_set(err, code, "the device %s is lost: %.200s", d->card->name, d->fault.msg);
    }
    if (!d->lost && !keep)
        d->fault = (tern_error){0};
    return code;
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

void tern_cuda_enter(const struct tern_cuda *d)
{
    (void)tern_cu.cuCtxSetCurrent(d->card->context); /* fails only where everything else does */
}

/* A list that cannot grow is a fault, which every operation may leave behind. */
static bool grow(struct tern_cuda *d, size_t bytes)
{
    struct tern_cuda_list *l = &d->list;
    return tern_grow(&l->calls, &l->cap, l->n + 1, sizeof *l->calls, &d->fault) == 0 &&
           tern_grow(&l->args, &l->args_cap, l->used + bytes + 16, 1, &d->fault) == 0;
}

void tern_cuda_launch(struct tern_cuda *d, enum tern_cuda_kernel k, unsigned x, unsigned y, unsigned z,
                      unsigned threads, unsigned shared, const void *args, size_t bytes)
{
    struct tern_cuda_list *l = &d->list;
    if (!x || !y || !z || !tern_cuda_ok(d, 0, NULL) || !grow(d, bytes))
        return;
    struct tern_cuda_call *c = &l->calls[l->n++];
    memset(c, 0, sizeof *c); /* lists are compared byte by byte */
    *c = (struct tern_cuda_call){
        .kernel = k, .grid = {x, y, z}, .block = threads, .shared = shared, .args = l->used, .bytes = bytes};
    memset(l->args + l->used + bytes, 0, 16);
    memcpy(l->args + l->used, args, bytes);
    l->used = tern_round_up(l->used + bytes, 16);
}

/* More shared memory than 48 KiB has to be asked for, with what the kernel has of its own. */
static bool ask_shared(struct tern_cuda *d, const struct tern_cuda_call *c)
{
    static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER; /* who asks for less must not come last */
    _Atomic unsigned *asked = &d->card->shared_asked[c->kernel];
    tern_cu_result rc = 0;
    if (c->shared <= 32 << 10 || c->shared <= atomic_load_explicit(asked, memory_order_relaxed))
        return true;
    (void)pthread_mutex_lock(&asking);
    if (c->shared > atomic_load_explicit(asked, memory_order_relaxed))
        rc = tern_cu.cuFuncSetAttribute(d->card->kernel[c->kernel], TERN_CU_FUNCTION_SHARED, (int)c->shared);
    if (!rc && c->shared > atomic_load_explicit(asked, memory_order_relaxed))
        atomic_store_explicit(asked, c->shared, memory_order_relaxed);
    (void)pthread_mutex_unlock(&asking);
    return tern_cuda_ok(d, rc, "asking for shared memory");
}

static void launch_until(struct tern_cuda *d, size_t end)
{
    struct tern_cuda_list *l = &d->list;
    struct tern_cu_attribute overlap = {.id = TERN_CU_LAUNCH_OVERLAP, .value.number = 1};
    for (size_t i = l->from; i < end && tern_cuda_ok(d, 0, NULL); i++) {
        const struct tern_cuda_call *c = &l->calls[i];
        void *args[] = {l->args + c->args};
        const struct tern_cu_launch launch = {.grid = {c->grid[0], c->grid[1], c->grid[2]},
                                              .block = {c->block, 1, 1},
                                              .shared = c->shared,
                                              .stream = d->stream,
                                              .attributes = &overlap,
                                              .n_attributes = d->card->major >= 9};
        if (ask_shared(d, c))
            (void)tern_cuda_ok(d, tern_cu.cuLaunchKernelEx(&launch, d->card->kernel[c->kernel], args, NULL),
                               tern_cuda_kernel_name(c->kernel));
    }
}

static void launch_all(struct tern_cuda *d)
{
    launch_until(d, d->list.n);
}

void tern_cuda_flush(struct tern_cuda *d)
{
    tern_cuda_enter(d);
    if (!d->list.from)
        tern_cuda_chain_calls(d);
    if (d->list.n && (d->list.from || !tern_cuda_graph_run(d, launch_all)))
        launch_all(d);
    d->list.n = d->list.used = d->list.from = d->together.behind = 0;
}

void tern_cuda_flush_before(struct tern_cuda *d, size_t call)
{
    tern_cuda_enter(d);
    launch_until(d, call < d->list.n ? call : d->list.n);
    d->list.from = call < d->list.n ? call : d->list.n;
}

#define FIRST 32 /* calls: three layers or so, for each card whose list the host writes down */

void tern_cuda_flush_first(struct tern_cuda *d)
{
    if (!d->in_step || d->sent || d->list.n < FIRST * (size_t)(d->together.n ? d->together.n : 1) ||
        (d->together.n && d->list.n > TERN_CUDA_TURN)) /* which goes out by turns with those of other cards */
        return;
    d->sent = true;
    tern_cuda_flush(d);
}

static void op_sync(struct tern_dev *dev)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    tern_cuda_flush(d);
    if (!d->lost)
        (void)tern_cuda_ok(d, tern_cu.cuStreamSynchronize(d->stream), "computing");
    tern_cuda_hand_on(d);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void op_close(struct tern_dev *dev)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    tern_cuda_enter(d);
    if (d->stream) {
        tern_cuda_flush(d);
        (void)tern_cu.cuStreamSynchronize(d->stream);
    }
    if (d->attn)
        tern_cuda_attn_close(d);
    tern_cuda_step_close(d);
    tern_cuda_together_close(d);
    tern_cuda_graph_close(d);
    tern_cuda_lands(dev, NULL, 0);
    if (d->bounce.host)
        (void)tern_cu.cuMemFreeHost(d->bounce.host);
    const tern_cu_address scratch[] = {d->q8, d->half, d->half_scale, d->dense, d->pairs, d->best, d->met, d->words};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        tern_cuda_give(d, scratch[i]);
    if (d->stream) {
        (void)tern_cu.cuStreamDestroy_v2(d->stream);
        if (d->pool)
            atomic_fetch_sub(&d->card->computing, 1);
    }
    tern_free(d->list.calls);
    tern_free(d->list.args);
    tern_free(d);
}

static int open_card(struct tern_dev **out, int number, const struct tern_dev_ops *ops, struct tern_pool *pool,
                     tern_error *err)
{
    int rc = 0;
    struct tern_cuda *d = NULL;
    struct tern_cuda_card *card;
    *out = NULL;
    TERN_TRY(tern_cuda_card(&card, number, err));
    TERN_TRY(tern_alloc(&d, 1, sizeof *d, err));
    d->dev.ops = ops;
    d->card = card;
    d->pool = pool;
    tern_cuda_enter(d);
    TERN_TRY(tern_cu_error(tern_cu.cuStreamCreate(&d->stream, TERN_CU_STREAM_APART), "opening the card", err));
    if (pool)
        atomic_fetch_add(&card->computing, 1);
    *out = &d->dev;
    d = NULL;
out:
    if (d)
        op_close(&d->dev);
    return rc;
}

int tern_cuda_take(struct tern_cuda *d, tern_cu_address *out, size_t bytes, tern_error *err)
{
    int slot = 0;
    *out = 0;
    if (!bytes)
        return 0;
    while (d->taken[slot].p)
        TERN_ASSERT(++slot < TERN_CUDA_TAKEN);
    if (!tern_cuda_card_take(d->card, bytes))
        return tern_cuda_full(d, bytes, err);
    tern_cu_result rc = tern_cu.cuMemAlloc_v2(out, bytes);
    if (rc) {
        *out = 0;
        tern_cuda_card_give(d->card, bytes);
    } else {
        d->taken[slot].p = *out;
        d->taken[slot].bytes = bytes;
        d->bytes += bytes;
        rc = tern_cu.cuMemsetD8Async(*out, 0, bytes, d->stream);
    }
    if (rc == TERN_CU_OUT_OF_MEMORY)
        return tern_cuda_full(d, bytes, err);
    return tern_cu_error(rc, "taking memory of the card", err);
}

void tern_cuda_give(struct tern_cuda *d, tern_cu_address p)
{
    for (int i = 0; p && i < TERN_CUDA_TAKEN; i++)
        if (d->taken[i].p == p) {
            (void)tern_cu.cuMemFree_v2(p);
            tern_cuda_card_give(d->card, d->taken[i].bytes);
            d->bytes -= d->taken[i].bytes;
            d->taken[i].p = 0;
            return;
        }
    TERN_ASSERT(!p);
}

static int op_prepare(struct tern_dev *dev, const struct tern_dev_limits *limits, tern_error *err)
{
    int rc = 0;
    struct tern_cuda *d = tern_cuda_of(dev);
    tern_cuda_enter(d);
    d->limits = *limits;
    d->limits.caches = NULL;
    d->limits.shapes = NULL;
    TERN_TRY(tern_cuda_products_open(d, err));
    TERN_TRY(tern_cuda_experts_open(d, err));
    TERN_TRY(tern_cuda_best_open(d, err));
    TERN_TRY(tern_cuda_step_open(d, limits, err));
    if (limits->n_caches)
        TERN_TRY(tern_cuda_attn_open(d, limits, err));
    TERN_TRY(tern_cuda_take(d, &d->dense, d->dense_room, err));
    TERN_TRY(tern_cu_error(tern_cu.cuStreamSynchronize(d->stream), "taking memory of the card", err));
out:
    return rc;
}

static size_t op_scratch_bytes(const struct tern_dev *dev)
{
    return ((const struct tern_cuda *)dev)->bytes;
}

/* ---- the tables: one for each card ------------------------------------------------------------------------------- */

static const struct tern_dev_ops *op_card(int number);
static int probe_card(int number, char about[TERN_DEV_NAME], tern_error *err)
{
    struct tern_cuda_card *c;
    int rc = tern_cuda_card(&c, number, err);
    if (rc == 0)
        (void)snprintf(about, TERN_DEV_NAME, "%s, %zu MiB, compute capability %d.%d", c->name, c->memory >> 20,
                       c->major, c->minor);
    return rc;
}

#define OPS(storage, ops, number, text)                                                                         \
    static int op_open_##number(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, \
                                tern_error *err);                                                               \
    static int op_probe_##number(char about[TERN_DEV_NAME], tern_error *err)                                    \
    {                                                                                                           \
        return probe_card(number, about, err);                                                                  \
    }                                                                                                           \
    storage const struct tern_dev_ops ops = {                                                                   \
        .name = text,                                                                                           \
        .open = op_open_##number,                                                                               \
        .probe = op_probe_##number,                                                                             \
        .card = op_card,                                                                                        \
        .chunk = 4096,                                                                                          \
        .kv = "l4",                                                                                             \
        .apart = true,                                                                                          \
        TERN_CUDA_OPS,                                                                                          \
    };                                                                                                          \
    static int op_open_##number(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, \
                                tern_error *err)                                                                \
    {                                                                                                           \
        return open_card(out, number, self, pool, err);                                                         \
    }

#define TERN_CUDA_OPS                                                                                                 \
    .close = op_close, .prepare = op_prepare, .scratch_bytes = op_scratch_bytes, .sync = op_sync, .fault = op_fault,  \
    .limit = tern_cuda_limit, .held = tern_cuda_held, .claim = tern_cuda_claim, .reserve = tern_cuda_reserve,         \
    .release = tern_cuda_release, .adopt = tern_cuda_adopt, .copy_in = tern_cuda_copy_in,                             \
    .copy_out = tern_cuda_copy_out, .lands = tern_cuda_lands, .copy = tern_cuda_copy, .zero = tern_cuda_zero,         \
    .read = tern_cuda_read, .discard = tern_cuda_discard, .weight_plan = tern_cuda_weight_plan,                       \
    .weight_bytes = tern_cuda_weight_bytes, .weight_about = tern_cuda_weight_about,                                   \
    .weight_place = tern_cuda_weight_place, .weight_load = tern_cuda_weight_load,                                     \
    .weight_drop = tern_cuda_weight_drop, .weight_out = tern_cuda_weight_out, .begin = tern_cuda_begin,               \
    .end = tern_cuda_end, .embed = tern_cuda_embed, .norm = tern_cuda_norm, .add = tern_cuda_add,                     \
    .scale = tern_cuda_scale, .matmul = tern_cuda_matmul, .rope_table = tern_cuda_rope_table,                         \
    .heads = tern_cuda_heads, .copy_heads = tern_cuda_copy_heads, .append = tern_cuda_append,                         \
    .attention = tern_cuda_attention, .recode = tern_cuda_recode, .glu = tern_cuda_glu, .softcap = tern_cuda_softcap, \
    .gate = tern_cuda_gate, .stack = tern_cuda_stack, .route = tern_cuda_route, .experts = tern_cuda_experts,         \
    .experts_up = tern_cuda_experts_up, .experts_down = tern_cuda_experts_down, .delta = tern_cuda_delta,             \
    .clamp = tern_cuda_clamp, .grid = tern_cuda_grid, .compress = tern_cuda_compress, .choose = tern_cuda_choose,     \
    .sparse = tern_cuda_sparse, .hyper_read = tern_cuda_hyper_read, .hyper_write = tern_cuda_hyper_write,             \
    .pick = tern_cuda_pick, .best = tern_cuda_best, .start = tern_cuda_start, .join = tern_cuda_join,                 \
    .gather = tern_cuda_gather_rows

OPS(, tern_dev_cuda, 0, "cuda")
OPS(static, card_1, 1, "cuda:1")
OPS(static, card_2, 2, "cuda:2")
OPS(static, card_3, 3, "cuda:3")
OPS(static, card_4, 4, "cuda:4")
OPS(static, card_5, 5, "cuda:5")
OPS(static, card_6, 6, "cuda:6")
OPS(static, card_7, 7, "cuda:7")

static const struct tern_dev_ops *op_card(int number)
{
    static const struct tern_dev_ops *const all[CARD_OPS] = {&tern_dev_cuda, &card_1, &card_2, &card_3,
                                                             &card_4,        &card_5, &card_6, &card_7};
    return number >= 0 && number < CARD_OPS ? all[number] : NULL;
}
