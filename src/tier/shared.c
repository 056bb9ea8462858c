/* Records in a store that speaks Redis, through hiredis. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include "base/clock.h"
#include "base/mem.h"
#include "tier/tier_impl.h"

#ifdef TERN_HAVE_HIREDIS
#include <hiredis/hiredis.h>

#define PREFIX     "tern:"
#define CONNECT_S  0.3
#define COMMAND_S  0.7 /* for an answer, all of it */
#define FAILURES   3   /* in a row open the circuit */
#define PAUSE_S    5.0 /* for so long, then twice as long, up to: */
#define MOST_PAUSE 60.0
#define MOST_NAMES 128

struct tern_shared {
    char *host, *user, *password;
    int port, db;
    struct tern_say *say;
    redisContext *c[TERN_SHARED_CONNECTIONS];
    pthread_mutex_t lock; /* of the rest */
    int failures;
    double again, pause;
    struct tern_tier_stats stats;
};

/* ---- the circuit ------------------------------------------------------------------------------------------------- */

static bool closed(struct tern_shared *s)
{
    (void)pthread_mutex_lock(&s->lock);
    const bool yes = tern_now() >= s->again;
    (void)pthread_mutex_unlock(&s->lock);
    return yes;
}

static void failed(struct tern_shared *s, int connection, const char *why)
{
    bool opens = false;
    double pause = 0;
    char text[200];
    (void)snprintf(text, sizeof text, "%s", why && *why ? why : "no answer in time");
    (void)pthread_mutex_lock(&s->lock);
    s->stats.errors++;
    if (++s->failures >= FAILURES) {
        s->failures = 0;
        s->pause = s->pause * 2 > MOST_PAUSE ? MOST_PAUSE : s->pause > 0 ? s->pause * 2 : PAUSE_S;
        pause = s->pause;
        s->again = tern_now() + pause;
        opens = true;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (s->c[connection])
        redisFree(s->c[connection]);
    s->c[connection] = NULL;
    if (opens)
        tern_say(s->say, "cache: the store at %s:%d fails (%s); it is not asked for %.0f seconds", s->host, s->port,
                 text, pause);
}

static void worked(struct tern_shared *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->failures = 0;
    s->pause = 0;
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* What hiredis does by itself has a limit per call of the system; this one is for all of an answer. */
static redisReply *answer(redisContext *c, double end)
{
    void *r = NULL;
    while (redisGetReplyFromReader(c, &r) == REDIS_OK && !r) {
        const double left = end - tern_now();
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        if (left <= 0 || (poll(&p, 1, (int)(left * 1000) + 1) < 0 && errno != EINTR))
            return NULL;
        if (p.revents && redisBufferRead(c) != REDIS_OK)
            return NULL;
    }
    return r;
}

static bool send_all(redisContext *c, double end)
{
    int done = 0;
    while (!done) {
        const double left = end - tern_now();
        struct pollfd p = {.fd = c->fd, .events = POLLOUT};
        if (left <= 0 || (poll(&p, 1, (int)(left * 1000) + 1) < 0 && errno != EINTR))
            return false;
        if (p.revents && redisBufferWrite(c, &done) != REDIS_OK)
            return false;
    }
    return true;
}

static struct timeval timeval_of(double s)
{
    return (struct timeval){.tv_sec = (time_t)s, .tv_usec = (suseconds_t)((s - (double)(time_t)s) * 1e6)};
}

static bool is_ok(redisReply *r)
{
    const bool ok = r && r->type != REDIS_REPLY_ERROR;
    if (r)
        freeReplyObject(r);
    return ok;
}

static bool introduce(const struct tern_shared *s, redisContext *c)
{
    const double end = tern_now() + COMMAND_S;
    int n = 0;
    if (s->password) {
        n++;
        if (s->user)
            (void)redisAppendCommand(c, "AUTH %s %s", s->user, s->password);
        else
            (void)redisAppendCommand(c, "AUTH %s", s->password);
    }
    if (s->db) {
        n++;
        (void)redisAppendCommand(c, "SELECT %d", s->db);
    }
    bool ok = n == 0 || send_all(c, end);
    for (int i = 0; i < n && ok; i++)
        ok = is_ok(answer(c, end));
    return ok;
}

/* NULL: the store does not answer, and that is counted. */
static redisContext *connection(struct tern_shared *s, int i)
{
    if (!closed(s))
        return NULL;
    if (s->c[i])
        return s->c[i];
    redisContext *c = redisConnectWithTimeout(s->host, s->port, timeval_of(CONNECT_S));
    s->c[i] = c;
    if (!c || c->err) {
        failed(s, i, c ? c->errstr : "out of memory");
        return NULL;
    }
    (void)redisSetTimeout(c, timeval_of(COMMAND_S));
    if (!introduce(s, c)) {
        failed(s, i, c->err ? c->errstr : "it refuses the password or the number of the database");
        return NULL;
    }
    return c;
}

static void key_text(const struct tern_record_name *n, char out[sizeof PREFIX + TERN_RECORD_NAME])
{
    memcpy(out, PREFIX, sizeof PREFIX - 1);
    tern_record_name_text(n, out + sizeof PREFIX - 1);
}

void tern_shared_has(struct tern_shared *s, int i, const struct tern_record_name *names, int n, bool *has)
{
    char key[sizeof PREFIX + TERN_RECORD_NAME];
    memset(has, 0, (size_t)n * sizeof *has);
    redisContext *c = n ? connection(s, i) : NULL;
    if (!c)
        return;
    const double end = tern_now() + COMMAND_S;
    for (int k = 0; k < n; k++) {
        key_text(&names[k], key);
        (void)redisAppendCommand(c, "EXISTS %s", key);
    }
    bool ok = send_all(c, end);
    for (int k = 0; k < n && ok; k++) {
        redisReply *r = answer(c, end);
        ok = r && r->type == REDIS_REPLY_INTEGER;
        has[k] = ok && r->integer > 0;
        if (r)
            freeReplyObject(r);
    }
    if (ok) {
        worked(s);
    } else {
        memset(has, 0, (size_t)n * sizeof *has);
        failed(s, i, c->errstr);
    }
}

bool tern_shared_read(struct tern_shared *s, const struct tern_record_name *n, const struct tern_origin *origin,
                      void *to, size_t cap)
{
    char key[sizeof PREFIX + TERN_RECORD_NAME];
    tern_error err = {0};
    redisContext *c = connection(s, TERN_SHARED_READER);
    if (!c)
        return false;
    const double end = tern_now() + COMMAND_S;
    key_text(n, key);
    (void)redisAppendCommand(c, "GET %s", key);
    redisReply *r = send_all(c, end) ? answer(c, end) : NULL;
    if (!r || (r->type != REDIS_REPLY_STRING && r->type != REDIS_REPLY_NIL)) {
        failed(s, TERN_SHARED_READER, r && r->type == REDIS_REPLY_ERROR ? r->str : c->errstr);
        if (r)
            freeReplyObject(r);
        return false;
    }
    worked(s);
    const bool there = r->type == REDIS_REPLY_STRING;
    const size_t bytes = there ? (size_t)r->len : 0;
    bool good = there && bytes <= cap;
    if (good)
        memcpy(to, r->str, bytes);
    freeReplyObject(r);
    if (good && tern_record_check(to, bytes, n, origin, &err) < 0)
        good = false;
    (void)pthread_mutex_lock(&s->lock);
    s->stats.read += good;
    s->stats.read_bytes += good ? bytes : 0;
    s->stats.damaged += there && !good;
    (void)pthread_mutex_unlock(&s->lock);
    if (there && !good) {
        tern_say(s->say, "cache: the store's %s %s; removed", key, err.code ? err.msg : "is longer than any record");
        (void)redisAppendCommand(c, "DEL %s", key);
        if (!send_all(c, end) || !is_ok(answer(c, end)))
            failed(s, TERN_SHARED_READER, c->errstr);
    }
    return good;
}

bool tern_shared_writes(struct tern_shared *s)
{
    return closed(s);
}

void tern_shared_write(struct tern_shared *s, const void *record, size_t bytes)
{
    char key[sizeof PREFIX + TERN_RECORD_NAME];
    const struct tern_record_name n = tern_record_name_of(record);
    bool has = false, stored = false;
    /* A page may gain parts; others are what they are. */
    if (n.kind != TERN_RECORD_PAGE)
        tern_shared_has(s, TERN_SHARED_WRITER, &n, 1, &has);
    redisContext *c = has ? NULL : connection(s, TERN_SHARED_WRITER);
    if (has)
        return;
    if (c) {
        const double end = tern_now() + COMMAND_S;
        key_text(&n, key);
        (void)redisAppendCommand(c, "SET %s %b", key, record, bytes);
        redisReply *r = send_all(c, end) ? answer(c, end) : NULL;
        stored = r && r->type == REDIS_REPLY_STATUS;
        if (stored)
            worked(s);
        else /* "OOM command not allowed", among others */
            failed(s, TERN_SHARED_WRITER, r && r->type == REDIS_REPLY_ERROR ? r->str : c->errstr);
        if (r)
            freeReplyObject(r);
    }
    (void)pthread_mutex_lock(&s->lock);
    s->stats.written += stored;
    s->stats.written_bytes += stored ? bytes : 0;
    s->stats.dropped += !stored;
    (void)pthread_mutex_unlock(&s->lock);
}

void tern_shared_get_stats(struct tern_shared *s, struct tern_tier_stats *out)
{
    (void)pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->off = tern_now() < s->again;
    (void)pthread_mutex_unlock(&s->lock);
    out->open = true;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* [USER:PASSWORD@]HOST[:PORT][/DB]; [HOST] for an address with colons. */
static bool parse(struct tern_shared *s, char *p)
{
    char *at = strrchr(p, '@'), *slash, *colon, *end;
    if (at) {
        *at = 0;
        char *password = strchr(p, ':');
        if (!password)
            return false;
        *password++ = 0;
        s->user = *p ? strdup(p) : NULL;
        s->password = strdup(password);
        if (!s->password || (*p && !s->user))
            return false;
        p = at + 1;
    }
    slash = strchr(p, '/');
    if (slash) {
        *slash++ = 0;
        s->db = (int)strtol(slash, &end, 10);
        if (*end || s->db < 0 || s->db > 65535)
            return false;
    }
    colon = *p == '[' ? strstr(p, "]:") : strrchr(p, ':');
    s->port = 6379;
    if (colon) {
        s->port = (int)strtol(colon + (*p == '[') + 1, &end, 10);
        if (*end || s->port < 1 || s->port > 65535)
            return false;
        *colon = 0;
    }
    if (*p == '[') {
        p++;
        p[strcspn(p, "]")] = 0;
    }
    s->host = *p ? strdup(p) : NULL;
    return s->host != NULL;
}

int tern_shared_open(struct tern_shared **out, const char *address, struct tern_say *say, tern_error *err)
{
    int rc = 0;
    static const char scheme[] = "redis://";
    struct tern_shared *s = NULL;
    char *copy = NULL;
    *out = NULL;
    if (strncmp(address, scheme, sizeof scheme - 1) != 0)
        TERN_FAIL(err, TERN_EINVAL, "\"%.100s\" is no address of a store: it is redis://HOST:PORT", address);
    TERN_TRY(tern_alloc(&s, 1, sizeof *s, err));
    (void)pthread_mutex_init(&s->lock, NULL);
    s->say = say;
    copy = strdup(address + sizeof scheme - 1);
    if (!copy || !parse(s, copy))
        TERN_FAIL(err, TERN_EINVAL, "the address of the store is not redis://[USER:PASSWORD@]HOST[:PORT][/DB]");
    *out = s;
    s = NULL;
out:
    free(copy);
    tern_shared_close(s);
    return rc;
}

void tern_shared_close(struct tern_shared *s)
{
    if (!s)
        return;
    for (int i = 0; i < TERN_SHARED_CONNECTIONS; i++)
        if (s->c[i])
            redisFree(s->c[i]);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->host);
    free(s->user);
    free(s->password);
    tern_free(s);
}

#else

struct tern_shared {
    char unused;
};

int tern_shared_open(struct tern_shared **out, const char *address, struct tern_say *say, tern_error *err)
{
    (void)address;
    (void)say;
    *out = NULL;
    return tern_err_set(err, TERN_EUNSUPPORTED, "this build knows no shared store: it was made without hiredis");
}

void tern_shared_close(struct tern_shared *s)
{
    (void)s;
}

void tern_shared_has(struct tern_shared *s, int connection, const struct tern_record_name *names, int n, bool *has)
{
    (void)s;
    (void)connection;
    (void)names;
    memset(has, 0, (size_t)n * sizeof *has);
}

bool tern_shared_read(struct tern_shared *s, const struct tern_record_name *n, const struct tern_origin *origin,
                      void *to, size_t cap)
{
    (void)s;
    (void)n;
    (void)origin;
    (void)to;
    (void)cap;
    return false;
}

void tern_shared_write(struct tern_shared *s, const void *record, size_t bytes)
{
    (void)s;
    (void)record;
    (void)bytes;
}

bool tern_shared_writes(struct tern_shared *s)
{
    (void)s;
    return false;
}

void tern_shared_get_stats(struct tern_shared *s, struct tern_tier_stats *out)
{
    (void)s;
    *out = (struct tern_tier_stats){0};
}
#endif
