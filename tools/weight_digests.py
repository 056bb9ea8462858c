#!/usr/bin/env python3
"""Prints the digests of tests/unit/test_weights.c: what made-up weights mean to others.

    tools/weight_digests.py

Blocks of GGUF are read by the gguf package; weights of several tensors by the formulas of the projects that write them
(mlx.core.dequantize, transformers' FP8 and GPTQ, AutoAWQ), here in numpy, with eight-bit floats by torch.  The bytes are
those that the test makes: hash64(seed + i), spoilt as little as keeps all numbers finite.  The digest folds the bits of
the results with h = hash64(h ^ bits).  Written with gguf 0.19.0, torch 2.15.0, numpy 2.4.6."""
import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

MASK = (1 << 64) - 1
# Bytes of a block whose bit 6 (the top of an exponent) is cleared; other masks are given.
HALVES = {Type.F32: [(3, 0xBF)], Type.F16: [(1, 0xBF)], Type.BF16: [(1, 0xBF)], Type.Q4_1: [(1, 0xBF), (3, 0xBF)],
          Type.Q5_1: [(1, 0xBF), (3, 0xBF)], Type.Q2_K: [(81, 0xBF), (83, 0xBF)], Type.Q3_K: [(109, 0xBF)],
          Type.Q4_K: [(1, 0xBF), (3, 0xBF)], Type.Q5_K: [(1, 0xBF), (3, 0xBF)], Type.Q6_K: [(209, 0xBF)],
          Type.MXFP4: [(0, 0x7F)], Type.NVFP4: [(g, 0x3F) for g in range(4)]}
TYPES = ("F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS "
         "IQ2_XXS MXFP4 NVFP4").split()
ROWS, COLS = 24, 384  # of weights of several tensors


def hash64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def made_up(n, seed):
    return np.array([hash64(seed + i) & 255 for i in range(n)], np.uint8)


def digest(values):
    h = 0
    for bits in np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32):
        h = hash64(h ^ int(bits))
    return h


def plain(name):
    qtype = Type[name]
    elems, size = gguf.GGML_QUANT_SIZES[qtype]
    raw = made_up(512 // elems * size, 1000 * int(qtype)).reshape(-1, size)
    for at, mask in HALVES.get(qtype, [(1, 0xBF)]):
        raw[:, at] &= mask
    return gguf.quants.dequantize(raw.reshape(-1), qtype)


# ---- weights of several tensors: data from seed 1, scales from 2, zeros from 3 (times a million)

def numbers(dtype, shape, seed):
    """Finite floats of a moderate size: the top bit of the exponent is cleared."""
    size = 4 if dtype == "F32" else 2
    raw = made_up(int(np.prod(shape)) * size, seed).reshape(-1, size)
    raw[:, -1] &= 0xBF
    if dtype == "F32":
        return raw.view(np.float32).reshape(shape)
    if dtype == "F16":
        return raw.view(np.float16).astype(np.float32).reshape(shape)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)


def fused(q, scale, zero):
    """scale * q + zero rounded once: the product is exact in double, and a sum that is not is first rounded to odd."""
    product, zero = scale.astype(np.float64) * q, np.broadcast_to(zero, q.shape).astype(np.float64)
    total = product + zero
    part = total - product
    lost = (product - (total - part)) + (zero - part)
    even = (lost != 0) & (total.view(np.uint64) & np.uint64(1) == 0)
    return np.where(even, np.nextafter(total, np.copysign(np.inf, lost)), total).astype(np.float32)


def per_group(values, group, cols=COLS):
    return np.repeat(values, group, axis=1)[:, :cols]


def e4m3(raw):
    return torch.from_numpy(raw.copy()).view(torch.float8_e4m3fn).to(torch.float32).numpy()


def finite_e4m3(raw):
    raw[(raw & 0x7F) == 0x7F] &= 0xFE
    return raw


def affine(bits, group, dtype):
    raw = made_up(ROWS * COLS * bits // 8, 10**6).reshape(ROWS, -1)
    stream = np.unpackbits(raw, axis=1, bitorder="little").reshape(ROWS, COLS, bits)
    q = (stream << np.arange(bits)).sum(axis=2).astype(np.float32)
    shape = (ROWS, COLS // group)
    scale, bias = numbers(dtype, shape, 2 * 10**6), numbers(dtype, shape, 3 * 10**6)
    return fused(q, per_group(scale, group), per_group(bias, group))


def nibbles(raw):
    return np.stack([raw & 15, raw >> 4], axis=-1).reshape(ROWS, COLS)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e8m0(raw):
    return np.exp2(raw.astype(np.float64) - 127).astype(np.float32)


def mxfp4():
    scale = e8m0(made_up(ROWS * COLS // 32, 2 * 10**6) & 0x7F).reshape(ROWS, -1)
    return E2M1[nibbles(made_up(ROWS * COLS // 2, 10**6).reshape(ROWS, -1))] * per_group(scale, 32)


def nvfp4(*factors):
    """Each factor for as many rows as the others."""
    factor = np.repeat(np.array(factors, np.float32), ROWS // len(factors))[:, None]
    scale = e4m3(finite_e4m3(made_up(ROWS * COLS // 16, 2 * 10**6))).reshape(ROWS, -1) * factor
    return E2M1[nibbles(made_up(ROWS * COLS // 2, 10**6).reshape(ROWS, -1))] * per_group(scale, 16)


def mxfp8():
    scale = e8m0(made_up(ROWS * COLS // 32, 2 * 10**6) & 0x7F).reshape(ROWS, -1)
    return e4m3(finite_e4m3(made_up(ROWS * COLS, 10**6))).reshape(ROWS, COLS) * per_group(scale, 32)


def fp8(group_rows, group, dtype):
    rows, group = group_rows or ROWS, group or COLS
    scale = numbers(dtype, (-(-ROWS // rows), -(-COLS // group)), 2 * 10**6)
    wide = np.repeat(per_group(scale, group), rows, axis=0)[:ROWS]
    return e4m3(finite_e4m3(made_up(ROWS * COLS, 10**6))).reshape(ROWS, COLS) * wide


def words(awq, group, dtype, plus):
    """Both store [inputs][outputs].  Sums of equals are +0."""
    group = group or COLS
    data = made_up(ROWS * COLS // 2, 10**6).view(np.uint32)
    zeros = made_up(COLS // group * ROWS // 2, 3 * 10**6).view(np.uint32)
    places = np.array([0, 4, 1, 5, 2, 6, 3, 7] if awq else range(8), np.uint32) * 4
    outputs = lambda w: (w[:, :, None] >> places & 15).reshape(len(w), -1)  # noqa: E731
    if awq:
        q = outputs(data.reshape(COLS, ROWS // 8))
    else:
        q = (data.reshape(COLS // 8, 1, ROWS) >> np.arange(8, dtype=np.uint32)[:, None] * 4 & 15).reshape(COLS, ROWS)
    z = outputs(zeros.reshape(COLS // group, ROWS // 8)) + plus
    scale = numbers(dtype, (COLS // group, ROWS), 2 * 10**6)
    wide = q.astype(np.float32) - np.repeat(z, group, axis=0).astype(np.float32)
    return (wide * np.repeat(scale, group, axis=0)).T + np.float32(0)  # no negative zeros


FORMS = [(f"AFFINE {b} {g} {d}", affine(b, g, d)) for b, g, d in
         ((2, 32, "F16"), (3, 64, "BF16"), (4, 64, "BF16"), (4, 128, "F32"), (5, 32, "F16"), (6, 128, "BF16"),
          (8, 64, "BF16"))]
FORMS += [("MXFP4", mxfp4()), ("NVFP4", nvfp4(1)), ("NVFP4 factor 0.3", nvfp4(0.3)),
          ("NVFP4 factors", nvfp4(0.3, 1.7, -0.25)), ("MXFP8", mxfp8())]
FORMS += [(f"FP8 {r} {g} {d}", fp8(r, g, d)) for r, g, d in
          ((16, 128, "BF16"), (20, 160, "F32"), (1, 0, "F32"), (0, 0, "F16"))]
FORMS += [(f"GPTQ {g} {d} {p}", words(False, g, d, p)) for g, d, p in ((128, "F16", 1), (32, "BF16", 0), (0, "F16", 1))]
FORMS += [("AWQ 64 F16", words(True, 64, "F16", 0))]


def main():
    for name in TYPES:
        print(f"{name:24} 0x{digest(plain(name)):016X}")
    for name, values in FORMS:
        assert np.isfinite(values).all()
        print(f"{name:24} 0x{digest(values):016X}")


if __name__ == "__main__":
    main()
