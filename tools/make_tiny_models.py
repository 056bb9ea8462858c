#!/usr/bin/env python3
"""Make the tiny random models of tests/data/tiny and the logits they must produce.

Every parameter is drawn anew, because default initialisation (std 0.02, norms of one) gives uniform attention and hides
errors.  The referee is transformers in float32 with eager attention; for quantised files it runs on the dequantised
weights.  Runs outside CI: the results are committed.

    make_tiny_models.py             write tests/data/tiny
    make_tiny_models.py --verify    check the written files with a second forward pass, written here in numpy (float64
                                    but for the rope angles), that reads the GGUF in its own conventions and decodes
                                    the blocks on its own

Written with torch 2.15.0, transformers 5.23.0, gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import argparse
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

import reference_logits as ref

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "tiny"

# Dimensions differ from each other inside each model wherever the structure allows it, so that a mixed-up size shows.
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)
MODELS = {
    "llama-tied": dict(arch="llama", seed=11, prompt=200, vocab=320, hidden=96, ffn=128, layers=2, heads=3, kv=1,
                       head_dim=64, tied=True, eps=1e-5, context=512, rope=LLAMA3_ROPE),
    "llama-untied": dict(arch="llama", seed=12, prompt=136, vocab=320, hidden=64, ffn=96, layers=2, heads=4, kv=4,
                         head_dim=32, tied=False, eps=1e-6, context=384,
                         rope=dict(rope_type="default", rope_theta=1e4)),
    "qwen2": dict(arch="qwen2", seed=17, prompt=200, vocab=320, hidden=128, ffn=160, layers=3, heads=4, kv=2, head_dim=32,
                  tied=True, eps=1e-6, context=640, rope=dict(rope_type="default", rope_theta=1e5)),
    "gemma3-w8": dict(arch="gemma3", seed=13, prompt=136, vocab=320, hidden=32, ffn=96, layers=6, heads=2, kv=1,
                      head_dim=64, tied=True, eps=1e-6, context=1024, window=8, scalar=64),
    "gemma3-w70": dict(arch="gemma3", seed=14, prompt=200, vocab=320, hidden=32, ffn=80, layers=7, heads=4, kv=1,
                       head_dim=64, tied=True, eps=1e-6, context=768, window=70, scalar=48),
}
# Files of quantised weights, of which the logits of the last 16 positions are kept: the block-type matrix, one layer and
# 80 positions (types of 32 elements use a small model, K types need rows that are multiples of 256), and heads of 80.
MATRIX = {
    "llama-b32": (dict(arch="llama", seed=15, prompt=80, vocab=320, hidden=64, ffn=96, layers=1, heads=4, kv=1,
                       head_dim=32, tied=True, eps=1e-5, context=256, rope=dict(rope_type="default", rope_theta=1e4)),
                  [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]),
    "llama-k256": (dict(arch="llama", seed=16, prompt=80, vocab=272, hidden=256, ffn=512, layers=1, heads=4, kv=1,
                        head_dim=64, tied=True, eps=1e-5, context=256, rope=dict(rope_type="default", rope_theta=1e4)),
                   [Type.Q4_K, Type.Q5_K, Type.Q6_K]),
    "llama-h80": (dict(arch="llama", seed=18, prompt=200, vocab=320, hidden=64, ffn=96, layers=2, heads=2, kv=1,
                       head_dim=80, tied=True, eps=1e-5, context=256, rope=dict(rope_type="default", rope_theta=1e4)),
                  [Type.Q8_0]),
    "qwen3moe": (dict(arch="qwen3moe", seed=21, prompt=136, vocab=192, hidden=64, ffn=80, expert_ffn=32, experts=5,
                      active=2, layers=2, heads=3, kv=1, head_dim=32, tied=False, eps=1e-6, context=256,
                      rope=dict(rope_type="default", rope_theta=1e5)),
                 [Type.Q8_0]),
    "mixtral": (dict(arch="llama", seed=22, prompt=136, vocab=208, hidden=64, ffn=32, experts=6, active=3, layers=2,
                     heads=4, kv=2, head_dim=32, tied=True, eps=1e-5, context=256,
                     rope=dict(rope_type="default", rope_theta=1e4)),
                [Type.Q5_0]),
    "deepseek2": (dict(arch="deepseek2", seed=23, prompt=136, vocab=176, hidden=64, ffn=96, expert_ffn=32, experts=6,
                       active=2, shared=1, groups=3, groups_used=2, weights_scale=1.8, dense=1, layers=2, heads=4, kv=1,
                       head_dim=48, rank=96, q_rank=32, rot=16, value=64, tied=True, eps=1e-6, context=256,
                       rope=dict(rope_type="yarn", rope_theta=1e3, factor=4.0, original_max_position_embeddings=64,
                                 beta_fast=6.0, beta_slow=1.5, mscale=0.7, mscale_all_dim=0.7)),
                  [Type.Q4_0]),
}
MATRIX_ROWS = 16
# Directories as transformers writes them, each with a GGUF twin of the same weights: the twins differ in everything that
# the containers call otherwise.  "shard" splits the weights into files of about that size.
DIRECTORIES = {
    "hf-llama": dict(arch="llama", seed=21, prompt=80, vocab=200, hidden=64, ffn=96, layers=1, heads=2, kv=1, head_dim=48,
                     tied=True, eps=1e-5, context=256, rope=LLAMA3_ROPE, type=Type.F16),
    "hf-qwen2": dict(arch="qwen2", seed=22, prompt=80, vocab=200, hidden=64, ffn=96, layers=2, heads=4, kv=2, head_dim=16,
                     tied=False, eps=1e-6, context=320, rope=dict(rope_type="default", rope_theta=1e5), type=Type.BF16,
                     shard="90KB"),
    "hf-gemma3": dict(arch="gemma3", seed=23, prompt=80, vocab=200, hidden=32, ffn=96, layers=3, heads=2, kv=1,
                      head_dim=64, tied=True, eps=1e-6, context=384, window=24, scalar=48, type=Type.BF16, shard="90KB",
                      kinds=["sliding_attention", "full_attention", "sliding_attention"]),
}
TOLERANCE = 2e-5


# ------------------------------------------------------------------------------------------------ models and weights

def hf_model(spec):
    common = dict(vocab_size=spec["vocab"], hidden_size=spec["hidden"], intermediate_size=spec["ffn"],
                  num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"], num_key_value_heads=spec["kv"],
                  head_dim=spec["head_dim"], rms_norm_eps=spec["eps"], max_position_embeddings=spec["context"],
                  tie_word_embeddings=spec["tied"], bos_token_id=None, eos_token_id=None, pad_token_id=None,
                  attn_implementation="eager")
    if spec["arch"] == "deepseek2":
        del common["head_dim"]
        common["num_key_value_heads"] = spec["heads"]
        return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(
            rope_parameters=dict(spec["rope"]), moe_intermediate_size=spec["expert_ffn"],
            n_shared_experts=spec["shared"], num_local_experts=spec["experts"], num_experts_per_tok=spec["active"],
            n_group=spec["groups"], topk_group=spec["groups_used"], norm_topk_prob=True,
            routed_scaling_factor=spec["weights_scale"], first_k_dense_replace=spec["dense"],
            kv_lora_rank=spec["rank"], q_lora_rank=spec["q_rank"], qk_rope_head_dim=spec["rot"],
            qk_nope_head_dim=spec["head_dim"] - spec["rot"], v_head_dim=spec["value"], **common))
    if spec["arch"] == "qwen3moe":
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            rope_parameters=dict(spec["rope"]), use_sliding_window=False, num_experts=spec["experts"],
            num_experts_per_tok=spec["active"], moe_intermediate_size=spec["expert_ffn"], norm_topk_prob=True, **common))
    if "experts" in spec:
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            rope_parameters=dict(spec["rope"]), num_local_experts=spec["experts"], num_experts_per_tok=spec["active"],
            **common))
    if spec["arch"] == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(rope_parameters=dict(spec["rope"]), **common))
    if spec["arch"] == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(rope_parameters=dict(spec["rope"]),
                                                                      use_sliding_window=False, **common))
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    if "kinds" in spec:
        common["layer_types"] = spec["kinds"]
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        sliding_window=spec["window"], query_pre_attn_scalar=spec["scalar"], rope_parameters=rope, **common))


@torch.no_grad()
def new_model(cls, settings):
    """A model of the class of transformers that is called so without its ending; a head_dim of None is not set."""
    config = getattr(transformers, f"{cls}TextConfig", None) or getattr(transformers, f"{cls}Config")
    arguments = {key: value for key, value in settings.items() if key != "head_dim" or value}
    return getattr(transformers, f"{cls}ForCausalLM")(config(**arguments))


def randomise(model, spec, rng):
    gemma = spec["arch"] == "gemma3"
    # A tied head multiplies by the embedding again: rows of unit length keep logits at O(1-10), and a small share of
    # the residual stream keeps the model from merely repeating its input, which would make top-1 checks empty.
    embedding_std = 1 / math.sqrt(spec["hidden"]) if spec["tied"] else 0.5
    for name, param in ref.weights(model).items():
        shape = tuple(param.shape)
        if name.endswith("embed_tokens.weight"):
            value = rng.normal(0, embedding_std, shape)
        elif name.endswith(".bias"):
            value = rng.normal(0, 2, shape)
        elif name.endswith("e_score_correction_bias"):
            value = rng.normal(0, 0.2, shape)
        elif len(shape) == 1:
            value = rng.uniform(-0.5, 0.5, shape) if gemma else rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.normal(0, 1 / math.sqrt(shape[-1]), shape)
        if spec["hidden"] == 256 and len(shape) == 2:
            # Uneven groups of 32 columns give the K types sub-block scales over their whole range.
            value *= np.repeat(rng.uniform(0.2, 1.6, (shape[0], shape[1] // 32)), 32, axis=1)
        param.copy_(torch.from_numpy(value.astype(np.float32)))
    return model.float().eval()


def prompt(spec, rng):
    ids = [int(i) for i in rng.integers(1, spec["vocab"], spec["prompt"])]
    ids[0], ids[1], ids[2] = 0, spec["vocab"] - 1, ids[spec["prompt"] // 2]  # both ends of the vocabulary, a repeat
    return ids


def rope_factors(spec):
    """The divisors that the converter stores for llama3 scaling, computed from the definition in float64."""
    rope, dim = spec["rope"], spec["head_dim"]
    if rope["rope_type"] != "llama3":
        return None
    factors = []
    for i in range(dim // 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (2 * i / dim)
        orig, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        if wave < orig / high:
            factors.append(1.0)
        elif wave > orig / low:
            factors.append(rope["factor"])
        else:
            smooth = (orig / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


# ------------------------------------------------------------------------------------------------ writing GGUF

def add_metadata(writer, spec, file_type):
    arch = spec["arch"]
    writer.add_type("model")
    writer.add_name("tern tiny test model")
    writer.add_context_length(spec["context"])
    writer.add_embedding_length(spec["hidden"])
    writer.add_block_count(spec["layers"])
    writer.add_feed_forward_length(spec["ffn"])
    writer.add_head_count(spec["heads"])
    writer.add_head_count_kv(spec["kv"])
    writer.add_layer_norm_rms_eps(spec["eps"])
    latent = "rank" in spec
    writer.add_key_length(spec["rank"] + spec["rot"] if latent else spec["head_dim"])
    writer.add_value_length(spec["rank"] if latent else spec["head_dim"])
    writer.add_vocab_size(spec["vocab"])
    if latent:
        writer.add_q_lora_rank(spec["q_rank"])
        writer.add_kv_lora_rank(spec["rank"])
        writer.add_key_length_mla(spec["head_dim"])
        writer.add_value_length_mla(spec["value"])
        writer.add_leading_dense_block_count(spec["dense"])
        writer.add_expert_shared_count(spec["shared"])
        writer.add_expert_group_count(spec["groups"])
        writer.add_expert_group_used_count(spec["groups_used"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(spec["weights_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(spec["rope"]["factor"])
        writer.add_rope_scaling_orig_ctx_len(spec["rope"]["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(spec["rope"]["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(spec["rope"]["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * spec["rope"]["mscale_all_dim"])
    if arch != "gemma3":
        writer.add_rope_dimension_count(spec["rot"] if latent else spec["head_dim"])
        writer.add_rope_freq_base(spec["rope"]["rope_theta"])
    else:
        writer.add_rope_freq_base(1e6)
        writer.add_sliding_window(spec["window"])
        if spec["scalar"] != spec["head_dim"]:
            writer.add_attention_scale(spec["scalar"] ** -0.5)
            writer.add_rope_freq_base_swa(1e4)
        if "kinds" in spec:
            writer.add_sliding_window_pattern(spec["kinds"].index("full_attention") + 1)
    if "experts" in spec:
        writer.add_expert_count(spec["experts"])
        writer.add_expert_used_count(spec["active"])
    if "expert_ffn" in spec:
        writer.add_expert_feed_forward_length(spec["expert_ffn"])
    writer.add_file_type(int(file_type))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model("none")


def gguf_tensors(model, spec):
    state = {name: p.detach().numpy() for name, p in ref.weights(model).items()}
    nope = spec["head_dim"] - spec.get("rot", 0)
    factors = rope_factors(spec) if spec["arch"] == "llama" else None
    if factors is not None:
        yield "rope_freqs.weight", factors
    for name, hf, kind in ref.tensor_names(spec["arch"], spec["layers"], spec["tied"], "experts" in spec,
                                           spec.get("dense", 0)):
        yield name, ref.to_gguf(spec["arch"], kind, state[hf], spec["heads"], spec["kv"], nope)


def write_gguf(path, spec, tensors, qtype=Type.F32, split_max_tensors=0):
    file_types = {Type.F32: 0, Type.F16: 1, Type.Q4_0: 2, Type.Q4_1: 3, Type.Q8_0: 7, Type.Q5_0: 8, Type.Q5_1: 9,
                  Type.Q4_K: 14, Type.Q5_K: 16, Type.Q6_K: 18, Type.BF16: 32}
    writer = gguf.GGUFWriter(path, spec["arch"], split_max_tensors=split_max_tensors)
    add_metadata(writer, spec, file_types[qtype])
    for name, array in tensors:
        if array.ndim == 1 or qtype == Type.F32 or "ffn_gate_inp" in name:
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        else:
            writer.add_tensor(name, quantise(np.ascontiguousarray(array, np.float32), qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ------------------------------------------------------------------------------------------------ quantising K types

def quantise(array, qtype):
    if qtype not in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        return gguf.quants.quantize(array, qtype)
    rows, cols = array.shape
    blocks = array.reshape(-1, 256).astype(np.float64)
    packed = quantise_q6_k(blocks) if qtype == Type.Q6_K else quantise_q45_k(blocks, qtype == Type.Q5_K)
    return packed.reshape(rows, cols // 256 * packed.shape[1])


def half_bytes(values):
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def quantise_q45_k(x, five):
    """Sub-blocks of 32 by their minimum and maximum; scales and minima as 6 bit multiples of d and dmin."""
    top = 31 if five else 15
    x = x.reshape(-1, 8, 32)
    low = np.minimum(x.min(axis=2), 0)
    scale, offset = (x.max(axis=2) - low) / top, -low
    d = (scale.max(axis=1) / 63).astype(np.float16)
    dmin = (offset.max(axis=1) / 63).astype(np.float16)
    wide, wide_min = d.astype(np.float64)[:, None], dmin.astype(np.float64)[:, None]
    a = np.clip(np.rint(scale / np.where(wide > 0, wide, 1)), 0, 63).astype(np.uint8)
    b = np.clip(np.rint(offset / np.where(wide_min > 0, wide_min, 1)), 0, 63).astype(np.uint8)
    step, base = (wide * a)[:, :, None], (wide_min * b)[:, :, None]
    q = np.clip(np.rint((x + base) / np.where(step > 0, step, 1)), 0, top).astype(np.uint8)

    scales = np.zeros((len(x), 12), np.uint8)
    scales[:, 0:4] = a[:, :4] | (a[:, 4:] >> 4) << 6
    scales[:, 4:8] = b[:, :4] | (b[:, 4:] >> 4) << 6
    scales[:, 8:12] = (a[:, 4:] & 15) | (b[:, 4:] & 15) << 4
    nibbles = (q[:, 0::2] & 15) | (q[:, 1::2] & 15) << 4
    parts = [half_bytes(d), half_bytes(dmin), scales]
    if five:
        high = np.zeros((len(x), 32), np.uint8)
        for j in range(8):
            high |= (q[:, j] >> 4) << j
        parts.append(high)
    return np.concatenate(parts + [nibbles.reshape(-1, 128)], axis=1)


def quantise_q6_k(x):
    """Groups of 16; the signed element of largest size sits on -32, so that scales take both signs."""
    x = x.reshape(-1, 16, 16)
    at = np.abs(x).argmax(axis=2)[:, :, None]
    scale = -np.take_along_axis(x, at, axis=2)[:, :, 0] / 32
    d = (np.abs(scale).max(axis=1) / 127).astype(np.float16)
    wide = d.astype(np.float64)[:, None]
    s = np.clip(np.rint(scale / np.where(wide > 0, wide, 1)), -127, 127).astype(np.int8)
    step = (wide * s)[:, :, None]
    q = (np.clip(np.rint(x / np.where(step != 0, step, 1)), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    nibble = q & 15
    low = np.concatenate([nibble[:, :, 0] | nibble[:, :, 2] << 4, nibble[:, :, 1] | nibble[:, :, 3] << 4], axis=2)
    high = (q[:, :, 0] >> 4) | (q[:, :, 1] >> 4) << 2 | (q[:, :, 2] >> 4) << 4 | (q[:, :, 3] >> 4) << 6
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), s.view(np.uint8), half_bytes(d)], axis=1)


# ------------------------------------------------------------------------------------------------ the second opinion

def decode(raw, qtype, shape):
    """Elements of a tensor by the block formulas, index by index, independent of the gguf package."""
    raw = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    if qtype == Type.F32:
        return raw.view(np.float32).astype(np.float64).reshape(shape)
    if qtype == Type.F16:
        return raw.view(np.float16).astype(np.float64).reshape(shape)
    if qtype == Type.BF16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(shape)
    elements, size = {Type.Q4_0: (32, 18), Type.Q4_1: (32, 20), Type.Q5_0: (32, 22), Type.Q5_1: (32, 24),
                      Type.Q8_0: (32, 34), Type.Q4_K: (256, 144), Type.Q5_K: (256, 176), Type.Q6_K: (256, 210)}[qtype]
    block = raw.reshape(-1, size)
    e = np.arange(elements)
    half = lambda at: block[:, at:at + 2].copy().view(np.float16).astype(np.float64)  # noqa: E731, one column
    wide = block.astype(np.int64)
    if qtype == Type.Q8_0:
        value = half(0) * block[:, 2:].view(np.int8)
    elif qtype in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1):
        has_min, five = qtype in (Type.Q4_1, Type.Q5_1), qtype in (Type.Q5_0, Type.Q5_1)
        high_at = 4 if has_min else 2
        q = wide[:, high_at + (4 if five else 0) + e % 16] >> 4 * (e // 16) & 15
        if five:
            q = q | (wide[:, high_at + e // 8] >> e % 8 & 1) << 4
        value = half(0) * q + half(2) if has_min else half(0) * (q - (16 if five else 8))
    elif qtype in (Type.Q4_K, Type.Q5_K):
        s, j, lane = wide[:, 4:16], e // 32, e % 32
        low = np.minimum(j, 3)                       # keeps the index of the branch that is not taken in range
        a = np.where(j < 4, s[:, low] & 63, s[:, np.minimum(j + 4, 11)] & 15 | s[:, np.maximum(j - 4, 0)] >> 6 << 4)
        b = np.where(j < 4, s[:, low + 4] & 63, s[:, np.minimum(j + 4, 11)] >> 4 | s[:, j] >> 6 << 4)
        q = wide[:, (48 if qtype == Type.Q5_K else 16) + 32 * (j // 2) + lane] >> 4 * (j % 2) & 15
        if qtype == Type.Q5_K:
            q = q | (wide[:, 16 + lane] >> j & 1) << 4
        value = half(0) * a * q - half(2) * b
    else:
        h, j, lane = e // 128, e % 128 // 32, e % 32
        low = wide[:, 64 * h + 32 * (j % 2) + lane] >> 4 * (j // 2) & 15
        high = wide[:, 128 + 32 * h + lane] >> 2 * j & 3
        value = half(208) * block[:, 192:208].view(np.int8)[:, e // 16] * ((low | high << 4) - 32)
    return value.reshape(shape)


class NumpyModel:
    """A forward pass that works on the GGUF as it is: adjacent rope pairs for llama, norms taken as stored."""

    def __init__(self, path):
        file = ref.Gguf(path)
        self.get = file.get
        self.arch = file.arch
        self.w = {t.name: decode(t.data, t.tensor_type, tuple(int(n) for n in reversed(t.shape)))
                  for t in file.raw.values()}
        self.eps = file.need("attention.layer_norm_rms_epsilon")
        self.dim = file.need("attention.key_length")
        self.gemma = file.arch == "gemma3"
        self.adjacent = file.arch in ("llama", "deepseek2")
        self.qk_norm = file.arch in ("gemma3", "qwen3moe")

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * weight

    def rope(self, x, base):
        # Frequencies and angles are float32 as in the referee: its rounding of the angles alone moves the logits of
        # gemma3-w70 by 2e-5, more than everything else together.
        dim = x.shape[-1]
        half = dim // 2
        freq = np.float32(1) / np.float32(base) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
        freq = freq / np.float32(self.w.get("rope_freqs.weight", 1.0))
        if self.get("rope.scaling.type") == "yarn":
            freq = freq * np.float32(self.yarn_shrink(dim, base))
        angle = (np.arange(len(x), dtype=np.float32)[:, None, None] * freq).astype(np.float64)
        cos, sin = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        first, second = (slice(0, None, 2), slice(1, None, 2)) if self.adjacent else (slice(0, half),
                                                                                      slice(half, None))
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def yarn_shrink(self, dim, base):
        """What YaRN multiplies each pair's frequency by."""
        original, factor = self.get("rope.scaling.original_context_length"), self.get("rope.scaling.factor")
        pair = lambda turns: dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))  # noqa: E731
        low = max(math.floor(pair(self.get("rope.scaling.yarn_beta_fast"))), 0)
        high = min(math.ceil(pair(self.get("rope.scaling.yarn_beta_slow"))), dim - 1)
        stretched = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
        return stretched / factor + 1 - stretched

    def attention(self, x, layer):
        weight = lambda name: self.w[f"blk.{layer}.{name}.weight"]  # noqa: E731
        n = len(x)
        bias = lambda name: self.w.get(f"blk.{layer}.{name}.bias", 0)  # noqa: E731
        if f"blk.{layer}.attn_k_b.weight" in self.w:
            return self.latent_attention(x, weight)
        q, k, v = (x @ weight(name).T + bias(name) for name in ("attn_q", "attn_k", "attn_v"))
        q, k, v = (t.reshape(n, -1, self.dim) for t in (q, k, v))
        every = self.get("attention.sliding_window_pattern", 6)
        local = self.gemma and (layer + 1) % every != 0
        if self.qk_norm:
            q, k = self.norm(q, weight("attn_q_norm")), self.norm(k, weight("attn_k_norm"))
        base = self.get("rope.freq_base_swa", 1e4) if local else self.get("rope.freq_base")
        q, k = self.rope(q, base), self.rope(k, base)
        scale = self.get("attention.scale") or self.dim**-0.5
        age = np.arange(n)[:, None] - np.arange(n)[None, :]
        seen = (age >= 0) & (age < (self.get("attention.sliding_window") if local else n))
        group = q.shape[1] // k.shape[1]
        out = np.empty_like(q)
        for head in range(q.shape[1]):
            score = np.where(seen, q[:, head] @ k[:, head // group].T * scale, -np.inf)
            p = np.exp(score - score.max(axis=1, keepdims=True))
            out[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, head // group]
        return out.reshape(n, -1) @ weight("attn_output").T

    def latent_attention(self, x, weight):
        """The keys and values of every head written out, which is what the cached latent stands for."""
        n, rank, rot = len(x), self.get("attention.kv_lora_rank"), self.get("rope.dimension_count")
        heads, size = self.get("attention.head_count"), self.get("attention.key_length_mla")
        q = self.norm(x @ weight("attn_q_a").T, weight("attn_q_a_norm")) @ weight("attn_q_b").T
        q, cached, base = q.reshape(n, heads, size), x @ weight("attn_kv_a_mqa").T, self.get("rope.freq_base")
        q[..., size - rot:] = self.rope(q[..., size - rot:], base)
        growth = 1 + self.get("rope.scaling.yarn_log_multiplier") * math.log(self.get("rope.scaling.factor"))
        latent = self.norm(cached[:, :rank], weight("attn_kv_a_norm"))
        rotated = self.rope(cached[:, None, rank:], base)[:, 0]
        seen = np.tril(np.ones((n, n), bool))
        out = []
        for head in range(heads):
            k = np.concatenate([latent @ weight("attn_k_b")[head], rotated], axis=1)
            score = np.where(seen, q[:, head] @ k.T * size**-0.5 * growth**2, -np.inf)
            p = np.exp(score - score.max(axis=1, keepdims=True))
            out.append(p / p.sum(axis=1, keepdims=True) @ (latent @ weight("attn_v_b")[head].T))
        return np.concatenate(out, axis=1) @ weight("attn_output").T

    def deepseek_experts(self, x, weight, bias):
        groups, used = self.get("expert_group_count"), self.get("expert_group_used_count")
        score = 1 / (1 + np.exp(-(x @ weight("gate_inp").T)))
        out = self.glu(x, weight("gate_shexp"), weight("up_shexp"), weight("down_shexp"))
        for row in range(len(x)):
            choice = (score[row] + bias).reshape(groups, -1)
            rank = np.sort(choice, axis=1)[:, -2:].sum(axis=1)
            choice[rank < np.sort(rank)[-used]] = -np.inf
            chosen = np.argsort(-choice.reshape(-1))[:self.get("expert_used_count")]
            for e in chosen:
                answer = self.glu(x[row], weight("gate_exps")[e], weight("up_exps")[e], weight("down_exps")[e])
                out[row] += self.get("expert_weights_scale") * score[row, e] / score[row, chosen].sum() * answer
        return out

    def ffn(self, x, layer):
        weight = lambda name: self.w[f"blk.{layer}.ffn_{name}.weight"]  # noqa: E731
        if f"blk.{layer}.ffn_gate_inp.weight" not in self.w:
            return self.glu(x, weight("gate"), weight("up"), weight("down"))
        if self.arch == "deepseek2":
            return self.deepseek_experts(x, weight, self.w[f"blk.{layer}.exp_probs_b.bias"])
        score = np.exp(x @ weight("gate_inp").T)
        out = np.zeros_like(x)
        for row, chosen in enumerate(np.argsort(-score, axis=1)[:, :self.get("expert_used_count")]):
            for e in chosen:
                answer = self.glu(x[row], weight("gate_exps")[e], weight("up_exps")[e], weight("down_exps")[e])
                out[row] += score[row, e] / score[row, chosen].sum() * answer
        return out

    def glu(self, x, gate, up, down):
        g = x @ gate.T
        if self.gemma:
            g = 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
        else:
            g = g / (1 + np.exp(-g))
        return (g * (x @ up.T)) @ down.T

    def logits(self, ids):
        x = self.w["token_embd.weight"][ids]
        if self.gemma:
            x = x * math.sqrt(x.shape[1])
        for n in range(self.get("block_count")):
            weight = lambda name: self.w[f"blk.{n}.{name}.weight"]  # noqa: B023, E731
            y = self.attention(self.norm(x, weight("attn_norm")), n)
            x = x + (self.norm(y, weight("post_attention_norm")) if self.gemma else y)
            y = self.ffn(self.norm(x, weight("ffn_norm")), n)
            x = x + (self.norm(y, weight("post_ffw_norm")) if self.gemma else y)
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        return self.norm(x, self.w["output_norm.weight"]) @ head.T


# ------------------------------------------------------------------------------------------------ commands

def write_ids(name, ids, to=OUT):
    (to / f"{name}.ids.txt").write_text(",".join(map(str, ids)) + "\n", encoding="ascii")


@torch.no_grad()
def make_directory(name, spec):
    rng = np.random.default_rng(spec["seed"])
    model = randomise(hf_model(spec), spec, rng)
    ids = prompt(spec, rng)
    dtype = {Type.F16: torch.float16, Type.BF16: torch.bfloat16}[spec["type"]]
    for param in model.parameters():
        param.copy_(param.to(dtype).float())
    write_gguf(OUT / f"{name}.gguf", spec, gguf_tensors(model, spec), spec["type"])
    write_ids(name, ids)
    np.save(OUT / f"{name}.logits.npy", ref.logits(model, ids)[-MATRIX_ROWS:])
    model.to(dtype).save_pretrained(OUT / name, max_shard_size=spec.get("shard", "1GB"))  # rounds the RoPE in memory too
    (OUT / name / "generation_config.json").unlink(missing_ok=True)
    for file in (OUT / name).iterdir():
        file.chmod(0o644)


def make():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, spec in MODELS.items():
        rng = np.random.default_rng(spec["seed"])
        model = randomise(hf_model(spec), spec, rng)
        ids = prompt(spec, rng)
        write_gguf(OUT / f"{name}.gguf", spec, gguf_tensors(model, spec))
        if name == "llama-untied":
            tensors = list(gguf_tensors(model, spec))
            write_gguf(OUT / f"{name}-split.gguf", spec, tensors, split_max_tensors=(len(tensors) + 1) // 2)
        write_ids(name, ids)
        np.save(OUT / f"{name}.logits.npy", ref.logits(model, ids))
    for base, (spec, types) in MATRIX.items():
        rng = np.random.default_rng(spec["seed"])
        model = randomise(hf_model(spec), spec, rng)
        ids = prompt(spec, rng)
        write_ids(base, ids)
        for qtype in types:
            name = f"{base}-{qtype.name.lower()}"
            write_gguf(OUT / f"{name}.gguf", spec, gguf_tensors(model, spec), qtype)
            quantised = ref.model_from_gguf(ref.Gguf(OUT / f"{name}.gguf"))
            np.save(OUT / f"{name}.logits.npy", ref.logits(quantised, ids)[-MATRIX_ROWS:])
    for name, spec in DIRECTORIES.items():
        make_directory(name, spec)
    total = sum(f.stat().st_size for f in OUT.rglob("*"))
    print(f"{OUT}: {len(list(OUT.iterdir()))} files, {total / 1e6:.2f} MB")


def fixtures():
    """(name, GGUF file, ids name, logits name) of everything that make() writes."""
    for name in MODELS:
        yield name, name, name
    yield "llama-untied-split-00001-of-00002", "llama-untied", "llama-untied"
    for base, (_, types) in MATRIX.items():
        for qtype in types:
            name = f"{base}-{qtype.name.lower()}"
            yield name, base, name
    for name in DIRECTORIES:
        yield name, name, name


def verify():
    worst = 0.0
    print(f"{'file':36} {'rows':>4} {'max |logit|':>11} {'argmax=id %':>11} {'max |diff|':>10}")
    for name, ids_name, logits_name in fixtures():
        ids = ref.parse_ids((OUT / f"{ids_name}.ids.txt").read_text(encoding="ascii"))
        want = np.load(OUT / f"{logits_name}.logits.npy")
        got = NumpyModel(OUT / f"{name}.gguf").logits(ids)[-len(want):]
        diff = float(np.abs(got - want).max())
        worst = max(worst, diff)
        echo = 100 * (want.argmax(axis=1) == np.array(ids)[-len(want):]).mean()
        print(f"{name:36} {len(want):4} {np.abs(want).max():11.2f} {echo:11.1f} {diff:10.2e}")
    print(f"worst {worst:.2e}, allowed {TOLERANCE:.0e}")
    return 0 if worst <= TOLERANCE else 1


def make_named(make_one, models, what):
    """The command of scripts that write each of their models for itself."""
    parser = argparse.ArgumentParser(description=f"make {what}")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = parser.parse_args()
    torch.manual_seed(0)
    for name in args.names or models:
        make_one(name)


def main():
    parser = argparse.ArgumentParser(description="make or check the tiny models of tests/data/tiny")
    parser.add_argument("--verify", action="store_true", help="check the files that are there")
    args = parser.parse_args()
    torch.manual_seed(0)
    return verify() if args.verify else make()


if __name__ == "__main__":
    sys.exit(main())
