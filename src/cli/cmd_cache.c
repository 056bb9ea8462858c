/* tern cache: the files that tern makes of its own accord, and can make again. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/outfile.h"
#include "base/userdir.h"
#include "cli/cli.h"
#include "tern/cache.h"

/* What such files begin with. */
static const struct kind {
    const char *name, *suffix, *magic;
} kinds[] = {
    {"packed weights", ".packed", "ternpak\n"},
    {"key conditioning", ".ternkv", "ternkv\n"},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* The list of files that lie beside models, a path a line; those in the cache folder itself are not in it. */
#define LIST_NAME "written"
#define MAX_LIST  ((size_t)16 << 20)

struct entry {
    char *path; /* owned */
    const struct kind *kind;
    double bytes;
    bool orphan; /* lies beside a model that is gone */
    bool part;   /* a temporary file: of a process that is at it, or of one that was interrupted */
    bool busy;   /* the former */
};

struct cache {
    struct tern_buf folder;
    struct entry *v;
    size_t n, cap;
};

static void clear(struct cache *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->v[i].path);
    tern_free(c->v);
    tern_buf_clear(&c->folder);
}

/* The kind of a regular file, NULL when it is none of tern's. */
static const struct kind *kind_of(const char *path, struct stat *st)
{
    char head[8];
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode) ? pread(fd, head, sizeof head, 0) : 0;
    if (fd >= 0)
        (void)close(fd);
    for (size_t i = 0; i < N_KINDS; i++)
        if ((size_t)n >= strlen(kinds[i].magic) && memcmp(head, kinds[i].magic, strlen(kinds[i].magic)) == 0)
            return &kinds[i];
    return NULL;
}

/* Where the suffix of a temporary file begins (base/outfile.h); NULL: it has none. */
static const char *tmp_suffix(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (!dot || strncmp(dot, ".tmp", 4) != 0)
        return NULL;
    const char *pid = dot[4] == '-' && dot[5] ? dot + 5 : dot + 4;
    return pid[strspn(pid, "0123456789")] || (pid == dot + 4 && *pid) ? NULL : dot;
}

/* The same of a temporary file that tern made under this name: what is written last may still be zeros. */
static const struct kind *kind_of_part(int fd, const char *path, const struct stat *st)
{
    const char *end = tmp_suffix(path);
    const struct kind *found = NULL;
    for (size_t i = 0; end && i < N_KINDS; i++) {
        const size_t n = strlen(kinds[i].suffix);
        const struct tern_outfile_kind k = {kinds[i].name, kinds[i].magic, strlen(kinds[i].magic), false, true};
        const bool named = end - path > (ptrdiff_t)n && memcmp(end - n, kinds[i].suffix, n) == 0;
        if (tern_target_left_over(fd, st, &k) && (named || !found))
            found = &kinds[i];
    }
    return found;
}

/* Opens one; -1: it is none.  Whoever writes it holds a lock: *busy. */
static int open_part(const char *path, const struct kind **kind, struct stat *st, bool *busy)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    *kind = fstat(fd, st) == 0 && S_ISREG(st->st_mode) ? kind_of_part(fd, path, st) : NULL;
    if (*kind) {
        *busy = flock(fd, LOCK_SH | LOCK_NB) < 0; /* shared: others may look at the same time */
        return fd;
    }
    (void)close(fd);
    return -1;
}

static bool is_listed(const struct cache *c, const char *path)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->v[i].path, path) == 0)
            return true;
    return false;
}

static int add(struct cache *c, const char *path, bool beside, tern_error *err)
{
    int rc = 0;
    bool busy = false;
    struct stat st;
    const struct kind *kind;
    const int fd = open_part(path, &kind, &st, &busy);
    if (fd >= 0)
        (void)close(fd);
    else
        kind = kind_of(path, &st);
    if (!kind || is_listed(c, path))
        return 0;
    struct entry e = {.path = strdup(path), .kind = kind, .bytes = (double)st.st_size, .part = fd >= 0, .busy = busy};
    const char *tmp = e.part ? tmp_suffix(path) : NULL;
    size_t n = tmp ? (size_t)(tmp - path) : strlen(path), suffix = strlen(kind->suffix);
    if (!e.path)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the list of files");
    if (beside && n > suffix && memcmp(path + n - suffix, kind->suffix, suffix) == 0) {
        e.path[n - suffix] = 0;
        e.orphan = access(e.path, F_OK) < 0;
        e.path[n - suffix] = kind->suffix[0];
    }
    rc = c->n == c->cap ? tern_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v, err) : 0;
    if (rc < 0)
        free(e.path);
    else
        c->v[c->n++] = e;
out:
    return rc;
}

static int list_path(struct tern_buf *out, bool make, tern_error *err)
{
    int rc = tern_user_cache(out, make, err);
    return rc < 0 ? rc : tern_buf_addf(out, err, "/" LIST_NAME);
}

static int read_list(struct tern_buf *text, tern_error *err)
{
    struct tern_buf path = {0};
    int rc = list_path(&path, false, err);
    if (rc == 0 && access(path.p, F_OK) == 0)
        rc = tern_buf_read_regular(text, path.p, MAX_LIST, err);
    tern_buf_clear(&path);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static int find_all(struct cache *c, tern_error *err)
{
    int rc = 0;
    struct tern_buf list = {0}, path = {0};
    DIR *d = NULL;
    TERN_TRY(tern_user_cache(&c->folder, false, err));
    d = opendir(c->folder.p);
    for (struct dirent *e; d && (e = readdir(d));) {
        tern_buf_reset(&path);
        TERN_TRY(tern_buf_addf(&path, err, "%s/%s", c->folder.p, e->d_name));
        TERN_TRY(add(c, path.p, false, err));
    }
    TERN_TRY(read_list(&list, err));
    for (char *line = list.p, *end; line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        if (*line != '/')
            continue;
        TERN_TRY(add(c, line, true, err));
        tern_buf_reset(&path);
        TERN_TRY(tern_buf_addf(&path, err, "%s.tmp", line));
        TERN_TRY(add(c, path.p, true, err));
    }
    if (c->n)
        qsort(c->v, c->n, sizeof *c->v, by_path);
out:
    if (d)
        (void)closedir(d);
    tern_buf_clear(&list);
    tern_buf_clear(&path);
    return rc;
}

int tern_cache_unfinished(double *bytes)
{
    struct cache c = {0};
    int n = 0;
    *bytes = 0;
    (void)find_all(&c, NULL); /* where something cannot be read, what was found before counts */
    for (size_t i = 0; i < c.n; i++)
        if (c.v[i].part && !c.v[i].busy) {
            n++;
            *bytes += c.v[i].bytes;
        }
    clear(&c);
    return n;
}

/* realpath of a file that may not be there yet, in a folder that is; NULL: there is none. */
static char *real_name(const char *path)
{
    struct tern_buf whole = {0};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *real = realpath(path, NULL), *folder = NULL;
    if (real)
        return real;
    if (tern_buf_addf(&whole, NULL, "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".") == 0)
        folder = realpath(whole.p, NULL);
    tern_buf_reset(&whole);
    if (folder && tern_buf_addf(&whole, NULL, "%s/%s", folder, name) == 0)
        real = strdup(whole.p);
    free(folder);
    tern_buf_clear(&whole);
    return real;
}

/* A list that cannot be written is no reason to stop: `cache ls` will not know the file. */
void tern_cache_remember(const char *path)
{
    struct tern_buf list = {0}, old = {0}, line = {0};
    char *real = real_name(path);
    if (!real || strchr(real, '\n') || tern_buf_addf(&line, NULL, "\n%s\n", real) < 0)
        goto out;
    if (read_list(&old, NULL) < 0 || tern_buf_addf(&list, NULL, "\n") < 0 ||
        tern_buf_add(&list, old.p ? old.p : "", old.len, NULL) < 0 || strstr(list.p, line.p))
        goto out;
    tern_buf_reset(&list);
    if (list_path(&list, true, NULL) < 0)
        goto out;
    int fd = open(list.p, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)!write(fd, line.p + 1, line.len - 1);
        (void)close(fd);
    }
out:
    free(real);
    tern_buf_clear(&list);
    tern_buf_clear(&old);
    tern_buf_clear(&line);
}

/* ---- a server's directory, and cache files ----------------------------------------------------------------------- */

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int print_dir(const struct tern_args *a, const char *command, const char *path, const tern_cache_dir *d,
                     tern_error *err)
{
    if (a->v[TERN_OPT_JSON].n)
        return tern_report_print(tern_report_json(command, NULL, 0),
                                 json_pack("{so sI sI sI sI}", "folder", tern_json_text(path), "pages",
                                           (json_int_t)d->pages, "ends", (json_int_t)d->ends, "bytes",
                                           (json_int_t)d->bytes, "others", (json_int_t)d->others),
                                 err);
    return tern_out_printf(err, "%10s  %zu pages of 64 tokens, %zu ends of prompts  %s%s\n",
                           tern_size_text((double)d->bytes), d->pages, d->ends, tern_shown(path),
                           d->others ? " (and files of others)" : "");
}

static void tell(void *user, const char *line)
{
    (void)user;
    tern_note("%s", line);
}

/* *bad: it is not what it should be, and that was told. */
static int verify(const struct tern_args *a, const char *path, bool *bad, tern_error *err)
{
    int rc = 0;
    tern_cache_dir d;
    tern_cache_file f;
    tern_error why = {0};
    if (is_dir(path)) {
        TERN_TRY(tern_cache_dir_scan(path, true, tell, NULL, &d, err));
        *bad = d.damaged > 0;
        TERN_TRY(print_dir(a, "cache verify", path, &d, err));
    } else if (tern_cache_check(path, &f, &why) < 0) {
        *bad = true;
        tern_note("%s", tern_shown(why.msg));
    } else {
        TERN_TRY(tern_out_printf(err, "%10s  %d tokens, --kv %s, %s, version %s  %s\n", tern_size_text((double)f.bytes),
                                 f.n_tokens, f.kv, f.arithmetic, f.version, tern_shown(path)));
    }
out:
    return rc;
}

int tern_cmd_cache_verify(const struct tern_args *a, tern_error *err)
{
    int rc = 0, n_bad = 0;
    if (!a->n_operands)
        return tern_cli_usage(err, "cache verify wants cache files, or directories of serve --cache-disk");
    for (int i = 0; i < a->n_operands; i++) {
        bool bad = false;
        TERN_TRY(verify(a, a->operands[i], &bad, err));
        n_bad += bad;
    }
    if (n_bad)
        TERN_FAIL(err, TERN_EFORMAT, "%d of %d are not what they should be", n_bad, a->n_operands);
out:
    return rc;
}

/* ---- all that tern keeps ----------------------------------------------------------------------------------------- */

int tern_cmd_cache_ls(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct cache c = {0};
    double bytes = 0;
    tern_cache_dir d;
    if (a->n_operands) {
        rc = tern_cache_dir_scan(a->operands[0], false, NULL, NULL, &d, err);
        return rc < 0 ? rc : print_dir(a, "cache ls", a->operands[0], &d, err);
    }
    TERN_TRY(find_all(&c, err));
    json_t *files = json_array();
    for (size_t i = 0; i < c.n; i++)
        json_array_append_new(files,
                              json_pack("{so ss sI sb sb sb}", "path", tern_json_text(c.v[i].path), "kind",
                                        c.v[i].kind->name, "bytes", (json_int_t)c.v[i].bytes, "orphan", c.v[i].orphan,
                                        "unfinished", c.v[i].part && !c.v[i].busy, "being_written", c.v[i].busy));
    if (a->v[TERN_OPT_JSON].n) {
        rc = tern_report_print(tern_report_json("cache ls", NULL, 0),
                               json_pack("{so sO}", "folder", tern_json_text(c.folder.p), "files", files), err);
    } else {
        for (size_t i = 0; i < c.n && rc == 0; i++) {
            bytes += c.v[i].bytes;
            rc = tern_out_printf(err, "%10s  %-16s  %s%s\n", tern_size_text(c.v[i].bytes), c.v[i].kind->name,
                                 tern_shown(c.v[i].path),
                                 c.v[i].busy                    ? " (being written)"
                                 : c.v[i].part && c.v[i].orphan ? " (unfinished, and its model is gone)"
                                 : c.v[i].part                  ? " (unfinished: the run that wrote it was interrupted)"
                                 : c.v[i].orphan                ? " (its model is gone)"
                                                                : "");
        }
        tern_note("%zu file%s, %s; what is not beside a model lies in %s", c.n, c.n == 1 ? "" : "s",
                  tern_size_text(bytes), tern_shown(c.folder.p));
    }
    json_decref(files);
out:
    clear(&c);
    return rc;
}

/* Is this what the user calls the file: its path, however written, or its name? */
static bool is_called(const struct entry *e, const char *name)
{
    struct stat a, b;
    const char *slash = strrchr(e->path, '/');
    return strcmp(e->path, name) == 0 || strcmp(slash + 1, name) == 0 ||
           (stat(name, &a) == 0 && stat(e->path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

/* A temporary file goes under its lock, and while the name still is that file's. */
static int remove_part(const char *path, bool *busy, tern_error *err)
{
    int rc = 0;
    const struct kind *kind;
    struct stat st, named;
    const int fd = open_part(path, &kind, &st, busy);
    if (fd < 0) /* finished meanwhile, or gone */
        return 0;
    const bool same = lstat(path, &named) == 0 && named.st_dev == st.st_dev && named.st_ino == st.st_ino;
    if (!*busy && same && unlink(path) < 0)
        rc = tern_err_set(err, TERN_EIO, "%s: cannot remove: %s", tern_shown(path), strerror(errno));
    (void)close(fd);
    return rc;
}

static int remove_entry(const struct entry *e, bool *busy, tern_error *err)
{
    *busy = false;
    if (e->part)
        return remove_part(e->path, busy, err);
    return unlink(e->path) == 0
               ? 0
               : tern_err_set(err, TERN_EIO, "%s: cannot remove: %s", tern_shown(e->path), strerror(errno));
}

int tern_cmd_cache_rm(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct cache c = {0};
    const bool all = a->v[TERN_OPT_CACHE_ALL].n > 0;
    size_t removed = 0;
    double bytes = 0;
    tern_cache_dir d;
    if (all == (a->n_operands > 0))
        return tern_cli_usage(err, "cache rm wants the names of files, or --all");
    if (a->n_operands == 1 && is_dir(a->operands[0])) {
        rc = tern_cache_dir_clear(a->operands[0], &d, err);
        if (rc == 0)
            tern_note("removed %zu file%s, %s", d.pages + d.ends, d.pages + d.ends == 1 ? "" : "s",
                      tern_size_text((double)d.bytes));
        return rc;
    }
    TERN_TRY(find_all(&c, err));
    for (int i = 0; i < a->n_operands; i++) { /* all are known, or none is removed */
        bool known = false;
        for (size_t j = 0; j < c.n; j++)
            known |= is_called(&c.v[j], a->operands[i]);
        if (!known)
            TERN_FAIL(err, TERN_EINVAL, "%s: is not in the list of 'tern cache ls'", tern_shown(a->operands[i]));
    }
    for (size_t j = 0; j < c.n; j++) {
        bool wanted = all;
        for (int i = 0; i < a->n_operands; i++)
            wanted |= is_called(&c.v[j], a->operands[i]);
        if (!wanted)
            continue;
        bool busy;
        TERN_TRY(remove_entry(&c.v[j], &busy, err));
        if (busy) {
            tern_note("%s stays: another process is writing it", tern_shown(c.v[j].path));
            continue;
        }
        removed++;
        bytes += c.v[j].bytes;
    }
    tern_note("removed %zu file%s, %s", removed, removed == 1 ? "" : "s", tern_size_text(bytes));
out:
    clear(&c);
    return rc;
}
