/* Records in a directory. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "tier/tier_impl.h"

#define LOCK_NAME   "lock"
#define NEW_NAME    "new"   /* what is being written, under the lock */
#define ASIDE_NAME  "aside" /* folder of files that were not what they should be */
#define MOST_ASIDE  8
#define USAGE_MAGIC "ternuse\n"
#define LOCK_WAIT_S 1.0
#define READ_PAUSE  30.0 /* seconds without a question after errors */
#define WRITE_PAUSE 10.0
#define ERRORS      3   /* in a row, until then */
#define BUCKET_S    256 /* uses this close to each other count as one */

/* What all processes know of the directory, in the file that they lock. */
struct usage {
    char magic[8];
    uint64_t bytes, entries;
};

struct tern_disk {
    int dir, lock;
    char *path; /* for lines */
    size_t limit, min_free;
    struct tern_say *say;
    bool read_only;
    double follow_again;        /* as below, of the thread that writes */
    _Atomic double write_again; /* not before */
    _Atomic double read_again;
    atomic_int bad_reads; /* in a row */
    atomic_int n_aside;
    pthread_mutex_t names; /* held where this process gives a name to another file, or looks at one to remove it */
    pthread_mutex_t stats_lock;
    struct tern_tier_stats stats;
};

struct found { /* a file of ours */
    char name[TERN_RECORD_NAME];
    uint64_t bytes;
    int64_t used; /* seconds */
    uint32_t index;
};

#define COUNT(d, field, n)                            \
    do {                                              \
        (void)pthread_mutex_lock(&(d)->stats_lock);   \
        (d)->stats.field += (n);                      \
        (void)pthread_mutex_unlock(&(d)->stats_lock); \
    } while (0)

/* ---- what lies there --------------------------------------------------------------------------------------------- */

static int by_use(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    const int64_t p = x->used / BUCKET_S, q = y->used / BUCKET_S;
    if (p != q)
        return p < q ? -1 : 1;
    if (x->index != y->index) /* what hangs on another page goes before it */
        return x->index > y->index ? -1 : 1;
    return strcmp(x->name, y->name);
}

struct listing {
    struct found *v;
    size_t n, cap, strangers;
    uint64_t bytes;
};

static void note_file(struct listing *l, int dir, const char *name)
{
    struct stat st;
    struct tern_record_name parsed;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, LOCK_NAME) == 0 ||
        strcmp(name, NEW_NAME) == 0 || strcmp(name, ASIDE_NAME) == 0)
        return;
    if (!tern_record_name_parse(&parsed, name) || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode)) {
        l->strangers++;
        return;
    }
    if (l->n == l->cap && tern_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v, NULL) < 0)
        return;
    struct found *f = &l->v[l->n++];
    *f = (struct found){.bytes = (uint64_t)st.st_size, .used = (int64_t)st.st_mtime, .index = parsed.index};
    memcpy(f->name, name, strlen(name) + 1);
    l->bytes += f->bytes;
}

static bool list_dir(int dir, struct listing *l)
{
    *l = (struct listing){0};
    const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            (void)close(fd);
        return false;
    }
    for (struct dirent *e; (e = readdir(d));)
        note_file(l, dir, e->d_name);
    (void)closedir(d);
    return true;
}

/* ---- the lock, and what is counted under it ---------------------------------------------------------------------- */

static bool take_lock(struct tern_disk *d)
{
    const double end = tern_now() + LOCK_WAIT_S;
    while (flock(d->lock, LOCK_EX | LOCK_NB) < 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || tern_now() > end)
            return false;
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return true;
}

static void give_lock(struct tern_disk *d)
{
    (void)flock(d->lock, LOCK_UN);
}

static void write_usage(struct tern_disk *d, const struct usage *u)
{
    /* What cannot be written is counted anew by the next one that cannot read it. */
    if (pwrite(d->lock, u, sizeof *u, 0) != sizeof *u)
        (void)!ftruncate(d->lock, 0);
    (void)pthread_mutex_lock(&d->stats_lock);
    d->stats.bytes = u->bytes;
    d->stats.entries = u->entries;
    (void)pthread_mutex_unlock(&d->stats_lock);
}

static void count_anew(struct tern_disk *d, struct usage *u, struct listing *l)
{
    *u = (struct usage){.magic = USAGE_MAGIC};
    if (list_dir(d->dir, l)) {
        u->bytes = l->bytes;
        u->entries = l->n;
    }
}

static void read_usage(struct tern_disk *d, struct usage *u)
{
    struct listing l = {0};
    if (pread(d->lock, u, sizeof *u, 0) == sizeof *u && memcmp(u->magic, USAGE_MAGIC, sizeof u->magic) == 0)
        return;
    count_anew(d, u, &l);
    tern_free(l.v);
}

static uint64_t free_bytes(const struct tern_disk *d)
{
    struct statvfs v;
    return fstatvfs(d->dir, &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : UINT64_MAX;
}

static bool fits(const struct tern_disk *d, const struct usage *u, size_t n)
{
    const uint64_t room = d->min_free ? free_bytes(d) : UINT64_MAX;
    return n <= d->limit && u->bytes <= d->limit - n && (n <= room && room - n >= d->min_free);
}

/* Could there be room at all?  Where others have filled the disk, removing every page would be for nothing. */
static bool may_fit(const struct tern_disk *d, const struct usage *u, size_t n)
{
    const uint64_t room = d->min_free ? free_bytes(d) : UINT64_MAX;
    return n <= d->limit &&
           (room > UINT64_MAX - u->bytes || (n <= room + u->bytes && room + u->bytes - n >= d->min_free));
}

/* The longest unused files go, a few more than needed, so that the next record does not count all files again. */
static bool make_room(struct tern_disk *d, struct usage *u, size_t n)
{
    struct listing l;
    if (fits(d, u, n) || !may_fit(d, u, n))
        return fits(d, u, n);
    count_anew(d, u, &l);
    if (l.n)
        qsort(l.v, l.n, sizeof *l.v, by_use);
    const size_t more = d->limit / 64 > n ? d->limit / 64 : n;
    for (size_t i = 0; i < l.n && !fits(d, u, more); i++) {
        if (unlinkat(d->dir, l.v[i].name, 0) < 0)
            continue;
        u->bytes -= l.v[i].bytes;
        u->entries--;
        COUNT(d, evictions, 1);
    }
    tern_free(l.v);
    write_usage(d, u);
    return fits(d, u, n);
}

/* ---- the directory itself ---------------------------------------------------------------------------------------- */

/* What killed processes left goes; the rest is counted. */
static void look_around(struct tern_disk *d)
{
    struct usage u;
    struct listing l = {0};
    struct stat st;
    const bool locked = d->lock >= 0 && take_lock(d);
    if (locked && fstatat(d->dir, NEW_NAME, &st, AT_SYMLINK_NOFOLLOW) == 0)
        (void)unlinkat(d->dir, NEW_NAME, 0);
    count_anew(d, &u, &l);
    if (locked) {
        write_usage(d, &u);
        give_lock(d);
    }
    (void)pthread_mutex_lock(&d->stats_lock);
    d->stats.bytes = u.bytes;
    d->stats.entries = u.entries;
    (void)pthread_mutex_unlock(&d->stats_lock);
    if (l.strangers)
        tern_say(d->say, "cache: %s holds %zu files that are not of this cache; they are left alone", d->path,
                 l.strangers);
    tern_free(l.v);
}

static int open_dir(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int open_lock(int dir)
{
    return openat(dir, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* Somebody may remove the directory, or put another in its place, while it is in use: then what is at its path is used
 * from here on, made where nothing is.  One that was moved away is used where it is, until there is another.  The
 * descriptors keep their numbers, so readers in other threads have one or the other. */
static void follow_path(struct tern_disk *d)
{
    struct stat ours, there;
    if (tern_now() < d->follow_again || fstat(d->dir, &ours) < 0)
        return;
    if (stat(d->path, &there) < 0) {
        if (errno != ENOENT || ours.st_nlink > 0 || mkdir(d->path, 0700) < 0)
            return;
    } else if (there.st_dev == ours.st_dev && there.st_ino == ours.st_ino) {
        return;
    }
    const int dir = open_dir(d->path), lock = dir < 0 ? -1 : open_lock(dir);
    (void)pthread_mutex_lock(&d->names);
    const bool follows = lock >= 0 && dup3(dir, d->dir, O_CLOEXEC) >= 0 && dup3(lock, d->lock, O_CLOEXEC) >= 0;
    (void)pthread_mutex_unlock(&d->names);
    if (follows) {
        tern_say(d->say, "cache: %s is another directory than before; it is used from here on", d->path);
        look_around(d);
        d->follow_again = tern_now() + WRITE_PAUSE; /* where directories have other numbers each time */
    }
    if (lock >= 0)
        (void)close(lock);
    if (dir >= 0)
        (void)close(dir);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

bool tern_disk_writes(struct tern_disk *d)
{
    return !d->read_only && tern_now() >= atomic_load(&d->write_again);
}

static void cannot_write(struct tern_disk *d, const char *why)
{
    atomic_store(&d->write_again, tern_now() + WRITE_PAUSE);
    COUNT(d, dropped, 1);
    tern_say(d->say, "cache: %s: %s; nothing is written there for %.0f seconds", d->path, why, WRITE_PAUSE);
}

/* Does the file that is there hold all parts of this record? */
static bool is_there(const struct tern_disk *d, const char *name, const struct tern_record *h, uint64_t *bytes)
{
    struct tern_record old;
    struct stat st;
    const int fd = openat(d->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *bytes = 0;
    if (fd < 0)
        return false;
    const bool read = fstat(fd, &st) == 0 && pread(fd, &old, sizeof old, 0) == sizeof old;
    (void)close(fd);
    if (!read)
        return false;
    *bytes = (uint64_t)st.st_size;
    return memcmp(old.magic, TERN_RECORD_MAGIC, sizeof old.magic) == 0 && tern_key_is(&old.key, &h->key) &&
           tern_record_bytes(&old) == *bytes && (old.has & h->has) == h->has;
}

static int write_all(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        const ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

/* Under the lock.  Not synced: a file that a failing system left incomplete is found out when it is read. */
static int write_file(struct tern_disk *d, const char *name, const void *record, size_t bytes)
{
    int rc = -1;
    const int fd = openat(d->dir, NEW_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    rc = write_all(fd, record, bytes);
    int no = errno;
    if (close(fd) < 0 && rc == 0) {
        rc = -1;
        no = errno;
    }
    (void)pthread_mutex_lock(&d->names);
    if (rc == 0 && renameat(d->dir, NEW_NAME, d->dir, name) < 0) {
        rc = -1;
        no = errno;
    }
    (void)pthread_mutex_unlock(&d->names);
    if (rc < 0)
        (void)unlinkat(d->dir, NEW_NAME, 0);
    errno = no;
    return rc;
}

void tern_disk_write(struct tern_disk *d, const void *record, size_t bytes)
{
    char name[TERN_RECORD_NAME];
    struct usage u;
    uint64_t old;
    const struct tern_record *h = record;
    const struct tern_record_name n = tern_record_name_of(h);
    tern_record_name_text(&n, name);
    if (!d->read_only)
        follow_path(d);
    if (!tern_disk_writes(d) || !take_lock(d)) {
        COUNT(d, dropped, 1);
        return;
    }
    if (is_there(d, name, h, &old)) {
        give_lock(d);
        return;
    }
    read_usage(d, &u);
    if (!make_room(d, &u, bytes)) {
        cannot_write(d, bytes > d->limit ? "--cache-disk-gb is less than one page takes" : "the disk has no more room");
    } else if (write_file(d, name, record, bytes) < 0) {
        cannot_write(d, strerror(errno));
        COUNT(d, errors, 1);
    } else {
        u.bytes += bytes;
        u.bytes -= old <= u.bytes ? old : 0;
        u.entries += old == 0;
        write_usage(d, &u);
        (void)pthread_mutex_lock(&d->stats_lock);
        d->stats.written++;
        d->stats.written_bytes += bytes;
        (void)pthread_mutex_unlock(&d->stats_lock);
    }
    give_lock(d);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool reads(struct tern_disk *d)
{
    return tern_now() >= atomic_load(&d->read_again);
}

bool tern_disk_has(struct tern_disk *d, const struct tern_record_name *n)
{
    char name[TERN_RECORD_NAME];
    struct stat st;
    tern_record_name_text(n, name);
    return reads(d) && fstatat(d->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

/* What cannot be used is not to be read again and again; a few stay for people to look at.  Since `was` was opened
 * another file may have come under its name, in another directory even: that one is left alone. */
static void set_aside(struct tern_disk *d, const char *name, const struct stat *was, const char *why)
{
    char to[TERN_RECORD_NAME + sizeof ASIDE_NAME + 1];
    const char *done = "another one has taken its place";
    struct stat st;
    (void)snprintf(to, sizeof to, "%s/%s", ASIDE_NAME, name);
    (void)pthread_mutex_lock(&d->names);
    if (fstatat(d->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == was->st_dev && st.st_ino == was->st_ino) {
        bool kept = false;
        if (atomic_fetch_add(&d->n_aside, 1) < MOST_ASIDE) {
            (void)mkdirat(d->dir, ASIDE_NAME, 0700);
            kept = renameat(d->dir, name, d->dir, to) == 0;
        }
        done = kept ? "set aside" : unlinkat(d->dir, name, 0) == 0 ? "removed" : "it stays there and is not used";
    }
    (void)pthread_mutex_unlock(&d->names);
    COUNT(d, damaged, 1);
    tern_say(d->say, "cache: %s/%s %s; %s", d->path, name, why, done);
}

static void read_failed(struct tern_disk *d, const char *name, int no)
{
    COUNT(d, errors, 1);
    const bool pause = atomic_fetch_add(&d->bad_reads, 1) + 1 >= ERRORS;
    if (pause) {
        atomic_store(&d->bad_reads, 0);
        atomic_store(&d->read_again, tern_now() + READ_PAUSE);
    }
    tern_say(d->say, "cache: %s/%s: cannot be read: %s%s", d->path, name, strerror(no),
             pause ? "; nothing is read there for 30 seconds" : "");
}

/* Bytes that were read, at most cap; -1: an error. */
static ssize_t read_all(int fd, uint8_t *to, size_t cap)
{
    size_t n = 0;
    while (n < cap) {
        const ssize_t got = pread(fd, to + n, cap - n, (off_t)n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

bool tern_disk_read(struct tern_disk *d, const struct tern_record_name *n, const struct tern_origin *origin, void *to,
                    size_t cap)
{
    char name[TERN_RECORD_NAME];
    tern_error err = {0};
    struct stat st;
    tern_record_name_text(n, name);
    if (!reads(d))
        return false;
    const int fd = openat(d->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        if (errno != ENOENT)
            read_failed(d, name, errno);
        return false;
    }
    ssize_t got = -1;
    if (fstat(fd, &st) == 0) {
        got = S_ISREG(st.st_mode) ? read_all(fd, to, cap) : 0;
        if (got >= 0 && st.st_size > got)
            got = 0; /* longer than any record */
    }
    const int no = errno;
    if (got > 0 && !d->read_only)
        (void)futimens(fd, NULL); /* used now, by whichever clock */
    (void)close(fd);
    if (got < 0) {
        read_failed(d, name, no);
        return false;
    }
    atomic_store(&d->bad_reads, 0);
    if (tern_record_check(to, (size_t)got, n, origin, &err) < 0) {
        set_aside(d, name, &st, err.msg);
        return false;
    }
    (void)pthread_mutex_lock(&d->stats_lock);
    d->stats.read++;
    d->stats.read_bytes += (uint64_t)got;
    (void)pthread_mutex_unlock(&d->stats_lock);
    return true;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

int tern_disk_open(struct tern_disk **out, const char *dir, size_t limit, size_t min_free, struct tern_say *say,
                   tern_error *err)
{
    int rc = 0;
    struct tern_disk *d = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&d, 1, sizeof *d, err));
    d->dir = d->lock = -1;
    (void)pthread_mutex_init(&d->names, NULL);
    (void)pthread_mutex_init(&d->stats_lock, NULL);
    d->limit = limit;
    d->min_free = min_free;
    d->say = say;
    d->path = strdup(dir);
    if (!d->path)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the name of a directory");
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        TERN_FAIL(err, TERN_EIO, "%s: cannot make the directory: %s", dir, strerror(errno));
    d->dir = open_dir(dir);
    if (d->dir < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot open the directory: %s", tern_path_show(dir), strerror(errno));
    d->lock = open_lock(d->dir);
    if (d->lock < 0) {
        d->read_only = true;
        tern_say(say, "cache: %s: cannot be written: %s; what is there is used", dir, strerror(errno));
    }
    look_around(d);
    *out = d;
    d = NULL;
out:
    tern_disk_close(d);
    return rc;
}

void tern_disk_close(struct tern_disk *d)
{
    if (!d)
        return;
    if (d->lock >= 0)
        (void)close(d->lock);
    if (d->dir >= 0)
        (void)close(d->dir);
    (void)pthread_mutex_destroy(&d->names);
    (void)pthread_mutex_destroy(&d->stats_lock);
    free(d->path);
    tern_free(d);
}

void tern_disk_get_stats(struct tern_disk *d, struct tern_tier_stats *out)
{
    (void)pthread_mutex_lock(&d->stats_lock);
    *out = d->stats;
    (void)pthread_mutex_unlock(&d->stats_lock);
    out->open = true;
    out->limit = d->limit;
    out->off = !reads(d);
    out->read_only = d->read_only;
}
