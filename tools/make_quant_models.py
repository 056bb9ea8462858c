#!/usr/bin/env python3
"""Make tiny quantised models as Hugging Face has them, in tests/data/hf: MLX's own kernels quantise for MLX, the rules of
the other formats are written out here.

As make_hf_models.py; the referee is transformers in float32 on the dequantised weights.  Runs outside CI: the results
are committed.

    make_quant_models.py [NAME...]      write all, or these

Written with mlx 0.32.4 (pip install "mlx[cpu]"), safetensors 0.8.0 and what make_hf_models.py names.
"""
import json
import shutil

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file

import make_hf_models as hf
import make_tiny_models as tiny
import reference_logits as ref

LLAMA = ("Llama", dict(rope_parameters=hf.PLAIN, tie_word_embeddings=True, intermediate_size=128))
MISTRAL = ("Mistral", dict(rope_parameters=hf.PLAIN, tie_word_embeddings=False, intermediate_size=128,
                           sliding_window=None))
QWEN2 = ("Qwen2", dict(rope_parameters=hf.PLAIN, tie_word_embeddings=False, head_dim=None, num_attention_heads=4,
                       num_key_value_heads=2, vocab_size=128, use_sliding_window=False))
PHI3 = ("Phi3", dict(rope_parameters=dict(hf.PLAIN, partial_rotary_factor=1.0), tie_word_embeddings=False,
                     head_dim=None, sliding_window=None))


QWEN3_MOE = ("Qwen3Moe", dict(rope_parameters=hf.PLAIN, tie_word_embeddings=True, vocab_size=96, head_dim=32,
                              moe_intermediate_size=32, num_experts=3, num_experts_per_tok=2, norm_topk_prob=True))
GLM = ("Glm4MoeLite", dict(hf.LATENT, hidden_size=64, num_hidden_layers=1, mlp_layer_types=["sparse"],
                           moe_intermediate_size=32, kv_lora_rank=64, v_head_dim=64, q_lora_rank=32, n_routed_experts=4,
                           n_shared_experts=1, tie_word_embeddings=True, rope_parameters=hf.PLAIN))

DEEPSEEK = ("DeepseekV3", dict({key: value for key, value in GLM[1].items() if key != "mlp_layer_types"}, first_k_dense_replace=0, n_group=1, topk_group=1))


def bf16(tensor):
    return tensor.to(torch.bfloat16)


def to_torch(array):
    """An array of MLX as a tensor of the same type."""
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


# Each quantises one matrix: the tensors by the last word of their names, and the weights that they mean.

def mlx(w, bits=4, group_size=64, mode="affine"):
    parts = mx.quantize(mx.array(w.numpy()).astype(mx.bfloat16), group_size=group_size, bits=bits, mode=mode)
    exact = [p.astype(mx.float32) if p.dtype == mx.bfloat16 else p for p in parts]
    meant = mx.dequantize(*exact, group_size=group_size, bits=bits, mode=mode).astype(mx.float32)
    names = ["weight", "scales", "biases"]
    return {name: to_torch(p) for name, p in zip(names, parts)}, torch.from_numpy(np.array(meant))


def fp8(w, block, name="weight_scale_inv", dtype=torch.float32):
    """block: rows and columns that share a scale; None: all."""
    rows, cols = block or w.shape
    n, k = -(-w.shape[0] // rows), -(-w.shape[1] // cols)
    scale = torch.zeros(n, k)
    for i in range(n):
        for j in range(k):
            scale[i, j] = w[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols].abs().max() / 448
    scale = scale.to(dtype)
    wide = scale.float().repeat_interleave(rows, 0)[:w.shape[0]].repeat_interleave(cols, 1)[:, :w.shape[1]]
    codes = (w / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, name: scale if block else scale.reshape(())}, codes.float() * wide


def words(codes, order):
    """Eight codes of four bits along the last axis become a word; order: which of them lies where."""
    parts = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 8)[..., order]
    return torch.from_numpy(np.bitwise_or.reduce(parts << (4 * np.arange(8, dtype=np.uint32)), axis=-1).view(np.int32))


def grouped(w, group):
    """Codes [in, out], zero points and scales [groups, out] of four bits, and what they mean [out, in]."""
    x = w.numpy().T.reshape(-1, group, w.shape[0])
    low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
    scale = ((high - low) / 15).astype(np.float16)
    wide = scale.astype(np.float32)
    zero = np.clip(np.round(-low / wide), 1, 15)
    codes = np.clip(np.round(x / wide[:, None]) + zero[:, None], 0, 15)
    meant = ((codes - zero[:, None]) * wide[:, None]).reshape(-1, w.shape[0]).T
    return codes.reshape(-1, w.shape[0]), zero, scale, torch.from_numpy(np.ascontiguousarray(meant, np.float32))


def gptq(w, group, plus_one=True):
    codes, zero, scale, meant = grouped(w, group)
    return {"qweight": words(codes.T, np.arange(8)).T.contiguous(),
            "qzeros": words(zero - 1 if plus_one else zero, np.arange(8)), "scales": torch.from_numpy(scale),
            "g_idx": torch.arange(w.shape[1], dtype=torch.int32) // group,
            "bias": torch.zeros(w.shape[0], dtype=torch.float16)}, meant


def awq(w, group):
    codes, zero, scale, meant = grouped(w, group)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    return {"qweight": words(codes, order), "qzeros": words(zero, order), "scales": torch.from_numpy(scale)}, meant


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nvfp4(w):
    """As compressed-tensors stores it: what lies in the file is divided by the global scale."""
    top = (448 * 6 / w.abs().max()).float()
    x = w.reshape(w.shape[0], -1, 16)
    scale = (top * x.abs().amax(-1) / 6).to(torch.float8_e4m3fn)
    wide = (scale.float() / top)[..., None]
    code = (x.abs() / wide).clamp(0, 6)
    index = (code[..., None] - E2M1).abs().argmin(-1)
    codes = (index + 8 * (x < 0)).reshape(w.shape).to(torch.uint8)
    meant = (E2M1[index] * torch.where(x < 0, -1.0, 1.0) * wide).reshape(w.shape)
    return {"weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scale,
            "weight_global_scale": top.reshape(1), "input_global_scale": torch.ones(1)}, meant


def layer(name):
    return "model.layers.0." + name


# name: (model, what config.json says, quantiser of modules that are not named, those of named ones, None for floats)
MODELS = {
    "affine": (LLAMA, {"quantization": {"group_size": 64, "bits": 4}}, mlx, {
        layer("self_attn.q_proj"): dict(bits=3, group_size=32),
        layer("self_attn.k_proj"): None,
        layer("self_attn.v_proj"): dict(bits=6, group_size=32),
        layer("self_attn.o_proj"): dict(bits=2, group_size=32, mode="affine"),
        layer("mlp.gate_proj"): dict(bits=5, group_size=64),
        layer("mlp.up_proj"): dict(bits=8, group_size=64),
        layer("mlp.down_proj"): dict(bits=4, group_size=128)}),
    "micro": (MISTRAL, {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, mlx, {
        layer("self_attn.q_proj"): dict(mode="nvfp4", bits=4, group_size=16),
        layer("mlp.up_proj"): dict(mode="mxfp8", bits=8, group_size=32),
        "lm_head": dict(mode="nvfp4", bits=4, group_size=16)}),
    "fp8": (PHI3, {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                           "weight_block_size": [32, 64], "modules_to_not_convert": ["lm_head"]}},
            lambda w: fp8(w, (32, 64)), {"lm_head": None, "model.embed_tokens": None}),
    "fp8_tensor": (QWEN2, {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
                   lambda w: fp8(w, None, "weight_scale"), {
                       "lm_head": None, "model.embed_tokens": None,
                       layer("mlp.up_proj"): lambda w: fp8(w, (1, w.shape[1]), "weight_scale", torch.bfloat16)}),
    "gptq": (PHI3, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False,
                                            "sym": False, "checkpoint_format": "gptq"}},
             lambda w: gptq(w, 32), {"lm_head": None, "model.embed_tokens": None}),
    "awq": (QWEN2, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm",
                                            "zero_point": True, "modules_to_not_convert": None}},
            lambda w: awq(w, 32), {"lm_head": None, "model.embed_tokens": None}),
    "affine_moe": (QWEN3_MOE, {"quantization": {"group_size": 32, "bits": 4}}, mlx, {
        layer("mlp.gate"): dict(bits=8, group_size=64),
        layer("mlp.switch_mlp.up_proj"): dict(mode="mxfp4", bits=4, group_size=32),
        layer("mlp.switch_mlp.down_proj"): dict(bits=6, group_size=32)}),
    "micro_latent": (GLM, {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, mlx, {
        layer("mlp.gate"): None,
        layer("mlp.switch_mlp.gate_proj"): dict(mode="mxfp8", bits=8, group_size=32)}),
    "fp8_moe": (QWEN3_MOE, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}},
                lambda w: fp8(w, (16, 32)), {"model.embed_tokens": None, layer("mlp.gate"): None}),
    "fp8_latent": (DEEPSEEK, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}},
                   lambda w: fp8(w, (32, 32)), {"model.embed_tokens": None, layer("mlp.gate"): None}),
    "gptq_moe": (QWEN3_MOE, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
                 lambda w: gptq(w, 32), {"model.embed_tokens": None, layer("mlp.gate"): None}),
    "awq_moe": (QWEN3_MOE, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32,
                                                    "version": "gemm", "zero_point": True}},
                lambda w: awq(w, 32), {"model.embed_tokens": None, layer("mlp.gate"): None}),
    "nvfp4_moe": (QWEN3_MOE, {"quantization_config": {"quant_method": "compressed-tensors",
                                                      "format": "nvfp4-pack-quantized"}},
                  nvfp4, {"model.embed_tokens": None, layer("mlp.gate"): None}),
    "nvfp4": (LLAMA, {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                                              "quantization_status": "compressed", "ignore": ["lm_head"]}},
              nvfp4, {"model.embed_tokens": None}),
}


def weights(model, stacked):
    """(module, part of a parameter that it is) of all matrices; experts and the halves of kv_b_proj as stacks or, but for
    the latter, one by one."""
    for key, param in model.named_parameters():
        module = key.removesuffix(".weight")
        if param.dim() == 2 and not (stacked and module.endswith("kv_b_proj")):
            yield module, param
        elif param.dim() == 2:
            both = param.view(model.config.num_attention_heads, -1, param.shape[-1])
            yield module.replace("kv_b_proj", "embed_q"), both[:, :model.config.qk_nope_head_dim].swapaxes(1, 2)
            yield module.replace("kv_b_proj", "unembed_out"), both[:, model.config.qk_nope_head_dim:]
        elif param.dim() == 3:
            above, word = module.rsplit(".experts.", 1)
            half = param.shape[1] // 2
            parts = {"gate_proj": param[:, :half], "up_proj": param[:, half:]} if word == "gate_up_proj" else {word: param}
            for part, stack in parts.items():
                if stacked:
                    yield f"{above}.switch_mlp.{part}", stack
                else:
                    yield from ((f"{above}.experts.{n}.{part}", one) for n, one in enumerate(stack))


@torch.no_grad()
def make(name):
    (cls, changes), says, quantise, special = MODELS[name]
    says = json.loads(json.dumps(says))
    model, _, spec, rng = hf.draw(name, cls, changes)
    tensors = {}
    for key, param in ref.weights(model).items():
        if param.dim() == 1:
            tensors[key] = bf16(param)
            param.copy_(tensors[key].float())
    for module, param in weights(model, "quantization" in says):
        how = special.get(module, quantise)
        if how is None:
            tensors[f"{module}.weight"] = bf16(param)
            param.copy_(tensors[f"{module}.weight"].float())
            if "quantization" in says:
                says["quantization"][module] = False
            continue
        rows = param.reshape(-1, param.shape[-1])
        if isinstance(how, dict):
            says["quantization"][module] = how
            parts, meant = mlx(rows, **how)
        elif how is mlx:
            parts, meant = mlx(rows, **MODELS[name][1]["quantization"])
        else:
            parts, meant = how(rows)
        param.copy_(meant.reshape(param.shape))
        for part, value in parts.items():
            value = value.reshape(*param.shape[:-1], -1) if param.dim() == 3 else value
            tensors.setdefault(f"{module}.{part}", value.contiguous())
    if name == "fp8_tensor":
        tensors[layer("mlp.gate_proj.input_scale")] = torch.ones(())
    ids = tiny.prompt(spec, rng)
    out = hf.OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tiny.write_ids(name, ids, hf.OUT)
    np.save(hf.OUT / f"{name}.logits.npy", ref.logits(model, ids)[-hf.ROWS:])
    model.config.save_pretrained(out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    if "quantization" in says:
        says["quantization_config"] = says["quantization"]
    (out / "config.json").write_text(json.dumps({**config, **says}, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for file in out.iterdir():
        file.chmod(0o644)


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    tiny.make_named(make, MODELS, "the tiny quantised models of tests/data/hf")
