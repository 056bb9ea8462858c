#!/usr/bin/env python3
"""Writes a model file with random weights: for measuring speed at a size that no download is needed for.

    tools/make_synthetic_model.py --preset 1b --type q4_0 -o 1b-q4_0.gguf
    tools/make_synthetic_model.py --preset 8b --type q4_k --layers 4 -o part.gguf
    tools/make_synthetic_model.py --preset 1b --type bf16 --vocab 32000 --layers 7 --safetensors -o directory
    tools/make_synthetic_model.py --preset 30b-a3b --type q4_k_m --layers 12 -o experts.gguf

The file is GGUF 3, of the architecture "llama", or "qwen3moe" where there are experts, with tied embeddings and without
a tokenizer; --safetensors writes the same model as a directory of config.json and model.safetensors, its types being
f32, f16 and bf16, without experts.  Weights have the variance 1/inputs, so activations stay finite; the text that such
a model writes means nothing.  A pool of some ten thousand different blocks fills all tensors, each row from another
place in it.  Needs Python alone.
"""
import argparse
import array
import json
import os
import random
import struct
import sys

# width, layers, heads, KV heads, head size, feed-forward, vocabulary, context, experts, active experts
PRESETS = {
    "tiny": (256, 2, 4, 2, 64, 512, 512, 1024, 0, 0),
    "135m": (576, 30, 9, 3, 64, 1536, 49152, 8192, 0, 0),
    "1b": (2048, 16, 32, 8, 64, 8192, 128256, 131072, 0, 0),
    "3b": (3072, 28, 24, 8, 128, 8192, 128256, 131072, 0, 0),
    "8b": (4096, 32, 32, 8, 128, 14336, 128256, 131072, 0, 0),
    "30b-a3b": (2048, 48, 32, 4, 128, 768, 151936, 40960, 128, 8),
}
POOL = 16384  # different blocks
F32 = 0


def half(x):
    return struct.pack("<e", x)


def spread(rng):
    return rng.uniform(0.8, 1.2)


# One block of weights with the standard deviation s.  The constants are the standard deviations of uniform codes, with
# uniform scales where a type has these; each minimum is what makes the mean 0.
def q4_0(rng, s):
    return half(spread(rng) * s / 4.61) + rng.randbytes(16)


def q4_1(rng, s):
    d = spread(rng) * s / 4.61
    return half(d) + half(-7.5 * d) + rng.randbytes(16)


def q5_0(rng, s):
    return half(spread(rng) * s / 9.23) + rng.randbytes(20)


def q5_1(rng, s):
    d = spread(rng) * s / 9.23
    return half(d) + half(-15.5 * d) + rng.randbytes(20)


def q8_0(rng, s):
    return half(spread(rng) * s / 73.9) + rng.randbytes(32)


def q4_k(rng, s):
    d = spread(rng) * s / 258
    return half(d) + half(7.5 * d) + rng.randbytes(12 + 128)


def q5_k(rng, s):
    d = spread(rng) * s / 527
    return half(d) + half(15.5 * d) + rng.randbytes(12 + 32 + 128)


def q6_k(rng, s):
    scales = struct.pack("16b", *(rng.randrange(-32, 33) for _ in range(16)))
    return rng.randbytes(128 + 64) + scales + half(spread(rng) * s / 346)


def f32(rng, s):
    return struct.pack("<f", rng.gauss(0, s))


def f16(rng, s):
    return half(rng.gauss(0, s))


def bf16(rng, s):
    return struct.pack("<f", rng.gauss(0, s))[2:]


# number in the file, elements of a block, block
TYPES = {
    "f32": (0, 1, f32), "f16": (1, 1, f16), "bf16": (30, 1, bf16), "q4_0": (2, 32, q4_0), "q4_1": (3, 32, q4_1),
    "q5_0": (6, 32, q5_0), "q5_1": (7, 32, q5_1), "q8_0": (8, 32, q8_0), "q4_k": (12, 256, q4_k),
    "q5_k": (13, 256, q5_k), "q6_k": (14, 256, q6_k),
}
MIXED = "q4_k_m"  # Q4_K with some tensors in Q6_K, as most published files have it


def type_of(a, name):
    """Q6_K has, beside the output matrix, values and down of an eighth of the layers at either end and of every third
    between."""
    if "ffn_gate_inp" in name:
        return "f32"
    if a.type != MIXED:
        return a.type
    if name == "token_embd.weight":
        return "q6_k"
    kind = name.split(".")
    if len(kind) < 3 or kind[2] not in ("attn_v", "ffn_down", "ffn_down_exps"):
        return "q4_k"
    i, n = int(kind[1]), a.layers
    more = i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
    return "q6_k" if more else "q4_k"


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata(a):
    def u32(value):
        return struct.pack("<II", 4, value)

    def real(value):
        return struct.pack("<If", 6, value)

    def text(value):
        return struct.pack("<I", 8) + string(value)

    arch = "qwen3moe" if a.experts else "llama"
    own = {
        "block_count": u32(a.layers),
        "context_length": u32(a.context),
        "embedding_length": u32(a.width),
        "feed_forward_length": u32(a.ff),
        "attention.head_count": u32(a.heads),
        "attention.head_count_kv": u32(a.kv_heads),
        "attention.key_length": u32(a.head_dim),
        "attention.value_length": u32(a.head_dim),
        "attention.layer_norm_rms_epsilon": real(1e-5),
        "rope.dimension_count": u32(a.head_dim),
        "rope.freq_base": real(500000.0),
        "vocab_size": u32(a.vocab),
    }
    if a.experts:
        own |= {"expert_count": u32(a.experts), "expert_used_count": u32(a.active),
                "expert_feed_forward_length": u32(a.ff)}
    pairs = {
        "general.architecture": text(arch),
        "general.name": text(f"random {a.preset} {a.type}"),
        **{f"{arch}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": text("none"),
    }
    return len(pairs), b"".join(string(key) + value for key, value in pairs.items())


def tensors(a):
    """Name, outputs (0: a vector), inputs, and how many such matrices are one tensor."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    yield "token_embd.weight", a.vocab, a.width
    yield "output_norm.weight", 0, a.width
    for i in range(a.layers):
        yield f"blk.{i}.attn_norm.weight", 0, a.width
        yield f"blk.{i}.attn_q.weight", q, a.width
        yield f"blk.{i}.attn_k.weight", kv, a.width
        yield f"blk.{i}.attn_v.weight", kv, a.width
        yield f"blk.{i}.attn_output.weight", a.width, q
        yield f"blk.{i}.ffn_norm.weight", 0, a.width
        yield from experts(a, i) if a.experts else network(a, i)


def network(a, i):
    yield f"blk.{i}.ffn_gate.weight", a.ff, a.width
    yield f"blk.{i}.ffn_up.weight", a.ff, a.width
    yield f"blk.{i}.ffn_down.weight", a.width, a.ff


def experts(a, i):
    yield f"blk.{i}.attn_q_norm.weight", 0, a.head_dim
    yield f"blk.{i}.attn_k_norm.weight", 0, a.head_dim
    yield f"blk.{i}.ffn_gate_inp.weight", a.experts, a.width
    yield f"blk.{i}.ffn_gate_exps.weight", a.ff, a.width, a.experts
    yield f"blk.{i}.ffn_up_exps.weight", a.ff, a.width, a.experts
    yield f"blk.{i}.ffn_down_exps.weight", a.width, a.ff, a.experts


class Pool:
    """Random blocks of one type and deviation, twice one after the other, so that a row may begin at any of them."""

    def __init__(self, rng, block, deviation, row_blocks):
        blocks = [block(rng, deviation) for _ in range(POOL)]
        self.rng, self.size, self.row = rng, len(blocks[0]), row_blocks
        repeats = 2 + row_blocks // POOL
        self.bytes = memoryview(b"".join(blocks) * repeats)

    def write_rows(self, to, n):
        for _ in range(n):
            at = self.rng.randrange(POOL) * self.size
            to.write(self.bytes[at:at + self.row * self.size])


def write_gguf(a, to):
    rng = random.Random(a.seed)
    plan, offset, table, sizes = [], 0, b"", {}
    for name, n_out, n_in, *stack in tensors(a):
        number, elems, block = TYPES[type_of(a, name)]
        if number not in sizes:
            sizes[number] = len(block(rng, 1.0))
        size = sizes[number]
        dims = (n_in, n_out, *stack) if n_out else (n_in,)
        n_out *= stack[0] if stack else 1
        n_bytes = n_out * n_in // elems * size if n_out else n_in * 4
        table += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        table += struct.pack("<IQ", number if n_out else F32, offset)
        plan.append((n_out, n_in, -n_bytes % 32, block, elems))
        offset += n_bytes + -n_bytes % 32
    n_pairs, pairs = metadata(a)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(plan), n_pairs) + pairs + table
    to.write(head + bytes(-len(head) % 32))
    write_weights(rng, to, plan, array.array("f", [1.0]).tobytes())


def write_weights(rng, to, plan, one):
    """plan: outputs (0: a vector of ones), inputs, bytes of padding, what makes a block, its elements."""
    kinds = {(n_in, block, elems) for n_out, n_in, _, block, elems in plan if n_out}
    kinds = sorted(kinds, key=lambda k: (k[0], k[1].__name__))
    pools = {(n_in, block): Pool(rng, block, n_in ** -0.5, n_in // elems) for n_in, block, elems in kinds}
    for n_out, n_in, padding, block, _ in plan:
        if n_out:
            pools[n_in, block].write_rows(to, n_out)
        else:
            to.write(one * n_in)
        to.write(bytes(padding))


HF_WORDS = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HF_TYPES = {"f32": ("F32", "float32", "f"), "f16": ("F16", "float16", "e"), "bf16": ("BF16", "bfloat16", None)}


def hf_name(name):
    *layer, word, _ = name.split(".")
    return "model." + "".join(f"layers.{n}." for n in layer[1:]) + HF_WORDS[word] + ".weight"


def write_safetensors(a, to):
    rng = random.Random(a.seed)
    _, _, block = TYPES[a.type]
    dtype, _, code = HF_TYPES[a.type]
    one = struct.pack("<" + code, 1.0) if code else struct.pack("<f", 1.0)[2:]
    plan, offset, table = [], 0, {}
    for name, n_out, n_in in tensors(a):
        end = offset + max(n_out, 1) * n_in * len(one)
        table[hf_name(name)] = {"dtype": dtype, "shape": [n_out, n_in] if n_out else [n_in],
                                "data_offsets": [offset, end]}
        plan.append((n_out, n_in, 0, block, 1))
        offset = end
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    to.write(struct.pack("<Q", len(head)) + head)
    write_weights(rng, to, plan, one)


def hf_config(a):
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": a.layers,
        "max_position_embeddings": a.context, "hidden_size": a.width, "intermediate_size": a.ff,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": a.vocab, "hidden_act": "silu",
        "tie_word_embeddings": True, "torch_dtype": HF_TYPES[a.type][1],
    }


def write(a):
    if not a.safetensors:
        with open(a.out, "wb") as to:
            write_gguf(a, to)
        return
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "config.json"), "w", encoding="utf-8") as to:
        json.dump(hf_config(a), to, indent=1)
    with open(os.path.join(a.out, "model.safetensors"), "wb") as to:
        write_safetensors(a, to)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--preset", choices=PRESETS, default="1b", help="shape: SmolLM2 135M, Llama 3 1B, 3B, 8B (default: 1b)")
    p.add_argument("--type", choices=[*TYPES, MIXED], default="q4_0",
                   help=f"of all matrices; {MIXED}: as most published files have it (default: q4_0)")
    p.add_argument("--seed", type=int, default=1)
    names = ("width", "layers", "heads", "kv_heads", "head_dim", "ff", "vocab", "context", "experts", "active")
    for name in names:
        p.add_argument("--" + name.replace("_", "-"), type=int, help="instead of the preset's")
    p.add_argument("--safetensors", action="store_true", help="write a directory as Hugging Face publishes models")
    p.add_argument("-o", "--out", required=True, help="file (or directory) to write")
    a = p.parse_args()
    for name, value in zip(names, PRESETS[a.preset]):
        if getattr(a, name) is None:
            setattr(a, name, value)
        least = 0 if name in ("experts", "active") else 1
        if getattr(a, name) < least:
            p.error(f"--{name.replace('_', '-')} must be at least {least}")
    if bool(a.experts) != bool(a.active) or a.active > a.experts:
        p.error(f"{a.active} of {a.experts} experts cannot be active")
    elems = TYPES[type_of(a, "")][1]
    for name, n_in in (("width", a.width), ("heads times head size", a.heads * a.head_dim), ("ff", a.ff)):
        if n_in % elems:
            p.error(f"{name} is {n_in}, not a multiple of {elems}, as {a.type} needs")
    if a.heads % a.kv_heads:
        p.error(f"{a.heads} heads are not a multiple of {a.kv_heads} KV heads")
    if a.safetensors and a.experts:
        p.error("--safetensors writes models without experts")
    if a.safetensors and a.type not in HF_TYPES:
        p.error(f"--safetensors has the types {', '.join(HF_TYPES)}, not {a.type}")
    if sys.byteorder != "little":
        p.error("only little-endian machines can write these files")
    try:
        write(a)
    except OSError as e:
        sys.exit(f"{p.prog}: {a.out}: {e.strerror}")


if __name__ == "__main__":
    main()
