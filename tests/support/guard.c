/* The device `guard`: the CPU with the manners of a machine on the other side of a bus.
 *
 * Its memory cannot be read or written but by operations: outside of them it is mapped without any right, so that a
 * host that looks into it is stopped where it does.  Operations are written down when they are called and run at sync,
 * so that what counts too early is not there yet: copy_out first fills the host's bytes with garbage.  Arguments are
 * copied as the seam promises (dev.h), adopted memory is a copy.
 *
 * Linked into test programs; TERN_TEST_DEVICE=guard in the environment makes it the device that "auto" means; cuda
 * that one, where the build has it; split-guard and split-cuda a device of which the first layer is the CPU's;
 * parallel-cpu, parallel-guard and parallel-cuda three of these, or two cards, together. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "dev/cpu/cpu.h"

#define CHECK(cond, what)                                      \
    do {                                                       \
        if (!(cond)) {                                         \
            (void)fprintf(stderr, "device guard: %s\n", what); \
            abort();                                           \
        }                                                      \
    } while (0)

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Small pieces come out of one range of addresses, so that one call changes the rights of all; large ones, most of
 * which is never touched, have a mapping each. */
#define RANGE ((size_t)16 << 30)
#define SMALL ((size_t)4 << 20)

struct guarded {
    struct tern_dev_mem mem; /* first: handles point here */
    size_t mapped;
    struct guarded *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *range;
static size_t used;
static struct guarded *large;     /* in use */
static struct guarded *free_ones; /* small, to be taken again by who wants as much */
static int open_count;            /* operations that run now, in any thread */

static void protect(int rights)
{
    CHECK(used == 0 || mprotect(range, used, rights) == 0, "mprotect failed");
    for (struct guarded *g = large; g; g = g->next)
        CHECK(mprotect(g->mem.p, g->mapped, rights) == 0, "mprotect failed");
}

static void enter(void)
{
    (void)pthread_mutex_lock(&lock);
    if (open_count++ == 0)
        protect(PROT_READ | PROT_WRITE);
    (void)pthread_mutex_unlock(&lock);
}

static void leave(void)
{
    (void)pthread_mutex_lock(&lock);
    if (--open_count == 0)
        protect(PROT_NONE);
    (void)pthread_mutex_unlock(&lock);
}

static void *map_nothing(size_t bytes)
{
    return mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* With the lock. */
static struct guarded *take_small(size_t bytes)
{
    for (struct guarded **at = &free_ones; *at; at = &(*at)->next)
        if ((*at)->mapped == bytes) {
            struct guarded *g = *at;
            *at = g->next;
            return g;
        }
    struct guarded *g = calloc(1, sizeof *g);
    CHECK(g, "out of memory");
    if (!range) {
        range = map_nothing(RANGE);
        CHECK(range != MAP_FAILED, "no range of addresses for its memory");
    }
    CHECK(bytes <= RANGE - used, "its range of addresses is full");
    g->mem.p = range + used;
    used += bytes;
    return g;
}

static struct guarded *take_large(size_t bytes)
{
    void *p = map_nothing(bytes);
    if (p == MAP_FAILED)
        return NULL;
    struct guarded *g = calloc(1, sizeof *g);
    CHECK(g, "out of memory");
    g->mem.p = p;
    g->next = large;
    large = g;
    return g;
}

static int new_memory(struct tern_dev_mem **out, size_t bytes, const void *contents, tern_error *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (bytes + page) / page * page;
    *out = NULL;
    (void)pthread_mutex_lock(&lock);
    struct guarded *g = all <= SMALL ? take_small(all) : take_large(all);
    if (!g) {
        (void)pthread_mutex_unlock(&lock);
        return tern_err_set(err, TERN_ENOMEM, "cannot reserve %zu bytes of address space", bytes);
    }
    g->mapped = all;
    g->mem.bytes = bytes;
    g->mem.from = CPU_RESERVED;
    if (open_count)
        protect(PROT_READ | PROT_WRITE);
    (void)pthread_mutex_unlock(&lock);
    if (contents && bytes) {
        enter();
        memcpy(g->mem.p, contents, bytes);
        leave();
    }
    *out = &g->mem;
    return 0;
}

static void free_memory(struct tern_dev_mem *m)
{
    struct guarded *g = (struct guarded *)m;
    (void)pthread_mutex_lock(&lock);
    if (g->mapped <= SMALL) {
        CHECK(madvise(m->p, g->mapped, MADV_DONTNEED) == 0, "madvise failed");
        g->next = free_ones;
        free_ones = g;
    } else {
        struct guarded **at = &large;
        while (*at && *at != g)
            at = &(*at)->next;
        CHECK(*at, "memory is released that is not there");
        *at = g->next;
        (void)munmap(m->p, g->mapped);
        free(g);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- what is written down ---------------------------------------------------------------------------------------- */

enum kind {
    COPY_IN,
    COPY_OUT,
    COPY,
    ZERO,
    DISCARD,
    WEIGHT_OUT,
    BEGIN,
    END,
    EMBED,
    NORM,
    ADD,
    SCALE,
    MATMUL,
    ROPE,
    HEADS,
    COPY_HEADS,
    APPEND,
    ATTENTION,
    RECODE,
    GLU,
    NETWORK,
    SOFTCAP,
    GATE,
    STACK,
    ROUTE,
    EXPERTS,
    DELTA,
    CLAMP,
    GRID,
    COMPRESS,
    CHOOSE,
    SPARSE,
    HYPER_READ,
    HYPER_WRITE,
    PICK,
    BEST
};

struct call {
    enum kind kind;
    struct tern_dev_rows r[3];
    struct tern_dev_vec v[4];
    struct tern_dev_weight w[8];
    struct tern_dev_mem *to;
    const struct tern_dev_mem *from;
    void *host; /* COPY_IN: owned */
    const void *lent;
    size_t z[3];
    int i[4];
    float f;
    union {
        struct tern_dev_step step;
        struct tern_matmul matmul[8];
        struct tern_dev_network network;
        struct tern_heads heads;
        struct tern_attn_shape shape;
        struct tern_stack stack;
        struct tern_route route;
        struct tern_experts experts;
        struct tern_delta delta;
        struct tern_compress compress;
        struct tern_choose choose; /* and of SPARSE what was chosen */
        struct tern_hyper hyper;
        struct tern_best best;
    };
    struct tern_delta_io io;
    struct tern_sparse sparse;
};

struct guard {
    struct tern_dev dev;
    struct tern_dev *cpu;
    struct call *calls;
    size_t n, cap;
    bool in_step;
};

static struct call *note(struct tern_dev *d, enum kind kind)
{
    struct guard *g = (struct guard *)d;
    const bool outside = kind <= BEGIN;
    CHECK(outside || g->in_step, "an operation of a step comes outside of one");
    if (g->n == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 256;
        g->calls = realloc(g->calls, g->cap * sizeof *g->calls);
        CHECK(g->calls, "out of memory");
    }
    struct call *c = &g->calls[g->n++];
    memset(c, 0, sizeof *c);
    c->kind = kind;
    return c;
}

static void run_memory(struct tern_dev *d, struct call *c)
{
    switch (c->kind) {
    case COPY_IN:
        tern_cpu_copy_in(d, c->to, c->z[0], c->host, c->z[1]);
        free(c->host);
        break;
    case COPY_OUT:
        tern_cpu_copy_out(d, c->host, c->from, c->z[0], c->z[1]);
        break;
    case COPY:
        tern_cpu_copy(d, c->to, c->z[0], c->from, c->z[1], c->z[2]);
        break;
    case ZERO:
        tern_cpu_zero(d, c->to, c->z[0], c->z[1]);
        break;
    default:
        tern_cpu_discard(d, c->to, c->z[0], c->z[1]);
    }
}

static void run_cached(struct tern_dev *d, struct call *c)
{
    switch (c->kind) {
    case BEGIN:
        tern_cpu_begin(d, &c->step);
        break;
    case END:
        tern_cpu_end(d);
        break;
    case APPEND:
        tern_cpu_append(d, c->i[0], c->r[0], c->r[1]);
        break;
    case ATTENTION:
        tern_cpu_attention(d, &c->shape, c->r[0], c->r[1]);
        break;
    case RECODE:
        tern_cpu_recode(d, c->i[0], c->lent, c->r[0], c->r[1]);
        break;
    default:
        tern_cpu_delta(d, c->i[0], &c->delta, &c->io, c->i[1]);
    }
}

static void run_weights(struct tern_dev *d, struct call *c)
{
    switch (c->kind) {
    case WEIGHT_OUT:
        tern_cpu_weight_out(d, c->host, &c->w[0], c->i[0], c->i[1], c->i[2]);
        break;
    case EMBED:
        tern_cpu_embed(d, c->r[0], &c->w[0], c->i[0], c->f);
        break;
    case MATMUL:
        for (int i = 0; i < c->i[0]; i++)
            c->matmul[i].w = &c->w[i];
        tern_cpu_matmul(d, c->matmul, c->i[0], c->r[0], c->i[1], c->i[2]);
        break;
    case NETWORK:
        c->network.gate = &c->w[0];
        c->network.up = &c->w[1];
        c->network.down = &c->w[2];
        tern_cpu_network(d, &c->network, c->r[0], c->r[1], c->i[0], c->i[1]);
        break;
    case STACK:
        c->stack.w = &c->w[0];
        tern_cpu_stack(d, &c->stack, c->i[0], c->i[1]);
        break;
    case ROUTE:
        tern_cpu_route(d, &c->route, c->r[0], c->v[0], c->v[1], c->i[0]);
        break;
    default:
        c->experts.gate = &c->w[0];
        c->experts.up = &c->w[1];
        c->experts.down = &c->w[2];
        tern_cpu_experts(d, &c->experts, c->r[0], c->r[1], c->v[0], c->v[1], c->i[0], c->i[1]);
    }
}

static void run_rows(struct tern_dev *d, struct call *c)
{
    switch (c->kind) {
    case NORM:
        tern_cpu_norm(d, c->r[0], c->r[1], c->v[0], c->f, c->i[0]);
        break;
    case ADD:
        tern_cpu_add(d, c->r[0], c->r[1], c->r[2], c->i[0]);
        break;
    case SCALE:
        tern_cpu_scale(d, c->r[0], c->i[0], c->f);
        break;
    case ROPE:
        tern_cpu_rope_table(d, c->v[0], c->v[1], c->v[2], c->i[0], c->f, c->i[1]);
        break;
    case HEADS:
        tern_cpu_heads(d, &c->heads, c->i[0]);
        break;
    case COPY_HEADS:
        tern_cpu_copy_heads(d, c->r[0], c->z[0], c->r[1], c->z[1], c->i[0], c->i[1], c->i[2]);
        break;
    case GLU:
        tern_cpu_glu(d, c->r[0], c->r[1], c->i[0], (enum tern_gate)c->i[1]);
        break;
    case SOFTCAP:
        tern_cpu_softcap(d, c->r[0], c->i[0], c->f);
        break;
    case GATE:
        tern_cpu_gate(d, c->r[0], c->r[1], c->i[0]);
        break;
    case BEST:
        tern_cpu_best(d, &c->best, c->i[0]);
        break;
    default:
        tern_cpu_pick(d, c->r[0], c->r[1], c->lent, c->i[0]);
    }
}

/* Operations of few models. */
static void run_few(struct tern_dev *d, struct call *c)
{
    switch (c->kind) {
    case CLAMP:
        tern_cpu_clamp(d, c->r[0], c->r[1], c->i[0], c->f);
        break;
    case GRID:
        tern_cpu_grid(d, c->r[0], (enum tern_grid)c->i[0], c->i[1], c->i[2]);
        break;
    case COMPRESS:
        tern_cpu_compress(d, &c->compress, c->r[0], c->r[1]);
        break;
    case CHOOSE:
        tern_cpu_choose(d, &c->choose, c->r[0], c->r[1], c->i[0]);
        break;
    case SPARSE:
        c->sparse.chosen = c->sparse.chosen ? &c->choose : NULL;
        tern_cpu_sparse(d, &c->sparse, c->r[0], c->r[1], c->i[0]);
        break;
    case HYPER_READ:
        tern_cpu_hyper_read(d, &c->hyper, c->r[0], c->r[1], c->r[2], c->i[0]);
        break;
    default:
        tern_cpu_hyper_write(d, &c->hyper, c->r[0], c->r[1], c->r[2], c->i[0]);
    }
}

static void guard_sync(struct tern_dev *dev)
{
    struct guard *g = (struct guard *)dev;
    if (!g->n)
        return;
    enter();
    for (size_t i = 0; i < g->n; i++) {
        struct call *c = &g->calls[i];
        switch (c->kind) {
        case COPY_IN:
        case COPY_OUT:
        case COPY:
        case ZERO:
        case DISCARD:
            run_memory(g->cpu, c);
            break;
        case BEGIN:
        case END:
        case APPEND:
        case ATTENTION:
        case RECODE:
        case DELTA:
            run_cached(g->cpu, c);
            break;
        case CLAMP:
        case GRID:
        case COMPRESS:
        case CHOOSE:
        case SPARSE:
        case HYPER_READ:
        case HYPER_WRITE:
            run_few(g->cpu, c);
            break;
        case WEIGHT_OUT:
        case EMBED:
        case MATMUL:
        case NETWORK:
        case STACK:
        case ROUTE:
        case EXPERTS:
            run_weights(g->cpu, c);
            break;
        default:
            run_rows(g->cpu, c);
        }
    }
    g->n = 0;
    leave();
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const struct tern_dev_ops guard_ops;

static int guard_open(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, tern_error *err)
{
    struct guard *g = calloc(1, sizeof *g);
    CHECK(g, "out of memory");
    g->dev.ops = self;
    int rc = tern_dev_cpu.open(&g->cpu, &tern_dev_cpu, pool, err);
    *out = rc < 0 ? NULL : &g->dev;
    if (rc < 0)
        free(g);
    return rc;
}

static void guard_close(struct tern_dev *d)
{
    struct guard *g = (struct guard *)d;
    guard_sync(d);
    tern_dev_cpu.close(g->cpu);
    free(g->calls);
    free(g);
}

static int guard_prepare(struct tern_dev *d, const struct tern_dev_limits *limits, tern_error *err)
{
    return tern_dev_cpu.prepare(((struct guard *)d)->cpu, limits, err);
}

static size_t guard_scratch_bytes(const struct tern_dev *d)
{
    return tern_dev_cpu.scratch_bytes(((const struct guard *)d)->cpu);
}

static int guard_reserve(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err)
{
    (void)d, (void)lazy;
    return new_memory(out, bytes, NULL, err);
}

static int guard_adopt(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err)
{
    (void)d;
    return new_memory(out, bytes, host, err);
}

static void guard_release(struct tern_dev *d, struct tern_dev_mem *m)
{
    guard_sync(d);
    if (m)
        free_memory(m);
}

static void guard_copy_in(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes)
{
    struct call *c = note(d, COPY_IN);
    c->to = to;
    c->z[0] = at;
    c->z[1] = bytes;
    c->host = malloc(bytes + 1);
    CHECK(c->host, "out of memory");
    if (bytes)
        memcpy(c->host, host, bytes);
}

static void guard_copy_out(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes)
{
    struct call *c = note(d, COPY_OUT);
    c->from = from;
    c->z[0] = at;
    c->z[1] = bytes;
    c->host = host;
    memset(host, 0xA5, bytes);
}

static void guard_copy(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                       size_t from_at, size_t bytes)
{
    struct call *c = note(d, COPY);
    c->to = to;
    c->from = from;
    c->z[0] = to_at;
    c->z[1] = from_at;
    c->z[2] = bytes;
}

static void guard_zero(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    struct call *c = note(d, ZERO);
    c->to = m;
    c->z[0] = at;
    c->z[1] = bytes;
}

static void guard_discard(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    struct call *c = note(d, DISCARD);
    c->to = m;
    c->z[0] = at;
    c->z[1] = bytes;
}

static int guard_weight_load(struct tern_dev *d, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                             tern_error *err)
{
    guard_sync(d);
    enter();
    int rc = tern_cpu_weight_load(((struct guard *)d)->cpu, w, from, err);
    leave();
    return rc;
}

static void guard_weight_drop(struct tern_dev *d, struct tern_dev_weight *w)
{
    guard_sync(d);
    tern_cpu_weight_drop(((struct guard *)d)->cpu, w);
}

static void guard_weight_out(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row,
                             int n)
{
    struct call *c = note(d, WEIGHT_OUT);
    c->host = host;
    c->w[0] = *w;
    c->i[0] = matrix;
    c->i[1] = row;
    c->i[2] = n;
    memset(host, 0xA5, (size_t)n * (size_t)w->k * sizeof *host);
}

static void guard_begin(struct tern_dev *d, const struct tern_dev_step *s)
{
    struct guard *g = (struct guard *)d;
    CHECK(!g->in_step, "a step begins within another");
    note(d, BEGIN)->step = *s;
    g->in_step = true;
}

static void guard_end(struct tern_dev *d)
{
    (void)note(d, END);
    ((struct guard *)d)->in_step = false;
}

static void guard_embed(struct tern_dev *d, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                        float scale)
{
    struct call *c = note(d, EMBED);
    c->r[0] = x;
    c->w[0] = *table;
    c->i[0] = n_rows;
    c->f = scale;
}

static void guard_norm(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w,
                       float eps, int n_rows)
{
    struct call *c = note(d, NORM);
    c->r[0] = y;
    c->r[1] = x;
    c->v[0] = w;
    c->f = eps;
    c->i[0] = n_rows;
}

static void guard_add(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                      int n_rows)
{
    struct call *c = note(d, ADD);
    c->r[0] = y;
    c->r[1] = a;
    c->r[2] = b;
    c->i[0] = n_rows;
}

static void guard_scale(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float factor)
{
    struct call *c = note(d, SCALE);
    c->r[0] = x;
    c->i[0] = n_rows;
    c->f = factor;
}

static void guard_matmul(struct tern_dev *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                         int n_wide)
{
    struct call *c = note(d, MATMUL);
    CHECK(n_m >= 1 && n_m <= 8, "too many products in one call");
    for (int i = 0; i < n_m; i++) {
        c->matmul[i] = m[i];
        c->w[i] = *m[i].w;
    }
    c->r[0] = x;
    c->i[0] = n_m;
    c->i[1] = n_rows;
    c->i[2] = n_wide;
}

static void guard_rope_table(struct tern_dev *d, struct tern_dev_vec cos, struct tern_dev_vec sin,
                             struct tern_dev_vec freq, int n_rot, float magnitude, int n_rows)
{
    struct call *c = note(d, ROPE);
    c->v[0] = cos;
    c->v[1] = sin;
    c->v[2] = freq;
    c->i[0] = n_rot;
    c->i[1] = n_rows;
    c->f = magnitude;
}

static void guard_heads(struct tern_dev *d, const struct tern_heads *h, int n_rows)
{
    struct call *c = note(d, HEADS);
    c->heads = *h;
    c->i[0] = n_rows;
}

static void guard_copy_heads(struct tern_dev *d, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                             size_t from_head, int n_heads, int n, int n_rows)
{
    struct call *c = note(d, COPY_HEADS);
    c->r[0] = to;
    c->r[1] = from;
    c->z[0] = to_head;
    c->z[1] = from_head;
    c->i[0] = n_heads;
    c->i[1] = n;
    c->i[2] = n_rows;
}

static void guard_append(struct tern_dev *d, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    struct call *c = note(d, APPEND);
    c->i[0] = layer;
    c->r[0] = k;
    c->r[1] = v;
}

static void guard_attention(struct tern_dev *d, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                            struct tern_dev_rows out)
{
    struct call *c = note(d, ATTENTION);
    c->shape = *shape;
    c->r[0] = q;
    c->r[1] = out;
}

static void guard_recode(struct tern_dev *d, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                         struct tern_dev_rows v)
{
    struct call *c = note(d, RECODE);
    c->i[0] = layer;
    c->lent = from;
    c->r[0] = k;
    c->r[1] = v;
}

static void guard_glu(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                      enum tern_gate act)
{
    struct call *c = note(d, GLU);
    c->r[0] = gate;
    c->r[1] = up;
    c->i[0] = n_rows;
    c->i[1] = (int)act;
}

static void guard_network(struct tern_dev *d, const struct tern_dev_network *n, struct tern_dev_rows y,
                          struct tern_dev_rows x, int n_rows, int n_wide)
{
    struct call *c = note(d, NETWORK);
    c->network = *n;
    c->w[0] = *n->gate;
    c->w[1] = *n->up;
    c->w[2] = *n->down;
    c->r[0] = y;
    c->r[1] = x;
    c->i[0] = n_rows;
    c->i[1] = n_wide;
}

static void guard_softcap(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float cap)
{
    struct call *c = note(d, SOFTCAP);
    c->r[0] = x;
    c->i[0] = n_rows;
    c->f = cap;
}

static void guard_gate(struct tern_dev *d, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows)
{
    struct call *c = note(d, GATE);
    c->r[0] = x;
    c->r[1] = g;
    c->i[0] = n_rows;
}

static void guard_stack(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide)
{
    struct call *c = note(d, STACK);
    c->stack = *s;
    c->w[0] = *s->w;
    c->i[0] = n_rows;
    c->i[1] = n_wide;
}

static void guard_route(struct tern_dev *d, const struct tern_route *r, struct tern_dev_rows logits,
                        struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows)
{
    struct call *c = note(d, ROUTE);
    c->route = *r;
    c->r[0] = logits;
    c->v[0] = ids;
    c->v[1] = weights;
    c->i[0] = n_rows;
}

static void guard_experts(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y,
                          struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                          int n_wide)
{
    struct call *c = note(d, EXPERTS);
    c->experts = *e;
    c->w[0] = *e->gate;
    c->w[1] = *e->up;
    c->w[2] = *e->down;
    c->r[0] = y;
    c->r[1] = x;
    c->v[0] = ids;
    c->v[1] = weights;
    c->i[0] = n_rows;
    c->i[1] = n_wide;
}

static void guard_delta(struct tern_dev *d, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                        int n_rows)
{
    struct call *c = note(d, DELTA);
    c->delta = *l;
    c->io = *io;
    c->i[0] = layer;
    c->i[1] = n_rows;
}

static void guard_clamp(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit)
{
    struct call *c = note(d, CLAMP);
    c->r[0] = gate;
    c->r[1] = up;
    c->i[0] = n_rows;
    c->f = limit;
}

static void guard_grid(struct tern_dev *d, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows)
{
    struct call *c = note(d, GRID);
    c->r[0] = x;
    c->i[0] = (int)grid;
    c->i[1] = n_heads;
    c->i[2] = n_rows;
}

static void guard_compress(struct tern_dev *d, const struct tern_compress *compress, struct tern_dev_rows x,
                           struct tern_dev_rows gate)
{
    struct call *c = note(d, COMPRESS);
    c->compress = *compress;
    c->r[0] = x;
    c->r[1] = gate;
}

static void guard_choose(struct tern_dev *d, const struct tern_choose *choose, struct tern_dev_rows q,
                         struct tern_dev_rows w, int n_rows)
{
    struct call *c = note(d, CHOOSE);
    c->choose = *choose;
    c->r[0] = q;
    c->r[1] = w;
    c->i[0] = n_rows;
}

static void guard_sparse(struct tern_dev *d, const struct tern_sparse *sparse, struct tern_dev_rows q,
                         struct tern_dev_rows out, int n_rows)
{
    struct call *c = note(d, SPARSE);
    c->sparse = *sparse;
    if (sparse->chosen)
        c->choose = *sparse->chosen;
    c->r[0] = q;
    c->r[1] = out;
    c->i[0] = n_rows;
}

static void note_hyper(struct tern_dev *d, enum kind kind, const struct tern_hyper *h, struct tern_dev_rows a,
                       struct tern_dev_rows b, struct tern_dev_rows x, int n_rows)
{
    struct call *c = note(d, kind);
    c->hyper = *h;
    c->r[0] = a;
    c->r[1] = b;
    c->r[2] = x;
    c->i[0] = n_rows;
}

static void guard_hyper_read(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows m,
                             struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows)
{
    note_hyper(d, HYPER_READ, h, m, streams, x, n_rows);
}

static void guard_hyper_write(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows streams,
                              struct tern_dev_rows m, struct tern_dev_rows t, int n_rows)
{
    note_hyper(d, HYPER_WRITE, h, streams, m, t, n_rows);
}

static void guard_pick(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n)
{
    struct call *c = note(d, PICK);
    c->lent = rows;
    c->i[0] = n;
    c->r[0] = y;
    c->r[1] = x;
}

static void guard_best(struct tern_dev *d, const struct tern_best *b, int n_rows)
{
    struct call *c = note(d, BEST);
    c->best = *b;
    c->i[0] = n_rows;
}

static const struct tern_dev_ops guard_ops = {
    .name = "guard",
    .kv = "t4",
    .decodes = true,
    .firsts = true,
    .decode16 = true,
    .prompt8 = true,
    .apart = true,
    .open = guard_open,
    .close = guard_close,
    .prepare = guard_prepare,
    .scratch_bytes = guard_scratch_bytes,
    .sync = guard_sync,
    .reserve = guard_reserve,
    .release = guard_release,
    .adopt = guard_adopt,
    .copy_in = guard_copy_in,
    .copy_out = guard_copy_out,
    .copy = guard_copy,
    .zero = guard_zero,
    .discard = guard_discard,
    .weight_plan = tern_cpu_weight_plan,
    .weight_bytes = tern_cpu_weight_bytes,
    .weight_about = tern_cpu_weight_about,
    .weight_place = tern_cpu_weight_place,
    .weight_load = guard_weight_load,
    .weight_drop = guard_weight_drop,
    .weight_out = guard_weight_out,
    .begin = guard_begin,
    .end = guard_end,
    .embed = guard_embed,
    .norm = guard_norm,
    .add = guard_add,
    .scale = guard_scale,
    .matmul = guard_matmul,
    .rope_table = guard_rope_table,
    .heads = guard_heads,
    .copy_heads = guard_copy_heads,
    .append = guard_append,
    .attention = guard_attention,
    .recode = guard_recode,
    .glu = guard_glu,
    .network = guard_network,
    .softcap = guard_softcap,
    .gate = guard_gate,
    .stack = guard_stack,
    .route = guard_route,
    .experts = guard_experts,
    .delta = guard_delta,
    .clamp = guard_clamp,
    .grid = guard_grid,
    .compress = guard_compress,
    .choose = guard_choose,
    .sparse = guard_sparse,
    .hyper_read = guard_hyper_read,
    .hyper_write = guard_hyper_write,
    .pick = guard_pick,
    .best = guard_best,
};

static const struct tern_dev_ops *device_called(const char *name)
{
    if (strcmp(name, "guard") == 0)
        return &guard_ops;
    for (int i = 0; tern_dev_at(i); i++)
        if (strcmp(tern_dev_at(i)->name, name) == 0)
            return tern_dev_at(i);
    return NULL;
}

/* Tests run on the CPU, whatever else there is, unless the environment says otherwise. */
static void __attribute__((constructor)) register_guard(void)
{
    const char *name = getenv("TERN_TEST_DEVICE");
    const bool split = name && strncmp(name, "split-", 6) == 0, parallel = name && strncmp(name, "parallel-", 9) == 0;
    const struct tern_dev_ops *ops = device_called(!name ? "cpu" : split ? name + 6 : parallel ? name + 9 : name);
    CHECK(ops, "TERN_TEST_DEVICE names no device of this build");
    if (parallel) {
        const struct tern_dev_ops *of[3] = {ops, ops->card ? ops->card(1) : ops, ops};
        CHECK(tern_dev_parallel_new(&ops, of, ops->card ? 2 : 3, NULL) == 0, "out of memory");
    }
    if (split)
        CHECK(tern_dev_split_new(&ops, &tern_dev_cpu, ops, 1, NULL) == 0, "out of memory");
    if (ops != tern_dev_at(0))
        tern_dev_add_first(ops);
    if (name)
        tern_dev_try_one();
}
