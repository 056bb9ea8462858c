/* kv/share.h - what outlives a sequence: its closed pages by reference, and a checkpoint of everything else.
 *
 *      slice 0        slice 1        slice 2          checkpoint after 150 tokens
 *   |  64 tokens  |  64 tokens  |  (open page)  ·     open tile, states, last logits
 *
 * A new sequence that starts from slices and a checkpoint computes what the old one would have: a prefix cache needs no
 * more, in memory or on disk.
 *
 * Thread: who holds a reference may read, pin and drop from any thread; the rest is the engine's thread's.  References
 * do not keep a cache alive: all must be dropped before tern_kv_cache_clear.  Others include kv.h. */
#ifndef TERN_KV_SHARE_H
#define TERN_KV_SHARE_H

#include "kv/layout.h"
#include "kv/pool.h"

struct tern_kv_cache;
struct tern_kv_seq;

/* ---- slices: closed pages ---------------------------------------------------------------------------------------- */

/* The pages that 64 consecutive tokens of a sequence close, one of each group, and behind them, for the first 64
 * tokens, the raw first tokens.  A slice owns one reference to each block that it names; TERN_NO_BLOCK: none, because a
 * window has moved on or because the group closes no page here. */
#define TERN_KV_FIRST_TOKENS TERN_KV_MAX_GROUPS /* the last part */
#define TERN_KV_PARTS        (TERN_KV_MAX_GROUPS + 1)
struct tern_kv_slice {
    uint32_t part[TERN_KV_PARTS];
};

/* out[i] = slice from + i of s, for slices [from, to) that are closed: to <= n_tokens / 64. */
void tern_kv_slices_take(struct tern_kv_cache *c, const struct tern_kv_seq *s, int from, int to,
                         struct tern_kv_slice *out);
/* One more reference to each of its blocks, for a second owner. */
void tern_kv_slice_pin(struct tern_kv_cache *c, const struct tern_kv_slice *p);
/* Gives them back; the slice names nothing then. */
void tern_kv_slice_drop(struct tern_kv_cache *c, struct tern_kv_slice *p);

/* Bytes of one part; 0 where the layout has no such part. */
size_t tern_kv_part_bytes(const struct tern_kv_cache *c, int part);
void tern_kv_part_read(const struct tern_kv_cache *c, const struct tern_kv_slice *p, int part, void *to);
/* A slice with blocks for the parts whose bits are set, to be written before anything starts from it.  TERN_ECAPACITY:
 * no memory, and nothing is held. */
int tern_kv_slice_new(struct tern_kv_cache *c, unsigned parts, struct tern_kv_slice *out, tern_error *err);
void tern_kv_part_write(struct tern_kv_cache *c, const struct tern_kv_slice *p, int part, const void *from);

/* ---- checkpoints: everything else -------------------------------------------------------------------------------- */

/* Everything that a sequence has besides closed pages at one position.  Immutable, ref-counted. */
struct tern_kv_checkpoint {
    _Atomic uint32_t refs;
    struct tern_kv_cache *cache; /* borrowed */
    int at;                      /* tokens before it */
    uint32_t tile;               /* raw tiles; TERN_NO_BLOCK: none, then `at` is where no page is open */
    uint32_t state;              /* recurrent states; TERN_NO_BLOCK where the layout has none */
    int raw_from[TERN_KV_MAX_GROUPS], seen_from[TERN_KV_MAX_GROUPS]; /* as in struct tern_kv_seq */
    float *logits;                                                   /* [n_logits] of the last token, or NULL */
    size_t n_logits;
};

/* Of s as it is now, between steps; logits: of its last token, copied, or NULL.  *out has one reference. */
int tern_kv_checkpoint_take(struct tern_kv_cache *c, const struct tern_kv_seq *s, const float *logits, size_t n_logits,
                            struct tern_kv_checkpoint **out, tern_error *err);
/* The newest one that s itself keeps of at most n tokens, pinned; NULL: none.  Those lie at ends of slices. */
struct tern_kv_checkpoint *tern_kv_checkpoint_kept(const struct tern_kv_seq *s, int n);
struct tern_kv_checkpoint *tern_kv_checkpoint_pin(struct tern_kv_checkpoint *p);
void tern_kv_checkpoint_drop(struct tern_kv_checkpoint *p);          /* NULL is legal */
size_t tern_kv_checkpoint_bytes(const struct tern_kv_checkpoint *p); /* memory of its own */

/* Its bytes, for a file; they mean something to caches of layouts with the same digest alone. */
size_t tern_kv_checkpoint_packed_bytes(const struct tern_kv_checkpoint *p);
/* Most that one with so many logits can have. */
size_t tern_kv_checkpoint_most_bytes(const struct tern_kv_cache *c, size_t n_logits);
void tern_kv_checkpoint_pack(const struct tern_kv_checkpoint *p, void *to);
/* TERN_EFORMAT, naming what is wrong, for bytes that no checkpoint of this layout has. */
int tern_kv_checkpoint_unpack(struct tern_kv_cache *c, const void *from, size_t bytes, struct tern_kv_checkpoint **out,
                              tern_error *err);

/* ---- starting from them ------------------------------------------------------------------------------------------ */

/* Can a sequence start from so many slices and this checkpoint (NULL: none)?  It holds the checkpoint's tokens then, or
 * 64 n_slices.  Without a checkpoint only at ends of slices, in layouts without states and with recent=64.
 * TERN_EUNSUPPORTED says what is missing. */
int tern_kv_can_start(const struct tern_kv_cache *c, const struct tern_kv_slice *slices, int n_slices,
                      const struct tern_kv_checkpoint *at, tern_error *err);
/* s, which is empty, goes on from there; it takes references of its own.  Fails as tern_kv_can_start says, s is empty
 * then. */
int tern_kv_start(struct tern_kv_cache *c, struct tern_kv_seq *s, const struct tern_kv_slice *slices, int n_slices,
                  const struct tern_kv_checkpoint *at, tern_error *err);

#endif
