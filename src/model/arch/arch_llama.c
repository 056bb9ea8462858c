/* Llama 1-3, SmolLM2, Mixtral, and what GGUF converts to "llama".  Touvron et al. 2023 (RMSNorm, RoPE, SwiGLU).
 *
 * Converters permute the rows of q and k so that rotated pairs are neighbours: GGUF wants interleaved RoPE where
 * the original wants half-split.  Llama 3.x frequency scaling comes as the tensor rope_freqs.weight, one divisor per
 * pair. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_common(d, f, "llama", err));
    TERN_TRY(tern_configure_experts(d, f, "llama", true, err));
out:
    return rc;
}

const struct tern_tensor_rule tern_llama_globals[] = {
    TERN_MATRIX("token_embd.weight", TERN_EMBED, tern_dim_vocab, tern_dim_embd),
    TERN_VECTOR("output_norm.weight", TERN_OUT_NORM, tern_dim_embd),
    TERN_MATRIX("output.weight", TERN_HEAD, tern_dim_vocab, tern_dim_embd, .optional = true),
    TERN_VECTOR("rope_freqs.weight", TERN_ROPE_FACTORS, tern_dim_rope, .optional = true),
    TERN_VECTOR("rope_factors_short.weight", TERN_ROPE_FACTORS_SHORT, tern_dim_rope, .optional = true),
    TERN_VECTOR("rope_factors_long.weight", TERN_ROPE_FACTORS_LONG, tern_dim_rope, .optional = true),
    {0},
};

const struct tern_tensor_rule tern_llama_layers[] = {
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q.weight", TERN_SLOT_Q, tern_dim_q, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_k.weight", TERN_SLOT_K, tern_dim_k, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_v.weight", TERN_SLOT_V, tern_dim_v, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_o),
    TERN_VECTOR("blk.%d.attn_q.bias", TERN_SLOT_Q_BIAS, tern_dim_q, .optional = true),
    TERN_VECTOR("blk.%d.attn_k.bias", TERN_SLOT_K_BIAS, tern_dim_k, .optional = true),
    TERN_VECTOR("blk.%d.attn_v.bias", TERN_SLOT_V_BIAS, tern_dim_v, .optional = true),
    TERN_VECTOR("blk.%d.attn_output.bias", TERN_SLOT_O_BIAS, tern_dim_embd, .optional = true),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_gate.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    {0},
};

/* Experts in one tensor, or, as early files of Mixtral and Hugging Face have them, each in its own. */
const struct tern_tensor_rule tern_expert_layers[] = {
    TERN_MATRIX("blk.%d.ffn_gate_shexp.weight", TERN_SLOT_SHARED_GATE, tern_dim_ff_shared, tern_dim_embd,
                .when = tern_when_shared),
    TERN_MATRIX("blk.%d.ffn_up_shexp.weight", TERN_SLOT_SHARED_UP, tern_dim_ff_shared, tern_dim_embd,
                .when = tern_when_shared),
    TERN_MATRIX("blk.%d.ffn_down_shexp.weight", TERN_SLOT_SHARED_DOWN, tern_dim_embd, tern_dim_ff_shared,
                .when = tern_when_shared),
    TERN_MATRIX("blk.%d.ffn_gate_inp.weight", TERN_SLOT_ROUTER, tern_dim_experts, tern_dim_embd,
                .when = tern_when_experts, .whole = true),
    TERN_MATRIX("blk.%d.ffn_gate.%d.weight", TERN_SLOT_EXPERT_GATE, tern_dim_ff_expert, tern_dim_embd,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT, .optional = true),
    TERN_MATRIX("blk.%d.ffn_up.%d.weight", TERN_SLOT_EXPERT_UP, tern_dim_ff_expert, tern_dim_embd,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT, .optional = true),
    TERN_MATRIX("blk.%d.ffn_down.%d.weight", TERN_SLOT_EXPERT_DOWN, tern_dim_embd, tern_dim_ff_expert,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT, .optional = true),
    TERN_MATRIX("blk.%d.ffn_gate_up_exps.weight", TERN_SLOT_EXPERT_GATE, tern_dim_ff_expert, tern_dim_embd,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT, .optional = true),
    TERN_MATRIX("blk.%d.ffn_gate_up_exps.weight", TERN_SLOT_EXPERT_UP, tern_dim_ff_expert, tern_dim_embd,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT, .optional = true),
    TERN_MATRIX("blk.%d.ffn_gate_exps.weight", TERN_SLOT_EXPERT_GATE, tern_dim_ff_expert, tern_dim_embd,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT),
    TERN_MATRIX("blk.%d.ffn_up_exps.weight", TERN_SLOT_EXPERT_UP, tern_dim_ff_expert, tern_dim_embd,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT),
    TERN_MATRIX("blk.%d.ffn_down_exps.weight", TERN_SLOT_EXPERT_DOWN, tern_dim_embd, tern_dim_ff_expert,
                .when = tern_when_experts, .stacked = TERN_PER_EXPERT),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_word mixtral_modules[] = {
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts.#.w1", "ffn_gate.#"},
    {"block_sparse_moe.experts.#.w3", "ffn_up.#"},
    {"block_sparse_moe.experts.#.w2", "ffn_down.#"},
    {"block_sparse_moe.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"block_sparse_moe.switch_mlp.up_proj", "ffn_up_exps"},
    {"block_sparse_moe.switch_mlp.down_proj", "ffn_down_exps"},
    {0},
};

static const struct tern_hf_number mixtral_numbers[] = {{"attention.layer_norm_rms_epsilon", 1e-5},
                                                        {"expert_count", 8},
                                                        {"expert_used_count", 2},
                                                        {"rope.freq_base", 1e6},
                                                        {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "llama", .act = "silu", .silent = tern_hf_eps6},
    {.model_type = "mistral", .act = "silu", .silent = tern_hf_eps6},
    {.model_type = "mixtral", .act = "silu", .modules = mixtral_modules, .silent = mixtral_numbers, .experts = true},
    {0},
};

const struct tern_arch tern_arch_llama = {.name = "llama",
                                          .configure = configure,
                                          .globals = tern_llama_globals,
                                          .layers = tern_llama_layers,
                                          .hf = families,
                                          .gguf = {.pairs = true, .divisors = true}};
