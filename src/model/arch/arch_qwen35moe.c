/* Qwen3.5's mixtures of experts: in every layer, with weights that sum to 1, and a network that every row goes through
 * besides, times a gate of its own. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_qwen35(d, f, "qwen35moe", err));
    TERN_TRY(tern_configure_experts(d, f, "qwen35moe", true, err));
out:
    return rc;
}

const struct tern_arch tern_arch_qwen35moe = {"qwen35moe", configure, tern_llama_globals, tern_qwen35_layers, NULL};
