/* The new file, chunk by chunk.  TO.part holds the file as it will be, and behind its last byte a journal: which chunks
 * have been written, each with the hash of its bytes.  Whoever goes on believes a chunk when its bytes have that hash,
 * and the journal when it speaks of the same source and the same plan.  docs/convert.md describes it. */
#include "convert/convert_impl.h"

#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/cpu.h"
#include "base/outfile.h"

#define MAGIC   "ternconv"
#define VERSION 1 /* also of the quantisers: another one makes other bytes */

static const struct tern_outfile_kind gguf_kind = {"a GGUF file", "GGUF", 4, false, false};

struct journal {
    char magic[8];
    uint32_t version, n_chunks;
    uint64_t digest; /* of the source and of the plan; 0: nobody can go on */
    uint64_t hash;   /* of the bytes before this field */
};
_Static_assert(sizeof(struct journal) == 32, "no padding in the journal");

struct writer {
    const struct plan *p;
    struct tern_outfile f;
    struct tern_pool *pool;
    struct journal journal;
    uint64_t *hashes; /* [n_chunks] as the file has them; 0: not written */
    uint64_t data_at; /* end of the head */
    uint64_t total;   /* bytes of the new file: there the journal begins */
    uint8_t *out;
    float *scratch;
    size_t out_bytes, scratch_row;
    int kept;
    bool begun; /* the file is ours */
};

static uint64_t hash_of(const void *p, size_t n)
{
    const uint64_t h = XXH3_64bits(p, n);
    return h ? h : 1;
}

static struct journal journal_of(const struct plan *p)
{
    struct journal j = {.magic = MAGIC, .version = VERSION, .n_chunks = (uint32_t)p->n_chunks};
    uint64_t seed = XXH3_64bits_withSeed(p->head_bytes.p, p->head_bytes.len, VERSION);
    for (size_t i = 0; i < p->n; i++)
        seed = XXH3_64bits_withSeed(&p->v[i].chunk_rows, sizeof p->v[i].chunk_rows, seed);
    j.digest = tern_file_stamp(p->f, seed);
    j.hash = XXH3_64bits(&j, offsetof(struct journal, hash));
    return j;
}

static uint64_t hash_at(const struct writer *w, size_t chunk)
{
    return w->total + sizeof w->journal + chunk * sizeof *w->hashes;
}

/* Is there something to go on with? */
static bool find_journal(struct writer *w)
{
    struct journal j;
    return w->journal.digest && tern_outfile_read_at(&w->f, &j, sizeof j, w->total) &&
           memcmp(&j, &w->journal, sizeof j) == 0 &&
           tern_outfile_read_at(&w->f, w->hashes, w->p->n_chunks * sizeof *w->hashes, hash_at(w, 0));
}

/* PATH.part may be anybody's: what convert leaves ends with these bytes. */
static int check_owner(struct writer *w, tern_error *err)
{
    char end[sizeof w->journal.magic];
    const uint64_t size = tern_outfile_size(&w->f);
    if (size == 0 || (size > sizeof end && tern_outfile_read_at(&w->f, end, sizeof end, size - sizeof end) &&
                      memcmp(end, w->journal.magic, sizeof end) == 0))
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%s.part: this is there, and convert has not written it; remove or rename it",
                        tern_path_show(w->f.path));
}

static int begin(struct writer *w, tern_error *err)
{
    int rc = 0;
    const struct plan *p = w->p;
    const uint64_t end = hash_at(w, p->n_chunks);
    if (find_journal(w))
        return 0;
    memset(w->hashes, 0, p->n_chunks * sizeof *w->hashes);
    TERN_TRY(tern_outfile_resize(&w->f, 0, err));
    TERN_TRY(tern_outfile_reserve(&w->f, end + sizeof w->journal.magic, err));
    TERN_TRY(tern_outfile_write_at(&w->f, w->journal.magic, sizeof w->journal.magic, end, err));
    TERN_TRY(tern_outfile_write_at(&w->f, p->head_bytes.p, p->head_bytes.len, 0, err));
    TERN_TRY(tern_outfile_write_at(&w->f, &w->journal, sizeof w->journal, w->total, err));
out:
    return rc;
}

/* Does the file hold this chunk already? */
static bool is_written(struct writer *w, size_t chunk, uint64_t at, size_t n)
{
    return w->hashes[chunk] && tern_outfile_read_at(&w->f, w->out, n, at) && hash_of(w->out, n) == w->hashes[chunk];
}

static int write_chunk(struct writer *w, const struct piece *o, size_t i, size_t chunk, tern_error *err)
{
    int rc = 0;
    const int64_t row = (int64_t)i * o->chunk_rows, left = o->rows - row;
    const int64_t n = left < o->chunk_rows ? left : o->chunk_rows;
    const uint64_t at = w->data_at + o->offset + (uint64_t)row * tern_convert_row_bytes(o);
    size_t bytes = (size_t)n * tern_convert_row_bytes(o), zeros = 0;
    if (i + 1 == o->n_chunks) /* behind the tensor */
        zeros = tern_round_up((size_t)o->n_bytes, TERN_GGUF_ALIGN) - (size_t)o->n_bytes;
    bytes += zeros;
    if (is_written(w, chunk, at, bytes)) {
        w->kept++;
        return 0;
    }
    memset(w->out + bytes - zeros, 0, zeros);
    TERN_TRY(tern_convert_rows(w->p, o, row, n, w->out, w->scratch, w->scratch_row, w->pool, err));
    const uint64_t hash = hash_of(w->out, bytes);
    TERN_TRY(tern_outfile_write_at(&w->f, w->out, bytes, at, err));
    TERN_TRY(tern_outfile_write_at(&w->f, &hash, sizeof hash, hash_at(w, chunk), err));
out:
    return rc;
}

static int write_all(struct writer *w, const tern_convert_params *params, tern_error *err)
{
    int rc = 0;
    size_t chunk = 0;
    for (size_t i = 0; i < w->p->n; i++)
        for (size_t c = 0; c < w->p->v[i].n_chunks; c++) {
            if (params->progress && params->progress(params->user, (int)chunk, (int)w->p->n_chunks))
                TERN_FAIL(err, TERN_ECANCELLED, "stopped");
            TERN_TRY(write_chunk(w, &w->p->v[i], c, chunk++, err));
        }
    if (params->progress)
        (void)params->progress(params->user, (int)chunk, (int)chunk);
out:
    return rc;
}

static int prepare(struct writer *w, int n_threads, tern_error *err)
{
    int rc = 0;
    const struct plan *p = w->p;
    for (size_t i = 0; i < p->n; i++) {
        const struct piece *o = &p->v[i];
        const int64_t rows = o->rows < o->chunk_rows ? o->rows : o->chunk_rows;
        const size_t bytes = (size_t)rows * tern_convert_row_bytes(o) + TERN_GGUF_ALIGN;
        w->out_bytes = bytes > w->out_bytes ? bytes : w->out_bytes;
        w->scratch_row = (size_t)o->k > w->scratch_row ? (size_t)o->k : w->scratch_row;
    }
    w->scratch_row = tern_round_up(w->scratch_row, TERN_ALIGN);
    w->data_at = p->head_bytes.len;
    w->total = w->data_at + p->head.data_bytes;
    w->journal = journal_of(p);
    TERN_TRY(tern_pool_new(&w->pool, n_threads > 0 ? n_threads : tern_cpu_cores(), 0, err));
    TERN_TRY(tern_alloc(&w->hashes, p->n_chunks + 1, sizeof *w->hashes, err));
    TERN_TRY(tern_alloc(&w->out, w->out_bytes, 1, err));
    TERN_TRY(tern_alloc(&w->scratch, (size_t)tern_pool_threads(w->pool) * w->scratch_row, sizeof *w->scratch, err));
out:
    return rc;
}

/* What has been written is of use only to a run that would write the same. */
static bool worth_keeping(const struct writer *w, int rc)
{
    return w->begun && w->journal.digest && (rc == TERN_ECANCELLED || rc == TERN_EIO);
}

int tern_convert_write(const struct plan *p, const char *path, const tern_convert_params *params,
                       tern_convert_report *report, tern_error *err)
{
    int rc = 0;
    struct stat st;
    struct writer w = {.p = p, .f.fd = -1};
    const int mode =
        stat(tern_file_path(p->f), &st) == 0 && S_ISREG(st.st_mode) ? (int)(st.st_mode & 0666) | 0200 : 0666;
    if (p->n_chunks > INT32_MAX / 2)
        return tern_err_set(err, TERN_ELIMIT, "%s: the model has too many tensors", tern_path_show(path));
    TERN_TRY(prepare(&w, params->n_threads, err));
    TERN_TRY(tern_outfile_open_part(&w.f, path, mode, &gguf_kind, err));
    if ((rc = check_owner(&w, err)) < 0) {
        tern_outfile_keep(&w.f);
        goto out;
    }
    TERN_TRY(begin(&w, err));
    w.begun = true;
    TERN_TRY(write_all(&w, params, err));
    TERN_TRY(tern_outfile_resize(&w.f, w.total, err));
    TERN_TRY(tern_outfile_commit(&w.f, err));
    report->bytes = w.total;
    report->chunks = (int)p->n_chunks;
    report->chunks_kept = w.kept;
out:
    if (rc < 0 && worth_keeping(&w, rc))
        tern_outfile_keep(&w.f);
    tern_outfile_abort(&w.f);
    tern_pool_free(w.pool);
    tern_free(w.hashes);
    tern_free(w.out);
    tern_free(w.scratch);
    return rc;
}
