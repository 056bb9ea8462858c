/* neon/kvq.c - expanding coded pages to floats for prompt rows, and the table of the NEON page kernels. */
#include "kernel/neon/kvq_simd.h"

/* Byte j of all 16 lanes, from the quarters e. */
KVQ_INLINE void lane_bytes(int8x16_t byte[4], const uint8x16_t e[4])
{
    uint8x16_t even0 = vuzp1q_u8(e[0], e[1]), even1 = vuzp1q_u8(e[2], e[3]);
    uint8x16_t odd0 = vuzp2q_u8(e[0], e[1]), odd1 = vuzp2q_u8(e[2], e[3]);
    byte[0] = vreinterpretq_s8_u8(vuzp1q_u8(even0, even1));
    byte[1] = vreinterpretq_s8_u8(vuzp1q_u8(odd0, odd1));
    byte[2] = vreinterpretq_s8_u8(vuzp2q_u8(even0, even1));
    byte[3] = vreinterpretq_s8_u8(vuzp2q_u8(odd0, odd1));
}

/* 16 entries times their factors. */
KVQ_INLINE void store_products(float *to, int8x16_t entries, const float32x4_t factor[4])
{
    float32x4_t f[4];
    kvq_floats(f, entries);
    KVQ_UNROLL for (int h = 0; h < 4; h++) vst1q_f32(to + 4 * h, vmulq_f32(factor[h], f[h]));
}

/* n words of 16 tokens; row: out's row of the first dim. */
KVQ_INLINE void decode_run(float *row, const struct kvq_key_run *r, const int n_words, const float32x4_t fu[4],
                           const struct kvq_tables *t, const int bits, const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        uint8x16_t v[4], before[4], e[4];
        kvq_key_words(v, before, r, w, n_words, 4, bits, trellis);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            int8x16_t byte[4];
            KVQ_UNROLL for (int h = 0; h < 4; h++) e[h] = kvq_key_step(v[h], before[h], n, t, bits, trellis);
            lane_bytes(byte, e);
            KVQ_UNROLL for (int j = 0; j < 4; j++) store_products(row + ((4 * w + j) * per_byte + n) * 64, byte[j], fu);
        }
    }
}

KVQ_INLINE void decode_k_bits(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    for (int t = 0; t < 64; t += 16) {
        const uint8_t *half = k + (size_t)(t / 32) * dim * 4 * bits;
        for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
            const uint16_t *head_at = head + d0 / TERN_KVQ_BLOCK * 64 + t;
            const struct kvq_keys keys = kvq_keys(half, t / 16 % 2, d0, dim, bits);
            float *row = out + (size_t)d0 * 64 + t;
            float32x4_t fu[4];
            uint8x16_t tail[4];
            KVQ_UNROLL for (int h = 0; h < 4; h++) fu[h] = vmulq_n_f32(kvq_scales(head_at + 4 * h), tab->unit);
            kvq_key_tail(tail, &keys, head_at, 4, bits);
            for (int d = 0; d < keys.dims; d += 32) {
                const struct kvq_key_run r = {keys.sets + (size_t)d * 4 * bits, 0, tail, d + 32 == keys.dims};
                decode_run(row + (size_t)d * 64, &r, kvq_words(bits), fu, &tables, bits, trellis);
            }
            if (keys.left) {
                const struct kvq_key_run r = {keys.shared, keys.word, tail, true};
                kvq_key_wrap(tail, keys.first, head_at, 4, bits);
                decode_run(row + (size_t)keys.dims * 64, &r, kvq_words(bits) / 2, fu, &tables, bits, trellis);
            }
        }
    }
}

/* 16 dims of 32 tokens; row: out's first token, fu: its factors. */
KVQ_INLINE void decode_group(float *row, const uint8_t *const x[4], const float *fu, const struct kvq_tables *t,
                             int dim, const int bits, const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        uint8x16_t v[4][4], e[4];
        kvq_value_words(v, x, w, bits, trellis);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            int8x16_t byte[4];
            kvq_value_steps(e, v, n, t, bits, trellis);
            lane_bytes(byte, e);
            KVQ_UNROLL for (int j = 0; j < 4; j++)
            {
                int token = (4 * w + j) * per_byte + n;
                float32x4_t f = vdupq_n_f32(fu[token]), factor[4] = {f, f, f, f};
                store_products(row + (size_t)token * dim, byte[j], factor);
            }
        }
    }
}

KVQ_INLINE void decode_v_bits(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
        const uint16_t *hb = head + d0 / TERN_KVQ_BLOCK * 64;
        for (int half = 0; half < 2; half++) {
            const uint8_t *block = v + ((size_t)half * dim + d0) * 4 * bits, *x[4];
            const int n_groups = kvq_block_dims(dim, d0) / 16;
            float fu[32];
            uint8_t wrap[KVQ_WRAP_BYTES];
            for (int t = 0; t < 32; t += 4)
                vst1q_f32(fu + t, vmulq_n_f32(kvq_scales(hb + 32 * half + t), tab->unit));
            if (trellis)
                kvq_value_wrap(wrap, block, hb + 32 * half, n_groups, bits);
            for (int g = 0; g < n_groups; g++) {
                kvq_value_groups(x, block, wrap, g, n_groups, kvq_reach(bits, trellis), bits);
                decode_group(out + (size_t)half * 32 * dim + d0 + 16 * g, x, fu, &tables, dim, bits, trellis);
            }
        }
    }
}

static void decode_k(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    KVQ_BY_CODE(tab, decode_k_bits, out, k, head, tab, dim);
}

static void decode_v(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    KVQ_BY_CODE(tab, decode_v_bits, out, v, head, tab, dim);
}

void tern_kvq_init_neon(struct tern_kvq_kernels *k)
{
    k->rotate = tern_kvq_rotate_neon;
    k->prep = tern_kvq_prep_neon;
    k->score = tern_kvq_score_neon;
    k->accum = tern_kvq_accum_neon;
    k->decode_k = decode_k;
    k->decode_v = decode_v;
    k->encode = tern_kvq_encode_neon;
    k->pack_k = tern_kvq_pack_k_neon;
    k->pack_v = tern_kvq_pack_v_neon;
}
