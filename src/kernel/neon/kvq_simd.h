/* kernel/neon/kvq_simd.h - a page word vector becomes table entries; shared by the NEON page kernels.
 *
 * One word of 16 lanes is four registers, four lanes each ("quarters").  Looking up every byte's low bits yields four
 * codes of each lane ("a step"); the next steps follow after shifts.  Steps come in the order of the prepared query
 * (kernel/kvq.h), so step j of a set meets bytes 4j..4j+3.  Everything here is inlined with constant `bits`, so each
 * kernel is a handful of straight loops. */
#ifndef TERN_NEON_KVQ_SIMD_H
#define TERN_NEON_KVQ_SIMD_H

#include <arm_neon.h>
#include "kernel/neon/kvq_floats.h"
#include "kernel/kvq_impl.h"

/* ---- codes to entries ---- */

/* Tables as bytes, repeated to fill the 16 places that a byte shuffle sees.  The repetition makes the bits above a code
 * harmless, so a nibble mask serves every width. */
struct kvq_tables {
    uint8x16_t a, b, c;
};

/* The first `span` bytes at p, 4, 8 or 16, as often as they fit. */
KVQ_INLINE uint8x16_t kvq_repeat(const int8_t *p, const int span)
{
    uint8_t t[16];
    for (int i = 0; i < 16; i++)
        t[i] = (uint8_t)p[i % span];
    return vld1q_u8(t);
}

/* Values come out as entry + offset: bytes add modulo 256, so the first table carries all of it. */
KVQ_INLINE struct kvq_tables kvq_tables(const struct tern_kvq_table *tab, int offset, const int bits,
                                        const bool trellis)
{
    uint8x16_t a = kvq_repeat(tab->entry, kvq_span_a(bits, trellis));
    return (struct kvq_tables){vaddq_u8(a, vdupq_n_u8((uint8_t)offset)), kvq_repeat(tab->b, kvq_span_b(bits)),
                               kvq_repeat(tab->c, 8)};
}

KVQ_INLINE uint8x16_t kvq_lookup(uint8x16_t table, uint8x16_t codes)
{
    return vqtbl1q_u8(table, vandq_u8(codes, vdupq_n_u8(15)));
}

/* Bits of a where mask is set, of b elsewhere. */
KVQ_INLINE uint8x16_t kvq_select(uint8x16_t a, uint8x16_t b, uint8_t mask)
{
    return vbslq_u8(vdupq_n_u8(mask), a, b);
}

/* Fourth word of a 3-bit set, gathered from the spare bits of the three stored ones.  Bit 3 of its nibbles, which the
 * tables do not heed, is arbitrary. */
KVQ_INLINE uint8x16_t kvq_spare(uint8x16_t a, uint8x16_t b, uint8x16_t c)
{
    return kvq_select(a >> 3, kvq_select(b >> 2, c >> 1, 0x22), 0x11);
}

/* Word w (0..3 for 3 bits) of four lanes: `group` points at the group, plus 16 bytes for each quarter before. */
KVQ_INLINE uint8x16_t kvq_word(const uint8_t *group, int w, const int bits)
{
    if (bits == 3 && w == 3)
        return kvq_spare(vld1q_u8(group), vld1q_u8(group + 64), vld1q_u8(group + 128));
    return vld1q_u8(group + 64 * w);
}

/* Entries of step n of a word; 8-bit codes stand for themselves. */
KVQ_INLINE uint8x16_t kvq_step(uint8x16_t word, int n, uint8x16_t table, const int bits)
{
    if (bits == 8)
        return word;
    return kvq_lookup(table, word >> (bits == 2 ? 2 : 4) * n);
}

/* Step n of key word v; p is the word whose bytes stand before v's bytes in the chains. */
KVQ_INLINE uint8x16_t kvq_key_step(uint8x16_t v, uint8x16_t p, int n, const struct kvq_tables *t, const int bits,
                                   const bool trellis)
{
    if (!trellis)
        return kvq_step(v, n, t->a, bits);
    uint8x16_t v4 = v >> 4;
    if (bits == 2) { /* nibbles of a byte's four symbols, each with the one before; bits 7 and 6 come first */
        uint8x16_t first = vsliq_n_u8(v >> 6, p, 2);
        uint8x16_t now[] = {v, v >> 2, v4, first}, before[] = {v4, first, p, p >> 2};
        return vaddq_u8(kvq_lookup(t->a, now[n]), kvq_lookup(t->b, before[n]));
    }
    uint8x16_t e = vaddq_u8(kvq_lookup(t->a, n ? v4 : v), kvq_lookup(t->b, n ? v : p >> 4));
    return bits == 4 ? e : vaddq_u8(e, kvq_lookup(t->c, n ? p >> 4 : p));
}

/* Step n of value words x[0]; x[1], x[2], x[3] are the words before it in the chains. */
KVQ_INLINE uint8x16_t kvq_value_step(const uint8x16_t x[4], int n, const struct kvq_tables *t, const int bits,
                                     const bool trellis)
{
    if (!trellis)
        return kvq_step(x[0], n, t->a, bits);
    if (bits == 2) {
        uint8x16_t now = n % 2 ? kvq_select(x[0] >> 2, x[1], 0x33) : kvq_select(x[0], x[1] << 2, 0x33);
        uint8x16_t before = n % 2 ? kvq_select(x[2] >> 2, x[3], 0x33) : kvq_select(x[2], x[3] << 2, 0x33);
        return vaddq_u8(kvq_step(now, n / 2, t->a, 4), kvq_step(before, n / 2, t->b, 4));
    }
    uint8x16_t e = vaddq_u8(kvq_step(x[0], n, t->a, 4), kvq_step(x[1], n, t->b, 4));
    return bits == 4 ? e : vaddq_u8(e, kvq_step(x[2], n, t->c, 4));
}

/* What stands before the last key word of a block, for n quarters: the first word one byte on, behind the start. */
KVQ_INLINE void kvq_key_wrap(uint8x16_t *wrap, const uint8_t *first, const uint16_t *head, const int n, const int bits)
{
    KVQ_UNROLL for (int h = 0; h < n; h++)
    {
        uint32x4_t s = vandq_u32(vmovl_u16(vld1_u16(head + 4 * h)), vdupq_n_u32(15));
        if (bits == 4)
            s = vshlq_n_u32(s, 4);
        else if (bits == 3) /* s_{-1} in the high nibble, where bit 3 does no harm, s_{-2} in the low one */
            s = vorrq_u32(vshlq_n_u32(s, 4), vshrq_n_u32(s, 3));
        uint32x4_t word = vreinterpretq_u32_u8(vld1q_u8(first + 16 * h));
        wrap[h] = vreinterpretq_u8_u32(vsliq_n_u32(s, word, 8));
    }
}

/* What stands before the last word of the whole sets, behind which 16 dims may follow, for n quarters. */
KVQ_INLINE void kvq_key_tail(uint8x16_t *tail, const struct kvq_keys *k, const uint16_t *head, const int n,
                             const int bits)
{
    if (!k->left) {
        kvq_key_wrap(tail, k->first, head, n, bits);
        return;
    }
    KVQ_UNROLL for (int h = 0; h < n; h++) tail[h] = vld1q_u8(k->half + 16 * h);
}

/* A set of 16 tokens, or their part of a shared one. */
struct kvq_key_run {
    const uint8_t *set;     /* plus 16 bytes for each quarter before */
    int first;              /* word */
    const uint8x16_t *tail; /* what stands before the last set, by quarter */
    bool last;              /* this is it */
};

/* What stands before word w of n: chains run against memory order, so it is the word that follows. */
KVQ_INLINE uint8x16_t kvq_key_before(const struct kvq_key_run *r, int w, int h, const int n, const int bits)
{
    const uint8_t *set = r->set + 16 * h;
    if (w + 1 < n)
        return kvq_word(set, r->first + w + 1, bits);
    return r->last ? r->tail[h] : vld1q_u8(set + 128 * bits); /* a set of both groups has 128 * bits bytes */
}

/* Word w of n_words, for n quarters, and what stands before it. */
KVQ_INLINE void kvq_key_words(uint8x16_t *v, uint8x16_t *p, const struct kvq_key_run *r, int w, const int n_words,
                              const int n, const int bits, const bool trellis)
{
    KVQ_UNROLL for (int h = 0; h < n; h++)
    {
        v[h] = kvq_word(r->set + 16 * h, r->first + w, bits);
        p[h] = trellis ? kvq_key_before(r, w, h, n_words, bits) : v[h];
    }
}

/* Word w of the groups x, by quarter and then by group. */
KVQ_INLINE void kvq_value_words(uint8x16_t v[4][4], const uint8_t *const x[4], int w, const int bits,
                                const bool trellis)
{
    KVQ_UNROLL for (int h = 0; h < 4; h++)
    {
        KVQ_UNROLL for (int j = 0; j < kvq_reach(bits, trellis); j++) v[h][j] = kvq_word(x[j] + 16 * h, w, bits);
    }
}

KVQ_INLINE void kvq_value_steps(uint8x16_t e[4], uint8x16_t v[4][4], int n, const struct kvq_tables *t, const int bits,
                                const bool trellis)
{
    KVQ_UNROLL for (int h = 0; h < 4; h++) e[h] = kvq_value_step(v[h], n, t, bits, trellis);
}

/* The groups that follow the last one of a block of values in memory, as far as its chains reach: the block's own
 * groups one lane on, with the start in lane 0.  x: room for KVQ_WRAP_BYTES; v: a half of the block. */
KVQ_INLINE void kvq_value_wrap(uint8_t *x, const uint8_t *v, const uint16_t *head, int n_groups, const int bits)
{
    for (int j = 0; j < kvq_memory(bits); j++) {
        const uint8_t *from = j < n_groups ? v + (size_t)j * 64 * bits : x + (size_t)(j - n_groups) * 64 * bits;
        uint32_t start[4];
        kvq_start_words(start, head, j, bits);
        for (int w = 0; w < bits; w++) {
            uint8_t *to = x + (size_t)(j * bits + w) * 64;
            memcpy(to, &start[w], 4);
            memcpy(to + 4, from + 64 * w, 60);
        }
    }
}

/* ---- the rest ---- */

/* Part i of what the caller reads next, in parts of `lines` cache lines; avx2/kvq_simd.h says why. */
KVQ_INLINE void kvq_prefetch(const void *next, size_t i, const int lines)
{
    if (!next)
        return;
    KVQ_UNROLL for (int j = 0; j < lines; j++)
    {
        __builtin_prefetch((const char *)next + (i * lines + j) * 64);
    }
}

#endif
