#!/usr/bin/env python3
"""Compute reference logits for a GGUF file with transformers on the CPU.

The tensors of the file are dequantised to float32 and put into the matching transformers model, so the result is the
answer that exact arithmetic on the stored weights should give, up to float32 rounding.  tern is compared against it
with tools/compare_real.py; tools/make_tiny_models.py uses the same loader for its quantised fixtures.

    reference_logits.py MODEL.gguf --ids 1,2,3 --out X.npy
    reference_logits.py MODEL.gguf --text-ids FILE --out X.npy      (FILE holds ids separated by commas or spaces)

The output is a float32 array [number of ids, vocabulary].  Architectures: llama (with and without
experts), gemma3, qwen2, qwen3moe, deepseek2.
Written with torch 2.15.0, transformers 5.23.0, gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import argparse
import sys

import gguf
import numpy as np
import torch
import transformers


class Gguf:
    """Metadata and lazily dequantised tensors of one GGUF file, or of all the parts of a split one."""

    def __init__(self, path):
        first = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in first.fields.items()}
        self.raw = {t.name: t for t in first.tensors}
        parts = self.meta.get("split.count", 1)
        for part in range(1, parts):
            other = gguf.GGUFReader(str(path).replace("-00001-of-", f"-{part + 1:05d}-of-"))
            self.raw.update({t.name: t for t in other.tensors})
        expected = self.meta.get("split.tensors.count", len(self.raw))
        if len(self.raw) != expected:
            raise SystemExit(f"{path}: found {len(self.raw)} tensors, the split header announces {expected}")
        self.arch = self.meta["general.architecture"]

    def get(self, key, default=None):
        return self.meta.get(f"{self.arch}.{key}", default)

    def need(self, key):
        value = self.get(key)
        if value is None:
            raise SystemExit(f"metadata key {self.arch}.{key} is missing")
        return value

    def tensor(self, name):
        t = self.raw[name]
        shape = tuple(int(n) for n in reversed(t.shape))
        return np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32).reshape(shape)


def interleave_rope_rows(weight, heads):
    """What the GGUF converter does to q and k of llama: half-split pairs of rows become neighbours."""
    rows, cols = weight.shape
    return np.ascontiguousarray(weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2)).reshape(rows, cols)


def halve_rope_rows(weight, heads):
    """The inverse of interleave_rope_rows."""
    rows, cols = weight.shape
    return np.ascontiguousarray(weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2)).reshape(rows, cols)


# GGUF name inside a block -> (HF name inside a layer, kind).  Kind "q" and "k" are permuted in llama files, and "norm"
# holds 1 + w in gemma3 files.  "first" and "second" are the halves of a parameter's rows, in every expert; "k_b" and
# "v_b" the parts of every head, the first transposed.  Parameters of experts are not modules: no ".weight".
LLAMA_LAYER = {
    "attn_norm": ("input_layernorm", "norm"),
    "attn_q": ("self_attn.q_proj", "q"),
    "attn_k": ("self_attn.k_proj", "k"),
    "attn_v": ("self_attn.v_proj", "plain"),
    "attn_output": ("self_attn.o_proj", "plain"),
    "ffn_norm": ("post_attention_layernorm", "norm"),
    "ffn_gate": ("mlp.gate_proj", "plain"),
    "ffn_up": ("mlp.up_proj", "plain"),
    "ffn_down": ("mlp.down_proj", "plain"),
}
GEMMA3_LAYER = dict(
    LLAMA_LAYER,
    ffn_norm=("pre_feedforward_layernorm", "norm"),
    attn_q_norm=("self_attn.q_norm", "norm"),
    attn_k_norm=("self_attn.k_norm", "norm"),
    post_attention_norm=("post_attention_layernorm", "norm"),
    post_ffw_norm=("post_feedforward_layernorm", "norm"),
)


QK_NORMS = {"attn_q_norm": ("self_attn.q_norm", "norm"), "attn_k_norm": ("self_attn.k_norm", "norm")}
EXPERTS = {
    "ffn_gate_inp": ("mlp.gate", "plain"),
    "ffn_gate_exps": ("mlp.experts.gate_up_proj", "first"),
    "ffn_up_exps": ("mlp.experts.gate_up_proj", "second"),
    "ffn_down_exps": ("mlp.experts.down_proj", "plain"),
}
DENSE = ("ffn_gate", "ffn_up", "ffn_down")
DEEPSEEK2_LAYER = {
    "attn_norm": ("input_layernorm", "norm"),
    "attn_q_a": ("self_attn.q_a_proj", "plain"),
    "attn_q_a_norm": ("self_attn.q_a_layernorm", "norm"),
    "attn_q_b": ("self_attn.q_b_proj", "plain"),
    "attn_kv_a_mqa": ("self_attn.kv_a_proj_with_mqa", "plain"),
    "attn_kv_a_norm": ("self_attn.kv_a_layernorm", "norm"),
    "attn_k_b": ("self_attn.kv_b_proj", "k_b"),
    "attn_v_b": ("self_attn.kv_b_proj", "v_b"),
    "attn_output": ("self_attn.o_proj", "plain"),
    "ffn_norm": ("post_attention_layernorm", "norm"),
    "ffn_gate": ("mlp.gate_proj", "plain"),
    "ffn_up": ("mlp.up_proj", "plain"),
    "ffn_down": ("mlp.down_proj", "plain"),
}
SHARED = {f"ffn_{name}_shexp": (f"mlp.shared_experts.{name}_proj", "plain") for name in ("gate", "up", "down")}
QWEN2_BIASES = {name: (LLAMA_LAYER[name][0], "bias") for name in ("attn_q", "attn_k", "attn_v")}
LAYERS = {"llama": LLAMA_LAYER, "gemma3": GEMMA3_LAYER, "qwen2": LLAMA_LAYER, "qwen3moe": dict(LLAMA_LAYER, **QK_NORMS),
          "deepseek2": DEEPSEEK2_LAYER}


def tensor_names(arch, layers, tied, experts, dense=0):
    """Yields (GGUF name, HF name, kind) for every tensor of a model; the first `dense` layers have no experts."""
    yield "token_embd.weight", "model.embed_tokens.weight", "plain"
    yield "output_norm.weight", "model.norm.weight", "norm"
    if not tied:
        yield "output.weight", "lm_head.weight", "plain"
    for n in range(layers):
        for name, (hf, kind) in LAYERS[arch].items():
            if not (experts and n >= dense and name in DENSE):
                yield f"blk.{n}.{name}.weight", f"model.layers.{n}.{hf}.weight", kind
        mixture = dict(EXPERTS, **(SHARED if arch == "deepseek2" else {})) if experts and n >= dense else {}
        if mixture and arch == "deepseek2":
            yield f"blk.{n}.exp_probs_b.bias", f"model.layers.{n}.mlp.gate.e_score_correction_bias", "plain"
        for name, (hf, kind) in mixture.items():
            suffix = "" if name.endswith("_exps") else ".weight"
            yield f"blk.{n}.{name}.weight", f"model.layers.{n}.{hf}{suffix}", kind
        for name, (hf, kind) in (QWEN2_BIASES if arch == "qwen2" else {}).items():
            yield f"blk.{n}.{name}.bias", f"model.layers.{n}.{hf}.bias", kind


def to_gguf(arch, kind, array, heads, kv_heads, nope=0):
    if arch == "llama" and kind in ("q", "k"):
        return interleave_rope_rows(array, heads if kind == "q" else kv_heads)
    if arch == "gemma3" and kind == "norm":
        return array + np.float32(1)
    return part(kind, array, heads, nope)


def part(kind, array, heads, nope):
    """A view of the part of a parameter (numpy or torch) that a tensor of the file holds."""
    if kind in ("first", "second"):
        rows = array.shape[1] // 2
        return array[:, :rows] if kind == "first" else array[:, rows:]
    if kind in ("k_b", "v_b"):
        both = array.reshape(heads, -1, array.shape[-1])
        return both[:, :nope].swapaxes(1, 2) if kind == "k_b" else both[:, nope:]
    return array


def from_gguf(arch, kind, array, heads, kv_heads):
    if arch == "llama" and kind in ("q", "k"):
        return halve_rope_rows(array, heads if kind == "q" else kv_heads)
    if arch == "gemma3" and kind == "norm":
        return array - np.float32(1)
    return array


def config_from_gguf(file):
    hidden, heads = file.need("embedding_length"), file.need("attention.head_count")
    common = dict(
        vocab_size=int(file.raw["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=file.need("feed_forward_length"),
        num_hidden_layers=file.need("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=file.get("attention.head_count_kv", heads),
        head_dim=file.get("attention.key_length", hidden // heads),
        rms_norm_eps=file.need("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=file.need("context_length"),
        tie_word_embeddings="output.weight" not in file.raw,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
    )
    scaling = file.get("rope.scaling.type", "none")
    factor = file.get("rope.scaling.factor", 1.0)
    if scaling not in ("none", "linear") and not (scaling == "yarn" and file.arch == "deepseek2"):
        raise SystemExit(f"rope scaling type {scaling!r} is not covered by this tool")
    rope = {"rope_type": "default"} if scaling == "none" else {"rope_type": "linear", "factor": float(factor)}
    if file.arch == "deepseek2":
        return deepseek_config(file, rope, common)
    if file.get("expert_gating_func", 1) != 1 or not file.get("expert_weights_norm", True):
        raise SystemExit("only routers of softmax with weights of sum 1 are covered by this tool")
    if file.arch == "qwen3moe":
        rope["rope_theta"] = file.get("rope.freq_base", 1e4)
        return transformers.Qwen3MoeConfig(
            rope_parameters=rope, use_sliding_window=False, num_experts=file.need("expert_count"),
            num_experts_per_tok=file.need("expert_used_count"), norm_topk_prob=True,
            moe_intermediate_size=file.need("expert_feed_forward_length"), **common)
    if file.get("expert_count", 0):
        rope["rope_theta"] = file.get("rope.freq_base", 1e4)
        return transformers.MixtralConfig(rope_parameters=rope, num_local_experts=file.need("expert_count"),
                                          num_experts_per_tok=file.need("expert_used_count"), **common)
    if file.arch == "llama":
        rope["rope_theta"] = file.get("rope.freq_base", 1e4)
        return transformers.LlamaConfig(rope_parameters=rope, **common)
    if file.arch == "qwen2":
        rope["rope_theta"] = file.get("rope.freq_base", 1e4)
        return transformers.Qwen2Config(rope_parameters=rope, use_sliding_window=False, **common)
    if file.arch == "gemma3":
        if file.get("attention.sliding_window_pattern", 6) != 6:
            raise SystemExit("only the 5:1 layer pattern of gemma3 is covered by this tool")
        return transformers.Gemma3TextConfig(
            sliding_window=file.need("attention.sliding_window"),
            rope_parameters={
                "full_attention": dict(rope, rope_theta=file.get("rope.freq_base", 1e6)),
                "sliding_attention": {"rope_type": "default", "rope_theta": file.get("rope.freq_base_swa", 1e4)},
            },
            **common,
        )
    raise SystemExit(f"architecture {file.arch!r} is not covered by this tool")


def deepseek_config(file, rope, common):
    if file.get("expert_gating_func", 1) != 2:
        raise SystemExit("of deepseek2, only routers of sigmoids are covered by this tool")
    del common["head_dim"]
    common["num_key_value_heads"] = common["num_attention_heads"]
    rot = file.need("rope.dimension_count")
    if file.get("rope.scaling.type") == "yarn":
        mscale = 10 * file.need("rope.scaling.yarn_log_multiplier")
        rope = dict(rope_type="yarn", factor=file.need("rope.scaling.factor"), mscale=mscale, mscale_all_dim=mscale,
                    original_max_position_embeddings=file.need("rope.scaling.original_context_length"),
                    beta_fast=file.get("rope.scaling.yarn_beta_fast", 32.0),
                    beta_slow=file.get("rope.scaling.yarn_beta_slow", 1.0))
    return transformers.DeepseekV3Config(
        rope_parameters=dict(rope, rope_theta=file.get("rope.freq_base", 1e4)),
        moe_intermediate_size=file.need("expert_feed_forward_length"),
        n_shared_experts=file.get("expert_shared_count", 0), num_local_experts=file.need("expert_count"),
        num_experts_per_tok=file.need("expert_used_count"), n_group=file.get("expert_group_count", 1),
        topk_group=file.get("expert_group_used_count", 1), norm_topk_prob=file.get("expert_weights_norm", False),
        routed_scaling_factor=file.get("expert_weights_scale", 1.0),
        first_k_dense_replace=file.get("leading_dense_block_count", 0), kv_lora_rank=file.need("attention.kv_lora_rank"),
        q_lora_rank=file.need("attention.q_lora_rank"), qk_rope_head_dim=rot,
        qk_nope_head_dim=file.need("attention.key_length_mla") - rot,
        v_head_dim=file.need("attention.value_length_mla"), **common)


def attention_scale(file, config):
    """gemma3 files imply d^-.5, but the 27B model (62 layers) uses hidden / heads; an explicit key wins."""
    implied = config.head_dim
    if file.arch == "gemma3" and config.num_hidden_layers == 62:
        implied = config.hidden_size // config.num_attention_heads
    return float(file.get("attention.scale", 0.0)) or implied**-0.5


def weights(model):
    """Parameters by name, and the bias of routers, which is a buffer."""
    found = dict(model.named_parameters())
    found.update((name, b) for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    return found


@torch.no_grad()
def model_from_gguf(file):
    """Builds the float32 transformers model whose weights are the dequantised tensors of the file."""
    config = config_from_gguf(file)
    classes = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM,
               "mixtral": transformers.MixtralForCausalLM,
               "qwen3_moe": transformers.Qwen3MoeForCausalLM, "deepseek_v3": transformers.DeepseekV3ForCausalLM, "gemma3_text": transformers.Gemma3ForCausalLM}
    model = classes[config.model_type](config).float()
    params = weights(model)
    nope = getattr(config, "qk_nope_head_dim", 0)
    used, filled = set(), set()
    for name, hf, kind in tensor_names(file.arch, config.num_hidden_layers, config.tie_word_embeddings,
                                       bool(file.get("expert_count", 0)), file.get("leading_dense_block_count", 0)):
        array = from_gguf(file.arch, kind, file.tensor(name), config.num_attention_heads, config.num_key_value_heads)
        part(kind, params[hf], config.num_attention_heads, nope).copy_(torch.from_numpy(array))
        used.add(name)
        filled.add(hf)
    if set(params) - filled:
        raise SystemExit(f"these parameters found no tensor in the file: {sorted(set(params) - filled)}")
    if "rope_freqs.weight" in file.raw:
        used.add("rope_freqs.weight")
        model.model.rotary_emb.inv_freq.div_(torch.from_numpy(file.tensor("rope_freqs.weight")))
    if set(file.raw) - used:
        raise SystemExit(f"these tensors of the file were not used: {sorted(set(file.raw) - used)}")
    for layer in model.model.layers if file.arch != "deepseek2" else ():
        layer.self_attn.scaling = attention_scale(file, config)
    return model.eval()


@torch.no_grad()
def logits(model, ids):
    out = model(input_ids=torch.tensor([ids], dtype=torch.long), use_cache=False).logits
    return out[0].float().numpy()


def parse_ids(text):
    return [int(word) for word in text.replace(",", " ").split()]


def main():
    parser = argparse.ArgumentParser(description="reference logits of a GGUF file by transformers, float32, eager")
    parser.add_argument("model")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ids", help="token ids separated by commas")
    source.add_argument("--text-ids", help="a file that holds token ids separated by commas or white space")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    ids = parse_ids(args.ids) if args.ids else parse_ids(open(args.text_ids, encoding="ascii").read())
    if not ids:
        raise SystemExit("no token ids were given")
    result = logits(model_from_gguf(Gguf(args.model)), ids)
    np.save(args.out, result)
    print(f"{args.out}: {result.shape[0]} positions x {result.shape[1]} tokens, |logit| <= {np.abs(result).max():.2f}")


if __name__ == "__main__":
    sys.exit(main())
