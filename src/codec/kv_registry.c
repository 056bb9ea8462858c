#include <string.h>
#include "base/rng.h"
#include "codec/kv_impl.h"

const struct tern_kv_codec *const tern_kv_codecs[] = {
#define TERN_KV_CODEC(name) &tern_kv_##name.codec,
#define TERN_KV_ALIAS(alias, name)
#include "codec/kv_codecs.def"
#undef TERN_KV_CODEC
#undef TERN_KV_ALIAS
    NULL,
};

static const struct {
    const char *name;
    const struct tern_kv_codec *codec;
} names[] = {
#define TERN_KV_CODEC(name)        {#name, &tern_kv_##name.codec},
#define TERN_KV_ALIAS(alias, name) {#alias, &tern_kv_##name.codec},
#include "codec/kv_codecs.def"
#undef TERN_KV_CODEC
#undef TERN_KV_ALIAS
};

const struct tern_kv_codec *tern_kv_codec_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) == n && !memcmp(names[i].name, name, n))
            return names[i].codec;
    }
    return NULL;
}

const struct tern_kvq_table *tern_kv_table(const struct tern_kv_codec *c)
{
    return c->encode == tern_kv_coded_encode ? &((const struct tern_kv_scheme *)c)->table : NULL;
}

const struct tern_kv_codec *tern_kv_codec_fp4(void)
{
    return &tern_kv_fp4.codec;
}

/* The constant is part of the page format: saved pages are only readable with the signs they were written with. */
void tern_kv_signs(float *out, int dim, int layer, bool key)
{
    uint64_t bits = 0;
    for (int d = 0; d < dim; d++) {
        if (d % 64 == 0) {
            uint64_t counter = ((uint64_t)(uint32_t)layer << 32) | (uint64_t)(d / 64) << 1 | (uint64_t)key;
            bits = tern_hash64(counter ^ 0x7465726E6B767369u);
        }
        out[d] = bits >> (d % 64) & 1 ? -1.0f : 1.0f;
    }
}
