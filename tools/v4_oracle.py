"""DeepSeek-V4 in float64, from its equations: what transformers does not compute (the simulated quantisation of cached
rows, the rotated FP4 grid of the indexer), and a second opinion on what it does.  Used by make_v4_models.py.

Weights are a dictionary by the names of the published files ("layers.0.attn.wq_a.weight"), as float64 tensors.  The
whole prompt is computed at once; nothing is cached."""
import math

import torch

EPS = 1e-6


class Margin:
    """How close the oracle came to deciding otherwise: a rounding or a choice that float32 may take the other way."""

    def __init__(self):
        self.rounding = self.choice = math.inf

    def near(self, x, step, bits):
        """Distance of x from the middle between two codes, in parts of the largest x of this step."""
        self.rounding = min(self.rounding, float(((x / step) % 1 - 0.5).abs().min()) / 2**(bits + 1))

    def gap(self, scores, n):
        """Between the last that is chosen and the first that is not."""
        if scores.shape[-1] > n:
            top = scores.topk(n + 1, dim=-1).values
            self.choice = min(self.choice, float((top[..., n - 1] - top[..., n]).min()))


def rms(x, eps=EPS):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def up_to_power(x):
    """The smallest power of two that is not below x."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).to(exponent.dtype))


def to_grid(x, bits, bias, top, margin):
    """Nearest, to even, of the floats with this many bits of mantissa, this bias and this largest value."""
    x = x.clamp(-top, top)
    exponent = torch.frexp(x.abs().clamp(min=1e-300))[1] - 1
    step = torch.ldexp(torch.ones_like(x), exponent.clamp(min=1 - bias) - bits)
    margin.near(x.abs(), step, bits)
    return torch.round(x / step) * step


def fp8_sim(x, group, margin):
    v = x.unflatten(-1, (-1, group))
    s = up_to_power(v.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)
    return (to_grid(v / s, 3, 7, 448, margin) * s).flatten(-2)


def fp4_sim(x, group, margin):
    v = x.unflatten(-1, (-1, group))
    s = up_to_power(v.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) / 6)
    return (to_grid(v / s, 1, 1, 6, margin) * s).flatten(-2)


def hadamard(x):
    n = x.shape[-1]
    h = torch.ones(1, 1, dtype=x.dtype)
    while len(h) < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return x @ h / math.sqrt(n)


def frequencies(theta, dims, yarn):
    f = theta ** (-2.0 * torch.arange(dims // 2, dtype=torch.float64) / dims)
    if yarn:
        at = lambda turns: dims * math.log(yarn["original"] / (2 * math.pi * turns)) / (2 * math.log(theta))  # noqa: E731
        low, high = max(math.floor(at(yarn["fast"])), 0), min(math.ceil(at(yarn["slow"])), dims - 1)
        ramp = ((torch.arange(dims // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
        f = f * (1 - ramp) + f / yarn["factor"] * ramp
    return f.float()


def rope(x, at, freq, back=False):
    """The last dims of x [..., dims] at positions `at`, which has the shape of x's first dims; neighbours are pairs."""
    angle = (at.float()[..., None] * freq).double()  # the product is rounded, as all implementations do
    cos, sin = angle.cos(), -angle.sin() if back else angle.sin()
    n = 2 * len(freq)
    tail = x[..., -n:].unflatten(-1, (-1, 2))
    a, b = tail[..., 0], tail[..., 1]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-n], turned], -1)


class Oracle:
    """c: sizes by the names of the published config.json; yarn: factor, original, fast, slow, or None."""

    def __init__(self, config, weights, yarn, simulate):
        self.c, self.w, self.simulate, self.margin = config, weights, simulate, Margin()
        dims = config["qk_rope_head_dim"]
        self.freq = {False: frequencies(config["rope_theta"], dims, None),
                     True: frequencies(config["compress_rope_theta"], dims, yarn)}

    def grid8(self, row):
        n = self.c["head_dim"] - self.c["qk_rope_head_dim"]
        return torch.cat([fp8_sim(row[..., :n], 64, self.margin), row[..., n:]], -1) if self.simulate else row

    def grid4(self, row):
        return fp4_sim(hadamard(row), 32, self.margin) if self.simulate else row

    # ---- hyper-connections

    def mix(self, h, fn, base, scale):
        x = h.flatten(-2)
        return rms(x, EPS) @ self.w[fn].T, self.w[base], self.w[scale]

    def hc(self, h, name):
        n = self.c["hc_mult"]
        m, base, scale = self.mix(h, f"{name}_fn", f"{name}_base", f"{name}_scale")
        pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + self.c["hc_eps"]
        post = 2 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        comb = (m[:, 2 * n:] * scale[2] + base[2 * n:]).unflatten(-1, (n, n))
        comb = comb.softmax(-1) + self.c["hc_eps"]
        comb = comb / (comb.sum(-2, keepdim=True) + self.c["hc_eps"])
        for _ in range(self.c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + self.c["hc_eps"])
            comb = comb / (comb.sum(-2, keepdim=True) + self.c["hc_eps"])
        return (pre[..., None] * h).sum(-2), post, comb

    @staticmethod
    def back(h, f, post, comb):
        return post[..., None] * f[:, None, :] + torch.einsum("tjk,tjd->tkd", comb, h)

    # ---- attention

    def compress(self, x, name, rate, width, overlap, freq):
        """Rows of complete windows, before their grid."""
        a, g = x @ self.w[f"{name}.wkv.weight"].T, x @ self.w[f"{name}.wgate.weight"].T
        n = len(x) // rate
        a, g = (v[:n * rate].unflatten(0, (n, rate)) for v in (a, g))
        g = g + self.w[f"{name}.ape"]
        if overlap:
            before_a, before_g = torch.zeros_like(a[:, :, :width]), torch.full_like(g[:, :, :width], -math.inf)
            before_a[1:], before_g[1:] = a[:-1, :, :width], g[:-1, :, :width]
            a, g = torch.cat([before_a, a[:, :, width:]], 1), torch.cat([before_g, g[:, :, width:]], 1)
        e = rms((a * g.softmax(1)).sum(1)) * self.w[f"{name}.norm.weight"]
        return rope(e, torch.arange(n) * rate, freq)

    def choose(self, x, qr, name, rate, at, freq):
        """[T, n] which rows each token sees."""
        heads, width = self.c["index_n_heads"], self.c["index_head_dim"]
        keys = self.grid4(self.compress(x, f"{name}.compressor", rate, width, True, freq))
        q = (qr @ self.w[f"{name}.wq_b.weight"].T).unflatten(-1, (heads, width))
        q = self.grid4(rope(q, at[:, None].expand(-1, heads), freq))
        w = x @ self.w[f"{name}.weights_proj.weight"].T * width**-0.5 * heads**-0.5
        scores = (torch.relu(torch.einsum("thd,nd->thn", q, keys)) * w[..., None]).sum(1)
        seen = torch.zeros(scores.shape, dtype=torch.bool)
        for t in range(len(x)):
            n, top = (t + 1) // rate, self.c["index_topk"]
            self.margin.gap(scores[t, :n], top)
            order = torch.sort(scores[t, :n], descending=True, stable=True).indices  # equal ones: the lower first
            seen[t, order[:top]] = True
        return seen

    def attention(self, x, layer):
        c, name = self.c, f"layers.{layer}.attn"
        rate, heads, width = c["compress_ratios"][layer], c["num_attention_heads"], c["head_dim"]
        freq, at, w = self.freq[rate > 0], torch.arange(len(x)), self.w
        qr = rms(x @ w[f"{name}.wq_a.weight"].T) * w[f"{name}.q_norm.weight"]
        q = rms((qr @ w[f"{name}.wq_b.weight"].T).unflatten(-1, (heads, width)))
        q = rope(q, at[:, None].expand(-1, heads), freq)
        rows = self.grid8(rope(rms(x @ w[f"{name}.wkv.weight"].T) * w[f"{name}.kv_norm.weight"], at, freq))
        seen = (at[None] <= at[:, None]) & (at[None] > at[:, None] - c["sliding_window"])
        if rate:
            more = self.grid8(self.compress(x, f"{name}.compressor", rate, width, rate == 4, freq))
            done = torch.arange(len(more))[None] < ((at + 1) // rate)[:, None]
            if rate == 4:
                done = self.choose(x, qr, f"{name}.indexer", rate, at, freq)
            rows, seen = torch.cat([more, rows]), torch.cat([done, seen], 1)
        s = torch.einsum("thd,nd->thn", q, rows) * width**-0.5
        s = s.masked_fill(~seen[:, None], -math.inf)
        sink = w[f"{name}.attn_sink"][None, :, None].expand(len(x), -1, 1)
        p = torch.cat([s, sink], -1).softmax(-1)[..., :-1]
        o = rope(p @ rows, at[:, None].expand(-1, heads), freq, back=True)
        groups = o.flatten(1).unflatten(-1, (c["o_groups"], -1))
        a = w[f"{name}.wo_a.weight"].unflatten(0, (c["o_groups"], -1))
        return torch.einsum("tgi,goi->tgo", groups, a).flatten(1) @ w[f"{name}.wo_b.weight"].T

    # ---- experts

    def network(self, x, name, weight=None):
        limit = self.c["swiglu_limit"]
        gate = (x @ self.w[f"{name}.w1.weight"].T).clamp(max=limit)
        up = (x @ self.w[f"{name}.w3.weight"].T).clamp(-limit, limit)
        y = torch.nn.functional.silu(gate) * up
        return (y if weight is None else y * weight[:, None]) @ self.w[f"{name}.w2.weight"].T

    def experts(self, x, ids, layer):
        c, name = self.c, f"layers.{layer}.ffn"
        logits = x @ self.w[f"{name}.gate.weight"].T
        s = torch.sqrt(torch.where(logits > 20, logits, torch.log1p(torch.exp(logits))))
        if layer < c["num_hash_layers"]:
            chosen = self.w[f"{name}.gate.tid2eid"][ids].long()
        else:
            biased = s + self.w[f"{name}.gate.bias"]
            self.margin.gap(biased, c["num_experts_per_tok"])
            chosen = biased.topk(c["num_experts_per_tok"], -1).indices
        weights = s.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        y = self.network(x, f"{name}.shared_experts")
        for e in range(c["n_routed_experts"]):
            at, which = torch.where(chosen == e)
            if len(at):
                y.index_add_(0, at, self.network(x[at], f"{name}.experts.{e}", weights[at, which]))
        return y

    @torch.no_grad()
    def logits(self, ids):
        ids, w, c = torch.tensor(ids), self.w, self.c
        h = w["embed.weight"][ids][:, None].expand(-1, c["hc_mult"], -1)
        for n in range(c["num_hidden_layers"]):
            for half, norm in (("attn", "attn_norm"), ("ffn", "ffn_norm")):
                x, post, comb = self.hc(h, f"layers.{n}.hc_{half}")
                x = rms(x) * w[f"layers.{n}.{norm}.weight"]
                f = self.attention(x, n) if half == "attn" else self.experts(x, ids, n)
                h = self.back(h, f, post, comb)
        m, base, scale = self.mix(h, "hc_head_fn", "hc_head_base", "hc_head_scale")
        p = torch.sigmoid(m * scale + base) + c["hc_eps"]
        return (rms((p[..., None] * h).sum(-2)) * w["norm.weight"]) @ w["head.weight"].T
