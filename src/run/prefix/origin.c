/* Where pages come from. */
#include <stdio.h>
#include <string.h>
#include "kernel/kernel.h"
#include "run/prefix/record.h"

/* Prompts are computed in the class that a machine is fastest in; sums differ between families of processors. */
static void describe_arithmetic(const tern_engine *e, char *out, size_t n)
{
#if defined(__aarch64__)
    const char *family = tern_k.mask ? "aarch64" : "c";
#else
    const char *family = tern_k.mask ? "x86-64" : "c";
#endif
    const char *products = e->exact || !tern_k.prompt.product ? "f32" : tern_k.prompt.floats ? "bf16 tiles" : "int16";
    const bool pairs = !e->exact && tern_k.bf16.multiply;
    (void)snprintf(out, n, "%s %s%s%s", family, products, pairs ? ", bf16" : "", e->exact ? ", exact" : "");
}

void tern_engine_origin(const tern_engine *e, int plan, struct tern_origin *out)
{
    const struct tern_net *net = e->model->net;
    const struct tern_kv_layout *l = e->caches[plan].layout;
    *out = (struct tern_origin){.weights = net->whole, .layout = l->digest};
    out->rope = net->stretch << 1 | (uint64_t)tern_rope_is_long(&net->desc.ropes[0], e->ctx);
    describe_arithmetic(e, out->arithmetic, sizeof out->arithmetic);
    (void)snprintf(out->version, sizeof out->version, "%s", tern_version());
    tern_kv_layout_describe(l, out->kv, sizeof out->kv);
}
