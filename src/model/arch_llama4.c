/* Llama 4 (Meta, 2025), text, its dense layers: three layers of four attend within chunks, with RoPE on neighbouring
 * dims and then an RMS norm without weights; the fourth attends to everything, has no position embedding, and its
 * queries grow with their position.
 *
 * GGUF names neither the chunk nor the temperature: they are constants of the family unless the file says otherwise. */
#include "model/model.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    int64_t chunk, temper_span;
    double temper;
    TERN_TRY(tern_configure_common(d, f, "llama4", err));
    TERN_TRY(tern_refuse_experts(f, "llama4", err));
    TERN_TRY(tern_file_get_int(f, "llama4.attention.chunk_size", 8192, 1, 1 << 24, &chunk, err));
    TERN_TRY(tern_file_get_int(f, "llama4.attention.temperature_length", 8192, 1, 1 << 24, &temper_span, err));
    TERN_TRY(tern_file_get_float(f, "llama4.attention.temperature_scale", 0.1, &temper, err));
    d->ropes[0].interleaved = true;
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        bool whole = (i + 1) % 4 == 0;
        l->mask = whole ? TERN_MASK_CAUSAL : TERN_MASK_CHUNK;
        l->span = whole ? 0 : (int)chunk;
        l->rope = whole ? -1 : 0;
        l->qk_norm_plain = l->qk_norm_after_rope = !whole;
        l->q_temper = whole ? (float)temper : 0;
        l->q_temper_span = (int)temper_span;
        l->q_temper_from = 1;
    }
out:
    return rc;
}

const struct tern_arch tern_arch_llama4 = {"llama4", configure, tern_llama_globals, tern_llama_layers, NULL};
