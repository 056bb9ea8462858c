/* kernel/kvq_impl.h - what the page kernels of all levels share: geometry, chains of trellis codes, and the choice of a
 * kernel by code.  Plain C; the vector halves are kvq_simd.h in each folder. */
#ifndef TERN_KERNEL_KVQ_IMPL_H
#define TERN_KERNEL_KVQ_IMPL_H

#include <stdbool.h>
#include <string.h>
#include "kernel/kvq.h"

#define KVQ_INLINE static inline __attribute__((always_inline))
#define KVQ_UNROLL _Pragma("GCC unroll 16")
#define KVQ_ROWS   4 /* query rows that share one pass over the codes: more would spill accumulators */

/* Calls fn(..., bits, trellis) with both constant, so that an inlined fn is one kernel for each code. */
#define KVQ_BY_CODE(tab, fn, ...)         \
    do {                                  \
        if ((tab)->trellis) {             \
            if ((tab)->bits == 4)         \
                fn(__VA_ARGS__, 4, true); \
            else if ((tab)->bits == 3)    \
                fn(__VA_ARGS__, 3, true); \
            else                          \
                fn(__VA_ARGS__, 2, true); \
        } else if ((tab)->bits == 8) {    \
            fn(__VA_ARGS__, 8, false);    \
        } else if ((tab)->bits == 4) {    \
            fn(__VA_ARGS__, 4, false);    \
        } else if ((tab)->bits == 3) {    \
            fn(__VA_ARGS__, 3, false);    \
        } else {                          \
            fn(__VA_ARGS__, 2, false);    \
        }                                 \
    } while (0)

/* Calls fn(rows, ...) with `rows` constant: `left` rows, but at most KVQ_ROWS. */
#define KVQ_BY_ROWS(left, fn, ...)     \
    do {                               \
        if ((left) == 1)               \
            fn(1, __VA_ARGS__);        \
        else if ((left) == 2)          \
            fn(2, __VA_ARGS__);        \
        else if ((left) == 3)          \
            fn(3, __VA_ARGS__);        \
        else                           \
            fn(KVQ_ROWS, __VA_ARGS__); \
    } while (0)

/* ---- geometry ---- */

/* Words of a set (the gathered one of 3 bits included) and codes in each byte of a word. */
KVQ_INLINE int kvq_words(const int bits)
{
    return bits == 3 ? 4 : bits;
}

KVQ_INLINE int kvq_per_byte(const int bits)
{
    return bits == 8 ? 1 : bits == 2 ? 4 : 2;
}

/* Dims of the block that starts at dim d. */
KVQ_INLINE int kvq_block_dims(int dim, int d)
{
    return dim - d < TERN_KVQ_BLOCK ? dim - d : TERN_KVQ_BLOCK;
}

/* Keys of 16 tokens in a block: whole sets, and behind them, for 16 dims left over, half of a set that the other group
 * of the tokens' half shares. */
struct kvq_keys {
    const uint8_t *sets;   /* the first set; the next ones 128 * bits bytes on */
    const uint8_t *shared; /* the set that both groups share, if dims are left over */
    const uint8_t *first;  /* first word of the tokens in memory */
    const uint8_t *half;   /* first word of the tokens in `shared` */
    int dims;              /* in whole sets */
    int left;              /* in `shared`: 16 or 0 */
    int word;              /* index of `half` in the set */
};

/* k: a half; group: 0 or 1; d0: first dim of the block. */
KVQ_INLINE struct kvq_keys kvq_keys(const uint8_t *k, const int group, int d0, int dim, const int bits)
{
    const int n = kvq_block_dims(dim, d0);
    const uint8_t *block = k + (size_t)d0 * 4 * bits;
    struct kvq_keys x = {.sets = block + (size_t)group * 64 * bits, .dims = n / 32 * 32, .left = n % 32};
    x.first = x.sets;
    if (x.left) {
        x.word = group * kvq_words(bits) / 2;
        x.shared = block + (size_t)x.dims * 4 * bits;
        x.half = x.shared + 64 * x.word;
        if (n < 32)
            x.first = x.half;
    }
    return x;
}

/* Entries of table A, of B and of C (at least four, whatever is there).  In a byte shuffle shorter tables repeat, so
 * that the bits above a code do no harm. */
KVQ_INLINE int kvq_span_a(const int bits, const bool trellis)
{
    return trellis ? (bits == 3 ? 8 : 16) : bits == 8 ? 16 : 1 << bits;
}

KVQ_INLINE int kvq_span_b(const int bits)
{
    return bits == 3 ? 8 : 16;
}

/* ---- chains ---- */

/* Symbols before the current one that its value depends on; also the symbols in a state of the encoder. */
KVQ_INLINE int kvq_memory(const int bits)
{
    return 5 - bits;
}

/* The dims of a block of n dims in the order of the chain. */
static inline void kvq_chain(uint8_t *order, int n, int bits, bool key)
{
    if (!key) {
        for (int lane = 0; lane < 16; lane++) {
            for (int group = n / 16 - 1; group >= 0; group--)
                *order++ = (uint8_t)(16 * group + lane);
        }
        return;
    }
    const int per_byte = kvq_per_byte(bits);
    for (int byte = 0; byte < 4; byte++) {
        for (int word = n / (4 * per_byte) - 1; word >= 0; word--) {
            for (int j = 0; j < per_byte; j++)
                *order++ = (uint8_t)((4 * word + byte) * per_byte + (bits == 2 ? 3 - j : j));
        }
    }
}

/* Symbol s_{-1-j} before the first of a chain. */
KVQ_INLINE int kvq_start_symbol(int start, int j, const int bits)
{
    int width = bits == 2 ? 2 : bits;
    return j == 0 ? start & ((1 << width) - 1) : j == 1 ? start >> width : 0;
}

/* The states s_{-1} .. of eight headers, header 0 lowest, as nibbles. */
KVQ_INLINE uint32_t kvq_start_nibbles(const uint16_t *head)
{
    uint64_t x[2];
    memcpy(x, head, 16);
    for (int i = 0; i < 2; i++) {
        x[i] &= 0x000F000F000F000Fu;
        x[i] = (x[i] | x[i] >> 12) & 0x000000FF000000FFu;
        x[i] |= x[i] >> 24;
    }
    return (uint32_t)(x[0] & 0xFFFF) | (uint32_t)x[1] << 16;
}

/* Low pairs of 16 nibbles side by side. */
KVQ_INLINE uint32_t kvq_pairs(uint32_t lo, uint32_t hi)
{
    uint64_t x = ((uint64_t)hi << 32 | lo) & 0x3333333333333333u;
    x = (x | x >> 2) & 0x0F0F0F0F0F0F0F0Fu;
    x = (x | x >> 4) & 0x00FF00FF00FF00FFu;
    x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
    return (uint32_t)(x | x >> 16);
}

/* The symbols s_{-1-j} of 32 tokens as the words of a lane: what stands before lane 0 of a set of values. */
KVQ_INLINE void kvq_start_words(uint32_t w[4], const uint16_t *head, int j, const int bits)
{
    uint32_t nib[4];
    for (int i = 0; i < 4; i++)
        nib[i] = kvq_start_nibbles(head + 8 * i);
    if (bits == 4) {
        memcpy(w, nib, sizeof nib);
    } else if (bits == 3) {
        uint32_t low = j ? 0x11111111u : 0x77777777u;
        for (int i = 0; i < 4; i++)
            nib[i] = nib[i] >> 3 * j & low;
        for (int i = 0; i < 3; i++)
            w[i] = nib[i] | (nib[3] >> i & 0x11111111u) << 3;
    } else {
        for (int i = 0; i < 2; i++)
            w[i] = j == 2 ? 0 : kvq_pairs(nib[2 * i] >> 2 * j, nib[2 * i + 1] >> 2 * j);
    }
}

/* Symbols that a value depends on, itself included. */
KVQ_INLINE int kvq_reach(const int bits, const bool trellis)
{
    return trellis ? 1 + kvq_memory(bits) : 1;
}

/* n groups from g on in a half of a block of n_groups: what stands before a group in the chains follows it in memory.
 * Behind the last come the groups of `wrap`, where the first ones appear again, one lane on. */
KVQ_INLINE void kvq_value_groups(const uint8_t **x, const uint8_t *v, const uint8_t *wrap, int g, int n_groups,
                                 const int n, const int bits)
{
    KVQ_UNROLL for (int j = 0; j < n; j++)
    {
        x[j] = g + j < n_groups ? v + (size_t)(g + j) * 64 * bits : wrap + (size_t)(g + j - n_groups) * 64 * bits;
    }
}

#define KVQ_WRAP_BYTES 384 /* of the largest wrap: 256, 384 and 384 bytes at 4, 3 and 2 bits */

/* The AVX-512 level takes scalar codes from the level below: they are a small part of its time. */
void tern_kvq_encode_avx2(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                          int dim, int n, void *scratch);

#endif
