/* A vocabulary as a tree of bytes, and the masks that a walk through it gives. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "grammar/follow.h"

struct leaf {      /* a node of the tree, in the order of a walk */
    uint32_t skip; /* the node behind its subtree */
    int32_t token; /* the first that ends here, -1: none */
    uint16_t depth;
    uint8_t byte;
};

struct tern_gr_vocab {
    int n;
    struct leaf *tree;
    size_t n_tree;
    int32_t *same; /* [n] the next token of the same bytes, -1: none */
    char *bytes;   /* of all tokens */
    size_t *at;    /* [n + 1] */
    uint8_t *kind; /* [n] */
    int32_t *odd;  /* [n_odd] tokens that end a reply or are control tokens; bytes: their spelling */
    int n_odd;
    uint32_t longest;
};

enum { TEXT = 1, CONTROL = 2, ENDS = 4, DROPS = 8 };

#define MAX_TOKEN 60000 /* bytes; longer ones are never allowed */

/* ---- making ------------------------------------------------------------------------------------------------------ */

static int take_token(struct tern_gr_vocab *v, int32_t id, const struct tern_gr_token *t, size_t *cap, tern_error *err)
{
    int rc = 0;
    const char *p = t->control ? t->control : t->p;
    size_t n = t->control ? strlen(t->control) : t->n;
    n = n > MAX_TOKEN ? 0 : n;
    TERN_TRY(tern_grow(&v->bytes, cap, v->at[id] + n + 1, 1, err));
    if (n)
        memcpy(v->bytes + v->at[id], p, n);
    v->at[id + 1] = v->at[id] + n;
    v->kind[id] = (uint8_t)((t->ends ? ENDS : 0) | (t->control ? CONTROL : 0) | (t->drops_space ? DROPS : 0));
    if (v->kind[id] & (ENDS | CONTROL)) {
        v->odd[v->n_odd++] = id;
    } else if (n) {
        v->kind[id] |= TEXT;
        v->longest = (uint32_t)n > v->longest ? (uint32_t)n : v->longest;
    }
out:
    return rc;
}

static int compare(const void *a, const void *b, void *user)
{
    const struct tern_gr_vocab *v = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n = v->at[x + 1] - v->at[x], m = v->at[y + 1] - v->at[y];
    int c = memcmp(v->bytes + v->at[x], v->bytes + v->at[y], n < m ? n : m);
    c = c ? c : (n > m) - (n < m);
    return c ? c : (x > y) - (x < y);
}

/* ids: tokens of text, sorted. */
static int grow_tree(struct tern_gr_vocab *v, const int32_t *ids, int n_ids, tern_error *err)
{
    int rc = 0;
    size_t cap = 0;
    uint32_t *path = NULL; /* path[i]: the node of byte i of the token before */
    size_t n_path = 0;
    TERN_TRY(tern_alloc(&path, (size_t)v->longest + 1, sizeof *path, err));
    for (int i = 0; i < n_ids; i++) {
        const char *p = v->bytes + v->at[ids[i]];
        size_t n = v->at[ids[i] + 1] - v->at[ids[i]], same = 0;
        while (same < n_path && same < n && v->tree[path[same]].byte == (uint8_t)p[same])
            same++;
        for (; n_path > same; n_path--)
            v->tree[path[n_path - 1]].skip = (uint32_t)v->n_tree;
        if (same == n) { /* sorted: only the very same text can be all there */
            struct leaf *l = &v->tree[path[n - 1]];
            v->same[ids[i]] = l->token;
            l->token = ids[i];
            continue;
        }
        TERN_TRY(tern_grow(&v->tree, &cap, v->n_tree + n - same, sizeof *v->tree, err));
        for (; n_path < n; n_path++) {
            path[n_path] = (uint32_t)v->n_tree;
            v->tree[v->n_tree++] = (struct leaf){0, -1, (uint16_t)n_path, (uint8_t)p[n_path]};
        }
        v->tree[path[n - 1]].token = ids[i];
    }
    for (; n_path > 0; n_path--)
        v->tree[path[n_path - 1]].skip = (uint32_t)v->n_tree;
out:
    tern_free(path);
    return rc;
}

int tern_gr_vocab_new(struct tern_gr_vocab **out, int n_vocab, tern_gr_token_fn *token, void *user, tern_error *err)
{
    int rc = 0, n_ids = 0;
    size_t cap = 0, n = (size_t)n_vocab;
    int32_t *ids = NULL;
    struct tern_gr_vocab *v = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&v, 1, sizeof *v, err));
    v->n = n_vocab;
    TERN_TRY(tern_alloc(&v->at, n + 1, sizeof *v->at, err));
    TERN_TRY(tern_alloc(&v->kind, n + 1, 1, err));
    TERN_TRY(tern_alloc(&v->same, n + 1, sizeof *v->same, err));
    TERN_TRY(tern_alloc(&v->odd, n + 1, sizeof *v->odd, err));
    TERN_TRY(tern_alloc(&ids, n + 1, sizeof *ids, err));
    for (int32_t id = 0; id < n_vocab; id++) {
        struct tern_gr_token t = {0};
        TERN_TRY(token(user, id, &t, err));
        TERN_TRY(take_token(v, id, &t, &cap, err));
        v->same[id] = -1;
        if (v->kind[id] & TEXT)
            ids[n_ids++] = id;
    }
    qsort_r(ids, (size_t)n_ids, sizeof *ids, compare, v);
    TERN_TRY(grow_tree(v, ids, n_ids, err));
    *out = v;
    v = NULL;
out:
    tern_free(ids);
    tern_gr_vocab_free(v);
    return rc;
}

void tern_gr_vocab_free(struct tern_gr_vocab *v)
{
    if (!v)
        return;
    tern_free(v->tree);
    tern_free(v->same);
    tern_free(v->bytes);
    tern_free(v->at);
    tern_free(v->kind);
    tern_free(v->odd);
    tern_free(v);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

uint32_t tern_gr_vocab_longest(const struct tern_gr_vocab *v)
{
    return v ? v->longest : 0;
}

size_t tern_gr_vocab_words(const struct tern_gr_vocab *v)
{
    return ((size_t)v->n + 31) / 32;
}

static bool spells(const struct tern_gr_vocab *v, int32_t id, const char *text)
{
    size_t n = v->at[id + 1] - v->at[id];
    return n == strlen(text) && memcmp(v->bytes + v->at[id], text, n) == 0;
}

void tern_gr_vocab_token(const struct tern_gr_vocab *v, const tern_grammar *g, int32_t id, bool begins, const char **p,
                         size_t *n, int *mark, bool *ends)
{
    *p = v->bytes + v->at[id];
    *n = 0;
    *mark = -1;
    *ends = v->kind[id] & ENDS;
    for (uint32_t m = 0; v->kind[id] & CONTROL && m < g->n_marks; m++)
        if (spells(v, id, g->marks[m]))
            *mark = (int)m;
    if (v->kind[id] & TEXT) {
        size_t drop = begins && v->kind[id] & DROPS;
        *p += drop;
        *n = v->at[id + 1] - v->at[id] - drop;
    }
}

static void set_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= (uint32_t)1 << (id % 32);
}

struct walk {
    const struct tern_gr_vocab *v;
    struct tern_gr_follow *f;
    uint32_t *mask, *states; /* states[d]: behind d bytes */
    uint8_t wanted, flags;   /* tokens of which kind & flags == wanted */
};

/* The nodes [from, to) of the tree, with the states of what stands above them. */
static int walk(const struct walk *w, size_t from, size_t to, tern_error *err)
{
    int rc = 0;
    const uint8_t *class_of = w->f->g->class_of;
    for (size_t i = from; i < to;) {
        const struct leaf *l = &w->v->tree[i];
        uint32_t s;
        TERN_TRY(tern_gr_next(w->f, w->states[l->depth], class_of[l->byte], &s, err));
        if (s <= TERN_GR_LOST) {
            i = l->skip;
            continue;
        }
        for (int32_t id = l->token; id >= 0; id = w->v->same[id])
            if ((w->v->kind[id] & w->flags) == w->wanted)
                set_bit(w->mask, id);
        w->states[l->depth + 1] = s;
        i++;
    }
out:
    return rc;
}

/* Tokens whose first byte, a space, is not shown. */
static int walk_dropped(struct walk *w, uint32_t s, tern_error *err)
{
    size_t i = 0;
    while (i < w->v->n_tree && w->v->tree[i].byte != ' ')
        i = w->v->tree[i].skip;
    if (i == w->v->n_tree)
        return 0;
    w->states[1] = s;
    w->flags = w->wanted = DROPS;
    return walk(w, i + 1, w->v->tree[i].skip, err);
}

int tern_gr_vocab_mask(const struct tern_gr_vocab *v, struct tern_gr_follow *f, uint32_t s, bool begins, uint32_t *mask,
                       tern_error *err)
{
    int rc = 0;
    struct walk w = {.v = v, .f = f, .mask = mask, .flags = begins ? DROPS : 0};
    TERN_TRY(tern_alloc(&w.states, (size_t)v->longest + 2, sizeof *w.states, err));
    w.states[0] = s;
    TERN_TRY(walk(&w, 0, v->n_tree, err));
    if (begins)
        TERN_TRY(walk_dropped(&w, s, err));
    for (int i = 0; i < v->n_odd; i++) {
        int32_t id = v->odd[i];
        bool allowed = v->kind[id] & ENDS && f->states[s].complete;
        for (uint32_t m = 0; v->kind[id] & CONTROL && m < f->g->n_marks && !allowed; m++) {
            uint32_t to = TERN_GR_DEAD;
            if (spells(v, id, f->g->marks[m]))
                TERN_TRY(tern_gr_next(f, s, (uint32_t)f->g->n_classes + m, &to, err));
            allowed = to > TERN_GR_LOST;
        }
        if (allowed)
            set_bit(mask, id);
    }
out:
    tern_free(w.states);
    return rc;
}
