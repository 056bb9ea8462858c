/* codec/kv_impl.h - what KV schemes share: a scheme is a public codec plus its constants, and everything that schemes
 * on page codes have in common is kv_coded.c.  Adding one: docs/adding-a-kv-scheme.md. */
#ifndef TERN_CODEC_KV_IMPL_H
#define TERN_CODEC_KV_IMPL_H

#include "codec/codec.h"

/* `codec` stands first, so a side's codec pointer is a pointer to its scheme. */
struct tern_kv_scheme {
    struct tern_kv_codec codec;
    struct tern_kvq_table table; /* of schemes on page codes */
    int group;                   /* kv_group.c: dims that share a scale */
    const float *level;          /* kv_group.c: [2^bits], NULL: a code is its number */
    int mantissa, low;           /* kv_group.c: of codes that are small floats: bits, and the lowest exponent */
};

/* One object per row of kv_codecs.def, defined in kv_<scheme>.c. */
#define TERN_KV_CODEC(name) extern const struct tern_kv_scheme tern_kv_##name;
#define TERN_KV_ALIAS(alias, name)
#include "codec/kv_codecs.def"
#undef TERN_KV_CODEC
#undef TERN_KV_ALIAS

/* Not in the registry: keys that lie on its grid already are kept so without loss, others would lose more than by l4.
 */
extern const struct tern_kv_scheme tern_kv_fp4;

/* Schemes on codes: 8, 4, 3 or 2 bits by the kernels of kernel/kvq.h, rotated or not by codec.rotated. */
bool tern_kv_coded_accepts(int dim, const char **why);   /* multiples of 16 */
bool tern_kv_rotated_accepts(int dim, const char **why); /* ... with an odd factor up to 7 */
size_t tern_kv_bytes4(int dim);                          /* data bytes at 4, 3 and 2 bits */
size_t tern_kv_bytes3(int dim);
size_t tern_kv_bytes2(int dim);
size_t tern_kv_coded_head_bytes(int dim);
/* x[64][dim] = what is coded of a tile: its vectors, conditioned and rotated.  x is the beginning of an encoder's
 * scratch; returns what of that is free again: room for a byte per value and TERN_KVQ_SCRATCH. */
uint8_t *tern_kv_coded_vectors(const struct tern_kv_side *side, float *x, const void *tile, int pos0);
void tern_kv_coded_encode(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile, int pos0,
                          void *scratch);
void tern_kv_coded_prep(const struct tern_kv_side *side, struct tern_kv_query *out, const float *x, int n_q,
                        bool narrow);
void tern_kv_coded_score(const struct tern_kv_side *side, float *s, const struct tern_kv_query *q, const uint8_t *data,
                         const uint16_t *head, int n_q, const void *next);
void tern_kv_coded_accum(const struct tern_kv_side *side, float *o, const float *p, const uint8_t *data,
                         const uint16_t *head, const float *shrink, int n_q, const void *next);
void tern_kv_coded_finish(const struct tern_kv_side *side, float *o, int n_q);
void tern_kv_coded_enter(const struct tern_kv_side *side, float *x, int n, int pos0);
void tern_kv_coded_decode(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head);

/* The functions of a scheme on codes; accepts and data_bytes are the scheme's own. */
#define TERN_KV_CODED_FUNCTIONS                                                                         \
    .head_bytes = tern_kv_coded_head_bytes, .encode = tern_kv_coded_encode, .prep = tern_kv_coded_prep, \
    .score = tern_kv_coded_score, .accum = tern_kv_coded_accum, .finish = tern_kv_coded_finish,         \
    .enter = tern_kv_coded_enter, .decode = tern_kv_coded_decode

/* The codec of a rotated scheme of 4, 3 or 2 bits. */
#define TERN_KV_ROTATED(name_, about_, bits_)                                                               \
    {                                                                                                       \
        .name = name_, .about = about_, .bits = bits_, .rotated = true, .accepts = tern_kv_rotated_accepts, \
        .data_bytes = tern_kv_bytes##bits_, TERN_KV_CODED_FUNCTIONS                                         \
    }

#endif
