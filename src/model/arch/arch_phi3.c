/* Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024): llama's block with q, k and v in one matrix, and gate and up in
 * another; half-split RoPE, for long contexts with factors of its own (longrope); Phi-3-mini has a sliding window. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    return tern_configure_common(d, f, "phi3", err);
}

static const struct tern_tensor_rule layers[] = {
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_qkv.weight", TERN_SLOT_Q, tern_dim_q, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_qkv.weight", TERN_SLOT_K, tern_dim_k, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_qkv.weight", TERN_SLOT_V, tern_dim_v, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_o),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_family families[] = {
    {.model_type = "phi3", .act = "silu", .silent = tern_hf_eps5},
    {0},
};

const struct tern_arch tern_arch_phi3 = {
    .name = "phi3", .configure = configure, .globals = tern_llama_globals, .layers = layers, .hf = families};
