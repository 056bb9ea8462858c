/* model/ffn.h - the feed-forward half of a layer: one network, the experts that a router chooses, or both. */
#ifndef TERN_MODEL_FFN_H
#define TERN_MODEL_FFN_H

#include "model/model.h"

/* Scratch of one engine, for rows whose strides are those of the widest layer. */
struct tern_ffn {
    size_t s_ff, s_embd, s_route; /* row strides in floats */
    float *gate, *up;             /* [max_rows][s_ff] */
    float *logits;                /* of routers, [max_rows][s_route]; this and the next only where there are experts */
    float *weights;               /* [max_rows][most active experts] */
    int32_t *ids;                 /* as weights */
    float *shared;                /* answers of shared experts, or of experts beside a network, [max_rows][s_embd] */
    float *in;                    /* what experts beside a network read, as shared */
    int n_embd;
    float eps;
};

/* Adds its allocations to *bytes.  What is opened half is freed by tern_ffn_close. */
int tern_ffn_open(struct tern_ffn *f, const struct tern_desc *d, int max_rows, size_t *bytes, tern_error *err);
void tern_ffn_close(struct tern_ffn *f);

/* What experts need of the device; *max_k becomes the longest input of any product here if that is longer. */
void tern_ffn_limits(const struct tern_desc *d, struct tern_dev_limits *limits);

/* y = ffn(h), rows of the stride of the embedding; rows [0, n_wide) are prompt rows.  x: what h was before its norm,
 * which experts beside a dense network norm themselves. */
void tern_ffn_run(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_layer_desc *l,
                  const struct tern_weights *w, float *y, const float *h, const float *x, int n_rows, int n_wide);

#endif
