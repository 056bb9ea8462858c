#!/usr/bin/env python3
"""Make tiny random models as Hugging Face publishes them: directories of config.json and safetensors files, as
transformers writes them, in tests/data/hf.

As make_tiny_models.py: every parameter is drawn anew, the referee is transformers in float32 with eager attention, on
the weights as the files hold them.  Some have a GGUF twin of the same weights and types, which must give the same bits.
Runs outside CI: the results are committed.

    make_hf_models.py [NAME...]      write all, or these

Written with torch 2.15.0, transformers 5.23.0, gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import gguf
import numpy as np
import safetensors.torch
import torch
from gguf import GGMLQuantizationType as Type

import make_dense_models as dense
import make_tiny_models as tiny
import reference_logits as ref

OUT = tiny.OUT.parent / "hf"
ROWS = 16      # logits that are kept: of the last positions
PROMPT = 80
DTYPES = {Type.F16: torch.float16, Type.BF16: torch.bfloat16}

# Dimensions differ from each other inside each model wherever the structure allows it.
BASE = dict(vocab_size=192, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=48, rms_norm_eps=1e-5, max_position_embeddings=256, bos_token_id=None,
            eos_token_id=None, pad_token_id=None, attn_implementation="eager")
PLAIN = dict(rope_type="default", rope_theta=1e5)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=1e3, factor=4.0, original_max_position_embeddings=32, beta_fast=6.0,
            beta_slow=1.5)
GEMMA3_ROPE = {"full_attention": dict(rope_type="linear", rope_theta=1e6, factor=4.0),
               "sliding_attention": dict(rope_type="default", rope_theta=1e4)}
GEMMA = dict(num_hidden_layers=3, hidden_size=32, head_dim=64, query_pre_attn_scalar=48, sliding_window=24)

EXPERTS = dict(hidden_size=32, vocab_size=128, num_attention_heads=3, head_dim=32, num_experts_per_tok=2)
# Directories of the same weights with an expert's matrices (and of latent attention a head's) in one tensor for all experts, and how they are called there:
# as mlx-lm writes them, and as transformers keeps them in memory.
STACKED = {"qwen3_moe": ("mlp.experts", "mlp.switch_mlp.{}_proj.weight", ("gate_proj", "up_proj", "down_proj")),
           "deepseek_v3": ("mlp.experts", "mlp.switch_mlp.{}_proj.weight", ("gate_proj", "up_proj", "down_proj")),
           "mixtral": ("block_sparse_moe.experts", None, ("w1", "w3", "w2"))}

LATENT = dict(hidden_size=32, vocab_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
              head_dim=None, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48,
              intermediate_size=40, moe_intermediate_size=24, num_experts_per_tok=2, tie_word_embeddings=False,
              rms_norm_eps=1e-6)
GEMMA4 = dict(hidden_size=32, vocab_size=64, intermediate_size=48, head_dim=16, global_head_dim=48, sliding_window=24,
              vocab_size_per_layer_input=64, tie_word_embeddings=True, final_logit_softcapping=4.0, rope_parameters={
                  "sliding_attention": dict(rope_type="default", rope_theta=1e3),
                  "full_attention": dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6)})
QWEN35 = dict(hidden_size=32, head_dim=64, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=32,
              linear_num_key_heads=2, rope_parameters={**PLAIN, "partial_rotary_factor": 0.25,
                                                       "mrope_section": [4, 2, 2], "mrope_interleaved": True})
SLIDING, FULL = dense.SLIDING, dense.FULL
# What GGUF says of models whose twin is written by make_dense_models.py.
TWINS = {
    "gemma4": ("gemma4", {
        "attention.head_count_kv": [2, 1], "attention.key_length": 48, "attention.value_length": 48,
        "attention.key_length_swa": 16, "attention.value_length_swa": 16, "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e3, "attention.sliding_window": 24, "final_logit_softcapping": 4.0,
        "attention.sliding_window_pattern": [True, False], "expert_count": 3, "expert_used_count": 2,
        "expert_feed_forward_length": 40}),
    "deepseek_v2": ("deepseek2", {
        **dense.latent_keys(rank=64), "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32, "rope.scaling.yarn_beta_fast": 6.0,
        "rope.scaling.yarn_beta_slow": 1.5, "rope.scaling.yarn_log_multiplier": 0.07, "expert_count": 6,
        "expert_used_count": 2, "expert_feed_forward_length": 24, "expert_shared_count": 2,
        "expert_weights_scale": 1.3, "leading_dense_block_count": 1, "expert_group_count": 3,
        "expert_group_used_count": 2}),
}

# name: (class of transformers without its ending, changes to BASE, type, size of a file, has a twin)
MODELS = {
    "llama": ("Llama", dict(rope_parameters=LLAMA3, tie_word_embeddings=True), Type.F16, "1GB", True),
    "mistral": ("Mistral", dict(rope_parameters=PLAIN, tie_word_embeddings=False, sliding_window=24), Type.BF16, "1GB",
                False),
    "qwen2": ("Qwen2", dict(rope_parameters=PLAIN, tie_word_embeddings=False, num_hidden_layers=2, head_dim=None,
                            num_attention_heads=4, num_key_value_heads=2, vocab_size=128,
                            intermediate_size=32, use_sliding_window=False), Type.BF16, "90KB",
              True),
    "qwen3": ("Qwen3", dict(rope_parameters=PLAIN, tie_word_embeddings=True), Type.BF16, "1GB", False),
    "phi3": ("Phi3", dict(rope_parameters=dense.LONGROPE, tie_word_embeddings=False,
                          original_max_position_embeddings=100, head_dim=None, sliding_window=None), Type.BF16, "1GB",
             False),
    "gemma2": ("Gemma2", dict(GEMMA, num_hidden_layers=2, rope_parameters=PLAIN, attn_logit_softcapping=20.0,
                              final_logit_softcapping=3.0), Type.BF16, "1GB", False),
    "qwen3_moe": ("Qwen3Moe", dict(EXPERTS, rope_parameters=PLAIN, tie_word_embeddings=False, num_hidden_layers=2,
                                   decoder_sparse_step=2, moe_intermediate_size=80, num_experts=5,
                                   norm_topk_prob=False), Type.BF16, "90KB", False),
    "mixtral": ("Mixtral", dict(EXPERTS, rope_parameters=PLAIN, tie_word_embeddings=True, num_local_experts=4), Type.BF16,
                "1GB", False),
    "llama4": ("Llama4", dict(EXPERTS, rope_parameters={**LLAMA3, "high_freq_factor": 1.0}, tie_word_embeddings=True,
                              num_hidden_layers=4, num_attention_heads=2, intermediate_size=40, intermediate_size_mlp=64,
                              num_local_experts=3, num_experts_per_tok=1, interleave_moe_layer_step=2,
                              attention_chunk_size=30, floor_scale=20, attn_scale=0.4, use_qk_norm=False), Type.BF16, "1GB", False),
    "glm4": ("Glm4", dict(hidden_size=32, rope_parameters={**PLAIN, "partial_rotary_factor": 0.5}, attention_bias=True,
                          tie_word_embeddings=False, head_dim=64), Type.BF16, "1GB", False),
    "ministral3": ("Ministral3", dict(hidden_size=32, tie_word_embeddings=False, rope_parameters={
        **YARN, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 0.5}), Type.BF16, "1GB", False),
    "smollm3": ("SmolLM3", dict(hidden_size=32, num_hidden_layers=5, rope_parameters=PLAIN, tie_word_embeddings=True,
                                vocab_size=96, intermediate_size=40), Type.BF16, "1GB", False),
    "qwen3_5": ("Qwen3_5", dict(QWEN35, linear_num_value_heads=6, tie_word_embeddings=True, num_hidden_layers=3,
                                layer_types=["full_attention", "linear_attention", "linear_attention"]), Type.BF16,
                "1GB", False),
    "qwen3_5_moe": ("Qwen3_5Moe", dict(QWEN35, linear_num_value_heads=4, tie_word_embeddings=False, num_hidden_layers=4,
                                       num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, vocab_size=64,
                                       shared_expert_intermediate_size=40), Type.BF16, "90KB", False),
    "gemma4": ("Gemma4", dict(GEMMA4, layer_types=[SLIDING, FULL], num_hidden_layers=2, num_key_value_heads=2,
                              num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
                              enable_moe_block=True, num_experts=3, top_k_experts=2, moe_intermediate_size=40),
               Type.BF16, "1GB", True),
    "gemma4_small": ("Gemma4", dict(GEMMA4, layer_types=[SLIDING, FULL, SLIDING, FULL], num_hidden_layers=4,
                                    num_kv_shared_layers=2, use_double_wide_mlp=True, intermediate_size=40,
                                    hidden_size_per_layer_input=32), Type.BF16, "1GB", False),
    "deepseek_v2": ("DeepseekV2", dict(LATENT, q_lora_rank=None, first_k_dense_replace=1, n_routed_experts=6,
                                       n_shared_experts=2, routed_scaling_factor=1.3,
                                       topk_method="group_limited_greedy", n_group=3, topk_group=2,
                                       rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}), Type.BF16,
                    "1GB", True),
    "deepseek_v3": ("DeepseekV3", dict(LATENT, q_lora_rank=48, first_k_dense_replace=1, n_routed_experts=4,
                                       n_shared_experts=1, routed_scaling_factor=1.8, n_group=2, topk_group=1,
                                       rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}), Type.BF16,
                    "1GB", False),
    "glm4_moe_lite": ("Glm4MoeLite", dict(LATENT, q_lora_rank=48, n_routed_experts=4, n_shared_experts=1,
                                          rope_interleave=False,
                                          rope_parameters=dict(rope_type="default", rope_theta=1e3)), Type.BF16,
                      "1GB", False),
    "gemma3": ("Gemma3", dict(GEMMA, rope_parameters=GEMMA3_ROPE,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"]), Type.BF16,
               "90KB", True),
}


def spec_of(settings):
    """What the helpers of make_tiny_models.py want to know."""
    return dict(hidden=settings["hidden_size"], tied=settings.get("tie_word_embeddings", True),
                arch="gemma3" if "query_pre_attn_scalar" in settings else "other", vocab=settings["vocab_size"],
                prompt=PROMPT)


def write_twin(path, name, model, settings, dtype):
    if name in TWINS:
        arch, more = TWINS[name]
        dense.write_gguf(path, arch, settings, more, dense.tensors(model, arch), dtype)
        return
    config, arch = model.config, name
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = settings["head_dim"] or config.hidden_size // heads
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_tokenizer_model("none")
    rope = settings["rope_parameters"]
    if name == "gemma3":
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
        writer.add_sliding_window(config.sliding_window)
        writer.add_array(f"{arch}.attention.sliding_window_pattern",
                         [kind == "sliding_attention" for kind in settings["layer_types"]])
        writer.add_attention_scale(settings["query_pre_attn_scalar"] ** -0.5)
    else:
        writer.add_rope_freq_base(rope["rope_theta"])
    factors = tiny.rope_factors(dict(rope=rope, head_dim=dim)) if name == "llama" else None
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    state = {key: p.detach().numpy() for key, p in model.named_parameters()}
    for key, hf, kind in ref.tensor_names(arch, config.num_hidden_layers,
                                          config.tie_word_embeddings, False):
        array = np.ascontiguousarray(ref.to_gguf(arch, kind, state[hf], heads, kv_heads), np.float32)
        if array.ndim == 1:
            writer.add_tensor(key, array)
        else:
            writer.add_tensor(key, gguf.quants.quantize(array, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def draw(name, cls, changes):
    """(model with parameters of its own, its settings, what make_tiny_models.py wants to know, generator)."""
    settings = {**BASE, **changes}
    rng = np.random.default_rng(sum(name.encode()))
    spec = spec_of(settings)
    return tiny.randomise(tiny.new_model(cls, settings), spec, rng), settings, spec, rng


@torch.no_grad()
def make(name):
    cls, changes, dtype, shard, twin = MODELS[name]
    model, settings, spec, rng = draw(name, cls, changes)
    parameters = ref.weights(model)
    for key, value in parameters.items():
        if "router.proj" in key:
            value *= settings["hidden_size"] ** 0.5  # what it reads is divided by that
        if key.endswith("A_log"):
            value -= 3  # states that last
        if name.startswith("gemma4") and "q_norm" in key:
            value *= 0.2  # scores have no other scale
    for n, layer in enumerate(model.model.layers if name.startswith("gemma4") else ()):
        parameters[f"{n}.layer_scalar"] = layer.layer_scalar.fill_(0.5 + 0.25 * n)
    for param in parameters.values():
        param.copy_(param.to(DTYPES[dtype]).float())
    ids = tiny.prompt(spec, rng)
    OUT.mkdir(parents=True, exist_ok=True)
    tiny.write_ids(name, ids, OUT)
    np.save(OUT / f"{name}.logits.npy", ref.logits(model, ids)[-ROWS:])
    if twin:
        write_twin(OUT / f"{name}.gguf", name, model, settings, dtype)
    model.to(DTYPES[dtype]).save_pretrained(OUT / name, max_shard_size=shard)  # rounds the RoPE in memory too: last
    (OUT / name / "generation_config.json").unlink(missing_ok=True)
    if name in STACKED:
        write_stacked(name)
    for file in OUT.glob(f"{name}*/*"):
        file.chmod(0o644)


def write_stacked(name):
    apart, called, parts = STACKED[name]
    state, to = {}, OUT / f"{name}-stacked"
    for file in (OUT / name).glob("*.safetensors"):
        state.update(safetensors.torch.load_file(file))
    for layer in {key.split(f".{apart}.")[0] for key in state if f".{apart}." in key}:
        stacks = [torch.stack([state.pop(f"{layer}.{apart}.{i}.{part}.weight") for i in range(
            sum(key.startswith(f"{layer}.{apart}.") and key.endswith(f".{part}.weight") for key in state))])
                  for part in parts]
        if called:
            state.update({f"{layer}.{called.format(word)}": stack
                          for word, stack in zip(("gate", "up", "down"), stacks)})
        else:
            state[f"{layer}.mlp.experts.gate_up_proj"] = torch.cat(stacks[:2], dim=1)
            state[f"{layer}.mlp.experts.down_proj"] = stacks[2]
    if name == "deepseek_v3":
        split_heads(state)
    to.mkdir(exist_ok=True)
    safetensors.torch.save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text((OUT / name / "config.json").read_text(encoding="ascii"), encoding="ascii")


def split_heads(state):
    """kv_b_proj as mlx-lm has it: a stack for keys, transposed, and one for values."""
    for key in [key for key in state if key.endswith("kv_b_proj.weight")]:
        both = state.pop(key).reshape(LATENT["num_attention_heads"], -1, LATENT["kv_lora_rank"])
        nope = LATENT["qk_nope_head_dim"]
        state[key.replace("kv_b_proj", "embed_q")] = both[:, :nope].swapaxes(1, 2).contiguous()
        state[key.replace("kv_b_proj", "unembed_out")] = both[:, nope:].contiguous()


if __name__ == "__main__":
    tiny.make_named(make, MODELS, "the tiny models of tests/data/hf")
