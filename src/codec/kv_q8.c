/* q8: int8 with one scale per token and 128 dims, not rotated.
 *
 * The scale is the block's largest magnitude, rounded up to the header's grid so that nothing clips; the error of an
 * element is at most half a step: amax * (1 + 2^-7) / 254 (kernel/kvq.h encode has the exact bound). */
#include "codec/kv_impl.h"

static size_t data_bytes(int dim)
{
    return (size_t)dim * TERN_PAGE;
}

const struct tern_kv_scheme tern_kv_q8 = {
    .codec = {.name = "q8",
              .about = "8-bit integers, scale per token and 128 dims",
              .bits = 8,
              .accepts = tern_kv_coded_accepts,
              .data_bytes = data_bytes,
              TERN_KV_CODED_FUNCTIONS},
    .table = {.bits = 8, .unit = 1.0f / 127.0f},
};
