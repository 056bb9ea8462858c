/* A cache file: a head, the tokens, and records (tier/tier.h), each at a multiple of 64 bytes.  docs/cache-file.md */
#include "tern/cache.h"

#include <stddef.h>
#include <string.h>
#include <xxhash.h>
#include "base/map.h"
#include "base/mem.h"
#include "base/outfile.h"
#include "run/prefix/record.h"

#define MAGIC   "ternc\n\0"
#define VERSION 1
#define ENDIAN  0x01020304u
#define UNIT    64

static const struct tern_outfile_kind file_kind = {"a cache file", MAGIC, 8, false, true};

struct head {
    char magic[8];
    uint32_t version, endian;
    uint32_t n_tokens, n_records; /* pages, and for layers with states a last one */
    uint64_t bytes;               /* of the file */
    uint64_t tokens_hash;         /* XXH3-64 */
    struct tern_origin origin;
    uint64_t reserved; /* 0 */
    uint64_t hash;     /* of all bytes before it */
};
_Static_assert(sizeof(struct head) % UNIT == 0, "what follows is aligned");

/* A file in memory, every byte of it checked. */
struct view {
    struct tern_map map;
    struct head head;
    const int32_t *tokens;
    const struct tern_record **records; /* [n_records], owned */
};

static void close_view(struct view *v)
{
    tern_free((void *)v->records);
    tern_map_close(&v->map);
}

/* ---- reading ------------------------------------------------------------------------------------------------------
 */

static int check_head(const struct head *h, size_t bytes, tern_error *err)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return tern_err_set(err, TERN_EFORMAT, "not a cache file (wrong magic at byte 0)");
    if (h->endian != ENDIAN)
        return tern_err_set(err, TERN_EUNSUPPORTED, "written on a machine of another byte order (byte 12)");
    if (h->version != VERSION)
        return tern_err_set(err, TERN_EUNSUPPORTED, "format version %u at byte 8; this program reads version %d",
                            h->version, VERSION);
    if (h->hash != XXH3_64bits(h, offsetof(struct head, hash)))
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
static int check_record(const struct view *v, size_t at, uint32_t i, struct tern_key *key,
                        const struct tern_record **out, tern_error *err)
{
    const uint32_t pages = v->head.n_tokens / TERN_PAGE;
    tern_error why = {0};
    struct tern_key parent = *key;
    if (v->map.n - at < sizeof(struct tern_record))
        return tern_err_set(err, TERN_EFORMAT, "ends at byte %zu, inside record %u", v->map.n, i);
    const struct tern_record *h = (const struct tern_record *)(const void *)(v->map.p + at);
    const size_t bytes = tern_record_bytes(h);
    if (!bytes || bytes > v->map.n - at)
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

static int check_records(struct view *v, tern_error *err)
{
    int rc = 0;
    struct tern_key key;
    size_t at = sizeof v->head + v->head.n_tokens * sizeof *v->tokens;
    tern_origin_key(&v->head.origin, &key);
    for (uint32_t i = 0; i < v->head.n_records; i++) {
        TERN_TRY(check_record(v, at, i, &key, &v->records[i], err));
        const size_t end = at + tern_record_bytes(v->records[i]);
        for (at = end; at < v->map.n && at % UNIT; at++)
            if (v->map.p[at])
                TERN_FAIL(err, TERN_EFORMAT, "byte %zu behind record %u is not 0", at, i);
    }
    if (at != v->map.n)
        TERN_FAIL(err, TERN_EFORMAT, "%zu bytes behind the last record", v->map.n - at);
out:
    return rc;
}

static int check_file(struct view *v, tern_error *err)
{
    int rc = 0;
    if (v->map.n < sizeof v->head)
        TERN_FAIL(err, TERN_EFORMAT, "not a cache file, or cut off: it ends at byte %zu, inside the head", v->map.n);
    memcpy(&v->head, v->map.p, sizeof v->head);
    TERN_TRY(check_head(&v->head, v->map.n, err));
    if ((v->map.n - sizeof v->head) / sizeof *v->tokens < v->head.n_tokens)
        TERN_FAIL(err, TERN_EFORMAT, "ends at byte %zu, inside the tokens", v->map.n);
    v->tokens = (const int32_t *)(const void *)(v->map.p + sizeof v->head);
    if (v->head.tokens_hash != XXH3_64bits(v->tokens, v->head.n_tokens * sizeof *v->tokens))
        TERN_FAIL(err, TERN_EFORMAT, "tokens at byte %zu are damaged (checksum differs)", sizeof v->head);
    TERN_TRY(tern_alloc(&v->records, v->head.n_records, sizeof(void *), err));
    TERN_TRY(check_records(v, err));
out:
    return rc;
}

/* origin: what it has to be of; NULL: anything. */
static int open_view(struct view *v, const char *path, const struct tern_origin *origin, tern_error *err)
{
    tern_error why = {0};
    *v = (struct view){0};
    int rc = tern_map_open(&v->map, path, "a cache file", err);
    if (rc < 0)
        return rc;
    rc = check_file(v, &why);
    if (rc == 0 && origin)
        rc = tern_origin_check(&v->head.origin, origin, &why);
    if (rc < 0) {
        close_view(v);
        return tern_err_set(err, rc, "%s: %.400s", path, why.msg);
    }
    return 0;
}

int tern_cache_check(const char *path, tern_cache_file *out, tern_error *err)
{
    struct view v;
    int rc = open_view(&v, path, NULL, err);
    if (rc < 0)
        return rc;
    const struct tern_origin *o = &v.head.origin;
    if (out) {
        *out = (tern_cache_file){.n_tokens = (int)v.head.n_tokens, .bytes = v.map.n, .weights = o->weights};
        memcpy(out->kv, o->kv, sizeof out->kv - 1);
        memcpy(out->arithmetic, o->arithmetic, sizeof out->arithmetic - 1);
        memcpy(out->version, o->version, sizeof out->version - 1);
    }
    close_view(&v);
    return 0;
}

/* ---- starting -----------------------------------------------------------------------------------------------------
 */

/* A sequence from `pages` pages of the file, or from as many fewer as it takes. */
static int start_from(tern_seq **out, tern_engine *e, const struct view *v, int pages, int *found, tern_error *err)
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
    struct view v;
    tern_error why = {0};
    *out = NULL;
    *found = 0;
    tern_engine_origin(e, 0, &origin);
    rc = open_view(&v, path, &origin, err);
    if (rc < 0)
        return rc;
    while (same + 1 < n && same < (int)v.head.n_tokens && tokens[same] == v.tokens[same])
        same++;
    if (same / TERN_PAGE)
        rc = start_from(out, e, &v, same / TERN_PAGE, found, &why);
    if (rc < 0)
        rc = tern_err_set(err, rc, "%s: %.400s", path, why.msg);
    else if (!*out)
        rc = tern_seq_new(out, e, err);
    close_view(&v);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------------------
 */

struct writer {
    struct tern_outfile file;
    struct tern_key key; /* of the record before */
    struct tern_origin origin;
    struct tern_record *record; /* room for one */
    uint64_t bytes;             /* so far */
};

static int put_record(struct writer *w, uint32_t index, const int32_t *tokens, const struct tern_kv_cache *c,
                      const struct tern_kv_slice *slice, const struct tern_kv_checkpoint *point, bool write,
                      tern_error *err)
{
    struct tern_record *h = w->record;
    *h = (struct tern_record){.index = index, .parent = w->key, .origin = w->origin};
    if (point)
        tern_record_put_point(h, point);
    else
        tern_record_put_page(h, c, slice);
    h->n_tokens = point ? 0 : TERN_PAGE;
    h->cost = point ? index * TERN_PAGE : TERN_PAGE;
    if (point)
        tern_end_key(&w->key, NULL, 0, TERN_RECORD_STATE, &h->key);
    else
        tern_page_key(&w->key, tokens, &h->key);
    w->key = h->key;
    const size_t bytes = tern_record_bytes(h), padded = tern_round_up(bytes, UNIT);
    w->bytes += padded;
    if (!write)
        return 0;
    tern_record_seal(h);
    memset((uint8_t *)h + bytes, 0, padded - bytes);
    return tern_outfile_write(&w->file, h, padded, err);
}

/* Twice: the first time counts, for the head has to know. */
static int put_records(struct writer *w, tern_engine *e, const tern_seq *s, const struct tern_kv_checkpoint *point,
                       bool write, tern_error *err)
{
    int rc = 0;
    struct tern_kv_cache *c = &e->caches[0];
    const int pages = tern_seq_length(s) / TERN_PAGE;
    tern_origin_key(&w->origin, &w->key);
    w->bytes = sizeof(struct head) + (uint64_t)tern_seq_length(s) * sizeof *s->tokens;
    for (int i = 0; i < pages && rc == 0; i++) {
        struct tern_kv_slice slice;
        tern_kv_slices_take(c, s->kv, i, i + 1, &slice);
        rc = put_record(w, (uint32_t)i, s->tokens + (size_t)i * TERN_PAGE, c, &slice, NULL, write, err);
        tern_kv_slice_drop(c, &slice);
    }
    if (rc == 0 && point)
        rc = put_record(w, (uint32_t)pages, NULL, c, NULL, point, write, err);
    return rc;
}

static int write_file(struct writer *w, tern_engine *e, const tern_seq *s, const struct tern_kv_checkpoint *point,
                      tern_error *err)
{
    int rc = 0;
    const size_t n = (size_t)tern_seq_length(s);
    struct head h = {.version = VERSION, .endian = ENDIAN, .n_tokens = (uint32_t)n, .origin = w->origin};
    TERN_TRY(put_records(w, e, s, point, false, err));
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.n_records = (uint32_t)(n / TERN_PAGE) + (point != NULL);
    h.bytes = w->bytes;
    h.tokens_hash = XXH3_64bits(s->tokens, n * sizeof *s->tokens);
    h.hash = XXH3_64bits(&h, offsetof(struct head, hash));
    TERN_TRY(tern_outfile_write(&w->file, &h, sizeof h, err));
    TERN_TRY(tern_outfile_write(&w->file, s->tokens, n * sizeof *s->tokens, err));
    TERN_TRY(put_records(w, e, s, point, true, err));
out:
    return rc;
}

static int check_plan(const tern_engine *e, int n, tern_error *err)
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

int tern_cache_build(tern_engine *e, const int32_t *tokens, int n, const char *path, tern_progress_fn *progress,
                     void *user, int *kept, tern_error *err)
{
    int rc = 0;
    struct writer w = {.file.fd = -1};
    struct tern_kv_checkpoint *point = NULL;
    tern_seq *s = NULL;
    const int whole = n / TERN_PAGE * TERN_PAGE;
    TERN_TRY(check_plan(e, n, err));
    TERN_TRY(tern_outfile_check(path, &file_kind, err)); /* before the work */
    TERN_TRY(tern_seq_new(&s, e, err));
    TERN_TRY(tern_prefill(e, s, tokens, whole, NULL, progress, user, err));
    if (e->caches[0].layout->state_bytes)
        TERN_TRY(tern_kv_checkpoint_take(&e->caches[0], s->kv, NULL, 0, &point, err));
    tern_engine_origin(e, 0, &w.origin);
    TERN_TRY(tern_alloc(&w.record, tern_record_most(e) + UNIT, 1, err));
    TERN_TRY(tern_outfile_open(&w.file, path, 0600, &file_kind, err));
    rc = write_file(&w, e, s, point, err);
    if (rc == 0)
        rc = tern_outfile_commit(&w.file, err);
    tern_outfile_abort(&w.file);
    if (rc == 0 && kept)
        *kept = whole;
out:
    tern_kv_checkpoint_drop(point);
    tern_seq_free(s);
    tern_free(w.record);
    return rc;
}

/* ---- directories --------------------------------------------------------------------------------------------------
 */

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
