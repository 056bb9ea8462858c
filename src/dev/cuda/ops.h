/* dev/cuda/ops.h - entries of the table of operations (dev/dev.h) that weights.c, rows.c, products.c and experts.c
 * define, attn/, few/ and together/. */
#ifndef TERN_DEV_CUDA_OPS_H
#define TERN_DEV_CUDA_OPS_H

#include "dev/dev.h"

int tern_cuda_weight_plan(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *s, int64_t n,
                          int64_t k, int stack, tern_error *err);
size_t tern_cuda_weight_bytes(const struct tern_dev_weight *w);
void tern_cuda_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out);
void tern_cuda_weight_place(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at);
int tern_cuda_weight_load(struct tern_dev *d, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                          tern_error *err);
void tern_cuda_weight_drop(struct tern_dev *d, struct tern_dev_weight *w);
void tern_cuda_weight_out(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row, int n);
void tern_cuda_embed(struct tern_dev *d, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                     float scale);
void tern_cuda_norm(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w,
                    float eps, int n_rows);
void tern_cuda_add(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                   int n_rows);
void tern_cuda_scale(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float factor);
void tern_cuda_matmul(struct tern_dev *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                      int n_wide);
void tern_cuda_rope_table(struct tern_dev *d, struct tern_dev_vec cos, struct tern_dev_vec sin,
                          struct tern_dev_vec freq, int n_rot, float magnitude, int n_rows);
void tern_cuda_heads(struct tern_dev *d, const struct tern_heads *h, int n_rows);
void tern_cuda_copy_heads(struct tern_dev *d, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                          size_t from_head, int n_heads, int n, int n_rows);
void tern_cuda_glu(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                   enum tern_gate act);
void tern_cuda_softcap(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float cap);
void tern_cuda_gate(struct tern_dev *d, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows);
void tern_cuda_stack(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide);
void tern_cuda_route(struct tern_dev *d, const struct tern_route *r, struct tern_dev_rows logits,
                     struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows);
void tern_cuda_experts(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y, struct tern_dev_rows x,
                       struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows, int n_wide);
void tern_cuda_experts_up(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows between,
                          struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                          int n_wide);
void tern_cuda_experts_down(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y,
                            struct tern_dev_rows between, struct tern_dev_vec ids, struct tern_dev_vec weights,
                            int n_rows, int n_wide);
void tern_cuda_delta(struct tern_dev *d, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                     int n_rows);
void tern_cuda_clamp(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit);
void tern_cuda_grid(struct tern_dev *d, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows);
void tern_cuda_hyper_read(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows m,
                          struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows);
void tern_cuda_hyper_write(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows streams,
                           struct tern_dev_rows m, struct tern_dev_rows t, int n_rows);
void tern_cuda_pick(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n);
void tern_cuda_best(struct tern_dev *d, const struct tern_best *b, int n_rows);
/* Scratch of the last, by d->limits; given back by close. */
struct tern_cuda;
int tern_cuda_best_open(struct tern_cuda *d, tern_error *err);

/* Of attn/ops.c. */
void tern_cuda_append(struct tern_dev *d, int layer, struct tern_dev_rows k, struct tern_dev_rows v);
void tern_cuda_attention(struct tern_dev *d, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                         struct tern_dev_rows out);
void tern_cuda_recode(struct tern_dev *d, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                      struct tern_dev_rows v);

/* Of attn/spans.c. */
void tern_cuda_compress(struct tern_dev *d, const struct tern_compress *c, struct tern_dev_rows x,
                        struct tern_dev_rows gate);
void tern_cuda_choose(struct tern_dev *d, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                      int n_rows);
void tern_cuda_sparse(struct tern_dev *d, const struct tern_sparse *s, struct tern_dev_rows q, struct tern_dev_rows out,
                      int n_rows);

/* Of together/together.c, with what it needs when a device begins a step, and closes. */
struct tern_cuda;
struct tern_cuda_together;
void tern_cuda_start(struct tern_dev *const *devs, int n);
int tern_cuda_join(struct tern_dev *const *devs, int n, tern_error *err);
bool tern_cuda_gather_rows(struct tern_dev *const *devs, int n, const struct tern_dev_rows *x, const int *bound,
                           int n_rows, bool product);
void tern_cuda_together_begin(struct tern_cuda *d); /* before the step's tables are copied */
void tern_cuda_together_close(struct tern_cuda *d);
/* rows.c: are these rows, all of the step's, what the call before wrote?  Then it writes them to d->half as well, as
 * struct tern_cuda_half has it; of a gate there alone, unless f32_too. */
bool tern_cuda_halves_before(struct tern_cuda *d, struct tern_dev_rows x, int n_rows, int k, bool f32_too);
/* rows.c: the columns that the card is about to send were to be gated just now; the gather does it instead. */
void tern_cuda_gate_inside(struct tern_cuda *d, struct tern_cuda_together *a);

#endif
