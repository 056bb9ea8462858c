/* Records: their keys, their names, and whether they are what they should be. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "tier/tier.h"

#define ENDIAN 0x01020304u

/* ---- keys -------------------------------------------------------------------------------------------------------- */

void tern_origin_key(const struct tern_origin *o, struct tern_key *out)
{
    struct tern_sha256 s;
    tern_sha256_init(&s);
    tern_sha256_add(&s, TERN_RECORD_MAGIC, 8);
    tern_sha256_add(&s, &(uint32_t){TERN_RECORD_VERSION}, sizeof(uint32_t));
    tern_sha256_add(&s, o, offsetof(struct tern_origin, kv));
    tern_sha256_get(&s, out->b);
}

static void key(const struct tern_key *parent, const int32_t *tokens, int n, uint8_t kind, struct tern_key *out)
{
    struct tern_sha256 s;
    tern_sha256_init(&s);
    tern_sha256_add(&s, parent, sizeof *parent);
    tern_sha256_add(&s, tokens, (size_t)n * sizeof *tokens);
    tern_sha256_add(&s, &kind, 1);
    tern_sha256_get(&s, out->b);
}

void tern_page_key(const struct tern_key *parent, const int32_t *tokens, struct tern_key *out)
{
    key(parent, tokens, TERN_TIER_TOKENS, TERN_RECORD_PAGE, out);
}

void tern_end_key(const struct tern_key *parent, const int32_t *tokens, int n, enum tern_record_kind kind,
                  struct tern_key *out)
{
    key(parent, tokens, n, (uint8_t)kind, out);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const char *const suffix[] = {"", ".page", ".state", ".end"};

void tern_record_name_text(const struct tern_record_name *n, char out[TERN_RECORD_NAME])
{
    char *p = out;
    for (int i = 0; i < TERN_SHA256; i++)
        p += snprintf(p, 3, "%02x", n->key.b[i]);
    (void)snprintf(p, TERN_RECORD_NAME - 2 * TERN_SHA256, "-%u-%u%s", n->index, n->n_tokens, suffix[n->kind]);
}

bool tern_record_name_parse(struct tern_record_name *out, const char *text)
{
    unsigned index, n;
    char back[TERN_RECORD_NAME];
    *out = (struct tern_record_name){0};
    for (int i = 0; i < TERN_SHA256; i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) // NOLINT(cert-err34-c)
            return false;
        out->key.b[i] = (uint8_t)byte;
        if (!text[2 * i + 1])
            return false;
    }
    const char *rest = text + 2 * TERN_SHA256;
    if (sscanf(rest, "-%9u-%2u", &index, &n) != 2) // NOLINT(cert-err34-c)
        return false;
    out->index = index;
    out->n_tokens = (uint8_t)n;
    for (out->kind = TERN_RECORD_PAGE; out->kind <= TERN_RECORD_END; out->kind++) {
        tern_record_name_text(out, back);
        if (strcmp(back, text) == 0)
            return true;
    }
    return false;
}

struct tern_record_name tern_record_name_of(const struct tern_record *h)
{
    return (struct tern_record_name){h->key, h->index, (uint8_t)h->kind, (uint8_t)h->n_tokens};
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

size_t tern_record_bytes(const struct tern_record *h)
{
    size_t n = sizeof *h;
    for (int i = 0; i < TERN_RECORD_PARTS; i++)
        if (!tern_add(n, h->part_bytes[i], &n))
            return 0;
    return n;
}

void tern_record_seal(void *record)
{
    struct tern_record *h = record;
    const uint8_t *p = (const uint8_t *)record + sizeof *h;
    memcpy(h->magic, TERN_RECORD_MAGIC, sizeof h->magic);
    h->version = TERN_RECORD_VERSION;
    h->endian = ENDIAN;
    for (uint32_t i = 0; i < TERN_RECORD_PARTS; i++) {
        h->part_hash[i] = i < h->n_parts ? XXH3_64bits(p, h->part_bytes[i]) : 0;
        p += h->part_bytes[i];
    }
    h->hash = XXH3_64bits(h, offsetof(struct tern_record, hash));
}

int tern_origin_check(const struct tern_origin *have, const struct tern_origin *want, tern_error *err)
{
    if (have->weights != want->weights)
        return tern_err_set(err, TERN_EMISMATCH, "was computed with other weights");
    if (have->layout != want->layout)
        return tern_err_set(err, TERN_EMISMATCH, "was computed with --kv %.127s, here it is --kv %.127s", have->kv,
                            want->kv);
    if (have->rope != want->rope)
        return tern_err_set(err, TERN_EMISMATCH, "was computed with another scaling of the rotary embedding");
    if (memcmp(have->arithmetic, want->arithmetic, sizeof have->arithmetic) != 0)
        return tern_err_set(err, TERN_EMISMATCH,
                            "was computed in the arithmetic \"%.31s\", here prompts are in \"%.31s\"", have->arithmetic,
                            want->arithmetic);
    if (memcmp(have->version, want->version, sizeof have->version) != 0)
        return tern_err_set(err, TERN_EMISMATCH, "was computed by version %.15s, this is %.15s", have->version,
                            want->version);
    return 0;
}

static int check_head(const struct tern_record *h, size_t n, tern_error *err)
{
    if (n < sizeof *h)
        return tern_err_set(err, TERN_EFORMAT, "ends after %zu bytes, inside the head of a record", n);
    if (memcmp(h->magic, TERN_RECORD_MAGIC, sizeof h->magic) != 0)
        return tern_err_set(err, TERN_EFORMAT, "is no record (wrong magic at byte 0)");
    if (h->endian != ENDIAN)
        return tern_err_set(err, TERN_EUNSUPPORTED, "was written on a machine of another byte order (byte 12)");
    if (h->version != TERN_RECORD_VERSION)
        return tern_err_set(err, TERN_EUNSUPPORTED, "has version %u of the format at byte 8, this program reads %d",
                            h->version, TERN_RECORD_VERSION);
    if (h->hash != XXH3_64bits(h, offsetof(struct tern_record, hash)))
        return tern_err_set(err, TERN_EFORMAT, "has a damaged head (checksum differs)");
    if (h->kind < TERN_RECORD_PAGE || h->kind > TERN_RECORD_END || h->n_parts > TERN_RECORD_PARTS ||
        (h->kind == TERN_RECORD_PAGE ? h->n_tokens != TERN_TIER_TOKENS : h->n_tokens >= TERN_TIER_TOKENS))
        return tern_err_set(err, TERN_EFORMAT, "has a head that contradicts itself");
    if (tern_record_bytes(h) != n)
        return tern_err_set(err, TERN_EFORMAT, "has %zu bytes where its head says %zu", n, tern_record_bytes(h));
    return 0;
}

int tern_record_check(const void *record, size_t n, const struct tern_record_name *name,
                      const struct tern_origin *origin, tern_error *err)
{
    int rc = 0;
    const struct tern_record *h = record;
    const uint8_t *p = (const uint8_t *)record + sizeof *h;
    TERN_TRY(check_head(h, n, err));
    if (origin)
        TERN_TRY(tern_origin_check(&h->origin, origin, err));
    if (name && (!tern_key_is(&h->key, &name->key) || h->kind != name->kind || h->index != name->index ||
                 h->n_tokens != name->n_tokens))
        TERN_FAIL(err, TERN_EFORMAT, "is another record than its name says");
    for (uint32_t i = 0; i < h->n_parts; i++) {
        if (h->part_hash[i] != XXH3_64bits(p, h->part_bytes[i]))
            TERN_FAIL(err, TERN_EFORMAT, "is damaged at byte %td, in part %u of %u (checksum differs)",
                      p - (const uint8_t *)record, i + 1, h->n_parts);
        p += h->part_bytes[i];
    }
out:
    return rc;
}
