/* What prompts that begin alike have in common, as a text. */
#include <openssl/sha.h>
#include <stdio.h>

#include "server/server_impl.h"
#include "tern/cache.h"

#define MOST 256 /* tokens: what comes later is no reason to go to another server */

void tern_prefix_id(const tern_tokens *ids, char out[TERN_PREFIX_ID])
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    const size_t n = ids->len < TERN_CACHE_PAGE ? ids->len
                     : ids->len < MOST          ? ids->len / TERN_CACHE_PAGE * TERN_CACHE_PAGE
                                                : MOST;
    unsigned char bytes[MOST * 4];
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 4; k++) /* the same on every machine */
            bytes[4 * i + k] = (unsigned char)((uint32_t)ids->p[i] >> 8 * k);
    out[0] = 0;
    if (!SHA256(bytes, 4 * n, digest)) {
        tern_json_lack();
        return;
    }
    for (size_t i = 0; i < (TERN_PREFIX_ID - 1) / 2; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
