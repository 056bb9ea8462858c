/* avx512/kvq_simd.h - a page word vector becomes table entries; shared by the AVX-512 page kernels.
 *
 * One zmm is one word of 16 lanes.  vpermb looks up all 64 bytes by their low six bits; the table repeats, so the bits
 * above a code need no masking.  Steps come in the order of the prepared query (kernel/kvq.h). */
#ifndef TERN_AVX512_KVQ_SIMD_H
#define TERN_AVX512_KVQ_SIMD_H

#include <immintrin.h>
#include "kernel/kvq_impl.h"

KVQ_INLINE __m512i kvq_load(const void *p)
{
    return _mm512_load_si512(p);
}

/* Four bytes from anywhere into every lane, as one load. */
KVQ_INLINE __m512i kvq_broadcast4(const void *p)
{
    float four;
    memcpy(&four, p, 4);
    return _mm512_castps_si512(_mm512_set1_ps(four));
}

/* acc + the four products of unsigned bytes of u with signed bytes from memory, in every lane.  Left alone, gcc loads
 * the four once for several sums, but a broadcast as an operand costs nothing and one in a register does. */
KVQ_INLINE __m512i kvq_dot4(__m512i acc, __m512i u, const int8_t *four)
{
    typedef int32_t __attribute__((may_alias)) word;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(u), "m"(*(const word *)(const void *)four));
    return acc;
}

/* The same, both in registers; an asm because gcc writes arrays of sums to the stack in every round. */
KVQ_INLINE __m512i kvq_dot(__m512i acc, __m512i u, __m512i s)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u), "v"(s));
    return acc;
}

/* Tables as bytes, repeated to 64. */
struct kvq_tables {
    __m512i a, b, c;
};

/* The first `span` bytes at p, 4, 8 or 16, as often as they fit. */
KVQ_INLINE __m512i kvq_repeat(const int8_t *p, const int span)
{
    int64_t eight;
    if (span == 16)
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    if (span == 4)
        return kvq_broadcast4(p);
    memcpy(&eight, p, 8);
    return _mm512_set1_epi64(eight);
}

/* Values come out as entry + offset: bytes add modulo 256, so the first table carries all of it. */
KVQ_INLINE struct kvq_tables kvq_tables(const struct tern_kvq_table *tab, int offset, const int bits,
                                        const bool trellis)
{
    __m512i a = kvq_repeat(tab->entry, kvq_span_a(bits, trellis));
    return (struct kvq_tables){_mm512_add_epi8(a, _mm512_set1_epi8((char)offset)), kvq_repeat(tab->b, kvq_span_b(bits)),
                               kvq_repeat(tab->c, 8)};
}

/* Bits of a where mask is set, of b elsewhere. */
KVQ_INLINE __m512i kvq_select(__m512i a, __m512i b, int8_t mask)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(mask), 0xE4);
}

/* Word w (0..3 for 3 bits, where the last is gathered from the spare bits of the three stored ones; bit 3 of its
 * nibbles is arbitrary). */
KVQ_INLINE __m512i kvq_word(const uint8_t *group, int w, const int bits)
{
    if (bits != 3 || w != 3)
        return kvq_load(group + 64 * w);
    __m512i a = _mm512_srli_epi16(kvq_load(group), 3), b = _mm512_srli_epi16(kvq_load(group + 64), 2);
    return kvq_select(kvq_select(a, b, 0x11), _mm512_srli_epi16(kvq_load(group + 128), 1), 0x33);
}

/* Part i of what the caller reads next, in parts of `lines` cache lines.  Codes come from DRAM in pieces of 1 to 8 KB
 * that lie far apart, too short for the hardware to see streams; so while one piece is worked on, a whole
 * one further on is asked for, into L2: it waits for more lines at a time than L1 can (decision 043).  In the order of
 * memory, whatever order the codes are used in: then the hardware joins in. */
KVQ_INLINE void kvq_prefetch(const void *next, size_t i, const int lines)
{
    if (!next)
        return;
    KVQ_UNROLL for (int j = 0; j < lines; j++)
    {
        _mm_prefetch((const char *)next + (i * lines + j) * 64, _MM_HINT_T1);
    }
}

KVQ_INLINE __m512i kvq_lookup(__m512i table, __m512i codes)
{
    return _mm512_permutexvar_epi8(codes, table);
}

/* Entries of step n of a word; 8-bit codes stand for themselves. */
KVQ_INLINE __m512i kvq_step(__m512i word, int n, __m512i table, const int bits)
{
    if (bits == 8)
        return word;
    return kvq_lookup(table, n ? _mm512_srli_epi16(word, (unsigned)((bits == 2 ? 2 : 4) * n)) : word);
}

/* Step n of key word v; p is the word whose bytes stand before v's bytes in the chains. */
KVQ_INLINE __m512i kvq_key_step(__m512i v, __m512i p, int n, const struct kvq_tables *t, const int bits,
                                const bool trellis)
{
    if (!trellis)
        return kvq_step(v, n, t->a, bits);
    __m512i v4 = _mm512_srli_epi16(v, 4), p4 = _mm512_srli_epi16(p, 4);
    if (bits == 2) { /* nibbles of a byte's four symbols, each with the one before; bits 7 and 6 come first */
        __m512i v2 = _mm512_srli_epi16(v, 2), p2 = _mm512_srli_epi16(p, 2);
        __m512i first = kvq_select(_mm512_srli_epi16(v, 6), _mm512_slli_epi16(p, 2), 3);
        __m512i now[] = {v, v2, v4, first}, before[] = {v4, first, p, p2};
        return _mm512_add_epi8(kvq_lookup(t->a, now[n]), kvq_lookup(t->b, before[n]));
    }
    __m512i e = _mm512_add_epi8(kvq_lookup(t->a, n ? v4 : v), kvq_lookup(t->b, n ? v : p4));
    return bits == 4 ? e : _mm512_add_epi8(e, kvq_lookup(t->c, n ? p4 : p));
}

/* Step n of value words x[0]; x[1], x[2], x[3] are the words before it in the chains. */
KVQ_INLINE __m512i kvq_value_step(const __m512i *x, int n, const struct kvq_tables *t, const int bits,
                                  const bool trellis)
{
    if (!trellis)
        return kvq_step(x[0], n, t->a, bits);
    if (bits == 2) {
        __m512i now = n % 2 ? kvq_select(_mm512_srli_epi16(x[0], 2), x[1], 0x33)
                            : kvq_select(x[0], _mm512_slli_epi16(x[1], 2), 0x33);
        __m512i before = n % 2 ? kvq_select(_mm512_srli_epi16(x[2], 2), x[3], 0x33)
                               : kvq_select(x[2], _mm512_slli_epi16(x[3], 2), 0x33);
        return _mm512_add_epi8(kvq_step(now, n / 2, t->a, 4), kvq_step(before, n / 2, t->b, 4));
    }
    __m512i e = _mm512_add_epi8(kvq_step(x[0], n, t->a, 4), kvq_step(x[1], n, t->b, 4));
    return bits == 4 ? e : _mm512_add_epi8(e, kvq_step(x[2], n, t->c, 4));
}

/* What stands before the last key word of a block, for 16 tokens: the first word one byte on, behind the start. */
KVQ_INLINE __m512i kvq_key_wrap(const uint8_t *first, const uint16_t *head, const int bits)
{
    __m512i s = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)head));
    s = _mm512_and_si512(s, _mm512_set1_epi32(15));
    if (bits == 4)
        s = _mm512_slli_epi32(s, 4);
    else if (bits == 3) /* s_{-1} in the high nibble, where bit 3 does no harm, s_{-2} in the low one */
        s = _mm512_or_si512(_mm512_slli_epi32(s, 4), _mm512_srli_epi32(s, 3));
    return _mm512_or_si512(_mm512_slli_epi32(kvq_load(first), 8), s);
}

/* What stands before the last word of the whole sets, behind which 16 dims may follow. */
KVQ_INLINE __m512i kvq_key_tail(const struct kvq_keys *k, const uint16_t *head, const int bits)
{
    return k->left ? kvq_load(k->half) : kvq_key_wrap(k->first, head, bits);
}

/* What stands before word w of n from `first` on of a set: chains run against memory order, so it is the word that
 * follows; behind the last set, `tail`. */
KVQ_INLINE __m512i kvq_key_before(const uint8_t *set, int first, int w, const int n, __m512i tail, bool last,
                                  const int bits)
{
    if (w + 1 < n)
        return kvq_word(set, first + w + 1, bits);
    return last ? tail : kvq_load(set + 128 * bits); /* a set of both groups has 128 * bits bytes */
}

/* Word w of the groups x. */
KVQ_INLINE void kvq_value_words(__m512i v[4], const uint8_t *const x[4], int w, const int bits, const bool trellis)
{
    KVQ_UNROLL for (int j = 0; j < kvq_reach(bits, trellis); j++) v[j] = kvq_word(x[j], w, bits);
}

/* The groups that follow the last one of a block of values in memory, as far as its chains reach: the block's own
 * groups one lane on, with the start in lane 0.  x: room for KVQ_WRAP_BYTES; v: a half of the block. */
KVQ_INLINE void kvq_value_wrap(uint8_t *x, const uint8_t *v, const uint16_t *head, int n_groups, const int bits)
{
    KVQ_UNROLL for (int j = 0; j < kvq_memory(bits); j++)
    {
        const uint8_t *from = j < n_groups ? v + (size_t)j * 64 * bits : x + (size_t)(j - n_groups) * 64 * bits;
        uint32_t start[4];
        kvq_start_words(start, head, j, bits);
        KVQ_UNROLL for (int w = 0; w < bits; w++)
        {
            __m512i first = _mm512_set1_epi32((int)start[w]);
            _mm512_store_si512(x + (size_t)(j * bits + w) * 64,
                               _mm512_alignr_epi32(kvq_load(from + 64 * w), first, 15));
        }
    }
}

/* Scales of sixteen headers. */
KVQ_INLINE __m512 kvq_scales(const uint16_t *head)
{
    __m256i h = _mm256_load_si256((const __m256i *)head);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_srli_epi16(h, 4), 3));
}

void tern_kvq_score_avx512(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_accum_avx512(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_encode_trellis_avx512(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                    int key, int dim, int n, void *scratch);

#endif
