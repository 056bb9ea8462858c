/* A saved sequence.  All numbers little-endian; every section is followed by the XXH3-64 of its bytes, so a flipped bit
 * anywhere is found before anything is used.  docs/session-format.md is the byte-exact description. */
#include "kv/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/mem.h"
#include "base/outfile.h"
#include "kv/state.h"

#define MAGIC   "ternseq\n"
#define VERSION 3
#define ENDIAN  0x01020304u

struct header {
    char magic[8];
    uint32_t version, endian;
    uint64_t model_digest, layout_digest;
    uint32_t n_tokens, n_groups;
    uint32_t first[TERN_KV_MAX_GROUPS], n_pages[TERN_KV_MAX_GROUPS];
    uint32_t raw_from[TERN_KV_MAX_GROUPS]; /* first page whose raw tiles are here, of layers that see pages raw */
    uint32_t has_sink, kept_at;            /* tokens of the state that is kept beside the last one; 0: none */
    char kv[256];                          /* the --kv text, for messages and for people */
    uint64_t hash;                         /* of all bytes before this field */
};
_Static_assert(sizeof(struct header) == 8 + 8 + 16 + 8 + 48 + 8 + 256 + 8, "no padding in the file header");

static const struct tern_outfile_kind session_kind = {"a session", MAGIC, sizeof MAGIC - 1, false, false};

static int write_section(struct tern_outfile *f, const void *data, size_t n, tern_error *err)
{
    uint64_t h = XXH3_64bits(data, n);
    int rc = tern_outfile_write(f, data, n, err);
    return rc < 0 ? rc : tern_outfile_write(f, &h, sizeof h, err);
}

/* The raw pages [*from, *to) of a span that a file has: those that a next step reads, and of layers that see earlier
 * pages raw one more, which it takes to go back over the edge of a page.  raw_from: of the span's group. */
static void raw_pages(const struct tern_kv_layout *l, int span, int n_tokens, int raw_from, int *from, int *to)
{
    const struct tern_kv_group *g = &l->groups[l->group_of[span]];
    const int open = tern_kv_closed(g, n_tokens);
    *from = l->layers[span].recent > 1 ? raw_from : open;
    *to = open + (tern_kv_open_rows(g, n_tokens) > 0);
}

static int oldest_raw(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int g)
{
    const struct tern_kv_group *grp = &c->layout->groups[g];
    const int open = tern_kv_closed(grp, s->n_tokens), from = open - (grp->recent > 1 ? grp->recent : 0);
    return grp->recent > 1 && s->seen_from[g] > from ? s->seen_from[g] : from > 0 ? from : 0;
}

static size_t raw_bytes(const struct tern_kv_layout *l, int n_tokens, const uint32_t *raw_from)
{
    size_t n = 0;
    for (int i = 0, from, to; i < l->n_spans; i++)
        if (l->group_of[i] >= 0) {
            raw_pages(l, i, n_tokens, (int)raw_from[l->group_of[i]], &from, &to);
            n += (size_t)(to - from) * l->layers[i].tile_bytes * (size_t)l->layers[i].n_heads;
        }
    return n;
}

/* All of them, span by span and page by page, out of the sequence's tiles or into them. */
static void move_raw(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int n_tokens, const uint32_t *raw_from,
                     uint8_t *bytes, bool write)
{
    const struct tern_kv_layout *l = c->layout;
    for (int i = 0, from, to; i < l->n_spans; i++) {
        const struct tern_kv_layer *y = &l->layers[i];
        const size_t n = y->tile_bytes * (size_t)y->n_heads;
        if (l->group_of[i] < 0)
            continue;
        raw_pages(l, i, n_tokens, (int)raw_from[l->group_of[i]], &from, &to);
        for (int page = from; page < to; page++, bytes += n) {
            const size_t at = y->tile_layer_off + (size_t)(page % y->ring) * n;
            if (write)
                tern_kv_block_write(&c->tiles, s->tile, at, bytes, n);
            else
                tern_kv_block_read(&c->tiles, s->tile, at, bytes, n);
        }
    }
}

/* Memory for the longest section of a block. */
static int section_memory(uint8_t **out, const struct tern_kv_layout *l, size_t raw, tern_error *err)
{
    size_t most = raw > l->sink_bytes ? raw : l->sink_bytes;
    most = most > l->state_bytes ? most : l->state_bytes;
    for (int g = 0; g < l->n_groups; g++)
        most = most > l->groups[g].page_bytes ? most : l->groups[g].page_bytes;
    return tern_alloc(out, most, 1, err);
}

static int write_block(struct tern_outfile *f, const struct tern_kv_pool *p, uint32_t block, uint8_t *memory, size_t n,
                       tern_error *err)
{
    tern_kv_block_read(p, block, 0, memory, n);
    return write_section(f, memory, n, err);
}

static void fill_header(struct header *h, const struct tern_kv_cache *c, const struct tern_kv_seq *s,
                        const struct tern_kv_snapshot_info *info)
{
    const struct tern_kv_layout *l = c->layout;
    *h = (struct header){.version = VERSION, .endian = ENDIAN, .model_digest = info->model_digest};
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->layout_digest = l->digest;
    h->n_tokens = (uint32_t)s->n_tokens;
    h->n_groups = (uint32_t)l->n_groups;
    for (int g = 0; g < l->n_groups; g++) {
        h->first[g] = (uint32_t)s->table[g].first;
        h->n_pages[g] = (uint32_t)s->table[g].n;
        h->raw_from[g] = (uint32_t)oldest_raw(c, s, g);
    }
    h->has_sink = s->sink != TERN_NO_BLOCK;
    h->kept_at = s->n_kept ? (uint32_t)s->kept[s->n_kept - 1]->at : 0;
    tern_kv_layout_describe(l, h->kv, sizeof h->kv);
    h->hash = XXH3_64bits(h, offsetof(struct header, hash));
}

static int write_file(struct tern_outfile *f, const struct tern_kv_cache *c, const struct tern_kv_seq *s,
                      const struct tern_kv_snapshot_info *info, tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    uint8_t *memory = NULL;
    struct header h;
    fill_header(&h, c, s, info);
    const size_t raw = raw_bytes(l, s->n_tokens, h.raw_from);
    TERN_TRY(section_memory(&memory, l, raw, err));
    TERN_TRY(tern_outfile_write(f, &h, sizeof h, err));
    TERN_TRY(write_section(f, info->tokens, (size_t)s->n_tokens * sizeof *info->tokens, err));
    TERN_TRY(write_section(f, info->roles, (size_t)s->n_tokens, err));
    move_raw(c, s, s->n_tokens, h.raw_from, memory, false);
    TERN_TRY(write_section(f, memory, raw, err));
    if (h.has_sink)
        TERN_TRY(write_block(f, &c->sinks, s->sink, memory, l->sink_bytes, err));
    for (int g = 0; g < l->n_groups; g++)
        for (int i = 0; i < s->table[g].n; i++)
            TERN_TRY(write_block(f, &c->pool[g], s->table[g].pages[i], memory, l->groups[g].page_bytes, err));
    if (l->state_bytes)
        TERN_TRY(write_block(f, &c->states, s->state, memory, l->state_bytes, err));
    if (h.kept_at)
        TERN_TRY(write_block(f, &c->states, s->kept[s->n_kept - 1]->state, memory, l->state_bytes, err));
out:
    tern_free(memory);
    return rc;
}

int tern_kv_save_check(const char *path, tern_error *err)
{
    return tern_outfile_check(path, &session_kind, err);
}

int tern_kv_save(const struct tern_kv_cache *c, const struct tern_kv_seq *s, const struct tern_kv_snapshot_info *info,
                 const char *path, tern_error *err)
{
    struct tern_outfile f;
    int rc = tern_outfile_open(&f, path, 0600, &session_kind, err);
    if (rc < 0)
        return rc;
    TERN_TRY(write_file(&f, c, s, info, err));
    TERN_TRY(tern_dev_fault(c->dev, true, err)); /* what a device did not bring would be zeros */
    TERN_TRY(tern_outfile_commit(&f, err));
out:
    tern_outfile_abort(&f);
    return rc;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

struct reader {
    int fd;
    uint64_t at; /* byte offset, for messages */
    const char *path;
};

static int read_all(struct reader *r, void *data, size_t n, const char *what, tern_error *err)
{
    char *p = data;
    size_t left = n;
    while (left) {
        ssize_t got = read(r->fd, p, left);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tern_err_set(err, TERN_EIO, "%s: cannot read %s at byte %llu: %s", r->path, what,
                                (unsigned long long)r->at, strerror(errno));
        if (got == 0)
            return tern_err_set(err, TERN_EFORMAT, "%s: file ends at byte %llu, inside %s", r->path,
                                (unsigned long long)(r->at + (n - left)), what);
        p += got;
        left -= (size_t)got;
    }
    r->at += n;
    return 0;
}

static int read_section(struct reader *r, void *data, size_t n, const char *what, tern_error *err)
{
    int rc = 0;
    uint64_t start = r->at, h;
    TERN_TRY(read_all(r, data, n, what, err));
    TERN_TRY(read_all(r, &h, sizeof h, what, err));
    if (h != XXH3_64bits(data, n))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s at byte %llu is damaged (checksum differs)", r->path, what,
                  (unsigned long long)start);
out:
    return rc;
}

static int refuse_layout(const struct header *h, const struct tern_kv_layout *l, const char *path, tern_error *err)
{
    char mine[sizeof h->kv], theirs[sizeof h->kv];
    tern_kv_layout_describe(l, mine, sizeof mine);
    (void)snprintf(theirs, sizeof theirs, "%.*s", (int)sizeof h->kv - 1, h->kv);
    const size_t n = strlen(l->text);
    const bool same_text = strncmp(theirs, l->text, n) == 0 && (!theirs[n] || strncmp(theirs + n, " (keys ", 7) == 0);
    return tern_err_set(err, TERN_EMISMATCH, "%s: was saved with --kv %s%s, this engine runs --kv %s%s", path, theirs,
                        same_text && !theirs[n] ? " and other conditioning of the keys" : "", mine,
                        same_text ? "; cond=off|norms|bias|FILE chooses the conditioning" : "");
}

static int check_group(const struct header *h, const struct tern_kv_cache *c, int g, const char *path, tern_error *err)
{
    const struct tern_kv_group *grp = &c->layout->groups[g];
    const int n = (int)h->n_tokens, closed = tern_kv_closed(grp, n), seen = closed - grp->recent + 1;
    if (h->n_pages[g] > (uint32_t)c->seqs[0].table[g].cap || h->first[g] > (uint32_t)closed ||
        h->first[g] + h->n_pages[g] != (uint32_t)closed || (int)h->first[g] > tern_kv_first_needed(grp->reach, n))
        return tern_err_set(err, TERN_EFORMAT, "%s: page table %d in the header contradicts the %u tokens", path, g,
                            h->n_tokens);
    if (h->raw_from[g] > (uint32_t)(seen > 0 ? seen : 0) || (int)h->raw_from[g] + grp->recent < closed)
        return tern_err_set(err, TERN_EFORMAT, "%s: raw pages of table %d in the header contradict the %u tokens", path,
                            g, h->n_tokens);
    return 0;
}

static int check_header(const struct header *h, const struct tern_kv_cache *c, uint64_t model_digest, const char *path,
                        tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: not a tern session (wrong magic at byte 0)", path);
    if (h->endian != ENDIAN)
        TERN_FAIL(err, TERN_EFORMAT, "%s: written on a machine of another byte order (byte 12)", path);
    if (h->version != VERSION)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: session format version %u at byte 8; this program reads version %d",
                  path, h->version, VERSION);
    if (h->hash != XXH3_64bits(h, offsetof(struct header, hash)))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header at byte 0 is damaged (checksum differs)", path);
    if (h->model_digest != model_digest)
        TERN_FAIL(err, TERN_EMISMATCH, "%s: was saved from another model", path);
    if (h->layout_digest != l->digest)
        return refuse_layout(h, l, path, err);
    if (h->n_tokens > (uint32_t)c->max_tokens)
        TERN_FAIL(err, TERN_ECAPACITY, "%s: holds %u tokens, the context is %d", path, h->n_tokens, c->max_tokens);
    if (h->kept_at > h->n_tokens || h->kept_at % TERN_PAGE || (h->kept_at && !l->state_bytes))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header at byte 92 contradicts itself", path);
    if (h->n_groups != (uint32_t)l->n_groups || (h->has_sink != 0) != (h->n_tokens >= TERN_PAGE && l->sink_bytes))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header at byte 40 contradicts itself", path);
    for (int g = 0; g < l->n_groups; g++)
        TERN_TRY(check_group(h, c, g, path, err));
out:
    return rc;
}

static int read_block(struct reader *r, const struct tern_kv_pool *p, uint32_t block, uint8_t *memory, size_t n,
                      const char *what, tern_error *err)
{
    int rc = read_section(r, memory, n, what, err);
    if (rc == 0)
        tern_kv_block_write(p, block, 0, memory, n);
    return rc;
}

static int read_seq(struct reader *r, const struct tern_kv_cache *c, struct tern_kv_seq *s, const struct header *h,
                    int n_vocab, int32_t *tokens, uint8_t *roles, tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    const size_t raw = raw_bytes(l, (int)h->n_tokens, h->raw_from);
    uint8_t *memory = NULL;
    TERN_TRY(read_section(r, tokens, h->n_tokens * sizeof *tokens, "the token list", err));
    for (uint32_t i = 0; i < h->n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            TERN_FAIL(err, TERN_EFORMAT, "%s: token %u is %d, outside the vocabulary of %d", r->path, i, tokens[i],
                      n_vocab);
    TERN_TRY(read_section(r, roles, h->n_tokens, "the role list", err));
    TERN_TRY(section_memory(&memory, l, raw, err));
    TERN_TRY(read_section(r, memory, raw, "the raw tiles", err));
    move_raw(c, s, (int)h->n_tokens, h->raw_from, memory, true);
    if (s->sink != TERN_NO_BLOCK)
        TERN_TRY(read_block(r, &c->sinks, s->sink, memory, l->sink_bytes, "the first tokens", err));
    for (int g = 0; g < l->n_groups; g++)
        for (int i = 0; i < s->table[g].n; i++)
            TERN_TRY(read_block(r, &c->pool[g], s->table[g].pages[i], memory, l->groups[g].page_bytes, "a page", err));
    if (l->state_bytes)
        TERN_TRY(read_block(r, &c->states, s->state, memory, l->state_bytes, "the state", err));
    if (s->n_kept)
        TERN_TRY(read_block(r, &c->states, s->kept[0]->state, memory, l->state_bytes, "the kept state", err));
    char extra;
    if (read(r->fd, &extra, 1) > 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s at byte %llu", r->path, "unexpected bytes behind the last section",
                  (unsigned long long)r->at);
out:
    tern_free(memory);
    return rc;
}

/* Gives the new sequence the blocks that the header speaks of; contents follow. */
static int take_blocks(struct tern_kv_cache *c, struct tern_kv_seq *s, const struct header *h, tern_error *err)
{
    for (int g = 0; g < c->layout->n_groups; g++) {
        struct tern_kv_table *t = &s->table[g];
        t->first = (int)h->first[g];
        while (t->n < (int)h->n_pages[g]) {
            t->pages[t->n] = tern_kv_pool_get(&c->pool[g]);
            if (t->pages[t->n] == TERN_NO_BLOCK)
                return tern_kv_no_memory(c, "a page", c->pool[g].takes, err);
            t->n++;
        }
        s->raw_from[g] = tern_kv_closed(&c->layout->groups[g], (int)h->n_tokens);
        s->seen_from[g] = (int)h->raw_from[g];
    }
    if (h->has_sink) {
        s->sink = tern_kv_pool_get(&c->sinks);
        if (s->sink == TERN_NO_BLOCK)
            return tern_kv_no_memory(c, "the first tokens", c->layout->sink_bytes, err);
    }
    if (h->kept_at && !tern_kv_states_room(c, s, (int)h->kept_at))
        return tern_kv_no_memory(c, "a state", c->layout->state_bytes, err);
    return 0;
}

int tern_kv_load(struct tern_kv_cache *c, struct tern_kv_seq **out, uint64_t model_digest, int n_vocab,
                 const char *path, int32_t **tokens, uint8_t **roles, tern_error *err)
{
    int rc = 0;
    struct reader r = {.fd = -1, .path = path};
    struct tern_kv_seq *s = NULL;
    struct header h;
    struct stat st;
    tern_error why = {0};
    *out = NULL;
    *tokens = NULL;
    *roles = NULL;
    /* O_NONBLOCK: a FIFO under this name must not hang the program. */
    r.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r.fd < 0 || fstat(r.fd, &st) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot open: %s", tern_path_show(path), strerror(errno));
    if (!S_ISREG(st.st_mode))
        TERN_FAIL(err, TERN_EIO, "%s: not a regular file", path);
    TERN_TRY(read_all(&r, &h, sizeof h, "the header", err));
    TERN_TRY(check_header(&h, c, model_digest, path, err));
    TERN_TRY(tern_alloc(tokens, h.n_tokens, sizeof **tokens, err));
    TERN_TRY(tern_alloc(roles, h.n_tokens, sizeof **roles, err));
    rc = tern_kv_seq_new(c, &s, &why);
    if (rc == 0)
        rc = take_blocks(c, s, &h, &why);
    if (rc < 0)
        TERN_FAIL(err, rc, "%s: %.400s", path, why.msg);
    TERN_TRY(read_seq(&r, c, s, &h, n_vocab, *tokens, *roles, err));
    s->n_tokens = (int)h.n_tokens;
    *out = s;
    s = NULL;
out:
    if (r.fd >= 0)
        (void)close(r.fd);
    tern_kv_seq_free(c, s);
    if (rc < 0) {
        tern_free(*tokens);
        tern_free(*roles);
        *tokens = NULL;
        *roles = NULL;
    }
    return rc;
}
