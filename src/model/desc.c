/* What follows from a descriptor: whether it can be run, and what its layers keep. */
#include "model/block/block.h"

const struct tern_block *const tern_mixers[] = {
#define TERN_MIXER(NAME, name, slots) &tern_block_##name,
#include "model/block/mixers.def"
#undef TERN_MIXER
};

const struct tern_block *const tern_ffns[] = {
#define TERN_FFN(NAME, name, slots) &tern_block_##name,
#include "model/block/ffns.def"
#undef TERN_FFN
};

const struct tern_residual *const tern_residuals[] = {
#define TERN_RESIDUAL(NAME, name, slots, globals) &tern_residual_##name,
#include "model/block/residuals.def"
#undef TERN_RESIDUAL
};

int tern_desc_check(const struct tern_desc *d, tern_error *err)
{
    bool attention = false;
    for (int i = 0; i < d->n_layers + d->n_mtp; i++) {
        const char *what = tern_mixers[d->layers[i].mixer]->cannot(d, &d->layers[i]);
        if (what)
            return tern_err_set(err, TERN_EUNSUPPORTED, "architecture %s: layer %d uses %s, which is not supported",
                                d->arch, i, what);
        attention |= d->layers[i].at.n_heads > 0;
    }
    if (!attention) /* the cache has no pages then */
        return tern_err_set(err, TERN_EUNSUPPORTED, "architecture %s: no layer has attention, which is not supported",
                            d->arch);
    return 0;
}

int tern_desc_check_device(const struct tern_desc *d, const struct tern_dev_ops *ops, tern_error *err)
{
    const struct tern_residual *r = tern_residuals[d->residual];
    if (r->runs_on && !r->runs_on(ops))
        return tern_err_set(err, TERN_EUNSUPPORTED, "architecture %s: device %s does not compute %s", d->arch,
                            ops->name, r->name);
    for (int i = 0; i < d->n_layers + d->n_mtp; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        const struct tern_block *halves[2] = {tern_mixers[l->mixer], tern_ffns[l->ffn]};
        for (int k = 0; k < 2; k++)
            if (halves[k]->runs_on && !halves[k]->runs_on(ops, l))
                return tern_err_set(err, TERN_EUNSUPPORTED,
                                    "architecture %s: layer %d has %s of a kind that device %s does not compute",
                                    d->arch, i, halves[k]->name, ops->name);
    }
    return 0;
}

struct tern_kv_reach tern_attend_reach(const struct tern_attend_desc *at)
{
    return (struct tern_kv_reach){.window = at->mask == TERN_MASK_CAUSAL ? 0 : at->span,
                                  .chunked = at->mask == TERN_MASK_CHUNK};
}

void tern_desc_kv(const struct tern_desc *d, int ctx, bool mtp, struct tern_kv_decl *decl)
{
    for (int i = 0; i < d->n_layers + (mtp ? d->n_mtp : 0); i++) {
        const struct tern_block *mixer = tern_mixers[d->layers[i].mixer];
        decl[i] = (struct tern_kv_decl){0};
        if (mixer->caches)
            mixer->caches(&decl[i], d, &d->layers[i], ctx);
        if (i >= d->n_layers)
            tern_mtp_caches(&decl[i], d);
    }
}
