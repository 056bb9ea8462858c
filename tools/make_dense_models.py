#!/usr/bin/env python3
"""Make the tiny random models of most families in tests/data/tiny and the logits they must produce.

As make_tiny_models.py, whose prompts it shares: every parameter is drawn anew, the referee is transformers in float32
with eager attention.  Matrices are Q8_0, rounded before the referee sees them, so both run on the same numbers and
decode rows go through quantised products.  Runs outside CI: the results are committed.

    make_dense_models.py            write all of tests/data/tiny
    make_dense_models.py NAME...    write these

Written with torch 2.15.0, transformers 5.23.0, gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import math
import zlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

import make_tiny_models as tiny
import reference_logits as ref

OUT = tiny.OUT
ROWS = 80  # logits that are kept: of the last positions

# Dimensions differ from each other inside each model wherever the structure allows it.
BASE = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, max_position_embeddings=512, bos_token_id=None,
            eos_token_id=None, pad_token_id=None, attn_implementation="eager")
DEFAULT_ROPE = dict(rope_type="default", rope_theta=1e4)
YARN = dict(rope_type="yarn", rope_theta=1e3, factor=4.0, original_max_position_embeddings=48, beta_fast=6.0,
            beta_slow=1.5)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e3, factor=8.0, original_max_position_embeddings=40, low_freq_factor=1.0,
              high_freq_factor=5.0)
LONGROPE = dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=100,
                short_factor=[1 + i / 16 for i in range(16)], long_factor=[1 + i * i / 9 for i in range(16)])
GEMMA3_ROPE = {"full_attention": dict(rope_type="linear", rope_theta=1e6, factor=8.0),
               "sliding_attention": dict(rope_type="default", rope_theta=1e4)}
SHORT = {"phi3-long": 97}  # ids of a second prompt, the beginning of the first: within longrope's original context


def plain(**changes):
    return {**BASE, "rope_parameters": DEFAULT_ROPE, **changes}


def phi3(**changes):
    settings = plain(**{"original_max_position_embeddings": 100, "num_attention_heads": 2, **changes})
    del settings["head_dim"]  # Phi-3 has no such key
    return settings


SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = {"attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": 32,
          "attention.value_length_swa": 32, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e3,
          "rope.dimension_count": 64, "rope.dimension_count_swa": 32, "attention.sliding_window": 40,
          "final_logit_softcapping": 4.0}


def gemma4(**changes):
    rope = {SLIDING: dict(rope_type="default", rope_theta=1e3),
            FULL: dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6)}
    return plain(**{"num_hidden_layers": len(changes["layer_types"]), "num_attention_heads": 2, "rope_parameters": rope,
                    "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 0, "global_head_dim": 64,
                    "sliding_window": 40, "final_logit_softcapping": 4.0, "tie_word_embeddings": True, **changes})


QWEN35_ROPE = {**DEFAULT_ROPE, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True}


def qwen35(**changes):
    return plain(**{"rope_parameters": QWEN35_ROPE, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
                    "linear_value_head_dim": 32, "linear_num_key_heads": 2, "head_dim": 64, **changes})


def qwen35_keys(settings):
    """Their values in GGUF's words."""
    return {"ssm.conv_kernel": settings["linear_conv_kernel_dim"], "ssm.state_size": settings["linear_key_head_dim"],
            "ssm.group_count": settings["linear_num_key_heads"], "rope.dimension_sections": [2, 1, 1, 0],
            "ssm.time_step_rank": settings["linear_num_value_heads"],
            "ssm.inner_size": settings["linear_num_value_heads"] * settings["linear_value_head_dim"],
            "rope.dimension_count": settings["head_dim"] // 4}


DENSE35 = qwen35(num_hidden_layers=3, full_attention_interval=2, linear_num_value_heads=6)
EXPERTS35 = qwen35(num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, linear_num_value_heads=4,
                   linear_conv_kernel_dim=3, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
                   shared_expert_intermediate_size=64)
del EXPERTS35["intermediate_size"]

LATENT = dict(kv_lora_rank=96, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48)
DEEPSEEK_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 48,
             "rope.scaling.yarn_beta_fast": 6.0, "rope.scaling.yarn_beta_slow": 1.5}


def latent(**changes):
    settings = plain(**{**LATENT, "num_key_value_heads": changes.get("num_attention_heads", 4), **changes})
    del settings["head_dim"]  # that of what is rotated
    return settings


def latent_keys(rank=96, nope=32, rot=16, value=48, **more):
    return {"attention.head_count_kv": 1, "attention.kv_lora_rank": rank, "attention.key_length": rank + rot,
            "attention.value_length": rank, "attention.key_length_mla": nope + rot,
            "attention.value_length_mla": value, "rope.dimension_count": rot, **more}


# name: (GGUF architecture, class of transformers without its ending, configuration, further metadata)
MODELS = {
    "qwen3": ("qwen3", "Qwen3", plain(head_dim=48, tie_word_embeddings=True), {}),
    "llama-yarn": ("llama", "Llama", plain(rope_parameters=YARN), {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 48,
        "rope.scaling.yarn_beta_fast": 6.0, "rope.scaling.yarn_beta_slow": 1.5}),
    "llama-keys": ("llama", "Llama", plain(rope_parameters=LLAMA3, num_key_value_heads=1), {
        "rope.scaling.type": "llama3", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 40,
        "rope.scaling.low_freq_factor": 1.0, "rope.scaling.high_freq_factor": 5.0}),
    "gemma2": ("gemma2", "Gemma2", plain(
        num_hidden_layers=3, num_key_value_heads=1, sliding_window=20, query_pre_attn_scalar=24, num_attention_heads=2,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0), {
            "attention.sliding_window": 20, "attention.scale": 24**-0.5, "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0}),
    "gemma3-linear": ("gemma3", "Gemma3", plain(
        num_hidden_layers=3, num_key_value_heads=1, sliding_window=70, query_pre_attn_scalar=32, num_attention_heads=2,
        layer_types=["full_attention", "sliding_attention", "full_attention"], rope_parameters=GEMMA3_ROPE), {
            "attention.sliding_window": 70, "attention.sliding_window_pattern": [False, True, False],
            "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "mistral": ("llama", "Mistral", plain(hidden_size=32, sliding_window=40, num_key_value_heads=1),
                {"attention.sliding_window": 40}),
    "mistral3": ("mistral3", "Ministral3", plain(
        rope_parameters={**YARN, "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.3, "mscale": 1.0,
                         "mscale_all_dim": 1.0}), {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 6.0, "rope.scaling.yarn_beta_slow": 1.5,
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.3}),
    "llama4": ("llama4", "Llama4", plain(
        num_hidden_layers=4, num_key_value_heads=1, num_attention_heads=2, intermediate_size_mlp=96, moe_layers=[],
        attention_chunk_size=50, floor_scale=30, attn_scale=0.4, use_qk_norm=True, attn_temperature_tuning=True,
        rope_parameters={**LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 1.0}), {
            "attention.chunk_size": 50, "attention.temperature_length": 30, "attention.temperature_scale": 0.4,
            "rope.scaling.type": "llama3", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 40,
            "rope.scaling.low_freq_factor": 1.0, "rope.scaling.high_freq_factor": 1.0}),
    "llama4-experts": ("llama4", "Llama4", plain(
        num_key_value_heads=1, num_attention_heads=3, intermediate_size=32, intermediate_size_mlp=96,
        num_local_experts=5, num_experts_per_tok=2, interleave_moe_layer_step=2, attention_chunk_size=50,
        use_qk_norm=True), {
            "feed_forward_length": 96, "attention.chunk_size": 50, "expert_count": 5, "expert_used_count": 2,
            "expert_feed_forward_length": 32, "interleave_moe_layer_step": 2}),
    "llama4-128": ("llama4", "Llama4", plain(
        hidden_size=32, vocab_size=64, num_key_value_heads=1, num_attention_heads=2, intermediate_size=32,
        intermediate_size_mlp=64, num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2,
        attention_chunk_size=50, use_qk_norm=False), {
            "feed_forward_length": 64, "attention.chunk_size": 50, "expert_count": 128, "expert_used_count": 1,
            "expert_feed_forward_length": 32, "interleave_moe_layer_step": 2}),
    "smollm3": ("smollm3", "SmolLM3", plain(
        num_hidden_layers=5, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
        tie_word_embeddings=True), {}),
    "glm4": ("glm4", "Glm4", plain(
        attention_bias=True, num_key_value_heads=1, rope_parameters={**DEFAULT_ROPE, "partial_rotary_factor": 0.5}),
             {"rope.dimension_count": 16}),
    "gemma4": ("gemma4", "Gemma4", gemma4(
        attention_k_eq_v=True, num_global_key_value_heads=1, layer_types=[SLIDING, SLIDING, FULL]), {
            **GEMMA4, "attention.head_count_kv": [2, 2, 1],
            "attention.sliding_window_pattern": [True, True, False]}),
    "gemma4-small": ("gemma4", "Gemma4", gemma4(
        num_key_value_heads=1, hidden_size_per_layer_input=32, num_kv_shared_layers=3, use_double_wide_mlp=True,
        intermediate_size=64, hidden_size=32, layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL]), {
            **GEMMA4, "feed_forward_length": [64, 64, 128, 128, 128], "attention.shared_kv_layers": 3,
            "embedding_length_per_layer_input": 32,
            "attention.sliding_window_pattern": [True, False, True, True, False]}),
    "qwen35": ("qwen35", "Qwen3_5", DENSE35, {**qwen35_keys(DENSE35), "full_attention_interval": 2}),
    "qwen35moe": ("qwen35moe", "Qwen3_5Moe", EXPERTS35, {
        **qwen35_keys(EXPERTS35), "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 64, "block_count": 5, "nextn_predict_layers": 1,
        "attention.recurrent_layers": [True, True, True, False, False]}),
    "deepseek2-lite": ("deepseek2", "DeepseekV2", latent(
        q_lora_rank=None, first_k_dense_replace=1, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=2, routed_scaling_factor=1.3, topk_method="greedy", n_group=1, topk_group=1,
        rope_parameters=DEEPSEEK_YARN), {
            **latent_keys(), **YARN_KEYS, "rope.scaling.yarn_log_multiplier": 0.07, "expert_count": 5,
            "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_count": 2,
            "expert_weights_scale": 1.3, "leading_dense_block_count": 1}),
    "mixtral-apart": ("llama", "Mixtral", plain(
        intermediate_size=32, num_hidden_layers=1, num_key_value_heads=1, num_local_experts=3,
        num_experts_per_tok=2), {"expert_count": 3, "expert_used_count": 2}),
    "gemma4-experts": ("gemma4", "Gemma4", gemma4(
        num_global_key_value_heads=1, layer_types=[SLIDING, FULL], enable_moe_block=True, num_experts=5,
        top_k_experts=2, moe_intermediate_size=32), {
            **GEMMA4, "attention.sliding_window_pattern": [True, False], "expert_count": 5, "expert_used_count": 2,
            "expert_feed_forward_length": 32}),
    "phi3-window": ("phi3", "Phi3", phi3(num_key_value_heads=1, sliding_window=20, rope_parameters=DEFAULT_ROPE),
                    {"attention.sliding_window": 20}),
    "phi3-long": ("phi3", "Phi3", phi3(rope_parameters=LONGROPE), {
        "attention.sliding_window": 0, "rope.scaling.original_context_length": 100,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(512 / 100) / math.log(100))}),
}
APART = ("mixtral-apart",)  # whose experts are tensors of their own, as in files of 2023
TYPES = {"llama4-128": Type.Q4_0}
PROMPT = 139

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA_LAYER = {
    **LAYER,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LAYERS = {
    "llama": {**LAYER, "ffn_gate_inp": "mlp.gate"},
    "llama4": {**LAYER, "ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj",
               "ffn_down": "feed_forward.down_proj", "ffn_gate_inp": "feed_forward.router",
               "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
               "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
               "ffn_down_shexp": "feed_forward.shared_expert.down_proj"},
    "deepseek2": {
        **LAYER,
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    },
    "mistral3": LAYER,
    "smollm3": LAYER,
    "gemma2": GEMMA_LAYER,
    "gemma3": {**GEMMA_LAYER, **HEAD_NORMS},
    "gemma4": {**GEMMA_LAYER, **HEAD_NORMS, "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection",
               "post_norm": "post_per_layer_input_norm", "ffn_gate_inp": "router.proj",
               "post_ffw_norm_1": "post_feedforward_layernorm_1", "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
               "post_ffw_norm_2": "post_feedforward_layernorm_2"},
    "glm4": {
        **{name: hf for name, hf in LAYER.items() if name != "ffn_gate"},
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "phi3": {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    "qwen3": {**LAYER, **HEAD_NORMS},
}
QWEN35_LAYER = {
    **LAYER, **HEAD_NORMS, "post_attention_norm": "post_attention_layernorm", "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj"}
del QWEN35_LAYER["ffn_norm"]
LAYERS.update({"qwen35": QWEN35_LAYER, "qwen35moe": QWEN35_LAYER})
GLOBALS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
           "per_layer_token_embd": "model.embed_tokens_per_layer",
           "per_layer_model_proj": "model.per_layer_model_projection",
           "per_layer_proj_norm": "model.per_layer_projection_norm"}
WHOLE = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
         "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight"}
INTERLEAVED = ("llama", "mistral3", "smollm3")  # families whose converter permutes the rows of q and k
PLAIN = ("ffn_gate_inp", "ssm_conv1d", "ssm_alpha", "ssm_beta")  # stored as they are
PLUS_ONE = ("gemma2", "gemma3", "qwen35", "qwen35moe")  # families whose norms are stored as 1 + w


def rounded(value, dtype=Type.Q8_0):
    return gguf.quants.dequantize(gguf.quants.quantize(np.ascontiguousarray(value), dtype), dtype)


def heads_of(value, config):
    """The two parts of every head in kv_b_proj, the first as files have it: transposed."""
    both = value.reshape(config.num_attention_heads, -1, value.shape[-1])
    return both[:, :config.qk_nope_head_dim].swapaxes(1, 2), both[:, config.qk_nope_head_dim:]


def round_heads(value, config):
    for part in heads_of(value, config):
        part[...] = rounded(part)


@torch.no_grad()
def randomise(model, arch, rng, dtype):
    tied = model.config.tie_word_embeddings
    for name, param in model.named_parameters():
        shape = tuple(param.shape)
        if "embed_tokens" in name:
            value = rng.normal(0, 1 / math.sqrt(shape[1]) if tied else 0.5, shape)
        elif name.endswith(".bias"):
            value = rng.normal(0, 1, shape)
        elif name.endswith("A_log"):
            value = rng.uniform(-3, 0.5, shape)
        elif name.endswith("dt_bias"):
            value = rng.normal(0, 1, shape)
        elif "conv1d" in name:
            value = rng.normal(0, 0.6, shape)
        elif len(shape) == 1:
            value = rng.uniform(-0.5, 0.5, shape) if arch in PLUS_ONE and "linear_attn" not in name else rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.normal(0, 1 / math.sqrt(shape[1 if arch == "llama4" else -1]), shape)
        if arch == "qwen35moe" and "mlp.gate." in name:
            value *= 4  # choices that rounding rarely turns: a state would remember each
        if arch == "gemma4" and "q_norm" in name:
            value *= 0.2  # scores have no other scale
        if "router.proj" in name:
            value *= math.sqrt(shape[1])  # what the router reads is divided by that
        value = value.astype(np.float32)
        if name.endswith("kv_b_proj.weight"):
            round_heads(value, model.config)
        elif "conv1d" in name:
            pass
        elif len(shape) == 2 or (len(shape) == 3 and arch != "llama4"):
            value = rounded(value, dtype)
        elif len(shape) == 3:  # llama4's stacks of experts, which lie transposed
            value = rounded(value.swapaxes(1, 2), dtype).swapaxes(1, 2).copy()
        param.copy_(torch.from_numpy(value))
    for layer in model.model.layers if arch == "gemma4" else ():
        layer.layer_scalar.copy_(torch.from_numpy(rng.uniform(0.5, 1.2, 1).astype(np.float32)))
    return model.float().eval()


def more_of_gemma4(model):
    """What is no parameter, and what files hold although nothing uses it: keys of layers that attend to another's."""
    pairs = model.config.per_layer_config[model.config.num_hidden_layers - 1].head_dim // 2
    yield "rope_freqs.weight", np.array([1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4))
    for n, layer in enumerate(model.model.layers):
        yield f"blk.{n}.layer_output_scale.weight", layer.layer_scalar.numpy()
    if layer.self_attn.is_kv_shared_layer:
        yield f"blk.{n}.attn_k.weight", np.ones((64, model.config.hidden_size))
        yield f"blk.{n}.attn_k_norm.weight", np.ones(64)


def tiled(array, config, axis, dim):
    """Value heads lie by key heads; GGUF wants them the other way round."""
    keys, dims = config.linear_num_key_heads, array.shape
    split = array.reshape(*dims[:axis], keys, config.linear_num_value_heads // keys, dim, *dims[axis + 1:])
    return np.ascontiguousarray(split.swapaxes(axis, axis + 1)).reshape(dims)


def delta_tensor(hf, array, config):
    """What the converter makes of a tensor of a layer with a recurrent state."""
    dim, part = config.linear_value_head_dim, hf.split("linear_attn.")[1]
    values = 2 * config.linear_num_key_heads * config.linear_key_head_dim  # where those of q and k end
    if part == "A_log":
        return tiled(-np.exp(array), config, 0, 1)
    if part == "dt_bias" or part.startswith(("in_proj_a", "in_proj_b")):
        return tiled(array, config, 0, 1)
    if part.startswith("in_proj_z"):
        return tiled(array, config, 0, dim)
    if part.startswith("out_proj"):
        return tiled(array, config, 1, dim)
    if part.startswith(("in_proj_qkv", "conv1d")):
        array = array.reshape(len(array), -1)
        return np.concatenate([array[:values], tiled(array[values:], config, 0, dim)])
    return array


def guesser35(model):
    """A layer that guesses further tokens, which files count among their blocks."""
    width = model.config.hidden_size
    for name in ("attn_norm", "nextn.enorm"):
        yield f"blk.4.{name}.weight", np.ones(width)
    yield "blk.4.nextn.eh_proj.weight", np.ones((width, 2 * width))


def tensors(model, arch):
    """(GGUF name, array) of every parameter; a parameter without a name is an error."""
    state = {name: p.detach().numpy() for name, p in ref.weights(model).items()}
    names = {f"{hf}.weight": f"{name}.weight" for name, hf in GLOBALS.items()}
    for n in range(model.config.num_hidden_layers):
        for name, hf in LAYERS[arch].items():
            for end in ("weight", "bias"):
                names[f"model.layers.{n}.{hf}.{end}"] = f"blk.{n}.{name}.{end}"
        names[f"model.layers.{n}.linear_attn.A_log"] = f"blk.{n}.ssm_a"
        names[f"model.layers.{n}.linear_attn.dt_bias"] = f"blk.{n}.ssm_dt.bias"
    if arch == "gemma4":
        yield from more_of_gemma4(model)
    if arch == "qwen35moe":
        yield from guesser35(model)
    for length in ("short", "long"):
        if f"{length}_factor" in (model.config.rope_parameters or {}):
            yield f"rope_factors_{length}.weight", np.array(model.config.rope_parameters[f"{length}_factor"])
    for hf, array in state.items():
        if arch in INTERLEAVED and (".q_proj." in hf or ".k_proj." in hf):
            heads = array.shape[0] // model.config.head_dim
            array = ref.interleave_rope_rows(array.reshape(len(array), -1), heads).reshape(array.shape)
        if "linear_attn" in hf:
            array = delta_tensor(hf, array, model.config)
        elif arch in PLUS_ONE and array.ndim == 1:
            array = array + np.float32(1)
        whole = hf.split(".", 3)[-1]
        if whole == "self_attn.kv_b_proj.weight":
            for word, value in zip("kv", heads_of(array, model.config)):
                yield f"blk.{hf.split('.')[2]}.attn_{word}_b.weight", value
            continue
        if whole == "mlp.gate.e_score_correction_bias":
            yield f"blk.{hf.split('.')[2]}.exp_probs_b.bias", array
            continue
        if arch == "gemma4" and whole in WHOLE:
            yield f"blk.{hf.split('.')[2]}.{WHOLE[whole]}", array
        elif hf.endswith("experts.gate_up_proj"):
            block = f"blk.{hf.split('.')[2]}"
            array = array.swapaxes(1, 2) if arch == "llama4" else array
            for part, half in zip(("gate", "up"), np.split(array, 2, axis=1)):
                yield f"{block}.ffn_{part}_exps.weight", half
        elif hf.endswith("experts.down_proj"):
            yield f"blk.{hf.split('.')[2]}.ffn_down_exps.weight", array.swapaxes(1, 2) if arch == "llama4" else array
        elif hf.endswith("shared_expert_gate.weight"):
            yield names[hf], array[0]
        else:
            yield names[hf], array


def apart(arrays):
    for name, array in arrays:
        if "_exps." not in name:
            yield name, array
        for n, one in enumerate(array if "_exps." in name else ()):
            yield name.replace("_exps.", f".{n}."), one


def add(writer, key, value):
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)


def metadata(arch, settings, more):
    meta = {
        "context_length": settings["max_position_embeddings"],
        "embedding_length": settings["hidden_size"],
        "block_count": settings["num_hidden_layers"],
        "feed_forward_length": settings.get("intermediate_size"),
        "attention.head_count": settings["num_attention_heads"],
        "attention.head_count_kv": settings["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": settings["rms_norm_eps"],
        "attention.key_length": settings.get("head_dim"),
        "attention.value_length": settings.get("head_dim"),
        "rope.freq_base": float(settings["rope_parameters"].get("rope_theta", 1e4)),
    }
    return {f"{arch}.{key}": value for key, value in {**meta, **more}.items() if value is not None}


def write_gguf(path, arch, settings, more, arrays, dtype=Type.Q8_0):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("model")
    writer.add_name("tern tiny test model")
    for key, value in metadata(arch, settings, more).items():
        add(writer, key, value)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model("none")
    for name, array in arrays:
        array = np.ascontiguousarray(array, np.float32)
        if array.ndim == 1 or (any(word in name for word in PLAIN) and dtype != Type.BF16):
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name):
    arch, cls, settings, more = MODELS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    model = tiny.new_model(cls, settings)
    dtype = TYPES.get(name, Type.Q8_0)
    randomise(model, arch, rng, dtype)
    ids = tiny.prompt({"vocab": settings["vocab_size"], "prompt": PROMPT}, rng)
    arrays = tensors(model, arch)
    write_gguf(OUT / f"{name}.gguf", arch, settings, more, apart(arrays) if name in APART else arrays, dtype)
    tiny.write_ids(name, ids)
    logits = ref.logits(model, ids)[-ROWS:]
    np.save(OUT / f"{name}.logits.npy", logits)
    if name in SHORT:
        np.save(OUT / f"{name}-short.logits.npy", ref.logits(model, ids[:SHORT[name]])[-ROWS:])
    print(f"{name:14} {(OUT / f'{name}.gguf').stat().st_size:7} bytes, |logit| <= {np.abs(logits).max():.1f}")


if __name__ == "__main__":
    tiny.make_named(make, MODELS, "the tiny models of most families, in tests/data/tiny")
