/* Sequences that begin where others were. */
#include "run/run.h"

#include <string.h>

struct tern_kv_cache *tern_engine_cache(tern_engine *e, int plan)
{
    TERN_ASSERT(plan >= 0 && plan < e->n_plans);
    return &e->caches[plan];
}

int tern_seq_start(tern_seq **out, tern_engine *e, int plan, const struct tern_kv_slice *slices, int n_slices,
                   const struct tern_kv_checkpoint *at, const int32_t *tokens, const uint8_t *roles, tern_error *err)
{
    int rc = tern_seq_new_plan(out, e, plan, err);
    if (rc < 0)
        return rc;
    tern_seq *s = *out;
    rc = tern_kv_start(tern_engine_cache(e, plan), s->kv, slices, n_slices, at, err);
    if (rc < 0) {
        tern_seq_free(s);
        *out = NULL;
        return rc;
    }
    memcpy(s->tokens, tokens, (size_t)s->kv->n_tokens * sizeof *tokens);
    memcpy(s->roles, roles, (size_t)s->kv->n_tokens);
    return 0;
}
