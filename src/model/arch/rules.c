/* What rules of tensors are made of: dimensions, and the layers that have them. */
#include "model/arch/arch.h"

#define DIM(name, value)                                                                \
    int64_t tern_dim_##name(const struct tern_desc *d, const struct tern_layer_desc *l) \
    {                                                                                   \
        (void)d, (void)l;                                                               \
        return value;                                                                   \
    }
DIM(one, 1)
DIM(embd, d->n_embd)
DIM(two_embd, 2 * (int64_t)d->n_embd)
DIM(vocab, d->n_vocab)
DIM(ff, l->n_ff)
DIM(experts, l->experts.n)
DIM(ff_expert, l->experts.n_ff)
DIM(ff_shared, l->experts.n_ff_shared)
DIM(q, (int64_t)l->at.n_heads * l->at.dim_k)
DIM(q_gate, 2 * (int64_t)l->at.n_heads * l->at.dim_k)
DIM(k, (int64_t)l->at.n_kv_heads * l->at.dim_k)
DIM(v, (int64_t)l->at.n_kv_heads * l->at.dim_v)
DIM(o, (int64_t)l->at.n_heads * l->at.dim_v)
DIM(head_k, l->at.dim_k)
DIM(rope, d->ropes[0].n_rot / 2)
DIM(ple, l->n_ple)
DIM(ples, (int64_t)l->n_ple * d->n_layers)
DIM(q_rank, l->latent.q_rank)
DIM(q_heads, (int64_t)l->at.n_heads *(l->latent.dim_nope + l->at.dim_k))
DIM(nope, l->latent.dim_nope)
DIM(latent, l->at.dim_v)
DIM(latent_k, l->at.dim_v + l->at.dim_k)
DIM(head_v, l->latent.dim_head_v)
DIM(heads_v, (int64_t)l->at.n_heads * l->latent.dim_head_v)
DIM(conv, 2 * (int64_t)l->delta.k_heads * l->delta.dim_k + (int64_t)l->delta.v_heads * l->delta.dim_v)
DIM(conv_width, l->delta.conv_width)
DIM(delta_v, (int64_t)l->delta.v_heads * l->delta.dim_v)
DIM(delta_heads, l->delta.v_heads)
DIM(delta_head_v, l->delta.dim_v)

bool tern_when_network(const struct tern_layer_desc *l)
{
    return l->ffn != TERN_FFN_EXPERTS;
}

bool tern_when_experts(const struct tern_layer_desc *l)
{
    return l->ffn != TERN_FFN_NETWORK;
}

bool tern_when_beside(const struct tern_layer_desc *l)
{
    return l->ffn == TERN_FFN_BESIDE;
}

bool tern_when_shared(const struct tern_layer_desc *l)
{
    return l->ffn == TERN_FFN_EXPERTS && l->experts.n_ff_shared > 0;
}

bool tern_when_ple(const struct tern_layer_desc *l)
{
    return l->n_ple > 0;
}
