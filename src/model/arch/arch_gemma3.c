/* Gemma 3 text models (Gemma Team 2025): Gemma 2 with five sliding-window layers to one global layer, two RoPE bases
 * and RMS norms on q and k per head, without soft caps.
 *
 * The local base (10000) is a constant of the family unless the file says otherwise. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_gemma(d, f, "gemma3", 6, 62, err));
    d->n_ropes = 2;
    TERN_TRY(tern_rope_read_local(&d->ropes[1], f, "gemma3", d->ropes[0].n_rot, err));
    for (int i = 0; i < d->n_layers; i++)
        d->layers[i].at.rope = d->layers[i].at.mask == TERN_MASK_WINDOW;
out:
    return rc;
}

const struct tern_arch tern_arch_gemma3 = {"gemma3", configure, tern_gemma_globals, tern_gemma_layers, tern_head_norms};
