/* Keys, modules and families: what hf_words.c translates by. */
#include "file/hf_words.h"

#include <stddef.h>

const struct tern_hf_key tern_hf_keys[] = {
    {"block_count", {"num_hidden_layers"}},
    {"context_length", {"max_position_embeddings"}},
    {"embedding_length", {"hidden_size"}},
    {"feed_forward_length", {"intermediate_size_mlp", "intermediate_size"}},
    {"expert_count", {"num_experts", "num_local_experts", "n_routed_experts"}},
    {"expert_used_count", {"num_experts_per_tok"}},
    {"expert_feed_forward_length", {"moe_intermediate_size"}},
    {"expert_weights_norm", {"norm_topk_prob"}},
    {"interleave_moe_layer_step", {"interleave_moe_layer_step", "decoder_sparse_step"}},
    {"attention.chunk_size", {"attention_chunk_size"}},
    {"attention.temperature_length", {"floor_scale"}},
    {"attention.temperature_scale", {"rope_parameters.llama_4_scaling_beta"}},
    {"attention.head_count", {"num_attention_heads"}},
    {"attention.head_count_kv", {"num_key_value_heads"}},
    {"attention.key_length", {"head_dim"}},
    {"attention.value_length", {"head_dim"}},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}},
    {"attn_logit_softcapping", {"attn_logit_softcapping"}},
    {"final_logit_softcapping", {"final_logit_softcapping"}},
    {"rope.freq_base", {"rope_theta", "rope_parameters.rope_theta", "rope_parameters.full_attention.rope_theta"}},
    {"rope.freq_base_swa", {"rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"}},
    {"rope.scaling.factor", {"rope_scaling.factor", "rope_parameters.factor", "rope_parameters.full_attention.factor"}},
    {"rope.scaling.low_freq_factor", {"rope_scaling.low_freq_factor", "rope_parameters.low_freq_factor"}},
    {"rope.scaling.high_freq_factor", {"rope_scaling.high_freq_factor", "rope_parameters.high_freq_factor"}},
    {"rope.scaling.yarn_beta_fast", {"rope_scaling.beta_fast", "rope_parameters.beta_fast"}},
    {"rope.scaling.yarn_beta_slow", {"rope_scaling.beta_slow", "rope_parameters.beta_slow"}},
    {"rope.scaling.original_context_length",
     {"rope_scaling.original_max_position_embeddings", "rope_parameters.original_max_position_embeddings",
      "original_max_position_embeddings"}},
    {0},
};

const struct tern_hf_word tern_hf_modules[] = {
    {"embed_tokens", "token_embd"},
    {"norm", "output_norm"},
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.#.gate_proj", "ffn_gate.#"},
    {"mlp.experts.#.up_proj", "ffn_up.#"},
    {"mlp.experts.#.down_proj", "ffn_down.#"},
    {"mlp.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"mlp.switch_mlp.up_proj", "ffn_up_exps"},
    {"mlp.switch_mlp.down_proj", "ffn_down_exps"},
    {0},
};

const struct tern_hf_word tern_hf_whole_names[] = {
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"feed_forward.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"feed_forward.experts.down_proj", "ffn_down_exps.weight"},
    {0},
};

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

static const struct tern_hf_word llama4_modules[] = {
    {"feed_forward.gate_proj", "ffn_gate"},
    {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
    {"feed_forward.router", "ffn_gate_inp"},
    {"feed_forward.experts.gate_proj", "ffn_gate_exps"},
    {"feed_forward.experts.up_proj", "ffn_up_exps"},
    {"feed_forward.experts.down_proj", "ffn_down_exps"},
    {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
    {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
    {0},
};

static const struct tern_hf_word gemma_modules[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {0},
};

static const struct tern_hf_word glm4_modules[] = {
    {"post_self_attn_layernorm", "post_attention_norm"}, {"post_mlp_layernorm", "post_ffw_norm"}, {0}};

/* What a class has where its configuration is silent: the arguments' defaults in transformers. */
static const struct tern_hf_number eps6[] = {{"attention.layer_norm_rms_epsilon", 1e-6}, {0}};
static const struct tern_hf_number eps5[] = {{"attention.layer_norm_rms_epsilon", 1e-5}, {0}};
static const struct tern_hf_number qwen3_numbers[] = {
    {"attention.key_length", 128}, {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1e-6}, {0}};
static const struct tern_hf_number qwen3_moe_numbers[] = {{"attention.head_count_kv", 4},
                                                          {"attention.layer_norm_rms_epsilon", 1e-6},
                                                          {"expert_used_count", 8},
                                                          {"expert_feed_forward_length", 768},
                                                          {0}};
static const struct tern_hf_number mixtral_numbers[] = {{"attention.layer_norm_rms_epsilon", 1e-5},
                                                        {"expert_count", 8},
                                                        {"expert_used_count", 2},
                                                        {"rope.freq_base", 1e6},
                                                        {0}};
static const struct tern_hf_number llama4_numbers[] = {
    {"context_length", 131072},      {"attention.head_count", 40},
    {"attention.head_count_kv", 8},  {"attention.key_length", 128},
    {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1e-5},
    {"rope.freq_base", 5e5},         {"expert_count", 16},
    {"expert_used_count", 1},        {0}};
static const struct tern_hf_number glm4_numbers[] = {
    {"attention.head_count_kv", 2},  {"attention.key_length", 128},
    {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1.5625e-7},
    {"partial_rotary_factor", 0.5},  {0}};
static const struct tern_hf_number ministral3_numbers[] = {
    {"attention.head_count_kv", 8},  {"attention.key_length", 128},
    {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1e-5},
    {"rope.freq_base", 1e6},         {0}};
static const struct tern_hf_number smollm3_numbers[] = {
    {"attention.head_count_kv", 4}, {"attention.layer_norm_rms_epsilon", 1e-6}, {"rope.freq_base", 2e6}, {0}};
static const struct tern_hf_number gemma_numbers[] = {
    {"context_length", 131072},      {"attention.head_count", 8},
    {"attention.head_count_kv", 4},  {"attention.key_length", 256},
    {"attention.value_length", 256}, {"attention.layer_norm_rms_epsilon", 1e-6},
    {"rope.freq_base", 1e6},         {0}};
static const struct tern_hf_number gemma2_numbers[] = {{"context_length", 8192},
                                                       {"attention.head_count", 8},
                                                       {"attention.head_count_kv", 4},
                                                       {"attention.key_length", 256},
                                                       {"attention.value_length", 256},
                                                       {"attention.layer_norm_rms_epsilon", 1e-6},
                                                       {0}};

const struct tern_hf_family tern_hf_families[] = {
    {.model_type = "llama", .arch = "llama", .act = "silu", .silent = eps6},
    {.model_type = "mistral", .arch = "llama", .act = "silu", .silent = eps6},
    {.model_type = "qwen2", .arch = "qwen2", .act = "silu", .silent = eps6},
    {.model_type = "qwen3", .arch = "qwen3", .act = "silu", .silent = qwen3_numbers},
    {.model_type = "phi3", .arch = "phi3", .act = "silu", .silent = eps5},
    {.model_type = "gemma2",
     .arch = "gemma2",
     .act = "gelu_pytorch_tanh",
     .modules = gemma_modules,
     .silent = gemma2_numbers,
     .norms_from_1 = true,
     .windows = true},
    {.model_type = "gemma3_text",
     .arch = "gemma3",
     .act = "gelu_pytorch_tanh",
     .modules = gemma_modules,
     .silent = gemma_numbers,
     .norms_from_1 = true,
     .windows = true},
    {.model_type = "qwen3_moe", .arch = "qwen3moe", .act = "silu", .silent = qwen3_moe_numbers, .experts = true},
    {.model_type = "glm4", .arch = "glm4", .act = "silu", .modules = glm4_modules, .silent = glm4_numbers},
    {.model_type = "smollm3", .arch = "smollm3", .act = "silu", .silent = smollm3_numbers},
    {.model_type = "ministral3", .arch = "mistral3", .act = "silu", .silent = ministral3_numbers},
    {.model_type = "llama4_text",
     .arch = "llama4",
     .act = "silu",
     .modules = llama4_modules,
     .silent = llama4_numbers,
     .experts = true},
    {.model_type = "mixtral",
     .arch = "llama",
     .act = "silu",
     .modules = mixtral_modules,
     .silent = mixtral_numbers,
     .experts = true},
    {0},
};
