/* run/prefix/record.h - pages and checkpoints of a cache as records (tier/tier.h), and back.
 *
 * Thread: the one that owns the engine. */
#ifndef TERN_RUN_RECORD_H
#define TERN_RUN_RECORD_H

#include "run/run.h"
#include "tier/tier.h"

/* All that decides the bytes of a plan's pages, besides the tokens (origin.c). */
void tern_engine_origin(const tern_engine *e, int plan, struct tern_origin *out);

/* Fills kind, has and the parts behind the head `to`, whose other members are the caller's.  A record has room for
 * tern_record_most bytes.  They fail where a device did not bring what it was asked for, which would be zeros. */
int tern_record_put_page(struct tern_record *to, const struct tern_kv_cache *c, const struct tern_kv_slice *s,
                         tern_error *err);
int tern_record_put_point(struct tern_record *to, const struct tern_kv_checkpoint *p, tern_error *err);
size_t tern_record_most(const tern_engine *e);

/* Are its parts those of a page of this layout? */
bool tern_record_is_page(const struct tern_kv_cache *c, const struct tern_record *h);
/* New blocks with what a record that was checked holds.  TERN_EFORMAT: not what this layout has; TERN_ECAPACITY: no
 * memory. */
int tern_record_get_page(struct tern_kv_cache *c, const struct tern_record *h, struct tern_kv_slice *out,
                         tern_error *err);
int tern_record_get_point(struct tern_kv_cache *c, const struct tern_record *h, size_t n_vocab,
                          struct tern_kv_checkpoint **out, tern_error *err);

#endif
