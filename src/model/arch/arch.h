/* model/arch/arch.h - what a file of an architecture fills in, and what helps it to.  Private to src/model. */
#ifndef TERN_MODEL_ARCH_ARCH_H
#define TERN_MODEL_ARCH_ARCH_H

#include "file/hf_family.h"
#include "model/model.h"

/* A dimension of a tensor, of the model or of the layer that has it. */
typedef int64_t tern_dim(const struct tern_desc *d, const struct tern_layer_desc *l);
tern_dim tern_dim_one, tern_dim_embd, tern_dim_two_embd, tern_dim_vocab, tern_dim_rope /* n_rot/2 of rope 0 */;
tern_dim tern_dim_ff, tern_dim_experts, tern_dim_ff_expert, tern_dim_ff_shared;
tern_dim tern_dim_ple, tern_dim_ples /* of all layers */;
tern_dim tern_dim_q, tern_dim_q_gate /* a head's queries, then its gate */, tern_dim_k, tern_dim_v, tern_dim_o;
tern_dim tern_dim_head_k;
/* Of latent attention: */
tern_dim tern_dim_q_rank, tern_dim_q_heads, tern_dim_nope, tern_dim_latent, tern_dim_latent_k, tern_dim_head_v;
tern_dim tern_dim_heads_v;
/* Of delta layers; conv: channels. */
tern_dim tern_dim_conv, tern_dim_conv_width, tern_dim_delta_v, tern_dim_delta_heads, tern_dim_delta_head_v;

/* Which layers have a tensor. */
typedef bool tern_when(const struct tern_layer_desc *l);
tern_when tern_when_network, tern_when_experts, tern_when_shared, tern_when_beside, tern_when_ple;

/* Rules that follow each other under one name share the tensor: its rows are theirs in this order.  A rule does not
 * apply where a matrix was found for its slot already: what files name in several ways has several rules, all but the
 * last of them optional. */
struct tern_tensor_rule {
    /* With %d for the layer in the layer table, another one for the matrix where those of a stack are apart. */
    const char *name;
    tern_dim *n, *k; /* matrix [n, k], also of each expert; vector [n] with k = NULL */
    tern_when *when; /* layers that have it; NULL: all */
    int slot;        /* enum tern_slot, or enum tern_global in the global table */
    enum tern_stacked stacked;
    bool table;    /* f32, and turned: [k][n] */
    bool flat;     /* f32, as it lies: [n][k] */
    bool merged;   /* the matrices of a stack may also be one, of all their rows */
    bool ids;      /* whole numbers, n of them at a time different ones below the layer's experts */
    bool optional; /* may be missing */
    bool own_kv;   /* of keys and values: not read where a layer attends to another's, there or not */
    bool whole;    /* what it gives is little, and wanted whole at once: each of several devices computes all of it */
};
/* clang-format off */
#define TERN_MATRIX(tensor, to, rows, columns, ...) \
    {.name = (tensor), .slot = (to), .n = (rows), .k = (columns), ##__VA_ARGS__}
#define TERN_VECTOR(tensor, to, rows, ...) {.name = (tensor), .slot = (to), .n = (rows), ##__VA_ARGS__}
/* clang-format on */

/* An architecture: one const instance per arch_x.c. */
struct tern_arch {
    const char *name; /* general.architecture */
    int (*configure)(struct tern_desc *d, const struct tern_file *f, tern_error *err);
    const struct tern_tensor_rule *globals, *layers; /* end with a NULL name */
    const struct tern_tensor_rule *more_layers;      /* further rules of layers, or NULL */
    const struct tern_tensor_rule *mtp;              /* what its MTP layer has besides; NULL: tern_mtp_layers */
    const struct tern_hf_family *hf;                 /* its Hugging Face checkpoints; NULL: none open */
    struct tern_arch_gguf gguf;                      /* what GGUF changes of these; pairs also decides ropes[0] */
};
/* Tables of all who name tensors so; that of experts counts for every architecture. */
extern const struct tern_tensor_rule tern_llama_globals[], tern_llama_layers[], tern_head_norms[];
extern const struct tern_tensor_rule tern_expert_layers[], tern_mtp_layers[];
extern const struct tern_tensor_rule tern_gemma_globals[], tern_gemma_layers[];
extern const struct tern_tensor_rule tern_qwen35_layers[];
extern const struct tern_hf_word tern_hf_gemma_modules[], tern_hf_qwen35_modules[];
extern const struct tern_hf_number tern_hf_qwen35_numbers[];
extern const char *const tern_hf_qwen35_elsewhere[];
extern const struct tern_hf_mtp tern_hf_qwen35_mtp;
#define TERN_ARCH(name) extern const struct tern_arch tern_arch_##name;
#include "model/arch/archs.def"
#undef TERN_ARCH
extern const struct tern_arch *const tern_archs[]; /* archs.def, NULL-terminated */

/* ---- helpers for arch files -------------------------------------------------------------------------------------- */

/* The usual keys, read as "<arch>.<key>" with range checks: block_count, embedding_length, context_length, head counts,
 * key/value length, feed_forward_length, rms epsilon, sliding window, rope dimension/base/scaling.  Fills every layer
 * alike; the caller then changes what differs. */
int tern_configure_common(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err);

/* Layers for multi-token prediction: those of nextn_predict_layers behind the others, which block_count counts too. One
 * is loaded if it is there (`tensor` of it); of more than one, none.  After everything that describes all blocks. */
int tern_configure_mtp(struct tern_desc *d, const struct tern_file *f, const char *arch, const char *tensor,
                       tern_error *err);

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
