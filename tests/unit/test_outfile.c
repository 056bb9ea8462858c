/* What may be replaced by a file that is written, and what stays of it when a run ends early. */
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/map.h"
#include "base/outfile.h"

static const struct tern_outfile_kind kind = {"a test file", "MAGIC", 5, true, false};
static const struct tern_outfile_kind kept = {"a kept file", "MAGIC", 5, false, false};

static int put_kind(const char *path, const char *bytes, const struct tern_outfile_kind *k, tern_error *err)
{
    struct tern_outfile f;
    int rc = tern_outfile_open(&f, path, 0644, k, err);
    if (rc < 0)
        return rc;
    rc = tern_outfile_write(&f, bytes, strlen(bytes), err);
    if (rc == 0)
        rc = tern_outfile_commit(&f, err);
    tern_outfile_abort(&f);
    return rc;
}

static int put(const char *path, const char *bytes, tern_error *err)
{
    return put_kind(path, bytes, &kind, err);
}

static void holds(const char *path, const char *bytes)
{
    char have[64] = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(have, 1, sizeof have - 1, f);
    assert_int_equal(n, strlen(bytes));
    assert_string_equal(have, bytes);
    (void)fclose(f);
}

static int n_entries(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static void refused(const char *path, const char *why)
{
    tern_error err = {0};
    assert_true(put(path, "MAGIC", &err) < 0);
    if (!strstr(err.msg, why) || !strstr(err.msg, strrchr(path, '/') + 1))
        fail_msg("\"%s\" does not say \"%s\" of %s", err.msg, why, path);
    assert_true(tern_outfile_check(path, &kind, &err) < 0);
}

static void regular_files(void **state)
{
    (void)state;
    tern_error err = {0};
    char path[300], hard[300];
    clear_dir();
    (void)snprintf(path, sizeof path, "%s", in_dir("new"));
    assert_int_equal(put(path, "MAGIC one", &err), 0);
    assert_int_equal(put(path, "MAGIC two", &err), 0); /* the same kind */
    holds(path, "MAGIC two");
    write_text("empty", "");
    assert_int_equal(put(in_dir("empty"), "MAGIC", &err), 0);
    const char *foreign[] = {"important text", "m", "MAGIx", "magic"};
    for (size_t i = 0; i < 4; i++) {
        write_text("other", foreign[i]);
        refused(in_dir("other"), "is not a test file; --force");
        holds(in_dir("other"), foreign[i]);
    }
    const struct tern_outfile_kind unasked = {"a file of our own", "MAGIC", 5, false, true};
    tern_outfile_force(true);
    assert_int_equal(put_kind(in_dir("other"), "MAGIC", &unasked, &err), TERN_EINVAL);
    assert_null(strstr(err.msg, "--force"));
    holds(in_dir("other"), foreign[3]);
    assert_int_equal(put(in_dir("other"), "MAGIC", &err), 0);
    tern_outfile_force(false);
    holds(in_dir("other"), "MAGIC");
    assert_int_equal(chmod(path, 0444), 0);
    refused(path, "write-protected");
    assert_int_equal(chmod(path, 0644), 0);
    (void)snprintf(hard, sizeof hard, "%s", in_dir("hard"));
    assert_int_equal(link(path, hard), 0);
    /* An input keeps its bytes under every name, --force or not. */
    assert_int_equal(tern_outfile_guard_path(hard, &err), 0);
    tern_outfile_force(true);
    refused(path, "this run reads it");
    tern_outfile_force(false);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    tern_outfile_unguard(st.st_dev, st.st_ino);
    assert_int_equal(put(path, "MAGIC three", &err), 0);
    holds(hard, "MAGIC two");
    assert_int_equal(n_entries(), 4); /* no temporary one stays */
}

static void mapped_files(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tern_map a, b;
    clear_dir();
    write_text("model", "MAGIC model");
    assert_int_equal(tern_map_open(&a, in_dir("model"), "a model", &err), 0);
    assert_int_equal(tern_map_open(&b, in_dir("model"), "a model", &err), 0);
    refused(in_dir("model"), "this run reads it");
    tern_map_close(&a);
    tern_map_close(&a);
    refused(in_dir("model"), "this run reads it");
    tern_map_close(&b);
    assert_int_equal(put(in_dir("model"), "MAGIC new", &err), 0);
    /* A part of a long job is not begun in a file that is read either. */
    write_text("x.part", "MAGIC part");
    assert_int_equal(tern_map_open(&a, in_dir("x.part"), "a model", &err), 0);
    struct tern_outfile f;
    assert_true(tern_outfile_open_part(&f, in_dir("x"), 0644, &kept, &err) < 0);
    tern_map_close(&a);
    holds(in_dir("x.part"), "MAGIC part");
}

static void links(void **state)
{
    (void)state;
    tern_error err = {0};
    struct stat st;
    char path[300];
    clear_dir();
    write_text("file", "MAGIC old");
    assert_int_equal(symlink("file", in_dir("link")), 0);
    assert_int_equal(symlink("link", in_dir("chain")), 0);
    assert_int_equal(symlink("absent", in_dir("dangling")), 0);
    assert_int_equal(symlink("loop", in_dir("loop")), 0);
    assert_int_equal(put(in_dir("chain"), "MAGIC new", &err), 0);
    holds(in_dir("file"), "MAGIC new");
    assert_true(lstat(in_dir("chain"), &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(lstat(in_dir("link"), &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(put(in_dir("dangling"), "MAGIC", &err), 0);
    holds(in_dir("absent"), "MAGIC");
    write_text("file", "something else");
    refused(in_dir("chain"), "is not a test file");
    refused(in_dir("loop"), "links cannot be followed");
    (void)snprintf(path, sizeof path, "%s/no/such/folder", dir);
    refused(path, "cannot create");
    assert_int_equal(n_entries(), 6);
}

/* Devices, pipes, folders, sockets: none becomes a regular file. */
static void not_regular(void **state)
{
    (void)state;
    tern_error err = {0};
    struct stat st;
    struct tern_outfile f;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    clear_dir();
    assert_int_equal(put("/dev/null", "MAGIC", &err), 0);
    assert_true(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    assert_true(put_kind("/dev/null", "MAGIC", &kept, &err) < 0);
    assert_non_null(strstr(err.msg, "cannot keep a kept file"));
    assert_true(tern_outfile_open_alone(&f, "/dev/null", 0644, &kind, &err) < 0);
    assert_true(tern_outfile_open_part(&f, "/dev/null", 0644, &kind, &err) < 0);
    assert_true(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    if (access("/dev/full", W_OK) == 0) {
        assert_true(put("/dev/full", "MAGIC", &err) < 0);
        assert_non_null(strstr(err.msg, "No space"));
    }
    refused(dir, "is a directory");
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)snprintf(name.sun_path, sizeof name.sun_path, "%s", in_dir("socket"));
    assert_int_equal(bind(s, (struct sockaddr *)&name, sizeof name), 0);
    refused(in_dir("socket"), "no regular file");
    (void)close(s);
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_true(put(in_dir("pipe"), "MAGIC", &err) < 0);
    assert_non_null(strstr(err.msg, "nobody reads"));
    int r = open(in_dir("pipe"), O_RDONLY | O_NONBLOCK);
    char bytes[8] = {0};
    assert_int_equal(put(in_dir("pipe"), "MAGIC", &err), 0);
    assert_int_equal(read(r, bytes, sizeof bytes), 5);
    assert_string_equal(bytes, "MAGIC");
    (void)close(r);
    if (mknod(in_dir("null"), S_IFCHR | 0666, makedev(1, 3)) == 0) { /* as root, in a container that lets it */
        int rc = put(in_dir("null"), "MAGIC", &err);
        assert_true(rc == 0 || strstr(err.msg, "cannot open")); /* file systems may forbid devices */
        assert_true(lstat(in_dir("null"), &st) == 0 && S_ISCHR(st.st_mode));
    }
    if (mknod(in_dir("disk"), S_IFBLK | 0600, makedev(7, 250)) == 0) {
        refused(in_dir("disk"), "no regular file");
        assert_true(lstat(in_dir("disk"), &st) == 0 && S_ISBLK(st.st_mode));
    }
}

/* Leaves a temporary file as a killed process does, or dies with it when it is to live. */
static void leave(const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        struct tern_outfile f;
        tern_error err = {0};
        if (tern_outfile_open(&f, path, 0644, &kind, &err) == 0)
            (void)tern_outfile_write(&f, "MAGIC half", 10, &err);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
}

static void killed_runs(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tern_outfile f, g;
    char path[300];
    clear_dir();
    (void)snprintf(path, sizeof path, "%s", in_dir("file"));
    leave(path);
    leave(path); /* clears what the first left */
    assert_int_equal(n_entries(), 1);
    write_text("file.tmp-7777777", "notes of a user"); /* the name alone proves nothing */
    write_text("file.tmp-77x", "MAGIC");
    write_text("other.tmp-7777777", "MAGIC");
    assert_int_equal(put(path, "MAGIC whole", &err), 0);
    holds(path, "MAGIC whole");
    assert_int_equal(n_entries(), 4);
    /* A writer that lives is left alone: its own process cannot clear it either. */
    assert_int_equal(tern_outfile_open(&f, path, 0644, &kind, &err), 0);
    assert_int_equal(tern_outfile_open(&g, path, 0644, &kind, &err), TERN_ECAPACITY);
    assert_int_equal(tern_outfile_write(&f, "MAGIC first", 11, &err), 0);
    leave(path);
    assert_int_equal(tern_outfile_commit(&f, &err), 0);
    holds(path, "MAGIC first");
    /* The one name of files that are written alone: what tern left is taken over, what a user has is not. */
    write_bytes("file.tmp", "\0\0\0\0\0\0", 6);
    assert_int_equal(tern_outfile_open_alone(&f, path, 0644, &kind, &err), 0);
    tern_outfile_abort(&f);
    write_text("file.tmp", "notes");
    assert_true(tern_outfile_open_alone(&f, path, 0644, &kind, &err) < 0);
    assert_non_null(strstr(err.msg, "file.tmp"));
    holds(in_dir("file.tmp"), "notes");
    assert_int_equal(put(path, "MAGIC last", &err), 0);
}

/* Somebody else's file that comes while one is written stays. */
static void late_comer(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tern_outfile f;
    char path[300];
    clear_dir();
    (void)snprintf(path, sizeof path, "%s", in_dir("file"));
    assert_int_equal(tern_outfile_open(&f, path, 0644, &kind, &err), 0);
    write_text("file", "important");
    assert_true(tern_outfile_commit(&f, &err) < 0);
    holds(path, "important");
    assert_int_equal(n_entries(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regular_files), cmocka_unit_test(mapped_files), cmocka_unit_test(links),
        cmocka_unit_test(not_regular),   cmocka_unit_test(killed_runs),  cmocka_unit_test(late_comer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
