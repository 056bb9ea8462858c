/* dev/cpu/ops.h - the operations of the CPU (dev.h), as device.c puts them into the table. */
#ifndef TERN_DEV_CPU_OPS_H
#define TERN_DEV_CPU_OPS_H

#include "dev/dev.h"

int tern_cpu_reserve(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
void tern_cpu_release(struct tern_dev *d, struct tern_dev_mem *m);
int tern_cpu_adopt(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
void tern_cpu_copy_in(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
void tern_cpu_copy_out(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
void tern_cpu_copy(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                   size_t from_at, size_t bytes);
void tern_cpu_zero(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
void tern_cpu_discard(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
int tern_cpu_weight_plan(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *s, int64_t n,
                         int64_t k, int stack, tern_error *err);
size_t tern_cpu_weight_bytes(const struct tern_dev_weight *w);
void tern_cpu_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out);
void tern_cpu_weight_place(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at);
int tern_cpu_weight_load(struct tern_dev *d, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                         tern_error *err);
void tern_cpu_weight_drop(struct tern_dev *d, struct tern_dev_weight *w);
void tern_cpu_weight_out(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row, int n);
void tern_cpu_begin(struct tern_dev *d, const struct tern_dev_step *s);
void tern_cpu_end(struct tern_dev *d);
void tern_cpu_embed(struct tern_dev *d, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                    float scale);
void tern_cpu_norm(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w, float eps,
                   int n_rows);
void tern_cpu_add(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                  int n_rows);
void tern_cpu_scale(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float factor);
void tern_cpu_matmul(struct tern_dev *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                     int n_wide);
void tern_cpu_rope_table(struct tern_dev *d, struct tern_dev_vec cos, struct tern_dev_vec sin, struct tern_dev_vec freq,
                         int n_rot, float magnitude, int n_rows);
void tern_cpu_heads(struct tern_dev *d, const struct tern_heads *h, int n_rows);
void tern_cpu_copy_heads(struct tern_dev *d, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                         size_t from_head, int n_heads, int n, int n_rows);
void tern_cpu_append(struct tern_dev *d, int layer, struct tern_dev_rows k, struct tern_dev_rows v);
void tern_cpu_attention(struct tern_dev *d, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                        struct tern_dev_rows out);
void tern_cpu_recode(struct tern_dev *d, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                     struct tern_dev_rows v);
void tern_cpu_glu(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                  enum tern_gate act);
void tern_cpu_network(struct tern_dev *d, const struct tern_dev_network *n, struct tern_dev_rows y,
                      struct tern_dev_rows x, int n_rows, int n_wide);
void tern_cpu_softcap(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float cap);
void tern_cpu_gate(struct tern_dev *d, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows);
void tern_cpu_stack(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide);
void tern_cpu_route(struct tern_dev *d, const struct tern_route *r, struct tern_dev_rows logits,
                    struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows);
void tern_cpu_experts(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y, struct tern_dev_rows x,
                      struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows, int n_wide);
void tern_cpu_experts_up(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows between,
                         struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                         int n_wide);
void tern_cpu_experts_down(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y,
                           struct tern_dev_rows between, struct tern_dev_vec ids, struct tern_dev_vec weights,
                           int n_rows, int n_wide);
void tern_cpu_delta(struct tern_dev *d, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                    int n_rows);
void tern_cpu_clamp(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit);
void tern_cpu_grid(struct tern_dev *d, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows);
void tern_cpu_compress(struct tern_dev *d, const struct tern_compress *c, struct tern_dev_rows x,
                       struct tern_dev_rows gate);
void tern_cpu_choose(struct tern_dev *d, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                     int n_rows);
void tern_cpu_sparse(struct tern_dev *d, const struct tern_sparse *s, struct tern_dev_rows q, struct tern_dev_rows out,
                     int n_rows);
void tern_cpu_hyper_read(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows m,
                         struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows);
void tern_cpu_hyper_write(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows streams,
                          struct tern_dev_rows m, struct tern_dev_rows t, int n_rows);
void tern_cpu_pick(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n);
void tern_cpu_best(struct tern_dev *d, const struct tern_best *b, int n_rows);

#endif
