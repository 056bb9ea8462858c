#include "base/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAX_PATH  4096
#define MAX_LINKS 40
#define MAX_MAGIC 64

/* ---- what the process has said ----------------------------------------------------------------------------------- */

struct guard {
    uint64_t device, inode;
    unsigned n; /* of guard less unguard */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct guard *guards;
static size_t n_guards, cap_guards;
static atomic_bool forced;

void tern_outfile_force(bool on)
{
    atomic_store(&forced, on);
}

/* lock is held */
static struct guard *find_guard(uint64_t device, uint64_t inode)
{
    for (size_t i = 0; i < n_guards; i++)
        if (guards[i].device == device && guards[i].inode == inode)
            return &guards[i];
    return NULL;
}

static struct guard *add_guard(uint64_t device, uint64_t inode)
{
    if (n_guards == cap_guards) {
        size_t cap = cap_guards ? 2 * cap_guards : 16;
        struct guard *more = realloc(guards, cap * sizeof *guards);
        if (!more)
            return NULL;
        guards = more;
        cap_guards = cap;
    }
    guards[n_guards] = (struct guard){device, inode, 0};
    return &guards[n_guards++];
}

int tern_outfile_guard(uint64_t device, uint64_t inode, tern_error *err)
{
    (void)pthread_mutex_lock(&lock);
    struct guard *g = find_guard(device, inode);
    if (!g)
        g = add_guard(device, inode);
    if (g)
        g->n++;
    (void)pthread_mutex_unlock(&lock);
    return g ? 0 : tern_err_set(err, TERN_ENOMEM, "cannot allocate the list of files in use");
}

void tern_outfile_unguard(uint64_t device, uint64_t inode)
{
    (void)pthread_mutex_lock(&lock);
    struct guard *g = find_guard(device, inode);
    if (g && --g->n == 0)
        *g = guards[--n_guards];
    if (!n_guards) {
        free(guards);
        guards = NULL;
        cap_guards = 0;
    }
    (void)pthread_mutex_unlock(&lock);
}

bool tern_target_guarded(const struct stat *st)
{
    (void)pthread_mutex_lock(&lock);
    bool found = find_guard(st->st_dev, st->st_ino) != NULL;
    (void)pthread_mutex_unlock(&lock);
    return found;
}

int tern_outfile_guard_path(const char *path, tern_error *err)
{
    int rc = 0;
    struct stat st;
    int fd = open(path, O_PATH | O_CLOEXEC); /* stays open: the number of a file that is removed is given to another */
    bool guard = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && !tern_target_guarded(&st);
    if (guard)
        rc = tern_outfile_guard(st.st_dev, st.st_ino, err);
    if (fd >= 0 && (!guard || rc < 0))
        (void)close(fd);
    return rc;
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

/* Bytes of the folder's part of a path, with its slash. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static void folder_of(char *out, const char *path)
{
    size_t n = folder_length(path);
    (void)snprintf(out, MAX_PATH, "%.*s", n ? (int)n : 1, n ? path : ".");
}

/* In a folder that all may write to, a link of another user would choose the file for us. */
static bool is_trap(const char *to, const struct stat *link)
{
    char folder[MAX_PATH];
    struct stat st;
    folder_of(folder, to);
    if (stat(folder, &st) < 0)
        return false;
    bool shared = (st.st_mode & S_ISVTX) && (st.st_mode & S_IWOTH);
    return shared && link->st_uid != geteuid() && link->st_uid != st.st_uid;
}

static int follow_links(char *to, const char *path, tern_error *err)
{
    struct stat st;
    char next[MAX_PATH];
    (void)snprintf(to, MAX_PATH, "%s", path);
    for (int i = 0; lstat(to, &st) == 0 && S_ISLNK(st.st_mode); i++) {
        ssize_t n = readlink(to, next, sizeof next - 1);
        size_t folder = n > 0 && next[0] == '/' ? 0 : folder_length(to);
        if (i == MAX_LINKS || n <= 0 || folder + (size_t)n >= MAX_PATH)
            return tern_err_set(err, TERN_EIO, "%s: its links cannot be followed", tern_path_show(path));
        if (is_trap(to, &st))
            return tern_err_set(err, TERN_EINVAL, "%s: a link of another user, in a folder that all may write to",
                                tern_path_show(path));
        memcpy(to + folder, next, (size_t)n);
        to[folder + (size_t)n] = 0;
    }
    return 0;
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

/* The first bytes of a file: as many as there are.  -1: it cannot be read. */
static ssize_t read_head(int fd, char *head, size_t n)
{
    size_t have = 0;
    while (have < n) {
        ssize_t r = pread(fd, head + have, n - have, (off_t)have);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -1;
        if (r == 0)
            break;
        have += (size_t)r;
    }
    return (ssize_t)have;
}

bool tern_target_left_over(int fd, const struct stat *st, const struct tern_outfile_kind *kind)
{
    static const char zeros[MAX_MAGIC];
    char head[MAX_MAGIC];
    if (st->st_size == 0)
        return true;
    ssize_t n = read_head(fd, head, kind->n);
    return n > 0 && (memcmp(head, kind->magic, (size_t)n) == 0 || memcmp(head, zeros, (size_t)n) == 0);
}

static const char *by_force(const struct tern_outfile_kind *kind)
{
    return kind->unasked ? "" : "; --force replaces it";
}

/* One that was cut inside its magic is of the kind, too. */
static int check_kind(const char *to, const char *path, const struct tern_outfile_kind *kind, tern_error *err)
{
    int rc = 0;
    char head[MAX_MAGIC];
    int fd = open(to, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read_head(fd, head, kind->n);
    if (n < 0)
        rc = tern_err_set(err, TERN_EIO, "%s: is there and cannot be read (%s)%s", tern_path_show(path),
                          strerror(errno), by_force(kind));
    else if (n == 0 || memcmp(head, kind->magic, (size_t)n) != 0)
        rc = tern_err_set(err, TERN_EINVAL, "%s: is there and is not %s%s", tern_path_show(path), kind->what,
                          by_force(kind));
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static int check_regular(const char *to, const char *path, const struct stat *st, const struct tern_outfile_kind *kind,
                         tern_error *err)
{
    if (tern_target_guarded(st))
        return tern_err_set(err, TERN_EINVAL, "%s: this run reads it, so it is not replaced", tern_path_show(path));
    if (atomic_load(&forced) && !kind->unasked)
        return 0;
    if (!(st->st_mode & 0222))
        return tern_err_set(err, TERN_EINVAL, "%s: is write-protected%s", tern_path_show(path), by_force(kind));
    return st->st_size ? check_kind(to, path, kind, err) : 0;
}

int tern_target_find(char *to, const char *path, const struct tern_outfile_kind *kind, bool *through, tern_error *err)
{
    int rc = 0;
    struct stat st;
    *through = false;
    TERN_ASSERT(kind->n > 0 && kind->n <= MAX_MAGIC);
    if (!path || !*path)
        TERN_FAIL(err, TERN_EINVAL, "the name of the file to write is empty");
    if (strlen(path) >= MAX_PATH)
        TERN_FAIL(err, TERN_EINVAL, "%s: path is longer than %d bytes", tern_path_show(path), MAX_PATH - 1);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* links in /proc lead to pipes that have no name */
        *through = (S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode)) && kind->through;
        if (S_ISDIR(st.st_mode))
            TERN_FAIL(err, TERN_EINVAL, "%s: is a directory", tern_path_show(path));
        if (!*through)
            TERN_FAIL(err, TERN_EINVAL, "%s: is no regular file and cannot keep %s", tern_path_show(path), kind->what);
        (void)snprintf(to, MAX_PATH, "%s", path);
        return 0;
    }
    TERN_TRY(follow_links(to, path, err));
    if (lstat(to, &st) == 0)
        TERN_TRY(check_regular(to, path, &st, kind, err));
    else if (errno != ENOENT)
        TERN_FAIL(err, TERN_EIO, "%s: cannot be looked at: %s", tern_path_show(path), strerror(errno));
out:
    return rc;
}

int tern_outfile_check(const char *path, const struct tern_outfile_kind *kind, tern_error *err)
{
    int rc = 0;
    char to[MAX_PATH], folder[MAX_PATH];
    bool through;
    TERN_TRY(tern_target_find(to, path, kind, &through, err));
    folder_of(folder, to);
    if (!through && access(folder, W_OK | X_OK) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot create: %s", tern_path_show(path), strerror(errno));
out:
    return rc;
}

/* ---- what killed processes left ---------------------------------------------------------------------------------- */

/* Is this BASE.tmp-DIGITS? */
static bool is_temporary(const char *name, const char *base)
{
    size_t n = strlen(base);
    if (strncmp(name, base, n) != 0 || strncmp(name + n, ".tmp-", 5) != 0)
        return false;
    const char *digits = name + n + 5;
    return *digits && !digits[strspn(digits, "0123456789")];
}

static void sweep_one(int folder, const char *name, const struct tern_outfile_kind *kind)
{
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    bool ours = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_uid == geteuid() &&
                tern_target_left_over(fd, &st, kind) && !tern_target_guarded(&st);
    if (ours && flock(fd, LOCK_EX | LOCK_NB) == 0) /* a process that lives holds it */
        (void)unlinkat(folder, name, 0);
    (void)close(fd);
}

void tern_target_sweep(const char *to, const struct tern_outfile_kind *kind)
{
    char folder[MAX_PATH];
    size_t n = folder_length(to);
    folder_of(folder, to);
    DIR *d = opendir(folder);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        if (is_temporary(e->d_name, to + n))
            sweep_one(dirfd(d), e->d_name, kind);
    (void)closedir(d);
}
