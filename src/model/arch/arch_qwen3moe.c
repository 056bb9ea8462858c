/* Qwen3's mixtures of experts (Yang et al., 2025): no biases, norms of q and k per head, experts in every layer, whose
 * weights sum to 1. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_common(d, f, "qwen3moe", err));
    TERN_TRY(tern_configure_experts(d, f, "qwen3moe", true, err));
out:
    return rc;
}

static const struct tern_tensor_rule layers[] = {
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q.weight", TERN_SLOT_Q, tern_dim_q, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_k.weight", TERN_SLOT_K, tern_dim_k, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_v.weight", TERN_SLOT_V, tern_dim_v, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_o),
    TERN_VECTOR("blk.%d.attn_q_norm.weight", TERN_SLOT_Q_NORM, tern_dim_head_k),
    TERN_VECTOR("blk.%d.attn_k_norm.weight", TERN_SLOT_K_NORM, tern_dim_head_k),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_gate.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number qwen3_moe_numbers[] = {{"attention.head_count_kv", 4},
                                                          {"attention.layer_norm_rms_epsilon", 1e-6},
                                                          {"expert_used_count", 8},
                                                          {"expert_feed_forward_length", 768},
                                                          {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "qwen3_moe",
     .act = "silu",
     .silent = qwen3_moe_numbers,
     .experts = true,
     .experts_as_weighed = true},
    {0},
};

const struct tern_arch tern_arch_qwen3moe = {
    .name = "qwen3moe", .configure = configure, .globals = tern_llama_globals, .layers = layers, .hf = families};
