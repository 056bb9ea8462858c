/* Layers for multi-token prediction (DeepSeek-V3 report, 2412.19437, 2.2), as the files of most families have them. */
#include "model/arch/arch.h"

#include <stdio.h>

/* Some files repeat the embedding and the output matrix for such a layer. */
const struct tern_tensor_rule tern_mtp_layers[] = {
    TERN_MATRIX("blk.%d.nextn.eh_proj.weight", TERN_SLOT_MTP_IN, tern_dim_embd, tern_dim_two_embd),
    TERN_VECTOR("blk.%d.nextn.enorm.weight", TERN_SLOT_MTP_TOKEN_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.nextn.hnorm.weight", TERN_SLOT_MTP_HIDDEN_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.nextn.shared_head_norm.weight", TERN_SLOT_MTP_NORM, tern_dim_embd, .optional = true),
    TERN_MATRIX("blk.%d.nextn.embed_tokens.weight", TERN_SLOT_MTP_EMBED, tern_dim_vocab, tern_dim_embd,
                .optional = true),
    TERN_MATRIX("blk.%d.nextn.shared_head_head.weight", TERN_SLOT_MTP_HEAD, tern_dim_vocab, tern_dim_embd,
                .optional = true),
    {0},
};

int tern_configure_mtp(struct tern_desc *d, const struct tern_file *f, const char *arch, const char *tensor,
                       tern_error *err)
{
    char text[160];
    int64_t n;
    int rc = tern_file_get_int(f, tern_arch_key(text, sizeof text, arch, "nextn_predict_layers"), 0, 0, d->n_layers - 1,
                               &n, err);
    if (rc < 0)
        return rc;
    d->n_mtp_layers = (int)n;
    d->n_layers -= (int)n;
    (void)snprintf(text, sizeof text, "blk.%d.%s.weight", d->n_layers, tensor);
    d->n_mtp = n == 1 && tern_file_tensor(f, text);
    return 0;
}
