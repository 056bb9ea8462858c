/* Memory of a card.  What is lazy is a range of addresses, of which chunks are mapped when something is written to them
 * for the first time, and given back by discard. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"
#include "dev/cuda/rows.h"

#define SMALL ((size_t)32 << 20) /* lazy memory of less is mapped in the smallest chunks */
#define CHUNK ((size_t)16 << 20)

static bool room(const struct tern_dev_mem *m, size_t at, size_t bytes)
{
    return at <= m->bytes && bytes <= m->bytes - at;
}

/* ---- mapping ----------------------------------------------------------------------------------------------------- */

static int map_chunk(struct tern_cuda *d, struct tern_dev_mem *m, size_t i, tern_error *err)
{
    const struct tern_cu_memory_at at = {1, m->card->device};
    const struct tern_cu_memory_kind kind = {.type = 1, .at = at};
    const struct tern_cu_memory_access access = {at, 3};
    const tern_cu_address p = m->p + i * m->chunk;
    unsigned long long handle;
    if (!tern_cuda_card_take(m->card, m->chunk))
        return tern_cuda_full(d, m->chunk, err);
    tern_cu_result rc = tern_cu.cuMemCreate(&handle, m->chunk, &kind, 0);
    if (rc) {
        tern_cuda_card_give(m->card, m->chunk);
        return rc == TERN_CU_OUT_OF_MEMORY ? tern_cuda_full(d, m->chunk, err)
                                           : tern_cu_error(rc, "taking memory of the card", err);
    }
    rc = tern_cu.cuMemMap(p, m->chunk, 0, handle, 0);
    const bool mapped = !rc;
    if (!rc)
        rc = tern_cu.cuMemSetAccess(p, m->chunk, &access, 1);
    if (!rc)
        rc = tern_cu.cuMemsetD8Async(p, 0, m->chunk, d->stream);
    /* Another thread's queue may be the next to use it. */
    if (!rc)
        rc = tern_cu.cuStreamSynchronize(d->stream);
    if (rc) {
        if (mapped)
            (void)tern_cu.cuMemUnmap(p, m->chunk);
        (void)tern_cu.cuMemRelease(handle);
        tern_cuda_card_give(m->card, m->chunk);
    } else {
        m->there[i] = handle;
    }
    return tern_cu_error(rc, "mapping memory of the card", err);
}

int tern_cuda_map(struct tern_cuda *d, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err)
{
    int rc = 0;
    if (!m->chunk || !bytes)
        return 0;
    tern_cuda_enter(d);
    (void)pthread_mutex_lock(&m->lock);
    for (size_t i = at / m->chunk; rc == 0 && i <= (at + bytes - 1) / m->chunk; i++)
        if (!m->there[i])
            rc = map_chunk(d, m, i, err);
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

int tern_cuda_claim(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    TERN_ASSERT(room(m, at, bytes));
    if (!d->fault.code)
        return tern_cuda_map(d, m, at, bytes, err);
    if (err)
        *err = d->fault;
    return d->fault.code;
}

static bool map_all(struct tern_cuda *d, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    tern_error err = {0};
    if (!tern_cuda_ok(d, 0, NULL))
        return false;
    if (tern_cuda_map(d, m, at, bytes, &err) < 0) {
        d->fault = err;
        return false;
    }
    return true;
}

static void unmap(struct tern_dev_mem *m, size_t i)
{
    (void)tern_cu.cuMemUnmap(m->p + i * m->chunk, m->chunk);
    (void)tern_cu.cuMemRelease(m->there[i]);
    m->there[i] = 0;
    tern_cuda_card_give(m->card, m->chunk);
}

/* From `at` on, at most `bytes`: how many lie in chunks that are all there, or all not. */
static size_t same(const struct tern_dev_mem *m, size_t at, size_t bytes, bool *there)
{
    *there = true;
    if (!m->chunk)
        return bytes;
    size_t i = at / m->chunk, end = at;
    *there = m->there[i] != 0;
    for (; end < at + bytes && (m->there[i] != 0) == *there; i++)
        end = (i + 1) * m->chunk;
    return (end < at + bytes ? end : at + bytes) - at;
}

/* ---- taking and giving back -------------------------------------------------------------------------------------- */

static int take_lazy(struct tern_cuda *d, struct tern_dev_mem *m, tern_error *err)
{
    int rc = 0;
    m->chunk = m->bytes < SMALL ? d->card->granularity : CHUNK;
    m->n_chunks = (m->bytes + m->chunk - 1) / m->chunk;
    m->n_chunks += !m->n_chunks;
    TERN_TRY(tern_alloc(&m->there, m->n_chunks, sizeof *m->there, err));
    TERN_TRY(tern_cu_error(tern_cu.cuMemAddressReserve(&m->p, m->n_chunks * m->chunk, 0, 0, 0),
                           "reserving addresses of the card", err));
out:
    return rc;
}

int tern_cuda_limit(struct tern_dev *dev, size_t bytes, tern_error *err)
{
    struct tern_cuda_card *c = tern_cuda_of(dev)->card;
    if (bytes > c->free)
        return tern_err_set(err, TERN_EINVAL, "a budget of %zu MiB is more than %s has: %zu of %zu MiB, less a margin",
                            bytes >> 20, c->name, c->free >> 20, c->memory >> 20);
    atomic_store_explicit(&c->limit, bytes ? bytes : c->free, memory_order_relaxed);
    return 0;
}

void tern_cuda_held(const struct tern_dev *dev, struct tern_dev_held *out)
{
    struct tern_cuda_card *c = ((const struct tern_cuda *)dev)->card;
    *out = (struct tern_dev_held){.limit = atomic_load_explicit(&c->limit, memory_order_relaxed),
                                  .used = atomic_load_explicit(&c->used, memory_order_relaxed),
                                  .piece = CHUNK};
}

int tern_cuda_full(const struct tern_cuda *d, size_t bytes, tern_error *err)
{
    struct tern_dev_held h;
    size_t left = 0, all = 0;
    tern_cuda_held(&d->dev, &h);
    (void)tern_cu.cuMemGetInfo_v2(&left, &all);
    if (h.used > h.limit || bytes > h.limit - h.used)
        return tern_err_set(err, TERN_ENOMEM,
                            "%s: %zu of the %zu MiB that may be used (--gpu-memory) are in use, and %zu MiB are "
                            "needed",
                            d->card->name, h.used >> 20, h.limit >> 20, (bytes >> 20) + 1);
    return tern_err_set(err, TERN_ENOMEM, "%s has %zu of %zu MiB left, and %zu MiB are needed", d->card->name,
                        left >> 20, all >> 20, (bytes >> 20) + 1);
}

/* Kernels may read a little past the end. */
static size_t whole_bytes(const struct tern_dev_mem *m)
{
    return m->bytes + 256;
}

static int take_whole(struct tern_cuda *d, struct tern_dev_mem *m, tern_error *err)
{
    const size_t bytes = whole_bytes(m);
    if (!tern_cuda_card_take(m->card, bytes))
        return tern_cuda_full(d, bytes, err);
    tern_cu_result rc = tern_cu.cuMemAlloc_v2(&m->p, bytes);
    if (rc)
        tern_cuda_card_give(m->card, bytes);
    if (rc == TERN_CU_OUT_OF_MEMORY)
        return tern_cuda_full(d, bytes, err);
    if (!rc)
        rc = tern_cu.cuMemsetD8Async(m->p, 0, bytes, d->stream);
    if (!rc)
        rc = tern_cu.cuStreamSynchronize(d->stream);
    return tern_cu_error(rc, "taking memory of the card", err);
}

int tern_cuda_reserve(struct tern_dev *dev, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    *out = NULL;
    tern_cuda_enter(d);
    if (d->fault.code) {
        if (err)
            *err = d->fault;
        return d->fault.code;
    }
    struct tern_dev_mem *m;
    int rc = tern_alloc(&m, 1, sizeof *m, err);
    if (rc < 0)
        return rc;
    m->bytes = bytes;
    m->card = d->card;
    (void)pthread_mutex_init(&m->lock, NULL);
    if ((rc = lazy ? take_lazy(d, m, err) : take_whole(d, m, err)) < 0)
        tern_cuda_release(dev, m);
    else
        *out = m;
    return rc;
}

void tern_cuda_release(struct tern_dev *dev, struct tern_dev_mem *m)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    if (!m)
        return;
    tern_cuda_enter(d);
    tern_cuda_flush(d);
    (void)tern_cu.cuStreamSynchronize(d->stream);
    if (d->quantized.x >= m->p && d->quantized.x < m->p + m->bytes)
        d->quantized.x = 0;
    for (size_t i = 0; m->there && i < m->n_chunks; i++)
        if (m->there[i])
            unmap(m, i);
    if (m->chunk && m->p) {
        (void)tern_cu.cuMemAddressFree(m->p, m->n_chunks * m->chunk);
    } else if (m->p) {
        (void)tern_cu.cuMemFree_v2(m->p);
        tern_cuda_card_give(m->card, whole_bytes(m));
    }
    (void)pthread_mutex_destroy(&m->lock);
    tern_free(m->there);
    tern_free(m);
}

int tern_cuda_adopt(struct tern_dev *dev, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err)
{
    int rc = tern_cuda_reserve(dev, out, bytes, false, err);
    if (rc == 0)
        tern_cuda_copy_in(dev, *out, 0, host, bytes);
    return rc;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

void tern_cuda_copy_in(struct tern_dev *dev, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    TERN_ASSERT(room(to, at, bytes));
    tern_cuda_flush(d);
    d->quantized.x = 0;
    if (bytes && map_all(d, to, at, bytes))
        (void)tern_cuda_ok(d, tern_cu.cuMemcpyHtoDAsync_v2(to->p + at, host, bytes, d->stream), "copying to the card");
}

#define BOUNCE ((size_t)4 << 20)

void tern_cuda_lands(struct tern_dev *dev, void *host, size_t bytes)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    tern_cuda_enter(d);
    if (d->bounce.lands)
        (void)tern_cu.cuMemHostUnregister(d->bounce.lands);
    d->bounce.lands = NULL;
    if (host && bytes && tern_cu.cuMemHostRegister_v2(host, bytes, 0) == 0) { /* else it stays pageable */
        d->bounce.lands = host;
        d->bounce.lands_bytes = bytes;
    }
}

/* Pageable memory would make the copy wait for everything before it. */
static uint8_t *bounce(struct tern_cuda *d, void *to, size_t bytes)
{
    struct tern_cuda_bounce *b = &d->bounce;
    const uint8_t *at = to, *from = d->bounce.lands;
    if (from && at >= from && at + bytes <= from + d->bounce.lands_bytes)
        return NULL;
    if (!d->pool || b->n == TERN_CUDA_COPIES || bytes > BOUNCE - b->used)
        return NULL;
    if (!b->host) {
        void *p = NULL;
        if (tern_cu.cuMemHostAlloc(&p, BOUNCE, 0))
            return NULL;
        b->host = p;
    }
    b->copy[b->n].to = to;
    b->copy[b->n].at = b->used;
    b->copy[b->n++].bytes = bytes;
    b->used = tern_round_up(b->used + bytes, 64);
    b->used = b->used < BOUNCE ? b->used : BOUNCE;
    return b->host + b->copy[b->n - 1].at;
}

void tern_cuda_hand_on(struct tern_cuda *d)
{
    struct tern_cuda_bounce *b = &d->bounce;
    for (int i = 0; i < b->n; i++)
        memcpy(b->copy[i].to, b->host + b->copy[i].at, b->copy[i].bytes);
    b->n = 0;
    b->used = 0;
}

/* What was never written reads as 0. */
void tern_cuda_copy_out(struct tern_dev *dev, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    uint8_t *to = host;
    TERN_ASSERT(room(from, at, bytes));
    tern_cuda_flush(d);
    for (size_t n; bytes; bytes -= n, at += n, to += n) {
        bool there;
        n = same(from, at, bytes, &there);
        if (!there || !tern_cuda_ok(d, 0, NULL)) {
            memset(to, 0, n);
            continue;
        }
        uint8_t *by = bounce(d, to, n);
        (void)tern_cuda_ok(d, tern_cu.cuMemcpyDtoHAsync_v2(by ? by : to, from->p + at, n, d->stream),
                           "copying from the card");
    }
}

/* Where both overlap, by way of memory of its own. */
static void copy_over(struct tern_cuda *d, tern_cu_address to, tern_cu_address from, size_t bytes)
{
    tern_cu_address by = 0;
    tern_error err = {0};
    if (tern_cuda_take(d, &by, bytes, &err) < 0) {
        d->fault = err;
        return;
    }
    if (tern_cuda_ok(d, tern_cu.cuMemcpyDtoDAsync_v2(by, from, bytes, d->stream), "copying on the card"))
        (void)tern_cuda_ok(d, tern_cu.cuMemcpyDtoDAsync_v2(to, by, bytes, d->stream), "copying on the card");
    (void)tern_cu.cuStreamSynchronize(d->stream);
    tern_cuda_give(d, by);
}

void tern_cuda_copy(struct tern_dev *dev, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                    size_t from_at, size_t bytes)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    TERN_ASSERT(room(to, to_at, bytes) && room(from, from_at, bytes));
    tern_cuda_flush(d);
    d->quantized.x = 0;
    if (to == from && to_at < from_at + bytes && from_at < to_at + bytes && to_at != from_at) {
        if (map_all(d, to, to_at, bytes) && map_all(d, to, from_at, bytes))
            copy_over(d, to->p + to_at, from->p + from_at, bytes);
        return;
    }
    for (size_t n; bytes && tern_cuda_ok(d, 0, NULL); bytes -= n, to_at += n, from_at += n) {
        bool there;
        n = same(from, from_at, bytes, &there);
        if (!there)
            tern_cuda_zero(dev, to, to_at, n);
        else if (map_all(d, to, to_at, n))
            (void)tern_cuda_ok(d, tern_cu.cuMemcpyDtoDAsync_v2(to->p + to_at, from->p + from_at, n, d->stream),
                               "copying on the card");
    }
}

void tern_cuda_zero(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    TERN_ASSERT(room(m, at, bytes));
    tern_cuda_flush(d);
    d->quantized.x = 0;
    for (size_t n; bytes && tern_cuda_ok(d, 0, NULL); bytes -= n, at += n) {
        bool there; /* what is not there is 0 */
        n = same(m, at, bytes, &there);
        if (there)
            (void)tern_cuda_ok(d, tern_cu.cuMemsetD8Async(m->p + at, 0, n, d->stream), "clearing memory of the card");
    }
}

#define READ_THREADS 256
#define READ_PASSES  8 /* by one kernel, for what the host takes to start it is a tenth of one */

/* Between two events. */
double tern_cuda_read(struct tern_dev *dev, const struct tern_dev_mem *m)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_read_args a = {m->p, m->bytes / 16, m->p + tern_round_up(m->bytes, 4), READ_PASSES};
    tern_cu_event at[2] = {NULL, NULL};
    float ms = 0;
    if (m->chunk || !a.n)
        return 0;
    tern_cuda_flush(d);
    bool ok = tern_cuda_ok(d, tern_cu.cuEventCreate(&at[0], 0), "making an event") &&
              tern_cuda_ok(d, tern_cu.cuEventCreate(&at[1], 0), "making an event") &&
              tern_cuda_ok(d, tern_cu.cuEventRecord(at[0], d->stream), "measuring");
    if (ok) {
        tern_cuda_launch(d, TERN_CUDA_K_read, 4 * (unsigned)d->card->processors, 1, 1, READ_THREADS, 0, &a, sizeof a);
        tern_cuda_flush(d);
        ok = tern_cuda_ok(d, tern_cu.cuEventRecord(at[1], d->stream), "measuring") &&
             tern_cuda_ok(d, tern_cu.cuEventSynchronize(at[1]), "measuring") &&
             tern_cuda_ok(d, tern_cu.cuEventElapsedTime(&ms, at[0], at[1]), "measuring");
    }
    for (int i = 0; i < 2; i++)
        if (at[i])
            (void)tern_cu.cuEventDestroy_v2(at[i]);
    return ok && ms > 0 ? (double)a.n * 16 * READ_PASSES * 1e3 / (double)ms : 0;
}

void tern_cuda_discard(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    TERN_ASSERT(room(m, at, bytes));
    if (!m->chunk)
        return;
    tern_cuda_enter(d);
    tern_cuda_flush(d);
    (void)tern_cu.cuStreamSynchronize(d->stream);
    (void)pthread_mutex_lock(&m->lock);
    for (size_t i = (at + m->chunk - 1) / m->chunk; (i + 1) * m->chunk <= at + bytes; i++)
        if (m->there[i])
            unmap(m, i);
    (void)pthread_mutex_unlock(&m->lock);
}
