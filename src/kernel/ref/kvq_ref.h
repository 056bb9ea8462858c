/* ref/kvq_ref.h - what the two files of the plain C page kernels share: where a code lies in a page. */
#ifndef TERN_REF_KVQ_REF_H
#define TERN_REF_KVQ_REF_H

#include "kernel/kvq_impl.h"

#define KVQ_SET   32 /* contracted items in a set */
#define KVQ_LANES 16 /* lanes in a group */

/* Word `w` of lane `lane` in the group that starts at `group`. */
static inline size_t kvq_word_at(int w, int lane)
{
    return (size_t)(w * KVQ_LANES + lane) * 4;
}

/* Bytes of one group: `bits` words of 16 lanes. */
static inline size_t kvq_group_bytes(int bits)
{
    return (size_t)bits * KVQ_LANES * 4;
}

/* Is the set of keys from dim d on (a multiple of 32) the one that both groups of a half share? */
static inline bool kvq_shared_set(int d, int dim)
{
    return d + KVQ_SET > dim;
}

/* Start of the group of keys of token t, dims d (a multiple of 32) and up. */
static inline size_t kvq_key_set(int t, int d, int bits, int dim)
{
    int half = t / 32, group = kvq_shared_set(d, dim) ? 0 : t / KVQ_LANES % 2;
    return (size_t)((half * dim + d) / KVQ_LANES + group) * kvq_group_bytes(bits);
}

/* Start of the group of values: 32 tokens from t on, 16 dims from d on. */
static inline size_t kvq_value_set(int t, int d, int bits, int dim)
{
    return (size_t)(t / KVQ_SET * (dim / KVQ_LANES) + d / KVQ_LANES) * kvq_group_bytes(bits);
}

/* The entries of a whole page side, e[64][dim]. */
void tern_kvq_entries_ref(int8_t *e, const uint8_t *side, const uint16_t *head, const struct tern_kvq_table *tab,
                          int dim, bool key);
void tern_kvq_rotate_ref(float *x, const float *sign, int dim, int inverse);
void tern_kvq_encode_ref(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                         int dim, int n, void *scratch);
void tern_kvq_pack_k_ref(uint8_t *k, const uint8_t *codes, int bits, int dim);
void tern_kvq_pack_v_ref(uint8_t *v, const uint8_t *codes, int bits, int dim);

#endif
