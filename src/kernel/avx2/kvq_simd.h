/* avx2/kvq_simd.h - a page word vector becomes table entries; shared by the AVX2 page kernels.
 *
 * Two ymm hold one word of 16 lanes.  Looking up every byte's low bits yields four codes of each lane ("a step"); the
 * next steps follow after shifts.  Steps come in the order of the prepared query (kernel/kvq.h), so step j of a set
 * meets bytes 4j..4j+3.  Everything here is inlined with constant `bits`, so each kernel is a handful of straight
 * loops. */
#ifndef TERN_AVX2_KVQ_SIMD_H
#define TERN_AVX2_KVQ_SIMD_H

#include <immintrin.h>
#include "kernel/avx2/kvq_floats.h"
#include "kernel/kvq_impl.h"

/* Places of 16 items in the order of steps (kernel/kvq.h). */
KVQ_INLINE __m128i kvq_step_order(const int bits)
{
    return bits == 8   ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
           : bits == 2 ? _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
                       : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
}

/* Four bytes from anywhere into every lane, as one load: from an integer gcc would go through a general register. */
KVQ_INLINE __m256i kvq_broadcast4(const void *p)
{
    float four;
    memcpy(&four, p, 4);
    return _mm256_castps_si256(_mm256_set1_ps(four));
}

/* acc + x, and the compiler must leave it at that: gcc would collect the terms of an unrolled chain into a tree and
 * spill all of them. */
KVQ_INLINE void kvq_add(__m256i *acc, __m256i x)
{
    *acc = _mm256_add_epi32(*acc, x);
    __asm__("" : "+x"(*acc));
}

/* Tables as bytes, repeated to fill the 16 places that a byte shuffle sees.  The repetition makes the bits above a code
 * harmless, so a nibble mask serves every width. */
struct kvq_tables {
    __m256i a, b, c;
};

/* The first `span` bytes at p, 4, 8 or 16, as often as they fit. */
KVQ_INLINE __m256i kvq_repeat(const int8_t *p, const int span)
{
    int64_t eight;
    if (span == 16)
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    if (span == 4)
        return kvq_broadcast4(p);
    memcpy(&eight, p, 8);
    return _mm256_set1_epi64x(eight);
}

/* Values come out as entry + offset: bytes add modulo 256, so the first table carries all of it. */
KVQ_INLINE struct kvq_tables kvq_tables(const struct tern_kvq_table *tab, int offset, const int bits,
                                        const bool trellis)
{
    __m256i a = kvq_repeat(tab->entry, kvq_span_a(bits, trellis));
    return (struct kvq_tables){_mm256_add_epi8(a, _mm256_set1_epi8((char)offset)), kvq_repeat(tab->b, kvq_span_b(bits)),
                               kvq_repeat(tab->c, 8)};
}

KVQ_INLINE __m256i kvq_lookup(__m256i table, __m256i codes)
{
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}

/* Fourth word of a 3-bit set, gathered from the spare bits of the three stored ones. */
KVQ_INLINE __m256i kvq_spare(__m256i a, __m256i b, __m256i c)
{
    a = _mm256_and_si256(_mm256_srli_epi16(a, 3), _mm256_set1_epi8(0x11));
    b = _mm256_and_si256(_mm256_srli_epi16(b, 2), _mm256_set1_epi8(0x22));
    c = _mm256_and_si256(_mm256_srli_epi16(c, 1), _mm256_set1_epi8(0x44));
    return _mm256_or_si256(a, _mm256_or_si256(b, c));
}

/* Word w (0..3 for 3 bits) of 8 lanes: `group` points at the group, plus 32 bytes for lanes 8..15. */
KVQ_INLINE __m256i kvq_word(const uint8_t *group, int w, const int bits)
{
    if (bits == 3 && w == 3)
        return kvq_spare(kvq_load(group), kvq_load(group + 64), kvq_load(group + 128));
    return kvq_load(group + 64 * w);
}

/* Part i of what the caller reads next, in parts of `lines` cache lines.  Codes come from DRAM in pieces of 1 to 8 KB
 * that lie far apart, too short for the hardware to see streams; so while one piece is worked on, all of the next one
 * is asked for.  In the order of memory, whatever order the codes are used in: then the hardware joins in. */
KVQ_INLINE void kvq_prefetch(const void *next, size_t i, const int lines)
{
    if (!next)
        return;
    KVQ_UNROLL for (int j = 0; j < lines; j++)
    {
        _mm_prefetch((const char *)next + (i * lines + j) * 64, _MM_HINT_T0);
    }
}

/* Bits of a where mask is set, of b elsewhere. */
KVQ_INLINE __m256i kvq_select(__m256i a, __m256i b, int8_t mask)
{
    __m256i m = _mm256_set1_epi8(mask);
    return _mm256_or_si256(_mm256_and_si256(m, a), _mm256_andnot_si256(m, b));
}

/* Entries of step n of a word; 8-bit codes stand for themselves. */
KVQ_INLINE __m256i kvq_step(__m256i word, int n, __m256i table, const int bits)
{
    if (bits == 8)
        return word;
    return kvq_lookup(table, n ? _mm256_srli_epi16(word, (bits == 2 ? 2 : 4) * n) : word);
}

/* Step n of key word v; p is the word whose bytes stand before v's bytes in the chains. */
KVQ_INLINE __m256i kvq_key_step(__m256i v, __m256i p, int n, const struct kvq_tables *t, const int bits,
                                const bool trellis)
{
    if (!trellis)
        return kvq_step(v, n, t->a, bits);
    __m256i v4 = _mm256_srli_epi16(v, 4), p4 = _mm256_srli_epi16(p, 4);
    if (bits == 2) { /* nibbles of a byte's four symbols, each with the one before; bits 7 and 6 come first */
        __m256i v2 = _mm256_srli_epi16(v, 2), p2 = _mm256_srli_epi16(p, 2);
        __m256i first = kvq_select(_mm256_srli_epi16(v, 6), _mm256_slli_epi16(p, 2), 3);
        __m256i now[] = {v, v2, v4, first}, before[] = {v4, first, p, p2};
        return _mm256_add_epi8(kvq_lookup(t->a, now[n]), kvq_lookup(t->b, before[n]));
    }
    __m256i e = _mm256_add_epi8(kvq_lookup(t->a, n ? v4 : v), kvq_lookup(t->b, n ? v : p4));
    return bits == 4 ? e : _mm256_add_epi8(e, kvq_lookup(t->c, n ? p4 : p));
}

/* Step n of value words x[0]; x[1], x[2], x[3] are the words before it in the chains. */
KVQ_INLINE __m256i kvq_value_step(const __m256i x[4], int n, const struct kvq_tables *t, const int bits,
                                  const bool trellis)
{
    if (!trellis)
        return kvq_step(x[0], n, t->a, bits);
    if (bits == 2) {
        __m256i now = n % 2 ? kvq_select(_mm256_srli_epi16(x[0], 2), x[1], 0x33)
                            : kvq_select(x[0], _mm256_slli_epi16(x[1], 2), 0x33);
        __m256i before = n % 2 ? kvq_select(_mm256_srli_epi16(x[2], 2), x[3], 0x33)
                               : kvq_select(x[2], _mm256_slli_epi16(x[3], 2), 0x33);
        return _mm256_add_epi8(kvq_step(now, n / 2, t->a, 4), kvq_step(before, n / 2, t->b, 4));
    }
    __m256i e = _mm256_add_epi8(kvq_step(x[0], n, t->a, 4), kvq_step(x[1], n, t->b, 4));
    return bits == 4 ? e : _mm256_add_epi8(e, kvq_step(x[2], n, t->c, 4));
}

/* What stands before the last key word of a block, for 16 tokens: the first word one byte on, behind the start. */
KVQ_INLINE void kvq_key_wrap(__m256i wrap[2], const uint8_t *first, const uint16_t *head, const int bits)
{
    KVQ_UNROLL for (int i = 0; i < 2; i++)
    {
        __m256i s = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(head + 8 * i)));
        s = _mm256_and_si256(s, _mm256_set1_epi32(15));
        if (bits == 4)
            s = _mm256_slli_epi32(s, 4);
        else if (bits == 3) /* s_{-1} in the high nibble, where bit 3 does no harm, s_{-2} in the low one */
            s = _mm256_or_si256(_mm256_slli_epi32(s, 4), _mm256_srli_epi32(s, 3));
        wrap[i] = _mm256_or_si256(_mm256_slli_epi32(kvq_load(first + 32 * i), 8), s);
    }
}

/* What stands before the last word of the whole sets, behind which 16 dims may follow. */
KVQ_INLINE void kvq_key_tail(__m256i tail[2], const struct kvq_keys *k, const uint16_t *head, const int bits)
{
    if (!k->left) {
        kvq_key_wrap(tail, k->first, head, bits);
        return;
    }
    tail[0] = kvq_load(k->half);
    tail[1] = kvq_load(k->half + 32);
}

/* What stands before word w of n from `first` on of a set: chains run against memory order, so it is the word that
 * follows; behind the last set, `tail`. */
KVQ_INLINE __m256i kvq_key_before(const uint8_t *set, int first, int w, const int n, __m256i tail, bool last,
                                  const int bits)
{
    if (w + 1 < n)
        return kvq_word(set, first + w + 1, bits);
    return last ? tail : kvq_load(set + 128 * bits); /* a set of both groups has 128 * bits bytes */
}

/* Word w of the groups x, at byte `at` of it. */
KVQ_INLINE void kvq_value_words(__m256i v[4], const uint8_t *const x[4], int at, int w, const int bits,
                                const bool trellis)
{
    KVQ_UNROLL for (int j = 0; j < kvq_reach(bits, trellis); j++) v[j] = kvq_word(x[j] + at, w, bits);
}

/* The groups that follow the last one of a block of values in memory, as far as its chains reach: the block's own
 * groups one lane on, with the start in lane 0.  x: room for KVQ_WRAP_BYTES; v: a half of the block. */
KVQ_INLINE void kvq_value_wrap(uint8_t *x, const uint8_t *v, const uint16_t *head, int n_groups, const int bits)
{
    const __m256i turn = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
    KVQ_UNROLL for (int j = 0; j < kvq_memory(bits); j++)
    {
        const uint8_t *from = j < n_groups ? v + (size_t)j * 64 * bits : x + (size_t)(j - n_groups) * 64 * bits;
        uint32_t start[4];
        kvq_start_words(start, head, j, bits);
        KVQ_UNROLL for (int w = 0; w < bits; w++)
        {
            __m256i lo = _mm256_permutevar8x32_epi32(kvq_load(from + 64 * w), turn);
            __m256i hi = _mm256_permutevar8x32_epi32(kvq_load(from + 64 * w + 32), turn);
            __m256i *to = (__m256i *)(x + (size_t)(j * bits + w) * 64);
            _mm256_store_si256(to, _mm256_blend_epi32(lo, _mm256_set1_epi32((int)start[w]), 1));
            _mm256_store_si256(to + 1, _mm256_blend_epi32(hi, lo, 1));
        }
    }
}

#endif
