/* Slots for records on their way, and the thread that writes. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/mem.h"
#include "tier/tier_impl.h"

#define SLOT_BYTES  ((size_t)32 << 20) /* of all slots of one direction, where that is LEAST_SLOTS or more */
#define LEAST_SLOTS 4

/* ---- slots ------------------------------------------------------------------------------------------------------- */

int tern_slots_init(struct tern_slots *s, size_t record_bytes, tern_error *err)
{
    const size_t page = 4096;
    s->bytes = tern_round_up(record_bytes, page);
    s->n = SLOT_BYTES / s->bytes;
    s->n = s->n < LEAST_SLOTS ? LEAST_SLOTS : s->n > TERN_MAX_SLOTS ? TERN_MAX_SLOTS : s->n;
    int rc = tern_reserve(&s->memory, s->n * s->bytes, err);
    for (size_t i = 0; rc == 0 && i < s->n; i++)
        s->free[s->n_free++] = s->memory + i * s->bytes;
    return rc;
}

void tern_slots_clear(struct tern_slots *s)
{
    if (s->memory)
        tern_release(s->memory, s->n * s->bytes);
    *s = (struct tern_slots){0};
}

/* ---- the writer -------------------------------------------------------------------------------------------------- */

static void write_record(struct tern_tiers *t, void *record)
{
    tern_record_seal(record);
    const size_t bytes = tern_record_bytes(record);
    if (t->disk)
        tern_disk_write(t->disk, record, bytes);
    if (t->shared)
        tern_shared_write(t->shared, record, bytes);
}

static void *write_all(void *arg)
{
    struct tern_tiers *t = arg;
    (void)pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->n_queue && !t->stop)
            (void)pthread_cond_wait(&t->more, &t->lock);
        if (!t->n_queue || (t->stop && tern_now() > t->stop_at))
            break;
        uint8_t *record = t->queue[t->first];
        (void)pthread_mutex_unlock(&t->lock);
        write_record(t, record);
        (void)pthread_mutex_lock(&t->lock);
        t->first = (t->first + 1) % t->to_write.n;
        t->n_queue--;
        t->to_write.free[t->to_write.n_free++] = record;
        (void)pthread_mutex_unlock(&t->lock);
        if (t->p.wake)
            t->p.wake(t->p.wake_user);
        (void)pthread_mutex_lock(&t->lock);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

bool tern_tiers_writes(struct tern_tiers *t)
{
    return (t->disk && tern_disk_writes(t->disk)) || (t->shared && tern_shared_writes(t->shared));
}

void *tern_tiers_room(struct tern_tiers *t)
{
    uint8_t *slot = NULL;
    (void)pthread_mutex_lock(&t->lock);
    if (t->to_write.n_free)
        slot = t->to_write.free[--t->to_write.n_free];
    (void)pthread_mutex_unlock(&t->lock);
    return slot;
}

void tern_tiers_give(struct tern_tiers *t, void *room)
{
    (void)pthread_mutex_lock(&t->lock);
    t->to_write.free[t->to_write.n_free++] = room;
    (void)pthread_mutex_unlock(&t->lock);
}

void tern_tiers_put(struct tern_tiers *t, void *record)
{
    (void)pthread_mutex_lock(&t->lock);
    t->queue[(t->first + t->n_queue++) % t->to_write.n] = record;
    (void)pthread_cond_broadcast(&t->more);
    (void)pthread_mutex_unlock(&t->lock);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

/* Signals are for the threads of the program. */
static int start(pthread_t *thread, void *(*run)(void *), struct tern_tiers *t, bool *runs, tern_error *err)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    const int no = pthread_create(thread, NULL, run, t);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    *runs = no == 0;
    return no ? tern_err_set(err, TERN_EIO, "cannot start a thread of the cache: %s", strerror(no)) : 0;
}

int tern_tiers_open(struct tern_tiers **out, const struct tern_tiers_params *p, tern_error *err)
{
    int rc = 0;
    struct tern_tiers *t = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&t, 1, sizeof *t, err));
    t->p = *p;
    tern_say_init(&t->say, p->say, p->say_user);
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->more, NULL);
    (void)pthread_cond_init(&t->room, NULL);
    TERN_TRY(tern_alloc(&t->origins, (size_t)p->n_origins, sizeof *t->origins, err));
    memcpy(t->origins, p->origins, (size_t)p->n_origins * sizeof *t->origins);
    TERN_TRY(tern_slots_init(&t->to_write, p->record_bytes, err));
    TERN_TRY(tern_slots_init(&t->to_read, p->record_bytes, err));
    if (p->dir)
        TERN_TRY(tern_disk_open(&t->disk, p->dir, p->limit, p->min_free, &t->say, err));
    if (p->shared)
        TERN_TRY(tern_shared_open(&t->shared, p->shared, &t->say, err));
    TERN_TRY(start(&t->writer, write_all, t, &t->writes, err));
    TERN_TRY(start(&t->reader, tern_reader_run, t, &t->reads, err));
    *out = t;
    t = NULL;
out:
    tern_tiers_close(t, 0);
    return rc;
}

void tern_tiers_close(struct tern_tiers *t, double seconds)
{
    if (!t)
        return;
    (void)pthread_mutex_lock(&t->lock);
    t->stop = true;
    t->stop_at = tern_now() + seconds;
    (void)pthread_cond_broadcast(&t->more);
    (void)pthread_cond_broadcast(&t->room);
    (void)pthread_mutex_unlock(&t->lock);
    if (t->writes)
        (void)pthread_join(t->writer, NULL);
    if (t->reads)
        (void)pthread_join(t->reader, NULL);
    tern_reader_drop_all(t);
    tern_disk_close(t->disk);
    tern_shared_close(t->shared);
    tern_slots_clear(&t->to_write);
    tern_slots_clear(&t->to_read);
    tern_free(t->origins);
    tern_say_clear(&t->say);
    (void)pthread_mutex_destroy(&t->lock);
    (void)pthread_cond_destroy(&t->more);
    (void)pthread_cond_destroy(&t->room);
    tern_free(t);
}

void tern_tiers_get_stats(struct tern_tiers *t, struct tern_tier_stats *disk, struct tern_tier_stats *shared)
{
    *disk = *shared = (struct tern_tier_stats){0};
    if (t->disk)
        tern_disk_get_stats(t->disk, disk);
    if (t->shared)
        tern_shared_get_stats(t->shared, shared);
}
