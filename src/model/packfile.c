/* Packed weights in a file: written once, mapped by every later start.  docs/packed-format.md describes the bytes,
 * docs/decisions/012 says what is checked when.
 *
 * The file is believed in nothing: where a tensor lies follows from the model file, and the table must say the same. */
#include "model/load_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/mem.h"
#include "base/outfile.h"
#include "kernel/pack.h"
#include "model/resident.h"

#define MAGIC      "ternpak\n"
#define VERSION    1
#define ENDIAN     0x01020304u
#define SMALL_PAGE ((size_t)4 << 10)
#define HUGE_PAGE  ((size_t)2 << 20)

static const struct tern_outfile_kind packed_kind = {"a file of packed weights", MAGIC, sizeof MAGIC - 1, false, true};

struct header {
    char magic[8];
    uint32_t version, endian, layout, n_tensors;
    uint64_t digest;      /* of the model */
    uint64_t data_offset; /* of the block of weights: the file ends with it */
    uint64_t data_bytes;
    uint64_t hash;  /* of the bytes before this field, then of those from the table to the block */
    uint64_t stamp; /* of the model file when its bytes were last known to fit; 0: never.  Not covered by hash */
};
_Static_assert(sizeof(struct header) == 8 + 16 + 40, "no padding in the file header");

/* A tensor.  What has no comment is as in struct tern_packed. */
struct record {
    uint64_t name;        /* hash of the tensor's name, seeded with that of struct form */
    uint64_t source_hash; /* of its bytes in the model file, and of its parts */
    uint64_t hash;        /* of its bytes in the block */
    uint64_t offset;      /* in the block */
    uint64_t bytes;
    uint64_t panel_bytes; /* 0: a vector of f32 */
    uint32_t type;        /* in the model file */
    uint16_t codes, scales;
    uint32_t n, k;
};
_Static_assert(sizeof(struct record) == 64, "no padding in the table");

/* Which rows of the tensor, how they are to be read (struct tern_weight_source), and what kernels are told about them.
 */
struct form {
    uint64_t begin; /* byte of the tensor at which the rows begin */
    int64_t row0, n_stored;
    int32_t form, scale_type, bits, source_group, group_rows, zero_plus_one, factor_rows;
    int32_t stack, zero, group, d_type, m_type;
    float unit;
    uint32_t reserved;
    int8_t table[TERN_TABLE];
};
_Static_assert(sizeof(struct form) == 24 + 48 + 8 + TERN_TABLE, "no padding in what is hashed");

static uint64_t hash_name(const struct tern_weight_block *b, const struct tern_weight_place *p)
{
    struct tern_dev_about m;
    const struct tern_weight_source *s = &p->src;
    struct form f = {.begin = (uint64_t)((const uint8_t *)s->data - (const uint8_t *)p->t->data)};
    if (!p->vector) {
        b->dev->ops->weight_about(&p->dst->mat, &m);
        f = (struct form){.begin = f.begin,
                          .row0 = s->row0,
                          .n_stored = s->n_stored,
                          .form = (int32_t)s->form,
                          .scale_type = s->scale_type,
                          .bits = s->bits,
                          .source_group = s->group,
                          .group_rows = s->group_rows,
                          .zero_plus_one = s->zero_plus_one,
                          .factor_rows = s->factor_rows,
                          .stack = p->stack,
                          .zero = m.zero,
                          .group = m.group,
                          .d_type = m.d_type,
                          .m_type = m.m_type,
                          .unit = m.unit};
        memcpy(f.table, m.table, sizeof f.table);
    }
    return XXH3_64bits_withSeed(p->t->name, strlen(p->t->name), XXH3_64bits(&f, sizeof f));
}

/* What the table must say about tensor i, without the two hashes of data. */
static struct record expected(const struct tern_weight_block *b, size_t i)
{
    const struct tern_weight_place *p = &b->places[i];
    struct tern_dev_about m;
    struct record r = {.name = hash_name(b, p),
                       .offset = p->offset,
                       .bytes = p->bytes,
                       .type = (uint32_t)p->t->type,
                       .n = (uint32_t)p->n,
                       .k = 1};
    if (!p->vector) {
        b->dev->ops->weight_about(&p->dst->mat, &m);
        r.panel_bytes = m.unit_bytes;
        r.codes = (uint16_t)m.codes;
        r.scales = (uint16_t)m.scales;
        r.n = (uint32_t)p->dst->mat.n;
        r.k = (uint32_t)p->dst->mat.k;
    }
    return r;
}

static struct header expected_header(const struct tern_weight_block *b)
{
    size_t page = b->bytes < HUGE_PAGE ? SMALL_PAGE : HUGE_PAGE;
    return (struct header){.magic = MAGIC,
                           .version = VERSION,
                           .endian = ENDIAN,
                           .layout = TERN_PACK_LAYOUT,
                           .n_tensors = (uint32_t)b->n,
                           .digest = b->digest,
                           .data_offset = tern_round_up(sizeof(struct header) + b->n * sizeof(struct record), page),
                           .data_bytes = b->bytes};
}

static uint64_t head_hash(const uint8_t *file, uint64_t data_offset)
{
    uint64_t h = XXH3_64bits(file, offsetof(struct header, hash));
    return XXH3_64bits_withSeed(file + sizeof(struct header), data_offset - sizeof(struct header), h);
}

static const struct record *table_of(const struct tern_map *m)
{
    return (const struct record *)(const void *)(m->p + sizeof(struct header));
}

/* ---- hashes of all tensors, on all threads ----------------------------------------------------------------------- */

struct hashing {
    const struct tern_weight_block *b;
    size_t from;         /* task 0 */
    const uint8_t *data; /* of the block; NULL: of the sources */
    uint64_t *out;       /* [tasks] */
};

static uint64_t hash_source(const struct tern_weight_block *b, const struct tern_weight_place *p)
{
    uint64_t h = XXH3_64bits(p->t->data, p->t->n_bytes);
    tern_file_forget(b->f, p->t);
    for (int i = 0; i < TERN_TENSOR_PARTS && p->parts[i]; i++) {
        h = XXH3_64bits_withSeed(p->parts[i]->data, p->parts[i]->n_bytes, h);
        tern_file_forget(b->f, p->parts[i]);
    }
    return h;
}

#define CHUNK ((size_t)4 << 20) /* of what is in memory at a time: from the device, or of experts */

/* Of bytes that are not needed once they are read. */
static uint64_t hash_in_passing(const uint8_t *p, size_t bytes)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) /* the same by another way */
        return XXH3_64bits(p, bytes);
    (void)XXH3_64bits_reset(state);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < CHUNK ? bytes - at : CHUNK;
        (void)XXH3_64bits_update(state, p + at, n);
        tern_map_forget(p + at, n);
    }
    const uint64_t h = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return h;
}

static void hash_task(void *ctx, int task, int worker)
{
    const struct hashing *h = ctx;
    const struct tern_weight_place *p = &h->b->places[h->from + (size_t)task];
    (void)worker;
    h->out[task] = !h->data                                ? hash_source(h->b, p)
                   : h->b->lean && tern_resident_covers(p) ? hash_in_passing(h->data + p->offset, p->bytes)
                                                           : XXH3_64bits(h->data + p->offset, p->bytes);
}

void tern_weight_sources(const struct tern_weight_block *b, size_t from, size_t to, struct tern_pool *pool)
{
    struct hashing h = {b, from, NULL, b->sources + from};
    tern_pool_run(pool, hash_task, &h, (int)(to - from));
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Whoever may read the model may read its packed weights, and nobody else. */
static int mode_of(const struct tern_file *f)
{
    struct stat st;
    return stat(tern_file_path(f), &st) < 0 ? 0600 : (int)(st.st_mode & 0666) | 0200;
}

int tern_packfile_check(const char *path, tern_error *err)
{
    return tern_outfile_check(path, &packed_kind, err);
}

size_t tern_packfile_bytes(const struct tern_weight_block *b)
{
    return (size_t)expected_header(b).data_offset + b->bytes;
}

/* Tensors go out one after the other, as they are packed; the table, which has their hashes, comes last. */
struct tern_packfile {
    struct tern_outfile f;
    const struct tern_weight_block *b;
    const struct tern_dev_mem *memory;
    uint8_t *head, *chunk;
    XXH3_state_t *state;
    struct header h;
    size_t n;        /* tensors that are written */
    size_t from, to; /* bytes of the block that wait in chunk, the place of each its own modulo CHUNK */
};

int tern_packfile_begin(struct tern_packfile **out, const struct tern_weight_block *b,
                        const struct tern_dev_mem *memory, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_packfile *p;
    *out = NULL;
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    rc = tern_outfile_open_alone(&p->f, path, mode_of(b->f), &packed_kind, err);
    if (rc < 0) {
        tern_free(p);
        return rc;
    }
    *out = p;
    p->b = b;
    p->memory = memory;
    p->h = expected_header(b);
    TERN_TRY(tern_outfile_reserve(&p->f, p->h.data_offset + b->bytes, err));
    TERN_TRY(tern_alloc(&p->head, p->h.data_offset, 1, err));
    TERN_TRY(tern_alloc(&p->chunk, CHUNK, 1, err));
    if (!(p->state = XXH3_createState()))
        TERN_FAIL(err, TERN_ENOMEM, "out of memory for a checksum");
    /* What is left behind must begin as ours: its checksum is 0, so that nobody takes it for whole. */
    TERN_TRY(tern_outfile_write_at(&p->f, &p->h, sizeof p->h, 0, err));
out:
    if (rc < 0)
        tern_packfile_drop(*out);
    if (rc < 0)
        *out = NULL;
    return rc;
}

/* Whole chunks go out at multiples of their size, however small tensors are: what is written at once is what the system
 * keeps in one piece, and large pages need pieces of 2 MiB. */
static int flush(struct tern_packfile *p, tern_error *err)
{
    const size_t from = p->from;
    p->from = p->to;
    if (from == p->to)
        return 0;
    return tern_outfile_write_at(&p->f, p->chunk + from % CHUNK, p->to - from, p->h.data_offset + from, err);
}

/* The next bytes of the block, at most up to the end of their chunk, from p->memory into it; between tensors lie
 * zeros.  How many there are is returned. */
static size_t gather(struct tern_packfile *p, size_t at, size_t n)
{
    const size_t room = CHUNK - at % CHUNK;
    n = n < room ? n : room;
    memset(p->chunk + p->to % CHUNK, 0, at - p->to);
    p->b->dev->ops->copy_out(p->b->dev, p->chunk + at % CHUNK, p->memory, at, n);
    p->b->dev->ops->sync(p->b->dev);
    p->to = at + n;
    return n;
}

int tern_packfile_add(struct tern_packfile *p, tern_error *err)
{
    int rc = 0;
    const struct tern_weight_place *place = &p->b->places[p->n];
    struct record *r = (struct record *)(void *)(p->head + sizeof p->h) + p->n;
    const bool alone = tern_resident_covers(place); /* what the system keeps in one piece leaves memory in one, too */
    (void)XXH3_64bits_reset(p->state);
    for (size_t at = place->offset, n, end = at + place->bytes; rc == 0 && at < end; at += n) {
        if (at < p->to || at / CHUNK != p->from / CHUNK || p->to % CHUNK == 0 || alone) {
            rc = flush(p, err);
            p->from = p->to = at;
        }
        n = gather(p, at, end - at);
        (void)XXH3_64bits_update(p->state, p->chunk + at % CHUNK, n);
        if (alone && rc == 0)
            rc = flush(p, err);
    }
    *r = expected(p->b, p->n);
    r->source_hash = p->b->sources[p->n];
    r->hash = XXH3_64bits_digest(p->state);
    p->n += rc == 0;
    return rc;
}

int tern_packfile_end(struct tern_packfile *p, tern_error *err)
{
    int rc = 0;
    TERN_ASSERT(p->n == p->b->n);
    memcpy(p->head, &p->h, sizeof p->h);
    p->h.hash = head_hash(p->head, p->h.data_offset);
    p->h.stamp = tern_file_stamp(p->b->f, p->h.hash);
    memcpy(p->head, &p->h, sizeof p->h);
    TERN_TRY(flush(p, err));
    TERN_TRY(tern_dev_fault(p->b->dev, true, err)); /* what it did not bring would be zeros */
    TERN_TRY(tern_outfile_write_at(&p->f, p->head, p->h.data_offset, 0, err));
    TERN_TRY(tern_outfile_commit(&p->f, err));
out:
    tern_packfile_drop(p);
    return rc;
}

void tern_packfile_drop(struct tern_packfile *p)
{
    if (!p)
        return;
    tern_free(p->head);
    tern_free(p->chunk);
    (void)XXH3_freeState(p->state);
    tern_outfile_abort(&p->f);
    tern_free(p);
}

int tern_packfile_write(const struct tern_weight_block *b, const struct tern_dev_mem *memory, const char *path,
                        tern_error *err)
{
    struct tern_packfile *p;
    int rc = tern_packfile_begin(&p, b, memory, path, err);
    for (size_t i = 0; rc == 0 && i < b->n; i++)
        rc = tern_packfile_add(p, err);
    if (rc == 0)
        return tern_packfile_end(p, err);
    tern_packfile_drop(p);
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static int check_header(const struct tern_map *m, const struct tern_weight_block *b, const char *path, tern_error *err)
{
    int rc = 0;
    struct header h, want = expected_header(b);
    if (m->n < sizeof h)
        TERN_FAIL(err, TERN_EFORMAT, "%s: file ends at byte %zu, inside the header", path, m->n);
    memcpy(&h, m->p, sizeof h);
    if (h.endian != ENDIAN)
        TERN_FAIL(err, TERN_EFORMAT, "%s: written on a machine of another byte order (byte 12)", path);
    if (h.version != VERSION || h.layout != TERN_PACK_LAYOUT)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: format version %u at byte 8, panel layout %u at byte 16; this program reads %d and %d", path,
                  h.version, h.layout, VERSION, TERN_PACK_LAYOUT);
    if (h.data_offset < sizeof h || h.data_offset > m->n)
        TERN_FAIL(err, TERN_EFORMAT, "%s: weights at byte %llu (byte 32), the file has %zu bytes", path,
                  (unsigned long long)h.data_offset, m->n);
    if (h.hash != head_hash(m->p, h.data_offset))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header or table is damaged (checksum at byte 48 differs)", path);
    if (h.digest != want.digest || h.n_tensors != want.n_tensors || h.data_offset != want.data_offset ||
        h.data_bytes != want.data_bytes)
        TERN_FAIL(err, TERN_EMISMATCH, "%s: was made from another model file", path);
    if (m->n - h.data_offset != h.data_bytes)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %zu bytes of weights at byte %llu, there should be %llu", path,
                  m->n - (size_t)h.data_offset, (unsigned long long)h.data_offset, (unsigned long long)h.data_bytes);
out:
    return rc;
}

/* The file's table must be what this program would write, but for the hashes. */
static int check_table(const struct tern_map *m, const struct tern_weight_block *b, const char *path, tern_error *err)
{
    for (size_t i = 0; i < b->n; i++) {
        const struct record *have = &table_of(m)[i];
        struct record want = expected(b, i);
        want.source_hash = have->source_hash;
        want.hash = have->hash;
        if (memcmp(have, &want, sizeof want) != 0)
            return tern_err_set(err, TERN_EMISMATCH,
                                "%s: table entry %zu at byte %zu does not describe tensor \"%s\" of the model file",
                                path, i, sizeof(struct header) + i * sizeof want, b->places[i].t->name);
    }
    return 0;
}

/* A later start need not read the model file again.  What cannot be written is only slower. */
static void write_stamp(const struct tern_map *m, const char *path, uint64_t stamp)
{
    struct stat st;
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_ino == m->id.inode && (uint64_t)st.st_size == m->n)
        (void)!pwrite(fd, &stamp, sizeof stamp, offsetof(struct header, stamp));
    (void)close(fd);
}

/* Is the model file the one that the block was packed from?  Its stamp says so, or else all its bytes. */
static int check_source(const struct tern_map *m, const struct tern_weight_block *b, const char *path,
                        struct tern_pool *pool, tern_error *err)
{
    const struct header *h = (const struct header *)(const void *)m->p;
    uint64_t stamp = tern_file_stamp(b->f, h->hash);
    if (stamp && stamp == h->stamp) {
        for (size_t i = 0; i < b->n; i++)
            b->sources[i] = table_of(m)[i].source_hash;
        return 0;
    }
    tern_weight_sources(b, 0, b->n, pool);
    for (size_t i = 0; i < b->n; i++)
        if (b->sources[i] != table_of(m)[i].source_hash)
            return tern_err_set(err, TERN_EMISMATCH, "%s: was made from other weights: tensor \"%s\" differs", path,
                                b->places[i].t->name);
    if (stamp)
        write_stamp(m, path, stamp);
    return 0;
}

/* now: [n] room for hashes. */
static int check_block(const struct tern_map *m, const struct tern_weight_block *b, uint64_t *now, const uint8_t *data,
                       const char *path, struct tern_pool *pool, tern_error *err)
{
    struct hashing h = {b, 0, data, now};
    tern_pool_run(pool, hash_task, &h, (int)b->n);
    for (size_t i = 0; i < b->n; i++)
        if (now[i] != table_of(m)[i].hash)
            return tern_err_set(err, TERN_EFORMAT, "%s: tensor \"%s\" at byte %zu is damaged (checksum differs)", path,
                                b->places[i].t->name, (size_t)(data - m->p) + b->places[i].offset);
    return 0;
}

int tern_packfile_open(struct tern_map *out, const uint8_t **data, const struct tern_weight_block *b, const char *path,
                       struct tern_pool *pool, bool *replace, tern_error *err)
{
    int rc = 0;
    uint64_t *now = NULL;
    rc = tern_map_open(out, path, "a file of packed weights", err);
    *replace = rc == TERN_ENOENT || rc == TERN_EFORMAT; /* there is none, or it is empty */
    if (rc < 0)
        return rc;
    *replace = memcmp(out->p, MAGIC, out->n < 8 ? out->n : 8) == 0;
    if (!*replace)
        TERN_FAIL(err, TERN_EFORMAT, "%s: not a file of packed weights (wrong magic at byte 0)", path);
    TERN_TRY(check_header(out, b, path, err));
    TERN_TRY(check_table(out, b, path, err));
    TERN_TRY(tern_alloc(&now, b->n, sizeof *now, err));
    *data = out->p + out->n - b->bytes;
    /* Large pages where the file system has them: kernels read the weights end to end. */
    if (!b->lean)
        (void)madvise((void *)(uintptr_t)*data, b->bytes, MADV_HUGEPAGE);
    TERN_TRY(check_source(out, b, path, pool, err));
    TERN_TRY(check_block(out, b, now, *data, path, pool, err));
    tern_map_forget(out->p, (size_t)(*data - out->p));
out:
    if (rc < 0)
        tern_map_close(out);
    tern_free(now);
    return rc;
}
