/* base/userdir.h - the folder of the user's where tern keeps what it can make again.  Thread: any. */
#ifndef TERN_BASE_USERDIR_H
#define TERN_BASE_USERDIR_H

#include <stdbool.h>
#include "base/buf.h"
#include "base/err.h"

/* Appends $XDG_CACHE_HOME/tern, else $HOME/.cache/tern; make: it is there afterwards, for the user alone.  TERN_ENOENT
 * when neither variable names a folder. */
int tern_user_cache(struct tern_buf *out, bool make, tern_error *err);

#endif
