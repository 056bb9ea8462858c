/* Calls that are written down, put together to a chain (chain.cu).  What a call does is said by its arguments; a chain
 * writes what the calls would have, so it may stand in their place wherever it can do all of them.
 *
 * Cards that compute together have the same calls, but for outputs: norms gather what they add, a gather makes gate
 * times up, and another may stand before.  In a chain all must send what the others wait for, so what decides whether
 * there is one is alike on all: kinds, lengths and bounds, how many gathers have been, and what was found out when
 * those were queued, for all cards at once.  Of the first three products each card has outputs, for there are a
 * multiple of 256 (weights.c of dev/parallel); of the next ones it may have none.  These need not be there: they may be
 * of another kind, or the output matrix. */
#include "dev/cuda/products/chain.h"
#include <string.h>
#include "dev/cuda/cuda.h"
#include "dev/cuda/rows.h"

/* In their order.  With cards, GATE is the gather that does its work. */
enum { OUT, NORM, GATE_UP, GATE, DOWN, NEXT_NORM, NEXT };

#define LEAST_STAGES (TERN_CUDA_CHAIN_PACE + 1)
#define PLACES       ((size_t)TERN_CUDA_TOGETHER_CHAIN * TERN_CUDA_TOGETHER_ROW * sizeof(uint64_t))

_Static_assert(sizeof(struct tern_cuda_chain) <= sizeof(struct tern_cuda_narrow) + sizeof(struct tern_cuda_together) &&
                   sizeof(struct tern_cuda_together) <= sizeof(struct tern_cuda_norm_args),
               "it takes the place of its first two calls");

/* The chains that there are: the kernels, of one row, of its products, and what a unit of 256 inputs of their panels
 * takes. */
static const struct chain_kind {
    enum tern_cuda_kernel product, chain, cards;
    int unit;
} kinds[] = {{TERN_CUDA_K_narrow_U4_K32_1, TERN_CUDA_K_chain_U4_K32, TERN_CUDA_K_chain_cards_U4_K32, 8 * 256 + 320}};

/* Where calls fit: the first product's; cards: several compute together; in: the gather before is one of them; next:
 * the next products are. */
struct found {
    const struct chain_kind *kind;
    size_t at;
    bool cards, in, next;
};

/* Its blocks wait for each other, so all must be on the card: nobody else may have such ones there. */
bool tern_cuda_may_chain(const struct tern_cuda *d)
{
    return d->card->major == 9 && atomic_load(&d->card->computing) == 1 && d->met;
}

int tern_cuda_chain_open(struct tern_cuda *d, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_cuda_take(d, &d->met, sizeof(uint64_t), err));
    TERN_TRY(tern_cuda_take(d, &d->words, PLACES + (size_t)d->card->processors * 16 * sizeof(uint64_t), err));
out:
    return rc;
}

static const void *args_of(const struct tern_cuda *d, size_t call)
{
    return d->list.args + d->list.calls[call].args;
}

/* Products of one row that a chain can have: n_m of them. */
static bool fits(const struct tern_cuda *d, const struct tern_cuda_narrow *a, int n_m)
{
    if (a->n_rows != 1 || a->n_m != n_m || a->ids || a->n_heads != 1 || a->parts != TERN_CUDA_CHAIN_UNITS ||
        a->q8 != d->q8)
        return false;
    for (int i = 0; i < n_m; i++)
        if (a->m[i].w.k % 256 || a->m[i].w.k != a->m[0].w.k)
            return false;
    return true;
}

/* x += y; its norm, as int8 too. */
static bool norm_fits(const struct tern_cuda *d, const struct tern_cuda_norm_args *a)
{
    return a->plus && a->sum == a->x && a->w && a->q8 == d->q8 && !a->half && !a->plus_normed;
}

static bool of_one_row(const struct tern_cuda_call *c)
{
    return c->grid[0] == 1 && c->grid[2] == 1;
}

/* The kernels, one after the other, of one row and no stack, from f->at on. */
static bool kernels_fit(const struct tern_cuda *d, struct found *f)
{
    const struct tern_cuda_list *l = &d->list;
    const struct tern_cuda_call *c = &l->calls[f->at];
    if (f->at + NEXT > l->n || c[NORM].kernel != TERN_CUDA_K_norm || c[NEXT_NORM].kernel != TERN_CUDA_K_norm)
        return false;
    f->cards = c[GATE].kernel == TERN_CUDA_K_together;
    if (!f->cards && c[GATE].kernel != TERN_CUDA_K_elementwise)
        return false;
    for (int i = 0; i < NEXT; i++)
        if (!of_one_row(&c[i]) && !(f->cards && i == GATE))
            return false;
    f->kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (c[OUT].kernel == kinds[i].product && c[GATE_UP].kernel == kinds[i].product &&
            c[DOWN].kernel == kinds[i].product)
            f->kind = &kinds[i];
    if (!f->kind)
        return false;
    f->next = f->at + NEXT < l->n && c[NEXT].kernel == f->kind->product && of_one_row(&c[NEXT]) &&
              ((const struct tern_cuda_narrow *)args_of(d, f->at + NEXT))->n_panels <= TERN_CUDA_CHAIN_NEXT_PANELS;
    return true;
}

/* What gate and up become, and all columns, where one card has them. */
static bool alone_fits(const struct tern_cuda *d, const struct found *f, struct tern_cuda_chain *to)
{
    const struct tern_cuda_elementwise *gate = args_of(d, f->at + GATE);
    const struct tern_cuda_norm_args *norm = args_of(d, f->at + NORM), *then = args_of(d, f->at + NEXT_NORM);
    to->op = gate->op;
    to->cards.n = 1;
    to->cards.places[0] = d->words;
    return tern_cuda_may_chain(d) && to->m[3].w.k / 16 * 5 <= TERN_CUDA_TOGETHER_ROW && !norm->gather.n_cards &&
           !then->gather.n_cards && norm->plus == to->m[0].y && then->plus == to->m[3].y && to->m[0].w.n == norm->n &&
           to->m[1].w.n == to->m[3].w.k && gate->op >= TERN_CUDA_SILU && gate->n == to->m[1].w.n && gate->y == to->h &&
           gate->a == gate->y && gate->b == to->m[2].y && gate->q8 == d->q8;
}

/* One row of n columns, of which each card sends some through the stages, when so many gathers have been; this card's
 * are m's outputs (NULL: anything). */
static bool gather_fits(const struct tern_cuda_together *g, int n, int which, const struct tern_cuda_product *m)
{
    const int from = g->bound[g->self];
    return g->chains && g->n_rows == 1 && g->stage[g->self] && !g->meets && g->bound[g->n_cards] == n &&
           g->which == which && n <= TERN_CUDA_TOGETHER_ROW &&
           (!m || (m->y == g->x[g->self] + (size_t)from * sizeof(float) && m->w.n == g->bound[g->self + 1] - from));
}

/* The same of several cards. */
static bool cards_fit(const struct tern_cuda *d, const struct found *f, struct tern_cuda_chain *to)
{
    const struct tern_cuda_together *norm = &((const struct tern_cuda_norm_args *)args_of(d, f->at + NORM))->gather,
                                    *h = args_of(d, f->at + GATE),
                                    *then =
                                        &((const struct tern_cuda_norm_args *)args_of(d, f->at + NEXT_NORM))->gather,
                                    *in = f->in ? args_of(d, f->at - 1) : NULL;
    const int n = to->m[1].w.k, ff = to->m[3].w.k;
    if (!norm->n_cards || !then->n_cards || !gather_fits(norm, n, norm->which, &to->m[0]) ||
        !gather_fits(h, ff, norm->which + 1, &to->m[1]) || !gather_fits(then, n, norm->which + 2, &to->m[3]) ||
        h->up != to->m[2].y || h->q8 != d->q8 || h->op < TERN_CUDA_SILU ||
        memcmp(norm->bound, then->bound, sizeof norm->bound) != 0)
        return false;
    if (in && (in->q8 != d->q8 || in->up || !gather_fits(in, to->m[0].w.k, norm->which - 1, NULL)))
        return false;
    to->op = h->op;
    to->cards.number = norm->number;
    to->cards.n = norm->n_cards;
    to->cards.self = norm->self;
    to->cards.which = norm->which;
    for (int i = 0; i < norm->n_cards; i++)
        to->cards.places[i] = norm->stage[i] + (size_t)2 * TERN_CUDA_TOGETHER_STAGE * sizeof(uint64_t);
    memcpy(to->cards.bound, norm->bound, sizeof norm->bound);
    memcpy(to->cards.h_bound, h->bound, sizeof h->bound);
    if (in) {
        to->cards.in = in->x[in->self];
        memcpy(to->cards.in_bound, in->bound, sizeof in->bound);
    }
    return true;
}

/* What the calls do, as a chain's arguments; false where no chain does it. */
static bool chain_of(const struct tern_cuda *d, const struct found *f, struct tern_cuda_chain *to)
{
    const struct tern_cuda_narrow *out = args_of(d, f->at + OUT), *both = args_of(d, f->at + GATE_UP),
                                  *down = args_of(d, f->at + DOWN), *next = f->next ? args_of(d, f->at + NEXT) : NULL;
    const struct tern_cuda_norm_args *norm = args_of(d, f->at + NORM), *then = args_of(d, f->at + NEXT_NORM);
    const int n = norm->n, ff = down->m[0].w.k;
    if (!fits(d, out, 1) || !fits(d, both, 2) || !fits(d, down, 1) || !norm_fits(d, norm) || !norm_fits(d, then) ||
        then->n != n || norm->x != then->x || norm->y != then->y || n % 256 || n > TERN_CUDA_CHAIN_NORM ||
        both->m[0].w.k != n || both->m[1].w.n != both->m[0].w.n || down->m[0].w.n != out->m[0].w.n)
        return false;
    if (next && (!fits(d, next, next->n_m) || next->n_m > TERN_CUDA_CHAIN_NEXT || next->m[0].w.k != n))
        return false;
    memset(to, 0, sizeof *to); /* lists are compared byte by byte */
    *to = (struct tern_cuda_chain){.m = {out->m[0], both->m[0], both->m[1], down->m[0]},
                                   .norm = {{norm->plus, norm->w, norm->eps, 0}, {then->plus, then->w, then->eps, 0}},
                                   .q8 = d->q8,
                                   .x = norm->x,
                                   .n = then->y,
                                   .h = both->m[0].y,
                                   .met = d->met,
                                   .halves = d->words + PLACES,
                                   .n_m = 4 + (next ? next->n_m : 0),
                                   .panels = next ? next->n_panels : 0};
    for (int i = 0; i < 4; i++)
        to->m[i].panel0 = 0;
    if (next)
        memcpy(&to->m[4], next->m, (size_t)next->n_m * sizeof *next->m);
    const int most = out->m[0].w.k > ff ? out->m[0].w.k : ff;
    to->row_bytes = ((most > n ? most : n) / 4 * 5 + 127) / 128 * 128;
    return f->cards ? cards_fit(d, f, to) : alone_fits(d, f, to);
}

/* Its shared memory; false where there is too little of it. */
static bool place_chain(const struct tern_cuda *d, const struct found *f, struct tern_cuda_chain *a,
                        struct tern_cuda_call *c)
{
    const int beside = TERN_CUDA_CHAIN_BESIDE + a->row_bytes + a->m[1].w.k * 4,
              stage = TERN_CUDA_CHAIN_UNITS * f->kind->unit, stages = (d->card->shared_most - beside) / stage;
    a->stages = stages < TERN_CUDA_CHAIN_STAGES ? stages : TERN_CUDA_CHAIN_STAGES;
    memset(c, 0, sizeof *c);
    *c = (struct tern_cuda_call){.kernel = f->cards ? f->kind->cards : f->kind->chain,
                                 .grid = {(unsigned)d->card->processors, 1, 1},
                                 .block = TERN_CUDA_CHAIN_THREADS,
                                 .shared = (unsigned)(beside + a->stages * stage),
                                 .bytes = sizeof *a};
    return a->stages >= LEAST_STAGES;
}

/* Calls from number i on that a chain can stand for; 0: none. */
static size_t chain_at(const struct tern_cuda *d, size_t i, struct tern_cuda_chain *a, struct tern_cuda_call *c)
{
    struct found f = {.in = d->list.calls[i].kernel == TERN_CUDA_K_together};
    f.at = i + f.in;
    if (!kernels_fit(d, &f) || (f.in && !f.cards))
        return 0;
    if (!chain_of(d, &f, a)) {
        if (!f.next)
            return 0;
        f.next = false; /* others of the next products, perhaps */
        if (!chain_of(d, &f, a))
            return 0;
    }
    return place_chain(d, &f, a, c) ? f.in + (size_t)NEXT + f.next : 0;
}

void tern_cuda_chain_calls(struct tern_cuda *d)
{
    struct tern_cuda_list *l = &d->list;
    size_t kept = 0;
    for (size_t i = 0, n; i < l->n; kept++, i += n) {
        struct tern_cuda_chain a;
        struct tern_cuda_call c;
        n = chain_at(d, i, &a, &c);
        if (n) {
            c.args = l->calls[i].args; /* in the place of the first calls' */
            memcpy(l->args + c.args, &a, sizeof a);
            l->calls[kept] = c;
        } else {
            n = 1;
            l->calls[kept] = l->calls[i];
        }
    }
    l->n = kept;
}
