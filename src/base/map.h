/* base/map.h - regular files, read through a read-only memory map.
 *
 * The pages are those of the system's cache: processes that map the same file share them.  A file that another program
 * truncates while it is mapped kills the reader (SIGBUS); replace such files by renaming. */
#ifndef TERN_BASE_MAP_H
#define TERN_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* What the system says about a file.  Whatever writes to a file, replaces it or restores an old modification time
 * changes one of these. */
struct tern_map_id {
    uint64_t inode, bytes;
    int64_t modified_s, modified_ns; /* contents */
    int64_t changed_s, changed_ns;   /* contents or attributes; no program can set it */
};

struct tern_map {
    const uint8_t *p; /* NULL: not mapped */
    size_t n;
    struct tern_map_id id;
    uint64_t device;
};

/* Maps a regular file that is not empty, and guards it (base/outfile.h) until it is closed.  what: "a model file", for
 * messages.  TERN_ENOENT when there is no such file; on failure *m needs no close. */
int tern_map_open(struct tern_map *m, const char *path, const char *what, tern_error *err);
void tern_map_close(struct tern_map *m); /* legal on a zeroed *m, and twice */

/* Tells the system that this process does not need the whole pages of [p, p+n) of a map any more. */
void tern_map_forget(const void *p, size_t n);

#endif
