/* kernel/kvq_encode_impl.h - what the encoders of trellis codes share.
 *
 * A state holds the last kvq_memory symbols, the newest on top; an edge leads to `state` from the state that had one
 * more symbol e at the bottom.  The edge's entry is kvq_new_part + kvq_old_part. */
#ifndef TERN_KERNEL_KVQ_ENCODE_IMPL_H
#define TERN_KERNEL_KVQ_ENCODE_IMPL_H

#include "kernel/kvq_impl.h"

#define KVQ_MAX_STATES 64
#define KVQ_CAP        12000 /* half costs above the best state's */

KVQ_INLINE int kvq_states(const int bits)
{
    return 1 << bits * kvq_memory(bits);
}

KVQ_INLINE int kvq_edge_from(int state, int e, const int bits)
{
    return (state << bits & (kvq_states(bits) - 1)) | e;
}

KVQ_INLINE int kvq_new_part(const struct tern_kvq_table *t, int state, const int bits)
{
    return bits == 4   ? t->entry[state]
           : bits == 3 ? t->entry[state >> 3] + t->b[state & 7]
                       : t->entry[(state & 12) | state >> 4];
}

KVQ_INLINE int kvq_old_part(const struct tern_kvq_table *t, int state, int e, const int bits)
{
    return bits == 4 ? t->b[e] : bits == 3 ? t->c[e] : t->b[4 * e + (state & 3)];
}

/* Oldest symbols that the state before a chain may have: the others do not fit the four start bits. */
KVQ_INLINE int kvq_first_edges(const int bits)
{
    return bits == 4 ? 16 : bits == 3 ? 2 : 1;
}

/* The four bits for the state before a chain. */
KVQ_INLINE int kvq_start_bits(int state, const int bits)
{
    return bits == 4 ? state : bits == 3 ? state >> 3 | (state & 1) << 3 : state >> 4 | (state & 12);
}

/* The factor of the second search, after a first one with factor 1: smaller where the first path came out short, so
 * that its scale is large. */
static inline float kvq_second_factor(float ye, float ee, float inv, float unit)
{
    return ye * inv > ee * (1.01f * unit) ? 0.92f : 1.1f;
}

/* Header of a block's scale, and in *gain how much of the block's energy it explains. */
static inline uint16_t kvq_trellis_head(float *gain, float ss, float ye, float ee, const struct tern_kvq_table *tab,
                                        bool key)
{
    uint16_t head = tern_kvq_head_near((key || !(ye > 0.0f) ? __builtin_sqrtf(ss / ee) : ye / ee) / tab->unit);
    float fu = tern_kvq_scale(head) * tab->unit;
    *gain = fu * (2.0f * ye - fu * ee);
    return head;
}

#endif
