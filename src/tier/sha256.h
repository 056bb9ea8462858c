/* tier/sha256.h - SHA-256 (FIPS 180-4), for keys that nobody may be able to make collide.
 *
 * Own code: who links libtern needs no OpenSSL, and keys are short.  Thread: any, one per state. */
#ifndef TERN_TIER_SHA256_H
#define TERN_TIER_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define TERN_SHA256 32 /* bytes */

struct tern_sha256 {
    uint32_t h[8];
    uint64_t n; /* bytes so far */
    uint8_t block[64];
};

void tern_sha256_init(struct tern_sha256 *s);
void tern_sha256_add(struct tern_sha256 *s, const void *data, size_t n);
/* Leaves s as it is, so that more can be added. */
void tern_sha256_get(const struct tern_sha256 *s, uint8_t out[TERN_SHA256]);

#endif
