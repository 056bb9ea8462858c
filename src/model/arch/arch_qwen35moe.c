/* Qwen3.5's mixtures of experts: in every layer, with weights that sum to 1, and a network that every row goes through
 * besides, times a gate of its own. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_qwen35(d, f, "qwen35moe", err));
    TERN_TRY(tern_configure_experts(d, f, "qwen35moe", true, err));
    TERN_TRY(tern_configure_mtp(d, f, "qwen35moe", "nextn.hnorm", err));
out:
    return rc;
}

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_family families[] = {
    {.model_type = "qwen3_5_moe_text",
     .act = "silu",
     .modules = tern_hf_qwen35_modules,
     .silent = tern_hf_qwen35_numbers,
     .elsewhere = tern_hf_qwen35_elsewhere,
     .more = tern_hf_qwen35,
     .mtp = &tern_hf_qwen35_mtp,
     .norms_from_1 = true,
     .experts = true},
    {0},
};

const struct tern_arch tern_arch_qwen35moe = {.name = "qwen35moe",
                                              .configure = configure,
                                              .globals = tern_llama_globals,
                                              .layers = tern_qwen35_layers,
                                              .hf = families,
                                              .gguf = {.grouped = true}};
