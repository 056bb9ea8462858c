/* Threads that prepare jobs, so that no large body and no slow template holds up the streams of others. */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/server_impl.h"

#define MAX_WAITING 1024

static void append(struct tern_job **first, struct tern_job **last, struct tern_job *j)
{
    j->next = NULL;
    if (*last)
        (*last)->next = j;
    else
        *first = j;
    *last = j;
}

static struct tern_job *take_first(struct tern_job **first, struct tern_job **last)
{
    struct tern_job *j = *first;
    if (j) {
        *first = j->next;
        if (!*first)
            *last = NULL;
        j->next = NULL;
    }
    return j;
}

static int read_and_prepare(struct tern_job *j, struct tern_fault *f)
{
    int rc = j->served ? 0 : tern_job_read(j, f);
    if (rc == 0 && !j->held)
        j->held = tern_served_hold(j->served);
    j->wants = rc == 0 && !j->held;
    if (rc == 0 && j->held)
        rc = j->api->prepare(j, f);
    return rc;
}

/* Reads the request, and prepares it where its model is open. */
static void prepare(struct tern_job *j)
{
    struct tern_fault f = {0};
    (void)tern_json_lacked();
    int rc = tern_json_begin(j->body_bytes) ? read_and_prepare(j, &f) : 0;
    tern_json_end();
    if (tern_json_lacked()) /* whatever else seems wrong with it */
        rc = tern_fault_set(&f, 503, NULL, NULL, "out of memory");
    if (rc < 0)
        j->fault = f;
}

static void *work(void *arg)
{
    struct tern_server *s = arg;
    (void)pthread_mutex_lock(&s->workers.lock);
    for (;;) {
        struct tern_job *j = take_first(&s->workers.first, &s->workers.last);
        if (!j && s->workers.stop)
            break;
        if (!j) {
            (void)pthread_cond_wait(&s->workers.more, &s->workers.lock);
            continue;
        }
        s->workers.n_waiting--;
        (void)pthread_mutex_unlock(&s->workers.lock);
        prepare(j);
        (void)pthread_mutex_lock(&s->workers.lock);
        append(&s->workers.done, &s->workers.done_last, j);
        (void)!write(s->workers.wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    }
    (void)pthread_mutex_unlock(&s->workers.lock);
    return NULL;
}

int tern_workers_start(struct tern_server *s, tern_error *err)
{
    s->workers.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (s->workers.wake_fd < 0)
        return tern_err_set(err, TERN_EIO, "cannot make an event descriptor: %s", strerror(errno));
    (void)pthread_mutex_init(&s->workers.lock, NULL);
    (void)pthread_cond_init(&s->workers.more, NULL);
    for (int i = 0; i < TERN_N_WORKERS; i++) {
        int e = pthread_create(&s->workers.threads[i], NULL, work, s);
        if (e)
            return tern_err_set(err, TERN_EIO, "cannot start a thread: %s", strerror(e));
        s->workers.n_threads++;
    }
    return 0;
}

void tern_workers_stop(struct tern_server *s)
{
    if (s->workers.wake_fd < 0)
        return;
    (void)pthread_mutex_lock(&s->workers.lock);
    s->workers.stop = true;
    (void)pthread_cond_broadcast(&s->workers.more);
    (void)pthread_mutex_unlock(&s->workers.lock);
    for (int i = 0; i < s->workers.n_threads; i++)
        (void)pthread_join(s->workers.threads[i], NULL);
    s->workers.n_threads = 0;
    tern_workers_collect(s);
    (void)close(s->workers.wake_fd);
    (void)pthread_cond_destroy(&s->workers.more);
    (void)pthread_mutex_destroy(&s->workers.lock);
    s->workers.wake_fd = -1;
}

bool tern_workers_put(struct tern_server *s, struct tern_job *j)
{
    (void)pthread_mutex_lock(&s->workers.lock);
    bool room = s->workers.n_waiting < MAX_WAITING;
    if (room) {
        append(&s->workers.first, &s->workers.last, j);
        s->workers.n_waiting++;
        (void)pthread_cond_signal(&s->workers.more);
    }
    (void)pthread_mutex_unlock(&s->workers.lock);
    return room;
}

void tern_workers_put_again(struct tern_server *s, struct tern_job *j)
{
    (void)pthread_mutex_lock(&s->workers.lock);
    append(&s->workers.first, &s->workers.last, j);
    s->workers.n_waiting++;
    (void)pthread_cond_signal(&s->workers.more);
    (void)pthread_mutex_unlock(&s->workers.lock);
}

void tern_workers_give_back(struct tern_server *s, struct tern_job *j)
{
    (void)pthread_mutex_lock(&s->workers.lock);
    append(&s->workers.done, &s->workers.done_last, j);
    (void)!write(s->workers.wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)pthread_mutex_unlock(&s->workers.lock);
}

void tern_workers_collect(struct tern_server *s)
{
    uint64_t n;
    (void)!read(s->workers.wake_fd, &n, sizeof n);
    for (;;) {
        (void)pthread_mutex_lock(&s->workers.lock);
        struct tern_job *j = take_first(&s->workers.done, &s->workers.done_last);
        (void)pthread_mutex_unlock(&s->workers.lock);
        if (!j)
            return;
        tern_job_prepared(j);
    }
}
