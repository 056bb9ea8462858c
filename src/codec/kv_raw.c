/* Keys and values as they are: a page side is the open tile it was made from, and queries stay in the model's domain.
 * (bf16 rounds them on the way from the tile to the page.) */
#include <string.h>
#include "codec/kv_impl.h"

static bool accepts(int dim, const char **why)
{
    if (dim > 0 && dim <= TERN_KVQ_MAX_DIM && dim % 8 == 0)
        return true;
    *why = dim > TERN_KVQ_MAX_DIM ? "the head size is larger than 512" : "the head size is not a multiple of 8";
    return false;
}

static size_t no_heads(int dim)
{
    (void)dim;
    return 0;
}

static size_t f32_bytes(int dim)
{
    return (size_t)dim * TERN_PAGE * sizeof(float);
}

static size_t f16_bytes(int dim)
{
    return (size_t)dim * TERN_PAGE * sizeof(uint16_t);
}

static bool is_f32(const struct tern_kv_side *side)
{
    return side->codec->bits == 32;
}

static void encode(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile, int pos0,
                   void *scratch)
{
    (void)head;
    (void)pos0;
    (void)scratch;
    TERN_ASSERT(side->raw32 == is_f32(side)); /* the tile is the page: it must have the page's width */
    memcpy(data, tile, side->codec->data_bytes(side->dim));
}

/* An f16 with its lowest three mantissa bits rounded away, to even: eight significant bits, as a bf16 has.  What would
 * round up to infinity becomes the largest finite number; infinities and NaNs stay. */
static uint16_t round_to_8_bits(uint16_t h)
{
    const uint16_t inf = 0x7C00, largest = 0x7BF8;
    uint16_t sign = h & 0x8000, x = h & 0x7FFF;
    if (x >= inf)
        return h;
    x = (uint16_t)((x + 3 + (x >> 3 & 1)) & ~7);
    return (uint16_t)(sign | (x < inf ? x : largest));
}

static void encode_bf16(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile, int pos0,
                        void *scratch)
{
    const uint16_t *from = tile;
    uint16_t *to = (uint16_t *)(void *)data;
    (void)head;
    (void)pos0;
    (void)scratch;
    TERN_ASSERT(!side->raw32);
    for (size_t i = 0; i < (size_t)side->dim * TERN_PAGE; i++)
        to[i] = round_to_8_bits(from[i]);
}

static void prep(const struct tern_kv_side *side, struct tern_kv_query *out, const float *x, int n_q, bool narrow)
{
    (void)narrow;
    memmove(out->x, x, (size_t)n_q * (size_t)side->dim * sizeof *x);
}

static void score(const struct tern_kv_side *side, float *s, const struct tern_kv_query *q, const uint8_t *data,
                  const uint16_t *head, int n_q, const void *next)
{
    (void)head;
    if (is_f32(side))
        tern_k.attn.score_f32(s, q->x, (const float *)(const void *)data, side->dim, n_q);
    else
        tern_k.attn.score_f16(s, q->x, (const uint16_t *)(const void *)data, side->dim, n_q, next);
}

static void accum(const struct tern_kv_side *side, float *o, const float *p, const uint8_t *data, const uint16_t *head,
                  const float *shrink, int n_q, const void *next)
{
    (void)head;
    if (is_f32(side))
        tern_k.attn.accum_f32(o, p, (const float *)(const void *)data, shrink, side->dim, TERN_PAGE, n_q);
    else
        tern_k.attn.accum_f16(o, p, (const uint16_t *)(const void *)data, shrink, side->dim, TERN_PAGE, n_q, next);
}

static void finish(const struct tern_kv_side *side, float *o, int n_q)
{
    (void)side;
    (void)o;
    (void)n_q;
}

static void decode(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head)
{
    (void)head;
    if (is_f32(side))
        memcpy(out, data, f32_bytes(side->dim));
    else
        tern_k.attn.f16_to_f32(out, (const uint16_t *)(const void *)data, (size_t)side->dim * TERN_PAGE);
}

#define FUNCTIONS                                                                                          \
    .raw = true, .accepts = accepts, .head_bytes = no_heads, .prep = prep, .score = score, .accum = accum, \
    .finish = finish, .decode = decode

const struct tern_kv_scheme tern_kv_f32 = {
    .codec = {.name = "f32",
              .about = "32-bit floats, exact",
              .bits = 32,
              .data_bytes = f32_bytes,
              .encode = encode,
              FUNCTIONS},
};

const struct tern_kv_scheme tern_kv_f16 = {
    .codec =
        {.name = "f16", .about = "16-bit floats", .bits = 16, .data_bytes = f16_bytes, .encode = encode, FUNCTIONS},
};

const struct tern_kv_scheme tern_kv_bf16 = {
    .codec = {.name = "bf16",
              .about = "f16 rounded to 8 significant bits: saves nothing, exists to measure the floor of eval kld",
              .bits = 16,
              .data_bytes = f16_bytes,
              .encode = encode_bf16,
              FUNCTIONS},
};
