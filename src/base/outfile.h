/* base/outfile.h - a file that appears under its name only when it is complete, and takes nothing of the user's away.
 *
 * Bytes go to PATH.tmp-PID (or PATH.tmp) in the same folder; commit makes them durable and renames.  Whatever fails, an
 * existing file under the name stays as it was and the temporary one goes; what a killed process left goes when the
 * same name is written again.
 *
 * What may be replaced: base/target.h.  Thread: any. */
#ifndef TERN_BASE_OUTFILE_H
#define TERN_BASE_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/target.h"

struct tern_outfile {
    int fd;
    const char *path; /* as given, for messages; borrowed until commit or abort */
    const struct tern_outfile_kind *kind;
    bool hasty;     /* commit does not wait until the bytes are on the disk */
    char to[4096];  /* where the links of path lead */
    char tmp[4096]; /* "": nothing to rename or to remove */
};

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
