/* The CPU device: the reference that others are compared with. */
#include "base/mem.h"
#include "dev/cpu/cpu.h"
#include "kernel/pack.h"

struct tern_cpu_shape tern_cpu_shape_of(const struct tern_cpu *d, const struct tern_dev_cache *cache,
                                        const struct tern_attn_shape *s)
{
    return (struct tern_cpu_shape){&cache->layers[s->layer], s->n_heads, s->scale, s->softcap, d->bf16, d->int16};
}

static int op_open(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, tern_error *err)
{
    struct tern_cpu *d;
    int rc = tern_alloc(&d, 1, sizeof *d, err);
    *out = NULL;
    if (rc < 0)
        return rc;
    d->dev.ops = self;
    d->pool = pool;
    *out = &d->dev;
    return 0;
}

static int open_attention(struct tern_cpu *d, const struct tern_dev_limits *l, tern_error *err)
{
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < l->caches[c].n_layers; i++) {
            if (!l->shapes[i].n_heads)
                continue;
            const struct tern_cpu_shape s = tern_cpu_shape_of(d, &l->caches[c], &l->shapes[i]);
            size_t n =
                tern_cpu_attention_scratch(&s, tern_pool_threads(d->pool), l->max_rows, l->max_narrow, l->max_pages);
            d->attention.bytes = n > d->attention.bytes ? n : d->attention.bytes;
        }
    d->bytes += d->attention.bytes;
    return tern_alloc(&d->attention.p, d->attention.bytes, 1, err);
}

static int op_prepare(struct tern_dev *dev, const struct tern_dev_limits *limits, tern_error *err)
{
    int rc = 0;
    struct tern_cpu *d = tern_cpu_of(dev);
    size_t threads = (size_t)tern_pool_threads(d->pool), rows = (size_t)limits->max_rows;
    size_t k = tern_round_up((size_t)limits->max_k, 64);
    d->limits = *limits;
    d->limits.caches = NULL;
    d->limits.shapes = NULL;
    d->prompt = limits->exact           ? NULL
                : limits->prompt8       ? &tern_k.prompt8
                : tern_k.prompt.product ? &tern_k.prompt
                                        : NULL;
    d->bf16 = tern_k.bf16.multiply && !limits->exact;
    d->int16 = tern_k.attn16.score && !d->bf16 && !limits->exact;
    d->columns = limits->decode16 ? 2 : 1;
    TERN_TRY(tern_cpu_q8_new(d, &d->q8, rows, k, err));
    TERN_TRY(tern_alloc(&d->gemm_scratch, threads, TERN_GEMM_SCRATCH * sizeof(float), err));
    if (d->prompt) {
        size_t bands = (rows + TERN_BAND - 1) / TERN_BAND, band_bytes = d->prompt->band((int)k) * sizeof *d->packed_x;
        TERN_TRY(tern_alloc(&d->packed_x, bands, band_bytes, err));
        TERN_TRY(tern_alloc(&d->prompt_scratch, threads, TERN_PROMPT_SCRATCH, err));
        d->bytes += bands * band_bytes + threads * TERN_PROMPT_SCRATCH;
        if (d->prompt->gated) {
            TERN_TRY(tern_alloc(&d->gated, bands, band_bytes, err));
            d->bytes += bands * band_bytes;
        }
    }
    TERN_TRY(tern_alloc(&d->encode_scratch, threads, TERN_KV_SCRATCH, err));
    TERN_TRY(open_attention(d, limits, err));
    if (limits->n_caches)
        TERN_TRY(tern_cpu_step_open(d, limits, err));
    if (limits->max_stack)
        TERN_TRY(tern_cpu_q8_new(d, &d->stack, (size_t)limits->max_narrow * (size_t)limits->max_stack,
                                 tern_round_up((size_t)limits->max_stack_k, 64), err));
    if (limits->max_sparse_heads)
        TERN_TRY(tern_cpu_spans_open(d, limits->max_pages, err));
    if (limits->max_experts)
        TERN_TRY(tern_cpu_experts_open(d, err));
    d->bytes += threads * (TERN_GEMM_SCRATCH * 4 + TERN_KV_SCRATCH);
out:
    return rc;
}

static void op_close(struct tern_dev *dev)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    tern_cpu_q8_free(&d->q8);
    tern_cpu_q8_free(&d->stack);
    tern_cpu_experts_close(d);
    tern_cpu_step_close(d);
    tern_free(d->gemm_scratch);
    tern_free(d->packed_x);
    tern_free(d->gated);
    tern_free(d->prompt_scratch);
    tern_free(d->encode_scratch);
    tern_free(d->attention.p);
    tern_free(d->compressed);
    tern_free(d->sparse);
    tern_free(d->chosen);
    tern_free(d);
}

static size_t op_scratch_bytes(const struct tern_dev *dev)
{
    return ((const struct tern_cpu *)dev)->bytes;
}

/* Operations are done when they return. */
static void op_sync(struct tern_dev *dev)
{
    (void)dev;
}

const struct tern_dev_ops tern_dev_cpu = {
    .name = "cpu",
    .decodes = true,
    .firsts = true,
    .decode16 = true,
    .prompt8 = true,
    .in_place = true,
    .kv = "t4",
    .open = op_open,
    .close = op_close,
    .prepare = op_prepare,
    .scratch_bytes = op_scratch_bytes,
    .sync = op_sync,
    .reserve = tern_cpu_reserve,
    .release = tern_cpu_release,
    .adopt = tern_cpu_adopt,
    .copy_in = tern_cpu_copy_in,
    .copy_out = tern_cpu_copy_out,
    .copy = tern_cpu_copy,
    .zero = tern_cpu_zero,
    .discard = tern_cpu_discard,
    .weight_plan = tern_cpu_weight_plan,
    .weight_bytes = tern_cpu_weight_bytes,
    .weight_about = tern_cpu_weight_about,
    .weight_place = tern_cpu_weight_place,
    .weight_load = tern_cpu_weight_load,
    .weight_drop = tern_cpu_weight_drop,
    .weight_out = tern_cpu_weight_out,
    .begin = tern_cpu_begin,
    .end = tern_cpu_end,
    .embed = tern_cpu_embed,
    .norm = tern_cpu_norm,
    .add = tern_cpu_add,
    .scale = tern_cpu_scale,
    .matmul = tern_cpu_matmul,
    .rope_table = tern_cpu_rope_table,
    .heads = tern_cpu_heads,
    .copy_heads = tern_cpu_copy_heads,
    .append = tern_cpu_append,
    .attention = tern_cpu_attention,
    .recode = tern_cpu_recode,
    .glu = tern_cpu_glu,
    .network = tern_cpu_network,
    .softcap = tern_cpu_softcap,
    .gate = tern_cpu_gate,
    .stack = tern_cpu_stack,
    .route = tern_cpu_route,
    .experts = tern_cpu_experts,
    .experts_up = tern_cpu_experts_up,
    .experts_down = tern_cpu_experts_down,
    .delta = tern_cpu_delta,
    .clamp = tern_cpu_clamp,
    .grid = tern_cpu_grid,
    .compress = tern_cpu_compress,
    .choose = tern_cpu_choose,
    .sparse = tern_cpu_sparse,
    .hyper_read = tern_cpu_hyper_read,
    .hyper_write = tern_cpu_hyper_write,
    .pick = tern_cpu_pick,
    .best = tern_cpu_best,
};
