/* base/target.h - where an output may go: what base/outfile.c asks before it touches a name.
 *
 * What may be replaced, for every file that is written:
 *   - a regular file of the same kind (its first bytes say so) or an empty one; another, or a write-protected one, only
 *     after tern_outfile_force;
 *   - never a file that is guarded: a model that is mapped, a text that this run reads;
 *   - links are followed, and the file that they lead to is replaced in its own folder;
 *   - into a character device or a pipe the bytes are written as they come, where the kind allows that;
 *   - directories, block devices and sockets are refused.
 * Thread: any; guards and force are the process's. */
#ifndef TERN_BASE_TARGET_H
#define TERN_BASE_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include "base/err.h"

/* A kind of file, by the n bytes that each begins with. */
struct tern_outfile_kind {
    const char *what; /* "a session", for messages */
    const char *magic;
    size_t n;     /* at most 64 */
    bool through; /* one after another, the bytes make sense in a device or pipe too */
    bool unasked; /* written without having been asked for, so --force does not mean it */
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

/* Follows the links of `path` into to[4096] and says whether a file of this kind may be written there; *through: into
 * the device or pipe that `path` is. */
int tern_target_find(char *to, const char *path, const struct tern_outfile_kind *kind, bool *through, tern_error *err);
bool tern_target_guarded(const struct stat *st);
/* Is this temporary file one that tern has left?  Its room may have been asked for before its first byte was written.
 */
bool tern_target_left_over(int fd, const struct stat *st, const struct tern_outfile_kind *kind);
/* Removes the temporary files of `to` whose processes have died. */
void tern_target_sweep(const char *to, const struct tern_outfile_kind *kind);

#endif
