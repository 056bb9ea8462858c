/* support/scratch.h - a directory of the test program's own, which set_up makes and tear_down removes.  Header-only;
 * any failure fails the running cmocka test. */
#ifndef TERN_TEST_SCRATCH_H
#define TERN_TEST_SCRATCH_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/tern-test-XXXXXX";

/* DIR/name, good for two of them at once. */
static inline const char *in_dir(const char *name)
{
    static char path[2][300];
    static int turn;
    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static inline void write_bytes(const char *name, const void *p, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

/* Removes all files, but no directory. */
static inline void clear_dir(void)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        (void)unlink(in_dir(e->d_name));
    if (d)
        (void)closedir(d);
}

static inline int set_up(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    clear_dir();
    return rmdir(dir);
}

#endif
