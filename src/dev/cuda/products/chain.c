/* Calls that are written down, put together to a chain (chain.cu).  What a call does is said by its arguments; a chain
 * writes what the calls would have, so it may stand in their place wherever it can do all of them. */
#include "dev/cuda/products/chain.h"
#include <string.h>
#include "dev/cuda/cuda.h"
#include "dev/cuda/rows.h"

enum { OUT, NORM, GATE_UP, GATE, DOWN, NEXT_NORM, NEXT, CALLS }; /* in their order */

#define LEAST_STAGES (TERN_CUDA_CHAIN_PACE + 1)

_Static_assert(sizeof(struct tern_cuda_chain) <= sizeof(struct tern_cuda_narrow),
               "it takes the place of its first call");

/* The chains that there are: the kernels, of one row, of its products, and what a unit of 256 inputs of their panels
 * takes. */
static const struct chain_kind {
    enum tern_cuda_kernel product, chain;
    int unit;
} kinds[] = {{TERN_CUDA_K_narrow_U4_K32_1, TERN_CUDA_K_chain_U4_K32, 8 * 256 + 320}};

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
static bool norm_fits(const struct tern_cuda *d, const struct tern_cuda_norm_args *a, uint64_t plus, int n)
{
    return a->plus == plus && a->sum == a->x && a->w && a->q8 == d->q8 && a->n == n && !a->gather.n_cards && !a->half;
}

/* The kernels, one after the other, of one row and no stack. */
static const struct chain_kind *kernels_fit(const struct tern_cuda *d, size_t at)
{
    const struct tern_cuda_call *c = &d->list.calls[at];
    if (at + CALLS > d->list.n || c[NORM].kernel != TERN_CUDA_K_norm || c[GATE].kernel != TERN_CUDA_K_elementwise ||
        c[NEXT_NORM].kernel != TERN_CUDA_K_norm)
        return NULL;
    for (int i = 0; i < CALLS; i++)
        if (c[i].grid[0] != 1 || c[i].grid[2] != 1)
            return NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (c[OUT].kernel == kinds[i].product && c[GATE_UP].kernel == kinds[i].product &&
            c[DOWN].kernel == kinds[i].product && c[NEXT].kernel == kinds[i].product)
            return &kinds[i];
    return NULL;
}

/* What the calls from `at` on do, as a chain's arguments; false where no chain does it. */
static bool chain_of(const struct tern_cuda *d, size_t at, struct tern_cuda_chain *to)
{
    const struct tern_cuda_narrow *out = args_of(d, at + OUT), *both = args_of(d, at + GATE_UP),
                                  *down = args_of(d, at + DOWN), *next = args_of(d, at + NEXT);
    const struct tern_cuda_norm_args *norm = args_of(d, at + NORM), *then = args_of(d, at + NEXT_NORM);
    const struct tern_cuda_elementwise *gate = args_of(d, at + GATE);
    const int n = out->m[0].w.n, ff = both->m[0].w.n;
    if (!fits(d, out, 1) || !fits(d, both, 2) || !fits(d, down, 1) || !fits(d, next, next->n_m) ||
        next->n_m > TERN_CUDA_CHAIN_NEXT || !norm_fits(d, norm, out->m[0].y, n) ||
        !norm_fits(d, then, down->m[0].y, n) || norm->x != then->x || norm->y != then->y || n % 256 ||
        n > TERN_CUDA_CHAIN_NORM || both->m[1].w.n != ff || down->m[0].w.k != ff || down->m[0].w.n != n ||
        gate->op < TERN_CUDA_SILU || gate->n != ff || gate->y != both->m[0].y || gate->a != gate->y ||
        gate->b != both->m[1].y || gate->q8 != d->q8 || both->m[0].w.k != n || next->m[0].w.k != n)
        return false;
    memset(to, 0, sizeof *to); /* lists are compared byte by byte */
    *to = (struct tern_cuda_chain){.m = {out->m[0], both->m[0], both->m[1], down->m[0]},
                                   .norm = {{norm->plus, norm->w, norm->eps, 0}, {then->plus, then->w, then->eps, 0}},
                                   .q8 = d->q8,
                                   .x = norm->x,
                                   .n = then->y,
                                   .h = gate->y,
                                   .met = d->met,
                                   .n_m = 4 + next->n_m,
                                   .op = gate->op,
                                   .panels = next->n_panels};
    for (int i = 0; i < 4; i++)
        to->m[i].panel0 = 0;
    memcpy(&to->m[4], next->m, (size_t)next->n_m * sizeof *next->m);
    const int most = out->m[0].w.k > ff ? out->m[0].w.k : ff;
    to->row_bytes = ((most > n ? most : n) / 4 * 5 + 127) / 128 * 128;
    return true;
}

/* Its shared memory; false where there is too little of it. */
static bool place_chain(const struct tern_cuda *d, const struct chain_kind *kind, struct tern_cuda_chain *a,
                        struct tern_cuda_call *c)
{
    const int beside = TERN_CUDA_CHAIN_BESIDE + a->row_bytes + a->m[0].w.n * 4,
              stage = TERN_CUDA_CHAIN_UNITS * kind->unit, stages = (d->card->shared_most - beside) / stage;
    a->stages = stages < TERN_CUDA_CHAIN_STAGES ? stages : TERN_CUDA_CHAIN_STAGES;
    memset(c, 0, sizeof *c);
    *c = (struct tern_cuda_call){.kernel = kind->chain,
                                 .grid = {(unsigned)d->card->processors, 1, 1},
                                 .block = TERN_CUDA_CHAIN_THREADS,
                                 .shared = (unsigned)(beside + a->stages * stage),
                                 .bytes = sizeof *a};
    return a->stages >= LEAST_STAGES;
}

void tern_cuda_chain_calls(struct tern_cuda *d)
{
    struct tern_cuda_list *l = &d->list;
    size_t kept = 0;
    /* Its blocks wait for each other, so all must be on the card: nobody else may have such ones there. */
    if (d->card->major != 9 || atomic_load(&d->card->computing) != 1 || !d->met)
        return;
    for (size_t i = 0; i < l->n; kept++) {
        const struct chain_kind *kind = kernels_fit(d, i);
        struct tern_cuda_chain a;
        struct tern_cuda_call c;
        if (kind && chain_of(d, i, &a) && place_chain(d, kind, &a, &c)) {
            c.args = l->calls[i].args; /* in the place of the first call's */
            memcpy(l->args + c.args, &a, sizeof a);
            l->calls[kept] = c;
            i += CALLS;
        } else {
            l->calls[kept] = l->calls[i++];
        }
    }
    l->n = kept;
}
