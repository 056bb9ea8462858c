/* Where the files lie that belong to a model: packed weights, key conditioning. */
#include "run/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/map.h"
#include "base/userdir.h"

/* CACHE/NAME-DIGITS.SUFFIX: models of one name in several folders have files of their own. */
static int in_cache(struct tern_buf *out, const char *model, const char *suffix, bool make, tern_error *err)
{
    int rc = 0;
    char *real = realpath(model, NULL);
    const char *whole = real ? real : model, *slash = strrchr(whole, '/');
    TERN_TRY(tern_user_cache(out, make, err));
    TERN_TRY(tern_buf_addf(out, err, "/%s-%016llx%s", slash ? slash + 1 : whole,
                           (unsigned long long)XXH3_64bits(whole, strlen(whole)), suffix));
out:
    free(real);
    return rc;
}

static bool can_write_beside(const char *model)
{
    const char *slash = strrchr(model, '/');
    struct tern_buf folder = {0};
    bool can = tern_buf_addf(&folder, NULL, "%.*s", slash ? (int)(slash - model) + 1 : 1, slash ? model : ".") == 0 &&
               access(folder.p, W_OK | X_OK) == 0;
    tern_buf_clear(&folder);
    return can;
}

int tern_beside(struct tern_buf *out, const char *model, const char *suffix, bool make, tern_error *err)
{
    int rc = 0;
    struct tern_buf cached = {0};
    TERN_TRY(tern_buf_addf(out, err, "%s%s", model, suffix));
    if (access(out->p, F_OK) == 0)
        goto out;
    if (in_cache(&cached, model, suffix, false, NULL) < 0)
        goto out;
    if (access(cached.p, F_OK) < 0) {
        if (can_write_beside(model))
            goto out;
        tern_buf_reset(&cached);
        if (in_cache(&cached, model, suffix, make, NULL) < 0)
            goto out;
    }
    tern_buf_reset(out);
    TERN_TRY(tern_buf_add(out, cached.p, cached.len, err));
out:
    tern_buf_clear(&cached);
    return rc;
}

int tern_model_beside(const tern_model *m, const char *suffix, char *out, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_buf path = {0};
    TERN_TRY(tern_beside(&path, m->path, suffix, true, err));
    if (path.len >= n)
        TERN_FAIL(err, TERN_EINVAL, "%s: path is longer than %zu bytes", tern_path_show(path.p), n - 1);
    memcpy(out, path.p, path.len + 1);
out:
    tern_buf_clear(&path);
    return rc;
}
