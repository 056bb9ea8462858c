/* base/outfile.h - a file that appears under its name only when it is complete, and takes nothing of the user's away.
 *
 * Bytes go to PATH.tmp-PID (or PATH.tmp) in the same folder; commit makes them durable and renames.  Whatever fails, an
 * existing file under the name stays as it was and the temporary one goes; what a killed process left goes when the
 * same name is written again.
 *
 * What may be replaced, for every file that is written:
 *   - a regular file of the same kind (its first bytes say so) or an empty one; another, or a write-protected one, only
 *     after tern_outfile_force;
 *   - never a file that is guarded: a model that is mapped, a text that this run reads;
 *   - links are followed, and the file that they lead to is replaced in its own folder;
 *   - into a character device or a pipe the bytes are written as they come, where the kind allows that;
 *   - directories, block devices and sockets are refused.
 * Thread: any; guards and force are the process's. */
#ifndef TERN_BASE_OUTFILE_H
#define TERN_BASE_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* A kind of file, by the n bytes that each begins with. */
struct tern_outfile_kind {
    const char *what; /* "a session", for messages */
    const char *magic;
    size_t n;     /* at most 64 */
    bool through; /* one after another, the bytes make sense in a device or pipe too */
};

struct tern_outfile {
    int fd;
    const char *path; /* as given, for messages; borrowed until commit or abort */
    const struct tern_outfile_kind *kind;
    bool hasty;     /* commit does not wait until the bytes are on the disk */
    char to[4096];  /* where the links of path lead */
    char tmp[4096]; /* "": nothing to rename or to remove */
};

/* May a file of this kind be written to path?  For programs that would find out after hours of work. */
int tern_outfile_check(const char *path, const struct tern_outfile_kind *kind, tern_error *err);
/* From now on files of other kinds are replaced too. */
void tern_outfile_force(bool on);
/* Nothing replaces this file until as many calls of unguard. */
int tern_outfile_guard(uint64_t device, uint64_t inode, tern_error *err);
void tern_outfile_unguard(uint64_t device, uint64_t inode);
/* The same for good, by name; a name that leads to no file is no failure. */
int tern_outfile_guard_path(const char *path, tern_error *err);

/* mode: permissions, less the umask.  On failure *f needs no abort. */
int tern_outfile_open(struct tern_outfile *f, const char *path, int mode, const struct tern_outfile_kind *kind,
                      tern_error *err);
/* The same for large files that can be made again at any time, by any of several processes, and whose readers check
 * every byte: one writer at a time, in PATH.tmp under a lock, where it takes over what a killed one left.
 * TERN_ECAPACITY while another process is at it.  Commit does not wait for the disk. */
int tern_outfile_open_alone(struct tern_outfile *f, const char *path, int mode, const struct tern_outfile_kind *kind,
                            tern_error *err);
/* For what takes long and is to be gone on with after an interruption: PATH.part under a lock, with the bytes that are
 * there already.  Its end is commit, abort, or keep, which leaves PATH.part. */
int tern_outfile_open_part(struct tern_outfile *f, const char *path, int mode, const struct tern_outfile_kind *kind,
                           tern_error *err);
int tern_outfile_resize(struct tern_outfile *f, uint64_t bytes, tern_error *err);
int tern_outfile_write_at(struct tern_outfile *f, const void *data, size_t n, uint64_t at, tern_error *err);
uint64_t tern_outfile_size(const struct tern_outfile *f);
bool tern_outfile_read_at(const struct tern_outfile *f, void *data, size_t n, uint64_t at); /* of open_part */
void tern_outfile_keep(struct tern_outfile *f);                                             /* legal where abort is */
/* Asks for the room that `bytes` will take, so that a full disk is found before they are made. */
int tern_outfile_reserve(struct tern_outfile *f, size_t bytes, tern_error *err);
int tern_outfile_write(struct tern_outfile *f, const void *data, size_t n, tern_error *err);
/* Ends f in any case. */
int tern_outfile_commit(struct tern_outfile *f, tern_error *err);
/* Drops the file; legal after commit, after a failed open and on a zeroed f. */
void tern_outfile_abort(struct tern_outfile *f);

#endif
