#include "model/resident.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

enum { GATE, UP, DOWN, N_STACKS };

/* The experts of a layer: matrix e of a stack is the bytes [at + e * one, at + (e + 1) * one) of the file. */
struct resident_layer {
    int n, n_active; /* 0: the layer has none */
    int first;       /* unit of expert 0 */
    struct {
        size_t at, one;
    } stacks[N_STACKS];
    size_t bytes; /* of one expert */
    float *table; /* [tokens][n_active] where tokens choose; else NULL */
};

/* An expert of a layer. */
struct unit {
    float use; /* how often a step of the layer takes it, of late: 0..1 */
    int held;  /* by steps that compute with it */
    enum { ABSENT, ASKED, PRESENT } state;
    bool soon; /* the step in hand comes to it */
};

struct tern_resident {
    const uint8_t *map;
    size_t map_bytes, page;
    int fd;
    char *path;
    pthread_mutex_t lock; /* of all that follows */
    int n_layers, n_units;
    struct resident_layer *layers;
    struct unit *units;
    struct tern_resident_stats stats;
};

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct range {
    size_t from, to; /* bytes of the file, whole pages */
};

/* The pages that hold any of the expert's bytes. */
static struct range outer(const struct tern_resident *r, const struct resident_layer *l, int stack, int e)
{
    const size_t at = l->stacks[stack].at + (size_t)e * l->stacks[stack].one, end = at + l->stacks[stack].one;
    return (struct range){at / r->page * r->page, tern_round_up(end, r->page)};
}

/* The pages that hold nothing else. */
static struct range inner(const struct tern_resident *r, const struct resident_layer *l, int stack, int e)
{
    const size_t at = l->stacks[stack].at + (size_t)e * l->stacks[stack].one, end = at + l->stacks[stack].one;
    const struct range x = {tern_round_up(at, r->page), end / r->page * r->page};
    return x.from < x.to ? x : (struct range){0, 0};
}

/* How one is advised; 0 where the system does not know the advice, which is then only slower. */
static int advise(const struct tern_resident *r, struct range x, int advice)
{
    int rc;
    do
        rc = x.from < x.to ? madvise((void *)(uintptr_t)(r->map + x.from), x.to - x.from, advice) : 0;
    while (rc < 0 && (errno == EINTR || errno == EAGAIN));
    return rc < 0 && errno != EINVAL ? errno : 0;
}

/* Out of this process, then out of the system's cache, where other processes do not map it. */
static void forget_range(const struct tern_resident *r, struct range x)
{
    (void)advise(r, x, MADV_DONTNEED);
    if (x.from < x.to)
        (void)posix_fadvise(r->fd, (off_t)x.from, (off_t)(x.to - x.from), POSIX_FADV_DONTNEED);
}

static void forget(const struct tern_resident *r, const struct resident_layer *l, int e)
{
    for (int s = 0; s < N_STACKS; s++)
        forget_range(r, inner(r, l, s, e));
}

#define AROUND ((size_t)64 << 10) /* what the system maps around a page that is touched, if it has it */

/* What reading expert e has brought back of experts beside it that are not in memory. */
static void forget_beside(const struct tern_resident *r, const struct resident_layer *l, int e)
{
    for (int s = 0; s < N_STACKS; s++) {
        const int many = (int)(AROUND / l->stacks[s].one) + 1;
        for (int i = e - many < 0 ? 0 : e - many; i <= e + many && i < l->n; i++)
            if (r->units[l->first + i].state == ABSENT)
                (void)advise(r, inner(r, l, s, i), MADV_DONTNEED);
    }
}

/* ---- which ones stay --------------------------------------------------------------------------------------------- */

/* In how many steps a step of layer `at` expects this one next.  It is the layer's turn once in a step, and takes it so
 * often. */
static double expected(const struct tern_resident *r, int at, int layer, const struct unit *u)
{
    const int ahead = (layer - at + r->n_layers) % r->n_layers;
    if (u->soon)
        return 0;
    return (double)(ahead ? ahead : r->n_layers) / r->n_layers + 1 / ((double)u->use + 1e-6);
}

/* Gives back the one that is expected last; false where all are held, or expected in this step and it may not be. */
static bool give_back(struct tern_resident *r, int at, bool soon_too)
{
    double most = soon_too ? -1 : 0;
    int layer = -1, expert = 0;
    for (int i = 0; i < r->n_layers; i++)
        for (int e = 0; e < r->layers[i].n; e++) {
            const struct unit *u = &r->units[r->layers[i].first + e];
            if (u->state == ABSENT || u->held)
                continue;
            const double x = expected(r, at, i, u);
            if (x > most) {
                most = x;
                layer = i;
                expert = e;
            }
        }
    if (layer < 0)
        return false;
    struct unit *u = &r->units[r->layers[layer].first + expert];
    forget(r, &r->layers[layer], expert);
    u->state = ABSENT;
    u->soon = false;
    r->stats.resident -= r->layers[layer].bytes;
    return true;
}

/* Asks for what is chosen and missing.  ahead: in its layer's step it counts as found. */
static void ask(struct tern_resident *r, int at, int layer, const bool *chosen, bool ahead)
{
    const struct resident_layer *l = &r->layers[layer];
    for (int e = 0; e < l->n; e++) {
        struct unit *u = &r->units[l->first + e];
        if (!chosen[e] || u->state != ABSENT)
            continue;
        bool room = true;
        while (r->stats.resident + l->bytes > r->stats.limit && room)
            room = give_back(r, at, !ahead);
        if (!room && ahead)
            return;
        u->state = ASKED;
        u->soon = ahead;
        r->stats.resident += l->bytes;
        if (r->stats.resident > r->stats.most)
            r->stats.most = r->stats.resident;
        r->stats.read++;
        r->stats.ahead += ahead;
        r->stats.read_bytes += l->bytes;
        for (int s = 0; s < N_STACKS; s++)
            (void)advise(r, outer(r, l, s, e), MADV_WILLNEED);
    }
}

static void mark(bool chosen[TERN_MAX_EXPERTS], const int32_t *ids, int n)
{
    memset(chosen, 0, TERN_MAX_EXPERTS * sizeof *chosen);
    for (int i = 0; i < n; i++)
        chosen[ids[i]] = true;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

void tern_resident_begin(struct tern_resident *r, const struct tern_row *rows, int n_rows)
{
    bool chosen[TERN_MAX_EXPERTS];
    (void)pthread_mutex_lock(&r->lock);
    r->stats.rows += (uint64_t)n_rows;
    for (int i = 0; i < r->n_layers; i++) {
        const struct resident_layer *l = &r->layers[i];
        if (!l->table)
            continue;
        memset(chosen, 0, sizeof chosen);
        for (int row = 0; row < n_rows; row++)
            for (int k = 0; k < l->n_active; k++)
                chosen[(int)l->table[(size_t)rows[row].token * (size_t)l->n_active + (size_t)k]] = true;
        for (int e = 0; e < l->n; e++) /* what is there already shall stay */
            r->units[l->first + e].soon = chosen[e];
        ask(r, r->n_layers - 1, i, chosen, true);
    }
    (void)pthread_mutex_unlock(&r->lock);
}

/* A file that was made shorter would kill the process at the first page that is gone. */
static int check_file(const struct tern_resident *r, tern_error *err)
{
    struct stat st;
    if (fstat(r->fd, &st) == 0 && (size_t)st.st_size == r->map_bytes)
        return 0;
    return tern_err_set(err, TERN_EIO,
                        "%s: the file of packed weights had %zu bytes when it was mapped and has another size now; "
                        "nothing can be computed with it: open the model again",
                        tern_path_show(r->path), r->map_bytes);
}

/* Half of what is remembered of how often an expert is used is from the last so many steps (times ln 2). */
#define REMEMBERED 64

int tern_resident_want(struct tern_resident *r, int layer, const int32_t *ids, int n, tern_error *err)
{
    bool chosen[TERN_MAX_EXPERTS];
    struct resident_layer *l = &r->layers[layer];
    int rc = check_file(r, err);
    if (rc < 0)
        return rc;
    mark(chosen, ids, n);
    (void)pthread_mutex_lock(&r->lock);
    for (int e = 0; e < l->n; e++) {
        struct unit *u = &r->units[l->first + e];
        u->use += ((float)chosen[e] - u->use) / REMEMBERED;
        u->soon = false;
        u->held += chosen[e];
        r->stats.used += chosen[e];
        r->stats.found += chosen[e] && u->state != ABSENT;
    }
    ask(r, layer, layer, chosen, false);
    (void)pthread_mutex_unlock(&r->lock);
    return 0;
}

static int read_unit(const struct tern_resident *r, const struct resident_layer *l, int e, tern_error *err)
{
    for (int s = 0; s < N_STACKS; s++) {
        const struct range x = outer(r, l, s, e);
        const int why = advise(r, x, MADV_POPULATE_READ);
        if (why)
            return tern_err_set(err, TERN_EIO, "%s: the experts at byte %zu cannot be read (%s); open the model again",
                                tern_path_show(r->path), x.from, strerror(why == EFAULT ? EIO : why));
    }
    return 0;
}

int tern_resident_wait(struct tern_resident *r, int layer, const int32_t *ids, int n, tern_error *err)
{
    bool chosen[TERN_MAX_EXPERTS];
    const struct resident_layer *l = &r->layers[layer];
    const double start = now();
    int rc = 0;
    mark(chosen, ids, n);
    for (int e = 0; e < l->n && rc == 0; e++) {
        struct unit *u = &r->units[l->first + e];
        (void)pthread_mutex_lock(&r->lock);
        const bool asked = chosen[e] && u->state == ASKED;
        (void)pthread_mutex_unlock(&r->lock);
        if (!asked)
            continue;
        rc = read_unit(r, l, e, err); /* it is held: nobody gives it back meanwhile */
        (void)pthread_mutex_lock(&r->lock);
        if (rc == 0)
            u->state = PRESENT;
        forget_beside(r, l, e);
        (void)pthread_mutex_unlock(&r->lock);
    }
    (void)pthread_mutex_lock(&r->lock);
    r->stats.wait_s += now() - start;
    (void)pthread_mutex_unlock(&r->lock);
    return rc;
}

void tern_resident_done(struct tern_resident *r, int layer, const int32_t *ids, int n)
{
    bool chosen[TERN_MAX_EXPERTS];
    const struct resident_layer *l = &r->layers[layer];
    mark(chosen, ids, n);
    (void)pthread_mutex_lock(&r->lock);
    for (int e = 0; e < l->n; e++)
        r->units[l->first + e].held -= chosen[e];
    (void)pthread_mutex_unlock(&r->lock);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

bool tern_resident_covers(const struct tern_weight_place *p)
{
    return !p->vector && p->dst->stacked == TERN_PER_EXPERT;
}

size_t tern_resident_bytes(const struct tern_weight_block *b)
{
    size_t bytes = 0;
    for (size_t i = 0; i < b->n; i++)
        bytes += tern_resident_covers(&b->places[i]) ? b->places[i].bytes : 0;
    return bytes;
}

/* A stack's place, at its first matrix. */
static void add_stack(struct tern_resident *r, const struct tern_net *net, const struct tern_weight_place *p,
                      size_t data_at)
{
    static const int slots[N_STACKS] = {TERN_SLOT_EXPERT_GATE, TERN_SLOT_EXPERT_UP, TERN_SLOT_EXPERT_DOWN};
    const ptrdiff_t at = p->dst - net->layers[0];
    struct resident_layer *l = &r->layers[at / TERN_N_SLOTS];
    for (int s = 0; s < N_STACKS; s++)
        if (slots[s] == at % TERN_N_SLOTS) {
            l->stacks[s].at = data_at + p->offset;
            l->stacks[s].one = net->dev->ops->weight_bytes(&p->dst->mat) / (size_t)p->dst->mat.stack;
            l->bytes += l->stacks[s].one;
        }
}

static int fill(struct tern_resident *r, const struct tern_net *net, const struct tern_weight_block *b, size_t data_at,
                tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < b->n; i++)
        if (tern_resident_covers(&b->places[i]) && b->places[i].matrix == 0)
            add_stack(r, net, &b->places[i], data_at);
    for (int i = 0; i < r->n_layers; i++) {
        struct resident_layer *l = &r->layers[i];
        const struct tern_layer_desc *d = &net->desc.layers[i];
        const struct tern_dev_vec table = net->layers[i][TERN_SLOT_ROUTER_TABLE].vec;
        if (!l->bytes)
            continue;
        l->n = d->experts.n;
        l->n_active = d->experts.n_active;
        l->first = r->n_units;
        r->n_units += l->n;
        r->stats.bytes += (size_t)l->n * l->bytes;
        if (table.mem)
            TERN_TRY(tern_net_vector(&l->table, net, table, (size_t)net->desc.n_vocab * (size_t)l->n_active, err));
    }
    TERN_TRY(tern_alloc(&r->units, (size_t)r->n_units, sizeof *r->units, err));
out:
    return rc;
}

/* Nothing is in memory, but where there is room for all. */
static void start(struct tern_resident *r)
{
    const bool all = r->stats.bytes <= r->stats.limit;
    if (!all) /* pages that were just written leave the system's cache only when they are on the disk */
        (void)fdatasync(r->fd);
    for (int i = 0; i < r->n_layers; i++) {
        const struct resident_layer *l = &r->layers[i];
        for (int e = 0; e < l->n; e++) {
            r->units[l->first + e].use = (float)l->n_active / (float)l->n;
            r->units[l->first + e].state = all ? PRESENT : ABSENT;
        }
        /* Stack by stack: the check of all bytes brought them in in larger pieces than an expert. */
        for (int s = 0; s < N_STACKS && l->n && !all; s++)
            forget_range(r, (struct range){tern_round_up(l->stacks[s].at, r->page),
                                           (l->stacks[s].at + (size_t)l->n * l->stacks[s].one) / r->page * r->page});
    }
    r->stats.resident = r->stats.most = all ? r->stats.bytes : 0;
}

/* A large page would bring an expert's neighbours back with it. */
static void keep_pages_small(const struct tern_resident *r)
{
    for (int i = 0; i < r->n_layers; i++)
        for (int s = 0; s < N_STACKS && r->layers[i].n; s++) {
            const struct range first = outer(r, &r->layers[i], s, 0);
            const struct range last = outer(r, &r->layers[i], s, r->layers[i].n - 1);
            (void)advise(r, (struct range){first.from, last.to}, MADV_NOHUGEPAGE);
        }
}

static int open_file(struct tern_resident *r, const struct tern_map *m, const char *path, tern_error *err)
{
    struct stat st;
    r->path = strdup(path);
    if (!r->path)
        return tern_err_set(err, TERN_ENOMEM, "out of memory");
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd < 0 || fstat(r->fd, &st) < 0)
        return tern_err_set(err, TERN_EIO, "%s: cannot open the file: %s", tern_path_show(path), strerror(errno));
    if (st.st_ino != m->id.inode || st.st_dev != m->device)
        return tern_err_set(err, TERN_EIO, "%s: the file was replaced while the model was opened",
                            tern_path_show(path));
    return check_file(r, err);
}

int tern_resident_new(struct tern_resident **out, const struct tern_net *net, const struct tern_weight_block *b,
                      const uint8_t *data, const char *path, size_t limit, tern_error *err)
{
    int rc = 0;
    struct tern_resident *r;
    *out = NULL;
    TERN_TRY(tern_alloc(&r, 1, sizeof *r, err));
    *r = (struct tern_resident){.map = net->packed.p,
                                .map_bytes = net->packed.n,
                                .page = (size_t)sysconf(_SC_PAGESIZE),
                                .fd = -1,
                                .n_layers = net->desc.n_layers + net->desc.n_mtp,
                                .stats.limit = limit};
    (void)pthread_mutex_init(&r->lock, NULL);
    *out = r;
    TERN_TRY(open_file(r, &net->packed, path, err));
    TERN_TRY(tern_alloc(&r->layers, (size_t)r->n_layers, sizeof *r->layers, err));
    TERN_TRY(fill(r, net, b, (size_t)(data - net->packed.p), err));
    if (b->lean)
        keep_pages_small(r);
    start(r);
out:
    if (rc < 0) {
        tern_resident_free(*out);
        *out = NULL;
    }
    return rc;
}

void tern_resident_free(struct tern_resident *r)
{
    if (!r)
        return;
    for (int i = 0; r->layers && i < r->n_layers; i++)
        tern_free(r->layers[i].table);
    if (r->fd >= 0)
        (void)close(r->fd);
    (void)pthread_mutex_destroy(&r->lock);
    free(r->path);
    tern_free(r->layers);
    tern_free(r->units);
    tern_free(r);
}

void tern_net_experts(const struct tern_net *n, struct tern_resident_stats *out)
{
    struct tern_resident *r = n->resident;
    *out = (struct tern_resident_stats){0};
    if (!r)
        return;
    (void)pthread_mutex_lock(&r->lock);
    *out = r->stats;
    (void)pthread_mutex_unlock(&r->lock);
}

int tern_net_experts_check(const struct tern_net *n, int rows, tern_error *err)
{
    struct tern_resident *r = n->resident;
    int layer = -1, most_rows = rows;
    size_t need = 0, least = 0;
    for (int i = 0; r && i < r->n_layers; i++) {
        const struct resident_layer *l = &r->layers[i];
        if (!l->n)
            continue;
        const int64_t chosen = (int64_t)rows * l->n_active;
        const size_t bytes = (size_t)(chosen < l->n ? chosen : l->n) * l->bytes, one = (size_t)l->n_active * l->bytes;
        const size_t fits = r->stats.limit / one;
        least = one > least ? one : least;
        if (bytes > need) {
            need = bytes;
            layer = i;
        }
        most_rows = bytes > r->stats.limit && fits < (size_t)most_rows ? (int)fits : most_rows;
    }
    if (!r || need <= r->stats.limit)
        return 0;
    if (least > r->stats.limit)
        return tern_err_set(err, TERN_EINVAL,
                            "%zu bytes of experts in memory (--experts-resident) are less than the %zu that one layer "
                            "takes for one token",
                            r->stats.limit, least);
    return tern_err_set(err, TERN_EINVAL,
                        "%zu bytes of experts in memory (--experts-resident) are less than the %zu that layer %d takes "
                        "for a step of %d tokens; give as many, or steps of %d tokens at most (--chunk)",
                        r->stats.limit, need, layer, rows, most_rows);
}
