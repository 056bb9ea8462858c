/* Steps that repeat, as graphs: one call to the driver instead of some hundreds, and less time between kernels.
 *
 * A list of calls that comes for the second time, byte for byte, is captured and kept; from then on it is one launch.
 * Decode steps repeat until a sequence's pages change, because all that differs between them lies in the step's tables.
 */
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"

#define KEPT  16 /* graphs; a step has two */
#define LEAST 16 /* shorter lists are not worth one */

struct kept {
    uint64_t used;
    tern_cu_graph_exec exec; /* NULL: seen once */
    struct tern_cuda_list list;
};

struct tern_cuda_graphs {
    struct kept kept[KEPT];
    uint64_t clock;
};

/* Byte by byte, but for what calls that became a chain have left behind. */
static bool equal(const struct tern_cuda_list *a, const struct tern_cuda_list *b)
{
    if (a->n != b->n || memcmp(a->calls, b->calls, a->n * sizeof *a->calls) != 0)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct tern_cuda_call *c = &a->calls[i];
        if (memcmp(a->args + c->args, b->args + c->args, c->bytes) != 0)
            return false;
    }
    return true;
}

static void drop(struct kept *k)
{
    if (k->exec)
        (void)tern_cu.cuGraphExecDestroy(k->exec);
    tern_free(k->list.calls);
    tern_free(k->list.args);
    memset(k, 0, sizeof *k);
}

static bool remember(struct kept *k, const struct tern_cuda_list *l)
{
    tern_error err;
    drop(k);
    if (tern_alloc(&k->list.calls, l->n, sizeof *l->calls, &err) < 0 ||
        tern_alloc(&k->list.args, l->used, 1, &err) < 0) {
        drop(k);
        return false;
    }
    memcpy(k->list.calls, l->calls, l->n * sizeof *l->calls);
    memcpy(k->list.args, l->args, l->used);
    k->list.n = l->n;
    k->list.used = l->used;
    return true;
}

/* A graph that cannot be made is no fault: the list goes out plainly. */
static bool capture(struct tern_cuda *d, struct kept *k, void (*launch)(struct tern_cuda *))
{
    tern_cu_graph graph = NULL;
    if (tern_cu.cuStreamBeginCapture_v2(d->stream, 2))
        return false;
    launch(d);
    if (tern_cu.cuStreamEndCapture(d->stream, &graph) || !graph)
        return false;
    if (d->fault.code || tern_cu.cuGraphInstantiateWithFlags(&k->exec, graph, 0))
        k->exec = NULL;
    (void)tern_cu.cuGraphDestroy(graph);
    return k->exec != NULL;
}

bool tern_cuda_graph_run(struct tern_cuda *d, void (*launch)(struct tern_cuda *d))
{
    struct tern_cuda_list *l = &d->list;
    tern_error err;
    if (l->n < LEAST || d->fault.code)
        return false;
    if (!d->graphs && tern_alloc(&d->graphs, 1, sizeof *d->graphs, &err) < 0)
        return false;
    struct tern_cuda_graphs *g = d->graphs;
    struct kept *oldest = &g->kept[0], *k = NULL;
    for (int i = 0; i < KEPT; i++) {
        if (equal(&g->kept[i].list, l))
            k = &g->kept[i];
        if (g->kept[i].used < oldest->used)
            oldest = &g->kept[i];
    }
    if (!k) {
        if (remember(oldest, l))
            oldest->used = ++g->clock;
        return false;
    }
    k->used = ++g->clock;
    if (!k->exec && !capture(d, k, launch))
        return false;
    (void)tern_cuda_ok(d, tern_cu.cuGraphLaunch(k->exec, d->stream), "starting a step");
    return true;
}

void tern_cuda_graph_close(struct tern_cuda *d)
{
    for (int i = 0; d->graphs && i < KEPT; i++)
        drop(&d->graphs->kept[i]);
    tern_free(d->graphs);
}
