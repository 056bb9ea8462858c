/* run/prefix/cachefile.h - the bytes of a cache file (docs/cache-file.md): file.c reads and writes them, exchange.c
 * takes them out of a loop's cache and puts them in.
 *
 * Thread: any, but for what reads pages of an engine, which is the engine's. */
#ifndef TERN_RUN_CACHEFILE_H
#define TERN_RUN_CACHEFILE_H

#include "run/prefix/record.h"

#define TERN_CACHEFILE_UNIT 64 /* records are aligned to it */

struct tern_cachefile_head {
    char magic[8];
    uint32_t version, endian;
    uint32_t n_tokens, n_records; /* pages, and for layers with states a last one */
    uint64_t bytes;               /* of the file */
    uint64_t tokens_hash;         /* XXH3-64 */
    struct tern_origin origin;
    uint64_t reserved; /* 0 */
    uint64_t hash;     /* of all bytes before it */
};
_Static_assert(sizeof(struct tern_cachefile_head) % TERN_CACHEFILE_UNIT == 0, "what follows is aligned");

/* A file in memory, every byte of it checked. */
struct tern_cachefile_view {
    struct tern_cachefile_head head;
    const int32_t *tokens;
    const struct tern_record **records; /* [n_records], owned */
};

/* p, aligned to 8 bytes, has to stay until close.  origin: what it has to be of; NULL: anything. */
int tern_cachefile_open(struct tern_cachefile_view *v, const uint8_t *p, size_t n, const struct tern_origin *origin,
                        tern_error *err);
void tern_cachefile_close(struct tern_cachefile_view *v);

/* What goes into a file: slices[0..n_tokens / 64), and for layers with states a checkpoint behind them. */
struct tern_cachefile_content {
    struct tern_kv_cache *cache;
    struct tern_origin origin;
    const int32_t *tokens;
    int n_tokens;
    const struct tern_kv_slice *slices;
    const struct tern_kv_checkpoint *point; /* NULL: none */
};
/* The head and the tokens, then record i, padded to the unit, into `to`; bytes are returned, or in *n.  A record has no
 * more than tern_record_most and the unit, and lacks its hashes until tern_record_seal.  key: of the record before, and
 * then of this one; tern_cachefile_begin makes the first.  Fails where tern_record_put_page does. */
size_t tern_cachefile_begin(const struct tern_cachefile_content *c, void *to, struct tern_key *key);
int tern_cachefile_record(const struct tern_cachefile_content *c, int i, void *to, struct tern_key *key, size_t *n,
                          tern_error *err);
int tern_cachefile_records(const struct tern_cachefile_content *c);
uint64_t tern_cachefile_bytes(const struct tern_cachefile_content *c); /* of the whole file */

/* TERN_EUNSUPPORTED, TERN_EINVAL: n tokens of the engine's plan 0 cannot be in one. */
int tern_cachefile_check_plan(const tern_engine *e, int n, tern_error *err);

#endif
