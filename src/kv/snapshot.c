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
#define VERSION 1
#define STATES  2 /* version of files with recurrent states */
#define ENDIAN  0x01020304u

struct header {
    char magic[8];
    uint32_t version, endian;
    uint64_t model_digest, layout_digest;
    uint32_t n_tokens, n_groups;
    uint32_t first[TERN_KV_MAX_GROUPS], n_pages[TERN_KV_MAX_GROUPS];
    uint32_t has_sink, kept_at; /* tokens of the state that is kept beside the last one; 0: none */
    char kv[256];               /* the --kv text, for messages and for people */
    uint64_t hash;              /* of all bytes before this field */
};
_Static_assert(sizeof(struct header) == 8 + 8 + 16 + 8 + 32 + 8 + 256 + 8, "no padding in the file header");

static const struct tern_outfile_kind session_kind = {"a session", MAGIC, sizeof MAGIC - 1, false};

static int write_section(struct tern_outfile *f, const void *data, size_t n, tern_error *err)
{
    uint64_t h = XXH3_64bits(data, n);
    int rc = tern_outfile_write(f, data, n, err);
    return rc < 0 ? rc : tern_outfile_write(f, &h, sizeof h, err);
}

/* The first n bytes of a block, by way of room. */
static int write_block(struct tern_outfile *f, const struct tern_kv_pool *p, uint32_t block, size_t n, uint8_t *room,
                       tern_error *err)
{
    tern_kv_block_read(p, block, 0, room, n);
    return write_section(f, room, n, err);
}

/* Bytes of the largest section that is a block. */
static size_t largest_block(const struct tern_kv_layout *l)
{
    size_t n = l->tile_bytes > l->sink_bytes ? l->tile_bytes : l->sink_bytes;
    n = l->state_bytes > n ? l->state_bytes : n;
    for (int g = 0; g < l->n_groups; g++)
        n = l->groups[g].page_bytes > n ? l->groups[g].page_bytes : n;
    return n;
}

static int write_file(struct tern_outfile *f, const struct tern_kv_cache *c, const struct tern_kv_seq *s,
                      const struct tern_kv_snapshot_info *info, tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    const struct tern_kv_checkpoint *kept = s->n_kept ? s->kept[s->n_kept - 1] : NULL;
    uint8_t *room = NULL;
    struct header h = {
        .version = l->state_bytes ? STATES : VERSION, .endian = ENDIAN, .model_digest = info->model_digest};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.layout_digest = l->digest;
    h.n_tokens = (uint32_t)s->n_tokens;
    h.n_groups = (uint32_t)l->n_groups;
    for (int g = 0; g < l->n_groups; g++) {
        h.first[g] = (uint32_t)s->table[g].first;
        h.n_pages[g] = (uint32_t)s->table[g].n;
    }
    h.has_sink = s->sink != TERN_NO_BLOCK;
    h.kept_at = kept ? (uint32_t)kept->at : 0;
    tern_kv_layout_describe(l, h.kv, sizeof h.kv);
    h.hash = XXH3_64bits(&h, offsetof(struct header, hash));
    TERN_TRY(tern_alloc(&room, largest_block(l), 1, err));
    TERN_TRY(tern_outfile_write(f, &h, sizeof h, err));
    TERN_TRY(write_section(f, info->tokens, (size_t)s->n_tokens * sizeof *info->tokens, err));
    TERN_TRY(write_section(f, info->roles, (size_t)s->n_tokens, err));
    TERN_TRY(write_block(f, &c->tiles, s->tile, l->tile_bytes, room, err));
    if (s->sink != TERN_NO_BLOCK)
        TERN_TRY(write_block(f, &c->sinks, s->sink, l->sink_bytes, room, err));
    for (int g = 0; g < l->n_groups; g++)
        for (int i = 0; i < s->table[g].n; i++)
            TERN_TRY(write_block(f, &c->pool[g], s->table[g].pages[i], l->groups[g].page_bytes, room, err));
    if (l->state_bytes)
        TERN_TRY(write_block(f, &c->states, s->state, l->state_bytes, room, err));
    if (kept)
        TERN_TRY(write_block(f, &c->states, kept->state, l->state_bytes, room, err));
out:
    tern_free(room);
    return rc;
}

int tern_kv_save(const struct tern_kv_cache *c, const struct tern_kv_seq *s, const struct tern_kv_snapshot_info *info,
                 const char *path, tern_error *err)
{
    struct tern_outfile f;
    int rc = tern_outfile_open(&f, path, 0600, &session_kind, err);
    if (rc < 0)
        return rc;
    TERN_TRY(write_file(&f, c, s, info, err));
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

static int check_header(const struct header *h, const struct tern_kv_cache *c, uint64_t model_digest, const char *path,
                        tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: not a tern session (wrong magic at byte 0)", path);
    if (h->endian != ENDIAN)
        TERN_FAIL(err, TERN_EFORMAT, "%s: written on a machine of another byte order (byte 12)", path);
    if (h->version != VERSION && h->version != STATES)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: session format version %u at byte 8; this program reads versions %d, %d",
                  path, h->version, VERSION, STATES);
    if (h->hash != XXH3_64bits(h, offsetof(struct header, hash)))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header at byte 0 is damaged (checksum differs)", path);
    if (h->model_digest != model_digest)
        TERN_FAIL(err, TERN_EMISMATCH, "%s: was saved from another model", path);
    if (h->layout_digest != l->digest)
        return refuse_layout(h, l, path, err);
    if (h->n_tokens > (uint32_t)c->max_tokens)
        TERN_FAIL(err, TERN_ECAPACITY, "%s: holds %u tokens, the context is %d", path, h->n_tokens, c->max_tokens);
    if ((h->version == STATES) != (l->state_bytes != 0) || h->kept_at > h->n_tokens || h->kept_at % TERN_PAGE ||
        (h->kept_at && !l->state_bytes))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header at byte 76 contradicts itself", path);
    if (h->n_groups != (uint32_t)l->n_groups || (h->has_sink != 0) != (h->n_tokens >= TERN_PAGE && l->sink_bytes))
        TERN_FAIL(err, TERN_EFORMAT, "%s: header at byte 40 contradicts itself", path);
    for (int g = 0; g < l->n_groups; g++)
        if (h->n_pages[g] > (uint32_t)c->seqs[0].table[g].cap || h->first[g] > h->n_tokens / TERN_PAGE ||
            h->first[g] + h->n_pages[g] != h->n_tokens / TERN_PAGE ||
            (int)h->first[g] > tern_kv_first_needed(l->groups[g].reach, (int)h->n_tokens))
            TERN_FAIL(err, TERN_EFORMAT, "%s: page table %d in the header contradicts the %u tokens", path, g,
                      h->n_tokens);
out:
    return rc;
}

/* The first n bytes of a block, by way of room. */
static int read_block(struct reader *r, const struct tern_kv_pool *p, uint32_t block, size_t n, uint8_t *room,
                      const char *what, tern_error *err)
{
    int rc = read_section(r, room, n, what, err);
    if (rc == 0)
        tern_kv_block_write(p, block, 0, room, n);
    return rc;
}

static int read_seq(struct reader *r, const struct tern_kv_cache *c, struct tern_kv_seq *s, const struct header *h,
                    int n_vocab, int32_t *tokens, uint8_t *roles, tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    uint8_t *room = NULL;
    TERN_TRY(tern_alloc(&room, largest_block(l), 1, err));
    TERN_TRY(read_section(r, tokens, h->n_tokens * sizeof *tokens, "the token list", err));
    for (uint32_t i = 0; i < h->n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            TERN_FAIL(err, TERN_EFORMAT, "%s: token %u is %d, outside the vocabulary of %d", r->path, i, tokens[i],
                      n_vocab);
    TERN_TRY(read_section(r, roles, h->n_tokens, "the role list", err));
    TERN_TRY(read_block(r, &c->tiles, s->tile, l->tile_bytes, room, "the open tile", err));
    if (s->sink != TERN_NO_BLOCK)
        TERN_TRY(read_block(r, &c->sinks, s->sink, l->sink_bytes, room, "the first tokens", err));
    for (int g = 0; g < l->n_groups; g++)
        for (int i = 0; i < s->table[g].n; i++)
            TERN_TRY(read_block(r, &c->pool[g], s->table[g].pages[i], l->groups[g].page_bytes, room, "a page", err));
    if (l->state_bytes)
        TERN_TRY(read_block(r, &c->states, s->state, l->state_bytes, room, "the state", err));
    if (s->n_kept)
        TERN_TRY(read_block(r, &c->states, s->kept[0]->state, l->state_bytes, room, "the kept state", err));
    char extra;
    if (read(r->fd, &extra, 1) > 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s at byte %llu", r->path, "unexpected bytes behind the last section",
                  (unsigned long long)r->at);
out:
    tern_free(room);
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
                return tern_err_set(err, TERN_ECAPACITY, "the KV pool is full");
            t->n++;
        }
    }
    if (h->has_sink) {
        s->sink = tern_kv_pool_get(&c->sinks);
        if (s->sink == TERN_NO_BLOCK)
            return tern_err_set(err, TERN_ECAPACITY, "the KV pool is full");
    }
    if (h->kept_at && !tern_kv_states_room(c, s, (int)h->kept_at))
        return tern_err_set(err, TERN_ECAPACITY, "the KV pool is full");
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
    *out = NULL;
    *tokens = NULL;
    *roles = NULL;
    /* O_NONBLOCK: a FIFO under this name must not hang the program. */
    r.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r.fd < 0 || fstat(r.fd, &st) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        TERN_FAIL(err, TERN_EIO, "%s: not a regular file", path);
    TERN_TRY(read_all(&r, &h, sizeof h, "the header", err));
    TERN_TRY(check_header(&h, c, model_digest, path, err));
    TERN_TRY(tern_alloc(tokens, h.n_tokens, sizeof **tokens, err));
    TERN_TRY(tern_alloc(roles, h.n_tokens, sizeof **roles, err));
    TERN_TRY(tern_kv_seq_new(c, &s, err));
    TERN_TRY(take_blocks(c, s, &h, err));
    TERN_TRY(read_seq(&r, c, s, &h, n_vocab, *tokens, *roles, err));
    s->n_tokens = (int)h.n_tokens;
    for (int g = 0; g < c->layout->n_groups; g++) { /* the file does not say what else is raw */
        const int open = s->n_tokens / TERN_PAGE, seen = open - c->layout->groups[g].recent + 1;
        s->raw_from[g] = open;
        s->seen_from[g] = seen > 0 ? seen : 0;
    }
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
