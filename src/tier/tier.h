/* tier/tier.h - what outlives a process: records by key, in a directory and in a store that servers share.
 *
 *      engine's thread ── slots ──> writer's thread ──> directory, store
 *      engine's thread <── slots ── reader's thread <── directory, store
 *
 * A record is a closed page of 64 tokens, or the end of a prompt behind one (kv/share.h has what is in them; here they
 * are bytes).  Its key is a chain of SHA-256 over all that decides its bytes: where it comes from (struct tern_origin)
 * and every token up to its end.  Who has the key has the tokens, so that none are kept, and none need be compared.
 *
 * Nothing here can make a request fail or wait: the writer has so many slots and no more, what does not come in time is
 * a miss, and a record that is not what its key promises, to the last byte, is one too.
 *
 *   record.c   keys, heads, checks        disk.c    a directory          shared.c   a store that speaks Redis
 *   tiers.c    slots and the writer       fetch.c   the reader           say.c      lines for people */
#ifndef TERN_TIER_H
#define TERN_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "tier/sha256.h"

#define TERN_TIER_TOKENS 64 /* of a page */

/* ---- records ----------------------------------------------------------------------------------------------------- */

struct tern_key {
    uint8_t b[TERN_SHA256];
};

/* All that changes the bytes of a record, but for the tokens.  Strings are padded with zeros. */
struct tern_origin {
    uint64_t weights;    /* of all their bytes */
    uint64_t layout;     /* KV plan, conditioning of the keys, windows */
    uint64_t rope;       /* another scaling than the model's */
    char arithmetic[32]; /* in which prompts are computed: "x86-64 int16, int16", "cuda 1f0c93d2" */
    char version[16];    /* of the program: its arithmetic may change with it */
    char kv[128];        /* the plan in words, for messages; not compared */
};

enum tern_record_kind {
    TERN_RECORD_PAGE = 1,
    TERN_RECORD_STATE, /* the end of a prompt, or a place in it: what is not in pages */
    TERN_RECORD_END    /* the same with the logits of its last token */
};

/* Which record: what its file is called. */
struct tern_record_name {
    struct tern_key key;
    uint32_t index;         /* pages before it */
    uint8_t kind, n_tokens; /* its own: 64, or those behind the last page */
};

#define TERN_RECORD_MAGIC   "ternrec\n"
#define TERN_RECORD_VERSION 1
#define TERN_RECORD_PARTS   6

/* The first bytes of a record; its parts follow, one after the other. */
struct tern_record {
    char magic[8];
    uint32_t version, endian;
    uint32_t kind, index, n_tokens, n_parts;
    uint32_t has;  /* of pages: which of the layout's parts these are, by bits */
    uint32_t cost; /* tokens that are computed again without it */
    struct tern_key key, parent;
    struct tern_origin origin;
    uint64_t part_bytes[TERN_RECORD_PARTS], part_hash[TERN_RECORD_PARTS]; /* XXH3-64 */
    uint64_t hash;                                                        /* of all bytes before it */
};
_Static_assert(sizeof(struct tern_record) == 8 + 8 + 24 + 64 + 200 + 96 + 8, "no padding in the head of a record");

void tern_origin_key(const struct tern_origin *o, struct tern_key *out);
void tern_page_key(const struct tern_key *parent, const int32_t *tokens, struct tern_key *out);
void tern_end_key(const struct tern_key *parent, const int32_t *tokens, int n, enum tern_record_kind kind,
                  struct tern_key *out);
static inline bool tern_key_is(const struct tern_key *a, const struct tern_key *b)
{
    return __builtin_memcmp(a, b, sizeof *a) == 0;
}

/* Of a record with this head; 0: no memory holds that. */
size_t tern_record_bytes(const struct tern_record *h);
/* Hashes of a record that is complete but for them: the head and all parts behind it. */
void tern_record_seal(void *record);
/* Is this the record of that name, from there, and every byte as it was sealed?  origin NULL: from wherever it says.
 * TERN_EFORMAT: damaged; TERN_EUNSUPPORTED: another version of the format; TERN_EMISMATCH names what differs. */
int tern_record_check(const void *record, size_t n, const struct tern_record_name *name,
                      const struct tern_origin *origin, tern_error *err);
/* TERN_EMISMATCH, naming what differs between where a record comes from and what is here. */
int tern_origin_check(const struct tern_origin *have, const struct tern_origin *want, tern_error *err);
struct tern_record_name tern_record_name_of(const struct tern_record *h);

#define TERN_RECORD_NAME 96
void tern_record_name_text(const struct tern_record_name *n, char out[TERN_RECORD_NAME]);
bool tern_record_name_parse(struct tern_record_name *out, const char *text);

/* ---- figures ----------------------------------------------------------------------------------------------------- */

struct tern_tier_stats {
    bool open;      /* there is this tier */
    bool off;       /* it is not asked for the time being, because it failed */
    bool read_only; /* nothing can be written there */
    size_t entries, bytes, limit;
    uint64_t read, read_bytes, written, written_bytes;
    uint64_t dropped; /* records that were not written: no room, no time, errors */
    uint64_t damaged; /* that were not what they should be */
    uint64_t errors, evictions;
};

/* ---- a directory, by itself -------------------------------------------------------------------------------------- */

enum tern_scan { TERN_SCAN_LIST, TERN_SCAN_VERIFY, TERN_SCAN_CLEAR };
struct tern_scanned {
    size_t pages, ends, bytes, damaged, others;
};
/* Looks at all files of a directory: counts them, reads and checks them, or removes those that are records.  say
 * (nullable) hears of each one that is damaged. */
int tern_disk_scan(const char *dir, enum tern_scan what, void (*say)(void *user, const char *line), void *user,
                   struct tern_scanned *out, tern_error *err);

/* ---- all tiers --------------------------------------------------------------------------------------------------- */

struct tern_tiers;

struct tern_tiers_params {
    const char *dir;                   /* NULL: no directory */
    size_t limit, min_free;            /* bytes of all files there; of the disk that stay free */
    const char *shared;                /* "redis://HOST:PORT"; NULL: no store */
    size_t record_bytes;               /* of the largest record */
    const struct tern_origin *origins; /* [n_origins] copied; records are of one of them */
    int n_origins;
    void (*say)(void *user, const char *line); /* from any thread; NULL: silence */
    void *say_user;
    void (*wake)(void *user); /* from its threads: a slot is free, or a record has come */
    void *wake_user;
};

/* TERN_EINVAL, TERN_EIO: the directory cannot be used, or the address is none.  A store that does not answer is no
 * error. */
int tern_tiers_open(struct tern_tiers **out, const struct tern_tiers_params *p, tern_error *err);
/* Writes what was put, for so many seconds at most.  NULL is legal. */
void tern_tiers_close(struct tern_tiers *t, double seconds);
void tern_tiers_get_stats(struct tern_tiers *t, struct tern_tier_stats *disk, struct tern_tier_stats *shared);

/* Room for a record that is to be written; NULL: all slots are full, or nothing can be written.  The engine's thread
 * fills it, hashes apart, and puts it; or gives it back. */
void *tern_tiers_room(struct tern_tiers *t);
void tern_tiers_give(struct tern_tiers *t, void *room);
void tern_tiers_put(struct tern_tiers *t, void *record);
bool tern_tiers_writes(struct tern_tiers *t); /* false: nothing can be written for the time being */

/* ---- bringing records -------------------------------------------------------------------------------------------- */

struct tern_fetch;

struct tern_fetch_want {
    int origin;
    const struct tern_key *path; /* [depth + 1] the origin's, then those of the pages that are known */
    int depth;
    const int32_t *tokens; /* [n] of the prompt */
    int n, found;          /* found: what memory has of it */
    bool states;           /* a sequence starts at ends alone */
    bool deep;             /* ends before the last page that is there may be of use */
};

/* Looks for what comes after path, and reads it.  NULL: nothing is asked now (the reader hangs, no memory).  *w is
 * copied. */
struct tern_fetch *tern_fetch_begin(struct tern_tiers *t, const struct tern_fetch_want *w);
/* The next record, pages in their order, then an end; to be given back before the next call.  NULL: none now; *over:
 * there is nothing more to come, or it has taken too long. */
const struct tern_record *tern_fetch_next(struct tern_fetch *f, bool *over);
void tern_fetch_give_back(struct tern_fetch *f);
void tern_fetch_end(struct tern_fetch *f); /* at any time */

#endif
