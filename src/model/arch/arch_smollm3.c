/* SmolLM3 (Hugging Face, 2025): llama's block and permuted q and k; every fourth layer has no position embedding. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = tern_configure_common(d, f, "smollm3", err);
    d->ropes[0].interleaved = tern_file_kind(f) == TERN_FILE_GGUF;
    for (int i = 3; i < d->n_layers; i += 4)
        d->layers[i].at.rope = -1;
    return rc;
}

const struct tern_arch tern_arch_smollm3 = {"smollm3", configure, tern_llama_globals, tern_llama_layers, NULL};
