/* kv/kv.h - where the KV cache lives: layout, page pools, sequences, snapshots.  Bookkeeping only; bytes are opaque.
 *
 *        sequence ── table of group 0 (full attention) ──> page 0, page 1, page 2 ...   closed, immutable, ref-counted
 *                 ── table of group 1 (window 512)      ──>          page 1, page 2 ...   older ones given back
 *                 ── tile block                           newest tokens, raw, private to the sequence
 *                 ── sink block                           first tokens, raw, ref-counted with page 0
 *
 *                 ── state block                          of layers that keep no tokens but what they made of them
 *                 ── kept states                          the same at page boundaries before, ref-counted, a few
 *
 * A page is 64 consecutive tokens of all layers of one group; a group is the set of layers that keep tokens equally
 * long. Fork copies tables (references) and the tile; trim drops references.  Page index = position / 64, absolute.
 *
 * Blocks are known by number; only a device's operations look into them.
 *
 * Memory: kv/pool.h.  Nothing allocates in a step: tern_kv_begin takes the blocks that it needs, and is the only call
 * of a step that can run out. Thread: the engine's, but for references to blocks. */
#ifndef TERN_KV_H
#define TERN_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "kv/layout.h"
#include "kv/pool.h"
#include "kv/share.h"

/* ---- cache and sequences ----------------------------------------------------------------------------------------- */

struct tern_kv_table {
    uint32_t *pages; /* [cap], pages[i] is the block of page index first + i */
    int first, n, cap;
};

/* A state cannot go back by itself, so some are kept: of page boundaries, because there keys and values can be cut. */
#define TERN_KV_KEPT_STATES   4
#define TERN_KV_STATE_STRIDE  512 /* tokens between those of decoding, 64 with recent=N; every prompt step keeps one */
#define TERN_KV_WINDOW_STRIDE 256 /* the same where layers have windows besides */

struct tern_kv_seq {
    bool live;
    int n_tokens;
    struct tern_kv_table table[TERN_KV_MAX_GROUPS];
    /* Per group: the raw tiles of pages from raw_from on are there in all its layers, and those of pages from seen_from
     * on in the layers that see earlier pages raw.  A page that is still raw can be opened again. */
    int raw_from[TERN_KV_MAX_GROUPS], seen_from[TERN_KV_MAX_GROUPS];
    uint32_t tile; /* block of layout->tile_bytes */
    uint32_t sink; /* TERN_NO_BLOCK until page 0 closes */
    /* Only where the layout has states: */
    uint32_t state;                                       /* block of layout->state_bytes, after all n_tokens */
    struct tern_kv_checkpoint *kept[TERN_KV_KEPT_STATES]; /* ascending, states alone, after a multiple of 64 tokens */
    int n_kept;
    struct tern_dev_mark marks[TERN_DEV_MARKS]; /* of the step in hand */
    int n_marks;
    bool marked; /* the step in hand writes the last kept one */
    /* States of the last step's newest rows, until the next one: draft[i] after draft[i].at tokens, ascending. */
    struct tern_dev_mark draft[TERN_KV_MAX_DRAFTS];
    int n_draft;
};

/* What a cache is for: max_seqs sequences of max_tokens tokens, stepped by at most max_step tokens at once. */
struct tern_kv_room {
    int max_seqs, max_tokens, max_step;
    struct tern_kv_budget *budget; /* shared with other caches, must outlive this one; NULL: no limit */
    struct tern_dev *dev;          /* whose memory the pools take, must outlive them; NULL: the first device's */
};

struct tern_kv_cache {
    const struct tern_kv_layout *layout; /* borrowed for the cache's life */
    struct tern_kv_budget *budget, own_budget;
    struct tern_dev *dev, *own_dev;
    struct tern_kv_pool pool[TERN_KV_MAX_GROUPS];
    struct tern_kv_pool sinks, tiles, states;
    _Atomic size_t logit_bytes; /* of checkpoints */
    struct tern_kv_seq *seqs;   /* [max_seqs] */
    int max_seqs, max_tokens, max_step;
};

/* The pools reserve addresses for max_seqs full sequences, and with a limited budget for all that it could pay for.  A
 * cache stays where it is until it is cleared, or moved. */
int tern_kv_cache_init(struct tern_kv_cache *c, const struct tern_kv_layout *l, const struct tern_kv_room *room,
                       tern_error *err);
void tern_kv_cache_clear(struct tern_kv_cache *c);
/* One without sequences that nothing refers to goes elsewhere; what was there is all 0. */
void tern_kv_cache_move(struct tern_kv_cache *to, struct tern_kv_cache *from);
/* Another open device of the same kind works in its memory from now on. */
void tern_kv_cache_hand(struct tern_kv_cache *c, struct tern_dev *dev);
/* Bytes that a sequence of one closed page takes: a smaller budget serves nobody. */
size_t tern_kv_least_bytes(const struct tern_kv_cache *c);

/* TERN_ECAPACITY: what is in use, and that `what` takes so many bytes more. */
int tern_kv_no_memory(const struct tern_kv_cache *c, const char *what, size_t bytes, tern_error *err);

/* An empty sequence; TERN_ECAPACITY when all are in use, or no memory is left for another one. */
int tern_kv_seq_new(struct tern_kv_cache *c, struct tern_kv_seq **out, tern_error *err);
void tern_kv_seq_free(struct tern_kv_cache *c, struct tern_kv_seq *s);
int tern_kv_seq_fork(struct tern_kv_cache *c, struct tern_kv_seq **out, const struct tern_kv_seq *s, tern_error *err);

/* Appending n tokens: begin reserves the pages that will close (they are in the tables from then on), commit makes the
 * tokens count and gives back window pages; abort undoes begin. */
int tern_kv_begin(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, tern_error *err);
void tern_kv_commit(struct tern_kv_cache *c, struct tern_kv_seq *s, int n);
/* Between begin and commit, where there are states: the step shall keep that of its last page boundary (decoding: its
 * last multiple of the stride).  NULL: not in this step, or memory is short.  Of too many the least useful is dropped.
 * Of decode rows that may be drafts the states are to be written, too, as far as there is memory: s->marks says all
 * that the step has to write. */
const struct tern_kv_checkpoint *tern_kv_mark(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, bool prompt);
void tern_kv_abort(struct tern_kv_cache *c, struct tern_kv_seq *s);
/* The same where up to n rows were written to some layers behind the sequence: their pages go, and raw tiles that they
 * took the place of count as gone. */
void tern_kv_tried(struct tern_kv_cache *c, struct tern_kv_seq *s, int n);

/* Index of the first page that a query at position p still reads. */
static inline int tern_kv_first_needed(struct tern_kv_reach r, int p)
{
    return tern_kv_oldest(r, p) / TERN_PAGE;
}

/* Cuts back to n tokens, n <= n_tokens.  Where page n / 64 is still raw, the sequence ends up with *kept = n tokens: in
 * the open page, and in the page before it until the next token comes (longer where the layout has more raw tiles).  A
 * closed page whose originals are gone cannot be opened again: then *kept is the page boundary below n, or 0 when pages
 * before that would have to be seen raw and no longer are; with states, back to one that was kept, or to 0.  The caller
 * runs the rest again, for which there is memory.  Nothing has changed on failure: TERN_EUNSUPPORTED when a window
 * group no longer holds what a query at *kept needs, TERN_ECAPACITY when there is no memory. */
int tern_kv_trim(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, int *kept, tern_error *err);

/* The states of `from`, a sequence of as many tokens in another cache of the same model, become those of `to`, one
 * after the other: it has none then. */
void tern_kv_move_states(struct tern_kv_cache *c, struct tern_kv_seq *to, struct tern_kv_cache *from_c,
                         struct tern_kv_seq *from);

/* ---- to another cache -------------------------------------------------------------------------------------------- */

/* A sequence of one cache becomes one of another, of the same model, context and step.  The caller fills the caches and
 * `from`, copies rows between begin and commit, and has `to` in the end. */
struct tern_kv_move {
    struct tern_kv_cache *to_cache, *from_cache;
    struct tern_kv_seq *from, *to;
    size_t most; /* bytes of the budget that were in use at once so far */
};
/* TERN_EUNSUPPORTED where sequences of one layout cannot become those of the other, whatever their length: rows of
 * several tokens, or other tokens that are kept. */
int tern_kv_can_move(const struct tern_kv_layout *from, const struct tern_kv_layout *to, tern_error *err);
/* Makes `to`, which has no rows yet and the states of `from` (none, where memory is short for one that is kept).
 * TERN_ECAPACITY: no memory for the whole way, of which a page more than in the end is the most; TERN_EUNSUPPORTED: a
 * layout with rows of several tokens.  Nothing has changed then. */
int tern_kv_move_open(struct tern_kv_move *m, tern_error *err);
/* The next *n rows, of one page, may be copied; 0: all are.  Pages that a window has passed come without: there
 * to->table[].first lies behind them. */
int tern_kv_move_begin(struct tern_kv_move *m, int *n, tern_error *err);
/* They are; pages of `from` that are copied to their ends go back. */
void tern_kv_move_commit(struct tern_kv_move *m, int n);
/* All rows are there: frees `from`. */
void tern_kv_move_close(struct tern_kv_move *m);

/* Bytes of a sequence's own blocks and of those that it shares, without states. */
size_t tern_kv_seq_bytes(const struct tern_kv_cache *c, const struct tern_kv_seq *s);
/* Does attention after its last token read codes anywhere? */
bool tern_kv_seq_coded(const struct tern_kv_cache *c, const struct tern_kv_seq *s);

/* Bytes in use by sequences, slices and checkpoints (shared blocks counted once): keys and values (and logits), and
 * what they would take in 16 bits; states. */
size_t tern_kv_used_bytes(const struct tern_kv_cache *c);
size_t tern_kv_state_bytes(const struct tern_kv_cache *c);
size_t tern_kv_f16_bytes(const struct tern_kv_cache *c);
/* The same of one sequence that fills the cache's context, from the sizes of the blocks it would have. */
void tern_kv_full_bytes(const struct tern_kv_layout *l, int tokens, size_t *bytes, size_t *f16_bytes);

/* What the device is told of the cache, and of a sequence in it (dev/step.h); pages, tables: [TERN_KV_MAX_GROUPS],
 * theirs as long as the answer is in use.  cache: its index among those of a step.  Rows and roles are the caller's to
 * fill. */
void tern_kv_dev_cache(struct tern_dev_cache *out, struct tern_dev_blocks *pages, const struct tern_kv_cache *c);
struct tern_dev_job tern_kv_dev_job(const struct tern_kv_seq *s, int cache, struct tern_dev_table *tables);

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

/* A sequence in a file: header, tokens, pages, tile, sinks; XXH3-64 over every section (docs/session-format.md). */
struct tern_kv_snapshot_info {
    uint64_t model_digest; /* of the weights and the architecture */
    const int32_t *tokens; /* [n_tokens] */
    const uint8_t *roles;  /* [n_tokens] 1 = decode row */
};
/* May such a file be written there? */
int tern_kv_save_check(const char *path, tern_error *err);
int tern_kv_save(const struct tern_kv_cache *c, const struct tern_kv_seq *s, const struct tern_kv_snapshot_info *info,
                 const char *path, tern_error *err);
/* Fills a new sequence; tokens and roles arrive in *tokens, *roles (owned by the caller, tern_free). */
int tern_kv_load(struct tern_kv_cache *c, struct tern_kv_seq **out, uint64_t model_digest, int n_vocab,
                 const char *path, int32_t **tokens, uint8_t **roles, tern_error *err);

#endif
