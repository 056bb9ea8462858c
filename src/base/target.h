/* base/target.h - where an output may go: what base/outfile.c asks before it touches a name.  The rule stands in
 * base/outfile.h. */
#ifndef TERN_BASE_TARGET_H
#define TERN_BASE_TARGET_H

#include <stdbool.h>
#include <sys/stat.h>
#include "base/err.h"

struct tern_outfile_kind;

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
