/* What the cache holds as a cache file, and a cache file into the cache. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "run/prefix/cachefile.h"
#include "run/prefix/tree.h"

/* ---- out --------------------------------------------------------------------------------------------------------- */

struct tern_prefix_out {
    struct tern_cachefile_content c;
    int32_t *tokens;
    struct tern_kv_slice *slices; /* [n_tokens / 64], owned */
    struct tern_kv_checkpoint *point;
    uint8_t *bytes;
    size_t n, *at; /* filled so far; [n_records] where each begins */
    int n_records;
    struct tern_key key;
};

/* The most pages that a file of this beginning can have. */
static int pages_to_start_from(const struct tern_prefix_cache *x, const int32_t *tokens, int depth,
                               struct tern_kv_checkpoint **point)
{
    const struct tern_kv_cache *c = &x->e->caches[0];
    for (int k = depth; k > 0; k--) {
        const struct tern_prefix_entry *end = tern_prefix_find_end(x->path[k], tokens + (size_t)k * TERN_PAGE, 0);
        *point = c->layout->state_bytes && end ? end->point : NULL;
        if (tern_kv_can_start(c, x->slices, k, *point, NULL) == 0)
            return k;
    }
    return 0;
}

static int fill_content(struct tern_prefix_out *o, struct tern_prefix_cache *x, const int32_t *tokens, int pages,
                        struct tern_kv_checkpoint *point, tern_error *err)
{
    int rc = 0;
    struct tern_kv_cache *c = &x->e->caches[0];
    const size_t n = (size_t)pages * TERN_PAGE;
    TERN_TRY(tern_alloc(&o->tokens, n, sizeof *o->tokens, err));
    TERN_TRY(tern_alloc(&o->slices, (size_t)pages, sizeof *o->slices, err));
    TERN_TRY(tern_alloc(&o->at, (size_t)pages + 1, sizeof *o->at, err));
    memcpy(o->tokens, tokens, n * sizeof *tokens);
    memcpy(o->slices, x->slices, (size_t)pages * sizeof *o->slices);
    for (int i = 0; i < pages; i++)
        tern_kv_slice_pin(c, &o->slices[i]);
    o->point = point ? tern_kv_checkpoint_pin(point) : NULL;
    o->c = (struct tern_cachefile_content){c, x->origins[0], o->tokens, (int)n, o->slices, o->point};
out:
    return rc;
}

int tern_prefix_out_begin(struct tern_prefix_out **out, struct tern_prefix_cache *x, const int32_t *tokens, int n,
                          size_t most, tern_error *err)
{
    int rc = 0;
    struct tern_kv_checkpoint *point = NULL;
    struct tern_prefix_out *o = NULL;
    *out = NULL;
    TERN_TRY(tern_cachefile_check_plan(x->e, n, err));
    TERN_TRY(tern_alloc(&o, 1, sizeof *o, err));
    const int depth = tern_prefix_walk(x, 0, tokens, n), pages = pages_to_start_from(x, tokens, depth, &point);
    if (!pages)
        TERN_FAIL(err, TERN_ENOENT, "the cache knows %d of the prompt's %d tokens, and none that a file could end with",
                  depth * TERN_PAGE, n);
    TERN_TRY(fill_content(o, x, tokens, pages, point, err));
    const uint64_t bytes = tern_cachefile_bytes(&o->c);
    if (bytes > most)
        TERN_FAIL(err, TERN_ELIMIT, "the cache file of %d tokens has %llu bytes, the limit is %zu", o->c.n_tokens,
                  (unsigned long long)bytes, most);
    o->bytes = malloc(bytes);
    if (!o->bytes)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the %llu bytes of a cache file", (unsigned long long)bytes);
    o->n = tern_cachefile_begin(&o->c, o->bytes, &o->key);
    *out = o;
    o = NULL;
out:
    tern_prefix_out_end(o);
    return rc;
}

int tern_prefix_out_more(struct tern_prefix_out *o, bool *over, tern_error *err)
{
    int rc = 0;
    const size_t end = o->n + TERN_PREFIX_TICK_BYTES;
    for (size_t n; o->n_records < tern_cachefile_records(&o->c) && o->n < end; o->n_records++) {
        o->at[o->n_records] = o->n;
        TERN_TRY(tern_cachefile_record(&o->c, o->n_records, o->bytes + o->n, &o->key, &n, err));
        o->n += n;
    }
    *over = o->n_records == tern_cachefile_records(&o->c);
out:
    return rc;
}

void tern_prefix_out_take(struct tern_prefix_out *o, void **bytes, size_t *n, int *n_tokens)
{
    TERN_ASSERT(o->n == tern_cachefile_bytes(&o->c));
    for (int i = 0; i < o->n_records; i++)
        tern_record_seal(o->bytes + o->at[i]);
    *bytes = o->bytes;
    *n = o->n;
    *n_tokens = o->c.n_tokens;
    o->bytes = NULL;
}

void tern_prefix_out_end(struct tern_prefix_out *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->c.n_tokens / TERN_PAGE; i++)
        tern_kv_slice_drop(o->c.cache, &o->slices[i]);
    tern_kv_checkpoint_drop(o->point);
    tern_free(o->tokens);
    tern_free(o->slices);
    tern_free(o->at);
    free(o->bytes);
    tern_free(o);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

struct tern_prefix_in {
    struct tern_prefix_cache *x;
    struct tern_cachefile_view v;
    struct tern_prefix_filling fill; /* last NULL: not begun */
};

static int check_view(const struct tern_prefix_cache *x, const struct tern_cachefile_view *v, tern_error *err)
{
    const struct tern_kv_cache *c = &x->e->caches[0];
    const int n_vocab = x->e->model->net->desc.n_vocab;
    if (v->head.n_tokens > (uint32_t)x->e->ctx)
        return tern_err_set(err, TERN_ELIMIT, "the cache file has %u tokens, and the context holds %d",
                            v->head.n_tokens, x->e->ctx);
    if (v->head.bytes > x->limit)
        return tern_err_set(err, TERN_ELIMIT, "the cache file has %llu bytes, and the cache has room for %zu",
                            (unsigned long long)v->head.bytes, x->limit);
    for (uint32_t i = 0; i < v->head.n_tokens; i++)
        if (v->tokens[i] < 0 || v->tokens[i] >= n_vocab)
            return tern_err_set(err, TERN_EFORMAT, "token %u is %d, outside the vocabulary of %d", i, v->tokens[i],
                                n_vocab);
    for (uint32_t i = 0; i < v->head.n_tokens / TERN_PAGE; i++)
        if (!tern_record_is_page(c, v->records[i]))
            return tern_err_set(err, TERN_EFORMAT, "record %u does not have the parts of this KV plan", i);
    return 0;
}

int tern_prefix_in_begin(struct tern_prefix_in **out, struct tern_prefix_cache *x, const void *bytes, size_t n,
                         tern_error *err)
{
    int rc = 0;
    struct tern_prefix_in *g = NULL;
    *out = NULL;
    if ((uintptr_t)bytes % _Alignof(struct tern_record))
        TERN_FAIL(err, TERN_EINVAL, "the bytes of a cache file are not aligned to %zu", _Alignof(struct tern_record));
    TERN_TRY(tern_alloc(&g, 1, sizeof *g, err));
    g->x = x;
    TERN_TRY(tern_cachefile_open(&g->v, bytes, n, &x->origins[0], err));
    TERN_TRY(check_view(x, &g->v, err));
    *out = g;
    g = NULL;
out:
    if (g)
        tern_cachefile_close(&g->v);
    tern_free(g);
    return rc;
}

/* The checkpoint is checked where it is read: before anything is kept. */
static int begin_fill(struct tern_prefix_in *g, tern_error *err)
{
    struct tern_prefix_cache *x = g->x;
    const uint32_t n = g->v.head.n_tokens;
    struct tern_kv_checkpoint *point = NULL;
    int rc = 0;
    if (g->v.head.n_records > n / TERN_PAGE)
        rc = tern_record_get_point(&x->e->caches[0], g->v.records[n / TERN_PAGE], 0, &point, err);
    tern_kv_checkpoint_drop(point);
    if (rc < 0 && rc != TERN_ECAPACITY) /* memory is made when it is kept */
        return rc;
    g->fill = (struct tern_prefix_filling){.n = (int)n, .tokens = g->v.tokens, .last = &x->roots[0]};
    tern_prefix_pin(x, g->fill.last);
    return 0;
}

int tern_prefix_in_more(struct tern_prefix_in *g, bool *over, int *n_tokens, tern_error *err)
{
    int rc = 0;
    size_t bytes = 0;
    struct tern_prefix_cache *x = g->x;
    const int pages = (int)g->v.head.n_tokens / TERN_PAGE;
    bool room = true;
    *over = true;
    if (!g->fill.last)
        TERN_TRY(begin_fill(g, err));
    x->stamp++;
    for (; room && g->fill.n_pages < pages && bytes < TERN_PREFIX_TICK_BYTES;) {
        const struct tern_record *h = g->v.records[g->fill.n_pages];
        bytes += tern_record_bytes(h);
        room = tern_prefix_fill_page(x, &g->fill, h);
    }
    *n_tokens = g->fill.n_pages * TERN_PAGE;
    *over = g->fill.n_pages == pages;
    if (room && *over && g->v.head.n_records > (uint32_t)pages) {
        const bool known = tern_prefix_find_end(g->fill.last, NULL, 0) != NULL;
        room = known || tern_prefix_fill_end(x, &g->fill, g->v.records[pages]);
    }
    if (!room)
        TERN_FAIL(err, TERN_ECAPACITY, "the cache has room for %d of the file's %d tokens now", *n_tokens, g->fill.n);
    if (*over)
        tern_prefix_tick(x);
out:
    *over |= rc < 0;
    return rc;
}

void tern_prefix_in_end(struct tern_prefix_in *g)
{
    if (!g)
        return;
    if (g->fill.last)
        tern_prefix_unpin(g->x, g->fill.last);
    tern_cachefile_close(&g->v);
    tern_free(g);
}
