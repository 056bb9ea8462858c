#!/usr/bin/env python3
"""Logits of the tiny DeepSeek-V4 model without grids behind 4,000 tokens, in float64, from its equations: the whole prompt
at once, nothing cached.

    v4_long.py MODEL.gguf WINDOW OUT.npy     the last 24 of 4,190 rows, for unit/test_model_v4 and on its tokens
    v4_long.py MODEL.gguf 0 IDS.txt          compares with IDS.logits.npy, the reference's rows of the same model

WINDOW stands for the file's.  It prints how close the closest choice among compressed rows and among experts was.  Runs
outside CI.  Written with gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import pathlib
import sys

import gguf
import numpy as np

LENGTH, ROWS, BLOCK, SEED, EPS = 4190, 24, 256, 7, 1e-6
MASK = (1 << 64) - 1


def tokens(n, vocab):
    out, state = [], SEED
    for _ in range(n):
        x = state = (state + 0x9E3779B97F4A7C15) & MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        out.append((x ^ (x >> 31)) % vocab)
    return np.array(out)


def read(path):
    r = gguf.GGUFReader(path)
    c, w = {}, {}
    for key, f in r.fields.items():
        if key.startswith("deepseek4."):
            v = [f.parts[i].tolist()[0] for i in f.data]
            c[key[10:]] = v if f.types[0] == gguf.GGUFValueType.ARRAY else v[0]
    for t in r.tensors:
        shape = [int(x) for x in reversed(t.shape)]
        whole = t.tensor_type == gguf.GGMLQuantizationType.I32
        x = np.array(t.data) if whole else gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
        w[t.name.removesuffix(".weight")] = x.reshape(shape)
    return c, w


def rms(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


class Model:
    def __init__(self, path, window):
        self.c, self.w = read(path)
        assert not self.c["attention.simulated_quantization"], "grids are not steady here"
        self.window = window or self.c["attention.sliding_window"]
        self.rows_gap = self.expert_gap = np.inf
        n = self.c["rope.dimension_count"]
        i = np.arange(n // 2)
        self.freq = {False: self.c["rope.freq_base"] ** (-2 * i / n)}
        base, original = self.c["attention.compress_rope_freq_base"], self.c["rope.scaling.original_context_length"]
        f = base ** (-2 * i / n)
        edge = [n * np.log(original / (2 * np.pi * self.c[f"rope.scaling.yarn_beta_{k}"])) / (2 * np.log(base))
                for k in ("fast", "slow")]
        low, high = max(np.floor(edge[0]), 0), min(np.ceil(edge[1]), n - 1)
        ramp = np.clip((i - low) / max(high - low, 1e-3), 0, 1)
        self.freq[True] = f * (1 - ramp) + f / self.c["rope.scaling.factor"] * ramp

    def turn(self, x, at, stretched, back=False):
        """The last dims of x[T, ..., dim], neighbours together."""
        freq = self.freq[stretched]
        angle = at.reshape([-1] + [1] * (x.ndim - 1)) * freq
        cos, sin, n = np.cos(angle), np.sin(angle) * (-1 if back else 1), 2 * len(freq)
        out = x.copy()
        a, b = x[..., -n::2], x[..., -n + 1::2]
        out[..., -n::2], out[..., -n + 1::2] = a * cos - b * sin, a * sin + b * cos
        return out

    # ---- streams

    def weigh(self, h, name):
        return rms(h.reshape(len(h), -1)) @ self.w[f"{name}_fn"].T, self.w[f"{name}_base"], self.w[f"{name}_scale"]

    def mix(self, h, name):
        n, eps = self.c["hyper_connection.count"], self.c["hyper_connection.epsilon"]
        m, base, scale = self.weigh(h, name)
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        comb = softmax((m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(self.c["hyper_connection.sinkhorn_iterations"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        return (pre[..., None] * h).sum(1), post, comb

    # ---- attention

    def compress(self, x, name, rate, width):
        w, n = self.w, len(x) // rate
        a, g = ((x @ w[f"{name}_{k}"].T)[:n * rate].reshape(n, rate, -1) for k in ("kv", "gate"))
        g = g + w[f"{name}_ape"]
        if rate == 4:
            a0, g0 = np.zeros_like(a[:, :, :width]), np.full_like(g[:, :, :width], -np.inf)
            a0[1:], g0[1:] = a[:-1, :, :width], g[:-1, :, :width]
            a, g = np.concatenate([a0, a[:, :, width:]], 1), np.concatenate([g0, g[:, :, width:]], 1)
        e = rms((a * softmax(g, 1)).sum(1)) * w[f"{name}_norm"]
        return self.turn(e, np.arange(n) * rate, True)

    def chosen(self, x, qr, name, at):
        """[T, rows]: what each token sees of the rows of four tokens."""
        heads, width, top = (self.c[f"attention.indexer.{k}"] for k in ("head_count", "key_length", "top_k"))
        keys = self.compress(x, f"{name}.indexer_compressor", 4, width)
        q = self.turn((qr @ self.w[f"{name}.indexer.attn_q_b"].T).reshape(len(x), heads, width), at, True)
        weight = x @ self.w[f"{name}.indexer.proj"].T * width**-.5 * heads**-.5
        seen = np.zeros((len(x), len(keys)), bool)
        for t in range(len(x)):
            n = (t + 1) // 4
            score = weight[t] @ np.maximum(q[t] @ keys[:n].T, 0)
            order = np.argsort(-score, kind="stable")
            if n > top:
                self.rows_gap = min(self.rows_gap, score[order[top - 1]] - score[order[top]])
            seen[t, order[:top]] = True
        return seen

    def attend(self, q, rows, seen, sinks):
        out = np.empty_like(q)
        for t in range(0, len(q), BLOCK):
            s = np.einsum("thd,nd->thn", q[t:t + BLOCK], rows, optimize=True) * q.shape[-1]**-.5
            s = np.where(seen[t:t + BLOCK, None], s, -np.inf)
            top = np.maximum(s.max(-1), sinks)[..., None]
            e = np.exp(s - top)
            out[t:t + BLOCK] = (e @ rows) / (e.sum(-1, keepdims=True) + np.exp(sinks[None, :, None] - top))
        return out

    def attention(self, x, layer):
        c, w, name, at = self.c, self.w, f"blk.{layer}", np.arange(len(x))
        rate, heads, width = c["attention.compress_ratios"][layer], c["attention.head_count"], c["attention.key_length"]
        groups = c["attention.output_group_count"]
        qr = rms(x @ w[f"{name}.attn_q_a"].T) * w[f"{name}.attn_q_a_norm"]
        q = self.turn(rms((qr @ w[f"{name}.attn_q_b"].T).reshape(len(x), heads, width)), at, rate > 0)
        rows = self.turn(rms(x @ w[f"{name}.attn_kv"].T) * w[f"{name}.attn_kv_a_norm"], at, rate > 0)
        seen = (at[None] <= at[:, None]) & (at[None] > at[:, None] - self.window)
        if rate:
            more = self.compress(x, f"{name}.attn_compressor", rate, width)
            sees = self.chosen(x, qr, name, at) if rate == 4 else (
                np.arange(len(more))[None] < ((at + 1) // rate)[:, None])
            rows, seen = np.concatenate([more, rows]), np.concatenate([sees, seen], 1)
        o = self.turn(self.attend(q, rows, seen, w[f"{name}.attn_sinks"]), at, rate > 0, back=True)
        a = w[f"{name}.attn_output_a"].reshape(groups, -1, heads * width // groups)
        o = np.einsum("tgi,goi->tgo", o.reshape(len(x), groups, -1), a, optimize=True)
        return o.reshape(len(x), -1) @ w[f"{name}.attn_output_b"].T

    # ---- experts

    def network(self, x, gate, up, down, limit):
        g, u = np.minimum(x @ gate.T, limit), np.clip(x @ up.T, -limit, limit)
        return (g * sigmoid(g) * u) @ down.T

    def experts(self, x, ids, layer):
        c, w, name = self.c, self.w, f"blk.{layer}"
        s = np.sqrt(np.logaddexp(0, x @ w[f"{name}.ffn_gate_inp"].T))
        n = c["expert_used_count"]
        if layer < c["hash_layer_count"]:
            chosen = w[f"{name}.ffn_gate_tid2eid"][ids]
        else:
            biased = s + w[f"{name}.exp_probs_b.bias"]
            order = np.argsort(-biased, axis=1, kind="stable")
            sort = np.take_along_axis(biased, order, 1)
            self.expert_gap = min(self.expert_gap, (sort[:, n - 1] - sort[:, n]).min())
            chosen = order[:, :n]
        weight = np.take_along_axis(s, chosen, 1)
        weight = weight / weight.sum(1, keepdims=True) * c["expert_weights_scale"]
        parts = [w[f"{name}.ffn_{k}_shexp"] for k in ("gate", "up", "down")]
        y = self.network(x, *parts, c["swiglu_clamp_shexp"][layer])
        for e in range(c["expert_count"]):
            rows, which = np.where(chosen == e)
            parts = [w[f"{name}.ffn_{k}_exps"][e] for k in ("gate", "up", "down")]
            y[rows] += self.network(x[rows], *parts, c["swiglu_clamp_exp"][layer]) * weight[rows, which, None]
        return y

    def logits(self, ids):
        c, w = self.c, self.w
        h = np.repeat(w["token_embd"][ids][:, None], c["hyper_connection.count"], 1)
        for i in range(c["block_count"]):
            for half in ("attn", "ffn"):
                x, post, comb = self.mix(h, f"blk.{i}.hc_{half}")
                x = rms(x) * w[f"blk.{i}.{half}_norm"]
                f = self.attention(x, i) if half == "attn" else self.experts(x, ids, i)
                h = post[..., None] * f[:, None] + np.einsum("tjk,tjd->tkd", comb, h)
        m, base, scale = self.weigh(h, "output_hc")
        p = sigmoid(m * scale + base) + c["hyper_connection.epsilon"]
        return (rms((p[..., None] * h).sum(1)) * w["output_norm"]) @ w["output"].T


def main():
    path, window, other = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    model = Model(path, window)
    if window:
        out = model.logits(tokens(LENGTH, model.c["vocab_size"]))[-ROWS:].astype(np.float32)
        np.save(other, out)
    else:
        ids = np.array([int(x) for x in other.read_text().replace(",", " ").split()])
        want = np.load(other.with_name(other.name.replace(".ids.txt", ".logits.npy")))
        print(f"largest difference {np.abs(model.logits(ids)[-len(want):] - want).max():.2e}")
    print(f"closest choice of rows {model.rows_gap:.1e}, of experts {model.expert_gap:.1e}")


if __name__ == "__main__":
    main()
