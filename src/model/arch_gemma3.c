/* Gemma 3 text models (Gemma Team 2025): Gemma 2 with five sliding-window layers to one global layer, two RoPE bases
 * and RMS norms on q and k per head, without soft caps.
 *
 * The local base (10000) is a constant of the family unless the file says otherwise. */
#include "model/model.h"

#include <math.h>

/* The 1B and larger models scale the global RoPE only; the local one is never scaled. */
static int add_local_rope(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    double theta;
    int rc = tern_file_get_float(f, "gemma3.rope.freq_base_swa", 10000.0, &theta, err);
    if (rc < 0)
        return rc;
    if (!(theta > 1) || !isfinite(theta))
        return tern_err_set(err, TERN_EFORMAT, "%s: gemma3.rope.freq_base_swa = %g is impossible", tern_file_path(f),
                            theta);
    d->ropes[1] = d->ropes[0];
    d->ropes[1].theta = (float)theta;
    d->ropes[1].scaling = TERN_ROPE_PLAIN;
    d->ropes[1].factor = d->ropes[1].magnitude = 1;
    d->n_ropes = 2;
    return 0;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_gemma(d, f, "gemma3", 6, 62, err));
    TERN_TRY(add_local_rope(d, f, err));
    for (int i = 0; i < d->n_layers; i++)
        d->layers[i].rope = d->layers[i].mask == TERN_MASK_WINDOW;
out:
    return rc;
}

const struct tern_arch tern_arch_gemma3 = {"gemma3", configure, tern_gemma_globals, tern_gemma_layers, tern_head_norms};
