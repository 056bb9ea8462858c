/* tier/tier_impl.h - what the parts of the tiers share. */
#ifndef TERN_TIER_IMPL_H
#define TERN_TIER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include "tier/tier.h"

/* ---- lines for people -------------------------------------------------------------------------------------------- */

/* At most so many in ten minutes: a disk full of damaged files is not to fill another one with lines. */
struct tern_say {
    void (*say)(void *user, const char *line);
    void *user;
    pthread_mutex_t lock;
    double since;
    int n;
};
void tern_say_init(struct tern_say *s, void (*say)(void *user, const char *line), void *user);
void tern_say_clear(struct tern_say *s);
void tern_say(struct tern_say *s, const char *fmt, ...) TERN_PRINTF(2, 3);

/* ---- slots ------------------------------------------------------------------------------------------------------- */

#define TERN_MAX_SLOTS 64

/* Room for records, all of one size: what is on its way takes no more than that. */
struct tern_slots {
    uint8_t *memory;
    size_t bytes, n; /* of one; how many */
    uint8_t *free[TERN_MAX_SLOTS];
    size_t n_free;
};
int tern_slots_init(struct tern_slots *s, size_t record_bytes, tern_error *err);
void tern_slots_clear(struct tern_slots *s);

/* ---- a directory --------------------------------------------------------------------------------------------------
 *
 * A file is a record.  It comes under its name when it is complete; what a killed process left is found under another
 * name by the next one that writes.  Writers of all processes take turns (flock), and count together what lies there;
 * readers take no lock.  Thread: any for reading, one at a time for writing. */
struct tern_disk;
int tern_disk_open(struct tern_disk **out, const char *dir, size_t limit, size_t min_free, struct tern_say *say,
                   tern_error *err);
void tern_disk_close(struct tern_disk *d);
bool tern_disk_has(struct tern_disk *d, const struct tern_record_name *n);
/* The record into to[0..cap), checked, and now the newest in use.  false: a miss. */
bool tern_disk_read(struct tern_disk *d, const struct tern_record_name *n, const struct tern_origin *origin, void *to,
                    size_t cap);
void tern_disk_write(struct tern_disk *d, const void *record, size_t bytes);
bool tern_disk_writes(struct tern_disk *d);
void tern_disk_get_stats(struct tern_disk *d, struct tern_tier_stats *out);

/* ---- a store that servers share -----------------------------------------------------------------------------------
 *
 * Whatever it is asked has a time limit; one that fails again and again is left alone for a while.  Thread: a
 * connection belongs to one. */
struct tern_shared;
enum { TERN_SHARED_READER, TERN_SHARED_WRITER, TERN_SHARED_CONNECTIONS };
int tern_shared_open(struct tern_shared **out, const char *address, struct tern_say *say, tern_error *err);
void tern_shared_close(struct tern_shared *s);
/* has[i]: the store has names[i]. */
void tern_shared_has(struct tern_shared *s, int connection, const struct tern_record_name *names, int n, bool *has);
bool tern_shared_read(struct tern_shared *s, const struct tern_record_name *n, const struct tern_origin *origin,
                      void *to, size_t cap);
void tern_shared_write(struct tern_shared *s, const void *record, size_t bytes);
bool tern_shared_writes(struct tern_shared *s);
void tern_shared_get_stats(struct tern_shared *s, struct tern_tier_stats *out);

/* ---- all of it --------------------------------------------------------------------------------------------------- */

struct tern_tiers {
    struct tern_tiers_params p;
    struct tern_origin *origins;
    struct tern_say say;
    struct tern_disk *disk;     /* NULL: none */
    struct tern_shared *shared; /* NULL: none */
    pthread_mutex_t lock;       /* of the rest */
    pthread_cond_t more, room;  /* for the threads: something to write or to fetch; a slot of the reader */
    pthread_t writer, reader;
    bool writes, reads, stop; /* the threads run; they are to end */
    double stop_at;
    struct tern_slots to_write, to_read;
    uint8_t *queue[TERN_MAX_SLOTS]; /* records to be written, in a ring */
    size_t first, n_queue;
    struct tern_fetch *fetches, *last; /* that wait, the first one is in hand */
    _Atomic double busy_since;         /* the reader asked a tier for something; 0: it does not */
};

/* What the reader's thread does until it is to stop. */
void *tern_reader_run(void *tiers);
/* Under the lock: nobody wants these any more. */
void tern_reader_drop_all(struct tern_tiers *t);

#endif
