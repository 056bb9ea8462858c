/* A cache file: a head, the tokens, and records (tier/tier.h), each at a multiple of 64 bytes.  docs/cache-file.md */
#include "tern/cache.h"

#include <stddef.h>
#include <string.h>
#include <xxhash.h>
#include "base/map.h"
#include "base/mem.h"
#include "base/outfile.h"
#include "run/prefix/cachefile.h"

_Static_assert(TERN_CACHE_PAGE == TERN_PAGE, "what users are told");

#define MAGIC   "ternc\n\0"
#define VERSION 1
#define ENDIAN  0x01020304u
#define UNIT    TERN_CACHEFILE_UNIT

static const struct tern_outfile_kind file_kind = {"a cache file", MAGIC, 8, false, true};

void tern_cachefile_close(struct tern_cachefile_view *v)
{
    tern_free((void *)v->records);
    v->records = NULL;
}

struct bytes {
    const uint8_t *p;
    size_t n;
};

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static int check_head(const struct tern_cachefile_head *h, size_t bytes, tern_error *err)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return tern_err_set(err, TERN_EFORMAT, "not a cache file (wrong magic at byte 0)");
    if (h->endian != ENDIAN)
        return tern_err_set(err, TERN_EUNSUPPORTED, "written on a machine of another byte order (byte 12)");
    if (h->version != VERSION)
        return tern_err_set(err, TERN_EUNSUPPORTED, "format version %u at byte 8; this program reads version %d",
                            h->version, VERSION);
    if (h->hash != XXH3_64bits(h, offsetof(struct tern_cachefile_head, hash)))
        return tern_err_set(err, TERN_EFORMAT, "head at byte 0 is damaged (checksum differs)");
    if (h->bytes != bytes)
        return tern_err_set(err, TERN_EFORMAT, "has %zu bytes, its head says %llu", bytes,
                            (unsigned long long)h->bytes);
    if (!h->n_tokens || h->n_tokens % TERN_PAGE || h->reserved || h->n_records < h->n_tokens / TERN_PAGE ||
        h->n_records > h->n_tokens / TERN_PAGE + 1)
        return tern_err_set(err, TERN_EFORMAT, "head at byte 0 contradicts itself");
    return 0;
}

/* The record at byte `at`: where it should be, and from where the file says. */
static int check_record(const struct tern_cachefile_view *v, const struct bytes *f, size_t at, uint32_t i,
                        struct tern_key *key, const struct tern_record **out, tern_error *err)
{
    const uint32_t pages = v->head.n_tokens / TERN_PAGE;
    tern_error why = {0};
    struct tern_key parent = *key;
    if (f->n - at < sizeof(struct tern_record))
        return tern_err_set(err, TERN_EFORMAT, "ends at byte %zu, inside record %u", f->n, i);
    const struct tern_record *h = (const struct tern_record *)(const void *)(f->p + at);
    const size_t bytes = tern_record_bytes(h);
    if (!bytes || bytes > f->n - at)
        return tern_err_set(err, TERN_EFORMAT, "record %u at byte %zu is longer than the file", i, at);
    if (i < pages)
        tern_page_key(&parent, v->tokens + (size_t)i * TERN_PAGE, key);
    else
        tern_end_key(&parent, NULL, 0, TERN_RECORD_STATE, key);
    const struct tern_record_name name = {*key, i, i < pages ? TERN_RECORD_PAGE : TERN_RECORD_STATE,
                                          i < pages ? TERN_PAGE : 0};
    if (tern_record_check(h, bytes, &name, &v->head.origin, &why) < 0)
        return tern_err_set(err, why.code, "record %u at byte %zu %.300s", i, at, why.msg);
    if (!tern_key_is(&h->parent, &parent))
        return tern_err_set(err, TERN_EFORMAT, "record %u at byte %zu does not follow the one before it", i, at);
    *out = h;
    return 0;
}

static int check_records(struct tern_cachefile_view *v, const struct bytes *f, tern_error *err)
{
    int rc = 0;
    struct tern_key key;
    size_t at = sizeof v->head + v->head.n_tokens * sizeof *v->tokens;
    tern_origin_key(&v->head.origin, &key);
    for (uint32_t i = 0; i < v->head.n_records; i++) {
        TERN_TRY(check_record(v, f, at, i, &key, &v->records[i], err));
        const size_t end = at + tern_record_bytes(v->records[i]);
        for (at = end; at < f->n && at % UNIT; at++)
            if (f->p[at])
                TERN_FAIL(err, TERN_EFORMAT, "byte %zu behind record %u is not 0", at, i);
    }
    if (at != f->n)
        TERN_FAIL(err, TERN_EFORMAT, "%zu bytes behind the last record", f->n - at);
out:
    return rc;
}

static int check_file(struct tern_cachefile_view *v, const struct bytes *f, tern_error *err)
{
    int rc = 0;
    if (f->n < sizeof v->head)
        TERN_FAIL(err, TERN_EFORMAT, "not a cache file, or cut off: it ends at byte %zu, inside the head", f->n);
    memcpy(&v->head, f->p, sizeof v->head);
    TERN_TRY(check_head(&v->head, f->n, err));
    if ((f->n - sizeof v->head) / sizeof *v->tokens < v->head.n_tokens)
        TERN_FAIL(err, TERN_EFORMAT, "ends at byte %zu, inside the tokens", f->n);
    v->tokens = (const int32_t *)(const void *)(f->p + sizeof v->head);
    if (v->head.tokens_hash != XXH3_64bits(v->tokens, v->head.n_tokens * sizeof *v->tokens))
        TERN_FAIL(err, TERN_EFORMAT, "tokens at byte %zu are damaged (checksum differs)", sizeof v->head);
    TERN_TRY(tern_alloc(&v->records, v->head.n_records, sizeof(void *), err));
    TERN_TRY(check_records(v, f, err));
out:
    return rc;
}

int tern_cachefile_open(struct tern_cachefile_view *v, const uint8_t *p, size_t n, const struct tern_origin *origin,
                        tern_error *err)
{
    const struct bytes f = {p, n};
    *v = (struct tern_cachefile_view){0};
    int rc = check_file(v, &f, err);
    if (rc == 0 && origin)
        rc = tern_origin_check(&v->head.origin, origin, err);
    if (rc < 0)
        tern_cachefile_close(v);
    return rc;
}

/* A file on the disk. */
struct mapped {
    struct tern_map map;
    struct tern_cachefile_view v;
};

static void close_mapped(struct mapped *m)
{
    tern_cachefile_close(&m->v);
    tern_map_close(&m->map);
}

static int open_mapped(struct mapped *m, const char *path, const struct tern_origin *origin, tern_error *err)
{
    tern_error why = {0};
    *m = (struct mapped){0};
    int rc = tern_map_open(&m->map, path, "a cache file", err);
    if (rc < 0)
        return rc;
    rc = tern_cachefile_open(&m->v, m->map.p, m->map.n, origin, &why);
    if (rc < 0) {
        close_mapped(m);
        return tern_err_set(err, rc, "%s: %.400s", path, why.msg);
    }
    return 0;
}

int tern_cache_check(const char *path, tern_cache_file *out, tern_error *err)
{
    struct mapped m;
    int rc = open_mapped(&m, path, NULL, err);
    if (rc < 0)
        return rc;
    const struct tern_origin *o = &m.v.head.origin;
    if (out) {
        *out = (tern_cache_file){.n_tokens = (int)m.v.head.n_tokens, .bytes = m.map.n, .weights = o->weights};
        memcpy(out->kv, o->kv, sizeof out->kv - 1);
        memcpy(out->arithmetic, o->arithmetic, sizeof out->arithmetic - 1);
        memcpy(out->version, o->version, sizeof out->version - 1);
    }
    close_mapped(&m);
    return 0;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* A sequence from `pages` pages of the file, or from as many fewer as it takes. */
static int start_from(tern_seq **out, tern_engine *e, const struct tern_cachefile_view *v, int pages, int *found,
                      tern_error *err)
{
    int rc = 0, n = 0;
    struct tern_kv_cache *c = &e->caches[0];
    struct tern_kv_slice *slices = NULL;
    struct tern_kv_checkpoint *at = NULL;
    uint8_t *roles = NULL;
    const uint32_t all = v->head.n_tokens / TERN_PAGE;
    TERN_TRY(tern_alloc(&slices, (size_t)pages, sizeof *slices, err));
    TERN_TRY(tern_alloc(&roles, (size_t)pages * TERN_PAGE, 1, err));
    for (; n < pages; n++)
        TERN_TRY(tern_record_get_page(c, v->records[n], &slices[n], err));
    if ((uint32_t)pages == all && v->head.n_records > all)
        TERN_TRY(tern_record_get_point(c, v->records[all], 0, &at, err));
    int k = pages;
    if (tern_kv_can_start(c, slices, k, at, NULL) < 0) {
        tern_kv_checkpoint_drop(at);
        at = NULL;
        while (k && tern_kv_can_start(c, slices, k, NULL, NULL) < 0)
            k--;
    }
    if (k)
        TERN_TRY(tern_seq_start(out, e, 0, slices, k, at, v->tokens, roles, err));
    *found = k * TERN_PAGE;
out:
    for (int i = 0; i < n; i++)
        tern_kv_slice_drop(c, &slices[i]);
    tern_kv_checkpoint_drop(at);
    tern_free(slices);
    tern_free(roles);
    return rc;
}

int tern_cache_start(tern_seq **out, tern_engine *e, const char *path, const int32_t *tokens, int n, int *found,
                     tern_error *err)
{
    int rc = 0, same = 0;
    struct tern_origin origin;
    struct mapped m;
    tern_error why = {0};
    *out = NULL;
    *found = 0;
    tern_engine_origin(e, 0, &origin);
    rc = open_mapped(&m, path, &origin, err);
    if (rc < 0)
        return rc;
    while (same + 1 < n && same < (int)m.v.head.n_tokens && tokens[same] == m.v.tokens[same])
        same++;
    if (same / TERN_PAGE)
        rc = start_from(out, e, &m.v, same / TERN_PAGE, found, &why);
    if (rc < 0)
        rc = tern_err_set(err, rc, "%s: %.400s", path, why.msg);
    else if (!*out)
        rc = tern_seq_new(out, e, err);
    close_mapped(&m);
    return rc;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

int tern_cachefile_records(const struct tern_cachefile_content *c)
{
    return c->n_tokens / TERN_PAGE + (c->point != NULL);
}

/* Slice i without what a sequence that starts at the end does not need: of windows it may be there or not. */
static struct tern_kv_slice needed(const struct tern_cachefile_content *c, int i)
{
    struct tern_kv_slice s = c->slices[i];
    for (int g = 0; g < c->cache->layout->n_groups; g++) {
        const struct tern_kv_group *grp = &c->cache->layout->groups[g];
        if (grp->reach.window && i / grp->rate < tern_kv_first_needed(grp->reach, c->n_tokens))
            s.part[g] = TERN_NO_BLOCK;
    }
    return s;
}

/* The checkpoint without its logits, as a view. */
static struct tern_kv_checkpoint bare(const struct tern_kv_checkpoint *p)
{
    struct tern_kv_checkpoint out = {.cache = p->cache, .at = p->at, .tile = p->tile, .state = p->state};
    memcpy(out.raw_from, p->raw_from, sizeof out.raw_from);
    memcpy(out.seen_from, p->seen_from, sizeof out.seen_from);
    return out;
}

uint64_t tern_cachefile_bytes(const struct tern_cachefile_content *c)
{
    uint64_t n = sizeof(struct tern_cachefile_head) + (uint64_t)c->n_tokens * sizeof *c->tokens;
    for (int i = 0; i < c->n_tokens / TERN_PAGE; i++) {
        const struct tern_kv_slice s = needed(c, i);
        size_t record = sizeof(struct tern_record);
        for (int part = 0; part < TERN_KV_PARTS; part++)
            record += s.part[part] != TERN_NO_BLOCK ? tern_kv_part_bytes(c->cache, part) : 0;
        n += tern_round_up(record, UNIT);
    }
    if (c->point) {
        const struct tern_kv_checkpoint p = bare(c->point);
        n += tern_round_up(sizeof(struct tern_record) + tern_kv_checkpoint_packed_bytes(&p), UNIT);
    }
    return n;
}

size_t tern_cachefile_begin(const struct tern_cachefile_content *c, void *to, struct tern_key *key)
{
    const size_t n = (size_t)c->n_tokens * sizeof *c->tokens;
    struct tern_cachefile_head h = {.version = VERSION,
                                    .endian = ENDIAN,
                                    .n_tokens = (uint32_t)c->n_tokens,
                                    .n_records = (uint32_t)tern_cachefile_records(c),
                                    .bytes = tern_cachefile_bytes(c),
                                    .tokens_hash = XXH3_64bits(c->tokens, n),
                                    .origin = c->origin};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.hash = XXH3_64bits(&h, offsetof(struct tern_cachefile_head, hash));
    memcpy(to, &h, sizeof h);
    memcpy((uint8_t *)to + sizeof h, c->tokens, n);
    tern_origin_key(&c->origin, key);
    return sizeof h + n;
}

int tern_cachefile_record(const struct tern_cachefile_content *c, int i, void *to, struct tern_key *key, size_t *n,
                          tern_error *err)
{
    int rc;
    struct tern_record *h = to;
    const bool page = i < c->n_tokens / TERN_PAGE;
    *h = (struct tern_record){.index = (uint32_t)i, .parent = *key, .origin = c->origin};
    if (page) {
        const struct tern_kv_slice s = needed(c, i);
        rc = tern_record_put_page(h, c->cache, &s, err);
        tern_page_key(&h->parent, c->tokens + (size_t)i * TERN_PAGE, key);
    } else {
        const struct tern_kv_checkpoint p = bare(c->point);
        rc = tern_record_put_point(h, &p, err);
        tern_end_key(&h->parent, NULL, 0, TERN_RECORD_STATE, key);
    }
    h->n_tokens = page ? TERN_PAGE : 0;
    h->cost = page ? TERN_PAGE : (uint32_t)c->n_tokens;
    h->key = *key;
    const size_t bytes = tern_record_bytes(h), padded = tern_round_up(bytes, UNIT);
    memset((uint8_t *)h + bytes, 0, padded - bytes);
    *n = padded;
    return rc;
}

static int write_file(struct tern_outfile *f, const struct tern_cachefile_content *c, void *room, tern_error *err)
{
    int rc = 0;
    struct tern_key key;
    size_t n = tern_cachefile_begin(c, room, &key);
    TERN_TRY(tern_outfile_write(f, room, n, err));
    for (int i = 0; i < tern_cachefile_records(c); i++) {
        TERN_TRY(tern_cachefile_record(c, i, room, &key, &n, err));
        tern_record_seal(room);
        TERN_TRY(tern_outfile_write(f, room, n, err));
    }
out:
    return rc;
}

int tern_cachefile_check_plan(const tern_engine *e, int n, tern_error *err)
{
    if (e->n_caches > e->n_plans)
        return tern_err_set(err, TERN_EUNSUPPORTED, "a cache file takes prompts that are coded as they come");
    if (e->caches[0].layout->recent > 1)
        return tern_err_set(err, TERN_EUNSUPPORTED, "a cache file cannot hold a KV plan with recent=N (--kv %.100s)",
                            e->caches[0].layout->text);
    if (n < TERN_PAGE)
        return tern_err_set(err, TERN_EINVAL,
                            "the prompt has %d tokens; a cache file holds whole pages of %d, which it does not fill", n,
                            TERN_PAGE);
    return 0;
}

/* What a sequence that ends at a page's border holds. */
static int write_seq(tern_engine *e, const tern_seq *s, const char *path, tern_error *err)
{
    int rc = 0;
    const size_t n = (size_t)tern_seq_length(s), pages = n / TERN_PAGE, record = tern_record_most(e) + UNIT,
                 head = sizeof(struct tern_cachefile_head) + n * sizeof *s->tokens;
    struct tern_kv_cache *cache = &e->caches[0];
    struct tern_outfile file = {.fd = -1};
    struct tern_kv_slice *slices = NULL;
    struct tern_kv_checkpoint *point = NULL;
    uint8_t *room = NULL;
    struct tern_cachefile_content c = {.cache = cache, .tokens = s->tokens, .n_tokens = (int)n};
    TERN_TRY(tern_alloc(&slices, pages, sizeof *slices, err));
    TERN_TRY(tern_alloc(&room, head > record ? head : record, 1, err));
    if (cache->layout->state_bytes)
        TERN_TRY(tern_kv_checkpoint_take(cache, s->kv, NULL, 0, &point, err));
    tern_engine_origin(e, 0, &c.origin);
    tern_kv_slices_take(cache, s->kv, 0, (int)pages, slices);
    c.slices = slices;
    c.point = point;
    rc = tern_outfile_open(&file, path, 0600, &file_kind, err);
    if (rc == 0)
        rc = write_file(&file, &c, room, err);
    if (rc == 0)
        rc = tern_outfile_commit(&file, err);
    tern_outfile_abort(&file);
    for (size_t i = 0; i < pages; i++)
        tern_kv_slice_drop(cache, &slices[i]);
out:
    tern_kv_checkpoint_drop(point);
    tern_free(slices);
    tern_free(room);
    return rc;
}

int tern_cache_build(tern_engine *e, const int32_t *tokens, int n, const char *path, tern_progress_fn *progress,
                     void *user, int *kept, tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    const int whole = n / TERN_PAGE * TERN_PAGE;
    TERN_TRY(tern_cachefile_check_plan(e, n, err));
    TERN_TRY(tern_outfile_check(path, &file_kind, err)); /* before the work */
    TERN_TRY(tern_seq_new(&s, e, err));
    TERN_TRY(tern_prefill(e, s, tokens, whole, NULL, progress, user, err));
    TERN_TRY(write_seq(e, s, path, err));
    if (kept)
        *kept = whole;
out:
    tern_seq_free(s);
    return rc;
}

/* ---- directories ------------------------------------------------------------------------------------------------- */

static int scan(const char *dir, enum tern_scan what, void (*say)(void *user, const char *line), void *user,
                tern_cache_dir *out, tern_error *err)
{
    struct tern_scanned s;
    int rc = tern_disk_scan(dir, what, say, user, &s, err);
    if (rc == 0)
        *out = (tern_cache_dir){s.pages, s.ends, s.bytes, s.damaged, s.others};
    return rc;
}

int tern_cache_dir_scan(const char *dir, bool verify, void (*on_damaged)(void *user, const char *line), void *user,
                        tern_cache_dir *out, tern_error *err)
{
    return scan(dir, verify ? TERN_SCAN_VERIFY : TERN_SCAN_LIST, on_damaged, user, out, err);
}

int tern_cache_dir_clear(const char *dir, tern_cache_dir *out, tern_error *err)
{
    return scan(dir, TERN_SCAN_CLEAR, NULL, NULL, out, err);
}
