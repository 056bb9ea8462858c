/* DeepSeek-V4: several residual streams, attention to a window and to compressed rows, experts everywhere, of which the
 * first layers' are listed by token. */
#include "model/arch/arch.h"

#define ARCH       "deepseek4"
#define MAX_RANK   (1 << 17)
#define MAX_GROUPS 1024
#define MAX_TOP    (1 << 20)

struct sizes {
    int64_t q_rank, o_rank, groups, index_heads, index_dim, top, listed, streams, iterations;
    double eps, base;
    bool grid;
};

static const char *key_of(char key[160], const char *name)
{
    return tern_arch_key(key, 160, ARCH, name);
}

static int read_sizes(struct sizes *v, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    char key[160];
#define KEY(name) key_of(key, name)
    TERN_TRY(tern_file_need_int(f, KEY("attention.q_lora_rank"), 1, MAX_RANK, &v->q_rank, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.output_lora_rank"), 1, MAX_RANK, &v->o_rank, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.output_group_count"), 1, MAX_GROUPS, &v->groups, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.indexer.head_count"), 1, MAX_GROUPS, &v->index_heads, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.indexer.key_length"), 1, TERN_KVQ_MAX_DIM, &v->index_dim, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.indexer.top_k"), 1, MAX_TOP, &v->top, err));
    TERN_TRY(tern_file_need_int(f, KEY("hash_layer_count"), 0, INT32_MAX, &v->listed, err));
    TERN_TRY(tern_file_need_int(f, KEY("hyper_connection.count"), 1, TERN_MAX_STREAMS, &v->streams, err));
    /* Without its number of iterations a file would be read with somebody's default. */
    TERN_TRY(tern_file_need_int(f, KEY("hyper_connection.sinkhorn_iterations"), 1, 1000, &v->iterations, err));
    TERN_TRY(tern_file_get_float(f, KEY("hyper_connection.epsilon"), 1e-6, &v->eps, err));
    TERN_TRY(tern_file_get_float(f, KEY("attention.compress_rope_freq_base"), 0, &v->base, err));
    if (!(v->base > 1))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s is missing or not above 1", tern_file_path(f), key);
    v->grid = true; /* what was trained so is computed so, unless the file says otherwise */
    TERN_TRY(tern_file_get_bool(f, KEY("attention.simulated_quantization"), v->grid, &v->grid, err));
    if (!(v->eps > 0))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s is not above 0", tern_file_path(f),
                  key_of(key, "hyper_connection.epsilon"));
#undef KEY
out:
    return rc;
}

/* Tokens of a compressed row in each of n layers; MTP layers behind them have none. */
static int read_rates(struct tern_desc *d, int n, const struct tern_file *f, tern_error *err)
{
    char key[160];
    int other = 0;
    const struct tern_meta *m = tern_file_meta(f, key_of(key, "attention.compress_ratios"));
    if (!m || m->type != TERN_META_ARRAY || m->elem != TERN_META_INT || m->n < (size_t)n)
        return tern_err_set(err, TERN_EFORMAT, "%s: %s is not an array of at least %d numbers", tern_file_path(f), key,
                            n);
    for (int i = 0; i < n; i++) {
        const int64_t rate = ((const int64_t *)m->arr)[i];
        if (rate != 0 && (rate < 2 || rate > 128))
            return tern_err_set(err, TERN_EFORMAT, "%s: %s: %lld of layer %d is neither 0 nor in 2..128",
                                tern_file_path(f), key, (long long)rate, i);
        if (rate != 0 && rate != 4 && other && rate != other)
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "%s: %s: layers of %d and of %lld tokens to a row besides those of 4 are not "
                                "supported",
                                tern_file_path(f), key, other, (long long)rate);
        other = rate != 0 && rate != 4 ? (int)rate : other;
        d->layers[i].sparse.rate = (int)rate;
        d->layers[i].sparse.overlap = rate == 4;
    }
    return 0;
}

/* A clamp of every one of n layers, or one for all. */
static int read_clamp(const struct tern_file *f, const char *name, int layer, int n, double def, float *out,
                      tern_error *err)
{
    char key[160];
    double v = def;
    const struct tern_meta *m = tern_file_meta(f, key_of(key, name));
    if (m && m->type == TERN_META_ARRAY && m->elem == TERN_META_FLOAT && m->n >= (size_t)n) {
        v = ((const double *)m->arr)[(size_t)layer < m->n ? (size_t)layer : m->n - 1];
    } else {
        int rc = tern_file_get_float(f, key, def, &v, err);
        if (rc < 0)
            return rc;
    }
    if (!(v > 0) || !(v < 1e30))
        return tern_err_set(err, TERN_EFORMAT, "%s: %s of layer %d is missing or no positive number", tern_file_path(f),
                            key, layer);
    *out = (float)v;
    return 0;
}

static int configure_layer(struct tern_desc *d, int i, int n, const struct sizes *v, const struct tern_file *f,
                           tern_error *err)
{
    int rc = 0;
    char key[160];
    struct tern_layer_desc *l = &d->layers[i];
    struct tern_experts_desc *e = &l->experts;
    l->mixer = TERN_MIX_SPARSE;
    l->at.rope = l->sparse.rate > 0;
    l->at.dim_k = 0;
    l->sparse.q_rank = (int)v->q_rank;
    l->sparse.groups = (int)v->groups;
    l->sparse.o_rank = (int)v->o_rank;
    l->sparse.index_heads = (int)v->index_heads;
    l->sparse.index_dim = (int)v->index_dim;
    l->sparse.index_top = (int)v->top;
    l->sparse.grid = v->grid;
    if (!tern_file_meta(f, key_of(key, "expert_gating_func"))) /* there is one router: some files do not name it */
        e->router = TERN_ROUTE_SQRT_SOFTPLUS;
    if (l->ffn != TERN_FFN_EXPERTS || e->router != TERN_ROUTE_SQRT_SOFTPLUS)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "%s: layer %d has no experts that the root of a softplus chooses (" ARCH
                            ".expert_count, .expert_gating_func 4), which " ARCH " has everywhere",
                            tern_file_path(f), i);
    e->listed = i < v->listed;
    TERN_TRY(read_clamp(f, "swiglu_clamp_exp", i, n, 0, &e->clamp, err));
    TERN_TRY(read_clamp(f, "swiglu_clamp_shexp", i, n, (double)e->clamp, &e->clamp_shared, err));
out:
    return rc;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    struct sizes v;
    char key[160];
    int64_t n_mtp;
    int n; /* layers before those for multi-token prediction */
    TERN_TRY(tern_configure_common(d, f, ARCH, err));
    TERN_TRY(tern_configure_experts(d, f, ARCH, true, err));
    TERN_TRY(read_sizes(&v, f, err));
    if (d->layers[0].at.n_kv_heads != 1 || d->layers[0].at.dim_k != d->layers[0].at.dim_v)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: " ARCH " has one vector to a token, not %d heads of %d and %d dims",
                  tern_file_path(f), d->layers[0].at.n_kv_heads, d->layers[0].at.dim_k, d->layers[0].at.dim_v);
    if (d->layers[0].at.mask != TERN_MASK_WINDOW)
        TERN_FAIL(err, TERN_EFORMAT, "%s: metadata key %s is missing", tern_file_path(f),
                  key_of(key, "attention.sliding_window"));
    if (d->ropes[0].n_rot > v.index_dim || d->ropes[0].n_rot > d->layers[0].at.dim_v)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s = %d is more than the index has dims (%lld)", tern_file_path(f),
                  key_of(key, "rope.dimension_count"), d->ropes[0].n_rot, (long long)v.index_dim);
    TERN_TRY(tern_file_get_int(f, key_of(key, "nextn_predict_layers"), 0, 0, d->n_layers - 1, &n_mtp, err));
    n = d->n_layers - (int)n_mtp;
    TERN_TRY(read_rates(d, n, f, err));
    /* Layers with a window alone are not stretched; where there are rows of more, another base is, and nothing grows.
     */
    d->n_ropes = 2;
    d->ropes[0].interleaved = true;
    d->ropes[0].magnitude = 1;
    d->ropes[1] = d->ropes[0];
    d->ropes[1].theta = (float)v.base;
    d->ropes[0].scaling = TERN_ROPE_PLAIN;
    d->ropes[0].factor = 1;
    d->residual = TERN_RESIDUAL_HYPER;
    d->hyper.n = (int)v.streams;
    d->hyper.iterations = (int)v.iterations;
    d->hyper.eps = (float)v.eps;
    for (int i = 0; i < d->n_layers; i++)
        TERN_TRY(configure_layer(d, i, n, &v, f, err));
    TERN_TRY(tern_configure_mtp(d, f, ARCH, "nextn.h_proj", err));
out:
    return rc;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

#define DIM(name, value)                                                                  \
    static int64_t dim_##name(const struct tern_desc *d, const struct tern_layer_desc *l) \
    {                                                                                     \
        (void)d, (void)l;                                                                 \
        return value;                                                                     \
    }
DIM(streams, d->hyper.n)
DIM(stream, (int64_t)d->hyper.n * d->n_embd)
DIM(mix, (int64_t)d->hyper.n *(d->hyper.n + 2))
DIM(three, 3)
DIM(q_rank, l->sparse.q_rank)
DIM(heads, l->at.n_heads)
DIM(queries, (int64_t)l->at.n_heads * l->at.dim_v)
DIM(row, l->at.dim_v)
DIM(rate, l->sparse.rate)
DIM(channels, (int64_t)l->at.dim_v *(l->sparse.overlap ? 2 : 1))
DIM(index_heads, l->sparse.index_heads)
DIM(index_dim, l->sparse.index_dim)
DIM(index_queries, (int64_t)l->sparse.index_heads * l->sparse.index_dim)
DIM(index_channels, 2 * (int64_t)l->sparse.index_dim)
DIM(group_in, (int64_t)l->at.n_heads / l->sparse.groups * l->at.dim_v)
DIM(group_out, l->sparse.o_rank)
DIM(groups_out, (int64_t)l->sparse.groups * l->sparse.o_rank)
DIM(active, l->experts.n_active)

static bool when_rows(const struct tern_layer_desc *l)
{
    return l->sparse.rate > 0;
}

static bool when_index(const struct tern_layer_desc *l)
{
    return l->sparse.rate > 0 && l->sparse.overlap;
}

static bool when_listed(const struct tern_layer_desc *l)
{
    return l->experts.listed;
}

static bool when_chosen(const struct tern_layer_desc *l)
{
    return !l->experts.listed;
}

static const struct tern_tensor_rule globals[] = {
    TERN_MATRIX("token_embd.weight", TERN_EMBED, tern_dim_vocab, tern_dim_embd),
    TERN_VECTOR("output_norm.weight", TERN_OUT_NORM, tern_dim_embd),
    TERN_MATRIX("output.weight", TERN_HEAD, tern_dim_vocab, tern_dim_embd),
    TERN_MATRIX("output_hc_fn.weight", TERN_MIX_OUT, dim_streams, dim_stream, .whole = true),
    TERN_VECTOR("output_hc_base.weight", TERN_MIX_OUT_BASE, dim_streams),
    TERN_VECTOR("output_hc_scale.weight", TERN_MIX_OUT_SCALE, tern_dim_one),
    {0},
};

static const struct tern_tensor_rule layers[] = {
    TERN_MATRIX("blk.%d.hc_attn_fn.weight", TERN_SLOT_MIX_ATTN, dim_mix, dim_stream, .whole = true),
    TERN_VECTOR("blk.%d.hc_attn_base.weight", TERN_SLOT_MIX_ATTN_BASE, dim_mix),
    TERN_VECTOR("blk.%d.hc_attn_scale.weight", TERN_SLOT_MIX_ATTN_SCALE, dim_three),
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q_a.weight", TERN_SLOT_Q_A, dim_q_rank, tern_dim_embd, .whole = true),
    TERN_VECTOR("blk.%d.attn_q_a_norm.weight", TERN_SLOT_Q_A_NORM, dim_q_rank),
    TERN_MATRIX("blk.%d.attn_q_b.weight", TERN_SLOT_Q, dim_queries, dim_q_rank),
    TERN_MATRIX("blk.%d.attn_kv.weight", TERN_SLOT_KV_A, dim_row, tern_dim_embd, .whole = true),
    TERN_VECTOR("blk.%d.attn_kv_a_norm.weight", TERN_SLOT_KV_A_NORM, dim_row),
    TERN_VECTOR("blk.%d.attn_sinks.weight", TERN_SLOT_SINKS, dim_heads),
    TERN_MATRIX("blk.%d.attn_output_a.weight", TERN_SLOT_O_A, dim_group_out, dim_group_in, .stacked = TERN_PER_GROUP,
                .merged = true),
    TERN_MATRIX("blk.%d.attn_output_b.weight", TERN_SLOT_O, tern_dim_embd, dim_groups_out),
    TERN_MATRIX("blk.%d.attn_compressor_kv.weight", TERN_SLOT_ROWS_KV, dim_channels, tern_dim_embd, .when = when_rows,
                .whole = true),
    TERN_MATRIX("blk.%d.attn_compressor_gate.weight", TERN_SLOT_ROWS_GATE, dim_channels, tern_dim_embd,
                .when = when_rows, .whole = true),
    TERN_MATRIX("blk.%d.attn_compressor_ape.weight", TERN_SLOT_ROWS_APE, dim_rate, dim_channels, .when = when_rows,
                .flat = true),
    TERN_VECTOR("blk.%d.attn_compressor_norm.weight", TERN_SLOT_ROWS_NORM, dim_row, .when = when_rows),
    TERN_MATRIX("blk.%d.indexer.attn_q_b.weight", TERN_SLOT_INDEX_Q, dim_index_queries, dim_q_rank, .when = when_index),
    TERN_MATRIX("blk.%d.indexer.proj.weight", TERN_SLOT_INDEX_WEIGHTS, dim_index_heads, tern_dim_embd,
                .when = when_index, .whole = true),
    TERN_MATRIX("blk.%d.indexer_compressor_kv.weight", TERN_SLOT_INDEX_KV, dim_index_channels, tern_dim_embd,
                .when = when_index, .whole = true),
    TERN_MATRIX("blk.%d.indexer_compressor_gate.weight", TERN_SLOT_INDEX_GATE, dim_index_channels, tern_dim_embd,
                .when = when_index, .whole = true),
    TERN_MATRIX("blk.%d.indexer_compressor_ape.weight", TERN_SLOT_INDEX_APE, dim_rate, dim_index_channels,
                .when = when_index, .flat = true),
    TERN_VECTOR("blk.%d.indexer_compressor_norm.weight", TERN_SLOT_INDEX_NORM, dim_index_dim, .when = when_index),
    TERN_MATRIX("blk.%d.hc_ffn_fn.weight", TERN_SLOT_MIX_FFN, dim_mix, dim_stream, .whole = true),
    TERN_VECTOR("blk.%d.hc_ffn_base.weight", TERN_SLOT_MIX_FFN_BASE, dim_mix),
    TERN_VECTOR("blk.%d.hc_ffn_scale.weight", TERN_SLOT_MIX_FFN_SCALE, dim_three),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.exp_probs_b.bias", TERN_SLOT_ROUTER_BIAS, tern_dim_experts, .when = when_chosen),
    TERN_MATRIX("blk.%d.ffn_gate_tid2eid.weight", TERN_SLOT_ROUTER_TABLE, tern_dim_vocab, dim_active,
                .when = when_listed, .flat = true, .ids = true),
    {0},
};

/* What its MTP layer has besides: products of the embedding and of each stream, and the end's weights of streams. */
static const struct tern_tensor_rule mtp[] = {
    TERN_MATRIX("blk.%d.nextn.e_proj.weight", TERN_SLOT_MTP_TOKEN_IN, tern_dim_embd, tern_dim_embd),
    TERN_MATRIX("blk.%d.nextn.h_proj.weight", TERN_SLOT_MTP_HIDDEN_IN, tern_dim_embd, tern_dim_embd),
    TERN_VECTOR("blk.%d.nextn.enorm.weight", TERN_SLOT_MTP_TOKEN_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.nextn.hnorm.weight", TERN_SLOT_MTP_HIDDEN_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.nextn.shared_head_norm.weight", TERN_SLOT_MTP_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.nextn.hc_head_fn.weight", TERN_SLOT_MTP_MIX, dim_streams, dim_stream, .whole = true),
    TERN_VECTOR("blk.%d.nextn.hc_head_base.weight", TERN_SLOT_MTP_MIX_BASE, dim_streams),
    TERN_VECTOR("blk.%d.nextn.hc_head_scale.weight", TERN_SLOT_MTP_MIX_SCALE, tern_dim_one),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number numbers[] = {{"attention.layer_norm_rms_epsilon", 1e-6}, {0}};

/* What tern_hf_deepseek4 says. */
static const char *const elsewhere[] = {"attention.sliding_window", "attention.head_count_kv", "rope.dimension_count",
                                        "expert_weights_norm", NULL};

static const struct tern_hf_word modules[] = {
    {"embed", "token_embd"},
    {"head", "output"},
    {"attn_norm", "attn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"attn.wq_a", "attn_q_a"},
    {"attn.q_norm", "attn_q_a_norm"},
    {"attn.wq_b", "attn_q_b"},
    {"attn.wkv", "attn_kv"},
    {"attn.kv_norm", "attn_kv_a_norm"},
    {"attn.norm", "attn_kv_a_norm"}, /* so transformers 5.23 saves it */
    {"attn.wo_a", "attn_output_a"},
    {"attn.wo_b", "attn_output_b"},
    {"attn.compressor.wkv", "attn_compressor_kv"},
    {"attn.compressor.wgate", "attn_compressor_gate"},
    {"attn.compressor.norm", "attn_compressor_norm"},
    {"attn.indexer.wq_b", "indexer.attn_q_b"},
    {"attn.indexer.weights_proj", "indexer.proj"},
    {"attn.indexer.compressor.wkv", "indexer_compressor_kv"},
    {"attn.indexer.compressor.wgate", "indexer_compressor_gate"},
    {"attn.indexer.compressor.norm", "indexer_compressor_norm"},
    {"ffn.gate", "ffn_gate_inp"},
    {"ffn.experts.#.w1", "ffn_gate.#"},
    {"ffn.experts.#.w3", "ffn_up.#"},
    {"ffn.experts.#.w2", "ffn_down.#"},
    {"ffn.shared_experts.w1", "ffn_gate_shexp"},
    {"ffn.shared_experts.w3", "ffn_up_shexp"},
    {"ffn.shared_experts.w2", "ffn_down_shexp"},
    {"ffn.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"ffn.switch_mlp.up_proj", "ffn_up_exps"},
    {"ffn.switch_mlp.down_proj", "ffn_down_exps"},
    {"ffn.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"ffn.shared_experts.up_proj", "ffn_up_shexp"},
    {"ffn.shared_experts.down_proj", "ffn_down_shexp"},
    {0},
};

static const struct tern_hf_word mtp_names[] = {
    {"mtp.0.e_proj.weight", "nextn.e_proj.weight"},
    {"mtp.0.h_proj.weight", "nextn.h_proj.weight"},
    {"mtp.0.enorm.weight", "nextn.enorm.weight"},
    {"mtp.0.hnorm.weight", "nextn.hnorm.weight"},
    {"mtp.0.norm.weight", "nextn.shared_head_norm.weight"},
    {"mtp.0.hc_head_fn", "nextn.hc_head_fn.weight"},
    {"mtp.0.hc_head_base", "nextn.hc_head_base.weight"},
    {"mtp.0.hc_head_scale", "nextn.hc_head_scale.weight"},
    {0},
};

static const struct tern_hf_mtp mtp_layer = {"num_nextn_predict_layers", "mtp.0.", "mtp.0.h_proj.weight", mtp_names};

static const struct tern_hf_family families[] = {
    {.model_type = "deepseek_v4",
     .act = "silu",
     .modules = modules,
     .silent = numbers,
     .elsewhere = elsewhere,
     .more = tern_hf_deepseek4,
     .mtp = &mtp_layer,
     .experts = true},
    {0},
};

const struct tern_arch tern_arch_deepseek4 = {
    .name = ARCH, .configure = configure, .globals = globals, .layers = layers, .mtp = mtp, .hf = families};
