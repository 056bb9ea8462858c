#include "base/userdir.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"

/* All folders of an absolute path, the last one included. */
static int make_folders(char *path, tern_error *err)
{
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/')
            continue;
        const char end = *p;
        *p = 0;
        int rc = mkdir(path, 0700);
        int why = errno;
        *p = end;
        if (rc < 0 && why != EEXIST)
            return tern_err_set(err, TERN_EIO, "%s: cannot create the folder: %s", tern_path_show(path), strerror(why));
        if (!end)
            return 0;
    }
}

int tern_user_cache(struct tern_buf *out, bool make, tern_error *err)
{
    int rc = 0;
    const size_t start = out->len;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') /* relative ones are to be ignored, says the specification */
        TERN_TRY(tern_buf_addf(out, err, "%s/tern", cache));
    else if (home && *home == '/')
        TERN_TRY(tern_buf_addf(out, err, "%s/.cache/tern", home));
    else
        TERN_FAIL(err, TERN_ENOENT, "neither XDG_CACHE_HOME nor HOME names a folder");
    if (make)
        TERN_TRY(make_folders(out->p + start, err));
out:
    return rc;
}
