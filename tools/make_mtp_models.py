#!/usr/bin/env python3
"""Make layers for multi-token prediction (MTP) of tiny models, in tests/data/mtp, and what they must answer.

The models are there already: tests/support/mtp_models.h puts one and its layer together.  transformers has no such layers, so the referee is this
file: the published equations in float64 (DeepSeek-V3 report, 2412.19437, 21 to 23; Gated Delta Networks, 2412.06464),
whose text part must agree with transformers' logits, which are there.  Runs outside CI: the results are committed.

    make_mtp_models.py [NAME...]      write all, or these

NAME.gguf: the layer's tensors; NAME.json, NAME.bin: further entries and data of model.safetensors.
NAME.logits.npy: row r is what the layer says after tokens 0..i of the model's ids, i = 5 r, so of token i + 1.
NAME-2.logits.npy: what it says of token i + 2 when it goes on from its own answer with token i + 1.

Written with gguf 0.19.0, numpy 2.4.6, Python 3.11.
"""
import json
import pathlib
import struct
import sys
import zlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tiny"
HF, OUT = DATA.parent / "hf", DATA.parent / "mtp"
EVERY = 5
EPS = 1e-6  # as the model at hand says


def rms(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {name: f.contents() for name, f in reader.fields.items() if not name.startswith("GGUF.")}
        self.types = {t.name: t.tensor_type for t in reader.tensors}
        self.w = {t.name: (t.data if t.tensor_type == Type.I32 else gguf.quants.dequantize(t.data, t.tensor_type))
                  .astype(np.float64) for t in reader.tensors}
        self.arch = self.meta["general.architecture"]
        self.use_eps()

    def use_eps(self):
        global EPS
        EPS = float(f'{self.key("attention.layer_norm_rms_epsilon"):.3g}')

    def key(self, name):
        return self.meta[f"{self.arch}.{name}"]

    def write(self, path):
        writer = gguf.GGUFWriter(path, self.arch)
        for name, value in self.w.items():
            if not name.startswith(f"blk.{self.n_text}."):
                continue
            value = np.ascontiguousarray(value, np.float32)
            kind = self.types[name]
            if kind == Type.F32:
                writer.add_tensor(name, value)
            elif kind in (Type.F16, Type.I32):
                writer.add_tensor(name, value.astype(np.float16 if kind == Type.F16 else np.int32))
            else:
                writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


class Qwen35(Model):
    def rope(self, x, at):
        """The first dims of [rows][heads][dim], paired by halves."""
        n = self.key("rope.dimension_count")
        half = n // 2
        angle = np.asarray(at)[:, None] * self.key("rope.freq_base") ** (-np.arange(half) * 2.0 / n)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:n]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., n:]], -1)

    def qkv(self, h, b, at):
        heads, kv, dim = self.key("attention.head_count"), self.key("attention.head_count_kv"), self.key("attention.key_length")
        both = (h @ self.w[b + "attn_q.weight"].T).reshape(len(h), heads, 2 * dim)
        q = self.rope(rms(both[..., :dim], self.w[b + "attn_q_norm.weight"]), at)
        k = (h @ self.w[b + "attn_k.weight"].T).reshape(len(h), kv, dim)
        k = self.rope(rms(k, self.w[b + "attn_k_norm.weight"]), at)
        v = (h @ self.w[b + "attn_v.weight"].T).reshape(len(h), kv, dim)
        return q, both[..., dim:], k, v

    def attend(self, b, q, gate, k, v, at):
        """Rows at positions `at` see keys of 0..at."""
        group = q.shape[1] // k.shape[1]
        out = np.zeros(q.shape)
        for r, p in enumerate(at):
            for h in range(q.shape[1]):
                s = k[: p + 1, h // group] @ q[r, h] / np.sqrt(q.shape[2])
                s = np.exp(s - s.max())
                out[r, h] = (s / s.sum()) @ v[: p + 1, h // group]
        return (out * sigmoid(gate)).reshape(len(q), -1) @ self.w[b + "attn_output.weight"].T

    def delta(self, h, b):
        n_k, n_v, dk = self.key("ssm.group_count"), self.key("ssm.time_step_rank"), self.key("ssm.state_size")
        dv = self.key("ssm.inner_size") // n_v
        m, conv = h @ self.w[b + "attn_qkv.weight"].T, self.w[b + "ssm_conv1d.weight"]
        width = conv.shape[1]
        past = np.concatenate([np.zeros((width - 1, m.shape[1])), m])
        u = silu(sum(past[j: j + len(m)] * conv[:, j] for j in range(width)))
        q, k, v = np.split(u, [n_k * dk, 2 * n_k * dk], 1)
        q, k = (x.reshape(-1, n_k, dk) for x in (q, k))
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        v = v.reshape(-1, n_v, dv)
        beta = sigmoid(h @ self.w[b + "ssm_beta.weight"].T)
        decay = np.exp(self.w[b + "ssm_a"] * np.logaddexp(0, h @ self.w[b + "ssm_alpha.weight"].T + self.w[b + "ssm_dt.bias"]))
        state, out = np.zeros((n_v, dk, dv)), np.zeros(v.shape)
        for t in range(len(h)):
            for i in range(n_v):
                key = k[t, i % n_k]
                state[i] *= decay[t, i]
                state[i] += np.outer(key, beta[t, i] * (v[t, i] - key @ state[i]))
                out[t, i] = q[t, i % n_k] @ state[i] / np.sqrt(dk)
        out = rms(out, self.w[b + "ssm_norm.weight"]).reshape(len(h), -1)
        return (out * silu(h @ self.w[b + "attn_gate.weight"].T)) @ self.w[b + "ssm_out.weight"].T

    def network(self, x, b):
        h = rms(x, self.w[b + "post_attention_norm.weight"])
        act = silu(h @ self.w[b + "ffn_gate.weight"].T) * (h @ self.w[b + "ffn_up.weight"].T)
        return x + act @ self.w[b + "ffn_down.weight"].T

    def head(self, h):
        return h @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def hidden(self, ids):
        x = self.w["token_embd.weight"][ids]
        at = np.arange(len(ids))
        for i in range(self.n_text):
            b = f"blk.{i}."
            h = rms(x, self.w[b + "attn_norm.weight"])
            if b + "ssm_a" in self.w:
                x = x + self.delta(h, b)
            else:
                q, gate, k, v = self.qkv(h, b, at)
                x = x + self.attend(b, q, gate, k, v, at)
            x = self.network(x, b)
        return rms(x, self.w["output_norm.weight"])

    @property
    def n_text(self):
        return self.key("block_count") - self.meta.get(f"{self.arch}.nextn_predict_layers", 0)

    def joined(self, ids, before):
        b = f"blk.{self.n_text}."
        e = rms(self.w["token_embd.weight"][ids], self.w[b + "nextn.enorm.weight"])
        return np.concatenate([e, rms(before, self.w[b + "nextn.hnorm.weight"])], 1) @ self.w[b + "nextn.eh_proj.weight"].T

    def guesses(self, ids):
        """Logits of guesses, and of guesses that go on from them."""
        b = f"blk.{self.n_text}."
        at = np.arange(len(ids))
        hidden = self.hidden(ids)
        before = np.concatenate([np.zeros((1, hidden.shape[1])), hidden[:-1]])
        x = self.joined(ids, before)
        q, gate, k, v = self.qkv(rms(x, self.w[b + "attn_norm.weight"]), b, at)
        y = self.network(x + self.attend(b, q, gate, k, v, at), b)
        first = rms(y, self.w[b + "nextn.shared_head_norm.weight"])
        x = self.joined(ids[1:], first[:-1])
        q, gate, k2, v2 = self.qkv(rms(x, self.w[b + "attn_norm.weight"]), b, at[1:])
        second = []
        for r in range(len(x)):
            keys, values = np.concatenate([k[: r + 1], k2[r: r + 1]]), np.concatenate([v[: r + 1], v2[r: r + 1]])
            second.append(x[r] + self.attend(b, q[r: r + 1], gate[r: r + 1], keys, values, [r + 1])[0])
        second = rms(self.network(np.array(second), b), self.w[b + "nextn.shared_head_norm.weight"])
        return self.head(hidden), self.head(first), self.head(second)


class Qwen35Moe(Qwen35):
    """Experts in every layer, and a network that every row goes through besides, times a gate of its own."""

    def network(self, x, b):
        h = rms(x, self.w[b + "post_attention_norm.weight"])

        def swiglu(rows, end):
            gate, up, down = (self.w[f"{b}ffn_{part}_{end[0]}.weight"][end[1]] for part in ("gate", "up", "down"))
            return (silu(rows @ gate.T) * (rows @ up.T)) @ down.T

        score = h @ self.w[b + "ffn_gate_inp.weight"].T
        score = np.exp(score - score.max(-1, keepdims=True))
        chosen = np.argsort(-score, kind="stable")[:, :self.key("expert_used_count")]
        weights = np.take_along_axis(score, chosen, 1)
        weights = weights / weights.sum(-1, keepdims=True)
        y = sigmoid(h @ self.w[b + "ffn_gate_inp_shexp.weight"])[:, None] * swiglu(h, ("shexp", slice(None)))
        for e in range(self.key("expert_count")):
            at, which = np.where(chosen == e)
            if len(at):
                y[at] += weights[at, which][:, None] * swiglu(h[at], ("exps", e))
        return x + y


class DeepSeek4(Model):
    """What v4_oracle.py computes, without simulated quantisation, in float64."""

    def __init__(self, path):
        super().__init__(path)
        self.use_rope()

    def use_rope(self):
        dims = self.key("rope.dimension_count")
        base, wide = self.key("rope.freq_base"), self.key("attention.compress_rope_freq_base")
        f = wide ** (-2.0 * np.arange(dims // 2) / dims)

        def turns(n):
            original = self.key("rope.scaling.original_context_length")
            return dims * np.log(original / (2 * np.pi * n)) / (2 * np.log(wide))

        low = max(np.floor(turns(self.key("rope.scaling.yarn_beta_fast"))), 0)
        high = min(np.ceil(turns(self.key("rope.scaling.yarn_beta_slow"))), dims - 1)
        ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
        self.freq = {False: np.float32(base ** (-2.0 * np.arange(dims // 2) / dims)),
                     True: np.float32(f * (1 - ramp) + f / self.key("rope.scaling.factor") * ramp)}
        self.streams = self.key("hyper_connection.count")

    @property
    def n_text(self):
        return self.key("block_count") - self.meta.get(f"{self.arch}.nextn_predict_layers", 0)

    def rope(self, x, at, freq, back=False):
        """The last dims of [rows][...][dims], neighbours paired."""
        angle = np.float64(np.float32(at)[:, None] * freq).reshape(len(x), *[1] * (x.ndim - 2), -1)
        cos, sin = np.cos(angle), -np.sin(angle) if back else np.sin(angle)
        n = 2 * len(freq)
        a, b = x[..., -n::2], x[..., 1 - n::2]
        turned = np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(*x.shape[:-1], n)
        return np.concatenate([x[..., :-n], turned], -1)

    def mix(self, h, name):
        x = h.reshape(len(h), -1)
        return rms(x, 1) @ self.w[f"{name}_fn.weight"].T, self.w[f"{name}_base.weight"], self.w[f"{name}_scale.weight"]

    def read(self, h, name):
        n, eps = self.streams, self.key("hyper_connection.epsilon")
        m, base, scale = self.mix(h, name)
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        comb = (m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)
        comb = np.exp(comb - comb.max(-1, keepdims=True))
        comb = comb / comb.sum(-1, keepdims=True) + eps
        comb = comb / (comb.sum(-2, keepdims=True) + eps)
        for _ in range(self.key("hyper_connection.sinkhorn_iterations") - 1):
            comb = comb / (comb.sum(-1, keepdims=True) + eps)
            comb = comb / (comb.sum(-2, keepdims=True) + eps)
        return (pre[..., None] * h).sum(1), post, comb

    @staticmethod
    def back(h, f, post, comb):
        return post[..., None] * f[:, None] + np.einsum("tjk,tjd->tkd", comb, h)

    def compress(self, x, name, rate, width, freq):
        a, g = x @ self.w[f"{name}_kv.weight"].T, x @ self.w[f"{name}_gate.weight"].T
        n = len(x) // rate
        a, g = a[:n * rate].reshape(n, rate, -1), g[:n * rate].reshape(n, rate, -1) + self.w[f"{name}_ape.weight"]
        if rate == 4:
            before = np.zeros((n, rate, width)), np.full((n, rate, width), -np.inf)
            before[0][1:], before[1][1:] = a[:-1, :, :width], g[:-1, :, :width]
            a, g = np.concatenate([before[0], a[..., width:]], 1), np.concatenate([before[1], g[..., width:]], 1)
        g = np.exp(g - g.max(1, keepdims=True))
        e = rms((a * g / g.sum(1, keepdims=True)).sum(1), self.w[f"{name}_norm.weight"])
        return self.rope(e, np.arange(n) * rate, freq)

    def choose(self, x, qr, b, rate, at, freq):
        heads, width = self.key("attention.indexer.head_count"), self.key("attention.indexer.key_length")
        keys = self.compress(x, b + "indexer_compressor", rate, width, freq)
        q = self.rope((qr @ self.w[b + "indexer.attn_q_b.weight"].T).reshape(len(x), heads, width), at, freq)
        w = x @ self.w[b + "indexer.proj.weight"].T * width**-0.5 * heads**-0.5
        scores = (np.maximum(np.einsum("thd,nd->thn", q, keys), 0) * w[..., None]).sum(1)
        seen = np.zeros(scores.shape, bool)
        for t in range(len(x)):
            n = (t + 1) // rate
            seen[t, np.argsort(-scores[t, :n], kind="stable")[:self.key("attention.indexer.top_k")]] = True
        return seen

    def row(self, x, b, at, freq):
        return self.rope(rms(x @ self.w[b + "attn_kv.weight"].T, self.w[b + "attn_kv_a_norm.weight"]), at, freq)

    def attention(self, x, b, at, rate=0, rows=None, of=None):
        """rows, of: cached vectors and their positions, where they are not those of x."""
        heads, width, freq = self.key("attention.head_count"), self.key("attention.key_length"), self.freq[rate > 0]
        qr = rms(x @ self.w[b + "attn_q_a.weight"].T, self.w[b + "attn_q_a_norm.weight"])
        q = self.rope(rms((qr @ self.w[b + "attn_q_b.weight"].T).reshape(len(x), heads, width), 1), at, freq)
        rows, of = (self.row(x, b, at, freq), at) if rows is None else (rows, of)
        seen = (of[None] <= at[:, None]) & (of[None] > at[:, None] - self.key("attention.sliding_window"))
        if rate:
            more = self.compress(x, b + "attn_compressor", rate, width, freq)
            done = np.arange(len(more))[None] < ((at + 1) // rate)[:, None]
            if rate == 4:
                done = self.choose(x, qr, b, rate, at, freq)
            rows, seen = np.concatenate([more, rows]), np.concatenate([done, seen], 1)
        s = np.einsum("thd,nd->thn", q, rows) * width**-0.5
        s = np.where(seen[:, None], s, -np.inf)
        sink = np.broadcast_to(self.w[b + "attn_sinks.weight"][None, :, None], (len(x), heads, 1))
        s = np.concatenate([s, sink], -1)
        p = np.exp(s - s.max(-1, keepdims=True))
        o = self.rope((p / p.sum(-1, keepdims=True))[..., :-1] @ rows, at, freq, back=True)
        groups = self.key("attention.output_group_count")
        a = self.w[b + "attn_output_a.weight"].reshape(groups, -1, heads * width // groups)
        o = np.einsum("tgi,goi->tgo", o.reshape(len(x), groups, -1), a).reshape(len(x), -1)
        return o @ self.w[b + "attn_output_b.weight"].T

    def swiglu(self, x, gate, up, down):
        limit = self.key("swiglu_clamp_exp")[0]
        return (silu(np.minimum(x @ gate.T, limit)) * np.clip(x @ up.T, -limit, limit)) @ down.T

    def experts(self, x, ids, b):
        n, active = self.key("expert_count"), self.key("expert_used_count")
        score = np.sqrt(np.logaddexp(0, x @ self.w[b + "ffn_gate_inp.weight"].T))
        if b + "ffn_gate_tid2eid.weight" in self.w:
            chosen = self.w[b + "ffn_gate_tid2eid.weight"][ids].astype(int)
        else:
            chosen = np.argsort(-(score + self.w[b + "exp_probs_b.bias"]), kind="stable")[:, :active]
        weights = np.take_along_axis(score, chosen, 1)
        weights = weights / weights.sum(-1, keepdims=True) * self.key("expert_weights_scale")
        y = self.swiglu(x, *(self.w[f"{b}ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")))
        for e in range(n):
            at, which = np.where(chosen == e)
            if len(at):
                parts = (self.w[f"{b}ffn_{part}_exps.weight"][e] for part in ("gate", "up", "down"))
                y[at] += weights[at, which][:, None] * self.swiglu(x[at], *parts)
        return y

    def network(self, h, ids, b):
        x, post, comb = self.read(h, b + "hc_ffn")
        return self.back(h, self.experts(rms(x, self.w[b + "ffn_norm.weight"]), ids, b), post, comb)

    def layer(self, h, ids, b, at, rate):
        x, post, comb = self.read(h, b + "hc_attn")
        h = self.back(h, self.attention(rms(x, self.w[b + "attn_norm.weight"]), b, at, rate), post, comb)
        return self.network(h, ids, b)

    def head(self, h, mixed, norm):
        m, base, scale = self.mix(h, mixed)
        p = sigmoid(m * scale + base) + self.key("hyper_connection.epsilon")
        return rms((p[..., None] * h).sum(1), self.w[norm]) @ self.w["output.weight"].T

    def joined(self, ids, before):
        b = f"blk.{self.n_text}.nextn."
        e = rms(self.w["token_embd.weight"][ids], self.w[b + "enorm.weight"]) @ self.w[b + "e_proj.weight"].T
        return e[:, None] + rms(before, self.w[b + "hnorm.weight"]) @ self.w[b + "h_proj.weight"].T

    def guesses(self, ids):
        b, at = f"blk.{self.n_text}.", np.arange(len(ids))
        own = b + "nextn.hc_head", b + "nextn.shared_head_norm.weight"
        h = np.repeat(self.w["token_embd.weight"][ids][:, None], self.streams, 1)
        for i in range(self.n_text):
            h = self.layer(h, ids, f"blk.{i}.", at, self.key("attention.compress_ratios")[i])
        text = self.head(h, "output_hc", "output_norm.weight")
        x = self.joined(ids, np.concatenate([np.zeros_like(h[:1]), h[:-1]]))
        first = self.layer(x, ids, b, at, 0)
        rows = self.row(rms(self.read(x, b + "hc_attn")[0], self.w[b + "attn_norm.weight"]), b, at, self.freq[False])
        x = self.joined(ids[1:], first[:-1])
        read, post, comb = self.read(x, b + "hc_attn")
        read = rms(read, self.w[b + "attn_norm.weight"])
        rows2, f = self.row(read, b, at[1:], self.freq[False]), []
        for r in range(len(x)):
            f.append(self.attention(read[r: r + 1], b, at[r + 1: r + 2], 0, np.concatenate([rows[: r + 1], rows2[r: r + 1]]),
                                    at[: r + 2])[0])
        second = self.network(self.back(x, np.array(f), post, comb), ids[1:], b)
        return text, self.head(first, *own), self.head(second, *own)


def rounded(value):
    return gguf.quants.dequantize(gguf.quants.quantize(np.ascontiguousarray(value, np.float32), Type.Q8_0), Type.Q8_0)


def add_layer(m, rng):
    """One more layer of attention, and what joins it to the text's, all random."""
    n, width = m.key("block_count"), m.key("embedding_length")
    like = next(name.split(".")[1] for name in m.w if name.endswith("attn_q.weight"))
    shapes = {name.split(".", 2)[2]: (m.w[name].shape, m.types[name]) for name in m.w if name.startswith(f"blk.{like}.")}
    shapes["nextn.eh_proj.weight"] = (width, 2 * width), Type.Q8_0
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        shapes[f"nextn.{norm}.weight"] = (width,), Type.F32
    for name, (shape, kind) in shapes.items():
        value = rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.normal(0, 1 / np.sqrt(shape[-1]), shape)
        m.w[f"blk.{n}.{name}"] = (rounded(value) if kind == Type.Q8_0 else value.astype(np.float32)).astype(np.float64)
        m.types[f"blk.{n}.{name}"] = kind
    m.meta[f"{m.arch}.block_count"] = n + 1
    m.meta[f"{m.arch}.nextn_predict_layers"] = 1


def add_layer4(m, rng):
    """The same of DeepSeek-V4: one that has a window alone and chooses its experts."""
    n, width = m.key("block_count"), m.key("embedding_length")
    like = {name.split(".", 2)[2]: name for name in m.w if name.startswith(f"blk.{n - 1}.")}
    like |= {name.split(".", 2)[2]: name for name in m.w if name.startswith("blk.0.")}
    like |= {f"nextn.hc_head_{part}.weight": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")}
    shapes = {name: (m.w[of].shape, m.types[of]) for name, of in like.items()
              if "compressor" not in name and "indexer" not in name and "tid2eid" not in name}
    for part in ("e_proj", "h_proj"):
        shapes[f"nextn.{part}.weight"] = (width, width), Type.Q8_0
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        shapes[f"nextn.{norm}.weight"] = (width,), Type.F32
    for name, (shape, kind) in shapes.items():
        if len(shape) == 1:
            value = rng.normal(0, 0.5, shape) if name.endswith(("base.weight", "bias", "sinks.weight")) else rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.normal(0, (3 if "gate_inp" in name else 1) / np.sqrt(shape[-1]), shape)
        value = rounded(value) if kind == Type.Q8_0 else value.astype(np.float16 if kind == Type.F16 else np.float32)
        m.w[f"blk.{n}.{name}"], m.types[f"blk.{n}.{name}"] = value.astype(np.float64), kind
    m.meta[f"{m.arch}.block_count"] = n + 1
    m.meta[f"{m.arch}.nextn_predict_layers"] = 1


def make_random4(name, base):
    make_random(name, base, DeepSeek4, add_layer4)


def make_copied_moe(name, base):
    """The model has a part of such a layer; copies of other tensors make it whole (mm_parts)."""
    m = Qwen35Moe(DATA / f"{base}.gguf")
    b = f"blk.{m.n_text}."
    for tensor in list(m.w):
        word = tensor.split(".", 2)[-1]
        if tensor.startswith("blk.3.attn_") and word != "attn_norm.weight" or tensor.startswith("blk.2.ffn_"):
            m.w[b + word] = m.w[tensor]
    for word, of in (("post_attention_norm", "blk.2.post_attention_norm"), ("nextn.hnorm", "blk.0.attn_norm"),
                     ("nextn.shared_head_norm", "blk.1.attn_norm")):
        m.w[f"{b}{word}.weight"] = m.w[f"{of}.weight"]
    compare(name, m, DATA / base)


def make_random(name, base, kind=Qwen35, add=add_layer):
    m = kind(DATA / f"{base}.gguf")
    add(m, np.random.default_rng(zlib.crc32(name.encode())))
    m.write(OUT / f"{name}.gguf")
    compare(name, m, DATA / base)


def compare(name, m, base):
    ids = np.array([int(i) for i in base.with_name(f"{base.name}.ids.txt").read_text().split(",")])
    text, first, second = m.guesses(ids)
    want = np.load(base.with_name(f"{base.name}.logits.npy"))
    off = np.abs(text[-len(want):] - want).max()
    print(f"{name}: text {off:.1e} from transformers', |logit| <= {np.abs(first).max():.1f}")
    assert off < 5e-5
    np.save(OUT / f"{name}.logits.npy", first[:-1:EVERY].astype(np.float32))
    np.save(OUT / f"{name}-2.logits.npy", second[::EVERY].astype(np.float32))


def bf16(value):
    """Its bytes."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return bits.astype("<u2").tobytes()


def read_safetensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8: 8 + n])
    head.pop("__metadata__", None)
    for name, t in head.items():
        begin, end = (8 + n + at for at in t["data_offsets"])
        yield name, t["dtype"], t["shape"], data[begin:end]


def write_more(path, tensors, at):
    """Entries of a header whose data ends at byte `at`, and what comes behind."""
    head = {}
    for name, dtype, shape, data in tensors:
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    path.with_suffix(".json").write_text(json.dumps(head, separators=(",", ":"))[1:-1] + "\n")
    path.with_suffix(".bin").write_bytes(b"".join(t[3] for t in tensors))


class Directory35(Qwen35):
    """The same out of a directory: norms hold w - 1, and value heads lie by key heads."""

    def __init__(self, config, tensors):
        self.arch, keys, values = "qwen35", config["linear_num_key_heads"], config["linear_num_value_heads"]
        self.meta = {f"qwen35.{name}": value for name, value in {
            "block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1,
            "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "attention.head_count": config["num_attention_heads"], "attention.head_count_kv": config["num_key_value_heads"],
            "attention.key_length": config["head_dim"], "embedding_length": config["hidden_size"],
            "rope.dimension_count": config["head_dim"] // 4, "rope.freq_base": config["rope_parameters"]["rope_theta"],
            "ssm.group_count": keys, "ssm.time_step_rank": values, "ssm.state_size": config["linear_key_head_dim"],
            "ssm.inner_size": values * config["linear_value_head_dim"]}.items()}
        self.use_eps()
        own = {"mtp.fc.weight": "nextn.eh_proj.weight", "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
               "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight", "mtp.norm.weight": "nextn.shared_head_norm.weight"}
        words = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                 "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
                 "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
                 "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
                 "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
                 "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
                 "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"}
        vectors, n = {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias"}, config["num_hidden_layers"]
        self.w = {}
        for name, value in tensors.items():
            value = value.astype(np.float64)
            if name in own:
                self.w[f"blk.{n}.{own[name]}"] = value + (value.ndim == 1)
                continue
            name = name.replace("mtp.layers.0.", f"model.layers.{n}.")
            if not name.startswith("model.layers."):
                self.w[{"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]] = \
                    value + (value.ndim == 1)
                continue
            _, _, layer, rest = name.split(".", 3)
            part = rest.split(".")[-1]
            to = vectors[part] if part in vectors else words[rest.removesuffix(".weight")] + ".weight"
            value = value.reshape(len(value), -1) if "conv1d" in to else value
            if to == "ssm_a":
                value = -np.exp(value)
            elif value.ndim == 1 and to != "ssm_norm.weight" and to != "ssm_dt.bias":
                value = value + 1
            if to.startswith(("ssm_a", "ssm_dt", "ssm_beta", "ssm_alpha", "attn_gate")):
                value = value.reshape(keys, values // keys, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
            elif to == "ssm_out.weight":
                value = value.reshape(len(value), keys, values // keys, -1).swapaxes(1, 2).reshape(value.shape)
            elif to.startswith(("attn_qkv", "ssm_conv1d")):
                behind = value[2 * keys * config["linear_key_head_dim"]:]
                moved = behind.reshape(keys, values // keys, -1, behind.shape[1]).swapaxes(0, 1).reshape(behind.shape)
                value = np.concatenate([value[: len(value) - len(behind)], moved])
            self.w[f"blk.{layer}.{to}"] = value


def make_directory(name, base):
    """As published: bf16, names of the makers."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    config = json.loads((HF / base / "config.json").read_text())
    stored = list(read_safetensors(HF / base / "model.safetensors"))
    like = next(n for n, kind in enumerate(config["layer_types"]) if kind == "full_attention")
    width, shapes, more = config["hidden_size"], {}, []
    for tensor, _, shape, _ in stored:
        if tensor.startswith(f"model.layers.{like}."):
            shapes[tensor.replace(f"model.layers.{like}.", "mtp.layers.0.")] = shape
    shapes["mtp.fc.weight"] = width, 2 * width
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        shapes[f"mtp.{norm}.weight"] = (width,)
    for tensor, shape in shapes.items():
        value = rng.uniform(-0.5, 0.5, shape) if len(shape) == 1 else rng.normal(0, 1 / np.sqrt(shape[-1]), shape)
        more.append((tensor, "BF16", shape, bf16(value)))
    write_more(OUT / name, more, sum(len(t[3]) for t in stored))
    assert all(dtype == "BF16" for _, dtype, _, _ in stored)
    tensors = {tensor: (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
               for tensor, _, shape, data in stored + more}
    compare(name, Directory35(config, tensors), HF / base)


class Directory4(DeepSeek4):
    """The same out of a directory that transformers wrote."""

    def __init__(self, config, tensors):
        self.arch, stretch = "deepseek4", config["rope_parameters"]["compress"]
        rates = {"sliding_attention": 0} | {kind: config["compress_rates"][kind] for kind in config["compress_rates"]}
        self.meta = {f"deepseek4.{name}": value for name, value in {
            "block_count": config["num_hidden_layers"], "embedding_length": config["hidden_size"],
            "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "attention.head_count": config["num_attention_heads"], "attention.key_length": config["head_dim"],
            "attention.compress_ratios": [rates[kind] for kind in config["layer_types"]],
            "attention.output_group_count": config["o_groups"], "attention.sliding_window": config["sliding_window"],
            "attention.indexer.head_count": config["index_n_heads"], "attention.indexer.key_length": config["index_head_dim"],
            "attention.indexer.top_k": config["index_topk"], "expert_count": config["n_routed_experts"],
            "expert_used_count": config["num_experts_per_tok"], "expert_weights_scale": config["routed_scaling_factor"],
            "hyper_connection.count": config["hc_mult"], "hyper_connection.epsilon": config["hc_eps"],
            "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
            "swiglu_clamp_exp": [config["swiglu_limit"]], "rope.dimension_count": config["qk_rope_head_dim"],
            "rope.freq_base": config["rope_theta"], "attention.compress_rope_freq_base": config["compress_rope_theta"],
            "rope.scaling.factor": stretch["factor"], "rope.scaling.yarn_beta_fast": stretch["beta_fast"],
            "rope.scaling.original_context_length": stretch["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_slow": stretch["beta_slow"]}.items()}
        self.use_eps()
        self.use_rope()
        self.w = {}
        for name, value in tensors.items():
            self.w[self.gguf_name(name)] = value.astype(np.float64)
        for b in range(config["num_hidden_layers"]):
            for part in ("gate", "up", "down"):
                names = [f"blk.{b}.ffn_{part}.{e}.weight" for e in range(config["n_routed_experts"])]
                self.w[f"blk.{b}.ffn_{part}_exps.weight"] = np.stack([self.w.pop(name) for name in names])

    WORDS = {"attn.wq_a": "attn_q_a", "attn.q_norm": "attn_q_a_norm", "attn.wq_b": "attn_q_b", "attn.wkv": "attn_kv",
             "attn.kv_norm": "attn_kv_a_norm", "attn.wo_a": "attn_output_a", "attn.wo_b": "attn_output_b",
             "attn.attn_sink": "attn_sinks", "attn.indexer.wq_b": "indexer.attn_q_b",
             "attn.indexer.weights_proj": "indexer.proj", "ffn.gate": "ffn_gate_inp", "ffn.gate.bias": "exp_probs_b",
             "ffn.gate.tid2eid": "ffn_gate_tid2eid"}
    WORDS |= {f"attn.{part}compressor.{a}": f"{to}compressor_{b}" for part, to in (("", "attn_"), ("indexer.", "indexer_"))
              for a, b in (("wkv", "kv"), ("wgate", "gate"), ("ape", "ape"), ("norm", "norm"))}
    PARTS = {"w1": "gate", "w3": "up", "w2": "down"}
    WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "head.weight": "output.weight"} | {f"model.hc_head.hc_{a}": f"output_hc_{a}.weight" for a in ("fn", "base", "scale")}

    def gguf_name(self, name):
        if name in self.WHOLE:
            return self.WHOLE[name]
        _, _, layer, rest = name.split(".", 3)
        rest = rest.removesuffix(".weight").replace("attn.norm", "attn.kv_norm")
        if ".experts." in rest or "shared_experts" in rest:
            *_, expert, part = rest.split(".")
            part = self.PARTS[part]
            return f"blk.{layer}.ffn_{part}_shexp.weight" if "shared" in rest else f"blk.{layer}.ffn_{part}.{expert}.weight"
        return f"blk.{layer}.{self.WORDS.get(rest, rest)}.{'bias' if rest.endswith('bias') else 'weight'}"


def make_directory4(name, base):
    """A layer of the attention of layer 0, the experts of layer 1, and other tensors that are there (mm_copies)."""
    config = json.loads((HF / base / "config.json").read_text())
    stored = list(read_safetensors(HF / base / "model.safetensors"))
    m = Directory4(config, {tensor: np.frombuffer(data, "<i8").reshape(shape) if dtype == "I64" else
                            (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
                            for tensor, dtype, shape, data in stored})
    b = f"blk.{m.n_text}."
    for tensor in list(m.w):
        for layer, parts in (("blk.0.", ("attn_", "hc_attn_")), ("blk.1.", ("ffn_", "hc_ffn_", "exp_probs"))):
            word = tensor.removeprefix(layer)
            if word != tensor and word.startswith(parts) and "compressor" not in word:
                m.w[b + word] = m.w[tensor]
    for word, of in (("e_proj", "blk.0.attn_q_a"), ("h_proj", "blk.1.attn_q_a"), ("enorm", "blk.0.ffn_norm"),
                     ("hnorm", "blk.1.attn_norm"), ("shared_head_norm", "blk.1.attn_q_a_norm")):
        m.w[f"{b}nextn.{word}.weight"] = m.w[f"{of}.weight"]
    for part, n in (("fn", m.streams), ("base", m.streams), ("scale", 1)):
        m.w[f"{b}nextn.hc_head_{part}.weight"] = m.w[f"blk.0.hc_attn_{part}.weight"][:n]
    m.meta["deepseek4.block_count"] += 1
    m.meta["deepseek4.nextn_predict_layers"] = 1
    compare(name, m, HF / base)


MODELS = {"qwen35": (make_random, "qwen35"), "deepseek4": (make_random4, "deepseek4"),
          "qwen3_5": (make_directory, "qwen3_5"), "qwen35moe": (make_copied_moe, "qwen35moe"),
          "deepseek_v4": (make_directory4, "deepseek_v4")}

if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for chosen in sys.argv[1:] or MODELS:
        make, base = MODELS[chosen]
        make(chosen, base)
