/* States of a grammar, as they are met. */
#include "grammar/follow.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"

#define MAX_DEPTH   768                /* frames upon each other: some 250 brackets within brackets of JSON */
#define MAX_CONFIGS 8192               /* of a state: readings of one text */
#define MAX_SEEN    65536              /* of a closure */
#define MAX_WORK    2000000            /* steps of closures for one mask: some tenths of a second */
#define SOFT_BYTES  ((size_t)24 << 20) /* then matchers move on */
#define HARD_BYTES  ((size_t)96 << 20)

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static int grow_table(struct tern_gr_table *t, uint64_t (*hash)(const struct tern_gr_follow *, uint32_t),
                      struct tern_gr_follow *f, tern_error *err)
{
    int rc = 0;
    uint32_t *v = NULL;
    size_t size = t->size ? t->size * 2 : 256;
    if (t->used * 2 < t->size)
        return 0;
    TERN_TRY(tern_alloc(&v, size, sizeof *v, err));
    for (size_t i = 0; i < t->size; i++) {
        if (!t->v[i])
            continue;
        size_t k = hash(f, t->v[i] - 1) & (size - 1);
        while (v[k])
            k = (k + 1) & (size - 1);
        v[k] = t->v[i];
    }
    tern_free(t->v);
    f->bytes += (size - t->size) * sizeof *v;
    t->v = v;
    t->size = size;
out:
    return rc;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static uint64_t frame_hash(const struct tern_gr_follow *f, uint32_t i)
{
    const struct tern_gr_frame_node *n = &f->frames[i];
    return tern_hash64(tern_hash64((uint64_t)n->parent << 32 | n->node) + n->count);
}

/* The count that stands for c as far as one token can tell. */
static uint32_t round_count(const struct tern_gr_follow *f, uint32_t node, uint32_t c)
{
    const struct tern_gr_node *n = &f->g->nodes[node];
    if (n->op != TERN_GR_REPEAT)
        return 0;
    const struct tern_gr_counts *k = &f->g->counts[n->b];
    uint32_t far = f->longest + 1;
    if (k->min > far && c < k->min - far)
        return k->min - far;
    if (k->max != TERN_GR_NO_END && c >= k->min && k->max > far && c < k->max - far)
        return k->max - far;
    return c;
}

static int frame_find(struct tern_gr_follow *f, uint32_t parent, uint32_t node, uint32_t count, uint32_t *out,
                      tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_grow(&f->frames, &f->cap_frames, f->n_frames + 1, sizeof *f->frames, err));
    TERN_TRY(grow_table(&f->frame_table, frame_hash, f, err));
    uint32_t i = (uint32_t)f->n_frames;
    f->frames[i] = (struct tern_gr_frame_node){parent, node, count, f->n_frames ? f->frames[parent].depth + 1 : 0, i};
    size_t k = frame_hash(f, i) & (f->frame_table.size - 1);
    for (; f->frame_table.v[k]; k = (k + 1) & (f->frame_table.size - 1)) {
        const struct tern_gr_frame_node *x = &f->frames[f->frame_table.v[k] - 1];
        if (x->parent == parent && x->node == node && x->count == count) {
            *out = f->frame_table.v[k] - 1;
            return 0;
        }
    }
    f->frame_table.v[k] = i + 1;
    f->frame_table.used++;
    f->n_frames++;
    f->bytes += sizeof *f->frames;
    *out = i;
out:
    return rc;
}

static int frame_new(struct tern_gr_follow *f, uint32_t parent, uint32_t node, uint32_t count, uint32_t *out,
                     tern_error *err)
{
    int rc = 0;
    size_t before = f->n_frames;
    uint32_t up = f->frames[parent].rounded, rounded = round_count(f, node, count), other;
    TERN_TRY(frame_find(f, parent, node, count, out, err));
    if (f->n_frames == before || (up == parent && rounded == count))
        return 0;
    TERN_TRY(frame_find(f, up, node, rounded, &other, err));
    f->frames[*out].rounded = other;
out:
    return rc;
}

/* ---- closures ---------------------------------------------------------------------------------------------------- */

/* Has this been seen in the closure in hand?  From now on it has. */
static int seen(struct tern_gr_follow *f, const struct tern_gr_item *it, bool *was, tern_error *err)
{
    int rc = 0;
    struct tern_gr_seen *v = NULL;
    if (f->n_seen * 2 >= f->size_seen) {
        size_t size = f->size_seen ? f->size_seen * 2 : 512;
        TERN_TRY(tern_alloc(&v, size, sizeof *v, err));
        for (size_t i = 0; i < f->size_seen; i++) {
            const struct tern_gr_seen *s = &f->seen[i];
            size_t k = tern_hash64(s->key + s->fresh) & (size - 1);
            if (s->stamp != f->stamp)
                continue;
            while (v[k].stamp == f->stamp)
                k = (k + 1) & (size - 1);
            v[k] = *s;
        }
        tern_free(f->seen);
        f->seen = v;
        f->size_seen = size;
    }
    uint64_t key = (uint64_t)it->frame << 32 | it->node;
    size_t k = tern_hash64(key + it->fresh) & (f->size_seen - 1);
    for (; f->seen[k].stamp == f->stamp; k = (k + 1) & (f->size_seen - 1))
        if (f->seen[k].key == key && f->seen[k].fresh == it->fresh) {
            *was = true;
            return 0;
        }
    f->seen[k] = (struct tern_gr_seen){key, it->fresh, f->stamp};
    f->n_seen++;
    f->too_many |= f->n_seen > MAX_SEEN;
    *was = false;
out:
    return rc;
}

/* fresh: how many frames were put on top since the last byte. */
static int add_item(struct tern_gr_follow *f, uint32_t frame, uint32_t node, uint32_t fresh, tern_error *err)
{
    struct tern_gr_item it = {frame, node, fresh};
    bool was;
    if (!(f->g->flags[node] & TERN_GR_ENDS))
        return 0;
    int rc = seen(f, &it, &was, err);
    if (rc < 0 || was)
        return rc;
    rc = tern_grow(&f->items, &f->cap_items, f->n_items + 1, sizeof *f->items, err);
    if (rc == 0)
        f->items[f->n_items++] = it;
    return rc;
}

static int enter(struct tern_gr_follow *f, uint32_t frame, uint32_t node, uint32_t count, uint32_t fresh,
                 tern_error *err)
{
    int rc = 0;
    uint32_t top;
    if (f->frames[frame].depth >= MAX_DEPTH)
        return 0;
    TERN_TRY(frame_new(f, frame, node, count, &top, err));
    TERN_TRY(add_item(f, top, f->g->rules[f->g->nodes[node].x], fresh + 1, err));
out:
    return rc;
}

/* A repetition has made so many turns: it goes on, or what comes behind it does. */
static int repeat(struct tern_gr_follow *f, uint32_t frame, uint32_t node, uint32_t turns, uint32_t fresh,
                  tern_error *err)
{
    int rc = 0;
    const struct tern_gr_node *n = &f->g->nodes[node];
    struct tern_gr_counts k = f->g->counts[n->b];
    if (k.max == TERN_GR_NO_END && turns > k.min)
        turns = k.min;
    if (turns >= k.min)
        TERN_TRY(add_item(f, frame, n->a, fresh, err));
    if (turns < k.max)
        TERN_TRY(enter(f, frame, node, turns, fresh, err));
out:
    return rc;
}

static int leave(struct tern_gr_follow *f, const struct tern_gr_item *it, tern_error *err)
{
    struct tern_gr_frame_node top = f->frames[it->frame];
    if (it->frame == 0) {
        f->complete = true;
        return 0;
    }
    if (f->g->nodes[top.node].op == TERN_GR_CALL)
        return add_item(f, top.parent, f->g->nodes[top.node].a, it->fresh ? it->fresh - 1 : 0, err);
    if (it->fresh) /* a turn that ate nothing */
        return 0;
    return repeat(f, top.parent, top.node, top.count + 1, 0, err);
}

static int visit(struct tern_gr_follow *f, const struct tern_gr_item *it, tern_error *err)
{
    int rc = 0;
    const struct tern_gr_node *n = &f->g->nodes[it->node];
    switch ((enum tern_gr_op)n->op) {
    case TERN_GR_FORK:
        TERN_TRY(add_item(f, it->frame, n->a, it->fresh, err));
        return add_item(f, it->frame, n->b, it->fresh, err);
    case TERN_GR_CALL:
        if (f->g->nodes[n->a].op == TERN_GR_RETURN) /* nothing to come back for */
            return add_item(f, it->frame, f->g->rules[n->x], it->fresh, err);
        return enter(f, it->frame, it->node, 0, it->fresh, err);
    case TERN_GR_REPEAT:
        return repeat(f, it->frame, it->node, 0, it->fresh, err);
    case TERN_GR_RETURN:
        return leave(f, it, err);
    default:
        TERN_TRY(tern_grow(&f->found, &f->cap_found, f->n_found + 1, sizeof *f->found, err));
        f->found[f->n_found++] = (struct tern_gr_config){it->frame, it->node};
    }
out:
    return rc;
}

static void begin_closure(struct tern_gr_follow *f)
{
    if (++f->stamp == 0) {
        memset(f->seen, 0, f->size_seen * sizeof *f->seen);
        f->stamp = 1;
    }
    f->n_seen = f->n_items = f->n_found = 0;
    f->complete = f->too_many = false;
}

static int run_closure(struct tern_gr_follow *f, tern_error *err)
{
    int rc = 0;
    while (f->n_items && !f->too_many) {
        struct tern_gr_item it = f->items[--f->n_items];
        f->work++;
        TERN_TRY(visit(f, &it, err));
    }
out:
    return rc;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static uint64_t configs_hash(const struct tern_gr_config *v, size_t n, bool complete)
{
    uint64_t h = complete;
    for (size_t i = 0; i < n; i++)
        h = tern_hash64(h ^ ((uint64_t)v[i].frame << 32 | v[i].node));
    return h;
}

static uint64_t state_hash(const struct tern_gr_follow *f, uint32_t s)
{
    return configs_hash(f->configs + f->states[s].at, f->states[s].n, f->states[s].complete);
}

static int compare(const void *a, const void *b)
{
    const struct tern_gr_config *x = a, *y = b;
    if (x->frame != y->frame)
        return x->frame < y->frame ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* The state of the configurations that were found. */
static int intern(struct tern_gr_follow *f, uint32_t *out, tern_error *err)
{
    int rc = 0;
    size_t n = 0;
    if (f->n_found > 1)
        qsort(f->found, f->n_found, sizeof *f->found, compare);
    for (size_t i = 0; i < f->n_found; i++)
        if (i == 0 || compare(&f->found[i], &f->found[i - 1]) != 0)
            f->found[n++] = f->found[i];
    bool lost = f->too_many || n > MAX_CONFIGS;
    if (lost || (n == 0 && !f->complete)) {
        *out = lost ? TERN_GR_LOST : TERN_GR_DEAD;
        return 0;
    }
    TERN_TRY(tern_grow(&f->states, &f->cap_states, f->n_states + 1, sizeof *f->states, err));
    TERN_TRY(tern_grow(&f->configs, &f->cap_configs, f->n_configs + n + 1, sizeof *f->configs, err));
    TERN_TRY(grow_table(&f->state_table, state_hash, f, err));
    size_t k = configs_hash(f->found, n, f->complete) & (f->state_table.size - 1);
    for (; f->state_table.v[k]; k = (k + 1) & (f->state_table.size - 1)) {
        const struct tern_gr_state *s = &f->states[f->state_table.v[k] - 1];
        if (s->n == n && s->complete == f->complete &&
            (n == 0 || memcmp(f->configs + s->at, f->found, n * sizeof *f->found) == 0)) {
            *out = f->state_table.v[k] - 1;
            return 0;
        }
    }
    *out = (uint32_t)f->n_states;
    f->states[f->n_states++] = (struct tern_gr_state){
        .at = f->n_configs, .n = (uint32_t)n, .complete = f->complete, .rounded = TERN_GR_UNKNOWN};
    if (n)
        memcpy(f->configs + f->n_configs, f->found, n * sizeof *f->found);
    f->n_configs += n;
    f->state_table.v[k] = *out + 1;
    f->state_table.used++;
    f->bytes += sizeof *f->states + n * sizeof *f->configs;
out:
    return rc;
}

int tern_gr_step(struct tern_gr_follow *f, uint32_t s, uint32_t symbol, uint32_t *out, tern_error *err)
{
    int rc = 0;
    const tern_grammar *g = f->g;
    uint32_t n_symbols = (uint32_t)g->n_classes + g->n_marks;
    bool mark = symbol >= (uint32_t)g->n_classes;
    uint32_t byte = mark ? 0 : g->byte_of[symbol];
    if (!f->states[s].next) {
        TERN_TRY(tern_alloc(&f->states[s].next, n_symbols, sizeof(uint32_t), err));
        memset(f->states[s].next, 0xFF, n_symbols * sizeof(uint32_t));
        f->bytes += n_symbols * sizeof(uint32_t) + 64;
    }
    begin_closure(f);
    for (uint32_t i = 0; i < f->states[s].n; i++) {
        struct tern_gr_config c = f->configs[f->states[s].at + i];
        const struct tern_gr_node *n = &g->nodes[c.node];
        f->work++;
        if (mark ? n->op == TERN_GR_MARK && n->x == symbol - (uint32_t)g->n_classes
                 : n->op == TERN_GR_ONE && (g->sets[n->x].w[byte / 64] >> (byte % 64) & 1))
            TERN_TRY(add_item(f, c.frame, n->a, 0, err));
    }
    TERN_TRY(run_closure(f, err));
    TERN_TRY(intern(f, out, err));
    f->states[s].next[symbol] = *out;
    if (f->work > MAX_WORK)
        TERN_FAIL(err, TERN_ELIMIT, "the grammar can be read in too many ways: one token takes more than %d steps",
                  MAX_WORK);
    if (f->bytes > HARD_BYTES)
        TERN_FAIL(err, TERN_ELIMIT, "the grammar can be read in too many ways: one token takes more than %zu MiB",
                  HARD_BYTES >> 20);
    if (f->bytes > SOFT_BYTES)
        atomic_store(&f->full, true);
out:
    return rc;
}

int tern_gr_rounded(struct tern_gr_follow *f, uint32_t s, uint32_t *out, tern_error *err)
{
    int rc = 0;
    if (f->states[s].rounded == TERN_GR_UNKNOWN) {
        begin_closure(f);
        f->complete = f->states[s].complete;
        TERN_TRY(tern_grow(&f->found, &f->cap_found, (size_t)f->states[s].n + 1, sizeof *f->found, err));
        for (uint32_t i = 0; i < f->states[s].n; i++) {
            struct tern_gr_config c = f->configs[f->states[s].at + i];
            f->found[f->n_found++] = (struct tern_gr_config){f->frames[c.frame].rounded, c.node};
        }
        TERN_TRY(intern(f, out, err));
        f->states[s].rounded = *out;
    }
    *out = f->states[s].rounded;
out:
    return rc;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int tern_gr_follow_new(struct tern_gr_follow **out, const tern_grammar *g, const struct tern_gr_vocab *v,
                       uint32_t longest, tern_error *err)
{
    int rc = 0;
    uint32_t dead;
    struct tern_gr_follow *f = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&f, 1, sizeof *f, err));
    (void)pthread_mutex_init(&f->lock, NULL);
    f->g = g;
    f->vocab = v;
    f->longest = longest;
    atomic_init(&f->refs, 1);
    TERN_TRY(frame_find(f, 0, UINT32_MAX, 0, &dead, err));
    TERN_TRY(tern_grow(&f->states, &f->cap_states, 2, sizeof *f->states, err));
    f->states[f->n_states++] = (struct tern_gr_state){.rounded = TERN_GR_DEAD}; /* DEAD */
    f->states[f->n_states++] = (struct tern_gr_state){.rounded = TERN_GR_LOST}; /* LOST */
    begin_closure(f);
    TERN_TRY(add_item(f, 0, g->rules[g->start], 0, err));
    TERN_TRY(run_closure(f, err));
    TERN_TRY(intern(f, &f->start, err));
    if (f->start == TERN_GR_LOST)
        TERN_FAIL(err, TERN_ELIMIT, "the grammar can begin in too many ways");
    *out = f;
    f = NULL;
out:
    tern_gr_follow_free(f);
    return rc;
}

void tern_gr_follow_free(struct tern_gr_follow *f)
{
    if (!f || atomic_fetch_sub(&f->refs, 1) > 1)
        return;
    for (size_t i = 0; i < f->n_states; i++) {
        tern_free(f->states[i].next);
        tern_free(f->states[i].mask[0]);
        tern_free(f->states[i].mask[1]);
    }
    (void)pthread_mutex_destroy(&f->lock);
    tern_free(f->frames);
    tern_free(f->configs);
    tern_free(f->states);
    tern_free(f->frame_table.v);
    tern_free(f->state_table.v);
    tern_free(f->items);
    tern_free(f->found);
    tern_free(f->seen);
    tern_free(f);
}

/* A frame of `from` in f: all that it stands on first. */
static int move_frame(struct tern_gr_follow *f, const struct tern_gr_follow *from, uint32_t frame, uint32_t *out,
                      tern_error *err)
{
    int rc = 0;
    uint32_t chain[MAX_DEPTH + 2], n = 0;
    for (; frame; frame = from->frames[frame].parent)
        chain[n++] = frame;
    for (*out = 0; n > 0;) {
        const struct tern_gr_frame_node *x = &from->frames[chain[--n]];
        TERN_TRY(frame_new(f, *out, x->node, x->count, out, err));
    }
out:
    return rc;
}

int tern_gr_move(struct tern_gr_follow *f, struct tern_gr_follow *from, uint32_t s, uint32_t *out, tern_error *err)
{
    int rc = 0;
    const struct tern_gr_state *x = &from->states[s];
    begin_closure(f);
    f->complete = x->complete;
    TERN_TRY(tern_grow(&f->found, &f->cap_found, (size_t)x->n + 1, sizeof *f->found, err));
    for (uint32_t i = 0; i < x->n; i++) {
        struct tern_gr_config c = from->configs[x->at + i];
        TERN_TRY(move_frame(f, from, c.frame, &c.frame, err));
        f->found[f->n_found++] = c;
    }
    TERN_TRY(intern(f, out, err));
out:
    return rc;
}
