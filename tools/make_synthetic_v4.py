#!/usr/bin/env python3
"""Writes a directory with random weights in the shapes and formats that DeepSeek-V4-Flash is published in (FP8 and FP4 with
power-of-two scales, BF16, F32), of few layers, few experts and a small vocabulary: for measuring speed.

    tools/make_synthetic_v4.py -o v4-part
    tools/make_synthetic_v4.py --ratios 0,4,128,4 --experts 16 --vocab 16384 -o v4-part

A decoded token reads of such a layer what it reads of the whole model's: six experts, whatever their number.  At the end
it prints how many bytes that is for the layers written and for all 43, from the shapes alone.  Weights have the variance
1/inputs; the text that such a model writes means nothing.  Needs Python alone.
"""
import argparse
import json
import math
import os
import random
import struct
import sys

WIDTH, HEADS, DIM, ROTATED, RANK, GROUPS, O_RANK, FF, ACTIVE = 4096, 64, 512, 64, 1024, 8, 1024, 2048, 6
INDEX_HEADS, INDEX_DIM, STREAMS, VOCAB, EXPERTS = 64, 128, 4, 129280, 256
RATIOS = [0, 0] + [4, 128] * 20 + [4]
POOL = 1 << 20
SIZES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4, "I64": 8}


def matrix(name, rows, columns):
    yield f"{name}.weight", "F8_E4M3", (rows, columns)
    yield f"{name}.scale", "F8_E8M0", (-(-rows // 128), -(-columns // 128))


def expert(name, rows, columns):
    yield f"{name}.weight", "I8", (rows, columns // 2)
    yield f"{name}.scale", "F8_E8M0", (rows, columns // 32)


def compressor(name, dim, rate):
    both = dim * (2 if rate == 4 else 1)
    yield f"{name}.wkv.weight", "BF16", (both, WIDTH)
    yield f"{name}.wgate.weight", "BF16", (both, WIDTH)
    yield f"{name}.ape", "F32", (rate, both)
    yield f"{name}.norm.weight", "BF16", (dim,)


def layer_tensors(i, rate, a):
    """(name, type, shape); those of the experts come last."""
    at, to, mix = f"layers.{i}.attn", f"layers.{i}.ffn", STREAMS * (STREAMS + 2)
    for half in ("attn", "ffn"):
        yield f"layers.{i}.hc_{half}_fn", "F32", (mix, STREAMS * WIDTH)
        yield f"layers.{i}.hc_{half}_base", "F32", (mix,)
        yield f"layers.{i}.hc_{half}_scale", "F32", (3,)
        yield f"layers.{i}.{half}_norm.weight", "BF16", (WIDTH,)
    yield from matrix(f"{at}.wq_a", RANK, WIDTH)
    yield f"{at}.q_norm.weight", "BF16", (RANK,)
    yield from matrix(f"{at}.wq_b", HEADS * DIM, RANK)
    yield from matrix(f"{at}.wkv", DIM, WIDTH)
    yield f"{at}.kv_norm.weight", "BF16", (DIM,)
    yield f"{at}.attn_sink", "F32", (HEADS,)
    yield from matrix(f"{at}.wo_a", GROUPS * O_RANK, HEADS * DIM // GROUPS)
    yield from matrix(f"{at}.wo_b", WIDTH, GROUPS * O_RANK)
    if rate:
        yield from compressor(f"{at}.compressor", DIM, rate)
    if rate == 4:
        yield from matrix(f"{at}.indexer.wq_b", INDEX_HEADS * INDEX_DIM, RANK)
        yield f"{at}.indexer.weights_proj.weight", "BF16", (INDEX_HEADS, WIDTH)
        yield from compressor(f"{at}.indexer.compressor", INDEX_DIM, rate)
    yield f"{to}.gate.weight", "BF16", (a.experts, WIDTH)
    if i < a.hash_layers:
        yield f"{to}.gate.tid2eid", "I64", (a.vocab, ACTIVE)
    else:
        yield f"{to}.gate.bias", "F32", (a.experts,)
    for w, rows, columns in (("w1", FF, WIDTH), ("w2", WIDTH, FF), ("w3", FF, WIDTH)):
        yield from matrix(f"{to}.shared_experts.{w}", rows, columns)
    for e in range(a.experts):
        for w, rows, columns in (("w1", FF, WIDTH), ("w2", WIDTH, FF), ("w3", FF, WIDTH)):
            yield from expert(f"{to}.experts.{e}.{w}", rows, columns)


def outer_tensors(a):
    yield "embed.weight", "BF16", (a.vocab, WIDTH)
    yield "norm.weight", "BF16", (WIDTH,)
    yield "hc_head_fn", "F32", (STREAMS, STREAMS * WIDTH)
    yield "hc_head_base", "F32", (STREAMS,)
    yield "hc_head_scale", "F32", (1,)
    yield "head.weight", "BF16", (a.vocab, WIDTH)


def n_bytes(kind, shape):
    return math.prod(shape) * SIZES[kind]


def read_by_a_token(name, kind, shape, a):
    """Of a row that is looked up, and of experts, what one token takes."""
    part = 1.0
    if name == "embed.weight" or "tid2eid" in name:
        part = 1 / shape[0]
    elif ".experts." in name:
        part = ACTIVE / a.experts
    return n_bytes(kind, shape) * part


class Weights:
    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        normal = [rng.gauss(0, 1) for _ in range(POOL // 8)]
        self.pools = {
            "F8_E4M3": bytes(rng.choice((0x00, 0x80)) | rng.randrange(0x20, 0x40) for _ in range(POOL)),  # .125 .. 1.9
            "I8": rng.randbytes(POOL),
            "normal": normal,
        }
        self.wide = {}

    def pool(self, kind, deviation):
        """Numbers of a standard deviation, in one of the wider types."""
        if (kind, deviation) not in self.wide:
            raw = struct.pack(f"<{POOL // 8}f", *(x * deviation for x in self.pools["normal"]))
            if kind == "BF16":
                raw = b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
            self.wide[kind, deviation] = raw
        return self.wide[kind, deviation]

    def fill(self, to, raw, n, size):
        at = self.rng.randrange(len(raw) // size // 2) * size
        piece = raw[at:]
        while n:
            to.write(piece[:n])
            n -= min(n, len(piece))
            piece = raw

    def write(self, to, name, kind, shape, a):
        n = n_bytes(kind, shape)
        if kind == "I64":
            for _ in range(shape[0]):
                to.write(struct.pack(f"<{ACTIVE}q", *self.rng.sample(range(a.experts), ACTIVE)))
        elif kind == "F8_E8M0":  # the codes' own deviation is about 2^-.5, and 2^1.5 of 4 bits
            columns = shape[1] * (32 if ".experts." in name else 128)
            power = round(math.log2(columns) / 2 + (1.5 if ".experts." in name else -.5))
            to.write(bytes([127 - power]) * n)
        elif kind in ("F8_E4M3", "I8"):
            self.fill(to, self.pools[kind], n, 1)
        elif name.endswith("norm.weight"):
            to.write(struct.pack("<f", 1)[2:] * shape[0])
        elif name.endswith(("_base", "_scale", "attn_sink", "gate.bias")):
            to.write(struct.pack("<f", 1 if name.endswith("_scale") else 0) * shape[0])
        else:
            self.fill(to, self.pool(kind, round(shape[-1] ** -.5, 6)), n, SIZES[kind])


def write_file(path, tensors, weights, a):
    table, offset = {}, 0
    for name, kind, shape in tensors:
        end = offset + n_bytes(kind, shape)
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as to:
        to.write(struct.pack("<Q", len(head)) + head)
        for name, kind, shape in tensors:
            weights.write(to, name, kind, shape, a)


def config(a):
    return {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": a.vocab,
        "hidden_size": WIDTH, "num_hidden_layers": len(a.ratios), "num_attention_heads": HEADS,
        "num_key_value_heads": 1, "head_dim": DIM, "qk_rope_head_dim": ROTATED, "q_lora_rank": RANK,
        "o_lora_rank": O_RANK, "o_groups": GROUPS, "sliding_window": 128, "compress_ratios": a.ratios,
        "rope_theta": 10000, "compress_rope_theta": 160000, "max_position_embeddings": 65536,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                         "beta_slow": 1},
        "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM, "index_topk": 512, "hc_mult": STREAMS,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "n_routed_experts": a.experts, "n_shared_experts": 1,
        "num_experts_per_tok": ACTIVE, "moe_intermediate_size": FF, "num_hash_layers": a.hash_layers,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "expert_dtype": "fp4", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}


def tell(what, ratios, a):
    tensors = [t for i, rate in enumerate(ratios) for t in layer_tensors(i, rate, a)] + list(outer_tensors(a))
    print(f"{what}: {sum(n_bytes(k, s) for _, k, s in tensors) / 1e9:.2f} GB, "
          f"{sum(read_by_a_token(*t, a) for t in tensors) / 1e6:.1f} MB read for a token")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--ratios", default="0,4,128,4", help="tokens to a compressed row, layer by layer (default: 0,4,128,4)")
    p.add_argument("--experts", type=int, default=16, help="in every layer (default: 16)")
    p.add_argument("--vocab", type=int, default=16384, help="(default: 16384)")
    p.add_argument("--hash-layers", type=int, default=1, help="layers with experts by token (default: 1)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-o", "--out", required=True, help="directory to write")
    a = p.parse_args()
    try:
        a.ratios = [int(r) for r in a.ratios.split(",")]
    except ValueError:
        p.error("--ratios are not numbers")
    if any(r not in (0, 4, 128) for r in a.ratios):
        p.error("--ratios are 0, 4 and 128")
    if a.experts < ACTIVE or a.vocab < 1 or not 0 <= a.hash_layers <= len(a.ratios):
        p.error(f"there are at least {ACTIVE} experts, one token, and no more hash layers than layers")
    if sys.byteorder != "little":
        p.error("only little-endian machines can write these files")
    weights = Weights(a.seed)
    parts = [list(outer_tensors(a))] + [list(layer_tensors(i, rate, a)) for i, rate in enumerate(a.ratios)]
    names = [f"model-{n + 1:05d}-of-{len(parts):05d}.safetensors" for n in range(len(parts))]
    try:
        os.makedirs(a.out, exist_ok=True)
        for name, part in zip(names, parts):
            write_file(os.path.join(a.out, name), part, weights, a)
        with open(os.path.join(a.out, "model.safetensors.index.json"), "w", encoding="utf-8") as to:
            json.dump({"metadata": {}, "weight_map": {t[0]: n for n, part in zip(names, parts) for t in part}}, to)
        with open(os.path.join(a.out, "config.json"), "w", encoding="utf-8") as to:
            json.dump(config(a), to, indent=1)
    except OSError as e:
        sys.exit(f"{p.prog}: {a.out}: {e.strerror}")
    tell("these layers", a.ratios, a)
    a.experts, a.vocab, a.hash_layers = EXPERTS, VOCAB, 3
    tell("DeepSeek-V4-Flash", RATIOS, a)


if __name__ == "__main__":
    main()
