/* The toy of tests/toy: llama's tensors, a gate in every other layer, two streams. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = tern_configure_common(d, f, "toy", err);
    d->residual = TERN_RESIDUAL_TWIN;
    for (int i = 0; i < d->n_layers; i += 2)
        d->layers[i].mixer = TERN_MIX_GATED;
    return rc;
}

static bool when_gated(const struct tern_layer_desc *l)
{
    return l->mixer == TERN_MIX_GATED;
}

static const struct tern_tensor_rule more_layers[] = {
    TERN_MATRIX("blk.%d.attn_gate.weight", TERN_SLOT_GATED_GATE, tern_dim_o, tern_dim_embd, .when = when_gated),
    TERN_VECTOR("blk.%d.twin_norm.weight", TERN_SLOT_TWIN_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.twin_ffn_norm.weight", TERN_SLOT_TWIN_FFN_NORM, tern_dim_embd),
    {0},
};

const struct tern_arch tern_arch_toy = {.name = "toy",
                                        .configure = configure,
                                        .globals = tern_llama_globals,
                                        .layers = tern_llama_layers,
                                        .more_layers = more_layers};
