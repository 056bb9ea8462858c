/* Where pages come from. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernel/kernel.h"
#include "run/prefix/record.h"

#ifndef TERN_LEDGER
#define TERN_LEDGER "" /* of tests that compile this file for themselves */
#endif
#ifndef TERN_KERNELS
#define TERN_KERNELS "" /* digest of what a card runs: the ledger knows nothing of it */
#endif

/* Prompts are computed in the class that a machine is fastest in: products, then attention where that is not f32
 * (firsts: with first tokens in their page); sums differ between families of processors, and between devices. */
static void describe_arithmetic(const tern_engine *e, char *out, size_t n)
{
#if defined(__aarch64__)
    const char *family = tern_k.mask ? "aarch64" : "c";
#else
    const char *family = tern_k.mask ? "x86-64" : "c";
#endif
    const char *products = e->prompt8                           ? "int8"
                           : e->exact || !tern_k.prompt.product ? "f32"
                           : tern_k.prompt.floats               ? "bf16 tiles"
                                                                : "int16";
    const char *attention = e->exact               ? ", exact"
                            : tern_k.bf16.multiply ? ", bf16, firsts"
                            : tern_k.attn16.score  ? ", int16"
                                                   : "";
    const char *device = e->model->net->dev->ops->name;
    if (strcmp(device, "cpu") != 0 && !e->model->net->dev->ops->cut) /* else the CPU has layers, too */
        (void)snprintf(out, n, "%.12s%s%s", device, TERN_KERNELS, e->exact ? ", exact" : "");
    else
        (void)snprintf(out, n, "%s %s%s", family, products, attention);
}

void tern_engine_origin(const tern_engine *e, int plan, struct tern_origin *out)
{
    const struct tern_net *net = e->model->net;
    const struct tern_kv_layout *l = e->caches[plan].layout;
    *out = (struct tern_origin){.weights = net->whole, .layout = l->digest};
    out->layout += l->n_spans > l->n_layers; /* records of rows with tiles in another order are not found */
    out->rope = net->stretch << 1 | (uint64_t)tern_rope_is_long(&net->desc.ropes[0], e->ctx);
    if (net->dev->ops->cut) /* layers that a card has not */
        out->rope += (uint64_t)net->dev->ops->cut * 0x9E3779B97F4A7C15u + strtoull(TERN_KERNELS, NULL, 16);
    describe_arithmetic(e, out->arithmetic, sizeof out->arithmetic);
    (void)snprintf(out->version, sizeof out->version, "%s%s", tern_version(), TERN_LEDGER);
    tern_kv_layout_describe(l, out->kv, sizeof out->kv);
}
