/* Llama 4 (Meta, 2025), text: three layers of four attend within chunks, with RoPE on neighbouring dims and then an RMS
 * norm without weights, which the model of 128 experts lacks; the fourth attends to everything, has no position
 * embedding, and its queries grow with their position.  What an expert reads is multiplied by the sigmoid of its logit;
 * beside the experts there is one more of their width that every row goes through.
 *
 * GGUF names neither the chunk nor the temperature, the norm, the sigmoid or the shared expert: they are constants of
 * the family unless the file says otherwise. */
#include "model/arch/arch.h"

#define KEY(name) "llama4." name

struct attention {
    int64_t chunk, temper_span;
    double temper;
    bool norm;
};

static int read_attention(struct attention *v, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    int64_t experts;
    TERN_TRY(tern_file_get_int(f, KEY("expert_count"), 0, 0, TERN_MAX_EXPERTS, &experts, err));
    TERN_TRY(tern_file_get_int(f, KEY("attention.chunk_size"), 8192, 1, 1 << 24, &v->chunk, err));
    TERN_TRY(tern_file_get_int(f, KEY("attention.temperature_length"), 8192, 1, 1 << 24, &v->temper_span, err));
    TERN_TRY(tern_file_get_float(f, KEY("attention.temperature_scale"), 0.1, &v->temper, err));
    TERN_TRY(tern_file_get_bool(f, KEY("attention.qk_norm"), experts != 128, &v->norm, err));
    if (tern_file_meta(f, KEY("attention.sliding_window"))) /* 0: so files of models without chunks say it */
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: %s: only chunks are supported", tern_file_path(f),
                  KEY("attention.sliding_window"));
out:
    return rc;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    struct attention v;
    TERN_TRY(tern_configure_common(d, f, "llama4", err));
    TERN_TRY(tern_configure_experts(d, f, "llama4", false, err));
    TERN_TRY(read_attention(&v, f, err));
    d->ropes[0].interleaved = true;
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        bool whole = (i + 1) % 4 == 0;
        l->at.mask = whole ? TERN_MASK_CAUSAL : TERN_MASK_CHUNK;
        l->at.span = whole ? 0 : (int)v.chunk;
        l->at.rope = whole ? -1 : 0;
        l->attention.qk_norm_plain = l->attention.qk_norm_after_rope = !whole && v.norm;
        l->attention.q_temper = whole ? (float)v.temper : 0;
        l->attention.q_temper_span = (int)v.temper_span;
        l->attention.q_temper_from = 1;
        if (l->ffn != TERN_FFN_EXPERTS)
            continue;
        if (!tern_file_meta(f, KEY("expert_gating_func")))
            l->experts.router = TERN_ROUTE_SIGMOID;
        l->experts.weigh_input = true;
        l->experts.n_ff_shared = l->experts.n_ff_shared ? l->experts.n_ff_shared : l->experts.n_ff;
    }
out:
    return rc;
}

/* ---- directories of Hugging Face ---- */

static const char *const llama4_elsewhere[] = {"attention.sliding_window", NULL};

static const struct tern_hf_word llama4_modules[] = {
    {"feed_forward.gate_proj", "ffn_gate"},
    {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
    {"feed_forward.router", "ffn_gate_inp"},
    {"feed_forward.experts.gate_proj", "ffn_gate_exps"},
    {"feed_forward.experts.up_proj", "ffn_up_exps"},
    {"feed_forward.experts.down_proj", "ffn_down_exps"},
    {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
    {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
    {0},
};

static const struct tern_hf_number llama4_numbers[] = {
    {"context_length", 131072},      {"attention.head_count", 40},
    {"attention.head_count_kv", 8},  {"attention.key_length", 128},
    {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1e-5},
    {"rope.freq_base", 5e5},         {"expert_count", 16},
    {"expert_used_count", 1},        {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "llama4_text",
     .act = "silu",
     .modules = llama4_modules,
     .elsewhere = llama4_elsewhere,
     .more = tern_hf_llama4,
     .silent = llama4_numbers,
     .experts = true},
    {0},
};

const struct tern_arch tern_arch_llama4 = {.name = "llama4",
                                           .configure = configure,
                                           .globals = tern_llama_globals,
                                           .layers = tern_llama_layers,
                                           .hf = families,
                                           .gguf = {.divisors = true}};
