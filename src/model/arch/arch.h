/* model/arch/arch.h - what a file of an architecture fills in, and what helps it to.  Private to src/model. */
#ifndef TERN_MODEL_ARCH_ARCH_H
#define TERN_MODEL_ARCH_ARCH_H

#include "model/model.h"

/* A dimension in the tensor table, resolved against the layer's descriptor.  Where one is 0 the layer has no such
 * tensor. */
enum tern_dim {
    TERN_DIM_NONE, /* vectors have no second dimension */
    TERN_DIM_ONE,
    TERN_DIM_EMBD,
    TERN_DIM_VOCAB,
    TERN_DIM_FF,
    TERN_DIM_EXPERTS,
    TERN_DIM_FF_EXPERT,
    TERN_DIM_FF_SHARED,
    TERN_DIM_SHARED_ONE, /* 1 where there is a network that every row goes through besides, else 0 */
    TERN_DIM_BESIDE,     /* n_embd where experts work beside a dense network, else 0 */
    TERN_DIM_Q,          /* n_heads * dim_k */
    TERN_DIM_Q_GATE,     /* twice that: a head's queries, then its gate */
    TERN_DIM_K,          /* n_kv_heads * dim_k */
    TERN_DIM_V,          /* n_kv_heads * dim_v */
    TERN_DIM_O,          /* n_heads * dim_v */
    TERN_DIM_HEAD_K,     /* dim_k */
    TERN_DIM_PLE,        /* n_ple */
    TERN_DIM_PLES,       /* n_ple of all layers */
    /* Of latent attention: */
    TERN_DIM_Q_RANK,
    TERN_DIM_Q_STRAIGHT, /* n_embd where there is no q_rank, else 0 */
    TERN_DIM_Q_HEADS,    /* n_heads * (dim_nope + dim_k) */
    TERN_DIM_NOPE,
    TERN_DIM_LATENT,   /* dim_v */
    TERN_DIM_LATENT_K, /* dim_v + dim_k */
    TERN_DIM_HEAD_V,   /* dim_head_v */
    TERN_DIM_HEADS_V,  /* n_heads * dim_head_v */
    TERN_DIM_ROPE,     /* n_rot/2 of rope 0 */
    /* Of delta layers: */
    TERN_DIM_CONV,         /* channels: queries, keys, values */
    TERN_DIM_CONV_WIDTH,   /* second dimension of a table, which is f32 and turned: [width][channels] */
    TERN_DIM_DELTA_V,      /* delta_v_heads * delta_dim_v */
    TERN_DIM_DELTA_HEADS,  /* delta_v_heads */
    TERN_DIM_DELTA_HEAD_V, /* delta_dim_v */
};

/* Rules that follow each other under one name share the tensor: its rows are theirs in this order.  A rule does not
 * apply where a matrix was found for its slot already: what files name in several ways has several rules, all but the
 * last of them optional. */
struct tern_tensor_rule {
    const char
        *name; /* with %d for the layer in the layer table, another one for the matrix where a stack's are apart */
    int slot;  /* enum tern_slot, or enum tern_global in the global table */
    enum tern_dim n, k; /* matrix [n, k], also of each expert; vector [n] with k = TERN_DIM_NONE */
    bool optional;
};

/* An architecture: one const instance per arch_x.c. */
struct tern_arch {
    const char *name; /* general.architecture */
    int (*configure)(struct tern_desc *d, const struct tern_file *f, tern_error *err);
    const struct tern_tensor_rule *globals, *layers; /* end with a NULL name */
    const struct tern_tensor_rule *more_layers;      /* further rules of layers, or NULL */
};
/* Tables of all who name tensors so; that of experts counts for every architecture. */
extern const struct tern_tensor_rule tern_llama_globals[], tern_llama_layers[], tern_head_norms[];
extern const struct tern_tensor_rule tern_expert_layers[];
extern const struct tern_tensor_rule tern_gemma_globals[], tern_gemma_layers[];
extern const struct tern_tensor_rule tern_qwen35_layers[];
#define TERN_ARCH(name) extern const struct tern_arch tern_arch_##name;
#include "model/arch/archs.def"
#undef TERN_ARCH
extern const struct tern_arch *const tern_archs[]; /* archs.def, NULL-terminated */

/* ---- helpers for arch files -------------------------------------------------------------------------------------- */

/* The usual keys, read as "<arch>.<key>" with range checks: block_count, embedding_length, context_length, head counts,
 * key/value length, feed_forward_length, rms epsilon, sliding window, rope dimension/base/scaling.  Fills every layer
 * alike; the caller then changes what differs. */
int tern_configure_common(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err);

/* A mixture of experts under the name of a dense family is another computation: refuses it. */
int tern_refuse_experts(const struct tern_file *f, const char *arch, tern_error *err);

/* Takes the window of the usual key from layers that have none: every `every`th, or what the key
 * attention.sliding_window_pattern says, another such number or an array with true where there is a window. */
int tern_configure_pattern(struct tern_desc *d, const struct tern_file *f, const char *arch, int every,
                           tern_error *err);

/* What Gemma 2 and 3 have in common.  wide: the number of layers of the model whose scores are scaled by the width over
 * heads, not by the head size, without its file saying so. */
int tern_configure_gemma(struct tern_desc *d, const struct tern_file *f, const char *arch, int every, int wide,
                         tern_error *err);

/* What Qwen3.5 has in common with and without experts: layers with a recurrent state, and every so many with attention,
 * whose output is gated. */
int tern_configure_qwen35(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err);

/* The embedding of window layers where these have their own base: unscaled, 10000 unless freq_base_swa says otherwise.
 */
int tern_rope_read_local(struct tern_rope *r, const struct tern_file *f, const char *arch, int n_rot, tern_error *err);

/* The keys of a mixture of experts, where expert_count is above 0: expert_used_count, expert_feed_forward_length (else
 * feed_forward_length), shared experts, groups, gating function, scale, and expert_weights_norm (else `norm`).  Turns
 * the layers that leading_dense_block_count and interleave_moe_layer_step leave into layers of experts. */
int tern_configure_experts(struct tern_desc *d, const struct tern_file *f, const char *arch, bool norm,
                           tern_error *err);

#endif
