#include "text/text.h"

#include "base/mem.h"

int tern_ids_add(struct tern_ids *ids, int32_t id, tern_error *err)
{
    if (ids->len == ids->cap) {
        int rc = tern_grow(&ids->p, &ids->cap, ids->len + 1, sizeof *ids->p, err);
        if (rc < 0)
            return rc;
    }
    ids->p[ids->len++] = id;
    return 0;
}

void tern_ids_clear(struct tern_ids *ids)
{
    tern_free(ids->p);
    *ids = (struct tern_ids){0};
}
