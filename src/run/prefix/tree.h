/* run/prefix/tree.h - the tree of known beginnings, for the files that it is made of:
 *
 *   tree.c     finding and keeping
 *   room.c     entries, and who goes first
 *   tiers.c    to other tiers and back
 *   exchange.c as a cache file, and out of one
 *
 * Beside them: record.c and origin.c, pages as bytes; file.c, those of tern/cache.h. */
#ifndef TERN_RUN_PREFIX_TREE_H
#define TERN_RUN_PREFIX_TREE_H

#include "run/prefix/prefix.h"
#include "run/prefix/record.h"

/* A page, or the end of a prompt behind one: what an open page and the layers' states hold. */
struct tern_prefix_entry {
    struct tern_prefix_entry *parent, *ends, *next_end; /* ends: behind this page, of up to 63 tokens */
    struct tern_prefix_entry *in_bucket;                /* pages alone */
    struct tern_prefix_entry *before, *after;           /* all entries */
    struct tern_prefix_entry *unwritten_before, *unwritten_after;
    struct tern_key key;              /* of a page's tokens and all before them */
    struct tern_kv_slice slice;       /* of a page */
    struct tern_kv_checkpoint *point; /* of an end; NULL: a page */
    int plan, n, n_below;             /* n: tokens, 64 in a page.  n_below: pages and ends that hang on this one */
    int index;                        /* pages before it */
    int pins;                         /* it may not go */
    size_t bytes;
    int cost;       /* tokens to compute again without it */
    double worth;   /* the least goes first */
    uint64_t born;  /* of equals, the older one */
    uint64_t stamp; /* of the call that needs it to stay */
    size_t at;      /* in its heap; NOT_IN_HEAP: something hangs on it, or a pin */
    bool unwritten; /* to other tiers */
    int32_t tokens[TERN_PAGE];
};

#define TERN_NOT_IN_HEAP SIZE_MAX

/* The entries that may go, the least one first. */
struct tern_prefix_heap {
    struct tern_prefix_entry **v;
    size_t n, cap, n_all; /* n_all: that may come in */
};

struct tern_prefix_cache {
    tern_engine *e;
    size_t limit, n_buckets;
    struct tern_prefix_entry **buckets;
    struct tern_prefix_entry *roots; /* [n_plans] before any token; never given back */
    struct tern_prefix_entry *all;
    struct tern_prefix_heap *heaps;  /* [1 + n_plans] pages; ends of each plan */
    int *n_points;                   /* [n_plans] checkpoints held */
    struct tern_prefix_entry **path; /* [ctx / 64 + 1] what a call walks along, from the root */
    struct tern_kv_slice *slices;    /* [ctx / 64] theirs, borrowed */
    float *logits;                   /* [n_vocab] that the last lookup has handed out */
    double floor;                    /* worth of what went last */
    uint64_t stamp, n_born;
    tern_cache_stats stats;
    /* Other tiers: */
    struct tern_tiers *tiers;    /* NULL: none */
    struct tern_origin *origins; /* [n_plans] */
    struct tern_key *keys;       /* [ctx / 64 + 1] */
    struct tern_prefix_entry *unwritten, *last_unwritten;
};

/* ---- room.c ------------------------------------------------------------------------------------------------------ */

/* An entry that holds nothing yet, in no bucket and no list of ends; n tokens behind its parent, end: not a page. */
struct tern_prefix_entry *tern_prefix_entry_new(struct tern_prefix_cache *x, struct tern_prefix_entry *parent,
                                                const int32_t *tokens, int n, bool end, size_t bytes);
void tern_prefix_entry_remove(struct tern_prefix_cache *x, struct tern_prefix_entry *p);
/* It was of use just now. */
void tern_prefix_use(struct tern_prefix_cache *x, struct tern_prefix_entry *p);
void tern_prefix_pin(struct tern_prefix_cache *x, struct tern_prefix_entry *p);
void tern_prefix_unpin(struct tern_prefix_cache *x, struct tern_prefix_entry *p);
/* Gives up the entry that is worth least; of ends of one plan alone where plan >= 0.  false: none may go. */
bool tern_prefix_evict(struct tern_prefix_cache *x, int ends_of_plan);
bool tern_prefix_make_room(struct tern_prefix_cache *x, size_t bytes);
bool tern_prefix_room_for_point(struct tern_prefix_cache *x, int plan);
bool tern_prefix_shrink(void *self);
struct tern_prefix_entry **tern_prefix_bucket(const struct tern_prefix_cache *x, const struct tern_key *key);

/* ---- tree.c ------------------------------------------------------------------------------------------------------ */

/* The end of these n tokens behind a page; NULL: none. */
struct tern_prefix_entry *tern_prefix_find_end(const struct tern_prefix_entry *page, const int32_t *tokens, int n);

/* Pages of tokens[0..n) that are known, into path and slices. */
int tern_prefix_walk(struct tern_prefix_cache *x, int plan, const int32_t *tokens, int n);
/* The most of tokens[0..n), up to `most`, that a sequence can start from, along a path of depth pages.  *pages of them;
 * *end: the checkpoint, NULL for none. */
int tern_prefix_longest(const struct tern_prefix_cache *x, int plan, const int32_t *tokens, int n, int depth, int most,
                        int *pages, struct tern_prefix_entry **end);
/* A page behind its parent, or what it lacks of it; slice keeps what was not taken.  NULL: there is no room. */
struct tern_prefix_entry *tern_prefix_keep_page(struct tern_prefix_cache *x, struct tern_prefix_entry *parent,
                                                const int32_t *tokens, struct tern_kv_slice *slice);
/* The checkpoint becomes an end behind path[depth]; its reference is taken over.  NULL: no room, or it is known. */
struct tern_prefix_entry *tern_prefix_keep_point(struct tern_prefix_cache *x, int plan, const int32_t *tokens,
                                                 int depth, struct tern_kv_checkpoint *point);

/* ---- tiers.c: records that come from elsewhere ------------------------------------------------------------------- */

#define TERN_PREFIX_TICK_BYTES ((size_t)8 << 20) /* that go either way between two steps */

struct tern_prefix_filling {
    int plan, n, n_pages;
    bool written;                   /* other tiers have what comes */
    const int32_t *tokens;          /* [n] borrowed */
    struct tern_prefix_entry *last; /* the page that came last, pinned */
};
/* The next page, or the end behind path of tokens.  false: it does not belong here, or there is no room. */
bool tern_prefix_fill_page(struct tern_prefix_cache *x, struct tern_prefix_filling *g, const struct tern_record *h);
bool tern_prefix_fill_end(struct tern_prefix_cache *x, const struct tern_prefix_filling *g,
                          const struct tern_record *h);

/* ---- tiers.c ----------------------------------------------------------------------------------------------------- */

int tern_prefix_open_tiers(struct tern_prefix_cache *x, const struct tern_prefix_params *p, tern_error *err);
void tern_prefix_close_tiers(struct tern_prefix_cache *x);
/* It has changed, and other tiers do not know. */
void tern_prefix_unwritten(struct tern_prefix_cache *x, struct tern_prefix_entry *p);
void tern_prefix_forget_unwritten(struct tern_prefix_cache *x, struct tern_prefix_entry *p);
void *tern_prefix_fetch(void *self, int plan, const int32_t *tokens, int n);
bool tern_prefix_fetched(void *self, void *fetch);
void tern_prefix_drop_fetch(void *self, void *fetch);
void tern_prefix_tick(void *self);

#endif
