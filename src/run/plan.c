/* The effective KV plan, for reports and for engines. */
#include "run/run.h"

#include <string.h>
#include "base/mem.h"

int tern_kv_plan_new(tern_kv_plan **out, const tern_model *m, const char *spec, bool strict, tern_error *err)
{
    int rc = 0;
    struct tern_kv_decl *decl = NULL;
    tern_kv_plan *p = NULL;
    const struct tern_desc *d = &m->net->desc;
    *out = NULL;
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    TERN_TRY(tern_alloc(&decl, (size_t)d->n_layers, sizeof *decl, err));
    tern_desc_kv(d, decl);
    TERN_TRY(tern_kv_layout_new(&p->layout, decl, d->n_layers, spec ? spec : "l4", strict, err));
    *out = p;
    p = NULL;
out:
    tern_free(decl);
    tern_kv_plan_free(p);
    return rc;
}

void tern_kv_plan_free(tern_kv_plan *p)
{
    if (!p)
        return;
    tern_kv_layout_free(p->layout);
    tern_free(p);
}

int tern_kv_plan_rows(const tern_kv_plan *p)
{
    return p->layout->n_layers;
}

void tern_kv_plan_row(const tern_kv_plan *p, int layer, tern_kv_row *out)
{
    const struct tern_kv_layer *l = &p->layout->layers[layer];
    *out = (tern_kv_row){.layer = layer, .k = "none", .v = "none"};
    if (p->layout->group_of[layer] < 0)
        return;
    *out = (tern_kv_row){.layer = layer,
                         .k = l->k.codec->name,
                         .v = l->v.codec->name,
                         .n_heads = l->n_heads,
                         .dim_k = l->k.dim,
                         .dim_v = l->v.dim,
                         .window = l->window,
                         .bytes_per_token = tern_kv_layer_bytes(l),
                         .f16_bytes_per_token = tern_kv_layer_f16_bytes(l),
                         .reason = l->why_raw};
}

const char *const *tern_kv_schemes(void)
{
    static const char *pairs[2 * 32 + 2];
    size_t n = 0;
    for (int i = 0; tern_kv_codecs[i] && n < 64; i++) {
        pairs[n++] = tern_kv_codecs[i]->name;
        pairs[n++] = tern_kv_codecs[i]->about;
    }
    pairs[n] = NULL;
    return pairs;
}
