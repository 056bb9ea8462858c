/* What a device is told of caches and sequences. */
#include "kv/kv.h"

void tern_kv_dev_cache(struct tern_dev_cache *out, struct tern_dev_blocks *pages, const struct tern_kv_cache *c)
{
    const struct tern_kv_layout *l = c->layout;
    for (int g = 0; g < l->n_groups; g++)
        pages[g] = c->pool[g].mem;
    *out = (struct tern_dev_cache){.n_layers = l->n_layers,
                                   .n_spans = l->n_spans,
                                   .layers = l->layers,
                                   .group_of = l->group_of,
                                   .span_layer = l->span_layer,
                                   .state_off = l->state_off,
                                   .pages = pages,
                                   .tiles = c->tiles.mem,
                                   .sinks = c->sinks.mem,
                                   .states = c->states.mem};
}

struct tern_dev_job tern_kv_dev_job(const struct tern_kv_seq *s, int cache, struct tern_dev_table *tables)
{
    for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
        tables[g] = (struct tern_dev_table){s->table[g].pages, s->table[g].first, s->table[g].n};
    return (struct tern_dev_job){.cache = cache,
                                 .pos0 = s->n_tokens,
                                 .tables = tables,
                                 .tile = s->tile,
                                 .sink = s->sink,
                                 .state = s->state,
                                 .marks = s->marks,
                                 .n_marks = s->n_marks};
}
