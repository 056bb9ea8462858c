#!/usr/bin/env python3
"""Make the tiny random models of DeepSeek-V4: GGUF files in tests/data/tiny, directories in tests/data/hf.

Every special structure is there and small: a window that is shorter than the prompt, compressed rows of 4 and of more
tokens whose borders the prompt crosses, fewer chosen rows than there are, experts by token, clamps that clamp.  The
referee is transformers in float32 for models without simulated quantisation, and v4_oracle.py, which is compared with
transformers first, for those with it.  Seeds are taken so that no rounding and no choice is so close that float32 could
take it the other way.  Runs outside CI: the results are committed.

    make_v4_models.py [NAME...]      write all, or these

Written with torch 2.15.0, transformers 5.23.0, gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import json
import math
import pathlib
import shutil
import sys
import tempfile

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Type

import v4_oracle

STEADY = 3e-5
DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data"
YARN = dict(factor=16.0, original=64, fast=32.0, slow=1.0)
F8, SCALE = torch.float8_e4m3fn, torch.float8_e8m0fnu

COMMON = dict(vocab_size=96, hidden_size=64, qk_rope_head_dim=16, sliding_window=24, rope_theta=1e3,
              compress_rope_theta=16e3, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, n_shared_experts=1,
              scoring_func="sqrtsoftplus", topk_method="noaux_tc", norm_topk_prob=True, hidden_act="silu",
              num_key_value_heads=1, tie_word_embeddings=False, attention_bias=False, max_position_embeddings=1024,
              index_head_dim=32, initializer_range=0.02, attention_dropout=0.0, bos_token_id=None, eos_token_id=None)
FLASH = dict(COMMON, num_hidden_layers=4, compress_ratios=[0, 4, 16, 4], num_hash_layers=2, num_attention_heads=6,
             head_dim=48, q_lora_rank=64, o_groups=3, o_lora_rank=32, index_n_heads=16, index_topk=7, hc_mult=3,
             n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, routed_scaling_factor=1.5,
             swiglu_limit=1.5)
# As V4-Pro: no layer without compressed rows at the beginning, other numbers everywhere.
PRO = dict(COMMON, num_hidden_layers=4, compress_ratios=[32, 32, 4, 0], num_hash_layers=1, num_attention_heads=4,
           head_dim=80, q_lora_rank=64, o_groups=2, o_lora_rank=32, index_n_heads=14, index_topk=11, hc_mult=4,
           n_routed_experts=5, num_experts_per_tok=3, moe_intermediate_size=32, routed_scaling_factor=2.5,
           swiglu_limit=1.0)
# As published: weights of 8 and 4 bits, blocks that end inside the matrices, the names and settings of the makers.
FILES = dict(PRO, compress_ratios=[4, 8], num_hidden_layers=2, num_hash_layers=1, hc_mult=2, hidden_size=160, head_dim=80,
             o_lora_rank=128, index_n_heads=12, vocab_size=48, moe_intermediate_size=96, sliding_window=12, index_topk=5, n_routed_experts=4,
             num_experts_per_tok=2)

SAVED = dict(FLASH, num_hidden_layers=2, compress_ratios=[4, 16], num_hash_layers=1, index_n_heads=12)

# name: (sizes, simulated quantisation, ids of the prompt, rows of logits that are kept)
MODELS = {
    "deepseek4": (FLASH, False, 300, 300),
    "deepseek4-grid": (PRO, True, 160, 160),
    "deepseek_v4": (SAVED, False, 80, 80),
    "deepseek_v4_fp8": (FILES, True, 80, 80),
}


# ------------------------------------------------------------------------------------------------ weights

def shapes(c):
    """(published name, shape, what it is)"""
    d, n, heads, width = c["hidden_size"], c["hc_mult"], c["num_attention_heads"], c["head_dim"]
    rank, groups, out, ff = c["q_lora_rank"], c["o_groups"], c["o_lora_rank"], c["moe_intermediate_size"]
    yield "embed.weight", (c["vocab_size"], d), "embed"
    for layer, rate in enumerate(c["compress_ratios"]):
        at, to = f"layers.{layer}.attn", f"layers.{layer}.ffn"
        for half in ("attn", "ffn"):
            yield f"layers.{layer}.hc_{half}_fn", (n * (n + 2), n * d), "mix"
            yield f"layers.{layer}.hc_{half}_base", (n * (n + 2),), "bias"
            yield f"layers.{layer}.hc_{half}_scale", (3,), "scale"
            yield f"layers.{layer}.{half}_norm.weight", (d,), "norm"
        for name, shape in {"wq_a": (rank, d), "wq_b": (heads * width, rank), "wkv": (width, d),
                            "wo_a": (groups * out, heads * width // groups), "wo_b": (d, groups * out)}.items():
            yield f"{at}.{name}.weight", shape, "matrix"
        yield f"{at}.q_norm.weight", (rank,), "norm"
        yield f"{at}.kv_norm.weight", (width,), "norm"
        yield f"{at}.attn_sink", (heads,), "bias"
        parts = [(f"{at}.compressor", width)] if rate else []
        if rate == 4:
            yield f"{at}.indexer.wq_b.weight", (c["index_n_heads"] * c["index_head_dim"], rank), "matrix"
            yield f"{at}.indexer.weights_proj.weight", (c["index_n_heads"], d), "narrow"
            parts.append((f"{at}.indexer.compressor", c["index_head_dim"]))
        for name, wide in parts:
            both = wide * (2 if rate == 4 else 1)
            yield f"{name}.wkv.weight", (both, d), "narrow"
            yield f"{name}.wgate.weight", (both, d), "narrow"
            yield f"{name}.ape", (rate, both), "bias"
            yield f"{name}.norm.weight", (wide,), "norm"
        yield f"{to}.gate.weight", (c["n_routed_experts"], d), "router"
        if layer < c["num_hash_layers"]:
            yield f"{to}.gate.tid2eid", (c["vocab_size"], c["num_experts_per_tok"]), "table"
        else:
            yield f"{to}.gate.bias", (c["n_routed_experts"],), "choice"
        for name in [f"{to}.experts.{e}" for e in range(c["n_routed_experts"])] + [f"{to}.shared_experts"]:
            kind = "matrix" if "shared" in name else "expert"
            yield f"{name}.w1.weight", (ff, d), kind
            yield f"{name}.w2.weight", (d, ff), kind
            yield f"{name}.w3.weight", (ff, d), kind
    yield "norm.weight", (d,), "norm"
    yield "hc_head_fn", (n, n * d), "mix"
    yield "hc_head_base", (n,), "bias"
    yield "hc_head_scale", (1,), "scale"
    yield "head.weight", (c["vocab_size"], d), "narrow"


def draw(c, rng):
    """{published name: (float32 array, kind)}"""
    out = {}
    for name, shape, kind in shapes(c):
        if kind == "table":
            value = np.stack([rng.permutation(c["n_routed_experts"])[:shape[1]] for _ in range(shape[0])])
        elif kind == "norm":
            value = rng.uniform(0.5, 1.5, shape)
        elif kind == "scale":
            value = rng.uniform(0.5, 2, shape)
        elif kind in ("bias", "choice"):
            value = rng.normal(0, 1 if kind == "bias" else 0.3, shape)
        else:
            value = rng.normal(0, {"embed": 0.5 * math.sqrt(shape[1]), "router": 3}.get(kind, 1) / math.sqrt(shape[1]),
                               shape)
        out[name] = (value.astype(np.float32), kind)
    return out


# ------------------------------------------------------------------------------------------------ GGUF

PARTS = {"wq_a": "attn_q_a", "wq_b": "attn_q_b", "wkv": "attn_kv", "wo_a": "attn_output_a", "wo_b": "attn_output_b",
         "q_norm": "attn_q_a_norm", "kv_norm": "attn_kv_a_norm", "attn_sink": "attn_sinks",
         "indexer.wq_b": "indexer.attn_q_b", "indexer.weights_proj": "indexer.proj"}
PARTS |= {f"{a}compressor.{b}": f"{c}_compressor_{d}" for a, c in (("", "attn"), ("indexer.", "indexer"))
          for b, d in (("wkv", "kv"), ("wgate", "gate"), ("ape", "ape"), ("norm", "norm"))}
EXPERT = {"w1": "gate", "w2": "down", "w3": "up"}


def gguf_name(name):
    """Of everything but experts."""
    words = name.removesuffix(".weight")
    if not words.startswith("layers."):
        return {"embed": "token_embd", "norm": "output_norm", "head": "output"}.get(words, f"output_{words[:2]}_{words[8:]}") + ".weight"
    _, layer, rest = words.split(".", 2)
    half, _, part = rest.partition(".")
    if half == "attn":
        rest = PARTS[part]
    elif part.startswith("shared_experts"):
        rest = f"ffn_{EXPERT[part[-2:]]}_shexp"
    elif part == "gate.bias":
        return f"blk.{layer}.exp_probs_b.bias"
    elif half == "ffn":
        rest = {"gate": "ffn_gate_inp", "gate.tid2eid": "ffn_gate_tid2eid"}[part]
    return f"blk.{layer}.{rest}.weight"


def gguf_tensors(c, weights):
    for name, (value, kind) in weights.items():
        if kind != "expert":
            yield gguf_name(name), value, kind
    for layer in range(c["num_hidden_layers"]):
        for w, word in EXPERT.items():
            stack = [weights[f"layers.{layer}.ffn.experts.{e}.{w}.weight"][0] for e in range(c["n_routed_experts"])]
            yield f"blk.{layer}.ffn_{word}_exps.weight", np.stack(stack), "expert"


def metadata(c, simulate):
    yield from {
        "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"], "vocab_size": c["vocab_size"],
        "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": 1,
        "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
        "attention.q_lora_rank": c["q_lora_rank"], "attention.output_lora_rank": c["o_lora_rank"],
        "attention.output_group_count": c["o_groups"], "attention.sliding_window": c["sliding_window"],
        "attention.compress_ratios": c["compress_ratios"],
        "attention.compress_rope_freq_base": c["compress_rope_theta"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "attention.indexer.head_count": c["index_n_heads"],
        "attention.indexer.key_length": c["index_head_dim"], "attention.indexer.top_k": c["index_topk"],
        "attention.simulated_quantization": simulate, "rope.dimension_count": c["qk_rope_head_dim"],
        "rope.freq_base": c["rope_theta"], "rope.scaling.type": "yarn", "rope.scaling.factor": YARN["factor"],
        "rope.scaling.original_context_length": YARN["original"], "rope.scaling.yarn_beta_fast": YARN["fast"],
        "rope.scaling.yarn_beta_slow": YARN["slow"], "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"], "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": 1, "expert_weights_scale": c["routed_scaling_factor"], "expert_weights_norm": True,
        "expert_gating_func": 4, "hash_layer_count": c["num_hash_layers"], "hyper_connection.count": c["hc_mult"],
        "hyper_connection.sinkhorn_iterations": c["hc_sinkhorn_iters"], "hyper_connection.epsilon": c["hc_eps"],
        "swiglu_clamp_exp": [c["swiglu_limit"]] * c["num_hidden_layers"],
        "swiglu_clamp_shexp": [c["swiglu_limit"]] * c["num_hidden_layers"]}.items()


def write_gguf(path, c, weights, simulate):
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_type("model")
    writer.add_name("tern tiny test model")
    for key, value in metadata(c, simulate):
        key = f"deepseek4.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model("none")
    for name, value, kind in gguf_tensors(c, weights):
        if kind == "table":
            writer.add_tensor(name, value.astype(np.int32))
        elif kind in ("matrix", "expert", "narrow", "embed"):
            writer.add_tensor(name, gguf.quants.quantize(value, Type.Q8_0), raw_dtype=Type.Q8_0)
        elif kind == "mix":
            writer.add_tensor(name, value.astype(np.float16))
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def round_gguf(weights):
    for name, (value, kind) in weights.items():
        if kind in ("matrix", "expert", "narrow", "embed"):
            weights[name] = (gguf.quants.dequantize(gguf.quants.quantize(value, Type.Q8_0), Type.Q8_0), kind)
        elif kind == "mix":
            weights[name] = (value.astype(np.float16).astype(np.float32), kind)


# ------------------------------------------------------------------------------------------------ directories

def fp8(value):
    """(codes, scales, what they stand for)"""
    rows, columns = value.shape
    scales = torch.zeros(-(-rows // 128), -(-columns // 128))
    wide = torch.zeros(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            s = v4_oracle.up_to_power(value[at].abs().max() / 448)
            scales[i, j] = s
            wide[at] = (value[at] / s).to(F8).float() * s
            value[at] = value[at] / s
    return value.to(F8), scales.to(SCALE), wide


def fp4(value):
    blocks = value.unflatten(-1, (-1, 32))
    s = v4_oracle.up_to_power(blocks.abs().amax(-1, keepdim=True) / 6)
    levels = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])
    code = ((blocks / s).abs()[..., None] - levels).abs().argmin(-1)
    wide = (levels[code] * torch.sign(blocks) * s).flatten(-2)
    code = (code + 8 * (blocks < 0)).flatten(-2).to(torch.uint8)
    return (code[:, ::2] | code[:, 1::2] << 4).view(torch.int8), s[..., 0].to(SCALE), wide


def published(weights):
    """The tensors of the files, by name; weights become what they stand for."""
    state = {}
    for name, (value, kind) in weights.items():
        value = torch.from_numpy(value)
        if kind in ("matrix", "expert"):
            state[name], state[name.replace(".weight", ".scale")], value = (fp8 if kind == "matrix" else fp4)(value)
        elif kind == "table":
            state[name] = value.long()
        elif kind in ("mix", "bias", "scale", "choice"):
            state[name] = value
        else:
            state[name] = value.to(torch.bfloat16)
            value = state[name].float()
        weights[name] = (value.numpy(), kind)
    return state


def settings(c, name):
    """config.json of the makers."""
    return {**c, "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "expert_dtype": "fp4",
            "torch_dtype": "bfloat16", "compress_ratios": c["compress_ratios"] + [0], "num_nextn_predict_layers": 1,
            "rope_scaling": {"type": "yarn", "factor": YARN["factor"],
                             "original_max_position_embeddings": YARN["original"], "beta_fast": YARN["fast"],
                             "beta_slow": YARN["slow"]},
            "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                    "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}


def write_published(to, c, weights):
    state = published(weights)
    state["mtp.0.enorm.weight"] = torch.ones(c["hidden_size"], dtype=torch.bfloat16)
    state["mtp.0.e_proj.weight"], state["mtp.0.e_proj.scale"], _ = fp8(torch.ones(16, 32))
    names, total = sorted(state), 2
    index = {}
    for n in range(total):
        file = f"model-{n + 1:05d}-of-{total:05d}.safetensors"
        part = {name: state[name].contiguous() for name in names[n::total]}
        safetensors.torch.save_file(part, to / file, metadata={"format": "pt"})
        index |= {name: file for name in part}
    (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=1) + "\n")
    (to / "config.json").write_text(json.dumps(settings(c, to.name), indent=1) + "\n", encoding="ascii")


def hf_config(c):
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    types = [kinds.get(rate, "heavily_compressed_attention") for rate in c["compress_ratios"]]
    hca = [rate for rate in c["compress_ratios"] if rate not in kinds]
    yarn = dict(rope_type="yarn", factor=YARN["factor"], original_max_position_embeddings=YARN["original"],
                beta_fast=YARN["fast"], beta_slow=YARN["slow"])
    rest = {key: value for key, value in c.items() if key not in ("compress_ratios", "num_hash_layers", "topk_method")}
    return transformers.DeepseekV4Config(
        **rest, layer_types=types, compress_rates={kinds[4]: 4, "heavily_compressed_attention": hca[0]},
        mlp_layer_types=["hash_moe" if n < c["num_hash_layers"] else "moe" for n in range(len(types))],
        rope_parameters=yarn, attn_implementation="eager", experts_implementation="eager")


def as_transformers(c, weights):
    """A model of transformers with these weights, in float32."""
    with tempfile.TemporaryDirectory() as folder:
        to = pathlib.Path(folder)
        state = {name: torch.from_numpy(value).long() if kind == "table" else torch.from_numpy(np.ascontiguousarray(value))
                 for name, (value, kind) in weights.items()}
        safetensors.torch.save_file(state, to / "model.safetensors", metadata={"format": "pt"})
        hf_config(c).save_pretrained(to)
        model, info = transformers.DeepseekV4ForCausalLM.from_pretrained(
            to, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        wrong = {key: value for key, value in info.items() if value}
        if wrong:
            raise SystemExit(f"transformers does not know all of these weights: {wrong}")
    return model.eval()


# ------------------------------------------------------------------------------------------------ all together

def oracle(c, weights, simulate):
    return v4_oracle.Oracle(c, {name: torch.from_numpy(np.ascontiguousarray(value)).double()
                                for name, (value, _) in weights.items()}, YARN, simulate)


def shaken(c, weights, simulate, ids, logits):
    """How far logits move when all weights do by what float32 may round: what decisions hang on that."""
    worst = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        moved = {name: (value if kind == "table" else value * (1 + 1.5e-7 * rng.standard_normal(value.shape)), kind)
                 for name, (value, kind) in weights.items()}
        worst = max(worst, float(np.abs(oracle(c, moved, simulate).logits(ids).numpy() - logits).max()))
        if worst > STEADY:
            break
    return worst


def prompt(c, n, rng):
    ids = [int(i) for i in rng.integers(1, c["vocab_size"], n)]
    ids[0], ids[1], ids[2] = 0, c["vocab_size"] - 1, ids[n // 2]
    return ids


def attempt(name, seed, to):
    """Writes the model and returns its ids and logits; None: a decision is too close."""
    c, simulate, n, _ = MODELS[name]
    rng = np.random.default_rng(seed)
    weights, ids = draw(c, rng), prompt(c, n, rng)
    if name == "deepseek_v4_fp8":
        write_published(to, c, weights)
    elif name == "deepseek_v4":
        for key, (value, kind) in weights.items():
            if kind != "table":
                weights[key] = (torch.from_numpy(value).bfloat16().float().numpy(), kind)
    else:
        round_gguf(weights)
        write_gguf(to / f"{name}.gguf", c, weights, simulate)
    second = oracle(c, weights, simulate)
    logits = second.logits(ids).numpy()
    if shaken(c, weights, simulate, ids, logits) > STEADY:
        return None, None
    if len(set(r for r in c["compress_ratios"] if r not in (0, 4))) <= 1:
        model = as_transformers(c, weights)
        with torch.no_grad():
            first = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        other = oracle(c, weights, False)
        plain = other.logits(ids).numpy()
        print(f"{name}: transformers and the oracle differ by {np.abs(first - plain).max():.1e}"
              f", logits are up to {np.abs(first).max():.1f}", flush=True)
        if np.abs(first - plain).max() > 1e-4:
            raise SystemExit("they do not agree")
        if not simulate:
            logits = first
        if name == "deepseek_v4":
            model.to(torch.bfloat16).save_pretrained(to)
            config = json.loads((to / "config.json").read_text())
            config["simulated_quantization"] = False
            (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="ascii")
            (to / "generation_config.json").unlink(missing_ok=True)
    return ids, logits.astype(np.float32)


def make(name):
    rows = MODELS[name][3]
    kind = "hf" if name.startswith("deepseek_") else "tiny"
    for seed in range(1000, 1400):
        with tempfile.TemporaryDirectory() as folder:
            to = pathlib.Path(folder)
            ids, logits = attempt(name, seed, to)
            if ids is None:
                continue
            place = DATA / kind
            if kind == "hf":
                shutil.rmtree(place / name, ignore_errors=True)
                shutil.copytree(to, place / name)
            else:
                shutil.copy(to / f"{name}.gguf", place)
            (place / f"{name}.ids.txt").write_text(",".join(map(str, ids)) + "\n", encoding="ascii")
            np.save(place / f"{name}.logits.npy", logits[-rows:])
            print(f"{name}: seed {seed}", flush=True)
            for file in [place / f"{name}.logits.npy", *(place / name).glob("*")]:
                file.chmod(0o644)
            return
    raise SystemExit(f"{name}: no seed is far enough from every decision")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted)
